"""An invitation: one file with all that a peer needs to become a member, but its key, which never left it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from peerbayes.peers import identity
from peerbayes.peers.documents import canonical
from peerbayes.peers.errors import IdentityError
from peerbayes.peers.roster import LARGEST as LARGEST_ROSTER
from peerbayes.peers.roster import Roster
from peerbayes.peers.terms import Terms

FORMAT = 1
LARGEST = 2 * LARGEST_ROSTER + (4 << 20)  # the roster as a JSON text, and the terms of very wide tables
ADVICE = "get it again from the founder"


@dataclass(frozen=True)
class Invitation:
    """What the founder of a network sends to a new member."""

    network: str
    name: str
    certificate: str  # PEM
    authority: str  # PEM
    terms: str  # the agreement's TOML text
    roster: str  # the signed document

    def pack(self) -> bytes:
        """The file; its digest finds damage on the way."""
        plain = {"format": FORMAT, **asdict(self)}
        content = canonical({"digest": _digest(plain), "invitation": plain})
        if len(content) > LARGEST:
            raise IdentityError(f"the invitation has {len(content)} bytes; expected at most {LARGEST}")
        return content

    @classmethod
    def parse(cls, content: bytes) -> Invitation:
        """The invitation in a file, once all its parts are known to fit together."""
        if len(content) > LARGEST:
            raise IdentityError(f"the invitation has {len(content)} bytes; expected at most {LARGEST}")
        try:
            document = json.loads(content)
            plain = document["invitation"]
            whole = canonical({"digest": _digest(plain), "invitation": plain}) == content
        except (KeyError, TypeError, ValueError, RecursionError) as problem:
            raise IdentityError(f"no invitation: {problem!r:.80}; {ADVICE}") from problem
        if not whole:
            raise IdentityError(
                f"the invitation was altered on its way: it does not fit its digest; {ADVICE}"
            )
        if not isinstance(plain, dict) or plain.pop("format", None) != FORMAT:
            raise IdentityError(
                f"the invitation's format is not {FORMAT}; update with `pip install -U peerbayes`"
            )
        if plain.keys() != cls.__dataclass_fields__.keys() or not all(
            isinstance(value, str) for value in plain.values()
        ):
            raise IdentityError(f"the invitation holds {', '.join(plain):.80}; {ADVICE}")
        found = cls(**plain)
        found._fits()
        return found

    def verified_roster(self) -> Roster:
        return Roster.verified(_bytes(self.roster), _bytes(self.authority))

    def parsed_terms(self) -> Terms:
        return Terms.parse(self.terms, f"the agreement in the invitation of {self.name}")

    def _fits(self) -> None:
        """Certificate, authority, terms and roster belong together."""
        identity.issued(_bytes(self.certificate), _bytes(self.authority), identity.valid_name(self.name))
        roster = self.verified_roster()
        try:
            terms = self.parsed_terms()
        except ValueError as problem:
            raise IdentityError(f"{problem}; {ADVICE}") from problem
        member = roster.member(self.name)
        for what, here, there in (
            ("network", self.network, roster.network),
            ("network of the agreement", terms.network, roster.network),
            ("agreement", terms.digest, roster.terms),
            ("certificate", identity.fingerprint(_bytes(self.certificate)), member.certificate),
        ):
            if here != there:
                raise IdentityError(
                    f"the invitation's {what} is {here:.40}, the roster's {there:.40}; {ADVICE}"
                )


def is_invitation(content: bytes) -> bool:
    """Whether bytes claim to be an invitation."""
    return content.startswith(b'{"digest":')


def is_roster(content: bytes) -> bool:
    """Whether bytes claim to be a signed roster."""
    return content.startswith(b'{"roster":')


def _bytes(text: str) -> bytes:
    """A PEM or JSON text; what is not ASCII is refused by whoever reads it."""
    return text.encode("utf-8", "replace")


def _digest(plain: object) -> str:
    return hashlib.sha256(canonical(plain)).hexdigest()
