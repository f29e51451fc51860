"""A study's comparison: of which figures, with which learners beside a setting's values, and which way is better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from peerbayes.data.arguments import one_of, refusal
from peerbayes.experiments import comparison
from peerbayes.experiments.directions import column_of, metric_of, more_is_better
from peerbayes.experiments.study_results import DATASET, UNASKED, with_learners
from peerbayes.simulation.scores import ERROR, PEERS

if TYPE_CHECKING:
    import pandas as pd

Study = Any  # a `study.Study`, whose comparison this is

LEARNER = (
    "learner"  # what is compared where no setting of methods varies: the peers, and what they are beside
)


def summary_of(
    study: Study,
    metric: str | None,
    compare: str | None,
    baseline: Any,
    test: str,
    confidence: float,
    learners: Sequence[str] | None,
    greater_is_better: bool | None,
) -> pd.DataFrame:
    """Return the comparison of a study: see `Study.summary`."""
    name, asked = metric or study.metric, compare or study.compare
    if not isinstance(name, str):
        raise refusal("metric", name, "the name of one figure, a column of study.frame; make a table of each")
    frame, varied = study.frame, study.varied
    _refuse_unknown(study, name)
    setting = comparison.compared(varied, asked)
    if columns := _chosen(study, name, learners):
        if setting is None or (asked is None and setting == DATASET):
            setting, varied, frame = LEARNER, (*varied, LEARNER), frame.assign(**{LEARNER: PEERS})
        others = [other for other in varied if other != setting]
        frame = with_learners(frame, others, setting, name, columns)
    if greater_is_better is None and name == study.metric:
        greater_is_better = study.greater_is_better
    if greater_is_better is None:
        greater_is_better = more_is_better(name, study.metrics, study.learners)
    question = comparison.checked_question(
        frame, varied, name, setting, baseline, test, confidence, greater_is_better
    )
    table = comparison.table(frame, varied, question, study.reasons)
    table.attrs["notes"] += study.notes
    return table


def columns_of(study: Study, metric: str, learners: Sequence[str]) -> dict[str, str]:
    """Return the column of each learner that has a figure of a metric, itself a column of the study's frame."""
    of = metric_of(metric, study.metrics)
    return {name: column_of(name, of) for name in learners} if of else {}


def _chosen(study: Study, metric: str, learners: Sequence[str] | None) -> dict[str, str]:
    """Return the column of each learner that is compared; refuse what is none."""
    if learners is None:
        return columns_of(study, metric, study.baselines)
    names = [learners] if isinstance(learners, str) else list(learners)
    for name in names:
        one_of("learners", name, study.learners)
    columns = columns_of(study, metric, names)
    if names and not columns:
        tested = ", ".join(column_of(PEERS, name) for name in (ERROR, *study.metrics))
        raise ValueError(f"metric is {metric!r}, which learners do not have; expected one of {tested}")
    return columns


def _refuse_unknown(study: Study, metric: str) -> None:
    """Refuse a figure that runs might have, but no cell has, by their reason; of the study's own, tables have that."""
    said = [reasons[metric] for reasons in study.reasons.values() if metric in reasons]
    there = metric in study.frame and (
        study.frame[metric].notna().any() or any(sentence not in UNASKED for sentence in said)
    )
    if said and not there:
        raise ValueError(f"no cell has {metric}: {said[0]}")
