"""Rows from CSV and Parquet files."""

from __future__ import annotations

import csv
import gzip
import importlib
import importlib.util
import re
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from peerbayes.data.sources.values import check_names, one_line
from peerbayes.errors import SourceError

if TYPE_CHECKING:
    import pandas as pd


# --- files of rows, by their endings

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


def checked(path: Path, others: str = "") -> Path:
    """Return the path of a file that exists, is not empty and has a known suffix; `others` ends the error otherwise."""
    if not path.name.lower().endswith((*SUFFIXES, ".parquet")):
        raise SourceError(
            f"cannot read rows from {path}; expected a .csv or a .parquet (also .tsv, .csv.gz){others}"
        )
    if path.is_dir():
        raise SourceError(f"cannot read rows from {path}, which is a folder; name a file in it")
    if not path.exists():
        raise SourceError(f"cannot read rows from {path}, which does not exist; check its name and folder")
    if not path.stat().st_size:
        raise SourceError(f"{path} is empty; expected a header and rows. Export it again")
    return path


# --- CSV files: UTF-8, a header, and commas, semicolons or tabs, whichever the header has most of
# Read as written: text like "NA" is a value. Only in a column of numbers does it mark a missing value.

# Markers of missing values among numbers. Among text they may be values: NA is also Namibia.
MARKERS = ("NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "none", "#N/A", "<NA>", "?", ".", "-")

WITH_COMMA = re.compile(r"[-+]?\d+(,\d+)*")


def read_text(path: Path, texts: Collection[str] = ()) -> pd.DataFrame:
    """Read all columns of a CSV file; a column without a name is called "". Those in `texts` are read as written."""
    separator, names = header_of(path)
    frame = next(parts_of_text(path, separator, names, texts))
    if problem := header_problem(frame, names):
        raise no_header(path, problem)
    if not len(frame):
        return frame.set_axis(names, axis=1)
    import pandas as pd

    columns = [
        frame.iloc[:, j] if name in texts else plain_numbers(frame.iloc[:, j], f"column {name!r} of {path}")
        for j, name in enumerate(names)
    ]
    return pd.concat(columns, axis=1).set_axis(names, axis=1)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise what makes a CSV file unreadable as an error that names it."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{path}, line {_undecodable(path)}: these bytes are not UTF-8; save the file as UTF-8"
        ) from error
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise SourceError(f"{path} cannot be read: {one_line(error)}") from error


def parts_of_text(
    path: Path, separator: str, names: list[str], texts: Collection[str], rows: int | None = None
) -> Iterator[pd.DataFrame]:
    """Yield a CSV file, so many rows at a time (None: all at once); the columns are in the order of the header.

    The parser takes the type of a column from the rows that it yields, but for `texts`, which are read as written.
    """
    import pandas as pd

    as_written = {name: str for name in texts if names.count(name) == 1}
    options: dict[str, Any] = {
        "keep_default_na": False,
        "na_values": [""],
        "low_memory": False,
        "dtype": as_written,
    }
    if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):  # later ones read floats exactly anyway
        options["float_precision"] = "round_trip"
    checked = False

    def parsed(reader: Callable[[], Any]) -> Any:
        try:
            with _readable(path), warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)  # raised where fields are discarded
                return reader()
        except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
            with _readable(path):
                _check_lengths(path, separator, names)
            reason = one_line(error).removeprefix("Error tokenizing data. C error: ")
            raise SourceError(f"{path} is malformed: {reason}. Correct it, or export it again") from error

    options |= {"sep": separator, "encoding": "utf-8-sig", "index_col": False, "iterator": True}
    with parsed(partial(pd.read_csv, path, **options)) as file:
        while True:
            try:
                frame = parsed(partial(file.read, rows))
            except StopIteration:
                return
            if not checked and (
                frame.shape[1] != len(names) or (len(frame) and frame.iloc[:, -1].isna().any())
            ):
                with _readable(path):
                    _check_lengths(path, separator, names)  # a line cut short leaves its last column empty
                checked = True
            if frame.shape[1] != len(names):
                raise SourceError(
                    f"{path} is malformed: its header is {names!r:.80}; expected a name per column"
                )
            yield frame
            if rows is None:
                return


def header_of(path: Path) -> tuple[str, list[str]]:
    """Return the separator and the names of the columns of a CSV file."""
    with _readable(path):
        return _header(path)


def no_header(path: Path, problem: str) -> SourceError:
    """Return the error for a file whose first line is a row."""
    return SourceError(
        f"{path} seems to have no header: {problem}. Write a line with the names of the columns above it"
    )


def _header(path: Path) -> tuple[str, list[str]]:
    """Return the separator and the names of the columns."""
    with _opened(path) as file:
        first = next((text_line for text_line in file if text_line.strip("\r\n")), "")
    if not first.strip():
        raise SourceError(f"{path} is empty; expected a header and rows. Export it again")
    if "\0" in first:
        raise SourceError(f"{path} is not text; expected CSV. Export it again")
    separator = "\t" if ".tsv" in path.name.lower() else max(",;\t", key=first.count)
    with _opened(path) as file:
        names = next(row for row in csv.reader(file, delimiter=separator) if row)
    return separator, names


