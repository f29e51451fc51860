"""What every estimator shares: it reads a table, keeps the sufficient statistics, and asks its family for the rest."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from peerbayes import expectation, files, passes, reading, settings
from peerbayes.calibration import Calibrated, calibrate, start_statistics
from peerbayes.errors import SchemaError, SchemaMismatch, StatisticsMismatch
from peerbayes.expectation import Gapped
from peerbayes.families import BayesNet, Family, NaiveBayes
from peerbayes.inference import infer_classes
from peerbayes.layouts import guarded, laid_out
from peerbayes.schema import Schema
from peerbayes.statistics import Statistics
from peerbayes.tables import Table, missing_of


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


class GenerativeClassifier(ClassifierMixin, BaseEstimator):
    """What every estimator shares. Use `MixedNB`, `QDA` or `LDA`; subclass it for a family of your own."""

    family_type: ClassVar[type[Family]]
    learns_structure: ClassVar[bool] = False
    """Whether who depends on whom is learned from the rows."""

    def __init__(
        self,
        *,
        calibrate: bool = False,
        kinds: Any = "auto",
        start: Any = "uniform",
        lr: float = 0.05,
        max_iter: int = 64,
        keep: Any = "best",
        clip: float | None = 5.0,
        alpha: float = 1.0,
        prior: Statistics | None = None,
        variance_floor: float | None = None,
        count_floor: float | None = None,
        patience: int | None = None,
        tol: float = 0.0,
        em_iter: int = 100,
        em_tol: float = 1e-4,
        unlabelled: Any = None,
        costs: Any = None,
        schema: Schema | None = None,
        callback: Any = None,
        verbose: bool = False,
    ) -> None:
        self.calibrate = calibrate
        self.kinds = kinds
        self.start = start
        self.lr = lr
        self.max_iter = max_iter
        self.keep = keep
        self.clip = clip
        self.alpha = alpha
        self.prior = prior
        self.variance_floor = variance_floor
        self.count_floor = count_floor
        self.patience = patience
        self.tol = tol
        self.em_iter = em_iter
        self.em_tol = em_tol
        self.unlabelled = unlabelled
        self.costs = costs
        self.schema = schema
        self.callback = callback
        self.verbose = verbose

    # --- learning --------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from rows X [n, D] (DataFrame or array) and labels y [n]; a row counts `sample_weight` [n] times."""
        with self._whole_or_nothing():
            return self._fit(X, y, sample_weight)

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        table, labels, seen, weights = self._training(X, y, sample_weight, reset=True)
        schema = self._schema_for(table, seen, weights, kinds=self.kinds)
        if len(schema.classes) < 2:
            raise ValueError(
                f"y holds one class ({seen[0]!r}, n_samples={table.rows}); a classifier needs at least two classes. "
                "Name the others in a schema, or add rows of one class to a model by partial_fit with classes=..."
            )
        labels = _relabelled(labels, seen, schema)
        source = passes.source_of(schema, table, again=self.calibrate or self.learns_structure)
        missing = self._missing(source, table, inferred=weights is None)
        layout = self._layout(schema, missing)
        layout = self._structured(layout, source, labels, len(schema.classes), weights)
        family = self._guarded(layout, float(table.rows if weights is None else weights.sum()))
        holed = self._first_gap(source, layout, missing) is not None
        data = expectation.labelled(family, source, labels, len(schema.classes), weights, missing=holed)
        for name in ("history_", "n_iter_", "best_iter_", "log_likelihood_", "_finds_columns"):
            self.__dict__.pop(name, None)
        if isinstance(data, Gapped) and not isinstance(family, NaiveBayes):
            _refuse_empty(data, schema)
        if not self.calibrate:
            self.n_iter_ = 1  # a single pass over the rows, unless something is missing
            stats = self._likely(data, layout, source) if isinstance(data, Gapped) else data.statistics()
            return self._adopt(Statistics(stats, schema, layout))
        calibrated = self._calibrated(family, data, schema)
        self.history_ = _history(calibrated)
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
        if self.schema is None and _counts_values(self.kinds):
            raise ValueError(
                "kinds='paper' counts the distinct values of all rows, and partial_fit sees only some of them; "
                "give a schema, for instance schema=Schema.infer(X, y, kinds='paper')"
            )
        table, labels, seen, weights = self._training(X, y, sample_weight, reset=first)
        known = self._known_classes(classes, first)
        kinds = self.kinds if first else _kinds_so_far(self.schema_)
        schema = replace(self._schema_for(table, known, weights, kinds=kinds), classes=known)
        labels = _relabelled(labels, seen, schema)
        unclipped = schema if self.schema is not None else replace(schema, clip=None)
        source = passes.source_of(unclipped, table, again=False)
        missing = self._missing(source, table, inferred=weights is None)
        layout = self._structured(self._layout(schema, missing), source, labels, len(known), weights)
        absent = self._first_gap(source, layout, missing)
        if absent is not None:
            raise SchemaError(
                f"column {absent!r} has missing values; {type(self).__name__} completes them by going through all rows "
                "again and again, which partial_fit does not have. Use fit, or MixedNB, or fill them in first, for "
                "instance with sklearn.impute.SimpleImputer"
            )
        stats = passes.labelled(layout, source, labels, len(known), weights).statistics()
        added = Statistics(stats, schema, layout)
        total = added if first else self.statistics_ + added
        if self.schema is None:
            _warn_of_tails(table, total.schema)
        self.n_iter_ = 1
        return self._adopt(total)

    @classmethod
    def from_statistics(cls, statistics: Statistics, **parameters: Any) -> Self:
        """The model of given statistics, for instance of several parties' added up: no row is needed.

        `parameters` are the estimator's, where they should not be the defaults.
        """
        if not isinstance(statistics, Statistics):
            raise TypeError(
                f"from_statistics takes the statistics_ of a fitted {cls.__name__}, not {type(statistics).__name__}"
            )
        if statistics.family.name != cls.family_type.name:
            raise StatisticsMismatch(
                f"these are statistics of {statistics.family.name}; {cls.__name__} needs {cls.family_type.name}"
            )
        estimator = cls(**{"calibrate": statistics.calibrated, "clip": statistics.schema.clip, **parameters})
        settings.check(estimator.get_params(deep=False))
        names = statistics.schema.names
        named = not all(re.fullmatch(r"x?\d+", name) for name in names)
        return estimator._adopt(statistics)._without_a_table(named)

    # --- predicting ------------------------------------------------------------------------------------

    def predict_joint_log_proba(self, X: Any) -> np.ndarray:
        """log p(x, c) of the rows X, in the units of the table: [n, C]."""
        source, weights, family = self._reading(X)
        return passes.log_joint(family, weights, source) - _log_units(source, family)

    def predict_proba(self, X: Any) -> np.ndarray:
        """p(c | x) of the rows X: [n, C]."""
        source, weights, family = self._reading(X)
        return passes.posterior(family, weights, source)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """log p(c | x) of the rows X: [n, C]."""
        source, weights, family = self._reading(X)
        joint = passes.log_joint(family, weights, source)
        joint -= joint.max(axis=1, keepdims=True)
        return joint - np.log(np.exp(joint).sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row of X, or the cheapest one where `costs` were given: [n]."""
        if self.costs is not None:
            return self.decide(X, self.costs)
        source, weights, family = self._reading(X)
        return self.classes_[passes.log_joint(family, weights, source).argmax(axis=1)]

    def decide(self, X: Any, costs: Any) -> np.ndarray:
        """The cheapest class for each row of X: [n]. `costs[i][j]` is what saying classes_[j] costs when it is i."""
        check_is_fitted(self)
        return self.classes_[(self.predict_proba(X) @ _cost_table(costs, self.classes_)).argmin(axis=1)]

    # --- reading a model -------------------------------------------------------------------------------

    def explain(self, x: Any, of: Any = None, against: Any = None) -> Any:
        """Each column's contribution to the log-odds log p(of|x) − log p(against|x), as a DataFrame.

        One row of it per row of x and column, the strongest first, after a "(baseline)" with what does not depend
        on x (the class prior, and for QDA the determinants). They add up to the log-odds. By default `of` is the
        predicted class and `against` the runner-up. x is a table, or one row as an array, a Series or a mapping;
        what a mapping does not name is missing. A missing value says nothing in naive Bayes and in networks, where
        the others are told by those before them that are there; in QDA and LDA it has its share of what the smaller
        determinant changes.
        """
        check_is_fitted(self)
        table = self._table(self._as_rows(x), reset=False)
        source, _, family = self._reading(table)
        stats, rows = self._stats_with_prior(family), passes.all_rows(source)
        return reading.explain(self.schema_, family, stats, self.classes_, table, rows, of, against)

    def describe(self) -> Any:
        """The model's parameters in the units of the table, as a DataFrame."""
        check_is_fitted(self)
        stats = self._stats_with_prior(self.family_)
        return reading.describe(self.schema_, self.family_, stats, self.classes_)

    def sample(self, n_samples: int = 1, random_state: Any = None) -> tuple[Any, np.ndarray]:
        """`n_samples` synthetic rows in the original columns, and their labels; a DataFrame where one was fitted.

        `random_state` is a seed or a generator.
        """
        check_is_fitted(self)
        if n_samples < 1:
            raise ValueError(f"n_samples is {n_samples}; expected 1 or more")
        rng = random_state
        if not isinstance(rng, np.random.Generator):
            rng = np.random.default_rng(check_random_state(random_state).randint(np.iinfo(np.int32).max))
        stats = self._stats_with_prior(self.family_)
        drawn, labels = reading.sample(self.schema_, self.family_, stats, n_samples, rng)
        return (drawn if hasattr(self, "feature_names_in_") else drawn.to_numpy()), self.classes_[labels]

    @property
    def floored_(self) -> int:
        """How many parameters of the model a guard had to hold."""
        check_is_fitted(self)
        return int(self.family_.floored(self._stats_with_prior(self.family_)))

    # --- files -----------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the model to the file `path`, which `peerbayes.load` reads; it holds no row and no code."""
        from peerbayes import __version__

        check_is_fitted(self)
        parameters, arrays = settings.portable(self.get_params(deep=False))
        header = {
            "kind": "model",
            "peerbayes": __version__,
            "estimator": type(self).__name__,
            "parameters": parameters,
            "named": hasattr(self, "feature_names_in_"),
            **self.statistics_.described(),
        }
        files.write(path, files.pack(header, {"statistics": self.statistics_.values, **arrays}))

    @classmethod
    def _loaded(cls, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        statistics = Statistics.restored(header, arrays["statistics"])
        parameters = settings.restored(header["parameters"], arrays)
        estimator = cls.from_statistics(statistics, **parameters)
        if parameters["costs"] is not None:
            _cost_table(parameters["costs"], estimator.classes_)
        return estimator._without_a_table(header["named"] is True)

    # --- inside ----------------------------------------------------------------------------------------

    def _training(
        self, X: Any, y: Any, sample_weight: Any, reset: bool
    ) -> tuple[Table, np.ndarray, tuple[Any, ...], np.ndarray | None]:
        """Checked rows, class indices, the classes seen in order, and weights; rows of weight 0 are left out."""
        settings.check(self.get_params(deep=False))
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        table = self._table(X, reset)
        if self.schema is not None and set(table.names) - set(self.schema.names) and table.frame is not None:
            extra = sorted(set(table.names) - set(self.schema.names))
            raise SchemaMismatch(
                f"the schema has no column {', '.join(extra[:5])}; leave it out of the table"
            )
        labels = column_or_1d(y, warn=True)
        check_consistent_length(range(table.rows), labels)
        loose = _unlabelled(labels, self.unlabelled)
        if loose.all():
            raise ValueError(
                f"every label is {self.unlabelled!r}, which stands for none; expected some labels"
            )
        classes, found = infer_classes(labels[~loose] if loose.any() else labels)
        codes = np.full(labels.size, -1, dtype=found.dtype)
        codes[~loose] = found
        if any(isinstance(value, float) for value in classes):
            check_classification_targets(labels[~loose])
        if sample_weight is None:
            return table, codes, classes, None
        weights = _check_sample_weight(
            sample_weight, np.empty((table.rows, 0)), dtype=np.float64, ensure_non_negative=True
        )
        counted = weights > 0
        if not counted.any():
            raise ValueError("every sample_weight is 0; expected at least one row that counts")
        if not counted.all():
            table, weights, codes = table.take(counted), weights[counted], codes[counted]
            present = np.unique(codes[codes >= 0])
            codes = np.where(codes < 0, -1, np.searchsorted(present, codes))
            classes = tuple(classes[index] for index in present)
        return table, codes, classes, weights

    def _table(self, X: Any, reset: bool) -> Table:
        """X as a table, with scikit-learn's checks of its shape and of its column names."""
        if isinstance(X, Table):
            return X
        if not hasattr(X, "iloc") and hasattr(X, "to_pandas"):
            X = X.to_pandas()
        if not (hasattr(X, "iloc") and hasattr(X, "columns")):
            X = validate_data(self, X, reset=reset, dtype=None, ensure_all_finite=False, accept_sparse=False)
            return Table.of(X)
        if not reset and getattr(self, "_finds_columns", False) and set(self.schema_.names) <= set(X.columns):
            X = X[list(self.schema_.names)]
        table = Table.of(X)
        if table.rows == 0 or not table.names:
            raise ValueError(
                f"Found array with {table.rows} sample(s) and {len(table.names)} feature(s) "
                f"(shape={X.shape}) while a minimum of 1 is required."
            )
        validate_data(self, X, reset=reset, skip_check_array=True)
        return table

    def _schema_for(
        self, table: Table, classes: tuple[Any, ...], weights: np.ndarray | None, kinds: Any
    ) -> Schema:
        """The schema given, or that of the rows; with the categories that prior knowledge speaks of."""
        if self.schema is not None:
            return self.schema if self.schema.classes else replace(self.schema, classes=classes)
        schema = Schema.infer(table, kinds=kinds, clip=self.clip, sample_weight=weights)
        for knowledge in self._knowledge():
            schema = schema.knowing(knowledge.schema)
        return replace(schema, classes=classes)

    def _knowledge(self) -> list[Statistics]:
        given = (self.start if self.calibrate else None, self.prior)
        return [item for item in given if isinstance(item, Statistics)]

    def _known_classes(self, classes: Any, first: bool) -> tuple[Any, ...]:
        agreed = self.schema.classes if self.schema is not None else ()
        known: tuple[Any, ...] = agreed if first else tuple(self.schema_.classes)
        if classes is None and not known:
            raise ValueError(
                "classes must be passed on the first call to partial_fit: every label that can occur"
            )
        named = known if classes is None else infer_classes(classes)[0]
        if known and set(named) != set(known):
            raise ValueError(
                f"classes={list(named)} is not the same as on the last call to partial_fit, or in the schema: "
                f"{list(known)}"
            )
        if len(named) < 2:
            raise ValueError(f"classes names {list(named)}; a classifier needs at least two classes")
        return known or named

    def _missing(self, source: passes.Source, table: Table, inferred: bool) -> bool:
        """Whether training values are missing, or prior knowledge speaks of some columns only."""
        own = inferred and self.schema is None
        missing = passes.check_rows(source, table, training=True, inferred=own)
        layouts = [item.family for item in self._knowledge()]
        return missing or any(isinstance(family, NaiveBayes) and family.missing for family in layouts)

    def _first_gap(self, source: passes.Source, layout: Family, missing: bool) -> str | None:
        """A column whose missing value φ alone cannot take; looked for only where there may be one."""
        if layout.marks_missing or not (missing or isinstance(layout, BayesNet)):
            return None
        return passes.first_missing(source, layout)

    def _likely(self, data: Gapped, layout: Family, source: passes.Source) -> np.ndarray:
        """S of maximum likelihood where values or labels are missing, by expectation-maximisation: [C, K].

        A missing parent or label makes the model a mixture, whose likelihood has no maximum: a variance that shrinks
        around one row raises it for ever. So the steps keep the variance floor of calibration, unless one is given.
        """
        prior = self._prior_for(
            Statistics(np.zeros((data.alone.shape[0], layout.size)), source.schema, layout)
        )
        family = data.family
        if self.variance_floor is None:
            family = replace(family, variance_floor=family.calibrated_floor)
        found = expectation.maximise(family, data, prior, self.em_iter, self.em_tol)
        self.n_iter_ = found.objective.size
        units = np.broadcast_to(_log_units(source, data.family), (source.rows, 1))[:, 0]
        self.log_likelihood_ = found.objective - units.mean()
        if not found.converged:
            warnings.warn(
                f"the log likelihood still moves by {self.em_tol} a row or more after em_iter={self.em_iter} steps "
                "(see log_likelihood_); raise em_iter, or em_tol",
                ConvergenceWarning,
                stacklevel=4,
            )
        return found.stats

    def _layout(self, schema: Schema, missing: bool) -> Family:
        return laid_out(self.family_type, schema, missing)

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

    def _guarded(self, layout: Family, rows: float) -> Family:
        """The family with this estimator's floors."""
        return guarded(
            layout,
            rows,
            self.calibrate,
            self.variance_floor,
            self.count_floor,
            getattr(self, "shrinkage", None),
        )

    def _calibrated(self, family: Family, data: passes.Data | Gapped, schema: Schema) -> Calibrated:
        start = _fitting(self.start, schema, family) if isinstance(self.start, Statistics) else self.start
        ml = None
        if isinstance(start, str) and start != "uniform":
            if isinstance(data, Gapped):
                ml = expectation.maximise(family, data, 0.0, self.em_iter, self.em_tol).stats
            else:
                ml = data.statistics()
        begin = start_statistics(start, family, len(schema.classes), data.mass, ml)
        return calibrate(
            family,
            data,
            begin,
            lr=self.lr,
            max_iter=self.max_iter,
            keep=self.keep,
            patience=self.patience,
            tol=self.tol,
            callback=self.callback if not self.verbose else _Progress(self.max_iter, self.callback),
        )

    def _adopt(self, statistics: Statistics) -> Self:
        """Become the model of these statistics."""
        family = self._guarded(statistics.family, statistics.rows)
        prior = self._prior_for(statistics)
        self._weights = family.weights(statistics.values + prior)
        self.statistics_, self.prior_ = statistics, prior
        self.schema_, self.family_ = statistics.schema, family
        self.classes_ = np.array(statistics.schema.classes)
        self.n_features_in_ = len(statistics.schema.columns)
        return self

    def _without_a_table(self, named: bool) -> Self:
        """Mark a model that was not fitted to a table here: a DataFrame's columns are then found by name."""
        self.__dict__.pop("feature_names_in_", None)
        if named:
            self.feature_names_in_ = np.array(self.schema_.names, dtype=object)
        self._finds_columns = named
        return self

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

    def _prior_for(self, statistics: Statistics) -> np.ndarray:
        """Laplace smoothing and the user's prior as one statistic [C, K]; calibrated statistics need none."""
        family, classes = statistics.family, len(statistics.schema.classes)
        if statistics.calibrated:
            return np.zeros((classes, family.size))
        smoothing = family.smoothing(classes, self.alpha)
        if self.prior is None:
            return smoothing
        return smoothing + _fitting(self.prior, statistics.schema, family)

    def _stats_with_prior(self, family: Family) -> np.ndarray:
        """S + prior, in the layout of `family`."""
        stats = self.statistics_.values + self.prior_
        if isinstance(self.family_, NaiveBayes) and isinstance(family, NaiveBayes) and family.missing:
            return self.family_.spread(stats)
        return stats

    def _reading(self, X: Any) -> tuple[passes.Source, np.ndarray, Family]:
        """Rows to predict, and the weights and the family to do it with: the layout follows what is missing."""
        check_is_fitted(self)
        table = self._table(X, reset=False)
        source = passes.source_of(self.schema_, table, again=False)
        missing = passes.check_rows(source, table, training=False)
        if not missing or not isinstance(self.family_, NaiveBayes) or self.family_.missing:
            return source, self._weights, self.family_
        family = self.family_.with_missing()
        return source, family.weights(self._stats_with_prior(family)), family

    def _as_rows(self, x: Any) -> Any:
        """One row (array, list, Series or mapping) or several, as a table."""
        import pandas as pd

        names = list(self.schema_.names)
        if isinstance(x, pd.Series) and not hasattr(self, "feature_names_in_"):
            return np.asarray(x).reshape(1, -1)
        if isinstance(x, pd.Series | dict):
            unknown = [key for key in dict(x) if key not in names]
            if unknown:
                raise SchemaMismatch(f"x names {unknown[0]!r}; expected columns of {', '.join(names[:20])}")
            order = list(getattr(self, "feature_names_in_", names))
            return pd.DataFrame([[dict(x).get(name) for name in order]], columns=order)
        if hasattr(x, "iloc"):
            return x
        array = np.asarray(x)
        return array.reshape(1, -1) if array.ndim == 1 else array

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "statistics_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags


class _Progress:
    """Prints a line per iteration to standard error, and passes it on."""

    def __init__(self, iterations: int, callback: Any) -> None:
        self.iterations, self.callback = iterations, callback

    def __call__(self, iteration: int, soft_error: float, error: float) -> object:
        line = f"iteration {iteration:>4}/{self.iterations}  soft error {soft_error:.4f}  error {error:.4f}"
        print(line, file=sys.stderr)
        return None if self.callback is None else self.callback(iteration, soft_error, error)


def _relabelled(labels: np.ndarray, seen: tuple[Any, ...], schema: Schema) -> np.ndarray:
    """Indices among the classes seen as indices among all of the schema's: [n] -> [n]."""
    if seen == schema.classes:
        return labels
    return np.where(labels < 0, -1, schema.encode_labels(np.asarray(seen, dtype=object))[labels])


def _unlabelled(labels: np.ndarray, sentinel: Any) -> np.ndarray:
    """Which rows have no label: those that are the sentinel, or missing where it is NaN. [n]."""
    if sentinel is None:
        return np.zeros(labels.size, dtype=bool)
    if isinstance(sentinel, float) and np.isnan(sentinel):
        return missing_of(labels)
    return np.array([value == sentinel for value in labels.tolist()], dtype=bool)


def _refuse_empty(data: Gapped, schema: Schema) -> None:
    """A column without any value tells nothing of how it goes with others."""
    there = data.alone[:, 1 : 1 + len(schema.continuous)].sum(axis=0)
    if (there <= 0).any():
        name = schema.names[schema.continuous[int(np.argmax(there <= 0))]]
        raise SchemaError(
            f"column {name!r} has no value in any training row with a label; leave it out, or use MixedNB"
        )


def _log_units(source: passes.Source, family: Family) -> Any:
    """Σ log scale over the columns present, which turns densities of z into densities of x: a number or [n, 1]."""
    log_scale = np.log(source.schema.scale)
    if isinstance(family, NaiveBayes) and not family.missing:
        return log_scale.sum()
    units = np.empty((source.rows, 1))
    for start, block in source.blocks(passes.FRAME_ROWS):
        units[start : start + len(block.values), 0] = ~np.isnan(block.values) @ log_scale
    return units


def _history(calibrated: Calibrated) -> Any:
    import pandas as pd

    iterations = np.arange(calibrated.error.size)
    return pd.DataFrame(
        {"iteration": iterations, "soft_error": calibrated.soft_error, "error": calibrated.error}
    )


def _counts_values(kinds: Any) -> bool:
    """Whether a column's kind depends on how many values it has."""
    rules = [kinds] if isinstance(kinds, str) else kinds.values() if isinstance(kinds, dict) else kinds
    return "paper" in rules


def _kinds_so_far(schema: Schema) -> dict[str, str]:
    return {column.name: column.kind for column in schema.columns if not column.empty}


def _warn_of_tails(table: Table, schema: Schema) -> None:
    """Say so where clipping would have changed a training value that nobody could know to clip."""
    if schema.clip is None:
        return
    for _, block in passes.Raw(replace(schema, clip=None), table).blocks(passes.FRAME_ROWS):
        far = np.abs(block.rows().values) > schema.clip
        if far.any():
            name = schema.names[schema.continuous[int(np.argmax(far.any(axis=0)))]]
            warnings.warn(
                f"column {name!r} holds values beyond {schema.clip} standard deviations, which fit would have clipped "
                "and partial_fit cannot; give a schema (schema=Schema.infer(sample, y)) or clip=None",
                stacklevel=4,
            )
            return


def _fitting(statistics: Statistics, schema: Schema, family: Family) -> np.ndarray:
    """A user's statistics as an array in this model's schema and layout."""
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


def _cost_table(costs: Any, classes: np.ndarray) -> np.ndarray:
    size = len(classes)
    try:
        table = np.asarray(costs, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"costs are {costs!r:.80}; expected {size} x {size} finite numbers") from error
    if table.shape != (size, size) or not np.isfinite(table).all():
        raise ValueError(
            f"costs have shape {table.shape}; expected {size} x {size} finite numbers: a row per true class, "
            f"a column per decision, in the order {list(classes)}"
        )
    return table
