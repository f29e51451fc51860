"""Which pairs of columns a GA2M crosses: those whose step on half of the rows lowers the log loss of the other half.

With the model without crosses, for every pair of columns, cell k, class c and half s of the rows

    g_skc = Σ (y_c − p_c),   h_skc = Σ p_c(1 − p_c)          sums over the rows of the half in the cell
    δ_s   = g_s / (h_s + κ)                                  a step for each cell, shrunk by κ
    gain  = Σ_s ⟨g_s′, δ_s⟩ − ½⟨h_s′, δ_s²⟩                  what it gains on the other half s′, to second order
    z     = min_s ⟨g_s′, δ_s⟩ / ⟨h_s′, δ_s²⟩^½               about standard normal where the pair tells nothing

where g is without what steps of either column alone explain. A pair is crossed if its z, at the κ of its largest gain,
is above √(2 log(1 + pairs)), which the largest of as many normal numbers seldom is. All crosses have one penalty: half
the κ with which they gain most together. g and h are sums over rows, so peers agree on them as on any others. A row's
half follows from its cells alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from peerbayes.data.bins import BINS
from peerbayes.data.crosses import Cross, grouped
from peerbayes.data.schema import Schema
from peerbayes.data.table import FRAME_ROWS
from peerbayes.model import core
from peerbayes.model.families.base import Family
from peerbayes.model.passes import plain_logits, softmax
from peerbayes.model.penalties import cell_counts
from peerbayes.model.sources import BLOCK_ROWS, Source
from peerbayes.model.structure import mutual

# Steps of the model without crosses: those that it lacks are of columns alone, and do not count for a pair.
STEPS = 20

# The most crosses of a model: each is a few dozen numbers in every message.
MOST_CROSSES = 64

# Columns up to which a cross has so many groups of cells on either side; more columns have fewer, since their pairs are
# many and each cell needs rows.
GROUPS = {4: 16, 8: 8}
FEWEST_GROUPS = 6

# Columns up to which numbers go into so many bins; more columns have `BINS`.
FINER_BINS = {4: 64, 8: 32}

# The most numbers of the tables of all pairs: 32 MB. Of more columns those that tell least are left out.
MOST_NUMBERS = 1 << 22

# Times that what either column explains is taken from the tables of a pair; a few make up for cells of unequal rows.
SWEEPS = 3

# The shrinkage κ of steps that are compared, in rows.
STRENGTHS = 2.0 ** np.arange(-3, 11)

# The penalty of crosses beside the κ of their steps. Chosen on seeds 101 and 102 of the paper's tabular datasets.
OF_STEPS = 0.5

# In place of a sum of nothing, where it divides: what it divides is nothing as well.
TINY = np.finfo(float).tiny


def groups_for(columns: int) -> int:
    """Return how many groups of cells each side of a cross has, for a table of so many columns."""
    return next((groups for most, groups in GROUPS.items() if columns <= most), FEWEST_GROUPS)


def bins_for(columns: int) -> int:
    """Return how many bins a column of numbers has, for a table of so many columns."""
    return next((bins for most, bins in FINER_BINS.items() if columns <= most), BINS)


def candidates(schema: Schema, sums: np.ndarray) -> tuple[Cross, ...]:
    """Return all pairs of columns that may be crossed, from YᵀΦ of all rows without crosses: [C, K] -> crosses.

    Columns of one cell have nothing to cross. Where the tables of all pairs would be too large, the columns that tell
    most of the class are taken.
    """
    most = groups_for(len(schema.columns))
    sides = {}
    for j, counts in cell_counts(schema, sums).items():
        column = schema.columns[j]
        groups = grouped(counts.sum(axis=0), most, ordered=column.traits.reads_numbers)
        if max(groups) > 0:
            sides[column.name] = (groups, mutual(counts))
    kept = sorted(sides, key=lambda name: (-sides[name][1], name))
    while len(kept) > 2 and _numbers(kept, sides, len(schema.classes)) > MOST_NUMBERS:
        kept.pop()
    names = [name for name in sides if name in kept]
    return tuple(Cross((a, b), (sides[a][0], sides[b][0])) for a, b in combinations(names, 2))


def _numbers(names: Sequence[str], sides: dict[str, tuple[tuple[int, ...], float]], classes: int) -> int:
    """Return how many numbers the tables of all pairs of these columns have."""
    sizes = np.array([max(sides[name][0]) + 1 for name in names], dtype=np.int64)
    return int((sizes.sum() ** 2 - (sizes**2).sum()) // 2 * 4 * classes)


def halves(codes: np.ndarray) -> np.ndarray:
    """Return in which half of the rows each row is, by its cells alone: [n, D] -> [n] of 0 and 1."""
    keys = np.zeros(len(codes), dtype=np.uint64)
    for column in codes.T:
        keys ^= column.astype(np.int64).view(np.uint64)
        keys *= np.uint64(0xD6E8FEB86659FD93)  # a mixing step of SplitMix64's kind
        keys ^= keys >> np.uint64(32)
    return (keys & np.uint64(1)).astype(np.int64)


def pair_sums(
    family: Family,
    weights: np.ndarray,
    source: Source,
    labels: np.ndarray,
    row_weights: np.ndarray | None,
    pairs: Sequence[Cross],
) -> np.ndarray:
    """Return g and h of all pairs under the model W of the main effects: [halves, 2, cells of all pairs, C].

    labels       class indices [n]
    row_weights  [n], or None for ones
    """
    schema, classes = source.schema, len(weights)
    place = {schema.names[j]: k for k, j in enumerate(schema.discrete)}
    sums = np.zeros((2, 2, sum(pair.cells for pair in pairs), classes))
    logits_of = plain_logits(family, weights)
    # More rows than these are read in smaller blocks, whose cells and posteriors take less memory than the table.
    for start, block in source.blocks(FRAME_ROWS if source.rows <= FRAME_ROWS else BLOCK_ROWS):
        rows = slice(start, start + len(block.codes))
        posterior = softmax(logits_of(block))  # [C, b]
        mass = np.ones(len(block.codes)) if row_weights is None else row_weights[rows]
        step = (core.one_hot(labels[rows], classes).T - posterior) * mass
        spread = posterior * (1.0 - posterior) * mass
        half, first = halves(block.codes), 0
        for pair in pairs:
            a, b = (block.codes[:, place[name]] for name in pair.columns)
            cell = pair.codes(a, b)
            index, size = half * (pair.cells + 1) + cell + 1, 2 * (pair.cells + 1)  # the first: missing
            for which, numbers in enumerate((step, spread)):
                for c in range(classes):
                    counted = np.bincount(index, numbers[c], minlength=size).reshape(2, -1)[:, 1:]
                    sums[:, which, first : first + pair.cells, c] += counted
            first += pair.cells
    return sums


class Gains(NamedTuple):
    """What the steps of pairs gain on rows that they do not come from, for each of `STRENGTHS` and each half."""

    nats: np.ndarray  # [pairs, strengths, 2]
    scores: np.ndarray  # [pairs, strengths, 2] standard normal, about, where a pair tells nothing


def gains(pairs: Sequence[Cross], sums: np.ndarray) -> Gains:
    """Return what the step of each half gains on the other: [halves, 2, cells, C] -> [pairs, strengths, 2]."""
    starts = np.cumsum([0, *(pair.cells for pair in pairs)])
    slopes, bends = np.empty((2, len(pairs), STRENGTHS.size, 2))
    for index, pair in enumerate(pairs):
        table = sums[:, :, starts[index] : starts[index + 1]].reshape(2, 2, *pair.shape, -1)
        step, spread = _beyond_margins(table[:, 0], table[:, 1]), table[:, 1]
        for which, strength in enumerate(STRENGTHS):
            moved = step / (spread + strength)
            slopes[index, which] = (step[::-1] * moved).sum(axis=(1, 2, 3))
            bends[index, which] = (spread[::-1] * moved**2).sum(axis=(1, 2, 3))
    return Gains(slopes - 0.5 * bends, slopes / np.sqrt(np.maximum(bends, TINY)))


def _beyond_margins(step: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Return g less what steps of either column alone explain: [halves, a, b, C] twice -> [halves, a, b, C]."""
    for _ in range(SWEEPS):
        for axis in (1, 2):
            mass = spread.sum(axis=axis, keepdims=True)
            step = step - spread * (step.sum(axis=axis, keepdims=True) / np.maximum(mass, TINY))
    return step


def chosen(pairs: Sequence[Cross], sums: np.ndarray, most: int = MOST_CROSSES) -> tuple[Cross, ...]:
    """Return the pairs that tell something for certain, with their penalty, at most so many, the largest gain first."""
    if not pairs or most == 0:
        return ()
    gained = gains(pairs, sums)
    totals = gained.nats.sum(axis=2)  # [pairs, strengths]
    score = gained.scores.min(axis=2)[np.arange(len(pairs)), totals.argmax(axis=1)]
    certain = np.flatnonzero(score > math.sqrt(2.0 * math.log(1.0 + len(pairs))))
    if not certain.size:
        return ()
    best = int(totals[certain].sum(axis=0).argmax())
    order = certain[np.argsort(-totals[certain, best], kind="stable")]
    penalty = OF_STEPS * float(STRENGTHS[best])
    return tuple(replace(pairs[index], penalty=penalty) for index in order[:most])
