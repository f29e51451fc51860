"""log p(x_obs, c) of rows with values missing, taken apart by columns."""

from __future__ import annotations

import numpy as np

from peerbayes.completion.rows import complete
from peerbayes.families.base import LOG_2PI, Family, Rows
from peerbayes.families.gaussian import Gaussian
from peerbayes.families.structures import order


def contributions(family: Family, stats: np.ndarray, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """A baseline [C] and a term per column [n, C, D] that add up to log p(x_obs, c), gaps or not.

    Rows without gaps are the family's own business. In others,

    Bayesian networks   x_j: log p(x_j | what is present of the columns before it, c), parents first; missing: 0
    QDA, LDA            x_j: −½ δ_j (Σ_oo⁻¹ δ_o)_j, o the columns present; missing: an even share of what the smaller
                        determinant changes, which is in the baseline for all columns
    """
    holed = family.incomplete(rows)
    if not holed.any():
        return family.contributions(stats, rows)
    gaps = Rows(rows.values[holed], rows.codes[holed])
    filled = Rows(np.where(holed[:, None], 0.0, rows.values), np.where(holed[:, None], -1, rows.codes))
    baseline, terms = family.contributions(stats, filled)
    if isinstance(family, Gaussian):
        terms[holed] = _marginal(family, stats, gaps)
    else:
        terms[holed] = _chain(family, stats, gaps, baseline)
    return baseline, terms


def _chain(family: Family, stats: np.ndarray, rows: Rows, baseline: np.ndarray) -> np.ndarray:
    """log p(x_1 … x_j, c) − log p(x_1 … x_{j−1}, c) of the columns in order, parents first: [n, C, D]."""
    weights = family.weights(stats)
    d = family.continuous
    values, codes = np.full_like(rows.values, np.nan), np.full_like(rows.codes, -1)
    terms = np.empty((len(values), len(stats), d + codes.shape[1]))
    before = np.broadcast_to(baseline, terms.shape[:2])
    for column in order(family.parents):  # type: ignore[attr-defined]
        if column < d:
            values[:, column] = rows.values[:, column]
        else:
            codes[:, column - d] = rows.codes[:, column - d]
        now = complete(family, Rows(values, codes)).log_joint(weights)
        terms[:, :, column], before = now - before, now
    return terms


def _marginal(family: Gaussian, stats: np.ndarray, rows: Rows) -> np.ndarray:
    _, mean, covariance, log_cells = family.parameters(stats)
    terms = np.zeros((len(rows.values), len(stats), family.continuous + rows.codes.shape[1]))
    _, whole = np.linalg.slogdet(covariance)
    for i, x in enumerate(rows.values):
        present = np.flatnonzero(~np.isnan(x))
        absent = np.flatnonzero(np.isnan(x))
        part = covariance[:, present[:, None], present]
        offset = x[present] - mean[:, present]
        whitened = np.linalg.solve(part, offset[..., None])[..., 0]
        terms[i][:, present] = -0.5 * offset * whitened
        if absent.size:
            changed = 0.5 * (whole - np.linalg.slogdet(part)[1] + absent.size * LOG_2PI)
            terms[i][:, absent] = (changed / absent.size)[:, None]
    terms[..., family.continuous :] = family.cell_contributions(log_cells, rows.codes)
    return terms
