"""Backups: whole or refused, made while a peer runs, and a restored folder's ledger has at least what left."""

import asyncio
import contextlib
import io
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
from hypothesis import given, settings
from hypothesis import strategies as st

from peerbayes.errors import AlreadyThere, PeerError
from peerbayes.peer import restoring, tasks
from peerbayes.peer.agreement.column_facts import Facts
from peerbayes.peer.agreement.terms import Limits, Privacy, Terms
from peerbayes.peer.identity import keys
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.protocol.wire import Process
from peerbayes.peer.restoring import Neighbours, restore
from peerbayes.peer.running_peer import Membership, RunningPeer
from peerbayes.peer.runs import Runs
from peerbayes.peer.state import sealed_file
from peerbayes.peer.state.audit_log import AuditLog, Log, Tail, entries
from peerbayes.peer.state.backup import back_up, opened
from peerbayes.peer.state.folder import Home
from peerbayes.peer.state.ledger import Ledger, current, earlier, epsilon_of, planned_cost, refuse_broken
from peerbayes.peer.state.store import Store
from peerbayes.privacy.accounting import Privacy as Promise
from shared import served_sites as served
from shared.commands import HANG, peerbayes
from shared.memory_transport import Hub
from shared.peer_processes import finished, log_text, until_round
from shared.runs_of_folders import Folders

ROUNDS, EPSILON, DELTA = 8, 4.0, 1e-5
LINKS = [(0, 1), (1, 2), (0, 2)]


def terms(rounds=ROUNDS, private=True):
    return Terms(
        "test", "y", {"x": "continuous"}, {"x": Facts(1.0, 1.0)}, ("a", "b"), rounds=rounds,
        privacy=Privacy(epsilon=EPSILON, rows=60.0) if private else Privacy(), limits=Limits(deadline=HANG),
        strategy="exact",
    )  # fmt: skip


def frames():
    rng = np.random.default_rng(0)
    for _ in range(3):
        labels = np.array(["a", "b"] * 30)
        yield pd.DataFrame({"x": (labels == "b") + rng.normal(size=60), "y": labels})


class Made:
    """Three private peers in memory with real folders; backups of the first after rounds 2 and 5."""

    def __init__(self, folder):
        self.network = Loopback.create(folder, terms(), list(frames()), LINKS)
        self.home, self.hub = self.network.homes["peer-1"], Hub()
        asyncio.run(self.run(2))
        self.early, self.late = folder / "early.backup", folder / "late.backup"
        back_up(self.home, self.early)
        asyncio.run(self.run(5))
        back_up(self.home, self.late)

    async def run(self, until):
        nodes = [self.node(home) for home in self.network.homes.values()]
        tasks = [asyncio.create_task(node.run()) for node in nodes]
        async with asyncio.timeout(HANG):
            while nodes[0].session.round_index < until:
                await asyncio.sleep(0.005)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for node in nodes:
            node.store.note({}, {})
            node.store.close()
            node.audit.close()

    def node(self, home):
        peer, frame = home.load(), pd.read_csv(home.folder / "rows.csv")
        return RunningPeer(
            Membership(peer.name, peer.terms, peer.roster), frame[["x"]], frame["y"].to_numpy(),
            Store(home.state_path), self.hub.transport(peer.name), AuditLog(home.audit_path),
        )  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "WAIT", 0.2)
        patch.setattr(tasks, "GRACE", 0.2)
        return Made(tmp_path_factory.mktemp("made"))


@pytest.fixture
def folder(made, tmp_path):
    """The folder of the first peer as it was after round 5."""
    home = Home(tmp_path / "peer")
    shutil.copytree(made.home.folder, home.folder)
    return home


def ledger(home):
    """μ² of all that the folder knows to have been released."""
    return math.fsum(entry["cost"] for entry in [*current(home), *earlier(home)])


def nobody_heard(peer, process):
    return Neighbours(confirmed=["peer-2", "peer-3"])


def unfinished(home):
    return any(home.folder.glob(".restoring*")) or any(
        home.folder.parent.glob(f".{home.folder.name}.restoring*")
    )


# --- making one ------------------------------------------------------------------------------------------


