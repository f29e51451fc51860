"""TAN by maximum likelihood beside Weka's, on discrete datasets.

    PEERBAYES_DATA=folder python benchmarks/weka.py [dataset ...] [--seeds 0 1 2 3 4] [--jars folder]

Two thirds of the rows to learn from, the others to test on; error / log loss (nats; probabilities of at least 1e-6, as
in Weka), means over the seeds. Weka's is BayesNet with the search TAN, which fills gaps with modes and cuts columns of
numbers (pendigits) into intervals by their classes. `fixed` is our TAN(alpha=1, shrinkage=None, penalty="none").

Weka is Debian's package `weka` (3.6.14; `cup` with it) and Java; without them nothing is compared: exit code 0.
Limit: our log loss is at most Weka's on four of the seven datasets.
"""

from measuring import report, verdict  # isort: skip  # before numpy: it limits the threads

import argparse
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from peerbayes.estimators.classifiers import TAN, GenerativeClassifier

DATASETS = ("tic_tac_toe", "car", "soybean", "splice", "nursery", "krk", "pendigits")
SMALLEST, LEAST = 1e-6, 4
BAYES_NET = (
    "weka.classifiers.bayes.BayesNet", "-k", "-v", "-o", "-D", "-Q", "weka.classifiers.bayes.net.search.local.TAN",
    "--", "-S", "BAYES", "-E", "weka.classifiers.bayes.net.estimate.SimpleEstimator", "--", "-A", "0.5",
)  # fmt: skip


def split(dataset: str, seed: int) -> tuple[pd.DataFrame, np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows, their labels, and the indices of training rows and of test rows."""
    frame = pd.read_parquet(Path(os.environ["PEERBAYES_DATA"]) / "discrete" / f"{dataset}.parquet")
    labels = frame.pop("class").astype(str).to_numpy()
    order = np.random.default_rng(seed).permutation(len(frame))
    size = 2 * len(frame) // 3
    return frame, labels, order[:size], order[size:]


def quoted(value: object) -> str:
    return "'" + str(value).replace("'", "_") + "'"


def arff(frame: pd.DataFrame, labels: np.ndarray, rows: np.ndarray) -> str:
    """Return some rows in Weka's format, with the categories of all."""
    text = ["@relation rows"]
    numeric = [pd.api.types.is_numeric_dtype(values) for _, values in frame.items()]
    for (name, values), is_number in zip(frame.items(), numeric, strict=True):
        categories = ",".join(map(quoted, sorted(values.dropna().astype(str).unique())))
        text.append(f"@attribute {quoted(name)} " + ("numeric" if is_number else f"{{{categories}}}"))
    text += [f"@attribute class {{{','.join(map(quoted, sorted(set(labels))))}}}", "@data"]
    for row, label in zip(frame.iloc[rows].itertuples(index=False), labels[rows], strict=True):
        values = [
            "?" if pd.isna(value) else str(value) if is_number else quoted(value)
            for value, is_number in zip(row, numeric, strict=True)
        ]
        text.append(",".join([*values, quoted(label)]))
    return "\n".join(text) + "\n"


def of_weka(jars: Path, dataset: str, seed: int) -> tuple[float, float]:
    """Return the error and log loss of Weka's TAN."""
    frame, labels, train, test = split(dataset, seed)
    with tempfile.TemporaryDirectory() as folder:
        for name, rows in (("train.arff", train), ("test.arff", test)):
            Path(folder, name).write_text(arff(frame, labels, rows), encoding="utf-8")
        java = ["java", "-cp", f"{jars}/weka.jar:{jars}/cup_runtime.jar", BAYES_NET[0]]
        rows_of = ["-t", f"{folder}/train.arff", "-T", f"{folder}/test.arff"]
        ran = subprocess.run([*java, *rows_of, *BAYES_NET[1:]], capture_output=True, text=True)
    told = ran.stdout
    error = re.search(r"^Incorrectly.*?([\d.]+)\s+%", told, re.MULTILINE)
    bits = re.search(r"^Class complexity \| scheme.*?([-\d.]+)\s+bits/instance", told, re.MULTILINE)
    assert error is not None and bits is not None, ran.stderr
    return float(error[1]) / 100, float(bits[1]) * math.log(2)


def of_ours(model: GenerativeClassifier, dataset: str, seed: int) -> tuple[float, float]:
    """Return the error and log loss of one of our models."""
    frame, labels, train, test = split(dataset, seed)
    posterior = model.fit(frame.iloc[train], labels[train]).predict_proba(frame.iloc[test])
    true = np.searchsorted(model.classes_, labels[test])
    log_loss = -np.log(np.clip(posterior[np.arange(test.size), true], SMALLEST, 1.0)).mean()
    return float(np.mean(posterior.argmax(axis=1) != true)), float(log_loss)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="*", default=list(DATASETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--jars", type=Path, default=Path("/usr/share/java"), help="the folder of weka.jar")
    chosen = parser.parse_args()
    if "PEERBAYES_DATA" not in os.environ:
        print("PEERBAYES_DATA must name the folder of the datasets", file=sys.stderr)
        return 2
    if shutil.which("java") is None or not (chosen.jars / "weka.jar").exists():
        print(f"no java, or no {chosen.jars / 'weka.jar'}: nothing to compare with (apt install weka)")
        return 0
    print(
        "| error / log loss | Weka's TAN | `TAN` fixed | `TAN` without penalty | `TAN` |\n|---|---|---|---|---|"
    )
    better = 0
    for dataset in chosen.datasets:
        weka = [of_weka(chosen.jars, dataset, seed) for seed in chosen.seeds]
        models = (
            TAN(alpha=1.0, shrinkage=None, penalty="none"), TAN(penalty="none"), TAN(),
        )  # fmt: skip
        ours = [[of_ours(model, dataset, seed) for seed in chosen.seeds] for model in models]
        means = [np.mean(figures, axis=0) for figures in (weka, *ours)]
        better += bool(means[-1][1] <= means[0][1])
        print(f"| {dataset} | " + " | ".join(f"{e:.3f} / {loss:.3f}" for e, loss in means) + " |", flush=True)
    if set(DATASETS) - set(chosen.datasets):
        return 0
    report("TAN: datasets with at most Weka's log loss", better, f">= {LEAST}", better >= LEAST)
    return verdict()


if __name__ == "__main__":
    sys.exit(main())
