"""Terms of missing values, by message passing along trees: compiled by numba on first use and cached.

All loops read W, whose entries are coefficients of the log joint: of x_i (h), of x_i² (−A_ii/2), of x_i x_j (−A_ij)
and of configurations. Missing values are 0 in `values`; `missing` says which they are. Columns have at most one
parent each, and discrete columns a discrete one.

    upwards     a missing discrete column collects log potentials of its values, a missing continuous one
                exp(hx − Ax²/2); its message to a missing parent is the sum or integral over its own values
    downwards   probabilities of pairs of values, and moments, come back
"""

import math

import numpy as np
from numba import njit

LOG_2PI = math.log(2 * math.pi)

# The least precision, as a share of its value before a child is integrated out: only rounding makes it smaller.
PIVOT = 1e-13


@njit(cache=True, nogil=True)
def along_trees(
    weights, tables, values, codes, missing, order, parent, single, pair, block, sizes, most, counting, credit, logs,
    stats,
):  # fmt: skip
    """Add the terms of missing values to logs [n, C] and stats [C, K].

    W [C, K], exp(W) of log probabilities [C, K], rows [n, Dc], [n, Dd], missing [n, D]. `order` has parents first.
    Where `counting`, classes without credit are skipped, and expected features times credit are added to `stats`.
    """
    n, d = values.shape
    columns = missing.shape[1]
    potential, message = np.empty((columns, most)), np.empty((columns, most))
    scaled, belief = np.empty((columns, most)), np.empty((columns, most))
    A, h, first, second = np.empty(d), np.empty(d), np.empty(d), np.empty(d)
    touched = np.empty(columns, dtype=np.int64)
    for i in range(n):
        x, code, absent = values[i], codes[i], missing[i]
        count = 0
        for s in range(columns):
            j = order[s]
            if absent[j] or (parent[j] >= 0 and absent[parent[j]]):
                touched[count] = j
                count += 1
        if count == 0:
            continue
        for c in range(weights.shape[0]):
            if counting and credit[i, c] == 0.0:
                continue
            w, table = weights[c], tables[c]
            _begin(w, x, absent, touched, count, parent, single, pair, sizes, potential, A, h)
            logs[i, c] += _upwards(
                w, table, x, code, absent, touched, count, parent, pair, block, sizes, potential, message, scaled,
                belief, A, h,
            )  # fmt: skip
            if counting:
                _downwards(
                    w, table, x, code, absent, touched, count, parent, single, pair, block, sizes, message, scaled,
                    belief, A, h, first, second, credit[i, c], stats[c],
                )  # fmt: skip


@njit(cache=True, nogil=True)
def _begin(w, x, absent, touched, count, parent, single, pair, sizes, potential, A, h):
    """Set the potentials of each missing column from the dense features and from an observed parent."""
    d = x.size
    for s in range(count):
        j = touched[s]
        if not absent[j]:
            continue
        if j >= d:
            for a in range(sizes[j - d]):
                potential[j, a] = 0.0
            continue
        p = parent[j]
        h[j] = w[single[j]] if single[j] >= 0 else 0.0
        A[j] = -2.0 * w[pair[j, j]] if pair[j, j] >= 0 else 0.0
        if 0 <= p < d and not absent[p]:
            h[j] += w[pair[j, p]] * x[p]


@njit(cache=True, nogil=True)
def _upwards(
    w,
    table,
    x,
    code,
    absent,
    touched,
    count,
    parent,
    pair,
    block,
    sizes,
    potential,
    message,
    scaled,
    belief,
    A,
    h,
):
    """Pass messages from children to missing parents; return the log of the sum and integral over missing values."""
    d, total = x.size, 0.0
    for s in range(count - 1, -1, -1):
        j = touched[s]
        p = parent[j]
        above = p >= 0 and absent[p]
        offset, width = block[j, 0], block[j, 1]
        if j >= d:
            total += _discrete_upwards(
                w,
                table,
                d,
                j,
                p,
                above,
                absent[j],
                code,
                offset,
                width,
                sizes,
                potential,
                message,
                scaled,
                belief,
            )
        elif not absent[j]:
            if p < d:
                h[p] += w[pair[j, p]] * x[j]
                continue
            for a in range(sizes[p - d]):
                base = offset + a * width
                potential[p, a] += w[base] + x[j] * (w[base + 1] + x[j] * w[base + 2])
        elif p >= d and above:
            for a in range(sizes[p - d]):
                base = offset + a * width
                precision, slope = A[j] - 2.0 * w[base + 2], h[j] + w[base + 1]
                potential[p, a] += w[base] + 0.5 * (slope * slope / precision + LOG_2PI - math.log(precision))
        else:
            if p >= d:
                base = offset + code[p - d] * width
                A[j] -= 2.0 * w[base + 2]
                h[j] += w[base + 1]
            total += 0.5 * (h[j] * h[j] / A[j] + LOG_2PI - math.log(A[j]))
            if above:
                across = w[pair[j, p]]
                A[p] = max(A[p] - across * across / A[j], PIVOT * A[p])
                h[p] += across * h[j] / A[j]
    return total