def test_a_backup_has_what_the_folder_alone_has_and_no_rows(made):
    assert made.late.stat().st_mode & 0o777 == 0o600
    with tarfile.open(made.late) as tar:
        names = set(tar.getnames())
    assert {"peer.toml", "peer.key", "peer.crt", "authority.crt", "agreement.toml", "roster.json", "state.sqlite",
            "audit.jsonl", "manifest.json"} <= names  # fmt: skip
    assert not any(name.endswith((".csv", "-wal", ".lock")) or name.startswith(".") for name in names)
    assert not list(made.home.folder.glob(".backup-*"))


def test_a_backup_without_a_key_has_none_anywhere_in_it(folder, tmp_path):
    manifest = back_up(folder, tmp_path / "b", with_key=False)
    assert not manifest.with_key and "peer.key" not in manifest.files
    assert folder.key_path.read_bytes() not in (tmp_path / "b").read_bytes()
    done = restore(tmp_path / "b", tmp_path / "new", heard=nobody_heard)
    assert "The backup has no key: bring" in done.sentences[-1]


def test_a_backup_in_the_folder_itself_is_refused_and_a_failed_one_leaves_the_last_one(folder, tmp_path):
    with pytest.raises(PeerError, match="in the folder that it would be a backup of"):
        back_up(folder, folder.folder / "backup")
    target = tmp_path / "b"
    back_up(folder, target)
    before = target.read_bytes()
    folder.state_path.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    with pytest.raises(PeerError, match="damaged"):
        back_up(folder, target)
    assert target.read_bytes() == before and [path.name for path in tmp_path.glob(".b*")] == []


def test_only_a_backup_of_the_same_peer_is_replaced_unasked(made, folder, tmp_path):
    target, other = tmp_path / "b", made.network.homes["peer-2"]
    for content in (b"a letter", b"", made.late.read_bytes()[:20_000]):
        target.write_bytes(content)
        with pytest.raises(AlreadyThere, match=r"no backup of peer-1 in test .*--overwrite"):
            back_up(folder, target)
        assert target.read_bytes() == content
    back_up(other, target, overwrite=True)
    with pytest.raises(AlreadyThere):
        back_up(folder, target)
    back_up(folder, target, overwrite=True)
    first = target.read_bytes()
    back_up(folder, target)
    assert target.read_bytes() != first
    with pytest.raises(AlreadyThere):  # it would lose the passphrase, or get one
        back_up(folder, target, passphrase="p")
    back_up(folder, target, passphrase="p", overwrite=True)
    back_up(folder, target, passphrase="p")
    for passphrase in (None, "q"):
        with pytest.raises(AlreadyThere):
            back_up(folder, target, passphrase=passphrase)
    refused = peerbayes("peer", "backup", folder.folder, target, code=2)
    assert "exists already, and is no backup of peer-1 in test that opens in the same way" in refused.stderr
    peerbayes("peer", "backup", folder.folder, target, "--overwrite", code=0)
    gone = tmp_path / "not mounted" / "b"
    with pytest.raises(PeerError, match="not mounted is not a folder"):
        back_up(folder, gone)
    assert not gone.parent.exists()


@pytest.mark.parametrize("lines", [0, 3])
def test_a_state_and_a_log_that_grow_while_they_are_copied_belong_together(
    folder, tmp_path, monkeypatch, lines
):
    """More is sent between the copy of the state and that of the log: it is in neither."""
    from peerbayes.peer.state import backup as module

    copied = module._copied

    def slowly(path, target):
        result = copied(path, target)
        if path.name == "state.sqlite":
            with contextlib.closing(AuditLog(folder.audit_path)) as log:
                for number in range(lines):
                    log.add("peer-2", f"private round {90 + number}", 1, b"x", state="later", start=9)
        return result

    monkeypatch.setattr(module, "_copied", slowly)
    back_up(folder, tmp_path / "b")
    with opened(tmp_path / "b", tmp_path / "somewhere") as backup:
        refuse_broken(backup.folder / "state.sqlite", backup.folder / "audit.jsonl")
        assert "later" not in Log.of(Tail(backup.folder / "audit.jsonl")).states


# --- whole, or refused -----------------------------------------------------------------------------------


def contents(path):
    with tarfile.open(path) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}


