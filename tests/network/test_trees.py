"""The shallow tree that sums go over: it spans the network, all find the same one, and few hops reach everybody."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerbayes.network import adjacency
from peerbayes.network.trees import ShallowTree, centre


@st.composite
def networks(draw):
    nodes = draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    extra = draw(st.sampled_from(["", "+3", "+15"])) if nodes > 8 else ""
    return adjacency(f"tree{extra}", nodes, rng) if nodes > 1 else adjacency("complete", 1, rng)


@given(networks())
def test_the_tree_spans_the_network_by_its_own_links(links):
    tree = ShallowTree.of(links)
    pairs = [(node, int(parent)) for node, parent in enumerate(tree.parents) if parent >= 0]
    assert all(links[node, parent] for node, parent in pairs)
    graph = nx.Graph(pairs)
    graph.add_nodes_from(range(links.shape[0]))
    assert nx.is_tree(graph) and nx.diameter(graph) <= tree.hops


@given(networks())
def test_what_is_behind_a_link_is_what_removing_the_node_separates(links):
    tree = ShallowTree.of(links)
    graph = nx.Graph([(node, int(parent)) for node, parent in enumerate(tree.parents) if parent >= 0])
    graph.add_nodes_from(range(links.shape[0]))
    for node in graph:
        behind = tree.behind(node)
        assert list(behind) == sorted(graph[node])
        remaining = graph.copy()
        remaining.remove_node(node)
        for neighbour, branch in behind.items():
            expected = nx.node_connected_component(remaining, neighbour)
            assert branch == expected and len(branch) == len(expected) and set(branch) == expected
            assert all((other in branch) == (other in expected) for other in graph)


@given(st.integers(2, 40), st.integers(0, 99))
def test_of_a_tree_the_root_is_its_exact_centre(nodes, seed):
    links = adjacency("tree", nodes, np.random.default_rng(seed))
    graph = nx.from_scipy_sparse_array(links)
    assert centre(links) in nx.center(graph)
    assert ShallowTree.of(links).depths.max() == nx.radius(graph)


def test_a_path_has_its_root_in_the_middle():
    tree = ShallowTree.of(adjacency("chain", 101, np.random.default_rng(0)))
    assert tree.parents[50] == -1 and tree.hops == 100


def test_no_tree_spans_two_networks():
    links = adjacency("chain", 4, np.random.default_rng(0)).tolil()
    links[1, 2] = links[2, 1] = 0
    with pytest.raises(ValueError, match="not connected"):
        ShallowTree.of(links.tocsr())
