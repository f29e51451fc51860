"""Figures of predictions: confusion matrices and calibration curves."""

from __future__ import annotations

import numpy as np

from peerbayes.learning.metrics import Outcome
from peerbayes.report.curves import REFERENCE_TITLES
from peerbayes.report.model_figures import arranged
from peerbayes.report.style import Spec, axis, colour, distinct, label, layout, packed, scale, shown
from peerbayes.simulation.view import View

CLASSES = 100  # most classes in a confusion matrix: the most frequent ones
MOST_WITH_NUMBERS = 12  # classes up to which cells show their values
TITLES = {"peers": "peers, on average", "rc": REFERENCE_TITLES["rc"], "ml": REFERENCE_TITLES["ml"]}
LABELS = {"peers": "peers", "rc": "RC", "ml": "ML"}
CONFUSED = ("peers", "rc")


def confusion(view: View, classes: tuple[object, ...]) -> Spec:
    """Return the figure of confusion matrices, normalised by true class: the peers' next to RC's."""
    rows = view.outcomes["peers"].confusion.sum(axis=1)
    class_indices = np.sort(np.argsort(-rows, kind="stable")[:CLASSES])
    names = distinct([label(classes[index], 14) for index in class_indices])
    models = [model for model in CONFUSED if model in view.outcomes]
    data: list[Spec] = []
    axes: Spec = {}
    panels, titles = [], []
    for index, model in enumerate(models):
        suffix = "" if index == 0 else str(index + 1)
        counts = view.outcomes[model].confusion[np.ix_(class_indices, class_indices)]
        data.append({**_heatmap(counts, names), "xaxis": f"x{suffix}", "yaxis": f"y{suffix}"})
        settings: Spec = {"type": "category", "showgrid": False, "tickfont": {"size": 11}}
        axes[f"xaxis{suffix}"] = axis("predicted class", **settings, anchor=f"y{suffix}")
        axes[f"yaxis{suffix}"] = axis("true class", **settings, autorange="reversed", anchor=f"x{suffix}")
        panels.append({"x": f"xaxis{suffix}", "y": f"yaxis{suffix}"})
        titles.append(
            {
                "text": f"<b>{TITLES[model]}</b>",
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
    """Return the figure of accuracy by confidence."""
    diagonal = {
        "type": "scatter",
        "mode": "lines",
        "name": "perfect calibration",
        "x": [0, 1],
        "y": [0, 1],
        "line": {"color": colour("muted"), "width": 1, "dash": "dot"},
        "hoverinfo": "skip",
        "meta": {"role": "diagonal"},
    }
    outcomes = {model: view.outcomes[model] for model in ("peers", "rc", "ml") if model in view.outcomes}
    curves = [
        _reliability_curve(outcome, model) for model, outcome in reversed(outcomes.items())
    ]  # the peers on top
    return {
        "data": [diagonal, *curves],
        "layout": layout(
            "Accuracy by confidence; expected calibration error of "
            + ", ".join(
                f"{TITLES[model]}: {calibration_error(outcome):.3f}" for model, outcome in outcomes.items()
            )
            + ".",
            400,
            showlegend=True,
            xaxis=axis("confidence", range=[0, 1.02]),
            yaxis=axis("accuracy", range=[0, 1.04]),
        ),
    }


def calibration_error(outcome: Outcome) -> float:
    """Return Σ rows·|accuracy − confidence| / Σ rows over ten bins of confidence."""
    rows, confidence, correct = outcome.reliability.T
    return float(np.abs(correct - confidence).sum() / max(rows.sum(), 1e-12))


def _heatmap(counts: np.ndarray, names: list[str]) -> Spec:
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-12)
    heatmap: Spec = {
        "type": "heatmap",
        "z": packed(shares),
        "customdata": packed(counts),
        "x": names,
        "y": names,
        "zmin": 0,
        "zmax": 1,
        "colorscale": scale("none", "some", "much"),
        "showscale": False,
        "xgap": 1 if len(names) <= MOST_WITH_NUMBERS else 0,
        "ygap": 1 if len(names) <= MOST_WITH_NUMBERS else 0,
        "hovertemplate": "%{y} predicted as %{x}<br>%{z:.1%} of its rows: %{customdata:,.1f}<extra></extra>",
        "meta": {"role": "confusion"},
    }
    if len(names) <= MOST_WITH_NUMBERS:
        heatmap["text"] = [[f"{share:.0%}" if share >= 0.005 else "" for share in row] for row in shares]
        heatmap["texttemplate"] = "%{text}"
    return heatmap


def _reliability_curve(outcome: Outcome, model: str) -> Spec:
    rows, confidence, correct = outcome.reliability.T
    filled = rows > 0
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": f"{LABELS[model]} ({calibration_error(outcome):.3f})",
        "x": packed(confidence[filled] / rows[filled]),
        "y": packed(correct[filled] / rows[filled]),
        "customdata": packed(rows[filled]),
        "line": {"color": colour(model), "width": 2.5 if model == "peers" else 1.5},
        "marker": {"color": colour(model), "size": 7},
        "hovertemplate": "%{customdata:,.0f} rows, confidence %{x:.2f}, accuracy %{y:.2f}",
        "meta": {"role": model},
    }


def _confusion_summary(outcome: Outcome, classes: tuple[object, ...]) -> str:
    counts = outcome.confusion
    total = max(float(counts.sum()), 1e-12)
    sentence = f"Of {total:,.0f} rows, {np.trace(counts) / total:.1%} are predicted correctly."
    wrong = counts - np.diag(np.diag(counts))
    if not wrong.any():
        return sentence
    true, predicted = np.unravel_index(int(wrong.argmax()), wrong.shape)
    return f"{sentence} Most frequent error: {shown(classes[true])} predicted as {shown(classes[predicted])}."
