"""The same numbers as scikit-learn, scipy and plain arithmetic."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.naive_bayes import CategoricalNB, GaussianNB

import peerbayes as pb
from peerbayes.model import core
from peerbayes.model.families import BayesNet, NaiveBayes, Rows, SeparateGaussian, SharedGaussian
from peerbayes.model.families.gaussian import floored_precision


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer])
@pytest.mark.parametrize("weighted", [False, True])
def test_continuous_columns_equal_gaussian_nb(load, weighted):
    X, y = load(return_X_y=True)
    weights = np.random.default_rng(0).uniform(0.1, 3, len(y)) if weighted else None
    ours = pb.MixedNB(clip=None, shrinkage=None).fit(X, y, sample_weight=weights)
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
    ours = pb.MixedNB(clip=None, shrinkage=None, alpha=0.7).fit(frame, y)
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
    ours = pb.QDA(clip=None, shrinkage=None).fit(X, y)
    np.testing.assert_allclose(ours.predict_log_proba(X), theirs.predict_log_proba(Z), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    "data", [well_conditioned, lambda: load_iris(return_X_y=True), lambda: load_wine(return_X_y=True)]
)
def test_lda_equals_scikit_learns(data):
    """Its lsqr solver, which divides by n as maximum likelihood does; the svd solver divides by n − C."""
    X, y = data()
    Z = standardised(X)
    theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(Z, y)
    ours = pb.LDA(clip=None, shrinkage=None).fit(X, y)
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
        pb.MixedNB(clip=None, shrinkage=None).fit(X, y).predict_joint_log_proba(X), expected, atol=1e-10
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
    np.testing.assert_allclose(
        pb.QDA(clip=None, shrinkage=None).fit(X, y).predict_joint_log_proba(X), expected, atol=1e-8
    )


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
    np.testing.assert_allclose(
        pb.LDA(clip=None, shrinkage=None).fit(X, y).predict_joint_log_proba(X), expected, atol=1e-8
    )


def test_a_missing_value_leaves_the_marginal_density():
    """Training and prediction: exactly what a model without that value would say."""
    X, y = load_iris(return_X_y=True)
    model = pb.MixedNB(clip=None, shrinkage=None).fit(X, y)
    for column in range(4):
        rows = X[::10].copy()
        rows[:, column] = np.nan
        others = np.delete(np.arange(4), column)
        smaller = pb.MixedNB(clip=None, shrinkage=None).fit(X[:, others], y)
        np.testing.assert_allclose(
            model.predict_joint_log_proba(rows), smaller.predict_joint_log_proba(rows[:, others]), atol=1e-10
        )


def test_a_missing_value_integrates_to_one():
    X, y = load_iris(return_X_y=True)
    model = pb.MixedNB(clip=None, shrinkage=None).fit(X[:, :2], y)
    row = X[0, :2]

    def joint(value):
        return np.exp(model.predict_joint_log_proba([[row[0], value]]))[0]

    over = [integrate.quad(lambda v, c=c: joint(v)[c], -5, 15, epsabs=1e-12, limit=200)[0] for c in range(3)]
    np.testing.assert_allclose(np.exp(model.predict_joint_log_proba([[row[0], np.nan]]))[0], over, rtol=1e-7)


def test_training_with_missing_values_uses_what_is_there():
    X, y = load_wine(return_X_y=True)
    holes = np.random.default_rng(0).random(X.shape) < 0.3
    holed = np.where(holes, np.nan, X)
    model = pb.MixedNB(clip=None, shrinkage=None).fit(holed, y)
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
        calibrate=True, max_iter=5, step="fixed", validation_fraction=0.0, keep="last", clip=None,
        variance_floor=1e-9, count_floor=1e-30,
    )  # fmt: skip
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


# --- θ with its guards, written out ------------------------------------------------------------------------

FLOOR = 0.2137  # of counts: no whole number of rows is just at it, where rounding would decide
GUARDED = {
    "naive-bayes": NaiveBayes(continuous=3, cardinalities=(2, 4), count_floor=FLOOR, variance_floor=0.05),
    "naive-bayes, missing": NaiveBayes(
        continuous=3, cardinalities=(2, 4), count_floor=FLOOR, variance_floor=0.05, missing=True
    ),
    "qda": SeparateGaussian(
        continuous=3, cardinalities=(2, 4), count_floor=FLOOR, variance_floor=0.05, shrinkage=0.1
    ),
    "lda": SharedGaussian(
        continuous=3, cardinalities=(2, 4), count_floor=FLOOR, variance_floor=0.05, shrinkage=0.1
    ),
    "bayes-net": BayesNet(
        continuous=4, cardinalities=(2, 3, 2), parents=((), (0, 4), (0, 1, 4, 6), (0,), (), (4,), (4, 5)),
        count_floor=FLOOR, variance_floor=0.05, shrinkage=0.1,
    ),
    "bayes-net, plain": BayesNet(
        continuous=4, cardinalities=(2, 3, 2), parents=((), (0, 4), (0, 1, 4, 6), (0,), (), (4,), (4, 5)),
        count_floor=FLOOR, variance_floor=0.05,
    ),
}  # fmt: skip
TINY, FAR = 1e-30, 1e6


class ByHand:
    """log p(x, c) of a family, one number after the other, in the order of the equations."""

    def __init__(self, family, stats):
        self.family = family
        self.unit = stats / np.abs(stats).max()
        counts = self.unit[:, 0]
        self.floor = max(sum(max(n, 0.0) for n in counts) * family.count_floor / len(stats), TINY)
        self.counts = [max(n, self.floor) for n in counts]
        self.extra = getattr(family, "shrinkage", 0.0) * sum(self.counts)
        self.least = max(family.variance_floor, TINY)

    def moments(self, count, first, second, share=1):
        """Rows, mean and second moment of columns, filled up to the floor's share by rows of a standard normal."""
        floor = max(self.floor / share, TINY)
        lacking = max(floor - max(count, 0.0), 0.0)
        return max(count, floor), np.asarray(first), np.asarray(second) + lacking * np.eye(len(first))

    def joint(self, x, codes):
        """log p(x, c) of one row, nothing of it missing: [C]."""
        name = self.family.name
        density = {"naive-bayes": self.of_columns, "bayes-net": self.of_network}.get(name, self.of_covariance)
        densities = [density(c, x, codes) for c in range(len(self.counts))]
        return np.log(np.array(self.counts) / sum(self.counts)) + densities

    def cells(self, c, codes):
        """Σ log p(x_j | c) of the discrete columns, each by itself."""
        total, begin = 0.0, self.family.dense_size
        for code, size in zip(codes, self.family.cardinalities, strict=True):
            held = np.maximum(self.unit[c, begin : begin + size], max(self.floor / size, TINY))
            total += np.log(held[code] / held.sum())
            begin += size
        return total

    def of_columns(self, c, x, codes):
        d, total = self.family.continuous, self.cells(c, codes)
        for j in range(d):
            at = 1 + j + d * self.family.missing
            count = self.unit[c, 1 + j] if self.family.missing else self.unit[c, 0]
            rows, first, second = self.moments(count, [self.unit[c, at]], [[self.unit[c, at + d]]])
            mean = np.clip(first[0] / rows, -FAR, FAR)
            total += stats.norm.logpdf(x[j], mean, np.sqrt(max(second[0, 0] / rows - mean**2, self.least)))
        return total

    def covariance(self, c):
        """μ_c, and Σ_c before its eigenvalues are floored."""
        means, scatters, rows = [], [], []
        for k in range(len(self.counts)):
            d = self.family.continuous
            square = np.zeros((d, d))
            square[np.triu_indices(d)] = self.unit[k, 1 + d : self.family.dense_size]
            square = np.triu(square) + np.triu(square, 1).T
            count, first, second = self.moments(self.unit[k, 0], self.unit[k, 1 : 1 + d], square)
            means.append(np.clip(first / count, -FAR, FAR))
            scatters.append(second - count * np.outer(means[-1], means[-1]))
            rows.append(count)
        if self.family.name == "lda":
            scatter, count = sum(scatters), sum(rows)
        else:
            scatter, count = scatters[c], rows[c]
        return means[c], (scatter + self.extra * np.eye(len(scatter))) / (count + self.extra)

    def of_covariance(self, c, x, codes):
        mean, covariance = self.covariance(c)
        values, vectors = np.linalg.eigh(covariance)
        covariance = vectors @ np.diag(np.maximum(values, self.least)) @ vectors.T
        return stats.multivariate_normal(mean, covariance).logpdf(x) + self.cells(c, codes)

    def conditional(self, c, column):
        """(a, b, q) of each configuration of a continuous column's discrete parents; b of its continuous ones."""
        places = self.family._column_indices[column]  # [configurations, 2 + q, 2 + q]
        share = len(places)
        parts = [
            self.moments(block[0, 0], block[0, 1:], block[1:, 1:], share) for block in self.unit[c][places]
        ]
        total = sum(rows for rows, _, _ in parts)
        if share > 1 and self.extra:  # rows like those of the whole class
            of_all = [sum(moments[k] for moments in parts) * self.extra / total for k in (1, 2)]
            parts = [(n + self.extra, first + of_all[0], second + of_all[1]) for n, first, second in parts]
        for rows, first, second in parts:
            mean = np.clip(first / rows, -FAR, FAR)
            covariance = second / rows - np.outer(mean, mean)
            spread = np.maximum(np.diagonal(covariance), self.least)
            limit = np.sqrt(np.outer(spread, spread)) * (0.995 if self.extra else 1.0)
            covariance = np.clip(covariance, -limit, limit) * rows / (rows + self.extra)
            np.fill_diagonal(covariance, spread)
            among, across = covariance[1:, 1:], covariance[1:, 0]
            values, vectors = np.linalg.eigh(among)
            slopes = vectors @ ((vectors.T @ across) / np.maximum(values, self.least))
            slopes = np.clip(slopes, -1e5, 1e5)
            left = spread[0] - 2 * slopes @ across + slopes @ among @ slopes
            yield mean[0] - slopes @ mean[1:], slopes, max(left, self.least)

    def table(self, c, column):
        """p(x_j | configuration) of a discrete column: [configurations, r]."""
        places = self.family._column_indices[column]
        held = np.maximum(self.unit[c][places], max(self.floor / places.size, TINY))
        if len(held) > 1 and self.extra:
            alone = held.sum(axis=0)
            held = held + self.extra * alone / alone.sum()
        return held / held.sum(axis=1, keepdims=True)

    def of_network(self, c, x, codes):
        total, d = 0.0, self.family.continuous
        for column, parents in enumerate(self.family.parents):
            linear = [p for p in parents if p < d]
            discrete = [p - d for p in parents if p >= d]
            sizes = [self.family.cardinalities[p] for p in discrete]
            at = np.ravel_multi_index([codes[p] for p in discrete], sizes) if discrete else 0
            if column >= d:
                total += np.log(self.table(c, column)[at, codes[column - d]])
            else:
                intercept, slopes, variance = list(self.conditional(c, column))[at]
                total += stats.norm.logpdf(x[column], intercept + slopes @ x[linear], np.sqrt(variance))
        return total

    def held(self):
        """How many guards act: class counts, cells, and the parameters of continuous columns."""
        family, d = self.family, self.family.continuous
        total = sum(n < self.floor for n in self.unit[:, 0])
        tables = [(cells, (cells.stop - cells.start)) for cells, _ in family.tabled()]
        for cells, size in tables:
            total += (self.unit[:, cells] < max(self.floor / size, TINY)).sum()
        for c in range(len(self.counts)):
            if family.name == "naive-bayes":
                for j in range(d):
                    at = 1 + j + d * family.missing
                    count = self.unit[c, 1 + j] if family.missing else self.unit[c, 0]
                    rows, first, second = self.moments(count, [self.unit[c, at]], [[self.unit[c, at + d]]])
                    mean = first[0] / rows
                    variance = second[0, 0] / rows - np.clip(mean, -FAR, FAR) ** 2
                    total += count < self.floor or variance < self.least or abs(mean) > FAR
            elif family.name == "bayes-net":
                for column in range(d):
                    places = family._column_indices[column]
                    for block, (_, _, variance) in zip(places, self.conditional(c, column), strict=True):
                        few = self.unit[c, block[0, 0]] < max(self.floor / len(places), TINY)
                        total += few or variance <= self.least
            elif family.name == "qda" or c == 0:  # LDA has one covariance
                total += (np.linalg.eigvalsh(self.covariance(c)[1]) < self.least).sum()
        return total


