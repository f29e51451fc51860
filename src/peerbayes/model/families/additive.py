"""GA2M: a generalised additive model with pairwise interactions, as naive Bayes on bins and on crosses of columns.

    log p(x, c) = log p(c) + Σ_j f_cj(x_j) + Σ_(i,j) f_cij(x_i, x_j)          f: logarithms of cell probabilities

Calibrated from the `marginal` start it is no density of x, but the softmax of these sums: margins that crosses repeat
are shared out by calibration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from array_api_compat import array_namespace
from scipy.linalg import solveh_banded

from peerbayes.data.table import Array, Rows
from peerbayes.errors import NotSupported
from peerbayes.model.families.base import TINY, Move, beside
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

    penalties: tuple[tuple[float, float], ...] = ()
    """For each column of cells the penalties κ and λ, in rows; (): none."""
    per_row: float = 0.0
    """One over the number of all rows: the share of the penalty that comes with each row."""

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

    # --- the penalty ------------------------------------------------------------------------------------
    #
    #     Ω(W) = ½ Σ_j κ_j Σ_ck (v_ck − v̄_cj)² + ½ Σ_j λ_j Σ_ck (v_c,k+1 − v_ck)²       v = W less its mean over classes
    #
    # κ holds the cells of a column at their mean, λ neighbouring bins at each other. It is a sum over rows, as the log
    # loss is: each row brings Ω/m, so that peers need to know nothing more than their rows.

    def penalty(self, weights: Array) -> tuple[Array, Array] | None:
        if not self.penalties or not self.per_row:
            return None
        xp = array_namespace(weights)
        dense, (ridge, smooth, sizes) = self.dense_size, self._penalty_of_cells
        ridge, smooth, sizes = (beside(weights, values, weights.dtype) for values in (ridge, smooth, sizes))
        cells = weights[..., dense:]
        centred = cells - xp.mean(cells, axis=-2, keepdims=True)
        apart = centred - self._column_sums(centred) / sizes
        steps = centred[..., 1:] - centred[..., :-1]
        held, joined = ridge * apart, smooth * steps
        value = 0.5 * (xp.sum(held * apart, axis=(-2, -1)) + xp.sum(joined * steps, axis=(-2, -1)))
        none = xp.zeros_like(cells[..., :1])
        gradient = held + xp.concat([none, joined], axis=-1) - xp.concat([joined, none], axis=-1)
        zeros = xp.zeros_like(weights[..., :dense])
        return self.per_row * value, self.per_row * xp.concat([zeros, gradient], axis=-1)

    # A step R of S moves W by about R/s, s_k = Σ_c S_ck/C, but the log loss bends by s and the penalty by its matrix Q,
    # so that M = diag(s)(diag(s) + Q)⁻¹ times R is as far in any direction. Since Q·1 = 0 in each column, 1ᵀM = 1ᵀ.
    # Q + κ/r·11ᵀ is tridiagonal, over all columns at once; the rest is the formula of Sherman and Morrison.

    def conditioned(self, stats: np.ndarray, residual: np.ndarray) -> np.ndarray:
        if not self.penalties or not self.per_row:
            return residual
        dense, (ridge, smooth, sizes) = self.dense_size, self._penalty_of_cells
        flat = residual.reshape(-1, self.size)
        mean = stats.reshape(-1, stats.shape[-2], self.size)[0].mean(axis=0)
        scale = 1.0 / (self.per_row * stats.shape[-2] * mean[0])  # rows of which S is a share
        rows = np.maximum(scale * mean[dense:], TINY)
        bands = np.zeros((2, rows.size))
        bands[0, 1:] = -smooth
        bands[1] = rows + ridge
        bands[1, 1:] += smooth
        bands[1, :-1] += smooth
        both = solveh_banded(bands, np.concatenate([flat[:, dense:], np.ones((1, rows.size))]).T).T
        solved, ones = both[:-1], both[-1:]
        share = ridge / sizes
        solved = solved + ones * share * self._column_sums(solved) / (1.0 - share * self._column_sums(ones))
        cells = (rows * solved).reshape(*residual.shape[:-1], rows.size)
        return np.concatenate([residual[..., :dense], cells], axis=-1)

    @cached_property
    def _penalty_of_cells(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """κ of each cell, λ between each cell and the next one, and how many cells its column has."""
        column, _ = self._cells
        ridge, smooth = np.array(self.penalties).T
        within = np.where(column[1:] == column[:-1], smooth[column[1:]], 0.0)
        return ridge[column], within, np.asarray(self.cardinalities, dtype=float)[column]

    def moved(self, stats: np.ndarray, move: Move) -> tuple[Self, np.ndarray]:
        family, values = super().moved(stats, move)
        return replace(family, penalties=()), values  # they were for other columns

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
