"""Learning from statistics: expectation-maximisation where values are missing, and risk-based calibration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np

from peerbayes.data.schema import Schema
from peerbayes.errors import SchemaError
from peerbayes.model.families.base import Family
from peerbayes.model.missing import alone
from peerbayes.model.passes import Data, Evaluated, IncompleteData
from peerbayes.model.residuals import TableResidual, residual_beside, residual_of

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


def likelihood(data: Data | IncompleteData) -> np.ndarray:
    """Return YᵀΦ of the rows, kept beside a calibrated model; by a few steps where values are missing: [C, K]."""
    if isinstance(data, IncompleteData):
        return maximise(data.family, data, 0.0, AGREED_STEPS, 0.0).stats
    return data.statistics()


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
Step = Literal["adaptive", "fixed"]
STARTS = ("uniform", "marginal", "ml")

# Called after every iteration with its number, soft error and 0-1 error; a true return value ends the calibration.
Callback = Callable[[int, float, float], object]


@dataclass(frozen=True)
class Calibrated:
    """The result of calibration: the statistics kept, and the losses of every iterate on training rows.

    Where rows were held out, the losses are means over the folds, and `stats` those of all rows after as many steps.
    """

    stats: np.ndarray  # [C, K]
    kept: int  # the iteration of `stats`; 0 is the start
    soft_error: np.ndarray  # [T + 1] mean of 1 − p(y|x)
    error: np.ndarray  # [T + 1] share of rows misclassified
    log_loss: np.ndarray  # [T + 1] mean of −log p(y|x)
    held_out: np.ndarray | None = None  # [T + 1] log loss of held-out rows
    fold_stats: tuple[np.ndarray, ...] = ()  # the iterate kept, of each fold: [C, K]

    def history(self) -> Any:
        """Return the losses of every iterate as a DataFrame."""
        import pandas as pd

        losses = {"soft_error": self.soft_error, "error": self.error, "log_loss": self.log_loss}
        held_out = {} if self.held_out is None else {"held_out_log_loss": self.held_out}
        return pd.DataFrame({"iteration": np.arange(self.error.size), **losses, **held_out})


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
        stats = np.broadcast_to(evened(start, family, shared_out(start, stats, classes)), stats.shape)
    return stats * (mass / rows)


def shared_out(start: str, sums: np.ndarray, classes: int, divisor: float = 1.0) -> np.ndarray:
    """Return S⁰ of the starts ml [..., C, K] and marginal [..., 1, K], the same in each class, from YᵀΦ / divisor.

    sums: [..., C, K], or [..., 1, K] already summed over classes.
    """
    if start == "marginal":
        return sums.sum(axis=-2, keepdims=True) / (divisor * classes)
    return sums / divisor


def evened(start: str, family: Family, stats: np.ndarray) -> np.ndarray:
    """Return S⁰ of all rows as a family takes it, from `shared_out`: it evens the start `marginal`. [..., K]."""
    return np.asarray(family.evened(stats)) if start == "marginal" else stats


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


# --- the steps of calibration: S ← S + η·D
#
# fixed      η = lr and D = R: the paper's
# adaptive   conjugate directions. R is minus the gradient of the log loss in W, and with J = ∂θ/∂S a change D of S
#            changes W by J·D, so that ⟨R, J·D⟩ is how fast the log loss falls. After a step from S, R to S′, R′
#
#                D ← R′ + β·D,                    β = η ⟨R′ − R, J·R′⟩ / ⟨R − R′, W′ − W⟩, at least 0
#                η ← ⟨R′, J·D⟩ / (c ⟨D, J·D⟩),    c = ⟨R − R′, W′ − W⟩ / ⟨S′ − S, W′ − W⟩, the curvature
#
#            and η at most doubles. A step after which the log loss is not lower is not taken: η is halved, and after
#            two of them in a row D is R again. So the log loss never rises, however large lr is. For a family with a
#            penalty S changes by M·D in place of D, and J·M takes the place of J: see `Family.conditioned`.
#
# Both yield S and what it is worth after each evaluation, of which a step back is one too.

Iterates = Iterator[tuple[np.ndarray, Evaluated]]


def fixed_steps(rows: TableResidual, stats: np.ndarray, lr: float) -> Iterates:
    """Yield S and its evaluation after each step of the paper's: [C, K]."""
    while True:
        evaluated = rows.evaluate(stats)
        yield stats, evaluated
        stats = stats + lr * rows.family.conditioned(stats, evaluated.residual)


