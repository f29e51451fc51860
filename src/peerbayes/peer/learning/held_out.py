"""The model of a running peer: written to its file, and evaluated on held-out rows."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import struct
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from peerbayes.data import files
from peerbayes.data.infer import infer_classes
from peerbayes.data.sources.flat_files import MARKERS
from peerbayes.data.table import Table as Columns
from peerbayes.errors import PeerError
from peerbayes.learning.metrics import Sample
from peerbayes.learning.selection import usable
from peerbayes.model.families import Rows
from peerbayes.model.scaling import Scaling
from peerbayes.peer.agreement.column_facts import private
from peerbayes.peer.agreement.negotiate import Agreed
from peerbayes.peer.inspection import NO_NOISE

# --- the split into training and held-out rows: each row is assigned by its own content alone
#     held out(row)  ⇔  HMAC-SHA256(key, the row's own content) / 2²⁵⁶ < share
#
# Nothing else counts: neither the other rows, nor their number or order, nor the order of the columns. So one more
# row in the table is one more training row, or one more held-out row, and no other row moves; the promise of
# differential privacy about one row needs exactly that. The key is random and never leaves the peer's folder: nobody
# else can tell which rows are held out. Rows of equal content stay together. The split is not stratified: shares of
# classes vary by chance.

Table = tuple[pd.DataFrame, np.ndarray]

# BackgroundTasks state.sqlite, which is set aside when a run is left: the same rows stay held out.
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
    away = numbers_of_rows(frame, labels, key) < share
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


def numbers_of_rows(frame: pd.DataFrame, labels: np.ndarray, key: bytes) -> np.ndarray:
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


def digests_of_rows(frame: pd.DataFrame, key: bytes) -> list[str]:
    """Return a keyed digest of each row's content in these columns, whatever their order and types: [n]."""
    names = sorted(str(name) for name in frame.columns)
    prefix = b"digest\0" + hashlib.sha256("\0".join(names).encode()).digest()
    content = np.concatenate([_encoded(frame[name].to_numpy()) for name in names], axis=1)
    return [hmac.digest(key, prefix + row.tobytes(), "sha256")[:16].hex() for row in content]


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


# --- the file of a peer's current model

EVERY = 1.0  # seconds between two writes
WRITING_SHARE = (
    20  # the pause between writes in multiples of their duration: they take a twentieth of the time
)


@dataclass
class ModelFile:
    """A model file, written as often as time allows."""

    path: Path | None
    due: float = 0.0
    """When the next write is due."""

    def write(
        self,
        agreed: Agreed,
        stats: np.ndarray,
        scaling: Scaling | None = None,
        likelihood: np.ndarray | None = None,
    ) -> None:
        """Write the model of S [C, K] with a scaling, and YᵀΦ of all rows [C, K] beside it.

        A strategy on weights has no such model, and no file.
        """
        began = time.monotonic()
        try:
            if self.path is not None and not agreed.of_weights:
                model = replace(agreed.statistics(stats), scaling=scaling, likelihood=likelihood)
                files.write(self.path, model.to_bytes())
        finally:
            took = time.monotonic() - began
            self.due = began + max(EVERY, WRITING_SHARE * took)


# --- evaluation of a peer's model on the peer's own rows: those it learns from, and those it holds out

SHARE = 20  # the pause between evaluations in multiples of their duration: they take a twentieth of the time
PAUSE = 0.2  # seconds between two evaluations, which is often enough for whoever follows a run
WORK = 50  # the work of this process until the next in multiples of an evaluation's: a busy machine makes rounds slow,
LONGEST = 1.0  # and them no more frequent; but so many seconds are enough to wait


@dataclass
class Evaluator:
    """Evaluates a model after a round, as often as time allows."""

    training: Sample
    held_out: Sample | None
    of_weights: bool
    due: float = 0.0
    work_due: float = 0.0
    """Seconds of the processor that this process has used when the next is due."""
    unknown: int = 0
    """Held-out rows whose class occurs in no peer's training rows: every model is wrong about them."""

    @classmethod
    def of(cls, agreed: Agreed, away: Table | None) -> Evaluator:
        """Return the evaluation of a peer with these held-out rows."""
        training = Sample(agreed.family, agreed.local_rows.rows, agreed.local_rows.labels)
        held_out, unknown = None, 0
        if away is not None:
            distinct, codes = infer_classes(away[1])
            in_schema = np.array([label in agreed.schema.classes for label in distinct], dtype=bool)[codes]
            unknown = int(np.sum(~in_schema))
            away = away[0][in_schema], away[1][in_schema]
        if away is not None and len(away[1]):
            rows, labels = agreed.schema.encode(away[0]), agreed.schema.encode_labels(away[1])
            kept = usable(agreed.family, rows, agreed.of_weights)
            held_out = Sample(agreed.family, Rows(rows.values[kept], rows.codes[kept]), labels[kept])
        return cls(training, held_out, agreed.of_weights, unknown=unknown)

    @property
    def is_due(self) -> bool:
        """Whether there is time for an evaluation."""
        now = time.monotonic()
        return now > self.due and (time.process_time() > self.work_due or now > self.due + LONGEST - PAUSE)

    def figures(self, stats: np.ndarray) -> dict[str, float | None]:
        """Return the errors of S [C, K] on training and held-out rows."""
        began, worked = time.monotonic(), time.thread_time()
        weights = stats[None] if self.of_weights else self.training.family.weights(stats[None])
        error, soft = self.training.errors(weights, soft=True)
        test_error = self._test_error(weights)
        now = time.monotonic()
        self.due = began + max(PAUSE, SHARE * (now - began))
        self.work_due = time.process_time() + WORK * (time.thread_time() - worked)
        return {"train_error": float(error[0]), "soft_error": float(soft[0]), "test_error": test_error}

    def _test_error(self, weights: np.ndarray) -> float | None:
        """Return the error on held-out rows; None: there are none that a model can be tested on."""
        wrong, count = float(self.unknown), self.unknown
        if self.held_out is not None:
            tested = self.held_out.labels.size
            wrong, count = (
                wrong + tested * float(self.held_out.errors(weights, soft=False)[0][0]),
                count + tested,
            )
        return wrong / count if count else None


def error_text(figures: dict[str, Any], private: bool = False) -> str:
    """Return the error as a short text; "" where it was not evaluated. `private`: the agreement has an epsilon."""
    noise = f" ({NO_NOISE})" if private else ""
    if figures.get("test_error") is not None:
        return f"error {figures['test_error']:.4f} on held-out rows{noise}"
    if figures.get("train_error") is not None:
        return f"error {figures['train_error']:.4f} on its own rows{noise}"
    return ""
