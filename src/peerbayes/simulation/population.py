"""All peers of a simulation: who holds which rows, who is linked to whom, who lies."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.sparse import csgraph, csr_array

from peerbayes import network as topologies
from peerbayes.data.arguments import about
from peerbayes.data.infer import infer_classes, infer_columns
from peerbayes.data.schema import Schema
from peerbayes.data.table import Table
from peerbayes.errors import SchemaError
from peerbayes.learning import integer_sums, planning
from peerbayes.learning.crossing import agreed_crosses, cross_sums
from peerbayes.learning.integer_sums import small_groups
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.metrics import Sample
from peerbayes.learning.robust.attacks import ON_OWN_ROWS, Attack, poisoned
from peerbayes.learning.selection import HeldOut, usable
from peerbayes.model import core, layout
from peerbayes.model.declared import declared_crosses, declared_parents
from peerbayes.model.families import Family, Rows
from peerbayes.model.interactions import groups_for
from peerbayes.model.structure import Pairs
from peerbayes.privacy.pair_tables import GROUPS, PairTables
from peerbayes.simulation import private
from peerbayes.simulation.partitions import enough
from peerbayes.simulation.partitions import partition as partition_rows
from peerbayes.simulation.reports import Liars, Reported, links_of, reported
from peerbayes.simulation.settings import SimulationSettings

# --- random choices from a simulation's seed: the rows of each peer, the network, and absences

# Separate random numbers of the same seed: of the partition, of links, of absences, of held-out rows.
ROWS_STREAM, LINKS_STREAM, ABSENCE_STREAM, HELD_OUT_STREAM = 0, 1, 2, 12


@dataclass(frozen=True, eq=False)
class Assignment:
    """The rows of a table, assigned to peers."""

    table: Table
    classes: tuple[Any, ...]
    codes: np.ndarray
    """[n] the class of each row of the table."""
    parts: list[np.ndarray]
    """The rows that each peer learns from."""
    settings: SimpleNamespace
    """Those of the simulation: they say how columns are described."""
    held_out: tuple[np.ndarray, ...] = ()
    """The rows that each peer holds out; (): none does."""

    @classmethod
    def of(
        cls, X: Any, y: Any, settings: SimpleNamespace, parts: list[np.ndarray] | None = None
    ) -> Assignment:
        """Return the assignment of rows X with labels y by the settings of a simulation; `parts`: as it is already."""
        table = table_of(X)
        classes, codes = classes_of(y, settings.schema, table.rows)
        if parts is not None:
            return cls(table, classes, codes, parts, settings)

        def ordered_by() -> np.ndarray:  # drift is a property of the table: all its rows are in one order
            bins = layout.bins_for(settings.family, len(table.names))
            schema = schema_of(table, settings.schema, settings.kinds, settings.clip, bins, codes)
            return ordering(schema, table)

        rng = np.random.default_rng([settings.seed, ROWS_STREAM])
        with about("partition", "the partition", "peers", "rows_per_peer", "X"):
            rows_of_peers = partition_rows(
                settings.partition,
                codes,
                ordered_by,
                settings.peers,
                settings.rows_per_peer,
                rng,
            )
        return cls(table, classes, codes, rows_of_peers, settings)

    def holding_out(self, share: float, seed: int) -> Assignment:
        """Return the assignment where peers hold out about that share of their rows, each row by chance.

        A peer that would learn from none holds out none.
        """
        if not share:
            return self
        rng = np.random.default_rng([seed, HELD_OUT_STREAM])
        away = [rng.random(len(rows_of_peer)) < share for rows_of_peer in self.parts]
        away = [mask & ~mask.all() for mask in away]
        learned = [rows_of_peer[~mask] for rows_of_peer, mask in zip(self.parts, away, strict=True)]
        return replace(
            self,
            parts=learned,
            held_out=tuple(rows_of_peer[mask] for rows_of_peer, mask in zip(self.parts, away, strict=True)),
        )

    @cached_property
    def schema(self) -> Schema:
        """Columns and classes: of the rows that peers learn from, so that nothing comes from test rows; or declared."""
        return self.schema_in(layout.bins_for(self.settings.family, len(self.table.names)))

    def schema_in(self, bins: int | None) -> Schema:
        """Return the schema where numbers whose kind is open go into so many bins; None: into none."""
        settings, declared = self.settings, self.settings.schema
        rows = self.table if declared is not None else self.rows()
        schema = schema_of(rows, declared, settings.kinds, settings.clip, bins, self.labels)
        return replace(schema, classes=self.classes)

    @property
    def labels(self) -> np.ndarray:
        """[m] the class of each row of `rows`."""
        return self.codes[self.row_indices]

    @cached_property
    def row_indices(self) -> np.ndarray:
        """[m] the rows of all peers, peer by peer."""
        return np.concatenate(self.parts)

    @property
    def sizes(self) -> np.ndarray:
        """[N] rows of each peer."""
        return np.array([len(rows) for rows in self.parts])

    def rows(self) -> Table:
        """Return the peers' rows as a table, peer by peer."""
        return self.table.take(self.row_indices)

    def rest(self) -> tuple[Any, Any] | None:
        """Return the rows that no peer holds and their labels, if there are any."""
        assigned = np.concatenate([self.row_indices, *self.held_out])
        return unassigned_rows(self.table, self.codes, assigned, self.classes)


