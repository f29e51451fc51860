"""What every family shares: the class count, the one-hot block of discrete columns, and the protocol.

A family is hyper-parameters and two pure functions, φ (`features`) and θ (`weights`). Its features are

    φ(x) = [ 1 | dense(continuous columns) | one-hots of the discrete columns ]        K in all

θ is total (finite for any real S) and homogeneous (θ(aS) = θ(S), a > 0): calibration pushes counts and
variances below zero, and Theorem 1 of the paper needs the scale of S not to matter. Every guard is therefore
relative to S itself: see `count_floor` and `variance_floor`. `floored` counts how often they act.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from array_api_compat import array_namespace, device
from scipy.sparse import csr_array

from peerbayes.core import Array

# Means are kept within this many standardised units. Real means are below √m; without a limit, a count near
# zero beside a large first moment overflows.
MEAN_LIMIT = 1e6

# The least a count may be beside the largest entry of S: its inverse is still finite in float32.
TINY = 1e-30

# Features of a row for each that is not zero, above which Φ is held without its zeros.
WIDE = 8

LOG_2PI = math.log(2 * math.pi)


class Rows(NamedTuple):
    """Encoded rows: what a schema makes of a table, and a family's φ takes."""

    values: Array  # [..., n, Dc] continuous columns, standardised; NaN is missing
    codes: Array  # [..., n, Dd] discrete columns, index of the category; negative is missing


class Counts(NamedTuple):
    """S divided by its largest entry, and the guarded class counts."""

    stats: Array  # [..., C, K] S / max|S|
    floor: Array  # [..., 1] the least count of a class
    classes: Array  # [..., C] guarded class counts
    log_prior: Array  # [..., C] log p(c)

    def lacking(self, count: Array) -> Array:
        """The rows of mean 0 and variance 1 that fill a count up to the floor: [..., C] or [..., C, d]."""
        xp = array_namespace(count)
        floor = self.floor if count.ndim == self.floor.ndim else self.floor[..., None]
        return xp.clip(floor - xp.clip(count, 0.0, None), 0.0, None)


class Move(NamedTuple):
    """How columns of one schema become those of another: other order, units and categories."""

    order: (
        np.ndarray
    )  # [Dc'] the continuous column here that becomes column k there; −1: nothing is known of it
    shift: np.ndarray  # [Dc'] z'_k = (z_order[k] − shift_k)·ratio_k
    ratio: np.ndarray  # [Dc']
    cardinalities: tuple[int, ...]  # [Dd'] categories of the discrete columns there
    columns: tuple[int, ...]  # [Dd'] the discrete column here that becomes column k there; −1: it is new
    levels: tuple[np.ndarray, ...]  # [Dd'][r] where each of its categories goes


