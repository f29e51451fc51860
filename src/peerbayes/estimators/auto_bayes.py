"""The estimator `AutoBayes`: the family whose probabilities fit held-out rows best."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from peerbayes.data.arguments import refusal
from peerbayes.errors import PeerbayesError
from peerbayes.estimators.classifiers import AODE, KDB, LDA, QDA, TAN, MixedNB
from peerbayes.estimators.ga2m import GA2M
from peerbayes.estimators.generative import GenerativeClassifier
from peerbayes.model.families import NaiveBayes
from peerbayes.model.scaling import Scaling


class Candidate(NamedTuple):
    """A family that may be chosen: its estimator and the parameters that are its own."""

    estimator: type[GenerativeClassifier]
    parameters: dict[str, Any]
    sentence: str
    """What it is, for people."""


# In the order of their size: of candidates that are equally good the first is taken.
CANDIDATES: dict[str, Candidate] = {
    "naive-bayes": Candidate(MixedNB, {}, "each column by itself, numbers as Gaussians"),
    "lda": Candidate(LDA, {}, "Gaussian classes with one covariance"),
    "qda": Candidate(QDA, {}, "Gaussian classes with a covariance each"),
    "bins": Candidate(GA2M, {"interactions": 0}, "each column by itself, numbers in bins"),
    "tan": Candidate(TAN, {}, "each column depends on one other"),
    "kdb": Candidate(KDB, {}, "each column depends on up to two others"),
    "ga2m": Candidate(GA2M, {}, "columns in bins, and pairs of them"),
    "aode": Candidate(
        AODE, {"kinds": "binned"}, "the mean of networks with one parent each, numbers in bins"
    ),
}

# Rows of which candidates are judged, where there are more: their order is clear by then, and all rows are for the
# one that is chosen.
JUDGED_ROWS = 20_000

# A later candidate must be better by this share of the standard error of their difference: a tie goes to the smaller.
CLEARLY = 0.25


@dataclass(kw_only=True, eq=False, repr=False)
class AutoBayes(GenerativeClassifier):
    """The family that fits best, chosen by the log loss of held-out rows: a calibrated model of any family.

    Candidates are calibrated on the same rows and judged on the same held-out rows, each under a model that never saw
    it, after their probabilities were scaled. `candidates_` has what came out, `reason_` the choice in a sentence,
    `estimator_` the model of the family chosen. Of very many rows only some are judged, and the choice then learns from
    all.

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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Choose a family and learn from rows X [n, D] and labels y [n]; a row counts `sample_weight` [n] times."""
        with self._all_or_nothing():
            names = self._names()
            training = self._training(X, y, sample_weight, reset=True)
            rows = training.table.rows
            judged = np.arange(rows) if rows <= JUDGED_ROWS else _spread(training.labels, JUDGED_ROWS)
            labels = np.array(training.classes)[training.labels]
            table, weights = training.table, training.weights
            some = table if judged.size == rows else table.take(judged)
            weights_of_some = None if weights is None else weights[judged]
            models: dict[str, GenerativeClassifier] = {}
            losses: dict[str, np.ndarray] = {}
            records: list[dict[str, Any]] = []
            for name in names:
                begin = time.perf_counter()
                try:
                    models[name] = self._candidate(name).fit(some, labels[judged], weights_of_some)
                except PeerbayesError as error:
                    records.append({"family": name, "problem": str(error)})
                    continue
                losses[name], errors = _held_out(models[name])
                seconds = time.perf_counter() - begin
                records.append({
                    "family": name, "log_loss": _mean(losses[name]), "error": _mean(errors), "seconds": seconds,
                })  # fmt: skip
            if not models:
                raise ValueError(
                    f"none of {', '.join(names)} takes these rows: {records[0]['problem']}. Give other families"
                )
            chosen, reason = choice(losses)
            model = models[chosen]
            if judged.size < rows:
                reason += f"; judged on {judged.size:,} of {rows:,} rows"
                model = self._candidate(chosen).fit(table, labels, weights)
            self._take(model)
            self.reason_, self.candidates_ = reason, _frame(records, chosen)
            return self

    def save(self, path: str | Path) -> None:
        """Write the model of the family chosen to the file `path`; `peerbayes.load` gives its estimator."""
        check_is_fitted(self)
        self.estimator_.save(path)

    def _names(self) -> tuple[str, ...]:
        """Return the names of the candidates, in the order of their size."""
        if not self.calibrate:
            raise ValueError(
                "calibrate=False: AutoBayes judges calibrated models; use an estimator of one family"
            )
        if self.families is None:
            return tuple(CANDIDATES)
        if isinstance(self.families, str) or not self.families or not set(self.families) <= set(CANDIDATES):
            raise refusal("families", self.families, f"some of {', '.join(CANDIDATES)}, or None for all")
        return tuple(name for name in CANDIDATES if name in self.families)

    def _candidate(self, name: str) -> GenerativeClassifier:
        """Return an estimator of a family with the parameters that all have in common."""
        estimator, own_parameters, _ = CANDIDATES[name]
        shared = {
            key: value for key, value in self.get_params(deep=False).items() if key not in (*OWN, "families")
        }
        if self.schema is not None or self.kinds != "auto":
            own_parameters = {key: value for key, value in own_parameters.items() if key != "kinds"}
        # Weights of classes are in those of the rows by now.
        return estimator(**{**shared, "calibrate": True, "class_weight": None, **own_parameters})

    def _take(self, model: GenerativeClassifier) -> None:
        """Become a fitted model, whatever its family."""
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


def choice(losses: dict[str, np.ndarray]) -> tuple[str, str]:
    """Return the name of the candidate to take, and why, from the log losses of the same held-out rows: [m] each."""
    names = list(losses)
    if len(names) == 1:
        return names[0], f"{names[0]}: no other family takes these rows"
    if not all(losses[name].size for name in names):
        return names[0], f"{names[0]}: too few rows to hold any out, so the smallest family is taken"
    chosen = names[0]
    for name in names[1:]:
        better = losses[chosen] - losses[name]
        noise = float(better.std()) / np.sqrt(better.size)
        chosen = name if better.mean() > CLEARLY * noise else chosen
    others = {name: float(losses[name].mean()) for name in names if name != chosen}
    second = min(others, key=lambda name: others[name])
    return chosen, (
        f"{chosen} ({CANDIDATES[chosen].sentence}): log loss {losses[chosen].mean():.4f} on {losses[chosen].size:,} "
        f"held-out rows; next is {second} with {others[second]:.4f}"
    )


def _held_out(model: GenerativeClassifier) -> tuple[np.ndarray, np.ndarray]:
    """Return the log loss of each held-out row, and whether another class is more probable: two [m]."""
    if model._held_out is None:
        return np.zeros(0), np.zeros(0)
    scaling, logits, labels = model._held_out
    held = ~np.isnan(logits[:, 0])
    scaling = scaling or Scaling.identity(logits.shape[1])
    log_posterior, labels = scaling.log_probabilities(logits[held]), labels[held]
    return -log_posterior[np.arange(labels.size), labels], log_posterior.argmax(axis=1) != labels


def _spread(labels: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of so many rows, evenly spaced within each class: [n] -> [count]."""
    order = np.argsort(labels, kind="stable")
    return np.sort(order[np.linspace(0, order.size - 1, count).astype(np.int64)])


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")


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
