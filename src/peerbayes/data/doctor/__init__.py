"""A table looked over before anything is learned from it: `check` returns findings, each with a name and advice.

Nothing is changed, and nothing is raised for what is wrong with the table. Every column is passed over a few times: of
a table of more than `MOST_ROWS` rows, as many are looked at, evenly spaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from peerbayes.data import sources
from peerbayes.data.doctor.column_checks import (
    Checked,
    check_column,
    name_findings,
    repeated_columns,
)
from peerbayes.data.doctor.findings import REFUSED, Finding, Findings
from peerbayes.data.doctor.label_checks import label_findings, leaking_columns, shared_findings
from peerbayes.data.doctor.row_checks import Repeats, row_hashes
from peerbayes.data.doctor.text_checks import date_example
from peerbayes.data.infer import check_kinds, plain_labels, rules_of
from peerbayes.data.sources.flat_files import SUFFIXES, read_parquet
from peerbayes.data.sources.lenient import read_faulty
from peerbayes.data.sources.values import missing_columns
from peerbayes.data.table import Table
from peerbayes.errors import SchemaError, SourceError

__all__ = ["Finding", "Findings", "check"]

# Rows that are looked at.
MOST_ROWS = 1_000_000


class Loose(NamedTuple):
    """A table whose columns may have any name and hold anything."""

    names: list[str]
    columns: list[np.ndarray | None]
    """Each [n]; None: it cannot be read, and a finding says why."""
    declared: list[bool]
    """Which columns declare their categories."""
    rows: int
    findings: list[Finding]


def check(
    X: Any,
    y: Any = None,
    test: Any = None,
    *,
    kinds: str | Mapping[Any, str] | Sequence[str] = "auto",
    query: str | None = None,
) -> Findings:
    """Return what is wrong with a table, or may be, as findings by name: see `Findings`.

    X      the table: a DataFrame, an array, or the path of a .csv or .parquet file
    y      its labels [n], or the name of the column of X that has them; None: nothing is said of labels
    test   test rows: a table with the same columns, the path of its file, or (X, y)
    kinds  the kinds of columns, as for `Schema.infer`: what is called a category is not taken for an identifier
    query  the SQL that gives the rows, where X is a database's URL
    """
    check_kinds(kinds)
    table = _loose(X, query)
    table, label, labels = _labelled(table, y)
    findings = [*table.findings, *name_findings(table.names)]
    described = f"{table.rows:,} rows, {len(table.names)} columns"
    if not table.rows or not table.names:
        return Findings.of(findings or [Finding.of("no-rows", None, described)], described)
    step = -(-table.rows // MOST_ROWS)
    described += f", of which one in {step} is looked at" if step > 1 else ""
    described += "; labels were not checked: name their column by --label, or give y" if y is None else ""
    checked: list[Checked] = []
    for name, values, declared, rule in zip(
        table.names, table.columns, table.declared, _rules(table.names, kinds), strict=True
    ):
        if values is not None:
            of_column, comparable = check_column(name, values[::step], rule, declared)
            findings += of_column
            if comparable is not None:
                checked.append(comparable)
    classes = None
    if labels is not None:
        of_labels, classes = label_findings(label, labels[::step])
        findings += of_labels
    findings += _compared(checked, classes, {each.column for each in findings if each.name == "identifier"})
    if test is not None:
        findings += _tested(table, label, labels, test, y)
    return Findings.of(findings, described)


def _compared(
    columns: list[Checked], classes: np.ndarray | None, identifiers: set[str | None]
) -> list[Finding]:
    """Return what there is to say of repeated rows, and of columns beside each other and beside the classes [n]."""
    telling = [column for column in columns if column.name not in identifiers]
    if not telling:
        return list(repeated_columns(columns))
    codes = [column.codes for column in telling]
    repeats = Repeats.of(telling, row_hashes(codes if classes is None else [*codes, classes]))
    findings = [*repeats.findings(), *repeated_columns(repeats.among(columns))]
    if classes is not None:
        findings += leaking_columns(repeats.among(telling), repeats.labels(classes))
    return findings


def _rules(names: list[str], kinds: Any) -> list[str]:
    """Return the rule of each column; names may repeat, and a rule for no column is an error."""
    if isinstance(kinds, str):
        return [kinds] * len(names)
    unique = [name if names.count(name) == 1 else f"{name}\0{j}" for j, name in enumerate(names)]
    blank = Table(tuple(unique), 0, labels=tuple(unique))
    return rules_of(blank, kinds)


# --- tables of any origin, with their faults


def _loose(X: Any, query: str | None = None) -> Loose:
    """Return a user's table, whatever is wrong with it."""
    if isinstance(X, str | Path):
        return _of_file(str(X), query)
    if isinstance(X, Loose):
        return X
    names = _repeated_names(X)
    if names is not None:
        X = (
            X.rename_columns([str(j) for j in range(len(names))])
            if hasattr(X, "column_names")
            else _numbered(X)
        )
    table = Table.of(X)
    findings: list[Finding] = []
    columns: list[np.ndarray | None] = []
    names = list(table.names) if names is None else names
    for j, name in enumerate(names):
        try:
            columns.append(table.column(j))
        except SchemaError as problem:
            text = str(problem)
            seen = text.partition(" holds ")[2].partition("; ")[0] or text
            dates = "dates or times" in text
            example = date_example(name, []) if dates else ""
            findings.append(Finding.of("date" if dates else "not-a-value", name, seen, REFUSED, example))
            columns.append(None)
    declared = [table.frame is not None and table.declared(j) is not None for j in range(len(names))]
    return Loose(names, columns, declared, table.rows, findings)


