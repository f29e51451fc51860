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
class Judging:
    """The rows that models are evaluated on, and the honest peers."""

    family: Family
    train: metrics.Sample
    """Rows of honest peers."""
    tested: metrics.Sample | None
    attackers: np.ndarray
    honest: np.ndarray

    @classmethod
    def of(cls, settings: Asked, peers: Population) -> Judging:
        """Return the evaluation of these peers; training rows are those of honest peers."""

        def sample(rows: Rows, labels: np.ndarray, most: int | None) -> metrics.Sample:
            return metrics.sample(
                peers.family, rows, labels, peers.held.place, most, peers.nodes, settings.seed
            )

        rows, fair = peers.held.rows, peers.fair
        judged_on = rows if fair.all() else Rows(rows.values[fair], rows.codes[fair])
        training, testing = settings.judged_rows
        unseen = peers.unseen
        return cls(
            peers.family,
            sample(judged_on, peers.held.labels[fair], training),
            None if unseen is None else sample(unseen.rows, unseen.labels, testing),
            peers.attackers,
            peers.honest,
        )

    @property
    def test_rows(self) -> tuple[Any, ...]:
        """Test rows and their labels, if there are any."""
        return () if self.tested is None else (self.tested.rows, self.tested.labels)

    def record(self, round_index: int, stats: Array, of_weights: bool, sent: np.ndarray) -> np.ndarray:
        """Return a row for each peer after a round: [N, C, K], bytes sent [N] -> [N, 8]; NaN for attackers."""
        mean = array_namespace(stats).mean(stats[self.honest, ...], axis=0)
        figures = metrics.judged(stats, mean, of_weights, self.family, self.train, self.tested)
        figures[:, self.attackers] = np.nan
        return record(round_index, figures, sent)

    def errors(self, stats: Array) -> np.ndarray:
        """Return the mean training and test error over honest peers: [N, C, K] -> [2]."""
        honest_stats = stats[self.honest, ...]
        mean = array_namespace(honest_stats).mean(honest_stats, axis=0)
        return metrics.judged(honest_stats, mean, False, self.family, self.train, self.tested)[:2].mean(
            axis=1
        )

    def outcome(self, stats: np.ndarray, of_weights: bool) -> metrics.Outcome:
        """Return the outcome of honest peers' predictions, on test rows where there are any."""
        sample = self.train if self.tested is None else self.tested
        return sample.outcome(stats[self.honest], of_weights)
