"""What simulated peers report of their tables before the first round, with and without liars among them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.sparse import csgraph, csr_array

from peerbayes.data.column import with_units
from peerbayes.data.schema import Schema
from peerbayes.data.table import Table
from peerbayes.errors import FalseReport
from peerbayes.learning.robust import attacks
from peerbayes.learning.robust.bounds import (
    MemberBounds,
    StatisticsBounds,
    deviation_of,
    limit_of,
    lower_median,
    mean_of,
    report_of,
    units_of,
    worst_report,
)

# --- who lies before the first round in a simulation, and over which links of the tree honest peers hear it


@dataclass(frozen=True, eq=False)
class Link:
    """A link of the tree on which a liar sends to an honest peer."""

    liar: int
    honest: int
    behind: np.ndarray
    """Whose reports are in what the liar sends, itself among them."""


def links_of(liars: np.ndarray, adjacency: csr_array) -> list[Link]:
    """Return the links from liars to honest peers on the tree that real peers would sum along."""
    if not liars.size:
        return []
    tree = csgraph.breadth_first_tree(adjacency, 0, directed=False)
    order, parents = csgraph.depth_first_order(tree, 0, directed=True)
    size = np.ones(adjacency.shape[0], dtype=np.int64)
    for peer in order[:0:-1]:
        size[parents[peer]] += size[peer]
    place, links = np.argsort(order), []
    for peer in order[1:].tolist():
        parent, below = int(parents[peer]), order[place[peer] : place[peer] + size[peer]]
        if peer in liars and parent not in liars:
            links.append(Link(peer, parent, below))
        elif parent in liars and peer not in liars:
            links.append(Link(parent, peer, np.setdiff1d(order, below)))
    return links


@dataclass(frozen=True, eq=False)
class Liars:
    """Some peers, and what they lie about: see `false_reports`."""

    who: np.ndarray
    """Their numbers."""
    report: str | None = None
    """What they lie about; None: nothing."""
    allowed: bool = False
    """Whether they lie no more than robust peers let pass."""
    enforced: bool = False
    """Whether the peers are robust."""
    links: list[Link] = field(default_factory=list)

    def tell(self, what: str) -> bool:
        """Whether they lie about this."""
        return self.who.size > 0 and self.report in (what, "all")

    def more_rows(self, rows: np.ndarray, most: float) -> np.ndarray:
        """Return the rows that everybody reports, where a member may count for at most so many: [N] -> [N].

        Liars that keep to what is allowed report as many as the sums that they are in leave room for, one after the
        other.
        """
        said = rows.copy()
        if self.allowed and self.enforced:
            for liar in self.who.tolist():
                left = [
                    link.behind.size * most - (said[link.behind].sum() - said[liar])
                    for link in self.links
                    if liar in link.behind
                ]
                said[liar] = max(said[liar], np.floor(min(left, default=most)))
        elif self.tell("rows"):
            said[self.who] = attacks.ROWS
        return said

    def refuse(self, phase: str, check: Callable[[np.ndarray], None]) -> None:
        """End the run where an honest peer hears from a liar what cannot be; `check` takes who lies behind a link."""
        for link in self.links if self.enforced else ():
            try:
                check(link.behind)
            except FalseReport as error:
                raise FalseReport(
                    f"peer {link.honest} refused what peer {link.liar} sent while the peers agreed, {phase}: {error}. "
                    "The agreement ends here, at every peer: leave the report out of the attack, or let it be allowed"
                ) from error


# --- what simulated peers report before the first round, some of them falsely, and what is made of it
# Rows, Σx and Σ(x − mean)² of each peer are added up as real peers add them. With `robust`, units come of votes, each
# peer keeps to the bounds that the votes of all give, and what an honest peer hears from a liar is held to them.

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
                said[liar] = attacks.TIMES * stats[liar][::-1]
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
                bounds.check_total(name, attacks.SHIFT)

    liars.refuse("columns", check)
    return Reported(bounds.measured(schema), rows, counted / np.maximum(sizes, 1), liars)


def _columns(schema: Schema, table: Table, sizes: np.ndarray) -> dict[str, list[np.ndarray]]:
    """Return each peer's present values of each continuous column."""
    places, splits, values = schema.places(table), np.cumsum(sizes)[:-1], {}
    for j in schema.continuous:
        parts = np.split(schema.columns[j].numbers(table.column(places[j])), splits)
        values[schema.columns[j].name] = [peer_values[~np.isnan(peer_values)] for peer_values in parts]
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
            apart = [deviation_of(peer_values, middles[name]) for peer_values in there]
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
        count = float(sum(peer_values.size for peer_values in parts))
        changed[j] = replace(changed[j], count=count, location=0.0, scale=1.0, constant=False)
        if count:
            totals = np.array([math.fsum(peer_values) for peer_values in parts])
            if liars.tell("mean"):
                totals[liars.who] += attacks.SHIFT
            location = math.fsum(totals) / count
            squares = np.array([math.fsum((peer_values - location) ** 2) for peer_values in parts])
            if liars.tell("spread"):
                squares[liars.who] = attacks.SQUARES
            changed[j] = with_units(changed[j], location, math.sqrt(math.fsum(squares) / count))
    return replace(schema, columns=tuple(changed))