def adaptive_steps(rows: TableResidual, stats: np.ndarray, lr: float) -> Iterates:
    """Yield S and its evaluation after each adaptive step or step back: [C, K]."""
    weights = rows.weights(stats)
    evaluated = rows.evaluate_weights(weights)
    direction, step, rises = evaluated.residual, lr, 0
    while True:
        yield stats, evaluated
        trial = stats + step * rows.family.conditioned(stats, direction)
        trial_weights = rows.weights(trial)
        trial_evaluated = rows.evaluate_weights(trial_weights)
        if trial_evaluated.log_loss < evaluated.log_loss:
            before, change = evaluated.residual, trial_weights - weights
            stats, weights, evaluated = trial, trial_weights, trial_evaluated
            tangent = _tangent(rows, stats, weights, rows.family.conditioned(stats, evaluated.residual))
            direction, step = _conjugate(before, evaluated.residual, change, tangent, direction, step)
            rises = 0
        else:
            step, rises = step / 2, rises + 1
            direction = evaluated.residual if rises == 2 else direction


def _tangent(
    rows: TableResidual, stats: np.ndarray, weights: np.ndarray, direction: np.ndarray
) -> np.ndarray:
    """Return J·D by a difference of θ, given W = θ(S): [C, K]."""
    largest = np.abs(direction).max()
    if largest == 0:
        return np.zeros(weights.shape)
    tiny = 1e-6 * np.abs(stats).max() / largest
    return (rows.weights(stats + tiny * direction) - weights) / tiny


def _conjugate(
    before: np.ndarray,
    after: np.ndarray,
    change: np.ndarray,
    tangent: np.ndarray,
    direction: np.ndarray,
    step: float,
) -> tuple[np.ndarray, float]:
    """Return the next D and η, from R, R′, W′ − W, J·R′, and the last D and η."""
    bend, length = float(np.sum((before - after) * change)), step * float(np.sum(direction * change))
    if not (bend > 0 and length > 0):  # the log loss falls ever faster
        return after, 2 * step
    share = max(0.0, step * float(np.sum((after - before) * tangent)) / bend)
    turned, moved = after + share * direction, tangent + share / step * change
    slope, norm = float(np.sum(after * moved)), float(np.sum(turned * moved))
    if not (slope > 0 and norm > 0):  # no way down
        turned, slope, norm = after, 1.0, 1.0
    return turned, min(2 * step, slope / norm * (length / bend))


# --- calibration, to an end that is chosen on held-out rows

# An adaptive calibration has converged when the training log loss fell by less during so many evaluations.
CONVERGED, WINDOW = 3e-4, 8

# Evaluations in a row that do not lower the log loss of held-out rows, after which it ends: where `patience` is None.
HELD_OUT_PATIENCE = 16

# RC at its end, as parameters of `calibrate` and of estimators: where adaptive steps lead, whatever held-out rows say.
TO_THE_END: dict[str, Any] = {"step": "adaptive", "keep": "last", "max_iter": 512}


class Fold(NamedTuple):
    """Training rows, where they begin, and rows that are held out of them."""

    data: Data | IncompleteData
    start: np.ndarray  # [C, K]
    held_out: Data | IncompleteData | None = None


