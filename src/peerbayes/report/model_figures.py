"""The model: class priors, columns and densities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from peerbayes.model.explain import describe, of_categories, of_gaussians
from peerbayes.model.statistics import Statistics
from peerbayes.report.style import Spec, axis, class_colour, colour, figure, label, layout, packed, shown
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


@dataclass(frozen=True, eq=False)
class Model:
    """Classes, their prior, and the columns, the most informative first."""

    classes: tuple[object, ...]
    prior: np.ndarray
    columns: tuple[Column, ...]
    count: int
    """Number of columns of the data."""

    @classmethod
    def of(cls, stats: Statistics) -> Model:
        schema, classes, names = stats.schema, stats.schema.classes, stats.schema.names
        described = describe(schema, stats.family, stats.values, np.array(classes, dtype=object))
        table = described[["mean", "deviation", "probability"]].to_numpy(dtype=np.float64)
        table = table.reshape(len(classes), -1, 3)  # by class: its prior, Gaussians, cells
        prior = table[:, 0, 2] / table[:, 0, 2].sum()
        continuous = len(schema.continuous)
        mean, deviation = table[:, 1 : 1 + continuous, 0], table[:, 1 : 1 + continuous, 1]
        cells = np.split(table[:, 1 + continuous :, 2], np.cumsum(schema.cardinalities)[:-1], axis=1)
        common = np.argsort(-prior, kind="stable")[:RANKING_CLASSES]
        weights = np.maximum(prior[common], np.finfo(float).tiny)
        weights = weights / weights.sum()
        separation = _separation(weights, mean[common], deviation[common])
        columns = [
            Column(
                names[schema.continuous[index]],
                of_gaussians(weights, mean[common, index], deviation[common, index]),
                mean[:, index],
                deviation[:, index],
            )
            for index in np.argsort(-separation, kind="stable")[:RANKED]
        ]
        columns += [
            Column(
                names[index],
                of_categories(weights, shares[common]),
                categories=schema.columns[index].categories,
                cells=shares,
            )
            for index, shares in zip(schema.discrete, cells, strict=False)
        ]
        columns.sort(key=lambda column: -column.bits)
        return cls(classes, prior, tuple(columns[:RANKED]), len(names))


def _separation(prior: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return the separation of the classes relative to their widths: [C], [C, D], [C, D] -> [D]. Cheaper than bits."""
    middle = prior @ mean
    within = np.maximum(prior @ deviation**2, np.finfo(float).tiny)
    return (
        prior @ (mean - middle) ** 2 / within
        + np.log(within)
        - prior @ np.log(np.maximum(deviation, np.finfo(float).tiny) ** 2)
    )


def priors(view: View, model: Model) -> Spec:
    """Return the figure of the class priors, next to the class shares of the evaluated rows."""
    indices = np.arange(len(model.classes))
    bars: Spec = {
        "type": "bar",
        "name": "prior in the model",
        "x": packed(indices),
        "y": packed(model.prior),
        "text": [label(name) for name in model.classes],
        "textposition": "none",
        "marker": {"color": colour("peers"), "opacity": 0.85},
        "hovertemplate": "%{text}: prior %{y:.4f}<extra></extra>",
        "meta": {"role": "prior"},
    }
    data = [bars]
    if "peers" in view.outcomes:
        rows = view.outcomes["peers"].confusion.sum(axis=1)
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"share of the {_evaluated_rows(view)}",
                "x": packed(indices),
                "y": packed(rows / max(rows.sum(), 1e-12)),
                "text": bars["text"],
                "marker": {
                    "color": colour("class-1"),
                    "symbol": "line-ew-open",
                    "size": 12,
                    "line": {"width": 2},
                },
                "hovertemplate": "%{text}: share of the rows %{y:.4f}<extra></extra>",
                "meta": {"role": "share"},
            }
        )
    most_frequent = int(model.prior.argmax())
    summary = (
        f"Priors of {len(indices)} classes, from {figure(model.prior.min())} to {figure(model.prior.max())}, "
        f"highest for {shown(model.classes[most_frequent])}."
    )
    return {
        "data": data,
        "layout": layout(
            summary,
            showlegend=len(data) > 1,
            xaxis=axis("class", **tick_labels(model.classes)),
            yaxis=axis("probability", rangemode="tozero"),
        ),
    }


