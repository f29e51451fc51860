"""The cost of privacy, before anybody starts: σ, ρ, and what they mean in words.

A mean of a class, in standard deviations of its column, is off by about √(C/m_v) where a peer works alone with m_v
rows, and noise adds about ρ where peers work together. The rule of thumb for whether working together pays compares the
two; tests compare it with measurements. A simulation with rows like yours is more accurate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from peerbayes import network as topologies
from peerbayes.model import layout as layouts
from peerbayes.model.families import FAMILIES
from peerbayes.privacy import accounting
from peerbayes.privacy.accounting import AUTO, Privacy
from peerbayes.privacy.scheme import scheme

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
    if family not in FAMILIES or family == "bayes-net":
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


def judged(noise: float, local_error: float) -> str:
    """Return whether working together pays, by the rule of thumb: ρ/κ compared with √(C/m_v)."""
    return "yes" if noise <= PAYS * local_error else "about even" if noise <= PAYS_NOT * local_error else "no"
