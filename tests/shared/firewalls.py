"""Hosts behind firewalls: network namespaces with a router that masquerades, a proxy and a relay; a small proxy."""

import asyncio
import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.loopback import Loopback, free_ports

RELAY, PROXY = "10.78.0.9:443", "10.80.0.1:3128"


class Proxy:
    """An HTTP proxy that knows CONNECT and nothing else: which places were asked for, and what it lets through."""

    def __init__(self, port, password=None, allowed=None):
        self.port, self.password, self.allowed, self.places = port, password, allowed, set()

    async def serve(self, reader, writer):
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            verb, place, _ = head.split(" ", 2)
            self.places.add(place)
            secret = re.search("Proxy-Authorization: Basic (.*)\r\n", head)
            if self.password and (secret is None or base64.b64decode(secret[1]).decode() != self.password):
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
                return
            if verb != "CONNECT" or self.allowed not in (None, place):
                writer.write(b"HTTP/1.1 403 Forbidden\r\n\r\n")
                return
            host, _, port = place.rpartition(":")
            try:
                inward, outward = await asyncio.open_connection(host, int(port))
            except OSError:
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
                return
            writer.write(b"HTTP/1.1 200 Connection established\r\nVia: a proxy\r\n\r\n")
            with contextlib.closing(outward):
                both = [
                    asyncio.ensure_future(self.pass_on(reader, outward)),
                    asyncio.ensure_future(self.pass_on(inward, writer)),
                ]
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                for each in both:
                    each.cancel()

    async def pass_on(self, reader, writer):
        with contextlib.suppress(OSError):
            while content := await reader.read(65536):
                writer.write(content)
                await writer.drain()


@contextlib.asynccontextmanager
async def connect_proxy(**settings):
    """A proxy in this process."""
    proxy = Proxy(free_ports(1)[0], **settings)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", proxy.port)
    try:
        yield proxy
    finally:
        server.close()


async def proxy_for_ever(host, port, allowed):
    server = await asyncio.start_server(Proxy(port, allowed=allowed).serve, host, port)
    await server.serve_forever()


