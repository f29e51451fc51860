"""Curves of a study against rounds, bytes or seconds: means over seeds with bands, in panels that share their axes.

    curves(history, x="bytes", colour="strategy", facet="topology", log_x=True)

A history has one row per cell of the study and evaluated round: the settings that vary, `seed`, `round`, `bytes` (sent
by a peer until then, mean over peers), `seconds`, and for each metric NAME its mean over peers, `NAME`, and its
standard deviation over peers, `NAME_std`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import t as student

from peerbayes.errors import PlotlyMissing
from peerbayes.report.curves import AGAINST
from peerbayes.report.style import (
    Spec,
    axis,
    colour,
    colours_of,
    faint_of,
    figure,
    label,
    shown,
    trace,
    white,
)

if TYPE_CHECKING:
    import pandas as pd

BANDS = ("seeds", "peers")
CONFIDENCE = 0.95  # of the intervals of means over seeds
ROUND_COLUMNS = ("seed", "round", "bytes", "seconds")
# Metrics of a run's own history, which may come without the spread over peers.
KNOWN_METRICS = ("train_error", "test_error", "soft_error", "disagreement", "floored")
ACROSS = {1: 1, 2: 2, 4: 2}  # panels beside each other, by their number
MOST_ACROSS = 3
DECADES = 1.5  # a logarithmic axis that is longer has a number at powers of ten only
IN_LINE = 6  # entries of the legend that fit in a line, about
PANEL = 250  # pixels of a panel's height
SINGLE = 420  # pixels of the only panel's height
DASHES = (
    "solid",
    "dash",
    "dot",
    "dashdot",
)  # the colours begin again after ten lines, with the next of these
REFERENCE_DASHES = ("dash", "dot", "dashdot", "longdash")
TOLERANCE = 1e-6  # references closer than this are one line

Key = tuple[Any, ...]


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
    by, panels_by = _roles(rows, settings, colour, facet)
    lines, panels = _values(rows, by), _values(rows, panels_by)
    looks = dict(zip(lines, _looks(by, lines), strict=True))
    data: list[Spec] = []
    extent = (math.inf, -math.inf)
    for (number, panel), line in product(enumerate(panels), lines):
        selected = _where(rows, (*panels_by, *by), (*panel, *line))
        if len(selected):
            curve, name = mean_curve(selected, x, metric, band), label(_title(by, line))
            if log_x and not (curve["x"] > 0).any():
                name += f" (0 {x})"  # such a line has no place on the axis
            extent = min(extent[0], *curve["x"]), max(extent[1], *curve["x"])
            data += [{**item, **_axes_of(number)} for item in _line(curve, x, name, looks[line], log_y)]
    for number, panel in enumerate(panels):
        lines_of = _references(references, panels_by, panel, by, looks, extent)
        data += [{**item, **_axes_of(number)} for item in lines_of]
    entries = _show_each_once(data)
    layout = _layout(panels_by, panels, metric, x, log_x, log_y, extent, entries if entries > 1 else 0)
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


def _roles(
    rows: pd.DataFrame, settings: Sequence[str], colour: str | Sequence[str] | None, facet: str | None
) -> tuple[list[str], list[str]]:
    """Return the settings that have colours and the setting that has panels, if any."""
    asked = [] if colour is None else [colour] if isinstance(colour, str) else list(colour)
    for name in (*asked, *([] if facet is None else [facet])):
        if name not in settings:
            raise ValueError(
                f"{name!r} is not a setting of this study; expected one of {', '.join(settings)}"
            )
    varying = [name for name in settings if len(_values(rows, [name])) > 1]
    rest = [name for name in varying if name != facet and name not in asked]
    if colour is None and rest:
        asked = [rest.pop(0)]
    if facet is None and colour is None and rest:
        facet = rest.pop(0)
    return [*asked, *rest], [] if facet is None else [facet]


def _values(rows: pd.DataFrame, names: Sequence[str]) -> list[Key]:
    """Return the combinations of values of these columns: numbers in order, texts as they come."""
    if not names:
        return [()]
    combinations = list(dict.fromkeys(rows[list(names)].itertuples(index=False, name=None)))
    with_numbers = all(isinstance(value, int | float | np.number) for key in combinations for value in key)
    return sorted(combinations) if with_numbers else combinations


def _where(rows: pd.DataFrame, names: Sequence[str], key: Key) -> pd.DataFrame:
    selected = np.ones(len(rows), dtype=bool)
    for name, value in zip(names, key, strict=True):
        selected &= (rows[name] == value).to_numpy()
    return rows[selected]


def _looks(by: Sequence[str], lines: Sequence[Key]) -> list[tuple[str, str]]:
    """Return the colour and the dash of each line."""
    colours = colours_of([_title(by, line, bare=True) for line in lines])
    counts: dict[str, int] = {}
    looks = []
    for line_colour in colours:
        looks.append((line_colour, DASHES[counts.get(line_colour, 0) % len(DASHES)]))
        counts[line_colour] = counts.get(line_colour, 0) + 1
    return looks


def _title(names: Sequence[str], key: Key, bare: bool = False) -> str:
    """Return the title of a line or panel; numbers and truth values follow the name of their setting."""
    parts = [
        str(value) if isinstance(value, str) or bare else f"{name} {value}"
        for name, value in zip(names, key, strict=True)
    ]
    return ", ".join(parts) or "mean over seeds"


def _line(curve: dict[str, np.ndarray], x: str, name: str, look: tuple[str, str], log_y: bool) -> list[Spec]:
    """Return the traces of a line: the two edges of its band, where it has one, and the mean."""
    line_colour, dash = look
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


def _show_each_once(data: list[Spec]) -> int:
    """Name each line once in the legend, whatever panels it is in; return the number of its entries."""
    named: set[str] = set()
    for item in data:
        if item["meta"]["role"] in ("mean", "reference"):
            item["showlegend"] = item["legendgroup"] not in named
            named.add(item["legendgroup"])
    return len(named)


def _references(
    references: Mapping[str, float] | pd.DataFrame | None,
    panels_by: Sequence[str],
    panel: Key,
    by: Sequence[str],
    looks: Mapping[Key, tuple[str, str]],
    extent: tuple[float, float],
) -> list[Spec]:
    """Return the horizontal lines of one panel; one of each colour only where colours differ."""
    if references is None:
        return []
    if isinstance(references, Mapping):
        named = [(str(name), value, colour("muted")) for name, value in references.items()]
    else:
        rows = _where(references, *_shared(references, panels_by, panel))
        named = _values_of_references(rows, panels_by, by, looks)
    numbers = {name: index for index, name in enumerate(dict.fromkeys(name for name, _, _ in named))}
    dash = {name: REFERENCE_DASHES[number % len(REFERENCE_DASHES)] for name, number in numbers.items()}
    return [
        trace(
            "reference",
            list(extent),
            [value, value],
            mode="lines",
            name=label(name),
            legendgroup=f"reference {label(name)}",
            line={"color": line, "width": 1.5, "dash": dash[name]},
            hovertemplate=f"{label(name)}: {value:.4f}<extra></extra>",
        )
        for name, value, line in named
        if math.isfinite(value)
    ]


def _shared(references: pd.DataFrame, names: Sequence[str], key: Key) -> tuple[list[str], Key]:
    """Return these names and values, of columns only that the references have."""
    pairs = [(name, value) for name, value in zip(names, key, strict=True) if name in references.columns]
    return [name for name, _ in pairs], tuple(value for _, value in pairs)


def _values_of_references(
    rows: pd.DataFrame, panels_by: Sequence[str], by: Sequence[str], looks: Mapping[Key, tuple[str, str]]
) -> list[tuple[str, float, str]]:
    """Return name, value and colour of the references of one panel."""
    names = [name for name in rows.columns if name not in (*panels_by, *by, *ROUND_COLUMNS)]
    named = []
    for name in names:
        of_lines = {line: _where(rows, *_shared(rows, by, line))[name].mean() for line in looks}
        finite = [value for value in of_lines.values() if math.isfinite(value)]
        if finite and max(finite) - min(finite) > TOLERANCE:
            named += [(str(name), float(value), looks[line][0]) for line, value in of_lines.items()]
        elif finite:
            named.append((str(name), float(finite[0]), colour("muted")))
    return named


def _axes_of(number: int) -> Spec:
    suffix = "" if number == 0 else str(number + 1)
    return {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}


def _layout(
    panels_by: Sequence[str],
    panels: Sequence[Key],
    metric: str,
    x: str,
    log_x: bool,
    log_y: bool,
    extent: tuple[float, float],
    entries: int,
) -> Spec:
    """Return the layout: panels in a grid, all with the same axes, and titles at the edges only."""
    across = ACROSS.get(len(panels), MOST_ACROSS)
    far = log_x and extent[1] > max(extent[0], extent[1] / 1e9) * 10**DECADES
    steps: Spec = {"dtick": 1 if far else "D2"} if log_x else {}
    down = math.ceil(len(panels) / across)
    axes: Spec = {}
    for number in range(len(panels)):
        suffix = "" if number == 0 else str(number + 1)
        lowest, leftmost = number + across >= len(panels), number % across == 0
        axes[f"xaxis{suffix}"] = axis(
            AGAINST[x].title if lowest else "",
            **({} if number == 0 else {"matches": "x"}),
            **AGAINST[x].ticks,
            **steps,
            type="log" if log_x else "linear",
            showticklabels=lowest,
        )
        axes[f"yaxis{suffix}"] = axis(
            label(metric.replace("_", " ")) if leftmost else "",
            **({} if number == 0 else {"matches": "y"}),
            **({"type": "log", "dtick": "D2", "tickformat": "~g"} if log_y else {"rangemode": "tozero"}),
            showticklabels=leftmost,
        )
    titles = [
        {
            "xref": f"x{'' if number == 0 else number + 1} domain",
            "yref": f"y{'' if number == 0 else number + 1} domain",
            "x": 0,
            "y": 1,
            "yanchor": "bottom",
            "xanchor": "left",
            "showarrow": False,
            "text": f"<b>{label(_title(panels_by, panel))}</b>",
        }
        for number, panel in enumerate(panels)
        if panels_by
    ]
    return {
        **axes,
        "height": SINGLE if len(panels) == 1 else 110 + PANEL * down,
        "grid": {"rows": down, "columns": across, "pattern": "independent", "xgap": 0.06, "ygap": 0.16},
        "annotations": titles,
        "showlegend": entries > 0,
        "legend": {"orientation": "h", "x": 0, "y": 1, "yref": "container", "yanchor": "top"},
        "margin": {"l": 56, "r": 16, "t": 32 + 22 * math.ceil(entries / IN_LINE), "b": 48},
    }


def _sentence(rows: pd.DataFrame, metric: str, by: Sequence[str], lines: Sequence[Key]) -> str:
    """Return a sentence on the figure, for those who cannot see it."""
    last = rows[rows["round"] == rows["round"].max()]
    means = [
        f"{shown(_title(by, line), 40)}: {_where(last, by, line)[metric].mean():.4f}"
        for line in lines
        if len(_where(last, by, line))
    ]
    return f"Mean {metric.replace('_', ' ')} after the last round: {'; '.join(means)}."