def draw_network(
    topology: Any, peers: int, seed: int, change_every: int | None = None
) -> topologies.Schedule:
    """Return the network without absences."""
    rng = np.random.default_rng([seed, LINKS_STREAM])
    with about("topology", "peers", "change_every"):
        return topologies.schedule(topology, peers, rng, change_every)


def with_absences(network: topologies.Schedule, down: float, seed: int) -> topologies.Churn:
    """Return the network with each peer absent from a round with probability `down`."""
    churn_seed = int(np.random.default_rng([seed, ABSENCE_STREAM]).integers(2**31))
    return topologies.Churn(network, down, churn_seed)


# --- all peers of a simulation before the first round: their rows, their links, and the attackers


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
    held: LocalRows
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
    held_out: HeldOut | None = None
    """The rows that peers hold out: by them a round may be selected, and every model is evaluated at the end."""

    @classmethod
    def of(
        cls, settings: SimulationSettings, X: Any, y: Any, parts: list[np.ndarray] | None = None
    ) -> Population:
        """Return the peers of these settings, with the rows X and labels y divided among them.

        parts  the rows of each peer, where they are known already
        """
        device, peers, seed = settings.array_device, settings.peers, settings.seed
        schema, test = settings.schema, settings.test
        table = table_of(X)
        enough(peers, table.rows)  # before the network is drawn
        network = draw_network(settings.topology, peers, seed, settings.change_every)
        lasting = topologies.without_absences(network)
        settings.refuse(changing=not lasting.static)
        if settings.secure_sum:
            groups = enumerate(np.split(lasting.at(1).indices, lasting.at(1).indptr[1:-1]))
            small = small_groups({f"peer {peer}": group.tolist() for peer, group in groups})
            settings.refuse(few_neighbours=small)
        assignment = Assignment.of(table, y, settings, parts).holding_out(settings.hold_out, seed)
        links = topologies.pairs(network.at(settings.rounds))
        if settings.peers_down:
            network = with_absences(network, settings.peers_down, seed)
        origin = "X" if schema is None else "X and schema"
        attackers = (
            np.zeros(0, dtype=np.int64) if settings.attack is None else settings.attack.attackers(peers, seed)
        )
        with about(origin, "peer", "kinds", "schema"):  # errors about a refused peer are not about the table
            agreed, reports = _agreed_schema(
                assignment, settings, attackers, network, declared=schema is not None
            )
        rows, labels, sizes = (
            encoded(agreed, assignment.rows(), origin),
            assignment.labels,
            assignment.sizes,
        )
        weights = np.repeat(row_weights(settings.objective, sizes), sizes)
        if reports is not None:
            weights *= np.repeat(reports.weights, sizes)
        asked = None
        if settings.privacy is not None:
            declared = settings.structure is not None
            asked = private.asked_pairs(settings.privacy, settings.family, declared, agreed)
        agreed, cross_bytes = _crossed(settings, agreed, rows, labels, weights, sizes, network, asked)
        rows = Rows(rows.values, agreed.crossed(rows.codes[:, : len(agreed.discrete)]))
        test_rows = _test_rows(agreed, test, assignment)
        family, sent = _family(settings, agreed, rows, labels, sizes, test_rows, network, reports, asked)
        settings.refuse(
            gaps=None if settings.privacy is None else _gaps(agreed, rows),
            completed=_completes(settings, family, rows, test_rows),
        )
        rows, labels = _training_rows(
            family, rows, labels, settings.attack, attackers, sizes, len(agreed.classes)
        )
        local = LocalRows(family, rows, labels, weights, sizes, len(agreed.classes), device)
        hidden = _private_rows(settings, local, lasting, asked)
        return cls(
            assignment.table,
            assignment.row_indices,
            agreed,
            local,
            test_rows,
            network,
            links,
            attackers,
            hidden,
            sent + cross_bytes,
            reports,
            _held_out(assignment, settings, agreed, family) if settings.hold_out else None,
        )

    @property
    def peer_count(self) -> int:
        return self.held.peer_count

    @property
    def family(self) -> Family:
        """The family, with its guards."""
        return self.held.family

    @property
    def reported_rows(self) -> float:
        """The number of rows of all peers, as they reported them."""
        return float((self.held.sizes if self.reports is None else self.reports.rows).sum())

    @cached_property
    def from_honest(self) -> np.ndarray:
        """[m] which rows are held by honest peers."""
        return _from_honest(self.attackers, self.held.sizes)


