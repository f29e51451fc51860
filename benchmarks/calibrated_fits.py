"""Calibrated fits on one thread, 64 iterations, in processor time: beside other code, and beside their own plain way.

    PEERBAYES_DATA=folder python benchmarks/calibrated_fits.py [--plain]

TAN on all of adult, with the kinds that are inferred and with the paper's; KDB on two thirds of letter, whose 16
columns are discrete, then Gaussian; MixedNB on 100,000 × 20 numbers beside scikit-learn's LogisticRegression on
standardised columns. "Defaults" hold rows out: up to 64 iterations to choose their number, and as many of all rows.
`--plain` also times the networks without kernels, which takes minutes. `measuring` says how.
"""

from measuring import report, side_by_side, verdict  # isort: skip  # before numpy: it limits the threads

import argparse
import os
import sys
import time

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from peerbayes.estimators.classifiers import KDB, TAN, MixedNB

ITERATIONS = 64
ONCE = {"validation_fraction": 0, "temperature": False}  # 64 iterations of all rows; else of folds first
NETWORKS = (
    ("adult", TAN, "auto", 1.0, 1.0, ONCE),
    ("adult", TAN, "paper", 1.0, 1.0, ONCE),
    ("adult", TAN, "auto", 2 / 3, 1.0, {}),
    ("letter_recognition", KDB, "discrete", 2 / 3, 8.0, ONCE),
    ("letter_recognition", KDB, "discrete", 2 / 3, 8.0, {}),
    ("letter_recognition", KDB, "continuous", 2 / 3, 8.0, {}),
)  # fmt: skip


def rows_of(name: str, share: float) -> tuple[pd.DataFrame, pd.Series]:
    """A share of a dataset's rows, drawn with seed 0: columns, and labels, which are its last column."""
    table = pd.read_parquet(f"{os.environ['PEERBAYES_DATA']}/{name}.parquet")
    drawn = np.random.default_rng(0).permutation(len(table))[: round(share * len(table))]
    return table.iloc[drawn, :-1], table.iloc[drawn, -1]


def networks(plain: bool) -> None:
    """Seconds of calibrated networks; with `plain`, how many times as long they take without kernels."""
    for name, estimator, kinds, share, limit, settings in NETWORKS:
        X, y = rows_of(name, share)
        model = estimator(calibrate=True, kinds=kinds, max_iter=ITERATIONS, **settings)
        (seconds,) = side_by_side(lambda: model.fit(X, y), turns=3, clock=time.process_time)  # noqa: B023
        rows = "all rows" if settings else "defaults"
        what = f"{estimator.__name__} on {len(y):,} rows of {name}, {kinds}, {rows}"
        report(f"{what}: seconds", seconds, f"< {limit:g}", seconds < limit)
        if plain:
            os.environ["PEERBAYES_PLAIN"] = "1"
            began = time.process_time()
            model.fit(X, y)
            del os.environ["PEERBAYES_PLAIN"]
            print(f"{what}: without kernels {(time.process_time() - began) / seconds:.1f} times as long")


def beside_logistic_regression(classes: int, distance: float) -> None:
    """Calibrated naive Bayes and logistic regression: 100,000 rows × 20 columns, classes `distance` apart."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, 100_000)
    X = rng.normal(size=(y.size, 20)) + distance * rng.normal(size=(classes, 20))[y]
    ours = MixedNB(calibrate=True, max_iter=ITERATIONS, **ONCE)
    theirs = make_pipeline(StandardScaler(), LogisticRegression())
    mine, other = side_by_side(
        lambda: ours.fit(X, y), lambda: theirs.fit(X, y), turns=5, clock=time.process_time
    )
    what = f"MixedNB / LogisticRegression, {classes} classes {distance:g} apart"
    report(f"{what} ({mine:.2f} s, {other:.2f} s)", mine / other, "<= 1.0", mine <= other)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plain", action="store_true", help="also time the networks without kernels")
    networks(parser.parse_args().plain)
    for classes, distance in ((10, 1.0), (10, 0.3), (2, 1.0), (2, 0.3)):
        beside_logistic_regression(classes, distance)
    return verdict()


if __name__ == "__main__":
    sys.exit(main())
