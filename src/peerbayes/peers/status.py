"""The status of a peer, read from its folder, whether it runs or not."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from typing import Any

from peerbayes.peers.audit import Tail
from peerbayes.peers.errors import PeerError
from peerbayes.peers.home import Home
from peerbayes.peers.lock import phase
from peerbayes.peers.spending import spent
from peerbayes.peers.store import FIGURES, NoState, Store
from peerbayes.peers.warnings import days_left, warnings_of


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


def status(home: Home, sent: Sent | None = None) -> dict[str, Any]:
    """Return the status of a peer, as far as its folder shows it."""
    peer, current_phase = home.load(), phase(home)
    log = (sent or Sent(home)).read()
    report: dict[str, Any] = {
        "name": peer.name,
        "network": peer.terms.network,
        "running": current_phase is not None,
        "phase": current_phase or "not running",
        "closed": peer.roster.closed,
        "members": len(peer.roster.members),
        "round": 0,
        "rounds": peer.terms.rounds,
        "model": str(home.model_path) if home.model_path.exists() else None,
        "neighbours": {
            name: {"seen": None, "done": 0, "note": ""} for name in peer.roster.neighbours(peer.name)
        },
        "missing": {},
        "judged": None,
        "verdict": None,
        "refusals": [],
        "privacy": spent(home, peer),
        "sent": {"messages": log.messages, "bytes": log.bytes},
        "audit": {"ok": log.problem is None, "problem": log.problem},
        "certificate_days": round(days_left(peer.certificate), 1),
        "warnings": warnings_of(home, peer),
    }
    with contextlib.suppress(NoState), contextlib.closing(Store(home.state_path, readonly=True)) as store:
        history = store.history()
        report["round"] = history[-1]["round"] if history else 0
        report["last_round_at"] = history[-1]["at"] if history else None
        report["agreed"] = bool(history)
        judged = [entry for entry in history if entry["train_error"] is not None]
        report["judged"] = {name: judged[-1][name] for name in ("round", *FIGURES)} if judged else None
        report["missing"] = dict(Counter(name for entry in history for name in entry["missing"]))
        report["neighbours"] |= store.neighbours()
        report["refusals"] = store.refusals()
        report["verdict"] = json.loads(store.told("verdict") or "null")
        if report["running"] and (unreached := store.told(UNREACHED)):
            report["warnings"].append(unreached)
    for name, neighbour in report["neighbours"].items():
        neighbour["state"] = (
            "revoked" if name in peer.roster.revoked else state_of(neighbour, report["running"])
        )
    report["done"] = report["round"] >= report["rounds"]
    return report


UNREACHED = "unreached"  # key in the store of the warning that nobody has ever reached this peer


def state_of(neighbour: dict[str, Any], running: bool) -> str:
    """Return the state of a neighbour in a word; it is not known while this peer does not run."""
    if neighbour["note"] == "left":
        return "left"
    if not running:
        return "not known"
    if neighbour["note"]:
        return "down"
    return "never heard" if neighbour["seen"] is None else "up"
