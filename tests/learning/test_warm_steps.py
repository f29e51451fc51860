"""A run of `tree-sum` that begins with the model and the last steps of another: where it ends, and how soon."""

import numpy as np
import pandas as pd
import pytest

import peerbayes as pb
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.tree_sum import (
    MISLED,
    MOST_STEPS,
    STEP_BYTES,
    TreeSum,
    _remembered,
    kept_steps,
    unconditioned,
)
from peerbayes.model import layout
from peerbayes.model.calibration import start_statistics
from peerbayes.model.core import softmax
from peerbayes.model.families.naive_bayes import NaiveBayes

SITES = 4
TOLERANCE = 1e-7


def rows(seed, count=300):
    rng = np.random.default_rng(seed)
    ill = rng.random(count) < 0.4
    values = rng.normal(size=(count, 2)) + ill[:, None] * np.array([1.0, 0.6])
    smoker = np.where(rng.random(count) < np.where(ill, 0.7, 0.4), "yes", "no")
    return pd.DataFrame({"a": values[:, 0], "b": values[:, 1], "s": smoker}), np.where(ill, "ill", "well")


def together(*parts):
    return pd.concat([frame for frame, _ in parts], ignore_index=True), np.concatenate([y for _, y in parts])


class Pooled:
    """All rows in one place, as the sums of all peers see them."""

    def __init__(self, table, schema):
        frame, labels = table
        self.family = layout.calibrated("naive-bayes", schema, False, float(len(labels)))
        encoded, codes = schema.encode(frame), schema.encode_labels(labels)
        self.rows = LocalRows(
            self.family, encoded, codes, np.ones(len(codes)), np.array([len(codes)]), len(schema.classes)
        )
        self.weight = len(codes) / (0.05 * SITES)

    def run(self, start=None, steps=None, tolerance=TOLERANCE, most=200):
        """The state and the number of rounds when all stop."""
        if start is None:
            start = start_statistics("uniform", self.family, self.rows.classes, self.weight)[None]
        start = start * (self.weight / start[0, :, 0].sum())
        strategy, terms = TreeSum(SITES, tolerance), self.rows.sum_terms(most)
        state, rounds = strategy.begin(start, steps), 0
        for _ in range(most):
            state = strategy.step(state, terms(state.trial)[0], self.family.weights, self.family.conditioned)
            rounds += 1
            if strategy.settled(state):
                break
        return state, rounds

    def answers(self, state):
        features = np.concatenate([block[1][0] for block in self.rows.blocks()])
        return softmax(features @ np.asarray(self.family.weights(state.stats[0])).T)


@pytest.fixture(scope="module")
def changed():
    """The rows before and after a fifth of them were exchanged, in the same units."""
    parts = [rows(seed) for seed in range(6)]
    before, after = together(*parts[:5]), together(*parts[1:6])
    schema = pb.Schema.infer(*together(*parts))
    return Pooled(before, schema), Pooled(after, schema)


def test_a_warm_run_ends_where_a_fresh_one_does_in_less_than_half_the_rounds(changed):
    before, after = changed
    earlier, _ = before.run()
    fresh, slow = after.run()
    warm, fast = after.run(earlier.stats, earlier.steps)
    exact, _ = after.run(tolerance=1e-10)
    for state in (fresh, warm):
        assert np.abs(after.answers(state) - after.answers(exact)).max() <= 1e-6
    assert 2 * fast <= slow


def test_the_steps_of_a_run_that_went_on_long_after_its_end_are_of_use(changed):
    before, after = changed
    earlier, rounds = before.run(tolerance=None, most=120)
    assert rounds == 120
    warm, fast = after.run(earlier.stats, earlier.steps)
    fresh, slow = after.run()
    assert 2 * fast <= slow and np.abs(after.answers(warm) - after.answers(fresh)).max() <= 1e-6


def test_steps_that_mislead_are_given_up(changed):
    _, after = changed
    rng = np.random.default_rng(0)
    fresh, _ = after.run()
    shape = fresh.steps.shape
    nonsense = rng.normal(size=shape)
    nonsense[:, 1] = -1e-6 * nonsense[:, 0] + 1e-9 * rng.normal(size=nonsense[:, 1].shape)
    for steps in (nonsense, 1e9 * rng.normal(size=shape), np.zeros(shape)):
        state, rounds = after.run(fresh.stats * 0.5, steps)
        assert np.isfinite(state.stats).all() and rounds < 200
        assert np.abs(after.answers(state) - after.answers(fresh)).max() <= 1e-6


