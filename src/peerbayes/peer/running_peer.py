"""One run of a peer: it agrees with the others, computes its rounds, and answers its neighbours meanwhile.

No clock and no leader: a peer closes a round when its neighbours have answered, or after its own deadline with a
quorum. It requests everything it needs, one call at a time per neighbour and a few while it catches up; everything it
sends was stored before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import InitVar, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from peerbayes.errors import IdentityError, NeedsPerson, RefusedMessage, TwoRosters
from peerbayes.peer import tasks
from peerbayes.peer.agreement.negotiate import Agreed, data_digest
from peerbayes.peer.agreement.runner import AgreementRunner
from peerbayes.peer.agreement.terms import SITES
from peerbayes.peer.agreement.warm import EarlierModel
from peerbayes.peer.identity.roster import Roster, RunRoster, listens
from peerbayes.peer.learning.held_out import Evaluator, ModelFile
from peerbayes.peer.learning.masks import refuse_small
from peerbayes.peer.learning.releases import promised
from peerbayes.peer.learning.round_loop import Rounds
from peerbayes.peer.learning.sites import SiteEvaluation
from peerbayes.peer.learning.verdict import Verdict, concluded
from peerbayes.peer.models.card import recorded
from peerbayes.peer.models.history import History, Version, software
from peerbayes.peer.protocol.client import Client
from peerbayes.peer.protocol.copies import Processes
from peerbayes.peer.protocol.equivocation import Blocklist, Evidence
from peerbayes.peer.protocol.mailboxes import Inbox, Outbox
from peerbayes.peer.protocol.renewals import Renewals
from peerbayes.peer.protocol.server import Server
from peerbayes.peer.protocol.session import Membership, NeighbourState, Session
from peerbayes.peer.protocol.transport import Transport, Unreachable
from peerbayes.peer.state.audit_log import AuditLog
from peerbayes.peer.state.ledger import Ledger
from peerbayes.peer.state.links_file import REVERSED
from peerbayes.peer.state.peer_settings import NAMED
from peerbayes.peer.state.store import PeerState
from peerbayes.peer.status import FAMILY_CHOICE, unreached
from peerbayes.privacy.noise import Source

OTHER_ROWS = (
    "other rows: the data has changed, or which of them are held out (hold_out in peer.toml; hold_out.key; runs that "
    "were begun before peerbayes chose held-out rows one by one cannot go on with it)"
)
OTHER_MODEL = (
    "another model of the run that this one began with, or none: bring models/ and runs/ back from a backup"
)


@dataclass(eq=False)
class RunningPeer:
    """One run of one peer."""

    membership: InitVar[Membership]
    frame: pd.DataFrame
    labels: np.ndarray
    store: PeerState
    transport: Transport
    audit: AuditLog
    model: Path | None = None
    newer: Callable[[bytes], Roster | None] = lambda _: None
    """Checks an offered roster, and stores it if it is newer than the one on disk."""
    on_event: Callable[[str, dict[str, Any]], None] = lambda event, facts: None
    """Called with every event: its name and its facts."""
    linger: float = 3600.0
    """Seconds to keep serving neighbours that are not done yet."""
    away: tuple[pd.DataFrame, np.ndarray] | None = None
    """Held-out rows: the model is tested on them."""
    renewals: Callable[[Session], Renewals] | None = None
    """Makes what renews certificates here; None: nothing does."""
    share_figures: str = NAMED
    """How other sites see this one's figures after the run, where the agreement evaluates all sites."""
    source: Source = os.urandom
    """Source of randomness for the noise of a private network."""
    earlier: EarlierModel | None = None
    """What this peer has of the run whose model all begin with; None: they begin afresh."""
    record: Callable[..., Version | None] | None = None
    """Records the model as a version, with what is known of it; None: beside its file."""

    asked_elsewhere: Callable[[], bool] = lambda: False
    """Whether neighbours have called this process about something else than this run."""

    claimed: Callable[[], None] = lambda: None
    """Called once the rows are those of this run: at every start, before they are used."""

    def __post_init__(self, membership: Membership) -> None:
        self.session = session = Session(*membership, self.store, self.transport, self.audit, self.on_event)
        self.verdict: Verdict | None = None  # once all rounds are done
        self._reading = asyncio.Lock()  # of two concurrent rosters, the older one might be stored last
        self._ledger = ledger = Ledger(self.store, self.audit)
        self._processes = processes = Processes(session)
        session.process = processes.own
        inbox, outbox = Inbox(session), Outbox(session, ledger)
        self._outbox = outbox
        self._blocklist = blocklist = Blocklist(session, inbox)
        self._evidence = evidence = Evidence(session, blocklist)
        self._agreement = agreement = AgreementRunner(session, ledger, self.source, self.earlier)
        common = blocklist, evidence, processes, self.adopt_offered
        self._client = Client(session, agreement, inbox, *common)
        self._server = Server(session, agreement, outbox, *common)
        self.answer = self._server.answer
        self.renewing = self._server.renewals = None if self.renewals is None else self.renewals(session)
        model = ModelFile(self.model)
        sums = lambda: agreement.sums  # noqa: E731 (the roster may still be open)
        self._rounds = Rounds(session, self.store, inbox, outbox, blocklist, evidence, model, sums)
        self._sites = SiteEvaluation(session, sums, self.share_figures)

    async def run(self) -> np.ndarray:
        """Run from the stored state to the end; return S [C, K] of this peer's model."""
        task = asyncio.current_task()
        assert task is not None
        self.session.stop = task.cancel
        await self.session.room.until("start", self._recall, in_thread=False)
        await self.transport.serve(self.answer)
        try:
            return await self._work()
        except asyncio.CancelledError:
            if self.session.halted is not None:
                raise self.session.halted from None
            raise
        finally:
            await self._client.stop()
            await self.transport.close()
            with self.session.room.noting("audit"):  # a full disk is no reason to hide why the peer stops
                self.remember()

    async def _work(self) -> np.ndarray:
        await self._until_closed()
        await self.session.room.until("claim", self._claim, in_thread=False)
        await self.session.room.until("rows", self.claimed)
        agreed = self.session.agreed = await self._agreement.run(self.frame, self.labels)
        await self._keep_choice(agreed)
        self._tell_agreed(agreed)
        self.session.step = "rounds"
        evaluator = Evaluator.of(agreed, self.away)
        last = await self._rounds.run(agreed, evaluator)
        figures = await self._figures(agreed, evaluator, last)
        self.verdict = await self._conclude(agreed, evaluator, last)
        await self._keep_version(agreed, self.verdict, figures)
        await self._finish(self.verdict)
        return self._rounds.model(last)

    def remember(self) -> None:
        """Flush the audit log, and store its length and the progress of neighbours' processes."""
        self._ledger.mark()
        self._processes.remember()

    def unreached(self) -> str:
        """Return a warning if nobody has called this peer though others answer it; else an empty string."""
        session = self.session
        address = session.roster.member(session.name).address
        answering = [name for name in session.neighbours if session.neighbour(name).answered]
        if not listens(address) or not answering or session.asked_by is not None or self.asked_elsewhere():
            return ""
        if any(
            session.transport.kind_of(name) == REVERSED for name in session.roster.neighbours(session.name)
        ):
            return ""
        return unreached(address, answering)

    async def adopt_offered(self, signed: bytes) -> None:
        """Adopt a newer roster of the authority, whoever sent it. It is read in a thread, one at a time."""
        async with self._reading:
            self._follow(await asyncio.to_thread(self._read, signed), signed)

    def adopt(self, signed: bytes) -> None:
        """Adopt a newer roster at once, without a thread."""
        self._follow(self._read(signed), signed)

    def _read(self, signed: bytes) -> Roster | None:
        try:
            return self.newer(signed)
        except TwoRosters as error:
            raise RefusedMessage("two rosters", str(error)) from error
        except IdentityError as error:
            raise RefusedMessage("bad roster", str(error)) from error

    def _follow(self, roster: Roster | None, signed: bytes) -> None:
        session = self.session
        if roster is None or roster.version <= session.roster.version:
            return
        session.roster, session.signed = _followed(session.roster, roster), signed
        self.transport.follow(session.roster)
        session.emit("roster", version=roster.version, revoked=list(roster.revoked), closed=roster.closed)
        if session.name in roster.revoked:
            says = f"as roster {roster.version} says; ask the founder"
            session.halt(NeedsPerson(f"{session.name} was revoked in {roster.network}, {says}"))
            session.stop()
        self._client.start()
        session.changes.notify()

    # --- the run, step by step -------------------------------------------------------------------------

    def _recall(self) -> None:
        """Restore progress and neighbours from disk, and count this start."""
        session, start = self.session, self._ledger.begin()
        session.round_index, session.stored = self.store.round() or 0, self.store.stored()
        self._outbox.recall()
        self._processes.begin(start)
        for name, record in self.store.neighbours().items():
            self.session.neighbour_states[name] = NeighbourState(
                record["done"], record["seen"], record["note"], left=record["note"] == "left"
            )
        self._evidence.recall()

    async def _until_closed(self) -> None:
        self._client.start()
        if not self.session.roster.closed:
            self.session.step = "waiting for the network to be closed"
            self.session.emit("open", members=len(self.session.roster.members))
        while not self.session.roster.closed:
            await self.session.changes.wait(1.0)

    def _claim(self) -> None:
        """Claim the store for this run; refuse it if the rows have changed."""
        if self.store.last() is None:
            refuse_small(self.session.roster, self.session.terms)  # later, peers with a group continue
        rows = data_digest(self.frame, self.labels)
        run = self.session.roster.run, "other terms, members or links"
        claims = {"run": run, "data": (rows, OTHER_ROWS)}
        if self.earlier is not None:
            claims["earlier model"] = self.earlier.digest, OTHER_MODEL
        self.store.claim(claims)

    async def _keep_choice(self, agreed: Agreed) -> None:
        """Tell which family all peers chose, and store it for `status`, where the agreement leaves it open."""
        if (choice := agreed.family_choice) is None:
            return
        self.session.emit("chosen", reason=choice.reason)
        content = json.dumps(choice.to_json())
        await self.session.room.until("choice", lambda: self.store.keep(FAMILY_CHOICE, content))

    def _tell_agreed(self, agreed: Agreed) -> None:
        if agreed.private is not None:
            self.session.emit("private", **promised(agreed.private, self.session.terms))
        if self.earlier is not None:
            self.session.emit("warm", members=agreed.began_with)
        self.session.emit("agreed", schema=agreed.schema.fingerprint, peers=agreed.peers, rows=agreed.rows,
                           strategy=agreed.reason or agreed.strategy)  # fmt: skip

    async def _conclude(self, agreed: Agreed, evaluator: Evaluator, last: np.ndarray) -> Verdict:
        """Evaluate the whole run, which ended with S [C, K], and store the verdict for `status`."""
        session = self.session
        session.step = "judging the run"
        departed = {name: session.neighbour(name).note or "left" for name in session.roster.neighbours(session.name)
                if name not in session.neighbours}  # fmt: skip
        departed |= {name: "revoked" for name in departed if name in session.roster.revoked}
        selecting = self._rounds.selecting
        notes = (*self._rounds.notes, *(() if selecting is None else (selecting.sentence(),)))
        if agreed.family_choice is not None:
            notes = (*notes, f"family chosen: {agreed.family_choice.reason}")
        verdict = await asyncio.to_thread(
            concluded, agreed, agreed.named or session.terms, self.store, evaluator, last, self._rounds.model(last),
            departed, session.round_index, notes, self._rounds.scaling, self._rounds.settled,
        )  # fmt: skip
        await session.room.until("verdict", lambda: self.store.keep("verdict", verdict.to_json()))
        return verdict

    async def _figures(self, agreed: Agreed, evaluator: Evaluator, last: np.ndarray) -> dict[str, Any]:
        """Return the figures of all sites, before the run and after it, as far as the agreement has them.

        held_out  the number of this site's held-out rows
        """
        figures: dict[str, Any] = {} if agreed.figures is None else {"data": agreed.figures.agreed_json()}
        if self.session.terms.evaluation == SITES:
            model, scaling = self._rounds.model(last), self._rounds.scaling
            figures["held_out"] = 0 if self.away is None else len(self.away[1])
            figures["sites"] = await self._sites.run(agreed, evaluator, model, scaling)
        return figures

    async def _keep_version(self, agreed: Agreed, verdict: Verdict, figures: dict[str, Any]) -> None:
        """Record the model as a version, where it has a file."""
        if self.model is None or agreed.of_weights:
            return
        session, record = self.session, self.record or partial(recorded, History(self.model.parent))
        facts = {
            "network": session.roster.network, "run": session.roster.run, "rounds": session.round_index,
            "data": data_digest(self.frame, self.labels), "terms": session.terms.to_toml(),
            "verdict": json.loads(verdict.to_json()),
            "privacy": None if agreed.private is None else promised(agreed.private, session.terms),
            "figures": figures, "software": software(),
        }  # fmt: skip
        version = await session.room.until("version", lambda: record(**facts))
        if version is not None:
            session.emit("version", number=version.number)

    async def _finish(self, verdict: Verdict) -> None:
        """Stay until the neighbours are done too: they may still need this peer's messages."""
        session, rounds, sums = self.session, self.session.rounds, self._agreement.sums
        session.step = "staying for its neighbours"
        if verdict.good:
            session.emit("done", round=session.round_index, verdict="; ".join(verdict.sentences))
        else:
            session.emit("ended badly", round=session.round_index, problem=verdict.problem)
        until, drained, behind = time.monotonic() + self.linger, time.monotonic() + tasks.DRAIN, list[str]()
        selecting = self._rounds.selecting
        phases = [*self._rounds.phases, *(() if selecting is None else selecting.phases), *self._sites.phases]
        while time.monotonic() < until:
            behind = [name for name in session.neighbours if session.neighbour(name).done < rounds]
            if not behind and (time.monotonic() > drained or not sums.owed(phases)):
                break
            await self._leave_those_beyond(rounds)
            await session.changes.wait(min(1.0, max(0.0, until - time.monotonic())))
        if behind:
            session.emit("left behind", neighbours=behind)
        await self._say_goodbye(rounds)

    async def _say_goodbye(self, rounds: int) -> None:
        """Tell the neighbours that all rounds are done here, so that they need not wait for this peer.

        Who does not hear it waits for as long as it lingers. A link may just be broken, so it is said again, for a
        while, to neighbours that have had no reply since the last round.
        """
        session, end = self.session, time.monotonic() + min(tasks.DRAIN, self.linger)
        missed = [*session.neighbours, *self._blocklist]
        while missed:
            for name in tuple(missed):
                last = session.request(name, "hello", heard=self._evidence.to_pass_on(name))
                if name in self._blocklist:
                    last = session.request(name, "leave")
                with contextlib.suppress(Unreachable):
                    with contextlib.suppress(RefusedMessage):
                        await session.ask(name, last, 1.0)
                    missed.remove(name)
            missed = [
                name
                for name in session.neighbours
                if name in missed and session.neighbour(name).told < rounds
            ]
            if time.monotonic() > end:
                break
            if missed:
                await session.changes.wait(1.0)

    async def _leave_those_beyond(self, rounds: int) -> None:
        """Tell neighbours that go on, though all were to stop, not to wait: they lack a sum that this peer has."""
        session = self.session
        for name in session.neighbours:
            if session.stopped and session.neighbour(name).done > rounds:
                with contextlib.suppress(Unreachable, RefusedMessage):
                    await session.ask(name, session.request(name, "leave"), 1.0)
                    session.neighbour(name).left = True


def _followed(current: Roster, newer: Roster) -> Roster:
    """Return the roster of a run that is under way once there is a newer one: its members and links stay."""
    try:
        if isinstance(current, RunRoster):
            return current.following(newer)
    except IdentityError as error:
        raise RefusedMessage("bad roster", str(error)) from error
    if current.closed and newer.run != current.run:
        raise RefusedMessage("bad roster", "it has other members than the run that is under way")
    return newer.first_run
