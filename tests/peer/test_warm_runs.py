"""Runs that begin with the model of an earlier one: the start that all agree on, and where they stop."""

import asyncio
from dataclasses import replace

import networkx as nx
import numpy as np
import pandas as pd
import pytest

import peerbayes as pb
from peerbayes.errors import PeerError
from peerbayes.model.core import softmax
from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.agreement.warm import EarlierModel, fitted
from peerbayes.peer.models.history import History
from peerbayes.peer.runs.earlier import earlier_model, refuse_warm
from shared.commands import HANG
from shared.peers_in_memory import DENSE, peers_of, shared_out

pytestmark = pytest.mark.usefixtures("impatient")

TERMS = Terms("test", "label", strategy="tree-sum", rounds=300, tolerance=1e-7, limits=Limits(deadline=60.0))


def ended(peers, earlier=None, **more):
    """Have all run to the end; their S, and how many rounds it took."""

    async def main():
        tasks = [
            peers.start(name, earlier=None if earlier is None else earlier.get(name, EarlierModel()), **more)
            for name in peers.names
        ]
        return await asyncio.wait_for(asyncio.gather(*tasks), 600)

    stats = np.stack(asyncio.run(main()))
    rounds = {peers.nodes[name].session.round_index for name in peers.names}
    assert len(rounds) == 1, "all stop after the same round"
    return stats, rounds.pop()


def model_of(peers, name):
    return pb.Statistics.from_bytes((peers.folder / name / "model.peerbayes").read_bytes())


def noisy(rng):
    """Rows whose labels are often wrong: the best model is near, where that of classes apart is infinitely far."""
    X, y, parts = shared_out(rng, missing=False)
    y, wrong = y.copy(), rng.random(len(y)) < 0.4
    y[wrong] = rng.permutation(y[wrong])
    return X, y, parts


def answers_of(statistics, frame):
    features = statistics.family.features(statistics.schema.encode(frame))
    return softmax(np.asarray(features) @ np.asarray(statistics.family.weights(statistics.values)).T)


def warm_facts(peers, name):
    return [facts for event, facts in peers.told[name] if event == "warm"]


def test_members_begin_with_the_mean_of_the_models_that_some_of_them_have(tmp_path, rng):
    shared = noisy(rng)
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
    first = peers_of(tmp_path / "one", TERMS, DENSE, shared)
    _, slow = ended(first)
    model = model_of(first, "p0")
    # Only two have it, each of another weight: a model is the same at any. The others joined since.
    other = pb.Statistics(model.values * 1.5, model.schema, model.family, True)
    second = peers_of(tmp_path / "two", TERMS, DENSE, shared)
    again, fast = ended(second, {"p1": EarlierModel(model), "p3": EarlierModel(other)})
    assert all(facts["members"] == 2 for name in second.names for facts in warm_facts(second, name))
    assert len({row.tobytes() for row in again}) == 1 and 2 * fast < slow < TERMS.rounds
    answers = [answers_of(model_of(peers, "p4"), shared[0]) for peers in (first, second)]
    np.testing.assert_allclose(answers[0], answers[1], rtol=0, atol=1e-5)


def test_a_model_that_fits_is_the_start_in_the_units_of_the_run(tmp_path, rng):
    shared = shared_out(rng, missing=False)
    peers = peers_of(tmp_path, TERMS, DENSE, shared)
    ended(peers)
    model = model_of(peers, "p0")
    X, y, _ = shared
    other = pb.Schema.infer(X.assign(height=2.0 * X["height"] + 5.0, size=X["size"].replace("0", "9")), y)
    assert fitted(model, other, model.family) is None  # the size 0 is gone
    moved = replace(model.schema, columns=tuple(
        replace(column, location=column.location + 0.3 * column.scale, scale=1.2 * column.scale)
        if column.traits.reads_numbers else column for column in model.schema.columns
    ))  # fmt: skip
    expressed = fitted(model, moved, model.family)
    assert not np.allclose(expressed.values, model.values)
    np.testing.assert_allclose(answers_of(expressed, X), answers_of(model, X), rtol=0, atol=1e-9)


def test_where_no_model_fits_all_begin_afresh(tmp_path, rng):
    shared = noisy(rng)
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
    afresh = peers_of(tmp_path / "one", TERMS, DENSE, shared)
    stats, rounds = ended(afresh)
    other = pb.MixedNB(calibrate=False).fit(
        shared[0].assign(colour=np.resize(["green", "red"], len(shared[0]))), shared[1]
    )
    stranger = replace(other.statistics_, calibrated=True)
    earlier = {"p0": EarlierModel(stranger)}
    warm = peers_of(tmp_path / "two", TERMS, DENSE, shared)
    again, same = ended(warm, earlier)
    assert same == rounds and warm_facts(warm, "p2") == [{"members": 0}]
    np.testing.assert_array_equal(again, stats)


