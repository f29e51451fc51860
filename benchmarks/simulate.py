"""Default simulations beside a plain NumPy script with the same numbers, and what evaluation and a round cost.

    python benchmarks/simulate.py                    50 and 500 peers
    python benchmarks/simulate.py --peers 5000       as many peers, for instance 50000: hours, and 20 GB of memory

The script is what a researcher writes for one experiment: `exact` for naive Bayes on numbers, by batched matrix
products and a product per model where models are evaluated, with errors after every round, peers alone, RC and ML. It
computes no metrics but errors and takes RC not to its end, which `simulate` does; before anything is timed, its errors
are compared with those of `simulate`. More than 50 peers learn for fewer rounds, so that it ends.
"""

import measuring  # isort: skip  # before numpy: it limits the threads

import argparse
import sys
import warnings
from typing import Any

import numpy as np

import peerbayes as pb
from peerbayes.learning import metrics
from peerbayes.model.families import NaiveBayes, Rows
from peerbayes.network import adjacency, stable
from peerbayes.simulation import drivers
from peerbayes.simulation.population import Population
from peerbayes.simulation.settings import SimulationSettings

ROWS, TEST_ROWS, COLUMNS, CLASSES, LR = 50, 2000, 16, 26, 0.05
COUNT_FLOOR, VARIANCE_FLOOR, CLIP, WINDOW = 1e-4, 0.05, 5.0, 6

# What simulations, evaluations and rounds may take of the script, and of their bare products.
OF_SCRIPT, OF_EVALUATION, OF_ROUND = 0.4, 3.0, 1.3


def table(peers: int, columns: int = COLUMNS, classes: int = CLASSES) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of all peers and test rows, and their labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, peers * ROWS + TEST_ROWS)
    rows = rng.normal(size=(labels.size, columns)) + rng.normal(0, 0.5, (classes, columns))[labels]
    return rows, labels


