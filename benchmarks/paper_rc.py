"""Risk-based calibration on the paper's tabular datasets, beside the errors of an independent prototype.

    PEERBAYES_DATA=folder python benchmarks/paper_rc.py [dataset ...]

Paper typing, 2,500 training rows and 3,000 test rows, lr 0.05, 64 iterations, uniform start, last iterate, mean of five
seeds. The folder holds one Parquet file a dataset, the label in the last column.
"""

import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd

import peerbayes as pb

TRAIN, TEST, SEEDS, TOLERANCE = 2500, 3000, 5, 0.02

# Name: file, columns to leave out, test error of the prototype.
DATASETS = {
    "skin": ("skin", [], 0.074),
    "pulsar": ("pulsar", [], 0.028),
    "bank": ("bank_marketing", [], 0.111),
    "default": ("default_credit_card", [], 0.197),
    "soft": ("heart_2020", [], 0.079),
    "adult": ("adult", [], 0.161),
    "smartgrid": ("smartgrid_stability", [], 0.024),
    "smoking": ("smoking", ["oral"], 0.270),  # a constant column that the paper does not count
    "secondary": ("secondary_mushroom", [], 0.264),
    "letter": ("letter_recognition", [], 0.247),
}


def errors(folder: Path, name: str) -> tuple[float, float]:
    """Mean test error of maximum likelihood and of risk-based calibration."""
    file, left_out, _ = DATASETS[name]
    frame = pd.read_parquet(folder / f"{file}.parquet")
    X, y = frame.iloc[:, :-1].drop(columns=left_out), frame.iloc[:, -1].to_numpy()
    found = []
    for seed in range(SEEDS):
        order = np.random.default_rng(seed).permutation(len(X))
        train, test = order[:TRAIN], order[TRAIN : TRAIN + TEST]
        models = (
            pb.MixedNB(kinds="paper", alpha=1.0, shrinkage=None),
            pb.MixedNB(
                kinds="paper",
                calibrate=True,
                start="uniform",
                lr=0.05,
                max_iter=64,
                keep="last",
                step="fixed",
                validation_fraction=0,
            ),
        )
        found.append([1 - m.fit(X.iloc[train], y[train]).score(X.iloc[test], y[test]) for m in models])
    likely, calibrated = np.mean(found, axis=0)
    return float(likely), float(calibrated)


def main() -> int:
    if "PEERBAYES_DATA" not in os.environ:
        print("PEERBAYES_DATA must name the folder of the datasets", file=sys.stderr)
        return 2
    folder, missed = Path(os.environ["PEERBAYES_DATA"]), []
    print(f"{'dataset':<12}{'ML':>8}{'RC':>8}{'prototype':>12}{'difference':>12}")
    for name in sys.argv[1:] or DATASETS:
        likely, calibrated = errors(folder, name)
        target = DATASETS[name][2]
        met = abs(calibrated - target) <= TOLERANCE
        missed += [] if met else [name]
        difference = f"{calibrated - target:+.3f}"
        print(
            f"{name:<12}{likely:>8.3f}{calibrated:>8.3f}{target:>12.3f}{difference:>12}{'' if met else '  MISSED'}"
        )
    print(f"within {TOLERANCE}: {'all' if not missed else 'not ' + ', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
