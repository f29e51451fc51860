"""The test rows that all peers are evaluated on, and what peers alone and pooled learning reach on them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from sklearn.exceptions import ConvergenceWarning

from peerbayes.data.schema import Schema
from peerbayes.data.table import Array, Table
from peerbayes.errors import SingularDataWarning
from peerbayes.estimators.classifiers import ESTIMATOR_OF, MixedNB
from peerbayes.learning import metrics
from peerbayes.learning import site_scores as scoring
from peerbayes.learning.selection import HeldOut
from peerbayes.model import layout, passes
from peerbayes.model.calibration import AGREED_STEPS, TO_THE_END, likelihood
from peerbayes.model.families import BayesNet, Family, Rows
from peerbayes.model.scaling import Scaling
from peerbayes.model.sources import Encoded, Observed, counted_rows, observe
from peerbayes.simulation import drivers
from peerbayes.simulation.faults import Faults
from peerbayes.simulation.population import Population
from peerbayes.simulation.records import record
from peerbayes.simulation.result import SITE_COLUMNS
from peerbayes.simulation.settings import SimulationSettings

# --- evaluation of simulated peers: all on the same rows, and only honest ones that have not vanished count


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The rows that models are evaluated on, and the peers whose figures count."""

    family: Family
    train: metrics.Sample
    """Rows of honest peers."""
    test: metrics.Sample | None
    attackers: np.ndarray
    faults: Faults
    message_rounds: int
    """Rounds of messages in all."""
    exchanges: int
    """Rounds of messages in a round of learning: faults count the former."""

    @classmethod
    def of(cls, settings: SimulationSettings, peers: Population) -> Evaluation:
        """Return the evaluation of these peers; training rows are those of honest peers."""

        def sample(rows: Rows, labels: np.ndarray, limit: int | None) -> metrics.Sample:
            return metrics.sample(
                peers.family, rows, labels, peers.held.device, limit, peers.peer_count, settings.seed
            )

        rows, from_honest = peers.held.rows, peers.from_honest
        training_rows = rows if from_honest.all() else Rows(rows.values[from_honest], rows.codes[from_honest])
        training, testing = settings.judged_rows
        test_rows = peers.test_rows
        train = sample(training_rows, peers.held.labels[from_honest], training)
        test = None if test_rows is None else sample(test_rows.rows, test_rows.labels, testing)
        judged_rows = train.labels.size + (0 if test is None else test.labels.size)
        logits = metrics.run_logits(
            peers.peer_count, peers.held.classes, judged_rows, settings.rounds, settings.evaluate_every
        )
        return cls(
            peers.family,
            replace(train, run_logits=logits),
            None if test is None else replace(test, run_logits=logits),
            peers.attackers,
            settings.network_faults,
            settings.message_rounds,
            settings.message_rounds // settings.rounds,
        )

    @property
    def test_rows(self) -> tuple[Any, ...]:
        """Test rows and their labels, if there are any."""
        return () if self.test is None else (self.test.rows, self.test.labels)

    def record(
        self,
        round_index: int,
        stats: Array,
        of_weights: bool,
        sent: np.ndarray,
        scaling: Scaling | None = None,
    ) -> np.ndarray:
        """Return a row for each peer after a round: [N, C, K], bytes sent [N] -> [N, 8].

        Attackers, and peers that have vanished for good, have no figures (NaN).
        """
        without = self._without(round_index * self.exchanges)
        remaining = stats[np.delete(np.arange(len(stats)), without), ...] if without.size else stats
        mean = array_namespace(stats).mean(remaining, axis=0)
        figures = metrics.judged(stats, mean, of_weights, self.family, self.train, self.test, scaling)
        figures[:, without] = np.nan
        return record(round_index, figures, sent)

    def _without(self, message_round: int) -> np.ndarray:
        """Return the peers whose figures do not count after a round of messages, in order."""
        return np.union1d(self.attackers, self.faults.gone(message_round)).astype(np.int64)

    def counted(self, peer_count: int) -> np.ndarray:
        """Return the peers whose figures count at the end: honest ones that have not vanished."""
        return np.delete(np.arange(peer_count), self._without(self.message_rounds))

    def errors(self, stats: Array) -> np.ndarray:
        """Return the training and test errors of the peers that count at the end: [N, C, K] -> [2, N']."""
        honest_stats = stats[self.counted(len(stats)), ...]
        mean = array_namespace(honest_stats).mean(honest_stats, axis=0)
        return metrics.judged(honest_stats, mean, False, self.family, self.train, self.test)[:2]

    def outcome(self, stats: np.ndarray, of_weights: bool, scaling: Scaling | None = None) -> metrics.Outcome:
        """Return the outcome of the predictions of peers that count, on test rows where there are any."""
        sample = self.train if self.test is None else self.test
        return sample.outcome(stats[self.counted(len(stats))], of_weights, scaling)


# --- what the rows look like, beside the peers' models


def statistics_of_rows(peers: Population) -> tuple[np.ndarray, Observed] | tuple[None, None]:
    """Return YᵀΦ [C, K] of the honest peers' rows, and their columns' bits and ranges; nothing of private rows.

    Real peers have the first by one exact sum.
    """
    if peers.hidden is not None:
        return None, None
    held, honest = peers.held, np.flatnonzero(peers.from_honest)
    rows, labels, weights = held.select(honest), held.labels[honest], held.row_weights[honest]
    source, missing = Encoded(peers.schema, rows), bool(held.incomplete.any())
    data = passes.labelled(peers.family, source, labels, held.classes, weights, missing=missing)
    some = counted_rows(len(labels), len(peers.schema.columns))
    counted = Rows(rows.values[some], rows.codes[some])
    return likelihood(data), observe(counted, labels[some], held.classes, weights[some])


