"""Contributions of the columns to log p(x_obs, c), for rows with missing values."""

from __future__ import annotations

import numpy as np

from peerbayes.completion.rows import complete
from peerbayes.families.base import LOG_2PI, Family, Rows
from peerbayes.families.gaussian import Gaussian
from peerbayes.families.structures import order


def contributions(family: Family, stats: np.ndarray, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return a baseline [C] and a term per column [n, C, D] that add up to log p(x_obs, c), missing values or not.

    Complete rows use the family's own `contributions`. In others,

    Bayesian networks   x_j: log p(x_j | the observed columns before it, c), parents first; missing: 0
    QDA, LDA            x_j: −½ δ_j (Σ_oo⁻¹ δ_o)_j, o the observed columns; missing: an equal share of the change of the
                        determinant from Σ to Σ_oo, since the baseline has that of Σ
    """
    incomplete = family.incomplete(rows)
    if not incomplete.any():
        return family.contributions(stats, rows)
    gaps = Rows(rows.values[incomplete], rows.codes[incomplete])
    filled = Rows(
        np.where(incomplete[:, None], 0.0, rows.values), np.where(incomplete[:, None], -1, rows.codes)
    )
    baseline, terms = family.contributions(stats, filled)
    if isinstance(family, Gaussian):
        terms[incomplete] = _marginal(family, stats, gaps)
    else:
        terms[incomplete] = _chain(family, stats, gaps, baseline)
    return baseline, terms


def _chain(family: Family, stats: np.ndarray, rows: Rows, baseline: np.ndarray) -> np.ndarray:
    """Return log p(x_1 … x_j, c) − log p(x_1 … x_{j−1}, c) of the columns, parents first: [n, C, D]."""
    weights = family.weights(stats)
    d = family.continuous
    values, codes = np.full_like(rows.values, np.nan), np.full_like(rows.codes, -1)
    terms = np.empty((len(values), len(stats), d + codes.shape[1]))
    previous = np.broadcast_to(baseline, terms.shape[:2])
    for column in order(family.parents):  # type: ignore[attr-defined]
        if column < d:
            values[:, column] = rows.values[:, column]
        else:
            codes[:, column - d] = rows.codes[:, column - d]
        joint = complete(family, Rows(values, codes)).log_joint(weights)
        terms[:, :, column], previous = joint - previous, joint
    return terms


def _marginal(family: Gaussian, stats: np.ndarray, rows: Rows) -> np.ndarray:
    """Return the terms of QDA and LDA from the covariances of the observed columns: [n, C, D]."""
    _, mean, covariance, log_cells = family.parameters(stats)
    terms = np.zeros((len(rows.values), len(stats), family.continuous + rows.codes.shape[1]))
    _, logdet = np.linalg.slogdet(covariance)
    for i, x in enumerate(rows.values):
        present = np.flatnonzero(~np.isnan(x))
        absent = np.flatnonzero(np.isnan(x))
        observed = covariance[:, present[:, None], present]
        offset = x[present] - mean[:, present]
        whitened = np.linalg.solve(observed, offset[..., None])[..., 0]
        terms[i][:, present] = -0.5 * offset * whitened
        if absent.size:
            difference = 0.5 * (logdet - np.linalg.slogdet(observed)[1] + absent.size * LOG_2PI)
            terms[i][:, absent] = (difference / absent.size)[:, None]
    terms[..., family.continuous :] = family.cell_contributions(log_cells, rows.codes)
    return terms
