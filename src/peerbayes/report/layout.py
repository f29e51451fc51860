"""Positions of peers in a drawing: close to the peers they are linked with. Equal networks get equal positions.

Distances in the drawing follow distances in links d_ij (stress majorisation): every peer i moves to the weighted mean
of the positions that the others prefer for it,

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
MOST_SPREADING = 0.75
SEPARATION_STEPS, LEAST_DISTANCE = 12, 0.35  # steps that separate peers closer than this, in links
SHAPE, MOST_STRETCH = (
    0.72,
    1.7,
)  # least height relative to the width, and the most that a drawing is stretched for it
GOLDEN = math.pi * (3.0 - math.sqrt(5.0))


def positions(nodes: int, links: np.ndarray) -> np.ndarray:
    """Return coordinates within about ±1, the longest extent horizontal: [E, 2] pairs of peers -> [N, 2]."""
    pairs = np.ascontiguousarray(links, dtype=np.int64).reshape(-1, 2)
    return _cached_positions(nodes, pairs.tobytes()).copy()


@lru_cache(maxsize=8)  # a dashboard draws the same network for every viewer
def _cached_positions(nodes: int, content: bytes) -> np.ndarray:
    pairs = np.frombuffer(content, dtype=np.int64).reshape(-1, 2)
    ones = np.ones(len(pairs))
    graph = sparse.csr_array((ones, (pairs[:, 0], pairs[:, 1])), shape=(nodes, nodes))
    graph = (graph + graph.T).tocsr()
    count, components = csgraph.connected_components(graph, directed=False)
    if count == 1:
        return _fitted(_connected(graph))
    order = np.argsort(components, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(components, minlength=count))[:-1])
    return _fitted(
        _packed(nodes, [(component, _connected(graph[component][:, component])) for component in members])
    )


def _connected(graph: sparse.csr_array) -> np.ndarray:
    """Return the coordinates of a connected network, in units of one link."""
    nodes = graph.shape[0]
    if nodes == 1:
        return np.zeros((1, 2))
    distances = _distances(graph, min(nodes, max(FEWEST_PIVOTS, TERMS // nodes)))
    points = _start(distances)
    return _separated(_spread_out(_upright(_settled(points, graph, distances))))


def _distances(graph: sparse.csr_array, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pivots far from each other, and the distances in links from them to all peers: [k], [k, N]."""
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
    """Return a start by pivot MDS: two principal directions of squared distances to the pivots, plus a spiral."""
    squared = distances[1].T ** 2  # [N, k]
    centred = squared - squared.mean(axis=0) - squared.mean(axis=1, keepdims=True) + squared.mean()
    _, vectors = np.linalg.eigh(centred.T @ centred)
    points = centred @ vectors[:, :-3:-1]
    points *= np.sqrt((distances[1] ** 2).mean() / max((points**2).sum(axis=1).mean() * 2.0, 1e-12))
    indices = np.arange(len(points))
    spiral = np.sqrt((indices + 0.5) / len(points))[:, None] * np.stack(
        [np.cos(indices * GOLDEN), np.sin(indices * GOLDEN)], 1
    )
    return points + 0.3 * spiral * (
        1.0 if np.ptp(points) > 1e-6 else 10.0
    )  # peers with equal distances, as in complete networks, need distinct starts


