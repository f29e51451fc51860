"""Strategies, faults and mixing against a naive network, peer by peer, that shares no code with them."""

import math
from dataclasses import dataclass

import networkx as nx
import numpy as np
import pytest
from scipy.sparse import csr_array

import peerbayes as pb
from peerbayes import network as topologies
from peerbayes.learning import relay
from peerbayes.learning.choice import LinkSums, first_residual, link_sums
from peerbayes.learning.integer_sums import SecureSums
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.relay import Relay, spanning_tree
from peerbayes.learning.strategies import CRC, DSGD, ConsensusML, Exact, Local, Tracking
from peerbayes.model.devices import NUMPY
from peerbayes.network import schedules as gossip
from peerbayes.simulation import drivers
from peerbayes.simulation.faults import Faults
from peerbayes.simulation.rounds import Broadcast, Late, OverTree
from shared import naive_network as naive

CLASSES, FEATURES, ROUNDS = 3, 4, 12


def assert_close(actual, expected, of=None):
    """To 1e-12 of the largest value: some ten rounds of sums of a few terms, each exact to 1e-16 of them.

    of: what `expected` is a small difference of, if it is one.
    """
    largest = np.abs(expected if of is None else of).max()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12 * largest)


def smooth_residuals(peers, seed=0):
    """A nonlinear function of S for each peer, that draws towards a goal of its own: [C, K] -> [C, K]."""
    rng = np.random.default_rng(seed)
    residuals = []
    for _ in range(peers):
        goal, tilt = rng.normal(2.0, 3.0, (CLASSES, FEATURES)), rng.uniform(0.5, 2.0, (CLASSES, FEATURES))
        blend = rng.normal(0.0, 0.1, (CLASSES, CLASSES))
        residuals.append(
            lambda stats, goal=goal, tilt=tilt, blend=blend: (
                0.25 * (goal - stats)
                + blend @ np.sin(tilt * stats)
                + 0.02 * (stats - goal) ** 2 / (1 + stats**2)
            )
        )
    return residuals


def bayes_residuals(peers, seed=0):
    """R_v of naive Bayes from rows of each peer, and a start for all."""
    rng = np.random.default_rng(seed)
    family = naive.NaiveBayes(1, (2,), CLASSES)
    residuals = []
    for peer in range(peers):
        labels = rng.integers(0, CLASSES, 5 + peer % 3).tolist()
        rows = [
            ([float(rng.normal(label))], [int(rng.random() < 0.2 + 0.3 * (label == 1))]) for label in labels
        ]
        residuals.append(family.residual(rows, labels, weight=1.0 + 0.1 * peer))
    return residuals, family


def at_once(residuals):
    """The residuals of all peers as the strategies ask for them: [N, C, K] -> [N, C, K]."""
    return lambda stats: np.stack(
        [residual(matrix) for residual, matrix in zip(residuals, stats, strict=True)]
    )


def different_starts(peers, seed=1):
    return np.random.default_rng(seed).normal(3.0, 2.0, (peers, CLASSES, FEATURES))


# --- the same message to every neighbour -------------------------------------------------------------------

# A strategy of the package, and the same for one naive peer.
STRATEGIES = {
    "crc": (CRC(), naive.Crc),
    "crc with self": (CRC(with_self=True), naive.Crc),
    "tracking": (Tracking(), naive.Tracking),
    "local": (Local(), naive.Local),
    "consensus-ml": (ConsensusML(), naive.Consensus),
    "dsgd": (DSGD(rate=0.7), lambda start, residual: naive.Dsgd(start, residual, 0.7)),
    **{
        f"exact {settings}": (
            Exact(**settings),
            lambda start, residual, settings=settings: naive.Exact(start, residual, **settings),
        )
        for settings in (
            {"rounds": 4},
            {"rounds": 8},
            {"rounds": 24},
            {"rounds": 31},
            {"rounds": 64},
            {"rounds": 64, "memory": 0.97},
            {"rounds": 12, "memory": 0.5, "averaged": 0},
            {"rounds": 12, "averaged": 2},
            {"rounds": 40, "memory": 0.9, "averaged": 9},
            {"rounds": 20, "averaged": 30},  # more than there will be
        )
    },
}
MIXING = {
    "crc": "neighbour_mean", "crc with self": "closed_mean", "tracking": "metropolis", "local": "none",
    "consensus-ml": "metropolis", "dsgd": "metropolis", "exact": "stable",
}  # fmt: skip
TAKE_OLD = ("crc", "crc with self", "consensus-ml", "dsgd", "local")


def adjacency(edges, peers=7):
    matrix = np.zeros((peers, peers))
    for one, other in edges:
        matrix[one, other] = matrix[other, one] = 1
    return matrix


# Two halves that hear only each other, where `stable` makes weights smaller, and a tail, where it does not.
HALVES = adjacency([(0, 3), (0, 4), (1, 3), (1, 4), (2, 3), (2, 4), (2, 5), (5, 6)])

# Networks that fall apart, with peers that have nobody, and that are connected when taken together.
PIECES = (
    adjacency([(0, 1), (1, 2), (0, 2), (3, 4)]),
    adjacency([(4, 5), (5, 6), (2, 6), (2, 3)]),
    HALVES,
)


