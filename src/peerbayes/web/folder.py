"""The folder that a dashboard shows: of a run, of a peer, or one where nothing has started yet."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from peerbayes.errors import PeerbayesError
from peerbayes.text import printable
from peerbayes.web.run import RunFolder
from peerbayes.web.seen import Snapshot

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
            from peerbayes.web.peer import (
                PeerFolder,  # a simulation's dashboard does not need the packages of peers
            )

            if not isinstance(self._peer, PeerFolder):
                self._peer = PeerFolder(self.path, self.remote)
            return self._peer.look()
        if self._run is None:
            self._run = RunFolder(self.path)
        return self._run.look()
