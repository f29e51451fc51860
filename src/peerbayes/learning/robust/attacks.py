"""Attacks of members, before the first round and in every round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from peerbayes.data.arguments import number, one_of, refusal
from peerbayes.learning.robust.invariants import Invariants
from peerbayes.network.mixing import only, row_sums, rows_of

# --- members that lie before the first round, while rows, units and the start are agreed on
#     rows     10¹² rows
#     mean     Σx + 2⁶⁰ of every continuous column
#     spread   Σ(x − mean)² = 2⁸⁰ of every continuous column; where units come of votes, one for as much
#     start    a million times the own statistics, with the classes in reverse order
#     all      all of these
#
# `allowed`: the same as far as members with bounds do not refuse it (see `member_bounds`). A liar then votes for as
# much as there is, reports the largest square that there is, counts for as many rows as the links to its honest
# neighbours leave room for, also in the name of members whose sums pass through it, and with `start` or `all` has all
# of them at the end of every column, as many of each class.

REPORTS = ("rows", "mean", "spread", "start", "all")

ROWS, SHIFT, SQUARES, TIMES = 1e12, 2.0**60, 2.0**80, 1e6


# --- attacks: the false messages that attackers send instead of their honest ones
# Attackers know every honest message and act together. φ is a message, S⁰ the start, φ̄ and s the mean and the
# standard deviation of the honest messages, entry by entry, and d̃ the median of ‖φ − φ̄‖; `strength` is the number
# in each:
#
#     flip       S⁰ − 1·(φ − S⁰)           what was learned, reversed
#     scale      10·φ                       breaks the class sums
#     noise      φ̄ + 1·noise               noise as large as what was learned; keeps every invariant
#     swap       φ̄ with the classes in reverse order
#     mixswap    0.6 φ̄ + 0.4 swap          a lie that is half true
#     label      honest code on rows whose labels are reversed
#     poison     honest code on poisoned rows: the quarter with the longest φ(x), four times each, with reversed labels
#     alie       φ̄ − 1.5·s                 a little is enough (Baruch and others, 2019), with class sums kept
#     honest     φ                          no false message in the rounds: see `report`
#     dissensus  φ_v − 1.5·Σ_u a_vu (φ_u − φ_v) / Σ_b a_vb
#                                           to each receiver v what undoes its honest neighbours u, shared among the
#                                           attackers b (He and others, 2022)
#     stealth    φ̄ + 3·d̃ u                 u the unit vector from φ̄ towards swap: as far away as an honest peer may be
#     suppress   φ̄, and the rarest class r loses 1·φ̄_r to the others, in equal shares, until nothing of it is left
#     merge      φ̄, and the two most frequent classes move the share 1 of the way to their mean: indistinguishable
#     ipm        S⁰ − 0.5·(φ̄ − S⁰)         the mean of what was learned, reversed and small: a negative inner
#                                           product with it (Xie and others, 2020)
#     optimise   to each receiver the message that does most harm under its rules: see `adaptive`

# The default `strength`; kinds with None have no strength.
KINDS: dict[str, float | None] = {
    "flip": 1.0, "scale": 10.0, "noise": 1.0, "swap": None, "mixswap": 0.4, "label": None, "alie": 1.5,
    "dissensus": 1.5, "honest": None, "stealth": 3.0, "suppress": 1.0, "merge": 1.0, "ipm": 0.5, "poison": None,
    "optimise": None,
}  # fmt: skip

# Kinds that run honest code on altered rows: they send what they learned, and screen others as honest peers do.
ON_OWN_ROWS = ("label", "poison")

# Kinds that send in the rounds what they learned.
HONEST_CODE = (*ON_OWN_ROWS, "honest")

# Poison: one row in so many is used, those with the longest φ(x), repeated until there are as many as before.
LOUDEST = 4

ATTACK_STREAM = 5  # the random stream of attackers and their noise, separate from others of the same seed


@dataclass(frozen=True)
class Attack:
    """An attack by some peers, drawn at random, which send false messages.

    kind      what they send: "flip", "scale", "noise", "swap", "mixswap", "label", "alie", "dissensus", "stealth",
              "suppress", "merge", "ipm", "poison", "optimise" or "honest"
    fraction  their share of all peers, from 0 to below 1; at least one, unless it is 0
    strength  the number in the formula of the kind; None: its default
    report    what they lie about before the first round: "rows", "mean", "spread", "start" or "all" (see
              `false_reports`); None: nothing
    allowed   whether these lies stay within what robust peers accept
    """

    kind: str
    fraction: float = 0.1
    strength: float | None = None
    report: str | None = None
    allowed: bool = False

    def __post_init__(self) -> None:
        one_of("the attack", self.kind, tuple(KINDS))
        expected = "a share of the peers, from 0 to below 1"
        fraction = number("the attack's fraction", self.fraction, expected, least=0.0, below=1.0)
        object.__setattr__(self, "fraction", fraction)
        if self.report is not None:
            one_of("the attack's report", self.report, REPORTS)
        if not isinstance(self.allowed, bool) or (self.allowed and self.report is None):
            raise refusal("the attack's allowed", self.allowed, "true or false, beside a report")
        if self.strength is None:
            return
        if KINDS[self.kind] is None:
            raise refusal("the attack's strength", self.strength, "nothing: this attack has none")
        strength = number("the attack's strength", self.strength, "a positive number", above=0.0)
        object.__setattr__(self, "strength", strength)

    @classmethod
    def of(cls, value: Any) -> Attack | None:
        """Return the attack that `value` stands for: an Attack, its kind, a table of its fields, or None."""
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(value)
        fields = cls.__dataclass_fields__
        if not isinstance(value, Mapping) or "kind" not in value or not set(value) <= set(fields):
            raise refusal("the attack", value, f"its kind, or a table of {', '.join(fields)}")
        return cls(**value)

    def __str__(self) -> str:
        return " ".join(
            f"{name}={value}" for name, value in asdict(self).items() if value not in (None, False)
        )

    def attackers(self, peers: int, seed: int) -> np.ndarray:
        """Draw the attackers among this many peers from the `seed`: sorted indices of peers."""
        count = max(1, round(self.fraction * peers)) if self.fraction else 0
        drawn = np.random.default_rng([seed, ATTACK_STREAM]).choice(
            peers, min(count, peers - 1), replace=False
        )
        return np.sort(drawn)

    def messages(
        self,
        honest: np.ndarray,
        attackers: np.ndarray,
        mixing: csr_array,
        invariants: Invariants,
        seed: int,
        round_index: int,
        worst: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the messages of a round, honest and false, and which of them goes over each link.

        honest       [N, C, K] the honest message of every peer
        attackers    the peers that send false messages
        mixing       [N, N] the weights that receivers mix with
        invariants   the start and the invariants
        seed         of their random numbers, with the round
        round_index  the round
        worst        for "optimise": victims [V] -> the most harmful message to each [V, C, K]
        Returns messages [M, C, K], all honest ones first, and for each stored entry of `mixing` the index [E] of its
        message.
        """
        message_index, receivers = mixing.indices.astype(np.int64), rows_of(mixing)
        hostile = np.zeros(len(honest), dtype=bool)
        hostile[attackers] = True
        false = hostile[mixing.indices] & ~hostile[receivers]  # attackers send each other honest messages
        if self.kind in HONEST_CODE or not false.any():
            return honest, message_index
        if self.kind in ("dissensus", "optimise"):
            victims, which = np.unique(receivers[false], return_inverse=True)
            fair = ~hostile[mixing.indices] & (receivers != mixing.indices)
            if self.kind == "optimise":
                assert worst is not None, "an optimising attacker must know the rules"
                false_messages = worst(victims)
            else:
                false_messages = self._dissensus(honest, victims, only(mixing, fair), only(mixing, false))
        else:
            which = np.searchsorted(attackers, mixing.indices[false])
            false_messages = self._false_messages(
                honest, attackers, invariants, np.random.default_rng([seed, ATTACK_STREAM, round_index])
            )
        message_index[false] = len(honest) + which
        return np.concatenate([honest, false_messages]), message_index

    def _false_messages(
        self, honest: np.ndarray, attackers: np.ndarray, invariants: Invariants, rng: np.random.Generator
    ) -> np.ndarray:
        """Return the message that each attacker sends to everybody: [attackers, C, K]."""
        strength = self._strength
        if self.kind == "flip":
            return invariants.centre - strength * (honest[attackers] - invariants.centre)
        if self.kind == "scale":
            return strength * honest[attackers]
        others = np.delete(honest, attackers, axis=0)
        mean, shape = others.mean(axis=0), (attackers.size, *honest.shape[1:])
        if self.kind == "noise":
            size = np.sqrt(((others - invariants.centre) ** 2).mean(axis=(0, 1)))  # [K]
            return mean + invariants.projected(strength * size * rng.standard_normal(shape))
        if self.kind == "alie":
            return np.broadcast_to(mean - invariants.projected(strength * others.std(axis=0)), shape)
        return np.broadcast_to(mean + self._lie(mean, others, invariants), shape)

    def _lie(self, mean: np.ndarray, others: np.ndarray, invariants: Invariants) -> np.ndarray:
        """Return what is added to the mean of the honest messages `others`: [C, K]."""
        strength = self._strength
        if self.kind == "stealth":
            typical = float(np.median(np.linalg.norm((others - mean).reshape(len(others), -1), axis=1)))
            return strength * typical * unit(invariants.projected(swapped(mean)))
        if self.kind == "suppress":
            return strength * suppressed(mean, int(np.argmin(mean[:, 0])))
        if self.kind == "merge":
            return strength * merged(mean, *most_frequent(mean))
        if self.kind == "ipm":
            return (1.0 + strength) * (invariants.centre - mean)
        return (1.0 if self.kind == "swap" else strength) * swapped(mean)

    def _dissensus(
        self, honest: np.ndarray, victims: np.ndarray, fair: csr_array, false: csr_array
    ) -> np.ndarray:
        """Return the message to each victim [victims, C, K], from the weights of its `fair` and `false` messages."""
        flat = honest.reshape(len(honest), -1)
        pull = (fair @ flat)[victims] - row_sums(fair)[victims, None] * flat[victims]
        messages = flat[victims] - self._strength * pull / row_sums(false)[victims, None]
        return messages.reshape(-1, *honest.shape[1:])

    @property
    def _strength(self) -> float:
        usual = KINDS[self.kind] or 0.0
        return usual if self.strength is None else float(self.strength)


