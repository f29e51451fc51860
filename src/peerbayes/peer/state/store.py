"""A peer's state on disk: everything of a round in one SQLite transaction.

After kill -9 or a power cut the peer continues from its last round. Arrays are stored by their digest, so what did not
change since the previous round is not written again; messages are kept for neighbours that were away.

A large state is written whole in every 32nd round only. In the rounds between, the messages that came are written, from
which the state follows: a peer that starts again takes the same steps with them.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from peerbayes.errors import PeerError
from peerbayes.peer.learning.learner import Attachment
from peerbayes.peer.learning.releases import Release
from peerbayes.peer.state import migrations
from peerbayes.peer.state.audit_log import Position
from peerbayes.peer.state.folder import leave_command

# Memory address and size of an array -> the array and its digest.
StoredArrays = dict[tuple[int, int], tuple[np.ndarray, bytes]]

# Rounds whose messages are kept for neighbours that were away.
KEPT = 256

# Rounds until a state is stored whole again, where those between store what it follows from.
WHOLE_EVERY = 32

# Figures of a peer's model after a round.
FIGURES = ("train_error", "soft_error", "test_error", "disagreement")


# The last state that is stored whole; others are objects that say who was gone.
WHOLE = "SELECT turn, state, digest FROM rounds WHERE state NOT LIKE '{%' ORDER BY turn DESC LIMIT 1"


class NoState(PeerError):
    """Raised for a peer that has not run yet."""


class Inputs(NamedTuple):
    """What the state after a round follows from, beside the state before it."""

    messages: Mapping[str, np.ndarray]
    """By sender."""
    digests: Mapping[str, bytes]
    """sha256 of the messages' bytes, which was checked when they came."""
    attached: Mapping[str, Attachment] = {}
    gone: Sequence[str] = ()
    """Neighbours that were gone for good."""


class RoundRecord(NamedTuple):
    """A round as it is stored: the state after it, and the messages of the next by receiver."""

    round_index: int
    state: Any
    outgoing: Mapping[str, np.ndarray] = {}
    heard: Iterable[str] = ()
    missing: Iterable[str] = ()
    figures: Mapping[str, float | None] | None = None
    groups: Mapping[str, str] = {}
    """The group that each masked message was made for, by receiver."""
    release: Release | None = None
    left_out: Iterable[str] = ()
    """Neighbours that closed this round without this peer."""
    reference: np.ndarray | None = None
    """S of a model that a later one is compared with."""
    attached: Mapping[str, Attachment] = {}
    """What messages have beside them, by receiver."""
    selection: Any = ()
    """The round that is kept so far, as arrays; (): the last one will be."""
    inputs: Inputs | None = None
    """What may be stored instead of the state; None: only the state will do."""


class StoredMessage(NamedTuple):
    """A message of a round as it is stored."""

    body: bytes
    digest: bytes  # sha256 of the body
    missed: int  # rounds since this peer missed the receiver; 0: not lately
    correction: bytes  # this peer's correction of the link; empty: there is nothing to repair


