"""The core shared by all families: statistics, log joint, posterior and residual.

Shapes have fixed letters: N peers · n rows (a zero row is padding) · D columns · K features · C classes;
a leading ``...`` is nothing or N. Arrays may be NumPy's or PyTorch's: results are of the same library.

    Φ [..., n, K]   features φ(x) of the rows          Y [..., n, C]   labels, one-hot times the row's weight
    S [..., C, K]   sufficient statistics              W [..., C, K]   natural weights, W = θ(S)
"""

from collections.abc import Callable
from typing import Any

from array_api_compat import array_namespace

from peerbayes.data.table import Array

# log p(x, c) from Φ [..., n, K] and W [..., C, K]: that of a family where it is not linear (`Family.log_joint`).
LogJoint = Callable[[Any, Array], Array]


def one_hot(codes: Array, classes: int, dtype: Any = None) -> Array:
    """Return Y, one-hot labels of class indices: [..., n] -> [..., n, C]; a negative index gives a zero row."""
    xp = array_namespace(codes)
    levels = xp.arange(classes, dtype=codes.dtype, **_on(codes))
    return xp.astype(codes[..., None] == levels, dtype or xp.float64)


def statistics(features: Array, labels: Array) -> Array:
    """Return S = YᵀΦ: [..., n, K], [..., n, C] -> [..., C, K]."""
    return labels.mT @ features


def log_joint(features: Array, weights: Array) -> Array:
    """Return log p(x, c) = ⟨W_c, φ(x)⟩: [..., n, K], [..., C, K] -> [..., n, C]."""
    return features @ weights.mT


def softmax(logits: Array) -> Array:
    """Return exp(l) / Σ exp(l) over the last axis, without overflow."""
    xp = array_namespace(logits)
    shifted = xp.exp(logits - xp.max(logits, axis=-1, keepdims=True))
    return shifted / xp.sum(shifted, axis=-1, keepdims=True)


def log_softmax(logits: Array) -> Array:
    """Return the logarithm of `softmax`, finite where softmax is 0: [..., C]."""
    xp = array_namespace(logits)
    shifted = logits - xp.max(logits, axis=-1, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))


def posterior(features: Array, weights: Array, joint: LogJoint = log_joint) -> Array:
    """Return P = softmax(Φ Wᵀ), or that of a family's own log joint: [..., n, K], [..., C, K] -> [..., n, C]."""
    return softmax(joint(features, weights))


def residual(features: Array, labels: Array, weights: Array, joint: LogJoint = log_joint) -> Array:
    """Return R = (Y − P)ᵀΦ, each row of P times the row's weight Σ_c Y: the step of calibration. [..., C, K].

    Σ_c R_c = 0, so calibration never moves Σ_c S_c.
    """
    return _change(features, labels, posterior(features, weights, joint))


def evaluate(
    features: Array, labels: Array, weights: Array, joint: LogJoint = log_joint
) -> tuple[Array, Array, Array, Array]:
    """Return R [..., C, K], and the soft error, the 0-1 error and the log loss of W on the same rows: [...] each."""
    logits = joint(features, weights)
    posteriors = softmax(logits)
    change, loss = _change(features, labels, posteriors), log_loss(labels, logits)
    return change, soft_error(labels, posteriors), error(labels, posteriors), loss


def _change(features: Array, labels: Array, posteriors: Array) -> Array:
    """Return (Y − P)ᵀΦ, each row of P times the row's weight."""
    row_weights = array_namespace(labels).sum(labels, axis=-1, keepdims=True)
    return statistics(features, labels - row_weights * posteriors)


def soft_error(labels: Array, posteriors: Array) -> Array:
    """Return the mean soft 0-1 loss 1 − p(y|x) of the rows, 0 without rows: [..., n, C], [..., n, C] -> [...]."""
    return _mean(labels, 1.0 - posteriors)


def error(labels: Array, scores: Array) -> Array:
    """Return the share of rows whose highest score is not their label's, 0 without rows: two [..., n, C] -> [...]."""
    xp = array_namespace(labels)
    return _mean(labels, 1.0 - one_hot(xp.argmax(scores, axis=-1), scores.shape[-1], labels.dtype))


def log_loss(labels: Array, logits: Array) -> Array:
    """Return the mean of −log p(y|x) of the rows, 0 without rows: [..., n, C], [..., n, C] -> [...]."""
    return _mean(labels, -log_softmax(logits))


def _mean(labels: Array, losses: Array) -> Array:
    """Return the mean loss of the rows, given that of each class: Σ Y∘losses / Σ Y."""
    xp = array_namespace(labels)
    total = xp.sum(labels, axis=(-2, -1))
    return xp.sum(labels * losses, axis=(-2, -1)) / xp.where(total > 0, total, xp.ones_like(total))


def _on(array: Array) -> dict[str, Any]:
    """Return the keyword argument that puts a new array on the device of ``array``."""
    from array_api_compat import device

    return {"device": device(array)}
