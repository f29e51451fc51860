"""One release: coordinates that are clipped, the exact sum, discrete noise, the projection."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import qr
from scipy.sparse import csr_array

from peerbayes.model.families import BayesNet, Family, Rows
from peerbayes.privacy.noise import Source, discrete_gaussian

# --- the coordinates that rows are clipped and noise is added in: h, a fixed invertible linear map of φ
#     h_0 = 1        h_k = φ_k − c_k·φ_0        h_k = (φ_k − φ_o)/√2  for the square of a column present in o
#
# c is the mean of φ at the uniform start. There h is 0 but for counts, and its entries have about the same variance,
# so that noise of one size suits all: rows are short in h where they are long in φ (for naive Bayes, ‖h‖² is on
# average 1 + 2d + Σ(1 − 1/r_j)). A missing value adds nothing to φ, and so nothing to a release mapped back to φ.


@dataclass(frozen=True, eq=False)
class Coordinates:
    """The map between φ of a family and h."""

    family: Family

    @cached_property
    def centre(self) -> np.ndarray:
        """Return c, the mean of φ at the uniform start: [K]."""
        return self.family.uniform(1, 1.0)[0]

    @cached_property
    def _counted(self) -> tuple[np.ndarray, np.ndarray]:
        return self.family.counted()

    @cached_property
    def _squares(self) -> np.ndarray:
        """Return the indices of the squares."""
        return np.flatnonzero(self._counted[1])

    @cached_property
    def _others(self) -> np.ndarray:
        """Return c, with 0 for squares and for the leading 1: [K]."""
        others = np.where(self._counted[1], 0.0, self.centre)
        others[0] = 0.0
        return others

    def to(self, stats: np.ndarray) -> np.ndarray:
        """Return φ or statistics in the coordinates h: [..., K] -> [..., K]."""
        moved = stats - self._others * stats[..., :1]
        over = self._counted[0][self._squares]
        moved[..., self._squares] = (stats[..., self._squares] - stats[..., over]) * np.sqrt(0.5)
        return moved

    def back(self, moved: np.ndarray) -> np.ndarray:
        """Return h, or a release in h, as statistics: [..., K] -> [..., K]."""
        stats = moved + self._others * moved[..., :1]
        over = self._counted[0][self._squares]
        stats[..., self._squares] = moved[..., self._squares] * np.sqrt(2.0) + stats[..., over]
        return stats

    @cached_property
    def length(self) -> float:
        """Return B, the root of the mean of ‖h‖² over rows of the uniform start.

        A count that is 1 with probability c contributes c(1 − c); any other entry, whose variance is 1 where its own
        count is 1, contributes the probability of that. The leading 1 contributes 1.
        """
        over, squares = self._counted
        counts = (self.centre > 0) & ~squares
        variances = np.where(counts, self.centre * (1 - self.centre), self.centre[over])
        return float(np.sqrt(1.0 + variances[1:].sum()))

    @cached_property
    def stretch(self) -> float:
        """Return the largest Σw² of the weights w by which `back` makes an entry of φ of entries of h."""
        squared = 1.0 + self._others**2
        squared[self._squares] = 2.0 + squared[self._counted[0][self._squares]]
        return float(squared.max())


# --- π: the projection on the linear constraints that every residual satisfies, applied to noise as well
# Residuals sum to zero over classes. And features are redundant: the cells of a discrete column sum to the class
# count, and tables of a Bayesian network that share columns agree on them. Π projects orthogonally, in the
# coordinates h, on what satisfies all of these. It is post-processing, so it costs no privacy, and it removes noise:
# a share 1/C, and one in r of a column of r cells.

# Features of a Bayesian network up to which tables are made consistent with each other; beyond, each with the class
# count only: the matrix that does it has up to K² entries.
MOST_FEATURES = 4096

# The relative size below which a direction of the pivoted QR depends on the others.
DEPENDENT = 1e-9


@dataclass(frozen=True, eq=False)
class Projection:
    """Π in the coordinates h."""

    normals: Any  # [K, r] orthonormal directions in which a residual is 0; sparse where possible

    def __call__(self, moved: np.ndarray, classes: bool = True) -> np.ndarray:
        """Return the projection: [..., C, K] -> [..., C, K]. `classes`: class sums are zero, as those of residuals."""
        if classes:
            moved = moved - moved.mean(axis=-2, keepdims=True)
        if self.normals.shape[1] == 0:
            return moved
        flat = moved.reshape(-1, moved.shape[-1])
        return moved - ((flat @ self.normals) @ self.normals.T).reshape(moved.shape)


def projection(coordinates: Coordinates, never_missing: np.ndarray | None = None) -> Projection:
    """Return Π of a family; `never_missing` [Dd] says which discrete columns every row has (None: all of them).

    Where a column may be missing, its cells need not sum to the class count. This must be a fact about the network,
    not about one peer's rows.
    """
    family = coordinates.family
    complete = np.ones(len(family.cardinalities), dtype=bool) if never_missing is None else never_missing
    totals = _totals(family, complete)
    agreements = _agreements(family) if isinstance(family, BayesNet) and family.size <= MOST_FEATURES else []
    if not agreements:
        return Projection(totals)
    # a·φ(h) = 0: `back` is linear, so it maps the unit vectors to the rows of its matrix
    moved = np.concatenate(agreements) @ coordinates.back(np.eye(family.size)).T
    basis, triangle, _ = qr(moved.T, mode="economic", pivoting=True)
    size = np.abs(np.diagonal(triangle))
    return Projection(basis[:, size > DEPENDENT * size[0]])


def _totals(family: Family, complete: np.ndarray) -> csr_array:
    """Return the normals of the table sums, which are 0 in h since c of a table sums to 1: orthonormal [K, tables]."""
    tables = [cells for cells, columns in family.tabled() if complete[list(columns)].all()]
    sizes = [cells.stop - cells.start for cells in tables]
    indices = [index for cells in tables for index in range(cells.start, cells.stop)]
    values = np.repeat(1.0 / np.sqrt(np.array(sizes, dtype=float)), sizes)
    table_indices = np.repeat(np.arange(len(tables)), sizes)
    return csr_array(
        (values, (np.asarray(indices, dtype=np.int64), table_indices)), shape=(family.size, len(tables))
    )


def _agreements(family: BayesNet) -> list[np.ndarray]:
    """Return the constraints that tables of one product agree on the discrete columns they share: each [., K]."""
    tables: dict[tuple[int, ...], list[tuple[tuple[int, ...], np.ndarray]]] = defaultdict(list)
    for product, discrete, indices in _tables(family):
        tables[product].append((discrete, indices))
    constraints = []
    for same_product in tables.values():
        for (first, indices), (second, others) in itertools.combinations(same_product, 2):
            shared = tuple(sorted(set(first) & set(second)))
            rows = _marginals(indices, first, shared, family.size)
            constraints.append(rows - _marginals(others, second, shared, family.size))
    return constraints


def _tables(family: BayesNet) -> list[tuple[tuple[int, ...], tuple[int, ...], np.ndarray]]:
    """Return (continuous columns multiplied, discrete columns counted by, feature indices: an axis for each) tuples."""
    tables: list[tuple[tuple[int, ...], tuple[int, ...], np.ndarray]] = [((), (), np.zeros((), np.int64))]
    for k, i in enumerate(family.singles):
        tables.append(((i,), (), np.array(1 + k)))
    for k, pair in enumerate(family.products):
        tables.append((pair, (), np.array(1 + len(family.singles) + k)))
    for column, offset, configurations, entries in family.blocks:
        linear, discrete = family.split(column)
        sizes = tuple(family.cardinalities[parent] for parent in discrete)
        if column >= family.continuous:
            indices = offset + np.arange(configurations * entries).reshape(*sizes, entries)
            tables.append(((), (*discrete, column - family.continuous), indices))
            continue
        monomials = [(), (column,), *((parent,) for parent in linear)]
        for k, (left, right) in enumerate(zip(*np.triu_indices(len(monomials)), strict=True)):
            indices = offset + k + entries * np.arange(configurations).reshape(sizes)
            tables.append((tuple(sorted((*monomials[left], *monomials[right]))), discrete, indices))
    return tables


def _marginals(
    indices: np.ndarray, columns: tuple[int, ...], shared: tuple[int, ...], size: int
) -> np.ndarray:
    """Return rows that sum a table's cells for each value of the shared columns: [values, K]."""
    ordered = np.moveaxis(indices, [columns.index(column) for column in shared], range(len(shared)))
    values = int(np.prod(ordered.shape[: len(shared)], dtype=np.int64))
    rows = np.zeros((values, size))
    np.add.at(rows, (np.arange(values)[:, None], ordered.reshape(values, -1)), 1.0)
    return rows


