"""The client's side: what each neighbour is asked for, and what its replies are good for."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec
import numpy as np
from msgspec import UNSET

from peerbayes.errors import OtherProcess, RefusedMessage
from peerbayes.peer import tasks
from peerbayes.peer.agreement.negotiate import Agreed
from peerbayes.peer.agreement.runner import AgreementRunner
from peerbayes.peer.agreement.tree_sums import Objection
from peerbayes.peer.learning.learner import Attachment
from peerbayes.peer.learning.masks import Words
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.coding import decoded
from peerbayes.peer.protocol.copies import Processes
from peerbayes.peer.protocol.equivocation import STRUCK_OFF, TWO_STORIES, Blocklist, Evidence
from peerbayes.peer.protocol.mailboxes import Inbox
from peerbayes.peer.protocol.roster_pieces import LARGEST_OFFERED
from peerbayes.peer.protocol.session import NeighbourState, Session
from peerbayes.peer.protocol.transport import Unreachable
from peerbayes.peer.protocol.wire import Reply, Request
from peerbayes.peer.state import store as stores
from peerbayes.peer.tasks import BackgroundTasks

# Messages of later rounds that a peer which is behind asks for at once: a neighbour answers four calls.
AHEAD = 2


@dataclass(eq=False)
class Client:
    """Runs one task per neighbour, which sends requests as long as the neighbour is a neighbour."""

    session: Session
    agreement: AgreementRunner
    inbox: Inbox
    blocklist: Blocklist
    evidence: Evidence
    processes: Processes
    adopt: Callable[[bytes], Awaitable[None]]
    _tasks: BackgroundTasks = field(default_factory=BackgroundTasks)

    def start(self) -> None:
        """Start a task for every neighbour that has none yet."""
        for name in self.session.neighbours:
            self._tasks.add(f"the line to {name}", partial(self._forever, name))
            self._tasks.add(f"the rounds behind {name}", partial(self._catch_up, name))

    async def stop(self) -> None:
        await self._tasks.stop()

    def _wanted(self, neighbour: str) -> Request | None:
        """Return the next request to this neighbour; None: there is nothing to ask for."""
        session, state = self.session, self.session.neighbour(neighbour)
        roster, rounds = session.roster, session.rounds
        if state.versions is None:
            return session.request(neighbour, "hello")
        if state.roster > max(roster.version, state.tried) or state.wanted:
            pieces = state.pieces
            return session.request(neighbour, "roster", phase=pieces.digest, round_index=pieces.start)
        offers = -1 < state.roster < roster.version and state.offered < roster.version
        if offers and len(session.signed) <= LARGEST_OFFERED:  # a neighbour asks for a larger one by itself
            return session.request(neighbour, "roster", body=session.signed)
        if state.roster < 0 or not roster.closed:
            return session.request(neighbour, "hello")
        if (pending := self.agreement.sums.wanted(neighbour)) is not None:
            return session.request(neighbour, pending[0], phase=pending[1], wait=state.wait)
        if (agreed := session.agreed) is None:
            return None
        sends = neighbour in agreed.learner.neighbours
        if sends and session.round_index < rounds and self.inbox.lacks(neighbour):
            base = {} if session.terms.messages == "float64" else {"base": self.inbox.base(neighbour)}
            return session.request(
                neighbour, session.kind, round_index=session.round_index + 1, schema=agreed.schema.fingerprint,
                wait=state.wait, heard=self.evidence.to_pass_on(neighbour), **base,
            )  # fmt: skip
        if session.round_index >= rounds > state.done:
            return session.request(neighbour, "hello")
        return None

    async def _forever(self, neighbour: str) -> None:
        """Send one request after the other."""
        session, state = self.session, self.session.neighbour(neighbour)
        pause = tasks.FIRST_PAUSE
        while neighbour in session.neighbours:
            request = self._wanted(neighbour)
            if request is None:
                await session.changes.wait(None)
                continue
            began, grace = time.monotonic(), state.grace
            try:
                reply = await self._exchange(neighbour, request, request.wait + grace)
            except Unreachable as error:
                if time.monotonic() - began > request.wait + grace / 2:  # nothing came, not even a refusal
                    state.calls.missed += 1
                session.note(neighbour, str(error), lost=True)
                if session.roster.closed:
                    self.agreement.sums.unreachable(neighbour)
            except RefusedMessage as error:
                session.refuse(neighbour, error)
                explained = isinstance(error, OtherProcess)
                if error.reason == "other version":
                    explained, session.neighbour(neighbour).versions = (
                        True,
                        None,
                    )  # after an update a hello will tell
                session.note(neighbour, str(error) if explained else f"refused: {error.reason}")
            except (OSError, sqlite3.Error) as error:
                if not session.room.note(f"answer of {neighbour}", error):
                    raise
            else:
                session.room.clear(f"answer of {neighbour}")
                # A "not yet" between invalid replies does not shorten the pause.
                pause = tasks.FIRST_PAUSE if reply.status == "ok" else pause
                seconds = time.monotonic() - began
                state.calls.add(seconds - request.wait if reply.status == "not yet" else seconds)
                state.calls.missed = 0
                held = request.wait and seconds >= request.wait / 2
                if reply.status != "refused" and (held or self._wanted(neighbour) != request):
                    continue
            await self._pause(state, pause)
            pause = min(2 * pause, tasks.LONGEST_PAUSE)

    async def _exchange(self, neighbour: str, request: Request, seconds: float) -> Reply:
        """Send a request, and handle its reply."""
        before = self.processes.latest(neighbour)
        reply = await self.session.ask(neighbour, request, seconds)
        self.processes.hear_reply(neighbour, reply, before)
        if reply.status == "refused":
            await self.processes.refused(neighbour, request, reply)
        await self.take(neighbour, request, reply)
        if reply.status == "ok":  # not before: a request that is repeated stays the same
            self.evidence.passed_on(neighbour, request.heard)
        return reply

    async def _catch_up(self, neighbour: str) -> None:
        """Ask for messages of later rounds that a neighbour has stored: several rounds in one round trip."""
        session = self.session
        while neighbour in self.session.neighbours:
            if not (requests := self._ahead(neighbour)):
                await session.changes.wait(None)
                continue
            coming, grace = session.round_index, session.neighbour(neighbour).grace
            exchanges = (self._exchange(neighbour, request, grace) for request in requests)
            outcomes = await asyncio.gather(*exchanges, return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, RefusedMessage):
                    session.refuse(neighbour, outcome)
                elif isinstance(outcome, OSError | sqlite3.Error):
                    session.room.note(f"answer of {neighbour}", outcome)
                elif isinstance(outcome, BaseException) and not isinstance(outcome, Unreachable):
                    raise outcome
            if any(isinstance(outcome, BaseException) or outcome.status != "ok" for outcome in outcomes):
                # The line to it goes on; what comes after the next round is asked for then.
                while session.round_index == coming and neighbour in session.neighbours:
                    await session.changes.wait(None)

    def _ahead(self, neighbour: str) -> list[Request]:
        """Return requests for messages of the rounds after the coming one that a neighbour has and this peer lacks."""
        session, agreed, state = self.session, self.session.agreed, self.session.neighbour(neighbour)
        if agreed is None or neighbour not in agreed.learner.neighbours or state.note:
            return []
        if session.terms.messages != "float64":
            return []  # each is a difference from the one before: they come in order
        coming = session.round_index + 1
        if state.done < coming:  # it has nothing beyond the coming round
            return []
        last = min(coming + AHEAD, state.done + 1, session.terms.rounds)
        return [
            session.request(
                neighbour, session.kind, round_index=round_index, schema=agreed.schema.fingerprint
            )
            for round_index in range(coming + 1, last + 1)
            if self.inbox.lacks(neighbour, round_index)
        ]

    async def _pause(self, state: NeighbourState, seconds: float) -> None:
        """Wait before the next attempt, at most until the neighbour calls: then it can be reached again."""
        until, seen = time.monotonic() + seconds, state.seen
        await asyncio.sleep(min(seconds, tasks.SHORT_PAUSE))  # whatever it does, it is not asked more often
        while state.seen == seen and (remaining := until - time.monotonic()) > 0:
            await self.session.changes.wait(remaining)

    # --- replies: refused, or passed to the sums, the inbox or the roster ---------------------------------

    async def take(self, neighbour: str, request: Request, reply: Reply) -> None:
        """Handle a reply that was verified to be from this neighbour, of this run and as requested."""
        self._in_touch(neighbour, request, reply)
        if reply.status == "refused":
            self._refused(neighbour, request, reply)
            return
        self.session.note(neighbour, "")
        if reply.status == "gone":
            self._gone(neighbour, request, reply)
        elif reply.status == "ok":
            await self._content(neighbour, request, reply)
        self.session.changes.notify()

    def _in_touch(self, neighbour: str, request: Request, reply: Reply) -> None:
        state = self.session.neighbour(neighbour)
        if request.kind == "roster" and not request.body:
            state.tried, state.wanted = state.roster, False
            if reply.status != "ok":  # it has another one by now
                state.pieces.clear()
        elif request.kind == "roster" and reply.status != "not yet":
            state.offered = request.roster
        state.answered, state.roster = True, reply.roster
        self.session.in_touch(neighbour, reply)

    def _refused(self, neighbour: str, request: Request, reply: Reply) -> None:
        self.session.note(neighbour, f"it refuses: {reply.reason}")
        if request.kind == "round" and reply.reason.partition(":")[0] in (STRUCK_OFF, TWO_STORIES):
            self.blocklist.add(neighbour, STRUCK_OFF, f"it hears this peer no more: {reply.reason:.200}")
        objection = Objection.parse(reply.reason, self.session.roster) if request.kind == "sum" else None
        if objection is not None and self.agreement.sums.object(objection, neighbour):
            self.session.refuse(objection.against, RefusedMessage("false report", objection.sentence))

    def _gone(self, neighbour: str, request: Request, reply: Reply) -> None:
        """Handle a neighbour's claim that this peer was away for too long."""
        if request.kind not in wire.OF_ROUND or request.round_index != self.session.round_index + 1:
            return
        if reply.done < request.round_index + stores.KEPT:
            raise RefusedMessage(
                "gone", f"at round {reply.done} it must still have round {request.round_index}"
            )
        self.inbox.give_up(neighbour)

    async def _content(self, neighbour: str, request: Request, reply: Reply) -> None:
        agreed = self.session.agreed
        if request.kind == "roster" and reply.body:
            state = self.session.neighbour(neighbour)
            if (signed := state.pieces.add(reply)) is None:
                state.tried = -1  # the next piece is requested
                state.wanted = True
                return
            try:
                await self.adopt(signed)
            except OSError:
                state.tried = -1  # it could not be stored: it is requested again
                raise
        elif request.kind in ("sum", "first"):
            await self.agreement.sums.take(neighbour, request.kind, request.phase, reply)
        elif request.kind == "round" and agreed is not None:
            message, attached = self._check(agreed, neighbour, request.round_index, reply)
            self.inbox.put(neighbour, request.round_index, message, attached, reply.digest)
        elif request.kind == "masked" and agreed is not None:
            words = wire.numbers_in(reply, agreed.learner.shape, "<u8")
            self.inbox.put(neighbour, request.round_index, Words(reply.phase, words))

    def _numbers(self, agreed: Agreed, neighbour: str, reply: Reply) -> np.ndarray:
        """Return the numbers of a neighbour's message, coded beside an earlier one or not."""
        if reply.base is UNSET:
            return wire.numbers_in(reply, agreed.learner.shape)
        base = agreed.learner.base if reply.base == 0 else self.inbox.message(neighbour, reply.base)
        body = wire.bytes_of(decoded(reply.body, agreed.learner.shape, base))
        if wire.digest_of(body) != reply.digest:
            raise RefusedMessage("wrong digest", "the numbers do not match their digest")
        return wire.numbers_in(msgspec.structs.replace(reply, body=body), agreed.learner.shape)

    def _correction(self, shape: tuple[int, ...], reply: Reply) -> np.ndarray | None:
        """Return the correction beside a message, which is coded where the message is; None: there is none."""
        if reply.base is UNSET or not reply.correction:
            return wire.correction_in(reply, shape)
        return decoded(reply.correction, shape, np.zeros(shape))

    def _check(
        self, agreed: Agreed, neighbour: str, round_index: int, reply: Reply
    ) -> tuple[np.ndarray, Attachment]:
        """Return a neighbour's message and what came beside it; refuse what no honest peer sends.

        The message is remembered for comparison with what others got.
        """
        message = self._numbers(agreed, neighbour, reply)
        correction = self._correction(agreed.learner.shape, reply)
        checked = message if correction is None else np.stack([message, correction])
        violation, unusual = agreed.plausible.examined(checked, round_index)
        if violation is not None:
            raise RefusedMessage.of(violation)
        if unusual if checked is message else agreed.plausible.unusual(message, round_index):
            self.session.note(neighbour, f"its message of round {round_index} is unusually large")
        if agreed.learner.same_to_all:
            self.evidence.hear(neighbour, round_index, reply)
        return message, Attachment(reply.missed or 0, correction)
