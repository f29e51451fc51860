"""A peer's ledger of releases: in its state and, before anything computed from them can leave, in its audit log."""

from __future__ import annotations

from peerbayes.peers.audit import RELEASE, AuditLog, Tail
from peerbayes.peers.continuity import Log
from peerbayes.peers.store import Store


class Ledger:
    """Keeps state and audit log in step.

    A release is stored with its round, then written to the log and flushed to disk, and only then sent to anybody. So
    after a crash or a power cut the log may lack what the state has, never the other way round; what it lacks is
    written when the peer starts again. The state in turn records how far the log was known to be on disk.
    """

    def __init__(self, store: Store, audit: AuditLog) -> None:
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
