"""The journal of a peer's events: log lines for people, and notes in the store for `status`."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import Any

from peerbayes.peers.judge import told
from peerbayes.peers.room import WAITING
from peerbayes.peers.standing import Line
from peerbayes.peers.store import Store
from peerbayes.text import printable

log = logging.getLogger("peerbayes.peer")

# A neighbour can change its state at will: so many log lines about it at once, then one every so many seconds.
LINES_AT_ONCE, QUIET = 10, 1.0
REASONS = 1000  # different (who, reason) pairs that are counted separately; more are counted together


class Journal:
    """Logs every event of a peer. `flush` writes what is new to the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._refused: dict[tuple[str, str], tuple[int, str]] = {}
        self._ever: Counter[tuple[str, str]] = Counter()
        self._began = time.monotonic()
        self._spoken: dict[str, float] = {}

    def __call__(self, event: str, facts: dict[str, Any]) -> None:
        if event == "refused":
            self.refused(facts["who"], facts["reason"], facts["detail"])
        elif event == "round":
            self._round(facts)
        elif event in ("lost", "neighbour"):
            self._neighbour(
                facts["neighbour"], facts["note"], logging.WARNING if event == "lost" else logging.INFO
            )
        elif (template := LINES.get(event)) is not None:
            if event in ("agreed", "resumed"):
                self._began = time.monotonic()
            log.log(
                logging.WARNING if event in WARNINGS else logging.INFO, printable(template.format(**facts))
            )

    def _neighbour(self, name: str, note: str, level: int) -> None:
        """Log a neighbour's state, unless there were many lines about it just now."""
        now = time.monotonic()
        due = max(now, self._spoken.get(name, now))
        if due - now < LINES_AT_ONCE * QUIET:
            self._spoken[name] = due + QUIET
            log.log(level, f"{name}: {printable(note) or 'in touch'}")

    def refused(self, who: str, reason: str, detail: str) -> None:
        """Count a refusal; the first, tenth, hundredth… of a kind is also logged."""
        who, detail = printable(who), printable(detail)
        with self._lock:
            key = who, reason
            if key not in self._ever and len(self._ever) >= REASONS:
                key = "others", reason if len(self._ever) < 2 * REASONS else "others"
            self._ever[key] += 1
            count, _ = self._refused.get(key, (0, ""))
            self._refused[key] = count + 1, detail
            total = self._ever[key]
        if str(total).strip("0") == "1":
            log.warning(
                f"refused from {who}: {reason} ({detail})" + (f", {total} times" if total > 1 else "")
            )

    def _round(self, facts: dict[str, Any]) -> None:
        heard, missing, epsilon = facts["heard"], facts["missing"], facts.get("epsilon")
        now = time.monotonic()
        tail = f"; {error}" if (error := told(facts["figures"], epsilon is not None)) else ""
        tail += f"; epsilon {epsilon:.3f} spent" if epsilon is not None else ""
        tail += f"; not heard: {', '.join(missing)}" if missing else ""
        log.info(
            f"round {facts['round']}/{facts['of']}: heard {len(heard)} of {len(heard) + len(missing)} in "
            f"{now - self._began:.2f} s{tail}"
        )
        self._began = now

    def flush(self, neighbour_states: dict[str, Line]) -> None:
        """Write to the store what is new since the last call."""
        with self._lock:
            refused, self._refused = self._refused, {}
        notes = {
            name: (state.seen, state.done, "left" if state.left else printable(state.note))
            for name, state in neighbour_states.items()
        }
        try:
            self._store.note(refused, notes)
        except BaseException:
            with self._lock:  # they are written the next time
                for key, (count, detail) in refused.items():
                    later_count, later_detail = self._refused.get(key, (0, detail))
                    self._refused[key] = count + later_count, later_detail
            raise


WARNINGS = ("left behind", "parted", "exposed", "ended badly", "disk full", "warning")
LINES = {
    "warning": "{warning}",
    "disk full": f"the disk is full: {WAITING}. Nothing is lost, and the peer goes on when there is room",
    "disk has room": "there is room on the disk again: going on",
    "exposed": "privacy: {alarm}",
    "open": "the network is still open (members: {members}): waiting for its founder to close it",
    "roster": "roster {version} is in force",
    "agreeing": "agreeing on {phase}",
    "private": "private: whatever leaves this peer has noise. Nobody learns more about one row than epsilon "
    "{epsilon:g} (delta {delta:g}) allows, of which {spent:.3g} is spent; sigma {sigma:.4g} at clip {clip:.4g}, "
    "rho {rho:.3g}",
    "agreed": "agreed: {peers} peers with {rows} rows, strategy {strategy}, schema {schema:.12}",
    "resumed": "going on after round {round}",
    "skipped": "round {round}: no sum of the group ({why}); this peer goes on with its own statistics",
    "done": "all {round} rounds are done: {verdict}. Staying until the neighbours are done as well",
    "ended badly": "the run has ended after {round} rounds, but not well: {problem}",
    "parted": "{neighbour} is no longer heard, {reason}: {why}",
    "left behind": "not done yet: {neighbours}. They can ask again once this peer runs again",
}
