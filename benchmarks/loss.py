"""What faults of a network cost each strategy: eight cells, thirteen kinds of faults, 64 rounds.

    PEERBAYES_DATA=folder python benchmarks/loss.py [--seeds 321 322] [--strategies exact,relay] [--cells letter]
        [--kinds flapping] [--rounds 1000] [--store results.jsonl]

Prints the mean gap to RC over the cells by kind of fault and strategy, then the gaps cell by cell, and the largest |S|
of any round (in 64 rounds, of the last one), as a multiple of the largest |S⁰|. "plain" is `exact` without corrections
by link. With --store, what is in the file is not computed again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from peerbayes.data.datasets import load
from peerbayes.model.devices import fetch
from peerbayes.network import Away, Bursts, DeadLinks, Fault, Flapping, Loss
from peerbayes.simulation import drivers
from peerbayes.simulation.evaluation import Evaluation, Pooled
from peerbayes.simulation.population import Population
from peerbayes.simulation.rounds import Broadcast
from peerbayes.simulation.settings import SimulationSettings

FIFTY = {"peers": 50, "rows_per_peer": 50}
CLASS_EACH = {"peers": 26, "rows_per_peer": 50, "partition": "drift-y-pure"}
CELLS: dict[str, tuple[str, dict]] = {
    "digits tree": ("digits", {"peers": 50, "rows_per_peer": 20, "topology": "tree"}),
    "adult 4 owners": (
        "adult",
        {"peers": 4, "rows_per_peer": 400, "topology": "ring", "partition": "drift-x"},
    ),
    "letter tree": ("letter", {**FIFTY, "topology": "tree"}),
    "letter +20": ("letter", {**FIFTY, "topology": "tree+20"}),
    "letter by class tree": ("letter", {**CLASS_EACH, "topology": "tree"}),
    "letter by class +20": ("letter", {**CLASS_EACH, "topology": "tree+20"}),
    "secondary tree": ("secondary", {**FIFTY, "topology": "tree", "partition": "drift-y"}),
    "secondary +40": ("secondary", {**FIFTY, "topology": "tree+40", "partition": "drift-y"}),
}
TREES = tuple(name for name in CELLS if name.endswith("tree"))  # a dead link would cut them in two
HOST_STREAM = 31  # the random stream of the host that fails, separate from others of the same seed


def kinds(peers: int, rounds: int, seed: int) -> dict[str, list[Fault]]:
    """The faults of each kind; one host fails, drawn by the seed, where one does."""
    host = [int(np.random.default_rng([seed, HOST_STREAM]).integers(peers))]
    return {
        "none": [],
        **{f"loss {share:.0%}": [Loss(share)] for share in (0.05, 0.2, 0.5)},
        "bursts 20%": [Bursts(0.2, 5.0)],
        **{
            f"flapping {side}": [Flapping(host, 2, 5, direction)]
            for side, direction in (("deaf", "in"), ("unheard", "out"), ("each", "each"), ("both", "both"))
        },
        "heard once in 6": [Flapping(host, 1, 5, "both")],
        "a tenth away": [Away(0.1, rounds // 3 + 1, 2 * rounds // 3)],
        "one vanishes": [Away(host, 20)],
        "5% dead links": [DeadLinks(0.05)],
    }


KINDS = tuple(kinds(2, 64, 0))
STRATEGIES = ("plain", "exact", "crc", "relay")


class Cell:
    """The peers of a cell with a seed, their start and the error of RC."""

    def __init__(self, name: str, seed: int, rounds: int) -> None:
        dataset, settings = CELLS[name]
        table = load(dataset)
        self.settings = {**settings, "kinds": "paper", "seed": seed, "rounds": rounds}
        asked = SimulationSettings(self.settings)
        labels = table.labels.to_numpy()
        self.peers = Population.of(asked, table.frame, labels)
        self.start, _ = drivers.agreed_start(asked, self.peers)
        errors, _ = Pooled.of(self.peers, labels).learned(asked.start, asked.lr, rounds)
        self.rc = errors["test_rc"]

    def measured(self, strategy: str, faults: list[Fault]) -> tuple[float, float]:
        """The gap to RC at the end, of the peers that are there, and the largest |S| as a multiple of |S⁰|'s."""
        chosen = "exact" if strategy == "plain" else strategy
        asked = SimulationSettings({**self.settings, "strategy": chosen, "faults": faults})
        plan = drivers.plan_of(asked, self.peers, self.start)
        driver = drivers.build_driver(plan, asked, self.peers, self.start)
        if strategy == "plain" and isinstance(driver, Broadcast):
            driver = replace(driver, by_link=False)
        state, largest = driver.begin(asked.array_device.put(self.start)), 0.0
        for round_index in range(1, asked.rounds + 1):
            state, _ = driver.advance(state, round_index)
            if asked.rounds > 64:
                largest = max(largest, float(np.abs(fetch(driver.read(state))).max()))
        stats = fetch(driver.read(state))
        largest = max(largest, float(np.abs(stats).max())) / float(np.abs(self.start).max())
        _, error = Evaluation.of(asked, self.peers).errors(stats)
        return float(error) - self.rc, largest


