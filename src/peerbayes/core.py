"""The one idea: statistics, log joint, posterior and residual, for every family.

Shapes have fixed letters: N peers · n rows (a zero row is padding) · D columns · K features · C classes;
a leading ``...`` is nothing or N. Arrays may be NumPy's or PyTorch's: the library follows the arrays.

    Φ [..., n, K]   features φ(x) of the rows          Y [..., n, C]   labels, one-hot times the row's weight
    S [..., C, K]   sufficient statistics              W [..., C, K]   natural weights, W = θ(S)
"""

from typing import Any

from array_api_compat import array_namespace

Array = Any  # a NumPy or PyTorch array


def one_hot(codes: Array, classes: int, dtype: Any = None) -> Array:
    """Y: class indices [..., n] -> one-hot labels [..., n, C]; a negative index gives a zero row."""
    xp = array_namespace(codes)
    levels = xp.arange(classes, dtype=codes.dtype, **_on(codes))
    return xp.astype(codes[..., None] == levels, dtype or xp.float64)


def statistics(features: Array, labels: Array) -> Array:
    """S = YᵀΦ: [..., n, K], [..., n, C] -> [..., C, K]."""
    return labels.mT @ features


def log_joint(features: Array, weights: Array) -> Array:
    """log p(x, c) = ⟨W_c, φ(x)⟩: [..., n, K], [..., C, K] -> [..., n, C]."""
    return features @ weights.mT


def softmax(logits: Array) -> Array:
    """exp(l) / Σ exp(l) over the last axis, without overflow."""
    xp = array_namespace(logits)
    shifted = xp.exp(logits - xp.max(logits, axis=-1, keepdims=True))
    return shifted / xp.sum(shifted, axis=-1, keepdims=True)


def posterior(features: Array, weights: Array) -> Array:
    """P = softmax(Φ Wᵀ): [..., n, K], [..., C, K] -> [..., n, C]."""
    return softmax(log_joint(features, weights))


def residual(features: Array, labels: Array, weights: Array) -> Array:
    """R = (Y − P)ᵀΦ, each row of P times the row's weight Σ_c Y: what calibration adds. [..., C, K].

    Σ_c R_c = 0, so calibration never moves Σ_c S_c.
    """
    return _change(features, labels, posterior(features, weights))


def evaluate(features: Array, labels: Array, weights: Array) -> tuple[Array, Array, Array]:
    """R, and the soft and 0-1 error of W on the same rows, from one posterior: [..., C, K], [...], [...]."""
    posteriors = posterior(features, weights)
    change = _change(features, labels, posteriors)
    return change, soft_error(labels, posteriors), error(labels, posteriors)


def _change(features: Array, labels: Array, posteriors: Array) -> Array:
    """(Y − P)ᵀΦ, each row of P times the row's weight."""
    row_weights = array_namespace(labels).sum(labels, axis=-1, keepdims=True)
    return statistics(features, labels - row_weights * posteriors)


def soft_error(labels: Array, posteriors: Array) -> Array:
    """Mean of the soft 0-1 loss 1 − p(y|x) over the rows, 0 without rows: [..., n, C], [..., n, C] -> [...]."""
    return _share_lost(labels, posteriors)


def error(labels: Array, scores: Array) -> Array:
    """Share of rows whose highest score is not their label's, 0 without rows: [..., n, C], [..., n, C] -> [...]."""
    xp = array_namespace(labels)
    return _share_lost(labels, one_hot(xp.argmax(scores, axis=-1), scores.shape[-1], labels.dtype))


def _share_lost(labels: Array, credit: Array) -> Array:
    """The share of the rows' weight that gets no credit: Σ Y∘(1 − credit) / Σ Y."""
    xp = array_namespace(labels)
    total = xp.sum(labels, axis=(-2, -1))
    return xp.sum(labels * (1.0 - credit), axis=(-2, -1)) / xp.where(total > 0, total, xp.ones_like(total))


def _on(array: Array) -> dict[str, Any]:
    """The keyword that puts a new array beside ``array``."""
    from array_api_compat import device

    return {"device": device(array)}
