"""The roster: members, their links and addresses, signed by the authority."""

from __future__ import annotations

import hashlib
import ipaddress
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from scipy.sparse import csgraph, csr_array

from peerbayes.errors import IdentityError
from peerbayes.network.mixing import linked
from peerbayes.network.trees import ShallowTree
from peerbayes.peer.agreement.column_facts import canonical
from peerbayes.peer.agreement.terms import NETWORK
from peerbayes.peer.identity import keys
from peerbayes.peer.identity.keys import valid_name

# --- a member of a network: its name, its address and its certificate

DIGEST = re.compile(r"[0-9a-f]{64}")
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
OUTBOUND = (
    "outbound"  # the address of a member that cannot be reached, and opens all of its connections itself
)
RELAY = "relay://"  # what the address of a member that waits at a relay begins with


def valid_address(address: str) -> str:
    """Return the address if it is host:port (an IPv6 host in brackets), relay://host:port or outbound."""
    if address != OUTBOUND:
        _valid_place(address, address.removeprefix(RELAY))
    return address


def listens(address: str) -> bool:
    """Return whether a member with this address listens there itself."""
    return address != OUTBOUND and not address.startswith(RELAY)


def _valid_place(address: str, place: str) -> None:
    host, _, port = place.rpartition(":")
    inside = host[1:-1] if host.startswith("[") and host.endswith("]") else None
    if not (HOST.fullmatch(host) if inside is None else _is_ipv6(inside)) or not (
        re.fullmatch(r"[1-9][0-9]{0,4}", port) and int(port) < 2**16
    ):
        raise IdentityError(
            f"the address is {address!r:.80}; expected host:port, such as a.example.org:7070, relay://host:port of a "
            "relay, or outbound for a peer that nobody can reach"
        )


@dataclass(frozen=True)
class Member:
    """One peer of a network."""

    name: str
    address: str  # host:port where its neighbours reach it, relay://host:port where it waits, or outbound
    certificate: str  # its fingerprint
    key: str = (
        ""  # sha256 of its public key, which a renewed certificate has as well; "": as before there were any
    )

    def __post_init__(self) -> None:
        valid_name(self.name)
        valid_address(self.address)
        valid_digest(f"the certificate of {self.name}", self.certificate)
        if self.key:
            valid_digest(f"the key of {self.name}", self.key)

    def accepts(self, certificate: bytes, issuers: Sequence[bytes] = (), now: datetime | None = None) -> bool:
        """Return whether a certificate (PEM) is this member's: the one in the roster, or a renewed one.

        issuers  who may renew: `Roster.issuers`; a renewed certificate has the same name and the same key
        """
        if keys.fingerprint(certificate) == self.certificate:
            return True
        if not self.key or keys.key_digest(certificate) != self.key:
            return False
        moment = now or datetime.now(UTC)
        if (issuer := keys.issuer_of(certificate, issuers)) is None:
            return False
        for each in (certificate, issuer):
            begin, end = keys.validity(each)
            if not begin <= moment <= end:
                return False
        try:
            keys.issued(certificate, issuer, self.name)
        except IdentityError:
            return False
        return True


@dataclass(frozen=True)
class Deputy:
    """A member that may renew the certificates of members: the same names and the same keys, nothing else."""

    name: str
    certificate: str  # PEM, as the authority issued it for the member's own key

    def __post_init__(self) -> None:
        valid_name(self.name)


def valid_digest(subject: str, value: str) -> None:
    if not DIGEST.fullmatch(value):
        raise IdentityError(f"{subject} is {value!r:.80}; expected a sha256 digest of 64 hexadecimal digits")


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


# --- the roster: members of a network, their addresses and links; only the network's authority can sign it

__all__ = ["Deputy", "Member", "Roster", "RunRoster", "valid_address"]

