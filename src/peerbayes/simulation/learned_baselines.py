"""The baselines that a simulation names, learned from the rows of its peers: what each predicts of the test rows.

    fedavg, softmax, dsgd-softmax    softmax regression on the peers' features φ: see `baselines`
    vote                             ensembles of the models that peers learn alone: two learners, the mean of their
                                     posteriors ("vote") and the product ("vote-product")
    an estimator of scikit-learn     on all rows in one place ("NAME-pooled"), and each peer on its own ("NAME-alone")

Nobody lies to them, no message is lost, and nothing hides their rows. Estimators read columns as peers do: numbers in
standard units, 0 where missing, and one-hot categories.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from sklearn.utils.validation import has_fit_parameter

from peerbayes import network as topologies
from peerbayes.data.arguments import shown
from peerbayes.data.table import Array
from peerbayes.learning.metrics import Sample
from peerbayes.model import core
from peerbayes.model.devices import NUMPY, fetch
from peerbayes.simulation import baselines
from peerbayes.simulation.baselines import (
    FEDAVG,
    MAJORITY,
    OVER_NETWORK,
    SOFTMAX,
    VOTE,
    Baseline,
    learners_of,
)
from peerbayes.simulation.evaluation import Evaluation
from peerbayes.simulation.population import Population, plain_columns
from peerbayes.simulation.settings import SimulationSettings

# Columns of φ up to which softmax regression is learned: it inverts their second moments, K·K.
MOST_FEATURES = 1 << 12

# Peers whose own estimators are fitted at most.
MOST_ALONE = 64


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a baseline predicts of the test rows."""

    learner: str
    posteriors: Iterable[np.ndarray] = ()
    """[m, C] of each of its models."""
    probable: bool = True
    """Whether these are probabilities, not classes alone."""
    problem: str = ""
    """Why it learned nothing."""
    notes: tuple[str, ...] = field(default=())


class Alone(Protocol):
    """Has what peers learn alone."""

    @property
    def local(self) -> Array:
        """[N, C, K] the statistics of each peer."""


def learned(
    settings: SimulationSettings, peers: Population, evaluation: Evaluation, sample: Sample, alone: Alone
) -> Iterator[Predictions]:
    """Yield what each baseline of the settings predicts of the sample of test rows."""
    for baseline in settings.baselines:
        if baseline.name == MAJORITY:
            continue  # always there
        if baseline.name in OVER_NETWORK:
            yield _over_network(baseline.name, settings, peers, sample)
        elif baseline.name == VOTE:
            yield from _votes(fetch(alone.local)[evaluation.counted(peers.peer_count)], sample)
        else:
            yield from _Estimators(baseline, settings, peers, evaluation, sample).predictions()


# --- softmax regression over the network or with a server, and ensembles of what peers learn alone


def _over_network(name: str, settings: SimulationSettings, peers: Population, sample: Sample) -> Predictions:
    """Return what softmax regression over the network, or with a server, predicts."""
    held = replace(peers.held, device=NUMPY)
    if held.family.size > MOST_FEATURES:
        return Predictions(
            name, problem=f"{name} inverts a matrix of {held.family.size:,} × {held.family.size:,} moments; the most "
            f"are {MOST_FEATURES:,}",
        )  # fmt: skip
    if name == FEDAVG:
        weights = baselines.federated(held, settings.rounds).weights
    else:
        links = topologies.without_absences(peers.network)
        weights = baselines.softmax(held, links, settings.rounds, corrected=name == SOFTMAX).weights
    faults = settings.network_faults.occur or settings.peers_down > 0
    note = f"{name} learns without lost messages and absent peers" if faults else ""
    return Predictions(name, sample.posteriors(weights, True), notes=(note,) if note else ())


def _votes(stats: np.ndarray, sample: Sample) -> Iterator[Predictions]:
    """Yield what the mean and the product of the posteriors of models S [N, C, K] predict."""
    mean, product, models = 0.0, 0.0, 0
    for logits in sample.all_logits(np.asarray(stats, dtype=np.float64), False):
        log_posterior = core.log_softmax(logits)
        mean, product, models = mean + np.exp(log_posterior), product + log_posterior, models + 1
    fewer = models < len(stats)
    note = (f"{VOTE} is that of {models:,} of {len(stats):,} peers, evenly spaced",) if fewer else ()
    of_mean, of_product = learners_of(VOTE)
    yield Predictions(of_mean, [np.asarray(mean) / models], notes=note)
    yield Predictions(of_product, [core.softmax(np.asarray(product) / models)])


# --- estimators of scikit-learn


@dataclass(frozen=True, eq=False)
class _Estimators:
    """An estimator that learns from all rows, and copies of it that learn from one peer's each."""

    baseline: Baseline
    settings: SimulationSettings
    peers: Population
    evaluation: Evaluation
    sample: Sample

    def predictions(self) -> Iterator[Predictions]:
        """Yield what the estimator of all rows predicts, and what those of single peers do."""
        held, schema = self.peers.held, self.peers.schema
        features, tested = plain_columns(schema, held.rows), plain_columns(schema, self.sample.rows)
        counted = self.evaluation.counted(self.peers.peer_count)
        chosen = counted[
            np.unique(np.linspace(0, len(counted) - 1, min(MOST_ALONE, len(counted))).astype(int))
        ]
        of_all = [np.flatnonzero(self.peers.from_honest)]
        slices = held.slices
        of_peers = [np.arange(slices[peer].start, slices[peer].stop) for peer in chosen]
        pooled, alone = learners_of(self.baseline.name)
        fewer = f"{alone} is that of {len(chosen)} of {len(counted):,} peers, evenly spaced"
        yield self._learned(pooled, features, tested, of_all)
        yield self._learned(alone, features, tested, of_peers, fewer if len(chosen) < len(counted) else "")

    def _learned(
        self, learner: str, features: np.ndarray, tested: np.ndarray, shares: list[np.ndarray], note: str = ""
    ) -> Predictions:
        posteriors, probable = [], True
        for rows in shares:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # a baseline need not converge, nor see every class
                    posterior, sure = self._posterior(features, tested, rows)
            except (
                Exception
            ) as error:  # whatever somebody else's estimator may raise; the run is not lost with it
                problem = f"{learner} could not learn: {type(error).__name__}: {shown(str(error))}"
                return Predictions(learner, problem=problem)
            posteriors.append(posterior)
            probable &= sure
        return Predictions(learner, posteriors, probable, notes=(note,) if note else ())

    def _posterior(
        self, features: np.ndarray, tested: np.ndarray, rows: np.ndarray
    ) -> tuple[np.ndarray, bool]:
        """Return the posterior of the test rows [m, C] by an estimator fitted on some rows, and whether it has one."""
        held = self.peers.held
        labels, weights = held.labels[rows], held.row_weights[rows]
        posterior = np.zeros((len(tested), held.classes))
        if len(present := np.unique(labels)) == 1:  # many estimators refuse a single class
            posterior[:, present] = 1.0
            return posterior, True
        model = self.baseline.new(self.settings.seed)
        weighted = np.ptp(weights) > 0 and has_fit_parameter(model, "sample_weight")
        model.fit(features[rows], labels, **({"sample_weight": weights} if weighted else {}))
        if hasattr(model, "predict_proba"):
            posterior[:, np.asarray(model.classes_)] = model.predict_proba(tested)
            return posterior, True
        return core.one_hot(np.asarray(model.predict(tested)), held.classes), False
