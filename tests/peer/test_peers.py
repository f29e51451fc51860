"""Peers in one event loop over the in-memory network: what they end with, what they refuse, whom they wait for."""

import asyncio
from dataclasses import replace

import msgspec
import networkx as nx
import numpy as np
import pytest

import peerbayes as pb
from peerbayes import network as topologies
from peerbayes.errors import PeerError, SchemaMismatch
from peerbayes.learning.strategies import STRATEGIES
from peerbayes.peer.agreement.negotiate import data_digest, refuse_large_statistics
from peerbayes.peer.agreement.summary import OwnTable
from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.protocol import wire
from peerbayes.peer.running_peer import RunningPeer
from peerbayes.peer.state import store as store_module
from peerbayes.peer.state.audit_log import entries
from shared.own_strategy import Momentum
from shared.peers_in_memory import (
    DENSE,
    SIZES,
    SOON,
    ended,
    peers_of,
    refused_everywhere,
    same_as_simulated,
    shared_out,
    simulated,
    table,
)

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.mark.parametrize("start", ["uniform", "marginal", "ml"])
@pytest.mark.parametrize(
    "strategy", ["crc", "exact", "tracking", "relay", "auto", "local", "consensus-ml", "dsgd"]
)
def test_peers_end_where_the_simulator_does(strategy, start, tmp_path, rng):
    terms = Terms("test", "label", strategy=strategy, start=start, rounds=12)
    peers, run = same_as_simulated(tmp_path, terms, DENSE, shared_out(rng))
    for place, name in enumerate(peers.names):
        path = tmp_path / name / "model.peerbayes"
        if run.of_weights:
            assert not path.exists()
        else:
            stored = pb.load(path).statistics_.expressed(run.schema).values
            assert np.abs(stored - run.statistics(place).values).max() <= 1e-9


@pytest.mark.parametrize("start", ["uniform", "ml"])
def test_peers_run_a_strategy_of_ones_own(start, tmp_path, rng, monkeypatch):
    """One that only its own file knows of: terms name it, its declaration and `planned` do the rest."""
    monkeypatch.setitem(STRATEGIES, "momentum", Momentum)
    terms = Terms("test", "label", strategy="momentum", start=start, rounds=12)
    peers, run = same_as_simulated(tmp_path, terms, DENSE, shared_out(rng))
    assert peers.nodes["p0"].session.agreed.learner.strategy == Momentum(0.5)
    assert run.configuration["strategy"] == "momentum"


@pytest.mark.parametrize("strategy", ["exact", "relay"])
@pytest.mark.parametrize("family", ["naive-bayes", "qda", "lda"])
def test_every_family_ends_where_the_simulator_does(family, strategy, tmp_path, rng):
    terms = Terms("test", "label", family=family, strategy=strategy, start="ml", rounds=12)
    same_as_simulated(tmp_path, terms, DENSE, shared_out(rng, missing=family == "naive-bayes"))


@pytest.mark.parametrize(("alike", "chosen"), [(True, "exact"), (False, "relay")])
def test_auto_measures_how_far_apart_data_are(alike, chosen, tmp_path, rng):
    X, y = table(rng)
    order = rng.permutation(len(y)) if alike else np.argsort(y)
    terms = Terms("test", "label", strategy="auto", rounds=4)  # too few for everybody to be near
    shared = X, y, np.split(order, np.cumsum(SIZES)[:-1])
    peers, run = same_as_simulated(tmp_path, terms, nx.path_graph(5), shared)
    agreed = peers.nodes["p0"].session.agreed
    assert agreed.strategy == chosen and agreed.reason == run.made["choice"]
    [facts] = [facts for event, facts in peers.told["p0"] if event == "agreed"]
    assert facts["strategy"] == agreed.reason  # the log says why


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["crc", "exact", "tracking", "relay", "auto", "dsgd"])
def test_a_peer_that_stops_and_starts_changes_nothing(strategy, tmp_path, rng):
    terms, shared = Terms("test", "label", strategy=strategy, rounds=24), shared_out(rng)
    peers = peers_of(tmp_path, terms, DENSE, shared)

    async def main():
        tasks = {name: peers.start(name) for name in peers.names}
        for name, turn in (("p3", 2), ("p0", 5), ("p3", 8)):
            await peers.until(lambda name=name, turn=turn: peers.nodes[name].session.round_index >= turn)
            await ended(tasks[name])
            tasks[name] = peers.start(name)
        return await asyncio.wait_for(asyncio.gather(*tasks.values()), SOON)

    reached = np.stack(asyncio.run(main()))
    assert np.abs(reached - simulated(shared, DENSE, terms).stats).max() <= 1e-9
    for name in peers.names:
        assert peers.rounds(name) == list(range(terms.rounds + 1))
        assert len(list(entries(tmp_path / name / "audit.jsonl"))) > terms.rounds  # and its chain holds
    assert "resumed" in [what for what, _ in peers.told["p3"]]


