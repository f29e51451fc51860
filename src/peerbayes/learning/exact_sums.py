"""Sums that are exact, whatever their order: numbers on a grid; and structures learned from them."""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy.sparse import csgraph, csr_array

from peerbayes.data.schema import Schema
from peerbayes.model.families import Rows
from peerbayes.model.structure import Pairs

# --- sums that have the same bits in any order: numbers on a common grid, added up as integers
# Peers that add numbers along a tree each add in a different order; rounding would give each a different sum, and
# fingerprints and structures derived from it could not be compared.

BITS = 62  # of a sum: one for the sign, one to spare


def exponent(bound: float) -> int:
    """Return e of the grid 2⁻ᵉ on which numbers whose sum is at most `bound` in size stay below 2⁶²."""
    return BITS - math.frexp(bound * (1 + 1e-9))[1]


def on_grid(values: np.ndarray, power: int) -> np.ndarray:
    """Return numbers as integers on the grid 2^−power."""
    return np.rint(np.ldexp(values, power)).astype(np.int64)


def off_grid(integers: np.ndarray, power: int) -> np.ndarray:
    """Return integers of a grid as numbers."""
    return np.ldexp(integers.astype(np.float64), -power)


# --- statistics of pairs of simulated peers: sums over a spanning tree, bit for bit those of real peers


def pooled(
    rows: Rows,
    labels: np.ndarray,
    sizes: np.ndarray,
    schema: Schema,
    links: csr_array,
    weights: np.ndarray | None = None,
) -> tuple[Pairs, np.ndarray]:
    """Return the statistics of pairs of all peers, and the bytes that each peer sends for them [N].

    Each peer sends every neighbour on the tree the sum of its side, once. `weights` [N] is the weight of each peer's
    rows; None: 1.
    """
    ends = np.concatenate([[0], np.cumsum(sizes)])
    slices = [slice(begin, end) for begin, end in itertools.pairwise(ends.tolist())]
    classes = len(schema.classes)

    def pairs_of_peer(peer_rows: slice) -> Pairs:
        encoded = Rows(rows.values[peer_rows], rows.codes[peer_rows])
        return Pairs.of(encoded, labels[peer_rows], classes, schema.cardinalities, row_weights(peer_rows))

    def row_weights(peer_rows: slice) -> np.ndarray | None:
        weight = 1.0 if weights is None else weights[slices.index(peer_rows)]
        return None if weight == 1.0 else np.full(peer_rows.stop - peer_rows.start, weight)

    # Each peer's pairs are computed twice: those of all peers together may not fit in memory.
    bound = sum(float(np.abs(pairs_of_peer(peer_rows).vector).max()) for peer_rows in slices)
    power = exponent(bound)
    first = pairs_of_peer(slices[0])
    total = on_grid(first.vector, power)
    for peer_rows in slices[1:]:
        total += on_grid(pairs_of_peer(peer_rows).vector, power)
    branches = csgraph.breadth_first_tree(links, 0, directed=False).tocoo()
    degrees = np.bincount(np.concatenate([branches.row, branches.col]), minlength=len(sizes))
    return first.from_vector(off_grid(total, power)), degrees * 8.0 * total.size
