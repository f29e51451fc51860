"""How many rows a block has, how much of Φ is held, and from where on a pass is work for the kernels."""

from __future__ import annotations

from peerbayes.families.base import Family
from peerbayes.scans import LARGE

# A block of Φ: it fits the second-level cache, and calls stay rare.
BLOCK_ENTRIES, BLOCK_ROWS = 1 << 17, 2048

# Entries of Φ that are held where they are needed again and again: four megabytes.
HELD_ENTRIES = 1 << 19

# Features above which one pass is work for the kernels (naive Bayes has two for a continuous column), and entries of Φ
# times passes above which many are: three to ten such fits make up for loading the kernels.
LARGE_PASS, LARGE_PASSES = 2 * LARGE, 64 * HELD_ENTRIES

# Rows of a DataFrame that are encoded at a time: large enough for its per-column cost not to matter.
FRAME_ROWS = 1 << 15


def block_rows(features: int) -> int:
    """Rows of a block with so many features a row."""
    return max(64, min(BLOCK_ROWS, BLOCK_ENTRIES // features))


def is_large(family: Family, rows: int) -> bool:
    """Whether a pass over so many rows is work for the kernels; one-hots are not written out in a single pass."""
    work = rows * (family.dense_size + 2 * len(family.cardinalities))
    return work > LARGE_PASS and family.plain_cells


def are_large(family: Family, rows: int, passes: int) -> bool:
    """Whether so many passes over so many rows are work for the kernels."""
    return rows * family.size * passes > LARGE_PASSES and family.plain_cells


def is_held(family: Family, rows: int) -> bool:
    """Whether Φ of so many rows is small enough to be held."""
    return rows * (family.filled if family.wide else family.size) <= HELD_ENTRIES
