"""Figures of one real peer: its error, its disagreement with its neighbours, the bytes it sent, and its network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from peerbayes.data.files import size
from peerbayes.report.figures import patch_of
from peerbayes.report.network_figure import graph, link_lines, positions
from peerbayes.report.style import Spec, axis, colour, decimal, figure, label, packed, trace
from peerbayes.simulation.view import View

# Curves in the figure of errors: metric, title, role of the colour, dash.
ERRORS = (
    ("test_error", "on held-out rows", "peers", "solid"),
    ("train_error", "on training rows", "ml", "dot"),
)

# By state of a member: title, role of the colour, symbol, size. States differ in shape as well as in colour.
MARKS = {
    "up": ("neighbour, up", "rc", "circle", 13),
    "down": ("neighbour, down", "chosen", "x", 13),
    "never heard": ("neighbour, no message yet", "muted", "circle-open", 13),
    "not known": ("neighbour, state unknown", "muted", "circle-open-dot", 13),
    "left": ("neighbour, left", "muted", "x-thin-open", 12),
    "revoked": ("neighbour, revoked", "muted", "square-x-open", 12),
    "member": ("other member", "muted", "circle", 7),
    "me": ("this peer", "peers", "star", 18),
}
SECTIONS = {"Training": ("error", "network", "disagreement", "bytes")}

# By figure: its title and its caption.
CAPTIONS = {
    "error": (
        "Error by round",
        "Error on this peer's rows: on its training rows, and on its held-out rows (hold_out in peer.toml), which it "
        "never learns from.",
    ),
    "network": (
        "Network",
        "The members and their links according to the roster. This peer exchanges messages with its neighbours only; "
        "of the others it knows only the names.",
    ),
    "disagreement": (
        "Disagreement between peers",
        "Distance between the neighbours' messages and this peer's own, on a logarithmic scale.",
    ),
    "bytes": ("Bytes sent", "All bytes sent from this machine up to a round, according to the audit log."),
}
NAMED = 60  # members up to which their names are shown


def figures(view: View, facts: dict[str, Any]) -> dict[str, Spec]:
    """Return all figures of the peer by name."""
    return {name: make(view) for name, make in CURVES.items()} | {"network": network(view, facts)}


def patch(view: View, since: int) -> Spec:
    """Return what the rounds after `since` add, in the form of `report.figures.patch_of`."""
    return patch_of(view, since, lambda begin: {name: _added(view, name, begin) for name in CURVES})


def _added(view: View, name: str, begin: int) -> Spec:
    spec, rounds = CURVES[name](view), packed(view.rounds[begin:])
    traces = {
        index: {"x": rounds, "y": packed(view.curves[curve["meta"]["role"]][begin:, 0])}
        for index, curve in enumerate(spec["data"])
    }
    return {"traces": traces, "summary": spec["layout"]["meta"]["summary"]}


def error(view: View) -> Spec:
    """Return the figure of the error by round, on held-out and on training rows."""
    data, errors = [], []
    for metric, name, role, dash in ERRORS:
        stroke = {"color": colour(role), "width": 2.5, "dash": dash}
        data.append(_curve(view, metric, ".4f") | {"name": name, "line": stroke})
        if len(view.rounds) and np.isfinite(view.curves[metric][-1, 0]):
            errors.append(f"{name} {decimal(float(view.curves[metric][-1, 0]))}")
    summary = f"Error after round {_last(view)}: {', '.join(errors)}."
    summary = summary if errors else "No round has been evaluated yet."
    return figure(data, summary, showlegend=True, xaxis=_rounds(), yaxis=axis("error", rangemode="tozero"))


def disagreement(view: View) -> Spec:
    """Return the figure of the disagreement with the neighbours by round."""
    values = view.curves["disagreement"][:, 0]
    is_finite = len(values) and np.isfinite(values[-1])
    value = f"{values[-1]:.2g} after round {_last(view)}" if is_finite else "not known yet"
    summary = f"Disagreement with the neighbours: {value}."
    y_axis = axis("disagreement", type="log", exponentformat="power")
    return figure([_curve(view, "disagreement", ".3g")], summary, 300, xaxis=_rounds(), yaxis=y_axis)


def sent(view: View) -> Spec:
    """Return the figure of the bytes sent up to each round, according to the audit log."""
    values = view.curves["bytes"][:, 0]
    volume = f"{size(float(values[-1]))} up to round {_last(view)}" if len(values) else "nothing yet"
    summary = f"Bytes sent to all neighbours: {volume}."
    y_axis = axis("sent to all neighbours", rangemode="tozero", tickformat="~s", ticksuffix="B")
    return figure([_curve(view, "bytes", ".3s")], summary, 300, xaxis=_rounds(), yaxis=y_axis)


CURVES: dict[str, Callable[[View], Spec]] = {"error": error, "disagreement": disagreement, "bytes": sent}


def network(view: View, facts: dict[str, Any]) -> Spec:
    """Return the figure of the members and links of the roster, marked by the neighbours' states."""
    names = view.names or ()
    at = positions(view.peer_count, view.links)
    states = {neighbour["name"]: neighbour["state"] for neighbour in facts["neighbours"]}
    states[facts["name"]] = "me"
    groups: dict[str, list[int]] = {state: [] for state in MARKS}
    for index, name in enumerate(names):
        groups[states.get(name, "member")].append(index)
    marked = {state: indices for state, indices in groups.items() if indices}
    counts = ", ".join(f"{len(indices)} × {MARKS[state][0]}" for state, indices in marked.items())
    members = [
        _members(state, at[indices], [names[index] for index in indices], view.peer_count)
        for state, indices in marked.items()
    ]
    return graph(
        [link_lines(at, view.links, 1.2) | {"showlegend": False}, *members],
        f"{view.peer_count:,} members and {len(view.links):,} links: {counts}.",
        380,
        margin={"l": 24, "r": 24, "t": 12, "b": 12},
        showlegend=True,
    )


def _members(state: str, at: np.ndarray, names: list[str], peer_count: int) -> Spec:
    title, role, symbol, marker_size = MARKS[state]
    outline = {"width": 2, "color": colour(role)}
    return trace(
        state,
        *at.T,
        mode="markers+text" if peer_count <= NAMED else "markers",
        name=title,
        text=[label(name) for name in names],
        textposition="bottom center",
        textfont={"color": colour("ink")},
        cliponaxis=False,
        marker={"color": colour(role), "symbol": symbol, "size": marker_size, "line": outline},
        hovertemplate=f"%{{text}}<br>{title}<extra></extra>",
    )


def _curve(view: View, metric: str, number_format: str) -> Spec:
    return trace(
        metric,
        view.rounds,
        view.curves[metric][:, 0],
        mode="lines+markers",
        line={"color": colour("peers"), "width": 2.5},
        marker={"size": 3},
        hovertemplate=f"round %{{x}}: %{{y:{number_format}}}<extra></extra>",
        meta={"grows": "append"},
    )


def _rounds() -> Spec:
    return axis("round", rangemode="tozero")


def _last(view: View) -> int:
    return int(view.rounds[-1]) if len(view.rounds) else 0
