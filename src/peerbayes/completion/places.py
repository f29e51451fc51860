"""The index of each coefficient of the log joint within φ, as arrays for the loops.

Apart from the leading 1, φ has two kinds of features: dense ones, x_i and x_i x_j, and blocks, one for each column
that is discrete or has discrete parents. For each configuration of these parents a block has one entry for each
category, or the upper triangle of uuᵀ, u = (1, x_j, x_Q).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from peerbayes.errors import SchemaError
from peerbayes.families.base import Family
from peerbayes.families.bayes_net import BayesNet
from peerbayes.families.gaussian import Gaussian


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
