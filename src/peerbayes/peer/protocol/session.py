"""The session of a peer, shared by all its parts: identity, state, transport, progress and the state of neighbours."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from peerbayes.errors import PeerError, RefusedMessage
from peerbayes.peer import tasks
from peerbayes.peer.agreement.negotiate import Agreed
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.learning.masks import Masked
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.roster_pieces import RosterPieces
from peerbayes.peer.protocol.transport import Links, Transport
from peerbayes.peer.protocol.wire import Process, Reply, Request, Versions
from peerbayes.peer.state.audit_log import AuditLog
from peerbayes.peer.state.disk import WAITING, Room
from peerbayes.peer.state.folder import Peer
from peerbayes.peer.state.store import PeerState
from peerbayes.peer.tasks import Changes


class Membership(NamedTuple):
    """This peer's name and network."""

    name: str
    terms: Terms
    roster: Roster
    signed: bytes = b""
    """The roster as the authority signed it."""


# --- neighbours: their state, and how long a round waits for them

STEADY = 3  # rounds in a row that may close without a neighbour before it is waited for less
SHORTER = 0.75  # from then on, each round waits for it so much of what the round before did
LEAST = 1.0  # seconds that are always waited, if the deadline has as many: a short break costs few rounds
GENEROUS = 8.0  # a neighbour is never waited for less than so many times what it usually takes


@dataclass
class ResponseTime:
    """How long a neighbour's message takes after a round of this peer began, estimated as TCP does (RFC 6298)."""

    mean: float | None = None
    deviation: float = 0.0
    missed: int = 0
    """Rounds in a row that were closed without its message."""

    def add(self, seconds: float) -> None:
        """Count a message that took so many seconds, in time or late."""
        if self.mean is None:
            self.mean, self.deviation = seconds, seconds / 2
            return
        self.deviation += (abs(seconds - self.mean) - self.deviation) / 4
        self.mean += (seconds - self.mean) / 8

    @property
    def usual(self) -> float:
        """Seconds within which its messages arrive: mean + 4 deviations; 0: none has arrived yet."""
        return 0.0 if self.mean is None else self.mean + 4 * self.deviation

    def least(self, deadline: float) -> float:
        """Return the seconds that it is given in any case."""
        return min(deadline, max(LEAST, GENEROUS * self.usual))

    def timeout(self, deadline: float, left_behind: bool = False) -> float:
        """Return the seconds that a round waits for its message: the deadline d, as long as it does not fail.

        A neighbour that missed m ≥ 3 rounds in a row is given d·0.75^(m−2), and always `least`: it costs six deadlines
        in all. A peer that was left behind catches up: whoever is silent is given `least`, then half of it and so on.
        """
        least = self.least(deadline)
        if left_behind:
            return (deadline if self.mean is None else least) / 2.0 ** min(self.missed, 10)
        return max(least, deadline * SHORTER ** max(0, self.missed - STEADY + 1))


@dataclass
class NeighbourState:
    """The known state of a neighbour."""

    done: int = 0
    seen: float | None = None
    note: str = ""
    roster: int = -1
    """The roster version that it reports."""
    tried: int = -1
    """The version last requested from it: one request is enough."""
    offered: int = -1
    """The version last sent to it."""
    versions: Versions | None = None
    """The versions of the protocol that it speaks; None: to be learned with a hello."""
    left: bool = False
    rival: bytes = b""
    """The digest of a different roster of the same version that it reports."""
    wanted: bool = False
    """Whether that roster, or the next piece of one, is still to be requested."""
    pieces: RosterPieces = field(default_factory=RosterPieces)
    """What has come of its roster."""
    answered: bool = False
    """Whether it has answered since this peer started."""
    told: int = -1
    """The last round that this peer said in a reply to it that it has done."""
    response: ResponseTime = field(default_factory=ResponseTime)
    calls: ResponseTime = field(default_factory=ResponseTime)
    """How long its replies take, beyond the time that they may wait; `missed`: calls in a row without one."""

    @property
    def wait(self) -> float:
        """Seconds that it may wait before it replies: few, so that a break is noticed, more where replies are slow."""
        return min(tasks.WAIT, max(tasks.SHORT_WAIT, 2 * (self.calls.mean or 0.0)))

    @property
    def grace(self) -> float:
        """Seconds for a reply to arrive: four times the mean, twice as many after every call without one.

        By the mean: with deviations a single reply that a break delayed would make the next break last.
        """
        seconds = max(tasks.FIRST_GRACE, 4 * (self.calls.mean or 0.0))
        return min(tasks.GRACE, seconds * 2.0 ** min(self.calls.missed, 10))


class Waiting(NamedTuple):
    """What a round waits for, or waited for."""

    round_index: int
    began: float
    """When this peer was ready for it, as `time.time()` has it."""
    timeouts: dict[str, float]
    """Neighbours that lack, or the last one that came: the seconds that each may take at most."""
    seconds: float | None = None
    """How long it waited; None: it still waits."""


