"""Figures of the model and its predictions: priors, columns, densities, confusion matrices and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from peerbayes.data.schema import Schema
from peerbayes.learning.metrics import Outcome
from peerbayes.model.explain import CALIBRATED, describe, of_categories, of_gaussians
from peerbayes.model.statistics import Statistics
from peerbayes.report.curves import REFERENCE_TITLES
from peerbayes.report.style import (
    Spec,
    axis,
    class_colour,
    colour,
    decimal,
    distinct,
    figure,
    label,
    packed,
    scale,
    shown,
    trace,
)
from peerbayes.simulation.view import View

# --- the learned model as its figures need it: class priors, and each column's distribution in each class

LISTED = 30  # columns in the figure of the most informative ones
RANKED = 64  # columns that are ranked exactly, and can be selected
RANKING_CLASSES = 40  # classes by which columns are ranked: the most frequent ones
TICKS = 40  # most names along an axis


@dataclass(frozen=True, eq=False)
class Column:
    """The distribution of one column in each of C classes: Gaussians, or probabilities of categories."""

    name: str
    bits: float
    mean: np.ndarray | None = None  # [C]
    deviation: np.ndarray | None = None  # [C]
    categories: tuple[object, ...] = ()
    cells: np.ndarray | None = None  # [C, K]
    range: tuple[float, float] = (-np.inf, np.inf)  # of the values in the rows, where it is known


@dataclass(frozen=True, eq=False)
class Model:
    """Classes, their shares, and the columns, the most informative first."""

    classes: tuple[object, ...]
    prior: np.ndarray
    columns: tuple[Column, ...]
    count: int
    """Number of columns of the data."""
    of_rows: bool
    """Whether these are shares and distributions of the rows; otherwise they are parameters of a calibrated model."""

    @classmethod
    def of(cls, stats: Statistics) -> Model:
        schema, classes, names = stats.schema, stats.schema.classes, stats.schema.names
        labels = np.array(classes, dtype=object)
        if stats.of_rows is None:
            described = describe(schema, stats.family, stats.values, labels, statistics=CALIBRATED)
        else:
            described = describe(schema, stats.family, stats.of_rows, labels)
        table = described[["mean", "deviation", "probability"]].to_numpy(dtype=np.float64)
        table = table.reshape(len(classes), -1, 3)  # by class: its prior, Gaussians, cells
        prior = table[:, 0, 2] / table[:, 0, 2].sum()
        continuous = len(schema.continuous)
        mean, deviation = table[:, 1 : 1 + continuous, 0], table[:, 1 : 1 + continuous, 1]
        cells = np.split(table[:, 1 + continuous :, 2], np.cumsum(schema.cardinalities)[:-1], axis=1)
        common = np.argsort(-prior, kind="stable")[:RANKING_CLASSES]
        weights = np.maximum(prior[common], np.finfo(float).tiny)
        weights = weights / weights.sum()
        observed = stats.observed
        ranges = np.tile([-np.inf, np.inf], (continuous, 1))
        if observed is None:
            ranking = -_separation(weights, mean[common], deviation[common])
        else:
            ranking = -observed.bits[:continuous]
            ranges = observed.ranges * schema.scale[:, None] + schema.location[:, None]
        columns = [
            Column(
                _shown_name(schema, schema.continuous[index]),
                of_gaussians(weights, mean[common, index], deviation[common, index])
                if observed is None
                else float(observed.bits[index]),
                mean=mean[:, index],
                deviation=deviation[:, index],
                range=(float(ranges[index, 0]), float(ranges[index, 1])),
            )
            for index in np.argsort(ranking, kind="stable")[:RANKED]
        ]
        for position, (index, shares) in enumerate(zip(schema.discrete, cells, strict=False)):
            bits = (
                of_categories(weights, shares[common])
                if observed is None
                else float(observed.bits[continuous + position])
            )
            columns.append(Column(names[index], bits, categories=schema.columns[index].labels, cells=shares))
        columns.sort(key=lambda column: -column.bits)
        return cls(classes, prior, tuple(columns[:RANKED]), len(names), stats.of_rows is not None)


def _shown_name(schema: Schema, j: int) -> str:
    """Return the name of a column, with what its numbers are where they are not those of the table."""
    column = schema.columns[j]
    return (
        f"{column.traits.scale_of_numbers} of {column.name}"
        if column.traits.scale_of_numbers
        else column.name
    )


def _separation(prior: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return the separation of the classes relative to their widths: [C], [C, D], [C, D] -> [D]. Cheaper than bits."""
    variance = np.maximum(deviation**2, np.finfo(float).tiny)
    within = prior @ variance
    return prior @ (mean - prior @ mean) ** 2 / within + np.log(within) - prior @ np.log(variance)


