"""Founding a network: its authority, its invitations, its rosters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from peerbayes.data.files import line, table, text_of, write
from peerbayes.errors import ConfigurationError, IdentityError, TermsError
from peerbayes.peer.agreement.column_facts import canonical, private
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.identity import keys
from peerbayes.peer.identity.roster import LARGEST as LARGEST_ROSTER
from peerbayes.peer.identity.roster import Member, Roster, valid_address
from peerbayes.peer.learning.masks import refuse_small, refuse_thin

# --- an invitation: one file with all that a peer needs to become a member, except its key, which never leaves it

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
        keys.issued(_bytes(self.certificate), _bytes(self.authority), keys.valid_name(self.name))
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
            ("certificate", keys.fingerprint(_bytes(self.certificate)), member.certificate),
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


# --- the founder's folder: the network's authority, its agreement and its roster. Members never see the key in it

LINKS = 4  # of a new member by default: a few more than keep a network connected


class FileOf:
    """The path of a file in a folder, as an attribute of what has the folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: NetworkFolder, owner: type) -> Path:
        return instance.folder / self.name


@dataclass(frozen=True)
class NetworkFolder:
    """A folder with the public files of a network: a founder's, or a member's."""

    folder: Path

    authority_path = FileOf("authority.crt")
    agreement_path = FileOf("agreement.toml")
    roster_path = FileOf("roster.json")


@dataclass(frozen=True)
class Founder(NetworkFolder):
    """Invites and revokes peers. Not needed while they learn."""

    key_path = FileOf("authority.key")
    plan_path = FileOf("network.toml")

    def certificate_path(self, name: str) -> Path:
        """Return the path of the copy of a member's certificate, kept for its expiry date."""
        return self.folder / "issued" / f"{name}.crt"

    @classmethod
    def create(cls, folder: Path, agreement: str, peers: int | None = None) -> Founder:
        """Create a network with the terms in the text `agreement`; it closes by itself with `peers` members."""
        founder = cls(Path(folder))
        terms = Terms.parse(agreement, str(founder.agreement_path))
        if peers is not None and peers < 1:
            raise ConfigurationError(f"the network is for {peers} peers; expected 1 or more")
        for path in (founder.key_path, founder.authority_path, founder.agreement_path, founder.roster_path):
            if path.exists():
                raise ConfigurationError(f"{path} already exists; expected a folder without a network")
        key, authority = keys.new_authority(terms.network)
        founder.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        private(founder.key_path, key)
        write(founder.authority_path, authority)
        write(founder.agreement_path, agreement.encode())
        if peers is not None:
            write(founder.plan_path, f"peers = {peers}  # the roster closes when so many are in\n".encode())
        write(founder.roster_path, Roster(terms.network, terms.digest, 0, (), ()).signed(key))
        return founder

    def terms(self) -> Terms:
        return Terms.read(self.agreement_path)

    def authority(self) -> bytes:
        return self._read(self.authority_path)

    def roster(self) -> Roster:
        return Roster.verified(self._read(self.roster_path), self.authority())

    def peers(self) -> int | None:
        """Return with how many members the roster closes by itself; None: only when the founder closes it."""
        if not self.plan_path.exists():
            return None
        text = text_of(self.plan_path)
        peers = table(text, str(self.plan_path)).get("peers")
        if type(peers) is not int or peers < 1:
            where = f"{self.plan_path}{line(text, 'peers')}"
            raise ConfigurationError(f"{where}: peers is {peers!r}; expected a whole number, 1 or more")
        return peers

    def invite(
        self, name: str, request: bytes, address: str, links: Iterable[str] | None = None, again: bool = False
    ) -> Invitation:
        """Add a peer to the roster, and return its invitation. `again`: a member gets a new address and certificate."""
        key, authority, terms = self._read(self.key_path), self.authority(), self.terms()
        roster = self._settled(terms)
        keys.valid_name(name)
        for member in roster.members:
            if member.address == valid_address(address) and member.name != name:
                raise IdentityError(
                    f"{member.name} already uses {address}; {name} needs an address of its own"
                )
        is_member = name in (member.name for member in roster.members)
        if is_member and not again:
            raise IdentityError(
                f"{name} is already a member; `--again` gives it a new certificate and address"
            )
        if again and links is not None:
            raise IdentityError(f"{name} keeps its links; leave out --links")
        certificate = keys.issue(key, authority, request, name)
        new_member = Member(name, address, keys.fingerprint(certificate))
        if again:
            roster = roster.with_changed(new_member)
        else:
            roster = roster.with_member(new_member, default_links(roster) if links is None else links)
        if not roster.closed and len(roster.members) == self.peers():
            roster = _closed(roster, terms)
        signed = roster.signed(key)
        invitation = Invitation(
            roster.network, name, certificate.decode(), authority.decode(), text_of(self.agreement_path),
            signed.decode(),
        )  # fmt: skip
        Invitation.parse(invitation.pack())  # the same checks as the peer's, before anything is written
        path = self.certificate_path(name)
        path.parent.mkdir(exist_ok=True)
        write(path, certificate)
        write(self.roster_path, signed)
        return invitation

    def close(self) -> Roster:
        """Close the roster to new members, so that a run can start."""
        terms = self.terms()
        return self._keep(_closed(self._settled(terms), terms))

    def revoke(self, name: str) -> Roster:
        """Revoke a member, so that nobody listens to it; before a run it is removed from the roster."""
        roster = self.roster()
        if name in roster.revoked:
            raise IdentityError(f"{name} is already revoked; there is nothing to do")
        return self._keep(roster.with_revoked(name) if roster.closed else roster.without(name))

    def _keep(self, roster: Roster) -> Roster:
        write(self.roster_path, roster.signed(self._read(self.key_path)))
        return roster

    def _settled(self, terms: Terms) -> Roster:
        """Return the roster under these terms, which may change until the first invitation."""
        roster = self.roster()
        if roster.network == terms.network and roster.terms == terms.digest:
            return roster
        if roster.network != terms.network:
            raise TermsError(
                f"{self.agreement_path}: network is {terms.network!r}; expected {roster.network!r}, as the authority "
                "is called: change it back, or make a new network"
            )
        if roster.version:
            raise TermsError(
                f"{self.agreement_path} was changed since the first invitation: its digest is {terms.digest:.8}, the "
                f"roster's {roster.terms:.8}; change it back (`peerbayes network inspect . INVITATION` shows the "
                "difference), or make a new network"
            )
        return replace(roster, terms=terms.digest)

    def _read(self, path: Path) -> bytes:
        if not path.exists():
            raise ConfigurationError(
                f"{path} is missing; expected a network's folder: make one with `peerbayes network new`, or name it "
                "with --network"
            )
        return path.read_bytes()


def _closed(roster: Roster, terms: Terms) -> Roster:
    """Return the closed roster, if a run can start with it."""
    refuse_small(roster, terms)
    if (promise := terms.privacy.promise) is not None:
        refuse_thin(roster, promise)
    return roster.with_closed()


def default_links(roster: Roster) -> tuple[str, ...]:
    """Return the links of a new member: to all members while they are few, else to those with the fewest links."""
    present = [member.name for member in roster.members if member.name not in roster.revoked]
    return tuple(sorted(present, key=lambda name: len(roster.neighbours(name)))[:LINKS])
