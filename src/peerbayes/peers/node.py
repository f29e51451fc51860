"""A peer at work: it agrees with the others, goes through its rounds, and answers its neighbours meanwhile.

No clock and no leader: a peer closes a round when its neighbours have answered, or after its own deadline with a
quorum. Everything it needs it asks for, one call at a time per neighbour; everything it gives out was stored before.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from peerbayes import files
from peerbayes.checkpoints import restored
from peerbayes.errors import PeerbayesError
from peerbayes.peers import store as stores
from peerbayes.peers import wire
from peerbayes.peers.agreement import Agreed, agree, data_digest
from peerbayes.peers.audit import AuditLog
from peerbayes.peers.edge_noise import shared_sources
from peerbayes.peers.errors import IdentityError, PeerError, RefusedMessage
from peerbayes.peers.groups import refuse_small
from peerbayes.peers.judge import Judge
from peerbayes.peers.learner import Broadcaster
from peerbayes.peers.mask_keys import PHASE, MaskKeys, own_key, verified
from peerbayes.peers.masked import Masked, Summed, Words
from peerbayes.peers.masks import Masker, new_key
from peerbayes.peers.news import News
from peerbayes.peers.pooling import Phase
from peerbayes.peers.private import agree_privately
from peerbayes.peers.releases import promised, rounds_in
from peerbayes.peers.roster import Roster
from peerbayes.peers.store import Store
from peerbayes.peers.sums import TreeSums
from peerbayes.peers.terms import Terms
from peerbayes.peers.transport import Transport, Unreachable
from peerbayes.peers.wire import Reply, Request, Said
from peerbayes.peers.witnesses import Witnesses
from peerbayes.privacy.sampling import Source
from peerbayes.secure_sums import MIN_GROUP

log = logging.getLogger("peerbayes.peer")

WAIT = 5.0  # seconds that an answer may wait for what was asked
GRACE = 10.0  # seconds on top before a call is given up: a slow link
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between attempts to reach a neighbour
AT_ONCE = 4  # requests of one neighbour that may wait here
QUICK = 0.01  # seconds of a round that neighbours' requests can wait for
MODEL_EVERY = 1.0  # seconds between two writes of the model file
STRUCK_OFF, TWO_STORIES = "struck off", "two stories"  # why a neighbour is heard no more
DRAIN = 30.0  # seconds to let neighbours hear why this peer stops


Outbox = dict[
    tuple[int, str], tuple[bytes, bytes, tuple[int, ...], str]
]  # (round, receiver): bytes, digest, shape, group


@dataclass(frozen=True)
class Membership:
    """Who this peer is, and in what network."""

    name: str
    terms: Terms
    roster: Roster
    signed: bytes = b""
    """The roster as the authority signed it."""


@dataclass
class Line:
    """What is known of a neighbour."""

    done: int = 0
    seen: float | None = None
    note: str = ""
    roster: int = -1
    """The version that it says it has."""
    tried: int = -1
    """The version that it was last asked for: asking once is enough."""
    offered: int = -1
    """The version that it was last given."""
    left: bool = False


@dataclass(eq=False)
class Node:
    """One run of one peer."""

    own: Membership
    frame: pd.DataFrame
    labels: np.ndarray
    store: Store
    transport: Transport
    audit: AuditLog
    model: Path | None = None
    newer: Callable[[bytes], Roster | None] = lambda _: None
    """Checks a roster that somebody offers, and keeps it where it is newer than the one on disk."""
    told: Callable[[str, dict[str, Any]], None] = lambda what, facts: None
    """Called with every event: what happened, and its facts."""
    linger: float = 3600.0
    """Seconds to stay for neighbours that are not done yet."""
    away: tuple[pd.DataFrame, np.ndarray] | None = None
    """Rows that the model is tested on, and not learned from."""
    source: Source = os.urandom
    """Where the noise of a private network comes from."""

    turn: int = 0
    agreed: Agreed | None = None
    lines: dict[str, Line] = field(default_factory=dict)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _news: News = field(default_factory=News)
    _inbox: dict[str, Any] = field(default_factory=dict)  # arrays, or masked words
    _gone: set[str] = field(default_factory=set)
    _outbox: Outbox = field(default_factory=dict)
    _busy: Counter[str] = field(default_factory=Counter)
    _model_due: float = 0.0
    _parted: dict[str, str] = field(default_factory=dict)  # neighbours that are heard no more, and why
    _signature: tuple[bytes, bytes] = (b"", b"")  # of the last message that was signed, and its digest

    @property
    def name(self) -> str:
        return self.own.name

    @property
    def terms(self) -> Terms:
        return self.own.terms

    @property
    def roster(self) -> Roster:
        return self.own.roster

    @property
    def neighbours(self) -> tuple[str, ...]:
        """Those that are still there."""
        return tuple(name for name in self.roster.present(self.name) if not self._line(name).left)

    def _line(self, name: str) -> Line:
        return self.lines.setdefault(name, Line())

    # --- the whole run ---------------------------------------------------------------------------------

    async def run(self) -> np.ndarray:
        """From wherever it stands to the end: S [C, K] of this peer's model."""
        for name, known in self.store.neighbours().items():
            self.lines[name] = Line(known["done"], known["seen"], known["note"], left=known["note"] == "left")
        for name in json.loads(self.store.told(TWO_STORIES) or "{}"):
            self._part(name, TWO_STORIES, "")
        await self.transport.serve(self.answer)
        try:
            await self._until_closed()
            if self.terms.privacy.secure_sum and self.store.last() is None:  # later, those with a group go on
                refuse_small(self.roster)
            self.store.claim(
                {
                    "run": (self.roster.run, "other terms, members or links"),
                    "data": (data_digest(self.frame, self.labels), "other rows: the data has changed"),
                }
            )
            if (stored := self.store.last()) is not None:
                self.turn = stored[0]  # before anybody is asked for a round
            try:
                self.agreed = await self._agree()
            except PeerbayesError:
                await self._sums.drain(DRAIN)
                self.store.forget_agreement()  # the next start may bring other rows
                raise
            if self.agreed.private is not None:
                self._tell("private", **promised(self.agreed.private, self.terms))
            self._tell("agreed", schema=self.agreed.schema.fingerprint, peers=self.agreed.peers,
                       rows=self.agreed.rows, strategy=self.agreed.strategy)  # fmt: skip
            stats = await self._rounds(self.agreed)
            await self._finish()
            return stats
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            await self.transport.close()
            self.audit.sync()

    async def _until_closed(self) -> None:
        self._start_lines()
        if not self.roster.closed:
            self._tell("open", members=len(self.roster.members))
        while not self.roster.closed:
            await self._news.wait(1.0)

    async def _agree(self) -> Agreed:
        """Everything that the rounds need."""
        if self.terms.privacy.epsilon is None:
            agreed = await agree(
                self.name, self.frame, self.labels, self.terms, self.roster, self._total, self._exchange
            )
        else:
            agreed = await agree_privately(
                self.name,
                self.frame,
                self.labels,
                self.terms,
                self.roster,
                self._total,
                self._bought,
                self.source,
            )
        if self.terms.privacy.secure_sum or self.terms.privacy.edge_noise:
            masker, keys = await self._keys()
            if agreed.private is not None and self.terms.privacy.edge_noise:
                agreed.private.shared = shared_sources(masker, keys, self.roster)
            if self.terms.privacy.secure_sum:
                assert isinstance(agreed.learner, Broadcaster)
                learner = Masked.of(agreed.learner, agreed.plausible, masker, keys, self.roster)
                agreed = replace(agreed, learner=learner)
        return agreed

    async def _bought(self, name: str, cost: float, make: Callable[[], np.ndarray]) -> np.ndarray:
        """A release before the first round: stored before it is sent, and told again after a restart."""
        return await asyncio.to_thread(self.store.bought, name, cost, make)

    async def _total(self, phase: Phase, own: Any) -> Any:
        self._tell("agreeing", phase=phase.name)
        return await self._sums.total(phase, own, lambda: self.neighbours)

    async def _exchange(self, own: np.ndarray, check: Callable[[np.ndarray], None]) -> dict[str, np.ndarray]:
        return await self._sums.exchange(own, check)

    async def _keys(self) -> tuple[Masker, dict[str, bytes]]:
        """This peer's key, and everybody's public ones, once each is known to be its owner's."""
        private = self.store.secret("private mask key", new_key)
        own = own_key(private, self.roster, self.name, self.transport.vouch)
        keys: MaskKeys = await self._total(Phase(PHASE, MaskKeys.parse, lambda part: len(part.held)), own)
        masker = Masker(self.name, private, self.roster.network, self.roster.run)
        if self.store.told("mask keys") != keys.digest:  # certificates may be renewed during a run; keys stay
            verified(keys, self.roster, self.transport.vouched)
            self.store.claim({"mask keys": (keys.digest, "other mask keys")})
        return masker, keys.public

    @property
    def _masked(self) -> Masked | None:
        """The learner, where messages are masked."""
        return self.agreed.learner if self.agreed and isinstance(self.agreed.learner, Masked) else None

    @cached_property
    def _sums(self) -> TreeSums:
        """What is agreed on by sums, once the roster is closed."""
        return TreeSums(self.name, self.roster, self.store, self._news)

    async def _rounds(self, agreed: Agreed) -> np.ndarray:
        learner, judge = agreed.learner, Judge.of(agreed, self.away)
        stored = self.store.last()
        if agreed.private is not None:
            agreed.private.done = rounds_in(self.store.releases())
            agreed.private.resting = stored is not None  # its state is on disk: nothing is drawn for it again
        state = await asyncio.to_thread(learner.begin)
        if stored is None:
            self._outbox = await asyncio.to_thread(self._stored, 0, state, (), ())
        else:
            self.turn, nested = stored
            state = restored(state, iter(_flat(nested)))
            self._tell("resumed", round=self.turn)
        if agreed.private is not None:
            agreed.private.resting = False
        self._strike_off(learner.struck(state))
        self._news.tell()
        quick = False
        while self.turn < self.terms.rounds:
            self._refuse_alone()
            heard = await self._hear()
            missing = tuple(
                name for name in learner.neighbours if name not in heard and name not in self._parted
            )
            began = time.monotonic()
            if quick:  # a thread would cost more than it saves
                state, outbox, figures = self._advanced(agreed, judge, state, heard, missing)
            else:
                state, outbox, figures = await asyncio.to_thread(
                    self._advanced, agreed, judge, state, heard, missing
                )
            quick = time.monotonic() - began < QUICK
            self.turn += 1
            # A neighbour may be a round behind; older messages come from the store.
            self._outbox = {key: ready for key, ready in self._outbox.items() if key[0] == self.turn} | outbox
            self._inbox.clear()
            self._gone.clear()
            self._witnesses.forget(self.turn)
            self._strike_off(learner.struck(state))
            self._news.tell()
            spent = {} if agreed.private is None else {"epsilon": agreed.private.spent}
            self._tell(
                "round", round=self.turn, of=self.terms.rounds, heard=sorted(heard), missing=sorted(missing),
                figures=figures, **spent,
            )  # fmt: skip
        stats = learner.read(state)
        await asyncio.to_thread(self._write_model, stats)
        return stats

    def _advanced(
        self,
        agreed: Agreed,
        judge: Judge,
        state: Any,
        heard: dict[str, Any],
        missing: tuple[str, ...],
    ) -> tuple[Any, Outbox, dict[str, float | None]]:
        """One round: learn, judge, store. In a thread where it takes long, so that neighbours get answers meanwhile."""
        before, state = state, agreed.learner.step(state, self._gathered(state, heard))
        turn, figures = self.turn + 1, {}
        if turn == self.terms.rounds or time.monotonic() > judge.due:
            figures = judge.figures(agreed.learner.read(state))
            figures["disagreement"] = agreed.learner.apart(before, heard)
        outbox = self._stored(turn, state, tuple(heard), missing, figures)
        if time.monotonic() > self._model_due:
            self._write_model(agreed.learner.read(state))
        return state, outbox, figures

    def _gathered(self, state: Any, heard: dict[str, Any]) -> Any:
        """What the learner takes: the messages heard, or their sum where they are masked."""
        if (masked := self._masked) is None:
            return heard
        try:
            found = masked.summed(state, heard, self.turn + 1)
        except RefusedMessage as error:
            self._refuse("the group", error)
            found = Summed(None, why=f"refused: {error.reason}")
        if found.total is None and masked.neighbours:
            self._tell("skipped", round=self.turn + 1, why=found.why)
        return found

    def _refuse_alone(self) -> None:
        """Stop where so many were revoked that this peer has no group any more."""
        masked = self._masked
        if masked is not None and masked.neighbours and self.name not in masked.groups(self.roster):
            raise PeerError(
                f"roster {self.roster.version} revoked {', '.join(self.roster.revoked)}, and fewer than {MIN_GROUP} "
                f"neighbours of {self.name} are left to sum; the model stays as it is. Found another network to go on"
            )

    def _stored(
        self,
        turn: int,
        state: Any,
        heard: tuple[str, ...],
        missing: tuple[str, ...],
        figures: dict[str, float | None] | None = None,
    ) -> Outbox:
        """Store a round, and the messages of the next as bytes: only now may neighbours have them."""
        assert self.agreed is not None
        outgoing, groups = self._outgoing(state, turn + 1) if turn < self.terms.rounds else ({}, {})
        private = self.agreed.private
        release = None if private is None else private.taken()
        digests = self.store.add_round(turn, state, outgoing, heard, missing, figures, groups, release)
        if private is not None and release is not None:
            private.done += 1
        bodies = {digests[name]: message for name, message in outgoing.items()}
        ready = {digest: wire.bytes_of(message) for digest, message in bodies.items()}
        return {
            (turn + 1, name): (ready[digests[name]], digests[name], message.shape, groups.get(name, ""))
            for name, message in outgoing.items()
        }

    def _outgoing(self, state: Any, turn: int) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """The messages of a round by receiver, and the groups that they were masked for."""
        assert self.agreed is not None
        if (masked := self._masked) is None:
            return self.agreed.learner.outgoing(state), {}
        hidden = masked.hidden(state, turn, self.roster)
        return (
            {name: each.words for name, each in hidden.items()},
            {name: each.group for name, each in hidden.items()},
        )

    async def _hear(self) -> dict[str, Any]:
        """The neighbours' messages of the coming round: all, or after the deadline a quorum."""
        assert self.agreed is not None
        began, clock = time.monotonic(), time.time()
        while True:
            waited = [name for name in self._speaking if name in self.neighbours]
            lacking = [name for name in waited if name not in self._inbox and name not in self._gone]
            if not lacking:
                break
            # One that answers is only behind, perhaps waiting for somebody itself: if this peer went on without
            # it while it still hears this peer, the network's sum would suffer. It gets twice as long.
            behind = any(
                (self._line(name).seen or 0.0) > clock and not self._line(name).note for name in lacking
            )
            left = began + self.terms.limits.deadline * (2 if behind else 1) - time.monotonic()
            if left <= 0 and len(waited) - len(lacking) >= self.terms.limits.quorum * len(waited):
                break
            await self._news.wait(min(left, 1.0) if left > 0 else 1.0)
        return dict(self._inbox)

    @property
    def _speaking(self) -> tuple[str, ...]:
        """Whose messages a round needs."""
        assert self.agreed is not None
        if (masked := self._masked) is None or not masked.neighbours:
            return self.agreed.learner.neighbours
        return masked.groups(self.roster).get(self.name, ())

    @property
    def _kind(self) -> wire.Kind:
        """What this network's messages are."""
        return "masked" if self.terms.privacy.secure_sum else "round"

    def _write_model(self, stats: np.ndarray) -> None:
        """The model as a file: as good as it is now."""
        assert self.agreed is not None
        began = time.monotonic()
        if self.model is not None and not self.agreed.of_weights:
            files.write(self.model, self.agreed.statistics(stats).to_bytes())
        took = time.monotonic() - began
        self._model_due = began + max(MODEL_EVERY, 20 * took)  # a twentieth of the time is enough

    async def _finish(self) -> None:
        """Stay until the neighbours are done too, for they may still need what this peer said."""
        self._tell("done", round=self.turn)
        until = time.monotonic() + self.linger
        while (behind := [n for n in self.neighbours if self._line(n).done < self.terms.rounds]) and (
            time.monotonic() < until
        ):
            await self._news.wait(min(1.0, max(0.0, until - time.monotonic())))
        if behind:
            self._tell("left behind", neighbours=behind)
        for name in (*self.neighbours, *self._parted):  # a last word, so that they need not wait either
            last = self._request("hello", heard=self._witnessed(name, self.turn))
            if name in self._parted:
                last = self._request("leave")
            try:
                await self.transport.ask(name, wire.encode(last), 1.0)
            except (Unreachable, RefusedMessage):
                continue

    # --- asking ----------------------------------------------------------------------------------------

    def _start_lines(self) -> None:
        for name in self.neighbours:
            if name not in self._tasks:
                self._tasks[name] = asyncio.create_task(self._ask_forever(name), name=f"line to {name}")

    def _request(self, kind: wire.Kind, **more: Any) -> Request:
        return Request(
            wire.VERSION, self.roster.run, self.name, kind, done=self.turn, roster=self.roster.version, **more
        )

    def _wanted(self, neighbour: str) -> Request | None:
        """The next thing to ask this neighbour for."""
        line = self._line(neighbour)
        if line.roster > max(self.roster.version, line.tried):
            return self._request("roster")
        if -1 < line.roster < self.roster.version and line.offered < self.roster.version:
            return self._request("roster", body=self.own.signed)
        if line.roster < 0 or not self.roster.closed:
            return self._request("hello")
        if (part := self._sums.wanted(neighbour)) is not None:
            return self._request(part[0], phase=part[1], wait=WAIT)
        if self.agreed is None:
            return None
        if (
            self.turn < self.terms.rounds
            and neighbour not in self._inbox
            and neighbour not in self._gone
            and neighbour in self.agreed.learner.neighbours
        ):
            return self._request(
                self._kind, turn=self.turn + 1, schema=self.agreed.schema.fingerprint, wait=WAIT,
                heard=self._witnessed(neighbour, self.turn),
            )  # fmt: skip
        if self.turn >= self.terms.rounds > line.done:
            return self._request("hello")
        return None

    async def _ask_forever(self, neighbour: str) -> None:
        """One call after the other, for whatever is wanted."""
        pause = FIRST_PAUSE
        while neighbour in self.neighbours:
            asked = self._wanted(neighbour)
            if asked is None:
                await self._news.wait(None)
                continue
            began = time.monotonic()
            try:
                content = await self.transport.ask(neighbour, wire.encode(asked), WAIT + GRACE)
                reply = wire.reply_in(content, asked, neighbour)
                await self._take(neighbour, asked, reply)
            except Unreachable as error:
                self._note(neighbour, str(error), lost=True)
            except RefusedMessage as error:
                self._refuse(neighbour, error)
                self._note(neighbour, f"refused: {error.reason}")
            except Exception:  # a line must not die unseen
                log.exception(f"asking {neighbour} failed")
            else:
                pause = FIRST_PAUSE if reply.status != "refused" else pause
                waited = time.monotonic() - began >= asked.wait / 2  # as it was asked to
                if reply.status != "refused" and (
                    self._wanted(neighbour) != asked or (asked.wait and waited)
                ):
                    continue
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _take(self, neighbour: str, asked: Request, reply: Reply) -> None:
        """Use a reply that is from this neighbour, of this run, and what was asked for."""
        line = self._line(neighbour)
        if asked.kind == "roster" and asked.body:
            line.offered = asked.roster
        elif asked.kind == "roster":
            line.tried = line.roster
        line.done, line.seen, line.roster = max(line.done, reply.done), time.time(), reply.roster
        if reply.status == "refused":
            self._note(neighbour, f"it refuses: {reply.reason}")
            if asked.kind == "round" and reply.reason.partition(":")[0] in (STRUCK_OFF, TWO_STORIES):
                self._part(neighbour, STRUCK_OFF, f"it hears this peer no more: {reply.reason:.200}")
            return
        self._note(neighbour, "")
        if reply.status == "gone" and asked.kind in wire.OF_ROUND and asked.turn == self.turn + 1:
            if reply.done < asked.turn + stores.KEPT:
                raise RefusedMessage("gone", f"at round {reply.done} it must still have round {asked.turn}")
            self._gone.add(neighbour)  # this peer was away for too long: the round goes on without it
        if reply.status == "ok" and asked.kind == "roster" and reply.body:
            self.adopt(reply.body)
        elif reply.status == "ok" and asked.kind in ("sum", "first"):
            await self._sums.take(neighbour, asked.kind, asked.phase, reply)
        elif reply.status == "ok" and asked.kind == "round" and self.agreed is not None:
            message = wire.numbers_in(reply, self.agreed.learner.shape)
            self._check(neighbour, message, asked.turn, reply)
            if asked.turn == self.turn + 1:  # else the round was closed without it
                self._inbox[neighbour] = message
        elif reply.status == "ok" and asked.kind == "masked" and self.agreed is not None:
            words = wire.numbers_in(reply, self.agreed.learner.shape, "<u8")
            if asked.turn == self.turn + 1:
                self._inbox[neighbour] = Words(reply.phase, words)
        self._news.tell()

    def _check(self, neighbour: str, message: np.ndarray, turn: int, reply: Reply) -> None:
        """Refuse what no honest peer says; remember what this one said."""
        assert self.agreed is not None
        if (broken := self.agreed.plausible.broken(message, turn)) is not None:
            raise RefusedMessage.of(broken)
        if self.agreed.plausible.unusual(message, turn):
            self._note(neighbour, f"its message of round {turn} is unusually large")
        if not self.agreed.learner.same_to_all:
            return
        said = Said(neighbour, turn, reply.digest, reply.signature)
        if not self._is_signed(said):
            raise RefusedMessage(
                "wrong signature", f"the message of round {turn} is not signed by {neighbour}"
            )
        self._expose(self._witnesses.heard(said))
        if neighbour in self._parted:
            raise RefusedMessage(
                "two stories", f"{neighbour} said something else to another peer in round {turn}"
            )

    # --- witnesses -------------------------------------------------------------------------------------

    @cached_property
    def _witnesses(self) -> Witnesses:
        return Witnesses(self._is_signed)

    def _is_signed(self, said: Said) -> bool:
        return self.transport.signed(said.name, said.signature, said.content(self.roster.run))

    def _witnessed(self, neighbour: str, turn: int) -> tuple[Said, ...]:
        """What neighbours of both said in a round."""
        return self._witnesses.of(sorted(self._common(neighbour)), turn)

    def _common(self, neighbour: str) -> set[str]:
        """Who is a neighbour of both."""
        return set(self.roster.neighbours(neighbour)) & set(self.roster.neighbours(self.name))

    def _listen(self, caller: str, told: tuple[Said, ...]) -> None:
        """Compare what a neighbour was told with what this peer was."""
        both = self._common(caller)
        for said in told:
            if said.name in both:
                self._expose(self._witnesses.told(said, caller, self.turn))

    def _expose(self, pair: tuple[Said, Said] | None) -> None:
        """Part with a neighbour that signed two messages of one round; keep the proof."""
        if pair is None or pair[0].name in self._parted:
            return
        name, turn = pair[0].name, pair[0].turn
        proofs = json.loads(self.store.told(TWO_STORIES) or "{}")
        proofs[name] = {
            "run": self.roster.run, "round": turn,
            "signed": [{"digest": each.digest.hex(), "signature": each.signature.hex()} for each in pair],
        }  # fmt: skip
        self.store.keep(TWO_STORIES, json.dumps(proofs))
        for each in pair:  # nothing leaves, but whoever reads the log must find it
            self.audit.add(name, f"{TWO_STORIES} of round {turn}, not sent", 0, each.digest)
        digests = " and ".join(each.digest.hex()[:12] for each in pair)
        self._part(name, TWO_STORIES, f"it signed two messages of round {turn}: {digests}")

    def _strike_off(self, names: tuple[str, ...]) -> None:
        for name in names:
            self._part(name, STRUCK_OFF, "its models fail on this peer's rows")

    def _part(self, name: str, reason: str, why: str) -> None:
        """Hear a neighbour no more, for good; it is told when it asks."""
        if name in self._parted:
            return
        self._parted[name] = reason
        line = self._line(name)
        line.left, line.note = True, f"{reason}: {why}"
        self._inbox.pop(name, None)
        self._tell("parted", neighbour=name, reason=reason, why=why)
        self._news.tell()

    # --- answering -------------------------------------------------------------------------------------

    async def answer(self, caller: str, content: bytes) -> bytes:
        """The reply to whatever a peer with a certificate of this network sent."""
        asked = None
        try:
            asked = wire.request_in(content)
            self._admit(caller, asked)
            self._busy[caller] += 1
            try:
                reply = await self._reply(caller, asked)
            finally:
                self._busy[caller] -= 1
        except RefusedMessage as error:
            self._refuse(caller, error)
            kind: wire.Kind = "hello" if asked is None else asked.kind
            reply = self._answer(asked, kind, "refused", reason=f"{error.reason}: {error}"[:500])
        return wire.encode(reply)

    def _answer(self, asked: Request | None, kind: wire.Kind, status: wire.Status, **more: Any) -> Reply:
        facts: dict[str, Any] = {} if asked is None else {"phase": asked.phase, "turn": asked.turn}
        return Reply(
            wire.VERSION, self.roster.run, self.name, kind, status, done=self.turn, roster=self.roster.version,
            clock=time.time(), **(facts | more),
        )  # fmt: skip

    def _admit(self, caller: str, asked: Request) -> None:
        if asked.sender != caller:
            raise RefusedMessage("speaks for another", f"{caller} asks in the name of {asked.sender!r}")
        if caller in self.roster.revoked:
            raise RefusedMessage("revoked", f"{caller} is no longer a member")
        if self._busy[caller] >= AT_ONCE:
            raise RefusedMessage("too many at once", f"{caller} has {AT_ONCE} requests waiting here")
        if asked.kind not in wire.OF_RUN:
            return
        if caller not in self.roster.neighbours(self.name):
            raise RefusedMessage("not a neighbour", f"{caller} has no link to {self.name}")
        if caller in self._parted:
            detail = f"{self.name} hears {caller} no more"
            if self._parted[caller] == TWO_STORIES:
                raise RefusedMessage("two stories", detail)
            raise RefusedMessage("struck off", detail)
        if asked.run != self.roster.run:
            raise RefusedMessage("wrong network", f"run {asked.run:.12} instead of {self.roster.run:.12}")

    async def _reply(self, caller: str, asked: Request) -> Reply:
        if caller in self.roster.neighbours(self.name):
            line = self._line(caller)
            changed = asked.done > line.done or asked.roster > line.roster
            line.done, line.seen = max(line.done, asked.done), time.time()
            line.roster = max(line.roster, asked.roster)
            if asked.kind == "leave":
                line.left = True
                self._note(caller, "left")
            if asked.heard and asked.run == self.roster.run:
                self._listen(caller, asked.heard)
            if changed or asked.kind == "leave":
                self._news.tell()
        if asked.kind == "roster" and asked.body:
            self.adopt(asked.body)
            self._news.tell()
            return self._answer(asked, "roster", "ok")
        if asked.kind == "roster":
            return self._bytes(caller, asked, self.own.signed, (), logged=False)
        if asked.kind in ("hello", "leave"):
            return self._answer(asked, asked.kind, "ok")
        until = time.monotonic() + min(asked.wait, WAIT)
        news = self._news.next
        while (found := await self._found(caller, asked)) is None and time.monotonic() < until:
            await self._news.wait(until - time.monotonic(), news)
            news = self._news.next
        if found is None:
            return self._answer(asked, asked.kind, "not yet")
        if found == "gone":
            return self._answer(asked, asked.kind, "gone")
        if caller in self.roster.revoked:  # meanwhile
            raise RefusedMessage("revoked", f"{caller} is no longer a member")
        body, digest, shape, *group = found
        return self._bytes(caller, asked, body, shape, digest, group=group[0] if group else "")

    async def _found(self, caller: str, asked: Request) -> Any:
        """Bytes, digest and shape of what is asked for; None: not yet."""
        if asked.kind == "sum":
            body = self._sums.behind(caller, asked.phase)
            return None if body is None else (body, wire.digest_of(body), ())
        if asked.kind == "first":
            own = self._sums.first()
            return None if own is None else _as_bytes(own)
        if asked.kind != self._kind:
            raise RefusedMessage(
                "wrong message", f"{asked.kind!r} was asked for; this network has {self._kind!r}"
            )
        if self.agreed is not None and asked.schema != self.agreed.schema.fingerprint:
            raise RefusedMessage(
                "wrong schema", f"schema {asked.schema:.12} instead of {self.agreed.schema.fingerprint:.12}"
            )
        if asked.turn > self.turn + 1 or self.agreed is None:
            return None
        ready = self._outbox.get((asked.turn, caller))
        if ready is None:
            stored = await asyncio.to_thread(self.store.message, asked.turn, caller)
            if stored is None:
                return "gone" if asked.turn < self.store.oldest() else None
            ready = *stored, self.agreed.learner.shape, self.store.group(asked.turn, caller)
        return ready

    def _bytes(
        self,
        caller: str,
        asked: Request,
        body: bytes,
        shape: tuple[int, ...],
        digest: bytes = b"",
        logged: bool = True,
        group: str = "",
    ) -> Reply:
        digest = digest or wire.digest_of(body)
        if logged:
            what = {"round": f"round {asked.turn}", "masked": f"masked round {asked.turn}"}.get(
                asked.kind, f"{asked.kind} {asked.phase}".strip()
            )
            what = what if self.terms.privacy.epsilon is None else f"private {what}"
            self.audit.add(caller, what, len(body), digest)
        phase, signature = group if asked.kind == "masked" else asked.phase, b""
        if asked.kind == "round" and self.agreed is not None and self.agreed.learner.same_to_all:
            signature = self._signed(asked.turn, digest)
        return self._answer(
            asked,
            asked.kind,
            "ok",
            phase=phase,
            schema=asked.schema,
            shape=shape,
            digest=digest,
            body=body,
            signature=signature,
        )

    def _signed(self, turn: int, digest: bytes) -> bytes:
        """This peer's signature of its message of a round: one for all neighbours."""
        content = wire.statement(self.roster.run, turn, digest)
        if self._signature[0] != content:
            self._signature = content, self.transport.sign(content)
        return self._signature[1]

    # --- what happens ----------------------------------------------------------------------------------

    def adopt(self, signed: bytes) -> None:
        """Take a newer roster of the authority, whoever brought it."""
        try:
            roster = self.newer(signed)
        except IdentityError as error:
            raise RefusedMessage("bad roster", str(error)) from error
        if roster is None or roster.version <= self.roster.version:
            return
        if self.roster.closed and roster.run != self.roster.run:
            raise RefusedMessage("bad roster", "it has other members than the run that is under way")
        self.own = Membership(self.name, self.terms, roster, signed)
        self.transport.follow(roster)
        self._tell("roster", version=roster.version, revoked=list(roster.revoked), closed=roster.closed)
        self._start_lines()
        self._news.tell()

    def _refuse(self, who: str, error: RefusedMessage) -> None:
        self._tell("refused", who=who, reason=error.reason, detail=str(error)[:300])

    def _note(self, neighbour: str, note: str, lost: bool = False) -> None:
        line = self._line(neighbour)
        if line.note != note:
            line.note = note
            self._tell("lost" if lost else "neighbour", neighbour=neighbour, note=note)

    def _tell(self, what: str, **facts: Any) -> None:
        self.told(what, facts)


def _as_bytes(array: np.ndarray) -> tuple[bytes, bytes, tuple[int, ...]]:
    body = np.ascontiguousarray(array, dtype="<f8").tobytes()
    return body, wire.digest_of(body), array.shape


def _flat(nested: Any) -> list[np.ndarray]:
    return [part for inner in nested for part in _flat(inner)] if isinstance(nested, list) else [nested]
