"""Missing values and labels in every family: expectation-maximisation, estimators, simulated networks."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from sklearn.datasets import load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

import peerbayes as pb
from peerbayes import network as topologies
from peerbayes.data.schema import Schema
from peerbayes.errors import SchemaError, SingularDataWarning, StructureError
from peerbayes.estimators.classifiers import KDB, TAN, BayesNetClassifier
from peerbayes.learning import planning
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.metrics import Sample
from peerbayes.learning.strategies import CRC, Exact
from peerbayes.model import core
from peerbayes.model.calibration import maximise, maximise_likelihood
from peerbayes.model.families import NaiveBayes, Rows, SharedGaussian
from peerbayes.model.missing import alone, apart, complete
from peerbayes.model.passes import IncompleteData, labelled
from peerbayes.model.sources import Encoded
from peerbayes.model.structure import Pairs, tan
from shared.families import COMPLETING, FAMILIES, draw_rows, with_gaps

CLASSES = 3
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module", params=COMPLETING.values(), ids=COMPLETING.keys())
def family(request):
    return request.param


def schema_of(family):
    """Columns that the rows of a family may have come from."""
    rows = max(family.cardinalities, default=2)
    frame = {f"c{j}": np.arange(rows, dtype=float) for j in range(family.continuous)}
    frame |= {f"d{k}": np.arange(rows) % size for k, size in enumerate(family.cardinalities)}
    kinds = {name: "continuous" if name[0] == "c" else "discrete" for name in frame}
    return Schema.infer(pd.DataFrame(frame), kinds=kinds)


def gapped(family, seed, rows=60, loose=0.0, weighted=False):
    rng = np.random.default_rng(seed)
    some = with_gaps(family, rng, rows, share=0.25)
    if isinstance(family, NaiveBayes) and not family.missing:
        some = draw_rows(family, rng, rows)
    labels = rng.integers(0, CLASSES, rows)
    labels[:CLASSES] = range(CLASSES)
    labels[CLASSES:][rng.random(rows - CLASSES) < loose] = -1
    weights = rng.uniform(0.1, 3.0, rows) if weighted else None
    return labelled(family, Encoded(schema_of(family), some), labels, CLASSES, weights, missing=True)


@given(seed=seeds, loose=st.sampled_from([0.0, 0.4]), smooth=st.booleans(), weighted=st.booleans())
@settings(max_examples=8)
def test_the_likelihood_of_what_is_observed_never_decreases(family, seed, loose, smooth, weighted):
    """With a prior: the posterior density. Floors bound the variances; shrunk models are not the most likely ones."""
    if getattr(family, "shrinkage", 0.0):
        return
    data = gapped(family, seed, loose=loose, weighted=weighted)
    if not isinstance(data, IncompleteData):
        return
    prior = family.smoothing(CLASSES, 1.0) if smooth else 0.0
    found = maximise(family, data, prior, iterations=12, tol=0.0)
    assert np.diff(found.objective).min(initial=0.0) > -1e-7
    assert np.isfinite(found.stats).all()
    assert found.stats[:, 0].sum() == pytest.approx(data.mass)


@given(seed=seeds)
@settings(max_examples=5)
def test_the_likelihood_is_that_of_the_rows(family, seed):
    data = gapped(family, seed, loose=0.3)
    stats = family.uniform(CLASSES, 60.0) + core.statistics(
        family.features(draw_rows(family, np.random.default_rng(seed), 40)),
        np.eye(CLASSES)[np.arange(40) % CLASSES],
    )
    weights = family.weights(stats)
    _, told = data.expected(weights, data.complete_statistics())
    by_row = logsumexp(data.unlabelled.log_joint(weights), axis=1).sum()
    by_row += np.sum(data.labels * data.incomplete.log_joint(weights))
    if data.complete_data is not None:
        by_row += np.sum(data.complete_statistics() * weights)
    assert told == pytest.approx(by_row, rel=1e-9)


@given(seed=seeds)
@settings(max_examples=5)
def test_rows_without_gaps_are_learned_from_as_ever(family, seed):
    """Completion of rows to which nothing is missing is a pass like any other."""
    rng = np.random.default_rng(seed)
    rows, labels = draw_rows(family, rng, 40), rng.integers(0, CLASSES, 40)
    plain = labelled(family, Encoded(schema_of(family), rows), labels, CLASSES, missing=True)
    assert not isinstance(plain, IncompleteData)
    stats = family.uniform(CLASSES, 40.0) + plain.statistics()
    features, one_hot = family.features(rows), core.one_hot(labels, CLASSES)
    residual = core.residual(features, one_hot, family.weights(stats))
    np.testing.assert_allclose(plain.evaluate(family.weights(stats)).residual, residual, atol=1e-9)


# --- one row after the other -------------------------------------------------------------------------------

ROW_BY_ROW = {name: FAMILIES[name] for name in ("qda", "lda, calibrated", "bayes-net")}


def row_by_row(family, rows, labels, of_rows, weights):
    """Residual, losses (soft, 0-1, log), expected statistics and log likelihood at W, added up over single rows."""
    residual, expected = np.zeros((2, CLASSES, family.size))
    soft = wrong = loss = log_likelihood = 0.0
    for i, (label, weight) in enumerate(zip(labels, of_rows, strict=True)):
        one = complete(family, Rows(rows.values[i : i + 1], rows.codes[i : i + 1]))
        joint = one.log_joint(weights)[0]
        posterior = np.exp(joint - logsumexp(joint))
        features = np.stack([one.statistics(weights, np.eye(CLASSES)[[c]])[0][c] for c in range(CLASSES)])
        if label < 0:
            expected += weight * posterior[:, None] * features
            log_likelihood += weight * logsumexp(joint)
            continue
        truth = np.eye(CLASSES)[label]
        expected += weight * truth[:, None] * features
        residual += weight * (truth - posterior)[:, None] * features
        log_likelihood += weight * joint[label]
        soft += weight * (1 - posterior[label])
        wrong += weight * (joint.argmax() != label)
        loss += weight * (logsumexp(joint) - joint[label])
    mass = of_rows[labels >= 0].sum()
    return residual, (soft / mass, wrong / mass, loss / mass), expected, log_likelihood


def holed_rows(family, seed, rows=40):
    """Rows with gaps and without, some of them without a label, each with a weight of its own."""
    rng = np.random.default_rng(seed)
    holed, whole = with_gaps(family, rng, rows, share=0.3), draw_rows(family, rng, rows)
    kept = rng.random(rows) < 0.5
    both = Rows(
        np.where(kept[:, None], whole.values, holed.values), np.where(kept[:, None], whole.codes, holed.codes)
    )
    labels = rng.integers(0, CLASSES, rows)
    labels[rng.random(rows) < 0.3] = -1
    labels[:CLASSES] = range(CLASSES)
    return both, labels, rng.uniform(0.1, 3.0, rows)


@pytest.mark.parametrize("family", ROW_BY_ROW.values(), ids=ROW_BY_ROW.keys())
@given(seed=seeds)
@settings(max_examples=5)
def test_all_rows_together_are_what_single_rows_add_up_to(family, seed):
    rows, labels, of_rows = holed_rows(family, seed)
    data = labelled(family, Encoded(schema_of(family), rows), labels, CLASSES, of_rows, missing=True)
    model = family.uniform(CLASSES, 30.0) + np.abs(
        np.random.default_rng(seed).normal(size=(CLASSES, family.size))
    )
    weights = family.weights(model)
    residual, losses, expected, log_likelihood = row_by_row(family, rows, labels, of_rows, weights)
    evaluated = data.evaluate(weights)
    np.testing.assert_allclose(evaluated.residual, residual, rtol=1e-8, atol=1e-8 * np.abs(expected).max())
    assert evaluated[1:] == pytest.approx(losses)
    stats, likelihood = data.expected(weights, data.complete_statistics())
    np.testing.assert_allclose(stats, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())
    assert likelihood == pytest.approx(log_likelihood, rel=1e-9)
    assert data.mass == pytest.approx(of_rows.sum())
    assert data.labelled_mass == pytest.approx(of_rows[labels >= 0].sum())


@pytest.mark.parametrize("family", ROW_BY_ROW.values(), ids=ROW_BY_ROW.keys())
def test_a_step_is_taken_at_the_model_of_statistics_and_prior(family):
    """And told before it is taken: per row, the likelihood and what the prior says of the model."""
    rows, labels, of_rows = holed_rows(family, 7)
    data = labelled(family, Encoded(schema_of(family), rows), labels, CLASSES, of_rows, missing=True)
    prior = family.uniform(CLASSES, 9.0)
    stats, objective = alone(family, apart(family, some_rows(rows, labels >= 0), credit(labels, of_rows))), []
    for _ in range(4):
        weights = family.weights(stats + prior)
        *_, stats, log_likelihood = row_by_row(family, rows, labels, of_rows, weights)
        objective.append((log_likelihood + np.sum(prior * weights)) / of_rows.sum())
    maximised = maximise(family, data, prior, 4, -np.inf)
    np.testing.assert_allclose(maximised.objective, objective, rtol=1e-8)
    np.testing.assert_allclose(maximised.stats, stats, rtol=1e-7, atol=1e-7 * np.abs(stats).max())
    assert not maximised.converged
    early = maximise(family, data, prior, 100, np.inf)
    assert early.converged and early.objective.size == 2
    gains = np.diff(maximise(family, data, prior, 30, -np.inf).objective)
    enough = maximise(family, data, prior, 30, gains[3] * 1.001)
    assert enough.converged and enough.objective.size == 2 + int(np.argmax(gains < gains[3] * 1.001))


@pytest.mark.parametrize("family", ROW_BY_ROW.values(), ids=ROW_BY_ROW.keys())
def test_steps_start_from_the_labelled_rows_where_these_are_whole(family):
    """Gaps of rows without a label do not count."""
    rows, labels, of_rows = holed_rows(family, 9, rows=60)
    whole = draw_rows(family, np.random.default_rng(9), 60)
    there = labels >= 0
    rows = Rows(
        np.where(there[:, None], whole.values, rows.values), np.where(there[:, None], whole.codes, rows.codes)
    )
    assert family.incomplete(rows).any() and not family.incomplete(rows)[there].any()
    data = labelled(family, Encoded(schema_of(family), rows), labels, CLASSES, of_rows, missing=True)
    start = core.statistics(family.features(some_rows(rows, there)), credit(labels, of_rows))
    *_, log_likelihood = row_by_row(family, rows, labels, of_rows, family.weights(start))
    assert maximise(family, data, 0.0, 1, 0.0).objective[0] == pytest.approx(
        log_likelihood / of_rows.sum(), rel=1e-8
    )


def some_rows(rows, which):
    return Rows(rows.values[which], rows.codes[which])


def credit(labels, of_rows):
    """One-hot labels times weights, of the rows that have a label."""
    there = labels >= 0
    return np.eye(CLASSES)[labels[there]] * of_rows[there, None]


def test_steps_keep_the_floor_of_calibration_unless_one_is_given():
    family = replace(FAMILIES["qda"], variance_floor=1e-9)
    rows, labels, of_rows = holed_rows(family, 3, rows=25)
    rows.values[labels == 1, 0] = 0.5  # a variance of nothing in one class
    data = labelled(family, Encoded(schema_of(family), rows), labels, CLASSES, of_rows, missing=True)
    prior = np.zeros((CLASSES, family.size))
    for given_floor, floor in ((None, 0.01), (1e-9, 1e-9)):
        maximised = maximise_likelihood(data, prior, given_floor, 6, -np.inf)
        expected = maximise(replace(family, variance_floor=floor), data, prior, 6, -np.inf)
        np.testing.assert_array_equal(maximised.objective, expected.objective)
    assert not np.array_equal(
        maximise_likelihood(data, prior, None, 6, -np.inf).objective, expected.objective
    )


def test_peers_take_ten_steps_together_to_a_start():
    family = FAMILIES["qda"]
    rows, labels, _ = holed_rows(family, 5, rows=60)
    labels = np.where(labels < 0, 1, labels)
    held = LocalRows(family, rows, labels, np.ones(60), np.array([60]), CLASSES)
    data = labelled(family, Encoded(schema_of(family), rows), labels, CLASSES, missing=True)
    completed = planning.summed_start(
        lambda name, values: values, planning.start_sums("ml", True, held, 1.0, True, held.statistics)
    )
    np.testing.assert_allclose(
        completed[0], maximise(family, data, 0.0, 10, -np.inf).stats, rtol=1e-7, atol=1e-7
    )


@pytest.mark.parametrize("family", ROW_BY_ROW.values(), ids=ROW_BY_ROW.keys())
def test_columns_without_a_value_in_a_class_stand_in_for_a_standard_normal(family):
    """By a millionth of the class's rows; a class without rows has none of them."""
    d = family.continuous
    naive = NaiveBayes(continuous=d, cardinalities=family.cardinalities, missing=True)
    sums = naive.uniform(CLASSES, 300.0)
    sums[0, [1, 1 + d, 1 + 2 * d]] = 0.0  # nothing is there of the first column
    sums[1, [1, 1 + d, 1 + 2 * d]] = 1.0, 3.0, 10.0  # one value, and what it stands for
    sums[2] = 0.0
    stats = alone(family, sums)
    assert np.isfinite(stats).all() and not stats[2].any()
    places = {"qda": 1, "lda": 1}.get(family.name) or 1 + list(family.singles).index(0)
    square = family.dense_size and int(np.flatnonzero(family.uniform_moments()[1:])[0]) + 1
    assert stats[0, 0] == 100.0 and stats[0, places] == 0.0 and stats[0, square] == pytest.approx(100.0)
    share = 1e-6 * 100  # rows of mean 0 and variance 1 beside the one value
    assert stats[1, places] == pytest.approx(100 * 3 / (1 + share), rel=1e-12)
    assert stats[1, square] == pytest.approx(100 * (10 + share) / (1 + share), rel=1e-12)


