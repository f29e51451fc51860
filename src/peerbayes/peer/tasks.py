"""Tasks of a peer: their timeouts and rates, what wakes them, and what starts them again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from peerbayes.errors import PeerbayesError, PeerError

# --- timeouts of a peer, in seconds; always read as `tasks.WAIT`, so that there is one of each

SHORT_WAIT, WAIT = (
    2.0,
    5.0,
)  # that an answer may wait for the requested content: where replies are quick, and at most
FIRST_GRACE, GRACE = 2.0, 10.0  # added before a call is given up: at first, and at most, for slow links
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # between attempts to reach a neighbour
SHORT_PAUSE = 0.5  # the same for one that was silent and calls
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
        event = since or self._event
        if seconds is None:
            await event.wait()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # wait_for could lose a cancellation before Python 3.12
                await event.wait()


# --- rate limits, for what costs more to serve than to ask for


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


# --- background tasks of a peer, which must not end unnoticed: restart them, or end the work with the reason

log = logging.getLogger("peerbayes.peer")

PAUSE = 1.0  # seconds before a failed task is restarted
STEADY = 10.0  # seconds after which a task counts as having worked
MOST = 60  # failures in a row of errors that do not pass by themselves; then the peer stops

# Errors of the machine, which pass: a full disk, no descriptors left, a locked file. No peer stops for them.
PASSING = (OSError, sqlite3.OperationalError)


class TaskFailed(PeerError):
    """A background task failed again and again."""


async def supervised(task_name: str, work: Callable[[], Awaitable[None]], most: int | None = None) -> None:
    """Run work until it returns; if it fails, log why and run it again. TaskFailed after `most` failures in a row."""
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
                    f"{task_name} failed {failures} times in a row, the last time with {_named(error)}; this peer "
                    "stops. What it has learned is stored: `run` continues from there"
                ) from error
            _report(task_name, error, failures)
        await asyncio.sleep(PAUSE)


class BackgroundTasks:
    """Background tasks by name. Where they serve some work, one that fails for good ends that work."""

    def __init__(self, work: asyncio.Future[Any] | None = None) -> None:
        self._work = work
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.failed: TaskFailed | None = None

    def add(self, task_name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Start a task, unless there is one of that name."""
        if task_name not in self._tasks:
            self._tasks[task_name] = asyncio.create_task(self._guarded(task_name, work), name=task_name)

    async def stop(self) -> None:
        """End all tasks."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _guarded(self, task_name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await supervised(task_name, work, None if self._work is None else MOST)
        except TaskFailed as error:
            assert self._work is not None
            self.failed = error
            self._work.cancel()


def supervised_thread(task_name: str, work: Callable[[], None]) -> threading.Thread:
    """Start a thread that runs work until it returns; if it fails, it logs why and runs it again."""

    async def blocking() -> None:
        work()

    thread = threading.Thread(
        target=lambda: asyncio.run(supervised(task_name, blocking)), daemon=True, name=task_name
    )
    thread.start()
    return thread


def _report(task_name: str, error: Exception, failures: int) -> None:
    """Log the first, tenth, hundredth… failure in a row; with a traceback if it may be a bug."""
    if str(failures).strip("0") != "1":
        return
    times = f", for the {failures}th time" if failures > 1 else ""
    expected = isinstance(error, (*PASSING, PeerbayesError))
    log.warning(
        f"{task_name} failed and is started again{times}: {_named(error)}",
        exc_info=None if expected else error,
    )


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
