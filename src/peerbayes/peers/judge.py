"""How a peer's model does on the peer's own rows: those it learns from, and those it holds out."""

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

SHARE = 20  # a model is judged again after so many times what judging took: a twentieth of the time is enough


@dataclass
class Judge:
    """Judges a model after a round, as often as time allows."""

    own: Sample
    away: Sample | None
    of_weights: bool
    due: float = 0.0
    unknown: int = 0
    """Rows held out whose class nobody has among the rows to learn from: every model is wrong on them."""

    @classmethod
    def of(cls, agreed: Agreed, away: Table | None) -> Judge:
        own = Sample(agreed.family, agreed.held.rows, agreed.held.labels)
        tested, unknown = None, 0
        if away is not None:
            known = _of_known_classes(away[1], agreed.schema.classes)
            unknown = int(np.sum(~known))
            away = away[0][known], away[1][known]
        if away is not None and len(away[1]):
            rows, labels = agreed.schema.encode(away[0]), agreed.schema.encode_labels(away[1])
            # Where nobody misses a value in training, naive Bayes' layout has no place for a row that does.
            placeless = agreed.family.marks_missing and not getattr(agreed.family, "missing", False)
            whole = ~(np.isnan(rows.values).any(axis=1) & placeless)
            if agreed.of_weights:  # weights of no model complete nothing
                whole &= ~agreed.family.incomplete(rows)
            tested = Sample(agreed.family, Rows(rows.values[whole], rows.codes[whole]), labels[whole])
        return cls(own, tested, agreed.of_weights, unknown=unknown)

    def figures(self, stats: np.ndarray) -> dict[str, float | None]:
        """Errors of S [C, K]."""
        began = time.monotonic()
        weights = stats[None] if self.of_weights else self.own.family.weights(stats[None])
        error, soft = self.own.errors(weights, soft=True)
        tested = self._on_those_held_out(weights)
        now = time.monotonic()
        self.due = now + SHARE * (now - began)
        return {"train_error": float(error[0]), "soft_error": float(soft[0]), "test_error": tested}

    def _on_those_held_out(self, weights: np.ndarray) -> float | None:
        """Return the error on rows held out; None: there are none that a model can be tested on."""
        count = 0 if self.away is None else self.away.labels.size
        if count + self.unknown == 0:
            return None
        wrong = 0.0 if self.away is None else count * float(self.away.errors(weights, soft=False)[0][0])
        return (wrong + self.unknown) / (count + self.unknown)


def _of_known_classes(labels: np.ndarray, classes: tuple[Any, ...]) -> np.ndarray:
    """Return which rows have a label that the schema names: [n]."""
    distinct, codes = infer_classes(labels)
    return np.array([label in classes for label in distinct], dtype=bool)[codes]


def told(figures: dict[str, Any], private: bool = False) -> str:
    """The error as a few words, for people; nothing where it was not judged. `private`: there is an epsilon."""
    noise = f" ({NO_NOISE})" if private else ""
    if figures.get("test_error") is not None:
        return f"error {figures['test_error']:.4f} on held-out rows{noise}"
    if figures.get("train_error") is not None:
        return f"error {figures['train_error']:.4f} on its own rows{noise}"
    return ""
