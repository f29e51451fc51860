"""Positions of the columns of a Bayesian network in a drawing: each in its own row, below and right of its parents.

A parent's arrows go down its lane and turn right to its children; a column is placed right of all lanes in use at its
row:

    lane_j = 1 + max{ lane_i : row_i < row_j ≤ row of the last child of i }        0 where there is none

So arrows cross neither columns nor the names to their right, whatever the width of the drawing. Rows are in depth-first
order: the arrows of a tree do not cross each other, and its lanes are its levels.
"""

from __future__ import annotations

from peerbayes.families.structures import Parents, order


def children(parents: Parents) -> list[list[int]]:
    """Return the children of each column, in order."""
    result: list[list[int]] = [[] for _ in parents]
    for column, column_parents in enumerate(parents):
        for parent in column_parents:
            result[parent].append(column)
    return result


def vertical_order(parents: Parents) -> list[int]:
    """Return the columns from top to bottom, each after its parents and as early as possible.

    Among siblings, the one with the fewest descendants comes first, which keeps lanes short; among columns without
    parents it comes last.
    """
    child_lists = children(parents)
    descendants = [0] * len(parents)  # sets as bits
    for column in reversed(order(parents)):
        for child in child_lists[column]:
            descendants[column] |= descendants[child] | 1 << child
    descendant_counts = [bits.bit_count() for bits in descendants]
    open_parents = [len(column_parents) for column_parents in parents]
    roots = [column for column, column_parents in enumerate(parents) if not column_parents]
    waiting = sorted(roots, key=lambda column: (descendant_counts[column], -column))
    ordered: list[int] = []
    while waiting:
        column = waiting.pop()
        ordered.append(column)
        for child in child_lists[column]:
            open_parents[child] -= 1
        free = [child for child in child_lists[column] if open_parents[child] == 0]
        waiting += sorted(free, key=lambda child: (-descendant_counts[child], -child))
    return ordered


def lanes(parents: Parents, from_top: list[int]) -> list[int]:
    """Return the lane of each column, counted from the left, for columns in the order `from_top`."""
    rows = {column: row for row, column in enumerate(from_top)}
    last_rows = [
        max((rows[child] for child in column_children), default=-1) for column_children in children(parents)
    ]
    column_lanes = [0] * len(parents)
    open_columns: list[int] = []  # columns with children further down
    for row, column in enumerate(from_top):
        open_columns = [above for above in open_columns if last_rows[above] >= row]
        column_lanes[column] = 1 + max((column_lanes[above] for above in open_columns), default=-1)
        open_columns.append(column)
    return column_lanes
