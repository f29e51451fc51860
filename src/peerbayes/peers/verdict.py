"""How a run ended: whether its model settled, who was missing, and whether learning together was worth it.

settled    the last eighth of the rounds changed the model's answers on the peer's own rows by little, and the
           neighbours' statistics are near its own
missing    rounds that were closed without a neighbour's message, or that a neighbour closed without this peer's
worth it   on rows that it did not learn from, the joint model is not worse than the one that this peer would have
           alone, beyond chance
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

MOST_MISSING = 0.1  # largest share of rounds with a missing neighbour in a good run
MOST_MOVED = 0.05  # largest movement of probabilities in the last eighth of the rounds
MOST_APART = 0.2  # largest distance of neighbours' statistics from this peer's at the end, relative
BEYOND_CHANCE = 2.0  # standard errors of a paired difference
ENDED_BADLY = 3  # the exit code of `peerbayes node run`


def last_rounds(rounds: int) -> int:
    """Return the number of rounds over which the model's movement is measured: the last eighth."""
    return max(1, rounds // 8)


@dataclass(frozen=True)
class Comparison:
    """Two models on the same rows: the joint one, and the one that the peer would have alone."""

    rows: int
    held_out: bool  # else its own rows, each judged by a lone model of the others
    joint_error: float
    lone_error: float
    worse: bool  # the joint model, beyond chance

    @classmethod
    def of(cls, joint_wrong: Any, lone_wrong: Any, held_out: bool) -> Comparison:
        """Compare two models by the rows that each gets wrong: [n] and [n] of booleans.

        By chance, rows that only one of them gets wrong would be equally many for both. A joint model with b of them
        and a lone one with c is worse if b − c is more than two standard errors, 2·√(b + c).
        """
        pairs = list(zip(map(bool, joint_wrong), map(bool, lone_wrong), strict=True))
        only_joint = sum(joint and not lone for joint, lone in pairs)
        only_lone = sum(lone and not joint for joint, lone in pairs)
        worse = only_joint - only_lone > BEYOND_CHANCE * math.sqrt(only_joint + only_lone)
        count = max(len(pairs), 1)
        joint_error, lone_error = (
            sum(joint for joint, _ in pairs) / count,
            sum(lone for _, lone in pairs) / count,
        )
        return cls(len(pairs), held_out, joint_error, lone_error, worse)


@dataclass(frozen=True)
class Verdict:
    """The verdict on a run at its end."""

    good: bool
    converged: bool | None  # None: unknown
    moved: float | None
    disagreement: float | None
    rounds: int
    rounds_missing: int
    missing_share: float
    joint_error: float | None
    lone_error: float | None
    judged_rows: int
    held_out: bool
    sentences: tuple[str, ...]
    """Each finding in words; those that make the run a bad one come first."""
    problems: int = 0
    """Number of those sentences."""

    @property
    def problem(self) -> str:
        """What is wrong, in one sentence; empty for a good run."""
        return "; ".join(self.sentences[: self.problems])

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def verdict(
    history: Iterable[Mapping[str, Any]],
    left_out: Mapping[int, Iterable[str]],
    gone: Mapping[str, str],
    moved: float | None,
    disagreement: float | None,
    compared: Comparison | None,
    last_rounds: int,
) -> Verdict:
    """Return the verdict on a run.

    history       its rounds as the store has them: "round" and who is "missing"
    left_out      by round, the neighbours that closed it without this peer
    gone          neighbours that were revoked, left or are heard no more, and why: they are not waited for
    moved         how far the last `last_rounds` rounds moved its answers on its own rows: the mean over rows of the
                  probability that went from some classes to others
    disagreement  how far neighbours' statistics are from its own; None where messages do not reveal it
    """
    rounds = [entry for entry in history if entry["round"] > 0]
    without: Counter[str] = Counter()
    incomplete = 0
    for entry in rounds:
        names = ({*entry["missing"], *left_out.get(entry["round"], ())}) - gone.keys()
        without.update(names)
        incomplete += bool(names)
    share = incomplete / len(rounds) if rounds else 0.0
    converged = _converged(moved, disagreement)
    bad: list[str] = []
    fine: list[str] = []
    (bad if converged is False else fine).append(_settling(converged, moved, disagreement, last_rounds))
    if incomplete:
        (bad if share > MOST_MISSING else fine).append(_missing(incomplete, len(rounds), without))
    elif rounds:
        fine.append("nobody was missing in any round")
    if compared is not None:
        (bad if compared.worse else fine).append(_compared(compared))
    fine += [f"{name} did not stay: {why}" for name, why in gone.items()]
    return Verdict(
        good=not bad,
        converged=converged,
        moved=moved,
        disagreement=disagreement,
        rounds=len(rounds),
        rounds_missing=incomplete,
        missing_share=share,
        joint_error=None if compared is None else compared.joint_error,
        lone_error=None if compared is None else compared.lone_error,
        judged_rows=0 if compared is None else compared.rows,
        held_out=compared is not None and compared.held_out,
        sentences=(*bad, *fine),
        problems=len(bad),
    )


def _converged(moved: float | None, disagreement: float | None) -> bool | None:
    """Return whether all known figures are within their limits (NaN is not); None: none is known."""
    figures = [(moved, MOST_MOVED), (disagreement, MOST_APART)]
    within_limits = [figure <= most for figure, most in figures if figure is not None]
    return all(within_limits) if within_limits else None


def _settling(converged: bool | None, moved: float | None, disagreement: float | None, last: int) -> str:
    if converged is None:
        return "nothing tells whether the model has settled"
    facts = []
    if moved is not None:
        facts.append(f"its last {_rounds(last)} moved its answers by {moved:.1%}")
    if disagreement is not None:
        facts.append(f"neighbours' statistics are {disagreement:.1%} from its own")
    if converged:
        return f"the model has settled: {', '.join(facts)}"
    return (
        f"the model has not settled: {', '.join(facts)} (at most {MOST_MOVED:.0%} and {MOST_APART:.0%} is settled); "
        "more rounds would help"
    )


def _missing(incomplete: int, rounds: int, without: Counter[str]) -> str:
    names = ", ".join(f"{name} in {count}" for name, count in sorted(without.items()))
    return f"somebody was missing in {incomplete} of {_rounds(rounds)} ({incomplete / rounds:.0%}): {names}"


def _compared(compared: Comparison) -> str:
    rows = f"{compared.rows} {'held-out' if compared.held_out else 'own'} rows"
    if compared.worse:
        return (
            f"the joint model is worse here than the one that this peer would have alone: {compared.joint_error:.1%} "
            f"wrong on {rows}, alone {compared.lone_error:.1%}"
        )
    return (
        f"the joint model gets {compared.joint_error:.1%} of {rows} wrong; the one that this peer would have alone, "
        f"{compared.lone_error:.1%}"
    )


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"
