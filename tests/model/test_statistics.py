"""Statistics add: over splits of a table, over parties, and over differences between their schemas."""

import functools
import math
import operator
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_wine

import peerbayes as pb
from peerbayes.learning import integer_sums
from peerbayes.model.families import NaiveBayes

ESTIMATORS = [pb.MixedNB, pb.QDA, pb.LDA]


def table(seed, rows=120, missing=False):
    """Three classes, three continuous columns in very different units, two text columns."""
    rng = np.random.default_rng(seed)
    y = np.array(["red", "green", "blue"])[np.arange(rows) % 3]
    shift = np.arange(rows) % 3
    X = pd.DataFrame(
        {
            "height": 170 + 10 * rng.normal(size=rows) + shift,
            "kind": rng.choice(list("abc"), rows),
            "mass": 1e6 + 1e-2 * (rng.normal(size=rows) + shift),
            "site": rng.choice(["north", "south"], rows),
            "rate": 1e-5 * rng.normal(size=rows) ** 3,
        }
    )
    if missing:
        X = X.mask(rng.random(X.shape) < 0.1)
        X["height"] = X["height"].fillna(170)  # no row is left without any value
    return X, y


def close(ours, expected, X):
    """The same model: the same joint densities, to rounding."""
    joint = expected.predict_joint_log_proba(X)
    np.testing.assert_allclose(ours.predict_joint_log_proba(X), joint, rtol=1e-9, atol=1e-9)
    assert ours.statistics_.rows == pytest.approx(expected.statistics_.rows)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(seed=st.integers(0, 2**31), cuts=st.lists(st.integers(0, 120), max_size=6), shuffle=st.booleans())
def test_partial_fit_over_any_split_equals_fit(estimator, seed, cuts, shuffle):
    X, y = table(seed)
    order = np.random.default_rng(seed).permutation(120) if shuffle else np.arange(120)
    model = estimator(clip=None)
    for part in np.split(order, sorted(cuts)):
        if part.size:
            model.partial_fit(X.iloc[part], y[part], classes=["red", "green", "blue"])
    whole = estimator(clip=None).fit(X, y)
    assert model.schema_.names == whole.schema_.names
    assert model.schema_.classes == whole.schema_.classes
    np.testing.assert_allclose(model.schema_.location, whole.schema_.location, rtol=1e-12, atol=1e-18)
    np.testing.assert_allclose(model.schema_.scale, whole.schema_.scale, rtol=1e-9)
    close(model, whole, X)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(seed=st.integers(0, 2**31), cuts=st.lists(st.integers(1, 119), max_size=5))
def test_with_a_schema_partial_fit_equals_fit_to_twelve_digits(estimator, seed, cuts):
    """Clipping included: the schema says where."""
    X, y = table(seed)
    schema = pb.Schema.infer(X, y, clip=1.5)
    whole = estimator(schema=schema).fit(X, y)
    model = estimator(schema=schema)
    for part in np.split(np.random.default_rng(seed).permutation(120), sorted(cuts)):
        if part.size:
            model.partial_fit(X.iloc[part], y[part])
    expected = np.asarray(whole.statistics_)
    np.testing.assert_allclose(
        np.asarray(model.statistics_), expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max()
    )


