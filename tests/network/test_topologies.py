"""Networks, schedules and mixing matrices: laws over every name and size, and what is refused."""

import time
from collections import Counter
from math import comb, isqrt, log2

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse, stats

from peerbayes import TopologyError
from peerbayes import network as topologies
from peerbayes.errors import PeerbayesError
from peerbayes.network import (
    Changing,
    Churn,
    Schedule,
    Sequence,
    Static,
    adjacency,
    closed_mean,
    diameter,
    lose,
    metropolis,
    neighbour_mean,
    schedule,
    smallest_eigenvalue,
    spectral_gap,
    stable,
    within_distance,
)

SEEDS = st.integers(0, 2**32)
MIXINGS = [neighbour_mean, closed_mean, metropolis, stable]


def rng(seed=0):
    return np.random.default_rng(seed)


def build(name, nodes, seed=0):
    return adjacency(name, nodes, rng(seed))


def is_prime(number):
    return number > 1 and all(number % divisor for divisor in range(2, isqrt(number) + 1))


def sides(nodes):
    rows = max(count for count in range(1, isqrt(nodes) + 1) if nodes % count == 0)
    return rows, nodes // rows


def around(length):
    """Links of a ring, for each of its nodes."""
    return {1: 0, 2: 0.5}.get(length, 1)


def steps(nodes):
    return {sign * 2**j % nodes for j in range(nodes.bit_length()) if 2**j < nodes for sign in (1, -1)}


ANY = st.integers(2, 60)
RECTANGLES = ANY.filter(lambda nodes: nodes <= 3 or not is_prime(nodes))
EVEN = st.integers(6, 30).map(lambda half: 2 * half)

