"""Eigenvalues and distances of a network, which decide how fast it mixes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph, csr_array
from scipy.sparse.linalg import LinearOperator, eigs, eigsh, splu

from peerbayes.topologies.links import check_connected, whole_number

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
