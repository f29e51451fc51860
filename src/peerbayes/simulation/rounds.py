"""One round of a strategy over a network, with and without a defence against liars."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from array_api_compat import array_namespace, device
from scipy.sparse import csr_array

from peerbayes import network as topologies
from peerbayes.data.table import Array
from peerbayes.learning.corrections import Corrections, Linked, Received, after_round
from peerbayes.learning.few_bytes import (
    correction_bytes,
    exchanges_of,
    is_last_exchange,
    link_bytes,
    message_bytes,
    missed_in_a_row,
    rounded_corrections,
)
from peerbayes.learning.integer_sums import SecureSums
from peerbayes.learning.planning import mixing_weights, silent
from peerbayes.learning.relay import Relay, Tree
from peerbayes.learning.robust import rules
from peerbayes.learning.robust.attacks import HONEST_CODE, Attack
from peerbayes.learning.robust.invariants import REASONS, Invariants
from peerbayes.learning.robust.optimised import Optimiser
from peerbayes.learning.robust.rules import link_weights
from peerbayes.learning.strategies import Residual, Strategy
from peerbayes.learning.tree_sum import TreeSum
from peerbayes.model.devices import Device, fetch
from peerbayes.model.families import Family
from peerbayes.network import Schedule, without_absences
from peerbayes.network.mixing import only, row_sums, rows_of
from peerbayes.simulation.faults import Faults, unless_away

# --- possibly false messages between simulated peers: sent by attackers; checked, screened and clipped by the others

# Values of `robust` in `simulate`: by the mixing weights, clipped, or clipped and guarded.
ROBUST = (None, "clip", "guard")

# W of messages [M, C, K], receivers [E], senders [E] -> soft errors on the receivers' own rows [E].
SoftErrors = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class Watched(NamedTuple):
    """A strategy's state, the strikes on each link and the rejected messages."""

    state: Any
    strikes: np.ndarray  # [E] on each link; empty without a guard
    rejected: np.ndarray  # [5] messages that were refused, as in `REASONS`


class Screened(NamedTuple):
    """What receivers make of the messages of a round, for each stored entry of the mixing matrix."""

    messages: np.ndarray  # [M, C, K] all that were sent, first the receivers' own
    message_index: np.ndarray  # [entries] which of them came over the link
    weights: np.ndarray  # [entries] their weights, by the rule; 0: not accepted
    heard: np.ndarray  # [entries] which are accepted
    cut: np.ndarray  # [entries] whose senders are heard no more
    after: Any = None  # the state with strikes and rejections, where there is a defence

    @classmethod
    def of(cls, messages: np.ndarray, mixing: csr_array, heard: np.ndarray) -> Screened:
        """Return messages [N, C, K] that are accepted wherever they are heard [entries]."""
        weights = np.where(heard, mixing.data, 0.0)
        return cls(messages, mixing.indices, weights, heard, np.zeros_like(heard))

    def pulls(self, ends: LinkEnds) -> np.ndarray:
        """Return a_vu(φ_u − φ_v) of each link, 0 where nothing is accepted: [E, C, K]."""
        pulls = self.messages[self.message_index[ends.entries]]
        pulls -= self.messages[ends.receivers]
        pulls *= self.weights[ends.entries].astype(pulls.dtype)[:, None, None]
        pulls[~self.heard[ends.entries]] = 0.0  # also of messages that are no numbers
        return pulls

    def mixed(self, mixing: csr_array) -> np.ndarray:
        """Return each peer's mix; the remaining weight goes to itself: [N, C, K]."""
        peers, heard = np.arange(mixing.shape[0]), self.heard
        links = csr_array(
            (self.weights[heard], self.message_index[heard], only(mixing, heard).indptr),
            shape=(len(peers), len(self.messages)),
        )
        rest = row_sums(mixing) - row_sums(links)
        weights = csr_array(links + csr_array((rest, (peers, peers)), shape=links.shape))
        mix = weights @ self.messages.reshape(len(self.messages), -1)
        return mix.reshape(len(peers), *self.messages.shape[1:]).astype(self.messages.dtype, copy=False)


