"""Default MixedNB, QDA and LDA, by maximum likelihood, beside scikit-learn's naive Bayes and discriminant analysis.

    PEERBAYES_DATA=folder python benchmarks/defaults.py [dataset ...] [--seeds 0 1 2 3 4]

Accuracy in 5 folds, means over the seeds; of the paper's datasets 2,500 rows, without those that miss a value. To
scikit-learn text is given as numbers of its categories. `sklearn` is the better of GaussianNB and of CategoricalNB on
the columns that we call discrete together with GaussianNB on the others; for QDA the better of
QuadraticDiscriminantAnalysis() and reg_param=0.1 (a default that refuses singular covariances does not count).
`fixed` is ours with alpha=1 and shrinkage=None.

Limits: within 0.005 of scikit-learn's on at least eight of the first ten datasets; naive Bayes on digits at least 0.83.
"""

from measuring import report, verdict  # isort: skip  # before numpy: it limits the threads

import argparse
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.model_selection import StratifiedKFold
from sklearn.naive_bayes import CategoricalNB, GaussianNB

from peerbayes.data.schema import Schema
from peerbayes.estimators.classifiers import QDA, MixedNB

BUNDLED = ("iris", "wine", "breast_cancer", "digits")
FILES = {
    "letter": "letter_recognition", "pulsar": "pulsar", "run": "run_or_walk", "skin": "skin",
    "smartgrid": "smartgrid_stability", "default": "default_credit_card", "smoking": "smoking",
    "bank": "bank_marketing", "adult": "adult", "soft": "heart_2020",
}  # fmt: skip
ROWS, FOLDS, LIMIT, LEAST = 2_500, 5, 0.005, 8
FIRST = (*BUNDLED, *list(FILES)[:6])


def table(dataset: str, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the rows and labels of a dataset; `seed` picks those of the large ones."""
    if dataset in BUNDLED:
        bunch = getattr(datasets, f"load_{dataset}")()
        return pd.DataFrame(bunch.data), bunch.target
    frame = pd.read_parquet(Path(os.environ["PEERBAYES_DATA"]) / f"{FILES[dataset]}.parquet").dropna()
    frame = frame.sample(min(ROWS, len(frame)), random_state=seed).reset_index(drop=True)
    return frame.iloc[:, :-1], frame.iloc[:, -1].to_numpy()


def numbers(frame: pd.DataFrame) -> np.ndarray:
    """Return the table as numbers, text as the index of its category: [n, D]."""
    return np.stack(
        [
            values if pd.api.types.is_numeric_dtype(values) else values.astype("category").cat.codes
            for _, values in frame.items()
        ],
        axis=1,
    ).astype(float)


def mixture(X: np.ndarray, discrete: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray) -> float:
    """Return the accuracy of GaussianNB on continuous columns together with CategoricalNB on discrete ones."""
    if not discrete.any():
        return 0.0
    codes = np.stack([np.unique(values, return_inverse=True)[1] for values in X[:, discrete].T], axis=1)
    cells = CategoricalNB(min_categories=codes.max(axis=0) + 1).fit(codes[train], y[train])
    joint = cells.predict_joint_log_proba(codes[test])
    if not discrete.all():
        rest = GaussianNB().fit(X[train][:, ~discrete], y[train])
        joint += rest.predict_joint_log_proba(X[test][:, ~discrete]) - np.log(rest.class_prior_)
    return float(np.mean(cells.classes_[joint.argmax(axis=1)] == y[test]))


def accuracies(dataset: str, seed: int) -> np.ndarray:
    """Return the mean accuracies: scikit-learn's, ours fixed, ours by default, of naive Bayes and of QDA. [2, 3]."""
    frame, y = table(dataset, seed)
    X = numbers(frame)
    discrete = np.array([column.kind == "discrete" for column in Schema.infer(frame, y).columns])
    folds = []
    for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(X, y):

        def of(model: object, X: np.ndarray = X, train: np.ndarray = train, test: np.ndarray = test) -> float:
            try:
                return float(np.mean(model.fit(X[train], y[train]).predict(X[test]) == y[test]))
            except np.linalg.LinAlgError:  # singular covariances
                return 0.0

        def ours(model: object, train: np.ndarray = train, test: np.ndarray = test) -> float:
            return float(np.mean(model.fit(frame.iloc[train], y[train]).predict(frame.iloc[test]) == y[test]))

        folds.append(
            [
                of(GaussianNB()), mixture(X, discrete, y, train, test),
                ours(MixedNB(alpha=1.0, shrinkage=None)), ours(MixedNB()),
                of(QuadraticDiscriminantAnalysis()), of(QuadraticDiscriminantAnalysis(reg_param=0.1)),
                ours(QDA(alpha=1.0, shrinkage=None)), ours(QDA()),
            ]
        )  # fmt: skip
    mean = np.mean(folds, axis=0)
    return np.array([[mean[:2].max(), *mean[2:4]], [mean[4:6].max(), *mean[6:]]])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="*", default=[*BUNDLED, *FILES])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    chosen = parser.parse_args()
    if set(chosen.datasets) - set(BUNDLED) and "PEERBAYES_DATA" not in os.environ:
        print("PEERBAYES_DATA must name the folder of the datasets", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")  # scikit-learn's, about collinear columns
    print("| accuracy | sklearn NB | `MixedNB` fixed | `MixedNB` | sklearn QDA | `QDA` fixed | `QDA` |")
    print("|---|---|---|---|---|---|---|")
    means = {}
    for dataset in chosen.datasets:
        means[dataset] = np.mean([accuracies(dataset, seed) for seed in chosen.seeds], axis=0)
        print(
            f"| {dataset} | " + " | ".join(f"{value:.3f}" for value in means[dataset].ravel()) + " |",
            flush=True,
        )
    for index, family in enumerate(("MixedNB", "QDA")):
        among = [means[dataset][index] for dataset in FIRST if dataset in means]
        near = sum(float(mean[2] >= mean[0] - LIMIT) for mean in among)
        report(f"{family}: datasets within {LIMIT} of scikit-learn's", near, f">= {LEAST}", near >= LEAST)
    if "digits" in means:
        report("MixedNB on digits", means["digits"][0, 2], ">= 0.83", means["digits"][0, 2] >= 0.83)
    return verdict()


if __name__ == "__main__":
    sys.exit(main())
