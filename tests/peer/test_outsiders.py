"""Whoever reaches a peer's port and is no member: how many connections, how long, over which TLS; and what is left to
the peer when its descriptors are in use."""

import asyncio
import contextlib
import errno
import json
import os
import resource
import socket
import ssl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
from peerbayes.peer.agreement.terms import Limits
from peerbayes.peer.protocol import connections, transport
from peerbayes.peer.protocol.connections import Spare
from peerbayes.peer.protocol.failures import Unreachable
from peerbayes.peer.status import status
from shared.commands import HANG
from shared.kinds_of_links import line_to, place
from shared.real_calls import LINE, Ended, asking_from, channel_of, made_network, serving, within

pytestmark = pytest.mark.long  # neighbours and machines that do the worst: minutes


async def echo(caller, content):
    return b"%s said %s" % (caller.encode(), content)


def until(holds):
    end = time.monotonic() + HANG
    while not holds():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.02)


def member(network, name):
    return network.founder.roster().member(name)


def log(network, name):
    return network.homes[name].log_path.read_text(errors="replace")


# --- TLS -----------------------------------------------------------------------------------------------


def context_of(home, version, server=False):
    """A member's own certificate, and one version of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(home.certificate_path, home.key_path)
    context.load_verify_locations(home.authority_path)
    context.check_hostname = not server
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["peerbayes"])
    return context


def handshake(network, name, by, version):
    """The version of TLS that came about with a member, and its first bytes."""
    context = context_of(network.homes[by], version)
    with (
        line_to(member(network, name)) as line,
        context.wrap_socket(line, server_hostname=name) as channel,
    ):
        return channel.version(), channel.recv(9)


@pytest.mark.links
def test_no_member_gets_through_with_tls_1_2(tmp_path):
    network = made_network(tmp_path)

    async def work():
        async with serving(network.homes["peer-1"], echo):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.to_thread(handshake, network, "peer-1", "peer-2", ssl.TLSVersion.TLSv1_2)
            version, settings = await asyncio.to_thread(
                handshake, network, "peer-1", "peer-2", ssl.TLSVersion.TLSv1_3
            )
            assert version == "TLSv1.3" and settings[8] == 1  # a greeting has begun

    within(work())


@pytest.mark.parametrize(("version", "comes_about"), [("TLSv1_2", False), ("TLSv1_3", True)])
def test_no_peer_asks_over_tls_1_2(tmp_path, version, comes_about):
    """A server with the certificate of the roster that speaks nothing newer is not talked to."""
    network, agreed = made_network(tmp_path), []
    context = context_of(network.homes["peer-2"], ssl.TLSVersion[version], server=True)

    def accept(listening):
        line, _ = listening.accept()
        with contextlib.suppress(OSError), context.wrap_socket(line, server_side=True) as channel:
            agreed.append(channel.version())

    async def work(listening):
        accepting = asyncio.create_task(asyncio.to_thread(accept, listening))
        async with asking_from(network.homes["peer-1"]) as asker:
            with pytest.raises(Unreachable) as told:
                await asker.ask("peer-2", b"", HANG)
        await accepting
        return str(told.value)

    with socket.create_server(place(member(network, "peer-2").address)) as listening:
        said = within(work(listening))
    assert agreed == (["TLSv1.3"] if comes_about else [])
    assert ("does not speak TLS 1.3" in said) is not comes_about


# --- connections ---------------------------------------------------------------------------------------


def is_open(line):
    """Whether the other side has not closed a connection."""
    line.setblocking(False)
    try:
        return line.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


@contextlib.asynccontextmanager
async def connected(network, name, count):
    """So many connections that bring nothing."""
    loop = asyncio.get_running_loop()
    # Threads of their own: the peer looks up addresses in those of the loop, to take what a relay has for it.
    with ThreadPoolExecutor(count) as pool, contextlib.ExitStack() as stack:
        opening = (loop.run_in_executor(pool, line_to, member(network, name)) for _ in range(count))
        yield [stack.enter_context(line) for line in await asyncio.gather(*opening)]


async def let_in(network, name, by, content):
    """The reply of a peer that has room for this connection at last."""
    while True:
        with contextlib.suppress(OSError, Ended):
            async with channel_of(network, name, by) as channel:
                return await channel.call(content)
        await asyncio.sleep(0.02)


@pytest.mark.links
def test_connections_are_capped(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 20)
    monkeypatch.setattr(transport, "HANDSHAKE", HANG)
    network = made_network(tmp_path)

    async def work():
        async with (
            serving(network.homes["peer-1"], echo),
            channel_of(network, "peer-1", "peer-2") as early,
        ):
            assert await early.call(b"1") == b"peer-2 said 1"
            async with connected(network, "peer-1", 60) as lines:
                while sum(map(is_open, lines)) > 19:
                    await asyncio.sleep(0.01)
                assert sum(map(is_open, lines)) == 19  # peer-2's own is the twentieth
                assert await early.call(b"2") == b"peer-2 said 2"  # who is in stays in
            assert await let_in(network, "peer-1", "peer-3", b"3") == b"peer-3 said 3"

    within(work())


@pytest.mark.links
def test_connections_that_bring_nothing_are_cut_off(tmp_path, monkeypatch):
    """Who was kept out by them gets in, though they are still there."""
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 20)
    monkeypatch.setattr(transport, "HANDSHAKE", 1.0)
    network = made_network(tmp_path)

    async def work():
        async with serving(network.homes["peer-1"], echo), connected(network, "peer-1", 60) as lines:
            assert await let_in(network, "peer-1", "peer-2", b"1") == b"peer-2 said 1"
            while any(map(is_open, lines)):
                await asyncio.sleep(0.01)
            assert await let_in(network, "peer-1", "peer-2", b"2") == b"peer-2 said 2"

    within(work())


@pytest.mark.parametrize(
    ("open_files", "expected"), [(65_536, 4096), (20_000, 4096), (1024, 768), (512, 256), (100, 50), (1, 1)]
)
def test_connections_leave_descriptors_to_the_peer(open_files, expected):
    assert connections.connections(open_files) == expected


def test_the_limit_of_descriptors_is_raised_as_far_as_it_may():
    code = (
        "import resource\nfrom peerbayes.peer.protocol import connections as descriptors\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 900))\n"
        "print(descriptors.raise_limit(), resource.getrlimit(resource.RLIMIT_NOFILE), descriptors.limit())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "900 (900, 900) 900\n"


def test_a_spare_descriptor_is_used_when_there_is_no_other(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    spare, taken = Spare(), []
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 5, before[1]))
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(3):  # it is held again
            assert spare.run((tmp_path / "file").read_bytes) == b"content"
        with pytest.raises(OSError, match="Too many open files"):
            (tmp_path / "file").read_bytes()
        with pytest.raises(FileNotFoundError):
            spare.run((tmp_path / "nothing").read_bytes)
        spare.close()
        taken.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(OSError) as none:
            spare.run((tmp_path / "file").read_bytes)
        assert none.value.errno == errno.EMFILE
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert spare.run((tmp_path / "file").read_bytes) == b"content"
    spare.close()


# --- processes -----------------------------------------------------------------------------------------

# `peer run` with so many descriptors; while a file is there, all of them are in use.
RUN = """
import os, resource, sys, threading, time
from pathlib import Path
limit, folder, *options = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit), int(limit)))
full = Path(folder) / "use all descriptors"
def use():
    held = []
    while True:
        if full.exists() and not held:
            try:
                while True:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                full.with_name("no descriptors left").symlink_to(".")
        elif held and not full.exists():
            while held:
                os.close(held.pop())
        time.sleep(0.02)
