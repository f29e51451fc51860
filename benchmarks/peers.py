"""Real peers: what a round costs, beside the bare transport, and what fifty processes cost.

    python benchmarks/peers.py ring              8 processes in a ring, messages of 100 KB and of 1 MB
    python benchmarks/peers.py inside [SRC ...]  the ring in one process without transport, beside others
    python benchmarks/peers.py fifty [SRC ...]   50 processes in a ring: start-up and memory, beside others
    PEERBAYES_DATA=folder python benchmarks/peers.py letter   50 processes, 64 rounds of the letter dataset

The bare transport is the same processes, certificates and messages without statistics, store, audit log and checks:
each asks its two neighbours for the bytes of round t and goes on when it has both. With grpcio installed, the
same is measured over gRPC, the transport before there were links. All are measured in turn, and `ring` prints medians.
Processor time is user and system time of all threads of a process, between its round 10 and its last. Another machine
has other figures; the ratio is what counts. `inside` hands requests over by a call, with real
signatures; it and `fifty` run this source tree and others in turn, each in processes of its own: what a change gains.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")  # eight processes share two cores

import numpy as np
import pandas as pd
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.identity.roster import Member, Roster
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.session import Membership
from peerbayes.peer.running_peer import RunningPeer
from peerbayes.peer.state.audit_log import AuditLog
from peerbayes.peer.state.folder import Home, Peer
from peerbayes.peer.state.store import Store

PEERS, ROUNDS, SETTLED = 8, 100, 10  # rounds before SETTLED do not count
REPEATS, INSIDE_REPEATS = 3, 7
SIZES = (100_000, 1_000_000)
RATIO = 2.0  # of a round to the bare transport, at most
PROCESSOR = {100_000: 5.0, 1_000_000: 20.0}  # milliseconds of a peer and round, at most
CLASSES, ROWS = 10, 20
FIFTY, FIFTY_ROUNDS, MEGABYTES = 50, 20, 100.0


class Cost(NamedTuple):
    """What a round costs, in milliseconds."""

    round: float
    processor: float  # of one process


def ring() -> bool:
    """Print what a round costs beside the bare transport; return whether that is within the limits."""
    met, transports = True, ["links", *(["gRPC"] if importlib.util.find_spec("grpc") else [])]
    print(f"{PEERS} processes in a ring, {ROUNDS} rounds, medians of {REPEATS}; milliseconds")
    print(f"{'':>20}{'a round':^27}{'processor, peer and round':^27}")
    print(f"{'bytes':>10}{'over':>10}" + f"{'peers':>9}{'bare':>9}{'ratio':>9}" * 2)
    for size in SIZES:
        columns = size // (8 * CLASSES * 2)
        exact_size = 8 * CLASSES * (2 * columns + 1)
        peers: list[Cost] = []
        bare: dict[str, list[Cost]] = {name: [] for name in transports}
        for _ in range(REPEATS):
            with tempfile.TemporaryDirectory() as folder:
                network = _network(Path(folder), columns)
                peers.append(_peers(network))
                for name, costs in bare.items():
                    costs.append(_bare(network, exact_size, name))
        ours, processor = np.median(peers, axis=0)
        for name, costs in bare.items():
            transport, least = np.median(costs, axis=0)
            ratio, of_processor = np.median(np.array(peers) / np.array(costs), axis=0)
            # Before there were links, a limit was set beside gRPC; the one that holds is beside links.
            within = name == "gRPC" or (ratio <= RATIO and processor <= PROCESSOR[size])
            met &= within
            print(
                f"{exact_size:>10,}{name:>10}{ours:>9.1f}{transport:>9.1f}{ratio:>9.2f}"
                f"{processor:>9.2f}{least:>9.2f}{of_processor:>9.2f}{'' if within else '  MISSED'}",
                flush=True,
            )
    limits = ", ".join(f"{most:g} ms of processor at {size:,} bytes" for size, most in PROCESSOR.items())
    print(f"at most: {RATIO:g} times bare links, {limits}")
    return met


class Processor:
    """Processor time of processes, sampled while they run."""

    def __init__(self, network: Loopback) -> None:
        self._network = network
        self._samples: dict[str, list[tuple[float, float]]] = defaultdict(lambda: [(0.0, 0.0)])

    def sample(self) -> None:
        for name, process in self._network.processes.items():
            with contextlib.suppress(OSError, IndexError):
                self._samples[name].append((time.time(), _seconds_of(process.pid)))

    def until(self, name: str, at: float) -> float:
        """Return the seconds that a process had used at a time."""
        times, seconds = zip(*self._samples[name], strict=True)
        return float(np.interp(at, times, seconds))


def _seconds_of(process: int) -> float:
    """Return the user and system time of a process so far, in seconds."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _network(folder: Path, columns: int, peers: int = PEERS, rounds: int = ROUNDS) -> Loopback:
    rng = np.random.default_rng(0)
    names = [f"x{j}" for j in range(columns)]
    tables = [
        pd.DataFrame(rng.normal(size=(ROWS, columns)), columns=names).assign(label=np.arange(ROWS) % CLASSES)
        for _ in range(peers)
    ]
    links = [(place, place + 1) for place in range(peers - 1)] + [(0, peers - 1)]
    terms = Terms("ring", "label", rounds=rounds, strategy="exact")
    return Loopback.create(folder, terms, tables, links)