class Firewalls:
    """Four peers, three networks. 10.78.0.0/24 is open: peer-1, peer-2, the relay, and one side of the other two hosts.

    peer-3   is alone behind a router that masquerades it, and lets nothing in that was not asked for
    peer-4   is alone with a proxy, which passes on to the relay and to nothing else
    """

    rounds = 500
    graph = nx.Graph([(0, 1), (0, 2), (1, 3), (2, 3)])

    def __enter__(self):
        self.prefix = f"pb{os.getpid() % 10**6}"
        self.processes = []
        if reason := self._made():
            self._unmade()
            pytest.skip(f"hosts behind firewalls need network namespaces and nftables: {reason}")
        return self

    def __exit__(self, *_):
        self.stop()
        self._unmade()

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()

    def space(self, name):
        return f"{self.prefix}-{name}"

    def _made(self):
        """Make the hosts; why not, where that is not possible here."""
        for program in ("ip", "nft"):
            if shutil.which(program) is None:
                return f"there is no `{program}`; install iproute2 and nftables"
        hub, router, proxy = self.space("hub"), self.space("router"), self.space("proxy")
        commands = [f"ip netns add {self.space(name)}" for name in self.names]
        commands += [
            f"ip -n {hub} link add bridge0 type bridge",
            f"ip -n {hub} link set bridge0 up",
        ]
        commands += [f"ip -n {self.space(name)} link set lo up" for name in self.names]
        places = {"peer-1": 1, "peer-2": 2, "router": 3, "proxy": 4, "relay": 9}
        for name, place in places.items():
            commands += [
                f"ip -n {hub} link add to{place} type veth peer name open0 netns {self.space(name)}",
                f"ip -n {hub} link set to{place} master bridge0 up",
                f"ip -n {self.space(name)} address add 10.78.0.{place}/24 dev open0",
                f"ip -n {self.space(name)} link set open0 up",
            ]
        for net, inside, outside in ((79, "peer-3", router), (80, "peer-4", proxy)):
            commands += [
                f"ip -n {outside} link add in0 type veth peer name own0 netns {self.space(inside)}",
                f"ip -n {outside} address add 10.{net}.0.1/24 dev in0",
                f"ip -n {outside} link set in0 up",
                f"ip -n {self.space(inside)} address add 10.{net}.0.2/24 dev own0",
                f"ip -n {self.space(inside)} link set own0 up",
            ]
        commands += [
            f"ip -n {self.space('peer-3')} route add default via 10.79.0.1",
            f"ip netns exec {router} sysctl -q -w net.ipv4.ip_forward=1",
        ]
        rules = (
            "add table ip t",
            "add chain ip t post { type nat hook postrouting priority 100 ; }",
            "add rule ip t post oifname open0 masquerade",
            "add chain ip t pass { type filter hook forward priority 0 ; policy drop ; }",
            "add rule ip t pass iifname in0 accept",
            "add rule ip t pass ct state established,related accept",
            "add chain ip t input { type filter hook input priority 0 ; policy drop ; }",
        )
        made = [command.split() for command in commands]
        made += [["ip", "netns", "exec", router, "nft", rule] for rule in rules]
        for command in made:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                return f"`{' '.join(command)}` failed: {done.stderr.strip()}"
        return ""

    names = ("hub", "router", "proxy", "relay", "peer-1", "peer-2", "peer-3", "peer-4")

    def _unmade(self):
        if shutil.which("ip"):
            for name in self.names:
                subprocess.run(["ip", "netns", "delete", self.space(name)], capture_output=True)

    def run(self, name, *arguments, **settings):
        """A process on a host."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.space(name), sys.executable, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, **settings,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def network(self, folder, secrets):
        """The peers' folders and all rows; a column and the labels have names that are easily found."""
        rng = np.random.default_rng(3)
        column, first, second = secrets
        X = pd.DataFrame(rng.normal(size=(240, 3)), columns=[column, "b", "c"])
        y = np.where(X[column] + X["b"] + rng.normal(size=240) > 0, first, second)
        self.parts = np.array_split(np.arange(240), 4)
        terms = Terms("walls", "y", rounds=self.rounds, strategy="exact", limits=Limits(deadline=3600.0))
        addresses = ["10.78.0.1:7000", "10.78.0.2:7000", "outbound", f"relay://{RELAY}"]
        tables = [X.iloc[part].assign(y=y[part]) for part in self.parts]
        network = Loopback.create(Path(folder) / "peers", terms, tables, list(self.graph.edges), addresses)
        settings = network.homes["peer-4"].settings_path
        settings.write_text(f'proxy = "http://{PROXY}"\n{settings.read_text()}')
        command = (
            "import asyncio\nfrom shared.firewalls import *\n"
            f"asyncio.run(proxy_for_ever('10.80.0.1', 3128, {RELAY!r}))"
        )
        self.run("proxy", "-c", command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        return network, (X, y)

    def start_relay(self, log):
        with log.open("ab") as output:
            return self.run("relay", "-m", "peerbayes", "relay", "--listen", RELAY, stderr=output)

    def start(self, network, name):
        home = network.homes[name]
        with home.log_path.open("ab") as log:
            network.processes[name] = self.run(
                name, "-m", "peerbayes", "peer", "run", str(home.folder), stderr=log
            )

    def check(self, network, name):
        """What `peer check` says on a host, by subject."""
        done = subprocess.run(
            ["ip", "netns", "exec", self.space(name), sys.executable, "-m", "peerbayes", "peer", "check",
             str(network.homes[name].folder), "--format", "json"],
            capture_output=True, text=True,
        )  # fmt: skip
        return {finding["what"]: (finding["outcome"], finding["told"]) for finding in json.loads(done.stdout)}

    @staticmethod
    def memory_of(process):
        """All that a process has in its memory; below `ip netns exec` it is the same process."""
        pieces = []
        maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
        with Path(f"/proc/{process.pid}/mem").open("rb", 0) as memory:
            for line in maps:
                span, rights, *_ = line.split()
                if "rw" not in rights or "[v" in line:
                    continue
                first, last = (int(end, 16) for end in span.split("-"))
                with contextlib.suppress(OSError, ValueError, OverflowError):
                    memory.seek(first)
                    pieces.append(memory.read(last - first))
        return b"".join(pieces)
