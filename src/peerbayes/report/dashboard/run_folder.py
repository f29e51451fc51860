"""The folder of a simulation as the dashboard shows it, and the snapshots that all folders give."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from peerbayes.simulation.view import Following, View


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state of a folder at one moment. Snapshots of the same run have the same key."""

    kind: Literal["run", "peer", "nothing"]
    key: tuple[object, ...]
    facts: dict[str, Any]
    """Plain values: names, rounds, neighbours."""
    view: View | None = None
    model: int = 0
    """Version of the model, so that its figures are redrawn only when it changes."""
    log_entries: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    """The last entries of the audit log, oldest first, each with its number."""

    def same(self, before: Snapshot) -> bool:
        """Return whether nothing changed since `before`."""
        shown = self.facts == before.facts and self.log_entries == before.log_entries
        return self.follows(before) and self.view is before.view and shown

    def follows(self, before: Snapshot) -> bool:
        """Return whether it is the same run, so that figures can grow instead of being redrawn."""
        return self.kind == before.kind and self.key == before.key


def speed(rounds: Sequence[tuple[float, int]]) -> float | None:
    """Return rounds per second between the first and the last of (time, round); None where unknown."""
    if not rounds or rounds[-1][0] - rounds[0][0] < 1e-3:
        return None
    return (rounds[-1][1] - rounds[0][1]) / (rounds[-1][0] - rounds[0][0])


SPEED_WINDOW = 10.0  # seconds over which the speed is measured


class RunFolder:
    """The folder of a run, finished or not, which is read repeatedly."""

    def __init__(self, folder: Path) -> None:
        self._following, self._name = Following(folder), folder.resolve().name
        self._last_view: View | None = None
        self._runs = 0
        self._recent_rounds: deque[tuple[float, int]] = deque()

    def look(self) -> Snapshot:
        """Return the current snapshot of the run."""
        view, recent = self._following.look(), self._recent_rounds
        if self._last_view is None or not _continues(view, self._last_view):
            self._runs += 1
            recent.clear()
        self._last_view = view
        latest = self._following.at, view.round_index
        if not recent or recent[-1] != latest:
            recent.append(latest)
        while len(recent) > 2 and recent[0][0] < latest[0] - SPEED_WINDOW:
            recent.popleft()
        facts = {
            "name": self._name,
            "strategy": str(view.configuration["strategy"]),
            "peers": view.peer_count,
            "round": view.round_index,
            "rounds": view.total,
            "finished": view.finished,
            "at": self._following.at,
            "speed": speed(recent),
        }
        return Snapshot("run", (self._runs,), facts, view)


def _continues(view: View, before: View) -> bool:
    """Return whether it is the same simulation at the same or a later round."""
    return (
        view.finished == before.finished
        and (view is before or not view.finished)
        and view.made == before.made
        and view.round_index >= before.round_index
        and view.configuration == before.configuration
    )
