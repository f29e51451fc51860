"""Compiled passes over the columns of a large numeric array: moments, and distinct integers."""

import numpy as np

from peerbayes.data.kernel_cache import njit

# Sums may be reordered and multiplications fused with additions. NaN stays NaN: it marks a missing value.
FAST = {"reassoc", "contract", "nsz", "arcp"}


@njit(cache=True, nogil=True, fastmath=FAST)
def moments(block, weights, state):
    """Add a block [b, k] to `state` [5, k]: count, mean, sum of squared deviations, low, high of each column.

    One pass over deviations from the mean so far, then the update of Chan, Golub and LeVeque: no cancellation as
    long as the mean so far is near, so the caller starts with the mean of a first block.
    """
    rows, k = block.shape
    shift, low, high = state[1].copy(), state[3].copy(), state[4].copy()
    count, total, square = np.zeros(k), np.zeros(k), np.zeros(k)
    for i in range(rows):
        w = weights[i]
        for j in range(k):
            x = block[i, j]
            present = x == x
            gap = x - shift[j] if present else 0.0
            count[j] += w if present else 0.0
            total[j] += w * gap
            square[j] += w * gap * gap
            low[j] = x if x < low[j] else low[j]
            high[j] = x if x > high[j] else high[j]
    for j in range(k):
        state[3, j], state[4, j] = low[j], high[j]
        if count[j] > 0:
            pooled = state[0, j] + count[j]
            gap = total[j] / count[j]
            square[j] = max(square[j] - gap * total[j], 0.0)
            state[2, j] += square[j] + gap * gap * (state[0, j] * count[j] / pooled)
            state[1, j] += gap * (count[j] / pooled)
            state[0, j] = pooled


@njit(cache=True, nogil=True)
def mark(block, columns, low, starts, present):
    """Set seen[starts[k] + x − low[k]] for every integer x of column k."""
    for i in range(block.shape[0]):
        for k in range(columns.size):
            present[starts[k] + block[i, columns[k]] - low[k]] = True
