"""Peers of different versions: what both understand they say, what only one knows is ignored, and else each is told."""

import asyncio
import contextlib
import sys

import numpy as np
import pytest

pytest.importorskip("cryptography")
import msgspec

import peerbayes as pb
from peerbayes.errors import RefusedMessage
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.wire import Reply, Request, Versions
from peerbayes.peer.status import status
from shared.commands import HANG, peerbayes
from shared.real_calls import LINE, ask, channel_of, made_network, node_of, request, serving

ASKED = Request(4, "run", "a", "round", round_index=3, schema="s")
TOLD = Reply(4, "run", "b", "round", "ok", round_index=3, schema="s", digest=wire.digest_of(b""))
ROUNDS = 3


def with_fields(content, **more):
    """The bytes of a message with other fields, as another version may write them."""
    return msgspec.msgpack.encode(msgspec.msgpack.decode(content) | more)


# --- which version ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "version"),
    [
        ((4, 4), (4, 4), 4),
        ((4, 4), (4, 9), 4),
        ((4, 6), (5, 7), 6),
        ((2, 5), (3, 4), 4),
        ((4, 5), (5, 6), 5),
        ((4, 5), (6, 7), None),
        ((3, 3), (4, 4), None),
    ],
)
def test_two_peers_use_the_highest_version_that_both_speak(one, other, version):
    assert Versions(*one).common(Versions(*other)) == version == Versions(*other).common(Versions(*one))


def test_a_message_says_which_versions_its_sender_speaks():
    for spoken in (Versions(4, 4), Versions(4, 6), Versions(3, 5)):
        for version in range(spoken.lowest, spoken.highest + 1):
            asked = Request(**spoken.fields(version), run="run", sender="a", kind="hello")
            assert wire.request_in(wire.encode(asked), spoken) == asked
            assert (asked.version, asked.spoken) == (version, spoken)
    assert Versions(4, 6).fields()["version"] == 6
    assert set(Versions(4, 4).fields()) == {"version"}  # a peer of version 3 refuses what it does not know


@pytest.mark.parametrize(
    ("theirs", "ours", "words"),
    [
        ((3, 3), (4, 4), "a speaks version 3 of the protocol, b version 4,.* Update peerbayes at a:"),
        (
            (4, 5),
            (6, 8),
            "a speaks versions 4 to 5 of the protocol, b versions 6 to 8,.* Update peerbayes at a:",
        ),
        ((9, 9), (6, 8), "a speaks version 9 of the protocol, b versions 6 to 8,.* Update peerbayes at b:"),
    ],
)
def test_without_a_common_version_both_are_told_who_should_update(theirs, ours, words):
    theirs, ours = Versions(*theirs), Versions(*ours)
    asked = Request(**theirs.fields(), run="", sender="a", kind="hello")
    with pytest.raises(RefusedMessage, match=words) as refused:
        wire.request_in(wire.encode(asked), ours, "a", "b")
    assert refused.value.reason == "other version"
    asked = Request(**ours.fields(), run="", sender="b", kind="hello")
    with pytest.raises(RefusedMessage, match=words) as refused:
        wire.reply_in(
            wire.encode(Reply(**theirs.fields(), run="", sender="a", kind="hello", status="ok")), asked, "a"
        )
    assert refused.value.reason == "other version"


def test_versions_come_before_anything_else_that_may_have_changed():
    """A kind or a type of a later version is not "unreadable"."""
    later = with_fields(wire.encode(ASKED), version=9, kind="whisper", turn="third")
    with pytest.raises(RefusedMessage) as refused:
        wire.request_in(later)
    assert refused.value.reason == "other version"
    with pytest.raises(RefusedMessage) as refused:
        wire.reply_in(with_fields(wire.encode(TOLD), version=9, status="perhaps"), ASKED, "b")
    assert refused.value.reason == "other version"
    for bounds in ({"lowest": 5}, {"highest": 3}, {"lowest": 5, "highest": 3}, {"highest": "9"}):
        with pytest.raises(RefusedMessage) as refused:
            wire.request_in(with_fields(wire.encode(ASKED), **bounds))
        assert refused.value.reason == "unreadable", bounds


def test_only_greetings_may_be_in_a_version_that_the_other_does_not_speak():
    ours, theirs = Versions(4, 5), Versions(4, 6)
    for kind in wire.GREETINGS:
        wire.request_in(
            wire.encode(Request(**theirs.fields(), run="", sender="a", kind=kind)), ours, "a", "b"
        )
    for kind in {*wire.OF_RUN, "roster"}:
        asked = Request(**theirs.fields(), run="", sender="a", kind=kind)
        with pytest.raises(RefusedMessage, match=rf"a {kind} in version 6; b speaks versions 4 to 5"):
            wire.request_in(wire.encode(asked), ours, "a", "b")
        asked = Request(**theirs.fields(5), run="", sender="a", kind=kind)
        assert wire.request_in(wire.encode(asked), ours, "a", "b") == asked


