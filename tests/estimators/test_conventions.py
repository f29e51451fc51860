"""What scikit-learn's conventions promise beside predictions: priors and weights of classes, attributes that describe
them, projections, and warnings."""

import inspect
import warnings
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import CategoricalNB, GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import peerbayes as pb
from peerbayes.errors import SingularDataWarning
from peerbayes.model.scaling import Scaling

X, Y = load_iris(return_X_y=True)
FAMILIES = [pb.MixedNB, pb.QDA, pb.LDA, pb.TAN, pb.KDB, pb.BayesNetClassifier]
EITHER = [*product(FAMILIES, (False, True)), (pb.GA2M, True)]  # estimators, and `calibrate`
PRIORS = [0.2, 0.3, 0.5]
# Ours, scikit-learn's, and what they have in common.
TWINS = {
    "naive Bayes": (pb.MixedNB, GaussianNB(), ["theta_", "var_", "class_prior_", "class_count_"]),
    "QDA": (
        pb.QDA,
        QuadraticDiscriminantAnalysis(store_covariance=True),
        ["means_", "covariance_", "priors_"],
    ),
    "LDA": (
        pb.LDA,
        LinearDiscriminantAnalysis(store_covariance=True),
        ["means_", "covariance_", "priors_", "coef_", "intercept_", "xbar_", "explained_variance_ratio_"],
    ),
}


# Nothing is estimated beside the model: settings that an estimator has are set to these.
PLAIN = {"shrinkage": 0.0, "alpha": 1.0, "step": "fixed", "validation_fraction": 0.0, "temperature": False}


def plain(estimator, **parameters):
    """Return an estimator of plain maximum likelihood, or of the paper's calibration."""
    known = inspect.signature(estimator).parameters
    return estimator(**{name: value for name, value in PLAIN.items() if name in known} | parameters)


@pytest.fixture(params=TWINS.values(), ids=TWINS)
def twins(request):
    return request.param


# --- priors and weights of classes -------------------------------------------------------------------------


@pytest.mark.parametrize("priors", [None, PRIORS, tuple(PRIORS), dict(enumerate(PRIORS))])
@pytest.mark.parametrize("keep", [slice(None), slice(0, 130)], ids=["balanced", "unbalanced"])
def test_attributes_and_predictions_are_scikit_learns(twins, priors, keep):
    estimator, theirs, attributes = twins
    values = list(priors.values()) if isinstance(priors, dict) else priors
    theirs = clone(theirs).set_params(priors=values).fit(X[keep], Y[keep])
    ours = plain(estimator, clip=None, kinds="continuous", priors=priors).fit(X[keep], Y[keep])
    for name in set(attributes) - ({"covariance_"} if estimator is pb.LDA and priors else set()):
        expected = np.asarray(getattr(theirs, name))
        np.testing.assert_allclose(getattr(ours, name), expected, rtol=1e-6, atol=1e-7, err_msg=name)
    # theirs is weighted by the priors, though its predictions are not
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    np.testing.assert_array_equal(ours.classes_[ours.decision_function(X).argmax(axis=1)], ours.predict(X))


@pytest.mark.parametrize("estimator", FAMILIES)
def test_priors_are_in_all_that_a_model_says(estimator):
    model = plain(estimator, priors=PRIORS).fit(X, Y)
    free = plain(estimator).fit(X, Y)
    np.testing.assert_array_equal(model.class_prior_, PRIORS)
    np.testing.assert_allclose(free.class_prior_, 1 / 3)
    joint = free.predict_joint_log_proba(X) + np.log(PRIORS) - np.log(1 / 3)
    np.testing.assert_allclose(model.predict_joint_log_proba(X), joint, atol=1e-9)
    described = model.describe()
    np.testing.assert_allclose(described.loc[described["feature"] == "(prior)", "probability"], PRIORS)
    explained = model.explain(X[:5])
    odds = model.predict_log_proba(X[:5])
    for row, group in explained.groupby("row"):
        of, against = group["of"].iloc[0], group["against"].iloc[0]
        np.testing.assert_allclose(group["log_odds"].sum(), odds[row, of] - odds[row, against], atol=1e-8)
    _, labels = model.sample(4000, random_state=0)
    np.testing.assert_allclose(np.bincount(labels) / 4000, PRIORS, atol=0.03)


