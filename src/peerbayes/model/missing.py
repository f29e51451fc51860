"""Missing values in families whose columns depend on each other.

The log joint is linear in φ, so for each class c, with W = θ(S) and x = (x_obs, x_mis),

    log p(x_obs, c) = log ∫ exp⟨W_c, φ(x)⟩ dx_mis        Φ̃_c = E[φ(x) | x_obs, c]

(sums over categories). Learning uses Φ̃ in place of φ: maximum likelihood by expectation-maximisation, and RC by
R_c = Σ_n (y_nc − p(c | x_obs)) Φ̃_c. Σ_c R_c is then not zero: Φ̃ differs from class to class.

Observed features go through matrix products; the terms of the missing values come from loops over rows and classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from peerbayes.data.table import Rows
from peerbayes.errors import SchemaError, StructureError
from peerbayes.model import core
from peerbayes.model.families.base import LOG_2PI, Family
from peerbayes.model.families.bayes_net import BayesNet
from peerbayes.model.families.gaussian import Gaussian
from peerbayes.model.families.naive_bayes import NaiveBayes
from peerbayes.model.families.structures import order

# --- observed features: Φ in which a missing value is 0 and a block with a missing discrete column is empty

# The most entries of Φ that are kept between passes; and entries of a block, if there are more.
HELD_ENTRIES, BLOCK_ENTRIES = 1 << 23, 1 << 19


@dataclass(frozen=True, eq=False)
class ObservedFeatures:
    """Products with Φ, which is kept in memory if it is small, and computed block by block if not."""

    family: Family
    rows: Rows  # [n, Dc] without NaN unless φ takes it, [n, Dd]

    def logits(self, weights: np.ndarray) -> np.ndarray:
        """Return ΦWᵀ: [C, K] -> [n, C]."""
        out = np.empty((len(self.rows.values), len(weights)))
        for block, features in self._blocks():
            out[block] = self.family.log_joint(features, weights)
        return out

    def sums(self, credit: np.ndarray) -> np.ndarray:
        """Return YᵀΦ of any credit Y: [n, C] -> [C, K]."""
        total = np.zeros((credit.shape[1], self.family.size))
        for block, features in self._blocks():
            total += (features.T @ credit[block]).T
        return total

    def _blocks(self) -> Iterator[tuple[slice, Any]]:
        """Yield slices of the rows with their Φ."""
        rows = len(self.rows.values)
        entries = self.family.filled if self.family.wide else self.family.size
        if rows * entries <= HELD_ENTRIES:
            yield slice(0, rows), self._features
            return
        size = max(64, BLOCK_ENTRIES // entries)
        for start in range(0, rows, size):
            block = slice(start, start + size)
            yield block, self._expand(Rows(self.rows.values[block], self.rows.codes[block]))

    @cached_property
    def _features(self) -> Any:
        return self._expand(self.rows)

    def _expand(self, rows: Rows) -> Any:
        return self.family.sparse(rows) if self.family.wide else np.asarray(self.family.features(rows))


# --- the index of each coefficient of the log joint within φ, as arrays for the loops
# Apart from the leading 1, φ has two kinds of features: dense ones, x_i and x_i x_j, and blocks, one for each column
# that is discrete or has discrete parents. For each configuration of these parents a block has one entry for each
# category, or the upper triangle of uuᵀ, u = (1, x_j, x_Q).


@dataclass(frozen=True, eq=False)
class FeatureIndex:
    """Indices into φ. Columns are numbered with continuous ones first; −1 stands for none."""

    continuous: int
    single: np.ndarray  # [Dc] index of x_i
    pair: np.ndarray  # [Dc, Dc] index of x_i x_j
    parents: tuple[tuple[int, ...], ...]  # [D] of each column
    blocks: np.ndarray  # [B, 3] column, offset of its block, entries per configuration
    cliques: tuple[tuple[int, ...], ...]  # columns that φ multiplies with each other
    cardinalities: np.ndarray  # [Dd]
    linked: np.ndarray  # [D] whether φ cannot represent the column where it is missing

    @classmethod
    def of(cls, family: Family) -> FeatureIndex:
        """Return the index of a family; SchemaError if it does not support missing values."""
        if isinstance(family, BayesNet):
            return cls._of_network(family)
        if not isinstance(family, Gaussian):
            raise SchemaError(
                f"{family.name} needs every continuous value, and some are missing (NaN); fill them in first, for "
                "instance with sklearn.impute.SimpleImputer, or use another family"
            )
        d, discrete = family.continuous, len(family.cardinalities)
        pair = np.full((d, d), -1)
        upper, right = np.triu_indices(d)
        pair[upper, right] = pair[right, upper] = 1 + d + np.arange(upper.size)
        parents: tuple[tuple[int, ...], ...] = ((),) * (d + discrete)
        no_blocks = np.zeros((0, 3), dtype=np.int64)
        sizes = np.array(family.cardinalities, dtype=np.int64)
        linked = np.repeat([True, False], [d, discrete])
        return cls(d, 1 + np.arange(d), pair, parents, no_blocks, (tuple(range(d)),), sizes, linked)

    @classmethod
    def _of_network(cls, family: BayesNet) -> FeatureIndex:
        d = family.continuous
        single, pair = np.full(d, -1), np.full((d, d), -1)
        for index, i in enumerate(family.singles):
            single[i] = 1 + index
        for index, (i, j) in enumerate(family.products):
            pair[i, j] = pair[j, i] = 1 + len(family.singles) + index
        linked = family.linked
        blocks = [(j, offset, width) for j, offset, _, width in family.blocks if linked[j]]
        cliques = tuple((j, *column_parents) for j, column_parents in enumerate(family.parents) if linked[j])
        sizes = np.array(family.cardinalities, dtype=np.int64)
        block_table = np.array(blocks, dtype=np.int64).reshape(-1, 3)
        return cls(d, single, pair, family.parents, block_table, cliques, sizes, linked)

    @cached_property
    def tree(self) -> bool:
        """Whether φ multiplies no columns but a column and its only parent: the two columns of a QDA have none."""
        return all(
            len(clique) <= 2 and clique[1:] == self.parents[clique[0]] for clique in self.cliques if clique
        )

    @cached_property
    def block_of(self) -> np.ndarray:
        """Return the offset and the entries per configuration of each column's block, −1 without one: [D, 2]."""
        blocks = np.full((len(self.parents), 2), -1, dtype=np.int64)
        blocks[self.blocks[:, 0]] = self.blocks[:, 1:]
        return blocks

    @cached_property
    def members(self) -> np.ndarray:
        """Return the columns of each clique, padded with −1: [cliques, most]."""
        return _padded(self.cliques)

    @cached_property
    def linear(self) -> np.ndarray:
        """Return x_j and its continuous parents for each block, none for a discrete column: [B, 1 + most]."""
        d = self.continuous
        columns = [(j, *(p for p in self.parents[j] if p < d)) if j < d else () for j in self.blocks[:, 0]]
        return _padded(columns)

    @cached_property
    def choosing(self) -> np.ndarray:
        """Return the discrete columns, numbered among these, that select a block's configuration: [B, most]."""
        d = self.continuous
        return _padded([tuple(p - d for p in self.parents[j] if p >= d) for j in self.blocks[:, 0]])


