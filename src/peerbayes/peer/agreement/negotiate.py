"""From sums over all members to a schema, a structure, a start and a learner."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pandas as pd

from peerbayes.data.bins import BINS
from peerbayes.data.schema import Schema
from peerbayes.errors import PeerError, RefusedMessage
from peerbayes.learning import combinations, planning
from peerbayes.learning.choice import LinkSums
from peerbayes.learning.crossing import cross_sums
from peerbayes.learning.family_choice import FamilyChoice
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.planning import Plan
from peerbayes.learning.robust.bounds import START_LIMIT, StatisticsBounds, SumBounds, start_statistics_of
from peerbayes.learning.robust.invariants import Invariants, counted_columns, ties_of
from peerbayes.learning.strategies import LearningSettings, NetworkFacts
from peerbayes.model import layout
from peerbayes.model.calibration import shared_out
from peerbayes.model.candidates import AUTO
from peerbayes.model.declared import declared_crosses, declared_parents
from peerbayes.model.families import Family, Rows
from peerbayes.model.families.structures import Parents, checked
from peerbayes.model.interactions import groups_for
from peerbayes.model.statistics import Statistics
from peerbayes.model.structure import Pairs, total_information
from peerbayes.peer.agreement.agreed_edges import agreed_edges
from peerbayes.peer.agreement.agreed_family import agreed_family
from peerbayes.peer.agreement.column_facts import canonical
from peerbayes.peer.agreement.summary import OwnTable, Summary, Sums, columns_of_numbers, with_scales
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.agreement.tree_sums import Phase, PooledReports, Reports, Total, pooled
from peerbayes.peer.agreement.votes import Voter, agreed_bounds
from peerbayes.peer.agreement.warm import EarlierModel, warm_start
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.learning.learner import Broadcaster, Learner, Relayer, Summing
from peerbayes.peer.learning.releases import PrivateResidual

if TYPE_CHECKING:
    from peerbayes.peer.agreement.agreed_figures import AgreedFigures

# --- how peers agree on the structure of dependencies between columns


@dataclass(frozen=True)
class Proposal:
    """The structure that one peer proposes; empty from the others."""

    parents: Parents | None = None

    def __add__(self, other: Proposal) -> Proposal:
        if self.parents is not None and other.parents is not None:
            raise RefusedMessage("wrong message", "two peers propose a structure; expected one")
        return self if self.parents is not None else other

    def pack(self) -> bytes:
        return canonical(self.parents)

    @classmethod
    def parse(cls, content: bytes) -> Proposal:
        try:
            return cls(msgspec.json.decode(content, type=tuple[tuple[int, ...], ...] | None))
        except (msgspec.DecodeError, RecursionError) as error:
            raise RefusedMessage("unreadable", f"a structure that cannot be read: {error}") from error


async def agreed_structure(
    terms: Terms, proposes: bool, pairs: Pairs, total: Total, checks: PooledReports | None = None
) -> Parents:
    """Return the structure learned from everybody's pairwise statistics, proposed by one peer and checked by all.

    pairs   the statistics of this peer's rows
    checks  of others' partial sums, where members may lie
    """
    refuse_large(terms, "the statistics of all pairs of columns", pairs.vector.size)
    summed = pairs.from_vector(await pooled("pairs", pairs.vector, total, checks))
    best = layout.STRUCTURES[terms.family](summed, penalty=terms.penalty)
    proposal = await total(Phase("structure", Proposal.parse), Proposal(best if proposes else None))
    if proposal.parents is None:
        raise PeerError("nobody proposed a structure; expected one from the first member of the roster")
    chosen = checked(proposal.parents, summed.continuous, summed.columns)
    information, most = (total_information(summed, parents, terms.penalty) for parents in (chosen, best))
    if information < most - 1e-9 * max(1.0, most):
        raise PeerError(
            f"the structure proposed by the first member has {information:.6g} nats, the best one {most:.6g}; expected "
            "the best one: its statistics are not everybody's"
        )
    return chosen


# --- what peers agree on before the first round, by exact sums over the roster's spanning tree
#     middle, deviation   where members may lie, medians by vote: what a member may report of its rows (see `medians`)
#     columns   kinds, categories and classes (unions), n, m, and Σx of continuous columns
#     spread    Σ(x − mean)²: with it every peer has the same schema, to the last bit
#     quantiles 1, 2  counts of binned columns on a grid, and on finer ones where quantiles lie: see `agreed_edges`
#     family, sum k  sums by which a family is chosen, where the terms leave it open: see `learning.family_choice`
#     crosses, …  sums from which the crosses of columns are chosen, for families that have them: see `cross_sums`
#     pairs     counts and moments of every pair of columns, for families whose structure is learned
#     structure the one that the first member proposes, and all check against the pairs
#     alone     counts and moments of each column alone, where values are missing that the family completes
#     step k    YᵀΦ̃ of all peers, missing values completed by the sum before, for the starts `ml` and `marginal`
#     start     YᵀΦ of all peers, or YᵀΦ̃ after the last step
#     earlier model, earlier steps   instead of a start, in a run that begins with the model of another one: see `warm`
#     squares   Σ‖φ‖², for dsgd
#     consent   nothing, where members may lie: nobody begins before everybody has taken all of it
#     differ    how far apart neighbours' first residuals are, for `auto` where peers are not near each other
#
# Only such sums travel. Before `pairs` and `start` goes a bound, so that integers can hold them.

# Own numbers, and a check of others' -> the neighbours'.
First = Callable[[np.ndarray, Callable[[np.ndarray], None]], Awaitable[dict[str, np.ndarray]]]


@dataclass(frozen=True, eq=False)
class Agreed:
    """What every peer has in common, and this peer's side of it."""

    schema: Schema
    family: Family
    layout: Family
    """The family without guards: what statistics are laid out by."""
    peers: int
    rows: int
    strategy: str
    of_weights: bool
    learner: Learner
    plausible: Invariants
    local_rows: LocalRows
    """This peer's rows."""
    private: PrivateResidual | None = None
    """What is told of them with noise, where the agreement has an epsilon."""
    reason: str = ""
    """Which strategy was chosen and why; empty where the agreement names one."""
    family_choice: FamilyChoice | None = None
    """Which family all peers chose and why; None where the agreement names one."""
    named: Terms | None = None
    """The terms, with the family that was chosen and its start; None: those of the agreement."""
    figures: AgreedFigures | None = None
    """What all sites' tables look like, where the agreement asks for it."""
    began_with: int = 0
    """How many members had the model of an earlier run that all begin with; 0: they begin afresh."""

    def statistics(self, stats: np.ndarray) -> Statistics:
        """Return the model of S [C, K], as statistics of all peers' rows."""
        return Statistics.of_model(stats, self.schema, self.layout, float(self.rows))


