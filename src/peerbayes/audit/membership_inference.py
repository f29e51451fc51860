"""Membership: whether a row is among a peer's, from the peer's first message alone.

Any neighbour knows M = R(S⁰) = (I − 11ᵀ/C) U, U_c = Σ_{i of class c} φ(x_i), and the class counts n_c. With the moments
of the population, μ_c and Σ_c, the sums are nearly normal:

    U_c ~ N(n_c μ_c, n_c Σ_c)            and if a row (x, y) is in it,    U_y ~ N(φ(x) + (n_y − 1) μ_y, (n_y − 1) Σ_y)

M is U up to a term common to all classes, t = Σφ/C, which is integrated out. The score of a row is the logarithm of
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

from peerbayes.audit.observation import plain_residual
from peerbayes.learning.strategies import Residual
from peerbayes.model.families import Family, Rows

# Variance added to every sum, so that constant features do no harm.
RIDGE = 1e-4

# Weight of the pooled covariance in that of each class: classes with few rows have no covariance of their own.
SHARED = 0.2

# False positive rate at which the true positive rate is reported.
FALSE_ALARMS = 0.01


@dataclass(frozen=True)
class Membership:
    """How well a test separates members from strangers."""

    auc: float
    """The probability that a member scores higher than a stranger: 0.5 is guessing, 1 is certainty."""
    tpr: float
    """True positive rate at a false positive rate of 1 %."""
    trials: int
    """Number of peers drawn."""


@dataclass(frozen=True, eq=False)
class Population:
    """Moments of φ in each class, and class shares: what an outsider may know."""

    mean: np.ndarray  # [C, K]
    covariance: np.ndarray  # [C, K, K]
    shares: np.ndarray  # [C]

    @classmethod
    def of(cls, features: np.ndarray, labels: np.ndarray, classes: int) -> Population:
        """Estimate the moments from rows of the population: Φ [n, K], classes [n]."""
        size = features.shape[1]
        mean, covariance = np.zeros((classes, size)), np.zeros((classes, size, size))
        overall = features.mean(axis=0)
        for c in range(classes):
            class_features = features[labels == c]
            mean[c] = class_features.mean(axis=0) if len(class_features) else overall
            if len(class_features) > 1:
                covariance[c] = np.cov(class_features, rowvar=False, bias=True)
        shares = np.bincount(labels, minlength=classes) / len(labels)
        within = np.einsum("c,cij->ij", shares, covariance)
        return cls(mean, (1.0 - SHARED) * covariance + SHARED * within, shares)

    def scores(
        self,
        message: np.ndarray,
        counts: np.ndarray,
        features: np.ndarray,
        labels: np.ndarray,
        noise: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return log p(M | row is in it) − log p(M | it is not): M [C, K], n [C], Φ [g, K], classes [g] -> [g].

        −∞ where the peer has no row of that class. `noise`: the covariance [K, K] of the noise in each class, with
        which counts are not known: only their sum counts.
        """
        scores, rows = np.full(len(labels), -np.inf), counts.sum()
        known = counts if noise is None else rows * self.shares
        base = self._sums(known, noise).log_density(message[None])[0]
        without_row = None if noise is None else self._sums((rows - 1) * self.shares, noise)
        for c in np.unique(labels):
            if noise is None and counts[c] < 1:
                continue
            sums = without_row or self._sums(counts - (np.arange(len(counts)) == c))
            scores[labels == c] = sums.log_density(_less(message, features[labels == c], c)) - base
        return scores

    def _sums(self, counts: np.ndarray, noise: np.ndarray | None = None) -> _Sums:
        spread = counts[:, None, None] * self.covariance + RIDGE * np.eye(self.mean.shape[1])
        if noise is not None:
            of_counts = counts * (1.0 - self.shares)
            spread += np.einsum("c,ci,cj->cij", of_counts, self.mean, self.mean) + noise
        return _Sums.of(counts[:, None] * self.mean, spread)


def _less(message: np.ndarray, features: np.ndarray, c: int) -> np.ndarray:
    """Return the message less one row of class c, for each of g rows: [C, K], [g, K] -> [g, C, K]."""
    reduced = np.repeat(message[None], len(features), axis=0)
    reduced[:, c] -= features
    return reduced


