"""What an operator meets: each with its sentence, its exit code and what `status` shows meanwhile."""

import asyncio
import contextlib
import errno
import json
import os
import re
import socket
import sqlite3
import ssl
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

pytest.importorskip("cryptography")
from peerbayes.data import files
from peerbayes.errors import NeedsPerson
from peerbayes.peer import service
from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.identity import keys
from peerbayes.peer.loopback import free_ports
from peerbayes.peer.prometheus import Exported, metrics_of, metrics_of_member
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.failures import meaning
from peerbayes.peer.renewing import Renewed
from peerbayes.peer.service import person_needed
from peerbayes.peer.state import disk as room
from peerbayes.peer.state.audit_log import AuditLog
from peerbayes.peer.state.disk import WAITING, Room, is_full, lock, phase
from peerbayes.peer.state.store import RoundRecord, Store
from peerbayes.peer.status import LINES, status, warnings_of
from shared.commands import HANG, peerbayes
from shared.peers_in_memory import Peers, peers_of, shared_out
from shared.real_calls import LINE, made_network, node_of, within

pytestmark = pytest.mark.long  # neighbours and machines that do the worst: minutes

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


def node(*words, code=None):
    return peerbayes("peer", *words, code=code)


@pytest.fixture
def home(tmp_path):
    """The folder of one of three peers."""
    return made_network(tmp_path, LINE).homes["peer-2"]


# --- a full disk -----------------------------------------------------------------------------------------


def full_database(path):
    """A database that cannot grow."""
    store = Store(path)
    store._db.execute("PRAGMA max_page_count = 1")
    return store


def test_a_full_disk_is_known_from_other_errors(tmp_path):
    with contextlib.closing(full_database(tmp_path / "state.sqlite")) as store:
        with pytest.raises(sqlite3.OperationalError, match="full") as full:
            store.add_round(RoundRecord(0, (np.ones((50, 50)),), {}, (), ()))
        assert is_full(full.value) and store.last() is None and not store._db.in_transaction
        store._db.execute("PRAGMA max_page_count = 1000000")
        store.add_round(
            RoundRecord(0, (np.ones((50, 50)),), {}, (), ())
        )  # nothing is left of the first attempt
        assert store.last()[0] == 0
    assert is_full(NO_SPACE) and is_full(OSError(errno.EDQUOT, "quota"))
    assert not is_full(PermissionError(errno.EACCES, "no")) and not is_full(
        sqlite3.OperationalError("locked")
    )


def test_a_full_disk_is_said_once_and_ends_with_the_last_write_that_had_failed():
    said = []
    disk = Room(said.append)
    assert disk.note("audit", NO_SPACE) and disk.note("round", NO_SPACE) and disk.note("round", NO_SPACE)
    assert said == ["disk full"] and not disk.note("round", ValueError())
    disk.clear("audit")
    disk.clear("model")
    assert disk.full
    disk.clear("round")
    assert said == ["disk full", "disk has room"] and not disk.full


class Disk:
    """A disk that is full as long as it is told to be; and what failed on it."""

    def __init__(self, monkeypatch):
        self.full, self.failed = True, 0
        monkeypatch.setattr(room, "PAUSE", 0.01)

    def on(self, call, only=None):
        """The same call, on this disk; or only where its first argument is this."""

        def tried(*given, **named):
            if self.full and only in (None, *given[:1]):
                self.failed += 1
                raise NO_SPACE
            return call(*given, **named)

        return tried


PHASES = {
    "agreement: claim": lambda node: (node.store, "claim"),
    "agreement: a sum": lambda node: (node.store, "add_sum"),
    "rounds": lambda node: (node.store, "add_round"),
    "verdict": lambda node: (node.store, "keep", "verdict"),
    "audit log": lambda node: (node.audit, "add"),
}


