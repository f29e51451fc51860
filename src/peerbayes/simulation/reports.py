"""What simulated peers report before the first round, some of them falsely, and what is made of it.

Rows, Σx and Σ(x − mean)² of each peer are added up as real peers add them. With `robust`, units come of votes, each
peer keeps to the bounds that the votes of all give, and what an honest peer hears from a liar is held to them.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from peerbayes import false_reports
from peerbayes.columns import with_units
from peerbayes.medians import lower_median
from peerbayes.member_bounds import MemberBounds, StatisticsBounds, deviation_of, mean_of
from peerbayes.moments import limit_of, report_of, units_of, worst_report
from peerbayes.schema import Schema
from peerbayes.simulation.liars import Liars
from peerbayes.tables import Table

# What liars vote for: more than anybody has, and its square is a float64.
FARTHEST = 1e150


@dataclass(frozen=True, eq=False)
class Reported:
    """The reports of all peers, and the units that come of them."""

    schema: Schema
    """With location and scale as they were agreed on."""
    rows: np.ndarray
    """[N] that each reported."""
    weights: np.ndarray
    """[N] of each row of a peer, so that none counts for more than it may."""
    liars: Liars

    def start(self, stats: np.ndarray, bounds: StatisticsBounds) -> np.ndarray:
        """Return the statistics that peers report for a start, from their own: [N, C, K] -> [N, C, K]."""
        liars, said = self.liars, stats.copy()
        for liar in liars.who.tolist() if liars.report is not None else ():
            if liars.allowed:
                said[liar] *= self.rows[liar] / stats[liar][:, 0].sum()
                if liars.tell("start"):
                    said[liar] = bounds.farthest(stats.shape[1], self.rows[liar])
            elif liars.tell("start"):
                said[liar] = false_reports.TIMES * stats[liar][::-1]
        liars.refuse(
            "start", lambda behind: bounds.check(said[behind].sum(axis=0), float(self.rows[behind].sum()))
        )
        return said


def reported(schema: Schema, table: Table, sizes: np.ndarray, liars: Liars) -> Reported:
    """Return the reports of peers that hold the table's rows, one peer's after the other's.

    schema  kinds and categories; its units are replaced
    sizes   [N] rows of each peer
    liars   who reports something else, and whether the others keep to bounds and hold reports to them
    """
    columns = _columns(schema, table, sizes)
    if not liars.enforced:
        rows = liars.more_rows(sizes.astype(np.float64), math.inf)
        return Reported(_summed(schema, columns, liars), rows, np.ones(sizes.size), liars)
    bounds = _voted(columns, sizes, liars)
    counted = np.minimum(sizes, bounds.rows).astype(np.float64)
    rows = liars.more_rows(counted, float(bounds.rows))

    def check(behind: np.ndarray) -> None:
        bounds.check_rows(float(rows[behind].sum()), behind.size)
        if liars.tell("mean") and not liars.allowed:
            for name in columns:
                bounds.check_total(name, false_reports.SHIFT)

    liars.refuse("columns", check)
    return Reported(bounds.measured(schema), rows, counted / np.maximum(sizes, 1), liars)


def _columns(schema: Schema, table: Table, sizes: np.ndarray) -> dict[str, list[np.ndarray]]:
    """Return each peer's present values of each continuous column."""
    places, splits, values = schema.places(table), np.cumsum(sizes)[:-1], {}
    for j in schema.continuous:
        parts = np.split(schema.columns[j].numbers(table.column(places[j])), splits)
        values[schema.columns[j].name] = [part[~np.isnan(part)] for part in parts]
    return values


def _voted(columns: dict[str, list[np.ndarray]], sizes: np.ndarray, liars: Liars) -> MemberBounds:
    """Return what members may report, from medians by vote and everybody's reports beside them."""
    lying = liars.who if liars.report is not None else liars.who[:0]
    votes, fair = [FARTHEST] * lying.size, np.setdiff1d(np.arange(sizes.size), lying).tolist()
    middles, deviations = {}, {}
    for name, parts in columns.items():
        there = [parts[peer] for peer in fair if parts[peer].size]
        if there:
            middles[name] = lower_median([*map(mean_of, there), *votes])
            apart = [deviation_of(part, middles[name]) for part in there]
            if varying := [deviation for deviation in apart if deviation > 0.0]:
                deviations[name] = lower_median([*varying, *votes])
    rows = lower_median([*sizes[fair].astype(np.float64).tolist(), *votes])
    limit = limit_of(sizes.size)
    for name, deviation in deviations.items():
        said = Counter(
            report_of(columns[name][peer], middles[name], deviation, limit)
            for peer in fair
            if columns[name][peer].size
        )
        said[worst_report()] += lying.size
        middles[name], deviations[name] = units_of(said, middles[name], deviation, limit)
    return MemberBounds.of(rows, middles, deviations)


def _summed(schema: Schema, columns: dict[str, list[np.ndarray]], liars: Liars) -> Schema:
    """Return the schema in the units of everybody's sums, where nobody checks them."""
    changed = list(schema.columns)
    for j in schema.continuous:
        parts = columns[schema.columns[j].name]
        count = float(sum(part.size for part in parts))
        changed[j] = replace(changed[j], count=count, location=0.0, scale=1.0, constant=False)
        if count:
            totals = np.array([math.fsum(part) for part in parts])
            if liars.tell("mean"):
                totals[liars.who] += false_reports.SHIFT
            location = math.fsum(totals) / count
            squares = np.array([math.fsum((part - location) ** 2) for part in parts])
            if liars.tell("spread"):
                squares[liars.who] = false_reports.SQUARES
            changed[j] = with_units(changed[j], location, math.sqrt(math.fsum(squares) / count))
    return replace(schema, columns=tuple(changed))
