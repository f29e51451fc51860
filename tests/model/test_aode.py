"""Averaged one-dependence estimators: beside loops over rows and formulas, and what their tables promise."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import peerbayes as pb
from peerbayes.errors import NotSupported, SchemaError, StructureError
from peerbayes.learning.robust.invariants import ties_of
from peerbayes.model import core
from peerbayes.model.families import Aode, Rows
from peerbayes.model.passes import Averaged, Plain, labelled, scorer_of
from peerbayes.model.residuals import residual_of
from peerbayes.model.sources import Encoded

seeds = st.integers(0, 2**32 - 1)


def drawn(seed, rows=60, sizes=(3, 2, 4, 2), classes=3, missing=0.1):
    """Codes [n, D] that depend on the class, some missing, and class indices [n]."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, rows)
    y[:classes] = np.arange(classes)
    codes = [np.where(rng.random(rows) < 0.4, y % size, rng.integers(0, size, rows)) for size in sizes]
    codes = np.stack(codes, axis=1)
    codes[rng.random(codes.shape) < missing] = -1
    return codes, y


def rows_of(codes):
    return Rows(np.zeros((len(codes), 0)), codes)


def statistics(family, codes, y, classes=3):
    return core.statistics(family.features(rows_of(codes)), core.one_hot(y, classes))


def formula(codes, y, row, alpha, weighted, classes):
    """log p(x, c) by counting rows, as Webb, Boughton and Wang (2005) and Jiang and Zhang (2006) write it: [C]."""
    columns = range(codes.shape[1])
    values = [sorted(set(codes[:, i]) - {-1}) for i in columns]

    def single(i, value, c):
        own = (y == c) & (codes[:, i] >= 0)
        return (np.sum(own & (codes[:, i] == value)) + alpha) / (own.sum() + alpha * len(values[i]))

    def child(j, i, c):
        own = (y == c) & (codes[:, i] == row[i]) & (codes[:, j] >= 0)
        return (np.sum(own & (codes[:, j] == row[j])) + alpha) / (own.sum() + alpha * len(values[j]))

    share = [np.mean(y == c) for c in range(classes)]

    def information(i):
        total = 0.0
        for value in values[i]:
            everywhere = sum(share[c] * single(i, value, c) for c in range(classes))
            for c in range(classes):
                total += share[c] * single(i, value, c) * math.log(single(i, value, c) / everywhere)
        return max(total, 1e-6)

    present = [i for i in columns if row[i] in values[i]]
    if not present:
        return np.log(share)
    weights = {i: information(i) if weighted else 1.0 for i in present}
    joint = [
        sum(
            weights[i]
            * share[c]
            * single(i, row[i], c)
            * math.prod(child(j, i, c) for j in present if j != i)
            for i in present
        )
        for c in range(classes)
    ]
    return np.log(np.array(joint) / sum(weights.values()))


@given(seed=seeds, alpha=st.sampled_from([0.2, 1.0, 3.0]), weighted=st.booleans())
@settings(max_examples=15)
def test_the_log_joint_is_that_of_the_formula(seed, alpha, weighted):
    """Also of rows without some or all values, and with values that no row has."""
    codes, y = drawn(seed)
    codes[codes[:, 2] == 3, 2] = 0
    family = Aode(cardinalities=(3, 2, 4, 2), weighted=weighted)
    stats = statistics(family, codes, y)
    weights = family.weights(stats + family.estimated_prior(stats, alpha, None))
    tried = np.concatenate([codes[:20], [[-1, -1, -1, -1], [0, 1, 3, -1], [-1, -1, 3, -1], [2, 1, 3, 0]]])
    expected = np.array([formula(codes, y, row, alpha, weighted, 3) for row in tried])
    np.testing.assert_allclose(family.scorer(weights)(rows_of(tried)), expected, rtol=1e-10, atol=1e-10)