def _agreed_schema(
    assignment: Assignment,
    settings: SimulationSettings,
    attackers: np.ndarray,
    network: topologies.Schedule,
    declared: bool,
) -> tuple[Schema, Reported | None]:
    """Return the schema in the units of the peers' rows, and the reports; private rows keep declared units."""
    if settings.checks_reports:
        liars = _liars(settings, attackers, topologies.without_absences(network))
        reports = reported(assignment.schema, assignment.rows(), assignment.sizes, liars)
        return reports.schema, reports
    if settings.privacy is None:
        return assignment.schema.measured_on(
            assignment.rows(), edges=not declared, labels=assignment.labels
        ), None
    bounded = replace(assignment.schema, clip=min(settings.privacy.bound, assignment.schema.limit))
    if declared:
        return bounded, None
    return private.with_public_edges(bounded.measured_on(assignment.rows()), assignment.rows()), None


def _liars(settings: SimulationSettings, attackers: np.ndarray, network: topologies.Schedule) -> Liars:
    """Return the peers that lie before the first round, and whether the others check their reports."""
    enforced = settings.robust is not None
    if settings.attack is None or settings.attack.report is None:
        return Liars(attackers[:0], enforced=enforced)
    links = links_of(attackers, network.at(1))
    return Liars(attackers, settings.attack.report, settings.attack.allowed, enforced, links)


def _test_rows(schema: Schema, test: tuple[Any, Any] | None, assignment: Assignment) -> HeldOutRows | None:
    """Return the test rows: the user's, or those that no peer holds, if there are any."""
    test_data, name = (assignment.rest(), "X") if test is None else (test, "test")
    return None if test_data is None else HeldOutRows(*test_data, *encoded_labelled(schema, test_data, name))


def _held_out(
    assignment: Assignment, settings: SimulationSettings, schema: Schema, family: Family
) -> HeldOut:
    """Return the held-out rows of each peer that models can be tested on."""
    of_weights = planning.of_weights(settings.strategy)
    samples = []
    for rows_of_peer in assignment.held_out:
        rows = encoded(schema, assignment.table.take(rows_of_peer), "X")
        kept = usable(family, rows, of_weights)
        labels = assignment.codes[rows_of_peer][kept]
        samples.append(Sample(family, Rows(rows.values[kept], rows.codes[kept]), labels))
    return HeldOut(tuple(samples), of_weights)


def _family(
    settings: SimulationSettings,
    schema: Schema,
    rows: Rows,
    labels: np.ndarray,
    sizes: np.ndarray,
    test_rows: HeldOutRows | None,
    network: topologies.Schedule,
    reports: Reported | None,
    asked: PairTables | None,
) -> tuple[Family, np.ndarray]:
    """Return the family that peers calibrate, and the bytes that each sent to agree on its structure: [N]."""
    blocks = (rows,) if test_rows is None else (rows, test_rows.rows)
    missing = any(np.isnan(rows_of_block.values).any() for rows_of_block in blocks)
    name, parents, sent = settings.family, None, np.zeros(sizes.size)
    if learned := layout.STRUCTURES.get(name):
        if settings.structure is not None:
            parents = declared_parents(settings.structure, name, schema)
        elif asked is not None:
            noisy = private.released_pairs(asked, rows, labels, sizes, settings.seed)
            parents, sent = learned(noisy, penalty=settings.penalty), sum_bytes(network.at(1), asked.size)
        else:
            weights = None if reports is None else reports.weights
            pairs, sent = pooled_pairs(rows, labels, sizes, schema, network.at(1), weights)
            parents = learned(pairs, penalty=settings.penalty)
    total = float((sizes if reports is None else reports.rows).sum())
    return layout.calibrated(name, schema, missing, total, parents), sent


