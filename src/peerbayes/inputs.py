"""What a simulation is given: settings that make sense, a table, its classes, and the rows that no peer holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from peerbayes import core
from peerbayes.calibration import STARTS
from peerbayes.families import Family, Rows
from peerbayes.inference import infer_classes
from peerbayes.layouts import known as known_families
from peerbayes.schema import Schema
from peerbayes.strategies import STRATEGIES
from peerbayes.tables import Table


def check_names(family: str, strategy: Any, start: str, objective: str, lr: float) -> None:
    """Refuse settings that make no sense before any work starts."""
    for name, value, known in (
        ("family", family, known_families()),
        ("strategy", strategy if isinstance(strategy, str) else "exact", (*STRATEGIES, "relay", "auto")),
        ("start", start, STARTS),
        ("objective", objective, ("rows", "peers")),
    ):
        if value not in known:
            raise ValueError(f"{name} is {value!r}; expected one of {', '.join(known)}")
    if not 0 < lr < np.inf:
        raise ValueError(f"lr is {lr}; expected a positive number (the paper's is 0.05)")


def refuse_gaps(family: Family, *parts: Rows) -> None:
    """For strategies that learn weights, which complete nothing."""
    if any(family.incomplete(rows).any() for rows in parts):
        raise ValueError(
            "values are missing, and dsgd learns the weights of no model that could complete them; use another "
            "strategy, family='naive-bayes', or fill them in first"
        )


def check_counts(*counts: tuple[int, str, int]) -> None:
    for number, name, least in counts:
        if number < least:
            raise ValueError(f"{name} is {number}; expected {least} or more")


def check_shares(**shares: float) -> None:
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise ValueError(f"{name} is {share}; expected a probability from 0 to below 1")


def row_weights(objective: str, sizes: np.ndarray) -> np.ndarray:
    """What a row of each peer weighs: 1, or so much that all peers weigh the same. Rows of each [N] -> [N]."""
    return np.ones(sizes.size) if objective == "rows" else sizes.sum() / (sizes.size * sizes)


def classes_of(y: Any, schema: Schema | None) -> tuple[tuple[Any, ...], np.ndarray]:
    """The classes, and the place of each row's label among them."""
    if schema is None or not schema.classes:
        return infer_classes(y)
    return schema.classes, schema.encode_labels(y)


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
    rows = schema.encode(table)
    values = np.nan_to_num(rows.values)
    cells = [core.one_hot(rows.codes[:, k], size) for k, size in enumerate(schema.cardinalities)]
    return np.concatenate([values, *cells], axis=1)
