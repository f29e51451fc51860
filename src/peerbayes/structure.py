"""Statistics of pairs of simulated peers: sums over a spanning tree, bit for bit those of real peers."""

from __future__ import annotations

import itertools

import numpy as np
from scipy.sparse import csgraph, csr_array

from peerbayes import grids
from peerbayes.dependence import Pairs
from peerbayes.families import Rows
from peerbayes.schema import Schema


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
    power = grids.exponent(bound)
    first = pairs_of_peer(slices[0])
    total = grids.on_grid(first.vector, power)
    for peer_rows in slices[1:]:
        total += grids.on_grid(pairs_of_peer(peer_rows).vector, power)
    branches = csgraph.breadth_first_tree(links, 0, directed=False).tocoo()
    degrees = np.bincount(np.concatenate([branches.row, branches.col]), minlength=len(sizes))
    return first.from_vector(grids.off_grid(total, power)), degrees * 8.0 * total.size
