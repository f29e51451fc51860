"""How every estimator learns: it reads a table, keeps the sufficient statistics, and leaves the rest to its family."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if

from peerbayes.data.schema import Schema
from peerbayes.errors import SchemaError, SchemaMismatch
from peerbayes.estimators import training as parts
from peerbayes.estimators import training as settings
from peerbayes.estimators.prediction import Predictor
from peerbayes.estimators.training import Progress, Training, training_rows
from peerbayes.model import calibration, passes
from peerbayes.model.calibration import Calibrated, IncompleteData, beginning, calibrate
from peerbayes.model.families import Family, NaiveBayes
from peerbayes.model.layout import laid_out
from peerbayes.model.statistics import Statistics, aligned, covers_some_columns, prior_for


def _learns_by_adding(estimator: GenerativeClassifier) -> bool:
    """Whether `partial_fit` is available; AttributeError with the reason if not."""
    if estimator.calibrate:
        raise AttributeError(
            "partial_fit needs calibrate=False: calibration passes over all rows many times. "
            "Use fit, or add up the statistics_ of several fits with calibrate=False"
        )
    if estimator.learns_structure:
        raise AttributeError(
            f"partial_fit of {type(estimator).__name__} would see only some of the rows that its structure is learned "
            "from; use BayesNetClassifier(structure=...), for instance with the parents_ of a model fitted on some rows"
        )
    return True


class GenerativeClassifier(Predictor):
    """The base of every estimator. Use `MixedNB`, `QDA` or `LDA`; subclass it for a family of your own."""

    learns_structure: ClassVar[bool] = False
    """Whether the structure is learned from the rows."""

    # --- learning --------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from rows X [n, D] (DataFrame or array) and labels y [n]; a row counts `sample_weight` [n] times."""
        with self._all_or_nothing():
            return self._fit(X, y, sample_weight)

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        training = self._training(X, y, sample_weight, reset=True)
        schema = self._schema_for(training, training.classes, kinds=self.kinds)
        classes = len(schema.classes)
        if classes < 2:
            raise ValueError(
                f"y holds one class ({training.classes[0]!r}, n_samples={training.table.rows}); a classifier needs at "
                "least two classes. Name the others in a schema, or add rows of one class to a model by partial_fit "
                "with classes=..."
            )
        labels = training.labels_in(schema)
        source = passes.source_of(schema, training.table, again=self.calibrate or self.learns_structure)
        missing = self._missing(source, training)
        layout = laid_out(self.family_type, schema, missing)
        layout = self._structured(layout, source, labels, classes, training.weights)
        family = self._guarded(layout, training.mass)
        incomplete = passes.first_missing(source, layout, missing) is not None
        data = calibration.labelled(family, source, labels, classes, training.weights, missing=incomplete)
        for name in ("history_", "n_iter_", "best_iter_", "log_likelihood_", "_finds_columns"):
            self.__dict__.pop(name, None)
        if isinstance(data, IncompleteData) and not isinstance(family, NaiveBayes):
            calibration.refuse_empty(data, schema)
        if not self.calibrate:
            self.n_iter_ = 1  # a single pass over the rows, unless something is missing
            stats = (
                self._maximise_likelihood(data, layout, source)
                if isinstance(data, IncompleteData)
                else data.statistics()
            )
            return self._adopt(Statistics(stats, schema, layout))
        calibrated = self._calibrated(family, data, schema)
        self.history_ = calibrated.history()
        self.n_iter_, self.best_iter_ = calibrated.soft_error.size - 1, calibrated.kept
        return self._adopt(Statistics(calibrated.stats, schema, layout, calibrated=True))

    @available_if(_learns_by_adding)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Add rows X, y (and their `sample_weight`) to the model; any split of a table gives the model of `fit`.

        The first call must name all `classes`. Without a `schema` the location and scale of all rows are known
        only at the end: training values are then not clipped, and a warning says when that matters. Rows may
        bring new categories, not new classes.
        """
        if self.unlabelled is not None:
            raise ValueError(
                "partial_fit adds up labelled rows; rows without a label (unlabelled=...) need fit"
            )
        with self._all_or_nothing():
            return self._partial_fit(X, y, classes, sample_weight)

    def _partial_fit(self, X: Any, y: Any, classes: Any, sample_weight: Any) -> Self:
        first = not hasattr(self, "statistics_")
        if self.schema is None:
            parts.refuse_counting(self.kinds)
        training = self._training(X, y, sample_weight, reset=first)
        agreed = self.schema.classes if self.schema is not None else ()
        all_classes = parts.classes_of_all(classes, agreed if first else tuple(self.schema_.classes))
        kinds = self.kinds if first else parts.kinds_so_far(self.schema_)
        schema = replace(self._schema_for(training, all_classes, kinds=kinds), classes=all_classes)
        labels = training.labels_in(schema)
        unclipped = schema if self.schema is not None else replace(schema, clip=None)
        source = passes.source_of(unclipped, training.table, again=False)
        missing = self._missing(source, training)
        layout = laid_out(self.family_type, schema, missing)
        layout = self._structured(layout, source, labels, len(all_classes), training.weights)
        absent = passes.first_missing(source, layout, missing)
        if absent is not None:
            raise SchemaError(
                f"column {absent!r} has missing values; {type(self).__name__} completes them in repeated passes over "
                "all rows, which partial_fit does not have. Use fit, or MixedNB, or fill them in first, for "
                "instance with sklearn.impute.SimpleImputer"
            )
        stats = passes.labelled(layout, source, labels, len(all_classes), training.weights).statistics()
        added = Statistics(stats, schema, layout)
        total = added if first else self.statistics_ + added
        clipped_column = parts.beyond_clip(training.table, total.schema) if self.schema is None else None
        if clipped_column is not None:
            warnings.warn(
                f"column {clipped_column!r} holds values beyond {total.schema.clip} standard deviations, which fit "
                "would have clipped and partial_fit cannot; give a schema (schema=Schema.infer(sample, y)), or "
                "clip=None",
                stacklevel=3,
            )
        self.n_iter_ = 1
        return self._adopt(total)

    # --- inside ----------------------------------------------------------------------------------------

    def _training(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> Training:
        """Return the training rows; check them and this estimator's parameters."""
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

    def _schema_for(self, training: Training, classes: tuple[Any, ...], kinds: Any) -> Schema:
        """Return the given schema, or that of the rows with the categories of prior knowledge."""
        if self.schema is not None:
            return self.schema if self.schema.classes else replace(self.schema, classes=classes)
        schema = Schema.infer(training.table, kinds=kinds, clip=self.clip, sample_weight=training.weights)
        for knowledge in self._knowledge():
            schema = schema.knowing(knowledge.schema)
        return replace(schema, classes=classes)

    def _knowledge(self) -> list[Statistics]:
        """Return the user's statistics: a start of calibration, a prior."""
        candidates = (self.start if self.calibrate else None, self.prior)
        return [item for item in candidates if isinstance(item, Statistics)]

    def _missing(self, source: passes.Source, training: Training) -> bool:
        """Whether training values are missing, or prior knowledge covers only some columns."""
        inferred = training.weights is None and self.schema is None
        missing = passes.check_rows(source, training.table, training=True, inferred=inferred)
        return missing or covers_some_columns(self._knowledge())

    def _structured(
        self,
        layout: Family,
        source: passes.Source,
        labels: np.ndarray,
        classes: int,
        weights: np.ndarray | None,
    ) -> Family:
        """Return the layout with its structure, for families that have one."""
        return layout

    def _maximise_likelihood(self, data: IncompleteData, layout: Family, source: passes.Source) -> np.ndarray:
        """Return S of maximum likelihood where values or labels are missing: [C, K]."""
        prior = prior_for(source.schema, layout, self.alpha, self.prior)
        maximised = calibration.maximise_likelihood(
            data, prior, self.variance_floor, self.em_iter, self.em_tol
        )
        self.n_iter_ = maximised.objective.size
        units = np.broadcast_to(passes.log_units(data.family, source), (source.rows, 1))[:, 0]
        self.log_likelihood_ = maximised.objective - units.mean()
        if not maximised.converged:
            warnings.warn(
                f"the log likelihood still changes by {self.em_tol} per row or more after em_iter={self.em_iter} steps "
                "(see log_likelihood_); raise em_iter, or em_tol",
                ConvergenceWarning,
                stacklevel=4,
            )
        return maximised.stats

    def _calibrated(self, family: Family, data: passes.Data | IncompleteData, schema: Schema) -> Calibrated:
        """Calibrate with this estimator's parameters."""
        start = aligned(self.start, schema, family) if isinstance(self.start, Statistics) else self.start
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
    def _all_or_nothing(self) -> Iterator[None]:
        """Restore the estimator as it was before, after an error."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
