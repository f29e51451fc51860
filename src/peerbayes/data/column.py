"""One column of a table: its kind, its categories, location and scale."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from peerbayes.data.table import missing_of, numbers_of
from peerbayes.errors import SchemaError, SchemaMismatch

Kind = Literal["continuous", "discrete"]
Scalar = str | bool | int | float

LARGEST = sys.float_info.max

# Integers within a range of this many values are counted in a table; others are hashed.
SMALL_RANGE = 1 << 16

# A column whose deviation is below this share of its location is constant: the rest is rounding.
ROUNDING = 1e-13


@dataclass(frozen=True)
class Column:
    """One column. A continuous one with categories is label-encoded text: its value is the category's index."""

    name: str
    """As the table has it."""
    kind: Kind
    """"continuous" or "discrete"."""
    categories: tuple[Scalar, ...] = ()
    """Of a discrete column, in order."""
    location: float = 0.0
    """What is subtracted from a value: the mean of a continuous column."""
    scale: float = 1.0
    """What the difference is divided by: the standard deviation."""
    count: float | None = None
    """Rows behind location and scale (sum of weights), so that two schemas are pooled exactly; 0: no value was
    observed; None: location and scale were given explicitly, and pooling must not change them."""
    constant: bool = False
    """Every value was the location; the scale of 1 is a convention."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise SchemaError(f"a column is named {self.name!r}; expected text")
        if self.kind not in ("continuous", "discrete"):
            raise SchemaError(f"column {self.name!r} is {self.kind!r}; expected 'continuous' or 'discrete'")
        where = f"column {self.name!r}"
        object.__setattr__(self, "location", number(self.location, f"the location of {where}"))
        object.__setattr__(self, "scale", number(self.scale, f"the scale of {where}"))
        if self.count is not None:
            object.__setattr__(self, "count", number(self.count, f"the count of {where}"))
        if self.scale <= 0 or (self.count or 0.0) < 0 or not isinstance(self.constant, bool):
            raise SchemaError(
                f"{where} has scale {self.scale}, count {self.count} and constant {self.constant!r}; "
                "expected a positive scale, a count of 0 or more, and true or false"
            )
        object.__setattr__(self, "categories", scalars(self.categories, where))
        if self.kind == "discrete" and not self.categories and self.count != 0:
            raise SchemaError(f"{where} is discrete and has no category; name them all")

    @property
    def empty(self) -> bool:
        """Whether nothing is known of it: every value was missing, and no category was declared."""
        return not self.categories and self.count == 0

    def codes(self, values: np.ndarray) -> np.ndarray:
        """Return the category index of each of the `values`, −1 where it is missing or unknown: [n] -> [n].

        Text where the categories are numbers, or the other way round, is a mistake and not an unknown category.
        """
        if not self.categories:
            return np.full(values.shape, -1, dtype=np.int32)
        if self._integers is not None and np.can_cast(values.dtype, np.int64):
            low, table = self._integers
            position = values.astype(np.int64) - low
            inside = position.view(np.uint64) < table.size  # negative ones are very large here
            return (
                table[position]
                if inside.all()
                else np.where(inside, table[np.where(inside, position, 0)], -1)
            )
        if values.dtype.kind in "fiub" and not any(map(_needs_hashing, self.categories)):
            categories = np.asarray(self.categories, dtype=np.float64)
            order = np.argsort(categories)
            position = np.minimum(np.searchsorted(categories[order], values), categories.size - 1)
            return np.where(categories[order][position] == values, order[position], -1).astype(np.int32)
        import pandas as pd

        codes = pd.Index(self.categories, dtype=object).get_indexer(pd.Index(values, dtype=object))
        strange = (codes < 0) & ~missing_of(values)
        if strange.any():
            self._refuse_other_type(values[np.argmax(strange)])
        return codes.astype(np.int32)

    @cached_property
    def _integers(self) -> tuple[int, np.ndarray] | None:
        """The lowest category and the index of each integer from it on (−1 for none), if all are small integers."""
        if not all(isinstance(category, int) for category in self.categories):
            return None
        low, high = int(min(self.categories)), int(max(self.categories))
        if high - low >= SMALL_RANGE or abs(low) > 2**53:
            return None
        table = np.full(high - low + 1, -1, dtype=np.int32)
        table[np.asarray(self.categories, dtype=np.int64) - low] = np.arange(len(self.categories))
        return low, table

    def _refuse_other_type(self, value: Any) -> None:
        text = [isinstance(category, str) for category in self.categories]
        if isinstance(value, str) != any(text) and any(text) == all(text):
            raise SchemaMismatch(
                f"column {self.name!r} holds {value!r}; its categories are {'text' if any(text) else 'numbers'}, "
                f"like {self.categories[0]!r}. Read the column as the same type everywhere"
            )

    def numbers(self, values: np.ndarray) -> np.ndarray:
        """Return the `values` of a continuous column as float64 in its own units, NaN where missing: [n] -> [n]."""
        if self.categories:
            codes = self.codes(values)
            return np.where(codes < 0, np.nan, codes)
        return numbers_of(values, self.name)


def _needs_hashing(category: Scalar) -> bool:
    """Return whether a category is text, or a number that float64 does not hold exactly."""
    return isinstance(category, str) or abs(category) > 2**53


def number(value: Any, subject: str) -> float:
    """Return a finite number as a plain float; refuse booleans and text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SchemaError(f"{subject} is {value!r}; expected a number")
    if not abs(value) <= LARGEST:
        raise SchemaError(f"{subject} is {value!r:.40}; expected a finite number")
    return float(value) + 0.0  # -0.0 and 0.0 are one number


