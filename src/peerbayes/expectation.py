"""Expectation-maximisation: maximum likelihood where values, or labels, are missing.

    S ← Σ_n y_n Φ̃_{y_n}(x_n; θ(S))            a row without a label counts in every class, by p(c | x_obs)

The likelihood of what was observed never decreases. Rows with nothing missing are summed once and for all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from peerbayes import core, passes
from peerbayes.completion import Completion, alone, apart, complete
from peerbayes.errors import SchemaError
from peerbayes.families.base import Family, Rows
from peerbayes.schema import Schema

# Steps that peers take together to a start, each followed by a sum over all of them: RC goes on from there.
AGREED_STEPS = 10


class Maximised(NamedTuple):
    """What expectation-maximisation gives."""

    stats: np.ndarray  # [C, K]
    objective: (
        np.ndarray
    )  # [T] per row, before each step: log likelihood, and what the prior says of the model
    converged: bool


@dataclass(frozen=True, eq=False)
class Gapped:
    """Rows of which some are incomplete or without a label; everything asked of them is at a given model W."""

    family: Family
    whole: passes.Data | None
    """Labelled rows that φ takes as they are."""
    holed: Completion
    labels: np.ndarray  # [n, C] one-hot times weight, of the labelled rows with gaps
    loose: Completion
    loose_weights: np.ndarray  # [u] of the rows without a label
    alone: np.ndarray  # [C, M] sums of each column alone, of all labelled rows

    @property
    def mass(self) -> float:
        """The weight of all rows."""
        return self.labelled_mass + float(self.loose_weights.sum())

    @property
    def labelled_mass(self) -> float:
        return (0.0 if self.whole is None else self.whole.mass) + float(self.labels.sum())

    def evaluate(self, weights: np.ndarray) -> passes.Evaluation:
        """R_c = Σ (y_c − p(c | x_obs)) Φ̃_c and the errors of W on the labelled rows."""
        joint = self.holed.log_joint(weights)
        posterior = core.softmax(joint)
        of_rows = self.labels.sum(axis=1, keepdims=True)
        residual, _ = self.holed.statistics(weights, self.labels - of_rows * posterior)
        best = core.one_hot(joint.argmax(axis=1), len(weights))
        soft, wrong = (float(np.sum(self.labels * (1.0 - credit))) for credit in (posterior, best))
        if self.whole is not None:
            found, mass = self.whole.evaluate(weights), self.whole.mass
            residual += found.residual
            soft, wrong = soft + mass * found.soft_error, wrong + mass * found.error
        return passes.Evaluation(residual, soft / self.labelled_mass, wrong / self.labelled_mass)

    def expected(self, weights: np.ndarray, complete: np.ndarray) -> tuple[np.ndarray, float]:
        """Σ_n y_n Φ̃ of all rows [C, K], and their log likelihood; `complete` are the statistics of the whole ones."""
        stats, told = self.holed.statistics(weights, self.labels)
        stats, told = stats + complete, told + float(np.sum(complete * weights))
        if self.loose_weights.size:
            joint = self.loose.log_joint(weights)
            credit = self.loose_weights[:, None] * core.softmax(joint)
            more, _ = self.loose.statistics(weights, credit)
            top = joint.max(axis=1)
            summed = top + np.log(np.exp(joint - top[:, None]).sum(axis=1))
            stats, told = stats + more, told + float(self.loose_weights @ summed)
        return stats, told

    def complete(self) -> np.ndarray:
        """S of the rows that are whole: [C, K]."""
        if self.whole is None:
            return np.zeros((self.labels.shape[1], self.family.size))
        return self.whole.statistics()

    def repeated(self, times: int) -> Gapped:
        """The same rows in the form that suits so many passes."""
        return self if self.whole is None else replace(self, whole=passes.repeated(self.whole, times))


def labelled(
    family: Family,
    source: passes.Source,
    labels: np.ndarray,
    classes: int,
    weights: np.ndarray | None = None,
    *,
    missing: bool,
) -> passes.Data | Gapped:
    """Rows with class indices [n], a negative one where there is no label; `missing`: whether values may be."""
    loose = labels < 0
    if not missing and not loose.any():
        return passes.labelled(family, source, labels, classes, weights)
    rows = passes.all_rows(source)
    holed = family.incomplete(rows) & ~loose
    if not (holed.any() or loose.any()):
        return passes.labelled(family, source, labels, classes, weights)
    of_rows = np.ones(len(labels)) if weights is None else weights
    credit = core.one_hot(labels, classes) * of_rows[:, None]
    kept = ~(holed | loose)
    whole = None
    if kept.any():
        part: passes.Source = passes.Encoded(source.schema, _some(rows, kept))
        some = None if weights is None else weights[kept]
        whole = passes.labelled(family, part, labels[kept], classes, some)
    names = passes.columns_of(source.schema)
    return Gapped(
        family,
        whole,
        complete(family, _some(rows, holed), names, np.flatnonzero(holed)),
        credit[holed],
        complete(family, _some(rows, loose), names, np.flatnonzero(loose)),
        of_rows[loose],
        apart(family, _some(rows, ~loose), credit[~loose]),
    )


def maximise(
    family: Family, data: Gapped, prior: np.ndarray | float, iterations: int, tol: float
) -> Maximised:
    """Steps from columns alone, or from the labelled rows where these are whole, until one gains less than `tol` a row.

    With a prior it is the posterior density that never decreases: Σ_n log p(x_obs, y) + ⟨prior, W⟩.
    """
    complete = data.complete()
    start = alone(family, data.alone) if len(data.labels) else complete
    objective: list[float] = []
    stats = start
    for _ in range(max(iterations, 1)):
        weights = family.weights(stats + prior)
        after, told = data.expected(weights, complete)
        objective.append((told + float(np.sum(prior * weights))) / data.mass)
        stats = after
        if len(objective) > 1 and objective[-1] - objective[-2] < tol:
            return Maximised(stats, np.array(objective), True)
    return Maximised(stats, np.array(objective), False)


def likely(
    data: Gapped, prior: np.ndarray, variance_floor: float | None, iterations: int, tol: float
) -> Maximised:
    """S of maximum likelihood, or of the highest posterior density, by `maximise`.

    A missing parent or label makes the model a mixture, whose likelihood has no maximum: a variance that shrinks
    around one row raises it for ever. So the steps keep the variance floor of calibration, unless one is given.
    """
    family = data.family
    if variance_floor is None:
        family = replace(family, variance_floor=family.calibrated_floor)
    return maximise(family, data, prior, iterations, tol)


def refuse_empty(data: Gapped, schema: Schema) -> None:
    """A column without any value tells nothing of how it goes with others."""
    there = data.alone[:, 1 : 1 + len(schema.continuous)].sum(axis=0)
    if (there <= 0).any():
        name = schema.names[schema.continuous[int(np.argmax(there <= 0))]]
        raise SchemaError(
            f"column {name!r} has no value in any training row with a label; leave it out, or use MixedNB"
        )


def _some(rows: Rows, which: np.ndarray) -> Rows:
    return Rows(rows.values[which], rows.codes[which])
