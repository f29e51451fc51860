"""The founder's folder: the network's authority, its agreement and its roster. Members never see the key in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from peerbayes.errors import ConfigurationError
from peerbayes.files import write
from peerbayes.peers import identity
from peerbayes.peers.documents import private
from peerbayes.peers.edge_noise import refuse_thin
from peerbayes.peers.errors import IdentityError, TermsError
from peerbayes.peers.groups import refuse_small
from peerbayes.peers.invitation import Invitation
from peerbayes.peers.roster import Member, Roster, valid_address
from peerbayes.peers.terms import Terms
from peerbayes.toml import line, table, text_of

LINKS = 4  # of a new member by default: a few more than keep a network connected


@dataclass(frozen=True)
class Founder:
    """Invites and revokes peers. Not needed while they learn."""

    folder: Path

    @property
    def key_path(self) -> Path:
        return self.folder / "authority.key"

    @property
    def authority_path(self) -> Path:
        return self.folder / "authority.crt"

    @property
    def agreement_path(self) -> Path:
        return self.folder / "agreement.toml"

    @property
    def roster_path(self) -> Path:
        return self.folder / "roster.json"

    @property
    def plan_path(self) -> Path:
        return self.folder / "network.toml"

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
        key, authority = identity.new_authority(terms.network)
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
        identity.valid_name(name)
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
        certificate = identity.issue(key, authority, request, name)
        new_member = Member(name, address, identity.fingerprint(certificate))
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
    if terms.privacy.secure_sum:
        refuse_small(roster)
    if (promise := terms.privacy.promise) is not None:
        refuse_thin(roster, promise)
    return roster.with_closed()


def default_links(roster: Roster) -> tuple[str, ...]:
    """Return the links of a new member: to all members while they are few, else to those with the fewest links."""
    present = [member.name for member in roster.members if member.name not in roster.revoked]
    return tuple(sorted(present, key=lambda name: len(roster.neighbours(name)))[:LINKS])