def _padded(lists: tuple[tuple[int, ...], ...] | list[tuple[int, ...]]) -> np.ndarray:
    """Return the lists as one array, padded with −1: [lists, longest]."""
    table = np.full((len(lists), max((len(items) for items in lists), default=0)), -1, dtype=np.int64)
    for index, items in enumerate(lists):
        table[index, : len(items)] = items
    return table


# --- the start of expectation-maximisation: columns that are independent given the class
# `apart` returns sums over the observed values, which add up over peers: the statistics of naive Bayes with missing
# values. `alone` turns them into statistics of the family in which a missing value depends on nothing but the class.

# Pseudo-rows of mean 0, variance 1 and equal cells, as a share of a class's rows: they define a column without a value.
PSEUDO_SHARE = 1e-6


def apart(family: Family, rows: Rows, credit: np.ndarray) -> np.ndarray:
    """Return YᵀΦ of naive Bayes: counts, Σo, Σx, Σx² and cells of each column by itself. [n, C] -> [C, M]."""
    return ObservedFeatures(_naive(family), rows).sums(credit)


def alone(family: Family, sums: np.ndarray) -> np.ndarray:
    """Return S in which columns are independent given the class, from the sums of `apart`: [..., C, M] -> [..., C, K].

    S_c = n_c E[φ]; each entry is a product of the expectations of its columns.
    """
    naive = _naive(family)
    d, count = family.continuous, sums[..., 0]
    rows = np.where(count > 0, count, 1.0)[..., None]
    sums = sums + PSEUDO_SHARE * rows * naive.uniform(1)[0]
    observed, first, second = (sums[..., 1 + k * d : 1 + (k + 1) * d] for k in range(3))
    mean, square = first / observed, second / observed
    cells = []
    for begin, size in zip(naive.dense_size + naive.offsets, family.cardinalities, strict=True):
        column_counts = sums[..., begin : begin + size]
        cells.append(column_counts / column_counts.sum(axis=-1, keepdims=True))
    if isinstance(family, BayesNet):
        row = _network_row(family, mean, square, cells)
    else:
        upper, right = np.triu_indices(d)
        products = np.where(upper == right, square[..., upper], mean[..., upper] * mean[..., right])
        row = np.concatenate([np.ones_like(count)[..., None], mean, products, *cells], axis=-1)
    return count[..., None] * row


