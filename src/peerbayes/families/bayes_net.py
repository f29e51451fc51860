"""Bayesian-network classifiers with continuous and discrete columns: conditional Gaussian, given the class.

    log p(x, c) = log p(c) + Σ_j log p(x_j | parents of j, c)

A discrete column has a table over its (discrete) parents; a continuous one is linear Gaussian in its continuous
parents, with coefficients of its own for each class and each configuration d of its discrete parents:

    x_j ~ N(a + b·x_Q, q)        (a, b, q) of (c, d)

All of it is linear in products of what a column and its parents hold, so

    φ(x) = [ 1 | x_i | x_i² | x_i x_j of linked columns | one-hots of (parents, x_j) | one-hots of d times 1, x, xx' ]

and S holds counts and second moments, from which θ reads every table and every regression in closed form.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from array_api_compat import array_namespace, device

from peerbayes.core import Array
from peerbayes.families.base import LOG_2PI, MEAN_LIMIT, TINY, Counts, Family, Move, Rows, beside, here
from peerbayes.families.gaussian import floored_precision
from peerbayes.families.lines import SLOPE_LIMIT, Lines
from peerbayes.families.structures import Parents, checked, order

# The largest correlation of a column with a parent while calibrating: noise makes it exceed one.
CORRELATION = 0.995


class BayesNetParameters(NamedTuple):
    """θ(S) of each column alone, in standardised units."""

    log_prior: Array  # [..., C]
    mean: Array  # [..., C, Dc]
    variance: Array  # [..., C, Dc]
    log_cells: Array  # [..., C, Σr] log p(x_j = k | c)


class Table(NamedTuple):
    """Discrete columns of one shape: r values each, `configurations` of the parents."""

    columns: tuple[int, ...]
    cells: np.ndarray  # [G, configurations, r] where their counts are in φ


class Regression(NamedTuple):
    """Continuous columns of one shape: as many continuous parents, as many configurations of the discrete ones."""

    columns: tuple[int, ...]
    moments: np.ndarray  # [G, configurations, 2 + q, 2 + q] where Σuuᵀ of u = (1, x_j, x_Q) is in φ


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
    """Of each column, continuous ones first; () stands for none at all: naive Bayes."""
    shrinkage: float = 0.0
    """Rows of independence added to each dependence, as a share of all rows N."""

    def __post_init__(self) -> None:
        columns = self.continuous + len(self.cardinalities)
        given = self.parents or ((),) * columns
        object.__setattr__(self, "parents", checked(given, self.continuous, columns))

    def layout(self) -> dict[str, Any]:
        return {**super().layout(), "parents": [list(own) for own in self.parents]}

    # --- where everything is ---------------------------------------------------------------------------

    def split(self, column: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """A column's continuous and discrete parents, the latter as numbers of discrete columns."""
        own = self.parents[column]
        return (
            tuple(parent for parent in own if parent < self.continuous),
            tuple(parent - self.continuous for parent in own if parent >= self.continuous),
        )

    def _configurations(self, discrete: tuple[int, ...]) -> int:
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
        """What follows the dense features, for each column: (column, where, configurations, entries of each)."""
        blocks, place = [], self.dense_size
        for column in range(self.continuous + len(self.cardinalities)):
            linear, discrete = self.split(column)
            if column in self._plain:
                continue
            if column >= self.continuous:
                entries = self.cardinalities[column - self.continuous]
            else:
                entries = 1 + (1 + len(linear)) + (1 + len(linear)) * (2 + len(linear)) // 2
            configurations = self._configurations(discrete)
            blocks.append((column, place, configurations, entries))
            place += configurations * entries
        return blocks

    @property
    def size(self) -> int:
        _, place, configurations, entries = self.blocks[-1] if self.blocks else (0, self.dense_size, 0, 0)
        return place + configurations * entries

    @cached_property
    def tables(self) -> list[Table]:
        """Discrete columns, those of one shape together."""
        shapes: dict[tuple[int, int], list[tuple[int, np.ndarray]]] = {}
        for column, place, configurations, entries in self.blocks:
            if column >= self.continuous:
                cells = place + np.arange(configurations * entries).reshape(configurations, entries)
                shapes.setdefault((configurations, entries), []).append((column, cells))
        return [
            Table(tuple(c for c, _ in group), np.stack([cells for _, cells in group]))
            for group in shapes.values()
        ]

    @cached_property
    def regressions(self) -> list[Regression]:
        """Continuous columns, those of one shape together; dense ones apart from those with discrete parents."""
        dense: dict[tuple[int, ...], int] = {(): 0}
        dense |= {(i,): 1 + place for place, i in enumerate(self.singles)}
        dense |= {pair: 1 + len(self.singles) + place for place, pair in enumerate(self.products)}
        shapes: dict[tuple[int, int, bool], list[tuple[int, np.ndarray]]] = {}
        for j in self._plain:
            u: list[tuple[int, ...]] = [(), (j,), *((p,) for p in self.split(j)[0])]
            moments = np.array([[dense[tuple(sorted(a + b))] for b in u] for a in u])[None]
            shapes.setdefault((1, len(u), True), []).append((j, moments))
        for column, place, configurations, entries in self.blocks:
            if column < self.continuous:
                width = 2 + len(self.split(column)[0])
                moments = np.empty((configurations, width, width), dtype=np.int64)
                upper, right = np.triu_indices(width)
                for d in range(configurations):
                    moments[d, upper, right] = moments[d, right, upper] = (
                        place + d * entries + np.arange(entries)
                    )
                shapes.setdefault((configurations, width, False), []).append((column, moments))
        return [
            Regression(tuple(c for c, _ in group), np.stack([moments for _, moments in group]))
            for group in shapes.values()
        ]

    @cached_property
    def linked(self) -> np.ndarray:
        """Columns that φ alone cannot take where they are missing: all but discrete ones that depend on nothing and
        that nothing depends on. [D]."""
        parents = {parent for own in self.parents for parent in own}
        return np.array(
            [j < self.continuous or bool(own) or j in parents for j, own in enumerate(self.parents)],
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
                slice(place, place + configurations * entries),
                (column - self.continuous, *self.split(column)[1]),
            )
            for column, place, configurations, entries in self.blocks
            if column >= self.continuous
        ]

    @property
    def filled(self) -> int:
        return self.dense_size + sum(
            1 if column >= self.continuous else width for column, _, _, width in self.blocks
        )

    def entries(self, rows: Rows) -> tuple[np.ndarray, np.ndarray | None]:
        """A row is nowhere in a block whose column, or one of whose discrete parents, is missing."""
        codes = np.asarray(rows.codes)
        cells = self._cells_of(codes)
        places: list[np.ndarray] = []
        values: list[np.ndarray] = []
        for column, place, _, width in self.blocks:
            if column >= self.continuous:
                break  # these follow, all of them
            linear, discrete = self.split(column)
            code, known = self._configuration(codes, discrete)
            u = np.stack([np.ones(code.shape), *(rows.values[..., i] for i in (column, *linear))], axis=-1)
            upper, right = np.triu_indices(2 + len(linear))
            values.append(u[..., upper] * u[..., right])
            at = place + code[..., None] * width + np.arange(width)
            places.append(np.where(known[..., None], at, self.size))
        if not places:
            return cells, None
        return np.concatenate([*places, cells], axis=-1), np.concatenate(
            [*values, np.ones(cells.shape)], axis=-1
        )

    @cached_property
    def _steps(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where each discrete column's table begins [Dd]; its discrete parents, itself instead of none [q, Dd], and how
        far one value more of each is from the last [q, Dd], 0 for none."""
        tables = [block for block in self.blocks if block[0] >= self.continuous]
        most = max((len(self.split(column)[1]) for column, *_ in tables), default=0)
        parents = np.tile(np.arange(len(tables), dtype=np.int64), (most, 1))
        steps = np.zeros((most, len(tables)), dtype=np.int64)
        for own, (column, _, _, width) in enumerate(tables):
            step = width
            for k, parent in reversed(list(enumerate(self.split(column)[1]))):
                parents[k, own], steps[k, own] = parent, step
                step *= self.cardinalities[parent]
        return np.array([place for _, place, *_ in tables], dtype=np.int64), parents, steps

    def _cells_of(self, codes: np.ndarray) -> np.ndarray:
        """Which cell of each discrete column's table a row is in: [..., n, Dd]."""
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

    def features(self, rows: Rows) -> Array:
        dense = self.dense(rows.values)
        if not self.blocks:
            return dense
        xp = array_namespace(dense)
        places, values = self.entries(Rows(here(rows.values), here(rows.codes)))
        cells = np.zeros((*places.shape[:-1], self.size + 1 - self.dense_size))  # the last one is nowhere
        np.put_along_axis(cells, places - self.dense_size, 1.0 if values is None else values, axis=-1)
        return xp.concat([dense, beside(dense, cells[..., :-1], dense.dtype)], axis=-1)

    # --- θ ---------------------------------------------------------------------------------------------

    def weights(self, stats: Array) -> Array:
        xp = array_namespace(stats)
        counts = self.counts(stats)
        terms: list[Array] = []
        parts: list[Array] = []
        for regression in self.regressions:
            if self._is_line(regression):
                continue
            natural = _natural(self._conditional(counts, regression))
            flat = xp.reshape(natural, (*stats.shape[:-1], math.prod(natural.shape[len(stats.shape) - 1 :])))
            (terms if self._is_dense(regression) else parts).append(flat)
        for table in self.tables:
            flat = self._log_table(counts, table)
            parts.append(xp.reshape(flat, (*stats.shape[:-1], table.cells.size)))
        dense = self.lines.weights(counts, self._extra(counts), max(self.variance_floor, TINY))
        if terms:
            dense = dense + xp.concat(terms, axis=-1) @ beside(stats, self._gathering, stats.dtype)
        if not parts:
            return dense
        together = xp.concat([dense, *parts], axis=-1)
        return xp.take(together, beside(stats, self._places), axis=-1)

    def _is_dense(self, regression: Regression) -> bool:
        return regression.columns[0] in self._plain

    def _is_line(self, regression: Regression) -> bool:
        """Whether columns have at most one parent, a continuous one: see `lines`."""
        return self._is_dense(regression) and regression.moments.shape[-1] <= 3

    @cached_property
    def lines(self) -> Lines:
        """Such columns; the dense features are squares after singles in the same order, then other products."""
        singles = {column: place for place, column in enumerate(self.singles)}
        products = {pair: place for place, pair in enumerate(self.products[len(singles) :])}
        columns = [column for each in self.regressions if self._is_line(each) for column in each.columns]
        links = [(column, *self.split(column)[0]) for column in columns]
        roots = [singles[link[0]] for link in links if len(link) == 1]
        links = [link for link in links if len(link) == 2]
        places = [(singles[j], singles[p], products[min(j, p), max(j, p)]) for j, p in links]
        children, parents, product = np.array(places, dtype=np.int64).reshape(-1, 3).T
        most = CORRELATION if self.shrinkage else 1.0
        alone = np.array(roots, dtype=np.int64)
        return Lines(len(singles), len(products), alone, children, parents, product, most)

    @cached_property
    def _gathering(self) -> np.ndarray:
        """Adds up what the other dense regressions say of each dense feature: [terms, dense_size] of 0 and 1."""
        others = [each for each in self.regressions if self._is_dense(each) and not self._is_line(each)]
        return np.eye(self.dense_size)[np.concatenate([_upper(each.moments).ravel() for each in others])]

    @cached_property
    def _places(self) -> np.ndarray:
        """Where each feature is when dense features, other regressions and tables are put side by side: [K]."""
        places = [np.arange(self.dense_size)]
        places += [_upper(each.moments).ravel() for each in self.regressions if not self._is_dense(each)]
        places += [table.cells.ravel() for table in self.tables]
        return np.argsort(np.concatenate(places))

    def _extra(self, counts: Counts) -> Array:
        """The rows of independence that are added: [..., 1]."""
        xp = array_namespace(counts.stats)
        return self.shrinkage * xp.sum(counts.classes, axis=-1, keepdims=True)

    def _log_table(self, counts: Counts, table: Table) -> Array:
        """log p(x_j | parents, c): [..., C, G, configurations, r]."""
        xp = array_namespace(counts.stats)
        cells = xp.maximum(self._taken(counts, table.cells), self._table_floor(counts, table))
        if table.cells.shape[1] > 1 and self.shrinkage:
            alone = xp.sum(cells, axis=-2, keepdims=True)
            cells = cells + self._extra(counts)[..., None, None, None] * alone / xp.sum(
                alone, axis=-1, keepdims=True
            )
        return xp.log(cells) - xp.log(xp.sum(cells, axis=-1, keepdims=True))

    def _table_floor(self, counts: Counts, table: Table) -> Array:
        """The least a cell may hold: its even share of a class at the count floor. [..., 1, 1, 1, 1]."""
        xp = array_namespace(counts.stats)
        return xp.clip(counts.floor[..., None, None, None] / math.prod(table.cells.shape[1:]), TINY, None)

    def _taken(self, counts: Counts, places: np.ndarray) -> Array:
        xp = array_namespace(counts.stats)
        flat = xp.take(counts.stats, beside(counts.stats, places.ravel()), axis=-1)
        return xp.reshape(flat, (*counts.stats.shape[:-1], *places.shape))

    def _moments(self, counts: Counts, regression: Regression) -> tuple[Array, Array, Array, Array]:
        """Count, the rows it is held at, mean and covariance of (x_j, x_Q) before its guards: [..., C, G, d, …]."""
        xp = array_namespace(counts.stats)
        moments = self._taken(counts, regression.moments)
        configurations, width = regression.moments.shape[1:3]
        floor = xp.clip(counts.floor[..., None, None] / configurations, TINY, None)  # [..., 1, 1, 1]
        count = moments[..., 0, 0]
        rows = xp.maximum(count, floor)
        lacking = xp.clip(floor - xp.clip(count, 0.0, None), 0.0, None)
        first, second = moments[..., 0, 1:], moments[..., 1:, 1:]
        identity = xp.eye(width - 1, dtype=moments.dtype, device=device(moments))
        second = second + lacking[..., None, None] * identity
        if configurations > 1 and self.shrinkage:  # pseudo-rows like those of the whole class
            extra = self._extra(counts)[..., None, None]
            whole = xp.sum(rows, axis=-1, keepdims=True)
            first = first + (extra / whole)[..., None] * xp.sum(first, axis=-2, keepdims=True)
            second = second + (extra / whole)[..., None, None] * xp.sum(second, axis=-3, keepdims=True)
            rows = rows + extra
        mean = xp.clip(first / rows[..., None], -MEAN_LIMIT, MEAN_LIMIT)
        covariance = second / rows[..., None, None] - mean[..., :, None] * mean[..., None, :]
        return count, rows, mean, covariance

    def _conditional(self, counts: Counts, regression: Regression) -> Conditional:
        xp = array_namespace(counts.stats)
        count, rows, mean, covariance = self._moments(counts, regression)
        least = max(self.variance_floor, TINY)
        spread = xp.clip(xp.linalg.diagonal(covariance), least, 1.0 / TINY)  # [..., 1 + q]
        own, parents = mean[..., 0], mean[..., 1:]
        if mean.shape[-1] == 1:
            return Conditional(own, parents, spread[..., 0], count)
        limit = xp.sqrt(spread) * (CORRELATION if self.shrinkage else 1.0)
        limit = limit[..., :, None] * xp.sqrt(spread)[..., None, :]
        kept = rows / (rows + self._extra(counts)[..., None, None])
        covariance = xp.clip(covariance, -limit, limit) * kept[..., None, None]
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
        return Conditional(own - xp.sum(slopes * parents, axis=-1), slopes, variance, count)

    def floored(self, stats: Array) -> Array:
        xp = array_namespace(stats)
        counts = self.counts(stats)
        held = xp.sum(xp.astype(counts.stats[..., 0] < counts.floor, xp.int64), axis=-1)
        for table in self.tables:
            low = self._taken(counts, table.cells) < self._table_floor(counts, table)
            held = held + xp.sum(xp.astype(low, xp.int64), axis=(-4, -3, -2, -1))
        for regression in self.regressions:
            found = self._conditional(counts, regression)
            floor = counts.floor[..., None, None] / regression.moments.shape[1]
            low = (found.count < floor) | (found.variance <= max(self.variance_floor, TINY))
            held = held + xp.sum(xp.astype(low, xp.int64), axis=(-3, -2, -1))
        return held

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

    @cached_property
    def _of_column(self) -> dict[int, np.ndarray]:
        """Where each column's statistics are in φ: [configurations, r], or [configurations, 2 + q, 2 + q]."""
        groups = [(each.columns, each.cells) for each in self.tables]
        groups += [(each.columns, each.moments) for each in self.regressions]
        return {
            column: places for columns, many in groups for column, places in zip(columns, many, strict=True)
        }

    def moved(self, stats: np.ndarray, move: Move) -> tuple[Self, np.ndarray]:
        if np.any(move.order < 0):
            raise ValueError(f"a column without values cannot enter the regressions of {self.name}")
        there = {int(old): new for new, old in enumerate(move.order)}
        there |= {
            self.continuous + old: move.order.size + new for new, old in enumerate(move.columns) if old >= 0
        }
        parents: list[list[int]] = [[] for _ in range(move.order.size + len(move.columns))]
        for old, new in there.items():
            parents[new] = [there[parent] for parent in self.parents[old]]
        family = replace(
            self, continuous=move.order.size, cardinalities=move.cardinalities,
            parents=tuple(tuple(sorted(own)) for own in parents),
        )  # fmt: skip
        values = np.zeros((len(stats), family.size))
        values[:, 0] = stats[:, 0]
        for old, new in there.items():
            self._move_column(stats, values, family, old, new, there, move)
        return family, values

    def _move_column(
        self,
        stats: np.ndarray,
        values: np.ndarray,
        family: Self,
        old: int,
        new: int,
        there: dict[int, int],
        move: Move,
    ) -> None:
        linear, discrete = self.split(old)
        own = stats[:, self._of_column[old]]  # [C, configurations, …]
        target = family._of_column[new][self._configurations_there(family, discrete, new, there, move)]
        if old >= self.continuous:
            values[:, target[:, move.levels[new - family.continuous]]] = own
            return
        moving = [there[column] for column in (old, *linear)]
        shift, ratio = move.shift[moving], move.ratio[moving]
        units = np.zeros((1 + len(moving), 1 + len(moving)))  # u' = units · u
        units[0, 0] = 1.0
        units[1:, 0], units[1:, 1:] = -shift * ratio, np.diag(ratio)
        order = [0, 1, *(2 + place for place in np.argsort(moving[1:]))]
        units = units[order]
        values[:, target] = units @ own @ units.T

    def _configurations_there(
        self, family: Self, discrete: tuple[int, ...], new: int, there: dict[int, int], move: Move
    ) -> np.ndarray:
        """The number there of each configuration of discrete parents here."""
        sizes = [self.cardinalities[parent] for parent in discrete]
        levels = np.indices(sizes).reshape(len(sizes), -1) if sizes else np.zeros((0, 1), dtype=np.int64)
        found = {}
        for parent, level in zip(discrete, levels, strict=True):
            place = there[self.continuous + parent] - family.continuous
            found[place] = move.levels[place][level]
        code = np.zeros(levels.shape[1], dtype=np.int64)
        for place in family.split(new)[1]:
            code = code * family.cardinalities[place] + found[place]
        return code

    # --- reading a model -------------------------------------------------------------------------------

    def parameters(self, stats: Array) -> BayesNetParameters:
        """Of each column alone, given the class; the dependences are in `tables` and `regressions`."""
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
                column: (mean[..., place], variance[..., place])
                for place, column in enumerate(regression.columns)
            }
        cells: dict[int, Array] = {}
        for table in self.tables:
            held = xp.maximum(self._taken(counts, table.cells), self._table_floor(counts, table))
            share = xp.sum(held, axis=-1, keepdims=True)
            share = share / xp.sum(share, axis=-2, keepdims=True)
            alone = xp.log(xp.sum(share * xp.exp(self._log_table(counts, table)), axis=-2))
            cells |= {column: alone[..., place, :] for place, column in enumerate(table.columns)}
        empty = counts.stats[..., :0]
        mean, variance = (
            xp.stack([moments[j][k] for j in range(self.continuous)], axis=-1) if moments else empty
            for k in (0, 1)
        )
        log_cells = xp.concat([cells[j] for j in sorted(cells)], axis=-1) if cells else empty
        return BayesNetParameters(counts.log_prior, mean, variance, log_cells)

    def conditionals(self, stats: Array) -> dict[int, Any]:
        """p(x_j | parents, c) of every column: log probabilities [..., C, configurations, r], or a regression."""
        counts = self.counts(stats)
        found: dict[int, Any] = {}
        for table in self.tables:
            logs = self._log_table(counts, table)
            found |= {column: logs[..., place, :, :] for place, column in enumerate(table.columns)}
        for regression in self.regressions:
            fitted = self._conditional(counts, regression)
            for place, column in enumerate(regression.columns):
                intercept, slopes, variance, count = fitted
                found[column] = Conditional(
                    intercept[..., place, :],
                    slopes[..., place, :, :],
                    variance[..., place, :],
                    count[..., place, :],
                )
        return found

    def contributions(self, stats: np.ndarray, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Column j: log p(x_j | parents, c); nothing where it, or a discrete parent, is missing."""
        terms = np.zeros((rows.codes.shape[0], stats.shape[0], self.continuous + len(self.cardinalities)))
        for column, found in self.conditionals(stats).items():
            linear, discrete = self.split(column)
            configuration, known = self._configuration(rows.codes, discrete)
            if column >= self.continuous:
                code = rows.codes[:, column - self.continuous]
                term, known = found[:, configuration, np.maximum(code, 0)], known & (code >= 0)
            else:
                expected = found.intercept[:, configuration] + np.sum(
                    found.slopes[:, configuration] * rows.values[:, linear], axis=-1
                )
                variance = found.variance[:, configuration]
                apart = rows.values[:, column] - expected
                term = -0.5 * (LOG_2PI + np.log(variance) + apart**2 / variance)
            terms[:, :, column] = np.where(known, term, 0.0).T
        return np.asarray(self.counts(stats).log_prior), terms

    def _configuration(self, codes: np.ndarray, discrete: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Which values discrete parents have together, and whether all are known: two [..., n]."""
        code, known = np.zeros(codes.shape[:-1], dtype=np.int64), np.ones(codes.shape[:-1], dtype=bool)
        for parent in discrete:
            code = code * self.cardinalities[parent] + np.maximum(codes[..., parent], 0)
            known &= codes[..., parent] >= 0
        return code, known

    def sample(self, stats: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Rows:
        values = np.zeros((labels.size, self.continuous))
        codes = np.zeros((labels.size, len(self.cardinalities)), dtype=np.int32)
        conditionals = self.conditionals(stats)
        for column in order(self.parents):
            linear, discrete = self.split(column)
            configuration, _ = self._configuration(codes, discrete)
            found = conditionals[column]
            if column >= self.continuous:
                cumulative = np.cumsum(np.exp(found[labels, configuration]), axis=1)
                draws = rng.random(labels.size) * cumulative[:, -1]
                codes[:, column - self.continuous] = np.sum(draws[:, None] >= cumulative, axis=1)
            else:
                mean = found.intercept[labels, configuration] + np.sum(
                    found.slopes[labels, configuration] * values[:, linear], axis=-1
                )
                deviation = np.sqrt(found.variance[labels, configuration])
                values[:, column] = mean + deviation * rng.standard_normal(labels.size)
        return Rows(values, codes)


def _upper(moments: np.ndarray) -> np.ndarray:
    """The upper triangles of index matrices: [..., u, u] -> [..., u (u + 1) / 2]."""
    upper, right = np.triu_indices(moments.shape[-1])
    return moments[..., upper, right]


def _natural(found: Conditional) -> Array:
    """Weights of 1, x and xx' in log N(x_j; a + b·x_Q, q) = −½ log 2πq − (v·u)²/2q, v = (−a, 1, −b)."""
    xp = array_namespace(found.variance)
    direction = xp.concat(
        [-found.intercept[..., None], xp.ones_like(found.intercept)[..., None], -found.slopes], axis=-1
    )
    upper, right = np.triu_indices(direction.shape[-1])
    first, second = (xp.take(direction, beside(direction, index), axis=-1) for index in (upper, right))
    twice = beside(direction, np.where(upper == right, -0.5, -1.0), direction.dtype)
    natural = twice * first * second / found.variance[..., None]
    constant = -0.5 * (LOG_2PI + xp.log(found.variance))
    return natural + constant[..., None] * beside(direction, np.eye(1, upper.size)[0], direction.dtype)
