"""A peer as a process: its folder, its data, its running_peer, and a clean end when it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import itertools
import logging
import signal
import sqlite3
import time
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from peerbayes.data import sources
from peerbayes.errors import NeedsPerson, PeerbayesError, PeerError, RefusedMessage, SourceError
from peerbayes.peer.agreement.private_agreement import refuse_values
from peerbayes.peer.erasing import erasures, kept, needed_columns
from peerbayes.peer.greeter import Greeter
from peerbayes.peer.identity.roster import OUTBOUND, Roster
from peerbayes.peer.inspection import exposure
from peerbayes.peer.learning import kept_rows
from peerbayes.peer.learning.held_out import Table, held_out, split_key
from peerbayes.peer.learning.kept_rows import RunRows, erased_so_far
from peerbayes.peer.learning.verdict import Verdict
from peerbayes.peer.models.card import recorded
from peerbayes.peer.models.history import History
from peerbayes.peer.protocol import connections
from peerbayes.peer.protocol.connections import Spare
from peerbayes.peer.protocol.renewals import Renewals
from peerbayes.peer.protocol.session import Membership, Session, idle_session
from peerbayes.peer.protocol.transport import Links
from peerbayes.peer.renewing import renewals_of
from peerbayes.peer.running_peer import RunningPeer
from peerbayes.peer.runs.new_rows import remember
from peerbayes.peer.state.audit_log import LEFT, AuditLog, Log, Tail
from peerbayes.peer.state.disk import WAITING, Lock, Room, is_scarce, lock, running
from peerbayes.peer.state.folder import Home, Peer, leave_command
from peerbayes.peer.state.ledger import (
    RESERVED,
    give_back,
    on_rows,
    refuse_broken,
    refuse_overspent,
    reserve,
)
from peerbayes.peer.state.links_file import publish_links
from peerbayes.peer.state.store import NoState, Store
from peerbayes.peer.status import LINES, UNREACHED, Journal, warnings_of
from peerbayes.peer.tasks import BackgroundTasks, TaskFailed
from peerbayes.privacy.exposure import WORDS

__all__ = ["Stopped", "lock", "running", "serve", "set_aside", "tables_of"]

log = logging.getLogger("peerbayes.peer")

T = TypeVar("T")

LEAVE_TIMEOUT = 5.0  # seconds for a neighbour to hear that this peer leaves
COMES_BACK = 12.0  # the same for one that is outbound: it calls this peer every few seconds
FLUSH = 1.0  # seconds between two writes of what happened
WATCH = 0.5  # seconds between two looks at the roster in the folder
SETTLED = (
    2 * 10**9
)  # nanoseconds: a file changed less long ago may change again without its status showing it
ALONE = 60.0  # seconds after which a peer that nobody has called warns about it


def tables_of(peer: Peer) -> tuple[Table, Table | None]:
    """Return the peer's features and labels as named in the agreement: for training, and held out; none is erased."""
    terms, settings = peer.terms, peer.settings
    requests = erasures(peer.folder)
    columns = list(dict.fromkeys((*terms.features, terms.label, *needed_columns(requests))))
    try:
        read = sources.read(settings.data, settings.query, columns if terms.features else (), terms.texts)
    except SourceError as error:
        if not requests:
            raise
        names = ", ".join(map(repr, needed_columns(requests)))
        raise SourceError(
            f"{error}. Rows were erased by {names}: without, nobody could tell if they are back"
        ) from error
    read = kept(read, peer.folder, requests)
    rows = sources.labelled(read, terms.label, terms.features)
    if terms.privacy.epsilon is not None:
        # all of them, also the held-out rows, which are used only once the run is under way
        refuse_values(*rows, terms)
    return held_out(*rows, settings.hold_out, split_key(peer.folder) if settings.hold_out else b"")


def rows_of_run(home: Home, peer: Peer) -> RunRows:
    """Return the rows with which a run goes on: those that it began with, where they are kept, or those of now."""
    so_far = erased_so_far(home)
    with contextlib.suppress(NoState), contextlib.closing(Store(home.state_path, readonly=True)) as store:
        if (digest := store.value("data")) is not None and (read := kept_rows.kept(home, digest)) is not None:
            return RunRows(*read, so_far)
    return RunRows(*tables_of(peer), so_far)


