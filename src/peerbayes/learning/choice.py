"""The strategy `auto`: the choice of `tree-sum`, `relay` or `exact`, by what peers know and measure at the start."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from peerbayes.learning import relay
from peerbayes.learning.few_bytes import exchange_count
from peerbayes.learning.relay import DIFFERENT, Relay
from peerbayes.learning.strategies import Declaration, Exact, LearningSettings, NetworkFacts
from peerbayes.learning.tree_sum import TreeSum
from peerbayes.model import core

# Up to this share of all exchanges of messages as the mean distance between peers, delay costs less than mixing:
# `relay` fits.
NEAR = 1 / 9

# Where first residuals are mostly noise (few rows, many features), peers of `exact` fit their own rows first: below
# this correlation of neighbours' residuals, `relay` fits up to this share of them.
NOISY, NEAR_ENOUGH = 0.24, 1 / 6

TINY = float(np.finfo(float).tiny)


class Auto:
    """The choice between `relay` and `exact`: relay where distances are short or peers' data differ; or `tree-sum`.

    Where columns are crossed, statistics repeat each other, and only steps of adapted length and direction settle in a
    few dozen rounds: `tree-sum`, wherever settings and network allow it (docs/decisions/ga2m.md).

    Delay costs little where distances are short, and mixing costs much where data differ, or where a peer's few rows
    are mostly noise. But where data differ in two classes of counts, peers' residuals are opposite, S is a small
    difference of large sums, and what is late of them stays: relaying peers disagree three to five times as much.
    `exact` works with all settings, so it is the choice wherever they exclude `relay` or a measurement of rows.
    """

    name: ClassVar[str] = "auto"
    of_weights: ClassVar[bool] = False
    takes_old: ClassVar[bool] = False
    declaration: ClassVar[Declaration] = Exact.declaration

    @classmethod
    def missing(cls, settings: LearningSettings, facts: NetworkFacts) -> tuple[str, ...]:
        """Return ("difference",) where `relay` may be chosen and nothing is measured yet."""
        if _excluded(settings, facts) or _by_sums(settings, facts):
            return ()
        return Relay.missing(settings, facts)

    @classmethod
    def planned(cls, settings: LearningSettings, facts: NetworkFacts) -> Relay | Exact | TreeSum:
        """Return the chosen strategy: `exact` for as long as a measurement is missing."""
        return cls._decision(settings, facts)[0].planned(settings, facts)

    @classmethod
    def reason(cls, settings: LearningSettings, facts: NetworkFacts) -> str:
        """Return what is chosen and why, as a sentence for people: "exact: …"."""
        kind, reason = cls._decision(settings, facts)
        return f"{kind.name}: {reason}"

    @staticmethod
    def _decision(
        settings: LearningSettings, facts: NetworkFacts
    ) -> tuple[type[Relay | Exact | TreeSum], str]:
        """Return the class of the chosen strategy, and why."""
        if _by_sums(settings, facts):
            return TreeSum, "columns are crossed, so that statistics repeat each other and need adapted steps"
        if excluded := _excluded(settings, facts):
            return Exact, excluded
        assert facts.tree is not None
        hops = settings.rounds * exchange_count(
            settings.messages, settings.exchanges
        )  # that sums travel in a run
        distance = f"{facts.tree().mean_distance:.1f} hops apart on average in {hops} exchanges of messages"
        if facts.difference is not None and facts.difference > DIFFERENT:
            differ = f"peers' rows differ (F = {facts.difference:.2f})"
            if facts.classes == 2 and facts.counted:
                return Exact, f"{differ} in counts of two classes, which cancel, but not where they are late"
            return Relay, differ
        if facts.tree().mean_distance <= NEAR * hops:
            return Relay, f"peers are near each other ({distance})"
        if facts.difference is None or facts.likeness is None:
            return Exact, "nothing is measured yet"
        if facts.likeness < NOISY and facts.tree().mean_distance <= NEAR_ENOUGH * hops:
            return (
                Relay,
                f"few rows tell little of other peers' rows (correlation {facts.likeness:.2f}), {distance}",
            )
        return Exact, f"peers' rows are alike (F = {facts.difference:.2f}), and peers are {distance}"


def _by_sums(settings: LearningSettings, facts: NetworkFacts) -> bool:
    """Return whether columns are crossed, and settings and network allow sums over all peers in every round."""
    waits = settings.expects_loss or facts.absences  # for peers or messages that may not come
    return facts.crossed and not settings.sums_excluded and facts.tree is not None and not waits


def _excluded(settings: LearningSettings, facts: NetworkFacts) -> str:
    """Return why `relay` cannot be chosen, as a clause; empty: nothing excludes it."""
    if settings.excluded:
        return settings.excluded
    if settings.private:
        return "rows are private, so that nothing is measured of them"
    if facts.tree is None:
        return "links change from round to round, so that no spanning tree stays"
    if facts.absences:
        return "peers are absent in some rounds, and nobody sums for them"
    if facts.peers > relay.LARGEST_NETWORK:
        return (
            f"{facts.peers:,} peers are more than the {relay.LARGEST_NETWORK:,} whose distances are computed"
        )
    return ""


def first_residual(
    features: np.ndarray, labels: np.ndarray, weights: np.ndarray, joint: core.LogJoint = core.log_joint
) -> tuple[np.ndarray, np.ndarray]:
    """Return R_v at the common start, and w_v, its unbiased variance over the peer's rows: [..., C, K], [...].

    Φ [..., n, K], Y [..., n, C], W [..., C, K]; `joint`: the family's log joint.
    """
    weight = labels.sum(axis=-1)
    rows = np.maximum((weight > 0).sum(axis=-1), 1)
    step = labels - weight[..., None] * core.posterior(features, weights, joint)
    change = core.statistics(features, step)
    square = ((step**2).sum(axis=-1) * (features**2).sum(axis=-1)).sum(axis=-1)
    size = (change**2).sum(axis=(-2, -1))
    return change, np.where(rows > 1, rows / np.maximum(rows - 1, 1) * (square - size / rows), square)


class LinkSums(NamedTuple):
    """Sums over all links of what neighbours' first residuals say: how two facts of a network are measured."""

    apart: float  # Σ ‖R_v − R_u‖²
    noise: float  # Σ (w_v + w_u)
    size: float  # Σ (‖R_v‖² + ‖R_u‖²)

    @property
    def difference(self) -> float:
        """F = apart / noise: about 1 where all rows come from one distribution, well above 1 where data differ."""
        return self.apart / max(self.noise, TINY)

    @property
    def likeness(self) -> float:
        """ρ = 1 − apart / size, at least 0: the correlation of neighbours' residuals, so how far one tells another."""
        return max(0.0, 1.0 - self.apart / max(self.size, TINY))


def link_sums(change: np.ndarray, within: np.ndarray, links: csr_array) -> LinkSums:
    """Return the sums over links [N, N] of first residuals [N, C, K] and their variances [N]."""
    receiver, sender = links.nonzero()
    once = receiver < sender
    receiver, sender = receiver[once], sender[once]
    square = np.array([float((residual**2).sum()) for residual in change])
    apart = sum(float(((change[v] - change[u]) ** 2).sum()) for v, u in zip(receiver, sender, strict=True))
    return LinkSums(
        apart,
        float((within[receiver] + within[sender]).sum()),
        float((square[receiver] + square[sender]).sum()),
    )
