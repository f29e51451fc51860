"""Mutual information between columns given the class, from statistics of pairs that add up over peers.

    I(X_i; X_j | C) = Σ_c p(c) I_c(X_i; X_j)        in nats

    discrete, discrete       Σ_ab p(a,b) log p(a,b)/(p(a) p(b))
    continuous, continuous   −½ log(1 − ρ²)
    continuous, discrete     ½ log σ² − Σ_a p(a) ½ log σ²_a

TAN is the tree of maximum information (Chow and Liu). KDB ranks columns by their information about the class, and
gives each one the k parents among those ranked higher with which it shares most.
A discrete column takes discrete parents only, so discrete columns form a tree of their own at the top.

Information measured in n rows is too large by about f/2n, f the parameters that a link adds in a class, and the link
then predicts new rows worse than it does these by as much again. A penalty takes that off; a link that is left with
nothing is refused, so that the tree becomes a forest and columns have fewer parents:

    none   0        as Chow and Liu have it: every link is taken
    aic    f/n      what the link gains on new rows
    bic    f·½ log N/n, N all rows
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from peerbayes.data.table import FRAME_ROWS, Rows
from peerbayes.errors import StructureError
from peerbayes.model.families.structures import Parents, checked
from peerbayes.model.sources import Source

# Pseudo-rows with the class's moments that are added to each category when its variance is estimated.
PSEUDO_ROWS = 5.0

# The largest correlation, and the least variance, in standardised units.
CORRELATION, VARIANCE = 1.0 - 1e-9, 1e-6

# Penalties of a link, for each parameter that it adds, by the number of all rows N; None: no penalty.
PENALTIES: dict[str, Callable[[float], float] | None] = {
    "none": None,
    "aic": lambda rows: 1.0,
    "bic": lambda rows: 0.5 * math.log(max(rows, 1.0)),
}

# The most categories whose one-hots are expanded for a matrix product, and rows of a block of them.
FEW_CATEGORIES, BLOCK_ROWS = 512, 2048

# The most numbers that the statistics of all pairs may have: half a gigabyte.
MOST_NUMBERS = 1 << 26


@dataclass(frozen=True, eq=False)
class Pairs:
    """Sums over the rows of each class, for every pair of columns, where both are present."""

    continuous: int
    cardinalities: tuple[int, ...]
    counts: np.ndarray  # [C] rows
    moments: np.ndarray  # [C, 4, Dc, Dc] Σ o_i o_j, Σ x_i o_j, Σ x_i² o_j, Σ x_i x_j
    mixed: np.ndarray  # [C, 3, R, Dc] Σ o_j, Σ x_j, Σ x_j² by category; R all categories
    cells: np.ndarray  # [C, R, R] rows by two categories

    @classmethod
    def of(
        cls,
        rows: Rows,
        labels: np.ndarray,
        classes: int,
        cardinalities: tuple[int, ...],
        weights: np.ndarray | None = None,
    ) -> Pairs:
        """Return the sums of encoded rows [n, Dc], [n, Dd] with class indices [n]."""
        continuous, categories = rows.values.shape[1], sum(cardinalities)
        refuse_many(classes, continuous, cardinalities)
        products = _products if categories <= FEW_CATEGORIES else _counted
        moments = np.zeros((classes, 4, continuous, continuous))
        mixed = np.zeros((classes, 3, categories, continuous))
        cells = np.zeros((classes, categories, categories))
        counts = np.zeros(classes)
        for c in range(classes):
            members = np.flatnonzero(labels == c)
            class_rows = Rows(rows.values[members], rows.codes[members])
            weight = None if weights is None else weights[members]
            counts[c] = members.size if weight is None else weight.sum()
            moments[c], mixed[c], cells[c] = products(class_rows, weight, cardinalities)
        return cls(continuous, cardinalities, counts, moments, mixed, cells)

    def __add__(self, other: Pairs) -> Pairs:
        return self.from_vector(self.vector + other.vector)

    @property
    def vector(self) -> np.ndarray:
        """All numbers concatenated, the form in which peers add them up: [M]."""
        return np.concatenate(
            [array.ravel() for array in (self.counts, self.moments, self.mixed, self.cells)]
        )

    def from_vector(self, vector: np.ndarray) -> Pairs:
        """Return pairs of the same shape with the numbers of `vector`."""
        arrays, offset = [], 0
        for array in (self.counts, self.moments, self.mixed, self.cells):
            arrays.append(vector[offset : offset + array.size].reshape(array.shape))
            offset += array.size
        return Pairs(self.continuous, self.cardinalities, *arrays)

    # --- information -----------------------------------------------------------------------------------

    @property
    def columns(self) -> int:
        """The number of columns, D."""
        return self.continuous + len(self.cardinalities)

    @cached_property
    def prior(self) -> np.ndarray:
        """The share of each class: [C]."""
        return np.maximum(self.counts, 0.0) / max(self.counts.sum(), np.finfo(float).tiny)

    @cached_property
    def information(self) -> np.ndarray:
        """I(X_i; X_j | C), continuous columns first: [D, D], zero on the diagonal."""
        information = np.zeros((self.columns, self.columns))
        d = self.continuous
        information[:d, :d] = np.einsum("c,cij->ij", self.prior, self._of_continuous())
        for a in range(len(self.cardinalities)):
            if d:
                information[d + a, :d] = information[:d, d + a] = self.prior @ self._of_mixed(a)
            information[d + a, d : d + a] = information[d : d + a, d + a] = self.prior @ self._of_discrete(a)
        np.fill_diagonal(information, 0.0)
        return np.maximum(information, 0.0)

    @cached_property
    def freedom(self) -> np.ndarray:
        """Σ_c p(c) f_c/n_c: parameters that a link adds, by the rows with both columns present. [D, D].

        Categories that no row of the class has add none.
        """
        d, starts = self.continuous, np.cumsum([0, *self.cardinalities])[:-1]
        parameters = np.ones((self.counts.size, self.columns, self.columns))
        rows = np.zeros(parameters.shape)
        rows[:, :d, :d] = self.moments[:, 0]
        if starts.size:
            pairs = np.add.reduceat(np.maximum(self.cells, 0.0), starts, axis=2)  # [C, R, Dd]
            rows[:, d:, d:] = np.add.reduceat(pairs, starts, axis=1)
            levels = np.add.reduceat(
                (pairs > 0).astype(float), starts, axis=1
            )  # of a row's column, [C, Dd, Dd]
            parameters[:, d:, d:] = (levels - 1.0) * (np.swapaxes(levels, 1, 2) - 1.0)
            present = np.maximum(self.mixed[:, 0], 0.0)  # [C, R, Dc]
            across = 2.0 * (np.add.reduceat((present > 0).astype(float), starts, axis=1) - 1.0)
            beside_rows = np.add.reduceat(present, starts, axis=1)
            parameters[:, d:, :d], parameters[:, :d, d:] = across, np.swapaxes(across, 1, 2)
            rows[:, d:, :d], rows[:, :d, d:] = beside_rows, np.swapaxes(beside_rows, 1, 2)
        shares = np.divide(np.maximum(parameters, 0.0), rows, out=np.zeros(rows.shape), where=rows > 0)
        return np.einsum("c,cij->ij", self.prior, shares)

    def score(self, penalty: str) -> np.ndarray:
        """Return the information of each pair less its penalty: [D, D]; a link below 0 is refused."""
        weight = penalised(penalty, float(self.counts.sum()))
        return self.information - weight * self.freedom if weight else self.information

    @cached_property
    def of_class(self) -> np.ndarray:
        """I(X_i; C): [D]."""
        information = np.zeros(self.columns)
        for j in range(self.continuous):
            count, first, second = (self.moments[:, k, j, j] for k in (0, 1, 2))
            information[j] = _between(count, first, second)[0]
        for a in range(len(self.cardinalities)):
            table = np.stack([np.diagonal(self._table(a, a)[c]) for c in range(len(self.counts))])
            information[self.continuous + a] = mutual(table)
        return np.maximum(information, 0.0)

    def _slice(self, a: int) -> slice:
        """Return the categories of discrete column `a` among all of them."""
        begin = sum(self.cardinalities[:a])
        return slice(begin, begin + self.cardinalities[a])

    def _table(self, a: int, b: int) -> np.ndarray:
        """Return the counts by class and by categories of two discrete columns: [C, r, s]."""
        return self.cells[:, self._slice(a), self._slice(b)]

    def _of_discrete(self, a: int) -> np.ndarray:
        """Return the information between discrete column `a` and each one before it, per class: [C, a]."""
        columns, sizes = self._slice(a), np.array(self.cardinalities[:a], dtype=np.int64)
        return np.array([_mutuals(cells[columns, : columns.start], sizes) for cells in self.cells])

    def _of_continuous(self) -> np.ndarray:
        """Return the information between continuous columns, per class: [C, Dc, Dc]."""
        count, first, second, product = np.moveaxis(self.moments, 1, 0)
        rows = np.maximum(count, np.finfo(float).tiny)
        mean = first / rows  # of i where j is present
        variance = np.maximum(second / rows - mean**2, VARIANCE)
        covariance = product / rows - mean * np.swapaxes(mean, 1, 2)
        correlation = covariance / np.sqrt(variance * np.swapaxes(variance, 1, 2))
        limited = np.clip(correlation, -CORRELATION, CORRELATION)
        return -0.5 * np.log1p(-(limited**2))

    def _of_mixed(self, a: int) -> np.ndarray:
        """Return the information between discrete column `a` and the continuous ones, per class: [C, Dc]."""
        count, first, second = np.moveaxis(self.mixed[:, :, self._slice(a)], 1, 0)  # each [C, r, Dc]
        return np.array(
            [_between(*moments, PSEUDO_ROWS) for moments in zip(count, first, second, strict=True)]
        )


def _powers(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return o, x and x² with zeros where x is missing: three [n, Dc]."""
    present = ~np.isnan(values)
    filled = np.where(present, values, 0.0)
    return present.astype(float), filled, filled * filled


