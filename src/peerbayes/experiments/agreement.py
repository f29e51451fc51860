"""Agreement with the paper, and the evidence for what differs: a section of docs/reproduction.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from peerbayes.datasets.images import IMAGES
from peerbayes.experiments import formats
from peerbayes.experiments.printed import printed
from peerbayes.experiments.store import Store
from peerbayes.experiments.sweep import Sweep
from peerbayes.experiments.tables import CONVERGED, GAP_TABLES, Record

FAR = 0.05  # cells of crc this far from the paper's are listed
AGREES = 0.03  # errors of ML and RC that differ from the paper's by no more than this agree
LISTED = 12  # of a kind, the farthest first
ERRORS = ("train_rc_error", "test_rc_error", "rc_test_error_m10240")

# Datasets whose errors differ, as the paper seems to have read them.
AS_THE_PAPER = {
    "letter": ("letter:discrete", "all 16 columns discrete; the paper's table 1 calls them continuous"),
    "secondary": ("secondary:text", "all text discrete, also that of more than ten values"),
    "run": ("run-as-found", "the public copy, in which large values are ten times too large"),
}


def evidence(sweep: Sweep) -> Sweep:
    """Return a sweep over the references of those datasets, read as the paper seems to have read them."""
    names = tuple(name for dataset, (name, _) in AS_THE_PAPER.items() if dataset in sweep.datasets)
    chosen = tuple(table for table in sweep.tables if table.number in ("02", "03"))
    return replace(sweep, tables=chosen, datasets=names, strategies=("rc",), columns=ERRORS)


def section(sweep: Sweep, store: Store, records: Sequence[Record]) -> str:
    """Return the whole section, in Markdown."""
    text_lines = ["## Agreement with the paper\n"]
    errors = {(r.table, r.dataset, r.column): r for r in records if r.column in ERRORS and _comparable(r)}
    images = {entry.name for entry in IMAGES}
    tabular = [r for r in errors.values() if r.dataset not in images]
    far = [r for r in tabular if abs(_difference(r)) > AGREES]
    text_lines.append(
        f"- RC's errors (tables 2 and 3), tabular datasets: {len(tabular) - len(far)} of {len(tabular)} are within "
        f"{AGREES} of the paper's. The others: {_listed(far) or 'none'}."
    )
    text_lines += _readings(sweep, store, errors)
    text_lines += _likelihood(sweep, store)
    crc = [r for r in records if r.strategy == "crc" and r.table in GAP_TABLES and _comparable(r)]
    better, worse = ([r for r in crc if sign * _difference(r) > FAR] for sign in (-1, 1))
    text_lines.append(
        f"- `crc` in the gap tables: {len(crc) - len(better) - len(worse)} of {len(crc)} cells are within {FAR} of "
        f"the paper's. In {len(better)} the gap here is smaller: {_listed(better) or 'none'}. In {len(worse)} it is "
        f"larger: {_listed(worse) or 'none'}."
    )
    text_lines += _tabular(crc, images)
    text_lines.append(
        "- Where the paper's CRC stays at chance (letter, and peers of a single class) this one learns. Its printed "
        "start has moments (m⁰/C, m⁰/C, 0), whose variance is negative; here they are (m⁰/C, 0, m⁰/C), and every "
        "parameter has a guard, so that a peer that lacks a class keeps a proper distribution for it."
    )
    return "\n".join(text_lines) + "\n"


def _tabular(crc: Sequence[Record], images: set[str]) -> list[str]:
    """Count the cells that converge where the data are the paper's own: image features are not."""
    counts = []
    for number in GAP_TABLES:
        cells = [r for r in crc if r.table == number and r.dataset not in images]
        if cells:
            ours, papers = (
                sum(round(value or 0.0, 2) <= CONVERGED for value in values)
                for values in ([r.gap for r in cells], [r.paper for r in cells])
            )
            counts.append(f"table {number.lstrip('0')}: {ours} ({papers})")
    if not counts:
        return []
    return [
        "- Image features are not the paper's. On the tabular datasets alone, cells of `crc` that would be printed as "
        f"0.01 or less, and in brackets those that the paper prints so: {', '.join(counts)}. In table 7 `soft` "
        "makes the difference: RC's error here is lower than the paper's, so that the same error of the peers is a "
        "larger gap."
    ]