FORMAT = 1
LARGEST = 4 << 20  # bytes of a signed roster: about 15,000 members with four links each
HEAD, MIDDLE = b'{"roster":', b',"signature":"'  # of the document, around the roster's text
SIGNATURE = re.compile(rb'((?:[0-9a-f]{2}){1,80})"}')  # the end of the document
PURPOSE = b"peerbayes roster\n"  # signed along: no other signature of the authority passes for a roster's


@dataclass(frozen=True)
class Roster:
    """The members of a network and their links. Each change makes a new roster with the next version."""

    network: str
    terms: str  # the digest of what was agreed on
    version: int
    members: tuple[Member, ...]
    links: tuple[tuple[str, str], ...]
    revoked: tuple[str, ...] = ()  # names that must not be used any more; some may never have been in a run
    closed: bool = False  # runs can begin; whoever joins from now on takes part in later ones
    deputies: tuple[Deputy, ...] = ()  # who may renew certificates beside the authority
    first: int = 0  # how many members the first run has, where others joined later; 0: all of them
    added: tuple[tuple[str, str], ...] = ()  # links between those that were made later

    def __post_init__(self) -> None:
        if not NETWORK.fullmatch(self.network):
            raise IdentityError(
                f"the network is {self.network!r:.80}; expected 1 to 40 letters, digits and '-'"
            )
        valid_digest("the terms", self.terms)
        if not 0 <= self.version < 2**53:
            raise IdentityError(f"the roster's version is {self.version}; expected a whole number from 0")
        for noun, names in (("member", self._names), ("revoked name", self.revoked)):
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise IdentityError(f"{noun} {min(twice)!r} is in the roster twice; expected each name once")
        for name in self.revoked:
            keys.valid_name(name)
        self._check_deputies()
        object.__setattr__(self, "links", self._sorted_links())
        self._refuse_history()
        if self.closed and len(components := self.parts()) != 1:
            shown = "; ".join(
                " ".join(component[:5]) + (" …" if len(component) > 5 else "") for component in components[:5]
            )
            raise IdentityError(
                f"the closed roster falls into {len(components)} parts ({shown}); expected one: link them by inviting "
                "a peer that is linked to each (--links)"
            )

    @cached_property
    def run(self) -> str:
        """The identity of the first run: network, terms, names and links; not versions, addresses or revocations.

        Members that joined later, and links that were made later, do not count.
        """
        names, links = self._of_first_run()
        return hashlib.sha256(canonical([self.network, self.terms, names, links])).hexdigest()

    @property
    def first_run(self) -> Roster:
        """The roster of the first run: this one, unless members or links came later."""
        return self.of_run() if self.first else self

    def of_run(self, number: int = 1, terms: str | None = None) -> RunRoster:
        """Return the members and links of a run that begins with this roster, under terms of that digest.

        The first run has the members that were there when the network was closed, a later one all that are not
        revoked.
        """
        if number == 1:
            names, links = self._of_first_run()
            revoked, others = self.revoked, set[str]()
        else:
            revoked, others = (), set(self.revoked)
            names = tuple(name for name in self._names if name not in others)
            links = tuple(link for link in self.links if others.isdisjoint(link))
        chosen = set(names)
        return RunRoster(
            self.network,
            terms or self.terms,
            self.version,
            tuple(member for member in self.members if member.name in chosen),
            links,
            revoked,
            self.closed,
            deputies=tuple(deputy for deputy in self.deputies if deputy.name in chosen),
            number=number,
            membership=self.digest,
        )

    @cached_property
    def digest(self) -> bytes:
        """sha256 of the whole roster, as the authority signs it."""
        return hashlib.sha256(self.to_json()).digest()

    def place(self, name: str) -> int:
        """Return the index of a member, from 0."""
        try:
            return self._indices[name]
        except KeyError:
            raise IdentityError(
                f"{name!r:.80} is no member of {self.network} in roster {self.version}; expected one of "
                f"{', '.join(self._names[:20]) or 'nobody: there are none yet'}"
            ) from None

    def has(self, name: str) -> bool:
        """Return whether there is a member of this name, revoked or not."""
        return name in self._indices

    def member(self, name: str) -> Member:
        return self.members[self.place(name)]

    def neighbours(self, name: str) -> tuple[str, ...]:
        """Return the names linked to a member, in the members' order; revoked ones too."""
        if (names := self._neighbours.get(name)) is None:
            names = tuple(self._names[index] for index in self._linked[self.place(name)])
            self._neighbours[name] = names
        return names

    def present(self, name: str) -> tuple[str, ...]:
        """Return the names linked to a member that are not revoked."""
        names = self.neighbours(name)
        if self._revoked.isdisjoint(names):
            return names
        return tuple(neighbour for neighbour in names if neighbour not in self._revoked)

    def issuers(self, authority_certificate_pem: bytes) -> tuple[bytes, ...]:
        """Return the certificates that may issue those of members: the authority's, and its deputies'."""
        return authority_certificate_pem, *(deputy.certificate.encode() for deputy in self.deputies)

    def chain(self, certificate: bytes) -> bytes:
        """Return the deputy's certificate that a handshake needs beside a renewed one; b"": none."""
        deputies = [deputy.certificate.encode() for deputy in self.deputies]
        return (keys.issuer_of(certificate, deputies) if deputies else None) or b""

    def adjacency(self) -> csr_array:
        """Return the adjacency matrix A [N, N] in the members' order, as in `peerbayes.network`."""
        pairs = [(self._indices[first], self._indices[second]) for first, second in self.links]
        ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return linked(ends[:, 0], ends[:, 1], len(self.members))

    def parts(self, without: Iterable[str] = ()) -> list[tuple[str, ...]]:
        """Return the names of each connected component, without some members."""
        excluded = set(without)
        indices = [index for name, index in self._indices.items() if name not in excluded]
        _, labels = csgraph.connected_components(self.adjacency()[indices][:, indices], directed=False)
        components: dict[int, list[str]] = {}
        for index, label in zip(indices, labels, strict=True):
            components.setdefault(int(label), []).append(self._names[index])
        return [tuple(names) for names in components.values()]

    @cached_property
    def tree(self) -> ShallowTree:
        """The tree over which all members sum: all compute the same one, from members and links alone."""
        return ShallowTree.of(self.adjacency())

    def with_member(self, member: Member, linked_to: Iterable[str]) -> Roster:
        """Return the roster with one more member, linked to some existing ones."""
        return self.with_members([member], [(name, member.name) for name in linked_to])

    def with_members(self, members: Sequence[Member], links: Iterable[tuple[str, str]]) -> Roster:
        """Return the roster with more members and links, one version later."""
        for member in members:
            if member.name in self.revoked:
                raise IdentityError(f"{member.name!r} was revoked in {self.network}; choose another name")
        new = tuple(links)
        changed = {"members": (*self.members, *members), "links": (*self.links, *new)}
        return self._next(**changed, **self._later(new)) if self.closed else self._next(**changed)

    def with_changed(self, member: Member) -> Roster:
        """Return the roster with another address or certificate for a member; its links stay."""
        index = self.place(member.name)
        if member.name in self.revoked:
            raise IdentityError(f"{member.name!r} was revoked in {self.network}; it cannot come back")
        kept = self.deputies if member.key == self.members[index].key else self._deputies_without(member.name)
        return self._next(members=(*self.members[:index], member, *self.members[index + 1 :]), deputies=kept)

    def with_keys(self, digests: Mapping[str, str]) -> Roster:
        """Return the roster with the keys of members that have none in it: certificates can be renewed then."""
        members = tuple(
            member if member.key else replace(member, key=digests.get(member.name, ""))
            for member in self.members
        )
        return self._next(members=members)

    def with_deputy(self, deputy: Deputy) -> Roster:
        """Return the roster with one more deputy, or another certificate for it."""
        if deputy.name in self._revoked:
            raise IdentityError(f"{deputy.name!r} was revoked in {self.network}; it can be no deputy")
        return self._next(deputies=(*self._deputies_without(deputy.name), deputy))

    def without_deputy(self, name: str) -> Roster:
        """Return the roster without a deputy: what it renewed is not accepted any more."""
        remaining = self._deputies_without(name)
        if len(remaining) == len(self.deputies):
            known = ", ".join(deputy.name for deputy in self.deputies) or "nobody"
            raise IdentityError(f"{name!r:.80} is no deputy of {self.network}; expected one of {known}")
        return self._next(deputies=remaining)

    def with_revoked(self, name: str) -> Roster:
        """Return the roster with a member revoked. Runs that go on stay the same, so that the others continue.

        Where the others would fall apart without it, links between them are made, for later runs.
        """
        self.place(name)
        revoked, deputies = (*self.revoked, name), self._deputies_without(name)
        if not self.closed or not (bridges := self._bridges(name, revoked)):
            return self._next(revoked=revoked, deputies=deputies)
        links = (*self.links, *bridges)
        return self._next(revoked=revoked, deputies=deputies, links=links, **self._later(bridges))

    def without(self, name: str) -> Roster:
        """Return the roster without a member, before the network is closed; its certificate is revoked."""
        self.place(name)
        if self.closed:
            raise IdentityError(f"{self.network} is closed: {name} can be revoked, not taken out")
        return self._next(
            members=tuple(member for member in self.members if member.name != name),
            links=tuple(link for link in self.links if name not in link),
            revoked=(*self.revoked, name),
            deputies=self._deputies_without(name),
        )

    def with_closed(self) -> Roster:
        """Return the closed roster: the first run can begin, with the members that are there."""
        if self.closed:
            raise IdentityError(f"{self.network} is closed already; there is nothing to do")
        return self._next(closed=True)

    def to_json(self) -> bytes:
        """Return the canonical text of this roster."""
        return canonical({"format": FORMAT, **self._plain()})

    def signed(self, authority_key_pem: bytes) -> bytes:
        """Return the signed document that members pass on."""
        signature = keys.sign(authority_key_pem, PURPOSE + self.to_json())
        document = canonical({"roster": json.loads(self.to_json()), "signature": signature.hex()})
        if len(document) > LARGEST:
            raise IdentityError(
                f"the roster has {len(document)} bytes; expected at most {LARGEST}: too many members"
            )
        return document

    @classmethod
    def verified(cls, content: bytes, authority_certificate_pem: bytes) -> Roster:
        """Return the roster of a document, once the authority's signature is verified."""
        if len(content) > LARGEST:
            raise IdentityError(f"the roster has {len(content)} bytes; expected at most {LARGEST}")
        text, signature = _split(content)
        keys.verify(authority_certificate_pem, signature, PURPOSE + text)
        try:
            plain = msgspec.json.decode(text)
            if not isinstance(plain, dict) or plain.get("format") != FORMAT:
                raise IdentityError(
                    f"the roster's format is not {FORMAT}; update with `pip install --upgrade peerbayes`"
                )
            roster = msgspec.convert(plain, cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise IdentityError(
                f"the authority signed a roster that makes no sense: {problem!s:.200}"
            ) from problem
        if roster.to_json() != text:
            raise IdentityError(
                "the authority signed a roster with more in it, or in another form, than expected; get it again"
            )
        if (network := keys.name_of(authority_certificate_pem)) != roster.network:
            raise IdentityError(
                f"the authority is of network {network!r}; its roster is of {roster.network!r}"
            )
        for deputy in roster.deputies:
            if keys.deputy_name(deputy.certificate.encode(), authority_certificate_pem) != deputy.name:
                raise IdentityError(f"the deputy {deputy.name} has the certificate of another one")
        return roster

    def differences(self, other: Roster) -> list[str]:
        """Return the differences between two rosters, a line each: "version: 3 against 4"."""
        differences = [
            f"{name}: {getattr(self, name)} against {getattr(other, name)}"
            for name in ("network", "terms", "version", "closed")
            if getattr(self, name) != getattr(other, name)
        ]
        own_members = {member.name: member for member in self.members}
        other_members = {member.name: member for member in other.members}
        differences += _one_sided("member", own_members, other_members)
        for name in own_members.keys() & other_members.keys():
            for attribute in ("address", "certificate", "key"):
                values = getattr(own_members[name], attribute), getattr(other_members[name], attribute)
                if values[0] != values[1]:
                    differences.append(
                        f"{attribute} of {name}: {values[0] or 'none'} against {values[1] or 'none'}"
                    )
        differences += _one_sided("link", map(" - ".join, self.links), map(" - ".join, other.links))
        differences += _one_sided("revoked", self.revoked, other.revoked)
        own_deputies, other_deputies = (
            [
                f"{deputy.name} ({keys.fingerprint(deputy.certificate.encode()):.8})"
                for deputy in roster.deputies
            ]
            for roster in (self, other)
        )
        differences += _one_sided("deputy", own_deputies, other_deputies)
        if not differences and self != other:
            differences.append("order: the same members in another order")
        return differences

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @cached_property
    def _revoked(self) -> frozenset[str]:
        return frozenset(self.revoked)

    def _plain(self) -> dict[str, Any]:
        """Return plain values; what earlier versions did not know is left out where it is empty: their text stays."""
        plain = {
            "network": self.network,
            "terms": self.terms,
            "version": self.version,
            "members": [
                {name: value for name, value in vars(member).items() if name != "key" or value}
                for member in self.members
            ],
            "links": self.links,
            "revoked": self.revoked,
            "closed": self.closed,
        }
        for name in ("first", "added"):
            if getattr(self, name):
                plain[name] = getattr(self, name)
        if self.deputies:
            plain["deputies"] = [asdict(deputy) for deputy in self.deputies]
        return plain

    def _check_deputies(self) -> None:
        """Refuse deputies that are no members, or whose certificates are for other keys."""
        for deputy in self.deputies:
            member = self.member(deputy.name)
            if deputy.name in self.revoked or [each.name for each in self.deputies].count(deputy.name) > 1:
                raise IdentityError(f"the deputy {deputy.name} was revoked, or is in the roster twice")
            if keys.key_digest(deputy.certificate.encode()) != member.key:
                raise IdentityError(
                    f"the deputy {deputy.name} has a certificate for another key than its own"
                )

    def _deputies_without(self, name: str) -> tuple[Deputy, ...]:
        return tuple(deputy for deputy in self.deputies if deputy.name != name)

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self._names)}

    @cached_property
    def _neighbours(self) -> dict[str, tuple[str, ...]]:
        """Neighbours by name, of those that were looked up: a peer looks up the same few for every message."""
        return {}

    @cached_property
    def _linked(self) -> list[np.ndarray]:
        """The indices of each member's neighbours, in order."""
        links = self.adjacency()
        links.sort_indices()
        return np.split(links.indices, links.indptr[1:-1])

    def _sorted_links(self) -> tuple[tuple[str, str], ...]:
        """Return the links in canonical order, so that equal networks have equal runs."""
        pairs = set()
        for first, second in self.links:
            pair = tuple(sorted((self.place(first), self.place(second))))
            if first == second or pair in pairs:
                raise IdentityError(
                    f"the link {first} - {second} is to itself, or occurs twice; leave it out"
                )
            pairs.add(pair)
        return tuple((self._names[first], self._names[second]) for first, second in sorted(pairs))

    def _of_first_run(self) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        """Return the names and links of the first run."""
        if not self.first:
            return self._names, self.links
        names, later = self._names[: self.first], set(self.added)
        present = set(names)
        return names, tuple(link for link in self.links if present.issuperset(link) and link not in later)

    def _later(self, new: Iterable[tuple[str, str]]) -> dict[str, object]:
        """Return the fields that keep the first run apart from links that are made now."""
        first = self.first or len(self.members)
        own = set(self._names[:first])
        ordered = (tuple(sorted(link, key=self.place)) for link in new if own.issuperset(link))
        return {"first": first, "added": (*self.added, *ordered)}

    def _refuse_history(self) -> None:
        """Refuse a first run that these members and links cannot have had."""
        own = set(self._names[: self.first])
        fits = 0 <= self.first <= len(self.members) and (self.closed or not self.first)
        if not fits or (self.added and not self.first):
            raise IdentityError(
                f"the roster says that its first run had {self.first} of {len(self.members)} members; expected some "
                "of them, in a closed roster"
            )
        links = set(self.links)
        for link in self.added:
            if link not in links or not own.issuperset(link):
                raise IdentityError(
                    f"the link {' - '.join(link):.90} was made later, and is not one of the first run's members"
                )

    def _bridges(self, name: str, revoked: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        """Return links that keep the members together once some are revoked: a chain through all components."""
        near, degrees = (
            set(self.neighbours(name)),
            {other: len(neighbours) for other, neighbours in zip(self._names, self._linked, strict=True)},
        )
        ends = [
            min(component, key=lambda other: (other not in near, degrees[other], self.place(other)))
            for component in self.parts(without=revoked)
        ]
        return tuple(itertools.pairwise(ends))

    def _next(self, **changes: object) -> Roster:
        return replace(self, version=self.version + 1, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class RunRoster(Roster):
    """The members and links of one run, which stay as they were when it began.

    It follows the authority's rosters: of a newer one it takes revocations, addresses, certificates and deputies.
    """

    number: int = 1
    membership: bytes = b""
    """The digest of the authority's roster that it follows."""

    @cached_property
    def run(self) -> str:
        """The identity of the run: that of the first one has no number."""
        number = (self.number,) if self.number > 1 else ()
        identity = [self.network, self.terms, self._names, self.links, *number]
        return hashlib.sha256(canonical(identity)).hexdigest()

    @cached_property
    def digest(self) -> bytes:
        """sha256 of the authority's roster, which members compare with each other."""
        return self.membership

    def of_run(self, number: int = 1, terms: str | None = None) -> RunRoster:
        """Return this roster: it is of one run already."""
        if number != self.number or terms not in (None, self.terms):
            raise IdentityError(f"the roster is of run {self.number}; expected run {number}")
        return self

    def following(self, newer: Roster) -> RunRoster:
        """Return the run under a newer roster of its network: with its revocations, addresses and certificates."""
        if not newer.closed or any(not newer.has(name) for name in self._names):
            raise IdentityError(
                f"roster {newer.version} of {newer.network} lacks members of run {self.number}; expected all of them, "
                "revoked or not: ask the founder"
            )
        if self.number == 1 and newer.run != self.run:
            raise IdentityError(
                f"roster {newer.version} of {newer.network} has other members or links than the first run; ask the "
                "founder"
            )
        revoked = newer.revoked if self.number == 1 else tuple(n for n in newer.revoked if n in self._indices)
        members = tuple(newer.member(name) for name in self._names)
        deputies = tuple(each for each in newer.deputies if each.name in self._indices)
        return replace(
            self,
            version=newer.version,
            members=members,
            revoked=revoked,
            deputies=deputies,
            membership=newer.digest,
        )


def _split(content: bytes) -> tuple[bytes, bytes]:
    """Return the text of a document and its signature without parsing either: junk is never parsed."""
    before, middle, after = content.rpartition(MIDDLE)
    signature = SIGNATURE.fullmatch(after)
    if not before.startswith(HEAD) or not middle or signature is None:
        raise IdentityError(
            f"no signed roster: it starts with {content[:20]!r} and ends with {content[-20:]!r}; expected the "
            "roster.json that `peerbayes network` wrote"
        )
    return before[len(HEAD) :], bytes.fromhex(signature[1].decode())


def _one_sided(noun: str, first: Iterable[str], second: Iterable[str]) -> list[str]:
    in_first, in_second = dict.fromkeys(first), dict.fromkeys(second)
    return [
        *(f"{noun} {name}: only in the first" for name in in_first if name not in in_second),
        *(f"{noun} {name}: only in the second" for name in in_second if name not in in_first),
    ]
