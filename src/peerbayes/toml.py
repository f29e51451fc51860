"""TOML: files read whole, or refused in a sentence with the line of a mistake; texts and keys written."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from peerbayes.errors import ConfigurationError, PeerbayesError

BARE = re.compile(r"[A-Za-z0-9_-]+")

# Bytes of a file that people write. Python's parser takes seconds for this many, and more are some other file.
LARGEST_FILE = 16 << 20


def text_of(path: Path, error: type[PeerbayesError] = ConfigurationError) -> str:
    """A text file, or `error` that says why it cannot be read."""
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
            f"{path} is no text: byte {problem.start} is not UTF-8. Expected a TOML file"
        ) from problem


def table(text: str, where: str, error: type[PeerbayesError] = ConfigurationError) -> dict[str, Any]:
    """A TOML text, or `error` with the place where it stops making sense."""
    try:
        return tomllib.loads(text)
    except RecursionError as problem:
        raise error(f"{where}: lists or tables are nested too deeply; expected TOML") from problem
    except ValueError as problem:  # also numbers of thousands of digits
        raise error(f"{where}: {problem}; expected TOML") from problem


def line(text: str, *path: str) -> str:
    """ ", line N" of the first line that sets the key at `path`, however it is quoted; else nothing."""
    header: tuple[str, ...] = ()
    for number, written in enumerate(text.split("\n"), start=1):
        try:
            content = tomllib.loads(written)
        except (ValueError, RecursionError):
            continue
        if written.lstrip().startswith("["):
            header = _only_path(content)
        else:
            for name in reversed(header):
                content = {name: content}
        if _holds(content, path):
            return f", line {number}"
    return ""


def string(value: str) -> str:
    """A text as TOML's basic string."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")  # JSON may hold DEL, TOML may not


def key(name: str) -> str:
    """A name as a TOML key, quoted where it must be."""
    return name if BARE.fullmatch(name) else string(name)


def _only_path(content: dict[str, Any]) -> tuple[str, ...]:
    """The keys of a table's header: {"a": {"b": {}}} gives a, b."""
    for name, inside in content.items():
        return (name, *(_only_path(inside) if isinstance(inside, dict) else ()))
    return ()


def _holds(content: Any, path: tuple[str, ...]) -> bool:
    for name in path:
        if not isinstance(content, dict) or name not in content:
            return False
        content = content[name]
    return True
