"""What all sites' tables look like together, and how one site's table differs from those of all others.

A site's table as whole numbers, which are added up over all sites:

    1, rows, rows of each class
    of each column            values that are there
    of a column of numbers    Σz and Σz² in two words each, and how many values lie in each of 66 cells of z
    of categories             how many values are of each

z = (x − location)/scale in the units that all agreed on, held within ±100; the cells are eighths of z from −4 to 4, and
what lies beyond. So nobody's lowest or highest value is told: a range is that of the cells in which the 5 % and the
95 % quantile lie. A site subtracts its own numbers from everybody's, and compares itself with all others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from peerbayes.data.column import Column
from peerbayes.data.schema import Schema
from peerbayes.data.table import Scalar
from peerbayes.learning.integer_sums import numbers_of_words, words_of_numbers

CELLS = 66  # of z: 64 of an eighth each from −4 to 4, and two for what lies beyond
FARTHEST = 100.0  # what |z| counts for at most
MOST_ROWS = 1 << 40  # of all sites together; more are no rows, and sums of so many cells stay within 64 bits
ROUNDING = 1e-12  # of a variance of z: one value everywhere leaves as much
RANGE = 0.05, 0.95  # the quantiles between which a range lies
SHOWN = 20  # categories of a column that are kept, the most frequent ones

# --- the figures of one site, of all others, or of all


@dataclass(frozen=True)
class ColumnFigures:
    """One column. Of a column of logarithms, mean and deviation are those of the logarithms, and the range is not."""

    name: str
    present: float
    """Values that are there."""
    mean: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    logarithms: bool = False
    counts: Mapping[Scalar, float] | None = None
    """Values of each category, where the column has categories that are counted."""

    @property
    def typical(self) -> float:
        """The mean, or the geometric mean of a column of logarithms."""
        assert self.mean is not None
        return math.exp(min(self.mean, 700.0)) if self.logarithms else self.mean


@dataclass(frozen=True)
class DataFigures:
    """The tables of some sites."""

    sites: int
    rows: float
    classes: Mapping[Scalar, float]
    """Rows of each class."""
    columns: tuple[ColumnFigures, ...]
    noise: float = 0.0
    """Standard deviation of the noise in each number of rows or values; 0: they are exact."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values; of categories, the most frequent ones and how many there are."""
        return {
            "sites": self.sites,
            "rows": self.rows,
            "noise": self.noise,
            "classes": [[label, count] for label, count in self.classes.items()],
            "columns": [_column_json(column, self.rows) for column in self.columns],
        }


def _column_json(column: ColumnFigures, rows: float) -> dict[str, Any]:
    plain = {name: value for name, value in asdict(column).items() if name != "counts"}
    plain["missing"] = missing_share(column, rows)
    if column.counts is not None:
        seen = sorted(
            ((label, count) for label, count in column.counts.items() if count > 0),
            key=lambda entry: (-entry[1], str(entry[0])),
        )
        plain |= {"categories": len(seen), "most_frequent": [list(entry) for entry in seen[:SHOWN]]}
    return plain


def missing_share(column: ColumnFigures, rows: float) -> float | None:
    """Return the share of rows that miss a value; None: there are no rows."""
    return min(1.0, max(0.0, 1.0 - column.present / rows)) if rows > 0 else None


# --- as words that are added up


@dataclass(frozen=True)
class Units:
    """The units in which numbers of a column are summed, the same at all sites."""

    location: float
    scale: float

    @classmethod
    def of(cls, column: Column) -> Units:
        """Return the units of an agreed column: its own or, where it has edges, those of its edges."""
        if not column.edges:
            return cls(column.location, column.scale)
        low, high = column.edges[0], column.edges[-1]
        return cls(low / 2 + high / 2, (high / 2 - low / 2) or 1.0)


