"""Networks by name, from a file, a graph or a matrix; all are checked to be connected."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import comb, isqrt, log
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph, csr_array

from peerbayes.data.arguments import refusal, shown
from peerbayes.data.registry import Registry, callable_problem
from peerbayes.errors import TopologyError
from peerbayes.network.mixing import checked, linked, whole_number

# A random network that is not connected is drawn again at most this many times before giving up.
TRIES = 100

MOST_NODES = 2**31 - 1  # matrices hold their columns as int32

FILE_ENDINGS = (".txt", ".csv", ".edges")
NAMES = (
    "tree, chain, ring, star, grid, torus, hypercube, complete, bipartite, exponential, tree+K (K more links), "
    "regular-D (D links a node), erdos-P (each link with probability P), small-world-D-P"
)
EXPECTED = (
    f"one of {NAMES}; a file that ends in {', '.join(FILE_ENDINGS)}; a networkx graph, or a matrix of 0 and 1"
)
ALONE = ("complete", "chain", "tree")  # names of a network of a single node


def adjacency(topology: Any, nodes: int, rng: np.random.Generator) -> csr_array:
    """Return the network A [N,N]: connected, symmetric, float64 ones, nothing on the diagonal.

    topology: a name (see NAMES), a networkx graph (its attributes are not read; nodes in their order, or by number
    if they are 0 … N−1), a matrix of 0 and 1 (dense or sparse), or a file of links: a Path, or a str that ends in
    .txt, .csv or .edges; "u v" per line, counted from 0, # for comments. Only the random names draw from rng.
    """
    nodes = whole_number("nodes", nodes, most=MOST_NODES)
    matrix = isinstance(topology, list | tuple) or hasattr(topology, "__array__") or sparse.issparse(topology)
    graph = hasattr(topology, "is_directed")  # networkx, without importing it
    if isinstance(topology, type) or not (isinstance(topology, str | Path) or graph or matrix):
        raise refusal("topology", topology, EXPECTED, TopologyError)
    if isinstance(topology, str) and not topology.endswith(FILE_ENDINGS):
        return csr_array((1, 1)) if nodes == 1 and topology in ALONE else _named(topology, nodes, rng)
    if nodes == 1:
        raise TopologyError(f"a network of a single node has no links: use one of {', '.join(ALONE)}")
    if isinstance(topology, str | Path):
        return checked(_from_file(Path(topology), nodes), nodes)
    if graph:
        return checked(_from_graph(topology), nodes)
    return checked(topology, nodes)


def node_count(topology: Any) -> int | None:
    """Return how many nodes a graph, a matrix, a file of links or a schedule has; None: its name fits any number."""
    if isinstance(topology, str | Path):
        if isinstance(topology, str) and not topology.endswith(FILE_ENDINGS):
            return None
        pairs = _links(Path(topology), MOST_NODES)
        return int(pairs.max()) + 1 if pairs.size else None
    if isinstance(topology, type) or topology is None:
        return None
    if hasattr(topology, "is_directed"):
        return len(topology)
    if isinstance(nodes := getattr(topology, "nodes", None), int):  # a schedule
        return nodes
    if isinstance(topology, list | tuple):
        return len(topology) or None
    shape: tuple[int, ...] = getattr(topology, "shape", ())
    return int(shape[0]) or None if len(shape) == 2 else None


def _named(name: str, nodes: int, rng: np.random.Generator) -> csr_array:
    """Return the network of a name."""
    refuse_unknown(name)
    random = random_network(name)
    outside = random is None and name not in FIXED
    if nodes == 1:
        raise TopologyError(
            f"{name} with 1 node; expected 2 or more, or for a single node one of {', '.join(ALONE)}"
        )
    if outside:
        return _of_package(name, nodes, rng)
    return FIXED[name](nodes) if random is None else random[0](nodes, rng, *random[1])


def refuse_unknown(name: str) -> None:
    """Refuse a name that no network has."""
    if random_network(name) is None and name not in FIXED and name not in TOPOLOGIES:
        more = f"; {', '.join(TOPOLOGIES.names())} of installed packages" if TOPOLOGIES.names() else ""
        raise refusal("topology", name, f"{EXPECTED}{more}", TopologyError)


def _of_package(name: str, nodes: int, rng: np.random.Generator) -> csr_array:
    """Return the network that an outside package draws: its function returns a graph or a matrix."""
    drawn = TOPOLOGIES[name](nodes, rng)
    if isinstance(drawn, str | Path):
        raise TopologyError(
            f"the topology {name!r} of {TOPOLOGIES.package(name)} gave {shown(drawn)}; expected a matrix"
        )
    return adjacency(drawn, nodes, rng)


# --- deterministic networks --------------------------------------------------------------------------------


def _listed(neighbours: np.ndarray) -> csr_array:
    """Return A from the k neighbours of each node [N,k]; sorts within rows only, which is fast for large networks."""
    nodes, degree = neighbours.shape
    columns = np.sort(neighbours.astype(np.int32), axis=1).ravel()
    ends = np.arange(nodes + 1) * degree
    ends = ends.astype(np.int32) if len(columns) < 2**31 else ends
    return csr_array((np.ones(len(columns)), columns, ends), shape=(nodes, nodes))


def _circulant(nodes: int, steps: np.ndarray) -> csr_array:
    """Return A with node v linked to v ± s mod N for every s of steps."""
    both = np.unique(np.concatenate([steps, -steps]) % nodes)
    return _listed((np.arange(nodes, dtype=np.int32)[:, None] + both.astype(np.int32)) % nodes)


def _rectangle(nodes: int) -> np.ndarray:
    """Return 0 … N−1 as rows × columns, as square as N's divisors allow."""
    rows = max(count for count in range(1, isqrt(nodes) + 1) if nodes % count == 0)
    if rows == 1 and nodes > 3:
        raise TopologyError(
            f"a grid or torus has rows × columns nodes, but {nodes} is a prime; take {nodes - 1} or {nodes + 1}"
        )
    return np.arange(nodes).reshape(rows, -1)