def test_after_a_few_steps_back_directions_are_those_of_a_fresh_run(changed):
    _, after = changed
    family, start = after.family, start_statistics("uniform", after.family, 2, 10.0)[None]
    strategy, size = TreeSum(SITES, TOLERANCE), start[0].size
    steps = np.ones((kept_steps(size), 2, *start.shape[1:]))
    rng = np.random.default_rng(1)
    state = strategy.step(
        strategy.begin(start, steps), np.r_[rng.normal(size=size), 5.0], family.weights, family.conditioned
    )
    for back in range(1, MISLED + 1):
        assert state.warm[0] == 1.0
        state = strategy.step(
            state, np.r_[rng.normal(size=size), 5.0 + back], family.weights, family.conditioned
        )
    assert state.warm[0] == 0.0 and state.step[0] == 1.0
    np.testing.assert_array_equal(state.direction, state.residual)


def test_a_fresh_run_takes_the_steps_that_it_always_took(changed):
    """Steps are only remembered: without an earlier run nothing follows from them."""
    _, after = changed
    state, rounds = after.run(tolerance=None, most=20)
    assert rounds == 20 and state.warm[0] == 0.0 and np.abs(state.steps).max() > 0
    strategy, terms = TreeSum(SITES), after.rows.sum_terms(20)
    start = start_statistics("uniform", after.family, 2, after.weight)[None]
    forgetful = strategy.begin(start)
    for _ in range(20):
        step = strategy.step(
            forgetful, terms(forgetful.trial)[0], after.family.weights, after.family.conditioned
        )
        forgetful = step._replace(steps=np.zeros_like(step.steps))
    np.testing.assert_array_equal(state.stats, forgetful.stats)


def test_the_direction_along_the_last_step_is_that_step():
    """The secant equation of BFGS: where R bends by the last y, D is the last s, whatever was remembered before."""
    rng = np.random.default_rng(2)
    root = rng.normal(size=(6, 6))
    bends = root @ root.T + np.eye(6)  # y = A s, with θ the identity
    moves = rng.normal(size=(5, 6))
    steps = np.stack([np.stack([move, bends @ move]).reshape(2, 2, 3) for move in moves])
    found = _remembered(
        rng.normal(size=(1, 2, 3)), steps[-1, 1][None], steps, lambda stats: stats, unconditioned
    )
    np.testing.assert_allclose(found[0], steps[-1, 0], rtol=1e-6, atol=1e-8)
    # And what is remembered of the curvature is symmetric, as the curvature is.
    one, other = rng.normal(size=(2, 1, 2, 3))
    stats = rng.normal(size=(1, 2, 3))
    by_one, by_other = (
        _remembered(stats, each, steps, lambda values: values, unconditioned) for each in (one, other)
    )
    np.testing.assert_allclose(np.sum(other * by_one), np.sum(one * by_other), rtol=1e-6)


def test_a_long_step_after_short_ones_goes_on():
    family = NaiveBayes(continuous=1, cardinalities=())
    strategy, start = TreeSum(1, 1e-3), family.uniform(2, 4.0)[None]
    residual = np.array([[0.0, 1.0, 0.0], [0.0, -1.0, 0.0]])
    state = strategy.begin(start)._replace(still=np.full(1, 2.0))
    assert strategy.step(state, np.r_[residual.ravel(), 3.0], family.weights).still[0] == 0.0
    assert strategy.step(state, np.r_[1e-6 * residual.ravel(), 3.0], family.weights).still[0] == 3.0


def test_one_short_step_stops_nobody():
    strategy = TreeSum(1, 1e-3)
    state = strategy.begin(np.ones((1, 2, 2)))
    assert not strategy.settled(state._replace(still=np.full(1, 2.0)))
    assert strategy.settled(state._replace(still=np.full(1, 3.0)))
    assert not TreeSum(1).settled(state._replace(still=np.full(1, 3.0)))


def test_steps_take_a_megabyte_at_most():
    assert kept_steps(10) == MOST_STEPS
    for size in (1 << 10, 12_500, 1 << 16, 1 << 20, 1 << 24):
        assert 2 * 8 * size * kept_steps(size) <= STEP_BYTES
    assert kept_steps(1 << 24) == 0
    state = TreeSum().begin(np.ones((1, 2, 1 << 16)))
    assert state.steps.shape == (0, 2, 2, 1 << 16)
