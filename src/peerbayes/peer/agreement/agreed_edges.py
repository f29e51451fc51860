"""Edges of binned columns from sums of counts over all members: the same bits for everybody, and no row leaves.

A quantile at k/B lies within √(B − 1) deviations of the mean (Cantelli's inequality), so the first grid needs nobody's
lowest or highest value: it goes that far to both sides, and what lies beyond is counted in its outer cells. The second
sum splits each cell that a quantile lies in. Where edges depend on the classes, these are many quantiles, and a third
sum, of the rows of each class between them, says which of them stay.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from peerbayes.data.bins import BINS, Grid, cell_of, edges_of_grids, finer, finer_counts
from peerbayes.data.schema import Schema
from peerbayes.data.supervised_bins import class_counts, cuts_by_class, fine_bins
from peerbayes.errors import FalseReport
from peerbayes.peer.agreement.summary import OwnTable
from peerbayes.peer.agreement.tree_sums import Integers, Phase, Reports, Total, integers_in


async def agreed_edges(
    schema: Schema,
    table: OwnTable,
    rows: int,
    total: Total,
    reports: Reports | None = None,
    bins: int = BINS,
    suffix: str = "",
) -> Schema:
    """Return the schema with edges for its binned columns.

    schema   everybody's; location and scale of a column without edges are those of all members' numbers
    table    this member's
    rows     of all members: no sum is larger
    reports  what members said before, where they may lie
    bins     how many there are at most, of columns whose edges do not depend on the classes
    suffix   of the names of the sums, where edges are agreed on several times
    """
    open_columns = [column for column in schema.columns if column.traits.needs_edges and not column.edges]
    if not open_columns:
        return schema
    numbers = [table.values.get(column.name, np.zeros(0)) for column in open_columns]
    most = [fine_bins(len(schema.classes)) if column.traits.needs_labels else bins for column in open_columns]
    grids = [
        _grid(column.location, column.scale, column.constant, count)
        for column, count in zip(open_columns, most, strict=True)
    ]
    weight = 1.0 if reports is None else reports.bounds.weight(table.rows)
    own_counts = [grid.counts(x) for grid, x in zip(grids, numbers, strict=True)]
    coarse = await _summed(f"quantiles 1{suffix}", own_counts, weight, rows, total, reports)
    inner = [finer(grid, counts, count) for grid, counts, count in zip(grids, coarse, most, strict=True)]
    own_counts = [
        np.concatenate([*finer_counts(grid, inside, x), np.zeros(0)])
        for grid, inside, x in zip(grids, inner, numbers, strict=True)
    ]
    fine = await _summed(f"quantiles 2{suffix}", own_counts, weight, rows, total, reports)
    edges = {}
    for column, grid, counts, inside, sums, count in zip(
        open_columns, grids, coarse, inner, fine, most, strict=True
    ):
        parts = np.split(sums, len(inside)) if inside else []
        edges[column.name] = edges_of_grids(grid, counts, inside, parts, count)
    by_class = {column.name: edges[column.name] for column in open_columns if column.traits.needs_labels}
    if by_class:
        own_counts = [
            _class_counts(schema, table, name, fine_edges).ravel() for name, fine_edges in by_class.items()
        ]
        sums_of = await _summed(f"classes{suffix}", own_counts, weight, rows, total, reports)
        for (name, fine_edges), sums in zip(by_class.items(), sums_of, strict=True):
            cuts = cuts_by_class(sums.reshape(-1, len(schema.classes)))
            edges[name] = tuple(fine_edges[cut] for cut in cuts)
    columns = tuple(
        replace(column, edges=edges[column.name], location=0.0, scale=1.0, constant=False)
        if column.name in edges
        else column
        for column in schema.columns
    )
    return replace(schema, columns=columns)


def _class_counts(schema: Schema, table: OwnTable, name: str, edges: tuple[float, ...]) -> np.ndarray:
    """Return how many of this member's rows of each class lie in each cell of a column: [cells, C]."""
    shape = len(edges) + 1, len(schema.classes)
    if name not in table.labels:
        return np.zeros(shape)
    labels = schema.encode_labels(table.labels[name]) if table.labels[name].size else np.zeros(0, np.int32)
    return class_counts(cell_of(table.values[name], np.array(edges)), labels, shape)


def _grid(mean: float, deviation: float, constant: bool, bins: int) -> Grid:
    """Return the cells in which all quantiles lie; of a constant column, cells around its value."""
    reach = max(1.0, abs(mean)) if constant else math.sqrt(bins - 1.0) * deviation
    return Grid(mean - reach, mean + reach)


async def _summed(
    name: str, counts: list[np.ndarray], weight: float, rows: int, total: Total, reports: Reports | None
) -> list[np.ndarray]:
    """Return the sums of all members' counts of each column, [cells] each; a row of this one counts `weight` times."""
    ends = np.cumsum([column.size for column in counts])[:-1]
    local = np.floor(np.concatenate(counts) * weight)

    def check(neighbour: str, part: Integers, members: int) -> None:
        assert reports is not None
        least, most = int(part.values.min(initial=0)), reports.summaries[neighbour].rows
        largest = max((int(column.sum()) for column in np.split(part.values, ends)), default=0)
        if least < 0 or largest > most:
            raise FalseReport(f"{name}: counts from {least} on, {largest:,} in all, of {most:,} rows")

    phase = Phase(name, integers_in(local.shape, rows), check=None if reports is None else check)
    summed = await total(phase, Integers(local.astype(np.int64)))
    return np.split(summed.values.astype(np.float64), ends)
