"""One pass over the rows of a table: statistics, residual, log joint, posterior.

Rows of one block are held as Φ. More are encoded, expanded and thrown away block by block, so that a pass costs two
matrix products and no memory: by the `kernels` where there is much to do, by their twins in NumPy where loading them
would take longer. All give the same numbers to rounding, and which way is taken depends on the call alone: not on what
the process did before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from peerbayes import core
from peerbayes.completion import complete
from peerbayes.errors import SchemaError
from peerbayes.families.base import Family, Rows
from peerbayes.families.gaussian import Gaussian
from peerbayes.families.naive_bayes import NaiveBayes
from peerbayes.scans import LARGE, LONG_BLOCK_ROWS, SMALL_RANGE
from peerbayes.schema import Schema, infinity_in
from peerbayes.tables import Table

# A block of Φ: it fits the second-level cache, and calls stay rare.
BLOCK_ENTRIES, BLOCK_ROWS = 1 << 17, 2048

# Entries of Φ that are held where they are needed again and again: four megabytes.
HELD_ENTRIES = 1 << 19

# Features above which one pass is work for the kernels (naive Bayes has two for a continuous column), and entries of Φ
# times passes above which many are: three to ten such fits make up for loading the kernels.
LARGE_PASS, LARGE_PASSES = 2 * LARGE, 64 * HELD_ENTRIES

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
        return Rows(self.standard().T, self.codes)

    def standard(self) -> np.ndarray:
        """z, transposed so that inner loops run over rows: [Dc, b]."""
        standard = np.ascontiguousarray(self.values.T)
        if self.clip == np.inf:  # already encoded
            return standard
        with np.errstate(over="ignore"):  # what overflows is clipped
            standard = standard - self.location[:, None]
            standard *= self.inverse[:, None]
        return np.clip(standard, -self.clip, self.clip, out=standard)


# --- where rows come from ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoded:
    """Rows already encoded."""

    schema: Schema
    data: Rows

    @property
    def rows(self) -> int:
        return int(self.data.values.shape[0])

    def blocks(self, size: int, fast: bool = False) -> Iterator[tuple[int, Block]]:
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

    @cached_property
    def tables(self) -> tuple[np.ndarray, ...] | None:
        """What category indices are looked up in, where the table is an array of numbers and that is possible."""
        return None if self.table.numeric is None else _lookup_tables(self.schema)

    def blocks(self, size: int, fast: bool = False) -> Iterator[tuple[int, Block]]:
        """Blocks of `size` rows, each with its first row's number; `fast` says that the kernels are loaded anyway."""
        array, schema, tables = self.table.numeric, self.schema, self.tables
        if array is None or tables is None:
            for start in range(0, self.rows, FRAME_ROWS):
                rows = schema.encode(self.table.part(start, start + FRAME_ROWS))
                for inner, block in Encoded(schema, rows).blocks(size):
                    yield start + inner, block
            return
        look_up: Callable[..., None] = _look_up
        if schema.discrete and (fast or array.size > LARGE):
            from peerbayes import kernels

            look_up = kernels.look_up
        continuous, discrete = np.array(schema.continuous, int), np.array(schema.discrete, int)
        units = schema.location, 1.0 / schema.scale, schema.limit
        for start in range(0, self.rows, size):
            part = array[start : start + size]
            values = part[:, continuous] if discrete.size else part
            codes = np.empty((part.shape[0], discrete.size), dtype=np.int32)
            if discrete.size:
                look_up(np.ascontiguousarray(part), discrete, *tables, codes)
            yield start, Block(np.ascontiguousarray(values, dtype=np.float64), codes, *units)


Source = Encoded | Raw


def source_of(schema: Schema, table: Table, *, again: bool) -> Source:
    """Where to take rows from: numbers are encoded as they pass, text is once and for all.

    `again` says that they will be asked for many times; only an array of numbers is then encoded every time.
    """
    schema.places(table)  # a table of other columns is refused
    raw = Raw(schema, table)
    streams = raw.tables is not None or (not again and table.all_numbers)
    return raw if streams else Encoded(schema, schema.encode(table))


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


