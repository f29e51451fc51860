"""Rows reconstructed from what a neighbour hears, matched with the true ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import Bounds, LinearConstraint, linear_sum_assignment, milp
from scipy.sparse import block_diag, csr_array, eye_array, hstack, vstack

from peerbayes.audit.active import Direction, Liar, random_direction
from peerbayes.audit.observation import Observation, seen
from peerbayes.learning.shared_settings import ROUNDS
from peerbayes.learning.strategies import Residual
from peerbayes.model import core
from peerbayes.model.families import Family, NaiveBayes, Rows

# --- match guesses to a peer's rows: every value must be right, and each guess counts for one row only

# A continuous value counts as recovered within this many standard deviations.
NEAR = 0.05


def matched(guesses: Rows, truth: Rows) -> np.ndarray:
    """Return the index of the guess matched to each true row, −1 where there is none: [g, …], [m, …] -> [m].

    A guess matches a row where every continuous value is within 0.05 standard deviations and every discrete one is
    right; a missing value must be missing in both. Guesses are assigned so that as many rows as possible have one.
    """
    agrees = _near(guesses, truth)  # [m, g]
    row, guess = linear_sum_assignment(~agrees)
    guess_index = np.full(len(truth.values), -1)
    matches = agrees[row, guess]
    guess_index[row[matches]] = guess[matches]
    return guess_index


def _near(guesses: Rows, truth: Rows) -> np.ndarray:
    """Return whether guess g agrees with row m in every value: [m, g]."""
    agrees = np.ones((len(truth.values), len(guesses.values)), dtype=bool)
    for guess, true in zip(np.asarray(guesses.values).T, np.asarray(truth.values).T, strict=True):
        absent = np.isnan(true)[:, None] & np.isnan(guess)[None, :]
        agrees &= absent | (np.abs(true[:, None] - guess[None, :]) <= NEAR)
    for guess, true in zip(np.asarray(guesses.codes).T, np.asarray(truth.codes).T, strict=True):
        agrees &= np.maximum(true, -1)[:, None] == np.maximum(guess, -1)[None, :]
    return agrees


# --- labels of known rows from YᵀΦ: assign rows to classes so that the class sums agree

# Seconds for the search. Sums of many rows with few features have too many solutions to separate in time.
SECONDS = 10.0


def labelled(features: np.ndarray, statistics: np.ndarray, seconds: float = SECONDS) -> np.ndarray | None:
    """Return the class of each row: Φ [m, K], YᵀΦ [C, K] -> [m]; None where no solution was found in time.

    Minimise the absolute error of Σ_i z_ic φ_i = S_c over integers z_ic ∈ {0, 1} with Σ_c z_ic = 1.
    """
    rows, classes = len(features), len(statistics)
    size = features.shape[1]
    scale = np.maximum(np.abs(features).max(axis=0), 1e-9)
    equations = csr_array((features / scale).T)
    sums = block_diag([equations] * classes, format="csr")  # z in the order of classes
    slack = eye_array(classes * size, format="csr")
    once = hstack([eye_array(rows, format="csr")] * classes, format="csr")
    empty_block = csr_array((rows, 2 * classes * size))
    constraints = LinearConstraint(
        vstack([hstack([sums, slack, -slack]), hstack([once, empty_block])], format="csr"),
        *(np.concatenate([(statistics / scale).ravel(), np.ones(rows)]),) * 2,
    )
    assignments = rows * classes
    solution = milp(
        np.concatenate([np.zeros(assignments), np.ones(2 * classes * size)]),
        integrality=np.concatenate([np.ones(assignments), np.zeros(2 * classes * size)]),
        bounds=Bounds(0, np.concatenate([np.ones(assignments), np.full(2 * classes * size, np.inf)])),
        constraints=constraints,
        options={"time_limit": seconds},
    )
    return None if solution.x is None else solution.x[:assignments].reshape(classes, rows).argmax(axis=0)


# --- the passive attack: rows that explain the residuals of many rounds, by least squares
# A leaf's neighbour knows R at statistics S_t of every round. With m rows of known classes (counts are exact),
#
#     R_t = Σ_i (e_{y_i} − p_t(x_i)) φ(x_i)ᵀ,      p_t = softmax(θ(S_t) φ)
#
# are C·K equations a round for the m·D unknown values: Levenberg and Marquardt's method from random starts, until one
# solves them. A discrete column is the softmax of free parameters. For naive Bayes without missing values.

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


# --- reconstruct a peer's rows by the passive or the active attack, and count how many are right


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """The result of an attack."""

    rows: Rows
    """The reconstructed rows, in standardised units."""
    labels: np.ndarray
    """[g] their classes, −1 where unknown."""
    counts: np.ndarray
    """[C] class counts."""
    rounds: int
    """Rounds of messages used."""
    recovered: float
    """Share of the peer's rows recovered: every continuous value within 0.05 deviations, discrete ones right."""
    labels_right: float
    """Share of the recovered rows whose class is right."""


