"""The fused kernel gives the numbers of φ, θ and the residual of `core`."""

from dataclasses import replace

import numpy as np
import pytest
from numba import njit

from peerbayes.model import core
from peerbayes.model.families import NaiveBayes, Rows, SharedGaussian
from peerbayes.model.kernels import peers as fused
from peerbayes.model.kernels.block_loops import exponential, logarithm
from peerbayes.model.kernels.peers import FusedPeers, supports

FLOORS = {"variance_floor": 0.05, "count_floor": 1e-4}
TOLERANCE = {np.float64: 1e-9, np.float32: 1e-3}

FAMILIES = {
    "continuous": NaiveBayes(continuous=5, **FLOORS),
    "one column": NaiveBayes(continuous=1, **FLOORS),
    "many columns": NaiveBayes(continuous=150, **FLOORS),
    "mixed": NaiveBayes(continuous=3, cardinalities=(2, 4, 1), **FLOORS),
    "missing": NaiveBayes(continuous=70, missing=True, **FLOORS),
    "mixed, missing": NaiveBayes(continuous=3, cardinalities=(2, 4), missing=True, **FLOORS),
    "discrete": NaiveBayes(cardinalities=(3, 1, 12), **FLOORS),
    "no columns": NaiveBayes(**FLOORS),
}
SIZES = {
    "ragged": [3, 64, 0, 1, 50, 65, 130],
    "one row each": [1] * 6,
    "even": [50] * 4,
    "one peer": [37],
}


@pytest.fixture(params=["vectors", "plain"], autouse=True)
def kernel(request, monkeypatch):
    """Run every test with the hand-made vector instructions, and with their plain twin."""
    if request.param == "plain":
        monkeypatch.setenv("PEERBAYES_PLAIN", "1")
    else:
        monkeypatch.delenv("PEERBAYES_PLAIN", raising=False)
    return request.param


def test_the_environment_variable_chooses_the_kernel(kernel):
    chosen = fused.residual_kernel()
    assert (chosen is fused.plain_residuals) == (kernel == "plain")
    assert chosen.py_func.__module__.endswith("peers" if kernel == "plain" else "simd")


def draw(family, sizes, classes, rng, kind=np.float64):
    """Rows of every peer; values and codes missing where they may be."""
    count = sum(sizes)
    labels = rng.integers(0, classes, count)
    centres = rng.normal(size=(classes, family.continuous))
    values = (centres[labels] + rng.normal(size=(count, family.continuous))).astype(kind)
    if family.missing:
        values[rng.random(values.shape) < 0.2] = np.nan
    codes = [rng.integers(-1, size, count) for size in family.cardinalities]
    rows = Rows(values, np.stack(codes, axis=1) if codes else np.zeros((count, 0), dtype=np.int64))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return FusedPeers(family, rows, labels, rng.uniform(0.5, 2, count), offsets, classes)


def near_uniform(peers, rng, kind=np.float64):
    """Statistics as calibration meets them: [N, C, K]."""
    start = peers.family.uniform(peers.classes, 100.0)
    peer_count = peers.offsets.size - 1
    return (start + rng.normal(0, 0.1, (peer_count, *start.shape)) * start.max()).astype(kind)


def plain(peers, stats):
    """Peer by peer through φ and θ."""
    kind = stats.dtype
    features = peers.family.features(Rows(peers.rows.values.astype(kind), peers.rows.codes))
    labels = core.one_hot(peers.labels, peers.classes, kind) * peers.row_weights.astype(kind)[:, None]
    weights = peers.family.weights(stats)
    parts = zip(peers.offsets[:-1], peers.offsets[1:], weights, strict=True)
    return np.stack([core.residual(features[a:b], labels[a:b], w) for a, b, w in parts])


def assert_same(fused, expected, tolerance):
    assert fused.dtype == expected.dtype
    np.testing.assert_allclose(
        fused, expected, rtol=tolerance, atol=tolerance * max(np.abs(expected).max(), 1e-300)
    )


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_equals_the_plain_residual(family, sizes, kind):
    rng = np.random.default_rng(0)
    peers = draw(family, sizes, 3, rng, kind)
    stats = near_uniform(peers, rng, kind)
    assert_same(peers.residual(stats), plain(peers, stats), TOLERANCE[kind])


