"""Other methods with the same messages, beside the strategies of this package: test errors, messages and bytes.

    PEERBAYES_DATA=folder python benchmarks/baselines.py [dataset …] [--seeds 401,402,403] [--rows 50,10]
        [--results docs/baselines.parquet] [--again strategies|regressions]

50 peers, 64 rounds, naive Bayes and the same φ for all. Prints the tables of docs/baselines.md. Cells that the file of
results has are not computed again, but for what --again names: the strategies of this package, or softmax, DSGD and
FedAvg.
"""

import argparse
import os
import sys
import warnings
from functools import lru_cache
from itertools import product
from pathlib import Path

import measuring  # noqa: F401  one thread
import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import peerbayes as pb
from peerbayes.experiments.cells import Cell, compute, prepared
from peerbayes.experiments.formats import pipes
from peerbayes.learning.softmax import scale_of
from peerbayes.model import core
from peerbayes.simulation import baselines
from peerbayes.simulation.population import Population
from peerbayes.simulation.settings import SimulationSettings

DATASETS = (
    "skin", "pulsar", "bank", "default", "soft", "adult", "run", "smartgrid", "smoking", "secondary", "letter"
)  # fmt: skip
PARTITIONS = {"iid": "i.i.d.", "drift-y": "by class", "drift-xy": "drift in p(x,y)"}
TOPOLOGIES = {"tree": "tree", "tree+80": "tree + 80 links"}
PEERS, ROUNDS = 50, 64
OURS = ("crc", "exact", "auto")
PENALTIES = (0.1, 1.0, 10.0, 100.0)  # C of logistic regression, chosen on a fifth of the training rows

FIXED = (
    0.5,
    0.4,
)  # step size and momentum of softmax regression without trials: usual choices on seeds 391 to 393

# Errors that differ by less are called equal: the spread between seeds is about that.
EQUAL = 0.005

METHODS = {
    "RC pooled": "all rows in one place",
    "`crc`": "a matrix to each neighbour in each round",
    "`exact`": "a matrix to each neighbour in each round",
    "`auto`": "a matrix to each neighbour in each round, or to each on a spanning tree",
    "softmax": "a matrix to each neighbour in each round, and second moments summed once",
    "softmax, fixed": "the same, with a step of 0.5 and a momentum of 0.4 instead of trials",
    "DSGD": "the same",
    "FedAvg": "a matrix to a server in each round, and one back; second moments once",
    "LR pooled": "all rows in one place",
    "RC vote": "each peer's model, once, to all others",
    "RC product": "weights summed once",
    "ML vote": "each peer's model, once, to all others",
    "ML product": "weights summed once",
    "ML sum": "statistics summed once: ML on the pooled rows",
}
"""Each method, and what it sends."""

Figures = dict[str, tuple[float, float]]  # of each method: test error, bytes that a peer sends on average


@lru_cache(maxsize=4)
def population(dataset: str, seed: int, rows: int, partition: str, topology: str) -> Population:
    data = prepared(dataset)
    (X, y), test = data.split(PEERS * rows, seed)
    arguments = {
        "peers": PEERS, "rows_per_peer": rows, "topology": topology, "partition": partition, "seed": seed,
        "rounds": ROUNDS, "schema": data.schema, "test": test,
    }  # fmt: skip
    return Population.of(SimulationSettings(arguments), X, y)


def error(peers: Population, weights: np.ndarray) -> float:
    """The mean test error of models [M, C, K]."""
    features = peers.family.features(peers.test_rows.rows)
    labels = peers.test_rows.labels
    return float(np.mean([((features @ model.T).argmax(axis=1) != labels).mean() for model in weights]))


@lru_cache(maxsize=2)
def of_pooled_rows(dataset: str, seed: int, rows: int) -> Figures:
    """RC, and logistic regression on the same φ with the penalty that does best on a fifth of the training rows."""
    reference = compute(Cell(dataset, seed, "rc", 1, PEERS * rows, "complete", rounds=ROUNDS).specification())
    peers = population(dataset, seed, rows, "iid", "tree")
    features, labels = peers.held.features_of(slice(None)), peers.held.labels
    test = peers.family.features(peers.test_rows.rows)
    _, held_back = baselines.split(peers.held)

    def fitted(penalty: float, chosen: np.ndarray) -> object:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=1000))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return model.fit(features[chosen], labels[chosen])

    best = max(PENALTIES, key=lambda c: fitted(c, ~held_back).score(features[held_back], labels[held_back]))
    regression = 1.0 - fitted(best, np.ones_like(held_back)).score(test, peers.test_rows.labels)
    return {"RC pooled": (reference["test_rc"], 0.0), "LR pooled": (regression, 0.0)}


