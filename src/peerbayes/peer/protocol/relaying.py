"""A peer's side of a relay: it waits there under the digest of its key, and takes the connections that are for it.

The relay learns digests of keys, sizes and times. What passes is TLS between the two members, who prove to each other
who they are; the relay has no part in it.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import random
import socket
from collections.abc import Awaitable, Callable

from peerbayes.errors import PeerError
from peerbayes.peer.identity import keys
from peerbayes.peer.protocol.failures import Unreachable, meaning
from peerbayes.peer.protocol.routes import WORD, Route, asked, heard, through
from peerbayes.peer.tasks import Rate

log = logging.getLogger("peerbayes.peer")

PURPOSE = b"peerbayes relay\n"  # signed along: no other signature of a peer passes for one to a relay
ANSWER = 10.0  # seconds for an answer of a relay
QUIET = 60.0  # seconds without a word after which a relay is given up; it says something every 20
TAKING = 64  # calls that are being taken at once, at most: each is a connection
WORDS_AT_ONCE, WORD_EVERY = 200, 0.02  # words of a relay, and then one every so many seconds
FIRST_PAUSE, LAST_PAUSE = 0.5, 10.0  # seconds between attempts to reach it


class Waiting:
    """A peer that waits at a relay."""

    def __init__(
        self, way: Route, key: bytes, proxy: str | None, take: Callable[[socket.socket], Awaitable[None]]
    ) -> None:
        self._way, self._proxy, self._take = way, proxy, take
        self._sign, self._public = keys.signing(key), keys.public_bytes(keys.private_key(key).public_key())
        self._taking: set[asyncio.Task[None]] = set()
        self._words = Rate(WORDS_AT_ONCE, WORD_EVERY)
        self._settled = asyncio.Event()  # it waits, or is known not to
        self._problem = ""

    async def run(self) -> None:
        """Wait there for ever, and come back whenever the connection ends."""
        pause, lost = FIRST_PAUSE, False
        try:
            while True:
                try:
                    line = await self._registered()
                except (OSError, PeerError, TimeoutError) as error:
                    if not lost:
                        log.warning(f"the relay {self._place} {_why(error)}; it is tried again")
                    lost, self._problem = True, _why(error)
                    self._settled.set()
                    await asyncio.sleep(pause * random.uniform(0.75, 1.0))
                    pause = min(2 * pause, LAST_PAUSE)
                    continue
                log.info(f"waiting at the relay {self._place}{' again' if lost else ''}")
                pause, lost, self._problem = FIRST_PAUSE, False, ""
                self._settled.set()
                try:
                    await self._listen(line)
                except (OSError, PeerError, TimeoutError) as error:
                    log.warning(f"the relay {self._place} {_why(error)}; it is tried again")
                    lost = True
                finally:
                    line.close()
                await asyncio.sleep(pause * random.uniform(0.75, 1.0))
        finally:
            for task in self._taking:
                task.cancel()

    async def problem(self) -> str:
        """Return why this peer does not wait at the relay, once it has tried; "": it does."""
        await self._settled.wait()
        return self._problem and f"{self._place} {self._problem}"

    @property
    def _place(self) -> str:
        return f"{self._way.host}:{self._way.port}"

    async def _registered(self) -> socket.socket:
        """Return a connection on which the relay says who calls."""
        async with asyncio.timeout(ANSWER):
            line = await through(self._way.host, self._way.port, self._proxy)
            try:
                nonce = await asked(line, f"{WORD} WAIT {base64.b64encode(self._public).decode()}")
                if not nonce.startswith(f"{WORD} SIGN "):
                    raise Unreachable(f"does not take this peer: {nonce:.100}")
                content = bytes.fromhex(nonce.removeprefix(f"{WORD} SIGN "))
                signature = base64.b64encode(self._sign(PURPOSE + content)).decode()
                answer = await asked(line, f"{WORD} SIGNED {signature}")
                if answer != f"{WORD} OK":
                    raise Unreachable(f"does not take this peer: {answer:.100}")
            except ValueError as error:
                line.close()
                raise Unreachable("does not speak as a relay does: is the address right?") from error
            except BaseException:
                line.close()
                raise
        return line

    async def _listen(self, line: socket.socket) -> None:
        while True:
            async with asyncio.timeout(QUIET):
                said = await heard(line)
            # Words that are there are read without a pause: a relay that never ends must leave time for others.
            await asyncio.sleep(0 if self._words.allows("") else WORD_EVERY)
            if said == f"{WORD} STILL":
                async with asyncio.timeout(ANSWER):
                    await asyncio.get_running_loop().sock_sendall(line, f"{WORD} STILL\n".encode())
            elif not said.startswith(f"{WORD} CALLED "):
                raise Unreachable(f"does not speak as a relay does: {said:.100}")
            elif len(self._taking) < TAKING:  # else the caller is told that nobody came
                task = asyncio.create_task(self._called(said.removeprefix(f"{WORD} CALLED ")))
                self._taking.add(task)
                task.add_done_callback(self._taking.discard)

    async def _called(self, token: str) -> None:
        """Take one connection that somebody asked for."""
        try:
            async with asyncio.timeout(ANSWER):
                line = await through(self._way.host, self._way.port, self._proxy)
                try:
                    answer = await asked(line, f"{WORD} TAKE {token}")
                except BaseException:
                    line.close()
                    raise
        except (OSError, PeerError, TimeoutError) as error:
            log.debug(f"a connection from the relay was not taken: {error!r:.200}")
            return
        if answer != f"{WORD} OK":
            line.close()
            return
        await self._take(line)


def _why(error: BaseException) -> str:
    return str(error) if isinstance(error, PeerError) else meaning(error)
