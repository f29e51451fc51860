"""The statistics that simulated peers begin with, and what agreeing on them takes."""

from __future__ import annotations

import numpy as np

from peerbayes.learning import planning
from peerbayes.learning.local_rows import Holdings
from peerbayes.learning.robust.bounds import START_LIMIT, StatisticsBounds, start_statistics_of
from peerbayes.learning.robust.invariants import counted_columns, ties_of
from peerbayes.learning.strategies import NetworkFacts, Strategy
from peerbayes.model.calibration import AGREED_STEPS, start_statistics
from peerbayes.network import Schedule
from peerbayes.network.mixing import agree
from peerbayes.simulation.population import Population
from peerbayes.simulation.private import PrivateRows
from peerbayes.simulation.reports import Reported
from peerbayes.simulation.settings import SimulationSettings


def agreed(settings: SimulationSettings, peers: Population) -> tuple[np.ndarray, int]:
    """Every peer's S⁰ [N, C, K], and the bytes each peer sent to agree on it."""
    stats, sent = _start(
        settings.start, peers.held, settings.lr, peers.network, settings.start_rounds, settings.strategy, peers.hidden,
        peers.reports,
    )  # fmt: skip
    if settings.checks_messages and settings.start != "uniform":
        stats[:] = stats.mean(axis=0)  # as real peers agree: exactly, so that class sums can be checked
    return stats, sent


def alone(settings: SimulationSettings, peers: Population) -> np.ndarray:
    """Every peer's S⁰ [N, C, K] for the strategy "local", from rows without noise."""
    return _start(
        settings.start, peers.held, settings.lr, peers.network, settings.start_rounds, planning.ALONE
    )[0]


def _start(
    start: str,
    held: Holdings,
    lr: float,
    network: Schedule,
    rounds: int,
    strategy: str | Strategy,
    hidden: PrivateRows | None = None,
    reports: Reported | None = None,
) -> tuple[np.ndarray, int]:
    """Every peer's S⁰ [N, C, K], and the bytes each peer sent.

    The ml start is the mean over peers of Y_vᵀΦ_v / lr: peers agree on it by gossip. The uniform start needs none.
    Where values are missing that mean is the last of a few steps of expectation-maximisation, each agreed on. With
    privacy, Y_vᵀΦ_v is a noisy release. Where reports may be false, so may be Y_vᵀΦ_v and the number of rows.
    """
    rows = float((held.sizes if reports is None else reports.rows).sum())
    peer_count, mass = held.peer_count, planning.start_weight(lr, NetworkFacts(held.peer_count, rows))
    alone = planning.declaration_of(strategy).own_start
    if alone and not held.incomplete.any():
        return held.statistics(), 0
    if start == "uniform" and not alone:
        uniform = start_statistics("uniform", held.family, held.classes, mass)
        return np.tile(uniform.astype(held.place.precision), (peer_count, 1, 1)), 0
    sent = 0
    if held.incomplete.any():
        own, sent = _completed(held, network, rounds)
        if alone:
            return own, sent
    else:
        own = _own(held, reports) if hidden is None else hidden.start(start == "marginal")
    if reports is not None and not alone:
        own = reports.start(own, _bounds(held, reports))
    local = own / lr if start == "ml" else own.sum(axis=1, keepdims=True) / (lr * held.classes)
    agreed = agree(network, local.reshape(peer_count, -1), rounds).reshape(local.shape)
    degree = float(np.diff(network.at(1).indptr).mean())
    shape = (peer_count, held.classes, held.family.size)
    return np.broadcast_to(agreed, shape).copy(), sent + int(rounds * degree * local[0].nbytes)


def _own(held: Holdings, reports: Reported | None) -> np.ndarray:
    """Every peer's Y_vᵀΦ_v [N, C, K], as far as it counts."""
    bounded = reports is not None and reports.liars.enforced
    return start_statistics_of(held) if bounded else held.statistics()


def _bounds(held: Holdings, reports: Reported) -> StatisticsBounds:
    """What parts of a start are held to, as between real peers."""
    whole = [bool((held.rows.codes[:, k] >= 0).all()) for k in range(held.rows.codes.shape[1])]
    ties = ties_of(held.family, counted_columns(held.family, whole))
    gapped, limit = bool(held.incomplete.any()), reports.schema.limit
    return StatisticsBounds(
        limit if gapped else min(limit, START_LIMIT), gapped, family=held.family, ties=ties
    )


def _completed(held: Holdings, network: Schedule, rounds: int) -> tuple[np.ndarray, int]:
    """Every peer's Y_vᵀΦ̃_v [N, C, K] under the model that all have agreed on, and the bytes each peer sent.

    First they agree on what is there of each column alone, then on the completed statistics of all steps but the last.
    """
    sums, sent = held.apart(), 0
    degree = float(np.diff(network.at(1).indptr).mean())

    def together(values: np.ndarray) -> np.ndarray:
        nonlocal sent
        sent += int(rounds * degree * values[0].nbytes)
        return agree(network, values.reshape(held.peer_count, -1), rounds).reshape(values.shape)

    own = held.expected(held.alone(together(sums)))
    for _ in range(AGREED_STEPS - 1):
        own = held.expected(together(own))
    return own, sent
