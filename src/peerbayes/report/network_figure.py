"""The network of a run: where its peers are drawn, and figures of their current state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph
from scipy.spatial import cKDTree

from peerbayes.report.curves import ERROR_NAMES, REFERENCE_LABELS, REFERENCE_TITLES, references
from peerbayes.report.style import (
    TRANSPARENT,
    Spec,
    axis,
    colour,
    decimal,
    faint,
    figure,
    gapped,
    label,
    packed,
    scale,
    trace,
)
from peerbayes.simulation.view import View

# --- positions of peers in a drawing: close to the peers they are linked with. Equal networks get equal positions
# Distances in the drawing follow distances in links d_ij (stress majorisation): every peer i moves to the weighted
# mean of the positions that the others prefer for it,
#
#     x_i ← Σ_j w_ij (x_j + d_ij (x_i − x_j)/|x_i − x_j|) / Σ_j w_ij,     w_ij = 1/d_ij²
#
# with j over all peers of a small network, and over its links and some pivots of a large one.

TERMS = 1 << 19  # peers times pivots
FEWEST_PIVOTS = 40
STEPS = 40
MOST_SPREADING = 0.75
SEPARATION_STEPS, LEAST_DISTANCE = 12, 0.35  # steps that separate peers closer than this, in links
ASPECT = 0.72  # least height relative to the width
MOST_STRETCH = 1.7  # for it, a drawing is stretched by this factor at most
APART = 2.0  # links between components, in addition to the longest distance in them
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
    if nodes == 1:
        return np.zeros((1, 2))
    graph = (graph + graph.T).tocsr()
    distances = _distances(graph, min(nodes, max(FEWEST_PIVOTS, TERMS // nodes)))
    return _fitted(_separated(_spread_out(_upright(_settled(_start(distances), graph, distances)))))


def _distances(graph: sparse.csr_array, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pivots far from each other, and the distances in links from them to all peers: [k], [k, N].

    Peers that no path connects are farther from each other than any others.
    """
    nodes = graph.shape[0]
    if count == nodes:
        pivots, distances = np.arange(nodes), csgraph.shortest_path(graph, unweighted=True, directed=False)
    else:
        chosen, rows, nearest = [0], [], np.full(nodes, np.inf)
        for _ in range(count):
            rows.append(csgraph.dijkstra(graph, indices=chosen[-1:], unweighted=True, directed=False)[0])
            nearest = np.minimum(nearest, rows[-1])
            chosen.append(int(nearest.argmax()))
        pivots, distances = np.array(chosen[:-1]), np.stack(rows)
    unreachable = np.isinf(distances)
    return pivots, np.where(unreachable, distances[~unreachable].max() + APART, distances)


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
    # Peers with equal distances, as in complete networks, need distinct starts.
    return points + 0.3 * spiral * (1.0 if np.ptp(points) > 1e-6 else 10.0)