@dataclass(frozen=True)
class Circumstances:
    """Who is linked with whom, and how much happens to messages."""

    changing: bool = False
    down: float = 0.0
    loss: float = 0.0
    late: float = 0.0

    def schedule(self):
        base = topologies.Sequence(PIECES, every=2) if self.changing else topologies.Static(HALVES)
        return topologies.Churn(base, self.down, seed=5) if self.down else base

    def links(self, round_number):
        """The neighbours of each peer in a round."""
        matrix = PIECES[(round_number - 1) // 2 % 3] if self.changing else HALVES
        return naive.without(
            naive.links_of(matrix), naive.drawn_absences(len(matrix), 5, round_number, self.down)
        )

    def fates(self, round_number):
        """What happens to each message, from whom to whom; also to those that nobody sends."""
        rng, fates = np.random.default_rng([7, round_number]), {}
        for message in np.ndindex(len(HALVES), len(HALVES)):
            number = rng.random()
            if number < self.loss:
                fates[message] = "lost"
            elif number < self.loss + self.late:
                fates[message] = "late"
        return fates


CIRCUMSTANCES = {
    "nothing happens": Circumstances(),
    "loss": Circumstances(loss=0.3),
    "delay": Circumstances(late=0.3),
    "loss and delay": Circumstances(loss=0.2, late=0.3),
    "absent peers": Circumstances(down=0.35),
    "a changing network": Circumstances(changing=True),
    "absent peers and delay": Circumstances(down=0.35, late=0.4),
    "everything": Circumstances(changing=True, down=0.2, loss=0.2, late=0.3),
}


class Scripted(Faults):
    """Faults whose fates are written down, instead of drawn."""

    def __init__(self, loss, late, order, fates):
        super().__init__(loss, 0, late)
        object.__setattr__(self, "_order", order)
        object.__setattr__(self, "_fates", fates)

    def fates(self, round_number, senders, receivers):
        order, fates = self._order(round_number), self._fates(round_number)
        assert order == list(zip(senders, receivers, strict=True))
        return tuple(
            np.array([fates.get(message) == fate for message in order], dtype=bool) for fate in (None, "late")
        )


def both_networks(name, circumstances, residuals, starts):
    """The package's driver with its state, and the naive network, before the first round."""
    strategy, make = STRATEGIES[name]
    mixing = MIXING[name.split(" {")[0]]
    faults = Scripted(
        circumstances.loss,
        circumstances.late,
        lambda round_number: naive.in_order(naive.MIXING[mixing](circumstances.links(round_number))),
        circumstances.fates,
    )
    driver = Broadcast(strategy, circumstances.schedule(), at_once(residuals), faults, NUMPY)
    state = driver.begin(starts)
    if isinstance(strategy, DSGD):  # begins with weights of zero, whatever the start is
        np.testing.assert_array_equal(driver.read(state), np.zeros_like(starts))
        state = Late(starts, starts) if isinstance(state, Late) else starts
    peers = [make(start, residual) for start, residual in zip(starts, residuals, strict=True)]
    return driver, state, naive.Network(peers, mixing, takes_old=name in TAKE_OLD)


@pytest.mark.parametrize("circumstances", CIRCUMSTANCES.values(), ids=CIRCUMSTANCES.keys())
@pytest.mark.parametrize("name", STRATEGIES)
def test_peers_learn_what_the_equations_say(name, circumstances):
    residuals, starts = smooth_residuals(len(HALVES)), different_starts(len(HALVES))
    driver, state, network = both_networks(name, circumstances, residuals, starts)
    assert_close(driver.read(state), network.models())
    for round_number in range(1, ROUNDS + 1):
        sent_before = list(network.sent)
        state, sent = driver.advance(state, round_number)
        network.advance(
            circumstances.links(round_number), circumstances.fates(round_number), bool(circumstances.down)
        )
        assert_close(driver.read(state), network.models())
        inner = state.state if isinstance(state, Late) else state
        assert_close(driver.strategy.message(inner), network.messages())
        assert (sent == np.subtract(network.sent, sent_before)).all()


@pytest.mark.parametrize("name", STRATEGIES)
def test_peers_learn_from_rows_what_the_equations_say(name):
    circumstances = CIRCUMSTANCES["everything"]
    residuals, family = bayes_residuals(len(HALVES))
    starts = np.stack([family.uniform(100.0 + 7 * peer) for peer in range(len(HALVES))])
    driver, state, network = both_networks(name, circumstances, residuals, starts)
    for round_number in range(1, 9):
        state, _ = driver.advance(state, round_number)
        network.advance(circumstances.links(round_number), circumstances.fates(round_number), absences=True)
        assert_close(driver.read(state), network.models())


def test_the_circumstances_are_what_they_are_called():
    """Messages of every fate are on links that there are; some peer is away, has nobody left, and was there before."""
    for circumstances in CIRCUMSTANCES.values():
        links = [circumstances.links(round_number) for round_number in range(1, ROUNDS + 1)]
        fates = [
            circumstances.fates(round_number).get((sender, receiver))
            for round_number in range(1, ROUNDS + 1)
            for receiver, around in enumerate(links[round_number - 1])
            for sender in around
        ]
        assert ("lost" in fates) == bool(circumstances.loss)
        assert ("late" in fates) == bool(circumstances.late)
        assert None in fates
        alone = [{peer for peer, around in enumerate(these) if not around} for these in links]
        assert any(alone) == (circumstances.changing or circumstances.down > 0)
    down = CIRCUMSTANCES["absent peers"]
    left = [
        peer
        for round_number in range(1, ROUNDS + 1)
        for peer, around in enumerate(down.links(round_number))
        if not around and peer not in naive.drawn_absences(len(HALVES), 5, round_number, down.down)
    ]
    assert left  # everybody around is away
    assert naive.stable(naive.links_of(HALVES)) != naive.metropolis(naive.links_of(HALVES))


@pytest.mark.parametrize("down", [0.0, 0.25])
@pytest.mark.parametrize("name", ["crc", "crc with self", "consensus-ml", "tracking", "exact {'rounds': 31}"])
def test_peers_that_sum_securely_hear_all_of_their_neighbours_or_nobody(name, down):
    """Whoever misses a message keeps its own; messages are rounded to 2⁻³², and late ones are of no use."""
    matrix = adjacency([(one, other) for one in range(3) for other in range(3, 7)])
    every, residuals, starts = naive.links_of(matrix), smooth_residuals(7), different_starts(7)
    strategy, make = STRATEGIES[name]
    mixing = MIXING[name.split(" {")[0]]
    weights = naive.MIXING[mixing](every)
    fates = Circumstances(loss=0.05, late=0.05).fates
    faults = Scripted(0.05, 0.05, lambda _: naive.in_order(weights), fates)
    static = topologies.Static(matrix)
    driver = Broadcast(
        strategy, topologies.Churn(static, down, seed=5) if down else static, at_once(residuals), faults, NUMPY,
        SecureSums(static.matrix, mixing, conserved=False),
    )  # fmt: skip
    state = driver.begin(starts)
    network = naive.Network(
        [make(start, residual) for start, residual in zip(starts, residuals, strict=True)], mixing, False
    )
    skipped = 0
    for round_number in range(1, 9):
        state, _ = driver.advance(state, round_number)
        links = naive.without(every, naive.drawn_absences(7, 5, round_number, down))
        missed = {}
        for receiver, around in enumerate(every):
            if links[receiver] != around or any(
                (sender, receiver) in fates(round_number) for sender in around
            ):
                missed.update({(sender, receiver): "lost" for sender in around})
                skipped += 1
        network.advance(links, missed, bool(down), weights)
        # Each of up to four messages is off by 2⁻³³ a round; what follows makes no more than ten times as much of it.
        np.testing.assert_allclose(driver.read(state), network.models(), rtol=0, atol=10 * 8 * 4 * 2.0**-33)
    assert 0 < skipped < 8 * 7


@pytest.mark.parametrize("rule", naive.MIXING)
def test_mixing_weights_follow_from_degrees(rule):
    graphs = (
        nx.path_graph(6), nx.star_graph(7), nx.complete_graph(5), nx.complete_bipartite_graph(3, 5),
        nx.grid_2d_graph(3, 4), nx.gnp_random_graph(12, 0.2, seed=2), nx.empty_graph(3), nx.hypercube_graph(3),
    )  # fmt: skip
    for matrix in [*map(nx.to_scipy_sparse_array, graphs), *map(csr_array, PIECES)]:
        weights = getattr(topologies, rule)(csr_array(matrix, dtype=float)).toarray()
        expected = np.zeros(weights.shape)
        for peer, row in enumerate(naive.MIXING[rule](naive.links_of(matrix))):
            expected[peer, list(row)] = list(row.values())
        assert_close(weights, expected)


@pytest.mark.parametrize(
    ("loss", "late"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.3), (0.2, 0.5), (0.5, 0.2), (0.9, 0.9)]
)
def test_a_message_that_is_not_lost_may_be_late(loss, late):
    """Of the messages that are not lost, a share is late; and every round has its own."""
    faults, order = Faults(loss, seed=4, late=late), list(range(4000))
    ends = np.arange(4000), np.arange(4000)
    for round_number in (1, 2, 9):
        in_time, old = faults.fates(round_number, *ends)
        fates = naive.drawn_fates(order, 4, round_number, loss, late)
        assert in_time.tolist() == [message not in fates for message in order]
        assert old.tolist() == [fates.get(message) == "late" for message in order]
        spread = 4 * math.sqrt(0.25 / len(order))
        assert abs(1 - in_time.mean() - old.mean() - loss) <= spread
        assert abs(old.mean() - (1 - loss) * late) <= spread
    if loss:
        rounds = {faults.fates(round_number, *ends)[0].tobytes() for round_number in range(1, 20)}
        assert len(rounds) == 19


