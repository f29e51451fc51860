"""A standing consent: which proposals of runs are approved without asking the owner, by consent.toml in its folder."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from peerbayes.data.arguments import refusal
from peerbayes.data.declarations import (
    NEEDED,
    Kind,
    Setting,
    check_fields,
    choice,
    optional,
    read_settings,
    real_number,
    text_value,
    whole_number,
)
from peerbayes.peer.agreement.terms import EVALUATIONS, FIGURES, NO_EVALUATION, NO_FIGURES, Terms
from peerbayes.peer.state.peer_settings import DEMANDS

FILE = "consent.toml"
ANYBODY = "*"  # among the members: whoever the founder invites
OWN_LIMITS = ("evaluation", "figures")  # entries of [require] that a consent has too
PROTECTIONS = tuple(name for name in DEMANDS if name not in OWN_LIMITS)


class Approved(NamedTuple):
    """What an owner approved itself, the last time: the terms of a run, and who took part in it."""

    terms: Terms | None = None
    members: tuple[str, ...] = ()


def _names(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(entry, str) and entry for entry in value):
        raise refusal(name, value, "a list of names")
    return tuple(value)


NAMES = Kind(_names, "a list of names", (list,))


@dataclass(frozen=True)
class Consent:
    """The limits of a standing consent. A run that keeps within all of them is approved by itself."""

    # fmt: off
    label: Annotated[str, Setting(
        NEEDED, text_value("the name of a column"), "the column that runs may predict")]
    columns: Annotated[tuple[str, ...], Setting(
        NEEDED, NAMES, "the columns that runs may learn from; a run that names none is not within the consent")]
    families: tuple[str, ...] = Setting(
        (), NAMES, "the families that runs may learn; none named: any", example=["naive-bayes"]).field()
    strategies: tuple[str, ...] = Setting(
        (), NAMES, "the strategies that runs may use; none named: any", example=["exact"]).field()
    members: tuple[str, ...] = Setting(
        (), NAMES,
        "the members with which this peer learns; none named: those of the last run that its owner approved itself, or "
        "joined; [\"*\"]: whoever the founder invites", example=["peer-1", "peer-2"]).field()
    proposers: tuple[str, ...] = Setting(
        (), NAMES, "the members whose proposals are approved; none named: any", example=["peer-1"]).field()
    epsilon: float | None = Setting(
        None, optional(real_number("a positive number", above=0.0), "for runs with noise or without"),
        "the most that one run may spend of privacy; with it, runs without noise are not within the consent",
        example=1.0).field()
    epsilon_in_all: float | None = Setting(
        None, optional(real_number("a positive number", above=0.0), "for no limit"),
        "the most that all runs over the same rows may spend together", example=4.0).field()
    evaluation: str = Setting(
        NO_EVALUATION, choice(EVALUATIONS),
        "\"sites\": also runs after which the errors on this peer's held-out rows are told to all", example="sites"
    ).field()
    figures: str = Setting(
        NO_FIGURES, choice(FIGURES),
        "\"warn\" or \"stop\": also runs before which all agree on figures of the data", example="warn").field()
    rounds: int | None = Setting(
        None, optional(whole_number(1), "for no limit"), "the most rounds of a run", example=128).field()
    hours: float = Setting(
        0.0, real_number("a number of hours, 0 or more", least=0.0),
        "the fewest hours between two runs that are approved by this consent", example=20.0).field()
    # fmt: on

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def read(cls, path: Path) -> Consent | None:
        """Read the consent in a file; None: there is no such file, and so no consent."""
        return read_settings(cls, path, "no limit of a consent")

    def obstacles(
        self,
        terms: Terms,
        proposer: str,
        members: Collection[str],
        before: Approved,
        in_all: float,
        hours_since: float | None,
    ) -> Sequence[str]:
        """Return the limits that a proposal does not keep, a sentence each; none: it is within the consent.

        members      who takes part
        before       what the owner approved itself
        in_all       ε of all runs over the same rows, with this one
        hours_since  since the last run that this consent approved; None: there was none
        """
        found = []
        if terms.label != self.label:
            found.append(f"label is {terms.label!r}, the consent is for {self.label!r}")
        if not terms.features:
            found.append("the run learns from all columns; the consent is for named ones")
        elif other := [name for name in terms.features if name not in self.columns]:
            found.append(f"the column {other[0]!r} is not among those of the consent")
        for setting, value, allowed in (
            ("family", terms.family, self.families),
            ("strategy", terms.strategy, self.strategies),
            ("proposer", proposer, self.proposers),
        ):
            if allowed and value not in allowed:
                found.append(f"{setting} is {value!r}, the consent is for {', '.join(allowed)}")
        epsilon = terms.privacy.epsilon
        if self.epsilon is not None and (epsilon is None or epsilon > self.epsilon):
            shown = "no epsilon" if epsilon is None else f"epsilon {epsilon:g}"
            found.append(f"the run has {shown}, the consent is for at most {self.epsilon:g}")
        if self.epsilon_in_all is not None and (epsilon is None or in_all > self.epsilon_in_all * (1 + 1e-9)):
            shown = "no epsilon" if epsilon is None else f"epsilon {in_all:.4g} with all other runs"
            found.append(f"the run has {shown}, the consent is for {self.epsilon_in_all:g} in all")
        allowed = self.members or before.members
        if ANYBODY not in allowed and (others := sorted(set(members) - set(allowed))):
            found.append(
                f"{', '.join(others)} would take part, and the consent is for {', '.join(allowed) or 'nobody'}"
            )
        for setting, most, order in (
            ("evaluation", self.evaluation, EVALUATIONS),
            ("figures", self.figures, FIGURES),
        ):
            if order.index(getattr(terms, setting)) > order.index(most):
                found.append(f"{setting} is {getattr(terms, setting)!r}, the consent is for {most!r}")
        found += self._weaker(terms, before.terms)
        if self.rounds is not None and terms.message_rounds > self.rounds:
            found.append(f"the run has {terms.message_rounds} rounds, the consent is for {self.rounds}")
        if hours_since is not None and hours_since < self.hours:
            found.append(
                f"the last run was approved {hours_since:.1f} h ago, the consent is for {self.hours:g} h"
            )
        if terms.packages:
            found.append(
                f"the run needs code of {', '.join(terms.packages)}, which only the owner can approve"
            )
        return found

    def _weaker(self, terms: Terms, approved: Terms | None) -> Iterator[str]:
        """Yield what protects this peer less than in the run that its owner approved, where no limit says how much."""
        if approved is None:
            return
        for name in PROTECTIONS:
            if name == "epsilon" and (self.epsilon is not None or self.epsilon_in_all is not None):
                continue
            demand = DEMANDS[name]
            before, now = demand.agreed(approved), demand.agreed(terms)
            if before is not None and not demand.met(now, before):
                yield f"{name} is {now}, and was {before} in the last run that the owner approved"
