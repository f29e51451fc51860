"""A sweep over tables: finds the cells that the store lacks, computes them, and makes records of the results."""

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

Progress = Callable[[int, int], object]  # called with the cells done and the cells in total


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
        """Return every cell once; those of a dataset together, so that a worker loads few datasets."""
        cells = [
            cell
            for dataset in self.datasets
            for seed in self.seeds
            for table, column, strategy in self._columns()
            for cell in table.cells(dataset, column, strategy, seed, self.start)
        ]
        return list(dict.fromkeys(cells))

    def missing(self, store: Store) -> list[Cell]:
        """Return the cells that the store does not hold."""
        cells = {cell.key: cell for cell in self.cells()}
        stored = store.results(cells)
        return [cell for key, cell in cells.items() if key not in stored]

    def compute(self, store: Store, engine: Engine, progress: Progress | None = None) -> set[str]:
        """Compute what is missing and store each result at once; return the reasons why cells were refused."""
        cells = self.missing(store)
        specifications = [cell.specification() for cell in cells]
        code, name = code_version(), getattr(engine, "name", type(engine).__name__)
        refused = set()
        for done, (index, result) in enumerate(engine.run(compute, specifications), start=1):
            if "refused" in result:
                refused.add(result["refused"])
            else:
                store.add(cells[index].key, specifications[index], result, code, name)
            if progress is not None:
                progress(done, len(cells))
        return refused

    def records(self, store: Store) -> list[Record]:
        """Return the cells of the tables, with the paper's numbers."""
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
        """Return the computing time of each table's cells; shared ones count in each."""
        totals = {}
        for table in self.tables:
            keys = [cell.key for cell in replace(self, tables=(table,)).cells()]
            totals[table.number] = sum(result["seconds"] for result in store.results(keys).values())
        return totals

    def _columns(self) -> Iterator[tuple[Table, str, str]]:
        for table in self.tables:
            for column in table.columns:
                if self.columns is None or column in self.columns:
                    strategies: Sequence[str] = ("rc",) if table.kind == "size" else self.strategies
                    for strategy in strategies:
                        yield table, column, strategy
