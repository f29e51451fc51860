"""The driver of a simulation in shards: what `simulate` does, shard by shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Annotated, Any, Unpack

import numpy as np
from scipy.sparse import csr_array

from peerbayes.data.arguments import about, refusal
from peerbayes.data.declarations import (
    Setting,
    anything,
    checked,
    choice,
    declarations,
    described_by,
    writable,
)
from peerbayes.data.schema import Schema
from peerbayes.estimators.classifiers import ESTIMATOR_OF
from peerbayes.learning import combinations, metrics, planning
from peerbayes.learning.combinations import Combination
from peerbayes.learning.few_bytes import exchanges_of
from peerbayes.learning.strategies import LearningSettings, NetworkFacts, Strategy
from peerbayes.model import layout as layouts
from peerbayes.model.calibration import start_statistics
from peerbayes.model.devices import Device
from peerbayes.model.families import FAMILIES, Family, Rows
from peerbayes.model.statistics import Statistics
from peerbayes.simulation import population
from peerbayes.simulation.events import Callbacks, RunInfo
from peerbayes.simulation.old_names import refuse_old, refuse_old_names
from peerbayes.simulation.owners import owners_in, with_peers
from peerbayes.simulation.partitions import enough, sizes_asked
from peerbayes.simulation.population import Assignment, encoded_labelled, row_weights, table_of, warn_untested
from peerbayes.simulation.records import history_of, record
from peerbayes.simulation.result import made
from peerbayes.simulation.run import Clock
from peerbayes.simulation.settings import (
    EVALUATE_EVERY,
    CommonArguments,
    as_json,
    both,
    check_sizes,
)
from peerbayes.simulation.sharded.workers import (
    Engine,
    InProcess,
    Plan,
    RayActors,
    RowsOf,
    cluster,
    crossing,
    cut,
    plans,
    positions,
)


# fmt: off
class ShardedArguments(CommonArguments, total=False):
    """The settings of `simulate_shards`."""

    rows_of: Annotated[RowsOf | None, Setting(
        None, anything("a function of the peers [n] that returns their (X, y), or None"),
        "instead of X and y: called by each shard with its peers [n], returns their (X, y), one peer's rows after the "
        "other's, rows_per_peer (a number, or [N]) of each",
        "With it, `schema` says what columns, classes and units are, and without `test` nothing is tested")]
    evaluate_every: Annotated[int, replace(EVALUATE_EVERY, default=0)]
    shards: Annotated[int | Sequence[Any], Setting(
        2, anything("a number, or lists of peers", int, list), "how many, or a list with the peers of each")]
    engine: Annotated[str, Setting(
        "local", choice(("local", "ray")), '"local": in this process; "ray": an actor each, a processor each',
        "Trusted clusters only")]
    address: Annotated[str | None, Setting(
        None, anything("the address of a Ray cluster, or None"),
        'of a Ray cluster to join ("auto": the one this machine is in); None starts Ray on this machine')]
    stats_of: Annotated[Any, Setting(
        (), anything('peers, or "all"'), 'the peers whose statistics are returned, or "all"')]


# fmt: on


@dataclass(frozen=True)
class ShardedRun:
    """A finished simulation in shards: figures of all peers, and statistics of those requested."""

    configuration: dict[str, Any]
    schema: Schema
    layout: Family
    records: np.ndarray = field(repr=False)
    """[rows, 8] the history, in the order of `runs.COLUMNS`."""
    sizes: np.ndarray = field(repr=False)
    """[N] rows of each peer."""
    peers: np.ndarray = field(repr=False)
    """[k] the peers whose statistics were requested."""
    stats: np.ndarray = field(repr=False)
    """[k, C, K] the statistics of these peers."""
    parts: list[np.ndarray] = field(repr=False)
    """The peers of each shard."""
    crossing: int
    """Links between shards."""
    halo_bytes: int
    """Bytes that all shards together exchange in a round."""
    of_weights: bool = False
    seconds: dict[str, float] = field(default_factory=dict, repr=False)

    @property
    def history(self) -> Any:
        """A DataFrame with a row per evaluated round and peer."""
        return history_of(self.records)

    @refuse_old_names
    def classifier(self, peer: int) -> Any:
        """Return the estimator of a peer whose statistics were requested."""
        if self.of_weights:
            raise ValueError(f"{self.configuration['strategy']} learns weights and has no classifier")
        index = np.flatnonzero(self.peers == peer)
        if not index.size:
            raise ValueError(f"the statistics of peer {peer} were not kept; include it in stats_of")
        statistics = Statistics.of_model(
            self.stats[index[0]], self.schema, self.layout, float(self.sizes.sum())
        )
        return ESTIMATOR_OF[self.layout.name].from_statistics(statistics)


@described_by(ShardedArguments)
def simulate_shards(X: Any = None, y: Any = None, **arguments: Unpack[ShardedArguments]) -> ShardedRun:
    """Do what `simulate` does, with the same arguments and, to rounding, the same numbers; without references.

    X               the table: a DataFrame or an array [n, D]
    y               its labels [n]
    """
    refuse_old(arguments)
    if others := [name for name in arguments if name not in declarations(ShardedArguments)]:
        raise ValueError(
            f"{', '.join(others)}: not for shards, which run without faults, secure sums, privacy, defences and "
            "devices; use simulate"
        )
    X, owners = (X, None) if X is None else owners_in(X, arguments)
    if owners is not None:
        arguments["peers"], arguments["test"] = len(owners.names), owners.features(arguments.get("test"))
        owners.warn_of_single_rows(stacklevel=2)
    settings = SimpleNamespace(**checked(ShardedArguments, with_peers(arguments)))
    peers, strategy, schema, rows_of = settings.peers, settings.strategy, settings.schema, settings.rows_of
    _refuse(rows_of, schema, X, y)
    combination = Combination(
        strategy=strategy, family=settings.family, start=settings.start, messages=settings.messages,
        exchanges=settings.exchanges, structure=settings.structure is not None, sharded=True,
    )  # fmt: skip
    combinations.refuse(combination)
    if rows_of is None:
        check_sizes(settings.rows_per_peer, peers, settings.partition)
        X = table_of(X)
        enough(peers, X.rows)  # before links between so many are drawn
    network = population.draw_network(settings.topology, peers, settings.seed)
    combinations.refuse(replace(combination, changing=not network.static))
    links = network.at(1)
    shards = settings.shards
    shard_peers = cut(links, int(shards)) if isinstance(shards, int | np.integer) else _checked(shards, peers)
    if rows_of is not None:
        assert schema is not None
        agreed, sizes, test_data = schema, _sizes(settings.rows_per_peer, peers), settings.test
        sources: Iterator[Any] = iter([rows_of] * len(shard_peers))
    else:
        assignment = Assignment.of(X, y, settings, None if owners is None else owners.parts)
        with about("X" if schema is None else "X and schema", "peer", "kinds", "schema"):
            agreed, sizes = assignment.schema.measured_on(assignment.rows()), assignment.sizes
        test_data = settings.test if settings.test is not None else assignment.rest()
        sources = _pieces(assignment, shard_peers)
        if test_data is None:
            warn_untested(stacklevel=2)
    configuration = {name: as_json(getattr(settings, name)) for name in writable(ShardedArguments)}
    device = Device(None, settings.dtype)
    settings.schema, settings.sizes = agreed, sizes
    learning = _plan(settings, NetworkFacts(peers, float(sizes.sum())))
    configuration["strategy"] = planning.name_of(learning.strategy)
    mixing = device.put_matrix(learning.weights(links)) if learning.sends else None
    driver = _Driver(settings, combination, plans(mixing, shard_peers, sizes), links, device)
    with Callbacks(settings.callbacks) as callbacks:
        callbacks.begin(RunInfo(configuration, made(), agreed, sizes))
        if settings.engine == "local":
            figures = driver.run(InProcess(), sources, test_data, callbacks)
        else:
            with cluster(len(shard_peers), settings.address) as ray:
                actors = RayActors(ray)
                try:
                    figures = driver.run(actors, sources, test_data, callbacks)
                finally:
                    actors.stop()
        run = ShardedRun(
            configuration,
            agreed,
            parts=shard_peers,
            crossing=crossing(links, shard_peers),
            sizes=sizes,
            **figures,
        )
        callbacks.end(run)
    return run


def _pieces(assignment: Assignment, shard_peers: Sequence[np.ndarray]) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield the rows of each shard and their labels, one shard at a time: a copy of all of them may not fit."""
    labels = np.array(assignment.classes)[assignment.codes]
    for peers in shard_peers:
        rows = np.concatenate([assignment.parts[peer] for peer in peers])
        yield assignment.table.take(rows).native, labels[rows]