def data_digest(frame: pd.DataFrame, labels: np.ndarray) -> str:
    """Return a digest of a peer's rows: a run goes on only with the same."""
    digest = hashlib.sha256(repr([str(name) for name in frame.columns]).encode())
    for part in (frame, pd.Series(labels)):
        digest.update(pd.util.hash_pandas_object(part, index=False).to_numpy().tobytes())
    return digest.hexdigest()


async def agree(
    name: str,
    frame: pd.DataFrame,
    labels: np.ndarray,
    terms: Terms,
    roster: Roster,
    total: Total,
    first: First,
    voter: Voter,
    earlier: EarlierModel | None = None,
) -> Agreed:
    """Return everything that the rounds need, from this peer's rows and everybody's sums.

    earlier  what this peer has of the run whose model all begin with; None: they begin afresh
    """
    terms.load_packages()
    table, reports = OwnTable.of(frame, labels, terms), None
    if terms.robust.acts:
        reports = Reports(await agreed_bounds(table.rows, table.values, voter, total))
    family_choice = None
    if terms.family == AUTO:
        measured = await _measured(name, table, terms, reports, total)
        terms, schema, summary, family_choice = await agreed_family(
            frame, labels, table, terms, measured, total, roster.members[0].name == name, partial(refuse_large, terms)
        )  # fmt: skip
    else:
        schema, summary = await agreed_units(name, table, terms, reports, total)
    rows, codes, weights = schema.encode(frame), schema.encode_labels(labels), np.ones(len(frame))
    schema = await _crossed(terms, schema, rows, codes, summary, total)
    rows = Rows(rows.values, schema.crossed(rows.codes))
    if reports is not None:
        weights *= reports.bounds.weight(len(frame))
    parents = None
    if terms.family in layout.STRUCTURES:
        checks = None if reports is None else reports.pooled(SumBounds(schema.limit))
        row_weights = None if (weights == 1.0).all() else weights
        if terms.structure is not None:
            parents = declared_parents(terms.structure, terms.family, schema)
        else:
            pairs = Pairs.of(rows, codes, len(schema.classes), schema.cardinalities, row_weights)
            parents = await agreed_structure(terms, roster.members[0].name == name, pairs, total, checks)
    family = layout.calibrated(terms.family, schema, summary.missing, float(summary.rows), parents)
    refuse_large_statistics(terms, len(schema.classes), family.size)
    local_rows = LocalRows(family, rows, codes, weights, np.array([len(frame)]), len(schema.classes))
    most = summary.rows - (summary.peers - 1) * terms.limits.rows
    if reports is not None:
        most = min(most, reports.bounds.rows)
    settings, gapped = settings_of(terms), _gapped(family, schema, summary)
    facts = NetworkFacts(
        summary.peers, summary.rows, weight=float(summary.rows), largest=float(most),
        classes=len(schema.classes), features=family.size, counted=len(schema.discrete) > 0,
        tree=planning.tree_of(roster.adjacency()), completed=gapped, crossed=bool(schema.crosses),
    )  # fmt: skip
    plan = planning.plan(settings, facts)
    terms.refuse(PeerError, completed=gapped)
    complete = [summary.complete(schema.columns[j].name) for j in schema.discrete]
    complete += [all(map(summary.complete, cross.columns)) for cross in schema.crosses]
    checks = None if reports is None else reports.pooled(_of_start(family, schema, complete, gapped))
    begun = None
    if earlier is not None and not plan.declaration.own_start:
        begun = await warm_start(earlier, schema, layout.without_guards(family), plan, terms, total)
    if begun is None:
        start = await _start(terms, local_rows, plan, gapped, total, checks)
    else:
        start = begun.stats
        # As after a start by maximum likelihood, classes need not be equally likely.
        plan = replace(plan, settings=replace(plan.settings, start="ml"))
    if "difference" in plan.missing:
        sums = await _link_sums(local_rows, start, summary.rows, schema.limit**2, total, first)
        plan = planning.plan(settings, replace(facts, difference=sums.difference, likeness=sums.likeness))
    if "mean_square" in plan.missing:
        mean_square = await _mean_square(local_rows, summary.rows, total)
        plan = planning.plan(settings, replace(facts, mean_square=mean_square))
    plausible = plan.invariants(family, start, complete, gapped, schema.limit)
    if reports is not None:
        await total(Phase("consent", Sums.named(), check=reports.consent), Sums())
    steps = None if begun is None else begun.steps
    learner = learner_of(name, plan, terms, roster, local_rows, start, plausible, steps=steps)
    return Agreed(
        schema, family, layout.without_guards(family), summary.peers, summary.rows, plan.strategy.name,
        plan.strategy.of_weights, learner, plausible, local_rows, reason=plan.reason, family_choice=family_choice,
        named=terms, began_with=0 if begun is None else begun.members,
    )  # fmt: skip


