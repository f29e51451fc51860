"""Read TOML files, with errors that name the line of a mistake, and write TOML strings and keys."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from peerbayes.errors import ConfigurationError, PeerbayesError

BARE = re.compile(r"[A-Za-z0-9_-]+")

# The most bytes of a TOML file. Python's parser takes seconds for this many; a larger file is not a settings file.
LARGEST_FILE = 16 << 20


def text_of(path: Path, error: type[PeerbayesError] = ConfigurationError) -> str:
    """Return the content of a text file; raise `error` with the reason if it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror}") from problem
    if len(content) > LARGEST_FILE:
        raise error(f"{path} is larger than {LARGEST_FILE >> 20} MB. Expected a TOML file")
    try:
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as problem:
        raise error(
            f"{path} is not a text file: byte {problem.start} is not UTF-8. Expected a TOML file"
        ) from problem


def table(text: str, where: str, error: type[PeerbayesError] = ConfigurationError) -> dict[str, Any]:
    """Return the table of a TOML text; raise `error` with the position of the first mistake."""
    try:
        return tomllib.loads(text)
    except RecursionError as problem:
        raise error(f"{where}: lists or tables are nested too deeply; expected TOML") from problem
    except ValueError as problem:  # also numbers of thousands of digits
        raise error(f"{where}: {problem}; expected TOML") from problem


def line(text: str, *path: str) -> str:
    """Return ", line N" for the first line that sets the key at `path`, however it is quoted; otherwise ""."""
    header: tuple[str, ...] = ()
    for number, text_line in enumerate(text.split("\n"), start=1):
        try:
            content = tomllib.loads(text_line)
        except (ValueError, RecursionError):
            continue
        if text_line.lstrip().startswith("["):
            header = _only_path(content)
        else:
            for name in reversed(header):
                content = {name: content}
        if _holds(content, path):
            return f", line {number}"
    return ""


def string(value: str) -> str:
    """Return a text as a TOML basic string."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")  # JSON may hold DEL, TOML may not


def key(name: str) -> str:
    """Return a name as a TOML key, quoted if necessary."""
    return name if BARE.fullmatch(name) else string(name)


def _only_path(content: dict[str, Any]) -> tuple[str, ...]:
    """Return the keys of a table's header: {"a": {"b": {}}} gives a, b."""
    for name, inside in content.items():
        return (name, *(_only_path(inside) if isinstance(inside, dict) else ()))
    return ()


def _holds(content: Any, path: tuple[str, ...]) -> bool:
    """Return whether nested tables have a key at `path`."""
    for name in path:
        if not isinstance(content, dict) or name not in content:
            return False
        content = content[name]
    return True
