"""Figures by round: the peers' error, their disagreement, and the bytes they sent; one run, or several compared.

The `meta` of a trace names its role, and how the trace is updated while a run goes on:

    append   new points are added to x and y
    each     new points are added to each of `curves` curves, which are concatenated with gaps
    set      attributes get new values
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from peerbayes.data.files import size
from peerbayes.report.style import (
    CLASSES,
    Spec,
    axis,
    colour,
    decimal,
    faint,
    figure,
    gapped,
    label,
    packed,
    shown,
    trace,
)
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


class Against(NamedTuple):
    """What figures have on their horizontal axis."""

    title: str
    hover: str  # with plotly's own x in it
    ticks: Spec


AGAINST = {
    "round": Against("round", "round %{x}", {}),
    "bytes": Against("bytes sent by each peer", "%{x:.3s}B", {"tickformat": "~s"}),
    "seconds": Against("seconds of the rounds", "%{x:.3g} s", {}),
}
DASHES = {"rc": "dash", "ml": "dot", "local": "dashdot"}  # of references, where several runs are compared
TOLERANCE = 1e-6  # references of several runs closer than this are drawn as one line


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
    reference_errors = references(view)
    return figure(
        [
            _each_peer(view),
            *_summary_curves(view, view.error, ".4f"),
            *(
                _reference_line(reference, value, view.total, colour(reference))
                for reference, value in reference_errors.items()
            ),
            chosen(view),
        ],
        summary(view, "error"),
        380,
        margin={"l": 48, "r": 84 if reference_errors else 16, "t": 12, "b": 40},
        showlegend=True,
        against=[against(view)],
        xaxis=_round_axis(view.total),
        yaxis=axis(ERROR_NAMES[view.error], rangemode="tozero"),
        annotations=_reference_labels(view, reference_errors),
    )


def disagreement(view: View) -> Spec:
    """Return the figure of the peers' disagreement by round."""
    data = [*_summary_curves(view, "disagreement", ".3g"), chosen(view)]
    y_axis = axis("disagreement", type="log", exponentformat="power")
    return figure(
        data, summary(view, "disagreement"), 250, [against(view)], xaxis=_round_axis(view.total), yaxis=y_axis
    )


def bytes_sent(view: View) -> Spec:
    """Return the figure of the bytes that each peer has sent, by round."""
    data = _summary_curves(view, "bytes", ".3s")
    y_axis = axis("sent by each peer", rangemode="tozero", tickformat="~s", ticksuffix="B")
    tables = [{name: values for name, values in against(view).items() if name != "bytes"}]
    return figure(data, summary(view, "bytes"), 250, tables, xaxis=_round_axis(view.total), yaxis=y_axis)


def compared(views: Sequence[View]) -> Spec:
    """Return the figure of several runs' mean errors by round, with their bands and the references that all share."""
    longest = max(view.total for view in views)
    data: list[Spec] = []
    for index, view in enumerate(views):
        low, high, mean = (
            {**curve, "meta": {**curve["meta"], "run": index}}
            for curve in _summary_curves(view, view.error, ".4f", CLASSES[index % len(CLASSES)], 0.14)
        )
        mean |= {"name": label(view.title), "hovertemplate": "round %{x}: %{y:.4f}"}
        data += [
            {**curve, "legendgroup": str(index), "showlegend": curve is mean} for curve in (low, high, mean)
        ]
    for reference, value in _shared_references(views).items():
        curve = _reference_line(reference, value, longest, colour("muted"), DASHES[reference])
        data.append({**curve, "name": f"{curve['name']} {decimal(value)}", "showlegend": True})
    error_names = " or ".join(sorted({ERROR_NAMES[view.error] for view in views}))
    final_errors = "; ".join(
        f"{shown(view.title)}: {decimal(float(level(view, view.error, 'mean')[-1]))}"
        for view in views
        if len(view.rounds)
    )
    return figure(
        [*data, chosen()],
        f"Mean {error_names} of the peers after the last round: {final_errors}.",
        400,
        [against(view) for view in views],
        showlegend=True,
        xaxis=_round_axis(longest),
        yaxis=axis(error_names, rangemode="tozero"),
    )


