"""Peers that learn together, one after the other in plain loops: a second opinion on how a network learns.

Written from the equations of the docstrings, with one matrix [C, K] for each peer, and without any code of peerbayes:
mixing weights from degrees, the spanning tree by a queue, distances by networkx, naive Bayes row by row. It keeps whole
histories instead of what a strategy remembers, is slow, and is right where it agrees.

    links     who is linked with whom in a round: a list of sets, the neighbours of each peer
    fates     of a round's messages: {(sender, receiver): "lost" or "late"}; a message that is not listed comes in time
"""

import math
from collections import deque

import networkx as nx
import numpy as np

# --- who hears whom ----------------------------------------------------------------------------------------


def links_of(matrix):
    """The neighbours of each peer, from a matrix [N, N] of 0 and 1, dense or sparse."""
    rows, columns = matrix.nonzero()
    links = [set() for _ in range(matrix.shape[0])]
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        links[row].add(column)
    return links


def without(links, away):
    """The links that are left when some peers are away."""
    return [set() if peer in away else around - away for peer, around in enumerate(links)]


def neighbour_mean(links):
    """a_vu = 1/deg_v for neighbours, 0 for oneself; without neighbours all to oneself."""
    return [
        {other: 1 / len(around) for other in around} if around else {peer: 1.0}
        for peer, around in enumerate(links)
    ]


def closed_mean(links):
    """a_vu = 1/(1 + deg_v) for neighbours and oneself."""
    return [{other: 1 / (1 + len(around)) for other in {peer, *around}} for peer, around in enumerate(links)]


def metropolis(links):
    """a_vu = 1/(1 + max(deg_v, deg_u)), what is left to oneself."""
    return [
        completed(peer, {other: 1 / (1 + max(len(around), len(links[other]))) for other in around})
        for peer, around in enumerate(links)
    ]


def stable(links):
    """Metropolis weights times min(1, 1.303/max(m_v, m_u)): d_v = Σ_u w_vu, m_v = max_u (d_v + d_u)."""
    plain = metropolis(links)
    sums = [sum(plain[peer][other] for other in around) for peer, around in enumerate(links)]
    most = [
        max((sums[peer] + sums[other] for other in around), default=0.0) for peer, around in enumerate(links)
    ]
    return [
        completed(
            peer,
            {other: plain[peer][other] * min(1.0, 1.303 / max(most[peer], most[other])) for other in around},
        )
        for peer, around in enumerate(links)
    ]


def completed(peer, weights):
    return {**weights, peer: 1.0 - sum(weights.values())}


MIXING = {
    "neighbour_mean": neighbour_mean,
    "closed_mean": closed_mean,
    "metropolis": metropolis,
    "stable": stable,
}


def in_order(weights):
    """Every message (sender, receiver) that has a weight, as the entries of a CSR matrix: the diagonal is one too."""
    return [(sender, receiver) for receiver, row in enumerate(weights) for sender in sorted(row)]


# --- one round ---------------------------------------------------------------------------------------------


def heard(peer, weights, messages, before, fates):
    """Σ_u a_vu message_u. A late message is that of the round before, if there is one and it is of use; the weight of
    one that does not come goes to the peer's own."""
    total = np.zeros_like(messages[peer])
    for sender, weight in weights[peer].items():
        fate = None if sender == peer else fates.get((sender, peer))
        if fate is None:
            message = messages[sender]
        elif fate == "late" and before is not None:
            message = before[sender]
        else:
            message = messages[peer]
        total = total + weight * message
    return total


class Network:
    """Peers that send the same message to every neighbour."""

    def __init__(self, peers, mixing, takes_old):
        self.peers, self.mixing, self.takes_old = peers, mixing, takes_old
        self.before = None
        self.sent = [0.0] * len(peers)

    def advance(self, links, fates=None, absences=False, weights=None):
        """One round. With `absences`, a peer without any link is away, or has nobody left, and waits.

        weights: of another network, that all agreed on before; None: of these links.
        """
        messages = [peer.message() for peer in self.peers]
        if self.mixing == "none":  # who needs nobody goes on, away or not
            for peer, message in zip(self.peers, messages, strict=True):
                peer.learn(message)
            return
        weights = weights or MIXING[self.mixing](links)
        mixed = [heard(peer, weights, messages, self.before, fates or {}) for peer in range(len(self.peers))]
        for number, peer in enumerate(self.peers):
            self.sent[number] += len(links[number]) * 8.0 * messages[number].size
            if links[number] or not absences:
                peer.learn(mixed[number])
        if self.takes_old:
            self.before = messages

    def messages(self):
        return np.stack([peer.message() for peer in self.peers])

    def models(self):
        return np.stack([peer.model() for peer in self.peers])