def claimed(home: Home, run_rows: RunRows) -> None:
    """Keep the rows of a run, and remember which they are, once it is sure that it learns from them."""
    if not run_rows.keep(home):
        log.warning("its rows are not kept: once the data has others, it cannot go on after a restart")
    remember(home, *run_rows.rows)


def on_rows_of(home: Home, facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what all runs over the rows have spent, where this one, by its facts, spends anything."""
    return None if facts["privacy"] is None else on_rows(home, facts["privacy"]["delta"])


@dataclass(frozen=True)
class Stopped:
    """How a run ended."""

    done: bool
    round: int
    by: int | None = None
    """The signal that stopped it."""
    verdict: Verdict | None = None
    """The verdict on a completed run."""


async def serve(home: Home, linger: float, process_lock: Lock | None = None) -> Stopped:
    """Run the peer of a folder until it is done, or until SIGTERM or SIGINT. `process_lock` shows its phase."""
    peer = home.load()
    refuse_broken(home.state_path, home.audit_path)
    refuse_overspent(home, peer)
    run_rows = rows_of_run(home, peer)
    (frame, labels), away = run_rows.rows, run_rows.away
    reserve(home, peer)
    connections.raise_limit()
    spare = Spare()
    store = await opened_store(home, process_lock)
    journal, audit = Journal(store), AuditLog(home.audit_path)
    transport = Links(peer, journal.refused)

    def renewals(session: Session) -> Renewals:
        tell = lambda text: journal("renewal", {"text": text})  # noqa: E731
        return renewals_of(home, peer, session, transport.renew, tell)

    running_peer = RunningPeer(
        Membership(peer.name, peer.terms, peer.roster, home.roster_path.read_bytes()),
        frame, labels, store, transport, audit,
        model=home.model_path, newer=lambda signed: spare.run(lambda: keep_roster(home, signed)), on_event=journal,
        linger=linger, away=away, renewals=renewals,
        share_figures=peer.settings.share_figures,
        claimed=lambda: claimed(home, run_rows),
        record=lambda **facts: recorded(History(home.folder), on_rows=on_rows_of(home, facts), **facts),
    )  # fmt: skip
    if store.last() is None:  # once a run, before anything leaves
        for alarm in exposure(peer, labels).alarms():
            journal("exposed", {"alarm": f"{alarm}. {WORDS}"})
    for warning in warnings_of(home, peer):
        journal("warning", {"warning": warning})
    gc.freeze()  # modules and the table stay to the end: the garbage collector need not look at them again
    work = asyncio.ensure_future(running_peer.run())
    background = BackgroundTasks(work)
    background.add(
        "the watch of the roster in the folder", lambda: _watch(home, journal, running_peer, spare)
    )
    if (renewing := running_peer.renewing) is not None:
        background.add(
            "the renewal of certificates", lambda: renewing.run(lambda: running_peer.session.neighbours)
        )
    background.add(
        "the writing of what happens", lambda: flush_run(home, journal, running_peer, process_lock)
    )
    session = running_peer.session
    background.add(
        "the list of links",
        lambda: publish_links(home, lambda: session.roster.neighbours(peer.name), transport.kind_of),
    )
    caught: list[int] = []
    with stopped_by_signals(work, caught):
        try:
            await work
            kept_rows.forget(home)
            return Stopped(True, running_peer.session.round_index, verdict=running_peer.verdict)
        except asyncio.CancelledError:
            if background.failed is not None:
                raise background.failed from None
            if not caught:
                raise
            return Stopped(False, running_peer.session.round_index, caught[0])
        except Exception:
            give_back(home, peer)
            raise
        finally:
            await background.stop()
            spare.close()
            close_run(journal, running_peer)


async def opened_store(home: Home, process_lock: Lock | None) -> Store:
    """Open the store, once the disk has room for it."""

    def tell(event: str) -> None:
        log.warning(LINES[event])
        if process_lock is not None:
            process_lock.tell(WAITING if event == "disk full" else "starting")

    return await Room(tell).until("store", lambda: Store(home.state_path), in_thread=False)


def close_run(journal: Journal, running_peer: RunningPeer) -> None:
    """Write the last notes and close; errors here must not hide why the peer stops."""

    def last_notes() -> None:
        journal.flush(running_peer.session.neighbour_states, running_peer.session.waiting)
        running_peer.store.keep(UNREACHED, "")
        running_peer.session.room.clear_all()  # a run may end before the regular flush notices that there is room again

    for write in (last_notes, running_peer.audit.close, running_peer.store.close):
        try:
            write()
        except Exception as error:
            if not running_peer.session.room.note("end", error):
                log.warning(f"the last notes could not be written: {type(error).__name__}: {error}")


def keep_roster(home: Home, signed: bytes) -> Roster:
    """Return a valid roster, and store it if it is newer than the one on disk."""
    return home.keep_roster(signed) or Roster.verified(signed, home.authority_path.read_bytes())


async def _watch(home: Home, journal: Journal, running_peer: RunningPeer, spare: Spare) -> None:
    """Adopt a roster that its owner put into the folder with `join`."""
    refused, seen = b"", None
    while True:
        await asyncio.sleep(WATCH)
        file_status = home.roster_path.stat()
        stamp = file_status.st_ino, file_status.st_size, file_status.st_mtime_ns
        if stamp == seen and time.time_ns() - file_status.st_mtime_ns > SETTLED:
            continue
        seen = stamp
        signed = await asyncio.to_thread(spare.run, home.roster_path.read_bytes)
        if signed in (running_peer.session.signed, refused):
            continue
        try:
            await running_peer.adopt_offered(signed)
        except RefusedMessage as error:
            refused = signed  # reported once
            journal.refused("this folder", error.reason, str(error))


async def flush_run(
    home: Home, journal: Journal, running_peer: RunningPeer, process_lock: Lock | None
) -> None:
    """Write the journal and the peer's phase regularly."""
    room, began, last_warning = running_peer.session.room, time.monotonic(), None
    while True:
        await asyncio.sleep(FLUSH)
        if process_lock is not None:
            process_lock.tell(running_peer.session.phase)
        with room.noting("journal"):
            await asyncio.to_thread(running_peer.remember)
            session = running_peer.session
            await asyncio.to_thread(journal.flush, dict(session.neighbour_states), session.waiting)
            unreached = running_peer.unreached() if time.monotonic() - began > ALONE else ""
            if unreached != last_warning:
                await asyncio.to_thread(running_peer.store.keep, UNREACHED, unreached)
                last_warning = unreached
                if unreached:
                    journal("warning", {"warning": unreached})
        if room.full and not is_scarce(home.folder):  # failed replies are retried when others ask again
            room.clear("request", "audit")


@contextlib.contextmanager
def stopped_by_signals(work: asyncio.Future[Any], caught: list[int]) -> Iterator[None]:
    """Cancel the work at SIGTERM and SIGINT; the state is always on disk."""
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        caught.append(number)
        work.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def until_stopped(work: Awaitable[T]) -> tuple[int | None, T | None]:
    """Return the result of some work, or else the signal, SIGTERM or SIGINT, that stopped it."""
    task, caught = asyncio.ensure_future(work), list[int]()
    with stopped_by_signals(task, caught):
        try:
            return None, await task
        except asyncio.CancelledError:
            if not caught:
                raise
            return caught[0], None


async def announce_leave(peer: Peer) -> dict[str, str]:
    """Tell every neighbour that this peer leaves, so that they do not wait; return the outcome of each, by name."""

    async def announce(name: str) -> str:
        outbound = peer.roster.member(name).address == OUTBOUND
        try:
            reply = await session.ask(
                name, session.request(name, "leave"), COMES_BACK if outbound else LEAVE_TIMEOUT
            )
        except PeerError as error:
            return f"not told: {error}; it waits for its deadline each round"
        return "told" if reply.status == "ok" else f"refused: {reply.reason}"

    async with idle_session(peer) as session:
        names = peer.roster.present(peer.name)
        with contextlib.suppress(
            PeerError
        ):  # somebody else has the port: neighbours that are outbound are not told
            await session.transport.serve(Greeter(session).answer)
        return dict(zip(names, await asyncio.gather(*map(announce, names)), strict=True))


def set_aside(home: Home) -> Path | None:
    """Move the state of a run aside, so that another can begin; return its new path. The audit log records it first."""
    state, start = None, 0
    if home.state_path.exists():
        with contextlib.closing(Store(home.state_path)) as store:
            store.flush()
            state, start = store.value("state"), int(store.value("starts") or 0)
    _log_left(home, state, start)
    (home.records / RESERVED).unlink(missing_ok=True)
    kept_rows.forget(home)
    if not home.state_path.exists():
        return None
    target = _free(home, "state.left-{}.sqlite")
    home.state_path.replace(target)
    return target


def _log_left(home: Home, state: str | None, start: int) -> None:
    """Log that the run of this state, and of states that are lost, is given up; a damaged log is set aside."""
    try:
        states = Log.of(Tail(home.audit_path)).states
    except PeerError:
        states = {}
        home.audit_path.replace(_free(home, "audit.left-{}.jsonl"))
    abandoned = {name: entry.start for name, entry in states.items() if entry.committed and not entry.left}
    if state is not None:
        abandoned[state] = max(start, abandoned.get(state, 0))
    if not abandoned:
        return
    with contextlib.closing(AuditLog(home.audit_path)) as audit:
        for name, last in abandoned.items():
            audit.add("", LEFT, 0, b"", state=name, start=last)  # the next state counts on from there


def _free(home: Home, pattern: str) -> Path:
    """Return the first free path of a numbered pattern."""
    paths = (home.records / pattern.format(number) for number in itertools.count(1))
    return next(path for path in paths if not path.exists())


# --- errors that need a person: reported in one sentence, with exit code 2, so that no service restarts the peer

# System errors of files, and what to do about them.
OF_FILES = {
    errno.EACCES: "this user may not use it: give it to the user that runs the peer with `chown`, and see its mode",
    errno.EPERM: "this user may not use it: give it to the user that runs the peer with `chown`, and see its mode",
    errno.EROFS: "it is on a file system that is read-only: make that writable, or move the peer's folder",
    errno.ENOENT: "it does not exist: bring it back, or correct its name in peer.toml",
    errno.ENOTDIR: "a part of its path is not a folder: correct its name",
    errno.EISDIR: "it is a folder; expected a file: correct its name",
}

# The same for a state, by the error codes of SQLite; {leave} is the command that leaves its run.
OF_STATES = {
    sqlite3.SQLITE_READONLY: OF_FILES[errno.EROFS],
    sqlite3.SQLITE_CANTOPEN: OF_FILES[errno.EACCES],
    sqlite3.SQLITE_PERM: OF_FILES[errno.EACCES],
    sqlite3.SQLITE_CORRUPT: "it is damaged: leave the run with `{leave}`, and keep a copy",
    sqlite3.SQLITE_NOTADB: "it is damaged: leave the run with `{leave}`, and keep a copy",
}


@contextlib.contextmanager
def person_needed(folder: Path) -> Iterator[None]:
    """Turn errors that only a person can resolve into a `NeedsPerson` with a plain sentence."""
    try:
        yield
    except (NeedsPerson, TaskFailed):  # a failed task may succeed after a restart
        raise
    except PeerbayesError as error:  # peerbayes' own errors would occur again after a restart
        raise NeedsPerson(str(error)) from error
    except OSError as error:
        if (advice := OF_FILES.get(error.errno or 0)) is None:
            raise
        raise NeedsPerson(f"{error.filename or folder} cannot be used: {advice}") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None) or 0
        if (advice := OF_STATES.get(code & 0xFF)) is None:
            raise
        told = advice.format(leave=leave_command(folder))
        raise NeedsPerson(f"the state in {folder} cannot be used: {told}") from error
