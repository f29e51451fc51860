"""A family of your own: naive Bayes with one variance per class. docs/howto/family.md explains it.

python examples/own_family.py
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace, device
from sklearn.datasets import load_digits

import peerbayes as pb
from peerbayes.estimators.classifiers import ESTIMATOR_OF
from peerbayes.estimators.generative import GenerativeClassifier
from peerbayes.model.families import FAMILIES
from peerbayes.model.families.base import LOG_2PI, MEAN_LIMIT, Family


@dataclass(frozen=True, kw_only=True)
class Spherical(Family):
    """φ(x) = [1 | x | Σ x_j² | one-hots]."""

    name: ClassVar[str] = "spherical"

    @property
    def dense_size(self) -> int:
        return 2 + self.continuous

    def dense(self, values: Any) -> Any:
        """[..., n, Dc] -> [..., n, 2 + Dc]."""
        xp = array_namespace(values)
        one = xp.ones((*values.shape[:-1], 1), dtype=values.dtype, device=device(values))
        return xp.concat([one, values, xp.sum(values * values, axis=-1, keepdims=True)], axis=-1)

    def weights(self, stats: Any) -> Any:
        """W = θ(S): finite for any real S, and the same for aS."""
        xp, d = array_namespace(stats), self.continuous
        counts = self.counts(stats)
        unit = counts.stats
        mean = xp.clip(unit[..., 1 : 1 + d] / counts.classes[..., None], -MEAN_LIMIT, MEAN_LIMIT)
        square = (unit[..., 1 + d] + d * counts.lacking(unit[..., 0])) / counts.classes
        spread = xp.sum(mean * mean, axis=-1)
        variance = xp.clip((square - spread) / d, self.variance_floor, None)
        bias = counts.log_prior - 0.5 * (d * (LOG_2PI + xp.log(variance)) + spread / variance)
        parts = [
            bias[..., None],
            mean / variance[..., None],
            -0.5 / variance[..., None],
            self.log_cells(counts),
        ]
        return xp.concat(parts, axis=-1)

    def uniform_moments(self) -> np.ndarray:
        """φ of one row of a class whose columns are standard normal."""
        return np.array([1.0, *[0.0] * self.continuous, float(self.continuous)])


class SphericalNB(GenerativeClassifier):
    """Its scikit-learn face."""

    family_type = Spherical


FAMILIES[Spherical.name], ESTIMATOR_OF[Spherical.name] = Spherical, SphericalNB  # so that peers know the name

X, y = load_digits(return_X_y=True)
for estimator in (pb.MixedNB, SphericalNB):
    for calibrate in (False, True):
        model = estimator(calibrate=calibrate).fit(X[::2], y[::2])
        error = 1 - model.score(X[1::2], y[1::2])
        print(f"{estimator.__name__:<12} {'calibrated' if calibrate else 'ML':<10} test error {error:.3f}")
run = pb.simulate(X, y, family="spherical", peers=20, rows_per_peer=40, rounds=32, evaluate_every=0)
print(
    f"\n20 peers together: {run.summary()['test_error']:.3f}, RC on the pooled rows {run.summary()['test_rc']:.3f}"
)
