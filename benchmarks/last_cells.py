"""The paper's cells that `auto` does not reach with 64 messages, at the bytes of 64 float64 matrices.

    PEERBAYES_DATA=folder python benchmarks/last_cells.py [--above 0.01] [--sample 0] [--exchanges 4] [--seeds 5]

From docs/results.parquet: the cells of the paper's tables whose gap to RC with `auto` and float64, a mean over seeds,
is at least a limit; and, with --sample, some of the other cells, drawn at random. All of them are run with int8
messages, several exchanges a round. Each line: the gap before, the gap now with its standard error, messages to each
neighbour, and bytes as a share of those of 64 float64 matrices.
The exit code is 1 where a gap is 0.01 or more, or where more bytes are sent.
"""

import argparse
import os
import sys
import warnings
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np
import pandas as pd

from peerbayes import simulate
from peerbayes.experiments.cells import ALL, Cell, TooFewRows, mean_and_error, prepared
from peerbayes.experiments.paper_tables import CONVERGED, GAP_TABLES, table

RESULTS = Path(__file__).parents[1] / "docs" / "results.parquet"
SAMPLED = 18  # the seed of --sample


def cells_of_tables(datasets: list[str]) -> dict[str, tuple[list[Cell], list[Cell]]]:
    """Return the runs of each distinct cell over its seeds, and their references, by a name."""
    cells = {}
    for number in GAP_TABLES:
        for column in table(number).columns:
            if table(number).kind == "convergence" and column != "test_crc_gap":
                continue
            for dataset in datasets:
                runs, references = [], []
                for seed in range(5):
                    run, reference, *_ = table(number).cells(dataset, column, "auto", seed)
                    runs.append(run)
                    references.append(reference)
                cells.setdefault(tuple(runs), (f"{number} {column} {dataset}", runs, references))
    return {name: (runs, references) for name, runs, references in cells.values()}


def few_bytes(cell: Cell, exchanges: int) -> tuple[float, float, str]:
    """Return the mean test error of peers, the bytes that each has sent, and the strategy that was chosen."""
    data = prepared(cell.dataset)
    (X, y), test = data.split(cell.rows, cell.seed)
    run = simulate(
        X, y, peers=cell.peers, rows_per_peer=cell.rows_per_peer, topology=cell.topology, partition=cell.partition,
        change_every=cell.change_every, local_steps=cell.local_steps, rounds=cell.rounds, dtype=cell.dtype,
        seed=cell.seed, schema=data.schema, test=test, evaluate_every=0, evaluate_rows=(1, ALL), references=False,
        strategy=cell.strategy, messages="int8", exchanges=exchanges,
    )  # fmt: skip
    summary = run.summary()
    return summary["test_error"], summary["bytes_per_peer"], run.configuration["strategy"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--above", type=float, default=CONVERGED)
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--exchanges", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    if "PEERBAYES_DATA" not in os.environ:
        print("PEERBAYES_DATA must name the folder of the datasets", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")
    results = pd.read_parquet(RESULTS).set_index("key")
    cells, gaps = {}, {}
    for name, (runs, references) in cells_of_tables(sorted(results["dataset"].unique())).items():
        keys, beside = [run.key for run in runs], [reference.key for reference in references]
        if not results.index.isin(keys).sum() == results.index.isin(set(beside)).sum() == len(keys):
            continue
        pooled = results.loc[beside, "test_rc"].to_numpy()
        gaps[name] = float(np.mean(results.loc[keys, "test_error"].to_numpy() - pooled))
        width = np.dtype(runs[0].dtype).itemsize  # images: float32
        cells[name] = runs, pooled, results.loc[keys, "bytes_per_peer"].to_numpy() * (8 / width)
    hard = sorted((name for name in gaps if gaps[name] >= asked.above), key=lambda name: -gaps[name])
    others = sorted(set(gaps) - set(hard))
    drawn = np.random.default_rng(SAMPLED).permutation(len(others))[: asked.sample]
    print(f"{len(gaps)} distinct cells, {len(hard)} at {asked.above:g} or more, {len(drawn)} others drawn")
    print(f"{'cell':<34}{'auto':>8}{'int8':>8}{'error':>8}{'messages':>10}{'bytes':>7}", flush=True)
    missed = 0
    for name in hard + [others[index] for index in drawn]:
        runs, pooled, float_bytes = (column[: asked.seeds] for column in cells[name])
        try:
            figures = [few_bytes(run, asked.exchanges) for run in runs]
        except TooFewRows:
            continue
        errors, sent, chosen = zip(*figures, strict=True)
        mean, error = mean_and_error(list(np.array(errors) - pooled))
        share = float(np.mean(np.array(sent) / float_bytes))
        missed += mean >= CONVERGED or share > 1.0
        print(
            f"{name:<34}{gaps[name]:>8.4f}{mean:>8.4f}{error:>8.4f}{runs[0].rounds * asked.exchanges:>10}{share:>7.0%}"
            f"  {' '.join(sorted(set(chosen)))}",
            flush=True,
        )
    print(f"{missed} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