def _peers(network: Loopback) -> Cost:
    """Return what a round of real peers costs, by their own clocks."""
    for name in network.homes:
        network.start(name, "--quiet")
    processor, costs = Processor(network), []
    network.wait(processor.sample, every=0.05)
    for name, home in network.homes.items():
        with contextlib.closing(Store(home.state_path, readonly=True)) as store:
            history = store.history()
        began, ended = history[SETTLED]["at"], history[-1]["at"]
        used = processor.until(name, ended) - processor.until(name, began)
        costs.append(Cost(ended - began, used))
    return Cost(*(1000 * np.mean(costs, axis=0) / (ROUNDS - SETTLED)))


def _bare(network: Loopback, size: int, transport: str) -> Cost:
    arguments = ([str(home.folder), str(size), transport] for home in network.homes.values())
    started = [
        subprocess.Popen([sys.executable, __file__, "bare", *each], stdout=subprocess.PIPE)
        for each in arguments
    ]
    costs = [[float(seconds) for seconds in process.communicate()[0].split()] for process in started]
    return Cost(*(1000 * np.mean(costs, axis=0)))


async def bare(folder: Path, size: int, over: str) -> tuple[float, float]:
    """Return the seconds of a round of one process of the bare ring, and those of its processor."""
    from peerbayes.peer.protocol.transport import (
        Links,
        Unreachable,
    )  # older trees, which are run beside this one, have others

    peer = Home(folder).load()
    neighbours = peer.roster.neighbours(peer.name)
    transport = Links(peer, lambda *facts: None) if over == "links" else OverGrpc(peer)
    body, digest = os.urandom(size), b"\0" * 32
    turn, news, last = 1, asyncio.Event(), set()

    async def answer(caller: str, content: bytes) -> bytes:
        asked = wire.request_in(content)
        while asked.round_index > turn:
            await news.wait()
        if asked.round_index == ROUNDS:
            last.add(caller)
        return wire.encode(
            wire.Reply(
                wire.VERSION,
                asked.run,
                peer.name,
                "round",
                "ok",
                round_index=asked.round_index,
                digest=digest,
                body=body,
            )
        )

    async def ask(name: str) -> None:
        request = wire.Request(wire.VERSION, peer.roster.run, peer.name, "round", round_index=turn)
        while True:
            try:
                await transport.ask(name, wire.encode(request), 30.0)
                return
            except (Unreachable, ConnectionError):
                await asyncio.sleep(0.05)

    await transport.serve(answer)
    began = used = 0.0
    for _ in range(ROUNDS):
        await asyncio.gather(*map(ask, neighbours))
        turn += 1
        news.set()
        news = asyncio.Event()
        if turn == SETTLED + 1:
            began, used = time.perf_counter(), _own_seconds()
    took = np.array([time.perf_counter() - began, _own_seconds() - used]) / (ROUNDS - SETTLED)
    while len(last) < len(neighbours):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    await transport.close()
    return float(took[0]), float(took[1])