@dataclass(frozen=True, eq=False)
class _Sums:
    """The distribution of U, up to a term common to all classes."""

    mean: np.ndarray  # [C, K]
    precision: np.ndarray  # [C, K, K]
    common: tuple[np.ndarray, bool]  # factor of Σ_c precision
    constant: float

    @classmethod
    def of(cls, mean: np.ndarray, spread: np.ndarray) -> _Sums:
        precision = np.linalg.inv(spread)
        total_precision = precision.sum(axis=0)
        constant = -0.5 * float(np.linalg.slogdet(spread)[1].sum() + np.linalg.slogdet(total_precision)[1])
        return cls(mean, precision, cho_factor(total_precision), constant)

    def log_density(self, message: np.ndarray) -> np.ndarray:
        """Return log ∫ Π_c N(U_c = M_c + t) dt up to a constant: [g, C, K] -> [g]."""
        deviation = message - self.mean
        weighted = np.einsum("cij,gcj->gci", self.precision, deviation)
        square = np.einsum("gci,gci->g", deviation, weighted)
        total = weighted.sum(axis=1)
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
    """Measure how well a neighbour tells a peer's rows from others by its first message, from a uniform start.

    family        the family that defines φ
    rows, labels  the population from which peers, strangers and the moments known to the neighbour are drawn
    classes       number of classes, C
    held          rows per peer, m_v
    trials        number of peers drawn; up to `strangers` rows of each are tested
    strangers     rows of other peers that are tested beside them
    residual_of   returns the residual of a peer with given rows and labels; None: the plain residual
    noise         [K, K] covariance of the noise in each class's row, known to the neighbour; None: no noise
    seed          seed of the draws
    """
    count = len(labels)
    if not 1 <= held <= count // 4:
        raise ValueError(
            f"held is {held}; expected 1 to {count // 4}, a quarter of the {count} rows of the population"
        )
    rng = np.random.default_rng([seed, 7])
    features = np.asarray(family.features(rows))
    start = family.uniform(classes, max(1.0, 20.0 * held))[None]
    residual_for = residual_of or (
        lambda peer_rows, peer_labels: plain_residual(family, peer_rows, peer_labels, classes)
    )
    inside, outside = [], []
    for _ in range(trials):
        order = rng.permutation(count)
        members, outsiders, remaining = (
            order[:held],
            order[held : held + strangers],
            order[held + strangers :],
        )
        population = Population.of(features[remaining], labels[remaining], classes)
        message = np.asarray(
            residual_for(Rows(rows.values[members], rows.codes[members]), labels[members])(start.copy())
        )[0]
        tested = np.concatenate([members[:strangers], outsiders])
        counts = np.bincount(labels[members], minlength=classes)
        scores = population.scores(message, counts, features[tested], labels[tested], noise)
        inside.append(scores[: min(held, strangers)])
        outside.append(scores[min(held, strangers) :])
    return Membership(*_separation(np.concatenate(inside), np.concatenate(outside)), trials)


def auc_bound(mu: float) -> float:
    """Return the highest AUC of any test under μ-Gaussian differential privacy: Φ(μ/√2)."""
    return float(ndtr(mu / math.sqrt(2.0)))


def tpr_bound(mu: float, fpr: float = FALSE_ALARMS) -> float:
    """Return the highest true positive rate of any test at a false positive rate: Φ(Φ⁻¹(fpr) + μ)."""
    return float(ndtr(ndtri(fpr) + mu))


def _separation(inside: np.ndarray, outside: np.ndarray) -> tuple[float, float]:
    """Return the AUC (ties count half) and the true positive rate at a false positive rate of 1 %."""
    ranks = rankdata(np.concatenate([inside, outside]))
    pairs = inside.size * outside.size
    auc = (float(ranks[: inside.size].sum()) - inside.size * (inside.size + 1) / 2) / pairs
    threshold = np.quantile(outside, 1.0 - FALSE_ALARMS, method="higher")
    return auc, float((inside > threshold).mean())
