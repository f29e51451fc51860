"""What is known of a kind of column: how it reads values, encodes and decodes them, and how two tables' become one.

The first kind, numbers as they are, is here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from peerbayes.data.table import Scalar, all_text, numbers_of, set_differences, union
from peerbayes.errors import SchemaError

# A column whose deviation is below this share of its location is constant: the rest is rounding.
ROUNDING = 1e-13

Column = Any  # `peerbayes.data.column.Column`, which asks its kind


@dataclass(frozen=True)
class Kind:
    """A kind of column: encoded as a number (dense) or as one of several cells, which is all that families see."""

    name: ClassVar[str]
    dense: ClassVar[bool]
    """Whether rows hold a standardised number for it, and not the index of a cell."""
    reads_numbers: ClassVar[bool]
    """Whether its values are numbers, of which infinite ones are refused."""
    plain: ClassVar[bool] = False
    """Whether numbers are standardised as they are, so that those of an array need no pass of their own."""
    leaves_text: ClassVar[bool] = True
    """Whether `kinds` may name it for all columns, which says it of numbers alone."""
    needs_edges: ClassVar[bool] = False
    """Whether peers agree on edges for it, from its mean and deviation on."""
    needs_labels: ClassVar[bool] = False
    """Whether these edges depend on the classes of the rows."""
    public_facts: ClassVar[tuple[str, ...]] = ()
    """What members may write down of such a column in an agreement, beside whether values may be missing."""
    needs_all_rows: ClassVar[str] = ""
    """What inference needs of all rows, so that it cannot be made part by part; empty: nothing but sums."""
    model: ClassVar[str]
    """What it is in each class: "gaussian", "poisson" or "cells". A family says which of them it takes."""
    scale_of_numbers: ClassVar[str] = ""
    """What its numbers are of the table's values, where they are something else: their means are those of it."""

    # --- a column of this kind -------------------------------------------------------------------------

    def check(self, column: Column) -> None:
        """Refuse a column that is not described as this kind needs it."""

    def is_empty(self, column: Column) -> bool:
        """Whether nothing is known of the column: every value was missing, and nothing was declared."""
        return not column.categories and column.count == 0

    def is_constant(self, column: Column) -> bool:
        """Whether all values of a column that is not empty were one, or are taken for one."""
        return bool(column.constant)

    def cells(self, column: Column) -> int:
        """Return the number of cells; one without any value keeps a single empty cell."""
        return max(1, len(self.labels(column)))

    def labels(self, column: Column) -> tuple[Scalar, ...]:
        """Return what each cell is called where people read it."""
        return column.categories

    def identities(self, column: Column) -> tuple[Hashable, ...]:
        """Return what each cell is: cells of two tables with the same identity are the same."""
        return column.categories

    # --- rows ------------------------------------------------------------------------------------------

    def numbers(self, column: Column, values: np.ndarray, row: Callable[[int], int] = int) -> np.ndarray:
        """Return the numbers that are standardised, or sorted into cells, NaN where missing: [n] -> [n].

        `row` gives the number of a row in the user's table, for errors.
        """
        raise NotImplementedError

    def codes(self, column: Column, values: np.ndarray) -> np.ndarray:
        """Return the cell of each of the `values`, −1 where it is missing or unknown: [n] -> [n]."""
        raise NotImplementedError

    def decoded(self, column: Column, encoded: np.ndarray, rng: np.random.Generator | None) -> Any:
        """Return values of the table from cells, or from numbers that are no longer standardised: [n] -> [n].

        `rng` draws where a cell stands for several values.
        """
        raise NotImplementedError

    def log_measure(self, column: Column, numbers: np.ndarray) -> Any:
        """Return log p(numbers, standardised) − log p(values of the table): a number or [n], for dense kinds."""
        return math.log(column.scale)

    # --- what values say of a column -------------------------------------------------------------------

    def inferred(
        self,
        column: Column,
        values: np.ndarray,
        weights: np.ndarray | None,
        declared: list[Any] | None,
        labels: np.ndarray | None = None,
    ) -> Column | None:
        """Return the column as its values [n] describe it, or None where their moments do: see `with_moments`.

        declared  the categories that the table names
        labels    [n] the class of each row, −1 where it is unknown; None: nobody knows
        """
        return None

    def with_moments(
        self, column: Column, count: float, mean: float, variance: float, low: float, high: float
    ) -> Column:
        """Return the column with units from the moments and the range of its numbers."""
        return replace(column, **units(column.name, count, mean, variance, low, high))

    def with_units(self, column: Column, mean: float, deviation: float) -> Column:
        """Return the column with units from a mean and a deviation; one that does not vary has the scale 1."""
        constant = deviation <= ROUNDING * abs(mean)
        return replace(column, location=mean, scale=1.0 if constant else deviation, constant=constant)

    def with_deviation(self, column: Column, deviation: float) -> Column:
        """Return a column whose mean is known with units from the deviation of its numbers as well."""
        return self.with_units(column, column.location, deviation)

    # --- two tables ------------------------------------------------------------------------------------

    def known(self, column: Column, other: Column) -> Column:
        """Return the column with what the `other`, of prior knowledge, knows beside; units stay."""
        return column

    def merged(self, mine: Column, theirs: Column) -> Column:
        """Return one column for both tables, of which neither is empty: the union of categories, pooled units."""
        categories = union(mine.categories, theirs.categories)
        if mine.count is None or theirs.count is None:  # given explicitly: unchanged
            return replace(mine if mine.count is None else theirs, categories=categories)
        count = mine.count + theirs.count
        if _units(mine) == _units(
            theirs
        ):  # nothing to pool, and no rounding that would change the fingerprint
            return replace(mine, categories=categories, count=count)
        share = theirs.count / count
        gap = theirs.location - mine.location
        within = (1 - share) * _variance(mine) + share * _variance(theirs)
        variance = within + share * (1 - share) * gap * gap
        if not math.isfinite(variance):
            raise SchemaError(
                f"column {mine.name!r} lies at {mine.location:.3g} in the first and at {theirs.location:.3g} in the "
                "second: too far apart to be pooled. Divide the column by a constant"
            )
        deviation = math.sqrt(variance)
        return replace(
            mine,
            categories=categories,
            location=mine.location + share * gap,
            scale=deviation or 1.0,
            count=count,
            constant=deviation == 0,
        )

    def differences(self, mine: Column, theirs: Column) -> list[str]:
        """List the differences between two columns of this kind; "! " marks those that prevent merging."""
        name = mine.name
        differences = set_differences(f"column {name!r}: category", mine.categories, theirs.categories)
        if differences and all_text(mine.categories) != all_text(theirs.categories):
            differences = [
                f"! column {name!r} holds text on one side, numbers on the other: {differences[0]}"
            ]
        if mine.location != theirs.location or mine.scale != theirs.scale:
            fixed = mine.count is None and theirs.count is None
            differences.append(
                f"{'! ' if fixed else ''}column {name!r}: location {mine.location:.6g} and scale {mine.scale:.6g} "
                f"in the first, {theirs.location:.6g} and {theirs.scale:.6g} in the second"
            )
        return differences


