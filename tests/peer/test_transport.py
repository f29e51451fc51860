"""gRPC with real certificates: who gets through, who is believed, and how much anybody can send."""

import asyncio
import contextlib
import gc
from dataclasses import replace

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("grpc")
pytest.importorskip("msgspec")
import grpc

from peerbayes.errors import IdentityError, PeerError, RefusedMessage
from peerbayes.peer.agreement.terms import Limits
from peerbayes.peer.identity import keys
from peerbayes.peer.protocol import calls as proofs
from peerbayes.peer.protocol import transport, wire
from peerbayes.peer.protocol.calls import Barred, Caller, Ends, Unreachable
from peerbayes.peer.protocol.transport import METHOD, PROOF, ROOM, UNREAD, Grpc
from peerbayes.peer.protocol.wire import LARGEST_REQUEST
from shared.real_calls import HANG, asking_from, channel_of, channel_to, made_network, serving, within


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
    key, asked = keys.new_request(name)
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
                    call = channel.unary_unary(method)(asked_proof(network, bytes(32)))
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
    asked, prove = [], Grpc.prove
    monkeypatch.setattr(Grpc, "prove", lambda self, *given: asked.append(given[1]) or prove(self, *given))

    async def answer(caller, content):
        if content == b"fail":
            raise RuntimeError("it failed")
        return b"fine"

    async def work():
        async with asking_from(network.homes["peer-1"]) as asker, serving(network.homes["peer-2"], answer):
            for expected in (1, 1, 1):
                assert await asker.ask("peer-2", b"", HANG) == b"fine" and len(asked) == expected
            with pytest.raises(Unreachable, match="could not answer") as told:
                await asker.ask("peer-2", b"fail", HANG)
            assert "it failed" not in str(told.value)  # what went wrong there is told there only
            assert await asker.ask("peer-2", b"", HANG) == b"fine" and len(asked) == 2

    within(work())
    assert len(set(asked)) == 2 and "a request could not be answered" in caplog.text


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


def asked_proof(network, nonce):
    return proofs.proof_request(network.founder.roster().run, nonce)


def ends(network, caller, callee):
    """Who asks whom, in the network of the tests."""
    certificates = {member.name: member.certificate for member in network.founder.roster().members}
    return Ends("net", caller, certificates[caller], callee, certificates[callee])


def test_a_proof_is_of_a_nonce_and_a_run_and_of_nothing_else(network):
    """Or a peer could be made to sign what passes for a roster's or a message's signature."""
    told, certificate = [], network.homes["peer-1"].certificate_path.read_bytes()
    nonce, run = bytes(range(32)), network.founder.roster().run

    async def work():
        async with (
            serving(network.homes["peer-1"], echo, lambda *refusal: told.append(refusal[:2])),
            channel_of(network, "peer-1", "peer-2") as channel,
        ):
            for wrong in (
                b"",
                bytes(31),
                bytes(33),
                bytes(96),
                nonce + run.encode()[:-1],
                nonce + run.encode() + b"0",
            ):
                call = channel.unary_unary(PROOF)(wrong)
                assert await code_of(call) == grpc.StatusCode.INVALID_ARGUMENT
            shown, _, signature = (await channel.unary_unary(PROOF)(nonce + run.encode())).partition(b"\0")
        assert shown == certificate
        asked = ends(network, "peer-2", "peer-1")
        assert asked.proof(run, nonce).startswith(b"peerbayes proof\n")
        assert asked.reply(nonce, nonce, nonce).startswith(b"peerbayes reply\n")
        keys.verify(certificate, signature, ends(network, "peer-2", "peer-1").proof(run, nonce))
        for other in (
            nonce,
            nonce + run.encode(),
            ends(network, "peer-2", "peer-1").proof(run, bytes(32)),
            ends(network, "peer-2", "peer-1").proof("0" * 64, nonce),
            ends(network, "peer-3", "peer-1").proof(run, nonce),
            replace(ends(network, "peer-2", "peer-1"), caller_certificate="0" * 64).proof(run, nonce),
            replace(ends(network, "peer-2", "peer-1"), callee="peer-3").proof(run, nonce),
            replace(ends(network, "peer-2", "peer-1"), callee_certificate="0" * 64).proof(run, nonce),
            replace(ends(network, "peer-2", "peer-1"), network="other").proof(run, nonce),
        ):
            with pytest.raises(IdentityError, match="does not match"):
                keys.verify(certificate, signature, other)

    within(work())
    assert told == [("peer-2", "unreadable")] * 6


