"""The paper's tables as many cells: which there are, what is missing in a store, and their records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from peerbayes.experiments.cells import Cell, compute, read_as
from peerbayes.experiments.engines import Engine
from peerbayes.experiments.paper_tables import Record, Table, printed
from peerbayes.experiments.results_store import Progress, Store, fill

# --- a sweep over tables: finds the cells that the store lacks, computes them, and makes records of the results


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
        missing = {cell.key: cell.specification() for cell in self.missing(store)}
        return set(fill(store, engine, compute, missing, progress).values())

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
