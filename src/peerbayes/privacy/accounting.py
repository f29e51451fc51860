"""What is promised (ε, δ), and what each release spends of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from scipy.special import log_ndtr, ndtr

from peerbayes.data.declarations import (
    Kind,
    Setting,
    check_fields,
    described,
    real_number,
    whole_number,
)

# --- the promise of a network about one row: the value `Privacy`

AUTO = "auto"

# Noise and rows are whole numbers on grids of 64 bits, far too fine or too coarse for terms beyond these.
MOST = 1e12
LEAST_EDGE_NOISE = 1e-6


def _positive(hint: str) -> Kind:
    return real_number(f"a positive number up to {MOST:g}{hint}", above=0.0, most=MOST)


def _clip(name: str, value: Any) -> float | str:
    return (
        AUTO if isinstance(value, str) and value == AUTO else _positive(f', or "{AUTO}"').check(name, value)
    )


def _edge_noise(name: str, value: Any) -> float:
    plain = EDGE_NOISE.check(name, value)
    return real_number(EDGE_NOISE.expected, least=LEAST_EDGE_NOISE).check(name, value) if plain else 0.0


EDGE_NOISE = real_number("0 for none, or a number such as 3", least=0.0, most=1 / LEAST_EDGE_NOISE)


# fmt: off
@described
@dataclass(frozen=True)
class Privacy:
    """How much anybody may learn about one row, and how that is ensured.

    Whoever sees every message of a peer, and chooses what it hears, can tell whether a row was among its rows only as
    well as (epsilon, delta)-differential privacy allows. Adding or removing one row is what is hidden.
    """

    epsilon: float = Setting(
        4.0, _positive(" (4 is common, 1 strict, 8 lenient)"),
        "the most that anybody may learn about one row, over all rounds together; smaller is safer").field()
    delta: float = Setting(
        1e-5, real_number("a probability between 0 and 1, such as 1e-5", above=0.0, below=1.0),
        "the probability with which the promise may fail; far below one in the number of rows").field()
    clip: float | str = Setting(
        AUTO, Kind(_clip, _positive(f', or "{AUTO}"').expected, (float, int, str)),
        'how far a row may move the statistics, κ: by at most G = κB, B the length of a typical row; "auto": 1, and '
        "0.5 or 0.35 where noise dominates", option="row_clip").field()
    bound: float = Setting(
        3.0, _positive(" (3 standard deviations lose next to nothing)"),
        "standardised values are clipped to ±bound").field()
    edge_noise: float = Setting(
        0.0, replace(EDGE_NOISE, check=_edge_noise),
        "noise that neighbours add with opposite signs, besides each peer's own; 0: none. 3 is a good number").field()
    colluders: int = Setting(
        1, whole_number(1), "how many peers may pool what they know (only edge noise depends on it)").field()
    min_rows: int = Setting(50, whole_number(1), "a peer with fewer rows takes no part").field()
    structure_share: float = Setting(
        0.05, real_number("a share above 0 and up to 0.5", above=0.0, most=0.5),
        "share of the budget by which links or crosses of columns are learned (tan, kdb, ga2m), where the structure is "
        "not declared").field()

    def __post_init__(self) -> None:
        check_fields(self)
# fmt: on


# --- privacy accounting of releases: exact for Gaussian noise on all rows, round after round
# A release that one row moves by at most G (L2), with noise N(0, σ²I), tells two neighbouring datasets apart no
# better than N(0, 1) from N(μ, 1), μ = G/σ. Releases that depend on each other's outcomes compose exactly: μ² adds
# up, so T rounds are one with √T·μ (Dong, Roth and Su 2022). And μ is (ε, δ) by the formula of Balle and Wang (2018):
#
#     δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)
#
# The noise is discrete. On a grid of steps far below σ it differs from rounded continuous noise, which is
# post-processing, by next to nothing: see `discretisation`.

# ε set aside for the noise being discrete; `discretisation` is far below it for every grid in use.
DISCRETE = 1e-9

# What float64 may lose in summing μ² of a few thousand rounds.
ROUNDING = 1e-12

# Noise farther out than this many σ has probability below 10⁻³⁴⁰, and is neglected.
FARTHEST = 40.0


def delta_of(mu: float, epsilon: float) -> float:
    """Return δ(ε) of a Gaussian mechanism with ratio μ."""
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return float(math.exp(first) * -math.expm1(min(second - first, 0.0)))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the least ε for which a Gaussian mechanism with ratio μ is (ε, δ)-private; 0 without any release."""
    if mu <= 0 or delta_of(mu, 0.0) <= delta:
        return 0.0
    most = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1e-6  # by zero-concentrated privacy
    return _root(lambda epsilon: delta_of(mu, epsilon) - delta, 0.0, most, 1e-13)


@lru_cache(maxsize=64)
def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest μ that is (ε, δ)-private, less what the noise being discrete may cost."""
    epsilon = max(epsilon - DISCRETE, epsilon / 2)

    def excess(log_mu: float) -> float:
        return math.log(max(delta_of(math.exp(log_mu), epsilon), 1e-320)) - math.log(delta)

    low, high = -30.0, 5.0
    while excess(high) < 0:
        high += 5.0
    mu = math.exp(_root(excess, low, high, 1e-14))
    return mu * (1 - ROUNDING)


def _root(function: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """Return the root of a function. SciPy's solvers are slow to import, and without noise nobody needs them."""
    from scipy.optimize import brentq

    return float(brentq(function, low, high, xtol=tolerance, rtol=tolerance))


def multiplier(epsilon: float, delta: float, rounds: int = 1) -> float:
    """Return the noise multiplier z = σ/G of each of so many rounds."""
    return math.sqrt(rounds) / mu_of(epsilon, delta)


def discretisation(sigma: float, numbers: float) -> float:
    """Return a bound on what discrete noise costs in ε beyond continuous noise, for `numbers` entries in all releases.

    Rounding N(0, σ²), σ in steps of the grid, gives k the probability ∫ over [k − ½, k + ½] of its density, which
    is the density at k times 1 + (k²/σ² − 1)/24σ² + …; the discrete Gaussian gives it the density at k, but for a
    norming constant that differs by 2e^{−2π²σ²}. Within ±40σ the logarithms differ by at most (40² + 1)/24σ², and twice
    that for each number is what two neighbouring datasets can gain on top of ε.
    """
    return numbers * 2 * (FARTHEST**2 + 1) / (24 * sigma * sigma)


def membership(mu: float) -> float:
    """Return Φ(μ/√2): no membership test has a larger area under its ROC curve."""
    return float(ndtr(mu / math.sqrt(2)))


@dataclass(frozen=True)
class Ledger:
    """A peer's privacy budget and what releases cost: pure arithmetic on the number of rounds that were released."""

    epsilon: float
    delta: float
    rounds: int
    """The number of rounds that the budget is for."""
    each: float
    """μ² of a round."""
    first: float = 0.0
    """μ² of the releases before the first round."""

    def mu(self, released: int) -> float:
        """Return μ of everything released after so many rounds."""
        return math.sqrt(self.first + released * self.each)

    def spent(self, released: int) -> float:
        """Return ε of everything released after so many rounds."""
        mu = self.mu(released)
        return epsilon_of(mu, self.delta) + DISCRETE if mu > 0 else 0.0

    def fits(self, released: int) -> bool:
        """Return whether one more round may be released after so many."""
        limit = mu_of(self.epsilon, self.delta) * (1 + ROUNDING)
        return released < self.rounds and self.mu(released + 1) <= limit
