"""What left this machine, and what it spent: a peer's state and its audit log, kept in step, checked and added up."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from peerbayes.data import files
from peerbayes.errors import BrokenRecord, NeedsPerson, PeerbayesError, PeerError
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.learning.releases import rounds_in
from peerbayes.peer.state.audit_log import LEFT, RELEASE, AuditLog, Delivery, Log, OfState, Position, Tail
from peerbayes.peer.state.folder import ASIDE, Home, Peer, leave_command
from peerbayes.peer.state.same_rows import alone, folders_over_rows, one_sided
from peerbayes.peer.state.store import KEPT, NoState, PeerState, Store
from peerbayes.privacy import accounting
from peerbayes.privacy.accounting import Privacy

# --- a peer's ledger of releases: in its state and, before anything computed from them can leave, in its audit log


class Ledger:
    """Keeps state and audit log in step.

    A release is stored with its round, then written to the log and flushed to disk, and only then sent to anybody. So
    after a crash or a power cut the log may lack what the state has, never the other way round; what it lacks is
    written when the peer starts again. The state in turn records how far the log was known to be on disk.
    """

    def __init__(self, store: PeerState, audit: AuditLog) -> None:
        self._store, self._audit = store, audit
        self._entered = ""  # the last release that was written to the log

    def begin(self) -> int:
        """Count this start, write to the log what a crash kept out of it, and return the start's number."""
        log = Log.of(Tail(self._audit.path))
        state = self._store.identity()
        start = self._store.begin(log.start)
        self._audit.begin(state, start)
        entered = log.states[state].releases if state in log.states else {}
        for entry in self._store.releases():
            if entry["name"] not in entered:
                self._add(entry["name"])
        self.mark()
        return start

    def enter(self, name: str) -> None:
        """Write a release that was just stored to the log, and flush it; where that fails, it can be tried again."""
        if self._entered != name:
            self._add(name)
            self._entered = name
        self.mark()

    def mark(self) -> None:
        """Flush the log to disk, and record in the state how far it goes."""
        self._store.mark(self._audit.sync())

    def _add(self, name: str) -> None:
        cost, digest = self._store.release(name)
        self._audit.add("", f"{RELEASE}{name}", 0, digest, cost=cost)


# --- check that a peer's state and its audit log belong together, before anything is sent
# A peer with a restored state would contradict its earlier messages: with other noise, which reveals more about the
# rows than was promised; under masks that were used before; or simply to the neighbours' confusion. In a folder that
# nobody tampered with, these hold, also after kill -9 and after a power cut:
#
#     state ≥ log    a round and its releases are stored on disk before the log gets a line about them
#     log ≥ mark     the state records how far the log goes only once that much of it is on disk
#
# So a log that goes further than the state, or less far than the state recorded, is not the result of a crash. A folder
# that was restored as a whole is consistent; its neighbours notice (`processes`).


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
        with contextlib.suppress(NoState), contextlib.closing(Store(path, readonly=True)) as store:
            return cls.of(store)
        return None


def refuse_broken(state: Path, audit: Path) -> None:
    """Refuse a state and a log that do not belong together; BrokenRecord says what is wrong, and what to do."""
    stored, leave = Stored.read(state), leave_command(audit.parent)
    try:
        log = Log.of(Tail(audit), None if stored is None else stored.mark)
    except PeerError as error:
        raise BrokenRecord(
            "log damaged",
            f"{error}, or the file is damaged. Nothing was sent. Restore the newest intact copy of it, if there is "
            f"one; otherwise give up this run with `{leave}`, which sets the file aside: what can be read of it "
            "stays in the ledger of this folder",
        ) from error
    aside = any(state.parent.glob(ASIDE))
    if (problem := problem_of(stored, log, aside)) is not None:
        case, sentence = problem
        file = audit if case in OF_LOG else state
        raise BrokenRecord(
            case,
            f"{file} {sentence}. Nothing was sent. Restore the newest {file.name}, if there is one; otherwise give up "
            f"this run with `{leave}`: whatever was released, according to {state.name} or {audit.name}, stays "
            "in the ledger of this folder",
        )


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
        if round_index > reached - KEPT and digests != {stored.messages.get((round_index, receiver))}:
            return "other digest", (
                f"has a message of round {round_index} to {receiver} that differs from the one that was sent"
            )
    return None


# --- runs that are lost: what they may have released counts as released


ASSUMED = "assumed"  # begins the names of releases that may have been made, and that nothing here knows of


def assume(audit: Path, costs: Mapping[str, float], state: str, start: int) -> None:
    """Write to a log that a run is given up, and what it may have released: μ² by names. Again, it adds nothing."""
    known = {(entry["name"], entry["digest"]) for entry in releases_of(audit)} if audit.exists() else set()
    logged = Log.of(Tail(audit)).states.get(state) if audit.exists() else None
    with contextlib.closing(AuditLog(audit)) as log:
        for name, cost in costs.items():
            digest = hashlib.sha256(name.encode()).digest()
            if (name, digest) not in known:
                log.add("", f"{RELEASE}{name}", 0, digest, cost=cost, state=state, start=start)
        if logged is None or not logged.left:
            log.add("", LEFT, 0, b"", state=state, start=start)


