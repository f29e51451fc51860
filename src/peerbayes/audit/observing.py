"""What one neighbour hears of a peer: a simulation is run once more, and the messages of two peers are written down.

`simulate` keeps no messages, and does the same again from the same seed. A `Recorder` takes the place of the strategy:
it calls the same four functions, and copies what two peers say. From that, and from what everybody knows (start,
weights), `seen` computes what the neighbour can compute, and nothing else.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from peerbayes import layouts, topologies
from peerbayes.families import Family, Rows
from peerbayes.holdings import Holdings
from peerbayes.inference import KINDS
from peerbayes.inputs import rows_at
from peerbayes.runs import Run
from peerbayes.schema import Schema
from peerbayes.simulate import simulate
from peerbayes.simulation import drawn
from peerbayes.simulation.drawn import Dealt
from peerbayes.strategies import CRC, STRATEGIES, Exact, Residual, Strategy, Tracking

# Settings of a simulation under which a neighbour cannot follow every round, with the value that it must have.
STEADY = {"message_loss": 0.0, "message_delay": 0.0, "peers_down": 0.0, "change_every": None, "local_steps": 1,
          "objective": "rows"}  # fmt: skip

# What `again` takes from a run's settings.
KEPT = (
    "family", "kinds", "nodes", "rows_per_node", "topology", "partition", "strategy", "start", "rounds", "lr",
    "local_steps", "change_every", "objective", "seed", "clip", "message_loss", "message_delay", "peers_down",
    "start_rounds",
)  # fmt: skip


@dataclass
class Recorder:
    """A strategy that does as another one does, and writes down what some peers send."""

    strategy: Strategy
    """The one that learns."""
    peers: tuple[int, ...]
    """Whose messages are kept."""
    start: np.ndarray | None = None
    """[C, K] where the first of them began."""
    messages: list[np.ndarray] = field(default_factory=list)
    """Of every round: [peers, …]."""

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

    def begin(self, start: Any, residual: Residual) -> Any:
        self.start, self.messages = np.array(start[self.peers[0]]), []
        return self.strategy.begin(start, residual)

    def message(self, state: Any) -> Any:
        said = self.strategy.message(state)
        self.messages.append(np.array(said[list(self.peers)]))
        return said

    def step(self, state: Any, mixed: Any, residual: Residual) -> Any:
        return self.strategy.step(state, mixed, residual)

    def read(self, state: Any) -> Any:
        return self.strategy.read(state)


@dataclass(frozen=True, eq=False)
class Observation:
    """A peer as one neighbour meets it: what both know, what passed between them, and what is true."""

    peer: int
    neighbour: int
    leaf: bool
    """Whether the peer has no other neighbour."""
    strategy: Strategy
    weights: tuple[float, float]
    """The peer's weights in mixing: of itself, and of the neighbour."""
    family: Family
    """What a class looks like, with its guards."""
    start: np.ndarray
    """[C, K] S⁰, which everybody knows."""
    heard: np.ndarray
    """[T, …] what the peer sent to the neighbour, round by round."""
    said: np.ndarray
    """[T, …] what the neighbour sent."""
    rows: Rows
    """The peer's rows, which the neighbour does not know: to judge guesses by."""
    labels: np.ndarray
    """[m] their classes, likewise."""
    schema: Schema
    """What columns and classes are."""

    @property
    def classes(self) -> int:
        """C."""
        return len(self.start)

    @property
    def residual(self) -> Residual:
        """The peer's own, from its rows: [1, C, K] -> [1, C, K]."""
        return plain_residual(self.family, self.rows, self.labels, self.classes)


@dataclass(frozen=True, eq=False)
class Seen:
    """Residuals that a neighbour knows exactly, and the statistics that each was taken at."""

    stats: np.ndarray  # [T, C, K]
    residuals: np.ndarray  # [T, C, K] R_v at them

    def counts(self, rows: int) -> np.ndarray:
        """Rows of each class at a peer with so many: n_c = R[c,0] + m·p_c, where p is the posterior of the start. [C].

        φ_0 = 1, and at a uniform start p = 1/C for every row.
        """
        first = self.residuals[0][:, 0]
        return np.rint(first + rows / len(first)).astype(np.int64)


def plain_residual(family: Family, rows: Rows, labels: np.ndarray, classes: int) -> Residual:
    """R of one peer with these rows, as a strategy calls it: [1, C, K] -> [1, C, K]."""
    held = Holdings(family, rows, labels, np.ones(len(labels)), np.array([len(labels)]), classes)
    return held.residual(1)


def observe(X: Any, y: Any, *, peer: int, neighbour: int | None = None, **settings: Any) -> Observation:
    """Simulate, and write down what one neighbour hears of a peer.

    X, y        rows and labels, as for `simulate`
    peer        who is looked at, counted from 0
    neighbour   who looks; None: the first of its neighbours
    settings    of `simulate`: the same seed gives the same rows, network and messages
    """
    observation, _ = _observed(X, y, peer, neighbour, settings)
    return observation


