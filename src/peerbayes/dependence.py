"""How much columns tell about each other given the class, from statistics of pairs that add up over peers.

    I(X_i; X_j | C) = Σ_c p(c) I_c(X_i; X_j)        in nats

    discrete, discrete       Σ_ab p(a,b) log p(a,b)/(p(a) p(b))
    continuous, continuous   −½ log(1 − ρ²)
    continuous, discrete     ½ log σ² − Σ_a p(a) ½ log σ²_a

TAN is the tree that tells most (Chow and Liu); KDB gives each column the k parents among those before it that tell
most of it.
A discrete column takes discrete parents only, so discrete columns form a tree of their own at the top.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from peerbayes.errors import StructureError
from peerbayes.families.base import Rows
from peerbayes.families.structures import Parents, checked
from peerbayes.passes import FRAME_ROWS, Source

# Rows like those of the whole class that are added to each category when its variance is estimated.
PSEUDO_ROWS = 5.0

# Correlations are held below one, and variances above this share of a standardised column's.
CORRELATION, VARIANCE = 1.0 - 1e-9, 1e-6

# Categories up to which one-hots are written out for a matrix product, and rows of a block of them.
FEW_CATEGORIES, BLOCK_ROWS = 512, 2048

# Numbers that the statistics of all pairs may have before they are refused: half a gigabyte.
MOST_NUMBERS = 1 << 26


@dataclass(frozen=True, eq=False)
class Pairs:
    """Sums over rows of each class, of every pair of columns; of the rows where both are present."""

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
        """From encoded rows [n, Dc], [n, Dd] and class indices [n]."""
        continuous, categories = rows.values.shape[1], sum(cardinalities)
        refuse_many(classes, continuous, cardinalities)
        products = _products if categories <= FEW_CATEGORIES else _counted
        moments = np.zeros((classes, 4, continuous, continuous))
        mixed = np.zeros((classes, 3, categories, continuous))
        cells = np.zeros((classes, categories, categories))
        counts = np.zeros(classes)
        for c in range(classes):
            mine = np.flatnonzero(labels == c)
            some = Rows(rows.values[mine], rows.codes[mine])
            weight = None if weights is None else weights[mine]
            counts[c] = mine.size if weight is None else weight.sum()
            moments[c], mixed[c], cells[c] = products(some, weight, cardinalities)
        return cls(continuous, cardinalities, counts, moments, mixed, cells)

    def __add__(self, other: Pairs) -> Pairs:
        return self.from_vector(self.vector + other.vector)

    @property
    def vector(self) -> np.ndarray:
        """All numbers, one after the other: what peers add up. [M]."""
        return np.concatenate([part.ravel() for part in (self.counts, self.moments, self.mixed, self.cells)])

    def from_vector(self, vector: np.ndarray) -> Pairs:
        """Others of the same shape."""
        parts, place = [], 0
        for part in (self.counts, self.moments, self.mixed, self.cells):
            parts.append(vector[place : place + part.size].reshape(part.shape))
            place += part.size
        return Pairs(self.continuous, self.cardinalities, *parts)

    # --- information -----------------------------------------------------------------------------------

    @property
    def columns(self) -> int:
        return self.continuous + len(self.cardinalities)

    @cached_property
    def prior(self) -> np.ndarray:
        return np.maximum(self.counts, 0.0) / max(self.counts.sum(), np.finfo(float).tiny)

    @cached_property
    def information(self) -> np.ndarray:
        """I(X_i; X_j | C), continuous columns first: [D, D], zero on the diagonal."""
        told = np.zeros((self.columns, self.columns))
        d = self.continuous
        told[:d, :d] = np.einsum("c,cij->ij", self.prior, self._of_continuous())
        for a in range(len(self.cardinalities)):
            if d:
                told[d + a, :d] = told[:d, d + a] = self.prior @ self._of_mixed(a)
            told[d + a, d : d + a] = told[d : d + a, d + a] = self.prior @ self._of_discrete(a)
        np.fill_diagonal(told, 0.0)
        return np.maximum(told, 0.0)

    @cached_property
    def of_class(self) -> np.ndarray:
        """I(X_i; C): [D]."""
        told = np.zeros(self.columns)
        for j in range(self.continuous):
            count, first, second = (self.moments[:, k, j, j] for k in (0, 1, 2))
            told[j] = _between(count, first, second)[0]
        for a in range(len(self.cardinalities)):
            table = np.stack([np.diagonal(self._table(a, a)[c]) for c in range(len(self.counts))])
            told[self.continuous + a] = _mutual(table)
        return np.maximum(told, 0.0)

    def _slice(self, a: int) -> slice:
        begin = sum(self.cardinalities[:a])
        return slice(begin, begin + self.cardinalities[a])

    def _table(self, a: int, b: int) -> np.ndarray:
        return self.cells[:, self._slice(a), self._slice(b)]

    def _of_discrete(self, a: int) -> np.ndarray:
        """With each discrete column before it: [C, a]."""
        own, sizes = self._slice(a), np.array(self.cardinalities[:a], dtype=np.int64)
        return np.array([_mutuals(cells[own, : own.start], sizes) for cells in self.cells])

    def _of_continuous(self) -> np.ndarray:
        """[C, Dc, Dc]."""
        count, first, second, product = np.moveaxis(self.moments, 1, 0)
        rows = np.maximum(count, np.finfo(float).tiny)
        mean = first / rows  # of i where j is present
        variance = np.maximum(second / rows - mean**2, VARIANCE)
        covariance = product / rows - mean * np.swapaxes(mean, 1, 2)
        correlation = covariance / np.sqrt(variance * np.swapaxes(variance, 1, 2))
        limited = np.clip(correlation, -CORRELATION, CORRELATION)
        return -0.5 * np.log1p(-(limited**2))

    def _of_mixed(self, a: int) -> np.ndarray:
        """[C, Dc]."""
        count, first, second = np.moveaxis(self.mixed[:, :, self._slice(a)], 1, 0)  # each [C, r, Dc]
        return np.array([_between(*parts, PSEUDO_ROWS) for parts in zip(count, first, second, strict=True)])


def _known(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """o, x and x² with zeros where x is missing: three [n, Dc]."""
    present = ~np.isnan(values)
    known = np.where(present, values, 0.0)
    return present.astype(float), known, known * known


def _products(
    rows: Rows, weight: np.ndarray | None, cardinalities: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`Pairs` of one class by one matrix product, a block of rows at a time: few categories are written out."""
    d, categories = rows.values.shape[1], sum(cardinalities)
    offsets = np.concatenate([[0], np.cumsum(cardinalities)]).astype(np.int64)[:-1]
    total = np.zeros((categories + 3 * d,) * 2)
    kind = np.float32 if weight is None and not d else np.float64  # counts of a block are exact in both
    for start in range(0, len(rows.codes), BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        codes = rows.codes[part]
        written = np.zeros((len(codes), categories + 1 + 3 * d), dtype=kind)  # missing values go to the first
        place = codes + (1 + offsets)
        if place.size and codes.min() < 0:
            place[codes < 0] = 0
        written.reshape(-1)[place + written.shape[1] * np.arange(len(codes))[:, None]] = 1.0
        if d:
            written[:, categories + 1 :] = np.concatenate(_known(rows.values[part]), axis=1)
        written = written[:, 1:]
        total += (written if weight is None else written * weight[part, None]).T @ written
    o, x, squares = (slice(categories + k * d, categories + (k + 1) * d) for k in range(3))
    across = total[:categories]
    moments = np.stack([total[o, o], total[x, o], total[squares, o], total[x, x]])
    return moments, np.stack([across[:, o], across[:, x], across[:, squares]]), across[:, :categories]


def _counted(
    rows: Rows, weight: np.ndarray | None, cardinalities: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same by counting: many categories are not written out."""
    weight = np.ones(len(rows.codes)) if weight is None else weight
    parts = [part * weight[:, None] for part in _known(rows.values)]
    present, known, _ = _known(rows.values)
    moments = np.stack([parts[0].T @ present, parts[1].T @ present, parts[2].T @ present, parts[1].T @ known])
    d, categories, codes = rows.values.shape[1], sum(cardinalities), rows.codes
    offsets = np.concatenate([[0], np.cumsum(cardinalities)]).astype(np.int64)
    mixed, cells = np.zeros((3, categories, d)), np.zeros((categories, categories))
    for a, size in enumerate(cardinalities):
        there, own = codes[:, a] >= 0, slice(offsets[a], offsets[a + 1])
        for k, part in enumerate(parts):
            for j in range(d):
                mixed[k, own, j] = np.bincount(codes[there, a], part[there, j], minlength=size)
        for b in range(a, len(cardinalities)):
            both, width, other = (
                there & (codes[:, b] >= 0),
                cardinalities[b],
                slice(offsets[b], offsets[b + 1]),
            )
            flat = codes[both, a].astype(np.int64) * width + codes[both, b]
            table = np.bincount(flat, weight[both], minlength=size * width).reshape(size, width)
            cells[own, other], cells[other, own] = table, table.T
    return moments, mixed, cells


def pairs_of(
    source: Source,
    labels: np.ndarray,
    classes: int,
    cardinalities: tuple[int, ...],
    weights: np.ndarray | None = None,
) -> Pairs:
    """From rows of a table, a part of them at a time."""
    total: Pairs | None = None
    for start, block in source.blocks(FRAME_ROWS):
        part = slice(start, start + len(block.codes))
        some = None if weights is None else weights[part]
        found = Pairs.of(block.rows(), labels[part], classes, cardinalities, some)
        total = found if total is None else total + found
    assert total is not None
    return total


def refuse_many(classes: int, continuous: int, cardinalities: tuple[int, ...]) -> None:
    """Say how many numbers the pairs would have before they are allocated."""
    categories = sum(cardinalities)
    numbers = classes * (4 * continuous**2 + 3 * categories * continuous + categories**2)
    if numbers > MOST_NUMBERS:
        raise StructureError(
            f"the statistics of all pairs of {continuous} continuous columns and {categories:,} categories in "
            f"{classes} classes are {numbers:,} numbers ({8 * numbers / 2**30:.1f} GB); at most {MOST_NUMBERS:,} are "
            "learned from. Leave out columns with many categories, or give the structure yourself"
        )


def _mutual(table: np.ndarray) -> float:
    """Σ p(a,b) log p(a,b)/(p(a)p(b)) of counts [r, s]."""
    total = table.sum()
    if total <= 0:
        return 0.0
    joint = np.maximum(table, 0.0) / total
    apart = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    some = joint > 0
    return float(np.sum(joint[some] * np.log(joint[some] / apart[some])))


def _mutuals(tables: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """`_mutual` of tables with the same rows, side by side: [r, Σs] -> as many as there are sizes s."""
    if not sizes.size:
        return np.zeros(0)
    starts = np.cumsum(sizes) - sizes
    total = np.add.reduceat(tables.sum(axis=0), starts)
    joint = np.maximum(tables, 0.0) / np.repeat(np.where(total > 0, total, np.inf), sizes)
    apart = np.repeat(np.add.reduceat(joint, starts, axis=1), sizes, axis=1) * joint.sum(axis=0)
    some = joint > 0
    terms = np.zeros(joint.shape)
    terms[some] = joint[some] * np.log(joint[some] / apart[some])
    return np.add.reduceat(terms.sum(axis=0), starts)


def _between(count: np.ndarray, first: np.ndarray, second: np.ndarray, pseudo: float = 0.0) -> np.ndarray:
    """½ log σ² − Σ_a p(a) ½ log σ²_a of moments by category [r, …], with pseudo-rows like those of all: […]."""
    count, first, second = (part.reshape(len(part), -1) for part in (count, first, second))
    rows = np.maximum(count.sum(axis=0), np.finfo(float).tiny)
    mean = first.sum(axis=0) / rows
    variance = np.maximum(second.sum(axis=0) / rows - mean**2, VARIANCE)
    extra = pseudo * (count > 0)
    held = np.maximum(count + extra, np.finfo(float).tiny)
    own = (first + extra * mean) / held
    inside = np.maximum((second + extra * (variance + mean**2)) / held - own**2, VARIANCE)
    return 0.5 * np.log(variance) - np.sum(np.maximum(count, 0.0) / rows * 0.5 * np.log(inside), axis=0)


# --- structures --------------------------------------------------------------------------------------------


def tan(pairs: Pairs) -> Parents:
    """The tree that tells most, directed away from its first discrete column, or the first one."""
    d, columns = pairs.continuous, pairs.columns
    chosen = _spanning(pairs.information, range(d, columns), [])
    chosen += _spanning(pairs.information, range(columns), chosen)
    root = d if columns > d else 0
    beside: dict[int, list[int]] = {column: [] for column in range(columns)}
    for i, j in chosen:
        beside[i].append(j)
        beside[j].append(i)
    parents: list[tuple[int, ...]] = [() for _ in range(columns)]
    seen, ahead = {root}, [root] if columns else []
    while ahead:
        at = ahead.pop()
        for other in beside[at]:
            if other not in seen:
                seen.add(other)
                parents[other] = (at,)
                ahead.append(other)
    return checked(parents, d, columns)


def _spanning(information: np.ndarray, columns: range, given: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The links that make `given` a spanning tree of the columns and tell most (Kruskal); ties go to low numbers."""
    part = {column: column for column in columns}

    def root(column: int) -> int:
        while part[column] != column:
            part[column] = column = part[part[column]]
        return column

    for i, j in given:
        part[root(i)] = root(j)
    links = sorted(
        ((i, j) for i in columns for j in columns if i < j), key=lambda pair: (-information[pair], pair)
    )
    chosen = []
    for i, j in links:
        if root(i) != root(j):
            part[root(i)] = root(j)
            chosen.append((i, j))
    return chosen


def kdb(pairs: Pairs, k: int = 2) -> Parents:
    """Each column's k parents among those that tell more about the class: those that tell most about it."""
    if k < 0:
        raise StructureError(f"k is {k}; expected 0 or more parents")
    d, told = pairs.continuous, pairs.information
    order = sorted(range(pairs.columns), key=lambda column: (-pairs.of_class[column], column))
    parents: list[tuple[int, ...]] = [() for _ in range(pairs.columns)]
    for place, column in enumerate(order):
        before = [other for other in order[:place] if column < d or other >= d]
        before.sort(key=lambda other: (-told[column, other], other))
        parents[column] = tuple(sorted(before[:k]))
    return checked(parents, d, pairs.columns)


def total_information(pairs: Pairs, parents: Parents) -> float:
    """What the links of a structure tell, added up: what peers compare a proposal by."""
    return float(
        sum(pairs.information[column, parent] for column, own in enumerate(parents) for parent in own)
    )
