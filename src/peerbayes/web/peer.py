"""A real peer's folder, looked at again and again: its rounds, its neighbours, and all that left its machine.

Nothing is written there, and its key is not read. The store is opened for the moment of a look only, so that whoever
sets it aside finds it closed.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes.peers.audit import Tail
from peerbayes.peers.exact_figures import may_leave
from peerbayes.peers.home import Home
from peerbayes.peers.lock import running
from peerbayes.peers.roster import Roster
from peerbayes.peers.status import state_of
from peerbayes.peers.store import FIGURES, NoState, Store
from peerbayes.peers.terms import Terms
from peerbayes.statistics import Statistics
from peerbayes.views import CURVES, LEVELS, Structure, View
from peerbayes.web.seen import Seen
from peerbayes.web.sent import Sent

REFUSALS = 20
MODEL_EVERY = 3.0  # seconds between two looks at the model
RUNNING_EVERY = 1.0  # seconds between two looks whether a process works on the folder

Stamp = tuple[tuple[int, int, int], ...]


@dataclass
class PeerFolder:
    """What is known of a peer; each look reads only what changed."""

    folder: Path
    beyond: bool = False
    """Whether other machines may look, too: figures without noise are then left out where rows are private."""
    _stamps: dict[str, Stamp] = field(default_factory=dict)
    _due: dict[str, float] = field(default_factory=dict)
    _name: str = ""
    _terms: Terms | None = None
    _exact: bool = True
    _roster: Roster | None = None
    _running: bool = False
    _runs: int = 0
    _rounds: list[dict[str, Any]] = field(default_factory=list)
    _missed: Counter[str] = field(default_factory=Counter)
    _lines: dict[str, dict[str, Any]] = field(default_factory=dict)
    _refusals: list[dict[str, Any]] = field(default_factory=list)
    _verdict: dict[str, Any] | None = None
    _log: Sent = field(init=False)
    _statistics: Statistics | None = None
    _models: int = 0
    _view: View | None = None

    def __post_init__(self) -> None:
        self._home = Home(self.folder)
        self._log = Sent(Tail(self._home.audit_path))

    def look(self) -> Seen:
        """The peer as it stands now."""
        try:
            return self._look()
        except BaseException:
            self._stamps.clear()  # what could not be read is read again
            raise

    def _look(self) -> Seen:
        home, changed = self._home, self._view is None
        if self._changed("agreed", home.settings_path, home.agreement_path, home.roster_path):
            self._name, self._terms = home.settings().name, Terms.read(home.agreement_path)
            self._roster, changed = home.roster(), True
            self._exact = not self.beyond or may_leave(self._terms, home.settings())
        assert self._terms is not None and self._roster is not None
        if self._is_due("running", RUNNING_EVERY):
            self._running = running(home)
        if self._changed("state", home.state_path, Path(f"{home.state_path}-wal")):
            changed |= self._read_store()
        changed |= self._log.read()
        if self._is_due("model", MODEL_EVERY) and self._changed("model", home.model_path):
            self._statistics, changed = _model(home.model_path), True
            self._models += self._statistics is not None
        if changed or self._view is None:
            self._view = self._drawn(self._terms, self._roster)
        return Seen(
            "peer",
            (self._name, self._roster.run, self._runs),
            self._facts(self._terms, self._roster),
            self._view,
            self._models,
            tuple(self._log.last),
        )

    def _changed(self, what: str, *paths: Path) -> bool:
        """Whether files are other than at the last look; looking at their dates costs nothing."""
        found = tuple(_stamp(path) for path in paths)
        if self._stamps.get(what) == found:
            return False
        self._stamps[what] = found
        return True

    def _is_due(self, what: str, pause: float) -> bool:
        now = time.monotonic()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + pause
        return True

    def _read_store(self) -> bool:
        """Rounds that are new, and how neighbours are; whether there are new rounds."""
        try:
            store = Store(self._home.state_path, readonly=True)
        except NoState:  # not yet, or set aside
            gone = bool(self._rounds)
            self._begin_anew()
            return gone
        with contextlib.closing(store):
            last = self._rounds[-1]["round"] if self._rounds else -1
            fresh = store.history(max(last - 1, -1))  # with the last one known: another run has another
            if self._rounds and (not fresh or fresh[0] != self._rounds[-1]):
                self._begin_anew()
                fresh = store.history()
            elif self._rounds:
                fresh = fresh[1:]
            self._lines, self._refusals = store.neighbours(), store.refusals()[:REFUSALS]
            self._verdict = json.loads(store.told("verdict") or "null")
        self._rounds += fresh
        self._missed.update(name for entry in fresh for name in entry["missing"])
        return bool(fresh)

    def _begin_anew(self) -> None:
        """What was known of the rounds belongs to another run."""
        self._runs += bool(self._rounds)
        self._rounds, self._missed, self._lines, self._refusals = [], Counter(), {}, []
        self._verdict = None

    def _facts(self, terms: Terms, roster: Roster) -> dict[str, Any]:
        done = self._rounds[-1]["round"] if self._rounds else 0
        return {
            "name": self._name,
            "network": roster.network,
            "strategy": terms.strategy,
            "peers": len(roster.members),
            "closed": roster.closed,
            "round": done,
            "rounds": terms.rounds,
            "finished": done >= terms.rounds,
            "verdict": self._verdict if self._exact else None,  # it is made of rows, without noise
            "running": self._running,
            "agreed": bool(self._rounds),
            "at": self._rounds[-1]["at"] if self._rounds else 0.0,
            "speed": _speed(self._rounds[-20:]),
            "judged": next(
                (self._figures(entry) for entry in reversed(self._rounds) if _judged(entry)), None
            ),
            "figures": "hidden" if not self._exact else "plain" if terms.privacy.epsilon is None else "exact",
            "neighbours": [self._neighbour(name, roster) for name in roster.neighbours(self._name)],
            "refusals": self._refusals,
            "sent": {
                "messages": self._log.tail.count,
                "bytes": self._log.total,
                "problem": self._log.problem,
            },
            "revoked": self._name in roster.revoked,
        }

    def _neighbour(self, name: str, roster: Roster) -> dict[str, Any]:
        line = self._lines.get(name, {"seen": None, "done": 0, "note": ""})
        return {
            "name": name,
            "state": "revoked" if name in roster.revoked else state_of(line, self._running),
            "missed": self._missed[name],
            **line,
        }

    def _figures(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Return a round with what may be shown of how its model does."""
        return {"round": entry["round"]} | {
            name: entry.get(name) if self._exact else None for name in FIGURES
        }

    def _structure(self) -> Structure | None:
        found = self._statistics
        return None if found is None else Structure.of(found.schema, found.family)

    def _drawn(self, terms: Terms, roster: Roster) -> View:
        """The peer as a network of which one member has curves."""
        me, nodes = roster.place(self._name), len(roster.members)
        judged = [entry for entry in self._rounds if _judged(entry)]
        rounds = np.array([entry["round"] for entry in judged], dtype=np.int64)
        curves = {
            name: np.array([_number(self._figures(entry)[name]) for entry in judged]).reshape(-1, 1)
            for name in FIGURES
        }
        curves["bytes"] = self._log.by_round(rounds).reshape(-1, 1)
        last = {name: np.full(nodes, np.nan) for name in CURVES}
        for name in CURVES:
            last[name][me] = curves[name][-1, 0] if len(judged) else np.nan
        places = {member.name: place for place, member in enumerate(roster.members)}
        return View(
            title=self._name,
            configuration={
                "strategy": terms.strategy,
                "family": terms.family,
                "rounds": terms.rounds,
                "lr": terms.lr,
            },
            made={},
            total=terms.rounds,
            turn=self._rounds[-1]["round"] if self._rounds else 0,
            rounds=rounds,
            peers=np.array([me]),
            curves={name: curves[name] for name in CURVES},
            spread={name: np.repeat(curves[name], len(LEVELS), axis=1) for name in CURVES},
            last=last,
            sizes=np.ones(nodes, dtype=np.int64),  # rows are known to their owners only
            links=np.array([(places[a], places[b]) for a, b in roster.links], dtype=np.int64).reshape(-1, 2),
            names=tuple(places),
            statistics=self._statistics,
            structure=self._structure(),
            finished=False,
        )


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns


def _judged(entry: dict[str, Any]) -> bool:
    return any(entry.get(name) is not None for name in FIGURES)


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def _speed(lately: list[dict[str, Any]]) -> float | None:
    """Rounds a second over the last rounds; None: not known."""
    if len(lately) < 2 or lately[-1]["at"] <= lately[0]["at"]:
        return None
    return float((lately[-1]["round"] - lately[0]["round"]) / (lately[-1]["at"] - lately[0]["at"]))


def _model(path: Path) -> Statistics | None:
    """The model as it is on disk; None: there is none."""
    return Statistics.from_bytes(path.read_bytes()) if path.exists() else None