@pytest.mark.parametrize("classes", [1, 2, 7, 26, 100])
def test_any_number_of_classes(classes):
    rng = np.random.default_rng(1)
    peers = draw(FAMILIES["mixed, missing"], [50, 20], classes, rng)
    stats = near_uniform(peers, rng)
    assert_same(peers.residual(stats), plain(peers, stats), 1e-9)


@pytest.mark.long
@pytest.mark.parametrize(("values", "stats"), [(np.float64, np.float32), (np.float32, np.float64)])
def test_the_number_type_follows_the_statistics(values, stats):
    rng = np.random.default_rng(2)
    peers = draw(FAMILIES["mixed, missing"], [50, 20], 3, rng, values)
    given = near_uniform(peers, rng, stats)
    assert_same(peers.residual(given), plain(peers, given), TOLERANCE[stats])


def random_statistics(rng, shape):
    return rng.normal(size=shape)


def negative_statistics(rng, shape):
    return -rng.uniform(0, 1, shape)


def tiny_counts(rng, shape):
    """Class counts and presences far below the floor, moments as they are."""
    stats = rng.uniform(0.5, 1, shape)
    stats[:, ::2, :4] *= 1e-12
    return stats


def no_statistics(rng, shape):
    return np.zeros(shape)


def one_empty_class(rng, shape):
    stats = rng.uniform(0.5, 1, shape)
    stats[:, 0] = 0
    return stats


HARD = [random_statistics, negative_statistics, tiny_counts, no_statistics, one_empty_class]


@pytest.mark.parametrize("statistics", HARD)
@pytest.mark.parametrize("name", ["mixed", "missing", "mixed, missing", "discrete"])
def test_guards_act_alike(name, statistics):
    rng = np.random.default_rng(3)
    peers = draw(FAMILIES[name], [9, 70, 1, 33], 4, rng)
    stats = statistics(rng, (4, 4, peers.family.size))
    assert peers.family.floored(stats).any()
    assert_same(peers.residual(stats), plain(peers, stats), 1e-9)


@pytest.mark.parametrize("name", ["mixed", "mixed, missing"])
def test_floors_of_maximum_likelihood(name):
    rng = np.random.default_rng(4)
    unguarded = draw(FAMILIES[name], [40, 60], 3, rng)
    family = NaiveBayes(
        continuous=3, cardinalities=unguarded.family.cardinalities, missing=unguarded.family.missing
    )
    peers = FusedPeers(
        family, unguarded.rows, unguarded.labels, unguarded.row_weights, unguarded.offsets, unguarded.classes
    )
    features = family.features(peers.rows)
    parts = zip(peers.offsets[:-1], peers.offsets[1:], strict=True)
    one_hot = core.one_hot(peers.labels, 3)
    stats = np.stack([core.statistics(features[a:b], one_hot[a:b]) for a, b in parts])
    assert_same(peers.residual(stats), plain(peers, stats), 1e-9)


@pytest.mark.parametrize("power", [-1030, -600, -3, 5, 600, 1000])
def test_the_scale_of_the_statistics_does_not_matter(power):
    rng = np.random.default_rng(5)
    peers = draw(FAMILIES["mixed, missing"], [50, 20], 3, rng)
    stats = near_uniform(peers, rng)
    scaled = np.ldexp(stats, power)
    exact = power > -1000  # below, digits of S are lost before the kernel sees it
    np.testing.assert_allclose(peers.residual(scaled), peers.residual(stats), rtol=0 if exact else 1e-6)


@pytest.mark.parametrize("power", [-130, 100])
def test_the_scale_of_single_statistics_does_not_matter(power):
    rng = np.random.default_rng(5)
    peers = draw(FAMILIES["mixed"], [50, 20], 3, rng)
    stats = near_uniform(peers, rng, np.float32)
    expected = peers.residual(stats)
    np.testing.assert_allclose(
        peers.residual(np.ldexp(stats, power)), expected, atol=1e-2 * np.abs(expected).max()
    )


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_class_sums_are_zero(family, kind):
    rng = np.random.default_rng(6)
    peers = draw(family, SIZES["ragged"], 5, rng, kind)
    change = peers.residual(random_statistics(rng, (7, 5, family.size)).astype(kind))
    largest = max(np.abs(change).max(), 1.0)
    np.testing.assert_allclose(
        change.sum(axis=1), 0.0, atol=largest * (1e-12 if kind is np.float64 else 1e-4)
    )


