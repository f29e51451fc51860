"""Check that a peer's state and its audit log belong together, before anything is sent.

A peer with a restored state would contradict its earlier messages: with other noise, which reveals more about the rows
than was promised; under masks that were used before; or simply to the neighbours' confusion. In a folder that nobody
tampered with, these hold, also after kill -9 and after a power cut:

    state ≥ log    a round and its releases are stored on disk before the log gets a line about them
    log ≥ mark     the state records how far the log goes only once that much of it is on disk

So a log that goes further than the state, or less far than the state recorded, is not the result of a crash. A folder
that was restored as a whole is consistent; its neighbours notice (`processes`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from peerbayes.errors import BrokenRecord, PeerError
from peerbayes.peer.state import store as stores
from peerbayes.peer.state.audit_log import LEFT, RELEASE, Position, Tail
from peerbayes.peer.state.store import NoState, PeerState, Store

ROUND = re.compile(r"(?:private )?(?:masked )?round (\d+)")

Delivery = tuple[int, str]  # a round and a receiver


@dataclass
class OfState:
    """The lines of a log about one state of its peer."""

    start: int = 0
    messages: dict[Delivery, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Digests of the messages of rounds that were sent."""
    releases: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Digests by name."""
    left: bool = False
    """Whether the run was given up."""

    @property
    def round(self) -> int:
        """Return the last round of which a message was sent; 0: none."""
        return max((round_index for round_index, _ in self.messages), default=0)

    @property
    def committed(self) -> bool:
        """Return whether anything was sent that must never be contradicted."""
        return bool(self.messages or self.releases)


@dataclass
class Log:
    """The content of an audit log by state; lines of earlier versions name no state, and count for the state ""."""

    states: dict[str, OfState] = field(default_factory=dict)
    last: str | None = None
    """The state of its last line."""
    end: Position = field(default_factory=lambda: Position(0, ""))
    at_mark: str | None = None
    """The chain of the line up to which the state knows the log; None: the log is shorter."""

    @classmethod
    def of(cls, tail: Tail, mark: Position | None = None) -> Log:
        """Read a log to its end; PeerError where a line does not match the one before."""
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
        description, digest, start = str(entry["what"]), str(entry["digest"]), entry.get("start", 0)
        of_state.start = max(of_state.start, start if isinstance(start, int) else 0)
        if description == LEFT:
            of_state.left = True
        elif description.startswith(RELEASE):
            of_state.releases[description.removeprefix(RELEASE)].add(digest)
        elif (match := ROUND.fullmatch(description)) is not None:
            of_state.messages[int(match[1]), str(entry["to"])].add(digest)

    @property
    def start(self) -> int:
        """Return the number of the last start that the log knows."""
        return max((of_state.start for of_state in self.states.values()), default=0)


@dataclass(frozen=True)
class Stored:
    """The content of a state that is compared with the log; its name is "" where an earlier version made it."""

    state: str
    start: int = 0
    round: int | None = None
    messages: Mapping[Delivery, str] = field(default_factory=dict)
    """Digests of the messages that are stored."""
    releases: Mapping[str, str] = field(default_factory=dict)
    """Digests by name."""
    mark: Position | None = None
    """The least end of the log."""

    @classmethod
    def of(cls, store: PeerState) -> Stored | None:
        """Return the content of a store; None: nothing was done in it yet."""
        state, last = store.value("state"), store.round()
        if state is None and last is None:
            return None
        return cls(
            state or "", int(store.value("starts") or 0), last,
            {key: digest.hex() for key, digest in store.messages().items()},
            {entry["name"]: entry["digest"].hex() for entry in store.releases()},
            store.logged(),
        )  # fmt: skip

    @classmethod
    def read(cls, path: Path) -> Stored | None:
        """Return the content of a state's file; None: there is none, or nothing was done in it yet."""
        try:
            store = Store(path, readonly=True)
        except NoState:
            return None
        try:
            return cls.of(store)
        finally:
            store.close()


