"""What missing values add, by every configuration of discrete columns: compiled by numba on first use and cached.

All loops read W, whose entries are coefficients of the log joint: of x_i (h), of x_i² (−A_ii/2), of x_i x_j (−A_ij)
and of configurations. Values that are missing stand as 0 in `values`; `missing` says which they are. Where `counting`,
classes without credit are passed over, and expected features times credit are added to `stats`.
"""

import math

import numpy as np
from numba import njit

LOG_2PI = math.log(2 * math.pi)

# A pivot is at least this share of what it was before elimination: rounding alone makes it smaller.
PIVOT = 1e-13


@njit(cache=True, nogil=True)
def components(missing, members, found):
    """Number the missing columns that φ multiplies with each other, directly or not: [n, D], −1 if present."""
    for i in range(missing.shape[0]):
        for j in range(missing.shape[1]):
            found[i, j] = j if missing[i, j] else -1
        moved = True
        while moved:
            moved = False
            for q in range(members.shape[0]):
                least = missing.shape[1]
                for m in range(members.shape[1]):
                    j = members[q, m]
                    if j >= 0 and missing[i, j]:
                        least = min(least, found[i, j])
                for m in range(members.shape[1]):
                    j = members[q, m]
                    if j >= 0 and missing[i, j] and found[i, j] != least:
                        found[i, j] = least
                        moved = True


@njit(cache=True, nogil=True)
def factorise(q, A, h, mean, covariance):
    """Of exp(h·x − xᵀAx/2) in q dimensions: its mean A⁻¹h, covariance A⁻¹ and log integral. A is used up."""
    log_integral = 0.5 * q * LOG_2PI
    for a in range(q):
        for b in range(a + 1):
            total = A[a, b]
            for k in range(b):
                total -= A[a, k] * A[b, k]
            if a == b:
                least = max(PIVOT * abs(A[a, a]), 1e-300)
                A[a, a] = math.sqrt(total if total > least else least)
                log_integral -= math.log(A[a, a])
            else:
                A[a, b] = total / A[b, b]
    for a in range(q):  # columns of the inverse of the root
        for b in range(q):
            covariance[b, a] = 0.0
        covariance[a, a] = 1.0 / A[a, a]
        for b in range(a + 1, q):
            total = 0.0
            for k in range(a, b):
                total -= A[b, k] * covariance[k, a]
            covariance[b, a] = total / A[b, b]
    for a in range(q):  # A⁻¹ = L⁻ᵀL⁻¹, its lower triangle in the place of L, which is used up
        for b in range(a + 1):
            total = 0.0
            for k in range(a, q):
                total += covariance[k, a] * covariance[k, b]
            A[a, b] = total
    for a in range(q):
        total = 0.0
        for b in range(q):
            covariance[a, b] = A[a, b] if b <= a else A[b, a]
        for b in range(q):
            total += covariance[a, b] * h[b]
        mean[a] = total
        log_integral += 0.5 * total * h[a]
    return log_integral


@njit(cache=True, nogil=True)
def _begin(g, now, blocks, choosing, sizes):
    """Where block g has its entries of the configuration `now`."""
    code = 0
    for m in range(choosing.shape[1]):
        p = choosing[g, m]
        if p >= 0:
            code = code * sizes[p] + now[p]
    return blocks[g, 1] + code * blocks[g, 2]


@njit(cache=True, nogil=True)
def _assemble(w, x, now, place_of, active, actives, blocks, linear, choosing, sizes, unknown, A, h):
    """Add the blocks' part of one configuration `now` to A and h; the constant is returned."""
    constant = 0.0
    for s in range(actives):
        g = active[s]
        base = _begin(g, now, blocks, choosing, sizes)
        if linear.shape[1] == 0 or linear[g, 0] < 0:
            constant += w[base + now[blocks[g, 0] - x.size]]
            continue
        if unknown[g]:
            constant += w[base]
        entry = base + 1
        for a in range(linear.shape[1]):  # (1, x_a)
            i = linear[g, a]
            if i < 0:
                break
            if place_of[i] >= 0:
                h[place_of[i]] += w[entry]
            elif unknown[g]:
                constant += w[entry] * x[i]
            entry += 1
        for a in range(linear.shape[1]):
            i = linear[g, a]
            if i < 0:
                break
            for b in range(a, linear.shape[1]):
                j = linear[g, b]
                if j < 0:
                    break
                value = w[entry]
                entry += 1
                at, by = place_of[i], place_of[j]
                if at >= 0 and by >= 0:
                    A[at, by] -= value
                    A[by, at] -= value  # i = j: twice, as it should
                elif at >= 0:
                    h[at] += value * x[j]
                elif by >= 0:
                    h[by] += value * x[i]
                elif unknown[g]:
                    constant += value * x[i] * x[j]
    return constant


@njit(cache=True, nogil=True)
def _count(
    stats,
    share,
    x,
    now,
    place_of,
    active,
    actives,
    blocks,
    linear,
    choosing,
    sizes,
    unknown,
    mean,
    covariance,
):
    """Add the expected features of the blocks in one configuration."""
    for s in range(actives):
        g = active[s]
        base = _begin(g, now, blocks, choosing, sizes)
        if linear.shape[1] == 0 or linear[g, 0] < 0:
            stats[base + now[blocks[g, 0] - x.size]] += share
            continue
        if unknown[g]:
            stats[base] += share
        entry = base + 1
        for a in range(linear.shape[1]):
            i = linear[g, a]
            if i < 0:
                break
            if place_of[i] >= 0:
                stats[entry] += share * mean[place_of[i]]
            elif unknown[g]:
                stats[entry] += share * x[i]
            entry += 1
        for a in range(linear.shape[1]):
            i = linear[g, a]
            if i < 0:
                break
            for b in range(a, linear.shape[1]):
                j = linear[g, b]
                if j < 0:
                    break
                at, by = place_of[i], place_of[j]
                if at >= 0 and by >= 0:
                    stats[entry] += share * (covariance[at, by] + mean[at] * mean[by])
                elif at >= 0:
                    stats[entry] += share * mean[at] * x[j]
                elif by >= 0:
                    stats[entry] += share * mean[by] * x[i]
                elif unknown[g]:
                    stats[entry] += share * x[i] * x[j]
                entry += 1


