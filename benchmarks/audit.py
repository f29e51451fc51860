"""What a neighbour can learn, measured: the figures of docs/protection.md and of `peerbayes audit`.

    PEERBAYES_DATA=folder python benchmarks/audit.py [passive] [active] [membership] [--datasets pulsar,adult,letter]
                                                     [--seeds 3] [--seconds 30]

passive      share of whole rows that the only neighbour of a leaf finds by listening to 64 honest rounds of crc
active       the same where it sends made-up statistics, at most 64; with messages that keep every sum that honest ones
             keep; and against residuals with the noise of ε = 8 (δ = 1e-5, 64 rounds)
membership   AUC and, in brackets, the share of members found at 1 % false alarms, from the first message; then with$
             noise, beside the bound of Gaussian differential privacy

Naive Bayes, the paper's typing, 10 peers on a random tree. A row counts when every continuous value is within 0.05
deviations and every discrete one right.
"""

import argparse
import os
import sys

import measuring  # noqa: F401  one thread
import numpy as np

from peerbayes import core, layouts, topologies
from peerbayes.audit.belonging import auc_bound, membership
from peerbayes.audit.observing import observe
from peerbayes.audit.reconstruction import reconstruct
from peerbayes.experiments.prepared import prepared
from peerbayes.families import NaiveBayes, Rows

PEERS, ROUNDS, POPULATION = 10, 64, 8000
PASSIVE, ACTIVE, MEMBERS = (1, 2, 3, 5, 10, 20, 50), (10, 50, 320), (2, 5, 10, 50, 320, 1000)
MULTIPLIER = 4.80  # z of 64 Gaussian releases that together have ε = 8, δ = 1e-5


def centred(family: NaiveBayes) -> np.ndarray:
    """L [K, K] with φ = L h, h = (1, x, (x² − 1)/√2, onehot − 1/r): what noise is added to."""
    d, back = family.continuous, np.eye(family.size)
    square = np.arange(1 + d, 1 + 2 * d)
    back[square, square], back[square, 0] = np.sqrt(2.0), 1.0
    sizes = np.asarray(family.cardinalities, dtype=int)
    back[family.dense_size :, 0] = np.repeat(1.0 / sizes, sizes) if sizes.size else []
    return back


def typical(family: NaiveBayes) -> float:
    """B = √(1 + 2d + Σ(1 − 1/r)): the length of h for a typical row."""
    return float(np.sqrt(1 + 2 * family.continuous + sum(1 - 1 / r for r in family.cardinalities)))


class Noised:
    """A residual with every row's part clipped to G = B in length, and noise of z·G in every entry.

    A stand-in for differential privacy: continuous noise of NumPy's, no ledger.
    """

    def __init__(
        self, family: NaiveBayes, rows: Rows, labels: np.ndarray, classes: int, rng: np.random.Generator
    ):
        self.family, self.rng, self.back = family, rng, centred(family)
        self.centred = np.asarray(family.features(rows)) @ np.linalg.inv(self.back).T
        self.labels = core.one_hot(labels, classes)
        self.bound = typical(family)
        self.sigma = MULTIPLIER * self.bound

    def __call__(self, stats: np.ndarray) -> np.ndarray:
        features = self.centred @ self.back.T
        step = self.labels - core.posterior(features, self.family.weights(stats)[0])
        length = np.linalg.norm(step, axis=1) * np.linalg.norm(self.centred, axis=1)
        part = (step * np.minimum(1.0, self.bound / np.maximum(length, 1e-300))[:, None]).T @ self.centred
        noisy = part + self.sigma * self.rng.normal(size=part.shape)
        return ((noisy - noisy.mean(axis=0)) @ self.back.T)[None]  # on zero class sums, where R lives


def watched(name: str, rows: int, seed: int, strategy: str = "crc"):
    """A leaf of a tree, with so many rows, as its neighbour meets it."""
    data = prepared(name)
    (X, y), _ = data.split(PEERS * rows, seed)
    links = topologies.adjacency("tree", PEERS, np.random.default_rng(seed))
    leaf = int(np.flatnonzero(np.diff(links.indptr) == 1)[0])
    return observe(
        X, y, peer=leaf, schema=data.schema, nodes=PEERS, rows_per_node=rows, topology=links, strategy=strategy,
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
                    rng = np.random.default_rng([seed, 9])
                    answers = Noised(target.family, target.rows, target.labels, target.classes, rng)
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
    family = layouts.calibrated("naive-bayes", data.schema, False, float(len(y)))
    cells = []
    for held in MEMBERS:
        found = membership(family, rows, labels, classes, held, trials=trials)
        cells.append(f"{found.auc:.2f} ({found.tpr:.2f})")
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    rng = np.random.default_rng(9)
    back, sigma = centred(family), MULTIPLIER * typical(family)
    cells = []
    for held in MEMBERS:
        found = membership(
            family, rows, labels, classes, held, trials=trials, noise=sigma**2 * back @ back.T,
            residual_of=lambda part, own: Noised(family, part, own, classes, rng),
        )  # fmt: skip
        cells.append(f"{found.auc:.2f} ({found.tpr:.2f})")
    print(
        f"| {name}, noise (bound {auc_bound(1 / MULTIPLIER):.2f}) | " + " | ".join(cells) + " |", flush=True
    )


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
