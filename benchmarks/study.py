"""What a study costs beside bare calls of `simulate`, and how long a folder of a thousand cells takes to open.

    python benchmarks/study.py [--cells 24] [--peers 50] [--rows 20000] [--turns 6]

In each turn the same cells are computed twice, in an order that alternates: as a script of bare calls, a process of its
own, and as a script that calls `pb.study` with one worker. Both are counted in processor time of the process and its
children, on one thread, with the time to import everything. So the ratio has all that a study adds: the import of its
worker, which any number of cells shares, the store and the tables. At most 1.05 is allowed.

A folder of a thousand cells is opened, and its frame, history and comparison are made, in at most a second of processor
time. The exit code is 1 if a limit is missed.
"""

import measuring  # isort: skip  # before numpy: it limits the threads

import argparse
import math
import os
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np

# The most that a study may take beside bare calls, and a folder of a thousand cells to open, in seconds.
MOST_RATIO, MOST_SECONDS = 1.05, 1.0

# How often the folder is opened.
OPENED = 8

DATA = """
import sys
import numpy as np
import peerbayes as pb

rows, peers, cells, folder = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
rng = np.random.default_rng(0)
y = rng.integers(0, 5, rows)
X = rng.normal(size=(rows, 20)) + 0.5 * y[:, None] * (np.arange(20) % 3 == 0)
settings = dict(peers=peers, rows_per_peer=50)
"""
BARE = (
    DATA
    + """
from peerbayes.experiments.study_cells import split
for strategy in ("exact", "crc"):
    for seed in range(cells // 2):
        train, test = split(y, seed)
        run = pb.simulate(X[train], y[train], test=(X[test], y[test]), strategy=strategy, seed=seed, **settings)
        run.summary(), run.history
"""
)
STUDY = (
    DATA
    + """
pb.study(X, y, strategy=["exact", "crc"], seed=range(cells // 2), folder=folder, workers=1, progress=False, **settings)
"""
)


def seconds_of(script: str, *words: object) -> float:
    """Return the processor time of a script and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "NUMBA_NUM_THREADS": "1"}  # others are limited by `measuring`
    subprocess.run([sys.executable, "-c", script, *map(str, words)], check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def overhead(rows: int, peers: int, cells: int, turns: int) -> None:
    """Report the ratio of the processor times of both."""
    logs, taken = [], {BARE: [], STUDY: []}
    for turn in range(turns):
        for script in (BARE, STUDY) if turn % 2 else (STUDY, BARE):
            with tempfile.TemporaryDirectory() as folder:
                taken[script].append(seconds_of(script, rows, peers, cells, folder))
        logs.append(math.log(taken[STUDY][-1] / taken[BARE][-1]))
        print(
            f"turn {turn + 1}: {taken[BARE][-1]:.1f} s bare, {taken[STUDY][-1]:.1f} s as a study", flush=True
        )
    bare, study = (float(np.median(taken[script])) for script in (BARE, STUDY))
    print(
        f"{cells} cells of {peers} peers, {rows:,} rows: {bare:.1f} s bare, {study:.1f} s as a study (medians)"
    )
    what = f"a study of {cells} cells / bare calls of simulate"
    measuring.at_most(what, measuring.ratio_of(logs), MOST_RATIO)


def thousand() -> None:
    """Report how long a folder with a thousand cells takes to open."""
    from peerbayes.experiments.study import Study
    from peerbayes.experiments.study_plan import planned

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        y = rng.integers(0, 2, 200)
        settings = {
            "rows_per_peer": 3,  # 50 peers of them fit into the table
            "lr": np.linspace(0.01, 0.1, 10),
            "topology": ["tree", "ring", "star", "chain", "complete"],
        }
        asked = planned(rng.normal(size=(200, 3)), y, folder=folder, seed=range(20), **settings)
        asked.run(Given(rng))
        assert (Study.load(folder).frame["status"] == "done").sum() == 1000
        logs = []
        for _ in range(OPENED):
            began = time.process_time()
            study = Study.load(folder)
            assert len(study.frame) == 1000 and len(study.history) == 64_000 and len(study.summary()) == 50
            logs.append(math.log(time.process_time() - began))
    what = "a folder of 1,000 cells: opened, framed and compared, in seconds"
    measuring.at_most(what, measuring.ratio_of(logs), MOST_SECONDS)


class Given:
    """An engine whose results are random numbers of the right shape, a few of them missing."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def run(self, compute, specifications):
        names = ("test_error", "train_error", "disagreement", "soft_error")
        figures = (*names, *(f"figure_{number}" for number in range(60)))
        missing = dict.fromkeys(figures[-8:], "all test rows are of the class 'a', and an AUC compares two")
        for index, _ in enumerate(specifications):
            history = {name: self.rng.random(64) for each in names for name in (each, f"{each}_std")}
            history |= {
                "round": np.arange(1.0, 65.0),
                "bytes": self.rng.random(64),
                "seconds": self.rng.random(64),
            }
            summary = dict(zip(figures, self.rng.random(len(figures)).tolist(), strict=True))
            if index % 2:
                summary |= dict.fromkeys(missing, math.nan)
            yield (
                index,
                {
                    "summary": summary, "missing": missing if index % 2 else {}, "notes": ["a note"] * 2,
                    "learners": ["peers", "majority", "alone", "rc", "rc_end", "ml"], "history": history,
                    "chosen": {}, "warnings": [], "seconds": 0.1,
                },
            )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("--cells", 24), ("--peers", 50), ("--rows", 20_000), ("--turns", 6)):
        parser.add_argument(name, type=int, default=default)
    words = parser.parse_args()
    thousand()
    overhead(words.rows, words.peers, words.cells, words.turns)
    return measuring.verdict()


if __name__ == "__main__":
    sys.exit(main())
