"""A site: one process for all runs of an owner's networks.

It keeps rosters, proposals and approvals the same as its neighbours', approves what a standing consent covers, proposes
what a schedule says, starts every run that everybody approved, and answers the neighbours of every run over one port.
Nothing of this is in memory alone: after a restart it goes on from the files in the folder.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from peerbayes.errors import IdentityError, NeedsPerson, PeerbayesError, RefusedMessage, TwoRosters
from peerbayes.peer import service, tasks
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.inspection import exposure
from peerbayes.peer.learning.kept_rows import RunRows
from peerbayes.peer.models.card import recorded
from peerbayes.peer.models.history import History, Version
from peerbayes.peer.protocol import connections
from peerbayes.peer.protocol.connections import Spare
from peerbayes.peer.protocol.session import Membership, Session
from peerbayes.peer.protocol.transport import Links
from peerbayes.peer.renewing import renewals_of
from peerbayes.peer.running_peer import RunningPeer
from peerbayes.peer.runs.book import BEGINS, ENDED, RunEntry, Runs
from peerbayes.peer.runs.exchange import Exchange
from peerbayes.peer.runs.new_rows import NewRows
from peerbayes.peer.runs.routing import Router
from peerbayes.peer.runs.timetable import FILE as SCHEDULE
from peerbayes.peer.runs.timetable import Schedule
from peerbayes.peer.state.audit_log import AuditLog
from peerbayes.peer.state.disk import Lock
from peerbayes.peer.state.folder import Home, Peer
from peerbayes.peer.state.ledger import give_back, refuse_broken, refuse_overspent, reserve
from peerbayes.peer.state.same_rows import undeclared
from peerbayes.peer.status import Journal, untested, warnings_of
from peerbayes.peer.tasks import BackgroundTasks
from peerbayes.privacy.exposure import WORDS

log = logging.getLogger("peerbayes.peer")

LOOK = 0.5  # seconds between two looks at the folder
LOOK_AGAIN = 10.0  # seconds after which runs are looked at though no file has changed: proposals expire
SERVING = "serving"  # what the phase of a site begins with, in the folder's lock

LABEL: ContextVar[str] = ContextVar("LABEL", default="")
"""Which run log lines are about: "run 2: "."""


@dataclass(eq=False)
class ActiveRun:
    """A run that goes on in this process."""

    entry: RunEntry
    run: str
    """Its identity."""
    task: asyncio.Task[None]
    peer: RunningPeer | None = None
    """None: it is being prepared."""
    stopped: str = ""
    """Why the site stops it."""


@dataclass(eq=False)
class Site:
    """One network of an owner: its membership, and its runs."""

    home: Home
    linger: float = 3600.0
    """Seconds to keep answering neighbours that have not finished a run."""
    process_lock: Lock | None = None
    clock: Callable[[], float] = time.time
    beside: Sequence[Home] = ()
    """Folders of other networks that this process serves."""
    active: dict[int, ActiveRun] = field(default_factory=dict)

    async def serve(self) -> None:
        """Serve until it is cancelled; NeedsPerson where this peer may not go on."""
        peer = await asyncio.to_thread(self.home.member)
        self.runs = Runs(self.home.folder, self.clock)
        self._rows = NewRows(self.home.folder)
        self._spare, self._reading = Spare(), asyncio.Lock()
        self._seen: tuple[Any, ...] = ()
        self._looked, self._known = 0.0, list[RunEntry]()
        self._reported: set[str] = set()
        connections.raise_limit()
        transport = Links(peer, self._refused)
        self._transport = transport
        nothing = cast(Any, None)
        signed = self.home.roster_path.read_bytes()
        self.session = Session(
            peer.name, peer.terms, peer.roster, signed, nothing, transport, nothing, self._event
        )
        self.renewals = renewals_of(self.home, peer, self.session, transport.renew, log.info)
        self.exchange = Exchange(self.session, self.runs, self.adopt, self._waits, self.renewals)
        self.router = Router(transport, self.exchange.answer)
        for warning in (*warnings_of(self.home, peer), undeclared(self.home, self.beside)):
            if warning:
                log.warning(warning)
        for number in self.home.run_numbers():  # a person may have seen to what was wrong
            if (outcome := self.runs.outcome(number)) is not None and outcome.state == "failed":
                self.runs.reopen(number)
        task = asyncio.current_task()
        assert task is not None
        background = BackgroundTasks(task)
        await transport.serve(self.router.answer)
        background.add(
            "the renewal of certificates",
            lambda: self.renewals.run(lambda: self.session.roster.present(self.session.name)),
        )
        log.info(f"{peer.name} serves {peer.roster.network}; {len(peer.roster.members)} members")
        try:
            self.exchange.start()
            while True:
                await self.look()
                await self.session.changes.wait(LOOK)
        except asyncio.CancelledError:
            if background.failed is not None:
                raise background.failed from None
            raise
        finally:
            await self.exchange.stop()
            await self._stop_all()
            await background.stop()
            await transport.close()
            self._spare.close()

    # --- the membership -----------------------------------------------------------------------------------

    async def adopt(self, signed: bytes) -> None:
        """Adopt a newer roster of the authority, in the site and in all its runs."""
        async with self._reading:
            roster = await asyncio.to_thread(self._read, signed)
        if roster.version <= self.session.roster.version:
            return
        self.session.roster, self.session.signed = roster, signed
        self._transport.follow(roster)
        log.info(f"roster {roster.version} is in force")
        for active in self.active.values():
            if active.peer is not None:
                try:
                    active.peer.adopt(signed)
                except RefusedMessage as error:
                    self._refused("this network", error.reason, str(error))
        self.exchange.start()
        self._looked = 0.0
        self.session.changes.notify()

    def _read(self, signed: bytes) -> Roster:
        try:
            return self._spare.run(lambda: service.keep_roster(self.home, signed))
        except TwoRosters as error:
            raise RefusedMessage("two rosters", str(error)) from error
        except IdentityError as error:
            raise RefusedMessage("bad roster", str(error)) from error

    def _newer(self, signed: bytes) -> Roster:
        """Return a roster that a run was offered, and have the site adopt it too."""
        return self._spare.run(
            lambda: service.keep_roster(self.home, signed)
        )  # the site sees it in the folder

    async def _look_at_roster(self) -> None:
        signed = await asyncio.to_thread(self._spare.run, self.home.roster_path.read_bytes)
        if signed != self.session.signed:
            try:
                await self.adopt(signed)
            except RefusedMessage as error:
                self._refused("this folder", error.reason, str(error))
        if self.session.name in self.session.roster.revoked:
            raise NeedsPerson(
                f"{self.session.name} was revoked in {self.session.roster.network}, as roster "
                f"{self.session.roster.version} says; ask the founder"
            )

    # --- the runs -----------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Look at the folder once: adopt, approve, propose, start and stop what there is."""
        await self._look_at_roster()
        stamp = await asyncio.to_thread(self.runs.stamp)
        seen = (stamp, self.session.roster.version, tuple(self.active))
        if seen == self._seen and self.clock() - self._looked < LOOK_AGAIN:
            self._tell()
            return
        if seen[0] != (self._seen or (None,))[0]:
            self.session.changes.notify()  # whoever waits for documents
        self._seen, self._looked = seen, self.clock()
        entries = await asyncio.to_thread(self.runs.entries)
        self._known = entries
        for entry in entries:
            await self._consider(entry)
        await self._propose(entries)
        self._tell()

    async def _consider(self, entry: RunEntry) -> None:
        name, active = self.session.name, self.active.get(entry.number)
        if active is not None:
            if entry.state in ("declined", "ended"):
                self._stop(active, f"it was given up: {entry.sentence}")
            elif self._is_late(active):
                self._stop(active, "it did not begin its rounds before its proposal expired")
            return
        if name not in entry.participants:
            return
        if entry.state == "proposed" and entry.proposal is not None and name not in entry.decisions:
            await self._consent(entry)
        elif entry.state in ("approved", "running", "paused", "done"):
            if self.runs.outcome(entry.number) is None and self.session.roster.closed:
                self._start(entry)
        elif entry.state in ENDED and entry.proposal is not None:
            await asyncio.to_thread(self.runs.release, entry)

    def _is_late(self, active: ActiveRun) -> bool:
        """Return whether a run still waits for members though its proposal has expired."""
        proposal, peer = active.entry.proposal, active.peer
        return (
            proposal is not None
            and self.clock() > proposal.expires + BEGINS
            and peer is not None
            and peer.session.agreed is None
        )

    async def _consent(self, entry: RunEntry) -> None:
        """Approve a proposal that a standing consent covers; say once what stands in the way of another."""
        try:
            obstacles = await asyncio.to_thread(self.runs.obstacles, entry)
            if not obstacles:
                await asyncio.to_thread(self.runs.approve_standing, entry)
                log.info(f"run {entry.number} is approved by standing consent")
                self._looked = 0.0
                self.session.changes.notify()
                return
        except (PeerbayesError, OSError) as error:
            obstacles = [str(error)]
        assert entry.proposal is not None
        self._once(
            f"waits {entry.proposal.digest}",
            lambda: log.warning(
                f"run {entry.number}, proposed by {entry.proposal and entry.proposal.member}, waits for "
                f"`peerbayes run approve {entry.number}`: {'; '.join(obstacles)}"
            ),
        )

    async def _propose(self, entries: Sequence[RunEntry]) -> None:
        """Propose the next run where the schedule says so and no other one is under way."""
        last = entries[-1]
        if last.state in ("proposed", "approved", "running", "paused") or self.active:
            return
        try:
            schedule = await asyncio.to_thread(Schedule.read, self.home.folder / SCHEDULE)
            if schedule is None or self.session.name not in {
                member.name for member in self.session.roster.members
            }:
                return
            outcome = self.runs.outcome(last.number)
            began = last.proposal.at if last.proposal is not None else outcome.at if outcome else None
            if began is None:
                return
            share = None
            if schedule.new_rows is not None:
                done = [entry.number for entry in entries if entry.state == "done"]
                home = self.home.of_run(max(done, default=1))
                share = await asyncio.to_thread(
                    self._rows.share, done, lambda: service.tables_of(home.load())[0]
                )
                if share is None and done:
                    self._once(
                        "rows of no run",
                        lambda: log.warning(
                            "which rows are new is not known: no run that ended here remembered its rows. The next one "
                            "does; until then, only `every` proposes a run"
                        ),
                    )
            zone = datetime.now().astimezone().tzinfo
            now = datetime.fromtimestamp(self.clock(), zone)
            if reason := schedule.due(datetime.fromtimestamp(began, zone), now, share):
                warm = None if schedule.warm else False
                entry = await asyncio.to_thread(self.runs.propose, None, warm, by=reason)
                log.info(f"run {entry.number} is proposed by {reason}")
        except (PeerbayesError, OSError) as error:
            message = str(error)
            self._once(f"schedule {message}", lambda: log.warning(f"the next run is not proposed: {message}"))

    def _waits(self, run: str) -> bool:
        """Return whether a run is approved, or waits for approvals, and does not answer yet."""
        for entry in self._known:
            if entry.state not in ("proposed", "approved", "running", "paused") or entry.terms is None:
                continue
            try:
                if self._roster_of(entry).run == run:
                    return True
            except PeerbayesError:
                continue
        return False

    def _roster_of(self, entry: RunEntry) -> Roster:
        if entry.proposal is None or entry.terms is None:
            return self.session.roster.of_run()
        roster = self.runs.named_roster(entry.proposal.roster_digest)
        return roster.of_run(entry.number, entry.terms.digest)

    # --- one run --------------------------------------------------------------------------------------------

    def _start(self, entry: RunEntry) -> None:
        number = entry.number

        async def labelled() -> None:
            LABEL.set(f"run {number}: ")
            await self._run(entry)

        task = asyncio.create_task(labelled(), name=f"run {number}")
        self.active[number] = ActiveRun(entry, "", task)
        if number == 1 and self.process_lock is not None:
            self.process_lock.tell("starting")  # from here on it writes the file that applications read
        task.add_done_callback(lambda _: self._ended(number))

    def _ended(self, number: int) -> None:
        self.active.pop(number, None)
        self._looked = 0.0
        self.session.changes.notify()

    def _stop(self, active: ActiveRun, reason: str) -> None:
        if not active.stopped:
            active.stopped = reason
            active.task.cancel()

    async def _run(self, entry: RunEntry) -> None:
        """Do one run to its end; whatever goes wrong in it ends this run, and not the site."""
        active, number = self.active[entry.number], entry.number
        try:
            peer = await self._work(active)
        except asyncio.CancelledError:
            if not active.stopped:
                raise
            self.runs.end(number, "left", active.stopped)
            log.warning(active.stopped)
        except Exception as error:
            expected = isinstance(error, PeerbayesError | OSError)
            current = await asyncio.to_thread(self.runs.entry, number)
            if (
                current.verdict is not None
            ):  # all rounds were done before: only late neighbours miss this peer
                self.runs.end(number, "done", "; ".join(current.verdict["sentences"]))
                return
            log.error(
                f"it ended: {error}. The site goes on, and tries it again when it is started again",
                exc_info=None if expected else error,
            )
            self.runs.end(number, "failed", f"{'' if expected else type(error).__name__ + ': '}{error}")
        else:
            verdict = peer.verdict
            self.runs.end(number, "done", "; ".join(verdict.sentences) if verdict is not None else "")

    async def _work(self, active: ActiveRun) -> RunningPeer:
        home = await asyncio.to_thread(self.runs.prepare, active.entry)
        peer = await asyncio.to_thread(home.load)
        await asyncio.to_thread(refuse_broken, home.state_path, home.audit_path)
        await asyncio.to_thread(refuse_overspent, home, peer)
        run_rows = await asyncio.to_thread(service.rows_of_run, home, peer)
        await asyncio.to_thread(self._reserve, home, peer)
        try:
            return await self._learn(active, home, peer, run_rows)
        except Exception:
            give_back(home, peer)
            raise

    def _reserve(self, home: Home, peer: Peer) -> None:
        """Reserve what a run may spend on its rows; refuse it where another folder here would not count that."""
        if peer.terms.privacy.promise is not None and (problem := undeclared(self.home, self.beside)):
            raise NeedsPerson(f"{problem}; with an epsilon, nothing is sent before")
        reserve(home, peer)

    async def _learn(self, active: ActiveRun, home: Home, peer: Peer, run_rows: RunRows) -> RunningPeer:
        number, (frame, labels) = active.entry.number, run_rows.rows
        earlier = await asyncio.to_thread(self.runs.earlier, active.entry)
        store = await service.opened_store(home, None)
        journal, audit = Journal(store), AuditLog(home.audit_path)
        active.run = peer.roster.run
        transport = self.router.view(peer.roster.run, peer.terms.limits.message_bytes)
        running_peer = RunningPeer(
            Membership(peer.name, peer.terms, peer.roster, self.session.signed), frame, labels, store, transport, audit,
            model=home.model_path, newer=self._newer, on_event=journal, linger=self.linger, away=run_rows.away,
            renewals=lambda session: self.renewals,
            share_figures=peer.settings.share_figures, earlier=earlier,
            record=lambda **facts: self._record(active.entry, home, facts),
            asked_elsewhere=lambda: self.session.asked_by is not None,
            claimed=lambda: service.claimed(home, run_rows),
        )  # fmt: skip
        if store.last() is None:  # once a run, before anything leaves
            for alarm in exposure(peer, labels).alarms():
                journal("exposed", {"alarm": f"{alarm}. {WORDS}"})
            for warning in untested(home, peer.terms):
                journal("warning", {"warning": warning})
        active.peer = running_peer
        log.info(f"it begins: {len(peer.roster.members)} members, terms {peer.terms.digest:.8}")
        work = asyncio.ensure_future(running_peer.run())
        background = BackgroundTasks(work)
        lock = self.process_lock if number == 1 else None
        background.add(
            "the writing of what happens", lambda: service.flush_run(home, journal, running_peer, lock)
        )
        try:
            await work
            return running_peer
        except asyncio.CancelledError:
            if not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
            if background.failed is not None:
                raise background.failed from None
            raise
        finally:
            await background.stop()
            service.close_run(journal, running_peer)

    def _record(self, entry: RunEntry, home: Home, facts: dict[str, Any]) -> Version | None:
        """Record the model of a run as a version; applications get it where the run ended well."""
        history, approved = History(self.home.folder), tuple(sorted(entry.approved or entry.participants))
        own_file = home.records != home.folder
        version = recorded(
            history,
            home.model_path if own_file else None,
            **facts,
            run_number=entry.number,
            approved=approved,
            approvals=tuple(
                {"name": name, "at": entry.decisions[name].at, "by": entry.decisions[name].by}
                for name in sorted(entry.approved)
            ),
            on_rows=service.on_rows_of(home, facts),
        )
        if version is not None and own_file:
            good = version.verdict is None or version.verdict.get("good")
            if good or not (self.home.model_path).exists():
                history.use(version.number)
            else:
                log.warning(
                    f"applications keep the model that they have: this run ended with problems. "
                    f"`peerbayes model use {version.number}` gives them its model all the same"
                )
        return version

    async def _stop_all(self) -> None:
        active = [each.task for each in self.active.values()]
        for task in active:
            task.cancel()
        await asyncio.gather(*active, return_exceptions=True)

    # --- what is said ------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Write the phase of this site to the folder's lock; while the first run goes on, that is its own."""
        if self.process_lock is None or 1 in self.active:
            return
        runs = ", ".join(
            f"run {number} ({'preparing' if active.peer is None else active.peer.session.phase})"
            for number, active in sorted(self.active.items())
        )
        self.process_lock.tell(f"{SERVING}{': ' if runs else ''}{runs}")

    def _event(self, event: str, facts: dict[str, Any]) -> None:
        if event == "refused":
            self._refused(facts["who"], facts["reason"], facts["detail"])
        elif event == "document":
            log.info(f"{facts['noun']} of {facts['who']} about run {facts['number']} came")
        elif event in ("lost", "neighbour"):
            log.debug(f"{facts['neighbour']}: {facts['note'] or 'in touch'}")

    def _refused(self, who: str, reason: str, detail: str) -> None:
        self._once(f"{who} {reason}", lambda: log.warning(f"refused from {who}: {reason} ({detail:.300})"))

    def _once(self, key: str, say: Callable[[], None]) -> None:
        """Say something that would be said again and again once."""
        if len(self._reported) > 1000:
            self._reported.clear()
        if key not in self._reported:
            self._reported.add(key)
            say()


async def serve_all(sites: Sequence[Site]) -> list[Exception]:
    """Serve several networks; return why those ended that did, once all have."""
    problems: list[Exception] = []
    for site in sites:
        site.beside = [other.home for other in sites if other is not site]

    async def one(site: Site) -> None:
        await tasks.supervised(f"the site in {site.home.folder}", lambda: _served(site, problems))

    await asyncio.gather(*map(one, sites))
    return problems


async def _served(site: Site, problems: list[Exception]) -> None:
    """Serve one network until a person is needed; other failures are tried again."""
    try:
        await site.serve()
    except PeerbayesError as error:
        if isinstance(error, tasks.TaskFailed):
            raise
        log.error(f"{site.home.folder}: {error}")
        problems.append(error)
