"""Who may ask a peer for what, and who may not any more: over links, with the certificates of a real network."""

import asyncio
import contextlib
import itertools
import json
import threading
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
from peerbayes.errors import IdentityError, RefusedMessage
from peerbayes.peer import tasks
from peerbayes.peer.agreement.tree_sums import Phase
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.client import Client
from peerbayes.peer.protocol.equivocation import STRUCK_OFF, TWO_STORIES, Blocklist
from peerbayes.peer.protocol.mailboxes import Inbox
from peerbayes.peer.protocol.server import AT_ONCE, ROSTERS
from peerbayes.peer.protocol.session import Session
from peerbayes.peer.protocol.transport import Links
from peerbayes.peer.service import announce_leave
from peerbayes.peer.state.audit_log import entries
from peerbayes.peer.state.store import KEPT, Store
from peerbayes.peer.tasks import Rate
from shared.commands import peerbayes
from shared.real_calls import LINE, ask, channel_of, made_network, node_of, request, serving, within

pytestmark = pytest.mark.long  # neighbours and machines that do the worst: minutes

EVERY_KIND = ("hello", "roster", "leave", *wire.OF_RUN)


@contextlib.asynccontextmanager
async def listening(home, **more):
    """A node that answers, and does nothing else."""
    with node_of(home, **more) as (node, told):
        await node.transport.serve(node.answer)
        try:
            yield node, told
        finally:
            await node.transport.close()


@contextlib.asynccontextmanager
async def running(home, **more):
    """A node at work, and its task."""
    with node_of(home, **more) as (node, told):
        work = asyncio.ensure_future(node.run())
        try:
            yield node, told, work
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


async def until(holds):
    while not holds():
        await asyncio.sleep(0.01)


def refused(told):
    """Who was refused, and why."""
    return [(facts["who"], facts["reason"]) for what, facts in told if what == "refused"]


def sent_to(home, name):
    return [entry["what"] for entry in entries(home.audit_path) if entry["to"] == name]


# --- who may not ---------------------------------------------------------------------------------------


@pytest.mark.links
def test_a_member_asks_in_its_own_name_of_its_own_run_and_its_neighbours_only(tmp_path):
    network = made_network(tmp_path, LINE)

    async def work():
        async with listening(network.homes["peer-1"]) as (_, told):
            async with channel_of(network, "peer-1", "peer-2") as channel:
                for reason, more in (
                    ("speaks for another", {"sender": "peer-3"}),
                    ("wrong network", {"run": "0" * 64}),
                    ("other version", {"version": wire.VERSION + 1}),
                ):
                    reply = await ask(
                        channel, request(network, "peer-2", **{"kind": "round", "round_index": 1, **more})
                    )
                    assert reply.status == "refused" and reply.reason.startswith(reason) and not reply.body
                assert (
                    await ask(channel, request(network, "peer-2", "round", round_index=1))
                ).status == "not yet"
            async with channel_of(network, "peer-1", "peer-3") as channel:  # a member, and no neighbour
                for kind in wire.OF_RUN:
                    reply = await ask(
                        channel, request(network, "peer-3", kind, phase="columns", round_index=1)
                    )
                    assert reply.status == "refused" and reply.reason.startswith("not a neighbour")
                assert (await ask(channel, request(network, "peer-3", "hello"))).status == "ok"
            assert refused(told) == [
                ("peer-2", "speaks for another"), ("peer-2", "wrong network"), ("peer-2", "other version"),
                *[("peer-3", "not a neighbour")] * len(wire.OF_RUN),
            ]  # fmt: skip

    within(work())
    assert not list(entries(network.homes["peer-1"].audit_path))