# --- reference errors: of peers without a network, and of central learners that have all rows


def local_errors(stats: Array, evaluation: Evaluation) -> tuple[dict[str, float], np.ndarray]:
    """Return the mean errors of peers without a network S [N, C, K], those that count, and the test error of each."""
    train, test = evaluation.errors(stats)
    return {"train_local": float(train.mean()), "test_local": float(test.mean())}, test


def own_errors(records: np.ndarray, evaluation: Evaluation, peer_count: int) -> dict[str, float]:
    """Return the mean errors of a run without messages, whose peers were alone, by its records."""
    train, test = records[-peer_count:, 2:4][evaluation.counted(peer_count)].mean(axis=0)
    return {"train_local": float(train), "test_local": float(test)}


def local_stats(settings: SimulationSettings, peers: Population) -> Array:
    """Return every peer's statistics after all rounds of "local": [N, C, K]."""
    driver = drivers.local_driver(settings, peers)
    state = driver.begin(peers.held.device.put(drivers.start_alone(settings, peers)))
    for round_index in range(1, settings.rounds + 1):
        state, _ = driver.advance(state, round_index)
    return driver.read(state)


# Errors, outcomes and posteriors of learners, by name.
Learned = tuple[dict[str, float], dict[str, metrics.Outcome], dict[str, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Pooled:
    """The pooled rows of all honest peers, copied only when a model learns from them."""

    family: Family
    schema: Schema
    table: Table
    y: Any
    rows: np.ndarray
    """[m] their positions in the table."""
    weights: np.ndarray
    """[m] their weights."""
    test: tuple[Any, Any] | None
    """Test rows and labels."""

    @classmethod
    def of(cls, peers: Population, y: Any) -> Pooled:
        from_honest, test_rows = peers.from_honest, peers.test_rows
        return cls(
            peers.family,
            peers.schema,
            peers.table,
            y,
            peers.row_indices[from_honest],
            peers.held.row_weights[from_honest],
            None if test_rows is None else (test_rows.X, test_rows.y),
        )

    def learned(self, start: str, lr: float, rounds: int) -> Learned:
        """Return the errors of RC (the last iterate, as many iterations as rounds) and ML, their outcomes, and their
        posteriors of all test rows, if there are any: [m, C] each.
        """
        X, labels = self.table.take(self.rows).native, np.asarray(self.y)[self.rows]
        errors, outcomes, posteriors = {}, {}, {}
        for name, model in self._models(start, lr, rounds).items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # a reference need not be perfect
                warnings.simplefilter("ignore", SingularDataWarning)
                model.fit(X, labels, sample_weight=self.weights)
            errors[f"train_{name}"] = float(1.0 - model.score(X, labels))
            errors[f"test_{name}"] = float(np.nan if self.test is None else 1.0 - model.score(*self.test))
            if self.test is None and name == "rc_end":
                continue
            inputs, truth = (X, labels) if self.test is None else self.test
            posterior = model.predict_proba(inputs)
            if self.test is not None:
                posteriors[name] = posterior
            if name != "rc_end":
                outcomes[name] = metrics.Outcome.of(posterior, self.schema.encode_labels(truth))
        return errors, outcomes, posteriors

    def _models(self, start: str, lr: float, rounds: int) -> dict[str, Any]:
        """Return the estimators of RC, of RC taken to its end and of ML, with the peers' structure if they have one."""
        parameters: dict[str, Any] = {
            "schema": self.schema, "start": start, "lr": lr, "max_iter": rounds, "keep": "last",
            "step": "fixed", "validation_fraction": 0.0, "alpha": 1.0, "shrinkage": None,
        }  # fmt: skip
        if isinstance(self.family, BayesNet):
            parameters["structure"] = layout.named_parents(self.family, self.schema)
        kind, of_crosses, ml = ESTIMATOR_OF[self.family.name], dict[str, Any](), dict[str, Any]()
        of_likelihood = kind
        if (
            self.family.takes_crosses
        ):  # maximum likelihood would count what columns and crosses share several times
            of_likelihood, ml = MixedNB, {"schema": replace(self.schema, crosses=())}
            of_crosses["interactions"] = len(self.schema.crosses)
        calibrated = {"calibrate": True, "em_iter": AGREED_STEPS, "em_tol": 0.0, **parameters, **of_crosses}
        return {
            "rc": kind(**calibrated),
            "rc_end": kind(**{**calibrated, **TO_THE_END}),
            "ml": of_likelihood(calibrate=False, **{**parameters, **ml}),
        }


# --- every peer's own model on the rows that it holds out, as real peers evaluate theirs after a run


def site_scores(held_out: HeldOut | None, stats: Array, scaling: Scaling | None) -> np.ndarray:
    """Return the figures of each peer and, in the last row, of all together: S [N, C, K] -> [N + 1, columns].

    Where nobody holds out rows, there are none: [0, columns].
    """
    if held_out is None:
        return np.zeros((0, len(SITE_COLUMNS)))
    scores = [scoring.SiteScores.of(*tested, scaling) for tested in held_out.logits(stats)]
    together = scoring.figures_of_all(scoring.total(scores, stats.shape[1]))
    own = [{**site.figures, "auc_low": site.auc, "auc_high": site.auc} for site in scores]
    rows = [*own, together]
    return np.array([[np.nan if row[name] is None else row[name] for name in SITE_COLUMNS] for row in rows])
