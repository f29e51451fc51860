"""Helpers of all commands: the console, tables, progress bars, and errors."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from peerbayes.data.files import lines, printable
from peerbayes.errors import ExtensionError, NeedsPerson, PeerbayesError


class Terminal(Console):
    """A console for text that may contain names from others: nothing in it moves the cursor or changes a colour."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(lines(item) if isinstance(item, str) else item for item in objects), **options)


console = Terminal()

FORMATS = ("table", "json")


def check_format(form: str, formats: tuple[str, ...] = FORMATS) -> None:
    if form not in formats:
        raise ValueError(f"--format is {form!r}; expected one of {', '.join(formats)}")


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Exit with the reason on standard error: 2 for an invalid request or where a person is needed, 1 for a failure."""
    try:
        yield
    except (PeerbayesError, ValueError, TypeError, OSError) as error:
        print(f"peerbayes: {lines(str(error))}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ValueError | TypeError | NeedsPerson | ExtensionError) else 1)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings of the library as one line on standard error, without the line of code."""

    def printed(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"peerbayes: {lines(str(message))}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=UserWarning, module=r"peerbayes\.")
        warnings.showwarning = printed
        yield


def print_table(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    table = Table(*map(_cell, header), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(_cell, row))
    console.print(table)


def _cell(value: Any) -> str:
    """Return a number or a text for a cell; "–" for NaN."""
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:.3f}"
    return escape(printable(str(value)))


def progress_bar() -> Progress:
    """Return a progress bar that counts steps; it is shown on a terminal only."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    return Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
