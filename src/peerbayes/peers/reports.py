"""What came over each link before the first round, held to what members may report: see `peerbayes.member_bounds`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from peerbayes.member_bounds import MemberBounds, SumBounds
from peerbayes.peers.summary import Summary, Sums


@dataclass(frozen=True, eq=False)
class Reports:
    """The summaries that neighbours on the tree sent, once each can be true."""

    bounds: MemberBounds
    summaries: dict[str, Summary] = field(default_factory=dict)

    def check(self, neighbour: str, part: Summary, members: int) -> None:
        """Check a part of the phase `columns`, and remember it: later parts are held to its rows."""
        self.bounds.check_rows(part.rows, members)
        for name, column in part.columns.items():
            self.bounds.check_total(name, _as_float(column.total))
        self.summaries[neighbour] = part

    def consent(self, neighbour: str, part: Sums, members: int) -> None:
        """Check nothing: whoever took all sums has nothing to add; others object."""

    def pooled(self, bounds: SumBounds) -> PooledReports:
        """Return what checks the parts of a sum of many numbers."""
        return PooledReports(self, bounds)


@dataclass(frozen=True, eq=False)
class PooledReports:
    """Checks of a sum of many numbers; over each link came those of as many rows as were reported before."""

    reports: Reports
    bounds: SumBounds

    def size(self, neighbour: str, part: Sums, members: int) -> None:
        """Check the bound that goes ahead of the numbers."""
        self.bounds.check_size(_as_float(part["most"]), self._rows(neighbour))

    def numbers(self, neighbour: str, part: np.ndarray, members: int) -> None:
        """Check the numbers."""
        self.bounds.check(part, self._rows(neighbour))

    def _rows(self, neighbour: str) -> float:
        return float(self.reports.summaries[neighbour].rows)


def _as_float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)
