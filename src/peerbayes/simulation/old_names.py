"""Old names of settings, from when peers were called nodes: refused in calls and configurations, kept in files.

Stored files keep the old names, because their formats and versions did not change: `run.peerbayes`, `live.sqlite`, the
keys of checkpoints, and the specifications and keys of experiments, also in `docs/results.parquet`. So older
files are read, resumed and found by their keys, and older versions read what is written now.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from peerbayes.data.arguments import shown

NEW_NAMES = {"nodes": "peers", "rows_per_node": "rows_per_peer"}
"""The present name of each renamed setting by its old name, which is also its name in files."""

STORED_NAMES = {new: old for old, new in NEW_NAMES.items()}

NEW_ARGUMENTS = {**NEW_NAMES, "node": "peer"}
"""The present name of each renamed argument of a function by its old name."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def advice(name: str, written: str) -> str:
    """Return the sentence that refuses an old name; `written` is the setting as it should be written."""
    return f"{name} is called {NEW_ARGUMENTS[name]} now: write {written}"


def refuse_old(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that are passed by an old name with a `TypeError`."""
    for name, value in arguments.items():
        if name in NEW_ARGUMENTS:
            raise TypeError(advice(name, f"{NEW_ARGUMENTS[name]}={shown(value)}"))


def refuse_old_names(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return the function with a `TypeError` for arguments that are passed by an old name."""

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        refuse_old(kwargs)
        return function(*args, **kwargs)

    return call


def to_stored(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under the names that they have in files."""
    return {STORED_NAMES.get(name, name): value for name, value in settings.items()}


def from_stored(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a file under their present names."""
    return {NEW_NAMES.get(name, name): value for name, value in settings.items()}