@pytest.mark.links
def test_sums_go_along_the_tree_only(tmp_path):
    """Elsewhere they would tell one neighbour's part by the difference of two sums."""
    network = made_network(tmp_path)

    async def work():
        found = {}
        async with contextlib.AsyncExitStack() as stack:
            for name in network.homes:
                await stack.enter_async_context(listening(network.homes[name]))
            for name in network.homes:
                for other in set(network.homes) - {name}:
                    async with channel_of(network, name, other) as channel:
                        reply = await ask(channel, request(network, other, "sum", phase="columns"))
                        found[name, other] = f"{reply.status} {reply.reason.partition(':')[0]}".strip()
        return found

    found = within(work())
    off = {pair for pair, told in found.items() if told == "refused not on the tree"}
    assert len(off) == 2 and {pair[::-1] for pair in off} == off  # three peers, two links of a tree
    assert {told for pair, told in found.items() if pair not in off} == {"not yet"}


@pytest.mark.links
def test_a_revoked_member_gets_no_answer_to_anything(tmp_path):
    network = made_network(tmp_path)
    network.founder.revoke("peer-3")
    signed = network.founder.roster_path.read_bytes()

    async def work():
        async with (
            listening(network.homes["peer-1"]) as (node, told),
            channel_of(network, "peer-1", "peer-3") as channel,
        ):
            assert (await ask(channel, request(network, "peer-3", "hello"))).status == "ok"
            async with channel_of(network, "peer-1", "peer-2") as other:
                assert (await ask(other, request(network, "peer-2", "roster", body=signed))).status == "ok"
            assert node.session.roster.revoked == ("peer-3",) == network.homes["peer-1"].roster().revoked
            for kind in EVERY_KIND:
                reply = await ask(channel, request(network, "peer-3", kind, phase="columns", round_index=1))
                assert reply.status == "refused" and reply.reason.startswith("revoked") and not reply.body
            assert refused(told) == [("peer-3", "revoked")] * len(EVERY_KIND)
            assert not node.session.neighbour_states["peer-3"].left  # what it says does not count, either

    within(work())


@pytest.mark.links
def test_one_that_is_revoked_while_it_waits_does_not_get_the_message(tmp_path, monkeypatch):
    """It asks for the last round while the others wait for it; with its revocation they go on, to that round."""
    monkeypatch.setattr(tasks, "WAIT", 60.0)
    network, asked_after = made_network(tmp_path), []
    homes, rounds = network.homes, network.founder.terms().rounds

    async def heard(caller, content):
        """Where peer-3 was, somebody notes what peers ask that know of its revocation."""
        asked = wire.request_in(content)
        if asked.roster > first.version:
            asked_after.append(asked)
        return b""

    async def work():
        async with (
            running(homes["peer-1"], linger=0.0) as (one, _, ends),
            running(homes["peer-2"], linger=0.0) as other,
        ):
            async with running(homes["peer-3"]) as (three, _, _):
                await until(lambda: three.session.round_index >= 2)
            async with serving(homes["peer-3"], heard), channel_of(network, "peer-1", "peer-3") as channel:
                schema = one.session.agreed.schema.fingerprint
                wrong = await ask(
                    channel, request(network, "peer-3", "round", round_index=1, schema="0" * 64)
                )
                assert (
                    wrong.status == "refused" and wrong.reason.startswith("wrong schema") and not wrong.body
                )
                last = request(network, "peer-3", "round", round_index=rounds, schema=schema, wait=60.0)
                waiting = asyncio.ensure_future(ask(channel, last))
                await until(lambda: one._server._busy["peer-3"])
                network.founder.revoke("peer-3")
                signed = network.founder.roster_path.read_bytes()
                for name, by in (("peer-1", "peer-2"), ("peer-2", "peer-1")):
                    async with channel_of(network, name, by) as bringing:
                        assert (
                            await ask(bringing, request(network, by, "roster", body=signed))
                        ).status == "ok"
                reply = await waiting
                assert reply.status == "refused" and reply.reason.startswith("revoked") and not reply.body
                await asyncio.gather(ends, other[2])
                assert one.session.round_index == other[0].session.round_index == rounds

    first = network.founder.roster()
    within(work())
    for name in ("peer-1", "peer-2"):
        assert f"round {rounds}" not in sent_to(homes[name], "peer-3")
    assert f"round {rounds}" in sent_to(homes["peer-1"], "peer-2")
    assert not asked_after


