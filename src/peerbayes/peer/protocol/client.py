"""The client's side: what each neighbour is asked for, and what its replies are good for."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from functools import partial

import numpy as np

from peerbayes.errors import OtherProcess, RefusedMessage
from peerbayes.peer.agreement.negotiate import Agreed
from peerbayes.peer.agreement.runner import AgreementRunner
from peerbayes.peer.agreement.tree_sums import Objection
from peerbayes.peer.learning.masks import Words
from peerbayes.peer.protocol import signals, wire
from peerbayes.peer.protocol.copies import Processes
from peerbayes.peer.protocol.equivocation import STRUCK_OFF, TWO_STORIES, Blocklist, Evidence
from peerbayes.peer.protocol.mailboxes import Inbox
from peerbayes.peer.protocol.session import Session
from peerbayes.peer.protocol.transport import Transport, Unreachable
from peerbayes.peer.protocol.wire import Reply, Request
from peerbayes.peer.state import store as stores
from peerbayes.peer.supervision import supervised

# --- handle a neighbour's reply: refuse it, or pass it to the sums, the inbox or the roster


class Taking:
    """Handles replies that were verified to be from this neighbour, of this run and as requested."""

    def __init__(
        self,
        session: Session,
        agreement: AgreementRunner,
        inbox: Inbox,
        blocklist: Blocklist,
        evidence: Evidence,
        adopt: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._session, self._agreement, self._inbox = session, agreement, inbox
        self._blocklist, self._evidence, self._adopt = blocklist, evidence, adopt

    async def take(self, neighbour: str, request: Request, reply: Reply) -> None:
        self._in_touch(neighbour, request, reply)
        if reply.status == "refused":
            self._refused(neighbour, request, reply)
            return
        self._session.note(neighbour, "")
        if reply.status == "gone":
            self._gone(neighbour, request, reply)
        elif reply.status == "ok":
            await self._content(neighbour, request, reply)
        self._session.changes.notify()

    def _in_touch(self, neighbour: str, request: Request, reply: Reply) -> None:
        neighbour_state = self._session.neighbour(neighbour)
        if request.kind == "roster" and request.body:
            neighbour_state.offered = request.roster if reply.status != "not yet" else neighbour_state.offered
        elif request.kind == "roster":
            neighbour_state.tried, neighbour_state.wanted = neighbour_state.roster, False
        neighbour_state.answered, neighbour_state.versions = True, reply.spoken
        neighbour_state.done = max(neighbour_state.done, reply.done)
        neighbour_state.seen, neighbour_state.roster = time.time(), reply.roster
        self._session.compare_rosters(neighbour, reply.roster, reply.roster_digest)

    def _refused(self, neighbour: str, request: Request, reply: Reply) -> None:
        self._session.note(neighbour, f"it refuses: {reply.reason}")
        if request.kind == "round" and reply.reason.partition(":")[0] in (STRUCK_OFF, TWO_STORIES):
            self._blocklist.add(neighbour, STRUCK_OFF, f"it hears this peer no more: {reply.reason:.200}")
        objection = Objection.parse(reply.reason, self._session.roster)
        if (
            request.kind == "sum"
            and objection is not None
            and self._agreement.sums.object(objection, neighbour)
        ):
            self._session.refuse(objection.against, RefusedMessage("false report", objection.sentence))

    def _gone(self, neighbour: str, request: Request, reply: Reply) -> None:
        """Handle a neighbour's claim that this peer was away for too long."""
        if request.kind not in wire.OF_ROUND or request.round_index != self._session.round_index + 1:
            return
        if reply.done < request.round_index + stores.KEPT:
            raise RefusedMessage(
                "gone", f"at round {reply.done} it must still have round {request.round_index}"
            )
        self._inbox.give_up(neighbour)

    async def _content(self, neighbour: str, request: Request, reply: Reply) -> None:
        agreed = self._session.agreed
        if request.kind == "roster" and reply.body:
            try:
                await self._adopt(reply.body)
            except OSError:
                self._session.neighbour(neighbour).tried = -1  # it could not be stored: it is requested again
                raise
        elif request.kind in ("sum", "first"):
            await self._agreement.sums.take(neighbour, request.kind, request.phase, reply)
        elif request.kind == "round" and agreed is not None:
            message = wire.numbers_in(reply, agreed.learner.shape)
            self._check(agreed, neighbour, message, request.round_index, reply)
            self._inbox.put(neighbour, request.round_index, message)
        elif request.kind == "masked" and agreed is not None:
            words = wire.numbers_in(reply, agreed.learner.shape, "<u8")
            self._inbox.put(neighbour, request.round_index, Words(reply.phase, words))

    def _check(
        self, agreed: Agreed, neighbour: str, message: np.ndarray, round_index: int, reply: Reply
    ) -> None:
        """Refuse messages that no honest peer sends; remember this one for comparison."""
        if (violation := agreed.plausible.violation(message, round_index)) is not None:
            raise RefusedMessage.of(violation)
        if agreed.plausible.unusual(message, round_index):
            self._session.note(neighbour, f"its message of round {round_index} is unusually large")
        if agreed.learner.same_to_all:
            self._evidence.hear(neighbour, round_index, reply)


