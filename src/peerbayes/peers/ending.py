"""The verdict on a run, from a peer's own rows: how much predictions still change, and what a local model would do."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from peerbayes import layouts
from peerbayes.calibration import start_statistics
from peerbayes.core import softmax
from peerbayes.families import Family, Rows
from peerbayes.holdings import Holdings
from peerbayes.metrics import Sample
from peerbayes.peers.agreement import Agreed
from peerbayes.peers.judge import Judge
from peerbayes.peers.store import Store
from peerbayes.peers.terms import Terms
from peerbayes.peers.verdict import Comparison, Verdict, last_rounds, verdict

FOLDS = 5  # of cross-validation on the peer's own rows, where no rows are held out
MOST_ROWS = 20_000  # rows that are evaluated, and that a local model learns from: more would change little
FEWEST_ROWS = 10  # fewer say nothing


def concluded(
    agreed: Agreed, terms: Terms, store: Store, judge: Judge, stats: np.ndarray, gone: Mapping[str, str]
) -> Verdict:
    """Return the verdict on a run whose model is S [C, K]; the history comes from the store."""
    history = store.history()
    disagreement = next(
        (entry["disagreement"] for entry in reversed(history) if entry["disagreement"] is not None), None
    )
    return verdict(
        history,
        store.left_out(),
        gone,
        moved=movement(agreed, judge, store.reference(), stats),
        # With noise neighbours never agree exactly: their disagreement says nothing about convergence.
        disagreement=None if agreed.private is not None else disagreement,
        compared=comparison(agreed, terms, judge, stats),
        last_rounds=last_rounds(terms.rounds),
    )


def movement(agreed: Agreed, judge: Judge, before: np.ndarray | None, stats: np.ndarray) -> float | None:
    """Return how far predictions on the peer's own rows moved between two models: the mean of ½ Σ_c |p_c − q_c|."""
    if before is None or before.shape != stats.shape:
        return None
    rows = _subsample(judge.training)
    earlier, later = _posterior(rows, agreed, before), _posterior(rows, agreed, stats)
    return float(np.abs(earlier - later).sum(axis=1).mean() / 2)


def comparison(agreed: Agreed, terms: Terms, judge: Judge, stats: np.ndarray) -> Comparison | None:
    """Return how the joint model compares with a local one; None where there is nothing to compare.

    On held-out rows where there are enough. Otherwise by cross-validation on the peer's own rows: the local model of a
    fold is learned from the other folds, so that it is never tested on rows that it has seen.
    """
    training, held_out = judge.training, judge.held_out
    has_held_out = held_out is not None and held_out.labels.size >= FEWEST_ROWS
    tested = _subsample(held_out if has_held_out and held_out is not None else training)
    if (
        not agreed.learner.neighbours
        or tested.labels.size < FEWEST_ROWS
        or np.unique(training.labels).size < 2
    ):
        return None  # no neighbours; or a local model knows one class only, and is never wrong about it
    joint_wrong = _posterior(tested, agreed, stats).argmax(axis=1) != tested.labels
    local_wrong = np.empty(tested.labels.size, dtype=bool)
    if has_held_out:
        local_wrong[:] = _wrong(_local(agreed, terms, _subsample(training)), tested)
    else:
        fold = np.random.default_rng(0).permutation(tested.labels.size) % FOLDS
        for index in range(FOLDS):
            learned, left_out = _rows_of(tested, fold != index), _rows_of(tested, fold == index)
            local_wrong[fold == index] = _wrong(_local(agreed, terms, learned), left_out)
    return Comparison.of(joint_wrong, local_wrong, has_held_out)


def _local(agreed: Agreed, terms: Terms, rows: Sample) -> tuple[Family, np.ndarray]:
    """Return the family and S [C, K] of a peer with these rows and no neighbours: same terms, no noise."""
    count, classes = rows.labels.size, len(agreed.schema.classes)
    family = layouts.guarded(agreed.layout, float(count), calibrate=True)
    local_rows = Holdings(family, rows.rows, rows.labels, np.ones(count), np.array([count]), classes)
    if terms.start == "uniform" and agreed.strategy != "consensus-ml":
        stats = start_statistics("uniform", family, classes, count / terms.lr)
    else:
        statistics = (
            local_rows.statistics()
            if not local_rows.incomplete.any()
            else local_rows.expected(local_rows.alone(local_rows.apart()))
        )
        if agreed.strategy == "consensus-ml":
            return family, statistics[0]
        stats = statistics[0] / terms.lr
        if terms.start == "marginal":
            stats = np.tile(stats.sum(axis=0) / classes, (classes, 1))
    residual = local_rows.residual(terms.rounds, terms.local_steps)
    stats = np.ascontiguousarray(stats)[None]
    for _ in range(terms.rounds):
        stats = stats + residual(stats)
    return family, stats[0]


def _wrong(model: tuple[Family, np.ndarray], rows: Sample) -> np.ndarray:
    """Return which rows a model gets wrong: [n]."""
    family, stats = model
    sample = Sample(family, rows.rows, rows.labels)
    return np.asarray(sample.logits(np.asarray(family.weights(stats))).argmax(axis=1) != rows.labels)


def _posterior(rows: Sample, agreed: Agreed, stats: np.ndarray) -> np.ndarray:
    """Return p(c | x) by the model of S: [n, C]."""
    weights = stats if agreed.of_weights else np.asarray(agreed.family.weights(stats))
    return np.asarray(softmax(rows.logits(weights)))


def _subsample(sample: Sample) -> Sample:
    """Return at most `MOST_ROWS` rows of a sample, evenly spaced."""
    count = sample.labels.size
    if count <= MOST_ROWS:
        return sample
    return _rows_of(sample, np.linspace(0, count - 1, MOST_ROWS).astype(np.int64))


def _rows_of(sample: Sample, which: np.ndarray) -> Sample:
    """Return the rows of a sample at these indices, or under this mask."""
    return Sample(
        sample.family, Rows(sample.rows.values[which], sample.rows.codes[which]), sample.labels[which]
    )
