"""One column of a table: its kind, its categories, and what standardises it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from peerbayes.errors import SchemaError
from peerbayes.tables import numbers_of

Kind = Literal["continuous", "discrete"]
Scalar = str | bool | int | float


@dataclass(frozen=True)
class Column:
    """One column. A continuous column with categories is label-encoded text: its value is the category's index."""

    name: str
    kind: Kind
    categories: tuple[Scalar, ...] = ()
    location: float = 0.0
    scale: float = 1.0
    count: float = 1.0
    """Rows behind location and scale (weights added up), so that two schemas are pooled exactly; 0: no value."""
    constant: bool = False
    """Every value was the location; the scale of 1 is a convention."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise SchemaError(f"a column is named {self.name!r}; expected text")
        if self.kind not in ("continuous", "discrete"):
            raise SchemaError(f"column {self.name!r} is {self.kind!r}; expected 'continuous' or 'discrete'")
        if not (math.isfinite(self.location) and math.isfinite(self.scale) and self.scale > 0):
            raise SchemaError(
                f"column {self.name!r} has location {self.location} and scale {self.scale}; "
                "expected finite numbers and a positive scale"
            )
        object.__setattr__(self, "categories", tuple(scalar(value, self.name) for value in self.categories))
        if len(set(self.categories)) < len(self.categories):
            raise SchemaError(f"column {self.name!r} names a category twice: {list(self.categories)}")

    @property
    def empty(self) -> bool:
        """Nothing is known of it: every value was missing, and no category was declared."""
        return not self.categories and self.count == 0

    def codes(self, values: np.ndarray) -> np.ndarray:
        """The index of each value's category, -1 where it is missing or unknown: [n] -> [n]."""
        if not self.categories:
            return np.full(values.shape, -1, dtype=np.int32)
        if values.dtype.kind in "fiub" and not any(isinstance(value, str) for value in self.categories):
            known = np.asarray(self.categories, dtype=np.float64)
            order = np.argsort(known)
            place = np.minimum(np.searchsorted(known[order], values), known.size - 1)
            return np.where(known[order][place] == values, order[place], -1).astype(np.int32)
        import pandas as pd

        return (
            pd.Index(self.categories, dtype=object)
            .get_indexer(pd.Index(values, dtype=object))
            .astype(np.int32)
        )

    def numbers(self, values: np.ndarray) -> np.ndarray:
        """A continuous column as float64 in its own units, NaN where missing."""
        if self.categories:
            codes = self.codes(values)
            return np.where(codes < 0, np.nan, codes)
        return numbers_of(values, self.name)


def scalar(value: Any, where: str) -> Scalar:
    """A category or class as plain text, boolean or number; 1.0 and 1 are the same category."""
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
    """Categories or classes in a stable order: numbers first, then text."""
    return tuple(sorted(values, key=lambda value: (isinstance(value, str), value)))


def union(first: tuple[Scalar, ...], second: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    """All values of both; an order that both share is kept."""
    return first if first == second else ordered(set(first) | set(second))


def merge_columns(mine: Column, theirs: Column) -> Column:
    if mine.empty or theirs.empty:
        return theirs if mine.empty else mine
    categories = union(mine.categories, theirs.categories)
    if mine.kind == "discrete":
        return replace(mine, categories=categories, count=mine.count + theirs.count)
    count = mine.count + theirs.count
    share = theirs.count / count
    gap = theirs.location - mine.location
    within = (1 - share) * _variance(mine) + share * _variance(theirs)
    deviation = math.sqrt(within + share * (1 - share) * gap**2)
    return replace(
        mine,
        categories=categories,
        location=mine.location + share * gap,
        scale=deviation or 1.0,
        count=count,
        constant=deviation == 0,
    )


def _variance(column: Column) -> float:
    return 0.0 if column.constant else column.scale**2


def column_differences(mine: Column, theirs: Column) -> list[str]:
    name = mine.name
    if mine.empty or theirs.empty:
        return [] if mine == theirs else [f"column {name!r} has no value on one side"]
    if mine.kind != theirs.kind:
        return [f"! column {name!r} is {mine.kind} in the first, {theirs.kind} in the second"]
    if mine.kind == "continuous" and bool(mine.categories) != bool(theirs.categories):
        return [f"! column {name!r} is label-encoded text on one side only"]
    lines = set_differences(f"column {name!r}: category", mine.categories, theirs.categories)
    if mine.kind == "continuous" and lines:
        return [f"! {line}, and the column is label-encoded: the codes differ" for line in lines]
    if mine.location != theirs.location or mine.scale != theirs.scale:
        lines.append(
            f"column {name!r}: location {mine.location:.6g} and scale {mine.scale:.6g} in the first, "
            f"{theirs.location:.6g} and {theirs.scale:.6g} in the second"
        )
    return lines


def set_differences(what: str, mine: tuple[Scalar, ...], theirs: tuple[Scalar, ...]) -> list[str]:
    lines = [f"{what} {value!r} only in the first" for value in mine if value not in theirs]
    lines += [f"{what} {value!r} only in the second" for value in theirs if value not in mine]
    if not lines and mine != theirs:
        lines.append(f"{what} order: {list(mine)} against {list(theirs)}")
    return lines


def mixed(values: tuple[Scalar, ...]) -> bool:
    return len({isinstance(value, str) for value in values}) > 1
