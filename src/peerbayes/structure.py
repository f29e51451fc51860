"""What simulated peers agree on before a structure: sums over a spanning tree, to the bits that real peers get."""

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
    """The statistics of pairs of all peers, and the bytes that each peer sends for them [N].

    Each peer sends every neighbour on the tree the sum of what lies behind it, once. `weights` are of each row of a
    peer: [N]; None: 1.
    """
    ends = np.concatenate([[0], np.cumsum(sizes)])
    parts = [slice(begin, end) for begin, end in itertools.pairwise(ends.tolist())]
    classes = len(schema.classes)

    def own(part: slice) -> Pairs:
        some = Rows(rows.values[part], rows.codes[part])
        return Pairs.of(some, labels[part], classes, schema.cardinalities, of_rows(part))

    def of_rows(part: slice) -> np.ndarray | None:
        weight = 1.0 if weights is None else weights[parts.index(part)]
        return None if weight == 1.0 else np.full(part.stop - part.start, weight)

    # Each peer's are made twice: those of all peers together may not fit.
    bound = sum(float(np.abs(own(part).vector).max()) for part in parts)
    power = grids.exponent(bound)
    first = own(parts[0])
    whole = grids.on_grid(first.vector, power)
    for part in parts[1:]:
        whole += grids.on_grid(own(part).vector, power)
    branches = csgraph.breadth_first_tree(links, 0, directed=False).tocoo()
    degrees = np.bincount(np.concatenate([branches.row, branches.col]), minlength=len(sizes))
    return first.from_vector(grids.off_grid(whole, power)), degrees * 8.0 * whole.size