def _products(
    rows: Rows, weight: np.ndarray | None, cardinalities: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the `Pairs` of one class by matrix products of blocks with expanded one-hots: for few categories."""
    d, categories = rows.values.shape[1], sum(cardinalities)
    offsets = np.concatenate([[0], np.cumsum(cardinalities)]).astype(np.int64)[:-1]
    total = np.zeros((categories + 3 * d,) * 2)
    kind = np.float32 if weight is None and not d else np.float64  # counts of a block are exact in both
    for start in range(0, len(rows.codes), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        codes = rows.codes[block]
        # Missing values go to the first column.
        expanded = np.zeros((len(codes), categories + 1 + 3 * d), dtype=kind)
        index = codes + (1 + offsets)
        if index.size and codes.min() < 0:
            index[codes < 0] = 0
        expanded.reshape(-1)[index + expanded.shape[1] * np.arange(len(codes))[:, None]] = 1.0
        if d:
            expanded[:, categories + 1 :] = np.concatenate(_powers(rows.values[block]), axis=1)
        expanded = expanded[:, 1:]
        total += (expanded if weight is None else expanded * weight[block, None]).T @ expanded
    o, x, squares = (slice(categories + k * d, categories + (k + 1) * d) for k in range(3))
    across = total[:categories]
    moments = np.stack([total[o, o], total[x, o], total[squares, o], total[x, x]])
    return moments, np.stack([across[:, o], across[:, x], across[:, squares]]), across[:, :categories]


def _counted(
    rows: Rows, weight: np.ndarray | None, cardinalities: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the same by counting, without one-hots: for many categories."""
    weight = np.ones(len(rows.codes)) if weight is None else weight
    weighted = [powers * weight[:, None] for powers in _powers(rows.values)]
    observed, filled, _ = _powers(rows.values)
    moments = np.stack(
        [weighted[0].T @ observed, weighted[1].T @ observed, weighted[2].T @ observed, weighted[1].T @ filled]
    )
    d, categories, codes = rows.values.shape[1], sum(cardinalities), rows.codes
    offsets = np.concatenate([[0], np.cumsum(cardinalities)]).astype(np.int64)
    mixed, cells = np.zeros((3, categories, d)), np.zeros((categories, categories))
    for a, size in enumerate(cardinalities):
        present, rows_of_a = codes[:, a] >= 0, slice(offsets[a], offsets[a + 1])
        for k, powers in enumerate(weighted):
            for j in range(d):
                mixed[k, rows_of_a, j] = np.bincount(codes[present, a], powers[present, j], minlength=size)
        for b in range(a, len(cardinalities)):
            both, width, columns_of_b = (
                present & (codes[:, b] >= 0),
                cardinalities[b],
                slice(offsets[b], offsets[b + 1]),
            )
            flat = codes[both, a].astype(np.int64) * width + codes[both, b]
            table = np.bincount(flat, weight[both], minlength=size * width).reshape(size, width)
            cells[rows_of_a, columns_of_b], cells[columns_of_b, rows_of_a] = table, table.T
    return moments, mixed, cells


def pairs_of(
    source: Source,
    labels: np.ndarray,
    classes: int,
    cardinalities: tuple[int, ...],
    weights: np.ndarray | None = None,
) -> Pairs:
    """Return the sums of the rows of a source, block by block."""
    total: Pairs | None = None
    for start, block in source.blocks(FRAME_ROWS):
        block_rows = slice(start, start + len(block.codes))
        block_weights = None if weights is None else weights[block_rows]
        pairs = Pairs.of(block.rows(), labels[block_rows], classes, cardinalities, block_weights)
        total = pairs if total is None else total + pairs
    assert total is not None
    return total


def refuse_many(classes: int, continuous: int, cardinalities: tuple[int, ...]) -> None:
    """Refuse pairs that would need too much memory, before they are allocated."""
    categories = sum(cardinalities)
    numbers = classes * (4 * continuous**2 + 3 * categories * continuous + categories**2)
    if numbers > MOST_NUMBERS:
        raise StructureError(
            f"the statistics of all pairs of {continuous} continuous columns and {categories:,} categories in "
            f"{classes} classes are {numbers:,} numbers ({8 * numbers / 2**30:.1f} GB); at most {MOST_NUMBERS:,} are "
            "supported. Leave out columns with many categories, or give the structure yourself"
        )


def mutual(table: np.ndarray) -> float:
    """Return Σ p(a,b) log p(a,b)/(p(a)p(b)) of counts [r, s]."""
    total = table.sum()
    if total <= 0:
        return 0.0
    joint = np.maximum(table, 0.0) / total
    independent = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    positive = joint > 0
    return float(np.sum(joint[positive] * np.log(joint[positive] / independent[positive])))


def _mutuals(tables: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return `mutual` of adjacent tables with the same rows: [r, Σs] -> [number of tables]."""
    if not sizes.size:
        return np.zeros(0)
    starts = np.cumsum(sizes) - sizes
    total = np.add.reduceat(tables.sum(axis=0), starts)
    joint = np.maximum(tables, 0.0) / np.repeat(np.where(total > 0, total, np.inf), sizes)
    independent = np.repeat(np.add.reduceat(joint, starts, axis=1), sizes, axis=1) * joint.sum(axis=0)
    positive = joint > 0
    terms = np.zeros(joint.shape)
    terms[positive] = joint[positive] * np.log(joint[positive] / independent[positive])
    return np.add.reduceat(terms.sum(axis=0), starts)


def _between(count: np.ndarray, first: np.ndarray, second: np.ndarray, pseudo: float = 0.0) -> np.ndarray:
    """Return ½ log σ² − Σ_a p(a) ½ log σ²_a of moments by category, with pseudo-rows of the class: [r, …] -> […]."""
    count, first, second = (moment.reshape(len(moment), -1) for moment in (count, first, second))
    rows = np.maximum(count.sum(axis=0), np.finfo(float).tiny)
    mean = first.sum(axis=0) / rows
    variance = np.maximum(second.sum(axis=0) / rows - mean**2, VARIANCE)
    extra = pseudo * (count > 0)
    rows_by_category = np.maximum(count + extra, np.finfo(float).tiny)
    mean_by_category = (first + extra * mean) / rows_by_category
    inner = np.maximum(
        (second + extra * (variance + mean**2)) / rows_by_category - mean_by_category**2, VARIANCE
    )
    return 0.5 * np.log(variance) - np.sum(np.maximum(count, 0.0) / rows * 0.5 * np.log(inner), axis=0)


# --- structures --------------------------------------------------------------------------------------------


class Scores(Protocol):
    """What structures are learned from: `Pairs`, or tables with noise."""

    @property
    def continuous(self) -> int:
        """Return the number of continuous columns, which come first."""

    @property
    def columns(self) -> int:
        """Return the number of columns, D."""

    @property
    def of_class(self) -> np.ndarray:
        """Return I(X_i; C): [D]."""

    def score(self, penalty: str) -> np.ndarray:
        """Return the information of each pair less its penalty: [D, D]; −∞ for a pair that may not be linked."""


def penalised(penalty: str, rows: float) -> float:
    """Return what each parameter of a link costs, by the name of a penalty and the number of all rows."""
    if penalty not in PENALTIES:
        raise StructureError(f"penalty is {penalty!r}; expected one of {', '.join(PENALTIES)}")
    weight = PENALTIES[penalty]
    return 0.0 if weight is None else weight(rows)


def tan(pairs: Scores, penalty: str = "none") -> Parents:
    """Return the tree of maximum score, directed away from its first discrete column, or the first one.

    With a penalty it may be a forest, each of whose trees is directed away from its first discrete, or first, column.
    """
    d, columns, score = pairs.continuous, pairs.columns, pairs.score(penalty)
    least = -math.inf if PENALTIES[penalty] is None else 0.0
    chosen = _spanning(score, range(d, columns), [], least)
    # A continuous column between two trees of discrete ones would be the parent of one: they count as linked.
    linked = [(i, i + 1) for i in range(d, columns - 1)]
    chosen += _spanning(score, range(columns), linked, least)
    neighbours: list[list[int]] = [[] for _ in range(columns)]
    for i, j in sorted(chosen):
        neighbours[i].append(j)
        neighbours[j].append(i)
    parents: list[tuple[int, ...]] = [() for _ in range(columns)]
    reached = [False] * columns
    for root in (*range(d, columns), *range(d)):
        queue = [] if reached[root] else [root]
        reached[root] = True
        for column in queue:  # grows
            children = [other for other in sorted(neighbours[column]) if not reached[other]]
            for child in children:
                parents[child], reached[child] = (column,), True
            queue += children
    return checked(parents, d, columns)


def _spanning(
    score: np.ndarray, columns: range, links_so_far: list[tuple[int, int]], least: float
) -> list[tuple[int, int]]:
    """Return the links above `least` that extend `links_so_far` to a maximum spanning tree, or forest (Kruskal).

    Ties go to low numbers.
    """
    parent_of = {column: column for column in columns}

    def root(column: int) -> int:
        while parent_of[column] != column:
            parent_of[column] = column = parent_of[parent_of[column]]
        return column

    for i, j in links_so_far:
        parent_of[root(i)] = root(j)
    links = sorted(
        ((i, j) for i in columns for j in columns if i < j and score[i, j] > least),
        key=lambda pair: (-score[pair], pair),
    )
    chosen = []
    for i, j in links:
        if root(i) != root(j):
            parent_of[root(i)] = root(j)
            chosen.append((i, j))
    return chosen


def kdb(pairs: Scores, k: int = 2, penalty: str = "none") -> Parents:
    """Return up to k parents of each column: those of highest score among columns that say more about the class."""
    if k < 0:
        raise StructureError(f"k is {k}; expected 0 or more parents")
    d, score = pairs.continuous, pairs.score(penalty)
    least = -math.inf if PENALTIES[penalty] is None else 0.0
    order = sorted(range(pairs.columns), key=lambda column: (-pairs.of_class[column], column))
    parents: list[tuple[int, ...]] = [() for _ in range(pairs.columns)]
    for rank, column in enumerate(order):
        before = [
            other for other in order[:rank] if (column < d or other >= d) and score[column, other] > least
        ]
        before.sort(key=lambda other: (-score[column, other], other))
        parents[column] = tuple(sorted(before[:k]))
    return checked(parents, d, pairs.columns)


def total_information(pairs: Pairs, parents: Parents, penalty: str = "none") -> float:
    """Return the total information of the links of a structure, less penalties: peers check a proposal by it."""
    score = pairs.score(penalty)
    return float(sum(score[column, parent] for column, links in enumerate(parents) for parent in links))