# name: (sizes to try, expected number of links)
TOPOLOGIES = {
    "tree": (ANY, lambda n: n - 1),
    "chain": (ANY, lambda n: n - 1),
    "ring": (ANY, lambda n: n * around(n)),
    "star": (ANY, lambda n: n - 1),
    "grid": (RECTANGLES, lambda n: 2 * n - sum(sides(n))),
    "torus": (RECTANGLES, lambda n: n * sum(map(around, sides(n)))),
    "hypercube": (st.sampled_from([2, 4, 8, 16, 32, 64]), lambda n: n * log2(n) / 2),
    "complete": (ANY, lambda n: comb(n, 2)),
    "bipartite": (ANY, lambda n: (n // 2) * (n - n // 2)),
    "exponential": (ANY, lambda n: n * len(steps(n)) / 2),
    "tree+0": (ANY, lambda n: n - 1),
    "tree+9": (st.integers(7, 60), lambda n: n + 8),
    "regular-2": (st.integers(3, 60), lambda n: n),
    "regular-3": (EVEN, lambda n: n * 3 / 2),
    "regular-8": (st.integers(9, 60), lambda n: n * 4),
    "erdos-0.5": (st.integers(8, 60), None),
    "erdos-1": (ANY, lambda n: comb(n, 2)),
    "small-world-4-0.3": (st.integers(6, 60), lambda n: 2 * n),
    "small-world-4-1": (st.integers(5, 40), lambda n: 2 * n),
}  # fmt: skip
RANDOM = ["tree", "tree+9", "regular-2", "regular-3", "regular-8", "erdos-0.5", "small-world-4-0.3"]

# Degrees that all nodes share, or all their possible values.
DEGREES = {
    "chain": lambda n: {1, 2} if n > 2 else {1},
    "ring": lambda n: {min(2, n - 1)},
    "star": lambda n: {1, n - 1},
    "hypercube": lambda n: {int(log2(n))},
    "complete": lambda n: {n - 1},
    "bipartite": lambda n: {n // 2, n - n // 2},
    "exponential": lambda n: {len(steps(n))},
    "torus": lambda n: {int(sum(2 * around(side) for side in sides(n)))},
    "regular-2": lambda n: {2},
    "regular-3": lambda n: {3},
    "regular-8": lambda n: {8},
}


def same(one, other):
    return one.shape == other.shape and (one != other).nnz == 0


def network_law(matrix, nodes):
    """What every network is."""
    assert isinstance(matrix, sparse.csr_array) and matrix.shape == (nodes, nodes)
    assert matrix.dtype == np.float64 and (matrix.data == 1).all()
    assert matrix.has_canonical_format and matrix.has_sorted_indices
    assert same(matrix, matrix.T.tocsr())
    assert (matrix.diagonal() == 0).all()
    assert sparse.csgraph.connected_components(matrix)[0] == 1


# --- networks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TOPOLOGIES)
@given(data=st.data(), seed=SEEDS)
def test_a_named_network_is_connected_and_has_its_links(name, data, seed):
    sizes, links = TOPOLOGIES[name]
    nodes = data.draw(sizes)
    matrix = build(name, nodes, seed)
    network_law(matrix, nodes)
    degrees = set(np.diff(matrix.indptr).tolist())
    assert 0 not in degrees
    assert links is None or matrix.nnz == 2 * links(nodes)
    assert name not in DEGREES or degrees == DEGREES[name](nodes)
    assert same(matrix, build(name, nodes, seed))


@pytest.mark.parametrize("name", RANDOM)
def test_seeds_matter_to_random_networks_only(name):
    assert not same(build(name, 30, 1), build(name, 30, 2))
    generator = rng(3)
    before = generator.bit_generator.state
    for fixed in topologies.FIXED:
        adjacency(fixed, 16, generator)
    assert generator.bit_generator.state == before


@pytest.mark.parametrize(
    ("name", "nodes", "graph"),
    [
        ("chain", 7, nx.path_graph(7)),
        ("ring", 7, nx.cycle_graph(7)),
        ("star", 7, nx.star_graph(6)),
        ("grid", 12, nx.grid_2d_graph(3, 4)),
        ("torus", 20, nx.grid_2d_graph(4, 5, periodic=True)),
        ("hypercube", 16, nx.hypercube_graph(4)),
        ("complete", 6, nx.complete_graph(6)),
        ("bipartite", 7, nx.complete_bipartite_graph(3, 4)),
        ("exponential", 11, nx.circulant_graph(11, [1, 2, 4, 8])),
        ("small-world-4-0", 9, nx.watts_strogatz_graph(9, 4, 0)),
    ],
)
def test_fixed_networks_are_those_of_networkx(name, nodes, graph):
    numbered = nx.convert_node_labels_to_integers(graph, ordering="sorted")
    expected = nx.to_numpy_array(numbered, nodelist=range(nodes))
    assert np.array_equal(build(name, nodes).toarray(), expected)


def drawn(name, nodes, draws, seed):
    """How often each network comes."""
    generator = rng(seed)
    return Counter(adjacency(name, nodes, generator).toarray().tobytes() for _ in range(draws))


def test_every_labelled_tree_is_equally_likely():
    counts = drawn("tree", 4, 16_000, seed=1)
    assert len(counts) == 16
    assert stats.chisquare(list(counts.values())).pvalue > 0.001


def test_further_links_of_a_tree_are_equally_likely():
    """With one more link, each of the 3 squares has 4 spanning trees, each of the 12 triangles with a tail 3."""
    counts = drawn("tree+1", 4, 4800, seed=2)
    squares = {
        bytes_: n for bytes_, n in counts.items() if np.frombuffer(bytes_).reshape(4, 4).sum(0).max() == 2
    }
    others = [n for bytes_, n in counts.items() if bytes_ not in squares]
    assert (len(squares), len(others)) == (3, 12)
    observed = [*squares.values(), *others]
    assert stats.chisquare(observed, [400] * 3 + [300] * 12).pvalue > 0.001


def test_regular_networks_come_in_every_shape():
    """The 70 cubic networks of six nodes: none is left out, none is favoured beyond the sampler's small bias."""
    counts = drawn("regular-3", 6, 3500, seed=3)
    assert len(counts) == 70
    assert min(counts.values()) > 25 and max(counts.values()) < 85  # 50 each, give or take 7


@pytest.mark.parametrize("degree", range(2, 20))
def test_regular_networks_of_any_density(degree):
    for seed in range(5):
        matrix = build(f"regular-{degree}", 20, seed)
        network_law(matrix, 20)
        assert (np.diff(matrix.indptr) == degree).all()


def test_random_networks_have_the_links_they_ask_for():
    links = np.array([build("erdos-0.2", 60, seed).nnz / 2 for seed in range(100)])
    assert abs(links.mean() - 0.2 * comb(60, 2)) < 4 * links.std() / 10
    ring = build("small-world-6-0", 200)
    kept = np.mean(
        [ring.multiply(build("small-world-6-0.25", 200, seed)).nnz / ring.nnz for seed in range(20)]
    )
    assert kept == pytest.approx(0.75, abs=0.03)  # a moved link hardly ever lands on the ring
    assert same(build("erdos-1e-01", 40), build("erdos-.1", 40))


def test_a_tree_with_every_further_link_is_complete():
    assert same(build(f"tree+{comb(8, 2)}", 9), build("complete", 9))


@pytest.mark.parametrize("name", ["tree", "chain", "complete"])
def test_a_single_node(name):
    matrix = build(name, 1)
    assert matrix.shape == (1, 1) and matrix.nnz == 0 and matrix.dtype == np.float64
    for mixing in MIXINGS:
        assert mixing(matrix).toarray() == [[1.0]]
    assert (spectral_gap(stable(matrix)), smallest_eigenvalue(stable(matrix))) == (1.0, 1.0)
    assert schedule(name, 1, rng()).at(1).nnz == 0
    assert diameter(matrix) == 0


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("tree", 999_999),
        ("ring", 1_000_000),
        ("grid", 1_998_000),
        ("tree+1000", 1_000_999),
        ("regular-3", 1_500_000),
    ],
)
def test_a_million_nodes(name, links):
    began = time.perf_counter()
    matrix = build(name, 1_000_000)
    assert time.perf_counter() - began < 20  # seconds; takes less than two where nothing else runs
    assert matrix.shape == (1_000_000, 1_000_000) and matrix.nnz == 2 * links
    assert matrix.indices.dtype == np.int32
    assert sparse.csgraph.connected_components(matrix)[0] == 1


# --- networks that a user brings ---------------------------------------------------------------------------

TRIANGLE = np.array([[0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 1], [0, 0, 1, 0]])


def shuffled_graph():
    graph = nx.Graph()
    graph.add_nodes_from([3, 1, 0, 2])
    graph.add_edges_from([(3, 2), (2, 1), (1, 0), (0, 2)], weight=7.5)
    return graph


@pytest.mark.parametrize(
    "given_network",
    [
        pytest.param(TRIANGLE, id="integers"),
        pytest.param(TRIANGLE.astype(bool), id="booleans"),
        pytest.param(TRIANGLE.tolist(), id="lists"),
        pytest.param(sparse.coo_array(TRIANGLE), id="coo array"),
        pytest.param(sparse.csc_matrix(TRIANGLE), id="csc matrix"),
        pytest.param(sparse.csr_array(TRIANGLE.astype(np.float32)), id="csr array"),
        pytest.param(nx.from_numpy_array(TRIANGLE), id="networkx"),
        pytest.param(shuffled_graph(), id="networkx, numbered in any order"),
        pytest.param(nx.MultiGraph([*shuffled_graph().edges(), (0, 1)]), id="networkx, a link twice"),
    ],
)
def test_a_network_of_any_kind(given_network):
    matrix = adjacency(given_network, 4, rng())
    network_law(matrix, 4)
    assert np.array_equal(matrix.toarray(), TRIANGLE)


def test_a_graph_with_names_keeps_its_order():
    graph = nx.Graph([("b", "a"), ("a", "c")])
    assert np.array_equal(adjacency(graph, 3, rng()).toarray(), [[0, 1, 0], [1, 0, 1], [0, 1, 0]])


def test_a_given_matrix_is_left_as_it_was():
    unsorted = [2, 1, 0, 0]
    given_matrix = sparse.csr_array((np.ones(4), unsorted, [0, 2, 3, 4]), shape=(3, 3))
    before = given_matrix.indices.copy()
    matrix = adjacency(given_matrix, 3, rng())
    network_law(matrix, 3)
    assert np.array_equal(given_matrix.indices, before)
    matrix.data[:] = 9
    assert (given_matrix.data == 1).all()


@pytest.mark.parametrize("ending", ["txt", "csv", "edges", "links"])
def test_a_network_from_a_file(tmp_path, ending):
    path = tmp_path / f"network.{ending}"
    path.write_text("# four nodes\n0 1\n1, 2  # a comment\n\n2\t0\n0 2\n2,3\n", encoding="utf-8")
    for topology in [path] if ending == "links" else [path, str(path)]:
        assert np.array_equal(adjacency(topology, 4, rng()).toarray(), TRIANGLE)


# --- what is refused ---------------------------------------------------------------------------------------


def matrix_with(*entries):
    changed = TRIANGLE.astype(float)
    for row, column, value in entries:
        changed[row, column] = value
    return changed


@pytest.mark.parametrize(
    ("topology", "nodes", "words"),
    [
        ("web", 5, ["'web'", "tree+K", "small-world-D-P", ".edges"]),
        ("tree+", 5, ["'tree+'"]),
        ("regular-x", 5, ["'regular-x'"]),
        ("erdos--0.5", 5, ["'erdos--0.5'"]),
        ("tree", 0, ["nodes is 0", "1 or more"]),
        ("tree", -3, ["nodes is -3"]),
        ("tree", 2.5, ["nodes is 2.5", "whole number"]),
        ("ring", 1, ["ring with 1 node", "complete, chain, tree"]),
        ("tree+0", 1, ["tree+0 with 1 node"]),
        (np.zeros((1, 1)), 1, ["single node", "complete, chain, tree"]),
        ("grid", 13, ["13 is a prime", "12 or 14"]),
        ("torus", 7, ["7 is a prime", "6 or 8"]),
        ("hypercube", 12, ["not 12", "8 or 16"]),
        ("tree+7", 5, ["tree+7 with 5 nodes", "room for 6"]),
        ("regular-3", 7, ["regular-3 with 7 nodes", "even"]),
        ("regular-8", 8, ["regular-8 with 8 nodes", "D < nodes"]),
        ("regular-1", 4, ["regular-1 with 4 nodes", "2 ≤ D"]),
        ("erdos-1.5", 5, ["probability is 1.5", "0 to 1"]),
        ("erdos-0.01", 50, ["erdos-0.01 with 50 nodes", "100 draws", "ln N = 3.9", "tree+K"]),
        ("small-world-3-0.1", 9, ["small-world-3-0.1", "even D"]),
        ("small-world-4-0.1", 4, ["small-world-4-0.1 with 4 nodes"]),
        ("small-world-4-2", 9, ["probability is 2"]),
        (TRIANGLE, 5, ["has 4 nodes", "expected 5"]),
        (TRIANGLE[:3], 4, ["shape (3, 4)", "square"]),
        (TRIANGLE[0], 4, ["shape (4,)", "square"]),
        (TRIANGLE.astype(str), 4, ["<U", "0 and 1"]),
        (None, 4, ["topology is None", "networkx graph"]),
        (matrix_with((3, 3, 1)), 4, ["[3, 3] is 1", "its own neighbour"]),
        (matrix_with((0, 3, 1)), 4, ["[0, 3] is 1", "both ways", "matrix.T"]),
        (matrix_with((3, 2, 0)), 4, ["[2, 3] is 1", "both ways"]),
        (matrix_with((0, 1, 0.5), (1, 0, 0.5)), 4, ["[0, 1] is 0.5", "0 or 1"]),
        (matrix_with((0, 1, np.nan)), 4, ["[0, 1] is nan", "0 or 1"]),
        (sparse.coo_array(([1, 1, 1], ([0, 0, 1], [1, 1, 0])), shape=(2, 2)), 2, ["[0, 1] is 2"]),
        (matrix_with((2, 3, 0), (3, 2, 0)), 4, ["2 parts", "node 3", "of size 1"]),
        (nx.Graph([(0, 1), (2, 3), (3, 4), (5, 6), (6, 7), (7, 5)]), 8, ["3 parts", "node 0", "of size 2"]),
        (nx.DiGraph([(0, 1)]), 2, ["directed", "to_undirected"]),
        (nx.Graph([(0, 1), (1, 1)]), 2, ["[1, 1]", "its own neighbour"]),
        (nx.path_graph(3), 4, ["has 3 nodes", "expected 4"]),
    ],
)  # fmt: skip
def test_a_network_that_is_refused(topology, nodes, words):
    with pytest.raises(TopologyError) as raised:
        adjacency(topology, nodes, rng())
    missing = [word for word in words if word not in str(raised.value)]
    assert not missing, f"{missing} not in {raised.value}"
    assert isinstance(raised.value, PeerbayesError) and isinstance(raised.value, ValueError)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 1\n1 2 3\n", ["line 2", "'1 2 3'", "two nodes"]),
        ("0 one\n", ["line 1", "'0 one'"]),
        ("# from 1\n3 4\n", ["line 2", "'3 4'", "0 to 3", "more than 4"]),
        ("0 -1\n", ["line 1"]),
        ("0 1\n2 2\n", ["[2, 2]", "its own neighbour"]),
        ("0 1\n1 2\n", ["2 parts", "node 3"]),
        ("", ["4 parts"]),
        (b"\xff\xfe\x00", ["cannot be read"]),
        (None, ["cannot be read"]),
    ],
)
def test_a_file_that_is_refused(tmp_path, text, words):
    path = tmp_path / "network.txt"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TopologyError) as raised:
        adjacency(path, 4, rng())
    missing = [word for word in words if word not in str(raised.value)]
    assert not missing, f"{missing} not in {raised.value}"


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda: Changing("ring", 5, 1, 0), "'ring' cannot change.*not random.*Sequence"),
        (lambda: schedule(TRIANGLE, 4, rng(), change_every=2), "cannot change"),
        (lambda: Changing("tree", 5, 0, 0), "every is 0.*1 or more"),
        (lambda: Changing("tree", 0, 1, 0), "nodes is 0"),
        (lambda: Changing("tree", 5, 1, -1), "seed is -1.*0 or more"),
        (lambda: Changing("tree", 5, 1, 0).at(0), "round is 0.*1 or more"),
        (lambda: Static(TRIANGLE).at(0), "round is 0"),
        (lambda: Static(np.zeros((0, 0))), "has 0 nodes"),
        (lambda: Static(np.zeros((2, 2))), "2 parts"),
        (lambda: Sequence([]), "of no nodes"),
        (lambda: Sequence([TRIANGLE, TRIANGLE[:3, :3]]), r"of \[3, 4\] nodes.*one size"),
        (lambda: Sequence([TRIANGLE], every=0), "every is 0"),
        (lambda: Sequence([np.zeros((2, 2)), np.zeros((2, 2))]), "2 parts"),
        (lambda: Churn(Static(TRIANGLE), 1.5), "down is 1.5.*0 to 1"),
        (lambda: Churn(Static(TRIANGLE), 0.5, 1.5), "seed is 1.5.*whole"),
        (lambda: schedule(Static(TRIANGLE), 5, rng()), "has 4 nodes; expected 5"),
        (
            lambda: schedule(Static(TRIANGLE), 4, rng(), change_every=3),
            "change_every is 3.*leave change_every out",
        ),
        (lambda: lose(metropolis(build("ring", 5)), np.ones(10, bool)), r"shape \(10,\).*15 booleans"),
        (lambda: lose(metropolis(build("ring", 5)), np.ones(15)), "type float64.*15 booleans"),
        (lambda: within_distance(build("ring", 5), -1), "farthest is -1"),
        (lambda: diameter(sparse.csr_array((3, 3))), "3 parts"),
    ],
)
def test_what_else_is_refused(action, words):
    with pytest.raises(TopologyError, match=words):
        action()


