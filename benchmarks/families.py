"""Every family and `auto` over a network, beside other models on the pooled rows: the tables of docs/families.md.

    PEERBAYES_DATA=folder python benchmarks/families.py [dataset ...] [--models NB,TAN] [--rows 50,320,0]
        [--strategies auto,tree-sum,held-out] [--seeds 60,61,62,63,64] [--minutes 60] [--forget GA2M,auto]
        [--results docs/families.parquet] [--document docs/families.md]

50 peers × 50 and × 320 rows on a random tree, i.i.d. and sorted by class (about one class per peer), 64 rounds; the
paper's eleven tabular datasets, up to 5,000 test rows; `--rows 0` means the seven discrete datasets, two thirds of
whose rows are learned from, also by Weka's models. Error, log loss and calibration error on the same test rows.

Cells that the file of results has are not computed again; it is read and written after each cell, so that several
processes can share it. What matters most comes first: 50 rows before 320, cheap models before expensive ones,
explainable boosting last and seed by seed. `--minutes` ends the work in time, `--forget` drops all results of a model
first, so that they are computed again, and `--models none` computes nothing, for the document alone. Models of
packages that are not installed (interpret, Debian's `weka`) are left out. Nothing was chosen on these seeds.
"""

import argparse
import fcntl
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import measuring  # noqa: F401  one thread: before numpy
import pandas as pd
from families_models import (
    DISCRETE,
    ESTIMATORS,
    FAMILIES,
    POOLED,
    SOFTMAX,
    STRATEGIES,
    WEKA,
    Cell,
    has_weka,
    measured,
)
from families_page import page

from peerbayes.simulation.result import code_version

DATASETS = (
    "adult",
    "bank",
    "default",
    "pulsar",
    "run",
    "secondary:gaps",
    "skin",
    "smartgrid",
    "smoking",
    "soft",
    "letter",
)
PARTITIONS = ("iid", "drift-y")
ROWS, SEEDS = (50, 0, 320), (60, 61, 62, 63, 64)
LAST = "EBM"  # a minute for a fit, and hours where classes are many
CHEAP = ("NB", "bins", "LDA", "TAN", "QDA", "KDB")
MODELS = (*CHEAP, "LR", "RF", "HGB", SOFTMAX, *WEKA, "GA2M", "auto", "AODE", LAST)
"""In the order in which they are computed."""


# --- the cells, in the order in which they are computed


def cells(
    datasets: tuple[str, ...],
    models: tuple[str, ...],
    rows: tuple[int, ...],
    strategies: tuple[str, ...],
    seeds: tuple[int, ...],
) -> Iterator[Cell]:
    """Yield the cells, the most valuable first: `auto` before other strategies, explainable boosting last."""
    for size in rows:
        sets = [name for name in datasets if (name in DISCRETE) == (size == 0)]
        for strategy in strategies:
            for model in (name for name in models if name != LAST):
                for seed in seeds:
                    for dataset in sets:
                        yield from _cells_of(dataset, size, strategy, model, seed, strategy == strategies[0])
    for seed in seeds if LAST in models else ():
        for size in (size for size in rows if size):
            for dataset in (name for name in datasets if name not in DISCRETE):
                yield Cell(dataset, size, "pooled", "", LAST, seed)


def _cells_of(
    dataset: str, size: int, strategy: str, model: str, seed: int, is_first: bool
) -> Iterator[Cell]:
    """Yield the cells of a model on one dataset; those without a strategy along with the first strategy."""
    discrete = dataset in DISCRETE
    if model in FAMILIES and not (discrete and model not in ESTIMATORS):
        for partition in PARTITIONS:
            yield Cell(dataset, size, partition, strategy, model, seed)
    if not is_first:
        return
    if model == SOFTMAX:
        for partition in PARTITIONS:
            yield Cell(dataset, size, partition, "", model, seed)
    if model in POOLED or (discrete and (model in ESTIMATORS or model in WEKA)):
        yield Cell(dataset, size, "pooled", "", model, seed)


# --- the results: a row for each cell

FIGURES = ["error", "log_loss", "ece", "bytes", "seconds"]
TEXTS = ["chosen", "choice", "problem", "code"]
"""The strategy and the family that `auto` chose, why there are no figures, and the code that computed them."""