def test_a_sum_asked_for_while_others_may_still_join_is_not_there_yet(tmp_path, rng):
    """Or a member that asks too early would settle the tree on those who have joined so far."""
    graph, terms, (X, y, parts) = (
        nx.path_graph(3),
        Terms("test", "label", rounds=6, strategy="exact"),
        shared_out(rng),
    )
    shared = X, y, [parts[0], parts[1], np.concatenate(parts[2:])]
    peers = peers_of(tmp_path, terms, graph, shared)
    closed = replace(peers.roster, version=2)
    early = Roster("test", terms.digest, 1, closed.members[:2], closed.links[:1])

    async def main():
        peers.roster = early
        tasks = [peers.start("p1", newer=lambda _: closed)]
        await peers.until(lambda: "open" in [what for what, _ in peers.told["p1"]])
        asked = wire.Request(wire.VERSION, early.run, "p0", "sum", phase="columns", roster=1)
        told = msgspec.msgpack.decode(
            await peers.nodes["p1"].answer("p0", wire.encode(asked)), type=wire.Reply
        )
        assert told.status == "not yet"
        peers.nodes["p1"].adopt(b"the roster that was signed last")
        peers.roster = closed
        tasks = [peers.start("p0"), *tasks, peers.start("p2")]
        return await asyncio.wait_for(asyncio.gather(*tasks), SOON)

    assert np.abs(np.stack(asyncio.run(main())) - simulated(shared, graph, terms).stats).max() <= 1e-9


def test_tables_that_do_not_fit_are_refused_at_every_peer(tmp_path, rng):
    X, y, parts = shared_out(rng)
    peers = peers_of(tmp_path, Terms("test", "label", rounds=4, strategy="exact"), DENSE, (X, y, parts))
    frame, labels = peers.tables["p2"]
    peers.tables["p2"] = frame.assign(height="tall"), labels
    frame, labels = peers.tables["p4"]
    peers.tables["p4"] = frame.drop(columns="size").assign(shape="round"), labels
    for told in refused_everywhere(peers, SchemaMismatch):
        assert "column 'height' is continuous at p0, p1, p3, text at p2" in told
        assert "column 'size' is at 4 of 5 peers" in told
        assert "column 'shape' is at 1 of 5 peers (at p4, for one)" in told


def test_labels_that_do_not_fit_are_refused_at_every_peer(tmp_path, rng):
    peers = peers_of(tmp_path, Terms("test", "label", rounds=4, strategy="exact"), DENSE, shared_out(rng))
    frame, labels = peers.tables["p1"]
    peers.tables["p1"] = frame, np.arange(len(labels)) % 2
    for told in refused_everywhere(peers, SchemaMismatch):
        assert "the label is text at some peers and a number at others" in told


@pytest.mark.parametrize("start", ["uniform", "marginal", "ml"])
@pytest.mark.parametrize(
    ("family", "strategy"), [("qda", "exact"), ("lda", "crc"), ("tan", "exact"), ("tan", "relay")]
)
@pytest.mark.long
def test_peers_with_missing_values_end_where_the_simulator_does(family, strategy, start, tmp_path, rng):
    terms = Terms("test", "label", family=family, strategy=strategy, start=start, rounds=12)
    peers, _ = same_as_simulated(tmp_path, terms, DENSE, shared_out(rng))
    plausible = peers.nodes["p0"].session.agreed.plausible
    assert plausible.sums is None  # completed rows move them
    tied = (
        np.flatnonzero(abs(plausible.ties[:, 1:]).sum(axis=0)) + 1
    )  # colour is missing somewhere, size is not
    assert plausible.ties.shape[0] > (1 if family == "tan" else 0) and len(tied) >= 3


