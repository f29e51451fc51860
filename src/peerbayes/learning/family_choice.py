"""How peers choose a family together: candidates learn from the same rows, by sums, and others of the rows judge them.

    rows        Σ of the rows that are learned from and of those that judge, and who misses values
    sum k       the next sum of every candidate at once: its structure, its start, then R and the log loss of rows that
                it learns from and of those that judge, for a step of `TreeSum`
    last        Σ w ℓ_a and Σ w ℓ_a ℓ_b of the rows that judge, for the rule of `model.candidates`

A row judges by a hash of its values, so that it is the same rows for all candidates, whoever holds them. No candidate
learns from these rows, neither numbers nor its structure; which of its steps is the last is decided by their log loss.
All candidates take each sum together, so that there are as many sums as the slowest candidate needs. How numbers are
summed is the driver's business. Everybody has the same sums, and so makes the same choice.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from peerbayes.data.bins import BINS
from peerbayes.data.schema import Schema
from peerbayes.data.table import Table
from peerbayes.errors import PeerbayesError, StructureError
from peerbayes.learning import integer_sums, planning
from peerbayes.learning.crossing import CrossSums, cross_sums
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.metrics import Sample, log_losses
from peerbayes.learning.selection import FEWEST_ROWS
from peerbayes.learning.strategies import NetworkFacts
from peerbayes.learning.tree_sum import TreeSum
from peerbayes.model import candidates, layout
from peerbayes.model.calibration import shared_out
from peerbayes.model.candidates import CANDIDATES, Candidate, LossSums
from peerbayes.model.families import Family, Rows
from peerbayes.model.families.structures import Parents
from peerbayes.model.folds import row_keys
from peerbayes.model.residuals import residual_of
from peerbayes.model.structure import Pairs, refuse_many

# Share of the rows that judge.
SHARE = 0.2

# The most steps of a candidate, and how many it may take without a lower log loss of the rows that judge.
MOST_STEPS, PATIENCE = 24, 4

# The most numbers of a candidate's statistics: a message of one megabyte. A larger one is left out, since the rounds
# that follow would send as much in each message.
MOST_NUMBERS = 1 << 17

# The same of a sum from which its crosses are chosen, which is sent once.
MOST_SUMMED = 1 << 19

# The most that a row's log loss counts: the logarithm of the smallest share that floating point tells from nothing.
LARGEST_LOSS = 53 * float(np.log(2.0))

# The most parents of a column that a candidate has, and what candidates with links are called together.
MOST_PARENTS, LINKED = 2, "links"

# A function of a peer's number in the driver to its terms of a sum.
Terms = Callable[[int], np.ndarray]

# Yields the terms of a sum, is sent the sum over all peers, and returns a result.
Result = TypeVar("Result")
Sums = Generator[Terms, np.ndarray, Result]

# Of a candidate: the log loss of every row [m], or why it is left out.
Outcome = np.ndarray | str


class Judged(NamedTuple):
    """What came of a candidate."""

    name: str
    log_loss: float | None = None
    """Its mean on the rows that judge; None: it was left out."""
    problem: str = ""
    """Why it was left out; empty: it was not."""


@dataclass(frozen=True)
class FamilyChoice:
    """Which family all peers chose, and why."""

    chosen: str
    """The name of a candidate: see `model.candidates`."""
    reason: str
    """The choice in a sentence with figures."""
    rows: float
    """How many rows judged."""
    candidates: tuple[Judged, ...]
    """What came of each candidate, in the order of their size."""

    @property
    def family(self) -> str:
        """The family, as peers would name it."""
        return CANDIDATES[self.chosen].family

    def to_json(self) -> dict[str, Any]:
        """Return the choice as JSON can hold it."""
        return {**vars(self), "candidates": [list(judged) for judged in self.candidates]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> FamilyChoice:
        """Return the choice that `to_json` described."""
        return cls(**{**content, "candidates": tuple(Judged(*judged) for judged in content["candidates"])})

    def frame(self) -> Any:
        """Return what came of each candidate as a DataFrame, the chosen one first and then by log loss."""
        import pandas as pd

        frame = pd.DataFrame(self.candidates, columns=["candidate", "log_loss", "problem"])
        frame = frame.assign(chosen=frame["candidate"] == self.chosen)
        order = ["chosen", "log_loss"]
        return frame.sort_values(order, ascending=[False, True], kind="stable", ignore_index=True)


class Absent(NamedTuple):
    """Which values any peer's rows miss, as a candidate sees them."""

    any: bool
    numbers: bool
    """Of columns that are encoded as numbers."""


