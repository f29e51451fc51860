"""The tables of the reference, from the code: commands, and what may be written in settings files."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields
from itertools import pairwise
from typing import Any

import typer
from docstrings import table_of

from peerbayes.cli.app import app
from peerbayes.data.declarations import NEEDED, Setting, declarations, in_file
from peerbayes.data.doctor.findings import NAMES
from peerbayes.estimators.classifiers import ESTIMATORS
from peerbayes.experiments import study_file
from peerbayes.peer.agreement import column_facts, terms
from peerbayes.peer.runs import consent, timetable
from peerbayes.peer.state import peer_settings
from peerbayes.simulation import config

SECTIONED = ("facts", "limits", "privacy", "robust", "require")  # fields that are sections of their own
FACTS = {
    "mean": (None, "number"),
    "sd": (None, "positive number"),
    "range": (None, "list: least, most"),
    "categories": (None, "list of texts or of numbers"),
    "edges": (None, "list of rising numbers"),
}
PLAIN = {
    "str": "text",
    "str | None": "text",
    "float": "number",
    "int": "whole number",
    "bool": "true or false",
}


def commands() -> Iterator[tuple[str, Any]]:
    """Every command by its full name, groups before what they hold."""
    yield from _below("peerbayes", typer.main.get_command(app))


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    if hasattr(command, "list_commands"):
        with command.make_context(name, [], resilient_parsing=True) as context:
            for word in command.list_commands(context):
                yield from _below(f"{name} {word}", command.get_command(context, word))


def parameters(command: Any) -> Iterator[tuple[str, str, str]]:
    """Arguments and options of a command: how they are written, their default, their help."""
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        written = " / ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        if parameter.param_type_name == "argument":
            written = f"`{(parameter.metavar or parameter.name.upper()).removesuffix('...')}`"
            written += " …" if parameter.nargs == -1 else ""
        yield written, _default(parameter), getattr(parameter, "help", None) or ""


def _default(parameter: Any) -> str:
    if parameter.required:
        return "needed"
    if isinstance(parameter.default, bool):
        return "yes" if parameter.default else ""
    return "" if parameter.default in (None, "", [], ()) else f"`{parameter.default}`"


def usage(name: str, command: Any) -> str:
    """The line that a command is called by; what has a default is in brackets."""
    words = [name]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            word = (parameter.metavar or parameter.name.upper()).removesuffix("...")
            word += "..." if parameter.nargs == -1 else ""
            words.append(word if parameter.required else f"[{word}]")
        elif parameter.required:
            words.append(f"{parameter.opts[0]} {parameter.name.upper()}")
    return " ".join([*words, "[OPTIONS]"])


def command_tables() -> str:
    """A section for every command."""
    parts = []
    for name, command in commands():
        if name == "peerbayes":
            continue
        told = textwrap.dedent(command.help or "").strip()
        parts.append(f"{'##' if name.count(' ') == 1 else '###'} {name}\n\n{told}\n")
        if hasattr(command, "list_commands"):
            continue
        parts.append(f"```text\n{usage(name, command)}\n```\n")
        rows = list(parameters(command))
        if rows:
            parts.append(table_of(rows, ("", "default", "")))
    return "\n".join(parts)


def estimator_signatures() -> str:
    """How estimators are made, with their defaults."""
    lines = []
    for estimator in ESTIMATORS.values():
        given = inspect.signature(estimator).parameters.values()
        lines.append(f"{estimator.__name__}({', '.join(f'{each.name}={each.default!r}' for each in given)})")
    folded = (textwrap.fill(line, 100, subsequent_indent="    ", break_long_words=False) for line in lines)
    return "```python\n" + "\n".join(folded) + "\n```\n"


def data_table() -> str:
    """What [data] may say."""
    return _declared(declarations(config.Data))


def findings_table() -> str:
    """What `peerbayes check` may say of a table."""
    rows = [(f"`{name}`", advice.severity, advice.todo) for name, advice in NAMES.items()]
    return table_of(rows, ("name", "is", "what to do"))


def simulation_table() -> str:
    """What [simulation] may say: the arguments of `simulate` that can be written in TOML."""
    return _declared(config.SETTINGS)


def _declared(settings: dict[str, Setting]) -> str:
    """What a table of a file may say."""
    rows = [
        (f"`{name}`", in_file(setting.kind.expected), written(setting.default), in_file(setting.text))
        for name, setting in settings.items()
    ]
    return table_of(rows, ("setting", "is", "default", ""))


def study_table() -> str:
    """What [study] may say."""
    return _declared(study_file.ENTRIES)


def terms_table() -> str:
    """What agreement.toml may say."""
    return _fields(terms.Terms, {"features": (None, terms.KIND.expected)})


def limits_table() -> str:
    """What [limits] of agreement.toml may say."""
    return _fields(terms.Limits)


def privacy_table() -> str:
    """What [privacy] of agreement.toml may say."""
    return _fields(terms.Privacy)


def facts_table() -> str:
    """What [features.NAME] of agreement.toml may say, beside the kind."""
    return _fields(column_facts.Facts, FACTS)


def robust_table() -> str:
    """What [robust] of agreement.toml may say."""
    return _fields(terms.Robust)


def require_table() -> str:
    """What [require] of peer.toml may say."""
    rows = [
        (f"`{name}`", demand.kind.expected, demand.description)
        for name, demand in peer_settings.DEMANDS.items()
    ]
    return table_of(rows, ("entry", "is", ""))


def peer_table() -> str:
    """What peer.toml may say."""
    return _fields(peer_settings.Settings).replace(
        "| `listen` | host:port | needed |", "| `listen` | host:port | |"
    )


def _fields(cls: Any, further: dict[str, Any] | None = None) -> str:
    """What a file may say by the fields of a class: declared settings, and `further` ones."""
    settings, told, rows = declarations(cls), field_texts(cls), []
    for each in fields(cls):
        if each.name in SECTIONED:
            continue
        if each.name in settings:
            expected, default = (
                in_file(settings[each.name].kind.expected),
                written(settings[each.name].default),
            )
        else:
            expected = (further or {}).get(each.name, (None, PLAIN.get(str(each.type))))[1]
            default = "" if each.default is MISSING else written(each.default)
        rows.append((f"`{each.name}`", expected, default, told[each.name]))
    return table_of(rows, ("setting", "is", "default", ""))


def field_texts(cls: type) -> dict[str, str]:
    """What each field of a class is: by its declaration, the docstring below it, or the comment after it."""
    source = textwrap.dedent(inspect.getsource(cls))
    found = dict(re.findall(r"^    (\w+): [^#\n]*  # (.*)$", source, flags=re.MULTILINE))
    body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
    for field, after in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            found[ast.unparse(field.target)] = inspect.cleandoc(after.value.value).replace("\n", " ")
    return found | {name: in_file(setting.text) for name, setting in declarations(cls).items()}


def written(value: Any) -> str:
    """A default as TOML writes it; None is what is left out."""
    if value in (None, ()) or value is NEEDED:
        return "needed" if value is NEEDED else ""
    return f"`{str(value).lower() if isinstance(value, bool) else repr(value)}`".replace("'", '"')


def consent_table() -> str:
    """What consent.toml may say."""
    return _declared(declarations(consent.Consent))


def schedule_table() -> str:
    """What schedule.toml may say."""
    return _declared(declarations(timetable.Schedule))


SECTIONS = {
    "estimators": estimator_signatures,
    "commands": command_tables,
    "data": data_table,
    "findings": findings_table,
    "simulation": simulation_table,
    "study": study_table,
    "terms": terms_table,
    "limits": limits_table,
    "privacy": privacy_table,
    "facts": facts_table,
    "robust": robust_table,
    "require": require_table,
    "peer": peer_table,
    "consent": consent_table,
    "schedule": schedule_table,
}
