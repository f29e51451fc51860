"""What commands share: the console, tables, progress bars, and how an error ends a command."""

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

from peerbayes.errors import PeerbayesError
from peerbayes.peers.errors import NeedsPerson
from peerbayes.text import lines, printable


class Terminal(Console):
    """A console for text that may hold names from others: no character in it moves a cursor or changes a colour."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(lines(each) if isinstance(each, str) else each for each in objects), **options)


console = Terminal()

FORMATS = ("table", "json")


def known_format(form: str, known: tuple[str, ...] = FORMATS) -> None:
    if form not in known:
        raise ValueError(f"--format is {form!r}; expected one of {', '.join(known)}")


@contextmanager
def explained() -> Iterator[None]:
    """End with the reason on standard error: 2 for what makes no sense or needs a person, 1 for what failed."""
    try:
        yield
    except (PeerbayesError, ValueError, TypeError, OSError) as error:
        print(f"peerbayes: {lines(str(error))}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ValueError | TypeError | NeedsPerson) else 1)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print what the library warns of as a line on standard error, without the line of code."""

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
    """A number, "–" where there is none, or a text."""
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:.3f}"
    return escape(printable(str(value)))


def progress_bar() -> Progress:
    """A bar of counted steps, on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    return Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
