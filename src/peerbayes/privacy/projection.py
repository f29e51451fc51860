"""Π: what every residual fulfils, imposed on noise as well.

Residuals add up to zero over classes. And features repeat each other: the cells of a discrete column add up to the
class count, and tables of a Bayesian network that share columns agree on them. Π projects on what fulfils all of it,
orthogonally in the coordinates h. It acts on what was released already, so it costs no privacy, and takes noise away: a
share 1/C, and one in r of a column of r cells.
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

# What is left of a direction that depends on others, beside one that does not.
DEPENDENT = 1e-9


@dataclass(frozen=True, eq=False)
class Projection:
    """Π in the coordinates h."""

    normals: Any  # [K, r] orthonormal: what a residual has none of; sparse where it can be

    def __call__(self, moved: np.ndarray, classes: bool = True) -> np.ndarray:
        """[..., C, K] -> [..., C, K]. `classes`: whether class sums are zero, as those of residuals are."""
        if classes:
            moved = moved - moved.mean(axis=-2, keepdims=True)
        if self.normals.shape[1] == 0:
            return moved
        flat = moved.reshape(-1, moved.shape[-1])
        return moved - ((flat @ self.normals) @ self.normals.T).reshape(moved.shape)


def projection(coordinates: Coordinates, never_missing: np.ndarray | None = None) -> Projection:
    """Π of a family; `never_missing` [Dd] says which discrete columns every row has (None: all of them).

    Where a column may be missing, its cells need not add up to the class count. That must be known of the network, not
    of one peer's rows.
    """
    family = coordinates.family
    there = np.ones(len(family.cardinalities), dtype=bool) if never_missing is None else never_missing
    totals = _totals(family, there)
    agreements = _agreements(family) if isinstance(family, BayesNet) and family.size <= MOST_FEATURES else []
    if not agreements:
        return Projection(totals)
    # a·φ(h) = 0: `back` is linear, so its matrix is what it makes of the unit vectors
    moved = np.concatenate(agreements) @ coordinates.back(np.eye(family.size)).T
    basis, triangle, _ = qr(moved.T, mode="economic", pivoting=True)
    size = np.abs(np.diagonal(triangle))
    return Projection(basis[:, size > DEPENDENT * size[0]])


def _totals(family: Family, there: np.ndarray) -> csr_array:
    """Each table's cells add up to zero in h, since c of them adds up to one: orthonormal [K, tables]."""
    tables = [cells for cells, columns in family.tabled() if there[list(columns)].all()]
    sizes = [cells.stop - cells.start for cells in tables]
    places = [place for cells in tables for place in range(cells.start, cells.stop)]
    values = np.repeat(1.0 / np.sqrt(np.array(sizes, dtype=float)), sizes)
    which = np.repeat(np.arange(len(tables)), sizes)
    return csr_array((values, (np.asarray(places, dtype=np.int64), which)), shape=(family.size, len(tables)))


def _agreements(family: BayesNet) -> list[np.ndarray]:
    """For each product of continuous columns, tables of it that share discrete columns agree on those: each [., K]."""
    tables: dict[tuple[int, ...], list[tuple[tuple[int, ...], np.ndarray]]] = defaultdict(list)
    for product, discrete, places in _tables(family):
        tables[product].append((discrete, places))
    found = []
    for alike in tables.values():
        for (first, places), (second, others) in itertools.combinations(alike, 2):
            shared = tuple(sorted(set(first) & set(second)))
            rows = _marginals(places, first, shared, family.size)
            found.append(rows - _marginals(others, second, shared, family.size))
    return found


def _tables(family: BayesNet) -> list[tuple[tuple[int, ...], tuple[int, ...], np.ndarray]]:
    """(continuous columns that are multiplied, discrete columns counted by, where: an axis for each of these)."""
    found: list[tuple[tuple[int, ...], tuple[int, ...], np.ndarray]] = [((), (), np.zeros((), np.int64))]
    for k, i in enumerate(family.singles):
        found.append(((i,), (), np.array(1 + k)))
    for k, pair in enumerate(family.products):
        found.append((pair, (), np.array(1 + len(family.singles) + k)))
    for column, place, configurations, entries in family.blocks:
        linear, discrete = family.split(column)
        sizes = tuple(family.cardinalities[parent] for parent in discrete)
        if column >= family.continuous:
            places = place + np.arange(configurations * entries).reshape(*sizes, entries)
            found.append(((), (*discrete, column - family.continuous), places))
            continue
        of = [(), (column,), *((parent,) for parent in linear)]
        for k, (left, right) in enumerate(zip(*np.triu_indices(len(of)), strict=True)):
            places = place + k + entries * np.arange(configurations).reshape(sizes)
            found.append((tuple(sorted((*of[left], *of[right]))), discrete, places))
    return found


def _marginals(
    places: np.ndarray, columns: tuple[int, ...], shared: tuple[int, ...], size: int
) -> np.ndarray:
    """Rows that add up a table's cells for each value of the shared columns: [values, K]."""
    kept = np.moveaxis(places, [columns.index(column) for column in shared], range(len(shared)))
    values = int(np.prod(kept.shape[: len(shared)], dtype=np.int64))
    rows = np.zeros((values, size))
    np.add.at(rows, (np.arange(values)[:, None], kept.reshape(values, -1)), 1.0)
    return rows
