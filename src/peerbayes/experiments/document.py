"""docs/reproduction.md and docs/strategies.md, written from the store: no number in them is typed by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from peerbayes.experiments import agreement, formats, tables
from peerbayes.experiments.store import Store
from peerbayes.experiments.sweep import Sweep
from peerbayes.experiments.tables import CONVERGED
from peerbayes.versions import CHANGED

HEAD = """# The paper, reproduced

Written by `peerbayes reproduce {words} --document docs`,
from the results in `docs/results.parquet`: each has its specification, and the version and commit that computed it
({codes}). Seeds {first} to {last}; a number is the mean over
seeds ± its standard error. Gaps below 0.01 are **bold**, below 0.05 *slanted*, as the paper marks them.

A cell is 50 peers of 50 rows on a random tree, 64 rounds, lr 0.05, naive Bayes, but for what its column says. The test
rows of a seed are the same in all cells: at most 5,000, none of them in any training set. The gap is the mean test
error over peers minus that of RC on the pooled rows (uniform start, 64 iterations, last iterate).

The datasets differ from the paper's in known ways, so errors are compared with caution and gaps more freely: image
features come from another network than the paper's, `run` is repaired (the paper's error suggests the public copy, in
which large values are ten times too large), `smartgrid` is rebuilt from its original, and row counts differ by one or
two. Columns are clipped at ±5 standard deviations and variances kept above 0.05, in RC as in the peers; the paper
names no guards. Peers with 512 columns compute in float32, everything else in float64.

The same code on the same machine gives the same numbers to the last bit. Another processor rounds matrix products
differently: a row that a peer is undecided about may then fall to another class, and errors of float64 cells differ by
up to 0.0005, those of float32 cells by up to 0.001. Most do not differ at all.
"""


def uncommitted(codes: Iterable[str]) -> list[str]:
    """Return the versions among these with uncommitted changes: nobody else can compute their results."""
    return sorted(code for code in codes if code.endswith(CHANGED))


def reproduction(sweep: Sweep, store: Store, words: str) -> str:
    """Return the page with all tables."""
    records = sweep.records(store)
    codes = ", ".join(sorted(store.codes(cell.key for cell in sweep.cells())))
    sections = [
        HEAD.format(words=words, codes=codes, first=sweep.seeds[0], last=sweep.seeds[-1]),
        "## Cells that converge\n",
        formats.counts_markdown(records, sweep.strategies),
        agreement.section(sweep, store, records),
        "## Computing time\n",
        _costs(sweep, store),
        "## The tables\n",
        *(formats.as_markdown(table, records, sweep.strategies) for table in sweep.tables),
        _distances(),
    ]
    return "\n".join(sections)


def _costs(sweep: Sweep, store: Store) -> str:
    seconds = sweep.seconds(store)
    results = store.results(cell.key for cell in sweep.cells())
    total = sum(result["seconds"] for result in results.values())
    rows = [[number.lstrip("0"), f"{spent / 60:.1f}"] for number, spent in seconds.items()]
    rows.append(["all, shared cells once", f"{total / 60:.1f}"])
    text_lines = formats.pipes(["table", "minutes of one processor"], rows)
    return "\n".join([*text_lines, ""])


def _distances() -> str:
    figure = tables.distances()
    rows = [
        [str(size), *(f"{share:.3f}" for share in row_shares)]
        for size, row_shares in zip(figure.nodes, figure.shares, strict=True)
    ]
    text_lines = formats.pipes(["peers", *(f"≤ {distance}" for distance in figure.distances)], rows)
    return "\n".join([f"### Figure. {figure.title}\n", *text_lines, ""])


STRATEGIES_HEAD = """# Which strategy when

Written by the command of [the reproduction](reproduction.md), from the same results. Mean over {datasets} datasets and
{seeds} seeds of the test error's gap to RC on the pooled rows, the number of datasets below 0.01, and the largest gap.

"""
SETTINGS = (
    ("i.i.d., tree", "04", "tree"),
    ("i.i.d., tree + 80 links", "04", "plus80"),
    ("drift in p(x), tree", "05", "tree"),
    ("one class per peer, tree", "06", "tree"),
    ("one class per peer, tree + 80 links", "06", "plus80"),
    ("drift in p(x,y), tree", "07", "tree"),
    ("a new tree every round", "12", "delta1"),
)


def strategies(sweep: Sweep, store: Store, names: Sequence[str]) -> str | None:
    """Return the page that compares strategies; None where the store does not hold their results."""
    full_sweep = replace(
        sweep,
        tables=tuple(tables.table(number) for number in dict.fromkeys(number for _, number, _ in SETTINGS)),
        strategies=tuple(names),
        columns=tuple(dict.fromkeys(column for *_, column in SETTINGS)),
    )
    records = [record for record in full_sweep.records(store) if record.seeds == len(sweep.seeds)]
    rows = []
    for label, number, column in SETTINGS:
        row = [label]
        for name in names:
            gaps = [
                r.gap
                for r in records
                if (r.table, r.column, r.strategy) == (number, column, name) and r.gap is not None
            ]
            if len(gaps) < len(sweep.datasets):  # a mean over fewer is no comparison
                row.append("–")
                continue
            row.append(f"{np.mean(gaps):.3f} ({sum(gap < CONVERGED for gap in gaps)}, {max(gaps):.2f})")
        rows.append(row)
    if not records:
        return None
    head = STRATEGIES_HEAD.format(datasets=len(sweep.datasets), seeds=len(sweep.seeds))
    return head + "\n".join([*formats.pipes(["", *(f"`{name}`" for name in names)], rows), ""])
