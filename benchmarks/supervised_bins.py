"""Bins with edges where the classes change, beside bins of equally many rows and Gaussians.

    PEERBAYES_DATA=folder python benchmarks/supervised_bins.py [dataset ...] [--rows 2500] [--seeds 0,1,2]

Pooled rows of the paper's tabular datasets, up to 5,000 test rows; discrete columns as in the paper. Calibrated naive
Bayes, TAN and AODE, each with numbers as Gaussians (AODE takes none), in bins of equally many rows and in supervised
ones: error / log loss (nats), means over the seeds. Settings were chosen on seeds 101 and 102.

Limit: in the mean over the datasets, the log loss of each family is lower than with bins of equally many rows.
"""

from measuring import report, verdict  # isort: skip  # before numpy: it limits the threads

import argparse
import sys
from collections.abc import Callable
from typing import Any

import pandas as pd
from auto import DATASETS, figures, split

from peerbayes import AODE, TAN, MixedNB
from peerbayes.errors import PeerbayesError
from peerbayes.experiments.formats import pipes

FAMILIES: dict[str, Callable[..., Any]] = {"naive Bayes": MixedNB, "TAN": TAN, "AODE": AODE}
KINDS = ("continuous", "binned", "supervised")


def measured(dataset: str, rows: int, seed: int) -> list[dict[str, Any]]:
    """Return the figures of each family and kind."""
    X, y, test, truth, kinds = split(dataset, rows, seed)
    records = []
    for name, family in FAMILIES.items():
        for kind in KINDS:
            of_columns = {column: kind if rule == "auto" else rule for column, rule in kinds.items()}
            try:
                model = family(kinds=of_columns, calibrate=True).fit(X, y)
            except PeerbayesError:  # AODE and numbers
                continue
            errors = figures(model.predict_proba(test), model.classes_, truth)
            records.append({"dataset": dataset, "model": f"{name}, {kind}", **errors})
    return records


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("datasets", nargs="*", default=list(DATASETS))
    parser.add_argument("--rows", type=int, default=2500)
    parser.add_argument("--seeds", default="0,1,2")
    options = parser.parse_args()
    records = []
    for dataset in options.datasets:
        for seed in map(int, options.seeds.split(",")):
            records += measured(dataset, options.rows, seed)
            print(f"{dataset}, seed {seed}", file=sys.stderr, flush=True)
    means = pd.DataFrame(records).groupby(["model", "dataset"])[["error", "log_loss"]].mean()
    names = list(dict.fromkeys(record["model"] for record in records))

    def cell(model: str, dataset: str) -> str:
        error, loss = means.loc[(model, dataset)]
        return f"{error:.4f} / {loss:.4f}"

    lines = [[dataset, *(cell(name, dataset) for name in names)] for dataset in options.datasets]
    overall = means.groupby("model").mean()
    lines.append(["mean", *(f"{overall.error[name]:.4f} / {overall.log_loss[name]:.4f}" for name in names)])
    print(*pipes(["error / log loss", *names], lines), "", sep="\n")
    for name in FAMILIES:
        loss, plain = (overall.log_loss[f"{name}, {kind}"] for kind in ("supervised", "binned"))
        report(f"{name}: mean log loss with supervised bins", loss, f"<= {plain:.4f}", loss <= plain)
    return verdict()


if __name__ == "__main__":
    sys.exit(main())
