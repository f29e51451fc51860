"""One peer's side of exact sums over the roster's spanning tree, and objections where members may lie.

    M_{v→u} = own_v + Σ_{w≠u} M_{w→v}          total = own_v + Σ_w M_{w→v}, the same for every v

What was heard is stored, so that a restarted peer need not ask again. Where members may lie, a peer checks what comes
from a neighbour before it adds it to anything: a lie gets no farther than to the neighbours of whoever told it, and
instead of sums they pass on an objection, which names both ends of the link.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import operator
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from peerbayes.errors import AgreementRefused, FalseReport, NeedsPerson, PeerError, RefusedMessage
from peerbayes.learning import integer_sums
from peerbayes.learning.robust.bounds import MemberBounds, SumBounds
from peerbayes.network.trees import Branch
from peerbayes.peer.agreement.summary import Summary, Sums
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.wire import Reply
from peerbayes.peer.state.store import PeerState
from peerbayes.peer.tasks import Changes

# --- numbers of all peers, added to the same bits for everybody


@dataclass(frozen=True, eq=False)
class Integers:
    """Statistics on a grid, so that they add up to the same bits in any order: [C, K] int64."""

    values: np.ndarray

    def __add__(self, other: Integers) -> Integers:
        if self.values.shape != other.values.shape:
            raise RefusedMessage("wrong shape", f"{other.values.shape} instead of {self.values.shape}")
        return Integers(self.values + other.values)

    def pack(self) -> bytes:
        return np.ascontiguousarray(self.values, dtype="<i8").tobytes()


def integers_in(shape: tuple[int, ...], most: int) -> Callable[[bytes], Integers]:
    """Return a parser of a partial sum of integers, each at most so large."""

    def parse(content: bytes) -> Integers:
        if len(content) != 8 * math.prod(shape):
            raise RefusedMessage("wrong shape", f"{len(content):,} bytes instead of {8 * math.prod(shape):,}")
        values = np.frombuffer(content, dtype="<i8").reshape(shape)
        if values.size and max(int(values.max()), -int(values.min())) > most:
            raise RefusedMessage("absurd magnitude", "an entry larger than the sum of all peers can be")
        return Integers(values)

    return parse


# A neighbour's name, its sum, and the number of members behind it; raises FalseReport where the sum is impossible.
Check = Callable[[str, Any, int], None]


@dataclass(frozen=True)
class Phase:
    """One sum: its name, a parser of partial sums, and their number of peers where they contain it.

    With a `check`, members may lie: a partial sum that is unreadable or fails it ends the agreement for everybody.
    """

    name: str
    parse: Callable[[bytes], Any]
    peers: Callable[[Any], int] | None = None
    check: Check | None = None


Total = Callable[[Phase, Any], Awaitable[Any]]  # local value -> sum over all peers


# --- what came over each link before the first round, held to what members may report: see `learning.robust.bounds`


@dataclass(frozen=True, eq=False)
class Reports:
    """The summaries that neighbours on the tree sent, once each can be true."""

    bounds: MemberBounds
    summaries: dict[str, Summary] = field(default_factory=dict)

    def check(self, neighbour: str, part: Summary, members: int) -> None:
        """Check a part of the phase `columns`, and remember it: later parts are held to its rows."""
        self.bounds.check_rows(part.rows, members)
        for name, column in part.columns.items():
            self.bounds.check_total(name, _as_float(column.total))
        self.summaries[neighbour] = part

    def consent(self, neighbour: str, part: Sums, members: int) -> None:
        """Check nothing: whoever took all sums has nothing to add; others object."""

    def pooled(self, bounds: SumBounds) -> PooledReports:
        """Return what checks the parts of a sum of many numbers."""
        return PooledReports(self, bounds)


@dataclass(frozen=True, eq=False)
class PooledReports:
    """Checks of a sum of many numbers; over each link came those of as many rows as were reported before."""

    reports: Reports
    bounds: SumBounds

    def size(self, neighbour: str, part: Sums, members: int) -> None:
        """Check the bound that goes ahead of the numbers."""
        self.bounds.check_size(_as_float(part["most"]), self._rows(neighbour))

    def numbers(self, neighbour: str, part: np.ndarray, members: int) -> None:
        """Check the numbers."""
        self.bounds.check(part, self._rows(neighbour))

    def _rows(self, neighbour: str) -> float:
        return float(self.reports.summaries[neighbour].rows)


def _as_float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


async def pooled(
    name: str, local: np.ndarray, total: Total, checks: PooledReports | None = None
) -> np.ndarray:
    """Return the sum of all peers' numbers, to the same bits for all; `checks` where members may lie."""
    largest = Sums(most=Fraction(float(np.abs(local).max(initial=0.0))))
    bound_name = "bound" if name == "start" else f"bound of {name}"
    sized = Phase(bound_name, Sums.named("most"), check=None if checks is None else checks.size)
    bound = await total(sized, largest)
    power = integer_sums.exponent(float(bound["most"]) or 1.0)

    def check(neighbour: str, received: Integers, members: int) -> None:
        assert checks is not None
        checks.numbers(neighbour, integer_sums.off_grid(received.values, power), members)

    parse = integers_in(local.shape, (1 << integer_sums.SUM_BITS) - 1)
    phase = Phase(name, parse, check=None if checks is None else check)
    summed = await total(phase, Integers(integer_sums.on_grid(local, power)))
    return integer_sums.off_grid(summed.values, power)


