"""How a peer stands, read from its folder: also while it runs, and also when it does not."""

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
    """What an audit log says of all that left, read again and again; each time only what is new."""

    def __init__(self, home: Home) -> None:
        self._tail = Tail(home.audit_path)
        self.messages = self.bytes = 0
        self.problem: str | None = None
        """Why the log cannot be trusted; what stood before that line counts."""

    def read(self) -> Sent:
        try:
            for entry in self._tail.read() if self.problem is None else ():
                if entry["to"]:  # the others are of releases and starts, and nothing left with them
                    self.messages, self.bytes = self.messages + 1, self.bytes + int(entry["bytes"])
        except PeerError as error:
            self.problem = str(error)
        return self


def status(home: Home, sent: Sent | None = None) -> dict[str, Any]:
    """Everything that can be told without asking anybody."""
    peer, now_at = home.load(), phase(home)
    log = (sent or Sent(home)).read()
    told: dict[str, Any] = {
        "name": peer.name,
        "network": peer.terms.network,
        "running": now_at is not None,
        "phase": now_at or "not running",
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
        told["round"] = history[-1]["round"] if history else 0
        told["last_round_at"] = history[-1]["at"] if history else None
        told["agreed"] = bool(history)
        judged = [entry for entry in history if entry["train_error"] is not None]
        told["judged"] = {name: judged[-1][name] for name in ("round", *FIGURES)} if judged else None
        told["missing"] = dict(Counter(name for entry in history for name in entry["missing"]))
        told["neighbours"] |= store.neighbours()
        told["refusals"] = store.refusals()
        told["verdict"] = json.loads(store.told("verdict") or "null")
        if told["running"] and (unreached := store.told(UNREACHED)):
            told["warnings"].append(unreached)
    for name, line in told["neighbours"].items():
        line["state"] = "revoked" if name in peer.roster.revoked else state_of(line, told["running"])
    told["done"] = told["round"] >= told["rounds"]
    return told


UNREACHED = "unreached"  # what the store calls the warning that nobody has ever reached this peer


def state_of(line: dict[str, Any], running: bool) -> str:
    """How a neighbour is, in a word; whoever does not run cannot know."""
    if line["note"] == "left":
        return "left"
    if not running:
        return "not known"
    if line["note"]:
        return "down"
    return "never heard" if line["seen"] is None else "up"
