"""A peer's state on disk: everything of a round in one SQLite transaction.

After kill -9 or a power cut the peer goes on from its last round. Arrays lie by their digest, so what did not change
since the round before is not written again; messages stay for neighbours that were away.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from peerbayes.peers.audit import Position
from peerbayes.peers.errors import PeerError
from peerbayes.peers.releases import Release

T = TypeVar("T")
Seen = dict[
    tuple[int, int], tuple[np.ndarray, bytes]
]  # where an array lies and its size: the array and its digest

FORMAT = 1

# Rounds whose messages are kept for neighbours that were away.
KEPT = 256

TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS arrays (digest BLOB PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS sums (phase TEXT, sender TEXT, body BLOB NOT NULL, PRIMARY KEY (phase, sender)) STRICT;
CREATE TABLE IF NOT EXISTS rounds (
    turn INTEGER PRIMARY KEY, at REAL NOT NULL, state TEXT NOT NULL, digest BLOB NOT NULL,
    heard TEXT NOT NULL, missing TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS judged (
    turn INTEGER PRIMARY KEY, train_error REAL, soft_error REAL, test_error REAL, disagreement REAL
) STRICT;
CREATE TABLE IF NOT EXISTS left_out (turn INTEGER, name TEXT, PRIMARY KEY (turn, name)) STRICT;
CREATE TABLE IF NOT EXISTS reference (turn INTEGER PRIMARY KEY, shape TEXT NOT NULL, body BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS outbox (
    turn INTEGER, receiver TEXT, digest BLOB NOT NULL, PRIMARY KEY (turn, receiver)
) STRICT;
CREATE TABLE IF NOT EXISTS groups (
    turn INTEGER, receiver TEXT, digest TEXT NOT NULL, PRIMARY KEY (turn, receiver)
) STRICT;
CREATE TABLE IF NOT EXISTS releases (
    name TEXT PRIMARY KEY, at REAL NOT NULL, cost REAL NOT NULL, digest BLOB NOT NULL, body BLOB
) STRICT;
CREATE TABLE IF NOT EXISTS neighbours (name TEXT PRIMARY KEY, seen REAL, done INTEGER, note TEXT) STRICT;
CREATE TABLE IF NOT EXISTS refusals (
    who TEXT, reason TEXT, count INTEGER NOT NULL, last REAL NOT NULL, detail TEXT, PRIMARY KEY (who, reason)
) STRICT;
"""


# What is told of a peer's model after a round.
FIGURES = ("train_error", "soft_error", "test_error", "disagreement")


class NoState(PeerError):
    """A peer that has not run yet."""


def alone(method: Callable[..., T]) -> Callable[..., T]:
    """One thread at a time, so that nobody writes into another's transaction."""

    @wraps(method)
    def locked(self: Store, *arguments: Any, **named: Any) -> T:
        with self._lock:
            return method(self, *arguments, **named)

    return locked


