"""Infer a table's columns (kinds, categories, location and scale) and the classes of its labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from peerbayes.data.arguments import one_of, refusal, shown
from peerbayes.data.column import Column, column_of_numbers
from peerbayes.data.kinds import KINDS
from peerbayes.data.kinds.binned import Binned
from peerbayes.data.kinds.kind import units
from peerbayes.data.table import (
    INSTEAD_OF_DATES,
    SMALL_RANGE,
    Table,
    Texts,
    are_dates,
    distinct,
    missing_of,
    ordered,
    scalar,
    value_counts,
)
from peerbayes.errors import SchemaError

# The paper's rule: a column with at most this many distinct values is discrete.
PAPER_DISCRETE = 10

# What `kinds` may say of a column: a rule, or its kind.
RULES = ("auto", "paper", *KINDS)

# Text is an identifier (a name, a record number, a free remark) where nine of ten rows have a value of their own: no
# category is then seen often enough to say anything of a class. With fewer rows than this, chance can do the same to
# a column of many categories.
IDENTIFIER_SHARE, IDENTIFIER_ROWS = 0.9, 100

# What a kind of numbers says where it is said of all columns: the others are as with "auto".
NUMBERS_ARE = "numbers are "

# The lowest and the highest number of each column.
Ends = tuple[list[float], list[float]]


def infer_columns(
    table: Table,
    kinds: str | Mapping[Any, str] | Sequence[str] = "auto",
    weights: np.ndarray | None = None,
    bins: int | None = None,
    labels: np.ndarray | None = None,
    part: bool = False,
) -> tuple[Column, ...]:
    """Return the description of each column, from all rows; the arguments are those of `inspect`."""
    return inspect(table, kinds, weights, bins, labels, part).columns


class Inspected(NamedTuple):
    """The description of each column, and what was seen on the way."""

    columns: tuple[Column, ...]
    ends: Ends | None = None
    """The lowest and the highest number of each column, where all are numbers that were gone over at once."""


def inspect(
    table: Table,
    kinds: str | Mapping[Any, str] | Sequence[str] = "auto",
    weights: np.ndarray | None = None,
    bins: int | None = None,
    labels: np.ndarray | None = None,
    part: bool = False,
) -> Inspected:
    """Return the description of each column, from all rows, and what was seen on the way.

    weights [n] count a row that many times
    bins    into how many bins numbers go, and then into bins they go unless `kinds` names another kind for their
            column; None: binned columns have `BINS`, and numbers are as `kinds` says
    labels  [n] the class of each row, −1 where it is unknown; None: nobody knows
    part    whether these are some of the rows only: text is then not refused as identifiers or dates
    """
    rules = rules_of(table, kinds)
    if weights is not None and not (weights > 0).all():
        labels = None if labels is None else labels[weights > 0]
        table, weights = table.take(weights > 0), weights[weights > 0]
    if table.rows == 0:
        raise SchemaError("the table has no rows; expected at least one")
    array = table.numeric
    if array is None:
        columns = tuple(_column(table, j, rules[j], weights, bins, labels) for j in range(len(table.names)))
        for j, column in enumerate(columns):
            if not part and open_text(table, j, rules[j], column):
                refuse_text(column, present_rows(table, j))
        return Inspected(columns)
    plain, ends = _plain_columns(table, array, rules, weights, bins)
    columns = tuple(
        plain.get(j) or _column(table, j, rules[j], weights, bins, labels) for j in range(len(table.names))
    )
    return Inspected(columns, ends)


def open_text(table: Table, j: int, rule: str, column: Column) -> bool:
    """Return whether column j is text that nobody called categories: neither its rule nor the table."""
    if rule in KINDS or rule == "paper" or not column.categories or not isinstance(column.categories[0], str):
        return False
    return table.declared(j) is None


def present_rows(table: Table, j: int) -> int:
    """Return in how many rows column j has a value."""
    texts = table.texts(j)
    present = ~missing_of(table.column(j)) if texts is None else texts.codes >= 0
    return int(np.count_nonzero(present))


def check_kinds(kinds: Any) -> None:
    """Refuse a value of `kinds` that cannot describe the columns of any table."""
    if not isinstance(kinds, str | Mapping | Sequence) or isinstance(kinds, bytes | bytearray):
        raise refusal("kinds", kinds, f"one of {', '.join(RULES)}, a list or a mapping", SchemaError)
    if isinstance(kinds, str):
        one_of("kinds", kinds, RULES, ", a list or a mapping", SchemaError)


def rules_of(table: Table, kinds: str | Mapping[Any, str] | Sequence[str]) -> list[str]:
    """Return the rule for each column, from any of the forms that `kinds` may take."""
    names = table.names
    check_kinds(kinds)
    if isinstance(kinds, str):
        of_numbers = kinds in KINDS and KINDS[kinds].leaves_text
        return [NUMBERS_ARE + kinds if of_numbers else kinds] * len(names)
    elif isinstance(kinds, Mapping):
        positions = {key: _position(key, table) for key in kinds}
        unknown = [key for key, position in positions.items() if position is None]
        if unknown:
            raise SchemaError(f"kinds names {shown(unknown[0])}; expected one of {', '.join(names[:20])}")
        rules = ["auto"] * len(names)
        for key, position in positions.items():
            rules[position or 0] = kinds[key]
    else:
        rules = list(kinds)
        if len(rules) != len(names):
            raise SchemaError(
                f"kinds holds {len(rules)} entries; expected one for each column: the table has {len(names)} columns"
            )
    for name, rule in zip(names, rules, strict=True):
        one_of(f"kinds: the kind of {name!r}", rule, RULES, error=SchemaError)
    return rules


def _position(key: Any, table: Table) -> int | None:
    """Return the index of the column that `key` names: by its label, else by its name, else by its position."""
    for column_names in (table.labels, table.names):
        if key in column_names:
            return column_names.index(key)
    positional = (
        table.labels == table.names and isinstance(key, int | np.integer) and not isinstance(key, bool)
    )
    return int(key) if positional and 0 <= key < len(table.names) else None


def _column(
    table: Table,
    j: int,
    rule: str,
    weights: np.ndarray | None,
    bins: int | None,
    labels: np.ndarray | None,
) -> Column:
    """Return the description of column j under a rule of `RULES`."""
    name, declared = table.names[j], table.declared(j)
    of_text = rule in ("auto", "discrete") or rule.startswith(NUMBERS_ARE)  # text is then categories
    if of_text and declared is None and (texts := table.texts(j)) is not None:
        return _of_texts(name, texts, weights)
    values = table.column(j)
    present = ~missing_of(values)
    kind = _kind(values, present, rule, name, declared is not None)
    if bins is not None:
        kind = _in_bins(kind, rule, "binned", values, present)
    if rule == "paper" and kind == "continuous" and values.dtype.kind == "O":  # text: its category's index
        categories = distinct(values[~missing_of(values)], name) if declared is None else tuple(declared)
        encoded = Column(name, kind, categories, count=0.0)
        return measured(encoded, encoded.numbers(values), weights)
    column = Column(name, kind, count=0.0)
    traits = Binned(bins) if kind == "binned" and bins is not None else column.traits
    described = traits.inferred(column, values, weights, declared, labels)
    return measured(column, column.numbers(values), weights) if described is None else described


def _of_texts(name: str, texts: Texts, weights: np.ndarray | None) -> Column:
    """Return the description of a column of text, of which each distinct value is a category."""
    present = texts.codes >= 0
    count = float(np.count_nonzero(present)) if weights is None else float(weights[present].sum())
    return Column(name, "discrete", distinct(texts.values, name), count=count)


def kinds_in_bins(table: Table, kinds: str | Mapping[Any, str] | Sequence[str], in_bins: str) -> list[str]:
    """Return the kind of each column where numbers whose kind `kinds` leaves open have the kind `in_bins`."""
    found = []
    for j, rule in enumerate(rules_of(table, kinds)):
        values = table.column(j)
        present = ~missing_of(values)
        kind = _kind(values, present, rule, table.names[j], table.declared(j) is not None)
        found.append(_in_bins(kind, rule, in_bins, values, present))
    return found


def _in_bins(kind: str, rule: str, in_bins: str, values: np.ndarray, present: np.ndarray) -> str:
    """Return the kind of a column of this kind, where numbers that its rule leaves open go into bins."""
    if kind != "continuous" or rule == "continuous":
        return kind
    return "discrete" if _holds_text(values, present) else in_bins


def measured(
    column: Column,
    numbers: np.ndarray,
    weights: np.ndarray | None = None,
    labels: np.ndarray | None = None,
) -> Column:
    """Return the column with the units of its present numbers [n], or with as many bins of them as it has.

    Bins that depend on the classes of the rows, `labels` [n], may be more or fewer.
    """
    if column.edges or column.traits.needs_labels:
        traits = column.traits if column.traits.needs_labels else Binned(column.cells)
        described = traits.inferred(column, numbers, weights, None, labels)
        assert described is not None
        return described
    moments = column_moments(numbers[:, None], weights)
    return column.traits.with_moments(column, *(float(moment[0]) for moment in moments))


def refuse_text(column: Column, rows: int) -> None:
    """Refuse text in so many `rows`, which nobody called categories, that is an identifier or a date."""
    instead = f"or say that every distinct value is a category: kinds={{{column.name!r}: 'discrete'}}"
    texts = np.array(column.categories, dtype=object)
    if are_dates(texts):
        raise SchemaError(
            f"column {column.name!r} holds dates or times (like {texts[0]!r}); {INSTEAD_OF_DATES}, {instead}"
        )
    if rows >= IDENTIFIER_ROWS and texts.size >= IDENTIFIER_SHARE * rows:
        raise SchemaError(
            f"column {column.name!r} is text with {texts.size:,} distinct values in {rows:,} rows, like an identifier "
            f"({texts[0]!r:.40}), from which nothing can be learned of other rows; leave it out, {instead}"
        )


def _holds_text(values: np.ndarray, present: np.ndarray) -> bool:
    """Return whether any of the present values [n] is text."""
    return values.dtype.kind == "O" and any(issubclass(kind, str) for kind in set(map(type, values[present])))


def _kind(values: np.ndarray, present: np.ndarray, rule: str, name: str, declared: bool) -> str:
    """Return the kind of a column under a rule; `declared`: it is a pandas categorical."""
    if rule in KINDS:
        return rule
    if rule.startswith(NUMBERS_ARE):
        kind = _kind(values, present, "auto", name, declared)
        return rule.removeprefix(NUMBERS_ARE) if kind == "continuous" else kind
    if rule == "paper":
        return "discrete" if len(distinct(values[present], name)) <= PAPER_DISCRETE else "continuous"
    if declared or values.dtype.kind == "b":
        return "discrete"
    if values.dtype.kind != "O" or not present.any():
        return "continuous"
    types = {_type(value, name) for value in set(map(type, values[present]))}
    if len(types) > 1:
        raise SchemaError(
            f"column {name!r} mixes {' and '.join(sorted(types))}; expected one of them. Clean the column, or "
            f"say that every distinct value is a category: kinds={{{name!r}: 'discrete'}}"
        )
    return "continuous" if types == {"numbers"} else "discrete"


def _type(kind: type, name: str) -> str:
    """Return what values of a Python type are to a column: booleans, text or numbers."""
    if issubclass(kind, bool | np.bool_):
        return "booleans"
    if issubclass(kind, str):
        return "text"
    if hasattr(kind, "__float__") and not issubclass(kind, np.complexfloating | np.ndarray):
        return "numbers"
    raise TypeError(
        f"column {name!r} holds a {kind.__name__}; every argument must be a string or a number (or a boolean)"
    )


def _plain_columns(
    table: Table, array: np.ndarray, rules: list[str], weights: np.ndarray | None, bins: int | None
) -> tuple[dict[int, Column], Ends | None]:
    """Return the columns of a numeric array that can be described in one pass: continuous ones and small integers.

    And the lowest and the highest numbers, where all are continuous.
    """
    names = table.names
    plain: dict[int, Column] = {}
    ends = None
    dense = ("continuous",) if bins is not None else ("auto", "continuous")
    continuous = [j for j, rule in enumerate(rules) if rule in dense]
    if continuous:
        moments = column_moments(array, weights, continuous)
        described = [moment.tolist() for moment in moments]
        ends = (described[3], described[4]) if weights is None and len(continuous) == len(names) else None
        for j, count, mean, variance, low, high in zip(continuous, *described, strict=True):
            if -math.inf < low < high < math.inf and math.isfinite(mean) and 0 < variance < math.inf:
                plain[j] = column_of_numbers(names[j], count, mean, math.sqrt(variance))
            else:  # constant, empty, or refused
                plain[j] = column_of_numbers(names[j], **units(names[j], count, mean, variance, low, high))
    discrete = [j for j, rule in enumerate(rules) if rule == "discrete" and array.dtype.kind in "iu"]
    categories = distinct_integers(array, discrete) if discrete else None
    if categories is not None:
        count = float(table.rows) if weights is None else float(weights.sum())
        for j, column_categories in zip(discrete, categories, strict=True):
            plain[j] = Column(names[j], "discrete", column_categories, count=count)
    return plain, ends


# --- labels ------------------------------------------------------------------------------------------------


def plain_labels(y: Any) -> Any:
    """Return the labels y, those of pyarrow as a list: its own array repeats a category where a label is missing."""
    return y.to_pylist() if hasattr(y, "to_pylist") else y


def infer_classes(y: Any) -> tuple[tuple[Any, ...], np.ndarray]:
    """Return the distinct labels in order, and each row's index among them: [n] -> classes, [n]."""
    try:
        labels = np.asarray(plain_labels(y))
    except (TypeError, ValueError) as error:  # lists of different lengths
        raise refusal("y", y, "one label per row") from error
    if labels.ndim == 0:
        raise refusal("y", y, "one label per row")
    if labels.ndim != 1:
        raise ValueError(f"y has shape {labels.shape}; expected one label per row")
    if labels.size == 0:
        raise ValueError("y has no label; expected one per row")
    if labels.dtype.kind in "iu":
        counted = value_counts(labels)
        if counted is not None:
            low, counts = counted
            class_index = (np.cumsum(counts > 0) - 1).astype(np.int32)
            shifted = labels if low == 0 else labels.astype(np.int64) - low
            return tuple((np.flatnonzero(counts) + low).tolist()), class_index[shifted]
    import pandas as pd

    if missing_of(labels).any():
        raise ValueError(
            "y holds missing labels (NaN or None); expected a label per row: leave those rows out"
        )
    try:
        codes, uniques = pd.factorize(labels)
    except TypeError as error:  # lists, sets, tables
        raise TypeError(f"y holds {shown(labels[0])}; expected text, numbers or booleans") from error
    values = [scalar(value, "y") for value in uniques]
    if len({isinstance(value, str) for value in values}) > 1:
        raise ValueError(f"y mixes text and numbers: {values[:5]}; expected labels of one type")
    classes = ordered(values)
    class_index = np.array([classes.index(value) for value in values], dtype=np.int32)
    return classes, class_index[codes]


