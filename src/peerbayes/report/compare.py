"""Several runs in one figure: their mean errors and spreads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from peerbayes.report.arrays import Spec, packed
from peerbayes.report.curves import KINDS, SAID, chosen, expected, level, references
from peerbayes.report.labels import figure, label, shown
from peerbayes.report.theme import CLASSES, axis, class_colour, colour, faint, layout
from peerbayes.views import View

DASHES = {"rc": "dash", "ml": "dot", "local": "dashdot"}
SAME = 1e-6  # errors closer than this are drawn as one


def error(views: Sequence[View]) -> Spec:
    """The runs' mean errors by round, with 5–95 % of their peers, and what runs have in common beside them."""
    data: list[Spec] = []
    for place, view in enumerate(views):
        data += _run(view, place)
    longest = max(view.total for view in views)
    for who, value in _shared(views).items():
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"{SAID[who]} {figure(value)}",
                "x": packed(np.linspace(0, longest, 33)),
                "y": packed(np.full(33, value)),
                "line": {"color": colour("muted"), "width": 1.5, "dash": DASHES[who]},
                "hovertemplate": f"{SAID[who]}: {value:.4f}<extra></extra>",
                "meta": {"role": who},
            }
        )
    kinds = {KINDS[view.error] for view in views}
    told = "; ".join(
        f"{shown(view.title)}: {figure(float(level(view, view.error, 'mean')[-1]))}"
        for view in views
        if len(view.rounds)
    )
    return {
        "data": [*data, chosen(False)],
        "layout": layout(
            f"Mean {' or '.join(sorted(kinds))} of the peers at the end: {told}.",
            400,
            showlegend=True,
            xaxis=axis("round", range=[0, longest * 1.005]),
            yaxis=axis(" or ".join(sorted(kinds)), rangemode="tozero"),
        ),
    }


def _run(view: View, place: int) -> list[Spec]:
    """One run's band and mean, in its colour."""
    what, name = view.error, label(view.title)
    mode = "markers" if expected(view) == 1 else "lines"
    shared: Spec = {"type": "scatter", "mode": mode, "x": packed(view.rounds), "legendgroup": str(place)}
    edge = {
        **shared,
        "line": {"width": 0, "color": class_colour(place)},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    edge["marker"] = {"symbol": "line-ew-open", "size": 12, "color": class_colour(place)}
    filled = {"fill": "tonexty", "fillcolor": faint(CLASSES[place % len(CLASSES)], 0.14)}
    return [
        {**edge, "y": packed(level(view, what, "5 %")), "meta": {"role": "low"}},
        {**edge, **filled, "y": packed(level(view, what, "95 %")), "meta": {"role": "high"}},
        {
            **shared,
            "name": name,
            "y": packed(level(view, what, "mean")),
            "line": {"color": class_colour(place), "width": 2.5},
            "marker": {"color": class_colour(place), "size": 9},
            "hovertemplate": "round %{x}: %{y:.4f}",
            "meta": {"role": "mean"},
        },
    ]


def _shared(views: Sequence[View]) -> dict[str, float]:
    """References that are the same for all runs."""
    each = [references(view) for view in views]
    return {
        who: value
        for who, value in each[0].items()
        if all(abs(one.get(who, np.inf) - value) < SAME for one in each)
    }