class Entrant(NamedTuple):
    """The rows of all peers of a driver as a candidate sees them."""

    schema: Schema
    rows: Rows


@dataclass(frozen=True, eq=False)
class Contest:
    """What candidates have in common."""

    labels: np.ndarray
    """[m] class indices of the rows of all peers of the driver."""
    row_weights: np.ndarray
    """[m]"""
    sizes: np.ndarray
    """[N] rows of each peer."""
    judges: np.ndarray
    """[m] which rows judge: see `judging`."""
    peers: int
    """How many peers there are in all."""
    lr: float
    start: str | None = None
    """The start of all candidates; None: each has its own."""
    penalty: str = "none"
    proposer: int | None = 0
    """The peer of the driver that says which structure all take; None: another driver has it."""

    def local(self, family: Family, rows: Rows, classes: int) -> LocalRows:
        """Return the rows as they are learned from: those that judge weigh nothing."""
        weights = np.where(self.judges, 0.0, self.row_weights)
        return LocalRows(family, rows, self.labels, weights, self.sizes, classes)

    def by_peer(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of each peer's values: [m] -> [N]."""
        owner = np.repeat(np.arange(self.sizes.size), self.sizes)
        return np.bincount(owner, values, minlength=self.sizes.size)

    def slices(self) -> list[slice]:
        """Return the rows of each peer."""
        ends = np.cumsum(self.sizes).tolist()
        return [slice(end - size, end) for end, size in zip(ends, self.sizes.tolist(), strict=True)]


def bins_of(candidate: Candidate, columns: int) -> int | None:
    """Return how many bins a candidate puts the numbers of so many columns into; None: it takes numbers."""
    return (layout.bins_for(candidate.family, columns) or BINS) if candidate.in_bins else None


def entered(rows: Mapping[int | None, Entrant | str]) -> tuple[dict[str, Entrant], dict[str, str]]:
    """Return candidates with the rows as they see them, and why others are left out, by name.

    rows  those of numbers in so many bins, or why there are none; None: of numbers as they are
    """
    entrants, left_out = {}, {}
    columns = next(len(entrant.schema.columns) for entrant in rows.values() if not isinstance(entrant, str))
    plain = rows.get(None, "")
    for name, candidate in CANDIDATES.items():
        entrant = rows[bins_of(candidate, columns)]
        if isinstance(entrant, str):
            left_out[name] = entrant
        elif name == "bins" and not isinstance(plain, str) and entrant.schema == plain.schema:
            left_out[name] = "the same as naive-bayes: the kind of every column of numbers is named"
        else:
            entrants[name] = entrant
    return entrants, left_out


def judging(schema: Schema, table: Table) -> np.ndarray:
    """Return which rows of a table judge: about `SHARE` of them, by their values alone. [n]."""
    return (row_keys(schema, table) >> np.uint64(11)) * 2.0**-53 < SHARE


def agreed_choice(sums: Sums[FamilyChoice], peers: int) -> tuple[FamilyChoice, int]:
    """Return the choice of all peers of a simulation, and how many numbers they summed."""
    numbers = 0
    try:
        terms = next(sums)
        while True:
            total = integer_sums.exact_sum(terms, peers)
            numbers += total.size + 1  # a bound goes ahead of the numbers
            terms = sums.send(total)
    except StopIteration as end:
        return end.value, numbers


def family_sums(
    entrants: Mapping[str, Entrant], contest: Contest, left_out: Mapping[str, str] | None = None
) -> Sums[FamilyChoice]:
    """Return which candidate all peers take, after the sums that it takes.

    entrants  candidates by name, in the order of their size
    left_out  why others are not among them, by name
    """
    totals = yield _facts(entrants, contest)
    mass, judges = totals[:2]
    gaps, missing = totals[2:].reshape(2, -1) > 0
    problems = dict(left_out or {})
    if judges < FEWEST_ROWS:
        first = next(iter(entrants))
        too_few = f"{first}: all peers together hold out {judges:,.0f} rows, fewer than {FEWEST_ROWS}, so the smallest "
        return FamilyChoice(first, f"{too_few}family is taken", float(judges), _all(problems, {}))
    absent = {
        name: Absent(*facts) for name, *facts in zip(entrants, gaps.tolist(), missing.tolist(), strict=True)
    }
    judged = yield from together(_contestants(entrants, contest, float(mass), absent))
    outcomes: dict[str, Outcome] = judged.pop(LINKED, {}) | judged
    problems |= {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, str)}
    losses = {name: outcomes[name] for name in entrants if name not in problems}
    if not losses:
        name, problem = next(iter(problems.items()))
        raise StructureError(f"no family takes these rows: {name}: {problem}")
    names, shape = list(losses), (len(losses), len(losses))
    sums = yield _moments(np.array(list(losses.values())), contest)
    found = LossSums(float(judges), sums[: len(names)], sums[len(names) :].reshape(shape))
    means = dict(zip(names, found.means.tolist(), strict=True))
    chosen = names[candidates.clearly_best(found)]
    why = f"{chosen}: no other family takes these rows"
    if len(names) > 1:
        why = candidates.reason(chosen, means, f"{judges:,.0f} held-out rows of all peers")
    return FamilyChoice(chosen, why, float(judges), _all(problems, means))


