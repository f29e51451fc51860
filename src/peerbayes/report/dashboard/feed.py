"""What viewers are sent: the folder that is read, messages that hold what is new, and who gets them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from peerbayes.data.files import printable
from peerbayes.errors import PeerbayesError
from peerbayes.report import figures as report_figures
from peerbayes.report.curves import drawn_peers
from peerbayes.report.dashboard import peer_figures
from peerbayes.report.dashboard.run_folder import RunFolder, RunFolders, Snapshot, has_run, runs_below
from peerbayes.report.figures import captions_of
from peerbayes.report.page import SECTIONS, SPANS, TALL
from peerbayes.report.style import compact_json, number, shown
from peerbayes.simulation.view import LEVELS, View

if TYPE_CHECKING:
    from peerbayes.report.dashboard.peer_folder import PeerFolder

# --- the folder that a dashboard shows: of a run, of a peer, or one where nothing has started yet

# Errors from files that are damaged, half written or being replaced.
UNREADABLE = (PeerbayesError, OSError, ValueError, LookupError, TypeError, sqlite3.Error)

GRACE = 1.0  # seconds for which the last snapshot is shown while a file is being replaced


class Folder:
    """Reads a folder of either kind; what cannot be read yet is reported, and read again the next time."""

    def __init__(self, path: Path, remote: bool = False, others: Sequence[Path] = ()) -> None:
        self._path, self._remote = path, remote  # remote: whether other machines may connect, too
        self._others = others
        self._run: RunFolder | None = None
        self._runs: RunFolders | None = None
        self._peer: PeerFolder | None = None
        self._last: tuple[float, Snapshot] | None = None

    def look(self) -> Snapshot:
        """Return the current snapshot."""
        try:
            snapshot = self._look()
            self._last = time.monotonic(), snapshot
            return snapshot
        except UNREADABLE as error:
            if self._last is not None and time.monotonic() - self._last[0] < GRACE:
                return self._last[1]
            text = printable(str(error)) or type(error).__name__
            return Snapshot("nothing", (text,), {"name": self._path.name, "told": text})

    def _look(self) -> Snapshot:
        if (self._path / "peer.toml").exists():
            from peerbayes.report.dashboard.peer_folder import (
                PeerFolder,
            )  # it needs the packages of real peers

            self._peer = self._peer or PeerFolder(self._path, self._remote)
            return self._peer.look()
        if self._others or (not has_run(self._path) and runs_below(self._path)):
            self._runs = self._runs or RunFolders([self._path, *self._others])
            return self._runs.look()
        self._run = self._run or RunFolder(self._path)
        return self._run.look()


# --- messages to the pages of a dashboard, as JSON: the full state, and updates since

# Curves that are summarised over all peers, and the levels of the summary.
SUMMARY_CURVES = ("test_error", "train_error", "disagreement", "bytes")
SUMMARY_LEVELS = ("mean", "least", "most")


def figures(snapshot: Snapshot, version: int, now: float) -> bytes:
    """Return the full state: facts and all figures."""
    view, specs = snapshot.view, {}
    if snapshot.kind == "runs":
        specs = report_figures.side_by_side(snapshot.views)
    elif view is not None and snapshot.kind == "peer":
        specs = peer_figures.figures(view, snapshot.facts) | _of_model(view)
    elif view is not None and view.finished:
        specs = report_figures.of(view)
    elif view is not None:
        specs = report_figures.live(view) | report_figures.structured(view)
    content = {"figures": specs, "sections": sections(snapshot, specs), "lines": snapshot.log_entries}
    return encoded({**_state(snapshot, version, now), **content, "model": snapshot.model})


def event(snapshot: Snapshot, before: Snapshot | None, version: int, now: float) -> bytes:
    """Return the update since `before` as a server-sent event: a patch, or a request to reload everything."""
    if before is None or not snapshot.follows(before) or not _grows(snapshot.view, before.view):
        return beat(snapshot, version, now, reload=True)
    content = {**_state(snapshot, version, now), "since": version - 1, "model": snapshot.model}
    if snapshot.view is not None and before.view is not None and snapshot.view is not before.view:
        since = int(before.view.rounds[-1]) if len(before.view.rounds) else 0
        patch = peer_figures.patch if snapshot.kind == "peer" else report_figures.patch
        content["patch"] = patch(snapshot.view, since)
    if snapshot.kind == "peer":
        last_number = before.log_entries[-1]["number"] if before.log_entries else 0
        content["lines"] = [entry for entry in snapshot.log_entries if entry["number"] > last_number]
        if snapshot.view is not None and _neighbour_states(snapshot) != _neighbour_states(before):
            content["replaced"] = {"network": peer_figures.network(snapshot.view, snapshot.facts)}
    return as_event("update", content)


def beat(snapshot: Snapshot, version: int, now: float, reload: bool = False) -> bytes:
    """Return a heartbeat, or a request to reload everything."""
    content = {"version": version, "now": now, "at": snapshot.facts.get("at"), "reload": reload}
    if "running" in snapshot.facts:
        content["running"] = snapshot.facts["running"]
    return as_event("reload" if reload else "beat", content)


def peer(snapshot: Snapshot, index: int) -> bytes:
    """Return one peer's values by round."""
    assert snapshot.view is not None
    return encoded(report_figures.curve(snapshot.view, index))


