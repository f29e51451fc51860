"""Real peers with differential privacy: what leaves them, what it costs, and that a crash costs nothing more."""

import asyncio
import contextlib
import json
import math
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace

import msgspec
import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

import peerbayes as pb
from peerbayes.errors import PeerError, RefusedMessage, TermsError
from peerbayes.learning.strategies import STRATEGIES
from peerbayes.model import core
from peerbayes.peer.agreement.column_facts import Facts
from peerbayes.peer.agreement.private_agreement import public_schema
from peerbayes.peer.agreement.terms import Limits, Privacy, Robust, Terms
from peerbayes.peer.agreement.tree_sums import integers_in
from peerbayes.peer.learning.masks import Masker, new_key, public_key, refuse_thin, shared_sources
from peerbayes.peer.learning.releases import PrivateResidual
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.wire import Reply
from peerbayes.peer.state.audit_log import Tail, entries
from peerbayes.peer.state.folder import Home
from peerbayes.peer.state.ledger import epsilon_of, refuse_overspent, spent
from peerbayes.peer.state.peer_settings import Settings
from peerbayes.peer.state.store import RoundRecord, Store
from peerbayes.privacy import units as units_module
from peerbayes.privacy.accounting import mu_of
from peerbayes.privacy.mechanism import Mechanism
from peerbayes.privacy.scheme import scheme
from peerbayes.privacy.units import Units
from peerbayes.report.dashboard.peer_folder import Sent
from peerbayes.simulation.private import NOISE_STREAM, PrivateRows
from shared.commands import HANG, peerbayes
from shared.link_option import over_other_links_too
from shared.memory_transport import InMemory
from shared.own_strategy import Momentum
from shared.peer_processes import copied, finished, history
from shared.peers_in_memory import Peers, network
from shared.private_agreements import ROUNDS, X, Y, facts_of, terms
from shared.real_calls import node_of, within

RING, FULL = nx.cycle_graph(5), nx.complete_graph(5)
RARE = 1e-9  # noise is real: what a test asks of it fails so rarely


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.fixture
def momentum(monkeypatch):
    """A strategy that the package does not have."""
    monkeypatch.setitem(STRATEGIES, Momentum.name, Momentum)


ORDER = np.random.default_rng(0).permutation(len(Y))
PARTS, TEST = np.array_split(ORDER[:450], 5), ORDER[450:]


def peers_of(folder, agreed, graph=RING, parts=PARTS):
    return Peers(folder, agreed, graph, [(X.iloc[part], Y[part]) for part in parts])


def done(peers, **more):
    """Everybody's statistics; what stopped a peer is raised."""
    found = asyncio.run(peers.all(**more))
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return np.stack(found)


@contextlib.contextmanager
def stored(path):
    with contextlib.closing(Store(path, readonly=True)) as store:
        yield store


def ledger(folder):
    with stored(folder / "state.sqlite") as store:
        return store.releases()


def errors_of(peers):
    models = [pb.load(peers.folder / name / "model.peerbayes") for name in peers.names]
    return np.array([1 - model.score(X.iloc[TEST], Y[TEST]) for model in models])


# --- learning, and what it costs -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "start", "bought", "hidden", "graph"),
    [
        ("exact", "uniform", False, {}, RING),
        ("exact", "uniform", True, {}, RING),
        ("crc", "uniform", False, {}, RING),
        ("relay", "uniform", False, {}, RING),
        ("tracking", "marginal", False, {}, FULL),
        ("momentum", "uniform", False, {}, RING),
        ("momentum", "ml", True, {"edge_noise": 3.0}, FULL),
        ("exact", "ml", True, {}, FULL),
        ("exact", "uniform", False, {"edge_noise": 3.0}, FULL),
        ("exact", "uniform", False, {"secure_sum": True}, FULL),
        ("exact", "uniform", False, {"secure_sum": True, "edge_noise": 3.0}, FULL),
        ("momentum", "uniform", False, {"secure_sum": True}, FULL),
    ],
)
@pytest.mark.usefixtures("momentum")
def test_peers_learn_and_spend_what_was_agreed_on(strategy, start, bought, hidden, graph, tmp_path):
    agreed = terms(bought, strategy=strategy, start=start, privacy=hidden)
    peers = peers_of(tmp_path, agreed, graph)
    done(peers)
    assert errors_of(peers).max() < 0.3  # guessing: 0.37; without noise 0.08
    named = [*(["units"] if bought else []), *(["start"] if start != "uniform" else [])]
    named += [f"round {number}" for number in range(1, ROUNDS + 1)]
    for name in peers.names:
        entered = ledger(tmp_path / name)
        assert [entry["name"] for entry in entered] == named
        assert 0.9999 * 4.0 <= epsilon_of(entered, 1e-5) <= 4.0
        assert peers.nodes[name].session.agreed.private.spent == pytest.approx(
            epsilon_of(entered, 1e-5), abs=1e-6
        )
        assert not [event for event in peers.told[name] if event[0] == "refused"]
        sent = Sent(Tail(tmp_path / name / "audit.jsonl"))
        assert (
            sent.read()
            and sent.by_round(np.array([3]))[0] < sent.by_round(np.array([ROUNDS]))[0] == sent.total
        )
        assert all(entry["what"].startswith("private ") for entry in entries(tmp_path / name / "audit.jsonl"))


def test_nothing_of_the_rows_leaves_but_releases(tmp_path):
    """What travels is named: no sum of rows that another agreement tells is among it."""
    declared, bought = peers_of(tmp_path, terms()), tmp_path / "bought"
    done(declared)
    said = {entry["what"] for entry in entries(tmp_path / "p0" / "audit.jsonl") if entry["to"]}
    assert said == {f"private round {turn}" for turn in range(1, ROUNDS + 1)}
    bought.mkdir()
    done(peers_of(bought, terms(True, start="ml"), FULL))
    said = {entry["what"] for entry in entries(bought / "p0" / "audit.jsonl") if entry["to"]}
    assert {"private sum units", "private sum start"} == {what for what in said if " round " not in what}


