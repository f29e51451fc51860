"""Figures of what columns of cells and their crosses add to the log-odds: shapes of columns, and maps of pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from peerbayes.data.column import Column
from peerbayes.data.crosses import Cross, group_labels
from peerbayes.model.contributions import Effect, effects
from peerbayes.model.statistics import Statistics
from peerbayes.report.model_figures import CLASSES, FEW, PANELS, Panel, arranged
from peerbayes.report.style import Spec, axis, class_colour, colour, label, packed, scale, shown, trace

MAPS = 6  # pairs that are drawn: those that add most
MOST_CELLS = (
    24  # categories of a column that are drawn: the most frequent ones; with their names where they are few
)
DEPTH = 0.3  # of the height of the shapes: room for the rows below them
OUTER = 1.0  # width of an outer bin whose end is not known, in mean widths of the others


@dataclass(frozen=True, eq=False)
class Effects:
    """The strongest effects of a model, and what its classes are called."""

    classes: tuple[object, ...]
    columns: tuple[tuple[Column, Effect], ...]
    pairs: tuple[tuple[Cross, Effect, tuple[list[str], list[str]]], ...]
    """Crosses, their effects, and what the groups of cells of either column are called."""

    @classmethod
    def of(cls, stats: Statistics) -> Effects:
        schema = stats.schema
        ranked = sorted(
            effects(schema, stats.family, stats.values, stats.of_rows, stats.scaling),
            key=lambda effect: -effect.strength,
        )
        cells = [schema.columns[j] for j in schema.discrete]
        labels = {column.name: column.labels for column in cells}
        columns = [(cells[effect.index], effect) for effect in ranked if effect.index < len(cells)]
        pairs = []
        for effect in ranked:
            if effect.index >= len(cells):
                cross = schema.crosses[effect.index - len(cells)]
                first, second = (
                    group_labels(groups, labels[name])
                    for name, groups in zip(cross.columns, cross.groups, strict=True)
                )
                pairs.append((cross, effect, (first, second)))
        telling = [(column, effect) for column, effect in columns if effect.strength > 0]
        return cls(schema.classes, tuple(telling[:PANELS]), tuple(pairs[:MAPS]))


def figures_of(stats: Statistics | None) -> dict[str, Spec]:
    """Return the figures of a model by name: those that have anything to show."""
    if stats is None:
        return {}
    found = Effects.of(stats)
    figures = {"shapes": shapes(found)} if found.columns else {}
    return figures | ({"pairs": maps(found)} if found.pairs else {})


def shapes(model: Effects) -> Spec:
    """Return the figure of the strongest columns: steps over bins or bars of categories, and the rows below them."""
    two = len(model.classes) == 2
    names = [shown(name) for name in (model.classes[1:] if two else model.classes)]
    legend = {"count": min(len(names), CLASSES), "width": 46 + 7 * max(len(name) for name in names[:CLASSES])}
    panels: list[Panel] = []
    for column, effect in model.columns:
        traces, x_axis = _steps(column, effect, names) if column.edges else _bars(column, effect, names)
        for curve in traces:
            curve["showlegend"] = not panels and curve["meta"]["role"] != "rows" and not two
        y_axis = axis(nticks=4, tickfont={"size": 10}, automargin=False, zeroline=True)
        panels.append(
            (
                f"<b>{label(column.name, 22)}</b>  ±{effect.strength:.2f}",
                traces,
                axis(
                    **{"tickfont": {"size": 10}, "automargin": False, "nticks": 4, **x_axis}, showgrid=False
                ),
                y_axis,
            )
        )
    of = f"of {names[0]}" if two else "of each class against their mean"
    spec = arranged(
        panels,
        f"Contributions to the log-odds {of}; the strongest columns are "
        f"{', '.join(shown(column.name, 20) for column, _ in model.columns[:3])}.",
        {"width": 210, "height": 190, "most": 4, **({} if two else {"legend": legend})},
        0.34,
        margin={"l": 36, "r": 8, "t": 32 if two else 56, "b": 48},
        showlegend=not two,
        barmode="overlay",
        bargap=0.1,
    )
    for title in spec["layout"]["annotations"]:
        title["font"] = {"size": 11, "color": colour("ink")}
    spec["layout"]["legend"] |= {"y": 1, "yref": "container", "yanchor": "top"}
    return spec


def maps(model: Effects) -> Spec:
    """Return the figure of the strongest pairs: a map of contributions each, of the class that it moves most."""
    panels: list[Panel] = []
    for cross, effect, (first, second) in model.pairs:
        moved = np.abs(effect.contributions) @ effect.rows
        c = int(moved.argmax())
        name = model.classes[1] if len(model.classes) == 2 else model.classes[c]
        rows = effect.rows.reshape(cross.shape)
        values = np.where(rows > 0, effect.contributions[c].reshape(cross.shape), np.nan)
        limit = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
        heatmap = trace(
            "pair",
            list(range(len(second))),
            list(range(len(first))),
            type="heatmap",
            z=packed(values),
            customdata=packed(rows),
            text=[[f"{label(row, 40)}<br>{label(column, 40)}" for column in second] for row in first],
            zmin=-limit,
            zmax=limit,
            colorscale=scale("class-1", "paper", "peers"),
            showscale=False,
            hovertemplate="%{text}<br>adds %{z:.2f}<br>%{customdata:,.0f} rows<extra></extra>",
        )
        settings: Spec = {
            "showgrid": False,
            "tickfont": {"size": 10},
            "automargin": False,
            "showticklabels": False,
            "ticks": "",
        }
        title = f"<b>{label(cross.columns[0], 16)} × {label(cross.columns[1], 16)}</b>  {label(name, 12)} ±{limit:.1f}"
        panels.append(
            (
                title,
                [heatmap],
                axis(label(cross.columns[1], 22), **settings),
                axis(label(cross.columns[0], 22), **settings),
            )
        )
    names = ", ".join(shown(cross.name, 40) for cross, *_ in model.pairs[:3])
    spec = arranged(
        panels,
        f"Contributions of pairs of columns to the log-odds; the strongest are {names}.",
        {"width": 280, "height": 270, "most": 3},
        0.3,
        margin={"l": 30, "r": 8, "t": 28, "b": 36},
    )
    for title in spec["layout"]["annotations"]:
        title["font"] = {"size": 11, "color": colour("ink")}
    return spec


def ends_of(column: Column) -> np.ndarray:
    """Return the ends of the bins of a column, those of the outer ones as far as values are known: [r + 1]."""
    edges = np.asarray(column.edges)
    width = OUTER * (float(np.diff(edges).mean()) if edges.size > 1 else 1.0)
    low = edges[0] - width if column.low is None or column.low >= edges[0] else column.low
    high = edges[-1] + width if column.high is None or column.high <= edges[-1] else column.high
    return np.concatenate([[low], edges, [high]])


def _steps(column: Column, effect: Effect, names: list[str]) -> tuple[list[Spec], Spec]:
    """Return steps over the number axis, one line per class, the rows of each bin below, and settings of the x axis."""
    ends = ends_of(column)
    texts = [label(text, 40) for text in column.labels]
    lines = [
        trace(
            "shape",
            ends,
            np.append(values, values[-1]),
            mode="lines",
            name=label(names[c]),
            legendgroup=label(names[c]),
            line={"color": class_colour(c), "width": 1.6, "shape": "hv"},
            text=[*texts, texts[-1]],
            hovertemplate="%{text}: %{y:.2f}",
        )
        for c, values in enumerate(effect.contributions[:CLASSES])
    ]
    middle, width = (ends[1:] + ends[:-1]) / 2, np.diff(ends)
    return [*lines, _rows_below(effect, np.arange(effect.rows.size), middle, width, texts)], {
        "range": [float(ends[0]), float(ends[-1])]
    }


def _bars(column: Column, effect: Effect, names: list[str]) -> tuple[list[Spec], Spec]:
    """Return bars of the most frequent categories, one per class, the rows of each below, and settings of the axis."""
    kept = np.sort(np.argsort(-effect.rows, kind="stable")[:MOST_CELLS])
    texts = [label(column.labels[k], 40) for k in kept]
    at, classes = np.arange(kept.size, dtype=float), min(len(effect.contributions), CLASSES)
    width = 0.8 / classes
    bars = [
        trace(
            "shape",
            at + (c - (classes - 1) / 2) * width,
            effect.contributions[c, kept],
            type="bar",
            name=label(names[c]),
            legendgroup=label(names[c]),
            width=packed(np.full(kept.size, width)),
            marker={"color": class_colour(c), "line": {"width": 0}},
            text=texts,
            textposition="none",
            hovertemplate="%{text}: %{y:.2f}",
        )
        for c in range(classes)
    ]
    few = kept.size <= FEW
    ticks = {
        "tickvals": at.tolist() if few else [],
        "ticktext": [label(column.labels[k], 8) for k in kept] if few else [],
    }
    return [*bars, _rows_below(effect, kept, at, np.full(kept.size, 0.8), texts)], ticks


def _rows_below(effect: Effect, kept: np.ndarray, x: np.ndarray, width: np.ndarray, texts: list[str]) -> Spec:
    """Return bars of how many rows lie in each of the kept cells, below the lowest contribution."""
    shown_values = effect.contributions[:CLASSES, kept]
    low, high = min(float(shown_values.min()), 0.0), max(float(shown_values.max()), 0.0)
    span = (high - low) or 1.0
    rows = effect.rows[kept]
    return trace(
        "rows",
        x,
        rows / max(float(rows.max()), 1.0) * span * (DEPTH - 0.06),
        type="bar",
        base=packed(np.full(kept.size, low - DEPTH * span)),
        width=packed(width),
        marker={"color": colour("muted"), "opacity": 0.45, "line": {"width": 0}},
        customdata=packed(rows),
        text=texts,
        textposition="none",
        name="rows",
        hovertemplate="%{text}: %{customdata:,.0f} rows<extra></extra>",
    )
