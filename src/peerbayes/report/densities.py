"""How columns are distributed in each class, as the model has it: small figures in a grid, or one large one."""

from __future__ import annotations

import numpy as np

from peerbayes.report.arrays import Spec, packed
from peerbayes.report.labels import label, shown
from peerbayes.report.model import Column, Model
from peerbayes.report.theme import axis, class_colour, colour, layout

PANELS = 12
ACROSS = 4
CLASSES = 10  # drawn: the most frequent
POINTS = 73  # of a density
FEW, MANY = 8, 24  # categories drawn in a small figure and in a large one
RARE = 1e-3  # classes rarer than this do not set the range of an axis
REACH = 3.2  # deviations that an axis reaches beyond a mean
THINNEST = 1 / 150  # of the axis: a narrower density would only be a spike


def features(model: Model) -> Spec:
    """The most telling columns, side by side."""
    some = _classes(model)
    data: list[Spec] = []
    axes: Spec = {}
    titles: list[Spec] = []
    panels: list[Spec] = []
    for place, column in enumerate(model.columns[:PANELS]):
        end = "" if place == 0 else str(place + 1)
        traces, across = _panel(model, column, some, FEW)
        for trace in traces:
            trace |= {"xaxis": f"x{end}", "yaxis": f"y{end}", "showlegend": place == 0}
        data += traces
        small = {"tickfont": {"size": 10}, "automargin": False, "nticks": 4}
        axes[f"xaxis{end}"] = axis(**{**small, **across}, showgrid=False, anchor=f"y{end}")
        axes[f"yaxis{end}"] = axis(
            showticklabels=False, showgrid=False, rangemode="tozero", automargin=False, anchor=f"x{end}"
        )
        titles.append(_title(f"<b>{label(column.name, 22)}</b>  {column.bits:.2f} bits"))
        panels.append({"x": f"xaxis{end}", "y": f"yaxis{end}"})
    widest = max(len(shown(model.classes[place])) for place in some)
    grid: Spec = {"panels": panels, "width": 150, "height": 165, "gap": 56, "most": ACROSS}
    grid["legend"] = {"count": len(some), "width": 46 + 7 * widest}
    spec: Spec = {
        "data": data,
        "layout": layout(
            f"Distributions of the {len(panels)} most telling of {model.count} columns in each class: "
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


def feature(model: Model, place: int) -> Spec:
    """One column, large."""
    column = model.columns[place]
    traces, across = _panel(model, column, _classes(model), MANY)
    for trace in traces:
        trace["showlegend"] = True
    return {
        "data": traces,
        "layout": layout(
            f"Distribution of {shown(column.name)} in each class: {column.bits:.2f} bits about the class.",
            320,
            showlegend=True,
            barmode="group",
            xaxis=axis(label(column.name, 60), **across),
            yaxis=axis("density" if column.cells is None else "probability", rangemode="tozero"),
        ),
    }


def arranged(spec: Spec, grid: Spec, across: int) -> Spec:
    """Panels in so many columns; the page does the same again for its own width."""
    panels, target = grid["panels"], spec["layout"]
    across = min(across, len(panels))
    down = -(-len(panels) // across)
    gap_x, gap_y = 0.06 if across > 1 else 0.0, grid["gap"] / (grid["height"] * down)
    width, height = (1 - gap_x * (across - 1)) / across, (1 - gap_y * (down - 1)) / down
    for place, panel in enumerate(panels):
        left = place % across * (width + gap_x)
        bottom = 1 - place // across * (height + gap_y) - height
        target[panel["x"]]["domain"] = [left, min(1.0, left + width)]
        target[panel["y"]]["domain"] = [max(0.0, bottom), min(1.0, bottom + height)]
        target["annotations"][place] |= {"x": left, "y": min(1.0, bottom + height)}
    target["height"] = target["margin"]["t"] + target["margin"]["b"] + grid["height"] * down
    target["meta"]["grid"] = grid
    return spec


def _title(text: str) -> Spec:
    """Above a panel, at its left."""
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
    """Places of the classes drawn, in their order."""
    return np.sort(np.argsort(-model.prior, kind="stable")[:CLASSES])


def _panel(model: Model, column: Column, some: np.ndarray, most: int) -> tuple[list[Spec], Spec]:
    """Traces, one a class, and what their x axis needs."""
    names = [label(model.classes[place]) for place in some]
    if column.cells is not None:
        return _bars(column, column.cells, some, names, most)
    assert column.mean is not None and column.deviation is not None
    mean, deviation = column.mean[some], column.deviation[some]
    common = model.prior[some] >= min(RARE, float(model.prior[some].max()))
    low = float((mean - REACH * deviation)[common].min())
    high = float((mean + REACH * deviation)[common].max())
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = low - 0.5, high + 0.5
    x = np.linspace(low, high, POINTS)
    wide = np.maximum(deviation, (high - low) * THINNEST)
    y = np.exp(-0.5 * ((x - mean[:, None]) / wide[:, None]) ** 2) / (wide[:, None] * np.sqrt(2 * np.pi))
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "legendgroup": name,
            "x0": low,
            "dx": (high - low) / (POINTS - 1),
            "y": packed(y[place]),
            "line": {"color": class_colour(place), "width": 1.6},
            "hovertemplate": f"mean {mean[place]:.4g}, deviation {deviation[place]:.4g}",
            "meta": {"role": "density"},
        }
        for place, name in enumerate(names)
    ]
    return traces, {"range": [low, high]}


def _bars(
    column: Column, cells: np.ndarray, some: np.ndarray, names: list[str], most: int
) -> tuple[list[Spec], Spec]:
    """Probabilities of the commonest categories in each class."""
    kept = np.sort(np.argsort(-cells[some].sum(axis=0), kind="stable")[:most])
    ticks = [label(column.categories[place], 12) for place in kept]
    traces = [
        {
            "type": "bar",
            "name": name,
            "legendgroup": name,
            "offsetgroup": str(place),
            "x": packed(np.arange(len(kept))),
            "y": packed(cells[some[place], kept]),
            "marker": {"color": class_colour(place), "line": {"width": 0}},
            "text": ticks,
            "textposition": "none",
            "hovertemplate": "%{text}: %{y:.3f}",
            "meta": {"role": "cells"},
        }
        for place, name in enumerate(names)
    ]
    return traces, {"tickvals": list(range(len(kept))), "ticktext": ticks}
