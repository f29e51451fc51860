"""Bad input is refused with what arrived and what to do, and a model that was fitted before is left as it was."""

import datetime
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

import peerbayes as pb
from peerbayes import SchemaError

ROWS = 12
ARRAY = np.random.default_rng(0).normal(size=(ROWS, 2))
Y = np.arange(ROWS) % 2
FRAME = pd.DataFrame({"length": ARRAY[:, 0], "width": ARRAY[:, 1], "colour": ["red", "blue", "blue"] * 4})

ESTIMATORS = [pb.MixedNB, pb.QDA, pb.LDA]
PREDICTIONS = ["predict", "predict_proba", "predict_log_proba", "predict_joint_log_proba"]


def refused(model, X, error, words, action):
    """`action` raises `error` with all `words` in its message, and `model`, fitted to rows like X, stays the same."""
    before, names = model.predict_proba(X), set(vars(model))
    with pytest.raises(error) as raised:
        action()
    missing = [word for word in words if word not in str(raised.value)]
    assert not missing, f"{missing} not in {raised.value}"
    assert set(vars(model)) == names
    assert np.array_equal(model.predict_proba(X), before)


def array_with(value, row=3, column=1):
    changed = ARRAY.copy()
    changed[row, column] = value
    return changed


def frame_with(**columns):
    return FRAME.assign(**columns)


def objects(*values):
    return pd.Series(values, dtype=object)


def labels_with(value):
    labels = Y.astype(object)
    labels[3] = value
    return labels


ALL = slice(None)
WIDTH, INFINITE = ARRAY[:, 1], array_with(np.inf)[:, 1]
DAYS = pd.date_range("2020-01-01", periods=ROWS)

# --- rows to learn from ------------------------------------------------------------------------------------

# X, y, the error, and words of its message.
ROWS_REFUSED = {
    "one-dimensional X": (ARRAY[:, 0], Y, ValueError, ["1D array", "reshape(-1, 1)"]),
    "three-dimensional X": (ARRAY[None], Y, ValueError, ["dim 3", "<= 2"]),
    "y too short": (ARRAY, Y[:-1], ValueError, ["[12, 11]", "samples"]),
    "no y": (ARRAY, None, ValueError, ["requires y", "None"]),
    "y of two columns": (ARRAY, ARRAY, ValueError, ["1d array", "(12, 2)"]),
    "y with NaN": (ARRAY, np.where(Y, 1.0, np.nan), ValueError, ["missing labels", "leave those rows out"]),
    "y with None": (ARRAY, labels_with(None), ValueError, ["missing labels", "leave those rows out"]),
    "y with NA": (ARRAY, pd.array(labels_with(pd.NA), "Int64"), ValueError, ["missing labels"]),
    "y with infinity": (ARRAY, np.where(Y, 1.0, np.inf), ValueError, ["y", "inf", "finite"]),
    "y of real numbers": (ARRAY, ARRAY[:, 0], ValueError, ["Unknown label type"]),
    "y of dates": (ARRAY, labels_with(datetime.date(2020, 1, 1)), ValueError, ["y holds", "date"]),
    "no rows": (ARRAY[:0], Y[:0], ValueError, ["0 sample", "(0, 2)", "minimum of 1"]),
    "no columns": (ARRAY[:, :0], Y, ValueError, ["0 feature", "(12, 0)", "minimum of 1"]),
    "complex numbers": (ARRAY + 1j, Y, ValueError, ["Complex data not supported"]),
    "an array of dates": (ARRAY.astype("datetime64[s]"), Y, SchemaError, ["datetime64", "expected numbers"]),
    "infinity": (array_with(np.inf), Y, SchemaError, ["'x1'", "inf", "missing"]),
    "minus infinity": (array_with(-np.inf), Y, SchemaError, ["'x1'", "inf", "missing"]),
    "both infinities": (array_with(-np.inf) + array_with(np.inf, row=5), Y, SchemaError, ["'x1'", "inf"]),
    "numbers that overflow": (ARRAY * 1e200, Y, SchemaError, ["'x0'", "e+200", "Divide"]),
}

