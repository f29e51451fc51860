"""Where calibration ends: adaptive steps chosen on held-out rows, beside 64 and 512 steps of the paper's.

    python benchmarks/steps.py [--seeds 0 1 2 3 4] [--sets car adult ...] [--families MixedNB TAN]

Discrete sets (PEERBAYES_DATA/discrete): two thirds of the rows; tabular ones: 2,500 rows, typed as the paper does; at
most 5,000 test rows. Each cell is the mean over seeds of test error / log loss without a temperature.

    fixed 64, fixed 512   lr 0.05, the last iterate            end       adaptive steps of all rows, the last iterate
    default               the estimator's defaults: adaptive, at most 64 steps, the number chosen on held-out rows
    steps                 the number chosen, and processor seconds of the default fit
    over                  the largest difference, over seeds, of the default's log loss to that of its last iterate
"""

import argparse
import os
import time
from pathlib import Path

import measuring  # noqa: F401  (one thread)
import numpy as np
import pandas as pd
from sklearn.metrics import log_loss

import peerbayes as pb
from peerbayes.estimators.classifiers import ESTIMATORS
from peerbayes.experiments.cells import prepared

DISCRETE = ("tic_tac_toe", "car", "nursery", "krk", "soybean", "splice", "pendigits")
TABULAR = (
    "adult",
    "bank",
    "default",
    "letter",
    "pulsar",
    "run",
    "secondary",
    "skin",
    "smartgrid",
    "smoking",
    "soft",
)
PAPER = {"step": "fixed", "validation_fraction": 0.0, "keep": "last"}
WAYS = {
    "fixed 64": PAPER,
    "fixed 512": {**PAPER, "max_iter": 512},
    "end": {"validation_fraction": 0.0, "keep": "last"},
    "default": {},
}


def table(name: str) -> tuple[pd.DataFrame, np.ndarray, dict, int]:
    """Return columns, labels, the kinds of the columns and the number of training rows."""
    if name in DISCRETE:
        frame = pd.read_parquet(Path(os.environ["PEERBAYES_DATA"]) / "discrete" / f"{name}.parquet").astype(
            str
        )
        return frame.iloc[:, :-1], frame.iloc[:, -1].to_numpy(), {"kinds": "discrete"}, len(frame) * 2 // 3
    data = prepared(name)
    kinds = [column.kind for column in data.schema.columns]
    return pd.DataFrame(data.values), np.asarray(data.labels), {"kinds": kinds}, 2500


def run(name: str, family: str, seed: int, start: str | None) -> dict[str, tuple[float, ...]]:
    """Return test error, log loss, the step kept and the seconds of each way."""
    X, y, settings, rows = table(name)
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = order[:rows], order[rows : rows + 5000]
    test = test[np.isin(y[test], y[train])]
    if "temperature" in pb.MixedNB().get_params():
        settings["temperature"] = False
    if start:
        settings["start"] = start
    results = {}
    for way, parameters in WAYS.items():
        began = time.process_time()
        model = ESTIMATORS[family](calibrate=True, **settings, **parameters).fit(X.iloc[train], y[train])
        seconds = time.process_time() - began
        error, posterior = 1 - model.score(X.iloc[test], y[test]), model.predict_proba(X.iloc[test])
        loss = log_loss(y[test], np.clip(posterior, 1e-300, 1), labels=model.classes_)
        results[way] = (error, loss, model.best_iter_, seconds)
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--sets", nargs="+", default=[*DISCRETE, *TABULAR])
    parser.add_argument("--families", nargs="+", default=["MixedNB", "TAN"])
    parser.add_argument(
        "--start", default=None, help="the start of calibration, where not the family's default"
    )
    arguments = parser.parse_args()
    print(f"| set | family | {' | '.join(WAYS)} | steps | seconds | over |")
    print("|---" * (len(WAYS) + 5) + "|")
    for name in arguments.sets:
        for family in arguments.families:
            cells = [run(name, family, seed, arguments.start) for seed in arguments.seeds]
            means = {way: np.mean([cell[way] for cell in cells], axis=0) for way in WAYS}
            over = max(cell["default"][1] - cell["end"][1] for cell in cells)
            figures = " | ".join(f"{means[way][0]:.3f} / {means[way][1]:.3f}" for way in WAYS)
            chosen, seconds = means["default"][2:]
            print(
                f"| {name} | {family} | {figures} | {chosen:.0f} | {seconds:.1f} | {over:.3f} |", flush=True
            )
