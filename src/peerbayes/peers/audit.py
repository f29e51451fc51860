"""The audit log: a line for everything that left this machine, each bound to the one before by a digest.

    {"at": "2026-01-31T12:00:00.123Z", "to": "clinic-b", "what": "round 3", "bytes": 8192, "digest": "…",
     "state": "…", "start": 2, "chain": "…"}

A line is written before its bytes are handed to the network, so that nothing leaves unlogged; `chain` is the sha256 of
the line before and this one, so that a line taken out or changed later shows. `state` and `start` say which state the
peer was in, and how often this folder's peer had been started. Lines to nobody are for the record: what was released
with noise, at which cost, and that a run was left.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from peerbayes.peers.errors import PeerError

RELEASE = "private release "  # what a line is called that has a release's cost; its name follows
LEFT = "left"  # the run of a state was given up


class Position(NamedTuple):
    """How far a log goes."""

    lines: int
    chain: str  # of the last of them


class AuditLog:
    """An append-only file. Lines come from the event loop and from threads that learn."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = _end(path)
        self._file = path.open("ab", buffering=0)  # written at once: a kill -9 loses nothing
        self._about: dict[str, Any] = {}
        self._lock = threading.Lock()

    def begin(self, state: str, start: int) -> None:
        """Say in every line from now on which state and which start of this peer it is of."""
        self._about = {"state": state, "start": start}

    def add(self, to: str, what: str, size: int, digest: bytes, **more: Any) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        entry = {"at": at, "to": to, "what": what, "bytes": size, "digest": digest.hex()} | self._about | more
        with self._lock:
            chain = _chained(self._position.chain, entry)
            line = _line(entry, chain)
            if (written := self._file.write(line)) != len(line):
                self._file.truncate(self._file.tell() - (written or 0))
                raise OSError(errno.ENOSPC, "a line could not be written: the disk is full", str(self.path))
            self._position = Position(self._position.lines + 1, chain)

    def sync(self) -> Position:
        """Bring all lines so far to disk, where no power cut takes them; how far that is."""
        position = self._position
        os.fsync(self._file.fileno())
        return position

    def close(self) -> None:
        self.sync()
        self._file.close()


@dataclass
class Tail:
    """A log that grows, read again and again: each time what is new, once it fits to what was read before."""

    path: Path
    count: int = 0
    """Lines read so far."""
    chain: str = ""
    """Of the last of them."""
    _place: int = 0
    _file: int | None = None

    def read(self) -> Iterator[dict[str, Any]]:
        """The new lines; what a power cut left of a last line, or is just being written, is left out."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            found = os.fstat(file.fileno())
            if self.count and (found.st_ino != self._file or found.st_size < self._place):
                raise PeerError(
                    f"{self.path} is another file, or shorter, than after its {self.count} lines. The log was changed"
                )
            self._file = found.st_ino
            file.seek(self._place)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                yield self._checked(line)

    def _checked(self, line: bytes) -> dict[str, Any]:
        try:
            entry = json.loads(line)
            told = entry.pop("chain")
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            entry, told = {}, None
        chain = _chained(self.chain, entry)
        if told != chain or line != _line(entry, chain):
            raise PeerError(
                f"{self.path}, line {self.count + 1}: it does not fit to the line before. The log was changed"
            )
        self.chain, self._place, self.count = chain, self._place + len(line), self.count + 1
        return dict(entry)


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log, once each fits to the one before; a last line cut off by a power cut is left out."""
    return Tail(path).read()


def _line(entry: dict[str, Any], chain: str) -> bytes:
    return json.dumps({**entry, "chain": chain}).encode() + b"\n"


def _chained(chain: str, entry: dict[str, Any]) -> str:
    return hashlib.sha256(f"{chain} {json.dumps(entry, sort_keys=True)}".encode()).hexdigest()


def _end(path: Path) -> Position:
    """How far a log goes; what a power cut left of a last line is taken off."""
    if not path.exists():
        return Position(0, "")
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        with path.open("r+b") as file:
            file.truncate(len(whole))
    lines = whole.splitlines()
    try:
        return Position(len(lines), str(json.loads(lines[-1])["chain"]) if lines else "")
    except (ValueError, KeyError, TypeError) as error:
        raise PeerError(
            f"{path}: the last line is no entry of the audit log; bring back the newest whole copy, or leave the run"
        ) from error
