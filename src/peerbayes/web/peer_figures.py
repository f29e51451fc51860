"""Figures of one real peer: its error, how far its neighbours are from it, what it sent, and whom it hears."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from peerbayes.report.arrays import Spec, gapped, packed
from peerbayes.report.labels import figure, label, size
from peerbayes.report.layout import positions
from peerbayes.report.theme import axis, colour, faint, layout
from peerbayes.views import View

# Lines of the figure of errors: the curve, what it is called, its colour and its dash.
ERRORS = (
    ("test_error", "on held-out rows", "peers", "solid"),
    ("train_error", "on the rows it learns from", "ml", "dot"),
)

# How members are drawn: what they are called, colour, symbol, size. Told apart by shape as well as by colour.
MARKS = {
    "up": ("neighbour, up", "rc", "circle", 13),
    "down": ("neighbour, down", "chosen", "x", 13),
    "never heard": ("neighbour, never heard", "muted", "circle-open", 13),
    "not known": ("neighbour, not known", "muted", "circle-open-dot", 13),
    "left": ("neighbour, left", "muted", "x-thin-open", 12),
    "revoked": ("neighbour, revoked", "muted", "square-x-open", 12),
    "member": ("other member", "muted", "circle", 7),
    "me": ("this peer", "peers", "star", 18),
}
SECTIONS = {"How it does": ("error", "network", "disagreement", "bytes")}

# By figure: its title and how to read it.
CAPTIONS = {
    "error": (
        "Error by round",
        "On the peer's own rows: those it learns from, and those it holds out (hold_out in peer.toml) and never "
        "learns from.",
    ),
    "network": (
        "The network",
        "The members as the roster links them. This peer talks with its neighbours only, and knows the others by name.",
    ),
    "disagreement": (
        "Disagreement by round",
        "How far the neighbours' messages were from its own, on a logarithmic scale.",
    ),
    "bytes": ("Bytes sent", "Everything that left this machine up to a round, as the audit log has it."),
}
NAMED = 60  # members up to which names stand beside them


def figures(view: View, facts: dict[str, Any]) -> dict[str, Spec]:
    """All of them, by name."""
    return {name: make(view) for name, make in CURVES.items()} | {"network": network(view, facts)}


def patch(view: View, since: int) -> Spec:
    """What the rounds after `since` add, in the form of `report.figures.patch`."""
    begin = int(np.searchsorted(view.rounds, since, side="right"))
    told: Spec = {"since": since, "round": _last(view), "turn": view.turn, "figures": {}}
    if begin < len(view.rounds):
        for name, make in CURVES.items():
            whole = make(view)
            traces = {
                place: {"x": packed(view.rounds[begin:]), "y": packed(_curve(view, trace)[begin:])}
                for place, trace in enumerate(whole["data"])
            }
            told["figures"][name] = {"traces": traces, "summary": whole["layout"]["meta"]["summary"]}
    return told


def error(view: View) -> Spec:
    """The error on the peer's own rows by round: those held out, and those it learns from."""
    told = [
        f"{name} {figure(float(view.curves[what][-1, 0]))}"
        for what, name, _, _ in ERRORS
        if len(view.rounds) and np.isfinite(view.curves[what][-1, 0])
    ]
    data = [
        {
            **_line(view, what, ".4f"),
            "name": name,
            "line": {"color": colour(role), "width": 2.5, "dash": dash},
        }
        for what, name, role, dash in ERRORS
    ]
    told_now = (
        f"Its error after round {_last(view)}: {', '.join(told)}."
        if told
        else "No round has been judged yet."
    )
    return {
        "data": data,
        "layout": layout(
            told_now, 340, showlegend=True, xaxis=_rounds(), yaxis=axis("error", rangemode="tozero")
        ),
    }


