"""The strategy `relay`: exact, delayed sums over a spanning tree, one matrix per neighbour per round.

    A_v += R                                own residuals so far, R = b·R_v(S_v + κ_v P_v)
    M_{v→u} = A_v + Σ_{w≠u} M_{w→v}          to each tree neighbour u: all that lies behind v, seen from u
    G_v = A_v + Σ_w M_{w→v}                  = Σ_u A_u(t − distance): exact weights, only delay
    S_v = S⁰ + G_v / n

Nothing is averaged twice, so a lost message is only a delay, and on a fixed network with differing data no mixing
time is paid. Delay in a feedback loop can oscillate; two things damp it. The reflex

    P_v = Σ_j q_v(j)·(R − r̄_v)(j rounds ago),   q_v(j) the share of peers more than j hops away,

stands for what the others must be doing meanwhile, judged by v's own rows less its lasting difference r̄_v from the
network. And the guard raises κ_v where the network's residual grows again, and back to half of its highest: late in a
run, when little is left to learn, growth is noise, and the reflex would only lead away.

    R̂_v = (G_v − G_v of the last round) / n     the network's residual, as v hears of it
    r̄_v += 0.2·(R − R̂_v − r̄_v)                  from the second round on
    e_v = 0.6·e_v + 0.4·‖R̂_v‖                   how much moves
    κ_v = min(0.6, κ_v + 0.1)                   at first 0.1; from round 4 + D/2 on, D the largest distance on the tree,
                                                where e_v > 1.25·(its lowest since then) and e_v > 0.5·(its highest)
    b   = min(1.2, T/max(1, T − d))             d the mean distance, of a peer to itself too
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from array_api_compat import array_namespace
from scipy.sparse import csgraph, csr_array

from peerbayes import core
from peerbayes.core import Array
from peerbayes.places import HERE, Place
from peerbayes.strategies import Residual

# How fast r̄ follows, how the guard's average of ‖R̂‖ forgets, when it acts (beside the lowest and the highest so far),
# and how far κ goes.
FOLLOW, FORGET, GROWTH, OF_HIGHEST = 0.2, 0.6, 1.25, 0.5
FIRST_SHARE, SHARE_STEP, LARGEST_SHARE = 0.1, 0.1, 0.6

# b makes up for the mean delay, but not for more than this.
LARGEST_BOOST = 1.2

# Up to this share of the rounds as the mean distance between peers, delay costs less than mixing: `relay` fits.
NEAR = 1 / 9

# Above this ratio of differences between neighbours to differences within peers, peers' data differ: `relay` fits.
DIFFERENT = 1.5


# Entries of S that a loop over rounds takes at a time.
IN_CACHE = 1 << 15

# Distances between all pairs are held: 0.8 GB of float64.
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
        """What one peer sees of it, as a tree that `Relay` works on with a leading axis of one; and its neighbours.

        Its links are numbered in the neighbours' order: message k is to neighbour k, and so is inbox k from it.
        """
        neighbours = np.sort(self.sender[self.receiver == peer])
        none, links = np.zeros(neighbours.size, dtype=np.intp), np.arange(neighbours.size)
        return Tree(
            none, none, links, self.beyond[peer : peer + 1], self.mean_distance, self.nodes
        ), neighbours


def spanning_tree(adjacency: csr_array) -> Tree:
    """The breadth-first tree from node 0: [N, N] -> 2(N − 1) directed links.

    First those from parents to children, in the order of their numbers, then those the other way round.
    """
    nodes = adjacency.shape[0]
    if nodes > LARGEST_NETWORK:
        raise ValueError(
            f"relay knows the distances between all peers, and so takes up to {LARGEST_NETWORK:,} of them; here are "
            f"{nodes:,}. Use strategy='exact'"
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
    """What `Relay` remembers, for all peers."""

    start: Array  # [N, C, K] S⁰
    own: Array  # [N, C, K] A
    inbox: Array  # [E, C, K] the last matrix on each link
    total: Array  # [N, C, K] G
    lasting: Array  # [N, C, K] r̄
    recent: tuple[Array, ...]  # D × [N, C, K] R − r̄ of the last rounds, the newest first
    share: Array  # [N] κ
    motion: Array  # [N] running average of ‖R̂‖
    least: Array  # [N] its minimum so far, once the first wave is past
    highest: Array  # [N] its maximum so far
    turn: Array  # [] rounds done


@dataclass(frozen=True, eq=False)
class Relay:
    """Exact delayed sums over a spanning tree of a fixed network."""

    name: ClassVar[str] = "relay"
    of_weights: ClassVar[bool] = False

    tree: Tree
    rounds: int = 64
    place: Place = HERE

    @property
    def boost(self) -> float:
        """b: all peers the same."""
        return min(LARGEST_BOOST, self.rounds / max(1.0, self.rounds - self.tree.mean_distance))

    def begin(self, start: Array) -> RelayState:
        xp = array_namespace(start)
        links, depth = len(self.tree.sender), self.tree.beyond.shape[1]
        peers = xp.zeros_like(start[:, 0, 0])
        return RelayState(
            start=start,
            own=xp.zeros_like(start),
            inbox=self.place.put(np.zeros((links, *start.shape[1:]))),
            total=xp.zeros_like(start),
            lasting=xp.zeros_like(start),
            recent=(xp.zeros_like(start),) * depth,
            share=peers + FIRST_SHARE,
            motion=peers,
            least=peers + np.inf,
            highest=peers,
            turn=self.place.put(np.zeros(())),
        )

    def adapt(self, state: RelayState, residual: Residual) -> RelayState:
        """A += b·R(S + κP): what a peer does before it sends."""
        reflex = self._reflex(state.recent)
        change = self.boost * residual(self.read(state) + state.share[:, None, None] * reflex)
        return state._replace(
            own=state.own + change, recent=(change, *state.recent[:-1])
        )  # less r̄, once it is known

    def messages(self, state: RelayState) -> Array:
        """M_{v→u} on every link: [E, C, K]."""
        behind = state.own + self._gathered(state.inbox)
        return behind[self.tree.sender, ...] - state.inbox[self.tree.reverse, ...]

    def hear(self, state: RelayState, inbox: Array) -> RelayState:
        """Take in what arrived; a link that stayed silent keeps its last matrix."""
        xp, tree = array_namespace(inbox), self.tree
        turn = xp.asarray(state.turn + 1.0)
        total = state.own + self._gathered(inbox)
        network = (total - state.total) / tree.nodes
        change, lasting = state.recent[0], state.lasting
        if turn > 1:
            lasting = lasting + FOLLOW * ((change - network) - lasting)
        motion = FORGET * state.motion + (1 - FORGET) * xp.sqrt(xp.sum(network**2, axis=(1, 2)))
        least, share, highest = state.least, state.share, xp.maximum(state.highest, motion)
        if turn >= 4 + tree.beyond.shape[1] / 2:
            grows = (motion > GROWTH * least) & (motion > OF_HIGHEST * highest)
            share = xp.where(grows, xp.clip(share + SHARE_STEP, None, LARGEST_SHARE), share)
            least = xp.minimum(least, motion)
        recent = (change - lasting, *state.recent[1:])
        return RelayState(
            state.start, state.own, inbox, total, lasting, recent, share, motion, least, highest, turn
        )

    def read(self, state: RelayState) -> Array:
        return state.start + state.total / self.tree.nodes

    def _reflex(self, recent: tuple[Array, ...]) -> Array:
        """P_v = Σ_j q_v(j)·(R − r̄_v)(j rounds ago), a few peers at a time, which stay in cache: [N, C, K]."""
        xp, beyond = array_namespace(recent[0]), self._beyond[:, :, None, None]
        nodes, classes, size = recent[0].shape
        together = max(1, IN_CACHE // (classes * size)) if self.place.device is None else nodes
        parts = []
        for first in range(0, nodes, together):
            some = slice(first, first + together)
            total = recent[0][some, ...] * beyond[some, 0, ...]
            for age, change in enumerate(recent[1:], start=1):
                total += change[some, ...] * beyond[some, age, ...]
            parts.append(total)
        return xp.concat(parts)

    def _gathered(self, inbox: Array) -> Array:
        """Σ over a peer's links of what came in: [E, C, K] -> [N, C, K]."""
        links, classes, size = inbox.shape
        return (self._gathering @ inbox.reshape(links, classes * size)).reshape(-1, classes, size)

    @cached_property
    def _gathering(self) -> Any:
        """[N, E]: 1 where a link ends."""
        links = np.arange(len(self.tree.receiver))
        ones = csr_array(
            (np.ones(links.size), (self.tree.receiver, links)), shape=(len(self.tree.beyond), links.size)
        )
        return self.place.put_matrix(ones)

    @cached_property
    def _beyond(self) -> Array:
        return self.place.put(self.tree.beyond)