# --- relay -------------------------------------------------------------------------------------------------

TREES = {
    "chain": (nx.path_graph(9), 64),
    "star": (nx.star_graph(6), 30),
    "a tree": (nx.balanced_tree(2, 3), 40),
    "a ring": (nx.cycle_graph(8), 25),
    "a network with cycles": (nx.from_numpy_array(HALVES), 16),
    "a grid": (nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 4)), 64),
    "two peers": (nx.path_graph(2), 2),
    "one peer": (nx.empty_graph(1), 5),
    "far beyond the rounds": (nx.path_graph(14), 3),  # d̄ > T, and b at its limit
    "a round only": (nx.path_graph(2), 1),
}


def relay_networks(graph, rounds, residuals, starts, loss=0.0, late=0.0):
    """The package's driver with its state, the naive network, and the fates of a round."""
    matrix = csr_array(nx.to_scipy_sparse_array(graph, nodelist=range(len(graph))), dtype=float)
    network = naive.RelayNetwork(starts, residuals, naive.links_of(matrix), rounds)

    def fates(round_number):
        rng = np.random.default_rng([9, round_number])
        numbers = zip(network.order, rng.random(len(network.order)), strict=True)
        return {
            message: "lost" if number < loss else "late"
            for message, number in numbers
            if number < loss + late
        }

    learner = Relay(spanning_tree(matrix), rounds)
    driver = OverTree(learner, at_once(residuals), Scripted(loss, late, lambda _: network.order, fates))
    return driver, driver.begin(starts), network, fates


