"""Who sums whose messages where sums are secure: groups of three or more, the same for everybody with one roster."""

from __future__ import annotations

from peerbayes.peers.errors import TermsError
from peerbayes.peers.roster import Roster
from peerbayes.secure_sums import MIN_GROUP


def groups(roster: Roster) -> dict[str, tuple[str, ...]]:
    """Return each receiver's group: its neighbours that are not revoked and have a group themselves (the 3-core).

    A peer with fewer than three neighbours left can neither sum nor be summed: a peer that does not mix would pull
    everybody towards itself. Without it others may have too few, and so on, until each has three or more.
    """
    members = {
        member.name: set(roster.present(member.name))
        for member in roster.members
        if member.name not in roster.revoked
    }
    while small := [name for name, others in members.items() if len(others) < MIN_GROUP]:
        for name in small:
            for other in members.pop(name):
                members.get(other, set()).discard(name)
    return {name: tuple(sorted(others)) for name, others in members.items()}


def refuse_small(roster: Roster) -> None:
    """Refuse a network of secure sums in which somebody has fewer than three neighbours."""
    for member in roster.members:
        if member.name in roster.revoked:
            continue
        others = roster.present(member.name)
        if len(others) < MIN_GROUP:
            raise TermsError(
                f"{member.name} has {len(others)} neighbours ({', '.join(others) or 'nobody'}); secure sums need "
                f"{MIN_GROUP} or more at every peer, since single messages can be inferred from a sum of fewer. Link "
                f"it to more: `peerbayes network invite … --links …,{member.name}` for those still to join, or "
                "revoke it and invite it under another name; or found a network without secure_sum"
            )
