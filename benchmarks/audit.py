"""What a neighbour can learn, measured: the figures of docs/protection.md and of `peerbayes audit`.

    PEERBAYES_DATA=folder python benchmarks/audit.py [passive] [active] [membership] [--datasets pulsar,adult,letter]
                                                     [--seeds 3] [--seconds 30]

passive      share of whole rows that the only neighbour of a leaf finds by listening to 64 honest rounds of crc
active       the same where it sends made-up statistics, at most 64; with messages that keep every sum that honest ones
             keep; and against residuals with the noise of ε = 8 (δ = 1e-5, 64 rounds)
membership   AUC and, in brackets, the share of members found at 1 % false alarms, from the first message; then with
             noise, beside the bound of Gaussian differential privacy

Naive Bayes, the paper's typing, 10 peers on a random tree. A row counts when every continuous value is within 0.05
deviations and every discrete one right.
"""

import argparse
import itertools
import os
import sys

import measuring  # noqa: F401  one thread
import numpy as np
from scipy.sparse import csr_array

from peerbayes import network
from peerbayes.audit.membership_inference import auc_bound, membership
from peerbayes.audit.observation import observe
from peerbayes.audit.reconstruction import reconstruct
from peerbayes.experiments.cells import prepared
from peerbayes.learning.local_rows import LocalRows
from peerbayes.model import layout
from peerbayes.model.families import NaiveBayes, Rows
from peerbayes.privacy.accounting import Privacy
from peerbayes.privacy.scheme import scheme
from peerbayes.simulation.private import PrivateRows

PEERS, ROUNDS, POPULATION = 10, 64, 8000
PASSIVE, ACTIVE, MEMBERS = (1, 2, 3, 5, 10, 20, 50), (10, 50, 320), (2, 5, 10, 50, 320, 1000)


def private(
    family: NaiveBayes, rows: Rows, labels: np.ndarray, classes: int, seed: int, rounds: int = ROUNDS
) -> PrivateRows:
    """A peer's residual with ε = 8 (δ = 1e-5) over so many rounds, as a simulation has it."""
    promise = Privacy(epsilon=8.0, clip=1.0, min_rows=1)
    agreed = scheme(promise, family, classes, len(labels), PEERS, rounds, 0.05)
    held = LocalRows(family, rows, labels, np.ones(len(labels)), np.array([len(labels)]), classes)
    return PrivateRows(agreed, held, csr_array((1, 1)), seed)


def covariance(answers: PrivateRows) -> np.ndarray:
    """Of the noise in a class: [K, K]."""
    back = answers.scheme.mechanism.coordinates.back(np.eye(answers.local_rows.family.size))
    return answers.scheme.sigma**2 * back.T @ back


def watched(name: str, rows: int, seed: int, strategy: str = "crc"):
    """A leaf of a tree, with so many rows, as its neighbour meets it."""
    data = prepared(name)
    (X, y), _ = data.split(PEERS * rows, seed)
    links = network.adjacency("tree", PEERS, np.random.default_rng(seed))
    leaf = int(np.flatnonzero(np.diff(links.indptr) == 1)[0])
    return observe(
        X, y, peer=leaf, schema=data.schema, peers=PEERS, rows_per_peer=rows, topology=links, strategy=strategy,
        rounds=ROUNDS, seed=seed,
    )  # fmt: skip


def passive(name: str, seeds: int, seconds: float) -> None:
    cells = []
    for rows in PASSIVE:
        shares = [
            reconstruct(watched(name, rows, seed), seconds=seconds, restarts=32, seed=seed).recovered
            for seed in range(seeds)
        ]
        cells.append(f"{np.mean(shares):.2f}")
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def active(name: str, seeds: int) -> None:
    for how in ("free", "lawful", "noise"):
        cells = []
        for rows in ACTIVE:
            shares, labels = [], []
            for seed in range(seeds):
                target = watched(name, rows, seed)
                answers = None
                if how == "noise":
                    answers = private(target.family, target.rows, target.labels, target.classes, seed)
                found = reconstruct(
                    target, active=True, residual=answers, rounds=ROUNDS, lawful=how == "lawful", seed=seed
                )
                shares.append(found.recovered)
                labels.append(found.labels_right)
            cells.append(f"{np.mean(shares):.2f} ({np.mean(labels):.2f})")
        print(f"| {name}, {how} | " + " | ".join(cells) + " |", flush=True)


def members(name: str, trials: int) -> None:
    data = prepared(name)
    (X, y), _ = data.split(POPULATION, 0)
    rows, labels = data.schema.encode(X), data.schema.encode_labels(y)
    classes = len(data.schema.classes)
    family = layout.calibrated("naive-bayes", data.schema, False, float(len(y)))
    cells = []
    for held in MEMBERS:
        found = membership(family, rows, labels, classes, held, trials=trials)
        cells.append(f"{found.auc:.2f} ({found.tpr:.2f})")
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    cells, drawn = [], itertools.count()
    one = private(family, rows, labels, classes, 0)
    for held in MEMBERS:
        found = membership(
            family, rows, labels, classes, held, trials=trials, noise=covariance(one),
            residual_of=lambda part, own: private(family, part, own, classes, next(drawn)),
        )  # fmt: skip
        cells.append(f"{found.auc:.2f} ({found.tpr:.2f})")
    bound = auc_bound(one.scheme.ledger.mu(1))
    print(f"| {name}, noise (bound {bound:.2f}) | " + " | ".join(cells) + " |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", default=("membership", "active", "passive"))
    parser.add_argument("--datasets", default="pulsar,adult,letter")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    if "PEERBAYES_DATA" not in os.environ:
        print("PEERBAYES_DATA must name the folder of the datasets", file=sys.stderr)
        return 2
    heads = {"passive": PASSIVE, "active": ACTIVE, "membership": MEMBERS}
    for what in given.what:
        print(f"\n| {what}, rows of the peer | " + " | ".join(map(str, heads[what])) + " |")
        print("|---" * (1 + len(heads[what])) + "|", flush=True)
        for name in given.datasets.split(","):
            if what == "passive":
                passive(name, given.seeds, given.seconds)
            elif what == "active":
                active(name, given.seeds)
            else:
                members(name, 50)
    return 0


if __name__ == "__main__":
    sys.exit(main())
