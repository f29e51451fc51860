"""The passive attack: rows that explain the residuals of many rounds, by least squares.

A leaf's neighbour knows R at statistics S_t of every round. With m rows of known classes (counts are exact),

    R_t = Σ_i (e_{y_i} − p_t(x_i)) φ(x_i)ᵀ,      p_t = softmax(θ(S_t) φ)

are C·K equations a round for the m·D unknown values: Levenberg and Marquardt's method from random starts, until a start
leaves nothing over. A discrete column stands as the softmax of free numbers. For naive Bayes without missing values.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from peerbayes import core
from peerbayes.families import NaiveBayes, Rows

# Equations that are used: those of neighbouring rounds say nearly the same, and each costs time.
EQUATIONS = 4000

# Square of what is left over, beside that of R, below which the equations are solved; and, a row, above which the first
# stage has ended in a minimum that is none of the rows.
SOLVED, HOPEFUL = 1e-20, 1e-2

# Powers by which small singular values of the rounds are raised, one after the other, and steps with each.
STAGES = ((0.0, 60), (0.25, 40), (0.5, 60), (0.75, 60))

# Singular values beside the first that are not rounding; and the damping at which nothing moves any more.
RESOLVED, LARGEST_DAMPING = 1e-12, 1e16

# How far the numbers behind a discrete column begin from what the class's cells say.
UNDECIDED = 0.5


@dataclass(frozen=True, eq=False)
class Equations:
    """The residuals of some rounds as functions of rows that nobody told."""

    family: NaiveBayes
    labels: np.ndarray  # [m]
    stats: np.ndarray  # [T, C, K]
    residuals: np.ndarray  # [T, C, K]

    @classmethod
    def of(
        cls, family: NaiveBayes, labels: np.ndarray, stats: np.ndarray, residuals: np.ndarray
    ) -> Equations:
        """Those of as many rounds as can be used, early and late."""
        rounds = max(1, min(len(stats), EQUATIONS // residuals[0].size))
        taken = np.unique(np.linspace(0, len(stats) - 1, rounds).round().astype(int))
        return cls(family, labels, stats[taken], residuals[taken])

    @property
    def unknown(self) -> int:
        """Numbers of a row: P."""
        return self.family.continuous + sum(self.family.cardinalities)

    @cached_property
    def _weights(self) -> np.ndarray:
        return np.asarray(self.family.weights(self.stats))  # [T, C, K]

    @cached_property
    def _classes(self) -> np.ndarray:
        return np.asarray(core.one_hot(self.labels, self.stats.shape[1]))  # [m, C]

    def features(self, free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """φ of the rows that free numbers stand for, and its derivatives: [m, P] -> [m, K], [m, K, P]."""
        d, rows = self.family.continuous, len(free)
        values = free[:, :d]
        slopes = np.zeros((rows, self.family.size, self.unknown))
        column = np.arange(d)
        slopes[:, 1 + column, column] = 1.0
        slopes[:, 1 + d + column, column] = 2.0 * values
        cells = []
        for place, size in zip(self.family.offsets, self.family.cardinalities, strict=True):
            share = core.softmax(free[:, d + place : d + place + size])
            cells.append(share)
            here = self.family.dense_size + int(place)
            slopes[:, here : here + size, d + int(place) : d + int(place) + size] = (
                share[:, :, None] * np.eye(size) - share[:, :, None] * share[:, None, :]
            )
        return np.concatenate([np.ones((rows, 1)), values, values**2, *cells], axis=1), slopes

    def left(self, flat: np.ndarray) -> np.ndarray:
        """What the equations leave over, one class dropped: they add up to nothing. [m·P] -> [T·(C−1)·K]."""
        features, _ = self.features(flat.reshape(len(self.labels), -1))
        step = self._classes - core.softmax(features @ np.swapaxes(self._weights, 1, 2))  # [T, m, C]
        return (np.swapaxes(step, 1, 2) @ features - self.residuals)[:, :-1].ravel()

    def slopes(self, flat: np.ndarray) -> np.ndarray:
        """Its derivatives: [T·(C−1)·K, m·P].

        ∂p_c/∂z = p_c(l'_c − Σ_b p_b l'_b),  l' = W ∂φ/∂z
        """
        free = flat.reshape(len(self.labels), -1)
        features, own = self.features(free)
        posterior = core.softmax(features @ np.swapaxes(self._weights, 1, 2))  # [T, m, C]
        step = self._classes - posterior
        logits = np.einsum("tck,ikp->ticp", self._weights, own, optimize=True)
        mean = np.einsum("tic,ticp->tip", posterior, logits, optimize=True)
        turn = (posterior[..., None] * (logits - mean[:, :, None]))[:, :, :-1]  # [T, m, C−1, P]
        found = np.einsum("tic,ikp->tckip", step[..., :-1], own, optimize=True)
        found -= np.einsum("ticp,ik->tckip", turn, features, optimize=True)
        return found.reshape(-1, flat.size)

    def rows(self, flat: np.ndarray) -> Rows:
        """The rows that free numbers stand for."""
        free, d = flat.reshape(len(self.labels), -1), self.family.continuous
        codes = [
            free[:, d + place : d + place + size].argmax(axis=1)
            for place, size in zip(self.family.offsets, self.family.cardinalities, strict=True)
        ]
        return Rows(free[:, :d], np.array(codes, dtype=int).reshape(len(codes), len(free)).T)

    def begin(self, start: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Random rows whose classes have the moments that the first round tells: [m·P].

        Y_cᵀΦ = R_c + t, and t = Σφ/C is −R_b of a class b that is absent; else it is taken from the start [C, K].
        """
        count, d = np.bincount(self.labels, minlength=len(start)), self.family.continuous
        first = self.residuals[0]
        absent = count == 0
        even = len(self.labels) / len(start) * start.sum(axis=0) / start[:, 0].sum()
        told = first + (-first[absent].mean(axis=0) if absent.any() else even)
        free = np.empty((len(self.labels), self.unknown))
        for c in np.flatnonzero(count):
            mean = told[c] / count[c]
            spread = np.sqrt(np.maximum(mean[1 + d : 1 + 2 * d] - mean[1 : 1 + d] ** 2, 1e-4))
            free[self.labels == c, :d] = mean[1 : 1 + d] + spread * _scattered(rng, count[c], d)
            likely = np.log(np.clip(mean[1 + 2 * d :], 0.02, 1.0))
            free[self.labels == c, d:] = likely + UNDECIDED * rng.normal(size=(count[c], likely.size))
        return free.ravel()


