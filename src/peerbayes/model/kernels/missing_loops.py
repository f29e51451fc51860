"""Terms of missing values: by messages along trees, or by enumeration. Compiled by numba on first use and cached.

All loops read W, whose entries are coefficients of the log joint: of x_i (h), of x_i² (−A_ii/2), of x_i x_j (−A_ij)
and of configurations. Missing values are 0 in `values`. The terms are added to logs [n, C]; where `counting`, classes
without credit are skipped, and expected features times credit are added to stats [C, K].
"""

import math

import numpy as np

from peerbayes.data.kernel_cache import njit

LOG_2PI = math.log(2 * math.pi)

# The least pivot or precision, as a share of its value before elimination: only rounding makes it smaller.
PIVOT = 1e-13


# --- messages along trees: columns have at most one parent each, and discrete columns a discrete one
# upwards     a missing discrete column collects log potentials of its values, a missing continuous one
#             exp(hx − Ax²/2); its message to a missing parent is the sum or integral over its own values
# downwards   probabilities of pairs of values, and moments, come back


@njit(cache=True, nogil=True)
def along_trees(
    weights, tables, values, codes, missing, order, parent, single, pair, block, sizes, most, counting, credit, logs,
    stats,
):  # fmt: skip
    """Pass messages: W [C, K], exp(W) of log probabilities [C, K], rows [n, Dc], [n, Dd], missing [n, D].

    `order` has parents first.
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
            _begin_tree(w, x, absent, touched, count, parent, single, pair, sizes, potential, A, h)
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
def _begin_tree(w, x, absent, touched, count, parent, single, pair, sizes, potential, A, h):
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


# --- enumeration of the configurations of missing discrete columns, for any structure


@njit(cache=True, nogil=True)
def components(missing, members, component):
    """Number the connected components of missing columns that φ multiplies with each other: [n, D], −1 if present."""
    for i in range(missing.shape[0]):
        for j in range(missing.shape[1]):
            component[i, j] = j if missing[i, j] else -1
        changed = True
        while changed:
            changed = False
            for q in range(members.shape[0]):
                least = missing.shape[1]
                for m in range(members.shape[1]):
                    j = members[q, m]
                    if j >= 0 and missing[i, j]:
                        least = min(least, component[i, j])
                for m in range(members.shape[1]):
                    j = members[q, m]
                    if j >= 0 and missing[i, j] and component[i, j] != least:
                        component[i, j] = least
                        changed = True


@njit(cache=True, nogil=True)
def factorise(q, A, h, mean, covariance):
    """Compute mean A⁻¹h and covariance A⁻¹ of exp(h·x − xᵀAx/2) in q dimensions; return its log integral.

    A is overwritten.
    """
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
    for a in range(q):  # A⁻¹ = L⁻ᵀL⁻¹, its lower triangle overwrites L
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
def _base(g, levels, blocks, choosing, sizes):
    """Return the first entry of block g in the configuration that `levels` gives."""
    code = 0
    for m in range(choosing.shape[1]):
        p = choosing[g, m]
        if p >= 0:
            code = code * sizes[p] + levels[p]
    return blocks[g, 1] + code * blocks[g, 2]


@njit(cache=True, nogil=True)
def _assemble(w, x, levels, position, active, actives, blocks, linear, choosing, sizes, unknown, A, h):
    """Add the blocks' terms in one configuration of `levels` to A and h; return the constant."""
    constant = 0.0
    for s in range(actives):
        g = active[s]
        base = _base(g, levels, blocks, choosing, sizes)
        if linear.shape[1] == 0 or linear[g, 0] < 0:
            constant += w[base + levels[blocks[g, 0] - x.size]]
            continue
        if unknown[g]:
            constant += w[base]
        entry = base + 1
        for a in range(linear.shape[1]):  # (1, x_a)
            i = linear[g, a]
            if i < 0:
                break
            if position[i] >= 0:
                h[position[i]] += w[entry]
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
                row, column = position[i], position[j]
                if row >= 0 and column >= 0:
                    A[row, column] -= value
                    A[column, row] -= value  # i = j: twice, as intended
                elif row >= 0:
                    h[row] += value * x[j]
                elif column >= 0:
                    h[column] += value * x[i]
                elif unknown[g]:
                    constant += value * x[i] * x[j]
    return constant


