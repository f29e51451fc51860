"""θ of continuous columns with one parent, a continuous one, or none: numbers do instead of matrices.

    x_j ~ N(a + b x_p, q)     b = cov(x_j, x_p)/var(x_p)     a = mean_j − b mean_p     q = var_j − b (2 cov − b var_p)

    log N = −½ (log 2πq + a²/q) + (a/q) x_j − (ab/q) x_p − ½ (1/q) x_j² − ½ (b²/q) x_p² + (b/q) x_j x_p

b is 0 where there is no parent. Features lie first, classes of all peers last, so that every step goes over long rows;
what a column says alone is computed once, however many children it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from array_api_compat import array_namespace, device

from peerbayes.core import Array
from peerbayes.families.base import LOG_2PI, MEAN_LIMIT, TINY, Counts, beside

# Coefficients are kept within this many standardised units: their products stay finite in float32.
SLOPE_LIMIT = 1e5


@dataclass(frozen=True, eq=False)
class Lines:
    """Which columns of φ = [1 | x | x² | products] are such, and the parents of those that have one."""

    columns: int  # D
    products: int  # X
    roots: np.ndarray  # [R] columns without a parent
    children: np.ndarray  # [L] columns with one
    parents: np.ndarray  # [L]
    product: np.ndarray  # [L] which product is that of both
    most: float  # the largest correlation

    @cached_property
    def _to_column(self) -> np.ndarray:
        """Adds up what is said of each column by itself, and by its children: [D, R + 2·L] of 0 and 1."""
        return np.eye(self.columns)[:, np.concatenate([self.roots, self.children, self.parents])]

    @cached_property
    def _to_product(self) -> np.ndarray:
        """Brings what lines say of products to their places: [X, L] of 0 and 1."""
        return np.eye(self.products)[:, self.product]

    @property
    def size(self) -> int:
        return 1 + 2 * self.columns + self.products

    def weights(self, counts: Counts, extra: Array, least: float) -> Array:
        """log p(c) and the natural weights of all lines together: [..., C, 1 + 2·D + X].

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
            beside(slope, each, slope.dtype) for each in (self._to_column, self._to_product)
        )

        weights = xp.empty((*shape, self.size), dtype=slope.dtype, device=device(slope))
        turned = xp.moveaxis(weights, -1, 0)  # the same numbers
        turned[0, ...] = counts.log_prior + xp.reshape(constant, shape)
        for place, said in (
            (1, to_column @ xp.concat([linear, -slope * linear[first:, ...]])),
            (1 + d, to_column @ (-0.5 * xp.concat([precision, slope * tilt]))),
            (1 + 2 * d, to_product @ tilt),
        ):
            turned[place : place + said.shape[0], ...] = xp.reshape(said, (said.shape[0], *shape))
        return weights

    def _fitted(self, counts: Counts, extra: Array, least: float) -> tuple[Array, Array, Array]:
        """b [L, M], a and q [R + L, M], each with its guards."""
        xp = array_namespace(counts.stats)
        d, shape = self.columns, counts.log_prior.shape
        stats = xp.empty((self.size, *shape), dtype=counts.stats.dtype, device=device(counts.stats))
        stats[...] = xp.moveaxis(counts.stats[..., : self.size], -1, 0)
        stats = xp.reshape(stats, (self.size, -1))
        lacking = xp.reshape(counts.lacking(counts.stats[..., 0]), (-1,))
        rows, kept = (
            xp.reshape(each, (-1,)) for each in (counts.classes, counts.classes / (counts.classes + extra))
        )

        def of(columns: np.ndarray, values: Array) -> Array:
            return xp.take(values, beside(values, columns), axis=0)

        means = xp.clip(stats[1 : 1 + d, ...] / rows, -MEAN_LIMIT, MEAN_LIMIT)
        variances = xp.clip(
            (stats[1 + d : 1 + 2 * d, ...] + lacking) / rows - means * means, least, 1.0 / TINY
        )
        deviations = xp.sqrt(variances)
        mean, parent, spread = of(self.children, means), of(self.parents, means), of(self.parents, variances)
        limit = of(self.children, deviations) * self.most * of(self.parents, deviations)
        covariance = of(self.product, stats[1 + 2 * d :, ...]) / rows - mean * parent
        covariance = xp.maximum(xp.minimum(covariance, limit), -limit) * kept
        slope = xp.clip(covariance / spread, -SLOPE_LIMIT, SLOPE_LIMIT)
        rest = of(self.children, variances) - slope * (2.0 * covariance - spread * slope)
        intercept = xp.concat([of(self.roots, means), mean - slope * parent])
        variance = xp.concat([of(self.roots, variances), xp.clip(rest, least, None)])
        return slope, intercept, variance