def pushed_about(family, rng, noise, classes=3):
    """Statistics of rows, and what calibration could make of them: counts and variances below zero, too."""
    values = rng.normal(size=(60, family.continuous)) @ rng.normal(size=(family.continuous,) * 2)
    codes = np.stack([rng.integers(0, size, 60) for size in family.cardinalities], axis=1)
    if getattr(family, "missing", False):
        values[rng.random(values.shape) < 0.3] = np.nan
    labels = core.one_hot(rng.integers(0, classes, 60), classes)
    labels[:30, 2], labels[:30, 0] = 0.0, labels[:30, 0] + labels[:30, 2]  # one class has fewer rows
    model = core.statistics(family.features(Rows(values, codes)), labels)
    model += noise * rng.normal(size=model.shape)
    model[1, 0] = np.abs(model[:, 0]).max()  # one class has rows, whatever the others have
    return model


@pytest.mark.parametrize("noise", [0.0, 2.0, 30.0])
@pytest.mark.parametrize("family", GUARDED.values(), ids=GUARDED.keys())
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=8)
def test_weights_are_the_equations_with_every_guard(family, noise, seed):
    rng = np.random.default_rng(seed)
    model = pushed_about(family, rng, noise)
    codes = np.stack([rng.integers(0, size, 5) for size in family.cardinalities], axis=1)
    rows = Rows(rng.normal(size=(5, family.continuous)), codes)
    features, weights = family.features(rows), family.weights(model)
    by_hand = ByHand(family, model)
    expected = np.stack([by_hand.joint(x, code) for x, code in zip(rows.values, rows.codes, strict=True)])
    size = np.abs(features) @ np.abs(weights).T  # what rounding is relative to
    assert (np.abs(core.log_joint(features, weights) - expected) <= 1e-9 * size).all()
    assert family.floored(model) == by_hand.held()


