"""What follows from `Privacy` for one network: G, σ, the ledger. From public numbers only, the same for everybody.

    G = κB        σ = G·√(exposure·T)/μ        ρ = σ·√T·lr·C/(m_v·√n)

ρ is what noise leaves on a mean of a class, in standard deviations of the column, once all rounds are added up and the
network is averaged: T·lr is what costs, not the number of rounds. It says how much the error will rise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from peerbayes.families import Family
from peerbayes.privacy import accounting, edges
from peerbayes.privacy.accounting import Ledger
from peerbayes.privacy.coordinates import Coordinates
from peerbayes.privacy.mechanism import Mechanism
from peerbayes.privacy.projection import projection
from peerbayes.privacy.terms import AUTO, Privacy

# "auto": κ by what ρ would be at κ = 1, up to this. Clipping costs bias and saves noise. Measured with `exact` on
# pulsar, adult and letter: at ρ = 0.08, κ = 1 is best; from 0.1 to 0.23, 0.5 (by 0.01 to 0.1); at 0.3, 0.35 or less.
SHARES = ((0.09, 1.0), (0.25, 0.5), (math.inf, 0.35))

# The share of μ² that a start other than the uniform one is bought with.
START_SHARE = 0.2

# The share of μ² that location, scale and the number of rows are bought with.
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
    """Of the noise that neighbours share, in steps of the grid; 0: there is none."""
    start_clip: float = 0.0
    """G of the release that a start is bought with; 0: there is none."""
    start_sigma: int = 0
    """σ of that release, in steps of the grid."""

    @property
    def sigma(self) -> float:
        """σ of a round, in the coordinates h."""
        return math.ldexp(self.mechanism.sigma, -self.mechanism.bits)

    def spread(self, neighbours: int, boost: float = 1.0) -> float:
        """Standard deviation of what a round's noise can add to an entry of a message, at most.

        Entries of φ are sums of up to three of h, with weights whose squares add up to 3; links share noise, too.
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
    """The scheme of a network.

    terms          what is promised
    family         with its layout
    classes        C
    rows           of a peer, on average: lr·m⁰
    peers          n
    rounds         of messages, each of which carries one release of every peer
    lr             the learning rate, by which the start weighs rows/lr
    network        [N, N] who hears whom; needed for edge noise
    never_missing  [Dd] which discrete columns every row has; None: all
    bought_start   whether the start is asked of the rows
    bought_units   whether location and scale of columns, or the number of rows, are: see `units`
    """
    hidden = 1.0
    if terms.edge_noise:
        if network is None:
            raise ValueError("edge_noise depends on who hears whom; name the network")
        edges.refuse_network(network)
        hidden = edges.exposure(network, terms.edge_noise, terms.colluders)
    coordinates = Coordinates(family)
    squared = accounting.mu_of(terms.epsilon, terms.delta) ** 2
    first = START_SHARE * squared if bought_start else 0.0
    units = UNITS_SHARE * squared if bought_units else 0.0
    each = (squared - first - units) / rounds
    unit = coordinates.length * math.sqrt(hidden / each)  # σ at κ = 1
    rho = unit * math.sqrt(rounds) * lr * classes / (rows * math.sqrt(peers))
    chosen = next(share for most, share in SHARES if rho <= most)
    share = chosen if terms.clip == AUTO else float(terms.clip)
    plain = Mechanism(
        coordinates, projection(coordinates, never_missing), share * coordinates.length, terms.bound, 1
    )
    mechanism = Mechanism(
        coordinates, plain.projection, plain.clip, terms.bound, plain.steps_of(share * unit)
    )
    edge_sigma = math.ceil(terms.edge_noise * mechanism.sigma)
    start_clip = coordinates.length if bought_start else 0.0
    start_sigma = plain.steps_of(start_clip / math.sqrt(first)) if bought_start else 0
    numbers = classes * family.size * (rounds + 1)
    if network is not None and terms.edge_noise:
        numbers *= peers + network.nnz // 2  # every noise that a curious peer sees a part of
    least = min(value for value in (mechanism.sigma, start_sigma) if value)
    if accounting.discretisation(least, numbers) > accounting.DISCRETE / 2:  # the other half is for `units`
        raise ValueError(
            f"{numbers:,} numbers with noise of {least:,} steps of the grid: that the noise is discrete would cost "
            f"more than the {accounting.DISCRETE} set aside. Use a smaller epsilon or bound, or a larger clip"
        )
    ledger = Ledger(terms.epsilon, terms.delta, rounds, each, first + units)
    return Scheme(terms, mechanism, ledger, rho * share, share, edge_sigma, start_clip, start_sigma)
