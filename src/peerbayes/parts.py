"""Rows that come in parts: what has to be known before the first, and what only all of them could tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from peerbayes import passes
from peerbayes.inference import infer_classes
from peerbayes.schema import Schema
from peerbayes.tables import Table


def classes_of_all(classes: Any, known: tuple[Any, ...]) -> tuple[Any, ...]:
    """The classes of all parts, from those that a caller names and those known before; they must agree."""
    if classes is None and not known:
        raise ValueError(
            "classes must be passed on the first call to partial_fit: every label that can occur"
        )
    named = known if classes is None else infer_classes(classes)[0]
    if known and set(named) != set(known):
        raise ValueError(
            f"classes={list(named)} is not the same as on the last call to partial_fit, or in the schema: "
            f"{list(known)}"
        )
    if len(named) < 2:
        raise ValueError(f"classes names {list(named)}; a classifier needs at least two classes")
    return known or named


def refuse_counting(kinds: Any) -> None:
    """A column's kind must not depend on how many values it has."""
    rules = [kinds] if isinstance(kinds, str) else kinds.values() if isinstance(kinds, dict) else kinds
    if "paper" in rules:
        raise ValueError(
            "kinds='paper' counts the distinct values of all rows, and partial_fit sees only some of them; "
            "give a schema, for instance schema=Schema.infer(X, y, kinds='paper')"
        )


def kinds_so_far(schema: Schema) -> dict[str, str]:
    """The kinds of the columns that had a value."""
    return {column.name: column.kind for column in schema.columns if not column.empty}


def beyond_clip(table: Table, schema: Schema) -> str | None:
    """The name of a column with values that clipping would have changed, had all rows been known."""
    if schema.clip is None:
        return None
    for _, block in passes.Raw(replace(schema, clip=None), table).blocks(passes.FRAME_ROWS):
        far = np.abs(block.rows().values) > schema.clip
        if far.any():
            return schema.names[schema.continuous[int(np.argmax(far.any(axis=0)))]]
    return None
