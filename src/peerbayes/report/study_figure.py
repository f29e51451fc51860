"""The figure of a study: curves where runs have a figure by round, else dots at their end; with reference lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from peerbayes.report.curves import AGAINST
from peerbayes.report.study_curves import curves
from peerbayes.report.study_ends import ends
from peerbayes.simulation.scores import title_of

Study = Any  # an `experiments.study.Study`, which draws itself by this file

POOLED = {"rc": "RC", "ml": "ML"}  # learners whose lines are drawn unless told otherwise, and their names


def figure_of(
    study: Study,
    x: str | None,
    metric: str,
    colour: str | Sequence[str] | None,
    facet: str | None,
    references: Any,
    **options: Any,
) -> Any:
    """Return the plotly figure of a study: see `Study.plot`."""
    by_round = figures_by_round(study.history)
    if x is None:
        x = "round" if metric in by_round else next(iter(study.varied), None)
    if x is not None and x not in AGAINST and x not in study.varied:
        raise ValueError(
            f"x is {x!r}; expected {', '.join(AGAINST)}, or a setting that varies: "
            f"{', '.join(study.varied) or 'none does'}"
        )
    lines = lines_of(study, metric, references)
    if x not in AGAINST:
        summary = study.summary(metric, compare=x, learners=())
        return ends(summary, x, colour=colour, facet=facet, references=lines, **options)
    if metric not in by_round:
        raise ValueError(
            f"{metric} has no curve against {x}: runs have {', '.join(by_round) or 'nothing'} by round, and other "
            "figures at their end only. Leave x out, or name a setting that varies, to draw it at the end: "
            f"{', '.join(study.varied) or 'none does'}"
        )
    return curves(study.history, x=x, metric=metric, colour=colour, facet=facet, references=lines, **options)


def figures_by_round(history: Any) -> list[str]:
    """Return the figures that a history has, of which curves can be drawn."""
    names = [str(name) for name in history.columns]
    return [name for name in names if f"{name}_std" in names]


def lines_of(study: Study, metric: str, references: Any) -> Any:
    """Return the reference lines: a DataFrame of settings and values, or what was passed; None: there are none."""
    if references is None or references is False:
        return None
    if references is True:
        asked = [*POOLED, *study.baselines]
    elif isinstance(references, list | tuple):
        asked = [str(name) for name in references]
        for name in asked:
            if name not in study.learners:
                raise ValueError(f"references has {name!r}; expected some of {', '.join(study.learners)}")
    else:
        return references
    columns = study.columns_of(metric, asked)
    if metric == "train_error":
        columns = {name: f"train_{name}" for name in asked}
    frame = study.frame
    drawn = {
        column: POOLED.get(name, title_of(name))
        for name, column in columns.items()
        if column in frame and frame[column].notna().any()
    }
    settings = [name for name in (*study.varied, "seed") if name in frame]
    return frame[[*settings, *drawn]].rename(columns=drawn) if drawn else None