# --- networks ----------------------------------------------------------------------------------------------

PEERS, ROWS, LR = 6, 12, 0.05


def network(family, seed=0):
    rng = np.random.default_rng(seed)
    rows, labels = with_gaps(family, rng, PEERS * ROWS, share=0.2), rng.integers(0, CLASSES, PEERS * ROWS)
    if isinstance(family, NaiveBayes) and not family.missing:
        rows = draw_rows(family, rng, PEERS * ROWS)
    ones = np.ones(labels.size)
    peers = LocalRows(family, rows, labels, ones, np.full(PEERS, ROWS), CLASSES)
    pooled = LocalRows(family, rows, labels, ones, np.array([labels.size]), CLASSES)
    return peers, pooled


def mixed(learner, links, state):
    message = learner.message(state)
    weights = getattr(topologies, learner.mixing)(links)
    return (weights @ message.reshape(len(message), -1)).reshape(message.shape)


def test_theorem_one_with_missing_values(family):
    """On the complete graph the mixed statistics are those of RC on the pooled rows, one round before."""
    peers, pooled = network(family)
    links = topologies.adjacency("complete", PEERS, np.random.default_rng(0))
    learner, residual, central = CRC(with_self=True), peers.residual(1), pooled.residual(1)
    state = learner.begin(np.tile(family.uniform(CLASSES, ROWS / LR), (PEERS, 1, 1)), residual)
    stats = family.uniform(CLASSES, PEERS * ROWS)[None]
    for _ in range(20):
        heard = mixed(learner, links, state)
        expected = family.weights(stats[0])
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(
            family.weights(heard), np.broadcast_to(expected, heard.shape), atol=1e-9 * scale, rtol=1e-9
        )
        state = learner.step(state, heard, residual)
        stats = stats + LR * central(stats)


