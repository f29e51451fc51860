"""A user's X, read column by column: a pandas DataFrame or a two-dimensional array.

A column is read as one of two types, without copying the table:

    numbers   a float, integer or boolean array; NaN is missing
    objects   an object array of text, numbers or booleans; None and NaN are missing
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from peerbayes.data.arguments import refusal
from peerbayes.errors import SchemaError


@dataclass(frozen=True)
class Table:
    """Named columns of a DataFrame (`frame`) or an array (`array`); the other one is None."""

    names: tuple[str, ...]
    rows: int
    frame: Any = None
    array: np.ndarray | None = None
    labels: tuple[Any, ...] = ()
    """The DataFrame's own column labels; `names` are these as text."""
    numbers: np.ndarray | None = None
    """The row numbers in the user's table, where some rows were left out."""

    @classmethod
    def of(cls, X: Any) -> Table:
        """Read X without copying it; duplicated names and other shapes than two-dimensional are refused."""
        if isinstance(X, Table):
            return X
        if hasattr(X, "iloc") and hasattr(X, "columns"):
            return cls._of_frame(X)
        if hasattr(X, "to_pandas"):
            return cls._of_frame(X.to_pandas())
        try:
            array = np.asarray(X)
        except (TypeError, ValueError) as problem:  # lists of different lengths
            raise refusal("X", X, "a table of rows and columns", SchemaError) from problem
        if array.ndim == 0:
            raise refusal("X", X, "a table of rows and columns", SchemaError)
        if array.ndim != 2:
            raise SchemaError(
                f"X has shape {array.shape}; expected a table of rows and columns. "
                "Reshape one column with X.reshape(-1, 1), one row with X.reshape(1, -1)"
            )
        if array.dtype.kind == "c":
            raise SchemaError(f"Complex data not supported: X has dtype {array.dtype}")
        if array.dtype.kind not in "fiubOU":
            raise SchemaError(f"X has dtype {array.dtype}; expected numbers, booleans or text")
        names = tuple(f"x{j}" for j in range(array.shape[1]))
        return cls(names, array.shape[0], array=_plain(array), labels=names)

    @classmethod
    def _of_frame(cls, frame: Any) -> Table:
        labels = tuple(frame.columns)
        names = tuple(map(str, labels))
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise SchemaError(
                f"the table has several columns named {', '.join(repeated)}; rename all but one"
            )
        return cls(names, len(frame), frame=frame, labels=labels)

    @property
    def numeric(self) -> np.ndarray | None:
        """The whole table as one array of numbers, if it is one."""
        if self.array is not None and self.array.dtype.kind in "fiu":
            return self.array
        return None

    @property
    def all_numbers(self) -> bool:
        """Whether every column holds numbers, so that reading it again costs little."""
        if self.frame is None:
            return self.numeric is not None
        return all(isinstance(dtype, np.dtype) and dtype.kind in "fiub" for dtype in self.frame.dtypes)

    def part(self, start: int, stop: int) -> Table:
        """Return rows start to stop, as a view."""
        stop = max(start, min(stop, self.rows))
        numbers = np.arange(start, stop) if self.numbers is None else self.numbers[start:stop]
        if self.array is not None:
            return replace(self, rows=stop - start, array=self.array[start:stop], numbers=numbers)
        return replace(self, rows=stop - start, frame=self.frame.iloc[start:stop], numbers=numbers)

    def take(self, rows: np.ndarray) -> Table:
        """Return a copy of the rows where `rows` is true."""
        numbers = np.flatnonzero(rows)
        if self.array is not None:
            return replace(self, rows=numbers.size, array=self.array[rows], numbers=numbers)
        return replace(self, rows=numbers.size, frame=self.frame.loc[rows], numbers=numbers)

    def number(self, row: int) -> int:
        """Return the number of a row in the user's table."""
        return row if self.numbers is None else int(self.numbers[row])

    @cached_property
    def _dtypes(self) -> list[Any]:
        """Types of the DataFrame's columns, cached: pandas computes them at each access."""
        return list(self.frame.dtypes)

    def declared(self, column: int) -> list[Any] | None:
        """Return the categories that a pandas categorical column declares, present or not; None for other columns."""
        if self.frame is None:
            return None
        dtype = self._dtypes[column]
        return list(dtype.categories) if getattr(dtype, "name", "") == "category" else None

    def column(self, column: int) -> np.ndarray:
        """Return one column: an array of numbers, or an object array whose missing values are None or NaN."""
        if self.array is not None:
            values = self.array[:, column]
            return values.astype(object) if values.dtype.kind == "U" else values
        series = self.frame.iloc[:, column]
        dtype = series.dtype
        if getattr(dtype, "name", "") == "category":
            return np.asarray(series.astype(object), dtype=object)
        if isinstance(dtype, np.dtype) and dtype.kind in "fiub":
            return np.asarray(series)
        if getattr(dtype, "kind", "O") in "fiu":  # pandas' nullable numbers
            return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
        if getattr(dtype, "kind", "O") in "mM" or getattr(dtype, "name", "").startswith("period"):
            raise SchemaError(
                f"column {self.names[column]!r} holds dates or times ({dtype}); turn them into numbers "
                "(for instance days since a date) or text"
            )
        if getattr(dtype, "kind", "O") == "c":
            raise SchemaError(f"Complex data not supported: column {self.names[column]!r} has dtype {dtype}")
        return np.asarray(series.astype(object), dtype=object)


def _plain(array: np.ndarray) -> np.ndarray:
    """Return the array in native byte order, floats as float32 or float64."""
    if array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8):
        return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def missing_of(values: np.ndarray) -> np.ndarray:
    """Return where a column's values are missing: [n] -> [n] booleans."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind != "O":
        return np.zeros(values.shape, dtype=bool)
    import pandas as pd

    return np.asarray(pd.isna(values))


def numbers_of(values: np.ndarray, name: str) -> np.ndarray:
    """Return a continuous column as float64, NaN where missing; text that is not a number is refused."""
    if values.dtype.kind != "O":
        return np.asarray(values, dtype=np.float64)
    missing = missing_of(values)
    numbers = np.full(values.shape, np.nan)
    try:
        numbers[~missing] = values[~missing].astype(np.float64)
    except (TypeError, ValueError) as error:
        raise SchemaError(
            f"column {name!r} is continuous, but holds {_first_text(values)!r}, which is not a number; "
            "correct the value, leave it empty, or make the column discrete with kinds={...: 'discrete'}"
        ) from error
    return numbers


def _first_text(values: np.ndarray) -> Any:
    """Return the first value that is not a number."""
    for value in values:
        try:
            float(value)
        except (TypeError, ValueError):
            return value
    return None


Array = Any  # a NumPy or PyTorch array


class Rows(NamedTuple):
    """Encoded rows: the output of a schema's `encode`, and the input of a family's φ."""

    values: Array  # [..., n, Dc] continuous columns, standardised; NaN is missing
    codes: Array  # [..., n, Dd] discrete columns, index of the category; negative is missing
