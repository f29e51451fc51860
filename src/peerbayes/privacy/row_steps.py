"""q = e_y − p of rows, each row's to the same bits in whatever table it lies.

A matrix product adds up in an order that depends on the table's shape and on where a row lies in it, and so do the
last bits of log joints. One row more would then change what others add to a release, if only by a step of the grid.
Here every row goes its own way:

    log joint     term after term in one order; single products and sums, which IEEE 754 rounds in one way only
    exp           of arrays whose length is a multiple of LANES, so that no number is left over for another routine,
                  and of arguments from −FARTHEST to 0, which need no special treatment
    softmax       maximum and sum over classes in one order

Rows that fill up the last block are zeros and are thrown away.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from peerbayes.families import Family, Rows

# Rows of a block: a multiple of what any processor's vectors hold.
LANES = 64

# Log joints held at a time: they stay in cache.
IN_CACHE = 1 << 15

# e⁻⁷⁰⁰ is 10⁻³⁰⁴, far below a step of any grid, and still a normal number.
FARTHEST = 700.0


@dataclass(frozen=True, eq=False)
class RowSteps:
    """Rows with their labels, ready to be asked for q at any weights."""

    family: Family
    labels: np.ndarray
    """[n'] class of each row, −1 for one that fills up."""
    count: int
    """n, the rows that are none of these."""
    dense: np.ndarray
    """[dense_size, n'] features of the continuous columns."""
    places: np.ndarray
    """[E, n'] where the other features lie, K for nowhere."""
    values: np.ndarray | None
    """[E, n'] the other features; None: ones."""

    @classmethod
    def of(cls, family: Family, rows: Rows, labels: np.ndarray) -> RowSteps:
        """Of encoded rows [n, …] and class indices [n]."""
        places, values = family.entries(rows)
        dense = np.asarray(family.dense(rows.values))
        return cls(
            family,
            _filled(np.asarray(labels, dtype=np.int64), -1),
            len(labels),
            _filled(dense, 0.0),
            _filled(places, family.size),
            None if values is None else _filled(values, 0.0),
        )

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        """q at W: [C, K] -> [n, C]."""
        classes = len(weights)
        steps = np.empty((classes, self.labels.size))
        block = max(LANES, IN_CACHE // classes // LANES * LANES)
        nowhere = np.concatenate([weights, np.zeros((classes, 1))], axis=1)
        with np.errstate(all="ignore"):  # crafted statistics may overflow; what is not finite is cut
            for begin in range(0, self.labels.size, block):
                some = slice(begin, begin + block)
                steps[:, some] = self._steps(nowhere, some)
        return steps.T[: self.count]

    def _steps(self, weights: np.ndarray, some: slice) -> np.ndarray:
        """q of a block of rows at W with a column of zeros: [C, K + 1] -> [C, block]."""
        joint = self._log_joint(weights, some)
        joint -= joint.max(axis=0)  # a maximum is exact in any order
        joint = np.exp(np.maximum(joint, -FARTHEST, out=joint))
        total = joint[0].copy()
        for each in joint[1:]:
            total += each
        joint /= -total
        labels = self.labels[some]
        there = np.flatnonzero(labels >= 0)
        joint[labels[there], there] += 1.0
        return joint

    def _log_joint(self, weights: np.ndarray, some: slice) -> np.ndarray:
        """⟨W_c, φ(x)⟩ of a block of rows: [C, K + 1] -> [C, block]."""
        dense, places = self.dense[:, some], self.places[:, some]
        joint = np.zeros((len(weights), places.shape[1]))
        term = np.empty_like(joint)
        for own, feature in zip(weights.T, dense, strict=False):  # the dense features come first
            joint += np.multiply(own[:, None], feature, out=term)
        for entry, place in enumerate(places):
            np.take(weights, place, axis=1, out=term, mode="clip")
            if self.values is not None:
                term *= self.values[entry, some]
            joint += term
        return joint


def _filled(values: np.ndarray, by: float) -> np.ndarray:
    """Return values with rows last, and `by` in those that fill up the last block: [n] or [n, K] -> [n'] or [K, n']."""
    filled = np.full((*values.shape[1:], len(values) + -len(values) % LANES), by, dtype=values.dtype)
    filled[..., : len(values)] = values.T
    return filled