class PeerState(Protocol):
    """The state of one peer in one run. What a method has stored is on disk when it returns, all of it or nothing."""

    path: Path
    """Where it is kept, for messages to people."""

    def close(self) -> None: ...
    def flush(self) -> None: ...

    # Single facts.
    def value(self, key: str) -> str | None: ...
    def keep(self, key: str, value: str) -> None: ...
    def secret(self, key: str, make: Callable[[], bytes]) -> bytes: ...
    def claim(self, facts: Mapping[str, tuple[str, str]]) -> None: ...

    # Which state this is, and how far it and its audit log go.
    def identity(self) -> str: ...
    def begin(self, before: int) -> int: ...
    def round(self) -> int | None: ...
    def stored(self) -> int: ...
    def messages(self) -> dict[tuple[int, str], bytes]: ...
    def mark(self, logged: Position) -> None: ...
    def logged(self) -> Position | None: ...

    # The agreement.
    def add_sum(self, phase: str, sender: str, body: bytes) -> None: ...
    def forget_sum(self, phase: str) -> None: ...
    def forget_agreement(self) -> None: ...
    def sums(self, phase: str) -> dict[str, bytes]: ...

    # The ledger of releases with noise.
    def bought(self, name: str, cost: float, make: Callable[[], np.ndarray]) -> np.ndarray: ...
    def releases(self) -> list[dict[str, Any]]: ...
    def release(self, name: str) -> tuple[float, bytes]: ...

    # Rounds and their messages.
    def add_round(self, record: RoundRecord) -> dict[str, bytes]: ...
    def last(self) -> tuple[int, Any] | None: ...
    def inputs(self, after: int) -> Iterator[tuple[int, Inputs]]: ...
    def message(self, round_index: int, receiver: str) -> StoredMessage | None: ...
    def group(self, round_index: int, receiver: str) -> str: ...
    def oldest(self) -> int: ...
    def history(self, after: int = -1) -> list[dict[str, Any]]: ...
    def left_out(self) -> dict[int, list[str]]: ...
    def reference(self) -> np.ndarray | None: ...

    # Events.
    def note(
        self,
        refused: Mapping[tuple[str, str], tuple[int, str]],
        neighbours: Mapping[str, tuple[float | None, int, str]],
    ) -> None: ...
    def refusals(self) -> list[dict[str, Any]]: ...
    def neighbours(self) -> dict[str, dict[str, Any]]: ...


