"""What must hold of every honest message of statistics, whoever sent it, and how a mix is put back on it.

Residuals sum to zero over classes and mixing weights to one, so Σ_c S_c never moves; a row of φ has one value in each
discrete column, so cells add up to the class count, and the tables of a Bayesian network agree on what they share. Both
are linear:

    Σ_c S_c = Σ_c S⁰_c   [K]            T S_c = 0   for every class c,   T [Q, K] the ties of a family

A peer's first message is S⁰ + b·R(S⁰), and a row adds at most b_k = max|φ_k| to an entry of R. With `crc` a mix is
convex, so after t steps |S − S⁰| ≤ t·m_v·b_k by induction; `exact` extrapolates, so there it is only unusual to be
beyond twice that, and absurd to be beyond ten times what all rows together could do.

The checks find mistakes, damage and crude attacks. A forger who knows them can pass them: see `combining` and `guard`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from peerbayes.families import BayesNet, Family
from peerbayes.relay import Relay
from peerbayes.strategies import Strategy

# Class sums and cells are conserved; what rounding leaves is far below this share of m⁰.
ROUNDING = 1e-9
ROUNDING_SINGLE = 1e-3  # in float32

# Where growth is not proved (`exact` extrapolates): beyond so many times what is expected a message is unusual, and
# beyond so many times what all rows together can do it is absurd.
UNUSUAL, ABSURD = 2.0, 10.0

# Noise for privacy is within so many standard deviations.
DEVIATIONS = 6.0

# Completed values are not clipped: an honest message may be that many times larger than clipped ones make it.
UNCLIPPED = 100.0

# Ties up to which a mix is put back on them.
MOST_TIES = 1 << 11

REASONS = ("not finite", "absurd magnitude", "class sums", "cell sums", "first message")

TEXTS = {
    "not finite": "NaN or infinity among the numbers",
    "absurd magnitude": "an entry is {:.3g} times what rounds so far can have made",
    "class sums": "class sums are off by {:.3g} times what rounding can do; they never change",
    "cell sums": "counts that must add up to each other are off by {:.3g} times what rounding can do",
    "first message": "an entry has moved {:.3g} times as far as the rows of a peer can move it in one round",
}


class Broken(NamedTuple):
    """Why a message was not sent by an honest peer."""

    reason: str
    detail: str


@dataclass(frozen=True, eq=False)
class Invariants:
    """What is known of honest messages [..., C, K].

    sums      [K] Σ_c of a message's first matrix; further ones sum to zero. None: nothing is known
    mass      m⁰, the scale of rounding
    ties      [Q, K] T S_c = 0 for every class: see `ties_of`
    centre    [C, K] where messages started
    first     [K] how far an entry can be from there in round 1; None: nothing is known
    growth    [K] how much a round can add to an entry of one peer
    farthest  [K] how much a round can add to an entry, whoever adds it
    proved    whether `growth` bounds every honest message
    noise     standard deviation of the noise that a peer adds to each entry in a round; 0: none
    rounding  share of m⁰ that rounding may take
    cells     columns of φ of each table whose cells add up to the class count; `ties` says it as well
    """

    sums: np.ndarray | None
    mass: float
    ties: csr_array
    centre: np.ndarray
    first: np.ndarray | None
    growth: np.ndarray
    farthest: np.ndarray
    proved: bool = False
    noise: float = 0.0
    rounding: float = ROUNDING
    cells: tuple[slice, ...] = ()

    # --- checking --------------------------------------------------------------------------------------

    def departures(self, messages: np.ndarray, turn: int, slack: float = 0.0) -> np.ndarray:
        """By how much of what is allowed each message of a round departs: [M, ..., C, K] -> [5, M], as in `REASONS`.

        Above 1, or NaN, no honest peer can have sent it. Sums may be `slack` more off.
        """
        matrices = math.prod(messages.shape[1:-2])
        parts = messages.reshape(len(messages), matrices, *messages.shape[-2:])
        found = np.zeros((len(REASONS), len(parts)))
        found[0] = np.where(np.isfinite(parts).all(axis=(1, 2, 3)), 0.0, np.inf)
        tolerance = self.rounding * self.mass + slack
        with np.errstate(over="ignore", invalid="ignore"):
            found[1] = self._beyond(parts, self._limit(turn))
            if self.sums is not None:
                sums = parts.sum(axis=2)
                sums[:, 0] -= self.sums
                found[2] = np.abs(sums).max(axis=(1, 2)) / tolerance
            if self.ties.shape[0]:
                flat = parts.reshape(-1, parts.shape[-1])
                untied = np.abs((self.ties @ flat.T).T).max(axis=1)
                found[3] = untied.reshape(len(parts), -1).max(axis=1) / tolerance
            if self.first is not None and turn == 1:
                found[4] = self._beyond(parts[:, :1], self.first + self._noise(1))
        return found

    def reasons(self, messages: np.ndarray, turn: int, slack: float = 0.0) -> np.ndarray:
        """The place in `REASONS` of what first speaks against each message, −1: nothing. [M, ..., C, K] -> [M]."""
        against = ~(self.departures(messages, turn, slack) <= 1.0)  # also where it is NaN
        return np.where(against.any(axis=0), against.argmax(axis=0), -1)

    def broken(self, message: np.ndarray, turn: int, slack: float = 0.0) -> Broken | None:
        """Why a message [..., C, K] of a round is no honest peer's; None: it may be."""
        place = int(self.reasons(message[None], turn, slack)[0])
        if place < 0:
            return None
        reason = REASONS[place]
        departure = float(self.departures(message[None], turn, slack)[place, 0])
        return Broken(reason, TEXTS[reason].format(departure))

    def unusual(self, message: np.ndarray, turn: int) -> bool:
        """Whether a message [..., C, K] that may be honest is larger than any that was ever seen."""
        parts = message.reshape(1, -1, *message.shape[-2:])
        return not self._beyond(parts, UNUSUAL * turn * self.growth + self._noise(turn))[0] <= 1.0

    def _limit(self, turn: int) -> np.ndarray:
        """How far entries of a message of a round can be from the centre: [K]."""
        if self.proved:  # the message of round 1 is the start itself
            return (turn - 1) * self.growth + self._noise(turn)
        return ABSURD * (turn + 1) * self.farthest + self._noise(turn)

    def _noise(self, turn: int) -> float:
        return DEVIATIONS * self.noise * float(np.sqrt(turn))

    def _beyond(self, parts: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """The largest |S − centre| / limit over entries: [M, P, C, K], [K] -> [M]; other parts are centred at 0."""
        allowed = limit + self.rounding * self.mass
        worst = np.abs(parts[:, 0] - self.centre).max(axis=1)
        for part in range(1, parts.shape[1]):
            worst = np.maximum(worst, np.abs(parts[:, part]).max(axis=1))
        return (worst / allowed).max(axis=1)

    # --- going back ------------------------------------------------------------------------------------

    def settled(self, stats: np.ndarray) -> np.ndarray:
        """The nearest statistics that obey, in place where possible: [..., C, K] -> [..., C, K].

        Rounding in `exact` grows with the rounds (a double root at 1). A peer that settles its mix before it learns
        from it sends messages that are off by the rounding of one round, whatever the others rounded.
        """
        if self.sums is not None:
            stats -= (stats.sum(axis=-2, keepdims=True) - self.sums) / stats.shape[-2]
        return self._tied(stats)

    def projected(self, change: np.ndarray) -> np.ndarray:
        """The nearest change that keeps what obeys obeying: [..., C, K] -> [..., C, K]."""
        change = change.copy()
        if self.sums is not None:
            change -= change.mean(axis=-2, keepdims=True)
        return self._tied(change)

    def _tied(self, stats: np.ndarray) -> np.ndarray:
        """Less what violates the ties: S − S Tᵀ(T Tᵀ)⁺T. Class sums stay where they are, since theirs obey the ties."""
        if 0 < self.ties.shape[0] <= MOST_TIES:
            flat = stats.reshape(-1, stats.shape[-1])
            stats -= ((self.ties @ flat.T).T @ self._back).reshape(stats.shape)
        return stats

    @cached_property
    def _back(self) -> np.ndarray:
        """(T Tᵀ)⁺T: [Q, K]."""
        gram = (self.ties @ self.ties.T).toarray()
        return np.asarray((self.ties.T @ np.linalg.pinv(gram, hermitian=True)).T)


def invariants_of(
    strategy: Strategy | Relay,
    family: Family,
    start: np.ndarray,
    whole: Sequence[bool],
    gapped: bool,
    rows: float,
    most: float,
    mass: float,
    steps: int,
    limit: float,
    even: bool,
    rounding: float = ROUNDING,
) -> Invariants:
    """What honest messages of a strategy obey.

    strategy  how peers learn
    family    with its layout
    start     [C, K] S⁰ of all peers; of consensus-ml each has its own
    whole     which discrete columns have a value in every row of everybody
    gapped    whether values are missing that the family completes
    rows      m, the weight of all rows
    most      the weight of the rows that one peer may have
    mass      m⁰
    steps     local steps between two messages
    limit     where standardised values end
    even      whether every class is as likely as any other under the start, so that |y − p| ≤ 1 − 1/C
    """
    known = counted_columns(family, whole)
    bounds = bounds_of(family, limit)
    if gapped:
        bounds = np.full(family.size, UNCLIPPED * max(1.0, limit**2))
    bounds *= getattr(strategy, "rate", 1.0)
    apart = strategy.name in ("relay", "dsgd", "consensus-ml")  # messages that do not begin with the start
    sums = start.sum(axis=0)
    if apart:
        sums = np.zeros(family.size)
    boost = getattr(strategy, "boost", 1.0)
    uneven = (1.0 - 1.0 / len(start) if even else 1.0) + (steps - 1)
    first = None if apart or gapped else boost * most * uneven * bounds
    return Invariants(
        sums=None if gapped or strategy.name == "consensus-ml" else sums,
        mass=mass,
        ties=ties_of(family, known),
        centre=np.zeros_like(start) if apart else start,
        first=np.zeros(family.size) if strategy.name == "crc" else first,
        growth=boost * steps * most * bounds,
        farthest=boost * steps * rows * bounds,
        proved=strategy.name == "crc" and not gapped,
        rounding=rounding,
        cells=tuple(cells for cells, columns in family.tabled() if all(known[column] for column in columns)),
    )


def counted_columns(family: Family, whole: Sequence[bool]) -> list[bool]:
    """Which discrete columns count every row: those that are `whole`, and those that a family completes."""
    linked = getattr(family, "linked", np.zeros(family.continuous + len(whole), dtype=bool))[
        family.continuous :
    ]
    return [bool(link) or there for link, there in zip(linked, whole, strict=True)]


def bounds_of(family: Family, limit: float) -> np.ndarray:
    """b_k = max|φ_k| of rows whose continuous values are within ±limit: [K]."""
    bounds = np.full(family.size, max(1.0, limit**2))
    corner = np.full((1, family.continuous), float(limit))
    bounds[: family.dense_size] = np.maximum(np.abs(family.dense(corner)[0]), 0.0)
    for cells, _ in family.tabled():
        bounds[cells] = 1.0
    return bounds


def ties_of(family: Family, known: Sequence[bool]) -> csr_array:
    """T [Q, K] with T φ(x) = 0 for every row: counts that add up to each other.

    The cells of a discrete column add up to the class count. In a Bayesian network a column's counts, summed over its
    other parents and itself, are those of each discrete parent and what the two have in common. `known`: which discrete
    columns have a value in every row, or are completed.
    """
    rows: list[tuple[np.ndarray, np.ndarray]] = []  # features that are added, and that are taken off
    for cells, columns in family.tabled():
        if all(known[column] for column in columns):
            rows.append((np.arange(cells.start, cells.stop), np.array([0])))
    if isinstance(family, BayesNet):
        rows += _shared(family, known)
    places = [np.concatenate(pair) for pair in rows]
    signs = [np.repeat([1.0, -1.0], [len(more), len(less)]) for more, less in rows]
    ends = np.cumsum([0, *(len(each) for each in places)])
    if not rows:
        return csr_array((0, family.size))
    found = csr_array((np.concatenate(signs), np.concatenate(places), ends), shape=(len(rows), family.size))
    found.sum_duplicates()
    return found


def _shared(family: BayesNet, known: Sequence[bool]) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each column and discrete parent: counts of what both blocks hold, once from either."""
    blocks = {column: _counts(family, column, *rest) for column, *rest in family.blocks}
    found = []
    for column, (axes, features) in blocks.items():
        for parent in family.split(column)[1]:
            above, held = blocks[family.continuous + parent]
            both = [axis for axis in above if axis in axes]
            if all(known[axis] for axis in {*axes, *above}):
                found += list(zip(_summed(features, axes, both), _summed(held, above, both), strict=True))
    return found


def _counts(
    family: BayesNet, column: int, place: int, configurations: int, entries: int
) -> tuple[tuple[int, ...], np.ndarray]:
    """The discrete columns that a block counts, and where: features as an array with an axis for each."""
    discrete = family.split(column)[1]
    sizes = tuple(family.cardinalities[parent] for parent in discrete)
    every = place + np.arange(configurations * entries).reshape(*sizes, entries)
    if column >= family.continuous:
        return (*discrete, column - family.continuous), every
    return discrete, every[..., 0]  # the first of a continuous column's moments counts rows


def _summed(features: np.ndarray, axes: Sequence[int], kept: Sequence[int]) -> list[np.ndarray]:
    """The features that are added up for each value of the kept columns together."""
    moved = np.moveaxis(features, [list(axes).index(axis) for axis in kept], range(len(kept)))
    sizes = moved.shape[: len(kept)]
    return [moved[value].ravel() for value in itertools.product(*(range(size) for size in sizes))]
