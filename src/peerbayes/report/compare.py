"""One figure of several runs: their mean errors and bands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from peerbayes.report.arrays import Spec, packed
from peerbayes.report.curves import (
    ERROR_NAMES,
    REFERENCE_TITLES,
    chosen,
    expected_evaluations,
    level,
    references,
)
from peerbayes.report.labels import figure, label, shown
from peerbayes.report.theme import CLASSES, axis, class_colour, colour, faint, layout
from peerbayes.views import View

DASHES = {"rc": "dash", "ml": "dot", "local": "dashdot"}
TOLERANCE = 1e-6  # references closer than this are drawn as one line


def error(views: Sequence[View]) -> Spec:
    """Return the figure of the runs' mean errors by round, with bands of 5–95 % of the peers and common references."""
    data: list[Spec] = []
    for index, view in enumerate(views):
        data += _run(view, index)
    longest = max(view.total for view in views)
    for reference, value in _shared(views).items():
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"{REFERENCE_TITLES[reference]} {figure(value)}",
                "x": packed(np.linspace(0, longest, 33)),
                "y": packed(np.full(33, value)),
                "line": {"color": colour("muted"), "width": 1.5, "dash": DASHES[reference]},
                "hovertemplate": f"{REFERENCE_TITLES[reference]}: {value:.4f}<extra></extra>",
                "meta": {"role": reference},
            }
        )
    error_names = {ERROR_NAMES[view.error] for view in views}
    final_errors = "; ".join(
        f"{shown(view.title)}: {figure(float(level(view, view.error, 'mean')[-1]))}"
        for view in views
        if len(view.rounds)
    )
    return {
        "data": [*data, chosen(False)],
        "layout": layout(
            f"Mean {' or '.join(sorted(error_names))} of the peers after the last round: {final_errors}.",
            400,
            showlegend=True,
            xaxis=axis("round", range=[0, longest * 1.005]),
            yaxis=axis(" or ".join(sorted(error_names)), rangemode="tozero"),
        ),
    }


def _run(view: View, index: int) -> list[Spec]:
    """Return the traces of one run: its band and its mean."""
    metric, name = view.error, label(view.title)
    mode = "markers" if expected_evaluations(view) == 1 else "lines"
    shared: Spec = {"type": "scatter", "mode": mode, "x": packed(view.rounds), "legendgroup": str(index)}
    edge = {
        **shared,
        "line": {"width": 0, "color": class_colour(index)},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    edge["marker"] = {"symbol": "line-ew-open", "size": 12, "color": class_colour(index)}
    filled = {"fill": "tonexty", "fillcolor": faint(CLASSES[index % len(CLASSES)], 0.14)}
    return [
        {**edge, "y": packed(level(view, metric, "5 %")), "meta": {"role": "low"}},
        {**edge, **filled, "y": packed(level(view, metric, "95 %")), "meta": {"role": "high"}},
        {
            **shared,
            "name": name,
            "y": packed(level(view, metric, "mean")),
            "line": {"color": class_colour(index), "width": 2.5},
            "marker": {"color": class_colour(index), "size": 9},
            "hovertemplate": "round %{x}: %{y:.4f}",
            "meta": {"role": "mean"},
        },
    ]


def _shared(views: Sequence[View]) -> dict[str, float]:
    """Return the reference errors that are the same for all runs."""
    run_references = [references(view) for view in views]
    return {
        reference: value
        for reference, value in run_references[0].items()
        if all(abs(other.get(reference, np.inf) - value) < TOLERANCE for other in run_references)
    }
