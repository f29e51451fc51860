"""R_v(S_v) of every peer in one pass, for naive Bayes: most of the time of a simulated round.

    R_v = (Y_v − P_v)ᵀΦ_v     P_v = softmax(Φ_v θ(S_v)ᵀ)

The rows x are stored, not Φ, and peers follow one another, so that one peer's θ, logits and residuals stay in
cache. A peer's rows are taken TILE at a time and their columns COLUMNS at a time, into scratch padded by zeros to
whole `vectors`. Sums stay in registers, four classes at a time.

This module imports numba: import it only where it is needed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numba import njit

from peerbayes.data.moment_kernels import FAST
from peerbayes.data.table import Rows
from peerbayes.model.devices import processors
from peerbayes.model.families.base import LOG_2PI, MEAN_LIMIT, TINY, Family
from peerbayes.model.families.naive_bayes import NaiveBayes
from peerbayes.model.kernels.block_loops import exponential
from peerbayes.model.kernels.simd import (
    add_part,
    exponent,
    filled,
    first_of,
    fraction,
    higher,
    highest,
    lanes_of,
    load,
    load_part,
    lower,
    product,
    round_up,
    scratch,
    spread,
    store,
    total,
    where_known,
)

LOG_2 = float(np.log(2.0))
TILE = 64  # rows at a time
COLUMNS = 64  # columns at a time: a block of 64 × 64 float64 is two thirds of a first-level cache

# Where the largest entry of S is beyond this, or below its inverse, S is brought nearer to 1 first, by this power of
# two: the inverse of the largest entry is then neither 0 nor infinite.
EXTREME = {np.float64: 2.0**500, np.float32: 2.0**60}

# A peer's θ takes about as long as this many of its rows. A thread, which takes a tenth of a millisecond to begin,
# gets no fewer than this many products of rows, classes and features: more than half a millisecond's.
THETA_ROWS = 16
WORTH_A_THREAD = 2**22


# --- θ of one peer --------------------------------------------------------------------------------------


@njit(inline="always", error_model="numpy")
def logarithm(x):
    """Return log(x) of a normal x > 0 to the last bit or two: x = 2^k·m, log m = 2 artanh((m − 1)/(m + 1))."""
    bits = np.float64(x).view(np.int64)
    k = (bits - 0x3FE6A09E667F3BCD) >> 52  # m lies between √½ and √2
    m = np.int64(bits - (k << 52)).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = 2.0 / 21.0
    p = p * z + 2.0 / 19.0
    p = p * z + 2.0 / 17.0
    p = p * z + 2.0 / 15.0
    p = p * z + 2.0 / 13.0
    p = p * z + 2.0 / 11.0
    p = p * z + 2.0 / 9.0
    p = p * z + 2.0 / 7.0
    p = p * z + 2.0 / 5.0
    p = p * z + 2.0 / 3.0
    p = p * z + 2.0
    return k * 6.93147180369123816490e-01 + (p * s + k * 1.90821492927058770002e-10)


@njit(cache=True, nogil=True)
def largest(stats):
    """Return max|S|, or NaN where an entry is infinite or NaN: only these times 0 are not 0."""
    zero = filled(stats.dtype.type(0.0))
    trouble, peak = zero, zero
    lanes = lanes_of(stats)
    for k in range(0, stats.size, lanes):
        x = load_part(stats, k, stats.size - k, stats)
        trouble = trouble + x * zero
        peak = higher(peak, higher(x, zero - x))
    return highest(peak) + total(trouble)


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def class_counts(stats, scale, floor_share, tiny, bias, inverse, lacking):
    """Write log p(c) of the guarded class counts to `bias`, their inverses, and what they lack; return the floor."""
    classes, zero = stats.shape[0], stats.dtype.type(0.0)
    sum_of_all, guarded_sum = zero, zero
    for c in range(classes):
        bias[c] = stats[c, 0] * scale
        sum_of_all += max(bias[c], zero)
    floor = max(sum_of_all * floor_share, tiny)
    for c in range(classes):
        lacking[c] = max(floor - max(bias[c], zero), zero)
        bias[c] = max(bias[c], floor)
        guarded_sum += bias[c]
    for c in range(classes):
        inverse[c] = stats.dtype.type(1.0) / bias[c]
        bias[c] = logarithm(bias[c] / guarded_sum)
    return floor


@njit(cache=True, nogil=True, error_model="numpy")
def gaussians(
    stats, d, missing, scale, floor, least, limit, inverse_counts, lacking, linear, square, constant, bias
):
    """Write each class's natural weights of x, x² and, if `missing`, of o; otherwise add those of o to `bias`.

    Without `missing`, `inverse_counts` becomes the product of the variances' fractions: one logarithm for a class.
    """
    real = stats.dtype.type
    classes, size = stats.shape
    lanes, width = lanes_of(stats), linear.shape[1]
    half, zeros, ones = real(0.5), filled(real(0.0)), filled(real(1.0))
    minus_half, log_2 = filled(-half), filled(real(LOG_2))
    by, floors, lowest = filled(scale), filled(floor), filled(least)
    for c in range(classes):
        at, to = c * size + (1 + d if missing else 1), c * width
        inverse_count, lack = spread(inverse_counts, c), spread(lacking, c)
        logs, fractions = zeros, ones
        for j in range(0, d, lanes):
            if missing:
                count = load_part(stats, c * size + 1 + j, d - j, stats) * by
                inverse_count = ones / higher(count, floors)
                lack = higher(floors - higher(count, zeros), zeros)
            mean = load_part(stats, at + j, d - j, stats) * by * inverse_count
            mean = lower(higher(mean, filled(-limit)), filled(limit))
            variance = (load_part(stats, at + d + j, d - j, stats) * by + lack) * inverse_count - mean * mean
            variance = higher(variance, lowest)
            inverse = ones / variance
            store(linear, to + j, mean * inverse)
            store(square, to + j, minus_half * inverse)
            if missing:
                store(constant, to + j, variance)
            else:
                variance = first_of(variance, d - j, ones)
                logs = logs + mean * mean * inverse + log_2 * exponent(variance)
                fractions = fractions * fraction(variance)
        if not missing:
            bias[c] -= half * (real(d * LOG_2PI) + total(logs))
            inverse_counts[c] = product(fractions)
    if not missing:
        for c in range(classes):
            bias[c] -= half * real(logarithm(inverse_counts[c]))
    else:
        for c in range(classes):
            row, weight = constant[c], linear[c]
            for j in range(d):
                row[j] = -half * (real(LOG_2PI + logarithm(row[j])) + weight[j] * weight[j] * row[j])


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def cell_logs(stats, first, starts, scale, floor, tiny, logs, sums):
    """Write log p(x_j = k | c) to `logs` [cells, padded C]."""
    real = stats.dtype.type
    classes, width = stats.shape[0], sums.size
    for j in range(starts.size - 1):
        least = max(floor / real(starts[j + 1] - starts[j]), tiny)
        sums[:] = real(0.0)
        for k in range(starts[j], starts[j + 1]):
            row = logs[k]
            row[classes:] = real(1.0)
            for c in range(classes):
                row[c] = max(stats[c, first + k] * scale, least)
            for c in range(width):
                sums[c] += row[c]
        for c in range(width):
            sums[c] = real(1.0) / sums[c]
        for k in range(starts[j], starts[j + 1]):
            row = logs[k]
            for c in range(width):
                row[c] = logarithm(row[c] * sums[c])


# --- blocks of rows -------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def load_rows(values, row, rows, column, columns, missing, block, present):
    """Load rows and columns of values into `block` [TILE, COLUMNS], NaN as 0, and 1 where observed into `present`."""
    real = block.dtype.type
    zeros, ones = filled(real(0.0)), filled(real(1.0))
    d, width = values.shape[1], block.shape[1]
    for i in range(rows):
        for j in range(0, columns, lanes_of(block)):
            x = load_part(values, (row + i) * d + column + j, columns - j, block)
            if missing:
                store(present, i * width + j, where_known(x, ones, zeros))
                x = where_known(x, x, zeros)
            store(block, i * width + j, x)


@njit(cache=True, nogil=True)
def transpose(block, rows, columns, transposed):
    """Transpose the filled part of a block [TILE, COLUMNS]."""
    for j in range(np.uintp(columns)):
        for i in range(np.uintp(rows)):
            transposed[j, i] = block[i, j]


@njit(cache=True, nogil=True)
def add_polynomials(x, rows, columns, linear, square, column, logits):
    """Add Σ_j x_ij (linear_cj + square_cj x_ij) of transposed rows to logits_ci: two classes, four vectors of rows.

    Eight sums at a time keep the processor busy. What lies beyond `rows` is not used; a last vector goes alone.
    """
    classes, width = linear.shape
    lanes = lanes_of(x)
    for c in range(0, classes, 2):
        first, second = c * width + column, (c + 1) * width + column
        for i in range(0, rows - lanes, 4 * lanes):
            at = c * TILE + i
            s0, s1 = load(logits, at, x), load(logits, at + lanes, x)
            s2, s3 = load(logits, at + 2 * lanes, x), load(logits, at + 3 * lanes, x)
            to = at + TILE
            t0, t1 = load(logits, to, x), load(logits, to + lanes, x)
            t2, t3 = load(logits, to + 2 * lanes, x), load(logits, to + 3 * lanes, x)
            for j in range(columns):
                k = j * TILE + i
                v0, v1 = load(x, k, x), load(x, k + lanes, x)
                v2, v3 = load(x, k + 2 * lanes, x), load(x, k + 3 * lanes, x)
                a, b = spread(linear, first + j), spread(square, first + j)
                s0, s1 = s0 + v0 * (a + b * v0), s1 + v1 * (a + b * v1)
                s2, s3 = s2 + v2 * (a + b * v2), s3 + v3 * (a + b * v3)
                a, b = spread(linear, second + j), spread(square, second + j)
                t0, t1 = t0 + v0 * (a + b * v0), t1 + v1 * (a + b * v1)
                t2, t3 = t2 + v2 * (a + b * v2), t3 + v3 * (a + b * v3)
            store(logits, at, s0)
            store(logits, at + lanes, s1)
            store(logits, at + 2 * lanes, s2)
            store(logits, at + 3 * lanes, s3)
            store(logits, to, t0)
            store(logits, to + lanes, t1)
            store(logits, to + 2 * lanes, t2)
            store(logits, to + 3 * lanes, t3)
        if (rows - 1) % (4 * lanes) < lanes:
            i = (rows - 1) // lanes * lanes
            at = c * TILE + i
            s0, t0 = load(logits, at, x), load(logits, at + TILE, x)
            s1 = t1 = filled(x.dtype.type(0.0))
            for j in range(0, columns, 2):
                v0, v1 = load(x, j * TILE + i, x), load(x, (j + 1) * TILE + i, x)
                s0 = s0 + v0 * (spread(linear, first + j) + spread(square, first + j) * v0)
                t0 = t0 + v0 * (spread(linear, second + j) + spread(square, second + j) * v0)
                s1 = s1 + v1 * (spread(linear, first + j + 1) + spread(square, first + j + 1) * v1)
                t1 = t1 + v1 * (spread(linear, second + j + 1) + spread(square, second + j + 1) * v1)
            store(logits, at, s0 + s1)
            store(logits, at + TILE, t0 + t1)


@njit(cache=True, nogil=True)
def add_products(x, rows, columns, weights, column, logits):
    """Add Σ_j weights_cj x_ij of transposed rows to logits_ci, two classes and two columns at a time."""
    classes, width = weights.shape
    for i in range(0, rows, lanes_of(x)):
        for c in range(0, classes, 2):
            at = c * TILE + i
            s0, s1 = load(logits, at, x), load(logits, at + TILE, x)
            s2 = s3 = filled(x.dtype.type(0.0))
            k = c * width + column
            for j in range(0, columns, 2):
                v, w = load(x, j * TILE + i, x), load(x, (j + 1) * TILE + i, x)
                s0 = s0 + v * spread(weights, k + j)
                s1 = s1 + v * spread(weights, k + width + j)
                s2 = s2 + w * spread(weights, k + j + 1)
                s3 = s3 + w * spread(weights, k + width + j + 1)
            store(logits, at, s0 + s2)
            store(logits, at + TILE, s1 + s3)


@njit(cache=True, nogil=True)
def add_moments(x, rows, columns, change, out, first, second):
    """Add Σ_i change_ci x_ij to R from column `first` on, and with x_ij² from `second` on; four classes at a time."""
    classes, size = out.shape
    fours, width = classes // 4 * 4, x.shape[1]
    zero = filled(x.dtype.type(0.0))
    for j in range(0, columns, lanes_of(x)):
        count = columns - j
        for c in range(0, fours, 4):
            s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = zero
            for i in range(rows):
                v = load(x, i * width + j, x)
                square, at = v * v, c * TILE + i
                w0, w1 = spread(change, at), spread(change, at + TILE)
                w2, w3 = spread(change, at + 2 * TILE), spread(change, at + 3 * TILE)
                s0, t0 = s0 + w0 * v, t0 + w0 * square
                s1, t1 = s1 + w1 * v, t1 + w1 * square
                s2, t2 = s2 + w2 * v, t2 + w2 * square
                s3, t3 = s3 + w3 * v, t3 + w3 * square
            at, to = c * size + first + j, c * size + second + j
            add_part(out, at, count, s0)
            add_part(out, to, count, t0)
            add_part(out, at + size, count, s1)
            add_part(out, to + size, count, t1)
            add_part(out, at + 2 * size, count, s2)
            add_part(out, to + 2 * size, count, t2)
            add_part(out, at + 3 * size, count, s3)
            add_part(out, to + 3 * size, count, t3)
        for c in range(fours, classes, 2):
            s0 = s1 = t0 = t1 = zero
            for i in range(rows):
                v = load(x, i * width + j, x)
                square, at = v * v, c * TILE + i
                w0, w1 = spread(change, at), spread(change, at + TILE)
                s0, t0 = s0 + w0 * v, t0 + w0 * square
                s1, t1 = s1 + w1 * v, t1 + w1 * square
            at, to = c * size + first + j, c * size + second + j
            add_part(out, at, count, s0)
            add_part(out, to, count, t0)
            if c + 1 < classes:
                add_part(out, at + size, count, s1)
                add_part(out, to + size, count, t1)


@njit(cache=True, nogil=True)
def add_presences(x, rows, columns, change, out, first):
    """Add Σ_i change_ci x_ij to R from column `first` on, one class at a time."""
    classes, size = out.shape
    width = x.shape[1]
    for j in range(0, columns, lanes_of(x)):
        for c in range(classes):
            s = filled(x.dtype.type(0.0))
            for i in range(rows):
                s = s + spread(change, c * TILE + i) * load(x, i * width + j, x)
            add_part(out, c * size + first + j, columns - j, s)


@njit(cache=True, nogil=True, fastmath=FAST)
def add_cells(codes, starts, logs, sums, logits):
    """Add the discrete columns' log p(x_j | c) to the logits [C, TILE]; `sums` [padded C] is scratch."""
    for i in range(codes.shape[0]):
        sums[:] = 0.0
        for j in range(codes.shape[1]):
            if codes[i, j] >= 0:
                cell_logs = logs[starts[j] + codes[i, j]]
                for c in range(sums.size):
                    sums[c] += cell_logs[c]
        for c in range(logits.shape[0]):
            logits[c, i] += sums[c]


