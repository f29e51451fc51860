"""Matrices of a network: its links, the weights by which messages are mixed, and how fast these mix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph, csr_array
from scipy.sparse.linalg import LinearOperator, eigs, eigsh, splu

from peerbayes.data.arguments import LARGEST, shown, whole
from peerbayes.errors import TopologyError

# --- adjacency matrices: built from links, checked, and changed entry by entry


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


# --- mixing weights of messages: row v holds those of node v, and sums to 1

# Exact diffusion is stable on modes with λ > −1/3. `stable` keeps λ ≥ 1 − 1.303 = −0.303, where a mode fades by 7 % a
# round; just inside the edge it would take hundreds of rounds.
LARGEST_LINK_SUM = 1.303


def neighbour_mean(adjacency: csr_array) -> csr_array:
    """Return D⁻¹A [N,N], the paper's: the mean of the neighbours without the node; itself if it has none."""
    degree = np.diff(adjacency.indptr)
    mean = with_data(adjacency, 1.0 / degree[rows_of(adjacency)])
    return plus_diagonal(mean, degree == 0)


def closed_mean(adjacency: csr_array) -> csr_array:
    """Return (D+I)⁻¹(A+I) [N,N]: the mean of the neighbours and the node itself."""
    share = 1.0 / (1.0 + np.diff(adjacency.indptr))
    return plus_diagonal(with_data(adjacency, share[rows_of(adjacency)]), share)


def metropolis(adjacency: csr_array) -> csr_array:
    """Return w_vu = 1/(1 + max(deg_v, deg_u)) [N,N], w_vv the rest: symmetric, so columns sum to 1 too."""
    links = _metropolis_links(adjacency)
    return plus_diagonal(links, 1.0 - row_sums(links))


def stable(adjacency: csr_array) -> csr_array:
    """Return Metropolis weights [N,N], reduced where needed so that every eigenvalue is at least −0.303.

        d_v = Σ_u w_vu,   m_v = max_u (d_v + d_u),   w_vu ← w_vu·min(1, 1.303/max(m_v, m_u))

    Then d_v ≤ 1.303·d_v(before)/m_v, so d_v + d_u ≤ 1.303 for linked v, u. That sum bounds the largest eigenvalue of
    the weighted Laplacian L (Anderson and Morley), and the mixing matrix is I − L. A node needs two numbers of its
    neighbours. The diagonal is the rest to 1. Symmetric.
    """
    links = _metropolis_links(adjacency)
    rows, sums = rows_of(links), row_sums(links)
    linked = np.diff(links.indptr) > 0
    largest = np.zeros(len(sums))
    if links.nnz:  # reduceat takes no empty rows
        largest[linked] = np.maximum.reduceat(sums[rows] + sums[links.indices], links.indptr[:-1][linked])
    needed = np.maximum(largest[rows], largest[links.indices])
    links = with_data(links, links.data * np.minimum(1.0, LARGEST_LINK_SUM / needed))
    return plus_diagonal(links, 1.0 - row_sums(links))


def lose(mixing: csr_array, kept: np.ndarray) -> csr_array:
    """Return the mixing matrix [N,N] with lost messages: the weight of a lost one goes to the receiver's diagonal.

    kept: [E] booleans, one for each stored entry in CSR order, so rng.random(mixing.nnz) >= loss. Its values
    for diagonal entries are ignored: no node sends messages to itself.
    """
    return delay(mixing, kept, np.zeros(mixing.nnz, dtype=bool))[0]


def delay(mixing: csr_array, in_time: np.ndarray, late: np.ndarray) -> tuple[csr_array, csr_array]:
    """Return two matrices [N,N], for the messages of this round and, where links lag, for those of the previous round.

    in_time, late: [E] booleans, one for each stored entry in CSR order. The weight of a message that is neither goes to
    the receiver's diagonal of the first matrix; no node sends messages to itself.
    """
    for name, mask in (("in_time", in_time), ("late", late)):
        if np.shape(mask) != (mixing.nnz,) or np.asarray(mask).dtype != bool:
            raise TopologyError(
                f"{name} has shape {np.shape(mask)} and type {np.asarray(mask).dtype}; expected {mixing.nnz} "
                "booleans, one for each stored entry: rng.random(mixing.nnz) >= loss"
            )
    rows = rows_of(mixing)
    sent = rows != mixing.indices
    lost = sent & ~in_time & ~late
    moved = np.bincount(rows[lost], weights=mixing.data[lost], minlength=mixing.shape[0])
    return plus_diagonal(only(mixing, ~sent | in_time), moved), only(mixing, sent & late & ~in_time)


