"""R_v(S_v) of every peer in one pass, for naive Bayes: most of the time of a simulated round; θ(S_v) of networks.

    R_v = (Y_v − P_v)ᵀΦ_v     P_v = softmax(Φ_v θ(S_v)ᵀ)

The rows x are stored, not Φ, and peers follow one another, so that one peer's θ, logits and residuals stay in cache.
The kernel has two forms: `simd`, with hand-made vector instructions, and its plain twin in this module, which is used
where the environment variable PEERBAYES_PLAIN is set.

This module imports numba: import it only where it is needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from peerbayes.data.kernel_cache import njit
from peerbayes.data.moment_kernels import FAST
from peerbayes.data.table import Rows
from peerbayes.model.devices import processors
from peerbayes.model.families.base import LOG_2PI, MEAN_LIMIT, TINY, Family
from peerbayes.model.families.bayes_net import BayesNet
from peerbayes.model.families.naive_bayes import NaiveBayes, is_plain
from peerbayes.model.families.regressions import SLOPE_LIMIT
from peerbayes.model.kernels.block_loops import cell_logs, class_counts, largest, logarithm

# Where the largest entry of S is beyond this, or below its inverse, S is brought nearer to 1 first, by this power of
# two: the inverse of the largest entry is then neither 0 nor infinite.
EXTREME = {np.float64: 2.0**500, np.float32: 2.0**60}

# A peer's θ takes about as long as this many of its rows. A thread, which takes a tenth of a millisecond to begin,
# gets no fewer than this many products of rows, classes and features: more than half a millisecond's.
THETA_ROWS = 16
WORTH_A_THREAD = 2**22


# --- the plain kernel


@njit(cache=True, nogil=True, error_model="numpy")
def gaussians(stats, missing, scale, floor, least, limit, bias, inverse_counts, lacking, weights):
    """Write each class's natural weights of 1, o, x and x² to `weights` [C, dense]."""
    real, d = stats.dtype.type, weights.shape[1] // (3 if missing else 2)
    half, one, zero = real(0.5), real(1.0), real(0.0)
    first = 1 + d if missing else 1
    for c in range(len(stats)):
        inverse, lack = inverse_counts[c], lacking[c]
        weights[c, 0] = bias[c]
        for j in range(d):
            if missing:
                count = stats[c, 1 + j] * scale
                inverse, lack = one / max(count, floor), max(floor - max(count, zero), zero)
            mean = min(max(stats[c, first + j] * scale * inverse, -limit), limit)
            variance = max((stats[c, first + d + j] * scale + lack) * inverse - mean * mean, least)
            weights[c, first + j], weights[c, first + d + j] = mean / variance, -half / variance
            constant = -half * (real(LOG_2PI + logarithm(variance)) + mean * mean / variance)
            weights[c, 1 + j if missing else 0] = constant if missing else weights[c, 0] + constant


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def add_row(phi, codes, label, weight, weights, starts, logs, change, out):
    """Add R of one row with dense features φ to `out` [C, K]; `change` [C] is scratch."""
    classes, dense = weights.shape
    for c in range(classes):
        logit = phi[0] * weights[c, 0]
        for k in range(1, dense):
            logit += phi[k] * weights[c, k]
        for j in range(codes.size):
            if codes[j] >= 0:
                logit += logs[starts[j] + codes[j], c]
        change[c] = logit
    top, total = change.max(), change.dtype.type(0.0)
    for c in range(classes):
        change[c] = np.exp(change[c] - top)
        total += change[c]
    for c in range(classes):
        step = ((total if c == label else 0.0) - change[c]) * (weight / total)
        for k in range(dense):
            out[c, k] += step * phi[k]
        for j in range(codes.size):
            if codes[j] >= 0:
                out[c, dense + starts[j] + codes[j]] += step


