"""Links with real certificates: who gets through, who is believed, how much anybody can send, and how links end."""

import asyncio
import contextlib
import socket
import ssl
import struct
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
from peerbayes.errors import IdentityError, PeerError, RefusedMessage
from peerbayes.peer.agreement.terms import Limits
from peerbayes.peer.identity import keys
from peerbayes.peer.protocol import frames, link, transport
from peerbayes.peer.protocol.failures import Unreachable
from peerbayes.peer.protocol.frames import BadFrame, FrameReader, Kind
from peerbayes.peer.protocol.link import EXCESS, UNANSWERED
from peerbayes.peer.protocol.transport import MOST_OF_ONE, ROOM
from peerbayes.peer.protocol.wire import LARGEST_REQUEST
from shared.real_calls import (
    CANCEL,
    FAILED,
    GREETING,
    HANG,
    PING,
    REPLY,
    REQUEST,
    Ended,
    asking_from,
    channel_of,
    channel_to,
    connected,
    context_to,
    made_network,
    serving,
    within,
)


@pytest.fixture
def network(tmp_path):
    return made_network(tmp_path)


async def echo(caller, content):
    return b"%s said %s" % (caller.encode(), content)


async def honest(caller, content):
    return b"honest"


async def stolen(caller, content):
    return b"stolen"


def noting(told):
    return lambda *refusal: told.append(refusal[:2])


def replaced(network, name):
    """Give a member a new key and certificate, and the roster with it to everybody; the member as it was before."""
    before, home = network.homes[name].load(), network.homes[name]
    key, asked = keys.new_request(name)
    invitation = network.founder.invite(
        name, asked, network.founder.roster().member(name).address, again=True
    )
    home.key_path.write_bytes(key)
    home.join(invitation.pack())
    for other in network.homes.values():
        other.join(network.founder.roster_path.read_bytes())
    return before


async def until(holds):
    async with asyncio.timeout(HANG):
        while not holds():
            await asyncio.sleep(0.01)


# --- frames --------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from(Kind), st.integers(0, 2**32 - 1), st.binary(max_size=300)), max_size=8
    ),
    st.lists(st.integers(1, 50), min_size=1, max_size=40),
)
def test_frames_are_read_however_their_bytes_are_divided(sent, sizes):
    content = b"".join(struct.pack("<IIB", len(body), call, kind) + body for kind, call, body in sent)
    reader, read, at = FrameReader(lambda kind, call: 300), [], 0
    for turn in range(len(content)):
        size = sizes[turn % len(sizes)]
        read += reader.frames(content[at : at + size])
        at += size
        if at >= len(content):
            break
    assert [tuple(frame) for frame in read] == sent
    assert reader.empty and reader.under_way is None


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_refused(content):
    """What is too large is refused by its length, whose bytes need not come."""
    reader = FrameReader(lambda kind, call: 40)
    with contextlib.suppress(BadFrame):
        for frame in reader.frames(content):
            assert len(frame.body) <= 40 and frame.kind in Kind


def test_a_frame_says_what_it_is_by_its_first_nine_bytes():
    assert frames.header(Kind.REQUEST, 7, 5) == bytes([5, 0, 0, 0, 7, 0, 0, 0, 2])
    with pytest.raises(BadFrame, match="a reply of 41 bytes; expected at most 40") as refused:
        list(FrameReader(lambda kind, call: 40).frames(struct.pack("<IIB", 41, 9, 3)))
    assert (refused.value.reason, refused.value.kind, refused.value.call) == ("too large", Kind.REPLY, 9)
    with pytest.raises(BadFrame, match="a frame of kind 9"):
        list(FrameReader(lambda kind, call: 40).frames(struct.pack("<IIB", 0, 0, 9)))


def test_many_small_frames_at_once_are_read_in_one_pass():
    """Each costs its own bytes, and not all that came with it."""

    class Counted(bytes):
        taken = 0

        def __getitem__(self, place):
            taken = bytes.__getitem__(self, place)
            Counted.taken += len(taken)
            return taken

    content = Counted(struct.pack("<IIB", 3, 1, REPLY) + b"abc") * 1
    content = Counted(bytes(content) * 10_000)
    assert len(list(FrameReader(lambda kind, call: 40).frames(content))) == 10_000
    assert 0 < Counted.taken <= len(content)


# --- who gets through ----------------------------------------------------------------------------------


def test_a_member_is_known_by_its_certificate(network):
    async def work():
        async with serving(network.homes["peer-1"], echo), channel_of(network, "peer-1", "peer-2") as channel:
            assert await channel.call(b"hello") == b"peer-2 said hello"

    within(work())


