"""Many cells: computed side by side, kept in a store that can be resumed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from peerbayes.errors import ConfigurationError
from peerbayes.experiments.cells import SPECIFIED, Cell, compute, key_of, read_as
from peerbayes.experiments.engines import Engine
from peerbayes.experiments.paper_tables import Record, Table, printed
from peerbayes.simulation.result import code_version

# --- results of cells in one SQLite file: appended, never changed, keyed by the hash of the cell's specification

LAYOUT = """
CREATE TABLE IF NOT EXISTS results (
    key TEXT PRIMARY KEY,
    specification TEXT NOT NULL,
    result TEXT NOT NULL,
    code TEXT NOT NULL,       -- version and commit that computed it
    engine TEXT NOT NULL,
    computed TEXT NOT NULL    -- when, UTC
) STRICT;
CREATE TRIGGER IF NOT EXISTS never_changed BEFORE UPDATE ON results
    BEGIN SELECT RAISE(ABORT, 'results are appended, never changed'); END;
CREATE TRIGGER IF NOT EXISTS never_deleted BEFORE DELETE ON results
    BEGIN SELECT RAISE(ABORT, 'results are appended, never deleted'); END;
"""
LISTS = {
    "trajectory": "by_round",
    "parents": "structure",
}  # results that are lists, and their columns of text
KEYS_PER_QUERY = 500  # SQLite limits the parameters of a query


@dataclass(frozen=True)
class Store:
    """A file of results. Several processes may read it while one writes."""

    path: Path

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._open() as database:
            database.executescript(LAYOUT)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(self.path, timeout=60)
        try:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=FULL")
            with database:
                yield database
        except sqlite3.DatabaseError as error:
            raise ConfigurationError(
                f"{self.path} cannot be used as a store of results: {error}. Name another file, or move this one away"
            ) from error
        finally:
            database.close()

    def add(
        self, key: str, specification: dict[str, Any], result: dict[str, Any], code: str, engine: str
    ) -> None:
        """Store a result durably; one that is there already stays as it is."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._add([(key, json.dumps(specification, sort_keys=True), json.dumps(result), code, engine, now)])

    def _add(self, rows: list[tuple[str, ...]]) -> None:
        with self._open() as database:
            database.executemany("INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?, ?, ?)", rows)

    def results(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the stored results of these keys."""
        return {key: json.loads(result) for key, result, _ in self._rows(keys)}

    def codes(self, keys: Iterable[str]) -> set[str]:
        """Return the versions and commits that computed these."""
        return {code for _, _, code in self._rows(keys)}

    def _rows(self, keys: Iterable[str]) -> list[tuple[str, str, str]]:
        wanted, rows = list(dict.fromkeys(keys)), []
        with self._open() as database:
            for first in range(0, len(wanted), KEYS_PER_QUERY):
                batch = wanted[first : first + KEYS_PER_QUERY]
                marks = ",".join("?" * len(batch))
                query = f"SELECT key, result, code FROM results WHERE key IN ({marks})"
                rows += database.execute(query, batch).fetchall()
        return rows

    def frame(self) -> Any:
        """Return all results as a DataFrame: one row per cell, specification and result in columns."""
        import pandas as pd

        with self._open() as database:
            rows = database.execute(
                "SELECT key, specification, result, code, engine, computed FROM results ORDER BY computed, key"
            ).fetchall()
        records = []
        for key, specification, result, code, engine, computed in rows:
            fields = json.loads(result)
            for name, written in LISTS.items():
                fields[written] = json.dumps(fields.pop(name)) if name in fields else None
            records.append(
                {
                    "key": key,
                    **json.loads(specification),
                    **fields,
                    "code": code,
                    "engine": engine,
                    "computed": computed,
                }
            )
        return pd.DataFrame(records)

    def restore(self, path: Path) -> int:
        """Add results that `export` wrote to a .parquet file, all or none, after checking keys; return their number."""
        import pandas as pd

        frame = pd.read_parquet(path)
        rows: list[tuple[str, ...]] = []
        for row in frame.to_dict("records"):
            fields = {str(name): _plain(value) for name, value in row.items()}
            fields["lr"] = float(fields["lr"])
            specification = {name: fields.pop(name) for name in SPECIFIED}
            key, code, engine, computed = (fields.pop(name) for name in ("key", "code", "engine", "computed"))
            if key_of(specification) != key:
                raise ConfigurationError(
                    f"{path}: {specification} has the key {key_of(specification)}, not {key}"
                )
            result = {name: value for name, value in fields.items() if value is not None}
            for name, written in LISTS.items():
                if written in result:
                    result[name] = json.loads(result.pop(written))
            texts = json.dumps(specification, sort_keys=True), json.dumps(result)
            rows.append((key, *texts, code, engine, computed))
        self._add(rows)
        return len(rows)

    def export(self, path: Path) -> int:
        """Write all results to a .csv or a .parquet file; return their number."""
        frame = self.frame()
        if path.suffix == ".csv":
            frame.to_csv(path, index=False)
        elif path.suffix == ".parquet":
            frame.to_parquet(path, index=False)
        else:
            raise ConfigurationError(f"results are exported to a .csv or a .parquet file, not to {path}")
        return len(frame)


def _plain(value: Any) -> Any:
    """Return a number or text of a table as a plain Python value; None where it is missing."""
    if value is None or value != value:
        return None
    plain = value.item() if hasattr(value, "item") else value
    return int(plain) if isinstance(plain, float) and plain.is_integer() and abs(plain) < 2**31 else plain


# --- a sweep over tables: finds the cells that the store lacks, computes them, and makes records of the results

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