@pytest.mark.long
@pytest.mark.parametrize("family", ["qda", "tan"])
@pytest.mark.parametrize("strategy", ["tracking", "auto", "consensus-ml"])
def test_other_strategies_complete_missing_values_too(family, strategy, tmp_path, rng):
    terms = Terms("test", "label", family=family, strategy=strategy, start="ml", rounds=4)
    same_as_simulated(tmp_path, terms, nx.path_graph(5) if strategy == "auto" else DENSE, shared_out(rng))


def test_where_nobody_misses_a_value_class_sums_are_checked(tmp_path, rng):
    terms = Terms("test", "label", family="tan", start="ml", rounds=4, strategy="exact")
    peers, _ = same_as_simulated(tmp_path, terms, DENSE, shared_out(rng, missing=False))
    assert peers.nodes["p0"].session.agreed.plausible.sums is not None


def test_weights_of_no_model_complete_nothing(tmp_path, rng):
    terms, shared = Terms("test", "label", family="qda", strategy="dsgd", rounds=4), shared_out(rng)
    for told in refused_everywhere(peers_of(tmp_path, terms, DENSE, shared), PeerError):
        assert "strategy 'dsgd' with missing values, which qda completes by a model" in told
    with pytest.raises(ValueError, match=r"dsgd. with missing values, .* dsgd learns no generative model"):
        simulated(shared, DENSE, terms)


def test_rows_are_known_by_their_columns_values_labels_and_order(rng):
    X, y = table(rng)
    labels = np.array(y)
    labels[0] = "top" if labels[0] != "top" else "low"
    digests = {
        data_digest(frame, given)
        for frame, given in (
            (X, y), (X, labels), (X.rename(columns={"size": "sizes"}), y), (X.iloc[::-1], y), (X.iloc[:-1], y[:-1]),
            (X.assign(weight=X["weight"] + 1e-12), y), (X[X.columns[::-1]], y),
        )
    }  # fmt: skip
    assert len(digests) == 7 and data_digest(X.copy(), np.array(y)) in digests


def test_too_few_rows_and_too_large_messages_are_refused_before_anything_is_sent(rng):
    X, y = table(rng)
    few = Terms("test", "label", limits=Limits(rows=len(y)), strategy="exact")
    assert OwnTable.of(X, y, few).rows == len(y)
    with pytest.raises(PeerError, match=f"has {len(y) - 1} rows; the agreement asks for {len(y)} or more"):
        OwnTable.of(X.iloc[1:], y[1:], few)
    small = Terms("test", "label", limits=Limits(message_bytes=8 * 3 * 50), strategy="exact")
    refuse_large_statistics(small, 3, 50)
    for terms, size in ((small, 51), (replace(small, strategy="tracking"), 26)):
        with pytest.raises(PeerError, match=r"messages of .* bytes; the agreement allows 1,200"):
            refuse_large_statistics(terms, 3, size)


def test_rows_that_changed_between_two_starts_are_refused(tmp_path, rng):
    terms, shared = Terms("test", "label", rounds=6, strategy="exact"), shared_out(rng)
    peers = peers_of(tmp_path, terms, DENSE, shared)

    async def main():
        tasks = {name: peers.start(name) for name in peers.names}
        await peers.until(lambda: peers.nodes["p1"].session.round_index >= 2)
        await ended(tasks["p1"])
        before = peers.tables["p1"]
        peers.tables["p1"] = before[0].assign(weight=before[0]["weight"] + 1e-12), before[1]
        with pytest.raises(PeerError, match="other rows: the data has changed"):
            await asyncio.wait_for(peers.start("p1"), SOON)
        peers.tables["p1"] = before
        tasks["p1"] = peers.start("p1")
        return await asyncio.wait_for(asyncio.gather(*tasks.values()), SOON)

    reached = np.stack(asyncio.run(main()))
    assert np.abs(reached - simulated(shared, DENSE, terms).stats).max() <= 1e-9