@contextlib.asynccontextmanager
async def in_between(network, held, callee, by):
    """A server with some member's key and certificate that hands every call on to another, with `by`'s certificate."""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details):
            async def hand_on(request, context):
                nonce = [pair for pair in context.invocation_metadata() if pair[0] == "nonce-bin"]
                call = onward.unary_unary(details.method)(request, metadata=nonce, timeout=HANG)
                reply = await call
                context.set_trailing_metadata(await call.trailing_metadata())
                return reply

            return grpc.unary_unary_rpc_method_handler(hand_on)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handler(),))
    credentials = grpc.ssl_server_credentials(
        [(held.key, held.certificate)], network.founder.authority(), True
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    async with channel_of(network, callee, by) as onward:
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(None)


def moved(network, name, address):
    """The roster with another address for a member."""
    roster = network.founder.roster()
    return roster.with_changed(replace(roster.member(name), address=address))


def test_a_relayed_proof_is_refused(network):
    """peer-3 has stolen a key of peer-2 that was replaced. With it and its own it stands between peer-1 and peer-2."""
    before, heard = replaced(network, "peer-2"), []

    async def answer(caller, content):
        heard.append(caller)
        return b"honest"

    async def work():
        async with (
            serving(network.homes["peer-2"], answer),
            in_between(network, before, "peer-2", "peer-3") as address,
            asking_from(network.homes["peer-1"]) as asker,
        ):
            assert await asker.ask("peer-2", b"", HANG) == b"honest"
            asker.follow(moved(network, "peer-2", address))
            with pytest.raises(RefusedMessage, match="signature does not match") as refused:
                await asker.ask("peer-2", b"", HANG)
            assert refused.value.reason == "other certificate"

    within(work())
    assert heard == ["peer-1"]


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
            while not arrived:
                await asyncio.sleep(0.01)
            before = asker._channels["peer-2"][1]
            with pytest.raises(Unreachable, match="did not answer in time"):
                await asker.ask("peer-2", b"lost", 0.05)
            assert await asker.ask("peer-2", b"next", HANG) == b"next"
            assert asker._channels["peer-2"][1] is not before
            goes_on.set()
            assert await slow == b"slow"

    within(work())


def test_a_relayed_reply_is_refused(network, monkeypatch):
    """Also where the proof of the key were not asked for."""
    before = replaced(network, "peer-2")

    async def work():
        async with (
            serving(network.homes["peer-2"], honest),
            in_between(network, before, "peer-2", "peer-3") as address,
            asking_from(network.homes["peer-1"]) as asker,
        ):
            assert await asker.ask("peer-2", b"", HANG) == b"honest"
            asker.follow(moved(network, "peer-2", address))
            proven = dict(asker._proven)
            monkeypatch.setattr(
                asker, "_calls", lambda name: (Grpc._calls(asker, name), asker._proven.update(proven))[0]
            )
            with pytest.raises(RefusedMessage, match="not signed by peer-2 for this peer") as refused:
                await asker.ask("peer-2", b"", HANG)
            assert refused.value.reason == "wrong signature"

    within(work())


def test_a_revoked_caller_gets_no_proof(network):
    told = []

    async def work():
        async with (
            serving(network.homes["peer-1"], echo, lambda *refusal: told.append(refusal[:2])) as server,
            channel_of(network, "peer-1", "peer-3") as channel,
            asking_from(network.homes["peer-3"]) as asker,
        ):
            await channel.unary_unary(PROOF)(asked_proof(network, bytes(32)))
            server.follow(network.founder.roster().with_revoked("peer-3"))
            call = channel.unary_unary(PROOF)(asked_proof(network, bytes(32)))
            assert await code_of(call) == grpc.StatusCode.PERMISSION_DENIED
            with pytest.raises(Barred, match="refuses this peer: revoked: peer-3 is no longer a member"):
                await asker.ask("peer-1", b"", HANG)
            async with channel_of(network, "peer-1", "peer-2") as other:
                await other.unary_unary(PROOF)(asked_proof(network, bytes(32)))

    within(work())
    assert told == [("peer-3", "revoked")] * 2


@pytest.mark.long
@pytest.mark.parametrize(
    "signs",
    [
        pytest.param(lambda sign, ends, *said: b"", id="nothing"),
        pytest.param(lambda sign, ends, *said: sign(b"".join(said)), id="other words"),
        pytest.param(lambda sign, ends, nonce, *said: sign(ends.reply(bytes(32), *said)), id="another nonce"),
        pytest.param(
            lambda sign, ends, nonce, request, reply: sign(ends.reply(nonce, bytes(32), reply)),
            id="another request",
        ),
        pytest.param(
            lambda sign, ends, nonce, request, reply: sign(ends.reply(nonce, request, bytes(32))),
            id="another reply",
        ),
        pytest.param(
            lambda sign, ends, *said: sign(replace(ends, caller="peer-3").reply(*said)),
            id="for another caller",
        ),
        pytest.param(
            lambda sign, ends, *said: sign(replace(ends, caller_certificate="0" * 64).reply(*said)),
            id="for another certificate",
        ),
        pytest.param(
            lambda sign, ends, *said: sign(replace(ends, callee="peer-3").reply(*said)),
            id="by another callee",
        ),
    ],
)
def test_a_reply_without_its_signature_is_refused(network, signs):
    class Forging(Grpc):
        async def sign_reply(self, caller, nonce, request, reply):
            said = nonce, await proofs.digest(request), await proofs.digest(reply)
            return signs(self.sign, self._answered(caller), *said)

    async def work():
        server = Forging(network.homes["peer-2"].load(), lambda *told: None)
        try:
            await server.serve(honest)
            async with asking_from(network.homes["peer-1"]) as asker:
                with pytest.raises(RefusedMessage) as refused:
                    await asker.ask("peer-2", b"", HANG)
                assert refused.value.reason == "wrong signature"
        finally:
            await server.close()
            del server
            gc.collect()

    within(work())


def test_a_large_reply_is_signed_as_well(network):
    large = bytes(proofs.LARGE + 1)

    async def answer(caller, content):
        return large

    async def work():
        async with asking_from(network.homes["peer-1"]) as asker, serving(network.homes["peer-2"], answer):
            assert await asker.ask("peer-2", b"", HANG) == large

    within(work())


def test_peers_of_the_version_before_are_told_to_update(network):
    """Both ways: theirs ask for a proof of 32 bytes, and take no others."""
    told = []

    class Older(grpc.GenericRpcHandler):
        def service(self, details):
            async def method(request, context):
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "32 bytes are needed")

            return grpc.unary_unary_rpc_method_handler(method)

    async def work():
        async with (
            serving(network.homes["peer-1"], echo, lambda *refusal: told.append(refusal[:2])),
            channel_of(network, "peer-1", "peer-2") as channel,
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary(PROOF)(bytes(32))
            assert (
                f"the caller speaks version 2 of the protocol, the peer that it asks {wire.SPOKEN}, so there is none "
                "that both speak. Update peerbayes at the caller" in refused.value.details()
            )
        server, peer = grpc.aio.server(), network.homes["peer-1"].load()
        server.add_generic_rpc_handlers((Older(),))
        port = server.add_secure_port(
            "127.0.0.1:0", grpc.ssl_server_credentials([(peer.key, peer.certificate)], peer.authority, True)
        )
        await server.start()
        try:
            async with asking_from(network.homes["peer-2"]) as asker:
                asker.follow(moved(network, "peer-1", f"127.0.0.1:{port}"))
                with pytest.raises(RefusedMessage, match="32 bytes are needed") as other:
                    await asker.ask("peer-1", b"", HANG)
                assert other.value.reason == "other version"
        finally:
            await server.stop(None)
            del server
            gc.collect()

    within(work())
    assert told == [("peer-2", "other version")]


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
                ("peer-1", content, one.prove(Caller("peer-2", "0" * 64), asked_proof(network, content))),
                ("peer-1", content, b""),
            ):
                with pytest.raises(RefusedMessage) as refused:
                    other.vouched(name, wrong, given)
                assert refused.value.reason == "other certificate"
            with pytest.raises(IdentityError):
                keys.verify(
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
    monkeypatch.setattr(transport, "REQUEST_TIMEOUT", 0.05)
    told = []

    async def work():
        async with (
            serving(network.homes["peer-1"], echo, lambda *refusal: told.append(refusal[:2])),
            channel_of(network, "peer-1", "peer-2") as channel,
        ):
            assert await code_of(channel.stream_unary(METHOD)()) == grpc.StatusCode.DEADLINE_EXCEEDED

    within(work())
    assert told == [("peer-2", "nothing sent")]
