"""How good a model is at each site and at all of them together, from numbers that can be added up.

    error, log loss, Brier score    sums over rows, exact
    calibration error               sums over rows in fifteen bins of confidence, exact
    AUC                             by counts of scores p(c | x) in fixed bins, for rows of class c and for all others

Of two rows in different bins it is known which has the higher score; of two in one bin it is not. So counts give an
interval that the AUC lies in, and its middle, which is the AUC with pairs of one bin counted half. A site's own AUC is
exact. Where there are more than two classes it is the mean over classes, each against all others, of those classes that
have rows on both sides.

How numbers are summed is the driver's business: the simulator adds them up, real peers add masked words along a tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from peerbayes.learning.integer_sums import numbers_of_words, words_of_numbers
from peerbayes.learning.metrics import BINS, LARGEST_LOSS, Outcome, exact_auc, log_losses
from peerbayes.model import core
from peerbayes.model.scaling import Scaling

# Bins of scores of up to so many classes, and of more: each class has its own, but of two one is enough.
FEW, BINS_OF_FEW, BINS_OF_MANY = 8, 2048, 512

# Half of all bins have log odds within ±4, where they are 4/B wide, B bins; farther out they widen.
MIDDLE = 4.0

MOST_ROWS = 1 << 40  # of all sites together; more are no rows, and sums of so many bins stay within 64 bits

HEAD = 7  # words before those of calibration: rows, unknown, wrong, and two each for log loss and Brier score


@lru_cache(maxsize=4)
def score_edges(bins: int) -> np.ndarray:
    """Return the edges of the bins of scores in [0, 1], rising: [bins − 1].

    They are uniform in u = l / (4 + |l|), l the log odds. Rounded to 24 bits, so that all machines have the same.
    """
    share = np.arange(1, bins // 2) * (2.0 / bins) - 1.0  # of the lower half; the upper one mirrors it
    odds = MIDDLE * share / (1.0 + share)
    mantissa, power = np.frexp(np.exp(odds) / (1.0 + np.exp(odds)))
    low = np.ldexp(np.rint(np.ldexp(mantissa, 24)), power - 24)
    return np.concatenate([low, [0.5], 1.0 - low[::-1]])


def bins_for(classes: int) -> int:
    """Return how many bins of scores there are."""
    return BINS_OF_FEW if classes <= FEW else BINS_OF_MANY


def vector_size(classes: int) -> int:
    """Return how many words a site's contribution has."""
    return HEAD + 4 * BINS + (1 if classes == 2 else classes) * 2 * bins_for(classes)


