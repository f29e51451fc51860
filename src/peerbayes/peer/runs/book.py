"""The runs of a peer's folder: what was proposed, who decided what, and what became of it.

    runs/rosters/DIGEST.json          rosters that proposals name, signed by the authority
    runs/N/proposals/DIGEST.json      proposals of run N; of several, one goes on, the same for all members
    runs/N/decisions/DIGEST.NAME.json what a member decided about one of them
    runs/N/agreement.toml             the terms, once this peer approved them; then roster.json, state and audit log
    runs/N/outcome.json               how the run ended here

Every document is verified before it is stored, written in one step and never changed. The state of a run follows from
the documents alone, so that all members that have the same ones come to the same state.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from peerbayes.data import files
from peerbayes.errors import IdentityError, NeedsPerson, PeerbayesError, TermsError
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.agreement.warm import EarlierModel
from peerbayes.peer.identity.roster import Roster, RunRoster
from peerbayes.peer.learning import kept_rows
from peerbayes.peer.learning.masks import refuse_small, refuse_thin
from peerbayes.peer.runs.consent import FILE as CONSENT
from peerbayes.peer.runs.consent import Approved, Consent
from peerbayes.peer.runs.documents import Choice, Decision, Document, Proposal, kind_of
from peerbayes.peer.runs.earlier import earlier_model, refuse_warm
from peerbayes.peer.runs.stored import StoredDocuments
from peerbayes.peer.state.disk import running
from peerbayes.peer.state.folder import ASIDE, RUNS, Home, Peer, leave_command
from peerbayes.peer.state.ledger import ASSUMED, assume, in_all, planned_cost, refuse_overspent
from peerbayes.peer.state.peer_settings import refuse_weaker
from peerbayes.peer.state.same_rows import alone
from peerbayes.peer.state.store import NoState, Store

DAYS = 7.0  # that a proposal waits for approvals, unless its proposer says otherwise
BEGINS = (
    86400.0  # seconds after its end in which a proposal that all approved may still begin: approvals travel
)
AHEAD = 1  # numbers beyond the highest known one that a proposal may have; others are asked for again
OF_WINDOW = 16  # proposals of one member, among the runs that are passed on, that not all have approved
OF_ONE = 4  # proposals of one number that are kept of one member
OPEN_OF_ONE = 8  # proposals of one member that may wait for approvals at a time
SHARED = 64  # runs, from the highest number down, whose documents are passed on
MOST_SHARED = 65_536  # documents that are passed on
FUTURE = 86400.0  # seconds that another clock may be ahead
OWNER = "owner"  # who decided: a person
STANDING = "standing consent"  # or a consent that a person gave before
ENDED = ("declined", "expired", "superseded", "ended", "elsewhere", "done", "failed", "left")
"""States in which a run does not go on here by itself."""


class RosterNeeded(IdentityError):
    """A proposal that names a roster which is not here yet."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"the proposal names roster {digest:.8}, which is not here yet")
        self.digest = digest


class NotYet(IdentityError):
    """A document that cannot be judged before others have come."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended at this peer."""

    state: str
    """done, failed, or left."""
    sentence: str
    at: float


@dataclass(frozen=True)
class RunEntry:
    """One run as this peer knows it."""

    number: int
    state: str
    """proposed, approved, running, paused, done, failed, declined, expired, superseded, ended, left or elsewhere: all
    approved it, and this peer takes no part."""
    sentence: str
    """The state in words."""
    proposal: Proposal | None = None
    """None: the first run, which the founder proposed with the network."""
    terms: Terms | None = None
    """None: the terms cannot be read here, as the sentence says."""
    participants: tuple[str, ...] = ()
    decisions: Mapping[str, Decision] = field(default_factory=dict, hash=False)
    """By member."""
    waiting: tuple[str, ...] = ()
    """Participants that have not decided."""
    others: tuple[str, ...] = ()
    """Digests of other proposals of the same number, which do not go on."""
    verdict: Mapping[str, Any] | None = field(default=None, hash=False)
    round: int = 0

    @property
    def approved(self) -> tuple[str, ...]:
        """The members that approved it."""
        return tuple(name for name, decision in self.decisions.items() if decision.choice == "approve")

    @property
    def is_complete(self) -> bool:
        """Whether all participants approved it."""
        complete = ("approved", "elsewhere", "running", "paused", "done", "failed", "left")
        return self.state in complete and not self.waiting

    def to_plain(self) -> dict[str, Any]:
        """Return the entry as plain values, for JSON."""
        proposal = self.proposal
        return {
            "number": self.number,
            "state": self.state,
            "sentence": self.sentence,
            "proposal": None if proposal is None else proposal.digest,
            "proposer": None if proposal is None else proposal.member,
            "at": None if proposal is None else proposal.at,
            "expires": None if proposal is None else proposal.expires,
            "warm_from": None if proposal is None else proposal.warm_from,
            "roster": None if proposal is None else proposal.roster,
            "terms": None if self.terms is None else self.terms.digest,
            "participants": list(self.participants),
            "decisions": {
                name: {"choice": entry.choice, "by": entry.by, "reason": entry.reason, "at": entry.at}
                for name, entry in self.decisions.items()
            },
            "waiting": list(self.waiting),
            "others": list(self.others),
            "round": self.round,
            "verdict": None if self.verdict is None else dict(self.verdict),
        }


