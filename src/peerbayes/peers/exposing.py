"""The exposure of a real peer to its neighbours, as the audit evaluates it."""

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
    """Return the exposure of a peer whose rows are known. Only its own classes are: others come from the network."""
    _, counts = np.unique(np.asarray(labels).astype(str), return_counts=True)
    class_counts = tuple(int(count) for count in counts)
    return member(peer.name, peer.roster, peer.terms, len(labels), class_counts)


def member(
    name: str, roster: Roster, terms: Terms, rows: int | None = None, counts: tuple[int, ...] | None = None
) -> Exposure:
    """Return the exposure of a member of a roster."""
    present = roster.present(name)
    if terms.strategy == "relay" and len(roster.members) > 1 and roster.closed:
        index = roster.place(name)
        tree = spanning_tree(roster.adjacency())  # only its links carry messages
        heard = {roster.members[sender].name for sender in tree.sender[tree.receiver == index]}
        present = tuple(other for other in present if other in heard)
    privacy = terms.privacy
    return Exposure(
        name, len(present), rows, counts, terms.rounds, terms.strategy != SILENT, privacy.epsilon, privacy.delta,
        MIN_GROUP if privacy.secure_sum else 1,
    )  # fmt: skip


def warnings(roster: Roster, terms: Terms) -> list[str]:
    """Return warnings for the founder before a network starts; none where all is well."""
    leaves = [
        other.name
        for other in roster.members
        if other.name not in roster.revoked and member(other.name, roster, terms).leaf
    ]
    messages: list[str] = []
    if terms.privacy.epsilon is not None and terms.privacy.epsilon <= NOISE_HOLDS:
        return messages
    if leaves:
        shown = ", ".join(leaves[:10]) + (f" and {len(leaves) - 10} more" if len(leaves) > 10 else "")
        messages.append(
            f"{shown}: one neighbour only, which learns such a peer's contribution exactly, every round"
        )
    if terms.limits.rows < FEW_ROWS and terms.strategy != SILENT:
        messages.append(
            f"the agreement lets peers bring {terms.limits.rows} rows (limits.rows): below {FEW_ROWS}, neighbours can "
            "reconstruct most of them"
        )
    return messages
