"""What one member may weigh and report before the first round, where members may lie.

    R, M_j, D_j   the median over members of their rows, of their means of column j, and of their root mean squares of
                  x − M_j (of those where it is not 0); every member has one vote (see `medians`)
    units         of column j come of M_j, D_j and one report of each member (see `moments`): nobody sums up values
    rows          a member counts for at most 4 R rows; rows of one with more weigh less
    start         YᵀΦ of a member is that of rows with its weight, whose values are held within ±2.5

An honest member keeps to all of it by itself, so whatever is beyond is a lie, and no honest table is ever refused. Sums
come along a tree: behind a link with k members there are at most 4 R k rows, and statistics of so many. A lie within
that is as harmless as a member with such rows: one among many, and at most four times a middling one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array

from peerbayes.columns import with_units
from peerbayes.errors import FalseReport
from peerbayes.families import Family, Rows
from peerbayes.holdings import Holdings
from peerbayes.invariants import UNCLIPPED, bounds_of
from peerbayes.schema import Schema

# A member counts for at most so many times the rows of a middling one.
MOST_ROWS = 4.0

# Standardised values count for a start up to here: rows farther out would decide the variances that stay for ever.
START_LIMIT = 2.5

# Nobody has so many rows; a float64 still counts them one by one.
LARGEST = 2.0**53

# What rounding can do to a sum, as a share of its largest possible value.
ROUNDING = 1e-9

# Corners of the box of standardised values at which features are looked at: by so many, a product has had both signs.
CORNERS = 64


def start_statistics_of(held: Holdings) -> np.ndarray:
    """Return every peer's YᵀΦ as it counts for a start, values held within ±START_LIMIT: [N, C, K]."""
    values = np.clip(held.rows.values, -START_LIMIT, START_LIMIT)
    return replace(held, rows=Rows(values, held.rows.codes)).statistics()


def mean_of(values: np.ndarray) -> float:
    """Return the mean of present values [n], to the last bit whatever their order."""
    return math.fsum(values) / values.size


def deviation_of(values: np.ndarray, middle: float) -> float:
    """Return the root mean square of x − middle, also where its square is beyond float64: [n]."""
    with np.errstate(over="ignore"):
        apart = np.minimum(np.abs(values - middle), np.finfo(float).max)
    largest = float(apart.max(initial=0.0))
    return largest * math.sqrt(math.fsum((apart / largest) ** 2) / apart.size) if largest else 0.0


@dataclass(frozen=True)
class MemberBounds:
    """What was agreed on by votes."""

    rows: int
    """The most rows that a member counts for."""
    units: Mapping[str, tuple[float, float]]
    """Location and scale of each continuous column of which anybody has a value; a scale of 0: it is constant."""

    @classmethod
    def of(cls, rows: float, locations: Mapping[str, float], scales: Mapping[str, float]) -> MemberBounds:
        """From R, the locations, and the scales of columns that are not constant at everybody."""
        units = {name: (location, scales.get(name, 0.0)) for name, location in locations.items()}
        return cls(max(1, math.floor(min(MOST_ROWS * rows, LARGEST))), units)

    def counted(self, rows: int) -> int:
        """Return how many rows a member with so many counts for."""
        return min(rows, self.rows)

    def weight(self, rows: int) -> float:
        """Return what each of a member's rows weighs."""
        return self.counted(rows) / max(rows, 1)

    def counted_values(self, present: int, rows: int) -> int:
        """Return for how many values of a column a member counts that has `present` values in `rows` rows."""
        if present == rows or rows <= self.rows:
            return self.counted(present)
        return min(round(present * self.weight(rows)), self.rows - 1)  # some are missing, and that must show

    def measured(self, schema: Schema) -> Schema:
        """Return the schema with these units."""
        columns = [
            with_units(column, *self.units[column.name])
            if column.kind == "continuous" and column.name in self.units
            else column
            for column in schema.columns
        ]
        return replace(schema, columns=tuple(columns))

    def check_rows(self, rows: float, members: int) -> None:
        """Refuse more rows than so many members can count for."""
        if rows > members * self.rows:
            raise FalseReport(
                f"{rows:,.4g} rows of {members} {_members(members)}; a member counts for at most {self.rows:,}, four "
                "times a middling one"
            )

    def check_total(self, name: str, total: float) -> None:
        """Refuse Σx of a column: units come of votes, and nobody asked for it."""
        if total != 0.0:
            raise FalseReport(
                f"a sum of {total:.4g} over {name!r:.80}; expected none, since votes give its units"
            )


