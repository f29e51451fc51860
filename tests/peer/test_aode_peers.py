"""Peers that learn averaged one-dependence estimators: they end where the simulator does, and pooled rows would."""

import asyncio

import numpy as np
import pandas as pd
import pytest

import peerbayes as pb
from peerbayes.model import core
from peerbayes.model.residuals import PeerRows, held, scored
from peerbayes.peer.agreement.terms import Terms
from shared.peers_in_memory import DENSE, peers_of, same_as_simulated, shared_out, simulated

pytestmark = pytest.mark.usefixtures("impatient")


def discrete(rng):
    """The rows of five peers, in bins, some values missing; the first peer lacks a class and a colour."""
    X, y, parts = shared_out(rng)
    for name, letters in (("height", "abcd"), ("weight", "efgh")):
        X[name] = pd.qcut(X[name], 4, labels=list(letters)).astype(object)
    return X.astype(object).where(X.notna(), None), y, parts


@pytest.mark.parametrize(
    ("strategy", "start"),
    [("exact", "ml"), ("exact", "uniform"), ("tree-sum", "ml"), ("consensus-ml", "uniform")],
)
def test_peers_end_where_the_simulator_does(strategy, start, tmp_path, rng):
    terms = Terms("test", "label", family="aode", strategy=strategy, start=start, rounds=12)
    same_as_simulated(tmp_path, terms, DENSE, discrete(rng))


def test_peers_agree_on_the_model_of_all_rows(tmp_path, rng):
    """Maximum likelihood over peers is that of the pooled rows, to 1e-9."""
    X, y, parts = discrete(rng)
    terms = Terms("test", "label", family="aode", strategy="consensus-ml", rounds=300)
    run = simulated((X, y, parts), DENSE, terms)
    family, rows = run.classifier(0).family_, run.schema.encode(X)
    pooled = core.statistics(family.features(rows), core.one_hot(run.schema.encode_labels(y), 3))
    joint = family.scorer(family.weights(pooled))(rows)
    for peer in range(len(parts)):
        share = pooled[:, 0].sum() / run.stats[peer][:, 0].sum()
        np.testing.assert_allclose(run.stats[peer] * share, pooled, atol=1e-9 * len(y))
        np.testing.assert_allclose(family.scorer(family.weights(run.stats[peer]))(rows), joint, atol=1e-9)


def test_the_residual_of_peers_is_that_of_each_alone(rng):
    X, y, parts = discrete(rng)
    model = pb.AODE(calibrate=True, max_iter=1).fit(X, y)
    family, order = model.family_, np.concatenate(parts)
    rows = model.schema_.encode(X.iloc[order])
    labels = model.schema_.encode_labels(y[order])
    weights = np.random.default_rng(1).uniform(0.5, 2.0, labels.size)
    sizes = np.array([len(part) for part in parts])
    peers = PeerRows(family, rows, labels, weights, sizes, 3)
    stats = np.stack([model.statistics_.values * (1 + peer) + 5 * family.uniform(3) for peer in range(5)])
    together = scored(peers, 1)(stats)
    np.testing.assert_allclose(scored(peers, 10**9)(stats), together, atol=1e-9)  # by the kernel
    np.testing.assert_allclose(held(peers, False)(stats), together, atol=1e-9)  # by products, as on a GPU
    for peer, local in enumerate(peers.slices):
        features = family.features(peers.select(local))
        theta = family.weights(stats[peer])
        expected = core.residual(features, peers.one_hot[local], theta, family.log_joint)
        np.testing.assert_allclose(together[peer], expected, atol=1e-9)


def test_a_model_of_peers_is_read_as_any_other(tmp_path, rng):
    shared = discrete(rng)
    terms = Terms("test", "label", family="aode", strategy="exact", start="ml", rounds=4)
    peers = peers_of(tmp_path, terms, DENSE, shared)
    asyncio.run(peers.all())
    model = pb.load(tmp_path / "p1" / "model.peerbayes")
    assert type(model) is pb.AODE and model.calibrate
    assert np.mean(model.predict(shared[0]) != shared[1]) < 0.35
