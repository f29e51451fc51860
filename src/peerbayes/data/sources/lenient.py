"""A file with all its faults: read as far as it can be, with what is wrong with it."""

from __future__ import annotations

import codecs
import csv
import gzip
import warnings
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from peerbayes.data.arguments import shown
from peerbayes.data.sources.flat_files import header_problem, plain_numbers
from peerbayes.data.sources.values import one_line
from peerbayes.errors import SourceError

if TYPE_CHECKING:
    import pandas as pd

# What other separators look like in a header that has none of ours.
OTHER_SEPARATORS = ("|", ":", "\\t", "~", "^")

UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

READ_AT_ONCE = 1 << 20  # bytes


class Fault(NamedTuple):
    """What is wrong with a file."""

    name: str
    """As `peerbayes.data.doctor.findings` has it."""
    column: str | None
    seen: str
    severity: str | None = None
    """None: as always."""


class FaultyTable(NamedTuple):
    """A table as far as it could be read; its names may be empty or repeat."""

    names: list[str]
    columns: list[pd.Series]
    faults: list[Fault]


def read_faulty(path: Path) -> FaultyTable:
    """Read a CSV file whatever is wrong with it; a file without any table in it has no column."""
    faults: list[Fault] = []
    try:
        encoding = _encoding(path, faults)
        if encoding is None:
            return FaultyTable([], [], faults)
        separator, names = _header(path, encoding, faults)
        if not names:
            return FaultyTable([], [], faults)
        frame = _rows(path, encoding, separator, names, faults)
    except (OSError, EOFError, zlib.error, csv.Error, ValueError) as error:
        return FaultyTable([], [], [*faults, Fault("unreadable", None, one_line(error))])
    if frame is None:
        return FaultyTable([], [], faults)
    if not len(frame):
        return FaultyTable(names, [], [*faults, Fault("no-rows", None, "a header and no rows")])
    if problem := header_problem(frame, names):
        faults.append(Fault("no-header", None, problem))
    columns = []
    for j, name in enumerate(names):
        series = frame.iloc[:, j]
        try:
            series = plain_numbers(series, f"column {name!r}")
        except SourceError as error:
            faults.append(Fault("mixed-types", name, f"{one_line(error).partition(' holds ')[2].partition(':')[0]} "
                                "and the like are no plain numbers", "refused"))  # fmt: skip
        columns.append(series)
    return FaultyTable(names, columns, faults)


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def _encoding(path: Path, faults: list[Fault]) -> str | None:
    """Return how to read the file; None: it is no text."""
    decoder, line_number = codecs.getincrementaldecoder("utf-8")(), 1
    with _opened(path) as file:
        first = True
        while block := file.read(READ_AT_ONCE):
            if first and block.startswith(UTF16):
                faults.append(Fault("encoding", None, "the file is UTF-16, as spreadsheets export it"))
                return "utf-16"
            if first and block.startswith(codecs.BOM_UTF8):
                faults.append(Fault("byte-order-mark", None, "the file begins with a byte order mark"))
            first = False
            if b"\0" in block:
                faults.append(Fault("unreadable", None, "zero bytes: the file is no text"))
                return None
            try:
                decoder.decode(block)
            except UnicodeDecodeError as error:
                number = line_number + error.object[: error.start].count(b"\n")
                faults.append(Fault("encoding", None, f"line {number:,} holds bytes that are not UTF-8"))
                return "cp1252"
            line_number += block.count(b"\n")
    if first:
        faults.append(Fault("no-rows", None, "the file is empty"))
        return None
    return "utf-8-sig"


def _header(path: Path, encoding: str, faults: list[Fault]) -> tuple[str, list[str]]:
    """Return the separator and the names of the columns; none: the file has no text in it."""
    import io

    def text() -> IO[str]:
        return io.TextIOWrapper(_opened(path), encoding=encoding, errors="replace", newline="")

    with text() as file:
        first = next((text_line for text_line in file if text_line.strip("\r\n")), "")
    if not first.strip():
        faults.append(Fault("no-rows", None, "the file has no text in it"))
        return ",", []
    separator = "\t" if ".tsv" in path.name.lower() else max(",;\t", key=first.count)
    if separator not in first:
        other = next((mark for mark in OTHER_SEPARATORS if mark in first), None)
        if other is not None:
            faults.append(
                Fault(
                    "delimiter", None, f"the header has {shown(other)} and no comma: {shown(first.strip())}"
                )
            )
            separator = other if len(other) == 1 else separator
    with text() as file:
        names = next(row for row in csv.reader(file, delimiter=separator) if row)
    return separator, names


def _rows(
    path: Path, encoding: str, separator: str, names: list[str], faults: list[Fault]
) -> pd.DataFrame | None:
    """Return all lines that have as many fields as the header; the columns are numbered."""
    import pandas as pd

    skipped: list[list[str]] = []

    def read(**options: object) -> pd.DataFrame:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # lines that are skipped are counted below
            frame: pd.DataFrame = pd.read_csv(
                path, sep=separator, encoding=encoding, encoding_errors="replace", header=0,
                names=range(len(names)), index_col=False, keep_default_na=False, na_values=[""], **options,
            )  # type: ignore[call-overload]  # fmt: skip
        return frame

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = read(low_memory=False, on_bad_lines="error")
    except (pd.errors.ParserError, pd.errors.ParserWarning):
        try:
            frame = read(engine="python", on_bad_lines=lambda fields: skipped.append(fields))
        except (pd.errors.ParserError, ValueError, csv.Error) as error:
            faults.append(Fault("unreadable", None, one_line(error)))
            return None
    cut = skipped or (
        len(frame) and frame.iloc[:, -1].isna().any()
    )  # a line cut short leaves its last column empty
    if cut and (problem := _ragged(path, encoding, separator, names)):
        faults.append(Fault("ragged-lines", None, problem))
    elif skipped:
        faults.append(Fault("ragged-lines", None, f"{len(skipped):,} lines have more fields than the header"))
    return frame


def _ragged(path: Path, encoding: str, separator: str, names: list[str]) -> str:
    """Return how many lines have more or fewer fields than the header, and the first of them; empty: none."""
    import io

    count, first = 0, ""
    with io.TextIOWrapper(_opened(path), encoding=encoding, errors="replace", newline="") as file:
        reader = csv.reader(file, delimiter=separator)
        try:
            for row in reader:
                if row and len(row) != len(names):
                    count += 1
                    first = first or f"line {reader.line_num:,} has {len(row)} fields"
        except csv.Error as error:
            return f"line {reader.line_num:,}: {one_line(error)}"
    return f"{count:,} lines: {first}, the header {len(names)}" if count else ""