# --- directions: what is added to statistics [C, K] ------------------------------------------------------------


def swapped(stats: np.ndarray) -> np.ndarray:
    """Return the change to the statistics with the classes in reverse order."""
    return stats[::-1] - stats


def suppressed(stats: np.ndarray, rare: int) -> np.ndarray:
    """Return the change that shares one class's rows among the other classes; class sums and ties are unchanged."""
    change = np.broadcast_to(stats[rare] / max(1, len(stats) - 1), stats.shape).copy()
    change[rare] = -stats[rare]
    return change


def merged(stats: np.ndarray, first: int, second: int) -> np.ndarray:
    """Return the change that replaces two classes by their mean."""
    change = np.zeros_like(stats)
    change[first] = (stats[second] - stats[first]) / 2
    change[second] = -change[first]
    return change


def most_frequent(stats: np.ndarray) -> tuple[int, int]:
    """Return the two classes with the largest counts."""
    second, first = np.argsort(stats[:, 0], kind="stable")[-2:]
    return int(first), int(second)


def unit(change: np.ndarray) -> np.ndarray:
    """Return the change scaled to length 1; a zero change stays 0."""
    length = float(np.linalg.norm(change))
    return change / length if length else change


def poisoned(lengths: np.ndarray) -> np.ndarray:
    """Return the rows a poisoner learns from: the quarter with the longest φ(x), repeated. [n] -> [n] row indices.

    lengths  ‖φ(x)‖ of its rows: how far a row can move the statistics
    """
    loudest = np.argsort(-lengths, kind="stable")[: -(-lengths.size // LOUDEST)]
    return np.resize(loudest, lengths.size)
