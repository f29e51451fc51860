"""What scikit-learn's conventions ask of a classifier beside predictions: priors and weights of classes as a user gives
them, and what a fitted model says of the classes, in the units of the table.

Attributes that describe the classes (`class_count_`, `class_prior_`, `means_`, `theta_`, `var_`, `covariance_`) come
from the statistics of the rows, S = YᵀΦ, also where the model is calibrated; what decides a prediction
(`decision_function`, `coef_`, `intercept_`, `scalings_`) comes from the statistics that predict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from peerbayes.data.arguments import number, refusal, shown
from peerbayes.data.schema import Schema
from peerbayes.model.families import Family
from peerbayes.model.families.gaussian import Gaussian, SharedGaussian
from peerbayes.model.statistics import Statistics

# --- priors and weights of classes, as a user gives them

# Priors add up to 1 within this, as scikit-learn's naive Bayes has it: users round.
SUM_TOLERANCE = 1e-5

# The least prior: its logarithm is finite, and no row is ever assigned to such a class where another one is possible.
LEAST_PRIOR = np.finfo(np.float64).tiny


def checked_priors(priors: Any, classes: Sequence[Any]) -> np.ndarray | None:
    """Return a user's class priors, in the order of the classes or by class, as a new array [C] that adds up to 1."""
    if priors is None:
        return None
    if isinstance(priors, Mapping):
        _refuse_unknown("priors", priors, classes)
        priors = [priors.get(label, 0.0) for label in classes]
    try:
        shares = np.array(priors, dtype=np.float64)
    except (TypeError, ValueError):
        raise refusal(
            "priors", priors, "a number for each class, or a mapping of classes to numbers"
        ) from None
    if shares.shape != (len(classes),):
        raise ValueError(
            f"priors have shape {shares.shape}. Number of priors must match number of classes: expected "
            f"{len(classes)}, in the order {shown(list(classes))}"
        )
    if not (shares >= 0).all():
        raise ValueError(
            f"priors are {shown(priors)}. Priors must be non-negative: expected shares of 0 or more"
        )
    if not abs(shares.sum() - 1.0) <= SUM_TOLERANCE:
        raise ValueError(
            f"priors are {shown(priors)}. The sum of the priors should be 1, not {shares.sum():.6g}: divide by it"
        )
    return shares


def weights_by_class(
    class_weight: Any, labels: np.ndarray, classes: Sequence[Any], weights: np.ndarray | None
) -> np.ndarray:
    """Return the weight of each row times that of its class: [n]; rows without a label (−1) keep theirs.

    "balanced" weighs every class alike: N / (C·n_c), n_c the weight of its rows. Classes that a mapping does not name
    have weight 1.
    """
    rows = np.ones(labels.size) if weights is None else weights
    if isinstance(class_weight, str):
        counts = np.bincount(labels[labels >= 0], rows[labels >= 0], minlength=len(classes))
        factors = counts.sum() / (len(classes) * np.where(counts > 0, counts, 1.0))
    else:
        factors = np.array([float(class_weight.get(label, 1.0)) for label in classes])
    return rows * np.where(labels < 0, 1.0, factors[labels])


def check_class_weight(class_weight: Any) -> None:
    """Refuse a weight of classes that is neither "balanced" nor positive numbers by class."""
    expected = "'balanced', a mapping of classes to positive numbers, or None"
    if isinstance(class_weight, Mapping):
        for label, weight in class_weight.items():
            number(f"class_weight of class {label!r}", weight, expected, above=0.0)
    elif class_weight is not None and not (isinstance(class_weight, str) and class_weight == "balanced"):
        raise refusal("class_weight", class_weight, expected)


def check_classes(priors: Any, class_weight: Any, classes: Sequence[Any]) -> None:
    """Refuse priors and weights that do not fit these classes."""
    checked_priors(priors, classes)
    if isinstance(class_weight, Mapping):
        _refuse_unknown("class_weight", class_weight, classes)


def _refuse_unknown(name: str, values: Mapping[Any, Any], classes: Sequence[Any]) -> None:
    """Refuse a mapping that names something other than a class."""
    unknown = [label for label in values if label not in classes]
    if unknown:
        raise ValueError(f"{name} names {unknown[0]!r}; expected classes: {shown(list(classes))}")


