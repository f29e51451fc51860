"""When a round closes: who is waited for, and for how long."""

import asyncio
import contextlib
import itertools
import time
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest

pytest.importorskip("msgspec")
import msgspec

from peerbayes.cli import peer as peer_commands
from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.prometheus import metrics_of
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.client import AHEAD
from peerbayes.peer.protocol.mailboxes import Inbox
from peerbayes.peer.protocol.session import LEAST, STEADY, NeighbourState, ResponseTime
from peerbayes.peer.protocol.session import Waiting as Waited
from peerbayes.peer.protocol.transport import Unreachable
from peerbayes.peer.state.store import RoundRecord, Store
from peerbayes.peer.status import Journal, status, waiting_text
from peerbayes.peer.tasks import Changes
from shared.commands import HANG
from shared.memory_transport import InMemory
from shared.peers_in_memory import ended, peers_of, running, table
from shared.real_calls import made_network

DEADLINE = 60.0


class Clock:
    """A clock that a test sets; waiting lets it pass, and lets something happen at a time."""

    def __init__(self):
        self.seconds, self.events = 0.0, []

    def __call__(self):
        return self.seconds

    async def wait(self, seconds, since=None):
        """Go on to the next event, or to the end of the wait."""
        self.events.sort(key=lambda event: event[0])
        until = self.seconds + max(seconds, 1e-9)
        if self.events and self.events[0][0] <= until:
            due, event = self.events.pop(0)
            self.seconds = max(due, self.seconds)
            event()
        else:
            self.seconds = until


class Waiting:
    """An inbox that waits for neighbours a, b and c by a clock of its own."""

    def __init__(self, deadline=DEADLINE, quorum=0.5):
        self.clock, names = Clock(), ("a", "b", "c")
        self.states = {name: NeighbourState() for name in names}
        limits = Limits(deadline=deadline, quorum=quorum)
        self.session = SimpleNamespace(
            terms=SimpleNamespace(limits=limits, messages="float64"), neighbours=names,
            neighbour=self.states.__getitem__, changes=self.clock, round_index=0, masked=None, waiting=None,
        )  # fmt: skip
        self.inbox = Inbox(self.session, self.clock)
        self.agreed = SimpleNamespace(learner=SimpleNamespace(neighbours=names))

    def at(self, seconds, event):
        """Let something happen so many seconds into the coming round."""
        self.clock.events.append((self.clock.seconds + seconds, event))

    def message(self, name, round_index=None):
        return lambda: self.inbox.put(name, round_index or self.session.round_index + 1, name)

    def answer(self, name, done):
        """Let a neighbour be heard of: it has closed so many rounds."""

        def event():
            self.states[name].seen, self.states[name].done = self.clock.seconds, done

        return event

    def round(self, **arrivals):
        """Close a round with messages after so many seconds; return the seconds that it took, and who was heard."""
        began = self.clock.seconds
        for name, seconds in arrivals.items():
            self.at(seconds, self.message(name))
        heard = asyncio.run(self.inbox.enough(self.agreed))
        self.session.round_index += 1
        self.inbox.clear()
        return round(self.clock.seconds - began, 6), sorted(heard)


def rounds(waiting, count, **arrivals):
    """Seconds of rounds with the same messages."""
    return [waiting.round(**arrivals)[0] for _ in range(count)]


def test_a_neighbour_that_fails_is_waited_for_the_deadline_and_then_less_and_less():
    waiting = Waiting()
    assert waiting.round(a=0.01, b=0.02, c=0.4) == (0.4, ["a", "b", "c"])
    took = rounds(waiting, 30, a=0.01, b=0.02)
    assert took[:STEADY] == [DEADLINE] * STEADY
    assert all(later < earlier for earlier, later in itertools.pairwise(took[2:9]))
    usual = 0.4 + 4 * 0.2
    assert took[-1] == pytest.approx(8 * usual)  # never less than eight times what it usually takes
    assert sum(took) <= 6 * DEADLINE + 30 * 8 * usual


def test_a_short_deadline_is_not_made_shorter():
    waiting = Waiting(deadline=LEAST)
    assert rounds(waiting, 20, a=0.0, b=0.0) == pytest.approx([LEAST] * 20)