@dataclass(frozen=True)
class FigureLayout:
    """Which word of a site's contribution is what."""

    schema: Schema

    @property
    def size(self) -> int:
        """How many words there are."""
        return 2 + len(self.schema.classes) + sum(map(_size, self.schema.columns))

    def words(
        self,
        rows: int,
        labels: np.ndarray,
        numbers: Mapping[str, np.ndarray],
        codes: Mapping[str, np.ndarray],
    ) -> np.ndarray:
        """Return a site's contribution: [size] of int64.

        labels   [n] class indices
        numbers  the present numbers of each column of numbers
        codes    the category of each value of other columns, −1 where it is missing
        """
        counted = (
            np.bincount(labels, minlength=len(self.schema.classes))
            if rows
            else [0] * len(self.schema.classes)
        )
        parts = [np.array([1, rows], dtype=np.int64), np.asarray(counted, dtype=np.int64)]
        for column in self.schema.columns:
            if column.traits.reads_numbers:
                parts.append(_words_of(numbers.get(column.name, np.zeros(0)), Units.of(column)))
            else:
                present = codes[column.name][codes[column.name] >= 0]
                counts = np.bincount(present, minlength=len(column.categories))
                parts.append(np.concatenate([[present.size], counts]).astype(np.int64))
        return np.concatenate(parts)

    def figures(self, words: np.ndarray) -> DataFigures:
        """Return what words say; ValueError where no tables have them."""
        sites, rows = int(words[0]), int(words[1])
        classes = words[2 : 2 + len(self.schema.classes)]
        if sites < 0 or not 0 <= rows <= MOST_ROWS:
            raise ValueError(f"{sites:,} sites have {rows:,} rows")
        if not _adds_up(classes, rows):
            raise ValueError(f"{rows:,} rows are of {int(classes.sum()):,} classes")
        columns, offset = [], 2 + classes.size
        for column in self.schema.columns:
            size = _size(column)
            columns.append(_figures_of(column, words[offset : offset + size], rows))
            offset += size
        return DataFigures(
            sites, rows, dict(zip(self.schema.classes, classes.tolist(), strict=True)), tuple(columns)
        )


def _adds_up(counts: np.ndarray, rows: int) -> bool:
    """Return whether counts [n] are of so many rows, each in one of them."""
    return counts.min(initial=0) >= 0 and counts.max(initial=0) <= rows and int(counts.sum()) == rows


def _size(column: Column) -> int:
    return 1 + (4 + CELLS if column.traits.reads_numbers else len(column.categories))


def _words_of(numbers: np.ndarray, units: Units) -> np.ndarray:
    """Return the words of a column of numbers: [n] -> [1 + 4 + CELLS]."""
    with np.errstate(over="ignore"):
        z = np.clip((numbers - units.location) / units.scale, -FARTHEST, FARTHEST)
    cells = np.clip(np.floor(z * 8.0).astype(np.int64) + 33, 0, CELLS - 1)
    sums = words_of_numbers([math.fsum(z), math.fsum(z * z)])
    return np.concatenate([[numbers.size], sums, np.bincount(cells, minlength=CELLS)]).astype(np.int64)


def _figures_of(column: Column, words: np.ndarray, rows: int) -> ColumnFigures:
    """Return the figures of one column of `rows` rows."""
    present, remaining = int(words[0]), words[1:]
    if not 0 <= present <= rows:
        raise ValueError(f"{present:,} values of {column.name!r:.80} are in {rows:,} rows")
    cells = remaining[4:] if column.traits.reads_numbers else remaining
    # A category that is not listed counts as present nowhere, so no column has more cells than values.
    if not _adds_up(cells, present):
        raise ValueError(f"{int(cells.sum()):,} of {present:,} values of {column.name!r:.80} are counted")
    if not column.traits.reads_numbers:
        counts = dict(zip(column.categories, remaining.tolist(), strict=True))
        return ColumnFigures(column.name, present, counts=counts)
    first, second = (float(value) for value in numbers_of_words(remaining[:4]))
    if abs(first) > present * FARTHEST + 1e-6 or not -1e-6 <= second <= present * FARTHEST**2 + 1e-6:
        raise ValueError(f"{present:,} values of {column.name!r:.80} have sums {first:.3g} and {second:.3g}")
    logarithms = column.traits.scale_of_numbers != ""
    if not present:
        return ColumnFigures(column.name, 0, logarithms=logarithms)
    units, mean = Units.of(column), first / present
    variance = second / present - mean * mean
    spread = math.sqrt(variance) if variance > ROUNDING * max(1.0, mean * mean) else 0.0
    low, high = (
        _bounded(units.location + units.scale * end, logarithms) for end in _range(cells.astype(np.float64))
    )
    return ColumnFigures(
        column.name, present, units.location + units.scale * mean, units.scale * spread, low, high, logarithms
    )