@pytest.mark.links
def test_who_told_two_stories_may_not_ask_after_a_restart_either(tmp_path):
    network = made_network(tmp_path)  # peer-2 goes on: its link to peer-3 is not on the tree of the sums
    with contextlib.closing(Store(network.homes["peer-2"].state_path)) as store:
        store.keep(TWO_STORIES, json.dumps({"peer-3": {"round": 2}}))

    async def work():
        async with running(network.homes["peer-2"]) as (node, told, ends):
            async with channel_of(network, "peer-2", "peer-3") as channel:
                for kind in wire.OF_RUN:
                    reply = await ask(
                        channel, request(network, "peer-3", kind, phase="columns", round_index=1)
                    )
                    assert (
                        reply.status == "refused"
                        and reply.reason.startswith("two stories")
                        and not reply.body
                    )
            async with channel_of(network, "peer-2", "peer-1") as channel:
                assert (
                    await ask(channel, request(network, "peer-1", "round", round_index=1))
                ).status == "not yet"
            assert not ends.done()
            assert "peer-3" not in node.session.neighbours
            assert refused(told) == [("peer-3", "two stories")] * len(wire.OF_RUN)

    within(work())


# --- how much, and how long ----------------------------------------------------------------------------


@pytest.mark.links
def test_four_requests_of_one_neighbour_wait_and_others_are_answered(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "WAIT", 60.0)
    network = made_network(tmp_path)

    async def work():
        async with (
            listening(network.homes["peer-1"]) as (node, told),
            channel_of(network, "peer-1", "peer-2") as channel,
            channel_of(network, "peer-1", "peer-3") as other,
        ):
            later = request(network, "peer-2", "round", round_index=1, wait=60.0)
            waiting = [asyncio.ensure_future(ask(channel, later)) for _ in range(AT_ONCE)]
            await until(lambda: node._server._busy["peer-2"] == AT_ONCE)
            reply = await ask(channel, request(network, "peer-2", "hello"))
            assert reply.status == "refused" and reply.reason.startswith("too many at once")
            assert (await ask(other, request(network, "peer-3", "hello"))).status == "ok"
            for call in waiting:
                call.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await until(lambda: node._server._busy["peer-2"] == 0)
            assert (await ask(channel, request(network, "peer-2", "hello"))).status == "ok"
            assert refused(told) == [("peer-2", "too many at once")]

    within(work())


@pytest.mark.links
def test_no_request_waits_longer_than_this_peer_has_patience(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "WAIT", 0.05)
    network = made_network(tmp_path)

    async def work():
        async with listening(network.homes["peer-1"]), channel_of(network, "peer-1", "peer-2") as channel:
            async with asyncio.timeout(30.0):  # the caller would wait for a minute
                reply = await ask(channel, request(network, "peer-2", "round", round_index=1, wait=60.0))
            assert reply.status == "not yet"

    within(work())


@pytest.mark.links
def test_what_is_said_of_peers_that_are_no_neighbours_of_both_is_not_kept(tmp_path):
    network = made_network(tmp_path, LINE)
    said = tuple(wire.Statement("peer-3", 1, bytes([digest]) * 32, b"") for digest in (1, 2))

    async def work():
        async with (
            listening(network.homes["peer-1"]) as (_, told),
            channel_of(network, "peer-1", "peer-2") as channel,
        ):
            for _ in range(2):
                asked = request(network, "peer-2", "round", round_index=1, heard=said)
                assert (await ask(channel, asked)).status == "not yet"
            assert not refused(told)

    within(work())


# --- rosters -------------------------------------------------------------------------------------------


