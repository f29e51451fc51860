"""The driver of a simulation: the start that peers agree on, and the strategy over the network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from peerbayes import network as topologies
from peerbayes.learning import combinations, planning
from peerbayes.learning.integer_sums import SecureSums
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.planning import Plan
from peerbayes.learning.robust.bounds import START_LIMIT, StatisticsBounds, start_statistics_of
from peerbayes.learning.robust.invariants import (
    ROUNDING,
    ROUNDING_SINGLE,
    Invariants,
    counted_columns,
    ties_of,
)
from peerbayes.learning.robust.optimised import Optimiser
from peerbayes.learning.strategies import LearningSettings, NetworkFacts
from peerbayes.model.calibration import shared_out
from peerbayes.network.schedules import agree
from peerbayes.simulation.faults import Faults
from peerbayes.simulation.population import Population
from peerbayes.simulation.private import PrivateRows
from peerbayes.simulation.reports import Reported
from peerbayes.simulation.rounds import Broadcast, BySums, Defence, OverTree
from peerbayes.simulation.settings import SimulationSettings

Driver = Broadcast | OverTree | BySums

# --- the start: sums by gossip over the network, of numbers that may be noisy or false


def agreed_start(settings: SimulationSettings, peers: Population) -> tuple[np.ndarray, int]:
    """Return every peer's S⁰ [N, C, K], and the bytes that each sent to agree on it."""
    stats, sent = _start(settings, peers, settings.strategy, peers.hidden, peers.reports)
    if settings.checks_messages and settings.start != "uniform":
        stats[:] = stats.mean(axis=0)  # as real peers agree: exactly, so that class sums can be checked
    return stats, sent


def start_alone(settings: SimulationSettings, peers: Population) -> np.ndarray:
    """Return every peer's S⁰ [N, C, K] where peers learn on their own, from rows without noise."""
    return _start(settings, peers, planning.ALONE, None, None)[0]


def _start(
    settings: SimulationSettings,
    peers: Population,
    strategy: object,
    hidden: PrivateRows | None,
    reports: Reported | None,
) -> tuple[np.ndarray, int]:
    """Return every peer's S⁰ [N, C, K], and the bytes that each sent.

    Peers agree on the mean of Y_vᵀΦ_v / lr. With privacy, Y_vᵀΦ_v is a noisy release. Where reports may be false, so
    may be Y_vᵀΦ_v and the number of rows.
    """
    held, network, rounds, sent = peers.held, peers.network, settings.start_rounds, 0
    rows = float((held.sizes if reports is None else reports.rows).sum())
    weight = planning.start_weight(settings.lr, NetworkFacts(held.peer_count, rows))
    own_start = planning.declaration_of(strategy).own_start

    def local() -> np.ndarray:
        if hidden is not None and not own_start:
            return hidden.start(settings.start == "marginal")
        bounded = reports is not None and reports.liars.enforced and not own_start
        return start_statistics_of(held) if bounded else held.statistics()

    def mean(name: str, values: np.ndarray) -> np.ndarray:
        nonlocal sent
        if name == "start":
            values = values if reports is None else reports.start(values, _bounds(held, reports))
            values = shared_out(settings.start, values, held.classes, settings.lr)
        sent += int(rounds * float(np.diff(network.at(1).indptr).mean()) * values[0].nbytes)
        return agree(network, values.reshape(held.peer_count, -1), rounds).reshape(values.shape)

    gapped = bool(held.incomplete.any())
    sums = planning.start_sums(settings.start, own_start, held, weight, gapped, local)
    shape = (held.peer_count, held.classes, held.family.size)
    return np.broadcast_to(planning.summed_start(mean, sums), shape).copy(), sent


def _bounds(held: LocalRows, reports: Reported) -> StatisticsBounds:
    """Return the bounds of reported parts of a start, as between real peers."""
    complete = [bool((held.rows.codes[:, k] >= 0).all()) for k in range(held.rows.codes.shape[1])]
    ties = ties_of(held.family, counted_columns(held.family, complete))
    gapped, limit = bool(held.incomplete.any()), reports.schema.limit
    return StatisticsBounds(
        limit if gapped else min(limit, START_LIMIT), gapped, family=held.family, ties=ties
    )


# --- the rounds: the strategy over the network, with secure sums or a defence if requested


def build_driver(plan: Plan, settings: SimulationSettings, peers: Population, start: np.ndarray) -> Driver:
    """Return the driver of a plan over the peers' network, from a start [N, C, K]."""
    driver = _basic_driver(plan, settings, peers)
    if settings.secure_sum:
        driver = _with_secure_sums(plan, driver, peers)
    if isinstance(driver, Broadcast) and settings.checks_messages:
        driver = replace(driver, defence=_defence(plan, settings, peers, start))
    return driver


def local_driver(settings: SimulationSettings, peers: Population) -> Broadcast:
    """Return the driver of peers on their own, without messages."""
    local, faults = peers.held, Faults(0.0, settings.seed)
    residual = local.residual(settings.rounds, settings.local_steps)
    alone = LearningSettings(
        planning.ALONE, settings.rounds, settings.lr, settings.local_steps, settings.start
    )
    strategy = planning.plan(alone, NetworkFacts(local.peer_count, peers.reported_rows)).strategy
    return Broadcast(strategy, peers.network, residual, faults, local.device)


