"""A sweep over tables: which cells are missing in the store, computing them, and the records that come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from peerbayes.experiments.cells import Cell, compute
from peerbayes.experiments.engines import Engine
from peerbayes.experiments.prepared import read_as
from peerbayes.experiments.printed import printed
from peerbayes.experiments.store import Store
from peerbayes.experiments.tables import Record, Table
from peerbayes.versions import code_version

Told = Callable[[int, int], object]  # called with the cells done and the cells in all


@dataclass(frozen=True)
class Sweep:
    """Tables × datasets × columns × strategies × seeds."""

    tables: tuple[Table, ...]
    datasets: tuple[str, ...]
    strategies: tuple[str, ...]
    seeds: tuple[int, ...]
    columns: tuple[str, ...] | None = None
    start: str = "uniform"

    def cells(self) -> list[Cell]:
        """Every cell once; those of a dataset together, so that a worker loads few."""
        found = [
            cell
            for dataset in self.datasets
            for seed in self.seeds
            for table, column, strategy in self._columns()
            for cell in table.cells(dataset, column, strategy, seed, self.start)
        ]
        return list(dict.fromkeys(found))

    def missing(self, store: Store) -> list[Cell]:
        """What the store does not know."""
        cells = {cell.key: cell for cell in self.cells()}
        known = store.results(cells)
        return [cell for key, cell in cells.items() if key not in known]

    def compute(self, store: Store, engine: Engine, told: Told | None = None) -> set[str]:
        """Compute what is missing; each result is in the store as soon as it is there. Why some could not be."""
        cells = self.missing(store)
        specifications = [cell.specification() for cell in cells]
        code, name = code_version(), getattr(engine, "name", type(engine).__name__)
        refused = set()
        for done, (index, result) in enumerate(engine.run(compute, specifications), start=1):
            if "refused" in result:
                refused.add(result["refused"])
            else:
                store.add(cells[index].key, specifications[index], result, code, name)
            if told is not None:
                told(done, len(cells))
        return refused

    def records(self, store: Store) -> list[Record]:
        """What the tables say, the paper's numbers beside it."""
        results = store.results(cell.key for cell in self.cells())
        beside = {table.number: printed(table.number) for table in self.tables}
        return [
            replace(
                table.record(dataset, column, strategy, self.seeds, results, self.start),
                paper=beside[table.number].get((read_as(dataset)[0], column)),
            )
            for table, column, strategy in self._columns()
            for dataset in self.datasets
        ]

    def seconds(self, store: Store) -> dict[str, float]:
        """What the cells of each table cost to compute; shared ones count in each."""
        told = {}
        for table in self.tables:
            keys = [cell.key for cell in replace(self, tables=(table,)).cells()]
            told[table.number] = sum(result["seconds"] for result in store.results(keys).values())
        return told

    def _columns(self) -> Iterator[tuple[Table, str, str]]:
        for table in self.tables:
            for column in table.columns:
                if self.columns is None or column in self.columns:
                    strategies: Sequence[str] = ("rc",) if table.kind == "size" else self.strategies
                    for strategy in strategies:
                        yield table, column, strategy
