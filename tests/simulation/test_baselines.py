"""Methods to compare strategies with: softmax regression over networks, FedAvg, and ensembles of one message."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import peerbayes as pb
from peerbayes import network
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.softmax import LOWEST_EIGENVALUE, Softmax, SoftmaxState, preconditioner, scale_of
from peerbayes.model import core
from peerbayes.model.families import NaiveBayes, Rows
from peerbayes.simulation import baselines
from peerbayes.simulation.population import Population
from peerbayes.simulation.settings import SimulationSettings

CLASSES, SIZES = 3, np.array([10, 25, 15, 30, 20, 20])
FAMILY = NaiveBayes(continuous=2, cardinalities=(3,))


def peers_of(seed=0, by_class=False):
    """Rows of six peers: overlapping classes, so that the log loss has its lowest value at finite weights."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, SIZES.sum())
    labels = np.sort(labels) if by_class else labels
    values = rng.normal(size=(labels.size, 2)) + 1.2 * labels[:, None] * [1.0, -0.5]
    codes = np.where(rng.random(labels.size) < 0.5, labels, rng.integers(0, 3, labels.size))[:, None]
    return LocalRows(FAMILY, Rows(values, codes), labels, np.ones(labels.size), SIZES, CLASSES)


def schedule(seed=0):
    return network.schedule("tree", SIZES.size, np.random.default_rng(seed))


def diffused(held, strategy, rounds):
    """Run a strategy over a tree with dense matrices, apart from the simulator."""
    mixing = getattr(network, strategy.mixing)(schedule().at(1)).toarray()
    residual = held.residual(1, of_weights=True)
    state = strategy.begin(np.ones((SIZES.size, CLASSES, FAMILY.size)), residual)
    for _ in range(rounds):
        state = strategy.step(state, np.einsum("vu,uck->vck", mixing, strategy.message(state)), residual)
    return strategy.read(state)


@pytest.mark.parametrize("by_class", [False, True])
def test_exact_diffusion_converges_to_the_softmax_regression_of_scikit_learn(by_class):
    held = peers_of(by_class=by_class)
    features = held.features_of(slice(None))
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000, fit_intercept=False)
    expected = model.fit(features, held.labels).predict_proba(features)
    scale = preconditioner(features, SIZES.size)
    for weights in diffused(held, Softmax(scale, 0.5, 0.4), 2500):
        np.testing.assert_allclose(core.posterior(features, weights), expected, atol=2e-4)
    uncorrected = diffused(held, Softmax(scale, 0.5, 0.4, corrected=False), 2500)
    biased = [np.abs(core.posterior(features, weights) - expected).max() for weights in uncorrected]
    assert min(biased) > 0.01  # without the correction peers stay apart


@pytest.mark.parametrize("by_class", [False, True])
def test_exact_diffusion_with_a_penalty_converges_to_that_of_scikit_learn(by_class):
    """λ/2 of each row for the squared weights of features in standard units; a constant feature has no penalty."""
    held = peers_of(by_class=by_class)
    features = held.features_of(slice(None))
    units = features / np.where(features.std(axis=0) > 0, features.std(axis=0), np.inf)
    model = LogisticRegression(C=1 / (0.05 * len(features)), tol=1e-10, max_iter=10_000)
    expected = model.fit(units, held.labels).predict_proba(units)
    scale, penalty = scale_of(features, SIZES.size, penalty=0.05)
    for weights in diffused(held, Softmax(scale, 0.5, 0.4, penalty=penalty), 1000):
        np.testing.assert_allclose(core.posterior(features, weights), expected, atol=1e-6)


def test_a_peer_that_is_its_own_network_takes_newton_like_steps_of_pooled_rows():
    """One peer: both forms are gradient descent with momentum, W ← W + step·R·P + β(W − W₋)."""
    held = peers_of()
    features, labels = held.features_of(slice(None)), core.one_hot(held.labels, CLASSES)
    scale = preconditioner(features, 1)
    moments = features.T @ features / len(features)
    np.testing.assert_allclose(
        scale @ (moments + 0.01 * np.eye(FAMILY.size)), 2 / len(features) * np.eye(FAMILY.size), atol=1e-12
    )
    previous = weights = np.zeros((CLASSES, FAMILY.size))
    strategy = Softmax(scale, 0.7, 0.4, corrected=False)
    state = strategy.begin(weights, lambda at: core.residual(features, labels, at))
    for _ in range(5):
        change = core.residual(features, labels, weights) @ scale
        previous, weights = weights, weights + 0.7 * change + 0.4 * (weights - previous)
        state = strategy.step(state, strategy.message(state), lambda at: core.residual(features, labels, at))
        np.testing.assert_allclose(strategy.read(state), weights, atol=1e-12)


