"""How open a real peer is to its neighbours: the facts that the audit's judgement takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from peerbayes.audit.judgement import FEW_ROWS, NOISE_HOLDS, Exposure
from peerbayes.peers.home import Peer
from peerbayes.peers.roster import Roster
from peerbayes.peers.terms import Terms
from peerbayes.relay import spanning_tree
from peerbayes.secure_sums import MIN_GROUP

SILENT = "local"  # the strategy that sends nothing in the rounds


def exposure(peer: Peer, labels: Any) -> Exposure:
    """Of a peer whose rows are known. Its own classes are: which others there are, it learns from the network."""
    _, counts = np.unique(np.asarray(labels).astype(str), return_counts=True)
    found = tuple(int(count) for count in counts)
    return member(peer.name, peer.roster, peer.terms, len(labels), found)


def member(
    name: str, roster: Roster, terms: Terms, rows: int | None = None, counts: tuple[int, ...] | None = None
) -> Exposure:
    """Of a member of a roster."""
    present = roster.present(name)
    if terms.strategy == "relay" and len(roster.members) > 1 and roster.closed:
        place = roster.place(name)
        tree = spanning_tree(roster.adjacency())  # only its links carry messages
        heard = {roster.members[sender].name for sender in tree.sender[tree.receiver == place]}
        present = tuple(other for other in present if other in heard)
    secret = terms.privacy
    return Exposure(
        name, len(present), rows, counts, terms.rounds, terms.strategy != SILENT, secret.epsilon, secret.delta,
        MIN_GROUP if secret.secure_sum else 1,
    )  # fmt: skip


def warnings(roster: Roster, terms: Terms) -> list[str]:
    """What a founder should know before a network starts; nothing where all is well."""
    leaves = [
        other.name
        for other in roster.members
        if other.name not in roster.revoked and member(other.name, roster, terms).leaf
    ]
    told: list[str] = []
    if terms.privacy.epsilon is not None and terms.privacy.epsilon <= NOISE_HOLDS:
        return told
    if leaves:
        shown = ", ".join(leaves[:10]) + (f" and {len(leaves) - 10} more" if len(leaves) > 10 else "")
        told.append(
            f"{shown}: one neighbour only, which learns such a peer's contribution exactly, every round"
        )
    if terms.limits.rows < FEW_ROWS and terms.strategy != SILENT:
        told.append(
            f"the agreement lets peers bring {terms.limits.rows} rows (limits.rows): below {FEW_ROWS}, neighbours can "
            "reconstruct most of them"
        )
    return told
