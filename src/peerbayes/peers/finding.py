"""One finding of `peerbayes node check`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One finding: ok, advice, or a problem that keeps the peer from running."""

    what: str
    outcome: str  # "ok", "warning" or "failed"
    told: str