def test_plain_averages_of_complete_rows_are_wekas():
    """Laplace's estimate of the tables as in Weka's AODE, whose p(c, x_i) has the rows of its prior in p(c) too."""
    codes, y = drawn(5, rows=90, missing=0.0)
    sizes, classes, n = (3, 2, 4, 2), 3, 90
    frame = pd.DataFrame(codes, columns=list("abcd"))
    model = pb.AODE(alpha=1.0, weighted=False).fit(frame, y)
    joint = np.zeros((n, classes))
    for t, row in enumerate(codes):
        for c in range(classes):
            for i in range(4):
                of_parent = (y == c) & (codes[:, i] == row[i])
                # Weka: (N(c, x_i) + 1) / (n + C·r_i); here p(c) is N(c) / n, and the rest is p(x_i | c)
                value = (of_parent.sum() + 1) / (n + classes * sizes[i])
                value *= np.mean(y == c) / ((np.sum(y == c) + sizes[i]) / (n + classes * sizes[i]))
                for j in range(4):
                    if j != i:
                        both = np.sum(of_parent & (codes[:, j] == row[j]))
                        value *= (both + 1) / (of_parent.sum() + sizes[j])
                joint[t, c] += value / 4
    np.testing.assert_allclose(model.predict_joint_log_proba(frame), np.log(joint), rtol=1e-10, atol=1e-10)


@given(seed=seeds)
@settings(max_examples=10)
def test_products_codes_sparse_features_and_the_kernel_agree(seed):
    codes, y = drawn(seed, missing=0.2)
    codes[:2] = -1
    family = Aode(cardinalities=(3, 2, 4, 3))  # the last value of the last column is nobody's
    stats = statistics(family, codes, y)
    weights = family.weights(stats)
    rows = rows_of(np.concatenate([codes, [[0, 0, 0, 2], [-1, -1, -1, 2]]]))
    joint = family.log_joint(family.features(rows), weights)
    for other in (
        family.scorer(weights)(rows),
        scorer_of(family, weights, fast=True)(rows),
        family.log_joint(family.sparse(rows), weights),
    ):
        np.testing.assert_allclose(other, joint, rtol=1e-10, atol=1e-10)


@given(seed=seeds)
@settings(max_examples=10)
def test_a_category_that_nobody_has_changes_nothing(seed):
    codes, y = drawn(seed)
    rows = rows_of(codes)
    small, large = (Aode(cardinalities=sizes, shrinkage=0.05) for sizes in ((3, 2, 4, 2), (3, 4, 4, 3)))
    joints = []
    for family in (small, large):
        stats = statistics(family, codes, y)
        estimated = stats + family.estimated_prior(stats, "auto", None)
        joints += [family.scorer(family.weights(counts))(rows) for counts in (stats, estimated)]
    np.testing.assert_allclose(joints[2], joints[0], atol=1e-9)
    np.testing.assert_allclose(joints[3], joints[1], atol=1e-9)


def test_a_column_that_tells_more_weighs_more():
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 2000)
    codes = np.stack([np.where(rng.random(2000) < 0.9, y, 1 - y), rng.integers(0, 2, 2000)], axis=1)
    family = Aode(cardinalities=(2, 2))
    shares = np.exp(family.tables(family.weights(statistics(family, codes, y, 2))).log_shares)
    counts = np.histogram2d(codes[:, 0], y, 2)[0] / 2000
    information = np.sum(counts * np.log(counts / counts.sum(0) / counts.sum(1)[:, None]))
    assert shares.sum() == pytest.approx(1)
    assert shares[0] / shares[1] > 50
    noise = np.histogram2d(codes[:, 1], y, 2)[0] / 2000
    little = max(1e-6, np.sum(noise * np.log(noise / noise.sum(0) / noise.sum(1)[:, None])))
    assert shares[0] == pytest.approx(information / (information + little))
    plain = replace(family, weighted=False)
    np.testing.assert_allclose(
        plain.tables(plain.weights(statistics(plain, codes, y, 2))).log_shares, math.log(0.5)
    )


