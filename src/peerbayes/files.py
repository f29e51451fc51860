"""Models and statistics as bytes: a header, raw arrays and a digest.

Nothing is unpickled; nothing is used before it is checked.

    "PEERBAYES\\n" · format version (u16) · header length (u32) · header (JSON, UTF-8) · arrays · sha256 of all that

Integers and floats are little-endian. The magic, the version and the trailing digest stay where they are in every
later format, so that any version can tell a damaged file from a newer one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import struct
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes.errors import ModelFileDamaged, ModelFileTooNew

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


def write(path: str | Path, content: bytes) -> None:
    """Write a file atomically: a temporary file replaces the old one at the end."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


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
