"""θ of every peer in one go, for networks of continuous columns with one parent or none: `families.lines` as loops.

A peer's features lie first and its classes last, in scratch that stays in cache, so that every inner loop runs over
classes. Sums are not reordered and products not fused: differences of moments are rounded as NumPy rounds them.

This module imports numba: import it only where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

import numpy as np
from numba import njit

from peerbayes.families import BayesNet, Family
from peerbayes.families.base import LOG_2PI, MEAN_LIMIT, TINY
from peerbayes.families.lines import SLOPE_LIMIT
from peerbayes.fused import largest, logarithm


@njit(inline="always")
def between(x, low, high):
    x = x if x > low else low
    return x if x < high else high


@njit(cache=True, nogil=True, error_model="numpy")
def class_counts(count, share, shrinkage, rows, lacking, kept, bias):
    """Of counts [C]: what they are held at, what fills them up, what is kept of a link, and log p(c)."""
    total, held = 0.0, 0.0
    for c in range(count.size):
        total += max(count[c], 0.0)
    floor = max(total * share, TINY)
    for c in range(count.size):
        rows[c] = max(count[c], floor)
        lacking[c] = max(floor - max(count[c], 0.0), 0.0)
        held += rows[c]
    for c in range(count.size):
        kept[c] = rows[c] / (rows[c] + shrinkage * held)
        bias[c] = logarithm(rows[c] / held)


@njit(cache=True, nogil=True, error_model="numpy")
def turned_over(stats, by, unit, held):
    """S / by, transposed: [C, K] -> [K, C]; `unit` [C, K] is scratch."""
    flat, quotients = stats.reshape(-1), unit.reshape(-1)
    for i in range(flat.size):
        quotients[i] = flat[i] / by
    for c in range(unit.shape[0]):
        for k in range(unit.shape[1]):
            held[k, c] = unit[c, k]


@njit(cache=True, nogil=True, error_model="numpy")
def columns_alone(held, columns, rows, lacking, limit, least, deviation):
    """Σx and Σx² in `held` become means and variances; `deviation` [D, C] their roots."""
    most = 1.0 / TINY
    for j in range(columns):
        mean, variance, root = held[1 + j], held[1 + columns + j], deviation[j]
        for c in range(rows.size):
            m = between(mean[c] / rows[c], -limit, limit)
            q = between((variance[c] + lacking[c]) / rows[c] - m * m, least, most)
            mean[c], variance[c], root[c] = m, q, np.sqrt(q)


@njit(cache=True, nogil=True, error_model="numpy")
def add_root(j, columns, held, said):
    """Add what a column without a parent says: to the weights of 1, x and x²."""
    mean, variance = held[1 + j], held[1 + columns + j]
    bias, linear, square = said[0], said[1 + j], said[1 + columns + j]
    for c in range(mean.size):
        precision = 1.0 / variance[c]
        slant = mean[c] * precision
        bias[c] -= 0.5 * (LOG_2PI + logarithm(variance[c]) + mean[c] * slant)
        linear[c] += slant
        square[c] -= 0.5 * precision


@njit(cache=True, nogil=True, error_model="numpy")
def add_line(j, p, product, columns, rows, kept, correlation, steepest, least, held, deviation, said):
    """Add what a column and its parent say: to the weights of 1, of x and x² of both, and of their product."""
    mean, parent, together = held[1 + j], held[1 + p], held[product]
    variance, spread, own, other = held[1 + columns + j], held[1 + columns + p], deviation[j], deviation[p]
    bias, linear, of_parent, of_both = said[0], said[1 + j], said[1 + p], said[product]
    square, parents_square = said[1 + columns + j], said[1 + columns + p]
    for c in range(rows.size):
        limit = own[c] * correlation * other[c]
        covariance = between(together[c] / rows[c] - mean[c] * parent[c], -limit, limit) * kept[c]
        b = between(covariance / spread[c], -steepest, steepest)
        rest = variance[c] - b * (2.0 * covariance - spread[c] * b)
        rest = rest if rest > least else least
        precision, a = 1.0 / rest, mean[c] - b * parent[c]
        slant, tilt = a * precision, b * precision
        bias[c] -= 0.5 * (LOG_2PI + logarithm(rest) + a * slant)
        linear[c] += slant
        of_parent[c] -= b * slant
        square[c] -= 0.5 * precision
        parents_square[c] -= 0.5 * b * tilt
        of_both[c] += tilt


@njit(cache=True, nogil=True, error_model="numpy")
def all_weights(stats, columns, roots, children, parents, products, guards, out):
    """θ of every peer: [N, C, K] -> [N, C, K]; NaN where S is not finite."""
    nodes, classes, size = stats.shape
    share, shrinkage, correlation, least, limit, steepest = guards
    held, said = np.empty((size, classes)), np.empty((size, classes))
    deviation = np.empty((columns, classes))
    rows, lacking, kept = np.empty(classes), np.empty(classes), np.empty(classes)
    for v in range(nodes):
        top = largest(stats[v])
        if top != top:
            out[v] = np.nan
            continue
        top = top if top > 0.0 else 1.0
        for c in range(classes):
            for k in range(size):
                held[k, c] = stats[v, c, k] / top
        said[:] = 0.0
        class_counts(held[0], share, shrinkage, rows, lacking, kept, said[0])
        columns_alone(held, columns, rows, lacking, limit, least, deviation)
        for j in roots:
            add_root(j, columns, held, said)
        for i in range(children.size):
            product = 1 + 2 * columns + products[i]
            add_line(
                children[i], parents[i], product, columns, rows, kept, correlation, steepest, least, held,
                deviation, said,
            )  # fmt: skip
        for c in range(classes):
            for k in range(size):
                out[v, c, k] = said[k, c]


def supports(family: Family) -> TypeGuard[BayesNet]:
    """Whether θ of this family has a fused kernel: a network of lines alone, and no family derived from it."""
    if type(family) is not BayesNet or family.cardinalities:
        return False
    return family.lines.roots.size + family.lines.children.size == family.continuous


def weights_of(family: BayesNet) -> Callable[[np.ndarray], np.ndarray]:
    """θ: [N, C, K] -> [N, C, K], in float64."""
    lines = family.lines
    places = lines.columns, lines.roots, lines.children, lines.parents, lines.product
    least = max(family.variance_floor, TINY)

    def weights(stats: np.ndarray) -> np.ndarray:
        share = family.count_floor / stats.shape[1]
        guards = share, family.shrinkage, lines.most, least, MEAN_LIMIT, SLOPE_LIMIT
        out = np.empty(stats.shape)
        all_weights(np.ascontiguousarray(stats, dtype=np.float64), *places, guards, out)
        return out

    return weights
