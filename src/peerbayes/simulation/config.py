"""A simulation as a TOML file: read, checked at once, and refused by line.

[data]
name = "digits"          # see `peerbayes datasets list`
# file = "rows.parquet"  # or your own .csv or .parquet (or a database's URL, with query = "SELECT …"), and
# label = "outcome"      # the column to predict
# drop = ["patient"]     # columns to leave out; more below

[simulation]             # any argument of peerbayes.simulate
peers = 50
strategy = "auto"
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np

from peerbayes.data import files, sources
from peerbayes.data.arguments import refusal, shown
from peerbayes.data.datasets import UnknownDataset, load
from peerbayes.data.datasets.entries import find
from peerbayes.data.declarations import (
    Kind,
    Setting,
    SettingsFile,
    declarations,
    read_value,
    text_value,
    value_of,
    writable,
)
from peerbayes.data.digest import table_digest
from peerbayes.data.sources.date_forms import parsed_form
from peerbayes.errors import ConfigurationError, DataChanged, PeerbayesError
from peerbayes.simulation.old_names import NEW_NAMES, advice
from peerbayes.simulation.partitions import owner_column
from peerbayes.simulation.places import first_there
from peerbayes.simulation.provenance import WITH_FILES
from peerbayes.simulation.settings import SimulationArguments


def _names(expected: str) -> Kind:
    """Return the kind of lists of texts."""

    def check(name: str, value: Any) -> list[str]:
        if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
            raise refusal(name, value, expected)
        return value

    return Kind(check, expected, (list,))


def _dates(name: str, value: Any) -> dict[str, str]:
    for column, form in value.items():
        parsed_form(f"{name}.{column}", form)
    return dict(value)


def _missing(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not all(type(item) in (str, int, float) for item in value):
        raise refusal(name, value, "a list of texts and numbers")
    return value


def _labels(name: str, value: Any) -> dict[str, Any]:
    for label, target in value.items():
        if type(target) not in (str, int, bool):
            raise refusal(f"{name}.{label}", target, "a class: text, a whole number, true or false")
    if len({isinstance(target, str) for target in value.values()}) > 1:
        raise refusal(name, value, "classes of one type")
    return dict(value)


class Data(TypedDict, total=False):
    """The entries of [data]."""

    # fmt: off
    name: Annotated[str, Setting(
        "digits", text_value("the name of a dataset"), "a dataset, as `peerbayes datasets list` names it")]
    file: Annotated[str, Setting(
        None, text_value("the path of a file, or a database's URL"),
        "a .csv or .parquet file of your own, or a database's SQLAlchemy URL, instead; a relative path is looked for "
        "in the working directory, then in the folder of the TOML file")]
    query: Annotated[str, Setting(
        None, text_value("a SQL query"), "the SQL that gives the rows, where `file` is a URL")]
    label: Annotated[str, Setting(
        None, text_value("the name of a column"), "the column of the file to predict; the last one by default")]
    columns: Annotated[list[str], Setting(
        None, _names("a list of names of columns"), "the columns to learn from; all but the label by default")]
    drop: Annotated[list[str], Setting(
        None, _names("a list of names of columns"), "columns to leave out, instead of `columns`")]
    dates: Annotated[dict[str, str], Setting(
        None, Kind(_dates, 'a table of names of columns and "days", "year", "month" or "weekday"', (dict,)),
        'what becomes of the dates of a column: "days" (since 1970) and "year" are numbers, "month" and "weekday" '
        'categories: { admitted = "month" }; and how they are written, if not as 2024-12-31: '
        '{ admitted = "month %d.%m.%Y" }')]
    missing: Annotated[list[Any], Setting(
        None, Kind(_missing, "a list of texts and numbers", (list,)),
        'what stands for a missing value: ["?", -999]')]
    labels: Annotated[dict[str, Any], Setting(
        None, Kind(_labels, "a table of labels and their classes", (dict,)),
        'the class of each label: { 1 = "yes", 2 = "yes", 0 = "no" }')]
    test: Annotated[str, Setting(
        None, text_value("the path of a file"),
        "a file of test rows with the same columns; by default, rows that no peer holds are tested on")]
    digest: Annotated[str, Setting(
        None, text_value("the sha256 of a table"),
        "the digest that the rows must have, as a saved run names it; rows with another one are refused")]
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
    file: SettingsFile | None = field(default=None, compare=False, repr=False)
    """Where it was read, for errors."""

    def load(self) -> tuple[Any, np.ndarray]:
        """Return the table and its labels."""
        with self._by_line():
            return load_data(self.data)

    def load_test(self, X: Any) -> dict[str, Any]:
        """Return the argument `test`, the rows of the test file for a table X; nothing where there is no such file."""
        if "test" not in self.data:
            return {}
        owners = owner_column(self.settings.get("partition"))
        names = [str(name) for name in X.columns if str(name) != owners]
        with self._by_line():
            return {"test": load_test(self.data, names)}

    @contextmanager
    def _by_line(self) -> Iterator[None]:
        """Begin errors with the line of the entry of [data] that they begin with."""
        try:
            yield
        except ConfigurationError as error:
            entry = re.match(r"\w+", str(error))
            if self.file is None or entry is None or entry[0] not in self.data:
                raise
            raise ConfigurationError(f"{self.file.at('data', entry[0])}{error}") from error


def read(path: Path, changes: tuple[str, ...] = ()) -> Configuration:
    """Read a TOML file and apply `key=value` changes to its simulation."""
    file = opened(path)
    file.settings({}, "not a section", further=("data", "simulation"))
    data, settings = sections(file)
    check_data(file, data)
    settings |= {
        name: _near(value, path.parent) or value
        for name, value in settings.items()
        if name in WITH_FILES and isinstance(value, str) and Path(value).suffix
    }
    return Configuration(located(data, path.parent), settings | parse_changes(changes), file)


def located(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return entries of [data] in which files that are not here are those in or near the folder of the TOML file.

    Where the digest of the rows is there, a file of the same name in that folder will do too.
    """
    entries = dict(data)
    for entry in ("file", "test"):
        written = str(data.get(entry, ""))
        if written and "://" not in written:
            same_name = Path(written).name if "digest" in data else written
            entries[entry] = _near(written, folder) or _near(same_name, folder) or written
    return entries


