"""The inbox of the coming round: neighbours' messages, and when there are enough of them."""

from __future__ import annotations

import time
from typing import Any

from peerbayes.peers.agreement import Agreed
from peerbayes.peers.standing import Standing


class Inbox:
    """Holds messages of the coming round by neighbour: arrays, or masked words."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._messages: dict[str, Any] = {}
        self._given_up: set[str] = set()

    def lacks(self, neighbour: str) -> bool:
        """Return whether a neighbour's message may still come."""
        return neighbour not in self._messages and neighbour not in self._given_up

    def put(self, neighbour: str, round_index: int, message: Any) -> None:
        if round_index == self._standing.turn + 1:  # else the round was closed without it
            self._messages[neighbour] = message

    def give_up(self, neighbour: str) -> None:
        """Stop waiting for a neighbour's message: the round goes on without it."""
        self._given_up.add(neighbour)

    def drop(self, neighbour: str) -> None:
        """Remove a neighbour's message."""
        self._messages.pop(neighbour, None)

    def clear(self) -> None:
        """Start the next round with an empty inbox."""
        self._messages.clear()
        self._given_up.clear()

    async def enough(self, agreed: Agreed) -> dict[str, Any]:
        """Return the neighbours' messages: all of them, or a quorum after the deadline."""
        standing = self._standing
        limits = standing.terms.limits
        began, clock = time.monotonic(), time.time()
        while True:
            expected = [name for name in self._senders(agreed) if name in standing.neighbours]
            lacking = [name for name in expected if self.lacks(name)]
            if not lacking:
                break
            # A neighbour that answers is only behind, perhaps waiting for another one itself: if this peer went on
            # without it while it still hears this peer, the network's sum would suffer. It gets twice as long.
            behind = any(
                (standing.line(name).seen or 0.0) > clock and not standing.line(name).note for name in lacking
            )
            remaining = began + limits.deadline * (2 if behind else 1) - time.monotonic()
            if remaining <= 0 and len(expected) - len(lacking) >= limits.quorum * len(expected):
                break
            await standing.news.wait(min(remaining, 1.0) if remaining > 0 else 1.0)
        return dict(self._messages)

    def _senders(self, agreed: Agreed) -> tuple[str, ...]:
        """Return the neighbours whose messages a round needs."""
        if (masked := self._standing.masked) is None or not masked.neighbours:
            return agreed.learner.neighbours
        return masked.groups(self._standing.roster).get(self._standing.name, ())