def _metropolis_links(adjacency: csr_array) -> csr_array:
    degree = np.diff(adjacency.indptr)
    larger = np.maximum(degree[rows_of(adjacency)], degree[adjacency.indices])
    return with_data(adjacency, 1.0 / (1.0 + larger))


# --- eigenvalues and distances of a network, which decide how fast it mixes

# All eigenvalues of a matrix this small take a fraction of a second; of a larger one, Lanczos iterations find one, in
# a Krylov space wide enough for grids, whose leading eigenvalues nearly coincide.
DENSE_NODES, KRYLOV = 500, 100

# Up to this many links a node (trees, rings, and a few more links) elimination has little fill-in: then shift-invert
# separates eigenvalues that Lanczos hardly can. The shift stays off the ends of the spectrum, where they may lie.
THIN, OFF = 1.05, 1e-9

DISTANCES_AT_ONCE = 2**22  # 32 MB of float64


def spectral_gap(mixing: csr_array) -> float:
    """Return 1 − |λ₂|, λ₂ of second largest magnitude: a round shrinks disagreement by |λ₂| in the long run.

    Rows sum to 1, so a − 1·1ᵀ/N has the eigenvalues of a, but for λ₁ = 1, which becomes 0.
    """
    return 1.0 - float(np.abs(_eigenvalues(mixing, "LM", 1.0)).max())


def smallest_eigenvalue(mixing: csr_array) -> float:
    """Return min λ: exact diffusion needs more than −1/3. The smallest real part, where messages got lost."""
    return float(np.real(_eigenvalues(mixing, "SR", 0.0)).min())


def _eigenvalues(mixing: csr_array, which: Literal["LM", "SR"], deflate: float) -> np.ndarray:
    """Return eigenvalues of a − deflate·1·1ᵀ/N: all of a small matrix, else the largest (LM) or smallest (SR)."""
    nodes, symmetric = mixing.shape[0], (mixing - mixing.T).nnz == 0
    if nodes <= DENSE_NODES:
        dense = mixing.toarray() - deflate / nodes
        return np.linalg.eigvalsh(dense) if symmetric else np.linalg.eigvals(dense)
    start = np.random.default_rng(0).normal(size=nodes)  # any vector, but always the same
    options: dict[str, Any] = {"k": 1, "v0": start, "return_eigenvectors": False}
    if symmetric and mixing.nnz <= (1 + 2 * THIN) * nodes:
        least = 2.0 * mixing.diagonal().min() - 1.0  # Gershgorin: no eigenvalue is smaller
        shifts = [least - OFF] if which == "SR" else [least - OFF, 1.0 + OFF]
        return np.concatenate([eigsh(mixing, sigma=s, OPinv=_inverse(mixing, s), **options) for s in shifts])
    deflated = LinearOperator(mixing.shape, lambda x: mixing @ x - deflate * x.mean(), dtype=np.float64)
    if symmetric:
        return eigsh(deflated, which="SA" if which == "SR" else "LM", ncv=KRYLOV, **options)
    return eigs(deflated, which=which, ncv=KRYLOV, **options)


def _inverse(mixing: csr_array, shift: float) -> LinearOperator:
    """Return (a − shift·I)⁻¹ on vectors of mean 0, which excludes λ₁ = 1 with eigenvector 1."""
    shifted = (mixing - shift * sparse.eye_array(mixing.shape[0])).tocsc()
    solve = splu(shifted, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True}).solve

    def centred(x: np.ndarray) -> np.ndarray:
        solved = solve(x - x.mean())
        return solved - solved.mean()

    return LinearOperator(mixing.shape, centred, dtype=np.float64)


def within_distance(adjacency: csr_array, farthest: int) -> np.ndarray:
    """Return the mean share of nodes within distance k of a node, for k = 0 … farthest: [farthest + 1]."""
    nodes, farthest = adjacency.shape[0], whole_number("farthest", farthest, 0)
    counts = np.zeros(farthest + 1)
    for distances in _distances(adjacency, farthest):
        counts += np.bincount(distances[np.isfinite(distances)].astype(np.int64), minlength=farthest + 1)
    return np.cumsum(counts) / nodes**2


def diameter(adjacency: csr_array) -> int:
    """Return the largest distance between two nodes of a connected network, by a search from every node."""
    check_connected(adjacency)
    return int(max(distances.max() for distances in _distances(adjacency, np.inf)))


def _distances(adjacency: csr_array, farthest: float) -> Iterator[np.ndarray]:
    """Yield blocks [nodes of the block, N] of distances; infinite beyond farthest."""
    nodes = adjacency.shape[0]
    block = max(1, DISTANCES_AT_ONCE // nodes)
    for start in range(0, nodes, block):
        sources = np.arange(start, min(start + block, nodes))
        yield csgraph.dijkstra(adjacency, indices=sources, unweighted=True, limit=farthest)
