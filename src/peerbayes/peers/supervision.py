"""Background tasks of a peer, which must not end unnoticed: restart them, or end the work with the reason."""

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


class Beside:
    """Background tasks of a process. One that fails for good ends the work."""

    def __init__(self, work: asyncio.Future[Any]) -> None:
        self._work = work
        self._tasks: list[asyncio.Task[None]] = []
        self.failed: TaskFailed | None = None

    def add(self, task_name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Start a task."""
        self._tasks.append(asyncio.create_task(self._guarded(task_name, work), name=task_name))

    async def stop(self) -> None:
        """End all tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _guarded(self, task_name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await supervised(task_name, work, MOST)
        except TaskFailed as error:
            self.failed = error
            self._work.cancel()


def supervised_thread(task_name: str, work: Callable[[], None]) -> threading.Thread:
    """Start a thread that runs work until it returns; if it fails, it logs why and runs it again."""

    def run() -> None:
        failures = 0
        while True:
            began = time.monotonic()
            try:
                work()
                return
            except Exception as error:
                failures = 1 if time.monotonic() - began > STEADY else failures + 1
                _report(task_name, error, failures)
            time.sleep(PAUSE)

    thread = threading.Thread(target=run, daemon=True, name=task_name)
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
