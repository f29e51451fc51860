"""Fused loops for large tables, compiled by numba on first use and cached. `passes` is their only caller.

Each works on a block of rows that stays in the processor's cache. Blocks of features and of logits lie
transposed, [K, b] and [C, b], so that every inner loop runs over rows and fills the vector units, and so
that the two matrix products of a pass are left to BLAS.
"""

import numpy as np
from numba import njit

# Sums may be reordered and multiplications fused with additions. NaN stays NaN: it marks a missing value.
FAST = {"reassoc", "contract", "nsz", "arcp"}


@njit(cache=True, nogil=True, fastmath=FAST)
def moments(block, weights, state):
    """Add a block [b, k] to `state` [5, k]: count, mean, sum of squared deviations, low, high of each column.

    One pass over deviations from the mean so far, then the update of Chan, Golub and LeVeque: no cancellation as
    long as the mean so far is near, so the caller starts with the mean of a first block.
    """
    rows, k = block.shape
    shift, low, high = state[1].copy(), state[3].copy(), state[4].copy()
    count, total, square = np.zeros(k), np.zeros(k), np.zeros(k)
    for i in range(rows):
        w = weights[i]
        for j in range(k):
            x = block[i, j]
            known = x == x
            gap = x - shift[j] if known else 0.0
            count[j] += w if known else 0.0
            total[j] += w * gap
            square[j] += w * gap * gap
            low[j] = x if x < low[j] else low[j]
            high[j] = x if x > high[j] else high[j]
    for j in range(k):
        state[3, j], state[4, j] = low[j], high[j]
        if count[j] > 0:
            both = state[0, j] + count[j]
            gap = total[j] / count[j]
            square[j] = max(square[j] - gap * total[j], 0.0)
            state[2, j] += square[j] + gap * gap * (state[0, j] * count[j] / both)
            state[1, j] += gap * (count[j] / both)
            state[0, j] = both


@njit(cache=True, nogil=True)
def mark(block, columns, low, starts, seen):
    """Set seen[starts[k] + x − low[k]] for every integer x of column k."""
    for i in range(block.shape[0]):
        for k in range(columns.size):
            seen[starts[k] + block[i, columns[k]] - low[k]] = True


@njit(inline="always")
def standard(x, location, inverse, clip):
    """clip((x − location)·inverse); NaN stays NaN."""
    z = (x - location) * inverse
    z = clip if z > clip else z
    return -clip if z < -clip else z


@njit(cache=True, nogil=True)
def look_up(block, columns, low, starts, sizes, table, out):
    """out = the category index of each integer value, −1 where there is none: [b, D] -> [b, Dd]."""
    for i in range(block.shape[0]):
        for k in range(columns.size):
            x = block[i, columns[k]]
            code = np.int32(-1)
            if x >= low[k] and x < low[k] + sizes[k]:
                place = np.int64(x) - low[k]
                if place + low[k] == x:
                    code = table[starts[k] + place]
            out[i, k] = code


@njit(cache=True, nogil=True, fastmath=FAST)
def expand_diagonal(values, location, inverse, clip, missing, features):
    """φ of naive Bayes' continuous columns: [b, d] -> [1 + 2d or 1 + 3d, b]."""
    rows, d = values.shape
    first = 1 + d if missing else 1
    features[0, :rows] = 1.0
    for j in range(d):
        linear, square = features[first + j], features[first + d + j]
        at, by = location[j], inverse[j]
        for i in range(rows):
            z = standard(values[i, j], at, by, clip)
            linear[i] = z
            square[i] = z * z
        if missing:
            present = features[1 + j]
            for i in range(rows):
                known = linear[i] == linear[i]
                present[i] = 1.0 if known else 0.0
                linear[i] = linear[i] if known else 0.0
                square[i] = square[i] if known else 0.0


@njit(cache=True, nogil=True, fastmath=FAST)
def expand_quadratic(values, location, inverse, clip, missing, features):
    """φ of a full Gaussian: [b, d] -> [1 + d + d(d+1)/2, b]. `missing` is not used."""
    rows, d = values.shape
    features[0, :rows] = 1.0
    for j in range(d):
        at, by = location[j], inverse[j]
        for i in range(rows):
            features[1 + j, i] = standard(values[i, j], at, by, clip)
    k = 1 + d
    for j in range(d):
        for other in range(j, d):
            left, right, product = features[1 + j], features[1 + other], features[k]
            for i in range(rows):
                product[i] = left[i] * right[i]
            k += 1


@njit(cache=True, nogil=True, fastmath=FAST)
def diagonal_statistics(values, location, inverse, clip, missing, labels, weights, stats):
    """S of naive Bayes' continuous columns: add a block [b, d] to [C, 1 + 2d or 1 + 3d]."""
    rows, d = values.shape
    classes = stats.shape[0]
    first = 1 + d if missing else 1
    count, present = np.zeros(classes), np.zeros((classes, d))
    linear, square = np.zeros((classes, d)), np.zeros((classes, d))
    for i in range(rows):
        c, w = labels[i], weights[i]
        count[c] += w
        if missing:
            for j in range(d):
                z = standard(values[i, j], location[j], inverse[j], clip)
                known = z == z
                z = z if known else 0.0
                present[c, j] += w if known else 0.0
                linear[c, j] += w * z
                square[c, j] += w * z * z
        else:
            for j in range(d):
                z = standard(values[i, j], location[j], inverse[j], clip)
                linear[c, j] += w * z
                square[c, j] += w * z * z
    for c in range(classes):
        stats[c, 0] += count[c]
        for j in range(d):
            if missing:
                stats[c, 1 + j] += present[c, j]
            stats[c, first + j] += linear[c, j]
            stats[c, first + d + j] += square[c, j]


