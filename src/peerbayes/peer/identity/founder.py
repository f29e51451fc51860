"""Founding a network: its authority, its invitations, its rosters."""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from peerbayes.data.files import line, table, text_of, write
from peerbayes.errors import ConfigurationError, IdentityError, TermsError
from peerbayes.peer.agreement.column_facts import canonical, private
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.identity import keys
from peerbayes.peer.identity.roster import LARGEST as LARGEST_ROSTER
from peerbayes.peer.identity.roster import OUTBOUND, Deputy, Member, Roster, listens, valid_address
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
    roster: str  # the signed document; empty: it is too large to go into each of many, and comes as a file of its own

    def pack(self) -> bytes:
        """Return the file's bytes, with a digest that detects damage on the way."""
        plain = {"format": FORMAT, **asdict(self)}
        content = canonical({"digest": _digest(plain), "invitation": plain})
        if len(content) > LARGEST:
            raise IdentityError(f"the invitation has {len(content)} bytes; expected at most {LARGEST}")
        return content

    @classmethod
    def parse(cls, content: bytes, roster: bytes = b"") -> Invitation:
        """Return the invitation in a file, once its documents are known to belong together.

        roster  the signed roster, where the invitation has none of its own
        """
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
        if not invitation.roster:
            if not roster:
                raise IdentityError(
                    "the invitation comes without the roster, which is a file of its own; put the founder's "
                    "roster.json beside it, or name it with --roster"
                )
            invitation = replace(invitation, roster=roster.decode("utf-8", "replace"))
        invitation.check()
        return invitation

    def verified_roster(self) -> Roster:
        return Roster.verified(_bytes(self.roster), _bytes(self.authority))

    def parsed_terms(self) -> Terms:
        try:
            return Terms.parse(self.terms, f"the agreement in the invitation of {self.name}")
        except ValueError as error:
            raise IdentityError(f"{error}; {ADVICE}") from error

    def check(self, roster: Roster | None = None, terms: Terms | None = None) -> None:
        """Refuse an invitation whose certificate, authority, terms and roster do not belong together.

        roster, terms  its own, where they have been verified before
        """
        keys.issued(_bytes(self.certificate), _bytes(self.authority), keys.valid_name(self.name))
        roster = roster or self.verified_roster()
        terms = terms or self.parsed_terms()
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


def is_certificate(content: bytes) -> bool:
    """Return whether bytes claim to be a certificate."""
    return content.startswith(b"-----BEGIN CERTIFICATE-----")


def _bytes(text: str) -> bytes:
    """Return a PEM or JSON text as bytes; readers refuse what is not ASCII."""
    return text.encode("utf-8", "replace")


def _digest(plain: object) -> str:
    return hashlib.sha256(canonical(plain)).hexdigest()


# --- the founder's folder: the network's authority, its agreement and its roster. Members never see the key in it

LINKS = 4  # of a new member by default: a few more than keep a network connected
SHARED_ROSTER = 256 << 10  # bytes of a roster from which on it is not repeated in each of many invitations


@dataclass(frozen=True)
class Applicant:
    """A peer that is to be invited."""

    name: str
    request: bytes
    """Its certificate request, as it sent it."""
    address: str
    links: tuple[str, ...] | None = None
    """Its neighbours; None: a few are chosen."""


