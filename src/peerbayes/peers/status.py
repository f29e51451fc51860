"""How a peer stands, read from its folder: also while it runs, and also when it does not."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from typing import Any

from peerbayes.peers import audit
from peerbayes.peers.home import Home
from peerbayes.peers.service import running
from peerbayes.peers.spending import spent
from peerbayes.peers.store import FIGURES, NoState, Store


def status(home: Home) -> dict[str, Any]:
    """Everything that can be told without asking anybody."""
    peer = home.load()
    told: dict[str, Any] = {
        "name": peer.name,
        "network": peer.terms.network,
        "running": running(home),
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
    sent = [entry for entry in audit.entries(home.audit_path) if entry["to"]]
    told["sent"] = {"messages": len(sent), "bytes": sum(entry["bytes"] for entry in sent)}
    told["done"] = told["round"] >= told["rounds"]
    return told
