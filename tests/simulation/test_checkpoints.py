"""A simulation killed with -9 and started again ends with the same bits."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

import peerbayes as pb
from peerbayes.learning import state

SETTINGS = {"peers": 10, "rows_per_peer": 60, "rounds": 60, "partition": "drift-y", "message_loss": 0.1}
SCRIPT = """
import sys, time
import peerbayes as pb
from peerbayes.learning import state
from sklearn.datasets import load_digits
state.PAUSE = 0.0
X, y = load_digits(return_X_y=True)
slowly = lambda done, of: (print(done, flush=True), time.sleep(0.02))
pb.simulate(X, y, checkpoint=sys.argv[1], progress=slowly, **{settings})
"""


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path):
    X, y = load_digits(return_X_y=True)
    path = tmp_path / "checkpoint"
    expected = pb.simulate(X, y, **SETTINGS)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.replace("{settings}", repr(SETTINGS)), str(path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    reached = 0
    while reached < 20:
        reached = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert path.exists()
    turns = []
    again = pb.simulate(X, y, checkpoint=path, progress=lambda done, of: turns.append(done), **SETTINGS)
    assert 10 < turns[0] <= 61
    assert again.stats.tobytes() == expected.stats.tobytes()
    assert again.records.tobytes() == expected.records.tobytes()
    assert not again.seconds_by_round.size and expected.seconds_by_round.size == SETTINGS["rounds"]
    assert not path.exists()


@pytest.mark.parametrize("strategy", ["crc", "exact", "tracking", "dsgd", "relay"])
def test_every_strategys_state_is_kept(strategy, tmp_path, monkeypatch):
    X, y = load_digits(return_X_y=True)
    settings = {**SETTINGS, "rounds": 12, "strategy": strategy, "message_loss": 0.0}
    monkeypatch.setattr(state, "PAUSE", 0.0)

    def stop(done, of):
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pb.simulate(X, y, checkpoint=tmp_path / "c", progress=stop, **settings)
    again = pb.simulate(X, y, checkpoint=tmp_path / "c", **settings)
    np.testing.assert_array_equal(again.stats, pb.simulate(X, y, **settings).stats)


def test_a_checkpoint_of_another_simulation_is_refused(tmp_path, monkeypatch):
    X, y = load_digits(return_X_y=True)
    monkeypatch.setattr(state, "PAUSE", 0.0)

    def stop(done, of):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pb.simulate(X, y, checkpoint=tmp_path / "c", progress=stop, **SETTINGS)
    before = (tmp_path / "c").read_bytes()
    for X_other, change in ((X, {"lr": 0.01}), (X + 1.0 * (X > 8), {})):
        with pytest.raises(pb.ConfigurationError, match="checkpoint of another simulation"):
            pb.simulate(X_other, y, checkpoint=tmp_path / "c", **{**SETTINGS, **change})
    assert (tmp_path / "c").read_bytes() == before
    (tmp_path / "c").write_bytes(before[:-5])
    with pytest.raises(pb.ModelFileDamaged, match="truncated or altered"):
        pb.simulate(X, y, checkpoint=tmp_path / "c", **SETTINGS)
