"""Predictions and fits beside scikit-learn's, as ratios of processor time with their intervals, on one thread.

    python benchmarks/predictions.py                  up to 1,000,000 rows
    python benchmarks/predictions.py --rows 10000     up to 10,000 rows

20 columns of numbers, 3 classes; arrays and DataFrames of 1, 100, 10,000 and 1,000,000 rows for predictions, and fits
from 1,000 rows on. `measuring` says how.
"""

from measuring import at_most, compare, verdict  # isort: skip  # before numpy: it limits the threads

import argparse
import sys

import numpy as np
import pandas as pd
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.naive_bayes import GaussianNB

import peerbayes as pb

COLUMNS, CLASSES = 20, 3
PREDICTED, FITTED = (1, 100, 10_000, 1_000_000), (1_000, 10_000, 200_000, 1_000_000)
PAIRS = (
    (pb.MixedNB, GaussianNB),
    (pb.LDA, LinearDiscriminantAnalysis),
    (pb.QDA, QuadraticDiscriminantAnalysis),
)

# Ratios of predictions and of fits that must not be exceeded.
LIMIT = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=max(PREDICTED), help="at most so many rows")
    most = parser.parse_args().rows
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, most)
    X = rng.normal(size=(most, COLUMNS)) + 0.3 * y[:, None]
    frame = pd.DataFrame(X, columns=[f"column {j}" for j in range(COLUMNS)])
    trained = slice(0, min(most, 100_000))
    for ours, theirs in PAIRS:
        for rows in (rows for rows in FITTED if rows <= most):
            few, labels = X[:rows], y[:rows]
            ratio = compare(lambda o=ours: o().fit(few, labels), lambda t=theirs: t().fit(few, labels))  # noqa: B023
            at_most(f"{ours.__name__} fit, {rows:,} rows / {theirs.__name__}", ratio, LIMIT)
        for kind, table in (("array", X), ("DataFrame", frame)):
            mine, other = ours().fit(table[trained], y[trained]), theirs().fit(table[trained], y[trained])
            for rows in (rows for rows in PREDICTED if rows <= most):
                part = table[:rows]
                for method in ("predict", "predict_proba"):
                    calls = (getattr(model, method) for model in (mine, other))
                    first, second = ((lambda c=call: c(part)) for call in calls)  # noqa: B023
                    what = f"{ours.__name__} {method}, {rows:,} rows, {kind} / {theirs.__name__}"
                    at_most(what, compare(first, second), LIMIT)
    return verdict()


if __name__ == "__main__":
    sys.exit(main())
