"""The base of every family: the protocol, the class counts, and the one-hots of discrete columns.

A family is hyper-parameters and two pure functions, φ (`features`) and θ (`weights`). Its features are

    φ(x) = [ 1 | dense(continuous columns) | one-hots of the discrete columns ]        K in all

θ is total (finite for any real S) and homogeneous (θ(aS) = θ(S), a > 0): calibration pushes counts and
variances below zero, and Theorem 1 of the paper needs the scale of S not to matter. Every guard is therefore
relative to S itself: see `count_floor` and `variance_floor`. `floored` counts how often they act.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from array_api_compat import array_namespace, device
from array_api_compat import numpy as numpy_namespace
from scipy.sparse import csr_array

from peerbayes.data.schema import Schema
from peerbayes.data.table import Array, Rows
from peerbayes.errors import NotSupported, SchemaError
from peerbayes.model.families.evidence import dirichlet

# Means are clipped to this many standardised units. Real means are below √m; without a limit, a count near
# zero with a large first moment overflows.
MEAN_LIMIT = 1e6

# The least count, relative to the largest entry of S: its inverse is still finite in float32.
TINY = 1e-30

# Φ is kept sparse if it has more than this many features for each one that is not zero.
WIDE = 8

LOG_2PI = math.log(2 * math.pi)


class Counts(NamedTuple):
    """S divided by its largest entry, and the guarded class counts."""

    stats: Array  # [..., C, K] S / max|S|
    floor: Array  # [..., 1] the least count of a class
    classes: Array  # [..., C] guarded class counts
    log_prior: Array  # [..., C] log p(c)

    def lacking(self, count: Array) -> Array:
        """Return how many rows of mean 0 and variance 1 fill a count up to the floor: [..., C] or [..., C, d]."""
        floor = self.floor if count.ndim == self.floor.ndim else self.floor[..., None]
        return clipped(floor - clipped(count, 0.0), 0.0)


class Move(NamedTuple):
    """A map from the columns of one schema to those of another, with other order, units and categories."""

    order: np.ndarray  # [Dc'] the old continuous column that becomes column k; −1: it had no value
    shift: np.ndarray  # [Dc'] z'_k = (z_order[k] − shift_k)·ratio_k
    ratio: np.ndarray  # [Dc']
    cardinalities: tuple[int, ...]  # [Dd'] categories of the new discrete columns
    columns: tuple[int, ...]  # [Dd'] the old discrete column that becomes column k; −1: it is new
    levels: tuple[np.ndarray, ...]  # [Dd'][r] the new code of each old category


@dataclass(frozen=True, kw_only=True)
class Family(ABC):
    """Hyper-parameters and the pure functions φ and θ. `continuous` and `cardinalities` are the layout."""

    name: ClassVar[str]
    marks_missing: ClassVar[bool] = False
    """Whether φ has a layout that marks missing continuous values; other families complete them."""
    plain_cells: ClassVar[bool] = True
    """Whether the dense features are followed by the one-hots of the discrete columns and nothing else: only then can
    `passes` use the kernels."""
    takes: ClassVar[frozenset[str]] = frozenset({"gaussian", "cells"})
    """What columns may be in each class, by the `model` of their kind."""
    kernels: ClassVar[tuple[str, str] | None] = None
    """The functions of `kernels.block_loops` that expand dense features and add up their statistics; None: `dense`."""
    takes_crosses: ClassVar[bool] = False
    """Whether a field `crosses` says how many of the columns of cells are crosses of others."""
    linear: ClassVar[bool] = True
    """Whether log p(x, c) = ⟨W_c, φ(x)⟩; other families bring their own `log_joint` and `scorer`."""
    calibrated_floor: ClassVar[float] = 0.05
    """The default variance floor of calibration."""
    calibrated_shrinkage: ClassVar[float] = 0.0
    """The default shrinkage of calibration, in rows, for families that have one."""

    estimator: ClassVar[str] = ""
    """The scikit-learn estimator of a family of an outside package, "module:Class", imported where it is needed: peers
    do without scikit-learn. "": one is made."""

    continuous: int = 0
    """Dc, the number of continuous columns."""
    cardinalities: tuple[int, ...] = ()
    """The number of categories of each discrete column."""
    count_floor: float = 1e-30
    """A class count is at least this share of N/C, a cell of a discrete column of N/(C·r): never zero."""
    variance_floor: float = 1e-9
    """The least variance (naive Bayes) or eigenvalue (QDA, LDA), in standardised units."""
    prior_shift: tuple[float, ...] = ()
    """What is added to log p(c) of each class where a user fixed the priors; (): nothing."""

    # --- φ ---------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def dense_size(self) -> int:
        """The number of features before the one-hots: the 1 and those of the continuous columns."""

    @abstractmethod
    def dense(self, values: Array) -> Array:
        """Return the features of the continuous columns with their leading 1: [..., n, Dc] -> [..., n, dense_size]."""

    def layout(self) -> dict[str, Any]:
        """Return the settings that determine the order of the features, as plain values."""
        return {"continuous": self.continuous, "cardinalities": list(self.cardinalities)}

    @property
    def size(self) -> int:
        """K, the number of features."""
        return self.dense_size + sum(self.cardinalities)

    def features(self, rows: Rows) -> Array:
        """Return Φ: [..., n, Dc], [..., n, Dd] -> [..., n, K]."""
        dense = self.dense(rows.values)
        if not self.cardinalities:
            return dense
        xp = namespace(dense)
        column, level = (beside(rows.codes, index) for index in self._cells)
        cells = xp.take(rows.codes, column, axis=-1) == level
        return xp.concat([dense, xp.astype(cells, dense.dtype)], axis=-1)

    def incomplete(self, rows: Rows) -> np.ndarray:
        """Return which rows have missing values that φ cannot represent, in NumPy: [..., n]. See `completion`."""
        if self.marks_missing:
            return np.zeros(rows.values.shape[:-1], dtype=bool)
        missing = np.isnan(rows.values)
        return missing.any(axis=-1) if missing.any() else np.zeros(missing.shape[:-1], dtype=bool)

    def entries(self, rows: Rows) -> tuple[np.ndarray, np.ndarray | None]:
        """Return φ after the dense features: feature indices [n, E] and values [n, E], or None for ones.

        An index of K stands for no feature: the value is missing.
        """
        indices = np.where(rows.codes < 0, self.size, rows.codes + (self.dense_size + self.offsets))
        return indices.astype(np.int64, copy=False), None

    def sparse(self, rows: Rows) -> csr_array:
        """Return Φ [n, K] as a sparse NumPy matrix: a column of many categories costs one number per row."""
        dense = np.asarray(self.dense(rows.values))
        indices, values = self.entries(rows)
        dense_columns = np.broadcast_to(np.arange(self.dense_size), dense.shape)
        columns = np.concatenate([dense_columns, indices], axis=1)
        values = np.ones(indices.shape) if values is None else values
        content = np.concatenate([dense, values], axis=1)
        present = columns < self.size
        ends = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
        return csr_array((content[present], columns[present], ends), shape=(len(dense), self.size))

    @property
    def filled(self) -> int:
        """The number of features of a row that are not zero by construction."""
        return self.dense_size + len(self.cardinalities)

    @property
    def wide(self) -> bool:
        """Whether Φ is mostly zeros by construction, and therefore kept sparse."""
        return self.size > WIDE * self.filled

    @cached_property
    def _cells(self) -> tuple[np.ndarray, np.ndarray]:
        """The discrete column and the category of each one-hot."""
        sizes = np.asarray(self.cardinalities, dtype=np.int64)
        level = np.concatenate([np.arange(size) for size in sizes]) if sizes.size else np.zeros(0, np.int64)
        return np.repeat(np.arange(sizes.size), sizes), level

    @cached_property
    def offsets(self) -> np.ndarray:
        """The first cell of each discrete column, counted from the first one-hot: [Dd]."""
        return np.concatenate([[0], np.cumsum(self.cardinalities)]).astype(np.int64)[:-1]

    # --- θ ---------------------------------------------------------------------------------------------

    @abstractmethod
    def weights(self, stats: Array) -> Array:
        """Return W = θ(S): [..., C, K] -> [..., C, K]."""

    def adopted(self, stats: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return W = θ(S), [C, K] -> [C, K], and in how many directions each covariance is singular: [C] or [1].

        None: there is no covariance.
        """
        return self.weights(stats), None

    def floored(self, stats: Array) -> Array:
        """Return how many parameters of θ(S) are at a guard's limit: [..., C, K] -> [...]."""
        return self.floored_counts(self.counts(stats))

    # --- the log joint, for places that do not compute ΦWᵀ by means of their own where it is linear -------

    def log_joint(self, features: Any, weights: Array) -> Array:
        """Return log p(x, c): [..., n, K], also sparse [n, K], and W [..., C, K] -> [..., n, C]."""
        return features @ weights.mT

    def scorer(self, weights: np.ndarray) -> Callable[[Rows], np.ndarray]:
        """Return the function of rows to log p(x, c) [n, C] under W [C, K]."""
        return lambda rows: np.asarray(self.sparse(rows) @ weights.T)

    # --- priors and units ------------------------------------------------------------------------------

    @abstractmethod
    def uniform_moments(self) -> np.ndarray:
        """Return the dense features of one row of a class whose columns are standard normal: [dense_size]."""

    def uniform(self, classes: int, mass: float = 1.0) -> np.ndarray:
        """Return the paper's start: equal classes, equal cells, mean 0 and variance 1; `mass` rows in all. [C, K]."""
        cells = [np.full(size, 1.0 / size) for size in self.cardinalities]
        row = np.concatenate([self.uniform_moments(), *cells])
        return np.tile(row * (mass / classes), (classes, 1))

    def evened(self, sums: Array) -> Array:
        """Return Σφ over all rows as the `marginal` start takes it: [..., K] -> [..., K]; as it is, but for GA2M."""
        return sums

    def penalty(self, weights: Array) -> tuple[Array, Array] | None:
        """Return what calibration adds to the log loss of each row, and its gradient in W; None: nothing, but for GA2M.

        [..., C, K] -> [...], [..., C, K]
        """
        return None

    def conditioned(self, stats: np.ndarray, residual: np.ndarray) -> np.ndarray:
        """Return M·R, which is added to S in place of R where a penalty makes some directions steep: [..., C, K].

        M is linear, depends on Σ_c S_c alone, and leaves sums over classes and over the cells of a column as they are.
        """
        return residual

    def counted(self) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each feature, the index of the count that its mean is over, and whether it is a square: two [K].

        Index 0 is the count of all rows.
        """
        squares = np.zeros(self.size, dtype=bool)
        squares[1 : self.dense_size] = self.uniform_moments()[1:] != 0
        return np.zeros(self.size, dtype=np.int64), squares

    def smoothing(self, classes: int, alpha: float) -> np.ndarray:
        """Return the conjugate prior of Laplace smoothing: `alpha` rows in every cell and nowhere else. [C, K]."""
        prior = np.zeros((classes, self.size))
        prior[:, self.dense_size :] = alpha
        return prior

    def estimated_prior(
        self, stats: np.ndarray, alpha: float | str, shrinkage: float | str | None
    ) -> np.ndarray:
        """Return the prior that rows with the statistics S ask for, by its evidence: [C, K] -> [C, K].

        θ(S + prior) is the model. The prior depends on S and is a constant from then on.

        alpha      rows in every cell of a discrete column, the same in each class; "auto": estimated for each column
        shrinkage  rows of the column's own variance in every class; "auto": estimated; None: none
        """
        prior = np.zeros(stats.shape)
        prior[:, self.dense_size :] = self._cell_rows(stats) if alpha == "auto" else alpha
        if shrinkage:
            prior[:, : self.dense_size] = self.variance_prior(stats, shrinkage)
        return prior

    def variance_prior(self, stats: np.ndarray, shrinkage: float | str) -> np.ndarray:
        """Return the dense features of the prior, which keep variances from zero: [C, K] -> [C, dense_size]."""
        return np.zeros((len(stats), self.dense_size))

    def _cell_rows(self, stats: np.ndarray) -> np.ndarray:
        """Return the rows to be added to each cell, by their evidence over all classes: [cells]."""
        if not self.cardinalities:
            return np.zeros(0)
        column, _ = self._cells
        sizes = np.asarray(self.cardinalities, dtype=float)
        cells = np.clip(stats[:, self.dense_size :], 0.0, None)
        totals = np.add.reduceat(cells, self.offsets, axis=1)  # [C, Dd]
        even = np.broadcast_to(1.0 / sizes[column], cells.shape).ravel()
        group = np.broadcast_to(column, cells.shape).ravel()
        group_of_total = np.broadcast_to(np.arange(sizes.size), totals.shape).ravel()
        rows = dirichlet(cells.ravel(), even, group, totals.ravel(), group_of_total, sizes.size)
        return (rows / sizes)[column]

    def transformed(
        self, dense: np.ndarray, order: np.ndarray, shift: np.ndarray, ratio: np.ndarray
    ) -> np.ndarray:
        """Return dense statistics of other columns in other units: z'_k = (z_order[k] − shift_k)·ratio_k.

        [C, dense] -> [C, dense']. Exact, since φ(z') is linear in φ(z). An order of −1 is a column without any value.
        """
        raise NotSupported(f"{self.name} cannot be expressed in other units: agree on a schema first")

    def moved(self, stats: np.ndarray, move: Move) -> tuple[Self, np.ndarray]:
        """Return the family for other columns, and S in its layout, exactly: [C, K] -> [C, K']."""
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
        """Return the readable parameters of θ(S): prior, means, variances or covariances, cell probabilities."""
        raise NotSupported(f"{self.name} has no readable parameters; its authors can add `parameters`")

    def contributions(self, stats: np.ndarray, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return a baseline [C] and a term per column [n, C, Dc + Dd] that add up to log p(x, c)."""
        raise NotSupported(f"{self.name} has no contributions by column; its authors can add `contributions`")

    def sample(self, stats: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Rows:
        """Return one synthetic row for each class index in `labels`."""
        raise NotSupported(f"{self.name} cannot sample rows; its authors can add `sample`")

    # --- shared helpers --------------------------------------------------------------------------------

    def counts(self, stats: Array) -> Counts:
        """Normalise S and guard the class counts. N = Σ_c max(S_c0, 0) is conserved by calibration."""
        xp = namespace(stats)
        if stats.shape[-1] != self.size:
            raise ValueError(
                f"statistics have {stats.shape[-1]} features per class, this {self.name} family has {self.size} "
                f"({self.continuous} continuous columns, {len(self.cardinalities)} discrete ones)"
            )
        top = xp.max(xp.abs(stats), axis=(-2, -1), keepdims=True)
        return self.guarded_counts(stats / xp.where(top > 0, top, xp.ones_like(top)))

    def guarded_counts(self, unit: Array) -> Counts:
        """Return the guarded class counts of S, or of its first features, divided by the largest entry of S."""
        xp = namespace(unit)
        count = unit[..., 0]
        total = xp.sum(clipped(count, 0.0), axis=-1, keepdims=True)
        floor = clipped(total * (self.count_floor / unit.shape[-2]), TINY)
        classes = xp.maximum(count, floor)
        log_prior = xp.log(classes / xp.sum(classes, axis=-1, keepdims=True))
        if self.prior_shift:
            log_prior = log_prior + beside(unit, np.array(self.prior_shift), unit.dtype)
        return Counts(unit, floor, classes, log_prior)

    @cached_property
    def _groups(self) -> tuple[list[tuple[int, np.ndarray]], np.ndarray]:
        """Group cells by the size of their column, so that columns of one size are normalised together.

        (size, its cells in order) for each size, and the position of each cell in the concatenated groups.
        """
        column, _ = self._cells
        sizes = np.asarray(self.cardinalities, dtype=np.int64)
        groups = [(int(size), np.flatnonzero(sizes[column] == size)) for size in np.unique(sizes)]
        side_by_side = np.concatenate([cells for _, cells in groups]) if groups else np.zeros(0, np.int64)
        return groups, np.argsort(side_by_side)

    def _cell_floor(self, counts: Counts) -> Array:
        """Return the least count of a cell: its column's equal share of a class at the count floor. [..., 1, cells]."""
        column, _ = self._cells
        sizes = beside(counts.stats, np.asarray(self.cardinalities, dtype=float)[column], counts.stats.dtype)
        return clipped(counts.floor[..., None] / sizes, TINY)

    def tabled(self) -> list[tuple[slice, tuple[int, ...]]]:
        """Return the features that count one discrete column's values, and the discrete columns they depend on."""
        begins = self.dense_size + np.append(self.offsets, sum(self.cardinalities))
        return [(slice(int(begins[k]), int(begins[k + 1])), (k,)) for k in range(len(self.cardinalities))]

    def log_cells(self, counts: Counts) -> Array:
        """Return log p(x_j = k | c), normalised within each discrete column: [..., C, cells]."""
        if not self.cardinalities:
            return counts.stats[..., self.dense_size :]
        xp = namespace(counts.stats)
        cells = xp.maximum(counts.stats[..., self.dense_size :], self._cell_floor(counts))
        groups, positions = self._groups
        blocks = []
        for size, group in groups:
            shape = (*cells.shape[:-1], group.size // size, size)
            block = xp.reshape(xp.take(cells, beside(cells, group), axis=-1), shape)
            block = xp.log(block) - xp.log(xp.sum(block, axis=-1, keepdims=True))
            blocks.append(xp.reshape(block, (*cells.shape[:-1], group.size)))
        return xp.take(xp.concat(blocks, axis=-1), beside(cells, positions), axis=-1)

    def floored_counts(self, counts: Counts) -> Array:
        """Return how many class counts and cells are at their floor: [...]."""
        xp = namespace(counts.stats)
        classes = xp.sum(xp.astype(counts.stats[..., 0] < counts.floor, xp.int64), axis=-1)
        if not self.cardinalities:
            return classes
        low = counts.stats[..., self.dense_size :] < self._cell_floor(counts)
        return classes + xp.sum(xp.astype(low, xp.int64), axis=(-2, -1))

    def cell_contributions(self, log_cells: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Return each discrete column's term of log p(x, c), 0 for a missing value: [n, C, Dd]."""
        cell = np.maximum(codes, 0) + self.offsets
        return np.where((codes >= 0)[:, None, :], np.swapaxes(log_cells[:, cell], 0, 1), 0.0)

    def _sample_codes(
        self, log_cells: np.ndarray, labels: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Draw a category per row and discrete column by inverting the cumulative probabilities: [n, Dd]."""
        codes = np.empty((labels.size, len(self.cardinalities)), dtype=np.int32)
        for column, (start, size) in enumerate(zip(self.offsets, self.cardinalities, strict=True)):
            cumulative = np.cumsum(np.exp(log_cells[:, start : start + size]), axis=1)
            draws = rng.random(labels.size) * cumulative[labels, -1]
            codes[:, column] = np.sum(draws[:, None] >= cumulative[labels], axis=1)
        return codes


# --- the family of a schema, and its guards

# The penalty on the level of bins whose neighbours are held together: weak, for columns that hardly vary.
RIDGE = 0.1

# Floors of maximum likelihood, which never act on real data; the variance floor of calibration is the family's.
LIKELIHOOD_FLOOR, LIKELIHOOD_COUNT, CALIBRATED_COUNT = 1e-9, 1e-30, 1e-4


def laid_out(family: type[Family], schema: Schema, missing: bool) -> Family:
    """Return the family for the columns of a schema; `missing`: whether continuous values are missing anywhere."""
    for column, model in zip(schema.columns, schema.models, strict=True):
        if model not in family.takes:
            taken = "continuous" if "gaussian" in family.takes else "binned"
            raise SchemaError(
                f"column {column.name!r} is {column.kind}, which {family.name} does not take; use naive Bayes, or "
                f"another kind: kinds={{{column.name!r}: {taken!r}}}"
            )
    layout: dict[str, Any] = {"missing": missing} if family.marks_missing else {}
    if family.takes_crosses:
        layout |= {"crosses": len(schema.crosses), "penalties": penalties_of(schema)}
    if poisson := poisson_columns(schema):
        layout["poisson"] = poisson
    return family(continuous=len(schema.continuous), cardinalities=schema.cardinalities, **layout)


def penalties_of(schema: Schema) -> tuple[tuple[float, float], ...]:
    """Return how strongly the cells of each column of cells, and of each cross, are held together.

    A penalty on how far cells are from their mean, and one on how far neighbours of an ordered column are apart.
    """
    columns = [schema.columns[j] for j in schema.discrete]
    penalties = [*(column.penalty for column in columns), *(cross.penalty for cross in schema.crosses)]
    if not any(penalties):
        return ()
    of_columns = (
        (RIDGE if column.penalty else 0.0, column.penalty) if column.traits.reads_numbers else (column.penalty, 0.0)
        for column in columns
    )  # fmt: skip
    return (*of_columns, *((cross.penalty, 0.0) for cross in schema.crosses))


def poisson_columns(schema: Schema) -> tuple[tuple[int, float], ...]:
    """Return which of the dense columns are Poisson in each class, with their scale."""
    if "poisson" not in schema.models:
        return ()
    columns = enumerate(schema.columns[j] for j in schema.continuous)
    return tuple((k, column.scale) for k, column in columns if column.traits.model == "poisson")


def guarded(
    layout: Family,
    rows: float,
    calibrate: bool,
    variance_floor: float | None = None,
    count_floor: float | None = None,
    shrinkage: float | None = None,
) -> Family:
    """Return the family with floors: tiny for maximum likelihood, larger for calibration, or as given."""
    floor, count = (
        (layout.calibrated_floor, CALIBRATED_COUNT) if calibrate else (LIKELIHOOD_FLOOR, LIKELIHOOD_COUNT)
    )
    guards: dict[str, Any] = {
        "variance_floor": floor if variance_floor is None else float(variance_floor),
        "count_floor": count if count_floor is None else float(count_floor),
    }
    if hasattr(layout, "shrinkage"):
        default = layout.calibrated_shrinkage if calibrate else 0.0
        guards["shrinkage"] = (default if shrinkage is None else float(shrinkage)) / rows if rows > 0 else 0.0
    if hasattr(layout, "per_row"):
        guards["per_row"] = 1.0 / rows if guards["shrinkage"] and rows > 0 else 0.0
    return replace(layout, **guards)


# --- arrays of any library


def namespace(array: Array) -> Any:
    """Return the library of an array, as functions of the array API: that of NumPy without a search."""
    return numpy_namespace if type(array) is np.ndarray else array_namespace(array)


def here(array: Array) -> np.ndarray:
    """Return an array of any library as a NumPy array."""
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)


def clipped(array: Array, least: float, most: float | None = None) -> Array:
    """Return an array with its entries between two limits; NaN stays.

    NumPy's own functions do the same as the ones for any library in a tenth of their time, which counts where a peer
    computes θ of a few thousand numbers in every round.
    """
    if isinstance(array, np.ndarray):
        return np.maximum(array, least) if most is None else np.minimum(np.maximum(array, least), most)
    return namespace(array).clip(array, least, most)


def beside(array: Array, values: np.ndarray, dtype: Any = None) -> Array:
    """Return `values` as an array of the same library and on the same device as `array`."""
    if isinstance(array, np.ndarray):
        return values if dtype is None else values.astype(dtype)
    xp = namespace(array)
    # A copy of what may not be written to, such as indices that are kept: PyTorch warns of it.
    writable = np.require(values if dtype is None else values.astype(float), requirements="W")
    return xp.asarray(writable, dtype=dtype, device=device(array))
