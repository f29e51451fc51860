"""How every estimator learns: it reads a table, keeps the sufficient statistics, and asks its family for the rest."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if

from peerbayes import expectation, parts, passes, settings
from peerbayes.calibration import Calibrated, beginning, calibrate
from peerbayes.errors import SchemaError, SchemaMismatch
from peerbayes.expectation import Gapped
from peerbayes.families import Family, NaiveBayes
from peerbayes.knowledge import fitting, prior_for, speaks_of_some
from peerbayes.layouts import laid_out
from peerbayes.predictor import Predictor
from peerbayes.progress import Progress
from peerbayes.schema import Schema
from peerbayes.statistics import Statistics
from peerbayes.training import Training, training_rows


def _learns_by_adding(estimator: GenerativeClassifier) -> bool:
    if estimator.calibrate:
        raise AttributeError(
            "partial_fit needs calibrate=False: calibration goes through all rows again and again. "
            "Use fit, or add up the statistics_ of several fits with calibrate=False"
        )
    if estimator.learns_structure:
        raise AttributeError(
            f"partial_fit of {type(estimator).__name__} would see only some of the rows that its structure is learned "
            "from; use BayesNetClassifier(structure=...), for instance with the parents_ of a model fitted on some rows"
        )
    return True


class GenerativeClassifier(Predictor):
    """What every estimator shares. Use `MixedNB`, `QDA` or `LDA`; subclass it for a family of your own."""

    learns_structure: ClassVar[bool] = False
    """Whether who depends on whom is learned from the rows."""

    # --- learning --------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from rows X [n, D] (DataFrame or array) and labels y [n]; a row counts `sample_weight` [n] times."""
        with self._whole_or_nothing():
            return self._fit(X, y, sample_weight)

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        given = self._training(X, y, sample_weight, reset=True)
        schema = self._schema_for(given, given.classes, kinds=self.kinds)
        classes = len(schema.classes)
        if classes < 2:
            raise ValueError(
                f"y holds one class ({given.classes[0]!r}, n_samples={given.table.rows}); a classifier needs at least "
                "two classes. Name the others in a schema, or add rows of one class to a model by partial_fit with "
                "classes=..."
            )
        labels = given.labels_in(schema)
        source = passes.source_of(schema, given.table, again=self.calibrate or self.learns_structure)
        missing = self._missing(source, given)
        layout = laid_out(self.family_type, schema, missing)
        layout = self._structured(layout, source, labels, classes, given.weights)
        family = self._guarded(layout, given.mass)
        holed = passes.first_missing(source, layout, missing) is not None
        data = expectation.labelled(family, source, labels, classes, given.weights, missing=holed)
        for name in ("history_", "n_iter_", "best_iter_", "log_likelihood_", "_finds_columns"):
            self.__dict__.pop(name, None)
        if isinstance(data, Gapped) and not isinstance(family, NaiveBayes):
            expectation.refuse_empty(data, schema)
        if not self.calibrate:
            self.n_iter_ = 1  # a single pass over the rows, unless something is missing
            stats = self._likely(data, layout, source) if isinstance(data, Gapped) else data.statistics()
            return self._adopt(Statistics(stats, schema, layout))
        calibrated = self._calibrated(family, data, schema)
        self.history_ = calibrated.history()
        self.n_iter_, self.best_iter_ = calibrated.soft_error.size - 1, calibrated.kept
        return self._adopt(Statistics(calibrated.stats, schema, layout, calibrated=True))

    @available_if(_learns_by_adding)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Add rows X, y (and their `sample_weight`) to the model; over any split of a table it ends where `fit` does.

        The first call must name all `classes`. Without a `schema` the location and scale of all rows are known
        only at the end: training values are then not clipped, and a warning says when that matters. Rows may
        bring new categories, not new classes.
        """
        if self.unlabelled is not None:
            raise ValueError(
                "partial_fit adds up labelled rows; rows without a label (unlabelled=...) need fit"
            )
        with self._whole_or_nothing():
            return self._partial_fit(X, y, classes, sample_weight)

    def _partial_fit(self, X: Any, y: Any, classes: Any, sample_weight: Any) -> Self:
        first = not hasattr(self, "statistics_")
        if self.schema is None:
            parts.refuse_counting(self.kinds)
        given = self._training(X, y, sample_weight, reset=first)
        agreed = self.schema.classes if self.schema is not None else ()
        known = parts.classes_of_all(classes, agreed if first else tuple(self.schema_.classes))
        kinds = self.kinds if first else parts.kinds_so_far(self.schema_)
        schema = replace(self._schema_for(given, known, kinds=kinds), classes=known)
        labels = given.labels_in(schema)
        unclipped = schema if self.schema is not None else replace(schema, clip=None)
        source = passes.source_of(unclipped, given.table, again=False)
        missing = self._missing(source, given)
        layout = laid_out(self.family_type, schema, missing)
        layout = self._structured(layout, source, labels, len(known), given.weights)
        absent = passes.first_missing(source, layout, missing)
        if absent is not None:
            raise SchemaError(
                f"column {absent!r} has missing values; {type(self).__name__} completes them by going through all rows "
                "again and again, which partial_fit does not have. Use fit, or MixedNB, or fill them in first, for "
                "instance with sklearn.impute.SimpleImputer"
            )
        stats = passes.labelled(layout, source, labels, len(known), given.weights).statistics()
        added = Statistics(stats, schema, layout)
        total = added if first else self.statistics_ + added
        far = parts.beyond_clip(given.table, total.schema) if self.schema is None else None
        if far is not None:
            warnings.warn(
                f"column {far!r} holds values beyond {total.schema.clip} standard deviations, which fit would have "
                "clipped and partial_fit cannot; give a schema (schema=Schema.infer(sample, y)) or clip=None",
                stacklevel=3,
            )
        self.n_iter_ = 1
        return self._adopt(total)

    # --- inside ----------------------------------------------------------------------------------------

    def _training(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> Training:
        """Rows to learn from, and this estimator's parameters, checked."""
        settings.check(self.get_params(deep=False))
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        table = self._table(X, reset)
        if self.schema is not None and set(table.names) - set(self.schema.names) and table.frame is not None:
            extra = sorted(set(table.names) - set(self.schema.names))
            raise SchemaMismatch(
                f"the schema has no column {', '.join(extra[:5])}; leave it out of the table"
            )
        return training_rows(table, y, sample_weight, self.unlabelled)

    def _schema_for(self, given: Training, classes: tuple[Any, ...], kinds: Any) -> Schema:
        """The schema given, or that of the rows; with the categories that prior knowledge speaks of."""
        if self.schema is not None:
            return self.schema if self.schema.classes else replace(self.schema, classes=classes)
        schema = Schema.infer(given.table, kinds=kinds, clip=self.clip, sample_weight=given.weights)
        for knowledge in self._knowledge():
            schema = schema.knowing(knowledge.schema)
        return replace(schema, classes=classes)

    def _knowledge(self) -> list[Statistics]:
        told = (self.start if self.calibrate else None, self.prior)
        return [item for item in told if isinstance(item, Statistics)]

    def _missing(self, source: passes.Source, given: Training) -> bool:
        """Whether training values are missing, or prior knowledge speaks of some columns only."""
        inferred = given.weights is None and self.schema is None
        missing = passes.check_rows(source, given.table, training=True, inferred=inferred)
        return missing or speaks_of_some(self._knowledge())

    def _structured(
        self,
        layout: Family,
        source: passes.Source,
        labels: np.ndarray,
        classes: int,
        weights: np.ndarray | None,
    ) -> Family:
        """The layout with who depends on whom, for families where something does."""
        return layout

    def _likely(self, data: Gapped, layout: Family, source: passes.Source) -> np.ndarray:
        """S of maximum likelihood where values or labels are missing: [C, K]."""
        prior = prior_for(source.schema, layout, self.alpha, self.prior)
        found = expectation.likely(data, prior, self.variance_floor, self.em_iter, self.em_tol)
        self.n_iter_ = found.objective.size
        units = np.broadcast_to(passes.log_units(data.family, source), (source.rows, 1))[:, 0]
        self.log_likelihood_ = found.objective - units.mean()
        if not found.converged:
            warnings.warn(
                f"the log likelihood still moves by {self.em_tol} a row or more after em_iter={self.em_iter} steps "
                "(see log_likelihood_); raise em_iter, or em_tol",
                ConvergenceWarning,
                stacklevel=4,
            )
        return found.stats

    def _calibrated(self, family: Family, data: passes.Data | Gapped, schema: Schema) -> Calibrated:
        start = fitting(self.start, schema, family) if isinstance(self.start, Statistics) else self.start
        return calibrate(
            family,
            data,
            beginning(start, family, data, len(schema.classes), self.em_iter, self.em_tol),
            lr=self.lr,
            max_iter=self.max_iter,
            keep=self.keep,
            patience=self.patience,
            tol=self.tol,
            callback=self.callback if not self.verbose else Progress(self.max_iter, self.callback),
        )

    @contextmanager
    def _whole_or_nothing(self) -> Iterator[None]:
        """After an error the estimator is what it was before."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