def priors(view: View, model: Model) -> Spec:
    """Return the figure of the class shares in the training rows, next to those in the evaluated rows."""
    indices = np.arange(len(model.classes))
    names = [label(name) for name in model.classes]
    kind, name = ("share", "share of the training rows") if model.of_rows else ("prior", "prior in the model")
    data = [_bar("prior", indices, model.prior, names, f"{kind} %{{y:.4f}}", name=name)]
    if "peers" in view.outcomes:
        rows = view.outcomes["peers"].confusion.sum(axis=1)
        data.append(
            trace(
                "share",
                indices,
                rows / max(rows.sum(), 1e-12),
                mode="markers",
                name=f"share of the {'test rows' if view.error == 'test_error' else 'training rows'}",
                text=names,
                marker={
                    "color": colour("class-1"),
                    "symbol": "line-ew-open",
                    "size": 12,
                    "line": {"width": 2},
                },
                hovertemplate="%{text}: share of the rows %{y:.4f}<extra></extra>",
            )
        )
    return figure(
        data,
        f"{kind.capitalize()}s of {len(indices)} classes, from {decimal(model.prior.min())} to "
        f"{decimal(model.prior.max())}, highest for {shown(model.classes[int(model.prior.argmax())])}.",
        showlegend=len(data) > 1,
        xaxis=axis("class", **tick_labels(model.classes)),
        yaxis=axis("probability", rangemode="tozero"),
    )


def informative_columns(model: Model) -> Spec:
    """Return the figure of the columns with the highest mutual information with the class, in bits."""
    top = model.columns[:LISTED][::-1]  # plotly starts at the bottom
    names, indices = [label(column.name) for column in top], np.arange(len(top))
    prior = model.prior[model.prior > 0]
    entropy, best = float(-(prior * np.log2(prior)).sum()), model.columns[0]
    bits = np.array([column.bits for column in top])
    return figure(
        [_bar("telling", bits, indices, names, "%{x:.3f} bits", orientation="h")],
        f"The most informative of {model.count} columns is {shown(best.name)}, with {best.bits:.2f} of "
        f"{entropy:.2f} bits.",
        max(200, 70 + 17 * len(top)),
        bargap=0.25,
        xaxis=axis(f"bits about the class (at most {entropy:.2f})", rangemode="tozero"),
        yaxis=axis(tickvals=indices.tolist(), ticktext=names, showgrid=False, tickfont={"size": 11}),
    )


def _bar(role: str, x: np.ndarray, y: np.ndarray, names: list[str], hover: str, **settings: Any) -> Spec:
    """Return bars with names, which are shown when hovering only."""
    marker = {"color": colour("peers"), "opacity": 0.85}
    hover = f"%{{text}}: {hover}<extra></extra>"
    return trace(
        role,
        x,
        y,
        type="bar",
        text=names,
        textposition="none",
        marker=marker,
        hovertemplate=hover,
        **settings,
    )


