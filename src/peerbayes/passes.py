"""One pass over the rows of a table: statistics, residual, log joint, posterior.

Small tables hold Φ and use `core`; large ones are encoded, expanded and thrown away block by block by the
`kernels`, so that a pass costs two matrix products and no memory. Both give the same numbers to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from peerbayes import core
from peerbayes.errors import SchemaError
from peerbayes.families.base import Family, Rows
from peerbayes.families.gaussian import Gaussian
from peerbayes.families.naive_bayes import NaiveBayes
from peerbayes.scans import LARGE, LONG_BLOCK_ROWS, SMALL_RANGE
from peerbayes.schema import Schema, infinity_in
from peerbayes.tables import Table

# A block of Φ: it fits the second-level cache, and calls stay rare.
BLOCK_ENTRIES, BLOCK_ROWS = 1 << 17, 2048

# Rows of a DataFrame that are encoded at a time: large enough for its per-column cost not to matter.
FRAME_ROWS = 1 << 15


class Evaluation(NamedTuple):
    """What one pass says about a model."""

    residual: np.ndarray  # [C, K]
    soft_error: float
    error: float


class Block(NamedTuple):
    """A block of rows whose values are still to be standardised: z = clip((x − location)·inverse)."""

    values: np.ndarray  # [b, Dc]
    codes: np.ndarray  # [b, Dd]
    location: np.ndarray  # [Dc]
    inverse: np.ndarray  # [Dc]
    clip: float

    def rows(self) -> Rows:
        standard = (self.values - self.location) * self.inverse
        return Rows(np.clip(standard, -self.clip, self.clip), self.codes)


# --- where rows come from ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoded:
    """Rows already encoded."""

    schema: Schema
    data: Rows

    @property
    def rows(self) -> int:
        return int(self.data.values.shape[0])

    def blocks(self, size: int) -> Iterator[tuple[int, Block]]:
        columns = self.data.values.shape[1]
        units = np.zeros(columns), np.ones(columns), np.inf
        for start in range(0, self.rows, size):
            stop = start + size
            yield start, Block(self.data.values[start:stop], self.data.codes[start:stop], *units)


@dataclass(frozen=True)
class Raw:
    """Rows of a table, encoded as they are asked for."""

    schema: Schema
    table: Table

    @property
    def rows(self) -> int:
        return self.table.rows

    def blocks(self, size: int) -> Iterator[tuple[int, Block]]:
        array, schema = self.table.numeric, self.schema
        fast = array is not None and array.size > LARGE
        tables = _lookup_tables(schema) if fast else None
        if array is None or tables is None:
            for start in range(0, self.rows, FRAME_ROWS):
                rows = schema.encode(self.table.part(start, start + FRAME_ROWS))
                for inner, block in Encoded(schema, rows).blocks(size):
                    yield start + inner, block
            return
        from peerbayes import kernels

        continuous, discrete = np.array(schema.continuous, int), np.array(schema.discrete, int)
        units = schema.location, 1.0 / schema.scale, schema.limit
        for start in range(0, self.rows, size):
            part = array[start : start + size]
            values = part[:, continuous] if discrete.size else part
            codes = np.empty((part.shape[0], discrete.size), dtype=np.int32)
            if discrete.size:
                kernels.look_up(np.ascontiguousarray(part), discrete, *tables, codes)
            yield start, Block(np.ascontiguousarray(values, dtype=np.float64), codes, *units)


Source = Encoded | Raw


def source_of(schema: Schema, table: Table, *, again: bool) -> Source:
    """Where to take rows from: numbers are encoded as they pass, text is once and for all.

    `again` says that they will be asked for many times; only an array of numbers is then encoded every time.
    """
    streams = table.numeric is not None or (not again and table.all_numbers)
    return Raw(schema, table) if streams else Encoded(schema, schema.encode(table))


def check_rows(source: Source, table: Table, *, training: bool, inferred: bool = False) -> bool:
    """Whether a continuous value is missing; infinities, and training rows without any value, are refused.

    `inferred` says that the schema was measured on these very rows, each counted once.
    """
    if inferred and isinstance(source, Raw) and _complete(source):
        return False
    if isinstance(source, Raw) and source.table.numeric is not None:
        array = source.table.numeric
        with np.errstate(over="ignore", invalid="ignore"):
            whole = array.dtype.kind in "iu" or np.isfinite(array.sum(dtype=np.float64))
        if whole and (source.schema.continuous or not training):
            return False
        _refuse_infinity(array, source.schema, table)
    missing = False
    for start, block in source.blocks(FRAME_ROWS):
        absent = np.isnan(block.values)
        missing |= bool(absent.any())
        empty = absent.all(axis=1) & (block.codes < 0).all(axis=1)
        if training and empty.any():
            raise SchemaError(
                f"row {table.number(start + int(np.argmax(empty)))} has no value in any column, only a label; "
                "leave such rows out"
            )
    return missing


def first_missing(source: Source) -> str:
    """The name of a continuous column that has a missing value."""
    schema = source.schema
    for _, block in source.blocks(FRAME_ROWS):
        absent = np.isnan(block.values).any(axis=0)
        if absent.any():
            return schema.names[schema.continuous[int(np.argmax(absent))]]
    raise ValueError("no value is missing")


def _complete(source: Raw) -> bool:
    """Whether a schema measured on these rows says that none of their values is missing or infinite."""
    if source.table.numeric is not None and source.table.numeric.dtype.kind in "iu":
        return True
    continuous = [source.schema.columns[j] for j in source.schema.continuous]
    return bool(continuous) and all(column.count == source.rows for column in continuous)


def _refuse_infinity(array: np.ndarray, schema: Schema, table: Table) -> None:
    for start in range(0, array.shape[0], FRAME_ROWS):
        infinite = np.isinf(array[start : start + FRAME_ROWS])
        for j in schema.continuous:
            if infinite[:, j].any():
                raise infinity_in(schema.names[j], table.number(start + int(np.argmax(infinite[:, j]))))


def _lookup_tables(schema: Schema) -> tuple[np.ndarray, ...] | None:
    """low, start, size and table of the category indices, if every discrete column holds small-range integers."""
    lows, tables = [], []
    for j in schema.discrete:
        categories = schema.columns[j].categories
        if not categories or any(type(value) is not int for value in categories):
            return None
        known = np.array(categories, dtype=object)
        low, high = min(categories), max(categories)
        if int(high) - int(low) >= SMALL_RANGE:
            return None
        table = np.full(int(high) - int(low) + 1, -1, dtype=np.int32)
        table[(known - low).astype(np.int64)] = np.arange(known.size)
        lows.append(low)
        tables.append(table)
    sizes = np.array([table.size for table in tables], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)[:-1]
    whole = np.concatenate(tables) if tables else np.zeros(0, np.int32)
    return np.array(lows, dtype=np.int64), starts, sizes, whole


# --- labelled rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """Labelled rows as Φ [n, K] and Y [n, C], for tables that fit."""

    features: np.ndarray
    labels: np.ndarray

    @property
    def mass(self) -> float:
        return float(self.labels.sum())

    def statistics(self) -> np.ndarray:
        """S = YᵀΦ: [C, K], summed in any order almost without rounding errors.

        Variances are small differences of these sums. A row of Φ times its weight is H + L, where H is its part on a
        grid of 2⁻²⁶ of the column's largest entry: sums of H are exact, and L is too small for its errors to matter.
        """
        weighted = self.features * self.labels.sum(axis=-1, keepdims=True)
        largest = np.abs(weighted).max(axis=0, initial=0.0)
        grid = 1.5 * 2.0**26 * np.exp2(np.ceil(np.log2(np.where(largest > 0, largest, 1.0))))
        upper = (weighted + grid) - grid
        of_class = (self.labels > 0).astype(np.float64)
        return core.statistics(upper, of_class) + core.statistics(weighted - upper, of_class)

    def evaluate(self, weights: np.ndarray) -> Evaluation:
        """R = (Y − P)ᵀΦ and the errors of the model W."""
        residual, soft, hard = core.evaluate(self.features, self.labels, weights)
        return Evaluation(residual, float(soft), float(hard))


@dataclass(frozen=True)
class Streamed:
    """Labelled rows that pass by block by block."""

    family: Family
    source: Source
    labels: np.ndarray  # [n] class indices
    classes: int
    weights: np.ndarray | None = None  # [n]

    @property
    def mass(self) -> float:
        return float(self.labels.size if self.weights is None else self.weights.sum())

    def statistics(self) -> np.ndarray:
        """S = YᵀΦ: [C, K]."""
        from peerbayes import kernels

        family, shortcut = self.family, _FAST_STATISTICS.get(_shape(self.family), "")
        size = LONG_BLOCK_ROWS if shortcut else block_rows(family)
        stats = np.zeros((self.classes, family.size))
        dense, cells = np.zeros((self.classes, family.dense_size)), stats[:, family.dense_size :]
        expand = None if shortcut else _expander(family, size)
        for block, labels, weights in self._blocks(size):
            if expand is None:
                values, _, *units = block
                getattr(kernels, shortcut)(values, *units, _missing(family), labels, weights, dense)
            else:
                dense += (core.one_hot(labels, self.classes) * weights[:, None]).T @ expand(block).T
            if family.cardinalities:
                kernels.cell_statistics(block.codes, family.offsets, labels, weights, cells)
        stats[:, : family.dense_size] = dense
        return stats

    def evaluate(self, weights: np.ndarray) -> Evaluation:
        """R = (Y − P)ᵀΦ and the errors of the model W."""
        from peerbayes import kernels

        family, size = self.family, block_rows(self.family)
        logits_of = _logits(family, weights, size)
        residual = np.zeros((self.classes, family.dense_size))
        cells = np.zeros((sum(family.cardinalities), self.classes))
        part = np.empty_like(residual)
        best = np.empty(size, dtype=np.int64)
        soft = wrong = 0.0
        for block, labels, row_weights in self._blocks(size):
            features, logits = logits_of(block)
            lost = kernels.residuals(logits, best[: labels.size], labels, row_weights)
            soft, wrong = soft + lost[0], wrong + lost[1]
            residual += np.dot(logits, features.T, out=part)
            if family.cardinalities:
                kernels.scatter_cells(block.codes, family.offsets, logits, cells)
        mass = self.mass
        return Evaluation(np.concatenate([residual, cells.T], axis=1), soft / mass, wrong / mass)

    def _blocks(self, size: int) -> Iterator[tuple[Block, np.ndarray, np.ndarray]]:
        ones = np.ones(size)
        for start, block in self.source.blocks(size):
            stop = start + block.values.shape[0]
            weights = ones[: stop - start] if self.weights is None else self.weights[start:stop]
            yield block, self.labels[start:stop], weights


Data = Held | Streamed


def labelled(
    family: Family,
    source: Source,
    labels: np.ndarray,
    classes: int,
    weights: np.ndarray | None = None,
) -> Data:
    """Labelled rows in the form that suits their number."""
    if is_large(family, source.rows):
        return Streamed(family, source, labels, classes, weights)
    one_hot = core.one_hot(labels, classes)
    if weights is not None:
        one_hot = one_hot * weights[:, None]
    return Held(family.features(all_rows(source)), one_hot)


# --- prediction --------------------------------------------------------------------------------------------


def log_joint(family: Family, weights: np.ndarray, source: Source) -> np.ndarray:
    """log p(z, c) of every row, in standardised units: [n, C]."""
    return _predicted(family, weights, source, np.asarray)


def posterior(family: Family, weights: np.ndarray, source: Source) -> np.ndarray:
    """p(c | x) of every row: [n, C]."""
    if not is_large(family, source.rows):
        return np.asarray(core.softmax(_predicted(family, weights, source, np.asarray)))
    from peerbayes import kernels

    best = np.empty(block_rows(family), dtype=np.int64)

    def normalise(logits: np.ndarray) -> np.ndarray:
        kernels.softmax(logits, best[: logits.shape[1]])
        return logits

    return _predicted(family, weights, source, normalise)


def _predicted(
    family: Family, weights: np.ndarray, source: Source, finish: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    if not is_large(family, source.rows):
        return np.asarray(core.log_joint(family.features(all_rows(source)), weights))
    logits_of = _logits(family, weights, block_rows(family))
    out = np.empty((source.rows, weights.shape[0]))
    for start, block in source.blocks(block_rows(family)):
        _, logits = logits_of(block)
        out[start : start + logits.shape[1]] = finish(logits).T
    return out


def _logits(
    family: Family, weights: np.ndarray, size: int
) -> Callable[[Block], tuple[np.ndarray, np.ndarray]]:
    """A function of a block of rows: its dense features [dense, b] and its logits [C, b], in reused memory."""
    from peerbayes import kernels

    dense = np.ascontiguousarray(weights[:, : family.dense_size])
    cells = np.ascontiguousarray(weights[:, family.dense_size :].T)
    expand = _expander(family, size)
    buffer = np.empty((weights.shape[0], size))

    def logits_of(block: Block) -> tuple[np.ndarray, np.ndarray]:
        features = expand(block)
        count = features.shape[1]
        logits = buffer if count == size else np.empty((weights.shape[0], count))
        np.dot(dense, features, out=logits)
        if family.cardinalities:
            kernels.add_cells(block.codes, family.offsets, cells, logits)
        return features, logits

    return logits_of


# --- blocks ------------------------------------------------------------------------------------------------

_FAST_EXPANSION: dict[type[Family], str] = {NaiveBayes: "expand_diagonal", Gaussian: "expand_quadratic"}
_FAST_STATISTICS: dict[type[Family], str] = {
    NaiveBayes: "diagonal_statistics",
    Gaussian: "quadratic_statistics",
}


def _shape(family: Family) -> type[Family]:
    """The type that the fast tables know the family by; any other family takes the general way."""
    return next((known for known in _FAST_EXPANSION if isinstance(family, known)), type(family))


def _missing(family: Family) -> bool:
    return isinstance(family, NaiveBayes) and family.missing


def _expander(family: Family, size: int) -> Callable[[Block], np.ndarray]:
    """A function of a block: its dense features, transposed [dense, b], in reused memory."""
    from peerbayes import kernels

    fast = _FAST_EXPANSION.get(_shape(family))
    if fast is None:
        return lambda block: np.ascontiguousarray(np.asarray(family.dense(block.rows().values)).T)
    kernel, missing = getattr(kernels, fast), _missing(family)
    buffer = np.empty((family.dense_size, size))

    def expand(block: Block) -> np.ndarray:
        values, _, *units = block
        count = values.shape[0]
        features = buffer if count == size else np.empty((family.dense_size, count))
        kernel(values, *units, missing, features)
        return features

    return expand


def is_large(family: Family, rows: int) -> bool:
    return rows * family.size > LARGE


def block_rows(family: Family) -> int:
    return max(64, min(BLOCK_ROWS, BLOCK_ENTRIES // family.dense_size))


def all_rows(source: Source) -> Rows:
    return source.data if isinstance(source, Encoded) else source.schema.encode(source.table)
