"""The feed of updates: one task reads the folder, encodes each update once, and sends it to all viewers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from peerbayes.web.messages import beat, event, figures
from peerbayes.web.seen import Snapshot

log = logging.getLogger("peerbayes.web")

PAUSE = 0.1  # seconds between two reads: at most ten updates per second
PAUSE_FACTOR = 3.0  # pause, in units of the duration of a read: a large run costs at most a quarter of a core
BEAT = 5.0  # seconds without an update after which viewers get a heartbeat
VIEWERS = 200  # most viewers at a time


class Source(Protocol):
    """What the feed reads: a folder."""

    def look(self) -> Snapshot: ...


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

    def __init__(self, source: Source, clock: Callable[[], float] = time.time) -> None:
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
