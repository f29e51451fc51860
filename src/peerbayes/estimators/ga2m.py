"""The estimator `GA2M`: an additive model of bins and of crosses of columns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from peerbayes.data.arguments import refusal, whole
from peerbayes.data.schema import Schema
from peerbayes.estimators.generative import GenerativeClassifier
from peerbayes.estimators.training import Training
from peerbayes.model import calibration, interactions, passes
from peerbayes.model.families import additive
from peerbayes.model.families.base import Family, laid_out
from peerbayes.model.penalties import with_column_penalties
from peerbayes.model.sources import Source, source_of


@dataclass(kw_only=True, eq=False, repr=False)
class GA2M(GenerativeClassifier):
    """A generalised additive model with pairwise interactions: each column adds to the log-odds, and so do some pairs.

    Numbers go into bins; missing values tell nothing. Pairs of columns are crossed where that lowers the log loss of
    rows that it was not learned from (`peerbayes.model.interactions`). Neighbouring bins, and the cells of a cross, are
    held together as strongly as the rows ask for (`peerbayes.model.penalties`). It is always
    calibrated: maximum likelihood would count what columns and their crosses have in common several times.

    Parameters are those of `MixedNB`, and

    interactions    how many pairs of columns are crossed: "auto", as many as are worth it, at most 64; a number: at
                    most that many of them; 0: none
    bins            how many bins numbers go into; "auto": 64 for up to four columns, 32 for up to eight, 16 for
                    more. `kinds` may name columns that are to stay continuous
    shrinkage       rows that are spread evenly over the cells of each column before any is learned from, and over those
                    of a cross as many times more as there are columns; "auto" or None: 300; 0: no penalty either
    """

    family_type = additive.GA2M
    family_: additive.GA2M = field(init=False)
    learns_structure = True

    calibrate: bool = True
    start: Any = "marginal"
    interactions: Any = "auto"
    bins: Any = "auto"

    @property
    def crosses_(self) -> list[tuple[str, str]]:
        """The pairs of columns that are crossed, the one that gains most first."""
        check_is_fitted(self)
        return [cross.columns for cross in self.schema_.crosses]

    def _training(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> Training:
        if not self.calibrate:
            raise ValueError(
                "calibrate=False counts what columns and their crosses have in common several times; use GA2M with "
                "calibrate=True, or MixedNB(kinds='binned') for maximum likelihood"
            )
        if self.interactions != "auto" or not isinstance(self.interactions, str):
            whole("interactions", self.interactions, 0, advice=", or 'auto'")
        if self.bins != "auto" or not isinstance(self.bins, str):
            whole("bins", self.bins, 2, advice=", or 'auto'")
        if isinstance(self.start, str) and self.start not in calibration.STARTS:
            raise refusal("start", self.start, f"one of {', '.join(calibration.STARTS)}")
        return super()._training(X, y, sample_weight, reset)

    def _bins(self, columns: int) -> int | None:
        return interactions.bins_for(columns) if isinstance(self.bins, str) else int(self.bins)

    def _extended(self, schema: Schema, training: Training, labels: np.ndarray) -> Schema:
        """Return the schema with the crosses that are worth it, by the model without any."""
        if schema.crosses:
            return schema
        most = interactions.MOST_CROSSES if isinstance(self.interactions, str) else int(self.interactions)
        source = source_of(schema, training.table, again=True)
        missing, classes = self._missing(source, training), len(schema.classes)
        plain = laid_out(additive.GA2M, schema, missing)
        sums = _labelled(plain, source, labels, classes, training.weights).statistics()
        schema = with_column_penalties(schema, sums)
        pairs = interactions.candidates(schema, sums)
        if not most or not pairs:
            return schema
        family = self._guarded(laid_out(additive.GA2M, schema, missing), training.mass)
        data = _labelled(family, source, labels, classes, training.weights)
        start = calibration.start_statistics("marginal", family, classes, training.mass, sums)
        main = calibration.calibrate(family, data, start, max_iter=interactions.STEPS, keep="last")
        tables = interactions.pair_sums(
            family, family.weights(main.stats), source, labels, training.weights, pairs
        )
        return replace(schema, crosses=interactions.chosen(pairs, tables, most))


def _labelled(
    family: Family, source: Source, labels: np.ndarray, classes: int, weights: np.ndarray | None
) -> passes.Data:
    """Return the labelled rows, which a family with a layout for missing values need not complete."""
    data = passes.labelled(family, source, labels, classes, weights)
    assert not isinstance(data, passes.IncompleteData)
    return data