def _bounded(number: float, logarithm: bool) -> float:
    return math.exp(min(max(number, -700.0), 700.0)) if logarithm else number


def _range(cells: np.ndarray) -> tuple[float, float]:
    """Return the z between which the middle nine tenths of the values lie, to an eighth; ±4: beyond that."""
    below = np.cumsum(cells) / cells.sum()
    first, last = (int(np.searchsorted(below, quantile - 1e-12)) for quantile in RANGE)
    return max(-4.0, (first - 33) / 8.0), min(4.0, (last - 32) / 8.0)


# --- how one site differs from all others: findings in plain words

FEWEST = 10  # values on either side; fewer say nothing
APART = 3.0  # standard deviations between two means that make another unit likely
TIMES = 20.0  # ratio of two deviations that does
MORE_MISSING = 0.3  # difference of two shares of missing values
OTHER_CODES = 0.2  # share of a site's values that no other site has
COMMON = 0.05  # share of a class, or of a category, that others see often
EXPECTED = 3.0  # rows of a common class that a site would have by chance


@dataclass(frozen=True)
class Finding:
    """One difference between a site's table and all others'."""

    kind: str
    """"empty", "constant", "missing", "unit", "codes" or "classes"."""
    column: str
    sentence: str
    stops: bool
    """Whether it stops a run whose agreement says that findings do: a class that is rare here, for one, does not."""


def findings(own: DataFigures, others: DataFigures, label: str) -> list[Finding]:
    """Return how a site's figures differ from those of all others together; [] where there are no others."""
    if others.rows <= 0 or own.rows <= 0:
        return []
    found = list(_of_classes(own, others, label))
    for mine, theirs in zip(own.columns, others.columns, strict=True):
        found += _of_column(mine, theirs, own, others)
    return found


def _of_classes(own: DataFigures, others: DataFigures, label: str) -> Iterator[Finding]:
    margin = 4.0 * max(own.noise, others.noise)
    for value, count in own.classes.items():
        elsewhere = others.classes[value]
        if count > margin and elsewhere <= margin and margin == 0.0:
            sentence = (
                f"label {label}: class {value!r} is at this site only, in {count:,.0f} rows: another code?"
            )
            yield Finding("classes", label, sentence, True)
            continue
        share = elsewhere / others.rows
        if count <= margin and share >= COMMON and own.rows * share >= EXPECTED + margin:
            sentence = (
                f"label {label}: class {value!r} is not seen here, and is {share:.0%} of the others' rows"
            )
            yield Finding("classes", label, sentence, False)


def _of_column(
    own: ColumnFigures, others: ColumnFigures, own_table: DataFigures, other_tables: DataFigures
) -> Iterator[Finding]:
    name, exact = own.name, own_table.noise == 0.0
    mine, theirs = missing_share(own, own_table.rows), missing_share(others, other_tables.rows)
    assert mine is not None and theirs is not None
    if exact and not own.present:
        if others.present:
            sentence = f"column {name}: no value here; {1 - theirs:.0%} of the others' rows have one"
            yield Finding("empty", name, sentence, True)
        else:
            yield Finding("empty", name, f"column {name}: no value at any site", True)
        return
    margin = 4.0 * (own_table.noise / own_table.rows + other_tables.noise / other_tables.rows)
    if mine - theirs >= MORE_MISSING + margin and own_table.rows >= FEWEST:
        sentence = f"column {name}: {mine:.0%} of the values are missing here, {theirs:.0%} at the others"
        yield Finding("missing", name, sentence, True)
    if min(own.present, others.present) < FEWEST:
        return
    if own.mean is not None and others.mean is not None:
        yield from _of_numbers(own, others)
    if own.counts is not None and others.counts is not None:
        yield from _of_categories(own, others)