def relay_together(driver, state, network, fates, rounds):
    """Let both go through the rounds, and compare all that a peer remembers; the states of the package's."""
    states = []
    for round_number in range(1, rounds + 1):
        sent_before = list(network.sent)
        state, sent = driver.advance(state, round_number)
        network.advance(fates(round_number))
        totals = np.stack([peer.totals[-1] for peer in network.peers])
        assert_close(driver.read(state), network.models())
        assert_close(state.total, totals)
        assert_close(state.accumulated, np.stack([peer.cumulated for peer in network.peers]))
        assert_close(state.share, np.array([peer.share for peer in network.peers]))
        assert_close(state.recent[0], np.stack([peer.excesses[-1] for peer in network.peers]), of=totals)
        assert_close(state.motion, np.array([peer.motion for peer in network.peers]), of=totals)
        assert_close(state.lowest, np.array([peer.lowest for peer in network.peers]), of=totals)
        assert_close(state.highest, np.array([peer.highest for peer in network.peers]), of=totals)
        assert (sent == np.subtract(network.sent, sent_before)).all()
        states.append(state)
    return states


@pytest.mark.parametrize(
    ("loss", "late"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.3), (0.25, 0.25)],
    ids=["nothing happens", "loss", "delay", "loss and delay"],
)  # fmt: skip
@pytest.mark.parametrize("name", TREES)
def test_relaying_peers_learn_what_the_equations_say(name, loss, late):
    graph, rounds = TREES[name]
    networks = relay_networks(
        graph, rounds, smooth_residuals(len(graph)), different_starts(len(graph)), loss, late
    )
    assert networks[0].strategy.boost == pytest.approx(networks[2].boost, rel=1e-14)
    relay_together(*networks, rounds=22)


def test_relaying_peers_learn_from_rows_what_the_equations_say():
    graph = nx.balanced_tree(2, 2)
    residuals, family = bayes_residuals(len(graph))
    starts = np.stack([family.uniform(40.0 + peer) for peer in range(len(graph))])
    relay_together(*relay_networks(graph, 20, residuals, starts, 0.1, 0.1), rounds=20)


def test_the_boost_of_relay_makes_up_for_the_mean_delay_up_to_a_limit():
    chain = topologies.adjacency("chain", 9, np.random.default_rng(0))  # mean distance 80/27
    for rounds, boost in (
        (64, 64 / (64 - 80 / 27)),
        (18, 18 / (18 - 80 / 27)),
        (17, 1.2),
        (3, 1.2),
        (1, 1.0),
    ):
        assert Relay(spanning_tree(chain), rounds).boost == pytest.approx(boost, rel=1e-14)


class Pulses:
    """R_v(S) that comes in waves: a direction of each peer's own times a number for each round, and a little of S."""

    def __init__(self, peers, strengths, seed=3):
        rng = np.random.default_rng(seed)
        self.strengths, self.asked = strengths, [0] * peers
        self.directions = rng.normal(0.0, 1.0, (peers, CLASSES, FEATURES))
        self.goals = rng.normal(0.0, 1.0, (peers, CLASSES, FEATURES))

    def of(self, peer):
        def residual(stats):
            strength = self.strengths[self.asked[peer]]
            self.asked[peer] += 1
            return strength * (1 + 0.3 * self.directions[peer]) + 0.02 * np.sin(self.goals[peer] - stats)

        return residual

    def residuals(self):
        return [self.of(peer) for peer in range(len(self.asked))]


@pytest.mark.parametrize("seed", range(4))
def test_the_guard_of_relay_raises_the_share_where_the_residual_grows_again(seed):
    """It acts, is held back while the residual is below half of its highest, and stops at its limit."""
    graph, rounds = nx.balanced_tree(2, 2), 70
    rng = np.random.default_rng(seed)
    # A high first wave; then small waves, later ones higher.
    strengths = np.concatenate(
        [[8.0, 6.0], np.abs(rng.normal(0.6, 0.6, 20)), np.abs(rng.normal(3.0, 2.0, 48))]
    ).tolist()
    starts = different_starts(len(graph))
    pulses = [Pulses(len(graph), strengths) for _ in range(2)]
    driver, state, _, fates = relay_networks(graph, rounds, pulses[0].residuals(), starts, 0.1)
    *_, network, _ = relay_networks(graph, rounds, pulses[1].residuals(), starts, 0.1)
    states = relay_together(driver, state, network, fates, rounds)
    assert all(peer.raised for peer in network.peers)
    assert any(peer.held_back for peer in network.peers)
    assert any(peer.at_limit for peer in network.peers)
    shares = np.stack([state.share for state in states])
    assert (shares[:4] == 0.1).all() and shares.max() == 0.6
    assert (np.diff(shares, axis=0) >= 0).all()


