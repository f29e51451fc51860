"""Invariants of every honest message of statistics, checks of them, and the projection of a mix onto them.

Residuals sum to zero over classes and mixing weights to one, so Σ_c S_c never moves; a row of φ has one value in each
discrete column, so cells add up to the class count, and the tables of a Bayesian network agree on what they share. Both
are linear:

    Σ_c S_c = Σ_c S⁰_c   [K]            T S_c = 0   for every class c,   T [Q, K] the ties of a family

A peer's first message is S⁰ + b·R(S⁰), and a row adds at most b_k = max|φ_k| to an entry of R. With `crc` a mix is
convex, so after t steps |S − S⁰| ≤ t·m_v·b_k by induction; `exact` extrapolates, so there it is only unusual to be
beyond twice that, and absurd to be beyond ten times what all rows together could do.

The checks find mistakes, damage and crude attacks. A forger who knows them can pass them: see `rules`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from peerbayes.learning.few_bytes import LARGEST
from peerbayes.learning.relay import Relay
from peerbayes.learning.strategies import Strategy, declared
from peerbayes.model.families import Aode, BayesNet, Family

# Class sums and cells are conserved; rounding errors are far below this share of m⁰.
ROUNDING = 1e-9
ROUNDING_SINGLE = 1e-3  # in float32

# Where growth is not proved (`exact` extrapolates): beyond so many times what is expected a message is unusual, and
# beyond so many times what all rows together can do it is absurd.
UNUSUAL, ABSURD = 2.0, 10.0

# Privacy noise is assumed to stay within this many standard deviations.
DEVIATIONS = 6.0

# Completed values are not clipped: an honest message may be this many times larger than with clipped values.
UNCLIPPED = 100.0

# The largest number of ties for which a mix is projected onto them.
MOST_TIES = 1 << 11

REASONS = ("not finite", "absurd magnitude", "class sums", "cell sums", "first message")

TEXTS = {
    "not finite": "NaN or infinity among the numbers",
    "absurd magnitude": "an entry is {:.3g} times the largest value possible after the rounds so far",
    "class sums": "class sums, which never change, are off by {:.3g} times the rounding tolerance",
    "cell sums": "counts that must add up to each other are off by {:.3g} times the rounding tolerance",
    "first message": "an entry has moved {:.3g} times as far as one peer's rows can move it in one round",
}


class Violation(NamedTuple):
    """Why a message was not sent by an honest peer."""

    reason: str
    detail: str


@dataclass(frozen=True, eq=False)
class Invariants:
    """Bounds and conserved sums that honest messages [..., C, K] satisfy.

    sums      [K] Σ_c of a message's first matrix; further ones sum to zero. None: unknown
    mass      m⁰, the scale of rounding
    ties      [Q, K] T S_c = 0 for every class: see `ties_of`
    centre    [C, K] where messages started
    first     [K] how far an entry can be from there in round 1; None: unknown
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

    def rounded(self, conserved: bool) -> Invariants:
        """Return what is left of the invariants once messages are rounded entry by entry: cells do not add up any more.

        conserved  whether rounding conserves class sums. An entry may be off by s/2 < max/127 of its column, and the
                   last class by as much as the others together
        """
        columns, margin = self.centre.shape[-1], 1.0 + len(self.centre) / LARGEST["int8"]
        return replace(
            self,
            sums=self.sums if conserved else None,
            ties=csr_array((0, columns)),
            first=None if self.first is None else margin * self.first,
            growth=margin * self.growth,
            cells=(),
        )

    # --- checking --------------------------------------------------------------------------------------

    def departures(self, messages: np.ndarray, round_index: int, slack: float = 0.0) -> np.ndarray:
        """Return each message's departure relative to the allowed one: [M, ..., C, K] -> [5, M], in order of `REASONS`.

        Above 1, or NaN, no honest peer can have sent it. `slack` is added to the tolerance of sums.
        """
        per_message = math.prod(messages.shape[1:-2])
        blocks = messages.reshape(len(messages), per_message, *messages.shape[-2:])
        ratios = np.zeros((len(REASONS), len(blocks)))
        ratios[0] = np.where(np.isfinite(blocks).all(axis=(1, 2, 3)), 0.0, np.inf)
        tolerance = self.rounding * self.mass + slack
        with np.errstate(over="ignore", invalid="ignore"):
            ratios[1] = self._beyond(blocks, self._limit(round_index))
            if self.sums is not None:
                sums = blocks.sum(axis=2)
                sums[:, 0] -= self.sums
                ratios[2] = np.abs(sums).max(axis=(1, 2)) / tolerance
            if self.ties.shape[0]:
                flat = blocks.reshape(-1, blocks.shape[-1])
                untied = np.abs((self.ties @ flat.T).T).max(axis=1)
                ratios[3] = untied.reshape(len(blocks), -1).max(axis=1) / tolerance
            if self.first is not None and round_index == 1:
                ratios[4] = self._beyond(blocks[:, :1], self.first + self._noise(1))
        return ratios

    def reasons(self, messages: np.ndarray, round_index: int, slack: float = 0.0) -> np.ndarray:
        """Return the index in `REASONS` of the first check that each message fails, −1: none. [M, ..., C, K] -> [M]."""
        against = ~(self.departures(messages, round_index, slack) <= 1.0)  # also where it is NaN
        return np.where(against.any(axis=0), against.argmax(axis=0), -1)

    def violation(self, message: np.ndarray, round_index: int, slack: float = 0.0) -> Violation | None:
        """Return why no honest peer can have sent a message [..., C, K] in a round; None: one can."""
        index = int(self.reasons(message[None], round_index, slack)[0])
        if index < 0:
            return None
        reason = REASONS[index]
        departure = float(self.departures(message[None], round_index, slack)[index, 0])
        return Violation(reason, TEXTS[reason].format(departure))

    def unusual(self, message: np.ndarray, round_index: int) -> bool:
        """Return whether a message [..., C, K] that may be honest is larger than any observed in practice."""
        blocks = message.reshape(1, -1, *message.shape[-2:])
        limit = UNUSUAL * round_index * self.growth + self._noise(round_index)
        return not self._beyond(blocks, limit)[0] <= 1.0

    def examined(self, message: np.ndarray, round_index: int) -> tuple[Violation | None, bool]:
        """Return the `violation` of a message [..., C, K] in a round, and whether it is `unusual`, in few passes.

        Nearly all messages are far within all bounds, which one pass over distances and one over sums show.
        """
        blocks = message.reshape(1, -1, *message.shape[-2:])
        margin, noise = self.rounding * self.mass, self._noise(round_index)
        with np.errstate(over="ignore", invalid="ignore"):
            worst = self._distances(blocks)[0]
            finite = np.isfinite(worst).all()  # then all numbers are
            usual = finite and (worst < UNUSUAL * round_index * self.growth + noise + margin).all()
            fine = (
                finite
                and not self.ties.shape[0]
                and not (self.first is not None and round_index == 1)
                and (worst < self._limit(round_index) + margin).all()
                and self._sums_hold(blocks[0], margin)
            )
        return (
            None if fine else self.violation(message, round_index),
            not usual and self.unusual(message, round_index),
        )

    def _sums_hold(self, blocks: np.ndarray, tolerance: float) -> bool:
        """Return whether class sums are what they must be: [P, C, K]."""
        if self.sums is None:
            return True
        sums = blocks.sum(axis=1)
        sums[0] -= self.sums
        return bool((np.abs(sums) < tolerance).all())

    def _limit(self, round_index: int) -> np.ndarray:
        """Return how far entries of a message of a round can be from the centre: [K]."""
        if self.proved:  # the message of round 1 is the start itself
            return (round_index - 1) * self.growth + self._noise(round_index)
        return ABSURD * (round_index + 1) * self.farthest + self._noise(round_index)

    def _noise(self, round_index: int) -> float:
        """Return the largest sum of privacy noise in an entry up to a round."""
        return DEVIATIONS * self.noise * float(np.sqrt(round_index))

    def _beyond(self, blocks: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Return max |S − centre| / limit: [M, P, C, K], [K] -> [M]; blocks after the first have centre 0."""
        allowed = limit + self.rounding * self.mass
        return (self._distances(blocks) / allowed).max(axis=1)

    def _distances(self, blocks: np.ndarray) -> np.ndarray:
        """Return max_c |S − centre| of each column: [M, P, C, K] -> [M, K]; blocks after the first have centre 0."""
        distance = blocks[:, 0] - self.centre
        worst = np.abs(distance, out=distance).max(axis=1)
        for block in range(1, blocks.shape[1]):
            worst = np.maximum(worst, np.abs(blocks[:, block]).max(axis=1))
        return worst

    # --- projection ------------------------------------------------------------------------------------

    def settled(self, stats: np.ndarray) -> np.ndarray:
        """Return the nearest statistics that satisfy the invariants, in place if possible: [..., C, K] -> [..., C, K].

        Rounding in `exact` grows with the rounds (a double root at 1). A peer that settles its mix before it learns
        from it sends messages that are off by the rounding of one round, whatever the others rounded.
        """
        if self.sums is not None:
            stats -= (stats.sum(axis=-2, keepdims=True) - self.sums) / stats.shape[-2]
        return self._tied(stats)

    def projected(self, change: np.ndarray) -> np.ndarray:
        """Return the nearest change that preserves the invariants: [..., C, K] -> [..., C, K]."""
        change = change.copy()
        if self.sums is not None:
            change -= change.mean(axis=-2, keepdims=True)
        return self._tied(change)

    def _tied(self, stats: np.ndarray) -> np.ndarray:
        """Return S − S Tᵀ(T Tᵀ)⁺T, which satisfies the ties; class sums, which satisfy them already, stay."""
        if 0 < self.ties.shape[0] <= MOST_TIES:
            flat = stats.reshape(-1, stats.shape[-1])
            stats -= ((self.ties @ flat.T).T @ self._projection).reshape(stats.shape)
        return stats

    @cached_property
    def _projection(self) -> np.ndarray:
        """(T Tᵀ)⁺T: [Q, K]."""
        gram = (self.ties @ self.ties.T).toarray()
        return np.asarray((self.ties.T @ np.linalg.pinv(gram, hermitian=True)).T)


def invariants_of(
    strategy: Strategy | Relay,
    family: Family,
    start: np.ndarray,
    complete: Sequence[bool],
    gapped: bool,
    rows: float,
    largest: float,
    mass: float,
    steps: int,
    limit: float,
    even: bool,
    rounding: float = ROUNDING,
) -> Invariants:
    """Return the invariants of a strategy's honest messages.

    strategy  how peers learn
    family    with its layout
    start     [C, K] S⁰ of all peers; of consensus-ml each has its own
    complete  which discrete columns have a value in every row of every peer
    gapped    whether values are missing that the family completes
    rows      m, the weight of all rows
    largest   the largest weight of the rows of one peer
    mass      m⁰
    steps     local steps between two messages
    limit     the largest standardised value
    even      whether every class is as likely as any other under the start, so that |y − p| ≤ 1 − 1/C
    """
    counted = counted_columns(family, complete)
    bounds = bounds_of(family, limit)
    if gapped:
        bounds = np.full(family.size, UNCLIPPED * max(1.0, limit**2))
    bounds *= getattr(strategy, "rate", 1.0)
    declaration = declared(strategy)
    zero_centred = not declaration.contains_start
    sums = start.sum(axis=0)
    if zero_centred:
        sums = np.zeros(family.size)
    boost = getattr(strategy, "boost", 1.0)
    uneven = (1.0 - 1.0 / len(start) if even else 1.0) + (steps - 1)
    first = None if zero_centred or gapped else boost * largest * uneven * bounds
    return Invariants(
        sums=None if gapped or not declaration.conserves else sums,
        mass=mass,
        ties=ties_of(family, counted),
        centre=np.zeros_like(start) if zero_centred else start,
        first=np.zeros(family.size) if declaration.convex else first,
        growth=boost * steps * largest * bounds,
        farthest=boost * steps * rows * bounds,
        proved=declaration.convex and not gapped,
        rounding=rounding,
        cells=tuple(
            cells for cells, columns in family.tabled() if all(counted[column] for column in columns)
        ),
    )


def counted_columns(family: Family, complete: Sequence[bool]) -> list[bool]:
    """Return which discrete columns count every row: the `complete` ones, and those that a family completes."""
    linked = getattr(family, "linked", np.zeros(family.continuous + len(complete), dtype=bool))[
        family.continuous :
    ]
    return [bool(link) or is_complete for link, is_complete in zip(linked, complete, strict=True)]


def bounds_of(family: Family, limit: float) -> np.ndarray:
    """Return b_k = max|φ_k| of rows whose continuous values are within ±limit: [K]."""
    bounds = np.full(family.size, max(1.0, limit**2))
    corner = np.full((1, family.continuous), float(limit))
    bounds[: family.dense_size] = np.maximum(np.abs(family.dense(corner)[0]), 0.0)
    for cells, _ in family.tabled():
        bounds[cells] = 1.0
    return bounds


def ties_of(family: Family, counted: Sequence[bool]) -> csr_array:
    """Return T [Q, K] with T φ(x) = 0 for every row: counts that add up to each other.

    The cells of a discrete column, or of a pair of them, add up to the class count, those of a pair also to the cells
    of its columns. In a Bayesian network a column's counts, summed over its
    other parents and itself, equal those of each discrete parent over the columns that both have. `counted`: which
    discrete columns have a value in every row, or are completed.
    """
    rows: list[tuple[np.ndarray, np.ndarray]] = []  # features that are added, and that are subtracted
    for cells, columns in family.tabled():
        if all(counted[column] for column in columns):
            rows.append((np.arange(cells.start, cells.stop), np.array([0])))
    if isinstance(family, BayesNet):
        rows += _shared_counts(family, counted)
    if isinstance(family, Aode):
        rows += _pair_margins(family, counted)
    indices = [np.concatenate(pair) for pair in rows]
    signs = [np.repeat([1.0, -1.0], [len(added), len(subtracted)]) for added, subtracted in rows]
    ends = np.cumsum([0, *(len(row_indices) for row_indices in indices)])
    if not rows:
        return csr_array((0, family.size))
    matrix = csr_array((np.concatenate(signs), np.concatenate(indices), ends), shape=(len(rows), family.size))
    matrix.sum_duplicates()
    return matrix


def _shared_counts(family: BayesNet, counted: Sequence[bool]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the counts that a column and a discrete parent share, as features of either block, for all such pairs."""
    blocks = {column: _counts(family, column, *layout) for column, *layout in family.blocks}
    pairs = []
    for column, (axes, features) in blocks.items():
        for parent in family.split(column)[1]:
            parent_axes, parent_features = blocks[family.continuous + parent]
            shared_axes = [axis for axis in parent_axes if axis in axes]
            if all(counted[axis] for axis in {*axes, *parent_axes}):
                pairs += list(
                    zip(
                        _summed(features, axes, shared_axes),
                        _summed(parent_features, parent_axes, shared_axes),
                        strict=True,
                    )
                )
    return pairs


def _pair_margins(family: Aode, counted: Sequence[bool]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the cells of pairs that add up to the cell of one value, for both columns of every pair."""
    ties = []
    for begin, (i, j) in zip(family.pair_begins, family.pairs, strict=False):
        shape = family.cardinalities[i], family.cardinalities[j]
        cells = family.first_pair + begin + np.arange(shape[0] * shape[1]).reshape(shape)
        if counted[i] and counted[j]:
            for column, of_value in ((i, cells), (j, cells.T)):
                first = 1 + family.offsets[column]
                ties += [(row, np.array([first + value])) for value, row in enumerate(of_value)]
    return ties


def _counts(
    family: BayesNet, column: int, offset: int, configurations: int, entries: int
) -> tuple[tuple[int, ...], np.ndarray]:
    """Return the discrete columns that a block counts, and its features as an array with an axis for each of them."""
    discrete = family.split(column)[1]
    sizes = tuple(family.cardinalities[parent] for parent in discrete)
    features = offset + np.arange(configurations * entries).reshape(*sizes, entries)
    if column >= family.continuous:
        return (*discrete, column - family.continuous), features
    return discrete, features[..., 0]  # the first of a continuous column's moments counts rows


def _summed(features: np.ndarray, axes: Sequence[int], kept_columns: Sequence[int]) -> list[np.ndarray]:
    """Return the features to add up for each combination of values of the kept columns."""
    moved = np.moveaxis(features, [list(axes).index(axis) for axis in kept_columns], range(len(kept_columns)))
    sizes = moved.shape[: len(kept_columns)]
    return [moved[value].ravel() for value in itertools.product(*(range(size) for size in sizes))]
