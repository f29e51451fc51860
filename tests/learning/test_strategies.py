"""What strategies conserve and where they lead, for every family."""

import numpy as np
import pytest

from peerbayes import network
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.strategies import CRC, DSGD, STRATEGIES, Exact, Tracking
from peerbayes.model import core
from peerbayes.simulation.faults import unless_away
from shared.families import draw_rows

CLASSES, PEERS, ROWS, LR = 3, 8, 15, 0.05
LEARNERS = {name: make() for name, make in STRATEGIES.items()}


def network_of_peers(family, partition="iid", seed=0):
    """Peers' rows, and the same rows pooled."""
    rng = np.random.default_rng(seed)
    rows = draw_rows(family, rng, PEERS * ROWS)
    codes = rng.integers(0, CLASSES, PEERS * ROWS)
    if partition == "one class":
        codes = np.sort(codes)
    features = family.features(rows)
    labels = core.one_hot(codes, CLASSES)
    peers = LocalRows(family, rows, codes, np.ones(codes.size), np.full(PEERS, ROWS), CLASSES)
    return peers, features, labels


def own_residual(family, features, labels, of_weights):
    return lambda stats: core.residual(
        features, labels, stats if of_weights else family.weights(stats), family.log_joint
    )


def start_of(family):
    return np.tile(family.uniform(CLASSES, ROWS / LR), (PEERS, 1, 1))


def combined(learner, links, message):
    if learner.mixing == "none":
        return message
    weights = getattr(network, learner.mixing)(links)
    return (weights @ message.reshape(len(message), -1)).reshape(message.shape)


def close_weights(got, expected):
    scale = np.abs(expected).max()
    np.testing.assert_allclose(
        got, np.broadcast_to(expected, got.shape), rtol=1e-9, atol=1e-9 * max(scale, 1.0)
    )


@pytest.mark.parametrize("partition", ["iid", "one class"])
def test_theorem_one(family, partition):
    """On the complete graph the mixed statistics' parameters equal those of RC, one round before, for 64 rounds."""
    peers, features, labels = network_of_peers(family, partition)
    links = network.adjacency("complete", PEERS, np.random.default_rng(0))
    learner, residual = CRC(with_self=True), peers.residual(1, of_weights=False)
    state, pooled = learner.begin(start_of(family), residual), family.uniform(CLASSES, PEERS * ROWS)
    for _ in range(64):
        mixed = combined(learner, links, learner.message(state))
        close_weights(family.weights(mixed), family.weights(pooled))
        state = learner.step(state, mixed, residual)
        pooled = pooled + LR * core.residual(features, labels, family.weights(pooled), family.log_joint)


