"""Possibly false messages between simulated peers: sent by attackers; checked, screened and clipped by the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from peerbayes import guard
from peerbayes.adaptive import Optimiser
from peerbayes.attacks import HONEST_CODE, Attack
from peerbayes.combining import combined
from peerbayes.core import Array
from peerbayes.invariants import REASONS, Invariants
from peerbayes.places import Place, fetch
from peerbayes.topologies import Churn, Schedule
from peerbayes.topologies.links import only, row_sums, rows_of

# Values of `robust` in `simulate`: by the mixing weights, clipped, or clipped and guarded.
ROBUST = (None, "clip", "guard")
STRATEGIES = ("exact", "crc")

# W of messages [M, C, K], receivers [E], senders [E] -> soft errors on the receivers' own rows [E].
SoftErrors = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class Watched(NamedTuple):
    """A strategy's state, the strikes on each link and the rejected messages."""

    state: Any
    strikes: np.ndarray  # [E] on each link; empty without a guard
    rejected: np.ndarray  # [5] messages that were refused, as in `REASONS`


@dataclass(frozen=True, eq=False)
class Defence:
    """How peers treat messages that may be false.

    rule        "mean" or "clip": see `combining`
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

    def begin(self, state: Any, network: Schedule) -> Watched:
        links = _settled_links(network) if self.soft is not None else None
        return Watched(state, np.zeros(0 if links is None else links.nnz), np.zeros(len(REASONS)))

    def mixed(
        self,
        watched: Watched,
        network: Schedule,
        mixing: csr_array,
        arrived: np.ndarray,
        message: Array,
        round_index: int,
        device: Place,
    ) -> tuple[Array, Watched]:
        """Return each peer's mix of the messages it accepts [N, C, K], and the state with strikes and rejections.

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
        if self.soft is not None:
            heard, strikes = self._screened(
                strikes, network, mixing, messages, message_index, heard, round_index
            )
        weights = csr_array(
            (mixing.data[heard], message_index[heard], only(mixing, heard).indptr),
            shape=(len(message), len(messages)),
        )
        self_weights = row_sums(mixing) - row_sums(weights)
        peers = np.arange(self_weights.size)
        weights = csr_array(weights + csr_array((self_weights, (peers, peers)), shape=weights.shape))
        weights = combined(self.rule, weights, messages)
        mixed = (weights @ messages.reshape(len(messages), -1)).reshape(message.shape)
        return device.put(self.invariants.settled(mixed)), Watched(watched.state, strikes, rejected)

    def _worst_messages(
        self, watched: Watched, network: Schedule, mixing: csr_array, honest: np.ndarray, round_index: int
    ) -> Callable[[np.ndarray], np.ndarray] | None:
        """Return the function that finds the most harmful message to each victim; None without an optimiser."""
        if self.optimiser is None:
            return None
        cut = np.zeros(mixing.nnz, dtype=bool)
        if self.soft is not None:
            links, between_peers = _settled_links(network), rows_of(mixing) != mixing.indices
            cut[between_peers] = guard.cut(watched.strikes, links)[
                guard.positions(links, only(mixing, between_peers))
            ]
        return self.optimiser.worst(honest, self.attackers, mixing, cut, round_index)

    def _screened(
        self,
        strikes: np.ndarray,
        network: Schedule,
        mixing: csr_array,
        messages: np.ndarray,
        message_index: np.ndarray,
        heard: np.ndarray,
        round_index: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return which messages are still heard, and the strikes. Attackers that lie strike nobody."""
        assert self.soft is not None
        links, receivers = _settled_links(network), rows_of(mixing)
        between_peers = receivers != mixing.indices
        link_index = np.zeros(mixing.nnz, dtype=np.int64)  # the index of each entry among the network's links
        link_index[between_peers] = guard.positions(links, only(mixing, between_peers))
        heard = heard & ~guard.cut(strikes, links)[link_index]
        errors = np.zeros(mixing.nnz)
        errors[heard] = self.soft(np.asarray(self.theta(messages)), receivers[heard], message_index[heard])
        struck, doubted = np.zeros(mixing.nnz, dtype=bool), np.zeros(mixing.nnz, dtype=bool)
        nodes = len(mixing.indptr) - 1
        struck[heard] = guard.strikes(errors[heard], receivers[heard], nodes, messages.shape[1], round_index)
        doubted[heard] = guard.left_out(errors[heard], receivers[heard], nodes, round_index)
        if self.attack is not None and self.attack.kind not in HONEST_CODE:
            lying = np.isin(receivers, self.attackers)
            struck, doubted = struck & ~lying, doubted & ~lying
        strikes = strikes.copy()
        strikes[link_index[struck]] += 1
        return heard & ~struck & ~doubted & ~guard.cut(strikes, links)[link_index], strikes


def _settled_links(network: Schedule) -> csr_array:
    """Return all links of the network over time: strikes are counted on them."""
    base = network.base if isinstance(network, Churn) else network
    if not base.static:
        raise ValueError("a guard counts strikes on links, and this network is drawn anew; use robust='clip'")
    return base.at(1)