def added(view: View, name: str, begin: int) -> Spec:
    """Return the patch that adds rounds from index `begin` on to a figure: by trace, attributes to append or set."""
    metric = view.error if name == "error" else name
    rounds = packed(view.rounds[begin:])
    traces = [
        {"x": rounds, "y": packed(level(view, metric, quantile)[begin:])}
        for quantile in ("5 %", "95 %", "mean")
    ]
    patch: Spec = {"summary": summary(view, name), "against": against(view, begin)}
    if name == "bytes":
        del patch["against"]["bytes"]
    if name == "error":
        traces.insert(0, {"x": rounds, "y": packed(view.curves[metric][begin:, drawn_peers(view)].T.ravel())})
        # Test or training error: this is known from the first evaluation on.
        patch["layout"] = {"yaxis.title.text": ERROR_NAMES[metric]}
    return {"traces": {str(index): curve for index, curve in enumerate(traces)}, **patch}


def against(view: View, begin: int = 0) -> Spec:
    """Return what a page can draw curves against instead of rounds, from an evaluated round on: arrays [T] by name."""
    tables = {"round": packed(view.rounds[begin:]), "bytes": packed(level(view, "bytes", "mean")[begin:])}
    if len(view.seconds) == len(view.rounds):
        tables["seconds"] = packed(view.seconds[begin:])
    return tables


def references(view: View) -> dict[str, float]:
    """Return the reference errors by name, on the same rows as the peers' errors; only finite ones."""
    kind = view.error.removesuffix("_error")
    errors = {name: view.references.get(f"{kind}_{name}", math.nan) for name in REFERENCE_LABELS}
    return {name: value for name, value in errors.items() if math.isfinite(value)}


def chosen(view: View | None = None) -> Spec:
    """Return an empty trace, which the page fills with the curve of the selected peer."""
    single = view is not None and expected_evaluations(view) == 1
    return trace(
        "chosen",
        [],
        [],
        mode="lines+markers",
        showlegend=False,
        line={"color": colour("chosen"), "width": 2.5},
        marker={"color": colour("chosen"), "size": 9 if single else 4},
        hovertemplate="selected peer<br>round %{x}: %{y:.4g}<extra></extra>",
    )


def _round_axis(rounds: int) -> Spec:
    return axis("round", range=[0, rounds * 1.005])


def _mode(view: View) -> str:
    """Return how curves are drawn: a single point would be no line."""
    return "markers" if expected_evaluations(view) == 1 else "lines"


def _each_peer(view: View) -> Spec:
    """Return the trace of the single peers' curves."""
    indices = drawn_peers(view)
    peers = view.peers[indices]
    curves = view.curves[view.error][:, indices].T  # [P, T]
    points_per_curve = len(view.rounds) + 1
    # Many curves make a cloud.
    thin = faint("peers", round(min(0.25, max(0.07, 1.6 / math.sqrt(max(len(peers), 1)))), 3))
    texts: Spec = {}
    if view.names is not None:
        texts["text"] = [label(view.names[peer]) for peer in peers for _ in range(points_per_curve)]
    name = "%{text}" if texts else "peer %{customdata}"
    return trace(
        "each",
        gapped(np.broadcast_to(view.rounds, curves.shape)),
        gapped(curves),
        mode=_mode(view),
        name="each peer" if len(peers) == view.peer_count else f"{len(peers)} of the peers",
        customdata=packed(np.repeat(peers, points_per_curve), "i4"),
        line={"color": thin, "width": 1},
        marker={"color": thin, "size": 6},
        hovertemplate=f"{name}<br>round %{{x}}<br>{ERROR_NAMES[view.error]} %{{y:.4f}}<extra></extra>",
        meta={"grows": "each", "curves": len(peers), "repeats": ["customdata", *texts]},
        **texts,
    )


