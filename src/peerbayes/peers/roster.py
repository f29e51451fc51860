"""Who is in a network, where, and who talks with whom: a value that only the network's authority can sign."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import msgspec
import numpy as np
from scipy.sparse import csr_array

from peerbayes.peers import identity
from peerbayes.peers.documents import canonical
from peerbayes.peers.errors import IdentityError
from peerbayes.peers.member import Member, valid_address, valid_digest
from peerbayes.peers.terms import NETWORK
from peerbayes.topologies.links import linked

__all__ = ["Member", "Roster", "valid_address"]

FORMAT = 1
LARGEST = 4 << 20  # bytes of a signed roster: about 20,000 members with four links each
HEAD, MIDDLE = b'{"roster":', b',"signature":"'  # of the document, around the roster's text
SIGNATURE = re.compile(rb'((?:[0-9a-f]{2}){1,80})"}')  # the rest of it
PURPOSE = b"peerbayes roster\n"  # signed along: no other signature of the authority passes for a roster's


@dataclass(frozen=True)
class Roster:
    """The members of a network and their links. Each change gives a new roster with the next version."""

    network: str
    terms: str  # the digest of what was agreed on
    version: int
    members: tuple[Member, ...]
    links: tuple[tuple[str, str], ...]
    revoked: tuple[str, ...] = ()  # names that nobody may use any more; some may never have been in a run
    closed: bool = False  # nobody else joins: a run can start

    def __post_init__(self) -> None:
        if not NETWORK.fullmatch(self.network):
            raise IdentityError(
                f"the network is {self.network!r:.80}; expected 1 to 40 letters, digits and '-'"
            )
        valid_digest("the terms", self.terms)
        if not 0 <= self.version < 2**53:
            raise IdentityError(f"the roster's version is {self.version}; expected a whole number from 0")
        for what, names in (("member", self._names), ("revoked name", self.revoked)):
            twice = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ()
            if twice:
                raise IdentityError(f"{what} {min(twice)!r} is in the roster twice; expected each name once")
        for name in self.revoked:
            identity.valid_name(name)
        object.__setattr__(self, "links", self._sorted_links())
        if self.closed and len(parts := self.parts()) != 1:
            shown = "; ".join(" ".join(part[:5]) + (" …" if len(part) > 5 else "") for part in parts[:5])
            raise IdentityError(
                f"the closed roster falls into {len(parts)} parts ({shown}); expected one: link them by inviting "
                "a peer that is linked to each (--links)"
            )

    @cached_property
    def run(self) -> str:
        """What identifies a run: network, terms, names and links; not versions, addresses or revocations."""
        return hashlib.sha256(canonical([self.network, self.terms, self._names, self.links])).hexdigest()

    @cached_property
    def digest(self) -> bytes:
        """sha256 of everything in it, which is what the authority signs."""
        return hashlib.sha256(self.to_json()).digest()

    def place(self, name: str) -> int:
        """The number of a member, from 0."""
        try:
            return self._places[name]
        except KeyError:
            raise IdentityError(
                f"{name!r:.80} is no member of {self.network} in roster {self.version}; expected one of "
                f"{', '.join(self._names[:20]) or 'nobody: there are none yet'}"
            ) from None

    def member(self, name: str) -> Member:
        return self.members[self.place(name)]

    def neighbours(self, name: str) -> tuple[str, ...]:
        """Those linked with a member, in the members' order; revoked ones too."""
        return tuple(self._names[place] for place in self._linked[self.place(name)])

    def present(self, name: str) -> tuple[str, ...]:
        """Those linked with a member that are not revoked."""
        return tuple(other for other in self.neighbours(name) if other not in self.revoked)

    def adjacency(self) -> csr_array:
        """A [N,N] in the members' order, as `peerbayes.topologies` has it."""
        pairs = [(self._places[first], self._places[second]) for first, second in self.links]
        ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return linked(ends[:, 0], ends[:, 1], len(self.members))

    def parts(self, without: Iterable[str] = ()) -> list[tuple[str, ...]]:
        """The names of each connected part, once some members are taken out."""
        gone = set(without)
        left = {place for name, place in self._places.items() if name not in gone}
        found = []
        for first in range(len(self.members)):
            part, waiting = [], [first] if first in left else []
            left.discard(first)
            while waiting:
                part.append(place := waiting.pop())
                heard = [other for other in self._linked[place] if other in left]
                left.difference_update(heard)
                waiting += heard
            if part:
                found.append(tuple(self._names[place] for place in sorted(part)))
        return found

    def with_member(self, member: Member, linked_to: Iterable[str]) -> Roster:
        """One more member, linked to some of those that are in."""
        if self.closed:
            raise IdentityError(
                f"{self.network} is closed, and {member.name} would be new; found another network for more members"
            )
        if member.name in self.revoked:
            raise IdentityError(f"{member.name!r} was revoked in {self.network}; choose another name")
        links = tuple((name, member.name) for name in linked_to)
        return self._next(members=(*self.members, member), links=self.links + links)

    def with_changed(self, member: Member) -> Roster:
        """Another address or certificate for a member; its links stay."""
        place = self.place(member.name)
        if member.name in self.revoked:
            raise IdentityError(f"{member.name!r} was revoked in {self.network}; it cannot come back")
        return self._next(members=(*self.members[:place], member, *self.members[place + 1 :]))

    def with_revoked(self, name: str) -> Roster:
        """Nobody may listen to this member any more. The run stays the same, so that the others go on."""
        self.place(name)
        return self._next(revoked=(*self.revoked, name))

    def without(self, name: str) -> Roster:
        """A member taken out before the network is closed, and revoked, since it has a certificate."""
        self.place(name)
        if self.closed:
            raise IdentityError(f"{self.network} is closed: {name} can be revoked, not taken out")
        return self._next(
            members=tuple(member for member in self.members if member.name != name),
            links=tuple(link for link in self.links if name not in link),
            revoked=(*self.revoked, name),
        )

    def with_closed(self) -> Roster:
        """Nobody else joins: a run can start."""
        if self.closed:
            raise IdentityError(f"{self.network} is closed already; there is nothing to do")
        return self._next(closed=True)

    def to_json(self) -> bytes:
        """The one text that stands for this roster."""
        return canonical({"format": FORMAT, **asdict(self)})

    def signed(self, authority_key_pem: bytes) -> bytes:
        """The document that members pass on."""
        signature = identity.sign(authority_key_pem, PURPOSE + self.to_json())
        document = canonical({"roster": json.loads(self.to_json()), "signature": signature.hex()})
        if len(document) > LARGEST:
            raise IdentityError(
                f"the roster has {len(document)} bytes; expected at most {LARGEST}: too many members"
            )
        return document

    @classmethod
    def verified(cls, content: bytes, authority_certificate_pem: bytes) -> Roster:
        """The roster of a document, once the authority is known to have signed exactly that."""
        if len(content) > LARGEST:
            raise IdentityError(f"the roster has {len(content)} bytes; expected at most {LARGEST}")
        text, signature = _split(content)
        identity.verify(authority_certificate_pem, signature, PURPOSE + text)
        try:
            plain = json.loads(text)
            genuine = canonical(plain) == text
        except (ValueError, RecursionError) as problem:
            raise IdentityError(
                f"the authority signed a roster that makes no sense: {problem!r:.80}"
            ) from problem
        if not genuine:
            raise IdentityError(
                "the roster was written in another form than peerbayes writes it; get it again"
            )
        if not isinstance(plain, dict) or plain.get("format") != FORMAT:
            raise IdentityError(
                f"the roster's format is not {FORMAT}; update with `pip install --upgrade peerbayes`"
            )
        try:
            roster = msgspec.convert(plain, cls)
        except (msgspec.ValidationError, RecursionError) as problem:
            raise IdentityError(f"the authority signed a roster that makes no sense: {problem}") from problem
        if roster.to_json() != text:
            raise IdentityError(
                "the authority signed a roster with more in it, or in another order, than expected"
            )
        if (network := identity.name_of(authority_certificate_pem)) != roster.network:
            raise IdentityError(
                f"the authority is of network {network!r}; its roster is of {roster.network!r}"
            )
        return roster

    def differences(self, other: Roster) -> list[str]:
        """Where two rosters differ, a line each: "version: 3 against 4"."""
        found = [
            f"{name}: {getattr(self, name)} against {getattr(other, name)}"
            for name in ("network", "terms", "version", "closed")
            if getattr(self, name) != getattr(other, name)
        ]
        ours, theirs = ({member.name: member for member in roster.members} for roster in (self, other))
        found += _one_sided("member", ours, theirs)
        for name in ours.keys() & theirs.keys():
            for what in ("address", "certificate"):
                here, there = getattr(ours[name], what), getattr(theirs[name], what)
                found += [f"{what} of {name}: {here} against {there}"] * (here != there)
        found += _one_sided("link", map(" - ".join, self.links), map(" - ".join, other.links))
        found += _one_sided("revoked", self.revoked, other.revoked)
        if not found and self != other:
            found.append("order: the same members in another order")
        return found

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self._names)}

    @cached_property
    def _linked(self) -> list[list[int]]:
        """The places of each member's neighbours, in order."""
        found: list[list[int]] = [[] for _ in self.members]
        for first, second in self.links:
            found[self._places[first]].append(self._places[second])
            found[self._places[second]].append(self._places[first])
        return [sorted(places) for places in found]

    def _sorted_links(self) -> tuple[tuple[str, str], ...]:
        """Links in one order, so that equal networks have equal runs."""
        found = set()
        for first, second in self.links:
            pair = tuple(sorted((self.place(first), self.place(second))))
            if first == second or pair in found:
                raise IdentityError(f"the link {first} - {second} is to itself or there twice; leave it out")
            found.add(pair)
        return tuple((self._names[first], self._names[second]) for first, second in sorted(found))

    def _next(self, **changes: object) -> Roster:
        return replace(self, version=self.version + 1, **changes)  # type: ignore[arg-type]


def _split(content: bytes) -> tuple[bytes, bytes]:
    """Return the text of a document and its signature, and read neither: whoever sends junk has it read by nobody."""
    before, middle, after = content.rpartition(MIDDLE)
    signature = SIGNATURE.fullmatch(after)
    if not before.startswith(HEAD) or not middle or signature is None:
        raise IdentityError(
            f"no signed roster: it starts with {content[:20]!r} and ends with {content[-20:]!r}; expected the "
            "roster.json that `peerbayes network` wrote"
        )
    return before[len(HEAD) :], bytes.fromhex(signature[1].decode())


def _one_sided(what: str, ours: Iterable[str], theirs: Iterable[str]) -> list[str]:
    here, there = dict.fromkeys(ours), dict.fromkeys(theirs)
    return [
        *(f"{what} {name}: only in the first" for name in here if name not in there),
        *(f"{what} {name}: only in the second" for name in there if name not in here),
    ]