async def agreed_units(
    name: str, table: OwnTable, terms: Terms, reports: Reports | None, total: Total
) -> tuple[Schema, Summary]:
    """Return everybody's schema, with location, scale and edges, and the summary that it is made of."""
    schema, summary = await _measured(name, table, terms, reports, total)
    return await agreed_edges(schema, table, summary.rows, total, reports, _bins(terms, schema)), summary


async def _measured(
    name: str, table: OwnTable, terms: Terms, reports: Reports | None, total: Total
) -> tuple[Schema, Summary]:
    """Return everybody's schema, with location and scale but without edges, and the summary that it is made of."""
    if reports is not None:
        columns = Phase("columns", Summary.parse, lambda part: part.peers, reports.check)
        summary = await total(columns, table.summary(name, reports.bounds))
        return reports.bounds.measured(summary.schema(terms.label, terms.clip)), summary
    summary = await total(Phase("columns", Summary.parse, lambda part: part.peers), table.summary(name))
    schema = summary.schema(terms.label, terms.clip)
    names = [column.name for column in columns_of_numbers(schema)]
    squares = await total(Phase("spread", Sums.named(*names)), table.squares(schema))
    return with_scales(schema, squares), summary


def _bins(terms: Terms, schema: Schema) -> int:
    """Return how many bins numbers go into."""
    return layout.bins_for(terms.family, len(schema.columns)) or BINS


