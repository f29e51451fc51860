"""The dashboard as a process: it listens, tells where, and ends when it is told to."""

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

from peerbayes.web.access import Access
from peerbayes.web.app import application
from peerbayes.web.feed import Feed
from peerbayes.web.folder import Folder

NICE = 10  # whoever computes on this machine goes first
PATIENCE = 3  # seconds that answers may take to end once it stops


class Server(uvicorn.Server):
    """uvicorn that says when it listens, and leaves signals to `serve`."""

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
    """Show a folder until SIGINT or SIGTERM; attached: until standard input ends, with whoever started this."""
    os.nice(NICE)
    with contextlib.closing(access.address.bind()) as listening:
        asyncio.run(_serve(folder, access, listening, ready, attached))


async def _serve(
    folder: Path, access: Access, listening: socket.socket, ready: Callable[[str], None], attached: bool
) -> None:
    port = listening.getsockname()[1]
    feed = Feed(Folder(folder, access.beyond))
    config = uvicorn.Config(
        application(feed, access.token, port, access.secure),
        log_level="warning", access_log=False, lifespan="off", server_header=False, ws="none", proxy_headers=False,
        ssl_certfile=access.certificate, ssl_keyfile=access.key, timeout_graceful_shutdown=PATIENCE,
    )  # fmt: skip
    server = Server(config, lambda: ready(access.url(port)))
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True
        feed.stop()  # uvicorn waits for open streams

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    if attached:
        loop.add_reader(0, _until_end, stop)
    looking = asyncio.ensure_future(feed.run())
    looking.add_done_callback(lambda done: _failed(done, stop))
    try:
        await server.serve([listening])
    finally:
        looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    if not looking.cancelled() and (error := looking.exception()) is not None:
        raise error


def _until_end(stop: Callable[[], None]) -> None:
    if not os.read(0, 1024):
        asyncio.get_running_loop().remove_reader(0)
        stop()


def _failed(looking: asyncio.Future[Any], stop: Callable[[], None]) -> None:
    """A dashboard that cannot look any more ends, rather than show what was."""
    if not looking.cancelled() and looking.exception() is not None:
        stop()
