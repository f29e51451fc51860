"""The prior of a Bayesian network that its own statistics ask for: see `evidence`.

    all classes → class → configuration of the parents

A column's variance in a class leans on that over all classes, its cells in a class on equal shares. What it does in one
configuration of its parents leans on what it does in the class, by as many rows as that class and column ask for: a
dependence that the rows do not support is shrunk to none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from peerbayes.model.families.evidence import (
    CONSTANT,
    TINY,
    configurations,
    dirichlet,
    regression,
    strongest,
    variance_rows,
    variances,
)


class Moments(NamedTuple):
    """The statistics of continuous columns of one shape."""

    indices: np.ndarray  # [G, configurations, 2 + q, 2 + q] of Σuuᵀ in φ, u = (1, x_j, x_Q)
    columns: np.ndarray  # [G, 1 + q] the numbers of j and Q
    split: bool  # whether they have discrete parents, by whose configurations their statistics are kept


def estimated(
    stats: np.ndarray, tables: list[np.ndarray], groups: list[Moments], alpha: float | str, shrinkage: bool
) -> np.ndarray:
    """Return the prior of S: [C, K] -> [C, K]; without `shrinkage` that of the cells alone.

    tables  indices of the cells of discrete columns of one shape: [G, configurations, r] each
    """
    prior = np.zeros(stats.shape)
    for indices in tables:
        cells = np.clip(stats[:, indices], 0.0, None)  # [C, G, configurations, r]
        prior[:, indices] = _cell_prior(cells, alpha, shrinkage and indices.shape[1] > 1)
    if shrinkage and groups:
        _add_moments(stats, groups, prior)
    return prior


def _cell_prior(cells: np.ndarray, alpha: float | str, dependent: bool) -> np.ndarray:
    """Return the prior of tables of one shape: [C, G, configurations, r], or fewer configurations where they agree."""
    classes, columns, _, size = cells.shape
    shared = cells.sum(axis=2, keepdims=True) if dependent else cells
    column = np.arange(columns)[None, :, None, None]
    if alpha == "auto":
        equal = np.full(shared.shape, 1.0 / size)
        even = (_strengths(shared, equal, column, columns) / size)[:, None, None]
    else:
        even = np.full((columns, 1, 1), float(alpha))
    if not dependent:
        return np.broadcast_to(even, cells.shape)
    smoothed = shared + np.maximum(even, TINY)
    base = smoothed / smoothed.sum(axis=-1, keepdims=True)
    group = column + columns * np.arange(classes)[:, None, None, None]
    rows = _strengths(cells, np.broadcast_to(base, cells.shape), group, classes * columns)
    return rows.reshape(classes, columns, 1, 1) * base


def _strengths(cells: np.ndarray, base: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """Return the strength of the prior `base` for each group of tables: two [C, G, configurations, r] -> [groups]."""
    totals = cells.sum(axis=-1)
    group_of_cell = np.broadcast_to(group, cells.shape).ravel()
    group_of_total = np.broadcast_to(group[..., 0], totals.shape).ravel()
    return dirichlet(cells.ravel(), base.ravel(), group_of_cell, totals.ravel(), group_of_total, groups)


def _add_moments(stats: np.ndarray, groups: list[Moments], prior: np.ndarray) -> None:
    """Write the prior of the continuous columns into `prior` [C, K]."""
    blocks = [stats[:, group.indices] for group in groups]  # [C, G, configurations, 2 + q, 2 + q]
    sums = [block.sum(axis=2) for block in blocks]
    count, first, second = (
        np.concatenate([block[..., i, j] for block in sums], axis=1) for i, j in ((0, 0), (0, 1), (1, 1))
    )
    within, target = variances(count, first, second)
    m = variance_rows(count, within, target)
    variance = np.zeros(target.size)  # by the number of the column
    variance[np.concatenate([group.columns[:, 0] for group in groups])] = target
    classes = [_leaning(block, variance[group.columns], m) for block, group in zip(sums, groups, strict=True)]
    rows = np.maximum(stats[:, 0], 0.0)
    linear = [covariance for (_, covariance), group in zip(classes, groups, strict=True) if not group.split]
    factor = _independence(rows, linear)[:, None, None, None]
    for group, block, (mean, covariance) in zip(groups, blocks, classes, strict=True):
        if group.split:
            prior[:, group.indices] = _configuration_prior(block, mean, covariance)
        else:
            shrunk = np.where(np.eye(covariance.shape[-1], dtype=bool), covariance, covariance * factor)
            moments = rows[:, None, None, None] * (shrunk + mean[..., :, None] * mean[..., None, :])
            prior[:, group.indices[:, 0, 1:, 1:]] = moments - block[:, :, 0, 1:, 1:]


def _leaning(sums: np.ndarray, target: np.ndarray, m: float) -> tuple[np.ndarray, np.ndarray]:
    """Return means and covariances within classes, with m rows of independent columns: [C, G, d], [C, G, d, d].

    sums    Σuuᵀ, u = (1, x_j, x_Q): [C, G, 1 + d, 1 + d]
    target  the variances of these rows: [G, d]
    """
    count = np.maximum(sums[..., :1, 0], 0.0)  # [C, G, 1]
    mean = sums[..., 0, 1:] / np.maximum(count, TINY)
    scatter = sums[..., 1:, 1:] - count[..., None] * mean[..., :, None] * mean[..., None, :]
    independent = np.maximum(target, CONSTANT)[..., None] * np.eye(target.shape[-1])
    return mean, (scatter + m * independent) / (count[..., None] + m)


def _independence(rows: np.ndarray, covariances: list[np.ndarray]) -> np.ndarray:
    """Return the factor n/(n + m) of all covariances of a class's linear regressions: [C], [C, G, d, d] -> [C]."""
    correlations = []
    for covariance in covariances:
        if covariance.shape[-1] > 1:
            deviation = np.sqrt(np.maximum(np.linalg.diagonal(covariance), CONSTANT))
            correlations.append(covariance / (deviation[..., :, None] * deviation[..., None, :]))
    if not correlations:
        return np.ones(rows.size)
    m = strongest(
        lambda strength: np.sum(
            [regression(strength, rows, correlation) for correlation in correlations], axis=0
        )
    )
    return rows / (rows + m)


def _configuration_prior(block: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Return m·E[uuᵀ | class] for each class and column, by its evidence: [C, G, 1, u, u].

    block  Σuuᵀ of each configuration: [C, G, configurations, u, u]
    """
    totals = np.maximum(block[..., 0, 0], 0.0)
    means = block[..., 0, 1:] / np.maximum(totals, TINY)[..., None]
    scatters = block[..., 1:, 1:] - totals[..., None, None] * means[..., :, None] * means[..., None, :]
    root = np.linalg.inv(np.linalg.cholesky(covariance))[
        :, :, None
    ]  # the class's covariance becomes the unit
    distances = (root @ (means - mean[:, :, None])[..., None])[..., 0]
    m = configurations(totals, distances, root @ scatters @ root.mT)
    expected = np.empty((*covariance.shape[:2], 1, *block.shape[-2:]))
    expected[..., 0, 0] = 1.0
    expected[..., 0, 1:] = expected[..., 1:, 0] = mean[:, :, None]
    expected[..., 1:, 1:] = (covariance + mean[..., :, None] * mean[..., None, :])[:, :, None]
    return m[..., None, None, None] * expected