# --- schedules ---------------------------------------------------------------------------------------------

CHANGING = {
    "static": lambda seed: Static(build("tree", 12, seed)),
    "changing": lambda seed: Changing("tree", 12, 3, seed),
    "sequence": lambda seed: Sequence(
        [build("ring", 12), build("tree", 12, seed), build("star", 12)], every=2
    ),
    "churn": lambda seed: Churn(Static(build("tree+9", 12, seed)), 0.3, seed),
    "churn of changing": lambda seed: Churn(Changing("regular-4", 12, 2, seed), 0.3, seed),
}


@pytest.mark.parametrize("kind", CHANGING)
@given(seed=SEEDS, rounds=st.lists(st.integers(1, 1000), min_size=2, max_size=5))
def test_a_schedule_is_a_function_of_the_round(kind, seed, rounds):
    one, other = CHANGING[kind](seed), CHANGING[kind](seed)
    assert isinstance(one, Schedule) and one.nodes == 12
    answers = {turn: one.at(turn) for turn in rounds}
    for turn in reversed(rounds):
        assert same(answers[turn], one.at(turn))
        assert same(answers[turn], other.at(turn))
        assert same(answers[turn], answers[turn].T.tocsr())
        assert answers[turn].has_sorted_indices and (answers[turn].data == 1).all()
    assert one.static == (kind == "static")


