"""What made a study: the versions, machine and time of each call that computed cells, and its settings as a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from peerbayes.data.declarations import Setting, declarations, toml, writable
from peerbayes.experiments.levels import label_of, may_be_list, several
from peerbayes.experiments.stored_sklearn import SETTINGS as OF_SKLEARN
from peerbayes.simulation.provenance import machine, source_of, written
from peerbayes.simulation.recipe import as_toml, in_words, line
from peerbayes.simulation.result import made
from peerbayes.simulation.settings import SimulationArguments


def session(engine: str, cells: int) -> dict[str, Any]:
    """Return what is known of a call that computes cells: when, with which versions, where, and how many."""
    return {**made(), "machine": machine(), "engine": engine, "cells": cells}


def toml_of(
    study: Mapping[str, Any], datasets: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> str:
    """Return a study as a file that `peerbayes study` reads; what no file can hold is a comment.

    study     entries of [study]; None is left out
    datasets  entries of [data] of each; none: the rows were a table in memory
    settings  those of `simulate`, each one value or several, as they were passed
    """
    lines = ["[study]", *(f"{name} = {toml(value)}" for name, value in study.items() if value is not None)]
    lines += ["", "[data]", *_of_data([source_of(data) for data in datasets]), "", "[simulation]"]
    declared, held = declarations(SimulationArguments), writable(SimulationArguments)
    for name, value in settings.items():
        values = None if name == "test" else several(name, value, declared[name])
        items = [_entry(name, item) for item in ([value] if values is None else values)]
        if name in held and all(words is None for _, words in items):
            lines.append(f"{name} = {_joined([text for text, _ in items], declared[name], values is None)}")
        else:
            named = "; ".join(text if words is None else words for text, words in items)
            lines.append(f"# {name}: {line(named)}, which only study.json has in full")
    return "\n".join(lines) + "\n"


def _entry(name: str, value: Any) -> tuple[str, str | None]:
    """Return a value as TOML, and in words what it is where TOML cannot hold it."""
    if name in OF_SKLEARN:
        checked = declarations(SimulationArguments)[name].kind.check(name, value)
        stored = OF_SKLEARN[name][0](checked)
        held = all(isinstance(item, str) for item in stored)
        return toml(stored), None if held else str(label_of(checked))
    arrays: dict[str, Any] = {}
    plain = written(name, value, arrays)
    words = in_words(plain)
    return (as_toml(plain), None) if words is None else ("", words)


def _joined(texts: Sequence[str], setting: Setting, single: bool) -> str:
    if single:
        return texts[0]
    values = f"[{', '.join(texts)}]"
    return f"{{ each = {values} }}" if may_be_list(setting) else values


def _of_data(sources: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Return the lines of [data]: every entry once, or one of them with a list of its values."""
    if not sources:
        return ["# The rows were a table in memory. Name a file that holds them:", '# file = "rows.parquet"']
    names = list(dict.fromkeys(name for source in sources for name in source))
    differing = [
        name for name in names if any(source.get(name) != sources[0].get(name) for source in sources)
    ]
    if not differing:
        return [f"{name} = {as_toml(value)}" for name, value in sources[0].items()]
    if differing in (["name"], ["file"]):
        return [
            f"{name} = [{', '.join(as_toml(source[name]) for source in sources)}]"
            if name in differing
            else f"{name} = {as_toml(sources[0][name])}"
            for name in names
        ]
    return [
        f"# {', '.join(f'{name} = {line(as_toml(value))}' for name, value in source.items())}"
        for source in sources
    ]