@dataclass(frozen=True, kw_only=True)
class Family(ABC):
    """Hyper-parameters and the pure functions φ and θ. `continuous` and `cardinalities` are the layout."""

    name: ClassVar[str]
    marks_missing: ClassVar[bool] = False
    """Whether φ has a layout that says which continuous values are missing; other families complete them."""
    plain_cells: ClassVar[bool] = True
    """Whether the dense features are followed by one-hots of the discrete columns, one after the other, and no more:
    the kernels of `passes` know these only."""
    calibrated_floor: ClassVar[float] = 0.05
    """The variance floor while calibrating, unless somebody says otherwise."""
    calibrated_shrinkage: ClassVar[float] = 0.0
    """Rows of an identity covariance while calibrating, for families that shrink."""

    continuous: int = 0
    """Dc, the number of continuous columns."""
    cardinalities: tuple[int, ...] = ()
    """The number of categories of each discrete column."""
    count_floor: float = 1e-30
    """A class count is at least this share of N/C, a cell of a discrete column of N/(C·r): never zero."""
    variance_floor: float = 1e-9
    """The least variance (naive Bayes) or eigenvalue (QDA, LDA), in standardised units."""

    # --- φ ---------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def dense_size(self) -> int:
        """How many features come before the one-hots: the 1 and those of the continuous columns."""

    @abstractmethod
    def dense(self, values: Array) -> Array:
        """The features of the continuous columns with their leading 1: [..., n, Dc] -> [..., n, dense_size]."""

    def layout(self) -> dict[str, Any]:
        """What decides the places of the features, as plain values."""
        return {"continuous": self.continuous, "cardinalities": list(self.cardinalities)}

    @property
    def size(self) -> int:
        """K."""
        return self.dense_size + sum(self.cardinalities)

    def features(self, rows: Rows) -> Array:
        """Φ: [..., n, Dc], [..., n, Dd] -> [..., n, K]."""
        dense = self.dense(rows.values)
        if not self.cardinalities:
            return dense
        xp = array_namespace(dense)
        column, level = (beside(rows.codes, index) for index in self._cells)
        cells = xp.take(rows.codes, column, axis=-1) == level
        return xp.concat([dense, xp.astype(cells, dense.dtype)], axis=-1)

    def incomplete(self, rows: Rows) -> np.ndarray:
        """Which rows φ alone cannot take, because of what is missing in them; see `completion`: [..., n], in NumPy."""
        if self.marks_missing:
            return np.zeros(rows.values.shape[:-1], dtype=bool)
        return np.isnan(rows.values).any(axis=-1)

    def entries(self, rows: Rows) -> tuple[np.ndarray, np.ndarray | None]:
        """What φ holds beside the dense features: places [n, E] and values [n, E], or None for ones.

        A place of K is nowhere: the value is missing.
        """
        places = np.where(rows.codes < 0, self.size, rows.codes + (self.dense_size + self.offsets))
        return places.astype(np.int64, copy=False), None

    def sparse(self, rows: Rows) -> csr_array:
        """Φ [n, K] without its zeros, in NumPy: a column of many categories costs one number a row."""
        dense = np.asarray(self.dense(rows.values))
        places, values = self.entries(rows)
        ahead = np.broadcast_to(np.arange(self.dense_size), dense.shape)
        columns = np.concatenate([ahead, places], axis=1)
        values = np.ones(places.shape) if values is None else values
        content = np.concatenate([dense, values], axis=1)
        known = columns < self.size
        ends = np.concatenate([[0], np.cumsum(known.sum(axis=1))])
        return csr_array((content[known], columns[known], ends), shape=(len(dense), self.size))

    @property
    def filled(self) -> int:
        """How many features of a row are not zero by construction."""
        return self.dense_size + len(self.cardinalities)

    @property
    def wide(self) -> bool:
        """Whether Φ is mostly zeros, by construction, and is held without them."""
        return self.size > WIDE * self.filled

    @cached_property
    def _cells(self) -> tuple[np.ndarray, np.ndarray]:
        """For each one-hot: its discrete column, and the category it stands for."""
        sizes = np.asarray(self.cardinalities, dtype=np.int64)
        level = np.concatenate([np.arange(size) for size in sizes]) if sizes.size else np.zeros(0, np.int64)
        return np.repeat(np.arange(sizes.size), sizes), level

    @cached_property
    def offsets(self) -> np.ndarray:
        """Where each discrete column's cells start, counted from the first one-hot: [Dd]."""
        return np.concatenate([[0], np.cumsum(self.cardinalities)]).astype(np.int64)[:-1]

    # --- θ ---------------------------------------------------------------------------------------------

    @abstractmethod
    def weights(self, stats: Array) -> Array:
        """W = θ(S): [..., C, K] -> [..., C, K]."""

    def floored(self, stats: Array) -> Array:
        """How many parameters of θ(S) a guard had to hold: [..., C, K] -> [...]."""
        return self.floored_counts(self.counts(stats))

    # --- priors and units ------------------------------------------------------------------------------

    @abstractmethod
    def uniform_moments(self) -> np.ndarray:
        """Dense features of one row of a class whose columns are standard normal: [dense_size]."""

    def uniform(self, classes: int, mass: float = 1.0) -> np.ndarray:
        """The paper's start: equal classes, equal cells, mean 0 and variance 1; `mass` rows in all. [C, K]."""
        cells = [np.full(size, 1.0 / size) for size in self.cardinalities]
        row = np.concatenate([self.uniform_moments(), *cells])
        return np.tile(row * (mass / classes), (classes, 1))

    def counted(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each feature: where the count that its mean is over is (0: all rows); whether it is a square. Two [K]."""
        squares = np.zeros(self.size, dtype=bool)
        squares[1 : self.dense_size] = self.uniform_moments()[1:] != 0
        return np.zeros(self.size, dtype=np.int64), squares

    def smoothing(self, classes: int, alpha: float) -> np.ndarray:
        """The conjugate prior of Laplace smoothing: `alpha` rows in every cell and nowhere else. [C, K]."""
        prior = np.zeros((classes, self.size))
        prior[:, self.dense_size :] = alpha
        return prior

    def transformed(
        self, dense: np.ndarray, order: np.ndarray, shift: np.ndarray, ratio: np.ndarray
    ) -> np.ndarray:
        """Dense statistics of other columns in other units: target column k is z'_k = (z_order[k] − shift_k)·ratio_k.

        [C, dense] -> [C, dense']. Exact, since φ(z') is linear in φ(z). An order of −1 is a column of which nothing
        is known.
        """
        raise NotImplementedError(f"{self.name} cannot be expressed in other units: agree on a schema first")

    def moved(self, stats: np.ndarray, move: Move) -> tuple[Self, np.ndarray]:
        """The family for other columns, and S in it, exactly: [C, K] -> [C, K']."""
        family = replace(self, continuous=move.order.size, cardinalities=move.cardinalities)
        values = np.zeros((len(stats), family.size))
        dense = stats[:, : self.dense_size]
        values[:, : family.dense_size] = self.transformed(dense, move.order, move.shift, move.ratio)
        for target, (column, levels) in enumerate(zip(move.columns, move.levels, strict=True)):
            if column >= 0:
                begin = self.dense_size + int(self.offsets[column])
                cells = stats[:, begin : begin + self.cardinalities[column]]
                values[:, family.dense_size + int(family.offsets[target]) + levels] = cells
        return family, values

    # --- reading a model -------------------------------------------------------------------------------

    def parameters(self, stats: Array) -> Any:
        """The readable parameters behind θ(S): prior, means, variances or covariances, cell probabilities."""
        raise NotImplementedError(f"{self.name} has no readable parameters")

    def contributions(self, stats: np.ndarray, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """log p(x, c) taken apart: a baseline [C] and a term per column [n, C, Dc + Dd]; they add up to it."""
        raise NotImplementedError(f"{self.name} cannot be taken apart by columns")

    def sample(self, stats: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Rows:
        """One synthetic row for each class index in `labels`."""
        raise NotImplementedError(f"{self.name} cannot draw rows")

    # --- shared pieces ---------------------------------------------------------------------------------

    def counts(self, stats: Array) -> Counts:
        """Normalise S and guard the class counts. N = Σ_c max(S_c0, 0) is conserved by calibration."""
        xp = array_namespace(stats)
        if stats.shape[-1] != self.size:
            raise ValueError(
                f"statistics have {stats.shape[-1]} features per class, this {self.name} family has {self.size} "
                f"({self.continuous} continuous columns, {len(self.cardinalities)} discrete ones)"
            )
        top = xp.max(xp.abs(stats), axis=(-2, -1), keepdims=True)
        unit = stats / xp.where(top > 0, top, xp.ones_like(top))
        count = unit[..., 0]
        total = xp.sum(xp.clip(count, 0.0, None), axis=-1, keepdims=True)
        floor = xp.clip(total * (self.count_floor / stats.shape[-2]), TINY, None)
        classes = xp.maximum(count, floor)
        return Counts(unit, floor, classes, xp.log(classes / xp.sum(classes, axis=-1, keepdims=True)))

    @cached_property
    def _groups(self) -> tuple[list[tuple[int, np.ndarray]], np.ndarray]:
        """Cells by the size of their column, so that columns of one size are normalised together.

        (size, its cells in order) for each size, and where each cell is when the groups are put side by side.
        """
        column, _ = self._cells
        sizes = np.asarray(self.cardinalities, dtype=np.int64)
        groups = [(int(size), np.flatnonzero(sizes[column] == size)) for size in np.unique(sizes)]
        together = np.concatenate([cells for _, cells in groups]) if groups else np.zeros(0, np.int64)
        return groups, np.argsort(together)

    def _cell_floor(self, counts: Counts) -> Array:
        """The least a cell may hold: its column's even share of a class at the count floor. [..., 1, cells]."""
        xp = array_namespace(counts.stats)
        column, _ = self._cells
        sizes = beside(counts.stats, np.asarray(self.cardinalities, dtype=float)[column], counts.stats.dtype)
        return xp.clip(counts.floor[..., None] / sizes, TINY, None)

    def tabled(self) -> list[tuple[slice, tuple[int, ...]]]:
        """Which features are counts of one discrete column's values, and the discrete columns that they need."""
        begins = self.dense_size + np.append(self.offsets, sum(self.cardinalities))
        return [(slice(int(begins[k]), int(begins[k + 1])), (k,)) for k in range(len(self.cardinalities))]

    def log_cells(self, counts: Counts) -> Array:
        """log p(x_j = k | c), normalised within each discrete column: [..., C, cells]."""
        xp = array_namespace(counts.stats)
        cells = xp.maximum(counts.stats[..., self.dense_size :], self._cell_floor(counts))
        groups, places = self._groups
        parts = []
        for size, group in groups:
            shape = (*cells.shape[:-1], group.size // size, size)
            block = xp.reshape(xp.take(cells, beside(cells, group), axis=-1), shape)
            block = xp.log(block) - xp.log(xp.sum(block, axis=-1, keepdims=True))
            parts.append(xp.reshape(block, (*cells.shape[:-1], group.size)))
        if not parts:
            return cells
        return xp.take(xp.concat(parts, axis=-1), beside(cells, places), axis=-1)

    def floored_counts(self, counts: Counts) -> Array:
        """How many class counts and cells are at their floor: [...]."""
        xp = array_namespace(counts.stats)
        classes = xp.sum(xp.astype(counts.stats[..., 0] < counts.floor, xp.int64), axis=-1)
        if not self.cardinalities:
            return classes
        low = counts.stats[..., self.dense_size :] < self._cell_floor(counts)
        return classes + xp.sum(xp.astype(low, xp.int64), axis=(-2, -1))

    def cell_contributions(self, log_cells: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Each discrete column's term of log p(x, c); a missing value contributes nothing: [n, C, Dd]."""
        cell = np.maximum(codes, 0) + self.offsets
        return np.where((codes >= 0)[:, None, :], np.swapaxes(log_cells[:, cell], 0, 1), 0.0)

    def _sample_codes(
        self, log_cells: np.ndarray, labels: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """A category per row and discrete column, drawn by inverting the cumulative probabilities: [n, Dd]."""
        codes = np.empty((labels.size, len(self.cardinalities)), dtype=np.int32)
        for column, (start, size) in enumerate(zip(self.offsets, self.cardinalities, strict=True)):
            cumulative = np.cumsum(np.exp(log_cells[:, start : start + size]), axis=1)
            draws = rng.random(labels.size) * cumulative[labels, -1]
            codes[:, column] = np.sum(draws[:, None] >= cumulative[labels], axis=1)
        return codes


def here(array: Array) -> np.ndarray:
    """An array of any library as NumPy's."""
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)


def beside(array: Array, values: np.ndarray, dtype: Any = None) -> Array:
    """`values` as an array of the library and on the device of `array`."""
    xp = array_namespace(array)
    return xp.asarray(values if dtype is None else values.astype(float), dtype=dtype, device=device(array))
