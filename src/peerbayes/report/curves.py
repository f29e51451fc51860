"""Figures by round: the peers' error, their disagreement, and the bytes they sent.

The `meta` of a trace names its role, and how the trace is updated while a run goes on:

    append   new points are added to x and y
    each     new points are added to each of `curves` curves, which are concatenated with gaps
    set      attributes get new values
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from peerbayes.report.style import Spec, axis, colour, faint, figure, gapped, label, layout, packed, size
from peerbayes.simulation.view import LEVELS, View

MOST_CURVES = 400  # curves of single peers in a figure, at most
MOST_POINTS = 1 << 15  # points of all these curves, at most: a browser draws them in a tenth of a second
LINE_HEIGHT, PLOT_HEIGHT = 15.0, 300.0  # pixels, approximately, of a label beside the figure and of the plot

ERROR_NAMES = {"test_error": "test error", "train_error": "training error"}
REFERENCE_LABELS = {"rc": "RC", "ml": "ML", "local": "alone"}
REFERENCE_TITLES = {
    "rc": "RC on the pooled rows",
    "ml": "ML on the pooled rows",
    "local": "each peer alone, on average",
}


def expected_evaluations(view: View) -> int:
    """Return how many rounds a run evaluates in total: the same number from the first round to the last."""
    interval = int(view.configuration.get("evaluate_every", 1) or view.total)
    return max(1, len(view.rounds), math.ceil(view.total / max(interval, 1)))


def drawn_peers(view: View) -> np.ndarray:
    """Return the indices into `view.peers` that are drawn: all, or every 2nd, 4th, 8th…, the same throughout a run."""
    limit, step = max(1, min(MOST_CURVES, MOST_POINTS // expected_evaluations(view))), 1
    while math.ceil(view.peer_count / step) > limit:
        step *= 2
    indices = np.flatnonzero(view.peers % step == 0)
    return indices if indices.size else np.arange(min(1, len(view.peers)))


def level(view: View, metric: str, name: str) -> np.ndarray:
    """Return one of `LEVELS` of a metric by round: [T]."""
    return view.spread[metric][:, LEVELS.index(name)]


def error(view: View) -> Spec:
    """Return the figure of the peers' errors by round, with their mean, their band and the references."""
    metric, single = view.error, expected_evaluations(view) == 1
    indices = drawn_peers(view)
    peers = view.peers[indices]
    curves = view.curves[metric][:, indices].T  # [P, T]
    points_per_curve = len(view.rounds) + 1
    thin = faint(
        "peers", round(min(0.25, max(0.07, 1.6 / math.sqrt(max(len(peers), 1)))), 3)
    )  # many curves make a cloud
    peer_curves: Spec = {
        "type": "scatter",
        "mode": "markers" if single else "lines",
        "name": "each peer" if len(peers) == view.peer_count else f"{len(peers)} of the peers",
        "x": packed(gapped(np.broadcast_to(view.rounds, curves.shape))),
        "y": packed(gapped(curves)),
        "customdata": packed(np.repeat(peers, points_per_curve), "i4"),
        "line": {"color": thin, "width": 1},
        "marker": {"color": thin, "size": 6},
        "hovertemplate": f"peer %{{customdata}}<br>round %{{x}}<br>{ERROR_NAMES[metric]} %{{y:.4f}}<extra></extra>",
        "meta": {"role": "each", "grows": "each", "curves": len(peers), "repeats": ["customdata"]},
    }
    if view.names is not None:
        peer_curves["text"] = [label(view.names[peer]) for peer in peers for _ in range(points_per_curve)]
        peer_curves["hovertemplate"] = peer_curves["hovertemplate"].replace("peer %{customdata}", "%{text}")
        peer_curves["meta"]["repeats"].append("text")
    reference_errors = references(view)
    data = [
        peer_curves,
        *_band(view, metric, single),
        _mean(view, metric, single, ".4f"),
        *map(_reference_line(view), reference_errors),
    ]
    return {
        "data": [*data, chosen(single)],
        "layout": layout(
            _error_summary(view),
            380,
            margin={"l": 48, "r": 84 if reference_errors else 16, "t": 12, "b": 40},
            showlegend=True,
            xaxis=axis("round", range=[0, view.total * 1.005]),
            yaxis=axis(ERROR_NAMES[metric], rangemode="tozero"),
            annotations=_reference_labels(view, reference_errors),
        ),
    }


