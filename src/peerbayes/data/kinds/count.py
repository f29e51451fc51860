"""Counts of events: a Poisson distribution in each class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from scipy.special import gammaln

from peerbayes.data.kinds.kind import Column, Kind, refuse_infinite
from peerbayes.data.table import numbers_of
from peerbayes.errors import SchemaError


class Count(Kind):
    """Whole numbers from 0 on. Location 0 keeps them counts; the scale is 1 + mean.

    So a frequent event has z near 1, and a rare one that happens once has z near 1 too, far from where values are
    clipped. The mean of pooled rows follows from those of the tables.
    """

    name: ClassVar[str] = "count"
    dense: ClassVar[bool] = True
    reads_numbers: ClassVar[bool] = True
    public_facts: ClassVar[tuple[str, ...]] = ("mean", "sd")
    model: ClassVar[str] = "poisson"

    def check(self, column: Column) -> None:
        if column.categories or column.location != 0 or column.scale < 1:
            raise SchemaError(
                f"column {column.name!r} is a count with location {column.location:g} and scale {column.scale:g}; "
                "expected location 0, scale 1 + mean, and no categories"
            )

    def numbers(self, column: Column, values: np.ndarray, row: Callable[[int], int] = int) -> np.ndarray:
        numbers = numbers_of(values, column.name, self.name)
        wrong = (numbers < 0) | ((numbers != np.floor(numbers)) & ~np.isnan(numbers))
        if wrong.any():
            first = int(np.argmax(wrong))
            raise SchemaError(
                f"column {column.name!r} is a count, but holds {numbers[first]:g} in row {row(first)}; expected whole "
                "numbers from 0 on. Correct the value, leave it empty, or make the column continuous or binned with "
                f"kinds={{{column.name!r}: 'continuous'}}"
            )
        return numbers

    def decoded(self, column: Column, encoded: np.ndarray, rng: np.random.Generator | None) -> Any:
        return np.rint(np.maximum(encoded, 0.0))

    def log_measure(self, column: Column, numbers: np.ndarray) -> Any:
        return gammaln(numbers + 1.0)  # θ leaves out −log x!, which is the same for all classes

    def with_moments(
        self, column: Column, count: float, mean: float, variance: float, low: float, high: float
    ) -> Column:
        if count == 0:
            return column
        refuse_infinite(column.name, low, high)
        return replace(self.with_units(column, mean, 0.0), count=count)

    def with_units(self, column: Column, mean: float, deviation: float) -> Column:
        """Return the column with the scale 1 + mean; where nothing was ever counted it is constant."""
        return replace(column, location=0.0, scale=1.0 + mean, constant=mean == 0)

    def with_deviation(self, column: Column, deviation: float) -> Column:
        return column

    def merged(self, mine: Column, theirs: Column) -> Column:
        if mine.count is None or theirs.count is None or mine.scale == theirs.scale:
            return super().merged(mine, theirs)
        count = mine.count + theirs.count
        share = theirs.count / count
        mean = mine.scale + share * (theirs.scale - mine.scale) - 1.0
        return replace(self.with_units(mine, mean, 0.0), count=count)
