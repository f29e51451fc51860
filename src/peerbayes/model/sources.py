"""The rows of a table, block by block: how large a block is, how it is encoded, and what is checked on the way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from peerbayes.data import infer
from peerbayes.data.column import Lookup, look_up
from peerbayes.data.infer import LARGE
from peerbayes.data.schema import Schema, infinity_in
from peerbayes.data.table import FRAME_ROWS, Rows, Table
from peerbayes.model.families.aode import Aode
from peerbayes.model.families.base import Family
from peerbayes.model.families.bayes_net import BayesNet
from peerbayes.model.families.naive_bayes import is_plain

# --- sizes: rows of a block, features kept in memory, and the work from which the kernels pay off

# The most entries and rows of a block of Φ: it fits the second-level cache, and calls stay rare.
BLOCK_ENTRIES, BLOCK_ROWS = 1 << 17, 2048

# The most entries of Φ that are kept in memory for many passes: four megabytes.
HELD_ENTRIES = 1 << 19

# Features of all rows above which one pass is worth the kernels (naive Bayes has two per continuous column), and
# entries of Φ times passes above which many are: three to ten such fits make up for loading the kernels.
LARGE_PASS, LARGE_PASSES = 2 * LARGE, 64 * HELD_ENTRIES

# Rows from which naive Bayes is calibrated without Φ: more than any published figure has, so that these keep their
# bits.
FUSED_ROWS = 1 << 15

# Rows of a block of cells, of a table of at least `FUSED_ROWS`: its 32-bit copy stays small beside the cells held.
CELLED_ROWS = 1 << 9


def block_rows(features: int, most: int = BLOCK_ROWS) -> int:
    """Return the rows of a block, at `most` so many, given the features per row."""
    return max(64, min(most, BLOCK_ENTRIES // features))


def is_large(family: Family, rows: int) -> bool:
    """Whether one pass over the rows is worth the kernels; it does not expand one-hots."""
    work = rows * (family.dense_size + 2 * len(family.cardinalities))
    return work > LARGE_PASS and family.plain_cells


def are_large(family: Family, rows: int, passes: int) -> bool:
    """Whether the given passes over the rows are worth the kernels."""
    return rows * family.size * passes > LARGE_PASSES and family.plain_cells


def gathers(family: Family, rows: int, classes: int, passes: int) -> bool:
    """Whether the given passes over the rows of a Bayesian network are worth the kernels that gather its entries."""
    work = (rows * family.filled + family.size) * classes * passes
    least = 2 * LARGE_PASSES if is_held(family, rows) else LARGE_PASSES // 8  # Φ would be built in every pass
    return type(family) is BayesNet and work > least and not os.environ.get("PEERBAYES_PLAIN")


def averages(family: Family, rows: int, classes: int, passes: int) -> bool:
    """Whether the given passes over the rows are worth the kernel of averaged one-dependence estimators."""
    work = rows * family.filled * classes * passes
    return type(family) is Aode and work > LARGE_PASSES // 4 and not os.environ.get("PEERBAYES_PLAIN")


def is_fused(family: Family, rows: int) -> bool:
    """Whether passes over the rows are by the kernels of naive Bayes, without φ."""
    fits = is_plain(family) and not family.missing
    return fits and rows >= FUSED_ROWS and not os.environ.get("PEERBAYES_PLAIN")


def is_held(family: Family, rows: int) -> bool:
    """Whether Φ of the rows is small enough to be kept in memory."""
    return rows * (family.filled if family.wide else family.size) <= HELD_ENTRIES


# --- rows of a table in blocks, encoded beforehand or on the fly


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

    def standard(self, out: np.ndarray | None = None) -> np.ndarray:
        """Return z, transposed so that inner loops run over rows, in `out` if it is given: [Dc, b]."""
        standard = np.empty(self.values.shape[::-1]) if out is None else out
        if self.clip == np.inf:  # already encoded
            standard[...] = self.values.T
            return standard
        with np.errstate(over="ignore"):  # what overflows is clipped
            np.subtract(self.values.T, self.location[:, None], out=standard)
            standard *= self.inverse[:, None]
        return np.clip(standard, -self.clip, self.clip, out=standard)


@dataclass(frozen=True)
class Encoded:
    """Rows that are already encoded."""

    schema: Schema
    data: Rows
    table: Table | None = None
    """Where they are from, if that is known."""

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
    complete: bool = False
    """Whether it is certain that no number is missing."""

    @property
    def rows(self) -> int:
        return self.table.rows

    @cached_property
    def tables(self) -> Lookup | None:
        """The lookup tables of category indices, if the table is an array of numbers and the categories allow them."""
        return None if self.schema.array_of(self.table) is None else self.schema.lookup

    def blocks(self, size: int, fast: bool = False) -> Iterator[tuple[int, Block]]:
        """Yield blocks of `size` rows, each with the number of its first row; `fast`: the kernels are loaded anyway."""
        array, schema, tables = self.schema.array_of(self.table), self.schema, self.tables
        if array is None or tables is None:
            for start in range(0, self.rows, FRAME_ROWS):
                rows = schema.encode(self.table.part(start, start + FRAME_ROWS))
                for inner, block in Encoded(schema, rows).blocks(size):
                    yield start + inner, block
            return
        look_up_codes: Callable[..., None] = look_up
        places, looked_up, *lookup = tables
        if looked_up.size and (fast or array.size > infer.LARGE):
            from peerbayes.model.kernels import block_loops

            look_up_codes = block_loops.look_up
        discrete = np.array(schema.discrete, int)
        others = np.setdiff1d(np.arange(discrete.size), places) if places.size < discrete.size else ()
        units = schema.location, 1.0 / schema.scale, schema.limit
        for start in range(0, self.rows, size):
            chunk = array[start : start + size]
            values = _values(schema, self.table, chunk, start.__add__)
            values = np.ascontiguousarray(values) if fast else values
            codes = np.empty((chunk.shape[0], discrete.size), dtype=np.int32)
            if looked_up.size:
                category_codes = (
                    codes if looked_up.size == discrete.size else codes[:, : looked_up.size].copy()
                )
                look_up_codes(np.ascontiguousarray(chunk), looked_up, *lookup, category_codes)
                codes[:, places] = category_codes
            for k in others:
                codes[:, k] = schema.columns[discrete[k]].codes(chunk[:, discrete[k]])
            yield start, Block(values, schema.crossed(codes), *units)


def _values(schema: Schema, table: Table, chunk: np.ndarray, row: Callable[[int], int]) -> np.ndarray:
    """Return the continuous columns of a chunk of an array, not standardised: [b, D] -> [b, Dc].

    `row` gives the position in the table of a row of the chunk, for errors.
    """
    values = chunk[:, list(schema.continuous)] if schema.discrete else chunk
    if schema.transformed:
        values = values.astype(np.float64)
    for k in schema.transformed:
        column = schema.columns[schema.continuous[k]]
        values[:, k] = column.numbers(values[:, k], lambda index: table.number(row(index)))
    return np.asarray(values, dtype=np.float64)


# --- rows of an array whose cells are found once: putting a number into its bin takes longer than all else of a pass


@dataclass(frozen=True)
class Celled:
    """Rows of an array of numbers: the cells of its columns are held, a byte or two each; continuous values are not.

    Some of the rows are a mask, not a copy. Crosses follow from the cells of their columns block by block.
    """

    schema: Schema
    array: Table
    """All rows."""
    cells: np.ndarray  # [n, Dd] of all rows, without crosses, −1 where a value is missing
    chosen: np.ndarray | None = None  # [n] which of them count; None: all

    @cached_property
    def rows(self) -> int:
        return len(self.cells) if self.chosen is None else int(np.count_nonzero(self.chosen))

    @property
    def table(self) -> Table:
        """The rows that count."""
        return self.array if self.chosen is None else self.array.take(self.chosen)

    def blocks(self, size: int, fast: bool = False) -> Iterator[tuple[int, Block]]:
        """Yield blocks of `size` rows, each with the number of its first row."""
        start = 0
        for positions in self._positions(size):
            block = self._block(positions)
            yield start, block
            start += len(block.codes)

    def at(self, indices: np.ndarray) -> Rows:
        """Return the rows at some positions, encoded."""
        return self._block(indices if self.chosen is None else np.flatnonzero(self.chosen)[indices]).rows()

    def taken(self, rows: np.ndarray) -> Celled:
        """Return the rows where `rows` is true: [n]."""
        chosen = rows
        if self.chosen is not None:
            chosen = self.chosen.copy()
            chosen[self.chosen] = rows
        return Celled(self.schema, self.array, self.cells, chosen)

    def _positions(self, size: int) -> Iterator[slice | np.ndarray]:
        """Yield the positions of `size` rows at a time among all."""
        ranges = (slice(start, start + size) for start in range(0, len(self.cells), size))
        if self.chosen is None:
            yield from ranges
            return
        pending = np.zeros(0, dtype=np.int64)
        for span in ranges:
            pending = np.concatenate([pending, span.start + np.flatnonzero(self.chosen[span])])
            if pending.size >= size:
                yield pending[:size]
                pending = pending[size:]
        if pending.size:
            yield pending

    def _block(self, positions: slice | np.ndarray) -> Block:
        """Return the rows at some positions among all."""
        schema, numbers = self.schema, self.schema.array_of(self.array)
        assert numbers is not None
        cells = self.cells[positions]
        values = np.empty((len(cells), 0))
        if schema.continuous:
            chunk = numbers[positions]

            def row(index: int) -> int:
                return index + positions.start if isinstance(positions, slice) else int(positions[index])

            values = _values(schema, self.array, chunk, row)
        return Block(values, schema.crossed(cells), schema.location, 1.0 / schema.scale, schema.limit)


def celled(raw: Raw) -> Celled | None:
    """Return the rows of an array with their cells held; None where that saves nothing, or a column has too many."""
    schema = replace(raw.schema, crosses=())
    if raw.tables is None or raw.tables.places.size == len(schema.discrete):  # looked up as fast as read
        return None
    most = max(schema.columns[j].cells for j in schema.discrete)
    width = next((width for width in (np.int8, np.int16) if most <= np.iinfo(width).max), None)
    if width is None:
        return None
    cells = np.empty((raw.rows, len(schema.discrete)), dtype=width)
    for start, block in Raw(schema, raw.table).blocks(BLOCK_ROWS):
        cells[start : start + len(block.codes)] = block.codes
    return Celled(raw.schema, raw.table, cells)


Source = Encoded | Raw | Celled


def source_of(schema: Schema, table: Table, *, again: bool) -> Source:
    """Return a source of encoded rows: numbers are encoded in every pass, text and few rows only once.

    `again` says that there will be many passes; only an array of numbers is then encoded every time, but for the cells
    of its bins.
    """
    schema.places(table)  # a table of other columns is refused
    raw = Raw(schema, table)
    streams = raw.tables is not None or (not again and table.rows > FRAME_ROWS and table.all_numbers)
    if not streams:
        return Encoded(schema, schema.encode(table), table)
    return (celled(raw) if again else None) or raw


def all_rows(source: Source) -> Rows:
    """Return all rows of a source, encoded."""
    return source.data if isinstance(source, Encoded) else source.schema.encode(source.table)


def rows_at(source: Source, indices: np.ndarray) -> Rows:
    """Return the rows of a source at some positions, encoded."""
    if isinstance(source, Encoded):
        return Rows(source.data.values[indices], source.data.codes[indices])
    return (
        source.at(indices) if isinstance(source, Celled) else source.schema.encode(source.table.take(indices))
    )


def taken(source: Source, rows: np.ndarray) -> Source:
    """Return the rows of a source where `rows` is true: [n]."""
    if isinstance(source, Celled):
        return source.taken(rows)
    if isinstance(source, Encoded):
        table = None if source.table is None else source.table.take(rows)
        return Encoded(source.schema, Rows(source.data.values[rows], source.data.codes[rows]), table)
    return Raw(source.schema, source.table.take(rows))


def small_blocks(source: Source, size: int) -> int:
    """Return the rows of a block: fewer than `size` where a large table is held as cells, which are much smaller."""
    return min(size, CELLED_ROWS) if isinstance(source, Celled) and len(source.cells) >= FUSED_ROWS else size


def columns_of(schema: Schema) -> list[str]:
    """Return the names of the columns in a family's order: continuous ones first, crosses last."""
    return list(schema.feature_names)


