"""The scikit-learn face of every family: `MixedNB`, `QDA` and `LDA`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peerbayes import files
from peerbayes.classifier import GenerativeClassifier
from peerbayes.errors import ModelFileDamaged
from peerbayes.families import NaiveBayes, SeparateGaussian, SharedGaussian
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
            costs=costs,
            schema=schema,
            callback=callback,
            verbose=verbose,
        )
        self.shrinkage = shrinkage


class QDA(_FullGaussian):
    """Gaussian classes with a covariance each; discrete columns as in naive Bayes. No missing continuous value.

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


ESTIMATORS: dict[str, type[GenerativeClassifier]] = {
    estimator.__name__: estimator for estimator in (MixedNB, QDA, LDA)
}
ESTIMATOR_OF = {estimator.family_type.name: estimator for estimator in ESTIMATORS.values()}


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
