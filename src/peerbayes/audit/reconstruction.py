"""Reconstruct a peer's rows by the passive or the active attack, and count how many are right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from peerbayes.audit.labelling import labelled
from peerbayes.audit.listening import Equations, solved
from peerbayes.audit.lying import Direction, Liar, random_direction
from peerbayes.audit.matching import matched
from peerbayes.audit.observing import Observation, seen
from peerbayes.families import Family, NaiveBayes, Rows
from peerbayes.strategies import Residual


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
    rounds: int = 64,
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