# --- checks of rows: missing values and infinities


def check_rows(source: Source, table: Table, *, inferred: bool = False) -> bool:
    """Return whether a continuous value is missing; refuse infinities.

    `inferred` says that the schema was inferred from these very rows, each counted once.
    """
    if inferred and not isinstance(source, Encoded) and _complete(source):
        return False
    array = None if isinstance(source, Encoded) else source.schema.array_of(source.table)
    if array is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            finite = array.dtype.kind in "iu" or np.isfinite(array.sum(dtype=np.float64))
        if finite:
            return False
        _refuse_infinity(array, source.schema, table)
    missing = False
    for _, block in source.blocks(FRAME_ROWS):  # all of them: encoding refuses infinities
        missing |= bool(np.isnan(block.values).any())
    return missing


def first_missing(source: Source, family: Family, missing: bool) -> str | None:
    """Return the name of a column with a missing value that φ cannot represent, or None.

    `missing`: whether a continuous value is missing.
    """
    if family.marks_missing or not (missing or not family.plain_cells):
        return None
    names = columns_of(source.schema)
    for _, block in source.blocks(FRAME_ROWS):
        incomplete = family.incomplete(Rows(block.values, block.codes))
        if incomplete.any():
            absent = np.concatenate([np.isnan(block.values[incomplete]), block.codes[incomplete] < 0], axis=1)
            return names[int(np.argmax(absent.any(axis=0)))]
    return None