@dataclass(frozen=True, eq=False)
class Defence:
    """How peers treat messages that may be false.

    rule        "mean" or "clip": see `robust.rules`
    invariants  what honest messages obey; others are refused, and their weight goes to the receiver
    attack      the kind of attack; None: there is none
    attackers   the indices of the attackers
    seed        of the attackers' random numbers
    soft        soft errors of neighbours' models, for a guard; None: there is no guard
    theta       θ of the family, for a guard
    optimiser   for attacks of the kind "optimise"; None: there is no such attack
    """

    rule: str
    invariants: Invariants
    attack: Attack | None
    attackers: np.ndarray
    seed: int
    soft: SoftErrors | None
    theta: Callable[[Array], Array]
    optimiser: Optimiser | None = None

    @property
    def believes_corrections(self) -> bool:
        """Whether neighbours' corrections of links are believed: not where messages may be false."""
        return self.rule == "mean" and self.soft is None

    def begin(self, state: Any, network: Schedule) -> Watched:
        links = _settled_links(network) if self.soft is not None else None
        return Watched(state, np.zeros(0 if links is None else links.nnz), np.zeros(len(REASONS)))

    def screened(
        self,
        watched: Watched,
        network: Schedule,
        mixing: csr_array,
        arrived: np.ndarray,
        message: Array,
        round_index: int,
    ) -> Screened:
        """Return the messages that each peer accepts, their weights, and the state with strikes and rejections.

        mixing   [N, N] the weights of this round's links
        arrived  [E] which messages arrived, one for each stored entry
        message  [N, C, K] the honest message of every peer
        """
        messages = np.array(fetch(message), dtype=np.float64)
        message_index = mixing.indices.astype(np.int64)
        if self.attack is not None:
            worst = self._worst_messages(watched, network, mixing, messages, round_index)
            messages, message_index = self.attack.messages(
                messages, self.attackers, mixing, self.invariants, self.seed, round_index, worst
            )
        receivers = rows_of(mixing)
        links = receivers != mixing.indices
        reasons = self.invariants.reasons(messages, round_index)[message_index]
        refused = links & arrived & (reasons >= 0)
        rejected = watched.rejected + np.bincount(reasons[refused], minlength=len(REASONS))
        heard, strikes = links & arrived & ~refused, watched.strikes
        cut = np.zeros(mixing.nnz, dtype=bool)
        if self.soft is not None:
            heard, cut, strikes = self._judged(
                strikes, network, mixing, messages, message_index, heard, round_index
            )
        weights = np.zeros(mixing.nnz)
        weights[heard] = link_weights(
            self.rule, mixing.data[heard], messages, receivers[heard], message_index[heard]
        )
        after = Watched(watched.state, strikes, rejected)
        return Screened(messages, message_index, weights, heard, cut, after)

    def _worst_messages(
        self, watched: Watched, network: Schedule, mixing: csr_array, honest: np.ndarray, round_index: int
    ) -> Callable[[np.ndarray], np.ndarray] | None:
        """Return the function that finds the most harmful message to each victim; None without an optimiser."""
        if self.optimiser is None:
            return None
        cut = np.zeros(mixing.nnz, dtype=bool)
        if self.soft is not None:
            links, between_peers = _settled_links(network), rows_of(mixing) != mixing.indices
            cut[between_peers] = rules.cut(watched.strikes, links)[
                rules.positions(links, only(mixing, between_peers))
            ]
        return self.optimiser.worst(honest, self.attackers, mixing, cut, round_index)

    def _judged(
        self,
        strikes: np.ndarray,
        network: Schedule,
        mixing: csr_array,
        messages: np.ndarray,
        message_index: np.ndarray,
        heard: np.ndarray,
        round_index: int,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return which messages are still heard, which links are cut, and the strikes. Liars strike nobody."""
        assert self.soft is not None
        links, receivers = _settled_links(network), rows_of(mixing)
        between_peers = receivers != mixing.indices
        link_index = np.zeros(mixing.nnz, dtype=np.int64)  # the index of each entry among the network's links
        link_index[between_peers] = rules.positions(links, only(mixing, between_peers))
        heard = heard & ~rules.cut(strikes, links)[link_index]
        errors = np.zeros(mixing.nnz)
        errors[heard] = self.soft(np.asarray(self.theta(messages)), receivers[heard], message_index[heard])
        struck, doubted = np.zeros(mixing.nnz, dtype=bool), np.zeros(mixing.nnz, dtype=bool)
        peer_count = len(mixing.indptr) - 1
        struck[heard] = rules.strikes(
            errors[heard], receivers[heard], peer_count, messages.shape[1], round_index
        )
        doubted[heard] = rules.left_out(errors[heard], receivers[heard], peer_count, round_index)
        if self.attack is not None and self.attack.kind not in HONEST_CODE:
            lying = np.isin(receivers, self.attackers)
            struck, doubted = struck & ~lying, doubted & ~lying
        strikes = strikes.copy()
        strikes[link_index[struck]] += 1
        cut = between_peers & rules.cut(strikes, links)[link_index]
        return heard & ~struck & ~doubted & ~cut, cut, strikes


def _settled_links(network: Schedule) -> csr_array:
    """Return all links of a fixed network, with those of absent peers: strikes are counted on them."""
    return without_absences(network).at(1)


# --- one round of messages between all peers: mixing, lost and late messages, absent peers


class Rounds(Protocol):
    """A strategy over a network: its initial state, a round, and the statistics it has learned."""

    def begin(self, start: np.ndarray) -> Any: ...
    def advance(self, state: Any, round_index: int) -> tuple[Any, np.ndarray]:
        """Return the state after a round, and the bytes that each peer sent."""

    def read(self, state: Any) -> Array: ...


class Late(NamedTuple):
    """A strategy's state, and the messages of the previous round, for links that lag."""

    state: Any
    message: Array


@dataclass(frozen=True, eq=False)
class LinkEnds:
    """The directed links of a fixed network, in the order of its mixing matrix's entries."""

    entries: np.ndarray  # [entries] which entries of the matrix are links
    receivers: np.ndarray  # [E]
    senders: np.ndarray  # [E]
    weights: np.ndarray  # [E]
    other: np.ndarray  # [E] the index of the same link in the other direction
    of_peers: csr_array  # [N, E] 1 where a link ends

    @classmethod
    def of(cls, mixing: csr_array) -> LinkEnds:
        """Return the links of symmetric mixing weights [N, N]."""
        entries = rows_of(mixing) != mixing.indices
        links = only(mixing, entries)
        receivers, index = rows_of(links), np.arange(links.nnz)
        ends = csr_array((np.ones(links.nnz), (receivers, index)), shape=(mixing.shape[0], links.nnz))
        return cls(entries, receivers, links.indices, links.data, rules.opposite(links), ends)

    def share_up(self, up: np.ndarray, gone: np.ndarray) -> np.ndarray | None:
        """Return the share of each peer's weight whose links are up, [N]; None: all of it. See `corrections`."""
        if (up | gone).all():
            return None
        total, lasting = (
            self.summed(np.where(gone, 0.0, self.weights)),
            np.where(up & ~gone, self.weights, 0.0),
        )
        return np.divide(self.summed(lasting), total, out=np.ones_like(total), where=total > 0)

    def summed(self, values: np.ndarray, links: np.ndarray | None = None) -> np.ndarray:
        """Return the sum over each receiver's links, or over some of them: [E, …] -> [N, …]."""
        ends = self.of_peers if links is None else self.of_peers[:, links]
        total = ends @ values.reshape(len(values), math.prod(values.shape[1:]))
        return total.reshape(-1, *values.shape[1:]).astype(values.dtype, copy=False)


@dataclass(frozen=True, eq=False)
class Broadcast:
    """Send the same message to every neighbour; the weight of a missing message goes to the receiver itself."""

    strategy: Strategy
    network: topologies.Schedule
    residual: Residual
    faults: Faults
    device: Device
    secure: SecureSums | None = None
    """Messages are summed in fixed point, all of a receiver's or none of them."""
    defence: Defence | None = None
    """The defence against false messages; None: all are accepted."""
    by_link: bool = False
    """Whether corrections are kept for each link of a fixed network, so that losses and liars leave nothing behind."""
    _mixing: dict[str, Any] = field(default_factory=dict, repr=False)

    def begin(self, start: Array) -> Any:
        state = self.strategy.begin(start, self.residual)
        if self._stores_messages:
            return Late(state, self.strategy.message(state))
        if self.defence is not None:
            state = self.defence.begin(state, self.network)
        return (
            Linked(state, Corrections.begin(len(self._link_ends.senders), start)) if self.by_link else state
        )

    @property
    def _stores_messages(self) -> bool:
        """Whether the messages of the previous round are stored: links lag, and the strategy takes old messages."""
        plain = self.secure is None and self.defence is None
        return bool(self.faults.late) and self.strategy.takes_old and plain

    def advance(self, state: Any, round_index: int) -> tuple[Any, np.ndarray]:
        if self.by_link:
            return self._advance_by_link(state, round_index)
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
        peer_count = len(message)
        if silent(self.strategy):
            after = self.strategy.step(state, message, self.residual)
            return self.faults.stays(round_index, state, after), np.zeros(peer_count)
        links = self.network.at(round_index)
        mixed = self._mixed(links, round_index, message, previous)
        return self._learned(state, round_index, message, mixed)

    def _defended(self, watched: Any, round_index: int, defence: Defence) -> tuple[Any, np.ndarray]:
        """Return the state after a round in which messages may be false, and the bytes that each peer sent."""
        links, message = self.network.at(round_index), self.strategy.message(watched.state)
        weights = self._weights(links)
        arrived = self.faults.of_entries(round_index, weights)[0]
        screened = defence.screened(watched, self.network, weights, arrived, message, round_index)
        mixed = self.device.put(defence.invariants.settled(screened.mixed(weights)))
        state, sent = self._learned(watched.state, round_index, message, mixed)
        return screened.after._replace(state=state), sent

    def _advance_by_link(self, state: Linked, round_index: int) -> tuple[Linked, np.ndarray]:
        """Return the state after a round with corrections by link, and the bytes that each peer sent."""
        ends, before, defence = self._link_ends, state.links, self.defence
        learned = state.state if defence is None else state.state.state
        message, weights = self.strategy.message(learned), self._weights(self.network.at(round_index))
        arrived = self.faults.of_entries(round_index, weights)[0]
        if defence is None:
            screened = Screened.of(fetch(message), weights, arrived & ends.entries)
        else:
            screened = defence.screened(state.state, self.network, weights, arrived, message, round_index)
        believed = defence is None or defence.believes_corrections
        attaches = believed and is_last_exchange(self.strategy, learned)
        attached = before.recent(exchanges_of(self.strategy)) & attaches
        gone = screened.cut[ends.entries]
        repairs, pulls = np.flatnonzero(attached[ends.other]), screened.pulls(ends)
        mixed = screened.messages[: len(message)] + ends.summed(pulls)
        received = Received(
            screened.heard[ends.entries], pulls, repairs,
            rounded_corrections(self.strategy, before.values[ends.other[repairs]]), before.missed[ends.other], gone,
        )  # fmt: skip
        strategy: Any = self.strategy
        links, added, late = after_round(
            before, received, getattr(strategy, "memory", 1.0), exchanges_of(strategy)
        )
        mixed += ends.summed(added.values, added.links)
        mixed = self.device.put(mixed if defence is None else defence.invariants.settled(mixed))
        share = ends.share_up(links.up, gone) if believed else None
        begun = learned
        if late.links.size:
            begun = strategy.uncorrected(learned, self.device.put(ends.summed(late.values, late.links)))
        after = strategy.step(begun, mixed, self.residual, None if share is None else self.device.put(share))
        after = self.faults.stays(round_index, learned, after)
        links = self.faults.stays(round_index, before, links, ends.receivers)
        after = after if defence is None else screened.after._replace(state=after)
        corrections = ends.summed(attached * correction_bytes(self.strategy, message[0, ...]))
        sent = self._bytes(round_index, message) + corrections
        return Linked(after, links), self.faults.sent(round_index, sent)

    @cached_property
    def _link_ends(self) -> LinkEnds:
        return LinkEnds.of(self._weights(self.network.at(1)))

    def _learned(self, state: Any, round_index: int, message: Array, mixed: Array) -> tuple[Any, np.ndarray]:
        """Return the state after a round, and the bytes that each peer sent."""
        after = self.strategy.step(state, mixed, self.residual)
        if isinstance(self.network, topologies.Churn):
            degrees = np.diff(self.network.at(round_index).indptr)
            after = unless_away(state, after, self.device.put(degrees) > 0)
        after = self.faults.stays(round_index, state, after)
        return after, self.faults.sent(round_index, self._bytes(round_index, message))

    def _bytes(self, round_index: int, message: Array) -> np.ndarray:
        """Return the bytes that each peer sends in a round: [N]; more to neighbours that lack the message before."""
        links, matrix = self.network.at(round_index), message[0, ...]
        each, full = message_bytes(self.strategy, matrix), float(matrix.nbytes)
        degrees = np.diff(links.indptr)
        if each == full or (self.network.static and not self.faults.occur):
            return degrees * each
        if self.network.static:
            weights = self._weights(links)
            missed = missed_in_a_row(
                round_index, lambda earlier: self.faults.of_entries(earlier, weights)[0], int(full // each)
            )
            sent = np.broadcast_to(link_bytes(self.strategy, matrix, missed), weights.indices.shape)
            between = rows_of(weights) != weights.indices
            return np.bincount(weights.indices[between], sent[between], minlength=len(message))
        fresh = links if round_index == 1 else links.multiply(self._heard(round_index - 1))
        informed = np.bincount(csr_array(fresh).indices, minlength=len(message))
        return informed * each + (degrees - informed) * full

    def _heard(self, round_index: int) -> csr_array:
        """Return who heard whom in a round of a network that changes: [N, N] of 0 and 1, receivers first."""
        weights = mixing_weights(self.strategy, self.network.at(round_index))
        arrived = self.faults.of_entries(round_index, weights)[0].astype(float)
        heard = csr_array((arrived, weights.indices, weights.indptr), shape=weights.shape)
        heard.eliminate_zeros()
        return heard

    def _weights(self, links: csr_array) -> csr_array:
        """Return the mixing weights: [N, N]."""
        if self._mixing.get("links") is not links:
            weights = mixing_weights(self.strategy, links)
            self._mixing.update(links=links, weights=weights, placed=self.device.put_matrix(weights))
        return self._mixing["weights"]

    def _mixed(self, links: csr_array, round_index: int, message: Array, previous: Array | None) -> Array:
        """Return Σ_u a_vu message_u over the messages that arrived: [N, …]."""
        if self.secure is not None:
            delivered = self.faults.of_entries(round_index, self.secure.weights)[0]
            return self.device.put(self.secure.mixed(links, delivered, fetch(message)))
        weights, flat = self._weights(links), message.reshape(len(message), -1)
        if not self.faults.occur:
            return (self._mixing["placed"] @ flat).reshape(message.shape)
        in_time, late = self.faults.of_entries(round_index, weights)
        if previous is None or round_index == 1:
            mixed = self.device.put_matrix(topologies.lose(weights, in_time)) @ flat
            return mixed.reshape(message.shape)
        fresh, stale = topologies.delay(weights, in_time, late)
        mixed = self.device.put_matrix(fresh) @ flat
        mixed += self.device.put_matrix(stale) @ previous.reshape(flat.shape)
        return mixed.reshape(message.shape)

    def read(self, state: Any) -> Array:
        for wrapped in (self._stores_messages, self.by_link, self.defence is not None):
            state = state.state if wrapped else state
        return self.strategy.read(state)


@dataclass(frozen=True)
class BySums:
    """Add up what all peers tell along a spanning tree; nobody goes on before everybody has the sum."""

    strategy: TreeSum
    terms: Callable[[np.ndarray], np.ndarray]
    """S [1, C, K] -> what each peer adds: [N, C·K + 1]."""
    family: Family
    faults: Faults
    tree: Tree

    def begin(self, start: np.ndarray) -> Any:
        return self.strategy.begin(np.array(start[:1], dtype=np.float64))

    def advance(self, state: Any, round_index: int) -> tuple[Any, np.ndarray]:
        if self.faults.gone(round_index).size:  # no sum is completed any more
            return state, np.zeros(self.tree.nodes)
        terms = self.terms(state.trial)
        sent = np.ones(len(self.tree.sender))
        if self.faults.occur:  # what is lost is asked for again
            sent += ~self.faults.fates(round_index, self.tree.sender, self.tree.receiver)[0]
        each = np.bincount(self.tree.sender, sent, minlength=self.tree.nodes)
        after = self.strategy.step(state, terms.sum(axis=0), self.family.weights, self.family.conditioned)
        return after, each * 8.0 * terms.shape[1]

    def read(self, state: Any) -> np.ndarray:
        stats = self.strategy.read(state)
        return np.broadcast_to(stats, (self.tree.nodes, *stats.shape[1:]))  # all have the same


@dataclass(frozen=True)
class OverTree:
    """Send each neighbour on a spanning tree its own message; the next one makes up for one that was lost."""

    strategy: Relay
    residual: Residual
    faults: Faults
    network: topologies.Schedule | None = None
    """Who is absent in which round; None: nobody."""

    def begin(self, start: np.ndarray) -> Any:
        return self.strategy.begin(start)

    def advance(self, state: Any, round_index: int) -> tuple[Any, np.ndarray]:
        tree, adapted = self.strategy.tree, self.strategy.adapt(state, self.residual)
        inbox = self.strategy.messages(adapted)
        present = self.faults.present(round_index) if self.faults.kinds else np.ones(tree.nodes, dtype=bool)
        if isinstance(self.network, topologies.Churn):
            present &= np.diff(self.network.at(round_index).indptr) > 0
        sent = present[tree.sender] & present[tree.receiver]
        delivered = sent
        if self.faults.occur:
            delivered = sent & self.faults.fates(round_index, tree.sender, tree.receiver)[0]
        if not delivered.all():
            xp = array_namespace(inbox)
            arrived = xp.asarray(delivered, device=device(inbox))
            inbox = xp.where(arrived[:, None, None], inbox, state.inbox)
        after = self.strategy.hear(adapted, inbox)
        if not present.all():  # the inbox is by link, and the number of rounds the same for all
            before, learned = (
                values._replace(inbox=(), rounds_done=(), shown=()) for values in (state, after)
            )
            merged = unless_away(before, learned, self.strategy.device.put(present) > 0)
            after = merged._replace(inbox=inbox, rounds_done=after.rounds_done, shown=after.shown)
        return after, self._bytes(round_index, sent, state.accumulated[0, ...])

    def _bytes(self, round_index: int, sent: np.ndarray, matrix: Array) -> np.ndarray:
        """Return the bytes that each peer sends on the links [E] in use: [N]; more where the last message was lost."""
        tree, missed = self.strategy.tree, np.zeros(1, dtype=np.int64)
        if self.faults.occur:
            most = int(matrix.nbytes // message_bytes(self.strategy, matrix))
            missed = missed_in_a_row(
                round_index, lambda earlier: self.faults.fates(earlier, tree.sender, tree.receiver)[0], most
            )
        each = np.broadcast_to(link_bytes(self.strategy, matrix, missed), sent.shape)
        return np.bincount(tree.sender[sent], each[sent], minlength=tree.nodes)

    def read(self, state: Any) -> np.ndarray:
        return self.strategy.read(state)
