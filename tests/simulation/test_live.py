"""A run on disk while it goes on: whoever follows sees what the simulation has reached, and then the finished run."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import astuple

import numpy as np
import pytest
from sklearn.datasets import load_wine

import peerbayes as pb
from peerbayes.learning.metrics import Outcome, log_loss
from peerbayes.simulation.records import COLUMNS
from peerbayes.simulation.result import LIVE_FILE
from peerbayes.simulation.view import (
    CURVES,
    LEVELS,
    PAUSE,
    WRITTEN,
    Following,
    LiveFile,
    NothingToWatch,
    Structure,
    View,
    median_peer,
    sampled,
    spread,
    titles,
)

SETTINGS = {"peers": 6, "rows_per_peer": 15, "rounds": 12, "partition": "drift-y", "strategy": "exact"}


@pytest.fixture(scope="module")
def wine():
    return load_wine(return_X_y=True)


@pytest.fixture(scope="module")
def run(wine):
    return pb.simulate(*wine, **SETTINGS)


def same(seen, expected, rounds):
    assert seen.round_index == seen.rounds[-1] == rounds
    assert (seen.links == expected.links).all() and (seen.sizes == expected.sizes).all()
    assert (seen.peers == expected.peers).all()
    for name in CURVES:  # float32 on disk
        assert seen.curves[name] == pytest.approx(expected.curves[name][: len(seen.rounds)], rel=1e-6)
        assert seen.spread[name] == pytest.approx(expected.spread[name][: len(seen.rounds)], rel=1e-12)
        assert seen.last[name] == pytest.approx(expected.curves[name][len(seen.rounds) - 1], rel=1e-6)


def test_following_sees_every_round_and_then_the_finished_run(wine, run, tmp_path):
    following, whole = Following(tmp_path), View.of(run)

    def look(done, total):
        assert total == SETTINGS["rounds"]
        seen = following.look()
        same(seen, whole, done)
        assert not seen.finished and following.look() is seen
        assert abs(following.at - time.time()) < 60

    again = pb.simulate(*wine, **SETTINGS, live=tmp_path, progress=look)
    assert (again.stats == run.stats).all()  # being watched changes nothing
    assert not following.look().finished
    again.save(tmp_path)
    assert not (tmp_path / LIVE_FILE).exists()
    seen = following.look()
    assert seen.finished and seen.references == again.references and seen.statistics is not None
    assert following.look() is seen
    following.close()


def test_rounds_that_are_not_evaluated_are_counted(wine, tmp_path):
    turns = []
    following = Following(tmp_path)

    def look(*_):
        seen = following.look()
        turns.append((seen.round_index, list(seen.rounds)))
        time.sleep(1.1 * PAUSE)

    pb.simulate(*wine, **SETTINGS, evaluate_every=5, live=tmp_path, references=False, progress=look)
    assert [turn for turn, _ in turns] == list(range(1, 13))
    assert turns[3][1] == [] and turns[-1][1] == [5, 10, 12]


def test_a_resumed_simulation_shows_what_came_before(wine, run, tmp_path):
    class Killed(Exception):
        pass

    def kill(done, _):
        if done == 7:
            raise Killed

    settings = {**SETTINGS, "checkpoint": tmp_path / "saved", "live": tmp_path / "run"}
    with pytest.raises(Killed):
        pb.simulate(*wine, **settings, progress=kill)
    first = []
    following = Following(tmp_path / "run")
    pb.simulate(*wine, **settings, progress=lambda *_: first.append(following.look()))
    assert len(first[0].rounds) == first[0].round_index > 0
    same(first[-1], View.of(run), 12)


def test_another_simulation_takes_the_folder(wine, tmp_path):
    following = Following(tmp_path)
    pb.simulate(*wine, **SETTINGS, live=tmp_path, references=False)
    assert following.look().peer_count == 6
    pb.simulate(*wine, **{**SETTINGS, "peers": 4}, live=tmp_path, references=False)
    assert following.look().peer_count == 4
    again = pb.simulate(*wine, **{**SETTINGS, "peers": 3}, references=False)
    again.save(tmp_path)
    assert following.look().peer_count == 3


@pytest.mark.long
def test_a_killed_simulation_can_be_looked_at(tmp_path):
    code = (
        "import peerbayes as pb, sys, time\nfrom sklearn.datasets import load_wine\n"
        "pb.simulate(*load_wine(return_X_y=True), peers=6, rows_per_peer=15, rounds=1000, live=sys.argv[1],"
        " progress=lambda done, _: (print(done, flush=True), time.sleep(0.02)))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            if int(line) == 9:
                break
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    seen = Following(tmp_path).look()
    assert seen.round_index >= 9 and len(seen.rounds) >= 9 and not seen.finished


@pytest.mark.parametrize("family", ["tan", "naive-bayes"])
def test_the_structure_is_known_from_the_first_round_on(wine, tmp_path, family):
    following, seen = Following(tmp_path), []
    settings = {**SETTINGS, "rounds": 2, "family": family, "start": "ml", "references": False}
    run = pb.simulate(
        *wine, **settings, live=tmp_path, progress=lambda *_: seen.append(following.look().structure)
    )
    assert seen == 2 * [Structure.of(run.schema, run.layout)]
    assert (seen[0] is None) == (family == "naive-bayes")
    if seen[0] is not None:
        names = {
            name: [seen[0].names[p] for p in own] for name, own in zip(*astuple(seen[0])[:3:2], strict=True)
        }
        assert names == run.classifier(0).parents_
    run.save(tmp_path)
    assert following.look().structure == seen[0]
    following.close()


def test_nothing_to_watch(tmp_path):
    with pytest.raises(NothingToWatch, match=r"holds no run.*peerbayes simulate FILE --out"):
        Following(tmp_path).look()
    (tmp_path / LIVE_FILE).write_bytes(b"no database" * 100)
    with pytest.raises(NothingToWatch, match="cannot be read"):
        Following(tmp_path).look()


def test_a_large_network_is_sampled_evenly(tmp_path):
    peers = 2 * WRITTEN
    live = LiveFile(
        tmp_path,
        {"strategy": "exact", "rounds": 2},
        {},
        np.ones(peers, dtype=int),
        np.zeros((0, 2), dtype=int),
    )
    records = np.zeros((peers, len(COLUMNS)))
    records[:, 0], records[:, 1] = 1, np.arange(peers)
    records[:, COLUMNS.index("test_error")] = np.arange(peers) / peers
    live.add(records)
    live.close()
    seen = Following(tmp_path).look()
    assert seen.peer_count == peers and len(seen.peers) == WRITTEN and np.unique(seen.peers).size == WRITTEN
    assert seen.curves["test_error"][0] == pytest.approx(seen.peers / peers, abs=1e-6)
    assert seen.last["test_error"] == pytest.approx(np.arange(peers) / peers, abs=1e-6)
    assert seen.spread["test_error"][0, LEVELS.index("median")] == pytest.approx(0.5, abs=1e-4)


def test_samples_fit_and_were_held_before():
    """A figure that grows round by round goes on with the peers that it began with."""
    assert (sampled(5, 10, 50) == np.arange(5)).all()
    some = sampled(1000, 10, 500)
    assert 25 < len(some) <= 50 and np.unique(np.diff(some)).size == 1
    assert set(sampled(1000, 40, 500)) < set(some) < set(sampled(1000, 5, 500))
    assert len(sampled(3, 100, 1)) == 1


def test_spread_is_numpys(run):
    values = np.random.default_rng(0).random((4, 9))
    told = dict(zip(LEVELS, spread(values).T, strict=True))
    assert told["mean"] == pytest.approx(values.mean(1)) and told["median"] == pytest.approx(
        np.median(values, 1)
    )
    assert told["least"] == pytest.approx(values.min(1)) and told["most"] == pytest.approx(values.max(1))


def test_the_model_shown_is_the_median_peers(run):
    errors = run.history[run.history["round"] == 12]["test_error"].to_numpy()
    assert np.sort(errors)[len(errors) // 2] == errors[median_peer(run)]


def test_runs_are_called_by_what_differs(wine, run):
    other = pb.simulate(*wine, **SETTINGS | {"strategy": "crc"}, references=False)
    third = pb.simulate(*wine, **SETTINGS, seed=1, references=False)
    assert titles([run, other], ["a", "b"]) == ["exact", "crc"]
    assert titles([run, third], ["a", "b"]) == ["seed 0", "seed 1"]
    assert titles([run, run], ["a", "b"]) == ["a", "b"]


def test_outcomes_tell_the_errors(wine, run):
    for who, error in (
        ("rc", run.references["test_rc"]),
        ("ml", run.references["test_ml"]),
        ("peers", run.summary()["test_error"]),
    ):
        outcome = run.outcomes[who]
        total = outcome.confusion.sum()
        assert total == len(wine[1]) - 90
        assert 1 - np.trace(outcome.confusion) / total == pytest.approx(error)
        rows, sure, right = outcome.reliability.sum(axis=0)
        assert (
            rows == total and right == pytest.approx(np.trace(outcome.confusion)) and right <= total >= sure
        )
        bins = outcome.reliability
        mean = bins[:, 1] / np.where(bins[:, 0] > 0, bins[:, 0], 1)
        inside = (mean >= np.arange(15) / 15 - 1e-9) & (mean <= np.arange(1, 16) / 15 + 1e-9)
        assert inside[bins[:, 0] > 0].all()


def test_an_outcome_by_hand():
    posterior = np.array([[1.0, 0.0], [0.55, 0.45], [0.2, 0.8]])
    outcome = Outcome.of(posterior, np.array([0, 1, 1]))
    assert outcome.confusion.tolist() == [[1, 0], [1, 1]]
    assert outcome.reliability[14].tolist() == [1, 1, 1]
    assert outcome.reliability[8].tolist() == [1, 0.55, 0]
    assert outcome.reliability[12].tolist() == [1, 0.8, 1]
    assert outcome.calibration_error == pytest.approx((0 + 0.55 + 0.2) / 3)
    assert log_loss(np.log(posterior[1:]), np.array([1, 1])) == pytest.approx(-np.log(0.45 * 0.8) / 2)


@pytest.mark.parametrize("strategy", ["exact", "local", "dsgd", "relay", "consensus-ml"])
def test_peers_alone_are_the_strategy_local(strategy, wine):
    settings = {**SETTINGS, "evaluate_every": 0}
    alone = pb.simulate(*wine, **settings | {"strategy": "local"}).summary()
    told = pb.simulate(*wine, **settings | {"strategy": strategy}).summary()
    assert told["test_local"] == pytest.approx(alone["test_error"])
    assert told["train_local"] == pytest.approx(alone["train_error"])


def test_everything_to_see_is_saved(run, tmp_path):
    run.save(tmp_path)
    loaded = pb.Run.load(tmp_path)
    assert (loaded.links == run.links).all() and loaded.made == run.made
    assert loaded.references == run.references and set(loaded.outcomes) == {"peers", "rc", "ml"}
    assert (loaded.outcomes["rc"].confusion == run.outcomes["rc"].confusion).all()
    assert (loaded.seconds_by_round == run.seconds_by_round).all()
    assert {"began", "peerbayes", "python", "numpy"} <= set(run.made)


def test_seconds_by_round_are_those_of_the_rounds_only(wine):
    slow = pb.simulate(*wine, **SETTINGS, progress=lambda done, of: time.sleep(0.05))
    seconds = slow.seconds_by_round
    assert len(seconds) == slow.history["round"].nunique()
    assert (np.diff(seconds) > 0).all() and seconds[-1] <= slow.seconds["rounds"]
    assert seconds[-1] - seconds[0] < slow.seconds["evaluation"]  # which has the pauses


def test_rc_at_its_end_is_a_second_reference(wine):
    """It does not depend on the rounds, nor on a small step, as RC itself does."""
    few, more = (
        pb.simulate(*wine, **SETTINGS | {"rounds": rounds, "lr": 0.001}).summary() for rounds in (1, 4)
    )
    assert few["train_rc_end"] == more["train_rc_end"] < few["train_rc"]
    assert few["train_gap_rc_end"] == few["train_error"] - few["train_rc_end"]


def test_a_run_without_references_is_saved_too(wine, tmp_path):
    pb.simulate(*wine, **SETTINGS, references=False).save(tmp_path)
    assert np.isnan(pb.Run.load(tmp_path).references["test_rc"])


def test_links_are_the_networks(wine):
    ring = pb.simulate(*wine, **SETTINGS, topology="ring", references=False, peers_down=0.5)
    assert ring.links.tolist() == [[0, 1], [0, 5], [1, 2], [2, 3], [3, 4], [4, 5]]
