"""All peers of a simulation before they learn: their rows, their links, and who of them lies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from peerbayes import layouts, structure, topologies
from peerbayes.arguments import about
from peerbayes.attacks import ON_OWN_ROWS, Attack, poisoned
from peerbayes.families import Family, Rows
from peerbayes.holdings import Holdings
from peerbayes.inputs import encoded, encoded_labelled, refuse_gaps, row_weights, table_of
from peerbayes.partitions import enough
from peerbayes.privacy import simulated as private
from peerbayes.schema import Schema
from peerbayes.simulation import drawn
from peerbayes.simulation.asked import Asked
from peerbayes.simulation.drawn import Dealt
from peerbayes.simulation.liars import Liars, links_of
from peerbayes.simulation.reports import Reported, reported
from peerbayes.tables import Table


@dataclass(frozen=True, eq=False)
class Unseen:
    """Rows to test on and their labels, and the same encoded."""

    X: Any
    y: Any
    rows: Rows
    labels: np.ndarray


@dataclass(frozen=True, eq=False)
class Population:
    """The peers, and all that they know before the first round."""

    table: Table
    own: np.ndarray
    """[m] which rows of the table are theirs, one peer's after the other's."""
    schema: Schema
    """What columns and classes are, in the units of their rows."""
    held: Holdings
    """Their rows, encoded."""
    unseen: Unseen | None
    network: topologies.Schedule
    links: np.ndarray
    """[E, 2] who is linked with whom in the last round, if nobody is away."""
    attackers: np.ndarray
    """Peers that lie."""
    hidden: private.PrivateRows | None
    """R with noise, where rows are private."""
    sent: np.ndarray
    """[N] bytes that each sent to agree on a structure."""
    reports: Reported | None = None
    """What each reported before the first round, where that may be false or is bounded."""

    @classmethod
    def of(
        cls, asked: Asked, X: Any, y: Any, schema: Schema | None, test: tuple[Any, Any] | None
    ) -> Population:
        place, nodes, seed = asked.place, asked.nodes, asked.seed
        table = table_of(X)
        enough(nodes, table.rows)  # before links are drawn between so many
        network = drawn.network(asked.topology, nodes, seed, asked.change_every)
        dealt = Dealt.of(
            table, y, schema, asked.kinds, asked.clip, asked.partition, nodes, asked.rows_per_node, seed
        )
        links = topologies.pairs(network.at(asked.rounds))
        if asked.peers_down:
            network = drawn.with_absences(network, asked.peers_down, seed)
        origin = "X" if schema is None else "X and schema"
        attackers = (
            np.zeros(0, dtype=np.int64) if asked.attack is None else asked.attack.attackers(nodes, seed)
        )
        with about(origin, "peer"):  # a peer that is refused is no fault of the table
            agreed, reports = _agreed_schema(dealt, asked, attackers, network, declared=schema is not None)
        rows, labels, sizes = encoded(agreed, dealt.rows(), origin), dealt.codes[dealt.own], dealt.sizes
        weights = np.repeat(row_weights(asked.objective, sizes), sizes)
        if reports is not None:
            weights *= np.repeat(reports.weights, sizes)
        unseen = _unseen(agreed, test, dealt)
        family, sent = _family(asked.family, agreed, rows, labels, sizes, unseen, network, reports)
        if getattr(asked.strategy, "name", asked.strategy) == "dsgd":
            refuse_gaps(family, rows, *(() if unseen is None else (unseen.rows,)))
        rows, labels = _taught(family, rows, labels, asked.attack, attackers, sizes, len(agreed.classes))
        held = Holdings(family, rows, labels, weights, sizes, len(agreed.classes), place)
        hidden = _hidden(asked, held, network)
        return cls(
            dealt.table, dealt.own, agreed, held, unseen, network, links, attackers, hidden, sent, reports
        )

    @property
    def nodes(self) -> int:
        return self.held.nodes

    @property
    def family(self) -> Family:
        """What a class looks like, with its guards."""
        return self.held.family

    @property
    def reported_rows(self) -> float:
        """The rows of all peers, as they reported them."""
        return float((self.held.sizes if self.reports is None else self.reports.rows).sum())

    @cached_property
    def honest(self) -> np.ndarray:
        """Peers that do not lie."""
        return np.delete(np.arange(self.nodes), self.attackers)

    @cached_property
    def fair(self) -> np.ndarray:
        """[m] which rows honest peers hold."""
        return _of_others(self.attackers, self.held.sizes)


def _agreed_schema(
    dealt: Dealt, asked: Asked, attackers: np.ndarray, network: topologies.Schedule, declared: bool
) -> tuple[Schema, Reported | None]:
    """In the units of the peers' rows; declared ones stay where rows are private, which units would tell of."""
    if asked.checks_reports:
        base = network.base if isinstance(network, topologies.Churn) else network
        reports = reported(dealt.schema, dealt.rows(), dealt.sizes, _liars(asked, attackers, base))
        return reports.schema, reports
    if asked.privacy is None:
        return dealt.schema.measured_on(dealt.rows()), None
    bounded = replace(dealt.schema, clip=min(asked.privacy.bound, dealt.schema.limit))
    return bounded if declared else bounded.measured_on(dealt.rows()), None


