"""Peers that want the others to learn badly: what they say instead of their honest messages.

Attackers know every honest message and act together. φ is a message, S⁰ the start, φ̄ and s the mean and the standard
deviation of the honest messages, entry by entry; `strength` is the number in each:

    flip       S⁰ − 1·(φ − S⁰)           what was learned, turned round
    scale      10·φ                       breaks the class sums
    noise      φ̄ + 1·noise               noise as large as what was learned; keeps every invariant
    swap       φ̄ with the classes in reverse order
    mixswap    0.6 φ̄ + 0.4 swap          a lie that is half true
    label      honest code on rows whose labels are reversed
    alie       φ̄ − 1.5·s                 a little is enough (Baruch and others, 2019), with class sums kept
    honest     φ                          no lie in the rounds: see `report`
    dissensus  φ_v − 1.5·Σ_u a_vu (φ_u − φ_v) / Σ_b a_vb
                                          to each receiver v what undoes its honest neighbours u, shared among the
                                          attackers b (He and others, 2022)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from peerbayes.arguments import number, one_of, refusal, share
from peerbayes.false_reports import REPORTS
from peerbayes.invariants import Invariants
from peerbayes.topologies.links import only, row_sums, rows_of

# What `strength` is unless somebody says otherwise; those without a number have none.
KINDS: dict[str, float | None] = {
    "flip": 1.0, "scale": 10.0, "noise": 1.0, "swap": None, "mixswap": 0.4, "label": None, "alie": 1.5,
    "dissensus": 1.5, "honest": None,
}  # fmt: skip

ATTACK_STREAM = 5  # sets attackers and their noise apart from other random numbers of the same seed


@dataclass(frozen=True)
class Attack:
    """Some peers, drawn at random, say what harms the others.

    kind      what they say: "flip", "scale", "noise", "swap", "mixswap", "label", "alie", "dissensus" or
              "honest"
    fraction  their share of all peers, from 0 to below 1; at least one, unless it is 0
    strength  the number in what they say; None: the usual one of each kind
    report    what they lie about before the first round: "rows", "mean", "spread", "start" or "all" (see
              `false_reports`); None: nothing
    allowed   whether these lies are no larger than robust peers let pass
    """

    kind: str
    fraction: float = 0.1
    strength: float | None = None
    report: str | None = None
    allowed: bool = False

    def __post_init__(self) -> None:
        one_of("the attack", self.kind, tuple(KINDS))
        fraction = share("the attack's fraction", self.fraction, "a share of the peers, from 0 to below 1")
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
    def of(cls, given: Any) -> Attack | None:
        """An attack as it is `given`: a value, its kind, a table of its fields, or None."""
        if given is None or isinstance(given, cls):
            return given
        if isinstance(given, str):
            return cls(given)
        fields = cls.__dataclass_fields__
        if not isinstance(given, Mapping) or "kind" not in given or not set(given) <= set(fields):
            raise refusal("the attack", given, f"its kind, or a table of {', '.join(fields)}")
        return cls(**given)

    def __str__(self) -> str:
        return " ".join(
            f"{name}={value}" for name, value in asdict(self).items() if value not in (None, False)
        )

    def attackers(self, nodes: int, seed: int) -> np.ndarray:
        """Who they are of so many `nodes`, drawn from the `seed`: sorted numbers of peers."""
        count = max(1, round(self.fraction * nodes)) if self.fraction else 0
        drawn = np.random.default_rng([seed, ATTACK_STREAM]).choice(
            nodes, min(count, nodes - 1), replace=False
        )
        return np.sort(drawn)

    def messages(
        self,
        honest: np.ndarray,
        attackers: np.ndarray,
        mixing: csr_array,
        known: Invariants,
        seed: int,
        turn: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """What is said in a round, and which of it goes over each link.

        honest     [N, C, K] what everybody would say
        attackers  who says something else
        mixing     [N, N] the weights that receivers mix with
        known      the start and the invariants
        seed       of their random numbers, with the round
        turn       the round
        Returns messages [M, C, K], everybody's honest one first, and the place [E] of the one that each stored entry of
        `mixing` stands for.
        """
        places, receivers = mixing.indices.astype(np.int64), rows_of(mixing)
        hostile = np.zeros(len(honest), dtype=bool)
        hostile[attackers] = True
        false = hostile[mixing.indices] & ~hostile[receivers]  # among themselves attackers tell the truth
        if self.kind in ("label", "honest") or not false.any():
            return honest, places
        if self.kind == "dissensus":
            victims, which = np.unique(receivers[false], return_inverse=True)
            fair = ~hostile[mixing.indices] & (receivers != mixing.indices)
            said = self._apart(honest, victims, only(mixing, fair), only(mixing, false))
        else:
            which = np.searchsorted(attackers, mixing.indices[false])
            said = self._said(honest, attackers, known, np.random.default_rng([seed, ATTACK_STREAM, turn]))
        places[false] = len(honest) + which
        return np.concatenate([honest, said]), places

    def _said(
        self, honest: np.ndarray, attackers: np.ndarray, known: Invariants, rng: np.random.Generator
    ) -> np.ndarray:
        """What each attacker says to everybody: [attackers, C, K]."""
        strength = self._strength
        if self.kind == "flip":
            return known.centre - strength * (honest[attackers] - known.centre)
        if self.kind == "scale":
            return strength * honest[attackers]
        others = np.delete(honest, attackers, axis=0)
        mean, shape = others.mean(axis=0), (attackers.size, *honest.shape[1:])
        if self.kind == "noise":
            size = np.sqrt(((others - known.centre) ** 2).mean(axis=(0, 1)))  # [K]
            return mean + known.projected(strength * size * rng.standard_normal(shape))
        if self.kind == "alie":
            return np.broadcast_to(mean - known.projected(strength * others.std(axis=0)), shape)
        share = 1.0 if self.kind == "swap" else strength
        return np.broadcast_to((1.0 - share) * mean + share * mean[::-1], shape)

    def _apart(
        self, honest: np.ndarray, victims: np.ndarray, fair: csr_array, false: csr_array
    ) -> np.ndarray:
        """What all its attackers say to each victim: [victims, C, K]; the weights of honest and of false messages."""
        flat = honest.reshape(len(honest), -1)
        pull = (fair @ flat)[victims] - row_sums(fair)[victims, None] * flat[victims]
        said = flat[victims] - self._strength * pull / row_sums(false)[victims, None]
        return said.reshape(-1, *honest.shape[1:])

    @property
    def _strength(self) -> float:
        usual = KINDS[self.kind] or 0.0
        return usual if self.strength is None else float(self.strength)