def model(snapshot: Snapshot) -> bytes:
    """Return the figures of the model only."""
    return encoded({"model": snapshot.model, "figures": _of_model(snapshot.view)})


def sections(snapshot: Snapshot, specs: Mapping[str, Any]) -> list[Any]:
    """Return the sections of the page: [heading, [[name, title, caption, CSS classes of its card], …]], …"""
    captions, headings = captions_of([snapshot.view]), SECTIONS
    if snapshot.kind == "runs":
        return _sections_of_runs(snapshot, specs, captions)
    classes = {name: f"span-{SPANS.get(name, 2)}{' tall' if name in TALL else ''}" for name in captions}
    if snapshot.kind == "peer":
        captions, headings = captions | peer_figures.CAPTIONS, headings | peer_figures.SECTIONS
        classes |= dict.fromkeys(peer_figures.CAPTIONS, "span-3")
    return [
        (heading, [(name, *captions[name], classes[name]) for name in names if name in specs])
        for heading, names in headings.items()
        if any(name in specs for name in names)
    ]


def _sections_of_runs(
    snapshot: Snapshot, specs: Mapping[str, Any], captions: Mapping[str, tuple[str, str]]
) -> list[Any]:
    """Return the sections of several runs: all errors in one figure, and below a panel for each run."""
    span = "span-2" if len(snapshot.views) % 3 == 0 else "span-3"
    content = [("Training", [("error", captions["error"][0], report_figures.COMPARED_LIVE, "span-6")])]
    for name in SECTIONS["Training"]:
        panels = [
            (f"{name}-{index}", shown(view.title, 40), "", span)
            for index, view in enumerate(snapshot.views)
            if f"{name}-{index}" in specs
        ]
        if panels:
            content.append((captions[name][0], panels))
    return content


def encoded(content: Any) -> bytes:
    return compact_json(content).encode()


