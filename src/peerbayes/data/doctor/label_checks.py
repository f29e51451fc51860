"""Checks of labels, of columns that give them away, and of test rows beside training rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from peerbayes.data.arguments import shown
from peerbayes.data.doctor.column_checks import MOST_GROUPS, Checked
from peerbayes.data.doctor.findings import NOTE, REFUSED, Finding
from peerbayes.data.doctor.row_checks import CHANCE_ROWS, row_hashes
from peerbayes.data.doctor.text_checks import spelling
from peerbayes.data.table import missing_of

# Rows of a class below which nothing reliable is learned of it.
FEW_ROWS = 5

# More classes than this are none where they have few rows each; so many different numbers always look like a quantity.
MANY_CLASSES, MANY_NUMBERS, ROWS_OF_A_CLASS = 20, 100, 10

# Rows that show quickly of most columns that they do not determine the label.
FIRST_ROWS = 500

# Rows from which a column determines the label by more than chance, and rows that each of its values has on average.
ROWS_TO_DETERMINE, ROWS_OF_A_VALUE = 40, 4


def label_findings(name: str, labels: np.ndarray) -> tuple[list[Finding], np.ndarray | None]:
    """Return the findings of labels [n], and the class of each row, −1 where it is missing.

    There are no classes where labels are none: numbers, or one for each row, are determined by any other number.
    """
    import pandas as pd

    missing = missing_of(labels)
    findings = []
    if missing.any():
        rows = ", ".join(str(row + 1) for row in np.flatnonzero(missing)[:5])
        seen = f"{int(missing.sum()):,} of {labels.size:,} rows have no label (counted from 1: {rows})"
        findings.append(Finding.of("missing-labels", name, seen))
    try:
        codes, uniques = pd.factorize(labels)
    except TypeError:
        return [*findings, Finding.of("not-a-value", name, f"labels like {shown(labels[0])}")], None
    if len(uniques) < 2:
        seen = f"every label is {shown(_plain(uniques[0]))}" if len(uniques) else "there is no label"
        return [*findings, Finding.of("one-class", name, seen)], None
    counts = np.bincount(codes[codes >= 0])
    classes = [_plain(value) for value in uniques]
    if strange := not_classes(name, classes, counts):
        of_rows = strange.name == "continuous-label" or counts.max() == 1
        return [*findings, strange], None if of_rows else codes
    texts = [value for value in classes if isinstance(value, str)]
    findings += spelling(name, texts)
    few = [j for j in np.argsort(counts) if counts[j] < FEW_ROWS]
    if few:
        examples = ", ".join(f"{shown(classes[j])} has {_rows(counts[j])}" for j in few[:5])
        findings.append(Finding.of("small-class", name, examples + (", …" if len(few) > 5 else "")))
    return findings, codes


def not_classes(name: str, classes: list[Any], counts: np.ndarray) -> Finding | None:
    """Return the finding of labels that are no classes: [C]."""
    rows, numbers = int(counts.sum()), [value for value in classes if isinstance(value, int | float)]
    seen = f"{len(classes):,} different labels in {rows:,} rows, like {shown(classes[0])}"
    real = [value for value in numbers if isinstance(value, float) and not value.is_integer()]
    if real:
        return Finding.of("continuous-label", name, f"real numbers, like {shown(real[0])}", REFUSED)
    few_rows = len(classes) > MANY_CLASSES and rows < ROWS_OF_A_CLASS * len(classes)
    if len(numbers) == len(classes) and (few_rows or len(classes) > MANY_NUMBERS):
        return Finding.of("continuous-label", name, seen)
    return Finding.of("many-classes", name, seen) if few_rows else None


def leaking_columns(columns: Sequence[Checked], classes: np.ndarray) -> Iterator[Finding]:
    """Yield the columns that have the label in other words, or determine it: classes [n], −1 where missing."""
    for column in columns:
        present = (column.codes >= 0) & (classes >= 0)
        codes, labels = column.codes[present].astype(np.int64), classes[present].astype(np.int64)
        if codes.size < ROWS_TO_DETERMINE or not column.telling:
            continue
        values = np.flatnonzero(np.bincount(codes)).size
        class_count = np.flatnonzero(np.bincount(labels)).size
        if class_count < 2:
            continue
        if values <= min(MOST_GROUPS, codes.size / ROWS_OF_A_VALUE):
            pairs = np.unique(codes * (int(labels.max()) + 1) + labels).size
            if pairs == values == class_count:
                seen = f"each of its {values} values has one class, and each class one value"
                yield Finding.of("label-copy", column.name, seen)
                continue
            if pairs == values:
                yield Finding.of("determines-label", column.name, f"each of its {values} values has one class only, in "
                                 f"{codes.size:,} rows")  # fmt: skip
                continue
        if column.numbers is None or not _apart(column.numbers[present][:FIRST_ROWS], labels[:FIRST_ROWS]):
            continue
        if _apart(column.numbers[present], labels):
            yield Finding.of("determines-label", column.name, "the numbers of each class are apart from those of all "
                             "others")  # fmt: skip


def _apart(numbers: np.ndarray, labels: np.ndarray) -> bool:
    """Return whether no number lies between those of another class: [n], [n]."""
    classes = int(labels.max()) + 1
    low, high = np.full(classes, np.inf), np.full(classes, -np.inf)
    np.minimum.at(low, labels, numbers)
    np.maximum.at(high, labels, numbers)
    order = np.argsort(low)
    order = order[np.isfinite(low[order])]
    return bool((low[order][1:] > high[order][:-1]).all())


def shared_findings(
    columns: list[tuple[str, np.ndarray, np.ndarray]], labels: list[np.ndarray], complete: bool = True
) -> Iterator[Finding]:
    """Yield what test rows share with training rows, or have alone: names, values of both; and labels of both if any.

    complete  whether both tables have all columns, so that rows can be compared
    """
    for name, values, others in columns:
        if (values.dtype.kind == "O") != (others.dtype.kind == "O"):
            sides = ["text" if column.dtype.kind == "O" else "numbers" for column in (values, others)]
            if not missing_of(others).all() and not missing_of(values).all():
                seen = f"{sides[0]} in the training rows, {sides[1]} in the test rows"
                yield Finding.of("test-columns", name, seen)
            continue
        if values.dtype.kind not in "Ob":
            continue
        unseen = _new(values, others)
        if unseen and all(isinstance(value, str | bool) for value in unseen):
            rows = int(np.isin(others.astype(str), np.array(unseen, dtype=str)).sum())
            examples = ", ".join(map(shown, unseen[:3]))
            seen = f"{examples} in {_rows(rows)} of the test table, in no training row"
            yield Finding.of("test-only-category", name, seen)
    if labels:
        new = _new(*labels)
        if new:
            seen = f"{', '.join(map(shown, map(_plain, new[:3])))} among the labels of test rows only"
            yield Finding.of("test-only-class", None, seen)
    if not complete:
        return
    first = row_hashes([*(mine for _, mine, _ in columns), *labels[:1]])
    second = row_hashes([*(theirs for _, _, theirs in columns), *labels[1:]])
    shared = np.isin(second, first)
    repeated = first.size - np.unique(first).size
    if shared.any():
        # Of few categories, or measured coarsely, rows are alike by chance: as often as within the training rows.
        natural = 2 * repeated / first.size * shared.size + CHANCE_ROWS
        seen = f"{int(shared.sum()):,} of {shared.size:,} test rows are among the training rows, first {_first(shared)}"
        severity = NOTE if shared.sum() <= natural else None
        yield Finding.of("test-rows-in-training", None, seen, severity)


def _new(values: np.ndarray, others: np.ndarray) -> list[Any]:
    """Return the distinct values of the others that are not among the values; none where they cannot be compared."""
    import pandas as pd

    try:
        trained = set(pd.unique(values))
        return [value for value in pd.unique(others[~missing_of(others)]) if value not in trained]
    except TypeError:  # lists, sets, tables
        return []


def _first(mask: np.ndarray) -> str:
    return f"row {int(np.argmax(mask)) + 1}"


def _rows(count: int) -> str:
    return f"{count:,} row{'s' if count != 1 else ''}"


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
