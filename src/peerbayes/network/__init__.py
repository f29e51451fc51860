"""Networks, schedules of networks over rounds, and the mixing weights of messages.

    A          [N,N]   adjacency: 1 where two nodes are linked, else 0; symmetric, nothing on the diagonal
    A_t        [N,N]   a schedule's network of round t = 1, 2, …
    a = f(A)   [N,N]   mixing: row v holds the weights with which node v averages messages; rows sum to 1

Every matrix is a SciPy CSR array with sorted indices; entry [v,u] is the message from u to v. Nodes count from 0.
"""

from peerbayes.network.fault_kinds import (
    Away,
    Bursts,
    DeadLinks,
    Fault,
    Flapping,
    Loss,
)
from peerbayes.network.losses import LossTrace
from peerbayes.network.mixing import (
    closed_mean,
    delay,
    diameter,
    lose,
    metropolis,
    neighbour_mean,
    pairs,
    smallest_eigenvalue,
    spectral_gap,
    stable,
    within_distance,
)
from peerbayes.network.schedules import (
    Changing,
    Churn,
    Schedule,
    Sequence,
    Static,
    schedule,
    without_absences,
)
from peerbayes.network.topologies import FIXED, NAMES, RANDOM, adjacency

__all__ = [
    "FIXED", "NAMES", "RANDOM", "Away", "Bursts", "Changing", "Churn", "DeadLinks", "Fault",
    "Flapping", "Loss", "LossTrace", "Schedule", "Sequence", "Static", "adjacency", "closed_mean", "delay", "diameter",
    "lose", "metropolis", "neighbour_mean", "pairs", "schedule",
    "smallest_eigenvalue", "spectral_gap", "stable", "within_distance", "without_absences",
]  # fmt: skip
