"""What a dashboard's pages are told, as JSON: everything there is to see, and what is new since."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from peerbayes.report import figures as drawn
from peerbayes.report.captions import CAPTIONS
from peerbayes.report.curves import drawn as drawn_peers
from peerbayes.report.page import SECTIONS, SPANS, TALL
from peerbayes.views import LEVELS, View
from peerbayes.web import peer_figures
from peerbayes.web.seen import Seen

# What is told of all peers together.
TOLD = ("test_error", "train_error", "disagreement", "bytes")
OF_ALL = ("mean", "least", "most")


def figures(seen: Seen, version: int, now: float) -> bytes:
    """Everything: the state in words, and all figures."""
    made = _figures(seen)
    told = {"figures": made, "sections": sections(seen, made), "lines": seen.lines, "model": seen.model}
    return encoded(_state(seen, version, now) | told)


def event(seen: Seen, before: Seen | None, version: int, now: float) -> bytes:
    """What is new, as a server-sent event: what grows, or that everything is to be drawn anew."""
    if before is None or not seen.follows(before) or not _grows(seen.view, before.view):
        return beat(seen, version, now, reload=True)
    told = {**_state(seen, version, now), "since": version - 1, "model": seen.model}
    if seen.view is not None and before.view is not None and seen.view is not before.view:
        told["patch"] = _patch(seen, int(before.view.rounds[-1]) if len(before.view.rounds) else 0)
    if seen.kind == "peer":
        known = before.lines[-1]["number"] if before.lines else 0
        told["lines"] = [line for line in seen.lines if line["number"] > known]
        if _standing(seen) != _standing(before):
            told["replaced"] = {"network": _peer_network(seen)}
    return as_event("update", told)


def beat(seen: Seen, version: int, now: float, reload: bool = False) -> bytes:
    """That there is nothing new; or only that everything is to be asked for again."""
    told = {"version": version, "now": now, "at": seen.facts.get("at"), "reload": reload}
    if "running" in seen.facts:
        told["running"] = seen.facts["running"]
    return as_event("reload" if reload else "beat", told)


def peer(seen: Seen, number: int) -> bytes:
    """One peer's numbers by round."""
    assert seen.view is not None
    return encoded(drawn.curve(seen.view, number))


def model(seen: Seen) -> bytes:
    """The figures of the model alone."""
    return encoded({"model": seen.model, "figures": _of_model(seen.view)})


def summary(view: View) -> dict[str, list[float | None]]:
    """All peers together, now: by curve, the values of `OF_ALL`."""
    if not len(view.rounds):
        return {}
    places = [LEVELS.index(name) for name in OF_ALL]
    return {name: [_number(value) for value in view.spread[name][-1, places]] for name in TOLD}


def sections(seen: Seen, made: Mapping[str, Any]) -> list[Any]:
    """Where figures stand: [heading, [[name, title, how to read it, classes of its card], …]], …"""
    of_peer = seen.kind == "peer"
    captions = CAPTIONS | (peer_figures.CAPTIONS if of_peer else {})
    headings = peer_figures.SECTIONS | dict(list(SECTIONS.items())[1:]) if of_peer else SECTIONS
    return [
        (heading, [(name, *captions[name], _place(name, of_peer)) for name in names if name in made])
        for heading, names in headings.items()
        if any(name in made for name in names)
    ]


def encoded(told: Any) -> bytes:
    return json.dumps(told, separators=(",", ":"), allow_nan=False, default=_plain).encode()


def as_event(name: str, told: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + encoded(told) + b"\n\n"


def _state(seen: Seen, version: int, now: float) -> dict[str, Any]:
    told = {"kind": seen.kind, "version": version, "now": now, "facts": seen.facts}
    if seen.kind == "run" and seen.view is not None:
        told["summary"] = summary(seen.view)
    return told


def _figures(seen: Seen) -> dict[str, Any]:
    if seen.view is None:
        return {}
    if seen.kind == "peer":
        return peer_figures.figures(seen.view, seen.facts) | _of_model(seen.view)
    if seen.view.finished:
        return drawn.of(seen.view)
    return drawn.live(seen.view) | drawn.structured(seen.view)


def _of_model(view: View | None) -> dict[str, Any]:
    """The figures that do not change with every round."""
    if view is None or view.statistics is None:
        return {}
    return {name: spec for name, spec in drawn.of(view).items() if name not in drawn.LIVE}


def _place(name: str, of_peer: bool) -> str:
    """How wide a card is, as `page.css` has it."""
    if of_peer and name in peer_figures.CAPTIONS:
        return "span-3"
    return f"span-{SPANS.get(name, 2)}{' tall' if name in TALL else ''}"


def _patch(seen: Seen, since: int) -> dict[str, Any]:
    assert seen.view is not None
    if seen.kind == "peer":
        return peer_figures.patch(seen.view, since)
    return drawn.patch(seen.view, since)


def _peer_network(seen: Seen) -> dict[str, Any]:
    assert seen.view is not None
    return peer_figures.network(seen.view, seen.facts)


def _grows(view: View | None, before: View | None) -> bool:
    """Whether the figures are those of before with more in them: the same curves of the same peers."""
    if view is None or before is None or view is before:
        return view is before
    return view.error == before.error and np.array_equal(
        view.peers[drawn_peers(view)], before.peers[drawn_peers(before)]
    )


def _standing(seen: Seen) -> list[tuple[str, str]]:
    return [(each["name"], each["state"]) for each in seen.facts["neighbours"]]


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _plain(value: Any) -> Any:
    """A NumPy number as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be told as JSON")