@pytest.mark.parametrize("learner", [CRC(), Exact()], ids=["crc", "exact"])
def test_all_peers_at_once_equal_peer_by_peer(family, learner):
    peers, _ = network(family)
    links = topologies.adjacency("ring", PEERS, np.random.default_rng(2))
    own = []
    for v in range(PEERS):
        mine = slice(v * ROWS, (v + 1) * ROWS)
        rows = Rows(peers.rows.values[mine], peers.rows.codes[mine])
        one = LocalRows(family, rows, peers.labels[mine], np.ones(ROWS), np.array([ROWS]), CLASSES)
        own.append(one.residual(1))
    start = np.tile(family.uniform(CLASSES, ROWS / LR), (PEERS, 1, 1))
    residual = peers.residual(1)
    together, apart = (
        learner.begin(start, residual),
        [learner.begin(start[[v]], own[v]) for v in range(PEERS)],
    )
    for _ in range(4):
        heard = mixed(learner, links, together)
        messages = np.concatenate([learner.message(state) for state in apart])
        weights = getattr(topologies, learner.mixing)(links)
        alone = (weights @ messages.reshape(PEERS, -1)).reshape(messages.shape)
        together = learner.step(together, heard, residual)
        apart = [learner.step(apart[v], alone[[v]], own[v]) for v in range(PEERS)]
    expected = learner.read(together)
    for v in range(PEERS):
        np.testing.assert_allclose(
            learner.read(apart[v])[0], expected[v], rtol=1e-8, atol=1e-8 * np.abs(expected).max()
        )


