"""Figures of the peers' current state: the network, and the distribution of their errors."""

from __future__ import annotations

import math

import numpy as np

from peerbayes.report.arrays import Spec, gapped, packed
from peerbayes.report.curves import ERROR_NAMES, REFERENCE_LABELS, REFERENCE_TITLES, references
from peerbayes.report.labels import figure, label
from peerbayes.report.layout import positions
from peerbayes.report.theme import TRANSPARENT, axis, colour, faint, layout, scale
from peerbayes.views import View

LINKS = 20_000  # most links drawn; of more, a sample
LARGEST, SMALLEST = 16.0, 5.0  # diameters of markers in pixels
CROWDED = 400  # peers above which markers shrink
NARROWEST = 0.01  # least range of errors that the colours span: smaller differences are noise
BARS = 40
MARKED = ("rc", "ml")  # references in the histogram; peers alone would be far away
SHAPE = 0.8  # most height of the network relative to its width


def network(view: View) -> Spec:
    """Return the figure of peers and links; colours show errors, sizes show numbers of rows."""
    points = positions(view.nodes, view.links)
    ends = view.links
    if len(ends) > LINKS:
        ends = ends[np.linspace(0, len(ends) - 1, LINKS).astype(np.int64)]
    crowding = min(1.0, math.sqrt(CROWDED / max(view.nodes, 1)))
    largest, smallest = max(3.5, LARGEST * crowding), max(2.5, SMALLEST * crowding)
    links = {
        "type": "scatter",
        "mode": "lines",
        "x": packed(gapped(points[ends, 0])),
        "y": packed(gapped(points[ends, 1])),
        "line": {
            "color": faint("muted", 0.38),
            "width": 0.8 if view.nodes > CROWDED else 1.2,
            "simplify": False,
        },
        "hoverinfo": "skip",
        "meta": {"role": "links"},
    }
    peers: Spec = {
        "type": "scatter",
        "mode": "markers",
        "x": packed(points[:, 0]),
        "y": packed(points[:, 1]),
        "customdata": packed(np.arange(view.nodes), "i4"),
        "marker": {
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
        "hovertemplate": _hover(view),
        "meta": {"role": "peers", "grows": "set"},
    }
    if view.names is not None:
        peers["text"] = [label(name) for name in view.names]
    chosen = {
        "type": "scatter",
        "mode": "markers",
        "x": [],
        "y": [],
        "marker": {
            "size": max(16.0, largest + 8.0),
            "color": TRANSPARENT,
            "line": {"color": colour("chosen"), "width": 3},
        },
        "hoverinfo": "skip",
        "meta": {"role": "chosen"},
    }
    hidden = {"visible": False, "constrain": "domain"}
    return {
        "data": [links, peers, chosen],
        "layout": layout(
            _network_summary(view),
            600,
            margin={"l": 4, "r": 4, "t": 8, "b": 8},
            xaxis=hidden,
            yaxis={**hidden, "scaleanchor": "x"},
            meta={"summary": _network_summary(view), "shape": SHAPE},
        ),
    }


def spread(view: View) -> Spec:
    """Return the histogram of the peers' current errors."""
    reference_errors = references(view)
    reference_lines = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [value, value],
            "y": [0, 1],
            "yaxis": "y2",
            "name": f"{REFERENCE_LABELS[reference]} {figure(value)}",
            "line": {"color": colour(reference), "width": 1.5, "dash": "dash"},
            "hovertemplate": f"{REFERENCE_TITLES[reference]}: {value:.4f}<extra></extra>",
            "meta": {"role": reference},
        }
        for reference, value in reference_errors.items()
        if reference in MARKED
    ]
    bars = {
        "type": "bar",
        "name": "peers",
        "marker": {"color": colour("peers"), "opacity": 0.8, "line": {"width": 0}},
        "hovertemplate": "%{y:,} peers around %{x:.4f}<extra></extra>",
        "showlegend": False,
        "meta": {"role": "bars", "grows": "set"},
        **_bars(view),
    }
    return {
        "data": [bars, *reference_lines],
        "layout": layout(
            _spread_summary(view),
            380,
            showlegend=bool(reference_lines),
            bargap=0.04,
            xaxis=axis(ERROR_NAMES[view.error]),
            yaxis=axis("peers", rangemode="tozero"),
            yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
        ),
    }


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
    """Return the current errors: [N]; empty before the first evaluation."""
    return view.last[view.error] if len(view.rounds) else np.zeros(0)


def _colours(view: View) -> Spec:
    """Return errors as colours, over their current range."""
    errors = _errors(view)
    finite = errors[np.isfinite(errors)]
    if not finite.size:
        return {"marker.color": colour("muted"), "marker.cmin": 0.0, "marker.cmax": 1.0}
    low, high = float(finite.min()), float(finite.max())
    wider = max(0.0, NARROWEST - (high - low)) / 2.0
    return {"marker.color": packed(errors), "marker.cmin": low - wider, "marker.cmax": high + wider}


def _bars(view: View) -> Spec:
    """Return counts of errors in bins: plotly's own histogram would need every error."""
    errors = _errors(view)
    errors = errors[np.isfinite(errors)]
    if not errors.size:
        return {"x": packed([]), "y": packed([], "i4")}
    low, high = float(errors.min()), float(errors.max())
    wider = max(0.0, NARROWEST - (high - low)) / 2.0
    count = int(np.clip(2.0 * math.sqrt(errors.size), 8, BARS))
    counts, edges = np.histogram(errors, bins=count, range=(low - wider, high + wider))
    return {"x": packed((edges[1:] + edges[:-1]) / 2.0), "y": packed(counts, "i4")}


def _network_summary(view: View) -> str:
    errors = _errors(view)
    finite = errors[np.isfinite(errors)]
    sentence = f"{view.nodes:,} peers and {len(view.links):,} links"
    if len(view.links) > LINKS:
        sentence += f", {LINKS:,} of them drawn"
    if not finite.size:
        return f"{sentence}."
    return f"{sentence}; {ERROR_NAMES[view.error]} from {figure(finite.min())} to {figure(finite.max())}."


def _spread_summary(view: View) -> str:
    errors = _errors(view)
    errors = errors[np.isfinite(errors)]
    if not errors.size:
        return "Distribution of the peers' errors: no round has been evaluated yet."
    return (
        f"The {ERROR_NAMES[view.error]} of {errors.size:,} peers after round {view.rounds[-1]}: from "
        f"{figure(errors.min())} to {figure(errors.max())}, median {figure(float(np.median(errors)))}."
    )
