"""A report's size and the seconds it takes, against their limits.

    python benchmarks/report.py              64 rounds x 320 peers, and 10,000 peers
    python benchmarks/report.py --figures    also the files for papers

Simulating is not counted.
"""

from measuring import report as told, verdict  # isort: skip  # before numpy: it limits the threads

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from peerbayes import Run, report, simulate
from peerbayes.network import adjacency, pairs
from peerbayes.report.network_figure import positions

LARGEST, SLOWEST = 8.0, 10.0  # megabytes and seconds of 64 rounds x 320 peers
LAID_OUT = 3.0  # seconds for the places of 10,000 peers


def made(peers: int, rounds: int, rows: int, every: int = 1) -> Run:
    """A run on made-up rows: ten classes, sixty-four columns."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, peers * rows + 2000)
    X = rng.normal(size=(len(y), 64)) + rng.normal(size=(10, 64))[y]
    return simulate(
        X, y, peers=peers, rows_per_peer=rows, rounds=rounds, partition="drift-y", evaluate_every=every,
        evaluate_rows=500,
    )  # fmt: skip


def written(run: Run, folder: Path) -> tuple[float, float]:
    """Seconds and megabytes."""
    began = time.perf_counter()
    path = report.write(folder / "report.html", [run])
    return time.perf_counter() - began, path.stat().st_size / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--figures", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = made(320, 64, 25)
        seconds, size = written(run, folder)
        told("64 rounds x 320 peers: megabytes", size, f"< {LARGEST:g}", size < LARGEST)
        told("64 rounds x 320 peers: seconds", seconds, f"< {SLOWEST:g}", seconds < SLOWEST)
        if asked.figures:
            began = time.perf_counter()
            report.figure_files(folder / "figures", [run], "svg")
            print(f"files for papers: {time.perf_counter() - began:.1f} s")
        large = made(10_000, 32, 5, every=2)
        seconds, size = written(large, folder)
        told("16 rounds x 10,000 peers: seconds", seconds, f"< {SLOWEST:g}", seconds < SLOWEST)
        print(f"16 rounds x 10,000 peers: {size:.1f} MB")
    links = pairs(adjacency("tree", 10_000, np.random.default_rng(1)))
    began = time.perf_counter()
    positions(10_000, links)
    seconds = time.perf_counter() - began
    told("places of 10,000 peers: seconds", seconds, f"< {LAID_OUT:g}", seconds < LAID_OUT)
    return verdict()


if __name__ == "__main__":
    sys.exit(main())
