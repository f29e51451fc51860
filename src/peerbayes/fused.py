"""R_v(S_v) of every peer in one go, for naive Bayes: what a simulated round spends its time on.

    R_v = (Y_v − P_v)ᵀΦ_v     P_v = softmax(Φ_v θ(S_v)ᵀ)

The rows x are held, not Φ, and peers follow one another, so that one peer's θ, logits and residuals stay in
cache. A peer's rows are taken TILE at a time and their columns COLUMNS at a time, into scratch of constant
strides and padded by zeros to whole LANES: every inner loop is then a whole number of vectors long, which the
compiler unrolls, and needs one check, not twenty, that its arrays are apart. Products are written out, because
a peer's matrices are too small for BLAS.

This module imports numba: import it only where it is needed.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, check-untyped-defs=False

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit, types
from numba.extending import overload

from peerbayes import kernels
from peerbayes.families.base import LOG_2PI, MEAN_LIMIT, TINY, Family, Rows
from peerbayes.families.naive_bayes import NaiveBayes
from peerbayes.kernels import FAST

LANES = 8  # two vectors of four float64, one of eight float32
TILE = 64  # rows at a time
COLUMNS = 64  # columns at a time: a block of 64 × 64 float64 is two thirds of a first-level cache

# Where the largest entry of S is beyond this, or below its inverse, S is brought nearer to 1 first, by this power of
# two: the inverse of the largest entry is then neither 0 nor infinite.
EXTREME = {np.float64: 2.0**500, np.float32: 2.0**60}

# One, two and three rows further in a block [COLUMNS, TILE] or [TILE, COLUMNS]. Unsigned, because an index that may
# be negative counts from the end, and asking costs more than the sum itself.
NEXT, SECOND, THIRD = np.uintp(TILE), np.uintp(2 * TILE), np.uintp(3 * TILE)


@njit(inline="always")
def up(count):
    """The next multiple of LANES."""
    return (count + LANES - 1) // LANES * LANES


# --- exp and log, inlined -------------------------------------------------------------------------------


@njit(inline="always", error_model="numpy")
def exponential_single(x):
    """exp(x) for x ≤ 0 in float32: as `kernels.exponential`, with the terms float32 needs."""
    x = max(x, np.float32(-87.0))
    k = np.floor(x * np.float32(1.4426950408889634) + np.float32(0.5))
    r = (x - k * np.float32(0.693359375)) + k * np.float32(2.12194440e-4)
    p = np.float32(1.0 / 5040.0)
    p = p * r + np.float32(1.0 / 720.0)
    p = p * r + np.float32(1.0 / 120.0)
    p = p * r + np.float32(1.0 / 24.0)
    p = p * r + np.float32(1.0 / 6.0)
    p = p * r + np.float32(0.5)
    p = p * r + np.float32(1.0)
    p = p * r + np.float32(1.0)
    return p * np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)


def exponential(x):
    """exp(x) for x ≤ 0, in the type of x."""
    raise NotImplementedError


@overload(exponential, inline="always")
def _exponential(x):
    if x == types.float32:
        return lambda x: exponential_single(x)
    return lambda x: kernels.exponential(x)


@njit(inline="always", error_model="numpy")
def logarithm(x):
    """log(x) of a normal x > 0 to the last bit or two: x = 2^k·m, and log m = 2 artanh((m − 1)/(m + 1))."""
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


# --- θ of one peer --------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, fastmath=FAST)
def finite(stats):
    """Whether no entry is infinite or NaN: these, and only these, times 0 are not 0."""
    trouble = stats.dtype.type(0.0)
    for c in range(stats.shape[0]):
        row = stats[c]
        for k in range(row.size):
            trouble += row[k] * stats.dtype.type(0.0)
    return trouble == trouble


@njit(cache=True, nogil=True, fastmath=FAST)
def largest(stats, peaks):
    """max|S|: the highest at every place of a stretch of TILE entries, in `peaks`, then of these; so it vectorises."""
    flat = stats.ravel()
    peaks[:] = 0.0
    for start in range(0, flat.size, TILE):
        part = flat[start : start + TILE]
        for i in range(part.size):
            size = abs(part[i])
            peaks[i] = size if size > peaks[i] else peaks[i]
    return peaks.max()


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def class_counts(stats, scale, floor_share, tiny, bias):
    """log p(c) of the guarded class counts into `bias`; the count floor is returned."""
    classes = stats.shape[0]
    total, held = stats.dtype.type(0.0), stats.dtype.type(0.0)
    for c in range(classes):
        total += max(stats[c, 0] * scale, stats.dtype.type(0.0))
    floor = max(total * floor_share, tiny)
    for c in range(classes):
        bias[c] = max(stats[c, 0] * scale, floor)
        held += bias[c]
    for c in range(classes):
        bias[c] = logarithm(bias[c] / held)
    return floor


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def gaussians(row, d, missing, scale, floor, least, limit, linear, square, constant):
    """One class's natural weights of x and x², and of o (`missing`), else the sum of what o would weigh."""
    real = row.dtype.type
    zero, one, half = real(0.0), real(1.0), real(0.5)
    first = row[1 + d :] if missing else row[1:]
    second = first[d:]
    if missing:
        for j in range(d):
            count = row[1 + j] * scale
            each = one / max(count, floor)
            lacking = max(floor - max(count, zero), zero)
            mean = min(max(first[j] * scale * each, -limit), limit)
            variance = max((second[j] * scale + lacking) * each - mean * mean, least)
            inverse = one / variance
            linear[j] = mean * inverse
            square[j] = -half * inverse
            constant[j] = -half * (real(LOG_2PI + logarithm(variance)) + mean * mean * inverse)
        return zero
    count = row[0] * scale
    each = one / max(count, floor)
    lacking = max(floor - max(count, zero), zero)
    distance = zero
    for j in range(d):
        mean = min(max(first[j] * scale * each, -limit), limit)
        variance = max((second[j] * scale + lacking) * each - mean * mean, least)
        inverse = one / variance
        linear[j] = mean * inverse
        square[j] = -half * inverse
        constant[j] = variance
        distance += mean * mean * inverse
    # One logarithm for four variances, each of which is between 1e-30 and 1e30. Beyond d they are 1.
    part = up(d) // 4
    v0, v1, v2, v3 = constant[:part], constant[part:], constant[2 * part :], constant[3 * part :]
    total = 0.0
    for j in range(part):
        total += logarithm(np.float64(v0[j]) * np.float64(v1[j]) * (np.float64(v2[j]) * np.float64(v3[j])))
    return -half * (real(d * LOG_2PI + total) + distance)


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def cell_logs(stats, first, starts, scale, floor, tiny, logs, sums):
    """log p(x_j = k | c) into `logs` [cells, padded C]."""
    real = stats.dtype.type
    classes, width = stats.shape[0], sums.size
    for j in range(starts.size - 1):
        least = max(floor / real(starts[j + 1] - starts[j]), tiny)
        sums[:] = real(0.0)
        for k in range(starts[j], starts[j + 1]):
            line = logs[k]
            line[classes:] = real(1.0)
            for c in range(classes):
                line[c] = max(stats[c, first + k] * scale, least)
            for c in range(width):
                sums[c] += line[c]
        for c in range(width):
            sums[c] = real(1.0) / sums[c]
        for k in range(starts[j], starts[j + 1]):
            line = logs[k]
            for c in range(width):
                line[c] = logarithm(line[c] * sums[c])


