"""θ of columns with one continuous parent or none: three ways to the same numbers, guards and all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from peerbayes.model import core, residuals
from peerbayes.model.families import BayesNet, Rows
from peerbayes.model.families.base import MEAN_LIMIT
from peerbayes.model.families.bayes_net import CORRELATION, _natural, _upper
from peerbayes.model.families.regressions import SLOPE_LIMIT
from peerbayes.model.kernels import peers as kernels

PEERS, CLASSES, COLUMNS = 2, 3, 6

seeds = st.integers(0, 2**32 - 1)


def tree(rng):
    """Columns that each have one column before them in a random order as parent, or none."""
    order = rng.permutation(COLUMNS)
    parents = [()] * COLUMNS
    for place, column in enumerate(order):
        if place and rng.random() < 0.8:
            parents[column] = (int(order[rng.integers(0, place)]),)
    return tuple(parents)


def family_of(seed, shrinkage, **layout):
    layout = {"continuous": COLUMNS, "parents": tree(np.random.default_rng(seed))} | layout
    return BayesNet(**layout, variance_floor=0.01, count_floor=0.1, shrinkage=shrinkage)


def by_matrices(family, stats):
    """W as every regression's matrices give it, and the sum of the sizes of what was added up: two [..., C, K]."""
    counts = family.counts(stats)
    weights, sizes = np.zeros((2, *stats.shape))
    weights[..., 0] = counts.log_prior
    for regression in family.regressions:
        natural = _natural(family._conditional(counts, regression))
        for place, column in zip(
            np.ndindex(*natural.shape[-3:]), _upper(regression.moments).ravel(), strict=True
        ):
            weights[..., column] += natural[(..., *place)]
            sizes[..., column] += np.abs(natural[(..., *place)])
    for table in family.tables:
        weights[..., table.cells] = family._log_table(counts, table)
    return weights, sizes + np.abs(weights)


def agree(ours, family, stats):
    theirs, size = by_matrices(family, stats)
    assert (np.abs(ours - theirs) <= 1e-12 * size).all()


