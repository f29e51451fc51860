"""Learning to the end over a network: 20 peers on a tree, each with rows of few classes, and RC on the pooled rows.

    python benchmarks/to_the_end.py [--seeds 0,1,2,3,4] [--sets car,krk] [--strategies tree-sum]

The test error after so many rounds (and matrices of float64 to each neighbour) of `tree-sum`, `exact` and `relay`, the
mean over seeds; that of RC on the pooled rows after 64 and 512 steps of lr 0.05; and by how much `tree-sum` is above
the latter after 64 and 128 rounds in the mean and at worst. TAN from the start `ml`, naive Bayes from the uniform one.
Needs PEERBAYES_DATA with the folder `discrete`; two thirds of the rows are the peers', the others test.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import peerbayes as pb

SETS = {
    "tic-tac-toe": ("tic_tac_toe", "tan", "ml"),
    "tic-tac-toe nb": ("tic_tac_toe", "naive-bayes", "uniform"),
    "car": ("car", "tan", "ml"),
    "nursery": ("nursery", "tan", "ml"),
    "krk": ("krk", "tan", "ml"),
}
PEERS, AFTER = 20, (32, 64, 128)


def table(name: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the columns as text, and the labels."""
    frame = pd.read_parquet(Path(os.environ["PEERBAYES_DATA"]) / "discrete" / f"{name}.parquet").astype(str)
    return frame.iloc[:, :-1], frame.iloc[:, -1].to_numpy()


def errors(dataset: str, seed: int, strategies: list[str]) -> dict[str, float]:
    """Return the test errors of one seed by column of the table."""
    file, family, start = SETS[dataset]
    X, y = table(file)
    common: dict[str, Any] = {
        "peers": PEERS, "rows_per_peer": 2 * len(y) // 3 // PEERS, "topology": "tree", "partition": "drift-y",
        "family": family, "start": start, "seed": seed, "kinds": "discrete", "start_rounds": 200,
    }  # fmt: skip
    found: dict[str, float] = {}
    for strategy in strategies:
        run = pb.simulate(
            X, y, strategy=strategy, rounds=AFTER[-1], evaluate_every=32, references=False, **common
        )
        by_round = run.history.groupby("round")["test_error"].mean()
        found |= {f"{strategy} {after}": float(by_round[after]) for after in AFTER}
    for steps in (64, 512):
        run = pb.simulate(X, y, strategy="local", rounds=steps, evaluate_every=0, **common)
        found[f"RC {steps}"] = run.summary()["test_rc"]
    return found


def main() -> None:
    """Print a row for each dataset."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--strategies", default="tree-sum,exact,relay", help="with tree-sum")
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    strategies = arguments.strategies.split(",")
    for place, dataset in enumerate(arguments.sets.split(",")):
        by_seed = pd.DataFrame([errors(dataset, seed, strategies) for seed in seeds], index=seeds)
        gaps = {after: by_seed[f"tree-sum {after}"] - by_seed["RC 512"] for after in (64, 128)}
        row = by_seed.mean().round(4).to_dict()
        row |= {f"gap {after}": f"{gap.mean():+.4f} ({gap.max():+.4f})" for after, gap in gaps.items()}
        if not place:
            print("set", *row, sep=" | ")
        print(dataset, *row.values(), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
