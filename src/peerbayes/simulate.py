"""Driver 1: every peer at once, as [N, C, K]. The strategies are those a real peer runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes import core, metrics, topologies
from peerbayes.calibration import STARTS, start_statistics
from peerbayes.checkpoints import Checkpoint
from peerbayes.core import Array
from peerbayes.families import FAMILIES, Family, NaiveBayes, Rows
from peerbayes.gossip import agree
from peerbayes.inference import infer_classes
from peerbayes.partitions import partition as part_rows
from peerbayes.places import Place, fetch
from peerbayes.relay import DIFFERENT, Relay, difference_ratio, spanning_tree
from peerbayes.rounds import Broadcast, Faults, OverTree
from peerbayes.runs import ESTIMATOR_OF, Run
from peerbayes.schema import Schema
from peerbayes.strategies import DSGD, STRATEGIES, Exact, Strategy
from peerbayes.tables import Table

# Entries of Φ times rounds above which the fused kernel pays for being loaded (and, once on a machine, compiled).
FUSED_WORK = 1 << 31

# ρ of `exact` where messages get lost or peers are away.
LOSSY_MEMORY = 0.97

Progress = Callable[[int, int], object]  # called with the rounds done and the rounds in all


@dataclass(frozen=True)
class Peers:
    """All peers' rows: a zero row is padding. [N, n, K] and [N, n, C]."""

    features: Array
    labels: Array
    fused: Any = None
    """The same rows for the fused kernel (`peerbayes.fused.FusedPeers`), where there is enough work for it."""

    def residual(self, family: Family, steps: int, of_weights: bool) -> Callable[[Array], Array]:
        """R_v(S) of every peer; `steps` local iterations count as one step: S after them minus S before."""

        def once(stats: Array) -> Array:
            if self.fused is not None and not of_weights:
                return self.fused.residual(stats)
            weights = stats if of_weights else family.weights(stats)
            return core.residual(self.features, self.labels, weights)

        def residual(stats: Array) -> Array:
            moved = stats + once(stats)
            for _ in range(steps - 1):
                moved = moved + once(moved)
            return moved - stats

        return once if steps == 1 else residual

    def differ(self, family: Family, start: np.ndarray, links: Any) -> bool:
        """Whether neighbours' first residuals are farther apart than their rows explain: see `difference_ratio`."""
        weights = family.weights(start)
        posterior = core.posterior(self.features, weights)
        change = core.residual(self.features, self.labels, weights)
        return difference_ratio(self.features, self.labels, change, posterior, links) > DIFFERENT