def test_two_schemas_agree_to_the_last_bit_where_units_are_bought(tmp_path):
    peers = peers_of(tmp_path, terms(True))
    done(peers)
    agreed = [node.session.agreed for node in peers.nodes.values()]
    assert len({each.schema.fingerprint for each in agreed}) == 1
    assert len({each.private.scheme.mechanism.sigma for each in agreed}) == 1
    schema = agreed[0].schema
    assert schema.fingerprint != public_schema(terms(True)).fingerprint
    for j in schema.continuous:  # near enough to standardise
        values = (X[schema.columns[j].name].to_numpy() - schema.columns[j].location) / schema.columns[j].scale
        assert abs(values.mean()) < 2.5 and 0.15 < values.std() < 3.0


# --- the mechanism ---------------------------------------------------------------------------------------


def in_private(agreed, part):
    """A residual of some rows in a ring of five, and its scheme, made without a network."""
    schema = public_schema(agreed)
    from peerbayes.learning.local_rows import LocalRows
    from peerbayes.model import layout

    family = layout.calibrated("naive-bayes", schema, False, 450.0)
    held = LocalRows(
        family, schema.encode(X.iloc[part]), schema.encode_labels(Y[part]), np.ones(len(part)), np.array([len(part)]), 2
    )  # fmt: skip
    whole = np.ones(1, dtype=bool)
    found = scheme(agreed.privacy.promise, family, 2, 90.0, 5, agreed.rounds, agreed.lr, None, whole)
    return found, held


def statistics_near(held, rng, count):
    start = held.family.uniform(2, 1800.0)
    moved = rng.normal(size=(count, *start.shape)) * np.abs(start).max() * 0.2
    moved -= moved.mean(axis=1, keepdims=True)
    return start + moved


def test_a_peer_releases_what_the_simulator_releases_bit_for_bit(rng):
    found, held = in_private(terms(), PARTS[0])
    simulated = PrivateRows(found, held, nx.to_scipy_sparse_array(nx.empty_graph(1)), seed=5)
    real = PrivateResidual(found, held, ahead=True)
    for turn, stats in enumerate(statistics_near(held, rng, 4)):
        real.source = np.random.default_rng([5, NOISE_STREAM, turn]).bytes
        assert np.array_equal(real(stats[None]), simulated(stats[None]))
        real.taken()
        real.done += 1


@pytest.mark.parametrize("strategy", ["exact", "momentum"])
@pytest.mark.usefixtures("momentum")
def test_without_noise_peers_end_where_the_simulator_does(strategy, tmp_path, monkeypatch):
    """Clipping, units, weights, read-out: all but the noise is the simulator's, over a whole run."""
    monkeypatch.setattr(Mechanism, "noise", lambda self, shape, *_: np.zeros(shape, dtype=np.int64))
    agreed = terms(strategy=strategy)
    stats = done(peers_of(tmp_path, agreed))
    run = pb.simulate(
        X, Y, schema=public_schema(agreed), peers=5, partition=PARTS, topology=RING, strategy=strategy, rounds=ROUNDS,
        privacy=pb.Privacy(epsilon=4.0), references=False, evaluate_every=0, test=(X, Y),
    )  # fmt: skip
    assert np.abs(stats - run.stats).max() < 1e-8


def test_a_strategy_that_would_release_twice_in_a_round_sends_nothing(tmp_path, monkeypatch):
    class Twice(Momentum):
        def step(self, state, mixed, residual):
            return super().step(state, mixed + residual(mixed), residual)

    monkeypatch.setitem(STRATEGIES, "momentum", Twice)
    peers = peers_of(tmp_path, terms(strategy="momentum"))
    for problem in asyncio.run(peers.all()):
        assert isinstance(problem, PeerError) and "asks for R a second time in round 1;" in str(problem)
    assert ledger(tmp_path / "p0") == []


def noise_in_first_messages(peers):
    """What the first message of each peer says beside its start and its rows, in units of its own noise: [N, C, K]."""
    found = []
    for name in peers.names:
        residual, learner = peers.nodes[name].session.agreed.private, peers.nodes[name].session.agreed.learner
        mechanism, held, start = residual.scheme.mechanism, residual.held, learner.start
        with stored(peers.folder / name / "state.sqlite") as store:
            sent = np.frombuffer(store.message(1, learner.neighbours[0])[0], dtype="<f8").reshape(start.shape)
        features, labels = np.asarray(held.family.features(held.rows)), core.one_hot(held.labels, 2)
        steps = labels - core.posterior(features, held.family.weights(start))
        exact = mechanism.opened(mechanism.clipped(steps, mechanism.rows(held.family, held.rows)))
        told = (sent - start) / learner.strategy.boost
        found.append(mechanism.coordinates.to(told - exact) / residual.scheme.sigma)
    return np.stack(found)


def directions(peers):
    """How many directions residuals of one peer have."""
    residual = peers.nodes["p0"].session.agreed.private
    return (2 - 1) * (residual.held.family.size - residual.scheme.mechanism.projection.normals.shape[1])


def test_what_leaves_is_the_exact_residual_and_noise_of_the_right_size(tmp_path):
    """The first message, less the start, less what the rows say: noise with the promised variance, in every direction
    that residuals have, and nothing in the others."""
    peers = peers_of(tmp_path, terms())
    done(peers)
    noise, rank = noise_in_first_messages(peers), 5 * directions(peers)
    assert np.abs(noise.sum(axis=1)).max() < 1e-8
    assert chi2.ppf(RARE, rank) < float((noise**2).sum()) < chi2.ppf(1 - RARE, rank)


