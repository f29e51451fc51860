"""Handle a full disk: report it once, wait, and continue where the peer was."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

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
