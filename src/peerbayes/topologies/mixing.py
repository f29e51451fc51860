"""Mixing weights of messages: row v holds those of node v, and sums to 1."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from peerbayes.errors import TopologyError
from peerbayes.topologies.links import only, plus_diagonal, row_sums, rows_of, with_data

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
