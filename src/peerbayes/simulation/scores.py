"""How good the models of a run are beside others on the same test rows: the metrics asked for, and their figures.

    error                the share of rows that are predicted wrongly
    balanced_accuracy    the mean over classes of the share of their rows that are predicted correctly
    log_loss             the mean of −log p(y | x), p at least 2⁻⁵²
    auc                  the area under the ROC curve; of several classes the mean, each against all others
    f1                   the mean over classes of the harmonic mean of precision and recall
    brier                the mean of Σ_c (p_c − y_c)², of two classes half of that
    ece                  the expected calibration error, in fifteen bins of confidence

These are scikit-learn's metrics to rounding, but for `ece`, which it does not have. A class without test rows counts in
none of the means over classes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from peerbayes.data.arguments import refusal
from peerbayes.learning.metrics import Outcome, exact_auc

# --- the metrics: functions of posteriors [m, C], class indices [m] and the outcome of both

LEAST_PROBABILITY = float(np.finfo(np.float64).eps)  # of a log loss, as in scikit-learn


def balanced_accuracy(posterior: np.ndarray, labels: np.ndarray, outcome: Outcome) -> float:
    """Return the mean recall of the classes that have rows."""
    rows = outcome.confusion.sum(axis=1)
    return float((np.diag(outcome.confusion)[rows > 0] / rows[rows > 0]).mean())


def log_loss(posterior: np.ndarray, labels: np.ndarray, outcome: Outcome) -> float:
    """Return the mean of −log p(y | x)."""
    likely = posterior[np.arange(labels.size), labels]
    return float(-np.log(np.clip(likely, LEAST_PROBABILITY, 1.0 - LEAST_PROBABILITY)).mean())


def auc(posterior: np.ndarray, labels: np.ndarray, outcome: Outcome) -> float:
    """Return the area under the ROC curve; NaN where all rows are of one class."""
    area = exact_auc(posterior, labels)
    return math.nan if area is None else area


def macro_f1(posterior: np.ndarray, labels: np.ndarray, outcome: Outcome) -> float:
    """Return the mean F1 of the classes that have rows or predictions."""
    count = outcome.confusion.sum(axis=0) + outcome.confusion.sum(axis=1)
    return float((2.0 * np.diag(outcome.confusion)[count > 0] / count[count > 0]).mean())


def brier(posterior: np.ndarray, labels: np.ndarray, outcome: Outcome) -> float:
    """Return the Brier score."""
    difference = posterior.copy()
    difference[np.arange(labels.size), labels] -= 1.0
    return float((difference**2).sum()) / labels.size / (2 if posterior.shape[1] == 2 else 1)


def calibration_error(posterior: np.ndarray, labels: np.ndarray, outcome: Outcome) -> float:
    """Return the expected calibration error."""
    return outcome.calibration_error


def error(posterior: np.ndarray, labels: np.ndarray, outcome: Outcome) -> float:
    """Return the share of rows predicted wrongly."""
    return 1.0 - float(np.trace(outcome.confusion)) / labels.size


ERROR = "error"
BUILT_IN: dict[str, Callable[[np.ndarray, np.ndarray, Outcome], float]] = {
    "balanced_accuracy": balanced_accuracy,
    "log_loss": log_loss,
    "auc": auc,
    "f1": macro_f1,
    "brier": brier,
    "ece": calibration_error,
}
OF_LABELS = (ERROR, "balanced_accuracy", "f1")
"""The metrics that predicted classes suffice for."""

TITLES = {
    ERROR: "error", "balanced_accuracy": "balanced accuracy", "log_loss": "log loss", "auc": "AUC",
    "f1": "macro F1", "brier": "Brier", "ece": "ECE",
}  # fmt: skip


class Metric(NamedTuple):
    """A metric by its name; `scorer` is scikit-learn's kind, a function of an estimator, rows and labels."""

    name: str
    scorer: Callable[..., float] | None = None


RESERVED = ("std", "gap", "rc", "ml", "local", "majority")
"""Words that keys of `Run.summary` have for something else."""