def plan_of(settings: SimulationSettings, peers: Population, start: np.ndarray) -> Plan:
    """Return the plan of a simulation, with what it takes measured on the peers' rows at their start [N, C, K]."""
    local, network = peers.held, peers.network
    rows = np.add.reduceat(local.row_weights, local.offsets[:-1]) if local.sizes.all() else local.sizes
    learning = LearningSettings(
        settings.strategy, settings.rounds, settings.lr, settings.local_steps, settings.start,
        settings.robust is not None, settings.privacy is not None,
        settings.network_faults.expected or isinstance(network, topologies.Churn), messages=settings.messages,
        exchanges=settings.exchanges, repairs_links=_repairs(settings, peers),
        excluded=combinations.excluded(settings.combination),
        sums_excluded=combinations.excluded(settings.combination, planning.BY_SUMS),
    )  # fmt: skip
    lasting = topologies.without_absences(network)
    facts = NetworkFacts(
        local.peer_count, peers.reported_rows, weight=float(rows.sum()), largest=float(rows.max()),
        classes=local.classes, features=local.family.size, counted=local.rows.codes.shape[1] > 0,
        tree=planning.tree_of(lasting.at(1)) if lasting.static else None, absences=network.static != lasting.static,
        completed=bool(local.incomplete.any()), crossed=bool(peers.schema.crosses),
    )  # fmt: skip
    plan = planning.plan(learning, facts)
    if "difference" in plan.missing:
        sums = local.differ(start, network.at(1))
        facts = replace(facts, difference=sums.difference, likeness=sums.likeness)
    if "mean_square" in plan.missing:
        facts = replace(facts, weight=float(local.row_weights.sum()), mean_square=local.mean_square())
    return planning.plan(learning, facts) if plan.missing else plan


def _repairs(settings: SimulationSettings, peers: Population) -> bool:
    """Return whether peers can keep corrections by link: links last, and single messages are seen."""
    return peers.network.static and not settings.secure_sum


def _basic_driver(plan: Plan, settings: SimulationSettings, peers: Population) -> Driver:
    """Return the driver without secure sums and defence."""
    local, network, strategy, faults = peers.held, peers.network, plan.strategy, settings.network_faults
    if plan.declaration.by_sums:
        assert plan.facts.tree is not None
        return BySums(
            strategy, local.sum_terms(settings.rounds), local.family.weights, faults, plan.facts.tree()
        )
    residual = peers.hidden or local.residual(settings.rounds, settings.local_steps, strategy.of_weights)
    if plan.declaration.over_tree:
        return OverTree(strategy.on(local.device), residual, faults, network)
    # Without faults and liars corrections by link change nothing: their sums are what the strategy has anyway.
    needed = faults.occur or settings.checks_messages
    by_link = plan.declaration.by_link and plan.settings.repairs_links and needed
    return Broadcast(strategy, network, residual, faults, local.device, by_link=by_link)


def _with_secure_sums(plan: Plan, driver: Driver, peers: Population) -> Broadcast:
    """Return the driver with sums in fixed point over the network that all agreed on, absent peers included."""
    assert isinstance(driver, Broadcast)
    local, family = peers.held, peers.family
    if not plan.sends:
        return driver
    complete = (local.rows.codes >= 0).all(axis=0)
    linked = getattr(family, "linked", np.zeros(family.continuous + complete.size, dtype=bool))
    counted = complete | linked[family.continuous :]
    cells = tuple(cells for cells, columns in family.tabled() if counted[list(columns)].all())
    conserved = plan.declaration.conserves and not local.incomplete.any()
    return replace(
        driver,
        secure=SecureSums(
            topologies.without_absences(peers.network).at(1), driver.strategy.mixing, conserved, cells
        ),
    )


def _defence(plan: Plan, settings: SimulationSettings, peers: Population, start: np.ndarray) -> Defence:
    """Return the defence against false messages, with the attack if there is one."""
    invariants = _invariants(plan, peers, start)
    soft = peers.held.soft_errors if settings.robust == "guard" else None
    rule = "mean" if settings.robust is None else "clip"
    optimiser = None
    if settings.attack is not None and settings.attack.kind == "optimise":
        optimiser = Optimiser.of(
            peers.held, peers.attackers, invariants, rule, soft is not None, settings.seed
        )
    theta = peers.family.weights
    return Defence(rule, invariants, settings.attack, peers.attackers, settings.seed, soft, theta, optimiser)


def _invariants(plan: Plan, peers: Population, start: np.ndarray) -> Invariants:
    """Return the invariants of honest messages in this run."""
    local, noise = peers.held, 0.0
    complete = [bool((local.rows.codes[:, k] >= 0).all()) for k in range(local.rows.codes.shape[1])]
    if peers.hidden is not None:
        scheme = peers.hidden.scheme
        largest_degree = int(np.diff(peers.network.at(1).indptr).max(initial=0))
        noise = plan.noise(lambda boost: scheme.spread(largest_degree, boost))
    rounding = ROUNDING if local.device.precision == "float64" else ROUNDING_SINGLE
    return plan.invariants(
        local.family, start[0].astype(np.float64), complete, bool(local.incomplete.any()), peers.schema.limit, rounding,
        noise,
    )  # fmt: skip
