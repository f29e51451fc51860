"""The data that is shown of a run, finished or not: the peers' curves, their spread, the network, the model.

A running simulation writes its progress to one SQLite file in the run's folder: every evaluated round. Readers follow
without blocking it. Saving the run deletes the file.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes.data.schema import Schema
from peerbayes.errors import PeerbayesError
from peerbayes.learning.metrics import Outcome
from peerbayes.model.families import BayesNet, Family
from peerbayes.model.families.structures import Parents
from peerbayes.model.sources import columns_of
from peerbayes.model.statistics import Statistics
from peerbayes.simulation.histograms import Histograms
from peerbayes.simulation.old_names import from_stored, to_stored
from peerbayes.simulation.records import COLUMNS
from peerbayes.simulation.result import LIVE_FILE, RUN_FILE, Run, forget_live

# Figures shown of every peer and round.
CURVES = ("test_error", "train_error", "soft_error", "disagreement", "bytes")

# Figures over all peers: columns of `View.spread`.
LEVELS = ("mean", "least", "5 %", "25 %", "median", "75 %", "95 %", "most")

# The most peers times rounds whose curves are kept.
HELD = 1 << 20


@dataclass(frozen=True)
class Structure:
    """The dependencies between the columns of a Bayesian network, besides the class."""

    names: tuple[str, ...]
    """[D] names of the columns, continuous ones first."""
    continuous: int
    """Number of continuous columns."""
    parents: Parents
    """[D] the parents of each column, by number."""
    label: str
    """The name of the class."""

    @classmethod
    def of(cls, schema: Schema, family: Family) -> Structure | None:
        """Return the structure of a family with the columns of a schema; None if it is not a Bayesian network."""
        if not isinstance(family, BayesNet):
            return None
        return cls(tuple(columns_of(schema)), family.continuous, family.parents, schema.label)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Structure:
        """Return the structure from its fields, as JSON has them."""
        parents = tuple(tuple(map(int, column_parents)) for column_parents in fields["parents"])
        return cls(tuple(fields["names"]), int(fields["continuous"]), parents, str(fields["label"]))


@dataclass(frozen=True, eq=False)
class View:
    """T evaluated rounds of N peers, P of which have curves."""

    title: str
    configuration: dict[str, Any]
    made: dict[str, str]
    """When the run was made, and with which versions."""
    total: int
    """Total number of rounds."""
    round_index: int
    """Rounds done."""
    rounds: np.ndarray
    """[T] the evaluated rounds."""
    peers: np.ndarray
    """[P] numbers of the peers that have curves: all, or a sample."""
    curves: dict[str, np.ndarray]
    """[T, P] by name: see `CURVES`."""
    spread: dict[str, np.ndarray]
    """[T, 8] over all N peers by name, see `LEVELS`."""
    last: dict[str, np.ndarray]
    """[N] of every peer in the last evaluated round, by name."""
    sizes: np.ndarray
    """[N] rows of each peer."""
    links: np.ndarray
    """[E, 2] the links, each pair once."""
    names: tuple[str, ...] | None = None
    """[N] names of the peers; None: their numbers."""
    references: dict[str, float] = field(default_factory=dict)
    """Reference errors: train and test, of rc, ml and local."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """Confusion matrix and reliability of "peers", "rc" and "ml"."""
    statistics: Statistics | None = None
    """The model to show; None: there is none yet, or it is not generative."""
    classes: tuple[Any, ...] = ()
    """Names of the classes; empty while a run goes on."""
    structure: Structure | None = None
    """The structure of a Bayesian network; None: the family is not one, or it is not known yet."""
    finished: bool = True
    seconds: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """[T] seconds of the rounds until each evaluated one; empty where they are not known."""
    histograms: Histograms | None = None
    """Counts of the rows; None: there are none yet, or rows are private."""
    columns: tuple[str, ...] = ()
    """Names of the continuous columns."""
    awaits_references: bool = False
    """Whether RC and ML come after the last round."""

    @property
    def peer_count(self) -> int:
        return len(self.sizes)

    @property
    def error(self) -> str:
        """The name of the error curve: test, or training if there are no test rows."""
        tested = self.spread["test_error"]
        return "test_error" if len(tested) == 0 or np.isfinite(tested).any() else "train_error"

    @classmethod
    def of(cls, run: Run, title: str | None = None) -> View:
        """Return the view of a finished run; its model is that of the peer with the median error."""
        rounds = np.unique(run.records[:, 0]).astype(np.int64)
        peer_count = len(run.sizes)
        table = run.records.reshape(len(rounds), peer_count, len(COLUMNS))
        figures = {name: table[:, :, COLUMNS.index(name)] for name in CURVES}
        peers = sampled(peer_count, len(rounds))
        statistics = None if run.of_weights else run.statistics(median_peer(run))
        return cls(
            title if title is not None else str(run.configuration["strategy"]),
            run.configuration,
            run.made,
            int(run.configuration["rounds"]),
            int(rounds[-1]),
            rounds,
            peers,
            {name: values[:, peers] for name, values in figures.items()},
            {name: spread(values) for name, values in figures.items()},
            {name: values[-1] for name, values in figures.items()},
            run.sizes,
            run.links,
            None,
            run.references,
            run.outcomes,
            statistics,
            run.schema.classes,
            Structure.of(run.schema, run.layout),
            seconds=run.seconds_by_round,
            histograms=run.histograms,
            columns=tuple(run.schema.columns[index].name for index in run.schema.continuous),
        )


def sampled(peer_count: int, rounds: int, limit: int = HELD) -> np.ndarray:
    """Return the peers whose curves are kept: all, or every 2nd, 4th, 8th…, so that later samples are subsets."""
    peer_limit, step = max(1, limit // max(rounds, 1)), 1
    while -(-peer_count // step) > peer_limit:
        step *= 2
    return np.arange(0, peer_count, step)


def spread(values: np.ndarray) -> np.ndarray:
    """Return the mean, minimum, quantiles and maximum over peers: [T, N] -> [T, 8], see `LEVELS`.

    Peers that lied have no figures and do not count, and those that vanished have none from then on.
    """
    honest = ~np.isnan(values).all(axis=0)
    if honest.any():
        values = values[:, honest]
    gaps = honest.any() and np.isnan(values).any() and not np.isnan(values).all(axis=1).any()
    quantile, mean = (np.nanquantile, np.nanmean) if gaps else (np.quantile, np.mean)
    quantiles = quantile(values, (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0), axis=1)
    return np.concatenate([mean(values, axis=1)[:, None], quantiles.T], axis=1)


def median_peer(run: Run) -> int:
    """Return the peer with the median error at the end, whose model is shown."""
    last = run.records[-len(run.sizes) :]
    errors = last[:, COLUMNS.index("test_error")]
    if not np.isfinite(errors).any():
        errors = last[:, COLUMNS.index("train_error")]
    return int(np.argsort(errors, kind="stable")[np.isfinite(errors).sum() // 2])


def titles(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """Return titles of several runs: a setting that differs between them, else the names of their folders."""
    differing = [
        key for key in runs[0].configuration
        if len({repr(run.configuration.get(key)) for run in runs}) == len(runs)
    ]  # fmt: skip
    for key in ("strategy", *differing):
        if key in differing:
            return [
                str(run.configuration[key]) if key == "strategy" else f"{key} {run.configuration[key]}"
                for run in runs
            ]
    return list(names)


# --- the progress of a running simulation on disk: written by it, followed by those who watch

# Peers whose curves are written; of larger networks a sample.
WRITTEN = 1 << 14

# Seconds between two writes of the current round.
PAUSE = 0.1

TABLES = """
CREATE TABLE about (content TEXT NOT NULL, sizes BLOB NOT NULL, links BLOB NOT NULL, peers BLOB NOT NULL) STRICT;
CREATE TABLE turns (one INTEGER PRIMARY KEY CHECK (one = 1), turn INTEGER NOT NULL, at REAL NOT NULL) STRICT;
CREATE TABLE rounds (round INTEGER PRIMARY KEY, curves BLOB NOT NULL, spread BLOB NOT NULL, seconds REAL) STRICT;
CREATE TABLE early (one INTEGER PRIMARY KEY CHECK (one = 1), content TEXT NOT NULL) STRICT;
CREATE TABLE last (one INTEGER PRIMARY KEY CHECK (one = 1), figures BLOB NOT NULL) STRICT;
"""


class LiveFile:
    """Write a simulation's progress. Never waits for the disk: after a power cut there is nothing to watch anyway."""

    def __init__(
        self,
        folder: Path,
        configuration: dict[str, Any],
        provenance: dict[str, str],
        sizes: np.ndarray,
        links: np.ndarray,
        structure: Structure | None = None,
        references: bool = False,
    ) -> None:
        self.path = folder / LIVE_FILE
        folder.mkdir(parents=True, exist_ok=True)
        forget_live(folder)
        self._db = sqlite3.connect(self.path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = OFF")
        self._peers = sampled(len(sizes), 1, WRITTEN)
        structure_fields = None if structure is None else asdict(structure)
        content = json.dumps(
            {
                "configuration": to_stored(configuration), "made": provenance, "structure": structure_fields,
                "references": references,
            }
        )  # fmt: skip
        blobs = (array.astype("<i8").tobytes() for array in (sizes, links, self._peers))
        self._db.executescript(f"BEGIN; {TABLES} COMMIT")
        self._db.execute("INSERT INTO about VALUES (?, ?, ?, ?)", (content, *blobs))
        self._noted_at = 0.0

    def add_references(self, references: dict[str, float]) -> None:
        """Write reference errors that are known before the first round."""
        content = json.dumps({name: value for name, value in references.items() if math.isfinite(value)})
        self._db.execute("INSERT OR REPLACE INTO early VALUES (1, ?)", (content,))
        self._db.execute("INSERT OR REPLACE INTO turns VALUES (1, 0, ?)", (time.time(),))

    def note_round(self, round_index: int) -> None:
        """Record that a round is done."""
        if (now := time.time()) - self._noted_at >= PAUSE:
            self._db.execute("INSERT OR REPLACE INTO turns VALUES (1, ?, ?)", (round_index, now))
            self._noted_at = now

    def add(self, records: np.ndarray, seconds: float | None = None) -> None:
        """Write evaluated rounds [T·N, 8], in the order of `COLUMNS`, and the seconds of all rounds until then."""
        rounds = np.unique(records[:, 0])
        table = records.reshape(len(rounds), -1, len(COLUMNS))[:, :, [COLUMNS.index(name) for name in CURVES]]
        self._db.execute("BEGIN")
        for round_index, figures in zip(rounds, table, strict=True):  # figures [N, 5]
            blobs = figures[self._peers].astype("<f4").tobytes(), spread(figures.T).astype("<f8").tobytes()
            self._db.execute(
                "INSERT OR REPLACE INTO rounds VALUES (?, ?, ?, ?)", (int(round_index), *blobs, seconds)
            )
        self._db.execute("INSERT OR REPLACE INTO last VALUES (1, ?)", (table[-1].astype("<f4").tobytes(),))
        self._db.execute("INSERT OR REPLACE INTO turns VALUES (1, ?, ?)", (int(rounds[-1]), time.time()))
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Close the file at the end of the simulation; it stays until the run is saved."""
        self._db.close()


class NothingToWatch(PeerbayesError):
    """The folder holds no run, finished or not."""


class GrowingArray:
    """An array that grows by appended rows; its buffer doubles when it is full."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self._buffer, self._count = np.empty((16, *shape), dtype), 0

    def add(self, row: np.ndarray | float) -> None:
        """Append a row."""
        if self._count == len(self._buffer):
            wider = np.empty((2 * self._count, *self._buffer.shape[1:]), self._buffer.dtype)
            wider[: self._count] = self._buffer
            self._buffer = wider
        self._buffer[self._count] = row
        self._count += 1

    def thin(self, step: int) -> None:
        """Keep every `step`-th entry of each row."""
        self._buffer = self._buffer[:, ::step].copy()

    @property
    def all(self) -> np.ndarray:
        """All rows, [T, ...]; later rows do not change it."""
        return self._buffer[: self._count]

    def __len__(self) -> int:
        return self._count


@dataclass
class Following:
    """Follow a run on disk: read it repeatedly and return its current view."""

    folder: Path
    at: float = 0.0
    """Time of the simulation's last write, in seconds since 1970; 0: never."""
    _db: sqlite3.Connection | None = field(default=None, repr=False)
    _file: tuple[int, int] | None = None
    _about: dict[str, Any] = field(default_factory=dict, repr=False)
    _rounds: GrowingArray = field(init=False, repr=False)
    _curves: GrowingArray = field(init=False, repr=False)
    _spread: GrowingArray = field(init=False, repr=False)
    _seconds: GrowingArray = field(init=False, repr=False)
    _references: dict[str, float] = field(default_factory=dict, repr=False)
    _step: int = 1
    """Every `_step`-th of the peers that were written is kept."""
    _finished: View | None = field(default=None, repr=False)
    _progress: tuple[int, float] | None = None
    _view: View | None = field(default=None, repr=False)

    def look(self) -> View:
        """Return the current view of the run: the same object as before if nothing has changed."""
        live = self.folder / LIVE_FILE
        if not live.exists() and (self.folder / RUN_FILE).exists():
            return self._finished_view()
        if not live.exists():
            raise NothingToWatch(
                f"{self.folder} holds no run: neither {RUN_FILE} nor {LIVE_FILE}. Start one with "
                f"`peerbayes simulate FILE --out {self.folder}`"
            )
        self._open(live)
        return self._live_view()

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _finished_view(self) -> View:
        path = self.folder / RUN_FILE
        status = path.stat()
        if self._finished is None or (status.st_ino, status.st_mtime_ns) != self._file:
            self.close()
            self._file = status.st_ino, status.st_mtime_ns
            self._finished = View.of(Run.load(self.folder), self.folder.name)
            self.at = status.st_mtime
        return self._finished

    def _open(self, live: Path) -> None:
        """Connect to the file, and start over if another simulation has replaced it."""
        status = live.stat()
        if self._db is not None and self._file == (status.st_ino, 0):
            return
        self.close()
        self._file, self._finished, self._view, self._progress = (status.st_ino, 0), None, None, None
        self._about = {}
        self._db = sqlite3.connect(
            f"{live.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False, timeout=10
        )

    def _live_view(self) -> View:
        assert self._db is not None
        try:
            return self._read(self._db)
        except sqlite3.DatabaseError as error:
            with contextlib.suppress(sqlite3.Error):
                self.close()
            raise NothingToWatch(f"{self.folder / LIVE_FILE} cannot be read: {error}") from error

    def _read(self, db: sqlite3.Connection) -> View:
        if not self._about:
            row = db.execute("SELECT * FROM about").fetchone()
            if row is None:
                raise NothingToWatch(f"{self.folder}: the simulation has not started")
            integers = (np.frombuffer(blob, dtype="<i8") for blob in row[1:])
            self._about = json.loads(row[0]) | dict(zip(("sizes", "links", "peers"), integers, strict=True))
            structure_fields = self._about.get("structure")
            self._about["structure"] = (
                None if structure_fields is None else Structure.from_json(structure_fields)
            )
            self._rounds, self._spread = (
                GrowingArray((), "<i8"),
                GrowingArray((len(CURVES), len(LEVELS)), "<f8"),
            )
            self._seconds, self._references = GrowingArray((), "<f8"), {}
            self._curves, self._step = GrowingArray((len(self._about["peers"]), len(CURVES)), "<f4"), 1
        progress = db.execute("SELECT turn, at FROM turns").fetchone() or (0, 0.0)
        if self._view is not None and progress == self._progress:
            return self._view
        last = int(self._rounds.all[-1]) if len(self._rounds) else 0
        [new_rounds] = db.execute("SELECT COUNT(*) FROM rounds WHERE round > ?", (last,)).fetchone()
        self._make_room(len(self._rounds) + new_rounds)
        for round_index, curves, spread_bytes, seconds in db.execute(
            "SELECT round, curves, spread, seconds FROM rounds WHERE round > ? ORDER BY round", (last,)
        ):
            self._seconds.add(np.nan if seconds is None else seconds)
            self._rounds.add(round_index)
            self._curves.add(np.frombuffer(curves, dtype="<f4").reshape(-1, len(CURVES))[:: self._step])
            self._spread.add(np.frombuffer(spread_bytes, dtype="<f8").reshape(len(CURVES), -1))
        if not self._references and (early := db.execute("SELECT content FROM early").fetchone()):
            self._references = json.loads(early[0])
        last_row = db.execute("SELECT figures FROM last").fetchone()
        self._progress, self.at = progress, progress[1]
        self._view = self._current_view(int(progress[0]), last_row[0] if last_row else None)
        return self._view

    def _make_room(self, rounds: int) -> None:
        """Keep the curves of fewer peers as the rounds become many."""
        written_peers = len(self._about["peers"])
        kept_peers = sampled(written_peers, rounds)
        step = int(kept_peers[1]) if len(kept_peers) > 1 else 1 << (written_peers - 1).bit_length()
        if step > self._step:
            self._curves.thin(step // self._step)
            self._step = step

    def _current_view(self, round_index: int, figures: bytes | None) -> View:
        about, sizes = self._about, self._about["sizes"]
        curves, spread_levels = self._curves.all, self._spread.all
        last_figures = np.frombuffer(figures or b"", dtype="<f4").reshape(-1, len(CURVES))
        configuration = from_stored(about["configuration"])
        return View(
            str(configuration["strategy"]),
            configuration,
            about["made"],
            int(configuration["rounds"]),
            round_index,
            self._rounds.all,
            about["peers"][:: self._step],
            {name: curves[:, :, column] for column, name in enumerate(CURVES)},
            {name: spread_levels[:, column] for column, name in enumerate(CURVES)},
            {name: last_figures[:, column] for column, name in enumerate(CURVES)},
            sizes,
            about["links"].reshape(-1, 2),
            references=self._references,
            structure=about["structure"],
            awaits_references=bool(about.get("references")) and not self._references,
            finished=False,
            seconds=self._seconds.all if np.isfinite(self._seconds.all).all() else np.zeros(0),
        )
