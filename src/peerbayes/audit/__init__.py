"""The audit: privacy attacks as tools for deciding whether to join a network. (`peers.audit` is a peer's log.)

observe, again   run (or repeat) a simulation and record what one neighbour receives from a peer
seen             the residuals that this neighbour knows exactly
reconstruct      rows from them by the passive attack, or from made-up statistics (active=True)
membership       whether a row is among a peer's, from its first message
Exposure         the risks of a peer, as `peerbayes audit` reports them
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peerbayes.audit.membership_inference import Membership, auc_bound, membership, tpr_bound
    from peerbayes.audit.observation import Observation, Recorder, Seen, again, observe, plain_residual, seen
    from peerbayes.audit.reconstruction import Reconstruction, reconstruct
    from peerbayes.privacy.exposure import Exposure

# The module of each name. They are imported on first use: a peer needs `Exposure`, but no optimiser.
_HOMES = {
    "privacy.exposure": ("Exposure",),
    "audit.membership_inference": ("Membership", "auc_bound", "membership", "tpr_bound"),
    "audit.observation": ("Observation", "Recorder", "Seen", "again", "observe", "plain_residual", "seen"),
    "audit.reconstruction": ("Reconstruction", "reconstruct"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Exposure",
    "Membership",
    "Observation",
    "Reconstruction",
    "Recorder",
    "Seen",
    "again",
    "auc_bound",
    "membership",
    "observe",
    "plain_residual",
    "reconstruct",
    "seen",
    "tpr_bound",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'peerbayes.audit' has no attribute {name!r}")
    return getattr(import_module(f"peerbayes.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
