"""Rules of `relay` and `auto`, on the paper's datasets: how much the reflex counts, when the guard acts, what fits.

    PEERBAYES_DATA=folder python benchmarks/relay_rules.py [share] [guard] [near] [--seeds 10]

share  gap of `relay` to RC by the share κ that its reflex begins with: 0.1, or ρ as measured; and that of `exact`
guard  gap of `relay` to RC where data differ, by how near to its highest the residual must grow for the guard to act:
       0 (any growth), 0.5 (the default), and never; κ begins with 0.1 here
near   gap of `relay` and of `exact` to RC, i.i.d., by the mean distance between peers
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np

from peerbayes import network
from peerbayes.experiments.cells import Cell, compute
from peerbayes.learning import choice, relay

MEASURED = choice.LinkSums.likeness
SHARES = {"0.1": property(lambda sums: 0.1), "measured": MEASURED}
LEAST = relay.FIRST_SHARE
SHARED = (("tree", "iid"), ("tree+40", "iid"), ("tree", "drift-xy"), ("tree+20", "drift-xy"))
RULES = {"any growth": 0.0, "half the highest": 0.5, "never": 9.0}
DRIFTS = ("drift-x", "drift-y", "drift-xy")
NETWORKS = ("tree", "tree+20", "tree+80")
SIZES = (20, 50, 80, 160)


def gap(cell: Cell) -> float:
    found, reference = compute(cell.specification()), compute(cell.reference.specification())
    return float(found["test_error"] - reference["test_rc"])


def by_rule(dataset: str, seed: int, topology: str, partition: str) -> list[float]:
    gaps = []
    choice.LinkSums.likeness = SHARES["0.1"]
    for share in RULES.values():
        relay.OF_HIGHEST = share
        gaps.append(gap(Cell(dataset, seed, "relay", topology=topology, partition=partition)))
    choice.LinkSums.likeness, relay.OF_HIGHEST = MEASURED, RULES["half the highest"]
    return gaps


def by_share(dataset: str, seed: int, topology: str, partition: str) -> list[float]:
    gaps = []
    for likeness in SHARES.values():
        choice.LinkSums.likeness, relay.FIRST_SHARE = likeness, 0.0  # whatever is measured
        gaps.append(gap(Cell(dataset, seed, "relay", topology=topology, partition=partition)))
    choice.LinkSums.likeness, relay.FIRST_SHARE = MEASURED, LEAST
    return [*gaps, gap(Cell(dataset, seed, "exact", topology=topology, partition=partition))]


def by_distance(dataset: str, seed: int, peers: int) -> list[float]:
    links = network.schedule("tree", peers, np.random.default_rng([seed, 1])).at(1)
    gaps = [gap(Cell(dataset, seed, strategy, peers=peers)) for strategy in ("exact", "relay")]
    return [relay.spanning_tree(links).mean_distance, *gaps]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["share", "guard", "near"])
    parser.add_argument("--seeds", default="10", help="seeds with commas between them")
    parser.add_argument("--datasets", default="secondary,fashion,mnist")
    parser.add_argument("--workers", type=int, default=None, help="processes; default: one per processor")
    asked = parser.parse_args()
    if "PEERBAYES_DATA" not in os.environ:
        print("PEERBAYES_DATA must name the folder of the datasets", file=sys.stderr)
        return 2
    seeds, datasets = [int(seed) for seed in asked.seeds.split(",")], asked.datasets.split(",")
    with ProcessPoolExecutor(asked.workers) as pool:
        if "share" in asked.parts:
            titles = (*SHARES, "exact")
            print(
                f"{'dataset':<12}{'seed':>5}  {'network':<10}{'partition':<10}"
                + "".join(f"{t:>10}" for t in titles)
            )
            cells = [(d, s, *at) for d in datasets for s in seeds for at in SHARED]
            for cell, gaps in zip(cells, pool.map(by_share, *zip(*cells, strict=True)), strict=True):
                values = "".join(f"{value:>10.3f}" for value in gaps)
                print(f"{cell[0]:<12}{cell[1]:>5}  {cell[2]:<10}{cell[3]:<10}{values}", flush=True)
        if "guard" in asked.parts:
            print(
                f"{'dataset':<12}{'seed':>5}  {'network':<10}{'partition':<10}"
                + "".join(f"{r:>18}" for r in RULES)
            )
            cells = [(d, s, n, p) for d in datasets for s in seeds for n in NETWORKS for p in DRIFTS]
            for cell, gaps in zip(cells, pool.map(by_rule, *zip(*cells, strict=True)), strict=True):
                told = "".join(f"{value:>18.3f}" for value in gaps)
                print(f"{cell[0]:<12}{cell[1]:>5}  {cell[2]:<10}{cell[3]:<10}{told}", flush=True)
        if "near" in asked.parts:
            print(f"\n{'dataset':<12}{'seed':>5}{'peers':>7}{'distance':>10}{'exact':>9}{'relay':>9}")
            nets = [(d, s, n) for d in datasets for s in seeds for n in SIZES]
            for net, found in zip(nets, pool.map(by_distance, *zip(*nets, strict=True)), strict=True):
                told = f"{found[0]:>10.1f}" + "".join(f"{value:>9.3f}" for value in found[1:])
                print(f"{net[0]:<12}{net[1]:>5}{net[2]:>7}{told}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
