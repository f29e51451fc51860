"""Shards of a network, and the engines that run them.

An engine runs shards as plain objects of this process, or as Ray actors on a cluster (extra `cluster`). Ray is for
trusted clusters only: whoever reaches its ports can run code. Never between data owners.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from scipy.sparse import csgraph, csr_array

from peerbayes.data.schema import Schema
from peerbayes.errors import ConfigurationError, PeerbayesError
from peerbayes.learning import metrics
from peerbayes.learning.few_bytes import message_bytes
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.strategies import Strategy
from peerbayes.model.devices import ONE_THREAD, Device
from peerbayes.model.families import Family, Rows
from peerbayes.network.mixing import only
from peerbayes.network.mixing import rows_of as row_of
from peerbayes.simulation.population import encoded_labelled

# --- a network cut into shards: the peers of each, and its part of the network


def cut(links: csr_array, shards: int) -> list[np.ndarray]:
    """Return the peers of each shard, ascending and of nearly equal number, so that few links cross.

    Cuts the order of a breadth-first search from one end of the network into equal pieces: a border is then about as
    wide as the network. Uses the original order instead where that crosses fewer links.
    """
    peer_count = links.shape[0]
    if not 1 <= shards <= peer_count:
        raise ValueError(f"shards is {shards}; expected 1 to {peer_count}, the number of peers")
    last = csgraph.breadth_first_order(links, 0, directed=False, return_predecessors=False)[-1]
    searched = csgraph.breadth_first_order(links, last, directed=False, return_predecessors=False)
    cuts = [
        [np.sort(shard_peers) for shard_peers in np.array_split(order, shards)]
        for order in (np.arange(peer_count), searched)
    ]
    return min(cuts, key=lambda shard_lists: crossing(links, shard_lists))


def crossing(links: csr_array, shard_peers: Sequence[np.ndarray]) -> int:
    """Count the links between peers of different shards."""
    owner, _ = positions(shard_peers)
    return int((owner[row_of(links)] != owner[links.indices]).sum()) // 2


def positions(shard_peers: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the shard of each peer, and its index within the shard: [N], [N]."""
    peer_count = sum(len(peers) for peers in shard_peers)
    owner, position = np.empty(peer_count, dtype=np.int32), np.empty(peer_count, dtype=np.int32)
    for number, peers in enumerate(shard_peers):
        owner[peers], position[peers] = number, np.arange(len(peers))
    return owner, position


@dataclass(frozen=True, eq=False)
class Plan:
    """The part of the network that one shard needs."""

    peers: np.ndarray  # [n] indices of its peers
    sizes: np.ndarray  # [n] rows of each
    inner: csr_array | None = None  # [n, n] their rows of the mixing matrix, border peers' left empty
    border: np.ndarray = field(
        default_factory=lambda: np.zeros(0, dtype=np.int64)
    )  # [b] indices in this shard of peers with links to others
    outer: csr_array | None = None  # [b, near + halo] border peers' rows
    near: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # indices `outer` needs
    sends: dict[int, np.ndarray] = field(default_factory=dict)  # shard -> indices whose messages it needs
    hears: tuple[int, ...] = ()  # shards whose halos `outer` needs, in this order


def plans(mixing: csr_array | None, shard_peers: Sequence[np.ndarray], sizes: np.ndarray) -> list[Plan]:
    """Return a plan for each shard, without messages if `mixing` is None. Entries keep their order, sums their bits."""
    if mixing is None:
        return [Plan(peers, sizes[peers]) for peers in shard_peers]
    owner, position = positions(shard_peers)
    wanted: list[dict[int, np.ndarray]] = []
    fields: list[dict[str, Any]] = []
    for number, peers in enumerate(shard_peers):
        own_rows = mixing[peers]
        at_border = np.zeros(len(peers), dtype=bool)
        at_border[row_of(own_rows)[owner[own_rows.indices] != number]] = True
        inner = only(own_rows, ~at_border[row_of(own_rows)])
        border = np.flatnonzero(at_border)
        outer = own_rows[border]
        needed = np.unique(outer.indices)
        near, far = needed[owner[needed] == number], needed[owner[needed] != number]
        far = far[np.lexsort((far, owner[far]))]
        column = np.empty(mixing.shape[0], dtype=np.int32)
        column[np.concatenate([near, far])] = np.arange(needed.size)
        wanted.append({int(sender): far[owner[far] == sender] for sender in np.unique(owner[far])})
        fields.append(
            {
                "peers": peers, "sizes": sizes[peers], "border": border, "near": position[near],
                "hears": tuple(wanted[-1]), "inner": _renamed(inner, position, len(peers)),
                "outer": _renamed(outer, column, needed.size),
            }
        )  # fmt: skip
    return [
        Plan(**plan, sends={to: position[want[number]] for to, want in enumerate(wanted) if number in want})
        for number, plan in enumerate(fields)
    ]