@pytest.mark.parametrize("which", [*PHASES, "model"])
def test_nothing_is_lost_on_a_full_disk_and_it_goes_on_when_there_is_room(which, tmp_path, monkeypatch, rng):
    terms, shared = (
        Terms("test", "label", rounds=12, limits=Limits(deadline=HANG), strategy="exact"),
        shared_out(rng),
    )
    (tmp_path / "well").mkdir()
    (tmp_path / "full").mkdir()
    undisturbed = asyncio.run(peers_of(tmp_path / "well", terms, nx.path_graph(5), shared).all())
    peers, disk = peers_of(tmp_path / "full", terms, nx.path_graph(5), shared), Disk(monkeypatch)

    async def run():
        tasks = [peers.start(name) for name in peers.names]
        if which == "model":
            monkeypatch.setattr(files, "write", disk.on(files.write))
        else:
            what, name, *only = PHASES[which](peers.nodes["p1"])
            monkeypatch.setattr(what, name, disk.on(getattr(what, name), *only))
        suffering = peers.names if which == "model" else ["p1"]
        await peers.until(
            lambda: disk.failed > 3 and all(peers.nodes[n].session.room.full for n in suffering)
        )
        assert peers.nodes["p1"].session.phase == WAITING
        disk.full = False
        return await asyncio.wait_for(asyncio.gather(*tasks), HANG)

    after = asyncio.run(run())
    assert np.allclose(after, undisturbed, rtol=1e-9, atol=1e-12)
    events = [what for what, _ in peers.told["p1"]]
    assert events.count("disk full") == events.count("disk has room") == 1
    assert peers.rounds("p1") == list(range(13))
    assert (
        "waiting for disk space" in LINES["disk full"] and "goes on when there is room" in LINES["disk full"]
    )


def test_what_was_refused_while_the_disk_was_full_is_written_later(tmp_path):
    from peerbayes.peer.status import Journal

    with contextlib.closing(Store(tmp_path / "state.sqlite")) as store:
        journal = Journal(store)
        journal.refused("b", "wrong round", "first")
        store._db.execute("PRAGMA query_only = 1")
        with pytest.raises(sqlite3.OperationalError):
            journal.flush({})
        journal.refused("b", "wrong round", "second")
        store._db.execute("PRAGMA query_only = 0")
        journal.flush({})
        [entry] = store.refusals()
        assert (entry["count"], entry["detail"]) == (2, "second")


def test_status_shows_what_a_process_is_at_and_needs_no_room_for_it(home, monkeypatch):
    assert phase(home) is None and status(home)["phase"] == "not running"
    with lock(home) as held:
        size = (home.folder / "peer.lock").stat().st_size
        held.tell(WAITING)
        assert (home.folder / "peer.lock").stat().st_size == size  # written in place
        assert status(home)["phase"] == WAITING
        assert f"running, {WAITING}, round 0 of 30" in node("status", home.folder, code=0).stdout
    assert phase(home) is None


