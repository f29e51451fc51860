"""Corrections by link: laws of `exact` under loss on one side."""

import numpy as np
import pytest

from peerbayes.learning.corrections import NEVER, REPAIRING, Corrections, Received, after_round
from peerbayes.learning.strategies import Exact
from peerbayes.network import adjacency, lose, stable
from peerbayes.network.mixing import rows_of


class Network:
    """All peers of a network with a residual of their own, by links."""

    def __init__(self, topology, seed, peers=12, pull=0.1):
        rng = np.random.default_rng(seed)
        self.weights = stable(adjacency(topology, peers, rng))
        receivers = rows_of(self.weights)
        between = receivers != self.weights.indices
        self.between, self.receivers, self.senders = (
            between,
            receivers[between],
            self.weights.indices[between],
        )
        self.link_weights = self.weights.data[between][:, None, None]
        index = {ends: k for k, ends in enumerate(zip(self.receivers, self.senders, strict=True))}
        self.other = np.array([index[u, v] for v, u in index])
        self.targets, self.pull = rng.normal(size=(peers, 2, 3)), pull
        self.start = np.zeros((peers, 2, 3))

    def residual(self, stats):
        return self.pull * (self.targets - stats)

    def summed(self, values, links=slice(None)):
        total = np.zeros_like(self.start)
        np.add.at(total, self.receivers[links], values)
        return total

    def run(self, rounds, heard, by_link=True):
        """Return the statistics after each round: [T, N, C, K], and the links' state."""
        strategy, history = Exact(rounds), []
        state, links = (
            strategy.begin(self.start, self.residual),
            Corrections.begin(len(self.senders), self.start),
        )
        for round_index in range(rounds):
            message, arrives = strategy.message(state), heard(round_index)
            kept = np.ones(self.weights.nnz, dtype=bool)
            kept[self.between] = arrives
            mixed = (lose(self.weights, kept) @ message.reshape(len(message), -1)).reshape(message.shape)
            if by_link:
                differences = self.link_weights * (message[self.senders] - message[self.receivers])
                links, added, late = after_round(
                    links,
                    Received(
                        arrives,
                        differences,
                        np.flatnonzero(links.sent[self.other]),
                        links.values[self.other][links.sent[self.other]],
                        links.missed[self.other],
                        np.zeros_like(arrives),
                    ),
                )
                mixed = mixed + self.summed(added.values, added.links)
                state = strategy.uncorrected(state, self.summed(late.values, late.links))
            state = strategy.step(state, mixed, self.residual)
            history.append(mixed)
        return np.stack(history), links


def everything(network):
    return lambda round_index: np.ones(len(network.senders), dtype=bool)


def drawn(network, loss, seed):
    rng = np.random.default_rng(seed)
    masks = rng.random((2000, len(network.senders))) >= loss
    return lambda round_index: masks[round_index]


@pytest.mark.parametrize("topology", ["tree", "ring", "tree+20", "complete"])
def test_without_loss_nothing_is_repaired_and_nothing_more_is_sent(topology):
    network = Network(topology, 1)
    plain, _ = network.run(40, everything(network), by_link=False)
    repaired, links = network.run(40, everything(network))
    assert np.array_equal(plain, repaired)
    assert not links.sent.any() and (links.missed >= NEVER).all()
    assert np.allclose(links.values, -links.values[network.other], atol=1e-13)


def test_the_corrections_of_a_peer_add_up_to_that_of_exact():
    network = Network("tree+20", 2)
    stats, links = network.run(30, everything(network))
    strategy = Exact(30)
    state = strategy.begin(network.start, network.residual)
    for mixed in stats[:-1]:
        state = strategy.step(state, mixed, network.residual)
    assert np.allclose(network.summed(links.values), stats[-1] - state.adapted, atol=1e-12)


def test_two_ends_agree_again_once_both_were_heard():
    """A loss on one side is repaired by both ends within two rounds in which everything arrives."""
    network = Network("ring", 3)
    lost = np.zeros(len(network.senders), dtype=bool)
    lost[0] = True
    _, links = network.run(12, lambda t: ~lost if t == 4 else ~np.zeros_like(lost))
    assert np.allclose(links.values, -links.values[network.other], atol=1e-12)
    _, at_once = network.run(5, lambda t: ~lost if t == 4 else ~np.zeros_like(lost))
    apart = np.abs(at_once.values + at_once.values[network.other]).max(axis=(1, 2))
    assert (apart > 1e-3).sum() == 2 and at_once.sent.sum() == 1
    _, later = network.run(6 + REPAIRING + 1, lambda t: ~lost if t == 4 else ~np.zeros_like(lost))
    assert not later.sent.any()


@pytest.mark.parametrize("loss", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("topology", ["tree", "ring", "tree+20"])
def test_peers_that_lose_messages_still_agree_on_the_mean(topology, loss):
    """The fixed point is the mean of the targets; `exact` alone ends far from it, or diverges."""
    network = Network(topology, 4)
    aim = network.targets.mean(axis=0)
    stats, _ = network.run(600, drawn(network, loss, 5))
    plain, _ = network.run(600, drawn(network, loss, 5), by_link=False)
    error, before = (np.abs(history[-1] - aim).max() for history in (stats, plain))
    assert error < 0.1 * before


@pytest.mark.parametrize("between", [4, 5])
def test_a_host_that_is_heard_once_in_a_few_rounds_agrees_with_the_others(between):
    """Its links are down on both sides but for one round: with all of a difference in d, S would overshoot by more."""
    network = Network("complete", 8, peers=4)
    flapping = (network.senders == 3) | (network.receivers == 3)
    stats, links = network.run(1800, lambda turn: np.where(flapping, turn % between == 0, True))
    assert np.allclose(stats[-1], network.targets.mean(axis=0), atol=0.05)  # silent links let 1 % of d go
    assert np.allclose(links.values, -links.values[network.other], atol=1e-9)


@pytest.mark.parametrize("topology", ["ring", "tree+20"])
def test_a_liar_that_is_cut_late_leaves_as_little_as_one_that_is_cut_early(topology):
    """With its correction what it would have gone on to push is gone: what is left fades as an early lie does."""
    network = Network(topology, 6)
    honest = np.arange(1, 12)
    aim = network.targets[honest].mean(axis=0)
    touches = (network.senders == 0) | (network.receivers == 0)

    def error(cut_at, dropped):
        strategy = Exact(400)
        state = strategy.begin(network.start, network.residual)
        links = Corrections.begin(len(network.senders), network.start)
        for turn in range(400):
            message = strategy.message(state)
            message[0] += 5.0 if turn < cut_at else 0.0
            cut = touches & (turn >= cut_at)
            pulls = network.link_weights * (message[network.senders] - message[network.receivers])
            pulls[cut] = 0.0
            mixed = message + network.summed(pulls)
            nothing = np.zeros(0, dtype=int), np.zeros((0, 2, 3))
            received = Received(
                ~cut, pulls, *nothing, links.missed[network.other], cut if dropped else cut & False
            )
            links, added, _ = after_round(links, received)
            if dropped:
                mixed = mixed + network.summed(added.values, added.links)
            state = strategy.step(state, mixed, network.residual)
        return np.abs(mixed[honest] - aim).max()

    assert error(20, dropped=True) < 1.5 * error(5, dropped=True) + 1e-3
    assert error(20, dropped=False) > 10 * error(20, dropped=True) + 0.1
