"""The same numbers as scikit-learn, scipy and plain arithmetic."""

import numpy as np
import pandas as pd
import pytest
from scipy import integrate, stats
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.naive_bayes import CategoricalNB, GaussianNB

import peerbayes as pb


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer])
@pytest.mark.parametrize("weighted", [False, True])
def test_continuous_columns_equal_gaussian_nb(load, weighted):
    X, y = load(return_X_y=True)
    weights = np.random.default_rng(0).uniform(0.1, 3, len(y)) if weighted else None
    ours = pb.MixedNB(clip=None).fit(X, y, sample_weight=weights)
    theirs = GaussianNB(var_smoothing=0).fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(
        ours.predict_joint_log_proba(X), theirs.predict_joint_log_proba(X), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("alpha", [1e-3, 0.5, 1.0, 7.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_discrete_columns_equal_categorical_nb(alpha, weighted):
    rng = np.random.default_rng(1)
    y = rng.integers(0, 4, 500)
    X = np.stack([(rng.integers(0, 5, 500) + y) % size for size in (2, 3, 5, 6)], axis=1)
    weights = rng.uniform(0.1, 3, 500) if weighted else None
    ours = pb.MixedNB(kinds="discrete", alpha=alpha).fit(X, y, sample_weight=weights)
    theirs = CategoricalNB(alpha=alpha).fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(
        ours.predict_joint_log_proba(X), theirs.predict_joint_log_proba(X), rtol=0, atol=1e-10
    )


def test_mixed_columns_are_the_product_of_the_two():
    X, y = load_wine(return_X_y=True)
    cells = np.stack([np.digitize(x, np.quantile(x, [0.3, 0.6])) for x in X[:, :4].T], axis=1)
    frame = pd.DataFrame(X[:, 4:], columns=[f"c{j}" for j in range(9)])
    for j in range(4):
        frame.insert(2 * j, f"d{j}", np.array(list("abcdefgh"))[cells[:, j]])
    ours = pb.MixedNB(clip=None, alpha=0.7).fit(frame, y)
    gaussian = GaussianNB(var_smoothing=0).fit(X[:, 4:], y)
    categorical = CategoricalNB(alpha=0.7).fit(cells, y)
    product = gaussian.predict_joint_log_proba(X[:, 4:]) + categorical.predict_joint_log_proba(cells)
    product -= np.log(np.bincount(y) / y.size)  # the class prior is in both
    np.testing.assert_allclose(ours.predict_joint_log_proba(frame), product, rtol=0, atol=1e-10)


def well_conditioned(rows=600, columns=5, classes=3):
    rng = np.random.default_rng(2)
    y = rng.integers(0, classes, rows)
    mix = rng.normal(size=(classes, columns, columns)) + 2 * np.eye(columns)
    X = (
        np.einsum("ndk,nk->nd", mix[y], rng.normal(size=(rows, columns)))
        + rng.normal(size=(classes, columns))[y]
    )
    return X * np.geomspace(0.01, 100, columns) + 50, y


def standardised(X):
    """Columns of mean 0 and variance 1, which change no posterior of QDA and LDA.

    scikit-learn's solvers take columns as they are: on wine the within-class covariance then has a condition number of
    5.6e7, and their posteriors are right to 1e-7 on some processors only.
    """
    return (X - X.mean(axis=0)) / X.std(axis=0)


@pytest.mark.parametrize("data", [well_conditioned, lambda: load_iris(return_X_y=True)])
def test_qda_equals_scikit_learns(data):
    """Its eigen solver, which divides by n as maximum likelihood does; the svd solver divides by n − 1."""
    X, y = data()
    Z = standardised(X)
    theirs = QuadraticDiscriminantAnalysis(solver="eigen").fit(Z, y)
    ours = pb.QDA(clip=None).fit(X, y)
    np.testing.assert_allclose(ours.predict_log_proba(X), theirs.predict_log_proba(Z), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    "data", [well_conditioned, lambda: load_iris(return_X_y=True), lambda: load_wine(return_X_y=True)]
)
def test_lda_equals_scikit_learns(data):
    """Its lsqr solver, which divides by n as maximum likelihood does; the svd solver divides by n − C."""
    X, y = data()
    Z = standardised(X)
    theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(Z, y)
    ours = pb.LDA(clip=None).fit(X, y)
    np.testing.assert_allclose(ours.predict_log_proba(X), theirs.predict_log_proba(Z), rtol=1e-8, atol=1e-8)


def prior_and_class(X, y):
    for label in np.unique(y):
        yield np.log(np.mean(y == label)), X[y == label]


def test_naive_bayes_log_joint_is_scipys():
    X, y = load_wine(return_X_y=True)
    expected = np.stack(
        [
            prior + stats.norm(rows.mean(axis=0), rows.std(axis=0)).logpdf(X).sum(axis=1)
            for prior, rows in prior_and_class(X, y)
        ],
        axis=1,
    )
    np.testing.assert_allclose(
        pb.MixedNB(clip=None).fit(X, y).predict_joint_log_proba(X), expected, atol=1e-10
    )


def test_qda_log_joint_is_scipys():
    X, y = well_conditioned()
    expected = np.stack(
        [
            prior + stats.multivariate_normal(rows.mean(axis=0), np.cov(rows.T, bias=True)).logpdf(X)
            for prior, rows in prior_and_class(X, y)
        ],
        axis=1,
    )
    np.testing.assert_allclose(pb.QDA(clip=None).fit(X, y).predict_joint_log_proba(X), expected, atol=1e-8)


def test_lda_log_joint_is_scipys():
    X, y = well_conditioned()
    within = sum(np.cov(rows.T, bias=True) * len(rows) for _, rows in prior_and_class(X, y)) / len(y)
    expected = np.stack(
        [
            prior + stats.multivariate_normal(rows.mean(axis=0), within).logpdf(X)
            for prior, rows in prior_and_class(X, y)
        ],
        axis=1,
    )
    np.testing.assert_allclose(pb.LDA(clip=None).fit(X, y).predict_joint_log_proba(X), expected, atol=1e-8)


def test_a_missing_value_leaves_the_marginal_density():
    """Training and prediction: exactly what a model without that value would say."""
    X, y = load_iris(return_X_y=True)
    model = pb.MixedNB(clip=None).fit(X, y)
    for column in range(4):
        rows = X[::10].copy()
        rows[:, column] = np.nan
        others = np.delete(np.arange(4), column)
        smaller = pb.MixedNB(clip=None).fit(X[:, others], y)
        np.testing.assert_allclose(
            model.predict_joint_log_proba(rows), smaller.predict_joint_log_proba(rows[:, others]), atol=1e-10
        )


def test_a_missing_value_integrates_to_one():
    X, y = load_iris(return_X_y=True)
    model = pb.MixedNB(clip=None).fit(X[:, :2], y)
    row = X[0, :2]

    def joint(value):
        return np.exp(model.predict_joint_log_proba([[row[0], value]]))[0]

    over = [integrate.quad(lambda v, c=c: joint(v)[c], -5, 15, epsabs=1e-12, limit=200)[0] for c in range(3)]
    np.testing.assert_allclose(np.exp(model.predict_joint_log_proba([[row[0], np.nan]]))[0], over, rtol=1e-7)


def test_training_with_missing_values_uses_what_is_there():
    X, y = load_wine(return_X_y=True)
    holes = np.random.default_rng(0).random(X.shape) < 0.3
    holed = np.where(holes, np.nan, X)
    model = pb.MixedNB(clip=None).fit(holed, y)
    expected = np.zeros((len(y), 3))
    for c in range(3):
        rows = holed[y == c]
        terms = stats.norm(np.nanmean(rows, axis=0), np.nanstd(rows, axis=0)).logpdf(holed)
        expected[:, c] = np.log(np.mean(y == c)) + np.where(holes, 0, terms).sum(axis=1)
    np.testing.assert_allclose(model.predict_joint_log_proba(holed), expected, atol=1e-9)


def test_risk_based_calibration_equals_the_paper_written_out():
    """Algorithm 1 with loops over rows and classes, from the uniform start."""
    X, y = load_iris(return_X_y=True)
    model = pb.MixedNB(
        calibrate=True, max_iter=5, keep="last", clip=None, variance_floor=1e-9, count_floor=1e-30
    )
    model.fit(X, y)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    rows, columns = Z.shape
    count, first, second = np.full(3, rows / 3), np.zeros((3, columns)), np.full((3, columns), rows / 3)
    for _ in range(5):
        mean, variance = first / count[:, None], second / count[:, None] - (first / count[:, None]) ** 2
        step = np.zeros(3), np.zeros((3, columns)), np.zeros((3, columns))
        for z, label in zip(Z, y, strict=True):
            joint = count / count.sum() * np.prod(stats.norm(mean, np.sqrt(variance)).pdf(z), axis=1)
            posterior = joint / joint.sum()
            for c in range(3):
                change = (label == c) - posterior[c]
                step[0][c] += change
                step[1][c] += change * z
                step[2][c] += change * z**2
        count, first, second = (
            old + 0.05 * new for old, new in zip((count, first, second), step, strict=True)
        )
    expected = np.concatenate([count[:, None], first, second], axis=1)
    np.testing.assert_allclose(np.asarray(model.statistics_), expected, rtol=1e-9, atol=1e-9)


def test_a_constant_column_changes_nothing_but_the_density():
    X, y = load_digits(return_X_y=True)  # has constant pixels
    varying = X.std(axis=0) > 0
    # Pixels that are constant within a class have weights of 1 / variance_floor: with the default, 1e-9, terms of 1e9
    # cancel in a log joint, and rounding alone moves posteriors by 1e-7.
    model = pb.MixedNB(variance_floor=0.01)
    every, fewer = clone(model).fit(X, y), clone(model).fit(X[:, varying], y)
    np.testing.assert_allclose(every.predict_proba(X), fewer.predict_proba(X[:, varying]), atol=1e-9)
