"""Who hears whom: networks, how they change from round to round, and the weights their messages are mixed with.

    A          [N,N]   adjacency: 1 where two nodes are linked, else 0; symmetric, nothing on the diagonal
    A_t        [N,N]   a schedule's network of round t = 1, 2, …
    a = f(A)   [N,N]   mixing: row v holds the weights with which node v averages what it hears; rows sum to 1

Every matrix is a SciPy CSR array with sorted indices; entry [v,u] is the message from u to v. Nodes count from 0.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from math import comb, isqrt, log
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph, csr_array
from scipy.sparse.linalg import LinearOperator, eigs, eigsh, splu

from peerbayes.errors import TopologyError

# A random network that may fall apart is drawn again this often, before its parameters are held to be hopeless.
TRIES = 100

# Exact diffusion is stable on modes with λ > −1/3. `stable` keeps λ ≥ 1 − 1.303 = −0.303, where a mode fades by 7 % a
# round; just inside the edge it would take hundreds of rounds.
LARGEST_LINK_SUM = 1.303

# All eigenvalues of a matrix this small take a fraction of a second; of a larger one, Lanczos iterations find one, in
# a Krylov space wide enough for grids, whose leading eigenvalues nearly coincide.
DENSE_NODES, KRYLOV = 500, 100

# Up to so many links a node (a tree, a ring, and a few more) elimination hardly fills in: then a shift and inversion
# separates eigenvalues that Lanczos hardly can. The shift stays off the ends of the spectrum, where they may lie.
THIN, OFF = 1.05, 1e-9

DISTANCES_AT_ONCE = 2**22  # 32 MB of float64
CHURN_STREAM = 1  # sets Churn's random numbers apart from those of a Changing with the same seed

FILE_ENDINGS = (".txt", ".csv", ".edges")
NAMES = (
    "tree, chain, ring, star, grid, torus, hypercube, complete, bipartite, exponential, tree+K (K more links), "
    "regular-D (D links a node), erdos-P (each link with probability P), small-world-D-P"
)
ALONE = ("complete", "chain", "tree")  # what a single node may be called


def adjacency(topology: Any, nodes: int, rng: np.random.Generator) -> csr_array:
    """The network A [N,N]: connected, symmetric, float64 ones, nothing on the diagonal.

    topology: a name (see NAMES), a networkx graph (its attributes are not read; nodes in their order, or by number
    if they are 0 … N−1), a matrix of 0 and 1 (dense or sparse), or a file of links: a Path, or a str that ends in
    .txt, .csv or .edges; "u v" per line, counted from 0, # for comments. Only the random names draw from rng.
    """
    nodes = _whole("nodes", nodes)
    if isinstance(topology, str) and not topology.endswith(FILE_ENDINGS):
        return csr_array((1, 1)) if nodes == 1 and topology in ALONE else _named(topology, nodes, rng)
    if nodes == 1:
        raise TopologyError(f"nodes is 1; a single node has no links: call it one of {', '.join(ALONE)}")
    if isinstance(topology, str | Path):
        return _checked(_from_file(Path(topology), nodes), nodes)
    if hasattr(topology, "is_directed"):  # networkx, without importing it
        return _checked(_from_graph(topology), nodes)
    return _checked(topology, nodes)


def _named(name: str, nodes: int, rng: np.random.Generator) -> csr_array:
    random = _random(name)
    if random is None and name not in FIXED:
        raise TopologyError(
            f"topology is {name!r}; expected one of {NAMES}; a file that ends in {', '.join(FILE_ENDINGS)}; "
            "a networkx graph, or a matrix of 0 and 1"
        )
    if nodes == 1:
        raise TopologyError(f"{name} with 1 node; expected 2 or more: alone, it is one of {', '.join(ALONE)}")
    return FIXED[name](nodes) if random is None else random[0](nodes, rng, *random[1])


# --- networks that are always the same ---------------------------------------------------------------------


def _linked(first: np.ndarray, second: np.ndarray, nodes: int) -> csr_array:
    """A with A_uv = A_vu = 1 for each pair (u, v) of first [E] and second [E]; a pair may come twice."""
    first, second = first.astype(np.int32), second.astype(np.int32)  # half the memory of SciPy's int64
    rows, columns = np.concatenate([first, second]), np.concatenate([second, first])
    matrix = csr_array((np.ones(len(rows)), (rows, columns)), shape=(nodes, nodes))
    matrix.data[:] = 1.0  # pairs that came twice were summed
    return matrix


def _listed(neighbours: np.ndarray) -> csr_array:
    """A from the neighbours of each node [N,k], all having as many: sorts 40 million links in their rows only."""
    nodes, degree = neighbours.shape
    columns = np.sort(neighbours.astype(np.int32), axis=1).ravel()
    ends = np.arange(nodes + 1) * degree
    ends = ends.astype(np.int32) if len(columns) < 2**31 else ends
    return csr_array((np.ones(len(columns)), columns, ends), shape=(nodes, nodes))


def _circulant(nodes: int, steps: np.ndarray) -> csr_array:
    """Node v linked to v ± s mod N for every s of steps."""
    both = np.unique(np.concatenate([steps, -steps]) % nodes)
    return _listed((np.arange(nodes, dtype=np.int32)[:, None] + both.astype(np.int32)) % nodes)


def _rectangle(nodes: int) -> np.ndarray:
    """0 … N−1 as rows × columns, as square as N's divisors allow."""
    rows = max(count for count in range(1, isqrt(nodes) + 1) if nodes % count == 0)
    if rows == 1 and nodes > 3:
        raise TopologyError(
            f"a grid or torus has rows × columns nodes, but {nodes} is a prime; take {nodes - 1} or {nodes + 1}"
        )
    return np.arange(nodes).reshape(rows, -1)


