"""What one neighbour receives from a peer: run a simulation again, and record the messages of two peers.

`simulate` keeps no messages, but repeats exactly from the same seed. A `Recorder` wraps the strategy: it calls the same
four functions, and copies the messages of two peers. From these, and from what everybody knows (start, weights), `seen`
computes what the neighbour can compute, and nothing else.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from peerbayes.data.declarations import declarations, writable
from peerbayes.data.infer import RULES
from peerbayes.data.schema import Schema
from peerbayes.learning import planning
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.strategies import (
    Declaration,
    LearningSettings,
    NetworkFacts,
    Residual,
    Strategy,
    declared,
)
from peerbayes.model import layout
from peerbayes.model.families import Family, Rows
from peerbayes.simulation import population
from peerbayes.simulation.old_names import refuse_old_names
from peerbayes.simulation.owners import owners_in, with_peers
from peerbayes.simulation.population import Assignment
from peerbayes.simulation.result import Run
from peerbayes.simulation.run import simulate
from peerbayes.simulation.settings import SimulationArguments

# Settings of a simulation with the values under which a neighbour can follow every round.
STEADY = {"message_loss": 0.0, "message_delay": 0.0, "peers_down": 0.0, "change_every": None, "local_steps": 1,
          "objective": "rows", "faults": None, "messages": "float64", "exchanges": None}  # fmt: skip

# Settings that `again` does not take from a run: evaluations, where it was computed, and what hides or forges messages.
LEFT = ("evaluate_every", "evaluate_rows", "device", "dtype", "secure_sum", "privacy", "robust", "attack")


@dataclass
class Recorder:
    """A strategy that wraps another one and records the messages of some peers."""

    strategy: Strategy
    """The wrapped strategy."""
    peers: tuple[int, ...]
    """Peers whose messages are recorded."""
    start: np.ndarray | None = None
    """[C, K] start of the first of them."""
    messages: list[np.ndarray] = field(default_factory=list)
    """Messages of every round: [peers, …]."""

    @property
    def name(self) -> str:
        return self.strategy.name

    @property
    def mixing(self) -> str:
        return self.strategy.mixing

    @property
    def of_weights(self) -> bool:
        return self.strategy.of_weights

    @property
    def takes_old(self) -> bool:
        return self.strategy.takes_old

    @property
    def declaration(self) -> Declaration:
        return declared(self.strategy)

    def begin(self, start: Any, residual: Residual) -> Any:
        self.start, self.messages = np.array(start[self.peers[0]]), []
        return self.strategy.begin(start, residual)

    def message(self, state: Any) -> Any:
        message = self.strategy.message(state)
        self.messages.append(np.array(message[list(self.peers)]))
        return message

    def step(self, state: Any, mixed: Any, residual: Residual) -> Any:
        return self.strategy.step(state, mixed, residual)

    def read(self, state: Any) -> Any:
        return self.strategy.read(state)


@dataclass(frozen=True, eq=False)
class Observation:
    """A peer as one neighbour sees it: common knowledge, the messages between the two, and the true rows."""

    peer: int
    neighbour: int
    leaf: bool
    """Whether the peer has no other neighbour."""
    strategy: Any
    """The strategy, with `recovered`."""
    weights: tuple[float, float]
    """The peer's weights in mixing: of itself, and of the neighbour."""
    family: Family
    """The family, with its guards."""
    start: np.ndarray
    """[C, K] S⁰, which everybody knows."""
    heard: np.ndarray
    """[T, …] messages from the peer to the neighbour, round by round."""
    said: np.ndarray
    """[T, …] messages from the neighbour to the peer."""
    rows: Rows
    """The peer's rows, unknown to the neighbour: used to score guesses."""
    labels: np.ndarray
    """[m] their classes, also unknown to the neighbour."""
    schema: Schema
    """Columns and classes."""

    @property
    def classes(self) -> int:
        """Number of classes, C."""
        return len(self.start)

    @property
    def residual(self) -> Residual:
        """The peer's residual, from its rows: [1, C, K] -> [1, C, K]."""
        return plain_residual(self.family, self.rows, self.labels, self.classes)


@dataclass(frozen=True, eq=False)
class Seen:
    """Residuals that a neighbour knows exactly, and the statistics at which each was taken."""

    stats: np.ndarray  # [T, C, K]
    residuals: np.ndarray  # [T, C, K] R_v at them

    def counts(self, rows: int) -> np.ndarray:
        """Return the class counts [C] of a peer with m rows: n_c = R[c,0] + m·p_c, where p is the start's posterior.

        φ_0 = 1, and at a uniform start p = 1/C for every row.
        """
        first = self.residuals[0][:, 0]
        return np.rint(first + rows / len(first)).astype(np.int64)


def plain_residual(family: Family, rows: Rows, labels: np.ndarray, classes: int) -> Residual:
    """Return the residual of one peer with these rows: [1, C, K] -> [1, C, K]."""
    holdings = LocalRows(family, rows, labels, np.ones(len(labels)), np.array([len(labels)]), classes)
    return holdings.residual(1)


@refuse_old_names
def observe(X: Any, y: Any, *, peer: int, neighbour: int | None = None, **settings: Any) -> Observation:
    """Simulate, and record what one neighbour receives from a peer.

    X, y        rows and labels, as for `simulate`
    peer        index of the observed peer, from 0
    neighbour   index of the observer; None: the first of its neighbours
    settings    of `simulate`: the same seed gives the same rows, network and messages
    """
    observation, _ = _observed(X, y, peer, neighbour, settings)
    return observation


