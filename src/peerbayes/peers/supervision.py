"""What goes on beside a peer's work, and must not end unseen: it is started again, or it ends the work and says why."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from peerbayes.errors import PeerbayesError
from peerbayes.peers.errors import PeerError

log = logging.getLogger("peerbayes.peer")

PAUSE = 1.0  # seconds before something that failed is started again
STEADY = 10.0  # seconds after which it counts as having worked
MOST = 60  # failures in a row of what does not mend itself; then the peer stops

# Trouble of the machine, which passes: a full disk, no descriptors left, a locked file. Nobody stops for it.
PASSING = (OSError, sqlite3.OperationalError)


class TaskFailed(PeerError):
    """Something beside the work failed again and again."""


async def supervised(what: str, work: Callable[[], Awaitable[None]], most: int | None = None) -> None:
    """Run some work until it returns; where it fails, say why and run it again. TaskFailed after `most` in a row."""
    failures = 0
    while True:
        began = time.monotonic()
        try:
            await work()
            return
        except Exception as error:
            failures = 1 if time.monotonic() - began > STEADY else failures + 1
            if most is not None and failures >= most and not isinstance(error, PASSING):
                raise TaskFailed(
                    f"{what} failed {failures} times in a row, the last time with {_named(error)}; this peer stops. "
                    "What it has learned is stored: `run` goes on from there"
                ) from error
            _report(what, error, failures)
        await asyncio.sleep(PAUSE)


class Beside:
    """Tasks beside the work of a process. One that fails for good ends the work."""

    def __init__(self, work: asyncio.Future[Any]) -> None:
        self._work = work
        self._tasks: list[asyncio.Task[None]] = []
        self.failed: TaskFailed | None = None

    def add(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Start a task."""
        self._tasks.append(asyncio.create_task(self._guarded(what, work), name=what))

    async def stop(self) -> None:
        """End all tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _guarded(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await supervised(what, work, MOST)
        except TaskFailed as error:
            self.failed = error
            self._work.cancel()


def supervised_thread(what: str, work: Callable[[], None]) -> threading.Thread:
    """Start a thread that runs some work until it returns; where it fails, it says why and runs it again."""

    def run() -> None:
        failures = 0
        while True:
            began = time.monotonic()
            try:
                work()
                return
            except Exception as error:
                failures = 1 if time.monotonic() - began > STEADY else failures + 1
                _report(what, error, failures)
            time.sleep(PAUSE)

    thread = threading.Thread(target=run, daemon=True, name=what)
    thread.start()
    return thread


def _report(what: str, error: Exception, failures: int) -> None:
    """Log the first, tenth, hundredth… failure in a row; with its place in the code where it may be a mistake there."""
    if str(failures).strip("0") != "1":
        return
    times = f", for the {failures}th time" if failures > 1 else ""
    expected = isinstance(error, (*PASSING, PeerbayesError))
    log.warning(
        f"{what} failed and is started again{times}: {_named(error)}", exc_info=None if expected else error
    )


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
