"""Statistics that a user gives as a prior or a start, in the schema and layout of a model."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from peerbayes.errors import StatisticsMismatch
from peerbayes.families import Family, NaiveBayes
from peerbayes.schema import Schema
from peerbayes.statistics import Statistics


def aligned(statistics: Statistics, schema: Schema, family: Family) -> np.ndarray:
    """Return a user's statistics as an array in this model's schema and layout: [C, K]."""
    if statistics.family.name != family.name:
        raise StatisticsMismatch(
            f"expected statistics of {family.name}, got those of {statistics.family.name}"
        )
    expressed = statistics.expressed(schema)
    if isinstance(family, NaiveBayes) and family.missing:
        expressed = expressed.with_missing()
    if expressed.family.size != family.size:
        raise StatisticsMismatch(
            f"the statistics given have {expressed.family.size} features per class, the model has {family.size}"
        )
    return expressed.values


def prior_for(schema: Schema, family: Family, alpha: float, prior: Statistics | None) -> np.ndarray:
    """Return Laplace smoothing and the user's prior as one statistic: [C, K]."""
    smoothing = family.smoothing(len(schema.classes), alpha)
    return smoothing if prior is None else smoothing + aligned(prior, schema, family)


def covers_some_columns(statistics: Iterable[Statistics]) -> bool:
    """Whether a user's statistics allow missing values, so that they may cover only some columns."""
    layouts = [item.family for item in statistics]
    return any(isinstance(family, NaiveBayes) and family.missing for family in layouts)
