"""Rows reconstructed from what a neighbour hears, matched with the true ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linear_sum_assignment, milp
from scipy.sparse import block_diag, csr_array, eye_array, hstack, vstack

from peerbayes.audit.active import Direction, Liar, random_direction
from peerbayes.audit.observation import Observation, seen
from peerbayes.audit.passive import Equations, solved
from peerbayes.learning.shared_settings import ROUNDS
from peerbayes.learning.strategies import Residual
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
    if not isinstance(family, NaiveBayes):
        raise ValueError(
            f"the family is {family.name}; expected naive-bayes: the attacks support no other family"
        )
    if active and not family.continuous:
        raise ValueError(
            "there is no continuous column; expected at least one: the active attack cuts along a line"
        )
    if not active and (family.missing or (np.asarray(rows.codes) < 0).any()):
        raise ValueError("values are missing; expected none: the passive attack supports complete rows only")
    return family
