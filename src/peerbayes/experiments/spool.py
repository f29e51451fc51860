"""Tables in the folder of a study, from where any worker reads them: arrays and texts, nothing that is unpickled."""

from __future__ import annotations

import hashlib
import io
import json
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from peerbayes.data import files
from peerbayes.data.arguments import shown
from peerbayes.data.digest import table_digest
from peerbayes.data.infer import plain_labels
from peerbayes.data.table import Table
from peerbayes.errors import ConfigurationError

TABLES, VALUES = "tables", "values"  # folders in the folder of a study

# Settings longer than this are written to a file once, not into every cell.
LONGEST = 4096

# Tables that a worker keeps: cells of one table are computed one after another.
KEPT = 2


# --- tables


class Kept(NamedTuple):
    """A table in the folder."""

    key: str
    """Of its file: the digest of values and of types, since a schema that is inferred depends on both."""
    digest: str
    """Of its values: see `table_digest`."""
    rows: int
    names: tuple[str, ...]

    @property
    def columns(self) -> int:
        """How many columns it has."""
        return len(self.names)


def keep(folder: Path, X: Any, y: Any) -> Kept:
    """Write a table and its labels to the folder, unless it is there."""
    table, labels = Table.of(X), np.asarray(plain_labels(y))
    if labels.shape != (table.rows,):
        raise ValueError(
            f"y has shape {labels.shape}; expected a label for each of the {table.rows} rows of X"
        )
    digest = table_digest(table, labels)
    types = (
        [table.array.dtype.str]
        if table.array is not None
        else [table.declared(number) or table.column(number).dtype.str for number in range(len(table.names))]
    )
    key = hashlib.sha256(f"{digest} {types} {labels.dtype.kind}".encode(errors="surrogatepass")).hexdigest()
    path = _path(folder, key)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, _packed(table, labels))
    return Kept(key, digest, table.rows, table.names)


@lru_cache(maxsize=KEPT)
def table_of(folder: str, key: str) -> tuple[Table, np.ndarray]:
    """Return a table in the folder and its labels."""
    path = _path(Path(folder), key)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            header = json.loads(arrays["header"].tobytes())
            columns = [_column(entry, arrays, number) for number, entry in enumerate(header["columns"])]
            labels = _column(header["labels"], arrays, len(columns))
            numbers = arrays.get("table")  # all columns, where all have one type
            if header["array"]:
                table = Table.of(np.stack(columns, axis=1) if numbers is None else numbers)
            else:
                table = Table.of(_frame(header["names"], header["columns"], columns, numbers))
    except (OSError, KeyError, ValueError) as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error}. Expected the rows of the study: run it again with its data"
        ) from error
    return table, labels


def _path(folder: Path, key: str) -> Path:
    return folder / TABLES / f"{key}.npz"


def _packed(table: Table, labels: np.ndarray) -> bytes:
    """Return a table as the bytes of an .npz file: numbers as arrays, texts as codes of categories in its header."""
    arrays: dict[str, np.ndarray] = {}
    described: list[dict[str, Any]] = []
    if table.numeric is not None:
        arrays["table"] = table.numeric
    else:
        for number, name in enumerate(table.names):
            declared = table.declared(number)
            entry = _described(table.column(number), arrays, number, f"column {name!r}")
            described.append(
                entry if declared is None else {**entry, "declared": [_scalar(v, name) for v in declared]}
            )
    of_labels = _described(labels, arrays, len(described), "y")
    header = {
        "array": table.array is not None,
        "names": [_scalar(label, "the name of a column") for label in table.labels],
        "columns": described,
        "labels": {**of_labels, "text": labels.dtype.kind == "U"},
    }
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    out = io.BytesIO()
    np.savez(out, **arrays)  # type: ignore[arg-type]
    return out.getvalue()


def _described(values: np.ndarray, arrays: dict[str, np.ndarray], number: int, name: str) -> dict[str, Any]:
    """Add a column to the arrays; return what the header says of it."""
    if values.dtype.kind in "fiub":
        arrays[f"{number}"] = values
        return {}
    categories: dict[tuple[type, Any], int] = {}
    codes = np.empty(values.size, dtype=np.int32)
    for row, value in enumerate(values.tolist()):
        scalar = _scalar(value, name)
        key = (type(scalar), "nan" if scalar != scalar else scalar)  # 1, 1.0 and True are equal
        codes[row] = categories.setdefault(key, len(categories))
    arrays[f"{number}"] = codes
    return {
        "categories": [
            float("nan") if kind is float and value == "nan" else value for kind, value in categories
        ]
    }


def _scalar(value: Any, name: str) -> Any:
    """Return a text or number as JSON can hold it; None and NaN are missing."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if value != value or type(value).__name__ == "NAType":  # pandas' marks of missing values
        return None
    raise ValueError(f"{name} holds {shown(value)}; expected numbers or texts, which a study can store")


def _column(entry: dict[str, Any], arrays: Any, number: int) -> np.ndarray:
    """Return a column as it was: [n]."""
    values: np.ndarray = arrays[f"{number}"]
    if "categories" not in entry:
        return values
    categories = np.empty(len(entry["categories"]), dtype=object)
    categories[:] = entry["categories"]
    texts = categories[values]
    return texts.astype(str) if entry.get("text") else texts


def _frame(
    names: list[Any], described: list[dict[str, Any]], columns: list[np.ndarray], numbers: np.ndarray | None
) -> Any:
    """Return a DataFrame as it was, from its numbers [n, D] or from its columns."""
    import pandas as pd

    index = pd.Index(names, dtype=object)
    if numbers is not None:
        return pd.DataFrame(numbers, columns=index)
    series = []
    for entry, values in zip(described, columns, strict=True):
        of_kind = "declared" in entry
        series.append(
            pd.Series(pd.Categorical(values, categories=entry["declared"])) if of_kind
            else pd.Series(values, dtype=values.dtype)
        )  # fmt: skip
    frame = pd.concat(series, axis=1)
    frame.columns = index
    return frame


# --- long values of settings


def keep_value(folder: Path, stored: Any) -> Any:
    """Return a plain value, or where it is long its digest, under which it is written to the folder."""
    text = json.dumps(stored, sort_keys=True)
    if len(text) <= LONGEST:
        return stored
    digest = hashlib.sha256(text.encode()).hexdigest()
    path = folder / VALUES / f"{digest}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, text.encode())
    return {VALUES: digest}


def value_of(folder: Path, stored: Any) -> Any:
    """Return the plain value that `keep_value` kept."""
    if isinstance(stored, dict) and set(stored) == {VALUES}:
        return json.loads((folder / VALUES / f"{stored[VALUES]}.json").read_bytes())
    return stored
