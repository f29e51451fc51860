"""Agreeing on a mean without a server: accelerated gossip over a network."""

from __future__ import annotations

import numpy as np

from peerbayes.topologies import Schedule, metropolis, spectral_gap


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