@contextlib.contextmanager
def small_disk(folder, kilobytes):
    """A disk of this size at a folder; skipped where that is not allowed."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k,mode=700", "tmpfs", str(folder)],
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.links
def test_a_process_on_a_full_disk_waits_shows_it_and_comes_to_its_end(tmp_path):
    network = made_network(tmp_path, LINE, rounds=6)
    home = network.homes["peer-2"]
    kept = {path.name: path.read_bytes() for path in home.folder.iterdir()}
    with small_disk(home.folder, 2048):
        for name, content in kept.items():
            (home.folder / name).write_bytes(content)
            (home.folder / name).chmod(0o600)
        log = tmp_path / "peer-2.log"
        try:
            with log.open("wb") as file:
                process = subprocess.Popen(
                    [sys.executable, "-m", "peerbayes", "peer", "run", str(home.folder)],
                    stderr=file,
                    env=os.environ,
                )
            until(lambda: "agreeing" in (phase(home) or "") or process.poll() is not None)
            filler = home.folder / "filler"
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(512))
            for name in ("peer-1", "peer-3"):
                network.start(name)
            until(lambda: phase(home) == WAITING or process.poll() is not None)
            shown = node("status", home.folder, code=0).stdout
            assert f"running, {WAITING}" in shown
            filler.unlink()
            assert process.wait(HANG) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()
            network.stop()
        said = log.read_text()
        assert said.count("the disk is full") == 1 and said.count("there is room on the disk again") == 1
        assert "Traceback" not in said
        assert status(home)["round"] == 6 and home.model_path.exists() and status(home)["audit"]["ok"]


def until(what):
    end = time.monotonic() + HANG
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


# --- what needs a person: exit code 2 --------------------------------------------------------------------


def changed_rows(home):
    with contextlib.closing(Store(home.state_path)) as store:
        store.claim({"data": ("of other rows", "")})
    return contextlib.nullcontext()


def port_in_use(home):
    return socket.create_server(("127.0.0.1", int(home.settings().listen.rpartition(":")[2])))


def of_another_user(home):
    """Root may read everything: be somebody else for a while."""
    home.key_path.chmod(0)
    if os.geteuid():
        return contextlib.nullcontext()
    for path in (home.folder, *home.folder.parents):
        if path.stat().st_uid == 0 and path.stat().st_mode & 0o005 != 0o005 and len(path.parts) > 2:
            path.chmod(path.stat().st_mode | 0o055)
    home.folder.chmod(0o777)
    for path in home.folder.iterdir():
        if path != home.key_path:
            path.chmod(0o666)
    return as_user(65534)


@contextlib.contextmanager
def as_user(number):
    os.seteuid(number)
    try:
        yield
    finally:
        os.seteuid(0)


def without_rows(home):
    (home.folder / "rows.csv").unlink()
    return contextlib.nullcontext()


def without_key(home):
    home.key_path.unlink()
    return contextlib.nullcontext()


def in_use(home):
    return lock(home)


def damaged_state(home):
    home.state_path.write_bytes(b"no database" * 1000)
    return contextlib.nullcontext()


NEED_A_PERSON = {
    "changed rows": (changed_rows, "belongs to a run with other rows: the data has changed"),
    "port in use": (
        port_in_use,
        "cannot be listened on: another program uses the port; stop it, or name another port",
    ),
    "wrong permissions": (
        of_another_user,
        "peer.key cannot be used: this user may not use it: give it to the user",
    ),
    "missing rows": (without_rows, "which does not exist; check its name and folder"),
    "missing key": (without_key, "peer.key is missing"),
    "two processes": (in_use, "is in use: this peer is already running; stop that process first"),
    "damaged state": (damaged_state, "cannot be used as a peer's state"),
}


@pytest.mark.parametrize("what", NEED_A_PERSON)
def test_what_needs_a_person_ends_with_exit_code_2_and_one_sentence(what, home):
    spoil, sentence = NEED_A_PERSON[what]
    with spoil(home):
        done = node("run", home.folder)
    assert done.returncode == 2, done.stdout + done.stderr
    [told] = [line for line in done.stderr.splitlines() if line.startswith("peerbayes:")]
    assert sentence in told and "Traceback" not in done.stderr


def test_a_read_only_folder_needs_a_person(home):
    with (
        pytest.raises(
            NeedsPerson, match=r"peer\.lock cannot be used: it is on a file system that is read-only"
        ),
        person_needed(home.folder),
    ):
        raise OSError(errno.EROFS, "Read-only file system", str(home.folder / "peer.lock"))
    with contextlib.closing(Store(home.state_path)) as store, pytest.raises(NeedsPerson, match="read-only"):
        store._db.execute("PRAGMA query_only = 1")
        with person_needed(home.folder):
            store.keep("a", "b")
    with pytest.raises(OSError, match="I/O error"), person_needed(home.folder):
        raise OSError(errno.EIO, "I/O error")  # may go better the next time: exit code 1


def test_a_mounted_read_only_folder_ends_with_exit_code_2(home):
    kept = {path.name: path.read_bytes() for path in home.folder.iterdir()}
    with small_disk(home.folder, 1024):
        for name, content in kept.items():
            (home.folder / name).write_bytes(content)
        remounted = subprocess.run(["mount", "-o", "remount,ro", str(home.folder)], capture_output=True)
        if remounted.returncode:
            pytest.skip("a disk cannot be made read-only here")
        done = node("run", home.folder, code=2)
    assert (
        "is on a file system that is read-only: make that writable, or move the peer's folder" in done.stderr
    )


def test_a_certificate_that_has_ended_needs_a_person(home, monkeypatch):
    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=826)

    monkeypatch.setattr("peerbayes.peer.state.folder.datetime", Later)
    done = node("run", home.folder, code=2)
    assert (
        "the certificate of peer-2 expired on" in done.stderr
        and "ask the founder for a new one" in done.stderr
    )


def test_a_folder_without_a_peer_needs_a_person(tmp_path, home):
    assert "peer.toml cannot be read" in node("run", tmp_path, code=2).stderr
    assert "is not a folder; make one with" in node("run", tmp_path / "nowhere", code=2).stderr


def test_the_service_unit_does_not_start_again_what_needs_a_person_or_came_to_its_end():
    unit = (Path(__file__).parents[2] / "docs" / "deploy" / "peerbayes.service").read_text()
    assert "\nRestartPreventExitStatus=2 3\n" in unit


# --- members that are gone before the agreement ----------------------------------------------------------


def four_in_a_line(folder, rng):
    X, y, parts = shared_out(rng)
    terms = Terms("test", "label", rounds=4, limits=Limits(deadline=HANG), strategy="exact")
    return Peers(folder, terms, nx.path_graph(4), [(X.iloc[part], y[part]) for part in parts[1:]])


def test_nobody_waits_for_a_member_that_left_before_everybody_had_agreed(tmp_path, rng):
    """Only its neighbours hear that it left: they stop, and tell theirs."""
    peers = four_in_a_line(tmp_path, rng)

    async def run():
        tasks = [peers.start(name) for name in ("p0", "p1", "p2")]
        await peers.until(
            lambda: all(("agreeing", {"phase": "columns"}) in peers.told[n] for n in ("p0", "p1", "p2"))
        )
        answer = peers.nodes["p2"].answer
        leaving = wire.Request(wire.VERSION, peers.roster.run, "p3", "leave")
        await answer("p3", wire.encode(leaving))
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), HANG)

    for error in asyncio.run(run()):
        assert isinstance(error, NeedsPerson), error
        assert (
            "before everybody had agreed, and no run can begin without a member; create another network"
            in str(error)
        )


def test_nobody_waits_for_a_member_that_was_revoked_far_away(tmp_path, rng):
    """The roster tells everybody, also those that have no link to it."""
    peers = four_in_a_line(tmp_path, rng)

    async def run():
        tasks = [peers.start(name) for name in ("p0", "p1")]
        await peers.until(
            lambda: all(("agreeing", {"phase": "columns"}) in peers.told[n] for n in ("p0", "p1"))
        )
        revoked = peers.roster.with_revoked("p3")
        for name in ("p0", "p1"):
            peers.nodes[name].newer = lambda signed: revoked
            peers.nodes[name].adopt(b"signed")
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), HANG)

    for error in asyncio.run(run()):
        assert isinstance(
            error, NeedsPerson
        ) and "p3 was revoked, or left, before everybody had agreed" in str(error)


def test_a_peer_that_is_revoked_while_it_runs_stops_and_says_so(tmp_path, rng):
    peers = four_in_a_line(tmp_path, rng)

    async def run():
        task = peers.start("p0")
        await peers.until(lambda: ("agreeing", {"phase": "columns"}) in peers.told["p0"])
        revoked = peers.roster.with_revoked("p0")
        peers.nodes["p0"].newer = lambda signed: revoked
        peers.nodes["p0"].adopt(b"signed")
        [error] = await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), HANG)
        return error

    error = asyncio.run(run())
    assert isinstance(
        error, NeedsPerson
    ) and "p0 was revoked in test, as roster 2 says; ask the founder" in str(error)


# --- status: the audit log, warnings ---------------------------------------------------------------------


def test_a_damaged_audit_log_is_reported_beside_the_status(home):
    log = AuditLog(home.audit_path)
    for number in range(3):
        log.add("peer-1", f"round {number}", 100, b"")
    log.close()
    lines = home.audit_path.read_bytes().splitlines(keepends=True)
    home.audit_path.write_bytes(lines[0] + lines[2])
    done = node("status", home.folder, "--format", "json", code=1)
    told = json.loads(done.stdout)
    assert not told["audit"]["ok"] and "line 2: it does not match the line before" in told["audit"]["problem"]
    assert told["sent"] == {"messages": 1, "bytes": 100} and told["round"] == 0 and told["neighbours"]
    shown = node("status", home.folder, code=1).stdout
    assert "peer-2 in net: not running" in shown and "the audit log cannot be trusted" in shown
    home.audit_path.write_bytes(b"".join(lines))
    assert status(home)["audit"] == {"ok": True, "problem": None}
    node("status", home.folder, code=0)


def test_a_key_that_others_can_read_and_a_certificate_that_ends_soon_are_warned_of(home):
    peer, ends = home.load(), keys.expiry(home.certificate_path.read_bytes())
    assert warnings_of(home, peer) == [] == warnings_of(home, peer, ends - timedelta(days=31))
    [soon] = warnings_of(home, peer, ends - timedelta(days=29, hours=1))
    assert soon.startswith(
        f"the certificate of peer-2 ends in 29 days, on {ends:%Y-%m-%d}, and was not renewed; ask now"
    )
    Renewed(problem="peer-1: not yet").keep(home)
    assert "and was not renewed (peer-1: not yet); ask now" in warnings_of(home, peer, ends)[0]
    home.key_path.chmod(0o640)
    [readable] = warnings_of(home, peer)
    assert f"{home.key_path} can be read by others (mode 0640); make it private with `chmod 600" in readable
    assert readable in status(home)["warnings"]
    assert "warning: " in node("status", home.folder, code=0).stdout
    found = json.loads(node("check", home.folder, "--format", "json").stdout)
    assert {"what": "folder", "outcome": "warning", "told": readable} in found


def test_the_log_of_a_run_begins_with_the_warnings(home, caplog):
    home.key_path.chmod(0o644)
    (home.folder / "rows.csv").write_text((home.folder / "rows.csv").read_text())
    with port_in_use(home):  # so that it ends
        node("run", home.folder, code=2)
    assert "peer.key can be read by others (mode 0644)" in caplog.text


@pytest.mark.links
def test_a_peer_that_nobody_has_ever_reached_says_so(tmp_path, monkeypatch):
    """It reaches a neighbour that answers, and is asked nothing itself."""
    monkeypatch.setattr(service, "ALONE", 0.0)
    monkeypatch.setattr(service, "FLUSH", 0.05)
    network = made_network(tmp_path, LINE)
    home = network.homes["peer-1"]

    async def run():
        with node_of(network.homes["peer-2"]) as (neighbour, _):
            await neighbour.transport.serve(neighbour.answer)
            work = asyncio.create_task(service.serve(home, 0.0))
            try:
                while not any("nobody has reached this peer" in warning for warning in warnings()):
                    await asyncio.sleep(0.05)
                await neighbour.transport.ask(
                    "peer-1", wire.encode(neighbour.session.request("peer-1", "hello")), HANG
                )
                while any("nobody has reached this peer" in warning for warning in warnings()):
                    await asyncio.sleep(0.05)
            finally:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                await neighbour.transport.close()

    def warnings():
        with (
            contextlib.closing(Store(home.state_path, readonly=True))
            if home.state_path.exists()
            else (contextlib.nullcontext()) as store
        ):
            return [] if store is None else [store.value("unreached") or ""]

    within(run())


# --- a neighbour that cannot reach this host -------------------------------------------------------------


def found_by_check(home, running):
    """What `check` of one peer finds while another one runs."""

    async def run():
        with node_of(running) as (neighbour, _):
            await neighbour.transport.serve(neighbour.answer)
            try:
                return await asyncio.to_thread(node, "check", home.folder, "--format", "json")
            finally:
                await neighbour.transport.close()

    done = within(run())
    return done.returncode, {
        finding["what"]: (finding["outcome"], finding["told"]) for finding in json.loads(done.stdout)
    }


@pytest.mark.links
def test_check_has_a_neighbour_call_back(tmp_path):
    network = made_network(tmp_path, LINE)
    code, found = found_by_check(network.homes["peer-1"], network.homes["peer-2"])
    assert found["neighbour peer-2"][0] == "ok"
    address = network.homes["peer-1"].settings().address
    assert found["reached by peer-2"] == ("ok", f"at {address}") and code == 0


def test_check_says_here_that_a_neighbour_cannot_reach_this_host(tmp_path, monkeypatch):
    """Nobody listens at the address that the roster has: the port is not forwarded. Links that it opens carry a run."""
    monkeypatch.setattr("peerbayes.peer.protocol.server.WITHIN", 0.6)
    network = made_network(tmp_path, LINE)
    home, [elsewhere] = network.homes["peer-1"], free_ports(1)
    address = home.settings().address
    text = home.settings_path.read_text().replace(
        f'listen = "{address}"', f'listen = "127.0.0.1:{elsewhere}"'
    )
    home.settings_path.write_text(text.replace("# listen", "listen"))
    code, found = found_by_check(home, network.homes["peer-2"])
    outcome, told = found["reached by peer-2"]
    assert code == 0 and outcome == "warning" and found["neighbour peer-2"][0] == "ok"
    assert told.startswith(f"peer-2 cannot reach this peer at {address}. Its error: peer-1 at")
    assert "It hears this peer over the connection that this peer opens" in told
    assert "refuses connections" in told and f"Open TCP port {address.rpartition(':')[2]} inwards" in told


def test_nobody_is_called_back_twice_at_once_or_without_a_link(tmp_path, monkeypatch):
    monkeypatch.setattr("peerbayes.peer.protocol.server.WITHIN", 0.6)
    network = made_network(tmp_path, LINE)

    async def run():
        with node_of(network.homes["peer-1"]) as (asked, told):
            for caller in ("peer-2", "peer-2", "peer-3"):
                request = wire.Request(wire.VERSION, asked.session.roster.run, caller, "call back")
                await asked.answer(caller, wire.encode(request))
            return [(facts["who"], facts["reason"]) for what, facts in told if what == "refused"]

    assert within(run()) == [("peer-2", "too many at once"), ("peer-3", "not a neighbour")]


def test_no_raw_text_of_a_connection_is_shown():
    raw = "[SSL: SOMETHING_ODD] tcp handshaker shutdown (_ssl.c:1006)"
    for error in (ssl.SSLError(1, raw), OSError(errno.EPIPE, raw), TimeoutError(raw), RuntimeError(raw)):
        said = meaning(error)
        assert "handshaker" not in said and "_ssl" not in said and said.split()[0] in ("closed", "did")


# --- metrics ---------------------------------------------------------------------------------------------


def test_metrics_carry_what_status_has(home):
    told = status(home) | {
        "phase": "rounds", "running": True, "round": 7, "missing": {"peer-1": 3},
        "refusals": [{"reason": "wrong round", "count": 2}, {"reason": "wrong round", "count": 5}],
        "sent": {"messages": 4, "bytes": 1234}, "verdict": {"good": False},
        "judged": {"round": 7, "train_error": 0.25, "soft_error": 0.3, "test_error": 0.5, "disagreement": 0.125},
    }  # fmt: skip
    told["neighbours"]["peer-1"] |= {"seen": 1000.0, "state": "up"}
    told["neighbours"]["peer-0"] = {"seen": 1000.0, "state": "left", "usual": None}
    values = {
        (metric.name, *labels.values()): value
        for metric in (*metrics_of_member(told), *metrics_of(told, 1010.0, exact=True))
        for labels, value in metric.values
    }
    expected = {
        ("peerbayes_phase", "rounds"): 1.0, ("peerbayes_round",): 7.0, ("peerbayes_rounds",): 30.0,
        ("peerbayes_running",): 1.0, ("peerbayes_neighbour_up", "peer-1"): 1.0,
        ("peerbayes_neighbour_up", "peer-3"): 0.0,
        ("peerbayes_neighbour_last_message_seconds", "peer-1"): 10.0, ("peerbayes_sent_bytes",): 1234.0,
        ("peerbayes_refused_messages", "wrong round"): 7.0, ("peerbayes_missed_messages", "peer-1"): 3.0,
        ("peerbayes_verdict_good",): 0.0, ("peerbayes_audit_log_ok",): 1.0, ("peerbayes_test_error",): 0.5,
    }  # fmt: skip
    assert expected.items() <= values.items() and ("peerbayes_neighbour_up", "peer-0") not in values
    assert 824 < values["peerbayes_certificate_days",] <= 826

    private = told | {"privacy": {"spent": 1.5, "with_earlier_runs": 2.5, "allowed": 4.0}}
    found = {metric.name: metric.values for metric in metrics_of(private, 1010.0, exact=False)}
    assert found["peerbayes_epsilon_spent"] == [({}, 1.5)] and found["peerbayes_ledger_epsilon"] == [
        ({}, 2.5)
    ]
    assert found["peerbayes_ledger_epsilon_limit"] == [({}, 4.0)]
    names = set(found)
    assert not names & {
        "peerbayes_verdict_good",
        "peerbayes_test_error",
        "peerbayes_train_error",
        "peerbayes_disagreement",
    }


def test_metrics_of_a_site_are_of_the_runs_that_go_on_or_the_last_one(tmp_path):
    runs = []
    exported = Exported(made_network(tmp_path, LINE).homes["peer-2"])
    for number in (1, 2, 3):
        home = exported.home.of_run(number)
        home.records.mkdir(parents=True, exist_ok=True)
        home.state_path.touch()
        runs.append(home)
    runs[0].outcome_path.touch()
    assert exported._runs() == runs[1:]
    for home in runs:
        home.outcome_path.touch()
    assert exported._runs() == runs[2:]


def test_the_exit_codes_are_told_by_help_and_in_one_table():
    shown = " ".join(node("run", "--help", code=0).stdout.split())
    page = (Path(__file__).parents[2] / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    for code in ("0", "1", "2", "3", "130"):
        assert f"\n| {code} |" in page and re.search(rf"\b{code}\b", shown)
    assert "Exit codes" in shown