class FileOf:
    """The path of a file in a folder, as an attribute of what has the folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: NetworkFolder, owner: type) -> Path:
        return instance.folder / self.name


def applicants_in(path: Path) -> list[Applicant]:
    """Return the peers of a CSV file: name, request (a path beside the file), address and, if wanted, links (a b)."""
    with path.open(newline="", encoding="utf-8-sig") as lines:  # spreadsheets write a mark at the beginning
        reader = csv.DictReader(lines)
        columns = set(reader.fieldnames or ())
        if lacking := {"name", "request", "address"} - columns:
            raise ConfigurationError(
                f"{path} has no column {', '.join(sorted(lacking))}; expected name, request, address and, if wanted, "
                "links"
            )
        applicants = []
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if None in row.values() or None in row:
                raise ConfigurationError(
                    f"{where} has other many fields than the first line; expected {len(columns)}"
                )
            request = path.parent / row["request"]
            if not request.is_file():
                raise ConfigurationError(
                    f"{where}: the request {request} does not exist; expected a peer.csr"
                )
            links = row.get("links", "").split()
            applicants.append(
                Applicant(row["name"], request.read_bytes(), row["address"], tuple(links) or None)
            )
    if not applicants:
        raise ConfigurationError(f"{path} names nobody; expected a line for each peer")
    return applicants


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
        if again and links is not None:
            raise IdentityError(f"{name} keeps its links; leave out --links")
        applicant = Applicant(name, request, address, None if links is None else tuple(links))
        return self._invited([applicant], again, True)[0]

    def refuse_taken(self, name: str, address: str, again: bool = False) -> None:
        """Refuse a name or an address that `invite` would refuse, and change nothing."""
        _refuse_taken(self.roster(), [Applicant(name, b"", address)], again)

    def invite_all(
        self,
        applicants: Sequence[Applicant],
        track: Callable[[Sequence[Applicant]], Iterable[Applicant]] = iter,
    ) -> list[Invitation]:
        """Add many peers to the roster at once, all or none, and return their invitations.

        Who was added before, with the same key and address, gets the same certificate again, so that a call that was
        interrupted can be repeated. A roster of more than `SHARED_ROSTER` bytes is in none of the invitations: it goes
        out beside them, once.

        track  wraps the peers whose requests are signed, so that a caller sees how far it is
        """
        return self._invited(applicants, False, False, track)

    def _invited(
        self,
        applicants: Sequence[Applicant],
        again: bool,
        whole: bool,
        track: Callable[[Sequence[Applicant]], Iterable[Applicant]] = iter,
    ) -> list[Invitation]:
        """Sign requests, add their peers to the roster and store both; `whole`: invitations contain the roster."""
        key, authority, terms = self._read(self.key_path), self.authority(), self.terms()
        roster = self._settled(terms)
        earlier = {} if whole else self._certificates_of(roster, applicants)
        new = [each for each in applicants if each.name not in earlier]
        _refuse_taken(roster, new, again)
        issued = {each.name: keys.issue(key, authority, each.request, each.name) for each in track(new)}
        members = [
            Member(each.name, each.address, keys.fingerprint(certificate), keys.key_digest(certificate))
            for each, certificate in zip(new, issued.values(), strict=True)
        ]
        if again:
            roster = roster.with_changed(members[0])
        elif new:
            before = len(roster.parts(without=roster.revoked))
            roster = roster.with_members(members, links_of(roster, new))
            _refuse_lone(roster, before)
        if not roster.closed and len(roster.members) == self.peers():
            roster = _closed(roster, terms)
        _refuse_unreachable(roster)
        signed = roster.signed(key) if new else self._read(self.roster_path)
        certificates = [(earlier | issued)[each.name] for each in applicants]
        agreement, inside = text_of(self.agreement_path), whole or len(signed) <= SHARED_ROSTER
        invitations = [
            Invitation(
                roster.network,
                each.name,
                certificate.decode(),
                authority.decode(),
                agreement,
                signed.decode() if inside else "",
            )
            for each, certificate in zip(applicants, certificates, strict=True)
        ]
        verified = Roster.verified(signed, authority)
        for invitation in invitations:  # the same checks as the peer's, before anything is written
            invitation.check(verified, terms)
        for invitation in invitations:
            path = self.certificate_path(invitation.name)
            path.parent.mkdir(exist_ok=True)
            write(path, invitation.certificate.encode())
        write(self.roster_path, signed)
        return invitations

    def _certificates_of(self, roster: Roster, applicants: Sequence[Applicant]) -> dict[str, bytes]:
        """Return the certificates of those that are members with the same key and address already, by name."""
        found = {}
        for each in applicants:
            if not roster.has(each.name) or each.name in roster.revoked:
                continue
            member, path = roster.member(each.name), self.certificate_path(each.name)
            is_same = (member.address, member.key) == (
                each.address,
                keys.requested_digest(each.request, each.name),
            )
            if is_same and path.exists() and keys.fingerprint(path.read_bytes()) == member.certificate:
                found[each.name] = path.read_bytes()
        return found

    def close(self) -> Roster:
        """Close the roster, so that the first run can start; whoever is invited later takes part in later runs."""
        terms = self.terms()
        return self._keep(_closed(self._settled(terms), terms))

    def revoke(self, name: str) -> Roster:
        """Revoke a member, so that nobody listens to it; before a run it is removed from the roster.

        Where the others would fall apart without it, they are linked, for the runs to come.
        """
        roster = self.roster()
        if name in roster.revoked:
            raise IdentityError(f"{name} is already revoked; there is nothing to do")
        return self._keep(roster.with_revoked(name) if roster.closed else roster.without(name))

    def name_deputy(self, name: str) -> Roster:
        """Let a member renew certificates of members with the key it has; it needs nothing but the roster."""
        roster = self._with_keys(self.roster())
        roster.place(name)
        key, certificate = self._read(self.key_path), self._read(self.certificate_path(name))
        if keys.key_digest(certificate) != roster.member(name).key:
            raise IdentityError(
                f"{self.certificate_path(name)} is not the certificate of {name} in the roster; bring the file back, "
                "or invite it again"
            )
        deputy = keys.deputy_certificate(key, self.authority(), certificate)
        return self._keep(roster.with_deputy(Deputy(name, deputy.decode())))

    def dismiss_deputy(self, name: str) -> Roster:
        """Take the right to renew certificates from a member; those that it renewed are not accepted any more."""
        return self._keep(self.roster().without_deputy(name))

    def renew(self, names: Iterable[str] | None = None, days: float = keys.DAYS) -> dict[str, bytes]:
        """Return new certificates for members, by default all, with the keys that they have."""
        roster = self.roster()
        filled = self._with_keys(roster)
        if filled is not roster:
            roster = self._keep(filled)
        key, authority = self._read(self.key_path), self.authority()
        if names is None:
            names = [member.name for member in roster.members if member.name not in roster.revoked]
        renewed = {}
        for name in names:
            member = roster.member(name)
            if name in roster.revoked:
                raise IdentityError(f"{name} was revoked in {roster.network}; its certificate is not renewed")
            path = self.certificate_path(name)
            current = self._read(path)
            if keys.key_digest(current) != member.key:
                raise IdentityError(f"{path} is not the certificate of {name} in the roster; invite it again")
            renewed[name] = keys.reissue(key, authority, current, days)
        for name, certificate in renewed.items():
            write(self.certificate_path(name), certificate)
        return renewed

    def _with_keys(self, roster: Roster) -> Roster:
        """Return the roster with the keys of members that joined before rosters had any, if there are some."""
        digests = {}
        for member in roster.members:
            path = self.certificate_path(member.name)
            if not member.key and path.exists() and keys.fingerprint(path.read_bytes()) == member.certificate:
                digests[member.name] = keys.key_digest(path.read_bytes())
        return roster.with_keys(digests) if digests else roster

    def _keep(self, roster: Roster) -> Roster:
        _refuse_unreachable(roster)
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


def _refuse_taken(roster: Roster, applicants: Sequence[Applicant], again: bool) -> None:
    """Refuse names and addresses that a member has, or that two of the applicants have."""
    users = {member.address: member.name for member in roster.members if listens(member.address)}
    names: set[str] = set()
    for each in applicants:
        keys.valid_name(each.name)
        valid_address(each.address)
        # Many wait at one relay, and many are outbound.
        user = users.setdefault(each.address, each.name) if listens(each.address) else each.name
        if user != each.name:
            raise IdentityError(
                f"{user} already uses {each.address}; {each.name} needs an address of its own"
            )
        if each.name in names:
            raise IdentityError(f"{each.name} is to be invited twice; expected each name once")
        if each.name in roster.revoked and not again:
            raise IdentityError(f"{each.name!r} was revoked in {roster.network}; choose another name")
        if roster.has(each.name) and not again:
            raise IdentityError(
                f"{each.name} is already a member; `--again` gives it a new certificate and address"
            )
        names.add(each.name)


def _refuse_lone(roster: Roster, before: int) -> None:
    """Refuse new members of a closed network that later runs could not reach: those that are left must be connected.

    before  the parts of the network without them
    """
    if roster.closed and len(parts := roster.parts(without=roster.revoked)) > max(before, 1):
        raise IdentityError(
            f"{', '.join(parts[-1][:5])} would have no link to a member that is not revoked; choose other links"
        )


def links_of(roster: Roster, applicants: Sequence[Applicant]) -> list[tuple[str, str]]:
    """Return the links of new members: those that they ask for, or else a few to members that have few."""
    degrees = {
        member.name: len(roster.neighbours(member.name))
        for member in roster.members
        if member.name not in roster.revoked
    }
    names, links = list(degrees), list[tuple[str, str]]()
    reachable = {member.name for member in roster.members if member.address != OUTBOUND}
    reachable |= {each.name for each in applicants if each.address != OUTBOUND}
    for each in applicants:
        others = [name for name in names if each.address != OUTBOUND or name in reachable]
        for neighbour in spread_links(each.name, others, degrees) if each.links is None else each.links:
            degrees[neighbour] = degrees.get(neighbour, 0) + 1  # the roster refuses links to nobody
            degrees[each.name] = degrees.get(each.name, 0) + 1
            links.append((neighbour, each.name))
        degrees.setdefault(each.name, 0)
        names.append(each.name)
    return links


def _refuse_unreachable(roster: Roster) -> None:
    """Refuse a link between two members neither of whom can be reached."""
    outbound = {member.name for member in roster.members if member.address == OUTBOUND}
    for first, second in roster.links if outbound else ():
        if (
            first in outbound
            and second in outbound
            and not outbound.intersection(roster.revoked) >= {first, second}
        ):
            raise IdentityError(
                f"{first} and {second} are to be linked, and both are outbound: neither can open the connection. Link "
                "them to others (--links), or give one of them an address, or one at a relay (relay://host:port)"
            )


def spread_links(name: str, names: Sequence[str], degrees: Mapping[str, int]) -> tuple[str, ...]:
    """Return the links of a new member: to all members while they are few, else to some all over the network.

    Each is the one with fewer links of two that a digest of the names draws: with links to the latest members only, a
    network would be a long band, and n members would take n/8 hops.
    """
    if len(names) <= LINKS:
        return tuple(names)
    chosen: dict[str, None] = {}
    for draw in itertools.count():
        digest = hashlib.sha256(f"{name} {draw}".encode()).digest()
        pair = (names[int.from_bytes(part) % len(names)] for part in (digest[:8], digest[8:16]))
        chosen.setdefault(min(pair, key=lambda other: degrees[other]))
        if len(chosen) == LINKS:
            break
    return tuple(chosen)