# --- one round's release: rows clipped, summed exactly, noise added, projected
#     q_i = e_y − p_i        w_i = min(1, G/(‖q_i‖·‖h(x_i)‖))        R̃ = Π(Σ_i w_i q_i h(x_i)ᵀ + noise)
#
# Adding or removing a row moves the sum by at most G in L2, whatever statistics p comes from, even crafted ones. This
# holds in integers, and not up to rounding: h(x_i) lies on a grid of 2⁻¹⁶ (finer or coarser with `bound`), w_i q_i is
# truncated towards zero on one of 2⁻²⁰, and both are small enough that float64 sums their products without any error.
# What a row adds depends on no other row, to the last bit: see `row_steps`. The noise is discrete on the grid of the
# products, 2⁻³⁶; the usual 2⁻²⁰·G would need an allowance for rounding the sum.

# Bits of w·q below 1; bits of h in all; rows whose products float64 sums exactly: 20 + 20 + 12 is below 53.
STEP_BITS, ROW_BITS, AT_ONCE = 20, 20, 1 << 12

# More rows could overflow 64 bits: 2²² · 2²⁰ · 2²⁰ is 2⁶².
MOST_ROWS = 1 << 22

# Lengths are computed in float64; a clip this much shorter cannot be exceeded.
MARGIN = 1 - 2.0**-40


