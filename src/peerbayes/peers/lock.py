"""The lock of a peer's folder: one process works on it, and says there what it is at.

The file has its full size from the start and is written in place, so that this can also be said on a full disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from peerbayes.peers.errors import NeedsPerson
from peerbayes.peers.home import Home
from peerbayes.peers.room import WAITING, is_scarce

PATIENCE = 0.5  # seconds to wait for the lock: somebody may be looking whether it is held
SIZE = 128  # bytes of the file


@dataclass(frozen=True)
class Lock:
    """A lock that is held."""

    descriptor: int

    def tell(self, phase: str) -> None:
        """Write what the process is at; a disk that cannot take it is no reason to stop."""
        with contextlib.suppress(OSError):
            os.pwrite(self.descriptor, phase.encode()[:SIZE].ljust(SIZE), 0)


@contextlib.contextmanager
def lock(home: Home) -> Iterator[Lock]:
    """Only one process works on a folder."""
    if not home.folder.is_dir():
        raise NeedsPerson(f"{home.folder} is no folder; make one with `peerbayes node request {home.folder}`")
    descriptor = os.open(home.folder / "peer.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        until = time.monotonic() + PATIENCE
        while not _taken(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > until:
                raise NeedsPerson(f"{home.folder} is in use: this peer runs already; stop that one first")
            time.sleep(0.05)
        held = Lock(descriptor)
        held.tell("starting")
        yield held
    finally:
        os.close(descriptor)


def running(home: Home) -> bool:
    """Whether a process works on the folder."""
    return phase(home) is not None


def phase(home: Home) -> str | None:
    """Return what the process that works on the folder is at, in a few words; None: there is none."""
    try:
        descriptor = os.open(home.folder / "peer.lock", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        if _taken(descriptor, fcntl.LOCK_SH):
            return None
        told = os.pread(descriptor, SIZE, 0).decode(errors="replace").strip(" \0")
    finally:
        os.close(descriptor)
    # A disk that was full from the start has not even room for the word.
    return WAITING if not told and is_scarce(home.folder) else told or "running"


def _taken(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
