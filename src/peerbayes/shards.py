"""Driver 1 in pieces: a network larger than one machine's memory, cut into shards that hold their own peers only.

    plan    the peers of a shard, its rows of the mixing matrix, and what it sends to whom
    halo    the messages of peers that have neighbours in another shard: all that shards send each other in a round
    mixed   inner peers' from messages at hand, border peers' from these and halos; each sum in its usual order

A shard is a plain object here, or a Ray actor on any machine of a cluster. The driver holds the network and [N]
figures, never [N, C, K]. Between Ray actors halos go from one to the other; only those below 100 kB does Ray take along
with its own messages, which pass the driver.

Ray is for trusted clusters only: whoever reaches its ports can run code. Never between data owners.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from scipy.sparse import csgraph, csr_array

from peerbayes import metrics, topologies
from peerbayes.calibration import start_statistics
from peerbayes.errors import ConfigurationError, PeerbayesError
from peerbayes.families import FAMILIES, Family, Rows
from peerbayes.holdings import Holdings
from peerbayes.partitions import partition as part_rows
from peerbayes.places import Place
from peerbayes.runs import COLUMNS, ESTIMATOR_OF
from peerbayes.schema import Schema
from peerbayes.simulate import (
    EVALUATION_STREAM,
    FEWEST_JUDGED,
    JUDGEMENTS,
    STATISTICS_AT_ONCE,
    Clock,
    Progress,
    _check,
    _check_counts,
    _classes,
    _judged,
    _ordering,
    _plain,
    _rest,
    _rows,
    _sample,
)
from peerbayes.statistics import Statistics
from peerbayes.strategies import DSGD, STRATEGIES, Exact, Strategy
from peerbayes.tables import Table
from peerbayes.topologies.links import only
from peerbayes.topologies.links import rows_of as row_of

ENGINES = ("local", "ray")
SUPPORTED = (
    "a network that stays the same, the uniform start, NumPy, no faults, and the strategies "
    f"{', '.join(STRATEGIES)}; for anything else use simulate"
)
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)
RETRIES = 2  # of a task whose worker died
PATIENCE = 30.0  # seconds that a shard is given to say it is alive, once something went wrong

RowsOf = Callable[[np.ndarray], tuple[Any, Any]]


class ShardLost(PeerbayesError):
    """The process of a shard died, and its peers' statistics with it."""


# --- the cut ---------------------------------------------------------------------------------------


def cut(links: csr_array, shards: int) -> list[np.ndarray]:
    """The peers of each shard, ascending and as many in each as can be, so that few links cross.

    Peers in the order of a breadth-first search from one end of the network, cut into equal pieces: a border is then
    about as wide as the network. Where the order given crosses fewer links, that one.
    """
    nodes = links.shape[0]
    if not 1 <= shards <= nodes:
        raise ValueError(f"shards is {shards}; expected 1 to {nodes}, the number of peers")
    last = csgraph.breadth_first_order(links, 0, directed=False, return_predecessors=False)[-1]
    found = csgraph.breadth_first_order(links, last, directed=False, return_predecessors=False)
    cuts = [[np.sort(part) for part in np.array_split(order, shards)] for order in (np.arange(nodes), found)]
    return min(cuts, key=lambda parts: crossing(links, parts))


def crossing(links: csr_array, parts: Sequence[np.ndarray]) -> int:
    """Links between peers of different shards."""
    owner, _ = _places(parts)
    return int((owner[row_of(links)] != owner[links.indices]).sum()) // 2