@pytest.mark.parametrize(
    ("first", "lowest", "below_half"),
    [(1.0, 0.8, False), (4.0, 0.3, True)],
    ids=["a quarter", "half of the highest"],
)
def test_the_guard_of_relay_acts_from_a_quarter_above_the_lowest_and_half_of_the_highest_on(
    first, lowest, below_half
):
    """The residual grows by two in a hundred a round: a limit a little higher or lower is another round."""
    graph, rounds = nx.balanced_tree(2, 2), 120
    strengths = [first] * 6 + [lowest] * 14 + [lowest * 1.02**age for age in range(100)]
    starts = different_starts(len(graph))
    pulses = [Pulses(len(graph), strengths) for _ in range(2)]
    driver, state, _, fates = relay_networks(graph, rounds, pulses[0].residuals(), starts)
    *_, network, _ = relay_networks(graph, rounds, pulses[1].residuals(), starts)
    states = relay_together(driver, state, network, fates, rounds)
    acted = [int(np.argmax(shares > 0.1)) for shares in np.stack([state.share for state in states], axis=1)]
    assert min(acted) > 20  # while it grows
    assert all(bool(peer.held_back) == below_half for peer in network.peers)


def test_the_guard_of_relay_acts_where_peers_overshoot():
    """R is six times what is missing, and heard of late: the network swings higher and higher."""
    graph = nx.path_graph(7)
    goals = different_starts(len(graph), seed=8)
    residuals = [lambda stats, goal=goal: 6.0 * (goal - stats) for goal in goals]
    networks = relay_networks(graph, 40, residuals, different_starts(len(graph)))
    states = relay_together(*networks, rounds=18)
    assert (states[-1].share > 0.1).all()


def test_the_reflex_of_relay_is_the_same_for_a_few_peers_at_a_time(monkeypatch):
    graph = nx.balanced_tree(2, 2)
    for entries in (1, 2 * CLASSES * FEATURES, 5 * CLASSES * FEATURES):
        monkeypatch.setattr(relay, "IN_CACHE", entries)
        networks = relay_networks(graph, 20, smooth_residuals(len(graph)), different_starts(len(graph)))
        relay_together(*networks, rounds=9)


def test_a_peer_that_relays_by_itself_does_what_it_does_among_all():
    """As real peers do: each with what it sees of the tree, and messages by the numbers of neighbours."""
    matrix = adjacency(
        [(0, 6), (6, 3), (3, 5), (3, 1), (5, 4), (1, 2), (4, 2)]
    )  # parents before and after children
    peers, rounds = len(matrix), 10
    residuals, starts = smooth_residuals(peers), different_starts(peers)
    network = naive.RelayNetwork(starts, residuals, naive.links_of(matrix), rounds)
    tree = spanning_tree(csr_array(matrix))
    views = [tree.seen_from(peer) for peer in range(peers)]
    learners = [Relay(view, rounds) for view, _ in views]
    states = [learner.begin(start[None]) for learner, start in zip(learners, starts, strict=True)]
    for _ in range(rounds):
        network.advance()
        states = [
            learner.adapt(state, lambda stats, residual=residual: residual(stats[0])[None])
            for learner, state, residual in zip(learners, states, residuals, strict=True)
        ]
        messages = {}
        for peer, (_, neighbours) in enumerate(views):
            assert neighbours.tolist() == sorted(network.links[peer])
            sent = learners[peer].messages(states[peer])
            messages.update({(peer, other): sent[k] for k, other in enumerate(neighbours.tolist())})
        inboxes = [
            np.stack([messages[other, peer] for other in views[peer][1].tolist()]) for peer in range(peers)
        ]
        states = [
            learner.hear(state, inbox)
            for learner, state, inbox in zip(learners, states, inboxes, strict=True)
        ]
        alone = [learner.read(state)[0] for learner, state in zip(learners, states, strict=True)]
        assert_close(np.stack(alone), network.models())


def test_the_tree_is_the_breadth_first_one_of_peer_zero():
    """Links come by parent and child, and then the other way round, on every processor."""
    for seed in range(8):
        matrix = topologies.adjacency("tree+9", 14, np.random.default_rng(seed))
        branches = naive.breadth_first_tree(naive.links_of(matrix))
        links = naive.tree_links(branches)
        tree = spanning_tree(matrix)
        downwards = [[parent, child] for parent in range(14) for child in sorted(branches[parent])]
        expected = downwards + [[child, parent] for parent, child in downwards]
        assert np.stack([tree.sender, tree.receiver], axis=1).tolist() == expected
        hops = np.array(naive.distances(links))
        assert tree.mean_distance == pytest.approx(hops.sum() / 14**2, rel=1e-14)
        assert tree.beyond.shape[1] == hops.max()
        for age in range(hops.max()):
            np.testing.assert_allclose(tree.beyond[:, age], (hops > age).mean(axis=1), rtol=1e-14)
        from_root = dict(nx.single_source_shortest_path_length(nx.from_scipy_sparse_array(matrix), 0))
        assert hops[0].tolist() == [from_root[peer] for peer in range(14)]


def test_a_network_whose_distances_do_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(relay, "LARGEST_NETWORK", 7)
    assert spanning_tree(csr_array(HALVES)).nodes == 7
    with pytest.raises(ValueError, match="takes at most 7 of them; the network has 8"):
        spanning_tree(topologies.adjacency("chain", 8, np.random.default_rng(0)))