def _all(problems: Mapping[str, str], means: Mapping[str, float]) -> tuple[Judged, ...]:
    """Return what came of each candidate, in the order of their size."""
    return tuple(
        Judged(name, means.get(name), problems.get(name, ""))
        for name in CANDIDATES
        if name in means or name in problems
    )


def _facts(entrants: Mapping[str, Entrant], contest: Contest) -> Terms:
    """Return terms of: rows that are learned from, rows that judge, and for each candidate gaps and missing numbers."""
    weight, judges = contest.row_weights, contest.judges
    gaps, missing = [], []
    for entrant in entrants.values():
        absent = np.isnan(entrant.rows.values).any(axis=1)
        missing.append(absent)
        gaps.append(absent | (entrant.rows.codes < 0).any(axis=1))
    columns = [np.where(judges, 0.0, weight), np.where(judges, weight, 0.0), *gaps, *missing]
    table = np.stack([contest.by_peer(np.asarray(column, dtype=np.float64)) for column in columns], axis=1)
    return lambda peer: table[peer]


def _moments(losses: np.ndarray, contest: Contest) -> Terms:
    """Return terms of Σ w ℓ_a and Σ w ℓ_a ℓ_b, from the losses of all rows: [k, m]."""
    slices = contest.slices()

    def terms(peer: int) -> np.ndarray:
        rows = slices[peer]
        judges = contest.judges[rows]
        sums = LossSums.of(losses[:, rows][:, judges], contest.row_weights[rows][judges])
        return np.concatenate([sums.sums, sums.products.ravel()])

    return terms


# --- candidates, side by side


def together(generators: Mapping[str, Sums[Any]]) -> Sums[dict[str, Any]]:
    """Return the results of several generators of sums, by name, which take each sum as one."""
    results: dict[str, Any] = {}
    waiting: dict[str, Terms] = {}

    def advance(name: str, total: np.ndarray | None) -> None:
        try:
            waiting[name] = generators[name].send(total)  # type: ignore[arg-type]
        except StopIteration as end:
            waiting.pop(name, None)
            results[name] = end.value

    for name in generators:
        advance(name, None)
    while waiting:
        shapes: dict[str, tuple[int, ...]] = {}
        total = yield _joined(dict(waiting), shapes)
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])[:-1]
        for (name, shape), part in zip(shapes.items(), np.split(total, ends), strict=True):
            advance(name, part.reshape(shape))
    return results


def _joined(waiting: Mapping[str, Terms], shapes: dict[str, tuple[int, ...]]) -> Terms:
    """Return the terms of several sums as those of one; `shapes` learns their shapes."""

    def terms(peer: int) -> np.ndarray:
        values = {name: terms_of(peer) for name, terms_of in waiting.items()}
        shapes.update({name: value.shape for name, value in values.items()})
        return np.concatenate([value.ravel() for value in values.values()])

    return terms


