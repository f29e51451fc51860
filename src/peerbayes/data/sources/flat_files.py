"""Rows from CSV and Parquet files."""

from __future__ import annotations

import csv
import gzip
import importlib
import importlib.util
import re
import warnings
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from peerbayes.data.sources.values import check_names, one_line
from peerbayes.errors import SourceError

if TYPE_CHECKING:
    import pandas as pd


# --- CSV files: UTF-8, a header, and commas, semicolons or tabs, whichever the header has most of
# Read as written: text like "NA" is a value. Only in a column of numbers does it mark a missing value.

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")

# Markers of missing values among numbers. Among text they may be values: NA is also Namibia.
MARKERS = ("NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "none", "#N/A", "<NA>", "?", ".", "-")

WITH_COMMA = re.compile(r"[-+]?\d+(,\d+)*")


def read_text(path: Path, texts: Collection[str] = ()) -> pd.DataFrame:
    """Read all columns of a CSV file; a column without a name is called "". Those in `texts` are read as written."""
    try:
        separator, names = _header(path)
        frame = _parsed(path, separator, names, texts)
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{path}, line {_undecodable(path)}: these bytes are not UTF-8; save the file as UTF-8"
        ) from error
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise SourceError(f"{path} cannot be read: {one_line(error)}") from error
    if problem := header_problem(frame, names):
        raise SourceError(
            f"{path} seems to have no header: {problem}. Write a line with the names of the columns above it"
        )
    if not len(frame):
        return frame.set_axis(names, axis=1)
    import pandas as pd

    columns = [
        frame.iloc[:, j] if name in texts else plain_numbers(frame.iloc[:, j], f"column {name!r} of {path}")
        for j, name in enumerate(names)
    ]
    return pd.concat(columns, axis=1).set_axis(names, axis=1)


def _parsed(path: Path, separator: str, names: list[str], texts: Collection[str]) -> pd.DataFrame:
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
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # raised where fields are discarded
            frame = pd.read_csv(path, sep=separator, encoding="utf-8-sig", index_col=False, **options)
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        _check_lengths(path, separator, names)
        reason = one_line(error).removeprefix("Error tokenizing data. C error: ")
        raise SourceError(f"{path} is malformed: {reason}. Correct it, or export it again") from error
    if frame.shape[1] != len(names) or (len(frame) and frame.iloc[:, -1].isna().any()):
        _check_lengths(path, separator, names)  # a line cut short leaves its last column empty
    if frame.shape[1] != len(names):
        raise SourceError(f"{path} is malformed: its header is {names!r:.80}; expected a name per column")
    return frame


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
    texts = [str(text) for text in present.unique()]
    written = [text for text in texts if text.strip() not in MARKERS]
    if written and not all(map(is_number, written)):
        if all(map(WITH_COMMA.fullmatch, written)):
            comma = next(text for text in written if "," in text)
            raise SourceError(
                f"{where} holds {comma!r}: write numbers with a decimal point and no separators"
            )
        return series
    numbers = {text: float(text) for text in written}
    return pd.Series([numbers.get(value, float("nan")) for value in series], index=series.index)


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
    need_pyarrow(path)
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path) as file:
            # A row index of pandas' is no column.
            names = [name for name in file.schema_arrow.names if not name.startswith("__index_level_")]
            check_names(names, columns, str(path))
            table = file.read(columns=list(columns) or names)
    except (arrow.ArrowException, OSError) as error:
        raise SourceError(f"{path} cannot be read as Parquet: {one_line(error)}; export it again") from error
    return table.to_pandas(ignore_metadata=True)[list(columns) or names]


def need_pyarrow(path: Path) -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise SourceError(f"{path} is Parquet, which needs pyarrow: pip install 'peerbayes[data]'")
