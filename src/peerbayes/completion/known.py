"""Φ of rows as it is known: a missing value is 0, and a block with a missing discrete column is left empty."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from peerbayes.families.base import Family, Rows

# Entries of Φ that are held between passes, and how many are made at a time beyond.
HELD, AT_ONCE = 1 << 23, 1 << 19


@dataclass(frozen=True, eq=False)
class Known:
    """Products with Φ, which is held where it is small and made block by block where it is not."""

    family: Family
    rows: Rows  # [n, Dc] without NaN unless φ takes it, [n, Dd]

    def logits(self, weights: np.ndarray) -> np.ndarray:
        """ΦWᵀ: [C, K] -> [n, C]."""
        out = np.empty((len(self.rows.values), len(weights)))
        for part, features in self._blocks():
            out[part] = features @ weights.T
        return out

    def sums(self, credit: np.ndarray) -> np.ndarray:
        """YᵀΦ of any credit Y [n, C]: [C, K]."""
        total = np.zeros((credit.shape[1], self.family.size))
        for part, features in self._blocks():
            total += (features.T @ credit[part]).T
        return total

    def _blocks(self) -> Iterator[tuple[slice, Any]]:
        rows = len(self.rows.values)
        entries = self.family.filled if self.family.wide else self.family.size
        if rows * entries <= HELD:
            yield slice(0, rows), self._features
            return
        size = max(64, AT_ONCE // entries)
        for start in range(0, rows, size):
            part = slice(start, start + size)
            yield part, self._made(Rows(self.rows.values[part], self.rows.codes[part]))

    @cached_property
    def _features(self) -> Any:
        return self._made(self.rows)

    def _made(self, rows: Rows) -> Any:
        return self.family.sparse(rows) if self.family.wide else np.asarray(self.family.features(rows))
