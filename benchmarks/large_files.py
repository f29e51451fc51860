"""Files of rows that are read in blocks: the memory and the processor time of fits and predictions, on one thread.

    python benchmarks/large_files.py                  10,000,000 x 20 and three wide tables
    python benchmarks/large_files.py --rows 1000000   1,000,000 x 20, and the same tables

1. A Parquet file of numbers, written in pieces, with two classes. `MixedNB` is fitted to `sources.Blocks` of it, and
   predicts from them; scikit-learn's `GaussianNB` takes the same blocks by `partial_fit` and `predict_proba`.
2. 200,000 x 500 numbers; 100,000 x 20 numbers of 1,000 classes; 100,000 rows of 100 columns with 100 categories each:
   `MixedNB` from blocks and from the table in memory, beside scikit-learn's estimator in memory.

Every fit and prediction has a process of its own. Its memory is the most that Linux held for it (VmHWM), beyond what it
held when all was imported; its time is that of the processor, reading the file included.
"""

import measuring  # isort: skip  # before numpy: it limits the threads

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import parquet
from sklearn.naive_bayes import CategoricalNB, GaussianNB

import peerbayes as pb
from peerbayes.data import sources

MOST_MEMORY = 1000.0  # megabytes above the imported interpreter, of a fit or a prediction by blocks

PIECE = 500_000  # rows that are written at a time: the rows of a row group

# Rows, columns, classes and categories per column (0: numbers) of the tables of part 2.
TABLES = {
    "200,000 x 500": (200_000, 500, 2, 0),
    "1,000 classes, 100,000 x 20": (100_000, 20, 1000, 0),
    "100,000 x 100 columns of 100 categories": (100_000, 100, 2, 100),
}


# --- the files