def test_what_is_bought_before_the_first_round_has_noise_of_the_right_size(tmp_path):
    """Units and start as they are stored and told, less what the rows say."""
    agreed = terms(True, start="ml", privacy={"clip": 1.0})  # that of a round is larger
    peers = peers_of(tmp_path, agreed, FULL)
    done(peers)
    squares, rank = {"units": 0.0, "start": 0.0}, {"units": 0, "start": 0}
    for name, part in zip(peers.names, PARTS, strict=True):
        found, held = (
            peers.nodes[name].session.agreed.private.scheme,
            peers.nodes[name].session.agreed.private.held,
        )
        with stored(tmp_path / name / "state.sqlite") as store:
            told = {what: store.bought(what, 0.0, lambda: pytest.fail("it is stored")) for what in squares}
        columns = sorted(X.columns[:-1])
        ranges = np.array([agreed.facts[column].range for column in columns])
        asked = Units((False,) * len(ranges), 0.05 * mu_of(4.0, 1e-5) ** 2)
        middle, half = ranges.mean(axis=1), np.diff(ranges, axis=1)[:, 0] / 2
        exact = asked.sums((X.iloc[part][columns].to_numpy() - middle) / half)
        noise = {"units": (told["units"] - exact) / asked.sigma}
        whole = found.mechanism.clipped(
            core.one_hot(held.labels, 2), found.mechanism.rows(held.family, held.rows), found.start_clip
        )
        noise["start"] = (told["start"] * 2.0**16 - whole) / found.start_sigma
        for what, each in noise.items():
            squares[what] += float((each**2).sum())
            rank[what] += each.size
    for what in squares:
        assert chi2.ppf(RARE, rank[what]) < squares[what] < chi2.ppf(1 - RARE, rank[what]), what


def test_parts_of_a_private_sum_have_its_shape_and_no_more_than_all_can_have():
    parse = integers_in((2, 2), 10)
    good = np.array([[10, -10], [0, 3]])
    assert (parse(good.tobytes()).values == good).all()
    for content, reason in (
        (good.tobytes()[:-8], "wrong shape"),
        (good.tobytes() + bytes(8), "wrong shape"),
        ((good + 1).tobytes(), "absurd magnitude"),
        ((good - 1).tobytes(), "absurd magnitude"),
        (np.full((2, 2), np.iinfo(np.int64).min).tobytes(), "absurd magnitude"),
    ):
        with pytest.raises(RefusedMessage) as refused:
            parse(content)
        assert refused.value.reason == reason


def test_crafted_statistics_do_not_make_a_row_louder(rng):
    """Whatever a liar sends: a row more moves a release by at most G."""
    agreed = terms()
    found, held = in_private(agreed, PARTS[0])
    _, fewer = in_private(agreed, PARTS[0][1:])

    def summed(rows, stats):
        return PrivateResidual(found, rows, ahead=True).sums(stats)

    limit = math.ldexp(found.mechanism.clip, found.mechanism.bits)
    loud = 0.0
    for stats in statistics_near(held, rng, 20) * rng.choice([1.0, -1.0, 1e3], (20, 1, 1)):
        loud = max(loud, float(np.linalg.norm((summed(held, stats) - summed(fewer, stats)).astype(float))))
    assert 0.0 < loud <= limit


# --- noise that neighbours share -------------------------------------------------------------------------


def maskers(agreed, graph):
    roster = network(agreed, graph)
    private = {member.name: new_key() for member in roster.members}
    keys = {name: public_key(key) for name, key in private.items()}
    return roster, {
        name: shared_sources(Masker(name, key, roster.network, roster.run), keys, roster)
        for name, key in private.items()
    }


def test_noise_of_neighbours_cancels_to_the_last_bit_and_is_new_every_round():
    found, _ = in_private(terms(), PARTS[0])
    roster, sources = maskers(terms(privacy={"edge_noise": 3.0}), nx.circulant_graph(6, [1, 2]))
    seen = []
    for number in (1, 2):
        added = {
            name: sum(
                sign * found.mechanism.noise((2, 9), source, 10**9) for source, sign in of(number).values()
            )
            for name, of in sources.items()
        }
        assert not np.any(sum(added.values()))
        assert all(np.abs(each).max() > 0 for each in added.values())
        seen.append(added)
    assert not any(np.array_equal(seen[0][name], seen[1][name]) for name in sources)
    assert all(len(of(1)) == len(roster.neighbours(name)) for name, of in sources.items())


def test_noise_of_neighbours_is_another_in_another_run_and_on_another_link():
    """With the same keys, so that nobody can take it off by what an earlier run told."""
    drawn = set()
    for agreed in (terms(), terms(rounds=ROUNDS + 1)):
        roster = network(agreed, FULL)
        masker = Masker("p0", bytes(range(32)), roster.network, roster.run)
        keys = dict.fromkeys(("p1", "p2", "p3", "p4"), public_key(bytes(range(1, 33))))
        drawn |= {source(64) for source, _ in shared_sources(masker, keys, roster)(1).values()}
    assert len(drawn) == 8


def test_messages_carry_the_noise_of_neighbours(tmp_path):
    """Between peers it has the variance 1 + 3²·λ, with λ = 5, the Laplacian's of five that all are neighbours; what
    they have in common is their own noise alone."""
    peers = peers_of(tmp_path, terms(privacy={"edge_noise": 3.0}), FULL)
    done(peers)
    noise, rank = noise_in_first_messages(peers), directions(peers)
    common = noise.mean(axis=0)
    apart = float(((noise - common) ** 2).sum()) / (1 + 3.0**2 * 5)
    assert chi2.ppf(RARE, 4 * rank) < apart < chi2.ppf(1 - RARE, 4 * rank)
    assert chi2.ppf(RARE, rank) < 5 * float((common**2).sum()) < chi2.ppf(1 - RARE, rank)