@lru_cache(maxsize=2)
def of_any_network(dataset: str, seed: int, rows: int, partition: str) -> Figures:
    """Ensembles of one message: they do not depend on the links."""
    peers = population(dataset, seed, rows, partition, "tree")
    held, family = peers.held, peers.family
    features = family.features(peers.test_rows.rows)
    labels = core.one_hot(peers.test_rows.labels, held.classes)
    matrix, summed = 8.0 * held.classes * family.size, 2 * (PEERS - 1) / PEERS  # up and down a spanning tree
    data = prepared(dataset)
    train, test = data.split(PEERS * rows, seed)
    alone = pb.simulate(
        *train, peers=PEERS, rows_per_peer=rows, partition=partition, strategy="local", rounds=ROUNDS, seed=seed,
        schema=data.schema, test=test, evaluate_every=0, references=False,
    ).stats  # fmt: skip
    figures: Figures = {}
    for name, stats in (("RC", alone), ("ML", held.statistics())):
        weights = np.asarray(family.weights(stats))
        vote = core.error(labels, baselines.vote(features, weights))
        figures[f"{name} vote"] = float(vote), (PEERS - 1) * matrix
        figures[f"{name} product"] = error(peers, weights.mean(axis=0)[None]), summed * matrix
    total = np.asarray(family.weights(held.statistics().sum(axis=0)))
    return figures | {"ML sum": (error(peers, total[None]), summed * matrix)}


@lru_cache(maxsize=2)
def federated(dataset: str, seed: int, rows: int, partition: str) -> Figures:
    """FedAvg, which does not depend on the links either."""
    peers = population(dataset, seed, rows, partition, "tree")
    matrix = 8.0 * peers.held.classes * peers.family.size
    learned = baselines.federated(peers.held, ROUNDS)
    return {"FedAvg": (error(peers, learned.weights), ROUNDS * matrix + moments(peers.family.size))}


def moments(size: int) -> float:
    """Bytes of second moments of K features."""
    return 8.0 * size * (size + 1) / 2


def ours(dataset: str, seed: int, rows: int, partition: str, topology: str) -> Figures:
    """The strategies of this package."""
    figures = {}
    for name in OURS:
        cell = Cell(dataset, seed, name, PEERS, rows, topology, partition, rounds=ROUNDS)
        run = compute(cell.specification())
        figures[f"`{name}`"] = run["test_error"], run["bytes_per_peer"]
    return figures


def others(dataset: str, seed: int, rows: int, partition: str, topology: str) -> Figures:
    """The other methods."""
    figures = of_pooled_rows(dataset, seed, rows) | of_any_network(dataset, seed, rows, partition)
    peers = population(dataset, seed, rows, partition, topology)
    scale = scale_of(peers.held.features_of(slice(None)), PEERS)
    fixed = baselines.diffusion(peers.network, ROUNDS)(peers.held, *FIXED, scale)
    figures["softmax, fixed"] = error(peers, fixed), sent_by_softmax(peers)
    return figures | regressions(dataset, seed, rows, partition, topology)


def regressions(dataset: str, seed: int, rows: int, partition: str, topology: str) -> Figures:
    """The methods whose penalty and steps are chosen by trials: softmax, DSGD and FedAvg."""
    figures = dict(federated(dataset, seed, rows, partition))
    peers = population(dataset, seed, rows, partition, topology)
    for name, corrected in (("softmax", True), ("DSGD", False)):
        learned = baselines.softmax(peers.held, peers.network, ROUNDS, corrected)
        figures[name] = error(peers, learned.weights), sent_by_softmax(peers)
    return figures


def sent_by_softmax(peers: Population) -> float:
    """Bytes that a peer sends on average: a matrix to each neighbour in each round, and second moments once."""
    held, links = peers.held, peers.network.at(1).nnz / PEERS
    sent = ROUNDS * links * 8.0 * held.classes * held.family.size
    return sent + 2 * (PEERS - 1) / PEERS * moments(held.family.size)


AGAIN = {"strategies": ours, "regressions": regressions}

# --- the results: dataset, seed, rows of a peer, partition, topology -> figures

Results = dict[tuple[str, int, int, str, str], Figures]
KEYS = ["dataset", "seed", "rows", "partition", "topology"]


def read(path: Path) -> Results:
    results: Results = {}
    for *key, method, value, sent in pd.read_parquet(path).itertuples(index=False):
        results.setdefault(tuple(key), {})[method] = value, sent
    return results


def write(path: Path, results: Results) -> None:
    rows = [(*key, method, *pair) for key, figures in results.items() for method, pair in figures.items()]
    pd.DataFrame(rows, columns=[*KEYS, "method", "test_error", "bytes"]).to_parquet(path, index=False)


# --- the tables


