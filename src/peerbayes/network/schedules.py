"""Schedules: networks that change from round to round; averages by gossip over them."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, Protocol, runtime_checkable

import numpy as np
from scipy.sparse import csr_array

from peerbayes.data.arguments import LARGEST, LARGEST_SEED, about, number, shown
from peerbayes.errors import TopologyError
from peerbayes.network.mixing import (
    check_connected,
    checked,
    metropolis,
    only,
    rows_of,
    spectral_gap,
    whole_number,
)
from peerbayes.network.topologies import MOST_NODES, TOPOLOGIES, adjacency, random_network

CHURN_STREAM = 1  # separates Churn's random numbers from those of a Changing with the same seed


@runtime_checkable
class Schedule(Protocol):
    """The network of each round."""

    @property
    def nodes(self) -> int: ...

    @property
    def static(self) -> bool:
        """Whether every round has the same network."""

    def at(self, round: int) -> csr_array:
        """Return A_t [N,N] of round t = 1, 2, …: the same matrix at every call, in any order."""


@dataclass(frozen=True, eq=False)
class Static:
    """The same connected network in every round."""

    matrix: csr_array
    static = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", checked(self.matrix))

    @property
    def nodes(self) -> int:
        return self.matrix.shape[0]

    def at(self, round: int) -> csr_array:
        whole_number("round", round)
        return self.matrix


@dataclass(frozen=True)
class Changing:
    """A new random network every `every` rounds."""

    topology: str
    nodes: int
    every: int = 1
    seed: int = 0
    static = False

    def __post_init__(self) -> None:
        if not isinstance(self.topology, str) or not (
            random_network(self.topology) is not None or self.topology in TOPOLOGIES
        ):
            raise TopologyError(
                f"the topology {shown(self.topology)} cannot change, because it is not random. Expected tree, tree+K, "
                "regular-D, erdos-P or small-world-D-P; for a list of networks, use a Sequence"
            )
        for name, least, most in (("nodes", 1, MOST_NODES), ("every", 1, LARGEST), ("seed", 0, LARGEST_SEED)):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least, most))

    def at(self, round: int) -> csr_array:
        # Epochs count from 1: default_rng([seed, 0]) is default_rng(seed), which someone else may be using.
        epoch = 1 + (whole_number("round", round) - 1) // self.every
        return _drawn(self.topology, self.nodes, self.seed, epoch)


@lru_cache(maxsize=2)
def _drawn(topology: str, nodes: int, seed: int, epoch: int) -> csr_array:
    """Return the network of an epoch, drawn once while it lasts."""
    return adjacency(topology, nodes, np.random.default_rng([seed, epoch]))


@dataclass(frozen=True, eq=False)
class Sequence:
    """Cycle through networks, each for `every` rounds; their union must be connected."""

    matrices: tuple[csr_array, ...]
    every: int = 1

    def __post_init__(self) -> None:
        matrices = tuple(checked(matrix, connected=False) for matrix in self.matrices)
        sizes = sorted({matrix.shape[0] for matrix in matrices})
        if len(sizes) != 1:
            raise TopologyError(f"a Sequence of networks of {sizes or 'no'} nodes; expected one size for all")
        check_connected(reduce(operator.add, matrices))
        object.__setattr__(self, "matrices", matrices)
        object.__setattr__(self, "every", whole_number("every", self.every))

    @property
    def nodes(self) -> int:
        return self.matrices[0].shape[0]

    @property
    def static(self) -> bool:
        return len(self.matrices) == 1

    def at(self, round: int) -> csr_array:
        return self.matrices[(whole_number("round", round) - 1) // self.every % len(self.matrices)]


@dataclass(frozen=True)
class Churn:
    """Each round, each node of another schedule is absent with probability `down`, and its links with it.

    The remaining network may be disconnected, and a node may have no neighbour.
    """

    base: Schedule
    down: float
    seed: int = 0

    def __post_init__(self) -> None:
        number("down", self.down, "a probability, from 0 to 1", least=0.0, most=1.0, error=TopologyError)
        object.__setattr__(self, "seed", whole_number("seed", self.seed, 0, LARGEST_SEED))

    @property
    def nodes(self) -> int:
        return self.base.nodes

    @property
    def static(self) -> bool:
        return self.base.static and self.down == 0

    def at(self, round: int) -> csr_array:
        matrix = self.base.at(round)
        present = np.random.default_rng([self.seed, round, CHURN_STREAM]).random(self.nodes) >= self.down
        return only(matrix, present[rows_of(matrix)] & present[matrix.indices])


def without_absences(network: Schedule) -> Schedule:
    """Return the schedule of a network in which no node is ever absent."""
    return without_absences(network.base) if isinstance(network, Churn) else network


def schedule(
    topology: Any, nodes: int, rng: np.random.Generator, change_every: int | None = None
) -> Schedule:
    """Return a topology (see `adjacency`) as a schedule, fixed or redrawn every `change_every` rounds."""
    a_class: bool = isinstance(topology, type)  # a class also has the methods of its instances
    if a_class or not isinstance(topology, Schedule):
        if change_every is None:
            return Static(adjacency(topology, nodes, rng))
        period = whole_number("change_every", change_every)
        with about("change_every", "nodes"):
            return Changing(topology, nodes, period, seed=int(rng.integers(2**63)))
    if change_every is not None:
        raise TopologyError(
            f"change_every is {change_every}, but the topology is a schedule, which decides itself when it changes; "
            "leave change_every out"
        )
    if topology.nodes != nodes:
        raise TopologyError(
            f"the schedule has {shown(topology.nodes)} nodes; expected {nodes}: change one of the two"
        )
    return topology


# --- agreeing on a mean without a server: accelerated gossip over a network


def agree(network: Schedule, values: np.ndarray, rounds: int) -> np.ndarray:
    """Return every peer's estimate of the mean over peers after so many rounds: [N, M] -> [N, M].

    On a fixed network by Chebyshev's recursion, which needs the square root of the rounds of plain averaging:

        x_{k+1} = ω_{k+1} (W x_k − x_{k−1}) + x_{k−1},   ω_1 = 1, ω_2 = 1/(1 − λ²/2), ω_{k+1} = 1/(1 − λ² ω_k/4)

    λ is the second largest modulus of an eigenvalue of the Metropolis weights W. On a changing network, whose modes
    change too, by plain averaging.
    """
    if not network.static:
        for round_index in range(1, rounds + 1):
            values = metropolis(network.at(round_index)) @ values
        return values
    weights = metropolis(network.at(1))
    bound = 1.0 - spectral_gap(weights) if len(values) > 1 else 0.0
    before, now, omega = values, weights @ values, 1.0
    for round_index in range(2, rounds + 1):
        omega = 1.0 / (1.0 - bound**2 * (0.5 if round_index == 2 else omega / 4.0))
        before, now = now, omega * (weights @ now - before) + before
    return now if rounds else values
