"""Bounds on what members report before the first round: medians of votes, and what rows can have."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array

from peerbayes.data.column import with_units
from peerbayes.data.schema import Schema
from peerbayes.errors import FalseReport
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.robust.invariants import UNCLIPPED, bounds_of
from peerbayes.model.families import Family, Rows

# --- medians over members that are found digit by digit: everybody has one vote, and few numbers are told in full
# A float64 is read as a whole number of 48 bits in the same order (its sign, its exponent and 36 bits of its
# fraction), in four digits of twelve bits each. In each of four passes, those whose number begins with the digits
# that are known vote for their next digit; the votes are added up, and the digit that holds the median is the next
# one known. A vote is one, whatever its owner's number, so that a liar moves a median by one place in the order, and
# no farther.

DIGITS, WIDTH = 4, 12
BITS = DIGITS * WIDTH

# Below the bits of a float64 that are kept.
DROPPED = 64 - BITS


def key_of(value: float) -> int:
    """Return a whole number of 48 bits; of two values, the larger has the larger one, or the same."""
    (bits,) = struct.unpack("<Q", struct.pack("<d", value + 0.0))  # -0.0 is 0.0
    ordered = bits ^ ((1 << 64) - 1) if bits >> 63 else bits | 1 << 63
    return int(ordered >> DROPPED)


def value_of(key: int) -> float:
    """Return the least value with this key."""
    ordered = key << DROPPED
    bits = ordered & ~(1 << 63) if ordered >> 63 else ordered ^ ((1 << 64) - 1)
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


@dataclass(frozen=True)
class Search:
    """A median of which the first digits are known."""

    known: int = 0
    """These digits, as one number."""
    digits: int = 0
    """How many they are."""
    rank: int = 0
    """The place of the median among the numbers that begin with them, from 1; 0: nobody has voted yet."""

    def vote(self, key: int) -> int | None:
        """Return the next digit of a number that begins with the known ones; None: it does not."""
        left = BITS - self.digits * WIDTH
        if key >> left != self.known:
            return None
        return key >> (left - WIDTH) & ((1 << WIDTH) - 1)

    def narrowed(self, votes: Mapping[int, int]) -> Search:
        """Return the search with one more digit: that of the median, the lower one of an even number."""
        total = sum(votes.values())
        rank = (total + 1) // 2 if self.digits == 0 else min(max(self.rank, 1), total)
        below = 0
        for digit in sorted(votes):
            if below < rank <= below + votes[digit]:
                return Search(self.known << WIDTH | digit, self.digits + 1, rank - below)
            below += votes[digit]
        return Search(self.known << WIDTH, self.digits + 1, 0)  # nobody voted

    @property
    def value(self) -> float:
        """The median, to 48 bits."""
        return value_of(self.known)


def lower_median(values: Iterable[float]) -> float:
    """Return what a search over these values ends with; there must be at least one."""
    keys = sorted(map(key_of, values))
    return value_of(keys[(len(keys) + 1) // 2 - 1])


# --- location and scale of a column where members may lie: means over members of what each reports beside the medians
#     M, D    medians by vote of members' means, and of their root mean squares of x − M (see `medians`)
#     report  of a member with values: a, the mean of (x − M)/D, within ±κ, and b, that of its square, up to κ²
#     units   of the means over these members: location M + D ā, scale D √(b̄ − ā²)
#     κ²      6.25; of few members n/3, and 1 at least, so that one of them adds at most a third to b̄
#
# Where members have as many rows each and none is beyond κ, these are the units of all rows together, but for
# rounding: a report is one digit of twelve bits, six for each number, so that every digit is a report that a member
# may make. Every member counts once, whatever its rows.

# Medians alone are a majority's units: where each peer has one class, others are ten of its deviations away. The more
# of that counts, the more a lie does: at 3 a tenth of the members may cost adult more than .02, at 2 little is gained.
FARTHEST = 2.5

# a is told in steps of κ/31, so that 0 is one of them, and b in steps of κ²/63.
SIDE, STEPS = 31, 63

# Its square is a float64.
BEYOND = 1e150


def limit_of(members: int) -> float:
    """Return κ of a network of so many."""
    return min(FARTHEST, math.sqrt(max(1.0, members / 3)))


def report_of(values: np.ndarray, middle: float, deviation: float, limit: float) -> int:
    """Return a member's report of a column, as a digit, from its present values [n] and the medians."""
    with np.errstate(over="ignore"):
        apart = np.clip((values - middle) / deviation, -BEYOND, BEYOND)
    first, second = math.fsum(apart) / apart.size, math.fsum(apart * apart) / apart.size
    side = round(min(max(first / limit, -1.0), 1.0) * SIDE)
    return (side + SIDE) * (STEPS + 1) + round(min(second / limit**2, 1.0) * STEPS)


def worst_report() -> int:
    """Return the report that does most harm: a mean as others have it, and the largest square."""
    return SIDE * (STEPS + 1) + STEPS


def units_of(
    reports: Mapping[int, int], middle: float, deviation: float, limit: float
) -> tuple[float, float]:
    """Return location and scale of a column, from how many made each report and the medians."""
    count = first = second = 0
    for digit, times in reports.items():
        count += times
        first += times * min(digit // (STEPS + 1) - SIDE, SIDE)
        second += times * (digit % (STEPS + 1))
    mean, square = limit * first / (SIDE * count), limit**2 * second / (STEPS * count)
    return middle + deviation * mean, deviation * math.sqrt(max(square - mean**2, 0.0))


# --- what one member may weigh and report before the first round, where members may lie
#     R, M_j, D_j   the median over members of their rows, of their means of column j, and of their root mean squares of
#                   x − M_j (of those where it is not 0); every member has one vote (see `medians`)
#     units         of column j come of M_j, D_j and one report of each member (see `moments`): nobody sums up values
#     rows          a member counts for at most 4 R rows; rows of one with more weigh less
#     start         YᵀΦ of a member is that of rows with its weight, whose values are held within ±2.5
#
# An honest member keeps to all of it by itself, so whatever is beyond is a lie, and no honest table is ever refused.
# Sums come along a tree: behind a link with k members there are at most 4 R k rows, and statistics of so many. A lie
# within that is as harmless as a member with such rows: one among many, and at most four times a middling one.

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


def start_statistics_of(held: LocalRows) -> np.ndarray:
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
            if column.traits.reads_numbers and column.name in self.units
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
