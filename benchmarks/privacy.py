"""What privacy costs, and whether working together still pays: 50 peers, δ = 1e-5, three seeds, `exact`.

    PEERBAYES_DATA=folder python benchmarks/privacy.py [--seeds 3] [--only letter]

Each line is the mean test error of peers with privacy, its limit, without privacy, and of peers alone. The network is
tree+80, with edge noise (3 times each one's own) regular-6. Continuous and discrete columns as the paper has them.
"""

import argparse
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import peerbayes as pb
from peerbayes.experiments.cells import prepared

# dataset, rows of each peer, ε, limit, further terms, network, start
CELLS = (
    ("adult", 50, 4.0, 0.19, {}, "tree+80", "uniform"),
    ("adult", 320, 4.0, 0.165, {}, "tree+80", "uniform"),
    ("adult", 320, 4.0, 0.16, {}, "tree+80", "ml"),
    ("pulsar", 50, 4.0, 0.035, {}, "tree+80", "uniform"),
    ("letter", 320, 4.0, 0.30, {}, "tree+80", "uniform"),
    ("letter", 320, 8.0, 0.265, {}, "tree+80", "uniform"),
    ("letter", 50, 4.0, 0.40, {"edge_noise": 3.0}, "regular-6", "uniform"),
    ("letter", 50, 4.0, None, {}, "regular-6", "uniform"),
)
PEERS = 50


def simulated(
    dataset: str, rows: int, topology: str, start: str, seed: int, privacy: pb.Privacy | None
) -> pb.Run:
    found = prepared(dataset)
    train, test = found.split(PEERS * rows, seed)
    kinds = [found.schema.kinds[name] for name in found.schema.names]
    return pb.simulate(
        *train, kinds=kinds, peers=PEERS, rows_per_peer=rows, topology=topology, start=start, privacy=privacy,
        test=test, evaluate_every=0, seed=seed,
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", help="one dataset")
    asked = parser.parse_args()
    missed = []
    print(
        f"{'dataset':<9}{'rows':>5}{'ε':>4}  {'':<12}{'start':<9}{'private':>8}{'limit':>8}{'without':>9}{'alone':>8}"
        f"{'ρ':>7}"
    )
    for dataset, rows, epsilon, limit, more, topology, start in CELLS:
        if asked.only not in (None, dataset):
            continue
        begun, private, plain, alone, rho = time.perf_counter(), [], [], [], 0.0
        for seed in range(asked.seeds):
            run = simulated(dataset, rows, topology, start, seed, pb.Privacy(epsilon, 1e-5, **more))
            private.append(run.summary()["test_error"])
            rho = float(run.privacy["rho"].iloc[0])
            told = simulated(dataset, rows, topology, start, seed, None).summary()
            plain.append(told["test_error"])
            alone.append(told["test_local"])
        error = float(np.mean(private))
        verdict = "" if limit is None else "ok" if error <= limit else "MISSED"
        missed += [f"{dataset} {rows}"] if verdict == "MISSED" else []
        shown = "–" if limit is None else f"{limit:.3f}"
        noise = "edge noise" if more else ""
        print(
            f"{dataset:<9}{rows:>5}{epsilon:>4.0f}  {noise:<12}{start:<9}{error:>8.4f}{shown:>8}{np.mean(plain):>9.4f}"
            f"{np.mean(alone):>8.4f}{rho:>7.3f}  {verdict} {time.perf_counter() - begun:.0f} s",
            flush=True,
        )
    if missed:
        print("missed:", ", ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