def _refuse(rows_of: Any, schema: Any, X: Any, y: Any) -> None:
    """Refuse rows that are not declared."""
    if (rows_of is None) == (X is None) or (X is None) != (y is None):
        raise ValueError("expected either X and y, or rows_of")
    if rows_of is not None and (schema is None or not schema.classes):
        raise ValueError(
            "rows_of needs a schema with classes, which all shards agree on: Schema.infer(some rows, labels)"
        )


def _checked(shards: Any, peer_count: int) -> list[np.ndarray]:
    """Return the user's own shards, after checking that they hold each peer once."""
    shard_peers = [np.sort(np.asarray(peers, dtype=np.int64)) for peers in shards]
    if not shard_peers or not np.array_equal(np.sort(np.concatenate(shard_peers)), np.arange(peer_count)):
        raise ValueError(f"shards must list every peer from 0 to {peer_count - 1} exactly once")
    if any(peers.size == 0 for peers in shard_peers):
        raise ValueError("a shard has no peers; leave it out")
    return shard_peers


def _sizes(rows_per_peer: Any, peer_count: int) -> np.ndarray:
    if rows_per_peer is None:
        raise refusal("rows_per_peer", None, f"with rows_of a number, or one for each of {peer_count} peers")
    return sizes_asked(rows_per_peer, peer_count).astype(np.int64)