def test_whoever_has_no_certificate_of_the_network_is_turned_away(network, tmp_path):
    others, told = made_network(tmp_path / "others").homes["peer-2"], []
    address = network.founder.roster().member("peer-1").address
    host, _, port = address.rpartition(":")

    async def turned_away(key=None, certificate=None):
        with pytest.raises((OSError, Ended)):
            async with channel_to(network, "peer-1", key, certificate) as channel:
                await channel.call(b"")

    async def work():
        async with serving(network.homes["peer-1"], echo, noting(told)):
            await turned_away()
            await turned_away(others.key_path.read_bytes(), others.certificate_path.read_bytes())
            reader, writer = await asyncio.open_connection(host, int(port))  # plain text
            writer.write(struct.pack("<IIB", 4, 1, REQUEST) + b"data")
            assert b"said" not in await reader.read(100)
            writer.close()
            await until(lambda: len(told) == 3)

    within(work())
    assert told == [
        ("an unknown host", "no certificate"),
        ("an unknown host", "certificate of another authority, or expired"),
        ("an unknown host", "no TLS"),
    ]


def test_who_speaks_something_else_inside_tls_is_turned_away(network):
    """A member's certificate, and the protocol that peers spoke before."""
    told, home = [], network.homes["peer-2"]
    context = context_to(
        network.founder.authority(), home.key_path.read_bytes(), home.certificate_path.read_bytes()
    )
    context.set_alpn_protocols(["h2"])

    async def work():
        async with serving(network.homes["peer-1"], echo, noting(told)):
            member = network.founder.roster().member("peer-1")
            with pytest.raises((OSError, Ended)):
                async with connected(member, context) as channel:
                    await channel.call(b"")
            await until(lambda: told)

    within(work())
    assert told == [("an unknown host", "no peer")]


def test_a_caller_with_a_replaced_certificate_is_refused_by_name(network):
    before, told = replaced(network, "peer-2"), []

    async def work():
        async with serving(network.homes["peer-1"], echo, noting(told)):
            with pytest.raises(Ended, match="other certificate: not the certificate that the roster has"):
                async with channel_to(network, "peer-1", before.key, before.certificate):
                    pass
            async with asking_from(before) as asker:
                with pytest.raises(Unreachable, match="does not accept this peer's certificate"):
                    await asker.ask("peer-1", b"", HANG)
            async with channel_of(network, "peer-1", "peer-2") as channel:
                assert await channel.call(b"hello") == b"peer-2 said hello"

    within(work())
    assert told == [("peer-2", "other certificate")] * 2


def test_a_roster_that_is_followed_counts_from_then_on(network):
    """Also for a connection that is open."""
    old = network.homes["peer-2"].load()

    async def work():
        async with (
            serving(network.homes["peer-1"], echo) as server,
            channel_to(network, "peer-1", old.key, old.certificate) as channel,
        ):
            assert await channel.call(b"hello") == b"peer-2 said hello"
            replaced(network, "peer-2")
            server.follow(network.founder.roster())
            assert "other certificate" in await channel.until_ended()

    within(work())


def test_a_revoked_member_is_still_known_by_its_name(network):
    """What answers it says why it gets nothing (test_revocation.py): it can be told, signed, that it was revoked."""

    async def work():
        async with serving(network.homes["peer-1"], echo) as server:
            server.follow(network.founder.roster().with_revoked("peer-3"))
            async with channel_of(network, "peer-1", "peer-3") as channel:
                assert await channel.call(b"1") == b"peer-3 said 1"

    within(work())


def test_a_port_in_use_is_an_error_and_not_shared(network):
    async def work():
        async with serving(network.homes["peer-1"], echo):
            with pytest.raises(PeerError, match="cannot be listened on: another program uses the port"):
                async with serving(network.homes["peer-1"], echo):
                    pass

    within(work())


# --- who is believed -----------------------------------------------------------------------------------


def test_only_who_holds_the_key_of_the_roster_is_believed(network):
    before = replaced(network, "peer-2")

    async def work():
        async with asking_from(network.homes["peer-1"]) as asker:
            async with serving(before, stolen):
                with pytest.raises(
                    RefusedMessage, match="not the certificate that the roster has"
                ) as refused:
                    await asker.ask("peer-2", b"", HANG)
                assert refused.value.reason == "other certificate"
            async with serving(network.homes["peer-2"], honest):
                assert await until_it_answers(asker) == b"honest"

    within(work())


