"""The family `auto` of a simulation: what its peers choose together, by the sums that real peers take."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from peerbayes.data.arguments import about
from peerbayes.data.schema import Schema
from peerbayes.errors import PeerbayesError
from peerbayes.learning.family_choice import (
    Contest,
    Entrant,
    FamilyChoice,
    agreed_choice,
    bins_of,
    entered,
    family_sums,
    judging,
)
from peerbayes.model import layout
from peerbayes.model.candidates import CANDIDATES
from peerbayes.simulation.partitions import enough
from peerbayes.simulation.population import (
    Assignment,
    draw_network,
    row_weights,
    sum_bytes,
    table_of,
)
from peerbayes.simulation.settings import SimulationSettings


class ChosenFamily(NamedTuple):
    """The settings of a simulation with the family that its peers chose."""

    settings: SimulationSettings
    choice: FamilyChoice | None = None
    """None: the settings named a family."""
    parts: list[np.ndarray] | None = None
    """The rows that each peer had when it chose; None: they are dealt out later."""
    sent: np.ndarray | float = 0.0
    """[N] bytes that each peer sent for the choice."""


def chosen_family(
    settings: SimulationSettings, X: Any, y: Any, parts: list[np.ndarray] | None = None
) -> ChosenFamily:
    """Return the settings with the family that peers choose by rows X with labels y; `parts`: as they are divided."""
    table = table_of(X)
    enough(settings.peers, table.rows)
    links = draw_network(settings.topology, settings.peers, settings.seed, settings.change_every).at(1)
    assignment = Assignment.of(table, y, settings, parts)
    parts = assignment.parts
    assignment = assignment.holding_out(settings.hold_out, settings.seed)
    entrants, left_out = entrants_of(settings, assignment)
    judges = judging(assignment.schema, assignment.rows())
    sums = family_sums(entrants, contest_of(settings, assignment, judges), left_out)
    choice, numbers = agreed_choice(sums, settings.peers)
    return ChosenFamily(resolved(settings, choice, entrants), choice, parts, sum_bytes(links, numbers))


def contest_of(settings: SimulationSettings, assignment: Assignment, judges: np.ndarray) -> Contest:
    """Return what candidates have in common; `judges` [m]: which rows judge them."""
    sizes = assignment.sizes
    weights = np.repeat(row_weights(settings.objective, sizes), sizes)
    start = None if settings.start == "uniform" else settings.start
    return Contest(
        assignment.labels, weights, sizes, judges, sizes.size, settings.lr, start, settings.penalty
    )


def entrants_of(
    settings: SimulationSettings, assignment: Assignment
) -> tuple[dict[str, Entrant], dict[str, str]]:
    """Return candidates with the rows as they see them, and why others are left out, by name.

    Of a declared schema columns stay as they are.
    """
    rows: dict[int | None, Entrant | str] = {}
    for candidate in CANDIDATES.values():
        if (bins := bins_of(candidate, len(assignment.schema.columns))) not in rows:
            try:
                schema = _schema(assignment, bins, settings.schema is not None)
                rows[bins] = Entrant(schema, schema.encode(assignment.rows()))
            except PeerbayesError as error:
                rows[bins] = str(error)
    return entered(rows)


def _schema(assignment: Assignment, bins: int | None, declared: bool) -> Schema:
    """Return the schema of the peers' rows, numbers in so many bins."""
    schema = assignment.schema_in(bins)
    with about("X and schema" if declared else "X"):
        return schema.measured_on(assignment.rows(), edges=not declared, labels=assignment.labels)


def resolved(
    settings: SimulationSettings, choice: FamilyChoice, entrants: dict[str, Entrant]
) -> SimulationSettings:
    """Return the settings as if they had named the family that was chosen, its start and its kinds."""
    candidate = CANDIDATES[choice.chosen]
    changes: dict[str, Any] = {"family": candidate.family}
    if settings.start == "uniform":
        changes["start"] = candidate.start
    if candidate.in_bins and layout.bins_for(candidate.family, 1) is None and settings.schema is None:
        kinds = tuple(column.kind for column in entrants[choice.chosen].schema.columns)
        changes["kinds"] = "binned" if settings.kinds == "auto" else kinds
    return settings.changed(**changes)
