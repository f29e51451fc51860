"""A user's X, read column by column: a DataFrame of any library that narwhals knows, or a two-dimensional array.

A column is read as one of two types, without copying the table:

    numbers   a float, integer or boolean array; NaN is missing
    objects   an object array of text, numbers or booleans; None and NaN are missing
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import narwhals.stable.v2 as nw
import numpy as np

from peerbayes.data.arguments import refusal
from peerbayes.errors import SchemaError

CATEGORICAL = (nw.Categorical, nw.Enum)

# Rows of a DataFrame up to which columns that were read are kept: reading takes longer than using them.
CACHED_ROWS = 1 << 12

# Rows of a DataFrame that are read at a time: large enough for its per-column cost not to matter.
FRAME_ROWS = 1 << 15

# Rows of a table from which a column of text is hashed once, for all that asks for its categories: fewer are searched.
HASHED_ROWS = 1 << 8

# Dates that are written as text.
ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?")
INSTEAD_OF_DATES = (
    "leave it out, or turn it into a number (days since a date, an age) "
    "or a category (the month, the weekday)"
)

# Numbers that NumPy has no type for.
WIDE = (nw.Decimal, nw.Int128, nw.UInt128)


class Texts(NamedTuple):
    """A column of text as codes of its distinct values."""

    codes: np.ndarray  # [n] of the smallest integers that hold them; −1 is missing
    values: np.ndarray  # [distinct] in the order in which they first occur

    def mapped(self, codes: np.ndarray) -> np.ndarray:
        """Return the code of each row, given that of each distinct value; −1 stays: [distinct] -> [n]."""
        return np.append(codes, np.array([-1], dtype=codes.dtype))[self.codes]


@dataclass(frozen=True)
class Table:
    """Named columns of a DataFrame (`frame`) or an array (`array`); the other one is None."""

    names: tuple[str, ...]
    rows: int
    frame: Any = None
    """The DataFrame, as narwhals wraps it."""
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
        if (frame := frame_of(X)) is not None:
            labels = tuple(frame.columns)
            return cls(_unique(labels), len(frame), frame=frame, labels=labels)
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

    @property
    def native(self) -> Any:
        """The array, or the user's DataFrame."""
        return self.array if self.array is not None else self.frame.to_native()

    @cached_property
    def numeric(self) -> np.ndarray | None:
        """The whole table as one array of numbers, if it is one: also a DataFrame all of one NumPy type.

        A large DataFrame is one only of pandas, and only where that takes no copy.
        """
        if self.array is not None:
            return self.array if self.array.dtype.kind in "fiu" else None
        if not self.frame.implementation.is_pandas():
            return self._stacked()
        native = self.frame.to_native()
        dtypes = set(native.dtypes)
        if len(dtypes) != 1 or not all(isinstance(kind, np.dtype) and kind.kind in "fiu" for kind in dtypes):
            return None
        if self.rows > FRAME_ROWS:
            first = native.iloc[:1]
            if not np.may_share_memory(first.to_numpy(), first.iloc[:, 0].to_numpy()):
                return None
        return _plain(native.to_numpy())

    def _stacked(self) -> np.ndarray | None:
        """Return the columns of a small DataFrame as one array, if they have one NumPy type; None: they have not.

        Sums over all columns at once end in other bits than sums over one, and libraries shall not differ in bits.
        """
        if self.rows > FRAME_ROWS or len(set(self._dtypes)) != 1 or not self._dtypes[0].is_numeric():
            return None
        columns = [self.column(number) for number in range(len(self.names))]
        kinds = {column.dtype for column in columns}
        whole = self._dtypes[0].is_integer() == (columns[0].dtype.kind in "iu")  # gaps make integers floats
        return (
            np.stack(columns, axis=1)
            if len(kinds) == 1 and columns[0].dtype.kind in "fiu" and whole
            else None
        )

    @property
    def all_numbers(self) -> bool:
        """Whether every column holds numbers or booleans, so that reading it again costs little."""
        if self.frame is None:
            return self.numeric is not None
        return all(dtype.is_numeric() or isinstance(dtype, nw.Boolean) for dtype in self._dtypes)

    def part(self, start: int, stop: int) -> Table:
        """Return rows start to stop, as a view."""
        if start == 0 and stop >= self.rows:
            return self
        stop = max(start, min(stop, self.rows))
        numbers = np.arange(start, stop) if self.numbers is None else self.numbers[start:stop]
        return self._with(slice(start, stop), numbers)

    def take(self, rows: np.ndarray) -> Table:
        """Return a copy of the rows where `rows` is true, or at the positions `rows`."""
        positions = np.flatnonzero(rows) if rows.dtype == bool else rows
        return self._with(positions, positions if self.numbers is None else self.numbers[positions])

    def numbered_from(self, first: int) -> Table:
        """Return the same rows as a part of the user's table that begins with row number `first`."""
        return replace(self, numbers=np.arange(first, first + self.rows))

    def _with(self, rows: slice | np.ndarray, numbers: np.ndarray) -> Table:
        array = self.array
        if array is not None:  # `take` copies rows, indexing copies numbers one by one
            array = array[rows] if isinstance(rows, slice) else np.take(array, rows, axis=0)
        frame = None if self.frame is None else self.frame[rows]
        return replace(self, rows=numbers.size, array=array, frame=frame, numbers=numbers)

    def number(self, row: int) -> int:
        """Return the number of a row in the user's table."""
        return row if self.numbers is None else int(self.numbers[row])

    @cached_property
    def _dtypes(self) -> list[Any]:
        """Types of the DataFrame's columns, cached: they are computed at each access."""
        return list(self.frame.schema.values())

    def declared(self, column: int) -> list[Any] | None:
        """Return the categories that a categorical column declares, present or not; None for other columns.

        The categories of polars' Categorical belong to all columns of a process: those present are declared.
        """
        if self.frame is None or not isinstance(self._dtypes[column], CATEGORICAL):
            return None
        if hasattr(self._dtypes[column], "categories"):
            return list(self._dtypes[column].categories)
        series = self.frame.get_column(self.labels[column])
        if series.implementation.is_polars():
            return sorted(series.drop_nulls().unique().to_list())
        return series.cat.get_categories().to_list()

    def column(self, column: int) -> np.ndarray:
        """Return one column: an array of numbers, or an object array whose missing values are None or NaN."""
        if self.array is not None:
            values = self.array[:, column]
            return values.astype(object) if values.dtype.kind == "U" else values
        if column not in self._columns:
            values = self._read(column)
            if self.rows > CACHED_ROWS:
                return values
            self._columns[column] = values
        return self._columns[column]

    @cached_property
    def _columns(self) -> dict[int, np.ndarray]:
        """The columns of a small table that were read: they are needed several times."""
        return {}

    def texts(self, column: int, at_hand: bool = False) -> Texts | None:
        """Return a column of text that is hashed once; None: it holds something else, or too few rows to pay.

        at_hand  only where it was hashed before, or hashing takes no longer than reading it
        """
        if self.rows < HASHED_ROWS:
            return None
        if column not in self._texts:
            if at_hand and not self._arrow(column):
                return None
            self._texts[column] = self._hashed(column)
        return self._texts[column]

    def _arrow(self, column: int) -> bool:
        """Whether a column of text is one of pandas that is not of objects: they would have to be made."""
        if self.frame is None or not isinstance(self._dtypes[column], nw.String):
            return False
        return self.frame.implementation.is_pandas() and not isinstance(
            self.frame.to_native().dtypes.iloc[column], np.dtype
        )

    @cached_property
    def _texts(self) -> dict[int, Texts | None]:
        """The columns of text that were hashed: their codes take a byte or two a row."""
        return {}

    def _hashed(self, column: int) -> Texts | None:
        """Return the codes of a column of text, None for another one."""
        if self.array is not None:
            if self.array.dtype.kind not in "OU":
                return None
            values = self.column(column)
        elif isinstance(self._dtypes[column], nw.String | nw.Object):
            arrow = self._arrow(column)
            values = self.frame.to_native().iloc[:, column].array if arrow else self.column(column)
        else:
            return None
        if not any(isinstance(value, str) for value in values[:HASHED_ROWS]):
            return None
        import pandas as pd

        codes, found = pd.factorize(values)
        distinct_values = np.asarray(found, dtype=object)
        if not all(isinstance(value, str) for value in distinct_values):
            return None  # True and 1 are one value, but of two types
        width = next(width for width in (np.int8, np.int16, np.int32) if len(found) <= np.iinfo(width).max)
        return Texts(codes.astype(width), distinct_values)

    def _read(self, column: int) -> np.ndarray:
        """Return one column of the DataFrame."""
        series = self.frame.get_column(self.labels[column])
        dtype = self._dtypes[column]
        if isinstance(dtype, CATEGORICAL):
            pyarrow = (
                series.implementation.is_pyarrow()
            )  # its own array repeats a category where one is missing
            return np.array(series.to_list() if pyarrow else series.to_numpy(), dtype=object)
        values = (series.cast(nw.Float64) if isinstance(dtype, WIDE) else series).to_numpy()
        if values.dtype.kind in "fiub" and values.ndim == 1:
            return _plain(values)
        subject = f"column {self.names[column]!r}"
        if dtype.is_temporal() or (
            dtype == nw.Unknown and "period" in str(getattr(series.to_native(), "dtype", ""))
        ):
            raise SchemaError(f"{subject} holds dates or times ({dtype}); {INSTEAD_OF_DATES}")
        if values.dtype.kind == "c":
            raise SchemaError(f"Complex data not supported: {subject} has dtype {values.dtype}")
        if dtype.is_nested():
            raise SchemaError(
                f"{subject} holds {dtype}; expected text, numbers or booleans. Give each entry a column"
            )
        return values.astype(object, copy=False)