EXPECTED = (
    f"a list of {', '.join(BUILT_IN)}, names of scikit-learn's scorers or scorers themselves, or a mapping from names "
    "to scorers"
)
METRICS_IN_FILES = f"a list of {', '.join(BUILT_IN)} and names of scikit-learn's scorers"


def metrics_of(name: str, value: Any) -> tuple[Metric, ...]:
    """Return the metrics of a setting: a name, a scorer, a list of these, or a mapping from names to scorers."""
    if isinstance(value, Mapping):
        entries = [Metric(str(key), _metric(name, scorer).scorer) for key, scorer in value.items()]
    elif isinstance(value, list | tuple) and not isinstance(value, Metric):
        entries = [_metric(name, entry) for entry in value]
    elif isinstance(value, str) or callable(value):
        entries = [_metric(name, value)]
    else:
        raise refusal(name, value, EXPECTED)
    names = [metric.name for metric in entries]
    for entry in names:
        if not entry.isidentifier() or entry.split("_")[0] in RESERVED:
            raise refusal(
                name,
                entry,
                f"the name of a metric: letters, digits and _, not beginning with {', '.join(RESERVED)}",
            )
    if repeated := {entry for entry in names if names.count(entry) > 1}:
        raise refusal(
            name, names, f"{sorted(repeated)[0]!r} once: a mapping gives scorers names of their own"
        )
    return tuple(metric for metric in entries if metric.name != ERROR)  # the error is always there


def _metric(name: str, entry: Any) -> Metric:
    from sklearn.metrics import get_scorer, get_scorer_names

    if isinstance(entry, Metric):
        return entry
    if isinstance(entry, str):
        if entry in BUILT_IN or entry == ERROR:
            return Metric(entry)
        if entry in get_scorer_names():
            return Metric(entry, get_scorer(entry))
    elif callable(entry) and not isinstance(entry, type):
        plain = getattr(entry, "_score_func", entry)
        return Metric(str(getattr(plain, "__name__", type(plain).__name__)), entry)
    raise refusal(name, entry, EXPECTED)


def which_is_positive(metric: Metric, classes: Sequence[Any]) -> str:
    """Return why a scorer that needs a positive class has no figure, and what gives it one."""
    function = getattr(getattr(metric.scorer, "_score_func", None), "__name__", metric.name)
    kinds = getattr(metric.scorer, "_response_method", "predict_proba")
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    method = "predict_proba" if "predict_proba" in kinds else "predict"
    further = "" if method == "predict" else f", response_method={method!r}"
    if len(classes) != 2:
        return f"the scorer {metric.name} is of two classes, one of them positive; the labels have {len(classes)}"
    return (
        f"the scorer {metric.name} does not know which class is positive, {classes[0]!r} or {classes[1]!r}; pass "
        f"metrics={{{metric.name!r}: make_scorer({function}{further}, pos_label={classes[1]!r})}}, with make_scorer of "
        "sklearn.metrics"
    )


# --- the figures of a run

PEERS, ALONE, MAJORITY = "peers", "alone", "majority"
IN_KEYS = {PEERS: "", ALONE: "_local"}
"""How a learner is written in keys of `Run.summary`, where not by its name."""

COLUMNS = ("learner", "metric", "mean", "std", "models", "rows")


class Score(NamedTuple):
    """A metric of a learner."""

    learner: str
    metric: str
    mean: float
    """Over its models; NaN where it has none, and `Scores.reasons` says why."""
    std: float
    """Over its models, where these are the peers'; NaN for a single model of all."""
    models: int
    """How many were evaluated."""
    rows: int
    """Test rows, the same of all learners."""

    @property
    def key(self) -> str:
        """The key of `Run.summary`: test_auc of peers, test_auc_rc of others, and of errors test_rc."""
        metric = "" if self.metric == ERROR and self.learner != PEERS else f"_{self.metric}"
        return f"test{metric}{in_key(self.learner)}"


