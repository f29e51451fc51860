"""Add up numbers of all peers, to the same bits for everybody."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from peerbayes import grids
from peerbayes.peers.errors import RefusedMessage
from peerbayes.peers.summary import Sums


@dataclass(frozen=True, eq=False)
class Integers:
    """Statistics on a grid, so that they add up to the same bits in any order: [C, K] int64."""

    values: np.ndarray

    def __add__(self, other: Integers) -> Integers:
        if self.values.shape != other.values.shape:
            raise RefusedMessage("wrong shape", f"{other.values.shape} instead of {self.values.shape}")
        return Integers(self.values + other.values)

    def pack(self) -> bytes:
        return np.ascontiguousarray(self.values, dtype="<i8").tobytes()


# A neighbour's name, its sum, and the number of members behind it; raises FalseReport where the sum is impossible.
Check = Callable[[str, Any, int], None]


@dataclass(frozen=True)
class Phase:
    """One sum: its name, a parser of partial sums, and their number of peers where they contain it.

    With a `check`, members may lie: a partial sum that is unreadable or fails it ends the agreement for everybody.
    """

    name: str
    parse: Callable[[bytes], Any]
    peers: Callable[[Any], int] | None = None
    check: Check | None = None


Total = Callable[[Phase, Any], Awaitable[Any]]  # local value -> sum over all peers


class Checks(Protocol):
    """Checks of partial sums where members may lie: see `reports`."""

    def size(self, neighbour: str, received: Sums, members: int) -> None: ...

    def numbers(self, neighbour: str, received: np.ndarray, members: int) -> None: ...


async def pooled(name: str, local: np.ndarray, total: Total, checks: Checks | None = None) -> np.ndarray:
    """Return the sum of all peers' numbers, to the same bits for all."""
    largest = Sums(most=Fraction(float(np.abs(local).max(initial=0.0))))
    bound_name = "bound" if name == "start" else f"bound of {name}"
    sized = Phase(bound_name, Sums.named("most"), check=None if checks is None else checks.size)
    bound = await total(sized, largest)
    power = grids.exponent(float(bound["most"]) or 1.0)

    def parse(content: bytes) -> Integers:
        if len(content) != 8 * local.size:
            raise RefusedMessage("wrong shape", f"{len(content):,} bytes instead of {8 * local.size:,}")
        values = np.frombuffer(content, dtype="<i8").reshape(local.shape)
        if (np.abs(values) >> grids.BITS).any():
            raise RefusedMessage("absurd magnitude", "an entry larger than the sum of all peers can be")
        return Integers(values)

    def check(neighbour: str, received: Integers, members: int) -> None:
        assert checks is not None
        checks.numbers(neighbour, grids.off_grid(received.values, power), members)

    phase = Phase(name, parse, check=None if checks is None else check)
    summed = await total(phase, Integers(grids.on_grid(local, power)))
    return grids.off_grid(summed.values, power)
