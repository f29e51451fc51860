"""R(S) = (Y − P)ᵀΦ: whoever asks for it, one function chooses how it is computed, and all ways agree."""

import numpy as np
import pandas as pd
import pytest

import peerbayes as pb
from peerbayes.data.table import Table
from peerbayes.learning.local_rows import LocalRows
from peerbayes.model import core, passes, residuals, sources
from peerbayes.model.devices import NUMPY
from peerbayes.model.families import BayesNet, NaiveBayes, Rows, SeparateGaussian
from peerbayes.model.residuals import PeerRows, TableResidual, residual_of

SIZES, CLASSES = np.array([7, 0, 12, 5]), 3


def rows_of_peers(family, seed=0, missing=False):
    rng = np.random.default_rng(seed)
    count = int(SIZES.sum())
    values = rng.normal(size=(count, family.continuous))
    if missing:
        values[rng.random(values.shape) < 0.2] = np.nan
    codes = np.stack([rng.integers(0, size, count) for size in family.cardinalities], axis=1)
    labels = rng.integers(0, CLASSES, count)
    return PeerRows(family, Rows(values, codes), labels, rng.random(count) + 0.5, SIZES, CLASSES)


def statistics(family, seed=1):
    rng = np.random.default_rng(seed)
    uniform = family.uniform(CLASSES, 24.0)
    return np.tile(uniform, (SIZES.size, 1, 1)) + 0.3 * rng.random((SIZES.size, CLASSES, family.size))


LAYOUT = {"continuous": 3, "cardinalities": (2, 3)}
NAIVE = NaiveBayes(**LAYOUT, variance_floor=0.05)
MANY = NaiveBayes(continuous=1, cardinalities=(40, 50), variance_floor=0.05)  # Φ is sparse
QDA = SeparateGaussian(**LAYOUT, variance_floor=0.05)
NETWORK = BayesNet(**LAYOUT, variance_floor=0.05, parents=((), (0,), (3,), (), (3,)))


def by_peer(peers, stats):
    """Return R of each peer alone, from its own Φ."""
    weights, changes = peers.family.weights(stats), []
    for peer, local in enumerate(peers.slices):
        features = peers.family.features(peers.select(local))
        changes.append(core.residual(features, peers.one_hot[local], weights[peer]))
    return np.stack(changes)


@pytest.mark.parametrize(
    "family", [NAIVE, MANY, QDA, NETWORK], ids=lambda family: f"{family.name}-{family.size}"
)
@pytest.mark.parametrize("passes", [1, 1 << 40])
@pytest.mark.parametrize("memory", [1, 1 << 25])
def test_every_way_gives_the_residual_of_each_peer_alone(family, passes, memory, monkeypatch):
    monkeypatch.setattr(residuals, "FEATURES_HELD", memory)
    peers, stats = rows_of_peers(family), statistics(family)
    change = residual_of(peers, family, passes)(stats)
    np.testing.assert_allclose(change, by_peer(peers, stats), rtol=1e-9, atol=1e-9)
    weights = family.weights(stats)
    at_weights = residual_of(peers, family, passes, of_weights=True)(weights)
    np.testing.assert_allclose(at_weights, change, rtol=1e-9, atol=1e-9)


def test_local_steps_are_taken_one_after_the_other():
    peers, stats = rows_of_peers(QDA), statistics(QDA)
    once = residual_of(peers, QDA, 1)
    moved = stats + once(stats)
    np.testing.assert_array_equal(residual_of(peers, QDA, 1, 2)(stats), moved + once(moved) - stats)


@pytest.mark.parametrize("family", [QDA, NETWORK], ids=lambda family: family.name)
def test_rows_with_missing_values_are_added_to_the_complete_ones(family):
    peers, stats = rows_of_peers(family, missing=True), statistics(family)
    expected = by_peer(peers.complete, stats)
    weights = family.weights(stats)
    for peer, (completion, labels) in peers.gaps.items():
        expected[peer] += completion.residual(weights[peer], labels)[0]
    np.testing.assert_allclose(residual_of(peers, family, 1)(stats), expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="learns weights"):
        residual_of(peers, family, 1, of_weights=True)


def chosen(monkeypatch, family, passes, of_weights=False, missing=False, held=1 << 25):
    """Return the names of the implementations that a choice takes, the last one first."""
    names = []
    for name in ("held", "held_sparse", "streamed", "fused", "completed"):
        original = getattr(residuals, name)

        def record(*arguments, name=name, original=original):
            residual = original(*arguments)
            names.extend([name] if residual is not None else [])
            return residual

        monkeypatch.setattr(residuals, name, record)
    monkeypatch.setattr(residuals, "FEATURES_HELD", held)
    residual_of(rows_of_peers(family, missing=missing), family, passes, 1, of_weights)
    monkeypatch.undo()
    return names


def test_one_function_chooses_by_family_work_memory_and_missing_values(monkeypatch):
    much = 1 << 40
    assert chosen(monkeypatch, NAIVE, 1) == ["held"]
    assert chosen(monkeypatch, NAIVE, much) == ["fused"]
    assert chosen(monkeypatch, NAIVE, much, of_weights=True) == ["streamed"]
    assert chosen(monkeypatch, MANY, 1) == ["held_sparse"]
    assert chosen(monkeypatch, NETWORK, much) == ["streamed"]
    assert chosen(monkeypatch, NETWORK, much, held=10) == ["held"]
    assert chosen(monkeypatch, NETWORK, 1, missing=True) == ["held", "completed"]


def test_simulated_and_real_peers_take_the_chosen_one(monkeypatch):
    calls = []
    monkeypatch.setattr("peerbayes.learning.local_rows.residual_of", lambda *given: calls.append(given[1:]))
    peers = rows_of_peers(QDA)
    rows = LocalRows(QDA, peers.rows, peers.labels, peers.row_weights, SIZES, CLASSES, NUMPY)
    rows.residual(9, 2, True)
    assert calls == [(QDA, 9, 2, True)]


@pytest.mark.parametrize("incomplete", [False, True])
def test_a_tables_residual_comes_with_the_errors_of_the_same_pass(incomplete):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(3000, 3))
    if incomplete:
        X[::7, 1] = np.nan
    schema, labels = pb.Schema.infer(pd.DataFrame(X)), rng.integers(0, 2, len(X))
    family = SeparateGaussian(continuous=3, variance_floor=0.05)
    data = passes.labelled(
        family, sources.source_of(schema, Table.of(X), again=True), labels, 2, missing=incomplete
    )
    residual, stats = residual_of(data, family, 3), family.uniform(2, 1.0)
    assert isinstance(residual, TableResidual)
    evaluation = residual.evaluate(stats)
    np.testing.assert_array_equal(residual(stats), evaluation.residual)
    assert evaluation.soft_error == pytest.approx(0.5) and evaluation.error == pytest.approx(labels.mean())
    assert evaluation.log_loss == pytest.approx(np.log(2))
