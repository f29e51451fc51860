"""Learning from statistics: expectation-maximisation where values are missing, and risk-based calibration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from peerbayes.data.schema import Schema
from peerbayes.errors import SchemaError
from peerbayes.model.families.base import Family
from peerbayes.model.missing import alone
from peerbayes.model.passes import Data, IncompleteData
from peerbayes.model.residuals import residual_of

# --- expectation-maximisation: maximum likelihood where values or labels are missing
#     S ← Σ_n y_n Φ̃_{y_n}(x_n; θ(S))            a row without a label counts in every class, by p(c | x_obs)
#
# The likelihood of the observed data never decreases. Rows with nothing missing are summed only once.

# Steps of expectation-maximisation that peers take together for the start of RC, each followed by a sum over peers.
AGREED_STEPS = 10


class Maximised(NamedTuple):
    """The result of expectation-maximisation."""

    stats: np.ndarray  # [C, K]
    objective: np.ndarray  # [T] per row, before each step: log likelihood plus log prior
    converged: bool


def maximise(
    family: Family, data: IncompleteData, prior: np.ndarray | float, iterations: int, tol: float
) -> Maximised:
    """Run expectation-maximisation until a step gains less than `tol` per row.

    It starts from independent columns, or from the labelled rows where these are complete. With a prior it is the
    posterior density that never decreases: Σ_n log p(x_obs, y) + ⟨prior, W⟩.
    """
    complete_stats = data.complete_statistics()
    start = alone(family, data.column_sums) if len(data.labels) else complete_stats
    objective: list[float] = []
    stats = start
    for _ in range(max(iterations, 1)):
        weights = family.weights(stats + prior)
        expected, log_likelihood = data.expected(weights, complete_stats)
        objective.append((log_likelihood + float(np.sum(prior * weights))) / data.mass)
        stats = expected
        if len(objective) > 1 and objective[-1] - objective[-2] < tol:
            return Maximised(stats, np.array(objective), True)
    return Maximised(stats, np.array(objective), False)


def maximise_likelihood(
    data: IncompleteData, prior: np.ndarray, variance_floor: float | None, iterations: int, tol: float
) -> Maximised:
    """Return S of maximum likelihood, or of maximum posterior density, by `maximise`.

    A missing parent or label makes the model a mixture, whose likelihood has no maximum: a variance that shrinks
    around one row raises it without bound. So the steps use the variance floor of calibration, unless one is given.
    """
    family = data.family
    if variance_floor is None:
        family = replace(family, variance_floor=family.calibrated_floor)
    return maximise(family, data, prior, iterations, tol)


def refuse_empty(data: IncompleteData, schema: Schema) -> None:
    """Refuse a column without any value: its dependence on others cannot be learned."""
    counts = data.column_sums[:, 1 : 1 + len(schema.continuous)].sum(axis=0)
    if (counts <= 0).any():
        name = schema.names[schema.continuous[int(np.argmax(counts <= 0))]]
        raise SchemaError(
            f"column {name!r} has no value in any training row with a label; leave it out, or use MixedNB"
        )


# --- learning from statistics: maximum likelihood, MAP, and risk-based calibration (RC)
#     ML      W = θ(YᵀΦ)
#     MAP     W = θ(YᵀΦ + prior)                         the prior is a statistic
#     RC      S ← S + lr·R(S),   R(S) = (Y − P)ᵀΦ        from a start of equivalent sample size m⁰
#
# Σ_c R_c = 0, so the class sums of S stay at those of the start, which decides what can be learnt. Rows with
# completed values move them a little: see `completion`.

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
    if isinstance(start, str):
        stats = np.broadcast_to(shared_out(start, stats, classes), stats.shape)
    return stats * (mass / rows)


def shared_out(start: str, sums: np.ndarray, classes: int, divisor: float = 1.0) -> np.ndarray:
    """Return S⁰ of the starts ml [..., C, K] and marginal [..., 1, K], the same in each class, from YᵀΦ / divisor.

    sums: [..., C, K], or [..., 1, K] already summed over classes.
    """
    if start == "marginal":
        return sums.sum(axis=-2, keepdims=True) / (divisor * classes)
    return sums / divisor


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
    residual_at = residual_of(data, family, max_iter + 1)
    stats = kept_stats = start
    kept_iteration, lowest, waited = 0, np.inf, 0
    soft_errors: list[float] = []
    errors: list[float] = []
    for iteration in range(max_iter + 1):
        residual, soft, error = residual_at.evaluate(stats)
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
