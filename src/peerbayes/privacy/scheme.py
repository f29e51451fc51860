"""The scheme of one network that follows from `Privacy` (G, σ, the ledger), and what it costs before anybody starts.

From public numbers only, equal for all:

    G = κB        σ = G·√(exposure·T)/μ        ρ = σ·√T·lr·C/(m_v·√n)

ρ is the error that noise leaves in a mean of a class, in standard deviations of the column, once all rounds are summed
and the network is averaged: T·lr determines the cost, not the number of rounds. It predicts how much the error rises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from peerbayes import network as topologies
from peerbayes.model import layout as layouts
from peerbayes.model.families import FAMILIES, Family
from peerbayes.privacy import accounting, noise
from peerbayes.privacy.accounting import AUTO, Ledger, Privacy
from peerbayes.privacy.mechanism import Coordinates, Mechanism, projection

# "auto": (ρ at κ = 1 up to which it is chosen, κ). Clipping costs bias and saves noise. Measured with `exact` on
# pulsar, adult and letter: at ρ = 0.08, κ = 1 is best; from 0.1 to 0.23, 0.5 (by 0.01 to 0.1); at 0.3, 0.35 or less.
SHARES = ((0.09, 1.0), (0.25, 0.5), (math.inf, 0.35))

# The share of μ² that is spent on a start other than the uniform one.
START_SHARE = 0.2

# The share of μ² that is spent on location, scale and the number of rows.
UNITS_SHARE = 0.05

# The share of μ² that is spent on figures of the data before a run: see `counts`.
FIGURES_SHARE = 0.02


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
    start_cost: float = 0.0
    """μ² of that release."""

    @property
    def sigma(self) -> float:
        """Return σ of a round, in the coordinates h."""
        return math.ldexp(self.mechanism.sigma, -self.mechanism.bits)

    def spread(self, neighbours: int, boost: float = 1.0) -> float:
        """Return an upper bound on the standard deviation of a round's noise in an entry of a message.

        Entries of φ are sums of up to four of h, see `Coordinates.stretch`; shared noise of links is added.
        """
        shared, stretch = (
            math.ldexp(self.edge_sigma, -self.mechanism.bits),
            self.mechanism.coordinates.stretch,
        )
        return math.sqrt(stretch * (self.sigma**2 + neighbours * shared**2)) * boost


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
    bought_structure: bool = False,
    bought_figures: bool = False,
) -> Scheme:
    """Return the scheme of a network.

    terms             what is promised
    family            with its layout
    classes           C
    rows              of a peer, on average: lr·m⁰
    peers             n
    rounds            of messages, each of which carries one release of every peer
    lr                the learning rate, by which the start weighs rows/lr
    network           [N, N] who hears whom; needed for edge noise
    never_missing     [Dd] which discrete columns every row has; None: all
    bought_start      whether the start is estimated from the rows
    bought_units      whether location and scale of columns, or the number of rows, are estimated: see `units`
    bought_structure  whether links or crosses of columns are: see `pair_tables`
    bought_figures    whether numbers of rows, classes and missing values are: see `counts`
    """
    exposure = 1.0
    if terms.edge_noise:
        if network is None:
            raise ValueError("edge_noise depends on who hears whom; give the network")
        noise.refuse_network(network)
        exposure = noise.exposure(network, terms.edge_noise, terms.colluders)
    coordinates = Coordinates(family)
    squared = accounting.mu_of(terms.epsilon, terms.delta) ** 2
    first = START_SHARE * squared if bought_start else 0.0
    units = UNITS_SHARE * squared if bought_units else 0.0
    structure = structure_cost(terms) if bought_structure else 0.0
    figures = figures_cost(terms) if bought_figures else 0.0
    per_round = (squared - first - units - structure - figures) / rounds
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
    # A quarter each is for `units` and for `pair_tables`, and a hundredth for `counts`.
    if accounting.discretisation(least, numbers) > accounting.DISCRETE * 0.49:
        raise ValueError(
            f"{numbers:,} numbers with noise of {least:,} steps of the grid: that the noise is discrete would cost "
            f"more than the {accounting.DISCRETE} set aside. Use a smaller epsilon or bound, or a larger clip"
        )
    before = first + units + structure + figures
    ledger = Ledger(terms.epsilon, terms.delta, rounds, per_round, before)
    return Scheme(terms, mechanism, ledger, rho * share, share, edge_sigma, start_clip, start_sigma, first)


def structure_cost(terms: Privacy) -> float:
    """Return μ² of the release that links or crosses of columns are learned from."""
    return terms.structure_share * accounting.mu_of(terms.epsilon, terms.delta) ** 2


def figures_cost(terms: Privacy) -> float:
    """Return μ² of the release of numbers of rows, classes and missing values."""
    return FIGURES_SHARE * accounting.mu_of(terms.epsilon, terms.delta) ** 2


# --- the cost of privacy, before anybody starts: σ, ρ, and what they mean in words
# A mean of a class, in standard deviations of its column, is off by about √(C/m_v) where a peer works alone with m_v
# rows, and noise adds about ρ where peers work together. The rule of thumb for whether working together pays compares
# the two; tests compare it with measurements. A simulation with rows like yours is more accurate.

# How much the error rose at a ρ/κ up to this, on pulsar, adult, letter and mnist with naive Bayes and `exact`. ρ/κ is
# the noise before rows are clipped any shorter: what that saves in noise it costs in bias, so ρ/κ predicts more than ρ.
RISES = (
    (0.05, "by up to 0.01"),
    (0.10, "by up to 0.025"),
    (0.15, "by 0.02 to 0.04"),
    (0.30, "by 0.03 to 0.07"),
    (0.50, "by 0.06 to 0.13"),
    (1.00, "by 0.2 to 0.3"),
    (math.inf, "beyond use"),
)

# Ratios of ρ/κ to √(C/m_v): up to the first working together paid, above the second it did not.
PAYS, PAYS_NOT = 1.5, 2.0


@dataclass(frozen=True)
class Plan:
    """The cost of privacy in one setting."""

    sigma: float
    """Noise of each number of each release, in the coordinates in which a typical row has length `length`."""
    clip: float
    """G: how far one row moves a release at most."""
    length: float
    """B: how long a typical row is."""
    multiplier: float
    """σ/G."""
    mu: float
    """What all releases together reveal: as much as telling apart two normal distributions at this distance."""
    epsilon: float
    """ε spent after all rounds."""
    delta: float
    rho: float
    """The error that noise leaves in a mean of a class, in standard deviations."""
    share: float
    """κ: how long a row may be, relative to a typical one."""
    alone: float
    """The error of a mean of a class from a peer's own rows: √(C/m_v)."""
    exposure: float
    """The share of σ² that edge noise leaves necessary; 1: there is none."""
    membership: float
    """No membership test has a larger area under its ROC curve (0.5: guessing)."""
    rise: str
    """How much the error is expected to rise, in words."""
    pays: str
    """Whether working together still pays against working alone: "yes", "about even" or "no"."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def plan(
    rows: float,
    peers: int,
    classes: int,
    features: int,
    categories: Sequence[int] = (),
    epsilon: float = 4.0,
    delta: float = 1e-5,
    rounds: int = 64,
    lr: float = 0.05,
    clip: float | str = AUTO,
    bound: float = 3.0,
    edge_noise: float = 0.0,
    colluders: int = 1,
    topology: Any = "regular-6",
    family: str = "naive-bayes",
    seed: int = 0,
) -> Plan:
    """Return the cost of privacy: no rows are needed, only how many there are.

    rows        of each peer
    peers       how many there are
    classes     of the label
    features    how many continuous columns
    categories  how many categories each discrete column has
    epsilon     the promise, over all rounds together
    delta       the probability with which it may fail
    rounds      of messages
    lr          the learning rate; rounds·lr is what noise grows with
    clip        κ, or "auto": see `Privacy`
    bound       standardised values are clipped to ±bound
    edge_noise  noise shared by neighbours, in addition to each peer's own; 0: none
    colluders   how many peers may pool what they know
    topology    who hears whom; only edge noise depends on it
    family      "naive-bayes", "qda" or "lda"
    seed        of a random topology
    """
    terms = Privacy(epsilon, delta, clip, bound, edge_noise, colluders)
    for name, value, least in (("rows", rows, 1), ("peers", peers, 1), ("classes", classes, 2),
                               ("features", features, 0), ("rounds", rounds, 1)):  # fmt: skip
        if value < least:
            raise ValueError(f"{name} is {value}; expected {least} or more")
    if any(size < 1 for size in categories) or not (features or len(categories)):
        raise ValueError(
            f"features is {features} and categories {list(categories)}; expected at least one column, and at least "
            "one category of each"
        )
    if not 0 < lr < math.inf:
        raise ValueError(f"lr is {lr}; expected a positive number (the paper's is 0.05)")
    if family not in FAMILIES or family in ("bayes-net", "aode"):
        raise ValueError(f"family is {family!r}; expected one of naive-bayes, qda, lda")
    network = None
    if edge_noise:
        network = topologies.schedule(topology, peers, np.random.default_rng(seed), None).at(1)
    layout = layouts.type_of(family)(continuous=features, cardinalities=tuple(categories))
    promised = scheme(terms, layout, classes, rows, peers, rounds, lr, network)
    mu, local_error = promised.ledger.mu(rounds), math.sqrt(classes / rows)
    limit, length = promised.mechanism.clip, promised.mechanism.coordinates.length
    return Plan(
        sigma=promised.sigma,
        clip=limit,
        length=length,
        multiplier=promised.sigma / limit,
        mu=mu,
        epsilon=promised.ledger.spent(rounds),
        delta=delta,
        rho=promised.rho,
        share=promised.share,
        alone=local_error,
        exposure=promised.ledger.each * (promised.sigma / limit) ** 2,
        membership=accounting.membership(mu),
        rise=next(text for most, text in RISES if promised.rho / promised.share <= most),
        pays=judged(promised.rho / promised.share, local_error),
    )


def judged(ratio: float, local_error: float) -> str:
    """Return whether working together pays, by the rule of thumb: ρ/κ compared with √(C/m_v)."""
    return "yes" if ratio <= PAYS * local_error else "about even" if ratio <= PAYS_NOT * local_error else "no"