def disagreement(view: View) -> Spec:
    """How far the neighbours' messages were from its own, by round."""
    values = view.curves["disagreement"][:, 0]
    told = (
        f"{values[-1]:.2g} after round {_last(view)}"
        if len(values) and np.isfinite(values[-1])
        else "not known yet"
    )
    return {
        "data": [_line(view, "disagreement", ".3g")],
        "layout": layout(
            f"Its disagreement with its neighbours: {told}.",
            300,
            xaxis=_rounds(),
            yaxis=axis("disagreement", type="log", exponentformat="power"),
        ),
    }


def sent(view: View) -> Spec:
    """Bytes that left the machine up to each round, as the audit log has them."""
    values = view.curves["bytes"][:, 0]
    told = f"{size(float(values[-1]))} up to round {_last(view)}" if len(values) else "nothing yet"
    return {
        "data": [_line(view, "bytes", ".3s")],
        "layout": layout(
            f"Bytes sent to all neighbours: {told}.",
            300,
            xaxis=_rounds(),
            yaxis=axis("sent to all neighbours", rangemode="tozero", tickformat="~s", ticksuffix="B"),
        ),
    }


CURVES: dict[str, Callable[[View], Spec]] = {"error": error, "disagreement": disagreement, "bytes": sent}


def network(view: View, facts: dict[str, Any]) -> Spec:
    """The members as the roster links them: this peer, its neighbours up and down, and the others."""
    names = view.names or ()
    at = positions(view.nodes, view.links)
    standing = {each["name"]: each["state"] for each in facts["neighbours"]} | {facts["name"]: "me"}
    groups: dict[str, list[int]] = {state: [] for state in MARKS}
    for place, name in enumerate(names):
        groups[standing.get(name, "member")].append(place)
    links: Spec = {
        "type": "scatter",
        "mode": "lines",
        "x": packed(gapped(at[view.links, 0])),
        "y": packed(gapped(at[view.links, 1])),
        "line": {"color": faint("muted", 0.38), "width": 1.2},
        "hoverinfo": "skip",
        "showlegend": False,
        "meta": {"role": "links"},
    }
    counts = ", ".join(f"{len(places)} × {MARKS[state][0]}" for state, places in groups.items() if places)
    hidden = {"visible": False, "constrain": "domain"}
    return {
        "data": [links, *(_members(state, at[places], [names[p] for p in places], view.nodes)
                          for state, places in groups.items() if places)],
        "layout": layout(
            f"{view.nodes:,} members and {len(view.links):,} links: {counts}.",
            380,
            margin={"l": 24, "r": 24, "t": 12, "b": 12},
            showlegend=True,
            xaxis=hidden,
            yaxis={**hidden, "scaleanchor": "x"},
        ),
    }  # fmt: skip


def _members(state: str, at: np.ndarray, names: list[str], nodes: int) -> Spec:
    said, role, symbol, wide = MARKS[state]
    return {
        "type": "scatter",
        "mode": "markers+text" if nodes <= NAMED else "markers",
        "name": said,
        "x": packed(at[:, 0]),
        "y": packed(at[:, 1]),
        "text": [label(name) for name in names],
        "textposition": "bottom center",
        "textfont": {"color": colour("ink")},
        "cliponaxis": False,
        "marker": {
            "color": colour(role),
            "symbol": symbol,
            "size": wide,
            "line": {"width": 2, "color": colour(role)},
        },
        "hovertemplate": f"%{{text}}<br>{said}<extra></extra>",
        "meta": {"role": state},
    }


def _line(view: View, what: str, form: str) -> Spec:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": packed(view.rounds),
        "y": packed(view.curves[what][:, 0]),
        "line": {"color": colour("peers"), "width": 2.5},
        "marker": {"size": 3},
        "hovertemplate": f"round %{{x}}: %{{y:{form}}}<extra></extra>",
        "meta": {"role": what, "grows": "append"},
    }


def _curve(view: View, trace: Spec) -> np.ndarray:
    return view.curves[trace["meta"]["role"]][:, 0]


def _rounds() -> Spec:
    return axis("round", rangemode="tozero")


def _last(view: View) -> int:
    return int(view.rounds[-1]) if len(view.rounds) else 0