def _crossed(
    settings: SimulationSettings,
    schema: Schema,
    rows: Rows,
    labels: np.ndarray,
    weights: np.ndarray,
    sizes: np.ndarray,
    network: topologies.Schedule,
    asked: PairTables | None,
) -> tuple[Schema, np.ndarray]:
    """Return the schema with the crosses that peers agree on, and the bytes that each sends for that: [N].

    Crosses that a declared schema has stay.
    """
    if not layout.has_crosses(settings.family) or schema.crosses:
        return schema, np.zeros(sizes.size)
    if settings.structure is not None:
        groups = GROUPS if settings.privacy is not None else groups_for(len(schema.columns))
        declared = declared_crosses(settings.structure, schema, groups)
        return replace(schema, crosses=declared), np.zeros(sizes.size)
    if asked is not None:
        noisy = private.released_pairs(asked, rows, labels, sizes, settings.seed)
        return replace(schema, crosses=noisy.crosses(schema)), sum_bytes(network.at(1), asked.size)
    missing = bool(np.isnan(rows.values).any())
    family = layout.calibrated(settings.family, schema, missing, float(sizes.sum()))
    held = LocalRows(family, rows, labels, weights, sizes, len(schema.classes))
    sums = cross_sums(held, schema, sizes.size, settings.lr)
    schema, numbers = agreed_crosses(sums, sizes.size)
    return schema, sum_bytes(network.at(1), numbers)


def _gaps(schema: Schema, rows: Rows) -> tuple[str, ...]:
    """Return the names of the columns in which values are missing."""
    codes = rows.codes[:, : len(schema.discrete)]
    absent = np.concatenate([np.isnan(rows.values).any(axis=0), (codes < 0).any(axis=0)])
    columns = np.concatenate([schema.continuous, schema.discrete]).astype(np.int64)
    return tuple(sorted(schema.columns[column].name for column in columns[absent]))


def _completes(
    settings: SimulationSettings, family: Family, rows: Rows, test_rows: HeldOutRows | None
) -> bool:
    """Return whether rows miss values that the family completes, in test rows too where weights are learned."""
    of_weights = planning.of_weights(settings.strategy) or bool(settings.combination.baselines)
    tested = of_weights and test_rows is not None and family.incomplete(test_rows.rows).any()
    return bool(family.incomplete(rows).any() or tested)


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
    settings: SimulationSettings, local: LocalRows, network: topologies.Schedule, asked: PairTables | None
) -> private.PrivateRows | None:
    """Return the residuals with noise, where rows are private."""
    if settings.privacy is None:
        return None
    with about("privacy"):
        scheme = private.agreed(
            settings.privacy, local, settings.rounds, settings.lr, network.at(1), settings.start,
            asked is not None and bool(asked.pairs),
        )  # fmt: skip
    return private.PrivateRows(scheme, local, network.at(1), settings.seed)


# --- the input of a simulation: a table, its classes, and the rows that no peer holds


def row_weights(objective: str, sizes: np.ndarray) -> np.ndarray:
    """Return the weight of each peer's rows: 1, or m/(N·m_v) so that peers count the same: sizes [N] -> [N]."""
    return np.ones(sizes.size) if objective == "rows" else sizes.sum() / (sizes.size * sizes)


def table_of(X: Any) -> Table:
    """Return the user's rows as a table; columns are read later, one by one."""
    with about("X"):
        table = Table.of(X)
    if not table.rows or not table.names:
        raise SchemaError(
            f"X has {table.rows} rows and {len(table.names)} columns; expected at least one of each"
        )
    return table


def classes_of(y: Any, schema: Schema | None, rows: int) -> tuple[tuple[Any, ...], np.ndarray]:
    """Return the classes, and the index of each row's label among them."""
    if schema is None or not schema.classes:
        with about("y"):
            classes, codes = infer_classes(y)
        if real := [value for value in classes if isinstance(value, float)]:
            raise ValueError(
                f"y holds {real[0]!r}, a real number; expected classes: text, whole numbers or booleans"
            )
    else:
        with about("schema"):
            classes, codes = schema.classes, schema.encode_labels(y)
    if len(codes) != rows:
        raise ValueError(f"y holds {len(codes)} labels; expected {rows}, one for each row of X")
    if len(classes) < 2:
        raise ValueError(f"y holds one class ({classes[0]!r}); expected at least two")
    return classes, codes


