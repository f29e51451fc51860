"""Names from data as text that plotly shows as it is: plotly reads a few HTML tags, entities and %{…} in labels."""

from __future__ import annotations

from typing import Any

from peerbayes.text import printable

LONGEST = 28  # letters of a label; the rest is cut off
UNITS = ("B", "kB", "MB", "GB", "TB")


def label(value: Any, longest: int = LONGEST) -> str:
    """Any value in one line, without a tag, an entity or a template in it."""
    text = shown(value, longest)
    for mark, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("%{", "%&#123;"), ("$", "&#36;")):
        text = text.replace(mark, entity)
    return text


def shown(value: Any, longest: int = LONGEST) -> str:
    """Any value in one line of printable letters, not yet escaped."""
    text = " ".join(str(value).split())
    text = printable(text, "\N{REPLACEMENT CHARACTER}")
    return (text if len(text) <= longest else f"{text[: longest - 1]}…") or "(empty)"


def unlike(labels: list[str]) -> list[str]:
    """The same labels, with a number behind those that came before: plotly takes equal names for one."""
    seen: dict[str, int] = {}
    told = []
    for text in labels:
        seen[text] = seen.get(text, 0) + 1
        told.append(text if seen[text] == 1 else f"{text} ({seen[text]})")
    return told


def figure(value: float) -> str:
    """A number in about three digits."""
    return f"{value:.3f}" if abs(value) < 1 else f"{value:,.4g}"


def size(count: float) -> str:
    """A number of bytes."""
    power = 0
    while count >= 1000 and power < len(UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.3g} {UNITS[power]}"
