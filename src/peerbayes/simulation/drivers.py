"""The driver of a simulation: the strategy over the network, with secure sums or a defence if requested."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from peerbayes import network as topologies
from peerbayes.learning.local_rows import Holdings
from peerbayes.learning.relay import DIFFERENT, LARGEST_NETWORK, NEAR, Relay, spanning_tree
from peerbayes.learning.robust.invariants import ROUNDING, ROUNDING_SINGLE, Invariants, invariants_of
from peerbayes.learning.robust.optimised import Optimiser
from peerbayes.learning.secure_sums import CONSERVING, SUMMING, SecureSums
from peerbayes.learning.strategies import (
    DSGD,
    LOSSY_MEMORY,
    NOISY_WINDOW,
    ROBUST_MEMORY,
    STRATEGIES,
    Exact,
    Strategy,
)
from peerbayes.simulation.population import Population
from peerbayes.simulation.rounds import Broadcast, Defence, Faults, OverTree
from peerbayes.simulation.settings import Asked

Driver = Broadcast | OverTree


def build_driver(settings: Asked, peers: Population, start: np.ndarray) -> Driver:
    """Return the driver of these settings over the peers' network, from a start [N, C, K]."""
    driver = _basic_driver(settings, peers, start)
    if settings.secure_sum:
        driver = _with_secure_sums(settings.strategy, driver, peers)
    if isinstance(driver, Broadcast) and settings.checks_messages:
        driver = replace(driver, defence=_defence(settings, peers, driver.strategy, start))
    return driver


def local_driver(settings: Asked, peers: Population) -> Broadcast:
    """Return the driver of the strategy "local", without messages."""
    local, faults = peers.held, Faults(0.0, settings.seed)
    residual = local.residual(settings.rounds, settings.local_steps)
    return Broadcast(STRATEGIES["local"](), peers.network, residual, faults, local.place)


def _basic_driver(settings: Asked, peers: Population, start: np.ndarray) -> Driver:
    """Return the driver without secure sums and defence; "auto" chooses relay or exact by what peers can measure."""
    local, network, name = peers.held, peers.network, settings.strategy
    faults = Faults(settings.message_loss, settings.seed, settings.message_delay)
    if isinstance(name, str) and name == "auto":
        name = "relay" if _relay_fits(network, local, start, settings.rounds) else "exact"
    if isinstance(name, str) and name == "relay":
        if not network.static:
            raise ValueError(
                "relay needs a fixed network, but this one changes or loses peers; use strategy='exact' or 'auto'"
            )
        learner = Relay(spanning_tree(network.at(1)), settings.rounds, local.place)
        residual = peers.hidden or local.residual(settings.rounds, settings.local_steps)
        return OverTree(learner, residual, faults)
    strategy = _strategy(name, settings, peers)
    residual = peers.hidden or local.residual(settings.rounds, settings.local_steps, strategy.of_weights)
    return Broadcast(strategy, network, residual, faults, local.place)


def _relay_fits(network: topologies.Schedule, local: Holdings, start: np.ndarray, rounds: int) -> bool:
    """Return whether distances are short, so that delay costs little, or data differ, so that mixing costs much."""
    if not network.static or local.nodes > LARGEST_NETWORK:
        return False
    near = spanning_tree(network.at(1)).mean_distance <= NEAR * rounds
    return near or local.differ(start, network.at(1)) > DIFFERENT


def _strategy(name: str | Strategy, settings: Asked, peers: Population) -> Strategy:
    """Return a strategy by its name, with parameters for this network; a strategy object stays as it is."""
    if not isinstance(name, str):
        return name
    if name == "exact":
        lossy = settings.lossy or isinstance(peers.network, topologies.Churn)
        memory = ROBUST_MEMORY if settings.robust is not None else LOSSY_MEMORY if lossy else 1.0
        averaged = None if settings.privacy is None else int(settings.rounds * NOISY_WINDOW)
        return Exact(rounds=settings.rounds, memory=memory, averaged=averaged)
    if name == "dsgd":
        local = peers.held
        total = float(local.row_weights.sum())
        return DSGD(rate=local.nodes / total / (0.5 * local.mean_square()))
    return STRATEGIES[name]()


def _with_secure_sums(strategy: str | Strategy, driver: Driver, peers: Population) -> Broadcast:
    """Return the driver with sums in fixed point over the network that all agreed on, absent peers included."""
    if not isinstance(driver, Broadcast) or strategy == "auto":
        raise ValueError(
            f"secure_sum is True and the strategy is {strategy}, which needs single messages; expected one of "
            f"{', '.join(SUMMING)}"
        )
    local, family, network = peers.held, peers.family, peers.network
    name, base = driver.strategy.name, network.base if isinstance(network, topologies.Churn) else network
    if not base.static:
        raise ValueError("secure_sum is True and the network changes; expected a fixed network")
    if driver.strategy.mixing == "none":
        return driver
    complete = (local.rows.codes >= 0).all(axis=0)
    linked = getattr(family, "linked", np.zeros(family.continuous + complete.size, dtype=bool))
    counted = complete | linked[family.continuous :]
    cells = tuple(cells for cells, columns in family.tabled() if counted[list(columns)].all())
    conserved = name in CONSERVING and not local.incomplete.any()
    return replace(driver, secure=SecureSums(base.at(1), driver.strategy.mixing, conserved, cells))


def _defence(settings: Asked, peers: Population, strategy: Strategy, start: np.ndarray) -> Defence:
    """Return the defence against false messages, with the attack if there is one."""
    invariants = _invariants(settings, peers, strategy, start)
    if peers.hidden is not None:
        largest_degree = int(np.diff(peers.network.at(1).indptr).max(initial=0))
        invariants = replace(
            invariants, noise=peers.hidden.scheme.spread(largest_degree, getattr(strategy, "boost", 1.0))
        )
    soft = peers.held.soft_errors if settings.robust == "guard" else None
    rule = "mean" if settings.robust is None else "clip"
    optimiser = None
    if settings.attack is not None and settings.attack.kind == "optimise":
        optimiser = Optimiser.of(
            peers.held, peers.attackers, invariants, rule, soft is not None, settings.seed
        )
    theta = peers.family.weights
    return Defence(rule, invariants, settings.attack, peers.attackers, settings.seed, soft, theta, optimiser)


def _invariants(settings: Asked, peers: Population, strategy: Strategy, start: np.ndarray) -> Invariants:
    """Return the invariants of honest messages in this run."""
    local = peers.held
    complete = [bool((local.rows.codes[:, k] >= 0).all()) for k in range(local.rows.codes.shape[1])]
    rows = np.add.reduceat(local.row_weights, local.offsets[:-1]) if local.sizes.all() else local.sizes
    return invariants_of(
        strategy, local.family, start[0].astype(np.float64), complete, bool(local.incomplete.any()), float(rows.sum()),
        float(rows.max()), peers.reported_rows / (settings.lr * local.nodes), settings.local_steps, peers.schema.limit,
        settings.start != "ml", ROUNDING if local.place.precision == "float64" else ROUNDING_SINGLE,
    )  # fmt: skip
