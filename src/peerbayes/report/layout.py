"""Where peers are drawn: close to those they are linked with. The same network is always drawn the same.

Distances on paper follow distances in links d_ij (stress majorisation): every peer i moves to the weighted mean of
where the others would have it,

    x_i ← Σ_j w_ij (x_j + d_ij (x_i − x_j)/|x_i − x_j|) / Σ_j w_ij,     w_ij = 1/d_ij²

with j over all peers of a small network, and over its links and some pivots of a large one.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph
from scipy.spatial import cKDTree

TERMS = 1 << 19  # peers times pivots
FEWEST_PIVOTS = 40
STEPS = 40
MOST_OPENED = 0.75
PARTING_STEPS, PARTING = 12, 0.35  # steps that part peers drawn closer than this, in links
SHAPE, STRETCHED = 0.72, 1.7  # height beside width of a drawing, and how far it may be stretched for that
GOLDEN = math.pi * (3.0 - math.sqrt(5.0))


def positions(nodes: int, links: np.ndarray) -> np.ndarray:
    """[E, 2] pairs of peers -> [N, 2] within about ±1, the longest extent across."""
    pairs = np.ascontiguousarray(links, dtype=np.int64).reshape(-1, 2)
    return _kept(nodes, pairs.tobytes()).copy()


@lru_cache(maxsize=8)  # a dashboard draws the same network for every viewer
def _kept(nodes: int, content: bytes) -> np.ndarray:
    pairs = np.frombuffer(content, dtype=np.int64).reshape(-1, 2)
    ones = np.ones(len(pairs))
    graph = sparse.csr_array((ones, (pairs[:, 0], pairs[:, 1])), shape=(nodes, nodes))
    graph = (graph + graph.T).tocsr()
    count, part = csgraph.connected_components(graph, directed=False)
    if count == 1:
        return _fitted(_connected(graph))
    order = np.argsort(part, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(part, minlength=count))[:-1])
    return _fitted(_packed(nodes, [(some, _connected(graph[some][:, some])) for some in members]))


def _connected(graph: sparse.csr_array) -> np.ndarray:
    """A network in one piece, in units of a link."""
    nodes = graph.shape[0]
    if nodes == 1:
        return np.zeros((1, 2))
    distances = _distances(graph, min(nodes, max(FEWEST_PIVOTS, TERMS // nodes)))
    at = _start(distances)
    return _parted(_opened(_upright(_settled(at, graph, distances))))


def _distances(graph: sparse.csr_array, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Pivots far from each other, and links between them and all: [k], [k, N]."""
    nodes = graph.shape[0]
    if count == nodes:
        return np.arange(nodes), csgraph.shortest_path(graph, unweighted=True, directed=False)
    pivots, rows = [0], []
    nearest = np.full(nodes, np.inf)
    for _ in range(count):
        rows.append(csgraph.dijkstra(graph, indices=pivots[-1:], unweighted=True, directed=False)[0])
        nearest = np.minimum(nearest, rows[-1])
        pivots.append(int(nearest.argmax()))
    return np.array(pivots[:-1]), np.stack(rows)