WEIGHTS_REFUSED = {
    "negative": (np.arange(ROWS) - 1.0, ["Negative", "sample_weight"]),
    "NaN": (np.full(ROWS, np.nan), ["sample_weight", "NaN"]),
    "infinite": (np.full(ROWS, np.inf), ["sample_weight", "infinity"]),
    "all zero": (np.zeros(ROWS), ["at least one"]),
    "too few": (np.ones(ROWS - 1), ["sample_weight", "(11,)", "(12,)"]),
}

# A frame, the error, and words of its message.
FRAMES_REFUSED = {
    "no rows": (FRAME.iloc[:0], ValueError, ["0 sample", "(0, 3)", "minimum of 1"]),
    "no columns": (FRAME[[]], ValueError, ["0 feature", "(12, 0)", "minimum of 1"]),
    "a name twice": (FRAME.set_axis(["a", "b", "a"], axis=1), SchemaError, ["named a", "rename"]),
    "infinity": (frame_with(width=INFINITE), SchemaError, ["'width'", "inf", "missing"]),
    "a nullable infinity": (frame_with(width=pd.array(INFINITE, "Float64")), SchemaError, ["'width'", "inf"]),
    "an infinity as object": (frame_with(width=objects(*INFINITE)), SchemaError, ["'width'", "inf"]),
    "numbers that overflow": (frame_with(width=WIDTH * 1e200), SchemaError, ["'width'", "e+200", "Divide"]),
    "text and numbers": (
        frame_with(width=objects("wide", *WIDTH[1:])),
        SchemaError,
        ["'width'", "numbers and text", "kinds={'width': 'discrete'}"],
    ),
    "booleans and numbers": (
        frame_with(width=objects(True, *WIDTH[1:])),
        SchemaError,
        ["'width'", "booleans and numbers", "kinds={'width': 'discrete'}"],
    ),
    "dates": (frame_with(day=DAYS), SchemaError, ["'day'", "dates", "days since"]),
    "dates of a time zone": (frame_with(day=DAYS.tz_localize("UTC")), SchemaError, ["'day'", "days since"]),
    "durations": (frame_with(day=DAYS - DAYS[0]), SchemaError, ["'day'", "times", "into a number"]),
    "periods": (frame_with(day=DAYS.to_period("D")), SchemaError, ["'day'", "days since"]),
    "dates as objects": (frame_with(day=objects(*DAYS.date)), (SchemaError, TypeError), ["'day'", "date"]),
    "lists": (frame_with(day=objects(*[[0]] * ROWS)), (SchemaError, TypeError), ["'day'", "list"]),
    "complex numbers": (frame_with(width=WIDTH + 1j), SchemaError, ["Complex", "'width'"]),
    "complex numbers as objects": (
        frame_with(width=objects(*(WIDTH + 1j))),
        (SchemaError, TypeError),
        ["'width'", "complex"],
    ),
}


@pytest.mark.parametrize("case", ROWS_REFUSED)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_bad_rows_are_refused(estimator, method, case):
    X, y, error, words = ROWS_REFUSED[case]
    model = estimator().fit(ARRAY, Y)
    refused(model, ARRAY, error, words, lambda: getattr(model, method)(X, y))


@pytest.mark.parametrize("case", WEIGHTS_REFUSED)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_bad_weights_are_refused(estimator, method, case):
    weights, words = WEIGHTS_REFUSED[case]
    model = estimator().fit(ARRAY, Y)
    refused(model, ARRAY, ValueError, words, lambda: getattr(model, method)(ARRAY, Y, sample_weight=weights))


@pytest.mark.parametrize("case", FRAMES_REFUSED)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_bad_frames_are_refused(estimator, case):
    X, error, words = FRAMES_REFUSED[case]
    model = estimator().fit(FRAME, Y)
    refused(model, FRAME, error, words, lambda: model.fit(X, Y[: len(X)]))