def _network_row(
    family: BayesNet, mean: np.ndarray, square: np.ndarray, cells: list[np.ndarray]
) -> np.ndarray:
    """Return E[φ] of independent columns in the layout of a Bayesian network: [..., C, K]."""
    row = np.zeros((*mean.shape[:-1], family.size))
    row[..., 0] = 1.0
    row[..., 1 : 1 + len(family.singles)] = mean[..., list(family.singles)]
    for offset, (i, j) in enumerate(family.products, start=1 + len(family.singles)):
        row[..., offset] = square[..., i] if i == j else mean[..., i] * mean[..., j]
    for column, offset, configurations, width in family.blocks:
        linear, discrete = family.split(column)
        probability = np.ones((*mean.shape[:-1], 1))
        for parent in discrete:
            probability = (probability[..., :, None] * cells[parent][..., None, :]).reshape(
                *mean.shape[:-1], -1
            )
        if column >= family.continuous:
            expected = cells[column - family.continuous]
        else:
            members = [column, *linear]
            upper, right = np.triu_indices(len(members))
            first, second = np.array(members)[upper], np.array(members)[right]
            products = np.where(first == second, square[..., first], mean[..., first] * mean[..., second])
            expected = np.concatenate([np.ones((*mean.shape[:-1], 1)), mean[..., members], products], axis=-1)
        block = probability[..., :, None] * expected[..., None, :]
        row[..., offset : offset + configurations * width] = block.reshape(*mean.shape[:-1], -1)
    return row


def _naive(family: Family) -> NaiveBayes:
    """Return naive Bayes for the same columns, in the layout for missing values."""
    return NaiveBayes(continuous=family.continuous, cardinalities=family.cardinalities, missing=True)


# --- rows with missing values: log p(x_obs, c) of each, and Σ credit·E[φ | x_obs, c] over them

# The most joint values of missing discrete columns that are enumerated for one row.
MOST_CONFIGURATIONS = 1 << 16


