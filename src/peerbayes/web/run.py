"""A simulation's folder, looked at again and again: how far it is, and how fast it goes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from peerbayes.live import Following
from peerbayes.views import View
from peerbayes.web.seen import Seen

# Seconds over which the speed is told.
LATELY = 10.0


@dataclass
class RunFolder:
    """A run, finished or not."""

    folder: Path
    _following: Following = field(init=False)
    _name: str = field(init=False)
    _known: View | None = None
    _runs: int = 0
    _turns: deque[tuple[float, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._following, self._name = Following(self.folder), self.folder.resolve().name

    def look(self) -> Seen:
        """The run as it is now."""
        view = self._following.look()
        if self._known is None or not _continues(view, self._known):
            self._runs += 1
            self._turns.clear()
        self._known = view
        facts = {
            "name": self._name,
            "strategy": str(view.configuration["strategy"]),
            "peers": view.nodes,
            "round": view.turn,
            "rounds": view.total,
            "finished": view.finished,
            "at": self._following.at,
            "speed": self._speed(view.turn, self._following.at),
        }
        return Seen("run", (self._runs,), facts, view)

    def close(self) -> None:
        self._following.close()

    def _speed(self, turn: int, at: float) -> float | None:
        """Rounds a second, lately; None: not known yet."""
        if not self._turns or self._turns[-1] != (at, turn):
            self._turns.append((at, turn))
        while len(self._turns) > 2 and self._turns[0][0] < at - LATELY:
            self._turns.popleft()
        (since, first), (now, last) = self._turns[0], self._turns[-1]
        return (last - first) / (now - since) if now - since >= 1e-3 else None


def _continues(view: View, before: View) -> bool:
    """Whether it is the same simulation, further on."""
    return (
        view.finished == before.finished
        and (view is before or not view.finished)
        and view.made == before.made
        and view.turn >= before.turn
        and view.configuration == before.configuration
    )