@pytest.mark.parametrize("case", ["infinity", "y with NaN", "numbers that overflow"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_bad_rows_are_refused_by_calibration_too(estimator, case):
    X, y, error, words = ROWS_REFUSED[case]
    model = estimator(calibrate=True, max_iter=2).fit(ARRAY, Y)
    refused(model, ARRAY, error, words, lambda: model.fit(X, y))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_labels_are_text_or_numbers_but_not_both(estimator):
    model = estimator().fit(ARRAY, Y)
    refused(model, ARRAY, ValueError, ["text"], lambda: model.fit(ARRAY, labels_with("yes")))


@pytest.mark.parametrize("case", ["infinity", "no y", "one-dimensional X"])
def test_an_estimator_that_failed_to_learn_is_still_not_fitted(case):
    X, y, error, _ = ROWS_REFUSED[case]
    model = pb.MixedNB()
    names = set(vars(model))
    with pytest.raises(error):
        model.fit(X, y)
    assert set(vars(model)) == names
    with pytest.raises(NotFittedError):
        model.predict(ARRAY)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_one_class_is_not_enough(estimator):
    model = estimator().fit(ARRAY, Y)
    words = ["one class (7", "partial_fit with classes"]
    refused(model, ARRAY, ValueError, words, lambda: model.fit(ARRAY, np.full(ROWS, 7)))
    weights = np.where(Y == 0, 0.0, 1.0)
    refused(model, ARRAY, ValueError, ["one class (1"], lambda: model.fit(ARRAY, Y, sample_weight=weights))


def test_a_bad_row_is_named_by_its_place_in_the_table():
    X, weights = array_with(np.inf), np.ones(ROWS)
    weights[:2] = 0
    with pytest.raises(SchemaError, match="row 3"):
        pb.MixedNB(schema=pb.Schema.infer(ARRAY, Y)).fit(X, Y, sample_weight=weights)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_text_in_a_column_declared_continuous_is_shown(estimator):
    model = estimator().fit(FRAME, Y)
    model.kinds = {"colour": "continuous"}
    words = ["'colour'", "'red'", "not a number", "discrete"]
    refused(model, FRAME, SchemaError, words, lambda: model.fit(FRAME, Y))


@pytest.mark.parametrize("estimator", [pb.QDA, pb.LDA])
@pytest.mark.parametrize(
    "X", [array_with(np.nan), frame_with(width=array_with(np.nan)[:, 1])], ids=["array", "frame"]
)
def test_rows_that_are_added_need_every_value_of_columns_that_depend_on_each_other(estimator, X):
    complete = FRAME if isinstance(X, pd.DataFrame) else ARRAY
    name = "'width'" if isinstance(X, pd.DataFrame) else "'x1'"
    model = estimator().fit(complete, Y)
    words = [name, "missing", estimator.__name__, "MixedNB", "SimpleImputer"]
    refused(model, complete, SchemaError, words, lambda: model.partial_fit(X, Y))


# --- rows to add -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_first_rows_to_add_come_with_the_classes(estimator):
    model = estimator()
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        model.partial_fit(ARRAY, Y)
    with pytest.raises(ValueError, match=re.escape("classes names [0]; a classifier needs at least two")):
        model.partial_fit(ARRAY, Y, classes=[0])
    assert not hasattr(model, "n_features_in_")


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_rows_to_add_cannot_bring_another_class(estimator):
    model = estimator().partial_fit(ARRAY, Y, classes=[0, 1])
    words = ["y holds 2", "the classes 0, 1", "beforehand"]
    refused(model, ARRAY, pb.SchemaMismatch, words, lambda: model.partial_fit(ARRAY, Y + 1))
    words = ["[0, 1, 2]", "not the same", "[0, 1]"]
    refused(model, ARRAY, ValueError, words, lambda: model.partial_fit(ARRAY, Y, classes=[0, 1, 2]))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_rows_to_add_have_the_same_columns(estimator):
    model = estimator().partial_fit(FRAME, Y, classes=[0, 1])
    renamed = FRAME.rename(columns={"width": "depth"})
    refused(model, FRAME, ValueError, ["depth", "width"], lambda: model.partial_fit(renamed, Y))
    text = frame_with(width=["wide"] * ROWS)
    refused(model, FRAME, SchemaError, ["'width'", "'wide'"], lambda: model.partial_fit(text, Y))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_calibration_cannot_add_rows(estimator):
    model = estimator(calibrate=True, max_iter=1).fit(ARRAY, Y)
    assert not hasattr(model, "partial_fit")
    refused(model, ARRAY, AttributeError, ["partial_fit"], lambda: model.partial_fit(ARRAY, Y))
    with pytest.raises(AttributeError) as raised:
        _ = model.partial_fit
    assert "calibrate=False" in str(raised.value.__cause__)


# --- rows to predict ---------------------------------------------------------------------------------------

PREDICTIONS_REFUSED = {
    "one-dimensional X": (ARRAY, ARRAY[0], ValueError, ["1D array", "reshape(1, -1)"]),
    "three-dimensional X": (ARRAY, ARRAY[None], ValueError, ["dim 3"]),
    "no rows": (ARRAY, ARRAY[:0], ValueError, ["0 sample", "minimum of 1"]),
    "fewer columns": (ARRAY, ARRAY[:, :1], ValueError, ["1 features", "expecting 2"]),
    "more columns": (ARRAY, np.ones((2, 3)), ValueError, ["3 features", "expecting 2"]),
    "infinity": (ARRAY, array_with(np.inf), SchemaError, ["'x1'", "inf", "row 3", "missing"]),
    "minus infinity": (ARRAY, array_with(-np.inf), SchemaError, ["'x1'", "row 3"]),
    "text": (ARRAY, ARRAY.astype(str).astype(object) + "m", SchemaError, ["'x0'", "not a number"]),
    "complex numbers": (ARRAY, ARRAY + 1j, ValueError, ["Complex"]),
    "an array of dates": (ARRAY, ARRAY.astype("datetime64[s]"), SchemaError, ["datetime64"]),
    "a frame without a column": (FRAME, FRAME[["length", "colour"]], ValueError, ["now missing", "width"]),
    "a frame with another column": (
        FRAME,
        FRAME.rename(columns={"width": "w"}),
        ValueError,
        ["width", "- w"],
    ),
    "a frame in another order": (FRAME, FRAME[["colour", "width", "length"]], ValueError, ["same order"]),
    "infinity in a frame": (FRAME, frame_with(width=INFINITE), SchemaError, ["'width'", "row 3"]),
    "text in a frame": (FRAME, frame_with(width="wide"), SchemaError, ["'width'", "'wide'", "not a number"]),
    "dates in a frame": (FRAME, frame_with(width=pd.Timestamp("2020")), SchemaError, ["'width'", "dates"]),
}


@pytest.mark.parametrize("case", PREDICTIONS_REFUSED)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_rows_that_cannot_be_predicted_are_refused(estimator, case):
    seen, X, error, words = PREDICTIONS_REFUSED[case]
    model = estimator().fit(seen, Y)
    for method in PREDICTIONS:
        refused(model, seen, error, words, lambda method=method: getattr(model, method)(X))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("method", [*PREDICTIONS, "explain"])
def test_nothing_is_predicted_before_fit(estimator, method):
    with pytest.raises(NotFittedError, match=f"This {estimator.__name__} instance is not fitted yet"):
        getattr(estimator(), method)(ARRAY)


@pytest.mark.parametrize("action", ["describe", "sample", "floored_", "save", "decide"])
def test_nothing_is_read_before_fit(action, tmp_path):
    arguments = {"save": (tmp_path / "model",), "decide": (ARRAY, np.eye(2))}
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(pb.MixedNB(), action)(*arguments.get(action, ()))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_largest_floats_are_clipped_like_any_other(estimator):
    model = estimator().fit(ARRAY, Y)
    huge = np.finfo(float).max * np.array([[1.0, -1.0]])
    np.testing.assert_array_equal(model.predict_proba(huge), model.predict_proba(np.array([[1e9, -1e9]])))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("factor", [1e90, 1e200, 1e307])
def test_numbers_whose_squares_overflow_still_get_a_finite_answer(estimator, factor):
    model = estimator(clip=None).fit(ARRAY, Y)
    assert np.isfinite(model.predict_proba(ARRAY * factor)).all()
    assert np.isfinite(model.predict_joint_log_proba(ARRAY * factor)).all()
    agreed = estimator(schema=pb.Schema.infer(ARRAY, clip=None)).fit(ARRAY * factor, Y)
    assert np.isfinite(agreed.predict_joint_log_proba(ARRAY)).all()


def test_a_column_without_values_is_sampled_as_missing():
    table = pd.DataFrame({"a": [None] * ROWS, "b": ARRAY[:, 0]})
    model = pb.MixedNB(kinds={"a": "discrete"}).fit(table, Y)
    drawn, _ = model.sample(5, random_state=0)
    assert drawn["a"].isna().all() and drawn["b"].notna().all()


# --- parameters --------------------------------------------------------------------------------------------

PARAMETERS_REFUSED = [
    ({"lr": 0.0}, ["lr is 0.0", "positive"]),
    ({"lr": -0.1}, ["lr is -0.1", "positive"]),
    ({"lr": np.nan}, ["lr is nan", "positive"]),
    ({"lr": np.inf}, ["lr is inf"]),
    ({"max_iter": -1}, ["max_iter is -1", "0 or more"]),
    ({"keep": "first"}, ["keep is 'first'", "'best' or 'last'"]),
    ({"start": "zeros"}, ["start is 'zeros'", "uniform, marginal, ml"]),
    ({"start": np.ones((2, 3))}, ["start has shape (2, 3)", "expected (2, "]),
    ({"alpha": -1.0}, ["alpha is -1.0", "0 or more"]),
    ({"alpha": np.nan}, ["alpha is nan", "0 or more"]),
    ({"alpha": np.inf}, ["alpha is inf"]),
    ({"tol": -1e-3}, ["tol is -0.001", "0 or more"]),
    ({"clip": 0}, ["clip is 0", "None for no clipping"]),
    ({"clip": -5.0}, ["clip is -5.0", "None for no clipping"]),
    ({"clip": np.nan}, ["clip is nan", "None for no clipping"]),
    ({"clip": np.inf}, ["clip is inf", "None for no clipping"]),
    ({"patience": 0}, ["patience is 0", "None for no early stop"]),
    ({"variance_floor": -1.0}, ["variance_floor is -1.0", "None for the default"]),
    ({"count_floor": np.nan}, ["count_floor is nan", "None for the default"]),
    ({"kinds": "numeric"}, ["'numeric'", "auto, paper, continuous, discrete"]),
    ({"kinds": ["auto"]}, ["1 entries", "2 columns"]),
    ({"kinds": {"height": "discrete"}}, ["'height'", "expected one of x0, x1"]),
    ({"kinds": {2: "discrete"}}, ["2", "expected one of x0, x1"]),
    ({"kinds": {-1: "discrete"}}, ["-1", "expected one of x0, x1"]),
]


@pytest.mark.parametrize(
    ("parameters", "words"), PARAMETERS_REFUSED, ids=[str(case[0]) for case in PARAMETERS_REFUSED]
)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_bad_parameters_are_refused(estimator, parameters, words):
    model = estimator(calibrate=True, max_iter=1).fit(ARRAY, Y)
    model.set_params(**parameters)
    refused(model, ARRAY, ValueError, words, lambda: model.fit(ARRAY, Y))


@pytest.mark.parametrize("shrinkage", [-1.0, np.nan, np.inf])
@pytest.mark.parametrize("estimator", [pb.QDA, pb.LDA])
def test_bad_shrinkage_is_refused(estimator, shrinkage):
    model = estimator().fit(ARRAY, Y).set_params(shrinkage=shrinkage)
    words = [f"shrinkage is {shrinkage}", "None for the default"]
    refused(model, ARRAY, ValueError, words, lambda: model.fit(ARRAY, Y))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            ("lr", "0.05"),
            ("max_iter", 2.5),
            ("alpha", None),
            ("clip", "5"),
            ("patience", "3"),
            ("tol", None),
        ),
        *(("variance_floor", "0"), ("kinds", None), ("kinds", 3), ("schema", "schema.json"), ("keep", None)),
    ],
)
def test_a_parameter_of_the_wrong_type_is_named(name, value):
    model = pb.MixedNB(calibrate=True, max_iter=1).fit(ARRAY, Y)
    model.set_params(**{name: value})
    refused(model, ARRAY, (TypeError, ValueError), [name], lambda: model.fit(ARRAY, Y))


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        ([[0, 1]], ["costs have shape (1, 2)", "2 x 2"]),
        (np.zeros((3, 3)), ["costs have shape (3, 3)", "2 x 2"]),
        ([[0, np.nan], [1, 0]], ["costs", "finite"]),
        ([[0, 1], [1]], ["costs", "2 x 2"]),
        ("free", ["costs", "2 x 2"]),
    ],
)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_bad_costs_are_refused(estimator, costs, words):
    model = estimator(costs=costs).fit(ARRAY, Y)
    refused(model, ARRAY, ValueError, words, lambda: model.predict(ARRAY))
    refused(model, ARRAY, ValueError, words, lambda: model.decide(ARRAY, costs))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_schema_of_other_columns_or_classes_is_refused(estimator):
    model = estimator().fit(ARRAY, Y)
    model.schema = pb.Schema.infer(ARRAY[:, :1])
    refused(model, ARRAY, pb.SchemaMismatch, ["2 columns", "schema 1"], lambda: model.fit(ARRAY, Y))
    model.schema = pb.Schema.infer(ARRAY, Y + 5)
    refused(model, ARRAY, pb.SchemaMismatch, ["y holds 0, 1", "5, 6"], lambda: model.fit(ARRAY, Y))


