"""The family that peers choose together, beside each candidate alone over the same network.

    PEERBAYES_DATA=folder python benchmarks/auto_peers.py [dataset ...] [--seeds 0,1,2] [--results FILE.csv]

50 peers × 50 rows on a random tree, i.i.d. and sorted by class; 64 rounds, strategy `auto`; each candidate with the
start that it has as a choice. Up to 5,000 test rows; numbers are open, columns of at most ten values are discrete, as
in the paper. A candidate that the choice leaves out (AODE, where its messages would be large) is not run. `auto` is the
run with family `auto`: its bytes and seconds are with the choice. Means over the seeds.
With `--results` figures are kept in a file, and only missing ones are computed.

Limit: error of the choice at most 0.005 above that of the best family in hindsight, on at least ten of eleven datasets.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import measuring  # noqa: F401  one thread
import numpy as np
import pandas as pd

import peerbayes as pb
from peerbayes.experiments.cells import prepared
from peerbayes.experiments.formats import pipes
from peerbayes.model.candidates import AUTO, CANDIDATES

DATASETS = (
    "adult", "bank", "default", "letter", "pulsar", "run", "secondary:gaps", "skin", "smartgrid", "smoking", "soft",
)  # fmt: skip
PARTITIONS = {"iid": "i.i.d.", "drift-y": "by class"}
PEERS, ROWS, TEST_ROWS = 50, 50, 5000
NEAR, DATASETS_NEAR = 0.005, 10


def measured(dataset: str, partition: str, seed: int) -> list[dict[str, Any]]:
    """The figures of the choice and of each candidate."""
    data = prepared(dataset)
    (X, y), (test, truth) = data.split(PEERS * ROWS, seed)
    kinds = {
        column.name: "auto" if column.kind == "continuous" else column.kind for column in data.schema.columns
    }
    X, test = (pd.DataFrame(rows, columns=list(kinds)) for rows in (X, test[:TEST_ROWS]))
    common = {
        "kinds": kinds, "peers": PEERS, "rows_per_peer": ROWS, "topology": "tree", "partition": partition,
        "test": (test, np.asarray(truth)[:TEST_ROWS]), "seed": seed, "evaluate_every": 0, "references": False,
    }  # fmt: skip
    records = [figures(X, y, AUTO, {**common, "family": AUTO})]
    chosen, judged = records[0]["choice"], records[0]["losses"]
    for name, candidate in CANDIDATES.items():
        if f"{name} " not in judged:
            print(f"{dataset}: {name} is not judged", flush=True)
            continue
        if name == chosen:
            records.append({**records[0], "model": name, "bytes": np.nan, "seconds": np.nan})
            continue
        in_bins = {column: "binned" if kind == "auto" else kind for column, kind in kinds.items()}
        settings = {**common, "family": candidate.family, "start": candidate.start}
        settings["kinds"] = in_bins if name == "bins" else kinds
        records.append(figures(X, y, name, settings))
    return [{"dataset": dataset, "partition": partition, "seed": seed, **record} for record in records]


def figures(X: Any, y: Any, model: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The figures of one run."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = pb.simulate(X, np.asarray(y), **settings)
    summary, choice = run.summary(), run.family_choice
    losses = {} if choice is None else {judged.name: judged.log_loss for judged in choice.candidates}
    return {
        "model": model,
        "error": summary["test_error"],
        "strategy": run.configuration["strategy"],
        "choice": "" if choice is None else choice.chosen,
        "losses": "; ".join(f"{name} {loss:.4f}" for name, loss in losses.items() if loss is not None),
        "bytes": summary["bytes_per_peer"],
        "seconds": time.process_time() - began,
    }


def show(table: pd.DataFrame) -> bool:
    """Print a table for each partition; return whether the limit is kept."""
    kept = True
    for partition, title in PARTITIONS.items():
        of = table[table["partition"] == partition]
        if of.empty:
            continue
        error = of.pivot_table(index="dataset", columns="model", values="error", sort=False)
        best = error[[name for name in CANDIDATES if name in error]]
        choices = of[of["model"] == AUTO].groupby("dataset")
        lines = []
        for name in error.index:
            auto = choices.get_group(name)
            lines.append([
                name, ", ".join(auto["choice"]), f"{error[AUTO][name]:.4f}",
                f"{best.loc[name].idxmin()}: {best.loc[name].min():.4f}",
                f"{error[AUTO][name] - best.loc[name].min():+.4f}",
                *("–" if np.isnan(value) else f"{value:.4f}" for value in best.loc[name]),
                f"{auto['bytes'].mean() / 1e6:.1f}", f"{auto['seconds'].mean():.0f}",
            ])  # fmt: skip
        means = [f"{error[AUTO].mean():.4f}", "", f"{(error[AUTO] - best.min(axis=1)).mean():+.4f}"]
        lines.append(["mean", "", *means, *(f"{value:.4f}" for value in best.mean()), "", ""])
        header = [title, "chosen, seed by seed", "`auto`", "best in hindsight", "above it", *best, "MB", "s"]
        near = int((error[AUTO] - best.min(axis=1) <= NEAR).sum())
        print("", *pipes(header, lines), "", sep="\n")
        print(f"{title}: within {NEAR} of the best family on {near} of {len(error)} datasets", flush=True)
        kept &= near >= len(error) - (len(DATASETS) - DATASETS_NEAR)
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="*", default=list(DATASETS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--partitions", default=",".join(PARTITIONS))
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    path, seeds = options.results, [int(seed) for seed in options.seeds.split(",")]
    partitions = options.partitions.split(",")
    records = pd.read_csv(path).to_dict("records") if path is not None and path.exists() else []
    known = {(record["dataset"], record["partition"], record["seed"]) for record in records}
    for seed in seeds:
        for dataset in options.datasets:
            for partition in partitions:
                if (dataset, partition, seed) not in known:
                    records += measured(dataset, partition, seed)
                    if path is not None:
                        pd.DataFrame(records).to_csv(path, index=False)
    table = pd.DataFrame(records)
    asked = table["seed"].isin(seeds) & table["dataset"].isin(options.datasets)
    return 0 if show(table[asked & table["partition"].isin(partitions)]) else 1


if __name__ == "__main__":
    sys.exit(main())
