"""A folder that is watched: a run's, a peer's, or one where nothing has begun yet."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from peerbayes.errors import PeerbayesError
from peerbayes.text import printable
from peerbayes.web.run import RunFolder
from peerbayes.web.seen import Seen

# What files that are damaged, half written or just being replaced can raise.
UNREADABLE = (PeerbayesError, OSError, ValueError, LookupError, TypeError, sqlite3.Error)

PATIENCE = 1.0  # seconds for which what was seen last stands for a file that is just being replaced


@dataclass
class Folder:
    """Looks at whatever is there; what cannot be read yet is told, and tried again at the next look."""

    path: Path
    beyond: bool = False
    """Whether other machines may look, too."""
    _run: RunFolder | None = None
    _peer: object = None
    _last: tuple[float, Seen] | None = None

    def look(self) -> Seen:
        """What there is to see now."""
        try:
            seen = self._look()
            self._last = time.monotonic(), seen
            return seen
        except UNREADABLE as error:
            if self._last is not None and time.monotonic() - self._last[0] < PATIENCE:
                return self._last[1]
            told = printable(str(error)) or type(error).__name__
            return Seen("nothing", (told,), {"name": self.path.name, "told": told})

    def _look(self) -> Seen:
        if (self.path / "peer.toml").exists():
            from peerbayes.web.peer import PeerFolder  # a simulation's dashboard does without peers' packages

            if not isinstance(self._peer, PeerFolder):
                self._peer = PeerFolder(self.path, self.beyond)
            return self._peer.look()
        if self._run is None:
            self._run = RunFolder(self.path)
        return self._run.look()
