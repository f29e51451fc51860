"""Real peers whose messages take few bytes: they end where the simulator does, also after losses and restarts."""

import asyncio
import contextlib
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import networkx as nx
import numpy as np
import pytest

import peerbayes as pb
from peerbayes.errors import TermsError
from peerbayes.network import LossTrace, adjacency
from peerbayes.peer.agreement.private_agreement import public_schema
from peerbayes.peer.agreement.terms import Limits, Robust, Terms
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.client import Client
from peerbayes.peer.protocol.coding import coded
from peerbayes.peer.state.audit_log import entries
from peerbayes.peer.state.store import Store
from peerbayes.privacy.mechanism import Mechanism
from shared import private_agreements
from shared.peers_in_memory import DENSE, Peers, peers_of, same_as_simulated, shared_out, simulated
from shared.private_agreements import X, Y
from shared.scripted_loss import LosingPeers

pytestmark = pytest.mark.usefixtures("impatient_with_grace")

PATIENT = Limits(deadline=3600.0, quorum=0.01)


def agreement(**settings):
    return Terms("test", "y", **{"rounds": 6, "messages": "int8", **settings})


def bytes_sent(peers):
    """Bytes of all messages of rounds that peers have logged."""
    lines = [line for name in peers.names for line in entries(peers.folder / name / "audit.jsonl")]
    return sum(line["bytes"] for line in lines if line["what"].startswith("round"))


@pytest.mark.parametrize(
    ("strategy", "messages"),
    [("exact", "int8"), ("relay", "int8"), ("auto", "int8"), ("consensus-ml", "int8"), ("exact", "float32")],
)
def test_peers_end_where_the_simulator_does(strategy, messages, tmp_path, rng):
    terms = agreement(strategy=strategy, messages=messages)
    peers, run = same_as_simulated(tmp_path, terms, DENSE, shared_out(rng))
    assert terms.message_rounds == 6 * (4 if messages == "int8" else 1)
    if strategy != "auto":
        counted = run.records[:, 6].sum()
        sent = bytes_sent(peers)
        links = len(peers.names) - 1 if strategy == "relay" else len(DENSE.edges)
        assert (
            counted / 2 < sent <= counted + 2 * links * terms.message_rounds
        )  # a byte of each says how it is coded


@pytest.mark.parametrize("strategy", ["exact", "consensus-ml", "relay"])
def test_a_lost_message_is_made_up_for_by_the_next(strategy, tmp_path, rng):
    """The next one is a difference from an older message, which the receiver has said that it has."""
    terms, shared = agreement(strategy=strategy, limits=PATIENT, rounds=4), shared_out(rng)
    graph = nx.path_graph(5)
    links = adjacency(graph, 5, np.random.default_rng(0))
    trace = LossTrace.drawn(links, terms.message_rounds, 0.15, np.random.default_rng(7), False, 0.01)
    X, y, parts = shared
    peers = LosingPeers(tmp_path, terms, graph, [(X.iloc[part], y[part]) for part in parts], trace)
    reached = np.stack(asyncio.run(peers.all()))
    run = simulated(shared, graph, terms, message_loss=trace)
    assert np.abs(reached - run.stats).max() <= 1e-9 * np.abs(run.stats).max()
    assert np.abs(reached - simulated(shared, graph, terms).stats).max() > 1e-6
    lines = [line["what"] for name in peers.names for line in entries(tmp_path / name / "audit.jsonl")]
    corrected = {int(line.split()[-1]) for line in lines if line.startswith("correction")}
    assert all(round_index % 4 == 0 for round_index in corrected) and bool(corrected) == (strategy == "exact")


def test_a_peer_that_starts_again_has_no_base_and_gets_full_numbers(tmp_path, rng):
    terms, shared = agreement(), shared_out(rng)
    peers = peers_of(tmp_path, terms, DENSE, shared)

    async def main():
        tasks = {name: peers.start(name) for name in peers.names}
        await peers.until(lambda: peers.nodes["p1"].session.round_index >= 9)
        tasks["p1"].cancel()
        await asyncio.gather(tasks["p1"], return_exceptions=True)
        tasks["p1"] = peers.start("p1")
        return await asyncio.wait_for(asyncio.gather(*tasks.values()), 60)

    reached = np.stack(asyncio.run(main()))
    assert np.abs(reached - simulated(shared, DENSE, terms).stats).max() <= 1e-9


