"""What is watched, looked at by one task for everybody: encoded once, and given to all who watch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from peerbayes.web.messages import beat, event, figures
from peerbayes.web.seen import Seen

log = logging.getLogger("peerbayes.web")

PAUSE = 0.1  # seconds between two looks: ten updates a second at most
REST = 3.0  # and so many times as long as a look took: a large run costs a quarter of a core at most
BEAT = 5.0  # seconds without news after which viewers are told that there are none
VIEWERS = 200  # at a time


class Watched(Protocol):
    """Something that can be looked at: a folder."""

    def look(self) -> Seen: ...


class Viewer:
    """One browser's stream. It holds one message at most: one that does not keep up costs nothing."""

    def __init__(self) -> None:
        self._held: bytes | None = None
        self._open = True
        self._news = asyncio.Event()

    def put(self, message: bytes, instead: bytes) -> None:
        """A message, or what to say instead where the last one still waits."""
        self._held = message if self._held is None else instead
        self._news.set()

    def end(self) -> None:
        self._open = False
        self._news.set()

    async def next(self) -> bytes | None:
        """The next message; None: there are no more."""
        await self._news.wait()
        if not self._open:
            return None
        self._news.clear()
        message, self._held = self._held, None
        return message


class Feed:
    """Looks while somebody watches. A version counts what was seen, so that a browser knows what it missed."""

    def __init__(self, watched: Watched, clock: Callable[[], float] = time.time) -> None:
        self._watched = watched
        self._clock = clock
        self._viewers: set[Viewer] = set()
        self._looking = asyncio.Lock()
        self._watching = asyncio.Event()
        self._seen: Seen | None = None
        self._version = 0
        self._encoded: tuple[int, bytes] | None = None
        self._stopped = False

    async def run(self) -> None:
        """Look again and again, as long as somebody watches."""
        told, due = 0.0, time.monotonic()
        while not self._stopped:
            await self._watching.wait()
            began = time.monotonic()
            try:
                message = await self._look()
            except Exception:  # whoever watches keeps what was seen, and the next look may succeed
                log.exception("looking failed")
                await asyncio.sleep(BEAT)
                continue
            now = time.monotonic()
            if message is None and now - told >= BEAT and self._seen is not None:
                message = beat(self._seen, self._version, self._clock())
            if message is not None:
                told = now
                self._tell(message)
            due = max(due, began - PAUSE) + PAUSE  # a late start is made up for
            due = max(due, now + REST * (now - began))
            await asyncio.sleep(due - now)

    def stop(self) -> None:
        """End all streams."""
        self._stopped = True
        self._watching.set()
        for viewer in self._viewers:
            viewer.end()

    @property
    def full(self) -> bool:
        return len(self._viewers) >= VIEWERS

    @contextlib.contextmanager
    def viewer(self) -> Iterator[Viewer]:
        """A stream, as long as a browser stays."""
        viewer = Viewer()
        self._viewers.add(viewer)
        self._watching.set()
        try:
            yield viewer
        finally:
            self._viewers.discard(viewer)
            if not self._viewers and not self._stopped:
                self._watching.clear()

    async def seen(self) -> Seen:
        """What there is to see now."""
        if (message := await self._look()) is not None:
            self._tell(message)
        assert self._seen is not None
        return self._seen

    async def greeting(self) -> bytes:
        """The first message of a stream: the version that is known here."""
        return beat(await self.seen(), self._version, self._clock())

    async def figures(self) -> bytes:
        """Everything there is to see now, as JSON: the same bytes for all who ask meanwhile."""
        seen = await self.seen()
        async with self._looking:
            if self._encoded is None or self._encoded[0] != self._version:
                version, seen = self._version, self._seen or seen
                encoded = await asyncio.to_thread(figures, seen, version, self._clock())
                self._encoded = version, encoded
            return self._encoded[1]

    async def _look(self) -> bytes | None:
        """Look once; what to tell where something is new."""
        async with self._looking:
            before, version = self._seen, self._version + 1
            seen, message = await asyncio.to_thread(self._news, before, version)
            if message is not None:
                self._seen, self._version = seen, version
            return message

    def _news(self, before: Seen | None, version: int) -> tuple[Seen, bytes | None]:
        seen = self._watched.look()
        if before is not None and seen.same(before):
            return before, None
        return seen, event(seen, before, version, self._clock())

    def _tell(self, message: bytes) -> None:
        instead = beat(self._seen, self._version, self._clock(), reload=True) if self._seen else message
        for viewer in self._viewers:
            viewer.put(message, instead)