@pytest.mark.parametrize("strategy", ["exact", "relay", "crc", "consensus-ml"])
def test_every_strategy_takes_a_warm_start_or_none(strategy, tmp_path, rng):
    """What honest members send after a warm start is never refused."""
    shared = shared_out(rng, missing=False)
    terms = Terms("test", "label", strategy=strategy, rounds=8, limits=Limits(deadline=60.0))
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
    first = peers_of(tmp_path / "one", Terms("test", "label", strategy="tree-sum", rounds=20), DENSE, shared)
    ended(first)
    model = model_of(first, "p0")
    peers = peers_of(tmp_path / "two", terms, DENSE, shared)
    ended(peers, dict.fromkeys(peers.names, EarlierModel(model)))
    events = [event for name in peers.names for event, _ in peers.told[name]]
    assert "refused" not in events
    expected = 0 if strategy == "consensus-ml" else 5
    assert warm_facts(peers, "p4") == [{"members": expected}]


def test_a_peer_that_the_earlier_model_is_wrong_about_is_believed(tmp_path, rng):
    """Nearly all rows are of a class that the model holds for impossible: the first message is as large as can be."""
    x = rng.normal(size=202)
    X, y = pd.DataFrame({"x": x}), np.array(["b"] * 200 + ["a", "b"])
    model = pb.MixedNB(calibrate=False).fit(X, ["a", "b"] * 101).statistics_
    heavy = np.array([[1e6], [1.0]]) * model.values / model.values[:, :1]
    earlier = EarlierModel(replace(model, values=heavy, calibrated=True))
    terms = Terms("test", "label", strategy="exact", rounds=3, limits=Limits(deadline=3.0))
    peers = peers_of(tmp_path, terms, nx.path_graph(2), (X, y, [np.arange(200), np.arange(200, 202)]))
    refused = []

    async def main():
        tasks = [peers.start(name, earlier=earlier) for name in peers.names]
        whole = asyncio.gather(*tasks)
        while not whole.done() and not refused:  # whoever is refused asks again for ever
            refused.extend(
                facts for told in peers.told.values() for event, facts in told if event == "refused"
            )
            await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), HANG))
    assert refused == []
    assert all(node.session.round_index == terms.rounds for node in peers.nodes.values())


def test_a_run_that_is_started_again_has_the_same_earlier_model_or_stops(tmp_path, rng):
    shared = shared_out(rng, missing=False)
    (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
    graph = nx.path_graph(1)
    alone = shared[0], shared[1], [np.arange(len(shared[1]))]
    first = peers_of(tmp_path / "one", TERMS, graph, alone)
    ended(first)
    model = model_of(first, "p0")
    peers = peers_of(tmp_path / "two", TERMS, graph, alone)
    ended(peers, {"p0": EarlierModel(model)})
    ended(peers, {"p0": EarlierModel(model)})
    with pytest.raises(PeerError, match="another model of the run that this one began with"):
        ended(peers, {"p0": EarlierModel()})


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({}, ""),
        ({"robust": {"combine": "clip"}}, "robust"),
        ({"privacy": {"secure_sum": True}}, "secure sums"),
    ],
)
def test_where_single_messages_must_not_be_seen_nor_may_models(terms, says):
    from peerbayes.peer.agreement.terms import Privacy, Robust

    kinds = {"robust": Robust, "privacy": Privacy}
    made = Terms(
        "test", "label", strategy="exact", **{name: kinds[name](**each) for name, each in terms.items()}
    )
    assert (says in refuse_warm(made)) if says else refuse_warm(made) == ""


def test_a_folder_without_the_model_or_with_a_damaged_one_brings_none(tmp_path):
    from shared.runs_of_folders import Folders

    folders = Folders(tmp_path)
    home = folders.network.homes["peer-1"]
    assert earlier_model(home, 1).statistics is None and earlier_model(home, 7).statistics is None
    model = (
        pb.MixedNB(calibrate=False).fit([[0.0], [1.0], [2.0], [3.0]], ["no", "yes", "no", "yes"]).statistics_
    )
    home.model_path.write_bytes(model.to_bytes())
    facts = {"network": "net", "rounds": 3, "data": "", "terms": ""}
    History(home.folder).record(None, run="0" * 64, run_number=2, **facts)
    found = earlier_model(home, 2)
    assert found.steps is None and np.array_equal(found.statistics.values, model.values)
    assert earlier_model(home, 1).statistics is None
    History(home.folder).path(1).write_bytes(b"damaged")
    assert earlier_model(home, 2).statistics is None


def test_a_tolerance_is_for_strategies_whose_members_have_the_same_model():
    from peerbayes.errors import TermsError

    with pytest.raises(TermsError, match="tolerance is 1e-07 and strategy 'exact'"):
        Terms("test", "label", strategy="exact", tolerance=1e-7)
    plain, toleranced = Terms("test", "label", strategy="tree-sum"), TERMS
    assert "tolerance" not in plain.to_toml() or Terms.parse(plain.to_toml(), "x").digest == plain.digest
    assert Terms.parse(toleranced.to_toml(), "x") == toleranced
