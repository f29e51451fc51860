"""Real peers that learn by exact sums over a tree: where the simulator ends, after a restart, and without a peer."""

import asyncio
import contextlib

import networkx as nx
import numpy as np
import pytest

import peerbayes as pb
from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.state.store import Store
from shared.peers_in_memory import DENSE, SOON, ended, peers_of, same_as_simulated, shared_out, simulated

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.mark.parametrize(("family", "start"), [("naive-bayes", "uniform"), ("qda", "ml"), ("tan", "uniform")])
def test_peers_end_where_the_simulator_does(family, start, tmp_path, rng):
    terms = Terms("test", "label", family=family, strategy="tree-sum", start=start, rounds=20)
    _, run = same_as_simulated(tmp_path, terms, DENSE, shared_out(rng, missing=family == "naive-bayes"))
    assert len({run.stats[peer].tobytes() for peer in range(5)}) == 1
    with contextlib.closing(Store(tmp_path / "p1" / "state.sqlite", readonly=True)) as store:
        assert store.sums("round 20") and not store.sums("round 19")  # what nobody needs is not kept


def test_a_peer_that_starts_again_changes_nothing(tmp_path, rng):
    terms, shared = Terms("test", "label", strategy="tree-sum", rounds=12), shared_out(rng)
    peers = peers_of(tmp_path, terms, DENSE, shared)

    async def main():
        tasks = {name: peers.start(name) for name in peers.names}
        await peers.until(lambda: peers.nodes["p3"].session.round_index >= 5)
        await ended(tasks["p3"])
        tasks["p3"] = peers.start("p3")
        return await asyncio.wait_for(asyncio.gather(*tasks.values()), SOON)

    reached = np.stack(asyncio.run(main()))
    assert np.abs(reached - simulated(shared, DENSE, terms).stats).max() <= 1e-9
    assert peers.rounds("p3") == list(range(terms.rounds + 1))


@pytest.mark.long
def test_without_a_peer_the_run_ends_with_the_last_sum_and_everybody_says_so(tmp_path, rng):
    X, y, parts = shared_out(rng)
    shared = X, y, [parts[0], parts[1], np.concatenate(parts[2:])]
    terms = Terms("test", "label", strategy="tree-sum", rounds=4000, limits=Limits(deadline=4.0))
    peers = peers_of(tmp_path, terms, nx.path_graph(3), shared)

    async def main():
        tasks = {name: peers.start(name, linger=0.2) for name in peers.names}
        await peers.until(lambda: peers.nodes["p2"].session.round_index >= 3)
        await ended(tasks.pop("p2"))
        return await asyncio.wait_for(asyncio.gather(*tasks.values()), SOON)

    reached = asyncio.run(main())
    for name, stats in zip(("p0", "p1"), reached, strict=True):
        [sentence] = peers.nodes[name]._rounds.notes
        assert sentence in peers.nodes[name].verdict.sentences and "nothing came from" in sentence
        done = peers.nodes[name].session.round_index
        alone = pb.simulate(
            X, y, peers=3, partition=shared[2], topology=nx.path_graph(3), strategy="tree-sum", rounds=done,
            references=False, evaluate_every=0, test=(X, y),
        )  # fmt: skip
        assert 3 <= done < 4000 and np.abs(stats - alone.stats[0]).max() <= 1e-6
