"""What every estimator shares: it reads a table, keeps the sufficient statistics, and asks its family for the rest."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
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

from peerbayes import files, passes, reading
from peerbayes.calibration import Calibrated, calibrate, start_statistics
from peerbayes.errors import ModelFileDamaged, SchemaError, StatisticsMismatch
from peerbayes.families import Family, NaiveBayes
from peerbayes.inference import infer_classes
from peerbayes.schema import Schema
from peerbayes.statistics import Statistics
from peerbayes.tables import Table


def _learns_by_adding(estimator: GenerativeClassifier) -> bool:
    if estimator.calibrate:
        raise AttributeError(
            "partial_fit needs calibrate=False: calibration goes through all rows again and again. "
            "Use fit, or add up the statistics_ of several fits with calibrate=False"
        )
    return True


class GenerativeClassifier(ClassifierMixin, BaseEstimator):
    """What every estimator shares. Use `MixedNB`, `QDA` or `LDA`."""

    family_type: ClassVar[type[Family]]
    calibrated_floor: ClassVar[float]
    calibrated_shrinkage: ClassVar[float] = 0.0

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
        self.costs = costs
        self.schema = schema
        self.callback = callback
        self.verbose = verbose

    # --- learning --------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from rows X [n, D] (DataFrame or array) and labels y [n]; weights count a row that many times."""
        with self._whole_or_nothing():
            return self._fit(X, y, sample_weight)

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        table, labels, classes, weights = self._training(X, y, sample_weight, reset=True)
        if len(classes) < 2:
            raise ValueError(
                f"y holds one class ({classes[0]!r}, n_samples={table.rows}); a classifier needs at least two classes. "
                "To add rows of one class to a model, use partial_fit with classes=..."
            )
        schema = self._schema_for(table, classes, weights, kinds=self.kinds)
        if self.schema is not None:
            labels, classes = self._relabelled(labels, classes, schema), schema.classes
        source = passes.source_of(schema, table, again=self.calibrate)
        inferred = self.schema is None and weights is None
        missing = self._any_missing(source, schema, training=True, inferred=inferred)
        family = self._family(schema, missing or self._layout_of_prior(), self._mass(table, weights))
        data = passes.labelled(family, source, labels, len(classes), weights)
        if not self.calibrate:
            self.__dict__.pop("history_", None)
            self.n_iter_ = self.best_iter_ = 1  # a single pass over the rows
            return self._adopt(Statistics(data.statistics(), schema, family))
        calibrated = self._calibrated(family, data, schema)
        self._adopt(Statistics(calibrated.stats, schema, family, calibrated=True))
        self.history_ = _history(calibrated)
        self.n_iter_ = calibrated.soft_error.size - 1
        self.best_iter_ = calibrated.kept
        return self

    @available_if(_learns_by_adding)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Add rows to the model; over any split of a table it ends where `fit` does.

        The first call must name all `classes`. Without a `schema` the location and scale of all rows are known
        only at the end: training values are then not clipped. Rows may bring new categories, not new classes.
        """
        with self._whole_or_nothing():
            return self._partial_fit(X, y, classes, sample_weight)

    def _partial_fit(self, X: Any, y: Any, classes: Any, sample_weight: Any) -> Self:
        first = not hasattr(self, "statistics_")
        table, labels, seen, weights = self._training(X, y, sample_weight, reset=first)
        known = self._known_classes(classes, first)
        labels = self._relabelled(labels, seen, Schema((), known))
        kinds = self.kinds if first else _kinds_so_far(self.schema_)
        schema = self._schema_for(table, known, weights, kinds=kinds)
        reading = schema if self.schema is not None else replace(schema, clip=None)
        source = passes.source_of(reading, table, again=False)
        inferred = self.schema is None and weights is None
        missing = self._any_missing(source, schema, training=True, inferred=inferred)
        family = self._family(schema, missing or self._layout_of_prior(), self._mass(table, weights))
        stats = passes.labelled(family, source, labels, len(known), weights).statistics()
        added = Statistics(stats, schema, family)
        return self._adopt(added if first else self.statistics_ + added)

    @classmethod
    def from_statistics(cls, statistics: Statistics, **parameters: Any) -> Self:
        """The model of given statistics, for instance of several parties' added up: no row is needed."""
        if not isinstance(statistics, Statistics):
            raise TypeError(
                f"from_statistics takes the statistics_ of a fitted {cls.__name__}, not {type(statistics).__name__}"
            )
        if statistics.family.name != cls.family_type.name:
            raise StatisticsMismatch(
                f"these are statistics of {statistics.family.name}; {cls.__name__} needs {cls.family_type.name}"
            )
        estimator = cls(**{"calibrate": statistics.calibrated, "clip": statistics.schema.clip, **parameters})
        guarded = estimator._guarded(statistics.family, statistics.rows)
        names = statistics.schema.names
        estimator._name_features(statistics.schema, named=names != tuple(f"x{j}" for j in range(len(names))))
        return estimator._adopt(replace(statistics, family=guarded))

    # --- predicting ------------------------------------------------------------------------------------

    def predict_joint_log_proba(self, X: Any) -> np.ndarray:
        """log p(x, c) in the units of the table: [n, C]."""
        source, weights, family = self._reading(X)
        joint = passes.log_joint(family, weights, source)
        return joint - self._log_units(source, family)

    def predict_proba(self, X: Any) -> np.ndarray:
        """p(c | x): [n, C]."""
        source, weights, family = self._reading(X)
        return passes.posterior(family, weights, source)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """log p(c | x): [n, C]."""
        source, weights, family = self._reading(X)
        joint = passes.log_joint(family, weights, source)
        joint -= joint.max(axis=1, keepdims=True)
        return joint - np.log(np.exp(joint).sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row, or the cheapest one where `costs` were given: [n]."""
        if self.costs is not None:
            return self.decide(X, self.costs)
        source, weights, family = self._reading(X)
        return self.classes_[passes.log_joint(family, weights, source).argmax(axis=1)]

    def decide(self, X: Any, costs: Any) -> np.ndarray:
        """The class with the lowest expected cost: [n]. costs[i][j] is what saying classes_[j] costs when it is i."""
        check_is_fitted(self)
        table = np.asarray(costs, dtype=np.float64)
        size = len(self.classes_)
        if table.shape != (size, size) or not np.isfinite(table).all():
            raise ValueError(
                f"costs have shape {table.shape}; expected {size} x {size} finite numbers: a row per true class, "
                f"a column per decision, in the order {list(self.classes_)}"
            )
        return self.classes_[(self.predict_proba(X) @ table).argmin(axis=1)]

    # --- reading a model -------------------------------------------------------------------------------

    def explain(self, x: Any, of: Any = None, against: Any = None) -> Any:
        """Each column's contribution to the log-odds log p(of|x) − log p(against|x), as a DataFrame.

        One row of it per row of x and column, the strongest first, after a "(baseline)" with what does not depend
        on x (the class prior, and for QDA the determinants). They add up to the log-odds. By default `of` is the
        predicted class and `against` the runner-up.
        """
        check_is_fitted(self)
        table = Table.of(self._table(_as_rows(x, self.schema_), reset=False))
        source, _, family = self._reading(table)
        stats, rows = self._stats_with_prior(family), passes.all_rows(source)
        return reading.explain(self.schema_, family, stats, self.classes_, table, rows, of, against)

    def describe(self) -> Any:
        """The model's parameters in the units of the table, as a DataFrame."""
        check_is_fitted(self)
        return reading.describe(
            self.schema_, self.family_, self._stats_with_prior(self.family_), self.classes_
        )

    def sample(self, n_samples: int = 1, random_state: Any = None) -> tuple[Any, np.ndarray]:
        """Synthetic rows in the original columns and their labels; a DataFrame where one was fitted, else an array."""
        check_is_fitted(self)
        if n_samples < 1:
            raise ValueError(f"n_samples is {n_samples}; expected 1 or more")
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
        """Write the model to a file that `peerbayes.load` reads; it holds no row and no code."""
        from peerbayes import __version__

        check_is_fitted(self)
        guards = {field.name: getattr(self.family_, field.name) for field in fields(self.family_)}
        header = {
            "peerbayes": __version__,
            "estimator": type(self).__name__,
            "parameters": {name: getattr(self, name) for name in _SAVED},
            "costs": None if self.costs is None else np.asarray(self.costs, dtype=float).tolist(),
            "family": {"name": self.family_.name, **guards},
            "schema": self.schema_.to_json(),
            "named": hasattr(self, "feature_names_in_"),
            "calibrated": self.statistics_.calibrated,
        }
        files.write(path, header, {"statistics": self.statistics_.values, "prior": self.prior_})

    @classmethod
    def _loaded(cls, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        schema = Schema.from_json(header["schema"])
        described = dict(header["family"])
        if described.pop("name") != cls.family_type.name:
            raise ModelFileDamaged(f"a {cls.__name__} file holds the family {header['family']['name']}")
        described["cardinalities"] = tuple(described["cardinalities"])
        estimator = cls(**{name: header["parameters"][name] for name in _SAVED}, costs=header["costs"])
        estimator._name_features(schema, named=bool(header["named"]))
        stats = Statistics(
            arrays["statistics"], schema, cls.family_type(**described), bool(header["calibrated"])
        )
        return estimator._adopt(stats, prior=arrays["prior"])

    # --- inside ----------------------------------------------------------------------------------------

    def _training(
        self, X: Any, y: Any, sample_weight: Any, reset: bool
    ) -> tuple[Table, np.ndarray, tuple[Any, ...], np.ndarray | None]:
        """Checked rows, class indices, classes in order, and weights; rows of weight 0 are left out."""
        self._check_parameters()
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        table = self._table(X, reset)
        labels = column_or_1d(y, warn=True)
        check_consistent_length(range(table.rows), labels)
        classes, codes = infer_classes(labels)
        if any(isinstance(value, float) for value in classes):
            check_classification_targets(labels)
        if sample_weight is None:
            return table, codes, classes, None
        weights = _check_sample_weight(
            sample_weight, np.empty((table.rows, 0)), dtype=np.float64, ensure_non_negative=True
        )
        counted = weights > 0
        if not counted.all():
            if not counted.any():
                raise ValueError("every sample_weight is 0; expected at least one row that counts")
            table, codes, weights = table.take(counted), codes[counted], weights[counted]
            present, codes = np.unique(codes, return_inverse=True)
            classes = tuple(classes[index] for index in present)
        return table, codes.astype(np.int32), classes, weights

    def _table(self, X: Any, reset: bool) -> Table:
        """X as a table, with scikit-learn's checks of its shape and of its column names."""
        if isinstance(X, Table):
            return X
        if hasattr(X, "iloc") and hasattr(X, "columns"):
            table = Table.of(X)
            if table.rows == 0 or not table.names:
                raise ValueError(
                    f"Found array with {table.rows} sample(s) and {len(table.names)} feature(s) "
                    "(shape={X.shape}) while a minimum of 1 is required."
                )
            validate_data(self, X, reset=reset, skip_check_array=True)
            return table
        X = validate_data(self, X, reset=reset, dtype=None, ensure_all_finite=False, accept_sparse=False)
        return Table.of(X)

    def _check_parameters(self) -> None:
        for name in ("alpha", "tol"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected a number of 0 or more")
        for name in ("variance_floor", "count_floor", "shrinkage"):
            value = getattr(self, name, None)
            if value is not None and not 0 <= value < np.inf:
                raise ValueError(
                    f"{name} is {value!r}; expected a number of 0 or more, or None for the default"
                )
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience is {self.patience}; expected 1 or more, or None for no early stop")

    def _schema_for(
        self, table: Table, classes: tuple[Any, ...], weights: np.ndarray | None, kinds: Any
    ) -> Schema:
        if self.schema is not None:
            return self.schema if self.schema.classes else replace(self.schema, classes=classes)
        schema = Schema.infer(table, kinds=kinds, clip=self.clip, sample_weight=weights)
        return replace(schema, classes=classes)

    def _relabelled(self, labels: np.ndarray, seen: tuple[Any, ...], schema: Schema) -> np.ndarray:
        """Class indices among the schema's classes instead of the seen ones."""
        return schema.encode_labels(np.asarray(seen, dtype=object))[labels]

    def _known_classes(self, classes: Any, first: bool) -> tuple[Any, ...]:
        if first and classes is None and not (self.schema is not None and self.schema.classes):
            raise ValueError(
                "classes must be passed on the first call to partial_fit: every label that can occur"
            )
        if not first:
            known = tuple(self.schema_.classes)
            if classes is not None and infer_classes(classes)[0] != known:
                raise ValueError(
                    f"classes={list(classes)} is not the same as on the last call to partial_fit, "
                    f"which was {list(known)}"
                )
            return known
        if classes is None:
            assert self.schema is not None
            return self.schema.classes
        known = infer_classes(classes)[0]
        if len(known) < 2:
            raise ValueError(f"classes names {list(known)}; a classifier needs at least two classes")
        return known

    def _any_missing(self, source: passes.Source, schema: Schema, **how: bool) -> bool:
        missing = passes.check_rows(source, **how)
        if missing and not self.family_type.takes_missing:
            raise SchemaError(
                f"column {_first_missing(source, schema)!r} has missing values (NaN); {type(self).__name__} needs "
                "every continuous value. Use MixedNB, which handles missing values exactly, or fill them in first, "
                "for instance with sklearn.impute.SimpleImputer"
            )
        return missing

    def _layout_of_prior(self) -> bool:
        """Whether knowledge given beforehand speaks of some columns only, as if the others were missing."""
        given = (self.prior, self.start if self.calibrate else None)
        families = [item.family for item in given if isinstance(item, Statistics)]
        return any(isinstance(family, NaiveBayes) and family.missing for family in families)

    def _mass(self, table: Table, weights: np.ndarray | None) -> float:
        return float(table.rows if weights is None else weights.sum())

    def _family(self, schema: Schema, missing: bool, rows: float) -> Family:
        layout: dict[str, Any] = {"missing": missing} if self.family_type.takes_missing else {}
        family = self.family_type(
            continuous=len(schema.continuous), cardinalities=schema.cardinalities, **layout
        )
        return self._guarded(family, rows)

    def _guarded(self, family: Family, rows: float) -> Family:
        """The family with this estimator's floors: tiny for ML, larger for calibration, or as set."""
        floor, count = (self.calibrated_floor, 1e-4) if self.calibrate else (1e-9, 1e-30)
        guards: dict[str, Any] = {
            "variance_floor": floor if self.variance_floor is None else self.variance_floor,
            "count_floor": count if self.count_floor is None else self.count_floor,
        }
        if hasattr(family, "shrinkage"):
            shrinkage = getattr(self, "shrinkage", None)
            if shrinkage is None:
                shrinkage = self.calibrated_shrinkage if self.calibrate else 0.0
            guards["shrinkage"] = shrinkage / rows if rows > 0 else 0.0
        return replace(family, **guards)

    def _calibrated(self, family: Family, data: passes.Data, schema: Schema) -> Calibrated:
        start = self.start
        if isinstance(start, Statistics):
            start = _fitting(start, schema, family)
        elif not isinstance(start, str):
            start = np.asarray(start, dtype=np.float64)
        ml = data.statistics() if isinstance(start, str) and start != "uniform" else None
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

    def _adopt(self, statistics: Statistics, prior: np.ndarray | None = None) -> Self:
        """Become the model of these statistics."""
        if prior is None:
            prior = self._prior_for(statistics)
        self._weights = statistics.family.weights(statistics.values + prior)
        self.statistics_, self.prior_ = statistics, prior
        self.schema_, self.family_ = statistics.schema, statistics.family
        self.classes_ = np.array(statistics.schema.classes)
        self.n_features_in_ = len(statistics.schema.columns)
        return self

    def _name_features(self, schema: Schema, named: bool) -> None:
        if named:
            self.feature_names_in_ = np.array(schema.names, dtype=object)

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
        source = passes.source_of(self.schema_, self._table(X, reset=False), again=False)
        missing = self._any_missing(source, self.schema_, training=False)
        if not missing or not isinstance(self.family_, NaiveBayes) or self.family_.missing:
            return source, self._weights, self.family_
        family = self.family_.with_missing()
        return source, family.weights(self._stats_with_prior(family)), family

    def _log_units(self, source: passes.Source, family: Family) -> Any:
        """Σ log scale over the columns present, which turns densities of z into densities of x: a number or [n, 1]."""
        log_scale = np.log(self.schema_.scale)
        if not (isinstance(family, NaiveBayes) and family.missing):
            return log_scale.sum()
        units = np.empty((source.rows, 1))
        for start, block in source.blocks(passes.FRAME_ROWS):
            units[start : start + len(block.values), 0] = ~np.isnan(block.values) @ log_scale
        return units

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "statistics_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.family_type.takes_missing
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags


# Parameters that a model file carries; the others are code (callback) or already part of the model.
_SAVED = (
    *("calibrate", "lr", "max_iter", "keep", "clip", "alpha"),
    *("variance_floor", "count_floor", "patience", "tol"),
)


class _Progress:
    """Prints a line per iteration to standard error, and passes it on."""

    def __init__(self, iterations: int, callback: Any) -> None:
        self.iterations, self.callback = iterations, callback

    def __call__(self, iteration: int, soft_error: float, error: float) -> object:
        line = f"iteration {iteration:>4}/{self.iterations}  soft error {soft_error:.4f}  error {error:.4f}"
        print(line, file=sys.stderr)
        return None if self.callback is None else self.callback(iteration, soft_error, error)


def _history(calibrated: Calibrated) -> Any:
    import pandas as pd

    iterations = np.arange(calibrated.error.size)
    return pd.DataFrame(
        {"iteration": iterations, "soft_error": calibrated.soft_error, "error": calibrated.error}
    )


def _kinds_so_far(schema: Schema) -> dict[str, str]:
    return {column.name: column.kind for column in schema.columns if not column.empty}


def _fitting(statistics: Statistics, schema: Schema, family: Family) -> np.ndarray:
    """A user's statistics as an array in this model's schema and layout."""
    if not isinstance(statistics, Statistics) or statistics.family.name != family.name:
        raise StatisticsMismatch(f"expected Statistics of {family.name}, got {statistics!r:.80}")
    expressed = statistics.expressed(schema)
    if isinstance(family, NaiveBayes) and family.missing:
        expressed = expressed.with_missing()
    if expressed.family.size != family.size:
        raise StatisticsMismatch(
            "the statistics given hold missing values, the rows do not; this needs rows with a missing value too"
        )
    return expressed.values


def _first_missing(source: passes.Source, schema: Schema) -> str:
    for _, block in source.blocks(passes.FRAME_ROWS):
        absent = np.isnan(block.values).any(axis=0)
        if absent.any():
            return schema.names[schema.continuous[int(np.argmax(absent))]]
    raise NotFittedError("no missing value was found")


def _as_rows(x: Any, schema: Schema) -> Any:
    """One row (array, list, Series or mapping) or several, as a table."""
    import pandas as pd

    if isinstance(x, pd.Series):
        return pd.DataFrame([x], columns=list(schema.names)).infer_objects()
    if isinstance(x, dict):
        return pd.DataFrame([x], columns=list(schema.names))
    if hasattr(x, "iloc"):
        return x
    array = np.asarray(x)
    return array.reshape(1, -1) if array.ndim == 1 else array