def test_thin_networks_are_refused_by_name():
    promise = terms(privacy={"edge_noise": 3.0}).privacy.promise
    bow = nx.compose(nx.complete_graph(range(4)), nx.complete_graph(range(3, 7)))
    for graph, told in ((RING, "p0 has 2 neighbours"), (bow, "without p3 the network falls apart")):
        with pytest.raises(TermsError, match=told):
            refuse_thin(network(terms(), graph), promise)
    refuse_thin(network(terms(), FULL), promise)
    with pytest.raises(TermsError, match="colluders is 4 of 5 peers; expected at least two honest ones"):
        refuse_thin(network(terms(), FULL), replace(promise, colluders=4))
    refuse_thin(network(terms(), RING), terms().privacy.promise)  # without edge noise any network will do


def test_a_node_of_a_thin_network_sends_nothing(tmp_path):
    peers = peers_of(tmp_path, terms(privacy={"edge_noise": 3.0}), RING)
    for found in asyncio.run(peers.all()):
        assert isinstance(found, TermsError)
    assert not list(entries(tmp_path / "p0" / "audit.jsonl"))


# --- the ledger ------------------------------------------------------------------------------------------


def test_a_peer_that_stops_and_goes_on_says_the_same_and_spends_once(tmp_path):
    peers = peers_of(tmp_path, terms(True, start="ml", rounds=20), FULL)
    asyncio.run(peers.all_with_stops("p2", (1, 4, 9, 13)))
    names = [entry["name"] for entry in ledger(tmp_path / "p2")]
    assert names == ["units", "start", *(f"round {turn}" for turn in range(1, 21))]
    said = {}
    for entry in entries(tmp_path / "p2" / "audit.jsonl"):
        key = (entry["to"], entry["what"]) if " sum " in entry["what"] else entry["what"]
        assert said.setdefault(key, entry["digest"]) == entry["digest"]
    for kind in ("private round", "private release round"):
        assert len([what for what in said if str(what).startswith(kind)]) == 20


@pytest.mark.parametrize("strategy", ["exact", "crc"])
def test_noise_that_was_drawn_and_not_stored_was_not_sent(strategy, tmp_path, monkeypatch):
    """The disk fails after noise is drawn: nothing is sent, nothing is spent, and the next start draws anew."""
    peers, kept = peers_of(tmp_path, terms(strategy=strategy)), Store.add_round

    def fails(self, record):
        if record.round_index == 3 and self.path.parent.name == "p1":
            raise sqlite3.OperationalError("disk full")
        return kept(self, record)

    async def main():
        monkeypatch.setattr(Store, "add_round", fails)
        tasks = {name: peers.start(name) for name in peers.names}
        with pytest.raises(sqlite3.OperationalError):
            await tasks["p1"]
        spent_by_then = len(ledger(tmp_path / "p1"))
        monkeypatch.setattr(Store, "add_round", kept)
        tasks["p1"] = peers.start("p1")
        await asyncio.wait_for(asyncio.gather(*tasks.values()), HANG)
        return spent_by_then

    assert asyncio.run(main()) == (3 if strategy == "exact" else 2)
    assert [entry["name"] for entry in ledger(tmp_path / "p1")] == [
        f"round {n}" for n in range(1, ROUNDS + 1)
    ]


def test_a_release_is_in_the_ledger_once_or_its_round_is_not_stored(tmp_path):
    from peerbayes.peer.learning.releases import Release

    store, values = Store(tmp_path / "state.sqlite"), np.ones((2, 3))
    store.add_round(
        RoundRecord(0, (values,), {"b": values}, (), (), release=Release("round 1", 0.01, values))
    )
    with pytest.raises(sqlite3.IntegrityError):
        store.add_round(
            RoundRecord(1, (values,), {"b": 2 * values}, (), (), release=Release("round 1", 0.01, 2 * values))
        )
    assert store.last()[0] == 0 and store.message(2, "b") is None
    assert [entry["name"] for entry in store.releases()] == ["round 1"]
    store.close()


def test_what_was_bought_is_told_again_and_never_bought_twice(tmp_path):
    store, drawn = Store(tmp_path / "state.sqlite"), []

    def make():
        drawn.append(len(drawn))
        return np.arange(6, dtype=np.int64).reshape(2, 3) + len(drawn)

    first = store.bought("units", 0.02, make)
    store.claim({"run": ("r", "other terms"), "data": ("d", "other rows")})
    store.forget_agreement()  # the peers did not agree, and try again
    assert np.array_equal(store.bought("units", 0.02, make), first) and drawn == [0]
    store.close()
    store = Store(tmp_path / "state.sqlite")
    assert np.array_equal(store.bought("units", 0.02, make), first) and drawn == [0]
    with pytest.raises(PeerError, match="other rows"):  # of which it was not told
        store.claim({"data": ("e", "other rows")})
    store.close()


def test_a_spent_budget_ends_the_run_and_the_last_round_releases_nothing(rng):
    found, held = in_private(terms(), PARTS[0])
    stats = statistics_near(held, rng, 1)
    behind = PrivateResidual(found, held, ahead=False, done=ROUNDS)
    with pytest.raises(PeerError, match="the budget is spent: 12 releases cost epsilon = 4 of 4"):
        behind(stats)
    ahead = PrivateResidual(found, held, ahead=True, done=ROUNDS)
    assert not ahead(stats).any() and ahead.taken() is None


def test_restoring_a_state_draws_no_noise(rng):
    found, held = in_private(terms(), PARTS[0])

    def never(count):
        raise AssertionError("noise was drawn")

    residual = PrivateResidual(found, held, ahead=True, source=never, resting=True)
    assert not residual(statistics_near(held, rng, 1)).any() and residual.taken() is None