@pytest.mark.links
def test_a_run_under_way_keeps_its_members_and_the_newest_roster(tmp_path):
    """Whatever the folder takes: the node checks for itself."""
    network = made_network(tmp_path)
    closed, key = network.founder.roster(), network.founder.key_path.read_bytes()
    newer = closed.with_revoked("peer-2")
    others = Roster(
        closed.network, closed.terms, closed.version + 5, closed.members, closed.links[:2], (), True
    )

    async def work():
        async with listening(
            network.homes["peer-1"], newer=lambda signed: Roster.verified(signed, network.founder.authority())
        ) as (node, told):
            node.adopt(newer.signed(key))
            assert node.session.roster == newer and [
                facts["version"] for what, facts in told if what == "roster"
            ]
            node.adopt(closed.signed(key))
            assert node.session.roster == newer
            with pytest.raises(RefusedMessage, match="other members") as wrong:
                node.adopt(others.signed(key))
            assert wrong.value.reason == "bad roster" and node.session.roster == newer

    within(work())


@pytest.mark.links
def test_two_rosters_of_one_version_are_noticed_and_neither_is_adopted(tmp_path):
    """The authority gave peer-2 another roster than peer-1: both say so, keep the other's beside theirs, and go on."""
    network = made_network(tmp_path, rounds=3)
    roster, key = network.founder.roster(), network.founder.key_path.read_bytes()
    member = roster.member("peer-3")
    other = member.address.replace("127.0.0.1", "localhost").replace("outbound", "localhost:1")
    theirs = {
        "peer-1": roster.with_changed(member),
        "peer-2": roster.with_changed(replace(member, address=other)),
    }
    for name, held in theirs.items():
        network.homes[name].join(held.signed(key))

    def kept(name):
        return list(network.homes[name].folder.glob(f"roster-{roster.version + 1}-*.json"))

    async def work():
        async with contextlib.AsyncExitStack() as stack:
            nodes = {
                name: await stack.enter_async_context(running(home, linger=60.0))
                for name, home in network.homes.items()
            }
            await asyncio.gather(*(task for _, _, task in nodes.values()))
            for name, other in (("peer-1", "peer-2"), ("peer-2", "peer-1")):
                node, told, _ = nodes[name]
                assert (
                    node.session.round_index == 3
                    and node.session.roster == theirs[name] == network.homes[name].roster()
                )
                noticed = [pair for pair in refused(told) if pair[0] == other]
                assert noticed == [(other, "two rosters")] * 2  # its digest, and what it then showed

    within(work())
    (path,) = kept("peer-1")
    assert Roster.verified(path.read_bytes(), network.founder.authority()) == theirs["peer-2"]
    compared = peerbayes("network", "inspect", network.homes["peer-1"].roster_path, path, code=1)
    assert compared.stdout == f"address of peer-3: {member.address} against {other}\n"


@pytest.mark.links
def test_a_digest_alone_is_noticed_once(tmp_path):
    network = made_network(tmp_path)
    version = network.founder.roster().version

    async def work():
        async with (
            listening(network.homes["peer-1"]) as (node, told),
            channel_of(network, "peer-1", "peer-2") as channel,
        ):
            for digest in (node.session.roster.digest, b"", bytes(32), bytes(32)):
                asked = request(network, "peer-2", "hello", roster=version, roster_digest=digest)
                reply = await ask(channel, asked)
                assert reply.status == "ok" and reply.roster_digest == node.session.roster.digest
            await ask(
                channel,
                request(network, "peer-2", "hello", roster=version - 1, roster_digest=bytes(range(32))),
            )
            assert refused(told) == [("peer-2", "two rosters")]
            assert "peer-2 has another roster" in told[-1][1]["detail"]

    within(work())


@pytest.mark.links
def test_others_are_answered_while_a_roster_is_read(tmp_path):
    """Also junk that takes long."""
    network, order, free = made_network(tmp_path), [], threading.Event()

    def slow(signed):
        order.append("reading")
        assert free.wait(10.0), "nobody else was answered meanwhile"
        raise IdentityError("junk")

    async def work():
        async with (
            listening(network.homes["peer-1"], newer=slow) as (_, told),
            channel_of(network, "peer-1", "peer-2") as channel,
            channel_of(network, "peer-1", "peer-3") as other,
        ):
            junk = asyncio.ensure_future(ask(channel, request(network, "peer-2", "roster", body=b"junk")))
            await until(lambda: order)
            assert (await ask(other, request(network, "peer-3", "hello"))).status == "ok"
            free.set()
            assert (await junk).reason == "bad roster: junk"
            assert refused(told) == [("peer-2", "bad roster")]

    within(work())