# --- the privacy ledger: what a peer has released of its rows so far, in the run of its folder and in earlier ones
# The ledger of a folder is the union of its files: the state, states of runs that were left, and every audit log
# (`audit*.jsonl`), where each release is written with its cost. So a release counts once, as long as one of these
# files has it. It belongs to the rows of the folder, and not to a run.

LOGS = "audit*.jsonl"  # this folder's audit log, those that were set aside, and those of copies that were put beside it


def epsilon_of(ledger: Iterable[Mapping[str, Any]], delta: float, extra_cost: float = 0.0) -> float:
    """Return ε of a ledger plus `extra_cost` μ²: releases of Gaussian noise compose exactly."""
    squared = math.fsum([extra_cost, *(float(entry["cost"]) for entry in ledger)])
    return accounting.epsilon_of(math.sqrt(squared), delta) + accounting.DISCRETE if squared > 0 else 0.0


def earlier(home: Home) -> list[dict[str, Any]]:
    """Return every release recorded for the same rows, in this folder and in others, except those of its state."""
    releases: dict[tuple[str, bytes], dict[str, Any]] = {}
    for other in runs_over_rows(home):
        for path in sorted(other.records.glob(ASIDE)):
            with contextlib.closing(Store(path, readonly=True)) as store:
                releases |= {_key(entry): entry for entry in store.releases()}
        for path in sorted(other.records.glob(LOGS)):
            releases |= {_key(entry): entry for entry in releases_of(path)}
        releases |= {_key(entry): entry for entry in current(other)}
    for entry in current(home):
        releases.pop(_key(entry), None)
    return list(releases.values())


def current(home: Home) -> list[dict[str, Any]]:
    """Return the releases of the state of this run."""
    with contextlib.suppress(NoState), contextlib.closing(Store(home.state_path, readonly=True)) as store:
        return store.releases()
    return []


def runs_over_rows(home: Home) -> Iterator[Home]:
    """Yield every run of this folder, and of the folders that have the same rows."""
    for folder in folders_over_rows(home):
        yield from (Home(folder).of_run(number) for number in Home(folder).run_numbers())


def reserved(home: Home) -> float:
    """Return μ² that other runs over the same rows may still spend: those that are approved and not ended."""
    return math.fsum(
        _remaining(other)
        for other in runs_over_rows(home)
        if other.records.resolve() != home.records.resolve() and _goes_on(other)
    )


def _goes_on(home: Home) -> bool:
    """Return whether a run was approved here, or has begun or is about to, and has not ended."""
    if home.records != home.folder:
        return home.agreement_path.exists() and not home.outcome_path.exists()
    is_reserved = (home.records / RESERVED).exists()
    with contextlib.suppress(NoState), contextlib.closing(Store(home.state_path, readonly=True)) as store:
        return store.value("verdict") is None and (is_reserved or store.round() is not None)
    return is_reserved


def _remaining(home: Home) -> float:
    """Return μ² of a run beyond what it has released."""
    promise = Terms.read(home.agreement_path).privacy.promise
    if promise is None:
        return 0.0
    return max(0.0, planned_cost(promise) - math.fsum(float(entry["cost"]) for entry in current(home)))


