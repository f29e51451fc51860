"""Wait until something changes."""

from __future__ import annotations

import asyncio
import contextlib


class News:
    """Wakes all waiting tasks at every change, so that they check their condition again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        """Wake all waiting tasks."""
        self._event.set()
        self._event = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """The event of the next change; take it before checking a condition, and no later change is missed."""
        return self._event

    async def wait(self, seconds: float | None, since: asyncio.Event | None = None) -> None:
        """Wait for a change (since the event `since`, if given), at most so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # wait_for could lose a cancellation before Python 3.12
                await (since or self._event).wait()