def packed(path, files):
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_a_tampered_backup_is_refused_and_nothing_is_written(made, tmp_path):
    files = contents(made.late)
    other_key = keys.new_request("peer-1")[0]
    manifest = files["manifest.json"]
    cases = {
        "a file changed": files | {"peer.toml": files["peer.toml"] + b"\n"},
        "a ledger with less": files | {"audit.jsonl": b"".join(files["audit.jsonl"].splitlines(True)[:-1])},
        "a file gone": {name: content for name, content in files.items() if name != "state.sqlite"},
        "a file more": {"audit.other.jsonl": b"", **files},
        "no manifest": {name: content for name, content in files.items() if name != "manifest.json"},
        "another manifest": files
        | {"manifest.json": manifest.replace(b'"with_key":true', b'"with_key":false')},
        "a path that leads out": {"../outside": b"x", **files},
        "an absolute path": {"/tmp/outside": b"x", **files},
        "a hidden file": {".restoring": b"", **files},
        "after the manifest": {**files, "zzz": b"x"},
        "not a tar file": None,
    }
    assert other_key not in manifest
    for case, content in cases.items():
        path = tmp_path / "b"
        if content is None:
            path.write_bytes(b"hello" * 1000)
        else:
            packed(path, content)
        with pytest.raises(PeerError):
            restore(path, tmp_path / "new", heard=nobody_heard)
        assert not (tmp_path / "new").exists(), case
        assert not (tmp_path / "outside").exists() and not list(tmp_path.glob(".new*")), case


def test_links_in_a_backup_are_refused(made, tmp_path):
    with tarfile.open(tmp_path / "b", "w") as tar:
        info = tarfile.TarInfo("peer.toml")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(PeerError, match="no file"):
        restore(tmp_path / "b", tmp_path / "new")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_sealed_file_opens_with_its_passphrase_and_unchanged_only(data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_file, "SCRYPT", (2, 1, 1))
        patch.setattr(sealed_file, "PIECE", 16)
        content = data.draw(st.binary(max_size=70))
        file = io.BytesIO()
        with sealed_file.Sealed(file, "words") as sealed:
            sealed.write(content)
        whole = file.getvalue()
        assert io.BufferedReader(sealed_file.Opened(io.BytesIO(whole), "words")).read() == content
        place = data.draw(st.integers(len(sealed_file.MAGIC), len(whole) - 1))
        changed = bytearray(whole)
        changed[place] ^= data.draw(st.integers(1, 255))
        cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
        for broken, passphrase in (
            (bytes(changed), "words"),
            (cut, "words"),
            (whole, "other"),
            (whole + b"x", "words"),
        ):
            with pytest.raises(PeerError):
                io.BufferedReader(sealed_file.Opened(io.BytesIO(broken), passphrase)).read()


def test_a_sealed_backup_shows_nothing_and_is_restored_with_its_passphrase(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sealed_file, "SCRYPT", (10, 8, 1))
    (tmp_path / "secret").write_text("some words\n")
    peerbayes(
        "peer", "backup", folder.folder, tmp_path / "b", "--passphrase-file", tmp_path / "secret", code=0
    )
    content = (tmp_path / "b").read_bytes()
    assert b"peer-1" not in content and b"PRIVATE KEY" not in content
    with pytest.raises(PeerError, match="under a passphrase"):
        restore(tmp_path / "b", tmp_path / "new")
    with pytest.raises(PeerError, match="does not open"):
        restore(tmp_path / "b", tmp_path / "new", "other words")
    restore(tmp_path / "b", tmp_path / "new", "some words", nobody_heard)
    assert Home(tmp_path / "new").load().name == "peer-1"


# --- restoring -------------------------------------------------------------------------------------------


def test_an_old_backup_gives_the_run_up_and_counts_what_may_have_left(made, folder, tmp_path):
    """The machine is lost: nobody knows what left after the backup, so all that was agreed on counts as spent."""
    left = ledger(folder)
    new = Home(tmp_path / "new")
    done = restore(made.early, new.folder)
    peer = new.load()
    assert not new.state_path.exists() and len(done.aside) == 1
    refuse_broken(new.state_path, new.audit_path)  # another run can begin
    promise = Promise(EPSILON, DELTA)
    assert ledger(new) >= left and math.isclose(ledger(new), planned_cost(promise))
    assert epsilon_of(earlier(new), DELTA) >= epsilon_of([*current(folder), *earlier(folder)], DELTA)
    assert peer.name == "peer-1" and any("counts as released" in sentence for sentence in done.sentences)
    assert not unfinished(new)