def test_a_changing_network_changes_every_so_often():
    networks = [Changing("tree", 30, 4, seed=1).at(turn) for turn in range(1, 13)]
    changes = [turn for turn in range(1, 12) if not same(networks[turn - 1], networks[turn])]
    assert changes == [4, 8]
    for network in networks:
        network_law(network, 30)
    assert not same(networks[0], Changing("tree", 30, 4, seed=2).at(1))
    assert not same(networks[0], build("tree", 30, 1)), "the first epoch must not repeat default_rng(seed)"


def test_a_sequence_goes_round():
    ring, star = build("ring", 6), build("star", 6)
    cycle = Sequence([ring, star], every=2)
    assert [same(cycle.at(turn), ring) for turn in range(1, 9)] == [True, True, False, False] * 2
    assert Sequence([ring]).static and not cycle.static
    halves = Sequence([np.eye(4)[[1, 0, 3, 2]], np.eye(4)[[3, 2, 1, 0]]])  # each in two parts, together one
    assert halves.at(1).nnz == halves.at(2).nnz == 4


def test_churn_takes_nodes_away_with_their_links():
    whole = build("complete", 200)
    churn = Churn(Static(whole), 0.25, seed=4)
    away = []
    for turn in range(1, 41):
        matrix = churn.at(turn)
        here = np.diff(matrix.indptr) > 0
        expected = whole.toarray() * here[:, None] * here
        assert np.array_equal(matrix.toarray(), expected)
        away.append(1 - here.mean())
    assert len(set(away)) > 5
    assert np.mean(away) == pytest.approx(0.25, abs=4 * np.sqrt(0.25 * 0.75 / 8000))
    assert same(Churn(Static(whole), 0.0).at(1), whole) and Churn(Static(whole), 0.0).static
    assert Churn(Static(whole), 1.0).at(1).nnz == 0