def test_priors_stay_with_partial_fit_statistics_and_files(tmp_path):
    whole = plain(pb.MixedNB, priors=PRIORS, clip=None, kinds="continuous").fit(X, Y)
    split = plain(pb.MixedNB, priors=PRIORS, clip=None, kinds="continuous")
    for keep in (slice(0, None, 2), slice(1, None, 2)):
        split.partial_fit(X[keep], Y[keep], classes=[0, 1, 2])
    np.testing.assert_allclose(split.predict_proba(X), whole.predict_proba(X), atol=1e-9)
    later = pb.MixedNB.from_statistics(
        plain(pb.MixedNB, clip=None, kinds="continuous").fit(X, Y).statistics_, priors=PRIORS, shrinkage=None
    )
    np.testing.assert_allclose(later.predict_proba(X), whole.predict_proba(X), atol=1e-12)
    weighted = plain(pb.MixedNB, priors={0: 0.2, 1: 0.3, 2: 0.5}, class_weight={np.int64(1): 2.0}).fit(X, Y)
    weighted.save(tmp_path / "model")
    loaded = pb.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(X), weighted.predict_proba(X))
    assert loaded.priors == {0: 0.2, 1: 0.3, 2: 0.5} and loaded.class_weight == {1: 2.0}


@pytest.mark.parametrize("estimator", [*FAMILIES, pb.GA2M])
def test_priors_move_a_calibrated_model_from_the_frequencies_of_its_rows(estimator, tmp_path):
    keep = slice(0, 130)
    free = plain(estimator, calibrate=True, max_iter=8).fit(X[keep], Y[keep])
    model = plain(estimator, calibrate=True, max_iter=8, priors=PRIORS).fit(X[keep], Y[keep])
    frequencies = np.array([50, 50, 30]) / 130
    joint = free.predict_joint_log_proba(X) + np.log(PRIORS) - np.log(frequencies)
    np.testing.assert_allclose(model.predict_joint_log_proba(X), joint, atol=1e-9)
    np.testing.assert_array_equal(model.class_prior_, PRIORS)
    np.testing.assert_allclose(free.class_prior_, frequencies)
    for described, shares in ((model.describe(), PRIORS), (free.describe(), frequencies)):
        np.testing.assert_allclose(described.loc[described["feature"] == "(prior)", "probability"], shares)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(pb.load(tmp_path / "model").predict_proba(X), model.predict_proba(X))
    alone = pb.Statistics(model.statistics_.values, model.schema_, model.statistics_.family, calibrated=True)
    with pytest.raises(ValueError, match="come without"):
        estimator.from_statistics(alone, priors=PRIORS)
    bare = estimator.from_statistics(alone)
    assert not hasattr(bare, "class_count_") and not hasattr(bare, "class_prior_")


def test_a_calibrated_model_describes_its_rows():
    for calibrated, likelihood, names in (
        (
            plain(pb.MixedNB, calibrate=True),
            plain(pb.MixedNB),
            ["theta_", "var_", "class_count_", "class_prior_"],
        ),
        (
            plain(pb.QDA, calibrate=True),
            plain(pb.QDA),
            ["means_", "covariance_", "class_count_", "scalings_"],
        ),
        (plain(pb.LDA, calibrate=True), plain(pb.LDA), ["means_", "covariance_", "priors_"]),
    ):
        calibrated.fit(X, Y), likelihood.fit(X, Y)
        for name in names:
            np.testing.assert_allclose(
                getattr(calibrated, name), getattr(likelihood, name), atol=1e-9, err_msg=name
            )


def test_a_prior_of_0_rules_a_class_out():
    model = plain(pb.MixedNB, priors=[0.0, 0.5, 0.5]).fit(X, Y)
    assert set(model.predict(X)) == {1, 2} and np.isfinite(model.decision_function(X)).all()
    np.testing.assert_allclose(model.theta_[0], X[Y == 0].mean(axis=0))  # its rows still describe it


@pytest.mark.parametrize(
    ("priors", "words"),
    [
        ([0.5, 0.5], "Number of priors must match number of classes: expected 3"),
        ([-1.0, 1.0, 1.0], "Priors must be non-negative"),
        ([np.nan, 0.5, 0.5], "Priors must be non-negative"),
        ([0.5, 0.5, 0.5], "The sum of the priors should be 1, not 1.5"),
        ({0: 0.5, 7: 0.5}, "priors names 7; expected classes"),
        ("equal", "priors is 'equal'; expected a number for each class"),
    ],
)
def test_wrong_priors_are_refused_before_anything_is_learned(priors, words):
    for calibrate in (False, True):
        model = plain(pb.MixedNB, priors=priors, calibrate=calibrate, callback=pytest.fail)
        with pytest.raises(ValueError, match=words):
            model.fit(X, Y)
        assert not hasattr(model, "statistics_")


