"""Strategies side by side, as peers' data drift apart: the gap of their test error to RC on the pooled rows.

python examples/compare_strategies.py
"""

import pandas as pd
from sklearn.datasets import load_digits

import peerbayes as pb

PARTITIONS = {"iid": "alike", "drift-x": "drift in p(x)", "drift-y": "one class a peer"}
STRATEGIES = ("local", "crc", "exact", "auto")
SEEDS = (0, 1)

X, y = load_digits(return_X_y=True)
records = []
for partition, what in PARTITIONS.items():
    for strategy in STRATEGIES:
        for seed in SEEDS:
            run = pb.simulate(
                X, y, peers=24, rows_per_peer=25, topology="tree", partition=partition, strategy=strategy, rounds=32,
                evaluate_every=0, seed=seed,
            )  # fmt: skip
            told = run.summary()
            records.append(
                {"data": what, "strategy": strategy, "gap": told["test_gap_rc"], "spread": told["test_std"]}
            )

table = pd.DataFrame(records).groupby(["data", "strategy"], sort=False).mean()
print(f"24 peers on a tree, 32 rounds, mean over {len(SEEDS)} seeds of the gap to RC (0 is the aim):\n")
print(table["gap"].unstack()[list(STRATEGIES)].round(3).to_string())
print("\nand of the spread over peers:\n")
print(table["spread"].unstack()[list(STRATEGIES)].round(3).to_string())
