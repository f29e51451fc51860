"""Links and crosses of columns, from one noisy release of the tables of all pairs of columns.

    t_cab = rows of class c with the first column in group a and the second in group b          t̃ = t + noise

Each column is in at most three groups, which follow from public facts alone: thirds of a normal distribution with the
agreed units, or neighbouring categories. A row is in one cell of each table of P pairs, or in none where a value is
missing: one row more or less moves t by √P in L2 at most, and by exactly that where no value is missing. In whole steps
of 2⁻²⁴, so that the noise is discrete, as in `units`.

What is computed from t̃ costs nothing more. With expected counts e and noise of variance s² in each cell,

    links     I(X_i; X_j | C) ≈ 1/2n · Σ [(t̃ − e)² − v] / max(e, s)        e: both columns independent in each class
    crosses                     1/2n · Σ [(t̃ − e)² − v] / max(e, s)        e: no interaction of the two and the class

v = (s² + e)·f/k is what sampling and noise contribute where there is nothing, f the degrees of freedom of k cells.
Without noise, both are χ²/2n less its mean. A pair less than four standard deviations above 0 is no candidate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from peerbayes.data.bins import cell_of, normal_quantiles
from peerbayes.data.crosses import Cross
from peerbayes.data.schema import Schema
from peerbayes.data.table import Rows
from peerbayes.model.declared import declared_crosses, neighbouring
from peerbayes.model.structure import mutual, penalised
from peerbayes.privacy import accounting
from peerbayes.privacy.mechanism import MOST_ROWS
from peerbayes.privacy.noise import Source, discrete_gaussian
from peerbayes.privacy.units import ONE

# Groups of a column. With 3 noise leaves 9 cells of a table readable where 25 are not: at ε = 4 and 50 × 320 rows it is
# as large as 1 % of all rows.
GROUPS = 3

# Standard deviations of sampling and noise by which a pair must be above nothing. With 2, some of the hundred pairs of
# adult are linked for nothing, and noise on their tables costs KDB 0.04 of error; with 4 no more than it has to.
ABOVE = 4.0

# The most crosses: each makes rows longer, and with them the noise of all others.
MOST_CROSSES = 8

# Sweeps that fit a table without interaction to the margins of another; a few suffice for three groups.
SWEEPS = 20


@dataclass(frozen=True)
class PairTables:
    """A release of the tables of all pairs of columns."""

    continuous: int
    cardinalities: tuple[int, ...]
    classes: int
    cost: float
    """μ² that the release may cost."""

    @classmethod
    def of(cls, schema: Schema, crosses: bool, cost: float) -> PairTables:
        """Return the release for a schema; `crosses`: of columns of cells alone, since only these can be crossed."""
        return cls(0 if crosses else len(schema.continuous), schema.cardinalities, len(schema.classes), cost)

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """The number of groups of each column, continuous ones first."""
        return (GROUPS,) * self.continuous + tuple(min(cells, GROUPS) for cells in self.cardinalities)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs of columns."""
        return list(combinations(range(len(self.groups)), 2))

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """The shapes of the tables of all pairs: (C, a, b)."""
        return [(self.classes, self.groups[i], self.groups[j]) for i, j in self.pairs]

    @property
    def size(self) -> int:
        """Return the number of entries of a release."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def most(self) -> float:
        """Return how far a row moves a release at most, in steps: √P, rounded up."""
        return math.nextafter(ONE * math.sqrt(len(self.pairs)), math.inf)

    @property
    def sigma(self) -> int:
        """Return σ of the noise, in steps."""
        return max(1, math.ceil(self.most / math.sqrt(self.cost) * (1 + 1e-12)))

    def discretisation(self) -> float:
        """Return what the noise being discrete may cost in ε."""
        return accounting.discretisation(self.sigma, self.size)

    def sums(self, rows: Rows, labels: np.ndarray) -> np.ndarray:
        """Return t of encoded rows [n, …] with class indices [n], table after table, in steps: [size] of int64."""
        if len(labels) > MOST_ROWS:
            raise ValueError(f"a peer has {len(labels):,} rows; a private one takes up to {MOST_ROWS:,}")
        groups = self._groups(rows)
        tables = []
        for (i, j), shape in zip(self.pairs, self.shapes, strict=True):
            present = (groups[i] >= 0) & (groups[j] >= 0)
            cell = (labels[present] * shape[1] + groups[i][present]) * shape[2] + groups[j][present]
            tables.append(np.bincount(cell, minlength=math.prod(shape)).astype(np.int64))
        return np.concatenate(tables) * ONE if tables else np.zeros(0, dtype=np.int64)

    def _groups(self, rows: Rows) -> list[np.ndarray]:
        """Return the group of each row in each column, −1 where a value is missing: D times [n]."""
        edges = np.array(normal_quantiles(GROUPS))
        groups = [cell_of(rows.values[:, column], edges) for column in range(self.continuous)]
        for column, cells in enumerate(self.cardinalities):
            of_cell = np.array([*neighbouring(cells, GROUPS), -1])  # a code of −1 is the last entry
            groups.append(of_cell[rows.codes[:, column]])
        return [groups_of_column.astype(np.int64) for groups_of_column in groups]

    def release(self, rows: Rows, labels: np.ndarray, source: Source) -> np.ndarray:
        """Return t̃ of rows: [size] of int64."""
        return self.sums(rows, labels) + self.noise(1, source)[0]

    def noise(self, peers: int, source: Source) -> np.ndarray:
        """Return the noise of so many peers, in steps: [peers, size] of int64."""
        return discrete_gaussian(self.sigma, peers * self.size, source).reshape(peers, self.size)

    def opened(self, total: np.ndarray, peers: int) -> NoisyPairs:
        """Return the tables of all peers from a sum of `peers` releases."""
        numbers, ends = total.astype(np.float64) / ONE, np.cumsum([math.prod(shape) for shape in self.shapes])
        blocks = np.split(numbers, ends[:-1]) if ends.size else []
        tables = {
            pair: block.reshape(shape)
            for pair, shape, block in zip(self.pairs, self.shapes, blocks, strict=True)
        }
        return NoisyPairs(
            self.continuous, self.cardinalities, self.classes, tables, self.sigma / ONE * math.sqrt(peers)
        )


@dataclass(frozen=True, eq=False)
class NoisyPairs:
    """Tables of all pairs with noise, and what they say: for `tan`, `kdb` and crosses."""

    continuous: int
    cardinalities: tuple[int, ...]
    classes: int
    tables: dict[tuple[int, int], np.ndarray]
    """[C, a, b] of each pair of columns."""
    noise: float
    """s, the standard deviation of the noise of each cell."""

    @property
    def columns(self) -> int:
        """The number of columns, D."""
        return self.continuous + len(self.cardinalities)

    @cached_property
    def rows(self) -> float:
        """The number of rows of all peers, at least 1: the mean over all tables."""
        return (
            max(1.0, float(np.mean([table.sum() for table in self.tables.values()]))) if self.tables else 1.0
        )

    def score(self, penalty: str) -> np.ndarray:
        """Return the information of each pair less its penalty: [D, D]; −∞ where noise may be all there is."""
        score = np.full((self.columns, self.columns), -math.inf)
        for (i, j), table in self.tables.items():
            information, deviation = self._beyond(
                table, _independent(table), _freedom(table.shape[1:]) * len(table)
            )
            if information > ABOVE * deviation:
                score[i, j] = score[j, i] = information - penalised(penalty, self.rows) * self._added(i, j)
        return score

    def _added(self, i: int, j: int) -> float:
        """Return the parameters that a link adds in all classes, by all rows: Σ_c f_c/n."""
        cells = [
            1 if column < self.continuous else self.cardinalities[column - self.continuous]
            for column in (i, j)
        ]
        if cells == [1, 1] and max(i, j) < self.continuous:
            parameters = 1
        elif min(i, j) < self.continuous:
            parameters = 2 * (max(cells) - 1)
        else:
            parameters = (cells[0] - 1) * (cells[1] - 1)
        return self.classes * parameters / self.rows

    @cached_property
    def of_class(self) -> np.ndarray:
        """I(X_i; C), from the mean of a column's margins in all its tables: [D]."""
        information = np.zeros(self.columns)
        for column in range(self.columns):
            margins = [
                table.sum(axis=2 if column == pair[0] else 1)
                for pair, table in self.tables.items()
                if column in pair
            ]
            if margins:
                information[column] = mutual(np.maximum(np.mean(margins, axis=0), 0.0))
        return information

    def crosses(self, schema: Schema) -> tuple[Cross, ...]:
        """Return the pairs of columns of cells that say more of the class together, at most 8, the best first."""
        gained = {}
        for pair, table in self.tables.items():
            gain, deviation = self._beyond(
                table, _additive(table, self.noise), _freedom(table.shape[1:]) * (len(table) - 1)
            )
            if gain > ABOVE * deviation:
                gained[pair] = gain
        best = sorted(gained, key=lambda pair: (-gained[pair], pair))[:MOST_CROSSES]
        names = [schema.names[j] for j in schema.discrete]
        return declared_crosses(tuple((names[i], names[j]) for i, j in best), schema, GROUPS)

    def _beyond(self, table: np.ndarray, expected: np.ndarray, freedom: int) -> tuple[float, float]:
        """Return by how much a table differs from what is expected, in nats a row, and its standard deviation."""
        if freedom <= 0:
            return 0.0, 0.0
        scale = np.maximum(expected, max(self.noise, 1e-9))
        variance = (self.noise**2 + expected) / scale * (freedom / table.size)
        beyond = float(((table - expected) ** 2 / scale - variance).sum())
        deviation = math.sqrt(2.0 * table.size / freedom * float((variance**2).sum()))
        return beyond / (2 * self.rows), deviation / (2 * self.rows)


def _freedom(shape: tuple[int, ...]) -> int:
    return (shape[0] - 1) * (shape[1] - 1)


def _independent(table: np.ndarray) -> np.ndarray:
    """Return the counts if both columns were independent in each class: [C, a, b] -> [C, a, b]."""
    first, second = (np.maximum(table.sum(axis=axis, keepdims=True), 0.0) for axis in (2, 1))
    return first * second / np.maximum(table.sum(axis=(1, 2), keepdims=True), 1.0)


def _additive(table: np.ndarray, noise: float) -> np.ndarray:
    """Return the counts without an interaction of both columns and the class, of the same margins: [C, a, b]."""
    least = np.maximum(table, max(noise / 10, 1e-9))
    fitted = np.ones(table.shape)
    for _ in range(SWEEPS):
        for axis in range(3):
            fitted = fitted * (least.sum(axis=axis, keepdims=True) / fitted.sum(axis=axis, keepdims=True))
    return fitted
