"""Adjacency matrices: built from links, checked, and changed entry by entry."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph, csr_array

from peerbayes.data.arguments import LARGEST, shown, whole
from peerbayes.errors import TopologyError


def linked(first: np.ndarray, second: np.ndarray, nodes: int) -> csr_array:
    """Return A with A_uv = A_vu = 1 for each pair (u, v) of first [E] and second [E]; pairs may repeat."""
    first, second = first.astype(np.int32), second.astype(np.int32)  # half the memory of SciPy's int64
    rows, columns = np.concatenate([first, second]), np.concatenate([second, first])
    matrix = csr_array((np.ones(len(rows)), (rows, columns)), shape=(nodes, nodes))
    matrix.data[:] = 1.0  # repeated pairs were summed
    return matrix


def checked(candidate: Any, nodes: int | None = None, connected: bool = True) -> csr_array:
    """Return a copy of the matrix as A [N,N]; raise an error if it is not a network."""
    if not sparse.issparse(candidate):
        try:
            candidate = np.asarray(candidate)
        except (TypeError, ValueError) as error:  # lists of different lengths
            raise TopologyError(
                f"the network is {shown(candidate)}; expected a square matrix of 0 and 1, a networkx graph, a file or "
                "a name"
            ) from error
    if candidate.ndim != 2 or candidate.shape[0] != candidate.shape[1] or candidate.dtype.kind not in "biuf":
        raise TopologyError(
            f"the network is an array of shape {candidate.shape} and type {candidate.dtype}; expected a square "
            "matrix of 0 and 1, a networkx graph, a file or a name"
        )
    size = candidate.shape[0]
    if size != (nodes or size) or size == 0:
        raise TopologyError(
            f"the network has {size} nodes; expected {nodes or 'some'}: change one of the two"
        )
    matrix = csr_array(candidate, dtype=np.float64, copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    for wrong, why in (
        (with_data(matrix, matrix.data != 1), "links have no weights, mixing assigns them: expected 0 or 1"),
        (with_data(matrix, rows_of(matrix) == matrix.indices), "expected 0: a node is not its own neighbour"),
        (matrix - matrix.T > 0, "the opposite entry is 0; links go both ways: use matrix + matrix.T > 0"),
    ):
        if wrong.data.any():
            row, column = (int(indices[0]) for indices in wrong.nonzero())
            raise TopologyError(f"the network's entry [{row}, {column}] is {matrix[row, column]:g}; {why}")
    if connected:
        check_connected(matrix)
    return matrix


def check_connected(matrix: csr_array) -> None:
    """Refuse a network that is not connected."""
    count, component = csgraph.connected_components(matrix)
    if count > 1:
        sizes = np.bincount(component)
        smallest = int(np.argmin(sizes))
        raise TopologyError(
            f"the network falls into {count} parts; node {np.argmax(component == smallest)} is in the smallest, "
            f"of size {sizes[smallest]}. Expected one connected network: link the parts"
        )


def whole_number(name: str, value: Any, least: int = 1, most: int = LARGEST) -> int:
    """Return an argument that must be a whole number from `least` to `most`."""
    return whole(name, value, least, most, error=TopologyError)


def rows_of(matrix: csr_array) -> np.ndarray:
    """Return the row of each stored entry: [E]."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def pairs(matrix: csr_array) -> np.ndarray:
    """Return the links, each pair once, the smaller number first: [E, 2]."""
    first, second = rows_of(matrix), matrix.indices
    once = first < second
    return np.stack([first[once], second[once]], axis=1).astype(np.int64)


def row_sums(matrix: csr_array) -> np.ndarray:
    """Return Σ_u M_vu: [N]."""
    return np.bincount(rows_of(matrix), weights=matrix.data, minlength=matrix.shape[0])


def with_data(matrix: csr_array, data: np.ndarray) -> csr_array:
    """Return a matrix with the same stored entries and other values [E]."""
    return csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def plus_diagonal(matrix: csr_array, diagonal: np.ndarray) -> csr_array:
    """Return M + diag(d); zeros are not stored."""
    return csr_array(matrix + sparse.diags_array(diagonal.astype(np.float64), format="csr"))


def only(matrix: csr_array, kept: np.ndarray) -> csr_array:
    """Return the matrix with only the stored entries where `kept` [E] is true."""
    before = np.append(0, np.cumsum(kept)).astype(matrix.indptr.dtype)  # how many are kept before each entry
    return csr_array((matrix.data[kept], matrix.indices[kept], before[matrix.indptr]), shape=matrix.shape)
