"""Naive Bayes on one large table: the residual and the losses of W in one pass, by the vector instructions of `simd`.

Rows are standardised TILE at a time into columns, x [d, TILE], so that every vector holds one column of several rows:
for logits as for moments, Φ is never built, and the moments of a class and column are a vector until the last row.

This module imports numba: import it only where it is needed.
"""

from __future__ import annotations

import numpy as np

from peerbayes.data.kernel_cache import njit
from peerbayes.data.moment_kernels import FAST
from peerbayes.model.kernels.bayes_nets import log_lanes
from peerbayes.model.kernels.block_loops import add_cells, exponential, highest, scatter_cells, standard
from peerbayes.model.kernels.simd import (
    TILE,
    add_masses,
    add_polynomials,
    filled,
    lanes_of,
    load,
    round_up,
    scratch,
    spread,
    store,
)


@njit(cache=True, nogil=True, fastmath=FAST)
def load_columns(values, location, inverse, clip, first, rows, x):
    """Write the standardised columns of rows `first` to `first + rows`: [b, d] -> [d, TILE]."""
    for j in range(values.shape[1]):
        column, at, by = x[j], location[j], inverse[j]
        for i in range(rows):
            column[i] = standard(values[first + i, j], at, by, clip)


@njit(cache=True, nogil=True, error_model="numpy")
def residuals(logits, rows, labels, weights, tops, best, sums):
    """Compute (Y − P) times the rows' weights in place: [C, TILE], 0 beyond `rows`; return the sums of three losses.

    `tops`, `best` and `sums` [TILE] are scratch. Every step goes over all rows before the next begins, so that no
    vector waits for its own sums.
    """
    lanes, count = lanes_of(logits), logits.size
    padded = round_up(rows, logits)
    soft, wrong, loss = 0.0, 0.0, 0.0
    highest(logits, tops, best)
    for i in range(rows):
        loss += weights[i] * (tops[i] - logits[labels[i], i])
        wrong += weights[i] if best[i] != labels[i] else 0.0
    for i in range(0, padded, lanes):
        top, summed = load(tops, i, logits), filled(0.0)
        for at in range(i, count, TILE):
            value = exponential(load(logits, at, logits) - top)
            store(logits, at, value)
            summed = summed + value
        store(sums, i, summed)
        store(tops, i, log_lanes(summed))
    for i in range(rows):
        loss += weights[i] * tops[i]
        sums[i] = -weights[i] / sums[i]
    sums[rows:padded] = 0.0
    for i in range(0, padded, lanes):
        factor = load(sums, i, logits)
        for at in range(i, count, TILE):
            store(logits, at, load(logits, at, logits) * factor)
    for i in range(rows):
        logits[labels[i], i] += weights[i]
        soft += logits[labels[i], i]
    return soft, wrong, loss


@njit(cache=True, nogil=True)
def add_moments(x, columns, padded, changes, moments):
    """Add changes_ci x_ji and changes_ci x_ji² of a tile to vectors of moments [C, d, 2, lanes], four classes."""
    lanes, classes = lanes_of(x), changes.shape[0]
    fours, step = classes // 4 * 4, columns * 2 * lanes
    for j in range(columns):
        for c in range(0, fours, 4):
            a = c * step + j * 2 * lanes
            b, d, e = a + step, a + 2 * step, a + 3 * step
            s0, s1, s2, s3 = (
                load(moments, a, x),
                load(moments, b, x),
                load(moments, d, x),
                load(moments, e, x),
            )
            t0, t1 = load(moments, a + lanes, x), load(moments, b + lanes, x)
            t2, t3 = load(moments, d + lanes, x), load(moments, e + lanes, x)
            for i in range(0, padded, lanes):
                v = load(x, j * TILE + i, x)
                square, at = v * v, c * TILE + i
                w0, w1 = load(changes, at, x), load(changes, at + TILE, x)
                w2, w3 = load(changes, at + 2 * TILE, x), load(changes, at + 3 * TILE, x)
                s0, t0 = s0 + w0 * v, t0 + w0 * square
                s1, t1 = s1 + w1 * v, t1 + w1 * square
                s2, t2 = s2 + w2 * v, t2 + w2 * square
                s3, t3 = s3 + w3 * v, t3 + w3 * square
            store(moments, a, s0)
            store(moments, b, s1)
            store(moments, d, s2)
            store(moments, e, s3)
            store(moments, a + lanes, t0)
            store(moments, b + lanes, t1)
            store(moments, d + lanes, t2)
            store(moments, e + lanes, t3)
        for c in range(fours, classes, 2):
            a = c * step + j * 2 * lanes
            b = a + step
            s0, s1 = load(moments, a, x), load(moments, b, x)
            t0, t1 = load(moments, a + lanes, x), load(moments, b + lanes, x)
            for i in range(0, padded, lanes):
                v = load(x, j * TILE + i, x)
                square, at = v * v, c * TILE + i
                w0, w1 = load(changes, at, x), load(changes, at + TILE, x)
                s0, t0 = s0 + w0 * v, t0 + w0 * square
                s1, t1 = s1 + w1 * v, t1 + w1 * square
            store(moments, a, s0)
            store(moments, b, s1)
            store(moments, a + lanes, t0)
            store(moments, b + lanes, t1)


