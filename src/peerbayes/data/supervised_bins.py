"""Edges by class: neighbouring cells of a column are merged unless their classes differ by more than chance.

The rule is that of Fayyad and Irani (1993). Between two cells of n rows with entropy H of the classes, a cut into parts
of n₁ and n₂ rows is accepted where it shortens the description of the classes by more than it costs itself:

    H − (n₁H₁ + n₂H₂)/n > (log₂(n − 1) + log₂(3^k − 2) − kH + k₁H₁ + k₂H₂)/n        k: classes that occur

It needs how many rows of each class lie in each cell, and no more, so that owners of rows add these counts up.
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from peerbayes.data.bins import cell_of, edges_of

# Cells that are merged hold equally many rows. There are as many as show where a rare value ends: of ten rows in a
# hundred, in steps of one in a thousand. With many classes there are fewer, so that a table has 8,192 counts.
FINEST, COARSEST, COUNTS = 1024, 64, 8192

# The most bins of a column: more are not read by anybody, and tables of pairs grow with their square.
MOST_BINS = 64


def fine_bins(classes: int) -> int:
    """Return how many cells are merged, for so many classes."""
    return min(FINEST, max(COARSEST, COUNTS // max(classes, 1)))


def class_counts(
    cells: np.ndarray, labels: np.ndarray, shape: tuple[int, int], weights: np.ndarray | None = None
) -> np.ndarray:
    """Return the rows, or their weight, in each cell and class: cells [n], labels [n] -> [m, C].

    A row without a cell or a class, −1, does not count.
    """
    counted = (cells >= 0) & (labels >= 0)
    joint = cells[counted].astype(np.int64) * shape[1] + labels[counted]
    counts = np.bincount(joint, None if weights is None else weights[counted], minlength=shape[0] * shape[1])
    return counts.reshape(shape).astype(np.float64)


def cuts_by_class(counts: np.ndarray, most: int = MOST_BINS) -> np.ndarray:
    """Return after which of m cells to cut, from the rows of each class in them: [m, C] -> [< most], rising.

    The cut that shortens the description most comes first, and cuts of its two parts after it.
    """
    below = np.concatenate([np.zeros((1, counts.shape[1])), np.cumsum(counts, axis=0)])
    cuts: list[int] = []
    open_cuts = [_best(below, 0, len(counts))]
    while open_cuts and len(cuts) < most - 1:
        gain, cut, start, end = heapq.heappop(open_cuts)
        if gain >= 0:  # of all that are open, none is worth it
            break
        cuts.append(cut - 1)
        heapq.heappush(open_cuts, _best(below, start, cut))
        heapq.heappush(open_cuts, _best(below, cut, end))
    return np.array(sorted(cuts), dtype=np.int64)


def edges_by_class(
    values: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
) -> tuple[float, ...]:
    """Return the edges of a column's present values [n] whose rows have these classes [n]; −1: unknown."""
    classes = int(labels.max(initial=0)) + 1
    edges = edges_of(values, weights, fine_bins(classes))
    counts = class_counts(cell_of(values, np.array(edges)), labels, (len(edges) + 1, classes), weights)
    return tuple(edges[cut] for cut in cuts_by_class(counts))


def _best(below: np.ndarray, start: int, end: int) -> tuple[float, int, int, int]:
    """Return the best cut of the cells from `start` to `end`: minus the bits it saves beyond its cost, and where."""
    inside = below[end] - below[start]
    rows = float(inside.sum())
    if end - start < 2 or rows <= 2:
        return 0.0, end, start, end
    left = below[start + 1 : end] - below[start]
    right = inside - left
    bits = _bits(left) + _bits(right)
    cut = int(bits.argmin())
    sides = inside, left[cut], right[cut]
    if not all(side.any() for side in sides):
        return 0.0, end, start, end
    k, k_left, k_right = (np.count_nonzero(side > 0) for side in sides)
    entropy, of_left, of_right = (float(_bits(side[None])[0]) / float(side.sum()) for side in sides)
    # log₂(3^k − 2), without a power that overflows
    choices = k * math.log2(3) + math.log1p(-2 * 3.0**-k) / math.log(2)
    cost = math.log2(rows - 1) + choices - k * entropy + k_left * of_left + k_right * of_right
    return -(rows * entropy - float(bits[cut]) - cost), start + 1 + cut, start, end


def _bits(counts: np.ndarray) -> np.ndarray:
    """Return n·H of the classes in each set of rows, in bits: [m, C] -> [m]."""
    rows = counts.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(counts > 0, counts * np.log2(rows / counts), 0.0)
    return terms.sum(axis=1)
