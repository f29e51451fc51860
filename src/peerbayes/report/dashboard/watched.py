"""What is watched: the folder of a run or of a peer."""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from peerbayes.data.files import printable
from peerbayes.errors import PeerbayesError
from peerbayes.report.dashboard.snapshot import Snapshot
from peerbayes.simulation.live import Following
from peerbayes.simulation.view import View

# --- the folder of a simulation, read repeatedly: its progress and its speed

# Seconds over which the speed is measured.
SPEED_WINDOW = 10.0


@dataclass
class RunFolder:
    """The folder of a run, finished or not."""

    folder: Path
    _following: Following = field(init=False)
    _name: str = field(init=False)
    _last_view: View | None = None
    _runs: int = 0
    _recent_rounds: deque[tuple[float, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._following, self._name = Following(self.folder), self.folder.resolve().name

    def look(self) -> Snapshot:
        """Return the current snapshot of the run."""
        view = self._following.look()
        if self._last_view is None or not _continues(view, self._last_view):
            self._runs += 1
            self._recent_rounds.clear()
        self._last_view = view
        facts = {
            "name": self._name,
            "strategy": str(view.configuration["strategy"]),
            "peers": view.peer_count,
            "round": view.round_index,
            "rounds": view.total,
            "finished": view.finished,
            "at": self._following.at,
            "speed": self._speed(view.round_index, self._following.at),
        }
        return Snapshot("run", (self._runs,), facts, view)

    def close(self) -> None:
        self._following.close()

    def _speed(self, round_index: int, at: float) -> float | None:
        """Return the recent rounds per second; None where unknown."""
        if not self._recent_rounds or self._recent_rounds[-1] != (at, round_index):
            self._recent_rounds.append((at, round_index))
        while len(self._recent_rounds) > 2 and self._recent_rounds[0][0] < at - SPEED_WINDOW:
            self._recent_rounds.popleft()
        (since, first), (now, last) = self._recent_rounds[0], self._recent_rounds[-1]
        return (last - first) / (now - since) if now - since >= 1e-3 else None


def _continues(view: View, before: View) -> bool:
    """Return whether it is the same simulation at the same or a later round."""
    return (
        view.finished == before.finished
        and (view is before or not view.finished)
        and view.made == before.made
        and view.round_index >= before.round_index
        and view.configuration == before.configuration
    )


# --- the folder that a dashboard shows: of a run, of a peer, or one where nothing has started yet

# Errors from files that are damaged, half written or being replaced.
UNREADABLE = (PeerbayesError, OSError, ValueError, LookupError, TypeError, sqlite3.Error)

GRACE = 1.0  # seconds for which the last snapshot is shown while a file is being replaced


@dataclass
class Folder:
    """Reads a folder of either kind; what cannot be read yet is reported, and read again the next time."""

    path: Path
    remote: bool = False
    """Whether other machines may connect, too."""
    _run: RunFolder | None = None
    _peer: object = None
    _last: tuple[float, Snapshot] | None = None

    def look(self) -> Snapshot:
        """Return the current snapshot."""
        try:
            snapshot = self._look()
            self._last = time.monotonic(), snapshot
            return snapshot
        except UNREADABLE as error:
            if self._last is not None and time.monotonic() - self._last[0] < GRACE:
                return self._last[1]
            text = printable(str(error)) or type(error).__name__
            return Snapshot("nothing", (text,), {"name": self.path.name, "told": text})

    def _look(self) -> Snapshot:
        if (self.path / "peer.toml").exists():
            from peerbayes.report.dashboard.peer_folder import PeerFolder

            if not isinstance(self._peer, PeerFolder):
                self._peer = PeerFolder(self.path, self.remote)
            return self._peer.look()
        if self._run is None:
            self._run = RunFolder(self.path)
        return self._run.look()
