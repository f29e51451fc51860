"""Sums that have the same bits in any order: numbers on a common grid, added up as integers.

Peers that add numbers along a tree each add in a different order; rounding would give each a different sum, and
fingerprints and structures derived from it could not be compared.
"""

from __future__ import annotations

import math

import numpy as np

BITS = 62  # of a sum: one for the sign, one to spare


def exponent(bound: float) -> int:
    """Return e of the grid 2⁻ᵉ on which numbers whose sum is at most `bound` in size stay below 2⁶²."""
    return BITS - math.frexp(bound * (1 + 1e-9))[1]


def on_grid(values: np.ndarray, power: int) -> np.ndarray:
    """Return numbers as integers on the grid 2^−power."""
    return np.rint(np.ldexp(values, power)).astype(np.int64)


def off_grid(integers: np.ndarray, power: int) -> np.ndarray:
    """Return integers of a grid as numbers."""
    return np.ldexp(integers.astype(np.float64), -power)
