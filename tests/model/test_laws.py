"""Laws that every family obeys."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from peerbayes.errors import NotSupported
from peerbayes.model import core
from peerbayes.model.families import GA2M, Rows, SharedGaussian
from peerbayes.model.families.base import Move
from peerbayes.model.missing import complete
from shared.families import assert_same_product, draw_rows

CLASSES = 3
seeds = st.integers(0, 2**32 - 1)


def labelled_features(family, seed, *shape):
    rng = np.random.default_rng(seed)
    features = family.features(draw_rows(family, rng, *shape))
    codes = rng.integers(0, CLASSES, shape)
    return features, core.one_hot(codes, CLASSES), codes


def ordinary_statistics(family, seed, *peers):
    features, labels, _ = labelled_features(family, seed, *peers, 40)
    return core.statistics(features, labels)


@given(seed=seeds, rows=st.integers(0, 30), cut=st.integers(0, 30))
def test_statistics_add_over_any_split(family, seed, rows, cut):
    features, labels, _ = labelled_features(family, seed, rows)
    parts = core.statistics(features[:cut], labels[:cut]) + core.statistics(features[cut:], labels[cut:])
    np.testing.assert_allclose(parts, core.statistics(features, labels), rtol=1e-12, atol=1e-12)


@given(seed=seeds)
def test_the_order_of_rows_is_irrelevant(family, seed):
    features, labels, _ = labelled_features(family, seed, 25)
    order = np.random.default_rng(seed).permutation(25)
    shuffled = core.statistics(features[order], labels[order])
    np.testing.assert_allclose(shuffled, core.statistics(features, labels), rtol=1e-12, atol=1e-12)


@given(seed=seeds, permutation=st.permutations(range(CLASSES)))
def test_relabelling_permutes_statistics_weights_and_posteriors(family, seed, permutation):
    features, labels, codes = labelled_features(family, seed, 40)
    order = np.asarray(permutation)
    relabelled = core.one_hot(order[codes], CLASSES)
    before, after = core.statistics(features, labels), core.statistics(features, relabelled)
    assert_same_product(after[order], before, labels.T, features)
    weights, permuted = family.weights(before), family.weights(after)
    np.testing.assert_allclose(permuted[order], weights, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        core.posterior(features, permuted, family.log_joint)[:, order],
        core.posterior(features, weights, family.log_joint),
        atol=1e-9,
    )


@given(seed=seeds, padding=st.integers(1, 5))
def test_zero_rows_are_padding(family, seed, padding):
    features, labels, _ = labelled_features(family, seed, 20)
    padded = np.concatenate([features, np.zeros((padding, family.size))])
    padded_labels = np.concatenate([labels, np.zeros((padding, CLASSES))])
    weights = family.weights(core.statistics(features, labels))
    assert_same_product(
        core.statistics(padded, padded_labels), core.statistics(features, labels), padded_labels.T, padded
    )
    np.testing.assert_allclose(
        core.residual(padded, padded_labels, weights, family.log_joint),
        core.residual(features, labels, weights, family.log_joint),
        atol=1e-12,
    )
    assert core.soft_error(padded_labels, core.posterior(padded, weights, family.log_joint)) == pytest.approx(
        core.soft_error(labels, core.posterior(features, weights, family.log_joint))
    )


@given(seed=seeds)
def test_a_leading_axis_equals_a_loop(family, seed):
    features, labels, _ = labelled_features(family, seed, 4, 30)
    stats = core.statistics(features, labels)
    weights = family.weights(stats)
    joint = family.log_joint
    posterior, residual = (
        core.posterior(features, weights, joint),
        core.residual(features, labels, weights, joint),
    )
    batched = stats, weights, posterior, residual
    held = family.floored(stats)
    for peer in range(4):
        alone = core.statistics(features[peer], labels[peer])
        own = family.weights(alone)
        single = alone, own, core.posterior(features[peer], own, joint)
        for together, separate in zip(
            batched, (*single, core.residual(features[peer], labels[peer], own, joint)), strict=True
        ):
            np.testing.assert_allclose(together[peer], separate, rtol=1e-10, atol=1e-10)
        assert held[peer] == family.floored(alone)


@given(seed=seeds)
def test_posteriors_sum_to_one(family, seed):
    features, labels, _ = labelled_features(family, seed, 40)
    weights = family.weights(core.statistics(features, labels))
    posterior = core.posterior(features, weights, family.log_joint)
    np.testing.assert_allclose(posterior.sum(axis=-1), 1, rtol=1e-14)
    assert (posterior >= 0).all()


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(data=st.data())
def test_weights_are_finite_for_any_real_statistics(family, data):
    stats = data.draw(arrays(np.float64, (CLASSES, family.size), elements=finite))
    assert np.isfinite(family.weights(stats)).all()
    assert 0 <= family.floored(stats) < 10 * stats.size


@given(data=st.data())
def test_weights_are_finite_in_float32(family, data):
    elements = st.floats(width=32, allow_nan=False, allow_infinity=False)
    stats = data.draw(arrays(np.float32, (CLASSES, family.size), elements=elements))
    weights = family.weights(stats)
    assert weights.dtype == np.float32
    assert np.isfinite(weights).all()


@given(data=st.data(), exponent=st.integers(-60, 60))
def test_weights_are_homogeneous_to_the_last_bit_for_powers_of_two(family, data, exponent):
    moderate = st.floats(-1e6, 1e6).filter(lambda x: x == 0 or abs(x) > 1e-100)
    stats = data.draw(arrays(np.float64, (CLASSES, family.size), elements=moderate))
    np.testing.assert_array_equal(family.weights(stats * 2.0**exponent), family.weights(stats))
    assert family.floored(stats * 2.0**exponent) == family.floored(stats)


@given(seed=seeds, factor=st.floats(1e-6, 1e6))
def test_weights_are_homogeneous(family, seed, factor):
    stats = ordinary_statistics(family, seed)
    np.testing.assert_allclose(family.weights(stats * factor), family.weights(stats), rtol=1e-8, atol=1e-8)


@given(seed=seeds, start=st.sampled_from(["uniform", "own"]))
def test_calibration_conserves_the_class_sums(family, seed, start):
    features, labels, _ = labelled_features(family, seed, 40)
    stats = family.uniform(CLASSES, 40.0) if start == "uniform" else core.statistics(features, labels)
    before = stats.sum(axis=0)
    for _ in range(20):
        stats = stats + 0.05 * core.residual(features, labels, family.weights(stats), family.log_joint)
    np.testing.assert_allclose(stats.sum(axis=0), before, rtol=1e-12, atol=1e-12 * np.abs(before).max())


@given(seed=seeds)
def test_inputs_stay_unchanged(family, seed):
    rng = np.random.default_rng(seed)
    rows, codes = draw_rows(family, rng, 20), rng.integers(0, CLASSES, 20)
    features, labels = family.features(rows), core.one_hot(codes, CLASSES)
    stats = core.statistics(features, labels)
    weights = family.weights(stats)
    kept = [array.copy() for array in (*rows, features, labels, stats, weights)]
    core.residual(features, labels, weights, family.log_joint)
    family.floored(stats), family.parameters(stats), family.contributions(stats, rows)
    if not isinstance(family, GA2M):
        family.sample(stats, codes, rng)
    for array, copy in zip((*rows, features, labels, stats, weights), kept, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_the_uniform_start_says_nothing_about_the_class(family):
    features, _, _ = labelled_features(family, 0, 30)
    weights = family.weights(family.uniform(CLASSES, 100.0))
    posterior = core.posterior(features, weights, family.log_joint)
    np.testing.assert_allclose(posterior, 1 / CLASSES, rtol=1e-12)


def test_a_class_without_rows_is_never_chosen_by_maximum_likelihood(family):
    features, labels, _ = labelled_features(family, 0, 60)
    labels[labels[:, 2] == 1] = [1, 0, 0]
    weights = family.weights(core.statistics(features, labels))
    assert np.isfinite(weights).all()
    if family.count_floor < 1e-9:
        assert core.posterior(features, weights, family.log_joint)[:, 2].max() < 1e-9


@given(seed=seeds)
def test_contributions_add_up_to_the_log_joint(family, seed):
    rng = np.random.default_rng(seed)
    rows = draw_rows(family, rng, 15)
    stats = ordinary_statistics(family, seed)
    baseline, terms = family.contributions(stats, rows)
    assert terms.shape == (15, CLASSES, family.continuous + len(family.cardinalities))
    joint = family.log_joint(family.features(rows), family.weights(stats))
    np.testing.assert_allclose(baseline + terms.sum(axis=-1), joint, rtol=1e-8, atol=1e-8)


@given(seed=seeds)
def test_other_units_are_another_basis(family, seed):
    """S of moved columns, units and categories is the moved S, and moving back restores it."""
    rng = np.random.default_rng(seed)
    d, sizes = family.continuous, family.cardinalities
    order, shift, ratio = rng.permutation(d), rng.normal(size=d), np.exp(rng.normal(size=d))
    columns = rng.permutation(len(sizes))
    levels = tuple(rng.permutation(sizes[column]) for column in columns)
    rows, labels = draw_rows(family, rng, 25), core.one_hot(rng.integers(0, CLASSES, 25), CLASSES)
    stats = core.statistics(family.features(rows), labels)
    there = Move(order, shift, ratio, tuple(sizes[column] for column in columns), tuple(columns), levels)
    target, moved = family.moved(stats, there)
    codes = [
        np.where(rows.codes[:, c] < 0, -1, level[rows.codes[:, c]])
        for c, level in zip(columns, levels, strict=True)
    ]
    elsewhere = Rows(
        (rows.values[:, order] - shift) * ratio, np.stack(codes, axis=1) if codes else rows.codes
    )
    np.testing.assert_allclose(
        moved, core.statistics(target.features(elsewhere), labels), rtol=1e-9, atol=1e-9
    )
    back, home = np.argsort(order), np.argsort(columns)
    again = Move(
        back,
        (-shift * ratio)[back],
        (1 / ratio)[back],
        sizes,
        tuple(home),
        tuple(np.argsort(levels[k]) for k in home),
    )
    origin, restored = target.moved(moved, again)
    assert origin == family
    np.testing.assert_allclose(restored, stats, rtol=1e-9, atol=1e-9)


def test_rows_drawn_from_a_model_give_the_model_back(family):
    rng = np.random.default_rng(0)
    stats = ordinary_statistics(family, 1)
    labels = np.repeat(np.arange(CLASSES), 40_000)
    if isinstance(family, GA2M):  # its crosses repeat what its columns say
        with pytest.raises(NotSupported, match="use MixedNB or TAN"):
            family.sample(stats, labels, rng)
        return
    rows = family.sample(stats, labels, rng)
    again = core.statistics(family.features(rows), core.one_hot(labels, CLASSES))
    wanted, got = family.parameters(stats), family.parameters(again)
    for name in set(wanted._fields) - {"log_prior"}:
        old, new = np.asarray(getattr(wanted, name)), np.asarray(getattr(got, name))
        np.testing.assert_allclose(
            np.exp(new) if name == "log_cells" else new,
            np.exp(old) if name == "log_cells" else old,
            atol=0.05,
        )


def test_discrete_columns_may_be_missing_in_every_family(family):
    """A row without its discrete values has the joint density of the rest: the sum over the categories.

    By φ alone, or completed where columns depend on each other.
    """
    weights = family.weights(ordinary_statistics(family, 0))
    values = np.random.default_rng(1).normal(size=(1, family.continuous))
    absent = Rows(values, np.full((1, len(family.cardinalities)), -1))
    total = 0.0
    for cell in np.ndindex(*family.cardinalities):
        total = total + np.exp(family.log_joint(family.features(Rows(values, np.array([cell]))), weights))
    np.testing.assert_allclose(np.exp(complete(family, absent).log_joint(weights)), total, rtol=1e-12)


def test_a_singular_covariance_in_float32_is_floored():
    stats = np.array(
        [[1, 0, -1, -1, 1, 0, 0, 1, 0, 1], [0, 0, 0, -1, 1, 0, 1, 0, 1, 1], [0, 1, -1, 1, 1, 1, 0, 1, 1, 0]]
    )
    weights = SharedGaussian(continuous=3).weights(stats.astype(np.float32))
    assert np.isfinite(weights).all()


def test_a_peer_without_rows_has_no_error():
    labels = np.zeros((2, 5, CLASSES))
    labels[1, :, 0] = 1
    posterior = np.full((2, 5, CLASSES), 1 / CLASSES)
    np.testing.assert_allclose(core.soft_error(labels, posterior), [0, 2 / 3])
    np.testing.assert_array_equal(core.error(labels, posterior), [0, 0])


def test_the_core_is_what_loops_over_rows_and_classes_give():
    """Rows of any weight; scores that the exponential alone would not survive."""
    rng = np.random.default_rng(3)
    features, weights = rng.normal(size=(9, 4)), rng.normal(size=(CLASSES, 4))
    codes, of_rows = rng.integers(0, CLASSES, 9), rng.uniform(0, 3, 9)
    labels = np.zeros((9, CLASSES))
    labels[np.arange(9), codes] = of_rows
    change, soft, wrong, loss = np.zeros((CLASSES, 4)), 0.0, 0.0, 0.0
    for x, code, weight in zip(features, codes, of_rows, strict=True):
        scores = [sum(w * f for w, f in zip(of_class, x, strict=True)) for of_class in weights]
        total = sum(math.exp(score) for score in scores)
        for c in range(CLASSES):
            change[c] += weight * ((code == c) - math.exp(scores[c]) / total) * x
        soft += weight * (1 - math.exp(scores[code]) / total)
        wrong += weight * (int(np.argmax(scores)) != code)
        loss += weight * (math.log(total) - scores[code])
    evaluated = core.evaluate(features, labels, weights)
    np.testing.assert_allclose(evaluated[0], change, atol=1e-12)
    np.testing.assert_allclose(core.residual(features, labels, weights), change, atol=1e-12)
    assert evaluated[1] == pytest.approx(soft / of_rows.sum()) and evaluated[2] == pytest.approx(
        wrong / of_rows.sum()
    )
    assert evaluated[1] != pytest.approx(evaluated[2])
    assert evaluated[3] == pytest.approx(loss / of_rows.sum())
    far = np.array([[1e4, 1e4 + 1.0, -1e4], [-1e300, 0.0, 1e300]])
    np.testing.assert_allclose(
        core.softmax(far), [[1 / (1 + math.e), math.e / (1 + math.e), 0], [0, 0, 1]], rtol=1e-12
    )


@pytest.mark.parametrize("alpha", [0.0, 0.5, 2.0])
def test_smoothing_adds_rows_to_cells_and_nowhere_else(family, alpha):
    prior = family.smoothing(CLASSES, alpha)
    expected = np.zeros((CLASSES, family.size))
    for cells, _ in family.tabled():
        expected[:, cells] = alpha
    np.testing.assert_array_equal(prior, expected)


def test_features_without_zeros_are_the_features(family):
    """Also of rows that lack discrete values; what is missing is nowhere."""
    rng = np.random.default_rng(4)
    rows = draw_rows(family, rng, 40)
    np.testing.assert_allclose(family.sparse(rows).toarray(), family.features(rows), rtol=1e-12)
    assert family.sparse(rows).nnz <= 40 * family.filled
    assert family.wide == (family.size > 8 * family.filled)


def test_the_uniform_start_is_so_many_rows_of_standard_normal_columns_and_even_cells(family):
    """Beside the mean of φ over many such rows."""
    rng = np.random.default_rng(5)
    values = rng.normal(size=(40_000, family.continuous))
    for column, scale in getattr(family, "poisson", ()):
        values[:, column] = rng.poisson(scale, 40_000) / scale
    codes = [rng.integers(0, size, 40_000) for size in family.cardinalities]
    rows = Rows(values, np.stack(codes, axis=1) if codes else np.zeros((40_000, 0), dtype=int))
    mean = family.features(rows).mean(axis=0)
    np.testing.assert_allclose(
        family.uniform(CLASSES, 12.0), np.tile(12.0 / CLASSES * mean, (CLASSES, 1)), atol=0.15
    )
