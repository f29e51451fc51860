"""How many descriptors there are for connections, and for this process itself."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Callable
from typing import TypeVar

# --- limits of open files and connections: as many as the system allows, and a reserve for this process itself
# Anybody who reaches the port can open connections, before showing a certificate. They are capped below the limit of
# the process, so that its store, its roster and its calls to neighbours never run out of descriptors.

T = TypeVar("T")

MOST_OPEN = 65_536  # files that are worth asking for: a limit of millions makes some systems slow
OWN = 256  # descriptors for files, calls to neighbours and the dashboard
MOST_CONNECTIONS = 4096  # of which each takes about 20 kB before it has shown anything: 90 MB at most


def raise_limit() -> int:
    """Raise this process's limit of open files as far as allowed, and return the new limit."""
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
    """Return how many connections others may open, given the limit of open files: all but `OWN`, and at least half."""
    return max(1, min(MOST_CONNECTIONS, max(open_files - OWN, open_files // 2)))


class Spare:
    """A spare descriptor, for the moment when no other is left."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._lent = threading.Lock()
        self._hold()

    def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which opens one file at a time, also where all descriptors are in use."""
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
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def _hold(self) -> None:
        try:
            self._descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # another thread was faster: try again the next time
            self._descriptor = None