# --- passes over the columns of a numeric array: moments, and distinct integers ------------------------------

# Entries of a table above which the kernels are used: where cells are counted, and where numbers are only summed, which
# matrix products do nearly as fast. Loading the kernels takes 0.4 s in a process, and compiling them five seconds once
# on a machine; up to here, plain NumPy loses some twenty milliseconds a fit to them.
LARGE, LARGE_NUMBERS = 1 << 20, 1 << 23

# Rows of a block of which only sums are kept: calls stay rare.
LONG_BLOCK_ROWS = 1 << 12

# Entries of a block that plain NumPy goes over several times: it stays in the second-level cache.
PLAIN_ENTRIES = 1 << 15

# Entries of an inner loop from which its start no longer matters.
LONG_LOOP = 1 << 11


class Scratch:
    """Arrays that are reused from block to block: asking the system for memory takes longer than filling it."""

    def __init__(self) -> None:
        self._buffers: dict[str, np.ndarray] = {}

    def __call__(self, name: str, *shape: int) -> np.ndarray:
        """Return the array of this name, whose contents are left over."""
        size = math.prod(shape)
        if name not in self._buffers or self._buffers[name].size < size:
            self._buffers[name] = np.empty(size)
        return self._buffers[name][:size].reshape(shape)


def column_moments(
    values: np.ndarray, weights: np.ndarray | None = None, columns: Sequence[int] | None = None
) -> tuple[np.ndarray, ...]:
    """Return count, mean, variance, low and high of the observed values of each column: [n, D] -> five [D]."""
    all_columns = columns is None or list(columns) == list(range(values.shape[1]))
    width = values.shape[1] if columns is None else len(columns)
    state = np.zeros((5, width))
    state[3:] = np.array([[np.inf], [-np.inf]])
    add, size = partial(_add_moments, Scratch()), max(64, PLAIN_ENTRIES // max(1, width))
    if values.size > LARGE_NUMBERS:
        from peerbayes.data.moment_kernels import moments as add

        size = LONG_BLOCK_ROWS
    ones = np.ones(min(size, values.shape[0]))
    for start in range(0, values.shape[0], size):
        rows = values[start : start + size]
        block = np.ascontiguousarray(rows if all_columns else rows[:, list(columns or ())], dtype=np.float64)
        row_weights = ones[: block.shape[0]] if weights is None else weights[start : start + size]
        with np.errstate(over="ignore", invalid="ignore"):  # infinities are reported by name, by the caller
            new = state[0] == 0
            if new.any():
                state[1, new] = _first_mean(block if new.all() else block[:, new])
            add(block, row_weights, state)
    count, mean, square, low, high = state
    return count, mean, square / np.where(count > 0, count, 1.0), low, high


def _first_mean(block: np.ndarray) -> np.ndarray:
    """Return the point from which deviations are measured at first."""
    mean = block.mean(axis=0)
    if not np.isnan(mean).any():
        return mean
    present = ~np.isnan(block)
    return np.where(present, block, 0.0).sum(axis=0) / np.maximum(present.sum(axis=0), 1)


def _add_moments(scratch: Scratch, block: np.ndarray, weights: np.ndarray, state: np.ndarray) -> None:
    """Do what the kernel `moments` does, for tables too small to load it."""
    values = scratch("values", *block.shape[::-1])
    values[...] = block.T  # inner loops run over rows
    low, high = values.min(axis=1), values.max(axis=1)
    count, present = np.full(low.shape, weights.sum()), None
    if np.isnan(low).any():
        present = ~np.isnan(values)
        low, high = (np.where(present, values, end) for end in (np.inf, -np.inf))
        low, high = low.min(axis=1), high.max(axis=1)
        count = present @ weights
    gaps = np.subtract(values, state[1][:, None], out=values)
    if present is not None:
        gaps = np.where(present, gaps, 0.0)
    total = gaps @ weights
    gap = total / np.where(count > 0, count, 1.0)
    square = np.maximum(np.square(gaps, out=gaps) @ weights - gap * total, 0.0)
    if not state[0].any():  # the first rows: nothing to pool with
        state[:] = count, np.where(count > 0, state[1] + gap, state[1]), square, low, high
        return
    pooled = np.where(state[0] + count > 0, state[0] + count, 1.0)
    state[2] += square + gap**2 * (state[0] * count / pooled)
    state[1] += gap * (count / pooled)
    state[0] += count
    state[3] = np.minimum(state[3], low)
    state[4] = np.maximum(state[4], high)


def distinct_integers(array: np.ndarray, columns: Sequence[int]) -> list[tuple[int, ...]] | None:
    """Return the distinct values of integer columns, in two passes; None where a column's range is too wide."""
    chosen = np.asarray(columns, dtype=np.int64)
    lows, highs = ([int(value) for value in ends[chosen]] for ends in extremes(array))
    spans = [high - low + 1 for low, high in zip(lows, highs, strict=True)]
    if max(spans) > SMALL_RANGE or max(map(abs, lows)) > 2**62:
        return None
    low, sizes = np.array(lows, dtype=np.int64), np.array(spans, dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    present = np.zeros(int(sizes.sum()), dtype=bool)
    if array.size > LARGE:
        from peerbayes.data import moment_kernels

        moment_kernels.mark(array, chosen, low, starts, present)
    else:
        rows = max(64, PLAIN_ENTRIES // chosen.size)
        for start in range(0, array.shape[0], rows):
            present[array[start : start + rows, chosen].astype(np.int64) + (starts - low)] = True
    return [
        tuple((np.flatnonzero(present[start : start + size]) + bottom).tolist())
        for start, size, bottom in zip(starts, sizes, low, strict=True)
    ]


def extremes(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest value of each column: [n, D] -> two [D]. Rows are joined for longer loops."""
    rows, width = array.shape
    joined = max(1, LONG_LOOP // width)
    folded = rows - rows % joined if array.flags.c_contiguous else 0
    if not folded:
        return array.min(axis=0), array.max(axis=0)
    long = array[:folded].reshape(-1, joined * width)
    low, high = (
        np.concatenate([end(axis=0).reshape(joined, width), array[folded:]]) for end in (long.min, long.max)
    )
    return low.min(axis=0), high.max(axis=0)