def test_models_are_judged_on_incomplete_rows(family):
    peers, _ = network(family)
    rng = np.random.default_rng(5)
    stats = np.stack([
        family.uniform(CLASSES, 50.0) + 0.1 * rng.normal(size=(CLASSES, family.size)) for _ in range(4)
    ])  # fmt: skip
    weights = np.asarray(family.weights(stats))
    sample = Sample(family, peers.rows, peers.labels)
    wrong, soft = sample.errors(weights, soft=True)
    for model in range(4):
        joint = sample.logits(weights[model])
        posterior = core.softmax(joint)[np.arange(peers.labels.size), peers.labels]
        assert wrong[model] == pytest.approx(np.mean(joint.argmax(axis=1) != peers.labels))
        assert soft[model] == pytest.approx(np.mean(1.0 - posterior))


def test_the_variance_of_first_residuals_is_that_of_complete_rows_where_nothing_is_missing(family):
    rng = np.random.default_rng(0)
    rows, labels = draw_rows(family, rng, PEERS * ROWS), rng.integers(0, CLASSES, PEERS * ROWS)
    peers = LocalRows(family, rows, labels, np.ones(labels.size), np.full(PEERS, ROWS), CLASSES)
    start = np.tile(family.uniform(CLASSES, ROWS / LR), (PEERS, 1, 1))
    change, within = peers.first(start)
    again, inside = peers._first_completed(start)
    np.testing.assert_allclose(again, change, atol=1e-9)
    np.testing.assert_allclose(inside, within, rtol=1e-9)


