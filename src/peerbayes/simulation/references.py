"""Reference errors: of peers without a network, and of central learners that have all rows."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from peerbayes import layouts, metrics
from peerbayes.core import Array
from peerbayes.estimators import ESTIMATOR_OF
from peerbayes.expectation import AGREED_STEPS
from peerbayes.families import BayesNet, Family
from peerbayes.inputs import plain, rows_at
from peerbayes.runs import Run
from peerbayes.schema import Schema
from peerbayes.simulation import drivers, starts
from peerbayes.simulation.asked import Asked
from peerbayes.simulation.judging import Evaluation
from peerbayes.simulation.population import Population
from peerbayes.tables import Table


def local_errors(run: Run, settings: Asked, peers: Population, evaluation: Evaluation) -> dict[str, float]:
    """Return the mean errors of honest peers that learn without a network; a run of "local" has them already."""
    if run.configuration["strategy"] == "local":
        train, test = run.records[-peers.nodes :, 2:4][peers.honest].mean(axis=0)
    else:
        train, test = evaluation.errors(_local_stats(settings, peers))
    return {"train_local": float(train), "test_local": float(test)}


def _local_stats(settings: Asked, peers: Population) -> Array:
    """Return every peer's statistics after all rounds of "local": [N, C, K]."""
    driver = drivers.local_driver(settings, peers)
    state = driver.begin(peers.held.place.put(starts.alone(settings, peers)))
    for round_index in range(1, settings.rounds + 1):
        state, _ = driver.advance(state, round_index)
    return driver.read(state)


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

    def learned(
        self, start: str, lr: float, rounds: int
    ) -> tuple[dict[str, float], dict[str, metrics.Outcome]]:
        """Return the errors of RC (the last iterate, as many iterations as rounds) and ML, and their outcomes."""
        X, labels = plain(rows_at(self.table, self.rows)), np.asarray(self.y)[self.rows]
        errors, outcomes = {}, {}
        for name, model in self._models(start, lr, rounds).items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # a reference need not be perfect
                model.fit(X, labels, sample_weight=self.weights)
            errors[f"train_{name}"] = float(1.0 - model.score(X, labels))
            errors[f"test_{name}"] = float(np.nan if self.test is None else 1.0 - model.score(*self.test))
            inputs, truth = (X, labels) if self.test is None else self.test
            outcomes[name] = metrics.Outcome.of(model.predict_proba(inputs), self.schema.encode_labels(truth))
        return errors, outcomes

    def _models(self, start: str, lr: float, rounds: int) -> dict[str, Any]:
        """Return the estimators of RC and ML, with the peers' structure if they have one."""
        parameters: dict[str, Any] = {
            "schema": self.schema, "start": start, "lr": lr, "max_iter": rounds, "keep": "last"
        }  # fmt: skip
        if isinstance(self.family, BayesNet):
            parameters["structure"] = layouts.named_parents(self.family, self.schema)
        kind = ESTIMATOR_OF[self.family.name]
        return {
            "rc": kind(calibrate=True, em_iter=AGREED_STEPS, em_tol=0.0, **parameters),
            "ml": kind(calibrate=False, **parameters),
        }
