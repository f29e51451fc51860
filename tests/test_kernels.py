"""The kernels for large tables give the numbers of the plain code for small ones."""

import numpy as np
import pandas as pd
import pytest

import peerbayes as pb
from peerbayes import passes, scans
from peerbayes.families import NaiveBayes, SeparateGaussian, SharedGaussian
from peerbayes.families.base import Family
from peerbayes.tables import Table

ROWS = 5000  # two and a half blocks


@pytest.fixture
def always_large(monkeypatch):
    monkeypatch.setattr(passes, "LARGE", 0)
    monkeypatch.setattr(scans, "LARGE", 0)


def mixed_table(rng, rows=ROWS, missing=False):
    X = np.concatenate([rng.normal(3, 2, (rows, 4)), rng.integers(-2, 3, (rows, 3))], axis=1)
    if missing:
        X[rng.random(X.shape) < 0.1] = np.nan
    return X, {4: "discrete", 5: "discrete", 6: "discrete"}


SHAPES = [(NaiveBayes, False), (NaiveBayes, True), (SeparateGaussian, False), (SharedGaussian, False)]


@pytest.mark.parametrize(("kind", "missing"), SHAPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rows", [1, 2048, ROWS, 8193])
def test_blocks_equal_the_whole(kind, missing, weighted, rows, always_large):
    rng = np.random.default_rng(0)
    X, kinds = mixed_table(rng, rows, missing)
    schema = pb.Schema.infer(X, kinds=kinds, clip=2.0)
    layout = {"missing": True} if missing else {}
    family = kind(
        continuous=4, cardinalities=schema.cardinalities, variance_floor=0.05, count_floor=1e-4, **layout
    )
    labels = rng.integers(0, 3, rows).astype(np.int32)
    weights = rng.uniform(0, 2, rows) if weighted else None
    model = family.weights(family.uniform(3, 1.0) + rng.normal(0, 0.02, (3, family.size)))
    one_hot = np.eye(3)[labels] * (1 if weights is None else weights[:, None])
    held = passes.Held(family.features(schema.encode(X)), one_hot)
    streamed = passes.Streamed(family, passes.Raw(schema, Table.of(X)), labels, 3, weights)
    np.testing.assert_allclose(streamed.statistics(), held.statistics(), rtol=1e-12, atol=1e-9)
    fast, plain = streamed.evaluate(model), held.evaluate(model)
    np.testing.assert_allclose(fast.residual, plain.residual, rtol=1e-9, atol=1e-9)
    assert fast.soft_error == pytest.approx(plain.soft_error, rel=1e-12)
    assert fast.error == pytest.approx(plain.error, abs=1e-12)


@pytest.mark.parametrize("estimator", [pb.MixedNB, pb.QDA, pb.LDA])
@pytest.mark.parametrize("calibrate", [False, True])
@pytest.mark.parametrize("frame", [False, True])
def test_estimators_do_not_care_how_large_a_table_is(estimator, calibrate, frame, monkeypatch):
    rng = np.random.default_rng(1)
    X, kinds = mixed_table(rng)
    y = (X[:, 0] + X[:, 4] + rng.normal(size=ROWS) > 3).astype(int)
    table = pd.DataFrame(X, columns=list("abcdefg")) if frame else X
    kinds = {"abcdefg"[j]: kind for j, kind in kinds.items()} if frame else kinds
    small = estimator(calibrate=calibrate, kinds=kinds, max_iter=5, keep="last").fit(table, y)
    expected = small.predict_proba(table), small.predict_joint_log_proba(table), small.predict(table)
    monkeypatch.setattr(passes, "LARGE", 0)
    monkeypatch.setattr(scans, "LARGE", 0)
    large = estimator(calibrate=calibrate, kinds=kinds, max_iter=5, keep="last").fit(table, y)
    np.testing.assert_allclose(
        np.asarray(large.statistics_), np.asarray(small.statistics_), rtol=1e-10, atol=1e-9
    )
    np.testing.assert_allclose(large.predict_proba(table), expected[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(large.predict_joint_log_proba(table), expected[1], rtol=1e-9)
    np.testing.assert_array_equal(large.predict(table), expected[2])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.int16, np.uint8])
@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_any_number_type_and_memory_order(dtype, order, always_large):
    rng = np.random.default_rng(2)
    y = rng.integers(0, 3, ROWS)
    plain = rng.integers(0, 200, (ROWS, 5)) + 10.0 * y[:, None]
    X = np.asarray(plain, dtype=dtype, order="F" if order == "F" else "C")
    if order == "strided":
        X = np.repeat(X, 2, axis=1)[:, ::2]
    expected = pb.MixedNB().fit(plain, y).predict_proba(plain)
    np.testing.assert_allclose(pb.MixedNB().fit(X, y).predict_proba(X), expected, rtol=1e-6, atol=1e-9)


def test_moments_equal_numpys_where_the_mean_is_far_from_zero(always_large):
    rng = np.random.default_rng(3)
    values = rng.normal(1e6, 1e-2, (20_000, 3))
    values[5000:, 1] += 1e3
    values[rng.random(values.shape) < 0.2] = np.nan
    count, mean, variance, low, high = scans.column_moments(values)
    np.testing.assert_array_equal(count, (~np.isnan(values)).sum(axis=0))
    np.testing.assert_allclose(mean, np.nanmean(values, axis=0), rtol=1e-14)
    np.testing.assert_allclose(variance, np.nanvar(values, axis=0), rtol=1e-7)
    np.testing.assert_array_equal(low, np.nanmin(values, axis=0))
    np.testing.assert_array_equal(high, np.nanmax(values, axis=0))


def test_distinct_integers_equal_numpys(always_large):
    values = np.random.default_rng(4).integers(-5, 40, (3000, 4)) * np.array([1, 3, 1, 1000])
    found = scans.distinct_integers(values, [0, 1, 3])
    assert found == [tuple(np.unique(values[:, j]).tolist()) for j in (0, 1, 3)]


def test_the_exponential_is_the_librarys():
    from peerbayes import kernels

    logits = -np.random.default_rng(5).exponential(30, (2, 4000))
    logits[0] = 0
    expected = np.exp(logits) / np.exp(logits).sum(axis=0)
    kernels.softmax(logits, np.empty(4000, dtype=np.int64))
    np.testing.assert_allclose(logits, expected, rtol=4e-16, atol=1e-300)


def test_a_family_without_kernels_takes_the_general_way(always_large):
    """A new family needs φ and θ only: the blocks are then expanded by φ itself."""

    class Own(Family):
        name = "own"
        dense_size = 3

        def dense(self, values):
            return np.concatenate([np.ones((len(values), 1)), values], axis=1)

        weights = uniform_moments = None

    family = Own(continuous=2)
    rng = np.random.default_rng(6)
    X, labels = rng.normal(size=(ROWS, 2)), rng.integers(0, 3, ROWS).astype(np.int32)
    schema = pb.Schema.infer(X)
    streamed = passes.Streamed(family, passes.Raw(schema, Table.of(X)), labels, 3)
    held = passes.Held(family.features(schema.encode(X)), np.eye(3)[labels])
    weights = rng.normal(size=(3, 3))
    np.testing.assert_allclose(streamed.statistics(), held.statistics(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(
        streamed.evaluate(weights).residual, held.evaluate(weights).residual, atol=1e-9
    )