# --- the roster's spanning tree from one member's view: the members behind each of its links


@dataclass(frozen=True, eq=False)
class MembersBehind(Set[str]):
    """The names of the members behind one link of the tree; in a large network they are not listed one by one."""

    roster: Roster
    branch: Branch

    @classmethod
    def _from_iterable(cls, names: Iterable[str]) -> frozenset[str]:  # type: ignore[override]
        return frozenset(names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.roster.has(name) and self.roster.place(name) in self.branch

    def __len__(self) -> int:
        return len(self.branch)

    def __iter__(self) -> Iterator[str]:
        return (self.roster.members[index].name for index in self.branch)


def members_behind(name: str, roster: Roster) -> dict[str, MembersBehind]:
    """Return the members behind each tree neighbour of a member, including that neighbour."""
    branches = roster.tree.behind(roster.place(name))
    return {roster.members[index].name: MembersBehind(roster, branch) for index, branch in branches.items()}


# --- objections: one member refused what another sent, so the agreement ends, and everybody learns which two
# The objector may lie as well. So both ends of the link are named, and people must find out who is right.

FALSE_REPORT = "false report"
LONGEST = 380  # letters of the detail: with two names it fits into a reply's reason


@dataclass(frozen=True)
class Objection:
    """One member's objection to a neighbour's message."""

    by: str
    against: str
    detail: str

    @property
    def sentence(self) -> str:
        """The objection in words."""
        return f"{self.by} refused what {self.against} sent while the peers agreed, {self.detail}"

    @property
    def reason(self) -> str:
        """The objection as the reason of a reply."""
        return f"{FALSE_REPORT}: {self.by} {self.against} {self.detail[:LONGEST]}"

    @classmethod
    def parse(cls, reason: str, roster: Roster) -> Objection | None:
        """Return the objection in a reply's reason, if it is one between two linked members."""
        head, _, remainder = reason.partition(": ")
        by, _, remainder = remainder.partition(" ")
        against, _, detail = remainder.partition(" ")
        names = {member.name for member in roster.members}
        if head != FALSE_REPORT or by not in names or against not in roster.neighbours(by):
            return None
        return cls(by, against, "".join(letter if letter.isprintable() else " " for letter in detail))

    def error(self) -> AgreementRefused:
        """Return the error that stops this peer."""
        return AgreementRefused(
            f"{self.sentence}. The agreement of this network ends here, at every peer. Look at the table and the "
            f"program of {self.against}, and at those of {self.by}, who says so; if one of them lies, create "
            "another network without it"
        )


# --- the sums of one run

FIRST = "first"  # what neighbours send each other directly, stored like a sum


class MemberGone(NeedsPerson):
    """A member was revoked or left before the agreement: it can never be reached."""


class SumIncomplete(PeerError):
    """Nothing came in time from some neighbours on the tree, whose names it has."""

    def __init__(self, phase: str, names: Sequence[str], seconds: float) -> None:
        super().__init__(f"{phase}: nothing came from {', '.join(names)} in {seconds:g} s")
        self.names = tuple(names)


class Gone(NamedTuple):
    """Members that cannot be waited for."""

    neighbours: Collection[str]
    """Neighbours that are no longer asked, for any reason."""
    members: Collection[str]
    """Members anywhere in the network that no longer send anything: revoked, or left."""


class TreeSums:
    """The sums of one run, phase by phase; `gone` returns the members that cannot be waited for."""

    def __init__(
        self, name: str, roster: Roster, store: PeerState, changes: Changes, gone: Callable[[], Gone]
    ) -> None:
        self._name, self._store, self._changes, self._gone = name, store, changes, gone
        self._neighbours = roster.neighbours(name)
        self._phases: dict[str, tuple[Phase, Any]] = {}
        self._received: dict[str, dict[str, Any]] = {}
        self._served: dict[str, set[str]] = {}
        self._given_up: set[str] = set()  # phases whose sum is not waited for any more
        self._local: np.ndarray | None = None
        self._check: Callable[[np.ndarray], None] = lambda numbers: None
        self._firsts: dict[str, np.ndarray] = {}
        self.objection: Objection | None = None
        self._informed: set[str] = set()  # tree neighbours that know of the objection
        self._behind = members_behind(name, roster)
        self.tree = tuple(self._behind)

    async def total(self, phase: Phase, local: Any, seconds: float | None = None) -> Any:
        """Return the sum over all peers; SumIncomplete where it takes longer, and then nobody is asked for it again."""
        received = self._received.setdefault(phase.name, {})
        for sender, body in self._store.sums(phase.name).items():
            with self._objecting(phase, sender):
                received[sender] = self._checked(phase, sender, body)
        self._phases[phase.name] = phase, local
        try:
            async with asyncio.timeout(seconds):
                await self._arrived(self._behind, received)
        except TimeoutError:
            if lacking := [name for name in self._behind if name not in received]:
                self._given_up.add(phase.name)
                raise SumIncomplete(phase.name, lacking, seconds or 0.0) from None
        except PeerError:
            self._given_up.add(phase.name)
            raise
        return _added(local, received)

    def forget(self, name: str) -> None:
        """Forget a phase that nobody needs any more, since everybody has contributed to a later one."""
        self._phases.pop(name, None)
        self._received.pop(name, None)
        self._served.pop(name, None)
        self._store.forget_sum(name)

    async def exchange(self, local: np.ndarray, check: Callable[[np.ndarray], None]) -> dict[str, np.ndarray]:
        """Exchange numbers with all neighbours; return theirs by name."""
        for name, body in self._store.sums(FIRST).items():
            self._firsts[name] = np.frombuffer(body, dtype="<f8").reshape(local.shape)
        self._local, self._check = local, check
        await self._arrived({name: {name} for name in self._neighbours}, self._firsts)
        return {name: self._firsts[name] for name in self._neighbours}

    async def _arrived(self, senders: Mapping[str, Collection[str]], received: Collection[str]) -> None:
        """Wait until something came from every sender; `senders` has the members that each speaks for."""
        self._changes.notify()
        while lacking := [name for name in senders if name not in received]:
            if self.objection is not None:
                raise self.objection.error()
            since = self._changes.next
            gone = self._gone()
            awaited = {name for name in gone.members if any(name in senders[sender] for sender in lacking)}
            _refuse_gone(lacking, awaited, gone)
            await self._changes.wait(None, since)

    def wanted(self, neighbour: str) -> tuple[wire.Kind, str] | None:
        """Return what to request from a neighbour next: a kind of request and a phase; None: nothing."""
        if self.objection is not None:
            if neighbour not in self.tree or neighbour in self._informed or not self._phases:
                return None
            if neighbour == self.objection.against:
                return "hello", ""  # it may have stopped by itself, and then it is not waited for
            return "sum", next(reversed(self._phases))  # a neighbour that objects as well replies so
        for name in self._phases:
            wanted = name not in self._given_up and neighbour not in self._received[name]
            if wanted and neighbour in self.tree:
                return "sum", name
        return ("first", "") if self._local is not None and neighbour not in self._firsts else None

    async def take(self, neighbour: str, kind: wire.Kind, name: str, reply: Reply) -> None:
        """Check, store and use a neighbour's reply."""
        if kind == "first" and self._local is not None:
            numbers = wire.numbers_in(reply, self._local.shape)
            self._check(numbers)
            await asyncio.to_thread(self._store.add_sum, FIRST, neighbour, reply.body)
            self._firsts[neighbour] = numbers
            return
        phase = self._phases[name][0]
        with self._objecting(phase, neighbour):
            received = await asyncio.to_thread(self._checked, phase, neighbour, reply.body)
        if neighbour not in self._received[name]:
            await asyncio.to_thread(self._store.add_sum, name, neighbour, reply.body)
            self._received[name][neighbour] = received

    def _checked(self, phase: Phase, neighbour: str, body: bytes) -> Any:
        """Return a neighbour's sum if it can be one over the members behind it; changes no state."""
        behind = len(self._behind.get(neighbour, ()))
        received = phase.parse(body)
        if phase.peers is not None and phase.peers(received) != behind:
            raise RefusedMessage(
                "implausible", f"a sum of {phase.peers(received)} peers; {behind} lie behind that link"
            )
        if phase.check is not None:
            phase.check(neighbour, received, behind)
        return received

    @contextlib.contextmanager
    def _objecting(self, phase: Phase, neighbour: str) -> Iterator[None]:
        """Raise an objection to anything refused inside, where members may lie."""
        try:
            yield
        except (RefusedMessage, FalseReport) as error:
            if phase.check is not None:
                self.object(Objection(self._name, neighbour, f"{phase.name}: {error}"))
            if isinstance(error, FalseReport):
                raise RefusedMessage("false report", f"{phase.name}: {error}") from error
            raise

    def object(self, objection: Objection, heard_from: str = "") -> bool:
        """End the agreement, and tell every caller why; return whether this is the first objection."""
        self._informed.add(heard_from)
        if self.objection is not None:
            return False
        self.objection = objection
        self._changes.notify()
        return True

    def first(self) -> np.ndarray | None:
        """Return this peer's numbers for its neighbours; None: not yet."""
        return self._local

    def unreachable(self, neighbour: str) -> None:
        """Do not wait for an unreachable neighbour to learn of an objection."""
        if self.objection is not None:
            self._informed.add(neighbour)
            self._changes.notify()

    def behind(self, caller: str, name: str) -> bytes | Objection | None:
        """Return the sum over this peer and all behind it, seen from a tree neighbour; None: not yet."""
        if caller not in self.tree:
            raise RefusedMessage("not on the tree", f"sums do not go to {caller}")
        if self.objection is not None:
            self._informed.add(caller)
            self._changes.notify()
            return self.objection
        if name not in self._phases:
            return None
        received = {sender: value for sender, value in self._received[name].items() if sender != caller}
        if len(received) < len(self.tree) - 1:
            return None
        self._served.setdefault(name, set()).add(caller)
        return bytes(_added(self._phases[name][1], received).pack())

    async def drain(self, seconds: float) -> None:
        """Give neighbours time to fetch the sums that made this peer stop: they stop for the same reason."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.owed():
            await self._changes.wait(0.5)

    def owed(self, phases: Collection[str] | None = None) -> bool:
        """Return whether a tree neighbour lacks a sum, of these phases or any, or has yet to learn of an objection."""
        if self.objection is not None:
            return bool(set(self.tree) - self._informed)
        names = set(self._phases if phases is None else phases) - self._given_up
        return any(set(self.tree) - self._served.get(name, set()) for name in names)


def _added(local: Any, received: Mapping[str, Any]) -> Any:
    return functools.reduce(operator.add, (received[name] for name in sorted(received)), local)


def _refuse_gone(requested: Collection[str], awaited: Collection[str], gone: Gone) -> None:
    """Refuse to wait forever for requested neighbours that are gone, or for members, `awaited`, that are."""
    if names := sorted(awaited):
        raise MemberGone(
            f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} revoked, or left, before everybody had agreed, "
            "and no run can begin without a member; create another network without it"
        )
    if names := sorted(set(requested) & set(gone.neighbours)):
        raise NeedsPerson(
            f"{names[0]} is heard no more, and not everybody had agreed yet: no run can begin without a member; create "
            "another network without it"
        )
