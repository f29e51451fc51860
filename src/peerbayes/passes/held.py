"""Labelled rows whose features are kept in memory: few rows, or some with many passes over them."""

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
        """Return S = YᵀΦ, summed almost without rounding errors: [C, K]."""
        features = self.features if isinstance(self.features, np.ndarray) else self.features.toarray()
        upper, lower = split_sums((features * self.weights[:, None]).T, self.labels > 0)
        return upper + lower

    def evaluate(self, weights: np.ndarray) -> Evaluation:
        """Return R = (Y − P)ᵀΦ and the errors of the model W."""
        residual, soft, wrong = np.zeros(weights.shape), 0.0, 0.0
        rows, size = self.features.shape[0], block_rows(self.features.shape[1])
        for block in (slice(start, start + size) for start in range(0, rows, size)):
            logits = weights @ self.features[block].T  # [C, b]
            block_errors = residuals(logits, self.classes[block], self.weights[block])
            soft, wrong = soft + block_errors[0], wrong + block_errors[1]
            residual += logits @ self.features[block]
        return Evaluation(residual, soft / self.mass, wrong / self.mass)
