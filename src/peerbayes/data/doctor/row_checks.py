"""Checks of whole rows: which of them occur more than once, and not by chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from peerbayes.data.doctor.column_checks import Checked
from peerbayes.data.doctor.findings import NOTE, Finding

# Rows that may equal others by chance, and the share of repeated rows from which they are more than a note.
CHANCE_ROWS, MANY_REPEATS = 2, 0.01

# A column tells rows apart where at least this share of the different rows, of so many, have a value of their own. It
# holds no categories if its numbers are not whole, or if a row occurs no more often than this on average.
TELLING_SHARE, TELLING_ROWS, MOST_COPIES = 0.5, 20, 5


class Repeats(NamedTuple):
    """Rows of a table that equal an earlier one."""

    first: np.ndarray
    """The rows without those, in order."""
    rows: int
    """All rows."""
    telling: bool
    """Whether a column tells rows apart, so that no row is like another by chance."""
    rare: bool
    """Whether there are so many combinations of values that few rows would be alike by chance."""

    @classmethod
    def of(cls, columns: Sequence[Checked], hashes: np.ndarray) -> Repeats:
        """Return the repeated rows of a table by some of its columns and a number for each row: [n]."""
        first = np.sort(np.unique(hashes, return_index=True)[1])
        few_copies = hashes.size <= MOST_COPIES * first.size
        telling = first.size >= TELLING_ROWS and any(
            column.distinct >= TELLING_SHARE * first.size and (few_copies or column.fractional)
            for column in columns
        )
        combinations = sum(math.log(column.distinct) for column in columns)
        return cls(first, hashes.size, telling, combinations > 2.0 * math.log(max(first.size, 1)))

    def among(self, columns: Sequence[Checked]) -> list[Checked]:
        """Return columns with each row once, where that is not by chance; else as they are."""
        if not self.telling or self.first.size == self.rows:
            return list(columns)
        return [column.of_rows(self.first) for column in columns]

    def labels(self, classes: np.ndarray) -> np.ndarray:
        """Return the classes [n] of the same rows."""
        return classes[self.first] if self.telling else classes

    def findings(self) -> list[Finding]:
        """Return the finding of repeated rows, if there are more than by chance."""
        count = self.rows - self.first.size
        if count <= CHANCE_ROWS or not (self.telling or self.rare):
            return []
        repeated = np.ones(self.rows, dtype=bool)
        repeated[self.first] = False
        seen = (
            f"{count:,} of {self.rows:,} rows equal an earlier one, first row {int(np.argmax(repeated)) + 1}"
        )
        many = self.telling and count >= MANY_REPEATS * self.rows
        return [Finding.of("repeated-rows", None, seen, None if many else NOTE)]


def row_hashes(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Return a number for each row that is the same for equal rows: columns [n] -> [n]."""
    import pandas as pd

    total = np.zeros(columns[0].size, dtype=np.uint64)
    for values in columns:
        numbers = values.dtype.kind in "iufb"
        plain = values.astype(np.float64) + 0.0 if numbers else np.array(list(map(str, values)), dtype=object)
        total = total * np.uint64(0x100000001B3) + pd.util.hash_array(plain, categorize=False)
    return total