def _contestants(
    entrants: Mapping[str, Entrant], contest: Contest, mass: float, absent: Mapping[str, Absent]
) -> dict[str, Sums[Any]]:
    """Return a generator for each candidate; those whose links are learned have one, since they share a sum."""
    linked = {name: entrant for name, entrant in entrants.items() if _links(name)}
    generators: dict[str, Sums[Any]] = {
        name: _entered(_alone(name, entrant, contest, mass, absent[name]))
        for name, entrant in entrants.items()
        if name not in linked
    }
    if linked:
        generators[LINKED] = _with_links(linked, contest, mass, absent)
    return generators


def _links(name: str) -> bool:
    """Return whether the links of a candidate are learned."""
    return CANDIDATES[name].family in layout.STRUCTURES


def _entered(sums: Sums[np.ndarray]) -> Sums[Outcome]:
    """Return the losses of a candidate, or why it is left out: for a reason that all peers know."""
    try:
        return (yield from sums)
    except PeerbayesError as error:
        return str(error)


def _with_links(
    linked: Mapping[str, Entrant], contest: Contest, mass: float, absent: Mapping[str, Absent]
) -> Sums[dict[str, Outcome]]:
    """Return what came of candidates whose links follow from the same statistics of pairs."""
    schema, rows = next(iter(linked.values()))
    classes, weights = len(schema.classes), np.where(contest.judges, 0.0, contest.row_weights)
    slices = contest.slices()

    def pairs_of(peer: int) -> Pairs:
        own = slices[peer]
        encoded = Rows(rows.values[own], rows.codes[own])
        return Pairs.of(encoded, contest.labels[own], classes, schema.cardinalities, weights[own])

    try:
        refuse_many(classes, rows.values.shape[1], schema.cardinalities)
    except PeerbayesError as error:
        return dict.fromkeys(linked, str(error))
    pairs = pairs_of(0).from_vector((yield lambda peer: pairs_of(peer).vector))
    best = {
        name: layout.STRUCTURES[CANDIDATES[name].family](pairs, penalty=contest.penalty) for name in linked
    }
    # Logarithms may differ in the last bit between machines, and so may the best of nearly equal links: one peer's
    # are everybody's.
    proposed = np.concatenate([_as_numbers(parents) for parents in best.values()])
    agreed = yield lambda peer: proposed if peer == contest.proposer else np.zeros_like(proposed)
    structures = dict(zip(linked, np.split(np.rint(agreed).astype(np.int64), len(linked)), strict=True))
    return (
        yield from together({
            name: _entered(
                _alone(name, linked[name], contest, mass, absent[name], _as_parents(structures[name]))
            )
            for name in linked
        })
    )  # fmt: skip


def _as_numbers(parents: Parents) -> np.ndarray:
    """Return the parents of D columns as numbers from 1 on, 0 for none: [D, MOST_PARENTS]."""
    numbers = np.zeros((len(parents), MOST_PARENTS))
    for column, its_parents in enumerate(parents):
        numbers[column, : len(its_parents)] = np.asarray(its_parents, dtype=np.float64) + 1
    return numbers


def _as_parents(numbers: np.ndarray) -> Parents:
    """Return the parents that `_as_numbers` wrote: [D, MOST_PARENTS]."""
    return tuple(tuple(int(parent) - 1 for parent in column if parent) for column in numbers)


def _alone(
    name: str,
    entrant: Entrant,
    contest: Contest,
    mass: float,
    absent: Absent,
    parents: Parents | None = None,
) -> Sums[np.ndarray]:
    """Return the log loss of every row of the driver under what a candidate learned: [m]."""
    candidate, schema, rows = CANDIDATES[name], entrant.schema, entrant.rows
    classes = len(schema.classes)
    if layout.has_crosses(candidate.family) and not schema.crosses:
        family = layout.calibrated(candidate.family, schema, absent.numbers, mass)
        _refuse_large(classes * family.size)
        crosses = cross_sums(contest.local(family, rows, classes), schema, contest.peers, contest.lr)
        schema = yield from _crosses(crosses)
        rows = Rows(rows.values, schema.crossed(rows.codes))
    family = layout.calibrated(candidate.family, schema, absent.numbers, mass, parents)
    _refuse_large(classes * family.size)
    local, gapped = contest.local(family, rows, classes), False
    if absent.any and not family.marks_missing:
        gapped = yield from _gapped(local)
    start = yield from _start(contest.start or candidate.start, local, contest, mass, gapped)
    return (yield from _descent(local, start, contest))