async def until_it_answers(asker, request=b""):
    while True:
        try:
            return await asker.ask("peer-2", request, HANG)
        except Unreachable:
            await asyncio.sleep(0.01)


def test_who_takes_the_place_of_a_peer_that_went_is_not_believed(network):
    """The one that was asked before stops; whoever listens there now has a key that was replaced."""
    before = replaced(network, "peer-2")

    async def work():
        async with asking_from(network.homes["peer-1"]) as asker:
            async with serving(network.homes["peer-2"], honest):
                assert await asker.ask("peer-2", b"", HANG) == b"honest"
            async with serving(before, stolen):
                with pytest.raises(RefusedMessage, match="not the certificate that the roster has"):
                    await until_it_answers(asker)

    within(work())


def test_another_member_at_the_address_is_not_taken_for_the_neighbour(network):
    async def work():
        other = replace(network.homes["peer-3"].load(), settings=network.homes["peer-2"].settings())
        async with asking_from(network.homes["peer-1"]) as asker, serving(other, stolen):
            with pytest.raises(Unreachable, match="has another peer's certificate"):
                await asker.ask("peer-2", b"", HANG)

    within(work())


def test_a_neighbour_whose_certificate_was_replaced_proves_the_new_one(network):
    """On a connection that stays open, whoever still has the old key only is asked no more."""

    async def work():
        async with asking_from(network.homes["peer-1"]) as asker, serving(network.homes["peer-2"], stolen):
            assert await asker.ask("peer-2", b"", HANG) == b"stolen"
            replaced(network, "peer-2")
            asker.follow(network.founder.roster())
            with pytest.raises(RefusedMessage, match="not the certificate that the roster has"):
                await asker.ask("peer-2", b"", HANG)

    within(work())


def test_a_renewed_certificate_is_taken_for_the_same_member(network):
    """The same name and key, from the authority or its deputy; from a deputy that was dismissed it is not."""
    founder = network.founder
    founder.name_deputy("peer-3")
    for home in network.homes.values():
        home.join(founder.roster_path.read_bytes())
    deputy = founder.roster().deputies[0].certificate.encode()
    peer = network.homes["peer-2"].load()
    own = network.homes["peer-3"].key_path.read_bytes()
    renewed = keys.reissue(own, deputy, peer.certificate)

    async def work():
        async with (
            serving(network.homes["peer-2"], honest) as server,
            asking_from(network.homes["peer-1"]) as asker,
        ):
            server.renew(renewed)
            assert await asker.ask("peer-2", b"", HANG) == b"honest"
            assert asker._links["peer-2"][0].certificate == renewed
            asker.follow(founder.roster().without_deputy("peer-3"))
            with pytest.raises((Unreachable, RefusedMessage)):
                await asker.ask("peer-2", b"", HANG)

    within(work())


def test_what_is_vouched_for_is_no_other_signature(network):
    async def work():
        async with asking_from(network.homes["peer-1"]) as one, asking_from(network.homes["peer-2"]) as other:
            content = bytes(range(32))
            proof = one.vouch(content)
            other.vouched("peer-1", content, proof)
            certificate = network.homes["peer-1"].certificate_path.read_bytes()
            for name, wrong, given_proof in (
                ("peer-1", content + b".", proof),
                ("peer-2", content, proof),
                ("nobody", content, proof),
                ("peer-1", content, other.vouch(content)),
                ("peer-1", content, certificate + b"\0" + one.sign(content)),
                ("peer-1", content, b""),
            ):
                with pytest.raises(RefusedMessage) as refused:
                    other.vouched(name, wrong, given_proof)
                assert refused.value.reason == "other certificate"
            with pytest.raises(IdentityError):
                keys.verify(certificate, proof.partition(b"\0")[2], content)

    within(work())


def test_a_neighbours_signature_counts_once_it_proved_its_key_and_while_the_roster_has_it(network):
    async def work():
        async with (
            asking_from(network.homes["peer-1"]) as asker,
            asking_from(network.homes["peer-3"]) as another,
            serving(network.homes["peer-2"], echo) as server,
        ):
            signature = server.sign(b"said")
            assert not asker.signed("peer-2", signature, b"said")  # it has proved nothing yet
            assert server.signed("peer-2", signature, b"said")  # what neighbours show it of itself
            assert not server.signed("peer-2", another.sign(b"said"), b"said")
            await asker.ask("peer-2", b"", HANG)
            assert asker.signed("peer-2", signature, b"said")
            assert not asker.signed("peer-2", signature, b"said otherwise")
            assert not asker.signed("peer-2", another.sign(b"said"), b"said")
            assert not asker.signed("peer-3", signature, b"said") and not asker.signed("peer-2", b"", b"said")
            replaced(network, "peer-2")
            asker.follow(network.founder.roster())
            assert not asker.signed("peer-2", signature, b"said")

    within(work())