# --- statistics --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_statistics_of_another_family_are_refused(estimator):
    mine = estimator().fit(ARRAY, Y)
    for other in set(ESTIMATORS) - {estimator}:
        theirs = other().fit(ARRAY, Y).statistics_
        words = [mine.family_.name, theirs.family.name]
        refused(mine, ARRAY, pb.StatisticsMismatch, words, lambda theirs=theirs: mine.statistics_ + theirs)
        with pytest.raises(pb.StatisticsMismatch, match=f"{estimator.__name__} needs {mine.family_.name}"):
            estimator.from_statistics(theirs)
        mine.prior = theirs
        refused(mine, ARRAY, pb.StatisticsMismatch, words[:1], lambda: mine.fit(ARRAY, Y))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_statistics_of_rows_and_of_a_calibrated_model_are_not_added(estimator):
    plain = estimator().fit(ARRAY, Y).statistics_
    calibrated = estimator(calibrate=True, max_iter=1).fit(ARRAY, Y).statistics_
    with pytest.raises(pb.StatisticsMismatch, match="same value of calibrate"):
        plain + calibrated


@pytest.mark.parametrize(
    "other", [None, {}, np.ones((2, 5)), pb.MixedNB()], ids=lambda value: type(value).__name__
)
def test_only_statistics_make_a_model(other):
    with pytest.raises(TypeError, match=f"the statistics_ of a fitted MixedNB, not {type(other).__name__}"):
        pb.MixedNB.from_statistics(other)


