"""The warning of `fit` and `simulate`: what a glance at a few thousand rows shows to be no quantity and no category.

What takes longer than a glance is looked at only where a few rows suggest it: columns that say the same, and columns
that say the label, are compared by what `check` compares them by.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from peerbayes.data.arguments import shown
from peerbayes.data.column import Column
from peerbayes.data.doctor.column_checks import check_column, repeated_columns
from peerbayes.data.doctor.findings import Finding
from peerbayes.data.doctor.label_checks import MANY_CLASSES, leaking_columns, not_classes
from peerbayes.data.doctor.number_checks import CODES, counter, dates, missing_codes
from peerbayes.data.doctor.row_checks import Repeats, row_hashes
from peerbayes.data.doctor.text_checks import date_example, kind_of_text, numbers_in_text, spelling
from peerbayes.data.infer import IDENTIFIER_ROWS, Ends, extremes, rules_of
from peerbayes.data.kinds import KINDS
from peerbayes.data.table import Table, missing_of
from peerbayes.errors import DataWarning

# Rows and categories of a column that are looked at: a fit hardly takes longer.
GLANCE = 4096

# Categories up to which numerals are usual names: codes of wards, of answers, of digits.
CODED = 10

# Codes of missing values, among which the lowest and the highest number of each column are looked for.
CODED_ENDS = frozenset(CODES)

# Findings that the warning names; `check` lists all.
NAMED = 3

# Rows from which a column that says nothing, or the same as another one, does not do so by chance.
TELLING_ROWS = IDENTIFIER_ROWS

# Rows that suggest which columns are worth comparing, and numbers that no two different columns are likely to share.
FEW = 64
DIRECTION = np.random.default_rng(0).normal(size=FEW)
CLOSE = 1e-6  # of two such numbers, relatively; rounding after a change of units is below


class Glance(NamedTuple):
    """What a glance at a table sees: some of its rows, evenly spaced."""

    rows: Table
    labels: np.ndarray  # of these rows, indices among the classes; −1 where there is no label
    step: int  # every so many rows one is seen
    total: int  # rows of the table
    of_class: np.ndarray | None  # [C] rows of the table; None: classes are few
    ends: Ends | None = None  # the lowest and the highest number of each column, where all rows are seen

    @classmethod
    def of(cls, table: Table, labels: np.ndarray, classes: Sequence[Any], ends: Ends | None = None) -> Glance:
        """Return a glance at a table; `ends`: the lowest and highest numbers, where `inspect` has seen them."""
        step = step_of(table.rows)
        rows = table if step == 1 else table.take(np.arange(0, table.rows, step))
        many = len(classes) > MANY_CLASSES
        of_class = np.bincount(labels[labels >= 0], minlength=len(classes)) if many else None
        return cls(rows, labels[::step], step, table.rows, of_class, ends if step == 1 else None)


def step_of(rows: int) -> int:
    """Return how far the rows are apart that a glance at so many of them sees."""
    return max(1, -(-rows // GLANCE))


def warn_of_data(
    table: Table,
    columns: Sequence[Column],
    kinds: Any,
    labels: np.ndarray,
    classes: Sequence[Any],
    stacklevel: int,
    ends: Ends | None = None,
) -> None:
    """Warn of columns and labels that look like something else than they are taken for, and that `kinds` does not name.

    labels      [n] indices among the classes; −1 where there is no label
    stacklevel  of the line that is to blame, counted from the caller of this function: 1 is that caller
    ends        the lowest and the highest number of each column, where `inspect` has seen them
    """
    warn_of_glance(Glance.of(table, labels, classes, ends), columns, kinds, classes, stacklevel + 1)


def warn_of_glance(
    glance: Glance, columns: Sequence[Column], kinds: Any, classes: Sequence[Any], stacklevel: int
) -> None:
    """Do what `warn_of_data` does, from a glance at the rows."""
    findings = list(findings_of(glance, columns, kinds, classes))
    if not findings:
        return
    more = f"; {len(findings) - NAMED} more" if len(findings) > NAMED else ""
    listed = "; ".join(map(str, findings[:NAMED]))
    warnings.warn(
        f"{listed}{more}. peerbayes.check(X, y) says all; what is right as it is can be named by kinds",
        DataWarning,
        stacklevel=stacklevel + 1,
    )


def findings_of(
    glance: Glance, columns: Sequence[Column], kinds: Any, classes: Sequence[Any]
) -> Iterator[Finding]:
    """Yield what a glance shows.

    Of columns: counters, codes for missing values, dates, numbers or several spellings among categories, columns
    that say nothing, the same as another one, or the label. Of labels: whole numbers that are quantities.
    """
    rows, labels, step, total, of_class, ends = glance
    rules = rules_of(rows, kinds)
    open_columns = [j for j, rule in enumerate(rules) if rule not in KINDS and rule != "paper"]
    if not open_columns or not total:
        return
    for j in _suspects(rows, columns, open_columns, ends):
        column = columns[j]
        if column.dense or column.edges:
            yield from _of_numbers(column.name, rows.column(j), step)
        elif rows.declared(j) is None and column.categories and isinstance(column.categories[0], str):
            yield from _of_categories(column.name, [str(value) for value in column.categories[:GLANCE]])
    if total < TELLING_ROWS:
        return
    yield from _of_labels(of_class, classes)
    yield from _silent(rows, columns, open_columns)
    alike = _alike(rows, columns, open_columns, labels)
    if alike:
        compared = [check_column(columns[j].name, rows.column(j), rules[j], declared=True)[1] for j in alike]
        checked = [each for each in compared if each is not None]
        repeats = Repeats.of(checked, row_hashes([*(rows.column(j) for j in open_columns), labels]))
        yield from repeated_columns(repeats.among(checked))
        leaks = leaking_columns(repeats.among(checked), repeats.labels(labels))
        yield from (finding for finding in leaks if finding.name == "label-copy")


def _of_labels(of_class: np.ndarray | None, classes: Sequence[Any]) -> Iterator[Finding]:
    """Yield that labels are quantities, of which [C] rows each have one."""
    if of_class is not None:
        finding = not_classes("y", list(classes), of_class)
        if finding is not None and finding.name == "continuous-label":
            yield finding


def _silent(rows: Table, columns: Sequence[Column], open_columns: list[int]) -> Iterator[Finding]:
    """Yield columns without a value, or with one only.

    Nothing is said of columns of zeros: they are usual, as pixels that are never lit and words that are never used.
    """
    for j in open_columns:
        column = columns[j]
        nothing = column.count == 0
        if nothing or (column.constant and column.location != 0) or len(column.categories) == 1:
            findings, _ = check_column(column.name, rows.column(j), column.kind, declared=True)
            yield from (finding for finding in findings if finding.name in ("empty", "constant"))


def _alike(rows: Table, columns: Sequence[Column], open_columns: list[int], labels: np.ndarray) -> list[int]:
    """Return the columns of which a few rows suggest that they say the same as another one, or the label [n]."""
    few = (np.arange(FEW) * ((rows.rows - 1) / (FEW - 1))).astype(np.intp)
    few[-1] = rows.rows - 1
    few = few[np.argsort(labels[few], kind="stable")]  # class by class
    classes = labels[few]
    changes = classes[1:] != classes[:-1]
    if rows.numeric is not None:
        block = _of_columns(np.take(rows.numeric, few, axis=0), open_columns).astype(np.float64, copy=False)
        alike = _copies(block, columns, open_columns)
        same = int(changes.argmin())  # two rows of one class, if there are any
        if not changes[same] and (block[same + 1] == block[same]).any():
            copies = ((block[1:] != block[:-1]) == changes[:, None]).all(axis=0)
            alike += [open_columns[k] for k in np.flatnonzero(copies)]
        return sorted(set(alike))
    values = {j: rows.column(j)[few] for j in open_columns}
    numbers = [j for j in open_columns if values[j].dtype.kind in "iuf"]
    alike = []
    if numbers:
        alike = _copies(np.stack([values[j] for j in numbers], axis=1).astype(np.float64), columns, numbers)
    groups: dict[tuple[int, ...], list[int]] = {(0, *np.cumsum(changes).tolist()): [-1]}  # those of the label
    for j in open_columns:
        if values[j].dtype.kind != "f" or (values[j][:4] % 1 == 0).all():
            first: dict[Any, int] = {}
            codes = tuple(first.setdefault(value, len(first)) for value in values[j].tolist())
            if 1 < len(first) <= FEW // 2:
                groups.setdefault(codes, []).append(j)
    alike += [j for group in groups.values() if len(group) > 1 for j in group if j >= 0]
    return sorted(set(alike))


def _copies(block: np.ndarray, columns: Sequence[Column], numbers: list[int]) -> list[int]:
    """Return the columns of numbers that may be others in another unit, by a few rows of them: [FEW, D]."""
    location = np.array([columns[j].location for j in numbers])
    scale = np.array([columns[j].scale for j in numbers])
    block = (block - location) / scale
    absent = np.isnan(block)
    if absent.any():
        block[absent] = 0.0
    along = np.abs(DIRECTION @ block)
    order = np.argsort(along)
    close = np.diff(along[order]) <= CLOSE * along[order[1:]]
    if not close.any():
        return []
    near = order[np.append(close, False) | np.append(False, close)]
    return [numbers[k] for k in near if block[0, k] != block[:, k].max() or block[0, k] != block[:, k].min()]


def _suspects(
    rows: Table,
    columns: Sequence[Column],
    open_columns: list[int],
    ends: Ends | None,
) -> list[int]:
    """Return the columns worth a look: of an array of numbers, those with a code at an end or with whole numbers."""
    if rows.numeric is None:
        return open_columns
    with np.errstate(invalid="ignore"):
        if ends is None:
            low, high = (each.tolist() for each in extremes(rows.numeric))  # NaN where a value is missing
        else:
            low, high = ends
        suspects = {
            j for j in open_columns if low[j] in CODED_ENDS or high[j] in CODED_ENDS or low[j] != low[j]
        }
        if ends is not None:
            suspects |= {j for j in open_columns if columns[j].count != rows.rows}
        if rows.rows >= IDENTIFIER_ROWS:
            first, second, third = rows.numeric[:3]
            whole = (first % 1 == 0) & (second % 1 == 0) & (third % 1 == 0)
            suspects.update(np.flatnonzero(whole & (first != second)).tolist())
    return [j for j in open_columns if j in suspects]


def _of_columns(block: np.ndarray, columns: list[int]) -> np.ndarray:
    """Return some columns of a block [n, D], the block itself where these are all."""
    return block if len(columns) == block.shape[1] else np.take(block, columns, axis=1)


def _of_numbers(name: str, values: np.ndarray, step: int) -> Iterator[Finding]:
    if values.dtype.kind == "O":
        return
    numbers = values[~missing_of(values)]
    if numbers.size < 2 or not np.isfinite(numbers).all():
        return
    if (date := dates(name, numbers)) is not None:
        yield date
        return
    if (seen := counter(numbers)) and (step == 1 or np.ptp(np.diff(numbers)) == 0):
        yield Finding.of("identifier", name, seen)
        return
    for code, count in missing_codes(numbers):
        many = "" if step == 1 else f"of one in {step} "
        yield Finding.of("missing-code", name, f"{code:g} in {count:,} {many}rows, far from all other values")


def _of_categories(name: str, texts: list[str]) -> Iterator[Finding]:
    if kind_of_text(texts[:FEW], len(texts), 0, False) == "date":
        seen = f"{len(texts):,} categories, like {shown(texts[0])}"
        yield Finding.of("date", name, seen, example=date_example(name, texts))
    elif (finding := numbers_in_text(name, texts, np.ones(len(texts)))) is not None:
        if finding.name != "numbers-as-text" or len(texts) > CODED:
            yield finding
    else:
        yield from spelling(name, texts)