def schema_of(
    table: Table,
    schema: Schema | None,
    kinds: Any,
    clip: float | None,
    bins: int | None = None,
    labels: np.ndarray | None = None,
) -> Schema:
    """Return the schema of a table: the declared one, if it fits, or one inferred from the rows and their classes."""
    if schema is None:
        with about("X", "kinds"):
            return Schema(infer_columns(table, kinds, None, bins, labels), clip=clip)
    if not schema.columns:
        raise SchemaError("schema has no column; expected at least one")
    with about("schema"):
        schema.places(table)
    return schema


def encoded(schema: Schema, rows: Any, name: str) -> Rows:
    """Return the encoded rows; errors name the argument `name`."""
    with about(name):
        return schema.encode(rows)


def encoded_labelled(schema: Schema, labelled: tuple[Any, Any], name: str) -> tuple[Rows, np.ndarray]:
    """Return the encoded rows and the class indices of their labels; errors name the argument `name`."""
    with about(name):
        return schema.encode(labelled[0]), schema.encode_labels(labelled[1])


def warn_untested(stacklevel: int) -> None:
    """Warn that a run will have no test errors.

    stacklevel  of the line that is to blame, counted from the caller of this function: 1 is that caller
    """
    warnings.warn(
        "peers hold all rows, so none are left to test on and there is no test error; pass test=(X, y), or let peers "
        "hold fewer rows by rows_per_peer or partition",
        UserWarning,
        stacklevel=stacklevel + 1,
    )


def unassigned_rows(
    table: Table, codes: np.ndarray, assigned: np.ndarray, classes: tuple[Any, ...]
) -> tuple[Any, Any] | None:
    """Return the rows that no peer holds and their labels, if there are any."""
    free = np.setdiff1d(np.arange(table.rows), assigned)
    return (table.take(free).native, np.array(classes)[codes[free]]) if free.size else None


def ordering(schema: Schema, table: Table) -> np.ndarray:
    """Return numbers to order rows by: [n, K]. See `plain_columns`."""
    return plain_columns(schema, encoded(schema, table, "X"))


def plain_columns(schema: Schema, rows: Rows) -> np.ndarray:
    """Return the columns of encoded rows as numbers: standardised values, 0 where missing, and one-hots: [n, K]."""
    values, columns = np.nan_to_num(rows.values), len(schema.discrete)
    cells = [core.one_hot(rows.codes[:, k], size) for k, size in enumerate(schema.cardinalities[:columns])]
    return np.concatenate([values, *cells], axis=1)


# --- statistics of pairs of simulated peers: sums over a spanning tree, bit for bit those of real peers


def pooled_pairs(
    rows: Rows,
    labels: np.ndarray,
    sizes: np.ndarray,
    schema: Schema,
    links: csr_array,
    weights: np.ndarray | None = None,
) -> tuple[Pairs, np.ndarray]:
    """Return the statistics of pairs of all peers, and the bytes that each peer sends for them [N].

    Each peer sends every neighbour on the tree the sum of its side, once. `weights` [N] is the weight of each peer's
    rows; None: 1.
    """
    ends = np.concatenate([[0], np.cumsum(sizes)])
    slices = [slice(begin, end) for begin, end in itertools.pairwise(ends.tolist())]
    classes = len(schema.classes)

    def pairs_of_peer(peer_rows: slice) -> Pairs:
        encoded = Rows(rows.values[peer_rows], rows.codes[peer_rows])
        return Pairs.of(encoded, labels[peer_rows], classes, schema.cardinalities, weights_of(peer_rows))

    def weights_of(peer_rows: slice) -> np.ndarray | None:
        weight = 1.0 if weights is None else weights[slices.index(peer_rows)]
        return None if weight == 1.0 else np.full(peer_rows.stop - peer_rows.start, weight)

    # Each peer's pairs are computed twice: those of all peers together may not fit in memory.
    bound = sum(float(np.abs(pairs_of_peer(peer_rows).vector).max()) for peer_rows in slices)
    power = integer_sums.exponent(bound)
    first = pairs_of_peer(slices[0])
    total = integer_sums.on_grid(first.vector, power)
    for peer_rows in slices[1:]:
        total += integer_sums.on_grid(pairs_of_peer(peer_rows).vector, power)
    return first.from_vector(integer_sums.off_grid(total, power)), sum_bytes(links, total.size)


def sum_bytes(links: csr_array, numbers: int) -> np.ndarray:
    """Return the bytes that each peer sends for a sum of so many numbers along the spanning tree: [N, N] -> [N]."""
    branches = csgraph.breadth_first_tree(links, 0, directed=False).tocoo()
    degrees = np.bincount(np.concatenate([branches.row, branches.col]), minlength=links.shape[0])
    return degrees * 8.0 * numbers
