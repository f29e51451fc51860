"""The structure of a Bayesian network: columns, and arrows from parents to children."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from peerbayes.families import BayesNet
from peerbayes.families.structures import order
from peerbayes.report.arrays import Spec, gapped, packed
from peerbayes.report.errors import PlotlyMissing
from peerbayes.report.labels import label, shown
from peerbayes.report.lanes import children, lanes, lines
from peerbayes.report.theme import colour, layout
from peerbayes.schema import Schema
from peerbayes.views import Structure

# How columns of a kind are drawn: colour, symbol. Told apart by shape as well as by colour.
MARKS = {"continuous": ("peers", "circle"), "discrete": ("class-1", "square")}
DRAWN = 1000  # columns; of more, those nearest to the roots
NAMED = 100  # columns up to which names stand beside them
LINE = 18  # pixels from a column to the next
TALLEST = 900  # pixels where names do not stand there
TOLD = 12  # parents or children that the pointer shows
WIDTH = 720  # pixels, where the page does not say how many there are
# Pixels of a lane: most and least; of a letter and of a wide one; of a column and the gap to its name.
WIDEST, NARROWEST, LETTER, WIDE, GAP = 90.0, 2.0, 7, 13, 18
TURN, DROP = 0.2, 0.5  # of a lane and of a line: where an arrow turns to its child
HEAD, COLUMN = 8, 11  # pixels of an arrow's head and of a column


def structure(whole: Structure) -> Spec:
    """Columns, each in a line; arrows to those that depend on them."""
    kept = nearest(whole, DRAWN)
    some = among(whole, kept)
    from_top = lines(some.parents)
    at = np.array([lanes(some.parents, from_top), np.argsort(from_top)], dtype=float)  # [2, D] lane and line
    many = len(from_top)
    room = _room(some, at[0].astype(int))
    summary = _summary(whole, many)
    margin = {"l": 14, "r": 8, "t": 36, "b": 8}
    return {
        "data": [*_arrows(some, at), *_columns(some, at, _told(whole, kept))],
        "layout": layout(
            summary,
            margin["t"] + margin["b"] + (LINE * many if many <= NAMED else TALLEST),
            margin=margin,
            showlegend=True,
            xaxis={"visible": False, "range": [-TURN, reach(room, WIDTH - margin["l"] - margin["r"])]},
            yaxis={"visible": False, "range": [many - 0.5, -0.5]},
            meta={"summary": summary, "lanes": room},
        ),
    }


def _arrows(some: Structure, at: np.ndarray) -> list[Spec]:
    """Lines from parents to children, and a head at each column that has parents."""
    paths = [_arrow(*at[:, parent], *at[:, j]) for j, own in enumerate(some.parents) for parent in own]
    x, y = np.array(paths).reshape(-1, 2, 7).swapaxes(0, 1)
    ends = [j for j, own in enumerate(some.parents) if own]
    small = _shrunk(some)
    both: Spec = {"type": "scatter", "hoverinfo": "skip", "showlegend": False}
    return [
        {
            **both,
            "mode": "lines",
            "x": packed(gapped(x)),
            "y": packed(gapped(y)),
            "line": {"color": colour("muted"), "width": 1.1 if small == 1.0 else 0.6, "simplify": False},
            "meta": {"role": "links"},
        },
        {
            **both,
            "mode": "markers",
            "x": packed(at[0, ends]),
            "y": packed(at[1, ends]),
            "marker": {
                "symbol": "arrow",
                "angle": 90,
                "size": HEAD * small,
                "standoff": COLUMN * small / 2.0,
                "color": colour("muted"),
                "opacity": 1,
                "line": {"width": 0},
            },
            "cliponaxis": False,
            "meta": {"role": "heads"},
        },
    ]


def _columns(some: Structure, at: np.ndarray, told: list[str]) -> list[Spec]:
    """Those of each kind that there is, and their names where there is room."""
    named = len(some.names) <= NAMED
    places = {
        "continuous": range(some.continuous),
        "discrete": range(some.continuous, len(some.names)),
    }
    return [
        {
            "type": "scatter",
            "mode": "markers+text" if named else "markers",
            "name": kind,
            "x": packed(at[0, own]),
            "y": packed(at[1, own]),
            "text": [label(some.names[j]) for j in own] if named else [],
            "textposition": "middle right",
            "hovertext": [told[j] for j in own],
            "hoverinfo": "text",
            "marker": {
                "color": colour(MARKS[kind][0]),
                "symbol": MARKS[kind][1],
                "size": COLUMN * _shrunk(some),
                "opacity": 1,
                "line": {"width": 0},
            },
            "cliponaxis": False,
            "meta": {"role": kind},
        }
        for kind, own in places.items()
        if own
    ]


def _shrunk(some: Structure) -> float:
    """How large marks are beside those of few columns."""
    many = len(some.names)
    return 1.0 if many <= NAMED else max(0.25, TALLEST / (LINE * many))


def _room(some: Structure, lane: np.ndarray) -> list[int]:
    """Pixels that the names in each lane take, and what stands before them."""
    room = [GAP] * (int(lane.max(initial=0)) + 1)
    if len(some.names) <= NAMED:
        for name, place in zip(some.names, lane, strict=True):
            room[place] = max(room[place], GAP + _width(shown(name)))
    return room


def picture(schema: Schema, family: BayesNet) -> Any:
    """The structure as plotly's Figure, on white."""
    try:
        from plotly.graph_objects import Figure
    except ModuleNotFoundError as missing:
        raise PlotlyMissing(
            f"{missing.name} is not installed; pictures need plotly: pip install 'peerbayes[report]'"
        ) from missing
    found = Structure.of(schema, family)
    assert found is not None
    spec = structure(found)
    above = f"Parents of columns beside the class ({label(schema.label)})"
    spec["layout"] |= {
        "paper_bgcolor": colour("paper"),
        "plot_bgcolor": colour("paper"),
        "title": {
            "text": above, "font": {"size": 14}, "x": 0, "xref": "paper", "y": 1, "yref": "container", "yanchor": "top",
            "pad": {"t": 12, "l": 4},
        },
        "margin": {**spec["layout"]["margin"], "t": 72},
        "height": spec["layout"]["height"] + 36,
    }  # fmt: skip
    return Figure(spec)


