"""How the benchmarks measure: on one thread, side by side, ratios beside their limits. Import it before numpy.

Clocks count processor time, which leaves out what a busy machine makes a process wait. What is compared takes turns,
A B B A …, so that whatever slows the machine slows both. `compare` goes on until the interval of the ratio is narrow,
or as long as it may; the first calls, which import and compile, are not counted. A limit is missed where even the lower
end of the interval is beyond it, and `verdict` makes that the exit code.
"""

import gc
import math
import os
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import NamedTuple

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

failures: list[str] = []

# Every line that was reported: what was compared, its figure, interval and limit as text, and whether it is met.
figures: list[tuple[str, str, str, str, bool]] = []

# Calls shorter than this are timed several at a time: clocks and the loop around calls take a microsecond.
LEAST_SECONDS = 2e-3

# An interval is narrow when its ends are this share of the ratio apart.
NARROW = 0.1

# The most and the fewest turns, and the seconds that one comparison may take.
MOST_TURNS, FEWEST_TURNS, MOST_SECONDS = 200, 5, 6.0


class Ratio(NamedTuple):
    """How many times as long one call takes as another, with an interval that 95 of 100 such would cover it with."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def seconds_of(call: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    """Time several calls together; return the seconds of one."""
    began = clock()
    for _ in range(repeats):
        call()
    return (clock() - began) / repeats


def compare(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    narrow: float = NARROW,
    most_seconds: float = MOST_SECONDS,
    clock: Callable[[], float] = time.process_time,
) -> Ratio:
    """Return the ratio of the times of two calls that take turns: the geometric mean over A B B A, and its interval."""
    ours(), theirs()
    longest = max(seconds_of(ours, 1, clock), seconds_of(theirs, 1, clock))
    repeats = max(1, math.ceil(LEAST_SECONDS / max(longest, 1e-7)))
    gc.collect()
    logs: list[float] = []
    until = time.perf_counter() + most_seconds
    ratio = Ratio(1.0, 0.0, math.inf)
    while len(logs) < MOST_TURNS:
        turn = [seconds_of(call, repeats, clock) for call in (ours, theirs, theirs, ours)]
        logs.append(math.log(max(turn[0] + turn[3], 1e-9) / max(turn[1] + turn[2], 1e-9)))
        if len(logs) < FEWEST_TURNS:
            continue
        ratio = ratio_of(logs)
        if ratio.high - ratio.low <= narrow * ratio.value or time.perf_counter() > until:
            break
    return ratio


def ratio_of(logs: list[float]) -> Ratio:
    """Return the ratio that logarithms of single ratios have, with its interval by Student's t.

    The tenth of them furthest from the median at either end, which something interrupted, are left out.
    """
    outside = len(logs) // 10
    kept = sorted(logs)[outside : len(logs) - outside]
    mean, error = statistics.fmean(kept), statistics.stdev(kept) / math.sqrt(len(kept))
    freedom = len(kept) - 1
    reach = error * (
        1.96 + 2.4 / freedom + 5.3 / freedom**2
    )  # the 97.5 % quantile of t, to a hundredth from 4 on
    return Ratio(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))


def side_by_side(
    *calls: Callable[[], object], turns: int = 5, clock: Callable[[], float] = time.process_time
) -> list[float]:
    """Return the lowest time of each, taken in turns."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(turns):
        for kept, call in zip(times, calls, strict=True):
            kept.append(seconds_of(call, 1, clock))
    return [min(kept) for kept in times]


def at_most(what: str, ratio: Ratio, limit: float) -> None:
    """Report a ratio that should be at most `limit`."""
    _report(
        what,
        f"{ratio.value:.2f}",
        f"{ratio.low:.2f} to {ratio.high:.2f}",
        f"<= {limit:g}",
        ratio.low <= limit,
    )


def report(what: str, ratio: float, limit: str, met: bool) -> None:
    """Print a figure beside its limit."""
    _report(what, f"{ratio:.2f}", "", limit, met)


def _report(what: str, value: str, interval: str, limit: str, met: bool) -> None:
    print(f"{what:<66}{value:>8} {interval:>14}   {limit:<10}{'ok' if met else 'MISSED'}", flush=True)
    figures.append((what, value, interval, limit, met))
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
