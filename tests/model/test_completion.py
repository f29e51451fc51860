"""Rows with values missing: the marginal densities and expected features of brute force, and laws."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from peerbayes.errors import SchemaError, StructureError
from peerbayes.model import core, missing
from peerbayes.model.families import BayesNet, NaiveBayes, Rows, SeparateGaussian
from peerbayes.model.families.structures import order
from peerbayes.model.missing import Enumeration, Trees, alone, apart, complete, contributions
from shared.families import CARDINALITIES, COMPLETING, draw_rows, with_gaps

CLASSES = 3
seeds = st.integers(0, 2**32 - 1)
COMPLETED = {name: family for name, family in COMPLETING.items() if not isinstance(family, NaiveBayes)}
COMPLETED["parents that are not linked"] = BayesNet(
    continuous=3, cardinalities=CARDINALITIES, parents=((4,), (0,), (0, 1, 3), (), (3,)), shrinkage=0.02
)
COMPLETED["tree of discrete columns"] = BayesNet(cardinalities=(3, 2, 4, 2), parents=((), (0,), (1,), (1,)))
COMPLETED["tree of continuous columns"] = BayesNet(continuous=4, parents=((), (0,), (1,), (1,)))
COMPLETED["chain below a discrete column"] = BayesNet(
    continuous=3, cardinalities=(3, 2, 2), parents=((3,), (0,), (1,), (), (3,), ())
)


@pytest.fixture(scope="session", params=COMPLETED.values(), ids=COMPLETED.keys())
def family(request):
    return request.param


def ordinary(family, seed, rows=60):
    """Statistics of complete rows."""
    rng = np.random.default_rng(seed)
    labels = core.one_hot(rng.integers(0, CLASSES, rows), CLASSES)
    return core.statistics(family.features(draw_rows(family, rng, rows)), labels)


# --- brute force: every configuration, dense Gaussians -----------------------------------------------------


def components(family, stats):
    """For each class: (log weight, codes, mean, covariance) of every configuration of all discrete columns."""
    counts = family.counts(stats)
    for c in range(CLASSES):
        found = []
        for codes in itertools.product(*map(range, family.cardinalities)):
            if isinstance(family, BayesNet):
                log, mean, covariance = of_network(family, stats, c, codes)
            else:
                parameters = family.parameters(stats)
                mean, covariance = parameters.mean[c], parameters.covariance[c]
                cells = family.offsets + np.array(codes, dtype=int)
                log = parameters.log_cells[c][cells].sum()
            found.append((counts.log_prior[c] + log, np.array(codes, dtype=int), mean, covariance))
        yield found


def of_network(family, stats, c, codes):
    d, log = family.continuous, 0.0
    mean, covariance = np.zeros(d), np.zeros((d, d))
    conditionals = family.conditionals(stats)
    done = []
    for column in order(family.parents):
        own = conditionals[column]
        linear, discrete = family.split(column)
        configuration = 0
        for parent in discrete:
            configuration = configuration * family.cardinalities[parent] + codes[parent]
        if column >= d:
            log += own[c, configuration, codes[column - d]]
            continue
        slopes = np.zeros(d)
        slopes[list(linear)] = own.slopes[c, configuration]
        mean[column] = own.intercept[c, configuration] + slopes @ mean
        covariance[column, done] = covariance[done, column] = (covariance @ slopes)[done]
        covariance[column, column] = own.variance[c, configuration] + slopes @ covariance @ slopes
        done.append(column)
    return log, mean, covariance


def brute_force(family, stats, rows):
    """log p(x_obs, c) [n, C] and E[φ | x_obs, c] [n, C, K]. Features are quadratic, so sigma points are exact."""
    n = len(rows.values)
    logs, expected = np.empty((n, CLASSES)), np.zeros((n, CLASSES, family.size))
    free = ~getattr(
        family, "linked", np.repeat([True, False], [family.continuous, len(family.cardinalities)])
    )
    for c, parts in enumerate(components(family, stats)):
        for i in range(n):
            x, codes = rows.values[i], rows.codes[i]
            o, m = np.flatnonzero(~np.isnan(x)), np.flatnonzero(np.isnan(x))
            told = []
            for log, every, mean, covariance in parts:
                if (every[codes >= 0] != codes[codes >= 0]).any():
                    continue
                if o.size:
                    log = log + stats_normal(mean[o], covariance[np.ix_(o, o)]).logpdf(x[o])
                gain = np.linalg.solve(covariance[np.ix_(o, o)], covariance[np.ix_(o, m)]).T
                centre = np.where(np.isnan(x), mean, x)
                centre[m] = mean[m] + gain @ (x[o] - mean[o])
                spread = covariance[np.ix_(m, m)] - gain @ covariance[np.ix_(o, m)]
                points = np.tile(centre, (max(2 * m.size, 1), 1))
                if m.size:
                    root = np.sqrt(m.size) * np.linalg.cholesky(spread).T
                    points[:, m] += np.concatenate([root, -root])
                # φ leaves out a discrete column that goes with no other: its cells stay empty
                kept = np.where(free[family.continuous :] & (codes < 0), -1, every)
                features = family.features(Rows(points, np.tile(kept, (len(points), 1))))
                told.append((log, features.mean(axis=0)))
            weights = np.array([log for log, _ in told])
            logs[i, c] = np.logaddexp.reduce(weights)
            expected[i, c] = np.exp(weights - logs[i, c]) @ np.stack([features for _, features in told])
    return logs, expected


stats_normal = stats.multivariate_normal


@given(seed=seeds)
@settings(max_examples=15)
def test_marginal_densities_and_expected_features_are_those_of_brute_force(family, seed):
    rng = np.random.default_rng(seed)
    model, rows = ordinary(family, seed), with_gaps(family, rng, 12)
    credit = rng.normal(size=(12, CLASSES))
    logs, expected = brute_force(family, model, rows)
    known, weights = complete(family, rows), family.weights(model)
    scale = max(1.0, np.abs(weights).max() * 1e-3)
    np.testing.assert_allclose(known.log_joint(weights), logs, atol=1e-9 * scale, rtol=1e-9)
    got, told = known.statistics(weights, credit)
    wanted = np.einsum("nc,nck->ck", credit, expected)
    np.testing.assert_allclose(got, wanted, atol=1e-8 * max(1.0, np.abs(wanted).max()))
    assert told == pytest.approx(np.sum(credit * logs), rel=1e-9, abs=1e-8 * scale)


@st.composite
def trees(draw):
    """Random trees: discrete columns first have discrete parents, continuous ones any; some are roots."""
    discrete, continuous = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    sizes = tuple(draw(st.integers(1, 5)) for _ in range(discrete))
    parents = [()] * (continuous + discrete)
    before = []
    for column in (*range(continuous, continuous + discrete), *range(continuous)):
        if before and draw(st.integers(0, 4)):
            parents[column] = (draw(st.sampled_from(before)),)
        before.append(column)
    guards = draw(st.sampled_from([{}, {"variance_floor": 0.01, "count_floor": 1e-4, "shrinkage": 0.02}]))
    return BayesNet(continuous=continuous, cardinalities=sizes, parents=tuple(parents), **guards)


@given(family=trees().filter(lambda family: family.continuous + len(family.cardinalities)), seed=seeds)
def test_messages_along_trees_give_what_enumeration_gives(family, seed):
    rng = np.random.default_rng(seed)
    rows, weights = with_gaps(family, rng, 15, share=0.6), family.weights(ordinary(family, seed))
    credit = rng.normal(size=(15, CLASSES))
    scale = max(1.0, np.abs(weights).max() * 1e-3)
    along, through = Trees(family, rows), Enumeration(family, rows)
    np.testing.assert_allclose(
        along.log_joint(weights), through.log_joint(weights), rtol=1e-9, atol=1e-9 * scale
    )
    (got, told), (wanted, said) = (each.statistics(weights, credit) for each in (along, through))
    np.testing.assert_allclose(got, wanted, atol=1e-9 * scale * max(1.0, np.abs(wanted).max()))
    assert told == pytest.approx(said, rel=1e-9, abs=1e-9 * scale)


# --- laws --------------------------------------------------------------------------------------------------


@given(seed=seeds)
@settings(max_examples=10)
def test_completing_a_complete_row_changes_nothing(family, seed):
    rng = np.random.default_rng(seed)
    rows, weights = draw_rows(family, rng, 10), family.weights(ordinary(family, seed))
    credit, features = rng.normal(size=(10, CLASSES)), family.features(rows)
    assert not family.incomplete(rows).any()
    kinds = [
        Enumeration,
        complete,
        *([Trees] if getattr(family, "parents", None) and is_tree(family) else []),
    ]
    for kind in kinds:
        known = kind(family, rows)
        joint = core.log_joint(features, weights)
        np.testing.assert_allclose(known.log_joint(weights), joint, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(
            known.statistics(weights, credit)[0], core.statistics(features, credit), atol=1e-12
        )


def is_tree(family):
    return all(len(own) <= 1 for own in family.parents)


@given(seed=seeds)
@settings(max_examples=10)
def test_the_order_of_rows_and_their_company_are_irrelevant(family, seed):
    rng = np.random.default_rng(seed)
    rows, weights = with_gaps(family, rng, 10), family.weights(ordinary(family, seed))
    shuffled = rng.permutation(10)
    known = complete(family, rows)
    joint = known.log_joint(weights)
    np.testing.assert_allclose(known.take(shuffled).log_joint(weights), joint[shuffled], atol=1e-11)
    credit = rng.normal(size=(10, CLASSES))
    parts = [known.take(slice(i, i + 1)).statistics(weights, credit[i : i + 1])[0] for i in range(10)]
    np.testing.assert_allclose(sum(parts), known.statistics(weights, credit)[0], atol=1e-9)


@given(seed=seeds, column=st.integers(0, 4))
@settings(max_examples=10)
def test_leaving_out_one_more_value_integrates_over_it(family, seed, column):
    """Gaps come in any order: first those of a row, then one more, is what all at once are."""
    rng = np.random.default_rng(seed)
    column %= family.continuous + len(family.cardinalities)
    rows, weights = with_gaps(family, rng, 1), family.weights(ordinary(family, seed))
    values, codes = rows.values.copy(), rows.codes.copy()

    def density(value):
        if column < family.continuous:
            values[0, column] = value
        else:
            codes[0, column - family.continuous] = value
        return np.exp(complete(family, Rows(values, codes)).log_joint(weights)[0])

    if column < family.continuous:
        grid = np.linspace(
            -30, 30, 12_001
        )  # far beyond what standardised columns hold; the trapezoid rule is exact
        several = np.repeat(values, grid.size, axis=0), np.repeat(codes, grid.size, axis=0)
        several[0][:, column] = grid
        every = np.exp(complete(family, Rows(*several)).log_joint(weights))
        summed = integrate.trapezoid(every, grid, axis=0)
        gap = density(np.nan)
    else:
        summed = sum(density(level) for level in range(family.cardinalities[column - family.continuous]))
        gap = density(-1)
    np.testing.assert_allclose(gap, summed, rtol=1e-7)


@given(seed=seeds)
@settings(max_examples=10)
def test_contributions_add_up_to_the_log_joint(family, seed):
    rng = np.random.default_rng(seed)
    rows, model = with_gaps(family, rng, 8, share=0.2), ordinary(family, seed)
    baseline, terms = contributions(family, model, rows)
    joint = complete(family, rows).log_joint(family.weights(model))
    np.testing.assert_allclose(baseline + terms.sum(axis=-1), joint, atol=1e-8, rtol=1e-8)
    whole = ~family.incomplete(rows)
    own = family.contributions(model, Rows(rows.values[whole], rows.codes[whole]))
    np.testing.assert_array_equal(terms[whole], own[1])


@given(seed=seeds)
@settings(max_examples=10)
def test_columns_alone_are_naive_bayes(family, seed):
    """The model that completion starts from is that of each column's own values, given the class."""
    rng = np.random.default_rng(seed)
    rows = with_gaps(family, rng, 200)
    labels = core.one_hot(rng.integers(0, CLASSES, 200), CLASSES)
    naive = NaiveBayes(continuous=family.continuous, cardinalities=family.cardinalities, missing=True)
    sums = apart(family, rows, labels)
    np.testing.assert_allclose(sums, core.statistics(naive.features(rows), labels), atol=1e-10)
    plain = type(family)(
        **{key: tuple(v) if isinstance(v, list) else v for key, v in family.layout().items()}
    )  # without guards
    joint = complete(plain, rows).log_joint(plain.weights(alone(plain, sums)))
    wanted = core.log_joint(naive.features(rows), naive.weights(sums))
    if family.name == "lda":  # it has one variance for all classes
        assert np.isfinite(joint).all()
    else:
        np.testing.assert_allclose(joint, wanted, atol=1e-3)


