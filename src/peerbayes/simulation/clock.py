"""What a simulation tells of its progress and its time."""

from __future__ import annotations

import time
from collections.abc import Callable

Progress = Callable[[int, int], object]  # called with the rounds done and the rounds in all


class Clock:
    """Seconds by what they were spent on."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def add(self, what: str) -> None:
        """What the time since the last call was spent on."""
        now = time.perf_counter()
        self.seconds[what] = self.seconds.get(what, 0.0) + now - self._last
        self._last = now
