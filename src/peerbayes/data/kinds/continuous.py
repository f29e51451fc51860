"""Numbers as they are: a Gaussian in each class. Text that is label-encoded is its category's index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from peerbayes.data.kinds.kind import Column, Kind, category_values
from peerbayes.data.scalars import set_differences
from peerbayes.data.table import numbers_of


class Continuous(Kind):
    """Numbers that are standardised by their mean and deviation; with categories, the index of a text."""

    name: ClassVar[str] = "continuous"
    dense: ClassVar[bool] = True
    reads_numbers: ClassVar[bool] = True
    plain: ClassVar[bool] = True
    leaves_text: ClassVar[bool] = False
    public_facts: ClassVar[tuple[str, ...]] = ("mean", "sd", "range")
    model: ClassVar[str] = "gaussian"

    def numbers(self, column: Column, values: np.ndarray, row: Callable[[int], int] = int) -> np.ndarray:
        if column.categories:
            codes = column.codes(values)
            return np.where(codes < 0, np.nan, codes)
        return numbers_of(values, column.name, self.name)

    def codes(self, column: Column, values: np.ndarray) -> np.ndarray:
        return column.category_codes(values)

    def decoded(self, column: Column, encoded: np.ndarray, rng: np.random.Generator | None) -> Any:
        if not column.categories:
            return encoded
        nearest = np.clip(np.rint(encoded), 0, len(column.categories) - 1)
        return category_values(column, np.where(np.isnan(nearest), -1, nearest).astype(int))

    def differences(self, mine: Column, theirs: Column) -> list[str]:
        if bool(mine.categories) != bool(theirs.categories):
            return [f"! column {mine.name!r} is label-encoded text on one side only"]
        subject = f"column {mine.name!r}: category"
        if differences := set_differences(subject, mine.categories, theirs.categories):
            return [f"! {line}, and the column is label-encoded: the codes differ" for line in differences]
        return super().differences(mine, theirs)
