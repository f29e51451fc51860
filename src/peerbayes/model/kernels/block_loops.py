"""Loops over rows, classes and cells for large tables and many peers, compiled by numba on first use and cached.

Each works on a block of rows that stays in the processor's cache. Blocks of features and of logits lie
transposed, [K, b] and [C, b], so that every inner loop runs over rows and fills the vector units, and so
that the two matrix products of a pass are left to BLAS.
"""

import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from peerbayes.data.kernel_cache import njit
from peerbayes.data.moment_kernels import FAST


@njit(inline="always")
def standard(x, location, inverse, clip):
    """Return clip((x − location)·inverse); NaN stays NaN."""
    z = (x - location) * inverse
    z = clip if z > clip else z
    return -clip if z < -clip else z


@njit(cache=True, nogil=True)
def look_up(block, columns, low, starts, sizes, table, out):
    """Write the category index of each integer value to `out`, −1 where there is none: [b, D] -> [b, Dd]."""
    for i in range(block.shape[0]):
        for k in range(columns.size):
            x = block[i, columns[k]]
            code = np.int32(-1)
            if x >= low[k] and x < low[k] + sizes[k]:
                index = np.int64(x) - low[k]
                if index + low[k] == x:
                    code = table[starts[k] + index]
            out[i, k] = code


@njit(cache=True, nogil=True, fastmath=FAST)
def expand_diagonal(values, location, inverse, clip, missing, features):
    """Write φ of naive Bayes' continuous columns: [b, d] -> [1 + 2d or 1 + 3d, b]."""
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
                observed = linear[i] == linear[i]
                present[i] = 1.0 if observed else 0.0
                linear[i] = linear[i] if observed else 0.0
                square[i] = square[i] if observed else 0.0


@njit(cache=True, nogil=True, fastmath=FAST)
def expand_quadratic(values, location, inverse, clip, missing, features):
    """Write φ of a full Gaussian: [b, d] -> [1 + d + d(d+1)/2, b]. `missing` is not used."""
    rows, d = values.shape
    features[0, :rows] = 1.0
    for j in range(d):
        at, by = location[j], inverse[j]
        for i in range(rows):
            features[1 + j, i] = standard(values[i, j], at, by, clip)
    k = 1 + d
    for j in range(d):
        for other in range(j, d):
            first, second, product = features[1 + j], features[1 + other], features[k]
            for i in range(rows):
                product[i] = first[i] * second[i]
            k += 1


@njit(cache=True, nogil=True, fastmath=FAST)
def diagonal_statistics(values, location, inverse, clip, missing, labels, weights, stats):
    """Add S of naive Bayes' continuous columns in a block [b, d] to `stats` [C, 1 + 2d or 1 + 3d]."""
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
                observed = z == z
                z = z if observed else 0.0
                present[c, j] += w if observed else 0.0
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
    """Add S of a full Gaussian in a block [b, d] to `stats` [C, 1 + d + d(d+1)/2]. `missing` is not used.

    Full squares zzᵀ are added up, because their rows have equal length; the triangle is extracted at the end.
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
            row = square[j]
            for other in range(d + 1):
                row[other] += scaled * z[other]
    for c in range(stats.shape[0]):
        k = 0
        for j in range(d + 1):
            for other in range(j, d + 1):
                stats[c, k] += squares[c, j, other]
                k += 1


@njit(cache=True, nogil=True)
def cell_statistics(codes, offsets, labels, weights, stats):
    """Add S of the discrete columns in a block of category indices [b, Dd] to `stats` [C, cells]."""
    for i in range(codes.shape[0]):
        w = weights[i]
        row = stats[labels[i]]
        for j in range(codes.shape[1]):
            if codes[i, j] >= 0:
                row[offsets[j] + codes[i, j]] += w


@njit(cache=True, nogil=True, fastmath=FAST)
def add_cells(codes, offsets, weights, logits):
    """Add the discrete columns' log p(x_j | c) to the logits: weights [cells, C or more], logits [C, b]."""
    total = np.empty_like(weights[0])
    for i in range(codes.shape[0]):
        total[:] = 0.0
        for j in range(codes.shape[1]):
            if codes[i, j] >= 0:
                row = weights[offsets[j] + codes[i, j]]
                for c in range(total.size):
                    total[c] += row[c]
        for c in range(logits.shape[0]):
            logits[c, i] += total[c]


@njit(cache=True, nogil=True, fastmath=FAST)
def scatter_cells(codes, offsets, residuals, stats):
    """Add the discrete columns' part of R: residuals [C, b], stats [cells, C or more]."""
    row = np.zeros_like(stats[0])
    for i in range(codes.shape[0]):
        for c in range(residuals.shape[0]):
            row[c] = residuals[c, i]
        for j in range(codes.shape[1]):
            if codes[i, j] >= 0:
                cell = stats[offsets[j] + codes[i, j]]
                for c in range(row.size):
                    cell[c] += row[c]