def test_a_reply_is_in_the_version_of_its_request():
    asked = msgspec.structs.replace(ASKED, highest=5)
    assert wire.reply_in(wire.encode(msgspec.structs.replace(TOLD, highest=5)), asked, "b")
    with pytest.raises(RefusedMessage, match="a reply in version 5 to a request in version 4"):
        wire.reply_in(wire.encode(msgspec.structs.replace(TOLD, version=5, lowest=4)), asked, "b")


# --- fields that only one of the two knows ---------------------------------------------------------------


def test_a_field_that_this_version_does_not_know_is_ignored():
    more = {"mood": "blue", "list": [1, {"a": b"b"}], "number": 1.5}
    assert wire.request_in(with_fields(wire.encode(ASKED), **more)) == ASKED
    assert wire.reply_in(with_fields(wire.encode(TOLD), **more), ASKED, "b") == TOLD


def test_nothing_is_added_to_what_is_signed_and_passed_on():
    """Who does not know a field would drop it, and the signature of the rest would no longer be of what was meant."""
    for name, entry in (("heard", ["c", 2, bytes(32), b""]), ("process", ["s", 1, "i", 0, 0, b""])):
        wire.request_in(with_fields(wire.encode(ASKED), **{name: [entry] if name == "heard" else entry}))
        longer = [*entry, "more"]
        with pytest.raises(RefusedMessage) as refused:
            wire.request_in(
                with_fields(wire.encode(ASKED), **{name: [longer] if name == "heard" else longer})
            )
        assert refused.value.reason == "unreadable"


# --- runs over links -------------------------------------------------------------------------------------


def recording(transport, seen, alter):
    """The transport of a node, which changes what it sends before it is signed: alter(bytes) -> bytes."""
    ask_before, serve_before = transport.ask, transport.serve

    async def ask_altered(neighbour, content, timeout):
        seen.append((neighbour, wire._envelopes.decode(content)))
        return await ask_before(neighbour, alter(content), timeout)

    async def serve_altered(answer):
        async def altered(caller, content):
            return alter(await answer(caller, content))

        await serve_before(altered)

    transport.ask, transport.serve = ask_altered, serve_altered


def run(network, spoken=None, alter=None):
    """Everybody's statistics at the end of a run, and what each asked: name -> [(neighbour, envelope)]."""
    seen = {name: [] for name in network.homes}

    async def work():
        with contextlib.ExitStack() as stack:
            nodes = {name: stack.enter_context(node_of(home))[0] for name, home in network.homes.items()}
            for name, node in nodes.items():
                node.session.versions = (spoken or {}).get(name, wire.SPOKEN)
                recording(node.transport, seen[name], (alter or {}).get(name, lambda content: content))
            tasks = [asyncio.ensure_future(node.run()) for node in nodes.values()]
            try:
                async with asyncio.timeout(HANG):
                    return dict(zip(nodes, await asyncio.gather(*tasks), strict=True))
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(work()), seen


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """What three peers of this version end with."""
    return run(made_network(tmp_path_factory.mktemp("usual"), LINE, rounds=ROUNDS))[0]


@pytest.fixture
def network(tmp_path):
    return made_network(tmp_path, LINE, rounds=ROUNDS)


def same(statistics, expected):
    for name in expected:
        np.testing.assert_array_equal(statistics[name], expected[name])


@pytest.mark.links
def test_a_twin_with_one_more_field_ends_with_the_same_numbers(network, usual):
    ended, seen = run(network, alter={"peer-2": lambda content: with_fields(content, mood="blue")})
    same(ended, usual)
    assert any(envelope.kind == "round" for _, envelope in seen["peer-2"])


@pytest.mark.links
def test_each_pair_uses_its_highest_version(network, usual):
    spoken = {"peer-1": Versions(4, 4), "peer-2": Versions(4, 6), "peer-3": Versions(5, 7)}
    expected = {
        ("peer-1", "peer-2"): 4,
        ("peer-2", "peer-1"): 4,
        ("peer-2", "peer-3"): 6,
        ("peer-3", "peer-2"): 6,
    }
    ended, seen = run(network, spoken)
    same(ended, usual)
    for (name, neighbour), version in expected.items():
        messages = [each for other, each in seen[name] if other == neighbour and each.kind in wire.OF_RUN]
        assert messages and {message.version for message in messages} == {version}
        assert all(message.spoken == spoken[name] for message in messages)


@pytest.mark.links
def test_a_neighbour_that_went_back_to_an_older_version_is_greeted_anew(network, usual):
    """It said that it speaks 5 as well; then it does not."""
    replies = []

    def alter(content):
        message = msgspec.msgpack.decode(content)
        if "status" in message and message["sender"] == "peer-1":
            replies.append(message["reason"])
            if len(replies) == 1:
                return with_fields(content, highest=5)
        return content

    ended, seen = run(network, {"peer-1": Versions(4, 4), "peer-2": Versions(4, 5)}, {"peer-1": alter})
    same(ended, usual)
    assert any("in version 5; peer-1 speaks version 4" in reason for reason in replies)
    assert [each.version for other, each in seen["peer-2"] if other == "peer-1" and each.kind == "round"][
        -1
    ] == 4