@njit(cache=True, nogil=True, error_model="numpy")
def plain_residuals(values, codes, labels, row_weights, offsets, starts, missing, guards, stats, out):
    """Compute R of every peer, row by row: [N, C, K] -> [N, C, K]."""
    nodes, classes, _ = stats.shape
    d, (floor_share, least, limit, tiny, extreme) = values.shape[1], guards
    real, dense = stats.dtype.type, 1 + d * (3 if missing else 2)
    zero, one = real(0.0), real(1.0)
    bias, inverse_counts, lacking = np.empty((3, classes), stats.dtype)
    change, sums = np.empty((2, classes), stats.dtype)
    weights, logs = np.empty((classes, dense), stats.dtype), np.empty((starts[-1], classes), stats.dtype)
    phi = np.ones(dense, stats.dtype)
    for v in range(nodes):
        S, R = stats[v], out[v]
        highest = largest(S)
        if highest != highest:
            R[:] = np.nan
            continue
        if highest > extreme or one / extreme > highest > zero:
            S = S * (extreme if highest < one else one / extreme)
            highest = largest(S)
        scale = one / highest if highest > zero else one
        floor = class_counts(S, scale, floor_share, tiny, bias, inverse_counts, lacking)
        gaussians(S, missing, scale, floor, least, limit, bias, inverse_counts, lacking, weights)
        cell_logs(S, dense, starts, scale, floor, tiny, logs, sums)
        R[:] = zero
        for i in range(offsets[v], offsets[v + 1]):
            if labels[i] < 0:
                continue
            for j in range(d):
                x = real(values[i, j])
                if missing:
                    phi[1 + j] = zero if x != x else one
                    x = zero if x != x else x
                phi[dense - 2 * d + j], phi[dense - d + j] = x, x * x
            add_row(phi, codes[i], labels[i], real(row_weights[i]), weights, starts, logs, change, R)


# --- interface


def supports(family: Family) -> bool:
    """Return whether R of this family has a fused kernel: naive Bayes itself, not a family derived from it."""
    return is_plain(family)


def residual_kernel() -> Callable[..., None]:
    """Return the kernel with hand-made vector instructions or, where PEERBAYES_PLAIN is set, its plain twin."""
    if os.environ.get("PEERBAYES_PLAIN"):
        return plain_residuals
    from peerbayes.model.kernels import simd

    return simd.all_residuals


@dataclass(frozen=True)
class FusedPeers:
    """All peers' rows, one peer's after the other's: `offsets` [N + 1] says where each begins and the last ends."""

    family: NaiveBayes
    rows: Rows  # [rows, Dc] float64 or float32, NaN is missing; [rows, Dd], negative is missing
    labels: np.ndarray  # [rows] class index; a negative one excludes the row
    row_weights: np.ndarray  # [rows]
    offsets: np.ndarray  # [N + 1]
    classes: int
    threads: int | None = None  # at most; None: as many as there are processors for this process

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads is {self.threads}; expected 1 or more, or None for one per processor")
        if not supports(self.family):
            raise ValueError(
                f"no fused kernel for {type(self.family).__name__}; use core.residual over its features"
            )
        values, codes = np.asarray(self.rows.values), np.asarray(self.rows.codes)
        single = values.dtype == np.float32
        arrays = {
            "rows": Rows(
                np.ascontiguousarray(values, dtype=np.float32 if single else np.float64),
                np.ascontiguousarray(codes, dtype=np.int32),
            ),
            "labels": np.ascontiguousarray(self.labels, dtype=np.int32),
            "row_weights": np.ascontiguousarray(self.row_weights, dtype=np.float64),
            "offsets": np.ascontiguousarray(self.offsets, dtype=np.int64),
        }
        for name, array in arrays.items():
            object.__setattr__(self, name, array)
        self._check()

    def _check(self) -> None:
        """Check shapes, offsets, labels and codes: the kernel trusts every index."""
        values, codes = self.rows
        count = self.labels.size
        shapes = (count, self.family.continuous), (count, len(self.family.cardinalities))
        if (values.shape, codes.shape) != shapes or self.row_weights.shape != (count,):
            raise ValueError(
                f"values {values.shape}, codes {codes.shape} and row weights {self.row_weights.shape} do not fit "
                f"{count} labels and a family of {shapes[0][1]} continuous and {shapes[1][1]} discrete columns"
            )
        if (
            self.offsets.size < 1
            or self.offsets[0] < 0
            or self.offsets[-1] > count
            or np.any(np.diff(self.offsets) < 0)
        ):
            raise ValueError(f"offsets must rise from 0 or more to at most {count}, the number of rows")
        if count and self.labels.max() >= self.classes:
            raise ValueError(
                f"a label is {self.labels.max()}; expected less than {self.classes}, the number of classes"
            )
        if codes.size and np.any(codes.max(axis=0) >= np.asarray(self.family.cardinalities)):
            raise ValueError(
                f"a code is beyond its column's categories; expected {self.family.cardinalities} of them"
            )
        if not self.family.missing and not np.isfinite(values).all():
            raise ValueError(
                "values are missing or infinite; use a family with missing=True, or fill them in first"
            )

    def residual(self, stats: np.ndarray) -> np.ndarray:
        """Return R_v(S_v) of every peer in the number type of S, NaN where S_v is not finite: [N, C, K]."""
        expected = (self.offsets.size - 1, self.classes, self.family.size)
        if stats.shape != expected:
            raise ValueError(f"statistics are {stats.shape}; expected {expected}: peers, classes, features")
        kind = np.float32 if stats.dtype == np.float32 else np.float64
        stats = np.ascontiguousarray(stats, dtype=kind)
        out = np.empty_like(stats)
        guards = [self.family.count_floor / self.classes, max(self.family.variance_floor, TINY)]
        typed = tuple(kind(guard) for guard in (*guards, MEAN_LIMIT, TINY, EXTREME[kind]))
        starts = np.append(self.family.offsets, sum(self.family.cardinalities))

        kernel = residual_kernel()

        def compute(begin: int, end: int) -> None:
            kernel(
                *self.rows, self.labels, self.row_weights, self.offsets[begin : end + 1], starts,
                self.family.missing, typed, stats[begin:end], out[begin:end],
            )  # fmt: skip

        edges = self._edges()
        if edges.size == 2:
            compute(*edges)
        else:
            with ThreadPoolExecutor(edges.size - 1) as pool:
                list(pool.map(compute, edges[:-1], edges[1:]))
        return out

    def _edges(self) -> np.ndarray:
        """Return where each thread's peers begin and the last one's end: [threads + 1]. Work is about equal."""
        nodes = self.offsets.size - 1
        work = self.offsets - self.offsets[0] + THETA_ROWS * np.arange(nodes + 1)
        pays = int(work[-1]) * self.classes * self.family.size // WORTH_A_THREAD
        count = max(min(self.threads or processors(), pays, nodes), 1)
        return np.append(np.searchsorted(work, np.arange(count) * work[-1] / count), nodes)