class OverGrpc:
    """Unary calls of gRPC with mutual TLS, and nothing else: what the bare transport was before there were links."""

    METHOD = "/peerbayes.Peer/Ask"
    OPTIONS: ClassVar = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
    ]

    def __init__(self, peer: Peer) -> None:
        import grpc

        self._grpc, self._peer = grpc, peer
        credentials = grpc.ssl_channel_credentials(peer.authority, peer.key, peer.certificate)
        addresses = {member.name: member.address for member in peer.roster.members}
        self._channels = {
            name: grpc.aio.secure_channel(
                addresses[name],
                credentials,
                [*self.OPTIONS, ("grpc.ssl_target_name_override", name)],
            )
            for name in peer.roster.neighbours(peer.name)
        }
        self._calls = {name: channel.unary_unary(self.METHOD) for name, channel in self._channels.items()}

    async def serve(self, answer: Callable[[str, bytes], Awaitable[bytes]]) -> None:
        async def answered(content: bytes, context: Any) -> bytes:
            return await answer(context.auth_context()["x509_common_name"][0].decode(), content)

        handlers = {"Ask": self._grpc.unary_unary_rpc_method_handler(answered)}
        self._server = self._grpc.aio.server(options=self.OPTIONS)
        self._server.add_generic_rpc_handlers(
            (self._grpc.method_handlers_generic_handler("peerbayes.Peer", handlers),)
        )
        credentials = self._grpc.ssl_server_credentials(
            [(self._peer.key, self._peer.certificate)], self._peer.authority, require_client_auth=True
        )
        self._server.add_secure_port(self._peer.settings.listen, credentials)
        await self._server.start()

    async def ask(self, neighbour: str, request: bytes, timeout: float) -> bytes:
        try:
            return bytes(await self._calls[neighbour](request, timeout=timeout))
        except self._grpc.aio.AioRpcError as error:
            raise ConnectionError(error.details()) from error

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        await self._server.stop(0)


def _own_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def inside() -> bool:
    """Print what a round costs without any transport, of this source tree and of others, in turn."""
    costs: dict[str, list[float]] = defaultdict(list)
    for _ in range(INSIDE_REPEATS):
        for tree in _trees():
            costs[tree].append(1000 * float(_in_tree(tree, "alone")))
    print(f"{PEERS} peers in one process, {SIZES[0]:,} bytes: milliseconds of processor, peer and round")
    for tree, each in costs.items():
        print(f"median {np.median(each):6.2f}, least {min(each):6.2f} of {INSIDE_REPEATS}: {tree}")
    return True


def _trees() -> list[str]:
    """Return the folders of source trees to be compared: this one, and those that were named."""
    return [str(Path(wire.__file__).parents[3]), *sys.argv[2:]]


