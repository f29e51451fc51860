"""Timeouts, and the signal that something has changed."""

from __future__ import annotations

import asyncio
import contextlib

# --- timeouts of a peer, in seconds; always read as `signals.WAIT`, so that there is one of each

WAIT = 5.0  # that an answer may wait for the requested content
GRACE = 10.0  # added before a call is given up, for slow links
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # between attempts to reach a neighbour
LEAVE = 2.0  # to tell a neighbour that this peer leaves
DRAIN = 30.0  # to let neighbours learn why this peer stops


# --- wait until something changes


class Changes:
    """Wakes all waiting tasks at every change, so that they check their condition again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
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