def test_churn_and_change_with_the_same_seed_are_independent():
    """Numbers that made the network must not also say who is away."""
    first = np.random.default_rng([5, 1]).random(1000) >= 0.5
    here = np.diff(Churn(Static(build("complete", 1000)), 0.5, seed=5).at(1).indptr) > 0
    assert 0.4 < np.mean(first == here) < 0.6


def test_schedules_are_built_from_topologies():
    fixed = schedule("tree", 9, rng(1))
    assert isinstance(fixed, Static) and same(fixed.at(7), build("tree", 9, 1))
    changing = schedule("tree", 9, rng(1), change_every=2)
    assert isinstance(changing, Changing) and changing.every == 2 and not changing.static
    assert (
        changing == schedule("tree", 9, rng(1), change_every=2) != schedule("tree", 9, rng(2), change_every=2)
    )
    assert schedule(changing, 9, rng()) is changing
    assert same(schedule(nx.path_graph(4), 4, rng()).at(1), build("chain", 4))


# --- mixing ------------------------------------------------------------------------------------------------


@st.composite
def networks(draw):
    """Any symmetric network, connected or not, with lonely nodes."""
    nodes = draw(st.integers(1, 14))
    density = draw(st.sampled_from([0.1, 0.3, 0.6, 1.0]))
    upper = np.triu(rng(draw(SEEDS)).random((nodes, nodes)) < density, 1)
    return sparse.csr_array((upper | upper.T).astype(float))


