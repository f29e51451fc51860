"""How good models are: errors of many models on the same rows, and how far peers are apart."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from peerbayes import core
from peerbayes.core import Array

# Logits held at a time while many models are evaluated; beyond it they are taken in turns.
LOGITS_HELD = 1 << 23


def errors(features: Array, labels: Array, weights: Array) -> tuple[Array, Array]:
    """0-1 and soft error of N models on common rows: Φ [n, K], Y [n, C], W [N, C, K] -> two [N].

    One matrix product for as many models as fit.
    """
    xp = array_namespace(weights)
    models, classes, size = weights.shape
    held = max(1, LOGITS_HELD // max(1, labels.shape[0] * classes))
    found: list[tuple[Any, Any]] = []
    for first in range(0, models, held):
        block = weights[first : first + held, ...]
        logits = xp.reshape(features @ xp.reshape(block, (-1, size)).mT, (labels.shape[0], -1, classes))
        logits = xp.permute_dims(logits, (1, 0, 2))
        soft = core.soft_error(labels[None, ...], core.softmax(logits))
        found.append((core.error(labels[None, ...], logits), soft))
    return xp.concat([hard for hard, _ in found]), xp.concat([soft for _, soft in found])


def disagreement(stats: Array) -> Array:
    """‖S_v − S̄‖ / ‖S̄‖, S̄ the mean over peers: [N, C, K] -> [N]."""
    xp = array_namespace(stats)
    mean = xp.mean(stats, axis=0, keepdims=True)
    apart = xp.sqrt(xp.sum((stats - mean) ** 2, axis=(-2, -1)))
    return apart / xp.sqrt(xp.sum(mean**2))
