"""What real peers of `exact` send beside their messages after a loss, and what they make of it."""

import asyncio
import contextlib
import hashlib
import json
import sqlite3

import msgspec
import networkx as nx
import numpy as np
import pytest
from scipy.sparse import csr_array

from peerbayes.learning.robust.invariants import Invariants
from peerbayes.learning.strategies import Exact
from peerbayes.network import LossTrace
from peerbayes.peer.agreement.terms import Limits, Robust, Terms
from peerbayes.peer.learning.learner import Attachment, Broadcaster
from peerbayes.peer.protocol.wire import Reply
from peerbayes.peer.state.audit_log import entries
from peerbayes.peer.state.store import Store
from shared.memory_transport import Hub, InMemory
from shared.peers_in_memory import DENSE, Peers, peers_of, shared_out, simulated
from shared.scripted_loss import LosingPeers

pytestmark = pytest.mark.usefixtures("impatient_with_grace")

TERMS = Terms("test", "label", strategy="exact", rounds=10, limits=Limits(deadline=3600.0, quorum=0.01))


def attachments(peers, sender):
    """What a peer stored beside its messages: {(round, receiver): (missed, correction)}."""
    beside = {}
    with contextlib.closing(Store(peers.folder / sender / "state.sqlite", readonly=True)) as store:
        for turn, receiver in store.messages():
            _, _, missed, correction = store.message(turn, receiver)
            if missed or correction:
                beside[turn, receiver] = missed, correction
    return beside


def lossy(folder, trace, rng, terms=TERMS):
    X, y, parts = shared_out(rng)
    peers = LosingPeers(folder, terms, DENSE, [(X.iloc[part], y[part]) for part in parts], trace)
    return peers, np.stack(asyncio.run(peers.all()))


def test_after_a_loss_both_ends_send_their_corrections_for_three_rounds(tmp_path, rng):
    """p0 misses p1's message of round 3, says so in rounds 4 to 6, and p1 repairs once it was told."""
    peers, _ = lossy(tmp_path, LossTrace(frozenset({(3, 1, 0)})), rng)
    from_p0, from_p1 = attachments(peers, "p0"), attachments(peers, "p1")
    assert {key: missed for key, (missed, _) in from_p0.items()} == {
        (4, "p1"): 1,
        (5, "p1"): 2,
        (6, "p1"): 3,
    }
    assert {key: missed for key, (missed, _) in from_p1.items()} == {(5, "p0"): 0, (6, "p0"): 0}
    assert all(correction for _, correction in (*from_p0.values(), *from_p1.values()))
    assert not any(attachments(peers, name) for name in ("p2", "p3", "p4"))
    # After both have heard the other's, the two ends agree: each has the other's correction with the opposite sign.
    here, there = (np.frombuffer(sent[6, name][1]) for sent, name in ((from_p0, "p1"), (from_p1, "p0")))
    np.testing.assert_allclose(here, -there, atol=1e-9)
    before, after = (np.frombuffer(from_p0[turn, "p1"][1]) for turn in (4, 6))
    assert np.abs(before).max() > 1e-3 and np.abs(after).max() > 1e-3


def test_a_correction_that_leaves_is_in_the_audit_log(tmp_path, rng):
    peers, _ = lossy(tmp_path, LossTrace(frozenset({(3, 1, 0)})), rng)
    logged = {
        (entry["what"], entry["to"]): entry["digest"]
        for entry in entries(tmp_path / "p0" / "audit.jsonl")
        if entry["what"].startswith("correction")
    }
    stored = {
        (f"correction of round {turn}", name): hashlib.sha256(correction).hexdigest()
        for (turn, name), (_, correction) in attachments(peers, "p0").items()
    }
    assert len(stored) == 3 and logged == stored


def test_without_loss_nothing_goes_beside_a_message(tmp_path, rng):
    peers = peers_of(tmp_path, TERMS, DENSE, shared_out(rng))
    asyncio.run(peers.all())
    assert not any(attachments(peers, name) for name in peers.names)


def test_robust_peers_send_no_corrections(tmp_path, rng):
    terms = Terms("test", "label", strategy="exact", rounds=10, limits=TERMS.limits, robust=Robust("clip"))
    peers, _ = lossy(tmp_path, LossTrace(frozenset({(3, 1, 0)})), rng, terms)
    assert not any(attachments(peers, name) for name in peers.names)


class Tampering(InMemory):
    """A network in which one neighbour's first reply of each round has a false correction beside its message."""

    async def ask(self, neighbour, request, timeout):
        content = await super().ask(neighbour, request, timeout)
        reply = msgspec.msgpack.decode(content, type=Reply)
        key = neighbour, self.name, reply.round_index
        if reply.kind == "round" and reply.status == "ok" and neighbour == "p1" and key not in self.hub.done:
            self.hub.done.add(key)
            return msgspec.msgpack.encode(msgspec.structs.replace(reply, correction=self.hub.false(reply)))
        return content


class TamperingHub(Hub):
    def transport(self, name):
        return Tampering(self, name)


def shaped(reply, values):
    return np.broadcast_to(values, reply.shape).astype("<f8").tobytes()


