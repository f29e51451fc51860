"""The server's side: answers to what neighbours ask, at a bounded rate."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec import UNSET

from peerbayes.errors import OtherProcess, PeerError, RefusedMessage
from peerbayes.peer import tasks
from peerbayes.peer.agreement.runner import AgreementRunner
from peerbayes.peer.agreement.tree_sums import Objection
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.coding import coded
from peerbayes.peer.protocol.copies import Processes
from peerbayes.peer.protocol.equivocation import Blocklist, Evidence
from peerbayes.peer.protocol.mailboxes import Found, Outbox, Ready
from peerbayes.peer.protocol.renewals import Renewals
from peerbayes.peer.protocol.roster_pieces import piece_of
from peerbayes.peer.protocol.session import Session
from peerbayes.peer.protocol.transport import Unreachable
from peerbayes.peer.protocol.wire import Reply, Request

# --- calls back to a neighbour that wants to know whether it can be reached, only at its address in the roster

EVERY = 5.0  # seconds between two calls that one neighbour may have: nobody scans a network through this peer
WITHIN = 6.0  # seconds to try
PAUSE = 0.5  # seconds between attempts


@dataclass(eq=False)
class Callbacks:
    """Opens a connection to neighbours that ask for one."""

    session: Session
    _due: dict[str, float] = field(default_factory=dict)

    async def tried(self, caller: str) -> str:
        """Return why a call back to the caller failed, in plain words; "" where it was reached."""
        if caller not in self.session.roster.present(self.session.name):
            raise RefusedMessage("not a neighbour", f"{caller} has no link to {self.session.name}")
        now = time.monotonic()
        if now < self._due.get(caller, 0.0):
            raise RefusedMessage("too many at once", f"{caller} was called back less than {EVERY:.0f} s ago")
        self._due[caller] = math.inf  # while it is being called
        try:
            return await self._called(caller, now + WITHIN)
        finally:
            self._due[caller] = time.monotonic() + EVERY

    async def _called(self, caller: str, until: float) -> str:
        while True:
            remaining = until - time.monotonic()
            try:
                await self.session.transport.reach(caller, max(remaining, PAUSE))
                return ""
            except PeerError as error:
                if not isinstance(error, Unreachable) or remaining <= PAUSE:
                    return str(error)[:400]
            await asyncio.sleep(PAUSE)


# --- the server side of a peer: who may ask for what, and the reply. Whatever is sent was stored before

AT_ONCE = 4  # requests of one neighbour that may wait here
ROSTERS = 8  # rosters of one caller that are verified at once
ROSTER_EVERY = 2.0  # seconds between two more of them


@dataclass(eq=False)
class Server:
    """Answers callers that have a certificate of this network."""

    session: Session
    agreement: AgreementRunner
    outbox: Outbox
    blocklist: Blocklist
    evidence: Evidence
    processes: Processes
    adopt: Callable[[bytes], Awaitable[None]]

    renewals: Renewals | None = None
    """Renews certificates, or passes on who asks for it; None: not here."""

    def __post_init__(self) -> None:
        self._callbacks = Callbacks(self.session)
        self._busy: Counter[str] = Counter()
        self._rosters = tasks.Rate(ROSTERS, ROSTER_EVERY)
        self._signature = b"", b""  # the last message that was signed, and its signature

    async def answer(self, caller: str, content: bytes) -> bytes:
        """Return the reply to a request, whatever its bytes are."""
        request = None
        try:
            request = wire.request_in(content, self.session.versions, caller, self.session.name)
            self._admit(caller, request)
            self.session.asked_by = time.time()
            self._busy[caller] += 1
            try:
                reply = await self._reply(caller, request)
                if (state := self.session.neighbour_states.get(caller)) is not None:
                    state.told = reply.done
                if reply.digest:
                    self.session.room.clear("request")  # what left was logged
            finally:
                self._busy[caller] -= 1
        except RefusedMessage as error:
            other = error if isinstance(error, OtherProcess) else None
            if other is None or other.certain:
                self.session.refuse(caller, error)
            if other is not None and other.certain:
                self.session.note(caller, str(error))
            reason = f"{error.reason}: {error}"[:500]
            reply = self.reply(request, "refused", reason=reason, shown=other and other.shown)
        except (OSError, sqlite3.Error) as error:
            if request is None or not self.session.room.note("request", error):
                raise
            # Nothing leaves that cannot be logged or stored.
            reply = self.reply(request, "not yet")
        return wire.encode(reply)

    def reply(self, request: Request | None, status: wire.Status, **fields: Any) -> Reply:
        """Return a reply to a request; None: to one that cannot be read."""
        session = self.session
        kind: wire.Kind = "hello"
        if request is not None:
            kind, fields = request.kind, {"phase": request.phase, "round_index": request.round_index} | fields
        return Reply(
            **session.reply_version(request), run=session.roster.run, sender=session.name, kind=kind, status=status,
            done=session.round_index, roster=session.roster.version, roster_digest=session.roster.digest,
            clock=time.time(), process=session.process(), **fields,
        )  # fmt: skip

    def _admit(self, caller: str, request: Request) -> None:
        name, roster = self.session.name, self.session.roster
        if request.sender != caller:
            raise RefusedMessage("speaks for another", f"{caller} asks in the name of {request.sender!r}")
        self._refuse_revoked(caller)
        if caller in roster.neighbours(name):
            self.processes.hear_request(caller, request)
        if self._busy[caller] >= AT_ONCE:
            raise RefusedMessage("too many at once", f"{caller} has {AT_ONCE} requests waiting here")
        if request.kind not in wire.OF_RUN:
            return
        if caller not in roster.neighbours(name):
            raise RefusedMessage("not a neighbour", f"{caller} has no link to {name}")
        self.blocklist.refuse(caller)
        if request.run != roster.run:
            raise RefusedMessage("wrong network", f"run {request.run:.12} instead of {roster.run:.12}")

    def _refuse_revoked(self, caller: str) -> None:
        if caller in self.session.roster.revoked:
            raise RefusedMessage("revoked", f"{caller} is no longer a member")

    async def _reply(self, caller: str, request: Request) -> Reply:
        if caller in self.session.roster.neighbours(self.session.name):
            self._in_touch(caller, request)
        if request.kind == "roster" and request.body:
            await self._brought(caller, request.body)
            self.session.changes.notify()
            return self.reply(request, "ok")
        if request.kind == "roster":
            signed, start = self.session.signed, request.round_index
            if start >= len(signed) or request.phase not in ("", self.session.roster.digest.hex()):
                return self.reply(request, "gone")  # this peer has a newer one by now
            piece = piece_of(signed, start)
            return self._deliver(request, Ready(piece, wire.digest_of(piece), (len(signed),)))
        if request.kind == "call back":
            return self.reply(request, "ok", reason=await self._callbacks.tried(caller))
        if request.kind in ("hello", "leave"):
            return self.reply(request, "ok")
        if request.kind == "renew":
            return await self._renewed(caller, request)
        if request.kind == "documents":
            return self.reply(request, "gone")  # this process has one run, and knows of no others
        answer = await self._awaited(caller, request)
        if answer is None:
            return self.reply(request, "not yet")
        if answer == "gone":
            return self.reply(request, "gone")
        if isinstance(answer, Objection):
            return self.reply(request, "refused", reason=answer.reason)
        self._refuse_revoked(caller)  # meanwhile
        if self.session.halted is not None:
            raise RefusedMessage("stopping", f"{self.session.name} stops, and says nothing more")
        answer = await self._shortened(caller, request, answer)
        self._log(caller, request, answer)
        return self._deliver(request, answer)

    async def _renewed(self, caller: str, request: Request) -> Reply:
        """Return a renewed certificate to a neighbour that asks for its own, or passes a request on."""
        if self.renewals is None:
            return self.reply(request, "not yet")
        body = await self.renewals.answer(caller, request.phase, request.body, request.round_index)
        if body is None:
            return self.reply(request, "not yet")
        return self._deliver(request, Ready(body, wire.digest_of(body)))

    async def _shortened(self, caller: str, request: Request, ready: Ready) -> Ready:
        """Return a message coded beside the one that the caller has, or else the start, where that was agreed on."""
        agreed = self.session.agreed
        if agreed is None or request.base is UNSET or self.session.terms.messages == "float64":
            return ready
        known, base = 0, agreed.learner.base
        if 0 < request.base < request.round_index:
            earlier = await self.outbox.find(agreed, request.base, caller)
            if isinstance(earlier, Ready):
                known, base = request.base, wire.numbers_of(earlier.body, ready.shape)
        body = await asyncio.to_thread(coded, wire.numbers_of(ready.body, ready.shape), base)
        correction = ready.correction
        if correction:
            correction = coded(wire.numbers_of(correction, ready.shape), np.zeros(ready.shape))
        return ready._replace(body=body, base=known, correction=correction)

    async def _brought(self, caller: str, signed: bytes) -> None:
        """Adopt a roster that a caller brings, unless it brings many: to verify one costs more than to send it."""
        if signed == self.session.signed:
            return
        if not self._rosters.allows(caller):
            raise RefusedMessage(
                "too many rosters",
                f"{caller} sent more than {ROSTERS} at once, then one every {ROSTER_EVERY:g} s",
            )
        await self.adopt(signed)

    def _in_touch(self, caller: str, request: Request) -> None:
        """Update what is known of a neighbour, and of others, from its request."""
        session, known = self.session, self.session.neighbour(caller)
        done, roster, back = known.done, known.roster, known.note != ""
        neighbour_state = session.in_touch(caller, request)
        neighbour_state.roster = max(roster, request.roster)
        if request.kind == "leave":
            neighbour_state.left = True
            session.note(caller, "left")
        if request.heard and request.run == session.roster.run:
            self.evidence.listen(caller, request.heard)
        # `back`: it can be reached again, and whoever pauses before asking it tries now.
        if request.kind == "leave" or request.done > done or request.roster > roster or back:
            session.changes.notify()

    async def _awaited(self, caller: str, request: Request) -> Found | Objection:
        """Return what is asked for as soon as it is available; None: not within the time that the caller allows."""
        changes = self.session.changes
        until = time.monotonic() + min(request.wait, tasks.WAIT)
        since = changes.next
        while (answer := await self._look_up(caller, request)) is None and time.monotonic() < until:
            await changes.wait(until - time.monotonic(), since)
            since = changes.next
        return answer

    async def _look_up(self, caller: str, request: Request) -> Found | Objection:
        session, agreed = self.session, self.session.agreed
        if not session.roster.closed:  # others may still join: there is no tree of all members yet
            return None
        if request.kind == "sum":
            body = self.agreement.sums.behind(caller, request.phase)
            return Ready(body, wire.digest_of(body)) if isinstance(body, bytes) else body
        if request.kind == "first":
            statistics = self.agreement.sums.first()
            if statistics is None:
                return None
            body = wire.bytes_of(statistics)
            return Ready(body, wire.digest_of(body), statistics.shape)
        if request.kind != session.kind:
            raise RefusedMessage(
                "wrong message", f"{request.kind!r} was asked for; this network has {session.kind!r}"
            )
        if agreed is not None and request.schema != agreed.schema.fingerprint:
            raise RefusedMessage(
                "wrong schema", f"schema {request.schema:.12} instead of {agreed.schema.fingerprint:.12}"
            )
        if agreed is None or request.round_index > session.round_index + 1:
            return None
        return await self.outbox.find(agreed, request.round_index, caller)

    def _log(self, caller: str, request: Request, ready: Ready) -> None:
        """Write to the audit log whatever is computed from this peer's rows, before it leaves."""
        description = {
            "round": f"round {request.round_index}",
            "masked": f"masked round {request.round_index}",
        }.get(request.kind, f"{request.kind} {request.phase}".strip())
        if self.session.terms.privacy.epsilon is not None:
            description = f"private {description}"
        if ready.correction:
            size, digest = len(ready.correction), wire.digest_of(ready.correction)
            self.session.audit.add(caller, f"correction of {description}", size, digest)
        self.session.audit.add(caller, description, len(ready.body), ready.digest)

    def _deliver(self, request: Request, ready: Ready) -> Reply:
        agreed, signature = self.session.agreed, b""
        if request.kind == "round" and agreed is not None and agreed.learner.same_to_all:
            signature = self._signed(request.round_index, ready.digest)
        return self.reply(request, "ok", phase=ready.group if request.kind == "masked" else request.phase,
            schema=request.schema, shape=ready.shape, digest=ready.digest, body=ready.body, signature=signature,
            missed=ready.missed or UNSET, correction=ready.correction or UNSET,
            base=UNSET if ready.base is None else ready.base,
        )  # fmt: skip

    def _signed(self, round_index: int, digest: bytes) -> bytes:
        """Return this peer's signature of its message of a round, the same for all neighbours."""
        content = wire.statement(self.session.roster.run, round_index, digest)
        if self._signature[0] != content:
            self._signature = content, self.session.transport.sign(content)
        return self._signature[1]
