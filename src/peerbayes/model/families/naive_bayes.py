"""Naive Bayes with mixed features: Gaussian continuous columns, Poisson counts, categorical discrete ones.

    φ(x) = [ 1 | o₁ … o_d | x₁ … x_d | x₁² … x_d² | one-hots ]      o_j = 1 where x_j is present

With o, a missing value adds nothing to S and nothing to the log joint: exact maximum likelihood on the observed
values, and exact marginalisation. Where no value is missing anywhere (`missing=False`) the leading 1 takes the
place of every o. A count is z = x / scale, and θ makes of the same sums

    log p(x | c) = x log λ_c − λ_c − log x!      λ_c = scale · Σz / Σo,  −log x! is left out

so that W is −λ_c, scale · log λ_c and 0 where a Gaussian has its three weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self, TypeGuard

import numpy as np
from array_api_compat import device

from peerbayes.data.table import Array, Rows
from peerbayes.model.families.base import (
    LOG_2PI,
    MEAN_LIMIT,
    TINY,
    Counts,
    Family,
    beside,
    clipped,
    namespace,
)
from peerbayes.model.families.evidence import variance_rows, variances


class NaiveBayesParameters(NamedTuple):
    """θ(S) in readable form, in standardised units."""

    log_prior: Array  # [..., C]
    mean: Array  # [..., C, Dc]
    variance: Array  # [..., C, Dc]
    log_cells: Array  # [..., C, cells] log p(x_j = k | c)


@dataclass(frozen=True, kw_only=True)
class NaiveBayes(Family):
    """log p(x, c) = log p(c) + Σ_j log N(x_j; μ_cj, σ²_cj) + Σ_j log p(x_j | c) over the columns present."""

    name: ClassVar[str] = "naive-bayes"
    marks_missing: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset({"gaussian", "poisson", "cells"})
    kernels = ("expand_diagonal", "diagonal_statistics")

    missing: bool = False
    """Whether the layout has o_j, so that continuous values may be missing."""

    poisson: tuple[tuple[int, float], ...] = ()
    """Which of the continuous columns are counts, and their scales."""

    def __post_init__(self) -> None:
        counts = tuple((int(column), float(scale)) for column, scale in self.poisson)
        object.__setattr__(self, "poisson", counts)

    def layout(self) -> dict[str, Any]:
        counts = {"poisson": [list(count) for count in self.poisson]} if self.poisson else {}
        return {**super().layout(), "missing": self.missing, **counts}

    @cached_property
    def _counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Which continuous columns are counts, and the scale of each, 1 for the others: two [Dc]."""
        is_count, scale = np.zeros(self.continuous, dtype=bool), np.ones(self.continuous)
        for column, column_scale in self.poisson:
            is_count[column], scale[column] = True, column_scale
        return is_count, scale

    def _counts_beside(self, array: Array) -> tuple[Array, Array]:
        """Return `_counts` as arrays of the same library: two [Dc]."""
        is_count, scale = self._counts
        return beside(array, is_count), beside(array, scale, array.dtype)

    @property
    def dense_size(self) -> int:
        return 1 + self.continuous * (3 if self.missing else 2)

    def dense(self, values: Array) -> Array:
        xp = namespace(values)
        one = xp.ones((*values.shape[:-1], 1), dtype=values.dtype, device=device(values))
        if not self.missing:
            return xp.concat([one, values, values * values], axis=-1)
        present = ~xp.isnan(values)
        filled = xp.where(present, values, xp.zeros_like(values))
        return xp.concat([one, xp.astype(present, values.dtype), filled, filled * filled], axis=-1)

    def parameters(self, stats: Array) -> NaiveBayesParameters:
        return self._parameters(self.counts(stats))

    def weights(self, stats: Array) -> Array:
        xp = namespace(stats)
        counts = self.counts(stats)
        log_prior, mean, variance, log_cells = self._parameters(counts)
        constant = -0.5 * (LOG_2PI + xp.log(variance) + mean * mean / variance)
        moments = [mean / variance, -0.5 / variance]
        if self.poisson:
            is_count, scale = self._counts_beside(stats)
            rate = scale * mean
            of_counts = (
                -rate,
                scale * xp.log(xp.where(is_count, rate, xp.ones_like(rate))),
                xp.zeros_like(rate),
            )
            pairs = zip(of_counts, (constant, *moments), strict=True)
            constant, *moments = (xp.where(is_count, weight, gaussian) for weight, gaussian in pairs)
        if self.missing:
            return xp.concat([log_prior[..., None], constant, *moments, log_cells], axis=-1)
        bias = log_prior + xp.sum(constant, axis=-1)
        return xp.concat([bias[..., None], *moments, log_cells], axis=-1)

    def floored(self, stats: Array) -> Array:
        xp = namespace(stats)
        counts = self.counts(stats)
        count, mean, variance = self._gaussians(counts)
        low = (count < counts.floor[..., None]) | (variance < self.variance_floor)
        if self.poisson:
            is_count, _ = self._counts_beside(stats)
            _, first, _ = self._split(counts.stats)
            floor = counts.floor[..., None]
            low = xp.where(is_count, (count < floor) | (first + counts.lacking(count) < floor), low)
        guarded = low | (xp.abs(mean) > MEAN_LIMIT)
        return self.floored_counts(counts) + xp.sum(xp.astype(guarded, xp.int64), axis=(-2, -1))

    def _parameters(self, counts: Counts) -> NaiveBayesParameters:
        xp = namespace(counts.stats)
        count, mean, variance = self._gaussians(counts)
        mean = clipped(mean, -MEAN_LIMIT, MEAN_LIMIT)
        if self.poisson:  # a sum is at least the floor of a count, as that of a cell
            is_count, scale = self._counts_beside(counts.stats)
            floor = counts.floor[..., None]
            least = clipped(floor / xp.maximum(count, floor), TINY)
            mean = xp.where(is_count, xp.maximum(mean, least), mean)
            variance = xp.where(is_count, mean / scale, variance)
        variance = clipped(variance, max(self.variance_floor, TINY))
        return NaiveBayesParameters(counts.log_prior, mean, variance, self.log_cells(counts))

    def _gaussians(self, counts: Counts) -> tuple[Array, Array, Array]:
        """Return count, mean and variance before their guards: three [..., C, Dc]; one count where all are the same.

        Where a class has fewer rows than the count floor, rows of mean 0 (1 for counts) and variance 1 are added.
        """
        xp = namespace(counts.stats)
        count, first, second = self._split(counts.stats)
        if self.continuous and not self.missing:
            count = count[..., :1]  # the same in all columns
        rows = xp.maximum(count, counts.floor[..., None])
        if self.poisson:
            is_count, _ = self._counts_beside(counts.stats)
            first = xp.where(is_count, first + counts.lacking(count), first)
        mean = first / rows
        limited = clipped(mean, -MEAN_LIMIT, MEAN_LIMIT)
        return count, mean, (second + counts.lacking(count)) / rows - limited * limited

    def _split(self, stats: Array) -> tuple[Array, Array, Array]:
        """Return (Σo, Σx, Σx²) per class and continuous column: three [..., C, Dc]."""
        xp = namespace(stats)
        d = self.continuous
        if self.missing:
            return stats[..., 1 : 1 + d], stats[..., 1 + d : 1 + 2 * d], stats[..., 1 + 2 * d : 1 + 3 * d]
        count = xp.broadcast_to(stats[..., :1], (*stats.shape[:-1], d))
        return count, stats[..., 1 : 1 + d], stats[..., 1 + d : 1 + 2 * d]

    def uniform_moments(self) -> np.ndarray:
        d, (is_count, scale) = self.continuous, self._counts
        second = np.where(is_count, 1.0 + 1.0 / scale, 1.0)  # E z² = Var z + (E z)², with λ = scale
        return np.concatenate([np.ones(1 + d * self.missing), is_count.astype(float), second])

    def estimated_prior(
        self, stats: np.ndarray, alpha: float | str, shrinkage: float | str | None
    ) -> np.ndarray:
        """Add half an event to the counts of each class (Jeffreys' prior), so that none is impossible."""
        prior = super().estimated_prior(stats, alpha, shrinkage)
        if self.poisson and alpha == "auto":
            is_count, scale = self._counts
            first = self.dense_size - 2 * self.continuous
            prior[:, first : first + self.continuous] += np.where(is_count, 0.5 / scale, 0.0)
        return prior

    def variance_prior(self, stats: np.ndarray, shrinkage: float | str) -> np.ndarray:
        """Rows of the column's variance over all classes, added to Σx² so that σ² = (n σ̂² + m v)/(n + m)."""
        count, first, second = self._split(stats)
        prior = np.zeros((len(stats), self.dense_size))
        columns: Any = slice(None)
        if self.poisson:
            columns = np.flatnonzero(~self._counts[0])
        count, first, second = (np.asfortranarray(sums[:, columns]) for sums in (count, first, second))
        variance, target = variances(count, first, second)
        m = variance_rows(count, variance, target) if shrinkage == "auto" else float(shrinkage)
        rows = np.maximum(count, 0.0)
        prior[:, self.dense_size - self.continuous :][:, columns] = (
            rows * m * (target - variance) / (rows + m)
        )
        return prior

    def counted(self) -> tuple[np.ndarray, np.ndarray]:
        over, squares = np.zeros(self.size, dtype=np.int64), np.zeros(self.size, dtype=bool)
        columns, first = np.arange(self.continuous), self.dense_size - 2 * self.continuous
        squares[first + self.continuous + columns] = True
        if self.missing:
            over[first + columns] = over[first + self.continuous + columns] = 1 + columns
        return over, squares

    def transformed(
        self, dense: np.ndarray, order: np.ndarray, shift: np.ndarray, ratio: np.ndarray
    ) -> np.ndarray:
        if np.any(order < 0) and not self.missing:
            raise ValueError("a column without values needs the layout for missing values: see `spread`")
        empty_column = np.zeros((*dense.shape[:-1], 1))  # an order of −1 picks the last column
        picked = (
            np.concatenate([moment, empty_column], axis=-1)[..., order] for moment in self._split(dense)
        )
        count, first, second = picked
        moved_first = ratio * (first - shift * count)
        moved_second = ratio**2 * (second - 2 * shift * first + shift**2 * count)
        present = [count] if self.missing else []
        return np.concatenate([dense[..., :1], *present, moved_first, moved_second], axis=-1)

    def with_missing(self) -> Self:
        """Return the same family in the layout with o."""
        return replace(self, missing=True)

    def spread(self, stats: np.ndarray) -> np.ndarray:
        """Return S in the layout with o, where every value was present: [..., C, K] -> [..., C, K + Dc]."""
        if self.missing:
            return stats
        count, _, _ = self._split(stats)
        return np.concatenate([stats[..., :1], count, stats[..., 1:]], axis=-1)

    def contributions(self, stats: np.ndarray, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        log_prior, mean, variance, log_cells = self.parameters(stats)
        distance = (rows.values[:, None, :] - mean) ** 2 / variance
        gaussian = -0.5 * (LOG_2PI + np.log(variance) + distance)
        if self.poisson:
            is_count, scale = self._counts
            rate = np.where(is_count, scale * mean, 1.0)
            events = (scale * rows.values)[:, None, :]
            gaussian = np.where(is_count, events * np.log(rate) - rate, gaussian)
        gaussian = np.where(np.isnan(rows.values)[:, None, :], 0.0, gaussian)
        return log_prior, np.concatenate([gaussian, self.cell_contributions(log_cells, rows.codes)], axis=-1)

    def sample(self, stats: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Rows:
        _, mean, variance, log_cells = self.parameters(stats)
        normal = rng.standard_normal((labels.size, self.continuous))
        values = mean[labels] + np.sqrt(variance[labels]) * normal
        for column, scale in self.poisson:
            values[:, column] = rng.poisson(scale * mean[labels, column]) / scale
        return Rows(values, self._sample_codes(log_cells, labels, rng))


def is_plain(family: Family) -> TypeGuard[NaiveBayes]:
    """Return whether θ is that of naive Bayes with Gaussian columns and cells, as the fused kernels have it.

    A family that is derived from it must say so itself, since it may have changed θ.
    """
    same_theta = type(family) is NaiveBayes or "same_theta" in vars(type(family))
    return isinstance(family, NaiveBayes) and same_theta and not family.poisson