def test_the_newer_log_of_the_folder_says_exactly_what_left(made, folder):
    """State and key are lost, the log is not."""
    left = ledger(folder)
    for path in folder.folder.glob("state.sqlite*"):
        path.unlink()
    folder.key_path.unlink()
    log = folder.audit_path.read_bytes()
    done = restore(made.early, folder.folder)
    assert folder.audit_path.read_bytes().startswith(log) and math.isclose(ledger(folder), left)
    assert not folder.state_path.exists() and folder.load().name == "peer-1"
    assert any("goes on after the backup and stays" in sentence for sentence in done.sentences)
    refuse_broken(folder.state_path, folder.audit_path)


def test_a_run_goes_on_where_the_folder_s_log_shows_that_nothing_was_sent_since(made, folder):
    for path in folder.folder.glob("state.sqlite*"):
        path.unlink()
    done = restore(made.late, folder.folder)
    assert folder.state_path.exists() and done.aside == []
    refuse_broken(folder.state_path, folder.audit_path)
    assert Stored_round(folder) == Stored_round(made.home) >= 5


def Stored_round(home):  # noqa: N802
    with contextlib.closing(Store(home.state_path, readonly=True)) as store:
        return store.round()


def test_a_run_goes_on_where_every_neighbour_has_heard_nothing_since(made, tmp_path):
    asked = []

    def heard(peer, process):
        asked.append(process)
        return nobody_heard(peer, process)

    new = Home(tmp_path / "new")
    done = restore(made.late, new.folder, heard=heard)
    goes_on = f"Run 1 goes on after round {Stored_round(made.home)}"
    assert new.state_path.exists() and goes_on in " ".join(done.sentences)
    refuse_broken(new.state_path, new.audit_path)
    with contextlib.closing(Store(new.state_path)) as store:
        assert store.begin(0) > asked[0].start  # the next start is none that neighbours have heard of
        assert asked[0].state == store.identity() and asked[0].began == store.stored()


def test_a_run_that_was_done_is_not_said_to_go_on(made, folder, tmp_path):
    with contextlib.closing(Store(folder.state_path)) as store:
        store.keep("verdict", "{}")
    back_up(folder, tmp_path / "b")
    done = restore(tmp_path / "b", tmp_path / "new", heard=nobody_heard)
    told = " ".join(done.sentences)
    assert f"Run 1 was done after round {Stored_round(made.home)}: " in told and "goes on" not in told


@pytest.mark.parametrize(
    "neighbours",
    [
        Neighbours(confirmed=["peer-2"], silent={"peer-3": "it does not answer"}),
        Neighbours(confirmed=["peer-2"], later={"peer-3": Process("s", 9, "i", 3, 7)}),
        Neighbours(),
    ],
)
def test_one_neighbour_that_is_silent_or_has_heard_more_is_enough_to_give_the_run_up(
    made, tmp_path, neighbours
):
    new = Home(tmp_path / "new")
    done = restore(made.late, new.folder, heard=lambda peer, process: neighbours)
    assert not new.state_path.exists() and len(done.aside) == 1
    runs = 1 + len(neighbours.later)  # a later run, of which neighbours have heard, counts as a whole
    assert math.isclose(ledger(new), runs * planned_cost(Promise(EPSILON, DELTA)))


def test_an_intact_folder_stays_as_it_is(made, folder):
    before = {path.name: path.read_bytes() for path in folder.folder.iterdir() if path.is_file()}
    done = restore(made.early, folder.folder)
    after = {path.name: path.read_bytes() for path in folder.folder.iterdir() if path.is_file()}
    assert {name: after[name] for name in before} == before and done.aside == []
    refuse_broken(folder.state_path, folder.audit_path)


def test_damaged_files_come_back_and_are_kept_beside(made, folder):
    folder.state_path.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    folder.roster_path.write_bytes(b"{}")
    folder.settings_path.write_text("name = 3")
    done = restore(made.late, folder.folder)
    assert folder.load().name == "peer-1" and Stored_round(folder) == Stored_round(made.home) >= 5
    assert (folder.folder / "state.damaged-1").exists() and (
        folder.folder / "roster.json.before-restore-1"
    ).exists()
    assert done.aside == []