@dataclass(eq=False)
class Session:
    """Shared state of a peer and its events: the parts of a peer update the state and emit events."""

    name: str
    terms: Terms
    roster: Roster
    signed: bytes
    """The roster as the authority signed it."""
    store: PeerState
    transport: Transport
    audit: AuditLog
    on_event: Callable[[str, dict[str, Any]], None] = lambda event, facts: None
    """Called with every event: its name and its facts."""
    versions: Versions = wire.SPOKEN
    """The versions of the protocol that this peer speaks."""
    changes: Changes = field(default_factory=Changes)
    round_index: int = 0
    """The last completed and stored round."""
    stored: int = 0
    """Number of rounds and releases in its state."""
    agreed: Agreed | None = None
    neighbour_states: dict[str, NeighbourState] = field(default_factory=dict)
    halted: PeerError | None = None
    """Why this peer stops; from then on it sends nothing."""
    stop: Callable[[], object] = lambda: None
    """Cancels the work in progress."""
    process: Callable[[], Process | None] = lambda: None
    """Returns the process that acts for this peer."""
    stopped: bool = False
    """Whether all peers stopped together after the last round, before the limit that was agreed on."""
    step: str = "starting"
    """The current phase, in a few words."""
    waiting: Waiting | None = None
    """What the open round waits for, or the last one waited for."""
    asked_by: float | None = None
    """When this peer last received a request; None: not since it started."""

    def __post_init__(self) -> None:
        self.room = Room(self.emit)

    @property
    def rounds(self) -> int:
        """Rounds of messages in all, as far as is known."""
        return self.round_index if self.stopped else self.terms.message_rounds

    @property
    def phase(self) -> str:
        """The phase that `status` and metrics show."""
        return WAITING if self.room.full else self.step

    @property
    def neighbours(self) -> tuple[str, ...]:
        """Names of the neighbours that are still active."""
        return tuple(name for name in self.roster.present(self.name) if not self.neighbour(name).left)

    @property
    def kind(self) -> wire.Kind:
        """The kind of this network's messages."""
        return "masked" if self.terms.privacy.secure_sum else "round"

    @property
    def masked(self) -> Masked | None:
        """The learner, where messages are masked."""
        return self.agreed.learner if self.agreed and isinstance(self.agreed.learner, Masked) else None

    def neighbour(self, name: str) -> NeighbourState:
        """Return the state of a neighbour."""
        state = self.neighbour_states.get(name)
        return self.neighbour_states.setdefault(name, NeighbourState()) if state is None else state

    def request(self, neighbour: str, kind: wire.Kind, **fields: Any) -> Request:
        """Return a request to a neighbour with this peer's current state, in the highest version that both speak."""
        theirs = self.neighbour(neighbour).versions
        version = None if theirs is None else self.versions.common(theirs)
        return Request(
            **self.versions.fields(version), run=self.roster.run, sender=self.name, kind=kind, done=self.round_index,
            roster=self.roster.version, roster_digest=self.roster.digest, process=self.process(), **fields,
        )  # fmt: skip

    async def ask(self, neighbour: str, request: Request, seconds: float) -> Reply:
        """Return a neighbour's reply to a request."""
        content = await self.transport.ask(neighbour, wire.encode(request), seconds)
        return wire.reply_in(content, request, neighbour)

    def reply_version(self, request: Request | None) -> dict[str, Any]:
        """Return a reply's fields of versions: it is in the request's, or for a greeting in the highest in common."""
        if request is None:
            return self.versions.fields()
        greeting = request.kind in wire.GREETINGS
        return self.versions.fields(self.versions.common(request.spoken) if greeting else request.version)

    def halt(self, error: PeerError) -> bool:
        """Stop sending, since this peer is to stop; return whether this is the first reason."""
        first, self.halted = self.halted is None, self.halted or error
        return first

    def in_touch(self, neighbour: str, message: Request | Reply) -> NeighbourState:
        """Update the state of a neighbour from its message, and return it."""
        neighbour_state = self.neighbour(neighbour)
        neighbour_state.versions, neighbour_state.seen = message.spoken, time.time()
        neighbour_state.done = max(neighbour_state.done, message.done)
        self._compare_rosters(neighbour, neighbour_state, message.roster, message.roster_digest)
        return neighbour_state

    def _compare_rosters(self, neighbour: str, state: NeighbourState, version: int, digest: bytes) -> None:
        """Report a neighbour with a different roster of the same version: the authority has signed two."""
        roster = self.roster
        if not digest or version != roster.version or digest in (roster.digest, state.rival):
            return
        state.rival, state.wanted = digest, True
        detail = (
            f"{neighbour} has another roster {version}, {digest.hex():.12} and not {roster.digest.hex():.12}: one of "
            "the two is not what all members have"
        )
        self.refuse(neighbour, RefusedMessage("two rosters", detail))

    def emit(self, event: str, **facts: Any) -> None:
        self.on_event(event, facts)

    def refuse(self, sender: str, error: RefusedMessage) -> None:
        self.emit("refused", who=sender, reason=error.reason, detail=str(error)[:300])

    def note(self, neighbour: str, note: str, lost: bool = False) -> None:
        neighbour_state = self.neighbour(neighbour)
        if neighbour_state.note != note:
            neighbour_state.note = note
            self.emit("lost" if lost else "neighbour", neighbour=neighbour, note=note)


@contextlib.asynccontextmanager
async def idle_session(peer: Peer) -> AsyncIterator[Session]:
    """Yield the session of a peer that does not run: it asks and answers, and stores nothing."""
    transport, nothing = Links(peer, lambda who, reason, detail: None), cast(Any, None)
    try:
        yield Session(peer.name, peer.terms, peer.roster, b"", nothing, transport, nothing)
    finally:
        await transport.close()
