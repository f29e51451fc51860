"""What there is to see of a view, as plotly's plain dictionaries: pure functions, the same for pages, live or files.

of(view)            all figures, by name, in the order of a page; one with nothing to show is left out
live(view)          those that change while a run goes on; all of them, also before the first round
structured(view)    the structure of a Bayesian network, which does not
patch(view, since)  what the rounds after `since` add to these
curve(view, peer)   one peer's numbers
columns(view)       the columns of the model that can be chosen, each with its figure
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from peerbayes.report.arrays import Spec, number
from peerbayes.report.curves import KINDS, added, disagreement, error, sent
from peerbayes.report.densities import feature, features
from peerbayes.report.judged import confusion, reliability
from peerbayes.report.labels import shown
from peerbayes.report.model import Model, priors, telling
from peerbayes.report.network import network, renewed, spread
from peerbayes.report.structure import structure
from peerbayes.views import View

LIVE: dict[str, Callable[[View], Spec]] = {
    "error": error,
    "disagreement": disagreement,
    "network": network,
    "spread": spread,
    "bytes": sent,
}


def of(view: View, learned: Model | None = None) -> dict[str, Spec]:
    """All figures of a view; `learned` is its model, where that has been read before."""
    made = {name: make(view) for name, make in LIVE.items() if _shows(view, name)}
    if learned := learned or learned_by(view):
        made["priors"] = priors(view, learned)
        if learned.columns:
            made |= {"features": features(learned), "telling": telling(learned)}
    made |= structured(view)
    if "peers" in view.outcomes:
        made |= {
            "confusion": confusion(view, view.classes),
            "reliability": reliability(view),
        }
    return made


def structured(view: View) -> dict[str, Spec]:
    """The structure, from the first round on; none where no column has a parent."""
    found = view.structure
    return {} if found is None or not any(found.parents) else {"structure": structure(found)}


def learned_by(view: View) -> Model | None:
    """What the model says, read for figures; None where there is none."""
    return None if view.statistics is None else Model.of(view.statistics)


def columns(view: View, learned: Model | None = None) -> list[tuple[str, Spec]]:
    """Names and figures of the model's columns, the most telling first; none where there is no model."""
    learned = learned or learned_by(view)
    if learned is None:
        return []
    return [(shown(one.name, 60), feature(learned, at)) for at, one in enumerate(learned.columns)]


def live(view: View) -> dict[str, Spec]:
    """The figures that change while a run goes on."""
    return {name: make(view) for name, make in LIVE.items()}


def patch(view: View, since: int) -> Spec:
    """What to add to `live` of a view up to round `since`: {"since", "round", "figures": {name: {"traces", …}}}.

    A trace's `meta.grows` says how its attributes are meant; see `curves`.
    """
    begin = int(np.searchsorted(view.rounds, since, side="right"))
    told: Spec = {
        "since": since,
        "round": int(view.rounds[-1]) if len(view.rounds) else 0,
        "turn": view.turn,
        "figures": {},
    }
    if begin < len(view.rounds):
        told["figures"] = {
            name: renewed(view, name) if name in ("network", "spread") else added(view, name, begin)
            for name in LIVE
        }
    return told


def curve(view: View, peer: int) -> dict[str, Any]:
    """One peer's numbers as JSON takes them; without rounds where its curve is not held."""
    if not 0 <= peer < view.nodes:
        raise ValueError(f"peer is {peer}; expected 0 to {view.nodes - 1}")
    place = np.flatnonzero(view.peers == peer)
    held = {
        name: view.curves[what][:, place[0]] if place.size else view.last[what][peer : peer + 1]
        for name, what in (("error", view.error), ("disagreement", "disagreement"), ("bytes", "bytes"))
    }
    rounds = view.rounds if place.size else view.rounds[-1:]
    return {
        "peer": peer,
        "name": f"peer {peer}" if view.names is None else view.names[peer],
        "rows": int(view.sizes[peer]),
        "kind": KINDS[view.error],
        "whole": bool(place.size),
        "rounds": [int(turn) for turn in rounds],
        **{name: [number(value) for value in values] for name, values in held.items()},
    }


def _shows(view: View, name: str) -> bool:
    """Whether there is anything to see."""
    what = {"error": view.error, "spread": view.error}.get(name, name)
    if name == "network":
        return view.nodes > 1
    values = view.spread[what]
    return bool(np.isfinite(values).any()) and not (
        name in ("disagreement", "spread", "bytes") and (view.nodes == 1 or not (values > 0).any())
    )
