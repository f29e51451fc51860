"""Messages of rounds: those that came in, and those that are ready to be fetched."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from peerbayes.peer.agreement.negotiate import Agreed
from peerbayes.peer.learning.learner import Attachment
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.session import Session, Waiting
from peerbayes.peer.state.ledger import Ledger
from peerbayes.peer.state.store import RoundRecord

# --- the inbox of the coming round: neighbours' messages, and when there are enough of them


class Look(NamedTuple):
    """What was known of a neighbour when a round began, and how far it has come since then."""

    seen: float | None
    done: int
    advanced: float | None = None
    """Seconds into the round at which it was last known to have closed one."""


@dataclass(eq=False)
class OpenRound:
    """A round that waits for messages: how long each neighbour may take."""

    session: Session
    began: float
    """By the clock of the inbox."""
    at: float = field(default_factory=time.time)
    _looks: dict[str, Look] = field(default_factory=dict)

    def timeouts(self, expected: list[str], lacking: list[str], seconds: float) -> dict[str, float]:
        """Return the seconds that each lacking neighbour may take in all, `seconds` after the round began."""
        coming = self.session.round_index + 1
        # Neighbours that have closed a round beyond the coming one did so without this peer; one that says so may lie.
        ahead = sum(self.session.neighbour(name).done > coming for name in expected)
        return {name: self._timeout(name, seconds, 2 * ahead > len(expected)) for name in lacking}

    def _timeout(self, name: str, seconds: float, left_behind: bool) -> float:
        state, deadline = self.session.neighbour(name), self.session.terms.limits.deadline
        look = self._looks.setdefault(name, Look(state.seen, state.done))
        if state.done > look.done:
            look = self._looks[name] = Look(look.seen, state.done, seconds)
        timeout = state.response.timeout(deadline, left_behind)
        # A neighbour that answers is only behind, perhaps waiting for another one itself: if this peer went on
        # without it while it still hears this peer, the network's sum would suffer. It gets twice as long.
        if state.seen != look.seen and not state.note:
            timeout = 2 * state.response.timeout(deadline)
        # One that closes rounds meanwhile catches up: it is worth waiting for, whatever it has missed.
        if look.advanced is not None:
            timeout = max(timeout, look.advanced + state.response.least(deadline))
        return min(timeout, 2 * deadline)


@dataclass(eq=False)
class Inbox:
    """Holds messages of the coming round by neighbour: arrays, or masked words."""

    session: Session
    now: Callable[[], float] = time.monotonic
    """Seconds, by which the deadline of a round counts."""
    _messages: dict[str, Any] = field(default_factory=dict)
    _attached: dict[str, Attachment] = field(default_factory=dict)
    _digests: dict[str, bytes] = field(default_factory=dict)
    _given_up: set[str] = field(default_factory=set)
    _early: dict[tuple[int, str], tuple[Any, Attachment | None, bytes]] = field(default_factory=dict)
    """Messages of later rounds, by round and neighbour: of neighbours that this peer is behind."""
    _began: tuple[float | None, float | None] = None, None
    """When the last round and the coming one began to wait."""
    _latest: dict[str, tuple[int, np.ndarray]] = field(default_factory=dict)
    """The last message of each neighbour and its round, where the next is a difference from it."""

    def lacks(self, neighbour: str, round_index: int | None = None) -> bool:
        """Return whether a neighbour's message may still come: of the coming round, or of a later one."""
        if round_index is not None and round_index > self.session.round_index + 1:
            return (round_index, neighbour) not in self._early
        return neighbour not in self._messages and neighbour not in self._given_up

    def base(self, neighbour: str) -> int:
        """Return the round of a neighbour's last message; 0: there is none yet."""
        return self._latest[neighbour][0] if neighbour in self._latest else 0

    def message(self, neighbour: str, round_index: int) -> np.ndarray | None:
        """Return a neighbour's last message if it is that of a round."""
        return self._latest[neighbour][1] if 0 < round_index == self.base(neighbour) else None

    def put(
        self,
        neighbour: str,
        round_index: int,
        message: Any,
        attached: Attachment | None = None,
        digest: bytes = b"",
    ) -> None:
        """Take a neighbour's message of a round; `digest`: of its bytes, where that was checked."""
        late = self.session.round_index + 1 - round_index
        if late in (0, 1) and (began := self._began[1 - late]) is not None:
            self.session.neighbour(neighbour).response.add(self.now() - began)
        if self.session.terms.messages != "float64":
            self._latest[neighbour] = round_index, message
        if round_index == self.session.round_index + 1:  # else the round was closed without it
            self._take(neighbour, message, attached, digest)
        elif late < 0:
            self._early[round_index, neighbour] = message, attached, digest

    def _take(self, neighbour: str, message: Any, attached: Attachment | None, digest: bytes) -> None:
        self._messages[neighbour], self._digests[neighbour] = message, digest
        if attached is not None:
            self._attached[neighbour] = attached

    @property
    def attached(self) -> dict[str, Attachment]:
        """Return what came beside the messages."""
        return dict(self._attached)

    @property
    def digests(self) -> dict[str, bytes]:
        """Return the digests of the messages' bytes, each of which was checked; b"": not known."""
        return dict(self._digests)

    def give_up(self, neighbour: str) -> None:
        """Stop waiting for a neighbour's message: the round goes on without it."""
        self._given_up.add(neighbour)

    def drop(self, neighbour: str) -> None:
        """Remove a neighbour's message."""
        self._messages.pop(neighbour, None)
        self._early = {key: early for key, early in self._early.items() if key[1] != neighbour}

    def clear(self) -> None:
        """Start the next round with the messages that are already there."""
        self._messages.clear()
        self._attached.clear()
        self._digests.clear()
        self._given_up.clear()
        for key in [key for key in self._early if key[0] <= self.session.round_index + 1]:
            self._take(key[1], *self._early.pop(key))

    async def enough(self, agreed: Agreed) -> dict[str, Any]:
        """Return the neighbours' messages: all of them, or a quorum once each of the others had its time."""
        session = self.session
        opened = OpenRound(session, self.now())
        self._began = self._began[1], opened.began
        latest: dict[str, float] = {}
        while True:
            expected = [name for name in self._senders(agreed) if name in session.neighbours]
            lacking = [name for name in expected if self.lacks(name)]
            seconds = self.now() - opened.began
            if not lacking:
                break
            latest = opened.timeouts(expected, lacking, seconds)
            session.waiting = Waiting(session.round_index + 1, opened.at, latest)
            remaining = max(latest.values()) - seconds
            heard = len(expected) - len(lacking)
            if remaining <= 0 and heard >= session.terms.limits.quorum * len(expected):
                break
            await session.changes.wait(min(remaining, 1.0) if remaining > 0 else 1.0)
        for name in expected:
            response = session.neighbour(name).response
            response.missed = response.missed + 1 if name in lacking else 0
        session.waiting = Waiting(session.round_index + 1, opened.at, latest, seconds)
        return dict(self._messages)

    def _senders(self, agreed: Agreed) -> tuple[str, ...]:
        """Return the neighbours whose messages a round needs."""
        if (masked := self.session.masked) is None or not masked.neighbours:
            return agreed.learner.neighbours
        return masked.groups(self.session.roster).get(self.session.name, ())


