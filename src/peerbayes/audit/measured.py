"""Measured success of the attacks on three datasets, as `benchmarks/audit.py` printed it, by the rows of a peer.

pulsar has 8 features and 2 classes, adult 14 and 2, letter 16 and 26. Lower bounds: a better attack may recover more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

# Rounds of the attacked runs.
ROUNDS = 64

Table = Mapping[str, Mapping[int, float]]

# Share of complete rows that the only neighbour of a peer recovers by the passive attack.
LISTENING: Table = {
    "pulsar": {1: 1.0, 2: 1.0, 3: 1.0, 5: 1.0, 10: 0.5, 20: 0.8, 50: 0.01},
    "adult": {1: 1.0, 2: 0.5, 3: 0.0, 5: 0.0, 10: 0.0, 20: 0.0, 50: 0.0},
    "letter": {1: 1.0, 2: 1.0, 3: 1.0, 5: 1.0, 10: 0.8, 20: 0.33, 50: 0.0},
}

# The same by the active attack.
LYING: Table = {
    "pulsar": {10: 1.0, 50: 1.0, 320: 0.17},
    "adult": {10: 1.0, 50: 0.98, 320: 0.18},
    "letter": {10: 1.0, 50: 1.0, 320: 0.18},
}

# AUC of the membership test on the first message.
MEMBERSHIP: Table = {
    "pulsar": {2: 0.94, 5: 0.83, 10: 0.76, 50: 0.61, 320: 0.56, 1000: 0.53},
    "adult": {2: 0.99, 5: 0.93, 10: 0.88, 50: 0.72, 320: 0.59, 1000: 0.55},
    "letter": {2: 1.0, 5: 1.0, 10: 1.0, 50: 0.98, 320: 0.82, 1000: 0.69},
}


def highest(table: Table, rows: float) -> float:
    """Return the largest figure of the three datasets at so many rows, interpolated in log rows.

    Beyond the largest number of rows it falls as 1/rows: an attack then recovers a number of rows, not a share.
    """
    return max(_between(figures, rows) for figures in table.values())


def _between(figures: Mapping[int, float], rows: float) -> float:
    row_counts = sorted(figures)
    if rows <= row_counts[0]:
        return figures[row_counts[0]]
    for low, high in pairwise(row_counts):
        if rows <= high:
            share = math.log(rows / low) / math.log(high / low)
            return (1.0 - share) * figures[low] + share * figures[high]
    return figures[row_counts[-1]] * row_counts[-1] / rows
