"""Driver 1: every peer at once, as [N, C, K]. The strategies are those a real peer runs."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from sklearn.exceptions import ConvergenceWarning

from peerbayes import layouts, metrics, structure, topologies, versions
from peerbayes.attacks import Attack
from peerbayes.calibration import start_statistics
from peerbayes.checkpoints import Checkpoint
from peerbayes.defence import ROBUST, Defence, Watched
from peerbayes.defence import STRATEGIES as DEFENDED
from peerbayes.estimators import ESTIMATOR_OF
from peerbayes.expectation import AGREED_STEPS
from peerbayes.families import BayesNet, Family, Rows
from peerbayes.gossip import agree
from peerbayes.holdings import Holdings
from peerbayes.inputs import (
    check_counts,
    check_names,
    check_shares,
    classes_of,
    ordering,
    plain,
    refuse_gaps,
    rest,
    rows_at,
)
from peerbayes.invariants import REASONS, ROUNDING, ROUNDING_SINGLE, Invariants, invariants_of
from peerbayes.live import LiveFile
from peerbayes.partitions import partition as part_rows
from peerbayes.places import Place, fetch
from peerbayes.privacy import simulated as private
from peerbayes.privacy.terms import Privacy
from peerbayes.relay import DIFFERENT, LARGEST_NETWORK, NEAR, Relay, spanning_tree
from peerbayes.rounds import Broadcast, Faults, OverTree
from peerbayes.runs import REFERENCES, Run
from peerbayes.schema import Schema
from peerbayes.secure_sums import CONSERVING, SUMMING, SecureSums
from peerbayes.strategies import DSGD, LOSSY_MEMORY, NOISY_WINDOW, ROBUST_MEMORY, STRATEGIES, Exact, Strategy
from peerbayes.tables import Table
from peerbayes.views import Structure

Progress = Callable[[int, int], object]  # called with the rounds done and the rounds in all


def simulate(
    X: Any,
    y: Any,
    *,
    family: str = "naive-bayes",
    kinds: Any = "auto",
    schema: Schema | None = None,
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
    evaluate_rows: int | tuple[int, int] | None = None,
    seed: int = 0,
    clip: float | None = 5.0,
    message_loss: float = 0.0,
    message_delay: float = 0.0,
    peers_down: float = 0.0,
    secure_sum: bool = False,
    start_rounds: int = 32,
    privacy: Privacy | None = None,
    robust: str | None = None,
    attack: Any = None,
    references: bool = True,
    progress: Progress | None = None,
    checkpoint: str | Path | None = None,
    live: str | Path | None = None,
    device: str | None = None,
    dtype: str = "float64",
) -> Run:
    """Let `nodes` peers learn one classifier over a network, and say how each of them does.

    X               the table: a DataFrame or an array [n, D]
    y               its labels [n]
    family          what a class looks like: "naive-bayes", "qda", "lda", "tan", "kdb"; all take missing values
    kinds           which columns are discrete: "auto" (text, booleans and categoricals), "paper" (at most 10 distinct
                    values), "continuous", "discrete", one kind per column, or a mapping; see `Schema.infer`
    schema          what columns and classes are, instead of `kinds`, `clip` and what the rows show;
                    units are those of the peers' rows
    nodes           how many peers
    rows_per_node   rows of each peer, one number or one per peer; None: all rows, shared out evenly
    topology        who hears whom: a name ("tree", "ring", "tree+80", …; see `topologies.NAMES`), a networkx graph, a
                    matrix, a file of links, or a schedule that changes
    partition       which peer holds which rows: a name ("iid", "drift-y", "dirichlet-0.3", …; see `partitions`), or a
                    list of index arrays
    strategy        how peers learn: "exact", "relay", "auto" (chooses between these two), "crc" (the paper's),
                    "tracking", "local", "consensus-ml", "dsgd", or a strategy of your own
    start           the statistics that all begin with: "uniform" (the paper's), "marginal" or "ml"
    rounds          rounds of messages, 64 as in the paper
    lr              the learning rate of RC, by which the start weighs m⁰ = m / (lr·n) rows; the paper's is 0.05
    local_steps     steps on a peer's own rows between two messages
    change_every    rounds after which a random network is drawn anew; None: it stays
    objective       "rows": every row counts the same; "peers": every peer does
    test            rows and labels to test on; without it, the rows that no peer holds
    evaluate_every  rounds between evaluations; 0 evaluates at the end only
    evaluate_rows   training rows and test rows that peers are judged on, drawn at random, one number or two; None: all,
                    as long as that is at most 8 million judgements a kind (peers times rows)
    seed            of all randomness: partition, network and faults
    clip            standardised values are held within ±clip; None: they are not
    message_loss    probability that a message is lost; its weight goes to the receiver itself
    message_delay   probability that a link lags: what arrives is the message of the round before
    peers_down      probability that a peer is away for a round: it neither hears nor learns
    secure_sum      whether neighbours learn only the sum of the messages that they hear: numbers are rounded to 2⁻³²,
                    a peer that misses one message keeps its own, and every peer needs three neighbours or more
    start_rounds    rounds of accelerated gossip that agree on the "marginal" and "ml" starts, counted in bytes
    privacy         `peerbayes.Privacy(epsilon=4.0)`: noise in whatever leaves a peer, so that what anybody can learn of
                    one row is bounded; None: none. With a `schema`, its units are taken as they are declared
    robust          what peers do about false messages: None, "clip" (each neighbour moves a peer by a middling distance
                    at most) or "guard" (clip, and links to neighbours whose models fail on a peer's own rows are cut);
                    for the strategies exact and crc. See `combining` and `guard`
    attack          peers that lie: an `Attack`, its kind ("flip"), or a table of its fields. Errors, references and the
                    history are then of the honest peers and their rows; attackers are honest while a start is agreed on
    references      whether RC and ML on the pooled rows, and peers alone (strategy "local"), are computed beside them
    progress        called after every round with the rounds done and the rounds in all
    checkpoint      a file to go on from after a crash: the same call then ends with the same bits
    live            a folder that the rounds are written to as they come: `peerbayes watch` shows them
    device          PyTorch's name of a device ("cuda"); None: NumPy
    dtype           "float64" or "float32"
    """
    configuration: dict[str, Any] = {
        name: value if isinstance(value, str | int | float | bool | tuple | None) else type(value).__name__
        for name, value in locals().items()
        if name not in ("X", "y", "schema", "test", "references", "progress", "checkpoint", "live")
    }
    if privacy is not None:
        private.refuse(privacy, strategy, family, local_steps, objective, device, dtype, robust)
        configuration["privacy"] = asdict(privacy)
    made = versions.made()
    attack = Attack.of(attack)
    configuration["attack"] = None if attack is None else str(attack)
    _check_robust(robust, attack, strategy, message_delay)
    if secure_sum and (robust is not None or attack is not None):
        raise ValueError(
            "secure_sum hides single messages, which robust and attack judge and forge; choose one"
        )
    check_names(family, strategy, start, objective, lr)
    judged_rows = evaluate_rows if isinstance(evaluate_rows, tuple) else (evaluate_rows, evaluate_rows)
    check_counts(
        (rounds, "rounds", 1), (local_steps, "local_steps", 1), (evaluate_every, "evaluate_every", 0),
        *((count, "evaluate_rows", 1) for count in judged_rows if count is not None),
        (start_rounds, "start_rounds", 0),
    )  # fmt: skip
    check_shares(message_loss=message_loss, message_delay=message_delay, peers_down=peers_down)
    place = Place(device, dtype)
    table = Table.of(X)
    classes, codes = classes_of(y, schema)
    streams = [np.random.default_rng([seed, stream]) for stream in range(3)]
    described = schema if schema is not None else Schema.infer(table, kinds=kinds, clip=clip)
    described = replace(described, classes=classes)
    parts = part_rows(partition, codes, lambda: ordering(described, table), nodes, rows_per_node, streams[0])
    network = topologies.schedule(topology, nodes, streams[1], change_every)
    links = topologies.pairs(network.at(rounds))
    if peers_down:
        network = topologies.Churn(network, peers_down, int(streams[2].integers(2**31)))

    own = np.concatenate(parts)
    if privacy is not None:
        described = replace(described, clip=min(privacy.bound, described.limit))
    declared = privacy is not None and schema is not None  # units of the peers' own rows would tell of them
    measured = described if declared else described.measured_on(rows_at(table, own))
    sizes = np.array([len(part) for part in parts])
    rows = measured.encode(rows_at(table, own))
    away = test if test is not None else rest(table, codes, own, classes)
    there = None if away is None else (measured.encode(away[0]), measured.encode_labels(away[1]))
    missing = any(np.isnan(part.values).any() for part in (rows, *((there[0],) if there else ())))
    learned = layouts.STRUCTURES.get(family)
    parents, structure_bytes = None, np.zeros(nodes)
    if learned is not None:
        pairs, structure_bytes = structure.pooled(rows, codes[own], sizes, measured, network.at(1))
        parents = learned(pairs)
    guarded = layouts.calibrated(family, measured, missing, float(sizes.sum()), parents)
    if getattr(strategy, "name", strategy) == "dsgd":
        refuse_gaps(guarded, rows, *((there[0],) if there else ()))
    per_row = np.ones(nodes) if objective == "rows" else sizes.sum() / (nodes * sizes)
    attackers = np.zeros(0, dtype=np.int64) if attack is None else attack.attackers(nodes, seed)
    honest = np.delete(np.arange(nodes), attackers)
    fair = np.repeat(np.isin(np.arange(nodes), honest), sizes)  # rows of honest peers
    labels = codes[own]
    if attack is not None and attack.kind == "label":
        labels = np.where(fair, labels, len(classes) - 1 - labels)
    held = Holdings(guarded, rows, labels, np.repeat(per_row, sizes), sizes, len(classes), place)
    faults = Faults(message_loss, seed, message_delay)
    hidden = None
    if privacy is not None:
        lossy = bool(message_loss or message_delay or peers_down)
        scheme = private.agreed(privacy, held, rounds, lr, network, start, lossy)
        hidden = private.PrivateRows(scheme, held, network.at(1), seed)
    begin, start_bytes = _start(start, held, lr, network, start_rounds, strategy, hidden)
    if (robust is not None or attack is not None) and start != "uniform":
        begin[:] = begin.mean(axis=0)  # as real peers agree: exactly, so that class sums can be checked
    averaged = None if privacy is None else int(rounds * NOISY_WINDOW)
    asked = Exact(rounds, ROBUST_MEMORY, averaged) if robust is not None and strategy == "exact" else strategy
    driver = _driver(asked, network, held, begin, rounds, local_steps, faults, hidden)
    if secure_sum:
        driver = _secured(strategy, driver, network, held)
    configuration["strategy"] = driver.strategy.name
    if isinstance(driver, Broadcast) and (robust is not None or attack is not None):
        known = _invariants(driver.strategy, held, begin, start, lr, local_steps, measured.limit)
        if hidden is not None:
            most = int(np.diff(network.at(1).indptr).max(initial=0))
            known = replace(known, noise=hidden.scheme.spread(most, getattr(driver.strategy, "boost", 1.0)))
        soft = held.soft_errors if robust == "guard" else None
        rule = "mean" if robust is None else "clip"
        defence = Defence(rule, known, attack, attackers, seed, soft, guarded.weights)
        driver = replace(driver, defence=defence)

    judged_on = rows if fair.all() else Rows(rows.values[fair], rows.codes[fair])
    train = metrics.sample(guarded, judged_on, held.labels[fair], place, judged_rows[0], nodes, seed)
    tested = None
    if there is not None:
        tested = metrics.sample(guarded, *there, place, judged_rows[1], nodes, seed)
    saved = None
    if checkpoint is not None:
        others = () if tested is None else (tested.rows, tested.labels)
        saved = Checkpoint.of(
            checkpoint, configuration, held.rows, held.labels, held.row_weights, sizes, others
        )
    clock = Clock()
    records: list[np.ndarray] = []
    state, sent, done = driver.begin(place.put(begin)), structure_bytes + start_bytes, 0
    del begin  # a large network's memory is its statistics
    if saved is not None:
        done, state, sent, records = saved.resume(state, sent)
        if hidden is not None:
            hidden.calls += done
    seen = Structure.of(measured, guarded)
    watched = None if live is None else LiveFile(Path(live), configuration, made, sizes, links, seen)
    if watched is not None and records:
        watched.add(np.concatenate(records))
    for turn in range(done + 1, rounds + 1):
        state, more = driver.advance(state, turn)
        sent = sent + more
        clock.add("rounds")
        if turn == rounds or (evaluate_every and turn % evaluate_every == 0):
            now = driver.read(state)
            mean = array_namespace(now).mean(now[honest, ...], axis=0)
            judged = metrics.judged(now, mean, driver.strategy.of_weights, guarded, train, tested)
            judged[:, attackers] = np.nan
            records.append(
                np.stack([np.full(nodes, float(turn)), np.arange(nodes), *judged[:4], sent, judged[4]], 1)
            )
            clock.add("evaluation")
            if watched is not None:
                watched.add(records[-1])
        if watched is not None:
            watched.turn(turn)
        if saved is not None:
            saved.keep(turn, state, sent, records)
            clock.add("checkpoints")
        if progress is not None:
            progress(turn, rounds)
    if saved is not None:
        saved.remove()

    stats, of_weights = np.asarray(fetch(driver.read(state)), dtype=np.float64), driver.strategy.of_weights
    rejected = (
        dict(zip(REASONS, state.rejected.astype(int).tolist(), strict=True))
        if isinstance(state, Watched)
        else {}
    )
    clock.add("rounds")
    del state, there
    history = np.concatenate(records)
    outcomes = {"peers": (train if tested is None else tested).outcome(stats[honest], of_weights)}
    clock.add("evaluation")
    beside = dict.fromkeys(REFERENCES, math.nan)
    if references:
        alone = history[-nodes:, 2:4][honest].mean(axis=0)
        if driver.strategy.name != "local":
            begin, _ = _start(start, held, lr, network, start_rounds, "local")
            driver = _driver("local", network, held, begin, rounds, local_steps, Faults(0.0, seed))
            alone = _at_the_end(driver, place.put(begin), rounds, guarded, train, tested, honest)
            del begin
        beside |= {"train_local": float(alone[0]), "test_local": float(alone[1])}
        weights, own = held.row_weights[fair], own[fair]
        del driver, held, rows, train, tested  # the others need room
        errors, predicted = _references(guarded, table, y, own, measured, start, lr, rounds, weights, away)
        beside |= errors
        outcomes |= predicted
        clock.add("references")
    layout = layouts.without_guards(guarded)
    if watched is not None:
        watched.close()
    return Run(
        configuration,
        measured,
        layout,
        stats,
        history,
        beside,
        sizes,
        of_weights,
        clock.seconds,
        links,
        outcomes,
        made,
        np.zeros((0, 5)) if hidden is None else hidden.spent(),
        attackers,
        rejected,
    )


def _check_robust(robust: str | None, attack: Attack | None, strategy: Any, message_delay: float) -> None:
    if robust not in ROBUST:
        raise ValueError(f"robust is {robust!r}; expected None, 'clip' or 'guard'")
    if robust is None and attack is None:
        return
    name = getattr(strategy, "name", strategy)
    if name not in DEFENDED:
        raise ValueError(
            f"strategy is {name!r}; robust combining and attacks are for {' and '.join(DEFENDED)}, whose messages are "
            "a peer's own statistics"
        )
    if message_delay and name == "crc":
        raise ValueError(
            "message_delay is above 0; with robust or attack crc takes no messages of the round before"
        )


def _invariants(
    strategy: Strategy, held: Holdings, begin: np.ndarray, start: str, lr: float, steps: int, limit: float
) -> Invariants:
    """What honest messages of this run obey."""
    whole = [bool((held.rows.codes[:, k] >= 0).all()) for k in range(held.rows.codes.shape[1])]
    rows = np.add.reduceat(held.row_weights, held.offsets[:-1]) if held.sizes.all() else held.sizes
    return invariants_of(
        strategy, held.family, begin[0].astype(np.float64), whole, bool(held.incomplete.any()), float(rows.sum()),
        float(rows.max()), float(held.sizes.sum()) / (lr * held.nodes), steps, limit, start != "ml",
        ROUNDING if held.place.precision == "float64" else ROUNDING_SINGLE,
    )  # fmt: skip


def _at_the_end(
    driver: Broadcast | OverTree,
    state: Any,
    rounds: int,
    family: Family,
    train: Any,
    tested: Any,
    honest: np.ndarray,
) -> np.ndarray:
    """Mean training and test error over honest peers after all rounds: [2]."""
    state = driver.begin(state)
    for turn in range(1, rounds + 1):
        state, _ = driver.advance(state, turn)
    now = driver.read(state)[honest, ...]
    mean = array_namespace(now).mean(now, axis=0)
    return metrics.judged(now, mean, False, family, train, tested)[:2].mean(axis=1)


class Clock:
    """Seconds by what they were spent on."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def add(self, what: str) -> None:
        """What the time since the last call was spent on."""
        now = time.perf_counter()
        self.seconds[what] = self.seconds.get(what, 0.0) + now - self._last
        self._last = now


def _driver(
    strategy: str | Strategy,
    network: topologies.Schedule,
    held: Holdings,
    start: np.ndarray,
    rounds: int,
    steps: int,
    faults: Faults,
    hidden: private.PrivateRows | None = None,
) -> Broadcast | OverTree:
    """The strategy asked for, over this network; "auto" chooses between relay and exact by what peers can measure."""
    lossy = bool(faults.loss or faults.late) or isinstance(network, topologies.Churn)
    if isinstance(strategy, str) and strategy == "auto":
        strategy = "relay" if _relay_fits(network, held, start, rounds) else "exact"
    if isinstance(strategy, str) and strategy == "relay":
        if not network.static:
            raise ValueError(
                "relay needs a fixed network, this one changes or loses peers; use strategy='exact' or 'auto'"
            )
        learner = Relay(spanning_tree(network.at(1)), rounds, held.place)
        return OverTree(learner, hidden or held.residual(rounds, steps), faults)
    chosen = _strategy(strategy, rounds, lossy, held, hidden is not None)
    residual = hidden or held.residual(rounds, steps, chosen.of_weights)
    return Broadcast(chosen, network, residual, faults, held.place)


def _secured(
    asked: str | Strategy, driver: Broadcast | OverTree, network: topologies.Schedule, held: Holdings
) -> Broadcast:
    """The same driver with sums in fixed point over the network that all agreed on; whoever is away is missed."""
    if not isinstance(driver, Broadcast) or asked == "auto":
        raise ValueError(
            f"secure_sum is True and the strategy {asked}, which needs messages singly; expected one of "
            f"{', '.join(SUMMING)}"
        )
    name, agreed = driver.strategy.name, network.base if isinstance(network, topologies.Churn) else network
    if not agreed.static:
        raise ValueError("secure_sum is True and the network changes; expected one that all agreed on before")
    if driver.strategy.mixing == "none":
        return driver
    whole, family = (held.rows.codes >= 0).all(axis=0), held.family
    linked = getattr(family, "linked", np.zeros(family.continuous + whole.size, dtype=bool))
    known = whole | linked[family.continuous :]
    cells = tuple(cells for cells, columns in family.tabled() if known[list(columns)].all())
    conserved = name in CONSERVING and not held.incomplete.any()
    return replace(driver, secure=SecureSums(agreed.at(1), driver.strategy.mixing, conserved, cells))


def _relay_fits(network: topologies.Schedule, held: Holdings, start: np.ndarray, rounds: int) -> bool:
    """Whether everybody is near, so that delay costs little, or data differ, so that mixing costs much."""
    if not network.static or held.nodes > LARGEST_NETWORK:
        return False
    near = spanning_tree(network.at(1)).mean_distance <= NEAR * rounds
    return near or held.differ(start, network.at(1)) > DIFFERENT


def _strategy(strategy: str | Strategy, rounds: int, lossy: bool, held: Holdings, noisy: bool) -> Strategy:
    if not isinstance(strategy, str):
        return strategy
    if strategy == "exact":
        averaged = int(rounds * NOISY_WINDOW) if noisy else None
        return Exact(rounds=rounds, memory=LOSSY_MEMORY if lossy else 1.0, averaged=averaged)
    if strategy == "dsgd":
        total = float(held.row_weights.sum())
        return DSGD(rate=held.nodes / total / (0.5 * held.mean_square()))
    return STRATEGIES[strategy]()


def _start(
    start: str,
    held: Holdings,
    lr: float,
    network: topologies.Schedule,
    rounds: int,
    strategy: str | Strategy,
    hidden: private.PrivateRows | None = None,
) -> tuple[np.ndarray, int]:
    """Every peer's S⁰ [N, C, K], and the bytes each peer sent to agree on it.

    The ml start is the mean over peers of Y_vᵀΦ_v / lr: peers agree on it by gossip. The uniform start needs none.
    Where values are missing that mean is the last of a few steps of expectation-maximisation, each agreed on. With
    privacy, Y_vᵀΦ_v is a noisy release.
    """
    nodes, mass = held.nodes, float(held.sizes.sum()) / (lr * held.nodes)
    alone = getattr(strategy, "name", strategy) == "consensus-ml"
    if alone and not held.incomplete.any():
        return held.statistics(), 0
    if start == "uniform" and not alone:
        uniform = start_statistics("uniform", held.family, held.classes, mass)
        return np.tile(uniform.astype(held.place.precision), (nodes, 1, 1)), 0
    sent = 0
    if held.incomplete.any():
        own, sent = _completed(held, network, rounds)
        if alone:
            return own, sent
    else:
        own = held.statistics() if hidden is None else hidden.start(start == "marginal")
    local = own / lr if start == "ml" else own.sum(axis=1, keepdims=True) / (lr * held.classes)
    agreed = agree(network, local.reshape(nodes, -1), rounds).reshape(local.shape)
    degree = float(np.diff(network.at(1).indptr).mean())
    shape = (nodes, held.classes, held.family.size)
    return np.broadcast_to(agreed, shape).copy(), sent + int(rounds * degree * local[0].nbytes)


def _completed(held: Holdings, network: topologies.Schedule, rounds: int) -> tuple[np.ndarray, int]:
    """Every peer's Y_vᵀΦ̃_v [N, C, K] under the model that all have agreed on, and the bytes each peer sent.

    First they agree on what is there of each column alone, then on the completed statistics of all steps but the last.
    """
    sums, sent = held.apart(), 0
    degree = float(np.diff(network.at(1).indptr).mean())

    def together(values: np.ndarray) -> np.ndarray:
        nonlocal sent
        sent += int(rounds * degree * values[0].nbytes)
        return agree(network, values.reshape(held.nodes, -1), rounds).reshape(values.shape)

    own = held.expected(held.alone(together(sums)))
    for _ in range(AGREED_STEPS - 1):
        own = held.expected(together(own))
    return own, sent


def _references(
    family: Family,
    table: Table,
    y: Any,
    own: np.ndarray,
    schema: Schema,
    start: str,
    lr: float,
    rounds: int,
    weights: np.ndarray,
    away: tuple[Any, Any] | None,
) -> tuple[dict[str, float], dict[str, metrics.Outcome]]:
    """Errors of RC (the last iterate, as many iterations as rounds) and ML on the pooled rows; their predictions."""
    X, labels = plain(rows_at(table, own)), np.asarray(y)[own]
    told, outcomes = {}, {}
    for name, calibrate in (("rc", True), ("ml", False)):
        structure: dict[str, Any] = (
            {"structure": layouts.named_parents(family, schema)} if isinstance(family, BayesNet) else {}
        )
        steps: dict[str, Any] = {"em_iter": AGREED_STEPS, "em_tol": 0.0} if calibrate else {}
        model = ESTIMATOR_OF[family.name](
            calibrate=calibrate,
            schema=schema,
            start=start,
            lr=lr,
            max_iter=rounds,
            keep="last",
            **steps,
            **structure,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a reference need not be perfect
            model.fit(X, labels, sample_weight=weights)
        told[f"train_{name}"] = 1.0 - model.score(X, labels)
        told[f"test_{name}"] = np.nan if away is None else 1.0 - model.score(*away)
        judged = (X, labels) if away is None else away
        outcomes[name] = metrics.Outcome.of(model.predict_proba(judged[0]), schema.encode_labels(judged[1]))
    return {name: float(value) for name, value in told.items()}, outcomes
