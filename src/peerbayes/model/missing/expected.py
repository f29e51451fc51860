"""Expected features of rows with missing values, and what they contribute to statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from peerbayes.data.table import Rows
from peerbayes.errors import StructureError
from peerbayes.model.families.base import LOG_2PI, Family
from peerbayes.model.families.gaussian import Gaussian
from peerbayes.model.families.structures import order
from peerbayes.model.missing.patterns import FeatureIndex, ObservedFeatures

# --- rows with missing values: log p(x_obs, c) of each, and Σ credit·E[φ | x_obs, c] over them

# The most joint values of missing discrete columns that are enumerated for one row.
MOST_CONFIGURATIONS = 1 << 16


@dataclass(frozen=True, eq=False)
class Completion:
    """Rows of a family; without missing values in this class. W = θ(S) is an argument: [C, K]."""

    family: Family
    rows: Rows  # [n, Dc], [n, Dd]
    names: Sequence[str] | None = None
    """Of the columns, continuous ones first: for errors."""
    numbers: np.ndarray | None = None
    """Of the rows [n]: for errors."""

    def log_joint(self, weights: np.ndarray) -> np.ndarray:
        """Return log p(x_obs, c): [C, K] -> [n, C]."""
        weights = np.ascontiguousarray(weights)
        logs = self._observed.logits(weights)
        self._add(weights, None, logs, None)
        return logs

    def statistics(self, weights: np.ndarray, credit: np.ndarray) -> tuple[np.ndarray, float]:
        """Return Σ_n credit_nc E[φ(x_n) | x_obs, c] [C, K] and Σ_nc credit_nc log p(x_obs, c).

        W [C, K] and credit [n, C] are the arguments.
        """
        weights = np.ascontiguousarray(weights)
        stats = self._observed.sums(credit)
        logs = np.zeros(credit.shape)
        observed_likelihood = float(np.sum(stats * weights))  # of the observed features
        self._add(weights, credit, logs, stats)
        return stats, observed_likelihood + float(np.sum(credit * logs))

    def take(self, index: Any) -> Completion:
        """Return the selected rows."""
        numbers = None if self.numbers is None else self.numbers[index]
        return type(self)(
            self.family, Rows(self.rows.values[index], self.rows.codes[index]), self.names, numbers
        )

    def _add(
        self, weights: np.ndarray, credit: np.ndarray | None, logs: np.ndarray, stats: np.ndarray | None
    ) -> None:
        """Add the terms of missing values in place; there are none here."""

    @cached_property
    def _observed(self) -> ObservedFeatures:
        return ObservedFeatures(self.family, self.rows)


@dataclass(frozen=True, eq=False)
class _Gaps(Completion):
    """Rows with missing values: which they are, and arrays for the loops."""

    @cached_property
    def feature_index(self) -> FeatureIndex:
        return FeatureIndex.of(self.family)

    @cached_property
    def missing(self) -> np.ndarray:
        """Which values are missing, continuous columns first: [n, D]. False where φ represents a missing category."""
        absent = np.concatenate([np.isnan(self.rows.values), self.rows.codes < 0], axis=1)
        return absent & self.feature_index.linked

    @cached_property
    def _filled(self) -> tuple[np.ndarray, np.ndarray]:
        """Values with 0 for missing ones, and codes, as contiguous arrays."""
        values = np.ascontiguousarray(np.nan_to_num(self.rows.values, nan=0.0))
        return values, np.ascontiguousarray(self.rows.codes, dtype=np.int64)

    @cached_property
    def _observed(self) -> ObservedFeatures:
        return ObservedFeatures(self.family, Rows(self._filled[0], self.rows.codes))


@dataclass(frozen=True, eq=False)
class Trees(_Gaps):
    """Columns with at most one parent each (TAN): message passing along the trees."""

    @cached_property
    def _shape(self) -> tuple[np.ndarray, ...]:
        """The columns with parents before children, and the parent of each column, −1 without one: two [D]."""
        parents = self.feature_index.parents
        parent = np.array(
            [column_parents[0] if column_parents else -1 for column_parents in parents], dtype=np.int64
        )
        return np.array(order(parents), dtype=np.int64), parent

    @cached_property
    def _cells(self) -> np.ndarray:
        """Which features are log probabilities of discrete columns: [K]."""
        is_cell = np.zeros(self.family.size, dtype=bool)
        for cells, _ in self.family.tabled():
            is_cell[cells] = True
        return is_cell

    def _add(
        self, weights: np.ndarray, credit: np.ndarray | None, logs: np.ndarray, stats: np.ndarray | None
    ) -> None:
        from peerbayes.model.missing.trees import along_trees

        tables = np.exp(np.where(self._cells, weights, -np.inf))
        at, most = self.feature_index, int(self.feature_index.cardinalities.max(initial=1))
        along_trees(
            weights, tables, *self._filled, self.missing, *self._shape, at.single, at.pair, at.block_of,
            at.cardinalities, most, credit is not None, *_loop_arguments(credit, weights, logs, stats),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Enumeration(_Gaps):
    """Any structure: enumeration of the configurations of connected missing discrete columns.

    Columns are connected where φ multiplies them, directly or through other missing ones. A row with more than
    MOST_CONFIGURATIONS is refused.
    """

    @cached_property
    def _components(self) -> tuple[np.ndarray, int]:
        """The component of each missing column, as its first column [n, D]; and the most configurations of any."""
        from peerbayes.model.missing.enumeration import components

        component = np.empty(self.missing.shape, dtype=np.int64)
        components(self.missing, self.feature_index.members, component)
        d, most = self.feature_index.continuous, 1.0
        columns = int(self.missing.shape[1])
        logs = np.log(np.maximum(self.feature_index.cardinalities, 1))
        for first in range(columns):
            member = component == first
            counts = np.exp((member[:, d:] * logs).sum(axis=1))  # of configurations
            if counts.size and counts.max() > MOST_CONFIGURATIONS * (1 + 1e-9):
                self._refuse(int(counts.argmax()), np.flatnonzero(member[counts.argmax()]), counts.max())
            most = max(most, float(counts.max(initial=1.0)))
        return component, round(most)

    def check(self) -> None:
        """Refuse rows with too many configurations."""
        _ = self._components

    def _refuse(self, row: int, columns: np.ndarray, count: float) -> None:
        names = [
            str(j) if self.names is None else self.names[j]
            for j in columns
            if j >= self.feature_index.continuous
        ]
        number_of_row = row if self.numbers is None else self.numbers[row]
        raise StructureError(
            f"row {number_of_row} has no value in {', '.join(names)}, which depend on each other and have "
            f"{count:,.0f} joint values; at most {MOST_CONFIGURATIONS:,} are supported. Use a tree (TAN), which "
            "needs no such sum, give fewer parents to columns with many categories, or leave the row out"
        )

    def _add(
        self, weights: np.ndarray, credit: np.ndarray | None, logs: np.ndarray, stats: np.ndarray | None
    ) -> None:
        from peerbayes.model.missing.enumeration import enumerated

        component, most = self._components
        at = self.feature_index
        enumerated(
            weights, *self._filled, component, at.single, at.pair, at.blocks, at.linear, at.choosing, at.cardinalities,
            most, credit is not None, *_loop_arguments(credit, weights, logs, stats),
        )  # fmt: skip


def _loop_arguments(
    credit: np.ndarray | None, weights: np.ndarray, logs: np.ndarray, stats: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return credit, logs and stats as arrays for a compiled loop, which takes no None."""
    if credit is None or stats is None:
        return np.zeros((1, 1)), logs, np.zeros((1, 1))
    return np.ascontiguousarray(credit), logs, stats