def simulate(
    X: Any,
    y: Any,
    *,
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
    change_every: int | None = None,
    objective: str = "rows",
    test: tuple[Any, Any] | None = None,
    evaluate_every: int = 1,
    seed: int = 0,
    clip: float | None = 5.0,
    message_loss: float = 0.0,
    peers_down: float = 0.0,
    start_rounds: int = 32,
    progress: Progress | None = None,
    checkpoint: str | Path | None = None,
    device: str | None = None,
    dtype: str = "float64",
) -> Run:
    """Let `nodes` peers learn one classifier over a network, and say how each of them does.

    test            rows to test on; without it, the rows that no peer holds
    objective       "rows": every row counts the same; "peers": every peer does
    evaluate_every  rounds between evaluations; 0 evaluates at the end only
    message_loss    probability that a message is lost; its weight goes to the receiver itself
    peers_down      probability that a peer is away for a round: it neither hears nor learns
    start_rounds    rounds of accelerated gossip that agree on the "marginal" and "ml" starts, counted in bytes
    checkpoint      a file to go on from after a crash: the same call then ends with the same bits
    device, dtype   PyTorch's name of a device ("cuda"), None for NumPy; "float64" or "float32"
    """
    configuration = {
        name: value if isinstance(value, str | int | float | bool | None) else type(value).__name__
        for name, value in locals().items()
        if name not in ("X", "y", "test", "progress", "checkpoint")
    }
    _check(
        family, strategy, start, objective, rounds, lr, local_steps, evaluate_every, message_loss, peers_down
    )
    place = Place(device, dtype)
    table = Table.of(X)
    classes, codes = infer_classes(y)
    streams = [np.random.default_rng([seed, stream]) for stream in range(3)]
    described = replace(Schema.infer(table, kinds=kinds, clip=clip), classes=classes)
    parts = part_rows(partition, codes, lambda: _ordering(described, table), nodes, rows_per_node, streams[0])
    network = topologies.schedule(topology, nodes, streams[1], change_every)
    if peers_down:
        network = topologies.Churn(network, peers_down, int(streams[2].integers(2**31)))

    held = np.concatenate(parts)
    schema = described.measured_on(_rows(table, held))
    sizes = np.array([len(part) for part in parts])
    estimator = ESTIMATOR_OF[family](calibrate=True)
    rows = schema.encode(_rows(table, held))
    missing = bool(np.isnan(rows.values).any())
    layout = estimator._layout(schema, missing)
    if missing and not FAMILIES[family].takes_missing:
        raise ValueError(
            f"{family} needs every continuous value; use family='naive-bayes', or fill them in first"
        )
    guarded = estimator._guarded(layout, float(sizes.sum()))

    per_row = np.ones(nodes) if objective == "rows" else sizes.sum() / (nodes * sizes)
    features = guarded.features(rows)
    peers = _peers(features, codes[held], sizes, per_row, len(classes))
    if device is None and peers.features.size * rounds > FUSED_WORK:
        peers = replace(peers, fused=_fused(guarded, rows, codes[held], sizes, per_row, len(classes)))
    mass = float(sizes.sum()) / (lr * nodes)
    begin, start_bytes = _start(start, guarded, peers, lr, mass, network, start_rounds, strategy)
    faults = Faults(message_loss, seed)
    rounds_of = _rounds(strategy, network, peers, guarded, begin, rounds, local_steps, faults, place)
    configuration["strategy"] = rounds_of.strategy.name
    of_weights = rounds_of.strategy.of_weights

    train = place.put(features), place.put(core.one_hot(codes[held], len(classes)))
    away = test if test is not None else _rest(table, codes, held, classes)
    tested = _test_rows(away, schema, guarded, classes, place)
    saved = None if checkpoint is None else Checkpoint.of(checkpoint, configuration, peers, tested)
    records: list[np.ndarray] = []
    state, sent, done = rounds_of.begin(place.put(begin)), np.full(nodes, float(start_bytes)), 0
    if saved is not None:
        done, state, sent, records = saved.resume(state, sent)
    for turn in range(done + 1, rounds + 1):
        state, more = rounds_of.advance(state, turn)
        sent = sent + more
        if turn == rounds or (evaluate_every and turn % evaluate_every == 0):
            stats = rounds_of.read(state)
            records.append(_evaluated(turn, stats, of_weights, guarded, train, tested, sent))
        if saved is not None:
            saved.keep(turn, state, sent, records)
        if progress is not None:
            progress(turn, rounds)
    if saved is not None:
        saved.remove()

    references = _references(family, table, y, held, schema, start, lr, rounds, per_row, sizes, away)
    stats, history = fetch(rounds_of.read(state)).astype(np.float64), np.concatenate(records)
    return Run(configuration, schema, layout, stats, history, references, sizes, of_weights)


def _check(
    family: str,
    strategy: Any,
    start: str,
    objective: str,
    rounds: int,
    lr: float,
    local_steps: int,
    evaluate_every: int,
    message_loss: float,
    peers_down: float,
) -> None:
    """Refuse settings that make no sense before any work starts."""
    for name, value, known in (
        ("family", family, tuple(FAMILIES)),
        ("strategy", strategy if isinstance(strategy, str) else "exact", (*STRATEGIES, "relay", "auto")),
        ("start", start, STARTS),
        ("objective", objective, ("rows", "peers")),
    ):
        if value not in known:
            raise ValueError(f"{name} is {value!r}; expected one of {', '.join(known)}")
    for name, number, least in (
        ("rounds", rounds, 1),
        ("local_steps", local_steps, 1),
        ("evaluate_every", evaluate_every, 0),
    ):
        if number < least:
            raise ValueError(f"{name} is {number}; expected {least} or more")
    if not 0 < lr < np.inf:
        raise ValueError(f"lr is {lr}; expected a positive number (the paper's is 0.05)")
    for name, share in (("message_loss", message_loss), ("peers_down", peers_down)):
        if not 0 <= share < 1:
            raise ValueError(f"{name} is {share}; expected a probability from 0 to below 1")