def columns_of(schema: Schema) -> list[str]:
    """The names of the columns in a family's order: continuous ones first."""
    return [schema.names[j] for j in (*schema.continuous, *schema.discrete)]


def first_missing(source: Source, family: Family) -> str | None:
    """The name of a column whose missing value φ alone cannot take, if there is one."""
    names = columns_of(source.schema)
    for _, block in source.blocks(FRAME_ROWS):
        holed = family.incomplete(Rows(block.values, block.codes))
        if holed.any():
            absent = np.concatenate([np.isnan(block.values[holed]), block.codes[holed] < 0], axis=1)
            return names[int(np.argmax(absent.any(axis=0)))]
    return None


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
        if int(high) - int(low) >= SMALL_RANGE or abs(int(low)) > 2**62:
            return None
        table = np.full(int(high) - int(low) + 1, -1, dtype=np.int32)
        table[(known - low).astype(np.int64)] = np.arange(known.size)
        lows.append(low)
        tables.append(table)
    sizes = np.array([table.size for table in tables], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)[:-1]
    whole = np.concatenate(tables) if tables else np.zeros(0, np.int32)
    return np.array(lows, dtype=np.int64), starts, sizes, whole


def _look_up(
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


# --- labelled rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """Labelled rows as Φ [n, K] and Y [n, C]: a few, or some that will pass by many times."""

    features: Any  # [n, K] an array, or sparse where most of it is zero
    labels: np.ndarray

    @cached_property
    def classes(self) -> np.ndarray:
        return self.labels.argmax(axis=-1)

    @cached_property
    def weights(self) -> np.ndarray:
        return self.labels.sum(axis=-1)

    @property
    def mass(self) -> float:
        return float(self.weights.sum())

    def statistics(self) -> np.ndarray:
        """S = YᵀΦ: [C, K], summed almost without rounding errors."""
        features = self.features if isinstance(self.features, np.ndarray) else self.features.toarray()
        upper, lower = _split_sums((features * self.weights[:, None]).T, self.labels > 0)
        return upper + lower

    def evaluate(self, weights: np.ndarray) -> Evaluation:
        """R = (Y − P)ᵀΦ and the errors of the model W."""
        residual, soft, wrong = np.zeros(weights.shape), 0.0, 0.0
        rows, size = self.features.shape[0], block_rows(self.features.shape[1])
        for part in (slice(start, start + size) for start in range(0, rows, size)):
            logits = weights @ self.features[part].T  # [C, b]
            lost = _residuals(logits, self.classes[part], self.weights[part])
            soft, wrong = soft + lost[0], wrong + lost[1]
            residual += logits @ self.features[part]
        return Evaluation(residual, soft / self.mass, wrong / self.mass)


@dataclass(frozen=True)
class Labelled:
    """Labelled rows that pass by block by block."""

    family: Family
    source: Source
    labels: np.ndarray  # [n] class indices
    classes: int
    weights: np.ndarray | None = None  # [n]

    @property
    def mass(self) -> float:
        return float(self.labels.size if self.weights is None else self.weights.sum())

    def _blocks(self, size: int, fast: bool) -> Iterator[tuple[Block, np.ndarray, np.ndarray]]:
        ones = np.ones(min(size, self.source.rows))
        for start, block in self.source.blocks(size, fast):
            stop = start + block.values.shape[0]
            weights = ones[: stop - start] if self.weights is None else self.weights[start:stop]
            yield block, self.labels[start:stop], weights


class Plain(Labelled):
    """Labelled rows that pass by in NumPy, which needs no compiler."""

    def held(self) -> Held:
        """The same rows, expanded once and for all."""
        one_hot = core.one_hot(self.labels, self.classes)
        labels = one_hot if self.weights is None else one_hot * self.weights[:, None]
        if self.family.wide:
            return Held(self.family.sparse(all_rows(self.source)), labels)
        features = np.empty((self.family.size, self.source.rows))
        for start, block in self.source.blocks(block_rows(self.family.size)):
            features[:, start : start + block.values.shape[0]] = _features(self.family, block)
        return Held(features.T, labels)

    def statistics(self) -> np.ndarray:
        """S = YᵀΦ: [C, K], summed almost without rounding errors.

        What is lost when the sums of two blocks are added is kept, and added last.
        """
        family = self.family
        total, lost = np.zeros((2, self.classes, family.dense_size))
        cells = np.zeros((self.classes, family.size - family.dense_size))
        for block, labels, of_rows in self._blocks(block_rows(family.dense_size), fast=False):
            weights = None if self.weights is None else of_rows
            features = _dense(family, block)
            if weights is not None:
                features *= weights
            upper, lower = _split_sums(features, core.one_hot(labels, self.classes))
            before, total = total, total + upper
            added = total - before
            lost += (before - (total - added)) + (upper - added) + lower
            if cells.size:
                _entry_statistics(family, block, labels, weights, cells)
        return np.concatenate([total + lost, cells], axis=1)

    def evaluate(self, weights: np.ndarray) -> Evaluation:
        """R = (Y − P)ᵀΦ and the errors of the model W."""
        residual = np.zeros(weights.shape)
        soft = wrong = 0.0
        for block, labels, row_weights in self._blocks(block_rows(self.family.size), fast=False):
            features = _features(self.family, block)
            logits = np.asarray(weights @ features)
            lost = _residuals(logits, labels, row_weights)
            soft, wrong = soft + lost[0], wrong + lost[1]
            residual += logits @ features.T
        return Evaluation(residual, soft / self.mass, wrong / self.mass)


class Streamed(Labelled):
    """Labelled rows that pass by in the kernels."""

    def statistics(self) -> np.ndarray:
        """S = YᵀΦ: [C, K]."""
        from peerbayes import kernels

        family, shortcut = self.family, _FAST_STATISTICS.get(_shape(self.family), "")
        size = LONG_BLOCK_ROWS if shortcut else block_rows(family.dense_size)
        stats = np.zeros((self.classes, family.size))
        dense, cells = np.zeros((self.classes, family.dense_size)), stats[:, family.dense_size :]
        expand = None if shortcut else _expander(family, size)
        for block, labels, weights in self._blocks(size, fast=True):
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

        family, size = self.family, block_rows(self.family.dense_size)
        logits_of = _logits(family, weights, size)
        residual = np.zeros((self.classes, family.dense_size))
        cells = np.zeros((sum(family.cardinalities), self.classes))
        part = np.empty_like(residual)
        best = np.empty(size, dtype=np.int64)
        soft = wrong = 0.0
        for block, labels, row_weights in self._blocks(size, fast=True):
            features, logits = logits_of(block)
            lost = kernels.residuals(logits, best[: labels.size], labels, row_weights)
            soft, wrong = soft + lost[0], wrong + lost[1]
            residual += np.dot(logits, features.T, out=part)
            if family.cardinalities:
                kernels.scatter_cells(block.codes, family.offsets, logits, cells)
        mass = self.mass
        return Evaluation(np.concatenate([residual, cells.T], axis=1), soft / mass, wrong / mass)


Data = Held | Plain | Streamed


def labelled(
    family: Family,
    source: Source,
    labels: np.ndarray,
    classes: int,
    weights: np.ndarray | None = None,
) -> Data:
    """Labelled rows in the form that suits one pass over them."""
    if is_large(family, source.rows):
        return Streamed(family, source, labels, classes, weights)
    plain = Plain(family, source, labels, classes, weights)
    return plain.held() if source.rows <= block_rows(family.size) else plain


def repeated(data: Data, passes: int) -> Data:
    """The same rows in the form that suits so many passes."""
    if not isinstance(data, Plain):
        return data
    family, rows = data.family, data.source.rows
    if rows * family.size * passes > LARGE_PASSES and family.plain_cells:
        return Streamed(family, data.source, data.labels, data.classes, data.weights)
    return data.held() if rows * (family.filled if family.wide else family.size) <= HELD_ENTRIES else data


# --- prediction --------------------------------------------------------------------------------------------


def log_joint(family: Family, weights: np.ndarray, source: Source) -> np.ndarray:
    """log p(z, c) of every row, in standardised units: [n, C]."""
    return _predicted(family, weights, source, np.asarray)


def posterior(family: Family, weights: np.ndarray, source: Source) -> np.ndarray:
    """p(c | x) of every row: [n, C]."""
    if not is_large(family, source.rows):
        return _predicted(family, weights, source, _softmax)
    from peerbayes import kernels

    best = np.empty(block_rows(family.dense_size), dtype=np.int64)

    def normalise(logits: np.ndarray) -> np.ndarray:
        kernels.softmax(logits, best[: logits.shape[1]])
        return logits

    return _predicted(family, weights, source, normalise)


def _predicted(
    family: Family, weights: np.ndarray, source: Source, finish: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    large = is_large(family, source.rows)
    size = block_rows(family.dense_size)
    logits_of = _logits(family, weights, size) if large else _plain_logits(family, weights)
    out = np.empty((source.rows, weights.shape[0]))
    for start, block in source.blocks(size, large):
        _, logits = logits_of(block)
        holed = np.flatnonzero(family.incomplete(Rows(block.values, block.codes)))
        if holed.size:
            rows = block.rows()
            gaps = Rows(rows.values[holed], rows.codes[holed])
            known = complete(family, gaps, columns_of(source.schema), start + holed)
            logits[:, holed] = known.log_joint(weights).T
        out[start : start + logits.shape[1]] = finish(logits).T
    return out


def _plain_logits(family: Family, weights: np.ndarray) -> Callable[[Block], tuple[np.ndarray, np.ndarray]]:
    """`_logits` in NumPy. One-hots are not written out: a column may have very many categories."""
    if not family.plain_cells:
        return lambda block: (np.zeros(0), np.asarray(weights @ family.sparse(block.rows()).T))
    dense = weights[:, : family.dense_size]
    cells = np.pad(weights[:, family.dense_size :], ((0, 0), (0, 1)))  # the last one is for missing values

    def logits_of(block: Block) -> tuple[np.ndarray, np.ndarray]:
        features = _dense(family, block)
        logits = dense @ features
        place = np.where(block.codes < 0, cells.shape[1] - 1, block.codes + family.offsets)
        for column in place.T:
            logits += np.take(cells, column, axis=1)
        return features, logits

    return logits_of


def _logits(
    family: Family, weights: np.ndarray, size: int
) -> Callable[[Block], tuple[np.ndarray, np.ndarray]]:
    """A function of a block of rows: its dense features [dense, b] and its logits [C, b], in reused memory."""
    from peerbayes import kernels

    dense = np.ascontiguousarray(weights[:, : family.dense_size])
    cells = np.ascontiguousarray(weights[:, family.dense_size :].T)
    expand = _expander(family, size)
    buffer = np.empty(weights.shape[0] * size)

    def logits_of(block: Block) -> tuple[np.ndarray, np.ndarray]:
        features = expand(block)
        logits = _start_of(buffer, weights.shape[0], features.shape[1])
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
    buffer = np.empty(family.dense_size * size)

    def expand(block: Block) -> np.ndarray:
        values, _, *units = block
        features = _start_of(buffer, family.dense_size, values.shape[0])
        kernel(values, *units, missing, features)
        return features

    return expand


def _start_of(buffer: np.ndarray, *shape: int) -> np.ndarray:
    """The start of a buffer, in a given shape."""
    return buffer[: math.prod(shape)].reshape(shape)


def is_large(family: Family, rows: int) -> bool:
    """Whether a pass over so many rows is work for the kernels; one-hots are not written out in a single pass."""
    work = rows * (family.dense_size + 2 * len(family.cardinalities))
    return work > LARGE_PASS and family.plain_cells


def block_rows(features: int) -> int:
    """Rows of a block with so many features a row."""
    return max(64, min(BLOCK_ROWS, BLOCK_ENTRIES // features))


def all_rows(source: Source) -> Rows:
    return source.data if isinstance(source, Encoded) else source.schema.encode(source.table)


# --- the kernels' twins in NumPy ---------------------------------------------------------------------------


def _dense(family: Family, block: Block) -> np.ndarray:
    """The dense features of a block, transposed: [dense, b]."""
    values, d = block.standard(), family.continuous
    if _shape(family) not in _FAST_EXPANSION:
        return np.ascontiguousarray(np.asarray(family.dense(values.T)).T)
    features = np.empty((family.dense_size, values.shape[1]))
    features[0] = 1.0
    k = 1
    if _missing(family):
        present = np.equal(values, values, out=features[1 : 1 + d])
        values, k = np.where(present, values, 0.0), 1 + d
    features[k : k + d] = values
    k += d
    if isinstance(family, NaiveBayes):
        np.square(values, out=features[k:])
        return features
    for j in range(d):
        np.multiply(values[j], values[j:], out=features[k : k + d - j])
        k += d - j
    return features


def _features(family: Family, block: Block) -> Any:
    """Φᵀ of a block: [K, b], sparse where it is mostly zeros."""
    if family.wide:
        return family.sparse(block.rows()).T
    if not family.plain_cells:
        return np.ascontiguousarray(np.asarray(family.features(block.rows())).T)
    dense = _dense(family, block)
    if not family.cardinalities:
        return dense
    rows = dense.shape[1]
    features = np.zeros((family.size + 1, rows))  # the last one is where missing values go
    features[: family.dense_size] = dense
    place = np.where(block.codes < 0, family.size, block.codes + (family.dense_size + family.offsets))
    features.reshape(-1)[place * rows + np.arange(rows)[:, None]] = 1.0
    return features[:-1]


def _split_sums(features: np.ndarray, of_class: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sums of features [K, b] over the rows of each class [b, C], as two parts [C, K].

    Variances are small differences of these sums. A feature is H + L, where H is its part on a grid of 2⁻²⁶ of its
    largest value: sums of H are exact in any order, and L is too small for its errors to matter.
    """
    largest = np.maximum(features.max(axis=1, initial=0.0), -features.min(axis=1, initial=0.0))
    grid = 1.5 * 2.0**26 * np.exp2(np.ceil(np.log2(np.where(largest > 0, largest, 1.0))))[:, None]
    upper = features + grid
    upper -= grid
    exact = of_class.T @ upper.T
    return exact, of_class.T @ np.subtract(features, upper, out=upper).T


def _entry_statistics(
    family: Family, block: Block, labels: np.ndarray, weights: np.ndarray | None, stats: np.ndarray
) -> None:
    """S beside the dense features: add a block to [C, K − dense]."""
    if family.plain_cells:
        _cell_statistics(block.codes, family.offsets, labels, weights, stats)
        return
    places, told = family.entries(block.rows())
    if weights is not None:
        told = np.broadcast_to(weights[:, None], places.shape) if told is None else told * weights[:, None]
    known = places < family.size
    place = places + (labels[:, None].astype(np.int64) * stats.shape[1] - family.dense_size)
    _add_at(stats, place, told, known)


def _cell_statistics(
    codes: np.ndarray, offsets: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, stats: np.ndarray
) -> None:
    """S of the discrete columns: add a block of category indices [b, Dd] to [C, cells]."""
    place = codes + (offsets + labels[:, None].astype(np.int64) * stats.shape[1])
    told = None if weights is None else np.broadcast_to(weights[:, None], codes.shape)
    _add_at(stats, place, told, codes >= 0)


def _add_at(stats: np.ndarray, place: np.ndarray, told: np.ndarray | None, known: np.ndarray) -> None:
    """Add what is told, ones if nothing is, to flat places of S, where they are known."""
    if not known.all():
        place, told = place[known], None if told is None else told[known]
    if stats.size > place.size:  # many categories: most cells are not touched
        np.add.at(stats.reshape(-1), place, 1.0 if told is None else told)
        return
    told = None if told is None else told.ravel()
    stats += np.bincount(place.ravel(), told, minlength=stats.size).reshape(stats.shape)


def _softmax(logits: np.ndarray) -> np.ndarray:
    """P = softmax over classes, in place: [C, b]."""
    logits -= logits.max(axis=0)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=0)
    return logits


def _residuals(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """(Y − P) times the rows' weights, in place: [C, b]; and the weight of what is wrong, softly and hard."""
    wrong = float(weights[logits.argmax(axis=0) != labels].sum())
    _softmax(logits)
    logits *= -weights
    own = labels, np.arange(labels.size)
    logits[own] += weights
    return float(logits[own].sum()), wrong
