"""Waiting until something changes."""

from __future__ import annotations

import asyncio
import contextlib


class News:
    """Whoever waits is woken by every change, and looks again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        """Something changed."""
        self._event.set()
        self._event = asyncio.Event()

    @property
    def next(self) -> asyncio.Event:
        """Take it before looking: a change after that is not missed."""
        return self._event

    async def wait(self, seconds: float | None, since: asyncio.Event | None = None) -> None:
        """Until something changes (after `since` was taken, if given), or so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # wait_for could lose a cancellation before Python 3.12
                await (since or self._event).wait()
