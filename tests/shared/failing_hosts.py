"""Hosts whose links fail: cut, slow, or without power. Every peer is a process.

There are two worlds. In one (`Namespaces`) every host is a network namespace, and its packets go through a switch in
this file. Where namespaces are not allowed there is the other (`Tunnels`): each peer's connections go through a tunnel
of its own.
"""

import asyncio
import contextlib
import fcntl
import heapq
import os
import select
import shutil
import struct
import subprocess
import sys
import threading
import time

import pytest

from peerbayes.errors import PeerError
from peerbayes.peer.learning.verdict import ENDED_BADLY
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.state.store import Store
from shared.commands import HANG

NAMES = [f"peer-{number + 1}" for number in range(6)]

PORT = 7000


class Hosts(Loopback):
    """Peers whose processes start in a world that can fail them."""

    world = None

    def start(self, name, *options):
        home = self.homes[name]
        with home.log_path.open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*self.world.prefix(name), sys.executable, "-m", "peerbayes", "peer", "run", str(home.folder)],
                env={**os.environ, **self.world.environment(name)},
                stderr=log, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        return self.processes[name]

    def history(self, name):
        """Rounds that a peer has closed, the start left out."""
        try:
            store = Store(self.homes[name].state_path, readonly=True)
        except PeerError:  # there is none yet, or it is being made
            return []
        with contextlib.closing(store):
            return store.history()[1:]

    def without(self, name, other):
        """Rounds that a peer closed without one of its neighbours."""
        return sum(other in entry["missing"] for entry in self.history(name))

    def until(self, what):
        """Wait for something to happen while nobody aborts."""
        end = time.monotonic() + HANG
        while not what():
            assert time.monotonic() < end, {name: len(self.history(name)) for name in self.homes}
            for name, process in self.processes.items():
                ended = process.poll()
                assert ended in (None, 0, ENDED_BADLY) or name in self.world.off, self.homes[
                    name
                ].log_path.read_text()
            time.sleep(0.1)


class World:
    """What can happen to links and hosts."""

    def __init__(self):
        self.cut, self.off, self.slow = set(), set(), {}

    def dead(self, first, second):
        return frozenset((first, second)) in self.cut or bool({first, second} & self.off)

    def delays(self, sender, receiver):
        """Seconds after which a packet arrives, once for every copy of it; none: it is lost."""
        return () if self.dead(sender, receiver) else (self.slow.get(sender, 0.0),)


class Tunnels(World):
    """A CONNECT proxy for each peer, so that it is known who calls whom. A dead link is silent: bytes are held."""

    addresses = None

    def __enter__(self):
        self.loop, self.ports, self.servers = asyncio.new_event_loop(), {}, []
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self.loop).result(10)
        return self

    def __exit__(self, *_):
        async def end():
            for server in self.servers:
                server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def know(self, hosts):
        members = {member.name: member for member in hosts.founder.roster().members}
        self.names = {members[name].address: name for name in hosts.homes}
        self.names |= {members[name].key: name for name in hosts.homes}
        for name, home in hosts.homes.items():
            path = home.settings_path
            path.write_text(f'proxy = "http://127.0.0.1:{self.ports[name]}"\n{path.read_text()}')

    def prefix(self, name):
        return []

    def environment(self, name):
        return {}

    async def _listen(self):
        for name in NAMES:
            server = await asyncio.start_server(
                lambda reader, writer, name=name: self._connect(name, reader, writer), "127.0.0.1", 0
            )
            self.servers.append(server)
            self.ports[name] = server.sockets[0].getsockname()[1]

    async def _connect(self, caller, reader, writer):
        with (
            contextlib.closing(writer),
            contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError),
        ):
            wanted = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
            called = self.names.get(wanted)  # None: the relay
            host, _, port = wanted.rpartition(":")
            await self._passes(caller, called)
            try:
                inward, outward = await asyncio.open_connection(host, int(port))
            except OSError:
                writer.write(b"HTTP/1.1 502 refused\r\n\r\n")
                return
            writer.write(b"HTTP/1.1 200 connected\r\n\r\n")
            if (
                called is None
            ):  # whose connection to a member fails with their link; others do with the caller's host
                said = await reader.readuntil(b"\n")
                called = self.names[said.split()[2].decode()] if b" CALL " in said else None
                await self._passes(caller, called)
                outward.write(said)
            await asyncio.gather(
                self._pump(caller, called, reader, outward), self._pump(called, caller, inward, writer)
            )

    async def _passes(self, sender, receiver):
        while self.dead(sender, receiver):
            await asyncio.sleep(0.05)

    async def _pump(self, sender, receiver, reader, writer):
        """Bytes of one direction, each as late as its sender is slow."""
        queue = asyncio.Queue()

        async def deliver():
            while True:
                due, content = await queue.get()
                await asyncio.sleep(due - self.loop.time())
                await self._passes(sender, receiver)
                if not content:
                    return
                writer.write(content)
                await writer.drain()

        async def take():
            content = b"first"
            while content:
                content = await reader.read(65536)
                queue.put_nowait((self.loop.time() + self.slow.get(sender, 0.0), content))

        try:
            with contextlib.suppress(OSError):
                await asyncio.gather(take(), deliver())
        finally:
            writer.close()


