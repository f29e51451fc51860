"""Category indices of an array of numbers, looked up instead of searched for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from peerbayes.scans import SMALL_RANGE
from peerbayes.schema import Schema


class Lookup(NamedTuple):
    """A table of category indices for each discrete column, one after the other; −1 where there is no category."""

    low: np.ndarray  # [Dd] the value that a column's table begins with
    starts: np.ndarray  # [Dd] where it begins
    sizes: np.ndarray  # [Dd] how long it is
    table: np.ndarray


def lookup_of(schema: Schema) -> Lookup | None:
    """The tables of a schema, if every discrete column holds small-range integers."""
    lows, tables = [], []
    for j in schema.discrete:
        categories = schema.columns[j].categories
        if not categories or any(type(value) is not int for value in categories):
            return None
        known = np.array(categories, dtype=object)
        low, high = min(categories), max(categories)
        if int(high) - int(low) >= SMALL_RANGE or abs(int(low)) > 2**62:
            return None
        table = np.full(int(high) - int(low) + 1, -1, dtype=np.int32)
        table[(known - low).astype(np.int64)] = np.arange(known.size)
        lows.append(low)
        tables.append(table)
    sizes = np.array([table.size for table in tables], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)[:-1]
    whole = np.concatenate(tables) if tables else np.zeros(0, np.int32)
    return Lookup(np.array(lows, dtype=np.int64), starts, sizes, whole)


def look_up(
    part: np.ndarray,
    columns: np.ndarray,
    low: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    table: np.ndarray,
    out: np.ndarray,
) -> None:
    """The kernel `look_up`, for tables too small to load it."""
    values = part if columns.size == part.shape[1] else part[:, columns]
    with np.errstate(invalid="ignore"):  # NaN and what is too large become the lowest integer
        place = values.astype(np.int64) - low
    known = place.view(np.uint64) < sizes.astype(np.uint64)  # negative ones are very large here
    if values.dtype.kind != "i":
        known &= place + low == values
    every = known.all()
    out[:] = table[(place if every else np.where(known, place, 0)) + starts]
    if not every:
        out[~known] = -1
