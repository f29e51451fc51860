"""Incremental fitting: checks of `partial_fit`, which sees the rows in several parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from peerbayes import passes
from peerbayes.inference import infer_classes
from peerbayes.schema import Schema
from peerbayes.tables import Table


def classes_of_all(classes: Any, known_classes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the classes of all parts, from those that the caller names and those known before; they must agree."""
    if classes is None and not known_classes:
        raise ValueError(
            "classes must be passed on the first call to partial_fit: every label that can occur"
        )
    named_classes = known_classes if classes is None else infer_classes(classes)[0]
    if known_classes and set(named_classes) != set(known_classes):
        raise ValueError(
            f"classes={list(named_classes)} is not the same as on the last call to partial_fit, or in the schema: "
            f"{list(known_classes)}"
        )
    if len(named_classes) < 2:
        raise ValueError(f"classes names {list(named_classes)}; a classifier needs at least two classes")
    return known_classes or named_classes


def refuse_counting(kinds: Any) -> None:
    """Refuse kinds that depend on how many values a column has."""
    rules = [kinds] if isinstance(kinds, str) else kinds.values() if isinstance(kinds, dict) else kinds
    if "paper" in rules:
        raise ValueError(
            "kinds='paper' counts the distinct values of all rows, and partial_fit sees only some of them; "
            "give a schema, for instance schema=Schema.infer(X, y, kinds='paper')"
        )


def kinds_so_far(schema: Schema) -> dict[str, str]:
    """Return the kinds of the columns that had a value."""
    return {column.name: column.kind for column in schema.columns if not column.empty}


def beyond_clip(table: Table, schema: Schema) -> str | None:
    """Return the name of a column with values that clipping would have changed, had all rows been known, or None."""
    if schema.clip is None:
        return None
    for _, block in passes.Raw(replace(schema, clip=None), table).blocks(passes.FRAME_ROWS):
        beyond = np.abs(block.rows().values) > schema.clip
        if beyond.any():
            return schema.names[schema.continuous[int(np.argmax(beyond.any(axis=0)))]]
    return None
