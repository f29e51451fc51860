"""The estimator `AutoBayes`: the family whose probabilities fit held-out rows best."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from peerbayes.data.arguments import refusal
from peerbayes.data.infer import kinds_in_bins
from peerbayes.data.table import Table
from peerbayes.errors import PeerbayesError
from peerbayes.estimators.classifiers import AODE, KDB, LDA, QDA, TAN, MixedNB
from peerbayes.estimators.ga2m import GA2M
from peerbayes.estimators.generative import GenerativeClassifier
from peerbayes.estimators.training import Training
from peerbayes.model import folds
from peerbayes.model.candidates import CLEARLY as CLEARLY
from peerbayes.model.candidates import LossSums, clearly_best, reason
from peerbayes.model.families import NaiveBayes
from peerbayes.model.scaling import Scaling, fit
from peerbayes.model.statistics import Statistics


class CandidateEstimator(NamedTuple):
    """The estimator of a family that may be chosen, and the parameters that are its own."""

    estimator: type[GenerativeClassifier]
    parameters: dict[str, Any]


# Numbers in bins whose edges lie where the classes change. Pairs of columns (GA2M) need bins of equally many rows.
SUPERVISED = "supervised"

# Of the candidates of `model.candidates`, in their order.
CANDIDATES: dict[str, CandidateEstimator] = {
    "naive-bayes": CandidateEstimator(MixedNB, {}),
    "lda": CandidateEstimator(LDA, {}),
    "qda": CandidateEstimator(QDA, {}),
    "bins": CandidateEstimator(GA2M, {"interactions": 0, "kinds": SUPERVISED}),
    "tan": CandidateEstimator(TAN, {}),
    "kdb": CandidateEstimator(KDB, {}),
    "ga2m": CandidateEstimator(GA2M, {}),
    "aode": CandidateEstimator(AODE, {"kinds": SUPERVISED}),
}

# Rows of which candidates are judged, where there are more: their order is clear by then, and all rows are for the
# one that is chosen.
JUDGED_ROWS = 20_000


@dataclass(kw_only=True, eq=False, repr=False)
class AutoBayes(GenerativeClassifier):
    """The family that fits best, chosen by the log loss of held-out rows: a calibrated model of any family.

    Candidates are calibrated on the same rows and judged on the same held-out rows, each under a model that never saw
    it, neither its parameters nor its structure, after their probabilities were scaled. `candidates_` has what came
    out, `reason_` the choice in a sentence, `estimator_` the model of the family chosen. Of very many rows only some
    are judged, and the choice then learns from all.

    Parameters are those of `MixedNB`, and

    families        names of the candidates: "naive-bayes", "lda", "qda", "bins" (`GA2M` without pairs), "tan", "kdb",
                    "ga2m", "aode"; None: all of them
    calibrate       True: what is judged are calibrated models
    start, alpha, shrinkage, variance_floor, count_floor    have no effect: each family has its own
    """

    family_type = NaiveBayes
    learns_structure = True

    calibrate: bool = True
    families: Any = None

    estimator_: GenerativeClassifier = field(init=False)
    candidates_: Any = field(init=False)
    reason_: str = field(init=False)

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Choose a family and learn from rows X [n, D] and labels y [n]; a row counts `sample_weight` [n] times."""
        with self._all_or_nothing():
            names = self._names()
            training = self._training(X, y, sample_weight, reset=True)
            table, weights = training.table, training.weights
            labels = np.array(training.classes, dtype=object)[training.labels]
            judged = self._judged_rows(training)
            some = table if judged.all() else table.take(judged)
            weights_of_some = None if weights is None else weights[judged]
            models: dict[str, GenerativeClassifier] = {}
            losses: dict[str, np.ndarray] = {}
            records: list[dict[str, Any]] = []
            held_weights: np.ndarray | None = None  # the same for all: rows are held out by their content
            for name in names:
                begin = time.perf_counter()
                try:
                    models[name] = self.candidate(name, some).fit(some, labels[judged], weights_of_some)
                except PeerbayesError as error:
                    records.append({"family": name, "problem": str(error)})
                    continue
                held = held_out(models[name], some, weights_of_some)
                losses[name] = held.losses
                held_weights = None if weights_of_some is None else weights_of_some[held.rows]
                records.append({
                    "family": name,
                    "log_loss": _mean(held.losses, held_weights),
                    "error": _mean(held.errors, held_weights),
                    "seconds": time.perf_counter() - begin,
                })  # fmt: skip
            if not models:
                raise ValueError(
                    f"none of {', '.join(names)} takes these rows: {records[0]['problem']}. Give other families"
                )
            chosen, why = choice(losses, held_weights)
            model = models[chosen]
            if not judged.all():
                why += f"; judged on {judged.sum():,} of {judged.size:,} rows"
                model = self.candidate(chosen, table).fit(table, labels, weights)
            self._take(model)
            self.reason_, self.candidates_ = why, _frame(records, chosen)
            return self

    def candidate(self, name: str, table: Table) -> GenerativeClassifier:
        """Return the estimator of the candidate `name` for the rows of `table`, with the parameters that all share."""
        estimator, own_parameters = CANDIDATES[name]
        parameters = {
            key: value for key, value in self.get_params(deep=False).items() if key not in (*OWN, "families")
        }
        # Weights of classes are in those of the rows by now.
        parameters |= {"calibrate": True, "class_weight": None, **own_parameters}
        if "kinds" in own_parameters and (self.schema is not None or self.kinds != "auto"):
            open_kinds = own_parameters["kinds"]
            parameters["kinds"] = (
                self.kinds if self.schema is not None else kinds_in_bins(table, self.kinds, open_kinds)
            )
        return comparable(estimator(**parameters))

    @classmethod
    def from_statistics(cls, statistics: Statistics, **parameters: Any) -> Self:
        """Refuse `statistics` and `parameters`: they are of one family, and there is nothing to choose."""
        raise TypeError(
            f"AutoBayes chooses a family by rows, and these are statistics of {statistics.family.name}; use the "
            "estimator of that family, for instance by peerbayes.load"
        )

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the model of the family chosen to the file `path`; `peerbayes.load` gives its estimator.

        A file that is there is replaced only with `overwrite`.
        """
        check_is_fitted(self)
        self.estimator_.save(path, overwrite)

    def _names(self) -> tuple[str, ...]:
        """Return the names of the candidates, in the order of their size."""
        if not self.calibrate:
            raise ValueError(
                "calibrate=False: AutoBayes judges calibrated models; use an estimator of one family"
            )
        if self.families is None:
            return tuple(CANDIDATES)
        several = isinstance(self.families, Collection) and not isinstance(self.families, str)
        if not several or not self.families or any(name not in list(CANDIDATES) for name in self.families):
            raise refusal("families", self.families, f"some of {', '.join(CANDIDATES)}, or None for all")
        return tuple(name for name in CANDIDATES if name in self.families)

    def _judged_rows(self, training: Training) -> np.ndarray:
        """Return which rows candidates are judged on: all, or about `JUDGED_ROWS` different ones of very many. [n]."""
        if training.table.rows <= JUDGED_ROWS:
            return np.ones(training.table.rows, dtype=bool)
        schema = self._schema_for(training, training.classes, kinds=self.kinds)
        return spread(folds.row_keys(schema, training.table), training.labels, JUDGED_ROWS)

    def _take(self, model: GenerativeClassifier) -> None:
        """Become a fitted model, whatever its family."""
        for name in ("_held_out", "_keeps_held_out"):  # a model holds nothing of single rows
            model.__dict__.pop(name, None)
        names = ("feature_names_in_", "n_features_in_")
        kept = {name: self.__dict__[name] for name in names if name in self.__dict__}
        fitted = {
            name: value for name, value in vars(model).items() if name.endswith("_") or name.startswith("_")
        }
        self.__dict__.update({**fitted, **kept})
        model.__dict__.update(kept)  # it was fitted to a table whose names were checked here
        self.estimator_ = model


# Parameters of which each family has its own default.
OWN = ("start", "alpha", "shrinkage", "variance_floor", "count_floor", "calibrate")


def choice(losses: dict[str, np.ndarray], weights: np.ndarray | None = None) -> tuple[str, str]:
    """Return the name of the candidate to take, and why, from the log losses of the same held-out rows: [m] each.

    Candidates are in the order of their size; the rule is that of `model.candidates`.
    """
    names = list(losses)
    if len(names) == 1:
        return names[0], f"{names[0]}: no other family is a candidate, or takes these rows"
    if not all(losses[name].size for name in names):
        return names[0], f"{names[0]}: too few rows to hold any out, so the smallest family is taken"
    sums = LossSums.of(list(losses.values()), weights)
    chosen = names[clearly_best(sums)]
    means = dict(zip(names, sums.means.tolist(), strict=True))
    return chosen, reason(chosen, means, f"{losses[chosen].size:,} held-out rows")


class HeldOut(NamedTuple):
    """What a calibrated model says of the rows that were held out, each under a model that never saw it."""

    rows: np.ndarray  # [n] which training rows were held out: m of them
    losses: np.ndarray  # [m] the log loss of each
    errors: np.ndarray  # [m] whether another class is more probable


def comparable(estimator: GenerativeClassifier) -> GenerativeClassifier:
    """Return an estimator whose `fit` keeps what `held_out` needs to know of single rows; models do not, as a rule."""
    estimator._keeps_held_out = True
    return estimator


def held_out(model: GenerativeClassifier, table: Table, weights: np.ndarray | None = None) -> HeldOut:
    """Return the losses of the rows that the calibration of a model held out, after its scaling.

    Calibration holds rows out of its steps, but parents, crosses and edges by class are chosen on all rows, and those
    that happen to suit these would look good on them. So for each fold they are chosen again without the fold, and
    learned by as many steps as the model; the probabilities are scaled as the model's are.

    model      `comparable`, fitted to the rows of the table
    weights    how often each row counts [n]
    """
    if model._held_out is None:
        return HeldOut(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0, dtype=bool))
    scaling, logits, labels = model._held_out
    by_class = any(column.traits.needs_labels for column in model.schema_.columns)
    if not (model.learns_structure or by_class):
        return _losses(scaling, logits, labels)
    schema = replace(model.schema_, crosses=())
    split = folds.split(schema, table, labels, weights, model.validation_fraction)
    names = np.array(schema.classes, dtype=object)[labels]
    logits = np.full_like(logits, np.nan)
    for held in split.held_out():
        others, their_weights = table.take(~held), None if weights is None else weights[~held]
        fold = clone(model).set_params(
            schema=schema.with_edges_by_class(others, labels[~held], their_weights),
            validation_fraction=0.0, keep="last", max_iter=model.best_iter_, patience=None, tol=0.0,
            temperature=False, priors=None, costs=None, callback=None, verbose=False,
        )  # fmt: skip
        fold.fit(others, names[~held], their_weights)
        logits[held] = fold.predict_joint_log_proba(table.take(held))
    if scaling is not None:
        rows = ~np.isnan(logits[:, 0])
        scaling = fit(logits[rows], labels[rows], None if weights is None else weights[rows])
    return _losses(scaling, logits, labels)


def _losses(scaling: Scaling | None, logits: np.ndarray, labels: np.ndarray) -> HeldOut:
    """Return the losses of the rows that have logits [n, C]."""
    held = ~np.isnan(logits[:, 0])
    scaling = scaling or Scaling.identity(logits.shape[1])
    log_posterior, labels = scaling.log_probabilities(logits[held]), labels[held]
    losses = -log_posterior[np.arange(labels.size), labels]
    return HeldOut(held, losses, log_posterior.argmax(axis=1) != labels)


def spread(keys: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
    """Return which rows to take for about `count` different ones, as large a share of each class: [n], [n] -> [n].

    They are those with the smallest keys, hashes of the rows' values, so that neither order nor repetition of rows
    matters. Each class has at least two rows, so that one can be learned from and one be held out.
    """
    order = np.lexsort((keys, labels))
    key, label = keys[order], labels[order]
    is_new = np.ones(order.size, dtype=bool)
    is_new[1:] = (key[1:] != key[:-1]) | (label[1:] != label[:-1])
    index = np.cumsum(is_new) - 1  # among the different rows
    of_class = np.bincount(label[is_new])
    rank = index - (np.cumsum(of_class) - of_class)[label]
    share = min(1.0, count / int(is_new.sum()))
    taken = np.empty(order.size, dtype=bool)
    taken[order] = rank < np.maximum(2, np.round(share * of_class))[label]
    return taken


def _mean(values: np.ndarray, weights: np.ndarray | None = None) -> float:
    return float(np.average(values, weights=weights)) if values.size else float("nan")


def _frame(records: list[dict[str, Any]], chosen: str) -> Any:
    """Return what came of each candidate as a DataFrame, the best first."""
    import pandas as pd

    columns = ["family", "log_loss", "error", "seconds", "chosen", "problem"]
    frame = pd.DataFrame.from_records(records, columns=columns).assign(
        chosen=[record["family"] == chosen for record in records]
    )
    return frame.sort_values(
        ["chosen", "log_loss"], ascending=[False, True], kind="stable", ignore_index=True
    )