# --- refusals ----------------------------------------------------------------------------------------------


def test_too_many_configurations_are_refused_before_any_work():
    family = BayesNet(cardinalities=(20,) * 5, parents=((), (0,), (0, 1), (1, 2), (2, 3)))
    codes = np.zeros((3, 5), dtype=int)
    codes[1] = -1
    names, numbers = list("abcde"), np.array([4, 7, 9])
    with pytest.raises(
        StructureError, match=r"row 7 has no value in a, b, c, d, e, which .* 3,200,000 joint values"
    ):
        complete(family, Rows(np.zeros((3, 0)), codes), names, numbers)
    codes[1, 2:4] = 5  # what is present cuts them apart
    complete(family, Rows(np.zeros((3, 0)), codes)).log_joint(family.weights(family.uniform(2)))
    assert missing.MOST_CONFIGURATIONS < 20**5


def test_a_family_of_ones_own_needs_every_value_or_says_otherwise():
    class Own(NaiveBayes):
        name = "own"
        marks_missing = False

    with pytest.raises(SchemaError, match="own needs every continuous value"):
        complete(Own(continuous=1), Rows(np.array([[np.nan]]), np.zeros((1, 0), dtype=int)))


@pytest.mark.parametrize("model", ["zero", "huge", "tiny"])
def test_results_are_finite_for_degenerate_models(family, model):
    rng = np.random.default_rng(0)
    size = {"zero": 0.0, "huge": 1e12, "tiny": 1e-12}[model]
    weights = family.weights(size * rng.normal(size=(CLASSES, family.size)))
    known = complete(family, with_gaps(family, rng, 20))
    assert np.isfinite(known.log_joint(weights)).all()
    assert np.isfinite(known.statistics(weights, rng.normal(size=(20, CLASSES)))[0]).all()


