"""The columns of a table that is seen part by part: the same as of the whole table, to rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from peerbayes.data.column import Column, merge_columns
from peerbayes.data.infer import infer_columns, open_text, present_rows, refuse_text, rules_of
from peerbayes.data.kinds import KINDS
from peerbayes.data.table import Table


class ColumnsOfParts:
    """What `infer_columns` says of all parts together; kinds that need all rows at once are none of its business."""

    def __init__(self, kinds: str | Mapping[str, str] | Sequence[str]) -> None:
        self._kinds = kinds
        self._columns: tuple[Column, ...] = ()
        self._texts: dict[
            int, int
        ] = {}  # rows with a value, of columns of text that nobody called categories

    def add(self, table: Table, weights: np.ndarray | None = None) -> None:
        """Look at a part; `weights` [n] are positive."""
        columns = infer_columns(table, self._kinds, weights, part=True)
        for j, (rule, column) in enumerate(zip(rules_of(table, self._kinds), columns, strict=True)):
            if open_text(table, j, rule, column):
                self._texts[j] = self._texts.get(j, 0) + present_rows(table, j)
        self._columns = (
            tuple(merge_columns(*pair) for pair in zip(self._columns, columns, strict=True))
            if self._columns
            else columns
        )

    def columns(self) -> tuple[Column, ...]:
        """Return the columns; text that is an identifier or a date is refused."""
        for j, rows in self._texts.items():
            refuse_text(self._columns[j], rows)
        return self._columns


def needs_all_rows(kinds: str | Mapping[str, str] | Sequence[str]) -> tuple[str, str] | None:
    """Return the first kind that `kinds` names which needs all rows at once, and what it needs of them, if any."""
    rules = [kinds] if isinstance(kinds, str) else kinds.values() if isinstance(kinds, Mapping) else kinds
    needs = {"paper": "the distinct values"} | {name: kind.needs_all_rows for name, kind in KINDS.items()}
    return next(((rule, needs[rule]) for rule in rules if needs.get(rule)), None)