def _rounds(
    strategy: str | Strategy,
    network: topologies.Schedule,
    peers: Peers,
    family: Family,
    start: np.ndarray,
    rounds: int,
    steps: int,
    faults: Faults,
    place: Place,
) -> Broadcast | OverTree:
    """The strategy asked for, over this network; "auto" chooses between relay and exact by what peers can measure."""
    lossy = bool(faults.loss) or isinstance(network, topologies.Churn)
    if isinstance(strategy, str) and strategy == "auto":
        fits = network.static and place == Place() and peers.differ(family, start, network.at(1))
        strategy = "relay" if fits else "exact"
    if isinstance(strategy, str) and strategy == "relay":
        if not network.static:
            raise ValueError(
                "relay needs a fixed network, this one changes or loses peers; use strategy='exact' or 'auto'"
            )
        if place != Place():
            raise ValueError(
                "relay runs on NumPy in float64; leave device and dtype out, or use strategy='exact'"
            )
        learner = Relay(spanning_tree(network.at(1)), rounds)
        return OverTree(learner, peers.residual(family, steps, False), faults)
    chosen = _strategy(strategy, rounds, lossy, peers)
    there = Peers(place.put(peers.features), place.put(peers.labels), peers.fused)
    return Broadcast(chosen, network, there.residual(family, steps, chosen.of_weights), faults, place)


def _strategy(strategy: str | Strategy, rounds: int, lossy: bool, peers: Peers) -> Strategy:
    if not isinstance(strategy, str):
        return strategy
    if strategy == "exact":
        return Exact(rounds=rounds, memory=LOSSY_MEMORY if lossy else 1.0)
    if strategy == "dsgd":
        total = peers.labels.sum()
        size = (peers.features**2).sum() / total
        return DSGD(rate=float(len(peers.labels) / total / (0.5 * size)))
    return STRATEGIES[strategy]()


