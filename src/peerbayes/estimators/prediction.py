"""What every fitted classifier does: predict, explain, sample, save."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from peerbayes.data import files
from peerbayes.data.schema import Schema
from peerbayes.data.table import Table, frame_of
from peerbayes.errors import StatisticsMismatch
from peerbayes.estimators import training
from peerbayes.model import explain as reading
from peerbayes.model import passes
from peerbayes.model.families import Family, NaiveBayes
from peerbayes.model.layout import guarded
from peerbayes.model.passes import Source
from peerbayes.model.statistics import Statistics, prior_for

# --- cost-sensitive decisions


def cost_table(costs: Any, classes: np.ndarray) -> np.ndarray:
    """Return the caller's costs, checked: a row per true class, a column per decision. [C, C]."""
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


def cheapest(posterior: np.ndarray, costs: Any, classes: np.ndarray) -> np.ndarray:
    """Return the class of least expected cost for each row of p(c | x): [n, C] -> [n]."""
    return classes[(posterior @ cost_table(costs, classes)).argmin(axis=1)]


# --- a fitted model and its predictions


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


# --- a fitted model as scikit-learn sees it: predictions, explanations, files. Learning is in `classifier`


class Predictor(ClassifierMixin, BaseEstimator):
    """Parameters, and the model of given statistics: it needs no rows."""

    family_type: ClassVar[type[Family]]

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

    @classmethod
    def from_statistics(cls, statistics: Statistics, **parameters: Any) -> Self:
        """Return the model of given statistics, for instance the sum of several parties': no row is needed.

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
        training.check(estimator.get_params(deep=False))
        names = statistics.schema.names
        named = not all(re.fullmatch(r"x?\d+", name) for name in names)
        return estimator._adopt(statistics)._without_a_table(named)

    # --- predicting ------------------------------------------------------------------------------------

    def predict_joint_log_proba(self, X: Any) -> np.ndarray:
        """Return log p(x, c) of the rows X, in the units of the table: [n, C]."""
        model, source = self._reading(X)
        return model.log_density(source)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return p(c | x) of the rows X: [n, C]."""
        model, source = self._reading(X)
        return model.posterior(source)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return log p(c | x) of the rows X: [n, C]."""
        model, source = self._reading(X)
        return model.log_posterior(source)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row of X, or the cheapest one where `costs` were given: [n]."""
        if self.costs is not None:
            return self.decide(X, self.costs)
        model, source = self._reading(X)
        return self.classes_[model.log_joint(source).argmax(axis=1)]

    def decide(self, X: Any, costs: Any) -> np.ndarray:
        """Return the class of least expected cost for each row of X: [n].

        `costs[i][j]` is the cost of predicting classes_[j] when the true class is classes_[i].
        """
        return cheapest(self.predict_proba(X), costs, self.classes_)

    # --- reading a model -------------------------------------------------------------------------------

    def explain(self, x: Any, of: Any = None, against: Any = None) -> Any:
        """Return each column's contribution to the log-odds log p(of|x) − log p(against|x), as a DataFrame.

        It has one row per row of x and column, the strongest first, after a "(baseline)" with what does not depend
        on x (the class prior, and for QDA the determinants). They add up to the log-odds. By default `of` is the
        predicted class and `against` the runner-up. x is a table, or one row as an array, a Series or a mapping;
        columns that a mapping does not name are missing. A missing value contributes 0 in naive Bayes and in
        networks, where the terms of other columns depend only on the observed ones before them; in QDA and LDA it has
        a share of the change of the determinant.
        """
        check_is_fitted(self)
        order = list(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None
        table = self._table(reading.rows_of(x, list(self.schema_.names), order), reset=False)
        model, source = self._model.reading(table)
        rows = passes.all_rows(source)
        return reading.explain(
            model.schema, model.family, model.stats, self.classes_, table, rows, of, against
        )

    def describe(self) -> Any:
        """Return the model's parameters in the units of the table, as a DataFrame."""
        check_is_fitted(self)
        return reading.describe(self.schema_, self.family_, self._model.stats, self.classes_)

    def sample(self, n_samples: int = 1, random_state: Any = None) -> tuple[Any, np.ndarray]:
        """Return `n_samples` synthetic rows in the original columns, and labels; a DataFrame where one was fitted.

        `random_state` is a seed or a generator.
        """
        check_is_fitted(self)
        if n_samples < 1:
            raise ValueError(f"n_samples is {n_samples}; expected 1 or more")
        rng = random_state
        if not isinstance(rng, np.random.Generator):
            rng = np.random.default_rng(check_random_state(random_state).randint(np.iinfo(np.int32).max))
        drawn, labels = reading.sample(self.schema_, self.family_, self._model.stats, n_samples, rng)
        return (drawn if hasattr(self, "feature_names_in_") else drawn.to_numpy()), self.classes_[labels]

    @property
    def floored_(self) -> int:
        """The number of parameters of the model that are at a guard's limit."""
        check_is_fitted(self)
        return self._model.floored()

    # --- files -----------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the model to the file `path`, which `peerbayes.load` reads; it contains no rows and no code."""
        check_is_fitted(self)
        parameters, arrays = training.portable(self.get_params(deep=False))
        header = {
            "kind": "model",
            "peerbayes": version("peerbayes"),
            "estimator": type(self).__name__,
            "parameters": parameters,
            "named": hasattr(self, "feature_names_in_"),
            **self.statistics_.described(),
        }
        files.write(path, files.pack(header, {"statistics": self.statistics_.values, **arrays}))

    @classmethod
    def _loaded(cls, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        """Return the estimator that a file's header and arrays describe."""
        statistics = Statistics.restored(header, arrays["statistics"])
        parameters = training.restored(header["parameters"], arrays)
        estimator = cls.from_statistics(statistics, **parameters)
        if parameters["costs"] is not None:
            cost_table(parameters["costs"], estimator.classes_)
        return estimator._without_a_table(header["named"] is True)

    # --- inside ----------------------------------------------------------------------------------------

    def _adopt(self, statistics: Statistics) -> Self:
        """Become the model of these statistics; calibrated ones need no prior."""
        schema, layout = statistics.schema, statistics.family
        family = self._guarded(layout, statistics.rows)
        if statistics.calibrated:
            prior = np.zeros(statistics.shape)
        else:
            prior = prior_for(schema, layout, self.alpha, self.prior)
        self._weights = family.weights(statistics.values + prior)
        self.statistics_, self.prior_ = statistics, prior
        self.schema_, self.family_ = schema, family
        self.classes_ = np.array(schema.classes)
        self.n_features_in_ = len(schema.columns)
        return self

    @property
    def _model(self) -> Model:
        return Model(self.schema_, self.family_, self.statistics_.values, self.prior_, self._weights)

    def _reading(self, X: Any) -> tuple[Model, passes.Source]:
        """Return the model in the layout that X needs, and X as a source of rows."""
        check_is_fitted(self)
        return self._model.reading(self._table(X, reset=False))

    def _without_a_table(self, named: bool) -> Self:
        """Mark a model that was not fitted to a table here: a DataFrame's columns are then matched by name."""
        self.__dict__.pop("feature_names_in_", None)
        if named:
            self.feature_names_in_ = np.array(self.schema_.names, dtype=object)
        self._finds_columns = named
        return self

    def _guarded(self, layout: Family, rows: float) -> Family:
        """Return the family with this estimator's floors."""
        return guarded(
            layout,
            rows,
            self.calibrate,
            self.variance_floor,
            self.count_floor,
            getattr(self, "shrinkage", None),
        )

    def _table(self, X: Any, reset: bool) -> Table:
        """Return X as a table, after scikit-learn's checks of its shape and of its column names."""
        if isinstance(X, Table):
            return X
        frame = frame_of(X)
        if frame is None:
            X = validate_data(self, X, reset=reset, dtype=None, ensure_all_finite=False, accept_sparse=False)
            return Table.of(X)
        names = list(self.schema_.names) if not reset and getattr(self, "_finds_columns", False) else []
        table = Table.of(frame[names] if names and set(names) <= set(frame.columns) else frame)
        if table.rows == 0 or not table.names:
            raise ValueError(
                f"Found array with {table.rows} sample(s) and {len(table.names)} feature(s) "
                f"(shape={frame.shape}) while a minimum of 1 is required."
            )
        if reset or tuple(getattr(self, "feature_names_in_", ())) != table.labels:
            import pandas as pd

            named = (
                table.native if frame.implementation.is_pandas() else pd.DataFrame(columns=list(table.labels))
            )
            validate_data(self, named, reset=reset, skip_check_array=True)
        return table

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "statistics_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags
