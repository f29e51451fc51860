"""Evaluation of simulated peers: all on the same rows, and only honest ones count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from peerbayes import metrics
from peerbayes.core import Array
from peerbayes.families import Family, Rows
from peerbayes.runs import record
from peerbayes.simulation.asked import Asked
from peerbayes.simulation.population import Population


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The rows that models are evaluated on, and the honest peers."""

    family: Family
    train: metrics.Sample
    """Rows of honest peers."""
    test: metrics.Sample | None
    attackers: np.ndarray
    honest: np.ndarray

    @classmethod
    def of(cls, settings: Asked, peers: Population) -> Evaluation:
        """Return the evaluation of these peers; training rows are those of honest peers."""

        def sample(rows: Rows, labels: np.ndarray, limit: int | None) -> metrics.Sample:
            return metrics.sample(
                peers.family, rows, labels, peers.held.place, limit, peers.nodes, settings.seed
            )

        rows, from_honest = peers.held.rows, peers.from_honest
        training_rows = rows if from_honest.all() else Rows(rows.values[from_honest], rows.codes[from_honest])
        training, testing = settings.judged_rows
        test_rows = peers.test_rows
        return cls(
            peers.family,
            sample(training_rows, peers.held.labels[from_honest], training),
            None if test_rows is None else sample(test_rows.rows, test_rows.labels, testing),
            peers.attackers,
            peers.honest,
        )

    @property
    def test_rows(self) -> tuple[Any, ...]:
        """Test rows and their labels, if there are any."""
        return () if self.test is None else (self.test.rows, self.test.labels)

    def record(self, round_index: int, stats: Array, of_weights: bool, sent: np.ndarray) -> np.ndarray:
        """Return a row for each peer after a round: [N, C, K], bytes sent [N] -> [N, 8]; NaN for attackers."""
        mean = array_namespace(stats).mean(stats[self.honest, ...], axis=0)
        figures = metrics.judged(stats, mean, of_weights, self.family, self.train, self.test)
        figures[:, self.attackers] = np.nan
        return record(round_index, figures, sent)

    def errors(self, stats: Array) -> np.ndarray:
        """Return the mean training and test error over honest peers: [N, C, K] -> [2]."""
        honest_stats = stats[self.honest, ...]
        mean = array_namespace(honest_stats).mean(honest_stats, axis=0)
        return metrics.judged(honest_stats, mean, False, self.family, self.train, self.test)[:2].mean(axis=1)

    def outcome(self, stats: np.ndarray, of_weights: bool) -> metrics.Outcome:
        """Return the outcome of honest peers' predictions, on test rows where there are any."""
        sample = self.train if self.test is None else self.test
        return sample.outcome(stats[self.honest], of_weights)