@pytest.mark.parametrize("start", ["uniform", "marginal", "ml"])
@pytest.mark.parametrize("name", ["qda", "lda", "tan", "kdb"])
def test_simulated_peers_learn_from_rows_with_gaps(name, start):
    X, y = load_wine(return_X_y=True)
    holed = np.where(np.random.default_rng(0).random(X[:, :6].shape) < 0.2, np.nan, X[:, :6])
    run = pb.simulate(
        holed,
        y,
        family=name,
        peers=5,
        rows_per_peer=25,
        topology="complete",
        start=start,
        rounds=48,
        evaluate_every=0,
    )
    summary = run.summary()
    assert abs(summary["test_gap_rc"]) < 0.03
    assert summary["test_error"] < 0.25
    assert run.classifier(3).score(holed, y) > 0.7


def test_completion_is_refused_where_it_is_not_done():
    X, y = load_wine(return_X_y=True)
    X = np.where(np.random.default_rng(0).random(X.shape) < 0.1, np.nan, X)
    settings = {"family": "qda", "peers": 4, "rows_per_peer": 20, "rounds": 2}
    with pytest.raises(ValueError, match="completed in NumPy and float64 only"):
        pb.simulate(X, y, dtype="float32", **settings)
    with pytest.raises(ValueError, match="dsgd learns no generative model"):
        pb.simulate(X, y, strategy="dsgd", **settings)


# --- estimators --------------------------------------------------------------------------------------------