def test_inputs_are_left_alone():
    rng = np.random.default_rng(7)
    peers = draw(FAMILIES["mixed, missing"], [50, 20], 3, rng)
    stats = near_uniform(peers, rng)
    held = (stats, *peers.rows, peers.labels, peers.row_weights, peers.offsets)
    before = [array.copy() for array in held]
    first, second = peers.residual(stats), peers.residual(stats)
    for array, copy in zip(held, before, strict=True):
        np.testing.assert_array_equal(array, copy)
    np.testing.assert_array_equal(first, second)
    assert not np.shares_memory(first, second)


def test_any_memory_order():
    rng = np.random.default_rng(8)
    peers = draw(FAMILIES["mixed"], [50, 20], 3, rng)
    stats = near_uniform(peers, rng)
    turned = FusedPeers(
        peers.family,
        Rows(np.asfortranarray(peers.rows.values), np.asfortranarray(peers.rows.codes)),
        np.repeat(peers.labels, 2)[::2],
        peers.row_weights,
        peers.offsets,
        3,
    )
    np.testing.assert_array_equal(turned.residual(np.asfortranarray(stats)), peers.residual(stats))


def test_a_row_without_a_label_adds_nothing():
    rng = np.random.default_rng(9)
    peers = draw(FAMILIES["mixed"], [50, 20], 3, rng)
    stats = near_uniform(peers, rng)
    labels = np.where(rng.random(70) < 0.5, -1, peers.labels)
    some = FusedPeers(peers.family, peers.rows, labels, peers.row_weights, peers.offsets, 3)
    weightless = FusedPeers(
        peers.family, peers.rows, peers.labels, peers.row_weights * (labels >= 0), peers.offsets, 3
    )
    np.testing.assert_allclose(some.residual(stats), weightless.residual(stats), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("trouble", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 3, 4, 7])
def test_statistics_that_are_not_finite_are_not_hidden(trouble, place):
    rng = np.random.default_rng(10)
    peers = draw(FAMILIES["mixed"], [50, 20], 3, rng)
    stats = near_uniform(peers, rng)
    expected = peers.residual(stats)[1]
    stats[0, 2, place] = trouble
    change = peers.residual(stats)
    assert np.isnan(change[0]).all()
    np.testing.assert_array_equal(change[1], expected)


def test_only_naive_bayes_itself_is_supported():
    class Own(NaiveBayes):
        pass

    assert supports(NaiveBayes(continuous=2))
    assert not supports(Own(continuous=2))
    assert not supports(SharedGaussian(continuous=2))
    with pytest.raises(ValueError, match="no fused kernel for SharedGaussian"):
        FusedPeers(
            SharedGaussian(continuous=1), Rows(np.zeros((1, 1)), np.zeros((1, 0))), [0], [1.0], [0, 1], 1
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.full(70, 3)}, "a label is 3; expected less than 3"),
        ({"labels": np.zeros(69)}, "do not fit 69 labels"),
        ({"row_weights": np.ones(3)}, "do not fit"),
        ({"offsets": [0, 50, 71]}, "offsets must rise"),
        ({"offsets": [0, 50, 20]}, "offsets must rise"),
        ({"codes": 4}, "beyond its column's categories"),
        ({"values": np.nan}, "missing or infinite"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    peers = draw(FAMILIES["mixed"], [50, 20], 3, np.random.default_rng(11))
    values, codes = (array.copy() for array in peers.rows)
    change = dict(change)
    values[0, 0] = change.pop("values", values[0, 0])
    codes[0, 1] = change.pop("codes", codes[0, 1])
    parts = {"labels": peers.labels, "row_weights": peers.row_weights, "offsets": peers.offsets, **change}
    with pytest.raises(ValueError, match=message):
        FusedPeers(peers.family, Rows(values, codes), **parts, classes=3)


def test_statistics_of_another_shape_are_refused():
    peers = draw(FAMILIES["mixed"], [50, 20], 3, np.random.default_rng(12))
    with pytest.raises(ValueError, match=r"statistics are \(1, 3, 14\); expected \(2, 3, 14\)"):
        peers.residual(np.zeros((1, 3, 14)))


@njit
def exponentials(x):
    return np.array([exponential(entry) for entry in x])


@pytest.mark.parametrize(("kind", "lowest", "tolerance"), [(np.float64, 690, 2e-16), (np.float32, 80, 1e-7)])
def test_the_exponential_is_the_librarys(kind, lowest, tolerance):
    rng = np.random.default_rng(13)
    small = -np.concatenate([rng.exponential(15, 2000), rng.uniform(0, 1, 2000), [0.0, lowest]]).astype(kind)
    small = small[small >= -lowest]
    expected = np.exp(small.astype(np.longdouble))
    np.testing.assert_allclose(exponentials(small).astype(np.longdouble), expected, rtol=tolerance)
    edges = np.array([-lowest - 1, -np.inf, np.nan], dtype=kind)
    np.testing.assert_array_equal(exponentials(edges), [0, 0, np.nan])


def test_the_logarithm_is_the_librarys():
    rng = np.random.default_rng(13)
    positive = np.concatenate([np.exp(rng.normal(0, 100, 2000)), 1 + rng.normal(0, 1e-6, 2000), [1.0]])
    np.testing.assert_allclose([logarithm(x) for x in positive], np.log(positive), rtol=1e-15, atol=1e-30)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["continuous", "mixed, missing"])