def disagreement(view: View) -> Spec:
    """Return the figure of the peers' disagreement by round."""
    metric, single = "disagreement", expected_evaluations(view) == 1
    data = [*_band(view, metric, single), _mean(view, metric, single, ".3g"), chosen(single)]
    return {
        "data": data,
        "layout": layout(
            _disagreement_summary(view),
            250,
            xaxis=axis("round", range=[0, view.total * 1.005]),
            yaxis=axis("disagreement", type="log", exponentformat="power"),
        ),
    }


def bytes_sent(view: View) -> Spec:
    """Return the figure of the bytes that each peer has sent, by round."""
    metric, single = "bytes", expected_evaluations(view) == 1
    return {
        "data": [*_band(view, metric, single), _mean(view, metric, single, ".3s")],
        "layout": layout(
            _bytes_summary(view),
            250,
            xaxis=axis("round", range=[0, view.total * 1.005]),
            yaxis=axis("sent by each peer", rangemode="tozero", tickformat="~s", ticksuffix="B"),
        ),
    }


def added(view: View, name: str, begin: int) -> Spec:
    """Return the patch that adds rounds from index `begin` on to a figure: by trace, attributes to append or set."""
    metric = {"error": view.error, "disagreement": "disagreement", "bytes": "bytes"}[name]
    rounds = packed(view.rounds[begin:])
    traces = [
        {"x": rounds, "y": packed(level(view, metric, quantile)[begin:])}
        for quantile in ("5 %", "95 %", "mean")
    ]
    patch: Spec = {"summary": SUMMARIES[name](view)}
    if name == "error":
        traces.insert(0, {"x": rounds, "y": packed(view.curves[metric][begin:, drawn_peers(view)].T.ravel())})
        patch["layout"] = {
            "yaxis.title.text": ERROR_NAMES[metric]
        }  # test or training: known from the first evaluation on
    return {"traces": {str(index): trace for index, trace in enumerate(traces)}, **patch}


def references(view: View) -> dict[str, float]:
    """Return the reference errors by name, on the same rows as the peers' errors; only finite ones."""
    kind = view.error.removesuffix("_error")
    errors = {
        reference: view.references.get(f"{kind}_{reference}", math.nan) for reference in REFERENCE_LABELS
    }
    return {reference: value for reference, value in errors.items() if math.isfinite(value)}


def chosen(single: bool) -> Spec:
    """Return an empty trace, which the page fills with the curve of the selected peer."""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [],
        "y": [],
        "showlegend": False,
        "line": {"color": colour("chosen"), "width": 2.5},
        "marker": {"color": colour("chosen"), "size": 9 if single else 4},
        "hovertemplate": "selected peer<br>round %{x}: %{y:.4g}<extra></extra>",
        "meta": {"role": "chosen"},
    }


def _band(view: View, metric: str, single: bool) -> list[Spec]:
    """Return the traces of the 5 % and 95 % quantiles over peers, with the area between them filled."""
    shared: Spec = {
        "type": "scatter",
        "mode": "markers" if single else "lines",
        "x": packed(view.rounds),
        "line": {"width": 0, "color": colour("peers")},
        "marker": {"symbol": "line-ew-open", "size": 12, "color": colour("peers")},
        "hoverinfo": "skip",
    }
    low = {**shared, "y": packed(level(view, metric, "5 %")), "showlegend": False}
    high = {**shared, "y": packed(level(view, metric, "95 %")), "name": "5–95 % of the peers"}
    return [
        {**low, "meta": {"role": "low", "grows": "append"}},
        {
            **high,
            "fill": "tonexty",
            "fillcolor": faint("peers"),
            "meta": {"role": "high", "grows": "append"},
        },
    ]


