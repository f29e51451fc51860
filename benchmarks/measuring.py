"""How the benchmarks measure: on one thread, side by side, ratios beside their limits. Import it before numpy.

Each side is timed in turns and its lowest time is kept, because machines are noisy. The first call, which compiles
kernels, is not counted.
"""

import gc
import os
import time
import tracemalloc
from collections.abc import Callable

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

failures: list[str] = []


def side_by_side(
    *calls: Callable[[], object], turns: int = 5, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """The lowest time of each, taken in turns. `time.process_time` leaves out what a busy machine makes them wait."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(turns):
        for kept, call in zip(times, calls, strict=True):
            began = clock()
            call()
            kept.append(clock() - began)
    return [min(kept) for kept in times]


def report(what: str, ratio: float, limit: str, met: bool) -> None:
    """Print a ratio beside its limit."""
    print(f"{what:<66}{ratio:>8.2f}   {limit:<10}{'ok' if met else 'MISSED'}", flush=True)
    if not met:
        failures.append(what)


def peak_extra(call: Callable[[], object]) -> int:
    """The most memory that Python and NumPy hold at a time during a call, beyond what they held before, in bytes.

    The scratch of compiled kernels is not seen; it is one block, and does not grow with rows or peers.
    """
    call()  # compiled, imported
    gc.collect()
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def verdict() -> int:
    """Say whether every limit was met: the exit code."""
    print("all limits met" if not failures else f"missed: {', '.join(failures)}")
    return 1 if failures else 0
