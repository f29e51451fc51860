"""Docstrings on the site: arguments that are aligned in columns become a table.

    lr              the learning rate                | `lr` | the learning rate, 0.05 |
                    0.05                       ->

Everything else in a docstring is Markdown as it is; indented equations are code blocks.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

try:
    from griffe import Extension
except ImportError:  # the tests read docstrings without the site's packages
    Extension = object

ROW = re.compile(r"(\w[\w., -]*?) {2,}(\S.*)")
CONTINUED = re.compile(r" {6,}(\S.*)")


def aligned(docstring: str) -> list[str | dict[str, str]]:
    """A docstring as lines, and tables {name: text} where lines are aligned in columns."""
    parts: list[str | dict[str, str]] = []
    fenced = False
    for line in docstring.splitlines():
        fenced ^= line.startswith("```")
        table = parts[-1] if parts and isinstance(parts[-1], dict) else None
        if not fenced and (row := ROW.fullmatch(line)):
            if table is None:
                table = {}
                parts.append(table)
            for name in row[1].split(", "):
                table[name] = row[2]
        elif table and (more := CONTINUED.fullmatch(line)):
            last = table[list(table)[-1]]
            table |= {name: f"{text} {more[1]}" for name, text in table.items() if text == last}
        else:
            parts.append(line)
    return parts


def arguments(docstring: str) -> dict[str, str]:
    """What a docstring says of each argument that it lists."""
    return {
        name: text for part in aligned(docstring) if isinstance(part, dict) for name, text in part.items()
    }


def table_of(rows: list[tuple[str, ...]], header: tuple[str, ...]) -> str:
    """A Markdown table."""
    lines = [header, ("---",) * len(header), *rows]
    return (
        "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        + "\n"
    )


def marked_up(docstring: str) -> str:
    """A docstring as Markdown."""
    return "\n".join(
        part if isinstance(part, str) else "\n" + table_of([(f"`{n}`", t) for n, t in part.items()], ("", ""))
        for part in aligned(docstring)
    )


def fill_in(obj: Any) -> None:
    """Give a function or a class the docstring and the arguments that it has once it is imported."""
    from griffe import Parameter, ParameterKind, Parameters

    module, _, name = obj.path.rpartition(".")
    described = getattr(import_module(module), name)
    obj.docstring.value = inspect.getdoc(described)
    arguments = inspect.signature(described).parameters.values()
    defaults = {each.name: None if each.default is each.empty else repr(each.default) for each in arguments}
    if obj.is_function:
        kinds = {inspect.Parameter.KEYWORD_ONLY: ParameterKind.keyword_only}
        obj.parameters = Parameters(
            *(
                Parameter(
                    each.name,
                    kind=kinds.get(each.kind, ParameterKind.positional_or_keyword),
                    default=defaults[each.name],
                )
                for each in arguments
            )
        )
    for name, default in defaults.items() if obj.is_class else ():
        obj.members[name].value = default


class Aligned(Extension):
    """Applied to every docstring that the site shows; arguments that are declared elsewhere are filled in first."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if any(str(decorator.value).startswith("described") for decorator in getattr(obj, "decorators", ())):
            fill_in(obj)
        if obj.docstring is not None:
            obj.docstring.value = marked_up(obj.docstring.value)
