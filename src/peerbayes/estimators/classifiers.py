"""The scikit-learn estimators of all families: `MixedNB`, `QDA`, `LDA`, `TAN`, `KDB`, `BayesNetClassifier`, `AODE`."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Self

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from peerbayes.data import files
from peerbayes.data.arguments import flag, whole
from peerbayes.errors import ExtensionError, ModelFileDamaged
from peerbayes.estimators.conventions import (
    GaussianConventions,
    Linear,
    NaiveBayesConventions,
    linear,
)
from peerbayes.estimators.ga2m import GA2M
from peerbayes.estimators.generative import GenerativeClassifier
from peerbayes.model.families import (
    FAMILIES,
    Aode,
    BayesNet,
    Family,
    NaiveBayes,
    SeparateGaussian,
    SharedGaussian,
)
from peerbayes.model.families.structures import Parents, named
from peerbayes.model.layout import named_parents, sized, with_parents
from peerbayes.model.sources import Source, all_rows, columns_of
from peerbayes.model.statistics import Statistics, family_of
from peerbayes.model.structure import Pairs, kdb, pairs_of, tan


class MixedNB(GenerativeClassifier, NaiveBayesConventions):
    """Naive Bayes with Gaussian continuous and categorical discrete columns; missing values are handled exactly.

    calibrate       False: maximum likelihood (MAP with `alpha` and `prior`); True: risk-based calibration
    kinds           a kind, "auto", "paper", "binned", …, one per column, or a mapping; see `Schema.infer`
    start           where calibration begins: "uniform", "marginal", "ml", or statistics of your own
    lr              learning rate of calibration: the length of its first step, or of all steps
    max_iter        at most this many iterations of calibration, each one pass over the rows; it ends earlier when the
                    training log loss has converged, or when that of held-out rows no longer falls
    step            "adaptive": conjugate directions, steps that grow where that is safe, and a step back where the log
                    loss rises; "fixed": the paper's, S ← S + lr·R
    keep            "best": the iterate with the lowest log loss on held-out rows, or on all where none are held out;
                    "last": the last one
    validation_fraction  the share of rows held out to choose and to end by; 0: none. Few rows are held out several
                    times, others each time; of fewer than 20 different rows none are. All rows then take as many steps.
                    `validation_` says what was held out
    em_iter         at most this many steps of expectation-maximisation, where labels, or values of columns that depend
                    on each other, are missing; a ConvergenceWarning says when they were too few. `log_likelihood_` then
                    has the mean over rows of log p(x, y) before each step, plus the log density of `alpha` and `prior`
    em_tol          expectation-maximisation ends when a step gains less log likelihood per row
    unlabelled      the label of rows without one (-1 in scikit-learn's semi-supervised estimators; NaN: missing
                    labels). Such rows count in every class, by p(c | x); structures are learned without them. None:
                    every label is a class. For maximum likelihood only
    clip            standardised values are clipped to ±clip; None turns it off
    alpha           rows added to every cell of a discrete column; "auto": as many as the counts of the column ask for
                    (see `families.evidence`); 1: Laplace smoothing, as in scikit-learn's CategoricalNB. Not used by
                    calibration
    shrinkage       rows with the column's variance over all classes that are added to its variance in each class;
                    "auto": as many as the variances ask for; None: none. Not used by calibration of naive Bayes
    prior           statistics of your own, added to those of the rows (MAP)
    priors          p(c) of each class, in the order of `classes_` or {class: p}, where classes are not as frequent as
                    among the rows; None: as among the rows
    class_weight    {class: weight}: how much a row of each class counts; "balanced": so that all classes weigh alike
    variance_floor  the least variance, in standardised units; None: 1e-9 for maximum likelihood, 0.05 for calibration
    count_floor     the least class count, as a share of rows / classes; None: 1e-30 for maximum likelihood, 1e-4 for
                    calibration; `floored_` counts how many parameters are at a floor
    patience        stop early after this many iterations that lower the log loss (of held-out rows, or of all) by no
                    more than `tol`; None: 16 where rows are held out, otherwise never
    tol             see `patience`
    temperature     whether a temperature, a bias per class and a share of noise are fitted on held-out rows, so that
                    probabilities are true; "auto": where rows are held out; True: refuse to fit without such rows
    costs           `costs[i][j]` of predicting class j when the true class is i; `predict` then minimises the expected
                    cost
    schema          a schema agreed on beforehand, instead of one inferred from the rows
    callback        called with (iteration, soft error, error) while calibrating; a true return value ends it
    verbose         print iteration, soft error and error while calibrating
    """

    family_type = NaiveBayes


@dataclass(kw_only=True, eq=False, repr=False)
class _FullGaussian(GenerativeClassifier):
    """Base of estimators with covariances, which start calibration from maximum likelihood."""

    start: Any = "ml"


class QDA(_FullGaussian, GaussianConventions):
    """Gaussian classes with one covariance each; discrete columns as in naive Bayes.

    Missing values are completed from the observed ones, under the model itself: see `peerbayes.model.missing`.

    Parameters are those of `MixedNB`, and

    shrinkage       rows of an identity covariance added to each class (standardised units); "auto": for maximum
                    likelihood as many as the covariances ask for (rows with the columns' variances over all classes),
                    as None for calibration; None: 0 for maximum likelihood, 10 for calibration

    Calibration starts from maximum likelihood by default: a uniform start never learns covariances.
    `variance_floor` is the least eigenvalue; None: 1e-9 for maximum likelihood, 0.01 for calibration.
    """

    family_type = SeparateGaussian

    @property
    def scalings_(self) -> np.ndarray:
        """The variances of each class along the axes of its ellipsoid, largest first: [C, D]."""
        return self._axes()[0]

    @property
    def rotations_(self) -> np.ndarray:
        """These axes, a column each: [C, D, D]."""
        return self._axes()[1]

    def _axes(self) -> tuple[np.ndarray, np.ndarray]:
        """Return eigenvalues [C, D] and eigenvectors [C, D, D] of the covariances; all columns must be continuous."""
        self._refuse_discrete()
        values, vectors = np.linalg.eigh(self.covariance_)
        return values[:, ::-1], vectors[:, :, ::-1]


@dataclass(kw_only=True, eq=False, repr=False)
class LDA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _FullGaussian, GaussianConventions):
    """Gaussian classes with one shared covariance. Parameters are those of `QDA`; `shrinkage` of None is 0.

    n_components    the number of columns of `transform`, at most min(columns, classes − 1); None: that many

    Calibration conserves the total second moment, so the start decides the covariance: "ml" or "marginal".
    """

    family_type = SharedGaussian
    family_: SharedGaussian = field(init=False)

    n_components: int | None = None

    def _adopt(self, statistics: Statistics) -> Self:
        if self.n_components is not None:
            most = min(len(statistics.schema.columns), len(statistics.schema.classes) - 1)
            if whole("n_components", self.n_components, 1) > most:
                raise ValueError(
                    f"n_components is {self.n_components}. n_components cannot be larger than min(n_features, "
                    f"n_classes - 1): expected at most {most}"
                )
        return super()._adopt(statistics)

    def transform(self, X: Any) -> np.ndarray:
        """Return the rows X along the directions in which the classes differ most: [n, n_components].

        The covariance within classes is there the identity. Values are clipped as for predictions; a row with a missing
        value has no place there: NaN.
        """
        linear = self._linear()
        _, source = self._model.reading(self._table(X, reset=False))
        return (all_rows(source).values - linear.centre) @ linear.directions[:, : self._n_features_out]

    @property
    def coef_(self) -> np.ndarray:
        """The coefficients of the log-odds in each column: [C, D]; [1, D] for the second of two classes."""
        coefficients = self._linear().coefficients / self.schema_.scale
        return self._of_two(coefficients / self.scaling_.temperature)

    @property
    def intercept_(self) -> np.ndarray:
        """The log-odds where all columns are 0: [C]; [1] for the second of two classes.

        `X @ coef_.T + intercept_` is `decision_function(X)`, up to a number for each row where there are more than two
        classes, unless values are clipped or `scaling_` has noise.
        """
        linear = self._linear()
        location = self.schema_.location / self.schema_.scale
        return self._of_two(self.scaling_.scaled(linear.intercepts - linear.coefficients @ location))

    @property
    def scalings_(self) -> np.ndarray:
        """The directions of `transform`, a column each, all of them: [D, min(D, C − 1)]."""
        return self._linear().directions / self.schema_.scale[:, None]

    @property
    def xbar_(self) -> np.ndarray:
        """The mean of the classes' means by their priors, which `transform` sends to 0: [D]."""
        return self._linear().centre * self.schema_.scale + self.schema_.location

    @property
    def explained_variance_ratio_(self) -> np.ndarray:
        """The share of the variance between classes along each direction of `transform`: [n_components]."""
        return self._linear().ratios[: self._n_features_out]

    @property
    def _n_features_out(self) -> int:
        most = min(len(self.schema_.columns), len(self.classes_) - 1)
        return most if self.n_components is None else int(self.n_components)

    def _linear(self) -> Linear:
        """Return the model that predicts as a linear one; AttributeError where discrete columns have a say too."""
        self._refuse_discrete()
        return linear(self.family_, self._model.stats, self._weights)

    @staticmethod
    def _of_two(values: np.ndarray) -> np.ndarray:
        """Return second minus first class where there are two, as scikit-learn has it: [C, ...] -> [1 or C, ...]."""
        return values[1:] - values[:1] if len(values) == 2 else values


class _Network(_FullGaussian):
    """Base of Bayesian-network classifiers: the parents of the columns, learned or given."""

    family_type = BayesNet
    family_: BayesNet
    learns_structure = True

    @property
    def parents_(self) -> dict[str, list[str]]:
        """The parents of each column apart from the class, by name."""
        check_is_fitted(self)
        return named_parents(self.family_, self.schema_)

    def conditional_tables(self) -> dict[str, dict[tuple[Any, ...], dict[Any, float]]]:
        """Return p(x_j | parents, class) of discrete columns: (class, parents' values…) -> category -> probability."""
        check_is_fitted(self)
        schema, family = self.schema_, self.family_
        conditionals = family.conditionals(self._model.stats)
        columns = [schema.columns[j] for j in (*schema.continuous, *schema.discrete)]
        tables: dict[str, dict[tuple[Any, ...], dict[Any, float]]] = {}
        for j in range(family.continuous, len(columns)):
            probabilities = np.exp(conditionals[j])  # [C, configurations, r]
            configurations = list(itertools.product(*(columns[p].labels for p in family.parents[j])))
            tables[columns[j].name] = {
                (label, *values): dict(zip(columns[j].labels, map(float, probabilities[c, d]), strict=True))
                for c, label in enumerate(schema.classes)
                for d, values in enumerate(configurations)
            }
        return tables

    @property
    def structure_(self) -> Any:
        """The structure as a networkx DiGraph, the class included."""
        import networkx as nx

        graph = nx.DiGraph()
        label = self.schema_.label
        for name, parents in self.parents_.items():
            graph.add_edges_from((parent, name) for parent in (label, *parents))
        return graph

    def plot_structure(self) -> Any:
        """Draw the structure as plotly's Figure: `.show()`, `.write_html(path)`; needs the extra `report`.

        Each column has a row, below its parents and to the right of them; round ones are continuous, square ones
        discrete. The class, on which all depend, is in the title. Hover over a column to see its parents and children.
        """
        check_is_fitted(self)
        from importlib import import_module

        return import_module("peerbayes.report.structure_figure").picture(
            self.schema_, self.family_
        )  # a call upwards

    def _structured(
        self,
        layout: Family,
        source: Source,
        labels: np.ndarray,
        classes: int,
        weights: np.ndarray | None,
    ) -> Family:
        parents = self._parents(pairs_of(source, labels, classes, layout.cardinalities, weights))
        return sized(with_parents(layout, parents), classes)

    def _parents(self, pairs: Pairs) -> Parents:
        """Return the parents of each column, learned from the statistics of pairs."""
        raise NotImplementedError


@dataclass(kw_only=True, eq=False, repr=False)
class TAN(_Network):
    """Tree-augmented naive Bayes: each column depends on the class and one other, by the tree of maximum information.

    Continuous columns are linear Gaussian in a continuous parent, or Gaussian with a mean and a variance for each
    category of a discrete one; discrete columns have discrete parents only. Parameters are those of `QDA`;

    shrinkage       rows of independence added to each dependence; "auto": for maximum likelihood as many as each
                    dependence asks for in each class, as None for calibration; None: 0 for maximum likelihood, 5 for
                    calibration
    penalty         what a link costs for each parameter that it adds: "none", "aic" or "bic"; a link that is worth less
                    is refused, so that the tree may be a forest. See `structure`

    Missing values are summed and integrated out exactly. The structure is learned from the observed pairs of values.
    """

    penalty: str = "aic"

    def _parents(self, pairs: Pairs) -> Parents:
        return tan(pairs, self.penalty)


@dataclass(kw_only=True, eq=False, repr=False)
class KDB(_Network):
    """k-dependence classifier: each column has up to k parents among those more informative about the class.

    Parameters are those of `TAN`, and

    k               how many parents a column may have apart from the class; those that cost more than they are worth
                    are refused, by `penalty` as in `TAN`

    The missing discrete values of a row that depend on each other may have at most 65,536 joint values.
    """

    k: int = field(default=2, kw_only=False)
    penalty: str = "aic"

    def _parents(self, pairs: Pairs) -> Parents:
        return kdb(pairs, self.k, self.penalty)


@dataclass(kw_only=True, eq=False, repr=False)
class BayesNetClassifier(_Network):
    """A Bayesian network with a structure of your own. Parameters are those of `QDA` (`shrinkage` as in `TAN`), and

    structure       a mapping of columns to their parents (a name or a list of names), or a networkx DiGraph of
                    columns; None: no column has a parent, which is naive Bayes
    """

    learns_structure = False

    structure: Any = field(default=None, kw_only=False)

    def _structured(
        self,
        layout: Family,
        source: Source,
        labels: np.ndarray,
        classes: int,
        weights: np.ndarray | None,
    ) -> Family:
        names = columns_of(source.schema)
        structure = {} if self.structure is None else self.structure
        return sized(with_parents(layout, named(structure, names, names[: layout.continuous])), classes)


@dataclass(kw_only=True, eq=False, repr=False)
class AODE(GenerativeClassifier):
    """Averaged one-dependence estimators: the mean of D networks, in each of which all columns depend on one of them.

    Columns are discrete. Parameters are those of `MixedNB`, and

    weighted        whether a network weighs as much as its column tells of the class, by mutual information; False: all
                    weigh alike (plain AODE)
    kinds           "discrete": every value of a column is a category; "binned": numbers go into bins
    alpha           rows added to every cell of a column and of a pair of columns; "auto": as many as the counts of each
                    table ask for. Not used by calibration
    shrinkage       rows of even cells added to every table; "auto" and None: 0 for maximum likelihood, 5 for
                    calibration

    A value that is missing, or that no training row has, adds nothing: the mean is over the networks of the others.
    Calibration starts from maximum likelihood by default.
    """

    family_type = Aode
    family_: Aode = field(init=False)

    kinds: Any = "discrete"
    start: Any = "ml"
    weighted: bool = True

    def _structured(
        self,
        layout: Family,
        source: Source,
        labels: np.ndarray,
        classes: int,
        weights: np.ndarray | None,
    ) -> Family:
        return sized(layout, classes)

    def _guarded(self, layout: Family, rows: float) -> Family:
        return replace(super()._guarded(layout, rows), weighted=flag("weighted", self.weighted))  # type: ignore[call-arg]


ESTIMATORS: dict[str, type[GenerativeClassifier]] = {
    estimator.__name__: estimator
    for estimator in (MixedNB, QDA, LDA, TAN, KDB, BayesNetClassifier, AODE, GA2M)
}


class _Estimators(dict[str, type[GenerativeClassifier]]):
    """Estimators by the name of a family; those of outside packages are imported, or made, when they are needed."""

    def __missing__(self, name: str) -> type[GenerativeClassifier]:
        self[name] = _outside_estimator(FAMILIES[name])
        return self[name]


def _outside_estimator(family: type[Family]) -> type[GenerativeClassifier]:
    """Return the estimator that a family of an outside package names, or one with the parameters of `MixedNB`."""
    if not family.estimator:
        name = f"{family.__name__}Classifier"
        return type(name, (GenerativeClassifier,), {"family_type": family, "__module__": family.__module__})
    try:
        estimator = resolve_name(family.estimator)
        fits = issubclass(estimator, GenerativeClassifier) and estimator.family_type is family
    except Exception as error:  # whatever an outside package does when it is imported
        raise ExtensionError(
            f"the estimator {family.estimator!r} of the family {family.name!r} cannot be imported: "
            f"{type(error).__name__}: {error}. Update the package, or tell its authors"
        ) from error
    if not fits:
        raise ExtensionError(
            f"the estimator {family.estimator!r} of the family {family.name!r} is {estimator!r:.80}; expected a "
            f"GenerativeClassifier with family_type = {family.__name__}"
        )
    return estimator


ESTIMATOR_OF: dict[str, type[GenerativeClassifier]] = _Estimators(
    {estimator.family_type.name: estimator for estimator in ESTIMATORS.values()}
)
LEARNED: dict[str, type[GenerativeClassifier]] = {"tan": TAN, "kdb": KDB}
"""Estimators of the families whose structure is learned, by what `layouts.STRUCTURES` calls them."""


def load(path: str | Path) -> GenerativeClassifier:
    """Load a fitted estimator from the file `path`, written by `save`, or by a peer for its model."""
    header, arrays = files.unpack(Path(path).read_bytes(), path)
    try:
        if header["kind"] == "statistics":
            statistics = Statistics.restored(header, arrays["statistics"], arrays)
            return ESTIMATOR_OF[statistics.family.name].from_statistics(statistics)
        family = family_of(header).name
        estimator = ESTIMATORS[header["estimator"]] if family in FAMILIES.built_in else ESTIMATOR_OF[family]
        return estimator._loaded(header, arrays)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ModelFileDamaged(f"{path} does not describe a model: {error!r}") from error
