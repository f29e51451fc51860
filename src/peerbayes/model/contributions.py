"""What columns of cells, and crosses of them, add to the log-odds: the shape functions of an additive model.

    f_cj(k) = (w_cjk − v_jk)/T          w: the weights of cell k of column j, T: the temperature of the scaling
                                        v: those of the first of two classes, or the mean over all classes

What a cross says of either column by itself is moved to that column, so that f of a cross has mean 0 over the rows of
each group of cells, and f of a column mean 0 over all rows. The sum over columns and crosses stays, up to a constant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from peerbayes.data.schema import Schema
from peerbayes.model.families.base import Family
from peerbayes.model.families.naive_bayes import NaiveBayes
from peerbayes.model.scaling import Scaling

# Times that the means over rows and over columns of a cross are taken off: they are then 0 up to the tolerance.
MOST_SWEEPS, TOLERANCE = 500, 1e-10


@dataclass(frozen=True, eq=False)
class Effect:
    """The contributions of one column of cells, or of one cross."""

    index: int
    """Its place among the columns of cells and the crosses of a schema."""
    contributions: np.ndarray
    """[C, r], or [1, r] for two classes: those to the log-odds of the second class."""
    rows: np.ndarray
    """[r], how many rows lie in each cell."""

    @property
    def strength(self) -> float:
        """The mean over the rows, and over the classes, of the absolute contribution."""
        return float(np.abs(self.contributions).mean(axis=0) @ self.rows / max(self.rows.sum(), 1.0))


def effects(
    schema: Schema,
    family: Family,
    stats: np.ndarray,
    of_rows: np.ndarray | None,
    scaling: Scaling | None = None,
) -> list[Effect]:
    """Return the effect of each column of cells and of each cross, in the order of the schema.

    stats    S [C, K], whose weights decide predictions
    of_rows  YᵀΦ [C, K] of the training rows; None: not known. Then there are no effects, and neither has a family other
             than naive Bayes and GA2M: what a column adds depends on other columns there
    """
    if not isinstance(family, NaiveBayes) or of_rows is None or not family.cardinalities:
        return []
    weights = np.asarray(family.weights(stats))[:, family.dense_size :]
    odds = weights[1:] - weights[:1] if len(weights) == 2 else weights - weights.mean(axis=0)
    odds = odds / (1.0 if scaling is None else scaling.temperature)
    terms = np.split(odds, family.offsets[1:], axis=1)
    counts = np.split(of_rows[:, family.dense_size :].sum(axis=0), family.offsets[1:])
    place = {schema.names[j]: k for k, j in enumerate(schema.discrete)}
    for k, cross in enumerate(schema.crosses, start=len(schema.discrete)):
        table, rows = terms[k].reshape(-1, *cross.shape), counts[k].reshape(cross.shape)
        pure, *margins = purified(table, rows)
        terms[k] = pure.reshape(terms[k].shape)
        for name, groups, margin in zip(cross.columns, cross.groups, margins, strict=True):
            terms[place[name]] = terms[place[name]] + margin[:, list(groups)]
    return [
        Effect(k, centred(term, rows), rows) for k, (term, rows) in enumerate(zip(terms, counts, strict=True))
    ]


def purified(table: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return f_ab, α_a and β_b with table = f + α + β, where f has mean 0 over the rows of each a and of each b.

    [C, a, b], [a, b] -> [C, a, b], [C, a], [C, b].
    """
    first, second = np.zeros(table.shape[:2]), np.zeros((len(table), table.shape[2]))
    share_of_first = rows / np.maximum(rows.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    share_of_second = rows / np.maximum(rows.sum(axis=0), np.finfo(float).tiny)
    for _ in range(MOST_SWEEPS):
        change = (table * share_of_first).sum(axis=2)
        table, first = table - change[:, :, None], first + change
        other = (table * share_of_second).sum(axis=1)
        table, second = table - other[:, None, :], second + other
        if max(np.abs(change).max(), np.abs(other).max()) < TOLERANCE:
            break
    return table, first, second


def centred(terms: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return terms [C, r] less their mean over the rows [r]: [C, r]."""
    total = rows.sum()
    return terms - (terms @ rows / total if total > 0 else terms.mean(axis=1))[:, None]
