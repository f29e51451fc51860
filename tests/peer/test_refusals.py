"""A peer refuses what it must, says why, and the run ends as if nothing had been.

Peers ask, so a hostile one can do two things: answer badly (`Liar`), and ask badly (`caller`). Everything here goes
over real links with real certificates; where the whole process counts, it is a process.
"""

import asyncio
import contextlib
import json
import random
import re
import ssl
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
import msgspec

from peerbayes.errors import RefusedMessage
from peerbayes.peer import tasks
from peerbayes.peer.identity import keys
from peerbayes.peer.identity.founder import Founder
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.failures import Unreachable
from peerbayes.peer.protocol.link import REQUEST_TIMEOUT, UNANSWERED
from peerbayes.peer.protocol.transport import MOST_OF_ONE, Links
from peerbayes.peer.protocol.wire import Reply, Request
from peerbayes.peer.state.audit_log import entries
from peerbayes.peer.status import status
from peerbayes.peer.tasks import Rate
from shared.commands import HANG, peerbayes
from shared.hostile_neighbours import (
    HONEST,
    HOSTILE,
    PATIENT,
    TABLES,
    TERMS,
    TRIANGLE,
    Liar,
    opened,
    reasons,
    run,
)
from shared.kinds_of_links import line_to
from shared.link_option import over_other_links_too
from shared.real_calls import REQUEST, Ended, ask, channel_of, channel_to

pytestmark = [pytest.mark.long, pytest.mark.links]  # neighbours and machines that do the worst: minutes

LINE = [(0, 1), (1, 2)]


# --- peers in this process -----------------------------------------------------------------------------


