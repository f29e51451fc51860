"""Files and connections that this process may have open: as many as the system allows, and a share that is its own.

Whoever reaches the port can open connections, before it has shown a certificate. They are capped below the limit of
the process, so that its store, its roster and its calls to neighbours always find descriptors left.
"""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

MOST_OPEN = 65_536  # files that are worth asking for: a limit of millions makes some systems slow
OWN = 256  # descriptors for files, calls to neighbours and the dashboard
MOST_CONNECTIONS = 4096  # of which each takes about 20 kB before it has shown anything: 90 MB at most


def raise_limit() -> int:
    """Raise this process's limit of open files as far as it may, and return what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limit()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # some systems allow less than they say
        return limit()
    return wanted


def limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OPEN if soft == resource.RLIM_INFINITY else soft


def connections(open_files: int) -> int:
    """Return how many connections others may have here, where so many files may be open: never more than leave half."""
    return max(1, min(MOST_CONNECTIONS, max(open_files - OWN, open_files // 2)))


class Spare:
    """A descriptor that is held for the moment when no other is left."""

    def __init__(self) -> None:
        self._held: int | None = None
        self._lent = threading.Lock()
        self._hold()

    def run(self, work: Callable[[], T]) -> T:
        """Return what some work returns that opens one file at a time, also where all descriptors are in use."""
        try:
            return work()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        with self._lent:
            self.close()
            try:
                return work()
            finally:
                self._hold()

    def close(self) -> None:
        if self._held is not None:
            os.close(self._held)
        self._held = None

    def _hold(self) -> None:
        try:
            self._held = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # somebody was faster: another time
            self._held = None