def _renamed(matrix: csr_array, column: np.ndarray, columns: int) -> csr_array:
    """Return the same rows with other columns, entries in their order. SciPy's `astype` would sort them."""
    return csr_array((matrix.data, column[matrix.indices], matrix.indptr), shape=(matrix.shape[0], columns))


# --- the peers of one shard: their rows, their state, and one round at a time

RowsOf = Callable[[np.ndarray], tuple[Any, Any]]


class Shard:
    """The peers of one plan: their rows, their state, and one round at a time."""

    def __init__(self, plan: Plan, schema: Schema, device: Device) -> None:
        self._plan, self._schema, self._device = plan, schema, device

    def load(self, source: RowsOf | tuple[Any, Any]) -> bool:
        """Load the peers' rows; return whether a continuous value is missing. Errors in a constructor end an actor."""
        plan, schema = self._plan, self._schema
        X, y = source(plan.peers) if callable(source) else source
        # Copies: arrays from Ray's store are read-only, and kernels are compiled for writable ones.
        rows, labels = encoded_labelled(schema, (X, y), "rows_of" if callable(source) else "X and schema")
        self._rows, self._labels = Rows(np.array(rows.values), np.array(rows.codes)), np.array(labels)
        if self._labels.size != plan.sizes.sum() or len(self._rows.values) != self._labels.size:
            raise ValueError(
                f"rows_of gave {len(self._rows.values)} rows and {self._labels.size} labels for {plan.peers.size} "
                f"peers that hold {plan.sizes.sum()}; expected rows_per_peer of each, one peer's after the other's"
            )

        return bool(np.isnan(self._rows.values).any())

    def ready(self) -> bool:
        return True

    def rows_at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return encoded rows at these positions, and their labels."""
        return self._rows.values[positions], self._rows.codes[positions], self._labels[positions]

    def configure(self, family: Family, row_weight: np.ndarray, squares: bool) -> float:
        """Set the family and the weight of a row of each peer [n]; return Σ‖φ‖² if `squares`."""
        weights = np.repeat(row_weight, self._plan.sizes)
        sizes = np.array(self._plan.sizes)
        self._local_rows = LocalRows(
            family, self._rows, self._labels, weights, sizes, len(self._schema.classes), self._device
        )
        return self._local_rows.mean_square() * float(weights.sum()) if squares else 0.0

    def begin(self, strategy: Strategy, start: np.ndarray | None, work: int, steps: int) -> list[Any]:
        """Start from S⁰ [C, K], or from each peer's own YᵀΦ; `work`: rounds, which decide whether a kernel pays."""
        peers = self._plan.peers.size
        statistics = self._local_rows.statistics() if start is None else np.tile(start, (peers, 1, 1))
        self._strategy = strategy
        self._residual = self._local_rows.residual(work, steps, strategy.of_weights)
        self._state = strategy.begin(self._device.put(statistics), self._residual)
        return self._outgoing()

    def advance(self, *halos: np.ndarray) -> list[Any]:
        """Advance by one round, with the halos of the shards it hears."""
        self._state = self._strategy.step(self._state, self._mixed(halos), self._residual)
        return self._outgoing()

    def _outgoing(self) -> list[Any]:
        """Return the bytes of a message and of its matrix, and the halo for each shard that needs one."""
        self._message = self._strategy.message(self._state)
        size = message_bytes(self._strategy, self._message[0]), int(self._message[0].nbytes)
        return [size, *(self._message[peers] for peers in self._plan.sends.values())]

    def _mixed(self, halos: Sequence[np.ndarray]) -> np.ndarray:
        """Return Σ_u a_vu message_u of each peer: [n, …]."""
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
        """Return Σ_v S_v over its peers: [C, K]."""
        return self._strategy.read(self._state).sum(axis=0)

    def set_evaluation_rows(
        self, train: tuple[Rows, np.ndarray], test: tuple[Rows, np.ndarray] | None, run_logits: float
    ) -> None:
        """Set the encoded rows that peers are evaluated on, and their labels; `run_logits` as in `metrics.Sample`."""
        self._train = self._sample(*train, run_logits)
        self._test = None if test is None else self._sample(*test, run_logits)

    def _sample(self, rows: Rows, labels: np.ndarray, run_logits: float) -> metrics.Sample:
        copied = Rows(np.array(rows.values), np.array(rows.codes))
        return metrics.Sample(self._local_rows.family, copied, np.array(labels), self._device, run_logits)

    def judged(self, mean: np.ndarray) -> np.ndarray:
        """Evaluate as `simulate` does, against the mean over the peers of all shards: [5, n]."""
        stats = self._strategy.read(self._state)
        of_weights, family = self._strategy.of_weights, self._local_rows.family
        return metrics.judged(stats, mean, of_weights, family, self._train, self._test)

    def stats(self, positions: np.ndarray) -> np.ndarray:
        """Return the statistics of these peers: [k, C, K]."""
        return np.asarray(self._strategy.read(self._state)[positions], dtype=np.float64)


