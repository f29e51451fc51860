"""What a peer shows of itself: warnings, status, and the events of a run."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from peerbayes.data.files import printable
from peerbayes.errors import PeerbayesError, PeerError
from peerbayes.peer.agreement.terms import SITES, Terms
from peerbayes.peer.identity import keys
from peerbayes.peer.learning.held_out import error_text
from peerbayes.peer.models.history import History
from peerbayes.peer.protocol.session import NeighbourState, Waiting
from peerbayes.peer.renewing import Renewed, renewal_status, renewal_warning
from peerbayes.peer.runs.consent import FILE as CONSENT
from peerbayes.peer.runs.consent import Consent
from peerbayes.peer.runs.timetable import FILE as SCHEDULE
from peerbayes.peer.runs.timetable import Schedule
from peerbayes.peer.state.audit_log import Tail
from peerbayes.peer.state.disk import WAITING, phase
from peerbayes.peer.state.folder import Home, Peer
from peerbayes.peer.state.ledger import spent
from peerbayes.peer.state.links_file import links_of
from peerbayes.peer.state.peer_settings import NOT_SHARED
from peerbayes.peer.state.same_rows import one_sided
from peerbayes.peer.state.store import FIGURES, NoState, PeerState, Store
from peerbayes.peer.tasks import Rate

# --- warnings to an operator before something becomes a problem; shown by `check`, `status` and the log of a run

ENDS_SOON = timedelta(days=60)  # of the authority
OTHERS = 0o077  # permission bits that a private file does not have


def warnings_of(home: Home, peer: Peer, now: datetime | None = None) -> list[str]:
    """Return the problems of a peer's folder that do not prevent a run."""
    return [
        *_readable(home),
        *_uncounted(home),
        *_ending(home, peer, now or datetime.now(UTC)),
        *untested(home, peer.terms),
        *_unusable(home),
    ]


def untested(home: Home, terms: Terms) -> Iterable[str]:
    """Yield that a run is to tell the errors of all sites on held-out rows, and this site holds none out."""
    settings = home.settings()
    if terms.evaluation == SITES and not settings.hold_out and settings.share_figures != NOT_SHARED:
        yield (
            f'evaluation is "sites" in the agreement, and {home.settings_path} has no hold_out: nothing will be known '
            "of the model's errors here. Write hold_out = 0.2, for a fifth of the rows, before the run begins"
        )


def days_left(certificate: bytes, now: datetime | None = None) -> float:
    """Return the days until a certificate expires; negative: it has expired."""
    return (keys.expiry(certificate) - (now or datetime.now(UTC))) / timedelta(days=1)


def unreached(address: str, reached: Iterable[str]) -> str:
    """Return the warning that nobody has ever reached this peer, though it reaches others."""
    return (
        f"nobody has reached this peer at {address} since it started, though it reaches {', '.join(reached)}: is the "
        "port open inwards in this machine's firewall, and forwarded by its router? `peerbayes peer check` asks a "
        "neighbour"
    )


def _readable(home: Home) -> Iterable[str]:
    for path in (home.key_path, home.state_path):
        if path.exists() and (mode := path.stat().st_mode & 0o777) & OTHERS:
            yield f"{path} can be read by others (mode {mode:04o}); make it private with `chmod 600 {path}`"


def _unusable(home: Home) -> Iterable[str]:
    """Yield why a standing consent or a schedule cannot be used: nothing is approved, or proposed, by it."""
    for kind, name in ((Consent, CONSENT), (Schedule, SCHEDULE)):
        try:
            kind.read(home.folder / name)
        except (PeerbayesError, OSError) as error:
            yield f"{name} cannot be used: {error}"


def _uncounted(home: Home) -> Iterable[str]:
    """Yield which folder over the same rows does not count what is released here."""
    try:
        if problem := one_sided(home):
            yield problem
    except PeerbayesError as error:
        yield str(error)


def _ending(home: Home, peer: Peer, now: datetime) -> Iterable[str]:
    if (warning := renewal_warning(peer, Renewed.read(home), now.timestamp())) is not None:
        yield warning
    days = days_left(peer.authority, now)
    if days < ENDS_SOON / timedelta(days=1):
        yield (
            f"the certificate of the network's authority ends in {max(0, int(days))} days, on "
            f"{keys.expiry(peer.authority):%Y-%m-%d}; create another network before that"
        )


