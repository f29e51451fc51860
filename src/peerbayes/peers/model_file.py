"""The file of a peer's current model."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from peerbayes import files
from peerbayes.peers.agreement import Agreed

EVERY = 1.0  # seconds between two writes
SHARE = 20  # times the duration of a write until the next: writing takes at most a twentieth of the time


@dataclass
class ModelFile:
    """A model file, written as often as time allows."""

    path: Path | None
    due: float = 0.0
    """When the next write is due."""

    def write(self, agreed: Agreed, stats: np.ndarray) -> None:
        """Write the model of S [C, K]; a strategy on weights has no such model, and no file."""
        began = time.monotonic()
        try:
            if self.path is not None and not agreed.of_weights:
                files.write(self.path, agreed.statistics(stats).to_bytes())
        finally:
            took = time.monotonic() - began
            self.due = began + max(EVERY, SHARE * took)
