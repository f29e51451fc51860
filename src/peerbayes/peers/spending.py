"""What a peer has told of its rows with noise so far: in the run of its folder, and in runs that it gave up there."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from peerbayes.peers.errors import PeerError
from peerbayes.peers.home import Home, Peer
from peerbayes.peers.releases import rounds_in
from peerbayes.peers.store import NoState, Store
from peerbayes.privacy import accounting

ASIDE = "state.left-*.sqlite"  # as `service.set_aside` calls states of runs that were left


def epsilon_of(ledger: Iterable[Mapping[str, Any]], delta: float, more: float = 0.0) -> float:
    """ε of everything in a ledger, and of `more` μ² beside it: releases of Gaussian noise compose exactly."""
    squared = math.fsum([more, *(float(entry["cost"]) for entry in ledger)])
    return accounting.epsilon_of(math.sqrt(squared), delta) + accounting.DISCRETE if squared > 0 else 0.0


def earlier(home: Home) -> list[dict[str, Any]]:
    """The ledgers of runs that were left, together."""
    found: list[dict[str, Any]] = []
    for path in sorted(home.folder.glob(ASIDE)):
        with contextlib.closing(Store(path, readonly=True)) as store:
            found += store.releases()
    return found


def spent(home: Home, peer: Peer) -> dict[str, Any] | None:
    """What this peer's rows have been told about; None where nothing is promised."""
    promise = peer.terms.privacy.promise
    if promise is None:
        return None
    ledger: list[dict[str, Any]] = []
    with contextlib.suppress(NoState), contextlib.closing(Store(home.state_path, readonly=True)) as store:
        ledger = store.releases()
    before = earlier(home)
    return {
        "epsilon": promise.epsilon, "delta": promise.delta, "spent": epsilon_of(ledger, promise.delta),
        "releases": len(ledger), "rounds": rounds_in(ledger),
        "with_earlier_runs": epsilon_of([*before, *ledger], promise.delta) if before else None,
    }  # fmt: skip


def refuse_overspent(home: Home, peer: Peer) -> None:
    """Refuse a run that, with those before it, would spend more than its owner allows."""
    promise, most = peer.terms.privacy.promise, peer.settings.require.get("epsilon")
    before = earlier(home)
    if promise is None or most is None or not before:
        return
    planned = accounting.mu_of(promise.epsilon, promise.delta) ** 2
    whole = epsilon_of(before, promise.delta, planned)
    if whole > most * (1 + 1e-9):
        raise PeerError(
            f"runs that were left in {home.folder} have spent epsilon = {epsilon_of(before, promise.delta):.4g} on "
            f"these rows, and this one would make it {whole:.4g}; {home.settings_path} allows {most:g} in all. Raise "
            "require.epsilon if that may be, or use other rows in another folder"
        )
