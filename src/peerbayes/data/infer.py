"""Infer a table's columns (kinds, categories, location and scale) and the classes of its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from peerbayes.data.arguments import one_of, refusal, shown
from peerbayes.data.column import Column
from peerbayes.data.kinds import KINDS
from peerbayes.data.kinds.binned import Binned
from peerbayes.data.moments import column_moments, distinct_integers
from peerbayes.data.scalars import distinct, ordered, scalar, value_counts
from peerbayes.data.table import INSTEAD_OF_DATES, Table, are_dates, missing_of
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


def infer_columns(
    table: Table,
    kinds: str | Mapping[Any, str] | Sequence[str] = "auto",
    weights: np.ndarray | None = None,
    bins: int | None = None,
) -> tuple[Column, ...]:
    """Return the description of each column, from all rows; `weights` [n] count a row that many times.

    bins  into how many bins numbers go, and then into bins they go unless `kinds` names another kind for their column;
          None: binned columns have `BINS`, and numbers are as `kinds` says
    """
    rules = _rules(table, kinds)
    if weights is not None and not (weights > 0).all():
        table, weights = table.take(weights > 0), weights[weights > 0]
    if table.rows == 0:
        raise SchemaError("the table has no rows; expected at least one")
    array = table.numeric
    if array is None:
        return tuple(_column(table, j, rules[j], weights, bins) for j in range(len(table.names)))
    plain = _plain_columns(table, array, rules, weights, bins)
    return tuple(plain.get(j) or _column(table, j, rules[j], weights, bins) for j in range(len(table.names)))


def check_kinds(kinds: Any) -> None:
    """Refuse a value of `kinds` that cannot describe the columns of any table."""
    if not isinstance(kinds, str | Mapping | Sequence) or isinstance(kinds, bytes | bytearray):
        raise refusal("kinds", kinds, f"one of {', '.join(RULES)}, a list or a mapping", SchemaError)
    if isinstance(kinds, str):
        one_of("kinds", kinds, RULES, ", a list or a mapping", SchemaError)


def _rules(table: Table, kinds: str | Mapping[Any, str] | Sequence[str]) -> list[str]:
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


def _column(table: Table, j: int, rule: str, weights: np.ndarray | None, bins: int | None) -> Column:
    """Return the description of column j under a rule of `RULES`."""
    name, values, declared = table.names[j], table.column(j), table.declared(j)
    present = ~missing_of(values)
    kind = _kind(values, present, rule, name, declared is not None)
    if bins is not None and kind == "continuous" and rule != "continuous":
        kind = "discrete" if _holds_text(values, present) else "binned"
    if rule == "paper" and kind == "continuous" and values.dtype.kind == "O":  # text: its category's index
        labelled = Column(name, "discrete", count=0.0)
        encoded = replace(labelled.traits.inferred(labelled, values, weights, declared), kind=kind)
        return encoded.traits.measured(encoded, encoded.numbers(values), weights)
    column = Column(name, kind, count=0.0)
    traits = Binned(bins) if kind == "binned" and bins is not None else column.traits
    column = traits.inferred(column, values, weights, declared)
    if rule not in KINDS and rule != "paper" and declared is None and column.categories:
        _refuse_text(column, values)
    return column


def _refuse_text(column: Column, values: np.ndarray) -> None:
    """Refuse text, which nobody called categories, that is an identifier or a date."""
    if not isinstance(column.categories[0], str):
        return
    instead = f"or say that every distinct value is a category: kinds={{{column.name!r}: 'discrete'}}"
    texts, rows = np.array(column.categories, dtype=object), int(np.count_nonzero(~missing_of(values)))
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
) -> dict[int, Column]:
    """Return the columns of a numeric array that can be described in one pass: continuous ones and small integers."""
    names = table.names
    plain: dict[int, Column] = {}
    dense = ("continuous",) if bins is not None else ("auto", "continuous")
    continuous = [j for j, rule in enumerate(rules) if rule in dense]
    if continuous:
        moments = column_moments(array, weights, continuous)
        for k, j in enumerate(continuous):
            column = Column(names[j], "continuous", count=0.0)
            plain[j] = column.traits.with_moments(column, *(float(moment[k]) for moment in moments))
    discrete = [j for j, rule in enumerate(rules) if rule == "discrete" and array.dtype.kind in "iu"]
    categories = distinct_integers(array, discrete) if discrete else None
    if categories is not None:
        count = float(table.rows) if weights is None else float(weights.sum())
        for j, column_categories in zip(discrete, categories, strict=True):
            plain[j] = Column(names[j], "discrete", column_categories, count=count)
    return plain


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
