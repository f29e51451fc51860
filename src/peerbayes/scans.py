"""Passes over the columns of a numeric array: moments, and distinct integers. No schema is known yet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Entries above which the kernels pay for being loaded (and, once on a machine, compiled).
LARGE = 1 << 21

# Rows of a block of which only sums are kept: calls stay rare.
LONG_BLOCK_ROWS = 1 << 13

# Integers within a range of this many values are counted in a table; others are hashed.
SMALL_RANGE = 1 << 16


def column_moments(
    values: np.ndarray, weights: np.ndarray | None = None, columns: Sequence[int] | None = None
) -> tuple[np.ndarray, ...]:
    """Count, mean, variance, low and high of the present values of each column: [n, D] -> five [D]."""
    every = columns is None or list(columns) == list(range(values.shape[1]))
    width = values.shape[1] if columns is None else len(columns)
    state = np.zeros((5, width))
    state[3:] = np.array([[np.inf], [-np.inf]])
    add = _add_moments
    if values.size > LARGE:
        from peerbayes.kernels import moments as add
    ones = np.ones(LONG_BLOCK_ROWS)
    for start in range(0, values.shape[0], LONG_BLOCK_ROWS):
        part = values[start : start + LONG_BLOCK_ROWS]
        block = np.ascontiguousarray(part if every else part[:, list(columns or ())], dtype=np.float64)
        of_rows = ones[: block.shape[0]] if weights is None else weights[start : start + LONG_BLOCK_ROWS]
        with np.errstate(over="ignore", invalid="ignore"):  # infinities are reported by name, by the caller
            if start == 0:
                state[1] = _first_mean(block)
            add(block, of_rows, state)
    count, mean, square, low, high = state
    return count, mean, square / np.where(count > 0, count, 1.0), low, high


def _first_mean(block: np.ndarray) -> np.ndarray:
    """Where to measure deviations from at first."""
    present = ~np.isnan(block)
    return np.where(present, block, 0.0).sum(axis=0) / np.maximum(present.sum(axis=0), 1)


def _add_moments(block: np.ndarray, weights: np.ndarray, state: np.ndarray) -> None:
    """The kernel `moments`, for tables too small to load it."""
    present = ~np.isnan(block)
    of_values = np.where(present, weights[:, None], 0.0)
    gaps = np.where(present, block - state[1], 0.0)
    count, total = of_values.sum(axis=0), (of_values * gaps).sum(axis=0)
    gap = total / np.where(count > 0, count, 1.0)
    square = np.maximum((of_values * gaps**2).sum(axis=0) - gap * total, 0.0)
    both = np.where(state[0] + count > 0, state[0] + count, 1.0)
    state[2] += square + gap**2 * (state[0] * count / both)
    state[1] += gap * (count / both)
    state[0] += count
    state[3] = np.minimum(state[3], np.where(present, block, np.inf).min(axis=0))
    state[4] = np.maximum(state[4], np.where(present, block, -np.inf).max(axis=0))


def distinct_integers(array: np.ndarray, columns: Sequence[int]) -> list[tuple[int, ...]] | None:
    """The distinct values of integer columns, in two passes; None where a column's range is too wide."""
    chosen = np.asarray(columns, dtype=np.int64)
    lows, highs = ([int(value) for value in bound(axis=0)[chosen]] for bound in (array.min, array.max))
    spans = [high - low + 1 for low, high in zip(lows, highs, strict=True)]
    if max(spans) > SMALL_RANGE or max(map(abs, lows)) > 2**62:
        return None
    low, sizes = np.array(lows, dtype=np.int64), np.array(spans, dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    seen = np.zeros(int(sizes.sum()), dtype=bool)
    if array.size > LARGE:
        from peerbayes import kernels

        kernels.mark(array, chosen, low, starts, seen)
    else:
        seen[array[:, chosen].astype(np.int64) - low + starts] = True
    return [
        tuple((np.flatnonzero(seen[start : start + size]) + bottom).tolist())
        for start, size, bottom in zip(starts, sizes, low, strict=True)
    ]