# --- what is bought of columns ---------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 40), st.lists(st.booleans(), max_size=4), st.integers(0, 40))
def test_units_are_sums_that_a_row_moves_by_no_more_than_is_allowed_for(seed, rows, missing, cut):
    rng, asked = np.random.default_rng(seed), Units(tuple(missing), 0.05)
    values = rng.choice([-1.0, 1.0, 0.0, 7.0, -9.0, 0.5, rng.normal()], (rows + 1, len(missing)))
    values[rng.random(values.shape) < 0.3 * np.array(missing, dtype=float)] = np.nan
    cut = min(cut, rows)
    whole = asked.sums(values)
    assert np.array_equal(whole, asked.sums(values[:cut]) + asked.sums(values[cut:]))
    moved = (whole - asked.sums(np.delete(values, cut, axis=0))).astype(float)
    assert np.linalg.norm(moved) <= asked.most
    assert asked.sigma >= asked.most / math.sqrt(0.05) and asked.size == whole.size


def test_units_are_what_they_stand_for(rng):
    asked = Units((False, True), 0.05)
    values = rng.normal([0.2, -0.4], [0.1, 0.3], (400_000, 2)).clip(-1, 1)
    values[rng.random(len(values)) < 0.5, 1] = np.nan
    rows, mean, deviation = asked.opened(asked.release(values, rng.bytes), 1)
    assert rows == pytest.approx(400_000, abs=100)
    assert mean == pytest.approx(np.nanmean(values, axis=0), abs=2e-3)
    assert deviation == pytest.approx(np.nanstd(values, axis=0), abs=2e-3)


def test_units_of_too_few_rows_are_those_of_the_range(rng):
    asked = Units((False,), 0.05)
    _, mean, deviation = asked.opened(asked.sums(np.full((5, 1), 0.9)), 50)
    assert mean[0] == 0.0 and deviation[0] == pytest.approx(math.sqrt(units_module.EVEN))


# --- what is refused -------------------------------------------------------------------------------------


def changed(column, value, rows=3):
    table = X.iloc[PARTS[0]].copy()
    table[column] = table[column].astype(object) if isinstance(value, str) else table[column]
    table.loc[table.index[:rows], column] = value
    return table


@pytest.mark.parametrize(
    ("table", "labels", "told"),
    [
        (X.iloc[PARTS[0][:49]], Y[PARTS[0][:49]], "the table has 49 rows; the agreement asks for 50"),
        (
            changed("large", "perhaps"),
            Y[PARTS[0]],
            "column 'large' holds 'perhaps'; the agreement names 'no', 'yes'",
        ),
        (changed("mean-area", np.nan), Y[PARTS[0]], "column 'mean-area' has no value in 3 rows"),
        (changed("large", None), Y[PARTS[0]], "column 'large' has no value in 3 rows"),
        (X.iloc[PARTS[0]].drop(columns="large"), Y[PARTS[0]], "the table has no column 'large'"),
        (X.iloc[PARTS[0]], np.where(Y[PARTS[0]] == "benign", "fine", "malignant"), "y holds 'fine'"),
    ],
)
def test_rows_that_the_agreement_does_not_describe_stay_at_home(table, labels, told, tmp_path):
    peers = peers_of(tmp_path, terms(True))
    peers.tables["p0"] = table, labels

    async def main():
        with pytest.raises((PeerError, pb.PeerbayesError), match=told):
            await asyncio.wait_for(peers.start("p0"), HANG)

    asyncio.run(main())
    assert not list(entries(tmp_path / "p0" / "audit.jsonl")) and not ledger(tmp_path / "p0")


def test_values_may_be_missing_where_the_agreement_says_so(tmp_path):
    known = {name: replace(facts, missing=True) for name, facts in facts_of(True).items()}
    peers = peers_of(tmp_path, terms(True, facts=known))
    for name, (table, labels) in peers.tables.items():
        table = table.astype({"large": object})
        gone = np.random.default_rng(len(name)).random(table.shape) < 0.1
        peers.tables[name] = table.mask(gone, None).astype(dict.fromkeys(X.columns[:-1], float)), labels
    done(peers)
    assert not [event for name in peers.names for event in peers.told[name] if event[0] == "refused"]
    assert peers.nodes["p0"].session.agreed.family.missing


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"strategy": "consensus-ml"}, "strategy 'consensus-ml'"),
        ({"strategy": "dsgd"}, "strategy 'dsgd'"),
        ({"local_steps": 2}, "local_steps 2, each of which would be a release"),
        ({"family": "aode"}, "family 'aode', whose log joint"),
        ({"robust": Robust("clip", True)}, "whom a peer cuts off tells of its rows"),
        ({"robust": Robust("clip"), "privacy": {"edge_noise": 3.0}}, "clipped messages do not add up"),
        ({"classes": ()}, "no classes are named"),
        ({"facts": {}}, "feature .* is .* and not described; expected .features"),
        ({"family": "qda", "facts": facts_of() | {"large": Facts(categories=("no", "yes"), missing=True)}},
         "which qda completes by everybody's model"),
        ({"privacy": {"epsilon": None, "rows": None}}, "privacy.epsilon is not given and classes are named"),
        ({"privacy": {"epsilon": -1.0}}, "privacy.epsilon is -1.0; expected a positive number"),
        ({"privacy": {"epsilon": None, "rows": 90.0}}, "privacy.rows is 90.0 and epsilon is not given"),
        ({"start": "ml", "privacy": {"secure_sum": True}}, "secure_sum with start 'ml'"),
    ],
)  # fmt: skip
def test_terms_that_would_tell_of_rows_are_refused(more, told):
    with pytest.raises(TermsError, match=told):
        terms(**more)