# --- blocks of rows -------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, fastmath=FAST)
def load(values, column, columns, missing, block, present):
    """Columns of values [rows, d] into `block` [TILE, COLUMNS], NaN as 0, and 1 where there is one into `present`."""
    real = block.dtype.type
    rows = values.shape[0]
    for i in range(rows):
        line, to = values[i, column : column + columns], block[i]
        if missing:
            there = present[i]
            for j in range(columns):
                x = real(line[j])
                known = x == x
                to[j] = x if known else real(0.0)
                there[j] = real(1.0) if known else real(0.0)
        else:
            for j in range(columns):
                to[j] = real(line[j])
    pad(block, rows, columns)
    if missing:
        pad(present, rows, columns)


@njit(cache=True, nogil=True, fastmath=FAST)
def load_turned(values, column, columns, missing, block, present):
    """As `load`, transposed: into [COLUMNS, TILE]."""
    real = block.dtype.type
    rows = values.shape[0]
    for i in range(rows):
        line = values[i, column : column + columns]
        if missing:
            for j in range(columns):
                x = real(line[j])
                known = x == x
                block[j, i] = x if known else real(0.0)
                present[j, i] = real(1.0) if known else real(0.0)
        else:
            for j in range(columns):
                block[j, i] = real(line[j])
    pad(block, columns, rows)
    if missing:
        pad(present, columns, rows)