def means(
    results: Results, rows: int, partition: str, topology: str, figure: int = 0
) -> dict[str, dict[str, float]]:
    """The mean over seeds of the test error, or else of the bytes, of every dataset and method."""
    found: dict[str, dict[str, list[float]]] = {}
    for (dataset, _, *where), figures in results.items():
        if where == [rows, partition, topology]:
            for method in METHODS:
                found.setdefault(dataset, {}).setdefault(method, []).append(figures[method][figure])
    return {dataset: {m: float(np.mean(v)) for m, v in row.items()} for dataset, row in found.items()}


def table(results: Results, rows: int, partition: str, topology: str) -> str:
    """The errors of every dataset, the lowest of those without pooled rows bold."""
    text_rows = []
    for dataset, found in means(results, rows, partition, topology).items():
        shown = {name: f"{value:.3f}" for name, value in found.items()}
        lowest = min(value for name, value in shown.items() if "pooled" not in name)
        cells = (
            f"**{value}**" if value == lowest and "pooled" not in name else value
            for name, value in shown.items()
        )
        text_rows.append([dataset, *cells])
    return "\n".join(pipes(["dataset", *METHODS], text_rows))


def summary(results: Results, rows: int) -> str:
    """The mean error over datasets; on how many a method is better than `auto`, and on how many worse."""
    text_rows = []
    for (partition, rows_name), (topology, links_name) in product(PARTITIONS.items(), TOPOLOGIES.items()):
        found = means(results, rows, partition, topology).values()
        row = [f"{rows_name}, {links_name}"]
        for method in METHODS:
            differences = np.array([of_dataset[method] - of_dataset["`auto`"] for of_dataset in found])
            counts = f" ({(differences < -EQUAL).sum()}, {(differences > EQUAL).sum()})"
            mean = np.mean([of_dataset[method] for of_dataset in found])
            row.append(f"{mean:.3f}{'' if method == '`auto`' else counts}")
        text_rows.append(row)
    return "\n".join(pipes(["", *METHODS], text_rows))


def sizes(results: Results, rows: int) -> str:
    """What each method sends, and kilobytes that a peer sends on average, i.i.d."""
    sent = {topology: means(results, rows, "iid", topology, figure=1) for topology in TOPOLOGIES}
    shown = [(dataset, topology) for dataset in ("adult", "letter") for topology in TOPOLOGIES]
    shown = [(dataset, topology) for dataset, topology in shown if dataset in sent[topology]]
    text_rows = []
    for method, sends in METHODS.items():
        kilobytes = [sent[topology][dataset][method] / 1000 for dataset, topology in shown]
        text_rows.append([method, sends, *(f"{size:,.0f} kB" if size else "" for size in kilobytes)])
    head = [f"{dataset}, {TOPOLOGIES[topology]}" for dataset, topology in shown]
    return "\n".join(pipes(["method", "sends", *head], text_rows))


def tables(results: Results) -> dict[str, str]:
    """All tables by their titles; those of single datasets for the most rows."""
    row_counts = sorted({rows for _, _, rows, *_ in results}, reverse=True)
    titled = {f"Means, {rows} rows each": summary(results, rows) for rows in row_counts}
    for partition, name in PARTITIONS.items():
        titled[f"{name[0].upper()}{name[1:]}, tree"] = table(results, row_counts[0], partition, "tree")
    return titled | {"Messages": sizes(results, row_counts[0])}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="*", default=list(DATASETS))
    parser.add_argument("--seeds", default="401,402,403", help="seeds with commas between them")
    parser.add_argument("--rows", default="50,10", help="rows of each peer, with commas between them")
    parser.add_argument("--results", type=Path, help="file of finished cells, which others are added to")
    parser.add_argument(
        "--again", choices=AGAIN, help="what of finished cells is computed again, although it is there"
    )
    arguments = parser.parse_args()
    if "PEERBAYES_DATA" not in os.environ:
        print("PEERBAYES_DATA must name the folder of the datasets", file=sys.stderr)
        return 2
    seeds, row_counts = (list(map(int, text.split(","))) for text in (arguments.seeds, arguments.rows))
    stored = arguments.results is not None and arguments.results.exists()
    finished, results = read(arguments.results) if stored else {}, {}
    for rows, *key in product(row_counts, arguments.datasets, seeds, PARTITIONS, TOPOLOGIES):
        cell = (*key[:2], rows, *key[2:])
        figures = finished.get(cell) or others(*cell) | ours(*cell)
        again = AGAIN[arguments.again](*cell) if arguments.again and cell in finished else {}
        results[cell] = figures | again
        print(*cell, *(f"{name} {value:.3f}" for name, (value, _) in results[cell].items()), file=sys.stderr)
        if arguments.results is not None:
            write(arguments.results, finished | results)
    for title, text in tables(results).items():
        print(f"\n### {title}\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
