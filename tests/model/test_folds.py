"""Rows held out to choose the end of calibration: which they are, and what is chosen by them."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss

import peerbayes as pb
from peerbayes.data.table import Table
from peerbayes.estimators.classifiers import KDB, TAN
from peerbayes.model.calibration import HELD_OUT_PATIENCE
from peerbayes.model.folds import FEWEST_ROWS, grouped, row_keys, split


def table(rows, seed=0, classes=3):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, rows)
    return np.column_stack([rng.normal(size=(rows, 2)) + y[:, None], rng.integers(0, 3, rows)]), y


def split_of(X, y, weights=None, share=0.1):
    schema = pb.Schema.infer(X, y, kinds=["continuous", "continuous", "discrete"])
    return split(schema, Table.of(X), np.asarray(y), weights, share)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.25, 0.5])
@pytest.mark.parametrize("rows", [60, 700, 12_000])
def test_every_fold_has_its_share_of_each_class_and_no_row_of_another(rows, share):
    X, y = table(rows)
    chosen = split_of(X, y, share=share)
    total = np.zeros(rows, dtype=int)
    for held in chosen.held_out():
        total += held
        for c in range(3):
            assert abs(held[y == c].sum() - share * (y == c).sum()) <= 1
            assert (y[~held] == c).any()
    assert total.max() == 1
    folds = chosen.folds.size
    assert folds == round(1 / share) or total.sum() >= 1000 - 3 * folds
    assert f"{share:.0%} of {rows} different rows" in chosen.description


def test_the_order_of_rows_does_not_matter_and_weights_count_rows():
    X, y = table(400)
    groups = split_of(X, y).groups
    order = np.random.default_rng(1).permutation(len(y))
    np.testing.assert_array_equal(split_of(X[order], y[order]).groups, groups[order])
    times = np.random.default_rng(2).integers(1, 5, len(y))
    weighted = split_of(X, y, times.astype(float))
    repeated = split_of(np.repeat(X, times, axis=0), np.repeat(y, times))
    np.testing.assert_array_equal(repeated.groups, np.repeat(weighted.groups, times))
    assert weighted.description == repeated.description


def test_a_hash_of_a_row_depends_on_its_values_alone():
    X, y = table(300)
    X[:5, 0], X[5:9, 1], X[9, 0], X[10, 0] = np.nan, np.nan, 0.0, -0.0
    X[10, 1:] = X[9, 1:]
    schema = pb.Schema.infer(X, y, kinds=["continuous", "continuous", "discrete"])
    keys = row_keys(schema, Table.of(X))
    assert keys[9] == keys[10] and np.unique(keys).size == 299
    frame = pd.DataFrame(X, columns=list(schema.names)).assign(x2=X[:, 2].astype(int))
    np.testing.assert_array_equal(row_keys(schema, Table.of(frame[["x1", "x2", "x0"]])), keys)
    assert np.unique(row_keys(schema, Table.of(X[:, [1, 0, 2]]))).size >= 299
    assert abs(np.mean(keys / 2.0**64) - 0.5) < 0.1  # spread evenly


def test_rows_that_are_all_the_same_are_never_held_out():
    keys, labels = np.array([5, 5, 5, 1, 2], dtype=np.uint64), np.array([0, 0, 0, 1, 1])
    groups, distinct = grouped(keys, labels, None, 0.5)
    assert groups.tolist() == [-1, -1, -1, 0, 1] and distinct == 3
    for heavy in ([1e9, 1e-9], [1e-9, 1e9]):
        groups, _ = grouped(keys, labels, np.array([1, 1, 1, *heavy]), 0.5)
        assert groups[3] != groups[4]  # no group has both rows of the class


def test_folds_without_rows_are_left_out():
    keys, labels = np.arange(24, dtype=float)[:, None], np.repeat(np.arange(12), 2)
    schema = pb.Schema.infer(keys, labels, kinds="continuous")
    chosen = split(schema, Table.of(keys), labels, None, 0.1)
    assert [held.sum() for held in chosen.held_out()] == [12, 12]  # the two rows of each class
    single = split(schema, Table.of(keys), np.arange(24), None, 0.1)
    assert not single.folds.size and "classes have one row" in single.description


@pytest.mark.parametrize("rows", [FEWEST_ROWS - 1, FEWEST_ROWS])
def test_of_few_rows_none_are_held_out_and_the_reason_is_kept(rows):
    X, y = table(rows)
    model = pb.MixedNB(calibrate=True, kinds="continuous").fit(np.repeat(X, 3, axis=0), np.repeat(y, 3))
    few = rows < FEWEST_ROWS
    assert ("no row was held out: 19 different rows, fewer than 20" in model.validation_) == few
    assert ("held_out_log_loss" in model.history_) != few
    unsplit = pb.MixedNB(calibrate=True, validation_fraction=0.0, kinds="continuous").fit(X, y)
    assert unsplit.validation_ == "no row was held out: validation_fraction is 0"


def noisy(seed=0, rows=120):
    """Many columns that say nothing: a model learns them by heart."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    X = rng.integers(0, 4, (rows, 14))
    X[:, 0] = np.where(rng.random(rows) < 0.7, y, X[:, 0])
    return X, y