class Store:
    """One SQLite file, the implementation of `PeerState`. Only one process writes it; reading never changes it."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self.path = path
        self._lock = threading.RLock()  # one connection, several threads
        if readonly and not path.exists():
            raise NoState(f"there is no state yet: {path} does not exist; the peer has not run")
        self._stored_digests: set[bytes] = set()
        self._digests: StoredArrays = {}  # of the last state
        self._of_state: tuple[int, frozenset[bytes]] = (
            -1,
            frozenset(),
        )  # the last round whose state is stored whole, and the arrays of that
        self._in_messages: Counter[bytes] = Counter()  # how many kept messages have an array
        self._count: int | None = None  # of rounds and releases, once they were counted
        self._logged: Position | None = None
        self._marked: Position | None = None  # what is written of it
        try:
            if not readonly and not path.exists():  # it holds this peer's messages, and a key for secure sums
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            try:
                self._open("mode=ro" if readonly else "mode=rwc")
            except sqlite3.OperationalError as error:
                closed = not path.with_name(f"{path.name}-wal").exists()
                if not (readonly and closed and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_CANTOPEN):
                    raise
                # On a file system that is read-only SQLite cannot make the files beside a state that nobody writes.
                self._open("mode=ro&immutable=1")
        except sqlite3.DatabaseError as error:
            raise PeerError(f"{path} cannot be used as a peer's state: {error}") from error

    def _open(self, how: str) -> None:
        self._db = sqlite3.connect(
            f"{self.path.resolve().as_uri()}?{how}", uri=True, isolation_level=None, check_same_thread=False, timeout=10
        )  # fmt: skip
        try:
            self._prepare(how != "mode=rwc")
        except BaseException:
            self._db.close()  # otherwise it holds locks until it is garbage-collected
            raise

    def _prepare(self, readonly: bool) -> None:
        """Bring the file to this program's schema; for reading, it stays as it is."""
        migrations.refuse_newer(self._db, self.path)
        if readonly:
            if migrations.is_empty(self._db):
                raise NoState(f"there is no state yet: {self.path} is just being made")
            self._db = migrations.in_memory(self._db)
            return
        self._db.execute("PRAGMA page_size = 16384")  # arrays are large
        self._db.execute("PRAGMA cache_size = -8000")  # kB: what a round deletes is not read again first
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        migrations.upgrade(self._db, self.path)
        self._stored_digests.update(digest for (digest,) in self._db.execute("SELECT digest FROM arrays"))
        self._in_messages.update(self._of_messages("SELECT digest, correction FROM outbox"))
        self._in_messages.update(self._of_messages("SELECT digest, correction FROM received"))
        if (row := self._one(WHOLE)) is not None:
            self._of_state = row[0], frozenset(_digests(json.loads(row[1])))

    def close(self) -> None:
        """Close the file, once any write is done."""
        with self._lock:
            self._db.close()

    def flush(self) -> None:
        """Move the write-ahead log into the file, so that the file can be moved."""
        if self._one("PRAGMA wal_checkpoint(TRUNCATE)")[0]:
            raise PeerError(f"{self.path} is being read by another process; try again in a moment")

    # --- single facts ----------------------------------------------------------------------------------

    def value(self, key: str) -> str | None:
        row = self._one("SELECT value FROM meta WHERE key = ?", key)
        return None if row is None else str(row[0])

    def keep(self, key: str, value: str) -> None:
        self._all(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", key, value
        )

    def secret(self, key: str, make: Callable[[], bytes]) -> bytes:
        """Return a secret of this state, made at the first call and kept as long as the state."""
        with self._lock:
            value = self.value(key)
            if value is None:
                for name in (self.path.name, f"{self.path.name}-wal", f"{self.path.name}-shm"):
                    if (file := self.path.with_name(name)).exists():
                        file.chmod(0o600)
                self.keep(key, value := make().hex())
            return bytes.fromhex(value)

    def claim(self, facts: Mapping[str, tuple[str, str]]) -> None:
        """Store what must not change during a run, or refuse a change: key -> (value, description)."""
        with self._transaction():
            for key, (value, description) in facts.items():
                before = self.value(key)
                if before is not None and before != value:
                    raise PeerError(
                        f"{self.path} belongs to a run with {description}. Go back to it, or give up that run here "
                        f"with `{leave_command(self.path.parent)}` and start again"
                    )
                self.keep(key, value)

    # --- which state this is, and how far it and its audit log go ----------------------------------------

    def identity(self) -> str:
        """Return the random name of this state, which its lines in the audit log carry."""
        return self.secret("state", lambda: os.urandom(8)).hex()

    def begin(self, before: int) -> int:
        """Count a start of this folder's peer after `before` known ones, and store it before anything is sent."""
        with self._lock:
            start = max(int(self.value("starts") or 0), before) + 1
            self.keep("starts", str(start))
            return start

    def round(self) -> int | None:
        """Return the last round; None: there is none yet."""
        return self._one("SELECT MAX(turn) FROM rounds")[0]

    def stored(self) -> int:
        """Return the number of rounds and releases, which never decreases in a state that continues."""
        with self._lock:
            if self._count is None:
                counts = "SELECT (SELECT COUNT(*) FROM rounds) + (SELECT COUNT(*) FROM releases)"
                self._count = int(self._one(counts)[0])
            return self._count

    def messages(self) -> dict[tuple[int, str], bytes]:
        """Return the digests of all kept messages, by round and receiver."""
        rows = self._all("SELECT turn, receiver, digest FROM outbox")
        return {(round_index, receiver): digest for round_index, receiver, digest in rows}

    def mark(self, logged: Position) -> None:
        """Remember the length of the audit log on disk; written with the next round or the next notes."""
        self._logged = logged

    def _write_mark(self) -> None:
        if (logged := self._logged) is not None and logged != self._marked:
            self.keep("logged", f"{logged.lines} {logged.chain}")

    def logged(self) -> Position | None:
        """Return the least length of the audit log."""
        line_count, _, chain = (self.value("logged") or "").partition(" ")
        return Position(int(line_count), chain) if line_count else None

    # --- the agreement ---------------------------------------------------------------------------------

    def add_sum(self, phase: str, sender: str, body: bytes) -> None:
        self._all("INSERT OR IGNORE INTO sums VALUES (?, ?, ?)", phase, sender, body)

    def forget_sum(self, phase: str) -> None:
        self._all("DELETE FROM sums WHERE phase = ?", phase)

    def forget_agreement(self) -> None:
        """Forget an agreement that failed: the next start begins anew, with whatever rows there are then.

        Once something was released, the rows must stay the same: it is sent again, and not bought anew.
        """
        with self._transaction():
            self._db.execute("DELETE FROM sums")
            dropped = ("mask keys",) if self.releases() else ("run", "data", "mask keys", "figures key")
            self._db.executemany("DELETE FROM meta WHERE key = ?", [(key,) for key in dropped])

    def sums(self, phase: str) -> dict[str, bytes]:
        return dict(self._all("SELECT sender, body FROM sums WHERE phase = ?", phase))

    # --- releases with noise ---------------------------------------------------------------------------

    def bought(self, name: str, cost: float, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the int64 numbers released under a name: made and stored the first time, the same ever after."""
        with self._lock:
            row = self._one("SELECT digest, body FROM releases WHERE name = ?", name)
            if row is None:
                with self._transaction():
                    values = make()
                    content = np.ascontiguousarray(values, dtype="<i8").tobytes()
                    body = json.dumps(values.shape).encode() + b"\n" + content
                    self._add_release(name, cost, body, body)
                return values
        if hashlib.sha256(row[1]).digest() != row[0]:
            raise PeerError(f"{self.path}: the release {name} does not match its digest; the file is damaged")
        shape, _, body = bytes(row[1]).partition(b"\n")
        return np.frombuffer(body, dtype="<i8").reshape(json.loads(shape))

    def _add_release(self, name: str, cost: float, content: bytes, body: bytes | None) -> None:
        """Add an entry to the ledger; a name occurs once, or the transaction fails."""
        digest = hashlib.sha256(content).digest()
        self._count = None
        self._all("INSERT INTO releases VALUES (?, ?, ?, ?, ?)", name, time.time(), cost, digest, body)

    def releases(self) -> list[dict[str, Any]]:
        """Return the ledger: name, time, μ² and digest of every release."""
        return self._records("SELECT name, at, cost, digest FROM releases ORDER BY at, rowid")

    def release(self, name: str) -> tuple[float, bytes]:
        """Return the cost and the digest of one entry of the ledger."""
        return self._one("SELECT cost, digest FROM releases WHERE name = ?", name)

    # --- rounds ----------------------------------------------------------------------------------------

    def add_round(self, record: RoundRecord) -> dict[str, bytes]:
        """Store the state after a round, its figures and the next messages, all or nothing; return their digests.

        A round is stored once, and with its cost: a message made of a release is never stored without its entry in the
        ledger. Where the state follows from inputs, they are stored instead, until it is time for the whole state.
        """
        round_index, release, reference = record.round_index, record.release, record.reference
        in_messages = self._in_messages.copy()
        with self._transaction():
            if release is not None:
                released = np.ascontiguousarray(release.values, dtype="<f8").tobytes()
                self._add_release(release.name, release.cost, released, None)
            stored_arrays: StoredArrays = {}
            whole, of_state = self._of_state
            follows = record.inputs is not None and whole >= 0 and round_index - whole < WHOLE_EVERY
            if record.inputs is not None and follows:
                nested: Any = {"gone": sorted(record.inputs.gone)}
                in_messages.update(self._receive(round_index, record.inputs, stored_arrays))
            else:
                whole = round_index
                state = (record.state, record.selection) if record.selection else record.state
                nested = self._described(state, stored_arrays)
                of_state = frozenset(_digests(nested))
            described = json.dumps(nested)
            digest = hashlib.sha256(described.encode()).digest()
            names = json.dumps(sorted(record.heard)), json.dumps(sorted(record.missing))
            row = (round_index, time.time(), described, digest, *names)
            self._all("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?)", *row)
            if record.figures:
                values = (record.figures.get(name) for name in FIGURES)
                self._all("INSERT INTO judged VALUES (?, ?, ?, ?, ?)", round_index, *values)
            for name in record.left_out:
                self._all("INSERT INTO left_out VALUES (?, ?)", round_index, name)
            if reference is not None:
                body = np.ascontiguousarray(reference, dtype="<f8").tobytes()
                shape = json.dumps(reference.shape)
                self._all("INSERT INTO reference VALUES (?, ?, ?)", round_index, shape, body)
            digests = {
                receiver: self._put(message, stored_arrays) for receiver, message in record.outgoing.items()
            }
            for receiver, message_digest in digests.items():
                attached = record.attached.get(receiver, Attachment())
                correction = attached.correction
                beside = attached.missed, None if correction is None else self._put(correction, stored_arrays)
                message = round_index + 1, receiver, message_digest
                self._all("INSERT INTO outbox VALUES (?, ?, ?, ?, ?)", *message, *beside)
                in_messages.update(digest for digest in (message_digest, beside[1]) if digest is not None)
            for receiver, group in record.groups.items():
                self._all("INSERT INTO groups VALUES (?, ?, ?)", round_index + 1, receiver, group)
            self._forget(round_index, whole, of_state, in_messages)
            self._write_mark()
            marked = self._logged
        self._digests, self._marked = stored_arrays, marked
        self._of_state, self._in_messages = (whole, of_state), in_messages
        self._count = None if self._count is None else self._count + 1
        return digests

    def _receive(self, round_index: int, inputs: Inputs, stored_arrays: StoredArrays) -> list[bytes]:
        """Store what a state follows from; return the digests of its arrays, once for each use."""
        digests = []
        for sender, message in inputs.messages.items():
            attached, digest = inputs.attached.get(sender, Attachment()), inputs.digests[sender]
            self._insert(digest, np.ascontiguousarray(message, dtype="<f8"))
            correction = (
                None if attached.correction is None else self._put(attached.correction, stored_arrays)
            )
            row = round_index, sender, digest, attached.missed, correction
            self._all("INSERT INTO received VALUES (?, ?, ?, ?, ?)", *row)
            digests += [digest] if correction is None else [digest, correction]
        return digests

    def last(self) -> tuple[int, Any] | None:
        """Return the last round whose state is stored whole, and that state as nested lists of arrays.

        The states after later rounds follow from it and from `inputs`.
        """
        with self._snapshot():
            if (row := self._one(WHOLE)) is None:
                return None
            return row[0], self._restored(self._checked(*row))

    def inputs(self, after: int) -> Iterator[tuple[int, Inputs]]:
        """Yield the rounds after a whole state, and what the state after each follows from."""
        while (
            row := self._one("SELECT turn, state, digest FROM rounds WHERE turn = ?", after + 1)
        ) is not None:
            after, gone = row[0], self._checked(*row)["gone"]
            messages, digests, attached = {}, {}, {}
            for sender, digest, missed, correction in self._all(
                "SELECT sender, digest, missed, correction FROM received WHERE turn = ? ORDER BY sender",
                after,
            ):
                messages[sender], digests[sender] = np.frombuffer(self._body(digest), dtype="<f8"), digest
                beside = None if correction is None else np.frombuffer(self._body(correction), dtype="<f8")
                attached[sender] = Attachment(missed, beside)
            yield after, Inputs(messages, digests, attached, gone)

    def _checked(self, round_index: int, described: str, digest: bytes) -> Any:
        """Return what is stored as the state after a round."""
        if hashlib.sha256(described.encode()).digest() != digest:
            raise PeerError(
                f"{self.path}: the state of round {round_index} does not match its digest; the file is damaged"
            )
        return json.loads(described)

    def message(self, round_index: int, receiver: str) -> StoredMessage | None:
        """Return this peer's message to a neighbour in a round, if it is stored."""
        with self._snapshot():
            row = self._one(
                "SELECT digest, missed, correction FROM outbox WHERE turn = ? AND receiver = ?",
                round_index,
                receiver,
            )
            if row is None:
                return None
            digest, missed, correction = row
            return StoredMessage(
                self._body(digest), digest, missed, b"" if correction is None else self._body(correction)
            )

    def group(self, round_index: int, receiver: str) -> str:
        """Return the digest of the group that a masked message was made for; empty: it was not masked."""
        row = self._one("SELECT digest FROM groups WHERE turn = ? AND receiver = ?", round_index, receiver)
        return "" if row is None else str(row[0])

    def oldest(self) -> int:
        """Return the first round whose messages are still stored; 0: none."""
        return self._one("SELECT MIN(turn) FROM outbox")[0] or 0

    def history(self, after: int = -1) -> list[dict[str, Any]]:
        """Return every round after one: closing time, who was heard, who was missing, and figures where evaluated."""
        rounds = self._records(
            f"SELECT turn AS round, at, heard, missing, {', '.join(FIGURES)} FROM rounds LEFT JOIN judged USING (turn) "
            "WHERE turn > ? ORDER BY turn",
            after,
        )
        return [entry | {name: json.loads(entry[name]) for name in ("heard", "missing")} for entry in rounds]

    def left_out(self) -> dict[int, list[str]]:
        """Return, by round, the neighbours that had closed it before this peer's message was ready."""
        names: dict[int, list[str]] = {}
        for round_index, name in self._all("SELECT turn, name FROM left_out ORDER BY turn, name"):
            names.setdefault(round_index, []).append(name)
        return names

    def reference(self) -> np.ndarray | None:
        """Return S [C, K] of the model some rounds before the last, which the last one is compared with."""
        row = self._one("SELECT shape, body FROM reference ORDER BY turn DESC LIMIT 1")
        return None if row is None else np.frombuffer(row[1], dtype="<f8").reshape(json.loads(row[0]))

    # --- events ----------------------------------------------------------------------------------------

    def note(
        self,
        refused: Mapping[tuple[str, str], tuple[int, str]],
        neighbours: Mapping[str, tuple[float | None, int, str]],
    ) -> None:
        """Store refusals since the last call, by sender and reason, and the state of each neighbour."""
        with self._transaction():
            self._db.executemany(
                "INSERT INTO refusals VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "count = count + excluded.count, last = excluded.last, detail = excluded.detail",
                [(*key, count, time.time(), detail) for key, (count, detail) in refused.items()],
            )
            self._db.executemany(
                "INSERT INTO neighbours VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "seen = COALESCE(excluded.seen, seen), done = excluded.done, note = excluded.note",
                [(name, *state) for name, state in neighbours.items()],
            )
            self._write_mark()
            marked = self._logged
        self._marked = marked

    def refusals(self) -> list[dict[str, Any]]:
        return self._records("SELECT who, reason, count, last, detail FROM refusals ORDER BY last DESC")

    def neighbours(self) -> dict[str, dict[str, Any]]:
        states = self._records("SELECT name, seen, done, note FROM neighbours ORDER BY name")
        return {entry.pop("name"): entry for entry in states}

    # --- statements, one thread at a time ----------------------------------------------------------------

    def _all(self, statement: str, *values: Any) -> list[Any]:
        """Run a statement; return its rows."""
        with self._lock:
            return self._db.execute(statement, values).fetchall()

    def _one(self, statement: str, *values: Any) -> Any:
        """Run a statement; return its first row, None where there is none."""
        return next(iter(self._all(statement, *values)), None)

    def _records(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        """Run a statement; return its rows as dictionaries by column."""
        with self._lock:
            cursor = self._db.execute(statement, values)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Read from one state of the file: a running peer could otherwise delete data between two reads."""
        with self._lock, migrations.transaction(self._db, "DEFERRED"):
            yield

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Write all or nothing; no other thread writes meanwhile."""
        with self._lock:
            before = set(self._stored_digests)
            try:
                with migrations.transaction(self._db):
                    yield
            except BaseException:
                self._stored_digests = before
                raise

    # --- arrays ----------------------------------------------------------------------------------------

    def _put(self, array: np.ndarray, stored_arrays: StoredArrays) -> bytes:
        """Store an array unless it is there; return its digest, which is also that of its bytes on the wire."""
        location = array.__array_interface__["data"][0], array.nbytes
        for arrays in (stored_arrays, self._digests):
            if location in arrays:  # that array is still referenced, so this is the same memory
                stored_arrays[location] = arrays[location]
                return arrays[location][1]
        body = np.ascontiguousarray(array, dtype="<u8" if array.dtype == np.uint64 else "<f8")
        digest = hashlib.sha256(body.data).digest()
        self._insert(digest, body)
        if body is array:
            stored_arrays[location] = array, digest
        return digest

    def _insert(self, digest: bytes, body: np.ndarray) -> None:
        """Store an array of this digest unless it is there."""
        if digest not in self._stored_digests:
            self._all("INSERT INTO arrays VALUES (?, ?)", digest, body.data)
            self._stored_digests.add(digest)

    def _body(self, digest: bytes) -> bytes:
        row = self._one("SELECT body FROM arrays WHERE digest = ?", digest)
        if row is None:
            raise PeerError(f"{self.path}: an array is missing; the file is damaged")
        if hashlib.sha256(row[0]).digest() != digest:
            raise PeerError(f"{self.path}: an array does not match its digest; the file is damaged")
        return bytes(row[0])

    def _described(self, state: Any, stored_arrays: StoredArrays) -> Any:
        """Return a state as nested lists, with the digest and shape of each array as text."""
        if isinstance(state, tuple | list):
            return [self._described(item, stored_arrays) for item in state]
        array = np.asarray(state)
        return f"{self._put(array, stored_arrays).hex()} {list(array.shape)}"

    def _restored(self, described: Any) -> Any:
        if isinstance(described, list):
            return [self._restored(item) for item in described]
        digest, _, shape = described.partition(" ")
        body = self._body(bytes.fromhex(digest))
        return np.frombuffer(body, dtype="<f8").reshape(json.loads(shape)).copy()

    def _forget(
        self, round_index: int, whole: int, of_state: frozenset[bytes], in_messages: Counter[bytes]
    ) -> None:
        """Delete arrays that only the previous state and old messages used, and take these off `in_messages`.

        whole  the last round whose state is stored whole, that of the arrays `of_state`
        """
        dropped, expired = frozenset[bytes](), round_index - KEPT
        if whole == round_index:
            last, dropped = self._of_state
            self._all("UPDATE rounds SET state = '[]' WHERE turn >= ? AND turn < ?", last, round_index)
            followed = self._of_messages("SELECT digest, correction FROM received")
            in_messages.subtract(followed)
            dropped = dropped.union(followed)
            self._all("DELETE FROM received")
        if expired > 0:  # no message is of round 0
            old = self._of_messages("SELECT digest, correction FROM outbox WHERE turn <= ?", expired)
            in_messages.subtract(old)
            dropped = dropped.union(old)
            self._all("DELETE FROM outbox WHERE turn <= ?", expired)
            self._all("DELETE FROM groups WHERE turn <= ?", expired)
        unused = [digest for digest in dropped - of_state if in_messages[digest] <= 0]
        self._db.executemany("DELETE FROM arrays WHERE digest = ?", [(digest,) for digest in unused])
        self._stored_digests.difference_update(unused)
        for digest in unused:
            del in_messages[digest]

    def _of_messages(self, statement: str, *values: Any) -> list[bytes]:
        """Return the digests of some messages and of what is beside them, once for each use."""
        return [digest for row in self._all(statement, *values) for digest in row if digest is not None]


def _digests(described: Any) -> Iterator[bytes]:
    if isinstance(described, list):
        for item in described:
            yield from _digests(item)
    else:
        yield bytes.fromhex(described.partition(" ")[0])