@pytest.mark.parametrize("mixing", MIXINGS)
@given(network=networks())
def test_rows_of_a_mixing_matrix_sum_to_one(mixing, network):
    weights = mixing(network)
    dense = weights.toarray()
    assert isinstance(weights, sparse.csr_array) and weights.has_canonical_format
    assert (weights.data > 0).all()
    assert np.allclose(dense.sum(axis=1), 1, rtol=0, atol=1e-14)
    assert np.array_equal(
        dense[~np.eye(len(dense), dtype=bool)] > 0, network.toarray()[~np.eye(len(dense), dtype=bool)] > 0
    )
    if mixing in (metropolis, stable):
        assert np.array_equal(dense, dense.T)
        assert np.allclose(dense.sum(axis=0), 1, rtol=0, atol=1e-14)


@given(network=networks())
def test_means_are_means(network):
    dense = network.toarray()
    degree = dense.sum(axis=1)
    alone = degree == 0
    expected = (dense + np.diag(alone)) / np.maximum(degree, 1)[:, None]
    assert np.allclose(neighbour_mean(network).toarray(), expected, rtol=0, atol=1e-15)
    closed = (dense + np.eye(len(dense))) / (degree + 1)[:, None]
    assert np.allclose(closed_mean(network).toarray(), closed, rtol=0, atol=1e-15)


