"""Settings, each declared once: its default, the values that it may have, and a sentence of help.

    ROUNDS = Setting(64, whole_number(1), "rounds of messages")

    class Arguments(TypedDict, total=False):        @dataclass(frozen=True)
        rounds: Annotated[int, ROUNDS]              class Terms:
                                                        rounds: int = ROUNDS.field()

Everything else about a setting follows from its declaration: the arguments of functions and their documentation, the
readers and writers of TOML files with line numbers in errors, options of commands, and the pages of the reference.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from peerbayes.data import arguments
from peerbayes.data.arguments import LARGEST, refusal, shown
from peerbayes.data.files import line, string, table, text_of
from peerbayes.errors import ConfigurationError, PeerbayesError

NEEDED: Any = inspect.Parameter.empty
"""The default of a setting that must be given."""

WIDTH = 116  # characters in a line of a docstring

LISTED = 24  # names of settings in an error

T = TypeVar("T")


@dataclass(frozen=True)
class Kind:
    """The values that a setting may have.

    check     (name, value) -> the plain value, or an error with what arrived and what was expected
    expected  what is expected, in words
    types     the types of such a value in a TOML file; none: a file cannot hold it
    optional  whether it may be None, which a file writes as false
    read      returns the value of what stands in a file
    """

    check: Callable[[str, Any], Any]
    expected: str
    types: tuple[type, ...] = ()
    optional: bool = False
    read: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True, eq=False)
class Setting:
    """A setting of a simulation, of an agreement or of a peer.

    default  what it is where it is left out; NEEDED: it may not be left out
    kind     the values that it may have
    help     what it is, in a sentence: in files and in the help of commands too
    details  what else there is to say
    option   its name on the command line where that differs; "": none
    example  what a file that is written shows in a comment instead of the default; None: it leaves the setting out
    """

    default: Any
    kind: Kind
    help: str
    details: str = ""
    option: str | None = None
    example: Any = NEEDED

    @property
    def text(self) -> str:
        """Everything that there is to say."""
        return f"{self.help}. {self.details}" if self.details else self.help

    def field(self, **metadata: Any) -> Any:
        """Return the field of a dataclass that declares this setting and has its default."""
        return field(default=self.default, metadata={"setting": self, **metadata})


# --- kinds of values


def anything(expected: str, *types: type) -> Kind:
    """Return the kind of values that are checked where they are used."""
    return Kind(lambda name, value: value, expected, types)


def whole_number(least: int, most: int = LARGEST, error: type[Exception] = ValueError) -> Kind:
    """Return the kind of integers from `least` to `most`."""
    expected = f"a whole number of {least} or more"
    return Kind(lambda name, value: arguments.whole(name, value, least, most, error=error), expected, (int,))


def real_number(expected: str, error: type[Exception] = ValueError, **bounds: float) -> Kind:
    """Return the kind of finite numbers within bounds: see `arguments.number`."""
    return Kind(
        lambda name, value: arguments.number(name, value, expected, error=error, **bounds),
        expected,
        (float, int),
    )


def probability() -> Kind:
    """Return the kind of numbers from 0 to below 1."""
    return real_number("a probability from 0 to below 1", least=0.0, below=1.0)


def choice(names: Collection[str], built_in: Iterable[str] | None = None) -> Kind:
    """Return the kind of texts among names; `built_in` are those that are listed without looking for others."""
    expected = f"one of {', '.join(names if built_in is None else built_in)}"
    return Kind(lambda name, value: arguments.one_of(name, value, names), expected, (str,))


def true_or_false() -> Kind:
    """Return the kind of True and False."""
    return Kind(arguments.flag, "true or false", (bool,))


def text_value(expected: str, fits: Callable[[str], object] = bool) -> Kind:
    """Return the kind of texts that fit."""

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or not fits(value):
            raise refusal(name, value, expected)
        return value

    return Kind(check, expected, (str,))


def optional(kind: Kind, meaning: str = "") -> Kind:
    """Return the kind of the same values or None, and what None means: "for no clipping"."""
    advice = f", or None {meaning}".rstrip()

    def check(name: str, value: Any) -> Any:
        try:
            return None if value is None else kind.check(name, value)
        except (ValueError, TypeError) as problem:
            raise type(problem)(f"{problem}{advice}") from None

    return replace(kind, check=check, expected=kind.expected + advice, optional=True)


# --- what a class declares


def _declarations(cls: type) -> dict[str, Setting]:
    fields = getattr(cls, "__dataclass_fields__", {})
    return {
        name: entry
        for name, hint in get_type_hints(cls, include_extras=True).items()
        for entry in (
            fields[name].metadata.get("setting") if name in fields else None,
            *getattr(hint, "__metadata__", ()),
        )
        if isinstance(entry, Setting)
    }


declarations: Callable[[type], dict[str, Setting]] = cache(_declarations)
"""Returns the settings that the fields of a class declare, by name and in order."""


def writable(cls: type) -> dict[str, Setting]:
    """Return the settings of a class that a file can hold: plain values, which are also recorded with results."""
    return {name: setting for name, setting in declarations(cls).items() if setting.kind.types}


def checked(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values of the settings of a class, with defaults for those left out."""
    return {
        name: setting.kind.check(name, values.get(name, setting.default))
        for name, setting in declarations(cls).items()
    }


