"""Edges of the bins of a numeric column: equal shares of the rows, cut between values.

    cell of x = number of edges e with e ≤ x          x from 0 to len(edges)

Edges depend on counts alone, so that the order of the rows, and how they are spread over tables, does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

# Bins of a column with many values. As many as boosting with explanations needs to follow a curve; ten rows of each of
# ten classes lie in a bin from 1,600 rows on.
BINS = 16

# Bins of a column whose edges are known without its rows, where noise protects these: twice as many cells have half the
# rows each, and the same noise.
FEW_BINS = 8

# Cells of a grid whose counts are added up: one such sum finds a quantile to 1/256 of the range, two to 1/65,536.
GRID = 256


def cell_of(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the bin of each value, −1 where it is missing: [n], [m] -> [n]."""
    cells = np.searchsorted(edges, values, side="right").astype(np.int32)
    cells[np.isnan(values)] = -1
    return cells


def between(low: float, high: float) -> float:
    """Return the middle of two numbers low < high; the higher one where no number lies between them."""
    middle = low / 2 + high / 2  # their sum may overflow
    return middle if middle > low else high


def cuts(counts: np.ndarray, bins: int) -> np.ndarray:
    """Return after which of m values to cut, so that about equally many rows lie in each bin: [m] -> [< bins], rising.

    The k-th cut is the one whose number of rows below is nearest to k/bins of all. There are fewer cuts where many rows
    have one value.
    """
    if counts.size <= bins:
        return np.arange(counts.size - 1)
    below = np.cumsum(counts, dtype=np.float64)
    targets = np.arange(1, bins) * below[-1]
    return _nearest(np.searchsorted(below[:-1] * bins, targets), targets, below[:-1], bins)


def _nearest(after: np.ndarray, targets: np.ndarray, below: np.ndarray, bins: int) -> np.ndarray:
    """Return the cuts whose rows below, times bins, are nearest to the targets, from the first that are not fewer."""
    after = np.minimum(after, below.size - 1)
    before = np.maximum(after - 1, 0)
    is_nearer = np.abs(targets - below[before] * bins) <= np.abs(below[after] * bins - targets)
    return np.unique(np.where(is_nearer, before, after))


def counted(values: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values in order, and the weight of the rows that have each: [n] -> [m], [m].

    Weights of equal values are added in their order, so that the order of the rows does not matter to the last bit.
    """
    if weights is None:
        ordered = np.sort(values)
    else:
        order = np.lexsort((weights, values))
        ordered, weights = values[order], weights[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: ordered.size])
    if weights is None:
        return ordered[starts], np.diff(starts, append=ordered.size).astype(np.float64)
    return ordered[starts], np.add.reduceat(weights, starts) if starts.size else np.zeros(0)


def edges_of_counts(values: np.ndarray, counts: np.ndarray, bins: int = BINS) -> tuple[float, ...]:
    """Return edges from distinct rising values [m] and their counts [m]: half-way between two neighbouring values."""
    return tuple(between(float(values[i]), float(values[i + 1])) for i in cuts(counts, bins))


def edges_of(values: np.ndarray, weights: np.ndarray | None = None, bins: int = BINS) -> tuple[float, ...]:
    """Return the edges of a column's present values [n]; one with few distinct values has a bin for each.

    Without weights, rows below a cut are whole numbers and need no counts: b·bins ≥ t where b ≥ ⌈t/bins⌉.
    """
    if weights is not None:
        return edges_of_counts(*counted(values, weights), bins)
    ordered = np.sort(values)
    below = np.flatnonzero(ordered[1:] != ordered[:-1])
    below += 1  # rows below each value but the lowest
    if below.size >= bins:
        targets = np.arange(1, bins) * ordered.size
        below = below[_nearest(np.searchsorted(below, -(-targets // bins)), targets, below, bins)]
    return tuple(between(float(ordered[i - 1]), float(ordered[i])) for i in below)


# --- edges from a mean and a deviation alone


def normal_quantiles(bins: int) -> tuple[float, ...]:
    """Return the quantiles k/bins of a standard normal distribution, to six digits, which are the same everywhere."""
    return tuple(round(NormalDist().inv_cdf(k / bins), 6) for k in range(1, bins))


def edges_of_units(mean: float, deviation: float, bins: int = FEW_BINS) -> tuple[float, ...]:
    """Return edges at the quantiles of a normal distribution; none where they would not differ."""
    edges = tuple(mean + deviation * quantile for quantile in normal_quantiles(bins))
    return edges if all(first < second for first, second in pairwise(edges)) else ()


# --- edges from sums of counts on a grid, refined once: no value leaves its table


class Grid(NamedTuple):
    """Equal cells between two numbers."""

    low: float
    high: float
    cells: int = GRID

    @property
    def lines(self) -> np.ndarray:
        """The ends of the cells: [cells + 1]."""
        share = np.arange(self.cells + 1) / self.cells
        return self.low * (1 - share) + self.high * share

    def counts(self, values: np.ndarray) -> np.ndarray:
        """Return how many present values [n] lie in each cell, those beyond the ends in the outer ones: [cells]."""
        cells = cell_of(values, self.lines[1:-1])
        return np.bincount(cells[cells >= 0], minlength=self.cells).astype(np.float64)


def finer(grid: Grid, counts: np.ndarray, bins: int = BINS) -> list[Grid]:
    """Return a grid within each cell in which a quantile lies, from the counts [cells] of a grid: at most bins − 1."""
    below, lines = np.cumsum(counts), grid.lines
    if not below.size or below[-1] <= 0:
        return []
    cells = np.unique(np.searchsorted(below * bins, np.arange(1, bins) * below[-1]))
    return [Grid(float(lines[cell]), float(lines[cell + 1]), grid.cells) for cell in cells]


def finer_counts(grid: Grid, grids: Sequence[Grid], values: np.ndarray) -> list[np.ndarray]:
    """Return how many of the present values [n] in each cell that was split lie in the cells of its finer grid."""
    cells, starts = cell_of(values, grid.lines[1:-1]), grid.lines[:-1].tolist()
    return [inside.counts(values[cells == starts.index(inside.low)]) for inside in grids]


def edges_of_grids(
    grid: Grid,
    counts: np.ndarray,
    grids: Sequence[Grid],
    finer_counts: Sequence[np.ndarray],
    bins: int = BINS,
) -> tuple[float, ...]:
    """Return edges on the lines of a grid and of the finer `grids` within its cells, from their counts.

    An edge lies in the middle of the empty cells between two that hold rows, or on the line between them. The rows on
    its wrong side are at most those of one finer cell.
    """
    inner = {inside.low: (inside, fine) for inside, fine in zip(grids, finer_counts, strict=True)}
    cells: list[tuple[float, float, float]] = []  # start, end, rows
    for start, end, count in zip(grid.lines[:-1], grid.lines[1:], counts, strict=True):
        inside, fine = inner.get(float(start), (None, None))
        if inside is None or fine is None:
            cells.append((start, end, count))
        else:
            cells += zip(inside.lines[:-1], inside.lines[1:], fine, strict=True)
    first, last, rows = np.array([cell for cell in cells if cell[2] > 0]).reshape(-1, 3).T
    return tuple(float(last[i] / 2 + first[i + 1] / 2) for i in cuts(rows, bins))