def same(found, expected):
    for name in HONEST:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-9)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What the peers learn with nobody in their way."""
    return run(Loopback.create(tmp_path_factory.mktemp("undisturbed"), TERMS, TABLES, TRIANGLE))


def hurry(monkeypatch):
    """Peers ask again soon, and do not stay long for others once they failed."""
    monkeypatch.setattr(tasks, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(tasks, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(tasks, "DRAIN", 0.5)


@pytest.fixture
def network(tmp_path, monkeypatch):
    hurry(monkeypatch)
    return Loopback.create(tmp_path, TERMS, TABLES, TRIANGLE)


# --- bad answers ---------------------------------------------------------------------------------------


def changed(**fields):
    return lambda told, before: msgspec.structs.replace(told, **fields)


def with_body(body):
    """Another body, with the digest that belongs to it."""

    def alter(told, before):
        content = body(told.body) if callable(body) else body
        return msgspec.structs.replace(told, body=content, digest=wire.digest_of(content))

    return alter


def with_numbers(alter):
    def altered(body):
        numbers = np.frombuffer(body).reshape(3, -1).copy()
        alter(numbers)
        return numbers.tobytes()

    return with_body(altered)


def put(place, value):
    def alter(numbers):
        numbers[place] = value

    return with_numbers(alter)


def add(place, other, value):
    def alter(numbers):
        numbers[place] += value
        if other is not None:
            numbers[other] -= value

    return with_numbers(alter)


# What it says instead, and the reason to expect. `told` is its honest reply, `before` the one of the round before.
ROUND_LIES = {
    "another's name": (changed(sender="peer-1"), "speaks for another"),
    "another network": (changed(run="0" * 64), "wrong network"),
    "another schema": (changed(schema="0" * 64), "wrong schema"),
    "another version": (changed(version=1, lowest=1, highest=1), "other version"),
    "another kind": (changed(kind="first"), "wrong message"),
    "a later round": (
        lambda told, _: msgspec.structs.replace(told, round_index=told.round_index + 1),
        "wrong round",
    ),
    "the round before again": (
        lambda told, before: before or changed(round_index=0)(told, None),
        "wrong round",
    ),
    "another shape": (changed(shape=(1, 2)), "wrong shape"),
    "a row less": (with_body(lambda body: body[: len(body) // 3 * 2]), "wrong shape"),
    "half a number": (with_body(lambda body: body[:-3]), "wrong shape"),
    "nothing": (with_body(b""), "wrong shape"),
    "bytes that were changed": (changed(body=b"\0" * 8), "wrong digest"),
    "no digest": (changed(digest=b""), "wrong digest"),
    "NaN": (put((1, 2), np.nan), "not finite"),
    "infinity": (put((0, 0), -np.inf), "not finite"),
    "an absurd number": (put((0, 1), 1e300), "absurd magnitude"),
    "absurd numbers that cancel": (add((0, 1), (1, 1), 1e9), "absurd magnitude"),
    "more rows than there are": (add((0, 0), None, 1e-3), "class sums"),
    "all of it twice": (with_numbers(lambda numbers: np.multiply(numbers, 2, numbers)), "class sums"),
    "cells that do not add up": (add((0, -1), (1, -1), 1e-3), "cell sums"),
    "far too much": (with_body(b"\0" * (2 << 20)), "too large"),
    "half a message": (lambda told, _: wire.encode(told)[:-20], "unreadable"),
    "noise": (lambda told, _: random.Random(0).randbytes(300), "unreadable"),
    "no bytes": (lambda told, _: b"", "unreadable"),
    "that it is gone": (changed(status="gone"), "gone"),
}


def lying(kind, lies):
    """Tells everybody each of the lies about everything of a kind (in a phase), then the truth."""
    told_before, count = {}, Counter()

    def lie(caller, asked, told):
        if asked.kind != kind or told.status != "ok":
            return told
        key = caller, asked.phase, asked.round_index
        told_before[caller, asked.round_index] = told
        mine = [alter for phase, alter in lies if phase in ("", asked.phase)]
        count[key] += 1
        if count[key] > len(mine):
            return told
        return mine[count[key] - 1](told, told_before.get((caller, asked.round_index - 1)))

    return lie


def test_a_neighbour_that_answers_rounds_badly_changes_nothing(network, undisturbed):
    same(run(network, lying("round", [("", alter) for alter, _ in ROUND_LIES.values()])), undisturbed)
    times = Counter(reason for _, reason in ROUND_LIES.values())
    for honest in HONEST:
        assert reasons(network.homes[honest]) == {
            (HOSTILE, reason): count * TERMS.rounds for reason, count in times.items()
        }
        assert status(network.homes[honest])["missing"] == {}


def repacked(alter):
    """A summary or sums with something changed."""

    def altered(body):
        told = msgspec.msgpack.decode(body)
        alter(told)
        return msgspec.msgpack.encode(told)

    return with_body(altered)


def renamed(told):
    told["another"] = told.pop(min(told))


def with_item(place, value):
    return repacked(lambda told: told.__setitem__(place, value))


HUGE = "f" * 400 + "/0"
WIDE = "petal width (cm)"

# (the phase, or all), what it says instead, and the reason to expect.
SUM_LIES = [
    ("", changed(sender="peer-1"), "speaks for another"),
    ("", changed(run="0" * 64), "wrong network"),
    ("", changed(digest=b""), "wrong digest"),
    ("", with_body(b"\0" * (2 << 20)), "too large"),
    ("columns", with_body(b"\xff" * 30), "unreadable"),
    (
        "columns",
        with_body(b"\x95\x01\x01\x90\x80\x91\x92\xa1t" + b"\x91" * 50_000),
        "unreadable",
    ),  # list in list in…
    ("columns", with_item(1, 0), "implausible"),  # no rows
    ("columns", repacked(lambda told: told[3][WIDE].__setitem__(4, HUGE)), "absurd magnitude"),
    (
        "columns",
        repacked(lambda told: told[3][WIDE].__setitem__(3, 10**6)),
        "implausible",
    ),  # values of no row
    ("spread", with_body(b"\xff" * 30), "unreadable"),
    ("spread", with_item(WIDE, "-fffff/0"), "absurd magnitude"),
    ("spread", with_item(WIDE, HUGE), "absurd magnitude"),
    ("bound", with_item("most", HUGE), "absurd magnitude"),
    ("start", with_body(lambda body: b"\x7f" * len(body)), "absurd magnitude"),
    ("start", with_body(lambda body: body + bytes(8)), "wrong shape"),
]
PHASES = ("columns", "spread", "bound", "start")


def test_a_neighbour_that_answers_sums_badly_changes_nothing(network, undisturbed):
    same(run(network, lying("sum", [(phase, alter) for phase, alter, _ in SUM_LIES])), undisturbed)
    times = Counter(reason for phase, _, reason in SUM_LIES for _ in (PHASES if phase == "" else (phase,)))
    found = [reasons(network.homes[honest]) for honest in HONEST]
    expected = {(HOSTILE, reason): count for reason, count in times.items()}
    assert expected in found and all(
        each in ({}, expected) for each in found
    )  # the tree may lead to one of them


@pytest.mark.parametrize(
    ("phase", "alter", "reason"),
    [
        pytest.param("spread", repacked(renamed), "wrong message", id="other names"),
        pytest.param("columns", with_item(0, 2), "implausible", id="peers that are not there"),
    ],
)
def test_a_sum_that_cannot_be_is_refused_when_it_comes(network, undisturbed, phase, alter, reason):
    same(run(network, lying("sum", [(phase, alter)]), limit=10.0), undisturbed)
    assert any((HOSTILE, reason) in reasons(network.homes[honest]) for honest in HONEST)


def test_absurd_first_numbers_change_nothing(tmp_path, monkeypatch):
    """`auto` compares neighbours' first residuals where they are far from each other."""
    hurry(monkeypatch)
    monkeypatch.setattr("peerbayes.learning.choice.NEAR", 0.0)
    terms = replace(TERMS, strategy="auto")
    expected = run(Loopback.create(tmp_path / "undisturbed", terms, TABLES, TRIANGLE))
    network = Loopback.create(tmp_path / "disturbed", terms, TABLES, TRIANGLE)
    absurd = with_body(lambda body: np.full(len(body) // 8, 1e300).tobytes())
    same(run(network, lying("first", [("", absurd)])), expected)
    assert (HOSTILE, "absurd magnitude") in reasons(network.homes["peer-1"])


@pytest.mark.parametrize(
    ("kind", "alter"),
    [
        ("round", changed(status="not yet", body=b"", shape=(), digest=b"")),
        ("sum", changed(status="gone", body=b"", digest=b"")),
        ("hello", changed(roster=1 << 40)),
        pytest.param("hello", changed(roster=0)),
    ],
    ids=["not yet at once", "gone", "a roster that is not there", "an old roster"],
)
def test_an_answer_that_leads_nowhere_is_not_asked_for_without_pause(network, undisturbed, kind, alter):
    """A neighbour that answers at once, but never with what was asked for, costs an honest peer little."""
    asked, began = [], time.monotonic()

    def lie(caller, request, told):
        lies = time.monotonic() < began + 2.0
        if lies and request.kind in (kind, "roster"):
            asked.append(caller)
            return alter(told, None)
        return told

    same(run(network, lie), undisturbed)
    assert len(asked) < 2 * 2.0 / 0.02


def test_refusals_of_a_neighbour_cannot_forge_the_log(network, undisturbed, caplog):
    forged = changed(
        status="refused", reason="no\n12:00:00 all is well [/red]", body=b"", shape=(), digest=b""
    )
    with caplog.at_level("INFO", "peerbayes.peer"):
        same(run(network, lying("round", [("", forged)])), undisturbed)
    assert any("it refuses: no 12:00:00 all is well" in record.message for record in caplog.records)
    assert all("\n" not in record.message for record in caplog.records)


# --- bad requests --------------------------------------------------------------------------------------


def calling(network, name, by):
    """A channel to a member with another member's certificate."""
    return channel_of(network, name, by)


def asking(network, by, kind, **more):
    given = {"version": wire.VERSION, "run": network.founder.roster().run, "sender": by, "kind": kind, **more}
    return Request(**given)


def test_a_member_that_asks_badly_is_refused_by_name(tmp_path):
    network = Loopback.create(tmp_path, TERMS, TABLES, LINE)
    strangers = Founder.create(tmp_path / "strangers", TERMS.to_toml(), 1)
    forged = network.founder.roster().with_revoked("peer-2").signed(strangers.key_path.read_bytes())
    older = network.founder.roster_path.read_bytes()
    by_2 = {
        "speaks for another": {"kind": "round", "sender": "peer-3"},
        "wrong network": {"kind": "sum", "run": "0" * 64},
        "wrong schema": {"kind": "round", "round_index": 1, "schema": "0" * 64},
        "other version": {"kind": "hello", "version": 7},
        "bad roster": {"kind": "roster", "body": forged},
    }

    async def disturb(nodes):
        while nodes["peer-1"].session.agreed is None:
            await asyncio.sleep(0.01)
        async with calling(network, "peer-1", "peer-2") as channel:
            for reason, more in by_2.items():
                told = await ask(channel, asking(network, **{"by": "peer-2", **more}))
                assert told.status == "refused" and told.reason.startswith(reason) and told.body == b""
            assert (await ask(channel, b"noise")).reason.startswith("unreadable")
            assert (await ask(channel, asking(network, "peer-2", "roster", body=older))).status == "ok"
        async with calling(network, "peer-1", "peer-3") as channel:  # a member, but no neighbour
            for kind in wire.OF_RUN:
                told = await ask(channel, asking(network, "peer-3", kind, phase="columns", round_index=1))
                assert told.status == "refused" and told.reason.startswith("not a neighbour")

    expected = run(Loopback.create(tmp_path / "undisturbed", TERMS, TABLES, LINE))
    same(run(network, beside=disturb), expected)
    found = reasons(network.homes["peer-1"])
    assert found == {
        **{("peer-2", reason): 1 for reason in (*by_2, "unreadable")},
        ("peer-3", "not a neighbour"): len(wire.OF_RUN),
    }
    assert network.homes["peer-1"].roster() == network.founder.roster()


def test_a_repeated_request_gets_the_same_bytes(network):
    """Late and repeated requests are harmless: (round, receiver) has one answer."""

    done = asyncio.Event()

    async def repeat(nodes):
        while nodes["peer-1"].session.round_index < TERMS.rounds - 1:
            await asyncio.sleep(0.01)
        schema = nodes["peer-1"].session.agreed.schema.fingerprint
        async with calling(network, "peer-1", HOSTILE) as channel:
            for turn in range(1, TERMS.rounds + 1):
                asked = asking(network, HOSTILE, "round", round_index=turn, schema=schema)
                told = [await ask(channel, asked) for _ in range(3)]
                assert all(one.status == "ok" and one.body == told[0].body for one in told)
        done.set()

    run(network, held(done), beside=repeat)
    sent = [(entry["what"], entry["digest"]) for entry in entries(network.homes["peer-1"].audit_path)
            if entry["to"] == HOSTILE and entry["what"].startswith("round")]  # fmt: skip
    assert len(set(sent)) == TERMS.rounds and len(sent) >= 3 * TERMS.rounds  # all of it is in the audit log


def held(until):
    """Answers honestly, but gives its last message only after an event, so that the run is under way until then."""

    async def lie(caller, asked, told):
        if asked.kind == "round" and asked.round_index == TERMS.rounds:
            await until.wait()
        return told

    return lie


# --- fuzzing -------------------------------------------------------------------------------------------


def mutated(rng, valid):
    """Bytes near valid ones, or far from them."""
    content = bytearray(rng.choice(valid))
    for _ in range(rng.randrange(1, 4)):
        at, kind = rng.randrange(len(content) + 1), rng.randrange(5)
        if kind == 0 and at < len(content):
            content[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            content[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 2:
            del content[at : at + rng.randrange(1, 9)]
        elif kind == 3:
            other = rng.choice(valid)
            content[at:] = other[at:]
        else:
            content = bytearray(rng.randbytes(rng.randrange(200)))
    return bytes(content)


def valid_requests(network, by, schema=""):
    roster = network.founder.roster_path.read_bytes()
    return [
        wire.encode(asking(network, by, kind, phase=phase, round_index=turn, schema=schema))
        for kind in ("hello", "roster", "sum", "first", "round")
        for phase in ("", "columns", "spread")
        for turn in (0, 1, 2, 1 << 40)
    ] + [wire.encode(asking(network, by, "roster", body=roster))]


FUZZED = 100_000


def test_100000_fuzzed_requests(network, undisturbed, caplog):
    """Only refusals and well-formed replies come back, memory stays, and the run goes on."""
    caplog.set_level("ERROR", "peerbayes.peer")
    rng = random.Random(5)
    grown, done = [], asyncio.Event()

    async def fuzz(nodes):
        target = nodes["peer-1"]
        valid = valid_requests(network, HOSTILE)
        statuses = Counter()
        for place in range(FUZZED):
            if place == FUZZED // 5:  # by now, what is kept is kept
                before = memory("self", "VmRSS")
            told = await target.answer(HOSTILE, mutated(rng, valid))
            statuses[msgspec.msgpack.decode(told, type=Reply).status] += 1
            if place % 50 == 0:
                await asyncio.sleep(0)  # the run goes on meanwhile
        grown.append(memory("self", "VmRSS") - before)
        assert statuses.total() == FUZZED
        assert statuses["refused"] > FUZZED / 2 and statuses["ok"] > 100
        done.set()

    same(run(network, held(done), beside=fuzz, limit=120.0), undisturbed)
    assert grown[0] < 10
    found = reasons(network.homes["peer-1"])
    assert {reason for who, reason in found if who == HOSTILE} >= {
        "unreadable",
        "speaks for another",
        "wrong network",
    }
    assert sum(found.values()) > FUZZED / 2
    assert network.homes["peer-1"].roster() == network.founder.roster()


def test_fuzzed_answers_change_nothing(network, undisturbed):
    """A neighbour that mutates its replies: each is refused, or says what the honest one does."""
    rng = random.Random(6)
    seen = {}

    def lie(caller, asked, told):
        if asked.kind not in wire.OF_RUN or told.status != "ok":
            return told
        key = caller, asked.kind, asked.phase, asked.round_index
        seen[key] = seen.get(key, 0) + 1
        # Where the digest does not reach (rounds done, roster version), a mutation is no lie about numbers.
        return mutated(rng, [wire.encode(told)]) if seen[key] <= 10 else told

    same(run(network, lie), undisturbed)
    assert any(who == HOSTILE for who, _ in reasons(network.homes["peer-1"]))


@over_other_links_too
def test_fuzzed_requests_over_the_network_while_a_run_is_under_way(kind_of_links, network, undisturbed):
    rng = random.Random(7)
    count, together, done = 3000, UNANSWERED // 8, asyncio.Event()  # its own requests come beside these

    async def fuzz(nodes):
        valid = [
            content
            for content in valid_requests(network, HOSTILE)
            if wire.request_in(content).kind in ("hello", "roster")
        ]
        async with calling(network, "peer-1", HOSTILE) as channel:
            for _ in range(count // together):
                told = await asyncio.gather(*(ask(channel, mutated(rng, valid)) for _ in range(together)))
                assert {one.status for one in told} <= {"ok", "refused", "gone"}
                # A piece of a roster that is not here, or past its end: nothing comes with that.
                assert not any(one.body for one in told if one.status == "gone")
                assert {one.sender for one in told} == {"peer-1"}
        done.set()

    same(run(network, held(done), beside=fuzz), undisturbed)
    assert sum(reasons(network.homes["peer-1"]).values()) > count / 2


def test_fuzzed_rosters_change_nothing(network):
    """Rosters pass only as the authority signed them, whoever brings them."""
    rng = random.Random(8)
    newer = network.founder.roster().with_revoked("peer-2").signed(network.founder.key_path.read_bytes())
    home = network.homes["peer-1"]

    async def fuzz():
        with opened(home) as target:
            target._server._rosters = Rate(10**6, 0.0)  # how many it looks at is another test
            for body in [
                body for body in (mutated(rng, [newer]) for _ in range(600)) if body not in (b"", newer)
            ][:500]:
                told = await target.answer(
                    HOSTILE, wire.encode(asking(network, HOSTILE, "roster", body=body))
                )
                assert msgspec.msgpack.decode(told, type=Reply).reason.startswith("bad roster")
            assert target.session.roster.revoked == ()
            await target.answer(HOSTILE, wire.encode(asking(network, HOSTILE, "roster", body=newer)))
            assert target.session.roster.revoked == ("peer-2",) == home.roster().revoked
            await target.transport.close()

    asyncio.run(fuzz())
    assert reasons(home) == {(HOSTILE, "bad roster"): 500}


# --- processes -----------------------------------------------------------------------------------------

LONG = replace(TERMS, rounds=10_000, limits=replace(PATIENT, deadline=600.0))


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """peer-1 and peer-2 run, and wait for peer-3, whose certificate the tests hold."""
    with two_that_wait(tmp_path_factory.mktemp("processes")) as network:
        yield network


@contextlib.contextmanager
def two_that_wait(folder):
    network = Loopback.create(folder, LONG, TABLES, TRIANGLE)
    try:
        for name in HONEST:
            network.homes[name].join(network.founder.roster_path.read_bytes())
            network.start(name)
        for name in HONEST:
            until(lambda name=name: "agreeing on columns" in log(network, name))
        yield network
    finally:
        network.stop()


def until(holds):
    end = time.monotonic() + HANG
    while not holds():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.05)


def log(network, name):
    return network.homes[name].log_path.read_text(errors="replace")


def memory(process, what):
    """MB of a process: VmRSS now, VmHWM the most ever."""
    with open(f"/proc/{getattr(process, 'pid', process)}/status") as lines:  # noqa: PTH123
        return int(re.search(rf"{what}:\s+(\d+) kB", lines.read())[1]) / 1024


def told_reasons(network, name):
    """What the command says."""
    told = json.loads(
        peerbayes("peer", "status", network.homes[name].folder, "--format", "json", code=0).stdout
    )
    assert told["running"]
    return {(entry["who"], entry["reason"]) for entry in told["refusals"]}


def test_a_gigabyte_is_neither_heard_nor_read(processes):
    """As a request and as an answer; the peer's memory stays, and it goes on."""
    network, process = processes, processes.processes["peer-1"]
    before = memory(process, "VmHWM")
    gigabyte = bytes(1 << 30)
    said = []

    def lie(caller, asked, told):
        if caller == "peer-1" and asked.kind == "sum" and told.status == "ok" and not said:
            said.append(asked)
            return msgspec.structs.replace(told, body=gigabyte, digest=bytes(32))
        return told

    async def disturb():
        async with calling(network, "peer-1", HOSTILE) as channel:
            with pytest.raises(Ended, match=r"too large|Error"):
                await channel.call(gigabyte)
        with opened(network.homes[HOSTILE], lambda *given: Liar(*given, lie)) as hostile:
            work = asyncio.ensure_future(hostile.run())
            try:
                await asyncio.to_thread(until, lambda: "round 3/" in log(network, "peer-1"))
            finally:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)

    asyncio.run(disturb())
    assert said
    assert memory(process, "VmHWM") - before < 60
    until(lambda: (HOSTILE, "too large") in told_reasons(network, "peer-1"))


def test_a_request_that_is_far_too_large_is_logged(processes):
    def count():
        return reasons(processes.homes["peer-1"]).get((HOSTILE, "too large"), 0)

    async def send():
        async with calling(processes, "peer-1", HOSTILE) as channel:
            with pytest.raises(Ended):
                await channel.call(bytes(8 << 20))

    before = count()
    asyncio.run(send())
    until(lambda: count() > before)


def test_a_flooding_neighbour_takes_neither_memory_nor_the_line(processes):
    """Many calls at once of one certificate: four wait, the others are refused, and others are answered. What is under
    way takes room (32 calls a connection, half a megabyte each), and a flood that goes on takes no more."""
    network, process = processes, processes.processes["peer-1"]
    statuses = []

    async def flood(count):
        async with contextlib.AsyncExitStack() as stack:
            channels = [
                await stack.enter_async_context(calling(network, "peer-1", HOSTILE))
                for _ in range(MOST_OF_ONE - 1)
            ]
            big = asking(network, HOSTILE, "roster", body=bytes(400 << 10))
            waiting = asking(network, HOSTILE, "first", wait=1.0)

            async def send(channel, request):
                try:
                    statuses.append((await ask(channel, request)).reason.split(":")[0])
                except Ended as error:
                    statuses.append(str(error).split(":")[0])

            calls = [
                asyncio.ensure_future(send(channels[place % len(channels)], big if place % 4 else waiting))
                for place in range(count)
            ]
            async with calling(network, "peer-1", "peer-2") as honest:
                for _ in range(5):
                    began = time.monotonic()
                    assert (await ask(honest, asking(network, "peer-2", "hello"))).status == "ok"
                    assert time.monotonic() - began < 5.0
            await asyncio.gather(*calls)

    before, highest = memory(process, "VmRSS"), []
    for _ in range(3):  # the first fills what one certificate can fill, the others find it full
        asyncio.run(flood(800))
        highest.append(memory(process, "VmHWM"))
    assert highest[2] - highest[1] < 50 and highest[2] - before < 300, (before, highest)
    assert statuses.count("") < 240  # those that waited their turn: four at a time, a second each
    assert statuses.count("too many at once") > 100
    until(lambda: (HOSTILE, "too many at once") in told_reasons(network, "peer-1"))


def test_a_neighbour_that_begins_many_requests_and_ends_none_does_not_shut_others_out(processes):
    """As many connections as one certificate may have, each with a request whose rest never comes."""
    network = processes

    async def hold():
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(MOST_OF_ONE - 1):
                channel = await stack.enter_async_context(calling(network, "peer-1", HOSTILE))
                channel.send(REQUEST, 1, b"a part", length=100_000)
            await asyncio.sleep(1.0)
            async with calling(network, "peer-1", "peer-2") as honest:
                async with asyncio.timeout(0.9 * REQUEST_TIMEOUT):
                    assert (await ask(honest, asking(network, "peer-2", "hello"))).status == "ok"
            assert "nothing sent" in await channel.until_ended()

    asyncio.run(hold())
    until(lambda: (HOSTILE, "nothing sent") in told_reasons(network, "peer-1"))


async def fails(channel):
    """Why a connection is not let in."""
    with pytest.raises((Ended, OSError)) as refused:
        async with channel as opened:
            await opened.call(b"")
    return str(refused.value)


def test_whoever_is_not_a_member_is_turned_away(tmp_path):
    """In a network of its own: a member gets another certificate, and is revoked."""
    with two_that_wait(tmp_path) as network:
        outsiders_are_turned_away(network, tmp_path)


def outsiders_are_turned_away(network, tmp_path):
    home, called = network.homes[HOSTILE], network.founder.roster().member("peer-1")
    authority = home.authority_path.read_bytes()
    strangers = Loopback.create(tmp_path / "strangers", LONG, TABLES, TRIANGLE).homes[HOSTILE]
    key, request = keys.new_request(HOSTILE)
    old = home.key_path.read_bytes(), home.certificate_path.read_bytes()
    newest = network.founder.invite(
        HOSTILE, request, network.founder.roster().member(HOSTILE).address, again=True
    )
    newest = key, newest.certificate.encode()

    async def outsiders():
        await fails(channel_to(network, "peer-1", authority=authority))  # no certificate
        theirs = strangers.key_path.read_bytes(), strangers.certificate_path.read_bytes()
        await fails(channel_to(network, "peer-1", *theirs, authority))  # another authority's

    async def replaced():
        async with channel_to(network, "peer-1", *old, authority) as channel:
            assert (await ask(channel, asking(network, HOSTILE, "hello"))).status == "ok"
            # Given to peer-2 only: gossip brings it to peer-1. It ends the connection that brings it, too.
            signed = network.founder.roster_path.read_bytes()
            async with calling(network, "peer-2", HOSTILE) as other:
                with pytest.raises(Ended, match="other certificate"):
                    await ask(other, asking(network, HOSTILE, "roster", body=signed))
            await asyncio.to_thread(until, lambda: "roster 5 is in force" in log(network, "peer-1"))
            assert "other certificate" in await channel.until_ended()  # also on a channel that is open
        assert "other certificate" in await fails(channel_to(network, "peer-1", *old, authority))
        async with channel_to(network, "peer-1", *newest, authority) as channel:
            assert (await ask(channel, asking(network, HOSTILE, "hello"))).status == "ok"

    async def revoked():
        network.founder.revoke(HOSTILE)
        signed = network.founder.roster_path.read_bytes()
        async with channel_to(
            network, "peer-2", *newest, authority
        ) as other:  # peer-1 hears of it from peer-2
            assert (await ask(other, asking(network, HOSTILE, "roster", body=signed))).status == "ok"

    asyncio.run(outsiders())
    with line_to(called) as line:
        line.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        line.settimeout(5.0)
        with contextlib.suppress(ConnectionError):
            assert b"200" not in line.recv(100)
    old_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old_tls.check_hostname, old_tls.verify_mode = False, ssl.CERT_NONE
    old_tls.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        old_tls.minimum_version, old_tls.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with line_to(called) as line, pytest.raises((ssl.SSLError, OSError)):
        old_tls.wrap_socket(line)
    asyncio.run(replaced())
    expected = {
        ("an unknown host", "no certificate"),
        ("an unknown host", "certificate of another authority, or expired"),
        ("an unknown host", "no TLS"),
        (HOSTILE, "other certificate"),
    }
    until(lambda: told_reasons(network, "peer-1") >= expected)
    for who, reason in expected:
        assert f"refused from {who}: {reason}" in log(network, "peer-1")
    assert all(network.processes[name].poll() is None for name in HONEST)
    asyncio.run(revoked())  # before everybody has agreed: nobody waits for ever
    for name in HONEST:
        assert network.processes[name].wait(HANG) == 2
        assert f"{HOSTILE} was revoked, or left, before everybody had agreed" in log(network, name)


def test_a_server_with_a_replaced_certificate_is_not_believed(tmp_path):
    """The key that `invite --again` replaced may be stolen: nobody asks whoever holds it."""
    network = Loopback.create(tmp_path, TERMS, TABLES, TRIANGLE)
    stolen, place = network.homes[HOSTILE].load(), network.founder.roster().member(HOSTILE).address
    _, request = keys.new_request(HOSTILE)
    network.founder.invite(HOSTILE, request, place, again=True)
    network.homes["peer-1"].join(network.founder.roster_path.read_bytes())

    async def asks():
        thief = Links(stolen, lambda *told: None)
        peer = Links(network.homes["peer-1"].load(), lambda *told: None)
        try:
            await thief.serve(lambda caller, content: asyncio.sleep(0, b"believed"))
            with pytest.raises((Unreachable, RefusedMessage)):
                await peer.ask(HOSTILE, b"", 5.0)
        finally:
            await peer.close()
            await thief.close()

    asyncio.run(asks())
