"""Where a peer stands: who it is, how far it is, and what it knows of its neighbours. All parts of a node share it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from peerbayes.peers import wire
from peerbayes.peers.agreement import Agreed
from peerbayes.peers.errors import PeerError, RefusedMessage
from peerbayes.peers.masked import Masked
from peerbayes.peers.news import News
from peerbayes.peers.room import WAITING, Room
from peerbayes.peers.roster import Roster
from peerbayes.peers.terms import Terms
from peerbayes.peers.wire import Process, Request


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
    rival: bytes = b""
    """The digest of another roster of this peer's version that it says it has."""
    wanted: bool = False
    """Whether that roster is still to be asked for."""
    answered: bool = False
    """Whether it has answered this peer since that started."""


@dataclass(eq=False)
class Standing:
    """Facts, and one voice: the parts of a node change the facts, and tell what happens."""

    own: Membership
    told: Callable[[str, dict[str, Any]], None]
    news: News = field(default_factory=News)
    turn: int = 0
    """The last round that is done, and stored."""
    stored: int = 0
    """Rounds and releases in its state."""
    agreed: Agreed | None = None
    lines: dict[str, Line] = field(default_factory=dict)
    halted: PeerError | None = None
    """Why this peer stops; from then on nothing leaves it."""
    stop: Callable[[], object] = lambda: None
    """Ends the work under way."""
    process: Callable[[], Process | None] = lambda: None
    """Which process of this peer speaks."""
    step: str = "starting"
    """What this peer is at, in a few words."""
    asked_by: float | None = None
    """When somebody last asked this peer anything; None: nobody has since it started."""

    def __post_init__(self) -> None:
        self.room = Room(self.tell)

    @property
    def phase(self) -> str:
        """What `status` and metrics show."""
        return WAITING if self.room.full else self.step

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
        return tuple(name for name in self.roster.present(self.name) if not self.line(name).left)

    @property
    def kind(self) -> wire.Kind:
        """What this network's messages are."""
        return "masked" if self.terms.privacy.secure_sum else "round"

    @property
    def masked(self) -> Masked | None:
        """The learner, where messages are masked."""
        return self.agreed.learner if self.agreed and isinstance(self.agreed.learner, Masked) else None

    def line(self, name: str) -> Line:
        return self.lines.setdefault(name, Line())

    def request(self, kind: wire.Kind, **more: Any) -> Request:
        """A question as this peer asks it now."""
        return Request(
            wire.VERSION, self.roster.run, self.name, kind, done=self.turn, roster=self.roster.version,
            roster_digest=self.roster.digest, process=self.process(), **more,
        )  # fmt: skip

    def halt(self, error: PeerError) -> bool:
        """Let nothing more leave this peer, which is to stop; whether it was not to before."""
        first, self.halted = self.halted is None, self.halted or error
        return first

    def compare_rosters(self, neighbour: str, version: int, digest: bytes) -> None:
        """Notice a neighbour with another roster of the same version: their authority has signed two."""
        line, roster = self.line(neighbour), self.roster
        if not digest or version != roster.version or digest in (roster.digest, line.rival):
            return
        line.rival, line.wanted = digest, True
        told = (
            f"{neighbour} has another roster {version}, {digest.hex():.12} and not {roster.digest.hex():.12}: one of "
            "the two is not what all members have"
        )
        self.refuse(neighbour, RefusedMessage("two rosters", told))

    def tell(self, what: str, **facts: Any) -> None:
        self.told(what, facts)

    def refuse(self, who: str, error: RefusedMessage) -> None:
        self.tell("refused", who=who, reason=error.reason, detail=str(error)[:300])

    def note(self, neighbour: str, note: str, lost: bool = False) -> None:
        line = self.line(neighbour)
        if line.note != note:
            line.note = note
            self.tell("lost" if lost else "neighbour", neighbour=neighbour, note=note)
