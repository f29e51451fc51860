"""The roster's spanning tree, as one member sees it: who lies behind each of its links."""

from __future__ import annotations

from peerbayes.peers.roster import Roster
from peerbayes.relay import spanning_tree


def members_behind(name: str, roster: Roster) -> dict[str, frozenset[str]]:
    """Return who lies behind each tree neighbour of a member, that neighbour among them."""
    names = [member.name for member in roster.members]
    tree, own = spanning_tree(roster.adjacency()), roster.place(name)
    _, places = tree.seen_from(own)
    behind = {}
    for first in places:
        seen, waiting = {own}, [int(first)]
        while waiting:
            place = waiting.pop()
            seen.add(place)
            waiting += [int(other) for other in tree.sender[tree.receiver == place] if other not in seen]
        behind[names[first]] = frozenset(names[place] for place in seen - {own})
    return behind
