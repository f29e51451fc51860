"""How a run ended: converged or not, who was missing, and whether the joint model is worth it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from peerbayes.learning import planning
from peerbayes.learning.local_rows import LocalRows
from peerbayes.learning.metrics import Sample
from peerbayes.learning.selection import CHECK_EVERY, LAST
from peerbayes.learning.strategies import NetworkFacts
from peerbayes.model import layout
from peerbayes.model.calibration import evened, shared_out, start_statistics
from peerbayes.model.core import softmax
from peerbayes.model.families import Family, Rows
from peerbayes.model.scaling import Scaling
from peerbayes.peer.agreement.negotiate import Agreed
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.learning.held_out import Evaluator
from peerbayes.peer.state.store import PeerState

# --- how a run ended: whether its model settled, who was missing, and whether learning together was worth it
# settled    all stopped within their tolerance; or the last eighth of the rounds changed the model's answers on the
#            peer's own rows by little, and the neighbours' statistics are near its own
# missing    rounds that were closed without a neighbour's message, or that a neighbour closed without this peer's
# worth it   on rows that it did not learn from, the joint model is not worse than the one that this peer would have
#            alone, beyond chance

MOST_MISSING = 0.1  # largest share of rounds with a missing neighbour in a good run
MOST_MOVED = 0.05  # largest movement of probabilities in the last eighth of the rounds
MOST_APART = 0.2  # largest distance of neighbours' statistics from this peer's at the end, relative
BEYOND_CHANCE = 2.0  # standard errors of a paired difference
ENDED_BADLY = 3  # the exit code of `peerbayes peer run`


def last_rounds(terms: Terms, ended: int) -> int:
    """Return the number of rounds over which the model's movement is measured: the last eighth.

    Where all peers may stop after a check, those since the middle between the last two checks.
    """
    if terms.select == LAST and terms.tolerance is None:
        return max(1, terms.message_rounds // 8)
    exchanges = terms.message_rounds // terms.rounds
    return next((ended - turn for turn in range(ended - 1, 0, -1) if _is_between(turn, exchanges)), ended)


def is_reference(terms: Terms, round_index: int) -> bool:
    """Return whether the model after a round may be the one that the last is compared with."""
    if terms.select == LAST and terms.tolerance is None:
        return round_index == terms.message_rounds - last_rounds(terms, terms.message_rounds)
    return round_index < terms.message_rounds and _is_between(
        round_index, terms.message_rounds // terms.rounds
    )


def _is_between(round_index: int, exchanges: int) -> bool:
    return round_index % (CHECK_EVERY * exchanges) == CHECK_EVERY * exchanges // 2


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
        joint, lone = np.asarray(joint_wrong, dtype=bool), np.asarray(lone_wrong, dtype=bool)
        only_joint, only_lone = int((joint & ~lone).sum()), int((lone & ~joint).sum())
        worse = only_joint - only_lone > BEYOND_CHANCE * math.sqrt(only_joint + only_lone)
        count = max(joint.size, 1)
        return cls(joint.size, held_out, int(joint.sum()) / count, int(lone.sum()) / count, worse)


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
    notes: Iterable[str] = (),
    settled: str = "",
) -> Verdict:
    """Return the verdict on a run.

    history       its rounds as the store has them: "round" and who is "missing"
    left_out      by round, the neighbours that closed it without this peer
    gone          neighbours that were revoked, left or are heard no more, and why: they are not waited for
    moved         how far the last `last_rounds` rounds moved its answers on its own rows: the mean over rows of the
                  probability that went from some classes to others
    disagreement  how far neighbours' statistics are from its own; None where messages do not reveal it
    notes         further sentences
    settled       why all stopped before the limit, where that was since the model had settled
    """
    rounds = [entry for entry in history if entry["round"] > 0]
    without: Counter[str] = Counter()
    incomplete = 0
    for entry in rounds:
        names = ({*entry["missing"], *left_out.get(entry["round"], ())}) - gone.keys()
        without.update(names)
        incomplete += bool(names)
    share = incomplete / len(rounds) if rounds else 0.0
    converged = True if settled else _converged(moved, disagreement)
    bad: list[str] = []
    fine: list[str] = []
    (bad if converged is False else fine).append(
        _settling(converged, moved, disagreement, last_rounds, settled)
    )
    if incomplete:
        (bad if share > MOST_MISSING else fine).append(_missing(incomplete, len(rounds), without))
    elif rounds:
        fine.append("nobody was missing in any round")
    if compared is not None:
        (bad if compared.worse else fine).append(_compared(compared))
    fine += [*notes, *(f"{name} did not stay: {why}" for name, why in gone.items())]
    joint_error, lone_error, judged_rows, held_out = None, None, 0, False
    if compared is not None:
        joint_error, lone_error = compared.joint_error, compared.lone_error
        judged_rows, held_out = compared.rows, compared.held_out
    return Verdict(
        not bad, converged, moved, disagreement, len(rounds), incomplete, share, joint_error, lone_error, judged_rows,
        held_out, (*bad, *fine), len(bad),
    )  # fmt: skip


def _converged(moved: float | None, disagreement: float | None) -> bool | None:
    """Return whether all known figures are within their limits (NaN is not); None: none is known."""
    figures = [(moved, MOST_MOVED), (disagreement, MOST_APART)]
    within_limits = [figure <= most for figure, most in figures if figure is not None]
    return all(within_limits) if within_limits else None


def _settling(
    converged: bool | None, moved: float | None, disagreement: float | None, last: int, settled: str
) -> str:
    if settled:
        return f"the model has settled: {settled}"
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
    joint, lone = f"{compared.joint_error:.1%}", f"{compared.lone_error:.1%}"
    model = "the one that this peer would have alone"
    if compared.worse:
        return f"the joint model is worse here than {model}: {joint} wrong on {rows}, alone {lone}"
    return f"the joint model gets {joint} of {rows} wrong; {model}, {lone}"


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


# --- the verdict on a run, from a peer's own rows: how much predictions still change, and what a local model would do

FOLDS = 5  # of cross-validation on the peer's own rows, where no rows are held out
MOST_ROWS = 20_000  # rows that are evaluated, and that a local model learns from: more would change little
FEWEST_ROWS = 10  # fewer say nothing


def concluded(
    agreed: Agreed,
    terms: Terms,
    store: PeerState,
    evaluator: Evaluator,
    last: np.ndarray,
    stats: np.ndarray,
    gone: Mapping[str, str],
    ended: int,
    notes: Iterable[str] = (),
    scaling: Scaling | None = None,
    settled: str = "",
) -> Verdict:
    """Return the verdict on a run; the history comes from the store.

    last     [C, K] S after the last round
    stats    [C, K] S of the model: of the last round, or of the one that was kept
    ended    the last round
    notes    further sentences
    scaling  of the model's logits
    settled  why all stopped before the limit, where that was since the model had settled
    """
    history = store.history()
    disagreement = next(
        (entry["disagreement"] for entry in reversed(history) if entry["disagreement"] is not None), None
    )
    return verdict(
        history,
        store.left_out(),
        gone,
        moved=movement(agreed, evaluator, store.reference(), last),
        # With noise neighbours never agree exactly: their disagreement says nothing about convergence.
        disagreement=None if agreed.private is not None else disagreement,
        compared=comparison(agreed, terms, evaluator, stats, scaling),
        last_rounds=last_rounds(terms, ended),
        notes=notes,
        settled=settled,
    )


def movement(
    agreed: Agreed, evaluator: Evaluator, before: np.ndarray | None, stats: np.ndarray
) -> float | None:
    """Return how far predictions on the peer's own rows moved between two models: the mean of ½ Σ_c |p_c − q_c|."""
    if before is None or before.shape != stats.shape:
        return None
    rows = _subsample(evaluator.training)
    earlier, later = _posterior(rows, agreed, before), _posterior(rows, agreed, stats)
    return float(np.abs(earlier - later).sum(axis=1).mean() / 2)


