"""What peers agree on before the first round, by exact sums over the roster's spanning tree.

    columns   kinds, categories and classes (unions), n, m, and Σx of continuous columns
    spread    Σ(x − mean)²: with it every peer has the same schema, to the last bit
    start     YᵀΦ of all peers, for the starts `ml` and `marginal`; `bound` before it, so that integers can hold it
    squares   Σ‖φ‖², for dsgd
    differ    how far apart neighbours' first residuals are, for `auto` where peers are not near each other

Only such sums travel. A later family may add a phase of its own, for instance to agree on a structure.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

from peerbayes import layouts, topologies
from peerbayes.calibration import start_statistics
from peerbayes.families import FAMILIES, Family
from peerbayes.holdings import Holdings
from peerbayes.peers.errors import PeerError, RefusedMessage
from peerbayes.peers.learner import Broadcaster, Learner, Plausible, Relayer
from peerbayes.peers.roster import Roster
from peerbayes.peers.summary import Summary, Sums, with_scales
from peerbayes.peers.terms import Terms
from peerbayes.relay import DIFFERENT, NEAR, Relay, Tree, spanning_tree
from peerbayes.schema import Schema
from peerbayes.statistics import Statistics
from peerbayes.strategies import DSGD, STRATEGIES, Exact, Strategy
from peerbayes.tables import Table

GRID = 62  # bits of an exact sum of statistics


@dataclass(frozen=True, eq=False)
class Integers:
    """Statistics on a grid, so that they add up to the same bits in any order: [C, K] int64."""

    values: np.ndarray

    def __add__(self, other: Integers) -> Integers:
        if self.values.shape != other.values.shape:
            raise RefusedMessage("wrong shape", f"{other.values.shape} instead of {self.values.shape}")
        return Integers(self.values + other.values)

    def pack(self) -> bytes:
        return np.ascontiguousarray(self.values, dtype="<i8").tobytes()


@dataclass(frozen=True)
class Phase:
    """One sum: its name, how a part of it is read, and of how many peers it then is, where it says so."""

    name: str
    parse: Callable[[bytes], Any]
    peers: Callable[[Any], int] | None = None


Total = Callable[[Phase, Any], Awaitable[Any]]  # own value -> that of all peers
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
    plausible: Plausible
    held: Holdings
    """This peer's rows."""

    def statistics(self, stats: np.ndarray) -> Statistics:
        return Statistics(stats, self.schema, self.layout, calibrated=True)


def data_digest(frame: pd.DataFrame, labels: np.ndarray) -> str:
    """What a peer's rows are: a run goes on only with the same."""
    digest = hashlib.sha256(repr([str(name) for name in frame.columns]).encode())
    for part in (frame, pd.Series(labels)):
        digest.update(pd.util.hash_pandas_object(part, index=False).to_numpy().tobytes())
    return digest.hexdigest()


def described(name: str, frame: pd.DataFrame, labels: np.ndarray, terms: Terms) -> Summary:
    """A peer's own table, for the first sum."""
    if len(frame) < terms.limits.rows:
        raise PeerError(
            f"the table has {len(frame)} rows; the agreement asks for {terms.limits.rows} or more"
        )
    kinds: Any = dict(terms.features) or "auto"
    schema = Schema.infer(frame, labels, kinds=kinds, clip=terms.clip)
    table = Table.of(frame)
    values = {
        column.name: column.numbers(table.column(place))
        for place, column in enumerate(schema.columns)
        if column.kind == "continuous"
    }
    return Summary.of(name, schema, values, len(frame))


async def agree(
    name: str,
    frame: pd.DataFrame,
    labels: np.ndarray,
    terms: Terms,
    roster: Roster,
    total: Total,
    first: First,
) -> Agreed:
    """Everything that the rounds need, from this peer's rows and everybody's sums."""
    columns = Phase("columns", Summary.parse, peers=lambda part: part.peers)
    summary = await total(columns, described(name, frame, labels, terms))
    schema = summary.schema(terms.label, terms.clip)
    names = [schema.columns[j].name for j in schema.continuous]
    squares = await total(Phase("spread", Sums.named(*names)), _squares(schema, frame))
    schema = with_scales(schema, squares)
    if summary.missing and not FAMILIES[terms.family].takes_missing:
        raise PeerError(
            f"{terms.family} needs every continuous value, and some are missing at one of the peers"
        )
    family = layouts.calibrated(terms.family, schema, summary.missing, float(summary.rows))
    classes, size = len(schema.classes), family.size
    largest = 8 * classes * size * (2 if terms.strategy == "tracking" else 1)
    if largest > terms.limits.message_bytes:
        raise PeerError(
            f"statistics of {classes} classes × {size:,} features are messages of {largest:,} bytes; the agreement "
            f"allows {terms.limits.message_bytes:,}. Raise limits.message_bytes, or leave out features with many values"
        )
    sizes = np.array([len(frame)])
    held = Holdings(
        family, schema.encode(frame), schema.encode_labels(labels), np.ones(len(frame)), sizes, classes
    )
    mass = summary.rows / (terms.lr * summary.peers)
    start = await _start(terms, held, mass, summary.peers, total)
    tree = spanning_tree(roster.adjacency())
    chosen = terms.strategy
    if chosen == "auto":
        fits = await _relay_fits(terms, held, start, tree, summary.rows, schema.limit**2, total, first)
        chosen = "relay" if fits else "exact"
    learner, strategy = await _learner(name, chosen, terms, roster, tree, held, start, summary, total)
    reach = max(1.0, schema.limit**2)
    rate = getattr(strategy, "rate", 1.0)
    known = {"relay": np.zeros(size), "dsgd": np.zeros(size), "consensus-ml": None}
    plausible = Plausible(
        sums=known.get(chosen, start.sum(axis=0)),
        mass=mass,
        cells=_cells(family, schema, summary),
        growth=rate * summary.rows * reach,
        centre=start if chosen not in known else np.zeros_like(start),
    )
    layout = FAMILIES[terms.family](**{**family.layout(), "cardinalities": family.cardinalities})
    of_weights = bool(getattr(strategy, "of_weights", False))
    return Agreed(
        schema, family, layout, summary.peers, summary.rows, chosen, of_weights, learner, plausible, held
    )