def test_one_message_restores_the_patience():
    waiting = Waiting()
    rounds(waiting, 20, a=0.01, b=0.01)
    assert waiting.round(a=0.01, b=0.01)[0] == LEAST
    assert waiting.round(a=0.01, b=0.01, c=0.5) == (0.5, ["a", "b", "c"])
    assert waiting.round(a=0.01, b=0.01)[0] == DEADLINE


def test_in_fair_weather_nothing_that_comes_within_the_deadline_is_lost():
    """Slow first rounds, a busy machine, pauses of a minute, a slow host: nobody fails three times in a row."""
    rng, waiting = np.random.default_rng(4), Waiting()
    for number in range(300):
        slow = rng.exponential(0.2) if number > 3 else 55.0
        pause = 59.0 if rng.random() < 0.05 else 0.0
        arrivals = {"a": rng.exponential(0.02), "b": rng.exponential(0.02) + pause, "c": slow + 2.0}
        assert waiting.round(**arrivals)[1] == ["a", "b", "c"]


def test_a_neighbour_that_answers_gets_twice_the_deadline_unless_it_fails_for_long():
    waiting = Waiting()
    took = []
    for _ in range(30):
        waiting.at(5.0, waiting.answer("c", 0))
        took.append(waiting.round(a=0.0, b=0.0)[0])
    assert took[:STEADY] == [2 * DEADLINE] * STEADY
    assert max(took[-5:]) <= 5.0 + 2 * LEAST  # today's answer that it is there is not what was waited for


def test_a_neighbour_that_catches_up_is_waited_for_whatever_it_has_missed():
    waiting = Waiting()
    rounds(waiting, 20, a=0.0, b=0.0)
    for number in range(20):  # a round each 0.6 s: it is there after twelve seconds
        waiting.at(0.6 * (number + 1), waiting.answer("c", number + 1))
    assert waiting.round(a=0.0, b=0.0, c=12.5) == (12.5, ["a", "b", "c"])


def test_a_neighbour_that_comes_back_and_stays_behind_does_not_hold_the_others():
    waiting = Waiting()
    rounds(waiting, 20, a=0.0, b=0.0)
    for number in range(4):
        waiting.at(0.6 * (number + 1), waiting.answer("c", number + 1))
    assert waiting.round(a=0.0, b=0.0)[0] <= 4 * 0.6 + LEAST
    assert waiting.round(a=0.0, b=0.0)[0] == LEAST
    assert waiting.states["c"].response.missed == 22


def test_a_peer_that_was_left_behind_does_not_wait_a_deadline_for_each_old_round():
    waiting = Waiting()
    assert waiting.round(a=0.1, b=0.1, c=0.1) == (0.1, ["a", "b", "c"])
    for name in ("a", "b"):
        waiting.answer(name, 40)()
    took = rounds(waiting, 30, a=0.1, b=0.1)
    least = 8 * (0.1 + 4 * 0.05)
    assert took[0] == pytest.approx(least) and sum(took) <= 2 * least + 30 * 0.11
    # One neighbour that claims to be far ahead is not enough.
    waiting = Waiting()
    waiting.round(a=0.1, b=0.1, c=0.1)
    waiting.answer("a", 40)()
    assert waiting.round(a=0.1, b=0.1)[0] == DEADLINE


def test_what_is_gone_is_given_up_at_once():
    waiting = Waiting()
    waiting.at(0.3, lambda: waiting.inbox.give_up("c"))
    assert waiting.round(a=0.1, b=0.2) == (0.3, ["a", "b"])
    assert waiting.states["c"].response.missed == 0  # it answers


def test_the_quorum_of_the_agreement_stays():
    waiting = Waiting(deadline=2.0, quorum=0.6)
    assert waiting.round(a=0.1, b=500.0)[1] == ["a", "b"]
    assert waiting.clock.seconds >= 500.0


def test_a_late_message_teaches_how_long_it_takes():
    waiting = Waiting()
    rounds(waiting, 20, a=0.0, b=0.0)
    assert waiting.round(a=0.0, b=0.0)[0] == LEAST
    waiting.at(
        0.5, waiting.message("c", waiting.session.round_index)
    )  # the round that it is for began 1.5 s before
    assert waiting.round(a=0.0, b=0.0) == (8 * (1.5 + 4 * 0.75), ["a", "b"])