def _plan(settings: SimpleNamespace, facts: NetworkFacts) -> planning.Plan:
    """Return the plan of a run with these facts."""
    excluded = combinations.excluded(
        Combination(strategy=settings.strategy, family=settings.family, sharded=True)
    )
    learning = LearningSettings(
        settings.strategy, settings.rounds, settings.lr, settings.local_steps, messages=settings.messages,
        exchanges=settings.exchanges, excluded=excluded,
    )  # fmt: skip
    return planning.plan(learning, facts)


@dataclass(frozen=True)
class _Driver:
    """Runs shards through their rounds, on any engine."""

    settings: SimpleNamespace
    """Of `simulate_shards`, with the schema that all agree on, and [N] the rows of each peer as `sizes`."""
    combination: Combination
    plans: list[Plan]
    links: csr_array
    device: Device

    def run(
        self, engine: Engine, sources: Iterator[Any], test_data: Any, callbacks: Callbacks
    ) -> dict[str, Any]:
        settings, clock = self.settings, Clock()
        loading = []
        for number, (plan, source) in enumerate(zip(self.plans, sources, strict=True)):
            engine.start(plan, settings.schema, self.device)
            loading.append(engine.call(number, "load", source))
        encoded_test = None
        if test_data is not None:
            encoded_test = encoded_labelled(settings.schema, test_data, "test")
        unseen = encoded_test is not None and bool(np.isnan(encoded_test[0].values).any())
        family, strategy, start = self._start(engine, any(engine.get(loading)) or unseen)
        tested = None
        if encoded_test is not None:
            sample = metrics.sample(
                family,
                *encoded_test,
                self.device,
                both(settings.evaluate_rows)[1],
                settings.peers,
                settings.seed,
            )
            tested = sample.rows, sample.labels
        training = self._training(engine)
        judged_rows = training[1].size + (0 if tested is None else tested[1].size)
        logits = metrics.run_logits(
            settings.peers,
            len(settings.schema.classes),
            judged_rows,
            settings.rounds,
            settings.evaluate_every,
        )
        self._everywhere(engine, "set_evaluation_rows", training, tested, logits)
        rows = int(settings.sizes.sum())
        # Each shard uses the kernel that the whole network would use: its rounds are scaled up to all rows.
        work = [-(-settings.rounds * rows // int(plan.sizes.sum())) for plan in self.plans]
        out = [
            engine.call_many(
                number, "begin", 1 + len(plan.sends), strategy, start, work[number], settings.local_steps
            )
            for number, plan in enumerate(self.plans)
        ]
        message_bytes, matrix_bytes = engine.get([sent[0] for sent in out])[0]
        clock.add("start")
        each = 0.0 if planning.silent(strategy) else message_bytes * exchanges_of(strategy)
        per_round = np.diff(self.links.indptr) * each
        records = []
        for round_index in range(1, settings.rounds + 1):
            for _ in range(exchanges_of(strategy)):
                out = self._round(engine, out)
                engine.get([sent[0] for sent in out])
            clock.add("rounds")
            every = settings.evaluate_every
            if round_index == settings.rounds or (every and round_index % every == 0):
                records.append(self._record(engine, round_index, round_index * per_round))
                clock.add("evaluation")
                if callbacks:
                    callbacks.evaluated(records[-1], clock.of_rounds)
                    clock.add("callbacks")
            if settings.progress is not None:
                settings.progress(round_index, settings.rounds)
        peers, stats = self._requested_stats(engine)
        layout = FAMILIES[settings.family](**{**family.layout(), "cardinalities": family.cardinalities})
        halo = (
            matrix_bytes
            * exchanges_of(strategy)
            * sum(sent_peers.size for plan in self.plans for sent_peers in plan.sends.values())
        )
        return {
            "layout": layout, "records": np.concatenate(records), "peers": peers, "stats": stats, "halo_bytes": halo,
            "of_weights": strategy.of_weights, "seconds": clock.seconds,
        }  # fmt: skip

    def _everywhere(self, engine: Engine, verb: str, *arguments: Any) -> list[Any]:
        return engine.get([engine.call(number, verb, *arguments) for number in range(len(self.plans))])

    def _round(self, engine: Engine, out: list[list[Any]]) -> list[list[Any]]:
        """Advance every shard by one exchange of messages: each gets its halos, which the driver does not look at."""
        positions_of = [{to: 1 + position for position, to in enumerate(plan.sends)} for plan in self.plans]
        return [
            engine.call_many(
                number, "advance", 1 + len(plan.sends),
                *(out[sender][positions_of[sender][number]] for sender in plan.hears),
            )
            for number, plan in enumerate(self.plans)
        ]  # fmt: skip

    def _start(self, engine: Engine, missing: bool) -> tuple[Family, Strategy, np.ndarray | None]:
        """Return the family, the strategy and S⁰ that all peers begin with (None: their own statistics)."""
        settings = self.settings
        completed = missing and not FAMILIES[settings.family].marks_missing
        combinations.refuse(replace(self.combination, completed=completed))
        rows = float(settings.sizes.sum())
        family = layouts.calibrated(settings.family, settings.schema, missing, rows)
        row_weight = row_weights(settings.objective, settings.sizes)
        facts = NetworkFacts(settings.peers, rows, weight=float((row_weight * settings.sizes).sum()))
        learning = _plan(settings, facts)
        measured = "mean_square" in learning.missing
        squares = engine.get(
            [
                engine.call(k, "configure", family, row_weight[plan.peers], measured)
                for k, plan in enumerate(self.plans)
            ]
        )
        if measured:
            learning = _plan(settings, replace(facts, mean_square=sum(squares) / facts.row_weight))
        if learning.declaration.own_start:
            return family, learning.strategy, None
        start = start_statistics("uniform", family, len(settings.schema.classes), learning.start_weight)
        return family, learning.strategy, start

    def _training(self, engine: Engine) -> tuple[Rows, np.ndarray]:
        """Return the training rows that every peer is evaluated on: those that `simulate` draws."""
        settings = self.settings
        total = int(settings.sizes.sum())
        drawn_rows = metrics.drawn(total, both(settings.evaluate_rows)[0], settings.peers, settings.seed)
        offsets = np.concatenate([[0], np.cumsum(settings.sizes)])
        peer = np.searchsorted(offsets, drawn_rows, side="right") - 1
        owner, position = positions([plan.peers for plan in self.plans])
        rows_of_shard = [np.flatnonzero(owner[peer] == number) for number in range(len(self.plans))]
        calls = []
        for number, plan in enumerate(self.plans):
            begins = np.concatenate([[0], np.cumsum(plan.sizes)])
            chosen = rows_of_shard[number]
            row_index = begins[position[peer[chosen]]] + drawn_rows[chosen] - offsets[peer[chosen]]
            calls.append(engine.call(number, "rows_at", row_index))
        order = np.argsort(np.concatenate(rows_of_shard))
        values, codes, labels = (
            np.concatenate(pieces)[order] for pieces in zip(*engine.get(calls), strict=True)
        )
        return Rows(values, codes), labels

    def _record(self, engine: Engine, round_index: int, sent: np.ndarray) -> np.ndarray:
        """Return a row for each peer, in the order of `runs.COLUMNS`: [N, 8]."""
        peer_count = self.settings.peers
        mean = sum(self._everywhere(engine, "total")) / peer_count
        figures = np.empty((5, peer_count))
        for plan, shard_figures in zip(self.plans, self._everywhere(engine, "judged", mean), strict=True):
            figures[:, plan.peers] = shard_figures
        return record(round_index, figures, sent)

    def _requested_stats(self, engine: Engine) -> tuple[np.ndarray, np.ndarray]:
        """Return the requested peers and their statistics."""
        peer_count, stats_of = self.settings.peers, self.settings.stats_of
        peers = (
            np.arange(peer_count)
            if isinstance(stats_of, str) and stats_of == "all"
            else np.asarray(stats_of, int)
        )
        if peers.size and not (peers.min() >= 0 and peers.max() < peer_count):
            raise ValueError(
                f"stats_of names peers {peers.min()} to {peers.max()}; expected 0 to {peer_count - 1}"
            )
        owner, position = positions([plan.peers for plan in self.plans])
        order_by_shard = [np.flatnonzero(owner[peers] == number) for number in range(len(self.plans))]
        shard_stats = engine.get(
            [engine.call(k, "stats", position[peers[chosen]]) for k, chosen in enumerate(order_by_shard)]
        )
        return peers, np.concatenate(shard_stats)[np.argsort(np.concatenate(order_by_shard))]
