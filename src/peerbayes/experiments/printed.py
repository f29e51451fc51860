"""What the paper printed, where its tables lie as CSV: nothing of it is part of this package."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from peerbayes.errors import ConfigurationError

VARIABLE = "PEERBAYES_PAPER"

Printed = dict[tuple[str, str], float]  # by dataset and column


def folder() -> Path | None:
    """The folder of the paper's tables: PEERBAYES_PAPER, or paper/tables beside the folder of datasets."""
    if told := os.environ.get(VARIABLE):
        if not Path(told).is_dir():
            raise ConfigurationError(f"{VARIABLE} is {told}, which is no folder")
        return Path(told)
    beside = Path(os.environ.get("PEERBAYES_DATA", "")).parent / "paper" / "tables"
    return beside if os.environ.get("PEERBAYES_DATA") and beside.is_dir() else None


def printed(number: str) -> Printed:
    """The numbers of a table, as many as there are: files are called 04-… .csv, their first column is the dataset."""
    where = folder()
    paths = sorted(where.glob(f"{number}-*.csv")) if where is not None else []
    found: Printed = {}
    for path in paths[:1]:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                for column, value in row.items():
                    try:
                        found[row["dataset"], column] = float(value)
                    except (TypeError, ValueError):
                        continue
    return found