@dataclass(frozen=True, eq=False)
class Completion:
    """Rows of a family; without missing values in this class. W = θ(S) is an argument: [C, K]."""

    family: Family
    rows: Rows  # [n, Dc], [n, Dd]
    names: Sequence[str] | None = None
    """Of the columns, continuous ones first: for errors."""
    numbers: np.ndarray | None = None
    """Of the rows [n]: for errors."""

    def log_joint(self, weights: np.ndarray) -> np.ndarray:
        """Return log p(x_obs, c): [C, K] -> [n, C]."""
        weights = np.ascontiguousarray(weights)
        logs = self._observed.logits(weights)
        self._add(weights, None, logs, None)
        return logs

    def statistics(self, weights: np.ndarray, credit: np.ndarray) -> tuple[np.ndarray, float]:
        """Return Σ_n credit_nc E[φ(x_n) | x_obs, c] [C, K] and Σ_nc credit_nc log p(x_obs, c).

        W [C, K] and credit [n, C] are the arguments.
        """
        weights = np.ascontiguousarray(weights)
        stats = self._observed.sums(credit)
        logs = np.zeros(credit.shape)
        observed_likelihood = float(np.sum(stats * weights))  # of the observed features
        self._add(weights, credit, logs, stats)
        return stats, observed_likelihood + float(np.sum(credit * logs))

    def residual(self, weights: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return R_c = Σ_n (y_nc − p(c | x_obs)) Φ̃_c [C, K], rows of p times the rows' weights, and log p(x_obs, c).

        W [C, K] and Y [n, C] are the arguments.
        """
        joint = self.log_joint(weights)
        step = labels - labels.sum(axis=1, keepdims=True) * core.softmax(joint)
        return self.statistics(weights, step)[0], joint

    def take(self, index: Any) -> Completion:
        """Return the selected rows."""
        numbers = None if self.numbers is None else self.numbers[index]
        return type(self)(
            self.family, Rows(self.rows.values[index], self.rows.codes[index]), self.names, numbers
        )

    def _add(
        self, weights: np.ndarray, credit: np.ndarray | None, logs: np.ndarray, stats: np.ndarray | None
    ) -> None:
        """Add the terms of missing values in place; there are none here."""

    @cached_property
    def _observed(self) -> ObservedFeatures:
        return ObservedFeatures(self.family, self.rows)


@dataclass(frozen=True, eq=False)
class _Gaps(Completion):
    """Rows with missing values: which they are, and arrays for the loops."""

    @cached_property
    def feature_index(self) -> FeatureIndex:
        return FeatureIndex.of(self.family)

    @cached_property
    def missing(self) -> np.ndarray:
        """Which values are missing, continuous columns first: [n, D]. False where φ represents a missing category."""
        absent = np.concatenate([np.isnan(self.rows.values), self.rows.codes < 0], axis=1)
        return absent & self.feature_index.linked

    @cached_property
    def _filled(self) -> tuple[np.ndarray, np.ndarray]:
        """Values with 0 for missing ones, and codes, as contiguous arrays."""
        values = np.ascontiguousarray(np.nan_to_num(self.rows.values, nan=0.0))
        return values, np.ascontiguousarray(self.rows.codes, dtype=np.int64)

    @cached_property
    def _observed(self) -> ObservedFeatures:
        return ObservedFeatures(self.family, Rows(self._filled[0], self.rows.codes))


@dataclass(frozen=True, eq=False)
class Trees(_Gaps):
    """Columns with at most one parent each (TAN): message passing along the trees."""

    @cached_property
    def _shape(self) -> tuple[np.ndarray, ...]:
        """The columns with parents before children, and the parent of each column, −1 without one: two [D]."""
        parents = self.feature_index.parents
        parent = np.array(
            [column_parents[0] if column_parents else -1 for column_parents in parents], dtype=np.int64
        )
        return np.array(order(parents), dtype=np.int64), parent

    @cached_property
    def _cells(self) -> np.ndarray:
        """Which features are log probabilities of discrete columns: [K]."""
        is_cell = np.zeros(self.family.size, dtype=bool)
        for cells, _ in self.family.tabled():
            is_cell[cells] = True
        return is_cell

    def _add(
        self, weights: np.ndarray, credit: np.ndarray | None, logs: np.ndarray, stats: np.ndarray | None
    ) -> None:
        from peerbayes.model.kernels.missing_loops import along_trees

        tables = np.exp(np.where(self._cells, weights, -np.inf))
        at, most = self.feature_index, int(self.feature_index.cardinalities.max(initial=1))
        tree = (*self._shape, at.single, at.pair, at.block_of, at.cardinalities)
        arguments = credit is not None, *_loop_arguments(credit, logs, stats)
        along_trees(weights, tables, *self._filled, self.missing, *tree, most, *arguments)


@dataclass(frozen=True, eq=False)
class Enumeration(_Gaps):
    """Any structure: enumeration of the configurations of connected missing discrete columns.

    Columns are connected where φ multiplies them, directly or through other missing ones. A row with more than
    MOST_CONFIGURATIONS is refused.
    """

    @cached_property
    def _components(self) -> tuple[np.ndarray, int]:
        """The component of each missing column, as its first column [n, D]; and the most configurations of any."""
        from peerbayes.model.kernels.missing_loops import components

        component = np.empty(self.missing.shape, dtype=np.int64)
        components(self.missing, self.feature_index.members, component)
        d, most = self.feature_index.continuous, 1.0
        columns = int(self.missing.shape[1])
        logs = np.log(np.maximum(self.feature_index.cardinalities, 1))
        for first in range(columns):
            member = component == first
            counts = np.exp((member[:, d:] * logs).sum(axis=1))  # of configurations
            if counts.size and counts.max() > MOST_CONFIGURATIONS * (1 + 1e-9):
                self._refuse(int(counts.argmax()), np.flatnonzero(member[counts.argmax()]), counts.max())
            most = max(most, float(counts.max(initial=1.0)))
        return component, round(most)

    def check(self) -> None:
        """Refuse rows with too many configurations."""
        _ = self._components

    def _refuse(self, row: int, columns: np.ndarray, count: float) -> None:
        names = [
            str(j) if self.names is None else self.names[j]
            for j in columns
            if j >= self.feature_index.continuous
        ]
        number_of_row = row if self.numbers is None else self.numbers[row]
        raise StructureError(
            f"row {number_of_row} has no value in {', '.join(names)}, which depend on each other and have "
            f"{count:,.0f} joint values; at most {MOST_CONFIGURATIONS:,} are supported. Use a tree (TAN), which "
            "needs no such sum, give fewer parents to columns with many categories, or leave the row out"
        )

    def _add(
        self, weights: np.ndarray, credit: np.ndarray | None, logs: np.ndarray, stats: np.ndarray | None
    ) -> None:
        from peerbayes.model.kernels.missing_loops import enumerated

        at = self.feature_index
        index = at.single, at.pair, at.blocks, at.linear, at.choosing, at.cardinalities
        arguments = credit is not None, *_loop_arguments(credit, logs, stats)
        enumerated(weights, *self._filled, self._components[0], *index, self._components[1], *arguments)


def _loop_arguments(
    credit: np.ndarray | None, logs: np.ndarray, stats: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return credit, logs and stats as arrays for a compiled loop, which takes no None."""
    if credit is None or stats is None:
        return np.zeros((1, 1)), logs, np.zeros((1, 1))
    return np.ascontiguousarray(credit), logs, stats


def complete(
    family: Family, rows: Rows, names: Sequence[str] | None = None, numbers: np.ndarray | None = None
) -> Completion:
    """Return the completion of rows [n, D] that suits their family and their missing values.

    A row with too many configurations is refused at once, by its number and the names of its columns.
    """
    if not family.incomplete(rows).any():
        return Completion(family, rows, names, numbers)
    if FeatureIndex.of(family).tree:
        return Trees(family, rows, names, numbers)
    completion = Enumeration(family, rows, names, numbers)
    completion.check()
    return completion


# --- contributions of the columns to log p(x_obs, c), for rows with missing values


def contributions(family: Family, stats: np.ndarray, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return a baseline [C] and a term per column [n, C, D] that add up to log p(x_obs, c), missing values or not.

    Complete rows use the family's own `contributions`. In others,

    Bayesian networks   x_j: log p(x_j | the observed columns before it, c), parents first; missing: 0
    QDA, LDA            x_j: −½ δ_j (Σ_oo⁻¹ δ_o)_j, o the observed columns; missing: an equal share of the change of the
                        determinant from Σ to Σ_oo, since the baseline has that of Σ
    """
    incomplete = family.incomplete(rows)
    if not incomplete.any():
        return family.contributions(stats, rows)
    gaps = Rows(rows.values[incomplete], rows.codes[incomplete])
    filled = Rows(
        np.where(incomplete[:, None], 0.0, rows.values), np.where(incomplete[:, None], -1, rows.codes)
    )
    baseline, terms = family.contributions(stats, filled)
    if isinstance(family, Gaussian):
        terms[incomplete] = _marginal(family, stats, gaps)
    else:
        terms[incomplete] = _chain(family, stats, gaps, baseline)
    return baseline, terms


def _chain(family: Family, stats: np.ndarray, rows: Rows, baseline: np.ndarray) -> np.ndarray:
    """Return log p(x_1 … x_j, c) − log p(x_1 … x_{j−1}, c) of the columns, parents first: [n, C, D]."""
    weights = family.weights(stats)
    d = family.continuous
    values, codes = np.full_like(rows.values, np.nan), np.full_like(rows.codes, -1)
    terms = np.empty((len(values), len(stats), d + codes.shape[1]))
    previous = np.broadcast_to(baseline, terms.shape[:2])
    for column in order(family.parents):  # type: ignore[attr-defined]
        if column < d:
            values[:, column] = rows.values[:, column]
        else:
            codes[:, column - d] = rows.codes[:, column - d]
        joint = complete(family, Rows(values, codes)).log_joint(weights)
        terms[:, :, column], previous = joint - previous, joint
    return terms


def _marginal(family: Gaussian, stats: np.ndarray, rows: Rows) -> np.ndarray:
    """Return the terms of QDA and LDA from the covariances of the observed columns: [n, C, D]."""
    _, mean, covariance, log_cells = family.parameters(stats)
    terms = np.zeros((len(rows.values), len(stats), family.continuous + rows.codes.shape[1]))
    _, logdet = np.linalg.slogdet(covariance)
    for i, x in enumerate(rows.values):
        present = np.flatnonzero(~np.isnan(x))
        absent = np.flatnonzero(np.isnan(x))
        observed = covariance[:, present[:, None], present]
        offset = x[present] - mean[:, present]
        whitened = np.linalg.solve(observed, offset[..., None])[..., 0]
        terms[i][:, present] = -0.5 * offset * whitened
        if absent.size:
            difference = 0.5 * (logdet - np.linalg.slogdet(observed)[1] + absent.size * LOG_2PI)
            terms[i][:, absent] = (difference / absent.size)[:, None]
    terms[..., family.continuous :] = family.cell_contributions(log_cells, rows.codes)
    return terms