def _grid(nodes: int) -> csr_array:
    places = _rectangle(nodes)
    first = np.concatenate([places[:, :-1].ravel(), places[:-1].ravel()])
    return _linked(first, np.concatenate([places[:, 1:].ravel(), places[1:].ravel()]), nodes)


def _torus(nodes: int) -> csr_array:
    places = _rectangle(nodes)
    first = np.tile(places.ravel(), 2)
    second = np.concatenate([np.roll(places, -1, axis).ravel() for axis in (0, 1)])
    apart = first != second  # around a side of length one, the next node is the node itself
    return _linked(first[apart], second[apart], nodes)


def _hypercube(nodes: int) -> csr_array:
    if nodes & (nodes - 1):
        below = 1 << (nodes.bit_length() - 1)
        raise TopologyError(f"a hypercube has 2, 4, 8, … nodes, not {nodes}; take {below} or {2 * below}")
    return _listed(np.arange(nodes)[:, None] ^ (1 << np.arange(nodes.bit_length() - 1)))


def _bipartite(nodes: int) -> csr_array:
    half = nodes // 2
    return _linked(np.repeat(np.arange(half), nodes - half), np.tile(np.arange(half, nodes), half), nodes)


FIXED: dict[str, Callable[[int], csr_array]] = {
    "chain": lambda nodes: _linked(np.arange(nodes - 1), np.arange(1, nodes), nodes),
    "ring": lambda nodes: _circulant(nodes, np.array([1])),
    "star": lambda nodes: _linked(np.zeros(nodes - 1, dtype=np.int64), np.arange(1, nodes), nodes),
    "grid": _grid,
    "torus": _torus,
    "hypercube": _hypercube,
    "complete": lambda nodes: _circulant(nodes, np.arange(1, nodes)),
    "bipartite": _bipartite,
    "exponential": lambda nodes: _circulant(nodes, 1 << np.arange((nodes - 1).bit_length())),
}


# --- random networks ---------------------------------------------------------------------------------------


def _tree(nodes: int, rng: np.random.Generator) -> csr_array:
    """One of the N^(N−2) labelled trees, each equally likely: a Prüfer sequence, decoded in O(N)."""
    sequence = rng.integers(nodes, size=nodes - 2)
    degree = (np.bincount(sequence, minlength=nodes) + 1).tolist()
    leaf = scanned = degree.index(1)
    leaves = []
    for parent in sequence.tolist():  # always the smallest leaf that is left is linked to the next parent
        leaves.append(leaf)
        degree[parent] -= 1
        if degree[parent] == 1 and parent < scanned:
            leaf = parent
        else:
            leaf = scanned = degree.index(1, scanned + 1)
    return _linked(np.array([*leaves, leaf]), np.append(sequence, nodes - 1), nodes)


