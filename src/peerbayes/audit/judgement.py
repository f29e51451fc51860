"""What neighbours could learn of a peer, judged from a few facts: its rows, its neighbours, its classes, the rounds.

One judgement for `peerbayes audit`, `node check`, `node run` and `network close`. Figures are those of `measured`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from peerbayes.audit.measured import LISTENING, LYING, MEMBERSHIP, ROUNDS, Table, highest
from peerbayes.privacy.accounting import membership, mu_of

FEW_ROWS = 50  # below, a neighbour that lies has nearly all of them within 64 rounds

NOISE_HOLDS = 8.0  # up to this ε the attacks found no row (`benchmarks/audit.py`)

TELLING = 0.9  # from this AUC on, membership alone is alarming

WORDS = "See docs/protection.md"


@dataclass(frozen=True)
class Exposure:
    """How open a peer is to its neighbours."""

    name: str
    """The peer."""
    neighbours: int
    """How many it has."""
    rows: int | None = None
    """How many it holds; None: not known here."""
    counts: tuple[int, ...] | None = None
    """Rows of each class; None: not known here. Every neighbour learns them."""
    rounds: int = 64
    """Rounds of messages."""
    sends: bool = True
    """Whether anything is sent in the rounds."""
    epsilon: float | None = None
    """What differential privacy promises for all that it sends; None: there is no noise."""
    delta: float = 1e-5
    """The probability with which that may fail."""
    among: int = 1
    """How many messages a neighbour hears the sum of; 1: each by itself."""

    @property
    def hidden(self) -> bool:
        """Whether there is noise enough that no attack here finds a row."""
        return self.epsilon is not None and self.epsilon <= NOISE_HOLDS

    @property
    def few(self) -> bool:
        """Whether what a neighbour hears is of few rows."""
        return self.rows is not None and self.rows * self.among < FEW_ROWS

    @property
    def leaf(self) -> bool:
        """Whether one neighbour hears all that it says, and says all that it hears."""
        return self.neighbours == 1 and self.sends

    @property
    def absent(self) -> int | None:
        """Classes of which it has no row; None: not known here."""
        return None if self.counts is None else sum(count == 0 for count in self.counts)

    @property
    def alone(self) -> int | None:
        """Rows that are the only one of their class where another class is absent: every neighbour has them."""
        if self.counts is None:
            return None
        return sum(count == 1 for count in self.counts) if self.absent and self.sends else 0

    @property
    def listening(self) -> float | None:
        """Share of rows that all neighbours together, or the only one, find by listening; None: not known here."""
        return self._share(LISTENING)

    @property
    def lying(self) -> float | None:
        """The same by made-up statistics, within the rounds."""
        return self._share(LYING, ROUNDS / max(1, self.rounds))

    @property
    def membership(self) -> float | None:
        """AUC with which any neighbour tells this peer's rows from others; None: not known here."""
        if self.rows is None or not self.sends or not self.neighbours:
            return None if self.rows is None else 0.5
        last = max(next(iter(MEMBERSHIP.values())))
        held = self.rows * self.among
        found = highest(MEMBERSHIP, min(held, last))
        auc = 0.5 + (found - 0.5) * math.sqrt(min(1.0, last / max(1, held)))
        return auc if self.epsilon is None else min(auc, membership(mu_of(self.epsilon, self.delta)))

    def alarms(self) -> list[str]:
        """What nobody should accept unknowingly, a sentence each; the worst first."""
        if not self.sends or not self.neighbours:
            return []
        told = []
        if self.leaf and not self.hidden:
            had = ""
            if self.rows is not None and self.lying is not None and self.listening is not None:
                had = (
                    f"; by listening alone it finds about {self.listening:.0%} of the {self.rows:,} rows, with made-up "
                    f"statistics about {self.lying:.0%}"
                )
            told.append(f"one neighbour only: it learns this peer's contribution exactly, every round{had}")
        if self.few and not self.hidden:
            told.append(
                f"{self.rows} rows are few: from the statistics that this peer sends, neighbours that share what they "
                "hear can reconstruct most of them, and any one tells members from others with an AUC of "
                f"{self.membership:.2f}"
            )
        elif self.membership is not None and self.membership >= TELLING:
            told.append(
                f"any neighbour tells its rows from others with an AUC of up to {self.membership:.2f}"
            )
        if self.hidden:
            return told
        if self.alone:
            rows = "a row is" if self.alone == 1 else f"{self.alone} rows are"
            told.append(
                f"{rows} alone in a class while another class is absent: every neighbour reads such a row outright"
            )
        if self.counts is not None and sum(count > 0 for count in self.counts) == 1:
            told.append(
                "all rows are of one class: the first message gives every neighbour all their moments"
            )
        return told

    def notes(self) -> list[str]:
        """What is as it is, and should be known."""
        if not self.sends or not self.neighbours:
            return ["nothing is sent in the rounds"]
        if self.epsilon is not None:
            bound = membership(mu_of(self.epsilon, self.delta))
            return [
                f"noise bounds what anybody learns of one row: ε = {self.epsilon:g}, δ = {self.delta:g}; no test of "
                f"whether a row took part has an AUC above {bound:.2f}"
            ]
        if self.among > 1:
            return [
                f"a neighbour hears the sum of {self.among} messages, and learns the class counts of that sum"
            ]
        told = ["every neighbour learns how many rows of each class it has, exactly"]
        if self.absent and self.counts is not None and sum(count > 0 for count in self.counts) > 1:
            told.append(
                f"{self.absent} classes are absent: every neighbour learns sums and variances of each class"
            )
        if not self.leaf and self.lying is not None:
            told.append(
                f"its {self.neighbours} neighbours together, should they share what they hear, find about "
                f"{self.lying:.0%} of its rows"
            )
        return told

    @property
    def alarming(self) -> bool:
        """Whether there is an alarm."""
        return bool(self.alarms())

    def badness(self) -> tuple[float, ...]:
        """To sort by: the worst has the largest."""
        return (
            float(len(self.alarms())),
            float(self.leaf),
            self.lying or 0.0,
            self.membership or 0.0,
            -(self.rows or 0),
        )

    def to_plain(self) -> dict[str, Any]:
        """For programs to read."""
        worked_out = ("leaf", "hidden", "absent", "alone", "listening", "lying", "membership", "alarming")
        return {**asdict(self), **{name: getattr(self, name) for name in worked_out}, "alarms": self.alarms(),
                "notes": self.notes()}  # fmt: skip

    def _share(self, table: Table, scale: float = 1.0) -> float | None:
        if self.rows is None:
            return None
        if self.hidden or not self.sends or not self.neighbours:
            return 0.0
        return highest(table, self.rows * self.among * scale)


ADVICE = (
    "more rows at the smallest peers (limits.rows in the agreement asks for them)",
    "more links: two or more neighbours for everybody, who would not share what they hear",
    "noise with a bound that is agreed on (differential privacy) where neighbours must not learn about single rows",
    "else be a neighbour only of those who may see the rows anyhow",
)