def with_priors(
    family: Family, of_rows: np.ndarray | None, priors: np.ndarray | None, temperature: float = 1.0
) -> Family:
    """Return the family with W_c0 moved by log π_c − log p(c), from the shares of the rows to the priors of a user.

    of_rows      S of maximum likelihood [C, K]; None: not kept beside calibrated statistics
    temperature  what logits are divided by afterwards
    """
    if priors is None:
        return family
    if of_rows is None:
        raise ValueError(
            "priors need the class frequencies of the training rows, which these calibrated statistics come without; "
            "fit the model here, with priors or class_weight"
        )
    shift = np.log(np.maximum(priors, LEAST_PRIOR)) - family.counts(of_rows).log_prior
    return replace(family, prior_shift=tuple((temperature * shift).tolist()))


# --- what a fitted model says of the classes


class Conventions:
    """What scikit-learn promises of every fitted classifier: a score of each class, and how frequent classes are."""

    classes_: np.ndarray
    statistics_: Statistics
    family_: Family
    schema_: Schema

    def decision_function(self, X: Any) -> np.ndarray:
        """Return log p(c | x) of the rows X: [n, C]; of two classes log p(second | x) − log p(first | x): [n]."""
        log_posterior = self.predict_log_proba(X)  # type: ignore[attr-defined]
        return log_posterior[:, 1] - log_posterior[:, 0] if len(self.classes_) == 2 else log_posterior

    @property
    def class_count_(self) -> np.ndarray:
        """The rows of each class, weighted: [C]."""
        return self._rows_model()[1][:, 0].copy()

    @property
    def class_prior_(self) -> np.ndarray:
        """The priors that were given, or else the share of each class among the rows: [C]."""
        check_is_fitted(self)
        if self._priors is not None:
            return self._priors.copy()
        family, _, stats = self._rows_model()
        return np.exp(family.counts(stats).log_prior)

    _priors: np.ndarray | None

    def _rows_model(self) -> tuple[Family, np.ndarray, np.ndarray]:
        """Return the model of the rows, S = YᵀΦ, and S + prior: it describes classes, a calibrated one decides."""
        check_is_fitted(self)
        of_rows = self.statistics_.of_rows
        if of_rows is None:
            raise AttributeError(
                "this model is calibrated and came without the statistics of its rows: it cannot say what the classes "
                "are like. describe() shows what decides"
            )
        family, stats = self._portrait  # type: ignore[attr-defined]
        return family, of_rows, stats

    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the means [C, D] and (co)variances [C, D] or [C, D, D] of the classes, in the units of the table.

        Discrete columns have none: NaN.
        """
        family, _, stats = self._rows_model()
        parameters, schema = family.parameters(stats), self.schema_
        columns, scale = list(schema.continuous), schema.scale
        means = np.full((len(schema.classes), len(schema.columns)), np.nan)
        means[:, columns] = parameters.mean * scale + schema.location
        if hasattr(parameters, "variance"):
            spread = np.full(means.shape, np.nan)
            spread[:, columns] = parameters.variance * scale**2
        else:
            spread = np.full((*means.shape, means.shape[1]), np.nan)
            spread[np.ix_(range(len(means)), columns, columns)] = parameters.covariance * np.outer(
                scale, scale
            )
        return means, spread


class NaiveBayesConventions(Conventions):
    """The attributes of scikit-learn's GaussianNB, for continuous columns, and CategoricalNB, for discrete ones."""

    @property
    def theta_(self) -> np.ndarray:
        """The mean of each column in each class: [C, D]; NaN for discrete columns."""
        return self._moments()[0]

    @property
    def var_(self) -> np.ndarray:
        """The variance of each column in each class: [C, D]; NaN for discrete columns."""
        return self._moments()[1]

    @property
    def class_log_prior_(self) -> np.ndarray:
        """The logarithm of `class_prior_`: [C]."""
        return np.log(np.maximum(self.class_prior_, LEAST_PRIOR))

    @property
    def category_count_(self) -> list[np.ndarray]:
        """The rows of each class with each category, [C, r] for every discrete column, in the order of `schema_`."""
        family, values, _ = self._rows_model()
        return [values[:, cells] for cells, _ in family.tabled()]

    @property
    def feature_log_prob_(self) -> list[np.ndarray]:
        """log p(category | class), smoothed: [C, r] for every discrete column, in the order of `schema_`."""
        family, _, stats = self._rows_model()
        log_cells = family.log_cells(family.counts(stats))
        return [
            log_cells[:, cells.start - family.dense_size : cells.stop - family.dense_size]
            for cells, _ in family.tabled()
        ]

    @property
    def n_categories_(self) -> np.ndarray:
        """The number of categories of every discrete column, in the order of `schema_`: [Dd]."""
        check_is_fitted(self)
        return np.array(self.schema_.cardinalities, dtype=np.int64)


