"""Categories, classes and numbers as plain Python values, in a stable order."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from peerbayes.errors import SchemaError

Scalar = str | bool | int | float

LARGEST = sys.float_info.max

# Integers within a range of this many values are counted in a table; others are hashed.
SMALL_RANGE = 1 << 16


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


def set_differences(subject: str, mine: tuple[Scalar, ...], theirs: tuple[Scalar, ...]) -> list[str]:
    """List the categories or classes that only one side has, or that their order differs."""
    differences = [f"{subject} {value!r} only in the first" for value in mine if value not in theirs]
    differences += [f"{subject} {value!r} only in the second" for value in theirs if value not in mine]
    if not differences and mine != theirs:
        differences.append(f"{subject} order: {list(mine)} against {list(theirs)}")
    return differences


def all_text(values: tuple[Scalar, ...]) -> bool:
    return all(isinstance(value, str) for value in values)


def distinct(values: np.ndarray, name: str) -> tuple[Scalar, ...]:
    """Return the distinct values, in order."""
    counted = value_counts(values) if values.dtype.kind in "iu" and values.size else None
    if counted is not None:
        low, counts = counted
        return tuple((np.flatnonzero(counts) + low).tolist())
    import pandas as pd

    return ordered({scalar(value, f"column {name!r}") for value in pd.unique(values)})


def value_counts(values: np.ndarray) -> tuple[int, np.ndarray] | None:
    """Return the smallest integer and the counts of it and its successors; None where their range is too wide."""
    low, high = int(values.min()), int(values.max())
    if high - low >= SMALL_RANGE or abs(low) >= 2**62:
        return None
    return low, np.bincount(values if low == 0 else values.astype(np.int64) - low, minlength=high - low + 1)