def test_a_log_that_differs_counts_beside_the_backup_s(made, folder):
    """Two folders went different ways: both ledgers count."""
    for path in folder.folder.glob("state.sqlite*"):
        path.unlink()
    lines = folder.audit_path.read_bytes().splitlines(True)
    folder.audit_path.write_bytes(lines[0])
    with contextlib.closing(AuditLog(folder.audit_path)) as log:
        log.add("", "private release elsewhere", 0, b"z" * 32, cost=0.5, state="other", start=1)
    restore(made.late, folder.folder)
    assert (folder.folder / "audit.before-restore-1.jsonl").exists()
    assert ledger(folder) >= 0.5 + planned_cost(Promise(EPSILON, DELTA)) - 1e-9


def test_a_state_whose_log_is_gone_counts_and_does_not_go_on(made, folder):
    left = ledger(folder)
    folder.audit_path.unlink()
    restore(made.early, folder.folder)
    assert not folder.state_path.exists() and ledger(folder) >= left
    refuse_broken(folder.state_path, folder.audit_path)


def test_a_backup_of_another_peer_or_network_is_refused(made, tmp_path):
    other = made.network.homes["peer-2"]
    copy = Home(tmp_path / "copy")
    shutil.copytree(other.folder, copy.folder)
    with pytest.raises(PeerError, match="is the folder of peer-2, and the backup is of peer-1"):
        restore(made.late, copy.folder)
    copy.settings_path.unlink()
    copy.authority_path.write_bytes(keys.new_authority("test")[1])
    with pytest.raises(PeerError, match="another network"):
        restore(made.late, copy.folder)


def test_a_backup_of_a_restored_folder_is_as_good(made, tmp_path):
    first, second = Home(tmp_path / "first"), Home(tmp_path / "second")
    restore(made.early, first.folder)
    back_up(first, tmp_path / "again")
    restore(tmp_path / "again", second.folder)
    another = planned_cost(Promise(EPSILON, DELTA))  # which may have begun since: there is no telling
    assert math.isclose(ledger(first) + another, ledger(second))
    for name in ("peer.toml", "peer.key", "peer.crt", "roster.json", "agreement.toml"):
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes()
    assert second.audit_path.read_bytes().startswith(first.audit_path.read_bytes())
    assert len(list(second.folder.glob("state.left-*.sqlite"))) == 1


def test_restoring_again_changes_nothing_and_a_restore_that_was_killed_is_completed(
    made, tmp_path, monkeypatch
):
    """Stopped after each of its steps, the folder never knows less than the backup, nor goes on with its run."""
    whole = Home(tmp_path / "whole")
    restore(made.early, whole.folder)
    expected, moved = ledger(whole), restoring._moved
    restore(made.early, whole.folder)
    assert math.isclose(ledger(whole), expected)
    for stop in range(30):
        home, steps = Home(tmp_path / f"killed-{stop}"), []

        def stopping(source, target, steps=steps, stop=stop):
            if len(steps) == stop:
                raise KeyboardInterrupt
            steps.append(target)
            moved(source, target)

        monkeypatch.setattr(restoring, "_moved", stopping)
        try:
            restore(made.early, home.folder)
            break
        except KeyboardInterrupt:
            assert not home.state_path.exists()
        monkeypatch.setattr(restoring, "_moved", moved)
        restore(made.early, home.folder)
        assert math.isclose(ledger(home), expected) and not unfinished(home), steps
        assert home.load().name == "peer-1" and not home.state_path.exists()
        refuse_broken(home.state_path, home.audit_path)
    assert stop > 5


# --- runs that a backup does not know -----------------------------------------------------------------------


def before_the_first_round(folder):
    """A member whose run has not begun, and its backup."""
    network = Loopback.create(folder, terms(), list(frames()), LINKS)
    back_up(network.homes["peer-1"], folder / "b")
    return folder / "b"


@pytest.mark.parametrize(
    ("neighbours", "runs"),
    [
        (None, 1),
        (Neighbours(confirmed=["peer-2"], silent={"peer-3": "it does not answer"}), 1),
        (Neighbours(confirmed=["peer-2"], later={"peer-3": Process("s", 4, "i", 0, 7)}), 1),
        (Neighbours(confirmed=["peer-2", "peer-3"]), 0),
    ],
)
def test_a_run_that_may_have_begun_after_the_backup_counts(tmp_path, neighbours, runs):
    asked = []

    def heard(peer, process):
        asked.append(process)
        return neighbours

    new = Home(tmp_path / "new")
    done = restore(before_the_first_round(tmp_path), new.folder, heard=None if neighbours is None else heard)
    assert math.isclose(ledger(new), runs * planned_cost(Promise(EPSILON, DELTA)), abs_tol=1e-12)
    assert done.given_up == [1] * runs and bool(runs) == ("counts as released" in " ".join(done.sentences))
    assert all(
        (process.start, process.stored) == (0, 0) for process in asked
    )  # no start that a peer can have
    refuse_broken(new.state_path, new.audit_path)  # another run can begin
    with (
        contextlib.closing(Store(new.state_path)) as store,
        contextlib.closing(AuditLog(new.audit_path)) as log,
    ):
        later = neighbours is not None and neighbours.later
        assert Ledger(store, log).begin() == (
            5 if later else 1
        )  # it counts on from what neighbours have heard
    before = ledger(new)
    restore(tmp_path / "b", new.folder)
    assert ledger(new) >= before


