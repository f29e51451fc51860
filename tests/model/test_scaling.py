"""Scaling: probabilities from logits by a temperature, biases and noise, fitted by sums over rows."""

import json
import math

import numpy as np
import pytest
from scipy.optimize import approx_fprime, minimize
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

from peerbayes.model import core
from peerbayes.model.scaling import PRIOR, Fitting, Prior, Scaling, advance, begin, fit, size, sums

# Temperature alone, without a prior: noise and biases are held at 0.
TEMPERATURE = Prior(kappa=1e-9, alpha=1e9, noise=1e-9, lambda_=1e9)


def rows(classes: int, n: int = 400, scaling: Scaling | None = None, seed: int = 0, spread: float = 2.0):
    """Return logits [n, C], and labels [n] drawn from their probabilities under a scaling."""
    rng = np.random.default_rng([seed, classes])
    logits = spread * rng.normal(size=(n, classes)) + rng.normal(size=(n, 1))
    posterior = (scaling or Scaling.identity(classes)).probabilities(logits)
    return logits, (posterior.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)


def log_loss(scaling: Scaling, logits: np.ndarray, labels: np.ndarray) -> float:
    return float(-scaling.log_probabilities(logits)[np.arange(len(labels)), labels].sum())


def objective(vector: np.ndarray, logits: np.ndarray, labels: np.ndarray, prior: Prior = PRIOR) -> float:
    """J, written a second time."""
    s, noise, bias = vector[0], vector[1], vector[2:]
    q = core.softmax(s * logits + bias)
    p = (1 - noise) * q + noise / logits.shape[1]
    loss = -np.log(p[np.arange(len(labels)), labels]).sum()
    ratio = noise / prior.noise
    loss += prior.kappa * (s - 1 - np.log(s)) + prior.alpha * (ratio - 1 - np.log(ratio))
    return float(loss + prior.lambda_ / 2 * np.sum(bias**2))


def vector(scaling: Scaling) -> np.ndarray:
    return np.array([1 / scaling.temperature, scaling.noise, *scaling.bias])


SOMEWHERE = Scaling(1.7, (0.3, -0.1, -0.2), 0.05)


# --- the map


def test_probabilities_are_the_equation():
    logits, _ = rows(3)
    expected = 0.95 * core.softmax(logits / 1.7 + np.array([0.3, -0.1, -0.2])) + 0.05 / 3
    np.testing.assert_allclose(SOMEWHERE.probabilities(logits), expected, rtol=1e-14)
    np.testing.assert_allclose(np.exp(SOMEWHERE.log_probabilities(logits)), expected, rtol=1e-12)
    np.testing.assert_array_equal(SOMEWHERE.scaled(logits).argmax(axis=1), expected.argmax(axis=1))


def test_the_identity_changes_no_bit():
    logits, _ = rows(4)
    identity = Scaling.identity(4)
    assert identity.is_identity and identity.scaled(logits) is logits
    np.testing.assert_array_equal(identity.probabilities(logits), core.softmax(logits))


@pytest.mark.parametrize(
    "changed",
    [{"temperature": 2.0}, {"noise": 0.1}, {"bias": (0.1, -0.1)}],
    ids=lambda changed: next(iter(changed)),
)
def test_anything_else_is_not_the_identity(changed):
    assert not Scaling(**{"temperature": 1.0, "bias": (0.0, 0.0), **changed}).is_identity


def test_log_probabilities_are_finite_where_probabilities_underflow():
    logits = np.array([[0.0, -1e6], [3e5, 0.0]])
    assert np.isfinite(Scaling(0.5, (0.0, 0.0), 1e-3).log_probabilities(logits)).all()
    np.testing.assert_allclose(Scaling(2.0, (0.0, 0.0)).log_probabilities(logits)[0, 1], -5e5)


def test_a_scaling_survives_a_file_bit_for_bit():
    scaling = fit(*rows(3))
    assert Scaling.from_json(json.loads(json.dumps(scaling.to_json()))) == scaling


@pytest.mark.parametrize(
    "numbers", [(0.0, 0.0), (-1.0, 0.0), (math.nan, 0.0), (math.inf, 0.0), (1.0, 1.0), (1.0, -0.1)]
)
def test_impossible_numbers_are_refused(numbers):
    with pytest.raises(ValueError, match="expected a positive temperature"):
        Scaling(numbers[0], (0.0, 0.0), numbers[1])
    with pytest.raises(ValueError, match="finite bias"):
        Scaling(1.0, (math.inf, 0.0))


