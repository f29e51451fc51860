"""The paper's tables: their cells, and what was printed."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes import network
from peerbayes.data import files as toml
from peerbayes.data.datasets.entries import IMAGES
from peerbayes.errors import ConfigurationError
from peerbayes.experiments.cells import Cell, mean_and_error

# --- the paper's printed numbers, read from CSV files that are not part of this package

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


# --- the paper's tables: their cells, read from the TOML files in `paper/`, and the values of computed cells

WIDE = IMAGES  # 512 columns: peers compute in float32

CONVERGED = 0.01  # the paper: a gap below this is convergence, below five times this it is close
GAP_TABLES = ("04", "05", "06", "07", "08", "09", "10", "12")

TABLES = files("peerbayes.experiments") / "paper"

Results = dict[str, dict[str, Any]]  # by key


@dataclass(frozen=True)
class Record:
    """One cell of a table for one strategy, over its seeds."""

    table: str
    dataset: str
    column: str
    strategy: str
    gap: float | None  # the value of the column: mostly a gap
    stderr: float | None
    seeds: int
    paper: float | None = None
    same_start: float | None = None
    """The gap to RC from the peers' start, where that is not the uniform one."""


@dataclass(frozen=True)
class Table:
    """A table of the paper: its columns, and the cell of each."""

    number: str
    title: str
    kind: str
    columns: dict[str, dict[str, Any]]
    settings: dict[str, Any]

    def cells(
        self, dataset: str, column: str, strategy: str, seed: int, start: str = "uniform"
    ) -> list[Cell]:
        """Return the simulations and references behind a cell for a seed."""
        cell = self._cell(dataset, column, strategy, seed, start)
        if self.kind == "size":
            largest = self._cell(dataset, list(self.columns)[-1], strategy, seed, start)
            return [cell.reference, largest.reference]
        if self.kind == "convergence" and ("_ml_" in column or "_rc_" in column):
            return [cell.reference]
        references = [cell.reference] if start == "uniform" else [cell.reference, cell.reference_from(start)]
        return [cell, *references]

    def record(
        self,
        dataset: str,
        column: str,
        strategy: str,
        seeds: Sequence[int],
        results: Results,
        start: str = "uniform",
    ) -> Record:
        """Return the cell's value over the seeds whose results are available."""
        seed_values, same_start = [], []
        for seed in seeds:
            cells = self.cells(dataset, column, strategy, seed, start)
            cell_results = [results[cell.key] for cell in cells if cell.key in results]
            if len(cell_results) == len(cells):
                seed_values.append(KINDS[self.kind](column, cell_results))
                if len(cell_results) == 3 and self.kind == "gap":
                    same_start.append(cell_results[0]["test_error"] - cell_results[2]["test_rc"])
        values = [value for value in seed_values if value is not None]
        mean, error = mean_and_error(values) if values else (None, None)
        return Record(
            self.number, dataset, column, strategy, mean, None if error is None or np.isnan(error) else error,
            len(seed_values), same_start=float(np.mean(same_start)) if same_start else None,
        )  # fmt: skip

    def _cell(self, dataset: str, column: str, strategy: str, seed: int, start: str) -> Cell:
        settings = {**self.settings, **self.columns[column]}
        dtype = "float32" if dataset in WIDE else "float64"
        return replace(Cell(dataset, seed, strategy, start=start, dtype=dtype), **settings)


def _gap(column: str, cell_results: list[dict[str, Any]]) -> float:
    return float(cell_results[0]["test_error"] - cell_results[1]["test_rc"])


def _size(column: str, cell_results: list[dict[str, Any]]) -> float:
    fewer, most = (float(result["test_rc"]) for result in cell_results)
    return fewer - most if column.startswith("gap") else most


def _convergence(column: str, cell_results: list[dict[str, Any]]) -> float:
    split, method, quantity = column.split("_")
    if method == "rc":
        return float(cell_results[0][f"{split}_rc"])
    if method == "ml":
        return float(cell_results[0][f"{split}_ml"] - cell_results[0][f"{split}_rc"])
    if quantity == "std":
        return float(cell_results[0][f"{split}_std"])
    return float(cell_results[0][f"{split}_error"] - cell_results[1][f"{split}_rc"])


def _iterations(column: str, cell_results: list[dict[str, Any]]) -> float | None:
    """Return the gap where it first is below 0.01, or at the end; or that round, if there is one."""
    gaps = np.asarray(cell_results[0]["trajectory"]) - cell_results[1]["test_rc"]
    below = np.flatnonzero(gaps < CONVERGED)
    if column.endswith("round"):
        return float(below[0] + 1) if below.size else None
    return float(gaps[below[0]] if below.size else gaps[-1])


KINDS: dict[str, Callable[[str, list[dict[str, Any]]], float | None]] = {
    "gap": _gap,
    "size": _size,
    "convergence": _convergence,
    "iterations": _iterations,
}


@dataclass(frozen=True)
class Distances:
    """The paper's figure: the share of peers within a distance of a peer, in random trees."""

    title: str
    peers: tuple[int, ...]
    distances: tuple[int, ...]
    trees: int

    @cached_property
    def shares(self) -> np.ndarray:
        """The mean over trees: [sizes, distances]."""
        rows = []
        for size in self.peers:
            drawn = [
                network.within_distance(
                    network.adjacency("tree", size, np.random.default_rng([seed, size])),
                    self.distances[-1],
                )
                for seed in range(self.trees)
            ]
            rows.append(np.mean(drawn, axis=0)[list(self.distances)])
        return np.array(rows)

    def records(self) -> list[Record]:
        """Return the shares as records: `dataset` is the number of peers."""
        return [
            Record("distance", str(size), f"within_{distance}", "tree", float(share), None, self.trees)
            for size, row in zip(self.peers, self.shares, strict=True)
            for distance, share in zip(self.distances, row, strict=True)
        ]


def numbers() -> tuple[str, ...]:
    """Return the numbers of the tables in order; the figure comes last."""
    names = (path.name for path in TABLES.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def table(number: str) -> Table:
    """Return a table by its number."""
    content = _content(number)
    return Table(
        number.zfill(2), content["title"], content["kind"], content["columns"], content.get("cell", {})
    )


def distances() -> Distances:
    content = _content("distance")
    return Distances(content["title"], tuple(content["peers"]), tuple(content["distances"]), content["trees"])


def _content(number: str) -> dict[str, Any]:
    name = number if number == "distance" else number.zfill(2)
    if name not in numbers():
        listed = ", ".join(number.lstrip("0") for number in numbers())
        raise ConfigurationError(f"there is no table {number!r}; expected one of {listed}, or all")
    return toml.table((TABLES / f"{name}.toml").read_text(encoding="utf-8"), f"{name}.toml")