ESTIMATORS = (pb.QDA, pb.LDA, TAN, KDB, BayesNetClassifier)


def holed_wine(share=0.2, columns=6, seed=0):
    X, y = load_wine(return_X_y=True)
    X = X[:, :columns]
    return np.where(np.random.default_rng(seed).random(X.shape) < share, np.nan, X), y


def mixed_frame(seed=0):
    """Continuous and discrete columns, values missing in both."""
    X, y = load_iris(return_X_y=True)
    frame = pd.DataFrame(X, columns=list("abcd"))
    frame["e"] = pd.cut(frame["a"], 3, labels=["low", "mid", "top"]).astype(object)
    frame["f"] = np.where(frame["d"] > 1, "yes", "no")
    holes = np.random.default_rng(seed).random(frame.shape) < 0.2
    return frame.mask(holes), y


@pytest.mark.parametrize("calibrate", [False, True])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_estimators_take_missing_values_everywhere(estimator, calibrate, tmp_path):
    frame, y = mixed_frame()
    model = estimator(calibrate=calibrate).fit(frame, y)
    assert model.score(frame, y) > 0.85
    posterior = model.predict_proba(frame)
    np.testing.assert_allclose(posterior.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(frame)), posterior, atol=1e-9)
    joint = model.predict_joint_log_proba(frame)
    unscaled = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
    if calibrate:  # the rest is the scaling, which was fitted on held-out rows
        np.testing.assert_allclose(np.exp(model.scaling_.log_probabilities(joint)), posterior, atol=1e-9)
        model.set_params(temperature=False)
    np.testing.assert_allclose(unscaled, model.predict_proba(frame), atol=1e-9)
    model.set_params(temperature="auto")
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(pb.load(tmp_path / "model").predict_proba(frame), posterior)
    drawn, labels = model.sample(20, random_state=0)
    assert not drawn.isna().any(axis=None) and len(labels) == 20
    explained = model.explain(frame.iloc[:5], of=0, against=2)
    odds = explained.groupby("row")["log_odds"].sum().to_numpy()
    of_model = model.predict_log_proba(frame.iloc[:5])
    np.testing.assert_allclose(odds, of_model[:, 0] - of_model[:, 2], atol=1e-8)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_likelihood_is_told(estimator):
    X, y = holed_wine()
    model = estimator(alpha=0, shrinkage=None, em_tol=1e-10, em_iter=500, variance_floor=1e-3).fit(X, y)
    assert (np.diff(model.log_likelihood_) > -1e-9).all()
    assert model.n_iter_ == model.log_likelihood_.size
    joint = model.predict_joint_log_proba(X)[np.arange(len(y)), y]
    assert joint.mean() == pytest.approx(model.log_likelihood_[-1], abs=1e-6)
    assert not hasattr(model.fit(*load_iris(return_X_y=True)), "log_likelihood_")


def test_steps_that_do_not_suffice_are_told():
    X, y = holed_wine()
    with pytest.warns(ConvergenceWarning, match="after em_iter=2 steps"):
        pb.QDA(em_iter=2).fit(X, y)


@pytest.mark.parametrize("columns", [4, 2])
@pytest.mark.parametrize("estimator", [pb.QDA, pb.LDA])
def test_a_missing_value_leaves_the_marginal_density(estimator, columns):
    """Exactly what a model without that column would say."""
    X, y = load_iris(return_X_y=True)
    X = X[:, :columns]
    model = estimator(clip=None, shrinkage=None).fit(X, y)
    for column in range(columns):
        rows = X[::10].copy()
        rows[:, column] = np.nan
        others = np.delete(np.arange(columns), column)
        smaller = estimator(clip=None, shrinkage=None).fit(X[:, others], y)
        np.testing.assert_allclose(
            model.predict_joint_log_proba(rows), smaller.predict_joint_log_proba(rows[:, others]), atol=1e-9
        )


