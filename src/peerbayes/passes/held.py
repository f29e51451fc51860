"""Labelled rows whose features are held: a few, or some that will pass by many times."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from peerbayes.passes.evaluation import Evaluation, residuals
from peerbayes.passes.sizes import block_rows
from peerbayes.passes.sums import split_sums


@dataclass(frozen=True)
class Held:
    """Labelled rows as Φ [n, K] and Y [n, C]."""

    features: Any  # [n, K] an array, or sparse where most of it is zero
    labels: np.ndarray

    @cached_property
    def classes(self) -> np.ndarray:
        return self.labels.argmax(axis=-1)

    @cached_property
    def weights(self) -> np.ndarray:
        return self.labels.sum(axis=-1)

    @property
    def mass(self) -> float:
        return float(self.weights.sum())

    def statistics(self) -> np.ndarray:
        """S = YᵀΦ: [C, K], summed almost without rounding errors."""
        features = self.features if isinstance(self.features, np.ndarray) else self.features.toarray()
        upper, lower = split_sums((features * self.weights[:, None]).T, self.labels > 0)
        return upper + lower

    def evaluate(self, weights: np.ndarray) -> Evaluation:
        """R = (Y − P)ᵀΦ and the errors of the model W."""
        residual, soft, wrong = np.zeros(weights.shape), 0.0, 0.0
        rows, size = self.features.shape[0], block_rows(self.features.shape[1])
        for part in (slice(start, start + size) for start in range(0, rows, size)):
            logits = weights @ self.features[part].T  # [C, b]
            lost = residuals(logits, self.classes[part], self.weights[part])
            soft, wrong = soft + lost[0], wrong + lost[1]
            residual += logits @ self.features[part]
        return Evaluation(residual, soft / self.mass, wrong / self.mass)
