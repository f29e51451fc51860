"""Who lies before the first round in a simulation, and over which links of the tree honest peers hear it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import csgraph, csr_array

from peerbayes import false_reports
from peerbayes.errors import FalseReport


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
            said[self.who] = false_reports.ROWS
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