def ordinary(family, seed, noise=0.0):
    """Sums of a few correlated rows, and what calibration could make of them."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(PEERS, 40, COLUMNS)) @ rng.normal(size=(COLUMNS, COLUMNS))
    codes = [rng.integers(0, size, (PEERS, 40)) for size in family.cardinalities]
    rows = Rows(values, np.stack(codes, axis=-1) if codes else np.zeros((PEERS, 40, 0), dtype=np.int64))
    labels = core.one_hot(rng.integers(0, CLASSES, (PEERS, 40)), CLASSES)
    stats = core.statistics(family.features(rows), labels)
    return stats + noise * rng.normal(size=stats.shape)


shrinkages = st.sampled_from([0.0, 0.002, 0.5])


@given(seed=seeds, shrinkage=shrinkages, noise=st.sampled_from([0.0, 1.0, 30.0]))
def test_lines_are_what_matrices_say(seed, shrinkage, noise):
    family = family_of(seed, shrinkage)
    stats = ordinary(family, seed, noise)
    agree(family.weights(stats), family, stats)
    assert kernels.has_lines_only(family)
    agree(kernels.line_weights(family)(stats), family, stats)


@given(seed=seeds, shrinkage=shrinkages, data=st.data())
def test_for_any_real_statistics(seed, shrinkage, data):
    family = family_of(seed, shrinkage)
    finite = st.floats(allow_nan=False, allow_infinity=False)
    stats = data.draw(arrays(np.float64, (PEERS, CLASSES, family.size), elements=finite))
    agree(family.weights(stats), family, stats)
    agree(kernels.line_weights(family)(stats), family, stats)


@given(seed=seeds, shrinkage=shrinkages, noise=st.sampled_from([0.0, 1.0, 30.0]))
def test_lines_beside_regressions_of_other_shapes_and_tables(seed, shrinkage, noise):
    parents = ((), (0,), (0, 1), (2,), (6,), (3, 6), (), (6,))
    family = family_of(seed, shrinkage, cardinalities=(2, 3), parents=parents)
    stats = ordinary(family, seed, noise)
    agree(family.weights(stats), family, stats)
    assert not kernels.has_lines_only(family)


def chain(shrinkage):
    return family_of(0, shrinkage, parents=((), *((j,) for j in range(COLUMNS - 1))))


def held_by(guard, family, stats):
    """Whether a guard acts: on class 0 of peer 0, in the line of the second column."""
    found = family.conditionals(stats)[1]
    slope, variance = found.slopes[0, 0, 0, 0], found.variance[0, 0, 0]
    counts = family.counts(stats)
    count, first, second = counts.stats[0, 0, 0], counts.stats[0, 0, 1:3], counts.stats[0, 0, 7:9]
    rows = counts.classes[0, 0]
    spread = np.maximum(second / rows - (first / rows) ** 2, family.variance_floor)
    product = counts.stats[0, 0, 13] / rows - first[0] * first[1] / rows**2
    return {
        "count": 0 < count < counts.floor[0, 0],
        "negative count": count < 0,
        "variance": variance == family.variance_floor and second[0] > 0,
        "negative variance": second[0] < 0 and second[1] < 0,
        "correlation": product > CORRELATION * np.sqrt(spread[0] * spread[1]),
        "mean": abs(first[0] / rows) > MEAN_LIMIT,
        "slope": abs(slope) == SLOPE_LIMIT,
    }[guard]


def pushed(family, guard):
    """Statistics on which a guard acts; features are 1, six columns, their squares, five products."""
    stats = ordinary(family, 1)
    one = stats[0, 0]
    if guard == "count":
        one[0] = 0.5
    elif guard == "negative count":
        one[0] = -3.0
    elif guard == "variance":
        one[8], one[2] = 1e-3, 0.0
    elif guard == "negative variance":
        one[7:9] = -5.0
    elif guard == "correlation":
        one[13] = 1e3
    elif guard == "mean":
        one[0], one[1] = 1e-9, 1e3
    elif guard == "slope":
        one[1:3], one[7:9], one[13] = 0.0, (1e-9, 1e9), 1e6
    return stats


@pytest.mark.parametrize("shrinkage", [0.0, 0.002])
@pytest.mark.parametrize(
    "guard", ["count", "negative count", "variance", "negative variance", "correlation", "mean", "slope"]
)
def test_each_guard_acts_alike(guard, shrinkage):
    family = chain(shrinkage)
    if guard in ("mean", "slope"):  # beyond what these floors let happen
        family = BayesNet(continuous=COLUMNS, parents=family.parents, shrinkage=shrinkage)
    stats = pushed(family, guard)
    assert held_by(guard, family, stats)
    agree(family.weights(stats), family, stats)
    agree(kernels.line_weights(family)(stats), family, stats)


@pytest.mark.parametrize("what", [np.nan, np.inf])
def test_a_peer_without_finite_statistics_spoils_no_other(what):
    family = chain(0.002)
    stats = ordinary(family, 2)
    expected = family.weights(stats)
    stats[1, 0, 3] = what
    weights = kernels.line_weights(family)(stats)
    assert np.isnan(weights[1]).all()
    np.testing.assert_allclose(weights[0], expected[0], rtol=1e-12)


def test_families_without_a_kernel_of_their_own():
    class Other(BayesNet):
        pass

    lines = {"continuous": 3, "parents": ((), (0,), (1,))}
    assert kernels.has_lines_only(BayesNet(**lines))
    assert not kernels.has_lines_only(Other(**lines))
    assert not kernels.has_lines_only(BayesNet(continuous=3, parents=((), (0,), (0, 1))))
    assert not kernels.has_lines_only(
        BayesNet(**lines | {"cardinalities": (2,), "parents": ((), (0,), (1,), ())})
    )


@given(seed=seeds)
def test_large_networks_take_the_kernel_to_the_same_residual(seed):
    family = family_of(seed, 0.002)
    rng = np.random.default_rng(seed)
    sizes = np.array([7, 0, 12])
    rows = Rows(rng.normal(size=(19, COLUMNS)), np.zeros((19, 0), dtype=np.int64))
    labels, weights = rng.integers(0, CLASSES, 19), rng.random(19) + 0.5
    peers = residuals.PeerRows(family, rows, labels, weights, sizes, CLASSES)
    stats = np.tile(family.uniform(CLASSES, 19), (3, 1, 1)) + rng.random((3, CLASSES, family.size))
    plain, fused = (way(peers, False)(stats) for way in (residuals.held, residuals.streamed))
    np.testing.assert_allclose(fused, plain, rtol=1e-10, atol=1e-10)


def test_slopes_end_at_a_hundred_thousand():
    """log N(x₁; a + b x₀, q): the weight of x₀x₁ is b/q, that of x₁² is −1/2q. In three ways."""
    family = BayesNet(continuous=2, parents=((), (0,)), variance_floor=1e-12)
    stats = np.zeros((1, 2, 6))  # 1 | x₀ x₁ | x₀² x₁² | x₀x₁
    stats[0, 0] = 1.0, 0.0, 0.0, 1e-9, 1e9, 0.9
    stats[0, 1] = 1.0, 0.0, 0.0, 1e-3, 1.0, 0.01
    for weights in (family.weights(stats), kernels.line_weights(family)(stats)):
        np.testing.assert_allclose(weights[0, :, 5] / (-2 * weights[0, :, 4]), [1e5, 10.0], rtol=1e-9)
    np.testing.assert_allclose(family.conditionals(stats)[1].slopes[0, :, 0, 0], [1e5, 10.0], rtol=1e-9)
