"""The input of a simulation: a table, its classes, and the rows that no peer holds."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from peerbayes.data.arguments import about
from peerbayes.data.infer import infer_classes
from peerbayes.data.schema import Schema
from peerbayes.data.table import Table
from peerbayes.errors import SchemaError
from peerbayes.model import core
from peerbayes.model.families import Rows


def row_weights(objective: str, sizes: np.ndarray) -> np.ndarray:
    """Return the weight of each peer's rows: 1, or m/(N·m_v) so that peers count the same: sizes [N] -> [N]."""
    return np.ones(sizes.size) if objective == "rows" else sizes.sum() / (sizes.size * sizes)


def table_of(X: Any) -> Table:
    """Return the user's rows as a table; columns are read later, one by one."""
    with about("X"):
        table = Table.of(X)
    if not table.rows or not table.names:
        raise SchemaError(
            f"X has {table.rows} rows and {len(table.names)} columns; expected at least one of each"
        )
    return table


def classes_of(y: Any, schema: Schema | None, rows: int) -> tuple[tuple[Any, ...], np.ndarray]:
    """Return the classes, and the index of each row's label among them."""
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
        raise ValueError(f"y holds one class ({classes[0]!r}); expected at least two")
    return classes, codes


def schema_of(table: Table, schema: Schema | None, kinds: Any, clip: float | None) -> Schema:
    """Return the schema of a table: the declared one, if it fits, or one inferred from the rows."""
    if schema is None:
        with about("X", "kinds"):
            return Schema.infer(table, kinds=kinds, clip=clip)
    if not schema.columns:
        raise SchemaError("schema has no column; expected at least one")
    with about("schema"):
        schema.places(table)
    return schema


def encoded(schema: Schema, rows: Any, name: str) -> Rows:
    """Return the encoded rows; errors name the argument `name`."""
    with about(name):
        return schema.encode(rows)


def encoded_labelled(schema: Schema, labelled: tuple[Any, Any], name: str) -> tuple[Rows, np.ndarray]:
    """Return the encoded rows and the class indices of their labels; errors name the argument `name`."""
    with about(name):
        return schema.encode(labelled[0]), schema.encode_labels(labelled[1])


def warn_untested() -> None:
    """Warn that a run will have no test errors, at the line that called `simulate` or `simulate_shards`."""
    warnings.warn(
        "peers hold all rows, so none are left to test on and there is no test error; pass test=(X, y), or let peers "
        "hold fewer rows by rows_per_peer or partition",
        UserWarning,
        stacklevel=3,  # this function, the simulation, the caller
    )


def rows_at(table: Table, rows: np.ndarray) -> Table:
    """Return the rows at the given positions as a table."""
    return table.take(rows)


def plain(table: Table) -> Any:
    """Return the array or DataFrame of a table."""
    return table.native


def unassigned_rows(
    table: Table, codes: np.ndarray, assigned: np.ndarray, classes: tuple[Any, ...]
) -> tuple[Any, Any] | None:
    """Return the rows that no peer holds and their labels, if there are any."""
    free = np.setdiff1d(np.arange(table.rows), assigned)
    return (plain(rows_at(table, free)), np.array(classes)[codes[free]]) if free.size else None


def ordering(schema: Schema, table: Table) -> np.ndarray:
    """Return numbers to order rows by: standardised values, 0 where missing, and one-hot categories: [n, K]."""
    rows = encoded(schema, table, "X")
    values = np.nan_to_num(rows.values)
    cells = [core.one_hot(rows.codes[:, k], size) for k, size in enumerate(schema.cardinalities)]
    return np.concatenate([values, *cells], axis=1)