def _complete(source: Raw | Celled) -> bool:
    """Whether a schema inferred from these rows shows that none of their values is missing or infinite."""
    array = source.schema.array_of(source.table)
    if array is not None and array.dtype.kind in "iu":
        return True
    numbers = [column for column in source.schema.columns if column.traits.reads_numbers]
    return bool(numbers) and all(column.count == source.rows for column in numbers)


def _refuse_infinity(array: np.ndarray, schema: Schema, table: Table) -> None:
    """Raise for the first infinity in a column of numbers."""
    columns = [j for j, column in enumerate(schema.columns) if column.traits.reads_numbers]
    for start in range(0, array.shape[0], FRAME_ROWS):
        infinite = np.isinf(array[start : start + FRAME_ROWS])
        for j in columns:
            if infinite[:, j].any():
                raise infinity_in(schema.names[j], table.number(start + int(np.argmax(infinite[:, j]))))


# --- what rows say of each column by counting, whatever the model: how much it tells of the class, and its range
#     I(x; c) = Σ_xc p(x,c) log₂ p(x,c) / p(x)p(c) − bias        in bits, p the shares of the rows
#
# The bias of counted information is that of Miller and Madow, (cells − values − classes + 1)/(2n ln 2) over those that
# occur. A column with few distinct values is counted by value, another in bins that hold equally many rows;
# a value as frequent as a bin is one of its own.

