"""Observed features: Φ in which a missing value is 0 and a block with a missing discrete column is empty."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from peerbayes.families.base import Family, Rows

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
