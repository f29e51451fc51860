"""Whether neighbours can be reached, and can reach this peer; leaving the network."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from peerbayes.data.files import printable
from peerbayes.errors import PeerError, RefusedMessage
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.server import Server
from peerbayes.peer.protocol.session import Membership, Session
from peerbayes.peer.protocol.transport import Barred, Grpc, Unreachable
from peerbayes.peer.protocol.wire import Reply, Request
from peerbayes.peer.state.folder import Peer

# --- one finding of `peerbayes peer check`


@dataclass(frozen=True)
class Check:
    """One finding: ok, advice, or a problem that keeps the peer from running."""

    what: str
    outcome: str  # "ok", "warning" or "failed"
    told: str


# --- check before a run whether a peer and its neighbours reach each other, in both directions
# Outwards, this peer sends hello. Inwards, it asks each neighbour that answers to call back; while no process runs
# in the folder, it listens for that itself, and answers nothing but hello.

CLOCK_TOLERANCE = 60.0  # seconds that two clocks may differ, for certificates and logs
HELLO_TIMEOUT = 5.0  # seconds for a neighbour to answer
CALL_BACK_TIMEOUT = 12.0  # seconds for a neighbour to call back


async def neighbours(peer: Peer, runs: bool) -> list[Check]:
    """Return the checks of each neighbour; `runs`: a process of this peer is already serving."""
    async with _transport(peer, listen=not runs) as (transport, listening):
        names = peer.roster.present(peer.name)
        checks_by_neighbour = await asyncio.gather(
            *(_both_ways(peer, transport, name, listening or runs) for name in names)
        )
    return [check for checks in checks_by_neighbour for check in checks]


@contextlib.asynccontextmanager
async def _transport(peer: Peer, listen: bool) -> AsyncIterator[tuple[Grpc, bool]]:
    """Open a transport; yield it and whether this peer listens."""
    transport = Grpc(peer, lambda caller, reason, detail: None)
    try:
        if listen:
            try:
                await transport.serve(_Hello(peer, transport).answer)
            except PeerError:  # the port is in use: that is a finding of its own
                listen = False
        yield transport, listen
    finally:
        await transport.close()


class _Nothing:
    """A stand-in for the components that a peer that does not run lacks: sums, messages, evidence."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: Any, **__: Any) -> None:
        return None


async def _ignored(signed: bytes) -> None:
    """Adopt no roster: a check changes nothing."""


class _Hello:
    """Answers as a peer whose run has not begun."""

    def __init__(self, peer: Peer, transport: Grpc) -> None:
        nothing: Any = _Nothing()
        self._session = Session(Membership(peer.name, peer.terms, peer.roster), lambda event, facts: None)
        self._server = Server(
            self._session, nothing, nothing, nothing, nothing, transport, nothing, _ignored, nothing
        )

    async def answer(self, caller: str, content: bytes) -> bytes:
        """Return the reply to a neighbour's request during the check."""
        try:
            request = wire.request_in(content, self._session.versions)
        except RefusedMessage:
            return await self._server.answer(caller, content)
        if request.kind not in ("leave", "roster"):
            return await self._server.answer(caller, content)
        roster = self._session.roster  # nothing would be stored: the neighbour has to send it again
        return wire.encode(
            Reply(
                **self._session.reply_version(request), run=roster.run, sender=self._session.name, kind=request.kind,
                status="not yet", reason="only a check runs here now; say it again later", phase=request.phase,
                round_index=request.round_index, roster=roster.version, roster_digest=roster.digest, clock=time.time(),
            )
        )  # fmt: skip


def _greeting(peer: Peer, kind: wire.Kind) -> Request:
    """Return a request of a peer that does not run, and does not know which versions its neighbours speak."""
    roster = peer.roster
    return Request(
        **wire.SPOKEN.fields(), run=roster.run, sender=peer.name, kind=kind, roster=roster.version,
        roster_digest=roster.digest,
    )  # fmt: skip


async def _both_ways(peer: Peer, transport: Grpc, name: str, listening: bool) -> list[Check]:
    outward, answers = await _outward(peer, transport, name)
    return [outward, await _inward(peer, transport, name)] if answers and listening else [outward]


async def _outward(peer: Peer, transport: Grpc, name: str) -> tuple[Check, bool]:
    """Return the check of a hello, and whether the neighbour answers this peer."""
    subject = f"neighbour {name}"
    request = _greeting(peer, "hello")
    began = time.time()
    try:
        reply = wire.reply_in(await transport.ask(name, wire.encode(request), HELLO_TIMEOUT), request, name)
    except Barred as error:
        return Check(subject, "failed", printable(str(error))), False
    except Unreachable as error:
        return Check(subject, "warning", f"{error}. A run waits for it"), False
    except RefusedMessage as error:
        return Check(subject, "failed", f"{error.reason}: {printable(str(error))}"), False
    took = time.time() - began
    if reply.status == "refused":
        return Check(subject, "failed", f"it refuses this peer: {printable(reply.reason)}"), False
    clock_offset = reply.clock - (began + took / 2)
    if abs(clock_offset) > CLOCK_TOLERANCE + took:
        return Check(
            subject, "warning", f"its clock is {clock_offset:+.0f} s from this one; set both by NTP"
        ), True
    if reply.roster == peer.roster.version and reply.roster_digest != peer.roster.digest:
        return Check(
            subject, "failed",
            f"it has another roster {reply.roster} than this peer: compare both with `peerbayes network inspect`, and "
            "ask the founder which one counts",
        ), True  # fmt: skip
    if reply.run != peer.roster.run:
        rosters = f"it has roster {reply.roster}, this peer {peer.roster.version}"
        return Check(subject, "warning", f"{rosters}; the newer one is passed on during the run"), True
    return Check(subject, "ok", f"answers in {1000 * took:.0f} ms, round {reply.done}"), True


async def _inward(peer: Peer, transport: Grpc, name: str) -> Check:
    """Return the check of whether a neighbour reaches this peer at its address in the roster."""
    subject, address = f"reached by {name}", peer.roster.member(peer.name).address
    request = _greeting(peer, "call back")
    try:
        reply = wire.reply_in(
            await transport.ask(name, wire.encode(request), CALL_BACK_TIMEOUT), request, name
        )
    except PeerError as error:
        return Check(subject, "warning", f"not known: {printable(str(error))}")
    if reply.status != "ok":
        return Check(subject, "warning", f"not known: it does not call back now ({printable(reply.reason)})")
    if reply.reason:
        return Check(
            subject, "failed",
            f"{name} cannot reach this peer at {address}, so nobody there hears it. Its error: "
            f"{printable(reply.reason)}. Open TCP port {address.rpartition(':')[2]} inwards in this machine's firewall "
            "and forward it at the router, or have the address corrected (`peerbayes network invite --again`)",
        )  # fmt: skip
    return Check(subject, "ok", f"at {address}")


# --- leaving a run: tell the neighbours, so that they do not wait


async def announce_leave(peer: Peer) -> dict[str, str]:
    """Tell every neighbour that this peer leaves; return the outcome of each, by name."""
    transport = Grpc(peer, lambda who, reason, detail: None)
    request = _greeting(peer, "leave")

    async def tell(name: str) -> str:
        try:
            reply = wire.reply_in(await transport.ask(name, wire.encode(request), 5.0), request, name)
        except PeerError as error:
            return f"not told: {error}; it waits for its deadline each round"
        return "told" if reply.status == "ok" else f"refused: {reply.reason}"

    try:
        names = peer.roster.present(peer.name)
        return dict(zip(names, await asyncio.gather(*map(tell, names)), strict=True))
    finally:
        await transport.close()