@pytest.mark.parametrize(("estimator", "calibrate"), EITHER)
def test_class_weights_are_weights_of_rows(estimator, calibrate):
    keep = slice(0, 120)
    parameters = {"calibrate": calibrate, "max_iter": 4}
    for class_weight, factors in (({1: 3.0}, [1.0, 3.0, 1.0]), ("balanced", [0.8, 0.8, 2.0])):
        weighted = plain(estimator, class_weight=class_weight, **parameters).fit(X[keep], Y[keep])
        rows = plain(estimator, **parameters).fit(X[keep], Y[keep], sample_weight=np.array(factors)[Y[keep]])
        np.testing.assert_allclose(weighted.predict_proba(X), rows.predict_proba(X), atol=1e-12)
    rows = np.linspace(0.5, 2.0, 120)  # balanced: by the weight of a class's rows
    balanced = plain(estimator, class_weight="balanced").fit(X[keep], Y[keep], sample_weight=rows)
    np.testing.assert_allclose(balanced.class_prior_, 1 / 3)


@pytest.mark.parametrize(
    ("class_weight", "words"),
    [
        ("equal", "class_weight is 'equal'; expected 'balanced'"),
        ([1.0, 2.0, 3.0], "expected 'balanced'"),
        ({0: -1.0}, "class_weight of class 0 is -1.0; expected"),
        ({0: "much"}, "class_weight of class 0 is 'much'; expected"),
        ({7: 1.0}, "class_weight names 7; expected classes"),
    ],
)
def test_wrong_class_weights_are_refused(class_weight, words):
    with pytest.raises(ValueError, match=words):
        plain(pb.MixedNB, class_weight=class_weight).fit(X, Y)
    with pytest.raises(ValueError, match=words):
        plain(pb.MixedNB, class_weight=class_weight).partial_fit(X, Y, classes=[0, 1, 2])


def test_partial_fit_takes_weights_of_classes_that_it_need_not_count():
    model = plain(pb.MixedNB, class_weight={0: 1.0, 1: 2.0, 2: 4.0})
    for label in (0, 1, 2):
        model.partial_fit(X[label == Y], Y[label == Y], classes=[0, 1, 2])
    np.testing.assert_allclose(model.class_count_, [50, 100, 200])
    with pytest.raises(ValueError, match="balanced' needs the class frequencies of all rows"):
        plain(pb.MixedNB, class_weight="balanced").partial_fit(X, Y, classes=[0, 1, 2])


# --- scores and attributes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("estimator", "calibrate"), EITHER)
def test_the_decision_function_is_the_log_posterior_or_the_log_odds(estimator, calibrate):
    model = plain(estimator, calibrate=calibrate, max_iter=4)
    np.testing.assert_array_equal(model.fit(X, Y).decision_function(X), model.predict_log_proba(X))
    two = Y > 0
    posterior = model.fit(X[two], Y[two]).predict_log_proba(X)
    np.testing.assert_array_equal(model.decision_function(X), posterior[:, 1] - posterior[:, 0])


def test_attributes_of_discrete_columns_are_scikit_learns():
    codes = (X * 2).astype(int) % 4
    theirs = CategoricalNB(alpha=0.5).fit(codes, Y)
    ours = plain(pb.MixedNB, kinds="discrete", alpha=0.5).fit(codes, Y)
    np.testing.assert_allclose(ours.class_log_prior_, theirs.class_log_prior_)
    np.testing.assert_array_equal(ours.n_categories_, theirs.n_categories_)
    for name in ("category_count_", "feature_log_prob_"):
        for column, expected in zip(getattr(ours, name), getattr(theirs, name), strict=True):
            np.testing.assert_allclose(column, expected, err_msg=name)
    assert np.isnan(ours.theta_).all() and ours.theta_.shape == (3, 4)


@pytest.mark.parametrize("estimator", [pb.QDA, pb.LDA])
def test_moments_stand_at_their_columns_in_a_mixed_table(estimator):
    table = pd.DataFrame(
        {"colour": np.array(["red", "blue", "green"])[np.arange(150) % 3], "a": X[:, 0], "b": X[:, 2]}
    )
    model = plain(estimator, clip=None).fit(table, Y)
    np.testing.assert_allclose(model.means_[:, 1:], [X[c == Y][:, [0, 2]].mean(axis=0) for c in (0, 1, 2)])
    assert np.isnan(model.means_[:, 0]).all()
    covariance = model.covariance_ if estimator is pb.LDA else model.covariance_[0]
    assert np.isnan(covariance[0]).all() and np.isfinite(covariance[1:, 1:]).all()