def nearest(whole: Structure, most: int) -> list[int]:
    """So many columns at most, and all their parents: those nearest to the columns that have none."""
    return sorted(order(whole.parents)[:most])


def among(whole: Structure, kept: list[int]) -> Structure:
    """These columns alone, whose parents are among them."""
    place = {column: number for number, column in enumerate(kept)}
    return Structure(
        tuple(whole.names[column] for column in kept),
        sum(column < whole.continuous for column in kept),
        tuple(tuple(place[parent] for parent in whole.parents[column]) for column in kept),
        whole.label,
    )


def reach(room: list[int], width: float) -> float:
    """Where the axis of lanes ends in so many pixels, the names in them; `figures.js` does the same."""
    lane = min((width - names) / (place + TURN) for place, names in enumerate(room))
    return width / min(max(lane, NARROWEST), WIDEST) - TURN


def _arrow(lane: float, line: float, to_lane: float, to_line: float) -> tuple[list[float], list[float]]:
    """Down a lane, round a quarter of an ellipse and to the right: seven points, as x and y."""
    turn = [math.pi / 8 * step for step in range(5)]
    across = [lane + TURN * (1.0 - math.cos(angle)) for angle in turn]
    down = [to_line - DROP * (1.0 - math.sin(angle)) for angle in turn]
    return [lane, *across, to_lane], [line, *down, to_line]


def _width(text: str) -> int:
    """About the pixels of a text."""
    return sum(WIDE if unicodedata.east_asian_width(letter) in "WF" else LETTER for letter in text)


def _told(whole: Structure, kept: list[int]) -> list[str]:
    """What the pointer shows of these columns."""
    below = children(whole.parents)
    return [
        f"<b>{label(whole.names[j], 60)}</b><br>{'continuous' if j < whole.continuous else 'discrete'}<br>"
        f"parents: {_listed([f'the class ({label(whole.label)})', *_some(whole, whole.parents[j])])}<br>"
        f"children: {_listed(_some(whole, below[j])) or 'none'}"
        for j in kept
    ]


def _some(whole: Structure, columns: Sequence[int]) -> list[str]:
    """The names of columns; of many, the first, and how many more."""
    more = [f"and {len(columns) - TOLD:,} more"] if len(columns) > TOLD else []
    return [label(whole.names[column]) for column in columns[:TOLD]] + more


def _listed(names: list[str]) -> str:
    """Names in lines that are not too long."""
    return "<br>".join("; ".join(names[begin : begin + 4]) for begin in range(0, len(names), 4))


def _summary(whole: Structure, drawn: int) -> str:
    links = sum(map(len, whole.parents))
    many = len(whole.names)
    told = f"{many:,} columns, {whole.continuous:,} of them continuous, and {links:,} arrows between them"
    if drawn < many:
        told += f"; the {drawn:,} columns nearest to those without parents are drawn"
    if links:
        counts = [len(own) for own in children(whole.parents)]
        most = int(np.argmax(counts))
        told += f"; {shown(whole.names[most])} has the most children, {counts[most]:,}"
    return f"{told}. All depend on the class ({shown(whole.label)}) as well."
