"""Checks of the numbers of a column: dates, counters, codes for missing values, other units, heavy tails."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from peerbayes.data.arguments import shown
from peerbayes.data.doctor.findings import Finding
from peerbayes.data.doctor.text_checks import date_example
from peerbayes.data.infer import IDENTIFIER_ROWS

# Numbers that stand for a missing value where all others are far from them: nines, and a minus in front of them.
CODES = (-9.0, *(sign * float("9" * digits) for digits in range(2, 9) for sign in (1, -1)))

# A code is at least this many times as large as every other number.
CODE_FACTOR = 2.0

# Numbers of another unit: a few rows a factor off, beside a bulk whose middle half is within a quarter of that factor.
UNIT_FACTOR, UNIT_SHARE = 8.0, 0.05

# More rows than a few, up to this share, are in another unit where they are a copy of the bulk in larger or smaller
# numbers: so many different ones at least, with nothing in between, and spread as the bulk is, up to a factor.
MOST_UNIT_SHARE, UNIT_NUMBERS, UNIT_GAP, UNIT_SPREAD = 0.45, 10, 3.0, 2.0

# Whole numbers that are dates: 19000101 to 20991231.
FIRST_DATE, LAST_DATE = 1900_01_01, 2099_12_31

# Rows from which quantiles say something.
QUANTILE_ROWS = 20

# Numbers so many times the range of the middle half away from the median, in a small share of the rows.
TAIL_RANGES, TAIL_SHARE = 100.0, 0.01


def number_findings(name: str, numbers: np.ndarray) -> Iterator[Finding]:
    """Yield the findings of a column by its present numbers: [n], at least two different ones."""
    finite = np.isfinite(numbers)
    if not finite.all():
        seen = f"{int(np.count_nonzero(~finite)):,} of {numbers.size:,} values are infinite"
        yield Finding.of("infinity", name, seen)
        numbers = numbers[finite]
    if not numbers.size:
        return
    if (date := dates(name, numbers)) is not None:
        yield date
        return
    if seen := counter(numbers):
        yield Finding.of("identifier", name, seen)
        return
    codes = missing_codes(numbers)
    for code, count in codes:
        yield Finding.of("missing-code", name, f"{code:g} in {count:,} rows, far from all other values")
    yield from outlying(name, numbers[~np.isin(numbers, [code for code, _ in codes])])


def dates(name: str, numbers: np.ndarray) -> Finding | None:
    """Return the finding of whole numbers [n] that are all dates, like 20241231; None: they are not."""
    if numbers.size < IDENTIFIER_ROWS or numbers.min() < FIRST_DATE or numbers.max() > LAST_DATE:
        return None
    month, day = numbers // 100 % 100, numbers % 100
    if not (_are_whole(numbers) and ((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all()):
        return None
    example = str(int(numbers[0]))
    seen = f"{numbers.size:,} whole numbers that are dates, like {example}"
    return Finding.of("date", name, seen, example=date_example(name, [example]))


def counter(numbers: np.ndarray) -> str:
    """Return what makes whole numbers an identifier: each is in one row only. Empty: they are none."""
    if numbers.size < IDENTIFIER_ROWS or not _are_whole(numbers):
        return ""
    steps = np.diff(numbers)
    if (steps > 0).all() or (steps < 0).all():
        way = "rise" if steps[0] > 0 else "fall"
        return f"{numbers.size:,} whole numbers that {way} from row to row, like {shown(int(numbers[0]))}"
    ordered = np.sort(numbers)
    if (np.diff(ordered) > 0).all():
        return f"{numbers.size:,} whole numbers, no two of them equal, like {shown(int(numbers[0]))}"
    return ""


def _are_whole(numbers: np.ndarray) -> bool:
    if numbers.dtype.kind in "iu":
        return True
    return bool((numbers[:64] % 1 == 0).all() and (numbers % 1 == 0).all())


def missing_codes(numbers: np.ndarray) -> list[tuple[float, int]]:
    """Return codes for missing values among numbers [n], and how often each occurs: two rows or more."""
    codes = []
    for code in (float(numbers.max()), float(numbers.min())):
        if code not in CODES:
            continue
        others = numbers[numbers != code]
        count = numbers.size - others.size
        if count < 2 or others.size < 2 or others.min() == others.max():
            continue
        nearest = float(others.max()) if code > 0 else float(-others.min())
        if nearest * CODE_FACTOR <= abs(code) and (code != -9.0 or nearest <= 0):
            codes.append((code, count))
    return codes


def outlying(name: str, numbers: np.ndarray) -> Iterator[Finding]:
    """Yield whether a few of the numbers [n] are in another unit, or far away from the others."""
    if numbers.size < QUANTILE_ROWS:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        sample = numbers[:: max(1, numbers.size // 100_000)].astype(np.float64)
        low, middle, high = np.quantile(sample, (0.25, 0.5, 0.75))
    if middle > 0 and low > 0 and high / low <= UNIT_FACTOR / 4:
        factor = np.abs(np.log(np.where(numbers > 0, numbers, middle) / middle))
        away = factor > np.log(UNIT_FACTOR)
        between = (factor > np.log(UNIT_FACTOR) / 1.5) & ~away
        if 0 < away.sum() <= UNIT_SHARE * numbers.size and not between.any():
            example = float(numbers[np.argmax(away)])
            yield Finding.of("another-unit", name, _far(away, example, low, high))
            return
    if (finding := _two_units(name, numbers)) is not None:
        yield finding
        return
    with np.errstate(over="ignore"):
        spread = high - low
        far = np.abs(numbers.astype(np.float64) - middle) > TAIL_RANGES * spread
    if spread > 0 and 0 < far.sum() <= max(1.0, TAIL_SHARE * numbers.size):
        example = float(numbers[np.argmax(far)])
        yield Finding.of("heavy-tails", name, _far(far, example, low, high))


def _two_units(name: str, numbers: np.ndarray) -> Finding | None:
    """Return the finding of many numbers [n] that are a copy of the others in another unit, all above 0."""
    if numbers.min() <= 0:
        return None
    logs = np.log(np.sort(numbers.astype(np.float64)))
    gaps = np.diff(logs)
    below = int(np.argmax(gaps)) + 1  # numbers below the widest gap
    few, bulk = sorted((logs[:below], logs[below:]), key=len)
    if gaps[below - 1] < np.log(UNIT_GAP) or few.size > MOST_UNIT_SHARE * numbers.size:
        return None
    low, high = np.quantile(bulk, (0.25, 0.75))
    spreads = [float(part.std()) for part in (few, bulk)]
    alike = max(spreads) <= UNIT_SPREAD * min(spreads)
    apart = abs(np.median(few) - np.median(bulk)) >= np.log(UNIT_FACTOR)
    enough = min(np.unique(few).size, np.unique(bulk).size) >= UNIT_NUMBERS
    if not (alike and apart and enough and high - low <= np.log(UNIT_FACTOR / 4)):
        return None
    away = (numbers <= np.exp(logs[below - 1])) == (few[0] == logs[0])
    return Finding.of(
        "another-unit",
        name,
        _far(away, float(numbers[np.argmax(away)]), float(np.exp(low)), float(np.exp(high))),
    )


def _far(away: np.ndarray, example: float, low: float, high: float) -> str:
    return f"{int(away.sum()):,} values like {example:g}, where the middle half is from {low:g} to {high:g}"
