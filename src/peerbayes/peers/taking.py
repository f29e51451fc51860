"""What a neighbour's reply is good for: it is refused, or the sums, the inbox or the roster get it."""

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
    """Takes replies that are from this neighbour, of this run, and what was asked for."""

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

    async def take(self, neighbour: str, asked: Request, reply: Reply) -> None:
        self._in_touch(neighbour, asked, reply)
        if reply.status == "refused":
            self._refused(neighbour, asked, reply)
            return
        self._standing.note(neighbour, "")
        if reply.status == "gone":
            self._gone(neighbour, asked, reply)
        elif reply.status == "ok":
            await self._content(neighbour, asked, reply)
        self._standing.news.tell()

    def _in_touch(self, neighbour: str, asked: Request, reply: Reply) -> None:
        line = self._standing.line(neighbour)
        if asked.kind == "roster" and asked.body:
            line.offered = asked.roster if reply.status != "not yet" else line.offered
        elif asked.kind == "roster":
            line.tried, line.wanted = line.roster, False
        line.answered = True
        line.done, line.seen, line.roster = max(line.done, reply.done), time.time(), reply.roster
        self._standing.compare_rosters(neighbour, reply.roster, reply.roster_digest)

    def _refused(self, neighbour: str, asked: Request, reply: Reply) -> None:
        self._standing.note(neighbour, f"it refuses: {reply.reason}")
        if asked.kind == "round" and reply.reason.partition(":")[0] in (STRUCK_OFF, TWO_STORIES):
            self._parted.add(neighbour, STRUCK_OFF, f"it hears this peer no more: {reply.reason:.200}")
        objection = Objection.parse(reply.reason, self._standing.roster)
        if asked.kind == "sum" and objection is not None and self._agreeing.sums.object(objection, neighbour):
            self._standing.refuse(objection.against, RefusedMessage("false report", objection.sentence))

    def _gone(self, neighbour: str, asked: Request, reply: Reply) -> None:
        """This peer was away for too long, or so the neighbour says."""
        if asked.kind not in wire.OF_ROUND or asked.turn != self._standing.turn + 1:
            return
        if reply.done < asked.turn + stores.KEPT:
            raise RefusedMessage("gone", f"at round {reply.done} it must still have round {asked.turn}")
        self._inbox.give_up(neighbour)

    async def _content(self, neighbour: str, asked: Request, reply: Reply) -> None:
        agreed = self._standing.agreed
        if asked.kind == "roster" and reply.body:
            try:
                await self._adopt(reply.body)
            except OSError:
                self._standing.line(neighbour).tried = -1  # it could not be kept: it is asked for again
                raise
        elif asked.kind in ("sum", "first"):
            await self._agreeing.sums.take(neighbour, asked.kind, asked.phase, reply)
        elif asked.kind == "round" and agreed is not None:
            message = wire.numbers_in(reply, agreed.learner.shape)
            self._check(agreed, neighbour, message, asked.turn, reply)
            self._inbox.put(neighbour, asked.turn, message)
        elif asked.kind == "masked" and agreed is not None:
            words = wire.numbers_in(reply, agreed.learner.shape, "<u8")
            self._inbox.put(neighbour, asked.turn, Words(reply.phase, words))

    def _check(self, agreed: Agreed, neighbour: str, message: np.ndarray, turn: int, reply: Reply) -> None:
        """Refuse what no honest peer says; remember what this one said."""
        if (broken := agreed.plausible.broken(message, turn)) is not None:
            raise RefusedMessage.of(broken)
        if agreed.plausible.unusual(message, turn):
            self._standing.note(neighbour, f"its message of round {turn} is unusually large")
        if agreed.learner.same_to_all:
            self._evidence.hear(neighbour, turn, reply)
