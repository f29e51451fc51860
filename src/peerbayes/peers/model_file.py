"""A peer's model as a file, as good as it is now."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from peerbayes import files
from peerbayes.peers.agreement import Agreed

EVERY = 1.0  # seconds between two writes
SHARE = 20  # it is written again after so many times what writing took: a twentieth of the time is enough


@dataclass
class ModelFile:
    """Written as often as time allows."""

    path: Path | None
    due: float = 0.0
    """When it is time to write again."""

    def write(self, agreed: Agreed, stats: np.ndarray) -> None:
        """The model of S [C, K]; weights of no model have no file."""
        began = time.monotonic()
        try:
            if self.path is not None and not agreed.of_weights:
                files.write(self.path, agreed.statistics(stats).to_bytes())
        finally:
            took = time.monotonic() - began
            self.due = began + max(EVERY, SHARE * took)