# --- the status of a peer, read from its folder, whether it runs or not


class Sent:
    """Totals of sent messages from an audit log; each read continues after the last."""

    def __init__(self, home: Home) -> None:
        self._tail = Tail(home.audit_path)
        self.messages = self.bytes = 0
        self.problem: str | None = None
        """Why the log cannot be trusted; lines before the problem count."""

    def read(self) -> Sent:
        try:
            for entry in self._tail.read() if self.problem is None else ():
                if entry["to"]:  # other entries record releases and starts, with which nothing was sent
                    self.messages, self.bytes = self.messages + 1, self.bytes + int(entry["bytes"])
        except PeerError as error:
            self.problem = str(error)
        return self


def member_status(home: Home, peer: Peer) -> dict[str, Any]:
    """Return what does not depend on a run: the process, the certificate, and warnings."""
    current_phase = phase(home)
    return {
        "name": peer.name,
        "network": peer.terms.network,
        "running": current_phase is not None,
        "phase": current_phase or "not running",
        "certificate_days": round(days_left(peer.certificate), 1),
        "renewal": renewal_status(peer, Renewed.read(home)),
        "links": links_of(home),
        "warnings": warnings_of(home, peer),
    }


def status(home: Home, sent: Sent | None = None) -> dict[str, Any]:
    """Return the status of a peer, as far as its folder shows it."""
    peer = home.load()
    log = (sent or Sent(home)).read()
    report: dict[str, Any] = {
        **member_status(home, peer),
        "run": home.run_number,
        "closed": peer.roster.closed,
        "members": len(peer.roster.members),
        "round": 0,
        "rounds": peer.terms.message_rounds,
        "model": _model_of(home, peer),
        "neighbours": {
            name: {"seen": None, "done": 0, "note": "", "usual": None}
            for name in peer.roster.neighbours(peer.name)
        },
        "missing": {},
        "waiting": [],
        "waits": [],
        "judged": None,
        "verdict": None,
        "family_choice": None,
        "figures": None,
        "sites": None,
        "refusals": [],
        "privacy": spent(home, peer),
        "sent": {"messages": log.messages, "bytes": log.bytes},
        "audit": {"ok": log.problem is None, "problem": log.problem},
    }
    with contextlib.suppress(NoState), contextlib.closing(Store(home.state_path, readonly=True)) as store:
        history = store.history()
        report["round"] = history[-1]["round"] if history else 0
        report["last_round_at"] = history[-1]["at"] if history else None
        report["agreed"] = bool(history)
        judged = [entry for entry in history if entry["train_error"] is not None]
        report["judged"] = {name: judged[-1][name] for name in ("round", *FIGURES)} if judged else None
        report["missing"] = dict(Counter(name for entry in history for name in entry["missing"]))
        waits = json.loads(store.value(WAITS) or "{}")
        for name, neighbour in store.neighbours().items():
            report["neighbours"][name] = neighbour | {"usual": waits.get("usual", {}).get(name)}
        report["waits"] = waits.get("closed", [])
        if report["running"] and (waiting := waits.get("open")) and waiting["round"] > report["round"]:
            report["waiting"] = list(_waiting(waiting, report["neighbours"], history[1:][-RECENT:]))
        report["refusals"] = store.refusals()
        report["verdict"] = json.loads(store.value("verdict") or "null")
        report["family_choice"] = json.loads(store.value(FAMILY_CHOICE) or "null")
        report["figures"] = json.loads(store.value(DATA_FIGURES) or "null")
        report["sites"] = json.loads(store.value(SITE_FIGURES) or "null")
        report["warnings"] += findings_in(report["figures"])
        if report["running"] and (unreached := store.value(UNREACHED)):
            report["warnings"].append(unreached)
    for name, neighbour in report["neighbours"].items():
        neighbour["link"] = (report["links"] or {}).get(name)
        neighbour["state"] = (
            "revoked" if name in peer.roster.revoked else state_of(neighbour, report["running"])
        )
    if report["verdict"] is not None:  # all peers may have stopped together before the limit
        report["rounds"] = report["round"]
    report["done"] = report["round"] >= report["rounds"]
    return report