def _readings(sweep: Sweep, store: Store, errors: dict[tuple[str, str, str], Record]) -> list[str]:
    """Tabulate RC's errors of the datasets that differ, by how their columns are read."""
    reread = {(r.table, r.dataset, r.column): r for r in evidence(sweep).records(store) if r.gap is not None}
    columns = [("03", "train_rc_error"), ("03", "test_rc_error"), ("02", "rc_test_error_m10240")]
    rows = []
    for dataset, (name, how) in AS_THE_PAPER.items():
        keys = [(table, dataset, column) for table, column in columns]
        reread_keys = [(table, name, column) for table, column in columns]
        if not (all(key in errors for key in keys) and all(key in reread for key in reread_keys)):
            continue
        rows.append([dataset, "the paper's", *(f"{errors[key].paper:.2f}" for key in keys)])
        rows.append(["", "as its text says", *(f"{errors[key].gap:.3f}" for key in keys)])
        rows.append(["", f"`{name}`: {how}", *(f"{reread[key].gap:.3f}" for key in reread_keys)])
    if not rows:
        return []
    header = ["dataset", "read", "train, 2,500 rows", "test, 2,500 rows", "test, 10,240 rows"]
    return [
        "- What differs are three datasets, and each agrees once it is read otherwise than the paper says:\n",
        *formats.pipes(header, rows),
        "",
    ]


def _likelihood(sweep: Sweep, store: Store) -> list[str]:
    """Count the datasets whose ML test error agrees with the paper's, by the number of rows that ML is given."""
    sizes = [table for table in sweep.tables if table.kind == "size"]
    paper_errors = printed("03")
    datasets = [name for name in sweep.datasets if (name, "test_ml_gap") in paper_errors]
    if not (sizes and datasets):
        return []
    results = store.results(cell.key for cell in replace(sweep, tables=tuple(sizes)).cells())
    rows = []
    for column in sizes[0].columns:
        differences = []
        for name in datasets:
            cells = [sizes[0].cells(name, column, "rc", seed)[0] for seed in sweep.seeds]
            if any(cell.key not in results for cell in cells):
                break
            error = float(np.mean([results[cell.key]["test_ml"] for cell in cells]))
            differences.append(
                abs(error - paper_errors[name, "test_ml_gap"] - paper_errors[name, "test_rc_error"])
            )
        else:
            within = sum(value <= AGREES for value in differences)
            rows.append(
                [str(cells[0].rows), str(within), f"{np.mean(differences):.3f}", f"{max(differences):.3f}"]
            )
    if not rows:
        return []
    header = ["rows given to ML", f"datasets within {AGREES}", "mean difference", "largest"]
    nearest = min(rows, key=lambda row: float(row[2]))[0]
    return [
        "- ML's test errors in table 3 (its gap and RC's error together) are said to be of 2,500 rows. Against ML "
        f"here, given the training sets of table 2, they lie nearest at {nearest} rows, over {len(datasets)} datasets; "
        "the paper's RC does not have this shift. Its ML seems to have been given fewer rows:\n",
        *formats.pipes(header, rows),
        "",
    ]


def _comparable(record: Record) -> bool:
    return record.gap is not None and record.paper is not None


def _difference(record: Record) -> float:
    return float((record.gap or 0.0) - (record.paper or 0.0))


def _listed(records: Sequence[Record]) -> str:
    ordered = sorted(records, key=lambda record: -abs(_difference(record)))
    entries = [
        f"{r.dataset} {r.table.lstrip('0')}/{r.column} {r.gap:.3f} ({r.paper:.2f})" for r in ordered[:LISTED]
    ]
    suffix = f", and {len(ordered) - LISTED} more" if len(ordered) > LISTED else ""
    return ", ".join(entries) + suffix
