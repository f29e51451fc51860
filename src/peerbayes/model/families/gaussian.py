"""Gaussian classes with full covariance: QDA (one per class) and LDA (one shared).

    φ(x) = [ 1 | x₁ … x_d | x_i x_j for i ≤ j | one-hots ]

Discrete columns keep their naive Bayes one-hots next to the Gaussian block, independent of it given the class.
φ represents missing discrete values; missing continuous ones are completed from the observed columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
from array_api_compat import device

from peerbayes.data.table import Array, Rows
from peerbayes.model.families.base import (
    LOG_2PI,
    MEAN_LIMIT,
    TINY,
    Counts,
    Family,
    beside,
    clipped,
    namespace,
)
from peerbayes.model.families.evidence import variance, wishart

# Up to this many covariances, all are inverted by eigenvalues if one needs them.
FEW_MATRICES = 4


class Triangle(NamedTuple):
    """The pairs i ≤ j of d columns, in order, and the place of each pair in it, whichever comes first."""

    upper: np.ndarray  # [d (d + 1)/2]
    right: np.ndarray  # [d (d + 1)/2]
    place: np.ndarray  # [d·d]


@lru_cache(maxsize=64)  # a fit needs it several times, in several families
def triangle(d: int) -> Triangle:
    """Return the pairs of d columns, which nobody can change."""
    upper, right = np.triu_indices(d)
    place = np.zeros((d, d), dtype=np.int64)
    place[upper, right] = place[right, upper] = np.arange(upper.size)
    found = Triangle(upper, right, place.ravel())
    for indices in found:
        indices.setflags(write=False)
    return found


class GaussianParameters(NamedTuple):
    """θ(S) in readable form, in standardised units."""

    log_prior: Array  # [..., C]
    mean: Array  # [..., C, Dc]
    covariance: Array  # [..., C, Dc, Dc]; LDA repeats the shared one
    log_cells: Array  # [..., C, cells] log p(x_j = k | c)


class Precision(NamedTuple):
    """Guarded covariances, their inverses, and how many eigenvalues were raised to the floor."""

    matrix: Array  # [..., d, d] Σ⁻¹
    covariance: Array  # [..., d, d] Σ
    logdet: Array  # [...] log |Σ|
    held: Array  # [...] int


@dataclass(frozen=True, kw_only=True)
class Gaussian(Family):
    """log p(x, c) = log p(c) + log N(x; μ_c, Σ_c) + Σ_j log p(x_j | c) over the discrete columns present."""

    calibrated_floor: ClassVar[float] = 0.01
    kernels = ("expand_quadratic", "quadratic_statistics")

    shrinkage: float = 0.0
    """Rows of an identity covariance added to each class, as a share of all rows N."""

    @property
    def dense_size(self) -> int:
        d = self.continuous
        return 1 + d + d * (d + 1) // 2

    @property
    def _triangle(self) -> tuple[np.ndarray, np.ndarray]:
        """The pairs i ≤ j of the products, in order."""
        return triangle(self.continuous)[:2]

    @property
    def _unpack(self) -> np.ndarray:
        """For each entry of a flattened [d, d] matrix, its index among the products: [d·d]."""
        return triangle(self.continuous).place

    def dense(self, values: Array) -> Array:
        xp = namespace(values)
        upper, right = (beside(values, index) for index in self._triangle)
        one = xp.ones((*values.shape[:-1], 1), dtype=values.dtype, device=device(values))
        products = xp.take(values, upper, axis=-1) * xp.take(values, right, axis=-1)
        return xp.concat([one, values, products], axis=-1)

    def parameters(self, stats: Array) -> GaussianParameters:
        xp = namespace(stats)
        counts = self.counts(stats)
        mean, precision = self._moments(counts)
        covariance = xp.broadcast_to(precision.covariance, (*mean.shape, self.continuous))
        return GaussianParameters(counts.log_prior, mean, covariance, self.log_cells(counts))

    def weights(self, stats: Array) -> Array:
        counts = self.counts(stats)
        return self._weights(counts, *self._moments(counts))

    def adopted(self, stats: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        counts = self.counts(stats)
        mean, precision = self._moments(counts)
        return self._weights(counts, mean, precision), precision.held

    def _weights(self, counts: Counts, mean: Array, precision: Precision) -> Array:
        """Return W from guarded counts, means and covariances: [..., C, K]."""
        stats = counts.stats
        xp = namespace(stats)
        linear = (precision.matrix @ mean[..., None])[..., 0]
        bias = self._baseline(counts, precision) - 0.5 * xp.sum(linear * mean, axis=-1)
        upper, right = self._triangle
        flat = xp.reshape(precision.matrix, (*precision.matrix.shape[:-2], self.continuous**2))
        products = xp.take(flat, beside(stats, upper * self.continuous + right), axis=-1)
        products = products * beside(stats, np.where(upper == right, -0.5, -1.0), stats.dtype)
        products = xp.broadcast_to(products, (*stats.shape[:-1], upper.size))
        return xp.concat([bias[..., None], linear, products, self.log_cells(counts)], axis=-1)

    def floored(self, stats: Array) -> Array:
        xp = namespace(stats)
        counts = self.counts(stats)
        mean, precision = self._moments(counts)
        at_limit = xp.sum(xp.astype(xp.abs(mean) >= MEAN_LIMIT, xp.int64), axis=(-2, -1))
        return self.floored_counts(counts) + at_limit + xp.sum(precision.held, axis=-1)

    def _baseline(self, counts: Counts, precision: Precision) -> Array:
        """Return log p(c) − ½ (d log 2π + log |Σ_c|): [..., C]."""
        return counts.log_prior - 0.5 * (self.continuous * LOG_2PI + precision.logdet)

    def _covariance(self, counts: Counts, mean: Array, second: Array) -> Array:
        """Return the covariances before their floor: [..., C, d, d], or [..., 1, d, d] when shared."""
        raise NotImplementedError

    def _moments(self, counts: Counts) -> tuple[Array, Precision]:
        """Return guarded means [..., C, d] and precisions [..., C or 1, d, d]."""
        mean, covariance = self._covariances(counts)
        return mean, floored_precision(covariance, self.variance_floor)

    def _covariances(self, counts: Counts) -> tuple[Array, Array]:
        """Return guarded means [..., C, d] and covariances before their floor [..., C or 1, d, d]."""
        mean = clipped(self._first(counts.stats) / counts.classes[..., None], -MEAN_LIMIT, MEAN_LIMIT)
        return mean, self._covariance(counts, mean, self._second(counts.stats))

    def variance_prior(self, stats: np.ndarray, shrinkage: float | str) -> np.ndarray:
        """Rows of independent columns with their variances over all classes: Σ = (scatter + m V)/(n + m).

        Only what is estimated: a number is `Gaussian.shrinkage`.
        """
        prior = np.zeros((len(stats), self.dense_size))
        if shrinkage != "auto" or not self.continuous:
            return prior
        count = np.maximum(stats[:, :1], 0.0)
        first, second = self._first(stats), self._second(stats)
        target = variance(*(moment.sum(axis=0) for moment in (count, first, np.linalg.diagonal(second))))
        mean = first / np.maximum(count, TINY)
        scatter, rows = self._pooled(second - (count * mean)[:, :, None] * mean[:, None, :], count[:, 0])
        unit = np.sqrt(np.maximum(target, TINY))
        m = wishart(rows, np.linalg.eigvalsh(scatter / (unit[:, None] * unit)))
        total = np.maximum(rows, TINY)[:, None, None]
        change = m * (np.diag(target) - scatter / total) / (total + m)  # of the covariance
        upper, right = self._triangle
        flat = change.reshape(len(change), -1).take(upper * self.continuous + right, axis=1)
        prior[:, 1 + self.continuous :] = count * flat
        return prior

    def _pooled(self, scatter: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the scatters that have a covariance of their own, and their rows: [M, d, d], [M]."""
        return scatter, rows

    def _first(self, stats: Array) -> Array:
        return stats[..., 1 : 1 + self.continuous]

    def _second(self, stats: Array) -> Array:
        """Return Σ xxᵀ per class: [..., C, d, d]."""
        xp = namespace(stats)
        products = stats[..., 1 + self.continuous : self.dense_size]
        square = xp.take(products, beside(stats, self._unpack), axis=-1)
        return xp.reshape(square, (*stats.shape[:-1], self.continuous, self.continuous))

    def _identity(self, like: Array) -> Array:
        xp = namespace(like)
        return xp.eye(self.continuous, dtype=like.dtype, device=device(like))

    def uniform_moments(self) -> np.ndarray:
        upper, right = self._triangle
        return np.concatenate([np.ones(1), np.zeros(self.continuous), (upper == right).astype(float)])

    def transformed(
        self, dense: np.ndarray, order: np.ndarray, shift: np.ndarray, ratio: np.ndarray
    ) -> np.ndarray:
        if np.any(order < 0):
            raise ValueError(f"a column without values cannot enter the covariances of {self.name}")
        upper, right = np.triu_indices(order.size)
        count, first = dense[..., :1], self._first(dense)[..., order]
        second = self._second(dense)[..., order[upper], order[right]]
        crossed = shift[upper] * first[..., right] + shift[right] * first[..., upper]
        centred = second - crossed + shift[upper] * shift[right] * count
        moved_first = ratio * (first - shift * count)
        return np.concatenate([count, moved_first, ratio[upper] * ratio[right] * centred], axis=-1)

    def contributions(self, stats: np.ndarray, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Column j of the Gaussian block: −½ δ_j (Σ⁻¹δ)_j, δ = x − μ_c; the determinant is in the baseline."""
        counts = self.counts(stats)
        mean, precision = self._moments(counts)
        offset = rows.values[:, None, :] - mean
        whitened = (precision.matrix @ offset[..., None])[..., 0]
        cells = self.cell_contributions(self.log_cells(counts), rows.codes)
        return self._baseline(counts, precision), np.concatenate([-0.5 * offset * whitened, cells], axis=-1)

    def sample(self, stats: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> Rows:
        counts = self.counts(stats)
        mean, precision = self._moments(counts)
        values, vectors = np.linalg.eigh(precision.covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]  # Σ = root rootᵀ
        root = np.broadcast_to(root, (mean.shape[0], *root.shape[-2:]))
        normal = rng.standard_normal((labels.size, self.continuous))
        drawn = mean[labels]
        for label in np.unique(labels):
            rows = labels == label
            drawn[rows] += normal[rows] @ root[label].T
        return Rows(drawn, self._sample_codes(self.log_cells(counts), labels, rng))


@dataclass(frozen=True, kw_only=True)
class SeparateGaussian(Gaussian):
    """A covariance per class: Σ_c = S2_c/n_c − μ_c μ_cᵀ, shrunk towards the identity, eigenvalues floored."""

    name: ClassVar[str] = "qda"
    calibrated_shrinkage: ClassVar[float] = 10.0

    def _covariance(self, counts: Counts, mean: Array, second: Array) -> Array:
        xp = namespace(counts.stats)
        rows = counts.classes[..., None, None]
        identity = self._identity(counts.stats)
        scatter = (
            second
            + counts.lacking(counts.stats[..., 0])[..., None, None] * identity
            - rows * mean[..., :, None] * mean[..., None, :]
        )
        extra = self.shrinkage * xp.sum(counts.classes, axis=-1)[..., None, None, None]
        return (scatter + extra * identity) / (rows + extra)


@dataclass(frozen=True, kw_only=True)
class SharedGaussian(Gaussian):
    """One covariance: Σ = (Σ_c S2_c − Σ_c n_c μ_c μ_cᵀ)/N. Calibration conserves Σ_c S2_c: the start decides it."""

    name: ClassVar[str] = "lda"

    def _pooled(self, scatter: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return scatter.sum(axis=0, keepdims=True), rows.sum(keepdims=True)

    def _covariance(self, counts: Counts, mean: Array, second: Array) -> Array:
        xp = namespace(counts.stats)
        identity = self._identity(counts.stats)
        lacking = xp.sum(counts.lacking(counts.stats[..., 0]), axis=-1)[..., None, None]
        between = (counts.classes[..., None] * mean).mT @ mean
        total = xp.sum(counts.classes, axis=-1)[..., None, None]
        extra = self.shrinkage * total
        scatter = xp.sum(second, axis=-3) - between + (lacking + extra) * identity
        return (scatter / (total + extra))[..., None, :, :]


def floored_precision(covariance: Array, floor: float) -> Precision:
    """Return (U max(Λ, floor) Uᵀ)⁻¹ of symmetric matrices UΛUᵀ: [..., d, d].

    Cholesky of Σ − floor·I succeeds where no eigenvalue is below the floor, and costs a fraction of the eigenvalues,
    which are computed only where it fails. The floor is at least the rounding error of a zero eigenvalue.
    """
    xp = namespace(covariance)
    *batch, d, _ = covariance.shape
    flat, floors = _floors(covariance, floor)
    try:
        precision = _invert(flat, floors)
    except Exception as error:
        if not _is_linear_algebra(error):
            raise
        precision = _invert_some(flat, floors)
    matrix, sigma, logdet, floored = precision
    shape = tuple(batch)
    matrix, sigma = xp.reshape(matrix, (*shape, d, d)), xp.reshape(sigma, (*shape, d, d))
    return Precision(matrix, sigma, xp.reshape(logdet, shape), xp.reshape(floored, shape))


def _floors(covariance: Array, floor: float) -> tuple[Array, Array]:
    """Return matrices [..., d, d] as [M, d, d], with limited entries, and the least eigenvalue of each: [M]."""
    xp = namespace(covariance)
    *batch, d, _ = covariance.shape
    flat = xp.reshape(clipped(covariance, -1.0 / TINY, 1.0 / TINY), (math.prod(batch), d, d))
    size = xp.max(xp.abs(flat), axis=(-2, -1)) if d else xp.ones(flat.shape[:1], dtype=flat.dtype)
    rounding = 16 * d * float(xp.finfo(flat.dtype).eps)
    return flat, clipped(size * rounding, max(floor, TINY))


def _is_linear_algebra(error: Exception) -> bool:
    """Whether an error says that a matrix is singular or not positive definite; PyTorch has its own type."""
    return type(error).__name__ in ("LinAlgError", "_LinAlgError")


def _invert(covariance: Array, floors: Array) -> Precision:
    """Invert all matrices by Cholesky; raise if one is not positive definite above its floor."""
    xp = namespace(covariance)
    count, d, _ = covariance.shape
    identity = xp.eye(d, dtype=covariance.dtype, device=device(covariance))
    xp.linalg.cholesky(covariance - floors[:, None, None] * identity)
    root = xp.linalg.cholesky(covariance)
    logdet = 2.0 * xp.sum(xp.log(xp.linalg.diagonal(root)), axis=-1)
    floored = xp.zeros((count,), dtype=xp.int64, device=device(covariance))
    return Precision(xp.linalg.inv(covariance), covariance, logdet, floored)


def _invert_some(covariance: Array, floors: Array) -> Precision:
    """Invert by Cholesky where possible, else by eigenvalues; all by eigenvalues on a device or if they are few."""
    if not isinstance(covariance, np.ndarray) or len(covariance) <= FEW_MATRICES:
        return _invert_by_eigenvalues(covariance, floors)
    identity = np.eye(covariance.shape[-1], dtype=covariance.dtype)
    definite = np.array([_positive(matrix) for matrix in covariance - floors[:, None, None] * identity])
    by_eigenvalues = _invert_by_eigenvalues(covariance[~definite], floors[~definite])
    if not definite.any():
        return by_eigenvalues
    merged = []
    for from_eigenvalues, from_cholesky in zip(
        by_eigenvalues, _invert(covariance[definite], floors[definite]), strict=True
    ):
        combined = np.empty((definite.size, *from_eigenvalues.shape[1:]), dtype=from_eigenvalues.dtype)
        combined[definite], combined[~definite] = from_cholesky, from_eigenvalues
        merged.append(combined)
    return Precision(*merged)


def _positive(matrix: np.ndarray) -> bool:
    """Whether a matrix is positive definite."""
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return True


def _invert_by_eigenvalues(covariance: Array, floors: Array) -> Precision:
    """Invert all matrices by their eigenvalues, raised to the floors."""
    xp = namespace(covariance)
    values, vectors = xp.linalg.eigh(covariance)
    floored = xp.sum(xp.astype(values < floors[:, None], xp.int64), axis=-1)
    values = xp.maximum(values, floors[:, None])
    matrix = (vectors / values[..., None, :]) @ vectors.mT
    return Precision(
        matrix, (vectors * values[..., None, :]) @ vectors.mT, xp.sum(xp.log(values), axis=-1), floored
    )
