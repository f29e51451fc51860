"""The passive attack: rows that explain the residuals of many rounds, by least squares.

A leaf's neighbour knows R at statistics S_t of every round. With m rows of known classes (counts are exact),

    R_t = Σ_i (e_{y_i} − p_t(x_i)) φ(x_i)ᵀ,      p_t = softmax(θ(S_t) φ)

are C·K equations a round for the m·D unknown values: Levenberg and Marquardt's method from random starts, until a start
solves them. A discrete column is the softmax of free parameters. For naive Bayes without missing values.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from peerbayes.model import core
from peerbayes.model.families import NaiveBayes, Rows

# Largest number of equations: those of adjacent rounds are nearly the same, and each costs time.
EQUATIONS = 4000

# Squared misfit relative to that of R below which the equations are solved; and, per row, above which the first stage
# has ended in a spurious minimum.
SOLVED, HOPEFUL = 1e-20, 1e-2

# Powers by which small singular values of the rounds are raised, stage by stage, and the steps of each stage.
STAGES = ((0.0, 60), (0.25, 40), (0.5, 60), (0.75, 60))

# Smallest singular value relative to the first that is no rounding error; and the damping at which steps vanish.
RESOLVED, LARGEST_DAMPING = 1e-12, 1e16

# Standard deviation of a discrete column's free parameters about the logarithms of the class's cells, at the beginning.
UNDECIDED = 0.5


@dataclass(frozen=True, eq=False)
class Equations:
    """The residuals of several rounds as functions of the unknown rows."""

    family: NaiveBayes
    labels: np.ndarray  # [m]
    stats: np.ndarray  # [T, C, K]
    residuals: np.ndarray  # [T, C, K]

    @classmethod
    def of(
        cls, family: NaiveBayes, labels: np.ndarray, stats: np.ndarray, residuals: np.ndarray
    ) -> Equations:
        """Return the equations of as many rounds as can be used, evenly spread."""
        rounds = max(1, min(len(stats), EQUATIONS // residuals[0].size))
        chosen = np.unique(np.linspace(0, len(stats) - 1, rounds).round().astype(int))
        return cls(family, labels, stats[chosen], residuals[chosen])

    @property
    def unknown(self) -> int:
        """Number of free parameters per row: P."""
        return self.family.continuous + sum(self.family.cardinalities)

    @cached_property
    def _weights(self) -> np.ndarray:
        return np.asarray(self.family.weights(self.stats))  # [T, C, K]

    @cached_property
    def _classes(self) -> np.ndarray:
        return np.asarray(core.one_hot(self.labels, self.stats.shape[1]))  # [m, C]

    def features(self, free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return φ of the rows given by free parameters, and its derivatives: [m, P] -> [m, K], [m, K, P]."""
        d, rows = self.family.continuous, len(free)
        values = free[:, :d]
        slopes = np.zeros((rows, self.family.size, self.unknown))
        column = np.arange(d)
        slopes[:, 1 + column, column] = 1.0
        slopes[:, 1 + d + column, column] = 2.0 * values
        cells = []
        for offset, size in zip(self.family.offsets, self.family.cardinalities, strict=True):
            share = core.softmax(free[:, d + offset : d + offset + size])
            cells.append(share)
            first_cell = self.family.dense_size + int(offset)
            slopes[:, first_cell : first_cell + size, d + int(offset) : d + int(offset) + size] = (
                share[:, :, None] * np.eye(size) - share[:, :, None] * share[:, None, :]
            )
        return np.concatenate([np.ones((rows, 1)), values, values**2, *cells], axis=1), slopes

    def misfit(self, flat: np.ndarray) -> np.ndarray:
        """Return the misfit of all classes but the last, since they add up to zero: [m·P] -> [T·(C−1)·K]."""
        features, _ = self.features(flat.reshape(len(self.labels), -1))
        step = self._classes - core.softmax(features @ np.swapaxes(self._weights, 1, 2))  # [T, m, C]
        return (np.swapaxes(step, 1, 2) @ features - self.residuals)[:, :-1].ravel()

    def jacobian(self, flat: np.ndarray) -> np.ndarray:
        """Return the derivatives of the misfit: [m·P] -> [T·(C−1)·K, m·P].

        ∂p_c/∂z = p_c(l'_c − Σ_b p_b l'_b),  l' = W ∂φ/∂z
        """
        free = flat.reshape(len(self.labels), -1)
        features, feature_slopes = self.features(free)
        posterior = core.softmax(features @ np.swapaxes(self._weights, 1, 2))  # [T, m, C]
        step = self._classes - posterior
        logits = np.einsum("tck,ikp->ticp", self._weights, feature_slopes, optimize=True)
        mean = np.einsum("tic,ticp->tip", posterior, logits, optimize=True)
        posterior_slopes = (posterior[..., None] * (logits - mean[:, :, None]))[:, :, :-1]  # [T, m, C−1, P]
        jacobian = np.einsum("tic,ikp->tckip", step[..., :-1], feature_slopes, optimize=True)
        jacobian -= np.einsum("ticp,ik->tckip", posterior_slopes, features, optimize=True)
        return jacobian.reshape(-1, flat.size)

    def rows(self, flat: np.ndarray) -> Rows:
        """Return the rows given by free parameters."""
        free, d = flat.reshape(len(self.labels), -1), self.family.continuous
        codes = [
            free[:, d + offset : d + offset + size].argmax(axis=1)
            for offset, size in zip(self.family.offsets, self.family.cardinalities, strict=True)
        ]
        return Rows(free[:, :d], np.array(codes, dtype=int).reshape(len(codes), len(free)).T)

    def begin(self, start: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw random rows whose classes have the moments known from the first round: [m·P].

        Y_cᵀΦ = R_c + t, and t = Σφ/C is −R_b of a class b that is absent; else it is taken from the start [C, K].
        """
        count, d = np.bincount(self.labels, minlength=len(start)), self.family.continuous
        first = self.residuals[0]
        absent = count == 0
        even = len(self.labels) / len(start) * start.sum(axis=0) / start[:, 0].sum()
        class_sums = first + (-first[absent].mean(axis=0) if absent.any() else even)
        free = np.empty((len(self.labels), self.unknown))
        for c in np.flatnonzero(count):
            mean = class_sums[c] / count[c]
            spread = np.sqrt(np.maximum(mean[1 + d : 1 + 2 * d] - mean[1 : 1 + d] ** 2, 1e-4))
            free[self.labels == c, :d] = mean[1 : 1 + d] + spread * _scattered(rng, count[c], d)
            likely = np.log(np.clip(mean[1 + 2 * d :], 0.02, 1.0))
            free[self.labels == c, d:] = likely + UNDECIDED * rng.normal(size=(count[c], likely.size))
        return free.ravel()


def solved(
    equations: Equations, start: np.ndarray, rng: np.random.Generator, restarts: int, seconds: float
) -> tuple[Rows, float]:
    """Return the rows of least misfit over so many random starts or seconds, and their misfit: ‖…‖²/‖R‖².

    The equations of different rounds are nearly the same, and only their differences separate rows. So they are first
    solved as they are, then as combinations of rounds in which small singular values count more and more:
    u_kᵀR/s_k^p with the singular vectors and values of R over rounds, p from 0 to 3/4.
    """
    rounds = len(equations.stats)
    vectors, values, _ = np.linalg.svd(equations.residuals.reshape(rounds, -1), full_matrices=False)
    resolved = values > RESOLVED * values[0]
    size = float((equations.residuals**2).sum()) or 1.0
    best, smallest, until = None, np.inf, time.monotonic() + seconds
    for _ in range(restarts):
        flat = equations.begin(start, rng)
        for power, steps in STAGES:
            combination = (vectors[:, resolved] / (values[resolved] / values[0]) ** power).T  # [k, T]
            flat, misfit = levenberg_marquardt(
                partial(_combined, combination, equations.misfit),
                partial(_combined, combination, equations.jacobian), flat, steps, until,
            )  # fmt: skip
            if misfit < SOLVED * size or (power == 0 and misfit > HOPEFUL * len(equations.labels)):
                break
        misfit = float((equations.misfit(flat) ** 2).sum())
        if misfit < smallest:
            best, smallest = flat, misfit
        if smallest < SOLVED * size or time.monotonic() > until:
            break
    assert best is not None
    return equations.rows(best), smallest / size


def levenberg_marquardt(
    misfit_of: Callable[[np.ndarray], np.ndarray],
    jacobian_of: Callable[[np.ndarray], np.ndarray],
    flat: np.ndarray,
    steps: int,
    until: float = np.inf,
) -> tuple[np.ndarray, float]:
    """Minimise Σ misfit(x)² from x in at most so many steps; return x [n] and the sum.

        x ← x − (JᵀJ + λ·diag(JᵀJ))⁻¹ Jᵀ misfit(x)        λ by how well the step was predicted (Nielsen's rule)

    Uses normal equations: there are many equations for few unknowns, where scipy's `least_squares` spends its time on
    orthogonal factors of J. `tests/audit/test_audit.py` compares the two.
    """
    misfit, jacobian = misfit_of(flat), jacobian_of(flat)
    total, square, slope = float(misfit @ misfit), jacobian.T @ jacobian, jacobian.T @ misfit
    damping, growth = 1e-2, 2.0
    for _ in range(steps):
        if time.monotonic() > until or damping > LARGEST_DAMPING:
            break
        scale = np.maximum(np.diag(square), 1e-12)
        try:
            factor = cho_factor(square + np.diag(damping * scale + 1e-14 * scale.max()))
        except LinAlgError:
            damping, growth = damping * growth, 2.0 * growth
            continue
        step = -cho_solve(factor, slope)
        misfit = misfit_of(flat + step)
        after = float(misfit @ misfit)
        if not after < total:  # also where it is NaN
            damping, growth = damping * growth, 2.0 * growth
            continue
        predicted = -float(2.0 * slope @ step + step @ square @ step)
        damping *= max(1.0 / 3.0, 1.0 - (2.0 * (total - after) / max(predicted, 1e-300) - 1.0) ** 3)
        flat, total, growth = flat + step, after, 2.0
        jacobian = jacobian_of(flat)
        square, slope = jacobian.T @ jacobian, jacobian.T @ misfit
        if total < 1e-28:
            break
    return flat, total


def _combined(
    combination: np.ndarray, of_rounds: Callable[[np.ndarray], np.ndarray], flat: np.ndarray
) -> np.ndarray:
    """Return the combinations [k, T] of what `of_rounds` returns: [T·…, …] -> [k·…, …]."""
    values = of_rounds(flat)
    mixed = combination @ values.reshape(combination.shape[1], -1)
    return mixed.reshape(-1, *values.shape[1:])


def _scattered(rng: np.random.Generator, count: int, columns: int) -> np.ndarray:
    """Draw numbers with mean 0 and variance 1 in every column, as far as the count allows: [count, columns]."""
    if count == 1:
        return 1e-3 * rng.normal(size=(1, columns))
    if count == 2:
        return np.array([[1.0], [-1.0]]) * rng.choice([-1.0, 1.0], columns)
    drawn = rng.normal(size=(count, columns))
    return np.asarray((drawn - drawn.mean(axis=0)) / drawn.std(axis=0))
