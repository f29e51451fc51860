"""One study to a folder: it may grow, and another one in its place is refused unless it was asked for."""

from __future__ import annotations

import json
from typing import Any

from peerbayes.data.arguments import shown
from peerbayes.errors import AlreadyThere

Study = Any  # a `study.Study`, whose folder this is

NAMED = 3  # differences that a sentence names


def refuse_other(before: Study, now: Study) -> None:
    """Refuse a study in the folder of another one, whose cells it has not all: the description of those would be lost.

    More seeds or values of the same study are no other study.
    """
    if {cell.key for cell in before.cells} <= {cell.key for cell in now.cells}:
        return
    raise AlreadyThere(
        f"{now.folder} holds {before}, and not all of its cells are in {now}, which would take its place. They differ "
        f"in {', '.join(_differences(before, now)) or 'their rows or the version of the numbers'}. Choose another "
        "folder, name the values of both, or pass overwrite=True (--overwrite on the command line): results are kept, "
        "and only the description of the study is replaced"
    )


def _differences(before: Study, now: Study) -> list[str]:
    """Return the settings that have values in one study which the other lacks, or other rows."""
    first, second = _values(before), _values(now)
    names = [
        f"{name} ({_shown(first.get(name))}, now {_shown(second.get(name))})"
        for name in dict.fromkeys((*first, *second))
        if not first.get(name, {}).keys() <= second.get(name, {}).keys()
    ]
    return names if len(names) <= NAMED else [*names[:NAMED], f"{len(names) - NAMED} more"]


def _values(study: Study) -> dict[str, dict[str, Any]]:
    """Return the values of each setting by their JSON; of settings that are left out, the default."""
    names = dict.fromkeys(name for cell in study.cells for name in cell.specification["settings"])
    values: dict[str, dict[str, Any]] = {}
    for cell in study.cells:
        settings = cell.specification["settings"]
        for name in names:
            value = settings.get(name, DEFAULT)
            values.setdefault(name, {})[json.dumps(value)] = value
        rows = {"rows": cell.specification["data"], "rows for tests": cell.specification["test"]}
        for name, value in rows.items():
            values.setdefault(name, {})[json.dumps(value)] = value
    return values


DEFAULT = "the default"


def _shown(values: dict[str, Any] | None) -> str:
    return " | ".join(shown(value) for value in list((values or {"": DEFAULT}).values())[:NAMED])
