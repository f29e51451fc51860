"""What every fitted classifier does: predict, explain, sample, save."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from peerbayes.data import files
from peerbayes.data.schema import Schema
from peerbayes.data.sources.blocks import Blocks
from peerbayes.data.table import Table
from peerbayes.estimators.conventions import Conventions, with_priors
from peerbayes.model import explain as reading
from peerbayes.model.families import Family, NaiveBayes
from peerbayes.model.scaling import Scaling
from peerbayes.model.sources import Raw, Source, all_rows, check_rows, source_of
from peerbayes.model.statistics import Statistics

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


# --- predictions of the rows of a file, which are never all in memory


def by_block(predict: Callable[[Any, Any], np.ndarray]) -> Callable[[Any, Any], np.ndarray]:
    """Return the method with `Blocks` of a file predicted one by one: [n, ...], in the order of the file."""

    @wraps(predict)
    def predicted(self: Predictor, X: Any) -> np.ndarray:
        if not isinstance(X, Blocks):
            return predict(self, X)
        check_is_fitted(self)
        answers: np.ndarray | None = None
        for features in X:
            first = int(features.index[0])
            answer = predict(self, self._block(features, first))
            if answers is None:
                answers = np.empty((X.row_count, *answer.shape[1:]), dtype=answer.dtype)
            answers[first : first + len(answer)] = answer
        assert answers is not None  # a file has rows
        return answers

    return predicted


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

    def reading(self, table: Table) -> tuple[Self, Source]:
        """Return the model in the layout that the table's missing values need, and the table as a source of rows."""
        source = source_of(self.schema, table, again=False)
        if check_rows(source, table):
            return self._with_missing(), source
        return self, replace(source, complete=True) if isinstance(source, Raw) else source

    def _with_missing(self) -> Self:
        """Return the same model in the layout for missing values; only naive Bayes has one, others complete them."""
        if not isinstance(self.family, NaiveBayes) or self.family.missing:
            return self
        spread, family = self.family.spread, self.family.with_missing()
        counted, prior = spread(self.counted), spread(self.prior)
        return type(self)(self.schema, family, counted, prior, family.weights(counted + prior))


# --- parameters in files

# Code is not written to files.
UNSAVED = ("callback",)


