"""The lock of a peer's folder: one process works on it, and writes its current phase there.

The file has its full size from the start and is written in place, so that this also works on a full disk.
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

PATIENCE = 0.5  # seconds to wait for the lock: another process may just be checking whether it is held
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
            f"{home.folder} is not a folder; make one with `peerbayes node request {home.folder}`"
        )
    descriptor = os.open(home.folder / "peer.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        until = time.monotonic() + PATIENCE
        while not _acquire(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > until:
                raise NeedsPerson(
                    f"{home.folder} is in use: this peer is already running; stop that process first"
                )
            time.sleep(0.05)
        folder_lock = Lock(descriptor)
        folder_lock.tell("starting")
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