@pytest.mark.parametrize(
    ("corrected", "momentum"),
    [(True, 0.0), (True, 0.25), (True, 0.4), (True, 0.48), (False, 0.8), (False, 0.95)],
)
def test_disagreement_decays_on_any_network(corrected, momentum):
    """Without residuals the step is linear; at every eigenvalue that mixing weights may have it shrinks differences."""
    strategy = Softmax(np.eye(1), 1.0, momentum, corrected)
    lowest = network.stable(network.adjacency("star", 30, np.random.default_rng(0))).toarray()
    assert np.linalg.eigvalsh(lowest)[0] > LOWEST_EIGENVALUE - 1e-3
    for eigenvalue in np.concatenate([np.linspace(LOWEST_EIGENVALUE, 0.99, 60), [0.999]]):

        def after(values, eigenvalue=eigenvalue):
            state = SoftmaxState(*values.reshape(3, 1, 1))
            mixed = eigenvalue * strategy.message(state)
            return np.concatenate(strategy.step(state, mixed, np.zeros_like)).ravel()

        rates = np.abs(np.linalg.eigvals(np.stack([after(unit) for unit in np.eye(3)], axis=1)))
        assert rates.max() < 1.0, eigenvalue


def test_exact_diffusion_with_a_momentum_of_a_half_no_longer_agrees():
    """The bound of the docstring: near λ = 1 modes decay for β < ½ only."""
    for momentum, decays in ((0.49, True), (0.51, False)):
        roots = np.roots([1.0, *(-0.9999 * np.array([2 + momentum, -(1 + 2 * momentum), momentum]))])
        assert (np.abs(roots).max() < 1.0) == decays


