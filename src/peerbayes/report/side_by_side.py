"""Panels of several runs beside each other: the same axes, bins and colours, so that they can be compared by eye."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from peerbayes.report.network_figure import limits_of, with_limits
from peerbayes.report.style import DTYPES, Spec
from peerbayes.simulation.view import View

# Figures that share axes, by name: which of them.
SHARED_AXES = {
    "spread": "xy",
    "disagreement": "xy",
    "bytes": "xy",
    "priors": "y",
    "telling": "x",
}
MARGIN = 0.04  # of the range, above the largest value


def aligned(specs: Sequence[dict[str, Spec]], views: Sequence[View]) -> list[dict[str, Spec]]:
    """Return the figures by name of each run, with those of one name drawn alike."""
    figures = [dict(spec) for spec in specs]
    if limits := limits_of(views):
        for run, view in zip(figures, views, strict=True):
            run |= {
                name: with_limits(run[name], view, limits) for name in ("network", "spread") if name in run
            }
    for name, letters in SHARED_AXES.items():
        drawn = [run for run in figures if name in run]
        for letter in letters if len(drawn) > 1 else "":
            shared = _shared([run[name] for run in drawn], letter)
            for run in drawn:
                run[name] = _with(run[name], letter, shared)
        if letters == "xy" and len(drawn) > 1:
            _share_extents([run[name] for run in drawn])
    return figures


def _shared(specs: Sequence[Spec], letter: str) -> list[float] | None:
    """Return the range of an axis that all these figures have; None where they have no numbers."""
    axis = specs[0]["layout"][f"{letter}axis"]
    ranges = [spec["layout"][f"{letter}axis"].get("range") for spec in specs]
    if all(ranges):  # of rounds, which may differ in number
        return [min(pair[0] for pair in ranges), max(pair[1] for pair in ranges)]
    values = np.concatenate([_values(trace, letter) for spec in specs for trace in spec["data"]])
    logarithmic = axis.get("type") == "log"
    values = values[np.isfinite(values) & ((values > 0) if logarithmic else True)]
    if not values.size:
        return None
    low, high = float(values.min()), float(values.max())
    if logarithmic:
        low, high = math.log10(low), math.log10(high)
        return [low - MARGIN * max(high - low, 1), high + MARGIN * max(high - low, 1)]
    zero = axis.get("rangemode") == "tozero" or letter == "y"
    room = MARGIN * max(high - (0 if zero else low), 1e-9)
    return [0.0 if zero and low >= 0 else low - room, high + room]


def _with(spec: Spec, letter: str, shared: list[float] | None) -> Spec:
    """Return the figure with this range of an axis."""
    if shared is None:
        return spec
    layout = spec["layout"]
    key = f"{letter}axis"
    return {**spec, "layout": {**layout, key: {**layout[key], "range": shared}}}


def _share_extents(specs: Sequence[Spec]) -> None:
    """Write into figures by round how far they go against bytes and seconds, for the page that redraws them."""
    tables = [table for spec in specs for table in spec["layout"]["meta"].get("against", ())]
    names = set(chain.from_iterable(tables))
    extents = {}
    for name in sorted(names):
        values = np.concatenate([_numbers(table[name]) for table in tables if name in table])
        positive = values[np.isfinite(values) & (values > 0)]
        if positive.size:
            extents[name] = [float(positive.min()), float(positive.max())]
    for spec in specs:
        if "against" in spec["layout"]["meta"]:
            spec["layout"]["meta"] = {**spec["layout"]["meta"], "extents": extents}


def _values(trace: Spec, letter: str) -> np.ndarray:
    """Return the numbers of a trace along an axis; none where they belong to another axis, or are names."""
    if trace.get(f"{letter}axis", letter) != letter:
        return np.zeros(0)
    return _numbers(trace.get(letter, ()))


def _numbers(values: Any) -> np.ndarray:
    if isinstance(values, dict):
        return np.frombuffer(base64.b64decode(values["bdata"]), dtype=DTYPES[values["dtype"]]).astype(float)
    if not isinstance(values, Iterable) or any(isinstance(value, str) for value in values):
        return np.zeros(0)
    return np.array([math.nan if value is None else value for value in values], dtype=float)
