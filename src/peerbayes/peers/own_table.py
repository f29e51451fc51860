"""A peer's own table as it is described to the others, and the units that come of everybody's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

from peerbayes.member_bounds import MemberBounds
from peerbayes.peers.errors import PeerError
from peerbayes.peers.pooling import Phase, Total
from peerbayes.peers.reports import Reports
from peerbayes.peers.summary import Summary, Sums, with_scales
from peerbayes.peers.terms import Terms
from peerbayes.schema import Schema
from peerbayes.tables import Table


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
