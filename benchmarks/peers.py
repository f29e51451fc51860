"""Real peers: how long a round takes, beside the bare transport, and what fifty of them cost.

    python benchmarks/peers.py ring              8 processes in a ring, messages of 100 KB and of 1 MB
    PEERBAYES_DATA=folder python benchmarks/peers.py letter   50 processes, 64 rounds of the letter dataset

The bare transport is the same processes, certificates and messages without statistics, store, audit log and checks:
each asks its two neighbours for the bytes of round t and goes on when it has both.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")  # eight processes share two cores

import numpy as np
import pandas as pd

from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.transport import Grpc, Unreachable
from peerbayes.peer.state.folder import Home
from peerbayes.peer.state.store import Store

PEERS, ROUNDS = 8, 100
LIMITS = {100_000: 20.0, 1_000_000: 100.0}  # milliseconds a round, at most
CLASSES, ROWS = 10, 20
FIFTY, MEGABYTES = 50, 100.0


def ring() -> bool:
    met = True
    print(f"{PEERS} processes in a ring, {ROUNDS} rounds")
    print(f"{'bytes':>10}{'node, ms':>10}{'bare, ms':>10}{'ratio':>8}{'limit, ms':>11}")
    for size, limit in LIMITS.items():
        columns = size // (8 * CLASSES * 2)
        with tempfile.TemporaryDirectory() as folder:
            network = _network(Path(folder), columns)
            node = _nodes(network)
            bare = _bare(network, 8 * CLASSES * (2 * columns + 1))
        met &= node <= limit
        told = "" if node <= limit else "  MISSED"
        print(
            f"{8 * CLASSES * (2 * columns + 1):>10,}{node:>10.1f}{bare:>10.1f}{node / bare:>8.1f}{limit:>11.0f}{told}"
        )
    return met


def _network(folder: Path, columns: int) -> Loopback:
    rng = np.random.default_rng(0)
    names = [f"x{j}" for j in range(columns)]
    tables = [
        pd.DataFrame(rng.normal(size=(ROWS, columns)), columns=names).assign(label=np.arange(ROWS) % CLASSES)
        for _ in range(PEERS)
    ]
    links = [(place, place + 1) for place in range(PEERS - 1)] + [(0, PEERS - 1)]
    terms = Terms("ring", "label", rounds=ROUNDS, strategy="exact")
    return Loopback.create(folder, terms, tables, links)


def _nodes(network: Loopback) -> float:
    """Milliseconds a round, by the peers' own clocks: from round 10 to the last."""
    for name in network.homes:
        network.start(name, "--quiet")
    network.wait()
    took = []
    for home in network.homes.values():
        with contextlib.closing(Store(home.state_path, readonly=True)) as store:
            history = store.history()
        took.append((history[-1]["at"] - history[10]["at"]) / (len(history) - 11))
    return 1000 * float(np.mean(took))


def _bare(network: Loopback, size: int) -> float:
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "bare", str(home.folder), str(size)], stdout=subprocess.PIPE
        )
        for home in network.homes.values()
    ]
    return 1000 * float(np.mean([float(process.communicate()[0]) for process in started]))


async def bare(folder: Path, size: int) -> float:
    """Seconds a round of one process of the bare ring."""
    peer = Home(folder).load()
    neighbours = peer.roster.neighbours(peer.name)
    transport = Grpc(peer, lambda *facts: None)
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
            except Unreachable:
                await asyncio.sleep(0.05)

    await transport.serve(answer)
    began = 0.0
    for _ in range(ROUNDS):
        await asyncio.gather(*map(ask, neighbours))
        turn += 1
        news.set()
        news = asyncio.Event()
        if turn == 11:
            began = time.perf_counter()
    took = (time.perf_counter() - began) / (ROUNDS - 10)
    while len(last) < len(neighbours):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    await transport.close()
    return took


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
        most: dict[str, tuple[float, float]] = {}

        def look() -> None:
            for name, process in network.processes.items():
                with contextlib.suppress(OSError, StopIteration, ValueError):
                    now = _megabytes(process.pid)
                    most[name] = tuple(max(a, b) for a, b in zip(now, most.get(name, (0, 0)), strict=True))

        network.wait(look, every=1.0)
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
    resident, own = (np.mean([pair[k] for pair in most.values()]) for k in (0, 1))
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


if __name__ == "__main__":
    if sys.argv[1:2] == ["bare"]:
        print(asyncio.run(bare(Path(sys.argv[2]), int(sys.argv[3]))))
    elif sys.argv[1:] in (["ring"], ["letter"]):
        sys.exit(0 if {"ring": ring, "letter": letter}[sys.argv[1]]() else 1)
    else:
        sys.exit(__doc__)