@given(seed=st.integers(0, 2**31), cut=st.integers(5, 115))
def test_missing_values_add_too(seed, cut):
    X, y = table(seed, missing=True)
    parts = [
        pb.MixedNB(clip=None).partial_fit(X.iloc[rows], y[rows], classes=np.unique(y)).statistics_
        for rows in (slice(0, cut), slice(cut, 120))
    ]
    close(pb.MixedNB.from_statistics(parts[0] + parts[1]), pb.MixedNB(clip=None).fit(X, y), X)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_two_parties_with_other_categories_classes_units_and_order_add_up(estimator):
    X, y = table(0)
    first = np.isin(y, ["red", "green"]) & X["kind"].isin(["a", "b"])
    second = ~first
    mine = estimator(clip=None).fit(X[first], y[first])
    theirs = estimator(clip=None).fit(X.loc[second, sorted(X.columns)], y[second])
    assert mine.statistics_.schema != theirs.statistics_.schema
    whole = estimator(clip=None).fit(X[sorted(X.columns)], y)
    for total in (mine.statistics_ + theirs.statistics_, theirs.statistics_ + mine.statistics_):
        close(estimator.from_statistics(total), whole, X[sorted(X.columns)])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_addition_is_associative_and_sum_works(estimator):
    X, y = load_wine(return_X_y=True)
    X = X[:, :5]
    parts = [estimator(clip=None).fit(X[k::4], y[k::4]).statistics_ for k in range(4)]
    left, right = functools.reduce(operator.add, parts), parts[0] + (parts[1] + (parts[2] + parts[3]))
    np.testing.assert_allclose(np.asarray(left), np.asarray(right), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(np.asarray(sum(parts)), np.asarray(left), rtol=1e-12)
    close(estimator.from_statistics(left), estimator(clip=None).fit(X, y), X)


@pytest.mark.filterwarnings("ignore:empty:peerbayes.errors.DataWarning")  # which is meant
def test_a_column_without_values_on_one_side_takes_the_other_sides_kind():
    X, y = table(1)
    empty = X.assign(kind=None, mass=np.nan)
    known, unknown = pb.MixedNB(clip=None).fit(X, y), pb.MixedNB(clip=None).fit(empty, y)
    total = known.statistics_ + unknown.statistics_
    assert total.schema.kinds["kind"] == "discrete"
    both = pd.concat([X, empty.astype({"kind": object})])
    close(pb.MixedNB.from_statistics(total), pb.MixedNB(clip=None).fit(both, np.concatenate([y, y])), X)


def test_statistics_scale():
    X, y = table(2)
    model = pb.MixedNB().fit(X, y)
    doubled = pb.MixedNB().fit(X, y, sample_weight=np.full(120, 2.0)).statistics_
    np.testing.assert_allclose(np.asarray(2 * model.statistics_), np.asarray(doubled), rtol=1e-12)
    assert (model.statistics_ * 0.5).rows == 60


def test_statistics_cannot_be_changed_from_outside():
    X, y = table(3)
    model = pb.MixedNB().fit(X, y)
    with pytest.raises(ValueError, match="read-only"):
        model.statistics_.values[0, 0] = 1
    np.asarray(model.statistics_)
    array = np.array(model.statistics_)
    array[:] = 0
    assert model.statistics_.rows == 120


def test_a_prior_is_a_statistic():
    """MAP with n pseudo-rows is maximum likelihood with n more rows."""
    X, y = table(4)
    expert = pb.MixedNB(clip=None).fit(X[::2], y[::2]).statistics_
    schema = pb.Schema.infer(X, y, clip=None)
    believed = pb.MixedNB(schema=schema, prior=expert).fit(X, y)
    both = pb.MixedNB(schema=schema).fit(pd.concat([X, X[::2]]), np.concatenate([y, y[::2]]))
    np.testing.assert_allclose(
        believed.predict_joint_log_proba(X), both.predict_joint_log_proba(X), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("estimator", [pb.QDA, pb.LDA])
def test_pseudo_rows_weigh_the_same_over_any_split(estimator):
    X, y = table(5)
    whole = estimator(shrinkage=10, clip=None).fit(X, y)
    parts = estimator(shrinkage=10, clip=None).partial_fit(X[:20], y[:20], classes=np.unique(y))
    close(parts.partial_fit(X[20:], y[20:]), whole, X)


def test_an_agreed_schema_keeps_its_fingerprint_whatever_is_added():
    for seed in range(20):
        X, y = table(seed)
        schema = pb.Schema.infer(X, y)
        model = pb.MixedNB(schema=schema)
        for rows in np.split(np.arange(120), [7, 8, 50]):
            model.partial_fit(X.iloc[rows], y[rows])
        assert model.schema_.fingerprint == schema.fingerprint


def test_statistics_travel_as_bytes():
    X, y = table(6, missing=True)
    for sent in (pb.MixedNB().fit(X, y).statistics_, pb.MixedNB(calibrate=True).fit(X, y).statistics_):
        got = pb.Statistics.from_bytes(sent.to_bytes())
        assert (got.schema, got.family, got.calibrated) == (sent.schema, sent.family, sent.calibrated)
        np.testing.assert_array_equal(got.values, sent.values)
    content = bytearray(sent.to_bytes())
    content[200] ^= 1
    with pytest.raises(pb.ModelFileDamaged, match="truncated or altered"):
        pb.Statistics.from_bytes(bytes(content))
    with pytest.raises(pb.ModelFileDamaged):
        pb.Statistics.from_bytes(b"PEERBAYES\n")


def test_rows_can_be_taken_out_again():
    X, y = table(7)
    schema = pb.Schema.infer(X, y)
    everyone, some = (
        pb.MixedNB(schema=schema).fit(X[rows], y[rows]).statistics_ for rows in (slice(120), slice(40))
    )
    rest = pb.MixedNB(schema=schema).fit(X[40:], y[40:])
    close(pb.MixedNB.from_statistics(everyone - some), rest, X)


def test_statistics_that_do_not_fit_their_schema_are_refused():
    X, y = table(8)
    stats = pb.MixedNB().fit(X[["height", "mass", "rate"]], y).statistics_
    other = NaiveBayes(continuous=1, cardinalities=(3, 1))  # as many features, in other places
    assert other.size == stats.family.size
    with pytest.raises(pb.StatisticsMismatch, match="laid out for"):
        pb.Statistics(stats.values, stats.schema, other)


def test_a_merged_model_finds_a_frames_columns_by_name():
    X, y = table(9)
    turned = X[X.columns[::-1]]
    both = pb.MixedNB.from_statistics(
        pb.MixedNB().fit(X, y).statistics_ + pb.MixedNB().fit(turned, y).statistics_
    )
    np.testing.assert_array_equal(both.predict_proba(X), both.predict_proba(turned))
    assert both.score(X, y) > 0.5


def test_an_empty_column_adds_to_any_kind():
    """Also where the rule of the paper calls an empty column discrete."""
    X, y = table(10)
    known, unknown = (pb.MixedNB(kinds="paper").fit(frame, y) for frame in (X, X.assign(mass=np.nan)))
    for total in (known.statistics_ + unknown.statistics_, unknown.statistics_ + known.statistics_):
        assert total.schema.kinds["mass"] == "continuous"
        assert total.rows == 240


def test_heavy_tails_are_not_clipped_by_partial_fit_and_it_says_so():
    X, y = table(11)
    X.loc[5, "height"] = 1e6
    with pytest.warns(UserWarning, match="column 'height' holds values beyond 5.0 standard deviations"):
        pb.MixedNB().partial_fit(X, y, classes=np.unique(y))
    pb.MixedNB(schema=pb.Schema.infer(X, y)).partial_fit(X, y)
    pb.MixedNB(clip=None).partial_fit(X, y, classes=np.unique(y))


def test_a_prior_may_know_more_categories_than_the_rows():
    X, y = table(12)
    expert = pb.MixedNB(clip=None).fit(X, y).statistics_
    few = X[X["kind"] != "c"]
    model = pb.MixedNB(prior=expert).fit(few, y[few.index])
    assert model.schema_.columns[1].categories == ("a", "b", "c")
    assert model.predict_proba(X).shape == (120, 3)


# --- sums that have the same bits in any order -------------------------------------------------------------


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_sums_on_a_grid_do_not_depend_on_the_order(numbers, random):
    """And are off by half a step of the grid for each number at most; a grid as fine as 62 bits allow."""
    bound = sum(map(abs, numbers)) or 1.0
    power = integer_sums.exponent(bound)
    assert 2.0**61 <= math.ldexp(bound * (1 + 1e-9), power) < 2.0**62
    turned = numbers.copy()
    random.shuffle(turned)
    one, other = (integer_sums.on_grid(np.array(each), power).sum() for each in (numbers, turned))
    assert one == other and one.dtype == np.int64
    total = integer_sums.off_grid(np.array([one]), power)[0]
    exact = sum(map(Fraction, numbers))
    assert (
        abs(Fraction(total) - exact)
        <= Fraction(len(numbers), 2) * Fraction(2) ** -power + abs(exact) * Fraction(2) ** -52
    )


@pytest.mark.parametrize("power", [-40, 0, 1, 30])
def test_the_largest_sum_of_a_grid_leaves_a_bit_to_spare(power):
    """Also where the bound is a power of two, which rounding may have made a little larger."""
    bound = 2.0**power
    assert abs(int(integer_sums.on_grid(np.array([-bound]), integer_sums.exponent(bound))[0])) < 2**62


def test_numbers_go_to_the_nearest_of_a_grid():
    np.testing.assert_array_equal(integer_sums.on_grid(np.array([0.6, -0.6, 0.4, 1.5]) / 4, 2), [1, -1, 0, 2])
    np.testing.assert_array_equal(integer_sums.off_grid(np.array([3, -5]), 2), [0.75, -1.25])


def test_a_model_as_statistics_stands_for_the_rows_it_was_made_from():
    X, y = table(13)
    model = pb.MixedNB().fit(X, y).statistics_
    again = pb.Statistics.of_model(7.5 * model.values, model.schema, model.family, 60)
    assert again.rows == pytest.approx(60) and again.calibrated
    np.testing.assert_allclose(again.values, model.values / 2, rtol=1e-12)
    nothing = pb.Statistics.of_model(0 * model.values, model.schema, model.family, 60)
    assert nothing.rows == 0


def test_statistics_of_different_kinds_are_not_added():
    X, y = table(14)
    nb, qda = pb.MixedNB().fit(X, y).statistics_, pb.QDA().fit(X, y).statistics_
    with pytest.raises(pb.StatisticsMismatch, match="naive-bayes and of qda cannot be added"):
        nb + qda
    with pytest.raises(pb.StatisticsMismatch, match="describe a model"):
        nb + pb.MixedNB(calibrate=True).fit(X, y).statistics_
    for trouble in (np.nan, np.inf):
        broken = nb.values.copy()
        broken[0, 0] = trouble
        with pytest.raises(pb.StatisticsMismatch, match="NaN or infinity"):
            pb.Statistics(broken, nb.schema, nb.family)


def test_a_family_that_does_not_fit_its_schema_is_refused_when_restored():
    X, y = table(15)
    stats = pb.MixedNB().fit(X, y).statistics_
    described = stats.described()
    described["family"] = {**described["family"], "continuous": 2}
    with pytest.raises(pb.StatisticsMismatch, match="does not fit the schema"):
        pb.Statistics.restored(described, stats.values)
    described["family"] = {**described["family"], "name": "oracle"}
    with pytest.raises(pb.StatisticsMismatch, match="'oracle'; expected one of naive-bayes"):
        pb.Statistics.restored(described, stats.values)