def _grid(nodes: int) -> csr_array:
    grid = _rectangle(nodes)
    first = np.concatenate([grid[:, :-1].ravel(), grid[:-1].ravel()])
    return linked(first, np.concatenate([grid[:, 1:].ravel(), grid[1:].ravel()]), nodes)


def _torus(nodes: int) -> csr_array:
    grid = _rectangle(nodes)
    first = np.tile(grid.ravel(), 2)
    second = np.concatenate([np.roll(grid, -1, axis).ravel() for axis in (0, 1)])
    distinct = first != second  # around a side of length one, the next node is the node itself
    return linked(first[distinct], second[distinct], nodes)


def _hypercube(nodes: int) -> csr_array:
    if nodes & (nodes - 1):
        below = 1 << (nodes.bit_length() - 1)
        raise TopologyError(f"a hypercube has 2, 4, 8, … nodes, not {nodes}; take {below} or {2 * below}")
    return _listed(np.arange(nodes)[:, None] ^ (1 << np.arange(nodes.bit_length() - 1)))


def _bipartite(nodes: int) -> csr_array:
    half = nodes // 2
    return linked(np.repeat(np.arange(half), nodes - half), np.tile(np.arange(half, nodes), half), nodes)


FIXED: dict[str, Callable[[int], csr_array]] = {
    "chain": lambda nodes: linked(np.arange(nodes - 1), np.arange(1, nodes), nodes),
    "ring": lambda nodes: _circulant(nodes, np.array([1])),
    "star": lambda nodes: linked(np.zeros(nodes - 1, dtype=np.int64), np.arange(1, nodes), nodes),
    "grid": _grid,
    "torus": _torus,
    "hypercube": _hypercube,
    "complete": lambda nodes: _circulant(nodes, np.arange(1, nodes)),
    "bipartite": _bipartite,
    "exponential": lambda nodes: _circulant(nodes, 1 << np.arange((nodes - 1).bit_length())),
}


# --- random networks ---------------------------------------------------------------------------------------


def _tree(nodes: int, rng: np.random.Generator) -> csr_array:
    """Return one of the N^(N−2) labelled trees, all equally likely: a Prüfer sequence, decoded in O(N)."""
    sequence = rng.integers(nodes, size=nodes - 2)
    degree = (np.bincount(sequence, minlength=nodes) + 1).tolist()
    leaf = scanned = degree.index(1)
    leaves = []
    for parent in sequence.tolist():  # the smallest remaining leaf is linked to the next parent
        leaves.append(leaf)
        degree[parent] -= 1
        if degree[parent] == 1 and parent < scanned:
            leaf = parent
        else:
            leaf = scanned = degree.index(1, scanned + 1)
    return linked(np.array([*leaves, leaf]), np.append(sequence, nodes - 1), nodes)


