"""Crosses: the joint cells of two columns, as one more column of cells that families see.

    cell of a row = group(x_i)·g_j + group(x_j)          −1 where either value is missing

Cells of a column are gathered in a few groups first, since pairs of cells are many and rows of each are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np

from peerbayes.data.bins import cuts
from peerbayes.data.table import Scalar
from peerbayes.errors import SchemaError


@dataclass(frozen=True)
class Cross:
    """Two columns of a schema that are encoded as cells, and the group of each of their cells."""

    columns: tuple[str, str]
    """Their names."""
    groups: tuple[tuple[int, ...], tuple[int, ...]]
    """The group of each cell of either column: whole numbers from 0 on, each of which occurs."""

    def __post_init__(self) -> None:
        try:
            columns, groups = tuple(self.columns), tuple(tuple(side) for side in self.groups)
            first, second = columns
            valid = len(groups) == 2 and isinstance(first, str) and isinstance(second, str)
            valid = valid and all(side and set(side) == set(range(max(side) + 1)) for side in groups)
        except (TypeError, ValueError):
            valid = False
        if not valid or first == second or any(type(group) is not int for side in groups for group in side):
            raise SchemaError(
                f"a cross has the columns {self.columns!r:.80} and the groups {self.groups!r:.80}; expected two names "
                "that differ, and the group of each of their cells: 0, 1, … without a gap"
            )
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "groups", groups)

    @property
    def name(self) -> str:
        """The names of both columns."""
        return " × ".join(self.columns)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """The number of groups of either column."""
        first, second = (max(side) + 1 for side in self.groups)
        return first, second

    @cached_property
    def cells(self) -> int:
        """The number of joint cells."""
        return self.shape[0] * self.shape[1]

    @cached_property
    def _tables(self) -> tuple[np.ndarray, np.ndarray]:
        """What each cell of either column adds to the joint cell; the last entry is for missing values."""
        rows, columns = (np.array([*side, 0], dtype=np.int32) for side in self.groups)
        return rows * np.int32(self.shape[1]), columns

    def codes(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return the joint cell of each row from the cells of both columns, −1 where one is missing: two [n] -> [n]."""
        rows, columns = self._tables
        joint = rows[first] + columns[second]  # a cell of −1 is the last entry
        absent = (first < 0) | (second < 0)
        if absent.any():
            joint[absent] = -1
        return joint

    def labels(self, first: Sequence[Scalar], second: Sequence[Scalar]) -> tuple[str, ...]:
        """Return what each joint cell is called, from what the cells of both columns are called."""
        rows, columns = (
            group_labels(side, labels) for side, labels in zip(self.groups, (first, second), strict=True)
        )
        return tuple(f"{row}, {column}" for row in rows for column in columns)


def group_labels(groups: Sequence[int], labels: Sequence[Scalar]) -> list[str]:
    """Return what each group of cells is called: its cells, or the first and the last of neighbours."""
    names = []
    for group in range(max(groups) + 1):
        members = [str(label) for label, of in zip(labels, groups, strict=False) if of == group]
        runs = [key for key, _ in groupby(groups)].count(group)
        joined = " or ".join(members) if len(members) < 3 or runs > 1 else f"{members[0]} … {members[-1]}"
        names.append(joined if len(joined) <= 60 else f"{members[0]} and {len(members) - 1} more")
    return names


def grouped(counts: np.ndarray, most: int, ordered: bool) -> tuple[int, ...]:
    """Return the group of each cell, from how many rows lie in each: [r] -> [r], at most so many groups.

    Cells in order are cut where about equally many rows lie in each group; of others the most frequent are groups of
    their own, and the rest is one.
    """
    cells = counts.size
    if cells <= most:
        return tuple(range(cells))
    if ordered:
        after = cuts(counts, most)
        return tuple(int(group) for group in np.searchsorted(after, np.arange(cells)))
    frequent = sorted(sorted(range(cells), key=lambda cell: (-counts[cell], cell))[: most - 1])
    group_of = {cell: group for group, cell in enumerate(frequent)}
    return tuple(group_of.get(cell, most - 1) for cell in range(cells))