def complete(
    family: Family, rows: Rows, names: Sequence[str] | None = None, numbers: np.ndarray | None = None
) -> Completion:
    """Return the completion of rows [n, D] that suits their family and their missing values.

    A row with too many configurations is refused at once, by its number and the names of its columns.
    """
    if not family.incomplete(rows).any():
        return Completion(family, rows, names, numbers)
    if FeatureIndex.of(family).tree:
        return Trees(family, rows, names, numbers)
    completion = Enumeration(family, rows, names, numbers)
    completion.check()
    return completion


# --- contributions of the columns to log p(x_obs, c), for rows with missing values


def contributions(family: Family, stats: np.ndarray, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return a baseline [C] and a term per column [n, C, D] that add up to log p(x_obs, c), missing values or not.

    Complete rows use the family's own `contributions`. In others,

    Bayesian networks   x_j: log p(x_j | the observed columns before it, c), parents first; missing: 0
    QDA, LDA            x_j: −½ δ_j (Σ_oo⁻¹ δ_o)_j, o the observed columns; missing: an equal share of the change of the
                        determinant from Σ to Σ_oo, since the baseline has that of Σ
    """
    incomplete = family.incomplete(rows)
    if not incomplete.any():
        return family.contributions(stats, rows)
    gaps = Rows(rows.values[incomplete], rows.codes[incomplete])
    filled = Rows(
        np.where(incomplete[:, None], 0.0, rows.values), np.where(incomplete[:, None], -1, rows.codes)
    )
    baseline, terms = family.contributions(stats, filled)
    if isinstance(family, Gaussian):
        terms[incomplete] = _marginal(family, stats, gaps)
    else:
        terms[incomplete] = _chain(family, stats, gaps, baseline)
    return baseline, terms


def _chain(family: Family, stats: np.ndarray, rows: Rows, baseline: np.ndarray) -> np.ndarray:
    """Return log p(x_1 … x_j, c) − log p(x_1 … x_{j−1}, c) of the columns, parents first: [n, C, D]."""
    weights = family.weights(stats)
    d = family.continuous
    values, codes = np.full_like(rows.values, np.nan), np.full_like(rows.codes, -1)
    terms = np.empty((len(values), len(stats), d + codes.shape[1]))
    previous = np.broadcast_to(baseline, terms.shape[:2])
    for column in order(family.parents):  # type: ignore[attr-defined]
        if column < d:
            values[:, column] = rows.values[:, column]
        else:
            codes[:, column - d] = rows.codes[:, column - d]
        joint = complete(family, Rows(values, codes)).log_joint(weights)
        terms[:, :, column], previous = joint - previous, joint
    return terms


def _marginal(family: Gaussian, stats: np.ndarray, rows: Rows) -> np.ndarray:
    """Return the terms of QDA and LDA from the covariances of the observed columns: [n, C, D]."""
    _, mean, covariance, log_cells = family.parameters(stats)
    terms = np.zeros((len(rows.values), len(stats), family.continuous + rows.codes.shape[1]))
    _, logdet = np.linalg.slogdet(covariance)
    for i, x in enumerate(rows.values):
        present = np.flatnonzero(~np.isnan(x))
        absent = np.flatnonzero(np.isnan(x))
        observed = covariance[:, present[:, None], present]
        offset = x[present] - mean[:, present]
        whitened = np.linalg.solve(observed, offset[..., None])[..., 0]
        terms[i][:, present] = -0.5 * offset * whitened
        if absent.size:
            difference = 0.5 * (logdet - np.linalg.slogdet(observed)[1] + absent.size * LOG_2PI)
            terms[i][:, absent] = (difference / absent.size)[:, None]
    terms[..., family.continuous :] = family.cell_contributions(log_cells, rows.codes)
    return terms
