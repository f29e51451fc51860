"""Rows that are erased on request: no later run learns from them, and they do not come back with the data.

    erasures.jsonl    a line for each request, chained like the audit log: when, by which columns, and keyed digests

A digest is of a row's values in the columns of the request, under the key of this folder, which never leaves it: the
file itself tells nothing of the rows. Whoever takes a line out breaks the chain, and then nothing is learned at all.
The rows themselves are their owner's to delete; until then they are left out each time the data is read.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from peerbayes.data import sources
from peerbayes.errors import NeedsPerson, PeerbayesError, PeerError
from peerbayes.peer.learning import kept_rows
from peerbayes.peer.learning.held_out import digests_of_rows, split_key
from peerbayes.peer.models.history import History
from peerbayes.peer.runs.book import Runs
from peerbayes.peer.state.audit_log import AuditLog, entries
from peerbayes.peer.state.disk import running
from peerbayes.peer.state.folder import ASIDE, Home, Peer, leave_command
from peerbayes.peer.state.same_rows import folders_over_rows

FILE, LOCK = kept_rows.RECORD, "erasures.lock"
ERASED = "erased"  # what a line says
MOST_ROWS = 100_000  # of one request: the file is read whenever the data is
LARGE_SHARE = 0.1  # of the data's rows, from which a request that names fewer is to be confirmed


@dataclass(frozen=True)
class Erasure:
    """One request, as it was recorded."""

    at: str
    columns: tuple[str, ...]
    digests: frozenset[str]


def erasures(folder: Path) -> list[Erasure]:
    """Return the requests of a folder, in order; NeedsPerson where their file was changed."""
    try:
        return [
            Erasure(line["at"], tuple(line["columns"]), frozenset(line["rows"]))
            for line in entries(folder / FILE)
        ]
    except (PeerError, KeyError, TypeError) as error:
        raise NeedsPerson(
            f"{folder / FILE} cannot be trusted, so it is not known which rows are erased: {error}. Restore it from a "
            "backup; nothing is learned before"
        ) from error


def needed_columns(requests: Sequence[Erasure]) -> list[str]:
    """Return the columns by which rows were erased."""
    return list(dict.fromkeys(name for request in requests for name in request.columns))


def erased(frame: pd.DataFrame, requests: Sequence[Erasure], folder: Path) -> np.ndarray:
    """Return which rows of the data are erased: [n]. Each needs the columns by which rows were erased."""
    out = np.zeros(len(frame), dtype=bool)
    for columns, digests in _by_columns(requests).items():
        if absent := [name for name in columns if name not in frame.columns]:
            raise NeedsPerson(
                f"rows were erased by the column {absent[0]!r}, which the data no longer has, so it cannot be told "
                f"whether they are back. Have the data bring {absent[0]!r}, or see that they are gone and set "
                f"{folder / FILE} aside"
            )
        found = digests_of_rows(frame[list(columns)], split_key(folder))
        out |= np.array([digest in digests for digest in found], dtype=bool)
    return out


def kept(frame: pd.DataFrame, folder: Path, requests: Sequence[Erasure]) -> pd.DataFrame:
    """Return the rows of the data that are not erased."""
    if not requests:
        return frame
    rest = frame[~erased(frame, requests, folder)].reset_index(drop=True)
    if not len(rest):
        raise NeedsPerson(
            f"all {len(frame)} rows of the data are erased ({folder / FILE}); expected some others"
        )
    return rest


def _by_columns(requests: Sequence[Erasure]) -> dict[tuple[str, ...], set[str]]:
    """Return the digests of all requests, by the columns that they are of."""
    out: dict[tuple[str, ...], set[str]] = {}
    for request in requests:
        out.setdefault(request.columns, set()).update(request.digests)
    return out


@dataclass(frozen=True)
class Found:
    """What one folder had of the rows that were asked for."""

    rows: int
    """Different rows that were asked for."""
    in_data: int
    """Rows of the data that are equal to them, and still there."""
    unmatched: int
    """Rows that were asked for and that no row of the data equals."""
    known: int
    """Rows that were asked for and that were recorded before."""

    @property
    def only_recorded(self) -> bool:
        """Whether the data has none of them, and some were not asked for before: a mistake, or they are gone."""
        return not self.in_data and self.known < self.rows

    @property
    def sentence(self) -> str:
        """What was done with the rows, in words."""
        if self.known == self.rows:
            have = (
                f"{self.in_data} rows of the data are equal to"
                if self.in_data
                else "no row of the data equals"
            )
            return f"Already erased, and recorded once: {have} the {self.rows} asked for."
        if self.only_recorded:
            return (
                "No row of the data equals these; recorded for the future: should the data bring them, no run learns "
                "from them. Is what was asked for spelled as in the data?"
            )
        parts = [f"Erased: {self.in_data} rows of the data are equal to the {self.rows} asked for."]
        if self.unmatched:
            parts.append(f"{self.unmatched} of those equal no row; recorded for the future.")
        if self.known:
            parts.append(f"{self.known} of those were erased before.")
        return " ".join(parts)


@dataclass(frozen=True)
class Request:
    """What came of a request to erase rows."""

    found: Found
    sentences: tuple[str, ...]
    """What follows from it, and what does not."""

    @property
    def rows(self) -> int:
        """Different rows that were asked for."""
        return self.found.rows

    @property
    def in_data(self) -> int:
        """Rows of the data that are equal to them, and still there."""
        return self.found.in_data

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return {**vars(self.found), "sentences": [self.found.sentence, *self.sentences]}


Confirm = Callable[[int, int], None]


def erase(home: Home, rows: pd.DataFrame, confirm: Confirm | None = None) -> Request:
    """Erase the rows that equal one of these in its columns; they may name all columns of the data, or some.

    They are erased for all networks of this owner over the same rows. Nothing is erased from the data itself, which is
    its owner's.

    confirm  called before anything is recorded where few rows name a large share of the data, with how many rows that
             are, and of how many; it raises where they are not to be erased
    """
    peer, columns = home.member(), tuple(sorted(map(str, rows.columns)))
    if not 0 < len(rows) <= MOST_ROWS or not columns:
        raise NeedsPerson(
            f"{len(rows)} rows are to be erased; expected 1 to {MOST_ROWS:,}, with a column or more"
        )
    if rows.isna().all(axis=1).any():
        raise NeedsPerson(
            "a row that is to be erased has no value at all; expected one or more, to tell it by"
        )
    rows = rows[list(columns)]
    found = _erase_in(home, peer, rows, confirm)
    sentences = list(_consequences(home, peer, found))
    for folder in folders_over_rows(home)[1:]:
        sentences += _elsewhere(Home(folder), rows)
    return Request(found, tuple(sentences))


def _erase_in(home: Home, peer: Peer, rows: pd.DataFrame, confirm: Confirm | None = None) -> Found:
    """Record rows as erased in one folder, and delete copies of them that its runs keep; return what it has of them."""
    data = sources.read(peer.settings.data, peer.settings.query, (), peer.terms.texts)
    if absent := [name for name in rows.columns if name not in data.columns]:
        raise NeedsPerson(
            f"rows are to be erased by {absent[0]!r}, which is no column of {_source(peer)}; expected columns of it"
        )
    key = split_key(home.folder)
    columns, digests = tuple(rows.columns), sorted(set(digests_of_rows(rows, key)))
    in_data = Counter(digests_of_rows(data[list(columns)], key))
    matches = sum(in_data[digest] for digest in digests)
    if confirm is not None and matches > max(len(digests), LARGE_SHARE * len(data)):
        confirm(matches, len(data))
    with _alone(home.folder):
        known = _by_columns(erasures(home.folder)).get(
            columns, set()
        )  # a file that was changed is not added to
        new = [digest for digest in digests if digest not in known]
        if new:
            with contextlib.closing(AuditLog(home.folder / FILE)) as log:
                digest = hashlib.sha256("".join(new).encode()).digest()
                log.add("", ERASED, 0, digest, columns=list(columns), rows=new)
    for number in home.run_numbers():
        kept_rows.forget(home.of_run(number))  # they may be in it, whatever the data has now
    unmatched = sum(not in_data[digest] for digest in digests)
    return Found(len(digests), matches, unmatched, len(digests) - len(new))


def _elsewhere(home: Home, rows: pd.DataFrame) -> Iterator[str]:
    """Erase rows in another folder over the same rows; yield what follows there, a sentence each."""
    try:
        peer = home.member()
        found = _erase_in(home, peer, rows)
    except (PeerbayesError, OSError) as error:
        yield (
            f"NOT ERASED in {home.folder}, which has the same rows: {error}. Erase them there with "
            f"`peerbayes peer erase {home.folder}`"
        )
        return
    yield f"In {home.folder}, which has the same rows, they are erased too ({found.in_data} in its data)."
    yield from _consequences(home, peer, found)


def _source(peer: Peer) -> str:
    """Return what the owner calls the data; a database's URL may hold a password."""
    scheme, separator, _ = peer.settings.data.partition("://")
    return f"the {scheme} database" if separator else peer.settings.data


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Have one request written at a time: each line is chained to the one before."""
    with (folder / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _consequences(home: Home, peer: Peer, found: Found) -> Iterator[str]:
    """Yield what follows from an erasure, and what does not, a sentence each."""
    runs, open_runs, heard = Runs(home.folder), [], dict[str, list[int]]()
    for number in runs.home.run_numbers():
        try:
            entry = runs.entry(number)
            if entry.state in ("running", "paused"):
                open_runs.append(number)
            if entry.round or entry.verdict is not None or any(runs.home.of_run(number).records.glob(ASIDE)):
                heard.setdefault(_names(runs.neighbours(entry), peer), []).append(number)
        except PeerbayesError:  # what cannot be read is no reason not to erase
            continue
    versions = History(home.folder).numbers()
    if found.only_recorded:
        if numbers := sorted(number for group in heard.values() for number in group):
            yield (
                f"If the data had them before, what run {', '.join(map(str, numbers))} learned from them stays, here "
                "and at the others."
            )
        return
    yield "No run that begins from now on learns from them, and they do not come back with the data."
    if found.in_data:
        yield (
            f"{_source(peer)} still has {found.in_data} of such rows, which are left out each time it is read. Delete "
            "them there: peerbayes writes to no data."
        )
    for number in open_runs:
        on = (
            "while this process runs; started again, it stops, since its rows are others, and the copy that it kept of "
            "them is deleted"
            if running(home)
            else "no further: its rows are others now, and the copy that it kept of them is deleted"
        )
        yield (
            f"Run {number} had begun with them and goes on {on}. Give it up with "
            f"`{leave_command(runs.home.of_run(number).records)}`, if it must not end."
        )
    if heard:
        which = "; in run ".join(f"{', '.join(map(str, group))}, {names}" for names, group in heard.items())
        yield (
            f"What others hold stays with them: in run {which} heard statistics in which these rows were summed with "
            "all others, and every member has a model that learned from them. Ask them to delete those models and "
            "states; peerbayes cannot."
        )
    if versions:
        yield (
            f"Versions {', '.join(map(str, versions))} of the model in {home.folder / 'models'} may have learned from "
            "them. The next run makes one that has not: `peerbayes run propose`; add --no-warm if its rounds may end "
            "before they forget the model that they began with."
        )
    if peer.terms.privacy.epsilon is not None:
        yield "What was spent of epsilon stays spent."


def _names(neighbours: Sequence[str], peer: Peer) -> str:
    """Return the names of a run's neighbours, and which of them were revoked since."""
    revoked = peer.roster.revoked
    return (
        ", ".join(f"{name} (revoked since)" if name in revoked else name for name in neighbours) or "nobody"
    )
