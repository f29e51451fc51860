"""Differential privacy, its core: accounting, noise, clipping, projection, edge noise; each held to a law."""

import itertools
import math
import os
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as distributions
from scipy.optimize import brentq
from scipy.sparse import csr_array

from peerbayes import network as topologies
from peerbayes.model import core
from peerbayes.model.families import GA2M, BayesNet, NaiveBayes, Rows, SeparateGaussian, SharedGaussian
from peerbayes.privacy import accounting
from peerbayes.privacy import noise as edges
from peerbayes.privacy import noise as sampling
from peerbayes.privacy.accounting import Privacy
from peerbayes.privacy.mechanism import AT_ONCE, MARGIN, Coordinates, Mechanism, projection, summed
from peerbayes.privacy.row_steps import LANES, RowSteps
from peerbayes.privacy.scheme import scheme
from peerbayes.privacy.units import Units

DELTA = 1e-5

FAMILIES = {
    "naive Bayes": NaiveBayes(continuous=3, cardinalities=(2, 5)),
    "continuous": NaiveBayes(continuous=4),
    "discrete": NaiveBayes(cardinalities=(3, 1, 4)),
    "with gaps": NaiveBayes(continuous=3, cardinalities=(4,), missing=True),
    "qda": SeparateGaussian(continuous=3, cardinalities=(3,)),
    "lda": SharedGaussian(continuous=3),
    "ga2m": GA2M(continuous=1, cardinalities=(3, 2, 6), crosses=1),
    "network": BayesNet(
        continuous=3,
        cardinalities=(2, 3, 4),
        parents=((), (0,), (1, 3), (), (3,), (3, 4)),
        variance_floor=0.05,
    ),
}


def drawn_rows(family, count, rng, gaps=0.0):
    values = 2.0 * rng.standard_normal((count, family.continuous))
    codes = np.stack([rng.integers(size, size=count) for size in family.cardinalities], 1) if family.cardinalities \
        else np.zeros((count, 0), dtype=int)  # fmt: skip
    values[rng.random(values.shape) < gaps] = np.nan
    codes[rng.random(codes.shape) < gaps] = -1
    return Rows(values, codes)


def mechanism_of(family, clip=None, sigma=1, bound=3.0, never_missing=None):
    coordinates = Coordinates(family)
    return Mechanism(
        coordinates, projection(coordinates, never_missing), clip or coordinates.length, bound, sigma
    )


# --- terms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", 0), ("epsilon", math.nan), ("epsilon", math.inf), ("epsilon", "4"), ("delta", 0), ("delta", 1.0),
        ("delta", math.nan), ("clip", -1.0), ("clip", "none"), ("bound", 0), ("bound", math.inf), ("edge_noise", -1),
        ("edge_noise", math.nan), ("edge_noise", 1.1e6), ("edge_noise", 0.9e-6), ("epsilon", 1.1e12),
        ("colluders", 0), ("colluders", 1.5), ("min_rows", 0), ("min_rows", True),
    ],
)  # fmt: skip
def test_terms_that_make_no_sense_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        Privacy(**{name: value})


# --- accounting ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 16, 64, 256])
@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
def test_noise_is_what_the_accountant_of_record_asks_for(epsilon, rounds):
    """dp-accounting composes privacy loss distributions numerically; nothing of it is shared with the formula here."""
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting import pld

    z = accounting.multiplier(epsilon, DELTA, rounds)

    def spent(multiplier):
        accountant = pld.PLDAccountant(
            neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4
        )
        accountant.compose(dp.SelfComposedDpEvent(dp.GaussianDpEvent(multiplier), rounds))
        return accountant.get_epsilon(DELTA)

    # ε falls with z, so z is within 0.1 % of theirs exactly if ε is between those of 0.999·z and 1.001·z
    assert spent(1.001 * z) <= epsilon <= spent(0.999 * z)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 8.0, 20.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_the_formula_is_dp_accountings(epsilon, delta):
    dp = pytest.importorskip("dp_accounting")
    sigma = dp.get_sigma_gaussian(epsilon, delta)
    assert accounting.multiplier(epsilon, delta) == pytest.approx(sigma, rel=1e-6)
    assert accounting.epsilon_of(1 / sigma, delta) == pytest.approx(
        dp.get_epsilon_gaussian(sigma, delta), rel=1e-6
    )


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 50), st.floats(1e-12, 0.1))
def test_epsilon_and_mu_are_inverse_and_never_promise_too_much(epsilon, delta):
    mu = accounting.mu_of(epsilon, delta)
    assert accounting.delta_of(mu, epsilon) <= delta
    assert accounting.epsilon_of(mu, delta) <= epsilon
    assert accounting.epsilon_of(mu, delta) == pytest.approx(epsilon, abs=1e-6)


def test_delta_is_the_integral_that_defines_it():
    """δ = ∫ max(0, p − e^ε q) of N(μ, 1) against N(0, 1)."""
    mu, epsilon = 0.7, 1.3
    at = np.linspace(-12, 14, 2_000_001)
    gain = np.maximum(distributions.norm.pdf(at, mu) - math.exp(epsilon) * distributions.norm.pdf(at), 0)
    assert accounting.delta_of(mu, epsilon) == pytest.approx(np.trapezoid(gain, at), rel=1e-6)


def test_a_ledger_adds_up_and_closes():
    mu = accounting.mu_of(4.0, DELTA)
    ledger = accounting.Ledger(4.0, DELTA, 64, 0.8 * mu**2 / 64, 0.2 * mu**2)
    spent = [ledger.spent(done) for done in range(65)]
    assert ledger.spent(64) == pytest.approx(4.0, abs=1e-8) and ledger.spent(64) <= 4.0 + 1e-12
    assert all(a < b for a, b in itertools.pairwise(spent))
    assert all(ledger.fits(done) for done in range(64)) and not ledger.fits(64)
    greedy = accounting.Ledger(4.0, DELTA, 64, mu**2 / 10)
    assert greedy.fits(9) and not greedy.fits(10)
    assert accounting.Ledger(4.0, DELTA, 64, mu**2 / 64).spent(0) == 0.0


def test_composition_is_one_release_with_less_noise():
    assert accounting.multiplier(4.0, DELTA, 64) == pytest.approx(
        8 * accounting.multiplier(4.0, DELTA), rel=1e-12
    )


@pytest.mark.parametrize("sigma", [3, 10, 40])
def test_discrete_noise_costs_no_more_than_is_set_aside(sigma):
    """The largest difference of logarithms between rounded and discrete noise, beside the bound."""
    whole = np.arange(-6 * sigma, 6 * sigma + 1)
    rounded = distributions.norm.sf(np.abs(whole) - 0.5, scale=sigma) - distributions.norm.sf(
        np.abs(whole) + 0.5, scale=sigma
    )
    discrete = np.exp(-(whole**2) / (2 * sigma**2))
    discrete /= np.exp(-(np.arange(-60 * sigma, 60 * sigma + 1) ** 2) / (2 * sigma**2)).sum()
    apart = np.abs(np.log(rounded) - np.log(discrete)).max()
    assert 2 * apart <= accounting.discretisation(sigma, 1)
    assert apart == pytest.approx((6**2 - 1) / (24 * sigma**2), rel=0.1)  # the term that the bound is made of


