"""The start of expectation-maximisation: columns that are independent given the class.

`apart` returns sums over the observed values, which add up over peers: the statistics of naive Bayes with missing
values. `alone` turns them into statistics of the family in which a missing value depends on nothing but the class.
"""

from __future__ import annotations

import numpy as np

from peerbayes.completion.known import ObservedFeatures
from peerbayes.families.base import Family, Rows
from peerbayes.families.bayes_net import BayesNet
from peerbayes.families.naive_bayes import NaiveBayes

# Pseudo-rows of mean 0, variance 1 and equal cells, as a share of a class's rows: they define a column without a value.
PSEUDO_SHARE = 1e-6


def apart(family: Family, rows: Rows, credit: np.ndarray) -> np.ndarray:
    """Return YᵀΦ of naive Bayes: counts, Σo, Σx, Σx² and cells of each column by itself. [n, C] -> [C, M]."""
    return ObservedFeatures(_naive(family), rows).sums(credit)


def alone(family: Family, sums: np.ndarray) -> np.ndarray:
    """Return S in which columns are independent given the class, from the sums of `apart`: [..., C, M] -> [..., C, K].

    S_c = n_c E[φ]; each entry is a product of the expectations of its columns.
    """
    naive = _naive(family)
    d, count = family.continuous, sums[..., 0]
    rows = np.where(count > 0, count, 1.0)[..., None]
    sums = sums + PSEUDO_SHARE * rows * naive.uniform(1)[0]
    observed, first, second = (sums[..., 1 + k * d : 1 + (k + 1) * d] for k in range(3))
    mean, square = first / observed, second / observed
    cells = []
    for begin, size in zip(naive.dense_size + naive.offsets, family.cardinalities, strict=True):
        column_counts = sums[..., begin : begin + size]
        cells.append(column_counts / column_counts.sum(axis=-1, keepdims=True))
    if isinstance(family, BayesNet):
        row = _network_row(family, mean, square, cells)
    else:
        upper, right = np.triu_indices(d)
        products = np.where(upper == right, square[..., upper], mean[..., upper] * mean[..., right])
        row = np.concatenate([np.ones_like(count)[..., None], mean, products, *cells], axis=-1)
    return count[..., None] * row


def _network_row(
    family: BayesNet, mean: np.ndarray, square: np.ndarray, cells: list[np.ndarray]
) -> np.ndarray:
    """Return E[φ] of independent columns in the layout of a Bayesian network: [..., C, K]."""
    row = np.zeros((*mean.shape[:-1], family.size))
    row[..., 0] = 1.0
    row[..., 1 : 1 + len(family.singles)] = mean[..., list(family.singles)]
    for offset, (i, j) in enumerate(family.products, start=1 + len(family.singles)):
        row[..., offset] = square[..., i] if i == j else mean[..., i] * mean[..., j]
    for column, offset, configurations, width in family.blocks:
        linear, discrete = family.split(column)
        probability = np.ones((*mean.shape[:-1], 1))
        for parent in discrete:
            probability = (probability[..., :, None] * cells[parent][..., None, :]).reshape(
                *mean.shape[:-1], -1
            )
        if column >= family.continuous:
            expected = cells[column - family.continuous]
        else:
            members = [column, *linear]
            upper, right = np.triu_indices(len(members))
            first, second = np.array(members)[upper], np.array(members)[right]
            products = np.where(first == second, square[..., first], mean[..., first] * mean[..., second])
            expected = np.concatenate([np.ones((*mean.shape[:-1], 1)), mean[..., members], products], axis=-1)
        block = probability[..., :, None] * expected[..., None, :]
        row[..., offset : offset + configurations * width] = block.reshape(*mean.shape[:-1], -1)
    return row


def _naive(family: Family) -> NaiveBayes:
    """Return naive Bayes for the same columns, in the layout for missing values."""
    return NaiveBayes(continuous=family.continuous, cardinalities=family.cardinalities, missing=True)