# --- which strategy fits -----------------------------------------------------------------------------------


def test_the_first_residual_and_its_variance_follow_from_rows():
    """R is a sum over rows; n times the sample variance of its terms estimates its variance without bias."""
    rng = np.random.default_rng(6)
    labels = np.eye(CLASSES)[rng.integers(0, CLASSES, (5, 6))] * rng.uniform(0.5, 2.0, (5, 6, 1))
    labels[1, 4:] = 0.0  # padding
    labels[2, 1:] = 0.0  # one row
    labels[3] = 0.0  # none
    features = rng.normal(size=(5, 6, FEATURES))
    weights = rng.normal(size=(5, CLASSES, FEATURES))
    change, within = first_residual(features, labels, weights)
    for peer in range(5):
        terms = []
        for row in range(6):
            weight = labels[peer, row].sum()
            if weight > 0:
                masses = [math.exp(joint) for joint in weights[peer] @ features[peer, row]]
                missing = labels[peer, row] - weight * np.array(masses) / sum(masses)
                terms.append(np.outer(missing, features[peer, row]))
        total = sum(terms, np.zeros((CLASSES, FEATURES)))
        np.testing.assert_allclose(change[peer], total, rtol=0, atol=1e-13)
        if len(terms) > 1:
            mean = total / len(terms)
            spread = sum(float(((term - mean) ** 2).sum()) for term in terms) / (len(terms) - 1)
            assert within[peer] == pytest.approx(len(terms) * spread, rel=1e-12)
        else:  # one row says nothing of how it might differ
            assert within[peer] == pytest.approx(sum(float((term**2).sum()) for term in terms), abs=1e-12)


def test_differences_between_neighbours_are_held_against_those_within():
    rng = np.random.default_rng(7)
    change, within = rng.normal(size=(7, CLASSES, FEATURES)), rng.uniform(1, 2, 7)
    change += rng.normal(size=(1, CLASSES, FEATURES))  # what all have in common
    sums = link_sums(change, within, csr_array(HALVES))
    expected = naive.link_facts(change, within, naive.links_of(HALVES))
    assert (sums.difference, sums.likeness) == pytest.approx(expected, rel=1e-13) and sums.likeness > 0.1
    opposite = np.stack([change[0], -change[0]])
    assert link_sums(opposite, within[:2], csr_array(np.ones((2, 2)) - np.eye(2))).likeness == 0.0


def chosen_strategy(monkeypatch, **settings):
    """The strategy that a simulation learns with."""
    drivers_chosen, chosen = [], drivers.build_driver

    def watching(*arguments):
        drivers_chosen.append(chosen(*arguments))
        return drivers_chosen[-1]

    with monkeypatch.context() as patch:
        patch.setattr(drivers, "build_driver", watching)
        rng = np.random.default_rng(0)
        labels = np.arange(70) % 2
        pb.simulate(
            rng.normal(labels[:, None], 1.0, (70, 2)), labels, peers=20, rows_per_peer=3, references=False,
            evaluate_every=0, **settings,
        )  # fmt: skip
    return drivers_chosen[0].strategy


def test_auto_relays_up_to_a_ninth_of_the_rounds_or_where_data_differ(monkeypatch):
    """The tree of a complete network is a star: its mean distance is 1.805, a ninth of 16.2 rounds."""
    for ratio, rounds, name in ((1.5, 16, "exact"), (1.5, 17, "relay"), (1.501, 16, "relay")):
        monkeypatch.setattr(LocalRows, "differ", lambda *_, ratio=ratio: LinkSums(ratio, 1.0, 2.0))
        strategy = chosen_strategy(monkeypatch, topology="complete", strategy="auto", rounds=rounds)
        assert strategy.name == name, (ratio, rounds)
    for largest, name in ((20, "relay"), (19, "exact")):
        monkeypatch.setattr(relay, "LARGEST_NETWORK", largest)
        strategy = chosen_strategy(monkeypatch, topology="complete", strategy="auto", rounds=17)
        assert strategy.name == name, largest


def test_exact_remembers_less_where_messages_fail_and_averages_more_where_there_is_noise(monkeypatch):
    ring = topologies.schedule("ring", 20, np.random.default_rng(0))
    for settings, memory, window in (
        ({}, 1.0, 2),
        ({"message_loss": 0.1}, 1.0, 2),  # repaired link by link
        ({"message_delay": 0.1}, 1.0, 2),
        ({"message_loss": 0.1, "change_every": 2, "topology": "tree"}, 0.97, 2),
        ({"peers_down": 0.1}, 0.97, 2),
        ({"topology": topologies.Churn(ring, 0.1)}, 0.97, 2),
        ({"robust": "clip"}, 0.9, 2),
        ({"robust": "clip", "message_loss": 0.1}, 0.9, 2),
        ({"privacy": pb.Privacy(epsilon=8.0, min_rows=1)}, 1.0, 8),
    ):
        settings = {"topology": ring, "rounds": 16, "strategy": "exact", **settings}
        strategy = chosen_strategy(monkeypatch, **settings)
        assert (strategy.memory, strategy.window) == (memory, window), settings