def results(
    cells: list[str],
    chosen: list[str],
    strategies: list[str],
    seeds: list[int],
    rounds: int,
    store: Path | None,
) -> dict[tuple[str, str, str, int], tuple[float, float]]:
    """The gap and |S| by cell, kind, strategy and seed: from the file where it has them, else computed and added."""
    told = {}
    if store is not None and store.exists():
        entries = map(json.loads, store.read_text(encoding="utf-8").splitlines())
        told = {tuple(entry["key"]): (entry["gap"], entry["largest"]) for entry in entries}
    for seed in seeds:
        for name in cells:
            cell = None
            for kind in chosen:
                if kind == "5% dead links" and name in TREES:
                    continue
                for strategy in strategies:
                    key = (name, kind, strategy, seed, rounds)
                    if key in told:
                        continue
                    cell = cell or Cell(name, seed, rounds)
                    faults = kinds(cell.peers.peer_count, rounds, seed)[kind]
                    told[key] = cell.measured(strategy, faults)
                    if store is not None:
                        entry = {"key": key, "gap": told[key][0], "largest": told[key][1]}
                        with store.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(entry) + "\n")
            print(f"{name}, seed {seed}: done", file=sys.stderr, flush=True)
    return {key[:4]: value for key, value in told.items() if key[4] == rounds and key[3] in seeds}


def printed(told: dict[tuple[str, str, str, int], tuple[float, float]], strategies: list[str]) -> None:
    """Print the tables."""
    gaps, sizes = defaultdict(list), defaultdict(list)
    for (name, kind, strategy, _), (gap, largest) in told.items():
        for row in (kind, f"{kind}, {name}"):
            gaps[row, strategy].append(gap)
            sizes[row, strategy].append(largest)
    for title, rows in (("mean gap to RC", KINDS), ("by cell", [f"{k}, {c}" for k in KINDS for c in CELLS])):
        print(f"\n{title:<38}" + "".join(f"{name:>9}" for name in strategies) + "    largest |S|")
        for row in rows:
            if (row, strategies[0]) in gaps:
                means = "".join(f"{np.mean(gaps[row, name]):>9.4f}" for name in strategies)
                print(
                    f"{row:<38}{means}    " + "".join(f"{max(sizes[row, name]):>9.3g}" for name in strategies)
                )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[321])
    parser.add_argument("--rounds", type=int, default=64)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--cells", default="", help="only cells whose names contain this")
    parser.add_argument("--kinds", default="", help="only kinds of faults whose names contain this")
    parser.add_argument("--store", type=Path, help="a file of results, to go on from")
    asked = parser.parse_args()
    if "PEERBAYES_DATA" not in os.environ:
        print("PEERBAYES_DATA must name the folder of the datasets", file=sys.stderr)
        return 2
    strategies = asked.strategies.split(",")
    told = results(
        [name for name in CELLS if asked.cells in name],
        [name for name in KINDS if asked.kinds in name],
        strategies,
        asked.seeds,
        asked.rounds,
        asked.store,
    )
    printed(told, strategies)
    return 0


if __name__ == "__main__":
    sys.exit(main())
