"""Location and scale of a column where members may lie: means over members of what each reports beside the medians.

    M, D    medians by vote of members' means, and of their root mean squares of x − M (see `medians`)
    report  of a member with values: a, the mean of (x − M)/D, within ±κ, and b, that of its square, up to κ²
    units   of the means over these members: location M + D ā, scale D √(b̄ − ā²)
    κ²      6.25; of few members n/2, and 1 at least, so that one of them adds at most a half to b̄

Where members have as many rows each and none is beyond κ, these are the units of all rows together, but for rounding: a
report is one digit of twelve bits, six for each number, so that every digit is a report that a member may make. Every
member counts once, whatever its rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

# Medians alone are a majority's units: where each peer has one class, others are ten of its deviations away. The more
# of that counts, the more a lie does: at 3 a tenth of the members may cost adult more than .02, at 2 little is gained.
FARTHEST = 2.5

# a is told in steps of κ/31, so that 0 is one of them, and b in steps of κ²/63.
SIDE, STEPS = 31, 63

# Its square is a float64.
BEYOND = 1e150


def limit_of(members: int) -> float:
    """Return κ of a network of so many."""
    return min(FARTHEST, math.sqrt(max(1.0, members / 2)))


def report_of(values: np.ndarray, middle: float, deviation: float, limit: float) -> int:
    """Return a member's report of a column, as a digit, from its present values [n] and the medians."""
    with np.errstate(over="ignore"):
        apart = np.clip((values - middle) / deviation, -BEYOND, BEYOND)
    first, second = math.fsum(apart) / apart.size, math.fsum(apart * apart) / apart.size
    side = round(min(max(first / limit, -1.0), 1.0) * SIDE)
    return (side + SIDE) * (STEPS + 1) + round(min(second / limit**2, 1.0) * STEPS)


def worst_report() -> int:
    """Return the report that does most harm: a mean as others have it, and the largest square."""
    return SIDE * (STEPS + 1) + STEPS


def units_of(
    reports: Mapping[int, int], middle: float, deviation: float, limit: float
) -> tuple[float, float]:
    """Return location and scale of a column, from how many made each report and the medians."""
    count = first = second = 0
    for digit, times in reports.items():
        count += times
        first += times * min(digit // (STEPS + 1) - SIDE, SIDE)
        second += times * (digit % (STEPS + 1))
    mean, square = limit * first / (SIDE * count), limit**2 * second / (STEPS * count)
    return middle + deviation * mean, deviation * math.sqrt(max(square - mean**2, 0.0))
