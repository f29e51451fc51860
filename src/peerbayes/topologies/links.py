"""Networks as matrices: made from links, checked, and changed entry by entry."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph, csr_array

from peerbayes.arguments import LARGEST, shown, whole
from peerbayes.errors import TopologyError


def linked(first: np.ndarray, second: np.ndarray, nodes: int) -> csr_array:
    """A with A_uv = A_vu = 1 for each pair (u, v) of first [E] and second [E]; a pair may come twice."""
    first, second = first.astype(np.int32), second.astype(np.int32)  # half the memory of SciPy's int64
    rows, columns = np.concatenate([first, second]), np.concatenate([second, first])
    matrix = csr_array((np.ones(len(rows)), (rows, columns)), shape=(nodes, nodes))
    matrix.data[:] = 1.0  # pairs that came twice were summed
    return matrix


def checked(given: Any, nodes: int | None = None, connected: bool = True) -> csr_array:
    """A copy of the matrix as A [N,N], or an error that says why it is no network."""
    if not sparse.issparse(given):
        try:
            given = np.asarray(given)
        except (TypeError, ValueError) as problem:  # lists of different lengths
            raise TopologyError(
                f"the network is {shown(given)}; expected a square matrix of 0 and 1, a networkx graph, a file or "
                "a name"
            ) from problem
    if given.ndim != 2 or given.shape[0] != given.shape[1] or given.dtype.kind not in "biuf":
        raise TopologyError(
            f"the network is an array of shape {given.shape} and type {given.dtype}; expected a square matrix of "
            "0 and 1, a networkx graph, a file or a name"
        )
    size = given.shape[0]
    if size != (nodes or size) or size == 0:
        raise TopologyError(
            f"the network has {size} nodes; expected {nodes or 'some'}: change one of the two"
        )
    matrix = csr_array(given, dtype=np.float64, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    for wrong, why in (
        (with_data(matrix, matrix.data != 1), "links carry no weight, the mixing gives it: expected 0 or 1"),
        (with_data(matrix, rows_of(matrix) == matrix.indices), "expected 0: no node is its own neighbour"),
        (matrix - matrix.T > 0, "the opposite one is 0; links go both ways: take matrix + matrix.T > 0"),
    ):
        if wrong.data.any():
            row, column = (int(places[0]) for places in wrong.nonzero())
            raise TopologyError(f"the network's entry [{row}, {column}] is {matrix[row, column]:g}; {why}")
    if connected:
        refuse_parts(matrix)
    return matrix


def refuse_parts(matrix: csr_array) -> None:
    parts, part = csgraph.connected_components(matrix)
    if parts > 1:
        sizes = np.bincount(part)
        smallest = int(np.argmin(sizes))
        raise TopologyError(
            f"the network falls into {parts} parts; node {np.argmax(part == smallest)} is in the smallest, of size "
            f"{sizes[smallest]}. Expected one part: link them"
        )


def whole_number(name: str, value: Any, least: int = 1, most: int = LARGEST) -> int:
    return whole(name, value, least, most, error=TopologyError)


def rows_of(matrix: csr_array) -> np.ndarray:
    """The row of each stored entry: [E]."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def pairs(matrix: csr_array) -> np.ndarray:
    """Who is linked with whom, each pair once, the smaller number first: [E, 2]."""
    first, second = rows_of(matrix), matrix.indices
    once = first < second
    return np.stack([first[once], second[once]], axis=1).astype(np.int64)


def row_sums(matrix: csr_array) -> np.ndarray:
    return np.bincount(rows_of(matrix), weights=matrix.data, minlength=matrix.shape[0])


def with_data(matrix: csr_array, data: np.ndarray) -> csr_array:
    return csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def plus_diagonal(matrix: csr_array, diagonal: np.ndarray) -> csr_array:
    """M + diag(d); zeros are not stored."""
    return csr_array(matrix + sparse.diags_array(diagonal.astype(np.float64), format="csr"))


def only(matrix: csr_array, kept: np.ndarray) -> csr_array:
    """The matrix without the stored entries that are not kept: [E] booleans."""
    before = np.append(0, np.cumsum(kept)).astype(matrix.indptr.dtype)  # how many are kept before each entry
    return csr_array((matrix.data[kept], matrix.indices[kept], before[matrix.indptr]), shape=matrix.shape)
