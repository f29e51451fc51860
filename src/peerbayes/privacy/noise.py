"""Discrete Gaussian noise: p(k) ∝ exp(−k²/2σ²) on the integers, exactly (Canonne, Kamath and Steinke 2020).

Floating-point noise has gaps that reveal what it was added to. Here every decision compares random bits with a real
number exp(−γ), γ rational, and is the one that infinite precision would make: floats decide where their error cannot
matter, and more bits and more digits where it could (about once in 10¹¹ times).

Where the bits come from is an argument, `source(count) -> bytes`: `os.urandom` for real noise, a key stream for noise
that two peers share, a seeded generator in a simulation, which can be repeated and so protects nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np

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
