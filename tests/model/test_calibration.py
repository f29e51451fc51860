"""Risk-based calibration: what it conserves, what it lowers, where it starts and stops."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.metrics import log_loss

import peerbayes as pb
from peerbayes.estimators.classifiers import KDB, TAN
from peerbayes.model.calibration import TO_THE_END, calibrate, start_statistics
from peerbayes.model.families import NaiveBayes
from peerbayes.model.passes import Held

ESTIMATORS = [pb.MixedNB, pb.QDA, pb.LDA]
PAPER = {"calibrate": True, "step": "fixed", "validation_fraction": 0.0}  # the paper's steps, on all rows


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("start", ["uniform", "marginal", "ml"])
@pytest.mark.parametrize("load", [load_iris, load_wine])
def test_class_sums_stay_where_the_start_put_them(estimator, start, load):
    X, y = load(return_X_y=True)
    first = estimator(calibrate=True, start=start, max_iter=0).fit(X, y).statistics_
    last = estimator(calibrate=True, start=start, keep="last").fit(X, y).statistics_
    expected = np.asarray(first).sum(axis=0)
    moved = np.asarray(last).sum(axis=0) - expected
    assert np.abs(moved).max() <= 1e-12 * np.abs(np.asarray(last)).sum(axis=0).max()
    assert last.rows == pytest.approx(len(y), rel=1e-12)


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer, load_digits])
def test_calibration_lowers_the_training_error_of_maximum_likelihood(load):
    X, y = load(return_X_y=True)
    likely = pb.MixedNB().fit(X, y).score(X, y)
    assert pb.MixedNB(calibrate=True, start="ml").fit(X, y).score(X, y) >= likely


def separated(seed=0, rows=200, distance=8.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, rows)
    return rng.normal(size=(rows, 4)) + distance * np.eye(3, 4)[y], y


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("keep", ["best", "last"])
@pytest.mark.parametrize("seed", range(3))
def test_where_maximum_likelihood_separates_calibration_never_raises_the_soft_error(estimator, keep, seed):
    X, y = separated(seed)
    likely = estimator(calibrate=True, start="ml", max_iter=0).fit(X, y)
    assert likely.score(X, y) == 1
    calibrated = estimator(**PAPER, start="ml", keep=keep).fit(X, y)
    soft = calibrated.history_["soft_error"].to_numpy()
    assert calibrated.score(X, y) == 1
    assert (np.diff(soft) <= 1e-12).all()
    assert soft[-1] <= soft[0]


@pytest.mark.parametrize("start", ["uniform", "marginal"])
@pytest.mark.parametrize("seed", range(3))
def test_on_separated_classes_every_iteration_lowers_the_soft_error(start, seed):
    X, y = separated(seed)
    history = pb.MixedNB(**PAPER, start=start).fit(X, y).history_
    assert (np.diff(history["soft_error"]) < 0).all()
    assert history["error"].iloc[-1] == 0


def test_best_is_the_iterate_with_the_lowest_log_loss_and_last_the_last():
    X, y = load_wine(return_X_y=True)
    settings = {**PAPER, "lr": 2.0, "max_iter": 30}  # far too large a step: the log loss jumps about
    best, last = pb.MixedNB(**settings).fit(X, y), pb.MixedNB(**settings, keep="last").fit(X, y)
    loss = best.history_["log_loss"]
    np.testing.assert_array_equal(loss, last.history_["log_loss"])
    assert best.best_iter_ == loss.idxmin() < 30 == last.best_iter_
    assert best.best_iter_ != best.history_["soft_error"].idxmin()  # which rewards overconfidence
    truncated = pb.MixedNB(**{**settings, "max_iter": best.best_iter_}, keep="last").fit(X, y)
    np.testing.assert_array_equal(np.asarray(best.statistics_), np.asarray(truncated.statistics_))
    assert log_loss(y, best.predict_proba(X)) == pytest.approx(loss.min())


@pytest.mark.parametrize("step", ["fixed", "adaptive"])
def test_the_history_tells_the_errors_of_every_iterate(step):
    X, y = load_iris(return_X_y=True)
    settings = {"calibrate": True, "step": step, "validation_fraction": 0.0}
    history = pb.MixedNB(**settings, max_iter=7).fit(X, y).history_
    for iteration, soft_error, error, loss in history.itertuples(index=False):
        model = pb.MixedNB(**settings, max_iter=iteration, keep="last").fit(X, y)
        assert 1 - model.predict_proba(X)[np.arange(len(y)), y].mean() == pytest.approx(soft_error)
        assert log_loss(y, model.predict_proba(X)) == pytest.approx(loss)
        assert 1 - model.score(X, y) == pytest.approx(error)


def test_patience_stops_early():
    X, y = load_wine(return_X_y=True)
    model = pb.MixedNB(**PAPER, max_iter=500, patience=3, tol=1e-3).fit(X, y)
    slow = -np.diff(model.history_["log_loss"]) <= 1e-3
    assert model.n_iter_ < 500
    assert slow[-3:].all()
    assert not any(slow[k : k + 3].all() for k in range(len(slow) - 3))


def test_the_callback_hears_of_every_iteration_and_can_end_it():
    X, y = load_iris(return_X_y=True)
    heard = []

    def callback(iteration, soft_error, error):
        heard.append((iteration, soft_error, error))
        return iteration == 5

    model = pb.MixedNB(calibrate=True, callback=callback).fit(X, y)
    assert [iteration for iteration, _, _ in heard] == [0, 1, 2, 3, 4, 5]
    assert model.n_iter_ == 5
    assert heard[-1][1] == model.history_["soft_error"].iloc[-1]


def test_verbose_prints_a_line_per_iteration(capsys):
    X, y = load_iris(return_X_y=True)
    pb.MixedNB(calibrate=True, max_iter=3, verbose=True).fit(X, y)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert "soft error" in lines[-1]


def test_starts():
    X, y = load_iris(return_X_y=True)
    family = NaiveBayes(continuous=4)
    ml = pb.MixedNB(clip=None).fit(X, y).statistics_.values
    uniform, marginal, likely = (
        start_statistics(s, family, 3, 30.0, ml) for s in ("uniform", "marginal", "ml")
    )
    np.testing.assert_allclose(uniform, np.tile([10, *[0] * 4, *[10] * 4], (3, 1)))
    np.testing.assert_allclose(marginal, np.tile(ml.sum(axis=0) / 15, (3, 1)), atol=1e-12)
    np.testing.assert_allclose(likely, ml / 5)
    np.testing.assert_allclose(start_statistics(7 * likely, family, 3, 30.0), likely)


def test_a_users_own_start():
    X, y = load_iris(return_X_y=True)
    expert = pb.MixedNB().fit(X[::3], y[::3]).statistics_
    free = {"variance_floor": 1e-9, "count_floor": 1e-30}  # floors are in each table's own units
    model = pb.MixedNB(calibrate=True, temperature=False, start=expert, max_iter=0, **free).fit(X, y)
    assert model.statistics_.rows == pytest.approx(150)
    np.testing.assert_allclose(
        model.predict_proba(X), pb.MixedNB.from_statistics(expert, shrinkage=None).predict_proba(X), atol=1e-9
    )


@pytest.mark.parametrize("settings", [{**PAPER, "max_iter": 10, "keep": "last"}, {"calibrate": True}])
def test_weights_count_rows(settings):
    """By the paper's steps, and by those whose number is chosen on held-out rows: equal rows are held out together."""
    X, y = load_iris(return_X_y=True)
    times = np.random.default_rng(0).integers(0, 4, len(y))
    model = pb.MixedNB(**settings)
    weighted = clone(model).fit(X, y, sample_weight=times)
    repeated = clone(model).fit(np.repeat(X, times, axis=0), np.repeat(y, times))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-9)
    np.testing.assert_allclose(weighted.history_["soft_error"], repeated.history_["soft_error"], atol=1e-12)


