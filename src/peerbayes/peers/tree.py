"""The roster's spanning tree from one member's view: the members behind each of its links."""

from __future__ import annotations

from peerbayes.peers.roster import Roster
from peerbayes.relay import spanning_tree


def members_behind(name: str, roster: Roster) -> dict[str, frozenset[str]]:
    """Return the members behind each tree neighbour of a member, including that neighbour."""
    names = [member.name for member in roster.members]
    tree, root = spanning_tree(roster.adjacency()), roster.place(name)
    _, tree_neighbours = tree.seen_from(root)
    behind = {}
    for first in tree_neighbours:
        visited, waiting = {root}, [int(first)]
        while waiting:
            index = waiting.pop()
            visited.add(index)
            waiting += [
                int(neighbour)
                for neighbour in tree.sender[tree.receiver == index]
                if neighbour not in visited
            ]
        behind[names[first]] = frozenset(names[index] for index in visited - {root})
    return behind
