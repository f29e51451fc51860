"""Panels that share axes and colours: which settings have colours and which panels, reference lines, and the layout."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from peerbayes.report.style import Spec, axis, colour, colours_of, label, trace
from peerbayes.simulation.scores import figure_title

if TYPE_CHECKING:
    import pandas as pd

ROUND_COLUMNS = ("seed", "round", "bytes", "seconds")
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
LONGEST_TITLE = 60  # characters of an axis' title
FROM_ZERO = 0.5  # an axis begins at 0 if at most this share of its height is below everything that is drawn
ROOM = 0.06  # of the height, above and below what is drawn
TOLERANCE = 1e-6  # references closer than this are one line

Key = tuple[Any, ...]


def roles(
    rows: pd.DataFrame, settings: Sequence[str], colour: str | Sequence[str] | None, facet: str | None
) -> tuple[list[str], list[str]]:
    """Return the settings that have colours and the setting that has panels, if any."""
    asked = [] if colour is None else [colour] if isinstance(colour, str) else list(colour)
    for name in (*asked, *([] if facet is None else [facet])):
        if name not in settings:
            raise ValueError(
                f"{name!r} is not a setting of this study; expected one of {', '.join(settings)}"
            )
    varying = [name for name in settings if len(values_of(rows, [name])) > 1]
    rest = [name for name in varying if name != facet and name not in asked]
    if colour is None and rest:
        asked = [rest.pop(0)]
    if facet is None and colour is None and rest:
        facet = rest.pop(0)
    return [*asked, *rest], [] if facet is None else [facet]


def values_of(rows: pd.DataFrame, names: Sequence[str]) -> list[Key]:
    """Return the combinations of values of these columns: numbers in order, texts as they come."""
    if not names:
        return [()]
    combinations = list(dict.fromkeys(rows[list(names)].itertuples(index=False, name=None)))
    with_numbers = all(isinstance(value, int | float | np.number) for key in combinations for value in key)
    return sorted(combinations) if with_numbers else combinations


def where(rows: pd.DataFrame, names: Sequence[str], key: Key) -> pd.DataFrame:
    """Return the rows whose columns have these values."""
    selected = np.ones(len(rows), dtype=bool)
    for name, value in zip(names, key, strict=True):
        selected &= (rows[name] == value).to_numpy()
    return rows[selected]


def looks_of(by: Sequence[str], lines: Sequence[Key]) -> list[tuple[str, str]]:
    """Return the colour and the dash of each line."""
    colours = colours_of([title_of(by, line, bare=True) for line in lines])
    counts: dict[str, int] = {}
    looks = []
    for line_colour in colours:
        looks.append((line_colour, DASHES[counts.get(line_colour, 0) % len(DASHES)]))
        counts[line_colour] = counts.get(line_colour, 0) + 1
    return looks


def title_of(names: Sequence[str], key: Key, bare: bool = False) -> str:
    """Return the title of a line or panel; numbers and truth values follow the name of their setting."""
    parts = [
        str(value) if isinstance(value, str) or bare else f"{name} {value}"
        for name, value in zip(names, key, strict=True)
    ]
    return ", ".join(parts) or "mean over seeds"


def show_each_once(data: list[Spec]) -> int:
    """Name each line once in the legend, whatever panels it is in; return the number of its entries."""
    named: set[str] = set()
    for item in data:
        if item["meta"]["role"] in ("mean", "reference"):
            item["showlegend"] = item["legendgroup"] not in named
            named.add(item["legendgroup"])
    return len(named)


def reference_lines(
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
        rows = where(references, *_shared(references, panels_by, panel))
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
        of_lines = {line: where(rows, *_shared(rows, by, line))[name].mean() for line in looks}
        finite = [value for value in of_lines.values() if math.isfinite(value)]
        if finite and max(finite) - min(finite) > TOLERANCE:
            named += [(str(name), float(value), looks[line][0]) for line, value in of_lines.items()]
        elif finite:
            named.append((str(name), float(finite[0]), colour("muted")))
    return named


def axes_of(number: int) -> Spec:
    suffix = "" if number == 0 else str(number + 1)
    return {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}


def scale_of(log: bool, extent: tuple[float, float]) -> Spec:
    """Return whether an axis of numbers is logarithmic, and then its steps."""
    if not log:
        return {"type": "linear"}
    far = extent[1] > max(extent[0], extent[1] / 1e9) * 10**DECADES
    return {"type": "log", "dtick": 1 if far else "D2"}


def heights_of(data: Sequence[Spec], log_y: bool) -> Spec:
    """Return the vertical axis that shows what is drawn: from 0 where that leaves most of the height to it."""
    if log_y:
        return {"type": "log", "dtick": "D2", "tickformat": "~g"}
    drawn: list[float] = []
    for item in data:
        errors, y = item.get("error_y", {}), item["y"]
        drawn += y
        drawn += [value + error for value, error in zip(y, errors.get("array", ()), strict=False)]
        drawn += [value - error for value, error in zip(y, errors.get("arrayminus", ()), strict=False)]
    finite = [value for value in drawn if value is not None and math.isfinite(value)]
    low, high = min(finite), max(finite)
    if 0 <= low <= FROM_ZERO * high or low == high:
        return {"rangemode": "tozero"}
    beyond = ROOM * (high - low)
    return {"range": [low - beyond, high + beyond]}


def layout_of(
    panels_by: Sequence[str],
    panels: Sequence[Key],
    metric: str,
    x_title: str,
    x_axis: Spec,
    y_axis: Spec,
    entries: int,
) -> Spec:
    """Return the layout: panels in a grid, all with the same axes, and titles at the edges only."""
    across = ACROSS.get(len(panels), MOST_ACROSS)
    down = math.ceil(len(panels) / across)
    axes: Spec = {}
    for number in range(len(panels)):
        suffix = "" if number == 0 else str(number + 1)
        lowest, leftmost = number + across >= len(panels), number % across == 0
        axes[f"xaxis{suffix}"] = axis(
            x_title if lowest else "",
            **({} if number == 0 else {"matches": "x"}),
            **x_axis,
            showticklabels=lowest,
        )
        axes[f"yaxis{suffix}"] = axis(
            label(figure_title(metric), LONGEST_TITLE) if leftmost else "",
            **({} if number == 0 else {"matches": "y"}),
            **y_axis,
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
            "text": f"<b>{label(title_of(panels_by, panel))}</b>",
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