def calibrate(
    family: Family,
    data: Data | IncompleteData,
    start: np.ndarray,
    *,
    folds: Sequence[Fold] = (),
    lr: float = 0.05,
    max_iter: int = 64,
    step: Step = "adaptive",
    keep: Keep = "best",
    patience: int | None = None,
    tol: float = 0.0,
    callback: Callback | None = None,
) -> Calibrated:
    """Run risk-based calibration from the statistics `start` [C, K].

    folds     rows held out, to choose the number of steps by: the folds are calibrated first, side by side, and then
              all rows take as many steps
    max_iter  the most evaluations of the residual after that of the start, steps back included
    keep      "best": the iterate with the lowest log loss, on held-out rows if there are any; "last": the last one
    patience  stop early after this many iterations in a row that lower this log loss by no more than `tol`
    """
    if keep not in ("best", "last"):
        raise ValueError(f"keep is {keep!r}; expected 'best' or 'last'")
    if step not in ("adaptive", "fixed"):
        raise ValueError(f"step is {step!r}; expected 'adaptive' or 'fixed'")
    if not lr > 0:
        raise ValueError(f"lr is {lr}; expected a positive number (the paper's is 0.05)")
    if max_iter < 0:
        raise ValueError(f"max_iter is {max_iter}; expected 0 or more")
    if patience is None:
        patience = HELD_OUT_PATIENCE if folds else max_iter + 1
    kept: tuple[np.ndarray, ...] = (start,)
    kept_iteration, lowest, waited = 0, np.inf, 0
    losses: list[tuple[float, ...]] = []
    iterates = _side_by_side(family, folds or (Fold(data, start),), step, lr, max_iter)
    for iteration, (stats, (soft, error, log_loss), selected) in enumerate(islice(iterates, max_iter + 1)):
        losses.append((soft, error, log_loss, selected))
        waited = 0 if selected < lowest - tol else waited + 1
        if selected < lowest or keep == "last":
            kept, kept_iteration = stats, iteration
        lowest = min(lowest, selected)
        stop = callback is not None and bool(callback(iteration, soft, error))
        converged = (
            step == "adaptive" and iteration >= WINDOW and losses[-1 - WINDOW][2] - log_loss < CONVERGED
        )
        if stop or converged or waited >= patience:
            break
    soft_errors, errors, log_losses, held_out = np.array(losses).T
    if not folds:
        return Calibrated(kept[0], kept_iteration, soft_errors, errors, log_losses)
    last = calibrate(family, data, start, lr=lr, max_iter=kept_iteration, step=step, keep="last")
    return Calibrated(last.stats, kept_iteration, soft_errors, errors, log_losses, held_out, kept)


def _side_by_side(
    family: Family, folds: Sequence[Fold], step: Step, lr: float, max_iter: int
) -> Iterator[tuple[tuple[np.ndarray, ...], tuple[float, ...], float]]:
    """Yield S of each fold after each evaluation, the means of their training losses, and the loss to select by."""
    steps = adaptive_steps if step == "adaptive" else fixed_steps
    training = [residual_of(fold.data, family, max_iter + 1) for fold in folds]
    courses = [steps(rows, fold.start, lr) for rows, fold in zip(training, folds, strict=True)]
    if folds[0].held_out is None:
        for stats, evaluated in courses[0]:
            yield (stats,), evaluated[1:], evaluated.log_loss
    held_out = [
        residual_beside(rows, fold.held_out, max_iter + 1)
        for rows, fold in zip(training, folds, strict=True)
        if fold.held_out
    ]
    training_shares, shares = (_shares([rows.data for rows in side]) for side in (training, held_out))
    seen: list[Any] = [None] * len(folds)
    held_out_losses = np.zeros(len(folds))
    for iterates in zip(*courses, strict=True):
        for fold, (stats, _) in enumerate(iterates):
            if stats is not seen[fold]:  # after a step back it is
                held_out_losses[fold] = held_out[fold].evaluate(stats).log_loss
                seen[fold] = stats
        losses = training_shares @ np.array([evaluated[1:] for _, evaluated in iterates])
        yield tuple(seen), tuple(losses.tolist()), float(shares @ held_out_losses)


def _shares(rows: Sequence[Data | IncompleteData]) -> np.ndarray:
    """Return the weights of folds in their mean: [F]."""
    masses = np.array([data.mass for data in rows])
    return masses / masses.sum()
