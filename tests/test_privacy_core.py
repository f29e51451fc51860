"""Differential privacy, its core: accounting, noise, clipping, projection, edge noise; each held to a law."""

import itertools
import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as distributions
from scipy.sparse import csr_array

from peerbayes import core, topologies
from peerbayes.families import BayesNet, NaiveBayes, Rows, SeparateGaussian, SharedGaussian
from peerbayes.privacy import accounting, edges, sampling
from peerbayes.privacy.coordinates import Coordinates
from peerbayes.privacy.mechanism import AT_ONCE, MARGIN, Mechanism, residual_steps
from peerbayes.privacy.projection import projection
from peerbayes.privacy.scheme import scheme
from peerbayes.privacy.terms import Privacy

DELTA = 1e-5

FAMILIES = {
    "naive Bayes": NaiveBayes(continuous=3, cardinalities=(2, 5)),
    "continuous": NaiveBayes(continuous=4),
    "discrete": NaiveBayes(cardinalities=(3, 1, 4)),
    "with gaps": NaiveBayes(continuous=3, cardinalities=(4,), missing=True),
    "qda": SeparateGaussian(continuous=3, cardinalities=(3,)),
    "lda": SharedGaussian(continuous=3),
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
        ("edge_noise", math.nan), ("colluders", 0), ("colluders", 1.5), ("min_rows", 0), ("min_rows", True),
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
    from fractions import Fraction

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
            labels = core.one_hot(rng.integers(classes, size=count), classes)
            steps = residual_steps(np.asarray(family.features(rows)), labels, family.weights(stats))
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
        features, labels = np.asarray(family.features(rows)), core.one_hot(rng.integers(3, size=40), 3)
        weights = family.weights(family.uniform(3, 5.0) * rng.uniform(0.9, 1.1, (3, family.size)))
        opened = mechanism.opened(
            mechanism.clipped(residual_steps(features, labels, weights), mechanism.rows(family, rows))
        )
        assert np.allclose(opened, core.residual(features, labels, weights), atol=0.02)


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
    labels = core.one_hot(np.append(rng.integers(2, size=20), 1), 2)
    crafted = family.uniform(2, 10.0)
    crafted[:, 1:3] = [[50.0, 50.0], [-50.0, -50.0]]
    features = np.asarray(family.features(Rows(np.clip(rows.values, -3, 3), rows.codes)))
    steps, moved = residual_steps(features, labels, family.weights(crafted)), mechanism.rows(family, rows)
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
