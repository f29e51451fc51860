"""Mixing weights of a network, how fast they mix, and averages by gossip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph, csr_array
from scipy.sparse.linalg import LinearOperator, eigs, eigsh, splu

from peerbayes.errors import TopologyError
from peerbayes.network.links import (
    check_connected,
    only,
    plus_diagonal,
    row_sums,
    rows_of,
    whole_number,
    with_data,
)
from peerbayes.network.schedules import Schedule

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


# --- agreeing on a mean without a server: accelerated gossip over a network


def agree(network: Schedule, values: np.ndarray, rounds: int) -> np.ndarray:
    """Return every peer's estimate of the mean over peers after so many rounds: [N, M] -> [N, M].

    On a fixed network by Chebyshev's recursion, which needs the square root of the rounds of plain averaging:

        x_{k+1} = ω_{k+1} (W x_k − x_{k−1}) + x_{k−1},   ω_1 = 1, ω_2 = 1/(1 − λ²/2), ω_{k+1} = 1/(1 − λ² ω_k/4)

    λ is the second largest modulus of an eigenvalue of the Metropolis weights W. On a changing network, whose modes
    change too, by plain averaging.
    """
    if not network.static:
        for round_index in range(1, rounds + 1):
            values = metropolis(network.at(round_index)) @ values
        return values
    weights = metropolis(network.at(1))
    bound = 1.0 - spectral_gap(weights) if len(values) > 1 else 0.0
    before, now, omega = values, weights @ values, 1.0
    for round_index in range(2, rounds + 1):
        omega = 1.0 / (1.0 - bound**2 * (0.5 if round_index == 2 else omega / 4.0))
        before, now = now, omega * (weights @ now - before) + before
    return now if rounds else values