def test_response_times_are_estimated_as_tcp_does():
    response = ResponseTime()
    assert response.usual == 0.0
    for seconds in (1.0, 3.0):
        response.add(seconds)
    assert (response.mean, response.deviation) == (1.0 + 2.0 / 8, 0.5 + (2.0 - 0.5) / 4)


def test_what_a_round_waits_for_is_shown():
    waiting = Waiting()
    shown = []
    waiting.at(7.0, lambda: shown.append(waiting.session.waiting))
    waiting.round(a=0.1, b=0.2)
    assert (shown[0].round_index, shown[0].timeouts, shown[0].seconds) == (1, {"c": DEADLINE}, None)
    assert (waiting.session.waiting.timeouts, waiting.session.waiting.seconds) == ({"c": DEADLINE}, DEADLINE)
    waiting.round(a=0.1, b=0.2, c=3.0)
    assert (set(waiting.session.waiting.timeouts), waiting.session.waiting.seconds) == ({"c"}, 3.0)


def test_status_metrics_and_the_log_say_what_rounds_wait_for(tmp_path, monkeypatch, caplog, capsys):
    home, begun = made_network(tmp_path).homes["peer-1"], time.time() - 3.2
    response = ResponseTime(0.4, 0.1)
    states = {"peer-2": NeighbourState(), "peer-3": NeighbourState(response=response)}
    with contextlib.closing(Store(home.state_path)) as store, caplog.at_level("INFO", "peerbayes.peer"):
        journal = Journal(store)
        for round_index in range(26):
            missing = ("peer-3",) if round_index in (1, 7, 12, 25) else ()
            store.add_round(RoundRecord(round_index, np.zeros(1), heard=("peer-2",), missing=missing))
            waited = Waited(round_index, begun, {"peer-3": 10.0}, 1.0 if missing else 0.01)
            facts = {
                "round": round_index,
                "of": 30,
                "heard": [],
                "missing": missing,
                "figures": {},
                "waited": waited,
            }
            journal("round", facts)
        journal.flush(states, Waited(26, begun, {"peer-3": 10.0}))
    monkeypatch.setattr("peerbayes.peer.status.phase", lambda home: "rounds")
    report = status(home)
    (waiting,) = report["waiting"]
    assert waiting_text(waiting | {"seconds": 3.2}) == (
        "waiting for peer-3: 3.2 s of at most 10 s; usually answers in 0.4 s; missed 3 of the last 20 rounds"
    )
    assert waiting["seconds"] >= 3.2
    assert [entry["round"] for entry in report["waits"]] == list(range(6, 26))
    peer_commands._print_status(report, lambda *figures: "")
    printed = " ".join(capsys.readouterr().out.split())
    assert waiting_text(waiting) in printed and "the last 20 rounds waited 3.2 s: 3.2 s for peer-3" in printed
    values = {metric.name: {next(iter(labels.values())): value for labels, value in metric.values}
              for metric in metrics_of(report, time.time(), exact=True) if "seconds" in metric.name}  # fmt: skip
    assert values["peerbayes_neighbour_usual_seconds"] == {"peer-3": 0.4}
    assert values["peerbayes_waiting_seconds"] == {"peer-3": waiting["seconds"]}
    logged = [record.getMessage() for record in caplog.records]
    assert logged[25].endswith("not heard: peer-3; waited 1.00 s for peer-3") and "waited" not in logged[24]
    monkeypatch.setattr("peerbayes.peer.status.phase", lambda home: None)
    assert status(home)["waiting"] == []  # it does not run


# --- peers in memory, some of which come back ---------------------------------------------------------------

ROUNDS = 12


class Watched(InMemory):
    """Calls of one peer: for which round, and how long a reply may take beyond what it may wait."""

    def __init__(self, hub, name):
        super().__init__(hub, name)
        self.asked, self.graces, self.news, self.silent, self.gate = set(), [], Changes(), 0, False

    async def ask(self, neighbour, request, timeout):
        asked = msgspec.msgpack.decode(request, type=wire.Request)
        self.asked.add((neighbour, asked.round_index))
        self.news.notify()
        if neighbour == "p2" and asked.kind == "round" and asked.wait:
            self.graces.append(timeout - asked.wait)
            if len(self.graces) <= self.silent:
                await asyncio.sleep(timeout)
                raise Unreachable("p2 does not answer")
        if (
            self.gate and asked.kind == "round" and asked.wait
        ):  # no reply before the rounds after it were asked for, too
            later = range(asked.round_index + 1, min(asked.round_index + AHEAD, ROUNDS) + 1)
            try:
                async with asyncio.timeout(5.0):
                    while not {(neighbour, round_index) for round_index in later} <= self.asked:
                        await self.news.wait(None)
            except TimeoutError:
                self.gate = False  # one that waits for each round in turn
        return await super().ask(neighbour, request, timeout)


