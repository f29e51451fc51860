"""The schema of a peer's state, and the steps to it from older ones.

The version of a file is SQLite's `user_version`: the number of steps that were applied to it. A file that was made
before versions had numbers has 0, and gets what it lacks with the first step. All steps that a file needs are applied
in one transaction, after a copy of it was kept beside it: whatever happens meanwhile, the file has its old schema or
the new one.

To change the schema, append a step; never change one that was released. Steps only use SQL, so that they do the same
whatever the rest of the program has become.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from peerbayes.data import files
from peerbayes.errors import NeedsPerson

Step = Callable[[sqlite3.Connection], None]

FORMAT = 1  # in the table `meta`, by which programs from before the numbers know a state

TABLES = (
    "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
    "CREATE TABLE IF NOT EXISTS arrays (digest BLOB PRIMARY KEY, body BLOB NOT NULL) STRICT",
    """CREATE TABLE IF NOT EXISTS sums (
        phase TEXT, sender TEXT, body BLOB NOT NULL, PRIMARY KEY (phase, sender)
    ) STRICT""",
    """CREATE TABLE IF NOT EXISTS rounds (
        turn INTEGER PRIMARY KEY, at REAL NOT NULL, state TEXT NOT NULL, digest BLOB NOT NULL,
        heard TEXT NOT NULL, missing TEXT NOT NULL
    ) STRICT""",
    """CREATE TABLE IF NOT EXISTS judged (
        turn INTEGER PRIMARY KEY, train_error REAL, soft_error REAL, test_error REAL, disagreement REAL
    ) STRICT""",
    "CREATE TABLE IF NOT EXISTS left_out (turn INTEGER, name TEXT, PRIMARY KEY (turn, name)) STRICT",
    """CREATE TABLE IF NOT EXISTS reference (
        turn INTEGER PRIMARY KEY, shape TEXT NOT NULL, body BLOB NOT NULL
    ) STRICT""",
    """CREATE TABLE IF NOT EXISTS outbox (
        turn INTEGER, receiver TEXT, digest BLOB NOT NULL, PRIMARY KEY (turn, receiver)
    ) STRICT""",
    """CREATE TABLE IF NOT EXISTS groups (
        turn INTEGER, receiver TEXT, digest TEXT NOT NULL, PRIMARY KEY (turn, receiver)
    ) STRICT""",
    """CREATE TABLE IF NOT EXISTS releases (
        name TEXT PRIMARY KEY, at REAL NOT NULL, cost REAL NOT NULL, digest BLOB NOT NULL, body BLOB
    ) STRICT""",
    "CREATE TABLE IF NOT EXISTS neighbours (name TEXT PRIMARY KEY, seen REAL, done INTEGER, note TEXT) STRICT",
    """CREATE TABLE IF NOT EXISTS refusals (
        who TEXT, reason TEXT, count INTEGER NOT NULL, last REAL NOT NULL, detail TEXT, PRIMARY KEY (who, reason)
    ) STRICT""",
)


def _first_tables(db: sqlite3.Connection) -> None:
    """Create the tables, or those that a file from before the numbers lacks."""
    for statement in TABLES:
        db.execute(statement)
    db.execute("INSERT OR IGNORE INTO meta VALUES ('format', ?)", (str(FORMAT),))


def _corrections(db: sqlite3.Connection) -> None:
    """Add what a message has beside it: rounds since its sender missed the receiver, and the sender's correction."""
    db.execute("ALTER TABLE outbox ADD COLUMN missed INTEGER NOT NULL DEFAULT 0")
    db.execute("ALTER TABLE outbox ADD COLUMN correction BLOB")


def _received(db: sqlite3.Connection) -> None:
    """Add the messages that a state follows from, where it is not stored whole after each round."""
    db.execute("""CREATE TABLE received (
        turn INTEGER, sender TEXT, digest BLOB NOT NULL, missed INTEGER NOT NULL, correction BLOB,
        PRIMARY KEY (turn, sender)
    ) STRICT, WITHOUT ROWID""")


STEPS: tuple[Step, ...] = (_first_tables, _corrections, _received)  # step n leads from version n to n + 1


def version_of(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def is_empty(db: sqlite3.Connection) -> bool:
    """Return whether a file is no state yet: new, or just being made."""
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is None


def refuse_newer(db: sqlite3.Connection, path: Path) -> None:
    """Refuse a state that a newer program has written: it may mean what this one does not know."""
    if (version := version_of(db)) > len(STEPS):
        raise NeedsPerson(
            f"{path} has schema version {version}, of a newer peerbayes; this one knows versions up to {len(STEPS)}. "
            "Update it: pip install --upgrade peerbayes"
        )
    if is_empty(db):
        return
    row = db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
    if row is None or row[0] != str(FORMAT):
        raise NeedsPerson(
            f"{path} has format {None if row is None else row[0]}; this peerbayes reads {FORMAT}. Update it: "
            "pip install --upgrade peerbayes"
        )


@contextlib.contextmanager
def transaction(db: sqlite3.Connection, mode: str = "IMMEDIATE") -> Iterator[None]:
    """Do all that is inside, or nothing of it."""
    db.execute(f"BEGIN {mode}")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # with a full disk, SQLite may have ended it by itself
            db.execute("ROLLBACK")
        raise


def migrate(db: sqlite3.Connection) -> None:
    """Apply all steps that a file lacks, or none of them."""
    with transaction(db):
        for step in STEPS[version_of(db) :]:
            step(db)
        db.execute(f"PRAGMA user_version = {len(STEPS)}")


def upgrade(db: sqlite3.Connection, path: Path) -> None:
    """Bring a file that was opened for writing to this program's schema, after keeping a copy of an older state."""
    if version_of(db) == len(STEPS):
        return
    if not is_empty(db):
        _keep_copy(db, path)
    migrate(db)


def in_memory(db: sqlite3.Connection) -> sqlite3.Connection:
    """Return a state of this program's schema for reading: the file itself, or a copy where the file is older.

    So states are shown and compared before they are changed, and those of runs that were left never are.
    """
    if version_of(db) == len(STEPS):
        return db
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    db.backup(copy)
    db.close()
    migrate(copy)
    return copy


def copy_path(path: Path) -> Path:
    """Return where the copy of a state before its migration to this schema is kept."""
    return path.with_name(f"{path.stem}.before-{len(STEPS)}{path.suffix}")


def _keep_copy(db: sqlite3.Connection, path: Path) -> None:
    """Write a copy of the file beside it, complete and on disk or not at all; it is its owner's alone."""
    target = copy_path(path)
    unfinished = target.with_name(f"{target.name}.part")
    unfinished.unlink(missing_ok=True)  # of a process that was killed
    os.close(os.open(unfinished, files.NEW_FILE, 0o600))
    with contextlib.closing(sqlite3.connect(unfinished)) as copy:
        db.backup(copy)
    files.sync(unfinished)
    unfinished.replace(target)
    files.sync(target.parent)