def _places(parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The shard of each peer, and its place in there: [N], [N]."""
    nodes = sum(len(part) for part in parts)
    owner, place = np.empty(nodes, dtype=np.int32), np.empty(nodes, dtype=np.int32)
    for number, part in enumerate(parts):
        owner[part], place[part] = number, np.arange(len(part))
    return owner, place


@dataclass(frozen=True, eq=False)
class Plan:
    """What one shard knows of the network."""

    peers: np.ndarray  # [n] who they are
    sizes: np.ndarray  # [n] rows of each
    inner: csr_array | None = None  # [n, n] their rows of the mixing matrix, border peers' left empty
    border: np.ndarray = field(
        default_factory=lambda: np.zeros(0, dtype=np.int64)
    )  # [b] places with links elsewhere
    outer: csr_array | None = None  # [b, near + halo] border peers' rows
    near: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # places that `outer` needs
    sends: dict[int, np.ndarray] = field(default_factory=dict)  # shard -> places whose messages it needs
    hears: tuple[int, ...] = ()  # shards whose halos `outer` needs, in this order


def plans(mixing: csr_array | None, parts: Sequence[np.ndarray], sizes: np.ndarray) -> list[Plan]:
    """A plan for each shard; entries of a row keep their order, so that sums have the same bits. None: no messages."""
    if mixing is None:
        return [Plan(part, sizes[part]) for part in parts]
    owner, place = _places(parts)
    wanted: list[dict[int, np.ndarray]] = []
    made: list[dict[str, Any]] = []
    for number, part in enumerate(parts):
        own_rows = mixing[part]
        at_border = np.zeros(len(part), dtype=bool)
        at_border[row_of(own_rows)[owner[own_rows.indices] != number]] = True
        inner = only(own_rows, ~at_border[row_of(own_rows)])
        border = np.flatnonzero(at_border)
        outer = own_rows[border]
        needed = np.unique(outer.indices)
        near, far = needed[owner[needed] == number], needed[owner[needed] != number]
        far = far[np.lexsort((far, owner[far]))]
        column = np.empty(mixing.shape[0], dtype=np.int32)
        column[np.concatenate([near, far])] = np.arange(needed.size)
        wanted.append({int(other): far[owner[far] == other] for other in np.unique(owner[far])})
        made.append(
            {
                "peers": part, "sizes": sizes[part], "border": border, "near": place[near], "hears": tuple(wanted[-1]),
                "inner": _renamed(inner, place, len(part)), "outer": _renamed(outer, column, needed.size),
            }
        )  # fmt: skip
    return [
        Plan(**plan, sends={to: place[want[number]] for to, want in enumerate(wanted) if number in want})
        for number, plan in enumerate(made)
    ]


def _renamed(matrix: csr_array, column: np.ndarray, columns: int) -> csr_array:
    """The same rows with other columns, entries in the order they had. SciPy's `astype` would sort them."""
    return csr_array((matrix.data, column[matrix.indices], matrix.indptr), shape=(matrix.shape[0], columns))


# --- a shard ---------------------------------------------------------------------------------------


class Shard:
    """The peers of one plan: their rows, their state, and one round at a time."""

    def __init__(self, plan: Plan, schema: Schema, place: Place) -> None:
        self._plan, self._schema, self._place = plan, schema, place

    def load(self, source: RowsOf | tuple[Any, Any]) -> bool:
        """Its peers' rows; whether a continuous value is missing. Not in the constructor, whose errors end an actor."""
        plan, schema = self._plan, self._schema
        X, y = source(plan.peers) if callable(source) else source
        # Copies: what comes out of Ray's store cannot be written to, and kernels are compiled for arrays that can.
        rows = schema.encode(X)
        self._rows = Rows(np.array(rows.values), np.array(rows.codes))
        self._labels = np.array(schema.encode_labels(y))
        if self._labels.size != plan.sizes.sum() or len(self._rows.values) != self._labels.size:
            raise ValueError(
                f"rows_of gave {len(self._rows.values)} rows and {self._labels.size} labels for {plan.peers.size} "
                f"peers that hold {plan.sizes.sum()}; expected rows_per_node of each, one peer's after the other's"
            )

        return bool(np.isnan(self._rows.values).any())

    def ready(self) -> bool:
        return True

    def drawn(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Encoded rows at these positions, and their labels."""
        return self._rows.values[positions], self._rows.codes[positions], self._labels[positions]

    def settle(self, family: Family, row_weight: np.ndarray, squares: bool) -> float:
        """The family, and the weight of a row of each peer [n]; gives Σ‖φ‖² where asked."""
        weights = np.repeat(row_weight, self._plan.sizes)
        sizes = np.array(self._plan.sizes)
        self._held = Holdings(
            family, self._rows, self._labels, weights, sizes, len(self._schema.classes), self._place
        )
        return self._held.mean_square() * float(weights.sum()) if squares else 0.0

    def begin(self, strategy: Strategy, start: np.ndarray | None, work: int, steps: int) -> list[Any]:
        """From S⁰ [C, K], or from each peer's own YᵀΦ; `work` are the rounds that decide whether a kernel pays."""
        peers = self._plan.peers.size
        whole = self._held.statistics() if start is None else np.tile(start, (peers, 1, 1))
        self._strategy = strategy
        self._residual = self._held.residual(work, steps, strategy.of_weights)
        self._state = strategy.begin(self._place.put(whole), self._residual)
        return self._out()

    def advance(self, *halos: np.ndarray) -> list[Any]:
        """One round, with the halos of the shards it hears."""
        self._state = self._strategy.step(self._state, self._mixed(halos), self._residual)
        return self._out()

    def _out(self) -> list[Any]:
        """Bytes of a message, and the halo for each shard that needs one."""
        self._message = self._strategy.message(self._state)
        return [int(self._message[0].nbytes), *(self._message[some] for some in self._plan.sends.values())]

    def _mixed(self, halos: Sequence[np.ndarray]) -> np.ndarray:
        """Σ_u a_vu message_u of each peer: [n, …]."""
        plan, message = self._plan, self._message
        if plan.inner is None or plan.outer is None:
            return message
        flat = message.reshape(len(message), -1)
        mixed = plan.inner @ flat
        if plan.border.size:
            around = np.concatenate([flat[plan.near], *(halo.reshape(len(halo), -1) for halo in halos)])
            mixed[plan.border] = plan.outer @ around
        return mixed.reshape(message.shape)

    def total(self) -> np.ndarray:
        """Σ_v S_v over its peers: [C, K]."""
        return self._strategy.read(self._state).sum(axis=0)

    def judge_on(self, train: tuple[Rows, np.ndarray], test: tuple[Rows, np.ndarray] | None) -> None:
        """The rows that peers are judged on, encoded, and their labels."""
        self._train = self._sample(*train)
        self._test = None if test is None else self._sample(*test)

    def _sample(self, rows: Rows, labels: np.ndarray) -> metrics.Sample:
        own = Rows(np.array(rows.values), np.array(rows.codes))
        return metrics.Sample(self._held.family, own, np.array(labels), self._place)

    def judged(self, mean: np.ndarray) -> np.ndarray:
        """As `simulate` judges, against the mean over the peers of all shards: [5, n]."""
        stats = self._strategy.read(self._state)
        figures = _judged(stats, self._strategy.of_weights, self._held.family, self._train, self._test)
        together = max(1, STATISTICS_AT_ONCE // stats[0].size)
        for first in range(0, len(stats), together):
            some = slice(first, first + together)
            figures[3, some] = metrics.disagreement(stats[some], mean)
        return figures

    def stats(self, places: np.ndarray) -> np.ndarray:
        """What these of its peers have learnt: [k, C, K]."""
        return np.asarray(self._strategy.read(self._state)[places], dtype=np.float64)


# --- where shards are ------------------------------------------------------------------------------


class Engine(Protocol):
    """Shards somewhere. What a call gives may still be under way; `get` waits for it."""

    def start(self, *given: Any) -> None:
        """One more shard."""

    def call(self, number: int, verb: str, *given: Any) -> Any: ...
    def parts(self, number: int, verb: str, count: int, *given: Any) -> list[Any]:
        """A call that gives so many things, each of which can be passed on to another shard without being fetched."""

    def get(self, results: list[Any]) -> list[Any]: ...


class Here:
    """Shards as plain objects of this process: the twin for tests, and for finding mistakes in `rows_of`."""

    def __init__(self) -> None:
        self._shards: list[Shard] = []

    def start(self, *given: Any) -> None:
        self._shards.append(Shard(*given))

    def call(self, number: int, verb: str, *given: Any) -> Any:
        return getattr(self._shards[number], verb)(*given)

    def parts(self, number: int, verb: str, count: int, *given: Any) -> list[Any]:
        return self.call(number, verb, *given)

    def get(self, results: list[Any]) -> list[Any]:
        return results


class OverRay:
    """Shards as Ray actors, a processor each. One that dies ends the run: its peers' state is gone."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._shards: list[Any] = []
        self._actor = ray.remote(num_cpus=1, max_restarts=0, runtime_env={"env_vars": ONE_THREAD})(Shard)

    def start(self, *given: Any) -> None:
        self._shards.append(self._actor.remote(*given))

    def call(self, number: int, verb: str, *given: Any) -> Any:
        return getattr(self._shards[number], verb).remote(*given)

    def parts(self, number: int, verb: str, count: int, *given: Any) -> list[Any]:
        given_back = getattr(self._shards[number], verb).options(num_returns=count).remote(*given)
        return [given_back] if count == 1 else given_back

    def get(self, results: list[Any]) -> list[Any]:
        try:
            return self._ray.get(results)
        except self._ray.exceptions.RayError as error:
            dead = [number for number in range(len(self._shards)) if not self._alive(number)]
            if not dead:
                raise
            raise ShardLost(
                f"the process of shard {', '.join(map(str, dead))} of {len(self._shards)} (counted from 0) died, and "
                "what its peers had learnt is gone; start the run again: the same call gives the same numbers. If it "
                "was killed for memory, use more shards on more machines"
            ) from error

    def stop(self) -> None:
        """End the actors, so that a cluster that goes on has its memory back."""
        for shard in self._shards:
            self._ray.kill(shard)

    def _alive(self, number: int) -> bool:
        try:
            self._ray.get(self._shards[number].ready.remote(), timeout=PATIENCE)
        except self._ray.exceptions.GetTimeoutError:
            return True  # busy
        except self._ray.exceptions.RayActorError:
            return False
        return True


@contextmanager
def cluster(workers: int | None = None, address: str | None = None) -> Iterator[Any]:
    """The module `ray`, connected: started here on `workers` processors and ended again, or joined at `address`.

    Where this process is connected already, that is used and left as it is. Started here, Ray opens no dashboard and
    sends no usage statistics. Trusted clusters only.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigurationError("Ray is not installed: pip install 'peerbayes[cluster]'") from error
    if ray.is_initialized():
        yield ray
        return
    own: dict[str, Any] = {}
    if not address:  # Ray would start a task that was killed for memory again and again
        own = {
            "num_cpus": workers,
            "include_dashboard": False,
            "_system_config": {"task_oom_retries": RETRIES},
        }
    before = os.environ.get("RAY_USAGE_STATS_ENABLED")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read by the processes that Ray starts
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray's advice about its coming versions
            ray.init(
                address=address or "local", log_to_driver=False, logging_level=logging.ERROR,
                runtime_env={"env_vars": ONE_THREAD}, **own,
            )  # fmt: skip
    finally:
        if before is None:
            del os.environ["RAY_USAGE_STATS_ENABLED"]
        else:
            os.environ["RAY_USAGE_STATS_ENABLED"] = before
    try:
        yield ray
    finally:
        ray.shutdown()


# --- the driver ------------------------------------------------------------------------------------


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
        import pandas as pd

        frame = pd.DataFrame(self.records, columns=list(COLUMNS))
        return frame.astype(dict.fromkeys(("round", "node", "bytes", "floored"), np.int64))

    def classifier(self, node: int) -> Any:
        """The estimator of a peer whose statistics were asked for."""
        if self.of_weights:
            raise ValueError(f"{self.configuration['strategy']} learns weights: there is no classifier of it")
        at = np.flatnonzero(self.peers == node)
        if not at.size:
            raise ValueError(f"the statistics of peer {node} were not kept; name it in stats_of")
        statistics = Statistics(self.stats[at[0]], self.schema, self.layout, calibrated=True)
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
    evaluate_rows: int | None = None,
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
    """What `simulate` does, with the same arguments and the same numbers, in shards; without the pooled references.

    rows_of         instead of X and y: called by each shard with the peers it holds [n], gives their (X, y), one peer's
                    rows after the other's, rows_per_node (a number, or [N]) of each. With it, `schema` says what
                    columns, classes and units are, and without `test` nothing is tested
    evaluate_every  rounds between evaluations; 0 evaluates at the end only
    shards          how many, or a list with the peers of each
    engine          "local": in this process; "ray": an actor each, a processor each. Trusted clusters only
    address         of a Ray cluster to join ("auto": the one this machine is in); None starts Ray on this machine
    stats_of        the peers whose statistics are wanted, or "all"
    """
    configuration = {
        name: value if isinstance(value, str | int | float | bool | None) else type(value).__name__
        for name, value in locals().items()
        if name not in ("X", "y", "schema", "test", "progress", "others", "stats_of", "address")
    }
    _refuse(strategy, start, engine, rows_of, schema, X, y, others)
    _check(family, strategy, start, objective, lr)
    _check_counts(
        (rounds, "rounds", 1), (local_steps, "local_steps", 1), (evaluate_every, "evaluate_every", 0),
        (1 if evaluate_rows is None else evaluate_rows, "evaluate_rows", 1),
    )  # fmt: skip
    streams = [np.random.default_rng([seed, stream]) for stream in range(2)]
    network = topologies.schedule(topology, nodes, streams[1])
    if not network.static:
        raise ValueError(f"the network changes from round to round; shards take {SUPPORTED}")
    links = network.at(1)
    parts = _checked(shards, nodes) if not isinstance(shards, int | np.integer) else cut(links, int(shards))
    if rows_of is not None:
        assert schema is not None
        agreed, sizes, away = schema, _sizes(rows_per_node, nodes), test
        sources: Iterator[Any] = iter([rows_of] * len(parts))
    else:
        table, (classes, codes) = Table.of(X), _classes(y, schema)
        told = schema if schema is not None else Schema.infer(table, kinds=kinds, clip=clip)
        described = replace(told, classes=classes)
        dealt = part_rows(
            partition, codes, lambda: _ordering(described, table), nodes, rows_per_node, streams[0]
        )
        own, sizes = np.concatenate(dealt), np.array([len(rows) for rows in dealt])
        agreed = described.measured_on(_rows(table, own))
        away = test if test is not None else _rest(table, codes, own, classes)
        sources = _pieces(table, np.array(classes)[codes], dealt, parts)
    settings = _Settings(
        family, agreed, sizes, strategy, rounds, lr, local_steps, objective, nodes, seed, evaluate_rows
    )
    configuration["strategy"] = strategy if isinstance(strategy, str) else strategy.name
    place = Place(None, dtype)
    driver = _Driver(settings, plans(_mixing(strategy, links, place), parts, sizes), links, place)
    if engine == "local":
        figures = driver.run(Here(), sources, away, evaluate_every, stats_of, progress)
    else:
        with cluster(len(parts), address) as ray:
            over = OverRay(ray)
            try:
                figures = driver.run(over, sources, away, evaluate_every, stats_of, progress)
            finally:
                over.stop()
    return ShardedRun(
        configuration, agreed, parts=parts, crossing=crossing(links, parts), sizes=sizes, **figures
    )


def _mixing(strategy: str | Strategy, links: csr_array, place: Place) -> csr_array | None:
    """The weights that messages are mixed with, as precise as these; None where nothing is sent."""
    value = STRATEGIES[strategy]() if isinstance(strategy, str) else strategy
    return None if value.mixing == "none" else place.put_matrix(getattr(topologies, value.mixing)(links))


def _pieces(
    table: Table, labels: np.ndarray, dealt: list[np.ndarray], parts: Sequence[np.ndarray]
) -> Iterator[tuple[Any, np.ndarray]]:
    """The rows of each shard and their labels, one shard at a time: a copy of all of them may not fit."""
    for part in parts:
        rows = np.concatenate([dealt[peer] for peer in part])
        yield _plain(_rows(table, rows)), labels[rows]


def _refuse(
    strategy: Any, start: str, engine: str, rows_of: Any, schema: Any, X: Any, y: Any, others: dict[str, Any]
) -> None:
    """What `simulate` can do and shards cannot."""
    if others:
        raise ValueError(f"{', '.join(others)}: not for shards, which take {SUPPORTED}")
    if strategy in ("relay", "auto"):
        raise ValueError(f"strategy is {strategy!r}; shards take {SUPPORTED}")
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
    sizes = np.asarray(rows_per_node)
    if sizes.dtype.kind not in "iu" or sizes.shape not in ((), (nodes,)) or sizes.min() < 1:
        raise ValueError(
            f"rows_per_node is {rows_per_node!r:.80}; with rows_of expected a number of 1 or more, or one for each of "
            f"{nodes} peers"
        )
    return np.broadcast_to(sizes, nodes).astype(np.int64)


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
    evaluate_rows: int | None


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
        family, strategy, start = self._settled(engine, any(engine.get(loading)))
        tested = None
        if away is not None:
            there = given.schema.encode(away[0]), given.schema.encode_labels(away[1])
            sample = _sample(family, *there, self.place, given.evaluate_rows, given.nodes, given.seed)
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
        if missing and not FAMILIES[given.family].takes_missing:
            raise ValueError(
                f"{given.family} needs every continuous value; use family='naive-bayes', or fill them in first"
            )
        rows = float(given.sizes.sum())
        family = ESTIMATOR_OF[given.family](calibrate=True).family_for(given.schema, missing, rows)
        each = np.ones(given.nodes) if given.objective == "rows" else rows / (given.nodes * given.sizes)
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
        most = (
            max(JUDGEMENTS // given.nodes, FEWEST_JUDGED)
            if given.evaluate_rows is None
            else given.evaluate_rows
        )
        drawn = np.arange(total)
        if total > most:
            drawn = np.random.default_rng([given.seed, EVALUATION_STREAM]).choice(total, most, replace=False)
        offsets = np.concatenate([[0], np.cumsum(given.sizes)])
        peer = np.searchsorted(offsets, drawn, side="right") - 1
        owner, place = _places([plan.peers for plan in self.plans])
        mine = [np.flatnonzero(owner[peer] == number) for number in range(len(self.plans))]
        calls = []
        for number, plan in enumerate(self.plans):
            begins = np.concatenate([[0], np.cumsum(plan.sizes)])
            some = mine[number]
            at = begins[place[peer[some]]] + drawn[some] - offsets[peer[some]]
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
        return np.stack([np.full(nodes, float(turn)), np.arange(nodes), *figures[:4], sent, figures[4]], 1)

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
        owner, place = _places([plan.peers for plan in self.plans])
        mine = [np.flatnonzero(owner[peers] == number) for number in range(len(self.plans))]
        parts = engine.get([engine.call(k, "stats", place[peers[some]]) for k, some in enumerate(mine)])
        return peers, np.concatenate(parts)[np.argsort(np.concatenate(mine))]
