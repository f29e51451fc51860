"""Φ of a block, transposed so that inner loops run over rows: in NumPy, or by the kernels in reused memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from peerbayes.families.base import Family
from peerbayes.families.naive_bayes import NaiveBayes
from peerbayes.passes.blocks import Block
from peerbayes.passes.shortcuts import holds_missing, shortcut


def dense_features(family: Family, block: Block) -> np.ndarray:
    """Return the dense features of a block: [dense, b]."""
    values, d = block.standard(), family.continuous
    if shortcut(family) is None:
        return np.ascontiguousarray(np.asarray(family.dense(values.T)).T)
    features = np.empty((family.dense_size, values.shape[1]))
    features[0] = 1.0
    k = 1
    if holds_missing(family):
        present = np.equal(values, values, out=features[1 : 1 + d])
        values, k = np.where(present, values, 0.0), 1 + d
    features[k : k + d] = values
    k += d
    if isinstance(family, NaiveBayes):
        np.square(values, out=features[k:])
        return features
    for j in range(d):
        np.multiply(values[j], values[j:], out=features[k : k + d - j])
        k += d - j
    return features


def all_features(family: Family, block: Block) -> Any:
    """Return Φᵀ of a block, sparse where it is mostly zeros: [K, b]."""
    if family.wide:
        return family.sparse(block.rows()).T
    if not family.plain_cells:
        return np.ascontiguousarray(np.asarray(family.features(block.rows())).T)
    dense = dense_features(family, block)
    if not family.cardinalities:
        return dense
    rows = dense.shape[1]
    features = np.zeros((family.size + 1, rows))  # the last one is where missing values go
    features[: family.dense_size] = dense
    index = np.where(block.codes < 0, family.size, block.codes + (family.dense_size + family.offsets))
    features.reshape(-1)[index * rows + np.arange(rows)[:, None]] = 1.0
    return features[:-1]


def expander(family: Family, size: int) -> Callable[[Block], np.ndarray]:
    """Return a function for `dense_features` of blocks of at most `size` rows by the kernels, in reused memory."""
    from peerbayes import kernels

    fast = shortcut(family)
    if fast is None:
        return lambda block: np.ascontiguousarray(np.asarray(family.dense(block.rows().values)).T)
    kernel, missing = getattr(kernels, fast.expand), holds_missing(family)
    buffer = np.empty(family.dense_size * size)

    def expand(block: Block) -> np.ndarray:
        values, _, *units = block
        features = start_of(buffer, family.dense_size, values.shape[0])
        kernel(values, *units, missing, features)
        return features

    return expand


def start_of(buffer: np.ndarray, *shape: int) -> np.ndarray:
    """Return the start of a buffer as a view of the given shape."""
    return buffer[: math.prod(shape)].reshape(shape)
