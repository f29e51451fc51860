"""What a table that was read may hold: the names of its columns, and their values."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from peerbayes.data.table import INSTEAD_OF_DATES, are_dates
from peerbayes.errors import SourceError

if TYPE_CHECKING:
    import pandas as pd


# --- the errors of sources of rows, a branch of the tree in `peerbayes.errors`
# PeerbayesError
# └── SourceError   (also a ValueError)  rows that cannot be read, or cannot be used as they are


def check_names(names: Sequence[str], wanted: Sequence[str], where: str) -> None:
    """Refuse a table with a repeated, unnamed or missing column; columns not in `wanted` may have any name."""
    repeated = sorted({name for name in names if names.count(name) > 1 and (name in wanted or not wanted)})
    if repeated and repeated != [""]:
        raise SourceError(
            f"{where} has several columns named {', '.join(map(repr, repeated[:5]))}; rename all but one "
            "(in SQL with AS)"
        )
    if "" in names and not wanted:
        raise SourceError(
            f"column {names.index('') + 1} of {where} has no name; name it, or leave it out "
            "(a row index of pandas: index=False)"
        )
    missing = [name for name in wanted if name not in names]
    if missing:
        raise missing_columns(missing, names, where)


def missing_columns(missing: Sequence[str], names: Sequence[str], where: str) -> SourceError:
    """Return the error for columns that do not exist, with suggestions of similar names."""
    folded = {str(name).strip().casefold(): name for name in names}
    listed = []
    for name in missing[:5]:
        close = difflib.get_close_matches(name.strip().casefold(), list(folded), n=1)
        listed.append(f"{name!r} (did you mean {folded[close[0]]!r}?)" if close else repr(name))
    suffix = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
    ellipsis = ", …" if len(names) > 20 else ""
    return SourceError(
        f"{where} has no column {', '.join(listed)}{suffix}; it has {', '.join(map(str, names[:20]))}{ellipsis}"
    )


def without_label(label: str, first: Sequence[int], count: int, rows: int) -> SourceError:
    """Return the error for `count` of `rows` rows without a label, with the positions of the first ones."""
    shown = ", ".join(str(row + 1) for row in first)
    return SourceError(
        f"{count} of {rows} rows have no label in column {label!r} (counted from 1: {shown}"
        f"{', …' if count > len(first) else ''}); leave those rows out"
    )


def one_line(error: BaseException) -> str:
    """Return the message of another library's error, without its line breaks."""
    return " ".join(str(error).split())[:300] or type(error).__name__


# --- the values of a column: text, numbers or booleans, whatever their source
# missing    NULL, None, NaN, and empty text, since CSV cannot distinguish them
# Decimal    a float
# dates      refused by name, also where they are written as text: they are neither numbers nor categories
# others     (bytes, lists, …) refused by name


def plain(series: pd.Series, where: str, dates: bool = True) -> pd.Series:
    """Return a column as plain text, numbers or booleans; `where` names it in errors.

    dates  whether text of which all is dates is refused: that of a part of a column says nothing of the others
    """
    dtype: Any = series.dtype
    name, kind = str(dtype), getattr(dtype, "kind", "O")
    if name == "category":
        plain(dtype.categories.to_series(), where)
        return series
    if kind in "mM" or name.startswith(("period", "interval")):
        raise _date(where, name)
    if kind == "c":
        raise SourceError(f"{where} holds complex numbers; expected text, numbers or booleans")
    if isinstance(dtype, np.dtype) and kind in "iufb":
        # float16 is for storage, not for computing: its sums overflow at 65,504.
        return series.astype(np.float32) if name == "float16" else series
    if kind in "iuf":  # pandas' nullable numbers
        return series.astype(np.float64 if kind == "f" or series.isna().any() else dtype.numpy_dtype)
    return _plain_objects(series, where, dates)


def _plain_objects(series: pd.Series, where: str, dates: bool) -> pd.Series:
    import pandas as pd

    values = np.asarray(series.astype(object), dtype=object).copy()
    empty = [isinstance(value, str) and not value for value in values]
    values[series.isna().to_numpy() | np.array(empty, dtype=bool)] = None
    present = np.array([value is not None for value in values], dtype=bool)
    kinds = {_kind(kind, where) for kind in set(map(type, values[present]))}
    if not kinds:
        return pd.Series(np.nan, index=series.index, name=series.name)
    if kinds == {"numbers"}:
        return pd.Series(_numbers(values, present), index=series.index, name=series.name)
    if kinds == {"booleans"} and present.all():
        return pd.Series(values.astype(bool), index=series.index, name=series.name)
    if kinds == {"text"}:
        if dates and are_dates(values[present]):
            raise written_dates(where, values[present][0])
        return pd.Series(values.tolist(), index=series.index, name=series.name)
    return pd.Series(values, index=series.index, name=series.name, dtype=object)


def _kind(kind: type, where: str) -> str:
    if issubclass(kind, str):
        return "text"
    if issubclass(kind, bool | np.bool_):
        return "booleans"
    if issubclass(kind, int | float | Decimal | np.integer | np.floating):
        return "numbers"
    if issubclass(kind, date | time | timedelta | np.datetime64 | np.timedelta64):
        raise _date(where, kind.__name__)
    raise SourceError(
        f"{where} holds values of type {kind.__name__}; expected text, numbers or booleans. Leave it out, or turn it "
        "into text (in SQL with CAST)"
    )


def _numbers(values: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Return numbers of any type as int64 if all are integers, else as float64 with NaN where missing."""
    if present.all() and all(isinstance(value, int | np.integer) for value in values):
        try:
            return values.astype(np.int64)
        except OverflowError:
            pass  # beyond 2⁶³: CSV and Parquet have no whole number for it either
    return np.array([np.nan if value is None else float(value) for value in values], dtype=np.float64)


def written_dates(where: str, first: str) -> SourceError:
    """Return the error for a column of text of which all is dates."""
    return _date(where, f"like {first!r}")


def _date(where: str, example: str) -> SourceError:
    return SourceError(f"{where} holds dates or times ({example}); {INSTEAD_OF_DATES}")