# --- LDA as a projection -----------------------------------------------------------------------------------


def test_the_projection_is_scikit_learns():
    ours, theirs = plain(pb.LDA, clip=None).fit(X, Y), LinearDiscriminantAnalysis().fit(X, Y)
    np.testing.assert_allclose(np.abs(ours.transform(X)), np.abs(theirs.transform(X)), atol=1e-9)
    np.testing.assert_allclose((X - ours.xbar_) @ ours.scalings_, ours.transform(X), atol=1e-9)
    scores = X @ ours.coef_.T + ours.intercept_
    np.testing.assert_allclose(
        scores - scores[:, :1], ours.decision_function(X) - ours.decision_function(X)[:, :1], atol=1e-9
    )
    two = plain(pb.LDA, clip=None).fit(X[Y > 0], Y[Y > 0])
    np.testing.assert_allclose((X @ two.coef_.T + two.intercept_)[:, 0], two.decision_function(X), atol=1e-9)


def test_a_calibrated_projection_belongs_to_the_model_that_predicts():
    model = plain(pb.LDA, calibrate=True, clip=None, max_iter=16).fit(X, Y)
    likelihood = plain(pb.LDA, clip=None).fit(X, Y)
    assert np.abs(model.coef_ - likelihood.coef_).max() > 1e-3
    difference = X @ model.coef_.T + model.intercept_ - model.decision_function(X)
    np.testing.assert_allclose(difference, np.broadcast_to(difference[:, :1], difference.shape), atol=1e-9)


def test_a_scaling_of_logits_is_in_the_linear_classifier_and_leaves_priors_alone():
    fitted = plain(pb.LDA, clip=None).fit(X, Y).statistics_
    scaled = replace(fitted, scaling=Scaling(2.0, (0.5, 0.0, -0.5)))
    model = pb.LDA.from_statistics(scaled, shrinkage=0.0)
    difference = X @ model.coef_.T + model.intercept_ - model.decision_function(X)
    np.testing.assert_allclose(difference, np.broadcast_to(difference[:, :1], difference.shape), atol=1e-9)
    moved = pb.LDA.from_statistics(scaled, shrinkage=0.0, priors=PRIORS).decision_function(X)
    change = moved - model.decision_function(X) - np.log(PRIORS)  # the same in all classes
    np.testing.assert_allclose(change, np.broadcast_to(change[:, :1], change.shape), atol=1e-9)


def test_the_axes_of_classes_are_those_of_their_covariances():
    model = plain(pb.QDA, clip=None).fit(X, Y)
    turned = model.rotations_ @ (model.scalings_[:, :, None] * model.rotations_.mT)
    np.testing.assert_allclose(turned, model.covariance_, atol=1e-12)
    assert (np.diff(model.scalings_, axis=1) <= 0).all()


def test_directions_without_variance_are_left_out():
    doubled = np.column_stack([X, X[:, 0] + X[:, 1]])
    with pytest.warns(SingularDataWarning):
        ours = plain(pb.LDA, clip=None).fit(doubled, Y)
    np.testing.assert_allclose(
        np.abs(ours.transform(doubled)), np.abs(plain(pb.LDA, clip=None).fit(X, Y).transform(X))
    )
    with pytest.warns(SingularDataWarning):
        nothing = plain(pb.LDA).fit([[0.0, 1.0], [2.0, 2.0], [3.0, 5.0]], [0, 1, 2])
    np.testing.assert_array_equal(nothing.transform([[1.0, 2.0]]), [[0.0, 0.0]])


def test_a_projection_among_scikit_learns_tools():
    model = plain(pb.LDA, n_components=1)
    table = pd.DataFrame(X, columns=list("abcd"))
    projected = clone(model).set_output(transform="pandas").fit(table, Y).transform(table)
    assert list(projected.columns) == ["lda0"] and projected.shape == (150, 1)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), plain(pb.LDA), plain(pb.QDA)), {"lda__n_components": [1, 2]}, cv=3
    )
    assert search.fit(X, Y).best_score_ > 0.9
    assert model.fit(X, Y).explained_variance_ratio_.shape == (1,) and model.scalings_.shape == (4, 2)


