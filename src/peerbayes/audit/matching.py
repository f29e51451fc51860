"""Which rows of a peer an attack has recovered: every value of a row right, each guess for one row only."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from peerbayes.families import Rows

# A continuous value counts as recovered within this many standard deviations.
NEAR = 0.05


def matched(found: Rows, truth: Rows) -> np.ndarray:
    """Which guess stands for each true row, −1 where none does: [g, …], [m, …] -> [m].

    A guess stands for a row where every continuous value is within 0.05 standard deviations and every discrete one is
    right; a missing value must be missing in both. Guesses are given to rows so that as many rows as possible get one.
    """
    agrees = _near(found, truth)  # [m, g]
    row, guess = linear_sum_assignment(~agrees)
    place = np.full(len(truth.values), -1)
    kept = agrees[row, guess]
    place[row[kept]] = guess[kept]
    return place


def _near(found: Rows, truth: Rows) -> np.ndarray:
    """Whether guess g agrees with row m in every value: [m, g]."""
    agrees = np.ones((len(truth.values), len(found.values)), dtype=bool)
    for told, true in zip(np.asarray(found.values).T, np.asarray(truth.values).T, strict=True):
        absent = np.isnan(true)[:, None] & np.isnan(told)[None, :]
        agrees &= absent | (np.abs(true[:, None] - told[None, :]) <= NEAR)
    for told, true in zip(np.asarray(found.codes).T, np.asarray(truth.codes).T, strict=True):
        agrees &= np.maximum(true, -1)[:, None] == np.maximum(told, -1)[None, :]
    return agrees