def _near(file: str, folder: Path) -> str | None:
    """Return the path of a file that is here, or by its relative path from a folder."""
    return first_there([file, os.path.normpath(folder / file)])


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
    data = data or {"name": declarations(Data)["name"].default}
    return data, file.settings(SETTINGS, "not a setting", "simulation", read=read)


def check_data(file: SettingsFile, data: dict[str, Any]) -> None:
    """Refuse entries of [data] that do not go together, and a dataset that is not known, by line."""
    if "name" in data:
        try:
            find(data["name"])
        except UnknownDataset as error:
            raise ConfigurationError(f"{file.at('data', 'name')}{error}") from error
    if "columns" in data and "drop" in data:
        raise ConfigurationError(
            f"{file.at('data', 'drop')}columns says what to learn from, and drop what to leave out; write one of them"
        )
    for entry in ("columns", "drop"):
        if data.get("label") in data.get(entry, ()):
            raise ConfigurationError(
                f"{file.at('data', entry)}{entry} names the label, {data['label']!r}; leave it out"
            )
    if "file" not in data and (others := [entry for entry in ("dates", "test") if entry in data]):
        raise ConfigurationError(
            f"{file.at('data', others[0])}{others[0]} is for a `file`: a dataset by name has no dates and no test file"
        )


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


def load_data(data: Mapping[str, Any]) -> tuple[Any, np.ndarray]:
    """Load a dataset of the registry, or a file with the name of its label column, prepared as [data] says."""
    try:
        X, y = _loaded(data)
    except sources.SourceError as error:
        raise _about_data(error, "file") from error
    if "digest" in data and (digest := table_digest(X, y)) != data["digest"]:
        raise DataChanged(
            f"the rows of [data] have the digest {digest:.16}…, expected {data['digest']:.16}…: they are not those "
            "that the settings were written for. Name others, or leave the digest out"
        )
    return X, y


def _loaded(data: Mapping[str, Any]) -> tuple[Any, np.ndarray]:
    if "file" in data:
        frame = _read(data, data["file"], data.get("query"))
        X, y = sources.labelled(frame, data.get("label", str(frame.columns[-1])), data.get("columns", ()))
    else:
        dataset = load(data.get("name", declarations(Data)["name"].default))
        X, y = dataset.frame, dataset.labels.to_numpy()
        if any(entry in data for entry in ("columns", "drop", "missing")):
            X = sources.prepare(X, drop=data.get("drop", ()), missing=data.get("missing", ()))
            sources.check_names(list(X.columns), data.get("columns", ()), "columns: the dataset")
            X = X[data["columns"]] if "columns" in data else X
    return X, sources.map_labels(y, data["labels"]) if "labels" in data else y


def load_test(data: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, np.ndarray]:
    """Load the test file of [data]: the columns named and the labels, prepared like the training rows."""
    try:
        frame = _read({**data, "drop": ()}, data["test"], None, names)
        X, y = sources.labelled(frame, data.get("label", str(frame.columns[-1])), names)
        return X, sources.map_labels(y, data["labels"]) if "labels" in data else y
    except sources.SourceError as error:
        raise _about_data(error, "test") from error


def _read(data: Mapping[str, Any], file: str, query: str | None, names: Sequence[str] = ()) -> Any:
    """Return the table of a file: the columns named and the label, or what [data] says."""
    names = names or data.get("columns", ())
    columns = [*names, data["label"]] if names and "label" in data else []
    prepared = {entry: data[entry] for entry in ("drop", "dates", "missing") if entry in data}
    try:
        return sources.read(file, query, columns, **prepared)
    except sources.SourceError as error:
        if "columns" in data and "has no column" in str(error):
            raise sources.SourceError(f"columns: {error}") from error
        raise


def _about_data(error: Exception, entry: str) -> ConfigurationError:
    """Return the error of an entry of [data]: the one that its message begins with, or this one."""
    named = re.match(rf"({'|'.join(declarations(Data))})\b", str(error))
    return ConfigurationError(str(error) if named else f"the {entry} of [data]: {error}")
