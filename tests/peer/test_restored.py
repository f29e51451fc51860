"""Folders that were restored, rolled back, deleted or copied: the peer stops, and its ledger has all that left."""

import asyncio
import contextlib
import json
import math
import re
import shutil
import time
from dataclasses import replace

import msgspec
import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peerbayes.errors import BrokenRecord, IdentityError, NeedsPerson, OtherProcess
from peerbayes.peer import tasks
from peerbayes.peer.agreement.column_facts import Facts
from peerbayes.peer.agreement.terms import Limits, Privacy, Terms
from peerbayes.peer.identity.founder import Founder
from peerbayes.peer.loopback import Loopback, free_ports
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.copies import Processes
from peerbayes.peer.protocol.session import Session
from peerbayes.peer.protocol.transport import Unreachable
from peerbayes.peer.protocol.wire import Process, Reply
from peerbayes.peer.running_peer import Membership, RunningPeer
from peerbayes.peer.service import set_aside
from peerbayes.peer.state.audit_log import AuditLog, Log, OfState, Position, entries
from peerbayes.peer.state.folder import Home
from peerbayes.peer.state.ledger import (
    Ledger,
    Stored,
    current,
    earlier,
    epsilon_of,
    problem_of,
    refuse_broken,
    spent,
)
from peerbayes.peer.state.store import Store
from peerbayes.privacy.accounting import mu_of
from shared.commands import HANG, SOAK, peerbayes
from shared.memory_transport import Hub, InMemory
from shared.peer_processes import finished, log_text, until_round
from shared.peers_in_memory import Peers, running

pytestmark = pytest.mark.usefixtures("impatient")

ROUNDS = 8
TRIANGLE = nx.complete_graph(3)
EPSILON, DELTA = 4.0, 1e-5
STATE, LOG = "state.sqlite", "audit.jsonl"


def terms(rounds=ROUNDS, **privacy):
    return Terms(
        "test", "y", {"x": "continuous"}, {"x": Facts(1.0, 1.0)}, ("a", "b"), rounds=rounds,
        privacy=Privacy(epsilon=EPSILON, rows=60.0, **privacy), limits=Limits(deadline=HANG), strategy="exact",
    )  # fmt: skip


def tables(count=3):
    rng = np.random.default_rng(0)
    for _ in range(count):
        labels = np.array(["a", "b"] * 30)
        yield pd.DataFrame({"x": (labels == "b") + rng.normal(size=60)}), labels


class Overheard(InMemory):
    """A peer whose replies are written down as they leave it: round, receiver, state and digest."""

    left: set[tuple[int, str, str, bytes]]

    async def serve(self, answer):
        async def answered(caller, content):
            reply = await answer(caller, content)
            said = msgspec.msgpack.decode(reply, type=Reply)
            if said.kind in wire.OF_ROUND and said.status == "ok":
                self.left.add((said.round_index, caller, said.process.state, bytes(said.digest)))
            return reply

        await super().serve(answered)


class Watched(Peers):
    """Private peers of which the first is meddled with; `left` has every message of a round that left it."""

    def __init__(self, folder, agreed, graph=TRIANGLE):
        super().__init__(folder, agreed, graph, list(tables(len(graph))))
        self.left, self.home = set(), Home(folder / "p0")
        self.synced, self.power = 0, True
        honest = self.hub.transport

        def transport(name):
            if name != "p0":
                return honest(name)
            overheard = Overheard(self.hub, name)
            overheard.left = self.left
            return overheard

        self.hub.transport = transport

    def started(self, name):
        """Start as `peer run` does: not with a state and a log that do not belong together."""
        home = Home(self.folder / name)
        refuse_broken(home.state_path, home.audit_path)
        task = self.start(name, linger=HANG)
        if name == "p0":
            self._watch_sync(self.nodes[name].audit)
        return task

    def _watch_sync(self, audit):
        """Know how much of the log no power cut can take, until the power goes."""
        sync = audit.sync

        def watched():
            size = audit.path.stat().st_size
            position = sync()
            if self.power:
                self.synced = size
            return position

        audit.sync = watched

    def second(self, folder):
        """A process of the first peer with a copy of its folder."""
        node = RunningPeer(
            Membership("p0", self.terms, self.roster), *self.tables["p0"], Store(folder / STATE),
            self.hub.transport("p0"), AuditLog(folder / LOG), linger=HANG,
        )  # fmt: skip
        return running(node)

    async def run(self, rounds, copy=None):
        """Let all run until the first has so many more rounds or ends, or its copy does; what stopped it is raised."""
        self.power, self.synced = True, 0
        tasks = {name: self.started(name) for name in self.names}
        if copy is not None:
            tasks["copy"] = self.second(copy)
        try:
            await asyncio.sleep(0)  # let all begin, so that all end
            node = self.nodes["p0"]
            begun = node.store.round()
            goal = min((-1 if begun is None else begun) + rounds, self.terms.rounds)
            watched = [tasks[name] for name in ("p0", "copy") if name in tasks]
            async with asyncio.timeout(HANG):
                while not any(task.done() for task in watched) and node.session.round_index < goal:
                    await asyncio.sleep(0.002)
            for task in watched:
                if task.done():
                    task.result()
        finally:
            self.power = False
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    @property
    def spent(self):
        """μ² of everything that left, by the bytes: a release more for every message of a round that differs.

        Where messages are masked, each receiver has its own.
        """
        messages = {}
        for turn, receiver, _, digest in self.left:
            key = turn, receiver if self.terms.privacy.secure_sum else ""
            messages.setdefault(key, set()).add(digest)
        rounds = {}
        for (turn, _), digests in messages.items():
            rounds[turn] = max(rounds.get(turn, 0), len(digests))
        return sum(rounds.values()) * mu_of(EPSILON, DELTA) ** 2 / self.terms.rounds

    @property
    def ledger(self):
        """μ² by the ledger of the folder."""
        return math.fsum(entry["cost"] for entry in [*current(self.home), *earlier(self.home)])