class Namespaces(World):
    """A network namespace for each host; a switch in this process passes on, delays or drops its packets."""

    addresses = tuple(f"10.77.0.{number + 1}:{PORT}" for number in range(len(NAMES)))

    def __enter__(self):
        if reason := self._begun():
            pytest.skip(f"hosts of their own need network namespaces: {reason}")
        self.thread = threading.Thread(target=self._switch, daemon=True)
        self.thread.start()
        return self

    def _begun(self):
        """Make the hosts; why not, where that is not allowed here."""
        self.spaces = {name: f"peerbayes-{os.getpid()}-{name}" for name in NAMES}
        self.devices, self.ended, self.waiting = {}, threading.Event(), []
        self.places = {bytes((10, 77, 0, number + 1)): name for number, name in enumerate(NAMES)}
        reason = self._made()
        if reason:
            self._unmade()
        return reason

    @classmethod
    def allowed(cls):
        world = cls()
        if world._begun():
            return False
        world._unmade()
        return True

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        self._unmade()

    def know(self, hosts):
        pass

    def prefix(self, name):
        return ["ip", "netns", "exec", self.spaces[name]]

    def environment(self, name):
        return {}

    def _made(self):
        """Why they cannot be made, or nothing."""
        if shutil.which("ip") is None:
            return "there is no `ip`; install iproute2"
        for number, (name, space) in enumerate(self.spaces.items()):
            device = f"pb{os.getpid() % 10**6}-{number}"
            try:
                self.devices[name] = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
                tun, plain, make = 0x0001, 0x1000, 0x400454CA  # IFF_TUN, IFF_NO_PI, TUNSETIFF
                fcntl.ioctl(self.devices[name], make, struct.pack("16sH", device.encode(), tun | plain))
            except OSError as error:
                return f"/dev/net/tun: {error.strerror}"
            for command in (
                f"ip netns add {space}",
                f"ip link set {device} netns {space}",
                f"ip -n {space} address add 10.77.0.{number + 1}/24 dev {device}",
                f"ip -n {space} link set {device} up",
                f"ip -n {space} link set lo up",
            ):
                done = subprocess.run(command.split(), capture_output=True, text=True)
                if done.returncode:
                    return f"`{command}` failed: {done.stderr.strip()}"
        return ""

    def _unmade(self):
        for device in self.devices.values():
            os.close(device)
        if shutil.which("ip"):
            for space in self.spaces.values():
                subprocess.run(["ip", "netns", "delete", space], capture_output=True)

    def _switch(self):
        """IPv4 packets: the sender's address is bytes 12 to 16, the receiver's 16 to 20."""
        named = {device: name for name, device in self.devices.items()}
        while not self.ended.is_set():
            soon = max(0.0, self.waiting[0][0] - time.monotonic()) if self.waiting else 0.1
            for device in select.select(list(named), [], [], min(soon, 0.1))[0]:
                packet = os.read(device, 65536)
                receiver = self.places.get(packet[16:20])
                if packet[0] >> 4 != 4 or not receiver:
                    continue
                for delay in self.delays(named[device], receiver):
                    entry = time.monotonic() + delay, time.monotonic_ns(), receiver, packet
                    heapq.heappush(self.waiting, entry)
            while self.waiting and self.waiting[0][0] <= time.monotonic():
                _, _, receiver, packet = heapq.heappop(self.waiting)
                with contextlib.suppress(BlockingIOError):
                    os.write(self.devices[receiver], packet)