def check_fields(instance: Any, section: str = "", settings: Mapping[str, Setting] | None = None) -> None:
    """Check the settings of a frozen dataclass when it is made, and keep them as plain values.

    Errors name the section too. `settings` may be given where their checks depend on other fields.
    """
    for name, setting in (settings or declarations(type(instance))).items():
        full_name = f"{section}.{name}" if section else name
        object.__setattr__(instance, name, setting.kind.check(full_name, getattr(instance, name)))


def explained(cls: type) -> str:
    """Return the settings of a class with their texts, aligned in columns as in docstrings."""
    settings = declarations(cls)
    column = 2 + max(map(len, settings))
    return "\n".join(
        textwrap.fill(
            setting.text, WIDTH, initial_indent=name.ljust(column), subsequent_indent=" " * column,
            break_long_words=False, break_on_hyphens=False,
        )
        for name, setting in settings.items()
    )  # fmt: skip


def described_by(cls: type) -> Callable[[T], T]:
    """Return a decorator: the docstring of what it is applied to explains the settings of a class.

    A function that takes them as `**settings` also gets a signature with each of them and its default.
    """

    def describe(target: T) -> T:
        text = inspect.cleandoc(target.__doc__ or "")
        gap = (
            "\n" if "  " in text.rpartition("\n")[2] else "\n\n"
        )  # after aligned lines of further arguments: none
        target.__doc__ = f"{text}{gap}{explained(cls)}\n"
        if inspect.isfunction(target):
            signature, hints = inspect.signature(target), get_type_hints(cls)
            positional = [
                parameter
                for parameter in signature.parameters.values()
                if parameter.kind is not inspect.Parameter.VAR_KEYWORD
            ]
            named = [
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=setting.default, annotation=hints[name]
                )
                for name, setting in declarations(cls).items()
            ]
            target.__signature__ = signature.replace(parameters=positional + named)  # type: ignore[attr-defined]
        return target

    return describe


def described(cls: type[T]) -> type[T]:
    """Return a dataclass whose docstring explains its settings."""
    return described_by(cls)(cls)


# --- settings in TOML files


def in_file(words: str) -> str:
    """Return a text about a setting as it is right for files, where None is written as false."""
    return re.sub(r"\bNone\b", "false", words)


