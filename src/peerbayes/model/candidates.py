"""The families that may be chosen by held-out rows, and the rule by which one is: alone, simulated and between peers.

    d_i = ℓ_i(best so far) − ℓ_i(candidate)          log losses of the same held-out rows, w_i how often a row counts
    better ⇔ mean(d) > CLEARLY · deviation(d) / √Σw  mean and deviation by w

Candidates are in the order of their size, so that a tie goes to the smaller one. The rule needs sums over rows alone:
Σw, Σ w ℓ_a and Σ w ℓ_a ℓ_b, which peers can add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

# The name under which peers leave the family open.
AUTO = "auto"

# A later candidate must be better by this share of the standard error of their difference: a tie goes to the smaller.
CLEARLY = 0.25


class Candidate(NamedTuple):
    """A family that may be chosen."""

    family: str
    """Its name, as peers would give it."""
    sentence: str
    """What it is, for people."""
    start: str = "ml"
    """The start that it can learn from over a network: see docs/decisions/starts.md."""
    in_bins: bool = False
    """Whether numbers go into bins, where nobody names another kind for their column."""


# In the order of their size.
CANDIDATES: dict[str, Candidate] = {
    "naive-bayes": Candidate("naive-bayes", "each column by itself, numbers as Gaussians", "uniform"),
    "lda": Candidate("lda", "Gaussian classes with one covariance"),
    "qda": Candidate("qda", "Gaussian classes with a covariance each"),
    "bins": Candidate("naive-bayes", "each column by itself, numbers in bins", "uniform", in_bins=True),
    "tan": Candidate("tan", "each column depends on one other"),
    "kdb": Candidate("kdb", "each column depends on up to two others"),
    "ga2m": Candidate("ga2m", "columns in bins, and pairs of them", "marginal", in_bins=True),
    "aode": Candidate("aode", "the mean of networks with one parent each, numbers in bins", in_bins=True),
}


class LossSums(NamedTuple):
    """Sums over held-out rows of the log losses ℓ_a of k candidates."""

    rows: float
    """Σw."""
    sums: np.ndarray
    """[k] Σ w ℓ_a."""
    products: np.ndarray
    """[k, k] Σ w ℓ_a ℓ_b."""

    @classmethod
    def of(cls, losses: Sequence[np.ndarray] | np.ndarray, weights: np.ndarray | None = None) -> LossSums:
        """Return the sums of losses [m] each and weights [m]; None: ones."""
        table = np.array(losses, dtype=np.float64)
        weighted = table if weights is None else table * weights
        rows = table.shape[1] if weights is None else float(weights.sum())
        return cls(float(rows), weighted.sum(axis=1), weighted @ table.T)

    @property
    def means(self) -> np.ndarray:
        """Mean log losses: [k]."""
        return self.sums / self.rows


def clearly_best(losses: LossSums) -> int:
    """Return the index of the candidate to take: see the rule above."""
    best = 0
    for other in range(1, losses.sums.size):
        mean = (losses.sums[best] - losses.sums[other]) / losses.rows
        square = (
            losses.products[best, best] - 2 * losses.products[best, other] + losses.products[other, other]
        )
        variance = max(0.0, square / losses.rows - mean**2)
        best = other if mean > CLEARLY * np.sqrt(variance / losses.rows) else best
    return best


def reason(chosen: str, means: Mapping[str, float], judges: str) -> str:
    """Return in a sentence why a candidate is taken, from the mean log losses of two or more of them.

    judges  which rows the losses are of, for instance "500 held-out rows"
    """
    second = min((name for name in means if name != chosen), key=lambda name: means[name])
    return (
        f"{chosen} ({CANDIDATES[chosen].sentence}): log loss {means[chosen]:.4f} on {judges}; next is {second} with "
        f"{means[second]:.4f}"
    )
