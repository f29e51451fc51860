"""How much a run exposes of a row: measured figures, and the exposure that they add up to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from peerbayes.privacy.accounting import membership, mu_of

# --- measured success of the attacks on three datasets, as `benchmarks/audit.py` printed it, by the rows of a peer
# pulsar has 8 features and 2 classes, adult 14 and 2, letter 16 and 26. Lower bounds: a better attack may recover
# more.

# Rounds of the attacked runs.
ROUNDS = 64

Table = Mapping[str, Mapping[int, float]]

# Share of complete rows that the only neighbour of a peer recovers by the passive attack.
LISTENING: Table = {
    "pulsar": {1: 1.0, 2: 1.0, 3: 1.0, 5: 1.0, 10: 0.5, 20: 0.8, 50: 0.01},
    "adult": {1: 1.0, 2: 0.5, 3: 0.0, 5: 0.0, 10: 0.0, 20: 0.0, 50: 0.0},
    "letter": {1: 1.0, 2: 1.0, 3: 1.0, 5: 1.0, 10: 0.8, 20: 0.33, 50: 0.0},
}

# The same by the active attack.
LYING: Table = {
    "pulsar": {10: 1.0, 50: 1.0, 320: 0.17},
    "adult": {10: 1.0, 50: 0.98, 320: 0.18},
    "letter": {10: 1.0, 50: 1.0, 320: 0.18},
}

# AUC of the membership test on the first message.
MEMBERSHIP: Table = {
    "pulsar": {2: 0.94, 5: 0.83, 10: 0.76, 50: 0.61, 320: 0.56, 1000: 0.53},
    "adult": {2: 0.99, 5: 0.93, 10: 0.88, 50: 0.72, 320: 0.59, 1000: 0.55},
    "letter": {2: 1.0, 5: 1.0, 10: 1.0, 50: 0.98, 320: 0.82, 1000: 0.69},
}


def highest(table: Table, rows: float) -> float:
    """Return the largest figure of the three datasets at so many rows, interpolated in log rows.

    Beyond the largest number of rows it falls as 1/rows: an attack then recovers a number of rows, not a share.
    """
    return max(_between(figures, rows) for figures in table.values())


def _between(figures: Mapping[int, float], rows: float) -> float:
    row_counts = sorted(figures)
    if rows <= row_counts[0]:
        return figures[row_counts[0]]
    for low, high in pairwise(row_counts):
        if rows <= high:
            share = math.log(rows / low) / math.log(high / low)
            return (1.0 - share) * figures[low] + share * figures[high]
    return figures[row_counts[-1]] * row_counts[-1] / rows


# --- estimate what neighbours could learn about a peer from its numbers of rows, neighbours, classes and rounds
# The same estimate serves `peerbayes audit`, `peer check`, `peer run` and `network close`. Figures are from
# `measured`.

FEW_ROWS = 50  # below, an active attacker recovers nearly all of them within 64 rounds

NOISE_HOLDS = 8.0  # up to this ε the attacks found no row (`benchmarks/audit.py`)

TELLING = 0.9  # from this AUC on, membership alone is alarming

WORDS = "See docs/protection.md"


@dataclass(frozen=True)
class Exposure:
    """How open a peer is to its neighbours."""

    name: str
    """The peer."""
    neighbours: int
    """Number of neighbours."""
    rows: int | None = None
    """Number of rows; None: unknown."""
    counts: tuple[int, ...] | None = None
    """Rows of each class; None: unknown. Every neighbour learns them."""
    rounds: int = 64
    """Rounds of messages."""
    sends: bool = True
    """Whether anything is sent in the rounds."""
    epsilon: float | None = None
    """ε of differential privacy for all that it sends; None: no noise."""
    delta: float = 1e-5
    """δ of differential privacy."""
    among: int = 1
    """Number of messages whose sum a neighbour receives; 1: every message singly."""

    @property
    def hidden(self) -> bool:
        """Whether there is enough noise that none of these attacks finds a row."""
        return self.epsilon is not None and self.epsilon <= NOISE_HOLDS

    @property
    def few(self) -> bool:
        """Whether the messages summarise few rows."""
        return self.rows is not None and self.rows * self.among < FEW_ROWS

    @property
    def leaf(self) -> bool:
        """Whether a single neighbour receives all its messages, and sends all that it receives."""
        return self.neighbours == 1 and self.sends

    @property
    def absent(self) -> int | None:
        """Number of classes without a row; None: unknown."""
        return None if self.counts is None else sum(count == 0 for count in self.counts)

    @property
    def alone(self) -> int | None:
        """Number of rows alone in their class while another class is absent: every neighbour can read them."""
        if self.counts is None:
            return None
        return sum(count == 1 for count in self.counts) if self.absent and self.sends else 0

    @property
    def listening(self) -> float | None:
        """Share of rows that all neighbours together recover by the passive attack; None: unknown."""
        return self._share(LISTENING)

    @property
    def lying(self) -> float | None:
        """Share of rows that they recover by the active attack, within the rounds; None: unknown."""
        return self._share(LYING, ROUNDS / max(1, self.rounds))

    @property
    def membership(self) -> float | None:
        """AUC of a neighbour's membership test; None: unknown."""
        if self.rows is None or not self.sends or not self.neighbours:
            return None if self.rows is None else 0.5
        last = max(next(iter(MEMBERSHIP.values())))
        row_count = self.rows * self.among
        measured_auc = highest(MEMBERSHIP, min(row_count, last))
        auc = 0.5 + (measured_auc - 0.5) * math.sqrt(min(1.0, last / max(1, row_count)))
        return auc if self.epsilon is None else min(auc, membership(mu_of(self.epsilon, self.delta)))

    def alarms(self) -> list[str]:
        """Return the serious risks, a sentence each, the worst first."""
        if not self.sends or not self.neighbours:
            return []
        sentences = []
        if self.leaf and not self.hidden:
            share_text = ""
            if self.rows is not None and self.lying is not None and self.listening is not None:
                share_text = (
                    f"; by listening alone it finds about {self.listening:.0%} of the {self.rows:,} rows, with made-up "
                    f"statistics about {self.lying:.0%}"
                )
            sentences.append(
                f"one neighbour only: it learns this peer's contribution exactly, every round{share_text}"
            )
        if self.few and not self.hidden:
            sentences.append(
                f"{self.rows} rows are few: from the statistics that this peer sends, neighbours that share what they "
                "hear can reconstruct most of them, and any one tells members from others with an AUC of "
                f"{self.membership:.2f}"
            )
        elif self.membership is not None and self.membership >= TELLING:
            sentences.append(
                f"any neighbour tells its rows from others with an AUC of up to {self.membership:.2f}"
            )
        if self.hidden:
            return sentences
        if self.alone:
            rows = "a row is" if self.alone == 1 else f"{self.alone} rows are"
            sentences.append(
                f"{rows} alone in a class while another class is absent: every neighbour reads such a row outright"
            )
        if self.counts is not None and sum(count > 0 for count in self.counts) == 1:
            sentences.append(
                "all rows are of one class: the first message gives every neighbour all their moments"
            )
        return sentences

    def notes(self) -> list[str]:
        """Return what is worth knowing but no alarm, a sentence each."""
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
        sentences = ["every neighbour learns how many rows of each class it has, exactly"]
        if self.absent and self.counts is not None and sum(count > 0 for count in self.counts) > 1:
            sentences.append(
                f"{self.absent} classes are absent: every neighbour learns sums and variances of each class"
            )
        if not self.leaf and self.lying is not None:
            sentences.append(
                f"its {self.neighbours} neighbours together, should they share what they hear, find about "
                f"{self.lying:.0%} of its rows"
            )
        return sentences

    @property
    def alarming(self) -> bool:
        """Whether there is an alarm."""
        return bool(self.alarms())

    def badness(self) -> tuple[float, ...]:
        """Return a sort key: the worst has the largest."""
        return (
            float(len(self.alarms())),
            float(self.leaf),
            self.lying or 0.0,
            self.membership or 0.0,
            -(self.rows or 0),
        )

    def to_plain(self) -> dict[str, Any]:
        """Return the exposure as plain values for JSON."""
        derived = ("leaf", "hidden", "absent", "alone", "listening", "lying", "membership", "alarming")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}, "alarms": self.alarms(),
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