@pytest.mark.parametrize("sizes", [*SIZES.values(), [0, 0], []], ids=[*SIZES, "no rows", "no peers"])
def test_threads_give_the_same_bits(name, sizes, kind, monkeypatch):
    monkeypatch.setattr(fused, "WORTH_A_THREAD", 1)
    rng = np.random.default_rng(14)
    peers = draw(FAMILIES[name], sizes, 3, rng, kind)
    stats = near_uniform(peers, rng, kind)
    alone = replace(peers, threads=1).residual(stats)
    for threads in (2, 3, 50, None):
        np.testing.assert_array_equal(replace(peers, threads=threads).residual(stats), alone)


def test_peers_are_cut_to_about_equal_work(monkeypatch):
    monkeypatch.setattr(fused, "WORTH_A_THREAD", 1)
    peers = draw(FAMILIES["continuous"], [10] * 90 + [100] * 9, 3, np.random.default_rng(15))
    edges = replace(peers, threads=2)._edges()
    assert (edges[0], edges[-1]) == (0, 99)
    assert abs(peers.offsets[edges[1]] + 16 * edges[1] - (1800 + 16 * 99) / 2) <= 116


def test_little_work_stays_on_one_thread():
    peers = draw(FAMILIES["continuous"], [10] * 90, 3, np.random.default_rng(16))
    np.testing.assert_array_equal(replace(peers, threads=8)._edges(), [0, 90])


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["continuous", "many columns", "mixed, missing"])
def test_a_peer_does_not_depend_on_those_before(name, kind):
    rng = np.random.default_rng(17)
    peers = draw(FAMILIES[name], SIZES["ragged"], 3, rng, kind)
    stats = near_uniform(peers, rng, kind)
    together = peers.residual(stats)
    for v in range(len(stats)):
        alone = replace(peers, offsets=peers.offsets[v : v + 2])
        np.testing.assert_array_equal(alone.residual(stats[v : v + 1])[0], together[v])


def test_fewer_than_one_thread_is_refused():
    with pytest.raises(ValueError, match="threads is 0; expected 1 or more"):
        replace(draw(FAMILIES["continuous"], [3], 2, np.random.default_rng(18)), threads=0)


@pytest.mark.parametrize("columns", range(1, 36))
def test_any_number_of_columns_and_rows(columns):
    rng = np.random.default_rng(19)
    family = NaiveBayes(continuous=columns, missing=columns % 3 == 0, **FLOORS)
    for kind in (np.float64, np.float32):
        peers = draw(family, [columns, 2 * columns, 64], 2 + columns % 5, rng, kind)
        stats = near_uniform(peers, rng, kind)
        assert_same(peers.residual(stats), plain(peers, stats), TOLERANCE[kind])