def snapshot(home, target):
    """A backup of the state and the log."""
    target.mkdir(parents=True)
    for path in home.folder.iterdir():
        if path.name.startswith((STATE, LOG)):
            shutil.copy(path, target)
    return target


def restore(source, home, *names):
    """Bring back files from a backup, with whatever SQLite has beside them."""
    for name in names:
        delete(home, name)
        for path in source.glob(f"{name}*"):
            shutil.copy(path, home.folder)


def delete(home, *names):
    for name in names:
        for path in home.folder.glob(f"{name}*"):
            path.unlink()


# --- the rule --------------------------------------------------------------------------------------------


def log_of(state="s", start=1, rounds=0, releases=(), left=False, lines=10, chain="c", at_mark="c"):
    known = OfState(start=start, left=left)
    for turn in range(1, rounds + 1):
        known.messages[turn, "b"].add(f"d{turn}")
    for name in releases:
        known.releases[name].add(f"r{name}")
    return Log({state: known}, state, Position(lines, chain), at_mark)


MARK = Position(10, "c")


def stored_of(state="s", start=1, reached=5, releases=(), mark=MARK):
    said = {(turn, "b"): f"d{turn}" for turn in range(1, reached + 2)}
    return Stored(state, start, reached, said, {name: f"r{name}" for name in releases}, mark)


@pytest.mark.parametrize(
    ("stored", "log", "case"),
    [
        (stored_of(), log_of(rounds=6), None),
        (stored_of(), log_of(rounds=2), None),  # nobody has asked for more
        (stored_of(), Log(end=Position(0, "")), "log gone"),
        (stored_of(mark=None), Log(), None),  # it was stopped before anything left
        (stored_of(), log_of(rounds=6, lines=7, at_mark=None), "log restored"),
        (stored_of(), log_of(rounds=6, at_mark="other"), "other log"),
        (stored_of(), log_of(rounds=7), "state restored"),
        (stored_of(start=2), log_of(rounds=6, start=3), "state restored"),
        (stored_of(start=4), log_of(rounds=6, start=2), None),  # two starts that sent nothing
        (stored_of(releases=["units"]), log_of(releases=["units"]), None),
        (stored_of(releases=["units"]), log_of(), None),  # stored, and the power went
        (stored_of(), log_of(releases=["units"]), "state restored"),
        (stored_of(), log_of(rounds=6, left=True), "state left"),
        (stored_of(state="other"), log_of(rounds=6), "other state"),
        (None, log_of(rounds=1), "state gone"),
        (None, log_of(releases=["units"]), "state gone"),
        (None, log_of(), None),  # nothing left but what can be said again
        (None, log_of(rounds=6, left=True), None),
    ],
)
def test_a_log_that_knows_more_than_the_state_or_less_than_the_state_knows_of_it_is_not_of_it(
    stored, log, case
):
    problem = problem_of(stored, log)
    assert (problem and problem[0]) == case


def test_another_digest_is_another_story():
    log = log_of(rounds=6, releases=["round 1"])
    log.states["s"].messages[3, "b"] = {"other"}
    assert problem_of(stored_of(releases=["round 1"]), log) == (
        "other digest", "has a message of round 3 to b that differs from the one that was sent",
    )  # fmt: skip
    log = log_of(releases=["round 1"])
    log.states["s"].releases["round 1"].add("other")
    assert problem_of(stored_of(releases=["round 1"]), log)[0] == "other digest"


def test_what_an_earlier_version_left_behind_is_compared_as_far_as_it_can_be():
    """Its lines name no state, and it did not write down that a run was left."""
    assert problem_of(None, log_of(state="", rounds=3))[0] == "state gone"
    assert problem_of(None, log_of(state="", rounds=3), aside=True) is None
    stored, log = stored_of(state="", start=0, reached=1), log_of(state="", rounds=3, start=0)
    assert problem_of(stored, log)[0] == "state restored" and problem_of(stored, log, aside=True) is None


# --- real folders: the sentence, the exit code, and the way on ---------------------------------------------