@njit(cache=True, nogil=True)
def _discrete_upwards(
    w, table, d, j, p, above, absent, code, offset, width, sizes, potential, message, scaled, belief
):
    """Send a discrete column's message to its missing parent, or set its belief if it has none; return a log term."""
    if not absent:
        for b in range(sizes[p - d]):
            potential[p, b] += w[offset + b * width + code[j - d]]
        return 0.0
    r, highest, total = sizes[j - d], -np.inf, 0.0
    base = offset + (code[p - d] * width if p >= 0 and not above else 0)
    for a in range(r):
        if not above:
            potential[j, a] += w[base + a]
        highest = max(highest, potential[j, a])
    for a in range(r):
        scaled[j, a] = math.exp(potential[j, a] - highest)
        total += scaled[j, a]
    if not above:
        for a in range(r):
            belief[j, a] = scaled[j, a] / total
        return highest + math.log(total)
    for b in range(sizes[p - d]):
        total = 0.0
        for a in range(r):
            total += table[offset + b * width + a] * scaled[j, a]
        message[j, b] = total
        potential[p, b] += math.log(total) + highest
    return 0.0


@njit(cache=True, nogil=True)
def _downwards(
    w, table, x, code, absent, touched, count, parent, single, pair, block, sizes, message, scaled, belief, A, h, first,
    second, share, stats,
):  # fmt: skip
    """Pass beliefs from parents to children, and add expected features times `share` to stats [K]."""
    d = x.size
    for s in range(count):
        j = touched[s]
        p = parent[j]
        above = p >= 0 and absent[p]
        offset, width = block[j, 0], block[j, 1]
        if j >= d:
            _discrete_downwards(
                table,
                d,
                j,
                p,
                above,
                absent[j],
                code,
                offset,
                width,
                sizes,
                message,
                scaled,
                belief,
                share,
                stats,
            )
            continue
        if not absent[j]:
            if p < d:
                stats[pair[j, p]] += share * x[j] * first[p]
                continue
            for b in range(sizes[p - d]):
                base, weight = offset + b * width, share * belief[p, b]
                stats[base] += weight
                stats[base + 1] += weight * x[j]
                stats[base + 2] += weight * x[j] * x[j]
            continue
        if p >= d and above:
            first[j] = second[j] = 0.0
            for b in range(sizes[p - d]):
                base = offset + b * width
                precision = A[j] - 2.0 * w[base + 2]
                mean = (h[j] + w[base + 1]) / precision
                square = 1.0 / precision + mean * mean
                first[j] += belief[p, b] * mean
                second[j] += belief[p, b] * square
                weight = share * belief[p, b]
                stats[base] += weight
                stats[base + 1] += weight * mean
                stats[base + 2] += weight * square
        elif above:
            across = w[pair[j, p]]
            first[j] = (h[j] + across * first[p]) / A[j]
            stats[pair[j, p]] += share * (h[j] * first[p] + across * second[p]) / A[j]
            square = h[j] * h[j] + 2.0 * h[j] * across * first[p] + across * across * second[p]
            second[j] = 1.0 / A[j] + square / (A[j] * A[j])
        else:
            first[j] = h[j] / A[j]
            second[j] = 1.0 / A[j] + first[j] * first[j]
            if p >= d:
                base = offset + code[p - d] * width
                stats[base + 1] += share * first[j]
                stats[base + 2] += share * second[j]
            elif p >= 0:
                stats[pair[j, p]] += share * first[j] * x[p]
        if single[j] >= 0:
            stats[single[j]] += share * first[j]
        if pair[j, j] >= 0:
            stats[pair[j, j]] += share * second[j]


@njit(cache=True, nogil=True)
def _discrete_downwards(
    table, d, j, p, above, absent, code, offset, width, sizes, message, scaled, belief, share, stats
):
    """Add the expected cells of a discrete column, and set its belief for its children."""
    if not absent:
        for b in range(sizes[p - d]):
            stats[offset + b * width + code[j - d]] += share * belief[p, b]
        return
    r = sizes[j - d]
    if not above:
        base = offset + (code[p - d] * width if p >= 0 else 0)
        for a in range(r):
            stats[base + a] += share * belief[j, a]
        return
    for a in range(r):
        belief[j, a] = 0.0
    for b in range(sizes[p - d]):
        factor = belief[p, b] / message[j, b]
        for a in range(r):
            both = factor * table[offset + b * width + a] * scaled[j, a]
            belief[j, a] += both
            stats[offset + b * width + a] += share * both
