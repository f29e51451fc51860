"""Figures of a study at the end of its runs: a dot for each mean over seeds, with its interval, against a setting.

    ends(study.summary("test_auc"), "strategy", facet="topology")

A summary has a row for each combination of settings, the settings in the columns before `metric`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from peerbayes.errors import PlotlyMissing
from peerbayes.report.panels import (
    REFERENCE_DASHES,
    ROUND_COLUMNS,
    TOLERANCE,
    Key,
    axes_of,
    heights_of,
    layout_of,
    looks_of,
    reference_lines,
    roles,
    scale_of,
    show_each_once,
    title_of,
    values_of,
    where,
)
from peerbayes.report.style import Spec, figure, label, shown, trace, white
from peerbayes.report.style import colour as colour_of
from peerbayes.simulation.scores import figure_title

if TYPE_CHECKING:
    import pandas as pd

ALL = "mean over seeds"  # where nothing varies
APART = 0.5  # the width of a place on the axis that the dots of several lines share


def ends(
    summary: pd.DataFrame,
    x: str | None,
    colour: str | Sequence[str] | None = None,
    facet: str | None = None,
    log_x: bool = False,
    log_y: bool = False,
    references: Mapping[str, float] | pd.DataFrame | None = None,
) -> Any:
    """Return the plotly figure of a summary's means and intervals against the setting `x`.

    Numbers have their place on the axis and a line from one to the next, texts have places beside each other. `colour`,
    `facet` and `references` are those of `curves`. None for `x`: nothing varies, and there is one dot.
    """
    try:
        from plotly.graph_objects import Figure
    except ModuleNotFoundError as missing:
        raise PlotlyMissing(
            "plotly is not installed; figures of studies need it: pip install 'peerbayes[report]'"
        ) from missing
    return Figure(white(ends_spec(summary, x, colour, facet, log_x, log_y, references)))


def ends_spec(
    summary: pd.DataFrame,
    x: str | None,
    colour: str | Sequence[str] | None,
    facet: str | None,
    log_x: bool,
    log_y: bool,
    references: Mapping[str, float] | pd.DataFrame | None,
) -> Spec:
    """Return the figure of `ends` as a plain dictionary."""
    metric = str(summary["metric"].iloc[0])
    settings = [str(name) for name in summary.columns[: summary.columns.get_loc("metric")]]
    if x is not None and x not in settings:
        raise ValueError(f"x is {x!r}; expected a setting that varies: {', '.join(settings) or 'none does'}")
    rows = summary[np.isfinite(summary["mean"].astype(float))]
    if not len(rows):
        raise ValueError(f"no run has a figure {metric}: {' '.join(dict.fromkeys(summary['note']))}")
    by, panels_by = roles(rows, [name for name in settings if name != x], colour, facet)
    lines, panels = values_of(rows, by), values_of(rows, panels_by)
    looks = dict(zip(lines, looks_of(by, lines), strict=True))
    places = [ALL] if x is None else [key[0] for key in values_of(rows, [x])]
    numbers = x is not None and all(isinstance(place, int | float | np.number) for place in places)
    extent = (float(min(places)), float(max(places))) if numbers else (-0.5, len(places) - 0.5)
    level, moving = _told_apart(references, x)
    data: list[Spec] = []
    for (number, panel), (index, line) in product(enumerate(panels), enumerate(lines)):
        selected = where(rows, (*panels_by, *by), (*panel, *line))
        if len(selected):
            beside = 0.0 if numbers else APART * ((index + 0.5) / len(lines) - 0.5)
            at = [
                place if numbers else places.index(place) + beside
                for place in ([ALL] if x is None else selected[x].tolist())
            ]
            dots = _dots(selected, at, label(title_of(by, line)), looks[line], numbers)
            data.append({**dots, **axes_of(number)})
    for number, panel in enumerate(panels):
        drawn = reference_lines(level, panels_by, panel, by, looks, extent)
        drawn += _moving(moving, str(x), places if numbers else None, (*panels_by, *by), panel)
        data += [{**item, **axes_of(number)} for item in drawn]
    entries = show_each_once(data)
    layout = layout_of(
        panels_by, panels, metric, label(x or ""), _axis(places, numbers, log_x, extent), heights_of(data, log_y),
        entries if entries > 1 else 0,
    )  # fmt: skip
    return figure(data, _sentence(rows, metric, settings), **layout)


def _dots(rows: pd.DataFrame, at: Sequence[Any], name: str, look: tuple[str, str], joined: bool) -> Spec:
    """Return the means of one line with their intervals, where there are any."""
    order = np.argsort(at, kind="stable")
    mean, low, high = (rows[column].to_numpy(dtype=float)[order] for column in ("mean", "low", "high"))
    colour, dash = look
    errors: Spec = {}
    if np.isfinite(high).any():
        errors = {"error_y": {
            "array": np.nan_to_num(high - mean).tolist(), "arrayminus": np.nan_to_num(mean - low).tolist(),
            "color": colour,
        }}  # fmt: skip
    return trace(
        "mean",
        [at[index] for index in order],
        mean.tolist(),
        mode="lines+markers" if joined and len(at) > 1 else "markers",
        name=name,
        legendgroup=name,
        line={"color": colour, "width": 1.5, "dash": dash},
        marker={"color": colour, "size": 9},
        hovertemplate=f"{name}: %{{y:.4f}}<extra></extra>",
        **errors,
    )


def _told_apart(references: Any, x: str | None) -> tuple[Any, Any]:
    """Return the references that are the same at all values of x, and those that are not; None: there are none."""
    if references is None or isinstance(references, Mapping) or x not in references.columns:
        return references, None
    means = references.groupby(x, sort=False).mean(numeric_only=True).drop(columns="seed", errors="ignore")
    moves = [name for name in means.columns if means[name].max() - means[name].min() > TOLERANCE]
    level = references.drop(columns=[x, *moves])
    return level, references.drop(columns=[name for name in means.columns if name not in moves])


def _moving(
    references: Any, x: str, numbers: Sequence[Any] | None, settings: Sequence[str], panel: Key
) -> list[Spec]:
    """Return lines through the references of one panel that depend on x: means over all else."""
    if references is None:
        return []
    rows = where(references, settings[: len(panel)], panel)
    names = [name for name in rows.columns if name not in (*settings, x, *ROUND_COLUMNS)]
    places = values_of(rows, [x])
    drawn = []
    for number, name in enumerate(names):
        means = [float(where(rows, [x], place)[name].mean()) for place in places]
        at = list(range(len(places))) if numbers is None else [place[0] for place in places]
        dash = REFERENCE_DASHES[number % len(REFERENCE_DASHES)]
        drawn.append(trace(
            "reference", at, means, mode="lines", name=label(name), legendgroup=f"reference {label(name)}",
            line={"color": colour_of("muted"), "width": 1.5, "dash": dash},
            hovertemplate=f"{label(name)}: %{{y:.4f}}<extra></extra>",
        ))  # fmt: skip
    return drawn


def _axis(places: Sequence[Any], numbers: bool, log_x: bool, extent: tuple[float, float]) -> Spec:
    """Return the axis of numbers, or of texts beside each other."""
    if numbers:
        return scale_of(log_x, extent)
    named = [label(place) for place in places]
    return {
        "tickmode": "array",
        "tickvals": list(range(len(places))),
        "ticktext": named,
        "range": list(extent),
    }


def _sentence(rows: pd.DataFrame, metric: str, settings: Sequence[str]) -> str:
    """Return a sentence on the figure, for those who cannot see it."""
    keys: list[Key] = list(rows[list(settings)].itertuples(index=False, name=None)) if settings else [()]
    means = [
        f"{shown(title_of(settings, key), 40)}: {mean:.4f}"
        for key, mean in zip(keys, rows["mean"], strict=True)
    ]
    return f"Mean {figure_title(metric)} at the end: {'; '.join(means)}."