class Stopped:
    """Real folders of three private peers that had some rounds and were stopped, and backups from earlier on."""

    def __init__(self, folder):
        frames = [frame.assign(y=labels) for frame, labels in tables()]
        self.network = Loopback.create(folder, terms(), frames, list(TRIANGLE.edges))
        self.home = self.network.homes["peer-1"]
        self.hub = Hub()
        asyncio.run(self._run(2))
        self.early = snapshot(self.home, folder / "early")
        asyncio.run(self._run(5))
        self.late = snapshot(self.home, folder / "late")

    async def _run(self, until):
        nodes = [self._node(home) for home in self.network.homes.values()]
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

    def _node(self, home):
        peer = home.load()
        frame = pd.read_csv(home.folder / "rows.csv")
        return RunningPeer(
            Membership(peer.name, peer.terms, peer.roster), frame[["x"]], frame["y"].to_numpy(),
            Store(home.state_path), self.hub.transport(peer.name), AuditLog(home.audit_path),
        )  # fmt: skip


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "WAIT", 0.2)
        patch.setattr(tasks, "GRACE", 0.2)
        return Stopped(tmp_path_factory.mktemp("stopped"))


@pytest.fixture
def folder(stopped, tmp_path):
    """The folder of the first peer as it was when it was stopped."""
    home = Home(tmp_path / "peer")
    shutil.copytree(stopped.home.folder, home.folder)
    return home


def changed_line(home):
    content = home.audit_path.read_bytes()
    home.audit_path.write_bytes(content.replace(b'"peer-2"', b'"peer-9"', 1))


def cut_short(home):
    lines = home.audit_path.read_bytes().splitlines(keepends=True)
    home.audit_path.write_bytes(b"".join(lines[:-4]))


def left_and_brought_back(home):
    set_aside(home).rename(home.state_path)


def another_message(home):
    """A state of the same rounds that says other things: as after a rollback, learning on and swapping the file."""
    with contextlib.closing(Store(home.state_path)) as store:
        turn = store.round()
        other = store._put(np.full((2, 3), 7.0), {})
        store._db.execute("UPDATE outbox SET digest = ? WHERE turn = ?", (other, turn))