def test_statistics_that_do_not_fit_or_are_not_finite_are_refused():
    fitted = pb.MixedNB().fit(ARRAY, Y)
    with pytest.raises(pb.StatisticsMismatch, match=re.escape("shape (3, 5)")):
        pb.Statistics(np.ones((3, 5)), fitted.schema_, fitted.family_)
    with pytest.raises(pb.StatisticsMismatch, match="NaN or infinity"):
        pb.Statistics(np.full((2, 5), np.nan), fitted.schema_, fitted.family_)
    with pytest.raises(TypeError):
        fitted.statistics_ + 1


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_prior_is_for_maximum_likelihood_and_is_a_statistic(estimator):
    prior = estimator().fit(ARRAY, Y).statistics_
    with pytest.raises(ValueError, match=r"prior is for calibrate=False.*start=prior"):
        estimator(calibrate=True, prior=prior).fit(ARRAY, Y)
    with pytest.raises(TypeError, match="expected Statistics"):
        estimator(prior=np.ones((2, 5))).fit(ARRAY, Y)
    with pytest.raises(ValueError, match="start is MixedNB"):
        estimator(calibrate=True, start=pb.MixedNB()).fit(ARRAY, Y)


def test_the_papers_typing_needs_all_rows():
    with pytest.raises(ValueError, match=r"needs the distinct values of all rows.*give a schema"):
        pb.MixedNB(kinds="paper").partial_fit(ARRAY, Y, classes=np.unique(Y))


def test_a_table_with_more_columns_than_the_schema_is_refused():
    table = pd.DataFrame(ARRAY, columns=["a", "b"])
    schema = pb.Schema.infer(table[["a"]], Y)
    with pytest.raises(pb.SchemaMismatch, match="the schema has no column b"):
        pb.MixedNB(schema=schema).fit(table, Y)


def test_labels_of_two_types_are_refused():
    with pytest.raises(ValueError, match="y mixes text and numbers"):
        pb.MixedNB().fit(ARRAY, np.array([1, "a"] * (ROWS // 2), dtype=object))