def four(folder, rng, limits):
    X, y = table(rng)
    terms = Terms("test", "label", strategy="exact", rounds=ROUNDS, limits=limits)
    return peers_of(folder, terms, nx.complete_graph(4), (X, y, np.array_split(rng.permutation(len(y)), 4)))


class Leaving(list):
    """Everything that a peer tells; after its second round two hosts lose their links."""

    def __init__(self, cut):
        self.cut = cut

    def append(self, event):
        super().append(event)
        if event[0] == "round" and event[1]["round"] == 2:
            self.cut |= {
                frozenset((first, second)) for first in ("p2", "p3") for second in ("p0", "p1", "p2", "p3")
            }


def only_for(absent, node):
    """Let time pass in a peer's rounds only while it waits for one neighbour alone, however busy the machine is."""
    inbox, seconds = node._rounds._inbox, itertools.count(1.0, 10.0)

    def now():
        lacking = [name for name in node.session.neighbours if inbox.lacks(name)]
        return next(seconds) if lacking == [absent] else 0.0

    inbox.now = now
    return node


def test_a_peer_that_comes_back_catches_up_at_once_without_one_that_does_not(tmp_path, rng, monkeypatch):
    peers = four(tmp_path, rng, Limits(deadline=0.05, quorum=0.3))
    peers.told["p3"] = Leaving(peers.hub.cut)

    async def main():
        tasks = {name: peers.start(name) for name in peers.names}
        await peers.until(lambda: peers.hub.cut)
        for name in ("p2", "p3"):
            await ended(tasks.pop(name))
        stopped = peers.rounds("p3")[-1]
        await peers.until(
            lambda: {peers.nodes[name].session.round_index for name in ("p0", "p1")} == {ROUNDS}
        )
        peers.hub.cut.clear()
        peers.told["p3"] = []
        watched = Watched(peers.hub, "p3")
        watched.gate = True
        monkeypatch.setattr(peers.hub, "transport", lambda name: watched)
        tasks["p3"] = running(only_for("p2", peers.node("p3")))
        await peers.until(lambda: peers.nodes["p3"].session.round_index == ROUNDS)
        for task in tasks.values():
            await ended(task)
        assert watched.gate
        return stopped

    stopped = asyncio.run(main())
    assert stopped < ROUNDS - 3
    late = peers.history("p3")[stopped + 1 :]
    assert [entry["heard"] for entry in late] == [["p0", "p1"]] * len(late)
    given = [facts["waited"].timeouts["p2"] for what, facts in peers.told["p3"] if what == "round"]
    # Two deadlines for all old rounds together; in the last round it is no longer behind.
    assert given[:-1] == [0.05 / 2**missed for missed in range(len(late) - 1)]


def test_a_call_without_an_answer_is_given_up_soon_and_later_the_next_time(tmp_path, rng, monkeypatch):
    monkeypatch.setattr("peerbayes.peer.tasks.WAIT", 0.05)
    monkeypatch.setattr("peerbayes.peer.tasks.FIRST_GRACE", 0.05)
    monkeypatch.setattr("peerbayes.peer.tasks.GRACE", 0.3)
    peers = four(tmp_path, rng, Limits(deadline=HANG))
    watched = Watched(peers.hub, "p3")
    watched.silent = 4

    async def main():
        monkeypatch.setattr(
            peers.hub, "transport", lambda name: watched if name == "p3" else InMemory(peers.hub, name)
        )
        return await peers.all()

    reached = asyncio.run(main())
    assert all(isinstance(stats, np.ndarray) for stats in reached)
    first, *later = watched.graces[:5]
    assert first >= 0.049 and later == pytest.approx([min(0.3, first * 2**calls) for calls in (1, 2, 3, 4)])
    assert not any(entry["missing"] for entry in peers.history("p3"))