def _mean(view: View, metric: str, single: bool, form: str) -> Spec:
    return {
        "type": "scatter",
        "mode": "markers" if single else "lines",
        "name": "mean of the peers",
        "x": packed(view.rounds),
        "y": packed(level(view, metric, "mean")),
        "line": {"color": colour("peers"), "width": 2.5},
        "marker": {"color": colour("peers"), "size": 9},
        "hovertemplate": f"mean of the peers<br>round %{{x}}: %{{y:{form}}}<extra></extra>",
        "meta": {"role": "mean", "grows": "append"},
    }


def _reference_line(view: View) -> Any:
    """Return a function from the name of a reference to its horizontal line."""

    def trace(reference: str) -> Spec:
        value = references(view)[reference]
        return {
            "type": "scatter",
            "mode": "lines",
            "name": REFERENCE_TITLES[reference],
            "x": packed(np.linspace(0, view.total, 33)),  # enough points for hovering
            "y": packed(np.full(33, value)),
            "showlegend": False,
            "line": {"color": colour(reference), "width": 1.5, "dash": "dash"},
            "hovertemplate": f"{REFERENCE_TITLES[reference]}: {value:.4f}<extra></extra>",
            "meta": {"role": reference},
        }

    return trace


def _reference_labels(view: View, reference_errors: dict[str, float]) -> list[Spec]:
    """Return the labels of the references at the right edge, shifted so that they do not overlap."""
    if not reference_errors:
        return []
    peer_errors = view.curves[view.error]
    highest = max([*reference_errors.values(), float(np.nanmax(peer_errors, initial=0.0)), 1e-9])
    labels, above = [], -math.inf
    for reference, value in sorted(reference_errors.items(), key=lambda pair: pair[1]):
        wanted = value / highest * PLOT_HEIGHT
        position = max(wanted, above + LINE_HEIGHT)
        above = position
        labels.append(
            {
                "x": 1,
                "xref": "paper",
                "xanchor": "left",
                "xshift": 4,
                "y": value,
                "yshift": position - wanted,
                "text": f"{REFERENCE_LABELS[reference]} {figure(value)}",
                "font": {"color": colour(reference)},
                "showarrow": False,
            }
        )
    return labels


def _error_summary(view: View) -> str:
    sentence = _trend(view, view.error, f"The peers' mean {ERROR_NAMES[view.error]}", figure)
    others = ", ".join(
        f"{REFERENCE_TITLES[reference]} {figure(value)}" for reference, value in references(view).items()
    )
    return f"{sentence} For comparison: {others}." if others else sentence


def _disagreement_summary(view: View) -> str:
    return _trend(view, "disagreement", "The peers' disagreement", lambda value: f"{value:.2g}")


def _bytes_summary(view: View) -> str:
    return _trend(view, "bytes", "The mean volume sent per peer", size)


def _trend(view: View, metric: str, subject: str, form: Any) -> str:
    """Return one sentence on the first and last values of a metric."""
    mean = level(view, metric, "mean")
    if not len(mean):
        return f"{subject}: no round has been evaluated yet."
    low, high = (form(float(level(view, metric, quantile)[-1])) for quantile in ("5 %", "95 %"))
    first = f" from {form(float(mean[0]))} in round {view.rounds[0]}" if len(mean) > 1 else ""
    return (
        f"{subject} went{first} to {form(float(mean[-1]))} in round {view.rounds[-1]}; "
        f"90 % of the {view.peer_count} peers are between {low} and {high}."
    )


SUMMARIES = {"error": _error_summary, "disagreement": _disagreement_summary, "bytes": _bytes_summary}