def tick_labels(values: tuple[object, ...], longest: int = 16) -> Spec:
    """Return tick labels with names along an axis: all, or every k-th of many."""
    step = -(-len(values) // TICKS)
    indices = list(range(0, len(values), step))
    return {"tickvals": indices, "ticktext": [label(values[index], longest) for index in indices]}


# --- distributions of columns in each class according to the model: small panels in a grid, or one large figure

PANELS = 12
ACROSS = 4
XGAP = 0.18  # between panels, in their widths
CLASSES = 10  # the most frequent classes are drawn
POINTS = 73  # of a density curve
FEW, MANY = 8, 24  # categories drawn in a panel and in a large figure
RARE = 1e-3  # classes rarer than this do not set the range of an axis
REACH = 3.2  # standard deviations that an axis extends beyond a mean
Panel = tuple[str, list[Spec], Spec, Spec]  # title, traces, x axis, y axis
THINNEST = 1 / 150  # of the axis: least standard deviation drawn; a narrower density would only be a spike


def features(model: Model) -> Spec:
    """Return the figure of the most informative columns, one panel each."""
    class_indices, columns = _classes(model), model.columns[:PANELS]
    widest = max(len(shown(model.classes[index])) for index in class_indices)
    legend = {"count": len(class_indices), "width": 46 + 7 * widest}
    panels: list[Panel] = []
    for column in columns:
        traces, x_axis = _panel(model, column, class_indices, FEW)
        small = {"tickfont": {"size": 10}, "automargin": False, "nticks": 4}
        x_axis = axis(**{**small, **x_axis}, showgrid=False)
        y_axis = axis(showticklabels=False, showgrid=False, rangemode="tozero", automargin=False)
        for curve in traces:
            curve["showlegend"] = not panels
        panels.append((f"<b>{label(column.name, 22)}</b>  {column.bits:.2f} bits", traces, x_axis, y_axis))
    spec = arranged(
        panels,
        f"Distributions by class of the {len(columns)} most informative of {model.count} columns: "
        f"{', '.join(shown(column.name, 20) for column in columns[:3])} and so on.",
        {"width": 150, "height": 165, "most": ACROSS, "legend": legend},
        0.34,
        margin={"l": 8, "r": 8, "t": 56, "b": 28},
        showlegend=True,
        barmode="group",
    )
    for title in spec["layout"]["annotations"]:
        title["font"] = {"size": 11, "color": colour("ink")}
    spec["layout"]["legend"] |= {"y": 1, "yref": "container", "yanchor": "top"}
    return spec


def feature(model: Model, index: int) -> Spec:
    """Return the large figure of one column."""
    column = model.columns[index]
    traces, x_axis = _panel(model, column, _classes(model), MANY)
    return figure(
        [{**curve, "showlegend": True} for curve in traces],
        f"Distribution of {shown(column.name)} by class; it has {column.bits:.2f} bits about the class.",
        320,
        showlegend=True,
        barmode="group",
        xaxis=axis(label(column.name, 60), **x_axis),
        yaxis=axis("density" if column.cells is None else "probability", rangemode="tozero"),
    )


def arranged(panels: Sequence[Panel], summary: str, grid: Spec, ygap: float, **settings: Any) -> Spec:
    """Return a figure of panels in `grid["most"]` columns, each with its title above.

    figures.js changes the number of columns for the width of the page.
    """
    data: list[Spec] = []
    axes: Spec = {}
    titles = []
    for index, (title, traces, x_axis, y_axis) in enumerate(panels):
        suffix = "" if index == 0 else str(index + 1)
        x, y = f"x{suffix}", f"y{suffix}"
        data += [{**curve, "xaxis": x, "yaxis": y} for curve in traces]
        axes[f"xaxis{suffix}"], axes[f"yaxis{suffix}"] = x_axis | {"anchor": y}, y_axis | {"anchor": x}
        corner = {"x": 0, "xref": f"{x} domain", "xanchor": "left", "y": 1, "yref": f"{y} domain"}
        titles.append({"text": title, **corner, "yanchor": "bottom", "showarrow": False})
    across = min(grid["most"], len(panels))
    down = -(-len(panels) // across)
    axes["grid"] = {"pattern": "independent", "rows": down, "columns": across, "xgap": XGAP, "ygap": ygap}
    total = settings["margin"]["t"] + settings["margin"]["b"] + grid["height"] * down
    spec = figure(data, summary, total, annotations=titles, **axes, **settings)
    spec["layout"]["meta"]["grid"] = {"count": len(panels), **grid}
    return spec


def _classes(model: Model) -> np.ndarray:
    """Return the indices of the classes that are drawn, in their order."""
    return np.sort(np.argsort(-model.prior, kind="stable")[:CLASSES])


def _panel(
    model: Model, column: Column, class_indices: np.ndarray, most_categories: int
) -> tuple[list[Spec], Spec]:
    """Return one trace per class, and settings of their x axis."""
    names = [label(model.classes[index]) for index in class_indices]
    if column.cells is not None:
        return _bars(column, column.cells, class_indices, names, most_categories)
    assert column.mean is not None and column.deviation is not None
    mean, deviation = column.mean[class_indices], column.deviation[class_indices]
    common = model.prior[class_indices] >= min(RARE, float(model.prior[class_indices].max()))
    low, high = (mean - REACH * deviation)[common].min(), (mean + REACH * deviation)[common].max()
    low = float(max(low, min(column.range[0], mean[common].min())))  # within the range of the rows
    high = float(min(high, max(column.range[1], mean[common].max())))
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = low - 0.5, high + 0.5
    x = np.linspace(low, high, POINTS)
    width = np.maximum(deviation, (high - low) * THINNEST)
    y = np.exp(-0.5 * ((x - mean[:, None]) / width[:, None]) ** 2) / (width[:, None] * np.sqrt(2 * np.pi))
    traces = [
        trace(
            "density",
            y=y[index],
            mode="lines",
            name=name,
            legendgroup=name,
            x0=low,
            dx=(high - low) / (POINTS - 1),
            line={"color": class_colour(index), "width": 1.6},
            hovertemplate=f"mean {mean[index]:.4g}, standard deviation {deviation[index]:.4g}",
        )
        for index, name in enumerate(names)
    ]
    return traces, {"range": [low, high]}


def _bars(
    column: Column, cells: np.ndarray, class_indices: np.ndarray, names: list[str], most_categories: int
) -> tuple[list[Spec], Spec]:
    """Return bars of the most frequent categories' probabilities in each class, and settings of the x axis."""
    shown_categories = np.sort(np.argsort(-cells[class_indices].sum(axis=0), kind="stable")[:most_categories])
    ticks = [label(column.categories[index], 12) for index in shown_categories]
    indices = np.arange(len(shown_categories))
    traces = [
        trace(
            "cells",
            indices,
            cells[class_indices[index], shown_categories],
            type="bar",
            name=name,
            legendgroup=name,
            offsetgroup=str(index),
            marker={"color": class_colour(index), "line": {"width": 0}},
            text=ticks,
            textposition="none",
            hovertemplate="%{text}: %{y:.3f}",
        )
        for index, name in enumerate(names)
    ]
    return traces, {"tickvals": indices.tolist(), "ticktext": ticks}


# --- predictions: confusion matrices and calibration curves

MOST_CONFUSED = 100  # classes in a confusion matrix: the most frequent ones
MOST_WITH_NUMBERS = 12  # classes up to which cells show their values
TITLES = {
    "peers": "peers, on average",
    "unscaled": "peers, unscaled",
    "rc": REFERENCE_TITLES["rc"],
    "ml": REFERENCE_TITLES["ml"],
}
LABELS = {"peers": "peers", "unscaled": "unscaled", "rc": "RC", "ml": "ML"}


def confusion(view: View, classes: tuple[object, ...]) -> Spec:
    """Return the figure of confusion matrices, normalised by true class: the peers' next to RC's."""
    rows = view.outcomes["peers"].confusion.sum(axis=1)
    indices = np.sort(np.argsort(-rows, kind="stable")[:MOST_CONFUSED])
    names = distinct([label(classes[index], 14) for index in indices])
    settings: Spec = {"type": "category", "showgrid": False, "tickfont": {"size": 11}}
    panels = [
        (
            f"<b>{TITLES[model]}</b>",
            [_heatmap(view.outcomes[model].confusion[np.ix_(indices, indices)], names)],
            axis("predicted class", **settings),
            axis("true class", **settings, autorange="reversed"),
        )
        for model in ("peers", "rc")
        if model in view.outcomes
    ]
    summary = _confusion_summary(view.outcomes["peers"], classes)
    grid = {"width": 330, "height": 360, "most": 2}
    return arranged(panels, summary, grid, 0.24, margin={"l": 64, "r": 16, "t": 28, "b": 56})


def reliability(view: View) -> Spec:
    """Return the figure of accuracy by confidence."""
    dotted = {"color": colour("muted"), "width": 1, "dash": "dot"}
    ends = [0, 1]
    diagonal = trace(
        "diagonal", ends, ends, mode="lines", name="perfect calibration", line=dotted, hoverinfo="skip"
    )
    outcomes = {model: view.outcomes[model] for model in LABELS if model in view.outcomes}
    errors = [f"{TITLES[model]}: {outcome.calibration_error:.3f}" for model, outcome in outcomes.items()]
    curves = [_reliability_curve(outcome, model) for model, outcome in outcomes.items()]
    return figure(
        [diagonal, *reversed(curves)],  # the peers on top
        f"Accuracy by confidence; expected calibration error of {', '.join(errors)}.",
        400,
        showlegend=True,
        xaxis=axis("confidence", range=[0, 1.02]),
        yaxis=axis("accuracy", range=[0, 1.04]),
    )


def _heatmap(counts: np.ndarray, names: list[str]) -> Spec:
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-12)
    few = len(names) <= MOST_WITH_NUMBERS
    heatmap = trace(
        "confusion",
        names,
        names,
        type="heatmap",
        z=packed(shares),
        customdata=packed(counts),
        zmin=0,
        zmax=1,
        colorscale=scale("none", "some", "much"),
        showscale=False,
        xgap=int(few),
        ygap=int(few),
        hovertemplate="%{y} predicted as %{x}<br>%{z:.1%} of its rows: %{customdata:,.1f}<extra></extra>",
    )
    if few:
        heatmap["text"] = [[f"{share:.0%}" if share >= 0.005 else "" for share in row] for row in shares]
        heatmap["texttemplate"] = "%{text}"
    return heatmap


def _reliability_curve(outcome: Outcome, model: str) -> Spec:
    rows, confidence, correct = outcome.reliability[outcome.reliability[:, 0] > 0].T
    unscaled = model == "unscaled"
    shade = colour("peers" if unscaled else model)
    return trace(
        model,
        confidence / rows,
        correct / rows,
        mode="lines+markers",
        name=f"{LABELS[model]} ({outcome.calibration_error:.3f})",
        customdata=packed(rows),
        line={
            "color": shade,
            "width": 2.5 if model == "peers" else 1.5,
            "dash": "dash" if unscaled else "solid",
        },
        marker={"color": shade, "size": 7},
        hovertemplate="%{customdata:,.0f} rows, confidence %{x:.2f}, accuracy %{y:.2f}",
    )


def _confusion_summary(outcome: Outcome, classes: tuple[object, ...]) -> str:
    counts = outcome.confusion
    total = max(float(counts.sum()), 1e-12)
    sentence = f"Of {total:,.0f} rows, {np.trace(counts) / total:.1%} are predicted correctly."
    wrong = counts - np.diag(np.diag(counts))
    if not wrong.any():
        return sentence
    true, predicted = np.unravel_index(int(wrong.argmax()), wrong.shape)
    return f"{sentence} Most frequent error: {shown(classes[true])} predicted as {shown(classes[predicted])}."
