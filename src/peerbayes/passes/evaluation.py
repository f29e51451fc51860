"""What one pass says about a model, from the logits of its blocks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Evaluation(NamedTuple):
    """What one pass says about a model."""

    residual: np.ndarray  # [C, K]
    soft_error: float
    error: float


def softmax(logits: np.ndarray) -> np.ndarray:
    """P = softmax over classes, in place: [C, b]."""
    logits -= logits.max(axis=0)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=0)
    return logits


def residuals(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """(Y − P) times the rows' weights, in place: [C, b]; and the weight of what is wrong, softly and hard."""
    wrong = float(weights[logits.argmax(axis=0) != labels].sum())
    softmax(logits)
    logits *= -weights
    own = labels, np.arange(labels.size)
    logits[own] += weights
    return float(logits[own].sum()), wrong
