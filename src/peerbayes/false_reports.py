"""Members that lie before the first round, while rows, units and the start are agreed on.

    rows     10¹² rows
    mean     Σx + 2⁶⁰ of every continuous column
    spread   Σ(x − mean)² = 2⁸⁰ of every continuous column; where units come of votes, one for as much
    start    a million times the own statistics, with the classes in reverse order
    all      all of these

`allowed`: the same as far as members with bounds do not refuse it (see `member_bounds`). A liar then votes for as much
as there is, reports the largest square that there is, counts for as many rows as the links to its honest neighbours
leave room for, also in the name of members whose sums pass through it, and with `start` or `all` has all of them at the
end of every column, as many of each class.
"""

from __future__ import annotations

REPORTS = ("rows", "mean", "spread", "start", "all")

ROWS, SHIFT, SQUARES, TIMES = 1e12, 2.0**60, 2.0**80, 1e6
