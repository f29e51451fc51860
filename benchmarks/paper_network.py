"""The paper's setting on its datasets: 50 peers x 50 rows, a random tree, 64 rounds, lr 0.05, naive Bayes.

    PEERBAYES_DATA=folder python benchmarks/paper_network.py [--seeds 5] [--strategies crc,exact] [letter:drift-y ...]

Prints the mean test gap to RC over the seeds, beside the limit it must keep.
"""

import argparse
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from paper_rc import DATASETS

import peerbayes as pb

TRAIN, TEST = 2500, 3000

# What must be shown: (dataset, partition, strategy): largest mean test gap to RC.
LIMITS = {
    ("letter", "iid", "crc"): 0.08,
    ("letter", "iid", "exact"): 0.01,
    ("adult", "iid", "exact"): 0.005,
    ("smoking", "iid", "exact"): 0.005,
    ("letter", "drift-y", "exact"): 0.03,
    ("secondary", "drift-y", "exact"): 0.02,
    ("adult", "drift-y", "exact"): 0.01,
    ("default", "drift-y", "exact"): 0.01,
}


def rows_of(
    folder: Path, name: str, seed: int
) -> tuple[pd.DataFrame, np.ndarray, tuple[pd.DataFrame, np.ndarray]]:
    """Training rows and labels, and test rows: a random split of a dataset."""
    file, left_out, _ = DATASETS[name]
    frame = pd.read_parquet(folder / f"{file}.parquet")
    X, y = frame.iloc[:, :-1].drop(columns=left_out), frame.iloc[:, -1].to_numpy()
    order = np.random.default_rng(seed).permutation(len(X))
    train, test = order[:TRAIN], order[TRAIN : TRAIN + TEST]
    return X.iloc[train], y[train], (X.iloc[test], y[test])


def gap(folder: Path, name: str, seeds: int, **settings: object) -> tuple[float, float, float]:
    """Mean test gap to RC, its standard error, and the mean test error."""
    told = []
    for seed in range(seeds):
        X, y, test = rows_of(folder, name, seed)
        run = pb.simulate(X, y, kinds="paper", test=test, seed=seed, evaluate_every=0, **settings)  # type: ignore[arg-type]
        told.append(run.summary())
    gaps = np.array([summary["test_gap_rc"] for summary in told])
    spread = float(gaps.std(ddof=1) / np.sqrt(seeds)) if seeds > 1 else float("nan")
    return float(gaps.mean()), spread, float(np.mean([summary["test_error"] for summary in told]))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cells", nargs="*", help="dataset:partition; all that have a limit by default")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--strategies", default="crc,exact")
    parser.add_argument("--topology", default="tree")
    asked = parser.parse_args()
    if "PEERBAYES_DATA" not in os.environ:
        print("PEERBAYES_DATA must name the folder of the datasets", file=sys.stderr)
        return 2
    folder, missed = Path(os.environ["PEERBAYES_DATA"]), []
    cells = [tuple(cell.split(":")) for cell in asked.cells] or list(dict.fromkeys(key[:2] for key in LIMITS))
    print(f"{'dataset':<12}{'partition':<12}{'strategy':<14}{'gap':>8}{'stderr':>8}{'error':>8}   limit")
    for name, partition in cells:
        for strategy in asked.strategies.split(","):
            mean, spread, error = gap(
                folder, name, asked.seeds, partition=partition, strategy=strategy, topology=asked.topology
            )
            limit = LIMITS.get((name, partition, strategy))
            met = limit is None or mean <= limit
            missed += [] if met else [f"{name}:{partition}:{strategy}"]
            against = "" if limit is None else f"<= {limit:g} {'ok' if met else 'MISSED'}"
            print(
                f"{name:<12}{partition:<12}{strategy:<14}{mean:>8.4f}{spread:>8.4f}{error:>8.3f}   {against}",
                flush=True,
            )
    print("all limits met" if not missed else f"missed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
