"""How strong a prior the counts and moments of a table ask for: the strength of largest evidence, from S alone.

A prior is worth m rows. Its evidence is the probability of the rows with the parameters integrated out, in closed form
for conjugate priors, so that m needs no rows and no held-out data: the sums that peers agree on are enough.

    cells            Dirichlet, mean b         Σ_d log Γ(m)/Γ(m + n_d) + Σ_dk log Γ(m b_k + n_dk)/Γ(m b_k)
    covariances      inverse Wishart, mean I   log p(scatter | m), the means being free
    regressions      slopes of variance 1/m    log p(x_j | parents, m), standardised within the class
    configurations   normal inverse Wishart    log p(x of each configuration | m rows with the moments of the class)

Each m is taken from a grid. Values that do not vary at all (a column that is constant in a class) have an unbounded
density, which says nothing of m: they are left out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import gammaln, multigammaln

# The strengths that are compared, in rows: six for each factor of ten, since the evidence is flat near its maximum.
STRENGTHS = np.logspace(-2, 3, 31)

# A variance, as a share of the column's, below which values are taken for constant.
CONSTANT = 1e-8

# Entries of the evidence of several strengths that are computed at a time.
EVIDENCE_ENTRIES = 1 << 16

# Scatters up to which it takes longer to find out which are alike than to treat each by itself.
FEW_KINDS = 16

# The least count and variance that something is divided by.
TINY = 1e-30


def strongest(evidence: Callable[[float], np.ndarray]) -> np.ndarray:
    """Return the strength of largest evidence for each entry of `evidence(m)`; one row where all are equal."""
    return strongest_of(np.array([evidence(float(strength)) for strength in STRENGTHS]))


def strongest_of(values: np.ndarray) -> np.ndarray:
    """Return the strength of largest evidence, given that of every strength: [S, ...] -> [...]."""
    return np.where(np.ptp(values, axis=0) > 0, STRENGTHS[values.argmax(axis=0)], 1.0)


def dirichlet(
    counts: np.ndarray,
    base: np.ndarray,
    group: np.ndarray,
    totals: np.ndarray,
    group_of_total: np.ndarray,
    groups: int,
) -> np.ndarray:
    """Return the strength of the prior m·base of each group of tables: [groups].

    counts   of cells, with their probability `base` and their `group`: three [cells]
    totals   of configurations, each the sum of its cells, with their `group_of_total`: two [configurations]
    """
    seen, filled = counts > 0, totals > 0  # others add nothing to the evidence
    counts, base, group = counts[seen], base[seen], group[seen]
    totals, group_of_total = totals[filled], group_of_total[filled]

    def evidence(m: float) -> np.ndarray:
        cells = np.bincount(group, gammaln(m * base + counts) - gammaln(m * base), groups)
        return cells - np.bincount(group_of_total, gammaln(m + totals) - gammaln(m), groups)

    return strongest(evidence)


def even_strengths(counts: np.ndarray, even: np.ndarray, table: np.ndarray, tables: int) -> np.ndarray:
    """Return the strength m of the prior m·even of many tables, each of one even share, in all classes alike: [tables].

    counts  of cells in each class: [C, cells]
    even    the share of each cell in its table, 0 for a cell that cannot occur: [cells]
    table   the table of each cell, in ascending order: [cells]

    Cells of a table with equal counts have equal evidence, so that it is computed once for each count.
    """
    share = np.zeros(tables)
    share[table[even > 0]] = even[even > 0]
    begins = np.searchsorted(table, np.arange(tables))
    totals = np.add.reduceat(counts, begins, axis=1) if tables else np.zeros((len(counts), 0))
    cell_table, cell_count, cells = _repeated(np.broadcast_to(table, counts.shape), counts)
    total_table, total_count, classes = _repeated(np.broadcast_to(np.arange(tables), totals.shape), totals)
    base = share[cell_table]
    possible = base > 0
    cell_table, cell_count, cells, base = (x[possible] for x in (cell_table, cell_count, cells, base))

    def evidence(m: float) -> np.ndarray:
        gain = cells * (gammaln(m * base + cell_count) - gammaln(m * base))
        loss = classes * (gammaln(m + total_count) - gammaln(m))
        return np.bincount(cell_table, gain, tables) - np.bincount(total_table, loss, tables)

    return strongest(evidence)


def _repeated(group: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct positive counts of each group, and how many times each occurs: three [distinct]."""
    positive = counts > 0
    group, counts = group[positive], counts[positive]
    order = np.lexsort((counts, group))
    group, counts = group[order], counts[order]
    first = np.ones(group.size, dtype=bool)
    first[1:] = (group[1:] != group[:-1]) | (counts[1:] != counts[:-1])
    begins = np.flatnonzero(first)
    return group[begins], counts[begins], np.diff(np.append(begins, group.size)).astype(float)


