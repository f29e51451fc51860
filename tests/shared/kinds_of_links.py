"""Which way links are opened in tests: by whoever comes first, by one side only, or by way of a relay.

    direct     every member listens; what runs without `--links`
    reversed   as many members as can be have the address `outbound`: each of their links is opened by their side.
               peer-1 is never one of them, since tests call it
    relayed    every member waits at a relay, which is a process of `peerbayes relay`

`pytest --links KIND` runs the tests marked `links` over links of this kind. Without it they run over direct ones, and
those with a parameter `kind_of_links` (shared/link_option.py) over others as well, with `--all`.
"""

import asyncio
import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from peerbayes.peer.loopback import Loopback, free_ports
from shared.commands import HANG
from shared.link_option import DIRECT, RELAYED, REVERSED, Current


class RunningRelay:
    """A process of `peerbayes relay` on this machine, which can be killed and started again."""

    def __init__(self):
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self.log = Path(tempfile.mkdtemp()) / "relay.log"
        self.process = None

    def start(self):
        command = [sys.executable, "-m", "peerbayes", "relay", "--listen", self.address]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # all of these peers have one address
                [*command, "--of-one-address", "20000", "--pairs", "20000"],
                stderr=log, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        end = time.monotonic() + HANG
        while True:
            with contextlib.suppress(OSError), socket.create_connection(place(self.address)):
                return
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)

    def kill(self):
        self.process.kill()
        self.process.wait()


_relays = []


def relay():
    """The relay of this process's tests; it is started when it is first needed."""
    if not _relays:
        _relays.append(RunningRelay())
        _relays[0].start()
    return _relays[0]


def stop_relay():
    while _relays:
        _relays.pop().kill()


def outbound_of(count, links):
    """Numbers of members no two of whom are linked, and to which no other could be added: never that of peer-1."""
    pairs = {frozenset(map(int, link)) for link in links}
    beside_first = [number for number in range(count) if frozenset((0, number)) in pairs and number]
    rest = [number for number in range(count) if number not in beside_first and number]
    chosen = []
    for number in [*reversed(beside_first), *reversed(rest)]:
        if not any(frozenset((number, other)) in pairs for other in chosen):
            chosen.append(number)
    return chosen


def addresses(count, links):
    """The addresses of members with these links; None: ports of this machine, as usual."""
    if Current.kind == RELAYED:
        return [f"relay://{relay().address}"] * count
    if Current.kind == REVERSED:
        outbound = outbound_of(count, links)
        free = free_ports(count)
        return ["outbound" if place in outbound else f"127.0.0.1:{free[place]}" for place in range(count)]
    return None


def rerouted(addresses, links):
    """Addresses of hosts that listen, with some of them changed to what this kind of links needs."""
    if addresses is None or Current.kind == DIRECT:
        return addresses
    if Current.kind == RELAYED:
        pytest.skip("these hosts have no way to a relay")
    outbound = outbound_of(len(addresses), links)
    return ["outbound" if place in outbound else address for place, address in enumerate(addresses)]


_create = Loopback.create.__func__


def _created(cls, folder, terms, tables, links, addresses_of=None):
    given = addresses(len(tables), links) if addresses_of is None else addresses_of
    return _create(cls, folder, terms, tables, links, given)


Loopback.create = classmethod(_created)


# --- calling a member by hand --------------------------------------------------------------------------


def place(address):
    """Host and port of an address, which may be at a relay."""
    host, _, port = address.removeprefix("relay://").rpartition(":")
    return host, int(port)


def line_to(member, wait=HANG):
    """A connection on which a member expects TLS; once it waits, where that is at a relay."""
    end = time.monotonic() + wait
    while True:
        line = socket.create_connection(place(member.address), HANG)
        if not member.address.startswith("relay://"):
            return line
        line.sendall(f"PEERBAYES/1 CALL {member.key}\n".encode())
        answer = b""
        while not answer.endswith(b"\n"):
            answer += line.recv(1) or b"closed\n"
        if answer == b"PEERBAYES/1 OK\n":
            return line
        line.close()
        if time.monotonic() > end:
            raise ConnectionRefusedError(answer.decode())
        time.sleep(0.02)


async def until_waits(member):
    """Wait until a member waits at the relay of these tests, if it is to be reached there."""
    if not _relays or member.address != f"relay://{_relays[0].address}":
        return
    digest, log = member.key[:12], _relays[0].log
    async with asyncio.timeout(HANG):
        while True:
            lines = [line for line in log.read_text().splitlines() if f" {digest} waits" in line]
            if lines and f"{digest} waits," in lines[-1]:
                return
            await asyncio.sleep(0.02)
