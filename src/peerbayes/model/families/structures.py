"""Structures: the parents of each column apart from the class, as column numbers.

Columns are numbered with continuous ones first (0 … Dc − 1), then discrete ones (Dc … D − 1). A discrete column has
discrete parents only: a continuous value can be Gaussian given a category, but a category is not linear in a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any

from peerbayes.errors import StructureError

Parents = tuple[tuple[int, ...], ...]


def checked(
    parents: Sequence[Sequence[int]], continuous: int, columns: int, names: Sequence[str] | None = None
) -> Parents:
    """Return the parents of every column, sorted; StructureError if they are not a valid structure: see `order`."""
    if len(parents) != columns:
        raise StructureError(f"parents of {len(parents)} columns; expected those of {columns}")
    sorted_parents = tuple(
        tuple(sorted({int(parent) for parent in column_parents})) for column_parents in parents
    )
    for column, column_parents in enumerate(sorted_parents):
        for parent in column_parents:
            if not 0 <= parent < columns:
                raise StructureError(
                    f"column {column} has the parent {parent}; expected one of 0 to {columns - 1}"
                )
            if column >= continuous > parent:
                raise StructureError(
                    f"column {column} is discrete and has the continuous parent {parent}; a discrete column takes "
                    "discrete parents only: reverse the link, or make the parent discrete"
                )
    order(sorted_parents, names)
    return sorted_parents


def order(parents: Parents, names: Sequence[str] | None = None) -> list[int]:
    """Return the columns in topological order, parents first; StructureError if there is a cycle.

    `names` are those of the columns, for the error; None: their numbers.
    """
    try:
        return list(_order(parents))
    except CycleError as error:
        links = " → ".join(str(column) if names is None else names[column] for column in error.args[1][::-1])
        raise StructureError(f"the parents form a cycle: {links}; expected none") from None


@lru_cache(maxsize=256)  # a family is made several times with the same structure
def _order(parents: Parents) -> tuple[int, ...]:
    sorter = TopologicalSorter(dict(enumerate(parents)))
    sorter.prepare()
    ordered: list[int] = []
    while sorter.is_active():
        free = sorted(sorter.get_ready())
        ordered += free
        sorter.done(*free)
    return tuple(ordered)


def named(given: Any, names: Sequence[str], continuous: Sequence[str]) -> Parents:
    """Return a mapping of columns to their parents, or a networkx DiGraph, as column numbers.

    `names` has continuous columns first.
    """
    structure = given
    if hasattr(given, "predecessors"):
        structure = {node: list(given.predecessors(node)) for node in given.nodes}
    if not isinstance(structure, Mapping):
        raise StructureError(
            f"the structure is {structure!r:.80}; expected a networkx DiGraph, or a mapping of columns to their parents"
        )
    index_of = {name: index for index, name in enumerate(names)}
    parents: list[list[int]] = [[] for _ in names]
    for name, column_parents in structure.items():
        column_parents = [column_parents] if isinstance(column_parents, str | int) else list(column_parents)
        for column in (name, *column_parents):
            if str(column) not in index_of:
                raise StructureError(f"the structure names {column!r}; expected columns: {', '.join(names)}")
            if str(name) not in continuous and str(column) in continuous and column is not name:
                raise StructureError(
                    f"{name!r} is discrete and has the continuous parent {column!r}; a discrete column takes discrete "
                    "parents only: reverse the link, or make the parent discrete with kinds="
                )
        parents[index_of[str(name)]] = [index_of[str(column)] for column in column_parents]
    return checked(parents, len(continuous), len(names), names)