# --- agreeing on a start -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [0, 1, 2, 3, 9])
def test_gossip_follows_chebyshev_on_a_fixed_network(rounds):
    values = np.random.default_rng(2).normal(5.0, 1.0, (7, 3))
    links = [naive.links_of(HALVES)] * rounds
    expected = naive.gossip(links, values, accelerated=True)
    assert_close(gossip.agree(topologies.Static(HALVES), values, rounds), np.stack(expected))


@pytest.mark.parametrize(("changing", "down"), [(True, 0.0), (True, 0.3), (False, 0.3)])
def test_gossip_averages_plainly_on_a_changing_network(changing, down):
    circumstances = Circumstances(changing=changing, down=down)
    values = np.random.default_rng(2).normal(5.0, 1.0, (7, 3))
    links = [circumstances.links(round_number) for round_number in range(1, 10)]
    expected = naive.gossip(links, values, accelerated=False)
    assert_close(gossip.agree(circumstances.schedule(), values, 9), np.stack(expected))


def test_gossip_of_one_peer_leaves_it_as_it_is():
    values = np.array([[2.0, 3.0]])
    alone = topologies.schedule("complete", 1, np.random.default_rng(0))
    np.testing.assert_array_equal(gossip.agree(alone, values, 5), values)


# --- the whole simulation ----------------------------------------------------------------------------------

PEERS, SEED, LR, CLIP, TOPOLOGY = 6, 11, 0.1, 1.8, "tree+2"
SIZES = (8, 5, 7, 4, 9, 6)


@pytest.fixture(scope="module")
def table():
    """Rows with a long tail, which is cut off, and a discrete column; classes; and who holds which rows."""
    rng = np.random.default_rng(20)
    labels = rng.integers(0, CLASSES, 50)
    values = rng.normal(labels[:, None] * [1.0, -0.5], 1.0, (50, 2)) ** 3
    levels = (rng.random(50) * 3 + labels * 0.4).astype(int)
    parts = np.split(rng.permutation(50)[: sum(SIZES)], np.cumsum(SIZES)[:-1])
    return np.column_stack([values, levels]), labels, parts


def encoded(table):
    """Each peer's rows, in units of all peers' rows, and their labels."""
    X, y, parts = table
    every = X[np.concatenate(parts)]
    levels = sorted({float(level) for level in X[:, 2]})
    mean = [math.fsum(every[:, j]) / len(every) for j in (0, 1)]
    scale = [math.sqrt(math.fsum((every[:, j] - mean[j]) ** 2) / len(every)) for j in (0, 1)]
    rows = [
        [
            (
                [min(max(float(X[row, j] - mean[j]) / scale[j], -CLIP), CLIP) for j in (0, 1)],
                [levels.index(float(X[row, 2]))],
            )
            for row in mine
        ]
        for mine in parts
    ]
    return rows, [[int(label) for label in y[mine]] for mine in parts], len(levels)


class Naive:
    """The whole simulation, naively: settings as `simulate` takes them."""

    def __init__(
        self, table, strategy, rounds, start="uniform", start_rounds=0, local_steps=1, objective="rows",
        change_every=None, message_loss=0.0, message_delay=0.0, peers_down=0.0, checked=False,
    ):  # fmt: skip
        """`checked`: messages are checked, and then only those of the round itself are taken."""
        rows, labels, levels = encoded(table)
        self.family = naive.NaiveBayes(2, (levels,), CLASSES)
        self.change_every, self.down = change_every, peers_down
        self.loss, self.late = message_loss, message_delay
        total = sum(SIZES)
        weights = [1.0 if objective == "rows" else total / (PEERS * size) for size in SIZES]
        self.once = [
            self.family.residual(*holding, of_weights=strategy == "dsgd")
            for holding in zip(rows, labels, weights, strict=True)
        ]
        self.residuals = [naive.several_steps(residual, local_steps) for residual in self.once]
        self.statistics = [
            self.family.statistics(*holding) for holding in zip(rows, labels, weights, strict=True)
        ]
        self.squares = sum(
            sum(entry**2 for entry in self.family.features(row)) for mine in rows for row in mine
        )
        self.starts = self._starts(strategy, start, start_rounds)
        self.network = self._network(strategy, rounds, checked)
        gossips = start != "uniform" and strategy != "consensus-ml"
        matrices = CLASSES if start == "ml" else 1
        degree = sum(map(len, self.links(1))) / PEERS
        self.start_bytes = int(start_rounds * degree * matrices * self.family.size * 8) if gossips else 0
        self._go(rounds)

    def _starts(self, strategy, start, start_rounds):
        if strategy == "consensus-ml":
            return self.statistics
        if strategy == "dsgd":
            return [np.zeros((CLASSES, self.family.size))] * PEERS
        if start == "uniform":
            return [self.family.uniform(sum(SIZES) / (LR * PEERS))] * PEERS
        local = self.statistics
        if start == "marginal":
            local = [np.tile(stats.sum(axis=0) / CLASSES, (CLASSES, 1)) for stats in local]
        fixed = self.change_every is None and not self.down
        links = [self.links(round_number) for round_number in range(1, start_rounds + 1)]
        return naive.gossip(links, [stats / LR for stats in local], accelerated=fixed)

    def links(self, round_number):
        """The links of a round less those of whoever is away."""
        seed = int(np.random.default_rng([SEED, 2]).integers(2**31))
        away = naive.drawn_absences(PEERS, seed, round_number, self.down)
        return naive.without(self.lasting(round_number), away)

    def lasting(self, round_number):
        """The links of a round, of the network that its seed draws."""
        rng = np.random.default_rng([SEED, 1])
        if self.change_every is not None:
            epoch = 1 + (round_number - 1) // self.change_every
            rng = np.random.default_rng([int(rng.integers(2**63)), epoch])
        return naive.links_of(topologies.adjacency(TOPOLOGY, PEERS, rng))

    def _network(self, strategy, rounds, checked):
        if strategy == "relay":
            first = [step(start) for step, start in zip(self.once, self.starts, strict=True)]
            _, alike = naive.link_facts(first, np.ones(PEERS), self.links(1))
            share = max(alike, 0.1) if self.family.size > sum(SIZES) / PEERS else alike
            return naive.RelayNetwork(self.starts, self.residuals, self.lasting(1), rounds, share)
        total = sum(SIZES)
        lossy = self.loss or self.late or self.down
        make = {
            "crc": naive.Crc,
            "tracking": naive.Tracking,
            "local": naive.Local,
            "consensus-ml": naive.Consensus,
            "dsgd": lambda start, residual: naive.Dsgd(
                start, residual, 1 / (total / PEERS * 0.5 * self.squares / total)
            ),
            "exact": lambda start, residual: naive.Exact(start, residual, rounds, 0.97 if lossy else 1.0),
        }[strategy]
        beginnings = list(zip(self.starts, self.residuals, strict=True))
        if strategy == "exact" and lossy and not self.down and self.change_every is None:
            return naive.LinkedNetwork(
                [naive.LinkedExact(*beginning, rounds) for beginning in beginnings], MIXING[strategy]
            )
        peers = [make(*beginning) for beginning in beginnings]
        return naive.Network(peers, MIXING[strategy], strategy in TAKE_OLD and not checked)

    def _go(self, rounds):
        relays = isinstance(self.network, naive.RelayNetwork)
        for round_number in range(1, rounds + 1):
            links = self.links(round_number)
            if relays:
                waiting = [peer for peer, around in enumerate(links) if not around]
                self.network.advance(self._fates(self.network.order, round_number), waiting)
            elif self.network.mixing == "none":
                self.network.advance(links)
            else:
                order = naive.in_order(naive.MIXING[self.network.mixing](links))
                self.network.advance(links, self._fates(order, round_number), bool(self.down))

    def _fates(self, order, round_number):
        return naive.drawn_fates(order, SEED, round_number, self.loss, self.late)


