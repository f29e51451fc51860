"""An invitation: one file with all that a peer needs to become a member, except its key, which never leaves it."""

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
        """Return the file's bytes, with a digest that detects damage on the way."""
        plain = {"format": FORMAT, **asdict(self)}
        content = canonical({"digest": _digest(plain), "invitation": plain})
        if len(content) > LARGEST:
            raise IdentityError(f"the invitation has {len(content)} bytes; expected at most {LARGEST}")
        return content

    @classmethod
    def parse(cls, content: bytes) -> Invitation:
        """Return the invitation in a file, once its documents are known to belong together."""
        if len(content) > LARGEST:
            raise IdentityError(f"the invitation has {len(content)} bytes; expected at most {LARGEST}")
        try:
            document = json.loads(content)
            plain = document["invitation"]
            intact = canonical({"digest": _digest(plain), "invitation": plain}) == content
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise IdentityError(f"not an invitation: {error!r:.80}; {ADVICE}") from error
        if not intact:
            raise IdentityError(
                f"the invitation was altered on its way: it does not match its digest; {ADVICE}"
            )
        if not isinstance(plain, dict) or plain.pop("format", None) != FORMAT:
            raise IdentityError(
                f"the invitation's format is not {FORMAT}; update with `pip install -U peerbayes`"
            )
        if plain.keys() != cls.__dataclass_fields__.keys() or not all(
            isinstance(value, str) for value in plain.values()
        ):
            raise IdentityError(f"the invitation holds {', '.join(plain):.80}; {ADVICE}")
        invitation = cls(**plain)
        invitation._check()
        return invitation

    def verified_roster(self) -> Roster:
        return Roster.verified(_bytes(self.roster), _bytes(self.authority))

    def parsed_terms(self) -> Terms:
        return Terms.parse(self.terms, f"the agreement in the invitation of {self.name}")

    def _check(self) -> None:
        """Refuse an invitation whose certificate, authority, terms and roster do not belong together."""
        identity.issued(_bytes(self.certificate), _bytes(self.authority), identity.valid_name(self.name))
        roster = self.verified_roster()
        try:
            terms = self.parsed_terms()
        except ValueError as error:
            raise IdentityError(f"{error}; {ADVICE}") from error
        member = roster.member(self.name)
        for label, value, expected in (
            ("network", self.network, roster.network),
            ("network of the agreement", terms.network, roster.network),
            ("agreement", terms.digest, roster.terms),
            ("certificate", identity.fingerprint(_bytes(self.certificate)), member.certificate),
        ):
            if value != expected:
                raise IdentityError(
                    f"the invitation's {label} is {value:.40}, the roster's {expected:.40}; {ADVICE}"
                )


def is_invitation(content: bytes) -> bool:
    """Return whether bytes claim to be an invitation."""
    return content.startswith(b'{"digest":')


def is_roster(content: bytes) -> bool:
    """Return whether bytes claim to be a signed roster."""
    return content.startswith(b'{"roster":')


def _bytes(text: str) -> bytes:
    """Return a PEM or JSON text as bytes; readers refuse what is not ASCII."""
    return text.encode("utf-8", "replace")


def _digest(plain: object) -> str:
    return hashlib.sha256(canonical(plain)).hexdigest()
