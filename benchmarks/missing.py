"""Missing values: completed by the model (expectation-maximisation) beside mean and mode imputation.

    PEERBAYES_DATA=folder python benchmarks/missing.py [dataset ...] [--seeds 3] [--first-seed 0] [--rows 2500]

30 % of all values are removed at random from training and test rows of the paper's tabular datasets (paper typing).
QDA and TAN, under maximum likelihood and after calibration (RC, from the ml start): mean test error over the seeds.
Imputation fills in the mean of a continuous and the mode of a discrete column of the training rows. Training rows
without any value are left out, for both.

"not worse": the mean of the differences over seeds is at most their standard error over seeds, and at most 0.005.
"strictly": the mean is at most 0.
"""

import argparse
import os
import sys
import warnings

import measuring  # noqa: F401  one thread
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer

from peerbayes.estimators.classifiers import QDA, TAN
from peerbayes.experiments.cells import Prepared, prepared

DATASETS = (
    "skin", "pulsar", "bank", "default", "soft", "adult", "smartgrid", "smoking", "secondary", "letter", "run",
)  # fmt: skip
MODELS = {
    "QDA ML": lambda: QDA(**kinds), "QDA RC": lambda: QDA(calibrate=True, **kinds),
    "TAN ML": lambda: TAN(**kinds), "TAN RC": lambda: TAN(calibrate=True, **kinds),
}  # fmt: skip
SHARE, LARGEST, STREAM = 0.3, 0.005, 17
kinds: dict = {}


def imputed(train: np.ndarray, test: np.ndarray, discrete: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of continuous columns and modes of discrete ones, of the training rows, in the gaps of both."""
    filled = train.copy(), test.copy()
    for columns, strategy in ((~discrete, "mean"), (discrete, "most_frequent")):
        if columns.any():
            imputer = SimpleImputer(strategy=strategy, keep_empty_features=True).fit(train[:, columns])
            for part, given in zip(filled, (train, test), strict=True):
                part[:, columns] = imputer.transform(given[:, columns])
    return filled


def errors(data: Prepared, rows: int, seed: int) -> np.ndarray:
    """Test errors by model and way, completed and imputed: [models, 2]."""
    (X, y), (Xt, yt) = data.split(rows, seed)
    rng = np.random.default_rng([seed, STREAM])
    X, Xt = (np.where(rng.random(part.shape) < SHARE, np.nan, part) for part in (X, Xt))
    some = ~np.isnan(X).all(axis=1)
    X, y = X[some], y[some]
    discrete = np.array([column.kind == "discrete" for column in data.schema.columns])
    kinds["kinds"] = [column.kind for column in data.schema.columns]
    found = np.empty((len(MODELS), 2))
    for k, make in enumerate(MODELS.values()):
        for way, (train, test) in enumerate(((X, Xt), imputed(X, Xt, discrete))):
            found[k, way] = 1.0 - make().fit(train, y).score(test, yt)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="*", default=DATASETS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=2500)
    given = parser.parse_args()
    if "PEERBAYES_DATA" not in os.environ:
        print("PEERBAYES_DATA must name the folder of the datasets", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore", ConvergenceWarning)
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    print(f"{'':<12}" + "".join(f"{name:>22}" for name in MODELS))
    print(f"{'dataset':<12}" + f"{'EM':>9}{'imputed':>9}{'':>4}" * len(MODELS))
    not_worse, strictly = np.zeros(len(MODELS), int), np.zeros(len(MODELS), int)
    for name in given.datasets:
        found = np.stack([errors(prepared(name), given.rows, seed) for seed in seeds])
        apart = found[..., 0] - found[..., 1]  # [seeds, models]
        mean = apart.mean(axis=0)
        error = apart.std(axis=0, ddof=1) / np.sqrt(given.seeds) if given.seeds > 1 else np.zeros(len(MODELS))
        good = mean <= np.minimum(error, LARGEST)
        not_worse, strictly = not_worse + good, strictly + (mean <= 0)
        cells = [
            f"{em:>9.3f}{filled:>9.3f} {'<' if m <= 0 else '≈' if g else '!'}  "
            for (em, filled), m, g in zip(found.mean(axis=0), mean, good, strict=True)
        ]
        print(f"{name:<12}" + "".join(cells), flush=True)
    total = len(given.datasets)
    print(f"{'not worse':<12}" + "".join(f"{n:>11} of {total:<3}{'':>5}" for n in not_worse))
    print(f"{'strictly':<12}" + "".join(f"{n:>11} of {total:<3}{'':>5}" for n in strictly))
    return 0


if __name__ == "__main__":
    sys.exit(main())
