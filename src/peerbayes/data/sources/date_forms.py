"""How dates are written, and what becomes of them: "month", or "month %d.%m.%Y" where they are not like 2024-12-31."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import product

from peerbayes.data.arguments import one_of, refusal

# What a date may become: days since 1970 and years are numbers, months and weekdays categories.
DATES = ("days", "year", "month", "weekday")

# How people write dates, beside ISO 8601: the advice of `check` names those that fit.
DAYS = [
    *(mark.join(order) for order, mark in product(("dmY", "mdY", "dmy", "mdy", "Ymd"), ".-/")),
    "d b Y", "d-b-Y", "dbY", "d B Y", "d-b-y", "d b y", "Ymd",
]  # fmt: skip
TIMES = ("", " %H:%M", " %H:%M:%S", "T%H:%M", "T%H:%M:%S")
PATTERNS = tuple(
    "".join(f"%{sign}" if sign.isalpha() else sign for sign in day) + time for day in DAYS for time in TIMES
)

# A date whose day, month and year cannot be mistaken for each other, nor for what is taken where one is not given.
PROBE = datetime(2023, 11, 28)


def parsed_form(name: str, form: str) -> tuple[str, str | None]:
    """Return what becomes of dates, and the pattern that they are written in; None: as in 2024-12-31.

    name  of the argument, for errors
    """
    if not isinstance(form, str):
        raise refusal(name, form, f'one of {", ".join(DATES)}, or one and a pattern: "month %d.%m.%Y"')
    becomes, _, pattern = form.partition(" ")
    one_of(name, becomes, DATES, ', or one of them and how dates are written: "month %d.%m.%Y"')
    if not pattern:
        return becomes, None
    try:
        read = datetime.strptime(PROBE.strftime(pattern), pattern)
    except ValueError:
        read = None
    needed = {"year": ("year",), "month": ("month",)}.get(becomes, ("year", "month", "day"))
    if read is None or any(getattr(read, part) != getattr(PROBE, part) for part in needed):
        raise refusal(
            name,
            form,
            f"a pattern with the {', '.join(needed)} of a date, like %d.%m.%Y (signs of Python's strptime)",
        )
    return becomes, pattern


def patterns_of(texts: Sequence[str]) -> list[str]:
    """Return the patterns of `PATTERNS` that all of these dates are written in."""
    fitting = list(PATTERNS)
    for text in texts:
        fitting = [pattern for pattern in fitting if _fits(text.strip(), pattern)]
        if not fitting:
            break
    return fitting


def _fits(text: str, pattern: str) -> bool:
    try:
        datetime.strptime(text, pattern)
    except ValueError:
        return False
    return True
