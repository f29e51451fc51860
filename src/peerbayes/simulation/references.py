"""What peers are compared with: themselves without a network, and learners that have all rows."""

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
from peerbayes.simulation.judging import Judging
from peerbayes.simulation.population import Population
from peerbayes.tables import Table


def alone(run: Run, asked: Asked, peers: Population, judging: Judging) -> dict[str, float]:
    """Mean errors of honest peers that learned without a network; a run of "local" has them already."""
    if run.configuration["strategy"] == "local":
        train, test = run.records[-peers.nodes :, 2:4][peers.honest].mean(axis=0)
    else:
        train, test = judging.errors(_learned_alone(asked, peers))
    return {"train_local": float(train), "test_local": float(test)}


def _learned_alone(asked: Asked, peers: Population) -> Array:
    """Every peer's statistics after all rounds of "local": [N, C, K]."""
    driver = drivers.alone(asked, peers)
    state = driver.begin(peers.held.place.put(starts.alone(asked, peers)))
    for turn in range(1, asked.rounds + 1):
        state, _ = driver.advance(state, turn)
    return driver.read(state)


@dataclass(frozen=True, eq=False)
class Pooled:
    """The rows of all honest peers in one hand. They are copied once somebody learns from them."""

    family: Family
    schema: Schema
    table: Table
    y: Any
    own: np.ndarray
    """[m] which rows of the table."""
    weights: np.ndarray
    """[m] of each of them."""
    away: tuple[Any, Any] | None
    """Rows and labels to test on."""

    @classmethod
    def of(cls, peers: Population, y: Any) -> Pooled:
        fair, unseen = peers.fair, peers.unseen
        return cls(
            peers.family,
            peers.schema,
            peers.table,
            y,
            peers.own[fair],
            peers.held.row_weights[fair],
            None if unseen is None else (unseen.X, unseen.y),
        )

    def learned(
        self, start: str, lr: float, rounds: int
    ) -> tuple[dict[str, float], dict[str, metrics.Outcome]]:
        """Errors of RC (the last iterate, as many iterations as rounds) and ML, and their predictions."""
        X, labels = plain(rows_at(self.table, self.own)), np.asarray(self.y)[self.own]
        told, outcomes = {}, {}
        for name, model in self._models(start, lr, rounds).items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # a reference need not be perfect
                model.fit(X, labels, sample_weight=self.weights)
            told[f"train_{name}"] = float(1.0 - model.score(X, labels))
            told[f"test_{name}"] = float(np.nan if self.away is None else 1.0 - model.score(*self.away))
            rows, truth = (X, labels) if self.away is None else self.away
            outcomes[name] = metrics.Outcome.of(model.predict_proba(rows), self.schema.encode_labels(truth))
        return told, outcomes

    def _models(self, start: str, lr: float, rounds: int) -> dict[str, Any]:
        """RC and ML, with the structure of the peers' network if they have one."""
        given: dict[str, Any] = {
            "schema": self.schema, "start": start, "lr": lr, "max_iter": rounds, "keep": "last"
        }  # fmt: skip
        if isinstance(self.family, BayesNet):
            given["structure"] = layouts.named_parents(self.family, self.schema)
        kind = ESTIMATOR_OF[self.family.name]
        return {
            "rc": kind(calibrate=True, em_iter=AGREED_STEPS, em_tol=0.0, **given),
            "ml": kind(calibrate=False, **given),
        }
