"""Bayesian networks: a fit beside pgmpy's, a simulated round beside its products, and what wide columns cost in memory.

    python benchmarks/bayes_net.py            with pgmpy installed, for the fit beside it

`measuring` says how.
"""

from measuring import peak_extra, report, side_by_side, verdict  # isort: skip  # before numpy: it limits the threads

import sys
import time
import warnings

import numpy as np
import pandas as pd

from peerbayes.estimators.classifiers import TAN, MixedNB
from peerbayes.learning.local_rows import LocalRows
from peerbayes.model.families import BayesNet, Rows


def discrete_table(rows: int, columns: int, categories: int = 4) -> tuple[pd.DataFrame, np.ndarray]:
    """Columns that each depend on the class and on one before them."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, rows)
    table: dict[str, np.ndarray] = {}
    for j in range(columns):
        before = table[f"x{rng.integers(0, j)}"] if j else 0
        base = (labels + before + rng.integers(0, 2, rows)) % categories
        table[f"x{j}"] = np.where(rng.random(rows) < 0.3, rng.integers(0, categories, rows), base)
    return pd.DataFrame(table), labels


def beside_pgmpy() -> None:
    """Structure and parameters of a discrete TAN, 50,000 rows × 20 columns."""
    X, y = discrete_table(50_000, 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from pgmpy.estimators import TreeSearch
            from pgmpy.models import DiscreteBayesianNetwork
            from pgmpy.parameter_estimator import DiscreteMLE
        except ModuleNotFoundError:
            print("pgmpy is not installed: the fit beside it is left out")
            return
        table, found = X.assign(outcome=y), set()

        def pgmpys() -> None:
            tree = TreeSearch(table, root_node="x0", n_jobs=1).estimate(
                estimator_type="tan", class_node="outcome", show_progress=False
            )
            DiscreteBayesianNetwork(tree.edges()).fit(table, estimator=DiscreteMLE())
            found.update((a, b) for a, b in tree.edges() if a != "outcome")

        ours = TAN(kinds="discrete", alpha=0.0)
        ours.fit(X, y)  # imported
        times: dict[str, list[float]] = {"pgmpy": [], "ours": []}
        for turn in range(8):  # pgmpy takes seconds: in two turns of them
            sides = {"pgmpy": pgmpys} if turn % 4 == 0 else {}
            for name, call in {**sides, "ours": lambda: ours.fit(X, y)}.items():
                began = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - began)
    links = {(parent, name) for name, parents in ours.parents_.items() for parent in parents}
    assert links == found, "another tree"
    ratio = float(np.median(times["pgmpy"]) / np.median(times["ours"]))
    report("TAN fit, 50,000 × 20 discrete: pgmpy's median time over ours", ratio, ">= 20", ratio >= 20)


def a_round(
    what: str, family: BayesNet, rng: np.random.Generator, classes: int, peer_count: int, rows: int
) -> None:
    """R of all peers, θ included, beside the two bare products with a stored Φ."""
    count = peer_count * rows
    codes = [rng.integers(0, size, count) for size in family.cardinalities]
    table = Rows(
        rng.normal(size=(count, family.continuous)),
        np.stack(codes, axis=1) if codes else np.zeros((count, 0), dtype=np.int64),
    )
    labels = rng.integers(0, classes, count)
    peers = LocalRows(family, table, labels, np.ones(count), np.full(peer_count, rows), classes)
    stats = np.tile(family.uniform(classes, rows / 0.05), (peer_count, 1, 1))
    stats = stats + 0.1 * rng.random(stats.shape)
    residual = peers.residual(64)
    features = family.features(table).reshape(peer_count, rows, -1)
    weights = family.weights(stats)
    credit = rng.random((peer_count, rows, classes))

    def products() -> None:
        features @ weights.mT
        credit.mT @ features

    ours, bare = side_by_side(lambda: residual(stats), products, turns=41, clock=time.process_time)
    report(f"one round of TAN, {what}, over its products", ours / bare, "<= 2.0", ours <= 2.0 * bare)


def wide_columns() -> None:
    """100,000 rows × 50 columns of 1,000 categories: a fit, and a calibration."""
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 1000, (100_000, 50)), rng.integers(0, 3, 100_000)
    for what, model in (
        ("fit", MixedNB(kinds="discrete")),
        ("calibration", MixedNB(kinds="discrete", calibrate=True, max_iter=2)),
    ):
        used = peak_extra(lambda model=model: model.fit(X, y)) / 2**30
        report(f"{what} of 100,000 × 50 columns of 1,000 categories, GB", used, "<= 1.0", used <= 1.0)


def main() -> int:
    rng = np.random.default_rng(0)
    chain = ((), *((j,) for j in range(15)))
    a_round("50 × 320 rows, 16 continuous, 26 classes", BayesNet(continuous=16, parents=chain, variance_floor=0.01,
            count_floor=1e-4, shrinkage=5 / 16_000), rng, 26, 50, 320)  # fmt: skip
    a_round("50 × 320 rows, 16 × 8 categories, 2 classes", BayesNet(cardinalities=(8,) * 16, parents=chain,
            count_floor=1e-4, shrinkage=5 / 16_000), rng, 2, 50, 320)  # fmt: skip
    mixed = ((), (0,), (1,), (8,), (3,), (9,), (5,), (10,), (), *((j,) for j in range(8, 15)))
    a_round("50 × 320 rows, 8 continuous, 8 × 4 categories, 5 classes", BayesNet(continuous=8, cardinalities=(4,) * 8,
            parents=mixed, variance_floor=0.01, count_floor=1e-4, shrinkage=5 / 16_000), rng, 5, 50, 320)  # fmt: skip
    wide_columns()
    beside_pgmpy()
    return verdict()


if __name__ == "__main__":
    sys.exit(main())
