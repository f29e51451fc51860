"""Where φ holds what the log joint says of each column, as arrays for the loops.

Beside the 1, φ is made of two kinds of features: dense ones, x_i and x_i x_j, and blocks, one for each column that is
discrete or has discrete parents: an entry, or the upper triangle of uuᵀ of u = (1, x_j, x_Q), for each configuration.
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
class Places:
    """Columns count continuous ones first; −1 stands for nothing."""

    continuous: int
    single: np.ndarray  # [Dc] of x_i
    pair: np.ndarray  # [Dc, Dc] of x_i x_j
    parents: tuple[tuple[int, ...], ...]  # [D] of each column
    blocks: np.ndarray  # [B, 3] column, place of its block, entries of a configuration
    cliques: tuple[tuple[int, ...], ...]  # columns that φ multiplies with each other
    cardinalities: np.ndarray  # [Dd]
    linked: np.ndarray  # [D] whether φ alone cannot take the column where it is missing

    @classmethod
    def of(cls, family: Family) -> Places:
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
        nothing = np.zeros((0, 3), dtype=np.int64)
        sizes = np.array(family.cardinalities, dtype=np.int64)
        linked = np.repeat([True, False], [d, discrete])
        return cls(d, 1 + np.arange(d), pair, parents, nothing, (tuple(range(d)),), sizes, linked)

    @classmethod
    def _of_network(cls, family: BayesNet) -> Places:
        d = family.continuous
        single, pair = np.full(d, -1), np.full((d, d), -1)
        for place, i in enumerate(family.singles):
            single[i] = 1 + place
        for place, (i, j) in enumerate(family.products):
            pair[i, j] = pair[j, i] = 1 + len(family.singles) + place
        linked = family.linked
        blocks = [(j, place, width) for j, place, _, width in family.blocks if linked[j]]
        cliques = tuple((j, *own) for j, own in enumerate(family.parents) if linked[j])
        sizes = np.array(family.cardinalities, dtype=np.int64)
        told = np.array(blocks, dtype=np.int64).reshape(-1, 3)
        return cls(d, single, pair, family.parents, told, cliques, sizes, linked)

    @cached_property
    def tree(self) -> bool:
        """Whether no column has more than one parent, nor multiplies more than that."""
        return all(len(clique) <= 2 for clique in self.cliques)

    @cached_property
    def block_of(self) -> np.ndarray:
        """[D, 2] place and entries of a configuration of each column's block; −1 where it has none."""
        found = np.full((len(self.parents), 2), -1, dtype=np.int64)
        found[self.blocks[:, 0]] = self.blocks[:, 1:]
        return found

    @cached_property
    def members(self) -> np.ndarray:
        """[cliques, most] the columns of each clique, filled up with −1."""
        return _padded(self.cliques)

    @cached_property
    def linear(self) -> np.ndarray:
        """[B, 1 + most] x_j and its continuous parents, of each block; none for a discrete column."""
        d = self.continuous
        own = [(j, *(p for p in self.parents[j] if p < d)) if j < d else () for j in self.blocks[:, 0]]
        return _padded(own)

    @cached_property
    def choosing(self) -> np.ndarray:
        """[B, most] the discrete columns that choose the configuration, as numbers of discrete columns."""
        d = self.continuous
        return _padded([tuple(p - d for p in self.parents[j] if p >= d) for j in self.blocks[:, 0]])


def _padded(lists: tuple[tuple[int, ...], ...] | list[tuple[int, ...]]) -> np.ndarray:
    found = np.full((len(lists), max((len(own) for own in lists), default=0)), -1, dtype=np.int64)
    for place, own in enumerate(lists):
        found[place, : len(own)] = own
    return found