CASES = {
    "state restored": (
        lambda home, stopped: restore(stopped.early, home, STATE),
        r"state\.sqlite ends after round \d, and the audit log says that the message of round \d was sent: it was "
        "restored from a backup or a snapshot",
    ),
    "state gone": (
        lambda home, stopped: delete(home, STATE),
        r"state\.sqlite is gone, or empty, and the audit log has round \d of a run that was not left",
    ),
    "log restored": (
        lambda home, stopped: restore(stopped.early, home, LOG),
        r"audit\.jsonl ends after line \d+, and the state knows of \d+ lines in it: it was cut, or restored",
    ),
    "log cut": (
        lambda home, stopped: cut_short(home),
        r"audit\.jsonl ends after line \d+, and the state knows of \d+ lines in it: it was cut, or restored",
    ),
    "log gone": (
        lambda home, stopped: delete(home, LOG),
        r"audit\.jsonl is gone, or empty; the state knows of \d+ lines in it",
    ),
    "log damaged": (
        lambda home, stopped: changed_line(home),
        r"audit\.jsonl, line \d+: it does not match the line before\. The log was changed, or the file is damaged",
    ),
    "state left": (
        lambda home, stopped: left_and_brought_back(home),
        r"state\.sqlite belongs to a run that was left, as the audit log says",
    ),
    "other digest": (
        lambda home, stopped: another_message(home),
        r"state\.sqlite has a message of round \d to peer-\d that differs from the one that was sent",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_folder_that_was_meddled_with_stops_with_its_own_sentence_and_exit_code_2(case, folder, stopped):
    meddle, sentence = CASES[case]
    meddle(folder, stopped)
    before = {
        path.name: path.read_bytes() for path in (folder.state_path, folder.audit_path) if path.exists()
    }
    told = peerbayes("peer", "run", folder.folder, code=2)
    assert_says(told.stderr, sentence)
    assert "Nothing was sent." in told.stderr and f"peerbayes peer leave {folder.folder}" in told.stderr
    after = {path.name: path.read_bytes() for path in (folder.state_path, folder.audit_path) if path.exists()}
    assert after == before  # nothing was begun, and nothing lost
    checked = json.loads(peerbayes("peer", "check", folder.folder, "--format", "json", code=1).stdout)
    assert_says(next(each["told"] for each in checked if each["what"] == "state and audit log"), sentence)


def assert_says(text, pattern):
    assert re.search(pattern, text), text


@pytest.mark.parametrize("case", CASES)
def test_leaving_is_the_way_on_and_keeps_everything_that_was_released(case, folder, stopped):
    """Whatever was lost of the state or of the log, the ledger has all that left: the other one knows."""
    before = {(entry["name"], entry["digest"]) for entry in current(folder)}
    assert len(before) >= 6  # releases, of which all are in the log too
    CASES[case][0](folder, stopped)
    peerbayes("peer", "leave", folder.folder, "--yes", code=0)
    assert not folder.state_path.exists()
    assert {(entry["name"], entry["digest"]) for entry in earlier(folder)} == before
    refuse_broken(folder.state_path, folder.audit_path)  # another run may begin
    list(entries(folder.audit_path))  # and its log is whole
    told = spent(folder, folder.load())
    assert told["spent"] == 0.0
    assert told["with_earlier_runs"] == pytest.approx(epsilon_of(earlier(folder), DELTA))
    folder.settings_path.write_text(f"{folder.settings_path.read_text()}\n[require]\nepsilon = {EPSILON}\n")
    refused = peerbayes("peer", "run", folder.folder, code=2)
    assert "on these rows, and this one would make it" in refused.stderr


def test_a_folder_that_nobody_meddled_with_is_found_whole(folder):
    refuse_broken(folder.state_path, folder.audit_path)
    checked = json.loads(peerbayes("peer", "check", folder.folder, "--format", "json").stdout)
    assert {"what": "state and audit log", "outcome": "ok", "told": "belong together"} in checked


def test_the_log_alone_gives_the_ledger_to_the_last_release(folder):
    """Each release with its cost, before the first message made of it; the states may all be deleted by hand."""
    known = {(entry["name"], entry["digest"], entry["cost"]) for entry in current(folder)}
    lines = list(entries(folder.audit_path))
    entered = {}
    for place, line in enumerate(lines):
        if line["what"].startswith("private release "):
            entered[line["what"].removeprefix("private release ")] = place
        elif line["to"]:
            assert (
                entered[line["what"].removeprefix("private ")] < place
            )  # exact: the release of the same round
    delete(folder, STATE)
    assert {(entry["name"], entry["digest"], entry["cost"]) for entry in earlier(folder)} == known


def test_no_neighbour_has_a_message_before_its_release_is_in_the_log(tmp_path, monkeypatch):
    """A round is stored, then its release is entered: whoever asks in between is told "not yet"."""
    nodes, enter, found = {}, Ledger.enter, []

    class Asked(Stopped):
        def _node(self, home):
            node = super()._node(home)
            nodes[node._ledger] = node, asyncio.get_running_loop()
            return node

    def asked_first(self, name):
        if name == "round 1":
            node, loop = nodes[self]
            finding = node._outbox.find(node.session.agreed, 1, node.session.neighbours[0])
            found.append(asyncio.run_coroutine_threadsafe(finding, loop).result(HANG))
        enter(self, name)

    monkeypatch.setattr(Ledger, "enter", asked_first)
    Asked(tmp_path)
    assert len(found) == 3 and not any(found)


def test_an_audit_log_put_beside_counts_once(folder, stopped):
    """Of another folder with the same rows, or of a copy: what is in both counts once."""
    together = len(current(folder))
    shutil.copy(folder.audit_path, folder.folder / "audit.copy.jsonl")
    assert earlier(folder) == []
    with contextlib.closing(AuditLog(folder.folder / "audit.copy.jsonl")) as other:
        other.add("", "private release round 6", 0, b"\1" * 32, cost=0.25)
    assert [(entry["name"], entry["cost"]) for entry in earlier(folder)] == [("round 6", 0.25)]
    assert len(current(folder)) == together
    status = json.loads(peerbayes("peer", "status", folder.folder, "--format", "json", code=0).stdout)
    assert status["privacy"]["with_earlier_runs"] > status["privacy"]["spent"]
    told = " ".join(peerbayes("peer", "status", folder.folder, code=0).stdout.split())
    assert f"{status['privacy']['with_earlier_runs']:.4g} with other runs on these rows" in told


def test_a_folder_goes_to_another_network_after_leaving_and_takes_its_ledger_along(folder, tmp_path):
    """Not before: a run under way is not to be lost by mistake."""
    other = Founder.create(tmp_path / "other", terms(rounds=4).to_toml(), 1)
    invitation = other.invite("peer-1", folder.request_path.read_bytes(), "127.0.0.1:9", [], False).pack()
    with pytest.raises(IdentityError, match="leave that network first"):
        folder.join(invitation)
    before = epsilon_of(current(folder), DELTA)
    set_aside(folder)
    folder.join(invitation)
    peer = folder.load()
    assert peer.roster == other.roster() and peer.terms.rounds == 4
    assert spent(folder, peer)["with_earlier_runs"] == pytest.approx(before)
    checked = json.loads(peerbayes("peer", "check", folder.folder, "--format", "json").stdout)
    assert any(
        each["outcome"] == "warning" and "more than this network promises" in each["told"] for each in checked
    )


# --- any sequence of mishaps ---------------------------------------------------------------------------------

FILES = st.sampled_from([(STATE,), (LOG,), (STATE, LOG)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(1, 3)),
        st.tuples(st.just("run"), st.integers(1, 3)),
        st.tuples(st.just("snapshot"), st.none()),
        st.tuples(st.just("restore"), FILES),
        st.tuples(st.just("delete"), FILES),
        st.tuples(st.just("power cut"), st.none()),
        st.tuples(st.just("leave"), st.none()),
        st.tuples(st.just("copy"), st.integers(1, 3)),
    ),
    min_size=1,
    max_size=6,
)
BEGINNING = [("run", 2), ("snapshot", None), ("run", 2)]  # so that there is something to go back to


class Mishaps:
    """One folder's fate, step by step."""

    def __init__(self, folder, agreed, graph):
        self.peers, self.folder, self.backups = Watched(folder, agreed, graph), folder, 0
        self.refused = self.copies = 0
        self.honest = True  # nothing but crashes so far

    def step(self, what, which):
        home = self.peers.home
        if what == "run":
            try:
                asyncio.run(self.peers.run(which))
            except NeedsPerson:
                assert not self.honest
                self.refused += 1
        elif what == "copy" and self.backups:
            self.honest = False
            self._copy(which)
        elif what == "snapshot" and home.folder.exists():
            self.backups += 1
            snapshot(home, self.folder / f"backup-{self.backups}")
        elif what == "restore" and self.backups:
            restore(self.folder / f"backup-{self.backups}", home, *which)
            self.honest = False
        elif what == "delete":
            delete(home, *which)
            self.honest = False
        elif what == "power cut" and home.audit_path.exists() and self.honest:
            with home.audit_path.open("r+b") as file:
                file.truncate(min(self.peers.synced, home.audit_path.stat().st_size))
        elif what == "leave":
            set_aside(home)
            if home.audit_path.exists():
                self.peers.synced = home.audit_path.stat().st_size  # it is brought to disk when it is closed

    def _copy(self, rounds):
        """Run the last backup beside the folder; its audit log is then put where the ledger finds it."""
        self.copies += 1
        folder = self.folder / f"copy-{self.copies}"
        shutil.copytree(self.folder / f"backup-{self.backups}", folder)
        try:
            asyncio.run(self.peers.run(rounds, folder))
        except NeedsPerson:
            self.refused += 1
        if (folder / LOG).exists():
            shutil.copy(folder / LOG, self.peers.home.folder / f"audit.copy-{self.copies}.jsonl")


def mishaps(folder, steps, agreed, graph=TRIANGLE):
    """What left never exceeds the ledger of the folder; where a backup or a deletion took that, nothing more leaves."""
    fate = Mishaps(folder, agreed, graph)
    peers = fate.peers
    for what, which in [*BEGINNING, *steps]:
        before, known = set(peers.left), peers.spent <= peers.ledger + 1e-9
        fate.step(what, which)
        if what in ("run", "copy"):
            assert peers.spent <= peers.ledger + 1e-9 if known else peers.left == before, (what, which)
    once = {(turn, receiver, state) for turn, receiver, state, _ in peers.left}
    assert len(once) == len(
        peers.left
    )  # no state says two things to one peer in a round: masks are used once
    return fate


@settings(max_examples=4)
@given(steps=STEPS)
def test_whatever_happens_to_a_folder_no_more_left_than_its_ledger_says(steps, tmp_path_factory):
    mishaps(tmp_path_factory.mktemp("fate"), steps, terms())


@pytest.mark.long
@pytest.mark.parametrize(("hidden", "graph"), [({}, TRIANGLE), ({"secure_sum": True}, nx.complete_graph(4))])
@settings(max_examples=100 if SOAK else 20)
@given(steps=STEPS)
def test_whatever_happens_to_a_folder_for_long(hidden, graph, steps, tmp_path_factory):
    mishaps(tmp_path_factory.mktemp("fate"), steps, terms(**hidden), graph)


def test_a_power_cut_takes_no_release_from_the_log_and_is_not_taken_for_tampering(tmp_path):
    """What was not brought to disk is gone from the log; of what left, every release is there all the same."""
    fate = Mishaps(tmp_path, terms(), TRIANGLE)
    peers, home = fate.peers, fate.peers.home
    for _ in range(3):
        fate.step("run", 2)
        with home.audit_path.open("ab") as file:  # a line that never got as far as the disk, torn
            file.write(b'{"at": "2026-01-31T12:00:00.123Z", "to": "p1", "wh')
        fate.step("power cut", None)
        refuse_broken(home.state_path, home.audit_path)
        lines = {entry["what"] for entry in entries(home.audit_path)}
        assert {f"private release round {turn}" for turn, *_ in peers.left} <= lines
    assert peers.spent <= peers.ledger + 1e-9 and earlier(home) == []


def test_a_release_that_a_crash_kept_from_the_log_is_written_at_the_next_start(tmp_path, monkeypatch):
    """It was stored, and the process ended there: nothing of it has left, and it is the same when it does."""
    peers = Watched(tmp_path, terms())
    enter = Ledger.enter

    def killed(self, name):
        if name == "round 3" and self._store is peers.nodes["p0"].store:
            raise OSError("killed")
        enter(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "enter", killed)
        with pytest.raises(OSError, match="killed"):
            asyncio.run(peers.run(6))
    stored = [(entry["name"], entry["digest"].hex()) for entry in current(peers.home)]
    assert [name for name, _ in stored] == ["round 1", "round 2", "round 3"]
    assert max(turn for turn, *_ in peers.left) == 2
    asyncio.run(peers.run(2))
    lines = [entry for entry in entries(peers.home.audit_path) if not entry["to"]]
    entered = [(entry["what"].removeprefix("private release "), entry["digest"]) for entry in lines]
    assert entered[:3] == stored and len(dict(entered)) == len(entered) == len(current(peers.home))
    assert max(turn for turn, *_ in peers.left) >= 3


@pytest.mark.parametrize("hidden", [False, True], ids=["plain", "masked"])
def test_without_noise_a_restored_or_deleted_state_is_not_gone_on_with_either(hidden, tmp_path):
    """It could say something else than it has said; under a mask that was used, where messages are masked."""
    agreed = Terms(
        "test", "y", rounds=6, privacy=Privacy(secure_sum=hidden), limits=Limits(deadline=HANG), strategy="exact"
    )  # fmt: skip
    fate = Mishaps(tmp_path, agreed, nx.complete_graph(4))
    home = fate.peers.home
    for step in (("run", 2), ("snapshot", None), ("run", 3)):
        fate.step(*step)
    restore(tmp_path / "backup-1", home, STATE)
    with pytest.raises(BrokenRecord) as refused:
        refuse_broken(home.state_path, home.audit_path)
    assert refused.value.case == "state restored"
    delete(home, STATE)
    with pytest.raises(BrokenRecord) as refused:
        refuse_broken(home.state_path, home.audit_path)
    assert refused.value.case == "state gone"


# --- neighbours notice what the folder cannot ------------------------------------------------------------------


def refusals(peers, name):
    return {(facts["who"], facts["reason"]) for what, facts in peers.told[name] if what == "refused"}


def test_a_folder_restored_as_a_whole_is_noticed_by_its_neighbours_before_it_says_anything_new(tmp_path):
    """State and log fit together; a neighbour shows the peer what it signed when it was farther on."""
    fate = Mishaps(tmp_path, terms(), TRIANGLE)
    peers = fate.peers
    for step in (("run", 3), ("snapshot", None), ("run", 3)):
        fate.step(*step)
    left = set(peers.left)
    restore(tmp_path / "backup-1", peers.home, STATE, LOG)
    refuse_broken(peers.home.state_path, peers.home.audit_path)
    with pytest.raises(NeedsPerson, match="brought back from a backup") as stopped:
        asyncio.run(peers.run(3))
    assert "Continue with the folder that is farthest along" in str(stopped.value)
    assert peers.left == left
    assert refusals(peers, "p1") | refusals(peers, "p2") <= {("p0", "restored"), ("p0", "two copies")}
    assert refusals(peers, "p1") | refusals(peers, "p2")
    with pytest.raises(NeedsPerson):  # and again, however often it is tried
        asyncio.run(peers.run(3))
    assert peers.left == left


def test_a_folder_restored_within_one_start_is_noticed_by_how_far_it_was(tmp_path):
    """The numbers of starts fit: the backup was made while the peer ran."""
    fate = Mishaps(tmp_path, terms(rounds=200), TRIANGLE)
    peers = fate.peers

    async def interrupted():
        task = asyncio.create_task(peers.run(30))
        await peers.until(lambda: "p0" in peers.nodes and peers.nodes["p0"].session.round_index >= 2)
        snapshot(peers.home, tmp_path / "running")
        await task

    asyncio.run(interrupted())
    left = set(peers.left)
    restore(tmp_path / "running", peers.home, STATE, LOG)
    with pytest.raises(
        NeedsPerson, match=r"this folder was brought back from a backup or a snapshot: p\d heard p0"
    ):
        asyncio.run(peers.run(3))
    assert peers.left == left and ("p0", "restored") in refusals(peers, "p1") | refusals(peers, "p2")


def test_two_copies_of_a_folder_stop_each_other_and_their_neighbours_say_so(tmp_path):
    """Both were started after the copy was made: each says it is the same start."""
    peers = Watched(tmp_path, terms(rounds=200))
    asyncio.run(peers.run(2))
    copy = Peers(tmp_path / "copy", peers.terms, TRIANGLE, list(tables()))
    shutil.copytree(tmp_path / "p0", tmp_path / "copy" / "p0")
    copy.hub = peers.hub

    async def both():
        tasks = {name: peers.started(name) for name in peers.names}
        await asyncio.sleep(0)
        second = copy.start("p0", linger=HANG)
        try:
            return await asyncio.wait_for(asyncio.gather(tasks["p0"], second, return_exceptions=True), HANG)
        finally:
            for task in (*tasks.values(), second):
                task.cancel()
            await asyncio.gather(*tasks.values(), second, return_exceptions=True)

    for stopped in asyncio.run(both()):
        assert isinstance(stopped, NeedsPerson) and str(stopped).startswith(
            "two copies of p0 are running, or"
        )
    for name in ("p1", "p2"):
        noted = {facts["note"] for what, facts in peers.told[name] if what == "neighbour"}
        assert ("p0", "two copies") in refusals(peers, name)
        assert any(note.startswith("two copies of p0 are running") for note in noted)


async def unreachable(neighbour, request, timeout):
    raise Unreachable(f"{neighbour} is not there")


def test_a_copy_started_while_the_first_runs_ends_the_first_and_its_neighbour_says_so(tmp_path):
    """As when a folder moves to another machine, and the old process was forgotten: the later start counts."""
    peers = Watched(tmp_path, terms())
    asyncio.run(peers.run(2))
    copy = Peers(tmp_path / "copy", peers.terms, TRIANGLE, list(tables()))
    copy.hub = peers.hub

    async def moved():
        first = peers.started("p0")
        tasks, transport = [first], peers.nodes["p0"].transport
        ask, transport.ask = transport.ask, unreachable
        await asyncio.sleep(0)
        shutil.copytree(tmp_path / "p0", tmp_path / "copy" / "p0")
        tasks += [copy.start("p0", linger=HANG), peers.started("p1")]  # without p2 no round can close
        await asyncio.sleep(0)
        heard = peers.nodes["p1"]._processes
        try:
            await peers.until(lambda: heard.latest("p0").start == 3)
            transport.ask = ask
            await asyncio.wait_for(asyncio.gather(first, return_exceptions=True), HANG)
            await peers.until(lambda: refusals(peers, "p1"))
            assert not tasks[1].done() and heard.latest("p0").start == 3
            return first.exception()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    stopped = asyncio.run(moved())
    assert isinstance(stopped, NeedsPerson)
    assert "p1 heard start 3 of it from another process, and this is start 2" in str(stopped)
    assert refusals(peers, "p1") == {("p0", "two copies")}


class Accuser(InMemory):
    """A member that refuses others, and shows them processes of theirs that it made up or has kept."""

    shown = None

    async def serve(self, answer):
        async def accused(caller, content):
            asked = wire.request_in(content)
            if asked.process is None or caller != "p0":
                return await answer(caller, content)
            forged = self.shown(asked.process)
            return wire.encode(
                Reply(wire.VERSION, asked.run, self.name, asked.kind, "refused", "two copies: of you", asked.phase,
                      asked.round_index, shown=forged)
            )  # fmt: skip

        await super().serve(accused)


@pytest.mark.long
@pytest.mark.parametrize(
    "shown",
    [
        lambda own: msgspec.structs.replace(own, start=own.start + 1, id="f" * 16),
        lambda own: msgspec.structs.replace(own, id="f" * 16),
        lambda own: msgspec.structs.replace(own, start=0, id="f" * 16, stored=own.stored + 9),
        lambda own: own,
        lambda own: None,
    ],
    ids=["a later start", "the same start", "a longer state", "itself", "nothing"],
)
def test_a_liar_cannot_make_a_peer_stop(shown, tmp_path):
    """Only what a peer has signed itself counts against it."""
    agreed = replace(terms(rounds=3), limits=Limits(deadline=0.3, quorum=0.5))
    peers = Watched(tmp_path, agreed)
    honest = peers.hub.transport

    def transport(name):
        if name != "p2":
            return honest(name)
        accuser = Accuser(peers.hub, name)
        accuser.shown = shown
        return accuser

    peers.hub.transport = transport
    found = asyncio.run(peers.all(linger=0.2))
    assert not isinstance(found[0], BaseException), found[0]
    assert peers.rounds("p0")[-1] == 3


@pytest.mark.parametrize("moment", ["before it is asked", "while it is asked"])
def test_a_peer_that_is_to_stop_says_nothing_more(moment, tmp_path):
    """Also not what it was just going to say."""
    peers = Watched(tmp_path, terms(rounds=2))

    async def asked():
        task = peers.started("p0")
        await asyncio.sleep(0)
        node = peers.nodes["p0"]
        find = node._server.outbox.find

        async def halting(*asked_for):
            node.session.halt(NeedsPerson("copied"))
            return await find(*asked_for)

        try:
            await peers.until(lambda: node.store.round() == 0 and node.session.agreed is not None)
            if moment == "before it is asked":
                node.session.halt(NeedsPerson("copied"))
            else:
                node._server.outbox.find = halting
            schema = node.session.agreed.schema.fingerprint
            request = wire.Request(
                wire.VERSION, peers.roster.run, "p1", "round", round_index=1, schema=schema
            )
            return msgspec.msgpack.decode(await node.answer("p1", wire.encode(request)), type=Reply)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    reply = asyncio.run(asked())
    assert reply.status == "refused" and reply.reason.startswith("stopping") and reply.body == b""
    assert not [entry for entry in entries(peers.home.audit_path) if entry["to"]]


def a_process(start, began, stored, id="one", state="s"):
    return Process(state, start, id, began, stored)


class Bench:
    """What one peer hears of another's processes, message by message."""

    def __init__(self, tmp_path):
        peers = Peers(tmp_path, terms(), TRIANGLE, list(tables()))
        self.store, transport = Store(tmp_path / "state.sqlite"), peers.hub.transport("p1")
        self.processes = Processes(Session("p1", peers.terms, peers.roster, b"", self.store, transport, None))

    def asks(self, process, shown=None):
        """What a request of a process is refused for; None: it is not."""
        asked = wire.Request(wire.VERSION, "run", "p0", "hello", process=process, shown=shown)
        try:
            self.processes.hear_request("p0", asked)
        except OtherProcess as error:
            return error.reason, error.certain
        return None

    def answers(self, process, before):
        try:
            self.processes.hear_reply(
                "p0", Reply(wire.VERSION, "run", "p0", "hello", "ok", process=process), before
            )
        except OtherProcess as error:
            return error.reason, error.certain
        return None


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    made.store.close()


def test_a_restart_is_never_taken_for_a_copy_whatever_comes_late(bench):
    """A killed process may have a request and an answer under way: neither counts against the next one."""
    killed, next_one = a_process(1, 0, 5), a_process(2, 5, 5, "two")
    assert bench.asks(killed) is None and bench.asks(next_one) is None
    assert bench.asks(killed) == (
        "two copies",
        False,
    )  # no answer is owed to the dead, and nothing is said of it
    assert bench.answers(killed, before=killed) is None  # asked for before the restart was heard of
    assert bench.asks(next_one) is None and bench.asks(a_process(2, 5, 9, "two")) is None
    assert bench.asks(a_process(3, 9, 9, "three")) is None


def test_an_older_process_that_speaks_after_a_newer_one_was_heard_is_a_copy(bench):
    older, newer = a_process(1, 0, 5), a_process(2, 5, 5, "two")
    for each in (older, newer):
        assert bench.asks(each) is None
    assert bench.answers(older, before=newer) == ("two copies", True)
    assert bench.asks(older, shown=newer) == ("two copies", True)  # it was shown the newer one, so it lives
    assert bench.asks(older, shown=a_process(9, 9, 9, "made up")) == ("two copies", False)
    assert bench.asks(newer) is None


def test_what_was_heard_of_neighbours_outlives_a_restart(bench):
    assert bench.asks(a_process(1, 0, 7)) is None
    bench.processes.remember()
    bench.processes._heard.clear()
    bench.processes.begin(1)
    assert bench.asks(a_process(2, 6, 6, "two")) == ("restored", True)
    assert bench.asks(a_process(2, 7, 7, "three")) is None
    assert bench.asks(a_process(2, 7, 7, "four")) == ("two copies", True)
    bench.processes._heard.clear()
    bench.processes.begin(2)
    assert bench.asks(a_process(2, 7, 7, "three")) == ("two copies", True)  # both, for good
    assert bench.asks(a_process(3, 7, 7, "five")) is None  # one of them, started again by a person


def test_a_state_that_was_left_does_not_speak_for_the_one_after_it_nor_come_back_shorter(bench):
    assert bench.asks(a_process(1, 0, 7)) is None
    assert bench.asks(a_process(2, 0, 0, "two", "another")) is None  # left, and begun again
    assert bench.asks(a_process(3, 6, 6, "three")) == ("restored", True)


# --- as processes ------------------------------------------------------------------------------------------------


@pytest.fixture
def loopback(tmp_path):
    """A private network of three on this machine that is stopped at the end."""
    made = []

    def make(rounds):
        frames = [frame.assign(y=labels) for frame, labels in tables()]
        made.append(Loopback.create(tmp_path / "peers", terms(rounds), frames, list(TRIANGLE.edges)))
        return made[-1]

    yield make
    for network in made:
        network.stop()


def ended(network, name):
    return network.processes[name].wait(HANG)


@pytest.mark.links
@pytest.mark.long
def test_processes_that_are_killed_and_started_again_are_never_taken_for_copies(loopback):
    network = loopback(60)
    for name in network.homes:
        network.start(name)
    rng = np.random.default_rng(0)
    for moment in range(3, 55, 4 if SOAK else 8):
        name = f"peer-{rng.integers(1, 4)}"
        until_round(network, name, moment)
        network.processes[name].kill()
        network.processes[name].wait()
        network.start(name)
    finished(network)
    for home in network.homes.values():
        with contextlib.closing(Store(home.state_path, readonly=True)) as store:
            assert store.refusals() == []
            assert int(store.value("starts")) >= 1
        refuse_broken(home.state_path, home.audit_path)
        assert earlier(home) == [] and len(current(home)) == 60


@pytest.mark.links
@pytest.mark.long
def test_two_copies_as_processes_both_end_with_exit_code_2(loopback, tmp_path):
    network = loopback(2000)
    for name in network.homes:
        network.start(name)
    until_round(network, "peer-1", 3)
    home = network.homes["peer-1"]
    network.processes["peer-1"].kill()
    ended(network, "peer-1")
    copy = Home(tmp_path / "copy")
    shutil.copytree(home.folder, copy.folder)
    if own := home.settings().listen:  # whoever waits at a relay needs no other port
        listen, text = f"127.0.0.1:{free_ports(1)[0]}", copy.settings_path.read_text()
        copy.settings_path.write_text(text.replace("# listen", "listen").replace(own, listen, 2))
    network.homes["copy"] = copy
    network.start("peer-1")
    network.start("copy")
    for name in ("peer-1", "copy"):
        assert ended(network, name) == 2, log_text(network, name)
        assert "peerbayes: two copies of peer-1 are running, or" in log_text(network, name)
    end = time.monotonic() + HANG
    others = ("peer-2", "peer-3")  # whoever has heard both says so
    while not (told := [name for name in others if counted(network, name, "two copies")]):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert "refused from peer-1: two copies (two copies of peer-1 are running" in log_text(network, told[0])


def counted(network, name, reason):
    """Whether `status` of a peer counts a refusal for a reason."""
    found = peerbayes("peer", "status", network.homes[name].folder, "--format", "json", code=0)
    return any(each["reason"] == reason for each in json.loads(found.stdout)["refusals"])


@pytest.mark.links
@pytest.mark.long
def test_a_folder_that_is_restored_as_a_whole_ends_with_exit_code_2(loopback, tmp_path):
    network = loopback(2000)
    for name in network.homes:
        network.start(name)
    home = network.homes["peer-1"]
    until_round(network, "peer-1", 3)
    network.processes["peer-1"].kill()
    ended(network, "peer-1")
    backup = snapshot(home, tmp_path / "backup")
    network.start("peer-1")
    until_round(network, "peer-1", 12)
    network.processes["peer-1"].kill()
    ended(network, "peer-1")
    said = {
        (entry["to"], entry["what"], entry["digest"]) for entry in entries(home.audit_path) if entry["to"]
    }
    restore(backup, home, STATE, LOG)
    network.start("peer-1")
    assert ended(network, "peer-1") == 2, log_text(network, "peer-1")
    assert "brought back from a backup" in log_text(network, "peer-1").splitlines()[-1]
    again = {
        (entry["to"], entry["what"], entry["digest"]) for entry in entries(home.audit_path) if entry["to"]
    }
    assert again <= said  # nothing was said otherwise, by what the log of both times knows