def test_the_grid_is_far_below_what_is_set_aside():
    found = scheme(Privacy(8.0), NaiveBayes(continuous=512), 100, 50, 50, 256, 0.05)
    numbers = 100 * 1025 * 257
    assert accounting.discretisation(found.mechanism.sigma, numbers) < accounting.DISCRETE


def test_a_grid_that_is_too_coarse_for_the_noise_is_refused():
    with pytest.raises(ValueError, match="discrete would cost more"):
        scheme(Privacy(epsilon=1e7, bound=1e4, clip=1e-3), NaiveBayes(continuous=1), 2, 50, 5, 64, 0.05)


# --- noise -----------------------------------------------------------------------------------------------------


def seeded(seed):
    return np.random.default_rng(seed).bytes


@pytest.mark.parametrize("sigma", [1, 2, 7, 19])
def test_noise_has_the_probabilities_of_a_discrete_gaussian(sigma):
    drawn = sampling.discrete_gaussian(sigma, 400_000, seeded(sigma))
    whole = np.arange(-8 * sigma - 8, 8 * sigma + 9)
    expected = np.exp(-(whole**2) / (2 * sigma**2))
    expected *= drawn.size / expected.sum()
    seen = np.bincount(drawn - whole[0], minlength=whole.size)
    enough = expected > 10
    seen = np.append(seen[enough], seen[~enough].sum())
    expected = np.append(expected[enough], expected[~enough].sum())
    assert distributions.chisquare(seen, expected).pvalue > 1e-4


@pytest.mark.parametrize("source", [seeded(5), os.urandom], ids=["seeded", "operating system"])
def test_noise_on_a_fine_grid_is_normal(source):
    """At the scales in use: moments, and the distribution by Kolmogorov and Smirnov's test."""
    sigma = 1 << 41
    drawn = sampling.discrete_gaussian(sigma, 200_000, source) / sigma
    assert abs(drawn.mean()) < 5 / math.sqrt(drawn.size)
    assert abs((drawn**2).mean() - 1) < 5 * math.sqrt(2 / drawn.size)
    assert abs((drawn**4).mean() - 3) < 5 * math.sqrt(96 / drawn.size)
    assert distributions.kstest(drawn, "norm").pvalue > 1e-4


def test_low_bits_of_noise_are_even():
    drawn = sampling.discrete_gaussian(1 << 41, 100_000, seeded(3))
    for bits in (1, 4, 8):
        seen = np.bincount(drawn & ((1 << bits) - 1), minlength=1 << bits)
        assert distributions.chisquare(seen).pvalue > 1e-4


def test_doubtful_decisions_are_made_exactly(monkeypatch):
    """With floats trusted for nothing, every decision is made by rational numbers; the outcome is the same."""
    plain = sampling.discrete_gaussian(1000, 300, seeded(1))
    monkeypatch.setattr(sampling, "DOUBT", 2.0)
    assert np.array_equal(plain, sampling.discrete_gaussian(1000, 300, seeded(1)))


def test_a_decision_on_the_edge_asks_for_more_bits():
    """A word that agrees with exp(−1) in all of its 64 bits settles nothing."""
    word = int(Fraction(math.exp(-1)) * 2**64)
    exact = 6786177901268885274  # floor(2⁶⁴/e)
    assert abs(word - exact) < 2**12
    asked = []

    def source(count):
        asked.append(count)
        return bytes(count)

    assert sampling._settled(exact, Fraction(1), source)  # zeros below follow: smaller
    assert asked == [8]
    assert not sampling._settled(exact + 1, Fraction(1), source) and asked == [8]
    assert sampling._settled(exact - 1, Fraction(1), source) and asked == [8]


@pytest.mark.parametrize("sigma", [0, -1, 1 << 47])
def test_scales_beyond_the_grid_are_refused(sigma):
    with pytest.raises(ValueError, match="sigma"):
        sampling.discrete_gaussian(sigma, 1, os.urandom)


