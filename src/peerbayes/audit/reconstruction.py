"""Rows of a peer from what its neighbour hears, or can make it say; and how many of them are right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from peerbayes.audit.labelling import labelled
from peerbayes.audit.listening import Equations, solved
from peerbayes.audit.lying import Direction, Liar, some_direction
from peerbayes.audit.matching import matched
from peerbayes.audit.observing import Observation, seen
from peerbayes.families import Family, NaiveBayes, Rows
from peerbayes.strategies import Residual


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """What an attack made of it."""

    rows: Rows
    """The rows that it believes in, in standardised units."""
    labels: np.ndarray
    """[g] their classes, −1 where it cannot tell."""
    counts: np.ndarray
    """[C] rows of each class."""
    rounds: int
    """Rounds of messages that it took."""
    recovered: float
    """Share of the peer's rows that it found: every continuous value within 0.05 deviations, discrete ones right."""
    labels_right: float
    """Share of those whose class is right, too."""


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
    """Rows of a peer as its only neighbour could have them. For naive Bayes.

    observation   the peer, as `observe` or `again` gives it
    active        False: only listen to an honest run; True: send made-up statistics, one a round
    residual      what answers to them, [1, C, K] -> [1, C, K]: the peer's own unless given; one with noise goes here
    rounds        that the liar may take
    lawful        whether made-up statistics keep the class sums and cell sums that honest ones keep
    restarts      random beginnings of the listener
    seconds       that it may take
    seed          of directions and beginnings
    """
    family, rng = _fit_for(observation.family, observation.rows, active), np.random.default_rng([seed, 5])
    if active:
        answers = residual if residual is not None else observation.residual
        direction = Direction(family, observation.start, some_direction(family, rng), lawful)
        told = Liar(direction, answers, rounds).attack()
        rows, counts = told.rows(family), told.statistics[:, 0]
        labels = np.full(len(rows.values), -1)
        if 0 < len(labels) == round(float(counts.sum())):
            found = labelled(np.asarray(family.features(rows)), told.statistics)
            labels = labels if found is None else found
        taken = told.asked
    else:
        if not observation.leaf:
            raise ValueError(
                f"peer {observation.peer} has other neighbours than {observation.neighbour}, which knows its residual "
                "of the first round only; expected a peer with one neighbour"
            )
        heard = seen(observation)
        counts = heard.counts(len(observation.labels))
        labels = np.repeat(np.arange(len(counts)), counts)
        equations = Equations.of(family, labels, heard.stats, heard.residuals)
        rows, _ = solved(equations, observation.start, rng, restarts, seconds)
        taken = len(heard.stats)
    place = matched(rows, observation.rows)
    right = labels[place[place >= 0]] == observation.labels[place >= 0]
    return Reconstruction(
        rows, labels, np.rint(counts).astype(np.int64), taken, float((place >= 0).mean()),
        float(right.mean()) if right.size else 0.0,
    )  # fmt: skip


def _fit_for(family: Family, rows: Rows, active: bool) -> NaiveBayes:
    """The family, if the attack is made for it."""
    if not isinstance(family, NaiveBayes):
        raise ValueError(
            f"the family is {family.name}; expected naive-bayes: the attacks are made for that one"
        )
    if active and not family.continuous:
        raise ValueError(
            "there is no continuous column; expected one at least: the active attack cuts along a line"
        )
    if not active and (family.missing or (np.asarray(rows.codes) < 0).any()):
        raise ValueError("values are missing; expected none: the passive attack is made for complete rows")
    return family
