"""The privacy ledger: what left this machine, and what it spent."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from peerbayes.errors import NeedsPerson
from peerbayes.peer.learning.releases import rounds_in
from peerbayes.peer.state.audit_log import RELEASE, AuditLog, Tail
from peerbayes.peer.state.continuity import Log
from peerbayes.peer.state.folder import Home, Peer
from peerbayes.peer.state.store import NoState, PeerState, Store
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


# --- the privacy ledger: what a peer has released of its rows so far, in the run of its folder and in earlier ones
# The ledger of a folder is the union of its files: the state, states of runs that were left, and every audit log
# (`audit*.jsonl`), where each release is written with its cost. So a release counts once, as long as one of these
# files has it. It belongs to the rows of the folder, and not to a run.

ASIDE = "state.left-*.sqlite"  # as `service.set_aside` calls states of runs that were left
LOGS = "audit*.jsonl"  # this folder's audit log, those that were set aside, and those of copies that were put beside it


def epsilon_of(ledger: Iterable[Mapping[str, Any]], delta: float, extra_cost: float = 0.0) -> float:
    """Return ε of a ledger plus `extra_cost` μ²: releases of Gaussian noise compose exactly."""
    squared = math.fsum([extra_cost, *(float(entry["cost"]) for entry in ledger)])
    return accounting.epsilon_of(math.sqrt(squared), delta) + accounting.DISCRETE if squared > 0 else 0.0


def earlier(home: Home) -> list[dict[str, Any]]:
    """Return every release recorded in the folder, except those of its state."""
    releases: dict[tuple[str, bytes], dict[str, Any]] = {}
    for path in sorted(home.folder.glob(ASIDE)):
        with contextlib.closing(Store(path, readonly=True)) as store:
            releases |= {_key(entry): entry for entry in store.releases()}
    for path in sorted(home.folder.glob(LOGS)):
        releases |= {_key(entry): entry for entry in _logged(path)}
    for entry in current(home):
        releases.pop(_key(entry), None)
    return list(releases.values())


def current(home: Home) -> list[dict[str, Any]]:
    """Return the releases of the folder's state."""
    with contextlib.suppress(NoState), contextlib.closing(Store(home.state_path, readonly=True)) as store:
        return store.releases()
    return []


def _key(entry: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the identity of a release: noise makes no two alike."""
    return entry["name"], entry["digest"]


def _logged(path: Path) -> Iterator[dict[str, Any]]:
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


def _planned(promise: Privacy) -> float:
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
        "in_all": epsilon_of(before, promise.delta, _planned(promise)),
    }  # fmt: skip


def refuse_overspent(home: Home, peer: Peer) -> None:
    """Refuse a run that, with earlier ones, would spend more than the owner allows."""
    promise, most = peer.terms.privacy.promise, peer.settings.require.get("epsilon")
    before = earlier(home)
    if promise is None or most is None or not before:
        return
    planned = _planned(promise)
    total_epsilon = epsilon_of(before, promise.delta, planned)
    if total_epsilon > most * (1 + 1e-9):
        raise NeedsPerson(
            f"other runs of {home.folder} have spent epsilon = {epsilon_of(before, promise.delta):.4g} on "
            f"these rows, and this one would make it {total_epsilon:.4g}; {home.settings_path} allows {most:g} in all. "
            "Raise require.epsilon if that is acceptable; rows of other people belong in another folder"
        )