def _refuse_large(numbers: int) -> None:
    if numbers > MOST_NUMBERS:
        raise StructureError(
            f"its statistics are {numbers:,} numbers, in every message; at most {MOST_NUMBERS:,} are judged: name the "
            "family to use it all the same"
        )


def _crosses(sums: CrossSums) -> Sums[Schema]:
    """Return the schema with crosses and penalties; StructureError where a sum that they are chosen by is too large."""
    try:
        name, terms = next(sums)
        while True:
            if (numbers := terms(0).size) > MOST_SUMMED:
                raise StructureError(
                    f"its sums of {name} from which crosses are chosen are {numbers:,} numbers; at most "
                    f"{MOST_SUMMED:,} are judged: name the family to use it all the same"
                )
            name, terms = sums.send((yield terms))
    except StopIteration as end:
        return end.value


def _gapped(local: LocalRows) -> Sums[bool]:
    """Return whether any peer has rows to complete; StructureError where one has a row that cannot be."""
    incomplete = np.array([local.incomplete[rows].any() for rows in local.slices], dtype=np.float64)
    refused = 0.0
    try:
        _ = local.gaps
    except PeerbayesError:
        refused = 1.0
    gaps, refusals = yield lambda peer: np.array([incomplete[peer], refused])
    if refusals:
        raise StructureError(
            "a row misses values of several columns that depend on each other: too many at once"
        )
    return bool(gaps)


def _start(start: str, local: LocalRows, contest: Contest, mass: float, gapped: bool) -> Sums[np.ndarray]:
    """Return S⁰ of all peers, as the run after the choice would have it of these rows: [1, C, K]."""
    weight = planning.start_weight(contest.lr, NetworkFacts(contest.peers, mass))
    sums = planning.start_sums(start, False, local, weight, gapped, local.statistics)
    try:
        name, terms = next(sums)
        while True:
            total = yield _rows_of(terms)
            if name == "start":
                total = shared_out(start, total, local.classes) / (contest.lr * contest.peers)
            name, terms = sums.send(np.broadcast_to(total, (local.peer_count, *total.shape)))
    except StopIteration as end:
        shape = (1, local.classes, local.family.size)
        return np.ascontiguousarray(np.broadcast_to(end.value[:1], shape), dtype=np.float64)


def _rows_of(table: np.ndarray) -> Terms:
    return lambda peer: table[peer]


def _residual(local: LocalRows) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return the function of everybody's S [1, C, K] and W [C, K] to each peer's R: [N, C, K].

    W is computed once for all peers, where R can be taken at it.
    """
    of_weights = local.family.linear and not local.incomplete.any()
    residual = residual_of(local, local.family, MOST_STEPS, of_weights=of_weights, raw=True)
    copies = local.peer_count, 1, 1
    return lambda stats, weights: np.asarray(
        residual(np.tile(weights[None] if of_weights else stats, copies))
    )


def _descent(local: LocalRows, start: np.ndarray, contest: Contest) -> Sums[np.ndarray]:
    """Return the losses of all rows under the step of `TreeSum` at which those that judge have the lowest: [m]."""
    family, strategy = local.family, TreeSum(contest.peers)
    state, residual = strategy.begin(start), _residual(local)
    sample = Sample(family, local.rows, local.labels)
    judging_weights = np.where(contest.judges, contest.row_weights, 0.0)
    lowest, kept, waited = np.inf, np.zeros(local.labels.size), 0
    for _ in range(MOST_STEPS):
        weights = np.asarray(family.weights(state.trial[0]))
        losses = log_losses(sample.logits(weights), local.labels)
        changes = residual(state.trial, weights).reshape(local.peer_count, -1)
        capped = np.minimum(losses, LARGEST_LOSS)
        beside = [local.learned_losses(weights, losses), contest.by_peer(judging_weights * capped)]
        total = yield _rows_of(np.concatenate([changes, np.stack(beside, axis=1)], axis=1))
        if total[-1] < lowest:
            lowest, kept, waited = total[-1], capped, 0
        else:
            waited += 1
        if waited == PATIENCE:
            break
        state = strategy.step(state, total[:-1], family.weights, family.conditioned)
    return kept
