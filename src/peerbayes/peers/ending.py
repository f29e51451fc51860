"""What the verdict on a run needs of a peer's rows: how its answers still move, and the model it would have alone."""

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

FOLDS = 5  # parts of own rows, each judged by a lone model of the others, where no rows are held out
MOST_ROWS = 20_000  # rows that are judged, and that a lone model learns from: more would not tell more
FEWEST_ROWS = 10  # fewer tell nothing


def concluded(
    agreed: Agreed, terms: Terms, store: Store, judge: Judge, stats: np.ndarray, gone: Mapping[str, str]
) -> Verdict:
    """Return the verdict on a run whose model is S [C, K]; what it needs of the past is in the store."""
    history = store.history()
    disagreement = next(
        (entry["disagreement"] for entry in reversed(history) if entry["disagreement"] is not None), None
    )
    return verdict(
        history,
        store.left_out(),
        gone,
        moved=movement(agreed, judge, store.reference(), stats),
        # Noise keeps neighbours apart for ever: it says nothing about how far they have come.
        disagreement=None if agreed.private is not None else disagreement,
        compared=comparison(agreed, terms, judge, stats),
        last_rounds=last_rounds(terms.rounds),
    )


def movement(agreed: Agreed, judge: Judge, before: np.ndarray | None, stats: np.ndarray) -> float | None:
    """Return how far answers on own rows moved from one model to another: the mean of ½ Σ_c |p_c − q_c|."""
    if before is None or before.shape != stats.shape:
        return None
    rows = _some(judge.own)
    earlier, later = (_posterior(rows, agreed, each) for each in (before, stats))
    return float(np.abs(earlier - later).sum(axis=1).mean() / 2)


def comparison(agreed: Agreed, terms: Terms, judge: Judge, stats: np.ndarray) -> Comparison | None:
    """Return how the joint model does beside the lone one; None where there is nothing to compare.

    On held-out rows where there are any. Else on own rows: the lone model of each part is learned from the others, or
    it would only be praised for what it was shown.
    """
    own, away = judge.own, judge.away
    held_out = away is not None and away.labels.size >= FEWEST_ROWS
    judged = _some(away if held_out and away is not None else own)
    if not agreed.learner.neighbours or judged.labels.size < FEWEST_ROWS or np.unique(own.labels).size < 2:
        return None  # alone already; or a lone model knows one class, and is never wrong about it
    joint = _posterior(judged, agreed, stats).argmax(axis=1) != judged.labels
    alone = np.empty(judged.labels.size, dtype=bool)
    if held_out:
        alone[:] = _wrong(_lone(agreed, terms, _some(own)), judged)
    else:
        fold = np.random.default_rng(0).permutation(judged.labels.size) % FOLDS
        for number in range(FOLDS):
            others, part = _taken(judged, fold != number), _taken(judged, fold == number)
            alone[fold == number] = _wrong(_lone(agreed, terms, others), part)
    return Comparison.of(joint, alone, held_out)


def _lone(agreed: Agreed, terms: Terms, rows: Sample) -> tuple[Family, np.ndarray]:
    """Return the family and S [C, K] of a peer with these rows and no neighbours: same terms, no noise."""
    count, classes = rows.labels.size, len(agreed.schema.classes)
    family = layouts.guarded(agreed.layout, float(count), calibrate=True)
    held = Holdings(family, rows.rows, rows.labels, np.ones(count), np.array([count]), classes)
    if terms.start == "uniform" and agreed.strategy != "consensus-ml":
        stats = start_statistics("uniform", family, classes, count / terms.lr)
    else:
        own = held.statistics() if not held.incomplete.any() else held.expected(held.alone(held.apart()))
        if agreed.strategy == "consensus-ml":
            return family, own[0]
        stats = own[0] / terms.lr
        if terms.start == "marginal":
            stats = np.tile(stats.sum(axis=0) / classes, (classes, 1))
    residual = held.residual(terms.rounds, terms.local_steps)
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


def _some(sample: Sample) -> Sample:
    """Return the rows, or as many as are enough, evenly drawn."""
    count = sample.labels.size
    if count <= MOST_ROWS:
        return sample
    return _taken(sample, np.linspace(0, count - 1, MOST_ROWS).astype(np.int64))


def _taken(sample: Sample, which: np.ndarray) -> Sample:
    return Sample(
        sample.family, Rows(sample.rows.values[which], sample.rows.codes[which]), sample.labels[which]
    )