@pytest.mark.links
def test_peers_without_a_common_version_wait_and_say_who_should_update(network):
    """Not less: who updates one of them need not start the other again. `peer check` fails."""
    words = "peer-2 speaks versions 6 to 7 of the protocol, peer-1 versions 4 to 5, so there is none that both speak."
    words += " Update peerbayes at peer-1: pip install --upgrade peerbayes"

    async def work():
        with (
            node_of(network.homes["peer-1"]) as (one, told),
            node_of(network.homes["peer-2"]) as (two, heard),
        ):
            two.session.versions = Versions(6, 7)
            tasks = [asyncio.ensure_future(node.run()) for node in (one, two)]
            try:
                async with asyncio.timeout(HANG):
                    for node, events, other in ((one, told, "peer-2"), (two, heard, "peer-1")):
                        while "speaks" not in node.session.neighbour(other).note:  # first: not reached yet
                            await node.session.changes.wait(0.02)
                        assert words_of(node.session.neighbour(other).note) == words_of(words)
                        refusals = [facts for event, facts in events if event == "refused"]
                        assert {facts["reason"] for facts in refusals} == {"other version"}
                    checked = None
                    if (
                        network.founder.roster().member("peer-2").address != "outbound"
                    ):  # else it calls the node only
                        checked = await asyncio.to_thread(
                            peerbayes, "peer", "check", network.homes["peer-1"].folder
                        )
                assert not any(task.done() for task in tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return checked

    if (checked := asyncio.run(work())) is not None:
        assert checked.returncode == 1
        assert words in " ".join(checked.stdout.split())


def words_of(sentence):
    """Who speaks what and who should update, whoever says it first."""
    return set(sentence.replace(",", "").replace("of the protocol", "").split())


# --- a version before the lowest ---------------------------------------------------------------------------


@pytest.mark.links
def test_a_request_in_version_3_is_refused_by_name(network):
    """Both sides say which versions they speak, and which of them is to be updated."""
    asked, told = request(network, "peer-2", "hello", version=3), []

    async def work():
        with node_of(network.homes["peer-1"], on_event=lambda *event: told.append(event)) as (node, _):
            async with (
                serving(network.homes["peer-1"], node.answer),
                channel_of(network, "peer-1", "peer-2") as channel,
            ):
                return await ask(channel, asked)

    reply = asyncio.run(work())
    words = (
        "peer-2 speaks version 3 of the protocol, peer-1 versions 4 to 5, so there is none that both speak"
    )
    assert reply.reason.startswith(f"other version: {words}. Update peerbayes at peer-2:")
    assert (reply.status, reply.spoken) == ("refused", wire.SPOKEN)
    assert [facts["detail"].startswith(words) for event, facts in told if event == "refused"] == [True]
    theirs = Reply(3, asked.run, "peer-2", "hello", "ok")
    with pytest.raises(RefusedMessage, match=words):
        wire.reply_in(wire.encode(theirs), request(network, "peer-1", "hello", lowest=4), "peer-2")


# --- processes -------------------------------------------------------------------------------------------

TWIN = """
import sys
import msgspec
from peerbayes.peer.protocol import wire
SPECIAL
from peerbayes.cli.app import app
app(sys.argv[1:])
"""
ONE_FIELD_MORE = """
wire.Request = msgspec.defstruct("Request", [("mood", str, "blue")], bases=(wire.Request,), frozen=True)
wire.Reply = msgspec.defstruct("Reply", [("mood", str, "blue")], bases=(wire.Reply,), frozen=True)
wire._requests, wire._replies = map(msgspec.msgpack.Decoder, (wire.Request, wire.Reply))
before = wire.encode
wire.encode = lambda message: before(message) if message.mood == "blue" else 1 / 0  # all messages have it
"""


@pytest.mark.links
@pytest.mark.long
def test_a_twin_process_with_one_more_field_finishes_the_run(network, usual, monkeypatch):
    """From the command to the exit code."""
    for name in ("peer-1", "peer-3"):
        network.start(name)
    monkeypatch.setattr(sys, "executable", _twin(network.homes["peer-2"].folder.parent, ONE_FIELD_MORE))
    network.start("peer-2")
    try:
        codes = {name: process.wait(HANG) for name, process in network.processes.items()}
    finally:
        network.stop()
    assert set(codes.values()) <= {0, 3} and len(codes) == 3  # 3: so few rounds do not settle
    for name, home in network.homes.items():
        assert status(home)["done"] and status(home)["refusals"] == [], name
        kept = pb.load(home.model_path).statistics_.values  # scaled to the number of rows
        scale = kept[:, 0].sum() / usual[name][:, 0].sum()
        np.testing.assert_allclose(kept, scale * usual[name], rtol=1e-12)


def _twin(folder, special):
    """A program that takes Python's place and runs the command with another wire format."""
    script, program = folder / "twin.py", folder / "twin"
    script.write_text(TWIN.replace("SPECIAL", special))
    program.write_text(
        f'#!/bin/sh\nshift 2\nexec "{sys.executable}" "{script}" "$@"\n'
    )  # without: -m peerbayes
    program.chmod(0o755)
    return str(program)
