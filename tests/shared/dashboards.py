"""What dashboards show: a folder as a simulation leaves it; and a dashboard as a process."""

import contextlib
import subprocess
import sys
import time

import numpy as np

from peerbayes.simulation.records import COLUMNS
from peerbayes.simulation.view import LiveFile
from shared.commands import HANG

PEERS, ROUNDS = 4, 50


class Simulated:
    """What a simulation writes, round by round, without one."""

    def __init__(self, folder, strategy="exact", peers=PEERS):
        configuration = {"strategy": strategy, "rounds": ROUNDS, "evaluate_every": 1}
        links = np.stack([np.arange(peers - 1), np.arange(1, peers)], axis=1)
        self.peers, self.done = peers, 0
        self.file = LiveFile(folder, configuration, {"made": strategy}, np.full(peers, 7), links)

    def round(self):
        self.done += 1
        records = np.zeros((self.peers, len(COLUMNS)))
        records[:, 0], records[:, 1] = self.done, np.arange(self.peers)
        records[:, 2:6] = 1.0 / (self.done + np.arange(self.peers))[:, None]
        records[:, 6] = 100.0 * self.done
        self.file.add(records)


@contextlib.contextmanager
def watching(folder, *options):
    """A dashboard's process, and its address."""
    words = [sys.executable, "-m", "peerbayes", "watch", str(folder), "--address", "0", *options]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http"), process.stderr.read()
        yield process, url
    finally:
        process.kill()
        process.communicate()


def until(found, what, patience=HANG):
    end = time.monotonic() + patience
    while not (value := found()):
        assert time.monotonic() < end, what
        time.sleep(0.02)
    return value
