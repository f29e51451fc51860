"""Evaluation: errors of many models on the same rows, and the disagreement between peers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from peerbayes.data.table import Array
from peerbayes.model import core
from peerbayes.model.devices import NUMPY, Device, fetch
from peerbayes.model.families import Family, Rows
from peerbayes.model.missing import Completion, complete
from peerbayes.model.passes import scorer_of
from peerbayes.model.scaling import Scaling
from peerbayes.model.sources import averages

# Logits held at a time while many models are evaluated: 64 MB of float64.
LOGITS_HELD = 1 << 23

# Logits of a run above which the kernel pays for being loaded (and, once on a machine, compiled).
# Of fewer classes it counts no faster than arrays do.
KERNEL_LOGITS, KERNEL_CLASSES = 1 << 30, 6

# Logits at a time that stay in the processor's cache: for the kernel, and for NumPy, whose calls cost more.
KERNEL_CACHE, ARRAY_CACHE = 1 << 14, 1 << 16

# Models times rows of a class from which rows are taken class by class: picking each row's own logit costs more than
# products of fewer rows.
CLASS_BY_CLASS = 1 << 11

# Natural weights of models that did not diverge: their logits are numbers.
TAME = 1e30

# Rows of a sparse Φ that are multiplied at a time.
SPARSE_ROWS = 1 << 12

# Entries of Φ up to which it is kept between rounds.
FEATURES_KEPT = 1 << 24

# The largest number of peers times rows of an evaluation by default, and the fewest rows it takes.
JUDGEMENTS, FEWEST_JUDGED = 1 << 23, 256
EVALUATION_STREAM = 4  # separates the rows drawn from other random numbers of the same seed

# The log loss of a row whose logits are no numbers.
LARGEST_LOSS = 1e6

# Entries of S evaluated at a time.
STATISTICS_AT_ONCE = 1 << 19


# The most logits that metrics of predictions are computed from; of more than so many models, a quarter as many.
OUTCOME_LOGITS, FEW_MODELS = 1 << 24, 64
BINS = 15  # of confidence


@dataclass(frozen=True, eq=False)
class Outcome:
    """Confusion matrix and reliability of predictions on labelled rows; for several models, the mean over them."""

    confusion: np.ndarray
    """[C, C] rows by true class (down) and predicted class (across)."""
    reliability: np.ndarray
    """[15, 3] by confidence, in fifteenths: rows, the sum of their confidence, rows predicted correctly."""

    @classmethod
    def of(cls, posterior: np.ndarray, labels: np.ndarray) -> Outcome:
        """Return the outcome of posteriors [m, C] against class indices [m]."""
        classes = posterior.shape[1]
        predicted, confidence = posterior.argmax(axis=1), posterior.max(axis=1)
        cells = np.bincount(labels * classes + predicted, minlength=classes * classes)
        bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
        correct = (predicted == labels).astype(float)
        columns = [
            np.bincount(bins, weights, minlength=BINS)
            for weights in (np.ones_like(confidence), confidence, correct)
        ]
        return cls(cells.reshape(classes, classes).astype(float), np.stack(columns, axis=1))

    @property
    def calibration_error(self) -> float:
        """The expected calibration error: Σ rows·|accuracy − confidence| / Σ rows over the bins."""
        rows, confidence, correct = self.reliability.T
        return float(np.abs(correct - confidence).sum() / max(rows.sum(), 1e-12))

    @classmethod
    def mean(cls, outcomes: Iterable[Outcome]) -> Outcome:
        """Return the mean outcome over models."""
        models = list(outcomes)
        return cls(
            np.mean([model.confusion for model in models], axis=0),
            np.mean([model.reliability for model in models], axis=0),
        )


def exact_auc(posterior: np.ndarray, labels: np.ndarray) -> float | None:
    """Return the area under the ROC curve of predictions: p [m, C], class indices [m]; None: nothing to compare."""
    classes = posterior.shape[1]
    areas = []
    for index in (1,) if classes == 2 else range(classes):
        of_class = labels == index
        if of_class.any() and not of_class.all():
            areas.append(_area(posterior[:, index], of_class))
    return float(np.mean(areas)) if areas else None


def _area(scores: np.ndarray, of_class: np.ndarray) -> float:
    """Return the share of pairs in which the row of the class has the higher score; equal ones count half."""
    below, above = np.sort(scores[~of_class]), np.sort(scores[of_class])
    lower = np.searchsorted(below, above, side="left") + np.searchsorted(below, above, side="right")
    return float(lower.sum()) / (2.0 * below.size * above.size)


def log_loss(log_posterior: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean of −log p(y|x): log p [m, C], class indices [m]."""
    return float(-log_posterior[np.arange(labels.size), labels].mean())