async def _crossed(
    terms: Terms,
    schema: Schema,
    rows: Rows,
    labels: np.ndarray,
    summary: Summary,
    total: Total,
) -> Schema:
    """Return the schema with the crosses that all peers agree on, for families that have them."""
    if not layout.has_crosses(terms.family):
        return schema
    if terms.structure is not None:
        groups = groups_for(len(schema.columns))
        return replace(schema, crosses=declared_crosses(terms.structure, schema, groups))
    family = layout.calibrated(terms.family, schema, summary.missing, float(summary.rows))
    local_rows = LocalRows(
        family, rows, labels, np.ones(len(labels)), np.array([len(labels)]), len(schema.classes)
    )
    sums = cross_sums(local_rows, schema, summary.peers, terms.lr)
    try:
        name, terms_of = next(sums)
        while True:
            local = await asyncio.to_thread(terms_of, 0)
            refuse_large(terms, f"the sums of {name} from which crosses are chosen", local.size)
            name, terms_of = sums.send(await pooled(f"crosses, {name}", local, total))
    except StopIteration as end:
        crossed: Schema = end.value
        return crossed


def settings_of(terms: Terms) -> LearningSettings:
    """Return the settings of a plan that these terms agree on. How many messages get lost is nothing they know."""
    return LearningSettings(
        terms.strategy, terms.rounds, terms.lr, terms.local_steps, terms.start, terms.robust.acts,
        terms.privacy.epsilon is not None, messages=terms.messages, exchanges=terms.exchanges,
        repairs_links=not terms.privacy.secure_sum, excluded=combinations.excluded(terms.combination),
        sums_excluded=combinations.excluded(terms.combination, planning.BY_SUMS), tolerance=terms.tolerance,
    )  # fmt: skip


def refuse_large_statistics(terms: Terms, classes: int, size: int) -> None:
    """Refuse statistics [C, K] that make larger messages than agreed."""
    entries = classes * size * planning.declaration_of(terms.strategy).matrices
    refuse_large(terms, f"statistics of {classes} classes × {size:,} features", entries)


def refuse_large(terms: Terms, subject: str, entries: int) -> None:
    """Refuse so many numbers in a message if they take more bytes than agreed."""
    if 8 * entries > terms.limits.message_bytes:
        raise PeerError(
            f"{subject} are messages of {8 * entries:,} bytes; the agreement allows {terms.limits.message_bytes:,}. "
            "Raise limits.message_bytes, or leave out features with many values"
        )


def _of_start(family: Family, schema: Schema, complete: list[bool], gapped: bool) -> StatisticsBounds:
    """Return what partial sums of a start are checked against."""
    ties = ties_of(family, counted_columns(family, complete))
    limit = schema.limit if gapped else min(schema.limit, START_LIMIT)
    return StatisticsBounds(limit, gapped, family=family, ties=ties)


async def _start(
    terms: Terms,
    local_rows: LocalRows,
    plan: Plan,
    gapped: bool,
    total: Total,
    checks: PooledReports | None = None,
) -> np.ndarray:
    """S⁰ [C, K]: the same for all peers, unless the strategy averages what each has."""

    async def summed(name: str, local: np.ndarray) -> np.ndarray:
        bounds = checks
        if name == "alone" and checks is not None:
            bounds = checks.reports.pooled(SumBounds(checks.bounds.limit))
        sums = (await pooled(name, local[0], total, bounds))[None]
        if name != "start":
            return sums
        return shared_out(terms.start, sums, local_rows.classes) / (terms.lr * plan.facts.peers)

    local = local_rows.statistics if checks is None else partial(start_statistics_of, local_rows)
    own_start = plan.declaration.own_start
    sums = planning.start_sums(terms.start, own_start, local_rows, plan.start_weight, gapped, local)
    stats = await planning.awaited_start(summed, sums)
    return np.ascontiguousarray(np.broadcast_to(stats[0], (local_rows.classes, local_rows.family.size)))