# --- strategies, one peer's side ---------------------------------------------------------------------------


class Crc:
    """S = S̄ + R(S̄)."""

    def __init__(self, start, residual):
        self.stats, self.residual = start, residual

    def message(self):
        return self.stats

    def model(self):
        return self.stats

    def learn(self, mixed):
        self.stats = mixed + self.residual(mixed)


class Local(Crc):
    """S = S + R(S)."""

    def learn(self, mixed):
        self.stats = self.stats + self.residual(self.stats)


class Consensus(Crc):
    """S = S̄."""

    def learn(self, mixed):
        self.stats = mixed


class Dsgd(Crc):
    """W = W̄ + rate·R(W̄)."""

    def __init__(self, start, residual, rate):
        super().__init__(start, residual)
        self.rate = rate

    def learn(self, mixed):
        self.stats = mixed + self.rate * self.residual(mixed)


class Exact:
    """ψ = S + b·R(S); φ = ψ + ρ(S − ψ of the round before); S = Σ a φ. The model is the mean of the last S."""

    def __init__(self, start, residual, rounds, memory=1.0, averaged=None):
        usual = max(1, min(6, rounds // 8))
        self.window = usual if averaged is None else max(1, averaged)
        self.boost = rounds / (rounds - (self.window - 1) / 2)
        self.memory, self.start, self.residual = memory, start, residual
        self.stats = []
        self.adapted = [start + self.boost * residual(start)]
        self.sent = self.adapted[0]

    def message(self):
        return self.sent

    def model(self):
        last = self.stats[-self.window :]
        return sum(last) / len(last) if last else self.start

    def learn(self, mixed):
        self.stats.append(mixed)
        self.adapted.append(mixed + self.boost * self.residual(mixed))
        self.sent = self.adapted[-1] + self.memory * (mixed - self.adapted[-2])


class Tracking:
    """S = Σ a (S + G); G = Σ a G + R(S) − R(S of the round before); at first G = R(S)."""

    def __init__(self, start, residual):
        self.stats, self.residual = start, residual
        self.change = residual(start)
        self.track = self.change

    def message(self):
        return np.array([self.stats + self.track, self.track])

    def model(self):
        return self.stats

    def learn(self, mixed):
        before = self.change
        self.stats = mixed[0]
        self.change = self.residual(self.stats)
        self.track = mixed[1] + self.change - before


# --- exact under losses on one side ------------------------------------------------------------------------


class End:
    """What a peer knows of one of its links."""

    def __init__(self, like):
        self.pull = np.zeros_like(like)  # d, which should be the other end's with the opposite sign
        self.silent = 0  # rounds since the other end was heard
        self.losses = []  # rounds in which a message was lost here, or there as far as the other end told


class LinkedExact:
    """d = d + w(φ_u − φ_v), and S = φ + Σ (d − d before); φ = S + σ(b·R(S) + Σ d), σ the share of links that are up.

    After three silent rounds or more, d takes 0.4 of the difference, and S all of it.
    """

    def __init__(self, start, residual, rounds):
        self.plain = Exact(start, residual, rounds)
        self.ends = {}

    def message(self):
        return self.plain.sent

    def model(self):
        return self.plain.model()


class LinkedNetwork(Network):
    """Peers of a fixed network that send their d beside a message for three rounds after a loss that they know of."""

    def __init__(self, peers, mixing):
        super().__init__(peers, mixing, takes_old=False)
        self.round = 0

    def advance(self, links, fates=None, absences=False, weights=None):
        self.round += 1
        weights, fates = MIXING[self.mixing](links), fates or {}
        messages = [peer.message() for peer in self.peers]
        for peer, around in zip(self.peers, links, strict=True):
            for other in around:
                peer.ends.setdefault(other, End(messages[0]))
        told = [
            {other: ([t for t, mine in end.losses if mine], end.pull, self._recent(end))
             for other, end in peer.ends.items()} for peer in self.peers
        ]  # fmt: skip
        for number, (peer, around) in enumerate(zip(self.peers, links, strict=True)):
            self.sent[number] += (
                8.0
                * messages[number].size
                * (len(around) + sum(attached for *_, attached in told[number].values()))
            )
            moved = np.zeros_like(messages[number])
            for other in around:
                end, before = peer.ends[other], peer.ends[other].pull
                if (other, number) in fates:
                    end.silent += 1
                    end.losses.append((self.round, True))
                    if end.silent >= 3:
                        end.pull = 0.99 * before
                else:
                    losses, theirs, attached = told[other][number]
                    taken = 0.4 if end.silent >= 3 else 1.0
                    end.silent = 0
                    end.losses += [(t, False) for t in losses[-1:]]
                    if attached:
                        end.pull = (before - theirs) / 2
                    difference = weights[number][other] * (messages[other] - messages[number])
                    end.pull = end.pull + taken * difference
                    moved = moved + (1.0 - taken) * difference
                moved = moved + end.pull - before
            self._learn(peer, number, weights[number], messages[number] + moved)

    def _recent(self, end):
        return any(self.round - lost <= 3 for lost, _ in end.losses)

    def _learn(self, peer, number, weights, mixed):
        plain, others = peer.plain, sum(weights[other] for other in peer.ends)
        up = sum(weights[other] for other, end in peer.ends.items() if end.silent < 3) / others
        plain.stats.append(mixed)
        whole = sum((end.pull for end in peer.ends.values()), np.zeros_like(mixed))
        plain.sent = mixed + up * (plain.boost * plain.residual(mixed) + whole)


# --- relay -------------------------------------------------------------------------------------------------


def breadth_first_tree(links):
    """The neighbours of each peer on the breadth-first tree from peer 0, lower numbers first."""
    branches = [set() for _ in links]
    reached, waiting = {0}, deque([0])
    while waiting:
        parent = waiting.popleft()
        for child in sorted(links[parent]):
            if child not in reached:
                reached.add(child)
                branches[parent].add(child)
                waiting.append(child)
    return branches


def tree_links(branches):
    """Both directions of a tree's branches: the neighbours of each peer."""
    links = [set(children) for children in branches]
    for parent, children in enumerate(branches):
        for child in children:
            links[child].add(parent)
    return links


def distances(links):
    """Hops between all peers: [N, N]."""
    graph = nx.Graph()
    graph.add_nodes_from(range(len(links)))
    graph.add_edges_from((peer, other) for peer, around in enumerate(links) for other in around)
    lengths = dict(nx.all_pairs_shortest_path_length(graph))
    return [[lengths[peer][other] for other in range(len(links))] for peer in range(len(links))]


class RelayPeer:
    """A message of its own to every neighbour on the tree, and the sum of what has come in."""

    def __init__(self, start, residual, neighbours, hops, farthest, boost, share=0.1):
        """hops: to every peer of the network; farthest: most hops between any two; share: κ at first."""
        self.start, self.residual, self.boost = start, residual, boost
        self.hops, self.farthest = hops, farthest
        self.cumulated = np.zeros_like(start)  # A
        self.inbox = {neighbour: np.zeros_like(start) for neighbour in neighbours}  # M
        self.totals = [np.zeros_like(start)]  # G after every round
        self.lasting = np.zeros_like(start)  # r̄
        self.excesses = []  # R − r̄ of every round
        self.share = share  # κ
        self.motion, self.lowest, self.highest = 0.0, math.inf, 0.0
        self.raised = self.held_back = self.at_limit = 0

    def adapt(self):
        """A += b·R(S + κP), P the sum of R − r̄ of j rounds ago times the share of peers more than j hops away."""
        reflex = np.zeros_like(self.start)
        for age, excess in enumerate(reversed(self.excesses)):
            reflex = reflex + sum(hops > age for hops in self.hops) / len(self.hops) * excess
        self.change = self.boost * self.residual(self.model() + self.share * reflex)
        self.cumulated = self.cumulated + self.change

    def message_to(self, neighbour):
        return self.cumulated + sum(
            (matrix for sender, matrix in self.inbox.items() if sender != neighbour),
            np.zeros_like(self.start),
        )

    def hear(self, arrived, done):
        """Take in the messages {sender: matrix} of a round; done: how many rounds the network has had with it."""
        self.inbox.update(arrived)
        self.totals.append(self.cumulated + sum(self.inbox.values(), np.zeros_like(self.start)))
        network = (self.totals[-1] - self.totals[-2]) / len(self.hops)
        if done > 1:
            self.lasting = self.lasting + 0.2 * (self.change - network - self.lasting)
        self.excesses.append(self.change - self.lasting)
        self.motion = 0.6 * self.motion + 0.4 * math.sqrt(sum(entry**2 for entry in network.flat))
        self.highest = max(self.highest, self.motion)
        if done >= 4 + self.farthest / 2:
            self._guard()

    def _guard(self):
        if self.motion > 1.25 * self.lowest:
            if self.motion > 0.5 * self.highest:
                self.raised += 1
                self.at_limit += self.share + 0.1 > 0.6
                self.share = max(self.share, min(0.6, self.share + 0.1))
            else:
                self.held_back += 1
        self.lowest = min(self.lowest, self.motion)

    def model(self):
        return self.start + self.totals[-1] / len(self.hops)


class RelayNetwork:
    """Peers that relay over the breadth-first tree of a fixed network."""

    def __init__(self, starts, residuals, links, rounds, share=0.1):
        branches = breadth_first_tree(links)
        self.links = tree_links(branches)
        hops = distances(self.links)
        mean = sum(map(sum, hops)) / len(hops) ** 2
        self.boost = min(1.2, rounds / max(1.0, rounds - mean))
        farthest = max(1, max(map(max, hops)))
        self.peers = [
            RelayPeer(start, residual, self.links[peer], hops[peer], farthest, self.boost, share)
            for peer, (start, residual) in enumerate(zip(starts, residuals, strict=True))
        ]
        downwards = [(parent, child) for parent in range(len(links)) for child in sorted(branches[parent])]
        self.order = downwards + [(child, parent) for parent, child in downwards]
        self.sent = [0.0] * len(links)
        self.done = 0

    def advance(self, fates=None, waiting=()):
        """One round; a link whose message is lost or late keeps its last matrix, and who is waiting does nothing."""
        self.done += 1
        present = [peer for peer in range(len(self.peers)) if peer not in waiting]
        for peer in present:
            self.peers[peer].adapt()
        arrived = [{} for _ in self.peers]
        for sender, receiver in self.order:
            if sender in waiting or receiver in waiting:
                continue
            self.sent[sender] += 8.0 * self.peers[sender].start.size
            if not fates or (sender, receiver) not in fates:
                arrived[receiver][sender] = self.peers[sender].message_to(receiver)
        for peer in present:
            self.peers[peer].hear(arrived[peer], self.done)

    def models(self):
        return np.stack([peer.model() for peer in self.peers])


def link_facts(residuals, variances, links):
    """F = Σ ‖R_v − R_u‖² / Σ (w_v + w_u) over links, each once, and ρ = 2 Σ ⟨R_v, R_u⟩ / Σ (‖R_v‖² + ‖R_u‖²)."""
    apart = within = common = size = 0.0
    for peer, around in enumerate(links):
        for other in around:
            if peer < other:
                apart += float(np.sum((residuals[peer] - residuals[other]) ** 2))
                within += variances[peer] + variances[other]
                common += 2.0 * float(np.vdot(residuals[peer], residuals[other]))
                size += float(
                    np.vdot(residuals[peer], residuals[peer]) + np.vdot(residuals[other], residuals[other])
                )
    return apart / within, max(0.0, common / size)


# --- agreeing on a mean ------------------------------------------------------------------------------------


def gossip(links_of_rounds, starts, accelerated):
    """Every peer's estimate of the mean after the rounds whose links are listed.

    Accelerated, on a fixed network: x_{k+1} = ω(W x_k − x_{k−1}) + x_{k−1} with Chebyshev's ω.
    """
    now, before, omega = list(starts), None, 1.0
    for number, links in enumerate(links_of_rounds, start=1):
        weights = metropolis(links)
        averaged = [heard(peer, weights, now, None, {}) for peer in range(len(now))]
        if accelerated and number > 1:
            omega = 1 / (1 - second_modulus(weights) ** 2 * (1 / 2 if number == 2 else omega / 4))
            averaged = [omega * (new - old) + old for new, old in zip(averaged, before, strict=True)]
        now, before = averaged, now
    return now


def second_modulus(weights):
    """The second largest modulus of an eigenvalue of symmetric weights."""
    dense = np.zeros((len(weights), len(weights)))
    for peer, row in enumerate(weights):
        for other, weight in row.items():
            dense[peer, other] = weight
    return float(np.sort(np.abs(np.linalg.eigvalsh(dense)))[-2]) if len(weights) > 1 else 0.0


# --- what a seed draws -------------------------------------------------------------------------------------


def drawn_fates(order, seed, round_number, loss, late):
    """A number for each message in its order: below `loss` it is lost, and of the others a share `late` is late."""
    fates = {}
    numbers = np.random.default_rng([seed, 3, round_number]).random(len(order))
    for message, number in zip(order, numbers, strict=True):
        if number < loss:
            fates[message] = "lost"
        elif number < loss + (1 - loss) * late:
            fates[message] = "late"
    return fates


def drawn_absences(nodes, seed, round_number, down):
    """The peers that are away in a round."""
    numbers = np.random.default_rng([seed, round_number, 1]).random(nodes)
    return {peer for peer in range(nodes) if numbers[peer] < down}


# --- naive Bayes, row by row -------------------------------------------------------------------------------


class NaiveBayes:
    """φ(x) = [1 | x | x² | one-hots], and a posterior from densities and tables, with calibration's floors."""

    count_floor, variance_floor = 1e-4, 0.05

    def __init__(self, columns, cardinalities, classes):
        self.columns, self.cardinalities, self.classes = columns, cardinalities, classes

    @property
    def size(self):
        return 1 + 2 * self.columns + sum(self.cardinalities)

    def features(self, row):
        """φ of (values, codes): [K]."""
        values, codes = row
        cells = [
            float(code == level)
            for code, levels in zip(codes, self.cardinalities, strict=True)
            for level in range(levels)
        ]
        return [1.0, *values, *(value * value for value in values), *cells]

    def uniform(self, mass):
        """S⁰ of so many rows: equal classes and cells, mean 0 and variance 1."""
        cells = [1 / levels for levels in self.cardinalities for _ in range(levels)]
        row = [1.0, *[0.0] * self.columns, *[1.0] * self.columns, *cells]
        return np.array([[mass / self.classes * entry for entry in row]] * self.classes)

    def statistics(self, rows, labels, weight):
        """Σ_i y_i φ(x_i)ᵀ."""
        stats = np.zeros((self.classes, self.size))
        for row, label in zip(rows, labels, strict=True):
            stats[label] += weight * np.array(self.features(row))
        return stats

    def log_joints(self, stats, rows):
        """log p(x, c) under θ(S), of each row and class."""
        stats = stats / np.abs(stats).max()
        counts = stats[:, 0].tolist()
        floor = sum(max(count, 0.0) for count in counts) * self.count_floor / self.classes
        held = [max(count, floor) for count in counts]
        joints = [[math.log(count / sum(held)) for count in held] for _ in rows]
        for c in range(self.classes):
            lacking = max(0.0, floor - max(counts[c], 0.0))
            for j in range(self.columns):
                mean = min(max(stats[c, 1 + j] / held[c], -1e6), 1e6)
                square = (stats[c, 1 + self.columns + j] + lacking) / held[c]
                variance = max(square - mean * mean, self.variance_floor)
                for joint, (values, _) in zip(joints, rows, strict=True):
                    joint[c] -= 0.5 * (math.log(2 * math.pi * variance) + (values[j] - mean) ** 2 / variance)
            first = 1 + 2 * self.columns
            for j, levels in enumerate(self.cardinalities):
                cells = [max(stats[c, first + level], floor / levels) for level in range(levels)]
                for joint, (_, codes) in zip(joints, rows, strict=True):
                    joint[c] += math.log(cells[codes[j]] / sum(cells))
                first += levels
        return joints

    def linear(self, weights, rows):
        """⟨W_c, φ(x)⟩ of each row and class."""
        return [
            [
                sum(entry * feature for entry, feature in zip(row, phi, strict=True))
                for row in weights.tolist()
            ]
            for phi in map(self.features, rows)
        ]

    def residual(self, rows, labels, weight=1.0, of_weights=False):
        """S (or W) -> Σ_i weight·(y_i − p(·|x_i)) φ(x_i)ᵀ."""

        def change(stats):
            joints = (self.linear if of_weights else self.log_joints)(stats, rows)
            total = np.zeros((self.classes, self.size))
            for row, label, joint in zip(rows, labels, joints, strict=True):
                top = max(joint)
                masses = [math.exp(entry - top) for entry in joint]
                phi = np.array(self.features(row))
                for c in range(self.classes):
                    total[c] += weight * (float(c == label) - masses[c] / sum(masses)) * phi
            return total

        return change


def several_steps(residual, steps):
    """What so many steps of S + R(S) change."""

    def change(stats):
        moved = stats
        for _ in range(steps):
            moved = moved + residual(moved)
        return moved - stats

    return change