def _start(distances: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Pivot MDS: the two directions in which squared distances to the pivots vary most; and a little of a spiral."""
    squared = distances[1].T ** 2  # [N, k]
    centred = squared - squared.mean(axis=0) - squared.mean(axis=1, keepdims=True) + squared.mean()
    _, vectors = np.linalg.eigh(centred.T @ centred)
    at = centred @ vectors[:, :-3:-1]
    at *= np.sqrt((distances[1] ** 2).mean() / max((at**2).sum(axis=1).mean() * 2.0, 1e-12))
    turn = np.arange(len(at))
    spiral = np.sqrt((turn + 0.5) / len(at))[:, None] * np.stack(
        [np.cos(turn * GOLDEN), np.sin(turn * GOLDEN)], 1
    )
    return at + 0.3 * spiral * (
        1.0 if np.ptp(at) > 1e-6 else 10.0
    )  # twins, and complete networks, need a start


def _settled(at: np.ndarray, graph: sparse.csr_array, found: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Stress majorisation, all peers at once."""
    pivots, distances = found
    nodes = len(at)
    with np.errstate(divide="ignore"):
        weights = np.where(distances > 0, distances**-2.0, 0.0)  # [k, N]
    weights *= nodes / len(pivots) if len(pivots) < nodes else 1.0
    ends = graph.tocoo()
    along = None if len(pivots) == nodes else (ends.row, ends.col)
    total = weights.sum(axis=0)
    if along is not None:
        total = total + np.bincount(along[0], minlength=nodes)
    for _ in range(STEPS):
        there = at[pivots]
        moved = np.empty_like(at)
        apart = [there[:, None, axis] - at[None, :, axis] for axis in (0, 1)]  # [k, N]
        pull = weights * (1.0 - distances / np.maximum(np.hypot(*apart), 1e-9))
        for axis in (0, 1):
            moved[:, axis] = np.einsum("kn,kn->n", pull, apart[axis])
        if along is not None:
            apart_links = at[along[1]] - at[along[0]]
            length = np.maximum(np.hypot(*apart_links.T), 1e-9)
            pulls = apart_links * (1.0 - 1.0 / length)[:, None]
            moved += np.stack([np.bincount(along[0], pulls[:, axis], minlength=nodes) for axis in (0, 1)], 1)
        at = at + moved / total[:, None]
    return at


def _opened(at: np.ndarray) -> np.ndarray:
    """A crowd in the middle takes more of the room: distances from the centre go towards those of an even disc."""
    away = np.hypot(*at.T)
    farthest = float(away.max())
    crowded = float(np.clip(1.0 - 2.0 * np.median(away) / farthest, 0.0, MOST_OPENED))
    even = farthest * np.sqrt((away.argsort(kind="stable").argsort(kind="stable") + 0.5) / len(at))
    return at * (1.0 - crowded + crowded * even / np.maximum(away, 1e-9))[:, None]


def _parted(at: np.ndarray) -> np.ndarray:
    """Peers that would be drawn one over the other, moved apart."""
    for _ in range(PARTING_STEPS):
        pairs = cKDTree(at).query_pairs(PARTING, output_type="ndarray")
        if not len(pairs):
            break
        first, second = pairs.T
        apart = at[first] - at[second]
        length = np.maximum(np.hypot(*apart.T), 1e-6)
        push = apart / length[:, None] * ((PARTING - length) / 2.0)[:, None]
        met = np.maximum(np.bincount(pairs.ravel(), minlength=len(at)), 2)[:, None] / 2.0
        move = [
            np.bincount(first, push[:, axis], minlength=len(at))
            - np.bincount(second, push[:, axis], minlength=len(at))
            for axis in (0, 1)
        ]
        at = at + np.stack(move, 1) / met
    return at


def _upright(at: np.ndarray) -> np.ndarray:
    """Turned so that the longest extent lies across: screens are wide."""
    at = at - at.mean(axis=0)
    _, vectors = np.linalg.eigh(at.T @ at)
    turned = at @ vectors[:, ::-1]
    return turned * np.where(turned[np.abs(turned).argmax(axis=0), [0, 1]] < 0, -1.0, 1.0)


def _packed(nodes: int, pieces: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Pieces of a network side by side, in rows, the largest first."""
    at = np.zeros((nodes, 2))
    pieces = sorted(pieces, key=lambda piece: -len(piece[0]))
    sizes = [np.ptp(where, axis=0) + 2.0 for _, where in pieces]
    width = max(1.5 * math.sqrt(sum(float(size.prod()) for size in sizes)), float(sizes[0][0]))
    across = down = row = 0.0
    for (some, where), size in zip(pieces, sizes, strict=True):
        if across and across + size[0] > width:
            across, down, row = 0.0, down - row, 0.0
        at[some] = where - where.min(axis=0) + [across + 1.0, down - size[1] + 1.0]
        across, row = across + float(size[0]), max(row, float(size[1]))
    return at


def _fitted(at: np.ndarray) -> np.ndarray:
    """Centred, the largest extent from −1 to 1; what is flat is stretched a little: screens are not that wide."""
    across, down = np.ptp(at, axis=0)
    if 0 < down < SHAPE * across:
        at = at * [1.0, min(STRETCHED, SHAPE * across / down)]
    middle = (at.min(axis=0) + at.max(axis=0)) / 2.0
    return (at - middle) / max(float(np.ptp(at, axis=0).max()) / 2.0, 1e-9)
