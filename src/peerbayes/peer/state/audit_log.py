"""The audit log: one line for everything that left this machine, each chained to the line before by a digest.

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
import re
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from peerbayes.errors import PeerError

RELEASE = "private release "  # what a line is called that has a release's cost; its name follows
LEFT = "left"  # the run of a state was given up


class Position(NamedTuple):
    """The end of a log."""

    lines: int
    chain: str  # of the last of them


class AuditLog:
    """An append-only file. Lines come from the event loop and from worker threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = _end(path)
        self._file = path.open("ab", buffering=0)  # written at once: a kill -9 loses nothing
        self._about: dict[str, Any] = {}
        self._lock = threading.Lock()

    def begin(self, state: str, start: int) -> None:
        """Name this state and this start of the peer in every line from now on."""
        self._about = {"state": state, "start": start}

    def add(self, to: str, description: str, size: int, digest: bytes, **extra: Any) -> None:
        """Append a line; OSError where the disk is full, and then nothing of it is left in the file."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        entry = (
            {"at": at, "to": to, "what": description, "bytes": size, "digest": digest.hex()}
            | self._about
            | extra
        )
        with self._lock:
            chain = _chained(self._position.chain, entry)
            text_line = _encoded(entry, chain)
            if (written := self._file.write(text_line)) != len(text_line):
                self._file.truncate(self._file.tell() - (written or 0))
                raise OSError(errno.ENOSPC, "a line could not be written: the disk is full", str(self.path))
            self._position = Position(self._position.lines + 1, chain)

    def sync(self) -> Position:
        """Flush all lines so far to disk, where they survive a power cut; return the end of the log."""
        position = self._position
        os.fsync(self._file.fileno())
        return position

    def close(self) -> None:
        self.sync()
        self._file.close()


@dataclass
class Tail:
    """Reads a growing log step by step: each time the new lines, once the chain up to them is verified."""

    path: Path
    count: int = 0
    """Lines read so far."""
    chain: str = ""
    """Of the last of them."""
    _offset: int = 0
    _file: int | None = None

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the new lines; an incomplete last line (a power cut, or just being written) is left out."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file_status = os.fstat(file.fileno())
            if self.count and (file_status.st_ino != self._file or file_status.st_size < self._offset):
                raise PeerError(
                    f"{self.path} is another file, or shorter, than after its {self.count} lines. The log was changed"
                )
            self._file = file_status.st_ino
            file.seek(self._offset)
            for text_line in file:
                if not text_line.endswith(b"\n"):
                    return
                yield self._checked(text_line)

    def _checked(self, text_line: bytes) -> dict[str, Any]:
        try:
            entry = json.loads(text_line)
            stored_chain = entry.pop("chain")
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            entry, stored_chain = {}, None
        chain = _chained(self.chain, entry)
        if stored_chain != chain or text_line != _encoded(entry, chain):
            raise PeerError(
                f"{self.path}, line {self.count + 1}: it does not match the line before. The log was changed"
            )
        self.chain, self._offset, self.count = chain, self._offset + len(text_line), self.count + 1
        return dict(entry)


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log, each once its chain is verified; an incomplete last line is left out."""
    return Tail(path).read()


# --- the content of a log, by state

ROUND = re.compile(r"(?:private )?(?:masked )?round (\d+)")

Delivery = tuple[int, str]  # a round and a receiver


@dataclass
class OfState:
    """The lines of a log about one state of its peer."""

    start: int = 0
    messages: dict[Delivery, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Digests of the messages of rounds that were sent."""
    releases: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Digests by name."""
    left: bool = False
    """Whether the run was given up."""

    @property
    def round(self) -> int:
        """Return the last round of which a message was sent; 0: none."""
        return max((round_index for round_index, _ in self.messages), default=0)

    @property
    def committed(self) -> bool:
        """Return whether anything was sent that must never be contradicted."""
        return bool(self.messages or self.releases)


@dataclass
class Log:
    """The content of an audit log by state; lines of earlier versions name no state, and count for the state ""."""

    states: dict[str, OfState] = field(default_factory=dict)
    last: str | None = None
    """The state of its last line."""
    end: Position = field(default_factory=lambda: Position(0, ""))
    at_mark: str | None = None
    """The chain of the line up to which the state knows the log; None: the log is shorter."""

    @classmethod
    def of(cls, tail: Tail, mark: Position | None = None) -> Log:
        """Read a log to its end; PeerError where a line does not match the one before."""
        log = cls(at_mark="" if mark is not None and mark.lines == 0 else None)
        for entry in tail.read():
            log._add(entry)
            if mark is not None and tail.count == mark.lines:
                log.at_mark = tail.chain
        log.end = Position(tail.count, tail.chain)
        return log

    def _add(self, entry: Mapping[str, object]) -> None:
        self.last = str(entry.get("state", ""))
        of_state = self.states.setdefault(self.last, OfState())
        description, digest, start = str(entry["what"]), str(entry["digest"]), entry.get("start", 0)
        of_state.start = max(of_state.start, start if isinstance(start, int) else 0)
        if description == LEFT:
            of_state.left = True
        elif description.startswith(RELEASE):
            of_state.releases[description.removeprefix(RELEASE)].add(digest)
        elif (match := ROUND.fullmatch(description)) is not None:
            of_state.messages[int(match[1]), str(entry["to"])].add(digest)

    @property
    def start(self) -> int:
        """Return the number of the last start that the log knows."""
        return max((of_state.start for of_state in self.states.values()), default=0)


_as_written, _sorted = (
    json.JSONEncoder().encode,
    json.JSONEncoder(sort_keys=True).encode,
)  # made once: for every line


def _encoded(entry: dict[str, Any], chain: str) -> bytes:
    return _as_written({**entry, "chain": chain}).encode() + b"\n"


def _chained(chain: str, entry: dict[str, Any]) -> str:
    return hashlib.sha256(f"{chain} {_sorted(entry)}".encode()).hexdigest()


def _end(path: Path) -> Position:
    """Return the end of a log, after cutting off an incomplete last line that a power cut left."""
    if not path.exists():
        return Position(0, "")
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    if complete != content:
        with path.open("r+b") as file:
            file.truncate(len(complete))
    text_lines = complete.splitlines()
    try:
        return Position(len(text_lines), str(json.loads(text_lines[-1])["chain"]) if text_lines else "")
    except (ValueError, KeyError, TypeError) as error:
        raise PeerError(
            f"{path}: the last line is no entry of the audit log; restore the newest intact copy, or leave the run"
        ) from error