def test_terms_are_written_and_read_back():
    for agreed in (
        terms(),
        terms(True, privacy={"edge_noise": 3.0, "clip": 0.5, "colluders": 2, "min_rows": 70}),
    ):
        again = Terms.parse(agreed.to_toml(), "here")
        assert again == agreed and again.digest == agreed.digest and not agreed.differences(again)
    assert terms().digest != terms(privacy={"epsilon": 5.0}).digest
    assert "privacy.epsilon: 4.0 against 5.0" in terms().differences(terms(privacy={"epsilon": 5.0}))
    text = terms().to_toml().replace('strategy = "exact"', 'strategy = "dsgd"')
    [line] = [
        number for number, written in enumerate(text.splitlines(), 1) if written.startswith("epsilon = 4.0")
    ]
    with pytest.raises(TermsError, match=f"here, line {line}: epsilon 4 with strategy 'dsgd'"):
        Terms.parse(text, "here")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("range = [3, 1]", "range is .3, 1.; expected .least, most."),
        ("range = [0, 1]\nmean = 2.0", "range and mean or sd are given"),
        ("mean = 2.0", "mean is 2.0 and sd None; expected both"),
        ("mean = inf\nsd = 1.0", "mean is inf; expected a number"),
        ("mean = 2.0\nsd = nan", "sd is nan; expected a number"),
        ("range = [0, inf]", "range is .0, inf.; expected .least, most."),
        ("range = [-1.7e308, 1.7e308]", "range is .*; expected .least, most."),
        ("range = [1, 1]", "range is .1, 1.; expected .least, most."),
        ("mean = 2.0\nsd = 0.0", "mean is 2.0 and sd 0.0; expected both, and sd above 0"),
        ("categories = ['a']", "a continuous column has no categories"),
        ("missing = 1", "missing is 1; expected true or false"),
        ("colour = 'red'", "'colour' is no entry of a feature"),
    ],
)
def test_facts_that_make_no_sense_are_refused_by_line(text, told):
    given = f'network = "n"\nlabel = "y"\n[features.age]\nkind = "continuous"\n{text}\n'
    with pytest.raises(TermsError, match=f"here, line 3: feature 'age': {told}"):
        Terms.parse(given, "here")


# --- a liar ----------------------------------------------------------------------------------------------


def tilted(stats, feature, size):
    """So much more of a feature in one class and less in the other: class sums stay."""
    change = np.zeros_like(stats)
    change[:, feature] = size, -size
    return change


class Liar(InMemory):
    """A member whose messages of rounds are made by a function."""

    def __init__(self, hub, name, lie):
        super().__init__(hub, name)
        self._lie = lie

    async def serve(self, answer):
        async def altered(caller, content):
            said = msgspec.msgpack.decode(await answer(caller, content), type=Reply)
            if said.kind == "round" and said.status == "ok":
                numbers = np.frombuffer(said.body, dtype="<f8").reshape(said.shape).copy()
                body = self._lie(numbers).astype("<f8").tobytes()
                digest = wire.digest_of(body)
                signature = self.sign(wire.statement(said.run, said.round_index, digest))
                said = msgspec.structs.replace(said, body=body, digest=digest, signature=signature)
            return wire.encode(said)

        await super().serve(altered)


@pytest.mark.long
@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (lambda stats: 2.0 * stats, "class sums"),
        (lambda stats: stats + 1e-4 * np.eye(*stats.shape), "class sums"),
        (lambda stats: stats + tilted(stats, 3, 1e12), "absurd magnitude"),
        (lambda stats: stats + tilted(stats, -1, 5.0), "cell sums"),
        (lambda stats: stats * np.nan, "not finite"),
    ],
)
def test_a_liar_is_refused_and_logged_noise_or_not(lie, reason, tmp_path):
    peers = peers_of(tmp_path, terms(rounds=4, limits=Limits(deadline=0.3, quorum=0.5)), FULL)
    honest = peers.hub.transport
    peers.hub.transport = lambda name: Liar(peers.hub, name, lie) if name == "p4" else honest(name)
    asyncio.run(peers.all(linger=0.5))
    for name in peers.names[:-1]:
        refused = {(facts["who"], facts["reason"]) for what, facts in peers.told[name] if what == "refused"}
        assert refused == {("p4", reason)}
        assert peers.rounds(name)[-1] == 4 and len(ledger(tmp_path / name)) == 4


# --- what owners see and ask for -------------------------------------------------------------------------


@pytest.fixture
def loopback(tmp_path):
    """A network on this machine that is stopped at the end."""
    made = []

    def make(agreed, graph=RING, parts=PARTS):
        tables = [X.iloc[part].assign(diagnosis=Y[part]) for part in parts]
        made.append(Loopback.create(tmp_path / "peers", agreed, tables, list(graph.edges)))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.mark.links
@over_other_links_too
def test_peers_with_noise_over_links_of_every_kind(kind_of_links, loopback):
    """What is released, logged and paid for is the same, whoever opened the connection."""
    network = loopback(terms(rounds=6, limits=Limits(deadline=600.0)))

    async def work():
        with contextlib.ExitStack() as stack:
            nodes = [stack.enter_context(node_of(home))[0] for home in network.homes.values()]
            works = [asyncio.ensure_future(node.run()) for node in nodes]
            opened = set()
            while not all(node.session.round_index >= 3 for node in nodes):
                await asyncio.sleep(0.01)
            for node in nodes:
                opened |= {node.transport.kind_of(name) for name in node.session.neighbours}
            await asyncio.gather(*works)
            return opened

    opened = within(work())
    assert opened <= ({"relayed"} if kind_of_links == "relayed" else {"direct", "reversed"})
    for home in network.homes.values():
        assert [entry["name"] for entry in ledger(home.folder)] == [f"round {n}" for n in range(1, 7)]
        said = {}
        for entry in entries(home.audit_path):
            assert entry["what"].startswith("private ")
            assert said.setdefault((entry["to"], entry["what"]), entry["digest"]) == entry["digest"]
        with contextlib.closing(Store(home.state_path, readonly=True)) as store:
            assert store.refusals() == []


