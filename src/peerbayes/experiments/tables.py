"""The paper's tables: which cells each has, read from the TOML files in `paper/`, and what they say once computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from typing import Any

import numpy as np

from peerbayes import toml, topologies
from peerbayes.datasets.images import IMAGES
from peerbayes.errors import ConfigurationError
from peerbayes.experiments.cells import Cell, mean_and_error

WIDE = tuple(entry.name for entry in IMAGES)  # 512 columns: peers compute in float32

CONVERGED = 0.01  # the paper: a gap below this is convergence, below five times this it is close
GAP_TABLES = ("04", "05", "06", "07", "08", "09", "10", "12")

Results = dict[str, dict[str, Any]]  # by key


@dataclass(frozen=True)
class Record:
    """One cell of a table for one strategy, over its seeds."""

    table: str
    dataset: str
    column: str
    strategy: str
    gap: float | None  # what the column holds: mostly a gap
    stderr: float | None
    seeds: int
    paper: float | None = None
    same_start: float | None = None
    """The gap to RC from the start that the peers have, where that is not the uniform one."""


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
        """The simulations and references behind a cell for a seed."""
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
        """What the cell says over the seeds that are there."""
        found, same = [], []
        for seed in seeds:
            cells = self.cells(dataset, column, strategy, seed, start)
            known = [results[cell.key] for cell in cells if cell.key in results]
            if len(known) == len(cells):
                found.append(KINDS[self.kind](column, known))
                if len(known) == 3 and self.kind == "gap":
                    same.append(known[0]["test_error"] - known[2]["test_rc"])
        values = [value for value in found if value is not None]
        mean, error = mean_and_error(values) if values else (None, None)
        return Record(
            self.number, dataset, column, strategy, mean, None if error is None or np.isnan(error) else error,
            len(found), same_start=float(np.mean(same)) if same else None,
        )  # fmt: skip

    def _cell(self, dataset: str, column: str, strategy: str, seed: int, start: str) -> Cell:
        settings = {**self.settings, **self.columns[column]}
        dtype = "float32" if dataset in WIDE else "float64"
        return replace(Cell(dataset, seed, strategy, start=start, dtype=dtype), **settings)


def _gap(column: str, known: list[dict[str, Any]]) -> float:
    return float(known[0]["test_error"] - known[1]["test_rc"])


def _size(column: str, known: list[dict[str, Any]]) -> float:
    fewer, most = (float(found["test_rc"]) for found in known)
    return fewer - most if column.startswith("gap") else most


def _convergence(column: str, known: list[dict[str, Any]]) -> float:
    part, of, what = column.split("_")
    if of == "rc":
        return float(known[0][f"{part}_rc"])
    if of == "ml":
        return float(known[0][f"{part}_ml"] - known[0][f"{part}_rc"])
    if what == "std":
        return float(known[0][f"{part}_std"])
    return float(known[0][f"{part}_error"] - known[1][f"{part}_rc"])


def _iterations(column: str, known: list[dict[str, Any]]) -> float | None:
    """The gap where it first is below 0.01, or at the end; and that round, if there is one."""
    gaps = np.asarray(known[0]["trajectory"]) - known[1]["test_rc"]
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
    nodes: tuple[int, ...]
    distances: tuple[int, ...]
    trees: int

    @cached_property
    def shares(self) -> np.ndarray:
        """[sizes, distances], the mean over trees."""
        found = []
        for size in self.nodes:
            drawn = [
                topologies.within_distance(
                    topologies.adjacency("tree", size, np.random.default_rng([seed, size])),
                    self.distances[-1],
                )
                for seed in range(self.trees)
            ]
            found.append(np.mean(drawn, axis=0)[list(self.distances)])
        return np.array(found)

    def records(self) -> list[Record]:
        """The same as records: `dataset` is the number of peers."""
        return [
            Record("distance", str(size), f"within_{distance}", "tree", float(share), None, self.trees)
            for size, line in zip(self.nodes, self.shares, strict=True)
            for distance, share in zip(self.distances, line, strict=True)
        ]


def numbers() -> tuple[str, ...]:
    """The tables there are, in order; the figure last."""
    names = sorted(
        path.name.removesuffix(".toml") for path in files(PACKAGE).iterdir() if path.name.endswith(".toml")
    )
    return tuple(names)


def table(number: str) -> Table:
    """A table by its number."""
    content = _content(number)
    return Table(
        number.zfill(2), content["title"], content["kind"], content["columns"], content.get("cell", {})
    )


def distances() -> Distances:
    content = _content("distance")
    return Distances(content["title"], tuple(content["nodes"]), tuple(content["distances"]), content["trees"])


PACKAGE = "peerbayes.experiments.paper"


def _content(number: str) -> dict[str, Any]:
    name = number if number == "distance" else number.zfill(2)
    if name not in numbers():
        known = ", ".join(number.lstrip("0") for number in numbers())
        raise ConfigurationError(f"there is no table {number!r}; expected one of {known}, or all")
    return toml.table((files(PACKAGE) / f"{name}.toml").read_text(encoding="utf-8"), f"{name}.toml")