def stable_by_loops(network):
    """The rule as DESIGN writes it, and the bound max(m_v, m_u) of each link."""
    dense = network.toarray()
    degree = dense.sum(axis=1)
    w = dense / (1 + np.maximum(degree[:, None], degree))
    d = w.sum(axis=1)
    m = np.array([max((d[v] + d[u] for u in np.flatnonzero(dense[v])), default=0.0) for v in range(len(d))])
    bound = np.maximum(m[:, None], m)
    scaled = w * np.minimum(1, 1.303 / np.maximum(bound, 1e-300))
    return scaled + np.diag(1 - scaled.sum(axis=1)), bound, w


@given(network=networks())
def test_stable_weights_follow_the_local_rule(network):
    expected, bound, before = stable_by_loops(network)
    weights, plain = stable(network).toarray(), metropolis(network).toarray()
    assert np.allclose(weights, expected, rtol=0, atol=1e-15)
    within = (before > 0) & (bound < 1.303 - 1e-12)
    assert np.array_equal(weights[within], plain[within])
    beyond = (before > 0) & (bound > 1.303 + 1e-12)
    assert (weights[beyond] < plain[beyond]).all()


OFFERED = [
    *((name, 16) for name in ["chain", "star", "hypercube", "bipartite", "complete", "exponential", "grid", "torus"]),
    *((name, 2) for name in ["tree", "ring", "complete", "exponential"]),
    ("ring", 15), ("ring", 50), ("grid", 50), ("grid", 100), ("torus", 100), ("torus", 50), ("torus", 27),
    ("hypercube", 64), ("bipartite", 3), ("bipartite", 51), ("exponential", 50), ("exponential", 64), ("star", 100),
    ("complete", 100), ("tree", 50), ("tree", 150), ("tree+10", 50), ("tree+20", 50), ("tree+40", 50), ("tree+80", 50),
    ("erdos-0.1", 80), ("erdos-0.5", 40), ("small-world-4-0.1", 60), ("small-world-6-1", 60),
    *((f"regular-{degree}", 50) for degree in range(3, 11)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "nodes"), OFFERED)
def test_stable_mixing_has_no_eigenvalue_below(name, nodes):
    for seed in range(1 if name in topologies.FIXED else 5):
        weights = stable(build(name, nodes, seed))
        assert smallest_eigenvalue(weights) >= -0.303 - 1e-12
        assert spectral_gap(weights) > 0


@given(network=networks())
def test_stable_mixing_has_no_eigenvalue_below_on_any_network(network):
    assert np.linalg.eigvalsh(stable(network).toarray()).min() >= -0.303 - 1e-12


def test_metropolis_mixing_is_not_stable_where_stable_mixing_is():
    torus = build("torus", 16)
    assert smallest_eigenvalue(metropolis(torus)) == pytest.approx(-0.6)  # 1 − 8/5
    assert smallest_eigenvalue(stable(torus)) == pytest.approx(-0.303)  # no more is given up than needed
    past = sum(smallest_eigenvalue(metropolis(build("tree+40", 50, seed))) < -1 / 3 for seed in range(100))
    assert past > 0


def test_stable_mixing_leaves_a_star_alone():
    assert same(stable(build("star", 20)), metropolis(build("star", 20)))


