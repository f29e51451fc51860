"""Bayesian networks by their entries: logits, residual and θ of tables, for one table of rows and many passes.

A row of φ has few entries that are not zero, at indices that follow from its codes, so that a pass gathers and scatters

    logits_i = Σ_e v_ie W[k_ie]          R[k_ie] += v_ie (Y − P)_i

and never builds Φ. W and R lie transposed, [K + spare, P], with the C classes padded to whole vectors: P. The spare
rows are where the entries of missing values go. Rows are taken TILE at a time, so that their entries and logits stay
in cache.

This module imports numba: import it only where it is needed.
"""

from __future__ import annotations

import numpy as np

from peerbayes.data.kernel_cache import njit
from peerbayes.model.families.base import LOG_2PI, MEAN_LIMIT, TINY
from peerbayes.model.families.bayes_net import BayesNet
from peerbayes.model.families.regressions import SLOPE_LIMIT
from peerbayes.model.kernels.block_loops import exponential, standard
from peerbayes.model.kernels.peers import between
from peerbayes.model.kernels.simd import (
    exponent,
    filled,
    fraction,
    higher,
    highest,
    lanes_of,
    load,
    load_part,
    round_up,
    scratch,
    spread,
    store,
    total,
)

TILE = 32  # rows at a time: 64 entries of each are 32 KB
LOG_2_HIGH, LOG_2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10


# --- φ of a tile of rows


@njit(cache=True, nogil=True, error_model="numpy")
def tile_entries(block, first, rows, program, size, x, begins, indices, values):
    """Write the indices and values of the entries of rows `first` to `first + rows` of a block: two [E, TILE].

    x [1 + Dc, TILE], whose first row is 1, and `begins` [G, TILE] are scratch. Inner loops run over rows.
    """
    raw, codes, location, inverse, clip = block
    group_begins, link_ends, columns, strides, groups, offsets, left, right = program
    for j in range(raw.shape[1]):
        of_column, at, by = x[1 + j], location[j], inverse[j]
        for i in range(rows):
            of_column[i] = standard(raw[first + i, j], at, by, clip)
    for g in range(group_begins.size):
        begin = begins[g]
        begin[:] = group_begins[g]
        least = np.int32(0)
        for link in range(link_ends[g], link_ends[g + 1]):
            column, stride = columns[link], strides[link]
            for i in range(rows):
                code = codes[first + i, column]
                begin[i] += code * stride
                least = min(least, code)
        if least < 0:  # a value is missing
            for link in range(link_ends[g], link_ends[g + 1]):
                for i in range(rows):
                    if codes[first + i, columns[link]] < 0:
                        begin[i] = size
    for e in range(groups.size):
        begin, offset, index, value = begins[groups[e]], offsets[e], indices[e], values[e]
        one, other = x[left[e]], x[right[e]]
        for i in range(rows):
            index[i] = begin[i] + offset
            value[i] = one[i] * other[i]


# --- logits and residual of a tile of rows


