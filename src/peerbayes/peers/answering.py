"""What others get to hear from this peer: who may ask for what, and the reply. All of it was stored before."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from peerbayes.peers import patience, wire
from peerbayes.peers.agreeing import Agreeing
from peerbayes.peers.audit import AuditLog
from peerbayes.peers.callbacks import Callbacks
from peerbayes.peers.errors import OtherProcess, RefusedMessage
from peerbayes.peers.evidence import Evidence
from peerbayes.peers.objections import Objection
from peerbayes.peers.outbox import Found, Outbox, Ready
from peerbayes.peers.parted import Parted
from peerbayes.peers.processes import Processes
from peerbayes.peers.rates import Rate
from peerbayes.peers.standing import Standing
from peerbayes.peers.transport import Transport
from peerbayes.peers.wire import Reply, Request

AT_ONCE = 4  # requests of one neighbour that may wait here
ROSTERS, ROSTER_EVERY = (
    8,
    2.0,
)  # rosters of one caller that are looked at: so many, then one every so many seconds


class Answering:
    """Answers whoever has a certificate of this network."""

    def __init__(
        self,
        standing: Standing,
        agreeing: Agreeing,
        outbox: Outbox,
        parted: Parted,
        evidence: Evidence,
        transport: Transport,
        audit: AuditLog,
        adopt: Callable[[bytes], Awaitable[None]],
        processes: Processes,
    ) -> None:
        self._standing, self._agreeing, self._outbox = standing, agreeing, outbox
        self._parted, self._evidence = parted, evidence
        self._transport, self._audit, self._adopt, self._processes = transport, audit, adopt, processes
        self._callbacks = Callbacks(standing, transport)
        self._busy: Counter[str] = Counter()
        self._rosters = Rate(ROSTERS, ROSTER_EVERY)
        self._signature = b"", b""  # the last message that was signed, and its signature

    async def answer(self, caller: str, content: bytes) -> bytes:
        """The reply to whatever was sent."""
        asked = None
        try:
            asked = wire.request_in(content)
            self._admit(caller, asked)
            self._standing.asked_by = time.time()
            self._busy[caller] += 1
            try:
                reply = await self._reply(caller, asked)
                if reply.digest:
                    self._standing.room.clear("request")  # what left was logged
            finally:
                self._busy[caller] -= 1
        except RefusedMessage as error:
            other = error if isinstance(error, OtherProcess) else None
            if other is None or other.certain:
                self._standing.refuse(caller, error)
            if other is not None and other.certain:
                self._standing.note(caller, str(error))
            kind: wire.Kind = "hello" if asked is None else asked.kind
            reply = self._said(
                asked, kind, "refused", reason=f"{error.reason}: {error}"[:500], shown=other and other.shown
            )
        except (OSError, sqlite3.Error) as error:
            if asked is None or not self._standing.room.note("request", error):
                raise
            reply = self._said(asked, asked.kind, "not yet")  # nothing leaves that cannot be logged or stored
        return wire.encode(reply)

    def _said(self, asked: Request | None, kind: wire.Kind, status: wire.Status, **more: Any) -> Reply:
        standing = self._standing
        facts: dict[str, Any] = {} if asked is None else {"phase": asked.phase, "turn": asked.turn}
        return Reply(
            wire.VERSION, standing.roster.run, standing.name, kind, status, done=standing.turn,
            roster=standing.roster.version, roster_digest=standing.roster.digest, clock=time.time(),
            process=standing.process(), **(facts | more),
        )  # fmt: skip

    def _admit(self, caller: str, asked: Request) -> None:
        name, roster = self._standing.name, self._standing.roster
        if asked.sender != caller:
            raise RefusedMessage("speaks for another", f"{caller} asks in the name of {asked.sender!r}")
        self._refuse_revoked(caller)
        if caller in roster.neighbours(name):
            self._processes.hear_request(caller, asked)
        if self._busy[caller] >= AT_ONCE:
            raise RefusedMessage("too many at once", f"{caller} has {AT_ONCE} requests waiting here")
        if asked.kind not in wire.OF_RUN:
            return
        if caller not in roster.neighbours(name):
            raise RefusedMessage("not a neighbour", f"{caller} has no link to {name}")
        self._parted.refuse(caller)
        if asked.run != roster.run:
            raise RefusedMessage("wrong network", f"run {asked.run:.12} instead of {roster.run:.12}")

    def _refuse_revoked(self, caller: str) -> None:
        if caller in self._standing.roster.revoked:
            raise RefusedMessage("revoked", f"{caller} is no longer a member")

    def _refuse_halted(self) -> None:
        if self._standing.halted is not None:
            raise RefusedMessage("stopping", f"{self._standing.name} stops, and says nothing more")

    async def _reply(self, caller: str, asked: Request) -> Reply:
        if caller in self._standing.roster.neighbours(self._standing.name):
            self._in_touch(caller, asked)
        if asked.kind == "roster" and asked.body:
            await self._brought(caller, asked.body)
            self._standing.news.tell()
            return self._said(asked, "roster", "ok")
        if asked.kind == "roster":
            signed = self._standing.own.signed
            return self._given(asked, Ready(signed, wire.digest_of(signed)))
        if asked.kind == "call back":
            return self._said(asked, "call back", "ok", reason=await self._callbacks.tried(caller))
        if asked.kind in ("hello", "leave"):
            return self._said(asked, asked.kind, "ok")
        found = await self._awaited(caller, asked)
        if found is None:
            return self._said(asked, asked.kind, "not yet")
        if found == "gone":
            return self._said(asked, asked.kind, "gone")
        if isinstance(found, Objection):
            return self._said(asked, asked.kind, "refused", reason=found.reason)
        self._refuse_revoked(caller)  # meanwhile
        self._refuse_halted()
        self._log(caller, asked, found)
        return self._given(asked, found)

    async def _brought(self, caller: str, signed: bytes) -> None:
        """Take a roster that a caller brings, unless it brings many: to look at one costs more than to send it."""
        if signed == self._standing.own.signed:
            return
        if not self._rosters.allows(caller):
            raise RefusedMessage(
                "too many rosters", f"{caller} brings more than {ROSTERS}, and then one in {ROSTER_EVERY:g} s"
            )
        await self._adopt(signed)

    def _in_touch(self, caller: str, asked: Request) -> None:
        """What a neighbour's request tells of it, and of others."""
        standing, line = self._standing, self._standing.line(caller)
        changed = asked.done > line.done or asked.roster > line.roster
        line.done, line.seen = max(line.done, asked.done), time.time()
        line.roster = max(line.roster, asked.roster)
        standing.compare_rosters(caller, asked.roster, asked.roster_digest)
        if asked.kind == "leave":
            line.left = True
            standing.note(caller, "left")
        if asked.heard and asked.run == standing.roster.run:
            self._evidence.listen(caller, asked.heard)
        if changed or asked.kind == "leave":
            standing.news.tell()

    async def _awaited(self, caller: str, asked: Request) -> Found | Objection:
        """What is asked for, as soon as it is there; None: not within the time that the caller has."""
        news = self._standing.news
        until = time.monotonic() + min(asked.wait, patience.WAIT)
        since = news.next
        while (found := await self._found(caller, asked)) is None and time.monotonic() < until:
            await news.wait(until - time.monotonic(), since)
            since = news.next
        return found

    async def _found(self, caller: str, asked: Request) -> Found | Objection:
        standing, agreed = self._standing, self._standing.agreed
        if not standing.roster.closed:  # others may still join: there is no tree of all members yet
            return None
        if asked.kind == "sum":
            body = self._agreeing.sums.behind(caller, asked.phase)
            return Ready(body, wire.digest_of(body)) if isinstance(body, bytes) else body
        if asked.kind == "first":
            own = self._agreeing.sums.first()
            if own is None:
                return None
            body = wire.bytes_of(own)
            return Ready(body, wire.digest_of(body), own.shape)
        if asked.kind != standing.kind:
            raise RefusedMessage(
                "wrong message", f"{asked.kind!r} was asked for; this network has {standing.kind!r}"
            )
        if agreed is not None and asked.schema != agreed.schema.fingerprint:
            raise RefusedMessage(
                "wrong schema", f"schema {asked.schema:.12} instead of {agreed.schema.fingerprint:.12}"
            )
        if agreed is None or asked.turn > standing.turn + 1:
            return None
        return await self._outbox.find(agreed, asked.turn, caller)

    def _log(self, caller: str, asked: Request, ready: Ready) -> None:
        """Whatever is made of this peer's rows is in the audit log before it leaves."""
        what = {"round": f"round {asked.turn}", "masked": f"masked round {asked.turn}"}.get(
            asked.kind, f"{asked.kind} {asked.phase}".strip()
        )
        what = what if self._standing.terms.privacy.epsilon is None else f"private {what}"
        self._audit.add(caller, what, len(ready.body), ready.digest)

    def _given(self, asked: Request, ready: Ready) -> Reply:
        agreed, signature = self._standing.agreed, b""
        if asked.kind == "round" and agreed is not None and agreed.learner.same_to_all:
            signature = self._signed(asked.turn, ready.digest)
        return self._said(
            asked, asked.kind, "ok", phase=ready.group if asked.kind == "masked" else asked.phase,
            schema=asked.schema, shape=ready.shape, digest=ready.digest, body=ready.body, signature=signature,
        )  # fmt: skip

    def _signed(self, turn: int, digest: bytes) -> bytes:
        """This peer's signature of its message of a round: one for all neighbours."""
        content = wire.statement(self._standing.roster.run, turn, digest)
        if self._signature[0] != content:
            self._signature = content, self._transport.sign(content)
        return self._signature[1]