def approved(folder, name, number=2):
    """A private network of three, in which run 2 is proposed by the second and approved by all; who has the backup."""
    folders = Folders(folder, ((0, 1), (1, 2), (0, 2)), **private_terms())
    backup = folder / f"{name}.backup"
    return folders, backup


def private_terms():
    return {
        "features": {"a": "continuous", "b": "continuous"},
        "facts": {"a": Facts(0.5, 1.0), "b": Facts(0.5, 1.0)},
        "classes": ("no", "yes"),
        "privacy": Privacy(epsilon=EPSILON, rows=40.0),
    }


def test_a_run_that_was_approved_after_the_backup_counts_once_neighbours_show_the_approval(tmp_path):
    folders, backup = approved(tmp_path, "peer-1")
    lost = folders.network.homes["peer-1"]
    back_up(lost, backup)
    folders.runs["peer-2"].propose()
    folders.pass_on()
    for name in ("peer-1", "peer-3"):
        folders.runs[name].approve(2)
    folders.pass_on()
    assert ledger(lost) == 0 and folders.states(2) == dict.fromkeys(folders.runs, "approved")
    shutil.rmtree(lost.folder)
    restore(backup, lost.folder)
    first = ledger(lost)
    folders.runs["peer-1"] = folders.book("peer-1")
    for _ in range(2):
        folders.pass_on()
        assert math.isclose(ledger(lost), first + planned_cost(Promise(EPSILON, DELTA)))
    assert folders.runs["peer-1"].outcome(2).state == "left" and folders.states(2)["peer-1"] == "left"
    refuse_broken(lost.of_run(2).state_path, lost.of_run(2).audit_path)


def test_an_approved_run_that_may_have_begun_after_the_backup_counts_and_is_not_begun_again(tmp_path):
    folders, backup = approved(tmp_path, "peer-1")
    lost = folders.network.homes["peer-1"]
    folders.runs["peer-2"].propose()
    folders.pass_on()
    for name in ("peer-1", "peer-3"):
        folders.runs[name].approve(2)
    folders.pass_on()
    back_up(lost, backup)
    shutil.rmtree(lost.folder)
    done = restore(backup, lost.folder)
    assert done.given_up == [1, 2] and math.isclose(ledger(lost), 2 * planned_cost(Promise(EPSILON, DELTA)))
    assert folders.book("peer-1").outcome(2).state == "left"
    before = ledger(lost)
    folders.runs["peer-1"] = folders.book("peer-1")
    folders.pass_on()  # neighbours have nothing of it that the backup does not have
    assert ledger(lost) == before
    assert folders.states(2) == {"peer-1": "left", "peer-2": "declined", "peer-3": "declined"}
    assert "brought back from a backup" in folders.runs["peer-2"].entry(2).sentence


def test_nobody_waits_for_a_run_that_its_proposer_gave_up_while_it_was_open(tmp_path):
    """Proposed while the site was stopped, brought back from a backup of then, and approved by the other one later."""
    folders = Folders(tmp_path, ((0, 1),), features={"a": "continuous", "b": "continuous"})
    lost, other = folders.network.homes.values()
    served.done([lost, other])
    Runs(lost.folder).propose()
    documents = [path.read_bytes() for path in Runs(lost.folder).shared().values()]
    back_up(lost, tmp_path / "b")
    rows = Path(lost.settings().data).read_bytes()
    shutil.rmtree(lost.folder)
    done = restore(tmp_path / "b", lost.folder)
    Path(lost.settings().data).write_bytes(rows)
    assert 2 in done.given_up and any("Run 2 is declined" in sentence for sentence in done.sentences)
    assert Runs(lost.folder).entry(2).state == "left"
    for document in documents:  # the no comes late
        Runs(other.folder).add(document)
    assert Runs(other.folder).approve(2).state == "approved"
    served.served([lost, other], lambda: Runs(other.folder).entry(2).state == "declined")
    assert Runs(lost.folder).entry(2).state == "left"


