"""`peerbayes peer check`: everything that can be checked before a run, with advice where a check fails."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from peerbayes.data import doctor
from peerbayes.data.files import printable
from peerbayes.data.sources.sql import mixes_rows
from peerbayes.errors import PeerbayesError, PeerError, RefusedMessage
from peerbayes.peer.agreement.private_agreement import refuse_rows
from peerbayes.peer.agreement.summary import OwnTable, Summary
from peerbayes.peer.greeter import Greeter
from peerbayes.peer.identity.roster import OUTBOUND, RELAY, listens
from peerbayes.peer.inspection import exposure
from peerbayes.peer.learning.masks import groups, refuse_thin
from peerbayes.peer.protocol.session import Session, idle_session
from peerbayes.peer.protocol.transport import Unreachable, listening_problem
from peerbayes.peer.service import tables_of
from peerbayes.peer.state.disk import running
from peerbayes.peer.state.folder import Home, Peer
from peerbayes.peer.state.ledger import refuse_broken, refuse_overspent, spent
from peerbayes.peer.state.links_file import NONE, links_of
from peerbayes.peer.state.store import NoState, Store
from peerbayes.peer.status import warnings_of
from peerbayes.privacy.accounting import Privacy
from peerbayes.privacy.exposure import WORDS


@dataclass(frozen=True)
class Check:
    """One finding: ok, advice, or a problem that keeps the peer from running."""

    what: str
    outcome: str  # "ok", "warning" or "failed"
    told: str


def checks(home: Home) -> Iterator[Check]:
    """Yield all findings, one after the other; those that depend on a failed one are left out."""
    try:
        peer = home.load()
    except PeerbayesError as error:
        yield Check("identity", "failed", str(error))
        return
    yield Check("identity", "ok", f"{peer.name} in {peer.terms.network}, roster {peer.roster.version}")
    if not peer.roster.closed:
        yield Check("roster", "warning", f"still open with {len(peer.roster.members)} members: a run waits until the "
                    "founder closes it")  # fmt: skip
    if peer.terms.privacy.secure_sum and peer.roster.closed:
        yield _group(peer)
    yield from _record(home)
    yield from _data(home, peer)
    for warning in warnings_of(home, peer):
        yield Check("folder", "warning", warning)
    yield _port(home, peer)
    yield from asyncio.run(_neighbours(home, peer, runs=running(home)))


def _record(home: Home) -> Iterator[Check]:
    """Check that the state and the audit log belong together; not while the peer runs, since both grow."""
    if running(home) or not (home.state_path.exists() or home.audit_path.exists()):
        return
    try:
        refuse_broken(home.state_path, home.audit_path)
    except PeerbayesError as error:
        yield Check("state and audit log", "failed", str(error))
    else:
        yield Check("state and audit log", "ok", "belong together")


def _data(home: Home, peer: Peer) -> Iterator[Check]:
    """Check the rows, and report what neighbours could learn of them, or what privacy they are promised."""
    private = peer.terms.privacy.promise
    try:
        (frame, labels), away = tables_of(peer)
        if private is None:
            table = OwnTable.of(frame, labels, peer.terms)
            description = _described(table.summary(peer.name)) + _silent(table.schema.silent)
        else:
            refuse_rows(frame, labels, peer.terms)
            refuse_overspent(home, peer)
            if peer.roster.closed:
                refuse_thin(peer.roster, private)
            description = (
                f" as the agreement describes them: {len(peer.terms.features)} features, "
                f"{len(peer.terms.classes)} classes"
            )
    except (PeerbayesError, ValueError, TypeError) as error:
        yield Check("data", "failed", str(error))
        return
    tested = f"; {len(away[1]):,} more rows to test on" if away else ""
    yield Check("data", "ok", f"{len(frame):,} rows{description}{tested}")
    yield from _findings(frame, labels, peer)
    if private is not None:
        yield from _promised(home, peer, private)
        return
    for alarm in exposure(peer, labels).alarms():
        yield Check("privacy", "warning", f"{alarm}. {WORDS}")


def _findings(frame: Any, labels: Any, peer: Peer) -> Iterator[Check]:
    """Warn of what the table says otherwise than it seems, as `peerbayes check` does; examples stay on this machine."""
    for finding in doctor.check(frame, labels, kinds=dict(peer.terms.features) or "auto"):
        if finding.severity != "note":
            subject = "table" if finding.column is None else f"column {printable(finding.column)}"
            yield Check(subject, "warning", f"{finding.name}: {printable(finding.seen)}. {finding.advice}")


def _described(summary: Summary) -> str:
    columns = list(summary.columns.items())
    kinds = ", ".join(f"{name} {next(iter(column.kinds))}" for name, column in columns[:8])
    more = ", …" if len(columns) > 8 else ""
    return f", {len(columns)} features ({kinds}{more}), {len(summary.classes)} classes"


def _silent(columns: dict[str, str]) -> str:
    """Return which columns say nothing here: they may vary at other peers."""
    shown = ", ".join(f"{name} is {reason}" for name, reason in list(columns.items())[:8])
    return f"; {shown}{', …' if len(columns) > 8 else ''}" if columns else ""


def _promised(home: Home, peer: Peer, promise: Privacy) -> Iterator[Check]:
    """Report what privacy the rows are promised, and what is spent of it."""
    if peer.settings.query is not None and (word := mixes_rows(peer.settings.query)) is not None:
        yield Check(
            "query", "warning",
            f"it says {word}: where one record changes several rows of the result, the promise is about rows and not "
            "about records. Make each row from one record",
        )  # fmt: skip
    budget = spent(home, peer)
    assert budget is not None
    before = budget["with_earlier_runs"]
    yield Check(
        "privacy", "ok",
        f"whatever leaves has noise: nobody learns more about one row than epsilon {promise.epsilon:g} (delta "
        f"{promise.delta:g}) allows; {budget['spent']:.4g} is spent"
        + (f", {before:.4g} with other runs on these rows" if before is not None else ""),
    )  # fmt: skip
    if budget["in_all"] > promise.epsilon * (1 + 1e-9):
        yield Check(
            "privacy", "warning",
            f"with other runs on these rows epsilon will be {budget['in_all']:.4g} in total, more than this network "
            f"promises; epsilon under [require] in {home.settings_path} sets a limit",
        )  # fmt: skip


def _group(peer: Peer) -> Check:
    group = groups(peer.roster).get(peer.name)
    if group is None:
        others = ", ".join(peer.roster.present(peer.name)) or "nobody"
        return Check(
            "secure sums", "failed",
            f"too few neighbours are left to sum: linked to {others}, each of whom needs three as well. Found a new "
            "network",
        )  # fmt: skip
    return Check("secure sums", "ok", f"a group of {len(group)}: {', '.join(group)}")


def _port(home: Home, peer: Peer) -> Check:
    listen = peer.settings.listen
    if not listen:
        return Check("port", "ok", f"none is needed: its address is {peer.settings.address}")
    if running(home):
        return Check("port", "ok", f"{listen} is in use by this peer, which runs")
    problem = listening_problem(listen)
    return Check("port", "ok", f"{listen} is free") if problem is None else Check("port", "failed", problem)


# --- check whether a peer and its neighbours reach each other, in both directions
# Outwards, this peer sends hello. Inwards, it asks each neighbour that answers to call back; while no process runs
# in the folder, it listens for that itself, and answers nothing but hello. While one runs, that one has the links: it
# says in the folder of which kind they are, and a neighbour that only dials out calls that one and nobody else.

CLOCK_TOLERANCE = 60.0  # seconds that two clocks may differ, for certificates and logs
HELLO_TIMEOUT = 5.0  # seconds for a neighbour to answer
COMES_TIMEOUT = 12.0  # the same for one that is outbound: it calls every few seconds
LINK_TIMEOUT = 6.0  # seconds for the process that runs to be linked, and to say so
CALL_BACK_TIMEOUT = 12.0  # seconds for a neighbour to call back


async def _neighbours(home: Home, peer: Peer, runs: bool) -> list[Check]:
    """Return the checks of each neighbour; `runs`: a process of this peer is already serving."""
    async with idle_session(peer) as session:
        serves = runs
        if not runs:
            with contextlib.suppress(PeerError):  # the port is in use: that is a finding of its own
                await session.transport.serve(Greeter(session).answer)
                serves = True
        found = [] if runs else await _at_relay(session)
        names = peer.roster.present(peer.name)
        at_work = home if runs else None
        findings = await asyncio.gather(*(_both_ways(session, name, serves, at_work) for name in names))
    return [*found, *(check for checks in findings for check in checks)]


async def _at_relay(session: Session) -> list[Check]:
    """Return the check of whether this peer waits at its relay, where it has one; neighbours call it there."""
    address = session.roster.member(session.name).address
    if not address.startswith(RELAY):
        return []
    if problem := await session.transport.relay_problem():
        return [Check("relay", "warning", f"the relay {problem}. A run waits for it")]
    return [Check("relay", "ok", f"this peer waits at {address.removeprefix(RELAY)}")]


# How a neighbour is linked, in words.
WAYS = {
    "direct": "direct: over a connection that this peer opened",
    "reversed": "reversed: over a connection that it opened",
    "relayed": "relayed: by way of a relay, which cannot read what passes",
}


async def _both_ways(session: Session, name: str, listening: bool, at_work: Home | None) -> list[Check]:
    """Return the checks of a neighbour; `at_work`: the folder, where a process runs in it."""
    if at_work is not None and session.roster.member(name).address == OUTBOUND:
        return await _of_running(at_work, name)
    outward, answers = await _outward(session, name, at_work)
    return [outward, await _inward(session, name)] if answers and listening else [outward]


async def _of_running(home: Home, name: str) -> list[Check]:
    """Return the checks of a neighbour that calls the process that runs, and nobody else."""
    kind = await _linked(home, name)
    if note := _noted(home, name):  # such as that it speaks no version of the protocol that this peer does
        return [Check(f"neighbour {name}", "warning", printable(note))]
    if kind in WAYS:
        linked = Check(f"neighbour {name}", "ok", f"this peer's process is linked to it; {WAYS[kind]}")
        return [linked, Check(f"reached by {name}", "ok", "over the connection that it opened")]
    if kind is None:
        return [
            Check(
                f"neighbour {name}", "warning", "not known: this peer's process does not say how it is linked"
            )
        ]
    problem = f"{name} opens the connections to its neighbours itself, and has none to this peer now"
    return [Check(f"neighbour {name}", "warning", f"{problem}. A run waits for it")]


def _noted(home: Home, name: str) -> str:
    """Return what the process that runs has noted of a neighbour beyond its link; "": nothing."""
    with contextlib.suppress(NoState), contextlib.closing(Store(home.state_path, readonly=True)) as store:
        note = str(store.neighbours().get(name, {}).get("note") or "")
        return "" if note.startswith(f"{name} ") and "connection" in note else note
    return ""


async def _linked(home: Home, name: str) -> str | None:
    """Return how the process that runs is linked to a neighbour, which may take it a moment; None: it does not say."""
    until = time.monotonic() + LINK_TIMEOUT
    while True:
        found = links_of(home)
        kind = None if found is None else found.get(name, NONE)
        if kind not in (None, NONE) or time.monotonic() > until:
            return kind
        await asyncio.sleep(0.2)


async def _outward(session: Session, name: str, at_work: Home | None) -> tuple[Check, bool]:
    """Return the check of a hello, and whether the neighbour answers this peer."""
    subject = f"neighbour {name}"
    roster, began = session.roster, time.time()
    try:
        seconds = COMES_TIMEOUT if roster.member(name).address == OUTBOUND else HELLO_TIMEOUT
        reply = await session.ask(name, session.request(name, "hello"), seconds)
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
    if reply.roster == roster.version and reply.roster_digest != roster.digest:
        return Check(
            subject, "failed",
            f"it has another roster {reply.roster} than this peer: compare both with `peerbayes network inspect`, and "
            "ask the founder which one counts",
        ), True  # fmt: skip
    if reply.run != roster.run:
        rosters = f"it has roster {reply.roster}, this peer {roster.version}"
        return Check(subject, "warning", f"{rosters}; the newer one is passed on during the run"), True
    kind = session.transport.kind_of(name) if at_work is None else await _linked(at_work, name)
    answers = f"answers in {1000 * took:.0f} ms, round {reply.done}"
    if kind == NONE and at_work is not None:
        problem = "it answers this check, and this peer's process has no link to it now: the log says why"
        return Check(subject, "warning", f"{answers}; {problem}"), True
    return Check(subject, "ok", f"{answers}; {WAYS[kind]}" if kind in WAYS else answers), True


async def _inward(session: Session, name: str) -> Check:
    """Return the check of whether a neighbour reaches this peer at its address in the roster."""
    subject, address = f"reached by {name}", session.roster.member(session.name).address
    if address == OUTBOUND:
        return Check(subject, "ok", "over the connection that this peer opens: it is outbound")
    try:
        reply = await session.ask(name, session.request(name, "call back"), CALL_BACK_TIMEOUT)
    except PeerError as error:
        return Check(subject, "warning", f"not known: {printable(str(error))}")
    if reply.status != "ok":
        return Check(subject, "warning", f"not known: it does not call back now ({printable(reply.reason)})")
    if reply.reason:
        return Check(
            subject, "warning",
            f"{name} cannot reach this peer at {address}. Its error: {printable(reply.reason)}. It hears this peer "
            f"over the connection that this peer opens. {_advice(address)}",
        )  # fmt: skip
    return Check(subject, "ok", f"at {address}")


def _advice(address: str) -> str:
    """Return what to do where neighbours cannot reach this peer at its address."""
    if not listens(address):
        return "See that the relay runs, and that this peer's own process does"
    return (
        f"Open TCP port {address.rpartition(':')[2]} inwards in this machine's firewall and forward it at the router, "
        "or have the address corrected (`peerbayes network invite --again`): to outbound, if nobody can reach it"
    )