def test_columns_that_go_with_nothing_are_the_available_case():
    """Nothing tells a missing value but the class, so that maximum likelihood uses what is there: naive Bayes."""
    frame, y = mixed_frame()
    model = BayesNetClassifier(clip=None, alpha=1.0, shrinkage=None, em_tol=1e-12, em_iter=1000).fit(frame, y)
    exact = pb.MixedNB(clip=None, alpha=1.0, shrinkage=None).fit(frame, y)
    np.testing.assert_allclose(
        model.predict_joint_log_proba(frame), exact.predict_joint_log_proba(frame), atol=1e-4
    )


def test_structures_are_learned_from_the_pairs_that_are_there():
    frame, y = mixed_frame()
    model = TAN(penalty="none").fit(frame, y)
    rows = model.schema_.encode(frame)
    pairs = Pairs.of(rows, y, 3, model.schema_.cardinalities)
    assert model.family_.parents == tan(pairs)
    both = ~np.isnan(rows.values[:, 0]) & ~np.isnan(rows.values[:, 2])
    told = 0.0
    for c in range(3):
        mine = both & (y == c)
        rho = np.corrcoef(rows.values[mine][:, [0, 2]].T)[0, 1]
        told += np.mean(y == c) * -0.5 * np.log(1 - rho**2)
    assert pairs.information[0, 2] == pytest.approx(told, rel=1e-6)
    table = [
        [np.sum((y == 1) & (rows.codes[:, 0] == a) & (rows.codes[:, 1] == b)) for b in range(2)]
        for a in range(3)
    ]
    np.testing.assert_array_equal(pairs.cells[1, :3, 3:], table)


GAPS = {
    "a constant column": lambda X, y: X.__setitem__(
        (slice(None), 0), np.where(np.isnan(X[:, 0]), np.nan, 7.0)
    ),
    "a class with one row": lambda X, y: y.__setitem__(slice(1, None), np.maximum(y[1:], 1)),
    "a column missing in a class": lambda X, y: X.__setitem__((y == 2, 1), np.nan),
    "one value in a class": lambda X, y: X.__setitem__((np.flatnonzero(y == 2)[1:], 1), np.nan),
}


@pytest.mark.parametrize("calibrate", [False, True])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("change", GAPS.values(), ids=GAPS.keys())
@pytest.mark.filterwarnings("ignore:constant:peerbayes.errors.DataWarning")  # which one of them is
def test_degenerate_columns_stay_finite(change, estimator, calibrate):
    X, y = holed_wine(columns=4)
    change(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", SingularDataWarning)
        model = estimator(calibrate=calibrate).fit(X, y)
    assert np.isfinite(np.asarray(model.statistics_)).all()
    assert np.isfinite(model.predict_joint_log_proba(X)).all()


@pytest.mark.filterwarnings("ignore:empty:peerbayes.errors.DataWarning")  # which is meant
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_column_without_any_value_is_refused(estimator):
    X, y = holed_wine()
    X[:, 3] = np.nan
    with pytest.raises(SchemaError, match="column 'x3' has no value in any training row"):
        estimator().fit(X, y)


def test_rows_to_add_must_be_complete():
    frame, y = mixed_frame()
    with pytest.raises(SchemaError, match="completes them in repeated passes over all rows"):
        BayesNetClassifier({"e": "f"}).partial_fit(frame, y, classes=[0, 1, 2])
    frame = frame.dropna(subset=list("abcd"))
    labels = y[frame.index]
    pb.QDA().partial_fit(frame, labels, classes=[0, 1, 2])  # its discrete columns go with nothing
    with pytest.raises(SchemaError, match="column 'e' has missing values"):
        BayesNetClassifier({"e": "f"}).partial_fit(frame, labels, classes=[0, 1, 2])


def test_too_many_joint_values_are_refused_by_row_and_columns():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.integers(0, 30, (200, 5)).astype(str), columns=list("abcde"))
    structure = {"b": ["a"], "c": ["a", "b"], "d": ["b", "c"], "e": ["c", "d"]}
    y = rng.integers(0, 2, 200)
    frame.iloc[17] = ["1", None, None, None, None]
    with pytest.raises(StructureError, match=r"row 17 has no value in b, c, d, e, .* 810,000 joint values"):
        BayesNetClassifier(structure, kinds="discrete").fit(frame, y)
    model = BayesNetClassifier(structure, kinds="discrete").fit(frame.drop(17), np.delete(y, 17))
    with pytest.raises(StructureError, match="row 17 has no value in b, c, d, e"):
        model.predict(frame)


