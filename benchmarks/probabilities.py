"""Probabilities of calibrated models on the paper's tabular datasets: calibration error and log loss, with and without
the scaling.

    PEERBAYES_DATA=folder python benchmarks/probabilities.py [dataset ...] [--seeds 0,1,2,3,4] [--results file.csv]

2,500 training rows, up to 5,000 test rows, columns typed as in the paper, defaults with calibrate=True; `plain` is the
same model without its scaling. Expected calibration error of 15 bins, means over the seeds. Logistic regression on
one-hot and standardised columns is scikit-learn's default. Fits that the file of results has are not computed again.

Limits: calibration error at most 0.03 on each dataset for each family and 0.016 in the mean of each family; on each
dataset the log loss of the best family at most that of logistic regression + 0.02.
"""

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import measuring  # noqa: F401  one thread
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from peerbayes import KDB, LDA, QDA, TAN, MixedNB
from peerbayes.experiments.cells import prepared
from peerbayes.experiments.formats import pipes
from peerbayes.learning.metrics import Outcome, log_loss
from peerbayes.model.scaling import Scaling

DATASETS = (
    "adult", "bank", "default", "letter", "pulsar", "run", "secondary:gaps", "skin", "smartgrid", "smoking", "soft",
)  # fmt: skip
FAMILIES = {"NB": MixedNB, "QDA": QDA, "LDA": LDA, "TAN": TAN, "KDB": KDB}
TRAINING_ROWS, TEST_ROWS = 2500, 5000
EACH, MEAN, BEYOND_REGRESSION = 0.03, 0.016, 0.02
FIGURES = ("ece", "loss", "error", "plain_ece", "plain_loss", "plain_error")


def figures(log_posterior: np.ndarray, codes: np.ndarray) -> tuple[float, float, float]:
    """Calibration error, log loss and error."""
    error = float(np.mean(log_posterior.argmax(axis=1) != codes))
    return Outcome.of(np.exp(log_posterior), codes).calibration_error, log_loss(log_posterior, codes), error


def regression(kinds: dict[str, str]) -> Any:
    """Logistic regression on standardised and one-hot columns."""
    continuous = [name for name, kind in kinds.items() if kind == "continuous"]
    discrete = [name for name in kinds if name not in continuous]
    columns = make_column_transformer(
        (StandardScaler(), continuous), (OneHotEncoder(handle_unknown="ignore"), discrete)
    )
    return make_pipeline(columns, LogisticRegression(max_iter=2000))


def measured(dataset: str, family: str, seed: int) -> dict[str, Any]:
    """The figures of one fit."""
    data = prepared(dataset)
    (X, y), (test, truth) = data.split(TRAINING_ROWS, seed)
    X, test = (pd.DataFrame(rows, columns=list(data.schema.names)) for rows in (X, test))
    test, truth = test[:TEST_ROWS], np.asarray(truth)[:TEST_ROWS]
    kinds = {column.name: column.kind for column in data.schema.columns}
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if family == "LR":
            model = regression(kinds).fit(X, np.asarray(y))
            seconds = time.process_time() - begin
            scaled = plain = np.log(np.maximum(model.predict_proba(test), 1e-300))
        else:
            model = FAMILIES[family](calibrate=True, kinds=kinds).fit(X, np.asarray(y))
            seconds = time.process_time() - begin
            scaled = model.predict_log_proba(test)
            plain = Scaling.identity(len(model.classes_)).log_probabilities(
                model.predict_joint_log_proba(test)
            )
    codes = np.searchsorted(model.classes_, truth)
    values = (*figures(scaled, codes), *figures(plain, codes))
    return {
        "dataset": dataset,
        "family": family,
        "seed": seed,
        "seconds": seconds,
        **dict(zip(FIGURES, values, strict=True)),
    }


def collected(datasets: list[str], seeds: list[int], path: Path | None) -> pd.DataFrame:
    """All figures; fits that the file lacks are added to it one by one."""
    rows = pd.read_csv(path).to_dict("records") if path is not None and path.exists() else []
    known = {(row["dataset"], row["family"], row["seed"]) for row in rows}
    for seed in seeds:
        for dataset in datasets:
            for family in (*FAMILIES, "LR"):
                if (dataset, family, seed) not in known:
                    rows.append(measured(dataset, family, seed))
                    if path is not None:
                        pd.DataFrame(rows).to_csv(path, index=False)
    table = pd.DataFrame(rows)
    return table[table["seed"].isin(seeds) & table["dataset"].isin(datasets)]


def tables(found: pd.DataFrame) -> tuple[str, list[str]]:
    """The tables, and which limits are missed."""
    means = found.groupby(["dataset", "family"], sort=False)[list(FIGURES)].mean()
    names, missed, lines, losses = [*FAMILIES, "LR"], [], [], []
    for dataset in dict.fromkeys(found["dataset"]):
        of = means.loc[dataset]
        lines.append(
            [dataset, *(f"{of.ece[f]:.3f} ({of.plain_ece[f]:.3f})" for f in FAMILIES), f"{of.ece['LR']:.3f}"]
        )
        losses.append(
            [
                dataset,
                *(f"{of.loss[f]:.3f} ({of.plain_loss[f]:.3f})" for f in FAMILIES),
                f"{of.loss['LR']:.3f}",
            ]
        )
        missed += [f"ECE of {f} on {dataset}: {of.ece[f]:.3f}" for f in FAMILIES if of.ece[f] > EACH]
        best = of.loss[list(FAMILIES)].min()
        if best > of.loss["LR"] + BEYOND_REGRESSION:
            missed.append(f"log loss on {dataset}: {best:.3f}, logistic regression {of.loss['LR']:.3f}")
    overall = means.groupby("family").mean()
    for rows, name in ((lines, "ece"), (losses, "loss")):
        both = [f"{overall[name][f]:.4f} ({overall[f'plain_{name}'][f]:.4f})" for f in FAMILIES]
        rows.append(["mean", *both, f"{overall[name]['LR']:.4f}"])
    missed += [f"mean ECE of {f}: {overall.ece[f]:.4f}" for f in FAMILIES if overall.ece[f] > MEAN]
    errors = [
        ["with", *(f"{overall.error[f]:.4f}" for f in names)],
        ["without", *(f"{overall.plain_error[f]:.4f}" for f in FAMILIES), ""],
    ]
    parts = [
        "Calibration error (without the scaling)", "\n".join(pipes(["", *names], lines)),
        "Log loss (without the scaling)", "\n".join(pipes(["", *names], losses)),
        "Error, mean of the datasets", "\n".join(pipes(["scaling", *names], errors)),
    ]  # fmt: skip
    return "\n\n".join(parts), missed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="*", default=list(DATASETS))
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    text, missed = tables(
        collected(options.datasets, [int(s) for s in options.seeds.split(",")], options.results)
    )
    print(text, *(f"MISSED: {limit}" for limit in missed), sep="\n")


if __name__ == "__main__":
    main()