# --- θ of every peer, for networks of continuous columns with one parent or none: `families.regressions` as loops
# The features are the first axis and the classes the last, in scratch that stays in cache, so that every inner loop
# runs over classes. Sums are not reordered and products not fused: differences of moments are rounded as in NumPy.


@njit(inline="always")
def between(x, low, high):
    x = x if x > low else low
    return x if x < high else high


@njit(cache=True, nogil=True, error_model="numpy")
def line_counts(count, share, shrinkage, rows, lacking, link_share, bias):
    """Write the guarded counts [C], what they lack, the share of a link that is used, and log p(c)."""
    total, mass = 0.0, 0.0
    for c in range(count.size):
        total += max(count[c], 0.0)
    floor = max(total * share, TINY)
    for c in range(count.size):
        rows[c] = max(count[c], floor)
        lacking[c] = max(floor - max(count[c], 0.0), 0.0)
        mass += rows[c]
    for c in range(count.size):
        link_share[c] = rows[c] / (rows[c] + shrinkage * mass)
        bias[c] = logarithm(rows[c] / mass)


@njit(cache=True, nogil=True, error_model="numpy")
def column_moments(moments, columns, rows, lacking, limit, least, deviation):
    """Turn Σx and Σx² in `moments` into means and variances; write `deviation` [D, C], their roots."""
    most = 1.0 / TINY
    for j in range(columns):
        mean, variance, root = moments[1 + j], moments[1 + columns + j], deviation[j]
        for c in range(rows.size):
            m = between(mean[c] / rows[c], -limit, limit)
            q = between((variance[c] + lacking[c]) / rows[c] - m * m, least, most)
            mean[c], variance[c], root[c] = m, q, np.sqrt(q)


