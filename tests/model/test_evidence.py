"""Priors that the statistics ask for: their evidence, the estimators' defaults, and what stays as it was."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.special import gammaln
from scipy.stats import dirichlet_multinomial, invwishart, multivariate_t
from sklearn.datasets import load_digits, load_wine

from peerbayes.data import files
from peerbayes.data.schema import Schema
from peerbayes.data.table import Rows
from peerbayes.estimators.classifiers import LDA, QDA, TAN, BayesNetClassifier, MixedNB
from peerbayes.model.families import BayesNet, NaiveBayes, SeparateGaussian, evidence

GRID = evidence.STRENGTHS


def likeliest(values):
    """The strength of the largest of these log evidences."""
    return GRID[int(np.argmax(values))]


# --- evidence, against scipy's distributions


def test_cells_have_the_strength_of_the_likeliest_dirichlet_multinomial():
    rng = np.random.default_rng(0)
    base = np.array([0.5, 0.3, 0.2])
    counts = np.array([rng.multinomial(30, rng.dirichlet(8.0 * base)) for _ in range(40)])
    counts[3] = 0
    expected = [
        sum(dirichlet_multinomial.logpmf(row, m * base, row.sum()) for row in counts if row.sum())
        for m in GRID
    ]
    strength = evidence.dirichlet(
        counts.ravel().astype(float),
        np.tile(base, 40),
        np.zeros(120, int),
        counts.sum(1),
        np.zeros(40, int),
        1,
    )
    assert strength == likeliest(expected)
    assert 4 < strength[0] < 16


def test_groups_of_cells_have_strengths_of_their_own():
    rng = np.random.default_rng(1)
    equal = np.full(4, 0.25)
    alike = np.array([rng.multinomial(50, equal) for _ in range(20)])
    unlike = np.array([rng.multinomial(50, rng.dirichlet(equal)) for _ in range(20)])
    counts, group = np.concatenate([alike, unlike]).astype(float), np.repeat([0, 1], 20)
    strengths = evidence.dirichlet(
        counts.ravel(), np.full(160, 0.25), np.repeat(group, 4), counts.sum(1), group, 2
    )
    assert strengths[0] > 50 > 4 > strengths[1]


def sequential(rows, m, mean_rows):
    """log p(rows) under covariances of mean I worth m rows, by Student's t of each row given those before it."""
    d = rows.shape[1]
    degrees, scale, mean, total = m + d + 1.0, m * np.eye(d), np.zeros(d), 0.0
    for row in rows:
        wide = (mean_rows + 1) / mean_rows if mean_rows else 1.0
        free = degrees - d + 1
        total += multivariate_t.logpdf(row, mean, scale * wide / free, df=free)
        degrees += 1
        if mean_rows:
            scale = scale + mean_rows / (mean_rows + 1) * np.outer(row - mean, row - mean)
            mean = (mean_rows * mean + row) / (mean_rows + 1)
            mean_rows += 1
        else:
            scale = scale + np.outer(row, row)
    return total


def test_covariances_have_the_strength_of_the_likeliest_inverse_wishart():
    rng = np.random.default_rng(2)
    groups = [
        rng.multivariate_normal(np.zeros(3), invwishart.rvs(10.0, 6.0 * np.eye(3), random_state=seed), 12)
        for seed in range(20)
    ]  # contrasts of 13 rows, whose mean is gone
    eigenvalues = np.array([np.linalg.eigvalsh(rows.T @ rows) for rows in groups])
    expected = [sum(sequential(rows, m, 0) for rows in groups) for m in GRID]
    strength = evidence.wishart(np.full(20, 13.0), eigenvalues)
    assert strength == likeliest(expected)
    assert 3 < strength < 12


