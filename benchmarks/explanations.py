"""What a reader is told of calibrated models beside what the rows say: class shares, bits, constant columns, ranges.

    PEERBAYES_DATA=... python benchmarks/explanations.py

Each dataset gets a constant numeric column and a constant category. It is fitted with calibrate=True, saved, and read
by `peerbayes explain MODEL` and `peerbayes explain MODEL ROWS`; a simulation of 20 peers writes a report. The empirical
bits of a column are plug-in mutual information by distinct value where there are at most 256, otherwise in 32 bins of
equally many rows beside frequent values, less the Miller-Madow bias. Only the simulation is random (seed 0).
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.metrics import mutual_info_score
from typer.testing import CliRunner

import peerbayes as pb
from peerbayes.cli.app import app
from peerbayes.data.datasets import load


def empirical_bits(column: pd.Series, labels: np.ndarray) -> float:
    """Return I(x; c) of the rows, in bits."""
    if column.nunique() > 256 and pd.api.types.is_numeric_dtype(column):
        frequent = column.map(column.value_counts()) >= len(column) / 32
        column = column.where(
            frequent, "bin " + pd.qcut(column[~frequent], 32, duplicates="drop").astype(str)
        )
    values = pd.factorize(column)[0]
    cells = len(set(zip(values.tolist(), labels.tolist(), strict=True)))
    excess = cells - len(np.unique(values)) - len(np.unique(labels)) + 1
    return max(0.0, (mutual_info_score(labels, values) - excess / (2 * len(labels))) / np.log(2))


def explained(model: pb.MixedNB, folder: Path, *arguments: str) -> Any:
    """Return what `peerbayes explain` prints as JSON."""
    model.save(folder / "model")
    command = ["explain", str(folder / "model"), *arguments, "--format", "json", "--top", "1000"]
    return json.loads(CliRunner().invoke(app, command).stdout)


def report_ranges(X: pd.DataFrame, y: np.ndarray, folder: Path) -> tuple[int, int]:
    """Return how many figures of continuous columns a report has, and how many of them leave the range of the rows."""
    run = pb.simulate(X, y, peers=20, rows_per_peer=50, rounds=16, references=False)
    text = run.report(folder / "report.html").read_text(encoding="utf-8")
    content = json.loads(re.search(r'id="report-content">(.*?)</script>', text, flags=re.DOTALL)[1])
    drawn = outside = 0
    for spec in content["features"]["feature"]:
        axis = spec["layout"]["xaxis"]
        values = X[axis["title"]["text"]]
        constant = run.schema.columns[list(X).index(values.name)].constant  # in the peers' rows
        if "range" in axis and not constant:
            drawn += 1
            slack = 1e-9 * np.ptp(values)
            outside += not values.min() - slack <= axis["range"][0] < axis["range"][1] <= values.max() + slack
    return drawn, outside


def main() -> None:
    digits = load_digits()
    tables = {"digits": (pd.DataFrame(digits.data, columns=[f"p{j}" for j in range(64)]), digits.target)}
    for name in ("adult", "pulsar", "bank", "default"):
        dataset = load(name)
        tables[name] = dataset.frame, np.asarray(dataset.labels)
    for name, (frame, labels) in tables.items():
        X = frame.assign(constant=3.0, word="x")
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            model = pb.MixedNB(calibrate=True).fit(X, labels)
            learned = explained(model, folder)
            X[:1].to_csv(folder / "row.csv", index=False)
            reasons = explained(model, folder, str(folder / "row.csv"))
            drawn, outside = report_ranges(X, labels, folder)
        codes = pd.factorize(labels)[0]
        truth = {column: empirical_bits(frame[column], codes) for column in frame}
        bits = {entry["feature"]: entry["bits"] for entry in learned["features"]}
        shares = {entry["class"]: entry["probability"] for entry in learned["prior"]}
        off = max(abs(share - np.mean(labels == label)) for label, share in shares.items())
        terms = {entry["feature"]: entry["log_odds"] for entry in reasons["contributions"]}
        print(
            f"{name}: printed shares off by {off:.1e} at most; constant columns {bits['constant']}, {bits['word']} "
            f"bits and {terms['constant']}, {terms['word']} log-odds; {outside} of {drawn} figures leave the range"
        )
        best = list(dict.fromkeys([*sorted(truth, key=lambda c: -truth[c])[:5], *list(bits)[:5]]))
        for column in best:
            print(f"  {column:<45.45} {bits[column]:.4f} bits, counted {truth[column]:.4f}", end="")
            print(f"  ({bits[column] / truth[column] - 1:+.1%})")


if __name__ == "__main__":
    main()
