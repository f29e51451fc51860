"""Predictions for rows without labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from peerbayes.completion import complete
from peerbayes.families.base import Family, Rows
from peerbayes.families.naive_bayes import NaiveBayes
from peerbayes.passes.blocks import Source, columns_of
from peerbayes.passes.evaluation import softmax
from peerbayes.passes.logits import fast_logits, plain_logits
from peerbayes.passes.sizes import FRAME_ROWS, block_rows, is_large


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
    from peerbayes import kernels

    best = np.empty(block_rows(family.dense_size), dtype=np.int64)

    def normalise(logits: np.ndarray) -> np.ndarray:
        kernels.softmax(logits, best[: logits.shape[1]])
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
