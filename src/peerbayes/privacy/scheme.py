"""The scheme of one network that follows from `Privacy`: G, σ, the ledger. From public numbers only, equal for all.

    G = κB        σ = G·√(exposure·T)/μ        ρ = σ·√T·lr·C/(m_v·√n)

ρ is the error that noise leaves in a mean of a class, in standard deviations of the column, once all rounds are summed
and the network is averaged: T·lr determines the cost, not the number of rounds. It predicts how much the error rises.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from peerbayes.model.families import Family
from peerbayes.privacy import accounting, edge_noise
from peerbayes.privacy.accounting import AUTO, Ledger, Privacy
from peerbayes.privacy.mechanism import Coordinates, Mechanism, projection

# "auto": (ρ at κ = 1 up to which it is chosen, κ). Clipping costs bias and saves noise. Measured with `exact` on
# pulsar, adult and letter: at ρ = 0.08, κ = 1 is best; from 0.1 to 0.23, 0.5 (by 0.01 to 0.1); at 0.3, 0.35 or less.
SHARES = ((0.09, 1.0), (0.25, 0.5), (math.inf, 0.35))

# The share of μ² that is spent on a start other than the uniform one.
START_SHARE = 0.2

# The share of μ² that is spent on location, scale and the number of rows.
UNITS_SHARE = 0.05


@dataclass(frozen=True, eq=False)
class Scheme:
    """How a network keeps its promise."""

    terms: Privacy
    mechanism: Mechanism
    ledger: Ledger
    rho: float
    share: float
    """κ."""
    edge_sigma: int = 0
    """σ of the noise that neighbours share, in steps of the grid; 0: there is none."""
    start_clip: float = 0.0
    """G of the release for the start; 0: there is none."""
    start_sigma: int = 0
    """σ of that release, in steps of the grid."""

    @property
    def sigma(self) -> float:
        """Return σ of a round, in the coordinates h."""
        return math.ldexp(self.mechanism.sigma, -self.mechanism.bits)

    def spread(self, neighbours: int, boost: float = 1.0) -> float:
        """Return an upper bound on the standard deviation of a round's noise in an entry of a message.

        Entries of φ are sums of up to three of h, with weights whose squares sum to 3; shared noise of links is added.
        """
        shared = math.ldexp(self.edge_sigma, -self.mechanism.bits)
        return math.sqrt(3.0 * (self.sigma**2 + neighbours * shared**2)) * boost


def scheme(
    terms: Privacy,
    family: Family,
    classes: int,
    rows: float,
    peers: int,
    rounds: int,
    lr: float,
    network: csr_array | None = None,
    never_missing: np.ndarray | None = None,
    bought_start: bool = False,
    bought_units: bool = False,
) -> Scheme:
    """Return the scheme of a network.

    terms          what is promised
    family         with its layout
    classes        C
    rows           of a peer, on average: lr·m⁰
    peers          n
    rounds         of messages, each of which carries one release of every peer
    lr             the learning rate, by which the start weighs rows/lr
    network        [N, N] who hears whom; needed for edge noise
    never_missing  [Dd] which discrete columns every row has; None: all
    bought_start   whether the start is estimated from the rows
    bought_units   whether location and scale of columns, or the number of rows, are estimated: see `units`
    """
    exposure = 1.0
    if terms.edge_noise:
        if network is None:
            raise ValueError("edge_noise depends on who hears whom; give the network")
        edge_noise.refuse_network(network)
        exposure = edge_noise.exposure(network, terms.edge_noise, terms.colluders)
    coordinates = Coordinates(family)
    squared = accounting.mu_of(terms.epsilon, terms.delta) ** 2
    first = START_SHARE * squared if bought_start else 0.0
    units = UNITS_SHARE * squared if bought_units else 0.0
    per_round = (squared - first - units) / rounds
    unit = coordinates.length * math.sqrt(exposure / per_round)  # σ at κ = 1
    rho = unit * math.sqrt(rounds) * lr * classes / (rows * math.sqrt(peers))
    default_share = next(share for most, share in SHARES if rho <= most)
    share = default_share if terms.clip == AUTO else float(terms.clip)
    noiseless = Mechanism(
        coordinates, projection(coordinates, never_missing), share * coordinates.length, terms.bound, 1
    )
    mechanism = Mechanism(
        coordinates, noiseless.projection, noiseless.clip, terms.bound, noiseless.steps_of(share * unit)
    )
    edge_sigma = math.ceil(terms.edge_noise * mechanism.sigma)
    start_clip = coordinates.length if bought_start else 0.0
    start_sigma = noiseless.steps_of(start_clip / math.sqrt(first)) if bought_start else 0
    numbers = classes * family.size * (rounds + 1)
    if network is not None and terms.edge_noise:
        numbers *= peers + network.nnz // 2  # all noise of which a curious peer sees anything
    least = min(value for value in (mechanism.sigma, start_sigma) if value)
    if accounting.discretisation(least, numbers) > accounting.DISCRETE / 2:  # the other half is for `units`
        raise ValueError(
            f"{numbers:,} numbers with noise of {least:,} steps of the grid: that the noise is discrete would cost "
            f"more than the {accounting.DISCRETE} set aside. Use a smaller epsilon or bound, or a larger clip"
        )
    ledger = Ledger(terms.epsilon, terms.delta, rounds, per_round, first + units)
    return Scheme(terms, mechanism, ledger, rho * share, share, edge_sigma, start_clip, start_sigma)