def _members(count: int) -> str:
    return "member" if count == 1 else "members"


@dataclass(frozen=True, eq=False)
class SumBounds:
    """What sums of products of one or two standardised values obey.

    limit   where standardised values end
    gapped  whether values are missing that the family completes: such values are not held within the limit
    """

    limit: float
    gapped: bool = False

    @property
    def largest(self) -> float:
        """The largest entry that one row can add."""
        return float(max(1.0, self.limit**2) * (UNCLIPPED if self.gapped else 1.0))

    def check_size(self, largest: float, rows: float) -> None:
        """Refuse numbers as large as `largest` of so many rows."""
        if not largest <= rows * self.largest * (1 + ROUNDING) + ROUNDING:
            raise FalseReport(
                f"a number as large as {largest:.4g}; {rows:,.4g} rows make {rows * self.largest:.4g} at most"
            )

    def check(self, numbers: np.ndarray, rows: float) -> None:
        """Refuse sums that are not those of so many rows."""
        self.check_size(float(np.abs(numbers).max(initial=0.0)), rows)


@dataclass(frozen=True, eq=False)
class StatisticsBounds(SumBounds):
    """What YᵀΦ of rows obeys, whoever has them: for starts that are agreed on.

    family  with its layout
    ties    [Q, K] T S_c = 0 for every class: see `invariants.ties_of`
    """

    family: Family = field(kw_only=True)
    ties: csr_array = field(kw_only=True)

    def farthest(self, classes: int, rows: float) -> np.ndarray:
        """Return the statistics of rows at the end of every column, as many of each class: [C, K]."""
        values = np.full((1, self.family.continuous), self.limit)
        codes = np.array(self.family.cardinalities, dtype=np.int32).reshape(1, -1) - 1
        features = np.asarray(self.family.features(Rows(values, codes)))[0]
        return np.tile(features * (rows / classes), (classes, 1))

    def check(self, numbers: np.ndarray, rows: float) -> None:
        """Refuse statistics [C, K] that are not those of so many rows."""
        super().check(numbers, rows)
        stats = numbers
        counts, slack = stats[:, :1], 1e-6 * rows
        if (counts < -slack).any() or abs(float(counts.sum()) - rows) > slack:
            raise FalseReport(
                f"classes of {', '.join(f'{count:.4g}' for count in counts[:5, 0])} rows; expected "
                f"{rows:,.4g} in all, and no class below 0"
            )
        if self.gapped:
            return
        room = slack * self.largest
        if (np.abs(stats) > counts * self._most + room).any() or (stats[:, self._positive] < -room).any():
            raise FalseReport("sums that no rows of these classes have")
        first, second = self._squares
        if (stats[:, first] ** 2 > (stats[:, second] + room) * (counts + slack)).any():
            raise FalseReport("squares of a column that are smaller than its mean allows")
        if self.ties.shape[0] and float(np.abs(self.ties @ stats.T).max(initial=0.0)) > room:
            raise FalseReport("counts of categories that do not add up to those of their classes")

    @cached_property
    def _most(self) -> np.ndarray:
        return bounds_of(self.family, self.limit)

    @cached_property
    def _corners(self) -> np.ndarray:
        """φ of the continuous columns at random corners of where they lie: [CORNERS, dense_size]."""
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (CORNERS, self.family.continuous))
        return np.asarray(self.family.dense(signs))

    @cached_property
    def _positive(self) -> np.ndarray:
        """Features that are negative for no row: counts, squares and cells. [K] of bool."""
        found = np.zeros(self.family.size, dtype=bool)
        found[: self.family.dense_size] = (self._corners >= 0.0).all(axis=0)
        for cells, _ in self.family.tabled():
            found[cells] = True
        return found

    @cached_property
    def _squares(self) -> tuple[np.ndarray, np.ndarray]:
        """Features, and the features that are their squares: two [P]."""
        point = np.random.default_rng(1).uniform(1.0, 2.0, (1, self.family.continuous))
        values = np.asarray(self.family.dense(point))[0]
        order = np.argsort(values)
        places = np.minimum(np.searchsorted(values[order], values**2 * (1 - 1e-12)), values.size - 1)
        second = order[places]
        first = np.flatnonzero(np.isclose(values[second], values**2, rtol=1e-9) & (values != 1.0))
        return first, second[first]