@pytest.mark.links
def test_a_caller_that_brings_many_rosters_is_not_heard_out(tmp_path):
    network, read = made_network(tmp_path), []

    def newer(signed):
        read.append(signed)
        raise IdentityError("junk")

    async def work():
        async with (
            listening(network.homes["peer-1"], newer=newer) as (node, told),
            channel_of(network, "peer-1", "peer-2") as channel,
            channel_of(network, "peer-1", "peer-3") as other,
        ):
            node._server._rosters.clock = lambda: 7.0
            for _ in range(3 * ROSTERS):
                await ask(channel, request(network, "peer-2", "roster", body=b"junk"))
            assert len(read) == ROSTERS
            reply = await ask(other, request(network, "peer-3", "roster", body=b"junk"))
            assert reply.reason == "bad roster: junk"  # what one does is not held against another
            own = request(network, "peer-2", "roster", body=node.session.signed)
            assert (await ask(channel, own)).status == "ok"  # costs nothing
            assert refused(told) == [
                *[("peer-2", "bad roster")] * ROSTERS, *[("peer-2", "too many rosters")] * 2 * ROSTERS,
                ("peer-3", "bad roster"),
            ]  # fmt: skip

    within(work())


def test_a_rate_is_so_many_at_once_and_then_one_after_the_other():
    now = [100.0]
    rate = Rate(3, 2.0, lambda: now[0])
    assert [rate.allows("a") for _ in range(5)] == [True, True, True, False, False]
    assert rate.allows("b")
    for later, allowed in ((101.9, False), (102.0, True), (102.1, False), (104.0, True), (200.0, True)):
        now[0] = later
        assert rate.allows("a") is allowed
    assert [rate.allows("a") for _ in range(3)] == [True, True, False]


def test_others_are_heard_while_a_summary_is_read(tmp_path):
    """A huge one takes long; it is read beside the rest."""
    network, free = made_network(tmp_path), threading.Event()
    behind = []

    def parse(body):
        behind.append(free.wait(10.0))
        return body

    async def work():
        with node_of(network.homes["peer-1"]) as (node, _):
            sums = node._agreement.sums
            total = asyncio.ensure_future(sums.total(Phase("slow", parse), b"own"))
            await asyncio.sleep(0)
            reply = wire.Reply(wire.VERSION, "", "peer-2", "sum", "ok", body=b"body")
            took = asyncio.ensure_future(sums.take(sums.tree[0], "sum", "slow", reply))
            await asyncio.sleep(0)
            free.set()  # which the reader waits for
            await took
            total.cancel()

    within(work())
    assert behind == [True]


def test_a_node_follows_the_certificates_of_a_newer_roster(tmp_path):
    network, followed = made_network(tmp_path), []

    class Following(Links):
        def follow(self, roster):
            followed.append(roster.version)
            super().follow(roster)

    async def work():
        home = network.homes["peer-1"]
        with node_of(home) as (node, _):
            node.transport = Following(home.load(), lambda *told: None)
            newer = network.founder.roster().with_revoked("peer-2")
            node.adopt(newer.signed(network.founder.key_path.read_bytes()))
            assert followed[-1] == newer.version

    within(work())


@pytest.mark.links
def test_a_peer_that_leaves_says_so_to_its_neighbours(tmp_path):
    network, heard = made_network(tmp_path), []

    def answering(status):
        async def answer(caller, content):
            asked = wire.request_in(content)
            heard.append((caller, asked.sender, asked.kind, asked.run))
            name = "peer-2" if status == "ok" else "peer-3"
            reason = "" if status == "ok" else "revoked: no longer a member"
            return wire.encode(wire.Reply(wire.VERSION, asked.run, name, asked.kind, status, reason))

        return answer

    async def work():
        async with serving(network.homes["peer-2"], answering("ok")):
            first = await announce_leave(network.homes["peer-1"].load())
            async with serving(network.homes["peer-3"], answering("refused")):
                return first, await announce_leave(network.homes["peer-1"].load())

    first, second = within(work())
    assert first["peer-2"] == "told" and first["peer-3"].startswith("not told: peer-3 ")
    assert second == {"peer-2": "told", "peer-3": "refused: revoked: no longer a member"}
    assert heard == [("peer-1", "peer-1", "leave", network.founder.roster().run)] * 3


