"""The foundation's speed and memory, as ratios measured side by side in one run, on one thread.

    python benchmarks/foundation.py            1,000,000 rows
    python benchmarks/foundation.py --quick    100,000 rows

`measuring` says how. The limits are for both sizes. Loading the kernels is not counted: see `first_call.py`.
"""

from measuring import peak_extra, report, side_by_side, verdict  # isort: skip  # before numpy: it limits the threads

import argparse
import sys
from collections.abc import Callable

import numpy as np
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.naive_bayes import CategoricalNB, GaussianNB

import peerbayes as pb
from peerbayes.data.table import Table
from peerbayes.model import passes, sources
from peerbayes.model.families import NaiveBayes
from peerbayes.model.residuals import residual_of

COLUMNS, CLASSES, VALUES, ITERATIONS = 20, 10, 8, 64


def faster(what: str, ours: Callable[[], object], theirs: Callable[[], object], least: float) -> None:
    mine, other = side_by_side(ours, theirs)
    report(f"{what}: times faster", other / mine, f">= {least:g}", other / mine >= least)


def calibration_pass(X: np.ndarray, y: np.ndarray) -> None:
    """One RC iteration beside the two bare products over a stored Φ."""
    schema = pb.MixedNB().fit(X, y).schema_
    family = NaiveBayes(continuous=COLUMNS, variance_floor=0.05)
    source = sources.source_of(schema, Table.of(X), again=True)
    data = passes.labelled(family, source, y.astype(np.int32), CLASSES)
    residual, stats = residual_of(data, family, ITERATIONS), data.statistics()
    features = family.features(schema.encode(X))
    weights, difference = family.weights(stats), np.random.default_rng(1).normal(size=(len(y), CLASSES))

    def iteration() -> np.ndarray:
        return stats + 0.05 * residual(stats)

    def products() -> None:
        np.dot(features, weights.T)
        np.dot(difference.T, features)

    mine, bare = side_by_side(iteration, products)
    report("RC iteration / two bare products over a stored Φ", mine / bare, "<= 1.5", mine / bare <= 1.5)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="100,000 rows instead of 1,000,000")
    rows = 100_000 if parser.parse_args().quick else 1_000_000
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, rows)
    X = rng.normal(size=(rows, COLUMNS)) + rng.normal(size=(CLASSES, COLUMNS))[y]
    cells = rng.integers(0, VALUES, (rows, COLUMNS))
    print(f"{rows:,} rows x {COLUMNS} columns, {CLASSES} classes, float64, one thread")

    gaussian, ours, qda = GaussianNB().fit(X, y), pb.MixedNB().fit(X, y), pb.QDA()
    discrete = pb.MixedNB(kinds="discrete")
    faster(
        "MixedNB fit, continuous, against GaussianNB", lambda: ours.fit(X, y), lambda: gaussian.fit(X, y), 5
    )
    faster(
        "MixedNB predict_proba against GaussianNB",
        lambda: ours.predict_proba(X),
        lambda: gaussian.predict_proba(X),
        3,
    )
    categorical = CategoricalNB()
    faster(
        "MixedNB fit, discrete, against CategoricalNB",
        lambda: discrete.fit(cells, y),
        lambda: categorical.fit(cells, y),
        10,
    )
    for solver in ("svd", "eigen"):
        theirs = QuadraticDiscriminantAnalysis(solver=solver)
        faster(
            f"QDA fit against scikit-learn's, {solver} solver",
            lambda: qda.fit(X, y),
            lambda t=theirs: t.fit(X, y),
            2,
        )
    calibration_pass(X, y)
    for name, call, size in (
        ("MixedNB continuous", lambda: ours.fit(X, y), X.nbytes),
        ("MixedNB discrete", lambda: discrete.fit(cells, y), cells.nbytes),
        ("QDA", lambda: qda.fit(X, y), X.nbytes),
        ("MixedNB calibrated", lambda: pb.MixedNB(calibrate=True, max_iter=2).fit(X, y), X.nbytes),
    ):
        share = peak_extra(call) / size
        report(f"peak extra memory of fit / input, {name}", share, "<= 0.1", share <= 0.1)
    return verdict()


if __name__ == "__main__":
    sys.exit(main())