class GaussianConventions(Conventions):
    """The attributes of scikit-learn's discriminant analyses."""

    @property
    def priors_(self) -> np.ndarray:
        """The same as `class_prior_`: [C]."""
        return self.class_prior_

    @property
    def means_(self) -> np.ndarray:
        """The mean of each column in each class: [C, D]; NaN for discrete columns."""
        return self._moments()[0]

    @property
    def covariance_(self) -> np.ndarray:
        """The covariance of each class [C, D, D], or the shared one of LDA [D, D]; NaN for discrete columns."""
        covariance = self._moments()[1]
        return covariance[0] if isinstance(self.family_, SharedGaussian) else covariance

    def _refuse_discrete(self) -> None:
        """Raise AttributeError where discrete columns have a say too: a projection does not show it."""
        check_is_fitted(self)
        if self.schema_.discrete:
            name = self.schema_.names[self.schema_.discrete[0]]
            raise AttributeError(
                f"column {name!r} is discrete, and has no place along an axis; use kinds='continuous', or explain()"
            )


class Linear(NamedTuple):
    """A linear classifier of standardised values z, and where its classes differ most."""

    coefficients: np.ndarray  # [C, D] Σ⁻¹(μ_c − μ̄)
    intercepts: np.ndarray  # [C] log p(c) − ½ (μ_c + μ̄)ᵀΣ⁻¹(μ_c − μ̄)
    centre: np.ndarray  # [D] μ̄ = Σ_c p(c) μ_c
    directions: np.ndarray  # [D, min(D, C − 1)], most telling first: VᵀΣV = I
    ratios: np.ndarray  # [min(D, C − 1)] the share of the variance between classes along each


# A direction in which classes have less variance than this, of standardised columns, is noise: as scikit-learn's `tol`.
LEAST_VARIANCE = 1e-8


def linear(family: Gaussian, stats: np.ndarray, weights: np.ndarray) -> Linear:
    """Return the linear classifier of a shared covariance, S [C, K] and W = θ(S) [C, K].

    Directions solve B v = λ Σ v, B = Σ_c p(c) (μ_c − μ̄)(μ_c − μ̄)ᵀ the covariance between classes, where Σ is not 0.
    """
    parameters = family.parameters(stats)
    share = np.exp(parameters.log_prior)
    share = share / share.sum()
    coefficients = weights[:, 1 : 1 + family.continuous]  # Σ⁻¹μ_c
    coefficients = coefficients - share @ coefficients
    centre = share @ parameters.mean
    variances, axes = np.linalg.eigh(parameters.covariance[0])
    shown_axes = variances > LEAST_VARIANCE
    whitening = axes[:, shown_axes] / np.sqrt(variances[shown_axes])  # AᵀΣA = I
    offsets = np.sqrt(share)[:, None] * (parameters.mean - centre)
    _, spread, turned = np.linalg.svd(offsets @ whitening, full_matrices=False)  # λ = spread²
    size = min(family.continuous, len(stats) - 1)
    count = min(size, spread.size)
    directions, values = np.zeros((family.continuous, size)), np.zeros(size)  # 0 where there are fewer
    directions[:, :count], values[:count] = whitening @ turned[:count].T, spread[:count] ** 2
    largest = np.take_along_axis(
        directions, np.abs(directions).argmax(axis=0)[None], axis=0
    )  # fixes the signs
    return Linear(
        coefficients,
        parameters.log_prior - 0.5 * np.sum(coefficients * (parameters.mean + centre), axis=1),
        centre,
        directions * np.where(largest < 0, -1.0, 1.0),
        values / max(values.sum(), LEAST_PRIOR),
    )
