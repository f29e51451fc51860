"""Membership: whether a row is among a peer's, from the peer's first message alone.

Any neighbour knows M = R(S⁰) = (I − 11ᵀ/C) U, U_c = Σ_{i of class c} φ(x_i), and the class counts n_c. With the moments
of the population, μ_c and Σ_c, the sums are nearly normal:

    U_c ~ N(n_c μ_c, n_c Σ_c)            and if a row (x, y) is in it,    U_y ~ N(φ(x) + (n_y − 1) μ_y, (n_y − 1) Σ_y)

M is U up to what all classes have in common, t = Σφ/C, which is integrated out. The score of a row is the logarithm of
the likelihood ratio. Where M has noise, its covariance is added to every class's, and counts are not known: n_c is then
m·s_c of the population's shares s, and φ varies by s_c(Σ_c + (1 − s_c) μ_c μ_cᵀ) in class c.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import ndtr, ndtri
from scipy.stats import rankdata

from peerbayes.audit.observing import plain_residual
from peerbayes.families import Family, Rows
from peerbayes.strategies import Residual

# Variance that every sum is granted beside its own, so that features that never vary do no harm.
RIDGE = 1e-4

# Share of the variance of all classes in that of each: classes with few rows have no covariance of their own.
SHARED = 0.2

# How often a test may take a stranger for a member, for the share of members that it then finds.
FALSE_ALARMS = 0.01


@dataclass(frozen=True)
class Membership:
    """How well members are told from strangers."""

    auc: float
    """The probability that a member scores higher than a stranger: 0.5 is guessing, 1 is certainty."""
    tpr: float
    """Share of members that are found where 1 % of strangers are taken for members."""
    trials: int
    """Peers that were drawn."""


@dataclass(frozen=True, eq=False)
class Population:
    """Moments of φ in each class, and shares of classes: what an outsider may know."""

    mean: np.ndarray  # [C, K]
    covariance: np.ndarray  # [C, K, K]
    shares: np.ndarray  # [C]

    @classmethod
    def of(cls, features: np.ndarray, labels: np.ndarray, classes: int) -> Population:
        """From rows of the population: Φ [n, K], classes [n]."""
        size = features.shape[1]
        mean, covariance = np.zeros((classes, size)), np.zeros((classes, size, size))
        overall = features.mean(axis=0)
        for c in range(classes):
            own = features[labels == c]
            mean[c] = own.mean(axis=0) if len(own) else overall
            if len(own) > 1:
                covariance[c] = np.cov(own, rowvar=False, bias=True)
        shares = np.bincount(labels, minlength=classes) / len(labels)
        within = np.einsum("c,cij->ij", shares, covariance)
        return cls(mean, (1.0 - SHARED) * covariance + SHARED * within, shares)

    def scores(
        self, message: np.ndarray, counts: np.ndarray, features: np.ndarray, labels: np.ndarray
    ) -> np.ndarray:
        """log p(M | row is in it) − log p(M | it is not): M [C, K], n [C], Φ [g, K], classes [g] -> [g].

        −∞ where the peer has no row of that class.
        """
        found = np.full(len(labels), -np.inf)
        base = self._sums(counts).log_density(message[None])[0]
        for c in np.unique(labels):
            if counts[c] >= 1:
                others = self._sums(counts - (np.arange(len(counts)) == c))
                found[labels == c] = others.log_density(_less(message, features[labels == c], c)) - base
        return found

    def noisy_scores(
        self, message: np.ndarray, held: int, features: np.ndarray, labels: np.ndarray, noise: np.ndarray
    ) -> np.ndarray:
        """The same from a message with noise, whose covariance in a class is `noise` [K, K], of so many rows."""
        found = np.empty(len(labels))
        base = self._sums(held * self.shares, noise).log_density(message[None])[0]
        others = self._sums((held - 1) * self.shares, noise)
        for c in np.unique(labels):
            found[labels == c] = others.log_density(_less(message, features[labels == c], c)) - base
        return found

    def _sums(self, counts: np.ndarray, noise: np.ndarray | None = None) -> _Sums:
        spread = counts[:, None, None] * self.covariance + RIDGE * np.eye(self.mean.shape[1])
        if noise is not None:
            of_counts = counts * (1.0 - self.shares)
            spread += np.einsum("c,ci,cj->cij", of_counts, self.mean, self.mean) + noise
        return _Sums.of(counts[:, None] * self.mean, spread)


def _less(message: np.ndarray, features: np.ndarray, c: int) -> np.ndarray:
    """The message without one row of class c, for each of some rows: [C, K], [g, K] -> [g, C, K]."""
    left = np.repeat(message[None], len(features), axis=0)
    left[:, c] -= features
    return left


@dataclass(frozen=True, eq=False)
class _Sums:
    """The distribution of U, up to what all classes have in common."""

    mean: np.ndarray  # [C, K]
    precision: np.ndarray  # [C, K, K]
    common: tuple[np.ndarray, bool]  # factor of Σ_c precision
    constant: float

    @classmethod
    def of(cls, mean: np.ndarray, spread: np.ndarray) -> _Sums:
        precision = np.linalg.inv(spread)
        together = precision.sum(axis=0)
        constant = -0.5 * float(np.linalg.slogdet(spread)[1].sum() + np.linalg.slogdet(together)[1])
        return cls(mean, precision, cho_factor(together), constant)

    def log_density(self, message: np.ndarray) -> np.ndarray:
        """log ∫ Π_c N(U_c = M_c + t) dt, but for a constant: [g, C, K] -> [g]."""
        apart = message - self.mean
        pulled = np.einsum("cij,gcj->gci", self.precision, apart)
        square = np.einsum("gci,gci->g", apart, pulled)
        total = pulled.sum(axis=1)
        return self.constant - 0.5 * (
            square - np.einsum("gi,gi->g", total, cho_solve(self.common, total.T).T)
        )


def membership(
    family: Family,
    rows: Rows,
    labels: np.ndarray,
    classes: int,
    held: int,
    *,
    trials: int = 200,
    strangers: int = 20,
    residual_of: Callable[[Rows, np.ndarray], Residual] | None = None,
    noise: np.ndarray | None = None,
    seed: int = 0,
) -> Membership:
    """How well a neighbour tells members of a peer from strangers by its first message, from a uniform start.

    family        whose φ it is
    rows, labels  a population: peers, strangers and the moments that the neighbour knows are drawn from it
    classes       C
    held          rows of a peer, m_v
    trials        peers that are drawn; of each, up to `strangers` of its rows are tested
    strangers     rows of others that are tested beside them
    residual_of   what answers for a peer with some rows and classes: a residual; None: its own
    noise         [K, K] covariance of the noise in a class's row of the answer, which the neighbour knows; None: none
    seed          of what is drawn
    """
    count = len(labels)
    if not 1 <= held <= count // 4:
        raise ValueError(
            f"held is {held}; expected 1 to {count // 4}, a quarter of the {count} rows of the population"
        )
    rng = np.random.default_rng([seed, 7])
    features = np.asarray(family.features(rows))
    start = family.uniform(classes, max(1.0, 20.0 * held))[None]
    answer = residual_of or (lambda part, own: plain_residual(family, part, own, classes))
    inside, outside = [], []
    for _ in range(trials):
        order = rng.permutation(count)
        mine, others, rest = order[:held], order[held : held + strangers], order[held + strangers :]
        known = Population.of(features[rest], labels[rest], classes)
        message = np.asarray(answer(Rows(rows.values[mine], rows.codes[mine]), labels[mine])(start.copy()))[0]
        tested = np.concatenate([mine[:strangers], others])
        if noise is None:
            counts = np.bincount(labels[mine], minlength=classes)
            scores = known.scores(message, counts, features[tested], labels[tested])
        else:
            scores = known.noisy_scores(message, held, features[tested], labels[tested], noise)
        inside.append(scores[: min(held, strangers)])
        outside.append(scores[min(held, strangers) :])
    return Membership(*_told_apart(np.concatenate(inside), np.concatenate(outside)), trials)


def auc_bound(mu: float) -> float:
    """The highest AUC of any test under μ-Gaussian differential privacy: Φ(μ/√2)."""
    return float(ndtr(mu / math.sqrt(2.0)))


def tpr_bound(mu: float, fpr: float = FALSE_ALARMS) -> float:
    """The largest share of members that any test finds at this rate of false alarms: Φ(Φ⁻¹(fpr) + μ)."""
    return float(ndtr(ndtri(fpr) + mu))


def _told_apart(inside: np.ndarray, outside: np.ndarray) -> tuple[float, float]:
    """AUC, and the share of members above all but 1 % of strangers; ties count half."""
    ranks = rankdata(np.concatenate([inside, outside]))
    pairs = inside.size * outside.size
    auc = (float(ranks[: inside.size].sum()) - inside.size * (inside.size + 1) / 2) / pairs
    threshold = np.quantile(outside, 1.0 - FALSE_ALARMS, method="higher")
    return auc, float((inside > threshold).mean())