@pytest.mark.parametrize(
    ("false", "reason"),
    [
        (lambda reply: b"12345678", "wrong shape"),
        (lambda reply: shaped(reply, np.nan), "not finite"),
        (lambda reply: shaped(reply, 1.0), "class sums"),
        (lambda reply: shaped(reply, np.array([1e30, -1e30, 0.0])[:, None]), "absurd magnitude"),
    ],
)  # fmt: skip
def test_a_false_correction_is_refused_and_the_message_asked_for_again(false, reason, tmp_path, rng):
    shared = shared_out(rng, missing=False)
    X, y, parts = shared
    terms = Terms("test", "label", strategy="exact", rounds=4, limits=TERMS.limits)
    peers = Peers(tmp_path, terms, DENSE, [(X.iloc[part], y[part]) for part in parts])
    peers.hub = TamperingHub()
    peers.hub.done, peers.hub.false = set(), false
    reached = np.stack(asyncio.run(peers.all()))
    assert np.abs(reached - simulated(shared, DENSE, terms).stats).max() <= 1e-9
    refused = {(facts["who"], facts["reason"]) for event, facts in peers.told["p0"] if event == "refused"}
    assert refused == {("p1", reason)}


def test_a_run_that_began_without_corrections_goes_on(tmp_path, rng):
    """As after an update in the middle of a run: the state has no corrections by link, and gets those of zero."""
    shared = shared_out(rng)
    peers = peers_of(tmp_path, TERMS, DENSE, shared)

    async def interrupted():
        tasks = [peers.start(name) for name in peers.names]
        await peers.until(lambda: all(node.session.round_index >= 4 for node in peers.nodes.values()))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(interrupted())
    for name in peers.names:
        with contextlib.closing(sqlite3.connect(tmp_path / name / "state.sqlite")) as db:
            turn, described = db.execute(
                "SELECT turn, state FROM rounds ORDER BY turn DESC LIMIT 1"
            ).fetchone()
            inner, links = json.loads(described)
            assert len(links) == 4
            older = json.dumps(inner)
            digest = hashlib.sha256(older.encode()).digest()
            db.execute("UPDATE rounds SET state = ?, digest = ? WHERE turn = ?", (older, digest, turn))
            db.commit()
    reached = np.stack(asyncio.run(peers.all()))
    run = simulated(shared, DENSE, TERMS)
    assert np.abs(reached - run.stats).max() <= 1e-9


@pytest.fixture
def learner():
    start = np.array([[3.0, 0.0, 1.0], [3.0, 0.0, 1.0]])
    known = Invariants(start.sum(axis=0), 6.0, csr_array((0, 3)), start, None, np.ones(3), np.full(3, 9.0))
    return Broadcaster(Exact(16), {"a": 0.3, "b": 0.2}, start, np.zeros_like, known)


def message(learner, rng):
    return learner.start + np.array([[1.0], [-1.0]]) * rng.normal(size=3)


def test_the_correction_of_a_neighbour_that_is_gone_goes_with_it(learner, rng):
    """From then on the peer is as one that never heard it, but for what it has already learned."""
    state = learner.begin()
    for _ in range(5):
        state = learner.step(state, {"a": message(learner, rng), "b": message(learner, rng)})
    assert np.abs(state.links.values[1]).max() > 0.1
    heard = {"a": message(learner, rng)}
    gone, silent = learner.step(state, heard, {}, ("b",)), learner.step(state, heard)
    assert (gone.links.values[1] == 0.0).all() and (silent.links.values[1] == state.links.values[1]).all()
    np.testing.assert_allclose(
        learner.strategy.message(silent.state) - learner.strategy.message(gone.state),
        2 * state.links.values[[1]], atol=1e-12,
    )  # fmt: skip  # once in S, and once more in D


def test_a_correction_is_believed_only_where_messages_are(learner, rng):
    state = learner.step(learner.begin(), {"a": message(learner, rng), "b": message(learner, rng)})
    heard = {"a": message(learner, rng)}
    beside = {"a": Attachment(1, learner.start * 0.0 + [[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]])}
    with_it, without = (learner.step(state, heard, these) for these in (beside, {}))
    moved = -0.5 * (state.links.values[0] + beside["a"].correction)
    np.testing.assert_allclose(with_it.links.values[0] - without.links.values[0], moved, atol=1e-12)
    assert with_it.links.reported[0] == 2 and without.links.reported[0] > 1e6
    robust = Broadcaster(
        *(getattr(learner, name) for name in ("strategy", "weights", "start", "residual", "known")), "clip"
    )
    ends = [robust.step(robust.begin(), heard, these) for these in (beside, {})]
    np.testing.assert_array_equal(robust.read(ends[0]), robust.read(ends[1]))
    assert robust.attached(ends[0]) == {}


def test_a_star_whose_hub_is_often_unheard_ends_near_the_others(tmp_path, rng):
    """Half of what the hub sends is lost, on one side only: the recorded failure of a flapping host, in small."""
    shared, graph = shared_out(rng), nx.star_graph(4)
    terms = Terms("test", "label", strategy="exact", rounds=40, limits=TERMS.limits)
    trace = LossTrace(
        frozenset((turn, 0, other) for turn in range(5, 36) for other in range(1, 5) if turn % 4 < 2)
    )
    fair, foul = (simulated(shared, graph, terms, message_loss=loss) for loss in (0.0, trace))
    size = np.abs(fair.stats - fair.stats.mean(axis=1, keepdims=True)).max()
    assert np.abs(foul.stats - fair.stats).max() < 0.15 * size
