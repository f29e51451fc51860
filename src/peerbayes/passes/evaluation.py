"""The residual and the errors of a model in one pass, from the logits of its blocks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Evaluation(NamedTuple):
    """The residual and the errors of a model on labelled rows."""

    residual: np.ndarray  # [C, K]
    soft_error: float
    error: float


def softmax(logits: np.ndarray) -> np.ndarray:
    """Compute P = softmax over classes in place: [C, b]."""
    logits -= logits.max(axis=0)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=0)
    return logits


def residuals(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Replace logits [C, b] by (Y − P) times the rows' weights; return the soft and the 0-1 error, in row weight."""
    wrong = float(weights[logits.argmax(axis=0) != labels].sum())
    softmax(logits)
    logits *= -weights
    label_entries = labels, np.arange(labels.size)
    logits[label_entries] += weights
    return float(logits[label_entries].sum()), wrong
