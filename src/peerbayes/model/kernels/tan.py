"""θ of every peer in one pass, for networks of continuous columns with one parent or none: `families.lines` as loops.

The features are the first axis and the classes the last, in scratch that stays in cache, so that every inner loop
runs over classes. Sums are not reordered and products not fused: differences of moments are rounded as in NumPy.

This module imports numba: import it only where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

import numpy as np
from numba import njit

from peerbayes.model.families import BayesNet, Family
from peerbayes.model.families.base import LOG_2PI, MEAN_LIMIT, TINY
from peerbayes.model.families.regressions import SLOPE_LIMIT
from peerbayes.model.kernels.block_loops import largest, logarithm


@njit(inline="always")
def between(x, low, high):
    x = x if x > low else low
    return x if x < high else high


@njit(cache=True, nogil=True, error_model="numpy")
def class_counts(count, share, shrinkage, rows, lacking, link_share, bias):
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
def all_weights(stats, columns, roots, children, parents, products, guards, out):
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
        class_counts(moments[0], share, shrinkage, rows, lacking, link_share, theta[0])
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


def supports(family: Family) -> TypeGuard[BayesNet]:
    """Return whether θ of this family has a fused kernel: a network of lines alone, not a family derived from it."""
    if type(family) is not BayesNet or family.cardinalities:
        return False
    return family.lines.roots.size + family.lines.children.size == family.continuous


def weights_of(family: BayesNet) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function θ: [N, C, K] -> [N, C, K], in float64."""
    structure = family.lines
    indices = structure.columns, structure.roots, structure.children, structure.parents, structure.product
    least = max(family.variance_floor, TINY)

    def weights(stats: np.ndarray) -> np.ndarray:
        share = family.count_floor / stats.shape[1]
        guards = share, family.shrinkage, structure.most, least, MEAN_LIMIT, SLOPE_LIMIT
        out = np.empty(stats.shape)
        all_weights(np.ascontiguousarray(stats, dtype=np.float64), *indices, guards, out)
        return out

    return weights
