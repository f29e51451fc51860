"""The dashboard as a process: it listens, announces its URL, and ends on a signal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from peerbayes.report.dashboard.access import Access
from peerbayes.report.dashboard.feed import Feed
from peerbayes.report.dashboard.pages import application
from peerbayes.report.dashboard.watched import Folder

NICE = 10  # computations on this machine have priority
SHUTDOWN_TIMEOUT = 3  # seconds for open responses to end


class Server(uvicorn.Server):
    """uvicorn that reports when it listens, and leaves signals to `serve`."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(folder: Path, access: Access, ready: Callable[[str], None], attached: bool = False) -> None:
    """Serve a folder until SIGINT or SIGTERM; attached: also until standard input ends, with the parent process."""
    os.nice(NICE)
    with contextlib.closing(access.address.bind()) as listener:
        asyncio.run(_serve(folder, access, listener, ready, attached))


async def _serve(
    folder: Path, access: Access, listener: socket.socket, ready: Callable[[str], None], attached: bool
) -> None:
    port = listener.getsockname()[1]
    feed = Feed(Folder(folder, access.remote))
    config = uvicorn.Config(
        application(feed, access.token, port, access.secure),
        log_level="warning", access_log=False, lifespan="off", server_header=False, ws="none", proxy_headers=False,
        ssl_certfile=access.certificate, ssl_keyfile=access.key, timeout_graceful_shutdown=SHUTDOWN_TIMEOUT,
    )  # fmt: skip
    server = Server(config, lambda: ready(access.url(port)))
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True
        feed.stop()  # uvicorn waits for open streams

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    if attached:
        loop.add_reader(0, _stop_at_end_of_input, stop)
    reading = asyncio.ensure_future(feed.run())
    reading.add_done_callback(lambda done: _stop_on_failure(done, stop))
    try:
        await server.serve([listener])
    finally:
        reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    if not reading.cancelled() and (error := reading.exception()) is not None:
        raise error


def _stop_at_end_of_input(stop: Callable[[], None]) -> None:
    if not os.read(0, 1024):
        asyncio.get_running_loop().remove_reader(0)
        stop()


def _stop_on_failure(reading: asyncio.Future[Any], stop: Callable[[], None]) -> None:
    """End a dashboard that can no longer read its folder, instead of showing old data."""
    if not reading.cancelled() and reading.exception() is not None:
        stop()