def portable(parameters: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return parameters as plain values and arrays, for a file."""
    plain: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, value in parameters.items():
        if name in UNSAVED:
            continue
        if isinstance(value, Statistics):
            plain[name] = {"statistics": value.described()}
            arrays[f"parameter {name}"] = value.values
        elif isinstance(value, Schema):
            plain[name] = {"schema": value.to_json()}
        elif isinstance(value, Mapping):
            plain[name] = {"pairs": [[_plain(key), _plain(kind)] for key, kind in value.items()]}
        elif isinstance(value, np.ndarray | list | tuple):
            plain[name] = {"list": np.asarray(value).tolist()}
        elif isinstance(value, float | np.floating) and math.isnan(value):
            plain[name] = {"missing": True}
        else:
            plain[name] = _plain(value)
    return plain, arrays


def _plain(value: Any) -> Any:
    """Return a scalar of NumPy as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


def restored(plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the parameters that `portable` wrote."""
    parameters: dict[str, Any] = {}
    for name, value in plain.items():
        if not isinstance(value, dict):
            parameters[name] = value
        elif "statistics" in value:
            parameters[name] = Statistics.restored(value["statistics"], arrays[f"parameter {name}"])
        elif "schema" in value:
            parameters[name] = Schema.from_json(value["schema"])
        elif "missing" in value:
            parameters[name] = math.nan
        elif "pairs" in value:
            parameters[name] = dict(value["pairs"])
        else:
            parameters[name] = np.asarray(value["list"]) if name == "start" else value["list"]
    return parameters


# --- a fitted model as scikit-learn sees it: predictions, explanations, files. Learning is in `generative`


@dataclass(kw_only=True, eq=False, repr=False)
class Predictor(Conventions, ClassifierMixin, BaseEstimator):
    """Parameters of an estimator, and what it does once it is fitted."""

    family_type: ClassVar[type[Family]]

    calibrate: bool = False
    kinds: Any = "auto"
    start: Any = "uniform"
    lr: float = 0.05
    max_iter: int = 64
    step: Any = "adaptive"
    keep: Any = "best"
    validation_fraction: float = 0.1
    clip: float | None = 5.0
    alpha: float | str = "auto"
    shrinkage: float | str | None = "auto"
    prior: Statistics | None = None
    priors: Any = None
    class_weight: Any = None
    variance_floor: float | None = None
    count_floor: float | None = None
    patience: int | None = None
    tol: float = 0.0
    temperature: Any = "auto"
    em_iter: int = 100
    em_tol: float = 1e-4
    unlabelled: Any = None
    costs: Any = None
    schema: Schema | None = None
    callback: Any = None
    verbose: bool = False

    statistics_: Statistics = field(init=False)
    schema_: Schema = field(init=False)
    family_: Family = field(init=False)
    prior_: np.ndarray = field(init=False)
    classes_: np.ndarray = field(init=False)
    _priors: np.ndarray | None = field(init=False)
    _weights: np.ndarray = field(init=False)

    # --- predicting ------------------------------------------------------------------------------------

    @by_block
    def predict_joint_log_proba(self, X: Any) -> np.ndarray:
        """Return log p(x, c) of the rows X, in the units of the table: [n, C].

        It is that of the generative model: `scaling_` applies to probabilities and decisions alone.
        """
        family, weights, source = self._reading(X)
        return reading.log_joint(family, weights, source) - reading.log_units(family, source)

    @by_block
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return p(c | x) of the rows X: [n, C]."""
        return reading.posterior(*self._reading(X), self.scaling_)

    @by_block
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return log p(c | x) of the rows X: [n, C]."""
        scores = reading.scores(*self._reading(X))
        return self.scaling_.log_probabilities(scores)

    @by_block
    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row of X, or the cheapest one where `costs` were given: [n]."""
        if self.costs is not None:
            return self.decide(X, self.costs)
        best = reading.most_probable(*self._reading(X), self.scaling_)
        return self.classes_[best]

    def decide(self, X: Any, costs: Any) -> np.ndarray:
        """Return the class of least expected cost for each row of X: [n].

        `costs[i][j]` is the cost of predicting classes_[j] when the true class is classes_[i].
        """
        return cheapest(self.predict_proba(X), costs, self.classes_)

    # --- reading a model -------------------------------------------------------------------------------

    def explain(self, x: Any, of: Any = None, against: Any = None) -> Any:
        """Return each column's contribution to the log-odds log p(of|x) − log p(against|x), as a DataFrame.

        It has one row per row of x and column, the strongest first, after a "(baseline)": the log-odds of a typical
        row, which has the mean of each numeric column and the most frequent category of each other. A contribution is
        what the value changes beside the typical one, so that a constant column has none. They add up to the
        log-odds of `predict_proba`, by the statistics that the model predicts with (`statistics`); where a `scaling_`
        was fitted, "(noise)" comes last. By default `of` is the predicted class and `against` the runner-up. x is a
        table, or one row as an array, a Series or a mapping; columns that a mapping does not name are missing. A
        missing value contributes 0, and is missing in the typical row too.
        """
        check_is_fitted(self)
        if isinstance(x, Blocks):
            raise ValueError(
                "explain takes a table, or one row, and not blocks of a file; give it some of them"
            )
        order = list(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None
        table = self._table(reading.rows_of(x, list(self.schema_.names), order), reset=False)
        model, source = self._model.reading(table)
        rows = all_rows(source)
        typical = reading.typical_row(*self._portrait, of_rows=self.statistics_.of_rows is not None)
        explained = reading.explain(
            model.schema,
            model.family,
            model.stats,
            self.classes_,
            table,
            rows,
            of,
            against,
            self.scaling_,
            typical,
        )
        return explained.assign(statistics=self._deciding)

    def describe(self) -> Any:
        """Return what the classes look like in the units of the table, and how many bits each column tells.

        A DataFrame with a row per class and column or category. A calibrated model describes its training rows, by
        the statistics of maximum likelihood that it keeps beside its own; its column `statistics` says which they are.
        "calibrated" are those of a model that kept no others (of an older file, or private): they decide predictions
        and may not describe the data.
        """
        check_is_fitted(self)
        family, stats = self._portrait
        statistics = reading.CALIBRATED if self.statistics_.of_rows is None else reading.LIKELIHOOD
        observed = self.statistics_.observed
        bits = None if observed is None else observed.bits
        return reading.describe(self.schema_, family, stats, self.classes_, bits, statistics)

    def sample(self, n_samples: int = 1, random_state: Any = None) -> tuple[Any, np.ndarray]:
        """Return `n_samples` synthetic rows in the original columns, and labels; a DataFrame where one was fitted.

        They look like the training rows: a calibrated model draws from its statistics of maximum likelihood, if it
        has them (see `describe`). `random_state` is a seed or a generator.
        """
        check_is_fitted(self)
        if n_samples < 1:
            raise ValueError(f"n_samples is {n_samples}; expected 1 or more")
        rng = random_state
        if not isinstance(rng, np.random.Generator):
            rng = np.random.default_rng(check_random_state(random_state).randint(np.iinfo(np.int32).max))
        drawn, labels = reading.sample(self.schema_, *self._portrait, n_samples, rng)
        return (drawn if hasattr(self, "feature_names_in_") else drawn.to_numpy()), self.classes_[labels]

    @property
    def scaling_(self) -> Scaling:
        """The map from logits to probabilities; it changes nothing where none was fitted, or with temperature=False."""
        check_is_fitted(self)
        scaling = None if self.temperature is False else self.statistics_.scaling
        return scaling or Scaling.identity(len(self.classes_))

    @property
    def floored_(self) -> int:
        """The number of parameters of the model that are at a guard's limit."""
        check_is_fitted(self)
        return int(self.family_.floored(self._model.stats))

    # --- files -----------------------------------------------------------------------------------------

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the model to the file `path`, which `peerbayes.load` reads; it contains no rows and no code.

        A file that is there is replaced only with `overwrite`.
        """
        check_is_fitted(self)
        files.refuse_existing(path, overwrite)
        parameters, arrays = portable(self.get_params(deep=False))
        header = {
            "kind": "model",
            "peerbayes": version("peerbayes"),
            "estimator": type(self).__name__,
            "parameters": parameters,
            "named": hasattr(self, "feature_names_in_"),
            **self.statistics_.described(),
        }
        files.write(path, files.pack(header, {**self.statistics_.arrays(), **arrays}))

    # --- inside ----------------------------------------------------------------------------------------

    @property
    def _deciding(self) -> str:
        """The name of the statistics that decide predictions."""
        return reading.CALIBRATED if self.statistics_.calibrated else reading.LIKELIHOOD

    @property
    def _portrait(self) -> tuple[Family, np.ndarray]:
        """The family and the statistics [C, K] that say what classes look like: of the rows, where they are kept."""
        statistics = self.statistics_
        if statistics.likelihood is None:
            return self.family_, self._model.stats
        return with_priors(statistics.family, statistics.likelihood, self._priors), statistics.likelihood

    @property
    def _model(self) -> Model:
        return Model(self.schema_, self.family_, self.statistics_.values, self.prior_, self._weights)

    def _reading(self, X: Any) -> tuple[Family, np.ndarray, Source]:
        """Return the family and W in the layout that X needs, and X as a source of rows."""
        check_is_fitted(self)
        model, source = self._model.reading(self._table(X, reset=False))
        return model.family, model.weights, source

    @abstractmethod
    def _table(self, X: Any, reset: bool) -> Table:
        """Return X as a table, after scikit-learn's checks of its shape and of its column names."""

    @abstractmethod
    def _block(self, features: Any, first: int, reset: bool = False) -> Table:
        """Return rows of a file as a table whose rows are numbered as in the file, from `first` on."""

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "statistics_")