# --- sums over rows


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_sums_hold_the_loss_and_its_gradient(classes):
    logits, labels = rows(classes)
    at = Scaling(1.7, tuple(np.linspace(-0.3, 0.3, classes).tolist()), 0.05)
    total = sums(at, logits, labels)
    assert total.shape == (size(classes),)
    assert total[0] == len(labels)
    np.testing.assert_allclose(total[1], log_loss(at, logits, labels), rtol=1e-12)
    none = Prior(0.0, 0.0, 0.01, 0.0)
    numeric = approx_fprime(vector(at), lambda v: objective(v, logits, labels, none), 1e-7)
    np.testing.assert_allclose(total[2 : 4 + classes], numeric, atol=2e-4)


def test_the_information_is_the_hessian_where_there_is_no_noise():
    classes = 3
    logits, labels = rows(classes)
    at = Scaling(1.7, (0.3, -0.1, -0.2))

    def gradient(free: np.ndarray) -> np.ndarray:
        moved = sums(Scaling(1 / free[0], tuple(free[1:].tolist())), logits, labels)[2 : 4 + classes]
        return np.delete(moved, 1)

    v = np.delete(vector(at), 1)
    numeric = np.array(
        [(gradient(v + 1e-6 * e) - gradient(v - 1e-6 * e)) / 2e-6 for e in np.eye(classes + 1)]
    )
    upper = np.zeros((classes + 2, classes + 2))
    upper[np.triu_indices(classes + 2)] = sums(at, logits, labels)[4 + classes :]
    information = np.delete(np.delete(upper + np.triu(upper, 1).T, 1, axis=0), 1, axis=1)
    np.testing.assert_allclose(information, numeric, rtol=1e-5, atol=1e-4)


def test_the_information_is_that_of_fisher():
    """Σ_n Σ_c p_c ∇log p_c (∇log p_c)ᵀ, from the gradients of each row as if it had each class."""
    logits, _ = rows(3, n=5)
    expected = np.zeros((5, 5))
    for row in logits[:, None]:
        for c, p in enumerate(SOMEWHERE.probabilities(row)[0]):
            slope = sums(SOMEWHERE, row, np.array([c]))[2:7]
            expected += p * np.outer(slope, slope)
    upper = sums(SOMEWHERE, logits, np.zeros(5, dtype=int))[7:]
    np.testing.assert_allclose(upper, expected[np.triu_indices(5)], rtol=1e-9, atol=1e-12)