def log_losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return −log softmax(logits_i)[label_i] of each row, large where it is not finite: [m, C], [m] -> [m]."""
    shifted = logits - logits.max(axis=1, keepdims=True, initial=-np.inf)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(labels.size), labels]
    return np.where(np.isfinite(losses), losses, LARGEST_LOSS)


@dataclass(frozen=True, eq=False)
class Sample:
    """Labelled rows that models are evaluated on, every model on all of them."""

    family: Family
    rows: Rows  # [m, Dc], [m, Dd]
    labels: np.ndarray  # [m] class index
    device: Device = NUMPY
    run_logits: float = 0.0
    """Logits that the run computes in all, where that is known before: whether the kernel pays."""

    def errors(
        self, weights: Array, soft: bool, scaling: Scaling | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the 0-1 error and, if `soft`, the soft error of each model: W [N, C, K] -> two [N]."""
        if scaling is not None:
            return self._scaled_errors(weights, scaling)
        models, classes, _ = weights.shape
        work = max(self.run_logits, models * classes * self.labels.size)
        wrong, soft_loss = np.zeros(models), np.zeros(models)
        if self._incomplete is not None:
            return self._errors_with_missing(weights, soft)
        if not self.family.linear:
            self._by_scores(weights, soft, wrong, soft_loss)
        elif self.device.name is not None:
            self._by_array(weights, soft, wrong, soft_loss)
        elif classes >= KERNEL_CLASSES and work > KERNEL_LOGITS:
            self._by_kernel(np.ascontiguousarray(weights), soft, wrong, soft_loss)
        else:
            self._in_cache(np.ascontiguousarray(weights), soft, wrong, soft_loss)
        count = max(self.labels.size, 1)
        return wrong / count, soft_loss / count

    def _scaled_errors(self, weights: Array, scaling: Scaling) -> tuple[np.ndarray, np.ndarray]:
        """Return `errors` of models whose logits are scaled: W [N, C, K] -> two [N]."""
        wrong, soft = np.zeros(len(weights)), np.zeros(len(weights))
        rows = np.arange(self.labels.size)
        for model, model_weights in enumerate(np.asarray(fetch(weights), dtype=np.float64)):
            posterior = scaling.probabilities(self.logits(model_weights))
            wrong[model] = np.mean(posterior.argmax(axis=1) != self.labels)
            soft[model] = np.mean(1.0 - posterior[rows, self.labels])
        return wrong, soft

    def outcome(self, stats: np.ndarray, of_weights: bool, scaling: Scaling | None = None) -> Outcome:
        """Return the outcome of the peers' predictions [N, C, K]; of evenly spaced ones where they are many."""
        return Outcome.mean(
            Outcome.of(posterior, self.labels) for posterior in self.posteriors(stats, of_weights, scaling)
        )

    def posteriors(
        self, stats: np.ndarray, of_weights: bool, scaling: Scaling | None = None
    ) -> Iterator[np.ndarray]:
        """Yield p(c | x) of every row [m, C] by the peers' models [N, C, K]: by those that are `compared`."""
        scaling = scaling or Scaling.identity(stats.shape[1])
        for logits in self.all_logits(stats, of_weights):
            yield scaling.probabilities(logits)

    def all_logits(self, stats: np.ndarray, of_weights: bool) -> Iterator[np.ndarray]:
        """Yield the logits of every row [m, C] by the models [N, C, K] that are `compared`."""
        chosen = stats[self.compared(len(stats), stats.shape[1])]
        weights = chosen if of_weights else fetch(self.family.weights(chosen))
        for model_weights in weights:
            yield self.logits(model_weights)

    def compared(self, models: int, classes: int) -> np.ndarray:
        """Return which of many models have their predictions compared row by row: all, or evenly spaced ones."""
        most = max(1, OUTCOME_LOGITS // max(self.labels.size * classes, 1))
        limit = max(min(most, FEW_MODELS), most // 4)
        return np.unique(np.linspace(0, models - 1, min(limit, models)).astype(np.int64))

    def logits(self, weights: np.ndarray) -> np.ndarray:
        """Return log p(x_obs, c) of every row, for one model W [C, K]: [m, C]."""
        if self._incomplete is not None:
            full, incomplete, completion = self._incomplete
            logits = np.empty((self.labels.size, len(weights)))
            logits[incomplete] = completion.log_joint(weights.astype(np.float64))
            if full.labels.size:
                logits[~incomplete] = full.logits(weights)
            return logits
        if not self.family.linear:
            return self._scored(weights, 1)
        logits = np.empty((self.labels.size, len(weights)))
        for block, features in self._blocks(LOGITS_HELD // len(weights)):
            logits[self._order[block]] = (features if self._wide else fetch(features)) @ weights.T
        return logits

    @cached_property
    def _incomplete(self) -> tuple[Sample, np.ndarray, Completion] | None:
        """The complete rows, which rows are incomplete [m], and their completion; None where all are complete."""
        incomplete = self.family.incomplete(self.rows)
        if not incomplete.any():
            return None
        complete_rows, incomplete_rows = (
            Rows(self.rows.values[mask], self.rows.codes[mask]) for mask in (~incomplete, incomplete)
        )
        full = replace(self, rows=complete_rows, labels=self.labels[~incomplete])
        return full, incomplete, complete(self.family, incomplete_rows, numbers=np.flatnonzero(incomplete))

    def _errors_with_missing(self, weights: Array, soft: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return `errors` where values are missing: one model after the other."""
        assert self._incomplete is not None
        full, incomplete, completion = self._incomplete
        wrong, soft_loss = (rates * full.labels.size for rates in full.errors(weights, soft))
        labels = self.labels[incomplete]
        for model, model_weights in enumerate(np.asarray(fetch(weights), dtype=np.float64)):
            logits = completion.log_joint(model_weights)
            wrong[model] += np.sum(logits.argmax(axis=1) != labels)
            if soft:
                soft_loss[model] += np.sum(1.0 - core.softmax(logits)[np.arange(labels.size), labels])
        return wrong / self.labels.size, soft_loss / self.labels.size

    def _scored(self, weights: np.ndarray, models: int) -> np.ndarray:
        """Return the logits of a family whose log joint is not linear in φ, for one of many models W [C, K]: [m, C]."""
        fast = averages(self.family, self.labels.size, len(weights), models)
        return scorer_of(self.family, weights.astype(np.float64), fast)(self.rows)

    def _by_scores(self, weights: Array, soft: bool, wrong: np.ndarray, soft_loss: np.ndarray) -> None:
        """Add the errors of models W [N, C, K] whose log joint is not linear in φ, one model after the other."""
        rows = np.arange(self.labels.size)
        for model, model_weights in enumerate(np.asarray(fetch(weights))):
            logits = self._scored(model_weights, len(weights))
            wrong[model] += np.sum(logits.argmax(axis=1) != self.labels)
            if soft:
                soft_loss[model] += np.sum(1.0 - core.softmax(logits)[rows, self.labels])

    def _by_kernel(self, weights: np.ndarray, soft: bool, wrong: np.ndarray, soft_loss: np.ndarray) -> None:
        """Add the errors of models W [N, C, K] by the kernel."""
        from peerbayes.model.kernels.block_loops import judge

        for models, rows, logits in self._logits_in_cache(weights, KERNEL_CACHE):
            judge(logits, self._sorted_labels[rows], soft, wrong[models], soft_loss[models])

    def _in_cache(self, weights: np.ndarray, soft: bool, wrong: np.ndarray, soft_loss: np.ndarray) -> None:
        """Add the errors of models W [N, C, K] by arrays that stay in cache."""
        models, classes, _ = weights.shape
        count, apart = _count_errors, False
        if np.abs(weights).max(initial=0.0) < TAME:
            apart = 2 < classes <= models * self.labels.size // CLASS_BY_CLASS and not self._wide
            if classes == 2:
                weights, count = weights[:, 1:] - weights[:, :1], _count_errors_of_two
            elif apart:
                count = _count_errors_of_one
        with np.errstate(over="ignore", invalid="ignore"):  # of models that diverged
            for block, rows, logits in self._logits_in_cache(weights, ARRAY_CACHE, apart):
                lost = count(logits, self._sorted_labels[rows], wrong[block], soft)
                if lost is not None:
                    soft_loss[block] += lost

    def _logits_in_cache(
        self, weights: np.ndarray, most: int, apart: bool = False
    ) -> Iterator[tuple[slice, slice, np.ndarray]]:
        """Yield about `most` logits at a time, [n, C, b] of models and sorted rows, in memory that is used again."""
        models, classes, size = weights.shape
        batch = max(1, min(models, most // (128 * classes)))
        rows = max(64, most // (batch * classes))
        if self._wide:
            yield from self._sparse_logits(weights, batch, rows)
            return
        memory = np.empty(max(most, rows * classes), dtype=weights.dtype)
        for block, block_features in self._blocks(rows, apart):
            features = np.asarray(fetch(block_features), dtype=weights.dtype).T  # [K, b]
            count = features.shape[1]
            batch = max(1, most // (classes * count))
            for first in range(0, models, batch):
                of_models = weights[first : first + batch].reshape(-1, size)
                logits = memory[: len(of_models) * count].reshape(-1, count)
                np.dot(of_models, features, out=logits)
                models_here = slice(first, first + len(of_models) // classes)
                yield models_here, block, logits.reshape(-1, classes, count)

    def _sparse_logits(
        self, weights: np.ndarray, batch: int, rows: int
    ) -> Iterator[tuple[slice, slice, np.ndarray]]:
        """Yield the same, of a sparse Φ: some models on many rows at a time, and then fewer."""
        models, classes, size = weights.shape
        for first in range(0, models, batch):
            of_models = np.ascontiguousarray(weights[first : first + batch].reshape(-1, size).T)  # [K, n·C]
            for block, features in self._blocks(max(rows, SPARSE_ROWS)):
                product = features @ of_models  # [b, n·C]
                for start in range(0, len(product), rows):
                    logits = np.ascontiguousarray(product[start : start + rows].T)
                    logits = logits.reshape(-1, classes, logits.shape[1])
                    of_rows = slice(block.start + start, block.start + start + logits.shape[2])
                    yield slice(first, first + len(logits)), of_rows, logits

    def _by_array(self, weights: Array, soft: bool, wrong: np.ndarray, soft_loss: np.ndarray) -> None:
        xp = array_namespace(weights)
        models, classes, size = weights.shape
        for rows, features in self._blocks(max(1, LOGITS_HELD // classes)):
            labels = self._sorted_labels[rows]
            one_hot = self.device.put(core.one_hot(labels, classes))[:, None, :]  # [b, 1, C]
            batch = max(1, LOGITS_HELD // (labels.size * classes))
            for first in range(0, models, batch):
                block = slice(first, min(first + batch, models))
                logits = features @ xp.reshape(weights[block, ...], (-1, size)).mT
                logits = xp.reshape(logits, (labels.size, -1, classes))  # [b, models, C]
                predicted = core.one_hot(xp.argmax(logits, axis=-1), classes, logits.dtype)
                wrong[block] += fetch(xp.sum(one_hot * (1.0 - predicted), axis=(0, 2)))
                if soft:
                    soft_loss[block] += fetch(xp.sum(one_hot * (1.0 - core.softmax(logits)), axis=(0, 2)))

    @property
    def _wide(self) -> bool:
        """Whether Φ is sparse."""
        return self.family.wide and self.device == NUMPY

    @cached_property
    def _order(self) -> np.ndarray:
        """The rows sorted by class: [m]."""
        return np.argsort(self.labels, kind="stable")

    @cached_property
    def _sorted_labels(self) -> np.ndarray:
        """The labels of the sorted rows: [m]."""
        return self.labels[self._order]

    def _blocks(self, size: int, apart: bool = False) -> Iterator[tuple[slice, Any]]:
        """Yield blocks of sorted rows and their Φ, at most `size` rows each; those of one class if `apart`."""
        ends = [self.labels.size]
        if apart:
            ends = [*np.flatnonzero(np.diff(self._sorted_labels)) + 1, *ends]
        for begin, end in zip([0, *ends[:-1]], ends, strict=True):
            for start in range(begin, end, size):
                block = slice(start, min(start + size, end))
                if self._wide or self.labels.size * self.family.size <= FEATURES_KEPT:
                    yield block, self._features[block]
                else:
                    yield block, self.device.put(self.family.features(self._sorted_rows(block)))

    def _sorted_rows(self, block: slice) -> Rows:
        rows = self._order[block]
        return Rows(self.rows.values[rows], self.rows.codes[rows])

    @cached_property
    def _features(self) -> Any:
        """Φ [m, K] of the sorted rows: an array on the device or, where it is mostly zeros, a sparse matrix."""
        rows = self._sorted_rows(slice(None))
        return self.family.sparse(rows) if self._wide else self.device.put(self.family.features(rows))


# --- errors of models whose logits [N, C, b] of b rows lie in cache, where they are overwritten


def _count_errors(logits: np.ndarray, labels: np.ndarray, wrong: np.ndarray, soft: bool) -> np.ndarray | None:
    """Add the rows predicted wrongly to `wrong` [N]; return Σ 1 − p(y|x) of each model [N] if `soft`.

    The highest logit of the other classes is compared with that of the label. Where neither is higher, because they are
    equal or no numbers, `argmax` decides: of equal ones the first counts.
    """
    rows = np.arange(labels.size)
    own_logits = logits[:, labels, rows]
    logits[:, labels, rows] = -np.inf
    others = logits.max(axis=1)
    right = own_logits > others
    undecided = ~(right | (own_logits < others))
    if undecided.any():
        model, row = np.nonzero(undecided)
        classes = logits[model, :, row]
        classes[np.arange(row.size), labels[row]] = own_logits[model, row]
        right[model, row] = classes.argmax(axis=1) == labels[row]
    wrong += labels.size - np.add.reduce(right, axis=1)
    if not soft:
        return None
    top = np.maximum(own_logits, others)
    logits -= top[:, None]
    own_logits -= top
    rest = np.exp(logits, out=logits).sum(axis=1)
    own_logits = np.exp(own_logits, out=own_logits)
    own_logits += rest
    lost: np.ndarray = np.divide(rest, own_logits, out=rest).sum(axis=1, dtype=np.float64)
    return lost


def _count_errors_of_one(
    logits: np.ndarray, labels: np.ndarray, wrong: np.ndarray, soft: bool
) -> np.ndarray | None:
    """Do the same for rows of one class, and logits that are numbers: classes before it win also where equal."""
    index, count = int(labels[0]), labels.size
    own_logits = top = logits[:, index]
    right = np.ones(own_logits.shape, dtype=bool)
    if index > 0:
        top = logits[:, :index].max(axis=1)
        right &= own_logits > top
    if index < logits.shape[1] - 1:
        later = logits[:, index + 1 :].max(axis=1)
        right &= own_logits >= later
        top = np.maximum(top, later, out=later)
    wrong += count - np.add.reduce(right, axis=1)
    if not soft:
        return None
    logits -= np.maximum(top, own_logits)[:, None]
    likely = np.add.reduce(np.exp(logits, out=logits), axis=1)
    np.divide(own_logits, likely, out=likely)  # own_logits is a part of the logits
    lost: np.ndarray = count - np.add.reduce(likely, axis=1, dtype=np.float64)
    return lost


def _count_errors_of_two(
    logits: np.ndarray, labels: np.ndarray, wrong: np.ndarray, soft: bool
) -> np.ndarray | None:
    """Do the same for two classes, of which only the difference of the logits is given: [N, 1, b]."""
    difference, second = logits[:, 0], labels == 1
    wrong += np.add.reduce((difference > 0) != second, axis=1)
    if not soft:
        return None
    difference *= np.where(second, 1.0, -1.0)
    lost = np.exp(difference, out=difference)  # 1 − p = 1 / (1 + exp(logit of the label − that of the other))
    lost += 1.0
    total: np.ndarray = np.reciprocal(lost, out=lost).sum(axis=1, dtype=np.float64)
    return total


def disagreement(stats: Array, mean: Array) -> Array:
    """Return ‖S_v − S̄‖ / ‖S̄‖, S̄ the mean over peers: [N, C, K], [C, K] -> [N]."""
    xp = array_namespace(stats)
    distance = xp.sqrt(xp.sum((stats - mean) ** 2, axis=(-2, -1)))
    return distance / xp.sqrt(xp.sum(mean**2))


def drawn(rows: int, most: int | None, peers: int, seed: int) -> np.ndarray:
    """Return the rows that every peer is evaluated on: all, or `most` (None: a default) of them, drawn at random."""
    most = max(JUDGEMENTS // peers, FEWEST_JUDGED) if most is None else most
    if rows <= most:
        return np.arange(rows)
    return np.random.default_rng([seed, EVALUATION_STREAM]).choice(rows, most, replace=False)


def sample(
    family: Family, rows: Rows, labels: np.ndarray, device: Device, most: int | None, peers: int, seed: int
) -> Sample:
    """Return the sample that every peer is evaluated on: see `drawn`."""
    chosen = drawn(labels.size, most, peers, seed)
    if chosen.size < labels.size:
        rows, labels = Rows(rows.values[chosen], rows.codes[chosen]), labels[chosen]
    return Sample(family, rows, labels, device)


def run_logits(models: int, classes: int, rows: int, rounds: int, evaluate_every: int) -> float:
    """Return the logits of a run that evaluates so many models on so many rows, also after its last round."""
    evaluations = 1 + (rounds // evaluate_every if evaluate_every else 0)
    return float(models) * classes * rows * evaluations


def judged(
    stats: Array,
    mean: Array,
    of_weights: bool,
    family: Family,
    train: Sample,
    test: Sample | None,
    scaling: Scaling | None = None,
) -> np.ndarray:
    """Return each peer's training error, test error, soft error, disagreement and count of active floors: [5, N].

    `mean` is the mean over all peers [C, K], also over those not in `stats`; `scaling` that of their logits.
    """
    if len(stats) > 1 and isinstance(stats, np.ndarray) and stats.strides[0] == 0:  # all have the same model
        once = judged(stats[:1], mean, of_weights, family, train, test, scaling)
        return np.repeat(once, len(stats), axis=1)
    figures = []
    batch = max(1, STATISTICS_AT_ONCE // max(1, math.prod(stats.shape[1:])))
    for first in range(0, len(stats), batch):
        block = stats[first : first + batch, ...]
        weights = block if of_weights else family.weights(block)
        error, soft = train.errors(weights, soft=True, scaling=scaling)
        test_error = np.full(len(block), np.nan) if test is None else test.errors(weights, False, scaling)[0]
        floored = np.zeros(len(block)) if of_weights else fetch(family.floored(block))
        figures.append(np.stack([error, test_error, soft, fetch(disagreement(block, mean)), floored]))
    return np.concatenate(figures, axis=1)
