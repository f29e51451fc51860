"""GA2M: a generalised additive model with pairwise interactions, as naive Bayes on bins and on crosses of columns.

    log p(x, c) = log p(c) + Σ_j f_cj(x_j) + Σ_(i,j) f_cij(x_i, x_j)          f: logarithms of cell probabilities

Calibrated from the `marginal` start it is no density of x, but the softmax of these sums: margins that crosses repeat
are shared out by calibration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from peerbayes.data.table import Array, Rows
from peerbayes.errors import NotSupported
from peerbayes.model.families.base import beside
from peerbayes.model.families.naive_bayes import NaiveBayes


@dataclass(frozen=True, kw_only=True)
class GA2M(NaiveBayes):
    """Naive Bayes on binned and discrete columns and on crosses of them, calibrated towards few effects."""

    name: ClassVar[str] = "ga2m"
    same_theta: ClassVar[bool] = True
    """θ is that of naive Bayes, so its kernels fit: see `is_plain`."""
    takes_crosses: ClassVar[bool] = True
    calibrated_shrinkage: ClassVar[float] = 300.0

    crosses: int = 0
    """How many of the columns of cells, the last ones, are crosses."""
    shrinkage: float = 0.0
    """Rows that the start spreads evenly over the cells of each column, as a share of all rows."""

    def layout(self) -> dict[str, Any]:
        return {**super().layout(), "crosses": self.crosses}

    def evened(self, sums: Array) -> Array:
        """Spread some rows evenly over the cells of each column, whose sum stays: Σφ [..., K] -> [..., K].

        n′_k = n·(n_k + m/r)/(n + m), n the rows with a value and r the cells of the column, m rows of which nothing is
        known. A class can move a cell by as much as its rows outweigh these: that is the shrinkage. Crosses have as
        many times more of them as there are columns: their cells hold few rows, and what is in them is in others too.
        """
        xp = array_namespace(sums)
        dense, sizes = self.dense_size, np.asarray(self.cardinalities, dtype=float)
        if not self.shrinkage or not sizes.size:
            return sums
        share = np.full(sizes.size, self.shrinkage)
        columns = sizes.size - self.crosses
        share[columns:] *= columns
        column, _ = self._cells
        cells, rows = sums[..., dense:], sums[..., :1]
        sizes_of_cells, share_of_cells = (
            beside(sums, values[column], sums.dtype) for values in (sizes, share)
        )
        totals = self._column_sums(cells)
        added = rows * share_of_cells
        return xp.concat(
            [sums[..., :dense], totals * (cells + added / sizes_of_cells) / (totals + added)], axis=-1
        )

    def _column_sums(self, cells: Array) -> Array:
        """Return for each cell the sum of the cells of its column: [..., cells] -> [..., cells]."""
        xp = array_namespace(cells)
        groups, positions = self._groups
        blocks = []
        for size, group in groups:
            shape = (*cells.shape[:-1], group.size // size, size)
            block = xp.reshape(xp.take(cells, beside(cells, group), axis=-1), shape)
            block = xp.broadcast_to(xp.sum(block, axis=-1, keepdims=True), shape)
            blocks.append(xp.reshape(block, (*cells.shape[:-1], group.size)))
        return xp.take(xp.concat(blocks, axis=-1), beside(cells, positions), axis=-1)

    def sample(self, stats: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Rows:
        raise NotSupported(
            "ga2m cannot sample rows: it says which class is likely for a row, not which rows are; use MixedNB or TAN"
        )
