"""Rows with values missing, as a value: log p(x_obs, c) of each, and Σ credit·E[φ | x_obs, c] over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from peerbayes.completion.known import Known
from peerbayes.completion.places import Places
from peerbayes.errors import StructureError
from peerbayes.families.base import Family, Rows
from peerbayes.families.structures import order

# Joint values of missing discrete columns that are gone through for one row.
MOST_CONFIGURATIONS = 1 << 16


@dataclass(frozen=True, eq=False)
class Completion:
    """Rows of a family, with or without gaps. W = θ(S) is an argument: [C, K]."""

    family: Family
    rows: Rows  # [n, Dc], [n, Dd]
    names: Sequence[str] | None = None
    """Of the columns, continuous ones first, and"""
    numbers: np.ndarray | None = None
    """of the rows [n]: a refusal tells them."""

    def log_joint(self, weights: np.ndarray) -> np.ndarray:
        """log p(x_obs, c): [C, K] -> [n, C]."""
        weights = np.ascontiguousarray(weights)
        logs = self._known.logits(weights)
        self._add(weights, None, logs, None)
        return logs

    def statistics(self, weights: np.ndarray, credit: np.ndarray) -> tuple[np.ndarray, float]:
        """Σ_n credit_nc E[φ(x_n) | x_obs, c] and Σ_nc credit_nc log p(x_obs, c): [C, K], [n, C] -> [C, K], a number."""
        weights = np.ascontiguousarray(weights)
        stats = self._known.sums(credit)
        logs = np.zeros(credit.shape)
        told = float(np.sum(stats * weights))  # of what is known
        self._add(weights, credit, logs, stats)
        return stats, told + float(np.sum(credit * logs))

    def take(self, some: Any) -> Completion:
        """Some of the rows."""
        numbers = None if self.numbers is None else self.numbers[some]
        return type(self)(
            self.family, Rows(self.rows.values[some], self.rows.codes[some]), self.names, numbers
        )

    def _add(
        self, weights: np.ndarray, credit: np.ndarray | None, logs: np.ndarray, stats: np.ndarray | None
    ) -> None:
        """Add what missing values add, in place; φ takes all rows here, so that is nothing."""

    @cached_property
    def _known(self) -> Known:
        return Known(self.family, self.rows)


@dataclass(frozen=True, eq=False)
class _Gaps(Completion):
    """What both ways share: which values are missing, and arrays for the loops."""

    @cached_property
    def places(self) -> Places:
        return Places.of(self.family)

    @cached_property
    def missing(self) -> np.ndarray:
        """[n, D], continuous columns first; a discrete column that φ takes without its value is never missing."""
        absent = np.concatenate([np.isnan(self.rows.values), self.rows.codes < 0], axis=1)
        return absent & self.places.linked

    @cached_property
    def _given(self) -> tuple[np.ndarray, np.ndarray]:
        values = np.ascontiguousarray(np.nan_to_num(self.rows.values, nan=0.0))
        return values, np.ascontiguousarray(self.rows.codes, dtype=np.int64)

    @cached_property
    def _known(self) -> Known:
        return Known(self.family, Rows(self._given[0], self.rows.codes))


@dataclass(frozen=True, eq=False)
class Trees(_Gaps):
    """Columns with at most one parent each (TAN): by messages along the trees."""

    @cached_property
    def _shape(self) -> tuple[np.ndarray, ...]:
        parents = self.places.parents
        parent = np.array([own[0] if own else -1 for own in parents], dtype=np.int64)
        return np.array(order(parents), dtype=np.int64), parent

    @cached_property
    def _cells(self) -> np.ndarray:
        """Which features are log probabilities of discrete columns: [K]."""
        found = np.zeros(self.family.size, dtype=bool)
        for cells, _ in self.family.tabled():
            found[cells] = True
        return found

    def _add(
        self, weights: np.ndarray, credit: np.ndarray | None, logs: np.ndarray, stats: np.ndarray | None
    ) -> None:
        from peerbayes.completion.by_messages import along_trees

        tables = np.exp(np.where(self._cells, weights, -np.inf))
        at, most = self.places, int(self.places.cardinalities.max(initial=1))
        along_trees(
            weights, tables, *self._given, self.missing, *self._shape, at.single, at.pair, at.block_of,
            at.cardinalities, most, credit is not None, *_told(credit, weights, logs, stats),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Enumeration(_Gaps):
    """Any structure: by every configuration of missing discrete columns that belong together.

    Columns belong together where φ multiplies them, directly or through other missing ones. A row with more than
    MOST_CONFIGURATIONS of them is refused.
    """

    @cached_property
    def _components(self) -> tuple[np.ndarray, int]:
        """Of every missing column, the first one that it belongs to [n, D]; and the most configurations of any."""
        from peerbayes.completion.by_enumeration import components

        found = np.empty(self.missing.shape, dtype=np.int64)
        components(self.missing, self.places.members, found)
        d, most = self.places.continuous, 1.0
        columns = int(self.missing.shape[1])
        logs = np.log(np.maximum(self.places.cardinalities, 1))
        for first in range(columns):
            inside = found == first
            several = np.exp((inside[:, d:] * logs).sum(axis=1))
            if several.size and several.max() > MOST_CONFIGURATIONS * (1 + 1e-9):
                self._refuse(int(several.argmax()), np.flatnonzero(inside[several.argmax()]), several.max())
            most = max(most, float(several.max(initial=1.0)))
        return found, round(most)

    def check(self) -> None:
        """Refuse rows with too many configurations."""
        _ = self._components

    def _refuse(self, row: int, columns: np.ndarray, number: float) -> None:
        names = [
            str(j) if self.names is None else self.names[j] for j in columns if j >= self.places.continuous
        ]
        told = row if self.numbers is None else self.numbers[row]
        raise StructureError(
            f"row {told} has no value in {', '.join(names)}, which depend on each other and have "
            f"{number:,.0f} joint values; at most {MOST_CONFIGURATIONS:,} are gone through. Use a tree (TAN), which "
            "needs no such sum, give fewer parents to columns with many categories, or leave the row out"
        )

    def _add(
        self, weights: np.ndarray, credit: np.ndarray | None, logs: np.ndarray, stats: np.ndarray | None
    ) -> None:
        from peerbayes.completion.by_enumeration import enumerated

        found, most = self._components
        at = self.places
        enumerated(
            weights, *self._given, found, at.single, at.pair, at.blocks, at.linear, at.choosing, at.cardinalities, most,
            credit is not None, *_told(credit, weights, logs, stats),
        )  # fmt: skip


def _told(
    credit: np.ndarray | None, weights: np.ndarray, logs: np.ndarray, stats: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Credit, logs and stats for a loop, which has no None."""
    if credit is None or stats is None:
        return np.zeros((1, 1)), logs, np.zeros((1, 1))
    return np.ascontiguousarray(credit), logs, stats


def complete(
    family: Family, rows: Rows, names: Sequence[str] | None = None, numbers: np.ndarray | None = None
) -> Completion:
    """Rows [n, D] in the way that suits their family and what is missing in them.

    A row with too many configurations is refused at once, by its number and the names of its columns.
    """
    if not family.incomplete(rows).any():
        return Completion(family, rows, names, numbers)
    if Places.of(family).tree:
        return Trees(family, rows, names, numbers)
    found = Enumeration(family, rows, names, numbers)
    found.check()
    return found
