"""Where the columns of a Bayesian network are drawn: each in a line of its own, below its parents and right of them.

A parent's arrows go down its lane and turn right to its children; a column stands right of all lanes used at its line:

    lane_j = 1 + max{ lane_i : line_i < line_j ≤ line of the last child of i }        0 where there is none

So arrows cross neither columns nor the names right of them, however wide the drawing is. Lines go depth first: the
arrows of a tree do not cross each other, and its lanes are its levels.
"""

from __future__ import annotations

from peerbayes.families.structures import Parents, order


def children(parents: Parents) -> list[list[int]]:
    """The children of each column, in order."""
    found: list[list[int]] = [[] for _ in parents]
    for column, own in enumerate(parents):
        for parent in own:
            found[parent].append(column)
    return found


def lines(parents: Parents) -> list[int]:
    """The columns from top to bottom, each after its parents and as soon as it may.

    Of several, the one with the fewest descendants comes first: lanes are short then. Of those without parents it
    comes last.
    """
    below = children(parents)
    reached = [0] * len(parents)  # sets of descendants, as bits
    for column in reversed(order(parents)):
        for child in below[column]:
            reached[column] |= reached[child] | 1 << child
    many = [own.bit_count() for own in reached]
    left = [len(own) for own in parents]
    roots = [column for column, own in enumerate(parents) if not own]
    waiting = sorted(roots, key=lambda column: (many[column], -column))
    found: list[int] = []
    while waiting:
        column = waiting.pop()
        found.append(column)
        for child in below[column]:
            left[child] -= 1
        free = [child for child in below[column] if left[child] == 0]
        waiting += sorted(free, key=lambda child: (-many[child], -child))
    return found


def lanes(parents: Parents, from_top: list[int]) -> list[int]:
    """The lane of each column, counted from the left, where columns come in these lines."""
    line = {column: place for place, column in enumerate(from_top)}
    last = [max((line[child] for child in own), default=-1) for own in children(parents)]
    found = [0] * len(parents)
    used: list[int] = []  # columns with children still to come
    for place, column in enumerate(from_top):
        used = [above for above in used if last[above] >= place]
        found[column] = 1 + max((found[above] for above in used), default=-1)
        used.append(column)
    return found
