"""Noise that cancels between neighbours: DECOR (Allouah et al. 2024), GOPA (Sabater et al. 2022).

The two ends of a link share a key. Each round one adds Z and the other −Z, drawn from it with scale s = ratio·σ, beside
noise σ of its own. The sum over the network keeps σ only; whoever does not hold the keys sees more. Against a set U of
curious peers that see every message, know their own keys and no others, one row of v is hidden with

    μ² = G²·T·max_U max_{v∉U} [(σ²I + s²L_U)⁻¹]_vv        L_U: the Laplacian of the network without U

since Σ = σ²I + s²L_U is the covariance of the noise that is left, and the row moves one entry of it by G.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
from scipy.sparse import csgraph, csr_array

from peerbayes.privacy.noise import Source

FEWEST_NEIGHBOURS = 3

# Sets of colluders that are tried, and peers whose covariance is inverted: seconds, and a few hundred megabytes.
MOST_SETS, MOST_PEERS = 50_000, 4_096


def refuse_network(network: csr_array, name: Callable[[int], str] = lambda peer: f"peer {peer}") -> None:
    """Refuse a network [N, N] in which edge noise cannot help; the error says why, with the `name` of a peer."""
    degrees = np.diff(network.indptr)
    if degrees.size and degrees.min() < FEWEST_NEIGHBOURS:
        raise ValueError(
            f"{name(int(degrees.argmin()))} has {int(degrees.min())} neighbours; edge_noise needs at least "
            f"{FEWEST_NEIGHBOURS} neighbours for everybody, since whoever holds most of a peer's keys sees through its "
            "noise: add links, as in 'regular-6', or leave out edge_noise"
        )
    cut = _cut_peer(network)
    if cut is not None:
        raise ValueError(
            f"without {name(cut)} the network falls apart; edge_noise needs one that no single peer can cut in two: "
            "add links, as in 'regular-6', or leave out edge_noise"
        )


def _cut_peer(network: csr_array) -> int | None:
    """Return a peer without which the others are not connected; None: there is none."""
    peers = np.arange(network.shape[0])
    for peer in peers:
        others = peers != peer
        if csgraph.connected_components(network[others][:, others], directed=False)[0] > 1:
            return int(peer)
    return None


def exposure(network: csr_array, ratio: float, colluders: int = 1) -> float:
    """Return max_U max_v [(I + ratio²·L_U)⁻¹]_vv over all sets U of so many colluders: 1 without edge noise, exact.

    σ needed with edge noise is √exposure times σ without.
    """
    peers = network.shape[0]
    if not ratio:
        return 1.0
    if colluders > peers - 2:
        raise ValueError(f"colluders is {colluders} of {peers} peers; expected at least two honest ones")
    sets = math.comb(peers, colluders)
    if sets > MOST_SETS or peers > MOST_PEERS:
        raise ValueError(
            f"{colluders} colluders among {peers} peers are {sets:,} sets; up to {MOST_SETS:,} sets of up to "
            f"{MOST_PEERS:,} peers are tried. Use fewer colluders, or edge_noise=0"
        )
    first, second = links_of(network)
    signs = np.zeros((peers, first.size))  # [N, E]: +1 at one end of a link, −1 at the other
    signs[first, np.arange(first.size)], signs[second, np.arange(first.size)] = 1.0, -1.0
    inverse = np.linalg.inv(np.eye(peers) + ratio**2 * (signs @ signs.T))
    worst = 0.0
    for colluding in itertools.combinations(range(peers), colluders):
        # without the links of U: a downdate of as many ranks as there are of them
        lost = np.isin(first, colluding) | np.isin(second, colluding)
        ends = signs[:, lost]
        through = inverse @ ends  # [N, k]
        core = np.eye(ends.shape[1]) / ratio**2 - ends.T @ through
        diagonal = np.diagonal(inverse) + (through * np.linalg.solve(core, through.T).T).sum(axis=1)
        worst = max(worst, float(np.delete(diagonal, colluding).max()))
    return min(1.0, worst * (1 + 1e-9))  # an upper bound in spite of rounding


def links_of(network: csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Return the two ends of each link, the smaller first: two [E]."""
    first, second = network.nonzero()
    once = first < second
    return first[once], second[once]


def shared(draw: np.ndarray, network: csr_array) -> np.ndarray:
    """Return what each peer adds, given Z of each link: [E, ...] -> [N, ...] of int64. It sums to zero over peers."""
    first, second = links_of(network)
    added = np.zeros((network.shape[0], *draw.shape[1:]), dtype=np.int64)
    np.add.at(added, first, draw)
    np.subtract.at(added, second, draw)
    return added


def keyed(key: bytes, label: bytes) -> Source:
    """Return the key stream from which both ends of a link draw Z: ChaCha20 under HKDF-SHA256 of their shared key.

    `label` names the network, the run and the round; a label is never used twice with a key. Needs the extra `peer`.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    derived = HKDF(SHA256(), 32, None, b"peerbayes/edge-noise/1" + label).derive(key)
    stream = Cipher(algorithms.ChaCha20(derived, bytes(16)), None).encryptor()
    return lambda count: stream.update(bytes(count))