# --- rows without a label ----------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", (pb.MixedNB, *ESTIMATORS))
@pytest.mark.parametrize("sentinel", [-1, np.nan, "?"])
def test_rows_without_a_label_count_by_their_probabilities(estimator, sentinel, tmp_path):
    X, y = holed_wine()
    labels = np.array(list("abc"))[y].astype(object) if sentinel == "?" else y.astype(object)
    labels[np.random.default_rng(1).random(y.size) < 0.6] = None if sentinel is np.nan else sentinel
    model = estimator(unlabelled=sentinel, em_iter=300).fit(X, labels)
    assert list(model.classes_) == (list("abc") if sentinel == "?" else [0, 1, 2])
    assert (np.diff(model.log_likelihood_) > -1e-9).all()
    assert float(model.statistics_.rows) == pytest.approx(len(y))
    assert np.mean(model.predict(X) == (np.array(list("abc"))[y] if sentinel == "?" else y)) > 0.7
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(pb.load(tmp_path / "model").predict_proba(X), model.predict_proba(X))


def test_a_label_is_a_class_unless_it_is_said_to_stand_for_none():
    X, y = holed_wine()
    labels = np.where(np.arange(y.size) % 2, y, -1)
    assert -1 in pb.QDA().fit(X, labels).classes_
    with pytest.raises(ValueError, match="missing labels"):
        pb.QDA().fit(X, np.where(labels < 0, np.nan, labels))
    with pytest.raises(ValueError, match="calibration learns from labels"):
        pb.QDA(calibrate=True, unlabelled=-1).fit(X, labels)
    with pytest.raises(ValueError, match="need fit"):
        pb.MixedNB(unlabelled=-1).partial_fit(X, labels, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="every label is -1"):
        pb.MixedNB(unlabelled=-1).fit(X, np.full(y.size, -1))


def test_steps_without_labels_are_those_of_a_gaussian_mixture():
    """From the same model, a step with next to no labels is scikit-learn's step."""
    X, _ = load_iris(return_X_y=True)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    y = np.append(np.full(150, -1), [0, 1, 2])
    family = SharedGaussian(continuous=4, variance_floor=1e-3)
    rows = Rows(np.concatenate([Z, Z[[0, 60, 120]]]), np.zeros((153, 0), dtype=int))
    data = labelled(family, Encoded(schema_of(family), rows), y, 3, np.where(y < 0, 1.0, 1e-9), missing=False)
    stats = core.statistics(family.features(rows)[:150], core.one_hot(np.repeat(range(3), 50), 3))
    parameters = family.parameters(stats)
    theirs = GaussianMixture(
        3, covariance_type="tied", reg_covar=0, max_iter=1, tol=0, weights_init=np.exp(parameters.log_prior),
        means_init=parameters.mean, precisions_init=np.linalg.inv(parameters.covariance[0]),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        theirs.fit(Z)
    after, _ = data.expected(family.weights(stats), data.complete_statistics())
    got = family.parameters(after)
    np.testing.assert_allclose(got.mean, theirs.means_, atol=1e-6)
    np.testing.assert_allclose(got.covariance[0], theirs.covariances_, atol=1e-6)
    np.testing.assert_allclose(np.exp(got.log_prior), theirs.weights_, atol=1e-6)


@given(data=st.data())
@settings(max_examples=10)
def test_weights_of_rows_are_repetitions(data):
    X, y = holed_wine()
    weights = np.array(data.draw(st.lists(st.integers(0, 3), min_size=y.size, max_size=y.size)))
    weights[:3] = weights[60:63] = weights[130:133] = 1
    settings = {"em_iter": 5, "em_tol": 0.0, "schema": Schema.infer(X, y)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", SingularDataWarning)
        weighted = pb.QDA(**settings).fit(X, y, sample_weight=weights)
        repeated = pb.QDA(**settings).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_allclose(
        np.asarray(weighted.statistics_), np.asarray(repeated.statistics_), rtol=1e-8, atol=1e-8
    )
