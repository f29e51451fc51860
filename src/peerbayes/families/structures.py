"""Who depends on whom: the parents of each column beside the class, as numbers of columns.

Columns count continuous ones first (0 … Dc − 1), then discrete ones (Dc … D − 1). A discrete column has discrete
parents only: a continuous value can be Gaussian given a category, but a category is not linear in a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from peerbayes.errors import StructureError

Parents = tuple[tuple[int, ...], ...]


def checked(parents: Sequence[Sequence[int]], continuous: int, columns: int) -> Parents:
    """Parents of every column, sorted, if that is a structure; StructureError if it is not."""
    if len(parents) != columns:
        raise StructureError(f"parents of {len(parents)} columns; expected those of {columns}")
    found = tuple(tuple(sorted({int(parent) for parent in own})) for own in parents)
    for column, own in enumerate(found):
        for parent in own:
            if not 0 <= parent < columns:
                raise StructureError(
                    f"column {column} has the parent {parent}; expected one of 0 to {columns - 1}"
                )
            if column >= continuous > parent:
                raise StructureError(
                    f"column {column} is discrete and has the continuous parent {parent}; a discrete column takes "
                    "discrete parents only: turn the link round, or make the parent discrete"
                )
    order(found)
    return found


def order(parents: Parents) -> list[int]:
    """The columns, parents before children; StructureError where there is a cycle."""
    left = {column: set(own) for column, own in enumerate(parents)}
    found: list[int] = []
    while left:
        free = sorted(column for column, own in left.items() if not own)
        if not free:
            raise StructureError(f"the parents go round in a circle: {cycle(parents)}; expected none")
        found += free
        for column in free:
            del left[column]
        for own in left.values():
            own.difference_update(free)
    return found


def cycle(parents: Sequence[Sequence[int]]) -> str:
    """One circle, for an error: "2 → 0 → 2"."""
    for start in range(len(parents)):
        path, at = [start], start
        while True:
            ahead = [parent for parent in parents[at] if _reaches(parents, parent, start)]
            if not ahead:
                break
            at = ahead[0]
            path.append(at)
            if at == start:
                return " → ".join(map(str, path))
    return "?"


def _reaches(parents: Sequence[Sequence[int]], source: int, target: int) -> bool:
    seen, ahead = set(), [source]
    while ahead:
        at = ahead.pop()
        if at == target:
            return True
        if at not in seen:
            seen.add(at)
            ahead += parents[at]
    return False


def named(given: Any, names: Sequence[str], continuous: Sequence[str]) -> Parents:
    """A mapping of columns to their parents, or a networkx DiGraph, as numbers. `names`: continuous ones first."""
    if hasattr(given, "predecessors"):
        given = {node: list(given.predecessors(node)) for node in given.nodes}
    if not isinstance(given, Mapping):
        raise StructureError(
            f"the structure is {given!r:.80}; expected a networkx DiGraph, or a mapping of columns to their parents"
        )
    places = {name: place for place, name in enumerate(names)}
    parents: list[list[int]] = [[] for _ in names]
    for name, own in given.items():
        own = [own] if isinstance(own, str | int) else list(own)
        for each in (name, *own):
            if str(each) not in places:
                raise StructureError(f"the structure names {each!r}; expected columns: {', '.join(names)}")
            if str(name) not in continuous and str(each) in continuous and each is not name:
                raise StructureError(
                    f"{name!r} is discrete and has the continuous parent {each!r}; a discrete column takes discrete "
                    "parents only: turn the link round, or make the parent discrete with kinds="
                )
        parents[places[str(name)]] = [places[str(each)] for each in own]
    try:
        return checked(parents, len(continuous), len(names))
    except StructureError:
        round_trip = cycle(parents)
        shown = (
            " → ".join(names[int(place)] for place in round_trip.split(" → ")) if "→" in round_trip else ""
        )
        raise StructureError(f"the parents go round in a circle: {shown}; expected none") from None