@dataclass(frozen=True)
class Runs:
    """The runs of the network that a peer's folder belongs to.

    folder  the peer's folder
    clock   returns seconds since 1970
    """

    folder: Path
    clock: Callable[[], float] = time.time

    @cached_property
    def home(self) -> Home:
        """The peer's folder."""
        return Home(Path(self.folder))

    @cached_property
    def _stored(self) -> StoredDocuments:
        return StoredDocuments(self.path)

    @property
    def path(self) -> Path:
        """The folder of all runs but the first."""
        return self.home.folder / RUNS

    # --- what there is -----------------------------------------------------------------------------------

    def entries(self) -> list[RunEntry]:
        """Return all runs, in the order of their numbers."""
        roster = self._current()
        return [self._entry(number, roster) for number in self.home.run_numbers()]

    def entry(self, number: int) -> RunEntry:
        """Return one run."""
        numbers = self.home.run_numbers()
        if number not in numbers:
            raise IdentityError(
                f"there is no run {number} in {self.home.folder}; there are {', '.join(map(str, numbers))}"
            )
        return self._entry(number, self._current())

    def _entry(self, number: int, roster: Roster) -> RunEntry:
        if number == 1:
            return self._first(roster)
        entries = [self._of_proposal(proposal, roster) for proposal in self._proposals(number)]
        if not entries:
            return RunEntry(number, "ended", "nothing is known of it but its number")
        began = self._began(number)
        by_rank = (
            lambda entry: entry.proposal is not None and entry.proposal.digest == began,
            lambda entry: entry.is_complete,
            lambda entry: entry.state == "proposed",
            lambda entry: True,
        )  # one that ended, such as by its own proposer, stands in nobody's way
        chosen = next(entry for fits in by_rank for entry in entries if fits(entry))
        others = (entry.proposal.digest for entry in entries if entry is not chosen and entry.proposal)
        return replace(chosen, others=tuple(others))

    def _first(self, roster: Roster) -> RunEntry:
        """Return the first run, which has no proposal: whoever joined before the network was closed approved it."""
        name, first = self.home.settings().name, roster.first_run
        participants = tuple(member.name for member in first.members)
        state, sentence = "proposed", "the network is still open: its founder closes it"
        if roster.closed:
            state, sentence = "approved", "it begins when this peer runs"
        if not first.has(name):
            state, sentence = "ended", f"{name} joined after it had begun"
        entry = RunEntry(
            1, state, sentence, terms=Terms.read(self.home.agreement_path), participants=participants
        )
        return self._progress(entry) if first.has(name) and roster.closed else entry

    def _of_proposal(self, proposal: Proposal, roster: Roster) -> RunEntry:
        """Return the state of one proposal, from its decisions alone and from what happened here."""
        terms, problem = _parsed(proposal.terms, proposal.number)
        members, name = self._roster_of(proposal), self.home.settings().name
        participants = tuple(member.name for member in members.members)
        decisions = {name: decision for name, decision in self._decisions(proposal) if members.has(name)}
        waiting = tuple(name for name in participants if name not in decisions)
        entry = RunEntry(
            proposal.number, "proposed", problem, proposal, terms, participants, decisions, waiting
        )
        if declined := [decision for decision in decisions.values() if decision.choice == "decline"]:
            reasons = "; ".join(_declined(decision) for decision in declined)
            entry = self._progress(replace(entry, state="declined", sentence=reasons), stops=True)
            own = any(decision.member == name for decision in declined)
            return self._left(entry) if own and entry.state == "declined" else entry
        if waiting and members.has(name) and (left := self._left(entry)).state == "left":
            return left
        if not waiting and not members.has(name):
            sentence = f"{name} takes no part: it was proposed to the members before {name} joined"
            return replace(entry, state="elsewhere", sentence=sentence)
        if not waiting:
            entry = self._progress(
                replace(entry, state="approved", sentence=problem or "all approved: it begins")
            )
            if entry.state == "approved" and self.clock() > proposal.expires + BEGINS:
                entry = replace(
                    entry,
                    state="expired",
                    sentence="all approved, and it did not begin in time; propose another run",
                )
            return entry
        if gone := [name for name in (*waiting, proposal.member) if name in roster.revoked]:
            return replace(
                entry, state="ended", sentence=f"{', '.join(gone)} was revoked since; propose another run"
            )
        if self.clock() > proposal.expires:
            return replace(
                entry,
                state="expired",
                sentence=f"not approved in time by {', '.join(waiting)}; propose another run",
            )
        return replace(entry, sentence=problem or f"waits for {', '.join(waiting)}")

    def _progress(self, entry: RunEntry, stops: bool = False) -> RunEntry:
        """Return the entry of a run that may have begun here with what is known of it; `stops`: it does not go on."""
        home = self.home.of_run(entry.number)
        outcome = self.outcome(entry.number)
        if not self._is_here(entry):
            return entry
        with (
            contextlib.suppress(NoState, OSError),
            contextlib.closing(Store(home.state_path, readonly=True)) as store,
        ):
            verdict = json.loads(store.value("verdict") or "null")
            entry = replace(entry, verdict=verdict, round=store.round() or 0)
            if not stops and (verdict is not None or store.value("state") is not None):
                at_work = running(self.home)
                state, sentence = (
                    ("running", "it goes on") if at_work else ("paused", "it goes on when this peer runs")
                )
                if verdict is not None:
                    state, sentence = "done", "; ".join(verdict["sentences"])
                entry = replace(entry, state=state, sentence=sentence)
        if outcome is not None and not (stops and outcome.state != "done"):
            entry = replace(entry, state=outcome.state, sentence=outcome.sentence)
        return entry

    def _is_here(self, entry: RunEntry) -> bool:
        """Return whether what happened here is of this entry's proposal: no other one of its number has begun."""
        return entry.proposal is None or self._began(entry.number) in ("", entry.proposal.digest)

    def _left(self, entry: RunEntry) -> RunEntry:
        """Return the entry of a run that was given up here as that, whatever was decided about it since."""
        outcome = self.outcome(entry.number)
        if outcome is None or outcome.state != "left" or not self._is_here(entry):
            return entry
        return replace(entry, state="left", sentence=outcome.sentence)

    def outcome(self, number: int) -> Outcome | None:
        """Return how a run ended here; None: it has not."""
        try:
            return Outcome(**json.loads(self.home.of_run(number).outcome_path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise IdentityError(
                f"{self.home.of_run(number).outcome_path} cannot be read: {error!s:.80}; restore it from a backup"
            ) from error

    def end(self, number: int, state: str, sentence: str) -> None:
        """Record how a run ended here."""
        path = self.home.of_run(number).outcome_path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if state != "failed":  # which is tried again
            kept_rows.forget(self.home.of_run(number))
        content = {"state": state, "sentence": sentence[:2000], "at": self.clock()}
        files.write(path, files.as_json(content).encode())

    def reopen(self, number: int) -> None:
        """Forget that a run failed: it is tried again."""
        self.home.of_run(number).outcome_path.unlink(missing_ok=True)

    # --- decide ----------------------------------------------------------------------------------------

    def propose(
        self,
        terms: str | None = None,
        warm: bool | None = None,
        days: float = DAYS,
        by: str = OWNER,
    ) -> RunEntry:
        """Propose the next run, and approve it; return its entry.

        terms  the agreement, as TOML; None: that of the last run
        warm   whether it begins with the model of the last run; None: where there is one
        days   until when members may approve it
        by     who decided
        """
        peer = self.home.member()
        if not peer.roster.closed:
            raise IdentityError(
                f"{peer.roster.network} is still open; expected a closed network: its founder closes it with "
                "`peerbayes network close`"
            )
        entries = self.entries()
        number = entries[-1].number + 1
        text = self._last_terms(entries) if terms is None else terms
        done = [entry.number for entry in entries if entry.state == "done"]
        if warm and not done:
            raise TermsError(
                "there is no run yet whose model another could begin with; propose it without --warm"
            )
        afresh = refuse_warm(Terms.parse(text, f"the terms of run {number}"))
        warm_from = done[-1] if done and warm is not False and (warm or not afresh) else None
        now = self.clock()
        if not 0 < days * 86400.0 < math.inf:
            raise TermsError(f"the proposal is to wait {days} days; expected a positive number")
        proposal = Proposal(
            peer.roster.network, number, peer.name, now, text, peer.roster.version, peer.roster.digest.hex(),
            now + days * 86400.0, warm_from,
        )  # fmt: skip
        agreed = self._refuse_run(proposal, peer.roster, peer)
        with alone(self.home):  # of two approvals over the same rows, one sees what the other one may spend
            self.refuse_approval(proposal, agreed, peer)
            self._keep_roster(self.home.roster_path.read_bytes(), peer.roster)
            if not _publish(self._proposal_path(proposal), proposal.signed(peer.key, peer.certificate)):
                raise IdentityError(f"run {number} was proposed a moment ago; see `peerbayes run list`")
            self._decide(proposal, agreed, peer, "approve", "", by)
        return self.entry(number)

    def approve(self, number: int, by: str = OWNER, proposal: str | None = None) -> RunEntry:
        """Approve a run's terms in this peer's name; return its entry.

        proposal  how the digest of the proposal begins; needed where there are several, so that nobody approves one
                  that came after another was read
        """
        return self._approve(self._to_decide(number, proposal), by)

    def approve_standing(self, entry: RunEntry) -> RunEntry:
        """Approve the proposal that a standing consent covers, and no other that has come since."""
        assert entry.proposal is not None
        return self.approve(entry.number, STANDING, entry.proposal.digest)

    def _approve(self, proposal: Proposal, by: str) -> RunEntry:
        peer = self.home.member()
        agreed = self._refuse_run(proposal, self.named_roster(proposal.roster_digest), peer)
        with alone(self.home):
            self.refuse_approval(proposal, agreed, peer)
            self._decide(proposal, agreed, peer, "approve", "", by)
        return self.entry(proposal.number)

    def decline(self, number: int, reason: str = "", proposal: str | None = None) -> RunEntry:
        """Decline a run in this peer's name, which ends its proposal for all; return its entry.

        A proposer declines its own while it is open, and whoever has given up a run that had not begun declines that.
        """
        chosen = self._to_decide(number, proposal, declines=True)
        self._say_no(chosen, reason)
        return self.entry(number)

    def take_back(self, number: int, reason: str) -> bool:
        """Take back this peer's approval of a run that it has given up, so that nobody waits for it.

        Return whether there was any.
        """
        approved = [each for each in self._proposals(number) if self._own_choice(each) == "approve"]
        for proposal in approved:
            self._say_no(proposal, reason)
        return bool(approved)

    def _own_choice(self, proposal: Proposal) -> Choice | None:
        decision = dict(self._decisions(proposal)).get(self.home.settings().name)
        return None if decision is None else decision.choice

    def _say_no(self, proposal: Proposal, reason: str, by: str = "") -> None:
        """Sign that this peer declines, also where it has approved: a no counts at any time."""
        try:
            digest = Terms.parse(proposal.terms, "the terms").digest
        except TermsError:  # which may be the reason
            digest = "0" * 64
        by = by or (WITHDRAWN if self._own_choice(proposal) == "approve" else OWNER)
        self._decide(proposal, digest, self.home.member(), "decline", reason, by)

    def obstacles(self, entry: RunEntry) -> list[str]:
        """Return what stands between a proposal and this peer's approval without a person; none: nothing."""
        path = self.home.folder / CONSENT
        consent, proposal, terms = Consent.read(path), entry.proposal, entry.terms
        if proposal is None:
            return []
        if consent is None:
            return [f"there is no standing consent ({path.name})"]
        if terms is None:
            return [entry.sentence]
        try:
            peer = self.home.member()
            self._refuse_run(proposal, self.named_roster(proposal.roster_digest), peer)
            self.refuse_approval(proposal, terms, peer)
        except PeerbayesError as error:
            return [str(error)]
        promise = terms.privacy.promise
        total = in_all(self.home.of_run(entry.number), promise)[1] if promise else 0.0
        own = self.home.settings().name
        standing = [
            decision.at
            for number in self.home.run_numbers()[1:]
            for other in self._proposals(number)
            if other.digest != proposal.digest
            for name, decision in self._decisions(other)
            if name == own and decision.by == STANDING and decision.choice == "approve"
        ]
        hours = (self.clock() - max(standing)) / 3600.0 if standing else None
        before = self._approved_by_owner()
        return list(consent.obstacles(terms, proposal.member, entry.participants, before, total, hours))

    def _approved_by_owner(self) -> Approved:
        """Return the last run that this folder's owner approved itself, or the first one, if it joined for that."""
        own = self.home.settings().name
        for number in reversed(self.home.run_numbers()[1:]):
            for proposal in self._proposals(number):
                decision = dict(self._decisions(proposal)).get(own)
                if decision is not None and (decision.choice, decision.by) == ("approve", OWNER):
                    members = tuple(member.name for member in self._roster_of(proposal).members)
                    return Approved(_parsed(proposal.terms, number)[0], members)
        first = self.home.roster().first_run
        if not first.has(own):
            return Approved()
        return Approved(Terms.read(self.home.agreement_path), tuple(member.name for member in first.members))

    def refuse_approval(self, proposal: Proposal, terms: Terms, peer: Peer) -> None:
        """Refuse to approve what this peer's owner does not allow: [require] and all that was spent on its rows."""
        refuse_weaker(terms, peer.settings.require, str(self.home.settings_path))
        home = self.home.of_run(proposal.number)
        refuse_overspent(home, replace(peer, terms=terms))

    def _to_decide(self, number: int, begins: str | None, declines: bool = False) -> Proposal:
        """Return the proposal that can be decided now; `begins`: how its digest begins, as its reader says."""
        entry = self.entry(number)
        given_up = declines and entry.state == "left" and not self._has_begun(number)
        proposal = entry.proposal
        if proposal is None:
            raise IdentityError(
                "run 1 is that of the network's founder: whoever joined approved it; expected a number from 2"
            )
        if entry.others and begins is None and entry.state == "proposed":
            raise IdentityError(
                f"there are {1 + len(entry.others)} proposals of run {number}, and {proposal.digest:.16} goes on; read "
                f"it with `peerbayes run show {number}`, and say so: --proposal {proposal.digest:.16}"
            )
        if begins is not None and not (len(begins) >= SAID and proposal.digest.startswith(begins)):
            raise IdentityError(
                f"proposal {begins!r:.80} is not the one of run {number} that goes on, which is {proposal.digest:.16}; "
                f"expected {SAID} digits of it or more: see `peerbayes run show {number}`"
            )
        own = self.home.settings().name
        if own not in entry.participants:
            raise IdentityError(f"{own} does not take part in run {number}: there is nothing to decide")
        withdraws = given_up or (declines and entry.state == "proposed" and proposal.member == own)
        decision = entry.decisions.get(own)
        if decision is not None and not (withdraws and decision.choice == "approve"):
            word = "approved" if decision.choice == "approve" else "declined"
            raise IdentityError(
                f"{own} has {word} run {number} already ({_time(decision.at)}), and that stays: nobody decides twice. "
                f"A run that goes on can be left with `{leave_command(self.home.of_run(number).records)}`"
            )
        if entry.state != "proposed" and not given_up:
            raise IdentityError(f"run {number} is {entry.state}: {entry.sentence}")
        return proposal

    def _decide(
        self, proposal: Proposal, terms: Terms | str, peer: Peer, choice: Choice, reason: str, by: str
    ) -> None:
        """Sign and store a decision: the first one stays, whoever else decides at the same moment."""
        digest = terms if isinstance(terms, str) else terms.digest
        decision = Decision(
            proposal.network,
            proposal.number,
            peer.name,
            self.clock(),
            proposal.digest,
            digest,
            choice,
            reason,
            by,
        )
        if isinstance(terms, Terms) and choice == "approve":  # first: it counts in the ledger from now on
            self._commit(proposal)
        path = self._decision_path(decision)
        if by == WITHDRAWN:  # beside its approval
            path = _second(path)
        if not _publish(path, decision.signed(peer.key, peer.certificate)):
            raise IdentityError(
                f"{peer.name} decided about run {proposal.number} a moment ago; see `run show`"
            )

    def _commit(self, proposal: Proposal) -> None:
        """Write the terms of an approved run, by which the ledger knows what it may spend."""
        home = self.home.of_run(proposal.number)
        if not home.state_path.exists():
            files.write(home.agreement_path, proposal.terms.encode())

    def _refuse_run(self, proposal: Proposal, roster: Roster, peer: Peer) -> Terms:
        """Refuse a run that could not begin: terms that cannot be read, or do not go with its members."""
        terms = Terms.parse(proposal.terms, f"the terms of run {proposal.number}")
        if terms.network != proposal.network:
            raise TermsError(
                f"the terms are of network {terms.network!r}; expected {proposal.network!r}, as the authority is called"
            )
        most = peer.terms.limits.message_bytes
        if terms.limits.message_bytes > most:
            raise TermsError(
                f"limits.message_bytes is {terms.limits.message_bytes}; expected at most {most}, as all sites allow by "
                "the agreement that the network was founded with"
            )
        if proposal.warm_from is not None and (afresh := refuse_warm(terms)):
            raise TermsError(
                f"run {proposal.number} is to begin with the model of run {proposal.warm_from}, and {afresh}"
            )
        taking_part = roster.of_run(proposal.number, terms.digest)
        refuse_small(taking_part, terms)
        if (promise := terms.privacy.promise) is not None:
            refuse_thin(taking_part, promise)
        return terms

    def before(self, number: int) -> RunEntry | None:
        """Return the last run before another one that all approved, or the first; None: that is the first."""
        return (
            None
            if number == 1
            else _last_agreed([entry for entry in self.entries() if entry.number < number])
        )

    def _last_terms(self, entries: list[RunEntry]) -> str:
        """Return the terms of the last run that all approved."""
        if (proposal := _last_agreed(entries).proposal) is not None:
            return proposal.terms
        return files.text_of(self.home.agreement_path, TermsError)

    # --- begin -------------------------------------------------------------------------------------------

    def prepare(self, entry: RunEntry) -> Home:
        """Return the folder of a run that all approved, with its agreement and its roster in place."""
        home, proposal = self.home.of_run(entry.number), entry.proposal
        if proposal is None:
            return home
        if (began := self._began(entry.number)) not in ("", proposal.digest):
            raise NeedsPerson(
                f"run {entry.number} began here with proposal {began:.8}, and all approved {proposal.digest:.8}"
            )
        files.write(home.agreement_path, proposal.terms.encode())
        files.write(home.records / "roster.json", self._roster_path(proposal.roster_digest).read_bytes())
        files.write(home.records / "proposal", proposal.digest.encode())
        return home

    def earlier(self, entry: RunEntry) -> EarlierModel | None:
        """Return what this peer has of the run whose model another one begins with; None: it begins afresh."""
        if entry.proposal is None or entry.proposal.warm_from is None:
            return None
        return earlier_model(self.home, entry.proposal.warm_from)

    def neighbours(self, entry: RunEntry) -> tuple[str, ...]:
        """Return the neighbours of this peer in a run, as they were when it began: also those revoked since."""
        roster = self._current().first_run if entry.proposal is None else self._roster_of(entry.proposal)
        name = self.home.settings().name
        return roster.neighbours(name) if roster.has(name) else ()

    def to_leave(self, number: int | None) -> int:
        """Return the number of the run that its owner leaves: None, the first one, unless that has ended."""
        if number is None and self.is_finished(1):
            going = [entry.number for entry in self.entries() if entry.state in ("running", "paused")]
            advice = (
                f"leave another one with --run {going[-1]}" if going else "there is no other one to leave"
            )
            raise IdentityError(
                f"run 1 has ended, and nobody waits for it; {advice}. `{leave_command(self.home.folder)}` sets its "
                "state and its verdict aside all the same, so that it can begin again"
            )
        return number or 1

    def is_finished(self, number: int) -> bool:
        """Return whether a run ended here by itself; what cannot be read has not."""
        try:
            return self.entry(number).state == "done"
        except (PeerbayesError, OSError, sqlite3.Error):
            return False

    def _has_begun(self, number: int) -> bool:
        """Return whether a run has begun here, also one whose state was set aside."""
        home = self.home.of_run(number)
        return home.state_path.exists() or any(home.records.glob(ASIDE))

    def _began(self, number: int) -> str:
        """Return the digest of the proposal that began here; "": none."""
        try:
            return (self.path / str(number) / "proposal").read_text()
        except FileNotFoundError:
            return ""

    def release(self, entry: RunEntry) -> None:
        """Take back what a proposal that ended without a run may spend, by the ledger."""
        home = self.home.of_run(entry.number)
        if entry.proposal is not None and not home.state_path.exists():
            home.agreement_path.unlink(missing_ok=True)

    def _roster_of(self, proposal: Proposal) -> RunRoster:
        self.named_roster(proposal.roster_digest)  # it is in its file from now on
        path = self._roster_path(proposal.roster_digest)
        return self._stored.of_run(path, self.home.authority_path.read_bytes(), proposal.number)

    def _current(self) -> Roster:
        """Return the roster in this folder."""
        if not (self.home.roster_path.exists() and self.home.authority_path.exists()):
            return self.home.roster()  # which says what is missing
        return self._stored.roster(self.home.roster_path, self.home.authority_path.read_bytes())

    # --- documents that come from others ------------------------------------------------------------------

    def add(self, document: bytes) -> Document | None:
        """Store a document from another member, once it is verified; None: it is here already.

        RosterNeeded where it names a roster that is to be fetched first, NotYet where other documents come first,
        IdentityError where it is not valid.
        """
        kind, current = kind_of(document), self._current()
        authority = self.home.authority_path.read_bytes()
        if kind is Decision:
            return self._add_decision(document, current, authority)
        proposal = Proposal.unverified(document)
        if self._proposal_path(proposal).exists():
            return None
        rosters = [current]
        with contextlib.suppress(RosterNeeded):
            rosters.append(self.named_roster(proposal.roster_digest))
        proposal = Proposal.verified(document, rosters, authority)
        self._refuse_flood(proposal, current)
        roster = self.named_roster(proposal.roster_digest, current)
        if (
            roster.version != proposal.roster
            or roster.network != proposal.network
            or roster.run != current.run
        ):
            raise IdentityError(
                f"the proposal of {proposal.member} names roster {proposal.roster}, and its digest is of roster "
                f"{roster.version} of {roster.network}"
            )
        if not roster.closed or not self._roster_of(proposal).has(proposal.member):
            raise IdentityError(f"{proposal.member} takes no part in the run that it proposes")
        _publish(self._proposal_path(proposal), document)
        return proposal

    def _add_decision(self, document: bytes, current: Roster, authority: bytes) -> Decision | None:
        decision = Decision.unverified(document)
        path = self._decision_path(decision)
        other = _second(path)
        stored = [Decision.unverified(each.read_bytes()) for each in (path, other) if each.exists()]
        if any(each.digest == decision.digest for each in stored) or len(stored) == 2:
            return None
        proposals = {each.digest: each for each in self._proposals(decision.number)}
        if (proposal := proposals.get(decision.proposal)) is None:
            raise NotYet(f"a decision about proposal {decision.proposal:.8}, which is not here yet")
        roster = self.named_roster(proposal.roster_digest)
        decision = Decision.verified(document, [roster, current], authority)
        if decision.network != proposal.network or not self._roster_of(proposal).has(decision.member):
            raise IdentityError(
                f"{decision.member} takes no part in run {decision.number}, and decides about it"
            )
        if decision.choice == "approve" and decision.at > proposal.expires:
            raise IdentityError(f"{decision.member} approved run {decision.number} after it had expired")
        terms, _ = _parsed(proposal.terms, proposal.number)
        if decision.choice == "approve" and terms is not None and terms.digest != decision.terms:
            raise IdentityError(f"{decision.member} approved other terms than those of run {decision.number}")
        if decision.member == self.home.settings().name and decision.choice == "approve" and not stored:
            self._assume(proposal)
        if not _publish(path, document) and not _publish(other, document):
            return None
        return decision

    def _assume(self, proposal: Proposal) -> None:
        """Give up a run that this peer approved and does not know: its folder was brought back from an older backup.

        What the run may have released counts as released. First: once the decision is here, nobody asks again.
        """
        home, costs = self.home.of_run(proposal.number), dict[str, float]()
        with contextlib.suppress(TermsError):
            if (promise := Terms.parse(proposal.terms, "the terms").privacy.promise) is not None:
                costs[f"{ASSUMED} run {proposal.number} of {proposal.digest:.16}"] = planned_cost(promise)
        home.records.mkdir(mode=0o700, parents=True, exist_ok=True)
        assume(home.audit_path, costs, f"lost {proposal.digest:.16}", 0)
        if self._began(proposal.number) not in ("", proposal.digest):
            return  # another one began here since, and is the run
        files.write(home.records / "proposal", proposal.digest.encode())
        lost = (
            "approved before this folder was brought back from a backup: what it may have sent counts as sent"
        )
        self.end(proposal.number, "left", lost)
        if self.clock() <= proposal.expires + BEGINS:  # members may wait for it
            self._say_no(proposal, lost, WITHDRAWN)

    def _refuse_flood(self, proposal: Proposal, current: Roster) -> None:
        """Refuse proposals without end: of numbers far ahead, of one number, or that wait for approvals."""
        if proposal.network != current.network:
            raise IdentityError(f"the proposal is of {proposal.network}; expected {current.network}")
        if proposal.member in current.revoked:
            raise IdentityError(f"{proposal.member} was revoked, and proposes run {proposal.number}")
        if proposal.at > self.clock() + FUTURE:
            raise IdentityError(
                f"the proposal of {proposal.member} is of {_time(proposal.at)}, and the clock here says "
                f"{_time(self.clock())}: are the clocks right?"
            )
        numbers = self.home.run_numbers()
        if proposal.number > numbers[-1] + AHEAD:
            raise NotYet(f"run {proposal.number} was proposed, and the highest known here is {numbers[-1]}")
        of_one = [each for each in self._proposals(proposal.number) if each.member == proposal.member]
        if len(of_one) >= OF_ONE:
            raise IdentityError(f"{proposal.member} has proposed run {proposal.number} {OF_ONE} times")
        entries = [
            self._of_proposal(each, current)
            for number in numbers[1:][-SHARED:]
            for each in self._proposals(number)
            if each.member == proposal.member
        ]
        if sum(not entry.is_complete for entry in entries) >= OF_WINDOW:  # also of those that have expired
            raise IdentityError(
                f"{OF_WINDOW} proposals of {proposal.member} among the last {SHARED} runs were not approved by all"
            )
        if proposal.expires < self.clock():
            return
        if sum(entry.state == "proposed" for entry in entries) >= OPEN_OF_ONE:
            raise IdentityError(f"{OPEN_OF_ONE} proposals of {proposal.member} wait for approvals already")

    def named_roster(self, digest: str, current: Roster | None = None) -> Roster:
        """Return a roster that proposals name; RosterNeeded where it is not here. The current one is stored then."""
        path = self._roster_path(digest)
        if path.exists():
            return self._stored.roster(path, self.home.authority_path.read_bytes())
        current = current or self._current()
        if current.digest.hex() != digest:
            raise RosterNeeded(digest)
        self._keep_roster(self.home.roster_path.read_bytes(), current)
        return current

    def keep_named_roster(self, signed: bytes, digest: str) -> None:
        """Store a roster that a proposal names, once it is verified."""
        roster = Roster.verified(signed, self.home.authority_path.read_bytes())
        if roster.digest.hex() != digest:
            raise IdentityError(f"roster {roster.digest.hex():.8} came instead of {digest:.8}")
        self._keep_roster(signed, roster)

    def _keep_roster(self, signed: bytes, roster: Roster) -> None:
        if Roster.verified(signed, self.home.authority_path.read_bytes()).digest == roster.digest:
            _publish(self._roster_path(roster.digest.hex()), signed)

    def shared(self) -> dict[str, Path]:
        """Return the documents that are passed on, by their digests: of the latest runs, proposals first."""
        paths: dict[str, Path] = {}
        for number in reversed(self.home.run_numbers()[1:][-SHARED:]):
            stored = (*self._stored.proposals(number), *self._stored.decisions(number))
            of_run = {document.digest: path for path, document in stored}
            if len(paths) + len(of_run) > MOST_SHARED:
                break
            paths = of_run | paths
        return paths

    def find(self, digest: str) -> Path | None:
        """Return the file of a document that is passed on, or of a roster that proposals name; None: not here."""
        return self.roster_file(digest) or self.shared().get(digest)

    def roster_file(self, digest: str) -> Path | None:
        """Return the file of a roster that proposals name; None: not here."""
        roster = self._roster_path(digest)
        return roster if roster.exists() else None

    def stamp(self) -> tuple[int, ...]:
        """Return a value that changes whenever documents are added, without reading any."""
        folders = [self.path / str(number) / name for number in self.home.run_numbers()[1:][-SHARED:]
                   for name in ("proposals", "decisions", "")]  # fmt: skip
        return tuple(path.stat().st_mtime_ns for path in folders if path.exists())

    # --- files ---------------------------------------------------------------------------------------------

    def _proposals(self, number: int) -> list[Proposal]:
        """Return the proposals of a run, the one that goes on first."""
        return [proposal for _, proposal in self._stored.proposals(number)]

    def _decisions(self, proposal: Proposal) -> Iterator[tuple[str, Decision]]:
        """Yield what members decided about a proposal; of one that decided twice, that it declined."""
        stored = dict(self._stored.decisions(proposal.number, f"{proposal.digest}."))
        for path, decision in stored.items():
            other = _second(path)
            if path == other:
                continue
            if other in stored:
                both = {each.choice: each for each in (decision, stored[other])}
                reason = f"it signed two decisions: {' and '.join(sorted((decision.choice, stored[other].choice)))}"
                decision = replace(decision, choice="decline", by=TWICE, reason=reason)
                if len(both) == 2 and both["decline"].by == WITHDRAWN:
                    decision = both["decline"]
            yield decision.member, decision

    def _proposal_path(self, proposal: Proposal) -> Path:
        return self.path / str(proposal.number) / "proposals" / f"{proposal.digest}.json"

    def _decision_path(self, decision: Decision) -> Path:
        name = f"{decision.proposal}.{decision.member}.json"
        return self.path / str(decision.number) / "decisions" / name

    def _roster_path(self, digest: str) -> Path:
        return self.path / "rosters" / f"{digest}.json"


def _last_agreed(entries: list[RunEntry]) -> RunEntry:
    """Return the last run that all approved; else the first, on which all agreed when they joined."""
    later = (entry for entry in reversed(entries) if entry.proposal is not None and entry.is_complete)
    return next(later, entries[0])


TWICE = "two decisions"
WITHDRAWN = "withdrawal"  # who signs it has approved, and says so
SAID = 8  # digits of a digest by which somebody says which proposal is meant


@functools.lru_cache(maxsize=64)
def _parsed(text: str, number: int) -> tuple[Terms | None, str]:
    """Return the terms of a proposal, or why they cannot be read: once, since a long text takes a while."""
    try:
        return Terms.parse(text, f"the terms of run {number}"), ""
    except TermsError as error:
        return None, str(error)


def _second(path: Path) -> Path:
    """Return the path of another decision of the same member about the same proposal: DIGEST.NAME.2.json."""
    return path.with_name(".".join([*path.name.split(".")[:2], "2", "json"]))


def _declined(decision: Decision) -> str:
    why = f": {decision.reason}" if decision.reason else ""
    did = "took its approval back" if decision.by == WITHDRAWN else "declined"
    return f"{decision.member} {did}{why}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _publish(path: Path, content: bytes) -> bool:
    """Write a file that is there as a whole or not at all; return False, and change nothing, where there is one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    files.write(draft, content)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    files.sync(path.parent)
    return True
