"""Discrete Gaussian noise, exact (Canonne, Kamath and Steinke 2020), and noise that cancels between neighbours.

    p(k) ∝ exp(−k²/2σ²) on the integers

Floating-point noise has gaps that reveal what it was added to. Here every decision compares random bits with a real
number exp(−γ), γ rational, and is the one that infinite precision would make: floats decide where their error cannot
matter, and more bits and more digits where it could (about once in 10¹¹ times).

Where the bits come from is an argument, `source(count) -> bytes`: `os.urandom` for real noise, a key stream for noise
that two peers share, a seeded generator in a simulation, which can be repeated and so protects nobody.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
from scipy.sparse import csgraph, csr_array

Source = Callable[[int], bytes]

# Floats are trusted beyond this distance from the threshold. Their error is below 2⁻⁴⁹: exp within an ulp, of an
# argument within 4 ulp, which counts γe^{−γ} < 1 times.
DOUBT = 2.0**-40

# Larger scales would not fit: noise is below 50σ (10⁻⁵⁴³ of the time it is not), and must be an exact float64.
LARGEST = 1 << 46


def discrete_gaussian(sigma: int, count: int, source: Source) -> np.ndarray:
    """Return `count` independent draws with parameter σ: [count] of int64.

    A discrete Laplace y of scale t = σ + 1 is accepted with probability exp(−(|y| − σ²/t)²/2σ²).
    """
    if not 1 <= sigma <= LARGEST:
        raise ValueError(f"sigma is {sigma}; expected a whole number of grid steps from 1 to 2^46")
    accepted, total = [], 0
    while total < count:
        drawn = _laplace(sigma + 1, int((count - total) * 1.4) + 16, source)
        # |y| − σ²/t = (|y| − σ + 1) − 1/t, the first term exactly
        distance = (np.abs(drawn) - (sigma - 1)).astype(np.float64) - 1.0 / (sigma + 1)

        def exact(index: int, drawn: np.ndarray = drawn) -> Fraction:
            distance = abs(int(drawn[index])) - Fraction(sigma * sigma, sigma + 1)
            return distance * distance / (2 * sigma * sigma)

        accepted.append(drawn[_bernoulli((distance / sigma) ** 2 / 2, exact, source)])
        total += accepted[-1].size
    return np.concatenate(accepted)[:count] if accepted else np.zeros(0, dtype=np.int64)


def _laplace(scale: int, count: int, source: Source) -> np.ndarray:
    """Return draws with p(k) ∝ exp(−|k|/scale), `count` or a few more: int64."""
    draws, total = [], 0
    while total < count:
        below = _uniform(scale, int((count - total) * 1.65) + 16, source)

        def exact(index: int, below: np.ndarray = below) -> Fraction:
            return Fraction(int(below[index]), scale)

        small = below[_bernoulli(below / scale, exact, source)]
        drawn = small + scale * _geometric(small.size, source)
        negative = np.frombuffer(source(drawn.size), dtype=np.uint8) & 1 == 1
        drawn = np.where(negative, -drawn, drawn)[~(negative & (drawn == 0))]  # zero has one sign only
        draws.append(drawn)
        total += drawn.size
    return np.concatenate(draws)


def _uniform(below: int, count: int, source: Source) -> np.ndarray:
    """Return uniform draws from 0 … below − 1, about `count`, by rejection from the next power of two."""
    mask = np.uint64((1 << (below - 1).bit_length()) - 1)
    share = (int(mask) + 1) / below
    drawn = _words(int(count * share) + 16, source) & mask
    return drawn[drawn < below].astype(np.int64)


def _geometric(count: int, source: Source) -> np.ndarray:
    """Return the lengths of runs of successes with probability 1/e: [count]."""
    runs, alive = np.zeros(count, dtype=np.int64), np.arange(count)
    while alive.size:
        alive = alive[_bernoulli(np.ones(alive.size), lambda _: Fraction(1), source)]
        runs[alive] += 1
    return runs


def _bernoulli(gamma: np.ndarray, exact: Callable[[int], Fraction], source: Source) -> np.ndarray:
    """Return True with probability exp(−γ), for each γ ≥ 0: [n] -> [n]; `exact(k)` is the k-th γ as a fraction."""
    words = _words(gamma.size, source)
    difference = words * 2.0**-64 - np.exp(-gamma)
    success = difference < 0
    for index in np.flatnonzero(np.abs(difference) <= DOUBT):
        success[index] = _settled(int(words[index]), exact(int(index)), source)
    return success


def _settled(word: int, gamma: Fraction, source: Source) -> bool:
    """Return whether a number in [0, 1) is below exp(−γ), given its first 64 bits; more bits are drawn as needed."""
    bits = 64
    while True:
        digits = bits // 3 + 20
        with localcontext() as context:
            context.prec, context.Emin = digits, -(10**9)
            threshold = Fraction((-Decimal(gamma.numerator) / Decimal(gamma.denominator)).exp())
        slack = Fraction(1, 10 ** (digits - 10))  # rounding of γ (below 10⁶) and of exp, with room
        if Fraction(word + 1, 1 << bits) <= threshold - slack:
            return True
        if Fraction(word, 1 << bits) >= threshold + slack:
            return False
        word = (word << 64) | int.from_bytes(source(8), "little")
        bits += 64


def _words(count: int, source: Source) -> np.ndarray:
    return np.frombuffer(source(8 * count), dtype="<u8")


# --- noise that cancels between neighbours: DECOR (Allouah et al. 2024), GOPA (Sabater et al. 2022)
# The two ends of a link share a key. Each round one adds Z and the other −Z, drawn from it with scale s = ratio·σ,
# beside noise σ of its own. The sum over the network keeps σ only; whoever does not hold the keys sees more. Against a
# set U of curious peers that see every message, know their own keys and no others, one row of v is hidden with
#
#     μ² = G²·T·max_U max_{v∉U} [(σ²I + s²L_U)⁻¹]_vv        L_U: the Laplacian of the network without U
#
# since Σ = σ²I + s²L_U is the covariance of the noise that is left, and the row moves one entry of it by G.

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