@refuse_old_names
def again(
    run: Run, X: Any, y: Any, *, peer: int, neighbour: int | None = None, **overrides: Any
) -> Observation:
    """Repeat a finished run from its settings, and record what one neighbour received from a peer.

    run         the finished run
    X, y        the rows and labels that it was made of
    peer        index of the observed peer, from 0
    neighbour   index of the observer; None: the first of its neighbours
    overrides   settings that the run does not record: a topology, partition or kinds given as objects
    """
    kept = [name for name in writable(SimulationArguments) if name not in LEFT]
    settings = {name: run.configuration[name] for name in kept if name in run.configuration}
    if settings.get("kinds") not in RULES:
        settings["kinds"] = [column.kind for column in run.schema.columns]
    settings |= overrides
    observation, repeated = _observed(X, y, peer, neighbour, settings)
    if repeated.stats.shape != run.stats.shape or not np.allclose(
        repeated.stats, run.stats, rtol=1e-9, atol=1e-9
    ):
        raise ValueError(
            "these rows and settings do not give the run's statistics; expected the rows that it was made of, and "
            "its topology, partition or kinds where those were given as objects"
        )
    return observation


def seen(observation: Observation) -> Seen:
    """Return the residuals that the neighbour knows exactly: of every round at a leaf, else of the first only.

    At a leaf everything that the peer mixes is known: S_v = a_vv φ_v + a_vu φ_u. The strategy's `recovered` computes
    R from that.
    """
    heard, said, mixed = observation.heard, observation.said, []
    if observation.leaf:
        own_weight, neighbour_weight = observation.weights
        mixed = [own_weight * heard[t] + neighbour_weight * said[t] for t in range(len(heard) - 1)]
    stats, changes = observation.strategy.recovered(observation.start, heard, mixed)
    return Seen(np.array(stats), np.array(changes))


def _observed(
    X: Any, y: Any, peer: int, neighbour: int | None, settings: dict[str, Any]
) -> tuple[Observation, Run]:
    for name, value in STEADY.items():
        if settings.get(name, value) != value:
            raise ValueError(
                f"{name} is {settings[name]!r}; expected {value!r}: the audit follows every round"
            )
    X, owners = owners_in(X, settings)
    if owners is not None:
        own = {"peers": len(owners.names), "partition": owners.parts}
        settings = {**settings, **own, "test": owners.features(settings.get("test"))}
    complete = {
        name: setting.default for name, setting in declarations(SimulationArguments).items()
    } | with_peers(settings)
    peers, seed = complete["peers"], complete["seed"]
    if not 0 <= peer < peers:
        raise ValueError(f"peer is {peer}; expected 0 to {peers - 1}")
    # Drawn as `simulate` draws them, and then passed to it, so that it cannot draw others.
    assignment = Assignment.of(X, y, SimpleNamespace(**complete))
    links = population.draw_network(complete["topology"], peers, seed).at(1)
    around = links.indices[links.indptr[peer] : links.indptr[peer + 1]]
    observer = int(around[0]) if neighbour is None and around.size else -1 if neighbour is None else neighbour
    if observer not in around:
        raise ValueError(
            f"neighbour is {observer}; expected one of peer {peer}'s: {around.tolist() or 'it has none'}"
        )
    facts = NetworkFacts(peers, float(assignment.sizes.sum()))
    recorder = Recorder(_strategy(complete, facts), (peer, observer))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "peers hold all rows", UserWarning)  # nothing is tested here
        run = simulate(
            X, y, **{**settings, "peers": peers, "partition": assignment.parts, "topology": links,
                     "strategy": recorder}, references=False, evaluate_every=0, evaluate_rows=1,
        )  # fmt: skip
    weights = planning.mixing_weights(recorder, links)
    mixing_weights = float(weights[peer, peer]), float(weights[peer, observer])
    guarded = layout.guarded(run.layout, float(run.sizes.sum()), calibrate=True)
    peer_rows = assignment.parts[peer]
    messages = np.array(recorder.messages)
    assert recorder.start is not None
    return Observation(
        peer, observer, around.size == 1, recorder.strategy, mixing_weights,
        guarded, recorder.start, messages[:, 0], messages[:, 1],
        run.schema.encode(assignment.table.take(peer_rows)), assignment.codes[peer_rows], run.schema,
    ), run  # fmt: skip


def _strategy(settings: dict[str, Any], facts: NetworkFacts) -> Any:
    """Return the strategy of a run without faults, if a neighbour can compute residuals from its messages.

    A choice of strategies is one between those that can be followed.
    """
    chosen = settings["strategy"]
    followed_only = "the audit follows single messages, not sums over a tree"
    strategy = planning.plan(
        LearningSettings(chosen, settings["rounds"], excluded=followed_only), facts
    ).strategy
    if not hasattr(strategy, "recovered"):
        followed = [name for name in planning.names() if hasattr(planning.kind_of(name), "recovered")]
        raise ValueError(
            f"strategy is {planning.name_of(chosen)!r}; the audit follows {', '.join(followed[:-1])} and {followed[-1]}"
        )
    return strategy
