"""Results of cells in one SQLite file: computed side by side where they are missing, appended, never changed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes.data import files
from peerbayes.errors import ConfigurationError
from peerbayes.experiments.cells import SPECIFIED, key_of
from peerbayes.experiments.engines import Compute, Engine, enduring
from peerbayes.simulation.result import code_version

Progress = Callable[[int, int], object]  # called with the cells done and the cells in total

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
CREATE TABLE IF NOT EXISTS histories (
    key TEXT PRIMARY KEY,
    history BLOB NOT NULL     -- by round, as `files.pack` writes arrays
) STRICT;
CREATE TABLE IF NOT EXISTS refusals (
    key TEXT NOT NULL,
    specification TEXT NOT NULL,
    status TEXT NOT NULL,     -- "refused" by a check, or "failed"
    reason TEXT NOT NULL,
    code TEXT NOT NULL,
    engine TEXT NOT NULL,
    computed TEXT NOT NULL
) STRICT;
"""
LISTS = {
    "trajectory": "by_round",
    "parents": "structure",
}  # results that are lists, and their columns of text
HISTORY = "history"  # of a result: arrays by round, in a table of their own
REFUSED = ("refused", "failed")  # results that are only a reason
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
        """Store a result durably; one that is there already stays as it is.

        A result with a `history` has arrays by round, a refused or failed one only the reason under that name: it is
        kept beside the results, and the cell is still missing.
        """
        now, written = (
            datetime.now(UTC).isoformat(timespec="seconds"),
            json.dumps(specification, sort_keys=True),
        )
        if status := status_of(result):
            row = (key, written, status, result[status], code, engine, now)
            with self._open() as database:
                database.execute("INSERT INTO refusals VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            return
        figures = {name: value for name, value in result.items() if name != HISTORY}
        self._add([(key, written, json.dumps(figures), code, engine, now)], result.get(HISTORY))

    def _add(self, rows: list[tuple[str, ...]], history: dict[str, Any] | None = None) -> None:
        with self._open() as database:
            if history is not None:
                packed = files.pack({}, {name: np.asarray(values) for name, values in history.items()})
                database.execute("INSERT OR IGNORE INTO histories VALUES (?, ?)", (rows[0][0], packed))
            database.executemany("INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?, ?, ?)", rows)

    def histories(self, keys: Iterable[str]) -> dict[str, dict[str, np.ndarray]]:
        """Return the arrays by round of these keys, where there are any."""
        rows = self._where("SELECT key, history FROM histories", keys)
        return {key: files.unpack(packed, f"the history of {key:.8}")[1] for key, packed in rows}

    def refusals(self, keys: Iterable[str]) -> dict[str, tuple[str, str]]:
        """Return of these keys the status and the reason of the last refusal or failure."""
        rows = self._where("SELECT key, status, reason FROM refusals", keys, " ORDER BY rowid")
        return {key: (status, reason) for key, status, reason in rows}

    def results(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the stored results of these keys."""
        return {key: json.loads(result) for key, result, _ in self._rows(keys)}

    def codes(self, keys: Iterable[str]) -> set[str]:
        """Return the versions and commits that computed these."""
        return {code for _, _, code in self._rows(keys)}

    def _rows(self, keys: Iterable[str]) -> list[tuple[str, str, str]]:
        return self._where("SELECT key, result, code FROM results", keys)

    def _where(self, query: str, keys: Iterable[str], order: str = "") -> list[Any]:
        """Return what a query selects of these keys."""
        wanted, rows = list(dict.fromkeys(keys)), []
        with self._open() as database:
            for first in range(0, len(wanted), KEYS_PER_QUERY):
                batch = wanted[first : first + KEYS_PER_QUERY]
                marks = ",".join("?" * len(batch))
                rows += database.execute(f"{query} WHERE key IN ({marks}){order}", batch).fetchall()
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


# --- fill a store: the cells that it lacks, computed by an engine


def status_of(result: dict[str, Any]) -> str:
    """Return "refused" or "failed" for a result that is only a reason, "" for figures."""
    return next((status for status in REFUSED if status in result), "")


def fill(
    store: Store,
    engine: Engine,
    compute: Compute,
    missing: Mapping[str, dict[str, Any]],
    progress: Progress | None = None,
    endure: bool = False,
    beside: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Compute cells, given by key, and store each result at once; return by key the reasons why some have none.

    endure  a cell that kills its workers fails alone; else it ends everything
    beside  what workers are told beside a specification, and is not stored: where files are
    """
    keys, specifications = list(missing), list(missing.values())
    code, name = code_version(), getattr(engine, "name", type(engine).__name__)
    reasons = {}
    tasks = [{**specification, **(beside or {})} for specification in specifications]
    run = enduring(engine, compute, tasks) if endure else engine.run(compute, tasks)
    for done, (index, result) in enumerate(run, start=1):
        store.add(keys[index], specifications[index], result, code, name)
        if status := status_of(result):
            reasons[keys[index]] = str(result[status])
        if progress is not None:
            progress(done, len(keys))
    return reasons
