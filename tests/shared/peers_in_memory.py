"""Peers in one event loop over the in-memory network, their tables, and the simulator's run that they should equal."""

import asyncio
import contextlib

import networkx as nx
import numpy as np
import pandas as pd

import peerbayes as pb
from peerbayes.peer.identity.roster import Member, Roster
from peerbayes.peer.running_peer import Membership, RunningPeer
from peerbayes.peer.state.audit_log import AuditLog
from peerbayes.peer.state.store import Store
from shared.commands import HANG
from shared.memory_transport import Hub

SOON = HANG  # what takes longer hangs
DENSE = nx.Graph(
    [(0, 1), (1, 2), (2, 3), (3, 4), (0, 3), (1, 4)]
)  # gossip agrees on a start within 300 rounds
SIZES = (11, 40, 25, 60, 34)  # rows of each peer


def table(rng, missing=True):
    """Continuous, discrete and missing values; the classes are told apart by all columns."""
    rows = sum(SIZES)
    y = rng.choice(["low", "mid", "top"], rows, p=[0.5, 0.3, 0.2])
    level = np.array([{"low": 0.0, "mid": 1.0, "top": 2.0}[label] for label in y])
    X = pd.DataFrame(
        {
            "height": 3.0 * level + rng.normal(size=rows) + 170.0,
            "weight": 1e-3 * (level + rng.normal(size=rows)),
            "colour": np.where(rng.random(rows) < 0.25 * (1 + level), "red", "blue"),
            "size": rng.integers(0, 3, rows).astype(str),
        }
    )
    if missing:
        X.loc[rng.random(rows) < 0.15, "height"] = np.nan
        X.loc[rng.random(rows) < 0.10, "colour"] = None
    return X, y


def shared_out(rng, missing=True):
    """The first peer has few rows, no "top" and only blue; the others have the rest."""
    X, y = table(rng, missing)
    narrow = np.flatnonzero((y != "top") & (X["colour"] == "blue"))[: SIZES[0]]
    others = rng.permutation(np.setdiff1d(np.arange(len(y)), narrow))
    return X, y, [narrow, *np.split(others, np.cumsum(SIZES[1:])[:-1])]


def network(terms, graph):
    """A closed roster with a member for each node of a graph."""
    names = [f"p{place}" for place in sorted(graph)]
    members = tuple(Member(name, f"localhost:{place + 1}", "0" * 64) for place, name in enumerate(names))
    links = tuple((names[a], names[b]) for a, b in graph.edges)
    return Roster("test", terms.digest, 1, members, links, (), True)


def running(node):
    """Return a task of the running loop in which a node runs; its files are closed at its end, however that comes."""

    async def work():
        try:
            return await node.run()
        finally:
            node.store.close()
            node.audit.close()

    return asyncio.create_task(work())


class Peers:
    """Nodes with a folder each, and everything that they told."""

    def __init__(self, folder, terms, graph, tables):
        self.folder, self.terms, self.roster = folder, terms, network(terms, graph)
        self.names = [member.name for member in self.roster.members]
        self.tables = dict(zip(self.names, tables, strict=True))
        self.hub, self.told, self.nodes = Hub(), {name: [] for name in self.names}, {}
        self.tasks = []

    def node(self, name, **more):
        home = self.folder / name
        home.mkdir(exist_ok=True)
        frame, labels = self.tables[name]
        self.nodes[name] = RunningPeer(
            Membership(name, self.terms, self.roster), frame.reset_index(drop=True), labels,
            Store(home / "state.sqlite"), self.hub.transport(name), AuditLog(home / "audit.jsonl"),
            home / "model.peerbayes", on_event=lambda *event: self.told[name].append(event), **more,
        )  # fmt: skip
        return self.nodes[name]

    def start(self, name, **more):
        """A task of the running loop; its files are closed at its end, however that comes."""
        self.tasks.append(running(self.node(name, **more)))
        return self.tasks[-1]

    async def all(self, **more):
        """Everybody's statistics [N, C, K], or what stopped it."""
        tasks = [self.start(name, **more) for name in self.names]
        try:
            return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), SOON)
        finally:
            for task in tasks:
                task.cancel()

    async def all_with_stops(self, name, moments):
        """Everybody runs to the end, and one peer is stopped and started again once it has done so many rounds."""
        tasks = {peer: self.start(peer) for peer in self.names}
        for moment in moments:
            await self.until(lambda moment=moment: self.nodes[name].session.round_index >= moment)
            tasks[name].cancel()
            await asyncio.gather(tasks[name], return_exceptions=True)
            tasks[name] = self.start(name)
            await asyncio.sleep(0.05)
        await asyncio.wait_for(asyncio.gather(*tasks.values()), HANG)

    def history(self, name):
        with contextlib.closing(Store(self.folder / name / "state.sqlite", readonly=True)) as store:
            return store.history()

    def rounds(self, name):
        return [entry["round"] for entry in self.history(name)]

    async def until(self, what):
        """Wait for what is to come; a peer that ends with anything but an error of peers ends the wait."""
        async with asyncio.timeout(SOON):
            while not what():
                for task in self.tasks:
                    ended = task.done() and not task.cancelled()
                    if ended and not isinstance(task.exception(), pb.PeerbayesError | None):
                        raise task.exception()
                await asyncio.sleep(0.01)


def peers_of(folder, terms, graph, shared):
    X, y, parts = shared
    return Peers(folder, terms, graph, [(X.iloc[part], y[part]) for part in parts])


def simulated(shared, graph, terms, **more):
    X, y, parts = shared
    return pb.simulate(
        X, y, peers=len(parts), partition=parts, topology=graph, family=terms.family, strategy=terms.strategy,
        start=terms.start, rounds=terms.rounds, start_rounds=0 if terms.start == "uniform" else 300,
        references=False, evaluate_every=0, test=(X, y), messages=terms.messages, exchanges=terms.exchanges, **more,
    )  # fmt: skip


def same_as_simulated(folder, terms, graph, shared):
    """Peers end with the simulator's statistics; all have one schema, which is the simulator's."""
    peers = peers_of(folder, terms, graph, shared)
    reached = np.stack(asyncio.run(peers.all()))
    run = simulated(shared, graph, terms)
    agreed = [node.session.agreed for node in peers.nodes.values()]
    assert len({own.schema.fingerprint for own in agreed}) == 1
    assert {own.strategy for own in agreed} == {run.configuration["strategy"]}
    assert agreed[0].schema.names == run.schema.names and agreed[0].schema.classes == run.schema.classes
    assert np.abs(reached - run.stats).max() <= 1e-9
    for name in peers.names:
        assert peers.rounds(name) == list(range(terms.message_rounds + 1))
        assert not any(entry["missing"] for entry in peers.history(name))
    return peers, run


async def ended(task):
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def refused_everywhere(peers, error):
    """What every peer said when it stopped; nobody hangs."""
    found = asyncio.run(peers.all())
    assert all(isinstance(problem, error) for problem in found), found
    return [str(problem) for problem in found]
