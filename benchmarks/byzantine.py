"""Peers that lie: honest peers' test error by rule, without attackers and under the worst of all of them.

    python benchmarks/byzantine.py [--datasets pulsar,adult] [--attacks flip,swap] [--fractions 0.1,0.2]
                                   [--rules mean,clip,guard] [--seeds 3] [--first-seed 30] [--store figures.json]
                                   [--every]
    python benchmarks/byzantine.py --agreement [--datasets pulsar,adult] [--seeds 3] [--first-seed 30]

"+80" network of 50 peers with 50 rows each, i.i.d., the strategy `exact`, 64 rounds; needs PEERBAYES_DATA. An entry is
the mean over seeds and the worst seed; attackers are drawn anew for each. The table names the worst recipe of each rule
and dataset and shows `optimise` beside it; `--every` prints each attack. With `--store` a rerun goes on where one
stopped. Rules and attacks were developed on seeds 10 to 14; the published tables are of 30, 31 and 32.
Exit status 1 where a check fails.
--agreement: lies before the first round, see `agreement_lies`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import agreement_lies
import numpy as np

import peerbayes as pb
from peerbayes.experiments.cells import prepared

RULES = {"mean": None, "clip": "clip", "guard": "guard"}
ATTACKS = (
    "scale", "flip", "flip10", "noise", "swap", "mixswap", "label", "alie", "dissensus", "stealth", "suppress", "merge",
    "ipm", "poison", "optimise",
)  # fmt: skip

# What each rule may cost without an attack, and what it may let through of any attack by this share of the peers.
COST = {"clip": 0.006, "guard": 0.005}
HELD = {("guard", 0.1): 0.02}

# Datasets that the rules are held to. Letter misses the same limits, and the table says by how much: 26 classes and 50
# rows leave little to judge by.
PROMISED = ("adult", "pulsar")


class Figures:
    """Errors of single runs, kept in a file if there is one."""

    def __init__(self, path: Path | None):
        self.path = path
        self.kept: dict[str, float] = json.loads(path.read_text()) if path and path.exists() else {}

    def error(self, dataset: str, rule: str, attack: str, fraction: float, seed: int) -> float:
        key = f"{dataset} {rule} {attack} {fraction:g} {seed}"
        if key not in self.kept:
            self.kept[key] = error(dataset, RULES[rule], attack_of(attack, fraction), seed)
            if self.path:
                self.path.write_text(json.dumps(self.kept, indent=0))
        return self.kept[key]


def error(dataset: str, rule: str | None, attack: pb.Attack | None, seed: int) -> float:
    data = prepared(dataset)
    (X, y), test = data.split(2500, seed)
    run = pb.simulate(
        X, y, schema=data.schema, test=test, peers=50, rows_per_peer=50, topology="tree+80", strategy="exact",
        evaluate_every=0, references=False, seed=seed, robust=rule, attack=attack,
    )  # fmt: skip
    return run.summary()["test_error"]


def attack_of(name: str, fraction: float) -> pb.Attack | None:
    if name == "none":
        return None
    return pb.Attack("flip", fraction, 10.0) if name == "flip10" else pb.Attack(name, fraction)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--datasets", default="adult,pulsar,letter")
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--fractions", default="0.1,0.2")
    parser.add_argument("--rules", default=",".join(RULES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=30)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--agreement", action="store_true", help="lies before the first round instead")
    chosen = parser.parse_args()
    if chosen.agreement:
        return agreement_lies.table(
            chosen.datasets.split(","), range(chosen.first_seed, chosen.first_seed + chosen.seeds)
        )
    fractions = [float(each) for each in chosen.fractions.split(",")]
    attacks, seeds = chosen.attacks.split(","), range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    figures = Figures(chosen.store)
    beyond: dict[bool, list[str]] = {True: [], False: []}
    cases = [("none", 0.0), *((name, share) for share in fractions for name in attacks)]
    titles = [f"{what} {share:.0%}" for share in fractions for what in ("worst recipe", "optimise")]
    print("| | | none | " + " | ".join(titles) + " |")
    print("|---" * (len(titles) + 3) + "|", flush=True)
    for dataset in chosen.datasets.split(","):
        calm = np.mean([figures.error(dataset, "mean", "none", 0.0, seed) for seed in seeds])
        for rule in chosen.rules.split(","):
            errors = {
                case: [figures.error(dataset, rule, *case, seed) for seed in seeds] for case in cases
            }  # fmt: skip
            entries = [written(errors["none", 0.0])]
            for share in fractions:
                entries += worst(errors, attacks, share)
            print(f"| {dataset} | {rule} | " + " | ".join(entries) + " |", flush=True)
            if chosen.every:
                for (name, share), each in errors.items():
                    print(f"    {dataset} {rule} {name} {share:.0%}: {written(each)}", flush=True)
            beyond[dataset in PROMISED] += exceeded(dataset, rule, errors, float(calm))
    print("\nNot promised, and beyond the limits:")
    print("\n".join(beyond[False]) or "nothing")
    print("\nChecks:")
    print("\n".join(beyond[True]) or "every one holds")
    return bool(beyond[True])


def worst(errors: dict[tuple[str, float], list[float]], attacks: list[str], share: float) -> list[str]:
    """The entry of the recipe that does most harm, by its mean, with its name; and that of `optimise`."""
    recipes = [name for name in attacks if name != "optimise"]
    entries = ["", ""]
    if recipes:
        name = max(recipes, key=lambda each: np.mean(errors[each, share]))
        entries[0] = f"{written(errors[name, share])} {name}"
    if "optimise" in attacks:
        entries[1] = written(errors["optimise", share])
    return entries


def written(errors: list[float]) -> str:
    return f"{np.mean(errors):.3f}/{max(errors):.3f}"


def exceeded(dataset: str, rule: str, errors: dict[tuple[str, float], list[float]], calm: float) -> list[str]:
    """What a rule costs or lets through beyond what is asked of it; `calm` is the error of plain mixing."""
    lines = []
    for (name, share), each in errors.items():
        limit = COST.get(rule) if name == "none" else HELD.get((rule, share))
        more = float(np.mean(each)) - calm
        if limit is not None and more > limit:
            lines.append(f"{dataset}, {rule}, {name} {share:.0%}: {more:+.4f}; at most {limit:+.3f}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