def informative_columns(model: Model) -> Spec:
    """Return the figure of the columns with the highest mutual information with the class, in bits."""
    top = model.columns[:LISTED][::-1]  # plotly starts at the bottom
    names = [label(column.name) for column in top]
    entropy = float(-(model.prior[model.prior > 0] * np.log2(model.prior[model.prior > 0])).sum())
    best = model.columns[0]
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "x": packed([column.bits for column in top]),
                "y": packed(np.arange(len(top))),
                "text": names,
                "textposition": "none",
                "marker": {"color": colour("peers"), "opacity": 0.85},
                "hovertemplate": "%{text}: %{x:.3f} bits<extra></extra>",
                "meta": {"role": "telling"},
            }
        ],
        "layout": layout(
            f"The most informative of {model.count} columns is {shown(best.name)}, with {best.bits:.2f} of "
            f"{entropy:.2f} bits.",
            max(200, 70 + 17 * len(top)),
            bargap=0.25,
            xaxis=axis(f"bits about the class (at most {entropy:.2f})", rangemode="tozero"),
            yaxis=axis(tickvals=list(range(len(top))), ticktext=names, showgrid=False, tickfont={"size": 11}),
        ),
    }


def tick_labels(values: tuple[object, ...], longest: int = 16) -> Spec:
    """Return tick labels with names along an axis: all, or every k-th of many."""
    step = -(-len(values) // TICKS)
    indices = list(range(0, len(values), step))
    return {"tickvals": indices, "ticktext": [label(values[index], longest) for index in indices]}


def _evaluated_rows(view: View) -> str:
    return "test rows" if view.error == "test_error" else "training rows"


# --- distributions of columns in each class according to the model: small panels in a grid, or one large figure

PANELS = 12
ACROSS = 4
CLASSES = 10  # the most frequent classes are drawn
POINTS = 73  # of a density curve
FEW, MANY = 8, 24  # categories drawn in a panel and in a large figure
RARE = 1e-3  # classes rarer than this do not set the range of an axis
REACH = 3.2  # standard deviations that an axis extends beyond a mean
THINNEST = 1 / 150  # of the axis: least standard deviation drawn; a narrower density would only be a spike


def features(model: Model) -> Spec:
    """Return the figure of the most informative columns, one panel each."""
    class_indices = _classes(model)
    data: list[Spec] = []
    axes: Spec = {}
    titles: list[Spec] = []
    panels: list[Spec] = []
    for index, column in enumerate(model.columns[:PANELS]):
        suffix = "" if index == 0 else str(index + 1)
        traces, x_axis = _panel(model, column, class_indices, FEW)
        for trace in traces:
            trace |= {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}", "showlegend": index == 0}
        data += traces
        small = {"tickfont": {"size": 10}, "automargin": False, "nticks": 4}
        axes[f"xaxis{suffix}"] = axis(**{**small, **x_axis}, showgrid=False, anchor=f"y{suffix}")
        axes[f"yaxis{suffix}"] = axis(
            showticklabels=False, showgrid=False, rangemode="tozero", automargin=False, anchor=f"x{suffix}"
        )
        titles.append(_title(f"<b>{label(column.name, 22)}</b>  {column.bits:.2f} bits"))
        panels.append({"x": f"xaxis{suffix}", "y": f"yaxis{suffix}"})
    widest = max(len(shown(model.classes[index])) for index in class_indices)
    grid: Spec = {"panels": panels, "width": 150, "height": 165, "gap": 56, "most": ACROSS}
    grid["legend"] = {"count": len(class_indices), "width": 46 + 7 * widest}
    spec: Spec = {
        "data": data,
        "layout": layout(
            f"Distributions by class of the {len(panels)} most informative of {model.count} columns: "
            f"{', '.join(shown(column.name, 20) for column in model.columns[:3])} and so on.",
            margin={"l": 8, "r": 8, "t": 56, "b": 28},
            showlegend=True,
            barmode="group",
            annotations=titles,
            **axes,
        ),
    }
    spec["layout"]["legend"] |= {"y": 1, "yref": "container", "yanchor": "top"}
    return arranged(spec, grid, ACROSS)


def feature(model: Model, index: int) -> Spec:
    """Return the large figure of one column."""
    column = model.columns[index]
    traces, x_axis = _panel(model, column, _classes(model), MANY)
    for trace in traces:
        trace["showlegend"] = True
    return {
        "data": traces,
        "layout": layout(
            f"Distribution of {shown(column.name)} by class; it has {column.bits:.2f} bits about the class.",
            320,
            showlegend=True,
            barmode="group",
            xaxis=axis(label(column.name, 60), **x_axis),
            yaxis=axis("density" if column.cells is None else "probability", rangemode="tozero"),
        ),
    }


def arranged(spec: Spec, grid: Spec, across: int) -> Spec:
    """Arrange the panels in `across` columns; figures.js repeats this for the width of the page."""
    panels, target = grid["panels"], spec["layout"]
    across = min(across, len(panels))
    down = -(-len(panels) // across)
    gap_x, gap_y = 0.06 if across > 1 else 0.0, grid["gap"] / (grid["height"] * down)
    width, height = (1 - gap_x * (across - 1)) / across, (1 - gap_y * (down - 1)) / down
    for index, panel in enumerate(panels):
        left = index % across * (width + gap_x)
        bottom = 1 - index // across * (height + gap_y) - height
        target[panel["x"]]["domain"] = [left, min(1.0, left + width)]
        target[panel["y"]]["domain"] = [max(0.0, bottom), min(1.0, bottom + height)]
        target["annotations"][index] |= {"x": left, "y": min(1.0, bottom + height)}
    target["height"] = target["margin"]["t"] + target["margin"]["b"] + grid["height"] * down
    target["meta"]["grid"] = grid
    return spec


def _title(text: str) -> Spec:
    """Return a title above the left edge of a panel."""
    return {
        "text": text,
        "xref": "paper",
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 11, "color": colour("ink")},
    }


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
    low = float((mean - REACH * deviation)[common].min())
    high = float((mean + REACH * deviation)[common].max())
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = low - 0.5, high + 0.5
    x = np.linspace(low, high, POINTS)
    width = np.maximum(deviation, (high - low) * THINNEST)
    y = np.exp(-0.5 * ((x - mean[:, None]) / width[:, None]) ** 2) / (width[:, None] * np.sqrt(2 * np.pi))
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "legendgroup": name,
            "x0": low,
            "dx": (high - low) / (POINTS - 1),
            "y": packed(y[index]),
            "line": {"color": class_colour(index), "width": 1.6},
            "hovertemplate": f"mean {mean[index]:.4g}, standard deviation {deviation[index]:.4g}",
            "meta": {"role": "density"},
        }
        for index, name in enumerate(names)
    ]
    return traces, {"range": [low, high]}


def _bars(
    column: Column, cells: np.ndarray, class_indices: np.ndarray, names: list[str], most_categories: int
) -> tuple[list[Spec], Spec]:
    """Return bars of the most frequent categories' probabilities in each class, and settings of the x axis."""
    shown_categories = np.sort(np.argsort(-cells[class_indices].sum(axis=0), kind="stable")[:most_categories])
    ticks = [label(column.categories[index], 12) for index in shown_categories]
    traces = [
        {
            "type": "bar",
            "name": name,
            "legendgroup": name,
            "offsetgroup": str(index),
            "x": packed(np.arange(len(shown_categories))),
            "y": packed(cells[class_indices[index], shown_categories]),
            "marker": {"color": class_colour(index), "line": {"width": 0}},
            "text": ticks,
            "textposition": "none",
            "hovertemplate": "%{text}: %{y:.3f}",
            "meta": {"role": "cells"},
        }
        for index, name in enumerate(names)
    ]
    return traces, {"tickvals": list(range(len(shown_categories))), "ticktext": ticks}
