"""Features, logits and posteriors of a block: in NumPy, or by the kernels in reused memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from peerbayes.data.table import Rows
from peerbayes.model.families.base import Family
from peerbayes.model.families.gaussian import Gaussian
from peerbayes.model.families.naive_bayes import NaiveBayes
from peerbayes.model.missing import complete
from peerbayes.model.passes.blocks import FRAME_ROWS, Block, Source, block_rows, columns_of, is_large

# --- families with kernels of their own; any other uses its own φ


class Shortcut(NamedTuple):
    """The names of a family's kernels, which are loaded only when needed."""

    expand: str
    statistics: str


SHORTCUTS: dict[type[Family], Shortcut] = {
    NaiveBayes: Shortcut("expand_diagonal", "diagonal_statistics"),
    Gaussian: Shortcut("expand_quadratic", "quadratic_statistics"),
}


def shortcut(family: Family) -> Shortcut | None:
    """Return the kernels of a family, or None."""
    return next(
        (kernels for family_type, kernels in SHORTCUTS.items() if isinstance(family, family_type)), None
    )


def holds_missing(family: Family) -> bool:
    """Whether φ marks missing continuous values."""
    return isinstance(family, NaiveBayes) and family.missing


# --- φ of a block, transposed so that inner loops run over rows: in NumPy, or by the kernels in reused memory


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
    from peerbayes.model.kernels import block_loops

    fast = shortcut(family)
    if fast is None:
        return lambda block: np.ascontiguousarray(np.asarray(family.dense(block.rows().values)).T)
    kernel, missing = getattr(block_loops, fast.expand), holds_missing(family)
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


# --- features and logits of blocks under a model W: in NumPy, or by the kernels in reused memory

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
    from peerbayes.model.kernels import block_loops

    dense = np.ascontiguousarray(weights[:, : family.dense_size])
    cells = np.ascontiguousarray(weights[:, family.dense_size :].T)
    expand = expander(family, size)
    buffer = np.empty(weights.shape[0] * size)

    def logits_of(block: Block) -> tuple[np.ndarray, np.ndarray]:
        features = expand(block)
        logits = start_of(buffer, weights.shape[0], features.shape[1])
        np.dot(dense, features, out=logits)
        if family.cardinalities:
            block_loops.add_cells(block.codes, family.offsets, cells, logits)
        return features, logits

    return logits_of


# --- the residual and the errors of a model in one pass, from the logits of its blocks


class Evaluation(NamedTuple):
    """The residual and the errors of a model on labelled rows."""

    residual: np.ndarray  # [C, K]
    soft_error: float
    error: float


def softmax(logits: np.ndarray) -> np.ndarray:
    """Compute P = softmax over classes in place: [C, b]."""
    logits -= logits.max(axis=0)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=0)
    return logits


def residuals(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Replace logits [C, b] by (Y − P) times the rows' weights; return the soft and the 0-1 error, in row weight."""
    wrong = float(weights[logits.argmax(axis=0) != labels].sum())
    softmax(logits)
    logits *= -weights
    label_entries = labels, np.arange(labels.size)
    logits[label_entries] += weights
    return float(logits[label_entries].sum()), wrong


# --- predictions for rows without labels


def log_joint(family: Family, weights: np.ndarray, source: Source) -> np.ndarray:
    """Return log p(z, c) of every row, in standardised units: [n, C]."""
    return _predicted(family, weights, source, np.asarray)


def log_units(family: Family, source: Source) -> Any:
    """Return Σ log scale over the observed columns, which turns densities of z into those of x: a number or [n, 1]."""
    log_scale = np.log(source.schema.scale)
    if isinstance(family, NaiveBayes) and not family.missing:
        return log_scale.sum()
    units = np.empty((source.rows, 1))
    for start, block in source.blocks(FRAME_ROWS):
        units[start : start + len(block.values), 0] = ~np.isnan(block.values) @ log_scale
    return units


def posterior(family: Family, weights: np.ndarray, source: Source) -> np.ndarray:
    """Return p(c | x) of every row: [n, C]."""
    if not is_large(family, source.rows):
        return _predicted(family, weights, source, softmax)
    from peerbayes.model.kernels import block_loops

    best = np.empty(block_rows(family.dense_size), dtype=np.int64)

    def normalise(logits: np.ndarray) -> np.ndarray:
        block_loops.softmax(logits, best[: logits.shape[1]])
        return logits

    return _predicted(family, weights, source, normalise)


def _predicted(
    family: Family, weights: np.ndarray, source: Source, finish: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return the finished logits of every row, with missing values completed: [n, C]."""
    large = is_large(family, source.rows)
    size = block_rows(family.dense_size)
    logits_of = fast_logits(family, weights, size) if large else plain_logits(family, weights)
    out = np.empty((source.rows, weights.shape[0]))
    for start, block in source.blocks(size, large):
        _, logits = logits_of(block)
        incomplete = np.flatnonzero(family.incomplete(Rows(block.values, block.codes)))
        if incomplete.size:
            rows = block.rows()
            incomplete_rows = Rows(rows.values[incomplete], rows.codes[incomplete])
            completion = complete(family, incomplete_rows, columns_of(source.schema), start + incomplete)
            logits[:, incomplete] = completion.log_joint(weights).T
        out[start : start + logits.shape[1]] = finish(logits).T
    return out