def _in_tree(tree: str, command: str) -> str:
    """Return what a command of this file prints with the package of a source tree."""
    environment = {**os.environ, "PYTHONPATH": str(Path(tree).resolve())}
    run = [sys.executable, __file__, command]
    return subprocess.run(run, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


class Handed:
    """A transport whose requests are handed over by a call, and whose signatures are real."""

    peers: ClassVar[dict[str, "Handed"]] = {}

    def __init__(self, name: str) -> None:
        self.name, self.peers[name] = name, self
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._public = self._key.public_key()

    def follow(self, roster: Roster) -> None: ...
    def vouch(self, content: bytes) -> bytes:
        return b""

    def vouched(self, name: str, content: bytes, proof: bytes) -> None: ...

    async def serve(self, answer: Callable[[str, bytes], Awaitable[bytes]]) -> None:
        self.answer = answer

    async def ask(self, neighbour: str, request: bytes, timeout: float) -> bytes:
        await asyncio.sleep(0)
        async with asyncio.timeout(timeout):
            return await self.peers[neighbour].answer(self.name, request)

    def sign(self, content: bytes) -> bytes:
        return self._key.sign(content, ec.ECDSA(hashes.SHA256()))

    def signed(self, neighbour: str, signature: bytes, content: bytes) -> bool:
        self.peers[neighbour]._public.verify(signature, content, ec.ECDSA(hashes.SHA256()))
        return True

    async def close(self) -> None: ...


async def alone(folder: Path) -> float:
    """Return the seconds of the processor of a peer and round where all peers are in this process."""
    columns, rng = SIZES[0] // (8 * CLASSES * 2), np.random.default_rng(0)
    names = [f"peer-{number}" for number in range(PEERS)]
    terms = Terms("ring", "label", rounds=ROUNDS, strategy="exact")
    members = tuple(Member(name, f"localhost:{1 + place}", "0" * 64) for place, name in enumerate(names))
    links = tuple(zip(names, [*names[1:], names[0]], strict=True))
    roster = Roster("ring", terms.digest, 1, members, links, (), True)
    reached, marks = dict.fromkeys(names, 0), dict[int, float]()
    labels = np.arange(ROWS) % CLASSES

    def told(name: str, event: str, facts: dict[str, Any]) -> None:
        if event == "round":
            reached[name] = facts["round"]
            marks.setdefault(min(reached.values()), time.process_time())

    async def run(name: str) -> None:
        frame = pd.DataFrame(rng.normal(size=(ROWS, columns)), columns=[f"x{j}" for j in range(columns)])
        store, audit = Store(folder / f"{name}.sqlite"), AuditLog(folder / f"{name}.jsonl")
        with contextlib.closing(store), contextlib.closing(audit):
            peer = RunningPeer(
                Membership(name, terms, roster), frame, labels.astype(str), store, Handed(name), audit,
                folder / name / "model.peerbayes", on_event=partial(told, name),
            )  # fmt: skip
            (folder / name).mkdir()
            await peer.run()

    await asyncio.gather(*map(run, names))
    last = ROUNDS - PEERS  # none has ended by then, and evaluates its run
    return (marks[last] - marks[SETTLED]) / (PEERS * (last - SETTLED))


class Processes(NamedTuple):
    """What fifty processes cost, and one alone: seconds, and megabytes of a process at most."""

    alone: float
    """Until one process listens."""
    alone_processor: float
    ready: float
    """Until the last of fifty is ready for round 1."""
    processor: float
    """Of one of them, until then."""
    resident: float
    share: float
    """With pages that processes share counted in parts."""


def fifty() -> bool:
    """Print start-up time and memory of one process, and of fifty; return whether memory is within its limit."""
    costs: dict[str, list[Processes]] = defaultdict(list)
    for _ in range(REPEATS if len(sys.argv) > 2 else 1):
        for tree in _trees():
            costs[tree].append(Processes(*json.loads(_in_tree(tree, "started"))))
    for tree, each in costs.items():
        median = Processes(*np.median(each, axis=0))
        print(f"{tree}, medians of {len(each)}")
        print(
            f"    one alone listens after {median.alone:.2f} s, {median.alone_processor:.2f} s of processor"
        )
        print(f"    the last of {FIFTY} is ready for round 1 after {median.ready:.1f} s")
        print(f"    a process until then: {median.processor:.2f} s of processor")
        print(
            f"    a process at most: {median.resident:.0f} MB resident, {median.share:.0f} MB of its share "
            f"(at most {MEGABYTES:.0f})"
        )
    return bool(np.median([each.share for each in costs[_trees()[0]]]) <= MEGABYTES)


def started() -> Processes:
    """Return what fifty processes in a ring cost."""
    columns = 16
    with tempfile.TemporaryDirectory() as folder:
        network = _network(Path(folder), columns, FIFTY, FIFTY_ROUNDS)
        name = next(iter(network.homes))
        alone = [_listening(network, name) for _ in range(REPEATS)]
        began = time.time()
        for name in network.homes:
            network.start(name, "--quiet")
        memory, processor = Memory(network), Processor(network)

        def look() -> None:
            memory.sample()
            processor.sample()

        network.wait(look, every=0.2)
        first, used = [], []
        for name, home in network.homes.items():
            with contextlib.closing(Store(home.state_path, readonly=True)) as store:
                first.append(store.history()[0]["at"])
            used.append(processor.until(name, first[-1]))
    return Processes(*np.median(alone, axis=0), max(first) - began, float(np.mean(used)), *memory.mean())


def _listening(network: Loopback, name: str) -> tuple[float, float]:
    """Return the seconds until a peer listens, and those of its processor; it is ended then."""
    host, _, port = network.homes[name].load().settings.listen.rpartition(":")
    began = time.perf_counter()
    process = network.start(name, "--quiet")
    while True:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1.0):
            took = time.perf_counter() - began, _seconds_of(process.pid)
            break
        time.sleep(0.005)
    process.terminate()
    process.wait()
    del network.processes[name]
    return took


