"""How many rows are new since the last run, by keyed digests of rows that stay in the peer's folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from peerbayes.data import files
from peerbayes.peer.learning.held_out import numbers_of_rows, split_key
from peerbayes.peer.state.folder import Home

FILE = "rows.digests"  # of a run, float64: a keyed digest of each row that it learned from, sorted
EVERY = 60.0  # seconds between two looks at the rows: reading them may take long


def share_of_new(before: np.ndarray, now: np.ndarray) -> float:
    """Return how many rows are not among those before, as a share of these: [n], [m] of digests; copies count."""
    kinds, counts = np.unique(before, return_counts=True)
    there, now_counts = np.unique(now, return_counts=True)
    known = np.zeros(there.size, dtype=np.int64)
    if kinds.size:
        places = np.searchsorted(kinds, there).clip(0, kinds.size - 1)
        found = kinds[places] == there
        known[found] = counts[places[found]]
    return float(np.maximum(now_counts - known, 0).sum() / max(before.size, 1))


def remember(home: Home, frame: pd.DataFrame, labels: np.ndarray) -> None:
    """Remember the rows that the run of a folder learns from, once they are the run's; those of others stay."""
    digests = np.sort(numbers_of_rows(frame, labels, split_key(home.folder)))
    files.write(home.records / FILE, digests.astype("<f8").tobytes())


@dataclass(eq=False)
class NewRows:
    """Compares the rows of a folder with those of its last run."""

    folder: Path
    clock: Callable[[], float] = time.monotonic
    _share: float | None = None
    _looked: float | None = field(default=None)
    _compared: Path | None = None

    def share(self, done: Iterable[int], read: Callable[[], tuple[pd.DataFrame, np.ndarray]]) -> float | None:
        """Return the share of new rows among those that `read` returns, since the last of the runs that are done.

        None: it is not known which rows they learned from.
        """
        paths = (Home(self.folder).of_run(number).records / FILE for number in sorted(done, reverse=True))
        path = next((path for path in paths if path.exists()), None)
        if path is None:
            return None
        if path != self._compared or self._looked is None or self.clock() - self._looked >= EVERY:
            before = np.frombuffer(path.read_bytes(), dtype="<f8")
            self._share = share_of_new(before, numbers_of_rows(*read(), split_key(self.folder)))
            self._looked, self._compared = self.clock(), path
        return self._share