def test_with_noise_there_is_a_release_a_round_whatever_the_exchanges(tmp_path, monkeypatch):
    """Rounding comes after the noise: as many releases, each at the same price, and the simulator's numbers."""
    monkeypatch.setattr(Mechanism, "noise", lambda self, shape, *_: np.zeros(shape, dtype=np.int64))
    parts, ring = np.array_split(np.random.default_rng(0).permutation(450), 5), nx.cycle_graph(5)
    spent = {}
    for messages in ("float64", "int8"):
        terms = private_agreements.terms(messages=messages, rounds=3)
        peers = Peers(
            tmp_path, replace(terms, network=messages), ring, [(X.iloc[part], Y[part]) for part in parts]
        )
        peers.folder = tmp_path / messages
        peers.folder.mkdir()
        reached = np.stack(asyncio.run(peers.all()))
        with contextlib.closing(Store(peers.folder / "p0" / "state.sqlite", readonly=True)) as store:
            spent[messages] = [(entry["name"], entry["cost"]) for entry in store.releases()]
    assert len(spent["int8"]) == 3 and spent["int8"] == spent["float64"]
    run = pb.simulate(
        X, Y, schema=public_schema(terms), peers=5, partition=parts, topology=ring, rounds=3, messages="int8",
        privacy=pb.Privacy(epsilon=4.0), references=False, evaluate_every=0, test=(X, Y),
    )  # fmt: skip
    assert np.abs(reached - run.stats).max() < 1e-8


def test_neighbours_compare_what_messages_say_not_how_they_are_coded(tmp_path, rng):
    """Two receivers with different bases get other bytes and the same digest, which the sender has signed."""
    terms, shared = agreement(rounds=3), shared_out(rng)
    peers = peers_of(tmp_path, terms, DENSE, shared)

    asyncio.run(peers.all())
    lines = entries(tmp_path / "p3" / "audit.jsonl")
    by_round = {}
    for line in lines:
        if line["what"].startswith("round"):
            by_round.setdefault(line["what"], set()).add(line["digest"])
    assert len(by_round) == terms.message_rounds and all(len(digests) == 1 for digests in by_round.values())


def test_agreements_refuse_what_simulations_refuse():
    for settings, words in (
        ({"strategy": "tracking"}, "2 matrices"), ({"strategy": "crc"}, "leave themselves out"),
        ({"robust": Robust("clip")}, "robust 'clip'"),
    ):  # fmt: skip
        with pytest.raises(TermsError, match=words):
            agreement(**settings)


def test_older_agreements_keep_their_digests():
    plain = Terms("test", "y")
    assert plain.digest != agreement().digest
    assert b"messages" not in msgspec.json.encode(plain.digest)
    assert Terms.parse(agreement(exchanges=2).to_toml(), "file") == agreement(exchanges=2)


def test_numbers_that_do_not_match_their_digest_are_refused():
    """Also where a neighbour codes them beside a message that it was not asked for."""
    start = np.full((3, 2), 4.0)
    message, learner = start + 0.5, SimpleNamespace(shape=(3, 2), base=start)
    client = SimpleNamespace(inbox=SimpleNamespace(message=lambda neighbour, round_index: None))
    reply = wire.Reply(version=4, run="r", sender="b", kind="round", status="ok", shape=(3, 2), base=0,
                       digest=wire.digest_of(wire.bytes_of(message)), body=coded(message, start))  # fmt: skip

    def numbers(**changes):
        changed = msgspec.structs.replace(reply, **changes)
        return Client._numbers(client, SimpleNamespace(learner=learner), "b", changed)

    assert (numbers() == message).all()
    for changes, words in (
        ({"digest": bytes(32)}, "do not match"), ({"base": 7}, "was not asked for"), ({"body": b"\x09"}, "the form 9"),
        ({"shape": (2, 3)}, "instead of"),
    ):  # fmt: skip
        with pytest.raises(wire.RefusedMessage, match=words):
            numbers(**changes)


def test_a_reply_that_is_coded_unasked_is_refused():
    request = wire.Request(version=4, run="r", sender="a", kind="round", round_index=1)
    reply = wire.Reply(version=4, run="r", sender="b", kind="round", status="ok", round_index=1, base=0,
                       digest=wire.digest_of(b"numbers"), body=b"code")  # fmt: skip
    with pytest.raises(wire.RefusedMessage, match="do not match their digest"):
        wire.reply_in(wire.encode(reply), request, "b")
    asked = msgspec.structs.replace(request, base=0)
    assert wire.reply_in(wire.encode(reply), asked, "b").base == 0