@njit(cache=True, nogil=True)
def pad(block, rows, columns):
    """Zeros from [rows, columns] to whole lanes."""
    padded, width = up(rows), up(columns)
    for i in range(padded):
        for j in range(0 if i >= rows else columns, width):
            block[i, j] = 0.0


@njit(cache=True, nogil=True, fastmath=FAST)
def add_polynomials(x, rows, columns, linear, square, logits):
    """logits_ci += Σ_j x_ij (linear_cj + square_cj x_ij), two classes and four columns at a time."""
    for c in range(0, logits.size // TILE, 2):
        one = np.uintp(c * TILE)
        two = one + NEXT
        for j in range(0, columns, 4):
            a0, a1, a2, a3 = linear[c, j], linear[c, j + 1], linear[c, j + 2], linear[c, j + 3]
            b0, b1, b2, b3 = square[c, j], square[c, j + 1], square[c, j + 2], square[c, j + 3]
            e0, e1, e2, e3 = (
                linear[c + 1, j],
                linear[c + 1, j + 1],
                linear[c + 1, j + 2],
                linear[c + 1, j + 3],
            )
            f0, f1, f2, f3 = (
                square[c + 1, j],
                square[c + 1, j + 1],
                square[c + 1, j + 2],
                square[c + 1, j + 3],
            )
            at = np.uintp(j * TILE)
            for i in range(np.uintp(rows)):
                x0, x1, x2, x3 = x[at + i], x[at + i + NEXT], x[at + i + SECOND], x[at + i + THIRD]
                logits[one + i] += (
                    (a0 + b0 * x0) * x0 + (a1 + b1 * x1) * x1 + (a2 + b2 * x2) * x2 + (a3 + b3 * x3) * x3
                )
                logits[two + i] += (
                    (e0 + f0 * x0) * x0 + (e1 + f1 * x1) * x1 + (e2 + f2 * x2) * x2 + (e3 + f3 * x3) * x3
                )


@njit(cache=True, nogil=True, fastmath=FAST)
def add_products(x, rows, columns, weights, logits):
    """logits_ci += Σ_j weights_cj x_ij, four columns at a time."""
    for c in range(logits.size // TILE):
        one = np.uintp(c * TILE)
        for j in range(0, columns, 4):
            a0, a1, a2, a3 = weights[c, j], weights[c, j + 1], weights[c, j + 2], weights[c, j + 3]
            at = np.uintp(j * TILE)
            for i in range(np.uintp(rows)):
                logits[one + i] += (
                    a0 * x[at + i] + a1 * x[at + i + NEXT] + a2 * x[at + i + SECOND] + a3 * x[at + i + THIRD]
                )


@njit(cache=True, nogil=True, fastmath=FAST)
def moments(x, rows, columns, change, sums, squares):
    """sums_cj = Σ_i change_ci x_ij, and squares with x_ij²; two classes and four rows at a time."""
    for c in range(0, change.size // TILE, 2):
        one = np.uintp(c * COLUMNS)
        two = one + NEXT
        for j in range(np.uintp(columns)):
            sums[one + j] = sums[two + j] = squares[one + j] = squares[two + j] = 0.0
        for i in range(0, rows, 4):
            k = c * TILE + i
            a0, a1, a2, a3 = change[k], change[k + 1], change[k + 2], change[k + 3]
            k += TILE
            b0, b1, b2, b3 = change[k], change[k + 1], change[k + 2], change[k + 3]
            at = np.uintp(i * COLUMNS)
            for j in range(np.uintp(columns)):
                x0, x1, x2, x3 = x[at + j], x[at + j + NEXT], x[at + j + SECOND], x[at + j + THIRD]
                y0, y1, y2, y3 = x0 * x0, x1 * x1, x2 * x2, x3 * x3
                sums[one + j] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                squares[one + j] += a0 * y0 + a1 * y1 + a2 * y2 + a3 * y3
                sums[two + j] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
                squares[two + j] += b0 * y0 + b1 * y1 + b2 * y2 + b3 * y3


@njit(cache=True, nogil=True, fastmath=FAST)
def presences(x, rows, columns, change, sums):
    """sums_cj = Σ_i change_ci x_ij, four rows at a time."""
    for c in range(change.size // TILE):
        one = np.uintp(c * COLUMNS)
        for j in range(np.uintp(columns)):
            sums[one + j] = 0.0
        for i in range(0, rows, 4):
            k = c * TILE + i
            a0, a1, a2, a3 = change[k], change[k + 1], change[k + 2], change[k + 3]
            at = np.uintp(i * COLUMNS)
            for j in range(np.uintp(columns)):
                sums[one + j] += (
                    a0 * x[at + j] + a1 * x[at + j + NEXT] + a2 * x[at + j + SECOND] + a3 * x[at + j + THIRD]
                )


@njit(cache=True, nogil=True, fastmath=FAST)
def add_cells(codes, starts, logs, line, logits):
    """Add the discrete columns' log p(x_j | c) to the logits [C, TILE]; `line` [padded C] is scratch."""
    for i in range(codes.shape[0]):
        line[:] = 0.0
        for j in range(codes.shape[1]):
            if codes[i, j] >= 0:
                row = logs[starts[j] + codes[i, j]]
                for c in range(line.size):
                    line[c] += row[c]
        for c in range(logits.shape[0]):
            logits[c, i] += line[c]


@njit(cache=True, nogil=True, fastmath=FAST)
def scatter_cells(codes, starts, change, line, cells):
    """Add the discrete columns' part of R to `cells` [cells, padded C]; `line` is scratch."""
    for i in range(codes.shape[0]):
        for c in range(change.shape[0]):
            line[c] = change[c, i]
        for j in range(codes.shape[1]):
            if codes[i, j] >= 0:
                row = cells[starts[j] + codes[i, j]]
                for c in range(line.size):
                    row[c] += line[c]


@njit(cache=True, nogil=True, fastmath={"contract", "nsz"}, error_model="numpy")
def residuals(logits, classes, rows, labels, weights, top, total):
    """(Y − P) times the rows' weights, in place: [C, TILE]; 0 beyond `rows` and where there is no label."""
    real = logits.dtype.type
    padded = up(rows)
    top[:padded] = logits[0, :padded]
    total[:padded] = real(0.0)
    for c in range(1, classes):
        row = logits[c]
        for i in range(padded):
            top[i] = row[i] if row[i] > top[i] else top[i]
    for c in range(classes):
        row = logits[c]
        for i in range(padded):
            value = exponential(row[i] - top[i])
            row[i] = value
            total[i] += value
    for i in range(rows):
        total[i] = -real(weights[i]) / total[i] if labels[i] >= 0 else real(0.0)
    total[rows:padded] = real(0.0)
    for c in range(classes):
        row = logits[c]
        for i in range(padded):
            row[i] *= total[i]
    for i in range(rows):
        if labels[i] >= 0:
            logits[labels[i], i] += real(weights[i])


# --- all peers ------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
def all_residuals(values, codes, labels, row_weights, offsets, starts, missing, guards, stats, out):
    """R of every peer: [N, C, K] -> [N, C, K]."""
    nodes, classes, _ = stats.shape
    d, cells = values.shape[1], starts[-1]
    dense = 1 + d * (3 if missing else 2)
    floor_share, least, limit, tiny, extreme = guards
    even, wide, lanes = (classes + 1) // 2 * 2, (d + COLUMNS - 1) // COLUMNS * COLUMNS, up(classes)
    kind, zero, one = stats.dtype, stats.dtype.type(0.0), stats.dtype.type(1.0)
    bias, linear, square = np.zeros(even, kind), np.zeros((even, wide), kind), np.zeros((even, wide), kind)
    constant = np.ones((even, wide), kind)
    logs, cell_sums, line = (
        np.ones((cells, lanes), kind),
        np.zeros((cells, lanes), kind),
        np.zeros(lanes, kind),
    )
    logits, top, total = np.zeros((even, TILE), kind), np.zeros(TILE, kind), np.zeros(TILE, kind)
    block, present = np.zeros((TILE, COLUMNS), kind), np.zeros((TILE, COLUMNS), kind)
    sums, squares = np.zeros((even, COLUMNS), kind), np.zeros((even, COLUMNS), kind)
    for v in range(nodes):
        S, R = stats[v], out[v]
        if not finite(S):
            R[:] = np.nan
            continue
        highest = largest(S, top)
        if highest > extreme or one / extreme > highest > zero:
            S = S * (extreme if highest < one else one / extreme)
            highest = largest(S, top)
        scale = one / highest if highest > zero else one
        floor = class_counts(S, scale, floor_share, tiny, bias)
        for c in range(classes):
            bias[c] += gaussians(
                S[c, :dense], d, missing, scale, floor, least, limit, linear[c], square[c], constant[c]
            )
        cell_logs(S, dense, starts, scale, floor, tiny, logs, line)
        R[:] = zero
        cell_sums[:] = zero
        for first in range(offsets[v], offsets[v + 1], TILE):
            rows = min(TILE, offsets[v + 1] - first)
            end, padded = first + rows, up(rows)
            for c in range(even):
                row = logits[c]
                for i in range(padded):
                    row[i] = bias[c]
            for column in range(0, d, COLUMNS):
                columns = min(COLUMNS, d - column)
                width = up(columns)
                load_turned(values[first:end], column, columns, missing, block, present)
                add_polynomials(
                    block.ravel(), padded, width, linear[:, column:], square[:, column:], logits.ravel()
                )
                if missing:
                    add_products(present.ravel(), padded, width, constant[:, column:], logits.ravel())
            if cells:
                add_cells(codes[first:end], starts, logs, line, logits[:classes])
            residuals(logits, classes, rows, labels[first:end], row_weights[first:end], top, total)
            if cells:
                scatter_cells(codes[first:end], starts, logits[:classes], line, cell_sums)
            for c in range(classes):
                row, mass = logits[c], zero
                for i in range(padded):
                    mass += row[i]
                R[c, 0] += mass
            for column in range(0, d, COLUMNS):
                columns = min(COLUMNS, d - column)
                width = up(columns)
                load(values[first:end], column, columns, missing, block, present)
                moments(block.ravel(), padded, width, logits.ravel(), sums.ravel(), squares.ravel())
                for c in range(classes):
                    x, y = R[c, dense - 2 * d + column :], R[c, dense - d + column :]
                    for j in range(columns):
                        x[j] += sums[c, j]
                        y[j] += squares[c, j]
                if missing:
                    presences(present.ravel(), padded, width, logits.ravel(), sums.ravel())
                    for c in range(classes):
                        x = R[c, 1 + column :]
                        for j in range(columns):
                            x[j] += sums[c, j]
        for c in range(classes):
            for k in range(cells):
                R[c, dense + k] = cell_sums[k, c]


# --- what callers use -----------------------------------------------------------------------------------


def supports(family: Family) -> bool:
    """Whether R of this family has a fused kernel: naive Bayes itself, not a family derived from it."""
    return type(family) is NaiveBayes


@dataclass(frozen=True)
class FusedPeers:
    """All peers' rows, one peer's after the other's: `offsets` [N + 1] says where each begins and the last ends."""

    family: NaiveBayes
    rows: Rows  # [rows, Dc] float64 or float32, NaN is missing; [rows, Dd], negative is missing
    labels: np.ndarray  # [rows] class index; a negative one leaves the row out
    row_weights: np.ndarray  # [rows]
    offsets: np.ndarray  # [N + 1]
    classes: int

    def __post_init__(self) -> None:
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
        """The kernel trusts every index."""
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
                f"label {self.labels.max()} found; expected one below {self.classes}, the number of classes"
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
        """R_v(S_v) of every peer, in the number type of S; NaN for a peer whose S is not finite. [N, C, K]."""
        expected = (self.offsets.size - 1, self.classes, self.family.size)
        if stats.shape != expected:
            raise ValueError(f"statistics are {stats.shape}; expected {expected}: peers, classes, features")
        kind = np.float32 if stats.dtype == np.float32 else np.float64
        stats = np.ascontiguousarray(stats, dtype=kind)
        out = np.empty_like(stats)
        guards = (
            self.family.count_floor / self.classes,
            max(self.family.variance_floor, TINY),
            MEAN_LIMIT,
            TINY,
            EXTREME[kind],
        )
        starts = np.append(self.family.offsets, sum(self.family.cardinalities))
        all_residuals(
            *self.rows, self.labels, self.row_weights, self.offsets, starts, self.family.missing,
            tuple(kind(guard) for guard in guards), stats, out,
        )  # fmt: skip
        return out
