"""Calls back to a neighbour that wants to know whether it can be reached, only at its address in the roster."""

from __future__ import annotations

import asyncio
import math
import time

from peerbayes.peers import wire
from peerbayes.peers.errors import PeerError, RefusedMessage
from peerbayes.peers.standing import Standing
from peerbayes.peers.transport import Transport, Unreachable

EVERY = 5.0  # seconds between two calls that one neighbour may have: nobody scans a network through this peer
WITHIN = (
    6.0  # seconds to try: a connection that was refused a moment ago is tried again by gRPC only after two
)
PAUSE = 0.5  # seconds between attempts


class Callbacks:
    """Sends a hello to neighbours that ask for one."""

    def __init__(self, standing: Standing, transport: Transport) -> None:
        self._standing, self._transport = standing, transport
        self._due: dict[str, float] = {}

    async def tried(self, caller: str) -> str:
        """Return why a call back to the caller failed, in plain words; "" where it was reached."""
        if caller not in self._standing.roster.present(self._standing.name):
            raise RefusedMessage("not a neighbour", f"{caller} has no link to {self._standing.name}")
        now = time.monotonic()
        if now < self._due.get(caller, 0.0):
            raise RefusedMessage("too many at once", f"{caller} was called back less than {EVERY:.0f} s ago")
        self._due[caller] = math.inf  # while it is being called
        try:
            return await self._called(caller, now + WITHIN)
        finally:
            self._due[caller] = time.monotonic() + EVERY

    async def _called(self, caller: str, until: float) -> str:
        request = self._standing.request("hello")
        while True:
            remaining = until - time.monotonic()
            try:
                content = await self._transport.ask(caller, wire.encode(request), max(remaining, PAUSE))
                wire.reply_in(content, request, caller)
                return ""
            except Unreachable as error:
                if remaining <= PAUSE:
                    return str(error)[:400]
            except PeerError as error:
                return str(error)[:400]
            await asyncio.sleep(PAUSE)
