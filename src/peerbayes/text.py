"""Text from others is text: names of columns, categories, classes and peers, fit to be shown.

Whoever takes part in a network chooses such names. Nothing in them may move a cursor, change a colour, start a line,
turn the direction of what stands around them, or be run as a formula by a spreadsheet.
"""

from __future__ import annotations

import json
import re
from typing import Any

# What spreadsheets take for the beginning of a formula.
FORMULA = re.compile(r"\s*[=+\-@]")


def printable(text: str, instead: str = " ") -> str:
    """Return the text without anything that is not to be seen: control characters and line breaks, marks of direction,
    characters of no width. These are Unicode's categories C and Z, but for the space itself."""
    return text if text.isprintable() else "".join(c if c.isprintable() else instead for c in text)


def lines(text: str) -> str:
    """Return a text of our own of several lines, each of them printable."""
    return "\n".join(printable(line) for line in text.split("\n"))


def in_cell(value: Any) -> Any:
    """Return a value for a cell of a table that a spreadsheet may open: a text is printable, and never a formula.

    What begins like one gets an apostrophe, unless it is a number or a single sign, which no spreadsheet runs. Numbers
    stay what they are.
    """
    if not isinstance(value, str):
        return value
    shown = printable(value)
    return f"'{shown}" if FORMULA.match(shown) and len(shown.strip()) > 1 and not _is_number(shown) else shown


def as_json(value: Any) -> str:
    """Return a value as JSON for people and programs: letters as they are, all that is not to be seen as \\uXXXX."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
