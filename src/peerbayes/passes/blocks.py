"""Rows of a table in blocks, encoded beforehand or on the fly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from peerbayes import scans
from peerbayes.families.base import Rows
from peerbayes.passes.lookup import Lookup, look_up, lookup_of
from peerbayes.passes.sizes import FRAME_ROWS
from peerbayes.schema import Schema
from peerbayes.tables import Table


class Block(NamedTuple):
    """A block of rows whose values are not standardised yet: z = clip((x − location)·inverse)."""

    values: np.ndarray  # [b, Dc]
    codes: np.ndarray  # [b, Dd]
    location: np.ndarray  # [Dc]
    inverse: np.ndarray  # [Dc]
    clip: float

    def rows(self) -> Rows:
        """Return the encoded rows: [b, Dc], [b, Dd]."""
        return Rows(self.standard().T, self.codes)

    def standard(self) -> np.ndarray:
        """Return z, transposed so that inner loops run over rows: [Dc, b]."""
        standard = np.ascontiguousarray(self.values.T)
        if self.clip == np.inf:  # already encoded
            return standard
        with np.errstate(over="ignore"):  # what overflows is clipped
            standard = standard - self.location[:, None]
            standard *= self.inverse[:, None]
        return np.clip(standard, -self.clip, self.clip, out=standard)


@dataclass(frozen=True)
class Encoded:
    """Rows that are already encoded."""

    schema: Schema
    data: Rows

    @property
    def rows(self) -> int:
        return int(self.data.values.shape[0])

    def blocks(self, size: int, fast: bool = False) -> Iterator[tuple[int, Block]]:
        """Yield blocks of `size` rows, each with the number of its first row."""
        columns = self.data.values.shape[1]
        units = np.zeros(columns), np.ones(columns), np.inf
        for start in range(0, self.rows, size):
            stop = start + size
            yield start, Block(self.data.values[start:stop], self.data.codes[start:stop], *units)


@dataclass(frozen=True)
class Raw:
    """Rows of a table, encoded block by block."""

    schema: Schema
    table: Table

    @property
    def rows(self) -> int:
        return self.table.rows

    @cached_property
    def tables(self) -> Lookup | None:
        """The lookup tables of category indices, if the table is an array of numbers and the categories allow them."""
        return None if self.table.numeric is None else lookup_of(self.schema)

    def blocks(self, size: int, fast: bool = False) -> Iterator[tuple[int, Block]]:
        """Yield blocks of `size` rows, each with the number of its first row; `fast`: the kernels are loaded anyway."""
        array, schema, tables = self.table.numeric, self.schema, self.tables
        if array is None or tables is None:
            for start in range(0, self.rows, FRAME_ROWS):
                rows = schema.encode(self.table.part(start, start + FRAME_ROWS))
                for inner, block in Encoded(schema, rows).blocks(size):
                    yield start + inner, block
            return
        look_up_codes: Callable[..., None] = look_up
        if schema.discrete and (fast or array.size > scans.LARGE):
            from peerbayes import kernels

            look_up_codes = kernels.look_up
        continuous, discrete = np.array(schema.continuous, int), np.array(schema.discrete, int)
        units = schema.location, 1.0 / schema.scale, schema.limit
        for start in range(0, self.rows, size):
            chunk = array[start : start + size]
            values = chunk[:, continuous] if discrete.size else chunk
            codes = np.empty((chunk.shape[0], discrete.size), dtype=np.int32)
            if discrete.size:
                look_up_codes(np.ascontiguousarray(chunk), discrete, *tables, codes)
            yield start, Block(np.ascontiguousarray(values, dtype=np.float64), codes, *units)


Source = Encoded | Raw


def source_of(schema: Schema, table: Table, *, again: bool) -> Source:
    """Return a source of encoded rows: numbers are encoded in every pass, text only once.

    `again` says that there will be many passes; only an array of numbers is then encoded every time.
    """
    schema.places(table)  # a table of other columns is refused
    raw = Raw(schema, table)
    streams = raw.tables is not None or (not again and table.all_numbers)
    return raw if streams else Encoded(schema, schema.encode(table))


def all_rows(source: Source) -> Rows:
    """Return all rows of a source, encoded."""
    return source.data if isinstance(source, Encoded) else source.schema.encode(source.table)


def columns_of(schema: Schema) -> list[str]:
    """Return the names of the columns in a family's order: continuous ones first."""
    return [schema.names[j] for j in (*schema.continuous, *schema.discrete)]