def test_a_goodbye_that_a_break_swallows_is_said_again(tmp_path, rng, monkeypatch):
    """Who leaves first is the only one to know that all rounds are done; then its links break for two seconds."""
    terms, broken = Terms("test", "label", strategy="crc", rounds=4), []
    peers, say = peers_of(tmp_path, terms, DENSE, shared_out(rng)), RunningPeer._say_goodbye

    async def said_in_a_break(self, rounds):
        if not broken:
            broken.append(self.session.name)
            for name in self.session.neighbours:
                self.session.neighbour(name).told = rounds - 1
                peers.nodes[name].session.neighbour(self.session.name).done = rounds - 1
            links = {frozenset((self.session.name, name)) for name in self.session.neighbours}
            peers.hub.cut |= links
            asyncio.get_running_loop().call_later(2.0, peers.hub.cut.clear)
        await say(self, rounds)

    monkeypatch.setattr(RunningPeer, "_say_goodbye", said_in_a_break)
    asyncio.run(peers.all(linger=25.0))
    assert broken
    for name in peers.names:
        assert not [event for event, _ in peers.told[name] if event == "left behind"]


@pytest.mark.long
def test_rounds_go_on_without_a_peer_that_does_not_come_back(tmp_path, rng):
    limits = Limits(deadline=0.2, quorum=0.5)
    terms = Terms("test", "label", strategy="crc", rounds=20, limits=limits)
    peers = peers_of(tmp_path, terms, DENSE, shared_out(rng))

    async def main():
        tasks = {name: peers.start(name, linger=0.5) for name in peers.names}
        await peers.until(lambda: peers.nodes["p4"].session.round_index >= 3)
        await ended(tasks.pop("p4"))
        return await asyncio.wait_for(asyncio.gather(*tasks.values()), SOON)

    reached = asyncio.run(main())
    missing = {name: [set(entry["missing"]) for entry in peers.history(name)] for name in peers.names}
    for name in ("p1", "p3"):  # its neighbours
        assert sum("p4" in lost for lost in missing[name]) >= 4
        assert ("left behind", {"neighbours": ["p4"]}) in peers.told[name]
    assert peers.rounds("p4")[-1] <= 16
    for place, stats in enumerate(reached):
        assert np.abs(stats - as_weighed(peers, missing)[place]).max() <= 1e-9


def as_weighed(peers, missing):
    """crc with the matrix of each round: the weight of whoever was missing goes to the peer itself."""
    learners = [peers.nodes[name].session.agreed.learner for name in peers.names]
    mixing = getattr(topologies, learners[0].strategy.mixing)(peers.roster.adjacency()).toarray()
    states = [learner.begin() for learner in learners]
    for turn in range(1, peers.terms.rounds + 1):
        told = np.stack(
            [learner.strategy.message(state)[0] for learner, state in zip(learners, states, strict=True)]
        )
        for place, name in enumerate(peers.names):
            if turn >= len(missing[name]):
                continue  # it was not there any more
            weights = mixing[place].copy()
            for other in missing[name][turn]:
                weights[place] += weights[peers.names.index(other)]
                weights[peers.names.index(other)] = 0.0
            mixed = np.einsum("u,uck->ck", weights, told)[None]
            states[place] = learners[place].strategy.step(states[place], mixed, learners[place].residual)
    return [learner.read(state) for learner, state in zip(learners, states, strict=True)]


@pytest.mark.long
def test_below_the_quorum_a_peer_waits_for_as_long_as_it_takes(tmp_path, rng):
    terms = Terms("test", "label", rounds=40, limits=Limits(deadline=0.2, quorum=0.5), strategy="exact")
    graph, (X, y, parts) = nx.path_graph(3), shared_out(rng)
    shared = X, y, [*parts[:2], np.concatenate(parts[2:])]
    peers = peers_of(tmp_path, terms, graph, shared)

    async def main():
        tasks = {name: peers.start(name) for name in peers.names}
        await peers.until(lambda: peers.nodes["p1"].session.round_index >= 3)
        await ended(tasks["p1"])  # the only neighbour of both others
        await asyncio.sleep(5 * terms.limits.deadline)
        there = peers.rounds("p1")[-1]
        assert {peers.nodes[name].session.round_index for name in ("p0", "p2")} <= {there, there + 1}
        tasks["p1"] = peers.start("p1")
        return await asyncio.wait_for(asyncio.gather(*tasks.values()), SOON)

    reached = np.stack(asyncio.run(main()))
    assert not any(entry["missing"] for name in ("p0", "p2") for entry in peers.history(name))
    if not any(entry["missing"] for entry in peers.history("p1")):
        assert np.abs(reached - simulated(shared, graph, terms).stats).max() <= 1e-9