# --- what neighbours said ------------------------------------------------------------------------------


@pytest.fixture
def session(tmp_path):
    network = made_network(tmp_path)
    return Session("peer-1", network.founder.terms(), network.founder.roster(), b"", None, None, None)


def test_a_message_of_a_round_that_is_closed_is_not_put_into_the_next(session):
    inbox, message = Inbox(session), np.zeros((2, 3))
    for turn in (0, 3, 7):
        inbox.put("peer-2", turn, message)
        assert inbox.lacks("peer-2")
    inbox.put("peer-2", 1, message)
    assert not inbox.lacks("peer-2")
    session.round_index = 1
    inbox.clear()
    inbox.put("peer-2", 1, message)
    assert inbox.lacks("peer-2")
    session.round_index = 2
    inbox.clear()
    assert not inbox.lacks("peer-2")  # that of round 3 came early, and waited for its round
    session.round_index = 3
    inbox.clear()
    assert inbox.lacks("peer-2")


def test_junk_between_other_words_is_asked_for_ever_less_often(tmp_path, monkeypatch):
    """To read it costs more than to send it: "not yet" in between makes up for nothing."""
    pauses = []

    async def work():
        with node_of(made_network(tmp_path).homes["peer-1"]) as (node, _):
            asked = node.session.request("peer-2", "sum", phase="columns")
            not_yet = wire.Reply(wire.VERSION, asked.run, "peer-2", "sum", "not yet", phase="columns")
            words = itertools.cycle((b"junk", wire.encode(not_yet)))

            async def said(*given):
                return next(words)

            async def pause(self, state, seconds):
                pauses.append(seconds)
                node.session.neighbour("peer-2").left = len(pauses) == 8

            monkeypatch.setattr(node.transport, "ask", said)
            monkeypatch.setattr(Client, "_wanted", lambda self, name: asked)
            monkeypatch.setattr(Client, "_pause", pause)
            await node._client._forever("peer-2")

    within(work())
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_a_neighbour_cannot_say_that_a_message_is_gone_which_it_must_still_have(session):
    inbox = Inbox(session)
    client = Client(session, None, inbox, Blocklist(session, inbox), None, None, None)
    asked = session.request("peer-2", "round", round_index=1)

    def says_gone(done):
        reply = wire.Reply(wire.VERSION, asked.run, "peer-2", "round", "gone", round_index=1, done=done)
        asyncio.run(client.take("peer-2", asked, reply))

    for done in (0, 1, KEPT):
        with pytest.raises(RefusedMessage, match="it must still have round 1") as told:
            says_gone(done)
        assert told.value.reason == "gone" and inbox.lacks("peer-2")
    says_gone(KEPT + 1)
    assert not inbox.lacks("peer-2")  # the round goes on without it


@pytest.mark.parametrize("reason", [STRUCK_OFF, TWO_STORIES])
def test_what_a_neighbour_said_is_taken_back_when_it_is_parted_with(session, reason):
    inbox = Inbox(session)
    blocklist = Blocklist(session, inbox)
    for name in ("peer-2", "peer-3"):
        inbox.put(name, 1, np.zeros((2, 3)))
        blocklist.refuse(name)
    blocklist.add("peer-3", reason, "it lied")
    assert inbox.lacks("peer-3") and not inbox.lacks("peer-2")
    assert session.neighbours == ("peer-2",) and "peer-3" in blocklist
    with pytest.raises(RefusedMessage) as told:
        blocklist.refuse("peer-3")
    assert told.value.reason == reason
    blocklist.refuse("peer-2")
