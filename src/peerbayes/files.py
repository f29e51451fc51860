"""Model files: a header, raw arrays and a digest. Nothing is unpickled; nothing is used before it is checked.

    "PEERBAYES\\n" · format version (u16) · header length (u32) · header (JSON, UTF-8) · arrays · sha256 of all that

Integers and floats are little-endian. The magic, the version and the trailing digest keep their places in every
later format, so that any version can tell a damaged file from a newer one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes.errors import ModelFileDamaged, ModelFileTooNew

MAGIC = b"PEERBAYES\n"
FORMAT = 1
PREFIX = struct.Struct("<HI")
DIGEST = 32


def write(path: str | Path, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write a model file whole or not at all: a new file takes the old one's place at the end."""
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    text = json.dumps({**header, "arrays": shapes}, sort_keys=True, allow_nan=False).encode()
    parts = [MAGIC, PREFIX.pack(FORMAT, len(text)), text]
    parts += [np.ascontiguousarray(arrays[name], dtype="<f8").tobytes() for name in sorted(arrays)]
    content = b"".join(parts)
    target = Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content + hashlib.sha256(content).digest())
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read a model file: its header and its arrays, once the digest is right and the version is known."""
    content = Path(path).read_bytes()
    start = len(MAGIC) + PREFIX.size
    if content[: len(MAGIC)] != MAGIC:
        raise ModelFileDamaged(
            f"{path} is not a peerbayes model: it starts with {content[: len(MAGIC)]!r}, expected {MAGIC!r}"
        )
    if len(content) < start + DIGEST or hashlib.sha256(content[:-DIGEST]).digest() != content[-DIGEST:]:
        raise ModelFileDamaged(
            f"{path} is truncated or altered: its {len(content)} bytes do not match their digest. "
            "Copy it again from its origin, or save the model again"
        )
    version, length = PREFIX.unpack(content[len(MAGIC) : start])
    if version > FORMAT:
        raise ModelFileTooNew(
            f"{path} has format {version}; this peerbayes reads up to {FORMAT}. Update with "
            "`pip install --upgrade peerbayes`"
        )
    try:
        header = json.loads(content[start : start + length])
        arrays = _arrays(content[start + length : -DIGEST], header.pop("arrays"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelFileDamaged(f"{path} has a header that cannot be read: {error}") from error
    return header, arrays


def _arrays(content: bytes, shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    arrays, at = {}, 0
    for name, shape in shapes.items():
        if any(not isinstance(size, int) or size < 0 for size in shape):
            raise ValueError(f"array {name} has shape {shape}")
        stop = at + 8 * math.prod(shape)
        if stop > len(content):
            raise ValueError(f"array {name} of shape {shape} does not fit in the file")
        arrays[name] = np.frombuffer(content[at:stop], dtype="<f8").reshape(shape).astype(np.float64)
        at = stop
    if at != len(content):
        raise ValueError(f"{len(content) - at} bytes are left over after the arrays")
    return arrays