def test_weights_of_rows_count_in_the_preconditioner():
    features = peers_of().features_of(slice(None))
    repeated = preconditioner(np.concatenate([features, features[:9]]), 4)
    weights = np.ones(len(features))
    weights[:9] = 2.0
    np.testing.assert_allclose(preconditioner(features, 4, weights), repeated, rtol=1e-10)
    repeated = scale_of(np.concatenate([features, features[:9]]), 4, penalty=0.3)
    for found, expected in zip(scale_of(features, 4, weights, 0.3), repeated, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_steps_are_those_of_newton_for_the_penalty_too():
    """Half of P is at most the inverse of the Hessian, ½ΦᵀΦ + the penalty: steps below 2 do not overshoot."""
    features = peers_of().features_of(slice(None))
    scale, penalty = scale_of(features, 4, penalty=0.3)
    variance = np.var(features, axis=0)
    np.testing.assert_allclose(penalty, len(features) / 4 * 0.3 * variance, atol=1e-12)
    hessian = features.T @ features / 2 / 4 + np.diag(penalty)
    assert 0.9 < np.linalg.eigvals(scale @ hessian).real.max() <= 1.0


@pytest.mark.parametrize("penalty", [0.0, 0.2])
def test_federated_averaging_with_one_local_step_is_gradient_descent_on_pooled_rows(penalty):
    held = peers_of(by_class=True)
    features, labels = held.features_of(slice(None)), core.one_hot(held.labels, CLASSES)
    scale = scale_of(features, SIZES.size, penalty=penalty)
    weights = np.zeros((CLASSES, FAMILY.size))
    velocity = weights
    for _ in range(7):
        gradient = core.residual(features, labels, weights) - SIZES.size * scale.penalty * weights
        velocity = 0.3 * velocity + 0.8 * gradient @ scale.preconditioner / SIZES.size
        weights = weights + velocity
    learned = baselines.federated_averaging(7, 1)(held, 0.8, 0.3, scale)
    np.testing.assert_allclose(learned, weights[None], atol=1e-12)


def test_federated_averaging_weighs_what_peers_learn_in_several_steps_by_their_rows():
    held = peers_of(by_class=True)
    features, labels = held.features_of(slice(None)), core.one_hot(held.labels, CLASSES)
    scale = scale_of(features, SIZES.size)
    weights = np.zeros((CLASSES, FAMILY.size))
    for _ in range(3):
        total = 0.0
        for mine in held.slices:
            local = weights
            for _ in range(4):  # steps by the mean over the peer's own rows
                mean = core.residual(features[mine], labels[mine], local) / (mine.stop - mine.start)
                local = local + 0.5 * mean @ scale.preconditioner * SIZES.sum() / SIZES.size
            total = total + (mine.stop - mine.start) * local
        weights = total / SIZES.sum()
    np.testing.assert_allclose(
        baselines.federated_averaging(3, 4)(held, 0.5, 0.0, scale)[0], weights, atol=1e-12
    )


def test_a_vote_is_the_mean_of_the_posteriors_of_peers_and_the_mean_of_weights_their_product():
    X, y = np.random.default_rng(0).normal(size=(90, 3)), np.arange(90) % 3
    X[:, 0] += y
    run = pb.simulate(X, y, peers=4, rows_per_peer=15, strategy="local", rounds=8, references=False)
    weights, test = run.layout.weights(run.stats), X[60:]
    posteriors = [run.classifier(peer).predict_proba(test) for peer in range(4)]  # another way to them
    encoded = run.schema.encode(test)
    features = run.layout.features(encoded)
    np.testing.assert_allclose(baselines.vote(features, weights), np.mean(posteriors, axis=0), atol=1e-12)
    multiplied = np.prod(posteriors, axis=0) ** (1 / 4)
    np.testing.assert_allclose(
        core.posterior(features, weights.mean(axis=0)),
        multiplied / multiplied.sum(axis=1, keepdims=True),
        atol=1e-12,
    )


# --- the choice of penalties and steps


def test_a_fifth_of_the_rows_of_each_peer_is_held_back_in_trials():
    held = peers_of()
    kept, held_back = baselines.split(held)
    assert kept.sizes.tolist() == [8, 20, 12, 24, 16, 16]
    assert [held_back[mine].sum() for mine in held.slices] == [2, 5, 3, 6, 4, 4]
    np.testing.assert_array_equal(kept.labels, held.labels[~held_back])
    np.testing.assert_array_equal(kept.rows.values, held.rows.values[~held_back])


def test_the_loss_of_a_model_is_its_mean_log_loss_and_infinite_where_it_diverged():
    held = peers_of()
    features = held.features_of(slice(None))
    weights = np.random.default_rng(1).normal(size=(2, CLASSES, FAMILY.size))
    posteriors = [core.posterior(features, model) for model in weights]
    expected = np.mean([-np.log(p[np.arange(held.labels.size), held.labels]) for p in posteriors])
    assert baselines.loss(features, held.labels, weights) == pytest.approx(expected, rel=1e-12)
    weights[1, 0, 0] = np.nan
    assert baselines.loss(features, held.labels, weights) == np.inf


@pytest.mark.parametrize("in_turn", [True, False])
def test_the_choice_is_the_trial_with_the_lowest_loss_on_rows_that_were_held_back(in_turn, monkeypatch):
    """The penalty with the usual step size and momentum, then these with that penalty."""
    held = peers_of()
    monkeypatch.setattr(baselines, "FEW", held.labels.size - (not in_turn))
    features = held.features_of(slice(None))
    learn = baselines.federated_averaging(6, 1)
    grid = baselines.Grid((0.01, 0.5, 1.0), (0.0, 0.9), (1.0, 0.0), (0.0, 0.03, 3.0))

    def trial(step, momentum, penalty):
        losses = []
        for first in range(5) if in_turn else [4]:
            kept, held_back = baselines.split(held, first)
            scale = scale_of(features[~held_back], SIZES.size, penalty=penalty)
            weights = learn(kept, step, momentum, scale)
            losses.append(baselines.loss(features[held_back], held.labels[held_back], weights))
        return np.mean(losses)

    penalty = min(grid.penalties, key=lambda value: trial(1.0, 0.0, value))
    losses = {
        (step, momentum): trial(step, momentum, penalty) for step in grid.steps for momentum in grid.momenta
    }
    learned = baselines.best(held, grid, learn)
    assert learned.penalty == penalty == 0.03
    assert (learned.step_size, learned.momentum) == min(losses, key=losses.get)
    assert learned.trial_loss == pytest.approx(min(losses.values()), rel=1e-12)
    scale = scale_of(features, SIZES.size, penalty=penalty)
    again = learn(held, learned.step_size, learned.momentum, scale)
    np.testing.assert_array_equal(learned.weights, again)  # from all rows


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_no_choice_diverges(scale):
    """Steps of a million times the usual one diverge; none of them is chosen, and nothing is lost by learning."""
    held = peers_of(by_class=True)
    grid = baselines.Grid((0.5 * scale, 4.0 * scale), (0.5, 0.99), (scale, 0.5))

    def learn(rows, *setting):
        return np.concatenate([baselines.federated_averaging(40, 4)(rows, *setting)] * 2)

    learned = baselines.best(held, grid, learn)
    features = held.features_of(slice(None))
    assert baselines.loss(features, held.labels, learned.weights) <= np.log(CLASSES) + 1e-9
    assert (learned.step_size == 0.0) == (scale > 1.0)


def test_a_choice_that_diverges_only_on_all_rows_is_left_out():
    held = peers_of()

    def learn(rows, step_size, momentum, scale):
        diverges = fragile and rows.labels.size == held.labels.size and step_size == 2.0
        weights = baselines.federated_averaging(2, 1)(rows, 0.05, 0.0, scale)
        return weights * (np.nan if diverges else step_size)

    fragile, grid = False, baselines.Grid((1.0, 2.0), (0.0,), (1.0, 0.0))
    assert baselines.best(held, grid, learn).step_size == 2.0
    fragile = True
    assert baselines.best(held, grid, learn).step_size == 1.0


def test_without_enough_rows_to_hold_back_training_rows_decide():
    held = peers_of()
    few = LocalRows(FAMILY, held.select(slice(0, 12)), held.labels[:12], np.ones(12), np.full(6, 2), CLASSES)
    assert not baselines.split(few)[1].any()
    learned = baselines.softmax(few, schedule(), 4)
    assert learned.weights.shape == (6, CLASSES, FAMILY.size) and learned.step_size > 0


@pytest.mark.parametrize("corrected", [True, False])
def test_softmax_regression_over_a_network_equals_a_simulation_of_its_strategy(corrected, monkeypatch):
    """The baseline runs as any strategy of the user's own does, with the same numbers."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, 80)
    X = rng.normal(size=(80, 2)) + y[:, None]
    settings = {"peers": 4, "rows_per_peer": 15, "rounds": 10, "seed": 5, "references": False}
    peers = Population.of(SimulationSettings(settings), X, y)
    name = "CORRECTED" if corrected else "UNCORRECTED"
    monkeypatch.setattr(baselines, name, getattr(baselines, name)._replace(penalties=(0.02,)))
    learned = baselines.softmax(peers.held, peers.network, 10, corrected)
    scale, penalty = scale_of(peers.held.features_of(slice(None)), 4, penalty=learned.penalty)
    strategy = Softmax(scale, learned.step_size, learned.momentum, corrected, penalty)
    assert learned.penalty == 0.02
    run = pb.simulate(X, y, strategy=strategy, **settings)
    np.testing.assert_allclose(run.stats, learned.weights, atol=1e-12)
    assert run.of_weights and run.configuration["strategy"] == strategy.name


def test_noise_and_completed_values_are_refused_with_the_reason():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 2)), rng.integers(0, 2, 60)
    strategy = Softmax(np.eye(5))
    settings = {"peers": 4, "rows_per_peer": 10, "rounds": 2, "references": False}
    with pytest.raises(ValueError, match="second moments of the rows"):
        pb.simulate(X, y, strategy=strategy, privacy=pb.Privacy(epsilon=4.0), **settings)
    X[0, 0] = np.nan
    with pytest.raises(ValueError, match="learns no generative model"):
        pb.simulate(X, y, strategy=strategy, family="qda", **settings)
