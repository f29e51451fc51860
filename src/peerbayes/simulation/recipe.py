"""The settings of a run as the TOML file that would make it again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from peerbayes.data.declarations import toml, writable
from peerbayes.data.files import key
from peerbayes.simulation.provenance import FILE, Provenance
from peerbayes.simulation.settings import SimulationArguments

# What stands in the file for arguments that only the run's own file can hold.
IN_WORDS = {
    "$links": "a network of {peers} peers",
    "$rows": "lists of rows",
    "$schema": "a Schema",
    "$test": "{$test} rows that were passed",
    "$trace": "a trace of lost messages",
    "$changing": "a network that changes",
    "$pairs": "a table with keys that are not texts",
    "$cannot": "{$cannot}",
}


def toml_of(
    provenance: Provenance, made: Mapping[str, str], relative_paths: Mapping[str, str] | None = None
) -> str:
    """Return the settings that were asked for; those that TOML cannot hold are comments.

    relative_paths  of files from the folder of the TOML file, by the paths that the run names them by
    """
    relative_paths = relative_paths or {}
    if not provenance.data:
        return "# This run was saved by a version that did not record what was asked.\n"
    version = f" by peerbayes {made['peerbayes']}" if "peerbayes" in made else ""
    lines = [f"# Made{version} on {made['began']}." if "began" in made else "# The settings of a run."]
    lines += ["", "[data]", *_data_lines(provenance, relative_paths), "", "[simulation]"]
    settings = writable(SimulationArguments)
    for name, value in provenance.asked.items():
        if name in provenance.data["source"]:  # test rows of a file
            continue
        words = in_words(value)
        if words is None and name in settings:
            lines.append(f"{name} = {as_toml(value, relative_paths)}")
        else:
            lines.append(f"# {name}: {line(words or as_toml(value))}, which only the file of the run has")
    return "\n".join(lines) + "\n"


def _data_lines(provenance: Provenance, relative_paths: Mapping[str, str]) -> list[str]:
    data = provenance.data
    size = f"{data['rows']:,} rows, {data['columns']:,} columns, {data['classes']:,} classes"
    source = [
        f"{name} = {as_toml(relative_paths.get(value, value) if name in ('file', 'test') else value)}"
        for name, value in data["source"].items()
    ]
    if not source:
        source = [
            "# The rows were a table in memory. Name a file that holds them:",
            '# file = "rows.parquet"',
        ]
    return [f"# {size}", *source, f'digest = "{data["digest"]}"']


def in_words(value: Any) -> str | None:
    """Return what a value is, where TOML cannot hold it."""
    if isinstance(value, list):
        if None in value:
            return "a list with None"
        return next((words for words in map(in_words, value) if words), None)
    if not isinstance(value, dict):
        return None
    kind = next(iter(value), "")
    if kind in IN_WORDS:
        return IN_WORDS[kind].format(**value)
    return next((words for words in map(in_words, value.values()) if words), None)


def as_toml(value: Any, relative_paths: Mapping[str, str] | None = None) -> str:
    """Return a value of a run's file as TOML; a file is its path, or that in `relative_paths`."""
    if isinstance(value, dict):
        if FILE in value:
            return toml((relative_paths or {}).get(value[FILE], value[FILE]))
        entries = ", ".join(
            f"{key(name)} = {as_toml(entry, relative_paths)}"
            for name, entry in value.items()
            if entry is not None
        )
        return f"{{ {entries} }}" if entries else "{}"
    return (
        f"[{', '.join(as_toml(entry, relative_paths) for entry in value)}]"
        if isinstance(value, list)
        else toml(value)
    )


def line(text: str) -> str:
    """Return a text that fits in a comment."""
    return re.sub(r"[^\x20-\x7e\u00a0-\uffff]", " ", text)