def _peers(
    features: np.ndarray, codes: np.ndarray, sizes: np.ndarray, per_row: np.ndarray, classes: int
) -> Peers:
    """Rows in the order of their peers, laid out as [N, n, ...] with zero rows as padding."""
    node = np.repeat(np.arange(sizes.size), sizes)
    place = np.arange(node.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    laid = np.zeros((sizes.size, int(sizes.max()), features.shape[1]))
    laid[node, place] = features
    labels = np.zeros((sizes.size, int(sizes.max()), classes))
    labels[node, place, codes] = per_row[node]
    return Peers(laid, labels)


def _fused(
    family: Family, rows: Rows, codes: np.ndarray, sizes: np.ndarray, per_row: np.ndarray, classes: int
) -> Any:
    """The rows for the fused kernel, or None where it does not know the family."""
    from peerbayes import fused

    if not isinstance(family, NaiveBayes) or not fused.supports(family):
        return None
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return fused.FusedPeers(family, rows, codes, np.repeat(per_row, sizes), offsets, classes)


def _start(
    start: str,
    family: Family,
    peers: Peers,
    lr: float,
    mass: float,
    network: topologies.Schedule,
    rounds: int,
    strategy: str | Strategy,
) -> tuple[np.ndarray, int]:
    """Every peer's S⁰ [N, C, K], and the bytes each peer sent to agree on it.

    The ml start is the mean over peers of Y_vᵀΦ_v / lr: peers agree on it by gossip. The uniform start needs none.
    """
    nodes, classes = len(peers.labels), peers.labels.shape[-1]
    own = core.statistics(peers.features, peers.labels)
    if getattr(strategy, "name", strategy) == "consensus-ml":
        return own, 0
    if start == "uniform":
        return np.tile(start_statistics("uniform", family, classes, mass), (nodes, 1, 1)), 0
    local = own / lr if start == "ml" else own.sum(axis=1, keepdims=True) / (lr * classes)
    agreed = agree(network, local.reshape(nodes, -1), rounds).reshape(local.shape)
    degree = float(np.diff(network.at(1).indptr).mean())
    return np.broadcast_to(agreed, own.shape).copy(), int(rounds * degree * local[0].nbytes)


def _evaluated(
    turn: int,
    stats: Array,
    of_weights: bool,
    family: Family,
    train: tuple[Array, Array],
    test: tuple[Array, Array] | None,
    sent: np.ndarray,
) -> np.ndarray:
    """One row of the history per peer: [N, 8]."""
    weights = stats if of_weights else family.weights(stats)
    nodes = len(sent)
    train_error, soft_error = metrics.errors(*train, weights)
    test_error = np.full(nodes, np.nan) if test is None else fetch(metrics.errors(*test, weights)[0])
    floored = np.zeros(nodes) if of_weights else fetch(family.floored(stats))
    figures = (
        fetch(train_error),
        test_error,
        fetch(soft_error),
        fetch(metrics.disagreement(stats)),
        sent,
        floored,
    )
    return np.stack([np.full(nodes, float(turn)), np.arange(nodes), *figures], axis=1).astype(np.float64)


def _references(
    family: str,
    table: Table,
    y: Any,
    held: np.ndarray,
    schema: Schema,
    start: str,
    lr: float,
    rounds: int,
    per_row: np.ndarray,
    sizes: np.ndarray,
    away: tuple[Any, Any] | None,
) -> dict[str, float]:
    """Errors of RC (the last iterate, as many iterations as rounds) and of ML on the pooled rows."""
    X, labels = _plain(_rows(table, held)), np.asarray(y)[held]
    weights = np.repeat(per_row, sizes)
    told = {}
    for name, calibrate in (("rc", True), ("ml", False)):
        model = ESTIMATOR_OF[family](
            calibrate=calibrate, schema=schema, start=start, lr=lr, max_iter=rounds, keep="last"
        ).fit(X, labels, sample_weight=weights)
        told[f"train_{name}"] = 1.0 - model.score(X, labels)
        told[f"test_{name}"] = np.nan if away is None else 1.0 - model.score(*away)
    return {name: float(value) for name, value in told.items()}


def _rows(table: Table, rows: np.ndarray) -> Table:
    if table.array is not None:
        return replace(table, rows=rows.size, array=table.array[rows])
    return replace(table, rows=rows.size, frame=table.frame.iloc[rows])


def _plain(table: Table) -> Any:
    return table.array if table.array is not None else table.frame


def _rest(
    table: Table, codes: np.ndarray, held: np.ndarray, classes: tuple[Any, ...]
) -> tuple[Any, Any] | None:
    """The rows that no peer holds, if there are any."""
    free = np.setdiff1d(np.arange(table.rows), held)
    return (_plain(_rows(table, free)), np.array(classes)[codes[free]]) if free.size else None


def _test_rows(
    test: tuple[Any, Any] | None, schema: Schema, family: Family, classes: tuple[Any, ...], place: Place
) -> tuple[Array, Array] | None:
    if test is None:
        return None
    labels = core.one_hot(schema.encode_labels(test[1]), len(classes))
    return place.put(family.features(schema.encode(test[0]))), place.put(labels)


def _ordering(schema: Schema, table: Table) -> np.ndarray:
    """Numbers to order rows by: standardised values, 0 where missing, and one-hots. [n, K]."""
    rows = schema.encode(table)
    values = np.nan_to_num(rows.values)
    cells = [core.one_hot(rows.codes[:, k], size) for k, size in enumerate(schema.cardinalities)]
    return np.concatenate([values, *cells], axis=1)
