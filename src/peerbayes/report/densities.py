"""Distributions of columns in each class according to the model: small panels in a grid, or one large figure."""

from __future__ import annotations

import numpy as np

from peerbayes.report.arrays import Spec, packed
from peerbayes.report.labels import label, shown
from peerbayes.report.model import Column, Model
from peerbayes.report.theme import axis, class_colour, colour, layout

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