# The most rows and entries that are counted, evenly spaced among all: bits are then right to a few per cent, and
# counting costs less than one pass over a large table.
COUNTED_ROWS, COUNTED_ENTRIES, FEWEST_ROWS = 1 << 14, 3 << 15, 2000

# The most distinct values that are counted one by one, and the most bins of other columns.
VALUES, BINS = 256, 64

# Rows that a cell of values has on average, at least, if they are counted one by one.
ROWS_PER_CELL = 5

# The share of the rows beyond either end of a range, which is therefore no single row's value in a large table.
BEYOND = 0.005


class Observed(NamedTuple):
    """Bits and ranges of the columns, continuous ones first."""

    bits: np.ndarray  # [D] mutual information with the class
    ranges: np.ndarray  # [Dc, 2] low and high, in standardised units, between which nearly all values lie


class LaterObserved:
    """Bits and ranges that are counted when they are first read, since most models are never asked for them.

    Until then it has rows of its own, which are in no copy and in no pickle of it: these have what was counted.
    """

    def __init__(self, count: Callable[[], Observed]) -> None:
        self._count: Callable[[], Observed] | None = count
        self._counted: Observed | None = None

    def counted(self) -> Observed:
        """Return what was counted; the rows are let go."""
        count = self._count
        if count is not None:
            self._counted, self._count = count(), None
        assert self._counted is not None
        return self._counted

    def __reduce__(self) -> tuple[Any, ...]:
        return Observed, tuple(self.counted())


