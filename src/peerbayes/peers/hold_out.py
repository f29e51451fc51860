"""The split into training and held-out rows: each row is assigned by its own content alone.

    held out(row)  ⇔  HMAC-SHA256(key, the row's own content) / 2²⁵⁶ < share

Nothing else counts: neither the other rows, nor their number or order, nor the order of the columns. So one more row
in the table is one more training row, or one more held-out row, and no other row moves; the promise of differential
privacy about one row needs exactly that. The key is random and never leaves the peer's folder: nobody else can tell
which rows are held out. Rows of equal content stay together. The split is not stratified: shares of classes vary by
chance.
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

# Beside state.sqlite, which is set aside when a run is left: the same rows stay held out.
KEY = "hold_out.key"
KEY_BYTES = 32

# One value as bytes of fixed length: its kind, and its float64 or the first half of a digest of its text.
VALUE_BYTES = 17

AT_ONCE = 1 << 14  # rows encoded as bytes at a time


def held_out(frame: pd.DataFrame, labels: np.ndarray, share: float, key: bytes) -> tuple[Table, Table | None]:
    """Return the training rows and the held-out rows: about that share, the same ones at every start.

    None are held out where no row's number is below the share. A class may have no row on either side.
    """
    if not share:
        return (frame, labels), None
    away = _numbers(frame, labels, key) < share
    if not away.any():
        return (frame, labels), None
    return (frame[~away], labels[~away]), (frame[away], labels[away])


def split_key(folder: Path) -> bytes:
    """Return the key of a peer's folder; the first call creates it."""
    path = folder / KEY
    if not path.exists():
        draft = folder / f"{KEY}.{os.getpid()}.{secrets.token_hex(4)}"
        private(draft, secrets.token_bytes(KEY_BYTES))
        try:
            _publish(draft, path)
        finally:
            draft.unlink()
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise PeerError(
            f"{path} has {len(key)} bytes; expected the {KEY_BYTES} that decide which rows are held out. Restore it "
            "from a backup; or leave the run, delete it and start again, with other rows held out"
        )
    return key


def _publish(draft: Path, path: Path) -> None:
    """Move the complete key to its path, unless another process was faster."""
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
        table.column(index) for _, index in sorted((name, index) for index, name in enumerate(table.names))
    ]
    columns.append(np.asarray(labels))
    names = hashlib.sha256("\0".join(sorted(table.names)).encode()).digest()
    prefixes = []
    for begin in range(0, len(labels), AT_ONCE):
        block = slice(begin, begin + AT_ONCE)
        content = np.concatenate([_encoded(column[block]) for column in columns], axis=1)
        prefixes += [hmac.digest(key, names + row.tobytes(), "sha256")[:8] for row in content]
    return np.frombuffer(b"".join(prefixes), dtype=">u8") * 2.0**-64


def _encoded(values: np.ndarray) -> np.ndarray:
    """Return each value of a column as bytes: [n] -> [n, VALUE_BYTES] of uint8.

    A value gives the same bytes whatever type the other rows give the column: 1, 1.0, True and "1" are equal, and so
    are all ways to write a missing value.
    """
    if values.dtype.kind in "fiub":
        encoded = np.zeros((len(values), VALUE_BYTES), dtype=np.uint8)
        numbers = values.astype(np.float64) + 0.0  # −0.0 is 0.0
        present = ~np.isnan(numbers)
        encoded[present, 0] = ord("n")
        encoded[present, 1:9] = numbers[present].astype("<f8").view(np.uint8).reshape(-1, 8)
        return encoded
    cache: dict[Any, bytes] = {}
    content = b"".join(
        cache[value] if value in cache else cache.setdefault(value, _value(value)) for value in values
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
