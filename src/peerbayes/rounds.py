"""One round of messages between all peers: who hears whom, what gets lost, who is away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from array_api_compat import array_namespace

from peerbayes import topologies
from peerbayes.core import Array
from peerbayes.places import Place
from peerbayes.relay import Relay
from peerbayes.strategies import Residual, Strategy

LOSS_STREAM = 3  # sets the faults of a round apart from other random numbers of the same seed


class Rounds(Protocol):
    """A strategy over a network: where it starts, what a round does, and what it has learnt."""

    def begin(self, start: np.ndarray) -> Any: ...
    def advance(self, state: Any, turn: int) -> tuple[Any, np.ndarray]:
        """The state after a round, and the bytes that each peer sent."""

    def read(self, state: Any) -> Array: ...


@dataclass(frozen=True)
class Faults:
    """Each message is lost with probability `loss`, independently, whatever the run did before."""

    loss: float
    seed: int

    def kept(self, turn: int, messages: int) -> np.ndarray:
        return np.random.default_rng([self.seed, LOSS_STREAM, turn]).random(messages) >= self.loss


@dataclass(frozen=True)
class Broadcast:
    """The same message to every neighbour; the weight of one that is lost goes to the receiver itself."""

    strategy: Strategy
    network: topologies.Schedule
    residual: Residual
    faults: Faults
    place: Place

    def begin(self, start: Array) -> Any:
        return self.strategy.begin(start, self.residual)

    def advance(self, state: Any, turn: int) -> tuple[Any, np.ndarray]:
        message = self.strategy.message(state)
        nodes = len(message)
        if self.strategy.mixing == "none":
            return self.strategy.step(state, message, self.residual), np.zeros(nodes)
        links = self.network.at(turn)
        weights = getattr(topologies, self.strategy.mixing)(links)
        if self.faults.loss:
            weights = topologies.lose(weights, self.faults.kept(turn, weights.nnz))
        mixed = (self.place.put_matrix(weights) @ message.reshape(nodes, -1)).reshape(message.shape)
        after = self.strategy.step(state, mixed, self.residual)
        degrees = np.diff(links.indptr)
        if isinstance(self.network, topologies.Churn):
            after = unless_away(state, after, self.place.put(degrees) > 0)
        return after, degrees * float(message[0, ...].nbytes)

    def read(self, state: Any) -> Array:
        return self.strategy.read(state)


@dataclass(frozen=True)
class OverTree:
    """A message of its own to every neighbour on a spanning tree; one that is lost is only late."""

    strategy: Relay
    residual: Residual
    faults: Faults

    def begin(self, start: np.ndarray) -> Any:
        return self.strategy.begin(start)

    def advance(self, state: Any, turn: int) -> tuple[Any, np.ndarray]:
        state = self.strategy.adapt(state, self.residual)
        inbox = self.strategy.messages(state)
        if self.faults.loss:
            kept = self.faults.kept(turn, len(inbox))
            inbox = np.where(kept[:, None, None], inbox, state.inbox)
        sent = np.bincount(self.strategy.tree.sender, minlength=self.strategy.tree.nodes)
        return self.strategy.hear(state, inbox), sent * float(state.own[0].nbytes)

    def read(self, state: Any) -> np.ndarray:
        return self.strategy.read(state)


def unless_away(before: Any, after: Any, here: Array) -> Any:
    """The state after a round, but for peers that were away."""

    def chosen(old: Array, new: Array) -> Array:
        return array_namespace(new).where(here.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    if isinstance(after, tuple):
        return type(after)(*(chosen(old, new) for old, new in zip(before, after, strict=True)))
    return chosen(before, after)
