"""The metrics of a run at its end: of the peers, and of what they are compared with, all on the same test rows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from peerbayes.data.arguments import shown
from peerbayes.data.table import Array, Table
from peerbayes.learning import metrics
from peerbayes.learning.metrics import Outcome, Sample
from peerbayes.model.devices import fetch
from peerbayes.model.scaling import Scaling
from peerbayes.simulation import scores
from peerbayes.simulation.evaluation import Evaluation, local_stats
from peerbayes.simulation.learned_baselines import Predictions, learned
from peerbayes.simulation.notes import NO_TEST
from peerbayes.simulation.population import Population
from peerbayes.simulation.scores import ERROR, MAJORITY, OF_LABELS, PEERS, Metric, Score, Scores
from peerbayes.simulation.settings import SimulationSettings


class _Predicted(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Predictions of the test rows, as scikit-learn's scorers want them."""

    def __init__(self, posterior: Any = None, classes: Any = None) -> None:
        self.posterior, self.classes = posterior, classes

    @property
    def classes_(self) -> np.ndarray:
        return np.asarray(self.classes)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: Any, y: Any) -> _Predicted:
        raise NotImplementedError("these are predictions of a fitted model")

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the test rows, which X must be."""
        if len(X) != len(self.posterior):
            raise ValueError(f"{len(X)} rows are asked for; expected the {len(self.posterior)} test rows")
        return np.asarray(self.posterior)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each test row."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


@dataclass(eq=False)
class Scoring:
    """Collects the figures of all learners."""

    settings: SimulationSettings
    population: Population
    evaluation: Evaluation
    rows: list[Score] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def sample(self) -> Sample | None:
        """The test rows that all are evaluated on, if there are any."""
        return self.evaluation.test

    @cached_property
    def chosen(self) -> np.ndarray:
        """[m] which of the test rows these are."""
        tested = self.population.test_rows
        count = 0 if tested is None else tested.labels.size
        most = self.settings.judged_rows[1]
        return metrics.drawn(count, most, self.population.peer_count, self.settings.seed)

    @cached_property
    def raw(self) -> tuple[Any, np.ndarray]:
        """The test rows and labels as the user has them, for scorers from outside."""
        tested = self.population.test_rows
        assert tested is not None
        return Table.of(tested.X).take(self.chosen).native, np.asarray(tested.y)[self.chosen]

    @property
    def names(self) -> list[str]:
        """The metrics, the error first."""
        return [ERROR, *(metric.name for metric in self.settings.metrics)]

    # --- learners one by one

    def peers(
        self, stats: np.ndarray, of_weights: bool, scaling: Scaling | None, last: np.ndarray
    ) -> Outcome:
        """Add the peers' models S [N, C, K], whose errors are in the last records [N, 8]; return their outcome."""
        if self.sample is None:
            for learner in (PEERS, MAJORITY):
                self._missing(learner, self.names, NO_TEST)
            return self.evaluation.outcome(stats, of_weights, scaling)
        counted = self.evaluation.counted(len(stats))
        outcome = self.add(
            PEERS, self.sample.posteriors(stats[counted], of_weights, scaling), last[counted, 3]
        )
        self._majority()
        self._note_rows(len(counted))
        return outcome

    def alone(self, errors: np.ndarray | None) -> None:
        """Add the peers alone, with the errors [N'] of those that count; None: the run's own peers were alone."""
        if self.sample is None:
            return
        if errors is None:
            for row in [row for row in self.rows if row.learner == PEERS]:
                self.rows.append(row._replace(learner=scores.ALONE))
                if row.key in self.reasons:
                    self._missing_key(self.rows[-1].key, self.reasons[row.key])
            return
        stats = np.asarray(fetch(self.local), dtype=np.float64)
        counted = self.evaluation.counted(len(stats))
        self.add(scores.ALONE, self.sample.posteriors(stats[counted], False), errors)

    def pooled(self, posteriors: dict[str, np.ndarray]) -> None:
        """Add models of pooled rows by their posteriors [m', C] of all test rows."""
        for learner, posterior in posteriors.items():
            self.add(learner, [posterior[self.chosen]])

    def baselines(self) -> None:
        """Learn the baselines that the settings name, and add them."""
        if self.sample is None or not self.settings.baselines:
            return
        for predictions in learned(self.settings, self.population, self.evaluation, self.sample, self):
            self._baseline(predictions)

    @cached_property
    def local(self) -> Array:
        """[N, C, K] the statistics of each peer after all rounds on its own."""
        return local_stats(self.settings, self.population)

    @property
    def result(self) -> Scores:
        """The figures of all learners so far."""
        return Scores(tuple(self.rows), self.reasons, tuple(dict.fromkeys(self.notes)))

    # --- inside

    def add(
        self,
        learner: str,
        posteriors: Iterable[np.ndarray],
        errors: np.ndarray | None = None,
        only: Sequence[str] = (),
    ) -> Outcome:
        """Add a learner by the posteriors [m, C] of its models, one or several; return their mean outcome.

        errors  [N] of all its models, where only some are in `posteriors`
        only    the metrics that can be computed; (): all
        """
        assert self.sample is not None
        outcomes, figures = [], []
        for posterior in posteriors:
            finite = bool(np.isfinite(posterior).all())
            outcomes.append(Outcome.of(posterior if finite else np.nan_to_num(posterior), self.sample.labels))
            figures.append(self._figures(learner, posterior, outcomes[-1], finite, only))
        several = errors is not None or len(figures) > 1
        for name, values in zip(self.names, np.array(figures).T, strict=True):
            values = errors if name == ERROR and errors is not None else values
            spread = float(values.std()) if several else math.nan
            self.rows.append(
                Score(learner, name, float(values.mean()), spread, len(values), self.sample.labels.size)
            )
        return Outcome.mean(outcomes)

    def _figures(
        self, learner: str, posterior: np.ndarray, outcome: Outcome, finite: bool, only: Sequence[str]
    ) -> list[float]:
        assert self.sample is not None
        labels, figures = self.sample.labels, [scores.error(posterior, self.sample.labels, outcome)]
        for metric in self.settings.metrics:
            value, problem = math.nan, ""
            if not finite:
                problem = (
                    f"the probabilities of {scores.title_of(learner)} are no finite numbers: they diverged"
                )
            elif only and metric.name not in only:
                problem = f"{learner} predicts classes without probabilities"
            elif metric.scorer is None:
                value = scores.BUILT_IN[metric.name](posterior, labels, outcome)
                problem = "" if math.isfinite(value) else self._one_class()
            else:
                value, problem = self._scored(metric, posterior)
            if problem:
                self._missing_key(Score(learner, metric.name, 0.0, 0.0, 0, 0).key, problem)
            figures.append(value)
        return figures

    def _scored(self, metric: Metric, posterior: np.ndarray) -> tuple[float, str]:
        """Return what a scorer from outside says of a posterior, and why it says nothing."""
        assert metric.scorer is not None
        X, y = self.raw
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an undefined metric is NaN, and a sentence says so
                value = float(metric.scorer(_Predicted(posterior, self.population.schema.classes), X, y))
        except Exception as error:  # whatever somebody else's scorer may raise; the run is not lost with it
            if "pos_label" in str(error):
                return math.nan, scores.which_is_positive(metric, self.population.schema.classes)
            return math.nan, f"the scorer {metric.name} failed: {type(error).__name__}: {shown(str(error))}"
        return value, "" if math.isfinite(
            value
        ) else f"the scorer {metric.name} is not defined on these test rows"

    def _one_class(self) -> str:
        assert self.sample is not None
        classes = self.population.schema.classes
        name = classes[int(self.sample.labels[0])]
        return f"all test rows are of the class {name!r}, and an AUC compares rows of two classes"

    def _majority(self) -> None:
        """Add the model that knows the shares of the classes alone."""
        assert self.sample is not None
        held, honest = self.population.held, self.population.from_honest
        mass = np.bincount(held.labels[honest], held.row_weights[honest], minlength=held.classes)
        shape = self.sample.labels.size, held.classes
        self.add(MAJORITY, [np.broadcast_to(mass / mass.sum(), shape)])

    def _baseline(self, predictions: Predictions) -> None:
        self.notes += predictions.notes
        if predictions.problem:
            self._missing(predictions.learner, self.names, predictions.problem)
            return
        self.add(predictions.learner, predictions.posteriors, only=() if predictions.probable else OF_LABELS)

    def _missing(self, learner: str, names: Sequence[str], reason: str) -> None:
        """Add a learner without figures, and why."""
        for name in names:
            row = Score(learner, name, math.nan, math.nan, 0, 0)
            self.rows.append(row)
            self._missing_key(row.key, reason)

    def _missing_key(self, key: str, reason: str) -> None:
        self.reasons[key] = self.reasons[f"{key}_std"] = reason

    def _note_rows(self, peers: int) -> None:
        """Note which rows and peers figures are of, where not of all."""
        assert self.sample is not None
        population, classes = self.population, self.population.schema.classes
        labels, all_rows = (
            self.sample.labels,
            0 if population.test_rows is None else population.test_rows.labels.size,
        )
        if labels.size < all_rows:
            self.notes.append(
                f"metrics are of {labels.size:,} of {all_rows:,} test rows, drawn at random (evaluate_rows)"
            )
        compared = self.sample.compared(peers, len(classes)).size
        if compared < peers:
            self.notes.append(
                f"metrics other than the error are of {compared:,} of {peers:,} peers, evenly spaced, to take no longer"
            )
        absent = [
            classes[index] for index in np.flatnonzero(np.bincount(labels, minlength=len(classes)) == 0)
        ]
        if absent and len(absent) < len(classes) - 1:
            self.notes.append(
                f"no test row is of the class {', '.join(map(repr, absent[:3]))}"
                f"{f' and {len(absent) - 3} more' if len(absent) > 3 else ''}: means over classes are over the others"
            )
        if population.hidden is not None:
            self.notes.append("references, the majority class and baselines learn from rows without noise")
