"""What a simulation is given: a table, its classes, and the rows that no peer holds."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from peerbayes import core
from peerbayes.arguments import about
from peerbayes.errors import SchemaError
from peerbayes.families import Family, Rows
from peerbayes.inference import infer_classes
from peerbayes.schema import Schema
from peerbayes.tables import Table


def refuse_gaps(family: Family, *parts: Rows) -> None:
    """For strategies that learn weights, which complete nothing."""
    if any(family.incomplete(rows).any() for rows in parts):
        raise ValueError(
            "values are missing, and dsgd learns the weights of no model that could complete them; use another "
            "strategy, family='naive-bayes', or fill them in first"
        )


def row_weights(objective: str, sizes: np.ndarray) -> np.ndarray:
    """What a row of each peer weighs: 1, or so much that all peers weigh the same. Rows of each [N] -> [N]."""
    return np.ones(sizes.size) if objective == "rows" else sizes.sum() / (sizes.size * sizes)


def table_of(X: Any) -> Table:
    """The user's rows; columns are read later, one by one."""
    with about("X"):
        table = Table.of(X)
    if not table.rows or not table.names:
        raise SchemaError(
            f"X has {table.rows} rows and {len(table.names)} columns; expected at least one of each"
        )
    return table


def classes_of(y: Any, schema: Schema | None, rows: int) -> tuple[tuple[Any, ...], np.ndarray]:
    """The classes, and the place of each row's label among them."""
    if schema is None or not schema.classes:
        with about("y"):
            classes, codes = infer_classes(y)
        if real := [value for value in classes if isinstance(value, float)]:
            raise ValueError(
                f"y holds {real[0]!r}, a real number; expected classes: text, whole numbers or booleans"
            )
    else:
        with about("schema"):
            classes, codes = schema.classes, schema.encode_labels(y)
    if len(codes) != rows:
        raise ValueError(f"y holds {len(codes)} labels; expected {rows}, one for each row of X")
    if len(classes) < 2:
        raise ValueError(f"y holds one class ({classes[0]!r}); expected at least two to tell apart")
    return classes, codes


def described(table: Table, schema: Schema | None, kinds: Any, clip: float | None) -> Schema:
    """What the columns of a table are: as declared, if they fit it, or as its rows show."""
    if schema is None:
        with about("X", "kinds"):
            return Schema.infer(table, kinds=kinds, clip=clip)
    if not schema.columns:
        raise SchemaError("schema has no column; expected at least one")
    with about("schema"):
        schema.places(table)
    return schema


def encoded(schema: Schema, rows: Any, name: str) -> Rows:
    """Rows as numbers; `name` says by which argument they came."""
    with about(name):
        return schema.encode(rows)


def encoded_labelled(schema: Schema, labelled: tuple[Any, Any], name: str) -> tuple[Rows, np.ndarray]:
    """Rows as numbers, and the classes of their labels; `name` says by which argument both came."""
    with about(name):
        return schema.encode(labelled[0]), schema.encode_labels(labelled[1])


def warn_untested() -> None:
    """Say that a run will have no test errors; to the caller of whoever calls this."""
    warnings.warn(
        "peers hold all rows, so there is none to test on and no test error; give test=(X, y), or let peers hold fewer "
        "rows: rows_per_node, partition",
        UserWarning,
        stacklevel=3,
    )


def rows_at(table: Table, rows: np.ndarray) -> Table:
    if table.array is not None:
        return replace(table, rows=rows.size, array=table.array[rows])
    return replace(table, rows=rows.size, frame=table.frame.iloc[rows])


def plain(table: Table) -> Any:
    return table.array if table.array is not None else table.frame


def rest(
    table: Table, codes: np.ndarray, held: np.ndarray, classes: tuple[Any, ...]
) -> tuple[Any, Any] | None:
    """The rows that no peer holds, if there are any."""
    free = np.setdiff1d(np.arange(table.rows), held)
    return (plain(rows_at(table, free)), np.array(classes)[codes[free]]) if free.size else None


def ordering(schema: Schema, table: Table) -> np.ndarray:
    """Numbers to order rows by: standardised values, 0 where missing, and one-hots. [n, K]."""
    rows = encoded(schema, table, "X")
    values = np.nan_to_num(rows.values)
    cells = [core.one_hot(rows.codes[:, k], size) for k, size in enumerate(schema.cardinalities)]
    return np.concatenate([values, *cells], axis=1)