def test_calibrate_leaves_its_start_alone():
    X, y = load_iris(return_X_y=True)
    family, schema = NaiveBayes(continuous=4), pb.Schema.infer(X)
    data = Held(family.features(schema.encode(X)), np.eye(3)[y])
    start = family.uniform(3, 150.0)
    kept = start.copy()
    calibrate(family, data, start, max_iter=3)
    np.testing.assert_array_equal(start, kept)


def plain_data():
    X, y = load_iris(return_X_y=True)
    family, schema = NaiveBayes(continuous=4), pb.Schema.infer(X)
    return family, Held(family.features(schema.encode(X)), np.eye(3)[y])


def test_sixty_four_steps_of_a_twentieth_unless_somebody_says_otherwise():
    family, data = plain_data()
    calibrated, stats = (
        calibrate(family, data, family.uniform(3, 150.0), step="fixed", keep="last"),
        family.uniform(3, 150.0),
    )
    for _ in range(64):
        stats = stats + 0.05 * data.evaluate(family.weights(stats)).residual
    assert calibrated.error.size == calibrated.soft_error.size == 65 and calibrated.kept == 64
    np.testing.assert_allclose(calibrated.stats, stats, rtol=1e-12, atol=1e-12)


def test_of_iterates_that_are_equally_good_the_first_is_kept():
    """Rows that are all alike, half of each class: there is nothing to learn, and the start is as good as any."""
    family = NaiveBayes(continuous=1)
    data = Held(np.tile([1.0, 0.0, 0.0], (4, 1)), np.eye(2)[[0, 1, 0, 1]])
    calibrated = calibrate(family, data, family.uniform(2, 4.0), max_iter=5)
    assert np.ptp(calibrated.soft_error) == 0 and calibrated.kept == 0
    assert calibrate(family, data, family.uniform(2, 4.0), max_iter=5, keep="last").kept == 5