@given(seed=seeds, weights=st.booleans())
@settings(max_examples=8)
def test_the_residual_is_that_of_the_posterior_in_every_way_it_is_computed(seed, weights):
    codes, y = drawn(seed, missing=0.2)
    family = Aode(cardinalities=(3, 2, 4, 2), count_floor=1e-4, shrinkage=0.02)
    of_rows = np.random.default_rng(seed).uniform(0.5, 2, len(y)) if weights else None
    stats = statistics(family, codes, y) + 0.3 * family.uniform(3, 60.0)
    schema = pb.Schema.infer(
        pd.DataFrame({f"x{i}": list(range(size)) * 12 for i, size in enumerate((12, 12, 12, 12))}),
        kinds="discrete",
    )
    source = Encoded(schema, rows_of(codes))
    theta = family.weights(stats)
    one_hot = core.one_hot(y, 3) * (np.ones(len(y)) if of_rows is None else of_rows)[:, None]
    posterior = core.softmax(family.scorer(theta)(rows_of(codes)))
    expected = (one_hot - one_hot.sum(axis=1, keepdims=True) * posterior).T @ family.features(rows_of(codes))
    plain = Plain(family, source, y, 3, of_rows)
    evaluated = [
        data.evaluate(theta)
        for data in (
            plain,
            Averaged(family, source, y, 3, of_rows),
            labelled(family, source, y, 3, of_rows),
        )
    ]
    losses = -np.log(posterior[np.arange(len(y)), y])
    for found in evaluated:
        np.testing.assert_allclose(found.residual, expected, atol=1e-9)
        np.testing.assert_allclose(found.residual.sum(axis=0), 0, atol=1e-9)
        assert found.log_loss == pytest.approx(np.average(losses, weights=of_rows))
    np.testing.assert_allclose(residual_of(plain, family, 10)(stats), expected, atol=1e-9)


def test_pair_cells_add_up_to_the_cells_of_their_columns():
    codes, _ = drawn(3, missing=0.0)
    family = Aode(cardinalities=(3, 2, 4, 2))
    ties = ties_of(family, [True] * 4)
    assert ties.shape[0] == 4 + 6 + 3 * (3 + 2 + 4 + 2)
    np.testing.assert_array_equal(ties @ family.features(rows_of(codes)).T, 0)
    with_gaps = rows_of(np.where(np.arange(4) == 1, -1, codes))
    np.testing.assert_array_equal(
        ties_of(family, [True, False, True, True]) @ family.features(with_gaps).T, 0
    )


# --- the estimator


def table(seed=0, rows=400):
    codes, y = drawn(seed, rows=rows)
    frame = pd.DataFrame(codes, columns=list("abcd")).astype(object).where(codes >= 0, None)
    for name in frame:
        frame[name] = frame[name].map(lambda value: value if value is None else f"v{value}")
    return frame, np.array(["no", "perhaps", "yes"])[y]


def test_contributions_add_up_to_the_log_odds():
    X, y = table()
    model = pb.AODE().fit(X, y)
    explained = model.explain(X.iloc[:5])
    for row in range(5):
        own = explained[explained["row"] == row]
        of, against = (list(model.classes_).index(own[name].iloc[0]) for name in ("of", "against"))
        log_posterior = model.predict_log_proba(X.iloc[row : row + 1])[0]
        assert own["log_odds"].sum() == pytest.approx(log_posterior[of] - log_posterior[against])


def test_a_contribution_is_what_the_networks_say_of_a_column():
    """Σ_i ρ_i log p(x_j | x_i, c) + ρ_j log(w_j / ρ_j), by loops over the tables of pairs."""
    codes, y = drawn(4, missing=0.0)
    family = Aode(cardinalities=(3, 2, 4, 2), shrinkage=0.05)
    stats = statistics(family, codes, y)
    baseline, terms = family.contributions(stats, rows_of(codes[:6]))
    log_weights = family.tables(family.weights(stats)).log_shares
    pairs = {}
    for begin, (i, j) in zip(family.pair_begins, family.pairs, strict=False):
        shape = family.cardinalities[i], family.cardinalities[j]
        first = family.first_pair + begin
        cells = stats[:, first : first + math.prod(shape)].reshape(3, *shape) + 0.05 * len(y) / math.prod(
            shape
        )
        pairs[i, j], pairs[j, i] = cells, cells.swapaxes(1, 2)
    for row, x in enumerate(codes[:6]):
        for c in range(3):
            own = np.empty(4)
            for i in range(4):
                first = 1 + family.offsets[i]
                cells = (
                    stats[c, first : first + family.cardinalities[i]]
                    + 0.05 * len(y) / family.cardinalities[i]
                )
                own[i] = np.log(cells[x[i]] / cells.sum())
            given_parent = np.zeros((4, 4))  # log p(x_j | x_i, c)
            for (i, j), cells in pairs.items():
                given_parent[i, j] = np.log(cells[c, x[i], x[j]] / cells[c, x[i]].sum())
            said = given_parent + np.diag(own)
            joint = log_weights + said.sum(axis=1)
            share = np.exp(joint - np.logaddexp.reduce(joint))
            np.testing.assert_allclose(
                terms[row, c], share @ said + share * (log_weights - np.log(share)), atol=1e-9
            )
    np.testing.assert_allclose(baseline, np.log(np.bincount(y) / len(y)))


