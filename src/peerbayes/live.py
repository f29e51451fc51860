"""A simulation on disk while it goes on, for whoever watches: one SQLite file in the run's folder.

The simulation writes every evaluated round; readers follow without disturbing it. The file goes once the run is saved.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes.errors import PeerbayesError
from peerbayes.runs import COLUMNS, LIVE_FILE, RUN_FILE, Run, forget_live
from peerbayes.views import CURVES, LEVELS, Structure, View, sampled, spread

# Peers whose curves are written; of larger networks a sample.
WRITTEN = 1 << 14

# Seconds between two notes of the round that a simulation is in.
PAUSE = 0.1

TABLES = """
CREATE TABLE about (content TEXT NOT NULL, sizes BLOB NOT NULL, links BLOB NOT NULL, peers BLOB NOT NULL) STRICT;
CREATE TABLE turns (one INTEGER PRIMARY KEY CHECK (one = 1), turn INTEGER NOT NULL, at REAL NOT NULL) STRICT;
CREATE TABLE rounds (round INTEGER PRIMARY KEY, curves BLOB NOT NULL, spread BLOB NOT NULL) STRICT;
CREATE TABLE last (one INTEGER PRIMARY KEY CHECK (one = 1), figures BLOB NOT NULL) STRICT;
"""


class LiveFile:
    """What a simulation writes. It never waits for a disk: after a power cut there is nothing to watch anyway."""

    def __init__(
        self,
        folder: Path,
        configuration: dict[str, Any],
        made: dict[str, str],
        sizes: np.ndarray,
        links: np.ndarray,
        structure: Structure | None = None,
    ) -> None:
        self.path = folder / LIVE_FILE
        folder.mkdir(parents=True, exist_ok=True)
        forget_live(folder)
        self._db = sqlite3.connect(self.path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = OFF")
        self._peers = sampled(len(sizes), 1, WRITTEN)
        told = None if structure is None else asdict(structure)
        about = json.dumps({"configuration": configuration, "made": made, "structure": told})
        blobs = (array.astype("<i8").tobytes() for array in (sizes, links, self._peers))
        self._db.executescript(f"BEGIN; {TABLES} COMMIT")
        self._db.execute("INSERT INTO about VALUES (?, ?, ?, ?)", (about, *blobs))
        self._noted = 0.0

    def turn(self, turn: int) -> None:
        """A round is over."""
        if (now := time.time()) - self._noted >= PAUSE:
            self._db.execute("INSERT OR REPLACE INTO turns VALUES (1, ?, ?)", (turn, now))
            self._noted = now

    def add(self, records: np.ndarray) -> None:
        """Evaluated rounds [T·N, 8], in the order of `COLUMNS`."""
        turns = np.unique(records[:, 0])
        table = records.reshape(len(turns), -1, len(COLUMNS))[:, :, [COLUMNS.index(name) for name in CURVES]]
        self._db.execute("BEGIN")
        for turn, figures in zip(turns, table, strict=True):  # figures [N, 5]
            told = figures[self._peers].astype("<f4").tobytes(), spread(figures.T).astype("<f8").tobytes()
            self._db.execute("INSERT OR REPLACE INTO rounds VALUES (?, ?, ?)", (int(turn), *told))
        self._db.execute("INSERT OR REPLACE INTO last VALUES (1, ?)", (table[-1].astype("<f4").tobytes(),))
        self._db.execute("INSERT OR REPLACE INTO turns VALUES (1, ?, ?)", (int(turns[-1]), time.time()))
        self._db.execute("COMMIT")

    def close(self) -> None:
        """The simulation is over; the file stays until the run is saved."""
        self._db.close()


class NothingToWatch(PeerbayesError):
    """A folder without a run, finished or not."""


class Rows:
    """Arrays of one shape that come one after another, held as one: what came before is not copied for each."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self._held, self._count = np.empty((16, *shape), dtype), 0

    def add(self, row: np.ndarray | int) -> None:
        if self._count == len(self._held):
            wider = np.empty((2 * self._count, *self._held.shape[1:]), self._held.dtype)
            wider[: self._count] = self._held
            self._held = wider
        self._held[self._count] = row
        self._count += 1

    def thin(self, step: int) -> None:
        """Keep one of so many entries of each."""
        self._held = self._held[:, ::step].copy()

    @property
    def all(self) -> np.ndarray:
        """[T, ...]; it stays as it is when more come."""
        return self._held[: self._count]

    def __len__(self) -> int:
        return self._count


