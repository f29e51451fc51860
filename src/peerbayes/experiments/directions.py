"""Which figures of a run are better where they are larger: one table for ours, scikit-learn's sign for its scorers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from peerbayes.experiments.stored_sklearn import BASELINE, METRIC
from peerbayes.simulation.scores import BUILT_IN, ERROR, MAJORITY, PEERS, Score

# Of a run's own metrics: whether more is better.
OF_METRICS: dict[str, bool | None] = {
    ERROR: False,
    "balanced_accuracy": True,
    "log_loss": False,
    "auc": True,
    "f1": True,
    "brier": False,
    "ece": False,
}

# Other figures of which less is better. Counts that are nobody's merit (rounds, peers, attackers) are not here.
LESS_IS_BETTER = (
    "train_error", "train_std", "test_std", "train_rc", "train_rc_end", "train_ml", "train_local", "disagreement",
    "bytes_per_peer", "messages_per_link", "floored", "epsilon", "seconds",
)  # fmt: skip
BEGINNINGS = ("seconds_", "train_gap_", "test_gap_")  # of others: times, and gaps to what is better

# Learners that every run has: itself, and what it is compared with.
LEARNERS = (PEERS, "alone", "rc", "rc_end", "ml", MAJORITY)


def column_of(learner: str, metric: str) -> str:
    """Return the column that a study's frame has for the metric of a learner: "test_auc_vote"."""
    return Score(learner, metric, 0.0, 0.0, 0, 0).key


def metric_of(column: str, metrics: Iterable[str] = tuple(BUILT_IN)) -> str:
    """Return the metric whose figure of the peers a column is: "test_auc" -> "auc"; "": of none."""
    return next((name for name in (ERROR, *metrics) if column_of(PEERS, name) == column), "")


def of_stored(settings: Iterable[Sequence[Any]]) -> dict[str, bool | None]:
    """Return of each metric in stored settings whether more is better; None where they disagree.

    What is not ours is a scorer of scikit-learn, which gives its function the sign by which more is better: of the log
    loss it returns the negative.
    """
    directions: dict[str, bool | None] = {}
    for stored in settings:
        for item in stored:
            name = item if isinstance(item, str) else item[METRIC][0]
            more = OF_METRICS[name] if isinstance(item, str) and item in BUILT_IN else True
            directions[name] = more if directions.get(name, more) == more else None
    return directions


def names_of(settings: Iterable[Sequence[Any]]) -> list[str]:
    """Return the names in stored settings of baselines, each once."""
    items = (item for stored in settings for item in stored)
    return list(dict.fromkeys(item if isinstance(item, str) else item[BASELINE][0] for item in items))


def more_is_better(
    figure: str, metrics: Mapping[str, bool | None] = OF_METRICS, learners: Iterable[str] = LEARNERS
) -> bool | None:
    """Return whether more of a figure is better; None: nobody said so. A spread is better small, of whatever it is.

    figure    a column of a study's frame
    metrics   the metrics of the study, by name, and whether more of them is better
    learners  those whose figures columns are of
    """
    if figure in LESS_IS_BETTER or figure.startswith(BEGINNINGS):
        return False
    named = {ERROR: OF_METRICS[ERROR], **metrics}
    columns = {
        column_of(learner, name): more for learner in (*LEARNERS, *learners) for name, more in named.items()
    }
    return columns[figure] if figure in columns else False if figure.removesuffix("_std") in columns else None