def _key(entry: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the identity of a release: noise makes no two alike."""
    return entry["name"], entry["digest"]


def releases_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the releases in an audit log, intact or damaged: every readable line counts."""
    with path.open("rb") as file:
        for log_line in file:
            try:
                entry = json.loads(log_line)
                name, cost, digest = str(entry["what"]), float(entry["cost"]), bytes.fromhex(entry["digest"])
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
            if name.startswith(RELEASE) and 0 <= cost < math.inf:
                yield {"name": name.removeprefix(RELEASE), "cost": cost, "digest": digest}


def planned_cost(promise: Privacy) -> float:
    """Return μ² of a complete run."""
    return accounting.mu_of(promise.epsilon, promise.delta) ** 2


def spent(home: Home, peer: Peer) -> dict[str, Any] | None:
    """Return the privacy spent on this peer's rows; None without a privacy guarantee."""
    promise = peer.terms.privacy.promise
    if promise is None:
        return None
    ledger, before = current(home), earlier(home)
    return {
        "epsilon": promise.epsilon, "delta": promise.delta, "spent": epsilon_of(ledger, promise.delta),
        "releases": len(ledger), "rounds": rounds_in(ledger),
        "with_earlier_runs": epsilon_of([*before, *ledger], promise.delta) if before else None,
        "in_all": epsilon_of(before, promise.delta, planned_cost(promise)),
        "allowed": peer.settings.require.get("epsilon"),
    }  # fmt: skip


def on_rows(home: Home, delta: float) -> dict[str, Any] | None:
    """Return ε of all releases over the rows of a folder so far; None where they cannot be counted."""
    try:
        ledger = [*earlier(home), *current(home)]
    except PeerbayesError:
        return None
    return {"epsilon": epsilon_of(ledger, delta), "delta": delta, "releases": len(ledger)}


def in_all(home: Home, promise: Privacy, delta: float | None = None) -> tuple[float, float]:
    """Return ε that other runs have spent on the rows of a folder, and ε with all that are approved and this one."""
    others, before = _of_others(home)
    delta = promise.delta if delta is None else delta
    return epsilon_of(before, delta), epsilon_of(before, delta, planned_cost(promise) + others)


def _of_others(home: Home) -> tuple[float, list[dict[str, Any]]]:
    """Return μ² that other runs may still spend, and what was released before.

    A run that goes on may release something between the two looks. It must not be missing in both; that it is counted
    twice, which is on the safe side, is mended by looking again.
    """
    for _ in range(LOOKS):
        others, before = reserved(home), earlier(home)
        if reserved(home) == others:
            break
    return others, before


def refuse_overspent(home: Home, peer: Peer) -> None:
    """Refuse a run that, with the others over the same rows, would spend more than the owner allows of any of them."""
    promise, limits = peer.terms.privacy.promise, list(_limits(home, peer))
    if (promise is not None or limits) and (problem := one_sided(home)):
        raise NeedsPerson(f"{problem}; with an epsilon, nothing is sent before")
    for limit in limits:
        if promise is None:
            raise NeedsPerson(
                f"{limit.where} allows epsilon {limit.epsilon:g} in all on these rows, and this run of {home.folder} "
                "has no noise; expected an epsilon of every run over the same rows"
            )
        if plain := _without_noise(home):
            raise NeedsPerson(
                f"{limit.where} allows epsilon {limit.epsilon:g} in all on these rows, and a run in {plain} has told "
                "of them without noise: no epsilon holds for them. Without require.epsilon this peer runs"
            )
        before, total_epsilon = in_all(home, promise, min(limit.delta, promise.delta))
        others = reserved(home)
        is_alone = limit.is_own and not before and not others  # then it is within what was required
        further = ", with what others may still spend" if others else ""
        if total_epsilon > limit.epsilon * (1 + 1e-9) and not is_alone:
            raise NeedsPerson(
                f"other runs of {home.folder} have spent epsilon = {before:.4g} on "
                f"these rows, and this one would make it {total_epsilon:.4g}{further}; {limit.where} allows "
                f"{limit.epsilon:g} in all. "
                "Raise require.epsilon if that is acceptable; rows of other people belong in another folder"
            )


class Limit(NamedTuple):
    """What an owner allows all runs over some rows to spend."""

    epsilon: float
    delta: float
    where: Path
    """The owner's file."""
    is_own: bool
    """Whether it is that of the folder that asks."""


def _limits(home: Home, peer: Peer) -> Iterator[Limit]:
    """Yield what the owner allows in this folder, and in the others over the same rows."""
    for folder in folders_over_rows(home):
        other, is_own = Home(folder), folder == home.folder
        require = peer.settings.require if is_own else other.settings().require
        if (most := require.get("epsilon")) is not None:
            agreed = None if is_own or not other.agreement_path.exists() else Terms.read(other.agreement_path)
            delta = 1.0 if agreed is None or agreed.privacy.promise is None else agreed.privacy.delta
            yield Limit(most, min(delta, require.get("delta", 1.0)), other.settings_path, is_own)


def _without_noise(home: Home) -> Path | None:
    """Return the folder of another network's run that has told of the rows without noise; None: there is none."""
    for other in runs_over_rows(home):
        if other.folder != home.folder and other.agreement_path.exists():
            told = other.audit_path.exists() or (other.records / RESERVED).exists()
            if told and Terms.read(other.agreement_path).privacy.promise is None:
                return other.records
    return None


# --- a reservation: what a run may spend counts before its first release, also if this machine stops in between
# Later runs are reserved by their terms in runs/N, which are written when this peer approves them; the first run, which
# nobody approves, by a file that is written when it begins. Both are written under the lock under which was checked.


RESERVED = "reserved.json"  # in the folder of a run: it may spend what its terms say
LOOKS = 3  # at the ledger, while other runs go on


def reserve(home: Home, peer: Peer) -> None:
    """Reserve what a run may spend, on disk, before it releases anything; or refuse it."""
    promise = peer.terms.privacy.promise
    with alone(home):
        refuse_overspent(home, peer)
        if promise is None and len(folders_over_rows(home)) == 1:
            return  # nobody counts
        if home.records != home.folder or (home.records / RESERVED).exists():
            return
        content = {
            "run": peer.roster.run, "terms": peer.terms.digest,
            "epsilon": promise and promise.epsilon, "delta": promise and promise.delta,
        }  # fmt: skip
        files.write(home.records / RESERVED, files.as_json(content).encode())
        files.sync(home.records)


def give_back(home: Home, peer: Peer) -> None:
    """Give back what a run reserved that has failed before it released anything."""
    if peer.terms.privacy.promise is not None and not current(home):
        (home.records / RESERVED).unlink(missing_ok=True)