def variances(count: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the variances within classes [C, d] and over all rows [d], from Σ1, Σx and Σx²: three [C, d]."""

    return variance(count, first, second), variance(count.sum(axis=0), first.sum(axis=0), second.sum(axis=0))


def variance(count: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return variances from Σ1, Σx and Σx², each of any shape."""
    rows = np.maximum(count, TINY)
    return np.maximum(second / rows - (first / rows) ** 2, 0.0)


def variance_rows(count: np.ndarray, within: np.ndarray, target: np.ndarray) -> float:
    """Return m, the rows of variance `target` [d] to be added to each variance `within` of `count` rows: two [C, d]."""
    rows = np.maximum(count, 0.0)
    scatter = rows * within / np.maximum(target, TINY)
    # The columns of a class have the same rows where no value is missing.
    alike = rows.shape[1] if rows.size and (rows == rows[:, :1]).all() else 1
    return wishart(rows.ravel(), scatter.reshape(-1, 1), alike)


def wishart(rows: np.ndarray, eigenvalues: np.ndarray, alike: int = 1) -> float:
    """Return m, the rows of identity covariance to be added to each scatter, given its eigenvalues: [M], [M, d].

    alike  so many scatters in a row are known to have the same rows
    """
    d = eigenvalues.shape[-1]
    freedom = np.maximum(rows - 1.0, 0.0)
    varying = eigenvalues > CONSTANT * np.maximum(rows, 1.0)[:, None]
    all_vary = bool(varying.all())
    size = np.full(rows.size, d)
    if not all_vary:
        rank = varying.sum(axis=-1)
        constant = rank < np.minimum(d, freedom)  # fewer directions than rows and columns allow
        varying |= ~constant[:, None]
        size = np.where(constant, rank, d)
    positive = np.maximum(eigenvalues, 0.0)
    # Many scatters have the same rows, above all those of one class's columns: functions of these are computed once.
    kind_freedom, kind_size = freedom[::alike], size[::alike]
    scatters = np.full(kind_freedom.size, float(alike))
    if not all_vary or kind_freedom.size > FEW_KINDS:
        kinds, scatters = np.unique(freedom + 1j * size, return_counts=True)
        kind_freedom, kind_size = kinds.real, kinds.imag.astype(np.int64)

    def evidence(strengths: np.ndarray) -> np.ndarray:
        m = strengths[:, None]
        logs = np.log(m[..., None] + positive)
        if not all_vary:
            logs = np.where(varying, logs, 0.0)
        logs = np.sum(logs, axis=-1) if d != 1 else logs[..., 0]
        prior = m + kind_size + 1.0
        before, after = _gammas(0.5 * np.stack([prior, prior + kind_freedom]), kind_size)
        gain = 0.5 * prior * kind_size * np.log(m) + (after - before)
        return gain @ scatters - 0.5 * np.sum((m + size + 1.0 + freedom) * logs, axis=-1)

    pieces = min(STRENGTHS.size, 1 + STRENGTHS.size * positive.size // EVIDENCE_ENTRIES)
    if pieces == 1:
        return float(strongest_of(evidence(STRENGTHS)))
    parts = [evidence(strengths) for strengths in np.array_split(STRENGTHS, pieces)]
    return float(strongest_of(np.concatenate(parts)))


def _gammas(value: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return log Γ_d(value), the multivariate gamma function, up to terms of d alone: [..., M], [M] -> [..., M].

    It is Σ log Γ(value − i/2), i < d, and log Γ(v) = log Γ(v + 1) − log v: two gamma functions and d logarithms, which
    take a tenth of the time of d gamma functions.
    """
    most = int(size.max(initial=0))
    if most <= 1:
        return gammaln(value) * size
    first = gammaln(value[..., None] - 0.5 * np.arange(2))
    steps = np.arange(2, most)
    if (size == most).all():
        logs = np.log(value[..., None] - 0.5 * steps)
        return first @ np.array([(most + 1) // 2, most // 2]) - logs @ ((most - steps + 1) // 2)
    below = np.where(steps < size[:, None], value[..., None] - 0.5 * steps, 1.0)
    # log Γ(v − i/2) is a start less the logarithms of all steps of 1 from it on: step i is in as many as follow.
    follow = np.where(steps < size[:, None], (size[:, None] - steps + 1) // 2, 0)
    starts = np.stack([(size + 1) // 2, size // 2], axis=-1)
    return np.sum(first * starts, axis=-1) - np.sum(follow * np.log(below), axis=-1)


def regression(m: float, rows: np.ndarray, correlation: np.ndarray) -> np.ndarray:
    """Return the evidence of m rows of independence in the regressions of columns on q parents, by class: [C].

    rows         of each class: [C]
    correlation  of each column (first) and its parents, within the class: [C, G, 1 + q, 1 + q]
    """
    count = rows[:, None, None, None]
    among, across = correlation[..., 1:, 1:], correlation[..., 1:, :1]
    identity = np.eye(among.shape[-1])

    def unexplained(extra: float | np.ndarray) -> np.ndarray:
        ridge = np.linalg.solve(count * among + extra * identity, across)
        return 1.0 - np.sum(count * across * ridge, axis=(-2, -1))

    logdet = np.linalg.slogdet(count * among + m * identity)[1]
    gain = 0.5 * (among.shape[-1] * np.log(m) - logdet)
    gain -= 0.5 * np.maximum(rows - 1.0, 0.0)[:, None] * np.log(np.maximum(unexplained(m), CONSTANT))
    constant = unexplained(CONSTANT * np.maximum(count, 1.0)) < 2 * CONSTANT
    return np.sum(np.where(constant, 0.0, gain), axis=-1)


def configurations(totals: np.ndarray, distances: np.ndarray, scatters: np.ndarray) -> np.ndarray:
    """Return m, the rows with the moments of the class to be added to each configuration of discrete parents: [...].

    totals     rows of each configuration: [..., configurations]
    distances  of their means from the class's: [..., configurations, d]
    scatters   within them, Σ(x − mean)(x − mean)ᵀ: [..., configurations, d, d]

    The unit of both is the class's covariance.
    """
    d = distances.shape[-1]
    rows = np.maximum(totals, 1.0)[..., None, None]
    identity = np.eye(d)
    constant = (totals > d) & (np.linalg.det(scatters / rows + 1e-300 * identity) < CONSTANT)
    between = distances[..., :, None] * distances[..., None, :]

    def evidence(m: float) -> np.ndarray:
        prior = m + d + 1.0
        shared = (m * totals / (m + totals))[..., None, None]
        logdet = np.linalg.slogdet(m * identity + scatters + shared * between)[1]
        gain = multigammaln(0.5 * (prior + totals), d) - multigammaln(0.5 * prior, d)
        gain = (
            gain
            + 0.5 * d * np.log(m / (m + totals))
            + 0.5 * prior * d * np.log(m)
            - 0.5 * (prior + totals) * logdet
        )
        return np.sum(np.where(constant, 0.0, gain), axis=-1)

    return strongest(evidence)
