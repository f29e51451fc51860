"""gRPC with real certificates: who gets through, who is believed, and how much anybody can send."""

import asyncio
from dataclasses import replace

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("grpc")
pytest.importorskip("msgspec")
import grpc
from real_calls import HANG, asking_from, channel_of, channel_to, made_network, serving, within

from peerbayes.peers import identity, transport
from peerbayes.peers.errors import IdentityError, PeerError, RefusedMessage
from peerbayes.peers.terms import Limits
from peerbayes.peers.transport import METHOD, PROOF, ROOM, UNREAD, Grpc, Unreachable
from peerbayes.peers.wire import LARGEST_REQUEST


@pytest.fixture
def network(tmp_path):
    return made_network(tmp_path)


async def echo(caller, content):
    return b"%s said %s" % (caller.encode(), content)


async def honest(caller, content):
    return b"honest"


async def stolen(caller, content):
    return b"stolen"


async def code_of(call):
    """How gRPC says that a call failed."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value.code()


def replaced(network, name):
    """Give a member a new key and certificate, and the roster with it to everybody; the member as it was before."""
    before, home = network.homes[name].load(), network.homes[name]
    key, asked = identity.new_request(name)
    invitation = network.founder.invite(
        name, asked, network.founder.roster().member(name).address, again=True
    )
    home.key_path.write_bytes(key)
    home.join(invitation.pack())
    for other in network.homes.values():
        other.join(network.founder.roster_path.read_bytes())
    return before


# --- who gets through ----------------------------------------------------------------------------------


def test_a_member_is_known_by_its_certificate(network):
    async def work():
        async with serving(network.homes["peer-1"], echo), channel_of(network, "peer-1", "peer-2") as channel:
            assert await channel.unary_unary(METHOD)(b"hello") == b"peer-2 said hello"

    within(work())


def test_whoever_has_no_certificate_of_the_network_is_turned_away(network, tmp_path):
    others = made_network(tmp_path / "others").homes["peer-2"]

    async def work():
        async with serving(network.homes["peer-1"], echo):
            async with channel_to(network, "peer-1") as channel:
                assert await code_of(channel.unary_unary(METHOD)(b"")) == grpc.StatusCode.UNAVAILABLE
            theirs = others.key_path.read_bytes(), others.certificate_path.read_bytes()
            async with channel_to(network, "peer-1", *theirs) as channel:
                assert await code_of(channel.unary_unary(METHOD)(b"")) == grpc.StatusCode.UNAVAILABLE
            address = network.founder.roster().member("peer-1").address
            async with grpc.aio.insecure_channel(address) as channel:
                assert await code_of(channel.unary_unary(METHOD)(b"")) == grpc.StatusCode.UNAVAILABLE

    within(work())


def test_a_caller_with_a_replaced_certificate_is_refused_by_name(network):
    before, told = replaced(network, "peer-2"), []

    async def work():
        async with serving(network.homes["peer-1"], echo, lambda *refusal: told.append(refusal[:2])):
            async with channel_to(network, "peer-1", before.key, before.certificate) as channel:
                for method in (METHOD, PROOF):
                    call = channel.unary_unary(method)(bytes(32))
                    assert await code_of(call) == grpc.StatusCode.UNAUTHENTICATED
            async with channel_of(network, "peer-1", "peer-2") as channel:
                assert await channel.unary_unary(METHOD)(b"hello") == b"peer-2 said hello"

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
            assert await channel.unary_unary(METHOD)(b"hello") == b"peer-2 said hello"
            replaced(network, "peer-2")
            server.follow(network.founder.roster())
            assert await code_of(channel.unary_unary(METHOD)(b"")) == grpc.StatusCode.UNAUTHENTICATED

    within(work())


def test_a_port_in_use_is_an_error_and_not_shared(network):
    async def work():
        async with serving(network.homes["peer-1"], echo):
            with pytest.raises(PeerError, match="cannot be listened on"):
                async with serving(network.homes["peer-1"], echo):
                    pass

    within(work())


# --- who is believed -----------------------------------------------------------------------------------


def test_only_who_holds_the_key_of_the_roster_is_believed(network):
    before = replaced(network, "peer-2")

    async def work():
        async with asking_from(network.homes["peer-1"]) as asker:
            async with serving(before, stolen):
                with pytest.raises(RefusedMessage, match="not the certificate that the roster has"):
                    await asker.ask("peer-2", b"", HANG)
            async with serving(network.homes["peer-2"], honest):
                assert await until_it_answers(asker) == b"honest"

    within(work())


async def until_it_answers(asker):
    while True:
        try:
            return await asker.ask("peer-2", b"", HANG)
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


def test_after_a_call_that_failed_a_neighbour_proves_its_key_again(network, monkeypatch, caplog):
    """Also where the connection seems to have stayed."""
    proofs, prove = [], Grpc._prove
    monkeypatch.setattr(Grpc, "_prove", lambda self, nonce: proofs.append(nonce) or prove(self, nonce))

    async def answer(caller, content):
        if content == b"fail":
            raise RuntimeError("it failed")
        return b"fine"

    async def work():
        async with asking_from(network.homes["peer-1"]) as asker, serving(network.homes["peer-2"], answer):
            for expected in (1, 1, 1):
                assert await asker.ask("peer-2", b"", HANG) == b"fine" and len(proofs) == expected
            with pytest.raises(Unreachable, match="could not be answered") as told:
                await asker.ask("peer-2", b"fail", HANG)
            assert "it failed" not in str(told.value)  # what went wrong there is told there only
            assert await asker.ask("peer-2", b"", HANG) == b"fine" and len(proofs) == 2

    within(work())
    assert len(set(proofs)) == 2 and "a request could not be answered" in caplog.text


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


def test_a_new_address_is_proven_anew(network):
    before = replaced(network, "peer-2")

    async def work():
        async with (
            asking_from(network.homes["peer-1"]) as asker,
            serving(network.homes["peer-2"], honest),
            serving(replace(before, settings=network.homes["peer-3"].settings()), stolen),
        ):
            assert await asker.ask("peer-2", b"", HANG) == b"honest"
            roster = network.founder.roster()
            moved = replace(roster.member("peer-2"), address=roster.member("peer-3").address)
            asker.follow(roster.with_changed(moved))
            with pytest.raises(RefusedMessage, match="not the certificate that the roster has"):
                await asker.ask("peer-2", b"", HANG)

    within(work())


def test_a_proof_is_of_32_bytes_and_of_nothing_else(network):
    """Or a peer could be made to sign what passes for a roster's or a message's signature."""
    told, certificate = [], network.homes["peer-1"].certificate_path.read_bytes()

    async def work():
        async with (
            serving(network.homes["peer-1"], echo, lambda *refusal: told.append(refusal[:2])),
            channel_of(network, "peer-1", "peer-2") as channel,
        ):
            for count in (0, 31, 33, 1000):
                call = channel.unary_unary(PROOF)(bytes(count))
                assert await code_of(call) == grpc.StatusCode.INVALID_ARGUMENT
            nonce = bytes(range(32))
            shown, _, signature = (await channel.unary_unary(PROOF)(nonce)).partition(b"\0")
        assert shown == certificate
        identity.verify(certificate, signature, b"peerbayes proof\n" + nonce)
        with pytest.raises(IdentityError, match="does not fit"):
            identity.verify(certificate, signature, nonce)

    within(work())
    assert told == [("peer-2", "unreadable")] * 4


def test_what_is_vouched_for_is_no_other_signature(network):
    async def work():
        async with asking_from(network.homes["peer-1"]) as one, asking_from(network.homes["peer-2"]) as other:
            content = bytes(range(32))
            proof = one.vouch(content)
            other.vouched("peer-1", content, proof)
            for name, wrong, given in (
                ("peer-1", content + b".", proof),
                ("peer-2", content, proof),
                ("peer-1", content, other.vouch(content)),
                ("peer-1", content, one._prove(content)),
                ("peer-1", content, b""),
            ):
                with pytest.raises(RefusedMessage) as refused:
                    other.vouched(name, wrong, given)
                assert refused.value.reason == "other certificate"
            with pytest.raises(IdentityError):
                identity.verify(
                    network.homes["peer-1"].certificate_path.read_bytes(), proof.partition(b"\0")[2], content
                )

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
            await asker.ask("peer-2", b"", HANG)
            assert asker.signed("peer-2", signature, b"said")
            assert not asker.signed("peer-2", signature, b"said otherwise")
            assert not asker.signed("peer-2", another.sign(b"said"), b"said")
            assert not asker.signed("peer-3", signature, b"said") and not asker.signed("peer-2", b"", b"said")
            replaced(network, "peer-2")
            asker.follow(network.founder.roster())
            assert not asker.signed("peer-2", signature, b"said")

    within(work())


# --- how much anybody can send -------------------------------------------------------------------------


def test_a_request_above_the_limit_is_not_even_read(network):
    heard, told = [], []

    async def answer(caller, content):
        heard.append(len(content))
        return b""

    async def work():
        async with (
            serving(network.homes["peer-1"], answer, lambda *refusal: told.append(refusal[:2])),
            channel_of(network, "peer-1", "peer-2") as channel,
        ):
            await channel.unary_unary(METHOD)(bytes(LARGEST_REQUEST))
            call = channel.unary_unary(METHOD)(bytes(LARGEST_REQUEST + 1))
            assert await code_of(call) == grpc.StatusCode.RESOURCE_EXHAUSTED

    within(work())
    assert heard == [LARGEST_REQUEST] and told == [("peer-2", "too large")]


def test_an_answer_above_the_agreed_size_is_not_taken(tmp_path):
    network = made_network(tmp_path, limits=Limits(message_bytes=1024))
    large = replace(network.homes["peer-2"].load(), terms=replace(network.founder.terms(), limits=Limits()))
    sizes = iter((1024 + ROOM, 1024 + ROOM + 1))

    async def answer(caller, content):
        return bytes(next(sizes))

    async def work():
        async with asking_from(network.homes["peer-1"]) as asker, serving(large, answer):
            assert len(await asker.ask("peer-2", b"", HANG)) == 1024 + ROOM
            with pytest.raises(RefusedMessage) as refused:
                await asker.ask("peer-2", b"", HANG)
            assert refused.value.reason == "too large"

    within(work())


def test_calls_that_are_begun_and_bring_nothing_are_few_for_each_caller(network):
    told = []

    async def work():
        async with (
            serving(network.homes["peer-1"], echo, lambda *refusal: told.append(refusal[:2])),
            channel_of(network, "peer-1", "peer-2") as channel,
            channel_of(network, "peer-1", "peer-3") as other,
        ):
            begun = [channel.stream_unary(METHOD)() for _ in range(UNREAD)]
            for call in begun:
                await call.wait_for_connection()
            while True:  # until all of them have been counted
                try:
                    await channel.unary_unary(METHOD)(b"one more")
                except grpc.aio.AioRpcError as error:
                    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                    break
            assert await other.unary_unary(METHOD)(b"hello") == b"peer-3 said hello"
            for call in begun:
                await call.write(b"late")
                await call.done_writing()
            assert [await call for call in begun] == [b"peer-2 said late"] * UNREAD
            assert await channel.unary_unary(METHOD)(b"hello") == b"peer-2 said hello"  # all count no more

    within(work())
    assert set(told) == {("peer-2", "too many at once")}


def test_a_call_that_brings_no_request_is_ended(network, monkeypatch):
    monkeypatch.setattr(transport, "PATIENCE", 0.05)
    told = []

    async def work():
        async with (
            serving(network.homes["peer-1"], echo, lambda *refusal: told.append(refusal[:2])),
            channel_of(network, "peer-1", "peer-2") as channel,
        ):
            assert await code_of(channel.stream_unary(METHOD)()) == grpc.StatusCode.DEADLINE_EXCEEDED

    within(work())
    assert told == [("peer-2", "nothing sent")]
