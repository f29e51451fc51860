"""The strategy `relay`: exact, delayed sums over a spanning tree, one matrix per neighbour per round.

    A_v += R                                local residuals so far, R = b·R_v(S_v + κ_v P_v)
    M_{v→u} = A_v + Σ_{w≠u} M_{w→v}          to each tree neighbour u: the sum over v's side of the tree
    G_v = A_v + Σ_w M_{w→v}                  = Σ_u A_u(t − distance): exact weights, only delay
    S_v = S⁰ + G_v / n

Nothing is averaged twice, so a lost message is only a delay, and on a fixed network with differing data no mixing
time is paid. Delay in a feedback loop can oscillate; two things damp it. The reflex

    P_v = Σ_j q_v(j)·(R − r̄_v)(j rounds ago),   q_v(j) the share of peers more than j hops away,

estimates the others' residuals that have not arrived yet, from v's own rows less its lasting difference r̄_v from the
network. Its share κ begins as ρ, the correlation of neighbours' first residuals (`choice.LinkSums`): of all multiples
of a peer's residual, ρ times it is nearest to another peer's. But with at least 0.1 where peers have fewer rows than
features: one step then fits all rows, and the loop needs damping. And the guard raises κ_v where the network's residual
grows again, and back to half of its highest: late in a run, when little is left to learn, growth is noise.

    R̂_v = (G_v − G_v of the last round) / n     the network's residual, as v receives it
    r̄_v += 0.2·(R − R̂_v − r̄_v)                  from the second round on
    e_v = 0.6·e_v + 0.4·‖R̂_v‖                   running average of the residual's norm
    κ_v = max(κ_v, min(0.6, κ_v + 0.1))         from round 4 + D/2 on, D the largest distance on the tree,
                                                where e_v > 1.25·(its lowest since then) and e_v > 0.5·(its highest)
    b   = min(1.2, T/max(1, T − d))             d the mean distance, of a peer to itself too

With several exchanges of messages in a round, sums travel as many hops in it, and distances count in rounds. Messages
may be rounded: on each link by what was last sent on it, see `few_bytes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from array_api_compat import array_namespace
from scipy.sparse import csgraph, csr_array

from peerbayes.data.table import Array
from peerbayes.learning.few_bytes import UNROUNDED, Rounding, exchange_count
from peerbayes.learning.strategies import Declaration, LearningSettings, NetworkFacts, Residual
from peerbayes.model.devices import NUMPY, Device

# How fast r̄ follows, how the guard's average of ‖R̂‖ forgets, when it acts (beside the lowest and the highest so far),
# and how far κ goes. κ begins with FIRST_SHARE where nothing may be measured, and at least so with few rows.
FOLLOW, FORGET, GROWTH, OF_HIGHEST = 0.2, 0.6, 1.25, 0.5
FIRST_SHARE, SHARE_STEP, LARGEST_SHARE = 0.1, 0.1, 0.6

# b makes up for the mean delay, but not for more than this.
LARGEST_BOOST = 1.2

# Above this ratio of differences between neighbours to differences within peers, peers' data differ: `relay` fits.
DIFFERENT = 1.5

# Entries of S that a loop over rounds takes at a time.
IN_CACHE = 1 << 15

# Distances between all pairs are stored: 0.8 GB of float64.
LARGEST_NETWORK = 10_000


class Tree(NamedTuple):
    """A spanning tree as directed links, and how far peers are from each other on it."""

    sender: np.ndarray  # [E]
    receiver: np.ndarray  # [E]
    reverse: np.ndarray  # [E] the link the other way round
    beyond: np.ndarray  # [N, D] q_v(j): the share of peers more than j hops from v
    mean_distance: float
    nodes: int

    def seen_from(self, peer: int) -> tuple[Tree, np.ndarray]:
        """Return one peer's view of the tree, for a `Relay` with a leading axis of one, and the peer's neighbours.

        Its links are numbered in the neighbours' order: message k is to neighbour k, and so is inbox k from it.
        """
        neighbours = np.sort(self.sender[self.receiver == peer])
        zeros, links = np.zeros(neighbours.size, dtype=np.intp), np.arange(neighbours.size)
        return Tree(
            zeros, zeros, links, self.beyond[peer : peer + 1], self.mean_distance, self.nodes
        ), neighbours


def spanning_tree(adjacency: csr_array) -> Tree:
    """Return the breadth-first tree from node 0: [N, N] -> 2(N − 1) directed links.

    First those from parents to children, in the order of their numbers, then those the other way round.
    """
    nodes = adjacency.shape[0]
    if nodes > LARGEST_NETWORK:
        raise ValueError(
            f"relay computes the distances between all peers, so it takes at most {LARGEST_NETWORK:,} of them; the "
            f"network has {nodes:,}. Use strategy='exact'"
        )
    branches = csgraph.breadth_first_tree(adjacency, 0, directed=False).tocoo()
    # Children of one parent come in an order that depends on the processor.
    order = np.lexsort((branches.col, branches.row))
    parent, child = branches.row[order], branches.col[order]
    sender, receiver = np.concatenate([parent, child]), np.concatenate([child, parent])
    half = len(parent)
    reverse = np.concatenate([np.arange(half) + half, np.arange(half)])
    links = csr_array((np.ones(2 * half), (receiver, sender)), shape=(nodes, nodes))
    hops = csgraph.shortest_path(links, unweighted=True)
    farthest = int(hops.max()) if nodes > 1 else 0
    beyond = np.stack([(hops > j).mean(axis=1) for j in range(max(1, farthest))], axis=1)
    return Tree(sender, receiver, reverse, beyond, float(hops.mean()), nodes)


class RelayState(NamedTuple):
    """The state of `Relay`, for all peers."""

    start: Array  # [N, C, K] S⁰
    accumulated: Array  # [N, C, K] A
    inbox: Array  # [E, C, K] the last matrix on each link
    total: Array  # [N, C, K] G
    lasting: Array  # [N, C, K] r̄
    recent: tuple[Array, ...]  # D × [N, C, K] R − r̄ of the last rounds, the newest first
    share: Array  # [N] κ
    motion: Array  # [N] running average of ‖R̂‖
    lowest: Array  # [N] its minimum so far, once the first wave is past
    highest: Array  # [N] its maximum so far
    rounds_done: Array  # [] exchanges of messages so far
    shown: Array | tuple[()]  # [E, C, K] the rounded message of each link; (): they are not rounded


@dataclass(frozen=True, eq=False)
class Relay:
    """Exact delayed sums over a spanning tree of a fixed network."""

    name: ClassVar[str] = "relay"
    of_weights: ClassVar[bool] = False
    declaration: ClassVar[Declaration] = Declaration(
        conserves=True, contains_start=False, summed=False, over_tree=True
    )

    tree: Tree
    rounds: int = 64
    device: Device = NUMPY
    exchanges: int = 1
    """Exchanges of messages in a round of learning."""
    rounding: Rounding = UNROUNDED
    """How the numbers of messages are rounded."""
    reflex: bool = True
    """Whether a peer estimates the others' residuals that have not arrived yet from its own rows."""
    first_share: float = FIRST_SHARE
    """κ at first."""

    @classmethod
    def missing(cls, settings: LearningSettings, facts: NetworkFacts) -> tuple[str, ...]:
        """Return ("difference",), measured together with ρ, unless rows are private."""
        return () if settings.private or facts.likeness is not None else ("difference",)

    @classmethod
    def planned(cls, settings: LearningSettings, facts: NetworkFacts) -> Relay:
        """Return the strategy of all peers over the network's spanning tree.

        Where sums travel several hops in a round, little is left to estimate, and from differing data it misleads.
        """
        if facts.tree is None:
            raise ValueError(
                "relay needs a fixed network, but this one changes; use strategy='exact' or 'auto'"
            )
        several = exchange_count(settings.messages, settings.exchanges) > 1
        similar = facts.difference is not None and facts.difference <= DIFFERENT
        least = FIRST_SHARE if facts.features > facts.rows / facts.peers else 0.0
        share = FIRST_SHARE if facts.likeness is None else max(least, facts.likeness)
        return cls(facts.tree(), settings.rounds, reflex=similar or not several, first_share=share)

    def on(self, device: Device) -> Relay:
        """Return the strategy with its arrays on a device."""
        return replace(self, device=device)

    def seen_from(self, peer: int) -> tuple[Relay, np.ndarray]:
        """Return one peer's view of the strategy, and the peer's neighbours on the tree: see `Tree.seen_from`."""
        tree, neighbours = self.tree.seen_from(peer)
        return replace(self, tree=tree), neighbours

    @property
    def boost(self) -> float:
        """b, the same for all peers."""
        distance = self.tree.mean_distance / self.exchanges
        return min(LARGEST_BOOST, self.rounds / max(1.0, self.rounds - distance))

    def begin(self, start: Array) -> RelayState:
        """Return the state before the first round, from S⁰ [N, C, K]."""
        xp = array_namespace(start)
        links, depth = len(self.tree.sender), self._beyond.shape[1] if self.reflex else 1
        inbox = self.device.put(np.zeros((links, *start.shape[1:])))
        peers = xp.zeros_like(start[:, 0, 0])
        return RelayState(
            start=start,
            accumulated=xp.zeros_like(start),
            inbox=inbox,
            total=xp.zeros_like(start),
            lasting=xp.zeros_like(start),
            recent=(xp.zeros_like(start),) * depth,
            share=peers + self.first_share,
            motion=peers,
            lowest=peers + np.inf,
            highest=peers,
            rounds_done=self.device.put(np.zeros(())),
            shown=() if self.rounding.form == "float64" else xp.zeros_like(inbox),
        )

    def adapt(self, state: RelayState, residual: Residual) -> RelayState:
        """Return the state before an exchange of messages; before the first of a round after A += b·R(S + κP)."""
        if state.rounds_done % self.exchanges == 0:
            stats = self.read(state)
            if self.reflex:
                stats = stats + state.share[:, None, None] * self._reflex(state.recent)
            change = self.boost * residual(stats)
            state = state._replace(
                accumulated=state.accumulated + change, recent=(change, *state.recent[:-1])
            )  # less r̄, once it is known
        if isinstance(state.shown, tuple):
            return state
        return state._replace(shown=self.rounding.shown(self._sums(state), state.shown))

    def messages(self, state: RelayState) -> Array:
        """Return M_{v→u} on every link, as it is sent: [E, C, K]."""
        return self._sums(state) if isinstance(state.shown, tuple) else state.shown

    def _sums(self, state: RelayState) -> Array:
        """Return M_{v→u} on every link: [E, C, K]."""
        behind = state.accumulated + self._gathered(state.inbox)
        sums = array_namespace(behind).empty_like(state.inbox)
        for links in self._blocks(sums):
            sums[links, ...] = behind[self.tree.sender[links], ...]
            sums[links, ...] -= state.inbox[self.tree.reverse[links], ...]
        return sums

    def hear(self, state: RelayState, inbox: Array) -> RelayState:
        """Return the state after receiving messages [E, C, K]; a silent link keeps its last matrix."""
        xp, tree = array_namespace(inbox), self.tree
        rounds_done = xp.asarray(state.rounds_done + 1.0)
        if rounds_done % self.exchanges:
            return state._replace(inbox=inbox, rounds_done=rounds_done)
        round_index = rounds_done / self.exchanges
        total = state.accumulated + self._gathered(inbox)
        network = (total - state.total) / tree.nodes
        change, lasting = state.recent[0], state.lasting
        if round_index > 1:
            lasting = lasting + FOLLOW * ((change - network) - lasting)
        motion = FORGET * state.motion + (1 - FORGET) * xp.sqrt(xp.sum(network**2, axis=(1, 2)))
        lowest, share, highest = state.lowest, state.share, xp.maximum(state.highest, motion)
        if round_index >= 4 + self._beyond.shape[1] / 2:
            grows = (motion > GROWTH * lowest) & (motion > OF_HIGHEST * highest)
            raised = xp.maximum(share, xp.clip(share + SHARE_STEP, None, LARGEST_SHARE))
            share = xp.where(grows, raised, share)
            lowest = xp.minimum(lowest, motion)
        recent = (change - lasting, *state.recent[1:])
        return RelayState(
            state.start,
            state.accumulated,
            inbox,
            total,
            lasting,
            recent,
            share,
            motion,
            lowest,
            highest,
            rounds_done,
            state.shown,
        )

    def read(self, state: RelayState) -> Array:
        """Return S = S⁰ + G/n: [N, C, K]."""
        return state.start + state.total / self.tree.nodes

    def _reflex(self, recent: tuple[Array, ...]) -> Array:
        """Return P_v = Σ_j q_v(j)·(R − r̄_v)(j rounds ago): [N, C, K]; blocks of peers stay in cache."""
        beyond, reflex = self._beyond[:, :, None, None], array_namespace(recent[0]).empty_like(recent[0])
        for block in self._blocks(reflex):
            total = recent[0][block, ...] * beyond[block, 0, ...]
            for age, change in enumerate(recent[1 : int(self._reach[block].max())], start=1):
                total += change[block, ...] * beyond[block, age, ...]
            reflex[block, ...] = total
        return reflex

    def _blocks(self, matrices: Array) -> Iterator[slice]:
        """Yield blocks of matrices [M, C, K] that stay in cache; on a device all at once."""
        count, classes, size = matrices.shape
        batch = max(1, IN_CACHE // (classes * size)) if self.device.name is None else max(1, count)
        return (slice(first, first + batch) for first in range(0, count, batch))

    def _gathered(self, inbox: Array) -> Array:
        """Return the sum of each peer's incoming messages: [E, C, K] -> [N, C, K]."""
        links, classes, size = inbox.shape
        return (self._incidence @ inbox.reshape(links, classes * size)).reshape(-1, classes, size)

    @cached_property
    def _incidence(self) -> Any:
        """The incidence matrix [N, E]: 1 where a link ends."""
        links = np.arange(len(self.tree.receiver))
        indicator = csr_array(
            (np.ones(links.size), (self.tree.receiver, links)), shape=(len(self.tree.beyond), links.size)
        )
        return self.device.put_matrix(indicator)

    @cached_property
    def _beyond(self) -> Array:
        """The share of peers farther than sums travel in j rounds: [N, D]."""
        return self.device.put(np.ascontiguousarray(self.tree.beyond[:, :: self.exchanges]))

    @cached_property
    def _reach(self) -> np.ndarray:
        """The rounds in which sums travel from each peer to all others: [N]; the share beyond is zero from then on."""
        return np.count_nonzero(self.tree.beyond[:, :: self.exchanges], axis=1)
