"""Whether a peer's state and the audit log beside it belong together, before anything is sent.

A restored state would say otherwise what was said before: with other noise, which tells more of the rows than was
promised; under masks that were used; or to the neighbours' confusion. What holds in a folder that nobody meddled with,
also after kill -9 and after a power cut:

    state ≥ log    a round and its releases are stored, on disk, before a line of the log is written of them
    log ≥ mark     the state remembers how far the log goes only once that much of it is on disk

So a log that knows more than the state, or less than the state remembers of it, was not left by a crash. A folder that
was restored as a whole fits together; its neighbours notice (`processes`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from peerbayes.peers import store as stores
from peerbayes.peers.audit import LEFT, RELEASE, Position, Tail
from peerbayes.peers.errors import BrokenRecord, PeerError
from peerbayes.peers.store import NoState, Store

ROUND = re.compile(r"(?:private )?(?:masked )?round (\d+)")

Said = tuple[int, str]  # a round and a receiver


@dataclass
class OfState:
    """What a log says of one state of its peer."""

    start: int = 0
    said: dict[Said, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Digests of the messages of rounds that left."""
    releases: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Digests by name."""
    left: bool = False

    @property
    def round(self) -> int:
        """The last round of which a message left; 0: none did."""
        return max((turn for turn, _ in self.said), default=0)

    @property
    def committed(self) -> bool:
        """Whether anything left that may not be said otherwise again."""
        return bool(self.said or self.releases)


@dataclass
class Log:
    """What an audit log says, by state; lines of earlier versions name none, and are of the state ""."""

    states: dict[str, OfState] = field(default_factory=dict)
    last: str | None = None
    """The state of its last line."""
    end: Position = field(default_factory=lambda: Position(0, ""))
    at_mark: str | None = None
    """The chain of the line up to which the state knows the log; None: it does not go so far."""

    @classmethod
    def of(cls, tail: Tail, mark: Position | None = None) -> Log:
        """Read a log to its end; PeerError where a line does not fit to the one before."""
        log = cls(at_mark="" if mark is not None and mark.lines == 0 else None)
        for entry in tail.read():
            log._add(entry)
            if mark is not None and tail.count == mark.lines:
                log.at_mark = tail.chain
        log.end = Position(tail.count, tail.chain)
        return log

    def _add(self, entry: Mapping[str, object]) -> None:
        self.last = str(entry.get("state", ""))
        of_state = self.states.setdefault(self.last, OfState())
        what, digest, start = str(entry["what"]), str(entry["digest"]), entry.get("start", 0)
        of_state.start = max(of_state.start, start if isinstance(start, int) else 0)
        if what == LEFT:
            of_state.left = True
        elif what.startswith(RELEASE):
            of_state.releases[what.removeprefix(RELEASE)].add(digest)
        elif (found := ROUND.fullmatch(what)) is not None:
            of_state.said[int(found[1]), str(entry["to"])].add(digest)

    @property
    def start(self) -> int:
        """The last start of the folder's peer that it knows."""
        return max((each.start for each in self.states.values()), default=0)


@dataclass(frozen=True)
class Stored:
    """What a state says of itself; its name is "" where an earlier version made it."""

    state: str
    start: int = 0
    round: int | None = None
    said: Mapping[Said, str] = field(default_factory=dict)
    """Digests of the messages that are kept."""
    releases: Mapping[str, str] = field(default_factory=dict)
    """Digests by name."""
    mark: Position | None = None
    """How far the log goes at least."""

    @classmethod
    def of(cls, store: Store) -> Stored | None:
        """None: nothing was done in it yet."""
        state, last = store.told("state"), store.round()
        if state is None and last is None:
            return None
        return cls(
            state or "", int(store.told("starts") or 0), last,
            {key: digest.hex() for key, digest in store.messages().items()},
            {entry["name"]: entry["digest"].hex() for entry in store.releases()},
            store.logged(),
        )  # fmt: skip

    @classmethod
    def read(cls, path: Path) -> Stored | None:
        """None: there is none, or nothing was done in it yet."""
        try:
            store = Store(path, readonly=True)
        except NoState:
            return None
        try:
            return cls.of(store)
        finally:
            store.close()


