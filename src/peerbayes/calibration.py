"""Learning from statistics: maximum likelihood, MAP, and risk-based calibration (RC).

    ML      W = θ(YᵀΦ)
    MAP     W = θ(YᵀΦ + prior)                         the prior is a statistic
    RC      S ← S + lr·R(S),   R(S) = (Y − P)ᵀΦ        from a start of equivalent sample size m⁰

Σ_c R_c = 0, so the class sums of S stay at those of the start, which decides what can be learnt. Rows with completed
values move them a little: see `completion`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from peerbayes.expectation import IncompleteData, maximise
from peerbayes.families.base import Family
from peerbayes.passes import Data, repeated

Keep = Literal["best", "last"]
STARTS = ("uniform", "marginal", "ml")

# Called after every iteration with its number, soft error and 0-1 error; a true return value ends the calibration.
Callback = Callable[[int, float, float], object]


@dataclass(frozen=True)
class Calibrated:
    """The result of calibration: the statistics kept, and the training errors of every iterate."""

    stats: np.ndarray  # [C, K]
    kept: int  # the iteration of `stats`; 0 is the start
    soft_error: np.ndarray  # [T + 1] mean of 1 − p(y|x)
    error: np.ndarray  # [T + 1] share of rows misclassified

    def history(self) -> Any:
        """Return the errors of every iterate as a DataFrame."""
        import pandas as pd

        iterations = np.arange(self.error.size)
        return pd.DataFrame({"iteration": iterations, "soft_error": self.soft_error, "error": self.error})


def maximum_likelihood(data: Data) -> np.ndarray:
    """Return S = YᵀΦ [C, K]: θ(S) are the maximum-likelihood weights, θ(S + prior) the MAP ones."""
    return data.statistics()


def start_statistics(
    start: str | np.ndarray, family: Family, classes: int, mass: float, ml: np.ndarray | None = None
) -> np.ndarray:
    """Return S⁰ [C, K] with the equivalent sample size m⁰ = `mass`; all but "uniform" need `ml` = YᵀΦ.

    uniform   equal classes, equal cells, mean 0 and variance 1: the paper's
    marginal  S⁰_c = (m⁰/C)·φ̄, φ̄ the mean of φ over all rows: uniform in y for every x, and true to p(x)
    ml        S⁰ = (m⁰/m)·YᵀΦ
    an array  a user's own [C, K], scaled to m⁰ rows
    """
    if isinstance(start, str) and start not in STARTS:
        raise ValueError(f"start is {start!r}; expected one of {', '.join(STARTS)}, or statistics")
    if isinstance(start, str) and start == "uniform":
        return family.uniform(classes, mass)
    stats = ml if isinstance(start, str) else start
    if stats is None:
        raise ValueError(f"the {start} start needs the statistics of the rows")
    if stats.shape != (classes, family.size):
        raise ValueError(f"start has shape {stats.shape}; expected {(classes, family.size)}")
    rows = stats[:, 0].sum()
    if not rows > 0:
        raise ValueError(f"start has the weight of {rows} rows; expected more than 0")
    if isinstance(start, str) and start == "marginal":
        stats = np.tile(stats.sum(axis=0) / classes, (classes, 1))
    return stats * (mass / rows)


def beginning(
    start: str | np.ndarray, family: Family, data: Data | IncompleteData, classes: int, steps: int, tol: float
) -> np.ndarray:
    """Return S⁰ [C, K] for these rows; where values are missing, `ml` takes at most `steps` steps of `maximise`."""
    if not isinstance(start, str) or start == "uniform":
        return start_statistics(start, family, classes, data.mass)
    ml = (
        maximise(family, data, 0.0, steps, tol).stats
        if isinstance(data, IncompleteData)
        else data.statistics()
    )
    return start_statistics(start, family, classes, data.mass, ml)


def calibrate(
    family: Family,
    data: Data | IncompleteData,
    start: np.ndarray,
    *,
    lr: float = 0.05,
    max_iter: int = 64,
    keep: Keep = "best",
    patience: int | None = None,
    tol: float = 0.0,
    callback: Callback | None = None,
) -> Calibrated:
    """Run risk-based calibration from the statistics `start` [C, K].

    keep      "best": the iterate with the lowest soft 0-1 loss on the rows; "last": the last one
    patience  stop early after this many iterations in a row that lower the soft error by no more than `tol`
    """
    if keep not in ("best", "last"):
        raise ValueError(f"keep is {keep!r}; expected 'best' or 'last'")
    if not lr > 0:
        raise ValueError(f"lr is {lr}; expected a positive number (the paper's is 0.05)")
    if max_iter < 0:
        raise ValueError(f"max_iter is {max_iter}; expected 0 or more")
    data = data.repeated(max_iter + 1) if isinstance(data, IncompleteData) else repeated(data, max_iter + 1)
    stats = kept_stats = start
    kept_iteration, lowest, waited = 0, np.inf, 0
    soft_errors: list[float] = []
    errors: list[float] = []
    for iteration in range(max_iter + 1):
        residual, soft, error = data.evaluate(family.weights(stats))
        soft_errors.append(soft)
        errors.append(error)
        waited = 0 if soft < lowest - tol else waited + 1
        if soft < lowest or keep == "last":
            kept_stats, kept_iteration = stats, iteration
        lowest = min(lowest, soft)
        stop = callback is not None and bool(callback(iteration, soft, error))
        if stop or iteration == max_iter or (patience is not None and waited >= patience):
            break
        stats = stats + lr * residual
    return Calibrated(kept_stats, kept_iteration, np.array(soft_errors), np.array(errors))