def scalars(values: Any, where: str) -> tuple[Scalar, ...]:
    """Return categories or classes as plain values, and refuse duplicates."""
    if isinstance(values, str) or not isinstance(values, tuple | list):
        raise SchemaError(f"{where} has the categories {values!r}; expected a list of them")
    plain = tuple(scalar(value, where) for value in values)
    if len(set(plain)) < len(plain):
        raise SchemaError(f"{where} names a category twice: {list(plain)[:20]}")
    return plain


def scalar(value: Any, where: str) -> Scalar:
    """Return a category or class as plain text, boolean or number; 1.0 and 1 are the same category."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise SchemaError(f"{where} has the category {value}; expected text or a finite number")
    if not isinstance(value, str | bool | int | float):
        raise SchemaError(
            f"{where} holds {value!r} of type {type(value).__name__}; "
            "expected text, a number or a boolean (its argument must be a string or a number)"
        )
    return value


def ordered(values: Any) -> tuple[Scalar, ...]:
    """Return categories or classes in a stable order: numbers first, then text."""
    return tuple(sorted(values, key=lambda value: (isinstance(value, str), value)))


def union(first: tuple[Scalar, ...], second: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    """Return all values of both in order, keeping an order that both share. Where True meets 1, it becomes 1."""
    numbers = {value for value in (*first, *second) if not isinstance(value, bool)}
    first, second = (
        tuple(int(v) if isinstance(v, bool) and v in numbers else v for v in s) for s in (first, second)
    )
    return first if first == second else ordered(set(first) | set(second))


def merge_columns(mine: Column, theirs: Column) -> Column:
    """Return one column for both tables: the union of categories, pooled location and scale."""
    if mine.empty and theirs.empty:
        return min(mine, theirs, key=lambda column: column.kind)  # the same from either side
    if mine.empty or theirs.empty:
        return theirs if mine.empty else mine
    categories = union(mine.categories, theirs.categories)
    if mine.count is None or theirs.count is None:  # given explicitly: unchanged
        return replace(mine if mine.count is None else theirs, categories=categories)
    count = mine.count + theirs.count
    if _units(mine) == _units(theirs):  # nothing to pool, and no rounding that would change the fingerprint
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


def _units(column: Column) -> tuple[float, float, bool]:
    return column.location, column.scale, column.constant


def _variance(column: Column) -> float:
    return 0.0 if column.constant else column.scale**2


def with_units(column: Column, location: float, deviation: float) -> Column:
    """Return the column with these units; one that does not vary has the scale 1."""
    constant = deviation <= ROUNDING * abs(location)
    return replace(column, location=location, scale=1.0 if constant else deviation, constant=constant)


def column_differences(mine: Column, theirs: Column) -> list[str]:
    """List the differences between two columns of one name; "! " marks those that prevent merging."""
    name = mine.name
    if mine.empty or theirs.empty:
        return [] if mine == theirs else [f"column {name!r} has no value on one side"]
    if mine.kind != theirs.kind:
        return [f"! column {name!r} is {mine.kind} in the first, {theirs.kind} in the second"]
    if bool(mine.categories) != bool(theirs.categories):
        return [f"! column {name!r} is label-encoded text on one side only"]
    differences = set_differences(f"column {name!r}: category", mine.categories, theirs.categories)
    if mine.kind == "continuous" and differences:
        return [
            f"! {difference}, and the column is label-encoded: the codes differ" for difference in differences
        ]
    if differences and all_text(mine.categories) != all_text(theirs.categories):
        differences = [f"! column {name!r} holds text on one side, numbers on the other: {differences[0]}"]
    if mine.location != theirs.location or mine.scale != theirs.scale:
        fixed = mine.count is None and theirs.count is None
        differences.append(
            f"{'! ' if fixed else ''}column {name!r}: location {mine.location:.6g} and scale {mine.scale:.6g} "
            f"in the first, {theirs.location:.6g} and {theirs.scale:.6g} in the second"
        )
    return differences


def set_differences(subject: str, mine: tuple[Scalar, ...], theirs: tuple[Scalar, ...]) -> list[str]:
    """List the categories or classes that only one side has, or that their order differs."""
    differences = [f"{subject} {value!r} only in the first" for value in mine if value not in theirs]
    differences += [f"{subject} {value!r} only in the second" for value in theirs if value not in mine]
    if not differences and mine != theirs:
        differences.append(f"{subject} order: {list(mine)} against {list(theirs)}")
    return differences


def all_text(values: tuple[Scalar, ...]) -> bool:
    return all(isinstance(value, str) for value in values)
