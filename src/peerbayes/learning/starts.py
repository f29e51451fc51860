"""The statistics S⁰ that peers begin with: which sums over all peers they take, and what follows from these.

    uniform        from the family alone
    marginal, ml   from YᵀΦ of the rows of all peers
    own            each peer's YᵀΦ, for strategies that average it

Where rows miss values that the family completes, Φ̃ stands for Φ, after a few steps of expectation-maximisation with a
sum over all peers between two of them. How numbers are summed is the driver's business: the simulator gossips, real
peers sum exactly along a tree.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator

import numpy as np

from peerbayes.learning.local_rows import LocalRows
from peerbayes.model.calibration import AGREED_STEPS, start_statistics

# Yields the name of a sum and the terms of every peer of a driver [N, …], is sent what all peers agreed on as each of
# them has it [N, …], and returns S⁰.
Sums = Generator[tuple[str, np.ndarray], np.ndarray, np.ndarray]


def agreement(
    start: str,
    own_start: bool,
    held: LocalRows,
    weight: float,
    gapped: bool,
    local: Callable[[], np.ndarray],
) -> Sums:
    """Return S⁰, after the sums that it takes: [1, C, K] where it needs none, else what the sum "start" gave [N, …].

    start      "uniform", "marginal" or "ml"
    own_start  whether each peer begins with its own YᵀΦ [N, C, K], whatever the start
    weight     m⁰ of the uniform start
    gapped     whether any peer has rows to complete
    local      returns every peer's YᵀΦ [N, C, K] where no row is to be completed
    """
    if start == "uniform" and not own_start:
        uniform = start_statistics("uniform", held.family, held.classes, weight)
        return uniform.astype(held.device.precision)[None]
    stats = (yield from _completed(held)) if gapped else local()
    return stats if own_start else (yield "start", stats)


def _completed(held: LocalRows) -> Sums:
    """Return every peer's YᵀΦ̃ [N, C, K] under the model that all agreed on; missing values follow it step by step.

    First peers agree on what is there of each column alone, then on the completed statistics of all steps but the last.
    """
    stats = held.expected(held.alone((yield "alone", held.apart())))
    for step in range(1, AGREED_STEPS):
        stats = held.expected((yield f"step {step}", stats))
    return stats


def summed_by(total: Callable[[str, np.ndarray], np.ndarray], sums: Sums) -> np.ndarray:
    """Return S⁰ of an agreement, whose sums are taken by a function of their name and terms [N, …] -> [N, …]."""
    try:
        request = next(sums)
        while True:
            request = sums.send(total(*request))
    except StopIteration as end:
        return end.value


async def awaited_from(total: Callable[[str, np.ndarray], Awaitable[np.ndarray]], sums: Sums) -> np.ndarray:
    """Return S⁰ of an agreement as `summed_by`, where others are waited for."""
    try:
        request = next(sums)
        while True:
            request = sums.send(await total(*request))
    except StopIteration as end:
        return end.value