def _liars(asked: Asked, attackers: np.ndarray, network: topologies.Schedule) -> Liars:
    """Who lies before the first round, and whether the others are prepared for it."""
    enforced = asked.robust is not None
    if asked.attack is None or asked.attack.report is None:
        return Liars(attackers[:0], enforced=enforced)
    links = links_of(attackers, network.at(1))
    return Liars(attackers, asked.attack.report, asked.attack.allowed, enforced, links)


def _unseen(schema: Schema, test: tuple[Any, Any] | None, dealt: Dealt) -> Unseen | None:
    away, name = (dealt.rest(), "X") if test is None else (test, "test")
    return None if away is None else Unseen(*away, *encoded_labelled(schema, away, name))


def _family(
    name: str,
    schema: Schema,
    rows: Rows,
    labels: np.ndarray,
    sizes: np.ndarray,
    unseen: Unseen | None,
    network: topologies.Schedule,
    reports: Reported | None,
) -> tuple[Family, np.ndarray]:
    """The family that peers calibrate, and the bytes that each sent to agree on its structure: [N]."""
    every = (rows,) if unseen is None else (rows, unseen.rows)
    missing = any(np.isnan(part.values).any() for part in every)
    parents, sent = None, np.zeros(sizes.size)
    if learned := layouts.STRUCTURES.get(name):
        weights = None if reports is None else reports.weights
        pairs, sent = structure.pooled(rows, labels, sizes, schema, network.at(1), weights)
        parents = learned(pairs)
    total = float((sizes if reports is None else reports.rows).sum())
    return layouts.calibrated(name, schema, missing, total, parents), sent


def _of_others(attackers: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Which rows are not the attackers': [m]."""
    return np.repeat(~np.isin(np.arange(sizes.size), attackers), sizes)


def _taught(
    family: Family,
    rows: Rows,
    labels: np.ndarray,
    attack: Attack | None,
    attackers: np.ndarray,
    sizes: np.ndarray,
    classes: int,
) -> tuple[Rows, np.ndarray]:
    """The rows and labels that peers learn from: attackers on altered rows reverse labels, and some repeat rows."""
    if attack is None or attack.kind not in ON_OWN_ROWS:
        return rows, labels
    if attack.kind == "poison":
        ends = np.cumsum(sizes)
        order = np.arange(labels.size)
        for peer in attackers:
            mine = order[ends[peer] - sizes[peer] : ends[peer]]
            features = np.asarray(family.features(Rows(rows.values[mine], rows.codes[mine])))
            order[mine] = mine[poisoned(np.linalg.norm(np.nan_to_num(features), axis=1))]
        rows, labels = Rows(rows.values[order], rows.codes[order]), labels[order]
    return rows, np.where(_of_others(attackers, sizes), labels, classes - 1 - labels)


def _hidden(asked: Asked, held: Holdings, network: topologies.Schedule) -> private.PrivateRows | None:
    if asked.privacy is None:
        return None
    with about("privacy"):
        scheme = private.agreed(
            asked.privacy, held, asked.rounds, asked.lr, network, asked.start, asked.lossy
        )
    return private.PrivateRows(scheme, held, network.at(1), asked.seed)