def _model_of(home: Home, peer: Peer) -> str | None:
    """Return the path of a run's model; None: there is none. The file of applications may be that of a later run."""
    path: Path | None = home.model_path
    if home.run_number == 1 and home.shown_run().run_number > 1:
        history = History(home.folder)
        versions = [version.number for version in history.versions() if version.run == peer.roster.run]
        path = history.path(versions[-1]) if versions else None
    return str(path) if path is not None and path.exists() else None


def figures_of(home: Home) -> dict[str, Any]:
    """Return the figures of all sites that a peer has: of their data before a run, and of its model after it."""
    peer = home.load()
    report = {
        "name": peer.name,
        "network": peer.terms.network,
        "run": home.run_number,
        "agreed": {"figures": peer.terms.figures, "evaluation": peer.terms.evaluation},
        "figures": None,
        "sites": None,
    }
    with contextlib.suppress(NoState), contextlib.closing(Store(home.state_path, readonly=True)) as store:
        report["figures"] = json.loads(store.value(DATA_FIGURES) or "null")
        report["sites"] = json.loads(store.value(SITE_FIGURES) or "null")
    return report


WAITS = "waits"  # key in the store of what rounds waited for
RECENT = 20  # rounds of which it is kept


def _waiting(
    waiting: dict[str, Any], neighbours: dict[str, Any], recent: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the neighbours that the open round waits for: how long so far and at most, and how they did before."""
    for name, most in waiting["timeouts"].items():
        yield {
            "neighbour": name,
            "seconds": max(0.0, time.time() - waiting["began"]),
            "at_most": most,
            "usual": neighbours.get(name, {}).get("usual"),
            "missed": sum(name in entry["missing"] for entry in recent),
            "of": len(recent),
        }


def waiting_text(waiting: dict[str, Any]) -> str:
    """Return an entry of `waiting` in words."""
    usual = "" if waiting["usual"] is None else f"; usually answers in {waiting['usual']:.2g} s"
    return (
        f"waiting for {waiting['neighbour']}: {waiting['seconds']:.1f} s of at most {waiting['at_most']:g} s{usual}; "
        f"missed {waiting['missed']} of the last {waiting['of']} rounds"
    )


def waits_text(waits: list[dict[str, Any]]) -> str:
    """Return what the last rounds waited for in words; empty where they hardly waited."""
    seconds: Counter[str] = Counter()
    for entry in waits:
        for name in entry["for"]:
            seconds[name] += entry["seconds"]
    total = sum(entry["seconds"] for entry in waits)
    names = ", ".join(f"{count:.1f} s for {name}" for name, count in seconds.most_common(3))
    return f"the last {len(waits)} rounds waited {total:.1f} s: {names}" if total >= NOTICED else ""


NOTICED = 0.1  # seconds of waiting that are worth a word

FAMILY_CHOICE = "family choice"  # key in the store of which family all peers chose and why
DATA_FIGURES, SITE_FIGURES = "data figures", "site figures"  # keys in the store of figures of all sites
UNREACHED = "unreached"  # key in the store of the warning that nobody has ever reached this peer


def findings_in(figures: dict[str, Any] | None) -> list[str]:
    """Return what this site found when it compared its table with the others', as `status` has it."""
    if figures is None:
        return []
    sentences = [finding["sentence"] for finding in figures["findings"]]
    return [
        f"figures of the data: {sentence}" for sentence in (*filter(None, [figures["problem"]]), *sentences)
    ]


def state_of(neighbour: dict[str, Any], running: bool) -> str:
    """Return the state of a neighbour in a word; it is not known while this peer does not run."""
    if neighbour["note"] == "left":
        return "left"
    if not running:
        return "not known"
    if neighbour["note"]:
        return "down"
    return "never heard" if neighbour["seen"] is None else "up"


# --- the journal of a peer's events: log lines for people, and notes in the store for `status`

log = logging.getLogger("peerbayes.peer")

# A neighbour can change its state at will: so many log lines about it at once, then one every so many seconds.
LINES_AT_ONCE, QUIET = 10, 1.0
REASONS = 1000  # different (who, reason) pairs that are counted separately; more are counted together


class Journal:
    """Logs every event of a peer. `flush` writes what is new to the store."""

    def __init__(self, store: PeerState) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._refused: dict[tuple[str, str], tuple[int, str]] = {}
        self._ever: Counter[tuple[str, str]] = Counter()
        self._began = time.monotonic()
        self._spoken = Rate(LINES_AT_ONCE, QUIET)
        self._waits: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self._written = ""  # of them, the last time

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
        if self._spoken.allows(name):
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
        tail = f"; {error}" if (error := error_text(facts["figures"], epsilon is not None)) else ""
        tail += f"; epsilon {epsilon:.3f} spent" if epsilon is not None else ""
        tail += f"; not heard: {', '.join(missing)}" if missing else ""
        waited = facts.get("waited")
        if waited is not None:
            names = list(waited.timeouts)
            self._waits.append({"round": facts["round"], "seconds": waited.seconds, "for": names})
            tail += (
                f"; waited {waited.seconds:.2f} s for {', '.join(names)}" if waited.seconds >= NOTICED else ""
            )
        did = f"heard {len(heard)} of {len(heard) + len(missing)}"
        if facts.get("by_sum"):  # it goes over a tree: no neighbour alone is heard, or missed
            did = "added up over all peers"
        log.info(f"round {facts['round']}/{facts['of']}: {did} in {now - self._began:.2f} s{tail}")
        self._began = now

    def flush(self, neighbour_states: dict[str, NeighbourState], waiting: Waiting | None = None) -> None:
        """Write to the store what is new since the last call; `waiting`: what the open round waits for."""
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
        self._write_waits(neighbour_states, waiting)

    def _write_waits(self, neighbour_states: dict[str, NeighbourState], waiting: Waiting | None) -> None:
        """Store what the open round and the last ones waited for, if it has changed."""
        response = {name: state.response.mean for name, state in neighbour_states.items()}
        waits: dict[str, Any] = {
            "usual": {name: seconds for name, seconds in response.items() if seconds is not None},
            "closed": list(self._waits),
        }
        if waiting is not None and waiting.seconds is None:
            open_round = {"round": waiting.round_index, "began": waiting.began, "timeouts": waiting.timeouts}
            waits["open"] = open_round
        if (written := json.dumps(waits)) != self._written:
            self._store.keep(WAITS, written)
            self._written = written


WARNINGS = (
    "finding",
    "sites",
    "left behind",
    "not selected",
    "parted",
    "exposed",
    "ended badly",
    "disk full",
    "warning",
)
LINES = {
    "warning": "{warning}",
    "disk full": f"the disk is full: {WAITING}. Nothing is lost, and the peer goes on when there is room",
    "disk has room": "there is room on the disk again: going on",
    "exposed": "privacy: {alarm}",
    "open": "the network is still open (members: {members}): waiting for its founder to close it",
    "roster": "roster {version} is in force",
    "renewal": "{text}",
    "agreeing": "agreeing on {phase}",
    "private": "private: whatever leaves this peer has noise. Nobody learns more about one row than epsilon "
    "{epsilon:g} (delta {delta:g}) allows, of which {spent:.3g} is spent; sigma {sigma:.4g} at clip {clip:.4g}, "
    "rho {rho:.3g}",
    "chosen": "family chosen: {reason}",
    "finding": "figures of the data: {sentence}",
    "warm": "the run begins with the model of an earlier one, as {members} members have it (0: with none that fits)",
    "agreed": "agreed: {peers} peers with {rows} rows, strategy {strategy}, schema {schema:.12}",
    "resumed": "going on after round {round}",
    "skipped": "round {round}: no sum of the group ({why}); this peer goes on with its own statistics",
    "checked": "round {round}: log loss {loss:.4f} on the held-out rows of all peers; the lowest so far: round {kept}",
    "not selected": "{reason}",
    "sites": "figures of all sites: {note}",
    "done": "all {round} rounds are done: {verdict}. Staying until the neighbours are done as well",
    "ended badly": "the run has ended after {round} rounds, but not well: {problem}",
    "version": "the model is version {number} of this peer's (`peerbayes model list`)",
    "parted": "{neighbour} is no longer heard, {reason}: {why}",
    "left behind": "not done yet: {neighbours}. They can ask again once this peer runs again",
}