def _gapped(family: Family, schema: Schema, summary: Summary) -> bool:
    """Return whether anybody has a row that φ alone cannot take."""
    if family.marks_missing:
        return False
    linked = getattr(family, "linked", np.zeros(0, dtype=bool))[family.continuous :]
    needed = [schema.columns[j].name for j, link in zip(schema.discrete, linked, strict=False) if link]
    return summary.missing or not all(summary.complete(name) for name in needed)


async def _link_sums(
    local_rows: LocalRows, start: np.ndarray, rows: int, reach: float, total: Total, first: First
) -> LinkSums:
    """Return the sums over all links of this peer's first residual and its neighbours'; each end adds a half."""
    change, within = local_rows.first(start[None])
    numbers = np.concatenate([change[0].ravel(), within])
    # No peer has more than all rows, and no row has more than this.
    most = rows * max(1.0, reach)

    def check(received: np.ndarray) -> None:
        if (np.abs(received[:-1]) > most).any() or not 0 <= received[-1] <= most**2:
            raise RefusedMessage("absurd magnitude", f"an entry as large as {np.abs(received).max():.3g}")

    others = list((await first(numbers, check)).values())
    square = float((numbers[:-1] ** 2).sum())
    mine = {
        "apart": sum(float(((numbers[:-1] - other[:-1]) ** 2).sum()) for other in others),
        "noise": sum(float(numbers[-1] + other[-1]) for other in others),
        "size": sum(square + float((other[:-1] ** 2).sum()) for other in others),
    }
    halves = Sums({name: Fraction(value) / 2 for name, value in mine.items()})
    sums = await total(Phase("differ", Sums.named(*mine)), halves)
    return LinkSums(**{name: float(value) for name, value in sums.items()})


async def _mean_square(local_rows: LocalRows, rows: int, total: Total) -> float:
    """Return the mean of ‖φ‖² over the rows of all peers."""
    mine = Fraction(local_rows.mean_square()) * len(local_rows.labels)
    squares = await total(Phase("squares", Sums.named("squares")), Sums(squares=mine))
    return float(squares["squares"] / rows)


def learner_of(
    name: str,
    plan: Plan,
    terms: Terms,
    roster: Roster,
    local_rows: LocalRows,
    start: np.ndarray,
    known: Invariants,
    private: PrivateResidual | None = None,
    steps: np.ndarray | None = None,
) -> Learner:
    """Return this peer's side of the plan, with R of its rows or, where it is private, R̃.

    steps  the last steps of the run whose model all begin with; None: they begin afresh
    """
    strategy, index = plan.strategy, roster.place(name)
    if plan.declaration.by_sums:
        return Summing(strategy, start, local_rows.sum_terms(terms.rounds), local_rows.family, steps=steps)
    residual = private or local_rows.residual(terms.rounds, terms.local_steps, strategy.of_weights)
    if plan.declaration.over_tree:
        relay, neighbours = strategy.seen_from(index)
        return Relayer(relay, tuple(roster.members[place].name for place in neighbours), start, residual)
    weights: dict[str, float] = {}
    if plan.sends:
        row = plan.weights(roster.adjacency())[[index], :].toarray()[0]
        weights = {other: float(row[roster.place(other)]) for other in roster.neighbours(name)}

    def soft(messages: np.ndarray) -> np.ndarray:
        indices = np.arange(len(messages))
        return local_rows.soft_errors(
            np.asarray(local_rows.family.weights(messages)), np.zeros_like(indices), indices
        )

    return Broadcaster(
        strategy, weights, start, residual, known, terms.robust.combine, soft if terms.robust.guard else None
    )