def solved(
    equations: Equations, start: np.ndarray, rng: np.random.Generator, restarts: int, seconds: float
) -> tuple[Rows, float]:
    """The rows that leave least over, of so many random beginnings or seconds; and how much that is: ‖…‖²/‖R‖².

    Rounds say nearly the same, and the differences between them tell rows apart. So the equations of the rounds are
    first taken as they are, then as combinations of rounds whose small ones count more and more: u_kᵀR/s_k^p with the
    singular vectors and values of R over rounds, p from 0 to 3/4.
    """
    rounds = len(equations.stats)
    vectors, values, _ = np.linalg.svd(equations.residuals.reshape(rounds, -1), full_matrices=False)
    kept = values > RESOLVED * values[0]
    size = float((equations.residuals**2).sum()) or 1.0
    best, left, until = None, np.inf, time.monotonic() + seconds
    for _ in range(restarts):
        flat = equations.begin(start, rng)
        for power, steps in STAGES:
            turned = (vectors[:, kept] / (values[kept] / values[0]) ** power).T  # [k, T]
            flat, rest = levenberg_marquardt(
                partial(_combined, turned, equations.left), partial(_combined, turned, equations.slopes), flat, steps,
                until,
            )  # fmt: skip
            if rest < SOLVED * size or (power == 0 and rest > HOPEFUL * len(equations.labels)):
                break
        rest = float((equations.left(flat) ** 2).sum())
        if rest < left:
            best, left = flat, rest
        if left < SOLVED * size or time.monotonic() > until:
            break
    assert best is not None
    return equations.rows(best), left / size


def levenberg_marquardt(
    left: Callable[[np.ndarray], np.ndarray],
    slopes: Callable[[np.ndarray], np.ndarray],
    flat: np.ndarray,
    steps: int,
    until: float = np.inf,
) -> tuple[np.ndarray, float]:
    """A minimum of Σ left(x)² near x, after so many steps at most: x [n] and the sum.

        x ← x − (JᵀJ + λ·diag(JᵀJ))⁻¹ Jᵀ left(x)          λ by how well the step was foretold (Nielsen's rule)

    By normal equations: many equations for few unknowns, where scipy's `least_squares` spends its time on orthogonal
    factors of J. `tests/test_audit.py` holds the two beside each other.
    """
    rest, matrix = left(flat), slopes(flat)
    total, square, slope = float(rest @ rest), matrix.T @ matrix, matrix.T @ rest
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
        rest = left(flat + step)
        after = float(rest @ rest)
        if not after < total:  # also where it is NaN
            damping, growth = damping * growth, 2.0 * growth
            continue
        foretold = -float(2.0 * slope @ step + step @ square @ step)
        damping *= max(1.0 / 3.0, 1.0 - (2.0 * (total - after) / max(foretold, 1e-300) - 1.0) ** 3)
        flat, total, growth = flat + step, after, 2.0
        matrix = slopes(flat)
        square, slope = matrix.T @ matrix, matrix.T @ rest
        if total < 1e-28:
            break
    return flat, total


def _combined(
    turned: np.ndarray, of_rounds: Callable[[np.ndarray], np.ndarray], flat: np.ndarray
) -> np.ndarray:
    """Combinations of rounds [k, T] of what `of_rounds` gives: [T·…, …] -> [k·…, …]."""
    found = of_rounds(flat)
    mixed = turned @ found.reshape(turned.shape[1], -1)
    return mixed.reshape(-1, *found.shape[1:])


def _scattered(rng: np.random.Generator, count: int, columns: int) -> np.ndarray:
    """Random numbers with mean 0 and variance 1 in every column, as far as so few can have them: [count, columns]."""
    if count == 1:
        return 1e-3 * rng.normal(size=(1, columns))
    if count == 2:
        return np.array([[1.0], [-1.0]]) * rng.choice([-1.0, 1.0], columns)
    drawn = rng.normal(size=(count, columns))
    return np.asarray((drawn - drawn.mean(axis=0)) / drawn.std(axis=0))