@njit(cache=True, nogil=True, fastmath=FAST)
def scatter_cells(codes, starts, change, changes, cells):
    """Add the discrete columns' part of R to `cells` [cells, padded C]; `changes` is scratch."""
    for i in range(codes.shape[0]):
        for c in range(change.shape[0]):
            changes[c] = change[c, i]
        for j in range(codes.shape[1]):
            if codes[i, j] >= 0:
                row = cells[starts[j] + codes[i, j]]
                for c in range(changes.size):
                    row[c] += changes[c]


@njit(cache=True, nogil=True, error_model="numpy")
def residuals(logits, rows, labels, weights, top, sums):
    """Compute (Y − P) times the rows' weights in place: [C, TILE]; 0 beyond `rows` and where there is no label.

    Every step goes over all rows before the next begins, so that no vector waits for its own sums.
    """
    real = logits.dtype.type
    lanes, padded, count = lanes_of(logits), round_up(rows, logits), logits.size
    for i in range(0, padded, lanes):
        highest_even, highest_odd = load(logits, i, logits), load(logits, i + TILE, logits)
        for at in range(i + 2 * TILE, count, 2 * TILE):
            highest_even = higher(load(logits, at, logits), highest_even)
            highest_odd = higher(load(logits, at + TILE, logits), highest_odd)
        store(top, i, higher(highest_odd, highest_even))
    for i in range(0, padded, lanes):
        highest_logit, summed = load(top, i, logits), filled(real(0.0))
        for at in range(i, count, TILE):
            value = exponential(load(logits, at, logits) - highest_logit)
            store(logits, at, value)
            summed = summed + value
        store(sums, i, summed)
    for i in range(rows):
        sums[i] = -real(weights[i]) / sums[i] if labels[i] >= 0 else real(0.0)
    sums[rows:padded] = real(0.0)
    for i in range(0, padded, lanes):
        factor = load(sums, i, logits)
        for at in range(i, count, TILE):
            store(logits, at, load(logits, at, logits) * factor)
    for i in range(rows):
        if labels[i] >= 0:
            logits[labels[i], i] += real(weights[i])