@njit(cache=True, nogil=True, fastmath=FAST)
def quadratic_statistics(values, location, inverse, clip, missing, labels, weights, stats):
    """S of a full Gaussian: add a block [b, d] to [C, 1 + d + d(d+1)/2]. `missing` is not used.

    Whole squares zzᵀ are added up, because their rows have one length; the triangle is taken at the end.
    """
    rows, d = values.shape
    squares = np.zeros((stats.shape[0], d + 1, d + 1))
    z = np.ones(d + 1)
    for i in range(rows):
        for j in range(d):
            z[1 + j] = standard(values[i, j], location[j], inverse[j], clip)
        square = squares[labels[i]]
        for j in range(d + 1):
            scaled = weights[i] * z[j]
            line = square[j]
            for other in range(d + 1):
                line[other] += scaled * z[other]
    for c in range(stats.shape[0]):
        k = 0
        for j in range(d + 1):
            for other in range(j, d + 1):
                stats[c, k] += squares[c, j, other]
                k += 1


@njit(cache=True, nogil=True)
def cell_statistics(codes, offsets, labels, weights, stats):
    """S of the discrete columns: add a block of category indices [b, Dd] to [C, cells]."""
    for i in range(codes.shape[0]):
        w = weights[i]
        row = stats[labels[i]]
        for j in range(codes.shape[1]):
            if codes[i, j] >= 0:
                row[offsets[j] + codes[i, j]] += w


@njit(cache=True, nogil=True, fastmath=FAST)
def add_cells(codes, offsets, weights, logits):
    """Add the discrete columns' log p(x_j | c) to the logits: weights [cells, C], logits [C, b]."""
    classes = logits.shape[0]
    total = np.empty(classes)
    for i in range(codes.shape[0]):
        total[:] = 0.0
        for j in range(codes.shape[1]):
            if codes[i, j] >= 0:
                row = weights[offsets[j] + codes[i, j]]
                for c in range(classes):
                    total[c] += row[c]
        for c in range(classes):
            logits[c, i] += total[c]


@njit(cache=True, nogil=True, fastmath=FAST)
def scatter_cells(codes, offsets, residuals, stats):
    """Add the discrete columns' part of R: residuals [C, b], stats [cells, C]."""
    classes = residuals.shape[0]
    row = np.empty(classes)
    for i in range(codes.shape[0]):
        for c in range(classes):
            row[c] = residuals[c, i]
        for j in range(codes.shape[1]):
            if codes[i, j] >= 0:
                cell = stats[offsets[j] + codes[i, j]]
                for c in range(classes):
                    cell[c] += row[c]


@njit(inline="always")
def exponential(x):
    """exp(x) for x ≤ 0 to the last bit or two: 2^k · e^r with |r| ≤ ln 2 / 2 and a Taylor polynomial for e^r.

    Unlike the library's, it is inlined and vectorised.
    """
    x = max(x, -708.0)
    k = np.floor(x * 1.4426950408889634 + 0.5)
    r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10
    p = 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return p * np.int64((np.int64(k) + 1023) << 52).view(np.float64)


@njit(cache=True, nogil=True, fastmath={"contract", "nsz"})
def exponentials(logits, best, total):
    """exp(logit − highest) in place: [C, b]; `best` [b] is the class of the highest, `total` [b] the sum."""
    classes, rows = logits.shape
    top = logits[0].copy()
    best[:] = 0
    total[:] = 0.0
    for c in range(1, classes):
        row = logits[c]
        for i in range(rows):
            if row[i] > top[i]:
                top[i] = row[i]
                best[i] = c
    for c in range(classes):
        row = logits[c]
        for i in range(rows):
            value = exponential(row[i] - top[i])
            row[i] = value
            total[i] += value


@njit(cache=True, nogil=True, fastmath={"contract", "nsz"})
def scale_rows(logits, factors):
    """Multiply every row's [C] by its factor, in place: [C, b], [b]."""
    for c in range(logits.shape[0]):
        row = logits[c]
        for i in range(logits.shape[1]):
            row[i] *= factors[i]


@njit(cache=True, nogil=True, fastmath={"contract", "nsz"})
def softmax(logits, best):
    """P = softmax over classes, in place: [C, b]; `best` [b] is the index of the highest logit."""
    total = np.empty(logits.shape[1])
    exponentials(logits, best, total)
    scale_rows(logits, 1.0 / total)


@njit(cache=True, nogil=True, fastmath={"contract", "nsz"})
def residuals(logits, best, labels, weights):
    """(Y − P) times the rows' weights, in place: [C, b]; and the weight of what is wrong, softly and hard."""
    rows = logits.shape[1]
    soft, wrong = 0.0, 0.0
    total = np.empty(rows)
    exponentials(logits, best, total)
    scale_rows(logits, -weights / total)
    for i in range(rows):
        logits[labels[i], i] += weights[i]
        soft += logits[labels[i], i]
        wrong += weights[i] if best[i] != labels[i] else 0.0
    return soft, wrong
