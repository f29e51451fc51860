"""Statistics of a study: means over seeds with intervals, and differences that are paired by seed, with a test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtr, stdtrit

from peerbayes.data.arguments import number, one_of, refusal

if TYPE_CHECKING:
    import pandas as pd

CONFIDENCE = 0.95

# Metrics of which more is better; of all others, less.
MORE_IS_BETTER = ("accuracy", "auc", "f1", "precision", "recall")

# Seeds up to which all changes of signs are tried; beyond, so many are drawn.
EXACT_SEEDS, DRAWN = 16, 1 << 16

STATUS, DONE = "status", "done"
TEXTS = ("key", "reason", "warnings")  # columns of a frame that are no figures


# --- intervals and tests


def half_width(values: np.ndarray, confidence: float = CONFIDENCE) -> float:
    """Return the half width of the t-interval of a mean: [n] -> (), NaN for a single value."""
    if values.size < 2:
        return float("nan")
    quantile = stdtrit(values.size - 1, (1.0 + confidence) / 2.0)
    return float(quantile * values.std(ddof=1) / np.sqrt(values.size))


def t_test(differences: np.ndarray) -> float:
    """Return p of the paired t-test: [n] -> (); of equal differences 1 if they are 0, else 0."""
    error = differences.std(ddof=1) / np.sqrt(differences.size)
    if error == 0.0:
        return float(differences[0] == 0.0)
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
    """

    metric: str
    compare: str | None
    baseline: Any = None
    test: str = "t"
    confidence: float = CONFIDENCE

    @property
    def sign(self) -> float:
        """1 where less is better, -1 where more is."""
        return -1.0 if any(word in self.metric for word in MORE_IS_BETTER) else 1.0

    def sentences(self) -> list[str]:
        """Return what the numbers of a table are."""
        share = f"{self.confidence:.0%}".replace("%", " %")
        if self.compare is None:
            return [f"{self.metric}: mean over seeds ± half of its {share} t-interval."]
        test, against = TESTS[self.test][1], "the best" if self.baseline is None else repr(self.baseline)
        return [
            f"{self.metric}: mean over seeds ± half of its {share} t-interval. Differences to {against} are paired by "
            f"seed, whose test rows all cells share; p is of {test}, corrected by Holm's method for the values of "
            f"{self.compare} that are compared. The best is marked where it differs from every other at p < "
            f"{1.0 - self.confidence:.2g}."
        ]


def checked_question(
    frame: pd.DataFrame,
    settings: Sequence[str],
    metric: str,
    compare: str | None,
    baseline: Any,
    test: str,
    confidence: float,
) -> Question:
    """Return a checked question about a frame in which these settings vary."""
    columns = list(frame.columns)
    figures = [name for name in columns[columns.index(STATUS) + 1 :] if name not in TEXTS]
    one_of("metric", metric, figures)
    one_of("test", test, TESTS)
    number("confidence", confidence, "a share between 0 and 1", above=0.0, below=1.0)
    if compare is None:
        of_methods = [name for name in settings if name != "dataset"]
        compare = next(iter(of_methods or settings), None)
    else:
        one_of("compare", compare, tuple(settings))
    if baseline is not None:
        levels = [] if compare is None else list(dict.fromkeys(frame[compare]))
        if baseline not in levels:
            raise refusal(
                "baseline", baseline, f"one of {', '.join(map(repr, levels))}, the values of {compare}"
            )
    return Question(metric, compare, baseline, test, confidence)


def table(frame: pd.DataFrame, settings: Sequence[str], question: Question) -> pd.DataFrame:
    """Return a row for each combination of settings: mean, interval, spread, difference, test, and what to note."""
    import pandas as pd

    others = [name for name in settings if name != question.compare]
    rows: list[dict[str, Any]] = []
    for fixed in dict.fromkeys(frame[others].itertuples(index=False, name=None)):
        group = frame[_equal(frame, others, fixed)]
        levels = [None] if question.compare is None else list(dict.fromkeys(group[question.compare]))
        cells = [
            group if question.compare is None else group[group[question.compare] == level] for level in levels
        ]
        described = [_described(cell, question) for cell in cells]
        _add_differences(described, levels, [_by_seed(cell, question.metric) for cell in cells], question)
        for level, row in zip(levels, described, strict=True):
            named = {} if question.compare is None else {question.compare: level}
            rows.append({**dict(zip(others, fixed, strict=True)), **named, "metric": question.metric, **row})
    summary = pd.DataFrame(rows)
    summary.attrs["notes"] = question.sentences()
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


def _described(cell: pd.DataFrame, question: Question) -> dict[str, Any]:
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
    return {
        "seeds": values.size,
        "mean": mean,
        "low": mean - half,
        "high": mean + half,
        "std_over_seeds": float(values.std(ddof=1)) if values.size > 1 else float("nan"),
        **of_peers,
        "note": " ".join(_notes(cell, values.size, question.metric)),
    }


def _notes(cell: pd.DataFrame, values: int, metric: str) -> Iterator[str]:
    """Yield a sentence for each reason why a figure is missing."""
    done = cell[STATUS] == DONE
    counts = Counter(zip(cell.loc[~done, STATUS], cell.loc[~done, "reason"], strict=True))
    for (status, reason), count in counts.items():
        yield f"{count} of {len(cell)} seeds {'is' if count == 1 else 'are'} {status}: {reason}."
    if absent := int(done.sum()) - values:
        yield f"{absent} of {len(cell)} seeds {'has' if absent == 1 else 'have'} no {metric}{_why(metric, cell)}."
    if values == 1:
        yield "One seed: no interval and no test; expected two or more seeds."


def _why(metric: str, cell: pd.DataFrame) -> str:
    """Return why a run that is done has no figure of that name."""
    warned = " ".join(dict.fromkeys(text for text in cell["warnings"] if text))
    if metric.split("_")[-1] in ("rc", "end", "ml", "local"):
        return ", which is computed with references = true only"
    return (
        f", which its run could not compute. It warned: {warned}"
        if warned
        else ", which its run could not compute"
    )


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
    reference = first if question.baseline is None else list(levels).index(question.baseline)
    _compare(described, levels, by_seed, reference, question)
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
        if index in corrected:
            row |= {"p": TESTS[question.test][0](pair), "p_holm": corrected[index]}
