"""Agreeing and learning with differential privacy: nothing of a peer's rows leaves it but releases with noise.

    units     counts and moments on known ranges, where location and scale or the number of rows are bought
    start     YᵀΦ or Σφ of all peers with noise, for the starts `ml` and `marginal`
    rounds    R̃ = Π(Σ_i w_i q_i h_iᵀ + noise), once a round; messages are made of these alone

Everything else is in the terms: columns, categories, classes, what may be missing. A release is stored with its cost
before anything made of it can be sent, and never drawn again once it is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np
import pandas as pd

from peerbayes import core, layouts
from peerbayes.calibration import start_statistics
from peerbayes.columns import Column
from peerbayes.holdings import Holdings
from peerbayes.invariants import invariants_of
from peerbayes.peers.agreement import Agreed, learner_of, refuse_large
from peerbayes.peers.edge_noise import refuse_thin
from peerbayes.peers.errors import PeerError, RefusedMessage
from peerbayes.peers.pooling import Integers, Phase, Total
from peerbayes.peers.releases import PrivateResidual
from peerbayes.peers.roster import Roster
from peerbayes.peers.terms import Terms
from peerbayes.privacy import accounting
from peerbayes.privacy import units as bought
from peerbayes.privacy.mechanism import MOST_ROWS
from peerbayes.privacy.sampling import Source
from peerbayes.privacy.scheme import UNITS_SHARE, Scheme, scheme
from peerbayes.privacy.terms import Privacy
from peerbayes.privacy.units import Units
from peerbayes.relay import Relay, spanning_tree
from peerbayes.schema import Schema, infinity_in
from peerbayes.strategies import CRC, NOISY_WINDOW, ROBUST_MEMORY, STRATEGIES, Exact, Local, Strategy
from peerbayes.tables import Table, missing_of

# Name and cost of a release, and how it is made -> what was released: now, or before.
Buy = Callable[[str, float, Callable[[], np.ndarray]], Awaitable[np.ndarray]]

# A sum of starts is told in steps of 2^(16 − bits): few enough bits for thousands of peers.
COARSER = 16

# How many rows a peer has nobody knows: so many times everybody's as they are thought to be, it surely has not.
ROOM = 10.0


# --- what everybody knows ------------------------------------------------------------------------------


def public_schema(terms: Terms) -> Schema:
    """The schema that the terms declare; a column whose units are bought has those of its range: u within ±1."""
    columns = []
    for name, kind in terms.features.items():
        facts = terms.facts[name]
        if kind == "discrete":
            columns.append(Column(name, "discrete", facts.categories))
        elif facts.range is not None:
            low, high = facts.range
            columns.append(Column(name, "continuous", (), low + (high - low) / 2, (high - low) / 2))
        else:
            assert facts.mean is not None and facts.sd is not None
            columns.append(Column(name, "continuous", (), facts.mean, facts.sd))
    bound = _promise(terms).bound  # what is beyond is clipped in releases, and so in the model as well
    return Schema(
        tuple(columns), terms.classes, bound if terms.clip is None else min(bound, terms.clip), terms.label
    )


def refuse_rows(frame: pd.DataFrame, labels: np.ndarray, terms: Terms) -> None:
    """Refuse a table that the terms do not describe, before anything of it is sent; the rows are this peer's own.

    That a peer does not run is all that others see of it. So the promise is about tables that the agreement describes:
    no row of such a table makes another one's values be read otherwise, nor stops the peer later.
    """
    promise = _promise(terms)
    least = max(promise.min_rows, terms.limits.rows)
    if len(frame) < least:
        raise PeerError(
            f"the table has {len(frame)} rows; the agreement asks for {least} or more (privacy.min_rows, limits.rows), "
            "since noise would drown what so few have to say. This peer takes no part"
        )
    if len(frame) > MOST_ROWS:
        raise PeerError(
            f"the table has {len(frame):,} rows; a private peer takes up to {MOST_ROWS:,}: split it into several"
        )
    refuse_values(frame, labels, terms)


def refuse_values(frame: pd.DataFrame, labels: np.ndarray, terms: Terms) -> None:
    """Refuse rows with values that the terms do not describe; those to test on, too."""
    schema, table = public_schema(terms), Table.of(frame)
    places = schema.places(table)
    for j, column in enumerate(schema.columns):
        values = table.column(places[j])
        gone = missing_of(values)
        if column.kind == "continuous":
            numbers = column.numbers(values)
            gone = np.isnan(numbers)
            if np.isinf(numbers).any():
                raise infinity_in(column.name, int(np.argmax(np.isinf(numbers))))
        if gone.any() and not terms.facts[column.name].missing:
            raise PeerError(
                f"column {column.name!r} has no value in {int(gone.sum())} rows; the agreement says that none is "
                f"missing. Fill them in, or found a network with missing = true in [features.{column.name}]"
            )
        if column.kind == "discrete":
            strange = (column.codes(values) < 0) & ~gone
            if strange.any():
                raise PeerError(
                    f"column {column.name!r} holds {values[int(np.argmax(strange))]!r:.60}; the agreement names "
                    f"{', '.join(map(repr, column.categories[:20]))}. Make it one of these, or found a network that "
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
    """Everything that the rounds need, from the terms and from releases with noise.

    `buy` stores a release with its cost, or gives back the one that was stored. `source` is where noise comes from.
    """
    promise = _promise(terms)
    refuse_rows(frame, labels, terms)
    refuse_thin(roster, promise)
    peers = len(roster.members)
    schema, rows = await _measured(terms, peers, frame, total, buy, source)
    missing = any(terms.facts[schema.columns[j].name].missing for j in schema.continuous)
    family = layouts.calibrated(terms.family, schema, missing, rows * peers)
    refuse_large(terms, len(schema.classes), family.size)
    held = Holdings(
        family, schema.encode(frame), schema.encode_labels(labels), np.ones(len(frame)), np.array([len(frame)]),
        len(schema.classes),
    )  # fmt: skip
    whole = np.array([not terms.facts[schema.columns[j].name].missing for j in schema.discrete], dtype=bool)
    found = scheme(
        promise, family, len(schema.classes), rows, peers, terms.rounds, terms.lr,
        roster.adjacency() if promise.edge_noise else None, whole, terms.start != "uniform", _units(terms) is not None,
    )  # fmt: skip
    mass = rows / terms.lr
    start = await _start(terms, held, found, mass, peers, total, buy, source)
    strategy = _strategy(name, terms, roster)
    residual = PrivateResidual(found, held, not isinstance(strategy, STRATEGIES_AFTER), source=source)
    known = invariants_of(
        strategy, family, start, whole.tolist(), False, rows * peers * ROOM, rows * peers * ROOM, mass, 1, schema.limit,
        terms.start != "ml",
    )  # fmt: skip
    known = replace(known, noise=_spread(found, strategy, roster))
    learner = replace(  # type: ignore[type-var]
        learner_of(name, strategy, terms, roster, spanning_tree(roster.adjacency()), held, start, known),
        residual=residual,
    )
    return Agreed(
        schema, family, layouts.without_guards(family), peers, round(rows * peers), terms.strategy, False, learner,
        known, held, residual,
    )  # fmt: skip


def _units(terms: Terms) -> Units | None:
    """What is bought of columns and rows; None: everything was declared."""
    ranges = [terms.facts[name] for name in terms.features if terms.facts[name].bought]
    if not ranges and terms.privacy.rows is not None:
        return None
    promise = _promise(terms)
    cost = UNITS_SHARE * accounting.mu_of(promise.epsilon, promise.delta) ** 2
    return Units(tuple(facts.missing for facts in ranges), cost)


async def _measured(
    terms: Terms, peers: int, frame: pd.DataFrame, total: Total, buy: Buy, source: Source
) -> tuple[Schema, float]:
    """The schema with units, and the rows of a peer on average."""
    schema, asked = public_schema(terms), _units(terms)
    if asked is None:
        assert terms.privacy.rows is not None
        return schema, terms.privacy.rows
    if asked.discretisation() > accounting.DISCRETE / 2:
        raise PeerError(
            f"privacy.epsilon is {terms.privacy.epsilon:g}: so little noise would show its grid. "
            "Use a smaller one, or declare mean, sd and rows"
        )
    columns = [j for j in schema.continuous if terms.facts[schema.columns[j].name].bought]
    table = Table.of(frame)
    places = schema.places(table)

    def made() -> np.ndarray:
        values = np.empty((table.rows, len(columns)))
        for k, j in enumerate(columns):
            column = schema.columns[j]
            values[:, k] = (column.numbers(table.column(places[j])) - column.location) / column.scale
        return asked.release(values, source)

    own = await buy("units", asked.cost, made)
    phase = Phase("units", _integers((asked.size,), peers * bought.MOST))
    rows, mean, deviation = asked.opened((await total(phase, Integers(own))).values, peers)
    changed = list(schema.columns)
    for k, j in enumerate(columns):
        column = changed[j]
        location, scale = column.location + column.scale * float(mean[k]), column.scale * float(deviation[k])
        changed[j] = replace(column, location=location, scale=scale)
    average = terms.privacy.rows or max(rows / peers, float(terms.privacy.min_rows))
    return replace(schema, columns=tuple(changed)), average


def _integers(shape: tuple[int, ...], most: int) -> Callable[[bytes], Integers]:
    """What reads a part of a sum of integers, each at most so large."""

    def parse(content: bytes) -> Integers:
        if len(content) != 8 * math.prod(shape):
            raise RefusedMessage("wrong shape", f"{len(content):,} bytes instead of {8 * math.prod(shape):,}")
        values = np.frombuffer(content, dtype="<i8").reshape(shape)
        if values.size and max(int(values.max()), -int(values.min())) > most:
            raise RefusedMessage("absurd magnitude", "an entry above what all peers together can have")
        return Integers(values)

    return parse


async def _start(
    terms: Terms,
    held: Holdings,
    found: Scheme,
    mass: float,
    peers: int,
    total: Total,
    buy: Buy,
    source: Source,
) -> np.ndarray:
    """S⁰ [C, K], the same for all peers: the uniform one, or one that is bought."""
    if terms.start == "uniform":
        return start_statistics("uniform", held.family, held.classes, mass)
    mechanism, marginal = found.mechanism, terms.start == "marginal"
    cost = found.ledger.first - (UNITS_SHARE * _whole_budget(found) if _units(terms) is not None else 0.0)

    def made() -> np.ndarray:
        moved = mechanism.rows(held.family, held.rows)
        steps = np.ones((len(moved), 1)) if marginal else core.one_hot(held.labels, held.classes)
        whole = mechanism.clipped(steps, moved, found.start_clip)
        whole += mechanism.noise(whole.shape, source, found.start_sigma)
        return whole >> COARSER

    own = await buy("start", cost, made)
    phase = Phase("start", _integers(own.shape, peers << (62 - COARSER)))
    summed = (await total(phase, Integers(own))).values
    moved = np.ldexp(summed.astype(np.float64), COARSER - mechanism.bits)
    stats = mechanism.coordinates.back(mechanism.projection(moved, False)) / (terms.lr * peers)
    shape = (held.classes, held.family.size)
    return np.ascontiguousarray(np.broadcast_to(stats / held.classes, shape) if marginal else stats)


def _whole_budget(found: Scheme) -> float:
    return accounting.mu_of(found.terms.epsilon, found.terms.delta) ** 2


# Strategies whose first message is the start itself: they release after they have heard, and once more for the model.
STRATEGIES_AFTER = (CRC, Local)


def _strategy(name: str, terms: Terms, roster: Roster) -> Strategy | Relay:
    if terms.strategy == "relay":
        return Relay(spanning_tree(roster.adjacency()).seen_from(roster.place(name))[0], terms.rounds)
    if terms.strategy == "exact":
        averaged = int(terms.rounds * NOISY_WINDOW)
        return Exact(terms.rounds, ROBUST_MEMORY if terms.robust.acts else 1.0, averaged)
    return STRATEGIES[terms.strategy]()


def _spread(found: Scheme, strategy: Strategy | Relay, roster: Roster) -> float:
    """Standard deviation of what a round's noise can add to an entry of a message. `relay` sends sums over peers."""
    most = int(np.diff(roster.adjacency().indptr).max(initial=0))
    own = found.spread(most, float(getattr(strategy, "boost", 1.0)))
    return own * (math.sqrt(len(roster.members)) if isinstance(strategy, Relay) else 1.0)
