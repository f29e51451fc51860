"""Handle a neighbour's reply: refuse it, or pass it to the sums, the inbox or the roster."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import numpy as np

from peerbayes.peers import store as stores
from peerbayes.peers import wire
from peerbayes.peers.agreeing import Agreeing
from peerbayes.peers.agreement import Agreed
from peerbayes.peers.errors import RefusedMessage
from peerbayes.peers.evidence import Evidence
from peerbayes.peers.inbox import Inbox
from peerbayes.peers.masked import Words
from peerbayes.peers.objections import Objection
from peerbayes.peers.parted import STRUCK_OFF, TWO_STORIES, Parted
from peerbayes.peers.standing import Standing
from peerbayes.peers.wire import Reply, Request


class Taking:
    """Handles replies that were verified to be from this neighbour, of this run and as requested."""

    def __init__(
        self,
        standing: Standing,
        agreeing: Agreeing,
        inbox: Inbox,
        parted: Parted,
        evidence: Evidence,
        adopt: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._standing, self._agreeing, self._inbox = standing, agreeing, inbox
        self._parted, self._evidence, self._adopt = parted, evidence, adopt

    async def take(self, neighbour: str, request: Request, reply: Reply) -> None:
        self._in_touch(neighbour, request, reply)
        if reply.status == "refused":
            self._refused(neighbour, request, reply)
            return
        self._standing.note(neighbour, "")
        if reply.status == "gone":
            self._gone(neighbour, request, reply)
        elif reply.status == "ok":
            await self._content(neighbour, request, reply)
        self._standing.news.tell()

    def _in_touch(self, neighbour: str, request: Request, reply: Reply) -> None:
        neighbour_state = self._standing.line(neighbour)
        if request.kind == "roster" and request.body:
            neighbour_state.offered = request.roster if reply.status != "not yet" else neighbour_state.offered
        elif request.kind == "roster":
            neighbour_state.tried, neighbour_state.wanted = neighbour_state.roster, False
        neighbour_state.answered = True
        neighbour_state.done = max(neighbour_state.done, reply.done)
        neighbour_state.seen, neighbour_state.roster = time.time(), reply.roster
        self._standing.compare_rosters(neighbour, reply.roster, reply.roster_digest)

    def _refused(self, neighbour: str, request: Request, reply: Reply) -> None:
        self._standing.note(neighbour, f"it refuses: {reply.reason}")
        if request.kind == "round" and reply.reason.partition(":")[0] in (STRUCK_OFF, TWO_STORIES):
            self._parted.add(neighbour, STRUCK_OFF, f"it hears this peer no more: {reply.reason:.200}")
        objection = Objection.parse(reply.reason, self._standing.roster)
        if (
            request.kind == "sum"
            and objection is not None
            and self._agreeing.sums.object(objection, neighbour)
        ):
            self._standing.refuse(objection.against, RefusedMessage("false report", objection.sentence))

    def _gone(self, neighbour: str, request: Request, reply: Reply) -> None:
        """Handle a neighbour's claim that this peer was away for too long."""
        if request.kind not in wire.OF_ROUND or request.turn != self._standing.turn + 1:
            return
        if reply.done < request.turn + stores.KEPT:
            raise RefusedMessage("gone", f"at round {reply.done} it must still have round {request.turn}")
        self._inbox.give_up(neighbour)

    async def _content(self, neighbour: str, request: Request, reply: Reply) -> None:
        agreed = self._standing.agreed
        if request.kind == "roster" and reply.body:
            try:
                await self._adopt(reply.body)
            except OSError:
                self._standing.line(neighbour).tried = -1  # it could not be stored: it is requested again
                raise
        elif request.kind in ("sum", "first"):
            await self._agreeing.sums.take(neighbour, request.kind, request.phase, reply)
        elif request.kind == "round" and agreed is not None:
            message = wire.numbers_in(reply, agreed.learner.shape)
            self._check(agreed, neighbour, message, request.turn, reply)
            self._inbox.put(neighbour, request.turn, message)
        elif request.kind == "masked" and agreed is not None:
            words = wire.numbers_in(reply, agreed.learner.shape, "<u8")
            self._inbox.put(neighbour, request.turn, Words(reply.phase, words))

    def _check(
        self, agreed: Agreed, neighbour: str, message: np.ndarray, round_index: int, reply: Reply
    ) -> None:
        """Refuse messages that no honest peer sends; remember this one for comparison."""
        if (broken := agreed.plausible.broken(message, round_index)) is not None:
            raise RefusedMessage.of(broken)
        if agreed.plausible.unusual(message, round_index):
            self._standing.note(neighbour, f"its message of round {round_index} is unusually large")
        if agreed.learner.same_to_all:
            self._evidence.hear(neighbour, round_index, reply)