@njit(cache=True, nogil=True)
def gather(rows, indices, values, weights, logits):
    """Compute Σ_e v_ie W[k_ie]: [E, TILE], [K, P] -> [TILE, P]; four vectors of classes at a time, then one."""
    lanes, width, count = lanes_of(weights), weights.shape[1], indices.shape[0]
    fours = width // (4 * lanes) * (4 * lanes)
    for i in range(rows):
        for c in range(0, fours, 4 * lanes):
            s0 = s1 = s2 = s3 = filled(weights.dtype.type(0.0))
            for e in range(count):
                at, v = indices[e, i] * width + c, spread(values, e * TILE + i)
                s0 = s0 + v * load(weights, at, weights)
                s1 = s1 + v * load(weights, at + lanes, weights)
                s2 = s2 + v * load(weights, at + 2 * lanes, weights)
                s3 = s3 + v * load(weights, at + 3 * lanes, weights)
            to = i * width + c
            store(logits, to, s0)
            store(logits, to + lanes, s1)
            store(logits, to + 2 * lanes, s2)
            store(logits, to + 3 * lanes, s3)
        for c in range(fours, width, lanes):
            s0 = s1 = s2 = s3 = filled(weights.dtype.type(0.0))
            for e in range(0, count - 3, 4):
                s0 = s0 + spread(values, e * TILE + i) * load(weights, indices[e, i] * width + c, weights)
                s1 = s1 + spread(values, (e + 1) * TILE + i) * load(
                    weights, indices[e + 1, i] * width + c, weights
                )
                s2 = s2 + spread(values, (e + 2) * TILE + i) * load(
                    weights, indices[e + 2, i] * width + c, weights
                )
                s3 = s3 + spread(values, (e + 3) * TILE + i) * load(
                    weights, indices[e + 3, i] * width + c, weights
                )
            for e in range(count // 4 * 4, count):
                s0 = s0 + spread(values, e * TILE + i) * load(weights, indices[e, i] * width + c, weights)
            store(logits, i * width + c, (s0 + s1) + (s2 + s3))


@njit(cache=True, nogil=True)
def scatter(rows, indices, values, changes, out):
    """Add v_ie (Y − P)_i to R[k_ie]: [E, TILE], [TILE, P] -> [K, P]; four vectors of classes at a time, then one."""
    lanes, width, count = lanes_of(out), out.shape[1], indices.shape[0]
    fours = width // (4 * lanes) * (4 * lanes)
    for i in range(rows):
        for c in range(0, fours, 4 * lanes):
            at = i * width + c
            r0, r1 = load(changes, at, out), load(changes, at + lanes, out)
            r2, r3 = load(changes, at + 2 * lanes, out), load(changes, at + 3 * lanes, out)
            for e in range(count):
                to, v = indices[e, i] * width + c, spread(values, e * TILE + i)
                store(out, to, load(out, to, out) + v * r0)
                store(out, to + lanes, load(out, to + lanes, out) + v * r1)
                store(out, to + 2 * lanes, load(out, to + 2 * lanes, out) + v * r2)
                store(out, to + 3 * lanes, load(out, to + 3 * lanes, out) + v * r3)
        for c in range(fours, width, lanes):
            r0 = load(changes, i * width + c, out)
            for e in range(count):
                to = indices[e, i] * width + c
                store(out, to, load(out, to, out) + spread(values, e * TILE + i) * r0)


@njit(inline="always")
def log_lanes(x):
    """Return log(x) of a vector of normal numbers above 0, as `logarithm` does of one."""
    k, m = exponent(x), fraction(x)
    one = filled(1.0)
    s = (m - one) / (m + one)
    z = s * s
    p = filled(2.0 / 21.0)
    p = p * z + filled(2.0 / 19.0)
    p = p * z + filled(2.0 / 17.0)
    p = p * z + filled(2.0 / 15.0)
    p = p * z + filled(2.0 / 13.0)
    p = p * z + filled(2.0 / 11.0)
    p = p * z + filled(2.0 / 9.0)
    p = p * z + filled(2.0 / 7.0)
    p = p * z + filled(2.0 / 5.0)
    p = p * z + filled(2.0 / 3.0)
    p = p * z + filled(2.0)
    return k * filled(LOG_2_HIGH) + (p * s + k * filled(LOG_2_LOW))


@njit(inline="always")
def is_first(logits, label, top):
    """Whether the label's logit is the highest, and the first of equal ones."""
    if logits[label] != top:
        return False
    equal = 0
    for c in range(label):
        equal += logits[c] == top
    return equal == 0


@njit(cache=True, nogil=True, error_model="numpy")
def residuals(rows, labels, row_weights, logits, tops, masses):
    """Compute (Y − P) times the rows' weights in place [TILE, P]; return the sums of soft error, error and log loss.

    `tops` and `masses` [TILE] are scratch. Every step goes over all rows before the next begins, so that no row waits
    for its own sums.
    """
    lanes, width = lanes_of(logits), logits.shape[1]
    soft, wrong, loss = 0.0, 0.0, 0.0
    for i in range(rows):
        peak = load(logits, i * width, logits)
        for at in range(i * width + lanes, (i + 1) * width, lanes):
            peak = higher(peak, load(logits, at, logits))
        tops[i] = highest(peak)
    for i in range(rows):
        label, w = labels[i], row_weights[i]
        loss += w * (tops[i] - logits[i, label])
        wrong += 0.0 if is_first(logits[i], label, tops[i]) else w
    for i in range(rows):
        summed, top = filled(0.0), spread(tops, i)
        for at in range(i * width, (i + 1) * width, lanes):
            value = exponential(load(logits, at, logits) - top)
            store(logits, at, value)
            summed = summed + value
        masses[i] = total(summed)
    for i in range(0, TILE, lanes):
        store(tops, i, log_lanes(load(masses, i, masses)))
    for i in range(rows):
        loss += row_weights[i] * tops[i]
        masses[i] = -row_weights[i] / masses[i]
    for i in range(rows):
        factor = spread(masses, i)
        for at in range(i * width, (i + 1) * width, lanes):
            store(logits, at, load(logits, at, logits) * factor)
    for i in range(rows):
        logits[i, labels[i]] += row_weights[i]
        soft += logits[i, labels[i]]
    return soft, wrong, loss


@njit(cache=True, nogil=True, error_model="numpy")
def add_residual(block, labels, row_weights, program, weights, out):
    """Add R of a block of rows to `out` [K + spare, P]; return the sums of soft error, error and log loss."""
    size, width = weights.shape
    size -= spare_rows(program)
    groups = program[4]
    x, begins = np.ones((1 + block[0].shape[1], TILE)), np.empty((program[0].size, TILE), np.int64)
    indices, values = np.empty((groups.size, TILE), np.int64), np.empty((groups.size, TILE))
    logits, tops, masses = scratch(TILE, width, 0.0, weights), np.ones(TILE), np.ones(TILE)
    soft, wrong, loss = 0.0, 0.0, 0.0
    for first in range(0, labels.size, TILE):
        rows = min(TILE, labels.size - first)
        end = first + rows
        tile_entries(block, first, rows, program, size, x, begins, indices, values)
        gather(rows, indices, values, weights, logits)
        errors = residuals(rows, labels[first:end], row_weights[first:end], logits, tops, masses)
        soft, wrong, loss = soft + errors[0], wrong + errors[1], loss + errors[2]
        scatter(rows, indices, values, logits, out)
    return soft, wrong, loss


@njit(inline="always")
def spare_rows(program):
    """Return how many rows of W and R follow the last feature."""
    return program[5].max() + 1


# --- θ of tables


@njit(cache=True, nogil=True, error_model="numpy")
def add_tables(stats, begins, configurations, sizes, top, floor, extra, weights):
    """Write log p(x_j | parents, c) of every table: S [K, C] -> W [K, P].

    What lies beyond C is log probabilities of the next cell's counts, which nobody uses: the bias there is −∞.
    """
    classes, width, lanes = stats.shape[1], weights.shape[1], lanes_of(weights)
    whole = stats.size
    tops = filled(top)
    shares = scratch(sizes.max(), lanes, 0.0, weights)
    for t in range(begins.size):
        begin, r, cells = begins[t], sizes[t], configurations[t] * sizes[t]
        least = filled(max(floor / cells, TINY))
        for c in range(0, width, lanes):
            shares[:] = 0.0
            if extra > 0.0 and configurations[t] > 1:
                for first in range(begin, begin + cells, r):
                    for k in range(r):
                        at = (first + k) * classes + c
                        v = higher(load_part(stats, at, whole - at, stats) / tops, least)
                        store(shares, k * lanes, load(shares, k * lanes, shares) + v)
                summed = filled(0.0)
                for k in range(r):
                    summed = summed + load(shares, k * lanes, shares)
                for k in range(r):
                    store(shares, k * lanes, load(shares, k * lanes, shares) * filled(extra) / summed)
            for first in range(begin, begin + cells, r):
                summed = filled(0.0)
                for k in range(r):
                    at = (first + k) * classes + c
                    v = higher(load_part(stats, at, whole - at, stats) / tops, least) + load(
                        shares, k * lanes, shares
                    )
                    store(weights, (first + k) * width + c, v)
                    summed = summed + v
                inverse = filled(1.0) / summed
                for k in range(first, first + r):
                    store(weights, k * width + c, log_lanes(load(weights, k * width + c, weights) * inverse))


# --- θ of regressions on one continuous parent or none


@njit(cache=True, nogil=True, error_model="numpy")
def add_regressions(stats, ends, moments, linear, top, floor, extra, correlation, least, weights):
    """Add the log densities x_j ~ N(a + b·x_p, q) of every regression: S [C, K] -> W [K, P].

    moments   [M, 6] the features Σ1, Σx_j, Σx_j², Σx_p, Σx_p², Σx_j x_p of each configuration of discrete parents
    ends      [R + 1] where those of each regression begin and end
    linear    [R] whether it has the parent p; where not, b = 0
    """
    for r in range(linear.size):
        configurations = moments[ends[r] : ends[r + 1]]
        count = len(configurations)
        least_rows = max(floor / count, TINY)
        shares = count > 1 and extra > 0.0
        for c in range(stats.shape[0]):
            S = stats[c]
            sums = np.zeros(6)  # of all configurations: what pseudo-rows have
            if shares:
                for of_one, of_child, of_square, of_parent, of_parents_square, of_both in configurations:
                    rows = S[of_one] / top
                    lacking = max(least_rows - max(rows, 0.0), 0.0)
                    sums[0] += max(rows, least_rows)
                    sums[1] += S[of_child] / top
                    sums[2] += S[of_square] / top + lacking
                    if linear[r]:
                        sums[3] += S[of_parent] / top
                        sums[4] += S[of_parents_square] / top + lacking
                        sums[5] += S[of_both] / top
                sums *= extra / sums[0]
            for of_one, of_child, of_square, of_parent, of_parents_square, of_both in configurations:
                rows = S[of_one] / top
                lacking = max(least_rows - max(rows, 0.0), 0.0)
                rows = max(rows, least_rows) + sums[0]
                mean = between((S[of_child] / top + sums[1]) / rows, -MEAN_LIMIT, MEAN_LIMIT)
                variance = (S[of_square] / top + lacking + sums[2]) / rows - mean * mean
                variance = between(variance, least, 1.0 / TINY)
                slope, parent_mean = 0.0, 0.0
                if linear[r]:
                    parent_mean = between((S[of_parent] / top + sums[3]) / rows, -MEAN_LIMIT, MEAN_LIMIT)
                    spread = (
                        S[of_parents_square] / top + lacking + sums[4]
                    ) / rows - parent_mean * parent_mean
                    spread = between(spread, least, 1.0 / TINY)
                    limit = np.sqrt(variance) * correlation * np.sqrt(spread)
                    covariance = (S[of_both] / top + sums[5]) / rows - mean * parent_mean
                    covariance = between(covariance, -limit, limit) * (rows / (rows + extra))
                    slope = between(covariance / spread, -SLOPE_LIMIT, SLOPE_LIMIT)
                    variance = max(variance - slope * (2.0 * covariance - spread * slope), least)
                intercept, precision = mean - slope * parent_mean, 1.0 / variance
                weights[of_one, c] -= 0.5 * (LOG_2PI + np.log(variance) + intercept * intercept * precision)
                weights[of_child, c] += intercept * precision
                weights[of_square, c] -= 0.5 * precision
                if linear[r]:
                    weights[of_parent, c] -= slope * intercept * precision
                    weights[of_parents_square, c] -= 0.5 * slope * slope * precision
                    weights[of_both, c] += slope * precision


@njit(cache=True, nogil=True)
def transpose(source, out):
    """Fill `out` [b, a] with the transpose of a matrix [a or more, b or more], in tiles that stay in cache."""
    rows, columns = out.shape[1], out.shape[0]
    for first in range(0, columns, 64):
        for i in range(rows):
            for j in range(first, min(first + 64, columns)):
                out[j, i] = source[i, j]


# --- interface


@njit(cache=True, nogil=True)
def zeros(features, classes):
    """Return zeros [features, P] for W or R, of which no vector straddles cache lines."""
    like = np.empty(0)
    return scratch(features, round_up(classes, like), 0.0, like)


def rows_of(family: BayesNet) -> int:
    """Return the rows of W and R: a feature each, and the spare ones."""
    return family.size + int(family.program.offsets.max()) + 1


def padded(family: BayesNet, weights: np.ndarray) -> np.ndarray:
    """Return W [C, K] in the layout of the kernels: [K + spare, P]."""
    classes = len(weights)
    out = zeros(rows_of(family), classes)
    out[0, classes:] = -np.inf  # no class has it
    transpose(weights, out[: family.size, :classes])
    return out


def weights_of(family: BayesNet, stats: np.ndarray) -> np.ndarray:
    """Return W = θ(S): [C, K] -> [C, K]."""
    out = np.empty(stats.shape)
    transpose(theta(family, stats), out)
    return out


def theta(family: BayesNet, stats: np.ndarray) -> np.ndarray:
    """Return W = θ(S) in the layout of the kernels: [C, K] -> [K + spare, P]."""
    classes = len(stats)
    out = zeros(rows_of(family), classes)
    top = max(float(stats.max()), -float(stats.min()))
    if not np.isfinite(top):
        out[:] = np.nan
        return out
    top = top if top > 0 else 1.0
    counts = family.guarded_counts(stats[:, : family.head_size] / top)
    floor, extra = float(counts.floor[0]), float(family.shrinkage * counts.classes.sum())
    out[0, :classes], out[0, classes:] = counts.log_prior, -np.inf  # no class has it
    least = max(family.variance_floor, TINY)
    add_regressions(stats, *family.simple_regressions, top, floor, extra, family.correlation, least, out)
    for indices, natural in family.other_regressions(counts):
        np.add.at(out[:, :classes], indices, natural.T)
    if family.tables:
        transposed = np.empty((family.size, classes))
        transpose(stats, transposed)
        add_tables(transposed, *family.table_shapes, top, floor, extra, out)
    return out
