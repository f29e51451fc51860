"""Sanitise untrusted text for display: names of columns, categories, classes and peers.

Any member of a network can choose such names. Nothing in them may move a cursor, change a colour, start a line, change
the direction of the text around them, or be run as a formula by a spreadsheet.
"""

from __future__ import annotations

import json
import re
from typing import Any

# The beginning of a formula in a spreadsheet.
FORMULA = re.compile(r"\s*[=+\-@]")


def printable(text: str, instead: str = " ") -> str:
    """Return the text without invisible characters: control characters, line breaks, direction marks and characters of
    zero width. These are Unicode's categories C and Z except for the space."""
    return text if text.isprintable() else "".join(c if c.isprintable() else instead for c in text)


def lines(text: str) -> str:
    """Return a text of several lines with each line made printable."""
    return "\n".join(printable(text_line) for text_line in text.split("\n"))


def in_cell(value: Any) -> Any:
    """Return a value that is safe in a cell of a spreadsheet: text is made printable, and is never a formula.

    Text that begins like a formula gets an apostrophe, unless it is a number or a single sign. Numbers do not change.
    """
    if not isinstance(value, str):
        return value
    shown = printable(value)
    return f"'{shown}" if FORMULA.match(shown) and len(shown.strip()) > 1 and not _is_number(shown) else shown


def as_json(value: Any) -> str:
    """Return a value as readable JSON: letters as they are, invisible characters as \\uXXXX."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
