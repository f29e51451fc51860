"""The paper's printed numbers, read from CSV files that are not part of this package."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from peerbayes.errors import ConfigurationError

VARIABLE = "PEERBAYES_PAPER"

Printed = dict[tuple[str, str], float]  # by dataset and column


def folder() -> Path | None:
    """Return the folder of the paper's tables: PEERBAYES_PAPER, or paper/tables beside the folder of datasets."""
    if named := os.environ.get(VARIABLE):
        if not Path(named).is_dir():
            raise ConfigurationError(f"{VARIABLE} is {named}, which is not a folder")
        return Path(named)
    beside = Path(os.environ.get("PEERBAYES_DATA", "")).parent / "paper" / "tables"
    return beside if os.environ.get("PEERBAYES_DATA") and beside.is_dir() else None


def printed(number: str) -> Printed:
    """Return the numbers of a table as far as available: files are called 04-… .csv, with datasets in column one."""
    where = folder()
    paths = sorted(where.glob(f"{number}-*.csv")) if where is not None else []
    numbers: Printed = {}
    for path in paths[:1]:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                for column, value in row.items():
                    try:
                        numbers[row["dataset"], column] = float(value)
                    except (TypeError, ValueError):
                        continue
    return numbers
