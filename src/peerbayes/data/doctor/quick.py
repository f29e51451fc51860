"""The warning of `fit` and `simulate`: what a glance at a few thousand rows shows to be no quantity and no category."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from peerbayes.data.column import Column
from peerbayes.data.doctor.findings import Finding
from peerbayes.data.doctor.number_checks import CODES, counter, missing_codes
from peerbayes.data.doctor.text_checks import numbers_in_text, spelling
from peerbayes.data.infer import IDENTIFIER_ROWS, rules_of
from peerbayes.data.kinds import KINDS
from peerbayes.data.table import Table, missing_of
from peerbayes.errors import DataWarning

# Rows and categories of a column that are looked at: a fit hardly takes longer.
GLANCE = 4096

# Categories up to which numerals are usual names: codes of wards, of answers, of digits.
CODED = 10

# Findings that the warning names; `check` lists all.
NAMED = 3


def warn_of_data(table: Table, columns: Sequence[Column], kinds: Any, stacklevel: int) -> None:
    """Warn of columns that look like no quantity and no category, and that `kinds` does not name.

    stacklevel  of the line that is to blame, counted from the caller of this function: 1 is that caller
    """
    findings = list(glance(table, columns, kinds))
    if not findings:
        return
    more = f"; {len(findings) - NAMED} more" if len(findings) > NAMED else ""
    listed = "; ".join(map(str, findings[:NAMED]))
    warnings.warn(
        f"{listed}{more}. peerbayes.check(X, y) says all; what is right as it is can be named by kinds",
        DataWarning,
        stacklevel=stacklevel + 1,
    )


def glance(table: Table, columns: Sequence[Column], kinds: Any) -> Iterator[Finding]:
    """Yield counters, codes for missing values, and numbers or several spellings among the categories of text."""
    rules = rules_of(table, kinds)
    open_columns = [j for j, rule in enumerate(rules) if rule not in KINDS and rule != "paper"]
    if not open_columns or not table.rows:
        return
    step = -(-table.rows // GLANCE)
    positions = np.arange(0, table.rows, step)
    rows = table.take(positions)
    for j in _suspects(rows, open_columns):
        column = columns[j]
        if column.dense or column.edges:
            yield from _of_numbers(column.name, rows.column(j), step)
        elif table.declared(j) is None and column.categories and isinstance(column.categories[0], str):
            yield from _of_categories(column.name, [str(value) for value in column.categories[:GLANCE]])


def _suspects(rows: Table, columns: list[int]) -> list[int]:
    """Return the columns worth a look: of an array of numbers, those with a code at an end or with whole numbers."""
    if rows.numeric is None:
        return columns
    block = rows.numeric[:, columns]
    with np.errstate(invalid="ignore"):
        ends = np.isin(block.min(axis=0), CODES) | np.isin(block.max(axis=0), CODES)
        long = len(block) >= IDENTIFIER_ROWS
        first = block[:3]
        steady = long & (first[:1] != first[1:2]).all(axis=0) & (first % 1 == 0).all(axis=0)
        ends |= np.isnan(block.sum(axis=0)) if block.dtype.kind == "f" else False
    return [j for j, suspect in zip(columns, ends | steady, strict=True) if suspect]


def _of_numbers(name: str, values: np.ndarray, step: int) -> Iterator[Finding]:
    if values.dtype.kind == "O":
        return
    numbers = values[~missing_of(values)]
    if numbers.size < 2 or not np.isfinite(numbers).all():
        return
    if (seen := counter(numbers)) and (step == 1 or np.ptp(np.diff(numbers)) == 0):
        yield Finding.of("identifier", name, seen)
        return
    for code, count in missing_codes(numbers):
        many = "" if step == 1 else f"of one in {step} "
        yield Finding.of("missing-code", name, f"{code:g} in {count:,} {many}rows, far from all other values")


def _of_categories(name: str, texts: list[str]) -> Iterator[Finding]:
    if (finding := numbers_in_text(name, texts, np.ones(len(texts)))) is not None:
        if finding.name != "numbers-as-text" or len(texts) > CODED:
            yield finding
    else:
        yield from spelling(name, texts)
