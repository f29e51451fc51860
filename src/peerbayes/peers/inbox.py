"""What neighbours said for the coming round, and when that is enough."""

from __future__ import annotations

import time
from typing import Any

from peerbayes.peers.agreement import Agreed
from peerbayes.peers.standing import Standing


class Inbox:
    """Messages of the coming round by neighbour: arrays, or masked words."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._messages: dict[str, Any] = {}
        self._gone: set[str] = set()

    def lacks(self, neighbour: str) -> bool:
        """Whether its message may still come."""
        return neighbour not in self._messages and neighbour not in self._gone

    def put(self, neighbour: str, turn: int, message: Any) -> None:
        if turn == self._standing.turn + 1:  # else the round was closed without it
            self._messages[neighbour] = message

    def give_up(self, neighbour: str) -> None:
        """Its message is not to be had any more: the round goes on without it."""
        self._gone.add(neighbour)

    def drop(self, neighbour: str) -> None:
        """Take back what it said."""
        self._messages.pop(neighbour, None)

    def clear(self) -> None:
        """The round is closed."""
        self._messages.clear()
        self._gone.clear()

    async def enough(self, agreed: Agreed) -> dict[str, Any]:
        """The neighbours' messages: all, or after the deadline a quorum."""
        standing = self._standing
        limits = standing.terms.limits
        began, clock = time.monotonic(), time.time()
        while True:
            waited = [name for name in self._speaking(agreed) if name in standing.neighbours]
            lacking = [name for name in waited if self.lacks(name)]
            if not lacking:
                break
            # One that answers is only behind, perhaps waiting for somebody itself: if this peer went on without
            # it while it still hears this peer, the network's sum would suffer. It gets twice as long.
            behind = any(
                (standing.line(name).seen or 0.0) > clock and not standing.line(name).note for name in lacking
            )
            left = began + limits.deadline * (2 if behind else 1) - time.monotonic()
            if left <= 0 and len(waited) - len(lacking) >= limits.quorum * len(waited):
                break
            await standing.news.wait(min(left, 1.0) if left > 0 else 1.0)
        return dict(self._messages)

    def _speaking(self, agreed: Agreed) -> tuple[str, ...]:
        """Whose messages a round needs."""
        if (masked := self._standing.masked) is None or not masked.neighbours:
            return agreed.learner.neighbours
        return masked.groups(self._standing.roster).get(self._standing.name, ())
