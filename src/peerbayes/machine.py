"""This machine: how many processors there are for a process, and how to keep a worker on one thread."""

from __future__ import annotations

import os

# The environment of a worker process that shares a machine with others like it.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)


def processors() -> int:
    """Return how many processors this process may use, or NUMBA_NUM_THREADS where it is set."""
    if threads := os.environ.get("NUMBA_NUM_THREADS", ""):
        return max(1, int(threads))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
