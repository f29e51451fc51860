"""Figures of the rows of a simulation: how many of each class every peer has, and where the values of columns lie."""

from __future__ import annotations

import numpy as np

from peerbayes.report.model_figures import CLASSES, Panel, arranged
from peerbayes.report.style import Spec, axis, class_colour, colour, distinct, figure, label, packed, trace
from peerbayes.simulation.histograms import Histograms
from peerbayes.simulation.view import View

PEERS = 80  # most peers that have bars; of more, evenly many are left out
PANELS = 8


def figures_of(view: View) -> dict[str, Spec]:
    """Return the figures of a run's rows by name; none where nothing is known of the rows."""
    if view.histograms is None:
        return {}
    specs = {"rows": rows(view, view.histograms)}
    return specs | ({"columns": columns(view, view.histograms)} if len(view.histograms.columns) else {})


def rows(view: View, histograms: Histograms) -> Spec:
    """Return the figure of the rows of each peer by class, as stacked bars."""
    count = view.peer_count
    peers = np.unique(np.linspace(0, count - 1, min(count, PEERS)).astype(np.int64))
    bars = _stacked(
        view,
        histograms.rows[peers].T,
        peers.astype(np.float64),
        "peer %{x}: %{y:,} rows",
        width=0.9 * count / len(peers),
    )
    smallest, largest = histograms.rows.sum(axis=1).min(), histograms.rows.sum(axis=1).max()
    left_out = "" if len(peers) == count else f"; {len(peers)} of them are drawn"
    return figure(
        bars,
        f"Rows of {count:,} peers by class: {smallest:,} to {largest:,} rows each{left_out}.",
        320,
        barmode="stack",
        showlegend=True,
        xaxis=axis("peer", nticks=8, range=[-0.6, count - 0.4], showgrid=False),
        yaxis=axis("rows", rangemode="tozero"),
    )


def columns(view: View, histograms: Histograms) -> Spec:
    """Return the figure of the values of the columns, one histogram each, with the classes stacked."""
    panels: list[Panel] = []
    for index in range(min(len(histograms.columns), PANELS)):
        edges, counts = histograms.edges[index], histograms.counts[index]
        middles, width = (edges[1:] + edges[:-1]) / 2, float(edges[1] - edges[0]) or 1.0
        traces = _stacked(view, counts, middles, "about %{x:.4g}: %{y:,} rows", width)
        for bars in traces:
            bars["showlegend"] = not panels
        x_axis = axis(tickfont={"size": 10}, automargin=False, nticks=4, showgrid=False)
        y_axis = axis(tickfont={"size": 10}, automargin=False, nticks=3, rangemode="tozero")
        name = view.columns[histograms.columns[index]]
        panels.append((f"<b>{label(name, 22)}</b>", traces, x_axis, y_axis))
    names = [bars["name"] for bars in panels[0][1]]
    legend = {"count": len(names), "width": 46 + 7 * max(map(len, names))}
    spec = arranged(
        panels,
        f"Histograms of {len(panels)} columns, with the rows of each class stacked.",
        {"width": 180, "height": 150, "most": 4, "legend": legend},
        0.34,
        margin={"l": 32, "r": 8, "t": 56, "b": 28},
        showlegend=True,
        barmode="stack",
        bargap=0,
    )
    for title in spec["layout"]["annotations"]:
        title["font"] = {"size": 11, "color": colour("ink")}
    spec["layout"]["legend"] |= {"y": 1, "yref": "container", "yanchor": "top"}
    return spec


def _stacked(view: View, counts: np.ndarray, x: np.ndarray, hover: str, width: float) -> list[Spec]:
    """Return bars of counts [C, B] at [B], one trace for each frequent class and one for all other classes."""
    frequent = np.sort(np.argsort(-view.histograms.rows.sum(axis=0), kind="stable")[:CLASSES])  # type: ignore[union-attr]
    others = np.setdiff1d(np.arange(len(counts)), frequent)
    names = distinct([label(view.classes[index]) for index in frequent])
    parts = [(name, counts[index], class_colour(index)) for name, index in zip(names, frequent, strict=True)]
    if others.size:
        parts.append((f"{others.size} other classes", counts[others].sum(axis=0), colour("muted")))
    return [
        trace(
            "rows",
            x,
            type="bar",
            y=packed(values, "i4"),
            name=name,
            legendgroup=name,
            width=width,
            marker={"color": bar_colour, "line": {"width": 0}},
            hovertemplate=f"{hover}<extra>{name}</extra>",
        )
        for name, values, bar_colour in parts
    ]
