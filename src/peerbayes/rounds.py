"""One round of messages between all peers: mixing, lost and late messages, absent peers."""

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

LOSS_STREAM = 3  # separates the faults of a round from other random numbers of the same seed


class Rounds(Protocol):
    """A strategy over a network: its initial state, a round, and the statistics it has learned."""

    def begin(self, start: np.ndarray) -> Any: ...
    def advance(self, state: Any, round_index: int) -> tuple[Any, np.ndarray]:
        """Return the state after a round, and the bytes that each peer sent."""

    def read(self, state: Any) -> Array: ...


@dataclass(frozen=True)
class Faults:
    """Lost and late messages, drawn independently for each message and round.

    A message is lost with probability `loss`; otherwise, with probability `late`, its link lags: the message of the
    previous round arrives instead, and in the first round none. A strategy that cannot use an old message goes on
    without it.
    """

    loss: float
    seed: int
    late: float = 0.0

    def fates(self, round_index: int, messages: int) -> tuple[np.ndarray, np.ndarray]:
        """Return which links deliver the message of this round, and which that of the last: two [E] of booleans."""
        draws = np.random.default_rng([self.seed, LOSS_STREAM, round_index]).random(messages)
        in_time = draws >= self.loss + (1.0 - self.loss) * self.late
        return in_time, (draws >= self.loss) & ~in_time


class Late(NamedTuple):
    """A strategy's state, and the messages of the previous round, for links that lag."""

    state: Any
    message: Array


@dataclass(frozen=True, eq=False)
class Broadcast:
    """Send the same message to every neighbour; the weight of a missing message goes to the receiver itself."""

    strategy: Strategy
    network: topologies.Schedule
    residual: Residual
    faults: Faults
    place: Place
    secure: SecureSums | None = None
    """Messages are summed in fixed point, all of a receiver's or none of them."""
    defence: Defence | None = None
    """The defence against false messages; None: all are accepted."""
    _mixing: dict[str, Any] = field(default_factory=dict, repr=False)

    def begin(self, start: Array) -> Any:
        state = self.strategy.begin(start, self.residual)
        if self.defence is not None:
            return self.defence.begin(state, self.network)
        return Late(state, self.strategy.message(state)) if self._stores_messages else state

    @property
    def _stores_messages(self) -> bool:
        """Whether the messages of the previous round are stored: links lag, and the strategy takes old messages."""
        return bool(self.faults.late) and self.strategy.takes_old and self.secure is None

    def advance(self, state: Any, round_index: int) -> tuple[Any, np.ndarray]:
        if self.defence is not None:
            return self._defended(state, round_index, self.defence)
        if not self._stores_messages:
            return self._stepped(state, round_index, self.strategy.message(state), None)
        message = self.strategy.message(state.state)
        after, sent = self._stepped(state.state, round_index, message, state.message)
        return Late(after, message), sent

    def _stepped(
        self, state: Any, round_index: int, message: Array, previous: Array | None
    ) -> tuple[Any, np.ndarray]:
        nodes = len(message)
        if self.strategy.mixing == "none":
            return self.strategy.step(state, message, self.residual), np.zeros(nodes)
        links = self.network.at(round_index)
        return self._learned(state, links, message, self._mixed(links, round_index, message, previous))

    def _defended(self, watched: Any, round_index: int, defence: Defence) -> tuple[Any, np.ndarray]:
        """Return the state after a round in which messages may be false, and the bytes that each peer sent."""
        links, message = self.network.at(round_index), self.strategy.message(watched.state)
        weights = self._weights(links)
        arrived = self.faults.fates(round_index, weights.nnz)[0]
        mixed, after = defence.mixed(
            watched, self.network, weights, arrived, message, round_index, self.place
        )
        state, sent = self._learned(watched.state, links, message, mixed)
        return after._replace(state=state), sent

    def _learned(self, state: Any, links: csr_array, message: Array, mixed: Array) -> tuple[Any, np.ndarray]:
        """Return the state after a round, and the bytes that each peer sent."""
        after = self.strategy.step(state, mixed, self.residual)
        degrees = np.diff(links.indptr)
        if isinstance(self.network, topologies.Churn):
            after = unless_away(state, after, self.place.put(degrees) > 0)
        return after, degrees * float(message[0, ...].nbytes)

    def _weights(self, links: csr_array) -> csr_array:
        """Return the mixing weights: [N, N]."""
        if self._mixing.get("links") is not links:
            weights = getattr(topologies, self.strategy.mixing)(links)
            self._mixing.update(links=links, weights=weights, placed=self.place.put_matrix(weights))
        return self._mixing["weights"]

    def _mixed(self, links: csr_array, round_index: int, message: Array, previous: Array | None) -> Array:
        """Return Σ_u a_vu message_u over the messages that arrived: [N, …]."""
        if self.secure is not None:
            delivered = self.faults.fates(round_index, self.secure.weights.nnz)[0]
            return self.place.put(self.secure.mixed(links, delivered, fetch(message)))
        weights, flat = self._weights(links), message.reshape(len(message), -1)
        if not (self.faults.loss or self.faults.late):
            return (self._mixing["placed"] @ flat).reshape(message.shape)
        in_time, late = self.faults.fates(round_index, weights.nnz)
        if previous is None or round_index == 1:
            mixed = self.place.put_matrix(topologies.lose(weights, in_time)) @ flat
            return mixed.reshape(message.shape)
        fresh, stale = topologies.delay(weights, in_time, late)
        mixed = self.place.put_matrix(fresh) @ flat
        mixed += self.place.put_matrix(stale) @ previous.reshape(flat.shape)
        return mixed.reshape(message.shape)

    def read(self, state: Any) -> Array:
        return self.strategy.read(state.state if self._stores_messages or self.defence is not None else state)


@dataclass(frozen=True)
class OverTree:
    """Send each neighbour on a spanning tree its own message; the next one makes up for one that was lost."""

    strategy: Relay
    residual: Residual
    faults: Faults

    def begin(self, start: np.ndarray) -> Any:
        return self.strategy.begin(start)

    def advance(self, state: Any, round_index: int) -> tuple[Any, np.ndarray]:
        state = self.strategy.adapt(state, self.residual)
        inbox = self.strategy.messages(state)
        if self.faults.loss or self.faults.late:
            xp = array_namespace(inbox)
            delivered = xp.asarray(self.faults.fates(round_index, len(inbox))[0], device=device(inbox))
            inbox = xp.where(delivered[:, None, None], inbox, state.inbox)
        sent = np.bincount(self.strategy.tree.sender, minlength=self.strategy.tree.nodes)
        return self.strategy.hear(state, inbox), sent * float(state.accumulated[0, ...].nbytes)

    def read(self, state: Any) -> np.ndarray:
        return self.strategy.read(state)


def unless_away(before: Any, after: Any, present: Array) -> Any:
    """Return the state after a round; peers without a link in it (`present` false) keep their state before."""
    if isinstance(after, tuple):
        merged = [unless_away(old, new, present) for old, new in zip(before, after, strict=True)]
        return type(after)(*merged) if hasattr(after, "_fields") else tuple(merged)
    return array_namespace(after).where(present.reshape(-1, *[1] * (after.ndim - 1)), after, before)
