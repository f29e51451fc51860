"""How good models are: errors of many models on the same rows, and how far peers are apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from peerbayes import core
from peerbayes.completion import Completion, complete
from peerbayes.core import Array
from peerbayes.families import Family, Rows
from peerbayes.places import HERE, Place, fetch

# Logits held at a time while many models are judged: 64 MB of float64.
LOGITS_HELD = 1 << 23

# Logits above which the kernel is used, and how many it takes at a time: they stay in cache.
LARGE, IN_CACHE = 1 << 22, 1 << 14

# Entries of Φ up to which it is kept between rounds.
FEATURES_KEPT = 1 << 24

# Peers times rows that an evaluation takes unless told otherwise, and how many rows it takes at least.
JUDGEMENTS, FEWEST_JUDGED = 1 << 23, 256
EVALUATION_STREAM = 4  # sets the rows that are drawn apart from other random numbers of the same seed

# Entries of S evaluated at a time.
STATISTICS_AT_ONCE = 1 << 19


# Probabilities that what predictions look like is told from, and the bins of their confidence.
OUTCOME_LOGITS, BINS = 1 << 24, 10


@dataclass(frozen=True, eq=False)
class Outcome:
    """What predictions look like on labelled rows; for several models, the mean over them."""

    confusion: np.ndarray
    """[C, C] rows by true class (down) and predicted class (across)."""
    reliability: np.ndarray
    """[10, 3] by confidence, in tenths: rows, the sum of their confidence, how many are right."""

    @classmethod
    def of(cls, posterior: np.ndarray, labels: np.ndarray) -> Outcome:
        """P [m, C] and classes [m]."""
        classes = posterior.shape[1]
        predicted, sure = posterior.argmax(axis=1), posterior.max(axis=1)
        cells = np.bincount(labels * classes + predicted, minlength=classes * classes)
        bins = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
        right = (predicted == labels).astype(float)
        columns = [np.bincount(bins, each, minlength=BINS) for each in (np.ones_like(sure), sure, right)]
        return cls(cells.reshape(classes, classes).astype(float), np.stack(columns, axis=1))

    @classmethod
    def mean(cls, outcomes: Iterable[Outcome]) -> Outcome:
        """Over models."""
        each = list(outcomes)
        return cls(
            np.mean([one.confusion for one in each], axis=0),
            np.mean([one.reliability for one in each], axis=0),
        )


@dataclass(frozen=True, eq=False)
class Sample:
    """Labelled rows that models are judged on, all of them on all of these."""

    family: Family
    rows: Rows  # [m, Dc], [m, Dd]
    labels: np.ndarray  # [m] class index
    place: Place = HERE

    def errors(self, weights: Array, soft: bool) -> tuple[np.ndarray, np.ndarray]:
        """0-1 error and, if `soft`, soft error of each model: W [N, C, K] -> two [N]."""
        models, classes, _ = weights.shape
        wrong, lost = np.zeros(models), np.zeros(models)
        if self._gaps is not None:
            return self._with_gaps(weights, soft)
        if self.place.device is None and not self._wide and models * classes * self.labels.size > LARGE:
            self._by_kernel(np.ascontiguousarray(weights), soft, wrong, lost)
        else:
            self._by_array(weights, soft, wrong, lost)
        count = max(self.labels.size, 1)
        return wrong / count, lost / count

    def outcome(self, stats: np.ndarray, of_weights: bool) -> Outcome:
        """What the predictions of peers [N, C, K] look like; of some of them, evenly, where they are many."""
        most = max(1, OUTCOME_LOGITS // max(self.labels.size * stats.shape[1], 1))
        some = stats[np.unique(np.linspace(0, len(stats) - 1, min(most, len(stats))).astype(np.int64))]
        weights = some if of_weights else fetch(self.family.weights(some))
        return Outcome.mean(self._outcome(each) for each in weights)

    def _outcome(self, weights: np.ndarray) -> Outcome:
        return Outcome.of(core.softmax(self.logits(weights)), self.labels)

    def logits(self, weights: np.ndarray) -> np.ndarray:
        """Return log p(x_obs, c) of every row, for one model W [C, K]: [m, C]."""
        if self._gaps is not None:
            whole, holed, known = self._gaps
            logits = np.empty((self.labels.size, len(weights)))
            logits[holed] = known.log_joint(weights.astype(np.float64))
            if whole.labels.size:
                logits[~holed] = whole.logits(weights)
            return logits
        parts = [
            (features if self._wide else fetch(features)) @ weights.T
            for _, features in self._blocks(LOGITS_HELD // len(weights))
        ]
        return np.concatenate(parts).astype(np.float64)

    @cached_property
    def _gaps(self) -> tuple[Sample, np.ndarray, Completion] | None:
        """The rows that φ takes as they are, which the others are [m], and those; None where there are none."""
        holed = self.family.incomplete(self.rows)
        if not holed.any():
            return None
        some, others = (Rows(self.rows.values[which], self.rows.codes[which]) for which in (~holed, holed))
        whole = Sample(self.family, some, self.labels[~holed], self.place)
        return whole, holed, complete(self.family, others, numbers=np.flatnonzero(holed))

    def _with_gaps(self, weights: Array, soft: bool) -> tuple[np.ndarray, np.ndarray]:
        """`errors` where values are missing: one model after the other."""
        assert self._gaps is not None
        whole, holed, known = self._gaps
        wrong, lost = (part * whole.labels.size for part in whole.errors(weights, soft))
        labels = self.labels[holed]
        for model, own in enumerate(np.asarray(fetch(weights), dtype=np.float64)):
            logits = known.log_joint(own)
            wrong[model] += np.sum(logits.argmax(axis=1) != labels)
            if soft:
                lost[model] += np.sum(1.0 - core.softmax(logits)[np.arange(labels.size), labels])
        return wrong / self.labels.size, lost / self.labels.size

    def _by_kernel(self, weights: np.ndarray, soft: bool, wrong: np.ndarray, lost: np.ndarray) -> None:
        from peerbayes.kernels import judge

        models, classes, size = weights.shape
        together = max(1, min(models, IN_CACHE // (128 * classes)))
        for begin, features in self._blocks(max(64, IN_CACHE // (together * classes))):
            turned = np.ascontiguousarray(fetch(features).T, dtype=weights.dtype)  # [K, b]
            labels = self.labels[begin : begin + turned.shape[1]]
            for first in range(0, models, together):
                some = slice(first, min(first + together, models))
                logits = weights[some].reshape(-1, size) @ turned
                judge(logits.reshape(-1, classes, labels.size), labels, soft, wrong[some], lost[some])

    def _by_array(self, weights: Array, soft: bool, wrong: np.ndarray, lost: np.ndarray) -> None:
        xp = array_namespace(weights)
        models, classes, size = weights.shape
        for begin, features in self._blocks(max(1, LOGITS_HELD // classes)):
            labels = self.labels[begin : begin + features.shape[0]]
            one_hot = self.place.put(core.one_hot(labels, classes))[:, None, :]  # [b, 1, C]
            together = max(1, LOGITS_HELD // (labels.size * classes))
            for first in range(0, models, together):
                some = slice(first, min(first + together, models))
                logits = features @ xp.reshape(weights[some, ...], (-1, size)).mT
                logits = xp.reshape(logits, (labels.size, -1, classes))  # [b, models, C]
                best = core.one_hot(xp.argmax(logits, axis=-1), classes, logits.dtype)
                wrong[some] += fetch(xp.sum(one_hot * (1.0 - best), axis=(0, 2)))
                if soft:
                    lost[some] += fetch(xp.sum(one_hot * (1.0 - core.softmax(logits)), axis=(0, 2)))

    @property
    def _wide(self) -> bool:
        """Whether Φ is mostly zeros, and held without them."""
        return self.family.wide and self.place == HERE

    def _blocks(self, at_once: int) -> Iterator[tuple[int, Any]]:
        """Φ of so many rows at a time, and where they begin."""
        for begin in range(0, self.labels.size, at_once):
            some = slice(begin, begin + at_once)
            if self._wide or self.labels.size * self.family.size <= FEATURES_KEPT:
                yield begin, self._features[some]
            else:
                part = Rows(self.rows.values[some], self.rows.codes[some])
                yield begin, self.place.put(self.family.features(part))

    @cached_property
    def _features(self) -> Any:
        """Φ [m, K], an array of the place or, where it is mostly zeros, a sparse one."""
        return (
            self.family.sparse(self.rows) if self._wide else self.place.put(self.family.features(self.rows))
        )


def disagreement(stats: Array, mean: Array) -> Array:
    """‖S_v − S̄‖ / ‖S̄‖, S̄ the mean over peers: [N, C, K], [C, K] -> [N]."""
    xp = array_namespace(stats)
    apart = xp.sqrt(xp.sum((stats - mean) ** 2, axis=(-2, -1)))
    return apart / xp.sqrt(xp.sum(mean**2))


def drawn(rows: int, most: int | None, nodes: int, seed: int) -> np.ndarray:
    """The rows that every peer is judged on: all, or as many as are asked for or reasonable, drawn at random."""
    most = max(JUDGEMENTS // nodes, FEWEST_JUDGED) if most is None else most
    if rows <= most:
        return np.arange(rows)
    return np.random.default_rng([seed, EVALUATION_STREAM]).choice(rows, most, replace=False)


def sample(
    family: Family, rows: Rows, labels: np.ndarray, place: Place, most: int | None, nodes: int, seed: int
) -> Sample:
    """The rows that every peer is judged on: see `drawn`."""
    some = drawn(labels.size, most, nodes, seed)
    if some.size < labels.size:
        rows, labels = Rows(rows.values[some], rows.codes[some]), labels[some]
    return Sample(family, rows, labels, place)


def judged(
    stats: Array, mean: Array, of_weights: bool, family: Family, train: Sample, test: Sample | None
) -> np.ndarray:
    """Of each peer: training and test error, soft error, disagreement and floors that acted: [5, N].

    `mean` is the mean over all peers [C, K], these and others.
    """
    figures = []
    together = max(1, STATISTICS_AT_ONCE // max(1, math.prod(stats.shape[1:])))
    for first in range(0, len(stats), together):
        some = stats[first : first + together, ...]
        weights = some if of_weights else family.weights(some)
        error, soft = train.errors(weights, soft=True)
        tested = np.full(len(some), np.nan) if test is None else test.errors(weights, soft=False)[0]
        floored = np.zeros(len(some)) if of_weights else fetch(family.floored(some))
        figures.append(np.stack([error, tested, soft, fetch(disagreement(some, mean)), floored]))
    return np.concatenate(figures, axis=1)
