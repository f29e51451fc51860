"""The results of a study's cells as DataFrames, with the reason of every figure that is missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from peerbayes.experiments.comparison import DONE, FIGURE, STATUS
from peerbayes.experiments.directions import LEARNERS, column_of
from peerbayes.simulation.scores import in_key

if TYPE_CHECKING:
    import pandas as pd

StudyCell = Any  # a `study.StudyCell`

DATASET, SEED, MISSING = "dataset", "seed", "missing"
NOT_COMPUTED = "it was not computed"
ENDS = ("seconds", "key", "reason", "missing", "notes", "warnings")  # columns of a frame after the figures

# Why a cell lacks a figure that others have.
NOT_ASKED = "the settings of this run ask for no such figure"
NO_BASELINE = "the baseline was not asked for"
UNASKED = (NOT_ASKED, NO_BASELINE)
OF_BASELINES = "seconds_baselines"  # a figure of all of them
OLD = "its run could not compute it, and was stored by a version that kept no reasons"


def frame_of(
    cells: Sequence[StudyCell],
    columns: Sequence[str],
    results: Mapping[str, dict[str, Any]],
    refusals: Mapping[str, tuple[str, str]],
    metric: str,
) -> pd.DataFrame:
    """Return a row per cell: its settings, status, figures, and in words what there is to say of them."""
    import pandas as pd

    rows, names = [], dict[str, Any]()
    for cell in cells:
        result = results.get(cell.key)
        status, reason = (DONE, "") if result else refusals.get(cell.key, (MISSING, NOT_COMPUTED))
        row = {**{name: cell.levels[name] for name in columns}, STATUS: status}
        if result is not None:
            figures_of = {name: value for name, value in result["summary"].items() if name not in columns}
            names |= figures_of
            row |= {**figures_of, "seconds": result["seconds"]}
            row |= {"notes": sentences(result.get("notes", ())), "warnings": " ".join(result["warnings"])}
        rows.append({"notes": "", "warnings": "", "missing": "", **row, "key": cell.key, "reason": reason})
    frame = pd.DataFrame(rows)
    if metric not in frame:
        frame[metric] = np.nan
    figures = [
        name for name in dict.fromkeys((*names, metric)) if name == metric or frame[name].notna().any()
    ]
    learners = learners_of(results.values())
    frame["missing"] = [
        in_words(reasons_of(results[cell.key], figures, learners)) if cell.key in results else ""
        for cell in cells
    ]
    return frame[[*columns, STATUS, *figures, *(name for name in ENDS if name in frame)]]


def reasons_of(result: Mapping[str, Any], figures: Iterable[str], learners: Iterable[str]) -> dict[str, str]:
    """Return why a result lacks figures, by their names.

    learners  those of all results
    """
    summary, stored = result["summary"], result.get("missing", {})
    others = (OF_BASELINES, *(in_key(name) for name in learners if name not in learners_of([result])))
    lacking = [name for name in figures if not math.isfinite(summary.get(name, math.nan))]
    reasons = {name: stored.get(name, OLD) if name in summary else NOT_ASKED for name in lacking}
    of_others = (name for name in lacking if name not in summary and name.endswith(others))
    return reasons | dict.fromkeys(of_others, NO_BASELINE)


def in_words(reasons: Mapping[str, str]) -> str:
    """Return reasons with the figures that they are of: "test_auc, test_auc_std: all test rows are of the class 'a'."""
    by_sentence: dict[str, list[str]] = {}
    for name, sentence in reasons.items():
        by_sentence.setdefault(sentence, []).append(name)
    return sentences(f"{', '.join(names)}: {sentence}" for sentence, names in by_sentence.items())


def sentences(parts: Iterable[str]) -> str:
    """Return sentences in a line, each with its full stop."""
    return " ".join(part if part.endswith((".", "!", "?")) else f"{part}." for part in parts)


def history_of(
    cells: Sequence[StudyCell], columns: Sequence[str], histories: Mapping[str, Mapping[str, np.ndarray]]
) -> pd.DataFrame:
    """Return a row per evaluated round of each cell that is done."""
    import pandas as pd

    blocks = [
        pd.DataFrame({
            **{name: [cell.levels[name]] * len(arrays["round"]) for name in columns},
            **{name: arrays[name] for name in _ordered(arrays)},
        })
        for cell in cells if (arrays := histories.get(cell.key)) is not None
    ]  # fmt: skip
    if not blocks:
        return pd.DataFrame(columns=[*columns, "round", "bytes", "seconds"])
    return pd.concat(blocks, ignore_index=True).astype({"round": np.int64})


def _ordered(arrays: Mapping[str, Any]) -> list[str]:
    """Return the names of a history's columns: the three that curves are drawn against, then figures."""
    first = ("round", "bytes", "seconds")
    return [*first, *(name for name in sorted(arrays) if name not in first)]


# --- learners beside the values that are compared


def learners_of(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the learners that runs were compared with, apart from their peers."""
    names = (name for result in results for name in result.get("learners", LEARNERS))
    return [name for name in dict.fromkeys(names) if name != LEARNERS[0]]


def with_learners(
    frame: pd.DataFrame, others: Sequence[str], compare: str, metric: str, learners: Mapping[str, str]
) -> pd.DataFrame:
    """Return a frame with a row more for each seed and learner, as if it were one more value of what is compared.

    A learner whose figures depend on that value, as RC does on the number of rounds, is one for each of the values.
    `FIGURE` says which column of its cell the metric of a row is.

    learners  the column of each
    """
    import pandas as pd

    spreads = [name for name in (f"{metric}_std", metric.replace("_error", "_std")) if name in frame]
    parts = [frame.assign(**{FIGURE: metric})]
    for learner, column in learners.items():
        values = frame[column] if column in frame else pd.Series(np.nan, index=frame.index)
        rows = frame.assign(
            **{metric: values, FIGURE: column, **{name: np.nan for name in spreads if name != metric}}
        )
        groups = values.groupby([frame[name] for name in (*others, SEED)], sort=False)
        if ((groups.transform("max") - groups.transform("min")).fillna(0.0) <= SAME).all():
            best_known = np.lexsort((rows[STATUS] != DONE, values.isna()))
            rows = rows.iloc[best_known].drop_duplicates([*others, SEED]).sort_index()
            rows[compare] = _free(learner, frame[compare])
        else:
            rows[compare] = [f"{learner}, {value}" for value in rows[compare]]
        parts.append(rows)
    return pd.concat(parts, ignore_index=True)


SAME = 1e-12  # figures of a learner that differ by no more than this are one


def _free(learner: str, taken: Any) -> str:
    return f"{learner} (baseline)" if learner in set(taken) else learner


def columns_of(learners: Iterable[str], metric: str) -> dict[str, str]:
    """Return the column of a metric by learner."""
    return {learner: column_of(learner, metric) for learner in learners}