def test_defaults_are_those_of_the_page():
    """10⁻³⁰ and 10⁻⁹ for maximum likelihood; while calibrating 10⁻⁴ and 0.05, or 0.01, and rows that shrink."""
    X, y = load_iris(return_X_y=True)
    guards = {pb.MixedNB: (0.05, None), pb.QDA: (0.01, 10.0), pb.LDA: (0.01, 0.0), pb.TAN: (0.01, 5.0)}
    for estimator, (floor, rows) in guards.items():
        family = estimator().fit(X, y).family_
        assert (family.count_floor, family.variance_floor) == (1e-30, 1e-9)
        family = estimator(calibrate=True, max_iter=1).fit(X, y).family_
        assert (family.count_floor, family.variance_floor) == (1e-4, floor)
        if rows is not None:
            assert family.shrinkage * len(y) == pytest.approx(rows)
    for plain in (NaiveBayes(), SeparateGaussian(), SharedGaussian(), BayesNet()):
        assert (plain.count_floor, plain.variance_floor) == (1e-30, 1e-9)


@pytest.mark.parametrize("family", GUARDED.values(), ids=GUARDED.keys())
def test_means_end_at_a_million_and_variances_do_not_end_at_nothing(family):
    """A count near zero beside a large first moment; in units of the largest entry, so that only their ratio counts."""
    family = replace(family, count_floor=1e-30, variance_floor=0.0)
    model = family.uniform(2, 2.0)
    model[0, 0] = 1e-12
    model[0, 1 : family.dense_size] *= 1e-12
    first = 4 if getattr(family, "missing", False) else 1
    if first == 4:
        model[0, 1:4] = 1e-12
    model[0, first] = 1e3
    parameters = family.parameters(model)
    assert np.asarray(parameters.mean)[0, 0] == 1e6
    assert np.isfinite(np.asarray(family.weights(model))).all() and family.floored(model) >= 1