def test_configurations_have_the_strength_of_the_likeliest_normal_inverse_wishart():
    rng = np.random.default_rng(3)
    groups = [rng.normal(rng.normal(0, 0.4, 2), 1.0, (15, 2)) for _ in range(10)]
    scatters = np.array([np.cov(rows.T, bias=True) * len(rows) for rows in groups])
    means = np.array([rows.mean(axis=0) for rows in groups])
    expected = [sum(sequential(rows, m, m) for rows in groups) for m in GRID]
    assert evidence.configurations(np.full(10, 15.0), means, scatters) == likeliest(expected)


@pytest.mark.parametrize("slope, least, most", [(0.0, 100.0, 1e3), (0.7, 1e-2, 10.0)])
def test_regressions_ask_for_independence_where_there_is_no_slope(slope, least, most):
    rng = np.random.default_rng(4)
    correlation = []
    for _ in range(30):
        parent = rng.normal(size=(200, 2))
        column = slope * parent.sum(axis=1) * rng.choice([-1, 1]) + rng.normal(size=200)
        correlation.append(np.corrcoef(np.column_stack([column, parent]).T))
    rows = np.array([200.0])
    strength = evidence.strongest(lambda m: evidence.regression(m, rows, np.array([correlation])))
    assert least <= strength[0] <= most


def test_constant_values_say_nothing_of_the_strength():
    rng = np.random.default_rng(5)
    rows = np.full(30, 50.0)
    scatter = 50.0 * invwishart.rvs(8.0, 6.0, size=30, random_state=rng)
    with_constants = np.concatenate([scatter, np.zeros(20)])
    alone = evidence.wishart(rows, scatter[:, None])
    assert evidence.wishart(np.full(50, 50.0), with_constants[:, None]) == alone > 1
    # A direction that never varies is left out of a covariance; one that too few rows leave open is not.
    pairs = np.stack([np.zeros(30), scatter], axis=1)
    assert evidence.wishart(rows, pairs) == evidence.wishart(rows, scatter[:, None])
    assert evidence.wishart(np.full(5, 2.0), np.tile([0.0, 0.0, 3.0], (5, 1))) > GRID[0]


def test_without_anything_to_tell_a_prior_is_worth_one_row():
    assert evidence.wishart(np.zeros(3), np.zeros((3, 2))) == 1.0
    empty = np.zeros(0)
    assert evidence.dirichlet(empty, empty, empty.astype(int), empty, empty.astype(int), 2).tolist() == [
        1.0,
        1.0,
    ]


# --- families: what the prior makes of their parameters


def test_variances_of_naive_bayes_lean_on_those_of_all_rows():
    rng = np.random.default_rng(6)
    values, labels = rng.normal(size=(60, 3)) * [1, 2, 0], np.repeat([0, 1, 2], 20)
    family = NaiveBayes(continuous=3)
    stats = np.eye(3)[labels].T @ family.dense(values)
    prior = family.estimated_prior(stats, "auto", 5.0)
    variance = np.array([values[labels == c].var(axis=0) for c in range(3)])
    expected = (20 * variance + 5 * values.var(axis=0)) / 25
    assert family.parameters(stats + prior).variance == pytest.approx(np.maximum(expected, 1e-9), abs=1e-9)
    assert np.array_equal((stats + prior)[:, :4], stats[:, :4])


@pytest.mark.parametrize("shared", [False, True])
def test_covariances_lean_on_independent_columns(shared):
    estimator = (LDA if shared else QDA)(alpha=1.0)
    X, y = load_wine(return_X_y=True)
    model = estimator.fit(X[:, :4], y)
    plain = type(estimator)(alpha=1.0, shrinkage=None).fit(X[:, :4], y)
    ours = model.family_.parameters(model.statistics_.values + model.prior_).covariance
    fixed = plain.family_.parameters(plain.statistics_.values).covariance
    rows = model.statistics_.values[:, 0]
    rows = np.full(3, rows.sum()) if shared else rows
    share = (1 - ours[:, 0, 1] / fixed[:, 0, 1])[:, None, None]  # m/(n + m)
    m = (rows[:, None, None] * share / (1 - share)).ravel()
    assert m == pytest.approx(np.full(3, m[0])) and np.isclose(GRID, m[0]).any()
    assert ours == pytest.approx((1 - share) * fixed + share * np.eye(4), abs=1e-9)


