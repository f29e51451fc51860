"""How strongly an additive model holds cells together: the strength of largest evidence, from sums that peers agree on.

The log-odds of class c in the cells of a column have a normal prior of precision Q, for cells without an order, and for
bins whose neighbours are alike (a random walk, as in P-splines):

    Q = κ I                      Q = ρ I + λ DᵀD          D: differences of neighbours, ρ small

With g = n_ck − n_k π_c and h = n_k π_c(1 − π_c), the first two derivatives of the log loss where nothing is known of x
but its cell, its evidence is to second order

    log p(y | Q) = const + ½ Σ_c [ log|Q| − log|Q + diag h_c| + g_cᵀ(Q + diag h_c)⁻¹ g_c ]

It needs YᵀΦ alone. A column of which others tell the same has less of its own than this: κ and λ are `TOGETHER` times
as strong.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from peerbayes.data.schema import Schema
from peerbayes.model.families.base import RIDGE

# The strengths that are compared, in rows.
STRENGTHS = 2.0 ** np.arange(-4, 10)

# Columns share what they tell of the class. Chosen on seeds 101 and 102 of the paper's tabular datasets.
TOGETHER = 2.0


def with_column_penalties(schema: Schema, sums: np.ndarray) -> Schema:
    """Return the schema with the penalty of each column of cells, from YᵀΦ of all rows: [C, K].

    sums  without the cells of crosses
    """
    columns = list(schema.columns)
    for j, counts in cell_counts(schema, sums).items():
        strength = column_penalty(counts, columns[j].traits.reads_numbers)
        columns[j] = replace(columns[j], penalty=strength)
    return replace(schema, columns=tuple(columns))


def cell_counts(schema: Schema, sums: np.ndarray) -> dict[int, np.ndarray]:
    """Return how many rows of each class lie in each cell of a column [C, r], by the column's position.

    sums  YᵀΦ without the cells of crosses: [C, K], whose last features are the cells
    """
    ends = np.cumsum([schema.columns[j].cells for j in schema.discrete])
    cells = np.clip(sums[:, sums.shape[1] - int(ends[-1] if ends.size else 0) :], 0.0, None)
    return dict(zip(schema.discrete, np.split(cells, ends[:-1], axis=1), strict=False))


def column_penalty(counts: np.ndarray, ordered: bool) -> float:
    """Return κ of a column of cells, or λ of one whose cells have an order, from its counts: [C, r]."""
    if counts.shape[1] < 2 or not counts.sum() > 0:
        return 0.0
    return TOGETHER * float(STRENGTHS[evidence(counts, ordered).argmax()])


def evidence(counts: np.ndarray, ordered: bool) -> np.ndarray:
    """Return the log evidence of each of `STRENGTHS`, up to a constant: [C, r] -> [strengths]."""
    rows, prior = counts.sum(axis=0), counts.sum(axis=1, keepdims=True) / counts.sum()
    gradient, curvature = counts - prior * rows, prior * (1.0 - prior) * rows
    if not ordered:
        precision = STRENGTHS[:, None, None]
        posterior = precision + curvature
        return 0.5 * (np.log(precision / posterior) + gradient**2 / posterior).sum(axis=(1, 2))
    cells = rows.size
    steps = np.diff(np.eye(cells), axis=0)
    precision = RIDGE * np.eye(cells) + STRENGTHS[:, None, None] * (steps.T @ steps)
    values, free = np.zeros(STRENGTHS.size), np.linalg.slogdet(precision)[1]
    for of_class, spread in zip(gradient, curvature, strict=True):
        posterior = precision + np.diag(spread)
        solved = np.linalg.solve(posterior, np.broadcast_to(of_class[:, None], (STRENGTHS.size, cells, 1)))
        values += 0.5 * (of_class @ solved)[:, 0]
        values += 0.5 * (free - np.linalg.slogdet(posterior)[1])
    return values
