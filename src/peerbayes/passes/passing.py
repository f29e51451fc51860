"""Labelled rows that are read block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from peerbayes.families.base import Family
from peerbayes.passes.blocks import Block, Source


@dataclass(frozen=True)
class Passing:
    """A source of rows, with their labels and weights."""

    family: Family
    source: Source
    labels: np.ndarray  # [n] class indices
    classes: int
    weights: np.ndarray | None = None  # [n]

    @property
    def mass(self) -> float:
        return float(self.labels.size if self.weights is None else self.weights.sum())

    def blocks(self, size: int, fast: bool) -> Iterator[tuple[Block, np.ndarray, np.ndarray]]:
        """Yield blocks of `size` rows, each with its labels and weights."""
        ones = np.ones(min(size, self.source.rows))
        for start, block in self.source.blocks(size, fast):
            stop = start + block.values.shape[0]
            weights = ones[: stop - start] if self.weights is None else self.weights[start:stop]
            yield block, self.labels[start:stop], weights