def test_tables_lean_on_the_class_where_the_parent_tells_nothing():
    rng = np.random.default_rng(7)
    labels, parent = rng.integers(0, 2, 400), rng.integers(0, 3, 400)
    child = np.where(rng.random(400) < 0.9, parent, rng.integers(0, 3, 400))
    X = pd.DataFrame({"parent": parent, "child": child, "noise": rng.integers(0, 3, 400)})
    structure = {"child": "parent", "noise": "parent"}
    plain, leaning = (
        BayesNetClassifier(structure, kinds="discrete", alpha=0.0, shrinkage=shrinkage).fit(X, labels)
        for shrinkage in (None, "auto")
    )

    def distances(column):
        """From the class's own shares: without the prior, and with it."""
        shares = {(label, k): np.mean(X[column][labels == label] == k) for label in (0, 1) for k in range(3)}
        return [
            sum(
                (probability - shares[label, k]) ** 2
                for (label, _), row in model.conditional_tables()[column].items()
                for k, probability in row.items()
            )
            for model in (plain, leaning)
        ]

    raw, shrunk = distances("noise")
    assert shrunk < raw / 2
    raw, shrunk = distances("child")
    assert shrunk > 0.9 * raw


def test_every_family_has_a_finite_prior_for_a_class_of_one_row_and_one_of_none():
    rng = np.random.default_rng(8)
    for family in (
        NaiveBayes(continuous=2, cardinalities=(3,), missing=True),
        SeparateGaussian(continuous=2, cardinalities=(3,)),
        BayesNet(continuous=2, cardinalities=(3, 2), parents=((1,), (2,), (), (2,))),
    ):
        labels = np.array([0] * 8 + [1])
        rows = Rows(
            rng.normal(size=(9, 2)), rng.integers(0, 2, (9, len(family.cardinalities))).astype(np.int32)
        )
        stats = np.eye(3)[labels].T @ family.features(rows)
        prior = family.estimated_prior(stats, "auto", "auto")
        assert np.isfinite(prior).all()
        weights = family.weights(stats + prior)
        assert np.isfinite(weights).all()
        assert np.abs(weights[1]).max() < 1e3  # one row is no spike


# --- estimators


def test_explicit_settings_are_the_plain_prior():
    X, y = load_wine(return_X_y=True)
    X = np.column_stack([X, np.arange(len(X)) % 3 > 0])
    for estimator in (MixedNB, QDA, LDA, TAN):
        model = estimator(alpha=1.0, shrinkage=None).fit(X, y)
        assert np.array_equal(model.prior_, model.family_.smoothing(3, 1.0))
    assert QDA(alpha=1.0, shrinkage=3).fit(X, y).family_.shrinkage == 3 / len(X)
    assert QDA().fit(X, y).family_.shrinkage == 0.0
    assert QDA(calibrate=True, max_iter=1).fit(X, y).family_.shrinkage == 10 / len(X)


@pytest.mark.parametrize("estimator", [MixedNB(), QDA(), LDA(), TAN()])
def test_the_prior_follows_the_units_of_the_schema(estimator):
    X, y = load_wine(as_frame=True, return_X_y=True)
    X = X.iloc[:, :5]
    schema = Schema.infer(X, y, clip=None)
    columns = tuple(replace(column, scale=3.0 * column.scale) for column in schema.columns)
    wide = replace(schema, columns=columns)
    posteriors = [estimator.set_params(schema=chosen).fit(X, y).predict_proba(X) for chosen in (schema, wide)]
    assert posteriors[0] == pytest.approx(posteriors[1], abs=1e-6)


