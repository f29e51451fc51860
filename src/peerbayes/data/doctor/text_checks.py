"""Checks of the categories of a text column: spellings, markers of missing values, numbers, dates and free text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from peerbayes.data.arguments import shown
from peerbayes.data.doctor.findings import REFUSED, Finding
from peerbayes.data.sources.date_forms import patterns_of
from peerbayes.data.sources.flat_files import is_number
from peerbayes.data.table import ISO_DATE

# Texts that stand for a missing value. "none" and "unknown" may be categories, and so may "." in a language of symbols.
MARKERS = frozenset(("?", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "#N/A", "<NA>", "-"))

# Numbers as people write them: with a decimal comma, separators of thousands, a bound, a unit or a currency.
WRITTEN_NUMBER = re.compile(
    r"[<>≤≥~≈]?\s*[$€£]?\s*[-+]?\d[\d\s.,'’]*(e[-+]?\d+)?\s*[%$€£]?([a-zA-Zµ°]{1,3})?\+?"
)

DATE = re.compile(
    r"\d{4}([-/.])\d{1,2}\1\d{1,2}([ T]\d{1,2}:\d\d.*)?|\d{1,2}([-/.])\d{1,2}\3(\d{4}|\d\d)([ T]\d{1,2}:\d\d.*)?|"
    r"\d{1,2}:\d\d(:\d\d.*)?|\d{1,2}[- ]?(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[- ]?\d{2,4}",
    flags=re.IGNORECASE,
)

# Dates that are looked at for how they are written; names that TOML takes without quotes.
MOST_DATES, BARE_KEY = 1000, re.compile(r"[A-Za-z0-9_-]+")

# A column is meant to hold numbers where at least this share of its texts are plain ones, and so many of them differ:
# "2", "4" and "more" are categories.
NUMBERS_SHARE, NUMBERS_LEAST = 0.5, 5

# Text of so many words is a sentence, and not a name; so many characters, and not a category.
SENTENCE_WORDS, SENTENCE_LENGTH = 4, 40

# Distinct texts that are looked at one by one, and their characters.
MOST_TEXTS, MOST_CHARACTERS = 20_000, 80

# Text of which so large a share of the rows differ, in so many rows at least, is no category.
DISTINCT_SHARE, DISTINCT_ROWS = 0.95, 20


def text_findings(name: str, texts: Sequence[str], counts: np.ndarray, refused: bool) -> Iterator[Finding]:
    """Yield the findings of a column by its distinct texts, and in how many rows each is: [k].

    refused  whether the column is refused, as an identifier or for its dates
    """
    distinct, rows, step = len(texts), int(counts.sum()), -(-len(texts) // MOST_TEXTS)
    texts, counts = texts[::step], counts[::step]
    severity = REFUSED if refused else None
    written = numbers_in_text(name, texts, counts)
    kind = kind_of_text(texts, distinct, rows, refused)
    if written is not None and kind in ("identifier", None):
        yield replace(written, severity=severity or written.severity)
    elif kind:
        seen = f"{distinct:,} distinct values in {rows:,} rows, like {shown(texts[0])}"
        yield Finding.of(kind, name, seen, severity, date_example(name, texts) if kind == "date" else "")
    else:
        yield from spelling(name, texts)


def kind_of_text(texts: Sequence[str], distinct: int, rows: int, refused: bool) -> str | None:
    """Return "date", "free-text" or "identifier" where texts, some of the distinct ones, are no categories."""
    if all(DATE.fullmatch(text.strip()[:MOST_CHARACTERS]) for text in texts):
        return "date"
    if any(map(is_number, texts[:1])) and not refused:
        return None
    sample = texts[:: max(1, len(texts) // 1000)]
    words = np.median([len(text.split()) for text in sample])
    length = np.median([len(text) for text in sample])
    sentences = (words >= SENTENCE_WORDS and length >= SENTENCE_LENGTH / 2) or length >= SENTENCE_LENGTH * 2
    enough = rows >= DISTINCT_ROWS
    if sentences and (refused or (enough and distinct >= rows / 2)):
        return "free-text"
    return "identifier" if refused or (enough and distinct >= DISTINCT_SHARE * rows) else None


def date_example(name: str, texts: Sequence[str]) -> str:
    """Return how [data] makes a category of a column's dates; empty where these texts have no date in them."""
    key = name if BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)
    patterns = patterns_of(texts[:MOST_DATES])
    if not patterns and any(ISO_DATE.fullmatch(text.strip()) is None for text in texts[:MOST_DATES]):
        return ""
    forms = [f"month {pattern}" for pattern in patterns[:2]] or ["month"]
    entries = " or ".join(f'dates = {{ {key} = "{form}" }}' for form in forms)
    return f"a simulation by {entries} in [data]"


def spelling(name: str, texts: Sequence[str]) -> Iterator[Finding]:
    """Yield what is wrong with how categories are written."""
    padded = [text for text in texts if text != text.strip()]
    if padded:
        yield Finding.of("blanks", name, f"{_count(padded, 'category', 'categories')} with blanks at an end, "
                         f"like {shown(padded[0])}")  # fmt: skip
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(" ".join(text.casefold().split()), []).append(text)
    several = [group for group in groups.values() if len({text.strip() for text in group}) > 1]
    if several:
        spellings = " and ".join(map(shown, several[0][:3]))
        yield Finding.of("variants", name, f"{_count(several, 'category is', 'categories are')} written in several "
                         f"ways, like {spellings}")  # fmt: skip
    markers = [text for text in texts if text.strip() in MARKERS]
    if markers and len(texts) > len(markers):
        yield Finding.of(
            "missing-code", name, f"{' and '.join(map(shown, markers[:3]))} among the categories"
        )


def numbers_in_text(name: str, texts: Sequence[str], counts: np.ndarray) -> Finding | None:
    """Return the finding of numbers that are written as text, alone or beside other text."""
    written = [text.strip()[:MOST_CHARACTERS] for text in texts]
    plain = np.array([is_number(text) for text in written], dtype=bool)
    if plain.all():
        counted = _count(texts, "category is a number", "categories are numbers")
        return Finding.of("numbers-as-text", name, f"{counted} written as text, like {shown(texts[0])}")
    numbers = plain | np.array([_like_number(text) for text in written], dtype=bool)
    markers = np.array([text in MARKERS for text in written], dtype=bool)
    others = np.flatnonzero(~plain & ~markers)
    enough = (
        counts[numbers].sum() >= NUMBERS_SHARE * counts[~markers].sum() and numbers.sum() >= NUMBERS_LEAST
    )
    if not (enough and others.size and _quantities(np.array(written, dtype=object), plain, numbers)):
        return None
    examples = " and ".join(shown(texts[j]) for j in others[:3])
    rows = f"{int(counts[plain].sum()):,} rows hold plain numbers, {int(counts[others].sum()):,} other text"
    return Finding.of("mixed-types", name, f"{rows}, like {examples}")


def _like_number(text: str) -> bool:
    """Return whether a text is a number as people write it."""
    return bool(WRITTEN_NUMBER.fullmatch(text)) and not DATE.fullmatch(text)


def _quantities(written: np.ndarray, plain: np.ndarray, numbers: np.ndarray) -> bool:
    """Return whether texts that look like numbers are meant as such: codes like 12A have one form and none plain."""
    if plain.any():
        return True
    return bool(all(re.search(r"[,\s.'’<>≤≥~≈%$€£]", text) for text in written[numbers][:50]))


def _count(items: Sequence[object], one: str, several: str) -> str:
    """Return how many items there are, in words."""
    return f"{len(items):,} {one if len(items) == 1 else several}"