# --- one link, both directions -------------------------------------------------------------------------


def test_one_connection_carries_both_directions(network):
    async def work():
        async with (
            serving(network.homes["peer-1"], echo) as one,
            serving(network.homes["peer-2"], echo) as two,
        ):
            assert await one.ask("peer-2", b"1", HANG) == b"peer-1 said 1"
            assert await two.ask("peer-1", b"2", HANG) == b"peer-2 said 2"
            assert (one.kind_of("peer-2"), two.kind_of("peer-1")) == ("direct", "reversed")
            assert len(one._all()) == len(two._all()) == 1

    within(work())


@pytest.mark.parametrize("turn", range(5))
def test_links_that_both_open_at_once_become_one(network, turn):
    async def work():
        async with (
            serving(network.homes["peer-1"], echo) as one,
            serving(network.homes["peer-2"], echo) as two,
        ):
            both = [one._dialled("peer-2"), two._dialled("peer-1")]
            await asyncio.gather(*both)
            await until(lambda: len(one._all()) == len(two._all()) == 1)
            assert (one.kind_of("peer-2"), two.kind_of("peer-1")) == ("direct", "reversed")
            assert await two.ask("peer-1", b"2", HANG) == b"peer-2 said 2"
            assert await one.ask("peer-2", b"1", HANG) == b"peer-1 said 1"

    within(work())


def test_a_peer_that_was_started_again_replaces_its_link(network):
    async def work():
        async with serving(network.homes["peer-1"], echo) as one:
            for turn in range(3):
                async with serving(network.homes["peer-2"], echo) as two:
                    assert await two.ask("peer-1", b"hello", HANG) == b"peer-2 said hello"
                    assert await one.ask("peer-2", b"%d" % turn, HANG) == b"peer-1 said %d" % turn

    within(work())


def test_a_connection_that_only_asks_is_never_asked(network):
    """`peer check` beside a peer that runs: requests for that peer go to it alone."""

    async def work():
        async with (
            serving(network.homes["peer-1"], echo) as one,
            asking_from(network.homes["peer-2"]) as check,
        ):
            assert await check.ask("peer-1", b"hello", HANG) == b"peer-2 said hello"
            assert one.kind_of("peer-2") == "none"
            with pytest.raises(Unreachable, match="refuses connections"):
                await one.ask("peer-2", b"", HANG)

    within(work())


def test_a_peer_that_nobody_can_reach_takes_part(network):
    """peer-2 is outbound: it opens the link, keeps it open, and is asked over it."""
    outbound = replace(network.founder.roster().member("peer-2"), address="outbound")
    roster = network.founder.roster().with_changed(outbound)
    peers = {name: replace(home.load(), roster=roster) for name, home in network.homes.items()}
    peers["peer-2"] = replace(peers["peer-2"], settings=replace(peers["peer-2"].settings, listen=""))

    async def work():
        async with serving(peers["peer-1"], echo) as one:
            with pytest.raises(Unreachable, match="peer-2 opens the connections to its neighbours itself"):
                await one.ask("peer-2", b"", 0.1)
            waiting = asyncio.create_task(one.ask("peer-2", b"early", HANG))
            async with serving(peers["peer-2"], echo):
                assert await waiting == b"peer-1 said early"
                assert one.kind_of("peer-2") == "reversed"
                with pytest.raises(Unreachable, match="cannot be called"):
                    await one.reach("peer-2", HANG)
                for cut in one._all():  # a break: it comes back by itself
                    cut._transport.abort()
                assert await until_it_answers(one, b"again") == b"peer-1 said again"

    within(work())


def test_after_a_call_without_an_answer_the_next_one_has_a_connection_of_its_own(network):
    """After a break the old one would send again only much later. Calls that are under way on it go on."""
    arrived, goes_on = [], asyncio.Event()

    async def answer(caller, request):
        arrived.append(request)
        if request == b"slow":
            await goes_on.wait()
        elif request == b"lost":
            await asyncio.Event().wait()
        return request

    async def work():
        async with (
            serving(network.homes["peer-2"], answer),
            asking_from(network.homes["peer-1"]) as asker,
        ):
            slow = asyncio.create_task(asker.ask("peer-2", b"slow", HANG))
            await until(lambda: arrived)
            before = asker._best("peer-2")
            with pytest.raises(Unreachable, match="did not answer in time"):
                await asker.ask("peer-2", b"lost", 0.05)
            assert await asker.ask("peer-2", b"next", HANG) == b"next"
            assert asker._best("peer-2") is not before and not before.closed.done()
            goes_on.set()
            assert await slow == b"slow"
            await until(before.closed.done)

    within(work())


