"""AgreementRunner and learning with differential privacy: nothing of a peer's rows leaves it but releases with noise.

    units     counts and moments on known ranges, where location and scale or the number of rows are bought
    figures   numbers of rows, of rows of each class and of missing values, where the terms ask for figures
    structure tables of all pairs of columns with noise, where links or crosses of columns are learned
    start     YᵀΦ or Σφ of all peers with noise, for the starts `ml` and `marginal`
    rounds    R̃ = Π(Σ_i w_i q_i h_iᵀ + noise), once a round; messages are made of these alone

Everything else is in the terms: columns, categories, classes, what may be missing. A release is stored with its cost
before anything derived from it can be sent, and never drawn again.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pandas as pd

from peerbayes.data.bins import edges_of_units
from peerbayes.data.column import Column, with_units
from peerbayes.data.schema import Schema, infinity_in
from peerbayes.data.table import Rows, Table, missing_of
from peerbayes.errors import PeerError
from peerbayes.learning import planning
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.strategies import NetworkFacts
from peerbayes.model import core, layout
from peerbayes.model.calibration import evened, shared_out, start_statistics
from peerbayes.model.declared import declared_crosses, declared_parents
from peerbayes.model.families.structures import Parents
from peerbayes.peer.agreement.negotiate import (
    Agreed,
    learner_of,
    refuse_large,
    refuse_large_statistics,
    settings_of,
)
from peerbayes.peer.agreement.terms import NO_FIGURES, Terms
from peerbayes.peer.agreement.tree_sums import Integers, Phase, Total, integers_in
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.learning.masks import refuse_thin
from peerbayes.peer.learning.releases import Buy, PrivateResidual
from peerbayes.privacy import accounting
from peerbayes.privacy import units as bought
from peerbayes.privacy.accounting import Privacy
from peerbayes.privacy.mechanism import MOST_ROWS
from peerbayes.privacy.noise import Source
from peerbayes.privacy.pair_tables import GROUPS, PairTables
from peerbayes.privacy.scheme import UNITS_SHARE, Scheme, scheme, structure_cost
from peerbayes.privacy.units import Units

# A sum of starts is sent in steps of 2^(16 − bits): few enough bits for thousands of peers.
COARSER = 16

# A peer's number of rows is unknown; it is assumed to be below this multiple of the estimated total.
ROOM = 10.0


# --- what everybody knows ------------------------------------------------------------------------------


def public_schema(terms: Terms) -> Schema:
    """Return the schema declared by the terms; a column whose units are bought has those of its range: u within ±1."""
    columns = []
    for name, kind in terms.features.items():
        facts = terms.facts[name]
        if facts.categories:
            columns.append(Column(name, kind, facts.categories))
        elif facts.edges:
            columns.append(Column(name, kind, edges=facts.edges))
        elif facts.range is not None:
            low, high = facts.range
            columns.append(Column(name, kind, (), low + (high - low) / 2, (high - low) / 2))
        else:
            assert facts.mean is not None and facts.sd is not None
            columns.append(_in_units(Column(name, kind), facts.mean, facts.sd))
    bound = _promise(terms).bound  # what is beyond is clipped in releases, and so in the model as well
    return Schema(
        tuple(columns), terms.classes, bound if terms.clip is None else min(bound, terms.clip), terms.label
    )


def _in_units(column: Column, mean: float, deviation: float) -> Column:
    """Return a column of numbers with its units, or with the edges that follow from them."""
    if column.traits.needs_edges:
        return replace(column, edges=edges_of_units(mean, deviation), location=0.0, scale=1.0)
    return with_units(column, mean, deviation)


def refuse_rows(frame: pd.DataFrame, labels: np.ndarray, terms: Terms) -> None:
    """Refuse a table that the terms do not describe, before anything derived from it is sent.

    That a peer does not run is all that others see of it. So the promise is about tables that the agreement describes:
    no row of such a table changes how another one's values are read, or stops the peer later.
    """
    promise = _promise(terms)
    least = max(promise.min_rows, terms.limits.rows)
    if len(frame) < least:
        raise PeerError(
            f"the table has {len(frame)} rows; the agreement asks for {least} or more (privacy.min_rows, limits.rows), "
            "since noise would drown the signal of so few. This peer takes no part"
        )
    if len(frame) > MOST_ROWS:
        raise PeerError(
            f"the table has {len(frame):,} rows; a private peer takes up to {MOST_ROWS:,}: split it into several"
        )
    refuse_values(frame, labels, terms)


def refuse_values(frame: pd.DataFrame, labels: np.ndarray, terms: Terms) -> None:
    """Refuse rows, including held-out ones, with values that the terms do not describe."""
    schema, table = public_schema(terms), Table.of(frame)
    column_indices = schema.places(table)
    for j, column in enumerate(schema.columns):
        values = table.column(column_indices[j])
        absent = missing_of(values)
        if column.traits.reads_numbers:
            numbers = column.numbers(values)
            absent = np.isnan(numbers)
            if np.isinf(numbers).any():
                raise infinity_in(column.name, int(np.argmax(np.isinf(numbers))))
        if absent.any() and not terms.facts[column.name].missing:
            raise PeerError(
                f"column {column.name!r} has no value in {int(absent.sum())} rows; the agreement says that none is "
                f"missing. Fill them in, or create a network with missing = true in [features.{column.name}]"
            )
        if column.categories:
            unnamed = (column.codes(values) < 0) & ~absent
            if unnamed.any():
                raise PeerError(
                    f"column {column.name!r} holds {values[int(np.argmax(unnamed))]!r:.60}; the agreement names "
                    f"{', '.join(map(repr, column.categories[:20]))}. Make it one of these, or create a network that "
                    "names it"
                )
    schema.encode_labels(labels)


def _promise(terms: Terms) -> Privacy:
    promise = terms.privacy.promise
    assert promise is not None
    return promise


# --- agreeing ------------------------------------------------------------------------------------------


async def agree_privately(
    name: str,
    frame: pd.DataFrame,
    labels: np.ndarray,
    terms: Terms,
    roster: Roster,
    total: Total,
    buy: Buy,
    source: Source = os.urandom,
) -> Agreed:
    """Return everything that the rounds need, from the terms and from releases with noise.

    `buy` stores a release with its cost, or returns the stored one. `source` is the source of noise.
    """
    promise = _promise(terms)
    refuse_rows(frame, labels, terms)
    refuse_thin(roster, promise)
    terms.load_packages()
    peers = len(roster.members)
    schema, rows = await _measured(terms, peers, frame, total, buy, source)
    missing = any(terms.facts[schema.columns[j].name].missing for j in schema.continuous)
    encoded, codes = schema.encode(frame), schema.encode_labels(labels)
    asked = _asked_pairs(terms, schema)
    schema, parents = await _structured(terms, schema, asked, encoded, codes, peers, total, buy, source)
    family = layout.calibrated(terms.family, schema, missing, rows * peers, parents)
    classes, sizes = len(schema.classes), np.array([len(frame)])
    refuse_large_statistics(terms, classes, family.size)
    rows_here = Rows(encoded.values, schema.crossed(encoded.codes))
    holdings = LocalRows(family, rows_here, codes, np.ones(len(frame)), sizes, classes)
    present = {name: not facts.missing for name, facts in terms.facts.items()}
    of_columns = [present[schema.columns[j].name] for j in schema.discrete]
    of_crosses = [all(present[name] for name in cross.columns) for cross in schema.crosses]
    complete = np.array(of_columns + of_crosses, dtype=bool)
    noise_scheme = scheme(
        promise, family, classes, rows, peers, terms.rounds, terms.lr,
        roster.adjacency() if promise.edge_noise else None, complete, terms.start != "uniform",
        _units(terms) is not None, asked is not None and bool(asked.pairs), terms.figures != NO_FIGURES,
    )  # fmt: skip
    room = rows * peers * ROOM
    tree = planning.tree_of(roster.adjacency())
    facts = NetworkFacts(peers, rows * peers, average=rows, weight=room, largest=room, tree=tree)
    plan = planning.plan(settings_of(terms), facts)
    start = await _start(terms, holdings, noise_scheme, plan.start_weight, peers, total, buy, source)
    residual = PrivateResidual(noise_scheme, holdings, not plan.declaration.first_is_start, source=source)
    largest_degree = int(np.diff(roster.adjacency().indptr).max(initial=0))
    noise = plan.noise(lambda boost: noise_scheme.spread(largest_degree, boost))
    invariants = plan.invariants(family, start, complete.tolist(), False, schema.limit, noise=noise)
    learner = learner_of(name, plan, terms, roster, holdings, start, invariants, residual)
    return Agreed(
        schema, family, layout.without_guards(family), peers, round(rows * peers), plan.strategy.name,
        plan.strategy.of_weights, learner, invariants, holdings, residual, plan.reason,
    )  # fmt: skip


def _units(terms: Terms) -> Units | None:
    """Return the units that are bought; None: everything was declared."""
    ranges = [terms.facts[name] for name in terms.features if terms.facts[name].bought]
    if not ranges and terms.privacy.rows is not None:
        return None
    promise = _promise(terms)
    cost = UNITS_SHARE * accounting.mu_of(promise.epsilon, promise.delta) ** 2
    return Units(tuple(facts.missing for facts in ranges), cost)


async def _measured(
    terms: Terms, peers: int, frame: pd.DataFrame, total: Total, buy: Buy, source: Source
) -> tuple[Schema, float]:
    """Return the schema with units, and the average number of rows of a peer."""
    schema, units = public_schema(terms), _units(terms)
    if units is None:
        assert terms.privacy.rows is not None
        return schema, terms.privacy.rows
    if units.discretisation() > accounting.DISCRETE / 4:
        raise PeerError(
            f"privacy.epsilon is {terms.privacy.epsilon:g}: so little noise would show its grid. "
            "Use a smaller one, or declare mean, sd and rows"
        )
    columns = [j for j, column in enumerate(schema.columns) if terms.facts[column.name].bought]
    table = Table.of(frame)
    column_indices = schema.places(table)

    def draw() -> np.ndarray:
        values = np.empty((table.rows, len(columns)))
        for k, j in enumerate(columns):
            column = schema.columns[j]
            values[:, k] = (column.numbers(table.column(column_indices[j])) - column.location) / column.scale
        return units.release(values, source)

    release = await buy("units", units.cost, draw)
    phase = Phase("units", integers_in((units.size,), peers * bought.MOST))
    rows, mean, deviation = units.opened((await total(phase, Integers(release))).values, peers)
    changed = list(schema.columns)
    for k, j in enumerate(columns):
        column = changed[j]
        location, scale = column.location + column.scale * float(mean[k]), column.scale * float(deviation[k])
        units_of_column = replace(column, location=location, scale=scale)
        changed[j] = _in_units(column, location, scale) if column.traits.needs_edges else units_of_column
    average = terms.privacy.rows or max(rows / peers, float(terms.privacy.min_rows))
    return replace(schema, columns=tuple(changed)), average


def _asked_pairs(terms: Terms, schema: Schema) -> PairTables | None:
    """Return the release that the structure is learned from; None: there is nothing to learn."""
    if not terms.combination.learns_structure:
        return None
    asked = PairTables.of(schema, layout.has_crosses(terms.family), structure_cost(_promise(terms)))
    refuse_large(terms, "the tables of all pairs of columns", asked.size)
    if asked.discretisation() > accounting.DISCRETE / 4:
        raise PeerError(
            f"privacy.epsilon is {terms.privacy.epsilon:g}: so little noise would show its grid. "
            "Use a smaller one, or declare the structure"
        )
    return asked


async def _structured(
    terms: Terms,
    schema: Schema,
    asked: PairTables | None,
    rows: Rows,
    labels: np.ndarray,
    peers: int,
    total: Total,
    buy: Buy,
    source: Source,
) -> tuple[Schema, Parents | None]:
    """Return the schema with its crosses, and the parents of columns: declared, or learned from one release."""
    crosses, learned = layout.has_crosses(terms.family), layout.STRUCTURES.get(terms.family)
    if terms.structure is not None:
        if crosses:
            return replace(schema, crosses=declared_crosses(terms.structure, schema, GROUPS)), None
        return schema, declared_parents(terms.structure, terms.family, schema)
    if asked is None:
        return schema, None
    summed = np.zeros(0)
    if asked.pairs:
        release = await buy("structure", asked.cost, lambda: asked.release(rows, labels, source))
        phase = Phase("structure", integers_in((asked.size,), peers * bought.MOST))
        summed = (await total(phase, Integers(release))).values
    noisy = asked.opened(summed, peers)
    if learned is None:
        return replace(schema, crosses=noisy.crosses(schema)), None
    return schema, learned(noisy, penalty=terms.penalty)


async def _start(
    terms: Terms,
    holdings: LocalRows,
    noise_scheme: Scheme,
    mass: float,
    peers: int,
    total: Total,
    buy: Buy,
    source: Source,
) -> np.ndarray:
    """Return S⁰ [C, K], the same for all peers: the uniform one, or one that is bought."""
    if terms.start == "uniform":
        return start_statistics("uniform", holdings.family, holdings.classes, mass)
    mechanism, marginal = noise_scheme.mechanism, terms.start == "marginal"

    def draw() -> np.ndarray:
        moved = mechanism.rows(holdings.family, holdings.rows)
        steps = np.ones((len(moved), 1)) if marginal else core.one_hot(holdings.labels, holdings.classes)
        sums = mechanism.clipped(steps, moved, noise_scheme.start_clip)
        sums += mechanism.noise(sums.shape, source, noise_scheme.start_sigma)
        return sums >> COARSER

    release = await buy("start", noise_scheme.start_cost, draw)
    phase = Phase("start", integers_in(release.shape, peers << (62 - COARSER)))
    summed = (await total(phase, Integers(release))).values
    moved = np.ldexp(summed.astype(np.float64), COARSER - mechanism.bits)
    stats = mechanism.coordinates.back(mechanism.projection(moved, False)) / (terms.lr * peers)
    stats = evened(terms.start, holdings.family, shared_out(terms.start, stats, holdings.classes))
    return np.ascontiguousarray(np.broadcast_to(stats, (holdings.classes, holdings.family.size)))