# --- coordinates and projection ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_coordinates_are_a_linear_map_and_back(name):
    family, rng = FAMILIES[name], np.random.default_rng(1)
    coordinates = Coordinates(family)
    stats = rng.standard_normal((4, 3, family.size))
    assert np.allclose(coordinates.back(coordinates.to(stats)), stats, atol=1e-12)
    assert np.allclose(coordinates.to(coordinates.back(stats)), stats, atol=1e-12)
    assert np.allclose(
        coordinates.to(2 * stats - stats[:1]), 2 * coordinates.to(stats) - coordinates.to(stats[:1])
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_noise_in_h_is_stretched_by_the_rows_of_the_map_back(name):
    coordinates = Coordinates(FAMILIES[name])
    back = coordinates.back(np.eye(FAMILIES[name].size))  # row k: what h_k adds to each feature
    assert coordinates.stretch == pytest.approx(float((back**2).sum(axis=0).max()), rel=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_uniform_start_is_zero_but_for_counts(name):
    family = FAMILIES[name]
    moved = Coordinates(family).to(family.uniform(3, 30.0))
    assert np.allclose(moved[:, 0], 10) and np.allclose(moved[:, 1:], 0, atol=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_typical_row_has_the_length_it_should(name):
    """B² is the mean of ‖h‖² over rows of independent standard normal columns and even categories."""
    family, rng = FAMILIES[name], np.random.default_rng(2)
    values = rng.standard_normal((200_000, family.continuous))
    codes = [rng.integers(size, size=len(values)) for size in family.cardinalities]
    rows = Rows(values, np.stack(codes, 1) if codes else np.zeros((len(values), 0), dtype=int))
    coordinates = Coordinates(family)
    square = (coordinates.to(np.asarray(family.features(rows))) ** 2).sum(axis=1).mean()
    assert square == pytest.approx(coordinates.length**2, rel=0.01)


def test_the_length_of_naive_bayes_is_the_formula():
    assert Coordinates(NaiveBayes(continuous=16)).length ** 2 == pytest.approx(33)
    mixed = Coordinates(NaiveBayes(continuous=3, cardinalities=(2, 5))).length ** 2
    assert mixed == pytest.approx(1 + 6 + (1 - 1 / 2) + (1 - 1 / 5))


@pytest.mark.parametrize("name", FAMILIES)
def test_projection_keeps_what_residuals_are_and_takes_noise_away(name):
    family, rng = FAMILIES[name], np.random.default_rng(3)
    mechanism = mechanism_of(family)
    coordinates, project = mechanism.coordinates, mechanism.projection
    rows = drawn_rows(family, 50, rng)
    features = np.asarray(family.features(rows))
    labels = core.one_hot(rng.integers(3, size=50), 3)
    change = core.residual(features, labels, rng.standard_normal((3, family.size)))
    moved = coordinates.to(change)
    assert np.allclose(project(moved), moved, atol=1e-9)
    noise = rng.standard_normal((200, 3, family.size))
    kept = project(noise)
    assert np.allclose(project(kept), kept, atol=1e-12)
    assert (kept**2).sum() < (noise**2).sum() * (1 - 1 / 3) * 1.05
    assert np.allclose(kept.sum(axis=-2), 0, atol=1e-12)
    stats = coordinates.back(kept)
    for cells, _ in family.tabled():
        assert np.allclose(stats[..., cells].sum(axis=-1), stats[..., 0], atol=1e-12)


def test_tables_of_a_network_agree_after_projection():
    """The child's table adds up to its parent's, and moments split by a discrete column to those that are not."""
    family = FAMILIES["network"]
    mechanism = mechanism_of(family)
    noise = np.random.default_rng(4).standard_normal((3, family.size))
    stats = mechanism.coordinates.back(mechanism.projection(noise))
    blocks = {
        column: (place, configurations, entries) for column, place, configurations, entries in family.blocks
    }
    of = {
        column: stats[:, place : place + configurations * entries].reshape(3, configurations, entries)
        for column, (place, configurations, entries) in blocks.items()
    }
    assert np.allclose(of[4].sum(axis=2), of[3][:, 0])  # p(x₄ | x₃) beside p(x₃)
    assert np.allclose(of[5].reshape(3, 2, 3, 4).sum(axis=3), of[4])  # p(x₅ | x₃, x₄)
    assert np.allclose(of[2][:, :, 0], of[3][:, 0])  # the counts that x₂ is split by
    second = family.dense_size and stats[:, 1 + list(family.singles).index(1)]
    assert np.allclose(of[2][:, :, 2].sum(axis=1), second)  # Σx₁, split and not


def test_projection_is_as_narrow_as_the_features_are():
    """Nothing is left that no row can have: the normals are all linear conditions that features fulfil."""
    for family in FAMILIES.values():
        if getattr(family, "missing", False):
            continue
        rows = drawn_rows(family, 4000, np.random.default_rng(5))
        rank = np.linalg.matrix_rank(np.asarray(family.features(rows)), tol=1e-6)
        normals = mechanism_of(family).projection.normals
        assert family.size - normals.shape[1] == rank


def test_columns_that_may_be_missing_are_left_alone():
    family = NaiveBayes(continuous=1, cardinalities=(3, 4))
    mechanism = mechanism_of(family, never_missing=np.array([False, True]))
    rows = Rows(np.zeros((1, 1)), np.array([[-1, 2]]))
    whole = mechanism.clipped(np.array([[1.0, -1.0]]), mechanism.rows(family, rows))
    stats = mechanism.opened(whole)
    weight = mechanism.cut(np.array([[1.0, -1.0]]), mechanism.rows(family, rows))[0, 0] / 2**20
    assert np.allclose(stats[0], weight * np.asarray(family.features(rows))[0], atol=1e-4)
    assert np.allclose(stats[:, 3:6], 0, atol=1e-4)


# --- clipping --------------------------------------------------------------------------------------------------


def adversarial(family, rng, count):
    """Rows as far out as rows can be, and statistics that no peer would send."""
    values = rng.choice([-1e6, -3.0, -1e-9, 0.0, 1e-9, 3.0, 1e6, np.nan], (count, family.continuous))
    rows = drawn_rows(family, count, rng)
    rows = Rows(np.where(rng.random(values.shape) < 0.5, values, rows.values), rows.codes)
    if not getattr(family, "missing", False):
        rows = Rows(np.nan_to_num(rows.values, nan=7.0), rows.codes)
    return rows


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", FAMILIES)
def test_no_row_moves_a_release_by_more_than_the_clip(name):
    """Whatever the row and whatever the statistics, in exact integers; and the bound is attained."""
    family, rng = FAMILIES[name], np.random.default_rng(6)
    mechanism, classes, longest = mechanism_of(family, clip=0.7 * Coordinates(family).length), 3, 0.0
    unit = 2**mechanism.bits
    seen = 0
    for size in (0.0, 1.0, 1e3, 1e9, 1e300):
        for _ in range(10):
            count = 300
            rows = adversarial(family, rng, count)
            stats = size * rng.standard_normal((classes, family.size)) + family.uniform(classes, 10.0)
            stats[:, 0] = np.abs(stats[:, 0]) if rng.random() < 0.5 else stats[:, 0]
            labels = rng.integers(classes, size=count)
            steps = RowSteps.of(family, rows, labels)(family.weights(stats))
            moved = mechanism.rows(family, rows)
            cut = mechanism.cut(steps, moved)
            assert np.isfinite(cut).all() and np.isfinite(moved).all()
            lengths = [
                sum(int(a) ** 2 for a in q) * sum(int(b) ** 2 for b in h)
                for q, h in zip(cut, moved, strict=True)
            ]
            assert max(lengths) <= (mechanism.clip * unit) ** 2
            longest = max(longest, math.sqrt(max(lengths)) / unit)
            seen += count
            # removing the first row moves the sum by exactly its own part
            whole = mechanism.clipped(steps, moved)
            apart = whole - mechanism.clipped(steps[1:], moved[1:])
            assert np.array_equal(apart, np.outer(cut[0], moved[0]).astype(np.int64))
    assert seen == 15_000 and 0.999 * mechanism.clip <= longest <= mechanism.clip


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=3, max_size=3), st.floats(0.01, 100))
def test_steps_that_no_posterior_gives_are_clipped_too(step, clip):
    family = FAMILIES["naive Bayes"]
    mechanism = mechanism_of(family, clip=clip)
    moved = mechanism.rows(family, Rows(np.full((1, 3), 1e9), np.zeros((1, 2), dtype=int)))
    cut = mechanism.cut(np.array([step]), moved)
    square = sum(int(a) ** 2 for a in cut[0]) * sum(int(b) ** 2 for b in moved[0])
    assert square <= (clip * 2**mechanism.bits) ** 2


def test_sums_are_exact_in_any_order():
    family, rng = FAMILIES["naive Bayes"], np.random.default_rng(7)
    mechanism = mechanism_of(family, clip=100.0)
    rows = drawn_rows(family, 2 * AT_ONCE + 17, rng)
    moved, steps = mechanism.rows(family, rows), rng.uniform(-1, 1, (len(rows.values), 3))
    order = rng.permutation(len(steps))
    whole = mechanism.clipped(steps, moved)
    assert np.array_equal(whole, mechanism.clipped(steps[order], moved[order]))
    cut = mechanism.cut(steps, moved)
    assert whole[1, 2] == sum(int(a) * int(b) for a, b in zip(cut[:, 1], moved[:, 2], strict=True))


def test_without_clipping_and_noise_it_is_the_residual():
    rng = np.random.default_rng(8)
    for family in FAMILIES.values():
        mechanism = mechanism_of(family, clip=1e6, bound=10.0)
        rows = drawn_rows(family, 40, rng)
        features, labels = np.asarray(family.features(rows)), rng.integers(3, size=40)
        weights = family.weights(family.uniform(3, 5.0) * rng.uniform(0.9, 1.1, (3, family.size)))
        opened = mechanism.opened(
            mechanism.clipped(RowSteps.of(family, rows, labels)(weights), mechanism.rows(family, rows))
        )
        assert np.allclose(opened, core.residual(features, core.one_hot(labels, 3), weights), atol=0.02)


# --- each row for itself -----------------------------------------------------------------------------------------


def bits_of(family, rows, labels, weights):
    """q of every row, as bits: [n, C]."""
    return np.ascontiguousarray(RowSteps.of(family, rows, labels)(weights)).view(np.uint64)


def some_of(rows, which):
    return Rows(rows.values[which], rows.codes[which])


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_row_does_has_the_same_bits_in_every_table(name):
    """Alone, anywhere among up to 300 others, in any order, with rows that overflow beside it."""
    family, rng, classes = FAMILIES[name], np.random.default_rng(12), 5
    mechanism = mechanism_of(family)
    rows = drawn_rows(family, 300, rng, gaps=0.2 if name == "with gaps" else 0.0)
    rows.values[::17] *= 1e6
    labels = rng.integers(classes, size=300)
    for size in (0.0, 0.3, 1e6):
        weights = family.weights(
            family.uniform(classes, 50.0) + size * rng.normal(size=(classes, family.size))
        )
        every = bits_of(family, rows, labels, weights)
        cut = mechanism.cut(every.view(np.float64), mechanism.rows(family, rows))
        for count in (*range(1, 70), *range(70, 301, 23), 300):
            which = rng.permutation(300)[:count]
            few = some_of(rows, which)
            found = bits_of(family, few, labels[which], weights)
            assert np.array_equal(found, every[which]), (count, size)
            assert np.array_equal(
                mechanism.cut(found.view(np.float64), mechanism.rows(family, few)), cut[which]
            )


def test_where_a_row_lies_in_a_table_does_not_matter():
    """In every place of more blocks than one."""
    family, rng = FAMILIES["naive Bayes"], np.random.default_rng(13)
    rows, labels = drawn_rows(family, 2 * LANES + 3, rng), rng.integers(3, size=2 * LANES + 3)
    weights = family.weights(family.uniform(3, 9.0) + rng.normal(size=(3, family.size)))
    first = bits_of(family, rows, labels, weights)[0]
    for place in range(len(labels)):
        order = np.roll(np.arange(len(labels)), place)
        assert np.array_equal(bits_of(family, some_of(rows, order), labels[order], weights)[place], first)


def test_steps_are_labels_less_posteriors():
    rng = np.random.default_rng(14)
    for family in FAMILIES.values():
        rows, labels = drawn_rows(family, 130, rng), rng.integers(4, size=130)
        weights = family.weights(family.uniform(4, 20.0) + rng.normal(size=(4, family.size)))
        expected = core.one_hot(labels, 4) - core.posterior(np.asarray(family.features(rows)), weights)
        np.testing.assert_allclose(RowSteps.of(family, rows, labels)(weights), expected, atol=1e-12)
    none = RowSteps.of(family, some_of(rows, slice(0)), labels[:0])(weights)
    assert none.shape == (0, 4)


def test_a_clipped_row_is_scaled_and_not_bent():
    family = NaiveBayes(continuous=2)
    mechanism = mechanism_of(family, clip=0.5)
    rows = Rows(np.array([[1.0, -2.0]]), np.zeros((1, 0), dtype=int))
    steps = np.array([[0.75, -0.25, -0.5]])
    opened = mechanism.opened(mechanism.clipped(steps, mechanism.rows(family, rows)))
    direction = np.outer(steps[0], np.asarray(family.features(rows))[0])
    factor = (
        0.5
        * MARGIN
        / (
            np.linalg.norm(steps)
            * np.linalg.norm(mechanism.coordinates.to(direction) / np.linalg.norm(steps))
        )
    )
    assert np.allclose(opened, factor * direction, atol=1e-4)


# --- a canary ----------------------------------------------------------------------------------------------------


def audited(clip_works, seed=0, runs=4000, epsilon=4.0):
    """The largest ε that a test for one row proves, at 99.9 % confidence: releases with and without the canary.

    The row is as loud as rows can be, and the statistics are crafted so that it is misclassified with certainty. The
    test looks at the release along the row's own direction; Clopper and Pearson's bounds say how often it errs.
    """
    family = NaiveBayes(continuous=2)
    rng = np.random.default_rng(9)
    found = scheme(Privacy(epsilon, DELTA, clip=0.5), family, 2, 50, 1, 1, 0.05)
    mechanism = found.mechanism
    rows = Rows(np.concatenate([rng.standard_normal((20, 2)), [[1e9, 1e9]]]), np.zeros((21, 0), dtype=int))
    labels = np.append(rng.integers(2, size=20), 1)
    crafted = family.uniform(2, 10.0)
    crafted[:, 1:3] = [[50.0, 50.0], [-50.0, -50.0]]
    held = Rows(np.clip(rows.values, -3, 3), rows.codes)
    steps, moved = RowSteps.of(family, held, labels)(family.weights(crafted)), mechanism.rows(family, rows)
    clip = mechanism.clip if clip_works else 1e9
    with_it, without = mechanism.clipped(steps, moved, clip), mechanism.clipped(steps[:-1], moved[:-1], clip)
    direction = np.outer(steps[-1], moved[-1])
    direction /= np.linalg.norm(direction)
    source = np.random.default_rng([10, seed]).bytes

    def seen(sums):
        noisy = sums + mechanism.noise((runs, *sums.shape), source)
        return np.ldexp((noisy * direction).sum(axis=(1, 2)), -mechanism.bits)

    present, absent = seen(with_it), seen(without)
    best = 0.0
    for at in np.quantile(np.concatenate([present, absent]), np.linspace(0.01, 0.99, 50)):
        missed = distributions.beta.ppf(0.999, (present < at).sum() + 1, max(runs - (present < at).sum(), 1))
        false = distributions.beta.ppf(0.999, (absent >= at).sum() + 1, max(runs - (absent >= at).sum(), 1))
        for error, other in ((missed, false), (false, missed)):
            if error < 1 and other > 0 and 1 - DELTA - error > 0:
                best = max(best, math.log((1 - DELTA - error) / other))
    return best


def test_a_canary_proves_no_more_than_was_promised():
    proved = [audited(clip_works=True, seed=seed) for seed in range(20)]
    assert max(proved) <= 4.0 and min(proved) > 0.3


def test_a_canary_finds_a_broken_clip():
    assert audited(clip_works=False) > 0.5 * 4.0


# --- edge noise ------------------------------------------------------------------------------------------------


def network_of(name, peers, seed=0):
    return topologies.schedule(name, peers, np.random.default_rng(seed), None).at(1)


def by_definition(network, ratio, colluders):
    worst, dense = 0.0, network.toarray() != 0
    for gone in itertools.combinations(range(len(dense)), colluders):
        kept = np.setdiff1d(np.arange(len(dense)), gone)
        links = dense[np.ix_(kept, kept)].astype(float)
        laplacian = np.diag(links.sum(axis=1)) - links
        worst = max(worst, np.diagonal(np.linalg.inv(np.eye(len(kept)) + ratio**2 * laplacian)).max())
    return worst


@pytest.mark.parametrize(("name", "peers"), [("regular-4", 12), ("complete", 7), ("regular-3", 10)])
@pytest.mark.parametrize("colluders", [1, 2, 3])
@pytest.mark.parametrize("ratio", [0.5, 3.0])
def test_exposure_is_what_it_is_defined_as(name, peers, colluders, ratio):
    network = network_of(name, peers)
    expected = by_definition(network, ratio, colluders)
    assert edges.exposure(network, ratio, colluders) == pytest.approx(min(expected, 1.0), rel=1e-6)


def test_more_colluders_see_more_and_edge_noise_hides_more():
    network = network_of("regular-6", 20)
    exposed = [edges.exposure(network, 3.0, colluders) for colluders in (1, 2, 3)]
    assert exposed == sorted(exposed) and exposed[0] < 0.1
    assert edges.exposure(network, 0.0) == 1.0
    assert edges.exposure(network, 10.0) < edges.exposure(network, 3.0)


def test_the_ledger_of_edge_noise_is_mu_of_the_covariance_that_is_left():
    """μ² = G²T·max [(σ²I + s²L)⁻¹]_vv, written out, is what (ε, δ) allows."""
    network, family = network_of("regular-4", 10), NaiveBayes(continuous=3)
    found = scheme(Privacy(2.0, edge_noise=3.0, colluders=2), family, 2, 50, 10, 16, 0.05, network)
    sigma, shared = found.mechanism.sigma, found.edge_sigma
    assert shared == pytest.approx(3.0 * sigma, rel=1e-9)
    clip = found.mechanism.clip * 2**found.mechanism.bits
    squared = clip**2 * 16 * by_definition(network, shared / sigma, 2) / sigma**2
    assert math.sqrt(squared) == pytest.approx(accounting.mu_of(2.0, DELTA), rel=1e-6)
    assert accounting.epsilon_of(math.sqrt(squared), DELTA) <= 2.0


def test_edge_noise_cancels_in_the_sum():
    network = network_of("regular-6", 20)
    drawn = sampling.discrete_gaussian(1 << 43, (network.nnz // 2) * 12, seeded(11)).reshape(-1, 3, 4)
    added = edges.shared(drawn, network)
    assert added.dtype == np.int64 and np.abs(added).min() > 0
    assert not added.sum(axis=0).any()


def test_both_ends_of_a_link_draw_the_same():
    pytest.importorskip("cryptography")
    key = bytes(range(32))
    first = sampling.discrete_gaussian(1 << 43, 1000, edges.keyed(key, b"round 1"))
    assert np.array_equal(first, sampling.discrete_gaussian(1 << 43, 1000, edges.keyed(key, b"round 1")))
    assert not np.array_equal(first, sampling.discrete_gaussian(1 << 43, 1000, edges.keyed(key, b"round 2")))


def two_triangles():
    """Two complete graphs of five that share one peer."""
    links = np.zeros((9, 9))
    for group in (range(5), range(4, 9)):
        for a, b in itertools.permutations(group, 2):
            links[a, b] = 1
    return csr_array(links)


def test_networks_in_which_edge_noise_cannot_help_are_refused():
    with pytest.raises(ValueError, match="at least 3 neighbours"):
        edges.refuse_network(network_of("tree", 10))
    with pytest.raises(ValueError, match="without peer 4"):
        edges.refuse_network(two_triangles())
    edges.refuse_network(network_of("regular-3", 10))
    with pytest.raises(ValueError, match="two honest"):
        edges.exposure(network_of("complete", 5), 3.0, 4)
    with pytest.raises(ValueError, match="sets"):
        edges.exposure(network_of("regular-4", 60), 3.0, 6)


# --- beside the equations, written out -------------------------------------------------------------------------


def ratio_of(epsilon, delta):
    """The largest μ that is (ε, δ)-private, by the normal distribution of scipy and its solver."""

    def excess(mu):
        normal = distributions.norm
        return (
            normal.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal.cdf(-mu / 2 - epsilon / mu) - delta
        )

    return brentq(excess, 1e-6, 50.0, xtol=1e-14, rtol=1e-14)


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_a_billionth_is_set_aside_for_the_grid(epsilon):
    mu = accounting.mu_of(epsilon, DELTA)
    assert accounting.epsilon_of(mu, DELTA) == pytest.approx(epsilon - 1e-9, abs=1e-10)
    ledger = accounting.Ledger(epsilon, DELTA, 1, mu**2)
    assert ledger.spent(1) - accounting.epsilon_of(mu, DELTA) == pytest.approx(1e-9, abs=1e-11)
    assert mu == pytest.approx(ratio_of(epsilon, DELTA), rel=1e-8)


@pytest.mark.parametrize(("epsilon", "delta"), [(5e-10, 1e-12), (1e-9, 1e-12), (1e-6, 1e-9)])
def test_promises_near_nothing_leave_noise_that_keeps_them(epsilon, delta):
    mu = accounting.mu_of(epsilon, delta)
    assert mu > 0 and accounting.delta_of(mu, epsilon) <= delta


def test_releases_that_tell_next_to_nothing_cost_nothing():
    """δ alone covers them; and loud ones cost what the formula says, however large."""
    assert accounting.epsilon_of(1e-7, DELTA) == 0.0 == accounting.epsilon_of(0.0, DELTA)
    for mu in (5.0, 20.0, 60.0):
        epsilon = accounting.epsilon_of(mu, DELTA)
        assert accounting.delta_of(mu, epsilon) == pytest.approx(DELTA, rel=1e-6)


def test_discretisation_is_twice_the_largest_difference_for_each_number():
    """(40² + 1)/24σ² within ±40σ, in the logarithms of both datasets."""
    assert accounting.discretisation(1000.0, 7) == pytest.approx(7 * 2 * 1601 / 24e6, rel=1e-12)


def test_membership_is_the_area_under_the_curve_of_two_normals():
    mu = 0.8
    at = np.linspace(-9, 9, 20_001)
    area = np.trapezoid(distributions.norm.sf(at - mu) * distributions.norm.pdf(at), at)
    assert accounting.membership(mu) == pytest.approx(area, abs=1e-7)


def test_a_round_fits_to_the_last_bit_of_the_budget():
    mu = accounting.mu_of(2.0, DELTA)
    for rounds in (1, 3, 7, 64, 1000):
        ledger = accounting.Ledger(2.0, DELTA, rounds, mu**2 / rounds)
        assert ledger.fits(rounds - 1) and not ledger.fits(rounds)
        assert not accounting.Ledger(2.0, DELTA, rounds, mu**2 / rounds * (1 + 1e-9)).fits(rounds - 1)
        cheap = accounting.Ledger(
            2.0, DELTA, rounds, mu**2 / (2 * rounds)
        )  # no more rounds than were agreed on
        assert cheap.fits(rounds - 1) and not cheap.fits(rounds)


SETTINGS = [
    {"noise": 0.089}, {"noise": 0.091}, {"noise": 0.249}, {"noise": 0.251}, {"noise": 0.251, "clip": 0.8},
    {"bought_start": True}, {"bought_units": True}, {"bought_start": True, "bought_units": True, "clip": 2.0},
    {"edge_noise": 3.0}, {"edge_noise": 0.5, "colluders": 2, "bought_start": True},
]  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_scheme_is_its_equations(setting):
    """G = κB, σ = G·√(exposure·T/(μ² less what was bought)), ρ = σ·√T·lr·C/(m_v·√n): with every number by hand."""
    family, network = NaiveBayes(continuous=3, cardinalities=(2, 5)), network_of("regular-4", 12)
    classes, peers, rounds, lr = 4, 12, 40, 0.05
    clip, edge_noise = setting.get("clip", "auto"), setting.get("edge_noise", 0.0)
    colluders, noise = setting.get("colluders", 1), setting.get("noise", 0.3)
    bought = {name: setting.get(name, False) for name in ("bought_start", "bought_units")}

    squared = ratio_of(2.0, DELTA) ** 2
    first, units = 0.2 * squared * bought["bought_start"], 0.05 * squared * bought["bought_units"]
    each, length = (squared - first - units) / rounds, math.sqrt(1 + 6 + 1 / 2 + 4 / 5)
    exposed = by_definition(network, edge_noise, colluders) if edge_noise else 1.0
    plain = length * math.sqrt(exposed / each)
    rows = plain * math.sqrt(rounds) * lr * classes / (noise * math.sqrt(peers))
    share = (1.0 if noise <= 0.09 else 0.5 if noise <= 0.25 else 0.35) if clip == "auto" else clip

    terms = Privacy(2.0, DELTA, clip, 3.0, edge_noise, colluders)
    agreed = scheme(
        terms, family, classes, rows, peers, rounds, lr, network if edge_noise else None, **bought
    )
    assert agreed.share == share and agreed.rho == pytest.approx(share * noise, rel=1e-7)
    assert agreed.mechanism.clip == pytest.approx(share * length, rel=1e-12)
    assert agreed.sigma == pytest.approx(share * plain, rel=1e-7)
    assert agreed.ledger.each == pytest.approx(each, rel=1e-7)
    assert agreed.ledger.first == pytest.approx(first + units, rel=1e-7, abs=1e-15)
    assert (agreed.ledger.epsilon, agreed.ledger.delta, agreed.ledger.rounds) == (2.0, DELTA, rounds)
    unit = 2.0**-agreed.mechanism.bits
    assert agreed.edge_sigma == math.ceil(edge_noise * agreed.mechanism.sigma)
    if bought["bought_start"]:
        assert agreed.start_clip == pytest.approx(length, rel=1e-12)
        assert agreed.start_sigma * unit == pytest.approx(length / math.sqrt(first), rel=1e-7)
    else:
        assert agreed.start_clip == agreed.start_sigma == 0
    for neighbours, boost in ((0, 1.0), (4, 1.0), (4, 2.5)):
        spread = boost * math.sqrt(3 * (agreed.sigma**2 + neighbours * (agreed.edge_sigma * unit) ** 2))
        assert agreed.spread(neighbours, boost) == pytest.approx(spread, rel=1e-12)


@pytest.mark.parametrize("edge_noise", [0.0, 3.0])
@pytest.mark.parametrize("bought_start", [False, True])
def test_a_scheme_is_refused_where_the_grid_would_cost_more_than_half_of_what_is_set_aside(
    edge_noise, bought_start
):
    """Numbers of all releases, and of every noise that a curious peer sees a part of; the other half is for units."""
    family, network, outcomes = NaiveBayes(continuous=2), network_of("regular-4", 12), set()
    for power in range(1, 20):
        bound = 2.0**power
        terms = Privacy(8.0, DELTA, 1.0, bound, edge_noise)
        sigma = math.sqrt(5) / ratio_of(8.0, DELTA) * math.sqrt(30 / (0.8 if bought_start else 1.0))
        sigma *= math.sqrt(by_definition(network, edge_noise, 1)) if edge_noise else 1.0
        start = math.sqrt(5) / ratio_of(8.0, DELTA) / math.sqrt(0.2)
        least = (min(sigma, start) if bought_start else sigma) * 2.0 ** (40 - 2 * power)
        numbers = 3 * 5 * 31 * (12 + 24 if edge_noise else 1)
        refused = numbers * 2 * 1601 / (24 * least**2) > 0.5e-9
        outcomes.add(refused)
        try:
            scheme(terms, family, 3, 100.0, 12, 30, 0.05, network, None, bought_start)
        except ValueError as error:
            assert refused and "discrete would cost more" in str(error), power
        else:
            assert not refused, power
    assert outcomes == {True, False}


def test_a_scheme_asks_whether_edge_noise_can_help():
    terms = Privacy(edge_noise=3.0)
    with pytest.raises(ValueError, match="at least 3 neighbours"):
        scheme(terms, NaiveBayes(continuous=1), 2, 50, 10, 16, 0.05, network_of("ring", 10))
    with pytest.raises(ValueError, match="give the network"):
        scheme(terms, NaiveBayes(continuous=1), 2, 50, 10, 16, 0.05)


def test_more_peers_or_sets_than_can_be_tried_are_refused_at_once(monkeypatch):
    monkeypatch.setattr(np.linalg, "inv", lambda matrix: pytest.fail("inverted"))
    with pytest.raises(ValueError, match="up to 4,096 peers"):
        edges.exposure(network_of("ring", 4097), 3.0)
    with pytest.raises(ValueError, match="50,086 sets; up to 50,000 sets"):  # 317·316/2
        edges.exposure(network_of("ring", 317), 3.0, 2)


def test_links_are_named_once_the_smaller_peer_first():
    network = network_of("regular-4", 9)
    dense = network.toarray()
    pairs = {(a, b) for a in range(9) for b in range(a + 1, 9) if dense[a, b]}
    assert set(zip(*(ends.tolist() for ends in edges.links_of(network)), strict=True)) == pairs
    # Z is added at the smaller end and taken off at the other
    drawn = np.arange(1, 19)
    added = np.zeros(9, dtype=int)
    for (a, b), z in zip(sorted(pairs), drawn, strict=True):
        added[a] += z
        added[b] -= z
    np.testing.assert_array_equal(edges.shared(drawn, network), added)


def test_another_key_draws_other_noise():
    pytest.importorskip("cryptography")
    one, other = (edges.keyed(bytes([k] * 32), b"round 1")(64) for k in (1, 2))
    assert one != other


@given(st.floats(1e-6, 100.0), st.floats(0.5, 50.0))
def test_noise_is_never_below_what_was_reckoned_with(sigma, bound):
    mechanism = mechanism_of(FAMILIES["continuous"], bound=bound)
    steps, unit = mechanism.steps_of(sigma), Fraction(1, 2**mechanism.bits)
    assert Fraction(sigma) <= steps * unit < Fraction(sigma) + unit


@pytest.mark.parametrize(
    ("bound", "bits"), [(0.5, 40), (1.0, 40), (1.5, 38), (2.0, 38), (3.0, 36), (10.0, 33)]
)
def test_the_grid_leaves_room_for_the_largest_entry(bound, bits):
    """Twenty bits for the steps, twenty for an entry of up to bound²."""
    assert mechanism_of(FAMILIES["continuous"], bound=bound).bits == bits


def test_rows_lie_on_their_grid_within_the_bound():
    """Whole numbers; values beyond the bound, and what is no number, as if they were at it, or not there."""
    family = NaiveBayes(continuous=1, missing=True)
    mechanism = mechanism_of(family, bound=3.0)
    values = np.array([[0.1], [2.9], [3.0], [3.1], [50.0], [-1e9], [np.inf], [np.nan]])
    moved = mechanism.rows(family, Rows(values, np.zeros((8, 0), dtype=int)))
    assert np.array_equal(moved, np.rint(moved)) and np.abs(moved).max() <= 2**20
    unit = 2.0**-mechanism.row_bits
    # h: the 1; o − 1; x; (x² − o)/√2
    inside = np.clip(values[:, 0], -3, 3)
    expected = np.stack([np.ones(8), np.zeros(8), inside, (inside**2 - 1) / math.sqrt(2)], axis=1)
    expected[7] = 1, -1, 0, 0
    assert np.abs(moved * unit - expected).max() <= unit / 2 + 1e-12


def test_sums_of_the_largest_products_are_exact():
    """Of more rows than float64 could add up at once."""
    count = 9 * AT_ONCE + 5
    cut, rows = np.full((count, 1), 2.0**20 - 1), np.full((count, 2), 2.0**20 - 3)
    whole = (2**20 - 1) * (2**20 - 3) * count
    assert whole > 2**53 and summed(cut, rows).tolist() == [[whole, whole]]


def test_more_rows_than_64_bits_hold_are_refused():
    """Without a copy of them: one row, seen as often."""
    family, most = NaiveBayes(continuous=1), 1 << 22
    rows = Rows(np.broadcast_to(np.zeros(1), (most + 1, 1)), np.broadcast_to(np.zeros(0, int), (most + 1, 0)))
    with pytest.raises(ValueError, match="4,194,305 rows; a private one takes up to 4,194,304"):
        mechanism_of(family).rows(family, rows)
    with pytest.raises(ValueError, match="takes up to 4,194,304"):
        Units((False,), 0.05).sums(rows.values)


def test_steps_that_are_no_numbers_count_nothing_and_long_ones_are_one():
    mechanism = mechanism_of(FAMILIES["continuous"], clip=1e6)
    rows = np.full((4, 9), 2.0**10)
    steps = np.array([[np.nan, 0.5], [np.inf, 0.5], [-np.inf, 0.25], [7.0, -7.0]])
    cut = mechanism.cut(steps, rows) / 2**20
    np.testing.assert_array_equal(cut, [[0, 0.5], [0, 0.5], [0, 0.25], [1, -1]])


@given(seed=st.integers(0, 2**32 - 1), clip=st.floats(0.05, 3.0))
def test_a_row_is_cut_to_the_length_it_may_have_and_not_shorter(seed, clip):
    """w = min(1, G/(‖q‖·‖h‖)), less 2⁻⁴⁰ of it, cut towards zero on a grid of 2⁻²⁰."""
    rng = np.random.default_rng(seed)
    mechanism = mechanism_of(FAMILIES["continuous"], clip=clip)
    steps, rows = rng.uniform(-1, 1, (5, 3)), np.rint(rng.normal(size=(5, 9)) * 2**mechanism.row_bits)
    for q, h, cut in zip(steps, rows, mechanism.cut(steps, rows), strict=True):
        length = np.linalg.norm(q) * np.linalg.norm(h) * 2.0**-mechanism.row_bits
        exact = min(1.0, clip * (1 - 2.0**-40) / length) * q * 2**20
        assert (np.abs(cut) <= np.abs(exact) * (1 + 1e-12)).all() and (np.abs(cut - exact) < 1 + 1e-6).all()
        assert np.array_equal(cut, np.rint(cut))


def test_a_row_that_is_a_hair_too_long_loses_a_step():
    """Of a length that float64 cannot tell from what it may be, and on the grid: in exact numbers it is not longer."""
    rows = np.zeros((1, 9))
    mechanism = mechanism_of(FAMILIES["continuous"], clip=0.5 * (1 - 2.0**-41))
    rows[0, 0] = 2**mechanism.row_bits  # ‖h‖ = 1
    cut = mechanism.cut(np.array([[1.0, 0.0]]), rows)
    assert cut[0, 0] == 2**19 - 1 and Fraction(int(cut[0, 0]), 2**20) <= Fraction(mechanism.clip)


def test_dependent_conditions_of_a_network_are_told_from_rounding():
    """The normals are orthonormal: none is what rounding left of a condition that follows from others."""
    for family in FAMILIES.values():
        normals = mechanism_of(family).projection.normals
        dense = normals if isinstance(normals, np.ndarray) else normals.toarray()
        assert np.abs(dense.T @ dense - np.eye(dense.shape[1])).max(initial=0.0) < 1e-12
        h = Coordinates(family).to(
            np.asarray(family.features(drawn_rows(family, 50, np.random.default_rng(0))))
        )
        if not getattr(family, "missing", False):
            assert np.abs(h @ dense).max(initial=0.0) < 1e-9


def test_a_private_start_keeps_its_class_sums():
    """Residuals add up to zero over classes, sums of rows do not."""
    moved = np.arange(12.0).reshape(3, 4)
    project = mechanism_of(NaiveBayes(cardinalities=(3,))).projection
    assert np.abs(project(moved).sum(axis=0)).max() < 1e-12
    kept = project(moved, classes=False)
    assert kept[:, 0] == pytest.approx(moved[:, 0]) and np.abs(kept[:, 1:].sum(axis=1)).max() < 1e-12


def exactly(word, gamma, bits):
    """Whether word/2⁶⁴ and the bits that follow are below exp(−γ), by 400 digits."""
    with localcontext() as context:
        context.prec = 400
        return Fraction(word * 2**192 + bits, 2**256) < Fraction(
            (-Decimal(gamma.numerator) / gamma.denominator).exp()
        )


@given(gamma=st.fractions(0, 40), near=st.integers(-2, 2), bits=st.integers(0, 2**192 - 1))
def test_decisions_near_the_threshold_are_those_of_infinite_precision(gamma, near, bits):
    with localcontext() as context:
        context.prec = 60
        threshold = int(Fraction((-Decimal(gamma.numerator) / gamma.denominator).exp()) * 2**64)
    word = min(max(threshold + near, 0), 2**64 - 1)
    words = [bits.to_bytes(24, "big")[k : k + 8][::-1] for k in (0, 8, 16)]
    stream = itertools.chain(words, itertools.repeat(bytes(8)))
    assert sampling._settled(word, gamma, lambda count: next(stream)) == exactly(word, gamma, bits)


@pytest.mark.parametrize("gamma", [Fraction(1, 3), Fraction(1), Fraction(5, 2), Fraction(17), Fraction(30)])
def test_bits_behind_a_word_that_agrees_decide(gamma):
    """All zeros are below any threshold, all ones above: exp(−γ) is irrational."""
    with localcontext() as context:
        context.prec = 60
        word = int(Fraction((-Decimal(gamma.numerator) / gamma.denominator).exp()) * 2**64)
    assert sampling._settled(word, gamma, lambda count: bytes(count))
    assert not sampling._settled(word, gamma, lambda count: b"\xff" * count)


def test_a_float_that_is_too_near_is_not_trusted(monkeypatch):
    """The words that differ from the threshold by less than 2⁻⁴⁰ are settled exactly, and no others."""
    at = int(Fraction(math.exp(-1)) * 2**64)
    words = [at, at + 2**23, at - 2**23, at + 2**26, at - 2**26]
    asked = []
    monkeypatch.setattr(sampling, "_settled", lambda word, gamma, source: asked.append(word) or True)
    taken = sampling._bernoulli(
        np.ones(5), lambda _: Fraction(1), lambda count: np.array(words, dtype="<u8").tobytes()
    )
    assert asked == words[:3] and taken.tolist() == [True, True, True, False, True]


def test_the_largest_scale_is_two_to_the_46():
    drawn = sampling.discrete_gaussian(1 << 46, 200, seeded(2))
    assert 0.5 < (drawn / 2.0**46).std() < 1.5 and np.array_equal(
        drawn, drawn.astype(np.float64).astype(np.int64)
    )
    with pytest.raises(ValueError, match="2\\^46"):
        sampling.discrete_gaussian((1 << 46) + 1, 1, seeded(2))


@pytest.mark.parametrize("sigma", [1, 3])
def test_as_many_as_asked_for_are_drawn_and_half_of_them_are_negative(sigma):
    drawn = sampling.discrete_gaussian(sigma, 60_001, seeded(7))
    assert drawn.shape == (60_001,) and sampling.discrete_gaussian(sigma, 0, seeded(7)).size == 0
    signs = drawn[drawn != 0] > 0
    assert abs(signs.mean() - 0.5) < 5 * 0.5 / math.sqrt(signs.size)


# --- what is bought of columns ------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.lists(st.booleans(), max_size=4), st.floats(1e-3, 1.0))
def test_units_are_asked_for_by_the_book(seed, missing, cost):
    """Steps of 2⁻²⁴; a row of values at ±1 moves a release as far as any can, but for rounding."""
    rng, asked = np.random.default_rng(seed), Units(tuple(missing), cost)
    values = rng.choice([-1.0, 1.0, 0.3, -0.7, 4.0], (6, len(missing)))
    values[rng.random(values.shape) < 0.4 * np.array(missing, dtype=float)] = np.nan
    expected = [6 * 2**24]
    for u, may_miss in zip(values.T, missing, strict=True):
        inside = [min(max(x, -1.0), 1.0) for x in u if not math.isnan(x)]
        expected += [sum(round(x * 2**24) for x in inside), sum(round((x * x - 0.5) * 2**24) for x in inside)]
        expected += [len(inside) * 2**24] if may_miss else []
    assert asked.sums(values).tolist() == expected and asked.size == len(expected)
    longest = float(np.linalg.norm(asked.sums(np.ones((1, len(missing)))).astype(float)))
    assert longest <= asked.most == pytest.approx(longest + math.sqrt(asked.size) / 2, rel=1e-12)
    least = asked.most / math.sqrt(cost)
    assert least <= asked.sigma <= least * (1 + 1e-11) + 1
    assert asked.discretisation() == pytest.approx(asked.size * 2 * 1601 / (24 * asked.sigma**2), rel=1e-12)


@given(
    peers=st.integers(1, 30),
    rows=st.floats(-2000, 2000),
    sums=st.lists(st.floats(-1500, 1500), min_size=5, max_size=5),
)
def test_units_are_opened_by_the_book(peers, rows, sums):
    """Mean within ±1, variance between what noise allows and 1; those of even values where noise hides the count."""
    asked = Units((False, True), 0.05)
    total = np.rint(np.array([rows, *sums]) * 2**24).astype(np.int64)
    told_rows, mean, deviation = asked.opened(total, peers)
    rows, first, second, other_first, other_second, there = (int(number) / 2**24 for number in total)
    assert told_rows == rows
    noise = asked.sigma / 2**24 * math.sqrt(peers)
    for column, (count, x, square) in enumerate(((rows, first, second), (there, other_first, other_second))):
        expected = (0.0, 1 / 3)
        if count > 3 * noise:
            centre = min(max(x / count, -1.0), 1.0)
            expected = centre, min(max(square / count + 0.5 - centre**2, noise / count), 1.0)
        assert (mean[column], deviation[column] ** 2) == pytest.approx(expected, rel=1e-9, abs=1e-12)


# --- terms -----------------------------------------------------------------------------------------------------------


def test_what_is_promised_unless_somebody_says_otherwise():
    terms = Privacy()
    assert (terms.epsilon, terms.delta, terms.clip, terms.bound) == (4.0, 1e-5, "auto", 3.0)
    assert (terms.edge_noise, terms.colluders, terms.min_rows) == (0.0, 1, 50)


@pytest.mark.parametrize("name", ["epsilon", "delta", "clip", "bound", "edge_noise", "colluders", "min_rows"])
def test_true_is_no_number_and_infinity_no_promise(name):
    for value in (True, math.inf, None):
        with pytest.raises(ValueError, match=name):
            Privacy(**{name: value})