SETTINGS = {
    "nothing happens": {},
    "loss": {"message_loss": 0.3},
    "delay": {"message_delay": 0.4},
    "loss and delay": {"message_loss": 0.2, "message_delay": 0.3},
    "absent peers": {"peers_down": 0.3},
    "loss and absent peers": {"message_loss": 0.2, "peers_down": 0.2},
    "a changing network": {"change_every": 2},
    "everything": {"message_loss": 0.2, "message_delay": 0.3, "peers_down": 0.2, "change_every": 3},
    "local steps": {"local_steps": 3, "objective": "peers"},
    "the marginal start": {"start": "marginal", "start_rounds": 4},
    "the ml start": {"start": "ml", "start_rounds": 3, "change_every": 2, "message_loss": 0.1},
}
FIXED_ONLY = [name for name, settings in SETTINGS.items() if "change_every" not in settings]


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        *(
            (strategy, name)
            for strategy in MIXING
            if strategy not in ("crc with self", "dsgd")
            for name in SETTINGS
        ),
        *(("dsgd", name) for name in SETTINGS if name != "local steps"),
        *(("relay", name) for name in FIXED_ONLY),
    ],
)
def test_a_simulation_is_the_naive_network(table, strategy, name):
    X, y, parts = table
    settings = {"rounds": 18, "start_rounds": 0, **SETTINGS[name]}
    run = pb.simulate(
        X, y, kinds=["continuous", "continuous", "discrete"], partition=parts, peers=PEERS, topology=TOPOLOGY,
        strategy=strategy, lr=LR, clip=CLIP, seed=SEED, references=False, evaluate_every=0, **settings,
    )  # fmt: skip
    expected = Naive(table, strategy, **settings)
    assert_close(run.stats, expected.network.models())
    assert (run.history["bytes"] == np.add(expected.network.sent, expected.start_bytes)).all()


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        ("crc", "loss"),
        ("crc", "delay"),
        ("crc", "absent peers"),
        ("crc", "everything"),
        ("exact", "loss and delay"),
        ("exact", "everything"),
    ],
)
def test_a_simulation_that_checks_its_messages_is_the_naive_network(table, strategy, name):
    """Where nobody lies nothing is refused; and no message is taken that comes a round late, as between real peers."""
    X, y, parts = table
    settings = {"rounds": 12, **SETTINGS[name]}
    run = pb.simulate(
        X, y, kinds=["continuous", "continuous", "discrete"], partition=parts, peers=PEERS, topology=TOPOLOGY,
        strategy=strategy, lr=LR, clip=CLIP, seed=SEED, references=False, evaluate_every=0,
        attack=pb.Attack("flip", fraction=0.0), **settings,
    )  # fmt: skip
    assert not any(run.rejected.values())
    assert_close(run.stats, Naive(table, strategy, **settings, checked=True).network.models())