def _repeated_names(X: Any) -> list[str] | None:
    """Return the names of a DataFrame's columns where some repeat."""
    labels = getattr(X, "column_names", None) or getattr(X, "columns", None)
    if labels is None or isinstance(X, np.ndarray) or callable(labels):
        return None
    names = [str(label) for label in labels]
    return names if len(set(names)) < len(names) else None


def _numbered(frame: Any) -> Any:
    """Return a copy of a DataFrame with numbered columns."""
    frame = frame.copy(deep=False)
    frame.columns = [str(j) for j in range(frame.shape[1])]
    return frame


def _of_file(data: str, query: str | None) -> Loose:
    """Return the table of a file, or of a query of a database."""
    path = Path(data)
    ending = path.name.lower()
    if not path.is_file() or not ending.endswith((*SUFFIXES, ".parquet")):
        return _loose(sources.read(data, query))
    if ending.endswith(".parquet"):
        try:
            return _loose(read_parquet(path, ()))
        except SourceError as problem:
            return Loose([], [], [], 0, [Finding.of("unreadable", None, str(problem))])
    names, series, faults = read_faulty(path)
    findings = [Finding.of(fault.name, fault.column, fault.seen, fault.severity) for fault in faults]
    columns: list[np.ndarray | None] = [
        np.asarray(column if column.dtype.kind in "iufb" else column.astype(object)) for column in series
    ]
    rows = len(series[0]) if series else 0
    return Loose(names, columns if series else [None] * len(names), [False] * len(names), rows, findings)


# --- labels and test rows


def _labelled(table: Loose, y: Any) -> tuple[Loose, str, np.ndarray | None]:
    """Return the table without its labels, their name, and the labels [n]; None: there are none."""
    if y is None:
        return table, "y", None
    if not isinstance(y, str):
        labels = _array(plain_labels(y))
        if labels.ndim != 1 or (table.rows and labels.size != table.rows):
            raise ValueError(f"y has shape {labels.shape}; expected one label for each of {table.rows} rows")
        return table, "y", labels
    if y not in table.names and any(finding.column is None for finding in table.findings):
        return table, y, None  # without a header, or with other separators, no column has its name
    if y not in table.names:
        raise missing_columns([y], table.names, "the table")
    position = table.names.index(y)
    kept = [j for j in range(len(table.names)) if j != position]
    others = Loose(
        [table.names[j] for j in kept], [table.columns[j] for j in kept], [table.declared[j] for j in kept], table.rows,
        table.findings,
    )  # fmt: skip
    return others, y, table.columns[position]


def _array(y: Any) -> np.ndarray:
    """Return labels as an array: [n]; one of objects where they are lists of different lengths."""
    try:
        return np.asarray(y)
    except ValueError:
        labels = np.empty(len(y), dtype=object)
        labels[:] = list(y)
        return labels


def _tested(table: Loose, label: str, labels: np.ndarray | None, test: Any, y: Any) -> list[Finding]:
    """Return what there is to say of test rows beside the training rows."""
    features, answers = test if isinstance(test, tuple) else (test, y if isinstance(y, str) else None)
    rows = _loose(features)
    if isinstance(answers, str) and answers not in rows.names:
        seen = f"no column {answers!r}, the label" if rows.names else "no column"
        return [*_of_test(rows), Finding.of("test-columns", answers, seen)]
    others, _, answers = _labelled(rows, answers)
    if not others.rows:
        return [*_of_test(others), Finding.of("no-test-rows", None, "the test table has no row")]
    findings, position = _of_test(others), {name: j for j, name in enumerate(others.names)}
    lacking = [name for name in table.names if name not in position]
    findings += [Finding.of("test-columns", name, "it is not in the test table") for name in lacking[:5]]
    both = [
        (name, mine, theirs)
        for name, mine in zip(table.names, table.columns, strict=True)
        if name in position and mine is not None and (theirs := others.columns[position[name]]) is not None
    ]
    if not both:
        return findings
    pairs = [] if labels is None or answers is None else [labels, answers]
    return findings + list(shared_findings(both, pairs, complete=not lacking))


def _of_test(rows: Loose) -> list[Finding]:
    """Return the faults of the test table's file as those of test rows."""
    return [
        Finding(
            finding.name,
            finding.column,
            f"in the test table: {finding.seen}",
            finding.severity,
            finding.example,
        )
        for finding in rows.findings
    ]