@njit(cache=True, nogil=True, error_model="numpy")
def add_root(j, columns, moments, theta):
    """Add the log density of a column without a parent: to the weights of 1, x and x²."""
    mean, variance = moments[1 + j], moments[1 + columns + j]
    bias, linear, square = theta[0], theta[1 + j], theta[1 + columns + j]
    for c in range(mean.size):
        precision = 1.0 / variance[c]
        slant = mean[c] * precision
        bias[c] -= 0.5 * (LOG_2PI + logarithm(variance[c]) + mean[c] * slant)
        linear[c] += slant
        square[c] -= 0.5 * precision


@njit(cache=True, nogil=True, error_model="numpy")
def add_line(
    j, p, product, columns, rows, link_share, correlation, steepest, least, moments, deviation, theta
):
    """Add the log density of a column given its parent: to the weights of 1, x and x² of both, and their product."""
    mean, parent_mean, together = moments[1 + j], moments[1 + p], moments[product]
    variance, parent_variance = moments[1 + columns + j], moments[1 + columns + p]
    child_deviation, parent_deviation = deviation[j], deviation[p]
    bias, linear, of_parent, of_both = theta[0], theta[1 + j], theta[1 + p], theta[product]
    square, parents_square = theta[1 + columns + j], theta[1 + columns + p]
    for c in range(rows.size):
        limit = child_deviation[c] * correlation * parent_deviation[c]
        covariance = between(together[c] / rows[c] - mean[c] * parent_mean[c], -limit, limit) * link_share[c]
        b = between(covariance / parent_variance[c], -steepest, steepest)
        remaining = variance[c] - b * (2.0 * covariance - parent_variance[c] * b)
        remaining = remaining if remaining > least else least
        precision, a = 1.0 / remaining, mean[c] - b * parent_mean[c]
        slant, tilt = a * precision, b * precision
        bias[c] -= 0.5 * (LOG_2PI + logarithm(remaining) + a * slant)
        linear[c] += slant
        of_parent[c] -= b * slant
        square[c] -= 0.5 * precision
        parents_square[c] -= 0.5 * b * tilt
        of_both[c] += tilt


@njit(cache=True, nogil=True, error_model="numpy")
def all_line_weights(stats, columns, roots, children, parents, products, guards, out):
    """Compute θ of every peer: [N, C, K] -> [N, C, K]; NaN where S is not finite."""
    nodes, classes, size = stats.shape
    share, shrinkage, correlation, least, limit, steepest = guards
    moments, theta = np.empty((size, classes)), np.empty((size, classes))
    deviation = np.empty((columns, classes))
    rows, lacking, link_share = np.empty(classes), np.empty(classes), np.empty(classes)
    for v in range(nodes):
        top = largest(stats[v])
        if top != top:
            out[v] = np.nan
            continue
        top = top if top > 0.0 else 1.0
        for c in range(classes):
            for k in range(size):
                moments[k, c] = stats[v, c, k] / top
        theta[:] = 0.0
        line_counts(moments[0], share, shrinkage, rows, lacking, link_share, theta[0])
        column_moments(moments, columns, rows, lacking, limit, least, deviation)
        for j in roots:
            add_root(j, columns, moments, theta)
        for i in range(children.size):
            product = 1 + 2 * columns + products[i]
            add_line(
                children[i], parents[i], product, columns, rows, link_share, correlation, steepest, least, moments,
                deviation, theta,
            )  # fmt: skip
        for c in range(classes):
            for k in range(size):
                out[v, c, k] = theta[k, c]


def has_lines_only(family: Family) -> TypeGuard[BayesNet]:
    """Return whether θ of this family has a fused kernel: a network of lines alone, not a family derived from it."""
    if type(family) is not BayesNet or family.cardinalities:
        return False
    return family.lines.roots.size + family.lines.children.size == family.continuous


def line_weights(family: BayesNet) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function θ: [N, C, K] -> [N, C, K], in float64."""
    structure = family.lines
    indices = structure.columns, structure.roots, structure.children, structure.parents, structure.product
    least = max(family.variance_floor, TINY)

    def weights(stats: np.ndarray) -> np.ndarray:
        share = family.count_floor / stats.shape[1]
        guards = share, family.shrinkage, structure.most, least, MEAN_LIMIT, SLOPE_LIMIT
        out = np.empty(stats.shape)
        all_line_weights(np.ascontiguousarray(stats, dtype=np.float64), *indices, guards, out)
        return out

    return weights