@dataclass(frozen=True, eq=False)
class Mechanism:
    """The mechanism of all releases in a network: clip G, bound on values, noise σ, coordinates and projection."""

    coordinates: Coordinates
    projection: Projection
    clip: float
    """G."""
    bound: float
    """Standardised values are clipped to ±bound."""
    sigma: int
    """σ of the noise, in steps of the grid."""

    @property
    def row_bits(self) -> int:
        """Return the bits of h below 1: those that its largest entry, at most bound², leaves."""
        return ROW_BITS - math.ceil(math.log2(max(1.0, self.bound, self.bound**2)))

    @property
    def bits(self) -> int:
        """Return the bits of the grid, whose step is 2^−bits."""
        return STEP_BITS + self.row_bits

    def rows(self, family: Family, rows: Rows) -> np.ndarray:
        """Return h of rows on its grid, as whole numbers: [n, Dc], [n, Dd] -> [n, K] of float64."""
        if len(rows.values) > MOST_ROWS:
            raise ValueError(
                f"a peer has {len(rows.values):,} rows; a private one takes up to {MOST_ROWS:,}: split it into several"
            )
        bounded = Rows(np.clip(rows.values, -self.bound, self.bound), rows.codes)
        moved = np.nan_to_num(self.coordinates.to(np.asarray(family.features(bounded))))
        most = float(1 << ROW_BITS)
        return np.clip(np.rint(np.ldexp(moved, self.row_bits)), -most, most)

    def clipped(
        self,
        steps: np.ndarray,
        rows: np.ndarray,
        clip: float | None = None,
        lengths: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return Σ_i w_i q_i h_iᵀ in steps of the grid: q [n, C] within ±1, h [n, K] of `rows` -> [C, K] of int64."""
        return summed(self.cut(steps, rows, clip, lengths), rows)

    def cut(
        self,
        steps: np.ndarray,
        rows: np.ndarray,
        clip: float | None = None,
        lengths: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return w_i q_i on its grid, truncated towards zero: [n, C] -> [n, C]. ‖w_i q_i‖·‖h_i‖ ≤ G; not finite: 0.

        `lengths` are the `squares` of the rows, where they are known.
        """
        steps = np.clip(np.nan_to_num(steps, nan=0.0, posinf=0.0, neginf=0.0), -1.0, 1.0)
        lengths = squares(rows) if lengths is None else lengths
        length = np.sqrt(squares(steps) * np.ldexp(lengths, -2 * self.row_bits))
        limit = (self.clip if clip is None else clip) * MARGIN
        weight = limit / np.maximum(length, limit)
        return np.trunc(np.ldexp(weight[:, None] * steps, STEP_BITS))

    def noise(self, shape: tuple[int, ...], source: Source, sigma: int | None = None) -> np.ndarray:
        """Return discrete Gaussian noise in steps of the grid: int64 of this shape."""
        return discrete_gaussian(sigma or self.sigma, math.prod(shape), source).reshape(shape)

    def opened(self, sums: np.ndarray, classes: bool = True) -> np.ndarray:
        """Return noisy sums [..., C, K] as projected statistics. `classes`: they are residuals, which sum to zero."""
        moved = np.ldexp(sums.astype(np.float64), -self.bits)
        return self.coordinates.back(self.projection(moved, classes))

    def steps_of(self, sigma: float) -> int:
        """Return σ in steps of the grid, rounded up."""
        return math.ceil(math.ldexp(sigma, self.bits))


def summed(cut: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return Σ_i (w_i q_i) h_iᵀ of whole numbers, without any error: [n, C], [n, K] -> [C, K] of int64."""
    total = np.zeros((cut.shape[1], rows.shape[1]), dtype=np.int64)
    for first in range(0, len(rows), AT_ONCE):
        block = slice(first, first + AT_ONCE)
        total += (cut[block].T @ rows[block]).astype(np.int64)
    return total


def squares(values: np.ndarray) -> np.ndarray:
    """Return Σ_k x_k² of each row, summed in one order, so that its bits are the same in any table: [n, K] -> [n]."""
    total = np.zeros(len(values))
    for column in values.T:
        total += column * column
    return total
