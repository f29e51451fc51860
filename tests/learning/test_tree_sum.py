"""The strategy `tree-sum`: what pooled calibration does, whatever peers hold, at one matrix a link and step."""

import numpy as np
import pytest
from sklearn.datasets import load_wine

import peerbayes as pb
from peerbayes import network
from peerbayes.learning.tree_sum import TreeSum
from peerbayes.model.families.naive_bayes import NaiveBayes

X, Y = load_wine(return_X_y=True)
SETTINGS = {"strategy": "tree-sum", "topology": "tree", "peers": 10, "rows_per_peer": 12, "references": False}


def losses(run):
    """The log loss of the first peer's model on all test rows."""
    return -np.log(run.classifier(0).predict_proba(X)[np.arange(len(Y)), Y]).mean()


@pytest.mark.parametrize("start", ["uniform", "ml"])
def test_who_holds_which_rows_changes_nothing(start):
    rows = np.random.default_rng(0).permutation(len(Y))[:120]
    by_class = np.split(rows[np.argsort(Y[rows], kind="stable")], 10)
    settings = SETTINGS | {"start": start, "start_rounds": 400, "rounds": 12, "test": (X, Y)}
    one = pb.simulate(X, Y, **settings | {"peers": 1, "partition": [rows]})
    many = pb.simulate(X, Y, **settings | {"partition": by_class})
    np.testing.assert_allclose(many.stats[3] * 10, one.stats[0], rtol=1e-6, atol=1e-6)
    assert len({stats.tobytes() for stats in many.stats}) == 1


def test_the_training_log_loss_never_rises_and_falls_faster_than_by_fixed_steps():
    train = SETTINGS | {"rows_per_peer": None, "partition": "drift-y", "test": (X, Y)}
    by_rounds = [losses(pb.simulate(X, Y, **train | {"rounds": rounds})) for rounds in (1, 4, 8, 16, 32)]
    assert (np.diff(by_rounds) <= 0).all()
    fixed = losses(pb.simulate(X, Y, **train | {"rounds": 64, "strategy": "exact", "topology": "complete"}))
    assert by_rounds[-1] < 0.5 * fixed


def test_a_step_that_raises_the_log_loss_is_taken_back():
    family = NaiveBayes(continuous=1, cardinalities=())
    strategy, start = TreeSum(2), family.uniform(2, 4.0)[None]
    residual = np.array([[0.0, 1.0, 0.0], [0.0, -1.0, 0.0]])
    first = strategy.step(strategy.begin(start), np.r_[2 * residual.ravel(), 3.0], family.weights)
    np.testing.assert_allclose(first.trial[0], start[0] + residual)
    back = strategy.step(first, np.r_[residual.ravel(), 3.5], family.weights)
    np.testing.assert_array_equal(strategy.read(back), start)
    np.testing.assert_allclose(back.trial[0], start[0] + residual / 2)
    again = strategy.step(back, np.r_[residual.ravel(), np.nan], family.weights)
    np.testing.assert_allclose(again.trial[0], start[0] + residual / 4)


def test_a_round_costs_one_matrix_and_one_number_a_link_and_losses_are_sent_again():
    run = pb.simulate(X, Y, **SETTINGS | {"rounds": 5})
    size = run.stats[0].size + 1
    assert run.records[-10:, 6].sum() == 5 * 18 * 8 * size  # nine links, both ways
    lossy = pb.simulate(X, Y, **SETTINGS | {"rounds": 5, "message_loss": 0.3})
    np.testing.assert_array_equal(lossy.stats, run.stats)
    assert 1.1 < lossy.records[-10:, 6].sum() / run.records[-10:, 6].sum() < 1.6


def test_where_a_peer_vanishes_the_last_sum_stays():
    run = pb.simulate(X, Y, **SETTINGS | {"rounds": 9, "faults": [network.Away([4], first=6)]})
    np.testing.assert_array_equal(run.stats, pb.simulate(X, Y, **SETTINGS | {"rounds": 5}).stats)


def test_a_round_is_selected_by_held_out_rows():
    run = pb.simulate(X, Y, **SETTINGS | {"rounds": 64, "hold_out": 0.4, "select": "held-out", "patience": 2})
    assert run.made["selection"].startswith("round ") and run.scaling is not None
