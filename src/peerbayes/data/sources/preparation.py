"""What is done to a table before it is used: columns left out, dates as numbers or categories, missing values, classes.

Errors begin with the name of the argument, so that whoever read it from a file can add the line.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from peerbayes.data.arguments import shown
from peerbayes.data.sources.date_forms import parsed_form, patterns_of
from peerbayes.data.sources.flat_files import plain_numbers
from peerbayes.data.sources.values import missing_columns
from peerbayes.errors import SourceError

if TYPE_CHECKING:
    import pandas as pd


def prepare(
    frame: pd.DataFrame,
    *,
    drop: Sequence[str] = (),
    dates: Mapping[str, str] | None = None,
    missing: Sequence[str | float] = (),
) -> pd.DataFrame:
    """Return the table without some columns, with missing values empty, and with dates as numbers or categories.

    drop     names of columns to leave out
    dates    what becomes of the dates of a column, by its name: "days" (since 1970-01-01), "year", "month", "weekday";
             where they are not written like 2024-12-31, also how they are: "month %d.%m.%Y"
    missing  texts and numbers that stand for a missing value, in all columns
    """
    names = [str(name) for name in frame.columns]
    for argument, wanted in (("drop", drop), ("dates", dates or {})):
        if lacking := [name for name in wanted if name not in names]:
            raise SourceError(f"{argument}: {missing_columns(lacking, names, 'the table')}")
    kept = [j for j, name in enumerate(names) if name not in drop]
    frame = frame.iloc[:, kept].set_axis([names[j] for j in kept], axis=1)
    columns = []
    for j, name in enumerate(frame.columns):
        series = _without(frame.iloc[:, j], missing, name) if missing else frame.iloc[:, j]
        columns.append(_dated(series, dates[name], name) if dates and name in dates else series)
    import pandas as pd

    return pd.concat(columns, axis=1).set_axis(frame.columns, axis=1) if columns else frame


def map_labels(labels: Any, classes: Mapping[str, Any]) -> np.ndarray:
    """Return the class of each label [n], by the label as text ("1", "true"); a label without a class is refused."""
    values = [_text(value) for value in np.asarray(labels, dtype=object).tolist()]
    unknown = [value for value in dict.fromkeys(values) if value not in classes]
    if unknown:
        rows = sum(value in unknown for value in values)
        raise SourceError(
            f"labels names no class for {', '.join(map(shown, unknown[:5]))}, in {rows:,} rows; expected one for each "
            f"label, and there are those of {', '.join(list(classes)[:20])}"
        )
    mapped = [classes[value] for value in values]
    return np.array(mapped, dtype=object if len({isinstance(value, str) for value in mapped}) > 1 else None)


def _text(value: Any) -> str:
    """Return a label as files write it."""
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _without(series: pd.Series, missing: Collection[str | float], name: str) -> pd.Series:
    """Return a column with these values empty; text of which numbers are left becomes numbers, as in a CSV file."""
    texts = {str(value).strip() for value in missing}
    numbers = {number for text in texts if (number := _number(text)) is not None}
    if series.dtype.kind in "iuf":
        coded = series.isin(numbers)
        return series.mask(coded) if coded.any() else series
    if series.dtype.kind in "bmM":
        return series
    values = series.astype(object)
    absent = np.array(
        [str(value).strip() in texts or (_is_number(value) and value in numbers) for value in values],
        dtype=bool,
    )
    if not absent.any():
        return series
    return plain_numbers(values.mask(absent, None), f"column {name!r}")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _dated(series: pd.Series, form: str, name: str) -> pd.Series:
    """Return dates as numbers or categories; what is no date is refused with its row."""
    import pandas as pd

    becomes, pattern = parsed_form(f"dates.{name}", form)
    expected = f"dates like {'2024-12-31' if pattern is None else pattern}"
    present = ~series.isna().to_numpy()
    if series.dtype.kind in "iufb" and pattern is None:
        example = series[present].iloc[0] if present.any() else None
        raise SourceError(f"dates: column {name!r} holds {shown(example)}, a number; expected {expected}")
    if series.dtype.kind == "M" or pattern is None:
        moments = pd.to_datetime(series, errors="coerce", format="ISO8601", utc=True)
    else:
        moments = pd.to_datetime(_written(series, present), errors="coerce", format=pattern, utc=True)
    wrong = np.flatnonzero(moments.isna().to_numpy() & present)
    if wrong.size:
        value = series.iloc[int(wrong[0])]
        fitting = patterns_of([value]) if pattern is None and isinstance(value, str) else []
        todo = (
            f'. Say how they are written: dates = {{ {name} = "{becomes} {fitting[0]}" }}' if fitting else ""
        )
        raise SourceError(
            f"dates: column {name!r} holds {shown(value)} (row {int(wrong[0]) + 1}, and {wrong.size - 1} more); "
            f"expected {expected}{todo}"
        )
    if becomes == "days":
        return (moments - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
    if becomes == "year":
        return moments.dt.year
    texts = moments.dt.strftime("%m") if becomes == "month" else moments.dt.day_name()
    return texts.astype(object).where(present, None)


def _written(series: pd.Series, present: np.ndarray) -> pd.Series:
    """Return dates as texts without blanks at their ends; whole numbers (20241231) without a fraction."""
    texts = series.astype(object).where(present, None)
    return texts.map(lambda value: None if value is None else _text(value).strip())
