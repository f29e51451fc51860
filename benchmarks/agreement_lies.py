"""Peers that lie before the first round: honest peers' test error, or that the lie is refused.

    python benchmarks/byzantine.py --agreement [--datasets pulsar,adult] [--seeds 3] [--first-seed 0]

Two networks: "+80" of 50 peers with 50 rows each, and five peers in a ring with 500 rows each; i.i.d., `exact`, 64
rounds. Liars are honest in the rounds. Crude lies are told by one of 50; the largest ones that robust peers let pass
("allowed") by one of 50, by a tenth, and by one of five. An entry is the mean over seeds and the worst seed, or
"refused". The check: with clip and guard, every lie is refused or costs at most .02 on adult and pulsar.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

import peerbayes as pb
from peerbayes.errors import FalseReport
from peerbayes.experiments.cells import prepared

HELD, COST = ("adult", "pulsar"), 0.02
STARTS = ("uniform", "marginal", "ml")

# peers, rows of each, links.
WIDE, SMALL = (50, 50, "tree+80"), (5, 500, "ring")

# Columns of a table: whom it is about, and the lie.
LIES: dict[str, tuple[tuple[int, int, str], pb.Attack | None]] = {
    "none": (WIDE, None),
    **{report: (WIDE, pb.Attack("honest", 0.02, report=report)) for report in ("rows", "mean", "spread", "start")},
    "allowed, 1 of 50": (WIDE, pb.Attack("honest", 0.02, report="all", allowed=True)),
    "allowed, 10 %": (WIDE, pb.Attack("honest", 0.1, report="all", allowed=True)),
    "five: none": (SMALL, None),
    "allowed, 1 of 5": (SMALL, pb.Attack("honest", 0.2, report="all", allowed=True)),
}  # fmt: skip


def agreement_error(
    dataset: str,
    rule: str | None,
    attack: pb.Attack | None,
    start: str,
    seed: int,
    network: tuple[int, int, str] = WIDE,
) -> float:
    """Return the honest peers' mean test error; FalseReport where the lie is refused."""
    peers, rows, topology = network
    data = prepared(dataset)
    (X, y), test = data.split(peers * rows, seed)
    run = pb.simulate(
        X, y, schema=data.schema, test=test, peers=peers, rows_per_peer=rows, topology=topology, strategy="exact",
        start=start, evaluate_every=0, references=False, seed=seed, robust=rule, attack=attack,
    )  # fmt: skip
    return float(run.summary()["test_error"])


def errors(dataset: str, rule: str | None, lie: str, start: str, seeds: Iterable[int]) -> list[float] | None:
    """Return the error of each seed; None: the lie was refused, with every one of them."""
    network, attack = LIES[lie]
    found, refused = [], 0
    for seed in seeds:
        try:
            found.append(agreement_error(dataset, rule, attack, start, seed, network))
        except FalseReport:
            refused += 1
    if found and refused:
        raise RuntimeError(
            f"{dataset}, {rule}, {lie}: refused with {refused} seeds, and not with {len(found)}"
        )
    return found or None


def table(datasets: Sequence[str], seeds: Sequence[int]) -> int:
    """Print the table; 1 where a check fails."""
    failed = []
    print("| | start | | " + " | ".join(LIES) + " |")
    print("|---" * (len(LIES) + 3) + "|", flush=True)
    for dataset in datasets:
        for start in STARTS:
            for rule in (None, "clip", "guard"):
                print(f"| {dataset} | {start} | {rule or 'mean'} |", end="", flush=True)
                calm = {}
                for lie, (network, attack) in LIES.items():
                    if attack is not None and (
                        (attack.report == "start" and start == "uniform") or (attack.allowed and rule is None)
                    ):
                        print(" |", end="", flush=True)
                        continue
                    found = errors(dataset, rule, lie, start, seeds)
                    if attack is None:
                        assert found is not None
                        calm[network] = float(np.mean(found))
                    more = 0.0 if found is None else float(np.mean(found)) - calm[network]
                    if rule is not None and dataset in HELD and more > COST:
                        failed.append(f"{dataset}, {start}, {rule}, {lie}: {more:+.4f}; at most {COST:+.2f}")
                    told = "refused" if found is None else f"{np.mean(found):.3f}/{max(found):.3f}"
                    print(f" {told} |", end="", flush=True)
                print(flush=True)
    print("\nChecks:")
    print("\n".join(failed) or "every one holds")
    return bool(failed)
