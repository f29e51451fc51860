"""A state of an older program opens in a newer one with all that it holds; whatever happens, nothing is lost."""

import contextlib
import hashlib
import inspect
import json
import os
import signal
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("cryptography")
from peerbayes.errors import NeedsPerson
from peerbayes.peer.state import migrations
from peerbayes.peer.state.store import NoState, PeerState, RoundRecord, Store
from shared.commands import peerbayes
from shared.real_calls import LINE, made_network

# As the program before the numbers made it; never to be changed.
BEFORE = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE arrays (digest BLOB PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE sums (phase TEXT, sender TEXT, body BLOB NOT NULL, PRIMARY KEY (phase, sender)) STRICT;
CREATE TABLE rounds (
    turn INTEGER PRIMARY KEY, at REAL NOT NULL, state TEXT NOT NULL, digest BLOB NOT NULL,
    heard TEXT NOT NULL, missing TEXT NOT NULL
) STRICT;
CREATE TABLE judged (
    turn INTEGER PRIMARY KEY, train_error REAL, soft_error REAL, test_error REAL, disagreement REAL
) STRICT;
CREATE TABLE left_out (turn INTEGER, name TEXT, PRIMARY KEY (turn, name)) STRICT;
CREATE TABLE reference (turn INTEGER PRIMARY KEY, shape TEXT NOT NULL, body BLOB NOT NULL) STRICT;
CREATE TABLE outbox (turn INTEGER, receiver TEXT, digest BLOB NOT NULL, PRIMARY KEY (turn, receiver)) STRICT;
CREATE TABLE groups (turn INTEGER, receiver TEXT, digest TEXT NOT NULL, PRIMARY KEY (turn, receiver)) STRICT;
CREATE TABLE releases (
    name TEXT PRIMARY KEY, at REAL NOT NULL, cost REAL NOT NULL, digest BLOB NOT NULL, body BLOB
) STRICT;
CREATE TABLE neighbours (name TEXT PRIMARY KEY, seen REAL, done INTEGER, note TEXT) STRICT;
CREATE TABLE refusals (
    who TEXT, reason TEXT, count INTEGER NOT NULL, last REAL NOT NULL, detail TEXT, PRIMARY KEY (who, reason)
) STRICT;
INSERT INTO meta VALUES ('format', '1'), ('state', '0011223344556677'), ('starts', '2'), ('mask key', '6b6579');
INSERT INTO rounds VALUES (0, 1.5, '[]', x'00', '[]', '[]');
INSERT INTO judged VALUES (1, 0.25, NULL, 0.5, NULL);
INSERT INTO left_out VALUES (1, 'c');
INSERT INTO sums VALUES ('columns', 'b', x'aa');
INSERT INTO groups VALUES (2, 'b', 'g');
INSERT INTO releases VALUES ('round 1', 2.0, 0.125, x'dd', NULL);
INSERT INTO neighbours VALUES ('b', 3.0, 1, 'here');
INSERT INTO refusals VALUES ('b', 'wrong round', 3, 4.0, 'detail');
"""
ARRAY = np.arange(6.0).reshape(2, 3)


@pytest.fixture
def path(tmp_path):
    """A state from before the numbers, after one round."""
    path = tmp_path / "state.sqlite"
    digest = hashlib.sha256(ARRAY.tobytes()).digest()
    described = json.dumps([f"{digest.hex()} [2, 3]"])
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(BEFORE)
        db.execute("INSERT INTO arrays VALUES (?, ?)", (digest, ARRAY.tobytes()))
        db.execute("INSERT INTO outbox VALUES (2, 'b', ?)", (digest,))
        state = 1, 2.5, described, hashlib.sha256(described.encode()).digest(), '["b"]', '["c"]'
        db.execute("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?)", state)
        db.commit()
    return path


def extend_the_ledger(db):
    """A step that the methods of an older program could not read on with."""
    db.execute("ALTER TABLE releases ADD COLUMN run TEXT NOT NULL DEFAULT 'this'")
    db.execute("CREATE TABLE extra (key TEXT PRIMARY KEY) STRICT")
    db.execute("INSERT INTO extra SELECT name FROM releases")


@pytest.fixture
def one_more(monkeypatch):
    """The program with one more step."""
    monkeypatch.setattr(migrations, "STEPS", (*migrations.STEPS, extend_the_ledger))


def version(path):
    with contextlib.closing(sqlite3.connect(path)) as db:
        return migrations.version_of(db)


def complete(store):
    """Check that a store has all that the state from before had."""
    assert store.identity() == "0011223344556677" and store.secret("mask key", lambda: b"new") == b"key"
    assert store.value("starts") == "2" and store.round() == 1 and store.stored() == 3
    last, (array,) = store.last()
    assert last == 1
    np.testing.assert_array_equal(array, ARRAY)
    digest = hashlib.sha256(ARRAY.tobytes()).digest()
    assert store.message(2, "b") == (ARRAY.tobytes(), digest, 0, b"") and store.group(2, "b") == "g"
    assert [(entry["name"], entry["cost"], entry["digest"]) for entry in store.releases()] == [
        ("round 1", 0.125, b"\xdd")
    ]
    assert [(entry["round"], entry["heard"], entry["test_error"]) for entry in store.history()] == [
        (0, [], None), (1, ["b"], 0.5),
    ]  # fmt: skip
    assert store.left_out() == {1: ["c"]} and store.sums("columns") == {"b": b"\xaa"}
    assert store.neighbours()["b"]["done"] == 1 and store.refusals()[0]["count"] == 3
    return True


def test_the_store_is_what_a_peer_needs():
    """Each method of the protocol, with the same arguments, and no others."""
    public = {
        name: inspect.signature(method)
        for name, method in vars(Store).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }
    assert public == {
        name: inspect.signature(method)
        for name, method in vars(PeerState).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }


def test_a_new_state_has_a_version_and_no_copy(tmp_path):
    Store(tmp_path / "state.sqlite").close()
    assert version(tmp_path / "state.sqlite") == len(migrations.STEPS) == 3
    assert [file.name for file in tmp_path.iterdir()] == ["state.sqlite"]


def test_a_state_from_before_the_numbers_opens(path):
    with contextlib.closing(Store(path)) as store:
        assert complete(store)
    assert version(path) == 3


def test_a_state_opens_after_a_migration_with_all_that_it_holds(path, one_more):
    with contextlib.closing(Store(path)) as store:
        assert complete(store)
        assert store._db.execute("SELECT key FROM extra").fetchall() == [("round 1",)]
        store.add_round(RoundRecord(2, (ARRAY,), {"b": ARRAY}, ["b"], []))
    assert version(path) == 4
    with contextlib.closing(Store(path)) as store:  # and again, without another step
        assert store.round() == 2
    kept = path.with_name("state.before-4.sqlite")
    assert version(kept) == 0 and kept.stat().st_mode & 0o777 == 0o600
    with contextlib.closing(Store(kept, readonly=True)) as store:
        assert complete(store)


def test_a_state_of_this_version_opens_after_a_migration(tmp_path, monkeypatch):
    """As this program makes it, through the one step more."""
    path = tmp_path / "state.sqlite"
    with contextlib.closing(Store(path)) as store:
        store.keep("fact", "value")
        store.add_round(RoundRecord(0, (ARRAY,), {"b": ARRAY}, ["b"], []))
    monkeypatch.setattr(migrations, "STEPS", (*migrations.STEPS, extend_the_ledger))
    with contextlib.closing(Store(path)) as store:
        assert store.value("fact") == "value" and store.round() == 0
    assert version(path) == 4 and version(migrations.copy_path(path)) == 3
    monkeypatch.setattr(migrations, "STEPS", (*migrations.STEPS, lambda db: None))
    with contextlib.closing(Store(path)) as store:  # a step is done once
        assert store.value("fact") == "value"
    assert version(path) == 5


def test_who_only_reads_an_older_state_changes_nothing(path, one_more):
    before = path.read_bytes()
    with contextlib.closing(Store(path, readonly=True)) as store:
        assert complete(store)
        assert store._db.execute("SELECT key FROM extra").fetchall() == [("round 1",)]
    assert path.read_bytes() == before and not migrations.copy_path(path).exists()


@pytest.mark.parametrize("readonly", [False, True])
def test_a_state_of_a_newer_program_needs_a_person(path, readonly):
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 7")
    before = path.read_bytes()
    with pytest.raises(
        NeedsPerson, match=r"has schema version 7, of a newer peerbayes; .* up to 3\. Update it"
    ):
        Store(path, readonly=readonly)
    assert path.read_bytes() == before


def test_the_command_ends_with_2_for_a_state_of_a_newer_program(tmp_path):
    home = made_network(tmp_path, LINE).homes["peer-1"]
    with contextlib.closing(sqlite3.connect(home.state_path)) as db:
        db.execute("PRAGMA user_version = 7")
    for words in (("peer", "run", home.folder), ("peer", "status", home.folder)):
        ended = peerbayes(*words, code=2)
        assert "of a newer peerbayes" in " ".join(ended.stderr.split())


def test_a_step_that_fails_leaves_the_state_as_it_was(path, monkeypatch):
    def fails(db):
        db.execute("DELETE FROM releases")
        raise sqlite3.OperationalError("no room")

    steps = migrations.STEPS
    monkeypatch.setattr(migrations, "STEPS", (*steps, extend_the_ledger, fails))
    with pytest.raises(Exception, match="no room"):
        Store(path)
    assert version(path) == 0
    monkeypatch.setattr(migrations, "STEPS", (*steps, extend_the_ledger))
    with contextlib.closing(Store(path)) as store:
        assert complete(store)


KILLED = """
import os, signal, sqlite3, sys
from pathlib import Path
from peerbayes.peer.state import migrations
from peerbayes.peer.state.store import Store

def killed(db):
    db.execute("DELETE FROM releases")
    db.execute("DELETE FROM rounds")
    db.execute("CREATE TABLE large AS SELECT randomblob(5000000) AS body")  # more than SQLite holds in memory
    os.kill(os.getpid(), signal.SIGKILL)

migrations.STEPS = (*migrations.STEPS, killed)
Store(Path(sys.argv[1]))
"""


def test_killed_in_the_middle_of_a_migration_nothing_is_lost(path, one_more):
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=os.environ, check=False)
    assert ended.returncode == -signal.SIGKILL
    with contextlib.closing(Store(migrations.copy_path(path), readonly=True)) as store:
        assert complete(store)
    with contextlib.closing(Store(path)) as store:
        assert complete(store)
    assert version(path) == 4


def test_a_copy_is_complete_or_has_another_name(path, one_more, monkeypatch):
    """Killed while the copy is written, the next start writes it anew."""

    def gives_up(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(migrations.files, "sync", gives_up)
        with pytest.raises(KeyboardInterrupt):
            Store(path)
    assert version(path) == 0 and not migrations.copy_path(path).exists()
    with contextlib.closing(Store(path)) as store:
        assert complete(store)
    assert migrations.copy_path(path).exists() and not list(path.parent.glob("*.part"))


def test_a_file_that_is_just_being_made_is_no_state_yet(tmp_path):
    path = tmp_path / "state.sqlite"
    path.touch()
    with pytest.raises(NoState):
        Store(path, readonly=True)
