"""Who adds up whose messages where sums are secure: groups of three or more, the same for everybody with one roster."""

from __future__ import annotations

from peerbayes.peers.errors import TermsError
from peerbayes.peers.roster import Roster
from peerbayes.secure_sums import MIN_GROUP


def groups(roster: Roster) -> dict[str, tuple[str, ...]]:
    """Each receiver's group: its neighbours that are not revoked and have a group themselves.

    A peer left with fewer than three neighbours can neither sum nor be summed: who does not mix would pull everybody
    towards itself. Without it others may have too few, and so on; what is left has three or more each (the 3-core).
    """
    found = {
        member.name: set(roster.present(member.name))
        for member in roster.members
        if member.name not in roster.revoked
    }
    while small := [name for name, others in found.items() if len(others) < MIN_GROUP]:
        for name in small:
            for other in found.pop(name):
                found.get(other, set()).discard(name)
    return {name: tuple(sorted(others)) for name, others in found.items()}


def refuse_small(roster: Roster) -> None:
    """Refuse a network of secure sums in which somebody has fewer than three neighbours."""
    for member in roster.members:
        if member.name in roster.revoked:
            continue
        others = roster.present(member.name)
        if len(others) < MIN_GROUP:
            raise TermsError(
                f"{member.name} has {len(others)} neighbours ({', '.join(others) or 'nobody'}); secure sums need "
                f"{MIN_GROUP} or more at every peer, since from fewer messages each can be told. Link it to more: "
                f"`peerbayes network invite … --links …,{member.name}` for those that still come, or revoke it and "
                "invite it under another name; or found a network without secure_sum"
            )
