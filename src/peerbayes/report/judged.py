"""Figures of predictions: what is taken for what, and whether the models are as sure as they may be."""

from __future__ import annotations

import numpy as np

from peerbayes.metrics import Outcome
from peerbayes.report.arrays import Spec, packed
from peerbayes.report.curves import SAID
from peerbayes.report.densities import arranged
from peerbayes.report.labels import label, shown, unlike
from peerbayes.report.theme import axis, colour, layout, scale
from peerbayes.views import View

CLASSES = 100  # of a confusion matrix: the most frequent
WRITTEN = 12  # classes up to which cells hold their numbers
WHO = {"peers": "peers, on average", "rc": SAID["rc"], "ml": SAID["ml"]}
BRIEFLY = {"peers": "peers", "rc": "RC", "ml": "ML"}
CONFUSED = ("peers", "rc")


def confusion(view: View, classes: tuple[object, ...]) -> Spec:
    """Shares of each true class by what is predicted: the peers', and RC's beside."""
    rows = view.outcomes["peers"].confusion.sum(axis=1)
    some = np.sort(np.argsort(-rows, kind="stable")[:CLASSES])
    names = unlike([label(classes[place], 14) for place in some])
    whose = [who for who in CONFUSED if who in view.outcomes]
    data: list[Spec] = []
    axes: Spec = {}
    panels, titles = [], []
    for place, who in enumerate(whose):
        end = "" if place == 0 else str(place + 1)
        counts = view.outcomes[who].confusion[np.ix_(some, some)]
        data.append({**_heat(counts, names), "xaxis": f"x{end}", "yaxis": f"y{end}"})
        along: Spec = {"type": "category", "showgrid": False, "tickfont": {"size": 11}}
        axes[f"xaxis{end}"] = axis("predicted", **along, anchor=f"y{end}")
        axes[f"yaxis{end}"] = axis("true class", **along, autorange="reversed", anchor=f"x{end}")
        panels.append({"x": f"xaxis{end}", "y": f"yaxis{end}"})
        titles.append(
            {
                "text": f"<b>{WHO[who]}</b>",
                "xref": "paper",
                "yref": "paper",
                "xanchor": "left",
                "yanchor": "bottom",
                "showarrow": False,
            }
        )
    spec: Spec = {
        "data": data,
        "layout": layout(
            _confusion_summary(view.outcomes["peers"], classes),
            margin={"l": 64, "r": 16, "t": 28, "b": 56},
            annotations=titles,
            **axes,
        ),
    }
    return arranged(spec, {"panels": panels, "width": 330, "height": 360, "gap": 88, "most": 2}, 2)


def reliability(view: View) -> Spec:
    """How often models are right, by how sure they are."""
    diagonal = {
        "type": "scatter",
        "mode": "lines",
        "name": "as sure as right",
        "x": [0, 1],
        "y": [0, 1],
        "line": {"color": colour("muted"), "width": 1, "dash": "dot"},
        "hoverinfo": "skip",
        "meta": {"role": "diagonal"},
    }
    found = {who: view.outcomes[who] for who in ("peers", "rc", "ml") if who in view.outcomes}
    lines = [_reliable(outcome, who) for who, outcome in reversed(found.items())]  # the peers on top
    return {
        "data": [diagonal, *lines],
        "layout": layout(
            "How often predictions are right by how sure they are; expected calibration error of "
            + ", ".join(f"{WHO[who]}: {calibration_error(one):.3f}" for who, one in found.items())
            + ".",
            400,
            showlegend=True,
            xaxis=axis("confidence", range=[0, 1.02]),
            yaxis=axis("share that is right", range=[0, 1.04]),
        ),
    }


def calibration_error(outcome: Outcome) -> float:
    """Σ rows·|right − sure| / Σ rows over the tenths of confidence."""
    rows, sure, right = outcome.reliability.T
    return float(np.abs(right - sure).sum() / max(rows.sum(), 1e-12))


def _heat(counts: np.ndarray, names: list[str]) -> Spec:
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-12)
    heat: Spec = {
        "type": "heatmap",
        "z": packed(shares),
        "customdata": packed(counts),
        "x": names,
        "y": names,
        "zmin": 0,
        "zmax": 1,
        "colorscale": scale("none", "some", "much"),
        "showscale": False,
        "xgap": 1 if len(names) <= WRITTEN else 0,
        "ygap": 1 if len(names) <= WRITTEN else 0,
        "hovertemplate": "%{y} taken for %{x}<br>%{z:.1%} of its rows: %{customdata:,.1f}<extra></extra>",
        "meta": {"role": "confusion"},
    }
    if len(names) <= WRITTEN:
        heat["text"] = [[f"{share:.0%}" if share >= 0.005 else "" for share in row] for row in shares]
        heat["texttemplate"] = "%{text}"
    return heat


def _reliable(outcome: Outcome, who: str) -> Spec:
    rows, sure, right = outcome.reliability.T
    kept = rows > 0
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": f"{BRIEFLY[who]} ({calibration_error(outcome):.3f})",
        "x": packed(sure[kept] / rows[kept]),
        "y": packed(right[kept] / rows[kept]),
        "customdata": packed(rows[kept]),
        "line": {"color": colour(who), "width": 2.5 if who == "peers" else 1.5},
        "marker": {"color": colour(who), "size": 7},
        "hovertemplate": "%{customdata:,.0f} rows, sure %{x:.2f}, right %{y:.2f}",
        "meta": {"role": who},
    }


def _confusion_summary(outcome: Outcome, classes: tuple[object, ...]) -> str:
    counts = outcome.confusion
    total = max(float(counts.sum()), 1e-12)
    told = f"Of {total:,.0f} rows, {np.trace(counts) / total:.1%} are predicted right."
    wrong = counts - np.diag(np.diag(counts))
    if not wrong.any():
        return told
    true, taken = np.unravel_index(int(wrong.argmax()), wrong.shape)
    return f"{told} Most often wrong: {shown(classes[true])} taken for {shown(classes[taken])}."
