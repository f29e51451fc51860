"""Small studies that are computed in this process, and scripts of studies that are killed."""

import signal
import subprocess
import sys
import time

import numpy as np

import peerbayes as pb
from peerbayes.experiments.results_store import Store
from shared.commands import HANG

SMALL = {"peers": 4, "rows_per_peer": 15, "rounds": 3}


class Here:
    """Computes cells in this process, and counts them."""

    name = "here"

    def __init__(self):
        self.count = 0

    def run(self, compute, specifications):
        for index, specification in enumerate(specifications):
            self.count += 1
            yield index, compute(specification)


def asked(data, engine=None, **settings):
    """Return a study of small simulations."""
    return pb.study(*data, engine=engine or Here(), progress=False, **{**SMALL, **settings})


def two_classes(rows=120, seed=0):
    """Return a small table of two classes."""
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % 2
    return rng.normal(size=(rows, 3)) + 1.2 * y[:, None], y


def killed_while_it_runs(script, results, done):
    """Run a script in a process, and kill it with -9 once its store of results has so many cells."""
    running = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline and not (results.exists() and len(Store(results).frame()) >= done):
        time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.wait()