def test_sums_of_parties_add_up_and_weights_count_rows():
    logits, labels = rows(3)
    weights = np.random.default_rng(1).integers(0, 4, len(labels))
    total = sums(SOMEWHERE, logits, labels, weights.astype(float))
    split = sum(sums(SOMEWHERE, logits[i::3], labels[i::3], weights[i::3].astype(float)) for i in range(3))
    repeated = sums(SOMEWHERE, np.repeat(logits, weights, axis=0), np.repeat(labels, weights))
    np.testing.assert_allclose(split, total, rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(repeated, total, rtol=1e-10, atol=1e-9)


# --- fitting


@pytest.mark.parametrize("classes", [2, 3, 6])
@pytest.mark.parametrize("n", [30, 400])
def test_the_fit_is_the_minimum(classes, n):
    truth = Scaling(2.5, tuple(np.linspace(-0.5, 0.5, classes).tolist()), 0.1)
    logits, labels = rows(classes, n, truth)
    fitted = fit(logits, labels)
    bounds = [(0.02, 50), (1e-6, 0.9), *[(-5, 5)] * classes]
    best = minimize(
        objective,
        vector(SOMEWHERE)[:2].tolist() + [0.0] * classes,
        (logits, labels),
        bounds=bounds,
        tol=1e-12,
    )
    assert objective(vector(fitted), logits, labels) <= best.fun + 1e-5
    np.testing.assert_allclose(vector(fitted), best.x, atol=5e-3)
    assert sum(fitted.bias) == pytest.approx(0, abs=1e-12)


class Identity(ClassifierMixin, BaseEstimator):
    """A classifier whose input are its logits."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def decision_function(self, X):
        return X

    def predict(self, X):
        return X.argmax(axis=1)


@pytest.mark.skipif(
    "temperature" not in CalibratedClassifierCV._parameter_constraints["method"][0].options,
    reason="this scikit-learn has no temperature scaling",
)
@pytest.mark.parametrize("temperature", [0.4, 3.0])
def test_the_temperature_alone_is_that_of_scikit_learn(temperature):
    logits, labels = rows(3, scaling=Scaling(temperature, (0.0,) * 3))
    theirs = CalibratedClassifierCV(
        FrozenEstimator(Identity().fit(logits, labels)), method="temperature"
    ).fit(logits, labels)
    ours = fit(logits, labels, prior=TEMPERATURE)
    np.testing.assert_allclose(ours.probabilities(logits), theirs.predict_proba(logits), atol=2e-4)


@pytest.mark.parametrize(
    "truth", [Scaling(2.0, (0.5, -0.2, -0.3), 0.05), Scaling(0.5, (-0.4, 0.4, 0.0), 0.02)]
)
def test_it_recovers_what_the_labels_were_drawn_from(truth):
    fitted = fit(*rows(3, 30_000, truth, spread=5.0))
    assert fitted.temperature == pytest.approx(truth.temperature, rel=0.05)
    np.testing.assert_allclose(fitted.bias, truth.bias, atol=0.1)
    assert fitted.noise == pytest.approx(truth.noise, abs=0.01)


def test_calibrated_logits_stay_as_they_are():
    fitted = fit(*rows(3, 30_000))
    assert fitted.temperature == pytest.approx(1, abs=0.03)
    np.testing.assert_allclose(fitted.bias, 0, atol=0.05)
    assert fitted.noise < 0.005


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("n", [1, 10, 200])
@pytest.mark.parametrize("spread", [0.1, 3.0, 300.0])
def test_it_never_raises_the_log_loss_of_its_rows(classes, n, spread):
    """Beyond that of the start, the identity with the noise of the prior, whatever the labels."""
    rng = np.random.default_rng(n)
    logits = spread * rng.normal(size=(n, classes))
    labels = rng.integers(0, classes, n)
    fitted = fit(logits, labels)
    assert log_loss(fitted, logits, labels) <= log_loss(begin(classes).at, logits, labels) + 1e-9


def test_a_step_that_raises_the_objective_is_halved():
    logits, labels = rows(2)
    state = advance(begin(2), sums(begin(2).at, logits, labels))
    worse = sums(state.at, logits, labels)
    worse[1] = np.inf
    halved = advance(state, worse)
    np.testing.assert_allclose(halved.step, np.array(state.step) / 2)
    np.testing.assert_allclose(vector(halved.at), vector(state.kept) + np.array(state.step) / 2)
    assert halved.kept == state.kept and halved.lowest == state.lowest


def test_classes_and_rows_may_be_permuted_and_logits_shifted():
    logits, labels = rows(4, scaling=Scaling(2.0, (0.5, 0.1, -0.2, -0.4), 0.05))
    fitted = fit(logits, labels)
    order, rng = np.array([2, 0, 3, 1]), np.random.default_rng(3)
    shuffled = rng.permutation(len(labels))
    moved = (logits + 100 * rng.normal(size=(len(labels), 1)))[:, order][shuffled]
    permuted = fit(moved, np.argsort(order)[labels][shuffled])
    np.testing.assert_allclose(vector(permuted)[:2], vector(fitted)[:2], rtol=1e-6)
    np.testing.assert_allclose(permuted.bias, np.array(fitted.bias)[order], atol=1e-6)


def test_a_class_without_rows_keeps_a_probability():
    logits, labels = rows(3, 200)
    present = labels != 2
    fitted = fit(logits[present], labels[present])
    assert -3 < fitted.bias[2] < 0
    assert fitted.probabilities(np.zeros((1, 3)))[0, 2] > 0.01


def test_rows_that_are_all_right_do_not_make_it_certain():
    logits = np.array([[4.0, 0.0], [0.0, 4.0]] * 100)
    fitted = fit(logits, np.array([0, 1] * 100))
    assert 0.5 < fitted.temperature < 1.01
    assert 1e-4 < fitted.noise < 0.02


def test_noise_forgives_few_rows_of_great_odds_and_the_temperature_stays():
    logits, labels = rows(2, 2000, spread=3.0)
    logits[:40] = np.eye(2)[1 - labels[:40]] * 15  # 2 % are as sure as can be, and wrong
    fitted, alone = fit(logits, labels), fit(logits, labels, prior=TEMPERATURE)
    assert fitted.temperature == pytest.approx(1, abs=0.25)
    assert 0.03 < fitted.noise < 0.12
    assert alone.temperature > 1.8


def test_no_rows_give_the_identity():
    assert fit(np.zeros((0, 3)), np.zeros(0, dtype=int)) == Scaling.identity(3)


def test_peers_that_add_their_sums_get_the_scaling_of_all_rows():
    logits, labels = rows(3, scaling=SOMEWHERE)
    state: Fitting = begin(3)
    count = 0
    while not state.done:
        state = advance(state, sum(sums(state.at, logits[i::4], labels[i::4]) for i in range(4)))
        count += 1
    assert count <= 12
    np.testing.assert_allclose(vector(state.kept), vector(fit(logits, labels)), atol=1e-9)