# Of each number type: below which x exp(x) is 0, early enough that no product with it is subnormal, which is slow; ln 2
# as a sum of two, the first of few digits; the bits of the fraction; and the terms of p in e^r = 1 + r + r²·p(r),
# fitted for the least relative error where |r| ≤ ln 2 / 2: 4e-18 and 3e-9.
EXPONENTIAL = {
    "double": (
        -690.0, 6.93147180369123816490e-01, 1.90821492927058770002e-10, 52,
        (2.5000067566868052e-08, 2.763024936975921e-07, 2.75575863601904e-06, 2.480149309595094e-05,
         0.00019841269506585833, 0.0013888888943633158, 0.008333333333494465, 0.04166666666653015,
         0.16666666666666413, 0.5000000000000011),
    ),
    "float": (
        -80.0, 0.693359375, -2.12194440e-4, 23,
        (0.0013814596382327373, 0.008368717090860914, 0.04166838809269527, 0.1666652062943919, 0.49999993447560215),
    ),
}  # fmt: skip


@intrinsic
def exponential(typingctx, x):
    """Return exp(x) for x ≤ 0 to the last bit or two, of floats or vectors of them: 2^k·e^r with |r| ≤ ln 2 / 2.

    Unlike the library's, it is inlined and vectorised. Adding 1.5·2^52 rounds to a whole number, and leaves k in the
    lowest bits.
    """

    def emit(context, builder, signature, arguments):
        (x,) = arguments
        kind, count = getattr(x.type, "element", x.type), getattr(x.type, "count", 0)
        least, high, low, digits, terms = EXPONENTIAL[str(kind)]
        integer = ir.IntType(64 if digits == 52 else 32)
        integer = ir.VectorType(integer, count) if count else integer

        def number(value, of=x.type):
            return ir.Constant(of, [value] * count if count else value)

        def fused(a, b, c):
            return builder.fadd(builder.fmul(a, b, flags=["contract"]), c, flags=["contract"])

        shift = number(1.5 * 2.0**digits)
        shifted = fused(x, number(1.4426950408889634), shift)
        k = builder.fsub(shifted, shift)
        r = fused(k, number(-low), fused(k, number(-high), x))
        p = number(terms[0])
        for term in terms[1:]:
            p = fused(p, r, number(term))
        p = builder.fadd(fused(builder.fmul(r, r), p, r), number(1.0))
        exponent = builder.shl(builder.bitcast(shifted, integer), number(digits, integer))
        p = builder.bitcast(builder.add(builder.bitcast(p, integer), exponent), x.type)
        return builder.select(builder.fcmp_ordered("<", x, number(least)), number(0.0), p)

    return x(x), emit


@njit(cache=True, nogil=True, fastmath={"contract", "nsz"})
def highest(logits, top, best):
    """Write the highest logit to `top` [b] and its class to `best` [b], the first of equal ones: [C, b]."""
    top[:] = logits[0]
    best[:] = 0
    for c in range(1, logits.shape[0]):
        row = logits[c]
        for i in range(logits.shape[1]):
            if row[i] > top[i]:
                top[i] = row[i]
                best[i] = c


@njit(cache=True, nogil=True, fastmath={"contract", "nsz"})
def exponentials(logits, top, best, total):
    """Compute exp(logit − top) in place [C, b]; `top` is the highest logit, `best` its class, `total` the sum: [b]."""
    classes, rows = logits.shape
    highest(logits, top, best)
    total[:] = 0.0
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
    """Compute P = softmax over classes in place: [C, b]; `best` [b] is the index of the highest logit."""
    top, total = np.empty_like(logits[0]), np.empty(logits.shape[1])
    exponentials(logits, top, best, total)
    scale_rows(logits, 1.0 / total)


@njit(cache=True, nogil=True, fastmath={"contract", "nsz"})
def residuals(logits, best, labels, weights):
    """Compute (Y − P) times the rows' weights in place [C, b]; return the sums of soft and hard errors and of log loss.

    −log p(y|x) = log Σ exp(logit − top) + top − logit of y: finite where p itself is 0.
    """
    rows = logits.shape[1]
    soft, wrong, loss = 0.0, 0.0, 0.0
    top, total, of_label = np.empty_like(logits[0]), np.empty(rows), np.empty(rows)
    for i in range(rows):
        of_label[i] = logits[labels[i], i]
    exponentials(logits, top, best, total)
    scale_rows(logits, -weights / total)
    for i in range(rows):
        logits[labels[i], i] += weights[i]
        soft += logits[labels[i], i]
        wrong += weights[i] if best[i] != labels[i] else 0.0
    for i in range(rows):
        loss += weights[i] * (logarithm(total[i]) + (top[i] - of_label[i]))
    return soft, wrong, loss


@njit(cache=True, nogil=True, fastmath={"contract", "nsz"})
def judge(logits, labels, soft, wrong, lost):
    """Add the errors of models: logits [N, C, b] -> counts `wrong` [N], and 1 − p(y|x) in `lost` [N] if `soft`.

    The logits are overwritten. Of equal ones the first counts.
    """
    models, _, rows = logits.shape
    top, total, best = np.empty(rows), np.empty(rows), np.empty(rows, np.int64)
    for v in range(models):
        of_model = logits[v]
        if soft:
            exponentials(of_model, top, best, total)
            for i in range(rows):
                lost[v] += 1.0 - of_model[labels[i], i] / total[i]
        else:
            highest(of_model, top, best)
        for i in range(rows):
            wrong[v] += 1.0 if best[i] != labels[i] else 0.0


# --- θ of one peer's class counts and discrete columns: see `peers`


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
    peak, trouble = stats.dtype.type(0.0), stats.dtype.type(0.0)
    for x in stats.reshape(-1):
        trouble += x * stats.dtype.type(0.0)
        peak = max(peak, abs(x))
    return peak + trouble


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
