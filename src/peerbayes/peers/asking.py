"""The client side of a peer: one call at a time to each neighbour, for whatever is needed from it next."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from functools import partial

from peerbayes.peers import patience, wire
from peerbayes.peers.agreeing import Agreeing
from peerbayes.peers.errors import OtherProcess, RefusedMessage
from peerbayes.peers.evidence import Evidence
from peerbayes.peers.inbox import Inbox
from peerbayes.peers.processes import Processes
from peerbayes.peers.standing import Standing
from peerbayes.peers.supervision import supervised
from peerbayes.peers.taking import Taking
from peerbayes.peers.transport import Transport, Unreachable
from peerbayes.peers.wire import Request


class Asking:
    """Runs one task per neighbour, which sends requests as long as the neighbour is a neighbour."""

    def __init__(
        self,
        standing: Standing,
        transport: Transport,
        agreeing: Agreeing,
        inbox: Inbox,
        evidence: Evidence,
        taking: Taking,
        processes: Processes,
    ) -> None:
        self._standing, self._transport, self._agreeing = standing, transport, agreeing
        self._inbox, self._evidence, self._taking, self._processes = inbox, evidence, taking, processes
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Start a task for every neighbour that has none yet."""
        for name in self._standing.neighbours:
            if name not in self._tasks:
                self._tasks[name] = asyncio.create_task(
                    supervised(f"the line to {name}", partial(self._forever, name)), name=f"line to {name}"
                )

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _wanted(self, neighbour: str) -> Request | None:
        """Return the next request to this neighbour; None: there is nothing to ask for."""
        standing, state = self._standing, self._standing.line(neighbour)
        roster, rounds = standing.roster, standing.terms.rounds
        if state.roster > max(roster.version, state.tried) or state.wanted:
            return standing.request("roster")
        if -1 < state.roster < roster.version and state.offered < roster.version:
            return standing.request("roster", body=standing.own.signed)
        if state.roster < 0 or not roster.closed:
            return standing.request("hello")
        if (pending := self._agreeing.sums.wanted(neighbour)) is not None:
            return standing.request(pending[0], phase=pending[1], wait=patience.WAIT)
        if (agreed := standing.agreed) is None:
            return None
        if standing.turn < rounds and self._inbox.lacks(neighbour) and neighbour in agreed.learner.neighbours:
            return standing.request(
                standing.kind, turn=standing.turn + 1, schema=agreed.schema.fingerprint, wait=patience.WAIT,
                heard=self._evidence.to_pass_on(neighbour),
            )  # fmt: skip
        if standing.turn >= rounds > state.done:
            return standing.request("hello")
        return None

    async def _forever(self, neighbour: str) -> None:
        """Send one request after the other."""
        standing = self._standing
        pause = patience.FIRST_PAUSE
        while neighbour in standing.neighbours:
            request = self._wanted(neighbour)
            if request is None:
                await standing.news.wait(None)
                continue
            began = time.monotonic()
            try:
                within, before = patience.WAIT + patience.GRACE, self._processes.latest(neighbour)
                content = await self._transport.ask(neighbour, wire.encode(request), within)
                reply = wire.reply_in(content, request, neighbour)
                self._processes.hear_reply(neighbour, reply, before)
                if reply.status == "refused":
                    await self._processes.refused(neighbour, request, reply)
                await self._taking.take(neighbour, request, reply)
            except Unreachable as error:
                standing.note(neighbour, str(error), lost=True)
                if request.kind == "sum":
                    self._agreeing.sums.unreachable(neighbour)
            except RefusedMessage as error:
                standing.refuse(neighbour, error)
                note = str(error) if isinstance(error, OtherProcess) else f"refused: {error.reason}"
                standing.note(neighbour, note)
            except (OSError, sqlite3.Error) as error:
                if not standing.room.note(f"answer of {neighbour}", error):
                    raise
            else:
                standing.room.clear(f"answer of {neighbour}")
                # A "not yet" between invalid replies does not shorten the pause.
                pause = patience.FIRST_PAUSE if reply.status == "ok" else pause
                waited = time.monotonic() - began >= request.wait / 2  # the neighbour held the call
                if reply.status != "refused" and (
                    self._wanted(neighbour) != request or (request.wait and waited)
                ):
                    continue
            await asyncio.sleep(pause)
            pause = min(2 * pause, patience.LONGEST_PAUSE)
