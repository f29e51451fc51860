"""One peer's side of exact sums over the roster's spanning tree: each tree neighbour gets what lies behind this peer.

    M_{v→u} = own_v + Σ_{w≠u} M_{w→v}          total = own_v + Σ_w M_{w→v}, the same for every v

What was heard is stored, so that a restarted peer need not ask again. Where members may lie, a peer checks what comes
from a neighbour before it adds it to anything: a lie gets no farther than to the neighbours of whoever told it, and
instead of sums they pass on an objection, which names both ends of the link.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from peerbayes.errors import FalseReport
from peerbayes.peers import wire
from peerbayes.peers.errors import NeedsPerson, RefusedMessage
from peerbayes.peers.news import News
from peerbayes.peers.objections import Objection
from peerbayes.peers.pooling import Phase
from peerbayes.peers.roster import Roster
from peerbayes.peers.store import Store
from peerbayes.peers.tree import members_behind
from peerbayes.peers.wire import Reply

FIRST = "first"  # what neighbours tell each other directly, stored like a sum


class MemberGone(NeedsPerson):
    """A member whose rows everybody must agree on was revoked, or left: the agreement can never be reached."""


class Gone(NamedTuple):
    """Who cannot be waited for."""

    neighbours: Collection[str]
    """Those that are not asked any more, whatever the reason."""
    members: Collection[str]
    """Near or far, those that say nothing to anybody any more: revoked, or left."""


class TreeSums:
    """The sums of one run, phase by phase."""

    def __init__(self, name: str, roster: Roster, store: Store, news: News) -> None:
        self._name, self._store, self._news = name, store, news
        self._neighbours = roster.neighbours(name)
        self._phases: dict[str, tuple[Phase, Any]] = {}
        self._parts: dict[str, dict[str, Any]] = {}
        self._given: dict[str, set[str]] = {}
        self._own: np.ndarray | None = None
        self._check: Callable[[np.ndarray], None] = lambda numbers: None
        self._firsts: dict[str, np.ndarray] = {}
        self.objection: Objection | None = None
        self._informed: set[str] = set()  # tree neighbours that know of the objection
        self._behind = members_behind(name, roster)
        self.tree = tuple(self._behind)

    async def total(self, phase: Phase, own: Any, gone: Callable[[], Gone]) -> Any:
        """The sum over all peers; `gone` tells which members cannot be waited for."""
        parts = self._parts.setdefault(phase.name, {})
        for sender, body in self._store.sums(phase.name).items():
            with self._objecting(phase, sender):
                parts[sender] = self._checked(phase, sender, body)
        self._phases[phase.name] = phase, own
        self._news.tell()
        while lacking := [neighbour for neighbour in self.tree if neighbour not in parts]:
            if self.objection is not None:
                raise self.objection.error()
            since = self._news.next
            _refuse_gone(lacking, set().union(*(self._behind[neighbour] for neighbour in lacking)), gone())
            await self._news.wait(None, since)
        return _added(own, parts)

    async def exchange(
        self, own: np.ndarray, check: Callable[[np.ndarray], None], gone: Callable[[], Gone]
    ) -> dict[str, np.ndarray]:
        """Every neighbour's numbers, for everybody's own."""
        for name, body in self._store.sums(FIRST).items():
            self._firsts[name] = np.frombuffer(body, dtype="<f8").reshape(own.shape)
        self._own, self._check = own, check
        self._news.tell()
        while lacking := {name for name in self._neighbours if name not in self._firsts}:
            since = self._news.next
            _refuse_gone(lacking, lacking, gone())
            await self._news.wait(None, since)
        return {name: self._firsts[name] for name in self._neighbours}

    def wanted(self, neighbour: str) -> tuple[wire.Kind, str] | None:
        """What this neighbour is to be asked for next: a kind of request, and a phase."""
        if self.objection is not None:  # a neighbour that objects as well says so when it is asked
            owed = neighbour in self.tree and neighbour not in (*self._informed, self.objection.against)
            return ("sum", next(reversed(self._phases))) if owed and self._phases else None
        for name in self._phases:
            if neighbour not in self._parts[name] and neighbour in self.tree:
                return "sum", name
        return ("first", "") if self._own is not None and neighbour not in self._firsts else None

    async def take(self, neighbour: str, kind: wire.Kind, name: str, reply: Reply) -> None:
        """Use what a neighbour answered, once it is plausible."""
        if kind == "first" and self._own is not None:
            numbers = wire.numbers_in(reply, self._own.shape)
            self._check(numbers)
            await asyncio.to_thread(self._store.add_sum, FIRST, neighbour, reply.body)
            self._firsts[neighbour] = numbers
            return
        phase = self._phases[name][0]
        with self._objecting(phase, neighbour):
            part = await asyncio.to_thread(self._checked, phase, neighbour, reply.body)
        if neighbour not in self._parts[name]:
            await asyncio.to_thread(self._store.add_sum, name, neighbour, reply.body)
            self._parts[name][neighbour] = part

    def _checked(self, phase: Phase, neighbour: str, body: bytes) -> Any:
        """What a neighbour sent, once it can be a sum over those behind it; changes nothing here."""
        behind = len(self._behind.get(neighbour, ()))
        part = phase.parse(body)
        if phase.peers is not None and phase.peers(part) != behind:
            raise RefusedMessage(
                "implausible", f"a sum of {phase.peers(part)} peers; {behind} lie behind that link"
            )
        if phase.check is not None:
            phase.check(neighbour, part, behind)
        return part

    @contextlib.contextmanager
    def _objecting(self, phase: Phase, neighbour: str) -> Iterator[None]:
        """Object to what is refused inside, where members may lie."""
        try:
            yield
        except (RefusedMessage, FalseReport) as error:
            if phase.check is not None:
                self.object(Objection(self._name, neighbour, f"{phase.name}: {error}"))
            if isinstance(error, FalseReport):
                raise RefusedMessage("false report", f"{phase.name}: {error}") from error
            raise

    def object(self, objection: Objection, heard_from: str = "") -> bool:
        """Agree on nothing more, and say why to whoever asks; whether this is news."""
        self._informed.add(heard_from)
        if self.objection is not None:
            return False
        self.objection = objection
        self._news.tell()
        return True

    def first(self) -> np.ndarray | None:
        """This peer's own numbers for its neighbours, once there are any."""
        return self._own

    def unreachable(self, neighbour: str) -> None:
        """Do not wait for a neighbour that is not there to hear of an objection."""
        if self.objection is not None:
            self._informed.add(neighbour)
            self._news.tell()

    def behind(self, caller: str, name: str) -> bytes | Objection | None:
        """The sum of all that lies behind this peer, seen from a tree neighbour; None: not yet."""
        if caller not in self.tree:
            raise RefusedMessage("not on the tree", f"sums do not go to {caller}")
        if self.objection is not None:
            self._informed.add(caller)
            self._news.tell()
            return self.objection
        if name not in self._phases:
            return None
        others = {other: part for other, part in self._parts[name].items() if other != caller}
        if len(others) < len(self.tree) - 1:
            return None
        self._given.setdefault(name, set()).add(caller)
        return bytes(_added(self._phases[name][1], others).pack())

    async def drain(self, seconds: float) -> None:
        """Give neighbours a while to hear the sums that made this peer stop: they stop for the same reason."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._owed():
            await self._news.wait(0.5)

    def _owed(self) -> bool:
        """Whether a tree neighbour has yet to hear why this peer stops."""
        if self.objection is not None:
            return bool(set(self.tree) - self._informed)
        return any(set(self.tree) - self._given.get(name, set()) for name in self._phases)


def _added(own: Any, parts: dict[str, Any]) -> Any:
    total = own
    for name in sorted(parts):
        total = total + parts[name]
    return total


def _refuse_gone(asked: Collection[str], waited: Collection[str], gone: Gone) -> None:
    """Refuse to wait for ever, for neighbours that are asked or members that are waited for."""
    if names := sorted(set(waited) & set(gone.members)):
        raise MemberGone(
            f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} revoked, or left, before everybody had agreed, "
            "and no run can begin without a member; found another network without it"
        )
    if names := sorted(set(asked) & set(gone.neighbours)):
        raise NeedsPerson(
            f"{names[0]} is heard no more, and everybody had not agreed yet: no run can begin without a member; found "
            "another network without it"
        )
