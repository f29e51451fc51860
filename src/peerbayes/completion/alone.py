"""Where expectation-maximisation starts: columns alone, as if none depended on another given the class.

`apart` are sums of what is there, which add up over peers: those of naive Bayes with missing values. `alone` makes of
them statistics of the family, under which a missing value is told by nothing but the class.
"""

from __future__ import annotations

import numpy as np

from peerbayes.completion.known import Known
from peerbayes.families.base import Family, Rows
from peerbayes.families.bayes_net import BayesNet
from peerbayes.families.naive_bayes import NaiveBayes

# Share of a class's rows that mean 0, variance 1 and equal cells make up: all there is of a column without a value.
STANDING_IN = 1e-6


def apart(family: Family, rows: Rows, credit: np.ndarray) -> np.ndarray:
    """YᵀΦ of naive Bayes: counts, Σo, Σx, Σx² and cells of each column alone. [n, C] -> [C, M]."""
    return Known(_naive(family), rows).sums(credit)


def alone(family: Family, sums: np.ndarray) -> np.ndarray:
    """S in which columns are independent given the class, from what `apart` gives: [..., C, M] -> [..., C, K].

    S_c = n_c E[φ], each entry a product of what the sums say of its columns.
    """
    naive = _naive(family)
    d, count = family.continuous, sums[..., 0]
    rows = np.where(count > 0, count, 1.0)[..., None]
    sums = sums + STANDING_IN * rows * naive.uniform(1)[0]
    there, first, second = (sums[..., 1 + k * d : 1 + (k + 1) * d] for k in range(3))
    mean, square = first / there, second / there
    cells = []
    for begin, size in zip(naive.dense_size + naive.offsets, family.cardinalities, strict=True):
        own = sums[..., begin : begin + size]
        cells.append(own / own.sum(axis=-1, keepdims=True))
    if isinstance(family, BayesNet):
        row = _of_network(family, mean, square, cells)
    else:
        upper, right = np.triu_indices(d)
        products = np.where(upper == right, square[..., upper], mean[..., upper] * mean[..., right])
        row = np.concatenate([np.ones_like(count)[..., None], mean, products, *cells], axis=-1)
    return count[..., None] * row


def _of_network(
    family: BayesNet, mean: np.ndarray, square: np.ndarray, cells: list[np.ndarray]
) -> np.ndarray:
    """E[φ] of independent columns: [..., C, K]."""
    row = np.zeros((*mean.shape[:-1], family.size))
    row[..., 0] = 1.0
    row[..., 1 : 1 + len(family.singles)] = mean[..., list(family.singles)]
    for place, (i, j) in enumerate(family.products, start=1 + len(family.singles)):
        row[..., place] = square[..., i] if i == j else mean[..., i] * mean[..., j]
    for column, place, configurations, width in family.blocks:
        linear, discrete = family.split(column)
        chosen = np.ones((*mean.shape[:-1], 1))
        for parent in discrete:
            chosen = (chosen[..., :, None] * cells[parent][..., None, :]).reshape(*mean.shape[:-1], -1)
        if column >= family.continuous:
            inside = cells[column - family.continuous]
        else:
            own = [column, *linear]
            upper, right = np.triu_indices(len(own))
            at, by = np.array(own)[upper], np.array(own)[right]
            products = np.where(at == by, square[..., at], mean[..., at] * mean[..., by])
            inside = np.concatenate([np.ones((*mean.shape[:-1], 1)), mean[..., own], products], axis=-1)
        block = chosen[..., :, None] * inside[..., None, :]
        row[..., place : place + configurations * width] = block.reshape(*mean.shape[:-1], -1)
    return row


def _naive(family: Family) -> NaiveBayes:
    return NaiveBayes(continuous=family.continuous, cardinalities=family.cardinalities, missing=True)
