"""Which rows a peer tests its model on: each row decides for itself.

    away(row)  ⇔  HMAC-SHA256(key, the row's own content) / 2²⁵⁶ < share

Nothing else counts: not the other rows, not how many there are, not their order nor that of the columns. So a row more
in the table is a row more among those that are learned from, or among those that are tested on, and no other row
moves; what differential privacy promises of one row needs exactly that. The key is random and never leaves the peer's
folder: nobody else can tell which rows are held out. Rows of equal content go the same way. No class is kept, and
shares of classes vary as chance has it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from peerbayes.peers.documents import private
from peerbayes.peers.errors import PeerError
from peerbayes.sources.text import MARKERS
from peerbayes.tables import Table as Columns

Table = tuple[pd.DataFrame, np.ndarray]

KEY = (
    "hold_out.key"  # beside state.sqlite, which is set aside when a run is left: the same rows stay held out
)
KEY_BYTES = 32

# One value as bytes of one length: what it is, and its float64 or the first half of a digest of its text.
VALUE_BYTES = 17

AT_ONCE = 1 << 14  # rows written as bytes at a time


def held_out(frame: pd.DataFrame, labels: np.ndarray, share: float, key: bytes) -> tuple[Table, Table | None]:
    """Return the rows to learn from, and those to test on: about that share, the same ones at every start.

    None are tested on where no row's number is below the share. Classes may have no row on either side.
    """
    if not share:
        return (frame, labels), None
    away = _numbers(frame, labels, key) < share
    if not away.any():
        return (frame, labels), None
    return (frame[~away], labels[~away]), (frame[away], labels[away])


def split_key(folder: Path) -> bytes:
    """Return the key of a peer's folder; it is made when it is first asked for, whoever asks."""
    path = folder / KEY
    if not path.exists():
        draft = folder / f"{KEY}.{os.getpid()}.{secrets.token_hex(4)}"
        private(draft, secrets.token_bytes(KEY_BYTES))
        try:
            _settled(draft, path)
        finally:
            draft.unlink()
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise PeerError(
            f"{path} has {len(key)} bytes; expected the {KEY_BYTES} that decide which rows are held out. Bring it back "
            "from a backup; or leave the run, delete it and start again, with other rows held out"
        )
    return key


def _settled(draft: Path, path: Path) -> None:
    """Put the key in its place, whole, unless another process was faster."""
    try:
        os.link(draft, path)
    except FileExistsError:
        return
    except OSError:  # a file system without links
        with contextlib.suppress(FileExistsError):
            private(path, draft.read_bytes())


def _numbers(frame: pd.DataFrame, labels: np.ndarray, key: bytes) -> np.ndarray:
    """Return a number in [0, 1) for each row, from its own content alone: [n]."""
    table = Columns.of(frame)
    # By name, so that the order of the columns does not matter; names are the same for all rows.
    columns = [
        table.column(place) for _, place in sorted((name, place) for place, name in enumerate(table.names))
    ]
    columns.append(np.asarray(labels))
    names = hashlib.sha256("\0".join(sorted(table.names)).encode()).digest()
    first = []
    for begin in range(0, len(labels), AT_ONCE):
        some = slice(begin, begin + AT_ONCE)
        content = np.concatenate([_written(column[some]) for column in columns], axis=1)
        first += [hmac.digest(key, names + row.tobytes(), "sha256")[:8] for row in content]
    return np.frombuffer(b"".join(first), dtype=">u8") * 2.0**-64


def _written(values: np.ndarray) -> np.ndarray:
    """Return each value of a column as bytes: [n] -> [n, VALUE_BYTES] of uint8.

    The same value gives the same bytes whatever type other rows make of the column: 1, 1.0, True and "1" are one, and
    so are all ways to write that a value is missing.
    """
    if values.dtype.kind in "fiub":
        written = np.zeros((len(values), VALUE_BYTES), dtype=np.uint8)
        numbers = values.astype(np.float64) + 0.0  # −0.0 is 0.0
        there = ~np.isnan(numbers)
        written[there, 0] = ord("n")
        written[there, 1:9] = numbers[there].astype("<f8").view(np.uint8).reshape(-1, 8)
        return written
    known: dict[Any, bytes] = {}
    content = b"".join(
        known[value] if value in known else known.setdefault(value, _value(value)) for value in values
    )
    return np.frombuffer(content, dtype=np.uint8).reshape(len(values), VALUE_BYTES)


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        if not value.strip() or value.strip() in MARKERS:
            return bytes(VALUE_BYTES)
        try:
            value = float(value)
        except ValueError:
            return b"t" + hashlib.sha256(value.encode("utf-8", "surrogatepass")).digest()[:16]
    if pd.isna(value):
        return bytes(VALUE_BYTES)
    return b"n" + struct.pack("<d", float(value) + 0.0) + bytes(8)
