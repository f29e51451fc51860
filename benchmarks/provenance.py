"""What naming its rows costs a simulation: the time of a table's digest beside that of a default simulation.

PEERBAYES_DATA=folder python benchmarks/provenance.py wine digits adult soft
"""

from __future__ import annotations

import sys
import time
import warnings

import peerbayes as pb
from peerbayes.data.datasets import load
from peerbayes.simulation.provenance import data_of, machine


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    print("| table | rows × columns | digest | default simulation | share |\n|---|---|---|---|---|")
    for name in names:
        dataset = load(name)
        X, y = dataset.frame, dataset.labels.to_numpy()
        rows_per_peer = min(50, len(y) * 2 // 150)

        def seconds(call: object) -> float:
            began = time.process_time()
            call()  # type: ignore[operator]
            return time.process_time() - began

        data_of(X, y, 2, None), machine()  # imports
        digest = min(seconds(lambda X=X, y=y: (data_of(X, y, 2, None), machine())) for _ in range(3))
        taken = seconds(lambda X=X, y=y, rows=rows_per_peer: pb.simulate(X, y, rows_per_peer=rows))
        size = f"{len(X):,} × {X.shape[1]}"
        print(f"| {name} | {size} | {digest:.4f} s | {taken:.2f} s | {digest / taken:.1%} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["wine", "breast-cancer", "digits"])
