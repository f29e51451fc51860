"""A family: classes are spheres of variance 1 around their means, in standardised units."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from peerbayes.data.table import Rows
from peerbayes.model.families.base import LOG_2PI, MEAN_LIMIT, Family


class Parameters(NamedTuple):
    """Readable parameters, in standardised units."""

    log_prior: Any  # [..., C]
    mean: Any  # [..., C, Dc]
    variance: Any  # [..., C, Dc]
    log_cells: Any  # [..., C, cells]


@dataclass(frozen=True, kw_only=True)
class Centroid(Family):
    """φ(x) = [1 | x | x² | one-hots], with log p(x | c) = −½ Σ_j (log 2π + (x_j − mean_cj)²)."""

    name: ClassVar[str] = "centroid"
    estimator: ClassVar[str] = "peerbayes_centroid.estimator:CentroidClassifier"

    @property
    def dense_size(self) -> int:
        return 1 + 2 * self.continuous

    def dense(self, values: Any) -> Any:
        """[..., n, Dc] -> [..., n, 1 + 2 Dc]."""
        xp = array_namespace(values)
        one = xp.ones((*values.shape[:-1], 1), dtype=values.dtype, device=device(values))
        return xp.concat([one, values, values * values], axis=-1)

    def parameters(self, stats: Any) -> Parameters:
        """Return prior, means, variances and cell probabilities: `describe` and reports need them."""
        xp, counts = array_namespace(stats), self.counts(stats)
        moments = counts.stats[..., 1 : 1 + self.continuous]
        mean = xp.clip(moments / counts.classes[..., None], -MEAN_LIMIT, MEAN_LIMIT)
        return Parameters(counts.log_prior, mean, xp.ones_like(mean), self.log_cells(counts))

    def weights(self, stats: Any) -> Any:
        """W = θ(S): finite for any real S, and the same for aS."""
        xp = array_namespace(stats)
        log_prior, mean, _, log_cells = self.parameters(stats)
        bias = log_prior - 0.5 * (self.continuous * LOG_2PI + xp.sum(mean * mean, axis=-1))
        return xp.concat([bias[..., None], mean, xp.full_like(mean, -0.5), log_cells], axis=-1)

    def uniform_moments(self) -> np.ndarray:
        """φ of one row of a class whose columns are standard normal."""
        return np.array([1.0, *[0.0] * self.continuous, *[1.0] * self.continuous])

    def transformed(
        self, dense: np.ndarray, order: np.ndarray, shift: np.ndarray, ratio: np.ndarray
    ) -> np.ndarray:
        """Return S of z' = (z − shift)·ratio: statistics in different units add up with it."""
        if (order < 0).any():
            raise ValueError("centroid needs a value in every column; one of the tables lacks a column")
        count, d = dense[:, :1], self.continuous
        first, second = dense[:, 1 : 1 + d][:, order], dense[:, 1 + d :][:, order]
        moved = ratio**2 * (second - 2 * shift * first + shift**2 * count)
        return np.concatenate([count, ratio * (first - shift * count), moved], axis=-1)

    def contributions(self, stats: np.ndarray, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return each column's term of log p(x, c): `explain` needs them."""
        log_prior, mean, _, log_cells = self.parameters(stats)
        gaussian = -0.5 * (LOG_2PI + (rows.values[:, None, :] - mean) ** 2)
        return log_prior, np.concatenate([gaussian, self.cell_contributions(log_cells, rows.codes)], axis=-1)

    def sample(self, stats: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Rows:
        """Return one synthetic row for each class index in `labels`."""
        _, mean, _, log_cells = self.parameters(stats)
        values = mean[labels] + rng.standard_normal((labels.size, self.continuous))
        return Rows(values, self._sample_codes(log_cells, labels, rng))