class Store:
    """One SQLite file. Only one process writes it."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self.path = path
        self._lock = threading.RLock()  # one connection, several threads
        if readonly and not path.exists():
            raise NoState(f"there is no state yet: {path} does not exist; the peer has not run")
        self._known: set[bytes] = set()
        self._digests: Seen = {}  # of the last state
        self._logged: Position | None = None
        try:
            if (
                not readonly and not path.exists()
            ):  # it holds this peer's messages, and a key where sums are secure
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            uri = f"{path.resolve().as_uri()}?mode={'ro' if readonly else 'rwc'}"
            self._db = sqlite3.connect(
                uri, uri=True, isolation_level=None, check_same_thread=False, timeout=10
            )
            try:
                self._prepare(readonly)
            except BaseException:
                self._db.close()  # else it holds locks until somebody collects it
                raise
        except sqlite3.DatabaseError as error:
            raise PeerError(f"{path} cannot be used as a peer's state: {error}") from error

    def _prepare(self, readonly: bool) -> None:
        """Make the tables, or look whether they are there; refuse another format."""
        path = self.path
        if not readonly:
            self._db.execute("PRAGMA page_size = 16384")  # arrays are large
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(
                f"BEGIN; {TABLES} INSERT OR IGNORE INTO meta VALUES ('format', '{FORMAT}'); COMMIT"
            )
        elif not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            raise NoState(f"there is no state yet: {path} is just being made")
        if self.told("format") != str(FORMAT):
            raise PeerError(
                f"{path} has format {self.told('format')}; this peerbayes reads {FORMAT}. Update it"
            )
        if not readonly:
            self._known.update(digest for (digest,) in self._db.execute("SELECT digest FROM arrays"))

    @alone
    def close(self) -> None:
        """Once whoever writes is done."""
        self._db.close()

    @alone
    def flush(self) -> None:
        """Bring into the file what its write-ahead log holds: it can then be moved, whoever else reads it."""
        busy, _, _ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise PeerError(f"{self.path} is being read by another process; try again in a moment")

    # --- single facts ----------------------------------------------------------------------------------

    @alone
    def told(self, key: str) -> str | None:
        found = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if found is None else str(found[0])

    @alone
    def keep(self, key: str, value: str) -> None:
        self._db.execute(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (key, value)
        )

    @alone
    def secret(self, key: str, make: Callable[[], bytes]) -> bytes:
        """A secret of this state: made when it is first asked for, and never again while the state lasts."""
        held = self.told(key)
        if held is None:
            for name in (self.path.name, f"{self.path.name}-wal", f"{self.path.name}-shm"):
                if (file := self.path.with_name(name)).exists():
                    file.chmod(0o600)
            self.keep(key, held := make().hex())
        return bytes.fromhex(held)

    @alone
    def claim(self, facts: Mapping[str, tuple[str, str]]) -> None:
        """What a run depends on must not change while it lasts: key -> (value, what it is called)."""
        for key, (value, what) in facts.items():
            before = self.told(key)
            if before is not None and before != value:
                raise PeerError(
                    f"{self.path} belongs to a run with {what}. Go back to it, or give up that run here with "
                    "`peerbayes node leave` and start again"
                )
        with self._transaction():
            for key, (value, _) in facts.items():
                self.keep(key, value)

    # --- which state this is, and how far it and its audit log go ----------------------------------------

    def identity(self) -> str:
        """This state's own name, by which lines of the audit log are known to be of it."""
        return self.secret("state", lambda: os.urandom(8)).hex()

    @alone
    def begin(self, before: int) -> int:
        """Count a start of this folder's peer, of which so many are known; on disk before anybody hears of it."""
        start = max(int(self.told("starts") or 0), before) + 1
        self.keep("starts", str(start))
        return start

    @alone
    def round(self) -> int | None:
        """The last round; None: there is none yet."""
        found = self._db.execute("SELECT MAX(turn) FROM rounds").fetchone()
        return None if found[0] is None else int(found[0])

    @alone
    def stored(self) -> int:
        """How many rounds and releases there are: what a state that goes on never has fewer of."""
        counted = self._db.execute("SELECT (SELECT COUNT(*) FROM rounds) + (SELECT COUNT(*) FROM releases)")
        return int(counted.fetchone()[0])

    @alone
    def messages(self) -> dict[tuple[int, str], bytes]:
        """Digests of all messages that are kept, by round and receiver."""
        rows = self._db.execute("SELECT turn, receiver, digest FROM outbox")
        return {(turn, receiver): digest for turn, receiver, digest in rows}

    def mark(self, logged: Position) -> None:
        """Remember how far the audit log goes on disk; written with the next round, or the next notes."""
        self._logged = logged

    def _write_mark(self) -> None:
        if (logged := self._logged) is not None:
            self.keep("logged", f"{logged.lines} {logged.chain}")

    def logged(self) -> Position | None:
        """How far the audit log goes at least."""
        lines, _, chain = (self.told("logged") or "").partition(" ")
        return Position(int(lines), chain) if lines else None

    # --- the agreement ---------------------------------------------------------------------------------

    @alone
    def add_sum(self, phase: str, sender: str, body: bytes) -> None:
        self._db.execute("INSERT OR IGNORE INTO sums VALUES (?, ?, ?)", (phase, sender, body))

    @alone
    def forget_agreement(self) -> None:
        """The peers did not agree: the next start begins anew, with whatever rows there are then.

        With the same rows, once something was told of them with noise: it is told again, and not bought anew.
        """
        with self._transaction():
            self._db.execute("DELETE FROM sums")
            gone = ("mask keys",) if self.releases() else ("run", "data", "mask keys")
            self._db.executemany("DELETE FROM meta WHERE key = ?", [(key,) for key in gone])

    @alone
    def sums(self, phase: str) -> dict[str, bytes]:
        return dict(self._db.execute("SELECT sender, body FROM sums WHERE phase = ?", (phase,)))

    # --- what was told of rows with noise --------------------------------------------------------------

    @alone
    def bought(self, name: str, cost: float, make: Callable[[], np.ndarray]) -> np.ndarray:
        """What was released under a name: int64 numbers, made and stored the first time, the same ever after."""
        found = self._db.execute("SELECT digest, body FROM releases WHERE name = ?", (name,)).fetchone()
        if found is not None:
            if hashlib.sha256(found[1]).digest() != found[0]:
                raise PeerError(
                    f"{self.path}: the release {name} does not match its digest; the file is damaged"
                )
            shape, _, body = bytes(found[1]).partition(b"\n")
            return np.frombuffer(body, dtype="<i8").reshape(json.loads(shape))
        with self._transaction():
            made = make()
            body = json.dumps(made.shape).encode() + b"\n" + np.ascontiguousarray(made, dtype="<i8").tobytes()
            self._add_release(name, cost, body, body)
        return made

    def _add_release(self, name: str, cost: float, content: bytes, body: bytes | None) -> None:
        """An entry of the ledger; a name is there once, or the transaction fails."""
        digest = hashlib.sha256(content).digest()
        self._db.execute(
            "INSERT INTO releases VALUES (?, ?, ?, ?, ?)", (name, time.time(), cost, digest, body)
        )

    @alone
    def releases(self) -> list[dict[str, Any]]:
        """The ledger: name, when, μ² and digest of everything that was told of rows with noise."""
        if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'releases'").fetchone():
            return []  # an earlier version's file
        rows = self._db.execute("SELECT name, at, cost, digest FROM releases ORDER BY at, rowid")
        return [dict(zip(("name", "at", "cost", "digest"), row, strict=True)) for row in rows]

    @alone
    def release(self, name: str) -> tuple[float, bytes]:
        """The cost and the digest of one entry of the ledger."""
        cost, digest = self._db.execute(
            "SELECT cost, digest FROM releases WHERE name = ?", (name,)
        ).fetchone()
        return cost, digest

    # --- rounds ----------------------------------------------------------------------------------------

    @alone
    def add_round(
        self,
        turn: int,
        state: Any,
        outgoing: Mapping[str, np.ndarray],
        heard: Iterable[str],
        missing: Iterable[str],
        figures: Mapping[str, float | None] | None = None,
        groups: Mapping[str, str] | None = None,
        release: Release | None = None,
        left_out: Iterable[str] = (),
        reference: np.ndarray | None = None,
    ) -> dict[str, bytes]:
        """The state after a round, how its model does and the messages of the next, all or nothing; their digests.

        A round is stored once; so is the group that a masked message was made for, by receiver. So is what it cost: a
        message made of a release is never there without its entry in the ledger. `left_out` are neighbours that closed
        this round without this peer, `reference` is S of a model that a later one is compared with.
        """
        with self._transaction():
            if release is not None:
                values = np.ascontiguousarray(release.values, dtype="<f8").tobytes()
                self._add_release(release.name, release.cost, values, None)
            seen: Seen = {}
            described = json.dumps(self._described(state, seen))
            digest = hashlib.sha256(described.encode()).digest()
            told = json.dumps(sorted(heard)), json.dumps(sorted(missing))
            self._db.execute(
                "INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?)", (turn, time.time(), described, digest, *told)
            )
            if figures:
                self._db.execute(
                    "INSERT INTO judged VALUES (?, ?, ?, ?, ?)",
                    (turn, *(figures.get(name) for name in FIGURES)),
                )
            for name in left_out:
                self._db.execute("INSERT INTO left_out VALUES (?, ?)", (turn, name))
            if reference is not None:
                body = np.ascontiguousarray(reference, dtype="<f8").tobytes()
                self._db.execute(
                    "INSERT INTO reference VALUES (?, ?, ?)", (turn, json.dumps(reference.shape), body)
                )
            digests = {receiver: self._put(message, seen) for receiver, message in outgoing.items()}
            for receiver, of_message in digests.items():
                self._db.execute("INSERT INTO outbox VALUES (?, ?, ?)", (turn + 1, receiver, of_message))
            for receiver, group in (groups or {}).items():
                self._db.execute("INSERT INTO groups VALUES (?, ?, ?)", (turn + 1, receiver, group))
            self._forget(turn)
            self._write_mark()
        self._digests = seen
        return digests

    @alone
    def last(self) -> tuple[int, Any] | None:
        """The last round and the state after it, as nested lists of arrays."""
        with self._moment():
            found = self._db.execute(
                "SELECT turn, state, digest FROM rounds ORDER BY turn DESC LIMIT 1"
            ).fetchone()
            if found is None:
                return None
            turn, described, digest = found
            if hashlib.sha256(described.encode()).digest() != digest:
                raise PeerError(
                    f"{self.path}: the state of round {turn} does not match its digest; the file is damaged"
                )
            return int(turn), self._restored(json.loads(described))

    @alone
    def message(self, turn: int, receiver: str) -> tuple[bytes, bytes] | None:
        """What this peer said or will say to a neighbour in a round, if it has got that far: bytes and sha256."""
        with self._moment():
            found = self._db.execute(
                "SELECT digest FROM outbox WHERE turn = ? AND receiver = ?", (turn, receiver)
            ).fetchone()
            return None if found is None else (self._body(found[0]), found[0])

    @alone
    def group(self, turn: int, receiver: str) -> str:
        """The digest of the group that a masked message was made for; empty: it was not masked."""
        found = self._db.execute(
            "SELECT digest FROM groups WHERE turn = ? AND receiver = ?", (turn, receiver)
        ).fetchone()
        return "" if found is None else str(found[0])

    @alone
    def oldest(self) -> int:
        """The first round whose messages are still here; 0: none."""
        found = self._db.execute("SELECT MIN(turn) FROM outbox").fetchone()
        return int(found[0] or 0)

    @alone
    def history(self, after: int = -1) -> list[dict[str, Any]]:
        """Every round after one: when it closed, who was heard, who was not, how the model did where it was judged."""
        known = self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'judged'").fetchone()
        of_model = ", ".join(FIGURES if known else ["NULL"] * len(FIGURES))
        join = "LEFT JOIN judged USING (turn)" if known else ""  # an earlier version's file has no such table
        rows = self._db.execute(
            f"SELECT turn, at, heard, missing, {of_model} FROM rounds {join} WHERE turn > ? ORDER BY turn",
            (after,),
        )
        return [
            {"round": turn, "at": at, "heard": json.loads(heard), "missing": json.loads(missing)}
            | dict(zip(FIGURES, figures, strict=True))
            for turn, at, heard, missing, *figures in rows
        ]

    @alone
    def left_out(self) -> dict[int, list[str]]:
        """Return, by round, the neighbours that had closed it before this peer had anything to say in it."""
        if not self._has("left_out"):  # an earlier version's file
            return {}
        names: dict[int, list[str]] = {}
        for turn, name in self._db.execute("SELECT turn, name FROM left_out ORDER BY turn, name"):
            names.setdefault(int(turn), []).append(name)
        return names

    @alone
    def reference(self) -> np.ndarray | None:
        """Return S [C, K] of the model some rounds before the last, which the last one is compared with."""
        if not self._has("reference"):
            return None
        row = self._db.execute("SELECT shape, body FROM reference ORDER BY turn DESC LIMIT 1").fetchone()
        return None if row is None else np.frombuffer(row[1], dtype="<f8").reshape(json.loads(row[0]))

    def _has(self, table: str) -> bool:
        return bool(self._db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone())

    # --- what happens ----------------------------------------------------------------------------------

    @alone
    def note(
        self,
        refused: Mapping[tuple[str, str], tuple[int, str]],
        neighbours: Mapping[str, tuple[float | None, int, str]],
    ) -> None:
        """What happened since the last time: refusals by who and reason, and how each neighbour is."""
        with self._transaction():
            for (who, reason), (count, detail) in refused.items():
                self._db.execute(
                    "INSERT INTO refusals VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                    "count = count + excluded.count, last = excluded.last, detail = excluded.detail",
                    (who, reason, count, time.time(), detail),
                )
            for name, (seen, done, note) in neighbours.items():
                self._db.execute(
                    "INSERT INTO neighbours VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                    "seen = COALESCE(excluded.seen, seen), done = excluded.done, note = excluded.note",
                    (name, seen, done, note),
                )
            self._write_mark()

    @alone
    def refusals(self) -> list[dict[str, Any]]:
        rows = self._db.execute("SELECT who, reason, count, last, detail FROM refusals ORDER BY last DESC")
        return [dict(zip(("who", "reason", "count", "last", "detail"), row, strict=True)) for row in rows]

    @alone
    def neighbours(self) -> dict[str, dict[str, Any]]:
        rows = self._db.execute("SELECT name, seen, done, note FROM neighbours ORDER BY name")
        return {name: {"seen": seen, "done": done, "note": note} for name, seen, done, note in rows}

    # --- arrays ----------------------------------------------------------------------------------------

    @contextmanager
    def _moment(self) -> Iterator[None]:
        """Read several times from one moment: a peer that runs could take away in between what the second looks for."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("COMMIT")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        before = set(self._known)
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # where the disk is full, SQLite may have ended it by itself
                self._db.execute("ROLLBACK")
            self._known = before
            raise

    def _put(self, array: np.ndarray, seen: Seen) -> bytes:
        """Store an array, unless it is there; its digest, which is also that of its bytes on the wire."""
        where = array.__array_interface__["data"][0], array.nbytes
        for known in (seen, self._digests):
            if where in known:  # the array there is still held, so this is the same memory
                seen[where] = known[where]
                return known[where][1]
        body = np.ascontiguousarray(array, dtype="<u8" if array.dtype == np.uint64 else "<f8")
        digest = hashlib.sha256(body.data).digest()
        if digest not in self._known:
            self._db.execute("INSERT INTO arrays VALUES (?, ?)", (digest, body.data))
            self._known.add(digest)
        if body is array:
            seen[where] = array, digest
        return digest

    def _body(self, digest: bytes) -> bytes:
        found = self._db.execute("SELECT body FROM arrays WHERE digest = ?", (digest,)).fetchone()
        if found is None:
            raise PeerError(f"{self.path}: an array is missing; the file is damaged")
        if hashlib.sha256(found[0]).digest() != digest:
            raise PeerError(f"{self.path}: an array does not match its digest; the file is damaged")
        return bytes(found[0])

    def _described(self, state: Any, seen: Seen) -> Any:
        """A state as nested lists, with a text for each array: its digest and its shape."""
        if isinstance(state, tuple | list):
            return [self._described(part, seen) for part in state]
        array = np.asarray(state)
        return f"{self._put(array, seen).hex()} {json.dumps(array.shape)}"

    def _restored(self, described: Any) -> Any:
        if isinstance(described, list):
            return [self._restored(part) for part in described]
        digest, _, shape = described.partition(" ")
        body = self._body(bytes.fromhex(digest))
        return np.frombuffer(body, dtype="<f8").reshape(json.loads(shape)).copy()

    def _forget(self, turn: int) -> None:
        """Let go of what only the state before and messages of long ago held."""
        now = self._db.execute("SELECT state FROM rounds WHERE turn = ?", (turn,)).fetchone()
        before = self._db.execute("SELECT state FROM rounds WHERE turn = ?", (turn - 1,)).fetchone()
        old = self._db.execute(
            "SELECT DISTINCT digest FROM outbox WHERE turn <= ?", (turn - KEPT,)
        ).fetchall()
        gone = {digest for (digest,) in old}
        if before is not None:
            gone.update(_digests(json.loads(before[0])))
            self._db.execute("UPDATE rounds SET state = '[]' WHERE turn = ?", (turn - 1,))
        self._db.execute("DELETE FROM outbox WHERE turn <= ?", (turn - KEPT,))
        self._db.execute("DELETE FROM groups WHERE turn <= ?", (turn - KEPT,))
        for digest in gone - set(_digests(json.loads(now[0]))):
            if (
                self._db.execute("SELECT 1 FROM outbox WHERE digest = ? LIMIT 1", (digest,)).fetchone()
                is None
            ):
                self._db.execute("DELETE FROM arrays WHERE digest = ?", (digest,))
                self._known.discard(digest)


def _digests(described: Any) -> Iterator[bytes]:
    if isinstance(described, list):
        for part in described:
            yield from _digests(part)
    else:
        yield bytes.fromhex(described.partition(" ")[0])