class Memory:
    """Megabytes of processes, at most: resident, and with pages that processes share counted in parts."""

    def __init__(self, network: Loopback) -> None:
        self._network = network
        self._most: dict[str, tuple[float, ...]] = {}

    def sample(self) -> None:
        for name, process in self._network.processes.items():
            with contextlib.suppress(OSError, StopIteration, ValueError):
                now, before = _megabytes(process.pid), self._most.get(name, (0.0, 0.0))
                self._most[name] = tuple(max(pair) for pair in zip(now, before, strict=True))

    def mean(self) -> tuple[float, float]:
        resident, own = np.mean(list(self._most.values()), axis=0)
        return float(resident), float(own)


def letter() -> bool:
    """Fifty peers of fifty rows, a random tree, 64 rounds: minutes, and memory of each process."""
    from peerbayes import network as topologies
    from peerbayes.data.datasets import load

    data = load("letter", paper=True)
    rng = np.random.default_rng(0)
    frame = data.frame.assign(letter=data.labels.to_numpy())
    parts = rng.permutation(len(frame))[: FIFTY * 50].reshape(FIFTY, 50)
    links = topologies.adjacency("tree", FIFTY, rng)
    pairs = [(int(a), int(b)) for a, b in zip(*links.nonzero(), strict=True) if a < b]
    with tempfile.TemporaryDirectory() as folder:
        terms = Terms("letter", "letter", rounds=64, strategy="exact")
        network = Loopback.create(Path(folder), terms, [frame.iloc[part] for part in parts], pairs)
        began = time.perf_counter()
        for name in network.homes:
            network.start(name, "--quiet")
        memory = Memory(network)
        network.wait(memory.sample, every=1.0)
        took = time.perf_counter() - began
        sent = []
        rounds = []
        for home in network.homes.values():
            with contextlib.closing(Store(home.state_path, readonly=True)) as store:
                history = store.history()
                rounds.append(history[-1]["at"] - history[0]["at"])
                assert history[-1]["round"] == 64 and not any(entry["missing"] for entry in history)
            lines = home.audit_path.read_text().splitlines()
            sent.append(sum(json.loads(line)["bytes"] for line in lines))
    resident, own = memory.mean()
    print(
        f"{FIFTY} processes, 64 rounds of letter: {took:.0f} s with their start, rounds alone {np.mean(rounds):.0f} s"
    )
    print(f"a process at most: {resident:.0f} MB resident, {own:.0f} MB of its share (aim {MEGABYTES:.0f})")
    print(f"sent by a peer: {np.mean(sent) / 1e6:.2f} MB")
    return own <= MEGABYTES


def _megabytes(process: int) -> tuple[float, float]:
    """Resident, and with pages that processes share counted in parts."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    found = [
        next(line for line in text.splitlines() if line.startswith(f"{what}:")) for what in ("Rss", "Pss")
    ]
    return tuple(float(line.split()[1]) / 1024 for line in found)


COMMANDS: dict[str, Callable[[], bool]] = {"ring": ring, "inside": inside, "fifty": fifty, "letter": letter}

if __name__ == "__main__":
    if sys.argv[1:2] == ["bare"]:
        print(*asyncio.run(bare(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])))
    elif sys.argv[1:] == ["alone"]:
        with tempfile.TemporaryDirectory() as here:
            print(asyncio.run(alone(Path(here))))
    elif sys.argv[1:] == ["started"]:
        print(json.dumps(started()))
    elif sys.argv[1:2] in (["inside"], ["fifty"]) or (len(sys.argv) == 2 and sys.argv[1] in COMMANDS):
        sys.exit(0 if COMMANDS[sys.argv[1]]() else 1)
    else:
        sys.exit(__doc__)