def _tree_plus_links(nodes: int, rng: np.random.Generator, links: str) -> csr_array:
    """Return a random tree with K more links, drawn uniformly from the pairs that the tree leaves free."""
    tree, extra, free = _tree(nodes, rng), int(links), comb(nodes - 1, 2)
    if extra > free:
        raise TopologyError(f"tree+{extra} with {nodes} nodes: a tree leaves room for {free} more links")
    first, second = (side.astype(np.int64) for side in sparse.triu(tree).nonzero())
    # Pairs are numbered 0 … N(N−1)/2 − 1. The k-th free one is k, and one further for each of the tree's before it.
    taken = np.sort(second * (second - 1) // 2 + first)
    chosen = rng.choice(free, extra, replace=False, shuffle=False)
    chosen += np.searchsorted(taken - np.arange(nodes - 1), chosen, side="right")
    return linked(*_pairs(np.concatenate([taken, chosen])), nodes)


def _pairs(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs u < v with number v(v−1)/2 + u: [E] -> [E], [E]. Exact for 8·number < 2⁵³: 40 million nodes."""
    second = ((1 + np.sqrt(1.0 + 8.0 * numbers)) / 2).astype(np.int64)
    return numbers - second * (second - 1) // 2, second


def _regular(nodes: int, rng: np.random.Generator, links: str) -> csr_array:
    """Return a network with D links a node, nearly uniform among the connected ones."""
    degree = int(links)
    if degree >= nodes or nodes * degree % 2 or degree < min(2, nodes - 1):
        raise TopologyError(
            f"regular-{degree} with {nodes} nodes: expected 2 ≤ D < nodes, and one of the two even; change either"
        )
    if degree == 2:  # drawn directly: a random union of rings is rarely one ring
        around = rng.permutation(nodes)
        return linked(around, np.roll(around, 1), nodes)
    if 2 * degree >= nodes:  # draw the complement, which is sparse
        return csr_array(1.0 - np.eye(nodes) - _paired(nodes, nodes - 1 - degree, rng).toarray())
    return _until_connected(lambda: _paired(nodes, degree, rng), f"regular-{degree}", nodes)


def _paired(nodes: int, degree: int, rng: np.random.Generator) -> csr_array:
    """Return a network with D links a node: link ends are paired at random, again where they make a loop or double link
    (Steger and Wormald 1999). If no pair fits, a random link is undone, so that its ends can pair otherwise."""
    ends, placed = np.repeat(np.arange(nodes), degree), np.zeros(0, dtype=np.int64)
    while len(ends):
        rng.shuffle(ends)
        pairs = np.sort(ends.reshape(-1, 2), axis=1)
        links, first = np.unique(pairs[:, 0] * nodes + pairs[:, 1], return_index=True)
        fits = np.zeros(len(pairs), dtype=bool)
        fits[first] = (links % nodes != links // nodes) & ~np.isin(links, placed, assume_unique=True)
        placed, ends = np.append(placed, links[fits[first]]), pairs[~fits].ravel()
        if not fits.any() and len(placed):
            undone = int(rng.integers(len(placed)))
            ends = np.append(ends, np.divmod(placed[undone], nodes))
            placed = np.delete(placed, undone)
    return linked(placed // nodes, placed % nodes, nodes)


def _erdos(nodes: int, rng: np.random.Generator, share: str) -> csr_array:
    """Return a network with every pair linked with probability P, given that it is connected."""
    probability, pairs = _probability(share, f"erdos-{share}"), comb(nodes, 2)

    def draw() -> csr_array:
        links = rng.binomial(pairs, probability)
        return linked(*_pairs(rng.choice(pairs, links, replace=False, shuffle=False)), nodes)

    return _until_connected(draw, f"erdos-{share}", nodes)


def _small_world(nodes: int, rng: np.random.Generator, links: str, share: str) -> csr_array:
    """Return a ring of D nearest neighbours, each link rewired with probability P (Watts and Strogatz 1998)."""
    name, degree = f"small-world-{links}-{share}", int(links)
    probability = _probability(share, name)
    if degree < 2 or degree % 2 or degree >= nodes:
        raise TopologyError(f"{name} with {nodes} nodes: expected an even D, at least 2 and below nodes")
    near = np.tile(np.arange(nodes), degree // 2)
    far = (near + np.repeat(np.arange(1, degree // 2 + 1), nodes)) % nodes

    def draw() -> csr_array:
        # A link is the number near·N + far or far·N + near: whichever is smaller.
        taken = set(np.minimum(near * nodes + far, far * nodes + near).tolist())
        degrees = [degree] * nodes
        for index in np.flatnonzero(rng.random(len(near)) < probability).tolist():
            node, old = int(near[index]), int(far[index])
            if degrees[node] == nodes - 1:
                continue  # linked to all: nowhere to move to
            new, link = node, -1
            while new == node or link in taken:
                new = int(rng.integers(nodes))
                link = min(node * nodes + new, new * nodes + node)
            taken.remove(min(node * nodes + old, old * nodes + node))
            taken.add(link)
            degrees[old] -= 1
            degrees[new] += 1
        return linked(*np.divmod(np.array(list(taken)), nodes), nodes)

    return _until_connected(draw, name, nodes)


def _until_connected(draw: Callable[[], csr_array], name: str, nodes: int) -> csr_array:
    """Return the first connected network of at most TRIES draws."""
    for _ in range(TRIES):
        matrix = draw()
        if csgraph.connected_components(matrix)[0] == 1:
            return matrix
    raise TopologyError(
        f"{name} with {nodes} nodes was not connected in {TRIES} draws; expected a connected network, which "
        f"takes about ln N = {log(nodes):.1f} random links a node. Use more links, or tree+K, which is always connected"
    )


def _probability(text: str, name: str) -> float:
    if not float(text) <= 1:
        raise TopologyError(f"{name}: the probability is {text}; expected a number from 0 to 1")
    return float(text)


# Numbers as Python prints them, or .5; digits are limited.
_COUNT = r"(\d{1,18})"
_NUMBER = r"(\d{1,18}|\d{0,18}\.\d{1,30}|\d{1,18}(?:\.\d{1,30})?e-\d{1,3})"
RANDOM: dict[str, Callable[..., csr_array]] = {
    r"tree": _tree,
    rf"tree\+{_COUNT}": _tree_plus_links,
    rf"regular-{_COUNT}": _regular,
    rf"erdos-{_NUMBER}": _erdos,
    rf"small-world-{_COUNT}-{_NUMBER}": _small_world,
}


def random_network(name: str) -> tuple[Callable[..., csr_array], tuple[str, ...]] | None:
    """Return the function that draws this network and the numbers in its name; None if it is not a random one."""
    matches = ((draw, re.fullmatch(pattern, name, flags=re.ASCII)) for pattern, draw in RANDOM.items())
    return next(((draw, match.groups()) for draw, match in matches if match), None)


# Networks of outside packages: functions of the number of nodes and a random generator.
TOPOLOGIES: Registry[Callable[[int, np.random.Generator], Any]] = Registry(
    "topology",
    "peerbayes.topologies",
    {},
    callable_problem,
    lambda name: name in FIXED or random_network(name) is not None,
)


# --- user-defined networks ---------------------------------------------------------------------------------


def _from_file(path: Path, nodes: int) -> csr_array:
    """Return A from a file of links."""
    pairs = _links(path, nodes)
    return linked(pairs[:, 0], pairs[:, 1], nodes)


def _links(path: Path, nodes: int) -> np.ndarray:
    """Return the links [E, 2] of a file with one link "u v" (or "u, v") a line; # starts a comment."""
    try:
        text_lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or not a valid path
        reason = getattr(error, "strerror", None) or str(error)
        raise TopologyError(
            f"topology is the file {shown(str(path))}, which cannot be read: {reason}; expected a text file of links"
        ) from error
    links = []
    for number, text_line in enumerate(text_lines, start=1):
        words = text_line.partition("#")[0].replace(",", " ").split()
        if words and not (len(words) == 2 and all(_below(word, nodes) for word in words)):
            raise TopologyError(
                f"{path}, line {number} is {shown(text_line.strip())}; expected two nodes, each from 0 to {nodes - 1}. "
                f"Correct the line, or use more than {nodes} nodes"
            )
        links += [[int(word) for word in words]] if words else []
    return np.array(links, dtype=np.int64).reshape(-1, 2)


def _below(word: str, nodes: int) -> bool:
    """Return whether a text is a whole number from 0 to nodes − 1."""
    return word.isdecimal() and len(word) < 19 and int(word) < nodes


def _from_graph(graph: Any) -> csr_array:
    """Return A from a networkx graph."""
    if graph.is_directed():
        raise TopologyError("the graph is directed; expected links that go both ways: graph.to_undirected()")
    names = list(graph)
    if set(names) == set(range(len(names))):  # numbered: node k is node k, whenever it was added
        names = sorted(names)
    index_of = {name: index for index, name in enumerate(names)}
    links = [(index_of[first], index_of[second]) for first, second in graph.edges()]
    pairs = np.array(links, dtype=np.int64).reshape(-1, 2)
    return linked(pairs[:, 0], pairs[:, 1], len(names))
