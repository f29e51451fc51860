"""What a peer has on disk: its owner's alone, whole after a crash, and checked when it is read."""

import asyncio
import contextlib
import hashlib
import os
import sqlite3
import stat
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")

from peerbayes.errors import ConfigurationError, PeerError, TermsError
from peerbayes.peer import service
from peerbayes.peer.agreement import column_facts
from peerbayes.peer.agreement.column_facts import Facts
from peerbayes.peer.agreement.terms import Privacy, Terms
from peerbayes.peer.check import checks
from peerbayes.peer.identity.founder import Founder
from peerbayes.peer.learning.learner import Attachment
from peerbayes.peer.learning.releases import Release
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.state import audit_log, disk
from peerbayes.peer.state import store as stores
from peerbayes.peer.state.audit_log import AuditLog, Position
from peerbayes.peer.state.folder import Home
from peerbayes.peer.state.store import RoundRecord, Store
from peerbayes.peer.status import status
from peerbayes.privacy.accounting import mu_of
from shared.commands import HANG

ONES = np.ones((2, 3))
PRIVATE = Terms(
    "net", "y", {"x": "continuous"}, {"x": Facts(1.0, 1.0)}, ("a", "b"), rounds=4,
    privacy=Privacy(epsilon=4.0, rows=60.0), strategy="exact")  # fmt: skip


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_to_all():
    """A process whose files are for everybody, unless it says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def synced(monkeypatch):
    """The files that were brought to disk, by inode."""
    found, fsync = [], os.fsync

    def kept(descriptor):
        found.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", kept)
    return found


def loopback(folder, terms=None):
    """Two peers that never run."""
    tables = [pd.DataFrame({"x": np.arange(60.0), "y": ["a", "b"] * 30})] * 2
    return Loopback.create(folder, terms or Terms("net", "y", strategy="exact"), tables, [(0, 1)])


@pytest.fixture
def store(tmp_path):
    with contextlib.closing(Store(tmp_path / "state.sqlite")) as opened:
        yield opened


# --- its owner's alone ---------------------------------------------------------------------------------


def test_keys_settings_and_state_are_their_owners_alone(open_to_all, tmp_path):
    founder = Founder.create(tmp_path / "network", Terms("net", "y", strategy="exact").to_toml())
    home = Home.create(tmp_path / "peer", "north", "north:1", "rows.csv")
    with contextlib.closing(Store(home.state_path)):
        assert mode(founder.folder) == mode(home.folder) == 0o700
        assert mode(founder.key_path) == mode(home.key_path) == mode(home.settings_path) == 0o600
        for path in home.folder.glob("state.sqlite*"):
            assert mode(path) == 0o600, path


def test_a_state_that_others_could_read_is_closed_before_a_key_lies_in_it(open_to_all, tmp_path):
    """As an earlier version left it."""
    path = tmp_path / "state.sqlite"
    with contextlib.closing(Store(path)) as store:
        store.keep("fact", "value")  # there is a write-ahead log from now on
        files = [path, *(path.with_name(f"{path.name}-{end}") for end in ("wal", "shm"))]
        for file in files:
            file.chmod(0o644)
        modes = []

        def make():
            modes.extend(map(mode, files))
            return bytes(range(32))

        assert store.secret("key", make) == bytes(range(32)) == store.secret("key", make)
        assert modes == [0o600] * 3


def test_a_private_file_is_on_disk_and_written_over_nothing(synced, open_to_all, tmp_path):
    path = tmp_path / "peer.key"
    column_facts.private(path, b"secret")
    assert path.read_bytes() == b"secret" and mode(path) == 0o600 and synced == [path.stat().st_ino]
    with pytest.raises(FileExistsError):
        column_facts.private(path, b"another")
    target = tmp_path / "target"
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(FileExistsError):
        column_facts.private(tmp_path / "link", b"another")
    assert path.read_bytes() == b"secret" and not target.exists()


# --- whole after a crash -------------------------------------------------------------------------------


def test_what_is_committed_is_on_disk_whatever_happens(store):
    """FULL: a commit waits for the disk, so that no power cut takes back what a neighbour has heard."""
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)
    with contextlib.closing(sqlite3.connect(store.path)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_round_that_fails_leaves_nothing_and_can_be_stored_again(store):
    """What was written of it is gone, and the store knows that: the arrays are written again."""
    store.add_round(RoundRecord(0, (ONES,), {"b": ONES}, (), ()))
    late, message = 2 * ONES, 3 * ONES
    with pytest.raises(sqlite3.IntegrityError):
        store.add_round(
            RoundRecord(0, (late,), {"b": message}, (), (), release=Release("round 1", 0.5, late))
        )
    assert store.last()[0] == 0 and store.releases() == [] and store.message(1, "b")[0] == ONES.tobytes()
    store.add_round(RoundRecord(1, (late,), {"b": message}, (), ()))
    turn, [state] = store.last()
    assert turn == 1 and np.array_equal(state, late) and store.message(2, "b")[0] == message.tobytes()


@pytest.mark.parametrize("reopened", [False, True])
def test_arrays_are_there_as_long_as_a_state_or_a_message_needs_them(reopened, store, monkeypatch, request):
    """Few arrays occur again and again, in states, messages and corrections; rounds fail, and messages expire."""
    monkeypatch.setattr(stores, "KEPT", 3)
    rng = np.random.default_rng(0)
    arrays = [np.full((2, 3), value) for value in range(6)]
    for round_index in range(60):
        state, message, correction = (arrays[index].copy() for index in rng.integers(0, len(arrays), 3))
        attached = {"b": Attachment(1, correction)} if round_index % 3 else {}
        record = RoundRecord(round_index, (state,), {"b": message, "c": state}, attached=attached)
        if round_index % 4 == 2:
            with pytest.raises(sqlite3.Error):
                store.add_round(record._replace(state=(message,), left_out=("d", "d")))
        if round_index % 5 == 4:
            store.add_round(record._replace(outgoing={}, attached={}))
        else:
            store.add_round(record)
        if reopened:
            store.close()
            store = Store(store.path)
            request.addfinalizer(store.close)
        reached, [last] = store.last()
        used = {hashlib.sha256(last.tobytes()).digest()}
        for digest, beside in store._all("SELECT digest, correction FROM outbox"):
            used |= {digest, beside} - {None}
        assert {digest for (digest,) in store._all("SELECT digest FROM arrays")} == used
        assert reached == round_index and np.array_equal(last, state)
    assert store.oldest() == 57


def test_the_length_of_the_log_is_written_when_it_has_changed_and_again_after_a_failure(store, monkeypatch):
    statements, write_mark = [], Store._write_mark

    def full(self):
        write_mark(self)
        raise sqlite3.OperationalError("the disk is full")

    store._db.set_trace_callback(statements.append)
    marks = lambda: sum("INSERT INTO meta" in statement for statement in statements)  # noqa: E731
    store.mark(Position(3, "chain"))
    with monkeypatch.context() as patch, pytest.raises(sqlite3.Error):
        patch.setattr(Store, "_write_mark", full)
        store.add_round(RoundRecord(0, (ONES,)))
    assert store.logged() is None and marks() == 1
    for round_index in range(3):
        store.add_round(RoundRecord(round_index, (ONES,)))
    assert store.logged() == Position(3, "chain") and marks() == 2
    store.mark(Position(4, "longer"))
    store.note({}, {})
    assert store.logged() == Position(4, "longer") and marks() == 3


def test_a_release_is_made_and_stored_in_one_transaction(store):
    def fails():
        raise RuntimeError("no noise")

    with pytest.raises(RuntimeError, match="no noise"):
        store.bought("units", 0.5, fails)
    assert store.releases() == []
    made = store.bought("units", 0.5, lambda: np.arange(4).reshape(2, 2))
    [entry] = store.releases()
    assert (entry["name"], entry["cost"]) == ("units", 0.5) and made.tolist() == [[0, 1], [2, 3]]


def test_the_first_sum_of_a_neighbour_stands(store):
    store.add_sum("columns", "b", b"first")
    store.add_sum("columns", "b", b"second")
    assert store.sums("columns") == {"b": b"first"}


def test_a_state_is_set_aside_with_all_that_its_log_holds(tmp_path):
    """Somebody reads it, so that the log is not brought into the file when it is closed."""
    home = Home(tmp_path)
    with contextlib.closing(Store(home.state_path)) as store:
        store.add_round(RoundRecord(0, (ONES,), {}, (), ()))
        with contextlib.closing(Store(home.state_path, readonly=True)) as reader:
            reader.history()
            store.add_round(RoundRecord(1, (ONES,), {}, (), ()))
            store.close()
            moved = service.set_aside(home)
    assert not home.state_path.exists()
    for left in home.folder.glob("state.sqlite-*"):  # of the reader, which knows nothing of the move
        left.unlink()
    with contextlib.closing(Store(moved, readonly=True)) as there:
        assert [entry["round"] for entry in there.history()] == [0, 1]


def test_only_one_works_on_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "LOCK_TIMEOUT", 0.0)
    home = Home(tmp_path)
    assert not service.running(home)
    with service.lock(home):
        assert service.running(home)
        with pytest.raises(PeerError, match="this peer is already running"), service.lock(home):
            pass
    assert not service.running(home)


# --- the audit log -------------------------------------------------------------------------------------


def test_a_line_is_in_the_file_before_it_is_closed_and_on_disk_after_a_sync(synced, tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    log.add("b", "round 1", 8, b"digest")
    assert [entry["what"] for entry in audit_log.entries(log.path)] == ["round 1"]
    assert not synced
    log.sync()
    log.close()
    assert synced == [log.path.stat().st_ino] * 2


def test_a_line_that_was_written_in_part_is_taken_back(tmp_path):
    class Narrow:
        """A file on a disk with room for a few bytes."""

        def __init__(self, file):
            self._file = file

        def write(self, content):
            return self._file.write(content[:7])

        def __getattr__(self, name):
            return getattr(self._file, name)

    log = AuditLog(tmp_path / "audit.jsonl")
    log.add("b", "round 1", 1, b"")
    log._file = Narrow(file := log._file)
    with pytest.raises(OSError, match="a line could not be written"):
        log.add("b", "round 2", 1, b"")
    log._file = file
    log.add("b", "round 3", 1, b"")
    log.close()
    assert [entry["what"] for entry in audit_log.entries(log.path)] == ["round 1", "round 3"]


def test_a_line_that_is_taken_out_shows(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    for number in range(4):
        log.add("b", f"round {number}", 1, b"")
    log.close()
    lines = log.path.read_bytes().splitlines(keepends=True)
    for gone in range(3):
        log.path.write_bytes(b"".join(lines[:gone] + lines[gone + 1 :]))
        with pytest.raises(PeerError, match=f"line {gone + 1}: it does not match the line before"):
            list(audit_log.entries(log.path))


# --- checked when read ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "content"),
    [("digest", bytes(32)), ("body", b"[2, 2]\n" + bytes(32)), ("body", b"[4]\n" + np.arange(4).tobytes())],
    ids=["digest", "numbers", "shape"],
)
def test_a_release_that_was_altered_is_not_told_again(column, content, store):
    """Told otherwise than before, it would be another release, which is not in the ledger."""
    store.bought("units", 0.5, lambda: np.arange(4).reshape(2, 2))
    store._db.execute(f"UPDATE releases SET {column} = ?", (content,))
    with pytest.raises(PeerError, match="the release units does not match its digest"):
        store.bought("units", 0.5, lambda: pytest.fail("it was made anew"))


def test_who_reads_a_state_cannot_write_it(store):
    with contextlib.closing(Store(store.path, readonly=True)) as reader:
        for write in (
            lambda: reader.keep("run", "another"),
            lambda: reader.add_round(RoundRecord(0, (ONES,), {}, (), ())),
            lambda: reader.bought("units", 0.5, lambda: np.zeros(2, dtype=np.int64)),
        ):
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                write()
    assert store.value("run") is None and store.last() is None


def test_looking_at_a_peer_writes_nothing(tmp_path):
    home = loopback(tmp_path).homes["peer-1"]
    before = {path.name: path.read_bytes() for path in home.folder.iterdir()}
    told = status(home)
    assert told["round"] == 0 and not told["running"] and not told["done"]
    assert {path.name: path.read_bytes() for path in home.folder.iterdir()} == before


def test_runs_that_were_left_keep_a_peer_from_running_and_a_check_says_so(tmp_path):
    """Half of the budget was spent in a run that was left; its owner allows what one run costs."""
    home = loopback(tmp_path, PRIVATE).homes["peer-1"]
    with contextlib.closing(Store(home.folder / "state.left-1.sqlite")) as store:
        cost = mu_of(4.0, 1e-5) ** 2 / 2
        store.add_round(RoundRecord(1, (ONES,), {}, (), (), release=Release("round 1", cost, ONES)))
    outcome = {found.what: found.outcome for found in checks(home)}
    assert outcome["data"] == "ok"
    with home.settings_path.open("a") as file:
        file.write("\n[require]\nepsilon = 4\n")
    told = {found.what: (found.outcome, found.told) for found in checks(home)}
    assert told["data"][0] == "failed" and "have spent epsilon = 2.6" in told["data"][1]
    (home.folder / "rows.csv").unlink()  # whatever else is wrong, that comes first
    with pytest.raises(PeerError, match=r"have spent epsilon = 2\.6"):
        asyncio.run(service.serve(home, 0.0))
    assert not home.state_path.exists() and not home.audit_path.exists()


# --- what a founder writes -----------------------------------------------------------------------------


def test_a_private_network_that_hides_too_little_is_not_closed(tmp_path):
    """With edge noise, a neighbour alone knows all of it; without, two peers will do."""
    thin = replace(PRIVATE, privacy=replace(PRIVATE.privacy, edge_noise=3.0))
    with pytest.raises(TermsError, match="edge_noise needs"):
        loopback(tmp_path / "thin", thin)
    assert not Founder(tmp_path / "thin" / "network").roster().closed
    assert loopback(tmp_path / "plain", PRIVATE).founder.roster().closed


def test_a_network_is_founded_once(tmp_path):
    founder = Founder.create(tmp_path, Terms("net", "y", strategy="exact").to_toml())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for gone in before:
        (tmp_path / gone).rename(tmp_path / "aside")
        with pytest.raises(ConfigurationError, match="already exists"):
            Founder.create(tmp_path, Terms("other", "y", strategy="exact").to_toml())
        (tmp_path / "aside").rename(tmp_path / gone)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert founder.roster().network == "net"


def test_whoever_reads_while_a_peer_goes_on_gets_one_round_whole(tmp_path, monkeypatch):
    """A peer forgets the state of a round when it stores the next: not under the eyes of a reader."""
    with (
        contextlib.closing(Store(tmp_path / "state.sqlite")) as peer,
        contextlib.closing(Store(tmp_path / "state.sqlite", readonly=True)) as reader,
    ):
        peer.add_round(RoundRecord(0, (ONES,), {}, (), ()))
        read = reader._body

        def meanwhile(digest):
            for turn in range(1, 4):
                peer.add_round(RoundRecord(turn, ((turn + 1) * ONES,), {}, (), ()))
            monkeypatch.undo()
            return read(digest)

        monkeypatch.setattr(reader, "_body", meanwhile)
        turn, (state,) = reader.last()
        assert turn == 0 and (state == ONES).all()
        turn, (state,) = reader.last()
        assert turn == 3 and (state == 4 * ONES).all()


def test_a_roster_in_the_folder_is_read_when_it_changes_and_whenever_it_may_have(tmp_path, monkeypatch):
    """A file that stays as it is costs a look at its status; one that was just written may change within its stamp."""
    monkeypatch.setattr(service, "WATCH", 0.005)
    path, adopted, reads, looks = tmp_path / "roster", [], [], []

    def look():
        looks.append(path.stat())
        return looks[-1]

    async def adopt(signed):
        adopted.append(signed)
        peer.session.signed = signed

    def read(call):
        reads.append(call())
        return reads[-1]

    def written(content, mtime_ns):
        path.write_bytes(content)
        os.utime(path, ns=(mtime_ns, mtime_ns))

    async def until(condition):
        async with asyncio.timeout(HANG):
            while not condition():
                await asyncio.sleep(0.005)

    async def watched():
        now, hour = time.time_ns(), 3600 * 10**9
        written(b"one", now)
        watch = asyncio.create_task(
            service._watch(SimpleNamespace(roster_path=roster), None, peer, SimpleNamespace(run=read))
        )
        await until(lambda: adopted == [b"one"])
        written(b"two", now)  # the same inode, size and time
        await until(lambda: adopted == [b"one", b"two"])
        os.utime(path, ns=(now - hour, now - hour))
        seen = len(looks)
        await until(lambda: len(looks) > seen + 3)
        settled, seen = len(reads), len(looks)
        await until(lambda: len(looks) > seen + 10)
        assert len(reads) == settled
        written(b"new", now - 2 * hour)  # as a file that was unpacked from a backup
        await until(lambda: adopted == [b"one", b"two", b"new"])
        watch.cancel()

    peer = SimpleNamespace(session=SimpleNamespace(signed=b""), adopt_offered=adopt)
    roster = SimpleNamespace(stat=look, read_bytes=path.read_bytes)
    asyncio.run(watched())