def in_key(learner: str) -> str:
    """Return how the name of a learner ends keys: "_logistic_regression_pooled"."""
    return IN_KEYS.get(learner, "_" + re.sub(r"\W+", "_", learner))


@dataclass(frozen=True)
class Scores:
    """The figures of all learners on the same test rows, with what there is to say about them."""

    rows: tuple[Score, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why a figure is missing, by its key in `Run.summary`."""
    notes: tuple[str, ...] = ()
    """Sentences on how figures came about."""

    @property
    def frame(self) -> Any:
        """A DataFrame with a row per learner and metric."""
        import pandas as pd

        return pd.DataFrame(self.rows, columns=list(COLUMNS)).astype({"mean": float, "std": float})

    def flat(self, without: Sequence[str] = ()) -> dict[str, float]:
        """Return the figures by their keys in `Run.summary`, but for keys that it has already."""
        figures = {}
        for score in self.rows:
            if score.key in without:
                continue
            figures[score.key] = score.mean
            if score.learner == PEERS:
                figures[f"{score.key}_std"] = score.std
        return figures

    def table(self) -> tuple[list[str], list[tuple[str, list[float]]]]:
        """Return the metrics, and the mean of each of them by learner; NaN where a learner lacks it."""
        metrics = list(dict.fromkeys(score.metric for score in self.rows))
        means = {(score.learner, score.metric): score.mean for score in self.rows}
        learners = dict.fromkeys(score.learner for score in self.rows)
        return metrics, [
            (name, [means.get((name, metric), math.nan) for metric in metrics]) for name in learners
        ]

    def records(self) -> list[dict[str, Any]]:
        """Return a mapping for each learner and metric; null stands for NaN."""
        return [dict(zip(COLUMNS, row, strict=True)) for row in self.to_json()["rows"]]

    def to_json(self) -> dict[str, Any]:
        """Return the scores as plain values; null stands for NaN."""
        rows = [[value if value == value else None for value in score] for score in self.rows]
        return {"rows": rows, "reasons": dict(self.reasons), "notes": list(self.notes)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Scores:
        """Return the scores that `to_json` wrote."""
        rows = ([math.nan if value is None else value for value in stored] for stored in content["rows"])
        return cls(tuple(map(Score._make, rows)), dict(content["reasons"]), tuple(map(str, content["notes"])))


LEARNER_TITLES = {
    PEERS: "peers", ALONE: "peers alone", "rc": "RC, pooled rows", "rc_end": "RC to its end", "ml": "ML, pooled rows",
    MAJORITY: "majority class",
}  # fmt: skip


def title_of(learner: str) -> str:
    """Return the name of a learner in tables."""
    return LEARNER_TITLES.get(learner, re.sub(r"-(pooled|alone|product)$", r", \1", learner))


def figure_title(figure: str) -> str:
    """Return the name of a figure of `Run.summary` in words: "test_auc" -> "test AUC"."""
    if figure in ("train_error", "train_std"):
        return "training error" if figure == "train_error" else f"training error{OVER_PEERS}"
    kind, _, rest = figure.partition("_")
    if kind != "test" or not rest or rest.startswith("gap_"):
        return figure.replace("_", " ")
    if rest == "std":
        return f"test error{OVER_PEERS}"
    if rest in (*LEARNER_TITLES, LOCAL):
        return f"test error: {_of_key(rest)}"
    named = next((name for name in TITLES if rest == name or rest.startswith(f"{name}_")), "")
    learner = rest.removeprefix(named).removeprefix("_") if named else ""
    title = f"test {TITLES[named]}" if named else f"test {rest.replace('_', ' ')}"
    if learner == "std":
        return title + OVER_PEERS
    return f"{title}: {_of_key(learner)}" if learner else title


OVER_PEERS = ", standard deviation over peers"
LOCAL = IN_KEYS[ALONE].removeprefix("_")


def _of_key(learner: str) -> str:
    """Return the title of a learner from how keys end."""
    return title_of(ALONE if learner == LOCAL else learner).replace("_", " ")