def read(path: Path | None) -> dict[Cell, dict[str, Any]]:
    """Return the results of a file; none where there is no file."""
    if path is None or not path.exists():
        return {}
    records = pd.read_parquet(path).to_dict("records")
    return {Cell(*(record.pop(name) for name in Cell._fields)): record for record in records}


def table_of(results: dict[Cell, dict[str, Any]]) -> pd.DataFrame:
    """Return the results as a table, in a fixed order."""
    frame = pd.DataFrame(
        [{**cell._asdict(), **figures} for cell, figures in results.items()],
        columns=[*Cell._fields, *FIGURES, *TEXTS],
    )
    frame[FIGURES] = frame[FIGURES].astype(float)
    frame[TEXTS] = frame[TEXTS].astype(object).fillna("")
    return frame.sort_values(list(Cell._fields), ignore_index=True)


def write(path: Path | None, results: dict[Cell, dict[str, Any]]) -> None:
    """Write the results in one go, so that a run which is stopped leaves a whole file."""
    if path is not None:
        beside = path.with_name(f".{path.name}.new")
        table_of(results).to_parquet(beside, index=False)
        beside.replace(path)


@contextmanager
def alone(path: Path | None) -> Iterator[None]:
    """Keep other processes that fill the same file waiting."""
    if path is None:
        yield
        return
    folder = os.open(path.absolute().parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)  # which gives the lock back


def fill(
    results: dict[Cell, dict[str, Any]], missing: list[Cell], path: Path | None, minutes: float
) -> list[Cell]:
    """Add the missing cells to the results until time is up; return those that failed."""
    ends, failed = time.monotonic() + 60 * minutes, []
    for index, cell in enumerate(missing, start=1):
        if time.monotonic() > ends:
            print(f"time is up: {len(missing) - index + 1:,} cells are missing", flush=True)
            break
        began = time.monotonic()
        try:
            figures = measured(cell)
        except Exception:  # hours of other cells should not end with one
            traceback.print_exc()
            failed.append(cell)
            continue
        with alone(path):  # another process may have added or dropped cells
            latest = results.copy() if path is None else read(path)
            results.clear()
            results.update({**latest, cell: {**figures, "code": code_version()}})
            write(path, results)
        outcome = figures.get("problem") or f"error {figures['error']:.4f} log loss {figures['log_loss']:.4f}"
        print(f"{index}/{len(missing)}", *cell, outcome, f"{time.monotonic() - began:.1f} s", flush=True)
    return failed


def installed(model: str) -> bool:
    """Return whether a model can be computed here."""
    return has_weka() if model in WEKA else model != LAST or find_spec("interpret") is not None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="*", default=[*DATASETS, *DISCRETE])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--forget", default="", help="models whose results are dropped first")
    parser.add_argument("--results", type=Path, help="file of finished cells, which others are added to")
    parser.add_argument("--document", type=Path, help="the page to write")
    options = parser.parse_args()
    if "PEERBAYES_DATA" not in os.environ:
        print("PEERBAYES_DATA must name the folder of the datasets", file=sys.stderr)
        return 2
    forgotten = options.forget.split(",")
    with alone(options.results):
        known = read(options.results)
        results = {cell: figures for cell, figures in known.items() if cell.model not in forgotten}
        if len(results) < len(known):
            write(options.results, results)
    chosen = options.models.split(",")
    if unknown := set(chosen) - {*MODELS, "none"}:
        print(
            f"--models has {', '.join(sorted(unknown))}; expected some of {', '.join(MODELS)}",
            file=sys.stderr,
        )
        return 2
    models = tuple(name for name in MODELS if name in chosen and installed(name))
    if skipped := [name for name in MODELS if name in chosen and not installed(name)]:
        print(f"not installed, and left out: {', '.join(skipped)}")
    rows, seeds = (tuple(map(int, text.split(","))) for text in (options.rows, options.seeds))
    wanted = cells(tuple(options.datasets), models, rows, tuple(options.strategies.split(",")), seeds)
    failed = fill(results, [cell for cell in wanted if cell not in results], options.results, options.minutes)
    if options.document is not None:
        options.document.write_text(page(table_of(results)), encoding="utf-8")
    if failed:
        print("failed:", *(" ".join(map(str, cell)) for cell in failed), sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