def reconstruct(
    observation: Observation,
    *,
    active: bool = False,
    residual: Residual | None = None,
    rounds: int = ROUNDS.default,
    lawful: bool = False,
    restarts: int = 16,
    seconds: float = 60.0,
    seed: int = 0,
) -> Reconstruction:
    """Reconstruct the rows of a peer as its only neighbour could. For naive Bayes.

    observation   the peer, as returned by `observe` or `again`
    active        False: only listen to an honest run; True: send made-up statistics, one a round
    residual      the residual that answers them, [1, C, K] -> [1, C, K], perhaps with noise; None: the peer's own
    rounds        most rounds of the active attack
    lawful        whether made-up statistics keep the class sums and cell sums that honest ones keep
    restarts      random starts of the passive attack
    seconds       most seconds of the passive attack
    seed          seed of directions and random starts
    """
    family, rng = _naive_bayes(observation.family, observation.rows, active), np.random.default_rng([seed, 5])
    if active:
        peer_residual = residual if residual is not None else observation.residual
        direction = Direction(family, observation.start, random_direction(family, rng), lawful)
        answers = Liar(direction, peer_residual, rounds).attack()
        rows, counts = answers.rows(family), answers.statistics[:, 0]
        labels = np.full(len(rows.values), -1)
        if 0 < len(labels) == round(float(counts.sum())):
            inferred = labelled(np.asarray(family.features(rows)), answers.statistics)
            labels = labels if inferred is None else inferred
        rounds_used = answers.queries
    else:
        if not observation.leaf:
            raise ValueError(
                f"peer {observation.peer} has other neighbours than {observation.neighbour}, which knows its residual "
                "of the first round only; expected a peer with one neighbour"
            )
        exact_residuals = seen(observation)
        counts = exact_residuals.counts(len(observation.labels))
        labels = np.repeat(np.arange(len(counts)), counts)
        equations = Equations.of(family, labels, exact_residuals.stats, exact_residuals.residuals)
        rows, _ = solved(equations, observation.start, rng, restarts, seconds)
        rounds_used = len(exact_residuals.stats)
    guess_index = matched(rows, observation.rows)
    right = labels[guess_index[guess_index >= 0]] == observation.labels[guess_index >= 0]
    return Reconstruction(
        rows, labels, np.rint(counts).astype(np.int64), rounds_used, float((guess_index >= 0).mean()),
        float(right.mean()) if right.size else 0.0,
    )  # fmt: skip


def _naive_bayes(family: Family, rows: Rows, active: bool) -> NaiveBayes:
    """Return the family if the attack supports it; ValueError otherwise."""
    if not isinstance(family, NaiveBayes) or family.poisson:
        raise ValueError(
            f"the family is {family.name}; expected naive-bayes without counts: the attacks support no other family"
        )
    if active and not family.continuous:
        raise ValueError(
            "there is no continuous column; expected at least one: the active attack cuts along a line"
        )
    if not active and (family.missing or (np.asarray(rows.codes) < 0).any()):
        raise ValueError("values are missing; expected none: the passive attack supports complete rows only")
    return family