def test_a_file_without_shrinkage_is_a_model_without_it(tmp_path):
    X, y = load_wine(return_X_y=True)
    MixedNB(alpha=1.0).fit(X, y).save(tmp_path / "model")
    header, arrays = files.unpack((tmp_path / "model").read_bytes(), tmp_path)
    del header["parameters"]["shrinkage"]
    old = MixedNB._loaded(header, arrays)
    plain = MixedNB(alpha=1.0, shrinkage=None).fit(X, y)
    assert np.array_equal(old.predict_proba(X), plain.predict_proba(X))


@pytest.mark.filterwarnings(
    "ignore::peerbayes.errors.SingularDataWarning"
)  # which is right: pixels are constant
def test_constant_pixels_do_not_decide():
    X, y = load_digits(return_X_y=True)
    train = np.arange(len(X)) % 5 > 0
    figures = {}
    for shrinkage in ("auto", None):
        for estimator in (MixedNB, QDA):
            model = estimator(shrinkage=shrinkage).fit(X[train], y[train])
            figures[estimator, shrinkage] = model.score(X[~train], y[~train])
    assert figures[MixedNB, "auto"] > 0.83 > figures[MixedNB, None]
    assert figures[QDA, "auto"] > figures[QDA, None] + 0.01


@pytest.mark.parametrize(
    "name, value", [("alpha", "none"), ("alpha", None), ("alpha", -1), ("shrinkage", "ledoit")]
)
def test_other_words_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} is .*; expected .* or 'auto'"):
        QDA(**{name: value}).fit(np.eye(4), [0, 0, 1, 1])


def test_even_tables_have_the_strength_that_each_would_have_by_itself():
    """Cells of equal counts are summed up; cells that cannot occur, and empty tables, say nothing."""
    rng = np.random.default_rng(3)
    sizes = [4, 6, 3, 5]
    table = np.repeat(np.arange(4), sizes)
    counts = np.concatenate(
        [rng.poisson(mean, (2, size)) for mean, size in zip((8, 1, 0, 3), sizes, strict=True)], 1
    )
    even = np.repeat(1.0 / np.array(sizes), sizes)
    even[9], counts[:, 9] = 0.0, 0.0
    even[4:9] = 1.0 / 5
    strengths = evidence.even_strengths(counts.astype(float), even, table, 4)
    for k in range(4):
        cells = counts[:, (table == k) & (even > 0)].astype(float)
        base, zeros = np.full(cells.size, 1.0 / cells.shape[1]), np.zeros(cells.size, dtype=int)
        expected = evidence.dirichlet(
            cells.ravel(), base, zeros, cells.sum(axis=1), np.zeros(2, dtype=int), 1
        )
        assert strengths[k] == expected[0]


@pytest.mark.parametrize("most", [0, 1, 2, 3, 20])
def test_few_gamma_functions_give_the_multivariate_one(most):
    rng = np.random.default_rng(1)
    size = np.append(rng.integers(0, most + 1, 6), most)
    value = 0.5 * (rng.uniform(0.01, 1000, (5, size.size)) + size + 1)
    expected = [
        [sum(gammaln(v - 0.5 * step) for step in range(d)) for v, d in zip(row, size, strict=True)]
        for row in value
    ]
    np.testing.assert_allclose(evidence._gammas(value, size), expected, rtol=1e-13, atol=1e-12)


def test_columns_known_to_have_the_same_rows_have_the_same_strength():
    rng = np.random.default_rng(3)
    rows = np.repeat([40.0, 7.0, 300.0], 5)
    scatters = rows[:, None] * rng.chisquare(3.0, size=(15, 1)) / 3.0
    assert evidence.wishart(rows, scatters, 5) == evidence.wishart(rows, scatters) > GRID[0]
    scatters[3] = 0.0  # does not vary: left out
    assert evidence.wishart(rows, scatters, 5) == evidence.wishart(rows, scatters)
