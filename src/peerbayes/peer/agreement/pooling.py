"""What is summed before the first round: phases, reports and the checks of a peer's own table."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import pandas as pd

from peerbayes.data.schema import Schema
from peerbayes.data.table import Table
from peerbayes.errors import PeerError, RefusedMessage
from peerbayes.learning import exact_sums
from peerbayes.learning.robust.bounds import MemberBounds, SumBounds
from peerbayes.peer.agreement.summary import Summary, Sums, with_scales
from peerbayes.peer.agreement.terms import Terms

# --- add up numbers of all peers, to the same bits for everybody


@dataclass(frozen=True, eq=False)
class Integers:
    """Statistics on a grid, so that they add up to the same bits in any order: [C, K] int64."""

    values: np.ndarray

    def __add__(self, other: Integers) -> Integers:
        if self.values.shape != other.values.shape:
            raise RefusedMessage("wrong shape", f"{other.values.shape} instead of {self.values.shape}")
        return Integers(self.values + other.values)

    def pack(self) -> bytes:
        return np.ascontiguousarray(self.values, dtype="<i8").tobytes()


# A neighbour's name, its sum, and the number of members behind it; raises FalseReport where the sum is impossible.
Check = Callable[[str, Any, int], None]


@dataclass(frozen=True)
class Phase:
    """One sum: its name, a parser of partial sums, and their number of peers where they contain it.

    With a `check`, members may lie: a partial sum that is unreadable or fails it ends the agreement for everybody.
    """

    name: str
    parse: Callable[[bytes], Any]
    peers: Callable[[Any], int] | None = None
    check: Check | None = None


Total = Callable[[Phase, Any], Awaitable[Any]]  # local value -> sum over all peers


class Checks(Protocol):
    """Checks of partial sums where members may lie: see `reports`."""

    def size(self, neighbour: str, received: Sums, members: int) -> None: ...

    def numbers(self, neighbour: str, received: np.ndarray, members: int) -> None: ...


async def pooled(name: str, local: np.ndarray, total: Total, checks: Checks | None = None) -> np.ndarray:
    """Return the sum of all peers' numbers, to the same bits for all."""
    largest = Sums(most=Fraction(float(np.abs(local).max(initial=0.0))))
    bound_name = "bound" if name == "start" else f"bound of {name}"
    sized = Phase(bound_name, Sums.named("most"), check=None if checks is None else checks.size)
    bound = await total(sized, largest)
    power = exact_sums.exponent(float(bound["most"]) or 1.0)

    def parse(content: bytes) -> Integers:
        if len(content) != 8 * local.size:
            raise RefusedMessage("wrong shape", f"{len(content):,} bytes instead of {8 * local.size:,}")
        values = np.frombuffer(content, dtype="<i8").reshape(local.shape)
        if (np.abs(values) >> exact_sums.BITS).any():
            raise RefusedMessage("absurd magnitude", "an entry larger than the sum of all peers can be")
        return Integers(values)

    def check(neighbour: str, received: Integers, members: int) -> None:
        assert checks is not None
        checks.numbers(neighbour, exact_sums.off_grid(received.values, power), members)

    phase = Phase(name, parse, check=None if checks is None else check)
    summed = await total(phase, Integers(exact_sums.on_grid(local, power)))
    return exact_sums.off_grid(summed.values, power)


# --- what came over each link before the first round, held to what members may report: see `learning.robust.bounds`


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


# --- a peer's own table as it is described to the others, and the units that come of everybody's


@dataclass(frozen=True, eq=False)
class OwnTable:
    """A peer's own table, as it is described to the others."""

    schema: Schema
    values: dict[str, np.ndarray]
    """The present values of each continuous column [n]."""
    rows: int

    def summary(self, name: str, bounds: MemberBounds | None = None) -> Summary:
        """For the first sum."""
        return Summary.of(name, self.schema, self.values, self.rows, bounds)


def own_table(frame: pd.DataFrame, labels: np.ndarray, terms: Terms) -> OwnTable:
    """A peer's own table, if it has enough rows."""
    if len(frame) < terms.limits.rows:
        raise PeerError(
            f"the table has {len(frame)} rows; the agreement asks for {terms.limits.rows} or more"
        )
    kinds: Any = dict(terms.features) or "auto"
    schema = Schema.infer(frame, labels, kinds=kinds, clip=terms.clip)
    table = Table.of(frame)
    values = {}
    for place, column in enumerate(schema.columns):
        if column.kind == "continuous":
            numbers = column.numbers(table.column(place))
            values[column.name] = numbers[~np.isnan(numbers)]
    return OwnTable(schema, values, len(frame))


def described(name: str, frame: pd.DataFrame, labels: np.ndarray, terms: Terms) -> Summary:
    """A peer's own table as the first sum has it, where nobody is thought to lie."""
    return own_table(frame, labels, terms).summary(name)


async def agreed_units(
    name: str, own: OwnTable, terms: Terms, reports: Reports | None, total: Total
) -> tuple[Schema, Summary]:
    """Everybody's schema, with location and scale, and the summary that it is made of."""
    if reports is not None:
        columns = Phase("columns", Summary.parse, lambda part: part.peers, reports.check)
        summary = await total(columns, own.summary(name, reports.bounds))
        return reports.bounds.measured(summary.schema(terms.label, terms.clip)), summary
    summary = await total(Phase("columns", Summary.parse, lambda part: part.peers), own.summary(name))
    schema = summary.schema(terms.label, terms.clip)
    names = [schema.columns[j].name for j in schema.continuous]
    squares = await total(Phase("spread", Sums.named(*names)), _squares(schema, own))
    return with_scales(schema, squares), summary


def _squares(schema: Schema, own: OwnTable) -> Sums:
    """Σ(x − location)² of each continuous column."""
    sums = Sums()
    for j in schema.continuous:
        name = schema.columns[j].name
        present = own.values.get(name, np.zeros(0))  # a column that is empty here has no kind
        apart = present - schema.columns[j].location
        sums[name] = Fraction(math.fsum(apart * apart))
    return sums