@pytest.mark.parametrize("mixing", MIXINGS)
@given(network=networks(), seed=SEEDS)
def test_lost_messages_leave_their_weight_with_the_receiver(mixing, network, seed):
    weights = mixing(network)
    kept = rng(seed).random(weights.nnz) >= 0.4
    after, before = lose(weights, kept).toarray(), weights.toarray()
    assert np.allclose(after.sum(axis=1), 1, rtol=0, atol=1e-14)
    rows, columns = weights.nonzero()
    off = rows != columns
    arrived, lost = (rows[off & kept], columns[off & kept]), (rows[off & ~kept], columns[off & ~kept])
    assert np.array_equal(after[arrived], before[arrived])
    assert (after[lost] == 0).all()
    moved = np.zeros(len(before))
    np.add.at(moved, lost[0], before[lost])
    assert np.allclose(np.diag(after), np.diag(before) + moved, rtol=0, atol=1e-15)


def test_losing_nothing_changes_nothing_and_losing_all_leaves_everyone_alone():
    for mixing in MIXINGS:
        weights = mixing(build("tree+5", 20))
        assert same(lose(weights, np.ones(weights.nnz, dtype=bool)), weights)
        alone = lose(weights, np.zeros(weights.nnz, dtype=bool))
        assert np.allclose(alone.toarray(), np.eye(20), rtol=0, atol=1e-15)


# --- how well a network mixes ------------------------------------------------------------------------------


def test_spectral_gaps_in_closed_form():
    for nodes in (10, 1001):  # both sides of where the method changes
        cosine = np.cos(2 * np.pi / nodes)
        assert spectral_gap(metropolis(build("ring", nodes))) == pytest.approx(2 / 3 * (1 - cosine), rel=1e-6)
    assert spectral_gap(neighbour_mean(build("complete", 20))) == pytest.approx(1 - 1 / 19)
    assert spectral_gap(closed_mean(build("complete", 20))) == pytest.approx(1)
    assert spectral_gap(neighbour_mean(build("tree", 30))) == pytest.approx(
        0, abs=1e-12
    )  # bipartite: never mixes
    assert spectral_gap(metropolis(sparse.csr_array((5, 5)))) == 0  # all alone


@pytest.mark.parametrize("mixing", MIXINGS)
@pytest.mark.parametrize("name", ["tree", "tree+300", "regular-3", "complete"])
def test_large_and_small_networks_are_measured_alike(mixing, name, monkeypatch):
    weights = mixing(build(name, 150))
    dense = spectral_gap(weights), smallest_eigenvalue(weights)
    monkeypatch.setattr(topologies.mixing, "DENSE_NODES", 100)
    assert (spectral_gap(weights), smallest_eigenvalue(weights)) == pytest.approx(dense, abs=1e-9)


def test_eigenvalues_of_a_large_network_in_parts(monkeypatch):
    monkeypatch.setattr(topologies.mixing, "DENSE_NODES", 200)
    weights = metropolis(Churn(Static(build("tree", 300)), 0.2).at(1))
    assert spectral_gap(weights) == pytest.approx(0, abs=1e-12)
    one_way = lose(metropolis(build("regular-4", 300)), rng().random(1500) > 0.2)
    values = np.linalg.eigvals(one_way.toarray())
    assert smallest_eigenvalue(one_way) == pytest.approx(values.real.min(), abs=1e-9)
    assert spectral_gap(one_way) == pytest.approx(1 - np.sort(np.abs(values))[-2], abs=1e-9)


@pytest.mark.parametrize(
    ("name", "nodes"), [("tree", 40), ("ring", 9), ("grid", 24), ("star", 10), ("tree+9", 30)]
)
def test_distances_are_those_of_networkx(name, nodes, monkeypatch):
    monkeypatch.setattr(topologies.mixing, "DISTANCES_AT_ONCE", 3 * nodes)  # several blocks
    matrix = build(name, nodes)
    graph = nx.from_scipy_sparse_array(matrix)
    lengths = [length for _, found in nx.all_pairs_shortest_path_length(graph) for length in found.values()]
    expected = [np.sum(np.array(lengths) <= k) / nodes**2 for k in range(13)]
    assert np.allclose(within_distance(matrix, 12), expected, rtol=0, atol=1e-15)
    assert diameter(matrix) == nx.diameter(graph)
    assert within_distance(matrix, diameter(matrix))[-1] == 1
    assert within_distance(matrix, 0).tolist() == [1 / nodes]


def test_distances_in_a_network_of_parts():
    parts = sparse.csr_array(nx.to_numpy_array(nx.Graph([(0, 1), (2, 3)])))
    assert within_distance(parts, 3).tolist() == [0.25, 0.5, 0.5, 0.5]
