"""Links and crosses of columns that members declare, instead of learning them from rows.

    structure = [["marital-status", "relationship"], ["relationship", "sex"]]

For `tan` and `kdb` a pair is a parent and its child; for `ga2m` it is crossed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from peerbayes.data.arguments import refusal
from peerbayes.data.crosses import Cross, grouped
from peerbayes.data.schema import Schema
from peerbayes.errors import StructureError
from peerbayes.model.families.structures import Parents, named
from peerbayes.model.sources import columns_of

Structure = tuple[tuple[str, str], ...]

EXPECTED = 'a list of pairs of columns, such as [["age", "income"]]'

# Parents of a column, apart from the class, by the name of the family.
MOST_PARENTS = {"tan": 1, "kdb": 2}


def structure_in(name: str, value: Any) -> Structure:
    """Return a declared structure as plain values; an error says what arrived and what was expected."""
    pairs = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise refusal(name, value, EXPECTED)
    if not all(isinstance(side, str) for pair in pairs for side in pair) or any(a == b for a, b in pairs):
        raise refusal(name, value, EXPECTED)
    return tuple((first, second) for first, second in pairs)


def declared_parents(structure: Structure, family: str, schema: Schema) -> Parents:
    """Return the parents of every column, continuous ones first; StructureError where they do not fit the family."""
    parents: dict[str, list[str]] = {}
    for parent, child in structure:
        parents.setdefault(child, []).append(parent)
    most = MOST_PARENTS[family]
    for child, of_child in parents.items():
        if len(of_child) > most:
            raise StructureError(
                f"structure gives {child!r} the parents {', '.join(map(repr, of_child))}; expected at most {most}, as "
                f"{family} has"
            )
    continuous = [schema.names[j] for j in schema.continuous]
    return named(parents, columns_of(schema), continuous)


def declared_crosses(structure: Structure, schema: Schema, groups: int) -> tuple[Cross, ...]:
    """Return the crosses of pairs of columns, each side in so many groups of neighbouring cells."""
    cells = {schema.names[j]: size for j, size in zip(schema.discrete, schema.cardinalities, strict=False)}
    return tuple(
        Cross((first, second), (_groups(cells, first, groups), _groups(cells, second, groups)))
        for first, second in structure
    )


def _groups(cells: dict[str, int], name: str, most: int) -> tuple[int, ...]:
    if name not in cells:
        raise StructureError(
            f"structure crosses {name!r}; expected columns of cells, discrete or binned: {', '.join(cells)}"
        )
    return neighbouring(cells[name], most)


def neighbouring(cells: int, most: int) -> tuple[int, ...]:
    """Return the group of each of so many cells: neighbours, about equally many in each of at most so many groups."""
    return grouped(np.ones(cells), most, ordered=True)