# --- the client side of a peer: one call at a time to each neighbour, for whatever is needed from it next


class Client:
    """Runs one task per neighbour, which sends requests as long as the neighbour is a neighbour."""

    def __init__(
        self,
        session: Session,
        transport: Transport,
        agreement: AgreementRunner,
        inbox: Inbox,
        evidence: Evidence,
        taking: Taking,
        processes: Processes,
    ) -> None:
        self._session, self._transport, self._agreement = session, transport, agreement
        self._inbox, self._evidence, self._taking, self._processes = inbox, evidence, taking, processes
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Start a task for every neighbour that has none yet."""
        for name in self._session.neighbours:
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
        session, state = self._session, self._session.neighbour(neighbour)
        roster, rounds = session.roster, session.terms.rounds
        if state.versions is None:
            return session.request(neighbour, "hello")
        if state.roster > max(roster.version, state.tried) or state.wanted:
            return session.request(neighbour, "roster")
        if -1 < state.roster < roster.version and state.offered < roster.version:
            return session.request(neighbour, "roster", body=session.membership.signed)
        if state.roster < 0 or not roster.closed:
            return session.request(neighbour, "hello")
        if (pending := self._agreement.sums.wanted(neighbour)) is not None:
            return session.request(neighbour, pending[0], phase=pending[1], wait=signals.WAIT)
        if (agreed := session.agreed) is None:
            return None
        if (
            session.round_index < rounds
            and self._inbox.lacks(neighbour)
            and neighbour in agreed.learner.neighbours
        ):
            return session.request(
                neighbour, session.kind, round_index=session.round_index + 1, schema=agreed.schema.fingerprint,
                wait=signals.WAIT, heard=self._evidence.to_pass_on(neighbour),
            )  # fmt: skip
        if session.round_index >= rounds > state.done:
            return session.request(neighbour, "hello")
        return None

    async def _forever(self, neighbour: str) -> None:
        """Send one request after the other."""
        session = self._session
        pause = signals.FIRST_PAUSE
        while neighbour in session.neighbours:
            request = self._wanted(neighbour)
            if request is None:
                await session.changes.wait(None)
                continue
            began = time.monotonic()
            try:
                within, before = signals.WAIT + signals.GRACE, self._processes.latest(neighbour)
                content = await self._transport.ask(neighbour, wire.encode(request), within)
                reply = wire.reply_in(content, request, neighbour)
                self._processes.hear_reply(neighbour, reply, before)
                if reply.status == "refused":
                    await self._processes.refused(neighbour, request, reply)
                await self._taking.take(neighbour, request, reply)
            except Unreachable as error:
                session.note(neighbour, str(error), lost=True)
                if request.kind == "sum":
                    self._agreement.sums.unreachable(neighbour)
            except RefusedMessage as error:
                session.refuse(neighbour, error)
                other_version = error.reason == "other version"
                if other_version:
                    session.neighbour(
                        neighbour
                    ).versions = None  # it may have been updated: a hello will tell
                explained = other_version or isinstance(error, OtherProcess)
                session.note(neighbour, str(error) if explained else f"refused: {error.reason}")
            except (OSError, sqlite3.Error) as error:
                if not session.room.note(f"answer of {neighbour}", error):
                    raise
            else:
                session.room.clear(f"answer of {neighbour}")
                # A "not yet" between invalid replies does not shorten the pause.
                pause = signals.FIRST_PAUSE if reply.status == "ok" else pause
                waited = time.monotonic() - began >= request.wait / 2  # the neighbour held the call
                if reply.status != "refused" and (
                    self._wanted(neighbour) != request or (request.wait and waited)
                ):
                    continue
            await asyncio.sleep(pause)
            pause = min(2 * pause, signals.LONGEST_PAUSE)