def test_a_mean_that_is_held_is_counted_once():
    """Of a column whose second moment is as large, so that its variance is not held as well."""
    family = NaiveBayes(continuous=2, variance_floor=0.0)
    model = np.array([[1e-12, 1e3, 0.0, 1e3, 1e-12], [1.0, 0.0, 0.0, 1.0, 1.0]])
    assert family.parameters(model).mean[0].tolist() == [1e6, 0.0] and family.floored(model) == 1


def test_cells_at_their_floor_are_not_below_it():
    """Even cells of even classes, with a floor of all that a class may have."""
    for family in (NaiveBayes, BayesNet):
        even = family(cardinalities=(2, 4), count_floor=1.0)
        assert even.floored(even.uniform(2, 8.0)) == 0
        fewer = even.uniform(2, 8.0)
        fewer[0, 1] -= 0.5
        assert even.floored(fewer) == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_eigenvalues_are_floored_at_what_rounding_leaves_of_a_zero(dtype):
    """16·d·ε of the largest entry: of a matrix of ones, two of three eigenvalues are none."""
    floor = 16 * 3 * float(np.finfo(dtype).eps) * 5.0
    precision = floored_precision(np.full((3, 3), 5.0, dtype=dtype), 1e-30)
    assert precision.held == 2
    assert float(precision.logdet) == pytest.approx(math.log(15.0) + 2 * math.log(floor), rel=1e-5)
    apart = np.array([1.0, -1.0, 0.0], dtype=dtype)
    assert float(apart @ precision.matrix @ apart) == pytest.approx(2 / floor, rel=1e-3)
    many = np.broadcast_to(np.full((3, 3), 5.0, dtype=dtype), (9, 3, 3)).copy()
    many[4] = np.diag([1.0, 2.0, 4.0])
    precision = floored_precision(many, 1e-30)
    assert precision.held.tolist() == [2] * 4 + [0] + [2] * 4
    np.testing.assert_allclose(precision.matrix[4], np.diag([1.0, 0.5, 0.25]), rtol=1e-6)
    assert float(precision.logdet[4]) == pytest.approx(math.log(8.0), rel=1e-6)


class Highest:
    """A source of the largest numbers below one."""

    def random(self, count):
        return np.full(count, np.nextafter(1.0, 0.0))

    def standard_normal(self, shape):
        return np.zeros(shape)


@pytest.mark.parametrize("kind", [NaiveBayes, SeparateGaussian, BayesNet])
def test_no_draw_is_beyond_the_last_category(kind):
    """Also where probabilities add up to a little less than one."""
    below = 0
    for size in range(2, 60):
        family = kind(cardinalities=(size,))
        rows = family.sample(family.uniform(2, 1.0), np.array([0, 1]), Highest())
        assert rows.codes.tolist() == [[size - 1], [size - 1]]
        below += np.cumsum(np.exp(family.parameters(family.uniform(2, 1.0)).log_cells), axis=1)[0, -1] < 1
    assert below > 0