@dataclass
class Following:
    """A run on disk, read again and again: what it looks like now."""

    folder: Path
    at: float = 0.0
    """When the simulation was last heard of, in seconds since 1970; 0: never."""
    _db: sqlite3.Connection | None = field(default=None, repr=False)
    _file: tuple[int, int] | None = None
    _about: dict[str, Any] = field(default_factory=dict, repr=False)
    _rounds: Rows = field(init=False, repr=False)
    _curves: Rows = field(init=False, repr=False)
    _spread: Rows = field(init=False, repr=False)
    _step: int = 1
    """One of so many of the peers that were written is held."""
    _finished: View | None = field(default=None, repr=False)
    _seen: tuple[int, float] | None = None
    _view: View | None = field(default=None, repr=False)

    def look(self) -> View:
        """The run as it is now: the same object as before where nothing has changed."""
        live = self.folder / LIVE_FILE
        if not live.exists() and (self.folder / RUN_FILE).exists():
            return self._whole()
        if not live.exists():
            raise NothingToWatch(
                f"{self.folder} holds no run: neither {RUN_FILE} nor {LIVE_FILE}. Start one with "
                f"`peerbayes simulate FILE --out {self.folder}`"
            )
        self._open(live)
        return self._partial()

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _whole(self) -> View:
        path = self.folder / RUN_FILE
        found = path.stat()
        if self._finished is None or (found.st_ino, found.st_mtime_ns) != self._file:
            self.close()
            self._file = found.st_ino, found.st_mtime_ns
            self._finished = View.of(Run.load(self.folder), self.folder.name)
            self.at = found.st_mtime
        return self._finished

    def _open(self, live: Path) -> None:
        """Connect, and begin anew where another simulation has taken the folder."""
        found = live.stat()
        if self._db is not None and self._file == (found.st_ino, 0):
            return
        self.close()
        self._file, self._finished, self._view, self._seen = (found.st_ino, 0), None, None, None
        self._about = {}
        self._db = sqlite3.connect(
            f"{live.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False, timeout=10
        )

    def _partial(self) -> View:
        assert self._db is not None
        try:
            return self._read(self._db)
        except sqlite3.DatabaseError as error:
            with contextlib.suppress(sqlite3.Error):
                self.close()
            raise NothingToWatch(f"{self.folder / LIVE_FILE} cannot be read: {error}") from error

    def _read(self, db: sqlite3.Connection) -> View:
        if not self._about:
            found = db.execute("SELECT * FROM about").fetchone()
            if found is None:
                raise NothingToWatch(f"{self.folder}: the simulation has not begun")
            integers = (np.frombuffer(blob, dtype="<i8") for blob in found[1:])
            self._about = json.loads(found[0]) | dict(zip(("sizes", "links", "peers"), integers, strict=True))
            told = self._about.get("structure")
            self._about["structure"] = None if told is None else Structure.from_json(told)
            self._rounds, self._spread = Rows((), "<i8"), Rows((len(CURVES), len(LEVELS)), "<f8")
            self._curves, self._step = Rows((len(self._about["peers"]), len(CURVES)), "<f4"), 1
        seen = db.execute("SELECT turn, at FROM turns").fetchone() or (0, 0.0)
        if self._view is not None and seen == self._seen:
            return self._view
        last = int(self._rounds.all[-1]) if len(self._rounds) else 0
        [more] = db.execute("SELECT COUNT(*) FROM rounds WHERE round > ?", (last,)).fetchone()
        self._make_room(len(self._rounds) + more)
        for turn, curves, over in db.execute(
            "SELECT round, curves, spread FROM rounds WHERE round > ? ORDER BY round", (last,)
        ):
            self._rounds.add(turn)
            self._curves.add(np.frombuffer(curves, dtype="<f4").reshape(-1, len(CURVES))[:: self._step])
            self._spread.add(np.frombuffer(over, dtype="<f8").reshape(len(CURVES), -1))
        now = db.execute("SELECT figures FROM last").fetchone()
        self._seen, self.at = seen, seen[1]
        self._view = self._made(int(seen[0]), now[0] if now else None)
        return self._view

    def _make_room(self, rounds: int) -> None:
        """Hold the curves of fewer peers where rounds are many."""
        written = len(self._about["peers"])
        held = sampled(written, rounds)
        step = int(held[1]) if len(held) > 1 else 1 << (written - 1).bit_length()
        if step > self._step:
            self._curves.thin(step // self._step)
            self._step = step

    def _made(self, turn: int, last: bytes | None) -> View:
        about, sizes = self._about, self._about["sizes"]
        curves, over = self._curves.all, self._spread.all
        now = np.frombuffer(last or b"", dtype="<f4").reshape(-1, len(CURVES))
        configuration = about["configuration"]
        return View(
            str(configuration["strategy"]),
            configuration,
            about["made"],
            int(configuration["rounds"]),
            turn,
            self._rounds.all,
            about["peers"][:: self._step],
            {name: curves[:, :, place] for place, name in enumerate(CURVES)},
            {name: over[:, place] for place, name in enumerate(CURVES)},
            {name: now[:, place] for place, name in enumerate(CURVES)},
            sizes,
            about["links"].reshape(-1, 2),
            structure=about["structure"],
            finished=False,
        )