@pytest.mark.parametrize(
    "learner", [make for make in LEARNERS.values() if not make.of_weights], ids=lambda s: s.name
)
def test_class_sums_of_the_network_are_conserved(family, learner):
    peers, *_ = network_of_peers(family)
    links = network.adjacency("tree", PEERS, np.random.default_rng(1))
    residual = peers.residual(1, of_weights=False)
    begin = start_of(family)
    state = learner.begin(begin, residual)
    for _ in range(30):
        state = learner.step(state, combined(learner, links, learner.message(state)), residual)
    sums, expected = learner.read(state).sum(axis=1), begin.sum(axis=1)
    np.testing.assert_allclose(sums, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize("learner", LEARNERS.values(), ids=LEARNERS.keys())
def test_all_peers_at_once_equal_peer_by_peer(family, learner):
    """What a real peer computes from its own rows and what it heard is what the simulation computes for it."""
    peers, features, labels = network_of_peers(family)
    links = network.adjacency("ring", PEERS, np.random.default_rng(2))
    if learner.of_weights and not family.linear:
        with pytest.raises(ValueError, match="is not linear in weights"):
            peers.residual(1, of_weights=True)
        return
    residual = peers.residual(1, of_weights=learner.of_weights)
    rows = np.arange(PEERS * ROWS).reshape(PEERS, ROWS)
    own = [own_residual(family, features[mine], labels[mine], learner.of_weights) for mine in rows]
    begin = start_of(family)
    together = learner.begin(begin, residual)
    alone = [learner.begin(begin[v], own[v]) for v in range(PEERS)]
    for _ in range(5):
        mixed = combined(learner, links, learner.message(together))
        heard = combined(learner, links, np.stack([learner.message(state) for state in alone]))
        together = learner.step(together, mixed, residual)
        alone = [learner.step(alone[v], heard[v], own[v]) for v in range(PEERS)]
    expected = learner.read(together)
    for v in range(PEERS):
        np.testing.assert_allclose(
            learner.read(alone[v]), expected[v], rtol=1e-8, atol=1e-8 * np.abs(expected).max()
        )


def test_the_mean_of_exact_moves_by_the_mean_residual(family):
    """Symmetric weights keep the network's mean: it takes RC's step at the peers' own points, without bias."""
    peers, *_ = network_of_peers(family, "one class")
    links = network.adjacency("tree", PEERS, np.random.default_rng(3))
    learner, residual = Exact(rounds=8), peers.residual(1, of_weights=False)
    state = learner.begin(start_of(family), residual)
    stats = start_of(family)
    for _ in range(20):
        mixed = combined(learner, links, learner.message(state))
        expected = stats.mean(axis=0) + learner.boost * residual(stats).mean(axis=0)
        np.testing.assert_allclose(
            mixed.mean(axis=0), expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max()
        )
        state, stats = learner.step(state, mixed, residual), mixed


def test_the_mean_of_the_tracks_is_the_mean_residual(family):
    peers, *_ = network_of_peers(family, "one class")
    links = network.adjacency("tree", PEERS, np.random.default_rng(4))
    learner, residual = Tracking(), peers.residual(1, of_weights=False)
    state = learner.begin(start_of(family), residual)
    for _ in range(20):
        np.testing.assert_allclose(
            state.track.mean(axis=0),
            state.residual.mean(axis=0),
            rtol=1e-8,
            atol=1e-8 * np.abs(state.residual).max(),
        )
        state = learner.step(state, combined(learner, links, learner.message(state)), residual)


@pytest.mark.parametrize("rounds", [1, 7, 8, 16, 64, 1000])
def test_the_read_out_of_exact_is_the_mean_of_the_last_rounds(rounds):
    learner = Exact(rounds=rounds)
    assert 1 <= learner.window <= 6
    assert learner.boost == rounds / (rounds - (learner.window - 1) / 2)
    start = np.zeros((2, 3, 4))
    state = learner.begin(start, np.zeros_like)
    heard = []
    for turn in range(9):
        mixed = np.full_like(start, turn)
        state = learner.step(state, mixed, np.zeros_like)
        heard.append(turn)
        np.testing.assert_allclose(learner.read(state), np.mean(heard[-learner.window :]))


def test_nothing_happens_where_there_is_nothing_to_learn():
    """Without residuals every strategy only averages, and equal peers stay as they are."""
    links = network.adjacency("tree", PEERS, np.random.default_rng(5))
    start = np.tile(np.arange(12.0).reshape(3, 4), (PEERS, 1, 1))
    for learner in LEARNERS.values():
        if isinstance(learner, DSGD):
            continue
        state = learner.begin(start, np.zeros_like)
        for _ in range(10):
            state = learner.step(state, combined(learner, links, learner.message(state)), np.zeros_like)
        np.testing.assert_allclose(learner.read(state), start, rtol=1e-12)


def parts_of(state):
    return [*state[:2], *state.recent, state.heard]


def test_a_peer_that_is_away_keeps_its_state():
    learner = Exact()
    before = learner.begin(np.zeros((3, 2, 2)), np.ones_like)
    after = learner.step(before, np.ones((3, 2, 2)), np.ones_like)
    kept = unless_away(before, after, np.array([True, False, True]))
    for old, new, now in zip(*(parts_of(state) for state in (before, after, kept)), strict=True):
        np.testing.assert_array_equal(now[1], old[1])
        np.testing.assert_array_equal(now[[0, 2]], new[[0, 2]])
