"""How a run ends: its verdict, and how `status`, the exit code and the log tell a bad end from a good one."""

import asyncio
import contextlib
import json
import logging
import threading

import networkx as nx
import numpy as np
import pytest
from sklearn.datasets import load_digits

from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.learning.verdict import ENDED_BADLY, MOST_APART, MOST_MOVED, Comparison, verdict
from peerbayes.peer.state.store import Store
from peerbayes.peer.status import Journal
from shared.commands import HANG, peerbayes
from shared.failing_hosts import Hosts, Tunnels
from shared.peers_in_memory import Peers, peers_of, shared_out

pytestmark = pytest.mark.usefixtures("impatient")

NAMES = ("peer-1", "peer-2", "peer-3", "peer-4")
EVERYBODY = [(a, b) for a in range(4) for b in range(a)]
FLAKY = "peer-4"
UP, DOWN = 2.0, 5.0  # seconds


# --- the verdict as a function ---------------------------------------------------------------------------


def history(rounds, missing=()):
    """Rounds of which some lack a neighbour: {round: name}."""
    lacking = dict(missing)
    return [
        {"round": turn, "missing": [lacking[turn]] if turn in lacking else []} for turn in range(rounds + 1)
    ]


def judged(**facts):
    """A good run, but for what is given."""
    usual = {
        "history": history(40), "left_out": {}, "gone": {}, "moved": 0.001, "disagreement": 0.01,
        "compared": Comparison(100, True, 0.1, 0.2, False), "last_rounds": 5,
    }  # fmt: skip
    return verdict(**usual | facts)


def test_a_good_run_has_no_problem_and_says_what_was_looked_at():
    good = judged()
    assert good.good and good.converged and good.problem == "" and good.missing_share == 0
    assert good.sentences == (
        "the model has settled: its last 5 rounds moved its answers by 0.1%, neighbours' statistics are 1.0% from its "
        "own",
        "nobody was missing in any round",
        "the joint model gets 10.0% of 100 held-out rows wrong; the one that this peer would have alone, 20.0%",
    )


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"moved": 1.1 * MOST_MOVED}, "the model has not settled: its last 5 rounds moved its answers by"),
        ({"disagreement": 1.1 * MOST_APART}, "the model has not settled"),
        ({"moved": float("nan")}, "the model has not settled"),
        (
            {"history": history(40, [(turn, "b") for turn in range(5)] + [(9, "c")])},
            "somebody was missing in 5 of 40 rounds (12%): b in 4, c in 1",
        ),
        (
            {"history": history(40, {1: "b", 2: "b"}), "left_out": {2: ["c"], 3: ["c"], 4: ["b"], 5: ["c"]}},
            "somebody was missing in 5 of 40 rounds (12%): b in 3, c in 3",
        ),
        (
            {"compared": Comparison(200, False, 0.3, 0.1, True)},
            "the joint model is worse here than the one that this peer would have alone: 30.0% wrong on 200 own rows, "
            "alone 10.0%",
        ),
    ],
    ids=["moves", "apart", "not a number", "missing", "left out", "worse"],
)
def test_each_problem_alone_makes_a_run_a_bad_one(facts, sentence):
    bad = judged(**facts)
    assert not bad.good and bad.problems == 1 and sentence in bad.problem
    assert json.loads(bad.to_json())["sentences"][0] == bad.problem


def test_a_tenth_of_the_rounds_may_lack_somebody_and_those_that_are_gone_do_not_count():
    few = judged(history=history(40, dict.fromkeys(range(1, 5), "b")))
    assert few.good and few.missing_share == 0.1
    left = judged(history=history(40, dict.fromkeys(range(1, 20), "b")), gone={"b": "left"})
    assert left.good and left.rounds_missing == 0 and "b did not stay: left" in left.sentences


def test_nothing_is_held_against_a_run_that_nothing_is_known_of():
    unknown = judged(moved=None, disagreement=None, compared=None)
    assert unknown.good and unknown.converged is None
    assert unknown.joint_error is None and unknown.lone_error is None