def _opened(path: Path) -> IO[str]:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _check_lengths(path: Path, separator: str, names: list[str]) -> None:
    """Refuse the first line that has more or fewer fields than the header: it was cut, or a quote is missing."""
    with _opened(path) as file:
        reader = csv.reader(file, delimiter=separator)
        try:
            for row in reader:
                if row and len(row) != len(names):
                    raise SourceError(
                        f"{path}, line {reader.line_num}: {len(row)} fields, but the header has {len(names)}; "
                        "correct that line, or export the file again"
                    )
        except csv.Error as error:
            raise SourceError(f"{path}, line {reader.line_num}: {one_line(error)}") from error


def _undecodable(path: Path) -> int:
    """Return the number of the first line that is not UTF-8."""
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        for number, raw_line in enumerate(file, start=1):
            try:
                raw_line.decode()
            except UnicodeDecodeError:
                return number
    return 1


def header_problem(frame: pd.DataFrame, names: list[str]) -> str:
    """Return why a first line is a row and not a header: its numbers and text are values. Empty: it is a header."""
    numbers = [name for name in names if is_number(name)]
    positions = numbers == [str(number) for number in range(len(numbers))]
    if not numbers or positions:
        return ""
    texts = [j for j, name in enumerate(names) if name and not is_number(name)]
    if not texts or any((frame.iloc[:, j].astype(object) == names[j]).any() for j in texts):
        return f"its first line is {', '.join(names[:5])}"
    return ""


def plain_numbers(series: pd.Series, where: str) -> pd.Series:
    """Return a column as numbers where all its text is a number or a marker of missing values; else unchanged."""
    import pandas as pd

    if series.dtype.kind in "iufb":
        return series
    present = series.dropna()
    if not all(isinstance(value, str) for value in present.iloc[:1]):
        return series  # booleans
    written = Written()
    texts = written.add(present)
    if not written.numbers(where):
        return series
    numbers = {text: float(text) for text in texts}
    return pd.Series([numbers.get(value, float("nan")) for value in series], index=series.index)


class Written:
    """Whether the texts of a column are all numbers or markers of missing values; it may be seen in parts."""

    def __init__(self) -> None:
        self._numbers = self._commas = True
        self._comma: str | None = None

    def add(self, present: pd.Series) -> list[str]:
        """Look at texts; return the distinct ones that are no markers.

        Empty ones are missing: the parser leaves them beside whole numbers that it cannot hold.
        """
        if not (self._numbers or self._commas):
            return []
        written = [text for text in map(str, present.unique()) if text and text.strip() not in MARKERS]
        self._numbers = self._numbers and all(map(is_number, written))
        self._commas = self._commas and all(map(WITH_COMMA.fullmatch, written))
        if self._commas and self._comma is None:
            self._comma = next((text for text in written if "," in text), None)
        return written

    def numbers(self, where: str) -> bool:
        """Return whether all were numbers; numbers that have commas are refused."""
        if not self._numbers and self._commas:
            raise SourceError(
                f"{where} holds {self._comma!r}: write numbers with a decimal point and no separators"
            )
        return self._numbers


def is_number(text: str) -> bool:
    """Return whether a text is a number as CSV files write it."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # Python's own way of writing numbers


# --- parquet files


def read_parquet(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Read the columns named, or all; the others are not loaded from the file."""
    with opened_parquet(path) as file:
        names = parquet_names(file)
        check_names(names, columns, str(path))
        table = file.read(columns=list(columns) or names)
    return table.to_pandas(ignore_metadata=True)[list(columns) or names]


@contextmanager
def opened_parquet(path: Path, buffer: int = 0) -> Iterator[Any]:
    """Yield a Parquet file that loads so many bytes of a column at a time; 0: all that will be read.

    Arrow would otherwise load row groups before they are read, and keep them until the last one is.
    """
    need_pyarrow(path)
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path, buffer_size=buffer, pre_buffer=not buffer) as file:
            yield file
    except (arrow.ArrowException, OSError) as error:
        raise SourceError(f"{path} cannot be read as Parquet: {one_line(error)}; export it again") from error


def parquet_names(file: Any) -> list[str]:
    """Return the names of the columns of a Parquet file; a row index of pandas' is none."""
    return [name for name in file.schema_arrow.names if not name.startswith("__index_level_")]


def gaps_of_parquet(file: Any) -> dict[str, bool | None]:
    """Return whether values of each column of a Parquet file are missing, as the file says; None: it does not."""
    gaps: dict[str, bool | None] = dict.fromkeys(parquet_names(file), False)
    for group in map(file.metadata.row_group, range(file.metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            name, said = column.path_in_schema, column.statistics
            if gaps.get(name) is False:
                gaps[name] = bool(said.null_count) if said is not None and said.has_null_count else None
    return gaps


def need_pyarrow(path: Path) -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise SourceError(f"{path} is Parquet, which needs pyarrow: pip install 'peerbayes[data]'")
