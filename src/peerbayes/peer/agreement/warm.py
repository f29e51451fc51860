"""A run that begins with the model of an earlier one: every member that has that model adds it to a sum over all.

    S⁰ = Σ_v S_v / h,   over the h members that have the model of the earlier run, in the units of this one

So a member that joined since needs no file from anybody, and all have the same bits. Where strategies leave members
with slightly different models, S⁰ is their mean. Members of `tree-sum` also add the last steps of the earlier run, by
which directions begin with what is known of the curvature.

The model has to fit: the same family and columns, and every category and class that it has seen. Where it does not, for
instance since the only row of a category was erased, or since a structure was learned anew, all begin afresh.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from peerbayes.data.schema import Schema
from peerbayes.errors import SchemaError, StatisticsMismatch
from peerbayes.learning.planning import Plan
from peerbayes.learning.tree_sum import kept_steps
from peerbayes.model.families import Family
from peerbayes.model.statistics import Statistics, describe_family
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.agreement.tree_sums import Total, pooled

MODEL, STEPS = "earlier model", "earlier steps"  # the names of the sums


@dataclass(frozen=True, eq=False)
class EarlierModel:
    """What this peer has of the run whose model all begin with."""

    statistics: Statistics | None = None
    """None: nothing, for instance since it joined later."""
    steps: np.ndarray | None = None
    """The last steps of `tree-sum` in that run, in the units of its model: [M, 2, C, K]. None: not kept."""

    @property
    def digest(self) -> str:
        """sha256 of both: a run that is started again goes on with the same."""
        parts = (
            b"" if self.statistics is None else self.statistics.to_bytes(),
            b"" if self.steps is None else np.ascontiguousarray(self.steps, dtype="<f8").tobytes(),
        )
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


@dataclass(frozen=True, eq=False)
class Begun:
    """The start that all peers have agreed on."""

    stats: np.ndarray
    """S⁰: [C, K], of the weight of a start."""
    steps: np.ndarray | None
    """[M, 2, C, K] the last steps of the earlier run; None: of no use here."""
    members: int
    """How many had the model."""


async def warm_start(
    earlier: EarlierModel, schema: Schema, family: Family, plan: Plan, terms: Terms, total: Total
) -> Begun | None:
    """Return the start of all peers by the models that they have; None where nobody has one that fits.

    schema, family  of this run; the family without guards
    """
    shape = len(schema.classes), family.size
    size = shape[0] * shape[1]
    own_sums = np.zeros(size + 1)
    if earlier.statistics is not None:
        fitting = fitted(earlier.statistics, schema, family)
        mass = 0.0 if fitting is None else float(fitting.values[:, 0].sum())
        if fitting is not None and mass > 0.0:
            own_sums = np.append(fitting.values.ravel() * (plan.facts.rows / mass), 1.0)
    summed = await pooled(MODEL, own_sums, total)
    members = round(float(summed[-1]))
    if members < 1:
        return None
    stats = (summed[:-1] / members).reshape(shape)
    mass = float(stats[:, 0].sum())
    if not mass > 0.0:  # whoever told of a model told of none
        return None
    stats = stats * (plan.start_weight / mass)
    count = _steps_that_fit(terms, size) if plan.declaration.by_sums else 0
    if not count:
        return Begun(stats, None, members)
    own_sums = np.zeros(count * 2 * size + 1)
    if earlier.statistics is not None and earlier.steps is not None and len(earlier.steps) >= count:
        steps = moved(earlier.steps[-count:], earlier.statistics, schema, family)
        if steps is not None:
            own_sums = np.append(steps.ravel(), 1.0)
    summed = await pooled(STEPS, own_sums, total)
    if (holders := round(float(summed[-1]))) < 1:
        return Begun(stats, np.zeros((count, 2, *shape)), members)
    return Begun(stats, (summed[:-1] / holders).reshape(count, 2, *shape), members)


def _steps_that_fit(terms: Terms, size: int) -> int:
    """Return how many steps are told: as many as are kept and one message may hold."""
    return min(kept_steps(size), max(0, (terms.limits.message_bytes // 8 - 1) // (2 * size)))


def fitted(statistics: Statistics, schema: Schema, family: Family) -> Statistics | None:
    """Return a model in the units of another schema; None where it does not fit."""
    try:
        expressed = statistics.expressed(schema)
        if describe_family(expressed.family) != describe_family(family):
            expressed = expressed.with_missing()
    except (StatisticsMismatch, SchemaError):
        return None
    same = describe_family(expressed.family) == describe_family(family)
    return expressed if same and np.isfinite(expressed.values).all() else None


def moved(steps: np.ndarray, statistics: Statistics, schema: Schema, family: Family) -> np.ndarray | None:
    """Return steps [M, 2, C, K] in the units of another schema; None where they do not fit."""
    found = []
    for matrix in steps.reshape(-1, *steps.shape[2:]):
        if matrix.shape != statistics.values.shape:
            return None
        expressed = fitted(replace(statistics, values=matrix, likelihood=None), schema, family)
        if expressed is None:
            return None
        found.append(expressed.values)
    return np.stack(found).reshape(*steps.shape[:2], len(schema.classes), family.size)
