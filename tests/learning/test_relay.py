"""Relay: sums over a spanning tree arrive whole, one hop a round; and the test that says when it fits."""

import networkx as nx
import numpy as np
import pytest
from sklearn.datasets import load_digits, load_wine

import peerbayes as pb
from peerbayes import network
from peerbayes.learning import choice, local_rows
from peerbayes.learning.relay import Relay, spanning_tree
from peerbayes.simulation.faults import Faults
from peerbayes.simulation.rounds import OverTree


@pytest.mark.parametrize("topology", ["tree", "chain", "star", "ring", "grid", "complete"])
def test_a_spanning_tree_reaches_everybody(topology):
    links = network.adjacency(topology, 12, np.random.default_rng(0))
    tree = spanning_tree(links)
    graph = nx.Graph(list(zip(tree.sender, tree.receiver, strict=True)))
    assert nx.is_tree(graph)
    assert len(graph) == tree.nodes == 12
    assert all(links[u, v] == 1 for u, v in graph.edges)
    np.testing.assert_array_equal(tree.sender[tree.reverse], tree.receiver)
    hops = dict(nx.all_pairs_shortest_path_length(graph))
    for v in range(12):
        for j in range(tree.beyond.shape[1]):
            assert tree.beyond[v, j] == pytest.approx(np.mean([hops[v][u] > j for u in range(12)]))


@pytest.mark.parametrize("topology", ["tree", "chain", "star"])
def test_sums_arrive_whole_and_one_hop_a_round(topology):
    """G_v(t) = Σ_u A_u(t − distance), whatever the residuals are."""
    rng = np.random.default_rng(1)
    links = network.adjacency(topology, 9, rng)
    tree = spanning_tree(links)
    hops = np.array(nx.floyd_warshall_numpy(nx.from_scipy_sparse_array(links)), dtype=int)
    learner = Relay(tree, rounds=20)
    changes = rng.normal(size=(20, 9, 2, 3))
    state = learner.begin(np.zeros((9, 2, 3)))
    own = [np.zeros((9, 2, 3))]
    for turn in range(20):
        state, _ = OverTree(learner, lambda _, turn=turn: changes[turn], Faults(0.0, 0)).advance(
            state, turn + 1
        )
        own.append(own[-1] + learner.boost * changes[turn])
        for v in range(9):
            expected = sum(own[max(0, turn + 1 - max(0, hops[v, u] - 1))][u] for u in range(9))
            np.testing.assert_allclose(state.total[v], expected, rtol=1e-10, atol=1e-10)


def test_what_is_lost_is_only_late():
    """After the last change everybody ends with the same sum, also over a network that loses half of its messages."""
    tree = spanning_tree(network.adjacency("tree", 15, np.random.default_rng(2)))
    learner, change = Relay(tree, rounds=10), np.random.default_rng(3).normal(size=(15, 2, 2))
    state = learner.begin(np.zeros((15, 2, 2)))
    for turn in range(1, 200):
        sent = OverTree(learner, lambda _, turn=turn: change * (turn < 5), Faults(0.5, 7))
        state, _ = sent.advance(state, turn)
    expected = 4 * learner.boost * change.sum(axis=0)
    np.testing.assert_allclose(state.total, np.broadcast_to(expected, state.total.shape), rtol=1e-9)


def test_the_test_tells_data_that_differ_from_data_that_do_not(monkeypatch):
    X, y = load_digits(return_X_y=True)
    found = []
    plain = choice.link_sums
    monkeypatch.setattr(local_rows, "link_sums", lambda *a: found.append(plain(*a)) or found[-1])
    chosen = {}
    for partition in ("iid", "drift-x", "drift-y", "drift-xy"):
        run = pb.simulate(X, y, peers=30, rows_per_peer=40, partition=partition, strategy="auto", rounds=8)
        chosen[partition] = run.configuration["strategy"]
    assert len(found) == 4
    assert chosen == {"iid": "exact", "drift-x": "relay", "drift-y": "relay", "drift-xy": "relay"}
    ratios = [sums.difference for sums in found]
    assert 0.6 < ratios[0] < 1.5 < min(ratios[1:])


def test_relay_is_nearer_to_the_aim_where_every_peer_has_one_class():
    X, y = load_digits(return_X_y=True)
    settings = {"peers": 30, "rows_per_peer": 40, "partition": "drift-y", "evaluate_every": 0}
    gaps = {
        s: pb.simulate(X, y, strategy=s, **settings).summary()["test_gap_rc"]
        for s in ("crc", "exact", "relay")
    }
    assert gaps["relay"] < 0.03
    assert gaps["relay"] < gaps["crc"]


def test_auto_relays_where_everybody_is_near():
    X, y = load_wine(return_X_y=True)
    for topology, chosen in (("complete", "relay"), ("chain", "exact")):
        run = pb.simulate(X, y, peers=20, rows_per_peer=6, strategy="auto", rounds=24, topology=topology)
        assert run.configuration["strategy"] == chosen, topology


def test_relay_needs_a_fixed_network():
    X, y = load_wine(return_X_y=True)
    with pytest.raises(ValueError, match="strategy 'relay' with a network that changes"):
        pb.simulate(X, y, peers=5, rows_per_peer=20, strategy="relay", change_every=2)
    for change in ({"change_every": 2}, {"peers_down": 0.1}):
        run = pb.simulate(
            X, y, peers=5, rows_per_peer=20, strategy="auto", partition="drift-y", rounds=5, **change
        )
        assert run.configuration["strategy"] == "exact"


@pytest.mark.parametrize("strategy", ["relay", "auto"])
def test_one_peer_relays_to_nobody(strategy):
    """And so learns what it would learn alone."""
    settings = {"peers": 1, "rows_per_peer": 120, "topology": "complete", "rounds": 12, "references": False}
    alone, relayed = (
        pb.simulate(*load_wine(return_X_y=True), strategy=name, **settings) for name in ("local", strategy)
    )
    assert relayed.configuration["strategy"] == "relay"
    np.testing.assert_allclose(relayed.stats, alone.stats, rtol=1e-12, atol=1e-12 * np.abs(alone.stats).max())
    assert (relayed.history["bytes"] == 0).all()