def frame_of(X: Any) -> Any:
    """Return X as a narwhals DataFrame, collected if it is lazy; None where X is no DataFrame."""
    if isinstance(X, np.ndarray | list | tuple | nw.DataFrame):
        return X if isinstance(X, nw.DataFrame) else None
    try:
        frame = nw.from_native(X, pass_through=True)
    except nw.exceptions.DuplicateError:
        _unique(X.column_names if hasattr(X, "column_names") else X.columns)
        raise
    if frame is X and hasattr(X, "to_pandas") and not hasattr(X, "__array__"):  # a table of another library
        frame = nw.from_native(X.to_pandas(), pass_through=True)
    frame = frame.collect() if isinstance(frame, nw.LazyFrame) else frame
    return frame if isinstance(frame, nw.DataFrame) else None


def _unique(labels: Iterable[Any]) -> tuple[str, ...]:
    """Return the labels of columns as text; refuse two of one name."""
    names = tuple(map(str, labels))
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise SchemaError(f"the table has several columns named {', '.join(repeated)}; rename all but one")
    return names


def _plain(array: np.ndarray) -> np.ndarray:
    """Return the array in native byte order, floats as float32 or float64."""
    if array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8):
        return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def are_dates(texts: np.ndarray) -> bool:
    """Return whether all of one or more texts are dates: [n]."""
    import pandas as pd

    return bool(ISO_DATE.fullmatch(texts[0])) and all(ISO_DATE.fullmatch(text) for text in pd.unique(texts))


def missing_of(values: np.ndarray) -> np.ndarray:
    """Return where a column's values are missing: [n] -> [n] booleans."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind != "O":
        return np.zeros(values.shape, dtype=bool)
    import pandas as pd

    return np.asarray(pd.isna(values))


def numbers_of(values: np.ndarray, name: str, kind: str = "continuous") -> np.ndarray:
    """Return a column of a numeric `kind` as float64, NaN where missing; text that is not a number is refused."""
    if values.dtype.kind != "O":
        return np.asarray(values, dtype=np.float64)
    missing = missing_of(values)
    numbers = np.full(values.shape, np.nan)
    try:
        numbers[~missing] = values[~missing].astype(np.float64)
    except (TypeError, ValueError) as error:
        raise SchemaError(
            f"column {name!r} is {kind}, but holds {_first_text(values)!r}, which is not a number; "
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


# --- categories, classes and numbers as plain Python values, in a stable order ------------------------------

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