def _squares(schema: Schema, frame: pd.DataFrame) -> Sums:
    """Σ(x − location)² of each continuous column."""
    table = Table.of(frame)
    places, found = schema.places(table), Sums()
    for j in schema.continuous:
        column = schema.columns[j]
        values = column.numbers(table.column(places[j]))
        apart = values[~np.isnan(values)] - column.location
        found[column.name] = Fraction(math.fsum(apart * apart))
    return found


async def _start(terms: Terms, held: Holdings, mass: float, peers: int, total: Total) -> np.ndarray:
    """S⁰ [C, K]: the same for all peers, but for consensus-ml, which averages what each has."""
    if terms.strategy == "consensus-ml":
        return held.statistics()[0]
    if terms.start == "uniform":
        return start_statistics("uniform", held.family, held.classes, mass)
    own = held.statistics()[0]
    bound = await total(Phase("bound", Sums.named("most")), Sums(most=Fraction(float(np.abs(own).max()))))
    # Every sum is below the bound, so on this grid it stays below 2^62.
    exponent = GRID - math.frexp(float(bound["most"]) * (1 + 1e-9))[1]
    shape = own.shape

    def parse(content: bytes) -> Integers:
        if len(content) != 8 * own.size:
            raise RefusedMessage("wrong shape", f"{len(content):,} bytes instead of {8 * own.size:,}")
        values = np.frombuffer(content, dtype="<i8").reshape(shape)
        if (np.abs(values) >> GRID).any():
            raise RefusedMessage("absurd magnitude", "an entry above what all peers together can have")
        return Integers(values)

    grid = Integers(np.rint(np.ldexp(own, exponent)).astype(np.int64))
    pooled = np.ldexp((await total(Phase("start", parse), grid)).values.astype(np.float64), -exponent)
    if terms.start == "marginal":
        pooled = np.broadcast_to(pooled.sum(axis=0) / held.classes, shape)
    return np.ascontiguousarray(pooled / (terms.lr * peers))


async def _relay_fits(
    terms: Terms,
    held: Holdings,
    start: np.ndarray,
    tree: Tree,
    rows: int,
    reach: float,
    total: Total,
    first: First,
) -> bool:
    """As in the simulator: everybody is near, or data differ."""
    if tree.mean_distance <= NEAR * terms.rounds:
        return True
    change, within = held.first(start[None])
    own = np.concatenate([change[0].ravel(), within])
    # No peer has more than all rows, and no row has more than this.
    most = rows * max(1.0, reach)

    def check(numbers: np.ndarray) -> None:
        if (np.abs(numbers[:-1]) > most).any() or not 0 <= numbers[-1] <= most**2:
            raise RefusedMessage("absurd magnitude", f"an entry as large as {np.abs(numbers).max():.3g}")

    told = await first(own, check)
    apart = sum(float(((own[:-1] - other[:-1]) ** 2).sum()) for other in told.values())
    noise = sum(float(own[-1] + other[-1]) for other in told.values())
    sums = await total(
        Phase("differ", Sums.named("apart", "noise")), Sums(apart=Fraction(apart), noise=Fraction(noise))
    )
    return float(sums["apart"]) > DIFFERENT * float(sums["noise"])


async def _learner(
    name: str,
    chosen: str,
    terms: Terms,
    roster: Roster,
    tree: Tree,
    held: Holdings,
    start: np.ndarray,
    summary: Summary,
    total: Total,
) -> tuple[Learner, Any]:
    names = [member.name for member in roster.members]
    if chosen == "relay":
        own, neighbours = tree.seen_from(roster.place(name))
        relay = Relay(own, terms.rounds)
        told = tuple(names[place] for place in neighbours)
        return Relayer(relay, told, start, held.residual(terms.rounds, terms.local_steps)), relay
    strategy: Strategy
    if chosen == "exact":
        strategy = Exact(rounds=terms.rounds)
    elif chosen == "dsgd":
        mine = Fraction(held.mean_square()) * len(held.labels)
        squares = await total(Phase("squares", Sums.named("squares")), Sums(squares=mine))
        mean = float(squares["squares"] / summary.rows)
        strategy = DSGD(rate=summary.peers / summary.rows / (0.5 * mean))
    else:
        strategy = STRATEGIES[chosen]()
    residual = held.residual(terms.rounds, terms.local_steps, strategy.of_weights)
    weights: dict[str, float] = {}
    if strategy.mixing != "none":
        row = getattr(topologies, strategy.mixing)(roster.adjacency())[[roster.place(name)], :].toarray()[0]
        weights = {other: float(row[roster.place(other)]) for other in roster.neighbours(name)}
    return Broadcaster(strategy, weights, start, residual), strategy


def _cells(family: Family, schema: Schema, summary: Summary) -> tuple[slice, ...]:
    """Where φ holds the cells of discrete columns that have a value in every row."""
    begins = family.dense_size + np.concatenate([[0], np.cumsum(family.cardinalities)]).astype(int)
    return tuple(
        slice(int(begins[k]), int(begins[k + 1]))
        for k, j in enumerate(schema.discrete)
        if summary.whole(schema.columns[j].name)
    )