def test_a_run_that_all_stopped_within_their_tolerance_has_settled():
    why = "all stopped after round 3 of at most 300, since no weight of it was to move by more than 1e-07"
    for moved in (None, 2 * MOST_MOVED):  # it moved before the end
        settled = judged(moved=moved, disagreement=None, settled=why)
        assert settled.good and settled.converged is True
        assert settled.sentences[0] == f"the model has settled: {why}"


def test_a_short_run_that_stops_by_itself_has_settled_and_its_rounds_are_sums(tmp_path, rng, caplog):
    """Too short for a model in its middle to compare with, and no neighbour's message is heard in it."""
    terms = Terms("test", "label", strategy="tree-sum", rounds=300, tolerance=1e3)
    peers = peers_of(tmp_path, terms, nx.path_graph(5), shared_out(rng))
    asyncio.run(peers.all())
    node, events = peers.nodes["p1"], peers.told["p1"]
    rounds = node.session.round_index
    settled = (
        f"the model has settled: all stopped after round {rounds} of at most 300, "
        "since no weight of it was to move by more than 1000"
    )
    assert rounds < 10 and node.verdict.moved is None
    for name in peers.names:
        assert peers.nodes[name].verdict.converged is True and settled in peers.nodes[name].verdict.sentences
    caplog.set_level(logging.INFO, "peerbayes.peer")
    for event, facts in events:
        if event == "round":
            Journal(None)(event, facts)
    assert [text.split(" in ")[0] for text in caplog.messages] == [
        f"round {number}/300: added up over all peers" for number in range(1, rounds + 1)
    ]


def test_a_joint_model_is_worse_only_beyond_chance():
    """Of rows that one of the two alone gets wrong, 60 + 40 may be chance; 61 + 39 are above two standard errors."""

    def compared(only_joint, only_lone, both=7, neither=100):
        joint = [True] * only_joint + [False] * only_lone + [True] * both + [False] * neither
        lone = [False] * only_joint + [True] * only_lone + [True] * both + [False] * neither
        return Comparison.of(np.array(joint), np.array(lone), held_out=True)

    assert not compared(60, 40).worse and compared(61, 39).worse
    assert not compared(4, 0).worse and compared(5, 0).worse and not compared(0, 50).worse
    assert (compared(61, 39).joint_error, compared(61, 39).lone_error) == (68 / 207, 46 / 207)


# --- four peers whose rows differ ------------------------------------------------------------------------


def differing_rows():
    """Tables of handwritten digits for four peers: each has all digits, in shares of its own."""
    X, y = load_digits(return_X_y=True, as_frame=True)
    X, y, rng = X.iloc[:480], y.to_numpy()[:480], np.random.default_rng(3)
    owner = np.empty(len(y), dtype=int)
    for digit in range(10):
        shares = rng.dirichlet(np.full(4, 1.5))
        owner[y == digit] = rng.choice(4, size=(y == digit).sum(), p=shares)
    return [(X[owner == peer], y[owner == peer]) for peer in range(4)]


def in_memory(folder, rounds, deadline=0.2):
    terms = Terms("test", "digit", rounds=rounds, limits=Limits(deadline=deadline), strategy="exact")
    return Peers(folder, terms, nx.complete_graph(4), differing_rows())


def stored(peers, name):
    """The verdict that `status` would show."""
    with contextlib.closing(Store(peers.folder / name / "state.sqlite", readonly=True)) as store:
        return json.loads(store.value("verdict"))


def test_peers_that_hear_everybody_end_well(tmp_path):
    peers = in_memory(tmp_path, 48, deadline=HANG)
    asyncio.run(peers.all())
    for name in peers.names:
        said = stored(peers, name)
        assert said["good"] and said["converged"] and said["rounds"] == 48 and said["missing_share"] == 0, (
            said
        )
        assert said["joint_error"] < said["lone_error"] and not said["held_out"]
        assert [what for what, _ in peers.told[name]][-1] == "done"


class Breaking(list):
    """Everything that a peer tells; its rounds break another one's links, and mend them."""

    def __init__(self, cut, links):
        self.cut, self.links = cut, links

    def append(self, event):
        super().append(event)
        if event[0] == "round" and event[1]["round"] == 2:
            self.cut |= self.links
        if event[0] == "round" and event[1]["round"] == 9:
            self.cut -= self.links