def arguments(peers: int, rounds: int, rows: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Return the arguments of `simulate`: peers have their rows one after the other, the last rows are for tests."""
    count = peers * ROWS
    return {
        "peers": peers, "partition": list(np.arange(count).reshape(peers, ROWS)), "kinds": "continuous",
        "rounds": rounds, "test": (rows[count:], labels[count:]),
        "topology": adjacency("tree", peers, np.random.default_rng(0)),
    }  # fmt: skip


# --- the script


def softmax(logits: np.ndarray) -> np.ndarray:
    """Compute softmax over the last axis in place."""
    logits -= logits.max(axis=-1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=-1, keepdims=True)
    return logits


def theta(stats: np.ndarray) -> np.ndarray:
    """Return the natural weights of naive Bayes: [..., C, 1 + 2D] of both."""
    columns = stats.shape[-1] // 2
    count = np.maximum(stats[..., :1], 0.0)
    total = count.sum(axis=-2, keepdims=True)
    rows = np.maximum(count, total * COUNT_FLOOR / stats.shape[-2])
    mean = stats[..., 1 : 1 + columns] / rows
    square = (stats[..., 1 + columns :] + rows - count) / rows
    variance = np.maximum(square - mean * mean, VARIANCE_FLOOR)
    prior = np.log(rows / rows.sum(axis=-2, keepdims=True))
    density = np.log(2 * np.pi * variance) + mean * mean / variance
    bias = prior - 0.5 * density.sum(axis=-1, keepdims=True)
    return np.concatenate([bias, mean / variance, -0.5 / variance], axis=-1)


def features(rows: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return 1, z and z² of standardised values: [m, 1 + 2D]."""
    z = np.clip((rows - mean) / scale, -CLIP, CLIP)
    return np.concatenate([np.ones((len(z), 1)), z, z * z], axis=1)


def script(peers: int, rounds: int, rows: np.ndarray, labels: np.ndarray, links: Any) -> list[np.ndarray]:
    """Return training errors, soft errors, test errors and disagreement after every round and of peers alone, [4, N]
    each, and the errors of RC and ML on the test rows.
    """
    count = peers * ROWS
    mean, scale = rows[:count].mean(axis=0), rows[:count].std(axis=0)
    train, test = features(rows[:count], mean, scale), features(rows[count:], mean, scale)
    of_train, of_test = labels[:count], labels[count:]
    one_hot = np.eye(CLASSES)[of_train]
    phi, of_peers = train.reshape(peers, ROWS, -1), one_hot.reshape(peers, ROWS, -1)
    mixing = stable(links)
    start = np.zeros((CLASSES, train.shape[1]))
    start[:, 0] = start[:, 1 + COLUMNS :] = ROWS / LR / CLASSES

    chosen = np.arange(count)
    if count > (most := max(256, (1 << 23) // peers)):  # as many rows as `simulate` evaluates on
        chosen = np.random.default_rng([0, 4]).choice(count, most, replace=False)
    judged, of_judged, index = train[chosen], of_train[chosen], np.arange(chosen.size)
    tested, of_tested = test, of_test
    if len(test) > most:
        drawn = np.random.default_rng([0, 4]).choice(len(test), most, replace=False)
        tested, of_tested = test[drawn], of_test[drawn]

    def residual(stats: np.ndarray) -> np.ndarray:
        return (of_peers - softmax(phi @ theta(stats).mT)).mT @ phi

    def evaluate(stats: np.ndarray) -> np.ndarray:
        figures, centre = np.empty((4, peers)), stats.mean(axis=0)
        for peer, weights in enumerate(theta(stats)):
            logits = judged @ weights.T
            figures[0, peer] = (logits.argmax(axis=1) != of_judged).mean()
            figures[1, peer] = 1 - softmax(logits)[index, of_judged].mean()
            figures[2, peer] = ((tested @ weights.T).argmax(axis=1) != of_tested).mean()
            figures[3, peer] = np.linalg.norm(stats[peer] - centre) / np.linalg.norm(centre)
        return figures

    window = max(1, min(WINDOW, rounds // 8))
    boost = rounds / (rounds - (window - 1) / 2)
    stats = np.repeat(start[None], peers, axis=0)
    message = adapted = stats + boost * residual(stats)
    recent, history = [], []
    for _ in range(rounds):
        stats = (mixing @ message.reshape(peers, -1)).reshape(stats.shape)
        changed = stats + boost * residual(stats)
        message, adapted = changed + stats - adapted, changed
        recent = [stats, *recent[: window - 1]]
        history.append(evaluate(sum(recent) / len(recent)))

    alone = np.repeat(start[None], peers, axis=0)
    for _ in range(rounds):
        alone = alone + residual(alone)
    history.append(evaluate(alone))

    pooled = start * peers * LR
    for _ in range(rounds):
        pooled = pooled + LR * (one_hot - softmax(train @ theta(pooled).T)).T @ train
    models = theta(pooled), theta(one_hot.T @ train)
    return history + [np.array([((test @ weights.T).argmax(axis=1) != of_test).mean()]) for weights in models]


# --- what is compared


def simulations(peers: int, rounds: int) -> None:
    """Whole simulations beside the script, which must have the same errors."""
    rows, labels = table(peers)
    settings = arguments(peers, rounds, rows, labels)
    count = peers * ROWS

    def ours(**changed: Any) -> Any:
        return pb.simulate(rows[:count], labels[:count], **settings, **changed)

    run = ours(strategy="exact")
    links = settings["topology"]
    history = script(peers, rounds, rows, labels, links)
    records = run.records.reshape(rounds, peers, -1)
    for figures, record in zip(history, records, strict=False):
        for own, column in zip(figures, (2, 4, 3, 5), strict=True):
            np.testing.assert_allclose(own, record[:, column], atol=2e-3 if column in (2, 3) else 1e-8)
    references = run.references
    same = {"test_local": history[-3][2].mean(), "test_rc": history[-2][0], "test_ml": history[-1][0]}
    for name, value in same.items():
        assert abs(references[name] - value) <= 1e-3, (name, references[name], value)

    for name, changed in (("exact", {"strategy": "exact"}), ("default", {})):
        ratio = measuring.compare(
            lambda changed=changed: ours(**changed), lambda: script(peers, rounds, rows, labels, links)
        )
        measuring.at_most(f"simulate, {peers:,} peers, {rounds} rounds, {name} / script", ratio, OF_SCRIPT)


def evaluations(peers: int, classes: int) -> None:
    """One evaluation of all peers beside its bare products, in blocks of 256 rows."""
    count = max(256, min(peers * ROWS, (1 << 23) // peers))
    rows, labels = table(-(-count // ROWS), classes=classes)
    family = NaiveBayes(continuous=COLUMNS, variance_floor=VARIANCE_FLOOR, count_floor=COUNT_FLOOR)
    rng = np.random.default_rng(1)
    start = family.uniform(classes, ROWS / LR)
    stats = start + 0.1 * start.max() * rng.normal(size=(peers, *start.shape))
    work = metrics.run_logits(peers, classes, count + TEST_ROWS, 64, 1)
    samples = [
        metrics.Sample(family, Rows(part, np.zeros((len(part), 0), dtype=int)), of_part, run_logits=work)
        for part, of_part in (
            (rows[:count], labels[:count]),
            (rows[-min(TEST_ROWS, count) :], labels[-min(TEST_ROWS, count) :]),
        )
    ]
    phi = [family.features(sample.rows) for sample in samples]
    weights = family.weights(stats).reshape(-1, family.size)

    def bare() -> None:
        for block in phi:
            for begin in range(0, len(block), 256):
                for first in range(0, len(weights), 1300):
                    block[begin : begin + 256] @ weights[first : first + 1300].T

    mean = stats.mean(axis=0)
    ratio = measuring.compare(lambda: metrics.judged(stats, mean, False, family, *samples), bare)
    measuring.at_most(f"evaluation, {peers:,} peers, {classes} classes / bare products", ratio, OF_EVALUATION)


def rounds_of(strategy: str) -> None:
    """A round of 50 peers with 512 columns and 10 classes beside its two bare products."""
    peers, columns, classes = 50, 512, 10
    rows, labels = table(peers, columns, classes)
    settings = SimulationSettings({**arguments(peers, 64, rows, labels), "strategy": strategy})
    population = Population.of(settings, rows[: peers * ROWS], labels[: peers * ROWS], None)
    start, _ = drivers.agreed_start(settings, population)
    plan = drivers.plan_of(settings, population, start)
    driver = drivers.build_driver(plan, settings, population, start)
    state, round_index = driver.begin(start), 0
    for round_index in range(1, 10):
        state, _ = driver.advance(state, round_index)
    rng = np.random.default_rng(2)
    size = 1 + 2 * columns
    phi, weights = rng.normal(size=(peers, ROWS, size)), rng.normal(size=(peers, classes, size))
    one_hot = rng.normal(size=(peers, ROWS, classes))

    def one() -> None:
        nonlocal state, round_index
        round_index += 1
        state, _ = driver.advance(state, round_index)

    def bare() -> None:
        np.matmul(phi, weights.mT)
        np.matmul(one_hot.mT, phi)

    what = f"a round, 50 peers x 512 columns, {strategy} ({driver.strategy.name}) / two products"
    measuring.at_most(what, measuring.compare(one, bare), OF_ROUND)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=int, nargs="+", default=[50, 500], help="peers of the simulations")
    sizes = parser.parse_args().peers
    warnings.simplefilter("ignore")
    for strategy in ("auto", "exact", "crc"):
        rounds_of(strategy)
    for peers in sizes:
        for classes in (2, 3, CLASSES):
            evaluations(peers, classes)
    for peers in sizes:
        simulations(peers, 64 if peers <= 50 else 16 if peers <= 500 else 4)
    return measuring.verdict()


if __name__ == "__main__":
    sys.exit(main())
