"""Sums of integers, for real peers and the simulator alike: exact in any order, and in fixed point for secure sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from peerbayes import network

# --- sums that have the same bits in any order: numbers on a common grid, added up as integers
# Peers that add numbers along a tree each add in a different order; rounding would give each a different sum, and
# fingerprints and structures derived from it could not be compared.

SUM_BITS = 62  # of a sum: one for the sign, one to spare


def exponent(bound: float) -> int:
    """Return e of the grid 2⁻ᵉ on which numbers whose sum is at most `bound` in size stay below 2⁶²."""
    return SUM_BITS - math.frexp(bound * (1 + 1e-9))[1]


def on_grid(values: np.ndarray, power: int) -> np.ndarray:
    """Return numbers as integers on the grid 2^−power."""
    return np.rint(np.ldexp(values, power)).astype(np.int64)


def off_grid(integers: np.ndarray, power: int) -> np.ndarray:
    """Return integers of a grid as numbers."""
    return np.ldexp(integers.astype(np.float64), -power)


# Numbers of all peers up to which their terms are kept between two uses: 128 MB.
TERMS_KEPT = 1 << 24


def exact_sum(terms: Callable[[int], np.ndarray], peers: int) -> np.ndarray:
    """Return the sum over simulated peers as real ones have it, to the last bit; many terms are computed twice."""
    first = terms(0)
    kept = [first, *(terms(peer) for peer in range(1, peers))] if peers * first.size <= TERMS_KEPT else []
    own = kept.__getitem__ if kept else terms
    bound = math.fsum(float(np.abs(own(peer)).max(initial=0.0)) for peer in range(peers))
    power = exponent(bound or 1.0)
    total = on_grid(own(0), power)
    for peer in range(1, peers):
        total += on_grid(own(peer), power)
    return off_grid(total, power)


# --- numbers as words that are added modulo 2⁶⁴: two each, so that no sum of many sites overflows
#     x = (2³²·high + low) / 2⁴⁰          0 ≤ low < 2³²

FINE = 40  # bits behind the point
LOW = 32  # bits of the low word


def words_of_numbers(values: Iterable[float]) -> np.ndarray:
    """Return numbers as words, all high ones before all low ones, each number to 2⁻⁴¹: [n] -> [2n] of int64."""
    integers = [round(math.ldexp(float(value), FINE)) for value in values]
    high, low = [value >> LOW for value in integers], [value & ((1 << LOW) - 1) for value in integers]
    return np.array([*high, *low], dtype=np.int64)


def numbers_of_words(words: np.ndarray) -> np.ndarray:
    """Return the numbers of words that were added up: [2n] of int64 -> [n]."""
    high, low = np.split(words, 2)
    integers = ((int(a) << LOW) + int(b) for a, b in zip(high, low, strict=True))
    return np.array([value / (1 << FINE) for value in integers])


# --- sums of messages in fixed point, as secure sums need them
#     fix(x) = round(2³² x)  as int64          Σ_u fix(a_vu φ_u) / 2³²  is  Σ_u a_vu φ_u  to |A|·2⁻³³ an entry
#
# Integers modulo 2⁶⁴ can be masked perfectly, floats cannot; `peer.learning.masks` masks them, this module does the
# arithmetic. A receiver needs every message of its group A: if one is missing, it keeps its own.

BITS = 32  # behind the point
LARGEST = (
    2.0**30
)  # of a group's sum: 2⁶² in fixed point, far enough from 2⁶³ to see a sum that wrapped around

# Fewest neighbours of a receiver. A sum of one message is that message; of two, each sender can subtract its own.
MIN_GROUP = 3


def small_groups(neighbours: Mapping[str, Sequence[Any]]) -> str:
    """Return a clause about who has too few neighbours for secure sums, by the names of peers; empty: nobody."""
    small = [(name, others) for name, others in neighbours.items() if len(others) < MIN_GROUP]
    if not small:
        return ""
    name, others = small[0]
    further = f", and {len(small) - 1} more peers have too few" if len(small) > 1 else ""
    return f"{name} has {len(others)} neighbours ({', '.join(map(str, others)) or 'nobody'}){further}"


def fixed(values: np.ndarray, members: int) -> np.ndarray:
    """Return round(2³² x) as int64, for a sum over `members` of a group; ValueError from 2³⁰/members on."""
    largest = float(np.abs(values).max(initial=0.0))
    if not largest < LARGEST / members:  # also where it is NaN
        raise ValueError(
            f"an entry is {largest:.3g}; a secure sum of {members} messages takes less than {LARGEST / members:.3g}, "
            "to fit into 64 bits"
        )
    return np.rint(np.asarray(values, dtype=np.float64) * 2.0**BITS).astype(np.int64)


def unfixed(total: np.ndarray) -> np.ndarray:
    """Return a sum in fixed point as float64; unsigned words are taken modulo 2⁶⁴."""
    return total.astype(np.int64).astype(np.float64) * 2.0**-BITS


def rounding(members: int, terms: int) -> float:
    """Return the largest rounding error of a sum of `terms` entries of a group's sum: each message is off by 2⁻³³."""
    return members * terms * 2.0 ** -(BITS + 1)


