"""One peer's side of exact sums over the roster's spanning tree: each tree neighbour gets what lies behind this peer.

    M_{v→u} = own_v + Σ_{w≠u} M_{w→v}          total = own_v + Σ_w M_{w→v}, the same for every v

What was heard is stored, so that a restarted peer need not ask again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from peerbayes.peers import wire
from peerbayes.peers.errors import PeerError, RefusedMessage
from peerbayes.peers.news import News
from peerbayes.peers.pooling import Phase
from peerbayes.peers.roster import Roster
from peerbayes.peers.store import Store
from peerbayes.peers.wire import Reply
from peerbayes.relay import spanning_tree

FIRST = "first"  # what neighbours tell each other directly, stored like a sum


class TreeSums:
    """The sums of one run, phase by phase."""

    def __init__(self, name: str, roster: Roster, store: Store, news: News) -> None:
        self._store, self._news = store, news
        self._neighbours = roster.neighbours(name)
        self._phases: dict[str, tuple[Phase, Any]] = {}
        self._parts: dict[str, dict[str, Any]] = {}
        self._given: dict[str, set[str]] = {}
        self._own: np.ndarray | None = None
        self._check: Callable[[np.ndarray], None] = lambda numbers: None
        self._firsts: dict[str, np.ndarray] = {}
        self.tree, self._behind = _tree(name, roster)

    async def total(self, phase: Phase, own: Any, present: Callable[[], tuple[str, ...]]) -> Any:
        """The sum over all peers; `present` are the neighbours that can still be waited for."""
        parts = self._parts.setdefault(phase.name, {})
        for sender, body in self._store.sums(phase.name).items():
            parts[sender] = phase.parse(body)
        self._phases[phase.name] = phase, own
        self._news.tell()
        while lacking := [neighbour for neighbour in self.tree if neighbour not in parts]:
            if gone := [neighbour for neighbour in lacking if neighbour not in present()]:
                raise PeerError(
                    f"{gone[0]} was revoked or left before everybody had agreed, and what lies behind it is not known; "
                    "found another network without it"
                )
            await self._news.wait(None)
        return _added(own, parts)

    async def exchange(self, own: np.ndarray, check: Callable[[np.ndarray], None]) -> dict[str, np.ndarray]:
        """Every neighbour's numbers, for everybody's own."""
        for name, body in self._store.sums(FIRST).items():
            self._firsts[name] = np.frombuffer(body, dtype="<f8").reshape(own.shape)
        self._own, self._check = own, check
        self._news.tell()
        while not all(name in self._firsts for name in self._neighbours):
            await self._news.wait(None)
        return {name: self._firsts[name] for name in self._neighbours}

    def wanted(self, neighbour: str) -> tuple[wire.Kind, str] | None:
        """What this neighbour is to be asked for next: a kind of request, and a phase."""
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
        part, behind = await asyncio.to_thread(phase.parse, reply.body), self._behind.get(neighbour)
        if phase.peers is not None and phase.peers(part) != behind:
            raise RefusedMessage(
                "implausible", f"a sum of {phase.peers(part)} peers; {behind} lie behind that link"
            )
        if neighbour not in self._parts[name]:
            await asyncio.to_thread(self._store.add_sum, name, neighbour, reply.body)
            self._parts[name][neighbour] = part

    def first(self) -> np.ndarray | None:
        """This peer's own numbers for its neighbours, once there are any."""
        return self._own

    def behind(self, caller: str, name: str) -> bytes | None:
        """The sum of all that lies behind this peer, seen from a tree neighbour; None: not yet."""
        if caller not in self.tree:
            raise RefusedMessage("not on the tree", f"sums do not go to {caller}")
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
        while time.monotonic() < until and any(
            set(self.tree) - self._given.get(name, set()) for name in self._phases
        ):
            await self._news.wait(0.5)


def _added(own: Any, parts: dict[str, Any]) -> Any:
    total = own
    for name in sorted(parts):
        total = total + parts[name]
    return total


def _tree(name: str, roster: Roster) -> tuple[tuple[str, ...], dict[str, int]]:
    """Neighbours on the spanning tree, and how many members lie behind each."""
    names = [member.name for member in roster.members]
    tree, own = spanning_tree(roster.adjacency()), roster.place(name)
    _, places = tree.seen_from(own)
    count = {}
    for first in places:
        found, waiting = {own}, [int(first)]
        while waiting:
            place = waiting.pop()
            found.add(place)
            waiting += [int(other) for other in tree.sender[tree.receiver == place] if other not in found]
        count[names[first]] = len(found) - 1
    return tuple(count), count
