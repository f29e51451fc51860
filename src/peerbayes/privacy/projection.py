"""Π: the projection on the linear constraints that every residual satisfies, applied to noise as well.

Residuals sum to zero over classes. And features are redundant: the cells of a discrete column sum to the class count,
and tables of a Bayesian network that share columns agree on them. Π projects orthogonally, in the coordinates h, on
what satisfies all of these. It is post-processing, so it costs no privacy, and it removes noise: a share 1/C, and one
in r of a column of r cells.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import qr
from scipy.sparse import csr_array

from peerbayes.families import BayesNet, Family
from peerbayes.privacy.coordinates import Coordinates

# Features of a Bayesian network up to which tables are made consistent with each other; beyond, each with the class
# count only: the matrix that does it has up to K² entries.
MOST_FEATURES = 4096

# The relative size below which a direction of the pivoted QR depends on the others.
DEPENDENT = 1e-9


@dataclass(frozen=True, eq=False)
class Projection:
    """Π in the coordinates h."""

    normals: Any  # [K, r] orthonormal directions in which a residual is 0; sparse where possible

    def __call__(self, moved: np.ndarray, classes: bool = True) -> np.ndarray:
        """Return the projection: [..., C, K] -> [..., C, K]. `classes`: class sums are zero, as those of residuals."""
        if classes:
            moved = moved - moved.mean(axis=-2, keepdims=True)
        if self.normals.shape[1] == 0:
            return moved
        flat = moved.reshape(-1, moved.shape[-1])
        return moved - ((flat @ self.normals) @ self.normals.T).reshape(moved.shape)


def projection(coordinates: Coordinates, never_missing: np.ndarray | None = None) -> Projection:
    """Return Π of a family; `never_missing` [Dd] says which discrete columns every row has (None: all of them).

    Where a column may be missing, its cells need not sum to the class count. This must be a fact about the network,
    not about one peer's rows.
    """
    family = coordinates.family
    complete = np.ones(len(family.cardinalities), dtype=bool) if never_missing is None else never_missing
    totals = _totals(family, complete)
    agreements = _agreements(family) if isinstance(family, BayesNet) and family.size <= MOST_FEATURES else []
    if not agreements:
        return Projection(totals)
    # a·φ(h) = 0: `back` is linear, so it maps the unit vectors to the rows of its matrix
    moved = np.concatenate(agreements) @ coordinates.back(np.eye(family.size)).T
    basis, triangle, _ = qr(moved.T, mode="economic", pivoting=True)
    size = np.abs(np.diagonal(triangle))
    return Projection(basis[:, size > DEPENDENT * size[0]])


def _totals(family: Family, complete: np.ndarray) -> csr_array:
    """Return the normals of the table sums, which are 0 in h since c of a table sums to 1: orthonormal [K, tables]."""
    tables = [cells for cells, columns in family.tabled() if complete[list(columns)].all()]
    sizes = [cells.stop - cells.start for cells in tables]
    indices = [index for cells in tables for index in range(cells.start, cells.stop)]
    values = np.repeat(1.0 / np.sqrt(np.array(sizes, dtype=float)), sizes)
    table_indices = np.repeat(np.arange(len(tables)), sizes)
    return csr_array(
        (values, (np.asarray(indices, dtype=np.int64), table_indices)), shape=(family.size, len(tables))
    )


def _agreements(family: BayesNet) -> list[np.ndarray]:
    """Return the constraints that tables of one product agree on the discrete columns they share: each [., K]."""
    tables: dict[tuple[int, ...], list[tuple[tuple[int, ...], np.ndarray]]] = defaultdict(list)
    for product, discrete, indices in _tables(family):
        tables[product].append((discrete, indices))
    constraints = []
    for same_product in tables.values():
        for (first, indices), (second, others) in itertools.combinations(same_product, 2):
            shared = tuple(sorted(set(first) & set(second)))
            rows = _marginals(indices, first, shared, family.size)
            constraints.append(rows - _marginals(others, second, shared, family.size))
    return constraints


def _tables(family: BayesNet) -> list[tuple[tuple[int, ...], tuple[int, ...], np.ndarray]]:
    """Return (continuous columns multiplied, discrete columns counted by, feature indices: an axis for each) tuples."""
    tables: list[tuple[tuple[int, ...], tuple[int, ...], np.ndarray]] = [((), (), np.zeros((), np.int64))]
    for k, i in enumerate(family.singles):
        tables.append(((i,), (), np.array(1 + k)))
    for k, pair in enumerate(family.products):
        tables.append((pair, (), np.array(1 + len(family.singles) + k)))
    for column, offset, configurations, entries in family.blocks:
        linear, discrete = family.split(column)
        sizes = tuple(family.cardinalities[parent] for parent in discrete)
        if column >= family.continuous:
            indices = offset + np.arange(configurations * entries).reshape(*sizes, entries)
            tables.append(((), (*discrete, column - family.continuous), indices))
            continue
        monomials = [(), (column,), *((parent,) for parent in linear)]
        for k, (left, right) in enumerate(zip(*np.triu_indices(len(monomials)), strict=True)):
            indices = offset + k + entries * np.arange(configurations).reshape(sizes)
            tables.append((tuple(sorted((*monomials[left], *monomials[right]))), discrete, indices))
    return tables


def _marginals(
    indices: np.ndarray, columns: tuple[int, ...], shared: tuple[int, ...], size: int
) -> np.ndarray:
    """Return rows that sum a table's cells for each value of the shared columns: [values, K]."""
    ordered = np.moveaxis(indices, [columns.index(column) for column in shared], range(len(shared)))
    values = int(np.prod(ordered.shape[: len(shared)], dtype=np.int64))
    rows = np.zeros((values, size))
    np.add.at(rows, (np.arange(values)[:, None], ordered.reshape(values, -1)), 1.0)
    return rows