def observe_later(
    source: Source, labels: np.ndarray, classes: int, weights: np.ndarray | None = None
) -> Observed | LaterObserved:
    """Return what `observe` says of as many rows of a source as are counted, from a copy of them.

    Wide rows, of which a copy would take much memory, are counted at once.
    """
    columns = len(source.schema.columns)
    indices = counted_rows(source.rows, columns)
    some_labels, some_weights = labels[indices], None if weights is None else weights[indices]
    if isinstance(source, Raw):
        table = source.table.take(indices)
        rows = partial(source.schema.encode, table)
    else:
        rows = partial(Rows, *rows_at(source, indices))

    def count() -> Observed:
        return observe(rows(), some_labels, classes, some_weights)

    return LaterObserved(count) if indices.size * columns <= COUNTED_ENTRIES else count()


def counted_rows(rows: int, columns: int) -> np.ndarray:
    """Return the indices of the rows to count, evenly spaced: [m]."""
    most = min(COUNTED_ROWS, max(FEWEST_ROWS, COUNTED_ENTRIES // max(1, columns)))
    return np.arange(rows) if rows <= most else np.linspace(0, rows - 1, most).astype(np.int64)


def observe(rows: Rows, labels: np.ndarray, classes: int, weights: np.ndarray | None = None) -> Observed:
    """Return the bits and ranges of encoded rows [n] with class indices [n], −1 for none, and weights [n]."""
    weights = np.ones(labels.size) if weights is None else weights
    columns = np.ascontiguousarray(rows.values.T)
    ordered = np.sort(columns, axis=1)  # NaN comes last
    edges = _even_edges(ordered, classes)
    ranges, codes = np.zeros((len(columns), 2)), []
    for j, column in enumerate(columns):
        if edges is not None and not np.isnan(edges[j, 0]):
            ranges[j] = _range(ordered[j])
            codes.append(_bins(edges[j], column))
            continue
        present = ~np.isnan(column)
        of_column = ordered[j, : np.count_nonzero(present)]
        ranges[j] = _range(of_column)
        codes.append(np.full(labels.size, -1))
        codes[-1][present] = _codes(column[present], of_column, classes)
    bits = [_bits(codes, labels, classes, weights)]  # of few values each
    bits += [_bits([column], labels, classes, weights) for column in rows.codes.T]
    return Observed(np.concatenate(bits), ranges)


def _even_edges(ordered: np.ndarray, classes: int) -> np.ndarray | None:
    """Return the edges of `_codes` of columns with many values, none missing or frequent, in one go: [D, bins].

    Those of other columns begin with NaN; None: all are others.
    """
    columns, rows = ordered.shape
    bins = _bin_count(rows, classes)
    if not columns or not rows or rows <= bins:
        return None
    distinct = 1 + np.count_nonzero(ordered[:, 1:] > ordered[:, :-1], axis=1)
    run = -(-rows // bins) - 1  # a value is frequent if it is also so many places further on
    frequent = (ordered[:, run:] == ordered[:, : rows - run]).any(axis=1)
    edges = ordered[:, np.arange(bins) * rows // bins].copy()
    edges[np.isnan(ordered[:, -1]) | frequent | (distinct <= _countable(rows, classes)), 0] = np.nan
    return edges


def _bin_count(rows: int, classes: int) -> int:
    """Return how many bins the values of so many rows go into."""
    return int(np.clip(np.sqrt(rows / classes), 2, BINS))


def _countable(rows: int, classes: int) -> float:
    """Return the most distinct values of so many rows that are counted one by one."""
    return min(VALUES, rows / (ROWS_PER_CELL * classes))


def _bins(edges: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the number of edges up to each value, but for the first: what `searchsorted` does, for few edges."""
    reached = values >= edges[1:, None]
    return np.add.reduce(reached.view(np.uint8), axis=0, dtype=np.uint8)


def _range(ordered: np.ndarray) -> np.ndarray:
    """Return the values with a share of `BEYOND` of the rows beyond them, or the extremes where these are one: [2]."""
    if not ordered.size:
        return np.zeros(2)
    ends = ordered[[int(BEYOND * ordered.size), -1 - int(BEYOND * ordered.size)]]
    return ends if ends[0] < ends[1] else ordered[[0, -1]]


def _codes(values: np.ndarray, ordered: np.ndarray, classes: int) -> np.ndarray:
    """Return the number of the value, or of the bin, of each row: [n] -> [n]."""
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] > ordered[:-1]])[: ordered.size])
    edges = ordered[starts]
    if edges.size > _countable(ordered.size, classes):
        bins = _bin_count(ordered.size, classes)
        frequent = np.diff(starts, append=ordered.size) * bins >= ordered.size
        others = np.repeat(edges, np.where(frequent, 0, np.diff(starts, append=ordered.size)))
        after = np.concatenate([[True], frequent[:-1]])  # a frequent value has a bin of its own
        quantiles = others[np.arange(bins) * others.size // bins] if others.size else others
        edges = np.union1d(edges[frequent | after], quantiles)
    return np.searchsorted(edges, values, side="right") - 1


def _bits(codes: Sequence[np.ndarray], labels: np.ndarray, classes: int, weights: np.ndarray) -> np.ndarray:
    """Return I(x; c) of D columns of values [n]; where one is missing, −1, it tells nothing: [D]."""
    labelled = labels >= 0
    if not codes or not labels.size:
        return np.zeros(len(codes))
    values = 1 + max(int(column.max()) for column in codes)
    of_class, squared = labels.astype(np.int64) * values, weights**2
    counts, squares = np.zeros((len(codes), classes, values)), np.zeros(len(codes))
    for j, column in enumerate(codes):
        cells, of_cells, counted = of_class + column, weights, (column >= 0) & labelled
        if not counted.all():
            cells, of_cells = cells[counted], weights[counted]
        counts[j] = np.bincount(cells, of_cells, classes * values).reshape(classes, values)
        squares[j] = counted @ squared
    mass = counts.sum(axis=(1, 2))
    joint = counts / np.where(mass > 0, mass, 1.0)[:, None, None]
    independent = joint.sum(axis=2, keepdims=True) * joint.sum(axis=1, keepdims=True)
    occurs = joint > 0
    ratio = np.divide(joint, independent, out=np.ones_like(joint), where=occurs)
    plain = np.sum(joint * np.log2(ratio), axis=(1, 2))
    of_values, of_classes = (occurs.any(axis=axis).sum(axis=1) for axis in (1, 2))
    excess = occurs.sum(axis=(1, 2)) - of_values - of_classes + 1
    rows = mass**2 / np.where(squares > 0, squares, 1.0)  # as many equal rows vary as much
    bias = excess / (2 * np.where(rows > 0, rows, 1.0) * np.log(2.0))
    return np.maximum(0.0, plain - bias) * (mass / max(weights[labelled].sum(), np.finfo(float).tiny))