@pytest.mark.links
@pytest.mark.long
def test_five_processes_learn_with_noise_and_kill_9_spends_nothing_twice(loopback, tmp_path):
    agreed = terms(True, rounds=24, limits=Limits(deadline=600.0))
    running = loopback(agreed)
    for name in ("peer-1", "peer-2"):  # what is held out stays held out: other rows would stop them
        settings = running.homes[name].settings_path
        settings.write_text(settings.read_text().replace("# hold_out", "hold_out"))
    for name in running.homes:
        running.start(name)
    before = {}
    for number, (name, moment) in enumerate((("peer-2", 0), ("peer-1", 3), ("peer-5", 8), ("peer-2", 12))):
        home, began = running.homes[name], time.monotonic()
        while len(history(home)) <= moment:
            assert time.monotonic() < began + 120 and running.processes[name].poll() is None, (
                home.log_path.read_text()
            )
            time.sleep(0.005)
        running.processes[name].kill()
        assert running.processes[name].wait() == -signal.SIGKILL
        aside = copied(home.folder, tmp_path / f"copy-{number}")
        with contextlib.closing(
            Store(aside / "state.sqlite")
        ) as store:  # the ledger fits to what can have been sent
            turn, names = store.last()[0], [entry["name"] for entry in store.releases()]
            assert names == ["units", *(f"round {n}" for n in range(1, turn + 2))]
            before.setdefault(name, []).append((store.releases(), store.message(turn + 1, "peer-3" if name == "peer-2"
                                                                               else "peer-2" if name == "peer-1"
                                                                               else "peer-4")))  # fmt: skip
        running.start(name)
    finished(running)
    for name, home in running.homes.items():
        entered = ledger(home.folder)
        assert [entry["name"] for entry in entered] == ["units", *(f"round {n}" for n in range(1, 25))]
        for earlier, message in before.get(name, []):
            assert entered[: len(earlier)] == earlier  # the same releases, to their digests
            said = {
                entry["digest"]
                for entry in entries(home.audit_path)
                if entry["what"] == f"private round {len(earlier) - 1}"
            }
            assert message is not None and said == {message[1].hex()}  # to every neighbour, before and after
        said = {}
        for entry in entries(home.audit_path):
            assert said.setdefault((entry["to"], entry["what"]), entry["digest"]) == entry["digest"]
        told = json.loads(peerbayes("peer", "status", home.folder, "--format", "json", code=0).stdout)[
            "privacy"
        ]
        assert (
            told["rounds"] == 24 and told["releases"] == 25 and 3.99 < told["spent"] <= 4.0 == told["epsilon"]
        )
        log = home.log_path.read_text()
        assert "Nobody learns more about one row than epsilon 4 (delta 1e-05) allows" in log
        assert "epsilon 4.000 spent" in log
        assert ("on held-out rows (without noise: not for others)" in log) == (name in ("peer-1", "peer-2"))
        error = 1 - pb.load(home.model_path).score(X.iloc[TEST], Y[TEST])
        assert error < 0.3
    assert "private: epsilon 4 of 4 spent (delta 1e-05), 24 rounds released" in peerbayes(
        "peer", "status", home.folder
    ).stdout.replace("\n", " ")


def killed(running, name, after):
    """Kill a peer with -9 once it has had so many rounds, and start it again."""
    while len(history(running.homes[name])) <= after:
        assert running.processes[name].poll() is None
        time.sleep(0.005)
    running.processes[name].kill()
    running.processes[name].wait()
    running.start(name)


@pytest.mark.links
@pytest.mark.long
def test_five_processes_with_noise_in_secure_sums(loopback):
    running = loopback(
        terms(privacy={"secure_sum": True, "edge_noise": 3.0}, limits=Limits(deadline=600.0)), FULL
    )
    for name in running.homes:
        running.start(name)
    killed(running, "peer-3", after=4)
    finished(running)
    for home in running.homes.values():
        assert [entry["name"] for entry in ledger(home.folder)] == [
            f"round {n}" for n in range(1, ROUNDS + 1)
        ]
        assert {entry["what"] for entry in entries(home.audit_path) if entry["to"]} == {
            "private sum mask keys", *(f"private masked round {n}" for n in range(1, ROUNDS + 1)),
        }  # fmt: skip
        assert 1 - pb.load(home.model_path).score(X.iloc[TEST], Y[TEST]) < 0.3


# A peer whose process is another program: its statistics are altered before they are masked or signed.
LIAR = """
import sys
from peerbayes.peer.learning.learner import Broadcaster
honest = Broadcaster.outgoing
Broadcaster.outgoing = lambda self, state: {{name: {lie} for name, said in honest(self, state).items()}}
from peerbayes.cli.app import app
app(["peer", "run", sys.argv[1]], prog_name="peerbayes")
"""


@pytest.mark.links
@pytest.mark.long
@pytest.mark.parametrize(
    ("lie", "hidden", "robust", "refused"),
    [
        ("2.0 * said", {"secure_sum": True}, Robust(), ("the group", "class sums")),
        ("2.0 * said", {}, Robust(combine="clip"), ("peer-5", "class sums")),
        (
            "2.0 * self.start - said",
            {},
            Robust(combine="clip"),
            None,
        ),  # no check finds it: its pull is bounded
    ],
)
def test_five_processes_with_noise_and_a_liar_among_them(lie, hidden, robust, refused, loopback):
    """Its messages are refused or bounded, and logged; a peer killed on the way spends nothing twice."""
    limits = Limits(deadline=2.0, quorum=0.5)
    running = loopback(terms(privacy=hidden, robust=robust, limits=limits), FULL)
    for name in list(running.homes)[:-1]:
        running.start(name)
    liar = running.homes["peer-5"]
    with liar.log_path.open("ab") as log:
        running.processes["peer-5"] = subprocess.Popen(
            [sys.executable, "-c", LIAR.format(lie=lie), str(liar.folder)], stdout=log, stderr=log
        )
    killed(running, "peer-2", after=3)
    finished(running)
    for name in list(running.homes)[:-1]:
        home = running.homes[name]
        with stored(home.state_path) as store:
            found = {(entry["who"], entry["reason"]) for entry in store.refusals()}
        assert found == (set() if refused is None else {refused})
        if refused is not None:
            assert refused[1] in home.log_path.read_text()
        assert [entry["name"] for entry in ledger(home.folder)] == [
            f"round {n}" for n in range(1, ROUNDS + 1)
        ]
        said = {}
        for entry in entries(home.audit_path):
            assert entry["what"].startswith("private ")
            assert said.setdefault((entry["to"], entry["what"]), entry["digest"]) == entry["digest"]
        assert 1 - pb.load(home.model_path).score(X.iloc[TEST], Y[TEST]) < 0.35


