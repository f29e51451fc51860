"""Rate limits per caller, for requests that cost more to serve than to send."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Rate:
    """A rate limit: a burst per caller, and then one request every so many seconds."""

    at_once: int
    seconds: float
    clock: Callable[[], float] = time.monotonic
    _due: dict[str, float] = field(default_factory=dict)

    def allows(self, caller: str) -> bool:
        """Return whether this caller may make a request now, and count it if so. Callers are members: there are few."""
        now = self.clock()
        due = max(now, self._due.get(caller, now))
        if due - now > (self.at_once - 1) * self.seconds:
            return False
        self._due[caller] = due + self.seconds
        return True