def projected(
    total: np.ndarray, message: np.ndarray, share: float, conserved: bool, cells: Iterable[slice]
) -> np.ndarray:
    """Return the sum [..., C, K] projected onto its invariants, which rounding to fixed point violates slightly.

        Σ_c total = share·Σ_c message          Σ_k∈cells total[c, k] = total[c, 0]

    message     the receiver's own message, which has the same class sums as every other
    share       Σ_u a_vu over the summed messages
    conserved   whether class sums are conserved
    cells       columns of φ of each discrete feature that is never missing

    `exact` integrates its input twice; over many rounds the rounding would show in its invariants. Both steps take the
    nearest matrix, and the second does not change class sums.
    """
    if conserved:
        off = total.sum(axis=-2, keepdims=True) - share * message.sum(axis=-2, keepdims=True)
        total = total - off / total.shape[-2]
    for columns in cells:
        off = total[..., columns].sum(axis=-1, keepdims=True) - total[..., :1]
        total[..., columns] -= off / (columns.stop - columns.start)
    return total


@dataclass(frozen=True, eq=False)
class SecureSums:
    """Secure sums at every simulated receiver, given the network that all agreed on."""

    links: csr_array  # [N, N]
    mixing: str  # the name of the weights a
    conserved: bool
    cells: tuple[slice, ...] = ()

    @cached_property
    def weights(self) -> csr_array:
        """The mixing weights a: [N, N]."""
        return getattr(network, self.mixing)(self.links)

    def mixed(self, present: csr_array, delivered: np.ndarray | None, message: np.ndarray) -> np.ndarray:
        """Return a_vv φ_v + Σ_u a_vu φ_u in fixed point, or φ_v if a message is missing: [N, …, C, K] -> [N, …, C, K].

        present     the links of this round [N, N]: absent peers have none
        delivered   which stored entries of `weights` deliver a message in time [E]; None: all
        """
        weights, mixed = self.weights, message.copy()
        all_present = np.diff(present.indptr) == np.diff(self.links.indptr)
        for peer in np.flatnonzero(all_present):
            entries = np.arange(weights.indptr[peer], weights.indptr[peer + 1])
            entries = entries[weights.indices[entries] != peer]
            if delivered is not None and not delivered[entries].all():
                continue
            total = np.zeros(message.shape[1:], dtype=np.int64)
            for entry in entries:
                total += fixed(weights.data[entry] * message[weights.indices[entry]], entries.size)
            share = float(sum(weights.data[entries]))
            summed = projected(unfixed(total), message[peer], share, self.conserved, self.cells)
            mixed[peer] = (1.0 - share) * message[peer] + summed
        return mixed
