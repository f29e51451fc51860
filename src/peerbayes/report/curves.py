"""Figures by round: the peers' error, how far they are apart, what they sent.

A trace's `meta` says what it shows, and how it grows while a run goes on:

    append   x and y get more points
    each     the same, in every one of `curves` curves that lie behind one another with gaps
    set      attributes get new values
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from peerbayes.report.arrays import Spec, gapped, packed
from peerbayes.report.labels import figure, label, size
from peerbayes.report.theme import axis, colour, faint, layout
from peerbayes.views import LEVELS, View

DRAWN = 400  # curves of single peers in a figure
POINTS = 1 << 15  # and points of all of them: a browser draws these in a tenth of a second
LINE_HEIGHT, PLOT_HEIGHT = 15.0, 300.0  # of labels beside a figure, in pixels, about

KINDS = {"test_error": "test error", "train_error": "training error"}
REFERENCES = {"rc": "RC", "ml": "ML", "local": "alone"}
SAID = {"rc": "RC on the pooled rows", "ml": "ML on the pooled rows", "local": "each peer alone, on average"}


def expected(view: View) -> int:
    """How many rounds will have been evaluated in the end: the same from the first round to the last."""
    every = int(view.configuration.get("evaluate_every", 1) or view.total)
    return max(1, len(view.rounds), math.ceil(view.total / max(every, 1)))


def drawn(view: View) -> np.ndarray:
    """Places in `view.peers` of those drawn: all, or every 2nd, 4th, 8th…, the same ones throughout a run."""
    most, step = max(1, min(DRAWN, POINTS // expected(view))), 1
    while math.ceil(view.nodes / step) > most:
        step *= 2
    found = np.flatnonzero(view.peers % step == 0)
    return found if found.size else np.arange(min(1, len(view.peers)))


def level(view: View, what: str, name: str) -> np.ndarray:
    """[T] one of `LEVELS` of a curve."""
    return view.spread[what][:, LEVELS.index(name)]


def error(view: View) -> Spec:
    """Every peer's error by round, their mean and spread, and what it is to be compared with."""
    what, single = view.error, expected(view) == 1
    some = drawn(view)
    peers = view.peers[some]
    curves = view.curves[what][:, some].T  # [P, T]
    many = len(view.rounds) + 1
    thin = faint(
        "peers", round(min(0.25, max(0.07, 1.6 / math.sqrt(max(len(peers), 1)))), 3)
    )  # many make a cloud
    each: Spec = {
        "type": "scatter",
        "mode": "markers" if single else "lines",
        "name": "each peer" if len(peers) == view.nodes else f"{len(peers)} of the peers",
        "x": packed(gapped(np.broadcast_to(view.rounds, curves.shape))),
        "y": packed(gapped(curves)),
        "customdata": packed(np.repeat(peers, many), "i4"),
        "line": {"color": thin, "width": 1},
        "marker": {"color": thin, "size": 6},
        "hovertemplate": f"peer %{{customdata}}<br>round %{{x}}<br>{KINDS[what]} %{{y:.4f}}<extra></extra>",
        "meta": {"role": "each", "grows": "each", "curves": len(peers), "repeats": ["customdata"]},
    }
    if view.names is not None:
        each["text"] = [label(view.names[peer]) for peer in peers for _ in range(many)]
        each["hovertemplate"] = each["hovertemplate"].replace("peer %{customdata}", "%{text}")
        each["meta"]["repeats"].append("text")
    beside = references(view)
    data = [each, *_band(view, what, single), _mean(view, what, single, ".4f"), *map(_line(view), beside)]
    return {
        "data": [*data, chosen(single)],
        "layout": layout(
            _error_summary(view),
            380,
            margin={"l": 48, "r": 84 if beside else 16, "t": 12, "b": 40},
            showlegend=True,
            xaxis=axis("round", range=[0, view.total * 1.005]),
            yaxis=axis(KINDS[what], rangemode="tozero"),
            annotations=_beside(view, beside),
        ),
    }


def disagreement(view: View) -> Spec:
    """How far the peers' models are apart, by round."""
    what, single = "disagreement", expected(view) == 1
    data = [*_band(view, what, single), _mean(view, what, single, ".3g"), chosen(single)]
    return {
        "data": data,
        "layout": layout(
            _disagreement_summary(view),
            250,
            xaxis=axis("round", range=[0, view.total * 1.005]),
            yaxis=axis("disagreement", type="log", exponentformat="power"),
        ),
    }


def sent(view: View) -> Spec:
    """What each peer has sent, by round."""
    what, single = "bytes", expected(view) == 1
    return {
        "data": [*_band(view, what, single), _mean(view, what, single, ".3s")],
        "layout": layout(
            _sent_summary(view),
            250,
            xaxis=axis("round", range=[0, view.total * 1.005]),
            yaxis=axis("sent by each peer", rangemode="tozero", tickformat="~s", ticksuffix="B"),
        ),
    }


def added(view: View, name: str, begin: int) -> Spec:
    """What the rounds from place `begin` on add to a figure: by trace, the attributes that grow or are set."""
    what = {"error": view.error, "disagreement": "disagreement", "bytes": "bytes"}[name]
    rounds = packed(view.rounds[begin:])
    parts = [{"x": rounds, "y": packed(level(view, what, at)[begin:])} for at in ("5 %", "95 %", "mean")]
    told: Spec = {"summary": SUMMARIES[name](view)}
    if name == "error":
        parts.insert(0, {"x": rounds, "y": packed(view.curves[what][begin:, drawn(view)].T.ravel())})
        told["layout"] = {"yaxis.title.text": KINDS[what]}  # which error it is, is known once there is one
    return {"traces": {str(place): part for place, part in enumerate(parts)}, **told}