# --- engines: shards in this process, or as Ray actors

RETRIES = 2  # of a task whose worker died
ALIVE_TIMEOUT = 30.0  # seconds for a shard to answer that it is alive, after an error


class ShardLost(PeerbayesError):
    """The process of a shard died, and its peers' statistics with it."""


class Engine(Protocol):
    """Runs shards. The result of a call may be pending; `get` waits for it."""

    def start(self, *arguments: Any) -> None:
        """Add a shard."""

    def call(self, number: int, verb: str, *arguments: Any) -> Any: ...
    def call_many(self, number: int, verb: str, count: int, *arguments: Any) -> list[Any]:
        """Make a call with `count` results, each of which can go to another shard without being fetched."""

    def get(self, results: list[Any]) -> list[Any]: ...


class InProcess:
    """Shards as plain objects of this process: for tests, and for debugging `rows_of`."""

    def __init__(self) -> None:
        self._shards: list[Shard] = []

    def start(self, *arguments: Any) -> None:
        self._shards.append(Shard(*arguments))

    def call(self, number: int, verb: str, *arguments: Any) -> Any:
        return getattr(self._shards[number], verb)(*arguments)

    def call_many(self, number: int, verb: str, count: int, *arguments: Any) -> list[Any]:
        return self.call(number, verb, *arguments)

    def get(self, results: list[Any]) -> list[Any]:
        return results


class RayActors:
    """Shards as Ray actors, a processor each. One that dies ends the run: its peers' state is lost."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._shards: list[Any] = []
        self._actor = ray.remote(num_cpus=1, max_restarts=0, runtime_env={"env_vars": ONE_THREAD})(Shard)

    def start(self, *arguments: Any) -> None:
        self._shards.append(self._actor.remote(*arguments))

    def call(self, number: int, verb: str, *arguments: Any) -> Any:
        return getattr(self._shards[number], verb).remote(*arguments)

    def call_many(self, number: int, verb: str, count: int, *arguments: Any) -> list[Any]:
        references = getattr(self._shards[number], verb).options(num_returns=count).remote(*arguments)
        return [references] if count == 1 else references

    def get(self, results: list[Any]) -> list[Any]:
        try:
            return self._ray.get(results)
        except self._ray.exceptions.RayError as error:
            dead = [number for number in range(len(self._shards)) if not self._alive(number)]
            if not dead:
                raise
            raise ShardLost(
                f"the process of shard {', '.join(map(str, dead))} of {len(self._shards)} (counted from 0) died, and "
                "what its peers had learnt is lost; start the run again: the same call gives the same numbers. If it "
                "was killed for memory, use more shards on more machines"
            ) from error

    def stop(self) -> None:
        """End the actors, to free their memory on a cluster that keeps running."""
        for shard in self._shards:
            self._ray.kill(shard)

    def _alive(self, number: int) -> bool:
        try:
            self._ray.get(self._shards[number].ready.remote(), timeout=ALIVE_TIMEOUT)
        except self._ray.exceptions.GetTimeoutError:
            return True  # busy
        except self._ray.exceptions.RayActorError:
            return False
        return True


def connected() -> bool:
    """Return whether this process is connected to Ray already."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


@contextmanager
def cluster(workers: int | None = None, address: str | None = None) -> Iterator[Any]:
    """Connect to Ray and yield the module: started here on `workers` processors, or joined at `address`.

    An existing connection of this process is used, and left open. Ray that was started here is ended again, opens no
    dashboard and sends no usage statistics. Trusted clusters only.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigurationError("Ray is not installed: pip install 'peerbayes[cluster]'") from error
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {}
    if not address:  # else Ray would restart a task that was killed for memory again and again
        options = {
            "num_cpus": workers,
            "include_dashboard": False,
            "_system_config": {"task_oom_retries": RETRIES},
        }
    previous = os.environ.get("RAY_USAGE_STATS_ENABLED")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read by the processes that Ray starts
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray's advice about its coming versions
            ray.init(
                address=address or "local", log_to_driver=False, logging_level=logging.ERROR,
                runtime_env={"env_vars": ONE_THREAD}, **options,
            )  # fmt: skip
    finally:
        if previous is None:
            del os.environ["RAY_USAGE_STATS_ENABLED"]
        else:
            os.environ["RAY_USAGE_STATS_ENABLED"] = previous
    try:
        yield ray
    finally:
        ray.shutdown()
