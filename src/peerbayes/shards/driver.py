"""Shards through their rounds: what `simulate` does, in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from peerbayes import layouts, metrics, topologies
from peerbayes.arguments import about, refusal
from peerbayes.calibration import start_statistics
from peerbayes.estimators import ESTIMATOR_OF
from peerbayes.families import FAMILIES, Family, Rows
from peerbayes.inputs import encoded_labelled, plain, row_weights, rows_at, table_of, warn_untested
from peerbayes.partitions import enough, sizes_asked
from peerbayes.places import Place
from peerbayes.runs import history_of, record
from peerbayes.schema import Schema
from peerbayes.shards.cut import Plan, crossing, cut, places, plans
from peerbayes.shards.engines import Engine, Here, OverRay, cluster
from peerbayes.shards.shard import RowsOf
from peerbayes.simulation import drawn
from peerbayes.simulation.checks import as_json, both, check_sizes, checked
from peerbayes.simulation.clock import Clock, Progress
from peerbayes.simulation.drawn import Dealt
from peerbayes.statistics import Statistics
from peerbayes.strategies import DSGD, STRATEGIES, Exact, Strategy

ENGINES = ("local", "ray")
SUPPORTED = (
    "a network that stays the same, the uniform start, NumPy, no faults, and the strategies "
    f"{', '.join(STRATEGIES)}; for anything else use simulate"
)


@dataclass(frozen=True)
class ShardedRun:
    """A finished simulation in shards: figures of all peers, and statistics of those asked for."""

    configuration: dict[str, Any]
    schema: Schema
    layout: Family
    records: np.ndarray = field(repr=False)
    """[rows, 8] the history, in the order of `runs.COLUMNS`."""
    sizes: np.ndarray = field(repr=False)
    """[N] rows of each peer."""
    peers: np.ndarray = field(repr=False)
    """[k] the peers whose statistics were asked for."""
    stats: np.ndarray = field(repr=False)
    """[k, C, K] theirs."""
    parts: list[np.ndarray] = field(repr=False)
    """The peers of each shard."""
    crossing: int
    """Links between shards."""
    halo_bytes: int
    """What all shards together send each other in a round."""
    of_weights: bool = False
    seconds: dict[str, float] = field(default_factory=dict, repr=False)

    @property
    def history(self) -> Any:
        """A DataFrame with a row per evaluated round and peer."""
        return history_of(self.records)

    def classifier(self, node: int) -> Any:
        """The estimator of a peer whose statistics were asked for."""
        if self.of_weights:
            raise ValueError(f"{self.configuration['strategy']} learns weights: there is no classifier of it")
        at = np.flatnonzero(self.peers == node)
        if not at.size:
            raise ValueError(f"the statistics of peer {node} were not kept; name it in stats_of")
        statistics = Statistics.of_model(self.stats[at[0]], self.schema, self.layout, float(self.sizes.sum()))
        return ESTIMATOR_OF[self.layout.name].from_statistics(statistics)


def simulate_shards(
    X: Any = None,
    y: Any = None,
    *,
    rows_of: RowsOf | None = None,
    schema: Schema | None = None,
    family: str = "naive-bayes",
    kinds: Any = "auto",
    nodes: int = 50,
    rows_per_node: Any = 50,
    topology: Any = "tree",
    partition: Any = "iid",
    strategy: str | Strategy = "exact",
    start: str = "uniform",
    rounds: int = 64,
    lr: float = 0.05,
    local_steps: int = 1,
    objective: str = "rows",
    test: tuple[Any, Any] | None = None,
    evaluate_every: int = 0,
    evaluate_rows: int | tuple[int, int] | None = None,
    seed: int = 0,
    clip: float | None = 5.0,
    dtype: str = "float64",
    shards: int | Sequence[Any] = 2,
    engine: str = "local",
    address: str | None = None,
    stats_of: Any = (),
    progress: Progress | None = None,
    **others: Any,
) -> ShardedRun:
    """What `simulate` does, with the same arguments and, to rounding, the same numbers, in shards; without references.

    rows_of         instead of X and y: called by each shard with the peers it holds [n], gives their (X, y), one peer's
                    rows after the other's, rows_per_node (a number, or [N]) of each. With it, `schema` says what
                    columns, classes and units are, and without `test` nothing is tested
    evaluate_every  rounds between evaluations; 0 evaluates at the end only
    shards          how many, or a list with the peers of each
    engine          "local": in this process; "ray": an actor each, a processor each. Trusted clusters only
    address         of a Ray cluster to join ("auto": the one this machine is in); None starts Ray on this machine
    stats_of        the peers whose statistics are wanted, or "all"
    """
    arguments = checked(locals())
    configuration = {
        name: as_json(value)
        for name, value in arguments.items()
        if name not in ("X", "y", "schema", "test", "progress", "others", "stats_of", "address")
    }
    _refuse(family, strategy, start, engine, rows_of, schema, X, y, others)
    nodes, rows_per_node, seed = arguments["nodes"], arguments["rows_per_node"], arguments["seed"]
    if rows_of is None:
        check_sizes(rows_per_node, nodes, partition)
        X = table_of(X)
        enough(nodes, X.rows)  # before links are drawn between so many
    network = drawn.network(topology, nodes, seed)
    if not network.static:
        raise ValueError(f"the network changes from round to round; shards take {SUPPORTED}")
    links = network.at(1)
    parts = _checked(shards, nodes) if not isinstance(shards, int | np.integer) else cut(links, int(shards))
    if rows_of is not None:
        assert schema is not None
        agreed, sizes, away = schema, _sizes(rows_per_node, nodes), test
        sources: Iterator[Any] = iter([rows_of] * len(parts))
    else:
        dealt = Dealt.of(X, y, schema, kinds, arguments["clip"], partition, nodes, rows_per_node, seed)
        with about("X" if schema is None else "X and schema"):
            agreed, sizes = dealt.schema.measured_on(dealt.rows()), dealt.sizes
        away = test if test is not None else dealt.rest()
        sources = _pieces(dealt, parts)
        if away is None:
            warn_untested()
    settings = _Settings(
        family, agreed, sizes, strategy, arguments["rounds"], arguments["lr"], arguments["local_steps"], objective,
        nodes, seed, both(arguments["evaluate_rows"]),
    )  # fmt: skip
    configuration["strategy"] = strategy if isinstance(strategy, str) else strategy.name
    place = Place(None, arguments["dtype"])
    driver = _Driver(settings, plans(_mixing(strategy, links, place), parts, sizes), links, place)
    if engine == "local":
        figures = driver.run(Here(), sources, away, arguments["evaluate_every"], stats_of, progress)
    else:
        with cluster(len(parts), address) as ray:
            over = OverRay(ray)
            try:
                figures = driver.run(over, sources, away, arguments["evaluate_every"], stats_of, progress)
            finally:
                over.stop()
    return ShardedRun(
        configuration, agreed, parts=parts, crossing=crossing(links, parts), sizes=sizes, **figures
    )


def _mixing(strategy: str | Strategy, links: csr_array, place: Place) -> csr_array | None:
    """The weights that messages are mixed with, as precise as these; None where nothing is sent."""
    value = STRATEGIES[strategy]() if isinstance(strategy, str) else strategy
    return None if value.mixing == "none" else place.put_matrix(getattr(topologies, value.mixing)(links))


def _pieces(dealt: Dealt, parts: Sequence[np.ndarray]) -> Iterator[tuple[Any, np.ndarray]]:
    """The rows of each shard and their labels, one shard at a time: a copy of all of them may not fit."""
    labels = np.array(dealt.schema.classes)[dealt.codes]
    for part in parts:
        rows = np.concatenate([dealt.parts[peer] for peer in part])
        yield plain(rows_at(dealt.table, rows)), labels[rows]


def _refuse(
    family: str,
    strategy: Any,
    start: str,
    engine: str,
    rows_of: Any,
    schema: Any,
    X: Any,
    y: Any,
    others: dict[str, Any],
) -> None:
    """What `simulate` can do and shards cannot."""
    if others:
        raise ValueError(f"{', '.join(others)}: not for shards, which take {SUPPORTED}")
    if strategy in ("relay", "auto"):
        raise ValueError(f"strategy is {strategy!r}; shards take {SUPPORTED}")
    if family in layouts.STRUCTURES:
        raise ValueError(f"family is {family!r}, whose structure peers learn first; shards take {SUPPORTED}")
    if start != "uniform":
        raise ValueError(f"start is {start!r}; shards take {SUPPORTED}")
    if engine not in ENGINES:
        raise ValueError(f"engine is {engine!r}; expected one of {', '.join(ENGINES)}")
    if (rows_of is None) == (X is None) or (X is None) != (y is None):
        raise ValueError("expected either X and y, or rows_of")
    if rows_of is not None and (schema is None or not schema.classes):
        raise ValueError(
            "rows_of needs a schema with classes, which all shards agree on: Schema.infer(some rows, labels)"
        )


def _checked(shards: Any, nodes: int) -> list[np.ndarray]:
    """A user's own cut."""
    parts = [np.sort(np.asarray(part, dtype=np.int64)) for part in shards]
    if not parts or not np.array_equal(np.sort(np.concatenate(parts)), np.arange(nodes)):
        raise ValueError(f"shards lists peers; expected each of 0 to {nodes - 1} once")
    if any(part.size == 0 for part in parts):
        raise ValueError("a shard has no peers; leave it out")
    return parts