def write(path: Path, rows: int, columns: int, classes: int, categories: int) -> None:
    """Write a table in pieces, so that this process never holds it either."""
    rng = np.random.default_rng(0)
    piece = min(PIECE, max(1, 10_000_000 // columns))
    names = [f"column {j}" for j in range(columns)]
    writer = None
    for start in range(0, rows, piece):
        count = min(piece, rows - start)
        y = rng.integers(0, classes, count)
        if categories:
            values = (
                rng.integers(0, categories, (count, columns)) + rng.integers(0, 2, (count, 1)) * y[:, None]
            )
            values %= categories
        else:
            values = rng.normal(size=(count, columns)) + 0.01 * y[:, None]
        arrays = {name: pa.array(values[:, j]) for j, name in enumerate(names)} | {"y": pa.array(y)}
        table = pa.table(arrays)
        writer = writer or parquet.ParquetWriter(path, table.schema, compression="snappy")
        writer.write_table(table)
    assert writer is not None
    writer.close()


# --- what a process of its own does


def ours_by_blocks(blocks: sources.Blocks, categories: int) -> object:
    return estimator(categories).fit(blocks)


def ours_in_memory(blocks: sources.Blocks, categories: int) -> object:
    features, labels = sources.labelled(sources.read(str(blocks.data)), "y")
    return estimator(categories).fit(features, labels)


def theirs_by_blocks(blocks: sources.Blocks, categories: int) -> object:
    model, classes = GaussianNB(), np.arange(classes_of(blocks))
    for features, labels in blocks.labelled():
        model.partial_fit(features, labels, classes=classes)
    return model


def theirs_in_memory(blocks: sources.Blocks, categories: int) -> object:
    frame = pd.read_parquet(blocks.data)
    features, labels = frame.drop(columns="y"), frame["y"].to_numpy()
    model = CategoricalNB(min_categories=categories) if categories else GaussianNB()
    return model.fit(features, labels)


def ours_predict(blocks: sources.Blocks, categories: int) -> object:
    return ours_by_blocks(sources.Blocks(*few(blocks)), categories), sources.Blocks(blocks.data, "y")


def theirs_predict(blocks: sources.Blocks, categories: int) -> object:
    return theirs_by_blocks(sources.Blocks(*few(blocks)), categories), sources.Blocks(blocks.data, "y")


def few(blocks: sources.Blocks) -> tuple[str, str]:
    """Return the file and the label of a small table of the same columns, which is made beside the large one."""
    return f"{blocks.data}.few.parquet", "y"


def classes_of(blocks: sources.Blocks) -> int:
    return 1 + max(int(labels.max()) for _, labels in blocks.labelled())


def estimator(categories: int) -> pb.MixedNB:
    return pb.MixedNB(kinds="discrete" if categories else "auto", alpha=1.0)


WORK = {
    work.__name__: work
    for work in (
        ours_by_blocks,
        ours_in_memory,
        theirs_by_blocks,
        theirs_in_memory,
        ours_predict,
        theirs_predict,
    )
}


def memory(name: str) -> float:
    """Return the memory of this process in megabytes: VmRSS, what it holds; VmHWM, the most since `forget_peak`."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition(f"{name}:")[2].split()[0]) / 1024


def forget_peak() -> None:
    """Let the system measure the most that this process holds from now on."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def child(work: str, path: str, categories: int) -> None:
    """Do one piece of work; print its memory and its processor time."""
    pa.set_cpu_count(1)
    imported, model = memory("VmRSS"), None
    blocks = sources.Blocks(path, "y")
    if work.endswith("predict"):
        model, blocks = WORK[work](blocks, categories)  # type: ignore[misc]
    forget_peak()
    began = time.process_time()
    if model is None:
        WORK[work](blocks, categories)
    elif work.startswith("ours"):
        model.predict_proba(blocks)
    else:
        answers = np.empty((blocks.row_count, 2))
        for features in blocks:
            answers[features.index[0] : features.index[0] + len(features)] = model.predict_proba(features)
    print(json.dumps({"memory": memory("VmHWM") - imported, "seconds": time.process_time() - began}))


def measured(work: str, path: Path, categories: int = 0) -> tuple[float, float]:
    """Return the megabytes and the seconds of one piece of work in a process of its own."""
    command = [sys.executable, __file__, "--child", work, str(path), str(categories)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    print(f"  {work:<18}{figures['memory']:>9,.0f} MB {figures['seconds']:>9.1f} s", flush=True)
    return figures["memory"], figures["seconds"]


# --- both parts


def large_file(folder: Path, rows: int) -> None:
    """Measure a file that is larger than what may be held of it."""
    path = folder / "rows.parquet"
    write(path, rows, 20, 2, 0)
    write(Path(few(sources.Blocks(path))[0]), 20_000, 20, 2, 0)
    print(f"{rows:,} x 20 numbers, 2 classes: {path.stat().st_size / 1e6:,.0f} MB of Parquet", flush=True)
    for what, ours, theirs in (
        ("fit", "ours_by_blocks", "theirs_by_blocks"),
        ("predict_proba", "ours_predict", "theirs_predict"),
    ):
        memory, seconds = measured(ours, path)
        _, other = measured(theirs, path)
        limit = f"<= {MOST_MEMORY:g}"
        measuring.report(f"{what}, {rows:,} x 20, by blocks: MB", memory, limit, memory <= MOST_MEMORY)
        print(f"  {what}: {seconds / other:.2f} of GaussianNB's time over the same blocks")
    path.unlink()


def wide_tables(folder: Path) -> None:
    """Measure tables that have many columns, classes or categories."""
    for name, (rows, columns, classes, categories) in TABLES.items():
        path = folder / "table.parquet"
        write(path, rows, columns, classes, categories)
        print(name, flush=True)
        for work in ("ours_by_blocks", "ours_in_memory", "theirs_in_memory"):
            measured(work, path, categories)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the large file")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        work, path, categories = options.child
        child(work, path, int(categories))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        large_file(Path(folder), options.rows)
        wide_tables(Path(folder))
    return measuring.verdict()


if __name__ == "__main__":
    sys.exit(main())
