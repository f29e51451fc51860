"""Files: text that others wrote, files written whole or not at all, and TOML with line numbers in its errors."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import secrets
import struct
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from peerbayes.errors import (
    AlreadyThere,
    ConfigurationError,
    ModelFileDamaged,
    ModelFileTooNew,
    PeerbayesError,
)

# --- sanitise untrusted text for display: names of columns, categories, classes and peers
# Any member of a network can choose such names. Nothing in them may move a cursor, change a colour, start a line,
# change the direction of the text around them, or be run as a formula by a spreadsheet.

# The beginning of a formula in a spreadsheet.
FORMULA = re.compile(r"\s*[=+\-@]")


def printable(text: str, instead: str = " ") -> str:
    """Return the text without invisible characters: control characters, line breaks, direction marks and characters of
    zero width. These are Unicode's categories C and Z except for the space."""
    return text if text.isprintable() else "".join(c if c.isprintable() else instead for c in text)


def lines(text: str) -> str:
    """Return a text of several lines with each line made printable."""
    return "\n".join(printable(text_line) for text_line in text.split("\n"))


UNITS = ("B", "kB", "MB", "GB", "TB")


def size(count: float) -> str:
    """Return a number of bytes with its unit."""
    power = 0
    while count >= 1000 and power < len(UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.3g} {UNITS[power]}"


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


# --- models and statistics as bytes: a header, raw arrays and a digest
# Nothing is unpickled; nothing is used before it is checked.
#
#     "PEERBAYES\\n" · format version (u16) · header length (u32) · header (JSON, UTF-8) · arrays · sha256 of all that
#
# Integers and floats are little-endian. The magic, the version and the trailing digest stay where they are in every
# later format, so that any version can tell a damaged file from a newer one.

MAGIC = b"PEERBAYES\n"
FORMAT = 1
PREFIX = struct.Struct("<HI")
DIGEST = 32


def pack(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """Return a header of plain values and arrays of numbers as bytes, with their digest."""
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    text = json.dumps({**header, "arrays": shapes}, sort_keys=True, allow_nan=False, default=_plain).encode()
    chunks = [MAGIC, PREFIX.pack(FORMAT, len(text)), text]
    chunks += [np.ascontiguousarray(arrays[name], dtype="<f8").tobytes() for name in sorted(arrays)]
    content = b"".join(chunks)
    return content + hashlib.sha256(content).digest()


def unpack(content: bytes, where: object) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the header and arrays that `pack` wrote, digest and version checked; `where` names the file in errors."""
    start = len(MAGIC) + PREFIX.size
    if content[: len(MAGIC)] != MAGIC:
        raise ModelFileDamaged(
            f"{where} is not from peerbayes: it starts with {content[: len(MAGIC)]!r}, expected {MAGIC!r}"
        )
    if len(content) < start + DIGEST or hashlib.sha256(content[:-DIGEST]).digest() != content[-DIGEST:]:
        raise ModelFileDamaged(
            f"{where} is truncated or altered: its {len(content)} bytes do not match their digest. "
            "Copy it again from its origin, or save it again"
        )
    version, length = PREFIX.unpack(content[len(MAGIC) : start])
    if version < 1:
        raise ModelFileDamaged(f"{where} has format {version}; formats start at 1")
    if version > FORMAT:
        raise ModelFileTooNew(
            f"{where} has format {version}; this peerbayes reads up to {FORMAT}. Update with "
            "`pip install --upgrade peerbayes`"
        )
    try:
        header = json.loads(content[start : start + length])
        arrays = _arrays(content[start + length : -DIGEST], header.pop("arrays"))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ModelFileDamaged(f"{where} has a header that cannot be read: {error}") from error
    return header, arrays


# How a file is opened that must not be there yet.
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def kind_of(path: Path) -> str:
    """Return what a file that `pack` wrote says that it is; "" for other files. Nothing else of it is read."""
    start = len(MAGIC) + PREFIX.size
    try:
        with path.open("rb") as file:
            head = file.read(start)
            if head[: len(MAGIC)] != MAGIC or len(head) < start:
                return ""
            header = json.loads(file.read(PREFIX.unpack(head[len(MAGIC) :])[1]))
    except (OSError, ValueError, RecursionError):
        return ""
    return str(header.get("kind", "")) if isinstance(header, dict) else ""


def write(path: str | Path, content: bytes) -> None:
    """Write a file atomically: a temporary file replaces the old one at the end."""
    with replacing(path) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: str | Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a temporary file that replaces the one at `path` at the end, or nothing where anything fails."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(temporary, NEW_FILE, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on disk, where its file system can do that."""
    if path.is_dir() and os.name == "nt":
        return  # Windows opens no folders
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def refuse_existing(path: str | Path, overwrite: bool = False) -> None:
    """Refuse to write a file or a folder that is there already, unless it may be overwritten."""
    if not overwrite and os.path.lexists(path):
        raise AlreadyThere(
            f"{path} exists already, and nothing is overwritten without being asked: choose another name, or pass "
            "overwrite=True (--overwrite on the command line)"
        )


def _plain(value: Any) -> Any:
    """Return a NumPy number as a Python number."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be written to a file")


def _arrays(content: bytes, shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    arrays, offset = {}, 0
    for name, shape in shapes.items():
        if any(not isinstance(size, int) or size < 0 for size in shape):
            raise ValueError(f"array {name} has shape {shape}")
        stop = offset + 8 * math.prod(shape)
        if stop > len(content):
            raise ValueError(f"array {name} of shape {shape} does not fit in the file")
        arrays[name] = np.frombuffer(content[offset:stop], dtype="<f8").reshape(shape).astype(np.float64)
        offset = stop
    if offset != len(content):
        raise ValueError(f"{len(content) - offset} bytes are left over after the arrays")
    return arrays


# --- read TOML files, with errors that name the line of a mistake, and write TOML strings and keys

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
