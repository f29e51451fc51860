"""All peers of a simulation before the first round: their rows, their links, and the attackers."""

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
class HeldOutRows:
    """Test rows and their labels, raw and encoded."""

    X: Any
    y: Any
    rows: Rows
    labels: np.ndarray


@dataclass(frozen=True, eq=False)
class Population:
    """The peers and their data before the first round."""

    table: Table
    row_indices: np.ndarray
    """[m] the peers' rows in the table, peer by peer."""
    schema: Schema
    """Columns and classes, in the units of the peers' rows."""
    held: Holdings
    """The peers' rows, encoded."""
    test_rows: HeldOutRows | None
    network: topologies.Schedule
    links: np.ndarray
    """[E, 2] the links of the last round, without absences."""
    attackers: np.ndarray
    """Peers that lie."""
    hidden: private.PrivateRows | None
    """Residuals with noise, where rows are private."""
    sent: np.ndarray
    """[N] bytes that each peer sent to agree on a structure."""
    reports: Reported | None = None
    """The peers' reports before the first round, where they may be false or are bounded."""

    @classmethod
    def of(
        cls, settings: Asked, X: Any, y: Any, schema: Schema | None, test: tuple[Any, Any] | None
    ) -> Population:
        """Return the peers of these settings, with the rows X and labels y divided among them."""
        device, nodes, seed = settings.place, settings.nodes, settings.seed
        table = table_of(X)
        enough(nodes, table.rows)  # before the network is drawn
        network = drawn.draw_network(settings.topology, nodes, seed, settings.change_every)
        dealt = Dealt.of(
            table,
            y,
            schema,
            settings.kinds,
            settings.clip,
            settings.partition,
            nodes,
            settings.rows_per_node,
            seed,
        )
        links = topologies.pairs(network.at(settings.rounds))
        if settings.peers_down:
            network = drawn.with_absences(network, settings.peers_down, seed)
        origin = "X" if schema is None else "X and schema"
        attackers = (
            np.zeros(0, dtype=np.int64) if settings.attack is None else settings.attack.attackers(nodes, seed)
        )
        with about(origin, "peer"):  # errors about a refused peer are not about the table
            agreed, reports = _agreed_schema(dealt, settings, attackers, network, declared=schema is not None)
        rows, labels, sizes = (
            encoded(agreed, dealt.rows(), origin),
            dealt.codes[dealt.row_indices],
            dealt.sizes,
        )
        weights = np.repeat(row_weights(settings.objective, sizes), sizes)
        if reports is not None:
            weights *= np.repeat(reports.weights, sizes)
        test_rows = _test_rows(agreed, test, dealt)
        family, sent = _family(settings.family, agreed, rows, labels, sizes, test_rows, network, reports)
        if getattr(settings.strategy, "name", settings.strategy) == "dsgd":
            refuse_gaps(family, rows, *(() if test_rows is None else (test_rows.rows,)))
        rows, labels = _training_rows(
            family, rows, labels, settings.attack, attackers, sizes, len(agreed.classes)
        )
        local = Holdings(family, rows, labels, weights, sizes, len(agreed.classes), device)
        hidden = _private_rows(settings, local, network)
        return cls(
            dealt.table,
            dealt.row_indices,
            agreed,
            local,
            test_rows,
            network,
            links,
            attackers,
            hidden,
            sent,
            reports,
        )

    @property
    def nodes(self) -> int:
        return self.held.nodes

    @property
    def family(self) -> Family:
        """The family, with its guards."""
        return self.held.family

    @property
    def reported_rows(self) -> float:
        """The number of rows of all peers, as they reported them."""
        return float((self.held.sizes if self.reports is None else self.reports.rows).sum())

    @cached_property
    def honest(self) -> np.ndarray:
        """Peers that do not lie."""
        return np.delete(np.arange(self.nodes), self.attackers)

    @cached_property
    def from_honest(self) -> np.ndarray:
        """[m] which rows are held by honest peers."""
        return _from_honest(self.attackers, self.held.sizes)