def test_a_wide_covariance_is_that_of_scipy():
    """Twenty columns, a third missing: dense formulas."""
    rng = np.random.default_rng(0)
    family = SeparateGaussian(continuous=20, cardinalities=CARDINALITIES)
    model = ordinary(family, 1, rows=400)
    rows, parameters = with_gaps(family, rng, 25), family.parameters(model)
    joint = complete(family, rows).log_joint(family.weights(model))
    for i, x in enumerate(rows.values):
        o = np.flatnonzero(~np.isnan(x))
        cells = (family.offsets + rows.codes[i])[rows.codes[i] >= 0]
        for c in range(CLASSES):
            told = stats_normal(parameters.mean[c, o], parameters.covariance[c][np.ix_(o, o)]).logpdf(x[o])
            told += parameters.log_prior[c] + parameters.log_cells[c, cells].sum()
            assert joint[i, c] == pytest.approx(told, rel=1e-10)


def test_features_made_block_by_block_are_those_of_all_rows(family, monkeypatch):
    """Where they are not held: 64 rows at a time."""
    rng = np.random.default_rng(2)
    rows, weights = draw_rows(family, rng, 150), rng.normal(size=(CLASSES, family.size))
    credit, features = rng.normal(size=(150, CLASSES)), family.features(rows)
    monkeypatch.setattr(missing, "HELD_ENTRIES", 0)
    monkeypatch.setattr(missing, "BLOCK_ENTRIES", 1)
    blocks = missing.ObservedFeatures(family, rows)
    assert [block.start for block, _ in blocks._blocks()] == [0, 64, 128]
    np.testing.assert_allclose(blocks.logits(weights), features @ weights.T, atol=1e-10)
    np.testing.assert_allclose(blocks.sums(credit), credit.T @ features, atol=1e-10)
