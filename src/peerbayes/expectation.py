"""Expectation-maximisation: maximum likelihood where values or labels are missing.

    S ← Σ_n y_n Φ̃_{y_n}(x_n; θ(S))            a row without a label counts in every class, by p(c | x_obs)

The likelihood of the observed data never decreases. Rows with nothing missing are summed only once.
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

# Steps of expectation-maximisation that peers take together for the start of RC, each followed by a sum over peers.
AGREED_STEPS = 10


class Maximised(NamedTuple):
    """The result of expectation-maximisation."""

    stats: np.ndarray  # [C, K]
    objective: np.ndarray  # [T] per row, before each step: log likelihood plus log prior
    converged: bool


@dataclass(frozen=True, eq=False)
class IncompleteData:
    """Rows, some of which have missing values or no label. W is an argument of every computation."""

    family: Family
    complete_data: passes.Data | None
    """Labelled rows without missing values."""
    incomplete: Completion
    labels: np.ndarray  # [n, C] one-hot times weight, of the labelled rows with gaps
    unlabelled: Completion
    unlabelled_weights: np.ndarray  # [u] of the rows without a label
    column_sums: np.ndarray  # [C, M] sums of each column by itself, over all labelled rows

    @property
    def mass(self) -> float:
        """The total weight of all rows."""
        return self.labelled_mass + float(self.unlabelled_weights.sum())

    @property
    def labelled_mass(self) -> float:
        """The total weight of the labelled rows."""
        return (0.0 if self.complete_data is None else self.complete_data.mass) + float(self.labels.sum())

    def evaluate(self, weights: np.ndarray) -> passes.Evaluation:
        """Return R_c = Σ (y_c − p(c | x_obs)) Φ̃_c and the errors of W on the labelled rows."""
        joint = self.incomplete.log_joint(weights)
        posterior = core.softmax(joint)
        row_weights = self.labels.sum(axis=1, keepdims=True)
        residual, _ = self.incomplete.statistics(weights, self.labels - row_weights * posterior)
        best = core.one_hot(joint.argmax(axis=1), len(weights))
        soft, wrong = (float(np.sum(self.labels * (1.0 - credit))) for credit in (posterior, best))
        if self.complete_data is not None:
            evaluation, mass = self.complete_data.evaluate(weights), self.complete_data.mass
            residual += evaluation.residual
            soft, wrong = soft + mass * evaluation.soft_error, wrong + mass * evaluation.error
        return passes.Evaluation(residual, soft / self.labelled_mass, wrong / self.labelled_mass)

    def expected(self, weights: np.ndarray, complete: np.ndarray) -> tuple[np.ndarray, float]:
        """Return Σ_n y_n Φ̃ of all rows [C, K], and their log likelihood; `complete`: S of the complete rows."""
        stats, log_likelihood = self.incomplete.statistics(weights, self.labels)
        stats, log_likelihood = stats + complete, log_likelihood + float(np.sum(complete * weights))
        if self.unlabelled_weights.size:
            joint = self.unlabelled.log_joint(weights)
            credit = self.unlabelled_weights[:, None] * core.softmax(joint)
            unlabelled_stats, _ = self.unlabelled.statistics(weights, credit)
            top = joint.max(axis=1)
            summed = top + np.log(np.exp(joint - top[:, None]).sum(axis=1))
            stats, log_likelihood = (
                stats + unlabelled_stats,
                log_likelihood + float(self.unlabelled_weights @ summed),
            )
        return stats, log_likelihood

    def complete_statistics(self) -> np.ndarray:
        """Return S of the labelled rows without missing values: [C, K]."""
        if self.complete_data is None:
            return np.zeros((self.labels.shape[1], self.family.size))
        return self.complete_data.statistics()

    def repeated(self, times: int) -> IncompleteData:
        """Return the same rows in the form that suits the given number of passes."""
        if self.complete_data is None:
            return self
        return replace(self, complete_data=passes.repeated(self.complete_data, times))


def labelled(
    family: Family,
    source: passes.Source,
    labels: np.ndarray,
    classes: int,
    weights: np.ndarray | None = None,
    *,
    missing: bool,
) -> passes.Data | IncompleteData:
    """Return rows with class indices [n], negative without a label; `missing`: whether values may be missing."""
    unlabelled = labels < 0
    if not missing and not unlabelled.any():
        return passes.labelled(family, source, labels, classes, weights)
    rows = passes.all_rows(source)
    incomplete = family.incomplete(rows) & ~unlabelled
    if not (incomplete.any() or unlabelled.any()):
        return passes.labelled(family, source, labels, classes, weights)
    row_weights = np.ones(len(labels)) if weights is None else weights
    credit = core.one_hot(labels, classes) * row_weights[:, None]
    complete_rows = ~(incomplete | unlabelled)
    complete_data = None
    if complete_rows.any():
        subset: passes.Source = passes.Encoded(source.schema, _select(rows, complete_rows))
        subset_weights = None if weights is None else weights[complete_rows]
        complete_data = passes.labelled(family, subset, labels[complete_rows], classes, subset_weights)
    names = passes.columns_of(source.schema)
    return IncompleteData(
        family,
        complete_data,
        complete(family, _select(rows, incomplete), names, np.flatnonzero(incomplete)),
        credit[incomplete],
        complete(family, _select(rows, unlabelled), names, np.flatnonzero(unlabelled)),
        row_weights[unlabelled],
        apart(family, _select(rows, ~unlabelled), credit[~unlabelled]),
    )


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


def _select(rows: Rows, selected: np.ndarray) -> Rows:
    """Return the selected rows."""
    return Rows(rows.values[selected], rows.codes[selected])