def _agreed_schema(
    dealt: Dealt, settings: Asked, attackers: np.ndarray, network: topologies.Schedule, declared: bool
) -> tuple[Schema, Reported | None]:
    """Return the schema in the units of the peers' rows, and the reports; private rows keep declared units."""
    if settings.checks_reports:
        base = network.base if isinstance(network, topologies.Churn) else network
        reports = reported(dealt.schema, dealt.rows(), dealt.sizes, _liars(settings, attackers, base))
        return reports.schema, reports
    if settings.privacy is None:
        return dealt.schema.measured_on(dealt.rows()), None
    bounded = replace(dealt.schema, clip=min(settings.privacy.bound, dealt.schema.limit))
    return bounded if declared else bounded.measured_on(dealt.rows()), None


def _liars(settings: Asked, attackers: np.ndarray, network: topologies.Schedule) -> Liars:
    """Return the peers that lie before the first round, and whether the others check their reports."""
    enforced = settings.robust is not None
    if settings.attack is None or settings.attack.report is None:
        return Liars(attackers[:0], enforced=enforced)
    links = links_of(attackers, network.at(1))
    return Liars(attackers, settings.attack.report, settings.attack.allowed, enforced, links)


def _test_rows(schema: Schema, test: tuple[Any, Any] | None, dealt: Dealt) -> HeldOutRows | None:
    """Return the test rows: the user's, or those that no peer holds, if there are any."""
    test_data, name = (dealt.rest(), "X") if test is None else (test, "test")
    return None if test_data is None else HeldOutRows(*test_data, *encoded_labelled(schema, test_data, name))


def _family(
    name: str,
    schema: Schema,
    rows: Rows,
    labels: np.ndarray,
    sizes: np.ndarray,
    test_rows: HeldOutRows | None,
    network: topologies.Schedule,
    reports: Reported | None,
) -> tuple[Family, np.ndarray]:
    """Return the family that peers calibrate, and the bytes that each sent to agree on its structure: [N]."""
    blocks = (rows,) if test_rows is None else (rows, test_rows.rows)
    missing = any(np.isnan(rows_of_block.values).any() for rows_of_block in blocks)
    parents, sent = None, np.zeros(sizes.size)
    if learned := layouts.STRUCTURES.get(name):
        weights = None if reports is None else reports.weights
        pairs, sent = structure.pooled(rows, labels, sizes, schema, network.at(1), weights)
        parents = learned(pairs)
    total = float((sizes if reports is None else reports.rows).sum())
    return layouts.calibrated(name, schema, missing, total, parents), sent


def _from_honest(attackers: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return which rows are not held by attackers: [m]."""
    return np.repeat(~np.isin(np.arange(sizes.size), attackers), sizes)


def _training_rows(
    family: Family,
    rows: Rows,
    labels: np.ndarray,
    attack: Attack | None,
    attackers: np.ndarray,
    sizes: np.ndarray,
    classes: int,
) -> tuple[Rows, np.ndarray]:
    """Return the rows and labels that peers learn from: poisoning attackers reverse labels and may repeat rows."""
    if attack is None or attack.kind not in ON_OWN_ROWS:
        return rows, labels
    if attack.kind == "poison":
        ends = np.cumsum(sizes)
        order = np.arange(labels.size)
        for peer in attackers:
            own_rows = order[ends[peer] - sizes[peer] : ends[peer]]
            features = np.asarray(family.features(Rows(rows.values[own_rows], rows.codes[own_rows])))
            order[own_rows] = own_rows[poisoned(np.linalg.norm(np.nan_to_num(features), axis=1))]
        rows, labels = Rows(rows.values[order], rows.codes[order]), labels[order]
    return rows, np.where(_from_honest(attackers, sizes), labels, classes - 1 - labels)


def _private_rows(
    settings: Asked, local: Holdings, network: topologies.Schedule
) -> private.PrivateRows | None:
    """Return the residuals with noise, where rows are private."""
    if settings.privacy is None:
        return None
    with about("privacy"):
        scheme = private.agreed(
            settings.privacy, local, settings.rounds, settings.lr, network, settings.start, settings.lossy
        )
    return private.PrivateRows(scheme, local, network.at(1), settings.seed)
