"""Sums over the rows of each class in NumPy: dense features almost without rounding errors, and sparse entries."""

from __future__ import annotations

import numpy as np

from peerbayes.families.base import Family
from peerbayes.passes.blocks import Block


def split_sums(features: np.ndarray, of_class: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of features [K, b] over the rows of each class [b, C], as an upper and a lower part: two [C, K].

    Variances are small differences of these sums. A feature is H + L, where H is its part on a grid of 2⁻²⁶ of its
    largest value: sums of H are exact in any order, and L is too small for its errors to matter.
    """
    largest = np.maximum(features.max(axis=1, initial=0.0), -features.min(axis=1, initial=0.0))
    grid = 1.5 * 2.0**26 * np.exp2(np.ceil(np.log2(np.where(largest > 0, largest, 1.0))))[:, None]
    upper = features + grid
    upper -= grid
    exact = of_class.T @ upper.T
    return exact, of_class.T @ np.subtract(features, upper, out=upper).T


def add_entries(
    family: Family, block: Block, labels: np.ndarray, weights: np.ndarray | None, stats: np.ndarray
) -> None:
    """Add a block to the statistics after the dense features: [C, K − dense]."""
    if family.plain_cells:
        _add_cells(block.codes, family.offsets, labels, weights, stats)
        return
    indices, values = family.entries(block.rows())
    if weights is not None:
        values = (
            np.broadcast_to(weights[:, None], indices.shape) if values is None else values * weights[:, None]
        )
    present = indices < family.size
    index = indices + (labels[:, None].astype(np.int64) * stats.shape[1] - family.dense_size)
    _add_at(stats, index, values, present)


def _add_cells(
    codes: np.ndarray, offsets: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, stats: np.ndarray
) -> None:
    """Add a block of category indices [b, Dd] to the statistics of the discrete columns: [C, cells]."""
    flat_index = codes + (offsets + labels[:, None].astype(np.int64) * stats.shape[1])
    values = None if weights is None else np.broadcast_to(weights[:, None], codes.shape)
    _add_at(stats, flat_index, values, codes >= 0)


def _add_at(
    stats: np.ndarray, flat_index: np.ndarray, values: np.ndarray | None, present: np.ndarray
) -> None:
    """Add values, or ones, to S at flat indices, where they are present."""
    if not present.all():
        flat_index, values = flat_index[present], None if values is None else values[present]
    if stats.size > flat_index.size:  # many categories: most cells are not touched
        np.add.at(stats.reshape(-1), flat_index, 1.0 if values is None else values)
        return
    values = None if values is None else values.ravel()
    stats += np.bincount(flat_index.ravel(), values, minlength=stats.size).reshape(stats.shape)
