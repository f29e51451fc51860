"""Sums over the rows of each class in NumPy: of dense features almost without rounding errors, and of other entries."""

from __future__ import annotations

import numpy as np

from peerbayes.families.base import Family
from peerbayes.passes.blocks import Block


def split_sums(features: np.ndarray, of_class: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sums of features [K, b] over the rows of each class [b, C], as two parts [C, K].

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
    """S beside the dense features: add a block to [C, K − dense]."""
    if family.plain_cells:
        _add_cells(block.codes, family.offsets, labels, weights, stats)
        return
    places, told = family.entries(block.rows())
    if weights is not None:
        told = np.broadcast_to(weights[:, None], places.shape) if told is None else told * weights[:, None]
    known = places < family.size
    place = places + (labels[:, None].astype(np.int64) * stats.shape[1] - family.dense_size)
    _add_at(stats, place, told, known)


def _add_cells(
    codes: np.ndarray, offsets: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, stats: np.ndarray
) -> None:
    """S of the discrete columns: add a block of category indices [b, Dd] to [C, cells]."""
    place = codes + (offsets + labels[:, None].astype(np.int64) * stats.shape[1])
    told = None if weights is None else np.broadcast_to(weights[:, None], codes.shape)
    _add_at(stats, place, told, codes >= 0)


def _add_at(stats: np.ndarray, place: np.ndarray, told: np.ndarray | None, known: np.ndarray) -> None:
    """Add what is told, ones if nothing is, to flat places of S, where they are known."""
    if not known.all():
        place, told = place[known], None if told is None else told[known]
    if stats.size > place.size:  # many categories: most cells are not touched
        np.add.at(stats.reshape(-1), place, 1.0 if told is None else told)
        return
    told = None if told is None else told.ravel()
    stats += np.bincount(place.ravel(), told, minlength=stats.size).reshape(stats.shape)
