"""Statistics of a study: means over seeds with intervals, and differences that are paired by seed, with a test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtr, stdtrit

from peerbayes.data.arguments import number, one_of, refusal

if TYPE_CHECKING:
    import pandas as pd

CONFIDENCE = 0.95

# Seeds up to which all changes of signs are tried; beyond, so many are drawn.
EXACT_SEEDS, DRAWN = 16, 1 << 16

# Differences whose deviation is at most this share of their mean are equal, up to the rounding of sums.
EQUAL = 1e-9

STATUS, DONE = "status", "done"
TEXTS = ("key", "reason", "missing", "notes", "warnings")  # columns of a frame that are no figures
FIGURE = "figure"  # a column that says which figure of its cell a row has, where that is another one


# --- intervals and tests


def half_width(values: np.ndarray, confidence: float = CONFIDENCE) -> float:
    """Return the half width of the t-interval of a mean: [n] -> (), NaN for a single value."""
    if values.size < 2:
        return float("nan")
    quantile = stdtrit(values.size - 1, (1.0 + confidence) / 2.0)
    return float(quantile * values.std(ddof=1) / np.sqrt(values.size))


def all_equal(differences: np.ndarray) -> bool:
    """Return whether differences are one number, from which no test can tell how much they vary: [n] -> ()."""
    return bool(differences.size > 1 and differences.std(ddof=1) <= EQUAL * abs(differences.mean()))


def t_test(differences: np.ndarray) -> float:
    """Return p of the paired t-test: [n] -> (); of equal differences that of changing signs.

    Equal differences have no variance, for which a t-test says p = 0 with two seeds as with a hundred. Changing signs
    assumes no variance and says 2/2ⁿ: six seeds may be enough, two are not.
    """
    if all_equal(differences):
        return sign_flips(differences)
    error = differences.std(ddof=1) / np.sqrt(differences.size)
    return float(2.0 * stdtr(differences.size - 1, -abs(differences.mean() / error)))


def sign_flips(differences: np.ndarray) -> float:
    """Return p of the permutation test that changes signs: all of them, or beyond 16 seeds some that are drawn."""
    count = differences.size
    if count <= EXACT_SEEDS:
        bits = (np.arange(1 << count)[:, None] >> np.arange(count)) & 1
    else:
        bits = np.random.default_rng(0).integers(0, 2, (DRAWN, count))
        bits[0] = 0  # the differences as they are
    sums = np.abs((1 - 2 * bits) @ differences)
    return float(np.mean(sums >= abs(differences.sum()) * (1.0 - 1e-12)))


def wilcoxon(differences: np.ndarray) -> float:
    """Return p of Wilcoxon's signed-rank test, as SciPy computes it; 1 where all differences are 0."""
    from scipy import stats

    return float(stats.wilcoxon(differences).pvalue) if differences.any() else 1.0


