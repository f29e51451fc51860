"""A simulation as a TOML file: read, checked at once, and refused by line.

[data]
name = "digits"          # see `peerbayes datasets list`
# file = "rows.parquet"  # or your own .csv or .parquet (or a database's URL, with query = "SELECT …"), and
# label = "outcome"      # the column to predict

[simulation]             # any argument of peerbayes.simulate
peers = 50
strategy = "auto"
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np

from peerbayes.data import files, sources
from peerbayes.data.arguments import shown
from peerbayes.data.datasets import UnknownDataset, load
from peerbayes.data.datasets.entries import find
from peerbayes.data.declarations import (
    Setting,
    SettingsFile,
    declarations,
    read_value,
    text_value,
    value_of,
    writable,
)
from peerbayes.errors import ConfigurationError, PeerbayesError
from peerbayes.simulation.old_names import NEW_NAMES, advice
from peerbayes.simulation.settings import SimulationArguments


class Data(TypedDict, total=False):
    """The entries of [data]."""

    # fmt: off
    name: Annotated[str, Setting(
        "digits", text_value("the name of a dataset"), "a dataset, as `peerbayes datasets list` names it")]
    file: Annotated[str, Setting(
        None, text_value("the path of a file, or a database's URL"),
        "a .csv or .parquet file of your own, or a database's SQLAlchemy URL, instead")]
    query: Annotated[str, Setting(
        None, text_value("a SQL query"), "the SQL that gives the rows, where `file` is a URL")]
    label: Annotated[str, Setting(
        None, text_value("the name of a column"), "the column of the file to predict; the last one by default")]
    # fmt: on


SETTINGS = writable(SimulationArguments)

# Returns a setting's value from what stands in a file: see `read_value`.
Read = Callable[[Setting, str, Any, str, type[PeerbayesError]], Any]

LONGEST = 200  # characters of a --set that an error repeats


@dataclass(frozen=True)
class Configuration:
    """The data of a simulation, and its settings."""

    data: dict[str, Any]
    settings: dict[str, Any]

    def load(self) -> tuple[Any, np.ndarray]:
        """Return the table and its labels."""
        return load_data(self.data)


def read(path: Path, changes: tuple[str, ...] = ()) -> Configuration:
    """Read a TOML file and apply `key=value` changes to its simulation."""
    file = opened(path)
    file.settings({}, "not a section", further=("data", "simulation"))
    data, settings = sections(file)
    if "name" in data:
        check_name(file, data["name"])
    return Configuration(
        data or {"name": declarations(Data)["name"].default}, settings | parse_changes(changes)
    )


def opened(path: Path) -> SettingsFile:
    """Return a file of settings that is not empty."""
    file = SettingsFile(files.text_of(path), str(path))
    if not file.content:
        raise ConfigurationError(f"{path} is empty; expected a section [data] or [simulation]")
    return file


def sections(file: SettingsFile, read: Read | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entries of [data] and [simulation]; `read` returns the value of an entry, else it is one value."""
    data = file.settings(declarations(Data), "not an entry of [data]", "data", read=read)
    for name, value in file.section("simulation").items():
        if NEW_NAMES.get(name) in SETTINGS:
            renamed = advice(name, f"{NEW_NAMES[name]} = {shown(value)}")
            raise ConfigurationError(f"{file.at('simulation', name)}{renamed}")
    return data, file.settings(SETTINGS, "not a setting", "simulation", read=read)


def check_name(file: SettingsFile, name: str) -> None:
    """Refuse a dataset that is not known, by line."""
    try:
        find(name)
    except UnknownDataset as error:
        raise ConfigurationError(f"{file.at('data', 'name')}{error}") from error


def parse_changes(changes: tuple[str, ...], read: Read = read_value) -> dict[str, Any]:
    """Parse `key=value` pairs, the value written as in TOML; plain words need no quotes."""
    settings = {}
    for change in changes:
        name, separator, value = change.partition("=")
        if NEW_NAMES.get(name) in SETTINGS:
            written = f"--set {NEW_NAMES[name]}={_cut(value)}"
            raise ConfigurationError(f"--set {_cut(change)}: {advice(name, written)}")
        if not separator or name not in SETTINGS:
            raise ConfigurationError(
                f"--set {_cut(change)}: expected KEY=VALUE, KEY one of {', '.join(SETTINGS)}"
            )
        settings[name] = read(
            SETTINGS[name], name, value_of(value), f"--set {_cut(change)}: ", ConfigurationError
        )
    return settings


def _cut(change: str) -> str:
    return change if len(change) <= LONGEST else f"{change[:LONGEST]}…"


def load_data(data: dict[str, Any]) -> tuple[Any, np.ndarray]:
    """Load a dataset of the registry, or a file with the name of its label column."""
    if "file" in data:
        try:
            frame = sources.read(data["file"], data.get("query"))
            return sources.labelled(frame, data.get("label", str(frame.columns[-1])))
        except sources.SourceError as error:
            raise ConfigurationError(f"the file of [data]: {error}") from error
    dataset = load(data.get("name", declarations(Data)["name"].default))
    return dataset.frame, dataset.labels.to_numpy()
