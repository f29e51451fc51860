"""A simulation as a TOML file: read, checked at once, and refused by line.

[data]
name = "digits"          # see `peerbayes datasets list`
# file = "rows.parquet"  # or your own .csv or .parquet (or a database's URL, with query = "SELECT …"), and
# label = "outcome"      # the column to predict

[simulation]             # any argument of peerbayes.simulate
peers = 50
strategy = "exact"
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes.data import files, sources
from peerbayes.data.arguments import one_of, shown
from peerbayes.data.datasets import UnknownDataset, load
from peerbayes.data.datasets.catalogue import ENTRIES
from peerbayes.data.datasets.entries import find
from peerbayes.errors import ConfigurationError
from peerbayes.privacy.accounting import Privacy
from peerbayes.simulation.old_names import NEW_NAMES, advice

# The entries of [data], and what they mean.
DATA = {
    "name": "a dataset, as `peerbayes datasets list` names it; digits by default",
    "file": "a .csv or .parquet file of your own, or a database's SQLAlchemy URL, instead",
    "query": "the SQL that gives the rows, where `file` is a URL",
    "label": "the column of the file to predict; the last one by default",
}

LONGEST = 200  # characters of a --set that an error repeats

# The types of each setting, by the argument of `simulate`; callables and tables cannot be written in TOML.
SETTINGS: dict[str, tuple[type, ...]] = {
    "family": (str,),
    "kinds": (str, list, dict),
    "peers": (int,),
    "rows_per_peer": (int, list),
    "topology": (str,),
    "partition": (str,),
    "strategy": (str,),
    "start": (str,),
    "rounds": (int,),
    "lr": (float, int),
    "local_steps": (int,),
    "change_every": (int,),
    "objective": (str,),
    "evaluate_every": (int,),
    "evaluate_rows": (int,),
    "seed": (int,),
    "clip": (float, int, bool),  # false: none
    "message_loss": (float, int),
    "message_delay": (float, int),
    "peers_down": (float, int),
    "secure_sum": (bool,),
    "start_rounds": (int,),
    "privacy": (dict,),
    "robust": (str,),
    "attack": (str, dict),
    "device": (str,),
    "dtype": (str,),
}


@dataclass(frozen=True)
class Configuration:
    """The data of a simulation, and its settings."""

    data: dict[str, str]
    settings: dict[str, Any]

    def load(self) -> tuple[Any, np.ndarray]:
        """Return the table and its labels."""
        return load_data(self.data)


def read(path: Path, changes: tuple[str, ...] = ()) -> Configuration:
    """Read a TOML file and apply `key=value` changes to its simulation."""
    text = files.text_of(path)
    content = files.table(text, str(path))
    if not content:
        raise ConfigurationError(f"{path} is empty; expected a section [data] or [simulation]")
    _check_names(content, ("data", "simulation"), path, text, "a section")
    data, settings = content.get("data", {}), content.get("simulation", {})
    _check_names(data, tuple(DATA), path, text, "an entry of [data]", "data")
    _check_names(settings, tuple(SETTINGS), path, text, "a setting", "simulation")
    for name, value in data.items():
        _typed(name, value, (str,), f"{path}{files.line(text, 'data', name)}")
    if "name" in data:
        try:
            find(data["name"], ENTRIES)
        except UnknownDataset as error:
            raise ConfigurationError(f"{path}{files.line(text, 'data', 'name')}: {error}") from error
    settings = {
        name: _typed(name, value, SETTINGS[name], f"{path}{files.line(text, 'simulation', name)}")
        for name, value in settings.items()
    }
    settings |= parse_changes(changes)
    if "privacy" in settings:
        settings["privacy"] = _privacy(settings["privacy"], str(path))
    return Configuration(data or {"name": "digits"}, settings)


def _privacy(terms_table: dict[str, Any], where: str) -> Privacy:
    """Return `privacy = { epsilon = 4.0 }` as a `Privacy`."""
    terms = [term.name for term in fields(Privacy)]
    try:
        for name in terms_table:
            one_of("a term", name, terms)
        return Privacy(**terms_table)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{where}: privacy: {error}; it holds any of {', '.join(terms)}") from error


def parse_changes(changes: tuple[str, ...]) -> dict[str, Any]:
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
        settings[name] = _typed(name, _value(value), SETTINGS[name], f"--set {_cut(change)}")
    return settings


def _value(written: str) -> Any:
    """Return what a text stands for in TOML, or the text itself."""
    try:
        content = files.table(f"value = {written}", "--set")
    except ConfigurationError:
        return written
    return content["value"] if len(content) == 1 else written  # more than one line sets more than one value


def _cut(change: str) -> str:
    return change if len(change) <= LONGEST else f"{change[:LONGEST]}…"


def load_data(data: dict[str, str]) -> tuple[Any, np.ndarray]:
    """Load a dataset of the registry, or a file with the name of its label column."""
    if "file" in data:
        try:
            frame = sources.read(data["file"], data.get("query"))
            return sources.labelled(frame, data.get("label", str(frame.columns[-1])))
        except sources.SourceError as error:
            raise ConfigurationError(f"the file of [data]: {error}") from error
    dataset = load(data.get("name", "digits"))
    return dataset.frame, dataset.labels.to_numpy()


def _check_names(table: Any, names: tuple[str, ...], path: Path, text: str, noun: str, *section: str) -> None:
    if not isinstance(table, dict):
        where = f"{path}{files.line(text, *section)}"
        raise ConfigurationError(
            f"{where}: {section[0]} is {shown(table)}; expected a section [{section[0]}]"
        )
    for name, value in table.items():
        where = f"{path}{files.line(text, *section, name)}"
        if NEW_NAMES.get(name) in names:
            raise ConfigurationError(f"{where}: {advice(name, f'{NEW_NAMES[name]} = {shown(value)}')}")
        if name not in names:
            raise ConfigurationError(
                f"{where}: {shown(name)} is not {noun}; expected one of {', '.join(names)}"
            )


def _typed(name: str, value: Any, types: tuple[type, ...], where: str) -> Any:
    """Return the value if it is of one of these types; false, where it is allowed beside another type, becomes None."""
    if types == (bool,):
        if not isinstance(value, bool):
            raise ConfigurationError(f"{where}: {name} is {shown(value)}; expected true or false")
        return value
    if value is False and bool in types:
        return None
    if not isinstance(value, types) or isinstance(value, bool):
        expected = " or ".join("false" if kind is bool else kind.__name__ for kind in types)
        raise ConfigurationError(f"{where}: {name} is {shown(value)}; expected {expected}")
    return value
