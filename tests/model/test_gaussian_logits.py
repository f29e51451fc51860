"""Logits of Gaussian classes without the products of φ are those with them."""

import numpy as np
import pandas as pd
import pytest

import peerbayes as pb
from peerbayes.model.families.gaussian import Gaussian, SharedGaussian
from peerbayes.model.gaussian_logits import gaussian_logits, unclipped
from peerbayes.model.passes import dense_features, write_highest
from peerbayes.model.sources import Block

D, CLASSES = 5, 3


def block(location, scale, clip, values):
    return Block(values, np.zeros((len(values), 0), np.int32), location, 1.0 / scale, clip)


@pytest.fixture(params=["plain", "clipped", "far", "unlike", "encoded"])
def rows(request):
    """Blocks of rows with and without values to clip, in columns of one size and of many."""
    rng = np.random.default_rng(7)
    location = np.full(D, {"far": 1e6}.get(request.param, 0.3))
    scale = np.logspace(-3, 3, D) if request.param == "unlike" else np.ones(D)
    values = rng.normal(size=(700, D)) * scale + location
    if request.param == "clipped":
        values[[3, 600], [0, 4]] = 100.0, -100.0
    if request.param == "encoded":
        return block(np.zeros(D), np.ones(D), np.inf, values)
    return block(location, scale, 5.0, values)


def weights_of(family, shared):
    rng = np.random.default_rng(1)
    weights = rng.normal(size=(CLASSES, family.dense_size))
    if shared:
        weights[:, 1 + D :] = weights[0, 1 + D :]
    return weights


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize(("shared", "kind"), [(False, Gaussian), (True, SharedGaussian)])
def test_logits_are_those_of_the_features(rows, shared, kind, relative):
    family = kind(continuous=D)
    weights = weights_of(family, shared)
    expected = weights @ dense_features(family, rows)
    logits = gaussian_logits(family, weights, relative)(rows)
    if shared and relative:
        expected, logits = expected - expected[0], logits - logits[0]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-9 * np.abs(expected).max())


def test_what_may_stand_for_standardised_values(rows):
    inside = np.abs((rows.values - rows.location) * rows.inverse).max() <= rows.clip
    assert unclipped(rows) == (inside and rows.location[0] < 1e6)
    rows.values[5, 2] = np.nan
    assert not unclipped(rows)


@pytest.mark.parametrize("classes", [2, 4, 5])
def test_of_equal_classes_the_first_is_highest(classes):
    logits = np.random.default_rng(0).integers(0, 3, (classes, 200)).astype(float)
    best = np.empty(200, dtype=np.intp)
    write_highest(logits, best)
    np.testing.assert_array_equal(best, logits.argmax(axis=0))


@pytest.mark.parametrize("estimator", [pb.MixedNB, pb.QDA, pb.LDA])
@pytest.mark.parametrize("kind", ["float64", "float32", "int16"])
def test_a_dataframe_of_numbers_is_read_as_an_array(estimator, kind):
    rng = np.random.default_rng(2)
    y = rng.integers(0, 3, 400)
    X = (10 * rng.normal(size=(400, 4)) + 9 * y[:, None]).astype(kind)
    frame = pd.DataFrame({name: X[:, j] for j, name in enumerate("abcd")})
    of_frame, of_array = estimator().fit(frame, y), estimator().fit(X, y)
    np.testing.assert_array_equal(of_frame.statistics_.values, of_array.statistics_.values)
    for rows in (1, 7, 400):
        np.testing.assert_allclose(
            of_frame.predict_proba(frame[:rows]), of_array.predict_proba(X[:rows]), rtol=1e-12
        )


def test_columns_of_a_dataframe_are_found_by_name(tmp_path):
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, 300)
    frame = pd.DataFrame(rng.normal(size=(300, 3)) * [1, 5, 9] + y[:, None], columns=list("abc"))
    fitted = pb.QDA().fit(frame, y)
    fitted.save(tmp_path / "model.peerbayes")
    loaded = pb.load(tmp_path / "model.peerbayes")
    np.testing.assert_array_equal(
        loaded.predict_proba(frame.assign(more=1.0)[["more", "c", "a", "b"]]), fitted.predict_proba(frame)
    )


def test_a_missing_value_in_a_dataframe_is_completed():
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, 300)
    X = rng.normal(size=(300, 3)) + y[:, None]
    names = list("abc")
    model = pb.QDA().fit(pd.DataFrame(X, columns=names), y)
    before = model.predict_proba(pd.DataFrame(X, columns=names))
    X[4, 1] = np.nan
    completed = model.predict_proba(pd.DataFrame(X, columns=names))
    assert np.isfinite(completed).all() and not np.allclose(completed[4], before[4])
    np.testing.assert_array_equal(np.delete(completed, 4, 0), np.delete(before, 4, 0))
