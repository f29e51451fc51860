"""Progress and time of a simulation."""

from __future__ import annotations

import time
from collections.abc import Callable

Progress = Callable[[int, int], object]  # called with the rounds done and the total


class Clock:
    """Seconds by activity."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def add(self, activity: str) -> None:
        """Add the time since the last call to an activity."""
        now = time.perf_counter()
        self.seconds[activity] = self.seconds.get(activity, 0.0) + now - self._last
        self._last = now