def test_a_run_is_declined_by_hand_where_the_key_came_back_later(tmp_path):
    folders = Folders(tmp_path, ((0, 1),), features={"a": "continuous", "b": "continuous"})
    lost = folders.network.homes["peer-1"]
    folders.runs["peer-1"].propose()
    back_up(lost, tmp_path / "b", with_key=False)
    key = lost.key_path.read_bytes()
    shutil.rmtree(lost.folder)
    done = restore(tmp_path / "b", lost.folder)
    assert any(f"run decline 2 --folder {lost.folder}" in sentence for sentence in done.sentences)
    lost.key_path.write_bytes(key)
    peerbayes("run", "decline", 2, "--folder", lost.folder, code=0)
    folders.runs["peer-1"] = folders.book("peer-1")
    folders.pass_on()
    assert folders.states(2) == {"peer-1": "left", "peer-2": "declined"}


def test_a_backup_that_is_not_there_is_a_mistake_of_who_asks(tmp_path):
    told = peerbayes("peer", "restore", tmp_path / "nothing.backup", tmp_path / "new", code=2).stderr
    assert f"there is no file {tmp_path / 'nothing.backup'}" in told and "Errno" not in told
    assert not (tmp_path / "new").exists()
    words = ("--passphrase-file", tmp_path / "no secret")
    told = peerbayes("peer", "restore", tmp_path / "b", tmp_path / "new", *words, code=2).stderr
    assert "no secret" in told and "Errno" not in told


def test_rotated_logs_are_in_no_backup(folder, tmp_path):
    for name in ("peer.log", "peer.log.1", "peer.log.2.gz", "peer.log-20261118"):
        (folder.folder / name).write_text("a line\n")
    assert not any(name.startswith("peer.log") for name in back_up(folder, tmp_path / "b").files)


# --- processes -------------------------------------------------------------------------------------------


@pytest.fixture
def loopback(tmp_path):
    made = []

    def make(rounds):
        made.append(Loopback.create(tmp_path / "peers", terms(rounds), list(frames()), LINKS))
        return made[-1]

    yield make
    for network in made:
        network.stop()


@pytest.mark.links
@pytest.mark.long
def test_backups_of_a_running_peer_are_whole_and_a_killed_backup_disturbs_nobody(loopback, tmp_path):
    network = loopback(60)
    for name in network.homes:
        network.start(name)
    home, backups = network.homes["peer-1"], []
    rng = np.random.default_rng(0)
    for moment in range(5, 55, 10):
        until_round(network, "peer-1", moment)
        target = tmp_path / f"{moment}.backup"
        arguments = [sys.executable, "-m", "peerbayes", "peer", "backup", str(home.folder), str(target)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE) as killed:
            time.sleep(rng.uniform(0.0, 2.0))
            killed.send_signal(signal.SIGKILL)
        if target.exists():  # killed after it was in place: it was whole before that
            with opened(target, tmp_path / f"killed-{moment}") as backup:
                refuse_broken(backup.folder / "state.sqlite", backup.folder / "audit.jsonl")
        else:
            assert killed.returncode == -signal.SIGKILL
        peerbayes("peer", "backup", home.folder, target, code=0)
        backups.append(target)
    finished(network)
    assert "peerbayes:" not in log_text(network, "peer-1")
    for number, target in enumerate(backups):
        with opened(target, tmp_path / f"of-{number}") as backup:
            refuse_broken(backup.folder / "state.sqlite", backup.folder / "audit.jsonl")
        new = Home(tmp_path / f"of-{number}")
        restore(target, new.folder)
        assert ledger(new) >= ledger(home) - 1e-9