def test_a_link_that_brings_other_things_is_not_doubted_for_a_slow_call(network):
    async def answer(caller, request):
        if request == b"slow":
            await asyncio.Event().wait()
        return request

    async def work():
        async with (
            serving(network.homes["peer-2"], answer),
            asking_from(network.homes["peer-1"]) as asker,
        ):
            await asker.ask("peer-2", b"", HANG)
            before = asker._best("peer-2")
            slow = asyncio.create_task(asker.ask("peer-2", b"slow", 0.3))
            await asyncio.sleep(0.05)
            await asker.ask("peer-2", b"quick", HANG)
            with pytest.raises(Unreachable, match="did not answer in time"):
                await slow
            assert asker._best("peer-2") is before

    within(work())


def test_what_nobody_waits_for_any_more_is_not_computed_on(network):
    ended = []

    async def answer(caller, request):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(caller)

    async def work():
        async with (
            serving(network.homes["peer-2"], answer),
            asking_from(network.homes["peer-1"]) as asker,
        ):
            with pytest.raises(Unreachable):
                await asker.ask("peer-2", b"", 0.1)
            await until(lambda: ended)

    within(work())


def test_what_goes_wrong_in_an_answer_is_told_there_only(network, caplog):
    async def answer(caller, content):
        if content == b"fail":
            raise RuntimeError("it failed")
        return b"fine"

    async def work():
        async with asking_from(network.homes["peer-1"]) as asker, serving(network.homes["peer-2"], answer):
            with pytest.raises(Unreachable, match="could not answer") as told:
                await asker.ask("peer-2", b"fail", HANG)
            assert "it failed" not in str(told.value)
            assert await asker.ask("peer-2", b"", HANG) == b"fine"

    within(work())
    assert "a request could not be answered" in caplog.text


def test_a_host_that_is_gone_is_noticed(network, monkeypatch):
    """It was switched off: no byte comes, and no end either."""
    monkeypatch.setattr(link, "SILENCE", 0.1)
    monkeypatch.setattr(link, "PING_TIMEOUT", 0.2)

    async def work():
        async with (
            serving(network.homes["peer-1"], echo) as one,
            channel_of(network, "peer-1", "peer-2") as channel,
        ):
            channel.send(PING)
            await until(lambda: channel.pongs == 1)
            await asyncio.sleep(2.0)
            assert one._links["peer-2"]
            channel.answers_pings = False
            await until(lambda: not one._links["peer-2"])

    within(work())


# --- how much anybody can send -------------------------------------------------------------------------


def test_a_request_above_the_limit_is_not_even_read(network):
    heard, told = [], []

    async def answer(caller, content):
        heard.append(len(content))
        return b""

    async def work():
        async with (
            serving(network.homes["peer-1"], answer, noting(told)),
            channel_of(network, "peer-1", "peer-2") as channel,
        ):
            await channel.call(bytes(LARGEST_REQUEST))
            channel.send(REQUEST, 99, b"only its first bytes", length=LARGEST_REQUEST + 1)
            assert "too large" in await channel.until_ended()

    within(work())
    assert heard == [LARGEST_REQUEST] and told == [("peer-2", "too large")]


def test_an_answer_above_the_agreed_size_is_not_taken(tmp_path):
    network = made_network(tmp_path, limits=Limits(message_bytes=1024))
    sizes = iter((1024 + ROOM, 1024 + ROOM + 1, 5, 6))

    async def answer(caller, content):
        return bytes(next(sizes))

    async def work():
        async with asking_from(network.homes["peer-1"]) as asker, serving(network.homes["peer-2"], answer):
            assert len(await asker.ask("peer-2", b"", HANG)) == 1024 + ROOM
            with pytest.raises(RefusedMessage) as refused:
                await asker.ask("peer-2", b"", HANG)
            assert refused.value.reason == "too large"
            assert len(await asker.ask("peer-2", b"", HANG, largest=5)) == 5  # that of a run
            with pytest.raises(RefusedMessage, match="than what was agreed on"):
                await asker.ask("peer-2", b"", HANG, largest=5)

    within(work())