@dataclass(frozen=True, eq=False)
class SiteScores:
    """How good a model is on some rows."""

    rows: int
    """Rows that it was tested on, whose class it knows."""
    unknown: int
    """Further rows, whose class occurs in nobody's training rows: every model is wrong about them."""
    wrong: int
    """Of `rows`."""
    loss: float
    """Σ −log p(y | x)."""
    brier: float
    """Σ_i Σ_c (p_c − y_c)², of two classes half of that: (p_1 − y)²."""
    reliability: np.ndarray
    """[15, 3] by confidence: rows, the sum of their confidence, rows predicted correctly."""
    counts: np.ndarray
    """[1 or C, 2, bins] rows of other classes and of the class by the bin of their score."""
    auc: float | None = None
    """Exact, where these are one site's rows; None: unknown, or nothing to compare."""

    @classmethod
    def of(
        cls, logits: np.ndarray, labels: np.ndarray, scaling: Scaling | None = None, unknown: int = 0
    ) -> SiteScores:
        """Return the scores of log p(x, c) [m, C] against class indices [m]; `scaling` is that of the logits."""
        rows, classes = np.arange(labels.size), logits.shape[1]
        if scaling is None:
            posterior, losses = np.asarray(core.softmax(logits)), log_losses(logits, labels)
        else:
            posterior = scaling.probabilities(logits)
            losses = -scaling.log_probabilities(logits)[rows, labels]
            losses = np.where(np.isfinite(losses), losses, LARGEST_LOSS)
        posterior = np.clip(np.nan_to_num(posterior), 0.0, 1.0)
        squares = ((posterior - core.one_hot(labels, classes)) ** 2).sum(axis=1)
        return cls(
            labels.size,
            unknown,
            int((posterior.argmax(axis=1) != labels).sum()),
            math.fsum(losses),
            math.fsum(squares) / (2 if classes == 2 else 1),
            Outcome.of(posterior, labels).reliability,
            _counts(posterior, labels),
            exact_auc(posterior, labels),
        )

    @property
    def tested(self) -> int:
        """All rows that count."""
        return self.rows + self.unknown

    @property
    def figures(self) -> dict[str, Any]:
        """Return the figures of a table: rows, error, log loss, AUC, Brier score, calibration error."""
        rows = self.rows
        return {
            "rows": self.tested,
            "error": (self.wrong + self.unknown) / self.tested if self.tested else None,
            "log_loss": self.loss / rows if rows else None,
            "auc": self.auc,
            "brier": self.brier / rows if rows else None,
            "calibration": calibration_error(self.reliability) if rows else None,
        }

    @property
    def auc_range(self) -> tuple[float, float] | None:
        """The least and the largest AUC that rows with these counts can have; None: nothing to compare."""
        ranges = []
        for others, of_class in self.counts.astype(np.float64):
            pairs = others.sum() * of_class.sum()
            if pairs:
                ordered = float((of_class * (np.cumsum(others) - others)).sum())
                ranges.append((ordered / pairs, (ordered + float((of_class * others).sum())) / pairs))
        return tuple(np.mean(ranges, axis=0).tolist()) if ranges else None

    # --- as whole numbers that are added up, exactly and modulo 2⁶⁴ ------------------------------------

    @property
    def words(self) -> np.ndarray:
        """Return everything but the AUC as words: [vector_size] of int64."""
        rows, confidence, correct = self.reliability.T
        return np.concatenate(
            [
                [self.rows, self.unknown, self.wrong],
                words_of_numbers([self.loss, self.brier]),
                rows.astype(np.int64),
                correct.astype(np.int64),
                words_of_numbers(confidence),
                self.counts.ravel(),
            ]
        ).astype(np.int64)

    @classmethod
    def of_words(cls, words: np.ndarray, classes: int) -> SiteScores:
        """Return the scores of all sites from the sum of their words; ValueError where it is of no rows."""
        rows, unknown, wrong = (int(word) for word in words[:3])
        counts = words[HEAD + 4 * BINS :].reshape(-1, 2, bins_for(classes))
        loss, brier = numbers_of_words(words[3:HEAD])
        parts = words[HEAD : HEAD + 4 * BINS]
        reliability = np.stack([parts[:BINS], numbers_of_words(parts[2 * BINS :]), parts[BINS : 2 * BINS]], 1)
        scores = cls(rows, unknown, wrong, float(loss), float(brier), reliability.astype(np.float64), counts)
        if problem := scores._problem(classes):
            raise ValueError(problem)
        return scores

    def _problem(self, classes: int) -> str:
        """Return why no rows have these numbers; empty: some may."""
        count, confidence, correct = self.reliability.T
        if max(self.rows, self.unknown) > MOST_ROWS:
            return f"there are {max(self.rows, self.unknown):,} rows"
        if min(self.rows, self.unknown, self.wrong) < 0 or self.wrong > self.rows:
            return f"{self.wrong:,} of {self.rows:,} rows are wrong"
        if not (0 <= self.loss <= self.rows * LARGEST_LOSS and 0 <= self.brier <= 2.0 * self.rows + 1e-6):
            return (
                f"{self.rows:,} rows have a log loss of {self.loss:.3g} and a Brier score of {self.brier:.3g}"
            )
        by_class = self.counts.sum(axis=(1, 2))
        if (
            min(self.counts.min(initial=0), self.rows - self.counts.max(initial=0)) < 0
            or (by_class != self.rows).any()
        ):
            return f"scores of {self.rows:,} rows are counted {int(by_class.min()):,} times"
        if classes > 2 and int(self.counts[:, 1].sum()) != self.rows:
            return f"{self.rows:,} rows are of {int(self.counts[:, 1].sum()):,} classes"
        if min(count.min(), correct.min()) < 0 or (correct > count).any() or int(count.sum()) != self.rows:
            return f"confidences of {self.rows:,} rows are counted {int(count.sum()):,} times"
        if int(correct.sum()) != self.rows - self.wrong:
            return f"{self.wrong:,} of {self.rows:,} rows are wrong, and {int(correct.sum()):,} right"
        if (confidence < 0).any() or (confidence > count + 1e-6).any():
            return "confidences are not between 0 and 1"
        return ""


def total(scores: Iterable[SiteScores], classes: int) -> SiteScores:
    """Return the scores of all sites together, as real peers have them."""
    words = np.zeros(vector_size(classes), dtype=np.int64)
    for site in scores:
        words = words + site.words
    return SiteScores.of_words(words, classes)


def figures_of_all(scores: SiteScores) -> dict[str, Any]:
    """Return the figures of all sites together: the AUC is the middle of an interval, and both ends are given."""
    ends = scores.auc_range
    if ends is None:
        return scores.figures | {"auc": None, "auc_low": None, "auc_high": None}
    return scores.figures | {"auc": (ends[0] + ends[1]) / 2, "auc_low": ends[0], "auc_high": ends[1]}


def calibration_error(reliability: np.ndarray) -> float:
    """Return the expected calibration error: Σ rows·|accuracy − confidence| / Σ rows over the bins [15, 3]."""
    return Outcome(np.zeros((0, 0)), reliability).calibration_error


def _counts(posterior: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return rows of other classes and of each class by the bin of their score: [m, C], [m] -> [1 or C, 2, bins]."""
    classes = posterior.shape[1]
    bins = bins_for(classes)
    counted = []
    for index in (1,) if classes == 2 else range(classes):
        cells = np.searchsorted(score_edges(bins), posterior[:, index], side="right")
        of_class = (labels == index).astype(np.int64)
        counted.append(np.bincount(of_class * bins + cells, minlength=2 * bins).reshape(2, bins))
    return np.stack(counted).astype(np.int64)