def refuse_broken(state: Path, audit: Path) -> None:
    """Refuse to go on with a state and a log that do not belong together; BrokenRecord says how, and what to do."""
    stored = Stored.read(state)
    try:
        log = Log.of(Tail(audit), None if stored is None else stored.mark)
    except PeerError as error:
        raise BrokenRecord(
            "log damaged",
            f"{error}, or the file is damaged. Nothing was sent. Bring back the newest whole copy of it, if there is "
            f"one; else give up this run with `{leave(audit)}`, which sets the file aside: what can be read of it "
            "stays in the ledger of this folder",
        ) from error
    aside = any(state.parent.glob("state.left-*.sqlite"))
    if (problem := problem_of(stored, log, aside)) is not None:
        case, sentence = problem
        file = audit if case in OF_LOG else state
        raise BrokenRecord(
            case,
            f"{file} {sentence}. Nothing was sent. Bring back the newest {file.name}, if there is one; else give up "
            f"this run with `{leave(audit)}`: whatever was released, by {state.name} or by {audit.name}, stays in the "
            "ledger of this folder",
        )


def leave(audit: Path) -> str:
    """The command that gives up a run."""
    return f"peerbayes node leave {audit.parent}"


RESTORED = "it was brought back from a backup or a snapshot"
OF_LOG = ("log gone", "log restored", "other log")  # what is wrong with the log, and not with the state


def problem_of(stored: Stored | None, log: Log, aside: bool = False) -> tuple[str, str] | None:
    """How state and log do not belong together: the case, and a sentence of which the file is the subject.

    `aside`: whether there are states that were left; an earlier version did not write that into the log.
    """
    if stored is None:
        return _without_state(log, aside)
    return _of_log(stored, log) or _of_state(stored, log, aside)


def _without_state(log: Log, aside: bool) -> tuple[str, str] | None:
    for name, known in log.states.items():
        if known.committed and not known.left and not (name == "" and aside):
            last = f"round {known.round}" if known.said else "releases"
            return "state gone", (
                f"is gone, or empty, and the audit log knows {last} of a run that was not left: begun again, this peer "
                "would say otherwise what it has said"
            )
    return None


def _of_log(stored: Stored, log: Log) -> tuple[str, str] | None:
    mark = stored.mark
    if mark is None or log.at_mark == mark.chain:
        return None
    if log.end.lines == 0:
        return "log gone", f"is gone, or empty; the state knows {mark.lines} lines of it"
    if log.at_mark is None:
        return "log restored", (
            f"ends after line {log.end.lines}, and the state knows {mark.lines} lines of it: it was cut, or brought "
            "back from a backup"
        )
    return "other log", f"is another than the state knows: line {mark.lines} differs"


def _of_state(stored: Stored, log: Log, aside: bool) -> tuple[str, str] | None:
    known = log.states.get(stored.state, OfState())
    if stored.state == "" and aside:
        return None  # which lines are of it, an earlier version did not write down
    if known.left:
        return "state left", (
            "is of a run that was left, as the audit log says: somebody brought it back, or leaving was cut short"
        )
    if (
        log.last not in (None, "", stored.state)
        and not log.states[log.last].left
        and log.states[log.last].committed
    ):
        return "other state", "is another state than the one with which the audit log ends"
    reached = -1 if stored.round is None else stored.round
    if known.round > reached + 1:
        ends = f"ends after round {reached}" if reached >= 0 else "has no round yet"
        return "state restored", (
            f"{ends}, and the audit log knows that the message of round {known.round} has left: {RESTORED}"
        )
    if known.start > stored.start:
        return "state restored", (
            f"is of start {stored.start} of this peer, and the audit log knows start {known.start}: {RESTORED}"
        )
    for name, digests in known.releases.items():
        if name not in stored.releases:
            return "state restored", f"lacks the release {name}, which the audit log has: {RESTORED}"
        if digests != {stored.releases[name]}:
            return "other digest", f"has another release {name} than the audit log"
    for (turn, receiver), digests in known.said.items():
        if turn > reached - stores.KEPT and digests != {stored.said.get((turn, receiver))}:
            return "other digest", f"has another message of round {turn} to {receiver} than the one that left"
    return None