@njit(cache=True, nogil=True)
def _count(
    stats,
    share,
    x,
    levels,
    position,
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
    """Add the expected features of the blocks in one configuration to `stats`."""
    for s in range(actives):
        g = active[s]
        base = _base(g, levels, blocks, choosing, sizes)
        if linear.shape[1] == 0 or linear[g, 0] < 0:
            stats[base + levels[blocks[g, 0] - x.size]] += share
            continue
        if unknown[g]:
            stats[base] += share
        entry = base + 1
        for a in range(linear.shape[1]):
            i = linear[g, a]
            if i < 0:
                break
            if position[i] >= 0:
                stats[entry] += share * mean[position[i]]
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
                row, column = position[i], position[j]
                if row >= 0 and column >= 0:
                    stats[entry] += share * (covariance[row, column] + mean[row] * mean[column])
                elif row >= 0:
                    stats[entry] += share * mean[row] * x[j]
                elif column >= 0:
                    stats[entry] += share * mean[column] * x[i]
                elif unknown[g]:
                    stats[entry] += share * x[i] * x[j]
                entry += 1


@njit(cache=True, nogil=True)
def _set_levels(configuration, columns, r, sizes, levels):
    """Set the missing discrete columns to their values in one configuration."""
    for s in range(r):
        levels[columns[s]] = configuration % sizes[columns[s]]
        configuration //= sizes[columns[s]]


@njit(cache=True, nogil=True)
def _dense(w, x, cols, q, position, single, pair, A, h):
    """Set A and h of the missing continuous columns from the dense features, given the observed columns."""
    for a in range(q):
        i = cols[a]
        h[a] = w[single[i]] if single[i] >= 0 else 0.0
        for b in range(q):
            A[a, b] = 0.0
    for a in range(q):
        i = cols[a]
        for j in range(x.size):
            index = pair[i, j]
            if index < 0:
                continue
            b = position[j]
            if b < 0:
                h[a] += w[index] * x[j]
            elif a == b:
                A[a, a] -= 2.0 * w[index]
            else:
                A[a, b] -= w[index]


@njit(cache=True, nogil=True)
def enumerated(
    weights, values, codes, component, single, pair, blocks, linear, choosing, sizes, most, counting, credit, logs,
    stats,
):  # fmt: skip
    """Sum over all configurations of a component's missing discrete columns; integrate the continuous ones out.

    W [C, K], rows [n, Dc], [n, Dd], components [n, D]; adds to logs [n, C] and stats [C, K].
    """
    d, columns, total_blocks = values.shape[1], component.shape[1], blocks.shape[0]
    cols, level_columns = np.empty(d, dtype=np.int64), np.empty(columns - d, dtype=np.int64)
    position, levels = np.empty(d, dtype=np.int64), np.empty(columns - d, dtype=np.int64)
    active, unknown = np.empty(total_blocks, dtype=np.int64), np.empty(total_blocks, dtype=np.bool_)
    A, V, M = np.empty((d, d)), np.empty((d, d)), np.empty((d, d))
    h, mean, first = np.empty(d), np.empty(d), np.empty(d)
    log_terms = np.empty(most)
    for i in range(values.shape[0]):
        x = values[i]
        for k in range(columns):
            if component[i, k] != k:
                continue
            q = r = actives = 0
            configurations = 1
            for j in range(d):
                position[j] = -1
                if component[i, j] == k:
                    cols[q], position[j] = j, q
                    q += 1
            for j in range(columns - d):
                levels[j] = codes[i, j]
                if component[i, d + j] == k:
                    level_columns[r] = j
                    r += 1
                    configurations *= sizes[j]
            for g in range(total_blocks):
                touched = component[i, blocks[g, 0]] == k
                unknown[g] = False
                for m in range(choosing.shape[1]):
                    if choosing[g, m] >= 0 and component[i, d + choosing[g, m]] == k:
                        unknown[g] = touched = True
                for m in range(linear.shape[1]):
                    touched |= linear[g, m] >= 0 and component[i, linear[g, m]] == k
                if touched:
                    active[actives] = g
                    actives += 1
            for c in range(weights.shape[0]):
                if counting and credit[i, c] == 0.0:
                    continue
                w = weights[c]
                highest = -np.inf
                for configuration in range(configurations):
                    _set_levels(configuration, level_columns, r, sizes, levels)
                    _dense(w, x, cols, q, position, single, pair, A, h)
                    constant = _assemble(
                        w,
                        x,
                        levels,
                        position,
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
                    log_terms[configuration] = constant + factorise(q, A, h, mean, V)
                    highest = max(highest, log_terms[configuration])
                total = 0.0
                for configuration in range(configurations):
                    total += math.exp(log_terms[configuration] - highest)
                log_total = highest + math.log(total)
                logs[i, c] += log_total
                if not counting:
                    continue
                for a in range(q):
                    first[a] = 0.0
                    for b in range(q):
                        M[a, b] = 0.0
                for configuration in range(configurations):
                    share = math.exp(log_terms[configuration] - log_total)
                    if share < 1e-300:
                        continue
                    if configurations > 1:
                        _set_levels(configuration, level_columns, r, sizes, levels)
                        _dense(w, x, cols, q, position, single, pair, A, h)
                        _assemble(
                            w,
                            x,
                            levels,
                            position,
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
                        stats[c], share * credit[i, c], x, levels, position, active, actives, blocks, linear, choosing,
                        sizes, unknown, mean, V,
                    )  # fmt: skip
                    for a in range(q):
                        first[a] += share * mean[a]
                        for b in range(q):
                            M[a, b] += share * (V[a, b] + mean[a] * mean[b])
                for a in range(q):
                    column = cols[a]
                    if single[column] >= 0:
                        stats[c, single[column]] += credit[i, c] * first[a]
                    for j in range(d):
                        index = pair[column, j]
                        if index < 0:
                            continue
                        b = position[j]
                        if b < 0:
                            stats[c, index] += credit[i, c] * first[a] * x[j]
                        elif b >= a:
                            stats[c, index] += credit[i, c] * M[a, b]
