"""How a peer's model does on the peer's own rows: those it learns from, and those it holds out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from peerbayes.errors import ConfigurationError
from peerbayes.families import Rows
from peerbayes.metrics import Sample
from peerbayes.peers.agreement import Agreed

SHARE = 20  # a model is judged again after so many times what judging took: a twentieth of the time is enough

Table = tuple[pd.DataFrame, np.ndarray]


def held_out(frame: pd.DataFrame, labels: np.ndarray, share: float) -> tuple[Table, Table | None]:
    """The rows to learn from, and those to test on: that share of every class, the same ones at every start.

    A class keeps at least one row to learn from.
    """
    if not share:
        return (frame, labels), None
    rng = np.random.default_rng(len(frame))
    classes = np.unique(labels.astype(str), return_inverse=True)[1]
    away = np.zeros(len(frame), dtype=bool)
    for label in range(classes.max(initial=-1) + 1):
        rows = rng.permutation(np.flatnonzero(classes == label))
        away[rows[: int(share * len(rows))]] = True
    if not away.any():
        raise ConfigurationError(
            f"hold_out is {share}: of {len(frame)} rows in {classes.max(initial=-1) + 1} classes that is not one row "
            "of any class; hold out a larger share, or none with hold_out = 0"
        )
    return (frame[~away], labels[~away]), (frame[away], labels[away])


@dataclass
class Judge:
    """Judges a model after a round, as often as time allows."""

    own: Sample
    away: Sample | None
    of_weights: bool
    due: float = 0.0

    @classmethod
    def of(cls, agreed: Agreed, away: Table | None) -> Judge:
        own = Sample(agreed.family, agreed.held.rows, agreed.held.labels)
        tested = None
        if away is not None:
            rows, labels = agreed.schema.encode(away[0]), agreed.schema.encode_labels(away[1])
            # Where nobody misses a value in training, naive Bayes' layout has no place for a row that does.
            placeless = agreed.family.marks_missing and not getattr(agreed.family, "missing", False)
            whole = ~(np.isnan(rows.values).any(axis=1) & placeless)
            if agreed.of_weights:  # weights of no model complete nothing
                whole &= ~agreed.family.incomplete(rows)
            tested = Sample(agreed.family, Rows(rows.values[whole], rows.codes[whole]), labels[whole])
        return cls(own, tested, agreed.of_weights)

    def figures(self, stats: np.ndarray) -> dict[str, float | None]:
        """Errors of S [C, K]."""
        began = time.monotonic()
        weights = stats[None] if self.of_weights else self.own.family.weights(stats[None])
        error, soft = self.own.errors(weights, soft=True)
        tested = None if self.away is None else float(self.away.errors(weights, soft=False)[0][0])
        now = time.monotonic()
        self.due = now + SHARE * (now - began)
        return {"train_error": float(error[0]), "soft_error": float(soft[0]), "test_error": tested}


def told(figures: dict[str, Any]) -> str:
    """The error as a few words, for people; nothing where it was not judged."""
    if figures.get("test_error") is not None:
        return f"error {figures['test_error']:.4f} on held-out rows"
    if figures.get("train_error") is not None:
        return f"error {figures['train_error']:.4f} on its own rows"
    return ""
