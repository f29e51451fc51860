"""Simulated peers that choose a round by held-out rows: which one, when they stop, and what it costs."""

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.metrics import log_loss

import peerbayes as pb
from peerbayes import network
from peerbayes.learning import state
from peerbayes.learning.selection import Selection
from peerbayes.model.core import softmax
from peerbayes.model.scaling import fit, size
from peerbayes.simulation.population import Assignment
from peerbayes.simulation.settings import SimulationSettings

X, Y = load_wine(return_X_y=True)
NOISY = np.where(np.random.default_rng(1).random(len(Y)) < 0.3, np.random.default_rng(2).permutation(Y), Y)
SETTINGS = {
    "peers": 6, "rows_per_peer": 26, "rounds": 64, "lr": 0.5, "strategy": "exact", "topology": "ring", "start": "ml",
    "references": False, "hold_out": 0.4, "test": (X, NOISY),
}  # fmt: skip


def held_out(settings=SETTINGS):
    return Assignment.of(X, NOISY, SimulationSettings(settings)).holding_out(settings["hold_out"], 0)


def loss_of(run, assigned):
    """The log loss of each peer's model on its own held-out rows, the mean over all rows."""
    losses = [
        log_loss(
            NOISY[part], softmax(run.classifier(peer).predict_joint_log_proba(X[part])), labels=[0, 1, 2]
        )
        * len(part)
        for peer, part in enumerate(assigned.held_out)
        if len(part)
    ]
    return sum(losses) / sum(map(len, assigned.held_out))


def test_the_round_with_the_lowest_log_loss_on_held_out_rows_is_kept():
    assigned = held_out()
    by_round = {
        t: pb.simulate(X, NOISY, **SETTINGS | {"rounds": t, "strategy": "crc"}) for t in range(8, 65, 8)
    }
    losses = {t: loss_of(run, assigned) for t, run in by_round.items()}
    kept = min(losses, key=losses.get)
    run = pb.simulate(X, NOISY, **SETTINGS | {"strategy": "crc", "select": "held-out", "patience": None})
    assert kept < 64 and losses[kept] < 0.99 * losses[64]
    np.testing.assert_array_equal(run.stats, by_round[kept].stats)
    assert run.made["selection"].startswith(f"round {kept} of 64 is kept")
    assert f"({losses[kept]:.4f})" in run.made["selection"]
    unscaled = by_round[kept].outcomes["peers"]
    np.testing.assert_array_equal(run.outcomes["unscaled"].confusion, unscaled.confusion)


def test_all_stop_after_as_many_checks_without_a_lower_loss_and_each_sum_is_counted():
    every = pb.simulate(X, NOISY, **SETTINGS | {"select": "held-out", "patience": None})
    kept = int(every.made["selection"].split()[1])
    run = pb.simulate(X, NOISY, **SETTINGS | {"select": "held-out", "patience": 2})
    assert run.summary()["rounds"] == kept + 16 < 64
    np.testing.assert_array_equal(run.stats, every.stats)
    last = pb.simulate(X, NOISY, **SETTINGS | {"rounds": kept + 16})
    checks, ends = (kept + 16) // 8, 10  # a spanning tree of six peers has five links
    further = (run.records[-6:, 6] - last.records[-6:, 6]).sum() - checks * ends * 16
    steps, left = divmod(further, ends * 8 * (size(3) + 1))
    assert 1 <= steps <= 16 and left == 0


def test_probabilities_are_scaled_by_the_held_out_rows_of_all_peers(tmp_path):
    """As by a fit on the logits of all peers' rows together, which takes more steps; figures are the scaled models'."""
    run = pb.simulate(X, NOISY, **SETTINGS | {"select": "held-out"})
    assigned, models = held_out(), [run.classifier(peer) for peer in range(6)]
    parts = assigned.held_out
    logits = [model.predict_joint_log_proba(X[part]) for model, part in zip(models, parts, strict=True)]
    fitted = fit(np.concatenate(logits), NOISY[np.concatenate(parts)])
    assert run.scaling.temperature == pytest.approx(fitted.temperature, rel=0.01)
    assert run.scaling.bias == pytest.approx(fitted.bias, abs=0.01)
    assert "temperature" in run.made["selection"]
    assert run.summary()["test_error"] == pytest.approx(
        np.mean([1 - model.score(X, NOISY) for model in models])
    )
    run.save(tmp_path)
    assert pb.Run.load(tmp_path).scaling == run.scaling


def test_held_out_rows_are_neither_learned_from_nor_tested_on():
    whole = pb.simulate(X, Y, **SETTINGS | {"hold_out": 0.0, "test": None, "rounds": 1})
    part = pb.simulate(X, Y, **SETTINGS | {"test": None, "rounds": 1})
    assert 0.5 < part.sizes.sum() / whole.sizes.sum() < 0.7
    tested = {name: run.outcomes["peers"].confusion.sum() for name, run in (("whole", whole), ("part", part))}
    assert tested["whole"] == tested["part"] == len(Y) - 6 * 26


def test_without_held_out_rows_or_enough_of_them_the_last_round_is_kept():
    with pytest.raises(ValueError, match="hold_out is 0"):
        pb.simulate(X, NOISY, **SETTINGS | {"hold_out": 0.0, "select": "held-out"})
    few = SETTINGS | {"hold_out": 0.05, "rounds": 16}
    run = pb.simulate(X, NOISY, **few | {"select": "held-out"})
    assert "to choose a round takes 30 or more" in run.made["selection"]
    np.testing.assert_array_equal(run.stats, pb.simulate(X, NOISY, **few).stats)


def test_where_a_peer_vanishes_no_sum_is_completed_and_the_last_round_is_kept():
    settings = SETTINGS | {"rounds": 24, "faults": [network.Away([2], first=12)]}
    run = pb.simulate(X, NOISY, **settings | {"select": "held-out"})
    assert run.made["selection"].startswith("the last round is kept: after round 16 nothing came from peer 2")
    np.testing.assert_array_equal(run.stats, pb.simulate(X, NOISY, **settings).stats)


def test_a_run_that_goes_on_from_its_checkpoint_keeps_the_same_round(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "PAUSE", 0.0)
    settings = SETTINGS | {"select": "held-out", "patience": None}

    class Stop(Exception): ...

    def stop(done, of):
        if done == 50:
            raise Stop

    with pytest.raises(Stop):
        pb.simulate(X, NOISY, **settings, checkpoint=tmp_path / "saved", progress=stop)
    again = pb.simulate(X, NOISY, **settings, checkpoint=tmp_path / "saved")
    whole = pb.simulate(X, NOISY, **settings)
    assert again.made["selection"] == whole.made["selection"]
    np.testing.assert_array_equal(again.stats, whole.stats)


def test_a_loss_that_is_lower_by_little_changes_nothing():
    """Sums in another order differ in their last bits: peers would keep different rounds."""
    first = Selection.begin(np.zeros((2, 3))).after(8, np.array([50.0, 100.0]), np.ones((2, 3)))
    later = first.after(16, np.array([49.999, 100.0]), np.zeros((2, 3)))
    assert later.kept[0] == 8 and later.waited[0] == 1 and later.stops(1)
    assert first.after(16, np.array([49.0, 100.0]), np.zeros((2, 3))).kept[0] == 16
