"""How often each caller may have this peer do what costs more to do than to ask for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Rate:
    """So many at once for each caller, and then one every so many seconds."""

    at_once: int
    seconds: float
    clock: Callable[[], float] = time.monotonic
    _due: dict[str, float] = field(default_factory=dict)

    def allows(self, caller: str) -> bool:
        """Return whether this caller may now, and count it where it may. Callers are members: there are few."""
        now = self.clock()
        due = max(now, self._due.get(caller, now))
        if due - now > (self.at_once - 1) * self.seconds:
            return False
        self._due[caller] = due + self.seconds
        return True
