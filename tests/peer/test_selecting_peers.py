"""Real peers that choose a round by held-out rows: where the simulator ends, and what they say when a sum fails."""

import asyncio

import networkx as nx
import numpy as np
import pytest

import peerbayes as pb
from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.learning import selecting
from peerbayes.simulation.population import Assignment
from peerbayes.simulation.settings import SimulationSettings
from shared.peers_in_memory import DENSE, SOON, Peers, ended, shared_out, table

pytestmark = pytest.mark.usefixtures("impatient")

SHARE = 0.4


def split_peers(folder, terms, graph, shared):
    """Peers, their held-out rows, and the arguments of the simulation with the same rows held out."""
    X, y, parts = shared
    arguments = {
        "peers": len(parts), "partition": parts, "topology": graph, "family": terms.family, "strategy": terms.strategy,
        "start": terms.start, "rounds": terms.rounds, "references": False, "evaluate_every": 0, "test": (X, y),
        "messages": terms.messages, "exchanges": terms.exchanges, "hold_out": SHARE, "select": terms.select,
        "patience": terms.patience, "start_rounds": 0 if terms.start == "uniform" else 300,
    }  # fmt: skip
    assigned = Assignment.of(X, y, SimulationSettings(arguments)).holding_out(SHARE, 0)
    peers = Peers(folder, terms, graph, [(X.iloc[part], y[part]) for part in assigned.parts])
    away = {name: (X.iloc[part], y[part]) for name, part in zip(peers.names, assigned.held_out, strict=True)}
    return peers, away, arguments


def events(peers, name, event):
    return [facts for what, facts in peers.told[name] if what == event]


@pytest.mark.parametrize(
    ("strategy", "start", "messages"),
    [("exact", "ml", "float64"), ("exact", "uniform", "int8"), ("relay", "uniform", "float64")],
)
def test_peers_keep_and_stop_where_the_simulator_does(strategy, start, messages, tmp_path, rng):
    """Some labels are noise, so that log loss rises again: the run stops before its limit, and keeps another round."""
    X, y, parts = shared_out(rng)
    y = np.where(rng.random(len(y)) < 0.3, rng.permutation(y), y)
    terms = Terms(
        "test", "label", strategy=strategy, start=start, rounds=96, lr=0.5, messages=messages, select="held-out",
        patience=1,
    )  # fmt: skip
    peers, away, arguments = split_peers(tmp_path, terms, DENSE, (X, y, parts))

    async def main():
        tasks = [peers.start(name, away=away[name]) for name in peers.names]
        return await asyncio.wait_for(asyncio.gather(*tasks), SOON)

    reached = np.stack(asyncio.run(main()))
    run = pb.simulate(X, y, lr=0.5, **arguments)
    assert run.summary()["rounds"] < terms.rounds
    assert np.abs(reached - run.stats).max() <= 1e-9
    exchanges = terms.message_rounds // terms.rounds
    for place, name in enumerate(peers.names):
        assert peers.rounds(name)[-1] == run.summary()["rounds"] * exchanges
        assert run.made["selection"] in peers.nodes[name].verdict.sentences
        stored = pb.load(tmp_path / name / "model.peerbayes").statistics_.expressed(run.schema).values
        assert np.abs(stored - run.statistics(place).values).max() <= 1e-9
        fitted = pb.load(tmp_path / name / "model.peerbayes").scaling_
        assert (
            fitted.temperature == pytest.approx(run.scaling.temperature, abs=1e-9)
            and fitted.temperature != 1.0
        )
        assert np.abs(np.array(fitted.bias) - run.scaling.bias).max() <= 1e-9
        assert fitted.noise == pytest.approx(run.scaling.noise, abs=1e-9)
        of_rows = pb.load(tmp_path / name / "model.peerbayes").statistics_.likelihood
        np.testing.assert_allclose(of_rows, run.likelihood, rtol=1e-9, atol=1e-9)


def test_a_peer_that_starts_again_keeps_the_same_round(tmp_path, rng):
    X, y, parts = shared_out(rng)
    terms = Terms("test", "label", strategy="exact", rounds=20, select="held-out")
    peers, away, arguments = split_peers(tmp_path, terms, DENSE, (X, y, parts))

    async def main():
        tasks = {name: peers.start(name, away=away[name]) for name in peers.names}
        for name, round_index in (("p3", 8), ("p0", 13)):
            await peers.until(lambda: peers.nodes[name].session.round_index >= round_index)  # noqa: B023
            await ended(tasks[name])
            tasks[name] = peers.start(name, away=away[name])
        return await asyncio.wait_for(asyncio.gather(*tasks.values()), SOON)

    reached = np.stack(asyncio.run(main()))
    run = pb.simulate(X, y, **arguments)
    assert np.abs(reached - run.stats).max() <= 1e-9
    assert all(run.made["selection"] in node.verdict.sentences for node in peers.nodes.values())


def test_where_a_peer_vanishes_the_last_round_is_kept_and_everybody_says_so(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(selecting, "DEADLINES", 150)  # until it vanishes, nobody gives up a sum
    X, y = table(rng)
    shared = X, y, np.array_split(rng.permutation(len(y)), 4)
    limits = Limits(deadline=0.2, quorum=0.1)
    terms = Terms("test", "label", strategy="exact", rounds=20, select="held-out", limits=limits)
    peers, away, _ = split_peers(tmp_path, terms, nx.star_graph(3), shared)

    async def main():
        tasks = {name: peers.start(name, away=away[name], linger=0.2) for name in peers.names}
        await peers.until(lambda: peers.nodes["p2"].session.round_index >= 10)
        await ended(tasks.pop("p2"))
        monkeypatch.setattr(selecting, "DEADLINES", 4)
        return await asyncio.wait_for(asyncio.gather(*tasks.values()), SOON)

    asyncio.run(main())
    for name in ("p0", "p1", "p3"):
        assert peers.rounds(name)[-1] == terms.rounds
        [sentence] = [facts["reason"] for facts in events(peers, name, "not selected")]
        assert sentence in peers.nodes[name].verdict.sentences
        assert "after round 16 nothing came from" in sentence
        assert [facts["kept"] for facts in events(peers, name, "checked")] == [8]
    assert "p2" in events(peers, "p0", "not selected")[0]["reason"]


def test_without_held_out_rows_the_last_round_is_kept(tmp_path, rng):
    X, y, parts = shared_out(rng)
    terms = Terms("test", "label", strategy="exact", rounds=9, select="held-out")
    peers = Peers(tmp_path, terms, DENSE, [(X.iloc[part], y[part]) for part in parts])
    reached = np.stack(asyncio.run(peers.all()))
    last = pb.simulate(
        X,
        y,
        peers=5,
        partition=parts,
        topology=DENSE,
        strategy="exact",
        rounds=9,
        references=False,
        test=(X, y),
    )
    assert np.abs(reached - last.stats).max() <= 1e-9
    assert "hold out 0 rows" in events(peers, "p1", "not selected")[0]["reason"]
