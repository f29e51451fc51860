"""Medians over members that are found digit by digit: everybody has one vote, and few numbers are told in full.

A float64 is read as a whole number of 48 bits in the same order (its sign, its exponent and 36 bits of its fraction),
in four digits of twelve bits each. In each of four passes, those whose number begins with the digits that are known
vote for their next digit; the votes are added up, and the digit that holds the median is the next one known. A vote is
one, whatever its owner's number, so that a liar moves a median by one place in the order, and no farther.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

DIGITS, WIDTH = 4, 12
BITS = DIGITS * WIDTH

# Below the bits of a float64 that are kept.
DROPPED = 64 - BITS


def key_of(value: float) -> int:
    """Return a whole number of 48 bits; of two values, the larger has the larger one, or the same."""
    (bits,) = struct.unpack("<Q", struct.pack("<d", value + 0.0))  # -0.0 is 0.0
    ordered = bits ^ ((1 << 64) - 1) if bits >> 63 else bits | 1 << 63
    return int(ordered >> DROPPED)


def value_of(key: int) -> float:
    """Return the least value with this key."""
    ordered = key << DROPPED
    bits = ordered & ~(1 << 63) if ordered >> 63 else ordered ^ ((1 << 64) - 1)
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


@dataclass(frozen=True)
class Search:
    """A median of which the first digits are known."""

    known: int = 0
    """These digits, as one number."""
    digits: int = 0
    """How many they are."""
    rank: int = 0
    """The place of the median among the numbers that begin with them, from 1; 0: nobody has voted yet."""

    def vote(self, key: int) -> int | None:
        """Return the next digit of a number that begins with the known ones; None: it does not."""
        left = BITS - self.digits * WIDTH
        if key >> left != self.known:
            return None
        return key >> (left - WIDTH) & ((1 << WIDTH) - 1)

    def narrowed(self, votes: Mapping[int, int]) -> Search:
        """Return the search with one more digit: that of the median, the lower one of an even number."""
        total = sum(votes.values())
        rank = (total + 1) // 2 if self.digits == 0 else min(max(self.rank, 1), total)
        below = 0
        for digit in sorted(votes):
            if below < rank <= below + votes[digit]:
                return Search(self.known << WIDTH | digit, self.digits + 1, rank - below)
            below += votes[digit]
        return Search(self.known << WIDTH, self.digits + 1, 0)  # nobody voted

    @property
    def value(self) -> float:
        """The median, to 48 bits."""
        return value_of(self.known)


def lower_median(values: Iterable[float]) -> float:
    """Return what a search over these values ends with; there must be at least one."""
    keys = sorted(map(key_of, values))
    return value_of(keys[(len(keys) + 1) // 2 - 1])
