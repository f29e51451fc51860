"""Background work that must not end unseen, and what only a person can mend."""

from __future__ import annotations

import asyncio
import errno
import logging
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peerbayes.errors import NeedsPerson, PeerbayesError, PeerError

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


# --- errors that need a person: reported in one sentence, with exit code 2, so that no service restarts the peer

# System errors of files, and what to do about them.
OF_FILES = {
    errno.EACCES: "this user may not use it: give it to the user that runs the peer with `chown`, and see its mode",
    errno.EPERM: "this user may not use it: give it to the user that runs the peer with `chown`, and see its mode",
    errno.EROFS: "it is on a file system that is read-only: make that writable, or move the peer's folder",
    errno.ENOENT: "it does not exist: bring it back, or correct its name in peer.toml",
    errno.ENOTDIR: "a part of its path is not a folder: correct its name",
    errno.EISDIR: "it is a folder; expected a file: correct its name",
}

# The same for a state, by the error codes of SQLite.
OF_STATES = {
    sqlite3.SQLITE_READONLY: OF_FILES[errno.EROFS],
    sqlite3.SQLITE_CANTOPEN: OF_FILES[errno.EACCES],
    sqlite3.SQLITE_PERM: OF_FILES[errno.EACCES],
    sqlite3.SQLITE_CORRUPT: "it is damaged: leave the run with `peerbayes peer leave`, and keep a copy",
    sqlite3.SQLITE_NOTADB: "it is damaged: leave the run with `peerbayes peer leave`, and keep a copy",
}


@contextmanager
def person_needed(folder: Path) -> Iterator[None]:
    """Turn errors that only a person can resolve into a `NeedsPerson` with a plain sentence."""
    try:
        yield
    except (NeedsPerson, TaskFailed):  # a failed task may succeed after a restart
        raise
    except PeerbayesError as error:  # peerbayes' own errors would occur again after a restart
        raise NeedsPerson(str(error)) from error
    except OSError as error:
        if (advice := OF_FILES.get(error.errno or 0)) is None:
            raise
        raise NeedsPerson(f"{error.filename or folder} cannot be used: {advice}") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None) or 0
        if (advice := OF_STATES.get(code & 0xFF)) is None:
            raise
        raise NeedsPerson(f"the state in {folder} cannot be used: {advice}") from error