def refuse_broken(state: Path, audit: Path) -> None:
    """Refuse a state and a log that do not belong together; BrokenRecord says what is wrong, and what to do."""
    stored = Stored.read(state)
    try:
        log = Log.of(Tail(audit), None if stored is None else stored.mark)
    except PeerError as error:
        raise BrokenRecord(
            "log damaged",
            f"{error}, or the file is damaged. Nothing was sent. Restore the newest intact copy of it, if there is "
            f"one; otherwise give up this run with `{leave(audit)}`, which sets the file aside: what can be read of it "
            "stays in the ledger of this folder",
        ) from error
    aside = any(state.parent.glob("state.left-*.sqlite"))
    if (problem := problem_of(stored, log, aside)) is not None:
        case, sentence = problem
        file = audit if case in OF_LOG else state
        raise BrokenRecord(
            case,
            f"{file} {sentence}. Nothing was sent. Restore the newest {file.name}, if there is one; otherwise give up "
            f"this run with `{leave(audit)}`: whatever was released, according to {state.name} or {audit.name}, stays "
            "in the ledger of this folder",
        )


def leave(audit: Path) -> str:
    """Return the command that gives up a run."""
    return f"peerbayes peer leave {audit.parent}"


RESTORED = "it was restored from a backup or a snapshot"
OF_LOG = ("log gone", "log restored", "other log")  # the cases in which the log is wrong, and not the state


def problem_of(stored: Stored | None, log: Log, aside: bool = False) -> tuple[str, str] | None:
    """Return why state and log do not belong together: the case, and a sentence about the file; None: they do.

    `aside`: whether there are states of runs that were left; an earlier version did not write that to the log.
    """
    if stored is None:
        return _without_state(log, aside)
    return _of_log(stored, log) or _of_state(stored, log, aside)


def _without_state(log: Log, aside: bool) -> tuple[str, str] | None:
    for name, of_state in log.states.items():
        if of_state.committed and not of_state.left and not (name == "" and aside):
            last = f"round {of_state.round}" if of_state.messages else "releases"
            return "state gone", (
                f"is gone, or empty, and the audit log has {last} of a run that was not left: started again, this peer "
                "would contradict what it has sent"
            )
    return None


def _of_log(stored: Stored, log: Log) -> tuple[str, str] | None:
    mark = stored.mark
    if mark is None or log.at_mark == mark.chain:
        return None
    if log.end.lines == 0:
        return "log gone", f"is gone, or empty; the state knows of {mark.lines} lines in it"
    if log.at_mark is None:
        return "log restored", (
            f"ends after line {log.end.lines}, and the state knows of {mark.lines} lines in it: it was cut, or "
            "restored from a backup"
        )
    return "other log", f"is not the log that the state knows: line {mark.lines} differs"


def _of_state(stored: Stored, log: Log, aside: bool) -> tuple[str, str] | None:
    logged = log.states.get(stored.state, OfState())
    if stored.state == "" and aside:
        return None  # an earlier version did not record which lines belong to it
    if logged.left:
        return "state left", (
            "belongs to a run that was left, as the audit log says: somebody restored it, or leaving was interrupted"
        )
    if (
        log.last not in (None, "", stored.state)
        and not log.states[log.last].left
        and log.states[log.last].committed
    ):
        return "other state", "is not the state with which the audit log ends"
    reached = -1 if stored.round is None else stored.round
    if logged.round > reached + 1:
        ends = f"ends after round {reached}" if reached >= 0 else "has no round yet"
        return "state restored", (
            f"{ends}, and the audit log says that the message of round {logged.round} was sent: {RESTORED}"
        )
    if logged.start > stored.start:
        return "state restored", (
            f"belongs to start {stored.start} of this peer, and the audit log has start {logged.start}: {RESTORED}"
        )
    for name, digests in logged.releases.items():
        if name not in stored.releases:
            return "state restored", f"lacks the release {name}, which the audit log has: {RESTORED}"
        if digests != {stored.releases[name]}:
            return "other digest", f"has a release {name} that differs from the one in the audit log"
    for (round_index, receiver), digests in logged.messages.items():
        if round_index > reached - stores.KEPT and digests != {stored.messages.get((round_index, receiver))}:
            return "other digest", (
                f"has a message of round {round_index} to {receiver} that differs from the one that was sent"
            )
    return None