TESTS: dict[str, tuple[Callable[[np.ndarray], float], str]] = {
    "t": (t_test, "a paired t-test"),
    "sign-flip": (sign_flips, "a permutation test that changes signs of paired differences"),
    "wilcoxon": (wilcoxon, "Wilcoxon's signed-rank test of paired differences"),
}


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method."""
    order = np.argsort(p_values, kind="stable")
    corrected, largest = [0.0] * len(order), 0.0
    for rank, index in enumerate(order.tolist()):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


# --- a table of comparisons


@dataclass(frozen=True)
class Question:
    """What is compared.

    metric      a column of the study's frame
    compare     the setting whose values are compared
    baseline    the value with which all are compared; None: the best
    test        "t", "sign-flip" or "wilcoxon"
    confidence  of intervals; a difference counts if its corrected p is below 1 minus this
    more        whether more of the metric is better; None: nobody said so
    """

    metric: str
    compare: str | None
    baseline: Any = None
    test: str = "t"
    confidence: float = CONFIDENCE
    more: bool | None = None

    @property
    def sign(self) -> float:
        """1 where less is better, -1 where more is."""
        return -1.0 if self.more else 1.0

    @property
    def reference(self) -> str:
        """What others are compared with, in words."""
        if self.baseline is not None:
            return repr(self.baseline)
        return "the first value" if self.more is None else "the best"

    def sentences(self) -> list[str]:
        """Return what the numbers of a table are."""
        share = f"{self.confidence:.0%}".replace("%", " %")
        mean = f"Mean over seeds ± half of its {share} t-interval."
        if self.compare is None:
            return [mean]
        marked = (
            f"The best, the {'highest' if self.more else 'lowest'}, is marked where it differs from every other at p < "
            f"{1.0 - self.confidence:.2g}."
        )
        if self.more is None:
            marked = (
                f"Whether more or less of {self.metric} is better is not known, so no best is marked; say it by "
                "greater_is_better."
            )
        return [
            f"{mean} Differences to {self.reference} are paired by seed, whose test rows all cells share; p is of "
            f"{TESTS[self.test][1]}, corrected by Holm's method for the values of {self.compare} that are compared. "
            f"{marked}"
        ]


def checked_question(
    frame: pd.DataFrame,
    settings: Sequence[str],
    metric: str,
    compare: str | None,
    baseline: Any,
    test: str,
    confidence: float,
    more: bool | None = None,
) -> Question:
    """Return a checked question about a frame in which these settings vary; `more` of the metric may be better."""
    columns = list(frame.columns)
    figures = [name for name in columns[columns.index(STATUS) + 1 :] if name not in TEXTS]
    one_of("metric", metric, figures)
    one_of("test", test, TESTS)
    number("confidence", confidence, "a share between 0 and 1", above=0.0, below=1.0)
    compare = compared(settings, compare)
    if baseline is not None:
        levels = [] if compare is None else list(dict.fromkeys(frame[compare]))
        if baseline not in levels:
            raise refusal(
                "baseline", baseline, f"one of {', '.join(map(repr, levels))}, the values of {compare}"
            )
    return Question(metric, compare, baseline, test, confidence, more)


def compared(settings: Sequence[str], compare: str | None) -> str | None:
    """Return the setting whose values are compared: the one that is named, else the first that is no dataset."""
    if compare is not None:
        return str(one_of("compare", compare, tuple(settings)))
    of_methods = [name for name in settings if name != "dataset"]
    return next(iter(of_methods or settings), None)


def table(
    frame: pd.DataFrame,
    settings: Sequence[str],
    question: Question,
    reasons: Mapping[str, Mapping[str, str]] = {},
) -> pd.DataFrame:
    """Return a row for each combination of settings: mean, interval, spread, difference, test, and what to note.

    reasons  why the cell with a key lacks figures, by their names
    """
    import pandas as pd

    others = [name for name in settings if name != question.compare]
    rows: list[dict[str, Any]] = []
    for fixed in dict.fromkeys(frame[others].itertuples(index=False, name=None)):
        group = frame[_equal(frame, others, fixed)]
        levels = [None] if question.compare is None else list(dict.fromkeys(group[question.compare]))
        cells = [
            group if question.compare is None else group[group[question.compare] == level] for level in levels
        ]
        described = [_described(cell, question, reasons) for cell in cells]
        _add_differences(described, levels, [_by_seed(cell, question.metric) for cell in cells], question)
        for level, row in zip(levels, described, strict=True):
            named = {} if question.compare is None else {question.compare: level}
            rows.append({**dict(zip(others, fixed, strict=True)), **named, "metric": question.metric, **row})
    summary = pd.DataFrame(rows)
    summary.attrs |= {"notes": question.sentences(), "compare": question.compare}
    return summary


def _equal(frame: pd.DataFrame, names: Sequence[str], values: Sequence[Any]) -> np.ndarray:
    """Return which rows have these values: [rows] of booleans."""
    mask = np.ones(len(frame), dtype=bool)
    for name, value in zip(names, values, strict=True):
        mask &= (frame[name] == value).to_numpy()
    return mask


def _by_seed(cell: pd.DataFrame, metric: str) -> dict[int, float]:
    """Return the finite values of the seeds that are done."""
    values = zip(cell["seed"], cell[metric].astype(float), strict=True)
    return {int(seed): value for seed, value in values if np.isfinite(value)}


def _described(
    cell: pd.DataFrame, question: Question, reasons: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """Return the mean of a cell over its seeds, and the sentence about what is missing."""
    values = np.array(list(_by_seed(cell, question.metric).values()))
    half = half_width(values, question.confidence)
    mean = float(values.mean()) if values.size else float("nan")
    spread = next(
        (n for n in (f"{question.metric}_std", question.metric.replace("_error", "_std")) if n in cell), ""
    )
    of_peers = (
        {}
        if spread in ("", question.metric)
        else {"std_over_peers": float(cell[spread].astype(float).mean())}
    )
    notes = list(_notes(cell, values.size, question.metric, reasons))
    if of_peers and values.size and not np.isfinite(of_peers["std_over_peers"]):
        notes.append(NO_PEERS)
    return {
        "seeds": values.size,
        "mean": mean,
        "low": mean - half,
        "high": mean + half,
        "std_over_seeds": float(values.std(ddof=1)) if values.size > 1 else float("nan"),
        **of_peers,
        "note": " ".join(notes),
    }


def _notes(
    cell: pd.DataFrame, values: int, metric: str, reasons: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """Yield a sentence for each reason why a figure is missing."""
    done = cell[STATUS] == DONE
    counts = Counter(zip(cell.loc[~done, STATUS], cell.loc[~done, "reason"], strict=True))
    for (status, reason), count in counts.items():
        yield f"{count} of {len(cell)} seeds {'is' if count == 1 else 'are'} {status}: {_ended(reason)}"
    absent = cell[done & ~np.isfinite(cell[metric].astype(float))]
    figures = absent[FIGURE] if FIGURE in absent else [metric] * len(absent)
    why = Counter(
        (figure, reasons.get(key, {}).get(figure, UNKNOWN))
        for key, figure in zip(absent["key"], figures, strict=True)
    )
    for (figure, reason), count in why.items():
        yield f"{count} of {len(cell)} seeds {'has' if count == 1 else 'have'} no {figure}: {_ended(reason)}"
    if values == 1:
        yield "One seed: no interval and no test; expected two or more seeds."


UNKNOWN = "its run could not compute it"
NO_PEERS = "Of what peers are compared with, no spread over peers is kept."


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."


def _add_differences(
    described: list[dict[str, Any]],
    levels: Sequence[Any],
    by_seed: list[dict[int, float]],
    question: Question,
) -> None:
    """Add the differences to the baseline or the best, their p, and which level is distinguishably the best."""
    nothing = dict.fromkeys(("difference", "difference_low", "difference_high", "p", "p_holm"), float("nan"))
    for row in described:
        row |= {**(nothing if len(levels) > 1 else {}), "compared_with": "", "best": False}
        row["note"] = row.pop("note")  # last
    present = [index for index, values in enumerate(by_seed) if values]
    if len(levels) < 2 or not present:
        return
    first = min(present, key=lambda index: question.sign * described[index]["mean"])
    best = present[0] if question.more is None else first
    reference = best if question.baseline is None else list(levels).index(question.baseline)
    _compare(described, levels, by_seed, reference, question)
    if question.more is None:
        return
    corrected = _corrected(by_seed, first, question)
    described[first]["best"] = len(corrected) == len(levels) - 1 and all(
        p < 1.0 - question.confidence for p in corrected.values()
    )


def _paired(by_seed: list[dict[int, float]], index: int, reference: int) -> np.ndarray:
    """Return the differences of two levels at the seeds that both have: [n]."""
    common = [seed for seed in by_seed[index] if seed in by_seed[reference]]
    return np.array([by_seed[index][seed] - by_seed[reference][seed] for seed in common])


def _corrected(by_seed: list[dict[int, float]], reference: int, question: Question) -> dict[int, float]:
    """Return the corrected p of each level that can be tested against another."""
    others = [index for index in range(len(by_seed)) if index != reference]
    pairs = {index: _paired(by_seed, index, reference) for index in others}
    tested = {index: TESTS[question.test][0](pair) for index, pair in pairs.items() if pair.size > 1}
    return dict(zip(tested, holm(list(tested.values())), strict=True))


def _compare(
    described: list[dict[str, Any]],
    levels: Sequence[Any],
    by_seed: list[dict[int, float]],
    reference: int,
    question: Question,
) -> None:
    """Write the differences to one level, and their p, into the rows of the others."""
    corrected = _corrected(by_seed, reference, question)
    for index, row in enumerate(described):
        pair = _paired(by_seed, index, reference)
        if not pair.size:
            continue
        if index == reference:
            row |= {"difference": 0.0, "difference_low": 0.0, "difference_high": 0.0, "p": 1.0, "p_holm": 1.0}
            row["compared_with"] = "itself"
            continue
        half, mean = half_width(pair, question.confidence), float(pair.mean())
        row |= {"difference": mean, "difference_low": mean - half, "difference_high": mean + half}
        row["compared_with"] = str(levels[reference])
        if pair.any() and all_equal(pair):
            instead = ", and p is of changing signs, not of a t-test" if question.test == "t" else ""
            row["note"] += (" " if row["note"] else "") + (
                f"Its differences to {levels[reference]} are the same in all {pair.size} seeds, so their interval has "
                f"no width{instead}."
            )
        if index in corrected:
            row |= {"p": TESTS[question.test][0](pair), "p_holm": corrected[index]}