def comparison(
    agreed: Agreed, terms: Terms, evaluator: Evaluator, stats: np.ndarray, scaling: Scaling | None = None
) -> Comparison | None:
    """Return how the joint model compares with a local one; None where there is nothing to compare.

    On held-out rows where there are enough. Otherwise by cross-validation on the peer's own rows: the local model of a
    fold is learned from the other folds, so that it is never tested on rows that it has seen.
    """
    training, held_out = evaluator.training, evaluator.held_out
    has_held_out = held_out is not None and held_out.labels.size >= FEWEST_ROWS
    tested = _subsample(held_out if has_held_out and held_out is not None else training)
    classes = np.unique(
        training.labels
    ).size  # a local model that knows one class only is never wrong about it
    messages = agreed.learner.neighbours or planning.declaration_of(agreed.strategy).by_sums
    if not messages or tested.labels.size < FEWEST_ROWS or classes < 2:
        return None
    posterior = _posterior(tested, agreed, stats)
    if scaling is not None:
        posterior = scaling.scaled(np.log(np.maximum(posterior, np.finfo(float).tiny)))
    joint_wrong = posterior.argmax(axis=1) != tested.labels
    local_wrong = np.empty(tested.labels.size, dtype=bool)
    if has_held_out:
        local_wrong[:] = _wrong(_local(agreed, terms, _subsample(training)), tested)
    else:
        fold = np.random.default_rng(0).permutation(tested.labels.size) % FOLDS
        for index in range(FOLDS):
            learned, left_out = _rows_of(tested, fold != index), _rows_of(tested, fold == index)
            local_wrong[fold == index] = _wrong(_local(agreed, terms, learned), left_out)
    return Comparison.of(joint_wrong, local_wrong, has_held_out)


