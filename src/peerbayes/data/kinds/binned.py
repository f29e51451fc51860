"""Numbers in bins with agreed edges: a step function in each class. Families see a discrete column."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from peerbayes.data.bins import BINS, cell_of, edges_of
from peerbayes.data.kinds.kind import Column, Kind, refuse_infinite
from peerbayes.data.table import Scalar, numbers_of
from peerbayes.errors import SchemaError


@dataclass(frozen=True)
class Binned(Kind):
    """Numbers of which the bin counts. Without edges there is one bin: the column says nothing."""

    bins: int = BINS
    """How many there are at most."""

    name: ClassVar[str] = "binned"
    dense: ClassVar[bool] = False
    reads_numbers: ClassVar[bool] = True
    needs_edges: ClassVar[bool] = True
    needs_all_rows: ClassVar[str] = "the quantiles"
    public_facts: ClassVar[tuple[str, ...]] = ("edges", "mean", "sd", "range")
    model: ClassVar[str] = "cells"

    def check(self, column: Column) -> None:
        if column.categories:
            raise SchemaError(
                f"column {column.name!r} is binned and has categories; expected edges: "
                f"Column({column.name!r}, 'binned', edges=(...))"
            )

    def is_empty(self, column: Column) -> bool:
        return not column.edges and column.count == 0

    def is_constant(self, column: Column) -> bool:
        return not column.edges

    def labels(self, column: Column) -> tuple[Scalar, ...]:
        """Return the intervals as text: "< 3.5", "3.5 to 7", "≥ 7"."""
        if not column.edges:
            return ("any number",)
        edges = _texts(column.edges)
        return (f"< {edges[0]}", *(f"{a} to {b}" for a, b in pairwise(edges)), f"≥ {edges[-1]}")

    def identities(self, column: Column) -> tuple[Hashable, ...]:
        return tuple(pairwise((None, *column.edges, None)))

    def numbers(self, column: Column, values: np.ndarray, row: Callable[[int], int] = int) -> np.ndarray:
        return numbers_of(values, column.name, self.name)

    def codes(self, column: Column, values: np.ndarray) -> np.ndarray:
        return cell_of(column.numbers(values), column.edge_array)

    def decoded(self, column: Column, encoded: np.ndarray, rng: np.random.Generator | None) -> Any:
        """Return the middle of each bin, or a number drawn evenly from it; NaN for codes without a bin."""
        ends, cells = _ends(column), np.asarray(encoded, dtype=np.int64)
        known = (cells >= 0) & (cells < ends.size - 1)
        low, high = (ends[np.where(known, cells + side, 0)] for side in (0, 1))
        share = 0.5 if rng is None else rng.random(cells.shape)
        return np.where(known, low * (1 - share) + high * share, np.nan)

    def inferred(
        self,
        column: Column,
        values: np.ndarray,
        weights: np.ndarray | None,
        declared: list[Any] | None,
        labels: np.ndarray | None = None,
    ) -> Column:
        """Return the column with the edges, count and range of its present values [n]."""
        numbers = self.numbers(column, values)
        present = ~np.isnan(numbers)
        if not present.all():
            numbers, weights = numbers[present], None if weights is None else weights[present]
            labels = None if labels is None else labels[present]
        if not numbers.size:
            return column
        low, high = float(numbers.min()), float(numbers.max())
        refuse_infinite(column.name, low, high)
        count = float(numbers.size if weights is None else weights.sum())
        edges = self._edges(column, numbers, weights, labels)
        return replace(column, edges=edges, count=count, low=low, high=high)

    def _edges(
        self, column: Column, numbers: np.ndarray, weights: np.ndarray | None, labels: np.ndarray | None
    ) -> tuple[float, ...]:
        """Return the edges of the present numbers [n]."""
        return edges_of(numbers, weights, self.bins)

    def merged(self, mine: Column, theirs: Column) -> Column:
        """Return the column with the rows and the range of both; `differences` has refused other edges."""
        count = None if mine.count is None or theirs.count is None else mine.count + theirs.count
        low, high = (
            end((value for value in ends if value is not None), default=None)
            for end, ends in ((min, (mine.low, theirs.low)), (max, (mine.high, theirs.high)))
        )
        return replace(mine, count=count, low=low, high=high)

    def differences(self, mine: Column, theirs: Column) -> list[str]:
        if mine.edges == theirs.edges:
            return []
        return [
            f"! column {mine.name!r} has the edges {_shown(mine)} in the first, {_shown(theirs)} in the second: agree "
            "on edges first, for instance by one Schema.infer(..., kinds='binned') that both use as schema=..."
        ]


def _shown(column: Column) -> str:
    texts = _texts(column.edges)
    return f"[{', '.join(texts[:5])}{', …' if len(texts) > 5 else ''}]"


def _texts(edges: tuple[float, ...]) -> list[str]:
    """Return the edges with as few digits as tell them apart, at least three."""
    for digits in range(3, 18):
        texts = [f"{edge:.{digits}g}" for edge in edges]
        if len({float(text) for text in texts}) == len(edges):
            break
    return texts if edges else []


def _ends(column: Column) -> np.ndarray:
    """Return the ends of the bins: [cells + 1]. Outer bins end where the values do, or are as wide as the others."""
    edges = column.edge_array
    if not edges.size:
        return np.array([np.nan if end is None else end for end in (column.low, column.high)])
    width = (edges[-1] - edges[0]) / (edges.size - 1) if edges.size > 1 else max(1.0, abs(edges[0]))
    low = edges[0] - width if column.low is None else min(column.low, edges[0])
    high = edges[-1] + width if column.high is None else max(column.high, edges[-1])
    return np.concatenate([[low], edges, [high]])
