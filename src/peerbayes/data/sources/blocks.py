"""Rows of a file, block by block: never all of them are in memory.

What a column holds (numbers, text, categories, dates) is decided over the whole file, as `read` decides it, before the
first block is given away: a file is surveyed once, and may then be read any number of times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from peerbayes.data.arguments import whole
from peerbayes.data.sources.flat_files import (
    Written,
    checked,
    gaps_of_parquet,
    header_of,
    header_problem,
    no_header,
    opened_parquet,
    parquet_names,
    parts_of_text,
    plain_numbers,
)
from peerbayes.data.sources.values import check_names, plain, without_label, written_dates
from peerbayes.data.table import are_dates
from peerbayes.errors import SourceError

if TYPE_CHECKING:
    import pandas as pd

# Values of a block, and its most rows, where nobody says how many rows: sixteen megabytes of numbers, and few calls.
BLOCK_VALUES, BLOCK_ROWS = 1 << 21, 1 << 16

# Bytes of a column of a Parquet file that are loaded at a time: a row group may have millions of rows.
PARQUET_BUFFER = 1 << 18


@dataclass(frozen=True)
class Blocks:
    """Rows of a .csv or .parquet file for `fit`, `partial_fit` and predictions, which never have all in memory.

    Iterating yields the features as DataFrames, whose index counts the rows of the file from 0.
    """

    data: str | Path
    """The file."""
    label: str | None = None
    """The column of the classes; to fit, and to leave out of the features."""
    columns: Sequence[str] = ()
    """The features; all columns but the label where none is named."""
    rows: int | None = None
    """Rows of a block; None: as many as make 2²¹ values, at most 65,536."""

    def __post_init__(self) -> None:
        if self.rows is not None:
            whole("rows", self.rows, 1, advice=", or None")
        if self.label is not None and self.label in self.columns:
            raise SourceError(f"{self.label!r} is the label and also a feature; leave it out of the features")

    @property
    def names(self) -> tuple[str, ...]:
        """The features, in order."""
        return self._survey.names

    @property
    def row_count(self) -> int:
        """How many rows the file has."""
        return self._survey.rows

    def __iter__(self) -> Iterator[pd.DataFrame]:
        return (features for features, _ in self._blocks())

    def labelled(self) -> Iterator[tuple[pd.DataFrame, np.ndarray]]:
        """Yield the features and the labels [b] of each block; rows without a label are refused together."""
        if self.label is None:
            raise SourceError(f"nothing names the labels of {self.data}; expected Blocks(…, label=…)")
        without: list[int] = []
        for features, labels in self._blocks():
            assert labels is not None
            without += (features.index[labels.isna()]).tolist()
            if not without:
                yield features, labels.to_numpy()
        if without:
            raise without_label(self.label, without[:5], len(without), self.row_count)

    # --- inside ----------------------------------------------------------------------------------------

    def _blocks(self) -> Iterator[tuple[pd.DataFrame, pd.Series | None]]:
        """Yield the features and the labels, if they are named, of each block."""
        survey, start = self._survey, 0
        wanted = [*survey.names, *([] if self.label is None else [self.label])]
        for frame in survey.file.parts(wanted, survey.columns, self._size(wanted)):
            if not len(frame):
                continue
            columns = {
                name: plain(
                    survey.columns[name].read(frame[name], f"column {name!r} of {self.data}"),
                    f"column {name!r} of {self.data}",
                    dates=False,
                )
                for name in wanted
            }
            labels = None if self.label is None else columns.pop(self.label)
            yield _table(columns, start), labels
            start += len(frame)
        if start != survey.rows:
            raise SourceError(
                f"{self.data} had {survey.rows:,} rows when it was first read, and now has {start:,}; read it when "
                "nothing is written to it"
            )

    def _size(self, wanted: Sequence[str]) -> int:
        """Return how many rows a block of some columns has."""
        return self.rows or max(1, min(BLOCK_ROWS, BLOCK_VALUES // len(wanted)))

    @cached_property
    def _survey(self) -> Survey:
        """What the columns of the file hold."""
        path = checked(Path(self.data), ": other sources have no blocks")
        file = _Parquet(path) if path.suffix.lower() == ".parquet" else _Text(path)
        wanted = list(self.columns) + ([self.label] if self.label is not None and self.columns else [])
        check_names(file.names, wanted, str(self.data))
        if self.label is not None:
            check_names(file.names, [self.label], str(self.data))
        names = tuple(self.columns) or tuple(name for name in file.names if name != self.label)
        if not names:
            raise SourceError(
                f"the table has no column but the label {self.label!r}; expected features to learn from"
            )
        wanted = [*names, *([] if self.label is None else [self.label])]
        rows, columns = file.survey(wanted, self._size(wanted))
        if not rows:
            raise SourceError(f"{self.data} gives no rows; expected at least one")
        return Survey(file, names, rows, columns)


class Survey(NamedTuple):
    """What is known of a file before its blocks are read."""

    file: _Text | _Parquet
    names: tuple[str, ...]  # of the features
    rows: int
    columns: dict[str, Form]  # also that of the label


def _table(columns: dict[str, pd.Series], start: int) -> pd.DataFrame:
    """Return columns as a table, in one array where all are numbers of one type: it is then read as that array."""
    import pandas as pd

    rows = len(next(iter(columns.values())))
    index = pd.RangeIndex(start, start + rows)
    dtypes: set[Any] = {series.dtype for series in columns.values()}
    if len(dtypes) > 1 or next(iter(dtypes)).kind not in "iuf":
        return pd.DataFrame({name: series.set_axis(index) for name, series in columns.items()})
    array = np.empty((len(columns), rows), dtype=next(iter(dtypes)))
    for k, series in enumerate(columns.values()):
        array[k] = series
    return pd.DataFrame(array.T, index=index, columns=list(columns), copy=False)


@dataclass
class Form:
    """What a column holds over the whole file, and so how each block of it is read."""

    as_written: bool = False
    """Text, though some blocks of it alone look like something else."""
    numbers: bool = False
    """Text of which all is numbers, or markers of missing values."""
    dtype: Any = None
    """The type of numbers, where some blocks of it alone may be of another."""
    categories: list[Any] = field(default_factory=list)
    """Those that the file declares."""

    def read(self, series: pd.Series, where: str) -> pd.Series:
        """Return a block of the column as the whole file would be read."""
        if self.numbers:
            return plain_numbers(series, where)
        if self.categories:
            return series.cat.set_categories(self.categories)
        return series if self.dtype is None else series.astype(self.dtype)


# --- Parquet: types are in the file, but for dates that are written as text, and for categories
# Whole numbers are floats in all blocks where one is missing.


class _Parquet:
    def __init__(self, path: Path) -> None:
        self.path = path
        with opened_parquet(path) as file:
            self.names = parquet_names(file)

    def parts(self, wanted: Sequence[str], forms: dict[str, Form], rows: int) -> Iterator[pd.DataFrame]:
        """Yield some columns, so many rows at a time."""
        with opened_parquet(self.path, PARQUET_BUFFER) as file:
            for batch in file.iter_batches(batch_size=rows, columns=list(wanted)):
                yield batch.to_pandas(ignore_metadata=True)

    def survey(self, wanted: Sequence[str], rows: int) -> tuple[int, dict[str, Form]]:
        """Return the number of rows, and what each column holds."""
        forms = {name: Form() for name in wanted}
        with opened_parquet(self.path) as file:
            schema, count = file.schema_arrow, file.metadata.num_rows
            gaps = gaps_of_parquet(file)
        types = {name: str(schema.field(name).type) for name in wanted}
        declared = {name for name, kind in types.items() if kind.startswith("dictionary")}
        dated = {name: "" for name, kind in types.items() if "string" in kind and name not in declared}
        numbers = {name for name, kind in types.items() if kind.startswith(("int", "uint"))}
        unsure = {name for name in numbers if gaps[name] is None}
        for frame in (
            self.parts([*declared, *dated, *unsure], forms, rows) if declared or dated or unsure else ()
        ):
            for name in declared:
                form = forms[name]
                known = set(form.categories)
                form.categories += [value for value in frame[name].cat.categories if value not in known]
            for name in list(dated):
                texts = frame[name][frame[name].notna() & (frame[name] != "")].to_numpy()
                if texts.size and not are_dates(texts):
                    del dated[name]
                elif texts.size:
                    dated[name] = dated[name] or str(texts[0])
            for name in [name for name in unsure if frame[name].isna().any()]:
                unsure.remove(name)
                gaps[name] = True
            if not (declared or dated or unsure):
                break
        for name in numbers:
            forms[name].dtype = np.dtype(np.float64) if gaps[name] else None
        for name, first in dated.items():
            if first:
                raise written_dates(f"column {name!r} of {self.path}", first)
        return count, forms


# --- CSV: the parser takes a type from the rows that it sees, so all are seen first


class _Text:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.separator, self.names = header_of(path)

    def parts(self, wanted: Sequence[str], forms: dict[str, Form], rows: int) -> Iterator[pd.DataFrame]:
        """Yield some columns, so many rows at a time."""
        as_written = [name for name in wanted if forms[name].as_written]
        places = [self.names.index(name) for name in wanted]
        for frame in parts_of_text(self.path, self.separator, self.names, as_written, rows):
            yield frame.iloc[:, places].set_axis(list(wanted), axis=1)

    def survey(self, wanted: Sequence[str], rows: int) -> tuple[int, dict[str, Form]]:
        """Return the number of rows, and what each column holds."""
        count, problem = 0, ""
        seen = {name: _Seen() for name in wanted}
        places = {name: self.names.index(name) for name in wanted}
        for frame in parts_of_text(self.path, self.separator, self.names, (), rows):
            count += len(frame)
            problem = problem or header_problem(frame, self.names)
            for name, place in places.items():
                seen[name].add(frame.iloc[:, place])
        if problem:
            raise no_header(self.path, problem)
        mixed = {name: Form(as_written=True) for name, of_column in seen.items() if of_column.mixed}
        if mixed:
            for frame in self.parts(list(mixed), mixed, rows):
                for name in mixed:
                    seen[name].add(frame[name])
        forms = {name: seen[name].form(f"column {name!r} of {self.path}") for name in wanted}
        for name, form in forms.items():
            if form.as_written and not form.numbers and seen[name].dates:
                raise written_dates(f"column {name!r} of {self.path}", seen[name].first)
        return count, forms


class _Seen:
    """What the blocks of a column of a CSV file were taken for."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.whole, self.large, self.negative = True, False, False  # of numbers
        self.written, self.dates, self.first = Written(), True, ""

    def add(self, series: pd.Series) -> None:
        """Look at a block."""
        present = series.dropna()
        self.whole &= len(present) == len(series)
        if not len(present):
            return
        kind = series.dtype.kind
        if kind in "iuf" or type(present.iloc[0]) is int:  # the parser gives those from 2⁶⁴ on as Python's
            self.kinds.add("numbers")
            self.whole &= kind in "iu"
            self.large |= kind == "u"
            self.negative |= bool(present.min() < 0)
            return
        if not isinstance(present.iloc[0], str):
            self.kinds.add("booleans")
            return
        self.kinds.add("text")
        self.written.add(present)
        self.first = self.first or str(present.iloc[0])
        self.dates = self.dates and are_dates(present.to_numpy(dtype=object))

    @property
    def mixed(self) -> bool:
        """Whether some blocks look like one kind and some like another: all of it is then text."""
        return len(self.kinds) > 1

    def form(self, where: str) -> Form:
        """Return how the column is read; numbers with commas are refused."""
        if "text" in self.kinds:
            return Form(as_written=True, numbers=self.written.numbers(where))
        return Form(dtype=self._dtype if "numbers" in self.kinds else None)

    @property
    def _dtype(self) -> Any:
        """The type of all numbers together, where it is not that of each block: unsigned, if some are 2⁶³ or more."""
        if not self.whole or (self.large and self.negative):
            return np.dtype(np.float64)
        return np.dtype(np.uint64) if self.large else None