@pytest.mark.links
@pytest.mark.long
def test_neighbours_tell_a_restored_peer_whether_its_run_goes_on(loopback, tmp_path):
    network = loopback(2000)
    for name in network.homes:
        network.start(name)
    home = network.homes["peer-1"]
    until_round(network, "peer-1", 5)
    old, new = tmp_path / "old.backup", tmp_path / "new.backup"
    peerbayes("peer", "backup", home.folder, old, code=0)
    until_round(network, "peer-1", 12)
    network.processes["peer-1"].kill()
    network.processes["peer-1"].wait(HANG)
    peerbayes("peer", "backup", home.folder, new, code=0)
    left, said = (
        ledger(home),
        {(entry["to"], entry["what"], entry["digest"]) for entry in entries(home.audit_path)},
    )
    rows = (home.folder / "rows.csv").read_bytes()
    shutil.rmtree(home.folder)
    done = peerbayes("peer", "restore", new, home.folder, code=0)
    assert "Run 1 goes on after round" in done.stdout and "peer-2, peer-3" in done.stdout
    (home.folder / "rows.csv").write_bytes(rows)
    before = Stored_round(home)
    network.start("peer-1")
    until_round(network, "peer-1", before + 5)
    network.processes["peer-1"].kill()
    network.processes["peer-1"].wait(HANG)
    lines = {(entry["to"], entry["what"], entry["digest"]) for entry in entries(home.audit_path)}
    of_round = {}
    for to, what, digest in lines | said:
        if to and "round" in what:
            of_round.setdefault((to, what), set()).add(digest)
    assert all(
        len(digests) == 1 for digests in of_round.values()
    )  # nothing was said twice in different words
    assert ledger(home) >= left
    left = ledger(home)
    shutil.rmtree(home.folder)
    done = peerbayes("peer", "restore", old, home.folder, code=3)
    assert "is given up" in done.stdout and "Neighbours have later messages than the backup" in done.stdout
    assert ledger(home) >= left - 1e-9 and not home.state_path.exists()


@pytest.mark.long
def test_a_restore_killed_at_any_moment_is_completed_by_another(made, tmp_path):
    rng = np.random.default_rng(1)
    expected = planned_cost(Promise(EPSILON, DELTA))
    for number in range(12):
        home = Home(tmp_path / f"killed-{number}")
        arguments = [
            sys.executable,
            "-m",
            "peerbayes",
            "peer",
            "restore",
            str(made.early),
            str(home.folder),
            "--offline",
        ]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, env={**os.environ}) as killed:
            time.sleep(rng.uniform(0.3, 3.0))
            killed.send_signal(signal.SIGKILL)
        assert not home.state_path.exists()
        restore(made.early, home.folder)
        assert math.isclose(ledger(home), expected) and home.load().name == "peer-1"
        refuse_broken(home.state_path, home.audit_path)
        assert not unfinished(home)


def test_a_running_peer_is_not_restored_over(made, folder):
    from peerbayes.peer.state.disk import lock

    with lock(folder), pytest.raises(PeerError, match="already running"):
        restore(made.late, folder.folder)


def test_commands_say_what_they_did(made, tmp_path):
    done = peerbayes("peer", "backup", made.home.folder, tmp_path / "b", "--without-key", code=0)
    assert "without its key" in done.stdout
    done = peerbayes("peer", "restore", tmp_path / "b", tmp_path / "new", "--offline", code=3)
    assert re.search(
        r"Run 1 is given up after round \d+ \(it is not known what was sent since\)", done.stdout
    )
    assert "Brought back: " in done.stdout and "The backup has no key" in done.stdout
    assert Path(tmp_path / "new" / "peer.toml").exists()


@pytest.mark.long
def test_a_full_disk_leaves_the_last_backup_and_no_half_restored_folder(made, tmp_path):
    """In a file system of 128 KB: neither a backup nor a restored folder has room."""
    small, old = tmp_path / "small", tmp_path / "old"
    small.mkdir()
    old.write_bytes(b"the last backup")
    command = f"'{sys.executable}' -m peerbayes peer"
    script = f"""
        mount -t tmpfs -o size=128k none '{small}' || exit 77
        cp '{old}' '{small}/b'
        {command} backup '{made.home.folder}' '{small}/b' --overwrite; echo "backup ended with $?"
        cmp '{old}' '{small}/b' && echo "the last one is there"
        {command} restore '{made.late}' '{small}/new' --offline; echo "restore ended with $?"
        ls -A '{small}'
    """
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=HANG)
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("this user may not mount a small file system")
    assert "backup ended with 1\n" in done.stdout and "the last one is there" in done.stdout, done.stdout
    assert "restore ended with 1\n" in done.stdout and "No space left" in done.stderr
    assert done.stdout.split("restore ended with 1\n")[1].split() == ["b"], done.stdout
    assert "Traceback" not in done.stderr