def test_check_tells_what_is_promised_and_what_does_not_fit(loopback):
    running = loopback(terms())
    home = running.homes["peer-1"]
    found = {
        c["what"]: c
        for c in json.loads(peerbayes("peer", "check", home.folder, "--format", "json", code=0).stdout)
    }
    assert found["data"]["told"].startswith("90 rows as the agreement describes them: 7 features, 2 classes")
    assert (
        "nobody learns more about one row than epsilon 4 (delta 1e-05) allows; 0 is spent"
        in found["privacy"]["told"]
    )
    pd.read_csv(home.folder / "rows.csv").assign(large="perhaps").to_csv(
        home.folder / "rows.csv", index=False
    )
    told = json.loads(peerbayes("peer", "check", home.folder, "--format", "json", code=1).stdout)
    assert next(c["told"] for c in told if c["outcome"] == "failed").startswith(
        "column 'large' holds 'perhaps'"
    )


def test_owners_are_not_made_to_run_with_less_than_they_ask_for(loopback):
    home = loopback(terms()).homes["peer-1"]
    text = home.settings_path.read_text()
    for asked, told in (
        ("epsilon = 1.0", "requires epsilon = 1.0, and the agreement of test says 4.0"),
        ("delta = 1e-9", "requires delta = 1e-09, and the agreement of test says 1e-05"),
        ("min_rows = 500", "requires min_rows = 500, and the agreement of test says 50"),
        ("secure_sum = true", "requires secure_sum = true, and the agreement of test says false"),
    ):
        home.settings_path.write_text(f"{text}\n[require]\n{asked}\n")
        with pytest.raises(TermsError, match=told):
            home.load()
    home.settings_path.write_text(f"{text}\n[require]\nepsilon = 4\nmin_rows = 50\n")
    assert home.load().settings.require == {"epsilon": 4, "min_rows": 50}


def test_runs_that_were_left_count_against_what_an_owner_allows(loopback):
    home = loopback(terms()).homes["peer-1"]
    each = mu_of(4.0, 1e-5) ** 2 / ROUNDS
    from peerbayes.peer.learning.releases import Release

    with contextlib.closing(Store(home.folder / "state.left-1.sqlite")) as store:
        for number in range(1, 7):  # half of a run
            values = np.full((2, 2), float(number))
            store.add_round(
                RoundRecord(number, (values,), {}, (), (), release=Release(f"round {number}", each, values))
            )
    peer = home.load()
    told = spent(home, peer)
    assert told["spent"] == 0.0 and told["with_earlier_runs"] == pytest.approx(2.694456, abs=1e-5)
    refuse_overspent(home, peer)  # nothing was asked for
    text = home.settings_path.read_text()
    home.settings_path.write_text(f"{text}\n[require]\nepsilon = 5.07\n")
    refuse_overspent(home, home.load())
    home.settings_path.write_text(f"{text}\n[require]\nepsilon = 5.05\n")
    with pytest.raises(
        PeerError, match=r"have spent epsilon = 2\.6\d* on these rows, and this one would make it 5\.06"
    ):
        refuse_overspent(home, home.load())


def test_a_private_network_is_founded_by_options(tmp_path):
    peerbayes(
        "network", "new", tmp_path / "net", "--name", "clinics", "--label", "ill", "--classes", "no,yes",
        "--epsilon", 2, "--feature", "age=continuous:0..110", "--feature", "bmi=continuous:26+-5",
        "--feature", "sex=discrete:f,m", "--feature", "stage=discrete:1,2,3", "--average-rows", 400, "--min-rows", 200,
    )  # fmt: skip
    agreed = Terms.read(tmp_path / "net" / "agreement.toml")
    assert agreed.privacy == Privacy(epsilon=2.0, rows=400.0, min_rows=200)
    assert agreed.facts == {
        "age": Facts(range=(0.0, 110.0)), "bmi": Facts(26.0, 5.0), "sex": Facts(categories=("f", "m")),
        "stage": Facts(categories=(1, 2, 3)),
    }  # fmt: skip
    told = peerbayes("network", "inspect", tmp_path / "net", code=0).stdout
    assert "epsilon 2 with delta 1e-05; 200 or more rows per peer" in told
    told = peerbayes(
        "network",
        "new",
        tmp_path / "other",
        "--name",
        "n",
        "--label",
        "ill",
        "--epsilon",
        2,
        "--feature",
        "age",
        code=2,
    )
    assert "no classes are named" in told.stderr


def test_settings_of_a_peer_are_written_with_what_it_requires(tmp_path):
    settings_of = Settings("a", "h:1", "0.0.0.0:1", "rows.csv", require={"epsilon": 4.0, "secure_sum": True})
    (tmp_path / "peer.toml").write_text(settings_of.to_toml(tmp_path))
    assert Settings.read(tmp_path / "peer.toml").require == {"epsilon": 4.0, "secure_sum": True}
    assert Home(tmp_path).settings().require["epsilon"] == 4.0
