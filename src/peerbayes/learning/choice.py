"""The strategy `auto`: the choice between `relay` and `exact`, by what peers know and measure at the start."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from scipy.sparse import csr_array

from peerbayes.learning import relay
from peerbayes.learning.relay import Relay
from peerbayes.learning.strategies import Declaration, Exact, LearningSettings, NetworkFacts
from peerbayes.model import core

# Up to this share of the rounds as the mean distance between peers, delay costs less than mixing: `relay` fits.
NEAR = 1 / 9

# Above this ratio of differences between neighbours to differences within peers, peers' data differ: `relay` fits.
DIFFERENT = 1.5


class Auto:
    """The choice between `relay` and `exact`: relay where distances are short or peers' data differ.

    Delay costs little where distances are short, and mixing costs much where data differ.
    """

    name: ClassVar[str] = "auto"
    of_weights: ClassVar[bool] = False
    takes_old: ClassVar[bool] = False
    declaration: ClassVar[Declaration] = Declaration(
        conserves=True,
        summed=False,
        exposes="strategy 'auto' chooses by what rows say at the start; use 'exact' or 'relay'",
    )

    @classmethod
    def missing(cls, settings: LearningSettings, facts: NetworkFacts) -> tuple[str, ...]:
        """Return ("difference",) where only a measurement at the start can tell."""
        undecided = cls._takes_tree(facts) and not cls._near(settings, facts)
        return ("difference",) if undecided and facts.difference is None else ()

    @classmethod
    def planned(cls, settings: LearningSettings, facts: NetworkFacts) -> Relay | Exact:
        """Return the chosen strategy: `exact` for as long as a measurement is missing."""
        if cls._takes_tree(facts) and (
            cls._near(settings, facts) or (facts.difference is not None and facts.difference > DIFFERENT)
        ):
            return Relay.planned(settings, facts)
        return Exact.planned(settings, facts)

    @staticmethod
    def _takes_tree(facts: NetworkFacts) -> bool:
        return facts.tree is not None and not facts.absences and facts.peers <= relay.LARGEST_NETWORK

    @staticmethod
    def _near(settings: LearningSettings, facts: NetworkFacts) -> bool:
        assert facts.tree is not None
        return bool(facts.tree().mean_distance <= NEAR * settings.rounds)


def first_residual(
    features: np.ndarray, labels: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return R_v at the common start, and w_v, its unbiased variance over the peer's rows: [..., C, K], [...].

    Φ [..., n, K], Y [..., n, C], W [..., C, K].
    """
    weight = labels.sum(axis=-1)
    rows = np.maximum((weight > 0).sum(axis=-1), 1)
    step = labels - weight[..., None] * core.posterior(features, weights)
    change = core.statistics(features, step)
    square = ((step**2).sum(axis=-1) * (features**2).sum(axis=-1)).sum(axis=-1)
    size = (change**2).sum(axis=(-2, -1))
    return change, np.where(rows > 1, rows / np.maximum(rows - 1, 1) * (square - size / rows), square)


def difference_ratio(change: np.ndarray, within: np.ndarray, links: csr_array) -> float:
    """Return F = Σ_links ‖R_v − R_u‖² / Σ_links (w_v + w_u), from the first residuals [N, C, K] and variances [N].

    About 1 where all peers' rows come from one distribution, well above 1 where their data differ.
    """
    receiver, sender = links.nonzero()
    between = sum(
        float(((change[v] - change[u]) ** 2).sum()) for v, u in zip(receiver, sender, strict=True) if v < u
    )
    return 2 * between / max(float((within[receiver] + within[sender]).sum()), float(np.finfo(float).tiny))