def test_peers_one_of_whom_is_away_most_of_the_time_end_badly_and_say_so(tmp_path):
    """The one that is away hears all that it missed when it is back: that others went on without it, it knows, too."""
    peers = in_memory(tmp_path, 12, deadline=0.05)
    links = {frozenset((peers.names[3], other)) for other in peers.names[:3]}
    peers.told[peers.names[0]] = Breaking(peers.hub.cut, links)
    asyncio.run(peers.all(linger=HANG))
    for name in peers.names:
        said = stored(peers, name)
        assert not said["good"] and said["missing_share"] > 0.1, (name, said)
        events = [what for what, _ in peers.told[name]]
        assert "ended badly" in events and "done" not in events
        assert "somebody was missing in" in dict(peers.told[name])["ended badly"]["problem"]


def test_a_dashboard_is_told_the_verdict(tmp_path):
    pytest.importorskip("starlette")
    from peerbayes.report.dashboard.peer_folder import PeerFolder
    from shared.real_calls import made_network

    home = made_network(tmp_path).homes["peer-1"]
    watched = PeerFolder(home.folder)
    assert watched.look().facts["verdict"] is None
    with contextlib.closing(Store(home.state_path)) as store:
        store.keep("verdict", judged(moved=1.0).to_json())
    assert watched.look().facts["verdict"] == json.loads(judged(moved=1.0).to_json())


# --- four processes ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def flapping(world, up, down):
    """The links of one host, up and down, until the end."""
    ended = threading.Event()
    links = {frozenset((FLAKY, other)) for other in NAMES if other != FLAKY}

    def flap():
        while not ended.wait(up):
            world.cut |= links
            ended.wait(down)
            world.cut -= links

    thread = threading.Thread(target=flap, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        world.cut.clear()


def four_hosts(folder, world, flaky):
    """Run four peers; their exit codes."""
    # A steady host misses no round however busy the machine is; a break of five seconds must cost some.
    terms = Terms(
        "hosts", "digit", rounds=48, limits=Limits(deadline=1.0 if flaky else HANG), strategy="exact"
    )
    tables = [X.assign(digit=y) for X, y in differing_rows()]
    hosts = Hosts.create(folder, terms, tables, EVERYBODY)
    hosts.world = world
    world.know(hosts)
    world.slow = dict.fromkeys(
        NAMES, 0.1
    )  # seconds: hosts far apart, so that a run does not fit between two breaks
    try:
        with flapping(world, UP, DOWN) if flaky else contextlib.nullcontext():
            for name in NAMES:
                hosts.start(name)
            for name in NAMES:
                hosts.processes[name].wait(HANG)
    finally:
        hosts.stop()
    return hosts


@pytest.mark.links
@pytest.mark.long
def test_a_host_whose_link_is_two_seconds_up_and_five_down_is_told_from_a_good_run(tmp_path):
    """By the verdict, by the exit code, by `status` and by the log, at every one of four peers whose rows differ."""
    with Tunnels() as world:
        steady = four_hosts(tmp_path / "steady", world, flaky=False)
        broken = four_hosts(tmp_path / "broken", world, flaky=True)
    for name in NAMES:
        assert steady.processes[name].returncode == 0, steady.homes[name].log_path.read_text()
        shown = peerbayes("peer", "status", steady.homes[name].folder, code=0).stdout
        assert f"{name} in hosts: done, round 48 of 48" in shown and "nobody was missing" in shown
        good = json.loads(peerbayes("peer", "status", steady.homes[name].folder, "--format", "json").stdout)
        assert good["verdict"]["good"] and good["verdict"]["missing_share"] == 0

        log = broken.homes[name].log_path.read_text()
        assert broken.processes[name].returncode == ENDED_BADLY, log
        assert "rounds are done" not in log and "but not well: " in log and "somebody was missing in" in log
        shown = peerbayes("peer", "status", broken.homes[name].folder, code=0).stdout
        assert f"{name} in hosts: finished with problems, round 48 of 48" in shown and "done" not in shown
        bad = json.loads(peerbayes("peer", "status", broken.homes[name].folder, "--format", "json").stdout)
        assert not bad["verdict"]["good"] and bad["verdict"]["missing_share"] > 0.1
        assert FLAKY in bad["verdict"]["sentences"][0] or name == FLAKY
