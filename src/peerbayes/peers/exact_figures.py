"""Figures of a peer's own rows that carry no noise: training error, soft error, error on held-out rows, disagreement.

Where the agreement has an epsilon, they stay on the peer's machine: the owner sees them in the log, in `node status`
and on a dashboard of this machine. Anybody else who saw them would learn more about rows than epsilon allows, so they
are neither on /metrics nor on a dashboard that other machines can reach, unless the owner sets
`show_exact_figures = true` in `peer.toml`.
"""

from __future__ import annotations

from peerbayes.peers.home import Home
from peerbayes.peers.settings import Settings
from peerbayes.peers.terms import Terms

NO_NOISE = "without noise: not for others"


def may_leave(terms: Terms, settings: Settings) -> bool:
    """Return whether figures without noise may leave the peer's machine."""
    return terms.privacy.epsilon is None or settings.show_exact_figures


def may_leave_home(home: Home) -> bool:
    """Return whether figures without noise may leave the machine of the peer in this folder."""
    return may_leave(Terms.read(home.agreement_path), home.settings())
