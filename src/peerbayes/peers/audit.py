"""The audit log: a line for everything that left this machine, each bound to the one before by a digest.

    {"at": "2026-01-31T12:00:00.123Z", "to": "clinic-b", "what": "round 3", "bytes": 8192, "digest": "…", "chain": "…"}

A line is written before its bytes are handed to the network, so that nothing leaves unlogged; `chain` is the sha256 of
the line before and this one, so that a line taken out or changed later shows.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from peerbayes.peers.errors import PeerError


class AuditLog:
    """An append-only file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._chain = _last_chain(path)
        self._file = path.open("ab", buffering=0)  # written at once: a kill -9 loses nothing

    def add(self, to: str, what: str, size: int, digest: bytes) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        entry = {"at": at, "to": to, "what": what, "bytes": size, "digest": digest.hex()}
        chain = _chained(self._chain, entry)
        line = _line(entry, chain)
        if (written := self._file.write(line)) != len(line):
            self._file.truncate(self._file.tell() - (written or 0))
            raise OSError(f"{self.path}: a line could not be written. Is the disk full?")
        self._chain = chain

    def sync(self) -> None:
        """On disk, also after a power cut."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self.sync()
        self._file.close()


@dataclass
class Tail:
    """A log that grows, read again and again: each time what is new, once it fits to what was read before."""

    path: Path
    count: int = 0
    """Lines read so far."""
    _place: int = 0
    _chain: str = ""
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
        chain = _chained(self._chain, entry)
        if told != chain or line != _line(entry, chain):
            raise PeerError(
                f"{self.path}, line {self.count + 1}: it does not fit to the line before. The log was changed"
            )
        self._chain, self._place, self.count = chain, self._place + len(line), self.count + 1
        return dict(entry)


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log, once each fits to the one before; a last line cut off by a power cut is left out."""
    return Tail(path).read()


def _line(entry: dict[str, Any], chain: str) -> bytes:
    return json.dumps({**entry, "chain": chain}).encode() + b"\n"


def _chained(chain: str, entry: dict[str, Any]) -> str:
    return hashlib.sha256(f"{chain} {json.dumps(entry, sort_keys=True)}".encode()).hexdigest()


def _last_chain(path: Path) -> str:
    """The chain so far; what a power cut left of a last line is taken off."""
    if not path.exists():
        return ""
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        with path.open("r+b") as file:
            file.truncate(len(whole))
    lines = whole.splitlines()
    try:
        return str(json.loads(lines[-1])["chain"]) if lines else ""
    except (ValueError, KeyError, TypeError) as error:
        raise PeerError(
            f"{path}: the last line is no entry of the audit log; move the file away to go on"
        ) from error
