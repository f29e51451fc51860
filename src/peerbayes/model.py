"""A fitted model and its predictions."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from peerbayes import passes
from peerbayes.families import Family, NaiveBayes
from peerbayes.passes import Source
from peerbayes.schema import Schema
from peerbayes.tables import Table


class Model(NamedTuple):
    """W = θ(S + prior), with its schema, family and statistics."""

    schema: Schema
    family: Family
    counted: np.ndarray  # [C, K] S
    prior: np.ndarray  # [C, K]
    weights: np.ndarray  # [C, K]

    @property
    def stats(self) -> np.ndarray:
        """S + prior: [C, K]."""
        return self.counted + self.prior

    def floored(self) -> int:
        """Return how many parameters are at a guard's limit."""
        return int(self.family.floored(self.stats))

    def reading(self, table: Table) -> tuple[Self, Source]:
        """Return the model in the layout that the table's missing values need, and the table as a source of rows."""
        source = passes.source_of(self.schema, table, again=False)
        missing = passes.check_rows(source, table, training=False)
        return (self._with_missing() if missing else self), source

    def log_joint(self, source: Source) -> np.ndarray:
        """Return log p(z, c), in standardised units: [n, C]."""
        return passes.log_joint(self.family, self.weights, source)

    def log_density(self, source: Source) -> np.ndarray:
        """Return log p(x, c), in the units of the table: [n, C]."""
        return self.log_joint(source) - passes.log_units(self.family, source)

    def posterior(self, source: Source) -> np.ndarray:
        """Return p(c | x): [n, C]."""
        return passes.posterior(self.family, self.weights, source)

    def log_posterior(self, source: Source) -> np.ndarray:
        """Return log p(c | x): [n, C]."""
        joint = self.log_joint(source)
        joint -= joint.max(axis=1, keepdims=True)
        return joint - np.log(np.exp(joint).sum(axis=1, keepdims=True))

    def _with_missing(self) -> Self:
        """Return the same model in the layout for missing values; only naive Bayes has one, others complete them."""
        if not isinstance(self.family, NaiveBayes) or self.family.missing:
            return self
        spread, family = self.family.spread, self.family.with_missing()
        counted, prior = spread(self.counted), spread(self.prior)
        return type(self)(self.schema, family, counted, prior, family.weights(counted + prior))
