"""Bayesian-network classifiers with continuous and discrete columns: conditional Gaussian, given the class.

    log p(x, c) = log p(c) + Σ_j log p(x_j | parents of j, c)

A discrete column has a table over its (discrete) parents; a continuous one is linear Gaussian in its continuous
parents, with separate coefficients for each class and each configuration d of its discrete parents:

    x_j ~ N(a + b·x_Q, q)        (a, b, q) of (c, d)

The log joint is linear in products of a column and its parents, so

    φ(x) = [ 1 | x_i | x_i² | x_i x_j of linked columns | one-hots of (parents, x_j) | one-hots of d times 1, x, xx' ]

and S holds counts and second moments, from which θ computes every table and every regression in closed form.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from array_api_compat import array_namespace, device

from peerbayes.data.table import Array, Rows
from peerbayes.model.families.base import LOG_2PI, MEAN_LIMIT, TINY, Counts, Family, Move, beside, here
from peerbayes.model.families.gaussian import floored_precision
from peerbayes.model.families.network_prior import Moments, estimated
from peerbayes.model.families.regressions import SLOPE_LIMIT, Lines
from peerbayes.model.families.structures import Parents, checked, order

# The largest correlation of a column with a parent in calibration, where noise can push it above one.
CORRELATION = 0.995


class BayesNetParameters(NamedTuple):
    """θ(S) marginalised to each column, in standardised units."""

    log_prior: Array  # [..., C]
    mean: Array  # [..., C, Dc]
    variance: Array  # [..., C, Dc]
    log_cells: Array  # [..., C, Σr] log p(x_j = k | c)


class Table(NamedTuple):
    """Discrete columns of one shape: r values each, and the same number of configurations of the parents."""

    columns: tuple[int, ...]
    cells: np.ndarray  # [G, configurations, r] indices of their counts in φ


class Regression(NamedTuple):
    """Continuous columns of one shape: equally many continuous parents and configurations of the discrete ones."""

    columns: tuple[int, ...]
    moments: np.ndarray  # [G, configurations, 2 + q, 2 + q] indices of Σuuᵀ in φ, u = (1, x_j, x_Q)


class Program(NamedTuple):
    """How the entries of a row of φ follow from its values and codes: those that are not zero by construction.

    Entry e has the index of its group's begin, which depends on codes, plus its offset; its value is the product of
    two of (1, x): index 0 is the 1.
    """

    begins: np.ndarray  # [G] the first index of each group where all its codes are 0
    link_ends: np.ndarray  # [G + 1] where the codes of each group begin and end in `columns` and `strides`
    columns: np.ndarray  # [L] a discrete column
    strides: np.ndarray  # [L] how far one category moves the group
    groups: np.ndarray  # [E]
    offsets: np.ndarray  # [E]
    left: np.ndarray  # [E]
    right: np.ndarray  # [E]


class Conditional(NamedTuple):
    """x_j ~ N(a + b·x_Q, q), per class and configuration."""

    intercept: Array  # [..., C, G, configurations]
    slopes: Array  # [..., C, G, configurations, q]
    variance: Array  # [..., C, G, configurations]
    count: Array  # [..., C, G, configurations]


@dataclass(frozen=True, kw_only=True)
class BayesNet(Family):
    """A Bayesian network of the columns for every class, all with the same parents."""

    name: ClassVar[str] = "bayes-net"
    plain_cells: ClassVar[bool] = False
    calibrated_floor: ClassVar[float] = 0.01
    calibrated_shrinkage: ClassVar[float] = 5.0

    parents: Parents = ()
    """The parents of each column, continuous ones first; () means no parents at all: naive Bayes."""
    shrinkage: float = 0.0
    """Rows of independence added to each dependence, as a share of all rows N."""

    def __post_init__(self) -> None:
        columns = self.continuous + len(self.cardinalities)
        parents = self.parents or ((),) * columns
        object.__setattr__(self, "parents", checked(parents, self.continuous, columns))

    def layout(self) -> dict[str, Any]:
        return {**super().layout(), "parents": [list(column_parents) for column_parents in self.parents]}

    # --- layout of the features -----------------------------------------------------------------------

    def split(self, column: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return a column's continuous and discrete parents, the latter numbered among the discrete columns."""
        parents = self.parents[column]
        return (
            tuple(parent for parent in parents if parent < self.continuous),
            tuple(parent - self.continuous for parent in parents if parent >= self.continuous),
        )

    def _configurations(self, discrete: tuple[int, ...]) -> int:
        """Return the number of joint values of discrete columns."""
        return math.prod(self.cardinalities[parent] for parent in discrete)

    @cached_property
    def _plain(self) -> tuple[int, ...]:
        """Continuous columns without a discrete parent."""
        return tuple(j for j in range(self.continuous) if not self.split(j)[1])

    @cached_property
    def products(self) -> list[tuple[int, int]]:
        """The pairs i ≤ j of the dense products, squares first."""
        cliques = [(j, *self.split(j)[0]) for j in self._plain]
        pairs = {tuple(sorted(pair)) for clique in cliques for pair in itertools.product(clique, clique)}
        return sorted(pairs, key=lambda pair: (pair[0] != pair[1], pair))  # type: ignore[arg-type]

    @cached_property
    def singles(self) -> tuple[int, ...]:
        """Continuous columns whose first moments are dense."""
        return tuple(sorted({i for pair in self.products for i in pair}))

    @property
    def dense_size(self) -> int:
        return 1 + len(self.singles) + len(self.products)

    @cached_property
    def blocks(self) -> list[tuple[int, int, int, int]]:
        """The blocks after the dense features: (column, offset, configurations, entries per configuration) of each."""
        blocks, offset = [], self.dense_size
        for column in range(self.continuous + len(self.cardinalities)):
            linear, discrete = self.split(column)
            if column in self._plain:
                continue
            if column >= self.continuous:
                entries = self.cardinalities[column - self.continuous]
            else:
                entries = 1 + (1 + len(linear)) + (1 + len(linear)) * (2 + len(linear)) // 2
            configurations = self._configurations(discrete)
            blocks.append((column, offset, configurations, entries))
            offset += configurations * entries
        return blocks

    @property
    def size(self) -> int:
        _, offset, configurations, entries = self.blocks[-1] if self.blocks else (0, self.dense_size, 0, 0)
        return offset + configurations * entries

    @cached_property
    def tables(self) -> list[Table]:
        """Discrete columns, grouped by shape."""
        shapes: dict[tuple[int, int], list[tuple[int, np.ndarray]]] = {}
        for column, offset, configurations, entries in self.blocks:
            if column >= self.continuous:
                cells = offset + np.arange(configurations * entries).reshape(configurations, entries)
                shapes.setdefault((configurations, entries), []).append((column, cells))
        return [
            Table(tuple(c for c, _ in group), np.stack([cells for _, cells in group]))
            for group in shapes.values()
        ]

    @cached_property
    def regressions(self) -> list[Regression]:
        """Continuous columns, grouped by shape; dense ones separate from those with discrete parents."""
        dense: dict[tuple[int, ...], int] = {(): 0}
        dense |= {(i,): 1 + offset for offset, i in enumerate(self.singles)}
        dense |= {pair: 1 + len(self.singles) + offset for offset, pair in enumerate(self.products)}
        shapes: dict[tuple[int, int, bool], list[tuple[int, np.ndarray]]] = {}
        for j in self._plain:
            u: list[tuple[int, ...]] = [(), (j,), *((p,) for p in self.split(j)[0])]
            moments = np.array([[dense[tuple(sorted(a + b))] for b in u] for a in u])[None]
            shapes.setdefault((1, len(u), True), []).append((j, moments))
        for column, offset, configurations, entries in self.blocks:
            if column < self.continuous:
                width = 2 + len(self.split(column)[0])
                moments = np.empty((configurations, width, width), dtype=np.int64)
                upper, right = np.triu_indices(width)
                for d in range(configurations):
                    moments[d, upper, right] = moments[d, right, upper] = (
                        offset + d * entries + np.arange(entries)
                    )
                shapes.setdefault((configurations, width, False), []).append((column, moments))
        return [
            Regression(tuple(c for c, _ in group), np.stack([moments for _, moments in group]))
            for group in shapes.values()
        ]

    @cached_property
    def linked(self) -> np.ndarray:
        """Columns whose missing values φ cannot represent: all but discrete ones without parents and children. [D]."""
        parents = {parent for column_parents in self.parents for parent in column_parents}
        return np.array(
            [
                j < self.continuous or bool(column_parents) or j in parents
                for j, column_parents in enumerate(self.parents)
            ],
            dtype=bool,
        )

    # --- φ ---------------------------------------------------------------------------------------------

    def incomplete(self, rows: Rows) -> np.ndarray:
        absent = rows.codes[..., self.linked[self.continuous :]] < 0
        return super().incomplete(rows) | absent.any(axis=-1)

    def dense(self, values: Array) -> Array:
        xp = array_namespace(values)
        one = xp.ones((*values.shape[:-1], 1), dtype=values.dtype, device=device(values))
        first, second = (
            beside(values, np.array([p[k] for p in self.products], dtype=np.int64)) for k in (0, 1)
        )
        singles = xp.take(values, beside(values, np.array(self.singles, dtype=np.int64)), axis=-1)
        products = xp.take(values, first, axis=-1) * xp.take(values, second, axis=-1)
        return xp.concat([one, singles, products], axis=-1)

    def tabled(self) -> list[tuple[slice, tuple[int, ...]]]:
        return [
            (
                slice(offset, offset + configurations * entries),
                (column - self.continuous, *self.split(column)[1]),
            )
            for column, offset, configurations, entries in self.blocks
            if column >= self.continuous
        ]

    @property
    def filled(self) -> int:
        return self.dense_size + sum(
            1 if column >= self.continuous else width for column, _, _, width in self.blocks
        )

    def entries(self, rows: Rows) -> tuple[np.ndarray, np.ndarray | None]:
        """Return indices and values; a row with a missing column or discrete parent has no entry in that block."""
        codes = np.asarray(rows.codes)
        cells = self._cells_of(codes)
        indices: list[np.ndarray] = []
        values: list[np.ndarray] = []
        for column, offset, _, width in self.blocks:
            if column >= self.continuous:
                break  # tables follow: see `cells`
            linear, discrete = self.split(column)
            code, present = self._configuration(codes, discrete)
            u = np.stack([np.ones(code.shape), *(rows.values[..., i] for i in (column, *linear))], axis=-1)
            upper, right = np.triu_indices(2 + len(linear))
            values.append(u[..., upper] * u[..., right])
            cell = offset + code[..., None] * width + np.arange(width)
            indices.append(np.where(present[..., None], cell, self.size))
        if not indices:
            return cells, None
        return np.concatenate([*indices, cells], axis=-1), np.concatenate(
            [*values, np.ones(cells.shape)], axis=-1
        )

    @cached_property
    def _steps(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The offset of each discrete column's table [Dd], its discrete parents [q, Dd], and their strides [q, Dd].

        Where a column has fewer parents than others, it stands for its own parent, with stride 0.
        """
        tables = [block for block in self.blocks if block[0] >= self.continuous]
        max_parents = max((len(self.split(column)[1]) for column, *_ in tables), default=0)
        parents = np.tile(np.arange(len(tables), dtype=np.int64), (max_parents, 1))
        steps = np.zeros((max_parents, len(tables)), dtype=np.int64)
        for index, (column, _, _, width) in enumerate(tables):
            step = width
            for k, parent in reversed(list(enumerate(self.split(column)[1]))):
                parents[k, index], steps[k, index] = parent, step
                step *= self.cardinalities[parent]
        return np.array([offset for _, offset, *_ in tables], dtype=np.int64), parents, steps

    def _cells_of(self, codes: np.ndarray) -> np.ndarray:
        """Return the cell of each discrete column's table that a row falls into: [..., n, Dd]."""
        begins, parents, steps = self._steps
        cells = codes + begins
        for parent, step in zip(parents, steps, strict=True):
            cells += codes[..., parent] * step
        if codes.size and codes.min() < 0:
            missing = codes < 0
            for parent in parents:
                missing = missing | (codes < 0)[..., parent]
            cells[missing] = self.size
        return cells

    @cached_property
    def program(self) -> Program:
        """The entries of a row: a group of the dense features, and one for each block after them."""
        products = [(0, 0), *((0, 1 + i) for i in self.singles), *((1 + i, 1 + j) for i, j in self.products)]
        entries = [(0, k, left, right) for k, (left, right) in enumerate(products)]
        begins, links, link_ends = [0], [], [0, 0]
        for column, offset, _, width in self.blocks:
            linear, discrete = self.split(column)
            group, stride = len(begins), width
            if column >= self.continuous:
                links.append((column - self.continuous, 1))
                products = [(0, 0)]
            else:
                u = (0, 1 + column, *(1 + parent for parent in linear))
                products = list(itertools.combinations_with_replacement(u, 2))
            for parent in reversed(discrete):
                links.append((parent, stride))
                stride *= self.cardinalities[parent]
            entries += [(group, k, left, right) for k, (left, right) in enumerate(products)]
            begins.append(offset)
            link_ends.append(len(links))
        columns, strides = np.array(links, dtype=np.int64).reshape(-1, 2).T.copy()
        return Program(np.array(begins), np.array(link_ends), columns, strides, *np.array(entries).T.copy())

    @cached_property
    def simple_regressions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Regressions on one continuous parent p or none: where those of each column end, their moments, and if p is.

        [R + 1]; [M, 6] the features Σ1, Σx_j, Σx_j², Σx_p, Σx_p², Σx_j x_p of each configuration; [R].
        """
        corners = ((0, 0), (0, 1), (1, 1), (0, 2), (2, 2), (1, 2))
        ends, moments, linear = [0], [np.zeros((0, 6), dtype=np.int64)], []
        for regression in self.regressions:
            width = regression.moments.shape[-1]
            if width > 3:
                continue
            for of_column in regression.moments:
                moments.append(np.stack([of_column[:, i % width, j % width] for i, j in corners], axis=1))
                ends.append(ends[-1] + len(of_column))
                linear.append(width == 3)
        return np.array(ends), np.concatenate(moments), np.array(linear, dtype=bool)

    def other_regressions(self, counts: Counts) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the features and the natural weights of regressions on more parents: [terms], [C, terms]."""
        for regression in self.regressions:
            if regression.moments.shape[-1] > 3:
                natural = _natural(self._conditional(counts, regression))
                yield _upper(regression.moments).ravel(), natural.reshape(len(natural), -1)

    @property
    def correlation(self) -> float:
        """The largest correlation of a column with a parent."""
        return CORRELATION if self.shrinkage else 1.0

    @cached_property
    def head_size(self) -> int:
        """The number of features before the tables."""
        return min((int(table.cells.min()) for table in self.tables), default=self.size)

    @cached_property
    def table_shapes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The first feature of each table, its configurations and its values: three [Dd]."""
        tables = [block[1:] for block in self.blocks if block[0] >= self.continuous]
        begins, configurations, sizes = np.array(tables, dtype=np.int64).reshape(-1, 3).T.copy()
        return begins, configurations, sizes

    def features(self, rows: Rows) -> Array:
        dense = self.dense(rows.values)
        if not self.blocks:
            return dense
        xp = array_namespace(dense)
        indices, values = self.entries(Rows(here(rows.values), here(rows.codes)))
        cells = np.zeros((*indices.shape[:-1], self.size + 1 - self.dense_size))  # the last: missing values
        np.put_along_axis(cells, indices - self.dense_size, 1.0 if values is None else values, axis=-1)
        return xp.concat([dense, beside(dense, cells[..., :-1], dense.dtype)], axis=-1)

    # --- θ ---------------------------------------------------------------------------------------------

    def weights(self, stats: Array) -> Array:
        xp = array_namespace(stats)
        counts = self.counts(stats)
        dense_terms: list[Array] = []
        block_terms: list[Array] = []
        for regression in self.regressions:
            if self._is_line(regression):
                continue
            natural = _natural(self._conditional(counts, regression))
            flat = xp.reshape(natural, (*stats.shape[:-1], math.prod(natural.shape[len(stats.shape) - 1 :])))
            (dense_terms if self._is_dense(regression) else block_terms).append(flat)
        for table in self.tables:
            flat = self._log_table(counts, table)
            block_terms.append(xp.reshape(flat, (*stats.shape[:-1], table.cells.size)))
        dense = self.lines.weights(counts, self._extra(counts), max(self.variance_floor, TINY))
        if dense_terms:
            dense = dense + xp.concat(dense_terms, axis=-1) @ beside(stats, self._summation, stats.dtype)
        if not block_terms:
            return dense
        side_by_side = xp.concat([dense, *block_terms], axis=-1)
        return xp.take(side_by_side, beside(stats, self._feature_order), axis=-1)

    def _is_dense(self, regression: Regression) -> bool:
        """Whether the columns have no discrete parent."""
        return regression.columns[0] in self._plain

    def _is_line(self, regression: Regression) -> bool:
        """Whether the columns have no parent, or one continuous parent: see `lines`."""
        return self._is_dense(regression) and regression.moments.shape[-1] <= 3

    @cached_property
    def lines(self) -> Lines:
        """Columns with no parent or one continuous parent; the dense features are singles, squares, other products."""
        singles = {column: index for index, column in enumerate(self.singles)}
        products = {pair: index for index, pair in enumerate(self.products[len(singles) :])}
        columns = [
            column
            for regression in self.regressions
            if self._is_line(regression)
            for column in regression.columns
        ]
        links = [(column, *self.split(column)[0]) for column in columns]
        roots = [singles[link[0]] for link in links if len(link) == 1]
        links = [link for link in links if len(link) == 2]
        indices = [(singles[j], singles[p], products[min(j, p), max(j, p)]) for j, p in links]
        children, parents, product = np.array(indices, dtype=np.int64).reshape(-1, 3).T
        root_columns = np.array(roots, dtype=np.int64)
        return Lines(len(singles), len(products), root_columns, children, parents, product, self.correlation)

    @cached_property
    def _summation(self) -> np.ndarray:
        """The matrix that sums the terms of the other dense regressions for each dense feature: [terms, dense_size]."""
        others = [
            regression
            for regression in self.regressions
            if self._is_dense(regression) and not self._is_line(regression)
        ]
        return np.eye(self.dense_size)[
            np.concatenate([_upper(regression.moments).ravel() for regression in others])
        ]

    @cached_property
    def _feature_order(self) -> np.ndarray:
        """The position of each feature in the concatenated dense features, other regressions and tables: [K]."""
        indices = [np.arange(self.dense_size)]
        indices += [
            _upper(regression.moments).ravel()
            for regression in self.regressions
            if not self._is_dense(regression)
        ]
        indices += [table.cells.ravel() for table in self.tables]
        return np.argsort(np.concatenate(indices))

    def _extra(self, counts: Counts) -> Array:
        """Return how many rows of independence are added: [..., 1]."""
        xp = array_namespace(counts.stats)
        return self.shrinkage * xp.sum(counts.classes, axis=-1, keepdims=True)

    def _log_table(self, counts: Counts, table: Table) -> Array:
        """Return log p(x_j | parents, c): [..., C, G, configurations, r]."""
        xp = array_namespace(counts.stats)
        cells = xp.maximum(self._gather(counts, table.cells), self._table_floor(counts, table))
        if table.cells.shape[1] > 1 and self.shrinkage:
            marginal = xp.sum(cells, axis=-2, keepdims=True)
            cells = cells + self._extra(counts)[..., None, None, None] * marginal / xp.sum(
                marginal, axis=-1, keepdims=True
            )
        return xp.log(cells) - xp.log(xp.sum(cells, axis=-1, keepdims=True))

    def _table_floor(self, counts: Counts, table: Table) -> Array:
        """Return the least count of a cell: its equal share of a class at the count floor. [..., 1, 1, 1, 1]."""
        xp = array_namespace(counts.stats)
        return xp.clip(counts.floor[..., None, None, None] / math.prod(table.cells.shape[1:]), TINY, None)

    def _gather(self, counts: Counts, indices: np.ndarray) -> Array:
        """Return the statistics at an array of feature indices: [..., C, *indices.shape]."""
        xp = array_namespace(counts.stats)
        flat = xp.take(counts.stats, beside(counts.stats, indices.ravel()), axis=-1)
        return xp.reshape(flat, (*counts.stats.shape[:-1], *indices.shape))

    def _moments(self, counts: Counts, regression: Regression) -> tuple[Array, Array, Array, Array]:
        """Return count, guarded count, mean and covariance of (x_j, x_Q) before its guards: [..., C, G, d, …]."""
        xp = array_namespace(counts.stats)
        moments = self._gather(counts, regression.moments)
        configurations, width = regression.moments.shape[1:3]
        floor = xp.clip(counts.floor[..., None, None] / configurations, TINY, None)  # [..., 1, 1, 1]
        count = moments[..., 0, 0]
        rows = xp.maximum(count, floor)
        lacking = xp.clip(floor - xp.clip(count, 0.0, None), 0.0, None)
        first, second = moments[..., 0, 1:], moments[..., 1:, 1:]
        identity = xp.eye(width - 1, dtype=moments.dtype, device=device(moments))
        second = second + lacking[..., None, None] * identity
        if configurations > 1 and self.shrinkage:  # pseudo-rows with the moments of the class
            extra = self._extra(counts)[..., None, None]
            total = xp.sum(rows, axis=-1, keepdims=True)
            first = first + (extra / total)[..., None] * xp.sum(first, axis=-2, keepdims=True)
            second = second + (extra / total)[..., None, None] * xp.sum(second, axis=-3, keepdims=True)
            rows = rows + extra
        mean = xp.clip(first / rows[..., None], -MEAN_LIMIT, MEAN_LIMIT)
        covariance = second / rows[..., None, None] - mean[..., :, None] * mean[..., None, :]
        return count, rows, mean, covariance

    def _conditional(self, counts: Counts, regression: Regression) -> Conditional:
        """Return the guarded regressions of a group of columns."""
        xp = array_namespace(counts.stats)
        count, rows, mean, covariance = self._moments(counts, regression)
        least = max(self.variance_floor, TINY)
        spread = xp.clip(xp.linalg.diagonal(covariance), least, 1.0 / TINY)  # [..., 1 + q]
        column_mean, parent_means = mean[..., 0], mean[..., 1:]
        if mean.shape[-1] == 1:
            return Conditional(column_mean, parent_means, spread[..., 0], count)
        limit = xp.sqrt(spread) * self.correlation
        limit = limit[..., :, None] * xp.sqrt(spread)[..., None, :]
        shrink_factor = rows / (rows + self._extra(counts)[..., None, None])
        covariance = xp.clip(covariance, -limit, limit) * shrink_factor[..., None, None]
        identity = xp.eye(mean.shape[-1], dtype=mean.dtype, device=device(mean))
        covariance = covariance * (1.0 - identity) + spread[..., None] * identity
        among, across = covariance[..., 1:, 1:], covariance[..., 1:, 0]
        if mean.shape[-1] == 2:
            slopes = across / among[..., 0]
        else:
            precision = floored_precision(among, least)
            slopes = (precision.matrix @ across[..., None])[..., 0]
        slopes = xp.clip(slopes, -SLOPE_LIMIT, SLOPE_LIMIT)
        explained = xp.sum(slopes * (2.0 * across - (among @ slopes[..., None])[..., 0]), axis=-1)
        variance = xp.clip(spread[..., 0] - explained, least, None)
        return Conditional(column_mean - xp.sum(slopes * parent_means, axis=-1), slopes, variance, count)

    def floored(self, stats: Array) -> Array:
        xp = array_namespace(stats)
        counts = self.counts(stats)
        guarded = xp.sum(xp.astype(counts.stats[..., 0] < counts.floor, xp.int64), axis=-1)
        for table in self.tables:
            low = self._gather(counts, table.cells) < self._table_floor(counts, table)
            guarded = guarded + xp.sum(xp.astype(low, xp.int64), axis=(-4, -3, -2, -1))
        for regression in self.regressions:
            conditional = self._conditional(counts, regression)
            floor = counts.floor[..., None, None] / regression.moments.shape[1]
            low = (conditional.count < floor) | (conditional.variance <= max(self.variance_floor, TINY))
            guarded = guarded + xp.sum(xp.astype(low, xp.int64), axis=(-3, -2, -1))
        return guarded

    # --- priors and units ------------------------------------------------------------------------------

    def uniform_moments(self) -> np.ndarray:
        squares = [float(i == j) for i, j in self.products]
        return np.array([1.0, *[0.0] * len(self.singles), *squares])

    def uniform(self, classes: int, mass: float = 1.0) -> np.ndarray:
        row = np.zeros(self.size)
        row[: self.dense_size] = self.uniform_moments()
        for table in self.tables:
            row[table.cells] = 1.0 / math.prod(table.cells.shape[1:])
        for regression in self.regressions:
            if not self._is_dense(regression):
                width = regression.moments.shape[-1]
                row[regression.moments] = np.eye(width) / regression.moments.shape[1]
        return np.tile(row * (mass / classes), (classes, 1))

    def counted(self) -> tuple[np.ndarray, np.ndarray]:
        over, squares = super().counted()
        for regression in self.regressions:
            if not self._is_dense(regression):
                counts, inner = regression.moments[..., :1, :1], regression.moments[..., 1:, 1:]
                over[regression.moments] = counts
                over[counts] = 0
                squares[np.diagonal(inner, axis1=-2, axis2=-1)] = True
        return over, squares

    def smoothing(self, classes: int, alpha: float) -> np.ndarray:
        prior = np.zeros((classes, self.size))
        for table in self.tables:
            prior[:, table.cells.ravel()] = alpha
        return prior

    def estimated_prior(
        self, stats: np.ndarray, alpha: float | str, shrinkage: float | str | None
    ) -> np.ndarray:
        groups = [
            Moments(
                regression.moments,
                np.array([(column, *self.split(column)[0]) for column in regression.columns]),
                not self._is_dense(regression),
            )
            for regression in self.regressions
        ]
        tables = [table.cells for table in self.tables]
        return estimated(stats, tables, groups, alpha, shrinkage == "auto")

    @cached_property
    def _column_indices(self) -> dict[int, np.ndarray]:
        """The indices of each column's statistics in φ: [configurations, r], or [configurations, 2 + q, 2 + q]."""
        groups = [(table.columns, table.cells) for table in self.tables]
        groups += [(regression.columns, regression.moments) for regression in self.regressions]
        return {
            column: indices
            for columns, stacked in groups
            for column, indices in zip(columns, stacked, strict=True)
        }

    def moved(self, stats: np.ndarray, move: Move) -> tuple[Self, np.ndarray]:
        if np.any(move.order < 0):
            raise ValueError(f"a column without values cannot enter the regressions of {self.name}")
        new_columns = {int(old): new for new, old in enumerate(move.order)}
        new_columns |= {
            self.continuous + old: move.order.size + new for new, old in enumerate(move.columns) if old >= 0
        }
        parents: list[list[int]] = [[] for _ in range(move.order.size + len(move.columns))]
        for old, new in new_columns.items():
            parents[new] = [new_columns[parent] for parent in self.parents[old]]
        family = replace(
            self, continuous=move.order.size, cardinalities=move.cardinalities,
            parents=tuple(tuple(sorted(column_parents)) for column_parents in parents),
        )  # fmt: skip
        values = np.zeros((len(stats), family.size))
        values[:, 0] = stats[:, 0]
        for old, new in new_columns.items():
            self._move_column(stats, values, family, old, new, new_columns, move)
        return family, values

    def _move_column(
        self,
        stats: np.ndarray,
        values: np.ndarray,
        family: Self,
        old: int,
        new: int,
        new_columns: dict[int, int],
        move: Move,
    ) -> None:
        """Write the statistics of column `old` to column `new` of another family, in its units and categories."""
        linear, discrete = self.split(old)
        block = stats[:, self._column_indices[old]]  # [C, configurations, …]
        target = family._column_indices[new][
            self._target_configurations(family, discrete, new, new_columns, move)
        ]
        if old >= self.continuous:
            values[:, target[:, move.levels[new - family.continuous]]] = block
            return
        moving = [new_columns[column] for column in (old, *linear)]
        shift, ratio = move.shift[moving], move.ratio[moving]
        units = np.zeros((1 + len(moving), 1 + len(moving)))  # u' = units · u
        units[0, 0] = 1.0
        units[1:, 0], units[1:, 1:] = -shift * ratio, np.diag(ratio)
        order = [0, 1, *(2 + position for position in np.argsort(moving[1:]))]
        units = units[order]
        values[:, target] = units @ block @ units.T

    def _target_configurations(
        self, family: Self, discrete: tuple[int, ...], new: int, new_columns: dict[int, int], move: Move
    ) -> np.ndarray:
        """Return the number in the target family of each configuration of discrete parents."""
        sizes = [self.cardinalities[parent] for parent in discrete]
        levels = np.indices(sizes).reshape(len(sizes), -1) if sizes else np.zeros((0, 1), dtype=np.int64)
        target_levels = {}
        for parent, level in zip(discrete, levels, strict=True):
            column = new_columns[self.continuous + parent] - family.continuous
            target_levels[column] = move.levels[column][level]
        code = np.zeros(levels.shape[1], dtype=np.int64)
        for column in family.split(new)[1]:
            code = code * family.cardinalities[column] + target_levels[column]
        return code

    # --- reading a model -------------------------------------------------------------------------------

    def parameters(self, stats: Array) -> BayesNetParameters:
        """Return the parameters of each column's marginal, given the class; see `conditionals` for the dependences."""
        xp = array_namespace(stats)
        counts = self.counts(stats)
        moments: dict[int, tuple[Array, Array]] = {}
        for regression in self.regressions:
            count, _, means, covariance = self._moments(counts, regression)
            floor = xp.clip(counts.floor[..., None, None] / count.shape[-1], TINY, None)
            share = xp.maximum(count, floor)
            share = share / xp.sum(share, axis=-1, keepdims=True)
            spread = xp.clip(covariance[..., 0, 0], max(self.variance_floor, TINY), None)
            mean = xp.sum(share * means[..., 0], axis=-1)
            variance = xp.sum(share * (spread + (means[..., 0] - mean[..., None]) ** 2), axis=-1)
            moments |= {
                column: (mean[..., index], variance[..., index])
                for index, column in enumerate(regression.columns)
            }
        cells: dict[int, Array] = {}
        for table in self.tables:
            guarded = xp.maximum(self._gather(counts, table.cells), self._table_floor(counts, table))
            share = xp.sum(guarded, axis=-1, keepdims=True)
            share = share / xp.sum(share, axis=-2, keepdims=True)
            marginal = xp.log(xp.sum(share * xp.exp(self._log_table(counts, table)), axis=-2))
            cells |= {column: marginal[..., index, :] for index, column in enumerate(table.columns)}
        empty = counts.stats[..., :0]
        mean, variance = (
            xp.stack([moments[j][k] for j in range(self.continuous)], axis=-1) if moments else empty
            for k in (0, 1)
        )
        log_cells = xp.concat([cells[j] for j in sorted(cells)], axis=-1) if cells else empty
        return BayesNetParameters(counts.log_prior, mean, variance, log_cells)

    def conditionals(self, stats: Array) -> dict[int, Any]:
        """Return p(x_j | parents, c) of each column: log probabilities [..., C, configurations, r], or a regression."""
        counts = self.counts(stats)
        conditionals: dict[int, Any] = {}
        for table in self.tables:
            logs = self._log_table(counts, table)
            conditionals |= {column: logs[..., index, :, :] for index, column in enumerate(table.columns)}
        for regression in self.regressions:
            fitted = self._conditional(counts, regression)
            for index, column in enumerate(regression.columns):
                intercept, slopes, variance, count = fitted
                conditionals[column] = Conditional(
                    intercept[..., index, :],
                    slopes[..., index, :, :],
                    variance[..., index, :],
                    count[..., index, :],
                )
        return conditionals

    def contributions(self, stats: np.ndarray, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Column j: log p(x_j | parents, c); 0 where it, or a discrete parent, is missing."""
        terms = np.zeros((rows.codes.shape[0], stats.shape[0], self.continuous + len(self.cardinalities)))
        for column, conditional in self.conditionals(stats).items():
            linear, discrete = self.split(column)
            configuration, present = self._configuration(rows.codes, discrete)
            if column >= self.continuous:
                code = rows.codes[:, column - self.continuous]
                term, present = conditional[:, configuration, np.maximum(code, 0)], present & (code >= 0)
            else:
                expected = conditional.intercept[:, configuration] + np.sum(
                    conditional.slopes[:, configuration] * rows.values[:, linear], axis=-1
                )
                variance = conditional.variance[:, configuration]
                deviation = rows.values[:, column] - expected
                term = -0.5 * (LOG_2PI + np.log(variance) + deviation**2 / variance)
            terms[:, :, column] = np.where(present, term, 0.0).T
        return np.asarray(self.counts(stats).log_prior), terms

    def _configuration(self, codes: np.ndarray, discrete: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return the configuration of discrete parents, and whether all of them are present: two [..., n]."""
        code, present = np.zeros(codes.shape[:-1], dtype=np.int64), np.ones(codes.shape[:-1], dtype=bool)
        for parent in discrete:
            code = code * self.cardinalities[parent] + np.maximum(codes[..., parent], 0)
            present &= codes[..., parent] >= 0
        return code, present

    def sample(self, stats: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Rows:
        values = np.zeros((labels.size, self.continuous))
        codes = np.zeros((labels.size, len(self.cardinalities)), dtype=np.int32)
        conditionals = self.conditionals(stats)
        for column in order(self.parents):
            linear, discrete = self.split(column)
            configuration, _ = self._configuration(codes, discrete)
            conditional = conditionals[column]
            if column >= self.continuous:
                cumulative = np.cumsum(np.exp(conditional[labels, configuration]), axis=1)
                draws = rng.random(labels.size) * cumulative[:, -1]
                codes[:, column - self.continuous] = np.sum(draws[:, None] >= cumulative, axis=1)
            else:
                mean = conditional.intercept[labels, configuration] + np.sum(
                    conditional.slopes[labels, configuration] * values[:, linear], axis=-1
                )
                deviation = np.sqrt(conditional.variance[labels, configuration])
                values[:, column] = mean + deviation * rng.standard_normal(labels.size)
        return Rows(values, codes)


def _upper(moments: np.ndarray) -> np.ndarray:
    """Return the upper triangles of index matrices: [..., u, u] -> [..., u (u + 1) / 2]."""
    upper, right = np.triu_indices(moments.shape[-1])
    return moments[..., upper, right]


def _natural(conditional: Conditional) -> Array:
    """Return the weights of 1, x and xx' in log N(x_j; a + b·x_Q, q) = −½ log 2πq − (v·u)²/2q, v = (−a, 1, −b)."""
    xp = array_namespace(conditional.variance)
    direction = xp.concat(
        [
            -conditional.intercept[..., None],
            xp.ones_like(conditional.intercept)[..., None],
            -conditional.slopes,
        ],
        axis=-1,
    )
    upper, right = np.triu_indices(direction.shape[-1])
    first, second = (xp.take(direction, beside(direction, index), axis=-1) for index in (upper, right))
    twice = beside(direction, np.where(upper == right, -0.5, -1.0), direction.dtype)
    natural = twice * first * second / conditional.variance[..., None]
    constant = -0.5 * (LOG_2PI + xp.log(conditional.variance))
    return natural + constant[..., None] * beside(direction, np.eye(1, upper.size)[0], direction.dtype)
