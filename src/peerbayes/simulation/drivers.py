"""Which driver a simulation takes: the strategy over the network, with secure sums or a defence if asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from peerbayes import topologies
from peerbayes.adaptive import Optimiser
from peerbayes.defence import Defence
from peerbayes.holdings import Holdings
from peerbayes.invariants import ROUNDING, ROUNDING_SINGLE, Invariants, invariants_of
from peerbayes.relay import DIFFERENT, LARGEST_NETWORK, NEAR, Relay, spanning_tree
from peerbayes.rounds import Broadcast, Faults, OverTree
from peerbayes.secure_sums import CONSERVING, SUMMING, SecureSums
from peerbayes.simulation.asked import Asked
from peerbayes.simulation.population import Population
from peerbayes.strategies import DSGD, LOSSY_MEMORY, NOISY_WINDOW, ROBUST_MEMORY, STRATEGIES, Exact, Strategy

Driver = Broadcast | OverTree


def chosen(asked: Asked, peers: Population, start: np.ndarray) -> Driver:
    """What was asked for, over this network, from this start [N, C, K]."""
    driver = _plain(asked, peers, start)
    if asked.secure_sum:
        driver = _secured(asked.strategy, driver, peers)
    if isinstance(driver, Broadcast) and asked.checks_messages:
        driver = replace(driver, defence=_defence(asked, peers, driver.strategy, start))
    return driver


def alone(asked: Asked, peers: Population) -> Broadcast:
    """Nobody hears anybody: the strategy "local"."""
    held, faults = peers.held, Faults(0.0, asked.seed)
    residual = held.residual(asked.rounds, asked.local_steps)
    return Broadcast(STRATEGIES["local"](), peers.network, residual, faults, held.place)


def _plain(asked: Asked, peers: Population, start: np.ndarray) -> Driver:
    """The strategy asked for; "auto" chooses between relay and exact by what peers can measure."""
    held, network, name = peers.held, peers.network, asked.strategy
    faults = Faults(asked.message_loss, asked.seed, asked.message_delay)
    if isinstance(name, str) and name == "auto":
        name = "relay" if _relay_fits(network, held, start, asked.rounds) else "exact"
    if isinstance(name, str) and name == "relay":
        if not network.static:
            raise ValueError(
                "relay needs a fixed network, this one changes or loses peers; use strategy='exact' or 'auto'"
            )
        learner = Relay(spanning_tree(network.at(1)), asked.rounds, held.place)
        return OverTree(learner, peers.hidden or held.residual(asked.rounds, asked.local_steps), faults)
    strategy = _strategy(name, asked, peers)
    residual = peers.hidden or held.residual(asked.rounds, asked.local_steps, strategy.of_weights)
    return Broadcast(strategy, network, residual, faults, held.place)


def _relay_fits(network: topologies.Schedule, held: Holdings, start: np.ndarray, rounds: int) -> bool:
    """Whether everybody is near, so that delay costs little, or data differ, so that mixing costs much."""
    if not network.static or held.nodes > LARGEST_NETWORK:
        return False
    near = spanning_tree(network.at(1)).mean_distance <= NEAR * rounds
    return near or held.differ(start, network.at(1)) > DIFFERENT


def _strategy(name: str | Strategy, asked: Asked, peers: Population) -> Strategy:
    """A strategy by its name, with the numbers that suit this network; a value stays as it is."""
    if not isinstance(name, str):
        return name
    if name == "exact":
        lossy = asked.lossy or isinstance(peers.network, topologies.Churn)
        memory = ROBUST_MEMORY if asked.robust is not None else LOSSY_MEMORY if lossy else 1.0
        averaged = None if asked.privacy is None else int(asked.rounds * NOISY_WINDOW)
        return Exact(rounds=asked.rounds, memory=memory, averaged=averaged)
    if name == "dsgd":
        held = peers.held
        total = float(held.row_weights.sum())
        return DSGD(rate=held.nodes / total / (0.5 * held.mean_square()))
    return STRATEGIES[name]()


def _secured(asked: str | Strategy, driver: Driver, peers: Population) -> Broadcast:
    """The same driver with sums in fixed point over the network that all agreed on; whoever is away is missed."""
    if not isinstance(driver, Broadcast) or asked == "auto":
        raise ValueError(
            f"secure_sum is True and the strategy {asked}, which needs messages singly; expected one of "
            f"{', '.join(SUMMING)}"
        )
    held, family, network = peers.held, peers.family, peers.network
    name, agreed = driver.strategy.name, network.base if isinstance(network, topologies.Churn) else network
    if not agreed.static:
        raise ValueError("secure_sum is True and the network changes; expected one that all agreed on before")
    if driver.strategy.mixing == "none":
        return driver
    whole = (held.rows.codes >= 0).all(axis=0)
    linked = getattr(family, "linked", np.zeros(family.continuous + whole.size, dtype=bool))
    known = whole | linked[family.continuous :]
    cells = tuple(cells for cells, columns in family.tabled() if known[list(columns)].all())
    conserved = name in CONSERVING and not held.incomplete.any()
    return replace(driver, secure=SecureSums(agreed.at(1), driver.strategy.mixing, conserved, cells))


def _defence(asked: Asked, peers: Population, strategy: Strategy, start: np.ndarray) -> Defence:
    """What peers do about false messages, and attackers instead of honest ones."""
    known = _invariants(asked, peers, strategy, start)
    if peers.hidden is not None:
        most = int(np.diff(peers.network.at(1).indptr).max(initial=0))
        known = replace(known, noise=peers.hidden.scheme.spread(most, getattr(strategy, "boost", 1.0)))
    soft = peers.held.soft_errors if asked.robust == "guard" else None
    rule = "mean" if asked.robust is None else "clip"
    optimiser = None
    if asked.attack is not None and asked.attack.kind == "optimise":
        optimiser = Optimiser.of(peers.held, peers.attackers, known, rule, soft is not None, asked.seed)
    theta = peers.family.weights
    return Defence(rule, known, asked.attack, peers.attackers, asked.seed, soft, theta, optimiser)


def _invariants(asked: Asked, peers: Population, strategy: Strategy, start: np.ndarray) -> Invariants:
    """What honest messages of this run obey."""
    held = peers.held
    whole = [bool((held.rows.codes[:, k] >= 0).all()) for k in range(held.rows.codes.shape[1])]
    rows = np.add.reduceat(held.row_weights, held.offsets[:-1]) if held.sizes.all() else held.sizes
    return invariants_of(
        strategy, held.family, start[0].astype(np.float64), whole, bool(held.incomplete.any()), float(rows.sum()),
        float(rows.max()), peers.reported_rows / (asked.lr * held.nodes), asked.local_steps, peers.schema.limit,
        asked.start != "ml", ROUNDING if held.place.precision == "float64" else ROUNDING_SINGLE,
    )  # fmt: skip
