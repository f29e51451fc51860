"""The strategy `relay`: exact, delayed sums over a spanning tree, one matrix per neighbour per round.

    A_v += R                                own residuals so far, R = b·R_v(S_v + κ_v P_v)
    M_{v→u} = A_v + Σ_{w≠u} M_{w→v}          to each tree neighbour u: all that lies behind v, seen from u
    G_v = A_v + Σ_w M_{w→v}                  = Σ_u A_u(t − distance): exact weights, only delay
    S_v = S⁰ + G_v / n

Nothing is averaged twice, so a lost message is only a delay, and on a fixed network with differing data no mixing
time is paid. Delay in a feedback loop can oscillate; two things damp it. The reflex

    P_v = Σ_j q_v(j)·(R − r̄_v)(j rounds ago),   q_v(j) the share of peers more than j hops away,

stands for what the others must be doing meanwhile, judged by v's own rows less its lasting difference r̄_v from the
network. And the guard raises κ_v where the network's residual grows again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.sparse import csgraph, csr_array

from peerbayes.strategies import Residual

# How fast r̄ follows, how the guard's average of ‖R̂‖ forgets, when it acts, and how far κ goes.
FOLLOW, FORGET, GROWTH, FIRST_SHARE, SHARE_STEP, LARGEST_SHARE = 0.2, 0.6, 1.25, 0.1, 0.1, 0.6

# b makes up for the mean delay, but not for more than this.
LARGEST_BOOST = 1.2

# Above this ratio of differences between neighbours to differences within peers, peers' data differ: `relay` fits.
DIFFERENT = 1.5


class Tree(NamedTuple):
    """A spanning tree as directed links, and how far peers are from each other on it."""

    sender: np.ndarray  # [E]
    receiver: np.ndarray  # [E]
    reverse: np.ndarray  # [E] the link the other way round
    beyond: np.ndarray  # [N, D] q_v(j): the share of peers more than j hops from v
    mean_distance: float

    @property
    def nodes(self) -> int:
        return len(self.beyond)


def spanning_tree(adjacency: csr_array) -> Tree:
    """The breadth-first tree from node 0: [N, N] -> 2(N − 1) directed links."""
    nodes = adjacency.shape[0]
    branches = csgraph.breadth_first_tree(adjacency, 0, directed=False).tocoo()
    parent, child = branches.row, branches.col
    sender, receiver = np.concatenate([parent, child]), np.concatenate([child, parent])
    half = len(parent)
    reverse = np.concatenate([np.arange(half) + half, np.arange(half)])
    links = csr_array((np.ones(2 * half), (receiver, sender)), shape=(nodes, nodes))
    hops = csgraph.shortest_path(links, unweighted=True)
    farthest = int(hops.max()) if nodes > 1 else 0
    beyond = np.stack([(hops > j).mean(axis=1) for j in range(max(1, farthest))], axis=1)
    return Tree(sender, receiver, reverse, beyond, float(hops.mean()))


class RelayState(NamedTuple):
    """What `Relay` remembers, for all peers."""

    start: np.ndarray  # [N, C, K] S⁰
    own: np.ndarray  # [N, C, K] A
    inbox: np.ndarray  # [E, C, K] the last matrix on each link
    total: np.ndarray  # [N, C, K] G
    lasting: np.ndarray  # [N, C, K] r̄
    recent: np.ndarray  # [N, D, C, K] R − r̄ of the last rounds, the newest first
    share: np.ndarray  # [N] κ
    motion: np.ndarray  # [N] running average of ‖R̂‖
    least: np.ndarray  # [N] its minimum so far
    turn: np.ndarray  # [] rounds done


@dataclass(frozen=True)
class Relay:
    """Exact delayed sums over a spanning tree of a fixed network."""

    name: ClassVar[str] = "relay"
    of_weights: ClassVar[bool] = False

    tree: Tree
    rounds: int = 64

    @property
    def boost(self) -> float:
        """b: all peers the same."""
        return min(LARGEST_BOOST, self.rounds / max(1.0, self.rounds - self.tree.mean_distance))

    def begin(self, start: np.ndarray) -> RelayState:
        zero = np.zeros_like(start)
        links, depth = len(self.tree.sender), self.tree.beyond.shape[1]
        peers = np.zeros(len(start))
        return RelayState(
            start,
            zero,
            np.zeros((links, *start.shape[1:])),
            zero,
            zero,
            np.zeros((len(start), depth, *start.shape[1:])),
            peers + FIRST_SHARE,
            peers,
            peers + np.inf,
            np.zeros(()),
        )

    def adapt(self, state: RelayState, residual: Residual) -> RelayState:
        """A += b·R(S + κP): what a peer does before it sends."""
        reflex = (state.recent * self.tree.beyond[:, :, None, None]).sum(axis=1)
        change = self.boost * residual(self.read(state) + state.share[:, None, None] * reflex)
        recent = np.concatenate([change[:, None], state.recent[:, :-1]], axis=1)  # less r̄, once it is known
        return state._replace(own=state.own + change, recent=recent)

    def messages(self, state: RelayState) -> np.ndarray:
        """M_{v→u} on every link: [E, C, K]."""
        behind = state.own + self._gathered(state.inbox)
        return behind[self.tree.sender] - state.inbox[self.tree.reverse]

    def hear(self, state: RelayState, inbox: np.ndarray) -> RelayState:
        """Take in what arrived; a link that stayed silent keeps its last matrix."""
        tree, turn = self.tree, float(state.turn) + 1
        total = state.own + self._gathered(inbox)
        network = (total - state.total) / tree.nodes
        change, lasting = state.recent[:, 0], state.lasting
        if turn > 1:
            lasting = lasting + FOLLOW * ((change - network) - lasting)
        recent = state.recent.copy()
        recent[:, 0] = change - lasting
        motion = FORGET * state.motion + (1 - FORGET) * np.sqrt((network**2).sum(axis=(1, 2)))
        least, share = state.least, state.share
        if turn >= 4 + tree.beyond.shape[1] / 2:
            share = np.where(motion > GROWTH * least, np.minimum(LARGEST_SHARE, share + SHARE_STEP), share)
            least = np.minimum(least, motion)
        return RelayState(
            state.start, state.own, inbox, total, lasting, recent, share, motion, least, np.asarray(turn)
        )

    def read(self, state: RelayState) -> np.ndarray:
        return state.start + state.total / self.tree.nodes

    def _gathered(self, inbox: np.ndarray) -> np.ndarray:
        """Σ over a peer's links of what came in: [E, C, K] -> [N, C, K]."""
        gathered = np.zeros((self.tree.nodes, *inbox.shape[1:]))
        np.add.at(gathered, self.tree.receiver, inbox)
        return gathered


def difference_ratio(
    features: np.ndarray, labels: np.ndarray, change: np.ndarray, posterior: np.ndarray, links: csr_array
) -> float:
    """F = Σ_links ‖R_v − R_u‖² / Σ_links (w_v + w_u), w_v the unbiased variance of R_v within the peer's rows.

    Φ [N, n, K], Y [N, n, C], R [N, C, K], P [N, n, C] at the common start. About 1 where peers' rows are drawn alike,
    well above where their data differ.
    """
    weight = labels.sum(axis=-1)
    rows = np.maximum((weight > 0).sum(axis=-1), 1)
    step = labels - weight[..., None] * posterior
    square = ((step**2).sum(axis=-1) * (features**2).sum(axis=-1)).sum(axis=-1)
    size = (change**2).sum(axis=(1, 2))
    within = np.where(rows > 1, rows / np.maximum(rows - 1, 1) * (square - size / rows), square)
    receiver, sender = links.nonzero()
    apart = ((change[receiver] - change[sender]) ** 2).sum(axis=(1, 2)).sum()
    return float(apart / max((within[receiver] + within[sender]).sum(), np.finfo(float).tiny))