def as_event(name: str, content: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + encoded(content) + b"\n\n"


def _state(snapshot: Snapshot, version: int, now: float) -> dict[str, Any]:
    state = {"kind": snapshot.kind, "version": version, "now": now, "facts": snapshot.facts}
    if snapshot.kind == "run" and (view := snapshot.view) is not None:
        levels = [LEVELS.index(name) for name in SUMMARY_LEVELS]
        last = {name: view.spread[name][-1:, levels].ravel() for name in SUMMARY_CURVES if len(view.rounds)}
        state["summary"] = {name: [number(value) for value in values] for name, values in last.items()}
    return state


def _of_model(view: View | None) -> dict[str, Any]:
    """Return the figures that do not change with every round."""
    if view is None or view.statistics is None:
        return {}
    return {name: spec for name, spec in report_figures.of(view).items() if name not in report_figures.LIVE}


def _grows(view: View | None, before: View | None) -> bool:
    """Return whether the figures only grew: the same curves of the same peers."""
    if view is None or before is None or view is before:
        return view is before
    return (
        view.error == before.error
        and view.references == before.references
        and np.array_equal(view.peers[drawn_peers(view)], before.peers[drawn_peers(before)])
    )


def _neighbour_states(snapshot: Snapshot) -> list[tuple[str, str]]:
    return [(neighbour["name"], neighbour["state"]) for neighbour in snapshot.facts["neighbours"]]


# --- the feed of updates: one task reads the folder, encodes each update once, and sends it to all viewers

log = logging.getLogger("peerbayes.web")

PAUSE = 0.1  # seconds between two reads: at most ten updates per second
PAUSE_FACTOR = 3.0  # pause, in units of the duration of a read: a large run costs at most a quarter of a core
BEAT = 5.0  # seconds without an update after which viewers get a heartbeat
VIEWERS = 200  # most viewers at a time


class Viewer:
    """One browser's stream. It queues one message at most, so that a slow browser costs nothing."""

    def __init__(self) -> None:
        self._pending: bytes | None = None
        self._open = True
        self._ready = asyncio.Event()

    def put(self, message: bytes, instead: bytes) -> None:
        """Queue a message, or `instead` where the last message is still waiting."""
        self._pending = message if self._pending is None else instead
        self._ready.set()

    def end(self) -> None:
        self._open = False
        self._ready.set()

    async def next(self) -> bytes | None:
        """Return the next message; None at the end of the stream."""
        await self._ready.wait()
        if not self._open:
            return None
        self._ready.clear()
        message, self._pending = self._pending, None
        return message


class Feed:
    """Reads the folder while there are viewers. Snapshots are numbered, so that a browser notices what it missed."""

    def __init__(self, source: Folder, clock: Callable[[], float] = time.time) -> None:
        self._source = source
        self._clock = clock
        self._viewers: set[Viewer] = set()
        self._read_lock = asyncio.Lock()
        self._has_viewers = asyncio.Event()
        self._snapshot: Snapshot | None = None
        self._version = 0
        self._encoded: tuple[int, bytes] | None = None
        self._stopped = False

    async def run(self) -> None:
        """Read and broadcast repeatedly, while there are viewers."""
        sent_at, due = 0.0, time.monotonic()
        while not self._stopped:
            await self._has_viewers.wait()
            started = time.monotonic()
            try:
                message = await self._read()
            except Exception:  # viewers keep the last snapshot, and the next read may succeed
                log.exception("reading the folder failed")
                await asyncio.sleep(BEAT)
                continue
            now = time.monotonic()
            if message is None and now - sent_at >= BEAT and self._snapshot is not None:
                message = beat(self._snapshot, self._version, self._clock())
            if message is not None:
                sent_at = now
                self._broadcast(message)
            due = max(due, started - PAUSE) + PAUSE  # catch up after a late start
            due = max(due, now + PAUSE_FACTOR * (now - started))
            await asyncio.sleep(due - now)

    def stop(self) -> None:
        """End all streams."""
        self._stopped = True
        self._has_viewers.set()
        for viewer in self._viewers:
            viewer.end()

    @property
    def full(self) -> bool:
        return len(self._viewers) >= VIEWERS

    @contextlib.contextmanager
    def viewer(self) -> Iterator[Viewer]:
        """Open a stream for the duration of a browser's connection."""
        viewer = Viewer()
        self._viewers.add(viewer)
        self._has_viewers.set()
        try:
            yield viewer
        finally:
            self._viewers.discard(viewer)
            if not self._viewers and not self._stopped:
                self._has_viewers.clear()

    async def snapshot(self) -> Snapshot:
        """Read the folder and return the current snapshot."""
        if (message := await self._read()) is not None:
            self._broadcast(message)
        assert self._snapshot is not None
        return self._snapshot

    async def greeting(self) -> bytes:
        """Return the first message of a stream: the current version."""
        return beat(await self.snapshot(), self._version, self._clock())

    async def figures(self) -> bytes:
        """Return all current figures as JSON; concurrent requests share the same bytes."""
        snapshot = await self.snapshot()
        async with self._read_lock:
            if self._encoded is None or self._encoded[0] != self._version:
                version, snapshot = self._version, self._snapshot or snapshot
                encoded = await asyncio.to_thread(figures, snapshot, version, self._clock())
                self._encoded = version, encoded
            return self._encoded[1]

    async def _read(self) -> bytes | None:
        """Read once; return the message to send, None where nothing changed."""
        async with self._read_lock:
            before, version = self._snapshot, self._version + 1
            snapshot, message = await asyncio.to_thread(self._update, before, version)
            if message is not None:
                self._snapshot, self._version = snapshot, version
            return message

    def _update(self, before: Snapshot | None, version: int) -> tuple[Snapshot, bytes | None]:
        snapshot = self._source.look()
        if before is not None and snapshot.same(before):
            return before, None
        return snapshot, event(snapshot, before, version, self._clock())

    def _broadcast(self, message: bytes) -> None:
        instead = (
            beat(self._snapshot, self._version, self._clock(), reload=True) if self._snapshot else message
        )
        for viewer in self._viewers:
            viewer.put(message, instead)
