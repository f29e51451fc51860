"""The disk under a peer's folder: waiting for room, and one process at a time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from peerbayes.errors import NeedsPerson
from peerbayes.peer.state.folder import Home

# --- handle a full disk: report it once, wait, and continue where the peer was

T = TypeVar("T")

PAUSE = 1.0  # seconds between two attempts
SCARCE = 64 << 10  # bytes: with less than this, a peer cannot write its next round
WAITING = "waiting for disk space"  # what `status` shows meanwhile

ERRNOS = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: BaseException | None) -> bool:
    """Return whether a write failed because the disk, or the owner's share of it, is full."""
    if isinstance(error, OSError):
        return error.errno in ERRNOS
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return error is not None and is_full(error.__cause__)


def is_scarce(folder: Path) -> bool:
    """Return whether hardly anything can be written in a folder."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < SCARCE


class Room:
    """Whether the disk has room, judged by this peer's writes; `tell` is called when that changes.

    Each kind of write has a name: there is room again when the last failed one has succeeded.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._failing: set[str] = set()

    @property
    def full(self) -> bool:
        return bool(self._failing)

    def note(self, write: str, error: BaseException) -> bool:
        """Note a failed write that is tried again later; return False if the disk is not full, and the error stands."""
        if not is_full(error):
            return False
        was_full = self.full
        self._failing.add(write)
        if not was_full:
            self._tell("disk full")
        return True

    def clear(self, *writes: str) -> None:
        """Note writes that succeeded, or may be tried again."""
        if self._failing.intersection(writes):
            self._failing.difference_update(writes)
            if not self.full:
                self._tell("disk has room")

    def clear_all(self) -> None:
        """Note that a last write succeeded, so that the disk has room whatever failed before."""
        self.clear(*tuple(self._failing))

    @contextlib.contextmanager
    def noting(self, write: str) -> Iterator[None]:
        """Note whether a write inside failed on a full disk; it is left out then, and other errors stand."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            if not self.note(write, error):
                raise
        else:
            self.clear(write)

    async def until(self, name: str, write: Callable[[], T], in_thread: bool = True) -> T:
        """Return the result of a write, retried until there is room for it. A failed attempt must leave no trace."""
        while True:
            try:
                result = await asyncio.to_thread(write) if in_thread else write()
            except Exception as error:
                if not self.note(name, error):
                    raise
            else:
                self.clear(name)
                return result
            await asyncio.sleep(PAUSE)


# --- the lock of a peer's folder: one process works on it, and writes its current phase there
# The file has its full size from the start and is written in place, so that this also works on a full disk.

LOCK_TIMEOUT = 0.5  # seconds to wait for the lock: another process may just be checking whether it is held
SIZE = 128  # bytes of the file


@dataclass(frozen=True)
class Lock:
    """A lock that is held."""

    descriptor: int

    def tell(self, phase: str) -> None:
        """Write the current phase of the process; a full disk is no reason to stop."""
        with contextlib.suppress(OSError):
            os.pwrite(self.descriptor, phase.encode()[:SIZE].ljust(SIZE), 0)


@contextlib.contextmanager
def lock(home: Home) -> Iterator[Lock]:
    """Hold the lock of a folder, so that only one process works on it."""
    if not home.folder.is_dir():
        raise NeedsPerson(
            f"{home.folder} is not a folder; make one with `peerbayes peer request {home.folder}`"
        )
    descriptor = os.open(home.folder / "peer.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        until = time.monotonic() + LOCK_TIMEOUT
        while not _acquire(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > until:
                raise NeedsPerson(
                    f"{home.folder} is in use: this peer is already running; stop that process first"
                )
            time.sleep(0.05)
        folder_lock = Lock(descriptor)
        folder_lock.tell("starting")
        with contextlib.suppress(OSError):
            home.links_path.unlink(missing_ok=True)  # of a process that has gone
        yield folder_lock
    finally:
        os.close(descriptor)


def running(home: Home) -> bool:
    """Return whether a process works on the folder."""
    return phase(home) is not None


def phase(home: Home) -> str | None:
    """Return the current phase of the process that works on the folder; None: there is none."""
    try:
        descriptor = os.open(home.folder / "peer.lock", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        if _acquire(descriptor, fcntl.LOCK_SH):
            return None
        text = os.pread(descriptor, SIZE, 0).decode(errors="replace").strip(" \0")
    finally:
        os.close(descriptor)
    # A disk that was full from the start has no room even for the phase.
    return WAITING if not text and is_scarce(home.folder) else text or "running"


def _acquire(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
