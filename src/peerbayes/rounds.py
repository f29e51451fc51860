"""One round of messages between all peers: who hears whom, what gets lost, who is away."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from array_api_compat import array_namespace, device
from scipy.sparse import csr_array

from peerbayes import topologies
from peerbayes.core import Array
from peerbayes.defence import Defence
from peerbayes.places import Place, fetch
from peerbayes.relay import Relay
from peerbayes.secure_sums import SecureSums
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
    """What happens to messages, each on its own and whatever the run did before.

    A message is lost with probability `loss`; else, with probability `late`, its link lags: what arrives is the
    message of the round before, and in the first round nothing. A strategy that cannot use an old message goes on
    without it.
    """

    loss: float
    seed: int
    late: float = 0.0

    def fates(self, turn: int, messages: int) -> tuple[np.ndarray, np.ndarray]:
        """Which links bring the message of this round, and which that of the last: two [E] of booleans."""
        drawn = np.random.default_rng([self.seed, LOSS_STREAM, turn]).random(messages)
        in_time = drawn >= self.loss + (1.0 - self.loss) * self.late
        return in_time, (drawn >= self.loss) & ~in_time


class Late(NamedTuple):
    """A strategy's state, and the messages of the round before, for links that lag."""

    state: Any
    message: Array


@dataclass(frozen=True, eq=False)
class Broadcast:
    """The same message to every neighbour; the weight of one that does not come goes to the receiver itself."""

    strategy: Strategy
    network: topologies.Schedule
    residual: Residual
    faults: Faults
    place: Place
    secure: SecureSums | None = None
    """Messages are summed in fixed point, all of a receiver's or none."""
    defence: Defence | None = None
    """What peers do about false messages; None: all are taken as they come."""
    _mixing: dict[str, Any] = field(default_factory=dict, repr=False)

    def begin(self, start: Array) -> Any:
        state = self.strategy.begin(start, self.residual)
        if self.defence is not None:
            return self.defence.begin(state, self.network)
        return Late(state, self.strategy.message(state)) if self._keeps else state

    @property
    def _keeps(self) -> bool:
        """Whether the messages of the round before are kept: links lag, and the strategy takes what they bring."""
        return bool(self.faults.late) and self.strategy.takes_old and self.secure is None

    def advance(self, state: Any, turn: int) -> tuple[Any, np.ndarray]:
        if self.defence is not None:
            return self._defended(state, turn, self.defence)
        if not self._keeps:
            return self._stepped(state, turn, self.strategy.message(state), None)
        message = self.strategy.message(state.state)
        after, sent = self._stepped(state.state, turn, message, state.message)
        return Late(after, message), sent

    def _stepped(self, state: Any, turn: int, message: Array, before: Array | None) -> tuple[Any, np.ndarray]:
        nodes = len(message)
        if self.strategy.mixing == "none":
            return self.strategy.step(state, message, self.residual), np.zeros(nodes)
        links = self.network.at(turn)
        return self._learned(state, links, message, self._mixed(links, turn, message, before))

    def _defended(self, watched: Any, turn: int, defence: Defence) -> tuple[Any, np.ndarray]:
        """A round in which messages may be false."""
        links, message = self.network.at(turn), self.strategy.message(watched.state)
        weights = self._weights(links)
        arrived = self.faults.fates(turn, weights.nnz)[0]
        mixed, after = defence.mixed(watched, self.network, weights, arrived, message, turn, self.place)
        state, sent = self._learned(watched.state, links, message, mixed)
        return after._replace(state=state), sent

    def _learned(self, state: Any, links: csr_array, message: Array, mixed: Array) -> tuple[Any, np.ndarray]:
        """The state after a round, and the bytes that each peer sent."""
        after = self.strategy.step(state, mixed, self.residual)
        degrees = np.diff(links.indptr)
        if isinstance(self.network, topologies.Churn):
            after = unless_away(state, after, self.place.put(degrees) > 0)
        return after, degrees * float(message[0, ...].nbytes)

    def _weights(self, links: csr_array) -> csr_array:
        """What messages are mixed with: [N, N]."""
        if self._mixing.get("links") is not links:
            weights = getattr(topologies, self.strategy.mixing)(links)
            self._mixing.update(links=links, weights=weights, placed=self.place.put_matrix(weights))
        return self._mixing["weights"]

    def _mixed(self, links: csr_array, turn: int, message: Array, before: Array | None) -> Array:
        """Σ_u a_vu message_u of what arrived: [N, …]."""
        if self.secure is not None:
            kept = self.faults.fates(turn, self.secure.weights.nnz)[0]
            return self.place.put(self.secure.mixed(links, kept, fetch(message)))
        weights, flat = self._weights(links), message.reshape(len(message), -1)
        if not (self.faults.loss or self.faults.late):
            return (self._mixing["placed"] @ flat).reshape(message.shape)
        in_time, late = self.faults.fates(turn, weights.nnz)
        if before is None or turn == 1:
            mixed = self.place.put_matrix(topologies.lose(weights, in_time)) @ flat
            return mixed.reshape(message.shape)
        fresh, stale = topologies.delay(weights, in_time, late)
        mixed = self.place.put_matrix(fresh) @ flat
        mixed += self.place.put_matrix(stale) @ before.reshape(flat.shape)
        return mixed.reshape(message.shape)

    def read(self, state: Any) -> Array:
        return self.strategy.read(state.state if self._keeps or self.defence is not None else state)


@dataclass(frozen=True)
class OverTree:
    """A message of its own to every neighbour on a spanning tree; the next one makes up for one that did not come."""

    strategy: Relay
    residual: Residual
    faults: Faults

    def begin(self, start: np.ndarray) -> Any:
        return self.strategy.begin(start)

    def advance(self, state: Any, turn: int) -> tuple[Any, np.ndarray]:
        state = self.strategy.adapt(state, self.residual)
        inbox = self.strategy.messages(state)
        if self.faults.loss or self.faults.late:
            xp = array_namespace(inbox)
            kept = xp.asarray(self.faults.fates(turn, len(inbox))[0], device=device(inbox))
            inbox = xp.where(kept[:, None, None], inbox, state.inbox)
        sent = np.bincount(self.strategy.tree.sender, minlength=self.strategy.tree.nodes)
        return self.strategy.hear(state, inbox), sent * float(state.own[0, ...].nbytes)

    def read(self, state: Any) -> np.ndarray:
        return self.strategy.read(state)


def unless_away(before: Any, after: Any, here: Array) -> Any:
    """The state after a round, but for peers that were away, or had nobody to hear because all others were."""

    if isinstance(after, tuple):
        parts = [unless_away(old, new, here) for old, new in zip(before, after, strict=True)]
        return type(after)(*parts) if hasattr(after, "_fields") else tuple(parts)
    return array_namespace(after).where(here.reshape(-1, *[1] * (after.ndim - 1)), after, before)