def _sizes(rows_per_node: Any, nodes: int) -> np.ndarray:
    if rows_per_node is None:
        raise refusal("rows_per_node", None, f"with rows_of a number, or one for each of {nodes} peers")
    return sizes_asked(rows_per_node, nodes).astype(np.int64)


@dataclass(frozen=True)
class _Settings:
    """What a run was asked for."""

    family: str
    schema: Schema
    sizes: np.ndarray
    strategy: str | Strategy
    rounds: int
    lr: float
    steps: int
    objective: str
    nodes: int
    seed: int
    judged_rows: tuple[int | None, int | None]
    """Of training and of test."""


@dataclass(frozen=True)
class _Driver:
    """Shards through their rounds, on any engine."""

    settings: _Settings
    plans: list[Plan]
    links: csr_array
    place: Place

    def run(
        self,
        engine: Engine,
        sources: Iterator[Any],
        away: Any,
        every: int,
        stats_of: Any,
        progress: Progress | None,
    ) -> dict[str, Any]:
        given, clock = self.settings, Clock()
        loading = []
        for number, (plan, source) in enumerate(zip(self.plans, sources, strict=True)):
            engine.start(plan, given.schema, self.place)
            loading.append(engine.call(number, "load", source))
        there = None
        if away is not None:
            there = encoded_labelled(given.schema, away, "test")
        unseen = there is not None and bool(np.isnan(there[0].values).any())
        family, strategy, start = self._settled(engine, any(engine.get(loading)) or unseen)
        tested = None
        if there is not None:
            sample = metrics.sample(family, *there, self.place, given.judged_rows[1], given.nodes, given.seed)
            tested = sample.rows, sample.labels
        self._everywhere(engine, "judge_on", self._training(engine), tested)
        rows = int(given.sizes.sum())
        # Each shard takes the kernel that the whole network would take: its rounds count for as many rows.
        work = [-(-given.rounds * rows // int(plan.sizes.sum())) for plan in self.plans]
        out = [
            engine.parts(number, "begin", 1 + len(plan.sends), strategy, start, work[number], given.steps)
            for number, plan in enumerate(self.plans)
        ]
        bytes_each = engine.get([sent[0] for sent in out])[0]
        clock.add("start")
        per_round = np.diff(self.links.indptr) * float(bytes_each if strategy.mixing != "none" else 0)
        records = []
        for turn in range(1, given.rounds + 1):
            out = self._round(engine, out)
            engine.get([sent[0] for sent in out])
            clock.add("rounds")
            if turn == given.rounds or (every and turn % every == 0):
                records.append(self._record(engine, turn, turn * per_round))
                clock.add("evaluation")
            if progress is not None:
                progress(turn, given.rounds)
        peers, stats = self._asked(engine, stats_of)
        layout = FAMILIES[given.family](**{**family.layout(), "cardinalities": family.cardinalities})
        halo = bytes_each * sum(some.size for plan in self.plans for some in plan.sends.values())
        return {
            "layout": layout, "records": np.concatenate(records), "peers": peers, "stats": stats, "halo_bytes": halo,
            "of_weights": strategy.of_weights, "seconds": clock.seconds,
        }  # fmt: skip

    def _everywhere(self, engine: Engine, verb: str, *given: Any) -> list[Any]:
        return engine.get([engine.call(number, verb, *given) for number in range(len(self.plans))])

    def _round(self, engine: Engine, out: list[list[Any]]) -> list[list[Any]]:
        """Every shard gets its halos, which the driver does not look at."""
        spots = [{to: 1 + spot for spot, to in enumerate(plan.sends)} for plan in self.plans]
        return [
            engine.parts(
                number, "advance", 1 + len(plan.sends), *(out[other][spots[other][number]] for other in plan.hears)
            )
            for number, plan in enumerate(self.plans)
        ]  # fmt: skip

    def _settled(self, engine: Engine, missing: bool) -> tuple[Family, Strategy, np.ndarray | None]:
        """The family, the strategy and S⁰ that all peers begin with (None: their own statistics)."""
        given = self.settings
        if missing and not FAMILIES[given.family].marks_missing:
            raise ValueError(
                f"values are missing, and {given.family} completes them; shards take such rows for naive-bayes only. "
                "Use simulate, family='naive-bayes', or fill them in first"
            )
        rows = float(given.sizes.sum())
        family = layouts.calibrated(given.family, given.schema, missing, rows)
        each = row_weights(given.objective, given.sizes)
        softmax = given.strategy == "dsgd"
        squares = engine.get(
            [engine.call(k, "settle", family, each[plan.peers], softmax) for k, plan in enumerate(self.plans)]
        )
        if isinstance(given.strategy, str):
            weight = float((each * given.sizes).sum())
            strategy: Strategy = (
                DSGD(rate=given.nodes / weight / (0.5 * sum(squares) / weight)) if softmax
                else Exact(rounds=given.rounds) if given.strategy == "exact"
                else STRATEGIES[given.strategy]()
            )  # fmt: skip
        else:
            strategy = given.strategy
        if strategy.name == "consensus-ml":
            return family, strategy, None
        mass = rows / (given.lr * given.nodes)
        return family, strategy, start_statistics("uniform", family, len(given.schema.classes), mass)

    def _training(self, engine: Engine) -> tuple[Rows, np.ndarray]:
        """The training rows that every peer is judged on: those that `simulate` draws."""
        given = self.settings
        total = int(given.sizes.sum())
        judged = metrics.drawn(total, given.judged_rows[0], given.nodes, given.seed)
        offsets = np.concatenate([[0], np.cumsum(given.sizes)])
        peer = np.searchsorted(offsets, judged, side="right") - 1
        owner, place = places([plan.peers for plan in self.plans])
        mine = [np.flatnonzero(owner[peer] == number) for number in range(len(self.plans))]
        calls = []
        for number, plan in enumerate(self.plans):
            begins = np.concatenate([[0], np.cumsum(plan.sizes)])
            some = mine[number]
            at = begins[place[peer[some]]] + judged[some] - offsets[peer[some]]
            calls.append(engine.call(number, "drawn", at))
        order = np.argsort(np.concatenate(mine))
        values, codes, labels = (
            np.concatenate(pieces)[order] for pieces in zip(*engine.get(calls), strict=True)
        )
        return Rows(values, codes), labels

    def _record(self, engine: Engine, turn: int, sent: np.ndarray) -> np.ndarray:
        """A row for each peer, in the order of `runs.COLUMNS`: [N, 8]."""
        nodes = self.settings.nodes
        mean = sum(self._everywhere(engine, "total")) / nodes
        figures = np.empty((5, nodes))
        for plan, part in zip(self.plans, self._everywhere(engine, "judged", mean), strict=True):
            figures[:, plan.peers] = part
        return record(turn, figures, sent)

    def _asked(self, engine: Engine, stats_of: Any) -> tuple[np.ndarray, np.ndarray]:
        """The peers asked for and their statistics."""
        nodes = self.settings.nodes
        peers = (
            np.arange(nodes) if isinstance(stats_of, str) and stats_of == "all" else np.asarray(stats_of, int)
        )
        if peers.size and not (peers.min() >= 0 and peers.max() < nodes):
            raise ValueError(
                f"stats_of names peers {peers.min()} to {peers.max()}; expected 0 to {nodes - 1}"
            )
        owner, place = places([plan.peers for plan in self.plans])
        mine = [np.flatnonzero(owner[peers] == number) for number in range(len(self.plans))]
        parts = engine.get([engine.call(k, "stats", place[peers[some]]) for k, some in enumerate(mine)])
        return peers, np.concatenate(parts)[np.argsort(np.concatenate(mine))]