def again(run: Run, X: Any, y: Any, *, peer: int, neighbour: int | None = None, **given: Any) -> Observation:
    """What one neighbour heard of a peer in a run that is over: the run is done once more, from its settings.

    run         the run
    X, y        the rows and labels that it was made of
    peer        who is looked at, counted from 0
    neighbour   who looks; None: the first of its neighbours
    given       settings that the run cannot tell: a topology, a partition or kinds that were no names
    """
    settings = {name: run.configuration[name] for name in KEPT if name in run.configuration}
    if settings.get("kinds") not in KINDS:
        settings["kinds"] = [column.kind for column in run.schema.columns]
    settings |= given
    observation, found = _observed(X, y, peer, neighbour, settings)
    if found.stats.shape != run.stats.shape or not np.allclose(found.stats, run.stats, rtol=1e-9, atol=1e-9):
        raise ValueError(
            "these rows and settings do not give the run's statistics; expected the rows that it was made of, and "
            "its topology, partition or kinds where those were given as objects"
        )
    return observation


def seen(observation: Observation) -> Seen:
    """Residuals that the neighbour knows exactly: of every round where it is the only one, else of the first.

    crc      R = S_v − S̄_v,  S̄_v = Σ_u a_vu S_u, which is the neighbour's own message at a leaf
    exact    ψ = φ_v − ρ(S_v − ψ of before),  R = (ψ − S_v)/b,  S_v = a_vv φ_v + a_vu φ_u
    tracking R = G_v − Σ_u a_vu G_u + R of before
    """
    strategy, start = observation.strategy, observation.start
    stats, changes = [start], [_first(observation)]
    if observation.leaf:
        _followed(observation, stats, changes)
    if isinstance(strategy, CRC):  # its first message is the start: what all send, and know
        stats, changes = stats[: len(observation.heard) - 1], changes[: len(observation.heard) - 1]
    return Seen(np.array(stats), np.array(changes))


def _first(observation: Observation) -> np.ndarray:
    """R at the start, from the first message that depends on rows."""
    strategy, start, heard = observation.strategy, observation.start, observation.heard
    if isinstance(strategy, CRC):
        return np.asarray(heard[1] - start)
    if isinstance(strategy, Exact):
        return np.asarray((heard[0] - start) / strategy.boost)
    return np.asarray(heard[0][1])


def _followed(observation: Observation, stats: list[np.ndarray], changes: list[np.ndarray]) -> None:
    """R of the later rounds, at a leaf: all that it mixes is known."""
    strategy, heard, said = observation.strategy, observation.heard, observation.said
    own, other = observation.weights
    adapted = heard[0]
    for turn in range(1, len(heard)):
        mixed = own * heard[turn - 1] + other * said[turn - 1]
        if isinstance(strategy, CRC):
            if turn > 1:
                stats.append(mixed)
                changes.append(heard[turn] - mixed)
        elif isinstance(strategy, Exact):
            adapted = heard[turn] - strategy.memory * (mixed - adapted)
            stats.append(mixed)
            changes.append((adapted - mixed) / strategy.boost)
        else:
            stats.append(mixed[0])
            changes.append(heard[turn][1] - mixed[1] + changes[-1])


def _observed(
    X: Any, y: Any, peer: int, neighbour: int | None, settings: dict[str, Any]
) -> tuple[Observation, Run]:
    for name, value in STEADY.items():
        if settings.get(name, value) != value:
            raise ValueError(
                f"{name} is {settings[name]!r}; expected {value!r}: the audit follows every round"
            )
    given = {"nodes": 50, "rows_per_node": 50, "topology": "tree", "partition": "iid", "rounds": 64, "seed": 0,
             **settings}  # fmt: skip
    nodes, seed = given["nodes"], given["seed"]
    if not 0 <= peer < nodes:
        raise ValueError(f"peer is {peer}; expected 0 to {nodes - 1}")
    # As `simulate` draws them. Both are then given to it, so that it cannot draw others.
    dealt = Dealt.of(
        X, y, given.get("schema"), given.get("kinds", "auto"), given.get("clip", 5.0), given["partition"], nodes,
        given["rows_per_node"], seed,
    )  # fmt: skip
    links = drawn.network(given["topology"], nodes, seed).at(1)
    around = links.indices[links.indptr[peer] : links.indptr[peer + 1]]
    watching = int(around[0]) if neighbour is None and around.size else -1 if neighbour is None else neighbour
    if watching not in around:
        raise ValueError(
            f"neighbour is {watching}; expected one of peer {peer}'s: {around.tolist() or 'it has none'}"
        )
    recorder = Recorder(_strategy(given.get("strategy", "exact"), given["rounds"]), (peer, watching))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "peers hold all rows", UserWarning)  # nothing is tested here
        run = simulate(
            X, y, **{**given, "partition": dealt.parts, "topology": links, "strategy": recorder},
            references=False, evaluate_every=0, evaluate_rows=1,
        )  # fmt: skip
    weights = getattr(topologies, recorder.mixing)(links)
    own = float(weights[peer, peer]), float(weights[peer, watching])
    guarded = layouts.guarded(run.layout, float(run.sizes.sum()), calibrate=True)
    mine = dealt.parts[peer]
    messages = np.array(recorder.messages)
    assert recorder.start is not None
    return Observation(
        peer, watching, around.size == 1, recorder.strategy, own,
        guarded, recorder.start, messages[:, 0],
        messages[:, 1], run.schema.encode(rows_at(dealt.table, mine)), dealt.codes[mine], run.schema,
    ), run  # fmt: skip


def _strategy(strategy: Any, rounds: int) -> Strategy:
    if isinstance(strategy, str) and strategy in ("exact", "crc", "tracking"):
        return Exact(rounds=rounds) if strategy == "exact" else STRATEGIES[strategy]()
    if isinstance(strategy, Exact | CRC | Tracking):
        return strategy
    raise ValueError(
        f"strategy is {getattr(strategy, 'name', strategy)!r}; the audit follows exact, crc and tracking"
    )
