"""Messages between all simulated peers that may be false: said by attackers; checked, judged, clipped by the others."""

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

# What `simulate` takes: by the mixing weights, clipped, or clipped and guarded.
ROBUST = (None, "clip", "guard")
STRATEGIES = ("exact", "crc")

# W of messages [M, C, K], receivers [E], senders [E] -> soft errors on the receivers' own rows [E].
SoftErrors = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


class Watched(NamedTuple):
    """A strategy's state, and what peers hold against each other."""

    state: Any
    strikes: np.ndarray  # [E] on each link; none without a guard
    rejected: np.ndarray  # [5] messages that were refused, as in `REASONS`


@dataclass(frozen=True, eq=False)
class Defence:
    """What peers make of messages that may be false.

    rule       "mean" or "clip": see `combining`
    known      what honest messages obey; others are refused, and their weight goes to the receiver
    attack     what attackers say; None: there are none
    attackers  who they are
    seed       of the attackers' random numbers
    soft       soft errors of neighbours' models, for a guard; None: there is none
    theta      θ of the family, for a guard
    optimiser  what attackers of the kind "optimise" know; None: there are none of them
    """

    rule: str
    known: Invariants
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
        turn: int,
        place: Place,
    ) -> tuple[Array, Watched]:
        """What each peer makes of what it heard [N, C, K], and what is held against whom now.

        mixing   [N, N] the weights of this round's links
        arrived  [E] which messages came, one for each stored entry
        message  [N, C, K] what everybody would say if all were honest
        """
        said = np.array(fetch(message), dtype=np.float64)
        places = mixing.indices.astype(np.int64)
        if self.attack is not None:
            worst = self._worst(watched, network, mixing, said, turn)
            said, places = self.attack.messages(
                said, self.attackers, mixing, self.known, self.seed, turn, worst
            )
        receivers = rows_of(mixing)
        links = receivers != mixing.indices
        reasons = self.known.reasons(said, turn)[places]
        refused = links & arrived & (reasons >= 0)
        rejected = watched.rejected + np.bincount(reasons[refused], minlength=len(REASONS))
        heard, strikes = links & arrived & ~refused, watched.strikes
        if self.soft is not None:
            heard, strikes = self._judged(strikes, network, mixing, said, places, heard, turn)
        weights = csr_array(
            (mixing.data[heard], places[heard], only(mixing, heard).indptr), shape=(len(message), len(said))
        )
        own = row_sums(mixing) - row_sums(weights)
        every = np.arange(own.size)
        weights = csr_array(weights + csr_array((own, (every, every)), shape=weights.shape))
        weights = combined(self.rule, weights, said)
        mixed = (weights @ said.reshape(len(said), -1)).reshape(message.shape)
        return place.put(self.known.settled(mixed)), Watched(watched.state, strikes, rejected)

    def _worst(
        self, watched: Watched, network: Schedule, mixing: csr_array, honest: np.ndarray, turn: int
    ) -> Callable[[np.ndarray], np.ndarray] | None:
        """What does most harm to each victim, where attackers look for it."""
        if self.optimiser is None:
            return None
        cut = np.zeros(mixing.nnz, dtype=bool)
        if self.soft is not None:
            links, of_peers = _settled_links(network), rows_of(mixing) != mixing.indices
            cut[of_peers] = guard.cut(watched.strikes, links)[guard.places(links, only(mixing, of_peers))]
        return self.optimiser.worst(honest, self.attackers, mixing, cut, turn)

    def _judged(
        self,
        strikes: np.ndarray,
        network: Schedule,
        mixing: csr_array,
        said: np.ndarray,
        places: np.ndarray,
        heard: np.ndarray,
        turn: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Who is still heard, and the strikes. Attackers that lie strike nobody."""
        assert self.soft is not None
        links, receivers = _settled_links(network), rows_of(mixing)
        of_peers = receivers != mixing.indices
        at = np.zeros(mixing.nnz, dtype=np.int64)  # where each entry is among the network's links
        at[of_peers] = guard.places(links, only(mixing, of_peers))
        heard = heard & ~guard.cut(strikes, links)[at]
        errors = np.zeros(mixing.nnz)
        errors[heard] = self.soft(np.asarray(self.theta(said)), receivers[heard], places[heard])
        found, doubted = np.zeros(mixing.nnz, dtype=bool), np.zeros(mixing.nnz, dtype=bool)
        nodes = len(mixing.indptr) - 1
        found[heard] = guard.strikes(errors[heard], receivers[heard], nodes, said.shape[1], turn)
        doubted[heard] = guard.left_out(errors[heard], receivers[heard], nodes, turn)
        if self.attack is not None and self.attack.kind not in HONEST_CODE:
            lying = np.isin(receivers, self.attackers)
            found, doubted = found & ~lying, doubted & ~lying
        strikes = strikes.copy()
        strikes[at[found]] += 1
        return heard & ~found & ~doubted & ~guard.cut(strikes, links)[at], strikes


def _settled_links(network: Schedule) -> csr_array:
    """The links that there ever are: strikes are counted on them."""
    base = network.base if isinstance(network, Churn) else network
    if not base.static:
        raise ValueError("a guard counts strikes on links, and this network is drawn anew; use robust='clip'")
    return base.at(1)
