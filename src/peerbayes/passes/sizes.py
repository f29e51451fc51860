"""Sizes: rows of a block, features kept in memory, and the work from which the kernels pay off."""

from __future__ import annotations

from peerbayes.families.base import Family
from peerbayes.scans import LARGE

# The most entries and rows of a block of Φ: it fits the second-level cache, and calls stay rare.
BLOCK_ENTRIES, BLOCK_ROWS = 1 << 17, 2048

# The most entries of Φ that are kept in memory for many passes: four megabytes.
HELD_ENTRIES = 1 << 19

# Features of all rows above which one pass is worth the kernels (naive Bayes has two per continuous column), and
# entries of Φ times passes above which many are: three to ten such fits make up for loading the kernels.
LARGE_PASS, LARGE_PASSES = 2 * LARGE, 64 * HELD_ENTRIES

# Rows of a DataFrame that are encoded at a time: large enough for its per-column cost not to matter.
FRAME_ROWS = 1 << 15


def block_rows(features: int) -> int:
    """Return the rows of a block, given the features per row."""
    return max(64, min(BLOCK_ROWS, BLOCK_ENTRIES // features))


def is_large(family: Family, rows: int) -> bool:
    """Whether one pass over the rows is worth the kernels; it does not expand one-hots."""
    work = rows * (family.dense_size + 2 * len(family.cardinalities))
    return work > LARGE_PASS and family.plain_cells


def are_large(family: Family, rows: int, passes: int) -> bool:
    """Whether the given passes over the rows are worth the kernels."""
    return rows * family.size * passes > LARGE_PASSES and family.plain_cells


def is_held(family: Family, rows: int) -> bool:
    """Whether Φ of the rows is small enough to be kept in memory."""
    return rows * (family.filled if family.wide else family.size) <= HELD_ENTRIES