def test_parts_that_are_added_are_the_whole(tmp_path):
    X, y = table()
    whole = pb.AODE().fit(X, y)
    parts = (
        pb.AODE()
        .partial_fit(X[:150], y[:150], classes=["no", "perhaps", "yes"])
        .partial_fit(X[150:], y[150:])
    )
    np.testing.assert_allclose(parts.predict_proba(X), whole.predict_proba(X), atol=1e-12)
    summed = pb.AODE().fit(X[:150], y[:150]).statistics_ + pb.AODE().fit(X[150:], y[150:]).statistics_
    np.testing.assert_allclose(
        pb.AODE.from_statistics(summed).predict_proba(X), whole.predict_proba(X), atol=1e-12
    )


@pytest.mark.parametrize(
    "parameters", [{}, {"weighted": False, "alpha": 0.5}, {"calibrate": True, "max_iter": 5}]
)
def test_a_saved_model_is_the_same(tmp_path, parameters):
    X, y = table()
    model = pb.AODE(**parameters).fit(X, y)
    model.save(tmp_path / "model.peerbayes")
    again = pb.load(tmp_path / "model.peerbayes")
    assert type(again) is pb.AODE and again.weighted == model.weighted
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_calibration_lowers_the_log_loss():
    X, y = table(rows=800)
    plain = pb.AODE().fit(X, y)
    calibrated = pb.AODE(calibrate=True, keep="last", validation_fraction=0).fit(X, y)
    codes = np.searchsorted(plain.classes_, y)
    losses = [-np.log(model.predict_proba(X)[np.arange(800), codes]).mean() for model in (plain, calibrated)]
    assert losses[1] < losses[0]
    assert (np.diff(calibrated.history_["log_loss"]) <= 0).all()


def test_priors_move_the_log_odds():
    X, y = table()
    given_priors = {"no": 0.7, "perhaps": 0.2, "yes": 0.1}
    plain, moved = pb.AODE().fit(X, y), pb.AODE(priors=given_priors).fit(X, y)
    shift = np.log(list(given_priors.values())) - np.log(
        np.bincount(np.searchsorted(plain.classes_, y)) / 400
    )
    expected = core.log_softmax(plain.predict_log_proba(X) + shift)
    np.testing.assert_allclose(moved.predict_log_proba(X), expected, atol=1e-10)


def test_weights_of_rows_are_repetitions():
    X, y = table(rows=60)
    repeats = np.random.default_rng(0).integers(1, 4, 60)
    weighted = pb.AODE().fit(X, y, sample_weight=repeats)
    repeated = pb.AODE().fit(X.loc[np.repeat(X.index, repeats)], np.repeat(y, repeats))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-12)


def test_drawn_rows_look_like_the_rows():
    X, y = table(rows=3000)
    model = pb.AODE().fit(X, y)
    drawn_rows, labels = model.sample(20_000, random_state=1)
    for name in X:
        of_rows = X.loc[y == "yes", name].value_counts(normalize=True)
        of_drawn = drawn_rows.loc[labels == "yes", name].value_counts(normalize=True)
        np.testing.assert_allclose(of_drawn[of_rows.index], of_rows, atol=0.05)
    shown = model.describe()
    assert set(shown["feature"]) >= set("abcd")


def test_what_it_cannot_do_is_refused_in_one_sentence():
    X, y = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 2
    with pytest.raises(SchemaError, match=r"'x0' is continuous, which aode does not take; .*'binned'"):
        pb.AODE(kinds="auto").fit(X, y)
    with pytest.raises(SchemaError, match="3 columns are continuous; expected discrete ones: kinds='binned'"):
        Aode(continuous=3)
    assert pb.AODE(kinds="binned").fit(X, y).schema_.cardinalities == (16, 16, 16)
    frame, labels = table(rows=40)
    labels[:3] = "?"
    with pytest.raises(NotSupported, match="aode learns from labelled rows alone; leave out the 3 others"):
        pb.AODE(unlabelled="?").fit(frame, labels)
    with pytest.raises(ValueError, match="weighted is 'yes'; expected true or false"):
        pb.AODE(weighted="yes").fit(frame, labels)
    many = np.random.default_rng(1).permutation(9000).reshape(-1, 3)
    with pytest.raises(StructureError, match="Leave out columns with many categories"):
        pb.AODE().fit(many, np.arange(3000) % 3)
