"""θ of continuous columns with one continuous parent or none, in scalars instead of matrices.

    x_j ~ N(a + b x_p, q)     b = cov(x_j, x_p)/var(x_p)     a = mean_j − b mean_p     q = var_j − b (2 cov − b var_p)

    log N = −½ (log 2πq + a²/q) + (a/q) x_j − (ab/q) x_p − ½ (1/q) x_j² − ½ (b²/q) x_p² + (b/q) x_j x_p

b is 0 where there is no parent. The first axis is features, the last one the classes of all peers, so that every step
runs over long rows; the moments of a column are computed once, however many children it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from array_api_compat import array_namespace, device

from peerbayes.data.table import Array
from peerbayes.model.families.base import LOG_2PI, MEAN_LIMIT, TINY, Counts, beside

# Coefficients are clipped to this many standardised units: their products stay finite in float32.
SLOPE_LIMIT = 1e5


@dataclass(frozen=True, eq=False)
class Lines:
    """Columns of φ = [1 | x | x² | products] with one continuous parent or none, and these parents."""

    columns: int  # D
    products: int  # X
    roots: np.ndarray  # [R] columns without a parent
    children: np.ndarray  # [L] columns with one
    parents: np.ndarray  # [L]
    product: np.ndarray  # [L] index of the product of child and parent
    most: float  # the largest correlation

    @cached_property
    def _to_column(self) -> np.ndarray:
        """The matrix that sums the terms of each column over itself and its children: [D, R + 2·L] of 0 and 1."""
        return np.eye(self.columns)[:, np.concatenate([self.roots, self.children, self.parents])]

    @cached_property
    def _to_product(self) -> np.ndarray:
        """The matrix that assigns the terms of products to their features: [X, L] of 0 and 1."""
        return np.eye(self.products)[:, self.product]

    @property
    def size(self) -> int:
        return 1 + 2 * self.columns + self.products

    def weights(self, counts: Counts, extra: Array, least: float) -> Array:
        """Return log p(c) and the natural weights of all these columns: [..., C, 1 + 2·D + X].

        extra    rows of independence that are added to each link: [..., 1]
        least    the least variance
        """
        xp = array_namespace(counts.stats)
        shape, d, first = counts.log_prior.shape, self.columns, self.roots.size
        slope, intercept, variance = self._fitted(counts, extra, least)
        precision = 1.0 / variance
        linear = intercept * precision  # [R + L, M]
        tilt = slope * precision[first:, ...]
        constant = -0.5 * xp.sum(LOG_2PI + xp.log(variance) + intercept * linear, axis=0)
        to_column, to_product = (
            beside(slope, matrix, slope.dtype) for matrix in (self._to_column, self._to_product)
        )

        weights = xp.empty((*shape, self.size), dtype=slope.dtype, device=device(slope))
        by_feature = xp.moveaxis(weights, -1, 0)  # a view
        by_feature[0, ...] = counts.log_prior + xp.reshape(constant, shape)
        for offset, block in (
            (1, to_column @ xp.concat([linear, -slope * linear[first:, ...]])),
            (1 + d, to_column @ (-0.5 * xp.concat([precision, slope * tilt]))),
            (1 + 2 * d, to_product @ tilt),
        ):
            by_feature[offset : offset + block.shape[0], ...] = xp.reshape(block, (block.shape[0], *shape))
        return weights

    def _fitted(self, counts: Counts, extra: Array, least: float) -> tuple[Array, Array, Array]:
        """Return guarded b [L, M], and a and q [R + L, M]."""
        xp = array_namespace(counts.stats)
        d, shape = self.columns, counts.log_prior.shape
        stats = xp.empty((self.size, *shape), dtype=counts.stats.dtype, device=device(counts.stats))
        stats[...] = xp.moveaxis(counts.stats[..., : self.size], -1, 0)
        stats = xp.reshape(stats, (self.size, -1))
        lacking = xp.reshape(counts.lacking(counts.stats[..., 0]), (-1,))
        rows, shrink = (
            xp.reshape(values, (-1,))
            for values in (counts.classes, counts.classes / (counts.classes + extra))
        )

        def columns_of(columns: np.ndarray, values: Array) -> Array:
            return xp.take(values, beside(values, columns), axis=0)

        means = xp.clip(stats[1 : 1 + d, ...] / rows, -MEAN_LIMIT, MEAN_LIMIT)
        variances = xp.clip(
            (stats[1 + d : 1 + 2 * d, ...] + lacking) / rows - means * means, least, 1.0 / TINY
        )
        deviations = xp.sqrt(variances)
        mean, parent_mean, spread = (
            columns_of(self.children, means),
            columns_of(self.parents, means),
            columns_of(self.parents, variances),
        )
        limit = columns_of(self.children, deviations) * self.most * columns_of(self.parents, deviations)
        covariance = columns_of(self.product, stats[1 + 2 * d :, ...]) / rows - mean * parent_mean
        covariance = xp.maximum(xp.minimum(covariance, limit), -limit) * shrink
        slope = xp.clip(covariance / spread, -SLOPE_LIMIT, SLOPE_LIMIT)
        residual_variance = columns_of(self.children, variances) - slope * (2.0 * covariance - spread * slope)
        intercept = xp.concat([columns_of(self.roots, means), mean - slope * parent_mean])
        variance = xp.concat([columns_of(self.roots, variances), xp.clip(residual_variance, least, None)])
        return slope, intercept, variance