def test_small_frames_are_sent_at_once_on_both_sides(network):
    """Without waiting for the receipt of those before, which takes 40 ms where the other side has nothing to say."""

    async def work():
        async with (
            asking_from(network.homes["peer-1"]) as asker,
            serving(network.homes["peer-2"], echo) as server,
        ):
            await asker.ask("peer-2", b"", HANG)
            for one in (asker._links["peer-2"][0], server._links["peer-1"][0]):
                line = one._transport.get_extra_info("socket")
                assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    within(work())


def test_a_large_reply_comes_whole_while_others_are_answered(network):
    large = bytes(range(256)) * 40_000  # 10 MB

    async def answer(caller, content):
        return large if content == b"large" else content

    async def work():
        async with asking_from(network.homes["peer-1"]) as asker, serving(network.homes["peer-2"], answer):
            replies = await asyncio.gather(
                *(asker.ask("peer-2", content, HANG) for content in (b"large", b"1", b"large", b"2"))
            )
            assert replies == [large, b"1", large, b"2"]

    within(work())


def with_little_room(*transports):
    """The system holds little of what the other side has not taken."""
    for each in transports:
        line = each.get_extra_info("socket")
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            line.setsockopt(socket.SOL_SOCKET, option, 1 << 16)


def test_a_reply_that_is_given_up_half_way_leaves_the_link_whole(network, monkeypatch):
    """It is sent to its end: what follows half of a frame would be taken for its rest, and this peer for a liar."""
    monkeypatch.setattr(link, "CHUNK", 1 << 14)
    large = bytes(range(256)) * 40_000  # 10 MB

    async def answer(caller, content):
        return large if content == b"large" else content

    async def work():
        async with (
            serving(network.homes["peer-1"], answer) as server,
            channel_of(network, "peer-1", "peer-2") as channel,
        ):
            await channel.call(b"")
            at_server = server._links["peer-2"][0]
            with_little_room(at_server._transport, channel.writer)
            channel.writer.transport.pause_reading()
            channel.send(REQUEST, 70, b"large")
            await until(lambda: not at_server._writable.is_set())  # it has begun
            channel.send(CANCEL, 70)
            await until(lambda: not at_server._answers)
            channel.writer.transport.resume_reading()
            assert await channel.call(b"next") == b"next"

    within(work())


def test_a_request_that_is_given_up_half_way_leaves_the_link_whole(network, monkeypatch):
    monkeypatch.setattr(link, "CHUNK", 1 << 14)
    large, told = bytes(LARGEST_REQUEST), []

    async def answer(caller, content):
        return content[:4]

    async def work():
        async with (
            serving(network.homes["peer-2"], answer, noting(told)) as server,
            asking_from(network.homes["peer-1"]) as asker,
        ):
            await asker.ask("peer-2", b"", HANG)
            used = asker._best("peer-2")
            with_little_room(used._transport, server._links["peer-1"][0]._transport)
            server._links["peer-1"][0]._transport.pause_reading()
            asked = [asyncio.create_task(used.call(large, 10)) for _ in range(8)]
            await until(lambda: not used._writable.is_set())
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            server._links["peer-1"][0]._transport.resume_reading()
            assert await used.call(b"next", 10) == b"next"

    within(work())
    assert not told


def test_a_large_reply_that_comes_when_nobody_waits_any_more_is_no_offence(network):
    """It was on its way when its caller gave it up, and is no larger than what was agreed on."""
    large, free = bytes(1 << 20), asyncio.Event()
    told = []

    async def answer(caller, content):
        if content == b"large":
            with contextlib.suppress(asyncio.CancelledError):  # it is too late to take it back
                await free.wait()
            return large
        return content

    async def work():
        async with (
            serving(network.homes["peer-2"], answer),
            asking_from(network.homes["peer-1"]) as asker,
        ):
            asker.refused = lambda *refusal: told.append(refusal)
            await asker.ask("peer-2", b"", HANG)
            used = asker._best("peer-2")
            used._refused = asker.refused
            waiting = asyncio.create_task(used.call(b"large", len(large)))
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            for number in range(3):
                assert await used.call(b"%d" % number, 10) == b"%d" % number
            await until(lambda: not used._given_up)  # it has come
            assert not used.closed.done()

    within(work())
    assert not told


def test_what_comes_after_a_connection_was_closed_counts_no_more(network):
    told = []

    async def work():
        async with (
            serving(network.homes["peer-1"], echo, noting(told)) as server,
            channel_of(network, "peer-1", "peer-2") as channel,
        ):
            await channel.call(b"")
            (at_server,) = server._links["peer-2"]
            at_server.goodbye("it was closed")
            at_server.data_received(struct.pack("<IIB", LARGEST_REQUEST + 1, 1, REQUEST))
            at_server.data_received(struct.pack("<IIB", 1, 1, REQUEST) + b"x")
            assert not at_server._answers

    within(work())
    assert not told