def first_residual(
    features: np.ndarray, labels: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """R_v at the common start, and w_v, its unbiased variance within the peer's rows: [..., C, K], [...].

    Φ [..., n, K], Y [..., n, C], W [..., C, K].
    """
    weight = labels.sum(axis=-1)
    rows = np.maximum((weight > 0).sum(axis=-1), 1)
    step = labels - weight[..., None] * core.posterior(features, weights)
    change = core.statistics(features, step)
    square = ((step**2).sum(axis=-1) * (features**2).sum(axis=-1)).sum(axis=-1)
    size = (change**2).sum(axis=(-2, -1))
    return change, np.where(rows > 1, rows / np.maximum(rows - 1, 1) * (square - size / rows), square)


def difference_ratio(change: np.ndarray, within: np.ndarray, links: csr_array) -> float:
    """F = Σ_links ‖R_v − R_u‖² / Σ_links (w_v + w_u), of the first residuals [N, C, K] and their variances [N].

    About 1 where peers' rows are drawn alike, well above where their data differ.
    """
    receiver, sender = links.nonzero()
    apart = sum(
        float(((change[v] - change[u]) ** 2).sum()) for v, u in zip(receiver, sender, strict=True) if v < u
    )
    return 2 * apart / max(float((within[receiver] + within[sender]).sum()), float(np.finfo(float).tiny))
