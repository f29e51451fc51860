"""The commands of `peerbayes`, and what they share: the console, tables, progress bars, and exit codes."""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from peerbayes.data.files import lines, printable
from peerbayes.errors import ExtensionError, NeedsPerson, PeerbayesError

if TYPE_CHECKING:
    from peerbayes.data.declarations import Setting


class Terminal(Console):
    """A console for text that may contain names from others: nothing in it moves the cursor or changes a colour."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(lines(item) if isinstance(item, str) else item for item in objects), **options)


console = Terminal()

FORMATS = ("table", "json")


def check_format(form: str, formats: tuple[str, ...] = FORMATS) -> None:
    if form not in formats:
        raise ValueError(f"--format is {form!r}; expected one of {', '.join(formats)}")


def argument(help: str, **settings: Any) -> Any:
    """Return a positional argument of a command."""
    return typer.Argument(help=help, **settings)


def option(help: str, *names: str, **settings: Any) -> Any:
    """Return an option of a command; by default its name is the parameter's."""
    return typer.Option(*names, help=help, **settings)


def _known_format(form: str) -> str:
    check_format(form)
    return form


Format = Annotated[str, option("table or json.", "--format", callback=_known_format)]


Overwrite = Annotated[bool, option("Replace what is there; otherwise that is refused.", "--overwrite")]


def split(text: str) -> list[str]:
    """Return the words of a list such as a,b,c."""
    return [word.strip() for word in text.split(",") if word.strip()]


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Exit with the reason on standard error: 2 for an invalid request or where a person is needed, 1 for a failure."""
    try:
        yield
    except BrokenPipeError:  # the reader of the output has ended: nobody is left to tell
        raise
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


def print_text(text: str = "") -> None:
    """Print text as it is: without markup, colours or line breaks."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def print_table(header: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> None:
    """Print a table without lines."""
    table = Table(*map(str, map(_cell, header)), title=title, title_justify="left", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(_cell, row))
    console.print(table)


def _cell(value: Any) -> str | Text:
    """Return a number or a text for a cell; "–" for NaN."""
    if isinstance(value, Text):
        return value
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:.3f}"
    return escape(printable(str(value)))


# The type of an option by the types of a setting in files; of others, texts are read as TOML.
OPTION_TYPES: dict[tuple[type, ...], type] = {(int,): int, (float, int): float, (bool,): bool, (str,): str}

Command = TypeVar("Command", bound=Callable[..., None])


def with_options(
    settings: Mapping[str, Setting], needed: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Return a decorator that gives a command with `**options` an option for each of these settings.

    An option that is left out is None, but those `needed` must be given.
    """
    from peerbayes.data.declarations import in_file, value_of

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        parameters = [
            parameter.replace(annotation=hints[parameter.name])
            for parameter in inspect.signature(command).parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        for name, setting in settings.items():
            option = f"--{name.replace('_', '-')}"
            words = f"{setting.help[0].upper()}{in_file(setting.help[1:])}."
            types = setting.kind.types
            kind = OPTION_TYPES.get(types, str)
            parser = (
                value_of if types not in OPTION_TYPES or (setting.kind.optional and kind is not str) else None
            )
            annotation: Any = Annotated[kind | None, typer.Option(option, help=words, parser=parser)]
            default = inspect.Parameter.empty if name in needed else None
            parameters.append(
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
                )
            )
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def progress_bar(*columns: ProgressColumn, on: Console = console, quiet: bool = False) -> Progress:
    """Return a progress bar, by default of steps and the time that remains; it is shown on a terminal only."""
    columns = columns or (TextColumn("{task.completed}/{task.total}"), TimeRemainingColumn())
    first = (TextColumn("{task.description}"), BarColumn())
    return Progress(*first, *columns, console=on, disable=quiet or not on.is_terminal)
