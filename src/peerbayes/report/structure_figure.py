"""The structure of a Bayesian network: its layers, and the figure."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from peerbayes.data.schema import Schema
from peerbayes.errors import PlotlyMissing
from peerbayes.model.families import BayesNet
from peerbayes.model.families.structures import Parents, order
from peerbayes.report.style import Spec, colour, figure, gapped, label, shown, trace, white
from peerbayes.simulation.view import Structure

# --- positions of the columns of a Bayesian network in a drawing: each in its own row, below and right of its parents
# A parent's arrows go down its lane and turn right to its children; a column is placed right of all lanes in use at
# its row:
#
#     lane_j = 1 + max{ lane_i : row_i < row_j ≤ row of the last child of i }        0 where there is none
#
# So arrows cross neither columns nor the names to their right, whatever the width of the drawing. Rows are in depth-
# first order: the arrows of a tree do not cross each other, and its lanes are its levels.


def children(parents: Parents) -> list[list[int]]:
    """Return the children of each column, in order."""
    result: list[list[int]] = [[] for _ in parents]
    for column, column_parents in enumerate(parents):
        for parent in column_parents:
            result[parent].append(column)
    return result


def vertical_order(parents: Parents) -> list[int]:
    """Return the columns from top to bottom, each after its parents and as early as possible.

    Among siblings, the one with the fewest descendants comes first, which keeps lanes short; among columns without
    parents it comes last.
    """
    child_lists = children(parents)
    descendants = [0] * len(parents)  # sets as bits
    for column in reversed(order(parents)):
        for child in child_lists[column]:
            descendants[column] |= descendants[child] | 1 << child
    descendant_counts = [bits.bit_count() for bits in descendants]
    open_parents = [len(column_parents) for column_parents in parents]
    roots = [column for column, column_parents in enumerate(parents) if not column_parents]
    waiting = sorted(roots, key=lambda column: (descendant_counts[column], -column))
    ordered: list[int] = []
    while waiting:
        column = waiting.pop()
        ordered.append(column)
        for child in child_lists[column]:
            open_parents[child] -= 1
        free = [child for child in child_lists[column] if open_parents[child] == 0]
        waiting += sorted(free, key=lambda child: (-descendant_counts[child], -child))
    return ordered


def lanes(parents: Parents, from_top: list[int]) -> list[int]:
    """Return the lane of each column, counted from the left, for columns in the order `from_top`."""
    rows = {column: row for row, column in enumerate(from_top)}
    last_rows = [
        max((rows[child] for child in column_children), default=-1) for column_children in children(parents)
    ]
    column_lanes = [0] * len(parents)
    open_columns: list[int] = []  # columns with children further down
    for row, column in enumerate(from_top):
        open_columns = [above for above in open_columns if last_rows[above] >= row]
        column_lanes[column] = 1 + max((column_lanes[above] for above in open_columns), default=-1)
        open_columns.append(column)
    return column_lanes


# --- the figure of the structure of a Bayesian network: columns, and arrows from parents to children

# By kind of column: colour and symbol. Kinds differ in shape as well as in colour.
MARKS = {"continuous": ("peers", "circle"), "discrete": ("class-1", "square")}
DRAWN = 1000  # most columns drawn; of more, those nearest to the roots
NAMED = 100  # columns up to which their names are shown
LINE = 18  # pixels from a column to the next
TALLEST = 900  # pixels of a figure without names
MOST_LISTED = 12  # parents or children listed when hovering
WIDTH = 720  # pixels, where the width of the page is unknown
# Pixels: most and least of a lane, of a letter, of a wide letter, of a column with the gap to its name.
WIDEST, NARROWEST, LETTER, WIDE, GAP = 90.0, 2.0, 7, 13, 18
TURN, DROP = 0.2, 0.5  # shares of a lane and of a row at which an arrow turns to its child
HEAD, COLUMN = 8, 11  # pixels of an arrow's head and of a column


def structure(network: Structure) -> Spec:
    """Return the figure: each column in its own row, with arrows to the columns that depend on it."""
    kept = sorted(order(network.parents)[:DRAWN])  # their parents are among them
    drawn_network = subnetwork(network, kept)
    from_top = vertical_order(drawn_network.parents)
    lane, row = np.array(lanes(drawn_network.parents, from_top)), np.argsort(from_top)
    at, rows = np.array([lane, row], dtype=float), len(from_top)  # [2, D]
    room = _room(drawn_network, lane)
    margin = {"l": 14, "r": 8, "t": 36, "b": 8}
    spec = figure(
        [*_arrows(drawn_network, at), *_columns(drawn_network, at, _hover_texts(network, kept))],
        _summary(network, rows),
        margin["t"] + margin["b"] + (LINE * rows if rows <= NAMED else TALLEST),
        margin=margin,
        showlegend=True,
        xaxis={"visible": False, "range": [-TURN, reach(room, WIDTH - margin["l"] - margin["r"])]},
        yaxis={"visible": False, "range": [rows - 0.5, -0.5]},
    )
    spec["layout"]["meta"]["lanes"] = room
    return spec


def _arrows(network: Structure, at: np.ndarray) -> list[Spec]:
    """Return the lines from parents to children, and an arrowhead at each column that has parents.

    A line goes down its parent's lane, along a quarter of an ellipse, and to the right: seven points.
    """
    pairs = [(parent, j) for j, parents in enumerate(network.parents) for parent in parents]
    (lane, to_lane), (row, to_row) = at[:, np.array(pairs, dtype=int).reshape(-1, 2).T]
    angles = np.linspace(0, np.pi / 2, 5)
    x = np.column_stack([lane, lane[:, None] + TURN * (1.0 - np.cos(angles)), to_lane])
    y = np.column_stack([row, to_row[:, None] - DROP * (1.0 - np.sin(angles)), to_row])
    ends = [j for j, parents in enumerate(network.parents) if parents]
    small = _mark_scale(network)
    silent: Spec = {"hoverinfo": "skip", "showlegend": False}
    stroke = {"color": colour("muted"), "width": 1.1 if small == 1.0 else 0.6, "simplify": False}
    head = {"symbol": "arrow", "angle": 90, "size": HEAD * small, "standoff": COLUMN * small / 2.0}
    head["color"] = colour("muted")
    return [
        trace("links", gapped(x), gapped(y), mode="lines", line=stroke, **silent),
        trace("heads", *at[:, ends], mode="markers", marker=head, cliponaxis=False, **silent),
    ]


def _columns(network: Structure, at: np.ndarray, hover_texts: list[str]) -> list[Spec]:
    """Return one trace per kind of column, with names where there is room."""
    named, size = len(network.names) <= NAMED, COLUMN * _mark_scale(network)
    by_kind = (range(network.continuous), range(network.continuous, len(network.names)))
    return [
        trace(
            kind,
            *at[:, columns],
            mode="markers+text" if named else "markers",
            name=kind,
            text=[label(network.names[j]) for j in columns] if named else [],
            textposition="middle right",
            hovertext=[hover_texts[j] for j in columns],
            hoverinfo="text",
            marker={"color": colour(role), "symbol": symbol, "size": size},
            cliponaxis=False,
        )
        for (kind, (role, symbol)), columns in zip(MARKS.items(), by_kind, strict=True)
        if columns
    ]


def _mark_scale(network: Structure) -> float:
    """Return the scale of the marks: 1 for few columns, less for many."""
    columns = len(network.names)
    return 1.0 if columns <= NAMED else max(0.25, TALLEST / (LINE * columns))


def _room(network: Structure, lane: np.ndarray) -> list[int]:
    """Return the pixels that the names in each lane need, including the gap before them."""
    room = [GAP] * (int(lane.max(initial=0)) + 1)
    if len(network.names) <= NAMED:
        for name, index in zip(network.names, lane, strict=True):
            room[index] = max(room[index], GAP + _width(shown(name)))
    return room


def picture(schema: Schema, family: BayesNet) -> Any:
    """Return the structure as a plotly Figure, on white."""
    try:
        from plotly.graph_objects import Figure
    except ModuleNotFoundError as missing:
        raise PlotlyMissing(
            f"{missing.name} is not installed; figures need plotly: pip install 'peerbayes[report]'"
        ) from missing
    network = Structure.of(schema, family)
    assert network is not None
    spec = white(structure(network))
    spec["layout"] |= {
        "title": {
            "text": f"Parents of each column, in addition to the class ({label(schema.label)})",
            "font": {"size": 14}, "x": 0, "xref": "paper", "y": 1, "yref": "container", "yanchor": "top",
            "pad": {"t": 12, "l": 4},
        },
        "margin": {**spec["layout"]["margin"], "t": 72},
        "height": spec["layout"]["height"] + 36,
    }  # fmt: skip
    return Figure(spec)


def subnetwork(network: Structure, kept: list[int]) -> Structure:
    """Return the network restricted to these columns, which include their parents."""
    new_index = {column: index for index, column in enumerate(kept)}
    return Structure(
        tuple(network.names[column] for column in kept),
        sum(column < network.continuous for column in kept),
        tuple(tuple(new_index[parent] for parent in network.parents[column]) for column in kept),
        network.label,
    )


def reach(room: list[int], width: float) -> float:
    """Return the end of the lane axis at this width in pixels, with room for names; `figures.js` does the same."""
    lane = min((width - names) / (index + TURN) for index, names in enumerate(room))
    return width / min(max(lane, NARROWEST), WIDEST) - TURN


def _width(text: str) -> int:
    """Return the approximate width of a text in pixels."""
    return sum(WIDE if unicodedata.east_asian_width(letter) in "WF" else LETTER for letter in text)


def _hover_texts(network: Structure, kept: list[int]) -> list[str]:
    """Return the texts shown when hovering over these columns."""
    below = children(network.parents)
    return [
        f"<b>{label(network.names[j], 60)}</b><br>{'continuous' if j < network.continuous else 'discrete'}<br>"
        f"parents: {_wrapped([f'the class ({label(network.label)})', *_first_names(network, network.parents[j])])}<br>"
        f"children: {_wrapped(_first_names(network, below[j])) or 'none'}"
        for j in kept
    ]


def _first_names(network: Structure, columns: Sequence[int]) -> list[str]:
    """Return the names of columns; of many, the first ones and the number of the others."""
    remainder = [f"and {len(columns) - MOST_LISTED:,} more"] if len(columns) > MOST_LISTED else []
    return [label(network.names[column]) for column in columns[:MOST_LISTED]] + remainder


def _wrapped(names: list[str]) -> str:
    """Return the names in lines of four."""
    return "<br>".join("; ".join(names[begin : begin + 4]) for begin in range(0, len(names), 4))


def _summary(network: Structure, drawn: int) -> str:
    links = sum(map(len, network.parents))
    columns = len(network.names)
    sentence = (
        f"{columns:,} columns, {network.continuous:,} of them continuous, and {links:,} arrows between them"
    )
    if drawn < columns:
        sentence += f"; the {drawn:,} columns nearest to the roots are drawn"
    if links:
        counts = [len(column_children) for column_children in children(network.parents)]
        most = int(np.argmax(counts))
        sentence += f"; {shown(network.names[most])} has the most children, {counts[most]:,}"
    return f"{sentence}. All columns also depend on the class ({shown(network.label)})."
