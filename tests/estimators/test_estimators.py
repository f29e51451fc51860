"""What an estimator offers beyond fit and predict, and how it lives among scikit-learn's tools."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import peerbayes as pb

ESTIMATORS = [pb.MixedNB, pb.QDA, pb.LDA]

# For tests of what singular data do besides the warning, which tests/estimators/test_conventions.py is about.
SINGULAR = pytest.mark.filterwarnings("ignore::peerbayes.errors.SingularDataWarning")


def patients(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    ill = rng.random(rows) < 0.4
    return (
        pd.DataFrame(
            {
                "age": rng.normal(50 + 12 * ill, 10),
                "smoker": rng.random(rows) < 0.2 + 0.4 * ill,
                "ward": pd.Categorical(rng.choice(["a", "b", "c"], rows), categories=["a", "b", "c", "d"]),
                "pressure": rng.normal(120 + 15 * ill, 12),
            }
        ),
        np.where(ill, "ill", "well"),
    )


@pytest.fixture(params=ESTIMATORS)
def estimator(request):
    return request.param


@pytest.mark.parametrize("calibrate", [False, True])
def test_tools_of_scikit_learn(estimator, calibrate):
    X, y = load_wine(return_X_y=True)
    model = estimator(calibrate=calibrate, max_iter=10)
    assert cross_val_score(make_pipeline(StandardScaler(), model), X, y, cv=3).min() > 0.9
    search = GridSearchCV(model, {"clip": [2.0, None], "calibrate": [False, True]}, cv=3).fit(X, y)
    assert search.best_score_ > 0.9
    fitted = clone(model).fit(X, y)
    for other in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        np.testing.assert_array_equal(other.predict_proba(X), fitted.predict_proba(X))


def test_a_table_with_text_booleans_and_categories(estimator):
    X, y = patients()
    model = estimator().fit(X, y)
    assert model.score(X, y) > 0.75
    assert list(model.classes_) == ["ill", "well"]
    assert list(model.feature_names_in_) == list(X.columns)
    assert model.schema_.kinds == {
        "age": "continuous",
        "smoker": "discrete",
        "ward": "discrete",
        "pressure": "continuous",
    }
    assert model.schema_.columns[2].categories == ("a", "b", "c", "d")


def test_an_unknown_category_says_nothing(estimator):
    X, y = patients()
    X["ward"] = X["ward"].astype(str)
    model = estimator().fit(X, y)
    unknown, absent = X[:20].assign(ward="zzz"), X[:20].assign(ward=None)
    np.testing.assert_array_equal(model.predict_proba(unknown), model.predict_proba(absent))


@pytest.mark.parametrize("labels", [[0, 1], [True, False], ["no", "yes"], [-3.0, 7.0], [10**6, 5]])
def test_labels_come_back_as_they_were(estimator, labels):
    X, y = load_iris(return_X_y=True)
    X, y = X[:100], np.array(labels)[y[:100]]
    predicted = estimator().fit(X, y).predict(X)
    assert set(predicted.tolist()) <= set(labels)
    assert (predicted == y).mean() > 0.95


def test_explanations_add_up_to_the_log_odds(estimator):
    X, y = patients()
    model = estimator().fit(X, y)
    told = model.explain(X[:7])
    joint = model.predict_joint_log_proba(X[:7])
    for row, part in told.groupby("row"):
        assert part["of"].iloc[0] == model.predict(X[row : row + 1])[0]
        assert set(part["feature"]) == {"(baseline)", *X.columns}
        ahead, behind = sorted(joint[row], reverse=True)
        assert part["log_odds"].sum() == pytest.approx(ahead - behind)
        strengths = part["log_odds"].abs().to_numpy()[1:]
        assert (np.diff(strengths) <= 0).all()
    one = model.explain(X.iloc[3], of="ill", against="well")
    assert one["log_odds"].sum() == pytest.approx(joint[3, 0] - joint[3, 1])
    assert one.set_index("feature").loc["age", "value"] == X["age"][3]
    np.testing.assert_allclose(
        model.explain(dict(X.iloc[3]), of="ill", against="well")["log_odds"].astype(float),
        one["log_odds"].astype(float),
    )
    with pytest.raises(ValueError, match="'dead' is not a class"):
        model.explain(X[:1], of="dead")


def test_a_missing_value_explains_nothing():
    X, y = patients()
    model = pb.MixedNB().fit(X, y)
    told = model.explain(X[:1].assign(age=np.nan, ward=None)).set_index("feature")
    assert told.loc["age", "log_odds"] == told.loc["ward", "log_odds"] == 0
    assert told.loc["pressure", "log_odds"] != 0


def test_samples_look_like_the_rows(estimator):
    X, y = patients(2000)
    model = estimator().fit(X, y)
    drawn, labels = model.sample(20_000, random_state=0)
    assert list(drawn.columns) == list(X.columns)
    for label in ("ill", "well"):
        ours, theirs = drawn[labels == label], X[y == label]
        assert ours["age"].mean() == pytest.approx(theirs["age"].mean(), abs=0.7)
        assert ours["pressure"].std() == pytest.approx(theirs["pressure"].std(), rel=0.06)
        assert ours["smoker"].mean() == pytest.approx(theirs["smoker"].mean(), abs=0.03)
    assert (labels == "ill").mean() == pytest.approx((y == "ill").mean(), abs=0.02)
    again, _ = model.sample(20_000, random_state=0)
    pd.testing.assert_frame_equal(again, drawn)
    assert estimator().fit(drawn, labels).score(X, y) > 0.75


def test_samples_of_an_array_are_an_array(estimator):
    X, y = load_iris(return_X_y=True)
    drawn, labels = estimator().fit(X, y).sample(7, random_state=1)
    assert drawn.shape == (7, 4)
    assert drawn.dtype == np.float64
    assert labels.shape == (7,)


def test_decisions_follow_costs(estimator):
    X, y = patients()
    model = estimator().fit(X, y)
    even = [[0, 1], [1, 0]]
    np.testing.assert_array_equal(model.decide(X, even), model.predict(X))
    cautious = model.decide(X, [[0, 50], [1, 0]])  # missing an ill patient costs fifty times a false alarm
    posterior = model.predict_proba(X)[:, 0]
    np.testing.assert_array_equal(cautious == "ill", posterior * 50 >= 1 - posterior)
    np.testing.assert_array_equal(estimator(costs=[[0, 50], [1, 0]]).fit(X, y).predict(X), cautious)


def test_describe_speaks_the_units_of_the_table(estimator):
    X, y = patients()
    told = estimator(alpha=0, shrinkage=None).fit(X, y).describe().set_index(["class", "feature"])
    ill = X[y == "ill"]
    assert told.loc[("ill", "age"), "mean"].item() == pytest.approx(ill["age"].mean())
    assert told.loc[("ill", "(prior)"), "probability"].item() == pytest.approx((y == "ill").mean())
    smoker = told.loc[("ill", "smoker")].set_index("category")["probability"]
    assert smoker[True] == pytest.approx(ill["smoker"].mean())
    if estimator is not pb.LDA:
        assert told.loc[("ill", "age"), "deviation"].item() == pytest.approx(ill["age"].std(ddof=0))


@SINGULAR
def test_floors_are_counted():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), np.arange(60) % 2
    assert pb.MixedNB().fit(X, y).floored_ == 0
    X[y == 1, 0] = 5.0  # no variance in one class
    assert pb.MixedNB(shrinkage=None).fit(X, y).floored_ == 1
    assert pb.QDA(shrinkage=None).fit(X, y).floored_ == 1
    assert (
        pb.MixedNB().fit(X, y).floored_ == pb.QDA().fit(X, y).floored_ == 0
    )  # a prior keeps them from the floor
    assert pb.MixedNB(variance_floor=100.0).fit(X, y).floored_ == 6


@SINGULAR
def test_clipping_tames_an_outlier(estimator):
    X, y = load_iris(return_X_y=True)
    X = X.copy()
    X[0, 0] = 1e6
    assert estimator(clip=5.0).fit(X, y).schema_.clip == 5.0
    far, farther = (X[1:2] + np.array([[distance, 0, 0, 0]]) for distance in (1e9, 1e12))
    model = estimator(clip=5.0).fit(X[1:], y[1:])
    np.testing.assert_array_equal(model.predict_proba(far), model.predict_proba(farther))


def test_rows_without_any_value_get_the_prior():
    X, y = patients()
    model = pb.MixedNB().fit(X, y)
    nothing = pd.DataFrame([[np.nan, None, None, np.nan]], columns=X.columns)
    np.testing.assert_allclose(model.predict_proba(nothing)[0], [(y == "ill").mean(), (y == "well").mean()])


def test_partial_fit_learns_new_categories():
    X, y = patients()
    X["ward"] = X["ward"].astype(str)
    first = X["ward"] != "c"
    model = pb.MixedNB(clip=None).partial_fit(X[first], y[first], classes=["ill", "well"])
    assert model.schema_.columns[2].categories == ("a", "b")
    model.partial_fit(X[~first], y[~first])
    assert model.schema_.columns[2].categories == ("a", "b", "c")
    np.testing.assert_allclose(
        model.predict_joint_log_proba(X),
        pb.MixedNB(clip=None).fit(X, y).predict_joint_log_proba(X),
        rtol=1e-10,
    )


@SINGULAR
def test_one_row_per_class_is_enough(estimator):
    model = estimator().fit([[1.0, 2.0], [3.0, 5.0]], ["a", "b"])
    assert list(model.predict([[1.0, 2.0], [3.0, 5.0]])) == ["a", "b"]


@SINGULAR
def test_more_columns_than_rows(estimator):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 60)), np.arange(20) % 2
    X[:, 0] += 6 * y
    for calibrate in (False, True):
        model = estimator(calibrate=calibrate).fit(X, y)
        assert np.isfinite(model.predict_joint_log_proba(X)).all()
        assert model.score(X, y) == 1


def test_explanations_show_each_columns_own_value():
    """Also where the schema lists the columns in another order than the table."""
    X, y = patients()
    schema = pb.Schema.infer(X[["pressure", "ward", "age", "smoker"]], y)
    model = pb.MixedNB(schema=schema).fit(X, y)
    for told in (model.explain(X.iloc[[4]]), model.explain(X.iloc[4]), model.explain(dict(X.iloc[4]))):
        shown = told.set_index("feature")["value"]
        assert all(shown[name] == X[name][4] for name in X.columns)


def test_explaining_one_row_of_an_array_or_of_unnamed_columns():
    X, y = load_iris(return_X_y=True)
    expected = pb.MixedNB().fit(X, y).explain(X[:1])["log_odds"]
    assert (expected[1:] != 0).all()
    for table in (X, pd.DataFrame(X)):
        model = pb.MixedNB().fit(table, y)
        for row in (X[0], list(X[0]), pd.Series(X[0])):
            np.testing.assert_allclose(model.explain(row)["log_odds"], expected)


def test_a_row_with_a_misspelt_column_is_refused_and_one_left_out_is_missing():
    X, y = patients()
    model = pb.MixedNB().fit(X, y)
    with pytest.raises(pb.SchemaMismatch, match="x names 'Age'"):
        model.explain({"Age": 50, "smoker": True, "ward": "a", "pressure": 120})
    told = model.explain({"smoker": True, "ward": "a", "pressure": 120}).set_index("feature")
    assert told.loc["age", "log_odds"] == 0


def test_against_the_predicted_class_speaks_the_runner_up():
    X, y = patients()
    model = pb.MixedNB().fit(X, y)
    told = model.explain(X[:1], against=model.predict(X[:1])[0])
    assert told["of"].iloc[0] != told["against"].iloc[0]
    assert told["log_odds"].astype(float).sum() < 0


def test_columns_named_by_numbers_are_found_by_them():
    X, y = load_wine(return_X_y=True)
    frame = pd.DataFrame(X[:, :3] * [1, 10, 100], columns=[10, 5, 0])
    frame[5] = frame[5].round(-1)
    model = pb.MixedNB(kinds={5: "discrete"}).fit(frame, y)
    assert model.schema_.kinds == {"10": "continuous", "5": "discrete", "0": "continuous"}
    np.testing.assert_array_equal(model.predict_proba(frame[[0, 10, 5]]), model.predict_proba(frame))


def test_a_party_with_one_class_learns_under_an_agreed_schema(estimator):
    X, y = load_wine(return_X_y=True)
    schema = pb.Schema.infer(X, y)
    own = y == 1
    for calibrate in (False, True):
        model = estimator(schema=schema, calibrate=calibrate).fit(X[own], y[own])
        assert list(model.classes_) == [0, 1, 2]
        assert (model.predict(X[own]) == 1).all()


@pytest.mark.parametrize("dtype", ["f2", ">f8", ">i2", "g", "u8", "i1"])
def test_every_type_of_number_is_read(dtype):
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    X = np.stack([rng.integers(0, 4, 90) + y, 10 * y + rng.integers(0, 9, 90)], axis=1)
    for kinds in ("continuous", "discrete"):
        expected = pb.MixedNB(kinds=kinds).fit(X, y).predict_proba(X)
        np.testing.assert_allclose(
            pb.MixedNB(kinds=kinds).fit(X.astype(dtype), y).predict_proba(X.astype(dtype)), expected
        )


def test_models_of_noisy_statistics_can_still_be_read(estimator):
    """Calibration and privacy noise make covariances indefinite: nothing that reads a model may break."""
    X, y = load_wine(return_X_y=True)
    stats = estimator().fit(X[:, :6], y).statistics_
    rng = np.random.default_rng(0)
    for _ in range(30):
        noisy = replace(stats, values=stats.values + rng.normal(0, 30, stats.shape))
        model = estimator.from_statistics(noisy)
        assert np.isfinite(model.predict_joint_log_proba(X[:, :6])).all()
        assert np.isfinite(model.describe()["deviation"].dropna()).all()
        assert np.isfinite(model.sample(50, random_state=0)[0].astype(float)).all()
        assert np.isfinite(model.explain(X[:3, :6])["log_odds"]).all()


def test_sampling_takes_any_source_of_randomness():
    X, y = load_iris(return_X_y=True)
    model = pb.MixedNB().fit(X, y)
    for source in (lambda: 3, lambda: np.random.default_rng(3), lambda: np.random.RandomState(3)):
        np.testing.assert_array_equal(model.sample(4, source())[0], model.sample(4, source())[0])


# --- what is passed by unchecked, and what is counted later


@pytest.mark.parametrize("labels", [[2, 0, 1], ["b", "a", "c"], [True, False, True], [0.0, 1.0, 1.0]])
def test_plain_labels_are_those_that_scikit_learn_checks(labels):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(90, 2)), np.array(labels * 30)
    plain = pb.MixedNB().fit(X, y)
    for given in (y.tolist(), pd.Series(y), y[::-1][::-1]):
        other = pb.MixedNB().fit(X, given)
        np.testing.assert_array_equal(other.classes_, plain.classes_)
        np.testing.assert_array_equal(other.statistics_.values, plain.statistics_.values)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        pb.MixedNB().fit(X, y[:-1])
    with pytest.raises(ValueError, match="Unknown label type"):
        pb.MixedNB().fit(X, rng.normal(size=90))


def test_an_array_after_a_table_has_no_names():
    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    model = pb.MixedNB().fit(pd.DataFrame(X[:, :2], columns=["a", "b"]), y)
    assert model.n_features_in_ == 2
    model.fit(X, y)
    assert model.n_features_in_ == 3 and not hasattr(model, "feature_names_in_")
    for wrong in (X[:0], X[:, :0], X[0]):
        with pytest.raises(ValueError, match=r"minimum of 1 is required|Expected 2D array"):
            pb.MixedNB().fit(wrong, y)


def test_a_pickled_model_has_what_was_counted_in_its_rows_but_none_of_them():
    X, y = np.random.default_rng(0).normal(size=(500, 3)), np.arange(500) % 2
    model, asked = pb.MixedNB().fit(X, y), pb.MixedNB().fit(X, y)
    asked.describe()
    written = pickle.dumps(model)
    assert len(written) < X.nbytes
    assert not any(value.tobytes() in written for value in X.ravel()[:200])
    pd.testing.assert_frame_equal(pickle.loads(written).describe(), asked.describe())
    X[:] = 0.0
    pd.testing.assert_frame_equal(model.describe(), asked.describe())
