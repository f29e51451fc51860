"""Category indices of an array of numbers by table lookup instead of search."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from peerbayes.scans import SMALL_RANGE
from peerbayes.schema import Schema


class Lookup(NamedTuple):
    """Concatenated tables of category indices, one for each discrete column; −1 where there is no category."""

    low: np.ndarray  # [Dd] the value that a column's table begins with
    starts: np.ndarray  # [Dd] where it begins
    sizes: np.ndarray  # [Dd] how long it is
    table: np.ndarray


def lookup_of(schema: Schema) -> Lookup | None:
    """Return the lookup tables of a schema, or None unless every discrete column holds small-range integers."""
    lows, tables = [], []
    for j in schema.discrete:
        categories = schema.columns[j].categories
        if not categories or any(type(value) is not int for value in categories):
            return None
        values = np.array(categories, dtype=object)
        low, high = min(categories), max(categories)
        if int(high) - int(low) >= SMALL_RANGE or abs(int(low)) > 2**62:
            return None
        table = np.full(int(high) - int(low) + 1, -1, dtype=np.int32)
        table[(values - low).astype(np.int64)] = np.arange(values.size)
        lows.append(low)
        tables.append(table)
    sizes = np.array([table.size for table in tables], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)[:-1]
    concatenated = np.concatenate(tables) if tables else np.zeros(0, np.int32)
    return Lookup(np.array(lows, dtype=np.int64), starts, sizes, concatenated)


def look_up(
    array: np.ndarray,
    columns: np.ndarray,
    low: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    table: np.ndarray,
    out: np.ndarray,
) -> None:
    """Do what the kernel `look_up` does, for tables too small to load it."""
    values = array if columns.size == array.shape[1] else array[:, columns]
    with np.errstate(invalid="ignore"):  # NaN and what is too large become the lowest integer
        index = values.astype(np.int64) - low
    in_range = index.view(np.uint64) < sizes.astype(np.uint64)  # negative ones are very large here
    if values.dtype.kind != "i":
        in_range &= index + low == values
    all_in_range = in_range.all()
    out[:] = table[(index if all_in_range else np.where(in_range, index, 0)) + starts]
    if not all_in_range:
        out[~in_range] = -1
