"""Passes over the columns of a numeric array: moments, and distinct integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from peerbayes.data.scalars import SMALL_RANGE

# Entries of a table above which the kernels are used. Loading them takes half a second in a process, and compiling them
# five seconds once on a machine; up to here, plain NumPy loses some twenty milliseconds a fit to them.
LARGE = 1 << 20

# Rows of a block of which only sums are kept: calls stay rare.
LONG_BLOCK_ROWS = 1 << 12

# Entries of a block that plain NumPy goes over several times: it stays in the second-level cache.
PLAIN_ENTRIES = 1 << 15

# Entries of an inner loop from which its start no longer matters.
LONG_LOOP = 1 << 9


def column_moments(
    values: np.ndarray, weights: np.ndarray | None = None, columns: Sequence[int] | None = None
) -> tuple[np.ndarray, ...]:
    """Return count, mean, variance, low and high of the observed values of each column: [n, D] -> five [D]."""
    all_columns = columns is None or list(columns) == list(range(values.shape[1]))
    width = values.shape[1] if columns is None else len(columns)
    state = np.zeros((5, width))
    state[3:] = np.array([[np.inf], [-np.inf]])
    add, size = _add_moments, max(64, PLAIN_ENTRIES // max(1, width))
    if values.size > LARGE:
        from peerbayes.data.moment_kernels import moments as add

        size = LONG_BLOCK_ROWS
    ones = np.ones(min(size, values.shape[0]))
    for start in range(0, values.shape[0], size):
        rows = values[start : start + size]
        block = np.ascontiguousarray(rows if all_columns else rows[:, list(columns or ())], dtype=np.float64)
        row_weights = ones[: block.shape[0]] if weights is None else weights[start : start + size]
        with np.errstate(over="ignore", invalid="ignore"):  # infinities are reported by name, by the caller
            new = state[0] == 0
            if new.any():
                state[1, new] = _first_mean(block if new.all() else block[:, new])
            add(block, row_weights, state)
    count, mean, square, low, high = state
    return count, mean, square / np.where(count > 0, count, 1.0), low, high


def _first_mean(block: np.ndarray) -> np.ndarray:
    """Return the point from which deviations are measured at first."""
    mean = block.mean(axis=0)
    if not np.isnan(mean).any():
        return mean
    present = ~np.isnan(block)
    return np.where(present, block, 0.0).sum(axis=0) / np.maximum(present.sum(axis=0), 1)


def _add_moments(block: np.ndarray, weights: np.ndarray, state: np.ndarray) -> None:
    """Do what the kernel `moments` does, for tables too small to load it."""
    values = np.ascontiguousarray(block.T)  # inner loops run over rows
    low, high = values.min(axis=1), values.max(axis=1)
    gaps = values - state[1][:, None]
    count = np.full(low.shape, weights.sum())
    if np.isnan(low).any():
        present = ~np.isnan(values)
        low, high = (np.where(present, values, end) for end in (np.inf, -np.inf))
        low, high = low.min(axis=1), high.max(axis=1)
        gaps, count = np.where(present, gaps, 0.0), present @ weights
    total = gaps @ weights
    gap = total / np.where(count > 0, count, 1.0)
    square = np.maximum(np.square(gaps, out=gaps) @ weights - gap * total, 0.0)
    pooled = np.where(state[0] + count > 0, state[0] + count, 1.0)
    state[2] += square + gap**2 * (state[0] * count / pooled)
    state[1] += gap * (count / pooled)
    state[0] += count
    state[3] = np.minimum(state[3], low)
    state[4] = np.maximum(state[4], high)


def distinct_integers(array: np.ndarray, columns: Sequence[int]) -> list[tuple[int, ...]] | None:
    """Return the distinct values of integer columns, in two passes; None where a column's range is too wide."""
    chosen = np.asarray(columns, dtype=np.int64)
    lows, highs = ([int(value) for value in ends[chosen]] for ends in _extremes(array))
    spans = [high - low + 1 for low, high in zip(lows, highs, strict=True)]
    if max(spans) > SMALL_RANGE or max(map(abs, lows)) > 2**62:
        return None
    low, sizes = np.array(lows, dtype=np.int64), np.array(spans, dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    present = np.zeros(int(sizes.sum()), dtype=bool)
    if array.size > LARGE:
        from peerbayes.data import moment_kernels

        moment_kernels.mark(array, chosen, low, starts, present)
    else:
        rows = max(64, PLAIN_ENTRIES // chosen.size)
        for start in range(0, array.shape[0], rows):
            present[array[start : start + rows, chosen].astype(np.int64) + (starts - low)] = True
    return [
        tuple((np.flatnonzero(present[start : start + size]) + bottom).tolist())
        for start, size, bottom in zip(starts, sizes, low, strict=True)
    ]


def _extremes(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest value of each column: [n, D] -> two [D]. Rows are joined for longer loops."""
    rows, width = array.shape
    joined = max(1, LONG_LOOP // width)
    folded = rows - rows % joined if array.flags.c_contiguous else 0
    if not folded:
        return array.min(axis=0), array.max(axis=0)
    long = array[:folded].reshape(-1, joined * width)
    low, high = (
        np.concatenate([end(axis=0).reshape(joined, width), array[folded:]]) for end in (long.min, long.max)
    )
    return low.min(axis=0), high.max(axis=0)
