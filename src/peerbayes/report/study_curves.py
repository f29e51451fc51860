"""Curves of a study against rounds, bytes or seconds: means over seeds with bands, in panels that share their axes.

    curves(history, x="bytes", colour="strategy", facet="topology", log_x=True)

A history has one row per cell of the study and evaluated round: the settings that vary, `seed`, `round`, `bytes` (sent
by a peer until then, mean over peers), `seconds`, and for each metric NAME its mean over peers, `NAME`, and its
standard deviation over peers, `NAME_std`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import t as student

from peerbayes.errors import PlotlyMissing
from peerbayes.report.curves import AGAINST
from peerbayes.report.panels import (
    ROUND_COLUMNS,
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
from peerbayes.report.style import Spec, faint_of, figure, label, shown, trace, white
from peerbayes.simulation.scores import figure_title

if TYPE_CHECKING:
    import pandas as pd

BANDS = ("seeds", "peers")
CONFIDENCE = 0.95  # of the intervals of means over seeds
STILL = "longdashdot"  # of what sends nothing, unlike references
# Metrics of a run's own history, which may come without the spread over peers.
KNOWN_METRICS = ("train_error", "test_error", "soft_error", "disagreement", "floored")


def curves(
    history: pd.DataFrame,
    x: str = "round",
    metric: str = "test_error",
    colour: str | Sequence[str] | None = None,
    facet: str | None = None,
    log_x: bool = False,
    log_y: bool = False,
    band: str | None = "seeds",
    references: Mapping[str, float] | pd.DataFrame | None = None,
) -> Any:
    """Return the plotly figure of a metric against `x`: a line is the mean over seeds.

    `colour` and `facet` name settings; by default the first that varies has the colours and the second the panels.
    What else varies has colours of its own, so that a line is never a mean over settings. A band over "seeds" is the
    95 % t-interval of the mean, one over "peers" the mean standard deviation over peers on both sides. `references`
    are horizontal lines: values by name, or a DataFrame whose columns are settings and, by name, values, of which
    means are drawn.
    """
    try:
        from plotly.graph_objects import Figure
    except ModuleNotFoundError as missing:
        raise PlotlyMissing(
            "plotly is not installed; figures of studies need it: pip install 'peerbayes[report]'"
        ) from missing
    spec = curves_spec(history, x, metric, colour, facet, log_x, log_y, band, references)
    return Figure(white(spec))


def curves_spec(
    history: pd.DataFrame,
    x: str,
    metric: str,
    colour: str | Sequence[str] | None,
    facet: str | None,
    log_x: bool,
    log_y: bool,
    band: str | None,
    references: Mapping[str, float] | pd.DataFrame | None,
) -> Spec:
    """Return the figure of `curves` as a plain dictionary."""
    rows = _checked(history, x, metric, band)
    settings = settings_of(rows)
    by, panels_by = roles(rows, settings, colour, facet)
    lines, panels = values_of(rows, by), values_of(rows, panels_by)
    looks = dict(zip(lines, looks_of(by, lines), strict=True))
    drawn = [
        (number, line, mean_curve(selected, x, metric, band))
        for (number, panel), line in product(enumerate(panels), lines)
        if len(selected := where(rows, (*panels_by, *by), (*panel, *line)))
    ]
    # What sends nothing has no place by bytes: a level line across the others, as a reference has.
    moving = [curve["x"] for _, _, curve in drawn if (curve["x"] > 0).any()]
    across = np.concatenate(moving or [curve["x"] for _, _, curve in drawn])
    across = across[across > 0] if log_x and (across > 0).any() else across
    extent = (float(across.min()), float(across.max()))
    data: list[Spec] = []
    for number, line, curve in drawn:
        name = label(title_of(by, line))
        if still := bool(moving) and not (curve["x"] > 0).any():
            curve = _level(curve, extent)
            name += f" (0 {x})" if log_x else ""  # no place on the axis says so
        items = _line(curve, x, name, looks[line], log_y, still)
        data += [{**item, **axes_of(number)} for item in items]
    for number, panel in enumerate(panels):
        lines_of = reference_lines(references, panels_by, panel, by, looks, extent)
        data += [{**item, **axes_of(number)} for item in lines_of]
    entries = show_each_once(data)
    x_axis = {**AGAINST[x].ticks, **scale_of(log_x, extent)}
    named = entries if entries > 1 else 0
    y_axis = heights_of(data, log_y)
    layout = layout_of(panels_by, panels, metric, AGAINST[x].title, x_axis, y_axis, named)
    return figure(data, _sentence(rows, metric, by, lines), **layout)


def settings_of(history: pd.DataFrame) -> list[str]:
    """Return the columns of a history that are settings: neither of rounds nor metrics."""
    columns = [str(name) for name in history.columns]
    metrics = {name for name in columns if f"{name}_std" in columns or name.endswith("_std")}
    return [name for name in columns if name not in metrics and name not in (*ROUND_COLUMNS, *KNOWN_METRICS)]


def mean_curve(rows: pd.DataFrame, x: str, metric: str, band: str | None) -> dict[str, np.ndarray]:
    """Return x, mean, low and high by round of the cells of one line; low and high are NaN where there is no band.

    Only rounds that all seeds of the line have count, so that no step comes from a seed that ends early.
    """
    by_round = rows.groupby("round", sort=True)
    seeds = by_round["seed"].nunique() if "seed" in rows else by_round.size().clip(upper=1)
    complete = (seeds == seeds.max()).to_numpy()
    count = by_round[metric].count().to_numpy()
    mean = by_round[metric].mean().to_numpy()
    half = np.full(len(mean), np.nan)
    if band == "seeds" and seeds.max() > 1:
        deviation = by_round[metric].std(ddof=1).to_numpy()
        half = student.ppf((1 + CONFIDENCE) / 2, np.maximum(count - 1, 1)) * deviation / np.sqrt(count)
    elif band == "peers":
        half = by_round[f"{metric}_std"].mean().to_numpy()
    # The name of x is that of the index where it is the round.
    across = by_round[x].mean().to_numpy()
    curve = {"x": across, "mean": mean, "low": mean - half, "high": mean + half}
    return {name: values[complete].astype(float) for name, values in curve.items()}


def _checked(history: pd.DataFrame, x: str, metric: str, band: str | None) -> pd.DataFrame:
    """Return the rows of a history that have a value; an error says what is missing."""
    if x not in AGAINST:
        raise ValueError(f"x is {x!r}; expected one of {', '.join(AGAINST)}")
    if band is not None and band not in BANDS:
        raise ValueError(f"band is {band!r}; expected one of {', '.join(BANDS)}, or None")
    spread = [f"{metric}_std"] if band == "peers" else []
    for name in ("round", x, metric, *spread):
        if name not in history.columns:
            numbers = sorted(set(history.columns) - set(settings_of(history)))
            raise ValueError(
                f"the history has no column {name!r}; it has the settings "
                f"{', '.join(settings_of(history)) or 'none'} and the numbers {', '.join(map(str, numbers))}"
            )
    rows = history[np.isfinite(history[metric].astype(float)) & np.isfinite(history[x].astype(float))]
    if not len(rows):
        raise ValueError(
            f"no row of the history has both {metric!r} and {x!r}. Test metrics need test rows (`test=`), "
            "seconds need runs that were made by this version of peerbayes"
        )
    return rows


def _level(curve: dict[str, np.ndarray], extent: tuple[float, float]) -> dict[str, np.ndarray]:
    """Return a level line at the end of a curve."""
    ends = {name: np.repeat(curve[name][-1:], 2) for name in ("mean", "low", "high")}
    return {"x": np.array(extent), **ends}


def _line(
    curve: dict[str, np.ndarray], x: str, name: str, look: tuple[str, str], log_y: bool, still: bool = False
) -> list[Spec]:
    """Return the traces of a line: the edges of its band, where it has one, and the mean; `still`: nothing is sent."""
    line_colour, dash = look
    dash = STILL if still else dash
    x_values, low, high = curve["x"].tolist(), curve["low"], curve["high"]
    if log_y:  # a logarithmic axis has no place for an edge below zero
        positive = curve["mean"][curve["mean"] > 0]
        low = np.maximum(low, positive.min() / 10 if positive.size else np.nan)
    common: Spec = {
        "legendgroup": name,
        "mode": "lines" if len(curve["x"]) > 1 else "markers",
        "hoverinfo": "skip",
    }
    edge: Spec = {**common, "showlegend": False, "line": {"width": 0, "color": line_colour}, "name": name}
    traces = []
    if np.isfinite(high).all() and len(curve["x"]) > 1:
        area: Spec = {"fill": "tonexty", "fillcolor": faint_of(line_colour)}
        traces = [
            trace("low", x_values, low.tolist(), **edge),
            trace("high", x_values, high.tolist(), **edge, **area),
        ]
    errors: Spec = {}
    if np.isfinite(high).all() and len(curve["x"]) == 1:
        errors = {
            "error_y": {
                "array": (high - curve["mean"]).tolist(),
                "arrayminus": (curve["mean"] - low).tolist(),
            }
        }
    mean: Spec = {
        **common,
        "name": name,
        "hoverinfo": "all",
        "line": {"color": line_colour, "width": 2.5, "dash": dash},
        "marker": {"color": line_colour, "size": 9},
        "hovertemplate": f"{name}<br>{AGAINST[x].hover}: %{{y:.4f}}<extra></extra>",
        **errors,
    }
    return [*traces, trace("mean", x_values, curve["mean"].tolist(), **mean)]


def _sentence(rows: pd.DataFrame, metric: str, by: Sequence[str], lines: Sequence[Key]) -> str:
    """Return a sentence on the figure, for those who cannot see it."""
    last = rows[rows["round"] == rows["round"].max()]
    means = [
        f"{shown(title_of(by, line), 40)}: {where(last, by, line)[metric].mean():.4f}"
        for line in lines
        if len(where(last, by, line))
    ]
    return f"Mean {figure_title(metric)} after the last round: {'; '.join(means)}."