def _of_numbers(own: ColumnFigures, others: ColumnFigures) -> Iterator[Finding]:
    assert own.mean is not None and own.sd is not None and others.mean is not None and others.sd is not None
    name, least = own.name, 1e-9 * max(abs(own.mean), abs(others.mean), 1e-300)
    here, elsewhere = _described(own), _described(others)
    pooled = math.sqrt((own.sd**2 + others.sd**2) / 2.0)
    if abs(own.mean - others.mean) > APART * pooled and abs(own.mean - others.mean) > least:
        ratio = own.typical / others.typical if others.typical else 0.0
        times = f", {_times(ratio)}" if ratio > 0 else ""
        sentence = f"column {name}: your mean is {here}, the others' {elsewhere}{times}: another unit?"
        yield Finding("unit", name, sentence, True)
    elif own.sd <= least:
        if others.sd > least:
            sentence = f"column {name}: every value here is {here}; the others' mean is {elsewhere}"
            yield Finding("constant", name, sentence, True)
        else:
            sentence = (
                f"column {name}: all sites have one and the same value, so nothing can be learned from it"
            )
            yield Finding("constant", name, sentence, False)
    elif others.sd > TIMES * own.sd:
        sentence = (
            f"column {name}: the others' values vary {others.sd / own.sd:,.0f} times as much as yours (your mean is "
            f"{here}, theirs {elsewhere}): does another site use another unit?"
        )
        yield Finding("unit", name, sentence, True)
    elif own.sd > TIMES * others.sd > least:
        sentence = (
            f"column {name}: your values vary {own.sd / others.sd:,.0f} times as much as the others' (your mean is "
            f"{here}, theirs {elsewhere}): several units in one column?"
        )
        yield Finding("unit", name, sentence, True)


def _described(column: ColumnFigures) -> str:
    """Return a mean and a deviation; of logarithms, what a typical value is times or divided by."""
    assert column.sd is not None
    if column.logarithms:
        return f"{column.typical:.3g} times or divided by {math.exp(min(column.sd, 700.0)):.3g}"
    return f"{column.typical:.3g} ± {column.sd:.2g}"


def _times(ratio: float) -> str:
    if ratio >= 1:
        return f"{ratio:.3g} times as much"
    return f"1/{1 / ratio:.3g} of that" if ratio > 1e-12 else "next to nothing of that"


def _of_categories(own: ColumnFigures, others: ColumnFigures) -> Iterator[Finding]:
    assert own.counts is not None and others.counts is not None
    only_here = {
        value: count for value, count in own.counts.items() if count > 0 and others.counts[value] <= 0
    }
    share = sum(only_here.values()) / own.present
    seen = [value for value, count in own.counts.items() if count > 0]
    theirs = sorted(others.counts, key=lambda value: -(others.counts or {})[value])
    if share >= OTHER_CODES:
        sentence = (
            f"column {own.name}: {share:.0%} of the values here are seen at no other site ({_list(only_here)}); the "
            f"others have {_list(theirs)}: other codes?"
        )
        yield Finding("codes", own.name, sentence, True)
    elif len(seen) == 1:
        elsewhere = 1.0 - others.counts[seen[0]] / others.present
        if elsewhere >= COMMON:
            sentence = (
                f"column {own.name}: every value here is {seen[0]!r}; {elsewhere:.0%} of the others' are not"
            )
            yield Finding("constant", own.name, sentence, False)


def _list(values: Any) -> str:
    names = [repr(value) for value in values]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