threading.Thread(target=use, daemon=True).start()
from peerbayes.cli.app import app
app(["peer", "run", folder, *options])
"""


def start(network, name, limit=1024, *options):
    home = network.homes[name]
    with home.log_path.open("ab") as output:
        network.processes[name] = subprocess.Popen(
            [sys.executable, "-c", RUN, str(limit), str(home.folder), *options],
            stderr=output, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    return network.processes[name]


@contextlib.contextmanager
def idle(called, count):
    """So many connections that bring nothing; skipped where this process may not have them."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 200
    if before[1] != resource.RLIM_INFINITY and before[1] < needed:
        pytest.skip(f"{needed} descriptors are needed, and the system allows {before[1]}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], needed), before[1]))
    lines = []
    try:
        lines.extend(line_to(called) for _ in range(count))
        yield lines
    finally:
        for line in lines:
            line.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.links
def test_neighbours_exchange_rounds_while_5000_idle_sockets_are_there(tmp_path):
    """peer-1 may have 1,024 descriptors. Its neighbours come when the sockets are there already."""
    network = made_network(tmp_path, rounds=30, limits=Limits(deadline=60.0, quorum=0.5))
    try:
        start(network, "peer-1")
        until(lambda: "agreeing on columns" in log(network, "peer-1"))
        with idle(member(network, "peer-1"), 5000) as lines:
            network.start("peer-2")
            network.start("peer-3")
            network.wait()
            assert len(lines) == 5000
        for name in network.homes:
            found = status(network.homes[name])
            assert found["done"] and found["missing"] == {}
    finally:
        network.stop()


@pytest.mark.links
def test_a_roster_is_taken_though_no_descriptors_are_left(tmp_path):
    """From the folder, while peer-1 has none; so is the next one, when there are some again."""
    network = made_network(tmp_path, LINE)
    home, key = network.homes["peer-1"], network.founder.key_path.read_bytes()
    full, roster = home.folder / "use all descriptors", network.founder.roster()

    def joined(roster):
        """How long it took until a roster that was joined was in force."""
        home.join(roster.signed(key))
        began = time.monotonic()
        until(lambda: f"roster {roster.version} is in force" in log(network, "peer-1"))
        return time.monotonic() - began

    try:
        process = start(network, "peer-1", 256)
        until(lambda: "agreeing on columns" in log(network, "peer-1"))
        full.touch()
        until((home.folder / "no descriptors left").is_symlink)
        roster = roster.with_changed(roster.member("peer-3"))
        print(f"in force after {joined(roster):.2f} s, with no descriptors left")
        full.unlink()
        # Not a revocation: before everybody has agreed, that ends a run.
        again = roster.with_changed(roster.member("peer-3"))
        print(f"in force after {joined(again):.2f} s, with some again")
        process.terminate()
        assert process.wait(HANG) == 0
    finally:
        network.stop()


@pytest.mark.links
def test_a_process_says_who_came_with_tls_1_2(tmp_path):
    """With a valid certificate, to a peer as `peer run` runs it."""
    network = made_network(tmp_path)
    home = network.homes["peer-1"]
    try:
        network.start("peer-1")
        until(lambda: "agreeing on columns" in log(network, "peer-1"))
        with pytest.raises((ssl.SSLError, ConnectionError)):
            handshake(network, "peer-1", "peer-2", ssl.TLSVersion.TLSv1_2)
        assert handshake(network, "peer-1", "peer-2", ssl.TLSVersion.TLSv1_3)[0] == "TLSv1.3"
        until(
            lambda: (
                ("an unknown host", "TLS older than 1.3")
                in {(entry["who"], entry["reason"]) for entry in status(home)["refusals"]}
            )
        )
        assert json.dumps(status(home))
    finally:
        network.stop()
