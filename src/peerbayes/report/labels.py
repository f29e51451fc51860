"""Names from data as literal text: in labels plotly interprets a few HTML tags, entities and %{…} templates."""

from __future__ import annotations

from typing import Any

from peerbayes.text import printable

LONGEST = 28  # characters of a label; longer ones are cut off
UNITS = ("B", "kB", "MB", "GB", "TB")


def label(value: Any, longest: int = LONGEST) -> str:
    """Return any value as one line of text, with tags, entities and templates escaped."""
    text = shown(value, longest)
    for mark, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("%{", "%&#123;"), ("$", "&#36;")):
        text = text.replace(mark, entity)
    return text


def shown(value: Any, longest: int = LONGEST) -> str:
    """Return any value as one line of printable characters, not yet escaped."""
    text = " ".join(str(value).split())
    text = printable(text, "\N{REPLACEMENT CHARACTER}")
    return (text if len(text) <= longest else f"{text[: longest - 1]}…") or "(empty)"


def distinct(labels: list[str]) -> list[str]:
    """Return the labels with a number appended to repeated ones: plotly treats equal names as one."""
    counts: dict[str, int] = {}
    distinct_labels = []
    for text in labels:
        counts[text] = counts.get(text, 0) + 1
        distinct_labels.append(text if counts[text] == 1 else f"{text} ({counts[text]})")
    return distinct_labels


def figure(value: float) -> str:
    """Return a number with about three digits."""
    return f"{value:.3f}" if abs(value) < 1 else f"{value:,.4g}"


def size(count: float) -> str:
    """Return a number of bytes with its unit."""
    power = 0
    while count >= 1000 and power < len(UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.3g} {UNITS[power]}"
