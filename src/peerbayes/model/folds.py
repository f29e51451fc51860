"""Which rows calibration holds out to choose its end by: it follows from their content alone.

The rows of each class are sorted by a hash of their values, and a share of them is held out at a time. So the order of
the rows does not matter, a row that occurs three times counts like one of weight 3, equal rows are never on both sides,
and the same table always gives the same model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from peerbayes.data.schema import Schema
from peerbayes.data.table import Table

# Different rows below which none are held out: a tenth of them says nothing.
FEWEST_ROWS = 20

# Rows held out in all. Where a tenth of the rows is fewer, more tenths are held out, one after the other: with 250 of
# 2,500 rows the end chosen had a log loss up to 0.04 above that of the last iterate, with 1,000 up to 0.01 (seeds 100
# and 101; up to 0.014 on others: docs/decisions/steps.md).
ENOUGH_ROWS = 1000

# Rows that are put into groups at a time: what is computed of them stays small.
CHUNK = 1 << 12


class Split(NamedTuple):
    """Which rows are held out, and how often."""

    groups: np.ndarray  # [n] the group of each row, −1: never held out
    folds: np.ndarray  # [F] the groups that are held out, one after the other; none of them is empty
    description: str

    def held_out(self) -> Iterator[np.ndarray]:
        """Yield which rows are held out in each fold: [n]."""
        for group in self.folds:
            yield self.groups == group


def split(
    schema: Schema, table: Table, labels: np.ndarray, weights: np.ndarray | None, share: float
) -> Split:
    """Return which rows of a table to hold out: about the given share of each class at a time."""
    none = np.zeros(0, dtype=np.int64)
    groups, distinct = grouped(row_keys(schema, table), labels, weights, share)
    if distinct < FEWEST_ROWS:
        reason = f"no row was held out: {distinct} different rows, fewer than {FEWEST_ROWS}"
        return Split(groups, none, reason)
    enough = min(math.floor(1 / share + 1e-9), math.ceil(ENOUGH_ROWS / (share * distinct)))
    folds = np.unique(groups[(groups >= 0) & (groups < enough)])
    if not folds.size:
        return Split(groups, none, "no row was held out: classes have one row, or too few, that differ")
    times = "once" if folds.size == 1 else f"{folds.size} times, other rows each time"
    return Split(groups, folds, f"{share:.0%} of {distinct} different rows were held out, {times}")


def grouped(
    keys: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, share: float
) -> tuple[np.ndarray, int]:
    """Return the group of each row [n], and how many different rows there are; each group has `share` of each class.

    A row's group is ⌊q / share⌋, where q is the share of its class's weight that comes before the middle of its own in
    the order of the keys. With share ≤ ½ no group has all rows of a class, unless these are all equal: group −1.
    """
    order, is_new = _in_order(keys, labels)
    del keys  # as long as a column of the table
    index = np.cumsum(is_new, dtype=np.int32)
    index -= 1  # among the different rows
    if weights is None:
        starts = np.flatnonzero(is_new)
        mass: np.ndarray = np.empty(starts.size)
        np.subtract(starts[1:], starts[:-1], out=mass[:-1])
        mass[-1] = order.size - starts[-1]
        del starts
    else:
        mass = np.bincount(index, weights[order])
    label = labels[order[is_new]]
    of_class, different = np.zeros((2, int(label[-1]) + 1))  # weight and different rows of each class
    for start in range(0, label.size, CHUNK):
        chunk = slice(start, start + CHUNK)
        np.add.at(of_class, label[chunk], mass[chunk])
        np.add.at(different, label[chunk], 1.0)
    earlier, total = np.cumsum(of_class) - of_class, np.zeros(1)
    groups = np.empty(order.size, dtype=np.int32 if share * 2**31 > 1 else np.int64)
    for start in range(0, label.size, CHUNK):
        chunk_mass, chunk_label = mass[start : start + CHUNK], label[start : start + CHUNK]
        summed = np.cumsum(np.concatenate([total, chunk_mass]))[1:]
        before, total = summed - chunk_mass - earlier[chunk_label], summed[-1:]
        group = np.floor((before + chunk_mass / 2) / of_class[chunk_label] / share).astype(np.int64)
        group[different[chunk_label] == 1] = -1
        rows = slice(*np.searchsorted(index, (start, start + CHUNK)))
        groups[order[rows]] = group[index[rows] - start]
    return groups, label.size


def _in_order(keys: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows in the order of labels and keys [n], and which of them differ from the one before: [n]."""
    order = np.lexsort((keys, labels)).astype(np.int32 if keys.size < 2**31 else np.int64)
    is_new = np.ones(order.size, dtype=bool)
    for start in range(1, order.size, CHUNK):
        rows = order[start - 1 : start + CHUNK]
        key, label = keys[rows], labels[rows]
        is_new[start : start + CHUNK] = (key[1:] != key[:-1]) | (label[1:] != label[:-1])
    return order, is_new


def row_keys(schema: Schema, table: Table) -> np.ndarray:
    """Return a hash of the values of each row, in their own units: [n]."""
    keys = np.zeros(table.rows, dtype=np.uint64)
    for column, position in zip(schema.columns, schema.places(table), strict=True):
        values = table.column(position)
        numbers = column.numbers(values) if column.traits.reads_numbers else column.codes(values)
        numbers = np.add(numbers, 0.0, dtype=np.float64)  # a copy, in which −0 is 0
        numbers[np.isnan(numbers)] = np.nan  # all of them with the same bits
        keys ^= numbers.view(np.uint64)
        for _ in range(2):  # a mixing step of SplitMix64's kind
            keys ^= keys >> np.uint64(32)
            keys *= np.uint64(0xD6E8FEB86659FD93)
        keys ^= keys >> np.uint64(32)
    return keys
