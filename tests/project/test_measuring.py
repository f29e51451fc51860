"""The ruler of the benchmarks: ratios with intervals, and limits that can be missed."""

import importlib.util
import os
import random
from pathlib import Path

import pytest

RULER = Path(__file__).parents[2] / "benchmarks" / "measuring.py"


@pytest.fixture
def measuring(monkeypatch):
    """The module, as a benchmark imports it; it limits the threads of a process, which is undone."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))
    spec = importlib.util.spec_from_file_location("measuring", RULER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Machine:
    """A clock that calls move on: by their own time, more or less, and ever more as the machine slows down."""

    def __init__(self, noise, drift=0.0):
        self.now, self.slow, self.noise, self.drift = 0.0, 1.0, noise, drift
        self.rng, self.calls = random.Random(0), []

    def call(self, name, seconds):
        def run():
            self.calls.append(name)
            self.slow += self.drift
            self.now += seconds * self.slow * (1 + self.noise * self.rng.random())

        return run

    def compare(self, measuring, ours, theirs, **settings):
        calls = self.call("a", ours), self.call("b", theirs)
        return measuring.compare(*calls, clock=lambda: self.now, **settings)


def test_a_ratio_is_measured_on_a_machine_that_slows_down(measuring):
    ratio = Machine(noise=0.05, drift=0.01).compare(measuring, 0.06, 0.02)
    assert 2.95 < ratio.value < 3.05
    assert ratio.high - ratio.low <= measuring.NARROW * ratio.value


def test_what_is_compared_takes_turns(measuring):
    machine = Machine(noise=0.0)
    machine.compare(measuring, 0.1, 0.1)
    assert "".join(machine.calls) == "ab" + "ab" + "abba" * measuring.FEWEST_TURNS


def test_noise_takes_more_turns_and_their_number_is_bounded(measuring):
    machine = Machine(noise=20.0)
    ratio = machine.compare(measuring, 0.1, 0.1, narrow=1e-6)
    assert machine.calls.count("a") == 2 + 2 * measuring.MOST_TURNS and ratio.low < 1 < ratio.high


def test_the_interval_covers_the_ratio_as_often_as_it_says(measuring):
    rng, covered = random.Random(1), 0
    for _ in range(400):
        ratio = measuring.ratio_of([rng.gauss(0.5, 0.3) for _ in range(9)])
        covered += ratio.low < 1.6487 < ratio.high
    assert 370 <= covered <= 395


@pytest.mark.parametrize(("low", "met"), [(0.9, True), (1.0, True), (1.01, False)])
def test_a_limit_is_missed_where_all_of_the_interval_is_beyond_it(measuring, low, met):
    measuring.at_most("ours / theirs", measuring.Ratio(1.2, low, 1.4), 1.0)
    assert measuring.verdict() == (0 if met else 1)
    assert measuring.figures == [("ours / theirs", "1.20", f"{low:.2f} to 1.40", "<= 1", met)]
