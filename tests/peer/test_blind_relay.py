"""A blind relay: who may wait, who is joined with whom, how much it takes on, and what it can know."""

import asyncio
import base64
import contextlib
import hashlib
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
import peerbayes as pb
from peerbayes.errors import IdentityError, NeedsPerson
from peerbayes.peer import blind_relay as relays
from peerbayes.peer.blind_relay import Limits, Relay
from peerbayes.peer.identity import keys
from peerbayes.peer.identity.roster import valid_address
from peerbayes.peer.loopback import free_ports
from peerbayes.peer.protocol import routes
from peerbayes.peer.protocol.failures import Unreachable
from peerbayes.peer.state.store import Store
from shared.commands import HANG, peerbayes
from shared.firewalls import Firewalls, connect_proxy
from shared.peer_processes import finished, history, until_round
from shared.real_calls import made_network, serving, within
from shared.searching import occurring

PURPOSE = b"peerbayes relay\n"


class Line:
    """A connection to a relay, by hand."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def say(self, text):
        self.writer.write(f"PEERBAYES/1 {text}\n".encode())
        return await self.hear()

    async def hear(self):
        async with asyncio.timeout(HANG):
            return (await self.reader.readline()).decode().strip().removeprefix("PEERBAYES/1 ")


@contextlib.asynccontextmanager
async def relaying(limits=None, only=frozenset()):
    port = free_ports(1)[0]
    running = Relay(limits or Limits(), only)
    await running.start(f"127.0.0.1:{port}")

    @contextlib.asynccontextmanager
    async def line():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield Line(reader, writer)
        finally:
            writer.close()

    try:
        yield running, line, port
    finally:
        await running.close()


def new_key():
    """A key, what is shown of it, and its digest."""
    pem, _ = keys.new_request("peer-1")
    public = keys.public_bytes(keys.private_key(pem).public_key())
    return pem, base64.b64encode(public).decode(), hashlib.sha256(public).hexdigest()


def signed(pem, nonce, purpose=PURPOSE):
    return base64.b64encode(keys.sign(pem, purpose + bytes.fromhex(nonce))).decode()


async def waits(line, pem, shown):
    nonce = await line.say(f"WAIT {shown}")
    assert nonce.startswith("SIGN ")
    return await line.say(f"SIGNED {signed(pem, nonce.removeprefix('SIGN '))}")


# --- who may wait, and who is joined -------------------------------------------------------------------


def test_a_caller_is_joined_with_the_peer_that_waits():
    pem, shown, digest = new_key()

    async def work():
        async with relaying() as (running, line, _), line() as waiting, line() as caller, line() as taker:
            assert await waits(waiting, pem, shown) == "OK"
            calling = asyncio.create_task(caller.say(f"CALL {digest}"))
            called = await waiting.hear()
            assert re.fullmatch(r"CALLED [0-9a-f]{32}", called)
            assert await taker.say(called.replace("CALLED", "TAKE")) == "OK"
            assert await calling == "OK"
            caller.writer.write(b"there")
            assert await taker.reader.readexactly(5) == b"there"
            taker.writer.write(bytes(3_000_000))
            assert await caller.reader.readexactly(3_000_000) == bytes(3_000_000)
            assert (running.waiting, running.pairs) == (1, 1)
            taker.writer.close()
            assert await caller.reader.read() == b""

    within(work())


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ("HELLO", "BAD expected WAIT, CALL or TAKE"),
        ("CALL abc", "BAD expected the digest of a key"),
        (f"CALL {'0' * 64}", "NOBODY"),
        (f"TAKE {'0' * 32}", "GONE"),
        ("WAIT nothing", "BAD expected a public key, ECDSA on P-256"),
        (f"CALL {'0' * 500}", "BAD a line that is too long"),
    ],
)
def test_what_makes_no_sense_is_refused(sent, expected):
    async def work():
        async with relaying() as (_, line, _), line() as caller:
            assert await caller.say(sent) == expected
            assert await caller.reader.read() == b""

    within(work())


def test_something_else_is_told_what_this_is():
    async def work():
        async with relaying() as (_, line, _), line() as caller:
            caller.writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await caller.hear() == "BAD this is a relay of peerbayes"

    within(work())


def test_only_who_holds_a_key_waits_under_its_digest():
    pem, shown, digest = new_key()
    other, _, _ = new_key()

    async def work():
        async with relaying() as (running, line, _):
            for sign in (
                lambda nonce: signed(other, nonce),
                lambda nonce: signed(pem, "00" * 32),
                lambda nonce: signed(pem, nonce, b"peerbayes said\n"),
                lambda nonce: "not base64!",
            ):
                async with line() as waiting:
                    nonce = (await waiting.say(f"WAIT {shown}")).removeprefix("SIGN ")
                    assert await waiting.say(f"SIGNED {sign(nonce)}") == "NO the signature is not of this key"
            async with line() as caller:
                assert await caller.say(f"CALL {digest}") == "NOBODY"
            assert running.waiting == 0

    within(work())


def test_a_call_is_taken_once_and_by_who_was_told(monkeypatch):
    monkeypatch.setattr(relays, "TAKEN_WITHIN", 0.3)
    pem, shown, digest = new_key()

    async def work():
        async with relaying() as (_, line, _), line() as waiting, line() as first, line() as second:
            await waits(waiting, pem, shown)
            async with line() as caller:
                calling = asyncio.create_task(caller.say(f"CALL {digest}"))
                token = (await waiting.hear()).removeprefix("CALLED ")
                assert await first.say(f"TAKE {token}") == "OK"
                assert await second.say(f"TAKE {token}") == "GONE"
                assert await calling == "OK"
            async with line() as caller:  # nobody takes it
                calling = asyncio.create_task(caller.say(f"CALL {digest}"))
                token = (await waiting.hear()).removeprefix("CALLED ")
                assert await calling == "NOBODY"
                async with line() as late:
                    assert await late.say(f"TAKE {token}") == "GONE"

    within(work())


def test_a_peer_that_comes_again_replaces_itself():
    pem, shown, digest = new_key()

    async def work():
        async with relaying() as (running, line, _), line() as first, line() as second, line() as caller:
            await waits(first, pem, shown)
            assert await waits(second, pem, shown) == "OK"
            assert await first.reader.read() == b""
            calling = asyncio.create_task(caller.say(f"CALL {digest}"))
            assert (await second.hear()).startswith("CALLED ")
            calling.cancel()
            assert running.waiting == 1

    within(work())


def test_a_peer_that_says_nothing_any_more_waits_no_more(monkeypatch):
    monkeypatch.setattr(relays, "STILL_EVERY", 0.1)
    monkeypatch.setattr(relays, "FIRST_LINE", 0.3)
    pem, shown, _ = new_key()

    async def work():
        async with relaying() as (running, line, _), line() as waiting:
            await waits(waiting, pem, shown)
            for _ in range(3):
                assert await waiting.hear() == "STILL"
                waiting.writer.write(b"PEERBAYES/1 STILL\n")
            assert running.waiting == 1
            while running.waiting:
                await asyncio.sleep(0.01)

    within(work())


def test_two_that_take_one_call_at_once_do_not_disturb_the_relay(caplog):
    pem, shown, digest = new_key()

    async def work():
        async with (
            relaying() as (running, line, _),
            line() as waiting,
            line() as caller,
            line() as first,
            line() as two,
        ):
            await waits(waiting, pem, shown)
            calling = asyncio.create_task(caller.say(f"CALL {digest}"))
            token = (await waiting.hear()).removeprefix("CALLED ")
            answers = await asyncio.gather(first.say(f"TAKE {token}"), two.say(f"TAKE {token}"))
            assert sorted(answers) == ["GONE", "OK"] and await calling == "OK"
            assert running.pairs == 1

    within(work())
    assert not caplog.records


def test_a_key_of_another_kind_is_refused_like_any_other(caplog):
    """Also one that the library of keys does not know at all."""
    unknown = bytes.fromhex("301c300806062a030405060703100000000000000000000000000000000000")
    shown = [base64.b64encode(content).decode() for content in (unknown, of_another_curve())]

    async def work():
        async with relaying() as (_, line, _):
            for each in shown:
                async with line() as waiting:
                    assert await waiting.say(f"WAIT {each}") == "BAD expected a public key, ECDSA on P-256"

    within(work())
    assert not caplog.records


def of_another_curve():
    """A public key whose algorithm has a number that nobody has given out."""
    _, shown, _ = new_key()
    return base64.b64decode(shown).replace(
        bytes.fromhex("2a8648ce3d030107"), bytes.fromhex("2a8648ce3d03017f")
    )


# --- how much it takes on ------------------------------------------------------------------------------


def test_a_relay_has_limits():
    first, second = new_key(), new_key()

    async def work():
        async with relaying(Limits(waiting=1)) as (_, line, _), line() as one, line() as two, line() as again:
            assert await waits(one, *first[:2]) == "OK"
            assert await two.say(f"WAIT {second[1]}") == "BUSY too many peers wait here"
            assert await waits(again, *first[:2]) == "OK"  # who waits already may come again
        async with relaying(only=frozenset([first[2]])) as (_, line, _), line() as one, line() as two:
            assert await waits(one, *first[:2]) == "OK"
            assert await two.say(f"WAIT {second[1]}") == "NO this key may not wait here"
        async with relaying(Limits(of_one_address=3)) as (_, line, _), contextlib.AsyncExitStack() as stack:
            for _ in range(3):
                one = await stack.enter_async_context(line())
                one.writer.write(b"PEERBAYES/1 ")
            await asyncio.sleep(0.1)
            async with line() as more:
                assert await more.hear() == "BUSY too many connections of one address"

    within(work())


def test_connections_are_capped_whatever_their_addresses(monkeypatch):
    monkeypatch.setattr(relays, "NEW", 2)

    async def work():
        async with (
            relaying(Limits(waiting=1, pairs=1)) as (running, line, _),
            contextlib.AsyncExitStack() as stack,
        ):
            assert running.most == 5
            for _ in range(5):
                one = await stack.enter_async_context(line())
                one.writer.write(b"PEERBAYES/1 ")
            while running._open < 5:
                await asyncio.sleep(0.01)
            async with line() as more:
                assert await more.hear() == "BUSY too many connections"
            one.writer.close()
            while running._open == 5:
                await asyncio.sleep(0.01)
            async with line() as again:
                assert await again.say(f"CALL {'0' * 64}") == "NOBODY"

    within(work())


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:aaaa::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("?", "?"),
    ],
)
def test_whoever_has_a_network_of_addresses_counts_once(host, expected):
    class Writer:
        def get_extra_info(self, name):
            return (host, 1)

    assert relays._origin(Writer()) == expected


def test_connections_that_say_nothing_are_ended(monkeypatch):
    monkeypatch.setattr(relays, "FIRST_LINE", 0.1)

    async def work():
        async with relaying() as (_, line, _), line() as silent:
            assert await silent.reader.read() == b""

    within(work())


def test_a_relay_holds_little_of_what_one_side_does_not_take():
    pem, shown, digest = new_key()

    async def work():
        async with relaying() as (running, line, _), line() as waiting, line() as caller, line() as taker:
            await waits(waiting, pem, shown)
            calling = asyncio.create_task(caller.say(f"CALL {digest}"))
            await taker.say((await waiting.hear()).replace("CALLED", "TAKE"))
            await calling
            taker.writer.transport.pause_reading()
            caller.writer.write(bytes(64 << 20))
            before = -1
            while running.forwarded != before:
                before = running.forwarded
                await asyncio.sleep(0.3)
            assert before < 16 << 20  # what the system holds of a connection, and 64 KB here
            caller.writer.transport.abort()

    within(work())


def test_an_address_that_cannot_be_listened_on_is_said():
    async def work():
        async with relaying() as (_, _, port):
            with pytest.raises(NeedsPerson, match="cannot be listened on"):
                await Relay().start(f"127.0.0.1:{port}")

    within(work())


# --- peers behind it -----------------------------------------------------------------------------------


def placed(network, **addresses):
    """The peers of a network, some of which have other addresses."""
    roster = network.founder.roster()
    for name, address in addresses.items():
        name = name.replace("_", "-")
        roster = roster.with_changed(replace(roster.member(name), address=address))
    peers = {name: replace(home.load(), roster=roster) for name, home in network.homes.items()}
    for name, address in addresses.items():
        name = name.replace("_", "-")
        settings = replace(peers[name].settings, address=address, listen="")
        peers[name] = replace(peers[name], settings=settings)
    return peers


async def echo(caller, content):
    return b"%s said %s" % (caller.encode(), content)


async def answered(links, neighbour, content):
    while True:
        try:
            return await links.ask(neighbour, content, HANG)
        except Unreachable:
            await asyncio.sleep(0.02)


def test_peers_talk_by_way_of_a_relay_and_a_proxy_and_after_it_was_gone(tmp_path):
    """peer-2 waits at the relay, which it reaches by a proxy; peer-1 calls it there, and so does peer-3 by a proxy."""
    network = made_network(tmp_path)

    async def work():
        async with relaying() as (running, _, port), connect_proxy(password="user:secret") as proxy:
            peers = placed(network, peer_2=f"relay://127.0.0.1:{port}")
            for name in ("peer-2", "peer-3"):
                own = replace(peers[name].settings, proxy=f"http://user:secret@127.0.0.1:{proxy.port}")
                peers[name] = replace(peers[name], settings=own)
            async with (
                serving(peers["peer-1"], echo) as one,
                serving(peers["peer-2"], echo) as two,
                serving(peers["peer-3"], echo) as three,
            ):
                assert await answered(one, "peer-2", b"1") == b"peer-1 said 1"
                assert await answered(three, "peer-2", b"3") == b"peer-3 said 3"
                assert await answered(two, "peer-1", b"2") == b"peer-2 said 2"
                while running.waiting == 0:
                    await asyncio.sleep(0.01)
                assert await one.reach("peer-2", HANG) == "by a relay"
                assert {links.kind_of("peer-2") for links in (one, three)} <= {"relayed", "reversed"}
                assert proxy.places >= {f"127.0.0.1:{port}"}
                proxy.password = "changed"
                with pytest.raises(Unreachable, match=r"the proxy 127.0.0.1:[0-9]+ answers HTTP/1.1 407"):
                    await three.reach("peer-2", HANG)

    within(work())


@contextlib.asynccontextmanager
async def hostile_relay(talk):
    """Something that takes any key, and then talks."""

    async def serve(reader, writer):
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            verb = (await reader.readuntil(b"\n")).split()[1]
            if verb == b"WAIT":
                writer.write(b"PEERBAYES/1 SIGN " + b"00" * 32 + b"\n")
                await reader.readuntil(b"\n")
                writer.write(b"PEERBAYES/1 OK\n")
            await talk(verb, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"relay://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def waiting_at(address, network):
    return placed(network, peer_2=address)["peer-2"]


@pytest.mark.parametrize("word", [b"PEERBAYES/1 STILL\n", b"PEERBAYES/1 CALLED 00\n"])
def test_a_relay_that_never_stops_talking_does_not_keep_a_peer_from_others(tmp_path, monkeypatch, word):
    """What has come is read without a pause, so that nothing else would ever run."""
    network = made_network(tmp_path)
    monkeypatch.setattr("peerbayes.peer.protocol.relaying.TAKING", 3)
    taking = []

    async def talk(verb, writer):
        if verb == b"TAKE":
            taking.append(writer)
            await asyncio.sleep(HANG)
        while True:
            writer.write(word * 1000)
            await writer.drain()

    async def work():
        async with hostile_relay(talk) as address, serving(waiting_at(address, network), echo) as two:
            while two._waiting._words.allows(""):  # it has talked for some time
                await asyncio.sleep(0.01)
            before = asyncio.get_running_loop().time()
            for _ in range(20):
                await asyncio.sleep(0.01)
            assert asyncio.get_running_loop().time() - before < HANG / 10
            assert len(two._waiting._taking) <= 3 and len(taking) <= 3

    within(work())


def test_a_relay_that_hangs_up_is_not_asked_again_without_a_pause(tmp_path):
    network, times = made_network(tmp_path), []

    async def talk(verb, writer):
        times.append(asyncio.get_running_loop().time())

    async def work():
        async with hostile_relay(talk) as address, serving(waiting_at(address, network), echo):
            while len(times) < 3:
                await asyncio.sleep(0.01)

    within(work())
    assert min(np.diff(times)) > 0.3


def test_something_that_is_no_relay_is_left_and_said_to_be_none(tmp_path, caplog):
    network = made_network(tmp_path)

    async def talk(verb, writer):
        writer.write(b"HTTP/1.1 200 OK \x1b[31m\r\n")
        await writer.drain()
        await asyncio.sleep(HANG)

    async def work():
        async with hostile_relay(talk) as address, serving(waiting_at(address, network), echo):
            while "does not speak as a relay does: HTTP/1.1 200 OK" not in caplog.text:
                await asyncio.sleep(0.01)

    within(work())
    assert "\x1b" not in caplog.text


def test_connections_by_way_of_a_relay_are_capped_too(tmp_path, monkeypatch):
    monkeypatch.setattr("peerbayes.peer.protocol.connections.MOST_CONNECTIONS", 4)
    network = made_network(tmp_path)

    async def work():
        async with relaying() as (running, line, port):
            peers = placed(network, peer_2=f"relay://127.0.0.1:{port}")
            async with serving(peers["peer-2"], echo) as two, contextlib.AsyncExitStack() as stack:
                assert await two.relay_problem() == ""
                key = peers["peer-2"].roster.member("peer-2").key
                lines = [await stack.enter_async_context(line()) for _ in range(9)]
                assert {await each.say(f"CALL {key}") for each in lines} == {"OK"}
                while running.pairs > 4:
                    await asyncio.sleep(0.01)
                assert two._incoming <= 4

    within(work())


def test_an_address_that_swallows_everything_leaves_time_for_the_next(monkeypatch):
    monkeypatch.setattr(routes, "ONE_OF_MANY", 0.1)

    async def work():
        loop = asyncio.get_running_loop()
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_server(("127.0.0.1", 0)) as other,
        ):
            place, swallowing = server.getsockname(), other.getsockname()
            connect = loop.sock_connect

            async def connecting(line, address):
                await (asyncio.Event().wait() if address == swallowing else connect(line, address))

            async def places(*_, **__):
                return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", each) for each in (swallowing, place)]

            monkeypatch.setattr(loop, "sock_connect", connecting)
            monkeypatch.setattr(loop, "getaddrinfo", places)
            with await routes.through("two.example", 1, None) as line:
                assert line.getpeername() == place

    within(work())


def test_whoever_nobody_waits_for_is_said_to_be_away(tmp_path):
    network = made_network(tmp_path)

    async def work():
        async with relaying() as (_, _, port):
            peers = placed(network, peer_2=f"relay://127.0.0.1:{port}")
            async with serving(peers["peer-1"], echo) as one:
                with pytest.raises(Unreachable, match=f"is not connected to the relay 127.0.0.1:{port}"):
                    await one.ask("peer-2", b"", HANG)

    within(work())


# --- addresses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["relay://r.example.org:443", "relay://[::1]:443", "outbound", "a:1"])
def test_addresses_of_peers_that_cannot_be_reached(address):
    assert valid_address(address) == address


@pytest.mark.parametrize("address", ["relay://", "relay://a", "relay:a:1", "tcp://a:1", ""])
def test_other_addresses_are_refused(address):
    with pytest.raises(
        IdentityError, match=r"expected host:port, such as .*, relay://host:port .* or outbound"
    ):
        valid_address(address)


def test_two_members_that_nobody_reaches_are_not_linked(tmp_path):
    """By name it is refused; where the founder chooses links, others are chosen."""
    network = made_network(tmp_path)
    founder = network.founder
    founder.plan_path.unlink(missing_ok=True)

    def invited(name, links=None):
        _, request = keys.new_request(name)
        return founder.invite(name, request, "outbound", links)

    invited("far-1")
    with pytest.raises(IdentityError, match="far-1 and far-2 are to be linked, and both are outbound"):
        invited("far-2", ["far-1"])
    invited("far-2")
    roster = founder.roster()
    assert "far-1" not in roster.neighbours("far-2") and roster.neighbours("far-2")


# --- processes -----------------------------------------------------------------------------------------


def test_the_command_stops_when_it_is_told_to(tmp_path):
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "peerbayes", "relay", "--listen", f"127.0.0.1:{port}"]
    for stop, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        end = time.monotonic() + HANG
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.05)
        process.send_signal(stop)
        assert process.wait(HANG) == code
    with socket.create_server(("127.0.0.1", port)):
        assert "cannot be listened on" in peerbayes("relay", "--listen", f"127.0.0.1:{port}", code=2).stderr
    bad = tmp_path / "keys"
    bad.write_text("abc\n")
    assert "expected digests of keys" in peerbayes("relay", "--only", bad, code=2).stderr
    assert "expected host:port" in peerbayes("relay", "--listen", "443", code=2).stderr


SECRETS = ("secret-column", "a-label-that-nobody-else-has", "another-label-of-theirs")


@pytest.mark.long
def test_behind_masquerade_and_behind_a_relay_and_a_proxy_peers_learn_as_in_the_simulator(tmp_path):
    """Four hosts. One is behind a router that masquerades it and lets nothing in; one reaches a proxy alone, which
    reaches nothing but the relay. The relay is killed in the middle: everybody waits, and nothing is lost."""
    with Firewalls() as world:
        network, (X, y) = world.network(tmp_path, SECRETS)
        log = tmp_path / "relay.log"
        relay = world.start_relay(log)
        idle = world.memory_of(relay)  # the program alone, whose help names peer-1 and peer-2 as examples
        for name in network.homes:
            world.start(network, name)
        until_round(network, "peer-4", 2)
        ways = {"peer-3": world.check(network, "peer-3")}
        relay.send_signal(signal.SIGSTOP)  # so that there is time to read its memory
        kept, own = world.memory_of(relay), world.memory_of(network.processes["peer-4"])
        hidden = {
            **messages_of(network, "peer-4"),
            **certificates_of(network, ("peer-2", "peer-3", "peer-4")),
        }
        relay.kill()
        relay.wait()
        reached = stands(network)
        ways |= {name: world.check(network, name) for name in ("peer-1", "peer-4")}
        found = world.check(network, "peer-2")
        assert found["neighbour peer-4"][0] == "warning"
        assert (
            "cannot" in found["neighbour peer-4"][1] or "refuses connections" in found["neighbour peer-4"][1]
        )
        assert stands(network) == reached  # it pauses, and nobody goes on without the others
        assert all(process.poll() is None for process in network.processes.values())
        relay = world.start_relay(log)
        until_round(network, "peer-4", reached + 3)
        kept += world.memory_of(relay)
        finished(network)
        assert {process.returncode for process in network.processes.values()} == {0}
    run = pb.simulate(
        X, y, peers=4, partition=world.parts, topology=world.graph, strategy="exact", rounds=world.rounds,
        references=False, evaluate_every=0, test=(X, y),
    )  # fmt: skip
    for place, home in enumerate(network.homes.values()):
        with contextlib.closing(Store(home.state_path, readonly=True)) as store:
            assert not any(entry["missing"] for entry in store.history())
        stats = pb.load(home.model_path).statistics_.expressed(run.schema).values
        np.testing.assert_allclose(stats, run.statistics(place).values, rtol=0, atol=1e-9)
    written = log.read_bytes()
    assert b"waits" in written and len(kept) > 10 << 20
    words = (*SECRETS, "peer-3", "peer-4", network.founder.roster().run)
    assert not [word for word in words if word.encode() in idle]
    in_relay = occurring([piece for pieces in hidden.values() for piece in pieces], written + kept)
    assert not [word for word in words if word.encode() in written + kept] and not in_relay
    for what, pieces in {**{word: [word.encode()] for word in words}, **hidden}.items():
        assert pieces, what
        # Who looks as this test does finds what is there: every word and certificate, and what was sent last.
        if not what.startswith("message") or what == max(
            name for name in hidden if name.startswith("message")
        ):
            assert any(piece in own for piece in pieces), what
    # The same search finds what the relay does know, in its memory and in its log.
    known = network.founder.roster().member("peer-4").key[:12].encode()
    assert known in written and occurring([known], kept) == {known}
    assert re.search(r"; (direct|reversed): ", ways["peer-1"]["neighbour peer-2"][1])
    assert "is linked to it; reversed: " in ways["peer-1"]["neighbour peer-3"][1]
    assert "by way of a relay" in ways["peer-3"]["neighbour peer-4"][1]
    assert "it is outbound" in ways["peer-3"]["reached by peer-4"][1]
    assert "403 Forbidden" in ways["peer-4"]["neighbour peer-2"][1]


@given(st.binary(max_size=64), st.lists(st.binary(min_size=8, max_size=24), max_size=5), st.data())
def test_pieces_are_found_wherever_they_are(memory, pieces, data):
    if len(memory) >= 8:
        start = data.draw(st.integers(0, len(memory) - 8))
        pieces = [*pieces, memory[start : start + data.draw(st.integers(8, 24))]]
    assert occurring(pieces, memory) == {piece for piece in pieces if piece in memory}


def messages_of(network, name):
    """Pieces of what a peer has sent in each round that it still has, by the round; the last is the greatest name."""
    with contextlib.closing(Store(network.homes[name].state_path, readonly=True)) as store:
        found = {}
        for round_index in [entry["round"] for entry in store.history()]:
            for receiver in network.founder.roster().neighbours(name):
                if (message := store.message(round_index, receiver)) is not None:
                    body = message.body
                    pieces = [body[start : start + 24] for start in range(0, len(body) - 23, 24)]
                    # Zeros, and numbers that many tables have, are anywhere.
                    chosen = [piece for piece in pieces if len(set(piece)) > 12]
                    found.setdefault(f"message {round_index:06d}", []).extend(chosen)
    assert found
    return found


def certificates_of(network, names):
    """The authority's signature in each certificate, which TLS 1.3 encrypts: as bytes, and as PEM has it."""
    found = {}
    for name in names:
        text = network.homes[name].certificate_path.read_text()
        lines = [line for line in text.splitlines() if "-----" not in line]
        found[f"certificate of {name}"] = [ssl.PEM_cert_to_DER_cert(text)[-60:], lines[-2].encode()]
    return found


def stands(network):
    """The round at which a network that cannot go on stands."""
    before, since = -1, time.monotonic()
    while time.monotonic() < since + 5.0:
        now = len(history(network.homes["peer-4"])) - 1
        if now != before:
            before, since = now, time.monotonic()
        time.sleep(0.2)
    return before