# --- this peer's messages of each round: stored on disk before neighbours can have them


class Ready(NamedTuple):
    """A message that may be sent."""

    body: bytes
    digest: bytes
    shape: tuple[int, ...] = ()
    group: str = ""
    """The digest of the group that a masked message was made for."""
    missed: int = 0
    """Rounds since this peer missed the receiver; 0: not lately."""
    correction: bytes = b""
    """This peer's correction of the link, after a loss."""
    base: int | None = None
    """The round of the message that the body is coded beside; 0: the start. None: it is not coded."""


Messages = dict[tuple[int, str], Ready]  # by round and receiver
Found = Ready | Literal["gone"] | None  # None: not yet


@dataclass(eq=False)
class Outbox:
    """This peer's messages: the last two rounds in memory, older ones from the store."""

    session: Session
    ledger: Ledger
    _ready: Messages = field(default_factory=dict)
    _last: tuple[RoundRecord, dict[str, bytes]] | None = None
    """The round that was stored last, and its digests."""
    _shown: int = 0
    """The last round whose messages neighbours may have."""

    def prepared(
        self,
        agreed: Agreed,
        round_index: int,
        state: Any,
        heard: tuple[str, ...] = (),
        missing: tuple[str, ...] = (),
        figures: dict[str, float | None] | None = None,
        left_out: tuple[str, ...] = (),
        reference: np.ndarray | None = None,
    ) -> RoundRecord:
        """Return a round ready to be stored, with the messages of the next; computed once, even if storing fails."""
        last = round_index >= self.session.terms.message_rounds
        outgoing, groups = ({}, {}) if last else self._outgoing(agreed, state, round_index + 1)
        attached = {} if last else agreed.learner.attached(state)
        release = None if agreed.private is None else agreed.private.taken()
        return RoundRecord(
            round_index, state, outgoing, heard, missing, figures, groups, release, left_out, reference, attached,
        )  # fmt: skip

    def stored(self, agreed: Agreed, ready: RoundRecord) -> Messages:
        """Store a round, and return the messages of the next as bytes: only now may neighbours have them.

        If that fails, it can be tried again: what is already stored is not stored twice.
        """
        if self._last is None or self._last[0] is not ready:
            self._last = ready, self.session.store.add_round(ready)
        digests = self._last[1]
        if agreed.private is not None and ready.release is not None:
            self.ledger.enter(ready.release.name)
            agreed.private.done += 1
        self.session.stored = self.session.store.stored()
        distinct = {digests[name]: message for name, message in ready.outgoing.items()}
        bodies = {digest: wire.bytes_of(message) for digest, message in distinct.items()}
        return {
            (ready.round_index + 1, name): Ready(
                bodies[digests[name]], digests[name], message.shape, ready.groups.get(name, ""),
                *_beside(ready.attached.get(name, Attachment())),
            )
            for name, message in ready.outgoing.items()
        }  # fmt: skip

    def _outgoing(
        self, agreed: Agreed, state: Any, round_index: int
    ) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Return the messages of a round by receiver, and the groups that they were masked for."""
        if (masked := self.session.masked) is None:
            return agreed.learner.outgoing(state), {}
        hidden = masked.hidden(state, round_index, self.session.roster)
        return (
            {name: message.words for name, message in hidden.items()},
            {name: message.group for name, message in hidden.items()},
        )

    def show(self, messages: Messages) -> None:
        """Release stored messages to neighbours; those of the round before are kept for neighbours one round behind."""
        round_index = self.session.round_index
        self._ready = {key: ready for key, ready in self._ready.items() if key[0] == round_index} | messages
        self._shown = round_index + 1

    def recall(self) -> None:
        """Release what the store has: its last round was stored by an earlier process, and is in the log by now."""
        last = self.session.store.round()
        self._shown = 0 if last is None else last + 1

    async def find(self, agreed: Agreed, round_index: int, receiver: str) -> Found:
        """Return the message of a round to a neighbour; not yet, while its release may still be missing in the log."""
        if (ready := self._ready.get((round_index, receiver))) is not None:
            return ready
        if round_index > self._shown:
            return None
        stored = await asyncio.to_thread(self.session.store.message, round_index, receiver)
        if stored is None:
            return "gone" if round_index < self.session.store.oldest() else None
        group = self.session.store.group(round_index, receiver)
        return Ready(
            stored.body, stored.digest, agreed.learner.shape, group, stored.missed, stored.correction
        )


def _beside(attached: Attachment) -> tuple[int, bytes]:
    return attached.missed, b"" if attached.correction is None else wire.bytes_of(attached.correction)