@pytest.mark.long
def test_a_late_peer_catches_up_from_what_its_neighbours_said(tmp_path, rng):
    # The others close each round at the deadline; the late one must hear them well within it, on a busy machine, too.
    terms = Terms("test", "label", rounds=8, limits=Limits(deadline=3.0), strategy="exact")
    peers = peers_of(tmp_path, terms, DENSE, shared_out(rng))

    async def main():
        tasks = {name: peers.start(name) for name in peers.names}
        await peers.until(lambda: peers.nodes["p4"].session.round_index >= 2)
        await ended(tasks["p4"])
        gone.append(peers.rounds("p4")[-1])
        others = [peers.nodes[name] for name in peers.names[:-1]]
        await peers.until(lambda: all(node.session.round_index == terms.rounds for node in others))
        assert not any(
            task.done() for name, task in tasks.items() if name in ("p1", "p3")
        )  # they wait for it
        tasks["p4"] = peers.start("p4")
        await asyncio.wait_for(asyncio.gather(*tasks.values()), SOON)

    gone = []
    asyncio.run(main())
    assert peers.rounds("p4") == list(range(terms.rounds + 1))
    late = peers.history("p4")[gone[0] + 2 :]
    assert late and all(entry["heard"] == ["p1", "p3"] for entry in late)


def test_a_peer_that_leaves_is_not_waited_for(tmp_path, rng):
    terms = Terms("test", "label", rounds=40, limits=Limits(deadline=600.0), strategy="exact")
    peers = peers_of(tmp_path, terms, DENSE, shared_out(rng))

    async def main():
        tasks = {name: peers.start(name) for name in peers.names}
        await peers.until(lambda: peers.nodes["p4"].session.round_index >= 2)
        await ended(tasks.pop("p4"))
        asked = wire.Request(wire.VERSION, peers.roster.run, "p4", "leave", roster=peers.roster.version)
        for name in ("p1", "p3"):
            reply = await peers.hub.transport("p4").ask(name, wire.encode(asked), 1.0)
            assert wire.reply_in(reply, asked, name).status == "ok"
        await asyncio.wait_for(asyncio.gather(*tasks.values()), SOON)

    asyncio.run(main())
    for name in peers.names[:-1]:
        assert peers.rounds(name) == list(range(terms.rounds + 1))
    assert "p4" in peers.history("p1")[-1]["missing"]


@pytest.mark.long
def test_messages_of_long_ago_are_gone_and_others_are_the_same_each_time(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(store_module, "KEPT", 4)
    terms = Terms("test", "label", rounds=40, limits=Limits(deadline=0.1), strategy="exact")
    peers = peers_of(tmp_path, terms, DENSE, shared_out(rng))

    async def ask(name, turn):
        schema = peers.nodes[name].session.agreed.schema.fingerprint
        asked = wire.Request(wire.VERSION, peers.roster.run, "p4", "round", round_index=turn, schema=schema)
        return wire.reply_in(await peers.hub.transport("p4").ask(name, wire.encode(asked), 1.0), asked, name)

    async def main():
        tasks = {name: peers.start(name) for name in peers.names}
        await peers.until(lambda: peers.nodes["p4"].session.round_index >= 2)
        await ended(tasks["p4"])
        gone.append(peers.rounds("p4")[-1])
        await peers.until(
            lambda: (
                peers.nodes["p1"].session.round_index == peers.nodes["p3"].session.round_index == terms.rounds
            )
        )
        assert [(await ask("p1", turn)).status for turn in (3, 36, 37, 40)] == ["gone", "gone", "ok", "ok"]
        assert (await ask("p1", 38)).body == (await ask("p1", 38)).body
        tasks["p4"] = peers.start("p4")
        await asyncio.wait_for(asyncio.gather(*tasks.values()), SOON)

    gone = []
    asyncio.run(main())
    assert peers.rounds("p4") == list(range(terms.rounds + 1))
    for entry in peers.history("p4")[gone[0] + 2 :]:
        assert entry["missing"] == (["p1", "p3"] if entry["round"] <= terms.rounds - 4 else [])
