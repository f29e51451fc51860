"""Which round all peers keep, and when they stop: by the log loss of their held-out rows, agreed by few exact sums.

    after every 8th round and the last     [L, m] = Σ_v [Σ_i −log p(y_i | x_i; S_v), held-out rows of v]     two numbers
    kept                                   S_v of the round with the lowest L/m
    stop                                   after `patience` such checks in a row without a lower one
    at the end                             T, b and ε of `model.scaling`, by one sum for each step of the fit

How numbers are summed is the driver's business: the simulator adds them up, real peers add them exactly along a tree.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from array_api_compat import array_namespace

from peerbayes.data.table import Array
from peerbayes.learning.metrics import Sample, log_losses
from peerbayes.model import scaling
from peerbayes.model.devices import fetch
from peerbayes.model.families import Family, Rows
from peerbayes.model.scaling import Scaling

# The values of the setting `select`.
LAST, HELD_OUT = "last", "held-out"
SELECTIONS = LAST, HELD_OUT

# Rounds of learning between two checks.
CHECK_EVERY = 8

# A check is lower than the lowest so far by at least this share of it: what is less is chance, or rounding.
LOWER = 1e-3

# Fewer held-out rows of all peers together say too little to choose a round by.
FEWEST_ROWS = 30

# Sums that a scaling may take over a network; the fit seldom needs more, and the best so far is kept.
MOST_SUMS = 16


def is_check(round_index: int, rounds: int) -> bool:
    """Return whether there is a check after a round of learning."""
    return round_index % CHECK_EVERY == 0 or round_index == rounds


def usable(family: Family, rows: Rows, of_weights: bool) -> np.ndarray:
    """Return which rows models of a family can be tested on: [n].

    Where no training row misses a value, naive Bayes' layout cannot represent a row that does; and bare weights cannot
    complete missing values.
    """
    without_missing = family.marks_missing and not getattr(family, "missing", False)
    usable_rows = ~(np.isnan(rows.values).any(axis=1) & without_missing)
    return usable_rows & ~family.incomplete(rows) if of_weights else usable_rows


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The held-out rows of all peers of a driver, each of which tests its own model on its own rows."""

    samples: tuple[Sample | None, ...]
    """One for each peer; None: it holds out none."""
    of_weights: bool = False

    def logits(self, stats: Array) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return log p(x, c) and the class indices of each peer's rows: [N, C, K] -> N × ([m, C], [m])."""
        classes, tested = stats.shape[1], []
        for peer, sample in enumerate(self.samples):
            if sample is None or not sample.labels.size:
                tested.append((np.zeros((0, classes)), np.zeros(0, dtype=np.int64)))
                continue
            weights = stats[peer, ...] if self.of_weights else sample.family.weights(stats[peer, ...])
            tested.append((sample.logits(np.asarray(fetch(weights), dtype=np.float64)), sample.labels))
        return tested

    def losses(self, stats: Array) -> np.ndarray:
        """Return the terms [L_v, m_v] of every peer: [N, C, K] -> [N, 2]."""
        return np.array([[log_losses(*tested).sum(), tested[1].size] for tested in self.logits(stats)])


# Yields the name of a sum and the terms of every peer of a driver [N, M], and is sent the sum over all peers [M].
ScalingSums = Generator[tuple[str, np.ndarray], np.ndarray, Scaling]


def scaling_sums(held_out: HeldOut, stats: Array) -> ScalingSums:
    """Return the scaling of all peers' models S [N, C, K], each on its own held-out rows, after the sums it takes."""
    tested = held_out.logits(stats)
    fitting = scaling.begin(stats.shape[1])
    for step in range(1, MOST_SUMS + 1):
        terms = np.stack([scaling.sums(fitting.at, *of_peer) for of_peer in tested])
        fitting = scaling.advance(fitting, (yield f"scaling {step}", terms))
        if fitting.done:
            break
    return fitting.kept


def scaling_sentence(fitted: Scaling) -> str:
    """Return in words how probabilities follow from the models."""
    return (
        f"probabilities are scaled by what these rows show: temperature {fitted.temperature:.3g}, biases up to "
        f"{max(map(abs, fitted.bias)):.2g}, noise {fitted.noise:.2g}"
    )


class Selection(NamedTuple):
    """The round kept so far: arrays, so that it can be stored with a state."""

    stats: Array  # [..., C, K] S of that round
    kept: Array  # [1] the round; 0: none yet
    loss: Array  # [1] its mean log loss on held-out rows
    waited: Array  # [1] checks since then
    rows: Array  # [1] held-out rows of all peers
    open: Array  # [1] 1 as long as rounds are selected; 0: the last one is kept

    @classmethod
    def begin(cls, stats: Array) -> Selection:
        """Return the selection before the first check; `stats` [..., C, K] has the shape of S."""
        zero = np.zeros(1)
        return cls(array_namespace(stats).zeros_like(stats), zero, np.full(1, np.inf), zero, zero, np.ones(1))

    def after(self, round_index: int, total: np.ndarray, stats: Array) -> Selection:
        """Return the selection after a check with the sums [L, m] over all peers, of models S [..., C, K]."""
        loss, rows = total[0] / max(total[1], 1.0), np.array([float(total[1])])
        if loss < self.loss[0] * (1.0 - LOWER):
            kept, loss = np.array([float(round_index)]), np.array([loss])
            return self._replace(stats=stats, kept=kept, loss=loss, waited=np.zeros(1), rows=rows)
        return self._replace(waited=self.waited + 1.0, rows=rows)

    def ended(self) -> Selection:
        """Return the selection of no round: the last one is kept."""
        return self._replace(open=np.zeros(1))

    @property
    def lasts(self) -> bool:
        """Whether rounds are selected."""
        return bool(self.open[0])

    def stops(self, patience: int | None) -> bool:
        """Return whether all peers stop after this check."""
        return patience is not None and self.lasts and self.waited[0] >= patience

    def sentence(self, round_index: int) -> str:
        """Return in words which round is kept after the last one."""
        return (
            f"round {self.kept[0]:.0f} of {round_index} is kept: the log loss of {self.rows[0]:,.0f} held-out rows of "
            f"all peers was lowest there ({self.loss[0]:.4f})"
        )


def too_few(total: np.ndarray) -> str:
    """Return why no round can be chosen by these sums [L, m]; empty: one can."""
    if total[1] >= FEWEST_ROWS:
        return ""
    return (
        f"the last round is kept: all peers together hold out {total[1]:,.0f} rows, and to choose a round takes "
        f"{FEWEST_ROWS} or more"
    )


def incomplete(round_index: int, names: Sequence[str]) -> str:
    """Return in words that the check after a round has no sum, since nothing came from these peers."""
    return (
        f"the last round is kept: after round {round_index} nothing came from {', '.join(names)}, or from behind, and "
        "held-out rows choose a round only where all peers tell of theirs"
    )


def summed(terms: np.ndarray) -> np.ndarray:
    """Return the sum over peers, rounded once: [N, M] -> [M]. Real peers have the same bits in any order."""
    return np.array([math.fsum(column) for column in np.asarray(terms, dtype=np.float64).T.tolist()])