def _settled(
    points: np.ndarray, graph: sparse.csr_array, pivot_distances: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """Return the points after stress majorisation, all peers at once."""
    pivots, distances = pivot_distances
    nodes = len(points)
    with np.errstate(divide="ignore"):
        weights = np.where(distances > 0, distances**-2.0, 0.0)  # [k, N]
    weights *= nodes / len(pivots) if len(pivots) < nodes else 1.0
    coordinates = graph.tocoo()
    link_ends = None if len(pivots) == nodes else (coordinates.row, coordinates.col)
    total = weights.sum(axis=0)
    if link_ends is not None:
        total = total + np.bincount(link_ends[0], minlength=nodes)
    for _ in range(STEPS):
        pivot_points = points[pivots]
        moved = np.empty_like(points)
        offsets = [pivot_points[:, None, axis] - points[None, :, axis] for axis in (0, 1)]  # [k, N]
        pull = weights * (1.0 - distances / np.maximum(np.hypot(*offsets), 1e-9))
        for axis in (0, 1):
            moved[:, axis] = np.einsum("kn,kn->n", pull, offsets[axis])
        if link_ends is not None:
            link_offsets = points[link_ends[1]] - points[link_ends[0]]
            length = np.maximum(np.hypot(*link_offsets.T), 1e-9)
            pulls = link_offsets * (1.0 - 1.0 / length)[:, None]
            moved += np.stack(
                [np.bincount(link_ends[0], pulls[:, axis], minlength=nodes) for axis in (0, 1)], 1
            )
        points = points + moved / total[:, None]
    return points


def _spread_out(points: np.ndarray) -> np.ndarray:
    """Spread out a crowded centre: distances from the centre move towards those of an evenly filled disc."""
    away = np.hypot(*points.T)
    farthest = float(away.max())
    crowded = float(np.clip(1.0 - 2.0 * np.median(away) / farthest, 0.0, MOST_SPREADING))
    even = farthest * np.sqrt((away.argsort(kind="stable").argsort(kind="stable") + 0.5) / len(points))
    return points * (1.0 - crowded + crowded * even / np.maximum(away, 1e-9))[:, None]


def _separated(points: np.ndarray) -> np.ndarray:
    """Move peers apart that would be drawn on top of each other."""
    for _ in range(SEPARATION_STEPS):
        pairs = cKDTree(points).query_pairs(LEAST_DISTANCE, output_type="ndarray")
        if not len(pairs):
            break
        first, second = pairs.T
        offsets = points[first] - points[second]
        length = np.maximum(np.hypot(*offsets.T), 1e-6)
        push = offsets / length[:, None] * ((LEAST_DISTANCE - length) / 2.0)[:, None]
        close_neighbours = np.maximum(np.bincount(pairs.ravel(), minlength=len(points)), 2)[:, None] / 2.0
        move = [
            np.bincount(first, push[:, axis], minlength=len(points))
            - np.bincount(second, push[:, axis], minlength=len(points))
            for axis in (0, 1)
        ]
        points = points + np.stack(move, 1) / close_neighbours
    return points


def _upright(points: np.ndarray) -> np.ndarray:
    """Rotate so that the longest extent is horizontal: screens are wide."""
    points = points - points.mean(axis=0)
    _, vectors = np.linalg.eigh(points.T @ points)
    turned = points @ vectors[:, ::-1]
    return turned * np.where(turned[np.abs(turned).argmax(axis=0), [0, 1]] < 0, -1.0, 1.0)


def _packed(nodes: int, pieces: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Place the components of a network side by side, in rows, the largest first."""
    points = np.zeros((nodes, 2))
    pieces = sorted(pieces, key=lambda piece: -len(piece[0]))
    sizes = [np.ptp(piece_points, axis=0) + 2.0 for _, piece_points in pieces]
    width = max(1.5 * math.sqrt(sum(float(size.prod()) for size in sizes)), float(sizes[0][0]))
    across = down = row = 0.0
    for (members, piece_points), size in zip(pieces, sizes, strict=True):
        if across and across + size[0] > width:
            across, down, row = 0.0, down - row, 0.0
        points[members] = piece_points - piece_points.min(axis=0) + [across + 1.0, down - size[1] + 1.0]
        across, row = across + float(size[0]), max(row, float(size[1]))
    return points


def _fitted(points: np.ndarray) -> np.ndarray:
    """Centre the points and scale their largest extent to [−1, 1]; a flat drawing is stretched vertically."""
    across, down = np.ptp(points, axis=0)
    if 0 < down < SHAPE * across:
        points = points * [1.0, min(MOST_STRETCH, SHAPE * across / down)]
    middle = (points.min(axis=0) + points.max(axis=0)) / 2.0
    return (points - middle) / max(float(np.ptp(points, axis=0).max()) / 2.0, 1e-9)