def _settled(
    points: np.ndarray, graph: sparse.csr_array, pivot_distances: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """Return the points after stress majorisation, all peers at once."""
    pivots, distances = pivot_distances
    nodes = len(points)
    with np.errstate(divide="ignore"):
        weights = np.where(distances > 0, distances**-2.0, 0.0)  # [k, N]
    near, far = graph.nonzero()  # the ends of all links: terms of their own, unless all peers are pivots
    if len(pivots) == nodes:
        near, far = near[:0], far[:0]
    else:
        weights *= nodes / len(pivots)
    total = weights.sum(axis=0) + np.bincount(near, minlength=nodes)
    for _ in range(STEPS):
        offsets = [points[pivots, None, k] - points[None, :, k] for k in (0, 1)]  # [k, N]
        pull = weights * (1.0 - distances / np.maximum(np.hypot(*offsets), 1e-9))
        moved = np.stack([np.einsum("kn,kn->n", pull, offset) for offset in offsets], 1)
        link_offsets = points[far] - points[near]
        length = np.maximum(np.hypot(*link_offsets.T), 1e-9)
        moved += _summed(near, link_offsets * (1.0 - 1.0 / length)[:, None], nodes)
        points = points + moved / total[:, None]
    return points


def _summed(ends: np.ndarray, vectors: np.ndarray, nodes: int) -> np.ndarray:
    """Return the sum of the vectors at each peer: [E], [E, 2] -> [N, 2]."""
    return np.stack([np.bincount(ends, vectors[:, k], minlength=nodes) for k in (0, 1)], 1)


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
        move = _summed(first, push, len(points)) - _summed(second, push, len(points))
        points = points + move / close_neighbours
    return points


def _upright(points: np.ndarray) -> np.ndarray:
    """Rotate so that the longest extent is horizontal: screens are wide."""
    points = points - points.mean(axis=0)
    _, vectors = np.linalg.eigh(points.T @ points)
    turned = points @ vectors[:, ::-1]
    return turned * np.where(turned[np.abs(turned).argmax(axis=0), [0, 1]] < 0, -1.0, 1.0)


def _fitted(points: np.ndarray) -> np.ndarray:
    """Centre the points and scale their largest extent to [−1, 1]; a flat drawing is stretched vertically."""
    across, down = np.ptp(points, axis=0)
    if 0 < down < ASPECT * across:
        points = points * [1.0, min(MOST_STRETCH, ASPECT * across / down)]
    middle = (points.min(axis=0) + points.max(axis=0)) / 2.0
    return (points - middle) / max(float(np.ptp(points, axis=0).max()) / 2.0, 1e-9)


# --- figures of the peers' current state: the network, and the distribution of their errors

LINKS = 20_000  # most links drawn; of more, a sample
LARGEST, SMALLEST = 16.0, 5.0  # diameters of markers in pixels
CROWDED = 400  # peers above which markers shrink
NARROWEST = 0.01  # least range of errors that the colours span: smaller differences are noise
BARS = 40
MARKED = ("rc", "ml")  # references in the histogram; peers alone would be far away
SHAPE = 0.8  # most height of the network relative to its width


def network(view: View) -> Spec:
    """Return the figure of peers and links; colours show errors, sizes show numbers of rows."""
    points = positions(view.peer_count, view.links)
    ends = view.links
    if len(ends) > LINKS:
        ends = ends[np.linspace(0, len(ends) - 1, LINKS).astype(np.int64)]
    crowding = min(1.0, math.sqrt(CROWDED / max(view.peer_count, 1)))
    largest, smallest = max(3.5, LARGEST * crowding), max(2.5, SMALLEST * crowding)
    peers = trace(
        "peers",
        *points.T,
        mode="markers",
        customdata=packed(np.arange(view.peer_count), "i4"),
        marker={
            "size": packed(view.sizes, "i4"),
            "sizemode": "area",
            "sizeref": max(float(view.sizes.max(initial=1)), 1.0) / largest**2,
            "sizemin": smallest / 2.0,
            "line": {"width": 0},
            "opacity": 1,
            "colorscale": scale("low", "middle", "high"),
            "showscale": True,
            "colorbar": {
                "title": {"text": ERROR_NAMES[view.error], "side": "right"},
                "thickness": 10,
                "len": 0.8,
                "outlinewidth": 0,
                "tickformat": ".3~f",
                "nticks": 5,
            },
            **{key.removeprefix("marker."): value for key, value in _colours(view).items()},
        },
        hovertemplate=_hover(view),
        meta={"grows": "set"},
    )
    if view.names is not None:
        peers["text"] = [label(name) for name in view.names]
    ring = {"color": colour("chosen"), "width": 3}
    marker = {"size": max(16.0, largest + 8.0), "color": TRANSPARENT, "line": ring}
    chosen = trace("chosen", [], [], mode="markers", marker=marker, hoverinfo="skip")
    drawing = graph(
        [link_lines(points, ends, 0.8 if view.peer_count > CROWDED else 1.2, simplify=False), peers, chosen],
        _network_summary(view),
        600,
        margin={"l": 4, "r": 4, "t": 8, "b": 8},
    )
    drawing["layout"]["meta"]["shape"] = SHAPE
    return drawing


def link_lines(points: np.ndarray, ends: np.ndarray, width: float, **line: Any) -> Spec:
    """Return the trace of links between points: [N, 2], [E, 2]."""
    return trace(
        "links",
        gapped(points[ends, 0]),
        gapped(points[ends, 1]),
        mode="lines",
        line={"color": faint("muted", 0.38), "width": width, **line},
        hoverinfo="skip",
    )


def graph(data: list[Spec], summary: str, height: int, **settings: Any) -> Spec:
    """Return the figure of a network: no axes, and the same scale in both directions."""
    hidden = {"visible": False, "constrain": "domain"}
    return figure(data, summary, height, xaxis=hidden, yaxis={**hidden, "scaleanchor": "x"}, **settings)


def spread(view: View) -> Spec:
    """Return the histogram of the peers' current errors."""
    reference_lines = [
        trace(
            reference,
            [value, value],
            [0, 1],
            mode="lines",
            yaxis="y2",
            name=f"{REFERENCE_LABELS[reference]} {decimal(value)}",
            line={"color": colour(reference), "width": 1.5, "dash": "dash"},
            hovertemplate=f"{REFERENCE_TITLES[reference]}: {value:.4f}<extra></extra>",
        )
        for reference, value in references(view).items()
        if reference in MARKED
    ]
    bars = trace(
        "bars",
        type="bar",
        name="peers",
        marker={"color": colour("peers"), "opacity": 0.8, "line": {"width": 0}},
        hovertemplate="%{y:,} peers around %{x:.4f}<extra></extra>",
        showlegend=False,
        meta={"grows": "set"},
        **_bars(view),
    )
    return figure(
        [bars, *reference_lines],
        _spread_summary(view),
        380,
        showlegend=bool(reference_lines),
        bargap=0.04,
        xaxis=axis(ERROR_NAMES[view.error]),
        yaxis=axis("peers", rangemode="tozero"),
        yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
    )


Limits = tuple[float, float]


def limits_of(views: Sequence[View]) -> Limits | None:
    """Return the range of the peers' current errors in all views; None before the first evaluation."""
    errors = np.concatenate([_errors(view) for view in views])
    return _range(errors) if errors.size else None


def with_limits(spec: Spec, view: View, limits: Limits) -> Spec:
    """Return the figure `network` or `spread` of a view over this range of errors: those beside it have the same."""
    traces = []
    for item in spec["data"]:
        if item["meta"]["role"] == "peers":
            item = {**item, "marker": {**item["marker"], "cmin": limits[0], "cmax": limits[1]}}
        elif item["meta"]["role"] == "bars":
            item = {**item, **_bars(view, limits)}
        traces.append(item)
    return {**spec, "data": traces}


def updated(view: View, name: str) -> Spec:
    """Return the patch that a new round makes to a figure: by trace, the attributes to set."""
    if name == "spread":
        axis = {"xaxis.title.text": ERROR_NAMES[view.error]}
        return {"traces": {"0": _bars(view)}, "layout": axis, "summary": _spread_summary(view)}
    texts = {"marker.colorbar.title.text": ERROR_NAMES[view.error], "hovertemplate": _hover(view)}
    return {"traces": {"1": {**_colours(view), **texts}}, "summary": _network_summary(view)}


def _hover(view: View) -> str:
    name = "peer %{customdata}" if view.names is None else "%{text}"
    error = f"<br>{ERROR_NAMES[view.error]} %{{marker.color:.4f}}" if len(view.rounds) else ""
    return f"{name}<br>%{{marker.size:,}} rows{error}<extra></extra>"


def _errors(view: View) -> np.ndarray:
    """Return the current errors that are finite; none before the first evaluation."""
    return view.last[view.error][np.isfinite(view.last[view.error])] if len(view.rounds) else np.zeros(0)


def _range(errors: np.ndarray) -> tuple[float, float]:
    """Return the range of errors that a figure spans."""
    low, high = float(errors.min()), float(errors.max())
    wider = max(0.0, NARROWEST - (high - low)) / 2.0
    return low - wider, high + wider


def _colours(view: View) -> Spec:
    """Return errors as colours, over their current range."""
    errors = _errors(view)
    if not errors.size:
        return {"marker.color": colour("muted"), "marker.cmin": 0.0, "marker.cmax": 1.0}
    low, high = _range(errors)
    return {"marker.color": packed(view.last[view.error]), "marker.cmin": low, "marker.cmax": high}


def _bars(view: View, limits: Limits | None = None) -> Spec:
    """Return counts of errors in bins: plotly's own histogram would need every error."""
    errors = _errors(view)
    if not errors.size:
        return {"x": packed([]), "y": packed([], "i4")}
    count = int(np.clip(2.0 * math.sqrt(errors.size), 8, BARS))
    counts, edges = np.histogram(errors, bins=count, range=limits or _range(errors))
    return {"x": packed((edges[1:] + edges[:-1]) / 2.0), "y": packed(counts, "i4")}


def _network_summary(view: View) -> str:
    errors = _errors(view)
    sentence = f"{view.peer_count:,} peers and {len(view.links):,} links"
    if len(view.links) > LINKS:
        sentence += f", {LINKS:,} of them drawn"
    if not errors.size:
        return f"{sentence}."
    return f"{sentence}; {ERROR_NAMES[view.error]} from {decimal(errors.min())} to {decimal(errors.max())}."


def _spread_summary(view: View) -> str:
    errors = _errors(view)
    if not errors.size:
        return "Distribution of the peers' errors: no round has been evaluated yet."
    return (
        f"The {ERROR_NAMES[view.error]} of {errors.size:,} peers after round {view.rounds[-1]}: from "
        f"{decimal(errors.min())} to {decimal(errors.max())}, median {decimal(float(np.median(errors)))}."
    )
