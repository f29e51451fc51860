"""What a study costs beside bare calls of `simulate`, and how long a store of a thousand cells takes to open.

    python benchmarks/study.py [--cells 24] [--peers 50] [--rows 20000] [--repeat 3]

Each repetition runs the same cells twice, in random order: as a script of bare calls, a process of its own, and as a
script that calls `pb.study` with one worker. Both are counted in processor time of the process and all its children, on
one thread, with the time to import everything. The overhead of the pool (a second import), of the store and of the
tables is in the difference, which is the same for any number of cells; the figure per cell is beside it.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

THREADS = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)

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
    subprocess.run(
        [sys.executable, "-c", script, *map(str, words)], check=True, env={**os.environ, **THREADS}
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def overhead(rows: int, peers: int, cells: int, repeat: int) -> None:
    """Print processor time of both, interleaved, and the overhead."""
    rng, totals = np.random.default_rng(), {"bare": [], "study": []}
    for _ in range(repeat):
        for name in rng.permutation(list(totals)):
            with tempfile.TemporaryDirectory() as folder:
                script = BARE if name == "bare" else STUDY
                totals[str(name)].append(seconds_of(script, rows, peers, cells, folder))
    bare, study = (float(np.median(totals[name])) for name in ("bare", "study"))
    print(f"{cells} cells of {peers} peers, {rows:,} rows; median of {repeat}, processor time")
    print(f"  bare calls  {bare:.2f} s ({', '.join(f'{value:.2f}' for value in totals['bare'])})")
    print(f"  study       {study:.2f} s ({', '.join(f'{value:.2f}' for value in totals['study'])})")
    print(
        f"  overhead    {study - bare:.2f} s, {(study - bare) / bare:.1%}, {(study - bare) / cells:.3f} s a cell"
    )


def thousand() -> None:
    """Print how long a folder with a thousand cells takes to open."""
    from peerbayes.experiments.results_store import Store
    from peerbayes.experiments.study import STORE_FILE, Study
    from peerbayes.experiments.study_plan import planned

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        y = rng.integers(0, 2, 200)
        settings = {
            "lr": np.linspace(0.01, 0.1, 10),
            "topology": ["tree", "ring", "star", "chain", "complete"],
        }
        asked = planned(rng.normal(size=(200, 3)), y, folder=folder, seed=range(20), **settings)
        asked.run(Given(rng))
        assert len(Store(Path(folder) / STORE_FILE).frame()) == 1000
        for what in ("open and frame", "history", "summary"):
            began = time.perf_counter()
            study = Study.load(folder)
            {"open and frame": lambda s: s.frame, "history": lambda s: s.history, "summary": Study.summary}[
                what
            ](study)
            print(f"  1,000 cells, {what}: {time.perf_counter() - began:.2f} s")


class Given:
    """An engine whose results are random numbers of the right shape."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def run(self, compute, specifications):
        names = ("test_error", "train_error", "disagreement", "soft_error")
        figures = (*names, *(f"figure_{number}" for number in range(40)))
        for index, _ in enumerate(specifications):
            history = {name: self.rng.random(64) for each in names for name in (each, f"{each}_std")}
            history |= {
                "round": np.arange(1.0, 65.0),
                "bytes": self.rng.random(64),
                "seconds": self.rng.random(64),
            }
            summary = dict(zip(figures, self.rng.random(44).tolist(), strict=True))
            yield (
                index,
                {"summary": summary, "history": history, "chosen": {}, "warnings": [], "seconds": 0.1},
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("--cells", 24), ("--peers", 50), ("--rows", 20_000), ("--repeat", 3)):
        parser.add_argument(name, type=int, default=default)
    words = parser.parse_args()
    thousand()
    overhead(words.rows, words.peers, words.cells, words.repeat)