def references(view: View) -> dict[str, float]:
    """Errors to compare with, by name, of the same rows as the peers' errors."""
    kind = view.error.removesuffix("_error")
    found = {who: view.references.get(f"{kind}_{who}", math.nan) for who in REFERENCES}
    return {who: value for who, value in found.items() if math.isfinite(value)}


def chosen(single: bool) -> Spec:
    """Where the page draws the peer that somebody chose."""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [],
        "y": [],
        "showlegend": False,
        "line": {"color": colour("chosen"), "width": 2.5},
        "marker": {"color": colour("chosen"), "size": 9 if single else 4},
        "hovertemplate": "the chosen peer<br>round %{x}: %{y:.4g}<extra></extra>",
        "meta": {"role": "chosen"},
    }


def _band(view: View, what: str, single: bool) -> list[Spec]:
    """Two lines with the area between them filled: 5 % and 95 % of the peers."""
    shared: Spec = {
        "type": "scatter",
        "mode": "markers" if single else "lines",
        "x": packed(view.rounds),
        "line": {"width": 0, "color": colour("peers")},
        "marker": {"symbol": "line-ew-open", "size": 12, "color": colour("peers")},
        "hoverinfo": "skip",
    }
    low = {**shared, "y": packed(level(view, what, "5 %")), "showlegend": False}
    high = {**shared, "y": packed(level(view, what, "95 %")), "name": "5–95 % of the peers"}
    return [
        {**low, "meta": {"role": "low", "grows": "append"}},
        {
            **high,
            "fill": "tonexty",
            "fillcolor": faint("peers"),
            "meta": {"role": "high", "grows": "append"},
        },
    ]


def _mean(view: View, what: str, single: bool, form: str) -> Spec:
    return {
        "type": "scatter",
        "mode": "markers" if single else "lines",
        "name": "mean of the peers",
        "x": packed(view.rounds),
        "y": packed(level(view, what, "mean")),
        "line": {"color": colour("peers"), "width": 2.5},
        "marker": {"color": colour("peers"), "size": 9},
        "hovertemplate": f"mean of the peers<br>round %{{x}}: %{{y:{form}}}<extra></extra>",
        "meta": {"role": "mean", "grows": "append"},
    }


def _line(view: View) -> Any:
    """A reference as a horizontal line: (who) -> trace."""

    def line(who: str) -> Spec:
        value = references(view)[who]
        return {
            "type": "scatter",
            "mode": "lines",
            "name": SAID[who],
            "x": packed(np.linspace(0, view.total, 33)),  # enough points for a pointer to find one
            "y": packed(np.full(33, value)),
            "showlegend": False,
            "line": {"color": colour(who), "width": 1.5, "dash": "dash"},
            "hovertemplate": f"{SAID[who]}: {value:.4f}<extra></extra>",
            "meta": {"role": who},
        }

    return line


def _beside(view: View, beside: dict[str, float]) -> list[Spec]:
    """The references' names at the right end, moved apart where they would lie one over the other."""
    if not beside:
        return []
    shown = view.curves[view.error]
    highest = max([*beside.values(), float(np.nanmax(shown, initial=0.0)), 1e-9])
    labels, above = [], -math.inf
    for who, value in sorted(beside.items(), key=lambda pair: pair[1]):
        wanted = value / highest * PLOT_HEIGHT
        at = max(wanted, above + LINE_HEIGHT)
        above = at
        labels.append(
            {
                "x": 1,
                "xref": "paper",
                "xanchor": "left",
                "xshift": 4,
                "y": value,
                "yshift": at - wanted,
                "text": f"{REFERENCES[who]} {figure(value)}",
                "font": {"color": colour(who)},
                "showarrow": False,
            }
        )
    return labels


def _error_summary(view: View) -> str:
    told = _course(view, view.error, f"The peers' mean {KINDS[view.error]}", figure)
    others = ", ".join(f"{SAID[who]} {figure(value)}" for who, value in references(view).items())
    return f"{told} Beside it: {others}." if others else told


def _disagreement_summary(view: View) -> str:
    return _course(view, "disagreement", "The peers' disagreement", lambda value: f"{value:.2g}")


def _sent_summary(view: View) -> str:
    return _course(view, "bytes", "What each peer has sent", size)


def _course(view: View, what: str, subject: str, form: Any) -> str:
    """One sentence: from where to where."""
    mean = level(view, what, "mean")
    if not len(mean):
        return f"{subject}: no round has been evaluated yet."
    low, high = (form(float(level(view, what, at)[-1])) for at in ("5 %", "95 %"))
    first = f" from {form(float(mean[0]))} in round {view.rounds[0]}" if len(mean) > 1 else ""
    return (
        f"{subject} went{first} to {form(float(mean[-1]))} in round {view.rounds[-1]}; "
        f"nine in ten of {view.nodes} peers are between {low} and {high}."
    )


SUMMARIES = {"error": _error_summary, "disagreement": _disagreement_summary, "bytes": _sent_summary}
