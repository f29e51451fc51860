"""Evaluation of a peer's model on the peer's own rows: those it learns from, and those it holds out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from peerbayes.families import Rows
from peerbayes.inference import infer_classes
from peerbayes.metrics import Sample
from peerbayes.peers.agreement import Agreed
from peerbayes.peers.exact_figures import NO_NOISE
from peerbayes.peers.hold_out import Table

SHARE = 20  # the pause between evaluations in multiples of their duration: they take a twentieth of the time


@dataclass
class Judge:
    """Evaluates a model after a round, as often as time allows."""

    training: Sample
    held_out: Sample | None
    of_weights: bool
    due: float = 0.0
    unknown: int = 0
    """Held-out rows whose class occurs in no peer's training rows: every model is wrong about them."""

    @classmethod
    def of(cls, agreed: Agreed, away: Table | None) -> Judge:
        """Return the evaluation of a peer with these held-out rows."""
        training = Sample(agreed.family, agreed.held.rows, agreed.held.labels)
        held_out, unknown = None, 0
        if away is not None:
            in_schema = _of_known_classes(away[1], agreed.schema.classes)
            unknown = int(np.sum(~in_schema))
            away = away[0][in_schema], away[1][in_schema]
        if away is not None and len(away[1]):
            rows, labels = agreed.schema.encode(away[0]), agreed.schema.encode_labels(away[1])
            # Where no training row misses a value, naive Bayes' layout cannot represent a row that does.
            without_missing = agreed.family.marks_missing and not getattr(agreed.family, "missing", False)
            usable = ~(np.isnan(rows.values).any(axis=1) & without_missing)
            if agreed.of_weights:  # bare weights cannot complete missing values
                usable &= ~agreed.family.incomplete(rows)
            held_out = Sample(agreed.family, Rows(rows.values[usable], rows.codes[usable]), labels[usable])
        return cls(training, held_out, agreed.of_weights, unknown=unknown)

    def figures(self, stats: np.ndarray) -> dict[str, float | None]:
        """Return the errors of S [C, K] on training and held-out rows."""
        began = time.monotonic()
        weights = stats[None] if self.of_weights else self.training.family.weights(stats[None])
        error, soft = self.training.errors(weights, soft=True)
        test_error = self._test_error(weights)
        now = time.monotonic()
        self.due = now + SHARE * (now - began)
        return {"train_error": float(error[0]), "soft_error": float(soft[0]), "test_error": test_error}

    def _test_error(self, weights: np.ndarray) -> float | None:
        """Return the error on held-out rows; None: there are none that a model can be tested on."""
        count = 0 if self.held_out is None else self.held_out.labels.size
        if count + self.unknown == 0:
            return None
        wrong = (
            0.0 if self.held_out is None else count * float(self.held_out.errors(weights, soft=False)[0][0])
        )
        return (wrong + self.unknown) / (count + self.unknown)


def _of_known_classes(labels: np.ndarray, classes: tuple[Any, ...]) -> np.ndarray:
    """Return which rows have a label that the schema names: [n]."""
    distinct, codes = infer_classes(labels)
    return np.array([label in classes for label in distinct], dtype=bool)[codes]


def told(figures: dict[str, Any], private: bool = False) -> str:
    """Return the error as a short text; "" where it was not evaluated. `private`: the agreement has an epsilon."""
    noise = f" ({NO_NOISE})" if private else ""
    if figures.get("test_error") is not None:
        return f"error {figures['test_error']:.4f} on held-out rows{noise}"
    if figures.get("train_error") is not None:
        return f"error {figures['train_error']:.4f} on its own rows{noise}"
    return ""
