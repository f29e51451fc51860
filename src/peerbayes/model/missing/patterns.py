"""Which values of a row are missing, and what that means for the columns of a family."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from peerbayes.data.table import Rows
from peerbayes.errors import SchemaError
from peerbayes.model.families.base import Family
from peerbayes.model.families.bayes_net import BayesNet
from peerbayes.model.families.gaussian import Gaussian
from peerbayes.model.families.naive_bayes import NaiveBayes

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
            out[block] = features @ weights.T
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
        """Whether no column has more than one parent, and φ multiplies at most two columns."""
        return all(len(clique) <= 2 for clique in self.cliques)

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
