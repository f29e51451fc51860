"""Checks of one column: whether it is refused, what its values are, and what other columns may be compared with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from peerbayes.data.arguments import shown
from peerbayes.data.doctor.findings import REFUSED, Finding
from peerbayes.data.doctor.number_checks import number_findings
from peerbayes.data.doctor.text_checks import date_example, kind_of_text, text_findings
from peerbayes.data.files import FORMULA
from peerbayes.data.infer import infer_columns
from peerbayes.data.table import Table, missing_of

# A column of which more is missing than this says little.
MOSTLY = 0.5

LONGEST_NAME = 80  # characters

# Rows outside of the most frequent value from which two columns are not equal by chance.
TELLING_ROWS = 10

# Values of a column up to which it names groups of rows; where there are more, rows themselves may be repeated.
MOST_GROUPS = 1000


@dataclass(frozen=True)
class Checked:
    """What a check of a column leaves for those of several columns."""

    name: str
    codes: np.ndarray
    """[n] the index of each value by its first appearance, −1 where missing."""
    distinct: int
    numbers: np.ndarray | None
    """[n] its numbers, NaN where missing; None: it holds other values."""
    telling: bool
    """Whether enough rows have another value than the most frequent one."""

    def digest(self) -> bytes:
        """Return what two columns share that name the same groups of rows."""
        return hashlib.sha256(np.ascontiguousarray(self.codes).data).digest()

    @property
    def fractional(self) -> bool:
        """Whether it holds numbers that are not whole."""
        if self.numbers is None or self.numbers.dtype.kind != "f":
            return False
        finite = self.numbers[np.isfinite(self.numbers)]
        return bool((finite % 1 != 0).any())

    def of_rows(self, rows: np.ndarray) -> Checked:
        """Return the column with the first of equal rows only, by their indices in order."""
        numbers = None if self.numbers is None else self.numbers[rows]
        return replace(self, codes=self.codes[rows], numbers=numbers)


def name_findings(names: list[str]) -> Iterator[Finding]:
    """Yield what is wrong with the names of columns."""
    for name in sorted({name for name in names if name and names.count(name) > 1}):
        yield Finding.of("duplicated-name", name, f"{names.count(name)} columns have this name")
    for j, name in enumerate(names):
        if not name:
            yield Finding.of("empty-name", name, f"column {j + 1} of {len(names)} has no name")
        elif not name.isprintable():
            yield Finding.of("hostile-name", name, "invisible characters")
        elif name != name.strip():
            yield Finding.of("hostile-name", name, f"blanks at an end: {shown(name)}")
        elif FORMULA.match(name) and len(name.strip()) > 1:
            yield Finding.of("hostile-name", name, f"a spreadsheet takes it for a formula: {shown(name)}")
        elif len(name) > LONGEST_NAME:
            yield Finding.of("hostile-name", name, f"{len(name):,} characters")


def check_column(
    name: str, values: np.ndarray, rule: str, declared: bool
) -> tuple[list[Finding], Checked | None]:
    """Return the findings of a column's values [n], and what is compared with other columns, if anything.

    rule      its kind, or how it is chosen: see `Schema.infer`
    declared  whether its categories are declared
    """
    import pandas as pd

    missing = missing_of(values)
    if missing.ndim != 1 or (missing.all() and missing.size):
        return [Finding.of("empty", name, f"no value in {missing.size:,} rows")], None
    findings = []
    if missing.mean() > MOSTLY:
        seen = f"{int(missing.sum()):,} of {missing.size:,} values are missing"
        findings.append(Finding.of("mostly-missing", name, seen))
    try:
        codes, uniques = pd.factorize(values)
    except TypeError:  # lists, sets, tables
        example = next(value for value in values[~missing])
        return [*findings, Finding.of("not-a-value", name, f"values like {shown(example)}")], None
    counts = np.bincount(codes[codes >= 0], minlength=len(uniques))
    if len(uniques) == 1:
        seen = f"{shown(_plain(uniques[0]))} in all {int(counts.sum()):,} rows that have a value"
        return [
            *findings,
            Finding.of("constant", name, seen),
            *_refused(name, values, _plain(uniques[0]), rule),
        ], None
    numbers = None if values.dtype.kind not in "iuf" else values
    if numbers is not None:
        findings += number_findings(name, numbers[~missing]) if rule != "discrete" else []
    else:
        object_findings, numbers = _object_findings(name, values, missing, uniques, counts, rule, declared)
        findings += object_findings
    any_numbers = rule in ("auto", "continuous") and numbers is values
    if not any_numbers and not any(finding.severity == REFUSED for finding in findings):
        findings += _refused(name, values, _plain(uniques[0]), rule)
    checked = Checked(name, codes, len(uniques), numbers, codes.size - int(counts.max()) >= TELLING_ROWS)
    return findings, checked


def _object_findings(
    name: str,
    values: np.ndarray,
    missing: np.ndarray,
    uniques: Any,
    counts: np.ndarray,
    rule: str,
    declared: bool,
) -> tuple[list[Finding], np.ndarray | None]:
    """Return the findings of a column of text, numbers and booleans, and its numbers if it holds nothing else."""
    plain = [_plain(value) for value in uniques]
    kinds = {_type(value) for value in plain}
    if "others" in kinds:
        example = next(value for value in plain if _type(value) == "others")
        if any(word in type(example).__name__.lower() for word in ("date", "time", "period")):
            return [Finding.of("date", name, f"values like {shown(str(example))}", REFUSED)], None
        return [Finding.of("not-a-value", name, f"values like {shown(example)}")], None
    if kinds == {"numbers"}:
        numbers = np.full(values.shape, np.nan)
        try:
            numbers[~missing] = values[~missing].astype(np.float64)
        except OverflowError:
            return [Finding.of("not-a-value", name, "whole numbers beyond any float")], None
        return list(number_findings(name, numbers[~missing])) if rule != "discrete" else [], numbers
    refused = rule != "discrete" and not declared and bool(refusal_of(name, values, rule))
    if kinds == {"text"}:
        if declared:
            return [finding for finding in text_findings(name, plain, counts, False)
                    if finding.name in ("blanks", "variants", "missing-code")], None  # fmt: skip
        return list(text_findings(name, plain, counts, refused)), None
    if len(kinds) > 1:
        examples = " and ".join(
            shown(next(value for value in plain if _type(value) == kind)) for kind in sorted(kinds)
        )
        severity = REFUSED if refused else None
        return [
            Finding.of("mixed-types", name, f"{' and '.join(sorted(kinds))}, like {examples}", severity)
        ], None
    return [], None


def _refused(name: str, values: np.ndarray, example: Any, rule: str) -> list[Finding]:
    """Return the finding of a column that is refused, if it is, by one of its values."""
    if reason := refusal_of(name, values, rule):
        dates = isinstance(example, str) and kind_of_text([example], 1, 1, False) == "date"
        seen = f"values like {shown(example)}" if dates else reason
        return [
            Finding.of("date", name, seen, REFUSED, date_example(name, [example]))
            if dates
            else Finding.of("refused", name, seen, REFUSED)
        ]
    if isinstance(example, float) and np.isinf(example):
        return [Finding.of("infinity", name, "every value is infinite")]
    return []


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "booleans"
    if isinstance(value, str):
        return "text"
    return "numbers" if isinstance(value, int | float) or hasattr(value, "__float__") else "others"


def refusal_of(name: str, values: np.ndarray, rule: str) -> str:
    """Return why the column is refused under a rule of `Schema.infer`; empty: it is not."""
    import pandas as pd

    try:
        infer_columns(Table.of(pd.DataFrame({name: pd.Series(values, dtype=values.dtype)})), [rule])
    except (ValueError, TypeError, OverflowError) as problem:
        return str(problem).removeprefix(f"column {name!r} ")
    return ""


def repeated_columns(columns: list[Checked]) -> Iterator[Finding]:
    """Yield which columns say what an earlier one says: equal, in other words, or in another unit."""
    seen: dict[bytes, Checked] = {}
    lines: dict[bytes, Checked] = {}
    for column in columns:
        if not column.telling:
            continue
        earlier = None
        rows = int((column.codes >= 0).sum())
        if column.distinct <= min(MOST_GROUPS, rows / 2):
            earlier = seen.setdefault(column.digest(), column)
            how = "names the same groups of rows as"
        if (earlier is None or earlier is column) and column.numbers is not None:
            earlier = lines.setdefault(_shape(column.numbers), column)
            how = "is, up to its unit, the numbers of"
        if earlier is not None and earlier is not column:
            if _equal(earlier, column):
                how = "equals"
            yield Finding.of("duplicated-column", column.name, f"it {how} column {shown(earlier.name)}")


def _equal(first: Checked, second: Checked) -> bool:
    if first.numbers is None or second.numbers is None:
        return False
    return bool(np.array_equal(first.numbers, second.numbers, equal_nan=True))


def _shape(numbers: np.ndarray) -> bytes:
    """Return what columns share that are linear functions of each other: standardised values of a thousand rows."""
    values = numbers[:: max(1, numbers.size // 1000)].astype(np.float64)
    present = np.isfinite(values)
    if not present.any():
        return b""
    with np.errstate(all="ignore"):
        values = values - values[present].mean()
        standard = values / np.sqrt(np.square(values[present]).mean())
        first = standard[present][np.argmax(np.abs(standard[present]) > 0.1)]
        rounded = np.round(standard * np.sign(first), 4) + 0.0
    rounded[~present] = 1e9
    return hashlib.sha256(rounded.tobytes()).digest()