def refuse_infinite(name: str, low: float, high: float) -> None:
    """Refuse a column whose lowest or highest number is infinite."""
    if not (math.isfinite(low) and math.isfinite(high)):
        raise SchemaError(
            f"column {name!r} holds infinity (inf); expected finite numbers, or nothing for a missing value"
        )


def units(name: str, count: float, mean: float, variance: float, low: float, high: float) -> dict[str, Any]:
    """Return the fields of a column that follow from the moments and the range of its numbers."""
    if count == 0:
        return {"count": 0.0}
    refuse_infinite(name, low, high)
    if not (math.isfinite(mean) and math.isfinite(variance)):
        raise SchemaError(
            f"column {name!r} holds values as large as {max(abs(low), abs(high)):.3g}, or the weights are "
            "as large: their squares overflow. Divide by a constant"
        )
    deviation = math.sqrt(variance)
    constant = low == high or deviation == 0
    return {
        "location": low if constant else mean,
        "scale": 1.0 if constant else deviation,
        "count": count,
        "constant": constant,
    }


def _units(column: Column) -> tuple[float, float, bool]:
    return column.location, column.scale, column.constant


def _variance(column: Column) -> float:
    return 0.0 if column.constant else column.scale**2


def category_values(column: Column, codes: np.ndarray) -> Any:
    """Return the category of each code, None for codes without one: [n] -> a Series [n]."""
    import pandas as pd

    categories = column.categories
    return pd.Series([categories[code] if 0 <= code < len(categories) else None for code in codes])


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