@dataclass(frozen=True)
class SettingsFile:
    """A TOML file of settings; errors name it, and the line of an entry.

    text   its content
    where  its name
    error  the kind of errors
    """

    text: str
    where: str
    error: type[PeerbayesError] = ConfigurationError

    @cached_property
    def content(self) -> dict[str, Any]:
        """The table of the whole file."""
        return table(self.text, self.where, self.error)

    def at(self, *path: str) -> str:
        """Return the file and the line of an entry, as an error begins."""
        return f"{self.where}{line(self.text, *path)}: "

    def section(self, name: str) -> dict[str, Any]:
        """Return the table of a section; an empty one where it is left out."""
        content = self.content.get(name, {})
        if not isinstance(content, dict):
            raise self.error(f"{self.at(name)}{name} is {shown(content)}; expected a section [{name}]")
        return content

    def settings(
        self,
        settings: Mapping[str, Setting],
        noun: str,
        section: str = "",
        prefix: str = "",
        further: Iterable[str] = (),
        read: Callable[[Setting, str, Any, str, type[PeerbayesError]], Any] | None = None,
    ) -> dict[str, Any]:
        """Return the values of settings in a section, or at the top of the file.

        noun     what an entry is, in errors
        prefix   what errors put before the name of a setting
        further  names of entries that are read by the caller
        read     returns the value of an entry: `read_value`, unless files may have several values
        """
        path = (section,) if section else ()
        values = {}
        for name, value in (self.section(section) if section else self.content).items():
            if name in settings:
                values[name] = (read or read_value)(
                    settings[name], prefix + name, value, self.at(*path, name), self.error
                )
            elif name not in further:
                names = (*settings, *further)
                more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
                hint = "".join(f". Is it {close}?" for close in get_close_matches(name, names, 1))
                raise self.error(
                    f"{self.at(*path, name)}{shown(name):.50} is {noun}; expected one of "
                    f"{', '.join(names[:LISTED])}{more}{hint}"
                )
        return values


def read_settings(kind: type[T], path: Path, noun: str) -> T | None:
    """Return the dataclass of settings that a TOML file describes; None: there is no such file.

    noun  what an entry is that is no setting, in errors
    """
    if not path.exists():
        return None
    settings = declarations(kind)
    values = SettingsFile(text_of(path), str(path)).settings(settings, noun)
    for name, setting in settings.items():
        if setting.default is NEEDED and name not in values:
            raise ConfigurationError(f"{path}: {name} is missing; expected a line {name} = ...")
    try:
        return kind(**values)
    except ValueError as problem:
        raise ConfigurationError(f"{path}: {problem}") from problem


def read_value(
    setting: Setting, name: str, value: Any, where: str, error: type[PeerbayesError] = ConfigurationError
) -> Any:
    """Return a setting's value from what stands in a file; an error begins with `where`."""
    kind = setting.kind
    if value is False and kind.optional:
        return None
    try:
        if not isinstance(value, kind.types):
            raise refusal(name, value, kind.expected)
        plain = kind.read(value)
        kind.check(name, plain)
    except (ValueError, TypeError) as problem:
        arrived, separator, expected = str(problem).partition("; expected ")
        raise error(f"{where}{arrived}{separator}{in_file(expected)}") from problem
    return plain


def value_of(words: str) -> Any:
    """Return what a text stands for in TOML, or the text itself: plain words need no quotes."""
    try:
        content = table(f"value = {words}", "")
    except ConfigurationError:
        return words
    return content["value"] if len(content) == 1 else words  # several lines set several values


def toml(value: Any) -> str:
    """Return a plain value as TOML; None is false."""
    if value is None or isinstance(value, bool):
        return str(bool(value)).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    return string(value) if isinstance(value, str) else repr(value)


def toml_lines(instance: Any, without: Collection[str] = ()) -> str:
    """Return the lines of a file that set the settings of a dataclass, each with its help, but `without` some."""
    written = []
    for name, setting in declarations(type(instance)).items():
        value, mark = getattr(instance, name), ""
        if setting.example is not NEEDED and value == setting.default:
            value, mark = setting.example, "# "
        if name not in without and not (mark and value is None):
            written.append(f"{mark}{name} = {toml(value)}  # {in_file(setting.help)}\n")
    return "".join(written)