@njit(cache=True, nogil=True)
def _level(turn, levels, r, sizes, now):
    """Set the missing discrete columns to their values in one configuration."""
    for s in range(r):
        now[levels[s]] = turn % sizes[levels[s]]
        turn //= sizes[levels[s]]


@njit(cache=True, nogil=True)
def _dense(w, x, cols, q, place_of, single, pair, A, h):
    """A and h of the missing continuous columns from the dense features, given those that are present."""
    for a in range(q):
        i = cols[a]
        h[a] = w[single[i]] if single[i] >= 0 else 0.0
        for b in range(q):
            A[a, b] = 0.0
    for a in range(q):
        i = cols[a]
        for j in range(x.size):
            place = pair[i, j]
            if place < 0:
                continue
            b = place_of[j]
            if b < 0:
                h[a] += w[place] * x[j]
            elif a == b:
                A[a, a] -= 2.0 * w[place]
            else:
                A[a, b] -= w[place]


@njit(cache=True, nogil=True)
def enumerated(
    weights, values, codes, found, single, pair, blocks, linear, choosing, sizes, most, counting, credit, logs, stats
):  # fmt: skip
    """By every configuration of the missing discrete columns of a component; continuous ones are integrated out.

    W [C, K], rows [n, Dc], [n, Dd], components [n, D] -> logs [n, C] and stats [C, K] are added to.
    """
    d, columns, total_blocks = values.shape[1], found.shape[1], blocks.shape[0]
    cols, levels = np.empty(d, dtype=np.int64), np.empty(columns - d, dtype=np.int64)
    place_of, now = np.empty(d, dtype=np.int64), np.empty(columns - d, dtype=np.int64)
    active, unknown = np.empty(total_blocks, dtype=np.int64), np.empty(total_blocks, dtype=np.bool_)
    A, V, M = np.empty((d, d)), np.empty((d, d)), np.empty((d, d))
    h, mean, first = np.empty(d), np.empty(d), np.empty(d)
    parts = np.empty(most)
    for i in range(values.shape[0]):
        x = values[i]
        for k in range(columns):
            if found[i, k] != k:
                continue
            q = r = actives = 0
            configurations = 1
            for j in range(d):
                place_of[j] = -1
                if found[i, j] == k:
                    cols[q], place_of[j] = j, q
                    q += 1
            for j in range(columns - d):
                now[j] = codes[i, j]
                if found[i, d + j] == k:
                    levels[r] = j
                    r += 1
                    configurations *= sizes[j]
            for g in range(total_blocks):
                touched = found[i, blocks[g, 0]] == k
                unknown[g] = False
                for m in range(choosing.shape[1]):
                    if choosing[g, m] >= 0 and found[i, d + choosing[g, m]] == k:
                        unknown[g] = touched = True
                for m in range(linear.shape[1]):
                    touched |= linear[g, m] >= 0 and found[i, linear[g, m]] == k
                if touched:
                    active[actives] = g
                    actives += 1
            for c in range(weights.shape[0]):
                if counting and credit[i, c] == 0.0:
                    continue
                w = weights[c]
                highest = -np.inf
                for turn in range(configurations):
                    _level(turn, levels, r, sizes, now)
                    _dense(w, x, cols, q, place_of, single, pair, A, h)
                    constant = _assemble(
                        w, x, now, place_of, active, actives, blocks, linear, choosing, sizes, unknown, A, h
                    )
                    parts[turn] = constant + factorise(q, A, h, mean, V)
                    highest = max(highest, parts[turn])
                total = 0.0
                for turn in range(configurations):
                    total += math.exp(parts[turn] - highest)
                whole = highest + math.log(total)
                logs[i, c] += whole
                if not counting:
                    continue
                for a in range(q):
                    first[a] = 0.0
                    for b in range(q):
                        M[a, b] = 0.0
                for turn in range(configurations):
                    share = math.exp(parts[turn] - whole)
                    if share < 1e-300:
                        continue
                    if configurations > 1:
                        _level(turn, levels, r, sizes, now)
                        _dense(w, x, cols, q, place_of, single, pair, A, h)
                        _assemble(
                            w,
                            x,
                            now,
                            place_of,
                            active,
                            actives,
                            blocks,
                            linear,
                            choosing,
                            sizes,
                            unknown,
                            A,
                            h,
                        )
                        factorise(q, A, h, mean, V)
                    _count(
                        stats[c], share * credit[i, c], x, now, place_of, active, actives, blocks, linear, choosing,
                        sizes, unknown, mean, V,
                    )  # fmt: skip
                    for a in range(q):
                        first[a] += share * mean[a]
                        for b in range(q):
                            M[a, b] += share * (V[a, b] + mean[a] * mean[b])
                for a in range(q):
                    at = cols[a]
                    if single[at] >= 0:
                        stats[c, single[at]] += credit[i, c] * first[a]
                    for j in range(d):
                        place = pair[at, j]
                        if place < 0:
                            continue
                        b = place_of[j]
                        if b < 0:
                            stats[c, place] += credit[i, c] * first[a] * x[j]
                        elif b >= a:
                            stats[c, place] += credit[i, c] * M[a, b]