def test_what_no_projection_is_made_of_is_said():
    for components, words in (
        (3, "cannot be larger than min.*at most 2"),
        (0, "whole number"),
        ("all", "whole number"),
    ):
        with pytest.raises(ValueError, match=words):
            plain(pb.LDA, n_components=components).fit(X, Y)
    projected = plain(pb.LDA).fit(X, Y).transform([[1.0, np.nan, 2.0, 3.0], [1.0, 2.0, 2.0, 3.0]])
    np.testing.assert_array_equal(np.isnan(projected), [[True, True], [False, False]])
    mixed = plain(pb.LDA).fit(pd.DataFrame({"a": X[:, 0], "b": np.where(X[:, 1] > 3, "wide", "narrow")}), Y)
    assert not hasattr(mixed, "coef_")
    with pytest.raises(AttributeError, match="column 'b' is discrete"):
        mixed.transform(pd.DataFrame({"a": [1.0], "b": ["wide"]}))


# --- rows that leave parameters open -----------------------------------------------------------------------


def test_a_class_of_one_row_is_warned_of():
    single = np.where(np.arange(150) == 149, 3, Y)
    for estimator in (pb.MixedNB, pb.QDA, pb.TAN):
        with pytest.warns(
            SingularDataWarning, match="class 3 has one row, which shows no variance.*Add rows"
        ):
            plain(estimator).fit(X, single)
    with pytest.warns(SingularDataWarning, match=r"class 2 has one row \(as 1 more\)"):
        plain(pb.MixedNB).fit(X[:102], np.where(np.arange(102) == 101, 3, Y[:102]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain(pb.LDA).fit(X, single)  # shares its covariance
        plain(pb.MixedNB, kinds="discrete").fit(X.round(), single)  # has none
        plain(pb.MixedNB).fit(X, Y)


def test_a_singular_covariance_is_warned_of():
    constant = np.column_stack([X, np.where(Y == 1, 7.0, X[:, 0] ** 2)])
    with pytest.warns(
        SingularDataWarning, match="of class 1 is singular: .* 1 of 5 directions.*shrinkage"
    ) as warned:
        plain(pb.QDA).fit(constant, Y)
    assert warned[0].filename == __file__  # where fit was called
    with pytest.warns(SingularDataWarning, match="shared by the classes is singular"):
        plain(pb.LDA).fit(np.column_stack([X, X[:, 0] + X[:, 1]]), Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model in (plain(pb.QDA, shrinkage=1.0), plain(pb.LDA), plain(pb.QDA, calibrate=True, max_iter=2)):
            model.fit(constant, Y)


@pytest.mark.parametrize(("estimator", "calibrate"), EITHER)
def test_a_row_without_values_counts_for_the_class_frequency(estimator, calibrate):
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": np.where(X[:, 2] > 3, "long", "short")})
    nothing = pd.DataFrame({"a": [np.nan] * 30, "b": [np.nan] * 30, "c": [None] * 30})
    both, labels = pd.concat([table, nothing], ignore_index=True), np.append(Y, np.full(30, 2))
    model = plain(estimator, calibrate=calibrate, start="ml", max_iter=2).fit(both, labels)
    frequencies = np.bincount(labels) / labels.size
    if calibrate:  # calibration moves the prior, from the frequencies on
        np.testing.assert_allclose(model.predict_proba(nothing[:1])[0], frequencies, atol=0.05)
        return
    np.testing.assert_allclose(model.class_prior_, frequencies)
    np.testing.assert_allclose(model.predict_proba(nothing[:1])[0], frequencies)
    without = plain(estimator).fit(table, Y)  # and for nothing else
    pd.testing.assert_frame_equal(
        model.describe()[["mean", "deviation"]], without.describe()[["mean", "deviation"]], rtol=1e-3
    )


@pytest.mark.parametrize("form", [np.asarray, lambda rows: pd.DataFrame(rows, columns=["x0"])])
def test_a_row_of_only_unknown_categories_is_one_without_values(form):
    schema = pb.Schema((pb.Column("x0", "discrete", (0, 1)),), (0, 1))
    model = plain(pb.MixedNB, schema=schema).fit(form([[0], [1], [7]]), [0, 1, 1])
    np.testing.assert_allclose(model.class_count_, [1, 2])
    np.testing.assert_array_equal(model.category_count_[0], [[1, 0], [0, 1]])