def _summary_curves(
    view: View, metric: str, form: str, role: str = "peers", alpha: float = 0.16
) -> list[Spec]:
    """Return the traces of the 5 % and 95 % quantiles over peers, with the area between them filled, and the mean."""

    def curve(trace_role: str, quantile: str, **settings: Any) -> Spec:
        y = level(view, metric, quantile)
        return trace(trace_role, view.rounds, y, mode=_mode(view), meta={"grows": "append"}, **settings)

    edge: Spec = {
        "line": {"width": 0, "color": colour(role)},
        "marker": {"symbol": "line-ew-open", "size": 12, "color": colour(role)},
        "hoverinfo": "skip",
    }
    area = {"name": "5–95 % of the peers", "fill": "tonexty", "fillcolor": faint(role, alpha)}
    mean = curve(
        "mean",
        "mean",
        name="mean of the peers",
        line={"color": colour(role), "width": 2.5},
        marker={"color": colour(role), "size": 9},
        hovertemplate=f"mean of the peers<br>round %{{x}}: %{{y:{form}}}<extra></extra>",
    )
    return [curve("low", "5 %", **edge, showlegend=False), curve("high", "95 %", **edge, **area), mean]


def _reference_line(reference: str, value: float, rounds: int, line: str, dash: str = "dash") -> Spec:
    """Return the horizontal line of a reference."""
    return trace(
        reference,
        np.linspace(0, rounds, 33),  # enough points for hovering
        np.full(33, value),
        mode="lines",
        name=REFERENCE_TITLES[reference],
        showlegend=False,
        line={"color": line, "width": 1.5, "dash": dash},
        hovertemplate=f"{REFERENCE_TITLES[reference]}: {value:.4f}<extra></extra>",
    )


def _reference_labels(view: View, reference_errors: dict[str, float]) -> list[Spec]:
    """Return the labels of the references at the right edge, shifted so that they do not overlap."""
    largest = float(np.nanmax(view.curves[view.error], initial=0.0))
    highest = max([*reference_errors.values(), largest, 1e-9])
    labels, above = [], -math.inf
    for reference, value in sorted(reference_errors.items(), key=lambda pair: pair[1]):
        wanted = value / highest * PLOT_HEIGHT
        above = max(wanted, above + LINE_HEIGHT)
        labels.append(
            {
                "x": 1,
                "xref": "paper",
                "xanchor": "left",
                "xshift": 4,
                "y": value,
                "yshift": above - wanted,
                "text": f"{REFERENCE_LABELS[reference]} {decimal(value)}",
                "font": {"color": colour(reference)},
                "showarrow": False,
            }
        )
    return labels


def _shared_references(views: Sequence[View]) -> dict[str, float]:
    """Return the reference errors that are the same for all runs."""
    run_references = [references(view) for view in views]
    return {
        reference: value
        for reference, value in run_references[0].items()
        if all(abs(other.get(reference, np.inf) - value) < TOLERANCE for other in run_references)
    }


def summary(view: View, name: str) -> str:
    """Return a sentence on the first and last values of a figure, and one on the references."""
    forms: dict[str, tuple[str, str, Callable[[float], str]]] = {
        "error": (view.error, f"The peers' mean {ERROR_NAMES[view.error]}", decimal),
        "disagreement": ("disagreement", "The peers' disagreement", "{:.2g}".format),
        "bytes": ("bytes", "The mean volume sent per peer", size),
    }
    metric, subject, form = forms[name]
    mean = level(view, metric, "mean")
    sentence = f"{subject}: no round has been evaluated yet."
    if len(mean):
        low, high = (form(float(level(view, metric, quantile)[-1])) for quantile in ("5 %", "95 %"))
        first = f" from {form(float(mean[0]))} in round {view.rounds[0]}" if len(mean) > 1 else ""
        sentence = (
            f"{subject} went{first} to {form(float(mean[-1]))} in round {view.rounds[-1]}; "
            f"90 % of the {view.peer_count} peers are between {low} and {high}."
        )
    pairs = references(view).items() if name == "error" else ()
    others = ", ".join(f"{REFERENCE_TITLES[reference]} {decimal(value)}" for reference, value in pairs)
    return f"{sentence} For comparison: {others}." if others else sentence