@pytest.mark.parametrize("estimator", [pb.MixedNB, TAN, KDB])
def test_where_a_model_learns_by_heart_it_stops_in_time(estimator):
    X, y = noisy()
    new, truth = noisy(1, 4000)
    settings = {"calibrate": True, "kinds": "discrete"}
    model = estimator(**settings).fit(X, y)
    last = estimator(**settings, validation_fraction=0.0, keep="last").fit(X, y)
    assert model.best_iter_ == model.history_["held_out_log_loss"].idxmin() < last.best_iter_
    assert log_loss(truth, model.predict_proba(new)) < log_loss(truth, last.predict_proba(new)) - 0.05
    assert model.n_iter_ <= model.best_iter_ + HELD_OUT_PATIENCE


def test_all_rows_take_as_many_steps_as_were_best_on_held_out_rows():
    X, y = noisy()
    model = pb.MixedNB(calibrate=True, kinds="discrete").fit(X, y)
    settings = {"calibrate": True, "kinds": "discrete", "validation_fraction": 0.0, "keep": "last"}
    again = pb.MixedNB(**settings, max_iter=model.best_iter_).fit(X, y)
    np.testing.assert_array_equal(model.statistics_.values, again.statistics_.values)


def test_the_history_has_the_losses_of_the_folds():
    """One fold of many rows: training losses of nine tenths, and the log loss of the tenth."""
    X, y = table(10_500)
    settings = {"calibrate": True, "kinds": ["continuous", "continuous", "discrete"], "max_iter": 5}
    model = pb.MixedNB(**settings).fit(X, y)
    (held,) = split_of(X, y).held_out()
    schema = {**settings, "schema": model.schema_, "validation_fraction": 0.0, "keep": "last"}
    for iteration, loss in enumerate(model.history_["held_out_log_loss"]):
        fold = pb.MixedNB(**{**schema, "max_iter": iteration}).fit(X[~held], y[~held])
        assert log_loss(y[held], fold.predict_proba(X[held])) == pytest.approx(loss, rel=1e-4)
        assert fold.history_["log_loss"].iloc[-1] == pytest.approx(
            model.history_["log_loss"][iteration], rel=1e-4
        )


@pytest.mark.parametrize("estimator", [pb.MixedNB, pb.QDA, TAN, KDB])
def test_missing_values_weights_and_the_order_of_rows(estimator):
    X, y = table(150)
    X[::7, 0], X[3::11, 2] = np.nan, np.nan
    times = np.random.default_rng(3).integers(0, 3, len(y))
    settings = {"calibrate": True, "kinds": ["continuous", "continuous", "discrete"], "max_iter": 6}
    model = estimator(**settings).fit(X, y, sample_weight=times)
    assert "held_out_log_loss" in model.history_
    order = np.random.default_rng(4).permutation(len(y))
    other = estimator(**settings).fit(X[order], y[order], sample_weight=times[order])
    repeated = estimator(**settings).fit(np.repeat(X, times, axis=0), np.repeat(y, times))
    for same in (other, repeated):
        np.testing.assert_allclose(same.predict_proba(X), model.predict_proba(X), atol=1e-7)


@pytest.mark.parametrize("share", [-0.1, 0.6, np.nan, "some"])
def test_shares_that_make_no_sense_are_refused(share):
    X, y = table(50)
    with pytest.raises(ValueError, match="validation_fraction is"):
        pb.MixedNB(calibrate=True, validation_fraction=share).fit(X, y)


def test_from_maximum_likelihood_the_least_overconfident_iterate_is_kept():
    """Two columns that say the same: maximum likelihood counts them twice, and the soft error likes that."""
    rng = np.random.default_rng(5)
    y = rng.integers(0, 2, 2000)
    x = rng.normal(size=2000) + y
    X = np.column_stack([x + 0.1 * rng.normal(size=2000) for _ in range(6)])
    model = pb.MixedNB(calibrate=True, start="ml").fit(X, y)
    assert model.history_["soft_error"].idxmin() < model.best_iter_
    assert log_loss(y, model.predict_proba(X)) < 0.59 < 0.8 < model.history_["log_loss"][0]
