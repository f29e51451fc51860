"""The scikit-learn face of every family: `MixedNB`, `QDA`, `LDA`, `TAN`, `KDB` and `BayesNetClassifier`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from peerbayes import files, passes
from peerbayes.classifier import GenerativeClassifier
from peerbayes.dependence import Pairs, kdb, pairs_of, tan
from peerbayes.errors import ModelFileDamaged
from peerbayes.families import BayesNet, Family, NaiveBayes, SeparateGaussian, SharedGaussian
from peerbayes.families.structures import Parents, named
from peerbayes.layouts import named_parents, sized, with_parents
from peerbayes.schema import Schema
from peerbayes.statistics import Statistics


class MixedNB(GenerativeClassifier):
    """Naive Bayes with Gaussian continuous and categorical discrete columns; missing values are exact.

    calibrate       False: maximum likelihood (MAP with `alpha` and `prior`); True: risk-based calibration
    kinds           "auto", "paper", "continuous", "discrete", one kind per column, or a mapping; see `Schema.infer`
    start           where calibration begins: "uniform", "marginal", "ml", or statistics of your own
    lr              its learning rate
    max_iter        its iterations
    keep            "best": the iterate with the lowest soft 0-1 loss on the rows; "last": the last one
    em_iter         steps of expectation-maximisation at most, where labels, or values of columns that depend on each
                    other, are missing; a ConvergenceWarning says where they were too few. `log_likelihood_` then has
                    the mean over rows of log p(x, y) before each step, with what `alpha` and `prior` say of the model
    em_tol          the gain in log likelihood a row below which it ends
    unlabelled      the label that stands for none (-1 in scikit-learn's semi-supervised estimators; NaN: missing
                    labels). Such rows count in every class, by p(c | x); structures are learned without them. None:
                    every label is a class. For maximum likelihood only
    clip            standardised values are held within ±clip; None turns it off
    alpha           Laplace smoothing of discrete columns, as in scikit-learn's CategoricalNB; not used by calibration
    prior           statistics of your own, added to those of the rows (MAP)
    variance_floor  the least variance, in standardised units; None: 1e-9 for maximum likelihood, 0.05 for calibration
    count_floor     the least class count, as a share of an even class; None: 1e-30 and 1e-4; `floored_` counts how
                    often floors act
    patience        stop early after so many iterations that lower the soft error by no more than `tol`; None: never
    tol             see `patience`
    costs           `costs[i][j]` of saying class j when it is i; `predict` then minimises the expected cost
    schema          a schema agreed on beforehand, instead of the rows' own
    callback        called with (iteration, soft error, error) while calibrating; a true answer ends it
    verbose         print these
    """

    family_type = NaiveBayes


class _FullGaussian(GenerativeClassifier):
    """What QDA and LDA share: covariances, and so a start that knows them."""

    def __init__(
        self,
        *,
        calibrate: bool = False,
        kinds: Any = "auto",
        start: Any = "ml",
        lr: float = 0.05,
        max_iter: int = 64,
        keep: Any = "best",
        clip: float | None = 5.0,
        alpha: float = 1.0,
        prior: Statistics | None = None,
        variance_floor: float | None = None,
        count_floor: float | None = None,
        shrinkage: float | None = None,
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
        super().__init__(
            calibrate=calibrate,
            kinds=kinds,
            start=start,
            lr=lr,
            max_iter=max_iter,
            keep=keep,
            clip=clip,
            alpha=alpha,
            prior=prior,
            variance_floor=variance_floor,
            count_floor=count_floor,
            patience=patience,
            tol=tol,
            em_iter=em_iter,
            em_tol=em_tol,
            unlabelled=unlabelled,
            costs=costs,
            schema=schema,
            callback=callback,
            verbose=verbose,
        )
        self.shrinkage = shrinkage


class QDA(_FullGaussian):
    """Gaussian classes with a covariance each; discrete columns as in naive Bayes.

    Missing values are completed by what the others say of them, under the model itself: see `peerbayes.completion`.

    Parameters are `MixedNB`'s, and

    shrinkage       rows of an identity covariance added to each class (standardised units); None: 0 for maximum
                    likelihood, 10 for calibration

    Calibration starts from maximum likelihood by default: a uniform start never learns covariances.
    `variance_floor` is the least eigenvalue; None: 1e-9 for maximum likelihood, 0.01 for calibration.
    """

    family_type = SeparateGaussian


class LDA(_FullGaussian):
    """Gaussian classes with one covariance for all. Parameters are `QDA`'s; `shrinkage` is 0 by default.

    Calibration conserves the total second moment, so the start decides the covariance: "ml" or "marginal".
    """

    family_type = SharedGaussian


class _Network(_FullGaussian):
    """What Bayesian-network classifiers share: parents of columns, learned or given."""

    family_type = BayesNet
    family_: BayesNet
    learns_structure = True

    @property
    def parents_(self) -> dict[str, list[str]]:
        """The parents of each column beside the class, by name."""
        check_is_fitted(self)
        return named_parents(self.family_, self.schema_)

    def conditional_tables(self) -> dict[str, dict[tuple[Any, ...], dict[Any, float]]]:
        """p(x_j | parents, class) of discrete columns: (class, values of the parents…) -> category -> probability."""
        check_is_fitted(self)
        schema, family = self.schema_, self.family_
        found = family.conditionals(self._model.stats)
        columns = [schema.columns[j] for j in (*schema.continuous, *schema.discrete)]
        told: dict[str, dict[tuple[Any, ...], dict[Any, float]]] = {}
        for j in range(family.continuous, len(columns)):
            probabilities = np.exp(found[j])  # [C, configurations, r]
            configurations = list(itertools.product(*(columns[p].categories for p in family.parents[j])))
            told[columns[j].name] = {
                (label, *values): dict(
                    zip(columns[j].categories, map(float, probabilities[c, d]), strict=True)
                )
                for c, label in enumerate(schema.classes)
                for d, values in enumerate(configurations)
            }
        return told

    @property
    def structure_(self) -> Any:
        """Who depends on whom as a networkx DiGraph, the class included; needs networkx."""
        import networkx as nx

        graph = nx.DiGraph()
        label = self.schema_.label
        for name, parents in self.parents_.items():
            graph.add_edges_from((parent, name) for parent in (label, *parents))
        return graph

    def plot_structure(self) -> Any:
        """A picture of who depends on whom, as plotly's Figure: `.show()`, `.write_html(path)`; the extra `report`.

        Each column has a line, below its parents and right of them; round ones are continuous, square ones discrete.
        The class, on which all depend, is in the title. The pointer shows a column's parents and children.
        """
        check_is_fitted(self)
        from importlib import import_module

        return import_module("peerbayes.report.structure").picture(
            self.schema_, self.family_
        )  # a call upwards

    def _structured(
        self,
        layout: Family,
        source: passes.Source,
        labels: np.ndarray,
        classes: int,
        weights: np.ndarray | None,
    ) -> Family:
        parents = self._parents(pairs_of(source, labels, classes, layout.cardinalities, weights))
        return sized(with_parents(layout, parents), classes)

    def _parents(self, pairs: Pairs) -> Parents:
        raise NotImplementedError


class TAN(_Network):
    """Tree-augmented naive Bayes: beside the class, each column depends on one other, by the tree that tells most.

    Continuous columns are linear Gaussian in a continuous parent, or Gaussian with a mean and a variance for each
    category of a discrete one; discrete columns have discrete parents only. Parameters are `QDA`'s;

    shrinkage       rows of independence added to each dependence; None: 0 for maximum likelihood, 5 for calibration

    Missing values are summed and integrated out exactly. The structure is learned from the pairs of values present.
    """

    def _parents(self, pairs: Pairs) -> Parents:
        return tan(pairs)


class KDB(_Network):
    """k-dependence classifier: each column has up to k parents among those that tell more about the class.

    Parameters are `TAN`'s, and

    k               how many parents a column may have beside the class

    A row may miss discrete values that depend on each other as long as they have at most 65,536 joint values.
    """

    def __init__(
        self,
        k: int = 2,
        *,
        calibrate: bool = False,
        kinds: Any = "auto",
        start: Any = "ml",
        lr: float = 0.05,
        max_iter: int = 64,
        keep: Any = "best",
        clip: float | None = 5.0,
        alpha: float = 1.0,
        prior: Statistics | None = None,
        variance_floor: float | None = None,
        count_floor: float | None = None,
        shrinkage: float | None = None,
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
        super().__init__(
            calibrate=calibrate, kinds=kinds, start=start, lr=lr, max_iter=max_iter, keep=keep, clip=clip, alpha=alpha,
            prior=prior, variance_floor=variance_floor, count_floor=count_floor, shrinkage=shrinkage, patience=patience,
            tol=tol, em_iter=em_iter, em_tol=em_tol, unlabelled=unlabelled, costs=costs, schema=schema,
            callback=callback, verbose=verbose,
        )  # fmt: skip
        self.k = k

    def _parents(self, pairs: Pairs) -> Parents:
        return kdb(pairs, self.k)


class BayesNetClassifier(_Network):
    """A Bayesian network of your own beside the class. Parameters are `TAN`'s, and

    structure       a mapping of columns to their parents (a name or a list of names), or a networkx DiGraph of
                    columns; None: no column has a parent, which is naive Bayes
    """

    learns_structure = False

    def __init__(
        self,
        structure: Any = None,
        *,
        calibrate: bool = False,
        kinds: Any = "auto",
        start: Any = "ml",
        lr: float = 0.05,
        max_iter: int = 64,
        keep: Any = "best",
        clip: float | None = 5.0,
        alpha: float = 1.0,
        prior: Statistics | None = None,
        variance_floor: float | None = None,
        count_floor: float | None = None,
        shrinkage: float | None = None,
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
        super().__init__(
            calibrate=calibrate, kinds=kinds, start=start, lr=lr, max_iter=max_iter, keep=keep, clip=clip, alpha=alpha,
            prior=prior, variance_floor=variance_floor, count_floor=count_floor, shrinkage=shrinkage, patience=patience,
            tol=tol, em_iter=em_iter, em_tol=em_tol, unlabelled=unlabelled, costs=costs, schema=schema,
            callback=callback, verbose=verbose,
        )  # fmt: skip
        self.structure = structure

    def _structured(
        self,
        layout: Family,
        source: passes.Source,
        labels: np.ndarray,
        classes: int,
        weights: np.ndarray | None,
    ) -> Family:
        names = passes.columns_of(source.schema)
        given = {} if self.structure is None else self.structure
        return sized(with_parents(layout, named(given, names, names[: layout.continuous])), classes)


ESTIMATORS: dict[str, type[GenerativeClassifier]] = {
    estimator.__name__: estimator for estimator in (MixedNB, QDA, LDA, TAN, KDB, BayesNetClassifier)
}
ESTIMATOR_OF: dict[str, type[GenerativeClassifier]] = {
    estimator.family_type.name: estimator for estimator in ESTIMATORS.values()
}
LEARNED: dict[str, type[GenerativeClassifier]] = {"tan": TAN, "kdb": KDB}
"""Estimators of the families whose structure is learned, by what `layouts.STRUCTURES` calls them."""


def load(path: str | Path) -> GenerativeClassifier:
    """The fitted estimator in the file `path`, which `save` wrote, or in which a peer keeps its model."""
    header, arrays = files.unpack(Path(path).read_bytes(), path)
    try:
        if header["kind"] == "statistics":
            statistics = Statistics.restored(header, arrays["statistics"])
            return ESTIMATOR_OF[statistics.family.name].from_statistics(statistics)
        return ESTIMATORS[header["estimator"]]._loaded(header, arrays)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ModelFileDamaged(f"{path} does not describe a model: {error!r}") from error