@pytest.mark.parametrize("patience", [1, 2, 4])
def test_patience_counts_the_iterations_that_lower_nothing(patience):
    family = NaiveBayes(continuous=1)
    data = Held(np.tile([1.0, 0.0, 0.0], (4, 1)), np.eye(2)[[0, 1, 0, 1]])
    calibrated = calibrate(family, data, family.uniform(2, 4.0), patience=patience)
    assert calibrated.error.size == 1 + patience  # the start, which is lower than nothing at all


def test_a_gain_below_the_tolerance_is_none():
    family, data = plain_data()
    start = family.uniform(3, 150.0)
    gains = -np.diff(calibrate(family, data, start, step="fixed", max_iter=3).log_loss)
    for settings, size in (({"tol": gains[0] * 1.01}, 2), ({"tol": gains.min() * 0.99, "max_iter": 3}, 4)):
        assert calibrate(family, data, start, step="fixed", patience=1, **settings).error.size == size


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"lr": 0.0}, "lr is 0.0; expected a positive"), ({"lr": np.nan}, "lr is nan"),
        ({"max_iter": -1}, "max_iter is -1"), ({"keep": "first"}, "keep is 'first'"),
        ({"step": "long"}, "step is 'long'; expected 'adaptive' or 'fixed'"),
    ],
)  # fmt: skip
def test_calibrations_that_make_no_sense_are_refused(change, reason):
    family, data = plain_data()
    with pytest.raises(ValueError, match=reason):
        calibrate(family, data, family.uniform(3, 150.0), **change)
    assert calibrate(family, data, family.uniform(3, 150.0), max_iter=0).error.size == 1


# --- adaptive steps


def overlapping(seed, rows=300):
    """Mixed columns, one class much like another, and a column that says the same as another one."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, rows)
    x, z = rng.normal(size=(rows, 2)) + 0.7 * y[:, None], rng.integers(0, 4, rows) + (y == 2)
    return np.column_stack([x, x[:, 0] + 0.1 * rng.normal(size=rows), z]), y


KINDS = {"kinds": ["continuous"] * 3 + ["discrete"]}


@pytest.mark.parametrize("estimator", [*ESTIMATORS, TAN, KDB])
@pytest.mark.parametrize("start", ["uniform", "marginal", "ml"])
@pytest.mark.parametrize("lr", [0.05, 50.0])
def test_the_training_log_loss_never_rises_however_long_the_first_step(estimator, start, lr):
    X, y = overlapping(0)
    settings = {"calibrate": True, "start": start, "lr": lr, "max_iter": 24, "validation_fraction": 0.0}
    model = estimator(**settings, keep="last", **KINDS).fit(X, y)
    loss = model.history_["log_loss"]
    assert (np.diff(loss) <= 0).all() and loss.iloc[-1] < loss.iloc[0]
    assert log_loss(y, model.predict_proba(X)) == pytest.approx(loss.iloc[-1])


@pytest.mark.parametrize("estimator", [pb.MixedNB, TAN])
def test_adaptive_steps_go_farther_than_eight_times_as_many_of_the_papers(estimator):
    X, y = overlapping(1)
    short = estimator(calibrate=True, validation_fraction=0.0, keep="last", **KINDS).fit(X, y).history_
    long = estimator(**PAPER, max_iter=512, keep="last", **KINDS).fit(X, y).history_
    assert len(short) <= 65 and short["log_loss"].iloc[-1] <= long["log_loss"].iloc[-1] + 1e-3


def test_at_most_max_iter_evaluations_with_steps_back_among_them():
    family, data = plain_data()

    class Counting(Held):
        calls = 0

        def evaluate(self, weights):
            Counting.calls += 1
            return super().evaluate(weights)

    counting = Counting(data.features, data.labels)
    calibrated = calibrate(family, counting, family.uniform(3, 150.0), lr=100.0, max_iter=7)
    assert Counting.calls == calibrated.log_loss.size == 8
    assert (np.diff(calibrated.log_loss) == 0).any()  # a step back


def test_to_the_end_is_where_more_steps_change_little():
    family, data = plain_data()
    start = family.uniform(3, 150.0)
    end = calibrate(family, data, start, **TO_THE_END)
    farther = calibrate(family, data, end.stats, step="adaptive", keep="last", max_iter=8)
    assert end.kept == end.error.size - 1 < TO_THE_END["max_iter"]
    assert end.log_loss[-1] - farther.log_loss[-1] < 1e-3
    assert end.log_loss[-1] < calibrate(family, data, start, step="fixed", keep="last").log_loss[-1] - 0.01


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        ("fancy", "start is 'fancy'; expected one of uniform, marginal, ml"), ("ml", "the ml start needs"),
        (np.zeros((3, 9)), "the weight of 0.0 rows"), (np.ones((2, 9)), "start has shape"),
        (np.ones((3, 8)), "start has shape"), (-np.ones((3, 9)), "the weight of -3.0 rows"),
    ],
)  # fmt: skip
def test_starts_that_make_no_sense_are_refused(start, reason):
    with pytest.raises(ValueError, match=reason):
        start_statistics(start, NaiveBayes(continuous=4), 3, 30.0)