def test_requests_beyond_those_that_are_answered_are_refused_and_then_end_the_link(network):
    told, goes_on = [], asyncio.Event()

    async def answer(caller, content):
        await goes_on.wait()
        return content

    async def work():
        async with (
            serving(network.homes["peer-1"], answer, noting(told)),
            channel_of(network, "peer-1", "peer-2") as channel,
            channel_of(network, "peer-1", "peer-3") as other,
        ):
            first = [asyncio.create_task(channel.call(b"%d" % number)) for number in range(UNANSWERED)]
            await asyncio.sleep(0.05)
            with pytest.raises(Ended, match="too many at once"):
                await channel.call(b"one more")
            goes_on.set()
            assert await asyncio.gather(*first) == [b"%d" % number for number in range(UNANSWERED)]
            assert await other.call(b"hello") == b"hello"
            goes_on.clear()
            more = [asyncio.create_task(channel.call(b"")) for _ in range(UNANSWERED + EXCESS)]
            assert "too many at once" in await channel.until_ended()
            await asyncio.gather(*more, return_exceptions=True)

    within(work())
    assert set(told) == {("peer-2", "too many at once")}


def test_connections_of_one_member_are_few(network):
    told = []

    async def work():
        async with (
            serving(network.homes["peer-1"], echo, noting(told)),
            contextlib.AsyncExitStack() as stack,
        ):
            channels = [
                await stack.enter_async_context(channel_of(network, "peer-1", "peer-2"))
                for _ in range(MOST_OF_ONE)
            ]
            with pytest.raises(Ended, match="too many at once"):
                await stack.enter_async_context(channel_of(network, "peer-1", "peer-2"))
            assert await channels[0].call(b"hello") == b"peer-2 said hello"
            async with channel_of(network, "peer-1", "peer-3") as other:
                assert await other.call(b"hello") == b"peer-3 said hello"

    within(work())
    assert told == [("peer-2", "too many at once")]


def test_connections_that_never_greet_are_counted_among_those_of_a_member(network):
    told = []

    async def work():
        async with (
            serving(network.homes["peer-1"], echo, noting(told)) as server,
            contextlib.AsyncExitStack() as stack,
        ):
            for _ in range(MOST_OF_ONE):
                silent = await stack.enter_async_context(
                    channel_of(network, "peer-1", "peer-2", greets=False)
                )
                await silent.greeted  # it is let in
            with pytest.raises(Ended, match="too many at once"):
                await stack.enter_async_context(channel_of(network, "peer-1", "peer-2"))
            silent.writer.transport.abort()
            await until(lambda: server._of_member["peer-2"] < MOST_OF_ONE)
            async with channel_of(network, "peer-1", "peer-2") as channel:
                assert await channel.call(b"hello") == b"peer-2 said hello"

    within(work())
    assert told == [("peer-2", "too many at once")]


@pytest.mark.parametrize("begun", [b"\x40", struct.pack("<IIB", 100, 1, REQUEST) + b"a part"])
def test_a_request_that_does_not_come_whole_ends_the_link(network, monkeypatch, begun):
    monkeypatch.setattr(link, "REQUEST_TIMEOUT", 0.05)
    told = []

    async def work():
        async with (
            serving(network.homes["peer-1"], echo, noting(told)),
            channel_of(network, "peer-1", "peer-2") as channel,
        ):
            channel.writer.write(begun)
            assert "nothing sent" in await channel.until_ended()

    within(work())
    assert told == [("peer-2", "nothing sent")]