@njit(cache=True, nogil=True, error_model="numpy")
def add_residual(block, labels, row_weights, offsets, bias, linear, square, logs, masses, moments, cells):
    """Add R of a block of rows to masses [C, 1], moments [C, d, 2, lanes] and cells [cells, C]; return three losses.

    bias [C], linear and square [C, d] are W, with zeros, and a bias of −∞, up to even numbers of classes and columns.
    logs [cells, C] are its discrete columns.
    """
    values, codes, location, inverse, clip = block
    classes, even = linear.shape
    x = scratch(even, TILE, 0.0, linear)
    logits = scratch(classes, TILE, 0.0, linear)
    best = np.empty(TILE, np.int64)
    tops, sums = scratch(1, TILE, 1.0, linear)[0], scratch(1, TILE, 1.0, linear)[0]
    soft, wrong, loss = 0.0, 0.0, 0.0
    for first in range(0, labels.size, TILE):
        rows = min(TILE, labels.size - first)
        end, padded = first + rows, round_up(rows, linear)
        load_columns(values, location, inverse, clip, first, rows, x)
        for c in range(classes):
            for i in range(0, TILE, lanes_of(linear)):
                store(logits, c * TILE + i, spread(bias, c))
        add_polynomials(x, padded, even, linear, square, 0, logits)
        if codes.shape[1]:
            add_cells(codes[first:end], offsets, logs, logits[: logs.shape[1]])
        losses = residuals(logits, rows, labels[first:end], row_weights[first:end], tops, best, sums)
        soft, wrong, loss = soft + losses[0], wrong + losses[1], loss + losses[2]
        if codes.shape[1]:
            scatter_cells(codes[first:end], offsets, logits[: logs.shape[1]], cells)
        add_masses(logits, padded, masses)
        add_moments(x, values.shape[1], padded, logits, moments)
    return soft, wrong, loss


@njit(cache=True, nogil=True)
def vectors(classes, columns):
    """Return zeros [C, d, 2, lanes] for moments."""
    like = np.empty(0)
    lanes = lanes_of(like)
    return scratch(classes * columns, 2 * lanes, 0.0, like).reshape(classes, columns, 2, lanes)


class Sums:
    """R of the model W [C, 1 + 2·d + cells] and the sums of its losses, added up over blocks of rows."""

    def __init__(self, weights: np.ndarray, columns: int, offsets: np.ndarray) -> None:
        self.classes, self.columns, self.offsets = len(weights), columns, offsets
        dense = 1 + 2 * columns
        classes = round_up_even(self.classes)
        self.bias = np.full(classes, -np.inf)
        self.bias[: self.classes] = weights[:, 0]
        self.linear, self.square = np.zeros((2, classes, round_up_even(columns)))
        self.linear[: self.classes, :columns] = weights[:, 1 : 1 + columns]
        self.square[: self.classes, :columns] = weights[:, 1 + columns : dense]
        self.logs = np.ascontiguousarray(weights[:, dense:].T)
        self.masses, self.moments = np.zeros((classes, 1)), vectors(classes, columns)
        self.cells, self.losses = np.zeros_like(self.logs), np.zeros(3)

    def add(self, block: tuple, labels: np.ndarray, row_weights: np.ndarray) -> None:
        """Add the rows of a block."""
        self.losses += add_residual(
            block, labels, row_weights, self.offsets, self.bias, self.linear, self.square, self.logs, self.masses,
            self.moments, self.cells,
        )  # fmt: skip

    def residual(self) -> np.ndarray:
        """Return R: [C, K]."""
        moments = np.moveaxis(self.moments.sum(axis=-1), -1, 1).reshape(len(self.masses), 2 * self.columns)
        dense = np.concatenate([self.masses, moments], axis=1)[: self.classes]
        return np.concatenate([dense, self.cells.T], axis=1)


def round_up_even(count: int) -> int:
    """Return the next even number."""
    return count + count % 2
