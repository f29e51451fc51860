"""Numbers of all peers added up to the same bits for everybody."""

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


# A neighbour's name, what came from it, and how many members lie behind it; FalseReport where that cannot be.
Check = Callable[[str, Any, int], None]


@dataclass(frozen=True)
class Phase:
    """One sum: its name, how a part of it is read, and of how many peers it then is, where it says so.

    With a `check`, members may lie: a part that is unreadable or fails it ends the agreement, for everybody.
    """

    name: str
    parse: Callable[[bytes], Any]
    peers: Callable[[Any], int] | None = None
    check: Check | None = None


Total = Callable[[Phase, Any], Awaitable[Any]]  # own value -> that of all peers


class Checks(Protocol):
    """What parts of a pooled sum are held to, where members may lie: see `reports`."""

    def size(self, neighbour: str, part: Sums, members: int) -> None: ...

    def numbers(self, neighbour: str, part: np.ndarray, members: int) -> None: ...


async def pooled(what: str, own: np.ndarray, total: Total, checks: Checks | None = None) -> np.ndarray:
    """The sum of everybody's numbers, to the same bits for all."""
    most = Sums(most=Fraction(float(np.abs(own).max(initial=0.0))))
    name = "bound" if what == "start" else f"bound of {what}"
    sized = Phase(name, Sums.named("most"), check=None if checks is None else checks.size)
    bound = await total(sized, most)
    power = grids.exponent(float(bound["most"]) or 1.0)

    def parse(content: bytes) -> Integers:
        if len(content) != 8 * own.size:
            raise RefusedMessage("wrong shape", f"{len(content):,} bytes instead of {8 * own.size:,}")
        values = np.frombuffer(content, dtype="<i8").reshape(own.shape)
        if (np.abs(values) >> grids.BITS).any():
            raise RefusedMessage("absurd magnitude", "an entry above what all peers together can have")
        return Integers(values)

    def check(neighbour: str, part: Integers, members: int) -> None:
        assert checks is not None
        checks.numbers(neighbour, grids.off_grid(part.values, power), members)

    phase = Phase(what, parse, check=None if checks is None else check)
    whole = await total(phase, Integers(grids.on_grid(own, power)))
    return grids.off_grid(whole.values, power)
