"""The rows that a run began with, kept in its folder until its end, so that it goes on with them after a restart.

    rows.kept    training and held-out rows as they were read: the agreement's columns, and nothing else

A run goes on with the rows that it began with, whatever the data brings meanwhile. The file is readable by its owner
alone, is in no backup, and is deleted when the run ends or is left, and when rows are erased. Nothing in it is
unpickled; it is used only if the digest of its rows is the one that the state of the run has.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from peerbayes.data import files
from peerbayes.peer.agreement.negotiate import data_digest
from peerbayes.peer.learning.held_out import Table
from peerbayes.peer.state.folder import Home

FILE = "rows.kept"
RECORD = "erasures.jsonl"  # of erased rows, in the folder: it only grows


@dataclass(frozen=True)
class RunRows:
    """The rows of a run: for training, and held out."""

    rows: Table
    away: Table | None
    erased: int
    """How long the record of erased rows was when they were read."""

    def keep(self, home: Home) -> bool:
        """Keep them for the run of a folder; return False where they cannot be, or rows were erased meanwhile."""
        digest = data_digest(*self.rows)
        if _digest_in(home.records / FILE) == digest:
            return True
        try:
            content = packed(self.rows, self.away)
        except (TypeError, ValueError):
            return False
        if (read := unpacked(content)) is None or data_digest(*read[0]) != digest:
            return False  # values that no file here can hold: the run goes on as long as the data is the same
        with files.replacing(home.records / FILE, mode=0o600) as file:
            file.write(content)
        if erased_so_far(home) != self.erased:
            forget(home)
            return False
        return True


def erased_so_far(home: Home) -> int:
    """Return how long the record of erased rows is."""
    path = home.folder / RECORD
    return path.stat().st_size if path.exists() else 0


def kept(home: Home, digest: str) -> tuple[Table, Table | None] | None:
    """Return the rows that are kept for a run, if their digest is this one; None: there are none."""
    try:
        read = unpacked((home.records / FILE).read_bytes())
    except FileNotFoundError:
        return None
    return read if read is not None and data_digest(*read[0]) == digest else None


def forget(home: Home) -> bool:
    """Delete the rows that are kept for a run; return whether there were any."""
    path: Path = home.records / FILE
    there = path.exists()
    for file in (path, *home.records.glob(f".{FILE}.*")):  # drafts of a process that was killed
        file.unlink(missing_ok=True)
    return there


# --- rows as bytes: a header in JSON, and an array for each column


def packed(rows: Table, away: Table | None) -> bytes:
    """Return rows as bytes."""
    header: dict[str, Any] = {"digest": data_digest(*rows), "tables": []}
    arrays: dict[str, np.ndarray] = {}
    for place, table in enumerate((rows, away)):
        if table is not None:
            columns = [(str(name), table[0][name]) for name in table[0].columns]
            columns.append(("", pd.Series(table[1])))
            header["tables"].append(
                [_column(name, values, f"{place}.{j}", arrays) for j, (name, values) in enumerate(columns)]
            )
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def _column(name: str, values: pd.Series, key: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Add a column to the arrays; return what the header says of it."""
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "biuf":
        arrays[key] = values.to_numpy()
        return {"name": name, "type": None}
    if isinstance(values.dtype, pd.CategoricalDtype):
        arrays[key] = values.cat.codes.to_numpy()
        distinct, ordered = values.cat.categories.tolist(), bool(values.cat.ordered)
        return {"name": name, "type": "category", "ordered": ordered, "values": [_plain(v) for v in distinct]}
    places: dict[tuple[type, Any], int] = {}
    codes = [places.setdefault((type(value), _plain(value)[1]), len(places)) for value in values.tolist()]
    arrays[key] = np.array(codes, dtype=np.int64)
    first = dict(zip(codes, values.tolist(), strict=True))
    return {
        "name": name,
        "type": str(values.dtype),
        "values": [_plain(first[code]) for code in range(len(places))],
    }


def _plain(value: Any) -> tuple[str, Any]:
    """Return a value of text, numbers, booleans or nothing as JSON has it, with its kind."""
    if value is None or isinstance(value, bool | str):
        return "as it is", value
    if isinstance(value, int | np.integer):
        return "whole", str(int(value))
    number = float(value)
    return "number", None if math.isnan(number) else number.hex()


def unpacked(content: bytes) -> tuple[Table, Table | None] | None:
    """Return the rows in bytes; None where they cannot be read."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            header = json.loads(arrays["header"].tobytes())
            tables = []
            for place, columns in enumerate(header["tables"]):
                series = [_series(column, arrays[f"{place}.{j}"]) for j, column in enumerate(columns)]
                names = [column["name"] for column in columns[:-1]]
                frame = pd.DataFrame(dict(zip(names, series[:-1], strict=True)))
                tables.append((frame, series[-1].to_numpy()))
        return tables[0], tables[1] if len(tables) > 1 else None
    except (ValueError, KeyError, IndexError, TypeError, OSError, EOFError, zipfile.BadZipFile):
        return None


def _series(column: dict[str, Any], values: np.ndarray) -> pd.Series:
    if column["type"] is None:
        return pd.Series(values)
    distinct = [_value(kind, value) for kind, value in column["values"]]
    if column["type"] == "category":
        return pd.Series(pd.Categorical.from_codes(values, pd.Index(distinct), ordered=column["ordered"]))
    return pd.Series([distinct[code] for code in values], dtype=object).astype(column["type"])


def _value(kind: str, value: Any) -> Any:
    if kind == "whole":
        return int(value)
    if kind == "number":
        return math.nan if value is None else float.fromhex(value)
    return value


def _digest_in(path: Path) -> str:
    """Return the digest of the rows in a file; "": there is none."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
            return str(json.loads(arrays["header"].tobytes())["digest"])
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile):
        return ""
