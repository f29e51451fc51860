"""Match guesses to a peer's rows: every value must be right, and each guess counts for one row only."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from peerbayes.families import Rows

# A continuous value counts as recovered within this many standard deviations.
NEAR = 0.05


def matched(guesses: Rows, truth: Rows) -> np.ndarray:
    """Return the index of the guess matched to each true row, −1 where there is none: [g, …], [m, …] -> [m].

    A guess matches a row where every continuous value is within 0.05 standard deviations and every discrete one is
    right; a missing value must be missing in both. Guesses are assigned so that as many rows as possible have one.
    """
    agrees = _near(guesses, truth)  # [m, g]
    row, guess = linear_sum_assignment(~agrees)
    guess_index = np.full(len(truth.values), -1)
    matches = agrees[row, guess]
    guess_index[row[matches]] = guess[matches]
    return guess_index


def _near(guesses: Rows, truth: Rows) -> np.ndarray:
    """Return whether guess g agrees with row m in every value: [m, g]."""
    agrees = np.ones((len(truth.values), len(guesses.values)), dtype=bool)
    for guess, true in zip(np.asarray(guesses.values).T, np.asarray(truth.values).T, strict=True):
        absent = np.isnan(true)[:, None] & np.isnan(guess)[None, :]
        agrees &= absent | (np.abs(true[:, None] - guess[None, :]) <= NEAR)
    for guess, true in zip(np.asarray(guesses.codes).T, np.asarray(truth.codes).T, strict=True):
        agrees &= np.maximum(true, -1)[:, None] == np.maximum(guess, -1)[None, :]
    return agrees
