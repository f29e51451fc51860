"""Mixing weights: stochastic, and with `stable` never past the edge where bias-corrected diffusion diverges."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerbayes import network as topologies
from peerbayes.network.schedules import agree

NETWORKS = {
    "tree": 50, "chain": 50, "ring": 50, "star": 50, "grid": 49, "torus": 64, "hypercube": 32, "bipartite": 50,
    "exponential": 50, "complete": 50, "tree+20": 50, "erdos-0.1": 50, "small-world-4-0.1": 50,
    **{f"regular-{degree}": 50 for degree in range(3, 11)},
}  # fmt: skip
MIXINGS = (topologies.neighbour_mean, topologies.closed_mean, topologies.metropolis, topologies.stable)
EDGE = -0.303


def network(name, nodes, seed=0):
    return topologies.adjacency(name, nodes, np.random.default_rng(seed))


@pytest.mark.parametrize(("name", "nodes"), NETWORKS.items())
def test_every_network_is_connected_and_symmetric(name, nodes):
    links = network(name, nodes).toarray()
    np.testing.assert_array_equal(links, links.T)
    assert not links.diagonal().any()
    assert set(np.unique(links)) <= {0.0, 1.0}
    reach = np.linalg.matrix_power(np.eye(nodes) + links > 0, nodes)
    assert (reach > 0).all()


@pytest.mark.parametrize(("name", "nodes"), NETWORKS.items())
@pytest.mark.parametrize("mixing", MIXINGS, ids=lambda f: f.__name__)
def test_rows_sum_to_one_and_no_weight_is_negative(name, nodes, mixing):
    weights = mixing(network(name, nodes)).toarray()
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-12)
    assert (weights >= 0).all()
    if mixing in (topologies.metropolis, topologies.stable):
        np.testing.assert_allclose(weights, weights.T, rtol=1e-12)


@pytest.mark.parametrize(("name", "nodes"), NETWORKS.items())
def test_stable_weights_keep_every_mode_above_the_edge(name, nodes):
    assert np.linalg.eigvalsh(topologies.stable(network(name, nodes)).toarray())[0] >= EDGE - 1e-12


@given(nodes=st.integers(3, 25), more=st.integers(0, 60), seed=st.integers(0, 2**31))
def test_stable_weights_hold_for_any_network(nodes, more, seed):
    more = min(more, nodes * (nodes - 1) // 2 - (nodes - 1))
    links = network(f"tree+{more}" if more else "tree", nodes, seed)
    assert np.linalg.eigvalsh(topologies.stable(links).toarray())[0] >= EDGE - 1e-12


@pytest.mark.parametrize("name", ["grid", "torus", "bipartite", "hypercube", "regular-4"])
def test_plain_metropolis_weights_do_not(name):
    assert np.linalg.eigvalsh(topologies.metropolis(network(name, NETWORKS[name])).toarray())[0] < -1 / 3


@pytest.mark.parametrize("mixing", MIXINGS, ids=lambda f: f.__name__)
def test_what_is_lost_goes_to_the_receiver(mixing):
    weights = mixing(network("tree+20", 30))
    kept = np.random.default_rng(0).random(weights.nnz) > 0.4
    left = topologies.lose(weights, kept).toarray()
    np.testing.assert_allclose(left.sum(axis=1), 1, rtol=1e-12)
    off = ~np.eye(30, dtype=bool)
    assert (left[off] <= weights.toarray()[off]).all()
    assert (left[off] < weights.toarray()[off]).any()


@pytest.mark.parametrize("name", ["tree", "ring", "grid", "complete"])
def test_gossip_agrees_on_the_mean_and_faster_than_plain_averaging(name):
    schedule = topologies.schedule(name, 36, np.random.default_rng(1))
    values = np.random.default_rng(2).normal(size=(36, 3))
    mean = values.mean(axis=0)
    plain = values
    for _ in range(40):
        plain = topologies.metropolis(schedule.at(1)) @ plain
    far = [np.abs(found - mean).max() for found in (plain, agree(schedule, values, 40))]
    assert far[1] < max(far[0], 1e-12)
    np.testing.assert_allclose(agree(schedule, values, 400), np.tile(mean, (36, 1)), atol=1e-6)
    np.testing.assert_array_equal(agree(schedule, values, 0), values)


def test_gossip_over_a_changing_network():
    schedule = topologies.schedule("tree", 20, np.random.default_rng(3), change_every=1)
    values = np.random.default_rng(4).normal(size=(20, 2))
    np.testing.assert_allclose(agree(schedule, values, 300), np.tile(values.mean(axis=0), (20, 1)), atol=1e-6)
