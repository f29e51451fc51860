"""Features and logits of blocks under a model W: in NumPy, or by the kernels in reused memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from peerbayes.families.base import Family
from peerbayes.passes.blocks import Block
from peerbayes.passes.features import dense_features, expander, start_of

LogitsOf = Callable[[Block], tuple[np.ndarray, np.ndarray]]
"""A function of a block of rows: its dense features [dense, b] and its logits [C, b]."""


def plain_logits(family: Family, weights: np.ndarray) -> LogitsOf:
    """Return the logits function in NumPy. One-hots are not expanded: a column may have very many categories."""
    if not family.plain_cells:
        return lambda block: (np.zeros(0), np.asarray(weights @ family.sparse(block.rows()).T))
    dense = weights[:, : family.dense_size]
    cells = np.pad(weights[:, family.dense_size :], ((0, 0), (0, 1)))  # the last one is for missing values

    def logits_of(block: Block) -> tuple[np.ndarray, np.ndarray]:
        features = dense_features(family, block)
        logits = dense @ features
        index = np.where(block.codes < 0, cells.shape[1] - 1, block.codes + family.offsets)
        for column in index.T:
            logits += np.take(cells, column, axis=1)
        return features, logits

    return logits_of


def fast_logits(family: Family, weights: np.ndarray, size: int) -> LogitsOf:
    """Return the logits function by the kernels, for blocks of at most `size` rows."""
    from peerbayes import kernels

    dense = np.ascontiguousarray(weights[:, : family.dense_size])
    cells = np.ascontiguousarray(weights[:, family.dense_size :].T)
    expand = expander(family, size)
    buffer = np.empty(weights.shape[0] * size)

    def logits_of(block: Block) -> tuple[np.ndarray, np.ndarray]:
        features = expand(block)
        logits = start_of(buffer, weights.shape[0], features.shape[1])
        np.dot(dense, features, out=logits)
        if family.cardinalities:
            kernels.add_cells(block.codes, family.offsets, cells, logits)
        return features, logits

    return logits_of
