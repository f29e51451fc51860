"""A real peer's folder, as the dashboard shows it."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes.errors import PeerError
from peerbayes.model.statistics import Statistics
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.inspection import may_leave
from peerbayes.peer.runs import RunEntry, Runs
from peerbayes.peer.state.audit_log import Tail
from peerbayes.peer.state.disk import running
from peerbayes.peer.state.folder import Home
from peerbayes.peer.state.links_file import links_of
from peerbayes.peer.state.store import FIGURES, NoState, Store
from peerbayes.peer.status import state_of
from peerbayes.report.dashboard.run_folder import Snapshot, speed
from peerbayes.simulation.view import CURVES, LEVELS, Structure, View

# --- messages that a peer sent, according to its audit log: the last entries, and bytes by round

MOST_ENTRIES = 200  # entries shown


@dataclass
class Sent:
    """A growing audit log."""

    tail: Tail
    last: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MOST_ENTRIES))
    total: int = 0
    problem: str = ""
    """Why the log cannot be trusted; empty while its hash chain is intact."""
    _bytes_by_round: Counter[int] = field(default_factory=Counter)

    def read(self) -> bool:
        """Read new entries; return whether there were any, or a problem."""
        before = self.tail.count, self.problem
        if not self.problem:
            try:
                for entry in self.tail.read():
                    self._add(entry)
            except PeerError as error:
                self.problem = str(error)
        return (self.tail.count, self.problem) != before

    def _add(self, entry: dict[str, Any]) -> None:
        self.last.append({"number": self.tail.count, **entry})
        self.total += entry["bytes"]
        kind, _, round_text = entry["what"].rpartition(" ")  # "round 3", "masked round 3", "private round 3"
        has_round = kind.rpartition(" ")[2] == "round" and round_text.isdigit()
        self._bytes_by_round[int(round_text) if has_round else 0] += entry["bytes"]

    def by_round(self, rounds: np.ndarray) -> np.ndarray:
        """Return bytes sent up to each round, including those before the first round: [T] -> [T]."""
        logged = sorted(self._bytes_by_round)
        sums = np.cumsum([0.0, *(self._bytes_by_round[round_index] for round_index in logged)])
        return sums[np.searchsorted(np.array(logged, dtype=np.int64), rounds, side="right")]


# --- the folder of a real peer, read repeatedly: its rounds, its neighbours, and everything it sent
# Nothing is written there, and its key is not read. The store is open only during a read, so that it can be moved
# aside at any time.

REFUSALS = 20
MOST_RUNS = 50  # runs shown
MODEL_EVERY = 3.0  # seconds between two reads of the model
RUNNING_EVERY = 1.0  # seconds between two checks whether a process runs in the folder
RUNS_EVERY = 1.0  # seconds between two looks at the runs of the network

Stamp = tuple[tuple[int, int, int], ...]


@dataclass
class PeerFolder:
    """The state of a peer; each read covers only the files that changed."""

    folder: Path
    remote: bool = False
    """Whether other machines may connect: values without noise are then left out where rows are private."""
    _stamps: dict[str, Stamp] = field(default_factory=dict)
    _due: dict[str, float] = field(default_factory=dict)
    _name: str = ""
    _terms: Terms | None = None
    _exact: bool = True
    _roster: Roster | None = None
    _running: bool = False
    _links: dict[str, str] = field(default_factory=dict)
    _runs: int = 0
    _number: int = 1
    """The run whose rounds are shown: the last one that has begun here."""
    _all_runs: list[dict[str, Any]] = field(default_factory=list)
    _rounds: list[dict[str, Any]] = field(default_factory=list)
    _missed: Counter[str] = field(default_factory=Counter)
    _neighbours: dict[str, dict[str, Any]] = field(default_factory=dict)
    _refusals: list[dict[str, Any]] = field(default_factory=list)
    _verdict: dict[str, Any] | None = None
    _log: Sent = field(init=False)
    _statistics: Statistics | None = None
    _models: int = 0
    _view: View | None = None

    def __post_init__(self) -> None:
        self._home = Home(self.folder)
        self._log = Sent(Tail(self._home.audit_path))

    def look(self) -> Snapshot:
        """Return the current snapshot of the peer."""
        try:
            return self._look()
        except BaseException:
            self._stamps.clear()  # read everything again after an error
            raise

    def _look(self) -> Snapshot:
        if self._is_due("runs", RUNS_EVERY):
            self._follow_runs()
        home, changed = self._home, self._view is None
        if self._changed("agreed", home.settings_path, home.agreement_path, home.roster_path):
            self._name, self._terms = home.settings().name, Terms.read(home.agreement_path)
            self._roster, changed = home.run_roster(), True
            self._exact = not self.remote or may_leave(self._terms, home.settings())
        assert self._terms is not None and self._roster is not None
        if self._is_due("running", RUNNING_EVERY):
            self._running, self._links = running(home), links_of(home) or {}
        if self._changed("state", home.state_path, Path(f"{home.state_path}-wal")):
            changed |= self._read_store()
        changed |= self._log.read()
        if self._is_due("model", MODEL_EVERY) and self._changed("model", home.model_path):
            path, changed = home.model_path, True
            self._statistics = Statistics.from_bytes(path.read_bytes()) if path.exists() else None
            self._models += self._statistics is not None
        if changed or self._view is None:
            self._view = self._make_view(self._terms, self._roster)
        return Snapshot(
            "peer",
            (self._name, self._roster.run, self._runs),
            self._facts(self._terms, self._roster),
            self._view,
            self._models,
            tuple(self._log.last),
        )

    def _follow_runs(self) -> None:
        """Read the runs of the network, and show the last one that has begun here."""
        home = Home(self.folder)
        if not home.roster_path.exists():
            return
        if (shown := home.shown_run()).run_number != self._number:
            self._number, self._home = shown.run_number, shown
            self._log = Sent(Tail(self._home.audit_path))
            self._stamps.clear()
            self._reset()
        self._all_runs = [_of_run(entry) for entry in reversed(Runs(self.folder).entries()[-MOST_RUNS:])]

    def _changed(self, key: str, *paths: Path) -> bool:
        """Return whether files changed since the last read, by their inodes, sizes and times."""
        stamps = tuple(_stamp(path) for path in paths)
        if self._stamps.get(key) == stamps:
            return False
        self._stamps[key] = stamps
        return True

    def _is_due(self, key: str, pause: float) -> bool:
        now = time.monotonic()
        if now < self._due.get(key, 0.0):
            return False
        self._due[key] = now + pause
        return True

    def _read_store(self) -> bool:
        """Read new rounds and the state of the neighbours; return whether the rounds changed."""
        try:
            store = Store(self._home.state_path, readonly=True)
        except NoState:  # it does not exist yet, or was moved aside
            gone = bool(self._rounds)
            self._reset()
            return gone
        with contextlib.closing(store):
            last = self._rounds[-1]["round"] if self._rounds else -1
            fresh = store.history(max(last - 1, -1))  # with the last known round: in another run it differs
            if self._rounds and (not fresh or fresh[0] != self._rounds[-1]):
                self._reset()
                fresh = store.history()
            elif self._rounds:
                fresh = fresh[1:]
            self._neighbours, self._refusals = store.neighbours(), store.refusals()[:REFUSALS]
            self._verdict = json.loads(store.value("verdict") or "null")
        self._rounds += fresh
        self._missed.update(name for entry in fresh for name in entry["missing"])
        return bool(fresh)

    def _reset(self) -> None:
        """Forget the rounds: they belong to another run."""
        self._runs += bool(self._rounds)
        self._rounds, self._missed, self._neighbours, self._refusals = [], Counter(), {}, []
        self._verdict = None

    def _facts(self, terms: Terms, roster: Roster) -> dict[str, Any]:
        done, log = self._rounds[-1]["round"] if self._rounds else 0, self._log
        evaluated = (self._figures(entry) for entry in reversed(self._rounds) if _evaluated(entry))
        return {
            "name": self._name,
            "network": roster.network,
            "strategy": terms.strategy,
            "peers": len(roster.members),
            "closed": roster.closed,
            "round": done,
            "rounds": terms.message_rounds,
            "finished": done >= terms.message_rounds or self._verdict is not None,
            "verdict": self._verdict if self._exact else None,  # it is computed from rows without noise
            "running": self._running,
            "agreed": bool(self._rounds),
            "at": self._rounds[-1]["at"] if self._rounds else 0.0,
            "speed": speed([(entry["at"], entry["round"]) for entry in self._rounds[-20:]]),
            "judged": next(evaluated, None),
            "figures": "hidden" if not self._exact else "plain" if terms.privacy.epsilon is None else "exact",
            "neighbours": [self._neighbour(name, roster) for name in roster.neighbours(self._name)],
            "refusals": self._refusals,
            "sent": {"messages": log.tail.count, "bytes": log.total, "problem": log.problem},
            "revoked": self._name in roster.revoked,
            "run": self._number,
            "runs": [
                run
                if self._exact
                else run | {"verdict": None}  # a verdict is computed from rows without noise
                for run in self._all_runs
            ],
        }

    def _neighbour(self, name: str, roster: Roster) -> dict[str, Any]:
        state = self._neighbours.get(name, {"seen": None, "done": 0, "note": ""})
        return {
            "name": name,
            "state": "revoked" if name in roster.revoked else state_of(state, self._running),
            "missed": self._missed[name],
            "link": self._links.get(name),
            **state,
        }

    def _figures(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Return a round with those of its metrics that may be shown."""
        return {"round": entry["round"]} | {
            name: entry.get(name) if self._exact else None for name in FIGURES
        }

    def _make_view(self, terms: Terms, roster: Roster) -> View:
        """Return the view: the network, with curves of this peer only."""
        me, peer_count, learned = roster.place(self._name), len(roster.members), self._statistics
        evaluated = [entry for entry in self._rounds if _evaluated(entry)]
        rounds = np.array([entry["round"] for entry in evaluated], dtype=np.int64)
        curves = {
            name: np.array([self._figures(entry)[name] for entry in evaluated], dtype=float).reshape(-1, 1)
            for name in FIGURES
        }  # NaN where a figure is not known, or may not be shown
        curves["bytes"] = self._log.by_round(rounds).reshape(-1, 1)
        last = {name: np.full(peer_count, np.nan) for name in CURVES}
        for name in CURVES:
            last[name][me] = curves[name][-1, 0] if len(evaluated) else np.nan
        indices = {member.name: index for index, member in enumerate(roster.members)}
        links = [(indices[a], indices[b]) for a, b in roster.links]
        return View(
            title=self._name,
            configuration={key: getattr(terms, key) for key in ("strategy", "family", "rounds", "lr")},
            made={},
            total=terms.message_rounds,
            round_index=self._rounds[-1]["round"] if self._rounds else 0,
            rounds=rounds,
            peers=np.array([me]),
            curves={name: curves[name] for name in CURVES},
            spread={name: np.repeat(curves[name], len(LEVELS), axis=1) for name in CURVES},
            last=last,
            sizes=np.ones(peer_count, dtype=np.int64),  # numbers of rows are known to their owners only
            links=np.array(links, dtype=np.int64).reshape(-1, 2),
            names=tuple(indices),
            statistics=learned,
            structure=None if learned is None else Structure.of(learned.schema, learned.family),
            finished=False,
        )


def _of_run(entry: RunEntry) -> dict[str, Any]:
    """Return what is shown of a run; how good its model is here is in the verdict alone."""
    return {
        "number": entry.number,
        "state": entry.state,
        "sentence": "" if entry.state == "done" else entry.sentence,
        "proposer": None if entry.proposal is None else entry.proposal.member,
        "approved": list(entry.approved),
        "waiting": list(entry.waiting),
        "participants": len(entry.participants),
        "round": entry.round,
        "verdict": None if entry.verdict is None else bool(entry.verdict.get("good")),
    }


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns


def _evaluated(entry: dict[str, Any]) -> bool:
    return any(entry.get(name) is not None for name in FIGURES)
