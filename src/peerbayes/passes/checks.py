"""Checks of rows: missing values, infinities, and training rows without any value."""

from __future__ import annotations

import numpy as np

from peerbayes.errors import SchemaError
from peerbayes.families.base import Family, Rows
from peerbayes.families.bayes_net import BayesNet
from peerbayes.passes.blocks import Raw, Source, columns_of
from peerbayes.passes.sizes import FRAME_ROWS
from peerbayes.schema import Schema, infinity_in
from peerbayes.tables import Table


def check_rows(source: Source, table: Table, *, training: bool, inferred: bool = False) -> bool:
    """Return whether a continuous value is missing; refuse infinities, and training rows without any value.

    `inferred` says that the schema was inferred from these very rows, each counted once.
    """
    if inferred and isinstance(source, Raw) and _complete(source):
        return False
    if isinstance(source, Raw) and source.table.numeric is not None:
        array = source.table.numeric
        with np.errstate(over="ignore", invalid="ignore"):
            finite = array.dtype.kind in "iu" or np.isfinite(array.sum(dtype=np.float64))
        if finite and (source.schema.continuous or not training):
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


def first_missing(source: Source, family: Family, missing: bool) -> str | None:
    """Return the name of a column with a missing value that φ cannot represent, or None.

    `missing`: whether a continuous value is missing.
    """
    if family.marks_missing or not (missing or isinstance(family, BayesNet)):
        return None
    names = columns_of(source.schema)
    for _, block in source.blocks(FRAME_ROWS):
        incomplete = family.incomplete(Rows(block.values, block.codes))
        if incomplete.any():
            absent = np.concatenate([np.isnan(block.values[incomplete]), block.codes[incomplete] < 0], axis=1)
            return names[int(np.argmax(absent.any(axis=0)))]
    return None


def _complete(source: Raw) -> bool:
    """Whether a schema inferred from these rows shows that none of their values is missing or infinite."""
    if source.table.numeric is not None and source.table.numeric.dtype.kind in "iu":
        return True
    continuous = [source.schema.columns[j] for j in source.schema.continuous]
    return bool(continuous) and all(column.count == source.rows for column in continuous)


def _refuse_infinity(array: np.ndarray, schema: Schema, table: Table) -> None:
    """Raise for the first infinity in a continuous column."""
    for start in range(0, array.shape[0], FRAME_ROWS):
        infinite = np.isinf(array[start : start + FRAME_ROWS])
        for j in schema.continuous:
            if infinite[:, j].any():
                raise infinity_in(schema.names[j], table.number(start + int(np.argmax(infinite[:, j]))))