def _local(agreed: Agreed, terms: Terms, rows: Sample) -> tuple[Family, np.ndarray]:
    """Return the family and S [C, K] of a peer with these rows and no neighbours: same terms, no noise."""
    count, classes = rows.labels.size, len(agreed.schema.classes)
    family = layout.guarded(agreed.layout, float(count), calibrate=True)
    local_rows = LocalRows(family, rows.rows, rows.labels, np.ones(count), np.array([count]), classes)
    own_start = planning.declaration_of(agreed.strategy).own_start
    if terms.start == "uniform" and not own_start:
        weight = planning.start_weight(terms.lr, NetworkFacts(1, count))
        stats = start_statistics("uniform", family, classes, weight)
    else:
        statistics = local_rows.statistics()
        if local_rows.incomplete.any():
            statistics = local_rows.expected(local_rows.alone(local_rows.apart()))
        if own_start:
            return family, statistics[0]
        stats = evened(terms.start, family, shared_out(terms.start, statistics[0] / terms.lr, classes))
        stats = np.broadcast_to(stats, statistics[0].shape)
    residual = local_rows.residual(terms.rounds, terms.local_steps)
    stats = np.ascontiguousarray(stats)[None]
    for _ in range(terms.rounds):
        stats = stats + residual(stats)
    return family, stats[0]


def _wrong(model: tuple[Family, np.ndarray], rows: Sample) -> np.ndarray:
    """Return which rows a model gets wrong: [n]."""
    family, stats = model
    sample = Sample(family, rows.rows, rows.labels)
    return np.asarray(sample.logits(np.asarray(family.weights(stats))).argmax(axis=1) != rows.labels)


def _posterior(rows: Sample, agreed: Agreed, stats: np.ndarray) -> np.ndarray:
    """Return p(c | x) by the model of S: [n, C]."""
    weights = stats if agreed.of_weights else np.asarray(agreed.family.weights(stats))
    return np.asarray(softmax(rows.logits(weights)))


def _subsample(sample: Sample) -> Sample:
    """Return at most `MOST_ROWS` rows of a sample, evenly spaced."""
    count = sample.labels.size
    if count <= MOST_ROWS:
        return sample
    return _rows_of(sample, np.linspace(0, count - 1, MOST_ROWS).astype(np.int64))


def _rows_of(sample: Sample, which: np.ndarray) -> Sample:
    """Return the rows of a sample at these indices, or under this mask."""
    return Sample(
        sample.family, Rows(sample.rows.values[which], sample.rows.codes[which]), sample.labels[which]
    )