def test_who_takes_no_answers_is_given_up(network, monkeypatch):
    """It asks for a lot and reads nothing: what waits for it is bounded, and then it is cut off."""
    monkeypatch.setattr(link, "BLOCKED", 0.5)
    large, computed = bytes(4 << 20), []

    async def answer(caller, content):
        computed.append(caller)
        return large

    async def work():
        async with (
            serving(network.homes["peer-1"], answer) as server,
            channel_of(network, "peer-1", "peer-2") as channel,
        ):
            channel.writer.transport.pause_reading()
            for number in range(1, UNANSWERED + 1):
                channel.send(REQUEST, number, b"")
            await until(lambda: len(computed) == UNANSWERED)
            at_server = server._links["peer-2"][0]
            assert at_server._transport.get_write_buffer_size() < 3 << 20
            await until(lambda: not server._links["peer-2"])

    within(work())


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param([(REQUEST, b"before any greeting")], id="a request first"),
        pytest.param([(GREETING, b"\xc1")], id="no msgpack"),
        pytest.param([(GREETING, msgspec.msgpack.encode({"serves": 1, "process": b""}))], id="other types"),
        pytest.param([(GREETING, bytes(2000))], id="a large greeting"),
        pytest.param([(9, b"")], id="another kind"),
    ],
)
def test_what_no_peer_sends_ends_the_link(network, sent):
    told = []

    async def work():
        async with (
            serving(network.homes["peer-1"], echo, noting(told)),
            channel_of(network, "peer-1", "peer-2", greets=False) as channel,
        ):
            for kind, body in sent:
                channel.send(kind, 0, body)
            await channel.until_ended()

    within(work())
    assert [who for who, _ in told] == ["peer-2"]


def test_frames_that_answer_nothing_are_passed_over(network):
    async def work():
        async with (
            serving(network.homes["peer-1"], echo),
            channel_of(network, "peer-1", "peer-2") as channel,
        ):
            for kind in (REPLY, FAILED, CANCEL):
                channel.send(kind, 77, b"nothing")
            assert await channel.call(b"hello") == b"peer-2 said hello"

    within(work())


def test_a_peer_goes_on_whatever_is_sent_after_the_handshake(network):
    """Junk from a member's certificate: each connection ends, others are answered."""
    import random

    rng = random.Random(9)

    async def work():
        async with (
            serving(network.homes["peer-1"], echo),
            channel_of(network, "peer-1", "peer-3") as other,
        ):
            for _ in range(60):
                with contextlib.suppress(Ended, OSError):
                    async with channel_of(network, "peer-1", "peer-2", greets=rng.random() < 0.5) as channel:
                        channel.writer.write(rng.randbytes(rng.randrange(1, 3000)))
                        await asyncio.sleep(0.005)
                assert await other.call(b"hello") == b"peer-3 said hello"

    within(work())


def test_closing_says_goodbye(network):
    async def work():
        async with (
            serving(network.homes["peer-1"], echo) as server,
            channel_of(network, "peer-1", "peer-2") as channel,
        ):
            await channel.call(b"")
            await server.close()
            assert await channel.until_ended() == "it is going down"

    within(work())


def test_what_is_no_peer_is_said_to_be_none(network):
    """At its address: something that hangs up, something without TLS, nothing."""
    host, _, port = network.founder.roster().member("peer-2").address.rpartition(":")

    async def said(first):
        async def talk(reader, writer):
            if first is not None:
                writer.write(first)
            writer.close()

        server = await asyncio.start_server(talk, host, int(port))
        async with asking_from(network.homes["peer-1"]) as asker, server:
            with pytest.raises(Unreachable) as told:
                await asker.ask("peer-2", b"", HANG)
        return str(told.value)

    async def work():
        assert "something else answers" in await said(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        assert "closed the connection" in await said(None)
        async with asking_from(network.homes["peer-1"]) as asker:
            with pytest.raises(Unreachable, match="refuses connections: it is not running"):
                await asker.ask("peer-2", b"", HANG)

    within(work())


def test_whoever_accepts_and_says_nothing_does_not_hold_a_caller(network, monkeypatch):
    monkeypatch.setattr(transport, "HANDSHAKE", 0.2)
    host, _, port = network.founder.roster().member("peer-2").address.rpartition(":")

    async def work():
        async with asking_from(network.homes["peer-1"]) as asker:
            with pytest.raises(Unreachable, match="did not answer in time"):
                await asker.ask("peer-2", b"", HANG)

    with socket.create_server((host, int(port))):
        within(work())


def test_no_session_is_resumed(network):
    """Each connection shows its certificates again: there are no tickets."""
    home = network.homes["peer-2"]
    context = context_to(
        network.founder.authority(), home.key_path.read_bytes(), home.certificate_path.read_bytes()
    )
    host, _, port = network.founder.roster().member("peer-1").address.rpartition(":")

    def session():
        with (
            socket.create_connection((host, int(port))) as line,
            context.wrap_socket(line, server_hostname="peer-1") as channel,
        ):
            channel.recv(9)
            return channel.session

    async def work():
        async with serving(network.homes["peer-1"], echo):
            found = await asyncio.to_thread(session)
            assert found is None or not found.has_ticket

    within(work())
    assert isinstance(context, ssl.SSLContext)