@njit(cache=True, nogil=True)
def add_masses(change, rows, out):
    """Add Σ_i change_ci to the first column of R."""
    for c in range(out.shape[0]):
        mass = load(change, c * TILE, change)
        for i in range(lanes_of(change), rows, lanes_of(change)):
            mass = mass + load(change, c * TILE + i, change)
        out[c, 0] += total(mass)


# --- all peers ------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, error_model="numpy")
def all_residuals(values, codes, labels, row_weights, offsets, starts, missing, guards, stats, out):
    """Compute R of every peer: [N, C, K] -> [N, C, K]."""
    nodes, classes, _ = stats.shape
    d, cells = values.shape[1], starts[-1]
    dense = 1 + d * (3 if missing else 2)
    floor_share, least, limit, tiny, extreme = guards
    even, wide, lanes = (classes + 1) // 2 * 2, round_up(d, stats), round_up(classes, stats)
    broad = min(wide, COLUMNS)
    zero, one = stats.dtype.type(0.0), stats.dtype.type(1.0)
    bias, inverse_counts = scratch(1, even, -np.inf, stats)[0], scratch(1, even, one, stats)[0]
    lacking = scratch(1, even, zero, stats)[0]
    linear, square = scratch(even, wide, zero, stats), scratch(even, wide, zero, stats)
    constant = scratch(even, wide, zero, stats)
    logs, cell_sums = scratch(cells, lanes, one, stats), scratch(cells, lanes, zero, stats)
    class_sums = scratch(1, lanes, zero, stats)[0]
    top, sums = scratch(1, TILE, zero, stats)[0], scratch(1, TILE, zero, stats)[0]
    logits = scratch(even, TILE, zero, stats)
    block, present = scratch(TILE, broad, zero, stats), scratch(TILE, broad, zero, stats)
    transposed = scratch(broad, TILE, zero, stats)
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
        gaussians(
            S, d, missing, scale, floor, least, limit, inverse_counts, lacking, linear, square, constant, bias
        )
        cell_logs(S, dense, starts, scale, floor, tiny, logs, class_sums)
        R[:] = zero
        cell_sums[:] = zero
        for first in range(offsets[v], offsets[v + 1], TILE):
            rows = min(TILE, offsets[v + 1] - first)
            end, padded = first + rows, round_up(rows, stats)
            for c in range(even):
                for i in range(0, TILE, lanes_of(stats)):
                    store(logits, c * TILE + i, spread(bias, c))
            for column in range(0, d, COLUMNS):
                columns = min(COLUMNS, d - column)
                width = round_up(columns, stats)
                load_rows(values, first, rows, column, columns, missing, block, present)
                transpose(block, rows, width, transposed)
                add_polynomials(transposed, padded, width, linear, square, column, logits)
                if missing:
                    transpose(present, rows, width, transposed)
                    add_products(transposed, padded, width, constant, column, logits)
            if cells:
                add_cells(codes[first:end], starts, logs, class_sums, logits[:classes])
            residuals(logits, rows, labels[first:end], row_weights[first:end], top, sums)
            if cells:
                scatter_cells(codes[first:end], starts, logits[:classes], class_sums, cell_sums)
            add_masses(logits, padded, R)
            for column in range(0, d, COLUMNS):
                columns = min(COLUMNS, d - column)
                if d > COLUMNS:
                    load_rows(values, first, rows, column, columns, missing, block, present)
                add_moments(block, rows, columns, logits, R, dense - 2 * d + column, dense - d + column)
                if missing:
                    add_presences(present, rows, columns, logits, R, 1 + column)
        for c in range(classes):
            for k in range(cells):
                R[c, dense + k] = cell_sums[k, c]


# --- interface ------------------------------------------------------------------------------------------


def supports(family: Family) -> bool:
    """Return whether R of this family has a fused kernel: naive Bayes itself, not a family derived from it."""
    return type(family) is NaiveBayes


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

        def compute(begin: int, end: int) -> None:
            all_residuals(
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