def _tree_and_more(nodes: int, rng: np.random.Generator, more: str) -> csr_array:
    """A random tree and K more links, every set of K pairs that the tree leaves free equally likely."""
    tree, extra, free = _tree(nodes, rng), int(more), comb(nodes - 1, 2)
    if extra > free:
        raise TopologyError(f"tree+{extra} with {nodes} nodes: a tree leaves room for {free} more links")
    first, second = (side.astype(np.int64) for side in sparse.triu(tree).nonzero())
    # Pairs are numbered 0 … N(N−1)/2 − 1. The k-th free one is k, and one further for each of the tree's before it.
    taken = np.sort(second * (second - 1) // 2 + first)
    chosen = rng.choice(free, extra, replace=False, shuffle=False)
    chosen += np.searchsorted(taken - np.arange(nodes - 1), chosen, side="right")
    return _linked(*_pairs(np.concatenate([taken, chosen])), nodes)


def _pairs(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pairs u < v with number v(v−1)/2 + u: [E] -> [E], [E]. Exact while 8·number < 2⁵³: for 40 million nodes."""
    second = ((1 + np.sqrt(1.0 + 8.0 * numbers)) / 2).astype(np.int64)
    return numbers - second * (second - 1) // 2, second


def _regular(nodes: int, rng: np.random.Generator, links: str) -> csr_array:
    """D links a node, nearly uniform among such networks that are connected."""
    degree = int(links)
    if degree >= nodes or nodes * degree % 2 or degree < min(2, nodes - 1):
        raise TopologyError(
            f"regular-{degree} with {nodes} nodes: expected 2 ≤ D < nodes, and one of the two even; change either"
        )
    if degree == 2:  # a union of rings is rarely one ring, but a ring it must be
        around = rng.permutation(nodes)
        return _linked(around, np.roll(around, 1), nodes)
    if 2 * degree >= nodes:  # the network of the missing links is sparse: it is the one that is drawn
        return csr_array(1.0 - np.eye(nodes) - _paired(nodes, nodes - 1 - degree, rng).toarray())
    return _until_connected(lambda: _paired(nodes, degree, rng), f"regular-{degree}", nodes)


def _paired(nodes: int, degree: int, rng: np.random.Generator) -> csr_array:
    """Each node's D ends of links are paired at random, and again those that make a loop or a double link (Steger and
    Wormald 1999). Where none of them fits, a link that did is undone, so that the ends left can pair otherwise."""
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
    return _linked(placed // nodes, placed % nodes, nodes)


def _erdos(nodes: int, rng: np.random.Generator, share: str) -> csr_array:
    """Every pair linked with probability P, given that the network is connected."""
    probability, pairs = _probability(share, f"erdos-{share}"), comb(nodes, 2)

    def draw() -> csr_array:
        links = rng.binomial(pairs, probability)
        return _linked(*_pairs(rng.choice(pairs, links, replace=False, shuffle=False)), nodes)

    return _until_connected(draw, f"erdos-{share}", nodes)


def _small_world(nodes: int, rng: np.random.Generator, links: str, share: str) -> csr_array:
    """Watts and Strogatz 1998: a ring of D nearest neighbours; each link's far end moves with probability P."""
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
        for place in np.flatnonzero(rng.random(len(near)) < probability).tolist():
            node, old = int(near[place]), int(far[place])
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
        return _linked(*np.divmod(np.array(list(taken)), nodes), nodes)

    return _until_connected(draw, name, nodes)


def _until_connected(draw: Callable[[], csr_array], name: str, nodes: int) -> csr_array:
    for _ in range(TRIES):
        matrix = draw()
        if csgraph.connected_components(matrix)[0] == 1:
            return matrix
    raise TopologyError(
        f"{name} with {nodes} nodes fell apart {TRIES} times out of {TRIES}; expected a connected network, which "
        f"takes about ln N = {log(nodes):.1f} random links a node. Take more links, or tree+K: always connected"
    )


def _probability(text: str, name: str) -> float:
    if not float(text) <= 1:
        raise TopologyError(f"{name}: the probability is {text}; expected a number from 0 to 1")
    return float(text)


_NUMBER = r"(\d+|\d*\.\d+|\d+(?:\.\d+)?e-\d+)"  # as Python prints it, or .5
RANDOM: dict[str, Callable[..., csr_array]] = {
    r"tree": _tree,
    r"tree\+(\d+)": _tree_and_more,
    r"regular-(\d+)": _regular,
    rf"erdos-{_NUMBER}": _erdos,
    rf"small-world-(\d+)-{_NUMBER}": _small_world,
}


def _random(name: str) -> tuple[Callable[..., csr_array], tuple[str, ...]] | None:
    """The function that draws this network and the numbers in its name; None if it is not a random one."""
    matches = ((draw, re.fullmatch(pattern, name, flags=re.ASCII)) for pattern, draw in RANDOM.items())
    return next(((draw, match.groups()) for draw, match in matches if match), None)


# --- networks that a user brings ---------------------------------------------------------------------------


def _from_file(path: Path, nodes: int) -> csr_array:
    """A of a file with one link "u v" (or "u, v") a line; # starts a comment."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f"{path} cannot be read: {error}; expected a text file of links") from error
    links = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].replace(",", " ").split()
        if words and not (len(words) == 2 and all(word.isdecimal() and int(word) < nodes for word in words)):
            raise TopologyError(
                f"{path}, line {number} is {line.strip()!r}; expected two nodes, each from 0 to {nodes - 1}. "
                f"Correct the line, or ask for more than {nodes} nodes"
            )
        links += [[int(word) for word in words]] if words else []
    pairs = np.array(links, dtype=np.int64).reshape(-1, 2)
    return _linked(pairs[:, 0], pairs[:, 1], nodes)


def _from_graph(graph: Any) -> csr_array:
    """A of a networkx graph."""
    if graph.is_directed():
        raise TopologyError("the graph is directed; expected links that go both ways: graph.to_undirected()")
    names = list(graph)
    if set(names) == set(range(len(names))):  # numbered: node k is node k, whenever it was added
        names = sorted(names)
    place = {name: index for index, name in enumerate(names)}
    links = [(place[one], place[other]) for one, other in graph.edges()]
    pairs = np.array(links, dtype=np.int64).reshape(-1, 2)
    return _linked(pairs[:, 0], pairs[:, 1], len(names))


def _checked(given: Any, nodes: int | None = None, connected: bool = True) -> csr_array:
    """A copy of the matrix as A [N,N], or an error that says why it is no network."""
    if not sparse.issparse(given):
        given = np.asarray(given)
    if given.ndim != 2 or given.shape[0] != given.shape[1] or given.dtype.kind not in "biuf":
        raise TopologyError(
            f"the network is an array of shape {given.shape} and type {given.dtype}; expected a square matrix of "
            "0 and 1, a networkx graph, a file or a name"
        )
    size = given.shape[0]
    if size != (nodes or size) or size == 0:
        raise TopologyError(
            f"the network has {size} nodes; expected {nodes or 'some'}: change one of the two"
        )
    matrix = csr_array(given, dtype=np.float64, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    for wrong, why in (
        (_with_data(matrix, matrix.data != 1), "links carry no weight, the mixing gives it: expected 0 or 1"),
        (_with_data(matrix, _rows(matrix) == matrix.indices), "expected 0: no node is its own neighbour"),
        (matrix - matrix.T > 0, "the opposite one is 0; links go both ways: take matrix + matrix.T > 0"),
    ):
        if wrong.data.any():
            row, column = (int(places[0]) for places in wrong.nonzero())
            raise TopologyError(f"the network's entry [{row}, {column}] is {matrix[row, column]:g}; {why}")
    if connected:
        _refuse_parts(matrix)
    return matrix


def _refuse_parts(matrix: csr_array) -> None:
    parts, part = csgraph.connected_components(matrix)
    if parts > 1:
        sizes = np.bincount(part)
        smallest = int(np.argmin(sizes))
        raise TopologyError(
            f"the network falls into {parts} parts; node {np.argmax(part == smallest)} is in the smallest, of size "
            f"{sizes[smallest]}. Expected one part: link them"
        )


def _whole(name: str, value: int, least: int = 1) -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        whole = least - 1
    if whole < least:
        raise TopologyError(f"{name} is {value!r}; expected a whole number, {least} or more")
    return whole


# --- schedules ---------------------------------------------------------------------------------------------


@runtime_checkable
class Schedule(Protocol):
    """Which network each round has."""

    @property
    def nodes(self) -> int: ...

    @property
    def static(self) -> bool:
        """Whether every round has the same network."""

    def at(self, round: int) -> csr_array:
        """A_t [N,N] of round t = 1, 2, …: the same matrix whenever it is asked, in any order."""


@dataclass(frozen=True, eq=False)
class Static:
    """The same connected network in every round."""

    matrix: csr_array
    static = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", _checked(self.matrix))

    @property
    def nodes(self) -> int:
        return self.matrix.shape[0]

    def at(self, round: int) -> csr_array:
        _whole("round", round)
        return self.matrix


@dataclass(frozen=True)
class Changing:
    """A new random network every `every` rounds. It is drawn anew at each call: who asks often may keep it."""

    topology: str
    nodes: int
    every: int = 1
    seed: int = 0
    static = False

    def __post_init__(self) -> None:
        if not isinstance(self.topology, str) or _random(self.topology) is None:
            raise TopologyError(
                f"the topology {self.topology!r} cannot change: it is not random. Expected tree, tree+K, regular-D, "
                "erdos-P or small-world-D-P; for a list of networks, a Sequence"
            )
        for name, least in (("nodes", 1), ("every", 1), ("seed", 0)):
            object.__setattr__(self, name, _whole(name, getattr(self, name), least))

    def at(self, round: int) -> csr_array:
        # Epochs count from 1: default_rng([seed, 0]) is default_rng(seed), which someone else may be using.
        epoch = 1 + (_whole("round", round) - 1) // self.every
        return adjacency(self.topology, self.nodes, np.random.default_rng([self.seed, epoch]))


@dataclass(frozen=True, eq=False)
class Sequence:
    """Given networks in turn, each for `every` rounds, then again from the first; connected when taken together."""

    matrices: tuple[csr_array, ...]
    every: int = 1

    def __post_init__(self) -> None:
        matrices = tuple(_checked(matrix, connected=False) for matrix in self.matrices)
        sizes = sorted({matrix.shape[0] for matrix in matrices})
        if len(sizes) != 1:
            raise TopologyError(f"a Sequence of networks of {sizes or 'no'} nodes; expected one size for all")
        _refuse_parts(reduce(operator.add, matrices))
        object.__setattr__(self, "matrices", matrices)
        object.__setattr__(self, "every", _whole("every", self.every))

    @property
    def nodes(self) -> int:
        return self.matrices[0].shape[0]

    @property
    def static(self) -> bool:
        return len(self.matrices) == 1

    def at(self, round: int) -> csr_array:
        return self.matrices[(_whole("round", round) - 1) // self.every % len(self.matrices)]


@dataclass(frozen=True)
class Churn:
    """Each round, each node of another schedule is away with probability `down`, and its links with it.

    What is left may fall apart, and a node may have no neighbour.
    """

    base: Schedule
    down: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.down <= 1:
            raise TopologyError(f"down is {self.down!r}; expected a probability, from 0 to 1")
        object.__setattr__(self, "seed", _whole("seed", self.seed, 0))

    @property
    def nodes(self) -> int:
        return self.base.nodes

    @property
    def static(self) -> bool:
        return self.base.static and self.down == 0

    def at(self, round: int) -> csr_array:
        matrix = self.base.at(round)
        here = np.random.default_rng([self.seed, round, CHURN_STREAM]).random(self.nodes) >= self.down
        return _only(matrix, here[_rows(matrix)] & here[matrix.indices])


def schedule(
    topology: Any, nodes: int, rng: np.random.Generator, change_every: int | None = None
) -> Schedule:
    """A topology (see `adjacency`) as a schedule: fixed, or new every `change_every` rounds. A schedule as it is."""
    if not isinstance(topology, Schedule):
        if change_every is None:
            return Static(adjacency(topology, nodes, rng))
        return Changing(topology, nodes, change_every, seed=int(rng.integers(2**63)))
    if change_every is not None:
        raise TopologyError(
            f"change_every is {change_every}, but the topology is a schedule, which says itself when it changes; "
            "leave change_every out"
        )
    if topology.nodes != nodes:
        raise TopologyError(
            f"the schedule has {topology.nodes} nodes; expected {nodes}: change one of the two"
        )
    return topology


# --- mixing ------------------------------------------------------------------------------------------------


def neighbour_mean(adjacency: csr_array) -> csr_array:
    """D⁻¹A [N,N], the paper's: the mean of the neighbours, without oneself. Without neighbours: 1 to oneself."""
    degree = np.diff(adjacency.indptr)
    mean = _with_data(adjacency, 1.0 / degree[_rows(adjacency)])
    return _plus_diagonal(mean, degree == 0)


def closed_mean(adjacency: csr_array) -> csr_array:
    """(D+I)⁻¹(A+I) [N,N]: the mean of the neighbours and oneself."""
    share = 1.0 / (1.0 + np.diff(adjacency.indptr))
    return _plus_diagonal(_with_data(adjacency, share[_rows(adjacency)]), share)


def metropolis(adjacency: csr_array) -> csr_array:
    """w_vu = 1/(1 + max(deg_v, deg_u)) [N,N], the rest to oneself: symmetric, so columns sum to 1 too."""
    links = _metropolis_links(adjacency)
    return _plus_diagonal(links, 1.0 - _row_sums(links))


def stable(adjacency: csr_array) -> csr_array:
    """Metropolis w [N,N], made smaller where needed so that every eigenvalue is at least −0.303; the rest to oneself.

        d_v = Σ_u w_vu,   m_v = max_u (d_v + d_u),   w_vu ← w_vu·min(1, 1.303/max(m_v, m_u))

    Then d_v ≤ 1.303·d_v(before)/m_v, so d_v + d_u ≤ 1.303 for linked v, u. That sum bounds the largest eigenvalue of
    the weighted Laplacian L (Anderson and Morley), and the mixing matrix is I − L. A node needs two numbers of its
    neighbours. Symmetric.
    """
    links = _metropolis_links(adjacency)
    rows, sums = _rows(links), _row_sums(links)
    linked = np.diff(links.indptr) > 0
    most = np.zeros(len(sums))
    if links.nnz:  # reduceat takes no empty rows
        most[linked] = np.maximum.reduceat(sums[rows] + sums[links.indices], links.indptr[:-1][linked])
    needed = np.maximum(most[rows], most[links.indices])
    links = _with_data(links, links.data * np.minimum(1.0, LARGEST_LINK_SUM / needed))
    return _plus_diagonal(links, 1.0 - _row_sums(links))


def lose(mixing: csr_array, kept: np.ndarray) -> csr_array:
    """The mixing matrix [N,N] when messages get lost: the weight of a lost one goes to the receiver's own diagonal.

    kept: [E] booleans, one for each stored entry in CSR order, so rng.random(mixing.nnz) >= loss. What it says of
    diagonal entries does not count: nothing is sent to oneself.
    """
    rows, kept = _rows(mixing), np.asarray(kept)
    if kept.shape != (mixing.nnz,) or kept.dtype != bool:
        raise TopologyError(
            f"kept has shape {kept.shape} and type {kept.dtype}; expected {mixing.nnz} booleans, one for each stored "
            "entry: rng.random(mixing.nnz) >= loss"
        )
    lost = ~kept & (rows != mixing.indices)
    moved = np.bincount(rows[lost], weights=mixing.data[lost], minlength=mixing.shape[0])
    return _plus_diagonal(_only(mixing, ~lost), moved)


def _metropolis_links(adjacency: csr_array) -> csr_array:
    degree = np.diff(adjacency.indptr)
    larger = np.maximum(degree[_rows(adjacency)], degree[adjacency.indices])
    return _with_data(adjacency, 1.0 / (1.0 + larger))


def _rows(matrix: csr_array) -> np.ndarray:
    """The row of each stored entry: [E]."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def _row_sums(matrix: csr_array) -> np.ndarray:
    return np.bincount(_rows(matrix), weights=matrix.data, minlength=matrix.shape[0])


def _with_data(matrix: csr_array, data: np.ndarray) -> csr_array:
    return csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def _plus_diagonal(matrix: csr_array, diagonal: np.ndarray) -> csr_array:
    """M + diag(d); zeros are not stored."""
    return csr_array(matrix + sparse.diags_array(diagonal.astype(np.float64), format="csr"))


def _only(matrix: csr_array, kept: np.ndarray) -> csr_array:
    """The matrix without the stored entries that are not kept: [E] booleans."""
    before = np.append(0, np.cumsum(kept)).astype(matrix.indptr.dtype)  # how many are kept before each entry
    return csr_array((matrix.data[kept], matrix.indices[kept], before[matrix.indptr]), shape=matrix.shape)


# --- how well a network mixes ------------------------------------------------------------------------------


def spectral_gap(mixing: csr_array) -> float:
    """1 − |λ₂|, the second largest absolute eigenvalue: a round shrinks disagreement by |λ₂| in the long run.

    Rows sum to 1, so a − 1·1ᵀ/N has the eigenvalues of a, but for λ₁ = 1, which becomes 0.
    """
    return 1.0 - float(np.abs(_eigenvalues(mixing, "LM", 1.0)).max())


def smallest_eigenvalue(mixing: csr_array) -> float:
    """min λ: exact diffusion needs more than −1/3. The smallest real part, where messages got lost."""
    return float(np.real(_eigenvalues(mixing, "SR", 0.0)).min())


def _eigenvalues(mixing: csr_array, which: Literal["LM", "SR"], deflate: float) -> np.ndarray:
    """Eigenvalues of a − deflate·1·1ᵀ/N: all of a small matrix, of a large one the largest (LM) or smallest (SR)."""
    nodes, symmetric = mixing.shape[0], (mixing - mixing.T).nnz == 0
    if nodes <= DENSE_NODES:
        dense = mixing.toarray() - deflate / nodes
        return np.linalg.eigvalsh(dense) if symmetric else np.linalg.eigvals(dense)
    start = np.random.default_rng(0).normal(size=nodes)  # any will do, but always the same
    options: dict[str, Any] = {"k": 1, "v0": start, "return_eigenvectors": False}
    if symmetric and mixing.nnz <= (1 + 2 * THIN) * nodes:
        least = 2.0 * mixing.diagonal().min() - 1.0  # Gershgorin: no eigenvalue is smaller
        shifts = [least - OFF] if which == "SR" else [least - OFF, 1.0 + OFF]
        return np.concatenate([eigsh(mixing, sigma=s, OPinv=_inverse(mixing, s), **options) for s in shifts])
    deflated = LinearOperator(mixing.shape, lambda x: mixing @ x - deflate * x.mean(), dtype=np.float64)
    if symmetric:
        return eigsh(deflated, which="SA" if which == "SR" else "LM", ncv=KRYLOV, **options)
    return eigs(deflated, which=which, ncv=KRYLOV, **options)


def _inverse(mixing: csr_array, shift: float) -> LinearOperator:
    """(a − shift·I)⁻¹ on vectors of mean 0: without λ₁ = 1, whose vector is 1."""
    shifted = (mixing - shift * sparse.eye_array(mixing.shape[0])).tocsc()
    solve = splu(shifted, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True}).solve

    def centred(x: np.ndarray) -> np.ndarray:
        solved = solve(x - x.mean())
        return solved - solved.mean()

    return LinearOperator(mixing.shape, centred, dtype=np.float64)


def within_distance(adjacency: csr_array, farthest: int) -> np.ndarray:
    """Share of the nodes at distance ≤ k from a node, averaged over nodes, for k = 0 … farthest: [farthest + 1]."""
    nodes, farthest = adjacency.shape[0], _whole("farthest", farthest, 0)
    counts = np.zeros(farthest + 1)
    for distances in _distances(adjacency, farthest):
        counts += np.bincount(distances[np.isfinite(distances)].astype(np.int64), minlength=farthest + 1)
    return np.cumsum(counts) / nodes**2


def diameter(adjacency: csr_array) -> int:
    """The largest distance between two nodes of a connected network. Takes a search from every node."""
    _refuse_parts(adjacency)
    return int(max(distances.max() for distances in _distances(adjacency, np.inf)))


def _distances(adjacency: csr_array, farthest: float) -> Iterator[np.ndarray]:
    """Blocks [nodes of the block, N] of distances; infinite beyond farthest."""
    nodes = adjacency.shape[0]
    block = max(1, DISTANCES_AT_ONCE // nodes)
    for start in range(0, nodes, block):
        sources = np.arange(start, min(start + block, nodes))
        yield csgraph.dijkstra(adjacency, indices=sources, unweighted=True, limit=farthest)
